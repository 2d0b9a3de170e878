//! What can fail in a store.

use std::error::Error;
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
    /// It is not for this program, or not for the cluster or the node that was named.
    #[error("{message}")]
    Refused {
        /// Why.
        message: String,
        /// The next step.
        hint: &'static str,
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
    Database(#[source] Arc<dyn Error + Send + Sync>),
    /// The database of a cluster cannot be reached, or ended the connection.
    #[error("the database is not available")]
    Unavailable(#[source] Arc<dyn Error + Send + Sync>),
    /// Transactions of others stopped a change, again and again.
    #[error("other transactions stopped the change")]
    Contended(#[source] Arc<dyn Error + Send + Sync>),
    /// The answer to a commit was lost, and the database could not be asked.
    #[error("whether the change was made is not known")]
    Unknown,
    /// The database of a cluster has no store.
    #[error("the database has no store of a cluster")]
    NotInitialized,
    /// The store of a cluster has other tables than this program uses.
    #[error("the database has schema version {found}; this program uses {known}")]
    SchemaVersion {
        /// The version of the database.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// Nodes use the database, which is to be prepared for them.
    #[error("nodes of the cluster are connected to the database")]
    NodesConnected,
    /// An execution or a kept sandbox does not belong to this session of the node any longer.
    #[error("{id} does not belong to this session of the node any longer")]
    Fenced {
        /// What was to be changed.
        id: String,
    },
    /// The session of this node has ended: the others took it for dead.
    #[error("the session of this node has ended")]
    SessionLost,
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
            | Self::NotInitialized
            | Self::SchemaVersion { .. }
            | Self::NodesConnected
            | Self::Refused { .. } => ErrorKind::Config,
            Self::Full => ErrorKind::DiskFull,
            Self::Locked
            | Self::Busy
            | Self::RolledBack
            | Self::Unavailable(_)
            | Self::Contended(_)
            | Self::Unknown => ErrorKind::Busy,
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
            | Self::Fenced { .. }
            | Self::SessionLost
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
            Self::Refused { hint, .. } => Some(*hint),
            Self::Damaged { .. } => Some(
                "restore a backup of `sandboxctl server backup` by `sandboxctl server restore`, or move the \
                 file away to begin with an empty store",
            ),
            Self::Full => Some("make room on the file system of the data directory"),
            Self::Locked => Some("end the program that holds it, such as a sqlite3 shell"),
            Self::Busy | Self::RolledBack | Self::Contended(_) | Self::Unknown => Some("try again"),
            Self::Unavailable(_) => Some("`sandboxctl doctor --database URL` says what is wrong"),
            Self::NotInitialized => Some("`sandboxctl database init --database URL` makes one"),
            Self::SchemaVersion { found, known } if *found < *known => {
                Some("`sandboxctl database migrate --database URL` brings it up to date")
            }
            Self::SchemaVersion { .. } => Some("use the newer sandboxctl on this machine too"),
            Self::NodesConnected => {
                Some("stop them first, and whatever else uses it as sandboxctl")
            }
            Self::Backup { .. } => {
                Some("give a file that does not exist, in a directory that does")
            }
            Self::Restore { .. } => Some("give a file that `sandboxctl server backup` wrote"),
            Self::Database(_)
            | Self::Row { .. }
            | Self::State { .. }
            | Self::Fenced { .. }
            | Self::SessionLost
            | Self::Closed => None,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Full
                | Self::Locked
                | Self::Busy
                | Self::RolledBack
                | Self::Unavailable(_)
                | Self::Contended(_)
                | Self::Unknown
        )
    }

    pub(crate) fn refused(message: impl Into<String>, hint: &'static str) -> Self {
        Self::Refused { message: message.into(), hint }
    }

    pub(crate) fn database(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Database(Arc::new(error))
    }

    pub(crate) fn unavailable(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Unavailable(Arc::new(error))
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
            _ => Self::database(error),
        }
    }
}
