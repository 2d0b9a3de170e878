//! The property that holds for any bytes: the body of the fuzz target `attach`. It panics if the property is
//! violated.
//!
//! Compiled for `fuzz/`, and for this crate's tests, which replay the corpus.

use crate::attach::AttachRequest;
use crate::strict;

/// A message that is read is the one that a lenient reader sees, and is the same when it is written again. What
/// is refused is refused in words. Only this reader takes `10.0` for a whole number.
pub fn attach(data: &[u8]) {
    match strict::from_slice::<AttachRequest>(data) {
        Ok(request) => {
            if let Ok(lenient) = serde_json::from_slice::<AttachRequest>(data) {
                assert_eq!(lenient, request);
            }
            let again = serde_json::to_vec(&request).expect("a request can be written");
            assert_eq!(strict::from_slice(&again).ok(), Some(request));
        }
        Err(mistake) => assert!(!mistake.to_string().is_empty()),
    }
}

#[cfg(test)]
#[path = "../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn attach_properties_hold_for_the_corpus() {
        corpus::replay("attach", super::attach);
    }
}
