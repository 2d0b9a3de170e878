//! The command line: commands, flags, their help. Settings among the flags take their words and
//! defaults from the table of keys.

pub mod allow;
pub mod artifacts;
pub mod changes;
pub mod cluster;
mod docker_flags;
pub mod env_file;
pub mod exec;
pub mod executions;
pub mod fs;
mod guess;
mod limits;
mod local_flags;
pub mod mcp;
mod on_demand;
pub mod parse;
pub mod receipt;
pub mod remote;
pub mod report;
pub mod root;
mod sandbox;
pub mod sandboxes;
pub mod secret;
pub mod serve;
#[cfg(test)]
mod tests;
pub mod token;
pub mod upstream;
mod values;
mod volume;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ColorChoice, Parser, Subcommand, ValueHint};
use sandbox_tools as tools;

use crate::config::{Flags, Key, Scope, Value};
use crate::input::{Argument, JsonArgument, ScriptArgument};
use allow::{AllowArgs, RulesArgs};
use artifacts::{ArtifactArgs, ArtifactsCommand};
use changes::ChangesArgs;
use cluster::{ClusterCommand, DatabaseArgs, DatabaseCommand};
use docker_flags::DockerFlags;
use exec::ExecArgs;
use executions::ExecutionsArgs;
use fs::FsArgs;
use limits::{LimitArgs, ScriptLimits};
use mcp::McpArgs;
use on_demand::OnDemand;
use receipt::{KeysCommand, ReceiptArgs, ReceiptCommand, ReplayArgs, ReproducibleArgs};
use remote::RemoteArgs;
use report::ReportArgs;
use root::RootArgs;
pub use sandbox::{FileArgs, KeptArgs, SandboxArgs};
use sandboxes::{LocalCommand, SandboxCommand, SandboxesArgs};
use secret::SecretArgs;
use serve::ServeArgs;
use token::{ServerCommand, TokenCommand};
use upstream::UpstreamArgs;
use values::{Utf8, text, value_of, word_of};
use volume::VolumeArgs;

/// `--version`: this program's, and the agent's digest.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let version = env!("CARGO_PKG_VERSION");
        format!("{version} (agent sha256:{})", sandbox_controller::AGENT_SHA256)
    });
    &VERSION
}

/// The answer to `--version` alone, which needs no definition of a command.
pub fn version_asked_for(args: &[OsString]) -> Option<String> {
    match args {
        [_, flag] if flag == "--version" || flag == "-V" => {
            Some(format!("sandboxctl {}\n", version()))
        }
        _ => None,
    }
}

/// Runs untrusted Luau scripts and commands, each in a fresh container.
///
/// A sandbox has one writable directory of the host, the io dir, and read-only inputs. It has no
/// network except the hosts that you allow. Every limit has a default. Output is printed on stdout,
/// everything else on stderr.
#[derive(Debug, Parser)]
#[command(
    name = "sandboxctl",
    // Not what the caller made of argv[0].
    bin_name = "sandboxctl",
    version = version(),
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_long_help = "\
sandboxctl run examples/report.luau
echo 'return 6 * 7' | sandboxctl run -
sandboxctl run access-log.luau --in /var/log/nginx/access.log --timeout 2m --json
sandboxctl exec --in words.txt debian:13 sort /in/words.txt
sandboxctl exec -it debian:13 bash
sandboxctl doctor

Exit codes:
  0 done · 1 script or operation failed · 2 usage, configuration · 120 limit · 121 policy
  122 agent lost · 123 conflict · 124 timeout · 125 engine, controller · 126 command not executable
  127 command not found · 129 hung up · 130 interrupted · 137 killed · 141 output unread
  143 terminated
  exec passes on the command's own: 128+n where signal n ended it"
)]
pub struct Cli {
    /// What is true for every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Which JSON is to be printed, also after errors.
    #[arg(skip)]
    pub json: Option<Json>,
}

