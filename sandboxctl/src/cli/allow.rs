//! Flags for whom programs may reach.

use clap::builder::TypedValueParser;
use clap::{Args, ValueHint};

use super::values::Utf8;
use crate::config::{Allow, Flags, Key, Value};

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
