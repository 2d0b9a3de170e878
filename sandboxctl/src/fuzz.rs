//! What holds whatever the bytes are: the body of the fuzz target `config`. It panics where it
//! does not.
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
    fn what_fuzzing_found_of_configurations_holds() {
        corpus::replay("config", super::config);
    }
}
