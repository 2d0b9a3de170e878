//! What can fail in a store.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::{ErrorCode, ffi};
use sandbox_api::ErrorKind;

/// A store cannot be opened, read or written.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The data directory cannot be used.
    #[error("cannot use the data directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
    /// Another server holds it.
    #[error("the data directory {} is in use by another server", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// There is no store in the data directory.
    #[error("the data directory {} has no store", path.display())]
    Missing {
        /// The directory.
        path: PathBuf,
    },
    /// A newer version has written it.
    #[error("the store {} has schema version {found}; this program supports up to {known}", path.display())]
    Newer {
        /// The database file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest known one.
        known: i64,
    },
    /// An older version has written it, and a server of that version has it.
    #[error("the store {} has version {found}, and is in use by an older server", path.display())]
    Older {
        /// The database file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// It is damaged, or not a store.
    #[error("the store {} is damaged: {detail}", path.display())]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The file system is full.
    #[error("the file system of the store is full")]
    Full,
    /// Another program holds the database for too long.
    #[error("the database is locked by another program")]
    Locked,
    /// Too many read at the same time.
    #[error("the store is busy")]
    Busy,
    /// Another change of the same transaction failed, and the database undid all of them.
    #[error("the change was rolled back because another change in its transaction failed")]
    RolledBack,
    /// The database fails in another way.
    #[error("database error")]
    Database(#[source] Arc<rusqlite::Error>),
    /// A row cannot be read: another version or another program has written it.
    #[error("a row of the store cannot be read: {detail}")]
    Row {
        /// What is wrong.
        detail: String,
    },
    /// An execution is not in the state that the change is for.
    #[error("the execution {id} is not {expected}")]
    State {
        /// The execution.
        id: String,
        /// The state that was expected.
        expected: &'static str,
    },
    /// A backup cannot be written.
    #[error("cannot write the backup {}", path.display())]
    Backup {
        /// The backup file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
    /// A backup cannot be read.
    #[error("cannot read the backup {}", path.display())]
    Restore {
        /// The backup file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
    /// The thread that writes has ended.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Directory { .. }
            | Self::InUse { .. }
            | Self::Missing { .. }
            | Self::Newer { .. }
            | Self::Older { .. } => ErrorKind::Config,
            Self::Full => ErrorKind::DiskFull,
            Self::Locked | Self::Busy | Self::RolledBack => ErrorKind::Busy,
            Self::Backup { source, .. } | Self::Restore { source, .. } => match source.kind() {
                io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::DiskFull,
                _ => ErrorKind::Internal,
            },
            Self::Damaged { .. }
            | Self::Database(_)
            | Self::Row { .. }
            | Self::State { .. }
            | Self::Closed => ErrorKind::Internal,
        }
    }

    /// The next step, where there is one.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Directory { .. } => {
                Some("it must belong to the user of the server, with mode 0700")
            }
            Self::InUse { .. } => Some("stop the other server, or use another --data-dir"),
            Self::Missing { .. } => {
                Some("`sandboxctl serve --engine docker --data-dir DIR` makes one")
            }
            Self::Newer { .. } => {
                Some("use the newer sandboxctl, or restore the backup that was made before it")
            }
            Self::Older { .. } => {
                Some("use the sandboxctl of that server, or restart it with this one")
            }
            Self::Damaged { .. } => Some(
                "restore a backup of `sandboxctl server backup` by `sandboxctl server restore`, or move the \
                 file away to begin with an empty store",
            ),
            Self::Full => Some("make room on the file system of the data directory"),
            Self::Locked => Some("end the program that holds it, such as a sqlite3 shell"),
            Self::Busy | Self::RolledBack => Some("try again"),
            Self::Backup { .. } => {
                Some("give a file that does not exist, in a directory that does")
            }
            Self::Restore { .. } => Some("give a file that `sandboxctl server backup` wrote"),
            Self::Database(_) | Self::Row { .. } | Self::State { .. } | Self::Closed => None,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Full | Self::Locked | Self::Busy | Self::RolledBack)
    }

    pub(crate) fn row(detail: impl std::fmt::Display) -> Self {
        Self::Row { detail: detail.to_string() }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        // The file of the index of the log cannot be made longer.
        if error.sqlite_error().is_some_and(|it| it.extended_code == ffi::SQLITE_IOERR_SHMSIZE) {
            return Self::Full;
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked,
            _ => Self::Database(Arc::new(error)),
        }
    }
}
