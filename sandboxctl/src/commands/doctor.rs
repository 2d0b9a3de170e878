//! `doctor`: diagnoses the environment, or the database of a cluster, and suggests fixes.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use sandbox_api::PrivateIo;
use sandbox_controller::{Check, CheckStatus};
use sandbox_store::{DatabaseConfig, DatabaseReport, Standbys, Store, StoreError};

use super::{Context, database, guarded};
use crate::ci::{CiMode, Runner};
use crate::cli::DoctorArgs;
use crate::error::{Error, causes};
use crate::input;
use crate::render::{self, escaped_line};

pub fn doctor(context: &Context<'_>, args: &DoctorArgs) -> Result<u8, Error> {
    if args.database.is_named() {
        let report = match Store::report(&database::required(context, &args.database)?) {
            // Its own hint is this command.
            Err(error @ StoreError::Unavailable(_)) => {
                let fix = "try the same URL with psql; look at the server, its pg_hba.conf and the network";
                return show(context, args, &[Check::fail("connection", causes(&error), fix)]);
            }
            report => report?,
        };
        return show(context, args, &database_checks(&report));
    }
    let settings = context.settings()?;
    let config = context.controller(&settings);
    let io_dir = settings
        .io_enabled()
        .then(|| settings.io_dir(&context.environment.working_directory).map_err(Error::from))
        .transpose();
    let usable = io_dir.as_ref().ok().and_then(Option::as_deref);
    let is_private = settings.io_enabled() && settings.private_io() == Some(PrivateIo::Memory);
    let examined = sandbox_controller::examine(config, usable, is_private);
    let mut checks = guarded(async { Ok(examined.await) })?;
    if let Err(error) = &io_dir {
        let (detail, fix) = (error.message(), error.hint());
        checks.push(Check { id: "io_dir", status: CheckStatus::Fail, detail, fix });
    }
    if args.ci {
        checks.extend(ci_checks(context));
    }
    show(context, args, &checks)
}

/// Prints the checks, and returns the exit code.
fn show(context: &Context<'_>, args: &DoctorArgs, checks: &[Check]) -> Result<u8, Error> {
    if args.json {
        context.output.document(&checks)?;
    } else {
        let colour = context.output.stdout_has_colour;
        context.output.write(listing(checks, colour).as_bytes())?;
        let usage = match args.database.is_named() {
            true => "ready: sandboxctl serve --database URL",
            false => "ready: sandboxctl run -c 'return 6 * 7'",
        };
        context.output.text(&format!("\n{}\n", verdict(checks, usage)))?;
    }
    let fails = checks.iter().any(|check| check.status == CheckStatus::Fail);
    Ok(if fails { 125 } else { 0 })
}

/// What a job needs in addition to what every sandbox needs.
fn ci_checks(context: &Context<'_>) -> Vec<Check> {
    let variable = |name: &str| context.environment.variable(name);
    let runner = CiMode::Auto.runner(variable);
    let mut checks = vec![match runner {
        Some(Runner::GitHub) => Check::ok("runner", "GitHub Actions"),
        Some(Runner::GitLab) => Check::ok("runner", "GitLab CI"),
        None => Check::warn(
            "runner",
            "no variable names a runner whose log has commands",
            "--ci github or --ci gitlab names one",
        ),
    }];
    let files = [("summary", "GITHUB_STEP_SUMMARY"), ("outputs", "GITHUB_OUTPUT")];
    for (id, name) in files.into_iter().filter(|_| runner == Some(Runner::GitHub)) {
        let Some(file) = variable(name) else {
            let fix = format!("pass {name} on to the step");
            checks.push(Check::warn(id, format!("{name} is not set"), &fix));
            continue;
        };
        let shown = file.to_string_lossy();
        checks.push(match File::options().append(true).create(true).open(file) {
            Ok(_) => Check::ok(id, shown),
            Err(error) => Check::fail(
                id,
                format!("{shown}: {}", input::reason(&error)),
                &format!("pass {name} and its file on to the step's container"),
            ),
        });
    }
    let is_container =
        ["/.dockerenv", "/run/.containerenv"].iter().any(|it| Path::new(it).exists());
    checks.push(match is_container {
        false => Check::ok("container", "the job is in no container"),
        true => Check::warn(
            "container",
            "the job is in a container, and an engine outside mounts directories of its own machine",
            "mount the checkout and /var/tmp at the paths that they have there",
        ),
    });
    checks
}

