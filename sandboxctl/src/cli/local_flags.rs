//! Flags that have a meaning only where the sandbox is on this machine.

use clap::{Arg, Command};

use super::parse;
use super::remote::RemoteArgs;
use crate::error::Error;

/// Arguments that mean the same wherever a script or a command runs, by their ids.
const EVERYWHERE: &[&str] = &[
    // What runs, and what it is given.
    "scripts code jobs args args_file secrets words shell env env_files stdin inputs image allow",
    "workdir seed now stop_signal",
    // Its limits.
    "timeout memory vm-memory cpus pids max-write entries max-file-size tmpfs-size shm-size stop-timeout",
    // Its files.
    "no_io io_errors",
    // What is printed.
    "json output_format result_only raw reports ci config verbose quiet color",
    // Where it runs, and what holds anyway.
    "server token_file ca_file rm network",
];

impl RemoteArgs {
    /// Refuses what has a meaning only where the sandbox is on this machine. `command` is the name of
    /// the command.
    ///
    /// # Errors
    ///
    /// If such an argument was given.
    pub fn refuse_local(&self, command: &str) -> Result<(), Error> {
        let definition = parse::command();
        let own = definition.find_subcommand(command).into_iter().flat_map(Command::get_arguments);
        let all: Vec<&Arg> = own.chain(definition.get_arguments()).collect();
        let everywhere = |id: &str| EVERYWHERE.iter().any(|ids| ids.split(' ').any(|it| it == id));
        let local = self.given.iter().filter(|id| !everywhere(id));
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
            "--in FILE sends a file; `sandboxctl executions download ID -o FILE` fetches \
             what it wrote"
        }
        "engine" | "host" | "runtime" | "pull" | "confinement" | "rootless_limits" => {
            "the operator of the service chooses it; SANDBOXCTL_SERVER= runs on this machine"
        }
        _ => "SANDBOXCTL_SERVER= runs on this machine, where no --server is given",
    }
}

#[cfg(test)]
mod tests {
    use super::super::remote::tests::run;

    #[test]
    fn local_flag_is_refused_with_a_service() {
        for args in [
            &["--arg", "a=b", "--json", "--timeout", "5s", "--memory", "64MiB"][..],
            &["--in", "a.csv", "--image", "debian:13", "--allow", "example.org", "-q"],
            &["--vm-memory", "16MiB", "--no-io", "--color", "never"],
            &["--tmpfs-size", "1MiB", "--shm-size", "1MiB", "--stop-timeout", "0"],
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
