//! P6: 10 MiB read and written at once, compared with `docker exec CONTAINER cat` of as much.

use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::operation::{Read, Write};
use sandbox_controller::Sandbox;

use super::Scenario;
use super::streams::Content;
use crate::bench::{Bench, Counts, Entry};
use crate::engines::On;
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p6",
    title: "10 MiB read and written",
    counts: Counts { warm_up: 3, samples: 30 },
    measure,
    work: None,
};

const SIZE: u64 = 10 << 20;
const FILE: &str = "file";

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let folder = bench.folder("p6")?;
        let content = Content::of(SIZE).all();
        let file = folder.join(FILE);
        std::fs::write(&file, &content).map_err(Error::file("write", &file))?;
        let mut rows = bench
            .with_sandboxes(&folder, async |sandboxes, plain| {
                let peer = "`docker exec CONTAINER cat`";
                let mut entries = vec![match plain {
                    Ok(plain) => Entry::new(peer, || bench.time(plain.exec(["cat", "/io/file"]))),
                    Err(why) => Entry::missing(peer, why),
                }];
                for (on, sandbox) in sandboxes {
                    let content = &content;
                    for what in ["read", "write"] {
                        let name = format!("{on}: {what}");
                        entries.push(match (sandbox, what) {
                            (Err(why), _) => Entry::missing(name, why),
                            (Ok(sandbox), "read") => {
                                Entry::new(name, move || read(sandbox, content))
                            }
                            (Ok(sandbox), _) => Entry::new(name, move || write(sandbox, content)),
                        });
                    }
                }
                bench.by_turns(counts, Unit::Seconds, entries).await
            })
            .await?;
        let bounds = [On::Docker, On::Docker, On::Embedded, On::Embedded].map(|on| match on {
            On::Docker => 150e-3,
            On::Embedded => 60e-3,
        });
        for (index, bound) in (1..rows.len()).zip(bounds) {
            compare(&mut rows, index, 0, Some(Target::median_at_most(bound)));
        }
        Ok(rows)
    }
    .boxed_local()
}

async fn read(sandbox: &Sandbox, content: &[u8]) -> Result<f64, Error> {
    let started = Instant::now();
    let read = sandbox.read_bytes(Read::new(FILE)).await?;
    let took = started.elapsed();
    if read == content {
        Ok(took.as_secs_f64())
    } else {
        Err(Error::Operation("a read".to_owned()))
    }
}

async fn write(sandbox: &Sandbox, content: &[u8]) -> Result<f64, Error> {
    let started = Instant::now();
    sandbox.write(Write::new("written"), content).await?;
    Ok(started.elapsed().as_secs_f64())
}
