//! What a service must not forget: executions with their events and results, kept sandboxes, usage
//! and tokens. One server has them in a SQLite database of its data directory; the nodes of a cluster
//! share a PostgreSQL database.
//!
//! Calls block. A change that has returned is durable: it survives `kill -9` and a power cut. Waiting
//! changes share a flush. Readers see every change that has returned. What each execution needs also
//! exists without a wait: `…_then` calls back when the change is durable, on a thread that writes, and
//! must not block it. If that thread is gone, the callback is dropped.

#![forbid(unsafe_code)]

/// Calls a method of the store that it is.
macro_rules! either {
    ($store:expr, $it:ident => $call:expr) => {
        match &$store.0 {
            $crate::Backend::Sqlite($it) => $call,
            $crate::Backend::Postgres($it) => $call,
        }
    };
}

/// Methods that either store has: those of the one that it is.
macro_rules! of_either {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident(&self $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;
    )+) => {
        impl Store {
            $($(#[$attribute])*
            pub fn $name(&self $(, $argument: $type)*) $(-> $result)? {
                either!(self, store => store.$name($($argument),*))
            })+
        }
    };
}

mod cluster;
mod data_dir;
mod error;
mod executions;
#[cfg(any(test, feature = "fixture"))]
#[path = "tests/fixture.rs"]
pub mod fixture;
mod integer;
mod pool;
mod postgres;
mod retention;
mod row;
mod sandboxes;
mod signing_key;
mod sqlite;
mod statement;
mod status;
#[cfg(test)]
mod tests;
mod tokens;
mod usage;
mod writer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox_api::service::Time;

pub use cluster::{
    Beat, Claimed, Claims, ClusterIdentity, Drain, Holdings, NewSession, NodeSession,
    OrphanedExecution, Place, Progress, SandboxElsewhere, SubjectCounts, Target, Wake,
};
pub use error::StoreError;
pub use executions::{
    Accepted, Cursor, EVENT_PAGE, EXECUTION_PAGE, ExecutionPage, ExecutionQuery, Finish, Lane,
    NewExecution, Placement, Recovered, RecoveredExecution, Start, StoredEvent, StoredExecution,
    Then, UsedGeneration,
};
pub use postgres::{
    Cluster, DatabaseConfig, DatabaseFigures, DatabaseReport, Initialized, LEASES, NodeDir,
    Standbys,
};
pub use sandboxes::SandboxRecord;
pub use signing_key::SigningKey;
pub use status::StoreStatus;
pub use tokens::{Rotated, TokenRecord};

/// Whether to go on with long work; asked between pieces of it.
pub type ContinueFn<'a> = &'a (dyn Fn() -> bool + Sync);

/// How long a store lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A change that has returned survives a power cut.
    Disk,
    /// As long as its process: nothing is flushed, and the data directory is removed with the store.
    Process,
}

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The store that was there, under its new name.
    pub replaced: Option<PathBuf>,
    /// Executions that waited or ran when the backup was made. They may have run to their end since:
    /// they are not run again.
    pub interrupted: u64,
}

/// The store of a data directory, or of a cluster. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct Store(Backend);

#[derive(Debug, Clone)]
enum Backend {
    Sqlite(sqlite::SqliteStore),
    Postgres(postgres::PostgresStore),
}

of_either! {
    /// Whether changes can be made.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if not.
    fn check_writable(&self) -> Result<(), StoreError>;
}

impl Store {
    /// Opens the store of a data directory for a server, exclusively. Creates it if missing, and
    /// migrates an older one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the directory belongs to another user or is open to others, if another
    /// server has it, or if the store is damaged, or of a newer version.
    pub fn open(data_dir: &Path, durability: Durability) -> Result<Self, StoreError> {
        sqlite::SqliteStore::open(data_dir, durability).map(|store| Self(Backend::Sqlite(store)))
    }

    /// Opens the store of a data directory while a server may be using it, for short
    /// administration: tokens, a backup.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), but for the other server; also if there is no store, or one of an
    /// older version.
    pub fn attach(data_dir: &Path) -> Result<Self, StoreError> {
        sqlite::SqliteStore::attach(data_dir).map(|store| Self(Backend::Sqlite(store)))
    }

    /// Connects to the store of a cluster, which [`initialize`](Self::initialize) has made.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the database cannot be reached, has no store, or one of another version.
    pub fn connect(config: &DatabaseConfig) -> Result<Self, StoreError> {
        postgres::PostgresStore::connect(config).map(|store| Self(Backend::Postgres(store)))
    }

    /// Makes the tables of a new cluster, with this lease or the default one, or finds those that are there.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the database cannot be reached or written, or if its cluster has another lease.
    pub fn initialize(
        config: &DatabaseConfig,
        lease: Option<Duration>,
    ) -> Result<Initialized, StoreError> {
        postgres::initialize(config, lease)
    }

    /// Brings the tables of a cluster to the version of this program, and returns the version that they had and the
    /// one that they have.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the database cannot be reached or written, has no store, or one of a newer version.
    pub fn migrate(config: &DatabaseConfig) -> Result<(u32, u32), StoreError> {
        postgres::migrate(config)
    }

    /// Prepares the database of a cluster that was restored from a backup, while no node runs. What waited or ran when the
    /// backup was made may have ended since: it ends as killed, and is not run again. Returns how much that is.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the database cannot be reached or written, has no store, or one of another version, or if nodes
    /// are connected to it.
    pub fn restored(config: &DatabaseConfig) -> Result<u64, StoreError> {
        postgres::restored(config)
    }

    /// Examines the database of a cluster, whether it has a store or not.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it cannot be reached.
    pub fn report(config: &DatabaseConfig) -> Result<DatabaseReport, StoreError> {
        postgres::report(config)
    }

    /// The cluster whose store it is; none for that of one server.
    #[must_use]
    pub const fn cluster(&self) -> Option<&Cluster> {
        match &self.0 {
            Backend::Sqlite(_) => None,
            Backend::Postgres(store) => Some(store.cluster()),
        }
    }

    /// The time by the clock of the store: all nodes of a cluster use that of their database, so that
    /// lists are in one order.
    #[must_use]
    pub fn now(&self) -> Time {
        match &self.0 {
            Backend::Sqlite(_) => Time::now(),
            Backend::Postgres(store) => store.now(),
        }
    }

    /// Writes a copy of the store as it is now to a new file, while it is used.
    ///
    /// # Errors
    ///
    /// [`StoreError::Backup`] if the file exists or cannot be written, or if `proceed` said no;
    /// [`StoreError::Refused`] if the database has its own backups.
    pub fn backup(&self, file: &Path, proceed: ContinueFn<'_>) -> Result<(), StoreError> {
        match &self.0 {
            Backend::Sqlite(store) => store.backup(file, proceed),
            Backend::Postgres(_) => Err(StoreError::refused(
                "the store is in a PostgreSQL database",
                "back it up with pg_dump, or as the provider of the database says",
            )),
        }
    }

    /// Replaces the store of a data directory, which must have no server, with a backup. The old
    /// store is renamed and stays in the directory, and a backup of an older version is migrated.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if a server has the data directory, if the file is no store, or one of a newer
    /// version, if something cannot be written, or if `proceed` said no. The store that is there is as it was then.
    pub fn restore(
        data_dir: &Path,
        backup: &Path,
        proceed: ContinueFn<'_>,
    ) -> Result<Restored, StoreError> {
        sqlite::SqliteStore::restore(data_dir, backup, proceed)
    }
}
