//! P10: what a thing more costs, as there are more of them. Ten times the files should take ten
//! times the time and the memory: what each of many takes is then what each of fewer took.
//!
//! The time that has a target is the CPU time of the agent and the controller: on a shared machine,
//! short work gets more of the CPU than long work. A worker for every measurement, so that their
//! memory is separate.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::operation::{List, Read, Remove, Stat, Write};
use sandbox_api::{ExecutionResult, Input, Limits, SandboxSpec, Script};
use sandbox_controller::Sandbox;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Scenario;
use super::list::{fill, list};
use crate::bench::{Bench, Counts, Work};
use crate::engines::{On, ended_well};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p10-growth",
    title: "What each of many things costs",
    counts: Counts { warm_up: 1, samples: 20 },
    measure,
    work: Some(|work, interrupt| grow(work, interrupt).boxed_local()),
};

/// What is not linear costs each of ten times as many several times as much.
const LINEAR: Target = Target::ratio_at_most(1.25);

/// What there are more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Thing {
    /// Files that a script makes.
    File,
    /// Entries of its log.
    LogEntry,
    /// Values in its result.
    Value,
    /// Runs in one sandbox.
    Run,
    /// Inputs of a sandbox.
    Input,
    /// Entries of a list.
    Entry,
    /// File operations on one sandbox.
    Operation,
}

impl Thing {
    const ALL: [Self; 7] = [
        Self::File,
        Self::LogEntry,
        Self::Value,
        Self::Run,
        Self::Input,
        Self::Entry,
        Self::Operation,
    ];

    const fn counts(self) -> [u32; 3] {
        match self {
            Self::File | Self::LogEntry | Self::Value | Self::Entry | Self::Operation => {
                [100, 1000, 10_000]
            }
            Self::Run => [10, 100, 1000],
            // Each is a mount.
            Self::Input => [1, 10, 100],
        }
    }

    /// What makes `args.count` of them, where it is one script that does.
    const fn script(self) -> &'static str {
        match self {
            Self::File => {
                "for i = 1, args.count do
                    local file = io.open('file-' .. i, 'w')
                    file:write('x')
                    file:close()
                end"
            }
            // Long enough that a thousand are more than what is allocated anyway.
            Self::LogEntry => {
                "local entry = string.rep('an entry of the log ', 4)
                for i = 1, args.count do print(entry) end"
            }
            Self::Value => {
                "local values, value = {}, string.rep('a value of a result ', 4)
                for i = 1, args.count do values[i] = value end
                return values"
            }
            Self::Run | Self::Input | Self::Entry | Self::Operation => "return 1",
        }
    }
}

impl fmt::Display for Thing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::File => "files made",
            Self::LogEntry => "entries logged",
            Self::Value => "values in a result",
            Self::Run => "runs in a sandbox",
            Self::Input => "inputs (whole life)",
            Self::Entry => "entries listed",
            Self::Operation => "operations on a sandbox",
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    on: On,
    thing: Thing,
    count: u32,
    /// Empty and the job's own.
    folder: PathBuf,
}

/// What all of them took beyond what there was before.
#[derive(Debug, Serialize, Deserialize)]
struct Grown {
    seconds: f64,
    /// Processor time of the controller and the agent, in seconds.
    processor: f64,
    /// The controller's memory at its highest.
    controller: f64,
    /// The agent's.
    agent: f64,
}

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let on = match (&bench.docker, &bench.embedded) {
            (_, Ok(_)) => On::Embedded,
            (Ok(_), Err(_)) => On::Docker,
            (Err(why), Err(_)) => return Ok(vec![Row::missing("growth", why)]),
        };
        let mut rows = Vec::new();
        for thing in Thing::ALL {
            let mut series: [Vec<Grown>; 3] = Default::default();
            for round in 0..counts.warm_up + counts.samples {
                for (count, series) in thing.counts().into_iter().zip(&mut series) {
                    let folder = bench.folder("p10-growth")?;
                    let job = Job { on, thing, count, folder: folder.clone() };
                    let grown = bench.worker(SCENARIO.id, &job).await?;
                    std::fs::remove_dir_all(&folder).map_err(Error::file("remove", folder))?;
                    if round >= counts.warm_up {
                        series.push(grown);
                    }
                }
            }
            let of_each = |what, unit, of| each(thing, what, unit, &series, of);
            let mut processor = of_each("processor time", Unit::Seconds, |it| it.processor);
            let mut wall = of_each("time", Unit::Seconds, |it| it.seconds);
            let mut controller = of_each("controller's memory", Unit::Bytes, |it| it.controller);
            let mut agent = of_each("agent's memory", Unit::Bytes, |it| it.agent);
            if thing == Thing::Input {
                // The engine's work. The agent does not report it.
                rows.extend(wall.drain(1..).map(|row| row.target(LINEAR)));
            } else {
                rows.extend(processor.drain(1..).map(|row| row.target(LINEAR)));
                rows.extend(wall.pop());
                rows.extend(agent.pop().map(|row| row.target(LINEAR)));
            }
            rows.extend(controller.pop().map(|row| row.target(LINEAR)));
        }
        Ok(rows)
    }
    .boxed_local()
}

