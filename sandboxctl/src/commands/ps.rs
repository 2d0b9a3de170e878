//! `ps`: lists the containers of sandboxes.

use std::time::SystemTime;

use sandbox_controller::Reaper;

use super::Context;
use super::serve::own::Place;
use crate::cli::PsArgs;
use crate::error::Error;
use crate::render::listing;

pub fn ps(context: &Context<'_>, args: &PsArgs) -> Result<u8, Error> {
    let sandboxes = context.with_reaper(Reaper::ps)?;
    context.output.show(args.json, &sandboxes, |width| match args.quiet {
        true => sandboxes.iter().map(|sandbox| format!("{}\n", sandbox.id)).collect(),
        false => listing::containers(&sandboxes, SystemTime::now(), width),
    })?;
    let is_read_by_people = !args.json && !args.quiet;
    // Those that are stopped have no container, and a user of Docker looks for them here.
    if is_read_by_people && Place::of(&context.environment).is_served().unwrap_or(false) {
        context.output.notice("`sandboxctl sandbox ls` lists kept sandboxes, stopped ones too");
    }
    Ok(0)
}
