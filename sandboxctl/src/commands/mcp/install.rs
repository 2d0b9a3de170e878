//! `mcp install`: the server's entry in the configuration of a client, and the skill in a project.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use clap::ValueHint;
use clap::error::ErrorKind;
use sandbox_mcp::{SKILL, SKILL_NAME};

use crate::cli::mcp::{InstallArgs, McpArgs};
use crate::cli::{self, Cli, Command, Global};
use crate::clients::{self, Client, Entry, InstallError};
use crate::commands::Context;
use crate::config::Value;
use crate::error::Error;

pub fn install(context: &Context<'_>, args: &InstallArgs) -> Result<u8, Error> {
    // Refused flags leave nothing.
    if let Some(client) = args.client {
        install_entry(context, args, client)?;
    }
    if args.skill {
        // Claude Code has a place of its own.
        let place = match args.client {
            Some(Client::ClaudeCode) => ".claude/skills",
            _ => ".agents/skills",
        };
        let skills = context.environment.working_directory.join(place);
        let file = skills.join(SKILL_NAME).join("SKILL.md");
        put(context, args, &file, SKILL, || clients::put(&file, SKILL, 0o644))?;
    }
    Ok(0)
}

/// Adds the server to the configuration of a client.
fn install_entry(context: &Context<'_>, args: &InstallArgs, client: Client) -> Result<(), Error> {
    let here = &context.environment.working_directory;
    let executable = std::env::current_exe()
        .map_err(|source| Error::System { what: "the path of sandboxctl".to_owned(), source })?;
    let called = std::env::args_os().next().unwrap_or_default();
    let search = context.environment.variable("PATH");
    let program = program_as_called(&executable, &called, here, search);
    let Some(program) = program.to_str() else {
        return Err(Error::usage("sandboxctl", "its path is not UTF-8 text"));
    };
    let arguments = arguments(here, context.global, args)?;
    let entry = Entry { name: &args.name, program, arguments: &arguments };
    let home = context.environment.path("HOME").ok_or_else(|| {
        Error::usage("HOME", "it is not set, and clients have their configuration there")
    })?;
    let config = context.environment.path("XDG_CONFIG_HOME");
    let file = client.file(&home, config.as_deref());
    put(context, args, &file, &client.text(&entry), || client.install(&file, &entry))?;
    if !args.print {
        context.output.notice("restart the client, or reload its servers");
    }
    Ok(())
}

/// Writes a file, or prints what it would get.
fn put(
    context: &Context<'_>,
    args: &InstallArgs,
    file: &Path,
    text: &str,
    write: impl FnOnce() -> Result<Option<PathBuf>, InstallError>,
) -> Result<(), Error> {
    if args.print {
        context.output.notice(&format!("in {}:", file.display()));
        return context.output.text(text);
    }
    let backup = write().map_err(|error| {
        Error::usage(file.display().to_string(), error.to_string()).with_hint(error.hint())
    })?;
    context.output.text(&format!("{}\n", file.display()))?;
    if let Some(backup) = backup {
        context.output.notice(&format!("the file as it was is {}", backup.display()));
    }
    Ok(())
}

/// The path by which the program was called, where that leads to it: a link such as
/// `/usr/local/bin/sandboxctl` stays when an upgrade replaces what it leads to.
fn program_as_called(
    executable: &Path,
    called: &OsStr,
    here: &Path,
    search: Option<&OsStr>,
) -> PathBuf {
    let candidates: Vec<PathBuf> = match called.as_bytes().contains(&b'/') {
        true => vec![absolute(here, Path::new(called))],
        false => std::env::split_paths(search.unwrap_or_default())
            .map(|directory| absolute(here, &directory).join(called))
            .collect(),
    };
    let is_it = |path: &PathBuf| path.canonicalize().is_ok_and(|real| real == *executable);
    candidates.into_iter().find(is_it).unwrap_or_else(|| executable.to_owned())
}