/// What each of them took, compared with each of fewer.
fn each(
    thing: Thing,
    what: &str,
    unit: Unit,
    series: &[Vec<Grown>; 3],
    of: fn(&Grown) -> f64,
) -> Vec<Row> {
    let mut rows: Vec<Row> = thing
        .counts()
        .into_iter()
        .zip(series)
        .map(|(count, series)| {
            let samples = series.iter().map(|grown| of(grown) / f64::from(count)).collect();
            let fewer = thing.counts().into_iter().rev().find(|fewer| *fewer < count);
            let baseline = fewer.map_or_else(String::new, |fewer| format!(", vs {fewer}"));
            Row::figure(format!("{count} {thing}: {what} of each{baseline}"), unit, samples)
        })
        .collect();
    for larger in 1..rows.len() {
        compare(&mut rows, larger, larger - 1, None);
    }
    rows
}

async fn grow(work: Work<Value>, interrupt: Interrupt) -> Result<Value, Error> {
    let job: Job = serde_json::from_value(work.job).map_err(Error::Worker)?;
    let Job { on, thing, count, folder } = job;
    let io_dir = folder.join("io");
    let mut spec = SandboxSpec::new().io_dir(&io_dir);
    if thing == Thing::File {
        let entries = std::num::NonZeroU32::new(2 * count);
        spec = spec.limits(Limits { entries: entries.expect("not 0"), ..Limits::default() });
    }
    std::fs::create_dir(&io_dir).map_err(Error::file("make", &io_dir))?;
    let grown = work
        .engines
        .with_controller(on, async |controller| {
            if thing == Thing::Input {
                // One without, so that what comes once is there.
                controller.launch(spec.clone()).await?.close().await?;
                let source = folder.join("input");
                std::fs::write(&source, "x").map_err(Error::file("write", &source))?;
                let spec = (0..count).fold(spec, |spec, number| {
                    spec.input(Input::path(&source, format!("input-{number}")))
                });
                let before = process::resident()?;
                process::forget_peak()?;
                let started = Instant::now();
                controller.launch(spec).await?.close().await?;
                let seconds = started.elapsed().as_secs_f64();
                let controller = process::peak()? - before;
                return Ok(Grown { seconds, processor: 0.0, controller, agent: 0.0 });
            }
            if thing == Thing::Entry {
                fill(&io_dir, count)?;
            }
            let sandbox = controller.launch(spec).await?;
            let grown = match thing {
                Thing::Entry | Thing::Operation => {
                    operations(&sandbox, thing, count, &interrupt).await
                }
                _ => runs(&sandbox, thing, count, &interrupt).await,
            };
            sandbox.close().await?;
            grown
        })
        .await?;
    serde_json::to_value(grown).map_err(Error::Worker)
}

async fn runs(
    sandbox: &Sandbox,
    thing: Thing,
    count: u32,
    interrupt: &Interrupt,
) -> Result<Grown, Error> {
    let args = |count: u32| Map::from_iter([("count".to_owned(), json!(count))]);
    let script = || Script::new(thing.script());
    // One of them, so that what comes once is there.
    let first = sandbox.run(script().args(args(1))).await?;
    ended_well(&first)?;
    let before = process::resident()?;
    process::forget_peak()?;
    let (started, own) = (Instant::now(), process::processor_time());
    let (times, arguments) = match thing {
        Thing::Run => (count, args(1)),
        _ => (1, args(count)),
    };
    let (mut last, mut agents) = (first.clone(), 0);
    for _ in 0..times {
        interrupt.check()?;
        last = sandbox.run(script().args(arguments.clone())).await?;
        ended_well(&last)?;
        agents += last.usage.cpu_ms.unwrap_or(0);
    }
    let seconds = started.elapsed().as_secs_f64();
    let processor = process::processor_time() - own + Duration::from_millis(agents);
    let controller = process::peak()? - before;
    let peak = |run: &ExecutionResult| {
        #[expect(clippy::cast_precision_loss, reason = "it is far below 2^53")]
        run.usage.peak_memory_bytes.map_or(f64::NAN, |bytes| bytes as f64)
    };
    let processor = processor.as_secs_f64();
    Ok(Grown { seconds, processor, controller, agent: peak(&last) - peak(&first) })
}

async fn operations(
    sandbox: &Sandbox,
    thing: Thing,
    count: u32,
    interrupt: &Interrupt,
) -> Result<Grown, Error> {
    // One of them, so that what comes once is there.
    sandbox.write(Write::new("file"), "x").await?;
    sandbox.call(Remove::new("file")).await?;
    sandbox.list(List { limit: Some(1), ..List::new(".") }).await?;
    let agent = process::agent_of(sandbox)?;
    let processor = || -> Result<Duration, Error> {
        Ok(process::processor_time() + process::processor_time_of(agent)?)
    };
    let before = (process::resident_of(agent)?, process::resident()?, processor()?);
    process::forget_peak_of(agent);
    process::forget_peak()?;
    let started = Instant::now();
    if thing == Thing::Entry {
        list(sandbox, count).await?;
    } else {
        for number in 0..count {
            interrupt.check()?;
            match number % 4 {
                0 => drop(sandbox.write(Write::new("file"), "x").await?),
                1 => drop(sandbox.read(Read::new("file"), None).await?),
                2 => drop(sandbox.stat(Stat::new("file")).await?),
                _ => drop(sandbox.call(Remove::new("file")).await?),
            }
        }
    }
    Ok(Grown {
        seconds: started.elapsed().as_secs_f64(),
        processor: (processor()? - before.2).as_secs_f64(),
        agent: process::peak_of(agent)? - before.0,
        controller: process::peak()? - before.1,
    })
}
