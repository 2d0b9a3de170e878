//! P9: what an idle service does while its pool is full.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;

use super::Scenario;
use crate::bench::{Bench, Counts};
use crate::engines::On;
use crate::error::Error;
use crate::process;
use crate::report::{Row, Unit};
use crate::service::{Connection, Service};

pub const SCENARIO: Scenario = Scenario {
    id: "p9-idle",
    title: "Processor time of a service that waits, in ten seconds",
    counts: Counts { warm_up: 0, samples: 6 },
    measure,
    work: None,
};

const POOL: usize = 8;
/// For how long it is watched at a time.
const WATCH: Duration = Duration::from_secs(10);

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let mut rows = Vec::new();
        for on in [On::Docker, On::Embedded] {
            if !bench.can_use(on, &mut rows) {
                continue;
            }
            for pool in [0, POOL] {
                let data = bench.folder(&format!("p9-idle-{on}-{pool}"))?.join("data");
                let service = Service::start(bench, on, &data, pool, None).await?;
                let done = watch(bench, counts, &service, pool).await;
                service.stop().await;
                let [own, others] = done?;
                let what = format!("{on}: service with {pool} ready");
                rows.push(Row::figure(&what, Unit::Seconds, own));
                // Those of Docker are not the service's children.
                if on == On::Embedded && pool > 0 {
                    let what = format!("{on}: {pool} agents and their helpers, together");
                    rows.push(Row::figure(what, Unit::Seconds, others));
                }
            }
        }
        Ok(rows)
    }
    .boxed_local()
}

/// Processor time of the service, and of the processes that it started.
async fn watch(
    bench: &Bench,
    counts: Counts,
    service: &Service,
    pool: usize,
) -> Result<[Vec<f64>; 2], Error> {
    // No connection is left, which would be watched for its end.
    if pool > 0 {
        let connection = Connection::open(service).await?;
        connection.execute().await?;
        connection.pool_is_full().await?;
    }
    let pid = service.pid()?;
    // What was used is removed meanwhile, and threads without work end: their time would be missed.
    tokio::time::sleep(WATCH * 2).await;
    let others = process::descendants_of(pid);
    let time = || -> Result<[Duration; 2], Error> {
        // One that has ended meanwhile took nothing since.
        let of_others = others.iter().filter_map(|pid| process::processor_time_of(*pid).ok());
        Ok([process::processor_time_of(pid)?, of_others.sum()])
    };
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..counts.samples {
        bench.check()?;
        let before = time()?;
        tokio::time::sleep(WATCH).await;
        let after = time()?;
        for ((times, after), before) in times.iter_mut().zip(after).zip(before) {
            // Less than before is no figure: a thread has ended, and took its time with it.
            times.extend(after.checked_sub(before).map(|time| time.as_secs_f64()));
        }
    }
    Ok(times)
}
