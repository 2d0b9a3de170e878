//! The body of the fuzz target `receipts`: a receipt that may have passed through other hands.
//!
//! Compiled for `fuzz/`, and for this crate's tests, which replay the corpus.

use sandbox_api::receipt::TestVerdict;
use serde_json::to_string;

use crate::{differences, digests, open};

/// Holds what must be so of any file.
pub fn receipts(data: &[u8]) {
    let opened = match open(data) {
        Ok(opened) => opened,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    // Written again it is the same receipt, without its signatures.
    let tests = opened.tests.as_ref();
    let lines = [Some(to_string(&opened.receipt)), tests.map(to_string)];
    let text: Vec<_> = lines.into_iter().flatten().collect::<Result<_, _>>().expect("plain data");
    let again = open(text.join("\n").as_bytes()).expect("it was read once");
    assert_eq!((&again.receipt, &again.tests), (&opened.receipt, &opened.tests));
    assert!(!again.is_signed());
    // Its own files are those that it is of, and no others are.
    let subjects = opened.receipt.subject.clone();
    let files = digests(subjects);
    assert_eq!(differences(&opened.receipt, files.clone()), []);
    assert_eq!(differences(&opened.receipt, []).len(), files.len());
    if let Some(tests) = tests {
        let is_failed = tests.predicate.result == TestVerdict::Failed;
        assert_eq!(is_failed, !tests.predicate.failed_tests.is_empty());
        assert_eq!(tests.subject, opened.receipt.subject);
    }
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn receipt_properties_hold_for_the_corpus() {
        corpus::replay("receipts", super::receipts);
    }
}
