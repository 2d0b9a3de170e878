//! `completions` and `man`, made from the definition of the command line.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use super::Context;
use crate::cli::Cli;
use crate::error::Error;

pub fn completions(context: &Context<'_>, shell: clap_complete::Shell) -> Result<u8, Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sandboxctl", &mut script);
    context.output.write(&script)?;
    Ok(0)
}

pub fn man(context: &Context<'_>, dir: Option<&Path>) -> Result<u8, Error> {
    if let Some(dir) = dir {
        fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
            .map_err(|error| Error::usage("--dir", format!("{}: {error}", dir.display())))?;
        return Ok(0);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command())
        .render(&mut page)
        .map_err(|source| Error::Stdout { source })?;
    context.output.write(&page)?;
    Ok(0)
}
