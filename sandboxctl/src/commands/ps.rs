//! `ps`: lists the containers of sandboxes.

use std::time::SystemTime;

use sandbox_controller::{Reaper, SandboxState, SandboxSummary};

use super::Context;
use crate::cli::ReportArgs;
use crate::error::Error;
use crate::render;

pub fn ps(context: &Context<'_>, args: &ReportArgs) -> Result<u8, Error> {
    let sandboxes = context.with_reaper(Reaper::ps)?;
    if args.json {
        context.output.document(&sandboxes)?;
    } else {
        context.output.text(&listing(&sandboxes))?;
    }
    Ok(0)
}

/// Sandboxes as a table, also for `gc`.
pub(super) fn listing(sandboxes: &[SandboxSummary]) -> String {
    let now = SystemTime::now();
    let rows: Vec<_> = sandboxes
        .iter()
        .map(|sandbox| {
            let since = now.duration_since(sandbox.created).unwrap_or_default();
            let expires = match sandbox.expires.duration_since(now) {
                Ok(left) => format!("in {}", render::age(left)),
                Err(_) => "over".to_owned(),
            };
            let state = match sandbox.state {
                SandboxState::Running => "running",
                SandboxState::Leftover => "leftover",
                SandboxState::Unknown => "unknown",
            };
            [
                sandbox.id.clone(),
                sandbox.engine.to_string(),
                sandbox.container.chars().take(12).collect(),
                state.to_owned(),
                sandbox.instance.clone(),
                format!("{} ago", render::age(since)),
                expires,
            ]
        })
        .collect();
    render::table(["ID", "ENGINE", "CONTAINER", "STATE", "INSTANCE", "CREATED", "EXPIRES"], &rows)
}
