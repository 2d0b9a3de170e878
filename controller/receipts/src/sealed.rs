//! Receipts as files: one statement a line, each as it is or in a DSSE envelope that signs it.

use std::collections::HashSet;

use sandbox_api::receipt::{
    Dependency, DigestSet, Envelope, PayloadType, Receipt, RunMetadata, Signature, Subject,
    TestResult, TestStatement, TestVerdict,
};
use sandbox_api::time::parse_rfc3339;
use sandbox_api::{Base64, without_bom};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::key::{PublicKey, SigningKey};
use crate::outcome::is_consistent;
use crate::sha256;

/// The most statements of one receipt: provenance and test results.
const MAX_STATEMENTS: usize = 2;

const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const PROVENANCE: &str = "https://slsa.dev/provenance/v1";
const TEST_RESULT: &str = "https://in-toto.io/attestation/test-result/v0.1";

/// A receipt that was read. Who made it is not known before [`verify`](Self::verify).
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// What it says.
    pub receipt: Receipt,
    /// What its tests said, if it had some.
    pub tests: Option<TestStatement>,
    /// The envelope of each statement, if it has one.
    envelopes: Vec<Option<Envelope>>,
}

/// Why a file is no receipt, or not the one that it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// It is something else.
    #[error("it is not a receipt: {reason}")]
    Malformed {
        /// Why.
        reason: String,
    },
    /// It is a statement about something else.
    #[error("it is not a receipt: its {what} is '{found}'")]
    OtherType {
        /// Which type.
        what: &'static str,
        /// The type.
        found: String,
    },
    /// A key is given, and it has no signature.
    #[error("the receipt is not signed")]
    Unsigned,
    /// It was changed, or signed with another key.
    #[error("no signature of the receipt is by this key: it was changed, or another key signed it")]
    Signature,
    /// The key signed it, and its `keyid`, which the signature does not cover, names another one.
    #[error(
        "the key signed the receipt, but its keyid names a different key: the receipt was changed"
    )]
    KeyId,
}

/// Signs a statement.
///
/// # Errors
///
/// If it cannot be written as JSON.
pub fn sign(statement: &impl Serialize, key: &SigningKey) -> serde_json::Result<Envelope> {
    let payload = serde_json::to_vec(statement)?;
    let payload_type = PayloadType::InToto;
    let sig = Base64(key.sign(&encoded(payload_type, &payload)));
    let signatures = vec![Signature { keyid: Some(key.public().id()), sig }];
    Ok(Envelope { payload_type, payload: Base64(payload), signatures })
}

/// Reads a receipt, and the test results that follow it.
///
/// # Errors
///
/// [`ReceiptError`] if it is anything else, or contains what no receipt has.
pub fn open(text: &[u8]) -> Result<Opened, ReceiptError> {
    let mut statements = Vec::new();
    let mut envelopes = Vec::new();
    // Reads one document more than a receipt may have, and keeps no further ones.
    for document in serde_json::Deserializer::from_slice(without_bom(text))
        .into_iter::<Box<RawValue>>()
        .take(MAX_STATEMENTS + 1)
    {
        let document = document.map_err(malformed)?;
        let document = document.get().as_bytes();
        let head: Head = serde_json::from_slice(document).map_err(malformed)?;
        let envelope: Option<Envelope> = match head.payload_type {
            None => None,
            Some(known) if known == PayloadType::InToto.as_str() => {
                Some(serde_json::from_slice(document).map_err(malformed)?)
            }
            Some(found) => {
                return Err(ReceiptError::OtherType { what: "payload type", found });
            }
        };
        let payload = envelope.as_ref().map_or(document, |envelope| &envelope.payload.0);
        statements.push(payload.to_vec());
        envelopes.push(envelope);
    }
    let (receipt, tests): (Receipt, Option<TestStatement>) = match &*statements {
        [] => return Err(ReceiptError::Malformed { reason: "it is empty".to_owned() }),
        [receipt] => (statement(receipt, PROVENANCE)?, None),
        [receipt, tests] => (statement(receipt, PROVENANCE)?, Some(statement(tests, TEST_RESULT)?)),
        _ => {
            let reason = "it has more than two statements".to_owned();
            return Err(ReceiptError::Malformed { reason });
        }
    };
    check(&receipt, tests.as_ref())
        .map_err(|reason| ReceiptError::Malformed { reason: reason.to_owned() })?;
    Ok(Opened { receipt, tests, envelopes })
}