/// The arguments of the server: those that start it.
fn arguments(here: &Path, global: &Global, args: &InstallArgs) -> Result<Vec<String>, Error> {
    let mut flags = Vec::new();
    let mut add_path = |flag: &str, path: &Path| {
        flags.extend([flag.to_owned(), absolute_text(here, flag, path)?]);
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
    flags.extend(with_absolute_paths(here, &args.flags)?);
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
        Ok(Cli { command: Command::Mcp(args), .. }) if args.command.is_none() => Ok(*args.0),
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

/// The same flags of the server, with absolute paths: its client starts it in a directory of its own.
fn with_absolute_paths(here: &Path, flags: &[String]) -> Result<Vec<String>, Error> {
    let whole = cli::parse::command();
    let server = whole.find_subcommand("mcp").into_iter().flat_map(clap::Command::get_arguments);
    let is_path = |hint| matches!(hint, ValueHint::FilePath | ValueHint::DirPath);
    let names: Vec<&str> = (server.chain(whole.get_arguments()))
        .filter(|arg| is_path(arg.get_value_hint()))
        .filter_map(clap::Arg::get_long)
        .collect();
    let mut made = Vec::with_capacity(flags.len());
    let mut words = flags.iter();
    while let Some(word) = words.next() {
        let flag = word.split_once('=').map_or(&**word, |(flag, _)| flag);
        let takes_path = flag.strip_prefix("--").is_some_and(|name| names.contains(&name));
        match word.strip_prefix(flag).and_then(|rest| rest.strip_prefix('=')) {
            _ if !takes_path => made.push(word.clone()),
            Some(path) => {
                made.push(format!("{flag}={}", absolute_text(here, flag, Path::new(path))?));
            }
            None => {
                made.push(word.clone());
                if let Some(path) = words.next() {
                    made.push(absolute_text(here, flag, Path::new(path))?);
                }
            }
        }
    }
    Ok(made)
}

/// The path of a flag, as configurations have it.
fn absolute_text(here: &Path, flag: &str, path: &Path) -> Result<String, Error> {
    let path: OsString = absolute(here, path).into();
    path.into_string().map_err(|_| Error::usage(flag, "it is not UTF-8 text"))
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
        let Cli { global, command, .. } = Cli::read(line.split_whitespace()).unwrap();
        let Command::Mcp(args) = command else { panic!("{command:?}") };
        let Some(McpCommand::Install(args)) = args.0.command else { panic!("{line}") };
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
                "-- --no-io --image-archive x.tar --audit=log/./a.jsonl",
                "mcp --no-io --image-archive /here/x.tar --audit=/here/log/a.jsonl",
            ),
            (
                "--io-dir /a -- --rootfs root --config c.toml --tools read_file",
                "mcp --io-dir /a --rootfs /here/root --config /here/c.toml --tools read_file",
            ),
            (
                "--engine embedded --config c.toml -- --no-io",
                "mcp --config /here/c.toml --engine embedded --no-io",
            ),
        ] {
            assert_eq!(written(flags).unwrap(), expected);
        }
    }

    #[test]
    fn program_is_named_as_it_was_called_if_that_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().canonicalize().unwrap();
        let path = |name: &str| here.join(name);
        for directory in ["opt", "bin", "other"] {
            std::fs::create_dir(path(directory)).unwrap();
        }
        for file in ["opt/sandboxctl-2", "other/sandboxctl"] {
            std::fs::write(path(file), "").unwrap();
        }
        let executable = path("opt/sandboxctl-2");
        std::os::unix::fs::symlink(&executable, path("bin/sandboxctl")).unwrap();
        let search = std::env::join_paths([path("other"), "bin".into(), path("opt")]).unwrap();
        let named = |called: &str, search| {
            program_as_called(&executable, OsStr::new(called), &here, search)
        };
        for (called, expected) in [
            ("sandboxctl", "bin/sandboxctl"),
            ("./bin/sandboxctl", "bin/sandboxctl"),
            ("opt/sandboxctl-2", "opt/sandboxctl-2"),
            // A program's first argument is any text that its caller chose.
            ("other/sandboxctl", "opt/sandboxctl-2"),
            ("nothing", "opt/sandboxctl-2"),
            ("", "opt/sandboxctl-2"),
        ] {
            assert_eq!(named(called, Some(&*search)), path(expected), "{called}");
        }
        assert_eq!(named("sandboxctl", None), executable);
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