/// The oldest version of PostgreSQL that the statements are for.
const OLDEST_POSTGRES: u64 = 14;
/// Connections of a node that do not read.
const OTHER_CONNECTIONS: u64 = 4;
/// A transaction that is open for longer keeps rows that every claim must pass over.
const OLD_SNAPSHOT: Duration = Duration::from_secs(600);
/// A commit that takes longer is felt: each execution waits for two.
const SLOW_COMMIT: Duration = Duration::from_millis(50);
/// Times of tokens are compared with clocks of nodes.
const CLOCK_DIFFERENCE_MS: u64 = 2000;

/// What the database of a cluster must be, and what it should be.
fn database_checks(report: &DatabaseReport) -> Vec<Check> {
    let DatabaseReport { version, cluster, known_schema, standbys, unsafe_settings, .. } = report;
    let DatabaseReport { max_connections, connections, oldest_snapshot, commit, .. } = report;
    let major =
        version.split(|it: char| !it.is_ascii_digit()).next().and_then(|it| it.parse().ok());
    let version = format!("PostgreSQL {version}");
    let mut checks = vec![match major {
        Some(OLDEST_POSTGRES..) => Check::ok("version", version),
        _ => Check::fail("version", version, "use PostgreSQL 14 or newer"),
    }];
    checks.push(match cluster {
        None => Check::warn("tables", "there are none", "`sandboxctl database init` makes them"),
        Some((id, found)) if found == known_schema => {
            Check::ok("tables", format!("version {found}, of the cluster {id}"))
        }
        Some((_, found)) => Check::fail(
            "tables",
            format!("version {found}; this program uses {known_schema}"),
            match found < known_schema {
                true => "`sandboxctl database migrate` changes them",
                false => "use the program of the version that changed them",
            },
        ),
    });
    checks.push(match standbys {
        Standbys::Synchronous(1..) => Check::ok("standby", "a commit waits for a standby"),
        Standbys::Hidden => Check::warn(
            "standby",
            "synchronous standbys are named, but this user may not see whether one is connected",
            "GRANT pg_monitor to the user of the nodes",
        ),
        Standbys::Synchronous(0) => Check::fail(
            "standby",
            "commits wait for a standby, and none is connected",
            "connect one, or clear synchronous_standby_names",
        ),
        Standbys::None => Check::warn(
            "standby",
            "a commit waits for no standby: what was acknowledged is lost with this server",
            "set synchronous_standby_names, if the loss of a server must lose nothing",
        ),
    });
    checks.push(match &**unsafe_settings {
        [] => Check::ok("durability", "a commit is on the disk"),
        settings => Check::fail(
            "durability",
            settings.join(", "),
            "set them to on: what was acknowledged can be lost",
        ),
    });
    let warn_if = |is_bad: bool, id, detail: String, fix: &str| match is_bad {
        true => Check::warn(id, detail, fix),
        false => Check::ok(id, detail),
    };
    let node = DatabaseConfig::CONNECTIONS as u64 + OTHER_CONNECTIONS;
    checks.push(warn_if(
        max_connections.saturating_sub(*connections) < node,
        "connections",
        format!("{connections} of {max_connections}; a node has up to {node}"),
        "raise max_connections, or lower server.database_connections",
    ));
    checks.push(warn_if(
        *oldest_snapshot > OLD_SNAPSHOT,
        "snapshots",
        format!("the oldest transaction is open for {}", render::age(*oldest_snapshot)),
        "end it: pg_stat_activity shows whose it is",
    ));
    if let Some(commit) = commit {
        checks.push(warn_if(
            *commit > SLOW_COMMIT,
            "commit",
            format!("half of them take {:.1} ms at most", commit.as_secs_f64() * 1000.0),
            "look at the disk of the server, its standby, and the way there",
        ));
    }
    let clock = report.clock_ahead_ms;
    checks.push(warn_if(
        clock.unsigned_abs() > CLOCK_DIFFERENCE_MS,
        "clock",
        format!("{clock} ms ahead of this machine's"),
        "synchronise the clocks: the validity of tokens is judged by those of the nodes",
    ));
    checks
}

