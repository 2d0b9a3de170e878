//! `doctor`: diagnoses the environment and suggests fixes.

use std::fs::File;
use std::path::Path;

use anstyle::{AnsiColor, Style};
use sandbox_api::PrivateIo;
use sandbox_controller::{Check, CheckStatus};

use super::{Context, block_on};
use crate::ci::{CiMode, Runner};
use crate::cli::DoctorArgs;
use crate::error::Error;
use crate::input;
use crate::render::escaped_line;
use crate::signals::Signals;

pub fn doctor(context: &Context<'_>, args: &DoctorArgs) -> Result<u8, Error> {
    let settings = context.settings()?;
    let config = context.controller(&settings);
    let io_dir = settings
        .io_enabled()
        .then(|| settings.io_dir(&context.environment.working_directory).map_err(Error::from))
        .transpose();
    let usable = io_dir.as_ref().ok().and_then(Option::as_deref);
    let is_private = settings.io_enabled() && settings.private_io() == Some(PrivateIo::Memory);
    let mut checks = block_on(async {
        Signals::listen()?.guard(sandbox_controller::examine(config, usable, is_private)).await
    })?;
    if let Err(error) = &io_dir {
        let (detail, fix) = (error.message(), error.hint());
        checks.push(Check { id: "io_dir", status: CheckStatus::Fail, detail, fix });
    }
    if args.ci {
        checks.extend(ci_checks(context));
    }
    if args.json {
        context.output.document(&checks)?;
    } else {
        let colour = context.output.stdout_has_colour();
        context.output.write(listing(&checks, colour).as_bytes())?;
        context.output.text(&format!("\n{}\n", verdict(&checks)))?;
    }
    let fails = checks.iter().any(|check| check.status == CheckStatus::Fail);
    Ok(if fails { 125 } else { 0 })
}

/// What a job needs in addition to what every sandbox needs.
fn ci_checks(context: &Context<'_>) -> Vec<Check> {
    let check = |id, status, detail: &str, fix: Option<&str>| Check {
        id,
        status,
        detail: detail.to_owned(),
        fix: fix.map(str::to_owned),
    };
    let variable = |name: &str| context.environment.variable(name);
    let runner = CiMode::Auto.runner(variable);
    let mut checks = vec![match runner {
        Some(Runner::GitHub) => check("runner", CheckStatus::Ok, "GitHub Actions", None),
        Some(Runner::GitLab) => check("runner", CheckStatus::Ok, "GitLab CI", None),
        None => check(
            "runner",
            CheckStatus::Warn,
            "no variable names a runner whose log has commands",
            Some("--ci github or --ci gitlab names one"),
        ),
    }];
    let files = [("summary", "GITHUB_STEP_SUMMARY"), ("outputs", "GITHUB_OUTPUT")];
    for (id, name) in files.into_iter().filter(|_| runner == Some(Runner::GitHub)) {
        checks.push(
            match variable(name)
                .map(|file| (file, File::options().append(true).create(true).open(file)))
            {
                Some((file, Ok(_))) => check(id, CheckStatus::Ok, &file.to_string_lossy(), None),
                Some((file, Err(error))) => {
                    let detail = format!("{}: {}", file.to_string_lossy(), input::reason(&error));
                    let fix = format!("pass {name} and its file on to the step's container");
                    check(id, CheckStatus::Fail, &detail, Some(&fix))
                }
                None => {
                    let fix = format!("pass {name} on to the step");
                    check(id, CheckStatus::Warn, &format!("{name} is not set"), Some(&fix))
                }
            },
        );
    }
    let is_container =
        ["/.dockerenv", "/run/.containerenv"].iter().any(|it| Path::new(it).exists());
    checks.push(match is_container {
        false => check("container", CheckStatus::Ok, "the job is in no container", None),
        true => check(
            "container",
            CheckStatus::Warn,
            "the job is in a container, and an engine outside mounts directories of its own machine",
            Some("mount the checkout and /var/tmp at the paths that they have there"),
        ),
    });
    checks
}

/// Whether sandboxes can be run, in one line.
fn verdict(checks: &[Check]) -> String {
    let names = |status: CheckStatus| {
        let found = checks.iter().filter(|check| check.status == status);
        found.map(|check| check.id).collect::<Vec<_>>().join(", ")
    };
    match (names(CheckStatus::Fail), names(CheckStatus::Warn)) {
        (fails, _) if !fails.is_empty() => format!("not ready: see {fails}"),
        (_, warns) if !warns.is_empty() => format!("ready, with warnings: see {warns}"),
        _ => "ready: sandboxctl run -c 'return 6 * 7'".to_owned(),
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
        assert_eq!(verdict(&checks), "not ready: see disk");
        assert_eq!(verdict(&checks[..1]), "ready: sandboxctl run -c 'return 6 * 7'");
        let warns = [check("disk", CheckStatus::Warn, None)];
        assert_eq!(verdict(&warns), "ready, with warnings: see disk");
        assert!(listing(&checks, true).contains("\u{1b}[1m\u{1b}[31mFAIL\u{1b}[0m  disk"));
    }
}
