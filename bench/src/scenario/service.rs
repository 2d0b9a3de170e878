//! P11: a service with a warm pool: one execution over HTTP on loopback, while the pool is full and
//! back to back, and `sandboxctl run --server` as a whole process, compared with `docker run`.

use std::path::Path;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;

use super::{Scenario, cold_run};
use crate::bench::{Bench, Counts, Entry};
use crate::engines::On;
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};
use crate::service::{Connection, Service};

pub const SCENARIO: Scenario = Scenario {
    id: "p11",
    title: "A service with a warm pool",
    counts: Counts { warm_up: 5, samples: 100 },
    measure,
    work: None,
};

/// The sandboxes that are ready: more than are used while one more is started.
const POOL: usize = 8;

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let script = cold_run::script(bench, "p11")?;
        let mut rows = Vec::new();
        for (on, usable) in [(On::Docker, &bench.docker), (On::Embedded, &bench.embedded)] {
            if let Err(why) = usable {
                rows.push(Row::missing(format!("POST /v1/executions, {on}"), why));
                continue;
            }
            let data = bench.folder(&format!("p11-{on}"))?.join("data");
            let service = Service::start(bench, on, &data, POOL, None).await?;
            let done = measure_with(bench, counts, on, &service, &script).await;
            service.stop().await;
            rows.append(&mut done?);
        }
        Ok(rows)
    }
    .boxed_local()
}

async fn measure_with(
    bench: &Bench,
    counts: Counts,
    on: On,
    service: &Service,
    script: &Path,
) -> Result<Vec<Row>, Error> {
    let connection = &Connection::open(service).await?;
    // The first one teaches the pool its key.
    connection.execute().await?;
    let entries = vec![
        cold_run::docker_run(bench),
        Entry::new(format!("POST with a full pool, {on}"), || async {
            connection.pool_is_full().await?;
            connection.execute().await
        }),
        Entry::new(format!("`sandboxctl run --server`, {on}"), || async {
            connection.pool_is_full().await?;
            let server = format!("http://{}", service.address);
            let mut command = bench.sandboxctl(["run", "--server", &server]);
            command.arg(script);
            bench.time(command).await
        }),
    ];
    let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
    compare(&mut rows, 1, 0, Some(Target::median_at_most(0.005)));
    compare(&mut rows, 2, 0, Some(Target::ratio_at_most(0.10)));
    let mut slow = rows[1].again(format!("the same, its p99, {on}"));
    slow.aim(Target::p99_at_most(0.020));
    rows.insert(2, slow);
    // Nothing between them: they take what the pool has ready, and then what it makes meanwhile.
    let mut times = Vec::new();
    for request in 0..counts.warm_up + counts.samples {
        bench.check()?;
        let took = connection.execute().await?;
        if request >= counts.warm_up {
            times.push(took);
        }
    }
    rows.push(Row::figure(format!("POST back to back, {on}"), Unit::Seconds, times));
    Ok(rows)
}
