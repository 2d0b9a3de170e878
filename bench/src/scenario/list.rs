//! P7: a list of a thousand entries, compared with `docker exec CONTAINER ls -l`.

use std::path::Path;
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::operation::List;
use sandbox_controller::Sandbox;

use super::Scenario;
use crate::bench::{Bench, Counts, Entry};
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p7",
    title: "A list of 1,000 entries",
    counts: Counts { warm_up: 5, samples: 50 },
    measure,
    work: None,
};

const ENTRIES: u32 = 1000;

/// Makes so many small files in a folder.
pub fn fill(folder: &Path, count: u32) -> Result<(), Error> {
    for number in 0..count {
        let file = folder.join(format!("entry-{number:05}.txt"));
        std::fs::write(&file, "x").map_err(Error::file("write", &file))?;
    }
    Ok(())
}

/// Lists the io dir, which has `count` entries.
pub async fn list(sandbox: &Sandbox, count: u32) -> Result<(), Error> {
    let list = sandbox.list(List::new(".")).await?;
    if list.entries.len() == count as usize && !list.truncated {
        Ok(())
    } else {
        Err(Error::Operation(format!("a list of {count} entries")))
    }
}

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let folder = bench.folder("p7")?;
        fill(&folder, ENTRIES)?;
        let mut rows = bench
            .with_sandboxes(&folder, async |sandboxes, plain| {
                let peer = "`docker exec CONTAINER ls -l`";
                let mut entries = vec![match plain {
                    Ok(plain) => Entry::new(peer, || bench.time(plain.exec(["ls", "-l", "/io"]))),
                    Err(why) => Entry::missing(peer, why),
                }];
                for (on, sandbox) in sandboxes {
                    entries.push(match sandbox {
                        Ok(sandbox) => Entry::new(on.to_string(), move || async move {
                            let started = Instant::now();
                            list(sandbox, ENTRIES).await?;
                            Ok(started.elapsed().as_secs_f64())
                        }),
                        Err(why) => Entry::missing(on.to_string(), why),
                    });
                }
                bench.by_turns(counts, Unit::Seconds, entries).await
            })
            .await?;
        for index in 1..rows.len() {
            compare(&mut rows, index, 0, Some(Target::median_at_most(15e-3)));
        }
        Ok(rows)
    }
    .boxed_local()
}
