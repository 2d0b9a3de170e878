//! P10: what executions leave. A worker makes a thousand of them, and looks at itself and at the
//! machine after a hundred and at the end.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_controller::Reaper;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Scenario;
use super::library::execute;
use crate::bench::{Bench, Counts, Work};
use crate::engines::On;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p10-leaks",
    title: "What a thousand executions leave",
    counts: Counts { warm_up: 0, samples: 1 },
    measure,
    work: Some(|work, interrupt| repeat(work, interrupt).boxed_local()),
};

/// After so many executions, everything that is made once is there.
const SETTLED: usize = 100;

/// What the memory of a process may vary by, that allocates and frees.
const MEMORY: f64 = 1.1;

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    on: On,
    executions: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Observed {
    descriptors: f64,
    threads: f64,
    resident: f64,
    /// Processes that the controller started.
    processes: f64,
    /// All of the machine.
    mounts: f64,
    /// Of the containers of these executions.
    cgroups: f64,
    containers: f64,
    /// In the controller's state directory.
    files: f64,
}

type Count = fn(&Observed) -> f64;

fn measure(bench: &Bench, _: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let executions = bench.executions;
        let mut rows = Vec::new();
        for on in [On::Docker, On::Embedded] {
            if !bench.can_use(on, &mut rows) {
                continue;
            }
            let job = Job { on, executions };
            let [before, after]: [Observed; 2] = bench.worker(SCENARIO.id, &job).await?;
            let counted: [(&str, Count); 7] = [
                ("descriptors", |it| it.descriptors),
                ("threads", |it| it.threads),
                ("child processes", |it| it.processes),
                ("mounts of the machine", |it| it.mounts),
                ("cgroups", |it| it.cgroups),
                ("containers", |it| it.containers),
                ("state files", |it| it.files),
            ];
            let mut pair = |what: &str, unit, at: &dyn Fn(&Observed) -> f64, target: Target| {
                let row = |seen, count| {
                    let what = format!("{on}: {what} after {count}");
                    Row::figure(what, unit, vec![at(seen)])
                };
                let mut pair = [row(&before, SETTLED.min(executions)), row(&after, executions)];
                compare(&mut pair, 1, 0, Some(target));
                rows.extend(pair);
            };
            for (what, at) in counted {
                pair(what, Unit::Count, &at, Target::median_at_most(at(&before)));
            }
            let resident = |it: &Observed| it.resident;
            pair("controller's memory", Unit::Bytes, &resident, Target::ratio_at_most(MEMORY));
        }
        Ok(rows)
    }
    .boxed_local()
}

async fn repeat(work: Work<Value>, interrupt: Interrupt) -> Result<Value, Error> {
    let job: Job = serde_json::from_value(work.job).map_err(Error::Worker)?;
    let state_dir = work.engines.state_dir.clone();
    let reaper = work.engines.reaper(job.on).await?;
    let observed = work
        .engines
        .with_controller(job.on, async |controller| {
            let mut ids = HashSet::new();
            let mut before = None;
            for execution in 1..=job.executions {
                interrupt.check()?;
                ids.extend(execute(controller).await?);
                if execution == SETTLED.min(job.executions) {
                    before = Some(observe(&reaper, &ids, &state_dir).await?);
                }
            }
            let after = observe(&reaper, &ids, &state_dir).await?;
            Ok((before, after))
        })
        .await?;
    serde_json::to_value(observed).map_err(Error::Worker)
}

/// Looks around once an engine has had time to end its work: some of it comes after its answer. Of
/// the mounts, which others make too, the fewest meanwhile count.
async fn observe(
    reaper: &Reaper,
    ids: &HashSet<String>,
    state_dir: &Path,
) -> Result<Observed, Error> {
    let mut mounts = usize::MAX;
    for _ in 0..20 {
        let path = "/proc/self/mountinfo";
        let table = fs::read_to_string(path).map_err(Error::file("read", path))?;
        mounts = mounts.min(table.lines().count());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let containers = reaper.ps().await?;
    let containers = containers.iter().filter(|listed| ids.contains(&listed.id)).count();
    let count = |count: usize| u32::try_from(count).map_or(f64::INFINITY, f64::from);
    Ok(Observed {
        descriptors: count(process::descriptors()?),
        threads: count(process::threads()?),
        resident: process::resident()?,
        processes: count(process::descendants().len()),
        mounts: count(mounts),
        cgroups: count(folders_of(Path::new("/sys/fs/cgroup"), ids)),
        containers: count(containers),
        files: count(files_below(state_dir)),
    })
}

/// How many folders below have a name with one of these ids in it.
fn folders_of(folder: &Path, ids: &HashSet<String>) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .map(|entry| {
            let name = entry.file_name();
            let words = name.to_str().unwrap_or_default().split(|c: char| !c.is_ascii_hexdigit());
            let is_one = words.into_iter().any(|word| ids.contains(word));
            usize::from(is_one) + folders_of(&entry.path(), ids)
        })
        .sum()
}

fn files_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let count = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => 1 + files_below(&entry.path()),
        _ => 1,
    };
    entries.map(count).sum()
}
