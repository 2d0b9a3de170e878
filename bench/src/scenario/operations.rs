//! P5: operations on a small file in a running sandbox, compared with `docker exec CONTAINER cat`,
//! which has no session and starts a process for each.

use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::operation::{Exists, Read, Stat, Write};
use sandbox_controller::Sandbox;

use super::Scenario;
use crate::bench::{Bench, Counts, Entry};
use crate::engines::On;
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p5",
    title: "Operations on a file of 1 KiB",
    counts: Counts { warm_up: 20, samples: 300 },
    measure,
    work: None,
};

const SIZE: usize = 1024;
const FILE: &str = "file";
/// The peer of every operation.
const PEER: &str = "`docker exec CONTAINER cat`";
/// How many times as long the peer is to take.
const FASTER: f64 = 50.0;

/// What is done to a file.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Read,
    Write,
    Stat,
    Exists,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Stat, Self::Exists];

    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Stat => "stat",
            Self::Exists => "exists",
        }
    }

    /// Does it once, and gives the seconds that it took.
    async fn time(self, sandbox: &Sandbox) -> Result<f64, Error> {
        let content = [b'x'; SIZE];
        let started = Instant::now();
        let (bytes, took) = match self {
            Self::Read => {
                let read = sandbox.read(Read::new(FILE), None).await?;
                (read.bytes, started.elapsed())
            }
            Self::Write => {
                let written = sandbox.write(Write::new("written"), content).await?;
                (written.bytes_written, started.elapsed())
            }
            Self::Stat => (sandbox.stat(Stat::new(FILE)).await?.size, started.elapsed()),
            Self::Exists => {
                let found = sandbox.call(Exists::new(FILE)).await?;
                (if found.exists { SIZE as u64 } else { 0 }, started.elapsed())
            }
        };
        if bytes == SIZE as u64 {
            Ok(took.as_secs_f64())
        } else {
            Err(Error::Operation(format!("{} of {SIZE} bytes", self.name())))
        }
    }
}

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let folder = bench.folder("p5")?;
        let file = folder.join(FILE);
        std::fs::write(&file, [b'x'; SIZE]).map_err(Error::file("write", &file))?;
        let mut rows = bench
            .with_sandboxes(&folder, async |sandboxes, plain| {
                let mut entries = vec![match plain {
                    Ok(plain) => {
                        Entry::new(PEER, || bench.time(plain.exec(["cat", &format!("/io/{FILE}")])))
                    }
                    Err(why) => Entry::missing(PEER, why),
                }];
                for (on, sandbox) in sandboxes {
                    for kind in Kind::ALL {
                        let what = format!("{on}: {}", kind.name());
                        entries.push(match sandbox {
                            Ok(sandbox) => Entry::new(what, move || kind.time(sandbox)),
                            Err(why) => Entry::missing(what, why),
                        });
                    }
                }
                bench.by_turns(counts, Unit::Seconds, entries).await
            })
            .await?;
        let ours = rows.len();
        for (index, on) in
            (1..ours).zip([On::Docker, On::Embedded].into_iter().flat_map(|on| [on; 4]))
        {
            let bound = match on {
                On::Docker => 1e-3,
                On::Embedded => 0.3e-3,
            };
            // The larger of the two above: how many times as long the peer takes.
            let comparison = rows[0].again(format!("{PEER}, vs {}", rows[index].what));
            rows.push(comparison);
            let last = rows.len() - 1;
            compare(&mut rows, last, index, Some(Target::ratio_at_least(FASTER)));
            rows[index].aim(Target::median_at_most(bound));
        }
        Ok(rows)
    }
    .boxed_local()
}
