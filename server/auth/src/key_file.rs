//! Files with keys.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The largest key file.
pub const MAX_KEY_FILE_BYTES: u64 = 1 << 20;
/// The shortest secret of HS256: as long as its digest.
pub const MIN_SECRET_BYTES: usize = 32;

/// A key file cannot be used, or an issuer has no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("cannot read the key file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is too large.
    #[error("the key file {} is larger than {MAX_KEY_FILE_BYTES} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Others can read a secret.
    #[error("{} has a secret and is open to others", path.display())]
    OpenToOthers {
        /// The file.
        path: PathBuf,
    },
    /// The secret is too short.
    #[error("the secret in {} has fewer than {MIN_SECRET_BYTES} bytes", path.display())]
    ShortSecret {
        /// The file.
        path: PathBuf,
    },
    /// It is no key set.
    #[error("{} is not a JSON Web Key Set: {detail}", path.display())]
    KeySet {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// There is neither a key set nor a secret of an issuer.
    #[error("tokens of {issuer} cannot be checked without a key")]
    NoKey {
        /// The issuer.
        issuer: String,
    },
}

impl KeyFileError {
    /// The next step, where there is one.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::OpenToOthers { .. } => Some("give it to the server's user alone: chmod 600 FILE"),
            Self::ShortSecret { .. } => Some("make one: head -c 32 /dev/urandom | base64 > FILE"),
            Self::KeySet { .. } => Some(
                "each key has `kid`, `alg` (RS256, ES256 or EdDSA) and the public parts of its kind",
            ),
            Self::NoKey { .. } => Some("name its key set, or a secret: jwks_file, secret_file"),
            Self::Read { .. } | Self::TooLarge { .. } => None,
        }
    }
}

/// Reads a private key: a file of the server's user, or of root, that others cannot read.
///
/// # Errors
///
/// [`KeyFileError`].
pub fn read_private(path: &Path) -> Result<Vec<u8>, KeyFileError> {
    read(path, Readers::OwnerAlone)
}

/// Who may read the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// All users: it has public keys.
    Anybody,
    /// The server's user, or root.
    OwnerAlone,
}

/// Reads a key file. The opened file is checked, so that it cannot be replaced meanwhile.
pub(crate) fn read(path: &Path, readers: Readers) -> Result<Vec<u8>, KeyFileError> {
    let failed = |source| KeyFileError::Read { path: path.to_owned(), source };
    // Otherwise opening a FIFO blocks until it has a writer.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    if readers == Readers::OwnerAlone {
        let own = rustix::process::geteuid().as_raw();
        let is_owned = metadata.uid() == own || metadata.uid() == 0;
        if !is_owned || metadata.mode() & 0o077 != 0 {
            return Err(KeyFileError::OpenToOthers { path: path.to_owned() });
        }
    }
    let mut bytes = Vec::new();
    file.take(MAX_KEY_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_KEY_FILE_BYTES {
        return Err(KeyFileError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}
