//! The store's place until it is there.

/// A store.
#[derive(Debug, Clone)]
pub struct Store;

/// Why a store failed.
#[derive(Debug, thiserror::Error)]
#[error("the store failed")]
pub struct StoreError;
