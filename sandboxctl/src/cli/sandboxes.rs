//! `sandbox` and `local`: their subcommands, and their help.

use std::ffi::OsString;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueHint};
use sandbox_api::{FileScope, Ports, SignalName};

use super::allow::AllowArgs;
use super::env_file::VariableArgs;
use super::exec::CommandLine;
use super::limits::{CommandInLimits, CommandLimits, LimitArgs, ProgramLimits, SandboxLimits};
use super::remote::RemoteArgs;
use super::root::LocalRootArgs;
use super::secret::SecretArgs;
use super::values::{Utf8, guest_path, signal, text, time, written};
use crate::config::{Flags, Scope};
use crate::input::{Argument, InputArgument};
use crate::terminal::DetachKeys;

/// `sandbox`.
#[derive(Debug, Args)]
pub struct SandboxesArgs {
    /// The service that has them, if it is not this user's own.
    #[command(flatten)]
    pub remote: RemoteArgs,

    /// What to do.
    #[command(subcommand)]
    pub command: SandboxCommand,
}

/// What to do with sandboxes.
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Create a sandbox that stays, or find the one of this name
    ///
    /// Prints its id. It has its own io dir, and processes in it live on after their command. It is removed
    /// when its time is over; when it is idle it is stopped before that, and its files are kept.
    #[command(after_long_help = "\
sandboxctl sandbox create debian:13
sandboxctl sandbox create --name build --ttl 8h -e CFLAGS=-O2 debian:13
sandboxctl sandbox create --freeze --idle 2m --allow packages.example.org python:3.13-slim
sandboxctl sandbox create --engine embedded --rootfs /srv/debian")]
    Create(Box<CreateArgs>),

    /// List sandboxes, the latest first
    #[command(after_long_help = "\
