//! How the database of a cluster is reached.

use std::error::Error;
use std::fmt;
use std::io;
use std::iter;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::error::{QueryError, within};
use crate::error::StoreError;

/// How long a connection may take until it is made, for each host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a host may take from there to its first answer: one that has a socket may still be unable to answer, and a
/// pooler may have no connection left.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// After so long without an answer of the other side a connection is lost.
const SILENCE: Duration = Duration::from_secs(10);

/// The database of a cluster, and how many connections it has.
#[derive(Clone)]
pub struct DatabaseConfig {
    /// As of libpq: `postgres://USER@HOST[,HOST]/NAME`, without a password.
    pub url: String,
    /// The password.
    pub password: Option<String>,
    /// A PEM file of the certificates to trust, in place of those of the system.
    pub ca: Option<PathBuf>,
    /// The most connections that read.
    pub connections: usize,
    /// Whether a connection may listen for wake-ups: not behind a pooler that gives each transaction another
    /// connection.
    pub listen: bool,
}

impl DatabaseConfig {
    /// The most connections that read, unless it is configured.
    pub const CONNECTIONS: usize = 8;

    /// The database at a URL, with the defaults of all else.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            password: None,
            ca: None,
            connections: Self::CONNECTIONS,
            listen: true,
        }
    }
}

impl fmt::Debug for DatabaseConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DatabaseConfig").finish_non_exhaustive()
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    /// Its commits are awaited for as long as they take: a `statement_timeout` that ends the wait for a
    /// synchronous standby reports success, although the standby has nothing.
    Write,
}

impl Purpose {
    const fn settings(self) -> &'static str {
        match self {
            Self::Read => "-c statement_timeout=10s",
            Self::Write => {
                "-c statement_timeout=0 -c lock_timeout=2s \
                 -c idle_in_transaction_session_timeout=10s"
            }
        }
    }
}

/// A connection whose messages are to be read by its owner.
pub(crate) type Messages =
    Connection<Socket, <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream>;

/// Makes connections.
pub(crate) struct Connector {
    /// A host each, in the order in which they are tried.
    hosts: Vec<Config>,
    tls: MakeRustlsConnect,
}

impl Connector {
    /// # Errors
    ///
    /// [`StoreError::Refused`] if the URL or the certificates cannot be used.
    pub fn new(database: &DatabaseConfig) -> Result<Self, StoreError> {
        let (url, verification) = split_verification(&database.url)?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let cause = error.source().map(|cause| format!(": {cause}"));
            invalid(format!("{error}{}", cause.unwrap_or_default()))
        })?;
        if config.get_password().is_some() {
            return Err(invalid("it has a password, which others could see"));
        }
        // It would go elsewhere than the host whose certificate is checked.
        if !config.get_hostaddrs().is_empty() {
            return Err(invalid("it has a hostaddr: write the address as the host"));
        }
        if let Some(password) = &database.password {
            config.password(password);
        }
        let is_local = config.get_hosts().iter().all(is_local);
        let is_verified = verification.unwrap_or(!is_local);
        let mut hosts = hosts(&config)?;
        for config in &mut hosts {
            config
                .ssl_mode(if is_verified { SslMode::Require } else { SslMode::Disable })
                .target_session_attrs(TargetSessionAttrs::ReadWrite)
                .application_name("sandboxctl")
                .connect_timeout(CONNECT_TIMEOUT)
                .tcp_user_timeout(SILENCE)
                .keepalives_idle(SILENCE / 2)
                .keepalives_interval(SILENCE / 5)
                .keepalives_retries(3);
        }
        let roots = match is_verified {
            true => roots(database.ca.as_deref())
                .map_err(|error| invalid(format!("no certificates to trust: {error}")))?,
            false => RootCertStore::empty(),
        };
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { hosts, tls: MakeRustlsConnect::new(tls) })
    }

    /// A connection, which lasts as long as its client.
    pub async fn connect(&self, purpose: Purpose) -> Result<Client, StoreError> {
        let (client, messages) = self.connect_raw(purpose).await?;
        tokio::spawn(async move {
            if let Err(error) = messages.await {
                tracing::debug!(%error, "a connection to the database ended");
            }
        });
        Ok(client)
    }

    /// A connection whose messages the caller reads, as a listener does.
    pub async fn connect_raw(&self, purpose: Purpose) -> Result<(Client, Messages), StoreError> {
        let mut last = None;
        for host in &self.hosts {
            match self.connect_to(host, purpose).await {
                Ok(connected) => return Ok(connected),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(|| invalid("it has no host"), refused))
    }

    async fn connect_to(
        &self,
        host: &Config,
        purpose: Purpose,
    ) -> Result<(Client, Messages), QueryError> {
        let (given, settings) = (host.get_options().unwrap_or_default(), purpose.settings());
        let mut config = host.clone();
        // To compile a statement takes longer than to run it.
        config.options(format!("-c search_path=sandboxctl -c jit=off {settings} {given}"));
        match within(ANSWER_TIMEOUT, config.connect(self.tls.clone())).await {
            // A pooler refuses settings: those of the user are used.
            Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                within(ANSWER_TIMEOUT, host.connect(self.tls.clone())).await
            }
            connected => connected,
        }
    }
}

