//! Receipts that were changed, mixed and made up.

use sandbox_api::SandboxSpec;
use sandbox_api::receipt::{
    BuildDefinition, BuildType, Builder, BuilderId, ExternalParameters, InternalParameters,
    PredicateType, Provenance, ReceiptEngine, RunDetails, RunMetadata, StatementType, Subject,
    TestVerdict,
};
use sandbox_api::{Confinement, EngineKind, UnixSockets};
use serde_json::{Value, json};

use super::*;
use crate::key::SigningKey;

fn results(source: &str, failed: &[&str]) -> TestResult {
    TestResult {
        result: if failed.is_empty() { TestVerdict::Passed } else { TestVerdict::Failed },
        configuration: vec![Dependency::new(Dependency::SCRIPT, sha256(source))],
        passed_tests: vec!["one".to_owned()],
        failed_tests: failed.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// A receipt of a script that made one file, with test results.
fn receipt(source: &str, tests: Option<&TestResult>) -> Receipt {
    let mut byproducts = vec![Dependency::new(Dependency::OUTCOME, sha256("ok"))];
    byproducts.extend(tests.map(|tests| Dependency::new(Dependency::TESTS, tests_digest(tests))));
    Receipt {
        statement: StatementType::V1,
        subject: vec![Subject::file(b"a", sha256("content"))],
        predicate_type: PredicateType::Provenance,
        predicate: Provenance {
            build_definition: BuildDefinition {
                build_type: BuildType::Script,
                external_parameters: ExternalParameters {
                    sandbox: SandboxSpec::new(),
                    artifacts: Vec::new(),
                    commit: None,
                    seed: None,
                    now: None,
                },
                internal_parameters: InternalParameters {
                    engine: ReceiptEngine {
                        kind: EngineKind::Docker,
                        version: "1".to_owned(),
                        kernel: "6".to_owned(),
                    },
                    confinement: Confinement {
                        no_new_privileges: true,
                        undumpable: true,
                        landlock_abi: Some(6),
                        seccomp: true,
                        unix_sockets: UnixSockets::None,
                        missing: Vec::new(),
                    },
                },
                resolved_dependencies: vec![Dependency::new(Dependency::SCRIPT, sha256(source))],
            },
            run_details: RunDetails {
                builder: Builder { id: BuilderId::Sandboxctl, version: [].into() },
                metadata: RunMetadata {
                    invocation_id: "i".to_owned(),
                    started_on: "2026-01-01T00:00:00Z".to_owned(),
                    finished_on: "2026-01-01T00:00:01Z".to_owned(),
                },
                byproducts,
            },
        },
    }
}

/// The lines of a signed receipt.
fn lines(receipt: &Receipt, tests: Option<&TestResult>, key: &SigningKey) -> Vec<String> {
    let mut lines = vec![serde_json::to_string(&sign(receipt, key).unwrap()).unwrap()];
    if let Some(tests) = tests {
        let statement = TestStatement::new(receipt, tests.clone());
        lines.push(serde_json::to_string(&sign(&statement, key).unwrap()).unwrap());
    }
    lines
}

fn refusal(text: &str) -> String {
    open(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn tests_are_those_of_their_run_whatever_is_signed() {
    let key = SigningKey::generate().unwrap();
    let of = |source: &str, failed: &[&str]| {
        let tests = results(source, failed);
        lines(&receipt(source, Some(&tests)), Some(&tests), &key)
    };
    let (bad, good) = (of("bad", &["two"]), of("good", &[]));
    // The same script, which failed at another time.
    let flaky = of("good", &["two"]);
    let none = lines(&receipt("good", None), None, &key);
    for whole in [&bad, &good, &flaky, &none] {
        open(whole.join("\n").as_bytes()).unwrap().verify(&key.public()).unwrap();
    }
    for mixed in [[&bad[0], &good[1]], [&flaky[0], &good[1]], [&none[0], &good[1]]] {
        let text = mixed.map(String::as_str).join("\n");
        assert!(refusal(&text).contains("its tests are of another run"), "{text}");
    }
    assert!(refusal(&bad[0]).contains("the results of its tests are missing"));
    let three = [&*good[0], &good[1], &bad[1]].join("\n");
    assert!(refusal(&three).contains("more than two statements"));
}

#[test]
fn documents_after_the_third_are_not_kept() {
    let text = "{}".repeat(1_000_000);
    // Each of them alone would be refused too; what counts is that they are not collected.
    assert!(refusal(&text).contains("it is not a receipt"));
}

#[test]
fn subjects_and_dependencies_are_named_once_and_digests_are_digests() {
    let whole = serde_json::to_value(receipt("x", None)).unwrap();
    open(whole.to_string().as_bytes()).unwrap();
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut changed = whole.clone();
        change(&mut changed);
        refusal(&changed.to_string())
    };
    let other = sha256("other");
    let digest = |digest: &str| json!({ "sha256": digest });
    let digests = [String::new(), "zz".to_owned(), other.to_uppercase(), format!("{other}0")];
    for odd in digests {
        let reason = refused(&|it| it["subject"][0]["digest"] = digest(&odd));
        assert!(reason.contains("64 lower-case"), "{odd}: {reason}");
    }
    let twice = json!({ "name": "a", "digest": digest(&other) });
    let reason = refused(&|it| it["subject"].as_array_mut().unwrap().push(twice.clone()));
    assert!(reason.contains("two subjects of one name"), "{reason}");
    assert!(refused(&|it| it["subject"] = json!([])).contains("it has no subject"));
    let script = json!({ "name": "script", "digest": digest(&other) });
    let reason = refused(&|it| {
        let list = &mut it["predicate"]["buildDefinition"]["resolvedDependencies"];
        list.as_array_mut().unwrap().push(script.clone());
    });
    assert!(reason.contains("two dependencies"), "{reason}");
    let outcome = json!({ "name": "outcome", "digest": digest(&other) });
    let reason = refused(&|it| {
        let list = &mut it["predicate"]["runDetails"]["byproducts"];
        list.as_array_mut().unwrap().push(outcome.clone());
    });
    assert!(reason.contains("two dependencies or byproducts"), "{reason}");
}

#[test]
fn any_text_is_a_receipt_or_an_error() {
    let key = SigningKey::generate().unwrap();
    let whole = lines(&receipt("x", None), None, &key).remove(0);
    open(whole.as_bytes()).unwrap().verify(&key.public()).unwrap();
    let other = SigningKey::generate().unwrap().public();
    assert!(matches!(open(whole.as_bytes()).unwrap().verify(&other), Err(ReceiptError::Signature)));
    for at in 0..whole.len() {
        let mut bytes = whole.clone().into_bytes();
        bytes[at] ^= 1;
        // The id of the key is a hint, which is not signed.
        if let Ok(opened) = open(&bytes)
            && opened.verify(&key.public()).is_ok()
        {
            let id = whole.find(&key.public().id()).unwrap();
            assert!((id..id + key.public().id().len()).contains(&at), "byte {at}");
        }
        _ = open(&whole.as_bytes()[..at]);
    }
}
