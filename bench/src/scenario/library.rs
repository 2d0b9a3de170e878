//! P3: launch, run and close through the library: one after another, and four in flight.

use std::time::Instant;

use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use sandbox_api::{Lifespan, SandboxSpec, Script};
use sandbox_controller::Controller;

use super::Scenario;
use crate::bench::{Bench, Counts, Entry};
use crate::engines::ended_well;
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p3",
    title: "Launch, run and close through the library",
    counts: Counts { warm_up: 3, samples: 100 },
    measure,
    work: None,
};

const IN_FLIGHT: usize = 4;

/// Executions of a burst on Docker, and on the embedded engine: as many as take about a second.
const BURSTS: [usize; 2] = [12, 120];

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    bench
        .with_engines(async move |docker, embedded| {
            let one = |what, controller| {
                entry(what, controller, |controller| async move {
                    let started = Instant::now();
                    execute(controller).await?;
                    Ok(started.elapsed().as_secs_f64())
                })
            };
            let entries =
                vec![one("Docker, one by one", docker), one("embedded, one by one", embedded)];
            let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
            compare(&mut rows, 1, 0, Some(Target::median_at_most(0.005)));

            let [few, many] = BURSTS;
            let burst = |what, controller, size| {
                entry(what, controller, move |controller| sustained(controller, size))
            };
            let entries = vec![
                burst("Docker, 4 in flight", docker, few),
                burst("embedded, 4 in flight", embedded, many),
            ];
            let counts = Counts { warm_up: 1, samples: counts.samples.min(20) };
            let mut rates = bench.by_turns(counts, Unit::Rate, entries).await?;
            compare(&mut rates, 1, 0, Some(Target::median_at_least(300.0)));
            rows.append(&mut rates);
            Ok(rows)
        })
        .boxed_local()
}

fn entry<'a, F>(
    what: &str,
    controller: Result<&'a Controller, &str>,
    measure: impl Fn(&'a Controller) -> F + 'a,
) -> Entry<'a>
where
    F: Future<Output = Result<f64, Error>> + 'a,
{
    match controller {
        Ok(controller) => Entry::new(what, move || measure(controller)),
        Err(why) => Entry::missing(what, why),
    }
}

/// One execution, from nothing to nothing, and the ids that its container had.
pub async fn execute(controller: &Controller) -> Result<[String; 2], Error> {
    let spec = SandboxSpec::new().lifespan(Lifespan::OneRun);
    let sandbox = controller.launch(spec).await?;
    let ids = [sandbox.id(), sandbox.container_id()].map(str::to_owned);
    let run = sandbox.run(Script::new("return 1")).await?;
    sandbox.close().await?;
    ended_well(&run)?;
    Ok(ids)
}

/// Executions a second.
async fn sustained(controller: &Controller, size: usize) -> Result<f64, Error> {
    let started = Instant::now();
    stream::iter(0..size)
        .map(async |_| execute(controller).await.map(drop))
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<()>()
        .await?;
    #[expect(clippy::cast_precision_loss, reason = "a burst is small")]
    Ok(size as f64 / started.elapsed().as_secs_f64())
}
