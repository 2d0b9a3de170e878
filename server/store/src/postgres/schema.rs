//! The tables of a cluster: how they are made, and brought to the version of this program.

use std::ops::RangeInclusive;
use std::time::Duration;

use sandbox_dirfd::random_hex;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::connect::{Connector, DatabaseConfig, Purpose};
use super::error::within;
use super::parameters::{bind, one};
use super::thread::{DatabaseThread, TIMEOUT};
use crate::cluster::ClusterIdentity;
use crate::error::StoreError;
use crate::integer::unsigned;

/// Each version's change of the tables. Entries are never edited, and only add: the nodes of a cluster are
/// replaced one after the other.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
];
/// What is run after them.
const FUNCTIONS: [&str; 2] = [include_str!("functions.sql"), include_str!("changes.sql")];
/// The version of this program.
pub(crate) const VERSION: u32 = MIGRATIONS.len() as u32;
/// Two programs do not change the tables at one time.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtext('sandboxctl'))";
/// How long a migration may take.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(3600);

/// The leases that a cluster may have.
pub const LEASES: RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(300);
const DEFAULT_LEASE: Duration = Duration::from_secs(15);

/// The store of a cluster, which was made or found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initialized {
    /// The id of the cluster.
    pub id: String,
    /// Whether it was made now.
    pub is_new: bool,
    /// Its lease.
    pub lease: Duration,
}

/// What all nodes have in common. The tables must be of the version of this program.
pub(crate) async fn identity(client: &Client) -> Result<ClusterIdentity, StoreError> {
    let (identity, found) = find(client).await?.ok_or(StoreError::NotInitialized)?;
    match found {
        VERSION => Ok(identity),
        found => Err(StoreError::SchemaVersion { found, known: VERSION }),
    }
}

/// The cluster of a database, and the version of its tables, if there is one.
pub(super) async fn find(client: &Client) -> Result<Option<(ClusterIdentity, u32)>, StoreError> {
    let statement = "SELECT id, key, lease_ms, schema_version FROM cluster";
    let rows = match within(TIMEOUT, client.query_typed(statement, &[])).await {
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
            return match is_made(client).await? {
                true => Err(StoreError::refused(
                    "the tables of the cluster are not in the search path of the database's user",
                    "a pooler drops settings of connections, so that the user must have them: \
                     ALTER ROLE USER SET search_path = sandboxctl",
                )),
                false => Ok(None),
            };
        }
        rows => rows?,
    };
    let Some(row) = rows.first() else { return Ok(None) };
    let key: Vec<u8> = row.try_get(1)?;
    let identity = ClusterIdentity {
        id: row.try_get(0)?,
        key: key
            .try_into()
            .map_err(|_| StoreError::row("a key between nodes is not of 32 bytes"))?,
        lease: Duration::from_millis(row.try_get::<_, i64>(2)?.unsigned_abs()),
    };
    Ok(Some((identity, row.try_get::<_, i32>(3)?.unsigned_abs())))
}

/// Makes the tables of a new cluster, or finds one.
pub(crate) fn initialize(
    config: &DatabaseConfig,
    lease: Option<Duration>,
) -> Result<Initialized, StoreError> {
    change(config, async |client| {
        run(client, "CREATE SCHEMA IF NOT EXISTS sandboxctl").await?;
        if let Some((ClusterIdentity { id, lease: found, .. }, _)) = find_in_change(client).await? {
            return match lease {
                Some(lease) if lease != found => Err(StoreError::refused(
                    format!("the cluster has a lease of {} ms", found.as_millis()),
                    "leave --lease away: it is chosen once for a cluster",
                )),
                _ => Ok(Initialized { id, is_new: false, lease: found }),
            };
        }
        update(client, 0).await?;
        let (id, key, lease) =
            (random_hex::<8>(), random_hex::<32>(), lease.unwrap_or(DEFAULT_LEASE));
        let millis = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let statement = "INSERT INTO cluster VALUES ($1, decode($2, 'hex'), $3, $4)";
        let version = VERSION as i32;
        let parameters = [bind(&id), bind(&key), bind(&millis), bind(&version)];
        within(TIMEOUT, client.query_typed(statement, &parameters)).await?;
        Ok(Initialized { id, is_new: true, lease })
    })
}

/// Brings the tables to the version of this program: from, to.
pub(crate) fn migrate(config: &DatabaseConfig) -> Result<(u32, u32), StoreError> {
    change(config, async |client| {
        let (_, found) = find_in_change(client).await?.ok_or(StoreError::NotInitialized)?;
        if found > VERSION {
            return Err(StoreError::SchemaVersion { found, known: VERSION });
        }
        update(client, found).await?;
        run(client, &format!("UPDATE cluster SET schema_version = {VERSION}")).await?;
        Ok((found, VERSION))
    })
}

