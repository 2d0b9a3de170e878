//! `token` and `server`: the administration of a service's store.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand, ValueHint};
use sandbox_api::service::{ExecutionState, Subject};
use sandbox_auth::{Scope, Token};

use super::cluster::DatabaseArgs;
use super::remote::RemoteArgs;
use super::values::{Utf8, one_of, text, time};
use crate::config::{Flags, Key, Value};

/// Where a service stores what it must not lose.
#[derive(Debug, Default, Args)]
pub struct StoreArgs {
    #[arg(long, value_name = "DIR", help = Key::ServerDataDir.help(),
        value_hint = ValueHint::DirPath, conflicts_with = "database")]
    pub data_dir: Option<PathBuf>,

    /// That of a cluster.
    #[command(flatten)]
    database: DatabaseArgs,
}

impl StoreArgs {
    /// Adds the settings.
    pub fn add_flags(&self, flags: &mut Flags) {
        flags.set(Key::ServerDataDir, self.data_dir.clone().map(Value::Path));
        self.database.add_flags(flags);
    }
}

/// `token`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token, and print it
    ///
    /// It is printed once: only a digest of it is stored. A service that runs accepts it at once. The
    /// data directory is created if missing. --database makes it for all nodes of a cluster.
    #[command(after_long_help = "\
sandboxctl token create --data-dir /var/lib/sandboxctl --subject ci --scope executions:write
sandboxctl token create --data-dir /var/lib/sandboxctl --subject ops --scope admin --expires 8h
sandboxctl token create --subject ci --scope executions:read --expires never --json")]
    Create {
        /// Who calls with it: everything that is made with it belongs to this name
        #[arg(long, value_name = "NAME", value_parser = subject())]
        subject: Subject,
        /// What it is for; repeatable. admin is everything
        #[arg(long = "scope", value_name = "SCOPE", required = true,
            value_parser = Utf8(one_of(Scope::ALL.iter().copied(), Scope::as_str)))]
        scopes: Vec<Scope>,
        /// How long it is valid, such as 12h or 90days, or never
        #[arg(long, value_name = "TIME", default_value = "90days", value_parser = text::<Expiry>())]
        expires: Expiry,
        /// Print it as older SDKs of E2B take it, as E2B_API_KEY: the same token
        #[arg(long)]
        e2b: bool,
        /// The store.
        #[command(flatten)]
        store: StoreArgs,
        /// Print JSON: {"id", "token", "subject", "scopes", "created_at", "expires_at"}
        #[arg(long)]
        json: bool,
    },

    /// List tokens, without their secrets
    #[command(after_long_help = "\
sandboxctl token ls --data-dir /var/lib/sandboxctl
sandboxctl token ls --json")]
    Ls {
        /// The store.
        #[command(flatten)]
        store: StoreArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Replace a token by a new one for the same subject and scopes, and print it
    ///
    /// The old one is revoked at once, or valid for --overlap longer, so that its callers can take the new
    /// one.
    #[command(after_long_help = "\
sandboxctl token rotate --data-dir /var/lib/sandboxctl 5f0c7a1be2d40586
sandboxctl token rotate --data-dir /var/lib/sandboxctl 5f0c7a1be2d40586 --overlap 1h --expires 90days")]
    Rotate {
        /// The old token: the id that `token ls` shows
        #[arg(value_parser = Utf8(token_id))]
        id: String,
        /// How long the old token stays valid, such as 1h [default: it is revoked at once]
        #[arg(long, value_name = "TIME", value_parser = Utf8(time))]
        overlap: Option<Duration>,
        /// How long the new one is valid, such as 12h or 90days, or never [default: as long as the old one
        /// was made for]
        #[arg(long, value_name = "TIME", value_parser = text::<Expiry>())]
        expires: Option<Expiry>,
        /// The store.
        #[command(flatten)]
        store: StoreArgs,
        /// Print JSON: {"id", "token", "subject", "scopes", "created_at", "expires_at"}
        #[arg(long)]
        json: bool,
    },

    /// Revoke tokens: a service that runs refuses them at once
    #[command(after_long_help = "\
sandboxctl token revoke --data-dir /var/lib/sandboxctl 5f0c7a1be2d40586
sandboxctl token revoke --data-dir /var/lib/sandboxctl --subject ci")]
    Revoke {
        /// The tokens: the ids that `token ls` shows
        #[arg(value_name = "ID", required_unless_present = "subject",
            value_parser = Utf8(token_id))]
        ids: Vec<String>,
        /// All tokens of this subject
        #[arg(long, value_name = "NAME", conflicts_with = "ids", value_parser = subject())]
        subject: Option<Subject>,
        /// The store.
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// `server`.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Write a copy of a service's database to a new file, while it runs
    ///
    /// The copy is one state of the database: executions, events, results, kept sandboxes, tokens,
    /// usage. Files of executions are not in it. `server restore` puts it back.
    #[command(after_long_help = "\
