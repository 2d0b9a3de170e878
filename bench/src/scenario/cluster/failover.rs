//! S8: the database is killed with all of its processes, and its synchronous standby is promoted a second later, while
//! clients submit. A node goes on by itself, and has everything that it acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sandbox_store::DatabaseConfig;
use sandbox_store::fixture::Postgres;

use super::hollow::Hollow;
use super::{Place, SHORT_LEASE, database, rows};
use crate::error::Error;
use crate::report::{Row, Target, Unit};

/// How often, as far as the time suffices.
const TRIES: usize = 10;
const TIME: Duration = Duration::from_secs(75);
const CLIENTS: usize = 4;
/// Before the primary is killed, and before its standby is promoted.
const PAUSE: Duration = Duration::from_secs(1);
/// How long clients go on after that.
const AFTER: Duration = Duration::from_secs(3);
/// A client that was refused asks again.
const RETRY: Duration = Duration::from_millis(5);

pub async fn failover(place: Place<'_>) -> Result<Vec<Row>, Error> {
    let began = Instant::now();
    let (mut gaps, mut lost, mut acknowledged) = (Vec::new(), 0.0, 0.0);
    for number in 0..TRIES {
        place.bench.check()?;
        if began.elapsed() > TIME {
            break;
        }
        let one = once(place, number).await?;
        gaps.push(one.gap);
        lost += one.lost;
        acknowledged += one.acknowledged;
    }
    let tries = gaps.len();
    Ok(vec![
        Row::figure("S8: promotion asked for to the next accept", Unit::Seconds, gaps)
            .target(Target::p99_at_most(2.0)),
        Row::figure(
            format!("S8: acknowledged in {tries} failovers"),
            Unit::Count,
            vec![acknowledged],
        ),
        Row::figure(format!("S8: lost in {tries} failovers"), Unit::Count, vec![lost])
            .target(Target::median_at_most(0.0)),
    ])
}

struct Failover {
    gap: f64,
    acknowledged: f64,
    lost: f64,
}

async fn once(place: Place<'_>, number: usize) -> Result<Failover, Error> {
    let mut primary = Postgres::start();
    let single = database(&primary, SHORT_LEASE)?;
    let standby = primary.standby();
    let name = single.url.rsplit('/').next().unwrap_or_default();
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{name}?target_session_attrs=read-write",
        primary.port(),
        standby.port()
    );
    let both = DatabaseConfig::new(url);
    let node = Arc::new(Hollow::start(place.bench, &both, &format!("s8-{number}")).await?);
    let is_over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| tokio::spawn(submit(node.clone(), client, is_over.clone())))
        .collect();
    tokio::time::sleep(PAUSE).await;
    primary.kill();
    tokio::time::sleep(PAUSE).await;
    let promoted = Instant::now();
    standby.promote();
    tokio::time::sleep(AFTER).await;
    is_over.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for client in clients {
        acknowledged.append(&mut client.await.unwrap_or_default());
    }
    let after = acknowledged.iter().filter_map(|(_, at)| at.checked_duration_since(promoted)).min();
    let found = rows(&standby, &single, "SELECT id FROM executions");
    let found: std::collections::HashSet<_> = found.into_iter().flatten().collect();
    let lost = acknowledged.iter().filter(|(id, _)| !found.contains(id)).count();
    if let Ok(node) = Arc::try_unwrap(node) {
        node.stop().await;
    }
    let gap = after.ok_or_else(|| Error::Operation("an accept after a failover".to_owned()))?;
    #[expect(clippy::cast_precision_loss, reason = "they are few")]
    let [acknowledged, lost] = [acknowledged.len(), lost].map(|count| count as f64);
    Ok(Failover { gap: gap.as_secs_f64(), acknowledged, lost })
}

/// Submits until it is over: the ids that were acknowledged, and when.
async fn submit(
    node: Arc<Hollow>,
    client: usize,
    is_over: Arc<AtomicBool>,
) -> Vec<(String, Instant)> {
    let mut acknowledged = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        match node.submit(client, "return").await {
            Ok(id) => acknowledged.push((id, Instant::now())),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
    acknowledged
}
