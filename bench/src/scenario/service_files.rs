//! P6: files of a kept sandbox through a service, each way.

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use serde_json::Value;

use super::Scenario;
use super::streams::Content;
use crate::bench::{Bench, Counts, Entry};
use crate::engines::On;
use crate::error::Error;
use crate::report::{Row, Target, Unit};
use crate::service::{Connection, Service};

pub const SCENARIO: Scenario = Scenario {
    id: "p6-http",
    title: "Files of 1 KiB and of 10 MiB through a service",
    counts: Counts { warm_up: 3, samples: 30 },
    measure,
    work: None,
};

/// What is moved, and the time that each way may take on the embedded engine, where one is set.
const SIZES: [(&str, u64, Option<f64>); 2] =
    [("1 KiB", 1 << 10, None), ("10 MiB", 10 << 20, Some(0.060))];

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let mut rows = Vec::new();
        for on in [On::Docker, On::Embedded] {
            if !bench.can_use(on, &mut rows) {
                continue;
            }
            let folder = bench.folder(&format!("p6-http-{on}"))?;
            let (data, files) = (folder.join("data"), folder.join("files"));
            std::fs::create_dir(&files).map_err(Error::file("make", &files))?;
            let service = Service::start(bench, on, &data, 0, Some(&files)).await?;
            let done = measure_with(bench, counts, on, &service).await;
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
) -> Result<Vec<Row>, Error> {
    let connection = &Connection::open(service).await?;
    let made = connection.ask("POST", "/v1/sandboxes", b"{}").await?;
    let made: Value = serde_json::from_slice(&made.body).map_err(Error::Worker)?;
    let id = made["id"].as_str().unwrap_or_default();
    let path = |size: u64| format!("/v1/sandboxes/{id}/files/{size}");
    let (mut entries, mut bounds) = (Vec::new(), Vec::new());
    for (what, size, bound) in SIZES {
        let content = Content::of(size).all();
        connection.ask("PUT", &path(size), &content).await?;
        let up = content.clone();
        entries.push(Entry::new(format!("{on}: write of {what}"), move || {
            let (up, path) = (up.clone(), path(size));
            async move { Ok(connection.ask("PUT", &path, &up).await?.took) }
        }));
        entries.push(Entry::new(format!("{on}: read of {what}"), move || {
            let (content, path) = (content.clone(), path(size));
            async move {
                let answer = connection.ask("GET", &path, b"").await?;
                match answer.body == content {
                    true => Ok(answer.took),
                    false => Err(Error::Operation(format!("GET {path}"))),
                }
            }
        }));
        bounds.extend([bound; 2]);
    }
    let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
    if on == On::Embedded {
        for (row, bound) in rows.iter_mut().zip(bounds) {
            bound.into_iter().for_each(|bound| row.aim(Target::median_at_most(bound)));
        }
    }
    connection.ask("DELETE", &format!("/v1/sandboxes/{id}"), b"").await?;
    Ok(rows)
}
