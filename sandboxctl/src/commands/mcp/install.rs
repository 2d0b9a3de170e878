//! `mcp install`: the server's entry in the configuration of a client.

use std::path::{Component, Path, PathBuf};

use crate::cli::mcp::InstallArgs;
use crate::clients::Entry;
use crate::commands::Context;
use crate::error::Error;

pub fn install(context: &Context<'_>, args: &InstallArgs) -> Result<u8, Error> {
    let here = &context.environment.working_directory;
    let io_dir = args.io_dir.as_deref().unwrap_or_else(|| Path::new("sandbox-files"));
    let io_dir = absolute(here, io_dir);
    let Some(io_dir) = io_dir.to_str() else {
        return Err(Error::usage("--io-dir", "the path is not UTF-8 text"));
    };
    let program = std::env::current_exe()
        .map_err(|source| Error::System { what: "the path of sandboxctl".to_owned(), source })?;
    let Some(program) = program.to_str() else {
        return Err(Error::usage("sandboxctl", "its path is not UTF-8 text"));
    };
    let mut arguments = vec!["mcp".to_owned(), "--io-dir".to_owned(), io_dir.to_owned()];
    arguments.extend(args.flags.iter().cloned());
    let entry = Entry { name: &args.name, program, arguments: &arguments };
    let home = context.environment.path("HOME").ok_or_else(|| {
        Error::usage("HOME", "it is not set, and clients have their configuration there")
    })?;
    let config = context.environment.path("XDG_CONFIG_HOME");
    let file = args.client.file(&home, config.as_deref());
    if args.print {
        context.output.notice(&format!("in {}:", file.display()));
        context.output.text(&args.client.text(&entry))?;
        return Ok(0);
    }
    let written = args.client.install(&file, &entry);
    let written = written.map_err(|error| {
        Error::usage(file.display().to_string(), error.to_string()).with_hint(error.hint())
    })?;
    context.output.text(&format!("{}\n", file.display()))?;
    if let Some(backup) = written.backup {
        context.output.notice(&format!("the file as it was is {}", backup.display()));
    }
    context.output.notice("restart the client, or reload its servers");
    Ok(0)
}

/// A path without `.`, below the working directory if it is relative.
fn absolute(here: &Path, path: &Path) -> PathBuf {
    here.join(path).components().filter(|part| *part != Component::CurDir).collect()
}
