//! Staged io dirs: the cost of a change manifest and a commit, compared with runs in place and `cp
//! -a`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::changes::CommitPolicy;
use sandbox_api::{Limits, SandboxSpec, Script};
use sandbox_controller::{Controller, FinishOptions};

use super::Scenario;
use super::cold_run::script;
use crate::bench::{Bench, Counts, Entry};
use crate::engines::{On, ended_well};
use crate::error::Error;
use crate::report::{Measurement, Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "changes",
    title: "Change manifests and commits",
    counts: Counts { warm_up: 2, samples: 20 },
    measure,
    work: None,
};

/// Files of a large change.
const MANY: usize = 10_000;
/// Ten files that every tree has.
const EDIT: &str = "for i = 1, 10 do fs.write('0/' .. i, 'changed') end";
const REPLACE: &str =
    "for d = 0, 9 do for i = 0, 999 do fs.write(d .. '/' .. i, 'changed') end end";
const CREATE: &str = "for i = 1, 10000 do fs.write('new/' .. i, 'content') end";

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let mut rows = cold(bench, counts).await?;
        let engine = match (&bench.embedded, &bench.docker) {
            (Ok(_), _) => On::Embedded,
            (Err(_), Ok(_)) => On::Docker,
            (Err(why), Err(_)) => return Ok(vec![Row::missing("changes", why)]),
        };
        let few = bench.folder("changes-few")?;
        let many = bench.folder("changes-many")?;
        let replaced = bench.folder("changes-replaced")?;
        plant(&few, 11)?;
        plant(&many, 100_000)?;
        plant(&replaced, MANY)?;
        let created = bench.folder("changes-created")?;
        fs::create_dir(created.join("new")).map_err(Error::file("make", &created))?;
        let found = bench.engines.with_controller(engine, async |controller| {
            let mut rows = among(bench, counts, controller, [&few, &many]).await?;
            rows.extend(large(bench, counts, controller, [&replaced, &created]).await?);
            Ok(rows)
        });
        rows.extend(found.await?);
        Ok(rows)
    }
    .boxed_local()
}

/// Whole processes, in place and staged.
async fn cold(bench: &Bench, counts: Counts) -> Result<Vec<Row>, Error> {
    let script = script(bench, "changes")?;
    let mut rows = Vec::new();
    for (engine, usable) in [("embedded", &bench.embedded), ("docker", &bench.docker)] {
        let entry = |what: String, flags: &'static [&'static str]| match usable {
            Err(why) => Entry::missing(what, why),
            Ok(_) => {
                let script = &script;
                Entry::new(what, move || {
                    let mut command = bench.sandboxctl(["run", "--engine", engine]);
                    command.args(flags).arg(script);
                    bench.time(command)
                })
            }
        };
        let staged = &["--commit", "on-success"];
        let pair = vec![
            entry(format!("`run` on {engine}"), &[]),
            entry(format!("`run --commit on-success` on {engine}"), staged),
        ];
        let mut pair = bench.by_turns(counts, Unit::Seconds, pair).await?;
        compare(&mut pair, 1, 0, Some(Target::ratio_at_most(1.15)));
        rows.append(&mut pair);
    }
    Ok(rows)
}

/// Ten changes of a small tree and of a large one, from the launch to the end.
async fn among(
    bench: &Bench,
    counts: Counts,
    controller: &Controller,
    [few, many]: [&PathBuf; 2],
) -> Result<Vec<Row>, Error> {
    let entry = |what, io_dir| {
        Entry::new(what, move || async move {
            let started = Instant::now();
            finish(controller, io_dir, EDIT, CommitPolicy::Never).await?;
            Ok(started.elapsed().as_secs_f64())
        })
    };
    let entries = vec![
        entry("10 changes among 11 files", few),
        entry("10 changes among 100,000 files", many),
    ];
    let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
    let more = minus(&rows[1], &rows[0], "what 100,000 files add", Some(0.005));
    rows.extend(more);
    Ok(rows)
}