/// Makes a database that was restored from a backup one that nodes can use: what had not ended may have ended since, so
/// that it counts as begun under a session that is gone. Returns how much that was.
pub(crate) fn restored(config: &DatabaseConfig) -> Result<u64, StoreError> {
    change(config, async |client| {
        match find_in_change(client).await?.ok_or(StoreError::NotInitialized)? {
            (_, VERSION) => {}
            (_, found) => return Err(StoreError::SchemaVersion { found, known: VERSION }),
        }
        let others = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sandboxctl'
                AND datname = current_database() AND pid <> pg_backend_pid()";
        let rows = within(TIMEOUT, client.query_typed(others, &[])).await?;
        if one(&rows)?.try_get::<_, i64>(0)? > 0 {
            return Err(StoreError::NodesConnected);
        }
        let interrupt = "WITH ended AS (DELETE FROM sessions), emptied AS (DELETE FROM queue),
                idle AS (UPDATE shares SET turn = NULL WHERE turn IS NOT NULL),
                interrupted AS (UPDATE executions SET status = 'running', request = NULL, session = 0
                    WHERE ended_at IS NULL RETURNING 1)
            SELECT count(*) FROM interrupted";
        let rows = within(MIGRATION_TIMEOUT, client.query_typed(interrupt, &[])).await?;
        Ok(unsigned(one(&rows)?.try_get(0)?))
    })
}

/// Within a transaction an error would end it: the table is looked for first.
async fn find_in_change(client: &Client) -> Result<Option<(ClusterIdentity, u32)>, StoreError> {
    match is_made(client).await? {
        true => find(client).await,
        false => Ok(None),
    }
}

/// Whether there are the tables of a cluster, in the search path or not.
async fn is_made(client: &Client) -> Result<bool, StoreError> {
    let statement = "SELECT to_regclass('sandboxctl.cluster') IS NOT NULL";
    let rows = within(TIMEOUT, client.query_typed(statement, &[])).await?;
    Ok(one(&rows)?.try_get(0)?)
}

async fn update(client: &Client, found: u32) -> Result<(), StoreError> {
    for migration in MIGRATIONS.iter().skip(found as usize).chain(&FUNCTIONS) {
        run(client, migration).await?;
    }
    Ok(())
}

async fn run(client: &Client, statements: &str) -> Result<(), StoreError> {
    Ok(within(MIGRATION_TIMEOUT, client.batch_execute(statements)).await?)
}

/// Makes a change of the tables, whole or not at all.
fn change<T>(
    config: &DatabaseConfig,
    change: impl AsyncFnOnce(&Client) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let (connector, runtime) = (Connector::new(config)?, DatabaseThread::start()?);
    runtime.block_on(async {
        let client = connector.connect(Purpose::Write).await?;
        run(&client, "BEGIN; SET LOCAL lock_timeout = 0; SET LOCAL search_path = sandboxctl")
            .await?;
        run(&client, LOCK).await?;
        let changed = change(&client).await?;
        run(&client, "COMMIT").await?;
        Ok(changed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::fixture::Postgres;

    /// What is in the schema, in words.
    const SCHEMA: &str = "SELECT table_name || '.' || column_name || ' ' || data_type
            FROM information_schema.columns WHERE table_schema = 'sandboxctl'
        UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'sandboxctl'
        UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
            WHERE connamespace = 'sandboxctl'::regnamespace
        UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT oid::regprocedure::text FROM pg_proc
            WHERE pronamespace = 'sandboxctl'::regnamespace
        ORDER BY 1";

    #[test]
    fn older_tables_are_migrated_and_keep_their_rows() {
        let server = Postgres::shared();
        let name = |url: &str| url.rsplit_once('/').unwrap().1.to_owned();
        let new = server.database();
        initialize(&DatabaseConfig::new(&*new), None).unwrap();
        let new = server.rows(&name(&new), SCHEMA);
        for before in 1..MIGRATIONS.len() {
            let url = server.database();
            let (config, name) = (DatabaseConfig::new(&*url), name(&url));
            let older = format!(
                "CREATE SCHEMA sandboxctl; SET search_path = sandboxctl; {};
                 INSERT INTO cluster VALUES ('c', decode(repeat('00', 32), 'hex'), 3000, {before});
                 INSERT INTO executions (id, subject, kind, status, has_secrets, metadata, created_at)
                    VALUES ('a', 's', 'script', 'ok', false, '{{}}', 1),
                        ('b', 's', 'script', 'ok', false, '{{}}', 1);
                 INSERT INTO events SELECT seq, 1, '{{}}' FROM executions",
                MIGRATIONS[..before].concat()
            );
            _ = server.rows(&name, &older);
            let before = u32::try_from(before).unwrap();
            let refused = Store::connect(&config).unwrap_err();
            assert!(matches!(refused, StoreError::SchemaVersion { found, .. } if found == before));
            assert_eq!(migrate(&config).unwrap(), (before, VERSION));
            assert_eq!(server.rows(&name, SCHEMA), new);
            drop(Store::connect(&config).unwrap());
            // As any version forgets one: its events go with it, and those of the other stay.
            let left = "DELETE FROM sandboxctl.executions WHERE id = 'a';
                SELECT id FROM sandboxctl.executions JOIN sandboxctl.events ON execution = seq";
            assert_eq!(server.rows(&name, left), [["b"]]);
            let events = "SELECT count(*) FROM sandboxctl.events";
            assert_eq!(server.rows(&name, events), [["1"]]);
        }
    }
}
