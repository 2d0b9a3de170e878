//! Properties that hold for any bytes: the bodies of the fuzz targets `paths`, `requests` and
//! `result`. They panic if a property does not hold.
//!
//! Compiled for `fuzz/`, and for this crate's tests, which replay the corpora.

pub use crate::files::fuzz::paths;
pub use crate::luau::fuzz::result;
pub use crate::proxy::fuzz::requests;

#[cfg(test)]
#[path = "../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn path_properties_hold_for_the_corpus() {
        corpus::replay("paths", super::paths);
    }

    #[test]
    fn request_properties_hold_for_the_corpus() {
        corpus::replay("requests", super::requests);
    }

    #[test]
    fn result_properties_hold_for_the_corpus() {
        corpus::replay("result", super::result);
    }
}
