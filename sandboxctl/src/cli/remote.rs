//! Where a service is: the flags of commands that can have it do their work.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, ValueHint};
use sandbox_env::Environment;

use super::text;
use crate::config::SERVER_VARIABLE;
use crate::error::Error;
use crate::remote::{Client, ServerAddress, Token};

/// A service: `--server` and `--token-file`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Service")]
pub struct RemoteArgs {
    /// Service to use: http://HOST, https://HOST or unix:PATH [default: SANDBOXCTL_SERVER]
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, global = true,
        value_parser = text::<ServerAddress>())]
    server: Option<ServerAddress>,

    /// Read the token for the service from this file [default: SANDBOXCTL_TOKEN]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, global = true)]
    token_file: Option<PathBuf>,

    /// The ids of all arguments of the command line.
    #[arg(skip)]
    pub(super) given: Vec<String>,
}

/// The ids of the arguments that the command line has for its command.
pub fn given(matches: &ArgMatches) -> Vec<String> {
    let Some((_, matches)) = matches.subcommand() else { return Vec::new() };
    let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    matches.ids().map(clap::Id::as_str).filter(is_given).map(str::to_owned).collect()
}

/// Arguments that mean the same wherever a script or a command runs, by their ids.
const EVERYWHERE: &[&str] = &[
    // What runs, and what it is given.
    "scripts",
    "code",
    "jobs",
    "args",
    "args_file",
    "secrets",
    "words",
    "shell",
    "env",
    "env_files",
    "stdin",
    "inputs",
    "image",
    "allow",
    "workdir",
    "seed",
    "now",
    // Its limits.
    "timeout",
    "memory",
    "vm-memory",
    "cpus",
    "pids",
    "max-write",
    "entries",
    "max-file-size",
    "tmpfs-size",
    // Its files.
    "no_io",
    "io_errors",
    // What is printed.
    "json",
    "output_format",
    "result_only",
    "raw",
    "reports",
    "ci",
    "config",
    "verbose",
    "quiet",
    "color",
    // Where it runs, and what holds anyway.
    "server",
    "token_file",
    "rm",
    "network",
];

impl RemoteArgs {
    /// The service of this command line or environment, if one is named.
    ///
    /// # Errors
    ///
    /// If its address or its token is invalid.
    pub fn client(&self, environment: &Environment) -> Result<Option<Client>, Error> {
        let Some(address) = self.address(environment)? else { return Ok(None) };
        let token = Token::read(self.token_file.as_deref(), environment)?;
        Ok(Some(Client::new(address, token)))
    }

    /// The service, for commands that need one.
    ///
    /// # Errors
    ///
    /// As [`client`](Self::client), and if none is named.
    pub fn required_client(&self, environment: &Environment) -> Result<Client, Error> {
        self.client(environment)?.ok_or_else(|| {
            let hint = format!("--server URL or {SERVER_VARIABLE} names it: http://127.0.0.1:8470");
            Error::usage("--server", "no service is named").with_hint(hint)
        })
    }

    fn address(&self, environment: &Environment) -> Result<Option<ServerAddress>, Error> {
        if let Some(address) = &self.server {
            return Ok(Some(address.clone()));
        }
        let Some(text) = environment.variable(SERVER_VARIABLE) else { return Ok(None) };
        let text =
            text.to_str().ok_or_else(|| Error::usage(SERVER_VARIABLE, "it is not UTF-8 text"))?;
        let address = text.parse::<ServerAddress>();
        address.map(Some).map_err(|error| Error::usage(SERVER_VARIABLE, error.to_string()))
    }

    /// Refuses what has a meaning only where the sandbox is on this machine. `command` is the name of
    /// the command.
    ///
    /// # Errors
    ///
    /// If such an argument was given.
    pub fn refuse_local(&self, command: &str) -> Result<(), Error> {
        let definition = super::command();
        let own = definition.find_subcommand(command).into_iter().flat_map(Command::get_arguments);
        let all: Vec<&Arg> = own.chain(definition.get_arguments()).collect();
        let local = self.given.iter().filter(|id| !EVERYWHERE.contains(&id.as_str()));
        // Groups have ids too, and no flag.
        let mut local = local.filter_map(|id| all.iter().find(|it| it.get_id() == id));
        let Some(flag) = local.next() else { return Ok(()) };
        let name =
            flag.get_long().map_or_else(|| flag.get_id().to_string(), |long| format!("--{long}"));
        let hint = local_hint(flag);
        Err(Error::usage(name, "it applies only to sandboxes on this machine, not to a service")
            .with_hint(hint))
    }
}

/// What to do instead with a service.
fn local_hint(flag: &Arg) -> &'static str {
    match flag.get_id().as_str() {
        "io_dir" | "keep" | "globs" | "dir" | "volumes" => {
            "--in FILE sends a file; `sandboxctl executions download ID` fetches what it wrote"
        }
        "engine" | "host" | "runtime" | "pull" | "confinement" => {
            "the operator of the service chooses it; SANDBOXCTL_SERVER= runs on this machine"
        }
        _ => "SANDBOXCTL_SERVER= runs on this machine, where no --server is given",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command as Which};

    fn run(args: &[&str]) -> RemoteArgs {
        let all = ["sandboxctl", "run", "x.luau"].iter().chain(args);
        let Which::Run(args) = Cli::read(all).unwrap().command else { panic!("it is run") };
        args.remote
    }

    #[test]
    fn flag_comes_before_the_variable_and_an_empty_variable_is_none() {
        let environment = |server| {
            Environment::new(std::path::Path::new("/"), 1000, &[(SERVER_VARIABLE, server)])
        };
        let server = |args: &[&str], variable| {
            let client = run(args).client(&environment(variable)).unwrap();
            client.map(|client| client.server())
        };
        let flag = ["--server", "http://127.0.0.1:1"];
        assert_eq!(server(&flag, "unix:/s").as_deref(), Some("http://127.0.0.1:1"));
        assert_eq!(server(&[], "unix:/s").as_deref(), Some("unix:/s"));
        assert_eq!(server(&[], ""), None);
        let refused = run(&[]).client(&environment("localhost")).unwrap_err().to_text();
        assert!(refused.starts_with("SANDBOXCTL_SERVER: expected http://HOST"), "{refused}");
        let none = run(&[]).required_client(&environment("")).unwrap_err();
        assert_eq!(none.exit_code(), 2);
        assert!(none.hint().is_some_and(|hint| hint.contains("--server URL")));
    }

    #[test]
    fn local_flag_is_refused_with_a_service() {
        for args in [
            &["--arg", "a=b", "--json", "--timeout", "5s", "--memory", "64MiB"][..],
            &["--in", "a.csv", "--image", "debian:13", "--allow", "example.org", "-q"],
            &["--vm-memory", "16MiB", "--no-io", "--color", "never"],
        ] {
            assert!(run(args).refuse_local("run").is_ok(), "{args:?}");
        }
        for (args, flag) in [
            (&["--io-dir", "out"][..], "--io-dir"),
            (&["-v", "./a:/b"], "--volume"),
            (&["--engine", "docker"], "--engine"),
            (&["--keep"], "--keep"),
            (&["--artifact", "*", "--artifacts-dir", "out"], "--artifact"),
            (&["--receipt", "r.json"], "--receipt"),
            (&["--diff"], "--diff"),
        ] {
            let given = run(args);
            let refused = given.refuse_local("run").expect_err(&format!("{:?}", given.given));
            let text = refused.to_text();
            assert!(text.starts_with(flag) && text.contains("\nhint: "), "{args:?}: {text}");
            assert_eq!(refused.exit_code(), 2);
        }
    }
}
