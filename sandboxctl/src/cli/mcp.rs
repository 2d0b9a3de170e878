//! `mcp`: the tools of an agent.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use sandbox_api::ToolRule;
use sandbox_mcp::DEFAULT_CONCURRENCY;

use super::allow::{AllowArgs, RulesArgs};
use super::limits::{AgentLimits, LimitArgs};
use super::root::RootArgs;
use super::upstream::{UpstreamArgs, UpstreamCommand};
use super::values::{Utf8, guest_path, one_of, text, value_of};
use crate::clients;
use crate::config::{Flags, Key, MOST_PREWARMED, Scope, Value};

/// How many sandboxes are started ahead by default.
const DEFAULT_POOL: &str = "2";

/// `mcp`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct McpArgs {
    /// Something else than to serve.
    #[command(subcommand)]
    pub command: Option<McpCommand>,

    /// Offer only the tools whose names match; repeatable
    #[arg(long, value_name = "GLOB", value_parser = text::<String>())]
    pub tools: Vec<String>,

    /// Mount the io dir read-only, and offer no tool that changes files
    #[arg(long, conflicts_with = "no_io")]
    pub read_only: bool,

    /// Prewarm this many sandboxes
    #[arg(long, value_name = "NUMBER", default_value = DEFAULT_POOL,
        value_parser = clap::value_parser!(u16).range(0..=MOST_PREWARMED.into()))]
    pub pool: u16,

    /// Run this many scripts and commands at once; more wait
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_CONCURRENCY,
        value_parser = clap::value_parser!(u32).range(1..=256))]
    pub concurrency: u32,

    #[arg(long, value_name = "SIZE", help = Key::McpOutput.help(),
        value_parser = value_of(Key::McpOutput))]
    max_output: Option<Value>,

    #[arg(long, value_name = "FILE", help = Key::AuditFile.help(), value_hint = ValueHint::FilePath)]
    audit: Option<PathBuf>,

    #[arg(long, value_name = "DIR", help_heading = "Files", help = Key::IoDir.help(),
        value_hint = ValueHint::DirPath)]
    io_dir: Option<PathBuf>,

    /// Give scripts and commands no files, and offer no tools for files
    #[arg(long, help_heading = "Files", conflicts_with_all = ["io_dir", "mount_path"])]
    pub no_io: bool,

    /// Where the io dir appears in the sandbox [default: /io]
    #[arg(long, value_name = "PATH", help_heading = "Files", value_parser = guest_path())]
    pub mount_path: Option<String>,

    /// Let tools write names that others run or trust, such as .git: with an image they may
    #[arg(long, help_heading = "Files")]
    pub no_protect: bool,

    /// What a call may use.
    #[command(flatten)]
    limits: LimitArgs<AgentLimits>,

    /// What programs run in.
    #[command(flatten)]
    pub root: RootArgs,

    /// Whom programs may reach.
    #[command(flatten)]
    allow: AllowArgs,

    /// Tools of other servers.
    #[command(flatten)]
    pub upstream: UpstreamArgs,

    /// Offer tools of these servers as tools of this one too, as NAME.TOOL; repeatable
    ///
    /// A pattern of tools that scripts are given: 'github.list_*'. Each one costs the model its
    /// description. Its calls are checked and limited as those of scripts.
    #[arg(long, value_name = "PATTERN", help_heading = "Tools of other servers",
        value_parser = text::<ToolRule>())]
    pub expose: Vec<ToolRule>,

    /// What it may reach and call beyond that, and what is learnt of it.
    #[command(flatten)]
    pub rules: RulesArgs,
}

/// What `mcp` does other than serving.
#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// Add the server to the configuration of a client
    ///
    /// A backup of the file is kept beside it, and its other entries stay as they are. What follows --
    /// are flags of `sandboxctl mcp`.
    #[command(after_long_help = "\
sandboxctl mcp install --client claude-desktop --io-dir ~/sandbox
sandboxctl mcp install --client cursor -- --image python:3.13-slim --read-only
sandboxctl mcp install --client vscode --print
sandboxctl mcp install --skill")]
    Install(InstallArgs),

    /// The servers whose tools scripts may call
    #[command(subcommand)]
    Upstream(UpstreamCommand),
}

/// `mcp install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// The client
    #[arg(long, value_name = "NAME", required_unless_present = "skill",
        value_parser = Utf8(one_of(clients::Client::ALL, clients::Client::as_str)))]
    pub client: Option<clients::Client>,

    /// Write the skill into .agents/skills of the working directory: it teaches AI agents the tools
    ///
    /// Claude Code has a place of its own: with --client claude-code that is .claude/skills.
    #[arg(long)]
    pub skill: bool,

    /// Print what would be written and the path of its file, and change nothing
    #[arg(long)]
    pub print: bool,

    /// The name of the entry
    #[arg(long, default_value = "sandboxctl", requires = "client",
        value_parser = Utf8(clients::entry_name))]
    pub name: String,

    /// The io dir, which the entry names by its absolute path [default: ./sandbox-files]
    #[arg(long, value_name = "DIR", requires = "client", value_hint = ValueHint::DirPath)]
    pub io_dir: Option<PathBuf>,

    /// Flags of `sandboxctl mcp`
    #[arg(last = true, value_name = "FLAG", requires = "client")]
    pub flags: Vec<String>,
}

impl McpArgs {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        if let Some(dir) = &self.io_dir {
            flags.values.push((Key::IoDir, Value::Path(dir.clone()), "--io-dir"));
            flags.values.push((Key::IoEnabled, Value::Switch(true), "--io-dir"));
        }
        flags.set(Key::IoEnabled, self.no_io.then_some(Value::Switch(false)));
        flags.set(Key::McpOutput, self.max_output.clone());
        flags.set(Key::AuditFile, self.audit.clone().map(Value::Path));
        self.limits.add_flags(flags);
        self.root.add_flags(flags);
        flags.scope = Scope::of_programs(self.root.is_named());
        self.allow.add_flags(flags);
    }
}