/// Checks what the types leave open: a name has one digest, a digest is one, and the tests are those
/// of this run.
fn check(receipt: &Receipt, tests: Option<&TestStatement>) -> Result<(), &'static str> {
    let Receipt { subject, predicate, .. } = receipt;
    let dependencies = &predicate.build_definition.resolved_dependencies;
    let byproducts = &predicate.run_details.byproducts;
    let named = dependencies.iter().chain(byproducts);
    let digests = subject.iter().map(|it| &it.digest).chain(named.map(|it| &it.digest));
    if !digests.into_iter().all(DigestSet::is_valid) {
        return Err("a digest is not 64 lower-case hexadecimal digits");
    }
    let outcome = predicate.byproduct(Dependency::OUTCOME);
    check_subjects(subject, outcome.ok_or("it does not say how the run ended")?)?;
    let RunMetadata { started_on, finished_on, .. } = &predicate.run_details.metadata;
    if ![started_on, finished_on].into_iter().all(|time| parse_rfc3339(time).is_some()) {
        return Err("it contains an invalid time");
    }
    let (mut names, mut results) = (HashSet::new(), HashSet::new());
    if !dependencies.iter().all(|it| names.insert(&it.name))
        || !byproducts.iter().all(|it| results.insert(&it.name))
    {
        return Err("it has two dependencies or byproducts of one name");
    }
    let is_unlike_its_cases = |TestStatement { predicate, .. }: &TestStatement| {
        let TestResult { result, passed_tests, failed_tests, .. } = predicate;
        *result != TestVerdict::of(passed_tests.len(), failed_tests.len())
    };
    if tests.is_some_and(is_unlike_its_cases) {
        return Err("the verdict of its tests is not that of the cases");
    }
    let digest = predicate.byproduct(Dependency::TESTS).map(|it| &it.digest.sha256);
    match (tests, digest) {
        (None, None) => Ok(()),
        (Some(tests), Some(digest)) if tests_digest(&tests.predicate) == *digest => {
            let script = dependencies.iter().filter(|it| it.name == Dependency::SCRIPT);
            match tests.subject == *subject && script.eq(&tests.predicate.configuration) {
                true => Ok(()),
                false => Err("its tests belong to a different run"),
            }
        }
        (Some(_), _) => Err("its tests belong to a different run"),
        (None, Some(_)) => Err("the results of its tests are missing"),
    }
}

/// Checks that the subjects are files with names of their own, or the result of the run alone.
fn check_subjects(subject: &[Subject], outcome: &Dependency) -> Result<(), &'static str> {
    if subject.is_empty() {
        return Err("it has no subject");
    }
    let mut paths = HashSet::new();
    if !subject.iter().all(|it| paths.insert(it.path())) {
        return Err("it has two subjects of one name");
    }
    let is_exact = |it: &Subject| match it.annotations.as_ref().and_then(|it| it.path_b64.as_ref())
    {
        Some(path) => *it == Subject::file(&path.0, it.digest.sha256.clone()),
        None => true,
    };
    if !subject.iter().all(is_exact) {
        return Err("a subject has another name than its path");
    }
    if !is_consistent(outcome) {
        return Err("how the run ended is not what its digest is of");
    }
    let is_result = |it: &Subject| *it == Subject::result(outcome.digest.sha256.clone());
    if subject.iter().any(|it| it.path().is_none()) && !matches!(subject, [it] if is_result(it)) {
        return Err("its result is not the one that the run ended with");
    }
    Ok(())
}

/// The digest of test results in their receipt: of them as JSON.
pub fn tests_digest(tests: &TestResult) -> String {
    // A value of plain strings can be written.
    sha256(serde_json::to_vec(tests).unwrap_or_default())
}

impl Opened {
    /// Whether everything in it has a signature, by whatever key.
    pub fn is_signed(&self) -> bool {
        let is_signed =
            |it: &Option<Envelope>| it.as_ref().is_some_and(|it| !it.signatures.is_empty());
        self.envelopes.iter().all(is_signed)
    }

    /// The ids of the keys that its signatures name. Nothing signs them.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let signatures = self.envelopes.iter().flatten().flat_map(|it| &it.signatures);
        let mut seen = HashSet::new();
        signatures.filter_map(|it| it.keyid.as_deref()).filter(move |key| seen.insert(*key))
    }

    /// Checks that this key signed all of it, and that its key id is this key's: the id is not part
    /// of the signed bytes.
    ///
    /// # Errors
    ///
    /// [`ReceiptError`] if it did not.
    pub fn verify(&self, key: &PublicKey) -> Result<(), ReceiptError> {
        if !self.is_signed() {
            return Err(ReceiptError::Unsigned);
        }
        for Envelope { payload_type, payload, signatures } in self.envelopes.iter().flatten() {
            let message = encoded(*payload_type, &payload.0);
            let by_key: Vec<_> =
                signatures.iter().filter(|it| key.has_signed(&message, &it.sig.0)).collect();
            if by_key.is_empty() {
                return Err(ReceiptError::Signature);
            }
            if by_key.iter().any(|it| it.keyid.as_ref().is_some_and(|keyid| *keyid != key.id())) {
                return Err(ReceiptError::KeyId);
            }
        }
        Ok(())
    }
}

fn malformed(error: serde_json::Error) -> ReceiptError {
    ReceiptError::Malformed { reason: error.to_string() }
}

/// Distinguishes the kinds of documents.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "payloadType")]
    payload_type: Option<String>,
    #[serde(rename = "_type")]
    statement: Option<String>,
    #[serde(rename = "predicateType")]
    predicate: Option<String>,
}

/// Reads a statement that says this kind of thing.
fn statement<T: DeserializeOwned>(text: &[u8], predicate: &str) -> Result<T, ReceiptError> {
    let head: Head = serde_json::from_slice(text).map_err(malformed)?;
    let types = [
        ("statement type", head.statement, STATEMENT),
        ("predicate type", head.predicate, predicate),
    ];
    for (what, found, expected) in types {
        if let Some(found) = found.filter(|found| found != expected) {
            return Err(ReceiptError::OtherType { what, found });
        }
    }
    serde_json::from_slice(text).map_err(malformed)
}

/// What is signed: DSSE's pre-authentication encoding.
fn encoded(payload_type: PayloadType, payload: &[u8]) -> Vec<u8> {
    let name = payload_type.as_str();
    let mut message = format!("DSSEv1 {} {name} {} ", name.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    message
}

#[cfg(test)]
mod tests;
