//! Flags for whom programs may reach.

use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, ValueHint};

use super::values::Utf8;
use crate::config::{self, Allow, Flags, Key, Settings, Value};

/// Whom programs may reach: what the commands take that run programs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct AllowArgs {
    /// Let programs reach HOST[:PORT], *.DOMAIN[:PORT] or @PRESET, or send requests: 'GET,POST
    /// https://HOST/PATH/*'; repeatable
    ///
    /// Without a port that is 80 and 443. It replaces what the configuration allows.
    #[arg(long, value_name = "RULE", value_hint = ValueHint::Hostname, value_parser = rule())]
    allow: Vec<Allow>,

    /// Add a secret to requests to a host: 'HOST[:PORT]: HEADER: TEXT env:NAME', '?QUERY=env:NAME' or
    /// 'basic USER:env:NAME' after the host; the sandbox never has it; repeatable
    ///
    /// The controller ends TLS for that host, verifies the server, and allows the host by that. file:PATH is a
    /// source too. Programs have the variable NAME with a placeholder. It replaces what the configuration adds.
    // Checked when it is read: an error of clap repeats the value.
    #[arg(long, value_name = "RULE")]
    inject: Vec<String>,
}

/// Reads a rule, or the name of some.
fn rule() -> impl TypedValueParser<Value = Allow> {
    Utf8(|text: &str| text.parse::<Allow>())
}

impl AllowArgs {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        let asks = !self.allow.is_empty();
        flags.set(Key::Allow, asks.then(|| Value::Hosts(self.allow.clone())));
        let asks = !self.inject.is_empty();
        flags.set(Key::Inject, asks.then(|| Value::Names(self.inject.clone())));
    }
}

/// Rules of hosts and tools in files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct RulesArgs {
    /// Add the rules of this file, as --learn writes it, to what the run may reach and call
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub rules: Option<PathBuf>,

    /// Write requests that no rule allows to this file; on a terminal, ask about each
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub learn: Option<PathBuf>,
}

impl RulesArgs {
    /// Adds the rules of the file to the settings.
    ///
    /// # Errors
    ///
    /// As [`Settings::add_rules`].
    pub fn add_to(&self, settings: &mut Settings) -> Result<(), config::Error> {
        self.rules.as_deref().map_or(Ok(()), |file| settings.add_rules(file))
    }
}
