//! Why an io dir cannot be staged, compared or committed.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why an io dir cannot be staged, compared or committed. The io dir is as it was, unless a commit
/// was interrupted: then the next command completes it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// A path in the io dir, or in its copy.
    #[error("{}: {source}", String::from_utf8_lossy(.path))]
    Path {
        /// Relative to the io dir.
        path: Vec<u8>,
        /// The reason.
        source: io::Error,
    },
    /// The stage itself.
    #[error("{}: {source}", .path.display())]
    Stage {
        /// The stage, its record, or the directory that it was to be in.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// More directories below each other than can be compared.
    #[error("{}: directories are nested deeper than {}", String::from_utf8_lossy(.path), crate::tree::MAX_DEPTH)]
    TooDeep {
        /// The outermost directory that is too deep.
        path: Vec<u8>,
    },
    /// More entries than can be compared.
    #[error("more than {} files and directories, or too long paths", crate::tree::MAX_ENTRIES)]
    TooMany,
    /// The names of files become files, and these would be too large.
    #[error("{}: a copy with a file for each hard link is more than 1 GiB larger", String::from_utf8_lossy(.path))]
    TooManyNames {
        /// Relative to the io dir.
        path: Vec<u8>,
    },
    /// A file changed whenever it was copied.
    #[error("{}: it changes while it is copied", String::from_utf8_lossy(.path))]
    Unstable {
        /// Relative to the io dir.
        path: Vec<u8>,
    },
    /// Something is mounted below the io dir.
    #[error("{}: something is mounted there", String::from_utf8_lossy(.path))]
    MountPoint {
        /// Relative to the io dir.
        path: Vec<u8>,
    },
}

impl StageError {
    /// Whether space is missing.
    pub fn is_disk_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            Self::Path { source, .. } | Self::Stage { source, .. } => {
                matches!(source.kind(), StorageFull | QuotaExceeded)
            }
            _ => false,
        }
    }

    /// As an error of the host, of the same kind.
    pub fn into_io(self) -> io::Error {
        let kind =
            if self.is_disk_full() { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
        io::Error::new(kind, self)
    }

    pub(crate) fn at(path: &[u8]) -> impl Fn(Errno) -> Self {
        move |errno| match errno {
            // Nothing else is opened where a mount could be.
            Errno::XDEV => Self::MountPoint { path: path.to_owned() },
            _ => Self::Path { path: path.to_owned(), source: errno.into() },
        }
    }

    pub(crate) fn stage(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Stage { path, source }
    }
}
