//! A program that does nothing, in an image of one file: `sandboxctl exec` compared with `docker
//! run` of the same image, whole processes; and one more program in a running sandbox compared with
//! `docker exec`.

use std::path::Path;
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::{RootFs, SandboxSpec};
use sandbox_controller::{Command, Controller, Sandbox};

use super::Scenario;
use crate::bench::{Bench, Counts, Entry, Here};
use crate::container::Plain;
use crate::engines::On;
use crate::error::Error;
use crate::image::{BUSYBOX, Image};
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "exec",
    title: "A program that does nothing",
    counts: Counts { warm_up: 5, samples: 40 },
    measure,
    work: None,
};

const RUN: &str = "`docker run --rm IMAGE true`";
const EXEC: &str = "`docker exec CONTAINER true`";
/// How many programs one after another are measured for each by turns.
const BACK_TO_BACK: usize = 5;
/// The program, which is in every root.
pub const TRUE: [&str; 2] = ["/busybox", "true"];

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        if !Path::new(BUSYBOX).exists() {
            let why = format!("no {BUSYBOX}: apt install busybox-static");
            return Ok(vec![Row::missing(RUN, why)]);
        }
        let root = bench.folder("exec")?;
        let program = root.join("busybox");
        std::fs::copy(BUSYBOX, &program).map_err(Error::file("copy to", &program))?;
        let image = Image::import(bench, &root).await?;
        let plain = Plain::start(bench, &bench.folder("exec-plain")?).await?;
        let rows = bench
            .with_engines(async |docker, embedded| {
                let launch = async |engine: Here<'_, Controller>, root: Option<RootFs>| {
                    let (Ok(engine), Some(root)) = (engine, root) else { return Ok(None) };
                    Ok::<_, Error>(Some(engine.launch(SandboxSpec::new().root(root)).await?))
                };
                let docker = launch(docker, image.as_ref().ok().map(Image::root)).await?;
                let embedded = launch(embedded, Some(RootFs::Directory(root.clone()))).await?;
                let rows = by_turns(bench, counts, &root, &image, &plain, [&docker, &embedded]);
                let rows = rows.await;
                for sandbox in [docker, embedded].into_iter().flatten() {
                    sandbox.close().await?;
                }
                rows
            })
            .await;
        if let Ok(plain) = plain {
            plain.remove().await?;
        }
        if let Ok(image) = image {
            image.remove().await?;
        }
        let mut rows = rows?;
        compare(&mut rows, 1, 0, Some(Target::ratio_at_most(0.39)));
        compare(&mut rows, 2, 0, Some(Target::ratio_at_most(0.1)));
        compare(&mut rows, 4, 3, None);
        compare(&mut rows, 5, 3, None);
        Ok(rows)
    }
    .boxed_local()
}

async fn by_turns(
    bench: &Bench,
    counts: Counts,
    root: &Path,
    image: &Result<Image<'_>, String>,
    plain: &Result<Plain<'_>, String>,
    sandboxes: [&Option<Sandbox>; 2],
) -> Result<Vec<Row>, Error> {
    let mut entries = Vec::new();
    match image {
        Ok(image) => {
            entries.push(Entry::new(RUN, || {
                let mut run = image.docker(["run", "--rm", "--network", "none"]);
                run.args(["--log-driver", "none", "--label", &bench.label(), &image.name]);
                run.args(TRUE);
                bench.time(run)
            }));
            entries.push(cold(bench, On::Docker, ["--image".to_owned(), image.name.clone()]));
        }
        Err(why) => {
            entries.push(Entry::missing(RUN, why.clone()));
            entries.push(Entry::missing(exec_on(On::Docker), why.clone()));
        }
    }
    entries.push(match &bench.embedded {
        Ok(_) => cold(bench, On::Embedded, ["--rootfs".to_owned(), root.display().to_string()]),
        Err(why) => Entry::missing(exec_on(On::Embedded), why.clone()),
    });
    entries.push(match plain {
        Ok(plain) => Entry::new(EXEC, || bench.time(plain.exec(["true"]))),
        Err(why) => Entry::missing(EXEC, why.clone()),
    });
    for (on, sandbox) in [On::Docker, On::Embedded].into_iter().zip(sandboxes) {
        let what = format!("{on}: one more in an open sandbox");
        entries.push(match sandbox {
            Some(sandbox) => Entry::new(what, move || warm(sandbox)),
            None => Entry::missing(what, "there is no sandbox on it"),
        });
    }
    let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
    // One sandbox at a time, as a program uses it.
    for (on, sandbox) in [On::Docker, On::Embedded].into_iter().zip(sandboxes) {
        let what = format!("{on}: one after another in an open sandbox");
        let Some(sandbox) = sandbox else { continue };
        let mut times = Vec::new();
        for turn in 0..counts.warm_up + BACK_TO_BACK * counts.samples {
            bench.check()?;
            let took = warm(sandbox).await?;
            if turn >= counts.warm_up {
                times.push(took);
            }
        }
        let most = match on {
            On::Docker => 1.5e-3,
            On::Embedded => 1e-3,
        };
        rows.push(Row::figure(what, Unit::Seconds, times).target(Target::median_at_most(most)));
    }
    Ok(rows)
}

fn exec_on(on: On) -> String {
    format!("`sandboxctl exec`, {on}")
}

/// A sandbox of its own, from the command line.
fn cold(bench: &Bench, on: On, root: [String; 2]) -> Entry<'_> {
    Entry::new(exec_on(on), move || {
        let mut command = bench.sandboxctl(["exec", "--engine", &on.to_string()]);
        command.args(&root).arg("--").args(TRUE);
        bench.time(command)
    })
}

async fn warm(sandbox: &Sandbox) -> Result<f64, Error> {
    let started = Instant::now();
    let result = sandbox.run(Command::new(TRUE[0]).arg(TRUE[1])).await?;
    let took = started.elapsed();
    match result.command_exit_code() {
        Some(0) => Ok(took.as_secs_f64()),
        _ => Err(Error::Outcome(format!("{:?}", result.outcome))),
    }
}
