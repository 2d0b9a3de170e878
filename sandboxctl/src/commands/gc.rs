//! `gc`: removes leftovers of crashed controllers.

use std::collections::BTreeSet;
use std::time::SystemTime;

use sandbox_api::{Force, GcMode, GcOptions, ProgramImage, SandboxSummary, Stores};

use super::Context;
use crate::cli::GcArgs;
use crate::error::Error;
use crate::render::{self, escaped_line, listing};

pub fn gc(context: &Context<'_>, args: &GcArgs) -> Result<u8, Error> {
    let options = GcOptions {
        mode: if args.dry_run { GcMode::DryRun } else { GcMode::Remove },
        force: if args.force { Force::Yes } else { Force::No },
        stores: if args.all { Stores::All } else { Stores::OtherVersions },
    };
    let report = context.with_reaper(async |reaper| reaper.gc(options).await)?;
    let is_done = report.failed.is_empty() && report.stages_kept.is_empty();
    let code = if is_done { 0 } else { 125 };
    if args.json {
        context.output.document(&report)?;
        return Ok(code);
    }
    let done = if args.dry_run { "would remove" } else { "removed" };
    let count = |count: usize, thing: &str| render::count(count, thing, &format!("{thing}s"));
    let containers = |list: &[SandboxSummary]| count(list.len(), "container");
    let mut text =
        format!("{done} {}, kept {}\n", containers(&report.removed), containers(&report.kept));
    if !(report.archives_removed.is_empty() && report.archives_kept.is_empty()) {
        let archives = |list: &[ProgramImage]| {
            let size = list.iter().map(|archive| archive.size).sum();
            format!("{} ({})", count(list.len(), "unpacked archive"), render::size(size))
        };
        let (removed, kept) = (archives(&report.archives_removed), archives(&report.archives_kept));
        text.push_str(&format!("{done} {removed}, kept {kept}\n"));
    }
    if !report.stores_removed.is_empty() {
        text.push_str(&format!("{done} {}\n", count(report.stores_removed.len(), "program store")));
    }
    let completed = if args.dry_run { "would complete" } else { "completed" };
    let stages = [
        (&report.commits_completed, completed, "commit"),
        (&report.stages_removed, done, "stage"),
        (&report.stages_kept, "could not complete or remove", "stage"),
    ];
    for (stages, done, thing) in stages.into_iter().filter(|(stages, ..)| !stages.is_empty()) {
        let io_dirs: BTreeSet<_> = stages.iter().map(|stage| escaped_line(&stage.io_dir)).collect();
        let io_dirs = io_dirs.into_iter().collect::<Vec<_>>().join(", ");
        text.push_str(&format!("{done} {} of {io_dirs}\n", count(stages.len(), thing)));
    }
    for conflict in &report.commit_conflicts {
        text.push_str(&format!("{}\n", escaped_line(&conflict.to_string())));
    }
    if !report.removed.is_empty() {
        let width = context.output.width();
        text.push_str(&listing::containers(&report.removed, SystemTime::now(), width));
    }
    context.output.text(&text)?;
    if !report.archives_kept.is_empty() {
        context.output.notice(
            "`image rm --programs --all --engine embedded` removes unpacked archives that are not in use",
        );
    }
    for failure in &report.failed {
        let message = format!("cannot remove {}: {}", failure.sandbox.container, failure.reason);
        context.output.failure(&message, None);
    }
    for advice in report.stages_kept.iter().filter_map(|stage| stage.advice()) {
        context.output.failure(&advice, None);
    }
    Ok(code)
}
