//! P1: `sandboxctl run` on Docker, compared with `docker run` of the same image.
//!
//! Both are whole processes, and both make a container, start it, wait for its end and remove it.
//! The container of `docker run` is that of the same image with the same entrypoint, in its mode
//! `check`: it confines itself, compiles the empty script that its stdin is, and ends. So the
//! peer's container does about what ours does; ours has the hardening and a session besides.

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;

use super::Scenario;
use crate::bench::{Bench, Counts, Entry};
use crate::error::Error;
use crate::peers::CHECK;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p1",
    title: "A cold run on Docker, whole process",
    counts: Counts { warm_up: 3, samples: 30 },
    measure,
    work: None,
};

/// The entry `docker run`, which other scenarios compare with too.
pub fn docker_run(bench: &Bench) -> Entry<'_> {
    let what = "`docker run`";
    match (bench.peers.docker.path(), &bench.docker) {
        (Ok(docker), Ok(engine)) => Entry::new(what, move || {
            let image = engine.image.as_deref().unwrap_or_default();
            bench.time(bench.docker_run(docker, image, CHECK))
        }),
        (Err(why), _) => Entry::missing(what, why),
        (_, Err(why)) => Entry::missing(what, why),
    }
}

/// Writes the script that is run.
pub fn script(bench: &Bench, folder: &str) -> Result<std::path::PathBuf, Error> {
    let path = bench.folder(folder)?.join("one.luau");
    std::fs::write(&path, "return 1\n").map_err(Error::file("write", &path))?;
    Ok(path)
}

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let script = script(bench, "p1")?;
        let ours = match &bench.docker {
            Ok(_) => Entry::new("`sandboxctl run`", || {
                let mut command = bench.sandboxctl(["run", "--engine", "docker"]);
                command.arg(&script);
                bench.time(command)
            }),
            Err(why) => Entry::missing("`sandboxctl run`", why),
        };
        let mut rows = bench.by_turns(counts, Unit::Seconds, vec![docker_run(bench), ours]).await?;
        compare(&mut rows, 1, 0, Some(Target::ratio_at_most(0.38)));
        Ok(rows)
    }
    .boxed_local()
}