/// Flags that every command takes.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Read this configuration file, and no other
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    #[arg(long, global = true, help = Key::EngineKind.help(),
        value_parser = word_of(Key::EngineKind))]
    engine: Option<Value>,

    #[arg(long, global = true, value_name = "ADDRESS", help = Key::EngineHost.help(),
        value_parser = value_of(Key::EngineHost), value_hint = ValueHint::Url)]
    host: Option<Value>,

    #[arg(long, global = true, value_name = "NAME", help = Key::EngineRuntime.help(),
        value_parser = value_of(Key::EngineRuntime))]
    runtime: Option<Value>,

    #[arg(long, global = true, value_name = "POLICY", help = Key::Confinement.help(),
        value_parser = word_of(Key::Confinement))]
    confinement: Option<Value>,

    #[arg(long = "limits", global = true, value_name = "POLICY", help = Key::RootlessLimits.help(),
        value_parser = word_of(Key::RootlessLimits))]
    rootless_limits: Option<Value>,

    /// Print more on stderr; repeat for more detail
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// Print only errors on stderr
    #[arg(short, long, global = true)]
    pub quiet: bool,

    /// When to use colour
    // Read by `main` before clap reads the rest, whose own help and errors it is for too.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
}

impl Global {
    /// The settings among these flags as words of another command line.
    pub fn words(&self, here: &Path) -> Vec<OsString> {
        let Flags { file, values, .. } = self.flags();
        let file = file.map(|file| [OsString::from("--config"), here.join(file).into()]);
        let values = values.iter().flat_map(|(_, value, flag)| {
            [OsString::from(*flag), value.as_text().unwrap_or_default().into()]
        });
        file.into_iter().flatten().chain(values).collect()
    }

