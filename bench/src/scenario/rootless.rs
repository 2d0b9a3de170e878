//! `sandboxctl run` as an ordinary user on the embedded engine, compared with `bwrap` as the same user:
//! whole processes.

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;

use super::Scenario;
use crate::bench::{Bench, Counts, Entry};
use crate::bwrap::{self, AGENT, BWRAP};
use crate::error::Error;
use crate::ordinary::Ordinary;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "rootless",
    title: "A cold run on the embedded engine without root, whole process",
    counts: Counts { warm_up: 3, samples: 40 },
    measure,
    work: None,
};

const OURS: &str = "`sandboxctl run`, without root";

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let user = Ordinary::new(bench)?;
        let script = user.folder("rootless")?.join("one.luau");
        std::fs::write(&script, "return 1\n").map_err(Error::file("write", &script))?;
        let root = user.folder("root")?;
        bwrap::root_of_agent(&root)?;
        let run = || {
            let mut command = user.sandboxctl(["run"]);
            command.arg(&script);
            bench.time(command)
        };
        let bwrap = match bench.peers.bwrap.path() {
            Err(why) => Entry::missing(BWRAP, why),
            Ok(bwrap) => {
                let (user, root) = (&user, &root);
                Entry::new(BWRAP, move || {
                    bench.time(user.command(bwrap::command(bench, bwrap, root, AGENT)))
                })
            }
        };
        // A kernel may have no user namespaces for it, and its error says so.
        let ours = match run().await {
            Ok(_) => Entry::new(OURS, run),
            Err(error @ Error::Command { .. }) => Entry::missing(OURS, error.full_message()),
            Err(error) => return Err(error),
        };
        let mut rows = bench.by_turns(counts, Unit::Seconds, vec![bwrap, ours]).await?;
        compare(&mut rows, 1, 0, Some(Target::ratio_at_most(2.5)));
        Ok(rows)
    }
    .boxed_local()
}
