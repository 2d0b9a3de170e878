//! `mcp install`: the server's entry in the configuration of a client.

use std::path::{Component, Path, PathBuf};

use clap::error::ErrorKind;

use crate::cli::mcp::{InstallArgs, McpArgs};
use crate::cli::{Cli, Command, Global};
use crate::clients::Entry;
use crate::commands::Context;
use crate::config::Value;
use crate::error::Error;

pub fn install(context: &Context<'_>, args: &InstallArgs) -> Result<u8, Error> {
    let here = &context.environment.working_directory;
    let program = std::env::current_exe()
        .map_err(|source| Error::System { what: "the path of sandboxctl".to_owned(), source })?;
    let Some(program) = program.to_str() else {
        return Err(Error::usage("sandboxctl", "its path is not UTF-8 text"));
    };
    let arguments = arguments(here, context.global, args)?;
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

/// The arguments of the server: those that start it.
fn arguments(here: &Path, global: &Global, args: &InstallArgs) -> Result<Vec<String>, Error> {
    let mut flags = Vec::new();
    let mut add_path = |flag: &str, path: &Path| {
        let path = absolute(here, path).into_os_string();
        let path = path.into_string().map_err(|_| Error::usage(flag, "it is not UTF-8 text"))?;
        flags.extend([flag.to_owned(), path]);
        Ok::<_, Error>(())
    };
    let default = (!server(&args.flags)?.no_io).then(|| Path::new("sandbox-files"));
    if let Some(io_dir) = args.io_dir.as_deref().or(default) {
        add_path("--io-dir", io_dir)?;
    }
    if let Some(file) = &global.config {
        add_path("--config", file)?;
    }
    for (_, value, flag) in global.flags().values {
        let Value::Text(text) = value else { continue };
        flags.extend([flag.to_owned(), text]);
    }
    flags.extend(args.flags.iter().cloned());
    server(&flags)?;
    flags.insert(0, "mcp".to_owned());
    Ok(flags)
}

/// The server that these flags start.
fn server(flags: &[String]) -> Result<McpArgs, Error> {
    let refuse = |why: &str| {
        let hint = "`sandboxctl mcp --help` lists the flags of the server";
        Error::usage("the server's flags", why).with_hint(hint)
    };
    let words = ["sandboxctl", "mcp"].into_iter().chain(flags.iter().map(String::as_str));
    match Cli::read(words) {
        Ok(Cli { command: Command::Mcp(args), .. }) if args.command.is_none() => {
            Ok(args.into_inner())
        }
        Err(error)
            if !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            Err(refuse(line.strip_prefix("error: ").unwrap_or(line)))
        }
        _ => Err(refuse("they start no server")),
    }
}

/// A path without `.`, below the working directory if it is relative.
fn absolute(here: &Path, path: &Path) -> PathBuf {
    here.join(path).components().filter(|part| *part != Component::CurDir).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::mcp::McpCommand;

    /// The arguments that an `install` in `/here` writes.
    fn written(flags: &str) -> Result<String, String> {
        let line = format!("sandboxctl mcp install --client cursor {flags}");
        let Cli { global, command } = Cli::read(line.split_whitespace()).unwrap();
        let Command::Mcp(args) = command else { panic!("{command:?}") };
        let Some(McpCommand::Install(args)) = args.into_inner().command else { panic!("{line}") };
        let arguments = arguments(Path::new("/here"), &global, &args);
        arguments.map(|arguments| arguments.join(" ")).map_err(|error| error.to_text())
    }

    #[test]
    fn entry_starts_the_server_from_any_directory() {
        for (flags, expected) in [
            ("", "mcp --io-dir /here/sandbox-files"),
            ("--io-dir ./a", "mcp --io-dir /here/a"),
            ("--io-dir /a -- --read-only", "mcp --io-dir /a --read-only"),
            ("-- --no-io --pool 0", "mcp --no-io --pool 0"),
            (
                "--engine embedded --config c.toml -- --no-io",
                "mcp --config /here/c.toml --engine embedded --no-io",
            ),
        ] {
            assert_eq!(written(flags).unwrap(), expected);
        }
    }

    #[test]
    fn flags_that_the_server_refuses_are_not_written() {
        for (flags, expected) in [
            ("--io-dir a -- --no-io", "cannot be used with"),
            ("-- --io-dir z", "cannot be used multiple times"),
            ("--engine embedded -- --engine docker", "cannot be used multiple times"),
            ("-- --bogus", "unexpected argument '--bogus'"),
            ("-- --help", "they start no server"),
            ("-- install --client zed", "they start no server"),
        ] {
            let error = written(flags).unwrap_err();
            assert!(error.contains(expected) && error.contains("\nhint: "), "{flags}: {error}");
        }
    }
}