/// Ten thousand changes, listed and committed.
async fn large(
    bench: &Bench,
    counts: Counts,
    controller: &Controller,
    [replaced, created]: [&PathBuf; 2],
) -> Result<Vec<Row>, Error> {
    let copy = bench.folder("changes-copied")?.join("copy");
    let entries = vec![
        Entry::new("`cp -a` of 10,000 files", || async {
            let mut command = bench.command(Path::new("cp"), ["-a"]);
            command.arg(replaced).arg(&copy);
            let took = bench.time(command).await?;
            fs::remove_dir_all(&copy).map_err(Error::file("remove", &copy))?;
            Ok(took)
        }),
        Entry::new("manifest of 10,000 changed files", || {
            finish(controller, replaced, REPLACE, CommitPolicy::Never)
        }),
        Entry::new(
            "manifest and commit of 10,000 changed files, and removal of the old ones",
            || finish(controller, replaced, REPLACE, CommitPolicy::Always),
        ),
        Entry::new("manifest of 10,000 new files", || {
            finish(controller, created, CREATE, CommitPolicy::Never)
        }),
        Entry::new("manifest and commit of 10,000 new files", || async {
            let took = finish(controller, created, CREATE, CommitPolicy::Always).await?;
            let new = created.join("new");
            fs::remove_dir_all(&new).map_err(Error::file("remove", &new))?;
            fs::create_dir(&new).map_err(Error::file("make", &new))?;
            Ok(took)
        }),
    ];
    let counts = Counts { warm_up: counts.warm_up.min(1), samples: counts.samples };
    let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
    let commit = minus(&rows[4], &rows[3], "the commit of 10,000 new files", None);
    let with_removal =
        minus(&rows[2], &rows[1], "the commit of 10,000 changed files, and the removal", None);
    set_target(&mut rows[1], Target::median_at_most(2.0));
    for (row, target) in [(with_removal, None), (commit, Some(Target::ratio_at_most(1.0)))] {
        rows.extend(row);
        let last = rows.len() - 1;
        compare(&mut rows, last, 0, target);
    }
    Ok(rows)
}

/// Runs a script on a staged io dir, and gives the seconds from its end to that of the changes. The end
/// of the container is part of them, its removal is not.
async fn finish(
    controller: &Controller,
    io_dir: &Path,
    source: &str,
    commit: CommitPolicy,
) -> Result<f64, Error> {
    let entries = std::num::NonZeroU32::MIN.saturating_add(50_000);
    let limits = Limits { entries, ..Limits::default() };
    let spec = SandboxSpec::new().io_dir(io_dir).limits(limits).staged();
    let sandbox = controller.launch(spec).await?;
    let run = sandbox.run(Script::new(source)).await?;
    ended_well(&run)?;
    let started = Instant::now();
    let options = FinishOptions { commit, ..FinishOptions::default() };
    sandbox.finish(options, &run.outcome).await?;
    let took = started.elapsed().as_secs_f64();
    // The next one is not measured beside its removal.
    sandbox.close().await?;
    Ok(took)
}

/// Files in directories of a thousand.
fn plant(folder: &Path, count: usize) -> Result<(), Error> {
    for number in 0..count {
        let directory = folder.join((number / 1000).to_string());
        if number % 1000 == 0 {
            fs::create_dir(&directory).map_err(Error::file("make", &directory))?;
        }
        let file = directory.join((number % 1000).to_string());
        fs::write(&file, "content").map_err(Error::file("write", &file))?;
    }
    Ok(())
}

/// How much longer one took than the other, in each round.
fn minus(this: &Row, that: &Row, what: &str, at_most: Option<f64>) -> Option<Row> {
    let (Measurement::Figure(this), Measurement::Figure(that)) = (&this.found, &that.found) else {
        return None;
    };
    let samples = std::iter::zip(&this.samples, &that.samples).map(|(this, that)| this - that);
    let mut row = Row::figure(what, Unit::Seconds, samples.collect());
    if let Some(bound) = at_most {
        set_target(&mut row, Target::median_at_most(bound));
    }
    Some(row)
}

fn set_target(row: &mut Row, target: Target) {
    if let Measurement::Figure(figure) = &mut row.found {
        figure.target = Some(target);
    }
}
