//! S4 and S5: services whose sandboxes are made up. Each has its own session, connections and slots, as a node has;
//! all are in this process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use sandbox_api::service::ExecutionRequest;
use sandbox_service::fake::{self, FakeLauncher};
use sandbox_service::{Service, ServiceConfig};
use sandbox_store::{Cluster, DatabaseConfig, Store, StoreError};

use super::sessions::{self, Origin};
use super::{MANY, Place, SHORT_LEASE, SUBJECTS, blocking, database, figure, new_session};
use super::{not_done, subject};
use crate::bench::Bench;
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};

const SLOTS: usize = 8;
/// What a slot does one after another in S4: three seconds.
const WAVES: usize = 30;
const WORK: &str = "sleep 100";
const ROUNDS: usize = 3;
/// The executions of S5, and how often they are measured.
const EXECUTIONS: usize = 3000;
const BATCHES: usize = 6;
/// Requests at one time.
const CLIENTS: usize = 64;
/// The queue that is claimed from.
const QUEUE: usize = 1000;
/// How long the end of what was accepted is waited for.
const END_WAIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

/// A node without an engine.
pub struct Hollow {
    pub service: Service,
    launcher: Arc<FakeLauncher>,
}

impl Hollow {
    /// One of this name.
    pub async fn start(
        bench: &Bench,
        database: &DatabaseConfig,
        name: &str,
    ) -> Result<Self, Error> {
        let mut config = ServiceConfig::new(bench.folder(name)?.join("data"));
        config.concurrency = SLOTS;
        config.max_queued = MANY;
        config.quotas.concurrency = MANY;
        config.node = Some(new_session(name, SLOTS));
        let database = database.clone();
        let store = blocking("a connection", move || Store::connect(&database)).await?;
        let launcher: Arc<FakeLauncher> = Arc::default();
        let service = fake::start(config, launcher.clone(), store).await;
        let service = service.map_err(not_done("the start of a node"))?;
        Ok(Self { service, launcher })
    }

    /// Accepts a script.
    pub async fn submit(&self, number: usize, script: &str) -> Result<String, Error> {
        let request =
            ExecutionRequest { script: Some(script.into()), ..ExecutionRequest::default() };
        let accepted = self.service.submit(&subject(number), request, None, None).await;
        Ok(accepted.map_err(not_done("an accept"))?.id)
    }

    pub async fn stop(self) {
        self.service.shutdown(END_WAIT).await;
    }
}

/// S4: executions of 100 ms, which take no processor, on one, two and three nodes.
pub async fn scaling(place: Place<'_>) -> Result<Vec<Row>, Error> {
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..ROUNDS {
        for (nodes, rates) in (1..).zip(&mut rates) {
            let name = format!("s4-{round}-{nodes}");
            let many = SLOTS * WAVES * nodes;
            rates.push(rate(place, &name, nodes, many, WORK, "min(started_at)").await?);
        }
    }
    let mut rows: Vec<Row> = (1..)
        .zip(rates)
        .map(|(nodes, rates)| {
            let s = if nodes == 1 { "" } else { "s" };
            Row::figure(
                format!("S4: {nodes} node{s}, hollow 100 ms × {SLOTS} slots"),
                Unit::Rate,
                rates,
            )
        })
        .collect();
    compare(&mut rows, 1, 0, Some(Target::ratio_at_least(1.9)));
    compare(&mut rows, 2, 0, Some(Target::ratio_at_least(2.8)));
    Ok(rows)
}

/// S5: executions that take no time, from their accept to their end; and how fast a queue can be claimed from.
pub async fn throughput(place: Place<'_>) -> Result<Vec<Row>, Error> {
    let (mut rates, mut claims) = (Vec::new(), Vec::new());
    for batch in 0..BATCHES {
        let name = format!("s5-{batch}");
        rates.push(rate(place, &name, 3, EXECUTIONS, "return", "min(created_at)").await?);
        claims.push(claimed(place).await?);
    }
    let what = format!("S5: 3 nodes, hollow 0 ms, {SUBJECTS} subjects, accept to end");
    Ok(vec![
        Row::figure(what, Unit::Rate, rates).target(Target::median_at_least(1000.0)),
        Row::figure("S5: claims alone, by 3 sessions, 8 at a time", Unit::Rate, claims),
    ])
}

/// Executions a second, from `since` of the first to the end of the last.
async fn rate(
    place: Place<'_>,
    name: &str,
    nodes: usize,
    many: usize,
    script: &str,
    since: &str,
) -> Result<f64, Error> {
    let Place { bench, postgres, .. } = place;
    bench.check()?;
    let database = database(postgres, SHORT_LEASE)?;
    let mut all = Vec::new();
    for node in 0..nodes {
        all.push(Hollow::start(bench, &database, &format!("{name}-{node}")).await?);
    }
    let submitted = stream::iter(0..many)
        .map(|number| all[number % nodes].submit(number, script))
        .buffer_unordered(CLIENTS)
        .try_for_each(async |_| Ok(()))
        .await;
    let ended = match submitted {
        Ok(()) => until_ended(place, &database, &all, many).await,
        Err(error) => Err(error),
    };
    for node in all {
        node.stop().await;
    }
    ended?;
    let statement = format!("SELECT count(*) * 1000.0 / (max(ended_at) - {since}) FROM executions");
    figure(postgres, &database, &statement)
}

/// Waits until so many have run and all of them have ended.
async fn until_ended(
    place: Place<'_>,
    database: &DatabaseConfig,
    nodes: &[Hollow],
    many: usize,
) -> Result<(), Error> {
    let began = Instant::now();
    let left = "SELECT count(*) FROM executions WHERE ended_at IS NULL";
    while began.elapsed() < END_WAIT {
        // The database is not asked meanwhile: it has enough to do.
        let runs = |node: &Hollow| node.launcher.runs.load(Ordering::Relaxed);
        let have_run = nodes.iter().map(runs).sum::<usize>() >= many;
        if have_run && figure(place.postgres, database, left)? == 0.0 {
            return Ok(());
        }
        tokio::time::sleep(if have_run { POLL * 10 } else { POLL }).await;
    }
    Err(Error::Operation("what was accepted".to_owned()))
}

/// Claims a second, of three sessions at one time.
async fn claimed(place: Place<'_>) -> Result<f64, Error> {
    let database = database(place.postgres, SHORT_LEASE)?;
    blocking("a claim", move || {
        let store = Store::connect(&database)?;
        sessions::accept(&store, 0..QUEUE, Origin::Queue)?;
        let mut nodes: Vec<(Cluster, i64)> = Vec::new();
        for node in 0..3 {
            let store = Store::connect(&database)?;
            let cluster = store.cluster().expect("it has one").clone();
            let session = cluster.begin_session(&new_session(&format!("node-{node}"), SLOTS))?;
            nodes.push((cluster, session));
        }
        let began = Instant::now();
        let claim = |(cluster, session): &(Cluster, i64)| -> Result<(), StoreError> {
            loop {
                let claims = cluster.claim(*session, SLOTS as u32, MANY as u64)?;
                if claims.claimed.is_empty() && !claims.has_more {
                    return Ok(());
                }
            }
        };
        std::thread::scope(|scope| {
            let claims: Vec<_> =
                nodes.iter().map(|node| scope.spawn(move || claim(node))).collect();
            claims.into_iter().try_for_each(|claims| claims.join().expect("it ends"))
        })?;
        #[expect(clippy::cast_precision_loss, reason = "a queue is small")]
        Ok::<_, StoreError>(QUEUE as f64 / began.elapsed().as_secs_f64())
    })
    .await
}
