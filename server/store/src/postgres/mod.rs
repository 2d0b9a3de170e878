//! The store in PostgreSQL, of a cluster. Two connections write, some read, and one is for sessions and
//! claims, so that they wait neither for changes nor for documents. Those that write live on the threads of their
//! writers, all others on one thread; calls block theirs.

mod claims;
mod connect;
mod error;
mod executions;
mod listen;
mod node_dir;
pub(crate) mod parameters;
mod places;
mod report;
mod retention;
mod sandboxes;
mod schema;
mod sessions;
mod thread;
mod tokens;
mod writer;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sandbox_api::service::Time;
use tokio::sync::mpsc::Sender;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use crate::cluster::{ClusterIdentity, Wake};
use crate::error::StoreError;
use crate::executions::wait;
use crate::pool::Pool;
use crate::writer::Writer;
use connect::Connector;
use error::within;
use thread::{DatabaseThread, TIMEOUT, clock_ahead};

pub use connect::DatabaseConfig;
pub(crate) use connect::Purpose;
pub use node_dir::NodeDir;
pub(crate) use parameters::{Parameter, Parameters, bind, own};
pub(crate) use report::report;
pub use report::{DatabaseReport, Standbys};
pub use schema::{Initialized, LEASES};
pub(crate) use schema::{VERSION, initialize, migrate, restored};
pub(crate) use writer::Change;
pub use writer::DatabaseFigures;

/// The connections that write. The rows of `usage` and `stored` have the number of theirs.
const WRITERS: usize = 2;
/// By how much the clock of this machine may differ.
const CLOCK_TOLERANCE_MS: u64 = 50;

/// The store of a cluster. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub(crate) struct PostgresStore {
    pub database: Arc<Database>,
    cluster: Cluster,
}

/// The cluster of a store. Its calls block. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Cluster {
    database: Arc<Database>,
    /// The number of this process.
    process: i64,
    announcements: Arc<OnceLock<Sender<Wake>>>,
}

impl Cluster {
    fn new(database: Arc<Database>) -> Self {
        let process =
            u64::from_str_radix(&sandbox_dirfd::random_hex::<8>(), 16).unwrap_or_default();
        Self { database, process: process.cast_signed(), announcements: Arc::default() }
    }

    /// What all its nodes have in common.
    #[must_use]
    pub fn identity(&self) -> &ClusterIdentity {
        &self.database.identity
    }

