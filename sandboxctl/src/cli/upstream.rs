//! Flags for the tools of other MCP servers.

use std::str::FromStr;

use clap::{Args, Subcommand};
use sandbox_api::ToolRule;
use sandbox_upstream::{Upstream, UpstreamError};

use super::values::text;

/// What the commands take whose scripts may call tools of other servers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tools of other servers")]
pub struct UpstreamArgs {
    /// Let scripts call tools of this MCP server as tools.NAME.TOOL; repeatable
    ///
    /// COMMAND is split as by a shell, and runs on this machine, as you, in no sandbox. A URL is
    /// reached over streamable HTTP. NAME alone is [mcp.upstream.NAME] of the configuration, which
    /// has variables and headers too.
    #[arg(long = "upstream", value_name = "NAME=COMMAND|URL", value_parser = text::<UpstreamFlag>())]
    pub upstreams: Vec<UpstreamFlag>,

    /// Give scripts the calls that this rule names; repeatable
    ///
    /// A rule is a pattern of tools, and conditions on arguments: 'github.list_*',
    /// 'github.create_issue /repo=site'. Without this flag scripts have the tools marked read-only. With
    /// it they have only what the rules name: name reading tools too. Rules of --rules are added.
    #[arg(long = "tool", value_name = "RULE", value_parser = text::<ToolRule>())]
    pub tool_rules: Vec<ToolRule>,

    /// Let rules give tools marked destructive, which remove or overwrite something
    #[arg(long)]
    pub allow_destructive: bool,
}

/// A server: one of the configuration, or one that is described here.
#[derive(Debug, Clone)]
pub struct UpstreamFlag {
    pub name: String,
    pub upstream: Option<Upstream>,
}

impl FromStr for UpstreamFlag {
    type Err = UpstreamError;

    fn from_str(text: &str) -> Result<Self, UpstreamError> {
        let (name, upstream) = match text.split_once('=') {
            Some((name, text)) => (name, Some(Upstream::from_text(name, text)?)),
            None => (text, None),
        };
        Ok(Self { name: name.to_owned(), upstream })
    }
}

/// What is done with such servers.
#[derive(Debug, Subcommand)]
pub enum UpstreamCommand {
    /// Try the servers whose tools scripts may call, and list their tools
    ///
    /// Each one is started or reached, asked for its tools, and ended. The exit code is 125 if one of
    /// them fails.
    #[command(after_long_help = "\
sandboxctl mcp upstream check
sandboxctl mcp upstream check --upstream 'time=uvx mcp-server-time' --tool 'time.*'
sandboxctl mcp upstream check --types > sandbox.d.luau")]
    Check(UpstreamCheckArgs),
}

/// `mcp upstream check`.
#[derive(Debug, Args)]
pub struct UpstreamCheckArgs {
    /// The servers beside those of the configuration.
    #[command(flatten)]
    pub upstream: UpstreamArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print the script API as `types` does, with the tools that scripts are given
    #[arg(long, conflicts_with = "json")]
    pub types: bool,
}
