//! P10: what operations leave. A worker asks one sandbox for ten thousand of them, and looks at
//! itself and at the agent after a thousand and at the end.

use std::path::PathBuf;

use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use sandbox_api::SandboxSpec;
use sandbox_api::operation::{Edit, Exists, List, Mkdir, Read, Remove, Rename, Stat, View, Write};
use sandbox_controller::Sandbox;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Scenario;
use crate::bench::{Bench, Counts, Work};
use crate::engines::On;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p10-operations",
    title: "What ten thousand operations on a sandbox leave",
    counts: Counts { warm_up: 0, samples: 1 },
    measure,
    work: Some(|work, interrupt| repeat(work, interrupt).boxed_local()),
};

/// Operations of a round.
const ROUND: u32 = 10;
/// After the first, everything that is made once is there.
const ROUNDS: [u32; 2] = [100, 1000];
/// As many as are under way at one time.
const IN_FLIGHT: usize = 16;
/// What the memory of a process may vary by, that allocates and frees.
const MEMORY: f64 = 1.1;

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    on: On,
    /// Empty and the job's own.
    folder: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Observed {
    descriptors: u32,
    threads: u32,
    resident: f64,
    /// `None` where only a mightier user may look.
    agent_descriptors: Option<u32>,
    agent_threads: u32,
    agent_resident: f64,
}

fn measure(bench: &Bench, _: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let mut rows = Vec::new();
        for on in [On::Docker, On::Embedded] {
            if !bench.can_use(on, &mut rows) {
                continue;
            }
            let folder = bench.folder(&format!("p10-operations-{on}"))?;
            let job = Job { on, folder };
            let seen: [Observed; 2] = bench.worker(SCENARIO.id, &job).await?;
            let mut pair = |what: &str, unit, at: &dyn Fn(&Observed) -> Option<f64>| {
                let [before, after] = [0, 1].map(|index| {
                    let what = format!("{on}: {what} after {}", ROUNDS[index] * ROUND);
                    match at(&seen[index]) {
                        Some(value) => Row::figure(what, unit, vec![value]),
                        None => Row::missing(what, "another user's process cannot be looked at"),
                    }
                });
                let target = match unit {
                    Unit::Count => Target::median_at_most(at(&seen[0]).unwrap_or(0.0)),
                    Unit::Bytes | Unit::Seconds | Unit::Rate => Target::ratio_at_most(MEMORY),
                };
                let mut pair = [before, after];
                compare(&mut pair, 1, 0, Some(target));
                rows.extend(pair);
            };
            pair("controller's descriptors", Unit::Count, &|it| Some(it.descriptors.into()));
            pair("controller's threads", Unit::Count, &|it| Some(it.threads.into()));
            pair("controller's memory", Unit::Bytes, &|it| Some(it.resident));
            pair("agent's descriptors", Unit::Count, &|it| it.agent_descriptors.map(f64::from));
            pair("agent's threads", Unit::Count, &|it| Some(it.agent_threads.into()));
            pair("agent's memory", Unit::Bytes, &|it| Some(it.agent_resident));
        }
        Ok(rows)
    }
    .boxed_local()
}

async fn repeat(work: Work<Value>, interrupt: Interrupt) -> Result<Value, Error> {
    let Job { on, folder } = serde_json::from_value(work.job).map_err(Error::Worker)?;
    let observed = work
        .engines
        .with_controller(on, async |controller| {
            let sandbox = controller.launch(SandboxSpec::new().io_dir(&folder)).await?;
            let observed = async {
                let agent = process::agent_of(&sandbox)?;
                let mut observed = Vec::new();
                let mut done = 0;
                for rounds in ROUNDS {
                    stream::iter(done..rounds)
                        .map(async |number| {
                            interrupt.check()?;
                            round(&sandbox, number).await
                        })
                        .buffer_unordered(IN_FLIGHT)
                        .try_collect::<()>()
                        .await?;
                    done = rounds;
                    observed.push(observe(agent)?);
                }
                Ok(observed)
            };
            let observed = observed.await;
            sandbox.close().await?;
            observed
        })
        .await?;
    serde_json::to_value(observed).map_err(Error::Worker)
}

/// Each operation that there is, once, on names of the round's own.
async fn round(sandbox: &Sandbox, number: u32) -> Result<(), Error> {
    let folder = format!("round-{number}");
    let (file, moved) = (format!("{folder}/file"), format!("{folder}/moved"));
    sandbox.call(Mkdir::new(&folder)).await?;
    sandbox.write(Write::new(&file), "some words").await?;
    sandbox.call(Edit::new(&file, "some", "more")).await?;
    let read = sandbox.read(Read::new(&file), None).await?;
    sandbox.view(View::new(&file)).await?;
    sandbox.stat(Stat::new(&file)).await?;
    sandbox.call(Rename::new(&file, &moved)).await?;
    let exists = sandbox.call(Exists::new(&file)).await?;
    let list = sandbox.list(List::new(&folder)).await?;
    let all = Remove { recursive: true, ..Remove::new(&folder) };
    let removed = sandbox.call(all).await?;
    let is_right = read.content == "more words"
        && !exists.exists
        && list.entries.len() == 1
        && removed.entries == 2;
    is_right.then_some(()).ok_or_else(|| Error::Operation(format!("round {number}")))
}

fn observe(agent: u32) -> Result<Observed, Error> {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(Observed {
        descriptors: count(process::descriptors()?),
        threads: count(process::threads()?),
        resident: process::resident()?,
        agent_descriptors: process::descriptors_of(agent).map(count),
        agent_threads: count(process::threads_of(agent)?),
        agent_resident: process::resident_of(agent)?,
    })
}
