//! The declarations that `sandboxctl types` prints.