sandboxctl sandbox ls
sandboxctl sandbox ls --metadata team=web -q
sandboxctl sandbox ls --status paused --json")]
    Ls {
        /// Only those with this status: starting, ready (or running), paused, stopped
        #[arg(long)]
        status: Option<String>,
        /// Only those with this metadata; repeatable
        #[arg(long, value_name = "KEY=VALUE", value_parser = text::<Argument>())]
        metadata: Vec<Argument>,
        /// Print only the ids
        #[arg(short, long)]
        quiet: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Run a command in a sandbox, and end with it all that it has started
    ///
    /// As `exec` of the command line does: its output, its exit code, its JSON.
    #[command(after_long_help = "\
sandboxctl sandbox exec build make -j2
sandboxctl sandbox exec 7f3c --shell 'ls | wc -l'
echo hello | sandboxctl sandbox exec -i build cat")]
    Exec(Box<ExecInArgs>),

    /// Start a process in a sandbox; it and what it leaves behind live on
    ///
    /// Its output is shown until it ends, stdout and stderr as one. With -d its number is printed at once.
    #[command(mut_arg("timeout", |arg| arg.help("Time after which it is stopped [default: none]")))]
    #[command(after_long_help = "\
sandboxctl sandbox run -d web python3 -m http.server
sandboxctl sandbox run build --shell 'make 2>&1 | tee log'
sandboxctl sandbox run -it 7f3c python3")]
    Run(Box<RunInArgs>),

    /// Open a shell in a sandbox
    #[command(after_long_help = "\
sandboxctl sandbox shell build
sandboxctl sandbox shell 7f3c zsh -l")]
    Shell {
        /// The sandbox
        #[arg(value_name = "ID")]
        sandbox: String,
        /// The shell [default: bash, or else sh]
        #[arg(value_name = "COMMAND", trailing_var_arg = true, num_args = 0..)]
        words: Vec<OsString>,
        /// The keys that leave it.
        #[command(flatten)]
        keys: KeysArgs,
    },

    /// Show what a process prints from now on, and send it input, until it ends
    #[command(after_long_help = "\
sandboxctl sandbox attach build 3
sandboxctl sandbox attach build 3 < input
sandboxctl sandbox attach build 3 --after 0")]
    Attach {
        /// The process.
        #[command(flatten)]
        process: ProcessArgs,
        /// Begin after the event with this number; 0 for all that is kept
        #[arg(long, value_name = "SEQ")]
        after: Option<u64>,
        /// The keys that leave it.
        #[command(flatten)]
        keys: KeysArgs,
    },

    /// List the processes of a sandbox, the latest first
    #[command(after_long_help = "\
sandboxctl sandbox ps build
sandboxctl sandbox ps -a build --json")]
    Ps {
        /// The sandbox
        #[arg(value_name = "ID")]
        sandbox: String,
        /// Also those that ended lately
        #[arg(short, long)]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Print what a process has printed, as far as it is kept
    #[command(after_long_help = "\
sandboxctl sandbox logs build 3
sandboxctl sandbox logs -f build
sandboxctl sandbox logs build 3 --json")]
    Logs(LogsArgs),

    /// End processes of a sandbox with all that they have started, or send them a signal
    ///
    /// They get SIGTERM, or --stop-signal of `run`, and SIGKILL when their time is over (--stop-timeout of
    /// `run`, or else of `create`).
    #[command(after_long_help = "\
sandboxctl sandbox kill build 3
sandboxctl sandbox kill build 3 --signal HUP
sandboxctl sandbox kill build")]
    Kill {
        /// The sandbox
        #[arg(value_name = "ID")]
        sandbox: String,
        /// The process [default: all of them]
        #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
        process: Option<u32>,
        /// Only send this signal: TERM, INT, HUP, KILL, …
        #[arg(short, long, value_parser = Utf8(signal))]
        signal: Option<SignalName>,
        /// Send it to everything that the process has started, not to its group
        #[arg(long, requires = "signal")]
        tree: bool,
    },

    /// Forward ports of this machine to ports of a sandbox, until a signal
    ///
    /// `create --port` says which ports of a sandbox may be reached. Each connection here is one to the sandbox's
    /// loopback.
    #[command(after_long_help = "\
sandboxctl sandbox port web 8000
sandboxctl sandbox port web 80:8080 5432
sandboxctl sandbox port web 8000:0 --bind 0.0.0.0")]
    Port {
        /// The sandbox
        #[arg(value_name = "ID")]
        sandbox: String,
        /// Its ports, and those of this machine [default: the same]; 0 for a free one
        #[arg(value_name = "PORT[:LOCAL]", required = true, value_parser = text::<PortPair>())]
        ports: Vec<PortPair>,
        /// The address of this machine on which they listen: other machines reach any but a loopback address
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
        bind: IpAddr,
    },

    /// Copy a file into a sandbox, or out of it
    ///
    /// One of the two is ID:PATH, where PATH is in the sandbox; the other one is a file, or - for stdin and
    /// stdout.
    #[command(after_long_help = "\
sandboxctl sandbox cp data.csv build:
sandboxctl sandbox cp build:out/report.pdf .
tar c src | sandboxctl sandbox cp - build:src.tar")]
    Cp {
        /// What is copied
        #[arg(value_hint = ValueHint::FilePath)]
        from: OsString,
        /// Where to
        #[arg(value_hint = ValueHint::AnyPath)]
        to: OsString,
    },

    /// Set for how long a sandbox exists from now on, longer or shorter
    #[command(after_long_help = "sandboxctl sandbox extend build 2h")]
    Extend {
        /// The sandbox
        #[arg(value_name = "ID")]
        sandbox: String,
        /// How long
        #[arg(value_name = "TIME", value_parser = Utf8(time))]
        ttl: Duration,
    },

    /// Freeze a sandbox: its processes keep their memory, and get no processor time
    ///
    /// The next use thaws it.
    #[command(after_long_help = "sandboxctl sandbox pause build")]
    Pause {
        /// The sandboxes
        #[arg(value_name = "ID", required = true)]
        sandboxes: Vec<String>,
    },

    /// Thaw a sandbox
    #[command(after_long_help = "sandboxctl sandbox resume build")]
    Resume {
        /// The sandboxes
        #[arg(value_name = "ID", required = true)]
        sandboxes: Vec<String>,
    },

    /// Remove sandboxes with their processes and files
    #[command(after_long_help = "\
sandboxctl sandbox rm build
sandboxctl sandbox rm -f $(sandboxctl sandbox ls -q)")]
    Rm {
        /// The sandboxes
        #[arg(value_name = "ID", required = true)]
        sandboxes: Vec<String>,
        /// Ignore sandboxes that do not exist
        #[arg(short, long)]
        force: bool,
    },
}

/// `sandbox create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The image of its programs; without one it runs scripts
    #[arg(value_parser = Utf8(NonEmptyStringValueParser::new()))]
    pub image: Option<String>,

    /// Name. An existing sandbox with this name and the same spec is used
    #[arg(long, value_parser = text::<String>())]
    pub name: Option<String>,

    /// How long it exists at most [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = Utf8(time))]
    pub ttl: Option<Duration>,

    /// How long it stays without use until it is stopped; a process that runs is a use [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = Utf8(time))]
    pub idle: Option<Duration>,

    /// Freeze it when it is idle, even if processes run: they keep their memory until the next use thaws
    /// them, or until --ttl is over; at most 8 sandboxes are paused at a time (server.max_paused)
    #[arg(long)]
    pub freeze: bool,

    /// A port of its loopback that may be reached from outside, or `any`; repeatable
    #[arg(long, value_name = "PORT", value_parser = text::<Ports>())]
    pub port: Vec<Ports>,

    /// Kill a command's processes when it ends; disables run, shell and attach
    #[arg(long)]
    pub per_command: bool,

    /// The variables of every command.
    #[command(flatten)]
    pub variables: VariableArgs,

    /// Keep this with it; `sandbox ls --metadata` finds it; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = text::<Argument>())]
    pub metadata: Vec<Argument>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Its writable directory, in place of one of its own (the local service)
    #[arg(long, help_heading = "Files", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub io_dir: Option<PathBuf>,

    /// Show a file read-only at /in/NAME; repeatable
    #[arg(long = "in", help_heading = "Files", value_name = "SRC[:NAME]",
        value_hint = ValueHint::AnyPath, allow_hyphen_values = true,
        value_parser = written(InputArgument::parse))]
    pub inputs: Vec<InputArgument>,

    /// Where the io dir appears in it [default: /io]
    #[arg(long, help_heading = "Files", value_name = "PATH", value_parser = guest_path())]
    pub mount_path: Option<String>,

    /// Guest path that relative paths start from [default: the io dir]
    #[arg(short, long, help_heading = "Files", value_name = "PATH", value_parser = guest_path())]
    pub workdir: Option<String>,

    /// What file operations reach: its io dir and inputs, or all that its programs do [default: io]
    #[arg(long, help_heading = "Files", value_name = "SCOPE", value_parser = file_scope())]
    pub files: Option<FileScope>,

    /// What the local service runs programs in.
    #[command(flatten)]
    pub root: LocalRootArgs,

    /// What it may use.
    #[command(flatten)]
    limits: LimitArgs<SandboxLimits>,

    /// What its commands may use.
    #[command(flatten)]
    command_limits: LimitArgs<CommandLimits>,

    /// What programs have in addition to the image.
    #[command(flatten)]
    program_limits: LimitArgs<ProgramLimits>,

    /// Whom it may reach.
    #[command(flatten)]
    allow: AllowArgs,
}

