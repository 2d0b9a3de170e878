//! What Docker's users type, and what holds in a sandbox anyway.

use clap::Args;

/// Flags that say what holds anyway. They change nothing.
#[derive(Debug, Args)]
pub struct DockerFlags {
    /// Every sandbox is removed at the end
    #[arg(long, hide = true)]
    rm: bool,

    /// There is no network without --allow
    #[arg(long, alias = "net", hide = true, value_name = "MODE", value_parser = no_network)]
    pub network: Option<()>,
}

fn no_network(mode: &str) -> Result<(), &'static str> {
    match mode {
        "none" => Ok(()),
        _ => Err("a sandbox has no network but the hosts of --allow HOST[:PORT]"),
    }
}
