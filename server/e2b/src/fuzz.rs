//! The property that holds for any bytes: the body of the fuzz target `envelopes`. It panics if the
//! property is violated.
//!
//! Compiled for `fuzz/`, and for this crate's tests, which replay the corpus.

/// However a client's stream is cut into pieces, it has the same messages.
pub fn envelopes(data: &[u8]) {
    crate::connect::envelope::fuzz(data);
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn envelope_properties_hold_for_the_corpus() {
        corpus::replay("envelopes", super::envelopes);
    }
}
