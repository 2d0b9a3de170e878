//! `serve`: its flags and their help.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::cluster::DatabaseArgs;
use super::sandbox::KeptArgs;
use super::values::{text, value_of};
use crate::config::{Flags, Key, Value};

/// `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[arg(long, value_name = "ADDRESS", help = Key::ServerListen.help(), value_hint = ValueHint::Url,
        value_parser = value_of(Key::ServerListen))]
    listen: Option<Value>,

    #[arg(long, value_name = "DIR", help = Key::ServerDataDir.help(),
        value_hint = ValueHint::DirPath)]
    data_dir: Option<PathBuf>,

    #[arg(long = "allowed-image", value_name = "PATTERN", help = Key::ServerAllowedImages.help(),
        value_parser = text::<String>())]
    allowed_images: Vec<String>,

    /// Certificate chain of the service, as PEM; with --tls-key it speaks HTTPS
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Serve one program of this user: on a socket that the first line on stdout names, until stdin ends
    #[arg(long, hide = true, conflicts_with_all = ["listen", "data_dir", "allowed_images",
        "tls_cert", "insecure_no_auth", "shutdown_timeout", "io_dir", "database"])]
    pub private: bool,

    /// Serve this user's own sandboxes at the socket that is stdin, until there is nothing to do
    #[arg(long, hide = true, conflicts_with_all = ["private", "dev", "listen", "data_dir",
        "allowed_images", "tls_cert", "insecure_no_auth", "shutdown_timeout", "io_dir", "database"])]
    pub local: bool,

    /// Development server on the local socket and 127.0.0.1:8470, with a temporary token
    #[arg(long, conflicts_with_all = ["private", "allowed_images", "tls_cert", "insecure_no_auth",
        "io_dir", "database"])]
    pub dev: bool,

    /// Serve programs with E2B's SDKs too, at /e2b
    #[arg(long, conflicts_with_all = ["private", "local", "insecure_no_auth"])]
    pub e2b: bool,

    /// The database.
    #[command(flatten)]
    database: DatabaseArgs,

    #[arg(long, value_name = "ADDRESS", help = Key::ServerPeerListen.help(),
        value_parser = value_of(Key::ServerPeerListen))]
    peer_listen: Option<Value>,

    #[arg(long, value_name = "ADDRESS", help = Key::ServerAdvertise.help(),
        value_parser = value_of(Key::ServerAdvertise))]
    advertise: Option<Value>,

    /// Disable authentication; loopback addresses only
    #[arg(long)]
    pub insecure_no_auth: bool,

    #[arg(long, value_name = "TIME", help = Key::ServerShutdownTimeout.help(),
        value_parser = value_of(Key::ServerShutdownTimeout))]
    shutdown_timeout: Option<Value>,

    /// Prewarm N sandboxes for each frequently used kind [0]
    #[arg(long, value_name = "N", value_parser = value_of(Key::PoolSize))]
    pool: Option<Value>,

    /// Format of the log on stderr
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,

    /// Give scripts this directory, which all executions share
    #[arg(long, value_name = "DIR", help_heading = "Files", value_hint = ValueHint::DirPath)]
    pub io_dir: Option<PathBuf>,

    /// The sandboxes.
    #[command(flatten)]
    pub sandbox: KeptArgs,
}

/// How a log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

impl ServeArgs {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        self.sandbox.add_flags(flags);
        let path = |path: &Option<PathBuf>| path.clone().map(Value::Path);
        flags.set(Key::PoolSize, self.pool.clone());
        flags.set(Key::ServerListen, self.listen.clone());
        flags.set(Key::E2bEnabled, self.e2b.then_some(Value::Switch(true)));
        self.database.add_flags(flags);
        flags.set(Key::ServerPeerListen, self.peer_listen.clone());
        flags.set(Key::ServerAdvertise, self.advertise.clone());
        flags.set(Key::ServerDataDir, path(&self.data_dir));
        flags.set(Key::ServerTlsCert, path(&self.tls_cert));
        flags.set(Key::ServerTlsPrivate, path(&self.tls_key));
        flags.set(Key::ServerShutdownTimeout, self.shutdown_timeout.clone());
        let images = !self.allowed_images.is_empty();
        let images = images.then(|| Value::Names(self.allowed_images.clone()));
        flags.set(Key::ServerAllowedImages, images);
    }
}