impl CreateArgs {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        flags.scope = Scope::of_programs(self.has_programs());
        self.limits.add_flags(flags);
        self.command_limits.add_flags(flags);
        self.program_limits.add_flags(flags);
        self.allow.add_flags(flags);
    }

    /// Whether it is known to have programs. A service may have an image for sandboxes that name none.
    pub const fn has_programs(&self) -> bool {
        self.image.is_some() || self.root.is_named()
    }
}

/// Reads what file operations may reach.
fn file_scope() -> impl TypedValueParser<Value = FileScope> {
    let scope = |word: String| if word == "all" { FileScope::All } else { FileScope::Io };
    Utf8(PossibleValuesParser::new(["io", "all"]).map(scope))
}

/// A port of a sandbox, and the one of this machine that leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortPair {
    /// In the sandbox.
    pub port: u16,
    /// Here; 0 for a free one.
    pub local: u16,
}

impl FromStr for PortPair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (inside, local) = match text.split_once(':') {
            Some((inside, local)) => (inside, Some(local)),
            None => (text, None),
        };
        let port = port(inside)?.get();
        let local = local.map_or(Ok(port), str::parse);
        Ok(Self { port, local: local.map_err(|_| "it is not a port: 0 to 65535".to_owned())? })
    }
}

fn port(text: &str) -> Result<NonZeroU16, String> {
    text.parse().map_err(|_| "it is not a port: 1 to 65535".to_owned())
}

