//! P4: from the claim of a pooled sandbox to its result. P12: bursts of launches, on a pool that has a
//! sandbox for each, and on one that has not.

use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, try_join_all};
use sandbox_api::{Lifespan, SandboxSpec, Script};
use sandbox_controller::{Controller, PoolConfig, Sandbox};

use super::Scenario;
use crate::bench::{Bench, Counts, Entry};
use crate::engines::{On, ended_well};
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};

pub const CLAIM: Scenario = Scenario {
    id: "p4",
    title: "From the claim of a pooled sandbox to the result of `return 1`",
    counts: Counts { warm_up: 5, samples: 100 },
    measure: measure_claims,
    work: None,
};

pub const BURSTS: Scenario = Scenario {
    id: "p12",
    title: "Launch and run of many at once on a pool: the slowest but one in a hundred",
    counts: Counts { warm_up: 0, samples: 5 },
    measure: measure_bursts,
    work: None,
};

/// Sandboxes in the pool for claims one by one.
const POOL: usize = 8;
/// Launches at once, and sandboxes in the pool.
const SIZES: [(usize, usize); 2] = [(50, 50), (100, 20)];

fn spec() -> SandboxSpec {
    SandboxSpec::new().lifespan(Lifespan::OneRun)
}

async fn begin(controller: &Controller, size: usize) -> Result<(), Error> {
    controller.pool(PoolConfig { size, ..PoolConfig::default() });
    controller.prewarm(spec()).await?;
    controller.pool_settled().await;
    Ok(())
}

/// How long a launch and a run took, and the sandbox.
async fn execute(controller: &Controller) -> Result<(Duration, Sandbox), Error> {
    let started = Instant::now();
    let sandbox = controller.launch(spec()).await?;
    let run = sandbox.run(Script::new("return 1")).await?;
    let took = started.elapsed();
    ended_well(&run)?;
    Ok((took, sandbox))
}

fn measure_claims(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    bench
        .with_engines(async move |docker, embedded| {
            let mut entries = Vec::new();
            for (on, controller) in [(On::Docker, docker), (On::Embedded, embedded)] {
                entries.push(match controller {
                    Ok(controller) => {
                        begin(controller, POOL).await?;
                        Entry::new(on.to_string(), move || claim(controller))
                    }
                    Err(why) => Entry::missing(on.to_string(), why),
                });
            }
            let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
            for row in 0..rows.len() {
                compare(&mut rows, row, row, Some(Target::median_at_most(0.002)));
            }
            Ok(rows)
        })
        .boxed_local()
}

async fn claim(controller: &Controller) -> Result<f64, Error> {
    let (took, sandbox) = execute(controller).await?;
    sandbox.close().await?;
    controller.pool_settled().await;
    Ok(took.as_secs_f64())
}

fn measure_bursts(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let mut rows = Vec::new();
        for (many, size) in SIZES {
            let mut measured = bench
                .with_engines(async move |docker, embedded| {
                    let mut entries = Vec::new();
                    for (on, controller) in [(On::Docker, docker), (On::Embedded, embedded)] {
                        let what = format!("{many} at once on a pool of {size}, {on}");
                        entries.push(match controller {
                            Ok(controller) => {
                                begin(controller, size).await?;
                                Entry::new(what, move || burst(controller, many))
                            }
                            Err(why) => Entry::missing(what, why),
                        });
                    }
                    bench.by_turns(counts, Unit::Seconds, entries).await
                })
                .await?;
            let most = if many <= size { 0.130 } else { 0.450 };
            compare(&mut measured, 1, 0, Some(Target::median_at_most(most)));
            rows.append(&mut measured);
        }
        Ok(rows)
    }
    .boxed_local()
}

/// The time of the slowest but one in a hundred. None is lost: an error ends the measurement.
async fn burst(controller: &Controller, many: usize) -> Result<f64, Error> {
    let all = try_join_all((0..many).map(|_| execute(controller))).await?;
    let mut times = Vec::new();
    for (took, sandbox) in all {
        times.push(took);
        sandbox.close().await?;
    }
    controller.pool_settled().await;
    times.sort_unstable();
    let slowest = times[(times.len() * 99).div_ceil(100) - 1];
    Ok(slowest.as_secs_f64())
}
