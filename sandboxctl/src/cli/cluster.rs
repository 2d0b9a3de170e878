//! `cluster` and `database`: the administration of nodes that share a database.

use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand, ValueHint};
use sandbox_store::LEASES;

use super::values::{Utf8, time, value_of};
use crate::config::{Flags, Key, Value};

/// The database that nodes share.
#[derive(Debug, Default, Args)]
pub struct DatabaseArgs {
    #[arg(long, value_name = "URL", help = Key::ServerDatabase.help(), value_hint = ValueHint::Url,
        value_parser = value_of(Key::ServerDatabase))]
    database: Option<Value>,
}

impl DatabaseArgs {
    /// Whether the command line names one.
    pub const fn is_named(&self) -> bool {
        self.database.is_some()
    }

    /// Adds the setting.
    pub fn add_flags(&self, flags: &mut Flags) {
        flags.set(Key::ServerDatabase, self.database.clone());
    }
}

/// `cluster`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// List the nodes, and what each has
    ///
    /// Exits with 1 if no node is ready.
    #[command(after_long_help = "\
sandboxctl cluster status --database postgres://sandboxctl@db.example.org/sandboxctl
sandboxctl cluster status --json")]
    Status {
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
        /// Print JSON: {"cluster", "lease_ms", "queued", "nodes": […]}
        #[arg(long)]
        json: bool,
    },

    /// Let a node begin nothing more
    ///
    /// What runs there goes on, and its kept sandboxes can be used. `cluster status` says drained when it
    /// has neither.
    #[command(after_long_help = "\
sandboxctl cluster drain m1-3f9c
sandboxctl cluster drain m1-3f9c --evict")]
    Drain {
        /// The node, as `cluster status` shows it
        node: String,
        /// Delete its kept sandboxes, with their files
        #[arg(long)]
        evict: bool,
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
    },

    /// Let a drained node begin again
    #[command(after_long_help = "sandboxctl cluster undrain m1-3f9c")]
    Undrain {
        /// The node, as `cluster status` shows it
        node: String,
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
    },

    /// Give up a node that is away for good, with its kept sandboxes and files
    ///
    /// Their names are free then. A node that has a session is refused: stop it first.
    #[command(after_long_help = "sandboxctl cluster forget m1-3f9c")]
    Forget {
        /// The node, as `cluster status` shows it
        node: String,
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
    },
}

/// `database`.
#[derive(Debug, Subcommand)]
pub enum DatabaseCommand {
    /// Make the tables of a cluster in a database, and its key
    ///
    /// A database that has them stays as it is.
    #[command(after_long_help = "\
sandboxctl database init --database postgres://sandboxctl@db.example.org/sandboxctl
sandboxctl database init --lease 30s")]
    Init {
        /// How long a node that is not heard of is waited for, from 2s to 5m [default: 15s]
        #[arg(long, value_name = "TIME", value_parser = lease())]
        lease: Option<Duration>,
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
    },

    /// Bring the tables to this version, while nodes of the version before go on
    #[command(after_long_help = "\
sandboxctl database migrate --database postgres://sandboxctl@db.example.org/sandboxctl")]
    Migrate(DatabaseArgs),

    /// Say that the database was restored from a backup, while no node runs
    ///
    /// What waited or ran when the backup was made may have ended since: it ends as killed, and is not run
    /// again.
    #[command(after_long_help = "\
sandboxctl database restored --database postgres://sandboxctl@db.example.org/sandboxctl")]
    Restored(DatabaseArgs),
}

fn lease() -> impl TypedValueParser<Value = Duration> {
    Utf8(|text: &str| match time(text) {
        Ok(lease) if LEASES.contains(&lease) => Ok(lease),
        Ok(_) => Err("it is not from 2s to 5m".to_owned()),
        Err(error) => Err(error),
    })
}