/// What runs in a sandbox.
#[derive(Debug, Args)]
pub struct CommandInArgs {
    /// The sandbox
    #[arg(value_name = "ID")]
    pub sandbox: String,

    /// Program and arguments; options after it belong to it
    #[arg(value_name = "COMMAND", trailing_var_arg = true, num_args = 1..,
        required_unless_present = "shell", conflicts_with = "shell")]
    words: Vec<OsString>,

    /// Run this line with the image's /bin/sh instead of COMMAND
    #[arg(long, value_name = "LINE", allow_hyphen_values = true)]
    shell: Option<OsString>,

    /// Its variables.
    #[command(flatten)]
    pub variables: VariableArgs,

    /// Working directory in the sandbox
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<OsString>,

    /// Pass stdin on; without this it is empty
    #[arg(short = 'i', long, visible_alias = "interactive")]
    pub stdin: bool,

    /// The signal that asks it to end, before it is killed [default: TERM]
    #[arg(long, value_name = "SIGNAL", value_parser = Utf8(signal))]
    pub stop_signal: Option<SignalName>,

    /// Its times.
    #[command(flatten)]
    limits: LimitArgs<CommandInLimits>,
}

impl CommandInArgs {
    /// What runs.
    pub fn line(&self) -> CommandLine {
        match (&self.shell, self.words.split_first()) {
            (None, Some((program, args))) => CommandLine::Program(program.clone(), args.to_vec()),
            (line, _) => CommandLine::Shell(line.clone().unwrap_or_default()),
        }
    }

    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        flags.scope = Scope::Exec;
        self.limits.add_flags(flags);
    }
}

/// `sandbox exec`.
#[derive(Debug, Args)]
pub struct ExecInArgs {
    /// What runs.
    #[command(flatten)]
    pub command: CommandInArgs,

    /// Its secrets.
    #[command(flatten)]
    pub secrets: SecretArgs,

    /// Print one JSON document (sandboxctl.exec/1) at the end
    #[arg(long)]
    pub json: bool,

    /// Pass every control sequence of the command on to a terminal
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
}

/// `sandbox logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The process.
    #[command(flatten)]
    pub process: ProcessArgs,

    /// Go on until it has ended
    #[arg(short, long)]
    pub follow: bool,

    /// Begin after the event with this number
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,

    /// Pass every control sequence on to a terminal
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,

    /// Print the events, a JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// `sandbox run`.
#[derive(Debug, Args)]
pub struct RunInArgs {
    /// What runs.
    #[command(flatten)]
    pub command: CommandInArgs,

    /// Print its number, and do not wait for its end
    #[arg(short, long, conflicts_with = "tty")]
    pub detach: bool,

    /// Allocate a terminal; with -i, connect it to yours
    #[arg(short = 't', long)]
    pub tty: bool,

    /// The keys that leave it.
    #[command(flatten)]
    pub keys: KeysArgs,
}

