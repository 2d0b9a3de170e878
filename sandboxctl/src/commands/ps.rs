//! `ps`: lists the containers of sandboxes.

use std::time::SystemTime;

use sandbox_api::SandboxSummary;
use sandbox_controller::Reaper;

use super::Context;
use super::serve::own::Place;
use crate::cli::PsArgs;
use crate::error::Error;
use crate::render;

pub fn ps(context: &Context<'_>, args: &PsArgs) -> Result<u8, Error> {
    let sandboxes = context.with_reaper(Reaper::ps)?;
    context.output.show(args.json, &sandboxes, |width| match args.quiet {
        true => sandboxes.iter().map(|sandbox| format!("{}\n", sandbox.id)).collect(),
        false => listing(&sandboxes, width),
    })?;
    let is_read_by_people = !args.json && !args.quiet;
    // Those that are stopped have no container, and a user of Docker looks for them here.
    if is_read_by_people && Place::of(&context.environment).is_served().unwrap_or(false) {
        context.output.notice("`sandboxctl sandbox ls` lists kept sandboxes, stopped ones too");
    }
    Ok(0)
}

/// Sandboxes as a table of this width, also for `gc`.
pub(super) fn listing(sandboxes: &[SandboxSummary], width: Option<usize>) -> String {
    let now = SystemTime::now();
    // The labels of another user's container may contain anything.
    let label = |label: &Option<String>| render::cell(label.as_deref());
    let row = |sandbox: &SandboxSummary| {
        [
            sandbox.id.clone(),
            render::word(sandbox.state),
            render::age(now.duration_since(sandbox.created).unwrap_or_default()),
            sandbox.engine.to_string(),
            label(&sandbox.name),
            label(&sandbox.title),
            label(&sandbox.image),
            label(&sandbox.io_dir),
        ]
    };
    let headings = ["ID", "STATE", "AGE", "ENGINE", "NAME", "RUNS", "IMAGE", "IO DIR"];
    render::table(headings, sandboxes.iter().map(row), width)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbox_api::EngineKind;

    use sandbox_api::SandboxState;

    use super::*;

    #[test]
    fn table_says_what_each_sandbox_is_for() {
        let sandbox = SandboxSummary {
            id: "da2442acca66b731".into(),
            generation: None,
            engine: EngineKind::Docker,
            container: "c".into(),
            instance: "i".into(),
            state: SandboxState::Running,
            created: SystemTime::now() - Duration::from_secs(65),
            expires: SystemTime::now(),
            name: None,
            title: Some("make\n".into()),
            image: Some("debian:13".into()),
            io_dir: Some("/srv/out".into()),
        };
        insta::assert_snapshot!(listing(&[sandbox], None), @r"
        ID                STATE    AGE  ENGINE  NAME  RUNS    IMAGE      IO DIR
        da2442acca66b731  running  1m   docker  -     make\n  debian:13  /srv/out
        ");
    }
}