/// A configuration for each of the hosts: the driver has one time for the sockets of all, and none for what follows.
fn hosts(all: &Config) -> Result<Vec<Config>, StoreError> {
    let (hosts, ports) = (all.get_hosts(), all.get_ports());
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(invalid("it has another number of ports than of hosts"));
    }
    let one = |(index, host): (usize, &Host)| {
        let mut one = Config::new();
        match host {
            Host::Tcp(name) => one.host(name),
            Host::Unix(path) => one.host_path(path),
        };
        if let Some(port) = ports.get(index).or(ports.first()) {
            one.port(*port);
        }
        if let Some(user) = all.get_user() {
            one.user(user);
        }
        if let Some(password) = all.get_password() {
            one.password(password);
        }
        if let Some(name) = all.get_dbname() {
            one.dbname(name);
        }
        if let Some(options) = all.get_options() {
            one.options(options);
        }
        one.channel_binding(all.get_channel_binding());
        one
    };
    Ok(hosts.iter().enumerate().map(one).collect())
}

/// Why there is no connection. What does not pass, such as a wrong password, is a mistake in the configuration.
fn refused(error: QueryError) -> StoreError {
    match StoreError::from(error) {
        StoreError::Database(error) => {
            let causes = iter::successors(Some(&*error as &dyn Error), |&it| it.source());
            invalid(causes.last().map(ToString::to_string).unwrap_or_default())
        }
        other => other,
    }
}

fn invalid(detail: impl fmt::Display) -> StoreError {
    StoreError::refused(
        format!("cannot use the URL of the database: {detail}"),
        "write postgres://USER@HOST/NAME; the password is in SANDBOXCTL_DATABASE_PASSWORD or \
         server.database_password_file",
    )
}

/// The URL without its `sslmode`, and whether that asks for a verified server. The driver knows only modes
/// that verify nothing.
fn split_verification(url: &str) -> Result<(String, Option<bool>), StoreError> {
    let Some((address, query)) = url.split_once('?') else { return Ok((url.to_owned(), None)) };
    let mut verification = None;
    let mut others = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslmode", "verify-full")) => verification = Some(true),
            Some(("sslmode", "disable")) => verification = Some(false),
            Some(("sslmode", mode)) => {
                let known = "verify-full and disable are supported";
                return Err(invalid(format!("it has sslmode={mode}; {known}")));
            }
            _ => others.push(pair),
        }
    }
    let separator = if others.is_empty() { "" } else { "?" };
    Ok((format!("{address}{separator}{}", others.join("&")), verification))
}

/// Whether the way to a host does not leave the machine.
fn is_local(host: &Host) -> bool {
    let Host::Tcp(name) = host else { return true };
    name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn roots(file: Option<&Path>) -> io::Result<RootCertStore> {
    let certificates: Vec<_> = match file {
        Some(file) => CertificateDer::pem_file_iter(file)
            .and_then(Iterator::collect)
            .map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(certificates) {
        (0, _) => Err(io::Error::other("there are none")),
        _ => Ok(roots),
    }
}
