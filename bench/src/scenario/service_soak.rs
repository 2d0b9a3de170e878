//! P10: what a service keeps of many executions: it is looked at after a thousand and at the end.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, try_join_all};

use super::Scenario;
use crate::bench::{Bench, Counts};
use crate::engines::On;
use crate::error::Error;
use crate::process;
use crate::report::{Row, Target, Unit, compare};
use crate::service::{Connection, Service};

pub const SCENARIO: Scenario = Scenario {
    id: "p10-soak",
    title: "What a service keeps of many executions, embedded engine",
    counts: Counts { warm_up: 0, samples: 1 },
    measure,
    work: None,
};

const POOL: usize = 8;
/// Requests at one time.
const CLIENTS: usize = 4;
/// How long the service is left alone before it is looked at: threads for what blocks, which come and
/// go with the load, end after ten seconds without work.
const IDLE: Duration = Duration::from_secs(15);
/// How many looks there are, and the pause before each: for longer than the life of a thread that,
/// twice a minute, sweeps what crashed controllers left.
const LOOKS: (u32, Duration) = (75, Duration::from_millis(200));
/// After so many executions, everything that is made once is there.
const SETTLED: usize = 1000;
/// What the memory of a process may vary by, that allocates and frees.
const MEMORY: f64 = 1.1;

/// What is there after some executions.
struct Observed {
    executions: usize,
    seconds: f64,
    descriptors: f64,
    threads: f64,
    processes: f64,
    mounts: f64,
    resident: f64,
    disk: f64,
}

type Figure = fn(&Observed) -> f64;

fn measure(bench: &Bench, _: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        if let Err(why) = &bench.embedded {
            return Ok(vec![Row::missing("embedded", why)]);
        }
        let data = bench.folder("p10-soak")?.join("data");
        let service = Service::start(bench, On::Embedded, &data, POOL, None).await?;
        let done = soak(bench, &service, &data).await;
        service.stop().await;
        let [before, after] = done?;
        let mut rows = Vec::new();
        let mut pair = |what: &str, unit, at: Figure, target: Option<Target>| {
            let row = |seen: &Observed| {
                Row::figure(format!("{what} after {}", seen.executions), unit, vec![at(seen)])
            };
            let mut pair = [row(&before), row(&after)];
            compare(&mut pair, 1, 0, target);
            rows.extend(pair);
        };
        let counted: [(&str, Figure); 4] = [
            ("descriptors", |it| it.descriptors),
            ("threads", |it| it.threads),
            ("child processes", |it| it.processes),
            ("mounts", |it| it.mounts),
        ];
        for (what, at) in counted {
            pair(what, Unit::Count, at, Some(Target::median_at_most(at(&before))));
        }
        let memory = Target::ratio_at_most(MEMORY);
        pair("memory", Unit::Bytes, |it| it.resident, Some(memory));
        // The documents, which are kept for the configured time.
        pair("disk", Unit::Bytes, |it| it.disk, None);
        pair("time", Unit::Seconds, |it| it.seconds, None);
        Ok(rows)
    }
    .boxed_local()
}

async fn soak(bench: &Bench, service: &Service, data: &Path) -> Result<[Observed; 2], Error> {
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        connections.push(Connection::open(service).await?);
    }
    let began = Instant::now();
    let settled = SETTLED.min(bench.soak);
    repeat(bench, &connections, settled).await?;
    let before = observe(bench, service, &connections[0], data, settled, began).await?;
    repeat(bench, &connections, bench.soak - settled).await?;
    Ok([before, observe(bench, service, &connections[0], data, bench.soak, began).await?])
}

/// Each client submits one after another, until there were so many together.
async fn repeat(bench: &Bench, connections: &[Connection], many: usize) -> Result<(), Error> {
    let left = &Cell::new(many);
    let submit = |connection| async move {
        while let Some(rest) = left.get().checked_sub(1) {
            bench.check()?;
            left.set(rest);
            Connection::execute(connection).await?;
        }
        Ok(())
    };
    try_join_all(connections.iter().map(submit)).await.map(drop)
}

/// Looks around once the pool is full again. What was used is removed after its answer: of all looks,
/// the one with the fewest processes and threads counts.
async fn observe(
    bench: &Bench,
    service: &Service,
    connection: &Connection,
    data: &Path,
    executions: usize,
    began: Instant,
) -> Result<Observed, Error> {
    let seconds = began.elapsed().as_secs_f64();
    connection.pool_is_full().await?;
    tokio::time::sleep(IDLE).await;
    let pid = service.pid()?;
    let mut best: Option<Observed> = None;
    for _ in 0..LOOKS.0 {
        tokio::time::sleep(LOOKS.1).await;
        let path = format!("/proc/{pid}/mountinfo");
        let mounts = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        let count = |count: usize| u32::try_from(count).map_or(f64::INFINITY, f64::from);
        let seen = Observed {
            executions,
            seconds,
            descriptors: count(process::descriptors_of(pid).unwrap_or(0)),
            threads: count(process::threads_of(pid)?),
            processes: count(process::descendants_of(pid).len()),
            mounts: count(mounts.lines().filter(|line| line.contains(bench.name())).count()),
            resident: process::resident_of(pid)?,
            disk: bytes_below(data),
        };
        let counted = |seen: &Observed| (seen.processes, seen.threads);
        if best.as_ref().is_none_or(|best| counted(&seen) <= counted(best)) {
            best = Some(seen);
        }
    }
    Ok(best.expect("looked at least once"))
}

/// Bytes that files below a folder take on the disk.
fn bytes_below(folder: &Path) -> f64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        #[expect(clippy::cast_precision_loss, reason = "disks are small")]
        Ok(found) => (found.blocks() * 512) as f64,
        Err(_) => 0.0,
    };
    entries.map(bytes).sum()
}