    /// What this process has committed to the database.
    #[must_use]
    pub fn figures(&self) -> DatabaseFigures {
        *self.database.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The database, with its connections.
pub(crate) struct Database {
    // Dropped in this order: the writers end what they were handed.
    writers: Vec<Writer<Change>>,
    readers: Pool<Connection>,
    /// For sessions and claims.
    coordinator: Mutex<Connection>,
    connector: Arc<Connector>,
    figures: Arc<Mutex<DatabaseFigures>>,
    identity: ClusterIdentity,
    /// The session of this process; 0 for none.
    session: AtomicI64,
    /// The node that it is of.
    node: OnceLock<String>,
    /// What the clock of the database is ahead of this machine's, in milliseconds.
    ahead_ms: AtomicI64,
    listens: bool,
    runtime: DatabaseThread,
}

/// A connection, made when it is needed, and again when it is lost.
pub(crate) struct Connection {
    purpose: Purpose,
    client: Option<Client>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Database")
            .field("cluster", &self.identity.id)
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    pub fn connect(config: &DatabaseConfig) -> Result<Self, StoreError> {
        let connector = Arc::new(Connector::new(config)?);
        let runtime = DatabaseThread::start()?;
        let (identity, ahead_ms) = runtime.block_on(async {
            let client = connector.connect(Purpose::Read).await?;
            let identity = schema::identity(&client).await?;
            Ok::<_, StoreError>((identity, clock_ahead(&client).await?))
        })?;
        let figures = Arc::<Mutex<DatabaseFigures>>::default();
        let writers = (0..WRITERS).map(|_| {
            writer::start(connector.clone(), figures.clone()).map_err(StoreError::unavailable)
        });
        let database = Arc::new(Database {
            writers: writers.collect::<Result<_, _>>()?,
            readers: Pool::new(config.connections.max(1), Vec::new()),
            coordinator: Mutex::new(Connection::new(Purpose::Write)),
            connector,
            figures,
            identity,
            session: AtomicI64::new(0),
            node: OnceLock::new(),
            ahead_ms: AtomicI64::new(ahead_ms),
            listens: config.listen,
            runtime,
        });
        Ok(Self { cluster: Cluster::new(database.clone()), database })
    }

    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn now(&self) -> Time {
        self.database.now()
    }

    pub fn check_writable(&self) -> Result<(), StoreError> {
        // Its own row of `writers` is written with any change.
        self.database.change(0, "SELECT 1", Vec::new(), |_| Ok(()))
    }
}

impl Database {
    /// The session of this process; 0 for none.
    pub fn session(&self) -> i64 {
        self.session.load(Ordering::SeqCst)
    }

    /// Sets the session. A process is of one node.
    pub fn set_session(&self, node: &str, session: i64) {
        self.node.get_or_init(|| node.to_owned());
        self.session.store(session, Ordering::SeqCst);
    }

    /// The node that this process is of; empty without a session.
    pub fn node(&self) -> &str {
        self.node.get().map_or("", String::as_str)
    }

    /// The time by the database's clock.
    pub fn now(&self) -> Time {
        let ahead = self.ahead_ms.load(Ordering::Relaxed);
        Time::from_unix_millis(Time::now().unix_millis().saturating_add(ahead))
    }

    /// Sets the clock by a time that the database has said, which was now.
    pub fn set_clock(&self, said: Time) {
        let ahead = said.unix_millis().saturating_sub(Time::now().unix_millis());
        // What a round trip takes is no difference: times of one execution stay in order.
        if ahead.abs_diff(self.ahead_ms.load(Ordering::Relaxed)) > CLOCK_TOLERANCE_MS {
            self.ahead_ms.store(ahead, Ordering::Relaxed);
        }
    }

    /// Queries; if the connection is lost meanwhile, once more with another one.
    pub fn query(
        &self,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let new = || Ok(Connection::new(Purpose::Read));
        let query = || {
            self.readers.read(new, |connection| {
                let queried = connection.query(&self.connector, TIMEOUT, statement, parameters);
                self.runtime.block_on(queried)
            })
        };
        match query() {
            Err(StoreError::Unavailable(_)) => query(),
            queried => queried,
        }
    }

    /// Reads the rows that a statement finds.
    pub fn all<T>(
        &self,
        statement: &str,
        parameters: Parameters<'_>,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.query(statement, parameters)?.iter().map(read).collect()
    }

    /// Reads the first row that a statement finds, if it finds any.
    pub fn first<T>(
        &self,
        statement: &str,
        parameters: Parameters<'_>,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        self.query(statement, parameters)?.first().map(read).transpose()
    }

    /// Queries or changes something at once, on the connection for sessions and claims. If its answer does not come
    /// in time, it is not known whether something was changed.
    pub fn coordinate(
        &self,
        limit: Duration,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut connection = self.coordinator.lock().unwrap_or_else(PoisonError::into_inner);
        self.runtime.block_on(connection.query(&self.connector, limit, statement, parameters))
    }

    /// The writer of an execution, or of something else with an id.
    pub fn writer_of(&self, id: &str) -> usize {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        (hasher.finish() % WRITERS as u64) as usize
    }

    /// Hands a change to a writer.
    pub fn write(&self, writer: usize, change: Change) {
        self.writers[writer].write(change);
    }

    /// Makes a change, and waits until it is durable.
    pub fn change<T: Send + 'static>(
        &self,
        writer: usize,
        statement: &'static str,
        parameters: Vec<Parameter>,
        read: impl FnOnce(&[Row]) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        wait(|then| self.write(writer, Change::new(statement, parameters, read, then)))
    }
}

impl Connection {
    pub const fn new(purpose: Purpose) -> Self {
        Self { purpose, client: None }
    }

    /// Makes a connection if there is none, and queries. One that failed is not used again.
    pub async fn query(
        &mut self,
        connector: &Connector,
        limit: Duration,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let client = match self.client.take() {
            Some(client) if !client.is_closed() => client,
            _ => connector.connect(self.purpose).await?,
        };
        let rows = match within(limit, client.query_typed(statement, parameters)).await {
            // A text with a NUL is nowhere.
            Err(error)
                if self.purpose == Purpose::Read
                    && error.code() == Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE) =>
            {
                Vec::new()
            }
            rows => rows?,
        };
        self.client = Some(client);
        Ok(rows)
    }
}
