//! What can fail, in words for the caller.

use std::fmt::Display;
use std::io;
use std::path::Path;

use sandbox_api::ErrorKind;
use sandbox_dirfd::{CopyAllowance, HoleAllowance};

/// A failure. Nothing was written, or what was written is removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for is refused, or is not possible.
    #[error("{message}")]
    Refused {
        /// The kind.
        kind: ErrorKind,
        /// What is wrong.
        message: String,
        /// The next step.
        hint: Option<&'static str>,
    },
    /// More files match than may be copied.
    #[error("more than {most} files match")]
    TooMany {
        /// The bound.
        most: u64,
    },
    /// Files have more holes than may be copied.
    #[error("'{path}': the files contain more than {} GiB of holes in total", HoleAllowance::BYTES >> 30)]
    Holes {
        /// The first one that is too many.
        path: String,
    },
    /// Copies of files with several names are too large.
    #[error("'{path}': copies of files that have several names are more than {} GiB larger than these", CopyAllowance::BYTES >> 30)]
    TooManyNames {
        /// One of them.
        path: String,
    },
    /// A file was removed, or replaced by something else.
    #[error("'{path}' was removed or replaced while artifacts were copied")]
    Vanished {
        /// The file.
        path: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} '{path}'")]
    Io {
        /// What failed.
        action: &'static str,
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The archive cannot be written.
    #[error("cannot write the archive")]
    Archive {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The caller cancelled it.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    pub(crate) fn refused(
        kind: ErrorKind,
        message: impl Into<String>,
        hint: Option<&'static str>,
    ) -> Self {
        Self::Refused { kind, message: message.into(), hint }
    }

    /// A directory cannot be that of artifacts.
    pub(crate) fn destination(
        path: &Path,
        reason: impl Display,
        hint: Option<&'static str>,
    ) -> Self {
        let message = format!("cannot use {} as the artifacts directory: {reason}", path.display());
        Self::refused(ErrorKind::Usage, message, hint)
    }

    /// A directory has no usable manifest.
    pub(crate) fn manifest(path: &Path, reason: impl Display) -> Self {
        let message = format!("{} is not an artifacts directory: {reason}", path.display());
        let hint = "--artifacts-dir of `run` and `exec` makes one";
        Self::refused(ErrorKind::Usage, message, Some(hint))
    }

    pub(crate) fn changing(path: &[u8]) -> Self {
        let message = format!("'{}' changes while it is copied", text(path));
        Self::refused(ErrorKind::Busy, message, None)
    }

    /// Maps an OS error.
    pub(crate) fn io<E: Into<io::Error>>(action: &'static str, path: &[u8]) -> impl Fn(E) -> Self {
        move |source| Self::Io { action, path: text(path), source: source.into() }
    }

    /// The error's kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { kind, .. } => *kind,
            Self::Vanished { .. } => ErrorKind::NotFound,
            Self::TooMany { .. } => ErrorKind::TooManyFiles,
            Self::Holes { .. } | Self::TooManyNames { .. } => ErrorKind::TooLarge,
            Self::Io { source, .. } | Self::Archive { source } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::DiskFull,
                io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
                _ => ErrorKind::Internal,
            },
            Self::Cancelled => ErrorKind::Cancelled,
        }
    }

    /// A suggested next step, if there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Refused { hint, .. } => *hint,
            Self::TooMany { .. } => Some("limits.entries (--entries) bounds how many are copied"),
            Self::Holes { .. } => {
                Some("leave sparse files out: --artifact '!GLOB'; or archive them in the run")
            }
            Self::TooManyNames { .. } => {
                Some("leave its names but one out; a .tar.zst or .tar.gz archive has hard links")
            }
            _ if self.kind() == ErrorKind::DiskFull => Some("make room on that file system"),
            _ => None,
        }
    }
}

/// A path for a message.
pub(crate) fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
