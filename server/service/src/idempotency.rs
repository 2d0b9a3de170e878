//! What distinguishes a repeated request from another one: its key, and the digest of its content.

use sandbox_dirfd::hex;
use sha2::{Digest as _, Sha256};

use crate::error::ServiceError;

/// The longest idempotency key.
const MAX_KEY_BYTES: usize = 255;

/// What makes a repeated request the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// A key of a caller's choice, unique among those of its subject.
    ///
    /// # Errors
    ///
    /// If it is empty, longer than 255 bytes, or has something else than visible ASCII characters.
    pub fn new(key: impl Into<String>) -> Result<Self, ServiceError> {
        let key = key.into();
        let is_valid = (1..=MAX_KEY_BYTES).contains(&key.len());
        match is_valid && key.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(key)),
            false => Err(ServiceError::invalid(
                "Idempotency-Key",
                "a key has 1 to 255 visible ASCII characters",
            )),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The digest of a request, to distinguish a different one from the same one. It has the names of
/// secrets and not their values: a digest of something short can be guessed.
pub(crate) fn digest<'a>(json: &str, parts: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.update(json);
    hex(&hasher.finalize())
}
