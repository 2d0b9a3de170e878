//! Launches on a machine that has hundreds of mounts more, as those with many containers do: whole
//! processes, in mount namespaces with and without them.

use std::path::Path;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use tokio::process::Command;

use super::Scenario;
use super::cold_run::script;
use super::programs::TRUE;
use crate::bench::{Bench, Counts, Entry};
use crate::bwrap::{self, AGENT, BWRAP};
use crate::error::Error;
use crate::image::BUSYBOX;
use crate::namespace::Namespace;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "mounts",
    title: "Launches on a machine with 300 mounts more, whole processes",
    counts: Counts { warm_up: 3, samples: 40 },
    measure,
    work: None,
};

const MORE: usize = 300;

/// Something to launch.
type Launch<'a> = Box<dyn Fn() -> Command + 'a>;

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        if !rustix::process::geteuid().is_root() {
            return Ok(vec![Row::missing(SCENARIO.title, "only root can mount file systems")]);
        }
        let script = script(bench, "mounts")?;
        let root = bench.folder("mounts-root")?;
        bwrap::root_of_agent(&root)?;
        let program = root.join("busybox");
        if Path::new(BUSYBOX).exists() {
            std::fs::copy(BUSYBOX, &program).map_err(Error::file("copy to", &program))?;
        }
        let no_busybox = format!("no {BUSYBOX}: apt install busybox-static");
        let (script, root) = (&script, &root);
        let run = move || {
            let mut command = bench.sandboxctl(["run", "--engine", "embedded"]);
            command.arg(script);
            command
        };
        let exec = move || {
            let mut command = bench.sandboxctl(["exec", "--engine", "embedded", "--no-io"]);
            command.arg("--rootfs").arg(root).arg("--").args(TRUE);
            command
        };
        let bwrap = bench.peers.bwrap.path();
        let bwrap: Result<Launch<'_>, _> = match &bwrap {
            Ok(bwrap) => Ok(Box::new(move || bwrap::command(bench, bwrap, root, AGENT))),
            Err(why) => Err(why),
        };
        let run: Result<Launch<'_>, _> = match &bench.embedded {
            Ok(_) => Ok(Box::new(run)),
            Err(why) => Err(why),
        };
        let exec: Result<Launch<'_>, _> = match &bench.embedded {
            Ok(_) if !Path::new(BUSYBOX).exists() => Err(&no_busybox),
            Ok(_) => Ok(Box::new(exec)),
            Err(why) => Err(why),
        };
        let points = bench.folder("mounts-points")?;
        let namespaces = [
            (Namespace::with(0, &points)?, String::new()),
            (Namespace::with(MORE, &points)?, format!(", {MORE} mounts more")),
        ];
        let launches =
            [(BWRAP, bwrap), ("`sandboxctl run`", run), ("`sandboxctl exec --no-io`", exec)];
        let mut entries = Vec::new();
        for (what, launch) in &launches {
            for (namespace, more) in &namespaces {
                let what = format!("{what}{more}");
                entries.push(match launch {
                    Ok(launch) => Entry::new(what, move || async move {
                        bench.time(namespace.enter(launch())?).await
                    }),
                    Err(why) => Entry::missing(what, *why),
                });
            }
        }
        let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
        compare(&mut rows, 1, 0, None);
        compare(&mut rows, 3, 2, Some(Target::ratio_at_most(1.1)));
        compare(&mut rows, 5, 4, Some(Target::ratio_at_most(1.1)));
        Ok(rows)
    }
    .boxed_local()
}
