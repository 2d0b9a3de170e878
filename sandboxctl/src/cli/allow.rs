//! Flags for whom programs may reach.

use clap::builder::TypedValueParser;
use clap::{Args, ValueHint};

use super::values::Utf8;
use crate::config::{Allow, Flags, Key, Value};

/// Whom programs may reach: what the commands take that run programs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct AllowArgs {
    /// Let programs reach HOST[:PORT], *.DOMAIN[:PORT] or @PRESET; repeatable
    ///
    /// Without a port that is 80 and 443. It replaces what the configuration allows.
    #[arg(long, value_name = "RULE", value_hint = ValueHint::Hostname, value_parser = rule())]
    allow: Vec<Allow>,
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
    }
}
