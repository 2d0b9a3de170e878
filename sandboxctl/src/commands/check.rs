//! `check`: reports whether a script compiles.

use sandbox_api::Failure;
use sandbox_controller::{CheckReply, CheckWarning, check_script};
use serde::Serialize;

use super::{Context, block_on, hints};
use crate::cli::CheckArgs;
use crate::error::Error;
use crate::input::ScriptArgument;
use crate::{input, render};

#[derive(Serialize)]
struct CheckDocument {
    ok: bool,
    error: Option<Failure>,
    warnings: Vec<CheckWarning>,
}

pub fn check(context: &Context<'_>, args: &CheckArgs) -> Result<u8, Error> {
    let policy = context.settings()?.confinement();
    let script = input::script(ScriptArgument::File(&args.script))?;
    hints::check_language(&script)?;
    let agent = context.environment.agent();
    let checked = block_on(async { Ok(check_script(&script.source, &agent, policy).await?) })?;
    let CheckReply { error, warnings } = checked;
    let code = match &error {
        None => 0,
        Some(error) if error.kind.is_limit() => 120,
        Some(_) => 1,
    };
    if args.json {
        let answer =
            CheckDocument { ok: error.is_none(), error: error.map(Failure::from), warnings };
        context.output.document(&answer)?;
    } else if let Some(error) = error {
        let colour = context.output.stderr_has_colour;
        context.output.block(&render::script_error(&error, &script.name, &script.source, colour));
    } else {
        for CheckWarning { line, message } in warnings {
            context.output.warning(&format!("{}:{line}: {message}", script.name));
        }
    }
    Ok(code)
}
