//! What holds whatever the bytes are: the bodies of the fuzz targets `tls` and `layers`. They panic
//! where it does not.
//!
//! Compiled for `fuzz/`, and for this crate's tests, which replay the corpora.

pub use crate::egress::fuzz::tls;
pub use crate::rootfs::fuzz::layers;

#[cfg(test)]
#[path = "../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn what_fuzzing_found_of_tls_holds() {
        corpus::replay("tls", super::tls);
    }

    #[test]
    fn what_fuzzing_found_of_layers_holds() {
        corpus::replay("layers", super::layers);
    }
}
