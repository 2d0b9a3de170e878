//! `mcp upstream check`: tries the servers whose tools scripts may call.

use std::fmt::Write as _;
use std::sync::Arc;

use sandbox_api::{HostTool, ToolEffect};
use sandbox_controller::host_tools::ToolGrant;
use serde::Serialize;

use crate::cli::upstream::UpstreamCheckArgs;
use crate::commands::upstream::of_command;
use crate::commands::{Context, block_on};
use crate::config::Key;
use crate::error::Error;
use crate::render::escaped_line;
use crate::signals::Signals;

/// The exit code if a server fails: that of `doctor`.
const FAILED: u8 = 125;

/// A server, as it is printed.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    tools: Vec<ListedTool>,
}

/// A tool of it.
#[derive(Debug, Serialize)]
struct ListedTool {
    name: String,
    effect: ToolEffect,
    /// Whether scripts are given some call of it.
    given: bool,
}

pub fn check(context: &Context<'_>, args: &UpstreamCheckArgs) -> Result<u8, Error> {
    let settings = context.settings()?;
    let configured = settings.upstreams(Key::McpUpstream);
    let found = of_command(context, &args.upstream, &settings, configured)?;
    let Some((upstreams, grant)) = found else {
        return Err(Error::usage("mcp.upstream", "no server is configured").with_hint(
            "[mcp.upstream] in the user's configuration has them, or --upstream NAME=COMMAND",
        ));
    };
    let checked = block_on(async {
        let mut signals = Signals::listen()?;
        let checked = signals.guard(upstreams.check()).await;
        upstreams.close().await;
        checked
    })?;
    let listed: Vec<_> =
        checked.into_iter().map(|(name, tools)| listed(name, tools, &grant)).collect();
    match args.json {
        true => context.output.document(&listed)?,
        false => context.output.text(&shown(&listed))?,
    }
    let fails = listed.iter().any(|it| it.error.is_some());
    Ok(if fails { FAILED } else { 0 })
}

fn listed(name: String, tools: Result<Arc<[HostTool]>, String>, grant: &ToolGrant) -> Listed {
    let (tools, error) = match tools {
        Ok(tools) => (tools.to_vec(), None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let tools = tools.into_iter().map(|tool| ListedTool {
        given: grant.gives(&tool),
        name: tool.name,
        effect: tool.effect,
    });
    Listed { name, error, tools: tools.collect() }
}

fn shown(listed: &[Listed]) -> String {
    let mut text = String::new();
    for Listed { name, error, tools } in listed {
        _ = match error {
            Some(error) => writeln!(text, "{name}: failed: {}", escaped_line(error)),
            None => {
                let given = tools.iter().filter(|tool| tool.given).count();
                writeln!(text, "{name}: {} tools, {given} given", tools.len())
            }
        };
        for ListedTool { name, effect, given } in tools {
            let given = if *given { "given" } else { "-" };
            _ = writeln!(text, "  {given:<6} {:<12} {}", effect.as_str(), escaped_line(name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_listed_with_what_is_given() {
        let tool = |name: &str, effect, given| ListedTool { name: name.to_owned(), effect, given };
        let listed = |name: &str, error: Option<&str>, tools| Listed {
            name: name.to_owned(),
            error: error.map(str::to_owned),
            tools,
        };
        let text = shown(&[
            listed(
                "a",
                None,
                vec![
                    tool("a.read", ToolEffect::ReadOnly, true),
                    tool("a.drop\u{202e}", ToolEffect::Destructive, false),
                ],
            ),
            listed("b", Some("it ended\nearly"), Vec::new()),
        ]);
        insta::assert_snapshot!(text, @r"
        a: 2 tools, 1 given
          given  read_only    a.read
          -      destructive  a.drop\u{202e}
        b: failed: it ended\nearly
        ");
    }
}
