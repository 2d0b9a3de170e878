//! The digests that images are made of: SHA-256's, as every tool writes them.

use std::fmt;

use sandbox_dirfd::is_random_hex;
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new_with_prefix(bytes))
    }

    pub(super) fn finish(hash: Sha256) -> Self {
        Self(hash.finalize().into())
    }

    /// `sha256:` and 64 lower-case hexadecimal digits.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::from_hex(text.strip_prefix("sha256:")?)
    }

    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let bytes = sandbox_dirfd::from_hex(text).filter(|_| is_random_hex::<32>(text))?;
        bytes.try_into().ok().map(Self)
    }

    pub(super) fn hex(&self) -> String {
        sandbox_dirfd::hex(&self.0)
    }

    /// Where an OCI layout has what has this digest.
    pub(super) fn member(&self) -> String {
        format!("blobs/sha256/{}", self.hex())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
