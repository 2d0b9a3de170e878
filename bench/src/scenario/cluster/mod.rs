//! P18: several nodes on one PostgreSQL. The numbers of the rows are those of the goals: S1 to S9.
//!
//! | | |
//! |---|---|
//! | [`served`] | the program: nodes with the embedded engine, behind HTTP |
//! | [`hollow`] | services whose sandboxes are made up, so that what is measured is the cluster |
//! | [`sessions`] | many sessions that are renewed, and nothing else |
//! | [`failover`] | the database moves to its standby |
//!
//! All are on this machine, and so is the database, which writes durably.

mod failover;
mod hollow;
mod served;
mod sessions;

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::service::Subject;
use sandbox_service::NewSession;
use sandbox_store::fixture::Postgres;
use sandbox_store::{DatabaseConfig, Store};

use super::Scenario;
use crate::bench::{Bench, Counts};
use crate::error::Error;
use crate::report::Row;
use served::Use;

pub const SCENARIO: Scenario = Scenario {
    id: "cluster",
    title: "Several nodes on one PostgreSQL",
    counts: Counts { warm_up: 1, samples: 40 },
    measure,
    work: None,
};

/// Where Debian's packages have the server.
const INSTALLED: &str = "/usr/lib/postgresql";
/// The shortest lease that there is.
const SHORT_LEASE: Duration = Duration::from_secs(2);
/// Whose executions they are, where they are of several.
const SUBJECTS: usize = 50;
/// More than there ever are.
const MANY: usize = 1_000_000;
/// How long a part may take until it is given up: all of them take six minutes together.
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures a part.
type Part = for<'a> fn(Place<'a>) -> LocalBoxFuture<'a, Result<Vec<Row>, Error>>;

/// What a part measures with.
#[derive(Clone, Copy)]
struct Place<'a> {
    bench: &'a Bench,
    counts: Counts,
    postgres: &'a Postgres,
}

const PARTS: [(&str, Part); 11] = [
    ("S1: one node", |place| served::one_node(place).boxed_local()),
    ("S2: a request through another node", |place| served::through(place, Use::Get).boxed_local()),
    ("S2: work through another node", |place| served::through(place, Use::Exec).boxed_local()),
    ("S9: a file through another node", |place| served::through(place, Use::Read).boxed_local()),
    ("S3: from the queue to another node", |place| served::queued(place).boxed_local()),
    ("S3: the same without wake-ups", |place| served::queued_and_not_heard(place).boxed_local()),
    ("S4: more nodes", |place| hollow::scaling(place).boxed_local()),
    // Before the part after which the server vacuums for a minute.
    ("S6: 200 sessions", |place| sessions::fleet(place).boxed_local()),
    ("S5: three nodes", |place| hollow::throughput(place).boxed_local()),
    ("S7: a node that is killed", |place| served::killed(place).boxed_local()),
    ("S8: a failover", |place| failover::failover(place).boxed_local()),
];

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        if let Err(why) = &bench.embedded {
            return Ok(vec![Row::missing("nodes", why)]);
        }
        if !Path::new(INSTALLED).exists() {
            return Ok(vec![Row::missing("nodes", "no PostgreSQL: apt install postgresql")]);
        }
        // Here and not on another thread: the server ends with the thread that started it.
        let postgres = Postgres::start();
        let mut rows = Vec::new();
        for (what, part) in PARTS {
            bench.check()?;
            let place = Place { bench, counts, postgres: &postgres };
            let measured = tokio::time::timeout(PATIENCE, part(place)).await;
            match measured {
                Ok(Ok(mut found)) => rows.append(&mut found),
                Ok(Err(Error::Interrupted)) => return Err(Error::Interrupted),
                // The other parts do not need it.
                Ok(Err(error)) => rows.push(Row::missing(what, error.full_message())),
                Err(_) => rows.push(Row::missing(what, format!("not done within {PATIENCE:?}"))),
            }
        }
        Ok(rows)
    }
    .boxed_local()
}

/// A new database, with the tables of a cluster.
fn database(postgres: &Postgres, lease: Duration) -> Result<DatabaseConfig, Error> {
    let database = DatabaseConfig::new(postgres.database());
    Store::initialize(&database, Some(lease)).map_err(not_done("the start of a cluster"))?;
    Ok(database)
}

/// The rows of a statement on the tables of a cluster.
fn rows(postgres: &Postgres, database: &DatabaseConfig, statement: &str) -> Vec<Vec<String>> {
    let name = database.url.rsplit('/').next().unwrap_or_default();
    postgres.rows(name, &format!("SET search_path = sandboxctl; {statement}"))
}

/// The figure of a statement that has one.
fn figure(postgres: &Postgres, database: &DatabaseConfig, statement: &str) -> Result<f64, Error> {
    let found = rows(postgres, database, statement);
    let figure = found.first().and_then(|row| row.first()?.parse().ok());
    figure.ok_or_else(|| Error::Operation(format!("{statement} ({found:?})")))
}

/// A call that blocks.
async fn blocking<T: Send + 'static, E: Display + Send + 'static>(
    what: &'static str,
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(call).await {
        Ok(called) => called.map_err(not_done(what)),
        Err(error) => Err(not_done(what)(error)),
    }
}

/// For `map_err`.
fn not_done<E: Display>(what: &str) -> impl FnOnce(E) -> Error {
    let what = what.to_owned();
    move |error| Error::Operation(format!("{what} ({error})"))
}

fn subject(number: usize) -> Subject {
    Subject::new(format!("subject-{}", number % SUBJECTS)).expect("it is a name")
}

/// A session that no node forwards a request to.
fn new_session(node: &str, slots: usize) -> NewSession {
    NewSession {
        node: node.to_owned(),
        name: node.to_owned(),
        address: "127.0.0.1:1".to_owned(),
        certificate: [0; 32],
        version: "0".to_owned(),
        slots: u32::try_from(slots).unwrap_or(u32::MAX),
        config_digest: String::new(),
    }
}
