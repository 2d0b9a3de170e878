//! The property that holds for any bytes: the body of the fuzz target `tls`. It panics if the
//! property is violated.
//!
//! Compiled for `fuzz/`, and for this crate's tests, which replay the corpus.

pub use crate::egress::fuzz::tls;

#[cfg(test)]
#[path = "../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn tls_properties_hold_for_the_corpus() {
        corpus::replay("tls", super::tls);
    }
}
