//! Receipts that were changed, mixed and made up.

use sandbox_api::SandboxSpec;
use sandbox_api::receipt::{
    BuildDefinition, BuildType, Builder, BuilderId, ExternalParameters, InternalParameters,
    PredicateType, Provenance, ReceiptEngine, RunDetails, RunMetadata, StatementType, Subject,
    TestVerdict,
};
use sandbox_api::{Confinement, EngineKind, ErrorKind, Failure, Outcome, UnixSockets};
use serde_json::{Value, json};

use super::*;
use crate::key::SigningKey;

fn results(source: &str, failed: &[&str]) -> TestResult {
    TestResult {
        result: TestVerdict::of(1, failed.len()),
        configuration: vec![Dependency::new(Dependency::SCRIPT, sha256(source))],
        passed_tests: vec!["one".to_owned()],
        failed_tests: failed.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// A receipt of a script that made one file, with test results.
fn receipt(source: &str, tests: Option<&TestResult>) -> Receipt {
    let result = RawValue::from_string("1".to_owned()).unwrap();
    let mut byproducts = vec![crate::outcome(&Outcome::Ok { result })];
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
                    command: None,
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

#[test]
fn tests_that_were_all_skipped_have_not_passed() {
    let skipped = |result| TestResult { result, passed_tests: Vec::new(), ..results("s", &[]) };
    let key = SigningKey::generate().unwrap();
    for (result, is_accepted) in
        [(TestVerdict::Warned, true), (TestVerdict::Passed, false), (TestVerdict::Failed, false)]
    {
        let tests = skipped(result);
        let text = lines(&receipt("s", Some(&tests)), Some(&tests), &key).join("\n");
        assert_eq!(open(text.as_bytes()).is_ok(), is_accepted, "{result:?}");
    }
    assert_eq!(serde_json::to_value(TestVerdict::Warned).unwrap(), "WARNED");
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
        assert!(refusal(&text).contains("its tests belong to a different run"), "{text}");
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
        let verified = open(&bytes).map(|opened| opened.verify(&key.public()));
        assert!(!matches!(verified, Ok(Ok(()))), "byte {at}");
        _ = open(&whole.as_bytes()[..at]);
    }
}

#[test]
fn receipt_with_the_id_of_another_key_is_refused() {
    let [key, other] = [(); 2].map(|()| SigningKey::generate().unwrap());
    let whole = lines(&receipt("x", None), None, &key).remove(0);
    let with = |keyid: Value| {
        let mut envelope: Value = serde_json::from_str(&whole).unwrap();
        envelope["signatures"][0]["keyid"] = keyid;
        open(envelope.to_string().as_bytes()).unwrap().verify(&key.public())
    };
    with(key.public().id().into()).unwrap();
    // Other tools write none.
    with(Value::Null).unwrap();
    let error = with(other.public().id().into()).unwrap_err();
    assert!(matches!(error, ReceiptError::KeyId), "{error}");
    // Nor beside one with its own id.
    let mut envelope: Value = serde_json::from_str(&whole).unwrap();
    let mut again = envelope["signatures"][0].clone();
    again["keyid"] = other.public().id().into();
    envelope["signatures"].as_array_mut().unwrap().push(again);
    let verified = open(envelope.to_string().as_bytes()).unwrap().verify(&key.public());
    assert!(matches!(verified, Err(ReceiptError::KeyId)), "{verified:?}");
}

#[test]
fn receipt_that_contradicts_itself_is_refused() {
    let whole = serde_json::to_value(receipt("x", None)).unwrap();
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut changed = whole.clone();
        change(&mut changed);
        refusal(&changed.to_string())
    };
    let digest = json!({ "sha256": sha256("other") });
    let result = json!({ "name": "result", "digest": digest, "annotations": { "kind": "result" } });
    let reason = refused(&|it| it["subject"] = json!([result]));
    assert!(reason.contains("not the one that the run ended with"), "{reason}");
    // A result and files exclude each other.
    let reason = refused(&|it| {
        let mut own = result.clone();
        own["digest"] = it["predicate"]["runDetails"]["byproducts"][0]["digest"].clone();
        it["subject"].as_array_mut().unwrap().push(own);
    });
    assert!(reason.contains("not the one that the run ended with"), "{reason}");
    for (name, path) in [("b", "YQ=="), ("a", "YQ=="), ("a", "/w==")] {
        let reason = refused(&|it| {
            it["subject"][0]["name"] = json!(name);
            it["subject"][0]["annotations"] = json!({ "path_b64": path });
        });
        assert!(reason.contains("another name than its path"), "{name} {path}: {reason}");
    }
    let outcome = "/predicate/runDetails/byproducts/0/annotations";
    for (name, value) in [
        ("status", json!("script_error")),
        ("status", Value::Null),
        ("exit_code", json!(1)),
        ("exit_code", json!("0")),
        ("error", json!("runtime")),
    ] {
        let reason = refused(&|it| it.pointer_mut(outcome).unwrap()[name] = value.clone());
        assert!(reason.contains("how the run ended"), "{name} {value}: {reason}");
    }
    let reason = refused(&|it| it["predicate"]["runDetails"]["byproducts"] = json!([]));
    assert!(reason.contains("how the run ended"), "{reason}");
    for time in ["", "yesterday", "2026-01-01T00:00:00Z\n::error::x"] {
        let reason = refused(&|it| {
            it["predicate"]["runDetails"]["metadata"]["finishedOn"] = json!(time);
        });
        assert!(reason.contains("it contains an invalid time"), "{time}: {reason}");
    }
    // A run that failed is not made one that was ok.
    let failure = Failure::new(ErrorKind::Engine, "it is gone".to_owned(), None);
    let failed = Outcome::Error { failure, exit_code: 125 };
    let mut of_failed = receipt("x", None);
    of_failed.predicate.run_details.byproducts = vec![crate::outcome(&failed)];
    let mut of_failed = serde_json::to_value(of_failed).unwrap();
    open(of_failed.to_string().as_bytes()).unwrap();
    *of_failed.pointer_mut(outcome).unwrap() = json!({ "status": "timeout", "exit_code": 124 });
    assert!(refusal(&of_failed.to_string()).contains("how the run ended"));
}