    /// The settings among these flags.
    pub fn flags(&self) -> Flags {
        let mut flags = Flags { file: self.config.clone(), ..Flags::default() };
        flags.set(Key::EngineKind, self.engine.clone());
        flags.set(Key::EngineHost, self.host.clone());
        flags.set(Key::EngineRuntime, self.runtime.clone());
        flags.set(Key::Confinement, self.confinement.clone());
        flags.set(Key::RootlessLimits, self.rootless_limits.clone());
        flags
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a Luau script in a fresh container
    ///
    /// Prints what the script prints as it comes, then its result as JSON where there is one.
    /// The script's files are in the io dir, and belong to its owner.
    #[command(after_long_help = "\
sandboxctl run examples/report.luau
sandboxctl run report.luau --arg year=2026 --args-file options.json --io-dir out
sandboxctl run access-log.luau --in /var/log/nginx/access.log --json
zcat log.gz | sandboxctl run access-log.luau --in -:access.log --timeout 2m
sandboxctl run -c 'return fs.list(\"/in/src\")' --in ./src
sandboxctl run report.luau --artifact 'reports/**' --artifacts-dir dist
sandboxctl run release.luau --secret TOKEN=env:RELEASE_TOKEN
sandboxctl run tests/*.luau -j 4 --json")]
    Run(OnDemand<RunArgs>),

    /// Run a command in a fresh container from any image
    ///
    /// The command is executed directly, without a shell. Its stdout and stderr are passed through
    /// byte for byte as they are written; on a terminal, control sequences other than colours are shown as escapes. The
    /// exit code is the command's, or 128+n if signal n killed it. The command is cancelled when the
    /// reader of its output is gone. It has no network unless --allow is given, starts in the io dir,
    /// and can write there and to /tmp. The image's environment is used, its entrypoint and user are
    /// not.
    #[command(after_long_help = "\
sandboxctl exec --in report.py python:3.13-slim python3 /in/report.py --year 2026
sandboxctl exec -v .:/src -e CFLAGS=-O2 --timeout 5m debian:13 make -j2
sandboxctl exec --io-dir out --in words.txt --shell 'sort /in/words.txt > sorted.txt' debian:13
tar c src | sandboxctl exec --stdin debian:13 tar tv
sandboxctl exec --artifact dist --artifacts-dir out -v .:/src debian:13 make dist
sandboxctl exec --env-file build.env -v .:/src debian:13 make
sandboxctl exec -it -v .:/src node:22 bash
sandboxctl exec --secret NPM_TOKEN=file:token.txt -v .:/src node:22 npm publish --dry-run
sandboxctl exec --engine embedded --rootfs /srv/debian --json -- uname -a

Exit codes:
  the command's own · 2 usage, configuration (nothing ran) · 120 limit · 121 policy · 122 agent lost
  123 conflict · 124 timeout · 125 engine, image, controller · 126 command not executable · 127 command not found
  130 interrupted · 137 killed · 141 output unread; --json distinguishes a command's own 2 from sandboxctl's")]
    #[command(
        mut_args(exec::with_limits_of_exec),
        override_usage = "sandboxctl exec [OPTIONS] IMAGE COMMAND...\n       \
            sandboxctl exec [OPTIONS] --rootfs DIR | --image-archive FILE -- COMMAND..."
    )]
    Exec(OnDemand<ExecArgs>),

    /// Read and write files of an io dir under a sandbox's rules
    ///
    /// Each command runs in a fresh container that has only the io dir and the inputs. Links are never
    /// followed, and nothing outside is touched.
    #[command(after_long_help = "\
sandboxctl fs ls -R
sandboxctl fs write notes.txt --content 'hello'
sandboxctl fs cp :report.pdf . --io-dir out
sandboxctl fs read report.csv --json")]
    Fs(OnDemand<FsArgs>),

    /// Check whether a script compiles, without a container
    #[command(after_long_help = "\
sandboxctl check examples/report.luau
sandboxctl check --json - < script.luau")]
    Check(CheckArgs),

    /// Print the script API as Luau declarations
    #[command(after_long_help = "sandboxctl types > sandbox.d.luau")]
    Types,

    /// Verify, archive and compare directories of artifacts
    ///
    /// `run` and `exec` make such a directory with --artifact GLOB and --artifacts-dir DIR.
    #[command(subcommand)]
    Artifacts(ArtifactsCommand),

    /// Make keys that sign receipts
    #[command(subcommand)]
    Keys(KeysCommand),

    /// Verify receipts
    ///
    /// `run` and `exec` write one with --receipt FILE.
    #[command(subcommand)]
    Receipt(ReceiptCommand),

    /// Run the script or the command of a receipt again and compare what it makes
    ///
    /// Policy and limits are the receipt's, as far as they are allowed here. Nothing is kept. Prints
    /// "identical", or a line for each path that differs, and exits with 1.
    #[command(after_long_help = "\
sandboxctl replay receipt.json --script report.luau
sandboxctl replay receipt.json --key release.key.pub --script report.luau --arg year=2026 --in sales.csv
sandboxctl replay receipt.json -e MODE=release -- make dist")]
    Replay(OnDemand<ReplayArgs>),

    /// Build, list and move the sandbox image
    #[command(subcommand)]
    Image(ImageCommand),

    /// List the containers of sandboxes
    ///
    /// Lists running sandboxes, leftovers of killed controllers, and containers whose state is unknown
    /// because they belong to another user or machine.
    #[command(after_long_help = "\
sandboxctl ps
sandboxctl ps -q
sandboxctl ps --json")]
    Ps(PsArgs),

    /// Remove leftovers of crashed controllers
    ///
    /// Every command that uses an engine also removes your own leftovers.
    #[command(after_long_help = "\
sandboxctl gc --dry-run
sandboxctl gc --force")]
    Gc(GcArgs),

    /// Diagnose the environment and suggest fixes
    ///
    /// Exits with 125 if a check fails. With --database the database of a cluster is examined in place of this machine.
    #[command(after_long_help = "\
sandboxctl doctor
sandboxctl doctor --ci
sandboxctl doctor --database postgres://sandboxctl@db.example.org/sandboxctl
sandboxctl doctor --json --host unix:///run/user/1000/docker.sock")]
    Doctor(DoctorArgs),

    /// Call one tool for workflow steps and print its result
    ///
    /// Launches a sandbox with the arguments of --init, which sandbox_init takes, and removes it after
    /// the call. Its files stay. The result is one JSON object: type, data and metadata, or error and
    /// metadata.
    #[command(after_long_help = "\
sandboxctl tool sandbox_write_file --init '{\"containerId\": \"c\", \"projectOutPath\": \"out\"}' \\
    --input '{\"containerId\": \"c\", \"path\": \"a.txt\", \"content\": \"hello\"}'
sandboxctl tool sandbox_execute_script --init @init.json --input - < call.json")]
    Tool(OnDemand<ToolArgs>),

    /// Serve the tools for workflow steps on stdin and stdout, or list them
    ///
    /// With --stdio, each line of stdin is a call or a cancellation, and each line of stdout is the
    /// result of a call, in any order. Sandboxes are kept by their containerId and removed when stdin
    /// ends. Their files stay.
    #[command(after_long_help = "\
sandboxctl tools --list
sandboxctl tools --stdio < session.ndjson

A session:
  {\"id\": 1, \"tool\": \"sandbox_init\", \"args\": {\"containerId\": \"c\", \"projectOutPath\": \"out\"}}
  {\"id\": 2, \"tool\": \"sandbox_exists\", \"args\": {\"containerId\": \"c\", \"path\": \"a\"}, \"timeout_ms\": 500}
  {\"cancel\": 2}")]
    Tools(OnDemand<ToolsArgs>),

    /// Serve tools for AI agents over the Model Context Protocol, on stdin and stdout
    ///
    /// One tool runs a whole Luau script; others read, write and search the files of the io dir, and
    /// with an image run commands. Each script and each command gets a fresh container. A client starts
    /// this command; it ends with its stdin.
    #[command(after_long_help = "\
sandboxctl mcp install --client claude-desktop --io-dir ~/sandbox
sandboxctl mcp --io-dir out --read-only
sandboxctl mcp --image python:3.13-slim --allow packages.example.org
sandboxctl mcp --tools execute_script --tools 'read_*'")]
    Mcp(OnDemand<McpArgs>),

    /// Submit, list and follow executions of a service
    ///
    /// The service is the one of --server or SANDBOXCTL_SERVER. What is kept there can be looked at
    /// until it is removed by age.
    Executions(OnDemand<ExecutionsArgs>),

    /// Create, use and remove sandboxes that stay
    ///
    /// Those of the service of --server or SANDBOXCTL_SERVER; without one, of a service of this user's own,
    /// which starts by itself and ends when it has nothing more to do. ID is a sandbox's id, the first 4 or
    /// more characters of it, or its name.
    Sandbox(OnDemand<SandboxesArgs>),

    /// See and end the service that keeps this user's own sandboxes
    #[command(subcommand)]
    Local(LocalCommand),

    /// Serve executions over HTTP
    ///
    /// Programs and workflow engines submit scripts and commands; each runs in a sandbox of its own. With --dev
    /// it is for this user alone.
    /// What was accepted is not lost: its state and its files are in the data directory. Callers need a
    /// token, unless they come by a unix socket as the user who runs this.
    #[command(after_long_help = "\
sandboxctl serve --engine docker --data-dir /var/lib/sandboxctl-service --listen unix:/run/sandboxctl.sock
sandboxctl serve --dev
sandboxctl serve --engine docker --data-dir data --listen 0.0.0.0:8470 --tls-cert cert.pem --tls-key key.pem \\
    --allowed-image 'python:*' --pool 8")]
    Serve(OnDemand<ServeArgs>),

    /// Create, list, rotate and revoke API tokens of a service
    ///
    /// In its data directory or its database, whether it runs or not.
    #[command(subcommand)]
    Token(TokenCommand),

    /// Back up, restore and examine a service
    #[command(subcommand)]
    Server(ServerCommand),

    /// See, drain and give up the nodes of a cluster
    #[command(subcommand)]
    Cluster(ClusterCommand),

    /// Make and migrate the database of a cluster
    #[command(subcommand)]
    Database(DatabaseCommand),

    /// Show and check the configuration
    #[command(subcommand)]
    Config(ConfigCommand),

    /// Print a completion script for a shell
    ///
    /// It completes commands, flags, files, images of the engine, and configuration keys.
    #[command(after_long_help = "\
source <(sandboxctl completions bash)
sandboxctl completions bash > ~/.local/share/bash-completion/completions/sandboxctl
sandboxctl completions fish > ~/.config/fish/completions/sandboxctl.fish")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },

    /// Print the manual page, or write the pages of all commands
    #[command(after_long_help = "\
sandboxctl man | man -l -
sandboxctl man --dir ~/.local/share/man/man1")]
    Man {
        /// Write a page for every command into this directory
        #[arg(long, value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

impl Command {
    /// The JSON that it prints, if it is to print any.
    fn form(&self) -> Json {
        match self {
            Self::Fs(_) => Json::Envelope,
            Self::Exec(_) => Json::Exec,
            Self::Sandbox(args) if matches!(args.command, SandboxCommand::Exec(_)) => Json::Exec,
            _ => Json::Result,
        }
    }

    /// The title of a command without `--ci` whose output quotes files of guests: in a job, it is
    /// printed as that of `run` is.
    pub const fn quoting_title(&self) -> Option<&'static str> {
        match self {
            Self::Check(_) => Some("sandboxctl check"),
            Self::Artifacts(_) => Some("sandboxctl artifacts"),
            Self::Receipt(_) => Some("sandboxctl receipt"),
            Self::Replay(_) => Some("sandboxctl replay"),
            _ => None,
        }
    }
}

/// How a failure of sandboxctl is reported in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Json {
    /// `sandboxctl.result/1`.
    Result,
    /// `sandboxctl.exec/1`.
    Exec,
    /// The envelope of a file operation.
    Envelope,
}

/// `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The script, or - for stdin; each of several runs in a container of its own
    #[arg(value_name = "SCRIPT", value_hint = ValueHint::FilePath,
        required_unless_present = "code")]
    scripts: Vec<PathBuf>,

    /// Run this code instead of a SCRIPT
    #[arg(short, long, conflicts_with = "scripts", allow_hyphen_values = true,
        value_parser = text::<String>())]
    code: Option<String>,

    /// Run this many of several scripts at once; output and results stay in order
    #[arg(short, long, value_name = "NUMBER", default_value = "1",
        value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,

    /// Pass a string as args.KEY; repeatable
    #[arg(long = "arg", value_name = "KEY=VALUE", value_parser = text::<Argument>())]
    pub args: Vec<Argument>,

    /// Pass the members of this JSON object as args; --arg wins
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub args_file: Option<PathBuf>,

    /// Secrets for the script or command.
    #[command(flatten)]
    pub secrets: SecretArgs,

    /// Print one JSON document (sandboxctl.result/1) for each script instead of logs and result
    #[arg(long)]
    pub json: bool,

    /// Print only the result: a string as it is, anything else as JSON; the log goes to stderr
    #[arg(short, long, conflicts_with = "json")]
    pub result_only: bool,

    /// Pass every control sequence that the script prints on to a terminal
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,

    /// What it may use.
    #[command(flatten)]
    limits: LimitArgs<ScriptLimits>,

    /// The sandbox.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// What programs run in, which the script starts by process.exec.
    #[command(flatten)]
    pub root: RootArgs,

    /// Whom its programs may reach.
    #[command(flatten)]
    allow: AllowArgs,

    /// Tools of other servers.
    #[command(flatten)]
    pub upstream: UpstreamArgs,

    /// What it may reach and call beyond that, and what is learnt of it.
    #[command(flatten)]
    pub rules: RulesArgs,

    /// Keep the files of a fresh io dir in ./sandbox-files-ID, and print its path
    #[arg(long, help_heading = "Files", conflicts_with_all = ["io_dir", "no_io"])]
    pub keep: bool,

    /// Give the script no file access
    #[arg(long, help_heading = "Files",
        conflicts_with_all = ["io_dir", "inputs", "mount_path", "workdir", "volumes"])]
    no_io: bool,

    #[arg(long, value_name = "HOW", help_heading = "Files", help = Key::IoErrors.help(),
        value_parser = word_of(Key::IoErrors))]
    io_errors: Option<Value>,

    /// What is copied out of its io dir.
    #[command(flatten)]
    pub artifacts: ArtifactArgs,

    /// What becomes of its changes.
    #[command(flatten)]
    pub changes: ChangesArgs,

    /// What it made of what.
    #[command(flatten)]
    pub receipt: ReceiptArgs,

    /// What makes it do the same each time.
    #[command(flatten)]
    pub reproducible: ReproducibleArgs,

    /// Where its result is written to, in addition to the live output.
    #[command(flatten)]
    pub reports: ReportArgs,

    /// Which service runs it, if one does.
    #[command(flatten)]
    pub remote: RemoteArgs,

    /// Mounts as Docker writes them.
    #[command(flatten)]
    pub volumes: VolumeArgs,

    /// What Docker's users type.
    #[command(flatten)]
    docker_flags: DockerFlags,
}

impl RunArgs {
    /// The scripts, in order; at least one.
    pub fn scripts(&self) -> Vec<ScriptArgument<'_>> {
        match &self.code {
            Some(code) => vec![ScriptArgument::Code(code)],
            None => self.scripts.iter().map(|file| ScriptArgument::File(file)).collect(),
        }
    }

    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        self.sandbox.add_flags(flags);
        self.allow.add_flags(flags);
        self.root.add_flags(flags);
        flags.scope = Scope::of_programs(self.root.is_named());
        flags.set(Key::IoEnabled, self.no_io.then_some(Value::Switch(false)));
        flags.set(Key::IoErrors, self.io_errors.clone());
        self.limits.add_flags(flags);
    }
}

/// `tool`.
#[derive(Debug, Args)]
pub struct ToolArgs {
    /// The tool
    #[arg(value_parser = tool_name(), hide_possible_values = true)]
    pub name: String,

    /// Arguments of the tool as JSON; @FILE reads a file, - stdin
    #[arg(long, value_name = "JSON", value_parser = text::<JsonArgument>())]
    pub input: JsonArgument,

    /// Arguments of sandbox_init for this call's sandbox; @FILE reads a file, - stdin
    #[arg(long, value_name = "JSON", value_parser = text::<JsonArgument>())]
    pub init: Option<JsonArgument>,

    /// The sandbox.
    #[command(flatten)]
    pub sandbox: KeptArgs,
}

fn tool_name() -> impl TypedValueParser<Value = String> {
    Utf8(PossibleValuesParser::new(tools::names()))
}

/// `tools`.
#[derive(Debug, Args)]
pub struct ToolsArgs {
    /// Answer the calls on stdin, one JSON object a line, until it ends
    #[arg(long, required_unless_present = "list")]
    pub stdio: bool,

    /// Print the tools as JSON: [{"name", "description", "inputSchema", "outputSchema"}]
    #[arg(long, conflicts_with = "stdio")]
    pub list: bool,

    /// Prewarm N sandboxes for each frequently used directory and image [0]
    #[arg(long, value_name = "N", value_parser = value_of(Key::PoolSize), conflicts_with = "list")]
    pub pool: Option<Value>,

    /// Each sandbox.
    #[command(flatten)]
    pub sandbox: KeptArgs,
}

impl ToolsArgs {
    /// Adds the flags' values.
    pub fn add_flags(&self, flags: &mut Flags) {
        flags.set(Key::PoolSize, self.pool.clone());
        self.sandbox.add_flags(flags);
    }
}

/// `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The script, or - for stdin
    #[arg(value_hint = ValueHint::FilePath)]
    pub script: PathBuf,

    /// Print JSON: {"ok", "error"}
    #[arg(long)]
    pub json: bool,
}

/// `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Also check the requirements of CI jobs
    #[arg(long, conflicts_with = "database")]
    pub ci: bool,

    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// `ps`.
#[derive(Debug, Args)]
pub struct PsArgs {
    /// Print only the ids
    // It replaces the global flag, and also reads its value.
    #[arg(short, long)]
    pub quiet: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gc`.
#[derive(Debug, Args)]
pub struct GcArgs {
    /// Print what would be removed, without removing it
    #[arg(long)]
    pub dry_run: bool,

    /// Also remove sandboxes whose controller's state is unknown
    #[arg(long)]
    pub force: bool,

    /// Also remove this version's programs from memory; the next sandbox puts them there
    #[arg(long)]
    pub all: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `image`.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Build the image where it is missing; `run` does so by itself
    #[command(after_long_help = "\
sandboxctl image build
sandboxctl image build --rebuild")]
    Build {
        /// Build it even if it is there
        #[arg(long)]
        rebuild: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the sandbox images that the engine has
    #[command(after_long_help = "\
sandboxctl image ls
sandboxctl image ls --programs
sandboxctl image ls --json")]
    Ls {
        /// List images and unpacked archives for programs instead
        #[arg(long)]
        programs: bool,
        /// Print JSON: [{"id", "engine", "agent", "created", "size", "current"}]
        #[arg(long)]
        json: bool,
    },
    /// Remove sandbox images
    #[command(after_long_help = "\
sandboxctl image rm 3f4e9a0c
sandboxctl image rm --stale
sandboxctl image rm --programs --all --engine embedded")]
    Rm {
        /// Ids, or the starts of them
        #[arg(value_name = "ID", required_unless_present_any = ["all", "stale"])]
        ids: Vec<String>,
        /// Remove all of them
        #[arg(long, conflicts_with_all = ["ids", "stale"])]
        all: bool,
        /// Remove all but the one in use
        #[arg(long, conflicts_with = "ids")]
        stale: bool,
        /// Remove unpacked archives instead, which programs can run in
        #[arg(long, conflicts_with = "stale")]
        programs: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write the image to a tar file, building it first where it is missing
    #[command(after_long_help = "\
sandboxctl image save sandbox.tar
sandboxctl image save - | ssh host sandboxctl image load -")]
    Save {
        /// The file, or - for stdout
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Load an image that `image save` wrote
    #[command(after_long_help = "\
sandboxctl image load sandbox.tar
sandboxctl image load - < sandbox.tar")]
    Load {
        /// The file, or - for stdin
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every setting in force, as a configuration file
    #[command(after_long_help = "\
sandboxctl config show --origin
sandboxctl config show limits.timeout exec
SANDBOXCTL_LIMITS_TIMEOUT=2m sandboxctl config show --origin")]
    Show {
        /// Only these keys and sections
        #[arg(value_name = "KEY")]
        keys: Vec<String>,
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
        /// Print JSON, always with origins
        #[arg(long)]
        json: bool,
    },
    /// Check the configuration, and the files that the settings of a service name
    ///
    /// Prints each setting that no run or service accepts, and exits with 2 if there is one. If the
    /// configuration has settings of [server], its certificate and its keys are read too. Nothing is started.
    #[command(after_long_help = "\
sandboxctl config check
sandboxctl config check --config /etc/sandboxctl/config.toml
sandboxctl config check --json")]
    Check {
        /// Print JSON: {"files", "problems": [{"message", "hint"}]}
        #[arg(long)]
        json: bool,
    },
}
