//! `doctor`: what is in the way of a sandbox, and how to get it out of the way.

use sandbox_controller::{Check, CheckStatus, Controller};

use super::{Context, block_on};
use crate::cli::ReportArgs;
use crate::error::Error;
use crate::signals::Signals;

pub fn doctor(context: &Context<'_>, args: &ReportArgs) -> Result<u8, Error> {
    let settings = context.settings()?;
    let config = context.controller(&settings)?;
    let io_dir = match settings.io_enabled() {
        true => Some(settings.io_dir(&context.environment.working_directory)?),
        false => None,
    };
    let checks = block_on(async {
        Signals::listen()?.guard(Controller::doctor(config, io_dir.as_deref())).await
    })?;
    if args.json {
        context.output.document(&checks)?;
    } else {
        context.output.text(&listing(&checks))?;
    }
    let fails = checks.iter().any(|check| check.status == CheckStatus::Fail);
    Ok(if fails { 125 } else { 0 })
}

fn listing(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Check { id, status, detail, fix } in checks {
        let status = match status {
            CheckStatus::Ok => "ok",
            CheckStatus::Warn => "warn",
            CheckStatus::Fail => "FAIL",
        };
        text.push_str(&format!("{status:<4}  {id:<width$}  {detail}\n"));
        if let Some(fix) = fix {
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
        insta::assert_snapshot!(listing(&checks), @r"
        ok    endpoint  seen
        FAIL  disk      seen
                        fix: make room
        ");
    }
}
