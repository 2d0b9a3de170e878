//! What the database of a cluster is like, for who runs it.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::connect::{Connector, DatabaseConfig, Purpose};
use super::error::within;
use super::parameters::{bind, one};
use super::schema;
use super::thread::{DatabaseThread, TIMEOUT, clock_ahead};
use crate::error::StoreError;
use crate::integer::unsigned;

/// The commits whose time is measured.
const COMMITS: usize = 9;

/// What a commit waits for, besides the disk of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standbys {
    /// Nothing: what was answered can be lost with the disk of the server, or in a failover.
    None,
    /// So many synchronous standbys that are connected now.
    Synchronous(u64),
    /// Synchronous standbys, of which this user may not see how many there are.
    Hidden,
}

/// What a database is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseReport {
    /// The version of the server.
    pub version: String,
    /// The id of the cluster and the version of its tables, if there are any.
    pub cluster: Option<(String, u32)>,
    /// The version of the tables that this program uses.
    pub known_schema: u32,
    /// What a commit waits for.
    pub standbys: Standbys,
    /// Settings that must be `on` so that what was answered is not lost, and are not.
    pub unsafe_settings: Vec<String>,
    /// The most connections of the server.
    pub max_connections: u64,
    /// The connections that it has now.
    pub connections: u64,
    /// How long the oldest transaction is open whose snapshot keeps dead rows, as far as this user may see.
    pub oldest_snapshot: Duration,
    /// What half of some commits took at most; none without tables.
    pub commit: Option<Duration>,
    /// What its clock is ahead of this machine's, in milliseconds.
    pub clock_ahead_ms: i64,
}

/// Examines a database.
pub(crate) fn report(config: &DatabaseConfig) -> Result<DatabaseReport, StoreError> {
    let (connector, runtime) = (Connector::new(config)?, DatabaseThread::start()?);
    runtime.block_on(async {
        let client = connector.connect(Purpose::Write).await?;
        let statement = "SELECT current_setting('server_version'), current_setting('max_connections')::bigint,
                (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
                (SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::bigint
                    FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()),
                current_setting('synchronous_standby_names'),
                (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
                EXISTS (SELECT FROM pg_stat_replication WHERE sync_state IS NULL),
                ARRAY(SELECT name || ' = ' || setting FROM pg_settings
                    WHERE name = 'synchronous_commit' AND setting NOT IN ('on', 'remote_apply')
                        OR name IN ('fsync', 'full_page_writes') AND setting <> 'on')";
        let rows = within(TIMEOUT, client.query_typed(statement, &[])).await?;
        let row = one(&rows)?;
        let standbys = match (row.try_get::<_, &str>(4)?.is_empty(), row.try_get(6)?) {
            (true, _) => Standbys::None,
            (false, true) => Standbys::Hidden,
            (false, false) => Standbys::Synchronous(unsigned(row.try_get(5)?)),
        };
        let cluster = schema::find(&client).await?.map(|(identity, version)| (identity.id, version));
        let commit = match cluster {
            Some(_) => Some(commit_time(&client).await?),
            None => None,
        };
        Ok(DatabaseReport {
            version: row.try_get(0)?,
            cluster,
            known_schema: schema::VERSION,
            standbys,
            unsafe_settings: row.try_get(7)?,
            max_connections: unsigned(row.try_get(1)?),
            connections: unsigned(row.try_get(2)?),
            oldest_snapshot: Duration::from_secs(unsigned(row.try_get(3)?)),
            commit,
            clock_ahead_ms: clock_ahead(&client).await?,
        })
    })
}

/// The median of some commits, of a row that is removed then.
async fn commit_time(client: &Client) -> Result<Duration, StoreError> {
    let new = "INSERT INTO writers DEFAULT VALUES RETURNING id";
    let rows = within(TIMEOUT, client.query_typed(new, &[])).await?;
    let id: i64 = one(&rows)?.try_get(0)?;
    let mut times = Vec::new();
    for _ in 0..COMMITS {
        let since = Instant::now();
        let change = "UPDATE writers SET used_at = clock_timestamp() WHERE id = $1";
        within(TIMEOUT, client.query_typed(change, &[bind(&id)])).await?;
        times.push(since.elapsed());
    }
    let removed = "DELETE FROM writers WHERE id = $1";
    within(TIMEOUT, client.query_typed(removed, &[bind(&id)])).await?;
    times.sort_unstable();
    Ok(times[COMMITS / 2])
}