/// Whether all is as it must be, in one line.
fn verdict(checks: &[Check], ready: &str) -> String {
    let names = |status: CheckStatus| {
        let found = checks.iter().filter(|check| check.status == status);
        found.map(|check| check.id).collect::<Vec<_>>().join(", ")
    };
    match (names(CheckStatus::Fail), names(CheckStatus::Warn)) {
        (fails, _) if !fails.is_empty() => format!("not ready: see {fails}"),
        (_, warns) if !warns.is_empty() => format!("ready, with warnings: see {warns}"),
        _ => ready.to_owned(),
    }
}

fn listing(checks: &[Check], colour: bool) -> String {
    let width = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Check { id, status, detail, fix } in checks {
        let (word, style) = match status {
            CheckStatus::Ok => ("ok", AnsiColor::Green.on_default()),
            CheckStatus::Warn => ("warn", AnsiColor::Yellow.on_default()),
            CheckStatus::Fail => ("FAIL", AnsiColor::Red.on_default().bold()),
        };
        let style = if colour { style } else { Style::new() };
        // The names of the engine and the disk are external text.
        let detail = escaped_line(detail);
        text.push_str(&format!("{style}{word:<4}{style:#}  {id:<width$}  {detail}\n"));
        if let Some(fix) = fix {
            let fix = escaped_line(fix);
            text.push_str(&format!("{:<4}  {:<width$}  fix: {fix}\n", "", ""));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_stands_below_what_it_mends() {
        let check = |id, status, fix: Option<&str>| Check {
            id,
            status,
            detail: "seen".into(),
            fix: fix.map(str::to_owned),
        };
        let checks = [
            check("endpoint", CheckStatus::Ok, None),
            check("disk", CheckStatus::Fail, Some("make room")),
        ];
        insta::assert_snapshot!(listing(&checks, false), @r"
        ok    endpoint  seen
        FAIL  disk      seen
                        fix: make room
        ");
        assert_eq!(verdict(&checks, "ready"), "not ready: see disk");
        assert_eq!(verdict(&checks[..1], "ready: go on"), "ready: go on");
        let warns = [check("disk", CheckStatus::Warn, None)];
        assert_eq!(verdict(&warns, "ready"), "ready, with warnings: see disk");
        assert!(listing(&checks, true).contains("\u{1b}[1m\u{1b}[31mFAIL\u{1b}[0m  disk"));
    }

    #[test]
    fn database_that_may_lose_what_was_acknowledged_is_reported() {
        let good = DatabaseReport {
            version: "15.14 (Debian 15.14-1)".to_owned(),
            cluster: Some(("6f1c".to_owned(), 1)),
            known_schema: 1,
            standbys: Standbys::Synchronous(1),
            unsafe_settings: Vec::new(),
            max_connections: 100,
            connections: 24,
            oldest_snapshot: Duration::from_secs(3),
            commit: Some(Duration::from_micros(1400)),
            clock_ahead_ms: -3,
        };
        insta::assert_snapshot!(listing(&database_checks(&good), false), @r"
        ok    version      PostgreSQL 15.14 (Debian 15.14-1)
        ok    tables       version 1, of the cluster 6f1c
        ok    standby      a commit waits for a standby
        ok    durability   a commit is on the disk
        ok    connections  24 of 100; a node has up to 12
        ok    snapshots    the oldest transaction is open for 3s
        ok    commit       half of them take 1.4 ms at most
        ok    clock        -3 ms ahead of this machine's
        ");
        let bad = DatabaseReport {
            version: "13.1".to_owned(),
            cluster: Some(("6f1c".to_owned(), 2)),
            standbys: Standbys::None,
            unsafe_settings: vec!["fsync = off".to_owned()],
            connections: 90,
            oldest_snapshot: Duration::from_secs(3600),
            commit: Some(Duration::from_millis(80)),
            clock_ahead_ms: 60_000,
            ..good
        };
        let checks = database_checks(&bad);
        assert!(checks.iter().all(|check| check.fix.is_some()), "{checks:?}");
        let verdict = verdict(&checks, "ready");
        assert_eq!(verdict, "not ready: see version, tables, durability");
    }
}