/// The keys that leave a process with a terminal.
#[derive(Debug, Args)]
pub struct KeysArgs {
    /// Keys that leave it, and let it run on: ctrl-X or characters, with commas; empty for none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q",
        value_parser = text::<DetachKeys>())]
    pub detach_keys: DetachKeys,
}

/// A process of a sandbox.
#[derive(Debug, Args)]
pub struct ProcessArgs {
    /// The sandbox
    #[arg(value_name = "ID")]
    pub sandbox: String,

    /// The process, as `sandbox ps` numbers it [default: the last one that was started]
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub process: Option<u32>,
}

/// `local`.
#[derive(Debug, Subcommand)]
pub enum LocalCommand {
    /// Say whether the local service runs, and what it has
    #[command(after_long_help = "\
sandboxctl local status
sandboxctl local status --json")]
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// End the local service: sandboxes are stopped, and their files are kept
    #[command(after_long_help = "sandboxctl local stop")]
    Stop,

    /// Print the log of the local service
    #[command(after_long_help = "sandboxctl local logs")]
    Logs,

    /// Start the local service if it is not running, and print where it listens, as JSON
    #[command(hide = true, after_long_help = "sandboxctl local socket")]
    Socket(LocalRootArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(args: &[&str]) -> Result<SandboxCommand, String> {
        let all = ["sandboxctl", "sandbox"].iter().chain(args);
        match Cli::read(all).map(|cli| cli.command) {
            Ok(Command::Sandbox(args)) => Ok(args.0.command),
            Ok(other) => panic!("it is no other command: {other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn arguments_after_the_command_belong_to_it() {
        for words in [&["exec", "build", "ls", "-l"][..], &["exec", "build", "--", "ls", "-l"]] {
            let Ok(SandboxCommand::Exec(args)) = parse(words) else { panic!("{words:?}") };
            assert_eq!(args.command.sandbox, "build");
            assert_eq!(args.command.line(), CommandLine::Program("ls".into(), vec!["-l".into()]));
        }
        let Ok(SandboxCommand::Run(args)) = parse(&["run", "-it", "7f3c", "sh", "-i"]) else {
            panic!("it is run")
        };
        assert!(args.tty && args.command.stdin && !args.detach);
        let Ok(SandboxCommand::Exec(args)) = parse(&["exec", "build", "--shell", "ls | wc"]) else {
            panic!("it is exec")
        };
        assert_eq!(args.command.line(), CommandLine::Shell("ls | wc".into()));
        for wrong in
            [&["exec", "build"][..], &["run", "-dt", "build", "sh"], &["attach", "build", "0"]]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn port_leads_to_the_same_one_unless_another_is_named() {
        let pair = |text: &str| text.parse().map(|PortPair { port, local }| (port, local));
        assert_eq!(pair("8080"), Ok((8080, 8080)));
        assert_eq!(pair("80:8080"), Ok((80, 8080)));
        assert_eq!(pair("80:0"), Ok((80, 0)));
        for wrong in ["", "0", "65536", "80:", "80:65536", ":80", "a"] {
            assert!(pair(wrong).is_err(), "{wrong}");
        }
        let ports = |words: &[&str]| {
            let all: Vec<_> = ["create"].iter().chain(words).copied().collect();
            let Ok(SandboxCommand::Create(args)) = parse(&all) else { panic!("it is create") };
            args.port.into_iter().collect::<Ports>()
        };
        assert_eq!(ports(&[]), Ports::Listed(Vec::new()));
        let [some, more] = [80, 443].map(|port| NonZeroU16::new(port).unwrap());
        assert_eq!(ports(&["--port", "80", "--port", "443"]), Ports::Listed(vec![some, more]));
        assert_eq!(ports(&["--port", "80", "--port", "any"]), Ports::Any);
    }

    #[test]
    fn signals_are_named_as_kill_names_them() {
        assert_eq!(signal("SIGTERM"), Ok(SignalName::Term));
        assert_eq!(signal("usr1"), Ok(SignalName::Usr1));
        assert!(signal("SEGV").is_err() && signal("").is_err());
    }
}
