//! P8: script io compared with stock Lua: the same scripts, on files of the same directory.
//!
//! Ours is measured around a run in a sandbox that is there; Lua's includes the start of its
//! process, which is 1 ms.

use std::path::Path;
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::{ByteSize, Limits, SandboxSpec, Script};

use super::Scenario;
use crate::bench::{Bench, Counts, Entry};
use crate::engines::{On, ended_well};
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p8",
    title: "Script io vs stock Lua",
    counts: Counts { warm_up: 2, samples: 20 },
    measure,
    work: None,
};

const INPUT: &str = include_str!("../../scripts/input.luau");

/// What is done, the script that does it, and the maximum ratio to Lua's time.
const WORKS: [(&str, &str, f64); 4] = [
    ("iterate 100 MB by line", include_str!("../../scripts/lines.luau"), 0.9),
    ("read 50 MB whole", include_str!("../../scripts/whole.luau"), 1.1),
    ("read a million numbers", include_str!("../../scripts/numbers.luau"), 1.5),
    ("a million short writes", include_str!("../../scripts/writes.luau"), 2.0),
];

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let engine = match (&bench.docker, &bench.embedded) {
            (Ok(_), _) => On::Docker,
            (Err(_), Ok(_)) => On::Embedded,
            (Err(why), Err(_)) => return Ok(vec![Row::missing("script io", why)]),
        };
        let folder = bench.folder("p8")?;
        sandboxed(bench, engine, &folder, INPUT).await?;
        // Next to the files that they work on, for Lua.
        let scripts = bench.folder("p8-scripts")?;
        let mut rows = Vec::new();
        for (index, (what, source, bound)) in WORKS.into_iter().enumerate() {
            let script = scripts.join(format!("{index}.lua"));
            std::fs::write(&script, source).map_err(Error::file("write", &script))?;
            let name = format!("{what}: `lua5.4`");
            let lua = match bench.peers.lua.path() {
                Err(why) => Entry::missing(name, why),
                Ok(lua) => {
                    let (folder, script) = (&folder, &script);
                    Entry::new(name, move || {
                        let mut command = bench.command(lua, [script]);
                        command.current_dir(folder);
                        bench.time(command)
                    })
                }
            };
            let ours = Entry::new(format!("{what}: sandbox"), || {
                sandboxed(bench, engine, &folder, source)
            });
            let mut pair = bench.by_turns(counts, Unit::Seconds, vec![lua, ours]).await?;
            compare(&mut pair, 1, 0, Some(Target::ratio_at_most(bound)));
            rows.append(&mut pair);
        }
        Ok(rows)
    }
    .boxed_local()
}

/// The seconds of one run, in a sandbox of its own.
async fn sandboxed(bench: &Bench, engine: On, io_dir: &Path, source: &str) -> Result<f64, Error> {
    let limits = Limits {
        max_write: ByteSize::b(400 << 20),
        vm_memory: ByteSize::b(200 << 20),
        ..Limits::default()
    };
    bench
        .engines
        .with_controller(engine, async |controller| {
            let spec = SandboxSpec::new().io_dir(io_dir).limits(limits);
            let sandbox = controller.launch(spec).await?;
            let started = Instant::now();
            let run = sandbox.run(Script::new(source)).await?;
            let took = started.elapsed();
            sandbox.close().await?;
            ended_well(&run)?;
            Ok(took.as_secs_f64())
        })
        .await
}
