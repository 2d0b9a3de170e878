//! A program that does nothing, on the embedded engine: the whole process of `sandboxctl exec`, with
//! its fresh io dir and without one, compared with `bwrap` in the same root.

use std::path::Path;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;

use super::Scenario;
use super::programs::TRUE;
use crate::bench::{Bench, Counts, Entry};
use crate::bwrap::{self, BWRAP};
use crate::error::Error;
use crate::image::BUSYBOX;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "exec-cold",
    title: "A program that does nothing on the embedded engine, whole process",
    counts: Counts { warm_up: 3, samples: 40 },
    measure,
    work: None,
};

/// With an io dir, which is a file system of its own, and without.
const KINDS: [(&str, &[&str]); 2] =
    [("`sandboxctl exec --no-io`", &["--no-io"]), ("`sandboxctl exec`", &[])];

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        if !Path::new(BUSYBOX).exists() {
            let why = format!("no {BUSYBOX}: apt install busybox-static");
            return Ok(vec![Row::missing(KINDS[0].0, why)]);
        }
        let root = bench.folder("exec-cold")?;
        bwrap::root(&root)?;
        let program = root.join("busybox");
        std::fs::copy(BUSYBOX, &program).map_err(Error::file("copy to", &program))?;
        let mut entries = vec![match bench.peers.bwrap.path() {
            Err(why) => Entry::missing(BWRAP, why),
            Ok(bwrap) => {
                Entry::new(BWRAP, || bench.time(bwrap::command(bench, bwrap, &root, TRUE)))
            }
        }];
        entries.extend(KINDS.map(|(what, flags)| match &bench.embedded {
            Err(why) => Entry::missing(what, why),
            Ok(_) => {
                let root = &root;
                Entry::new(what, move || {
                    let mut command = bench.sandboxctl(["exec", "--engine", "embedded"]);
                    command.args(flags).arg("--rootfs").arg(root).arg("--").args(TRUE);
                    bench.time(command)
                })
            }
        }));
        let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
        compare(&mut rows, 1, 0, Some(Target::ratio_at_most(2.4)));
        compare(&mut rows, 2, 0, None);
        Ok(rows)
    }
    .boxed_local()
}