sandboxctl server backup /backup/sandboxctl.db --data-dir /var/lib/sandboxctl")]
    Backup {
        /// The file, which must not exist; only this user can read it
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The store.
        #[command(flatten)]
        store: StoreArgs,
    },

    /// Replace the database of a service that does not run by a backup
    ///
    /// The database that it replaces stays beside it, as replaced-TIME.db. What waited or ran when the backup
    /// was made is not run again: it may have ended since. Tokens that were revoked since are valid again,
    /// and files of executions that the backup does not know are removed when the service starts.
    #[command(after_long_help = "\
sandboxctl server restore /backup/sandboxctl.db --data-dir /var/lib/sandboxctl")]
    Restore {
        /// The backup
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The store.
        #[command(flatten)]
        store: StoreArgs,
    },

    /// List executions of all subjects, the latest first
    ///
    /// For users who may read the store of the service: callers of its API see only their own.
    #[command(after_long_help = "\
sandboxctl server executions --data-dir /var/lib/sandboxctl
sandboxctl server executions --database postgres://sandboxctl@db.example.org/sandboxctl --status running
sandboxctl server executions --subject ci --limit 1000 --json")]
    Executions {
        /// Only those of this subject
        #[arg(long, value_name = "NAME", value_parser = subject())]
        subject: Option<Subject>,
        /// Only those with this status: queued, running, ok, script_error, exit, limit, …
        #[arg(long, hide_possible_values = true,
            value_parser = Utf8(one_of(ExecutionState::all(), ExecutionState::as_str)))]
        status: Option<ExecutionState>,
        /// At most this many
        #[arg(long, value_name = "NUMBER", default_value = "50",
            value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// The store.
        #[command(flatten)]
        store: StoreArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Report whether a service runs and is ready, and what it has
    ///
    /// Prints whether a service uses the data directory, and what is in it; with --server, whether that
    /// service is ready, and each of its checks. Exits with 1 if it does not run, or is not ready.
    #[command(after_long_help = "\
sandboxctl server status --data-dir /var/lib/sandboxctl
sandboxctl server status --server http://127.0.0.1:8470
sandboxctl server status --data-dir /var/lib/sandboxctl --json")]
    Status {
        /// The store.
        #[command(flatten)]
        store: StoreArgs,
        /// The service.
        #[command(flatten)]
        remote: RemoteArgs,
        /// Print JSON: {"data_dir": {…}, "server": {"url", "ready", "checks"}}
        #[arg(long)]
        json: bool,
    },
}

fn subject() -> impl TypedValueParser<Value = Subject> {
    Utf8(|text: &str| Subject::new(text).map_err(|error| error.to_string()))
}

/// How long a token is valid; `None` is for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry(pub Option<Duration>);

impl std::str::FromStr for Expiry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self(None)),
            text => time(text)
                .map(|time| Self(Some(time)))
                .map_err(|error| format!("{error}, or never")),
        }
    }
}

/// Reads the id of a token, which is not a secret.
fn token_id(text: &str) -> Result<String, &'static str> {
    // A whole token too: one that was found where it should not be.
    if let Some(token) = Token::parse(text) {
        return Ok(token.id().to_owned());
    }
    match text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("it is not the id of a token"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_directory_of_the_flag_is_the_setting() {
        let mut flags = Flags::default();
        let args = StoreArgs { data_dir: Some("data".into()), ..StoreArgs::default() };
        args.add_flags(&mut flags);
        let environment = sandbox_env::Environment::new(std::path::Path::new("/"), 1000, &[]);
        let settings = crate::config::Settings::load(&environment, flags).unwrap();
        assert_eq!(settings.setting(Key::ServerDataDir).value, Some(Value::Path("data".into())));
    }

    #[test]
    fn token_is_valid_for_a_time_or_for_ever() {
        assert_eq!("never".parse(), Ok(Expiry(None)));
        assert_eq!("12h".parse(), Ok(Expiry(Some(Duration::from_secs(12 * 3600)))));
        for odd in ["", "0s", "tomorrow", "-1h"] {
            assert!(odd.parse::<Expiry>().unwrap_err().ends_with(", or never"), "{odd}");
        }
    }

    #[test]
    fn token_is_named_by_its_id_or_by_itself() {
        let new = Token::generate();
        for text in [new.id().to_owned(), new.id().to_uppercase(), new.expose()] {
            assert_eq!(token_id(&text), Ok(new.id().to_owned()));
        }
        for odd in ["", "sbx_", "5f0c7a1be2d4058", "5f0c7a1be2d4058g"] {
            assert!(token_id(odd).is_err(), "{odd}");
        }
    }
}
