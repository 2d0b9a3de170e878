//! Properties that hold for any bytes: the body of the fuzz target `config`. It panics if a
//! property does not hold.
//!
//! Compiled for `fuzz/`, and for this crate's tests, which replay the corpus.

pub use crate::config::fuzz::config;

#[cfg(test)]
#[path = "../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn config_properties_hold_for_the_corpus() {
        corpus::replay("config", super::config);
    }
}
