//! `gc`: removes leftovers of crashed controllers.

use sandbox_api::{Force, GcMode, GcOptions};

use super::{Context, ps::listing};
use crate::cli::GcArgs;
use crate::error::Error;

pub fn gc(context: &Context<'_>, args: &GcArgs) -> Result<u8, Error> {
    let options = GcOptions {
        mode: if args.dry_run { GcMode::DryRun } else { GcMode::Remove },
        force: if args.force { Force::Yes } else { Force::No },
    };
    let report = context.with_reaper(async |reaper| reaper.gc(options).await)?;
    let code = if report.failed.is_empty() { 0 } else { 125 };
    if args.json {
        context.output.document(&report)?;
        return Ok(code);
    }
    let done = if args.dry_run { "would remove" } else { "removed" };
    let count = |count: usize| {
        if count == 1 { "1 container".into() } else { format!("{count} containers") }
    };
    let mut text =
        format!("{done} {}, kept {}\n", count(report.removed.len()), count(report.kept.len()));
    if !report.removed.is_empty() {
        text.push_str(&listing(&report.removed, context.output.width()));
    }
    context.output.text(&text)?;
    for failure in &report.failed {
        let message = format!("cannot remove {}: {}", failure.sandbox.container, failure.reason);
        context.output.failure(&message, None);
    }
    Ok(code)
}
