//! What can fail, in words for the caller.

use std::io;
use std::path::{Path, PathBuf};

use sandbox_api::ErrorKind;
use sandbox_dirfd::{CopyAllowance, HoleAllowance};

/// A failure. Nothing was written, or what was written is removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A glob is invalid.
    #[error("'{pattern}' is not usable: {reason}")]
    Pattern {
        /// The glob as given.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There are only globs that exclude.
    #[error("every glob excludes: at least one must select files")]
    OnlyExcludes,
    /// The destination is unusable.
    #[error("cannot use {} as the artifacts directory: {reason}", .path.display())]
    Destination {
        /// The path as given.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// The next step.
        hint: Option<&'static str>,
    },
    /// No file matches a glob.
    #[error("no file matches '{pattern}'{}", .omitted.as_deref().unwrap_or_default())]
    NoMatch {
        /// The glob as given.
        pattern: String,
        /// Something else that matches it, after a colon.
        omitted: Option<String>,
    },
    /// A secret stands in a name, which the manifest would have.
    #[error("the name of a file contains a secret: '{path}'")]
    SecretName {
        /// The file, without the secret.
        path: String,
    },
    /// There are more files than may be copied.
    #[error("more than {most} files match")]
    TooMany {
        /// The limit.
        most: u64,
    },
    /// The files have more holes than are read.
    #[error("the files contain more than {} GiB of holes in total", HoleAllowance::BYTES >> 30)]
    Holes,
    /// The files of an input have more holes than are read.
    #[error("'{path}': the files of an input have holes of more than {} GiB together", HoleAllowance::BYTES >> 30)]
    InputHoles {
        /// The file with which it was too much.
        path: String,
    },
    /// A file that has several names would be copied or stored too often: once for each, because it
    /// changes after each copy or because the format has no links.
    #[error("'{path}': copies of files that have several names are more than {} GiB larger than these", CopyAllowance::BYTES >> 30)]
    TooManyNames {
        /// One of its names.
        path: String,
    },
    /// The directory could not be scanned completely, so that a file may be missing.
    #[error("cannot scan all of {what}: {reason}")]
    Incomplete {
        /// The directory.
        what: String,
        /// What is left out.
        reason: &'static str,
    },
    /// A file changed whenever it was read.
    #[error("'{path}' changes while it is copied")]
    Changing {
        /// The file.
        path: String,
    },
    /// A file was replaced by something else, or removed, after it was found.
    #[error("'{path}' was removed or replaced while artifacts were copied")]
    Vanished {
        /// The file.
        path: String,
    },
    /// An OS error.
    #[error("cannot {action} '{path}'")]
    Io {
        /// What was tried: `copy`.
        action: &'static str,
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A directory has no usable manifest.
    #[error("{} is not an artifacts directory: {reason}", .path.display())]
    Manifest {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A directory is not what its manifest says.
    #[error("{} differs from its manifest: {difference} '{file}'", .path.display())]
    Differs {
        /// The directory.
        path: PathBuf,
        /// How it differs.
        difference: &'static str,
        /// The file.
        file: String,
    },
    /// A zip archive cannot hold a file so that every program gives it the same name.
    #[error("a zip archive cannot hold the name '{path}'")]
    ZipName {
        /// The file.
        path: String,
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
    pub(crate) fn destination(path: &Path, reason: impl Into<String>) -> Self {
        Self::Destination { path: path.to_owned(), reason: reason.into(), hint: None }
    }

    /// Maps an OS error.
    pub(crate) fn io<E: Into<io::Error>>(action: &'static str, path: &[u8]) -> impl Fn(E) -> Self {
        move |source| Self::Io { action, path: text(path), source: source.into() }
    }

    /// The error's kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Pattern { .. }
            | Self::OnlyExcludes
            | Self::ZipName { .. }
            | Self::Destination { .. }
            | Self::Manifest { .. }
            | Self::Differs { .. } => ErrorKind::Usage,
            Self::NoMatch { .. } | Self::Vanished { .. } => ErrorKind::NotFound,
            Self::SecretName { .. } => ErrorKind::Policy,
            Self::TooMany { .. } => ErrorKind::TooManyFiles,
            Self::Holes | Self::InputHoles { .. } | Self::TooManyNames { .. } => {
                ErrorKind::TooLarge
            }
            Self::Changing { .. } => ErrorKind::Busy,
            Self::Io { source, .. } | Self::Archive { source } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::DiskFull,
                io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
                _ => ErrorKind::Internal,
            },
            Self::Cancelled => ErrorKind::Cancelled,
            Self::Incomplete { .. } => ErrorKind::Internal,
        }
    }

    /// A suggested next step, if there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::OnlyExcludes => Some("--artifact '**' selects everything else"),
            Self::Destination { hint, .. } => *hint,
            Self::NoMatch { .. } => {
                Some("globs are relative to the io dir; --artifact-optional allows no match")
            }
            Self::SecretName { .. } => Some("rename the file, or exclude it: --artifact '!GLOB'"),
            Self::TooMany { .. } => Some("limits.entries (--entries) bounds how many are copied"),
            Self::Holes => {
                Some("leave sparse files out: --artifact '!GLOB'; or archive them in the run")
            }
            Self::InputHoles { .. } => {
                Some("`cp --sparse=never` fills holes; without --receipt nothing is digested")
            }
            Self::TooManyNames { .. } => {
                Some("leave its names but one out; a .tar.zst or .tar.gz archive has hard links")
            }
            Self::Differs { .. } => Some("`sandboxctl artifacts verify DIR` lists all differences"),
            Self::Manifest { .. } => Some("--artifacts-dir of `run` and `exec` makes one"),
            Self::ZipName { .. } => Some(".tar.zst and .tar.gz archives hold any name"),
            _ if self.kind() == ErrorKind::DiskFull => Some("make room on that file system"),
            _ => None,
        }
    }
}

/// A path for a message.
pub(crate) fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
