//! Configuration of a service, from flags and settings: checked before anything is opened.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox_api::process::SCROLLBACKS;
use sandbox_api::{ByteSize, Injection, SandboxSpec};
use sandbox_auth::{JwtConfig, JwtKeys, KeyFileError};
use sandbox_controller::{Config, NAMES_DIR, PoolConfig};
use sandbox_env::Environment;
use sandbox_http::{ConnectionLimits, Endpoint, HttpConfig, ResourceMetadata, Tls, TlsError};
use sandbox_mcp::PrivateDir;
use sandbox_service::{
    HostPolicy, IoPosture, KeptBounds, PreviewConfig, Quotas, RequestBounds, ServiceConfig,
};
use sandbox_store::DatabaseConfig;

use super::super::launch::{injections, own_injections};
use super::super::{Context, database};
use super::node::PeerPlan;
use super::own::Place;
use crate::cli::serve::ServeArgs;
use crate::config::{Key, Layer, Scope, Settings, Value};
use crate::error::{Error, causes};
use crate::target::{self, is_in};

/// Whose a service is, and how long it serves.
pub enum Owner {
    /// Those who have a token, until a signal.
    Team,
    /// One program's of this user, until its stdin ends. Its socket and its data end with it.
    Program(PrivateDir),
    /// This user's own one, until it has nothing to do.
    User(Place),
    /// The same with a door for programs and browsers, until a signal.
    Developer(Place),
}

/// Configuration of a service.
pub struct Plan {
    /// Where it listens, unless its listener was passed to it. There is one at least.
    pub endpoints: Vec<Endpoint>,
    /// The engine, and how sandboxes are made.
    pub controller: Config,
    /// What it accepts and keeps.
    pub service: ServiceConfig,
    /// How it speaks HTTP.
    pub http: HttpConfig,
    /// The files of its certificate and key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whose tokens are accepted, in addition to those of the store.
    pub jwt: Option<JwtConfig>,
    /// The sandboxes that are started ahead.
    pub pool: PoolConfig,
    /// How long what runs may go on when it is to end.
    pub shutdown_timeout: Duration,
    /// Whose it is.
    pub owner: Owner,
    /// The database of a cluster, and how its nodes reach this one.
    pub cluster: Option<(DatabaseConfig, PeerPlan)>,
}

/// The executions that a service of one user runs at one time, and those that wait.
const PRIVATE_CALLS: usize = 64;
const PRIVATE_QUEUE: usize = 10_000;
/// The output that its clients can follow. They read it in pieces, and may be slow.
const PRIVATE_EVENTS: usize = 64 << 20;
/// How long a result can be read again, after its connection was lost.
const PRIVATE_RETENTION: Duration = Duration::from_secs(600);
/// Where a developer's programs and browser find it.
const DEVELOPERS: ([u8; 4], u16) = ([127, 0, 0, 1], 8470);

impl Plan {
    /// Checks flags and settings.
    ///
    /// # Errors
    ///
    /// The first that is missing or does not fit the others.
    pub fn of(context: &Context<'_>, args: &ServeArgs, settings: &Settings) -> Result<Self, Error> {
        let here = &context.environment.working_directory;
        let place = || Place::of(&context.environment);
        if args.insecure_no_auth && settings.is_on(Key::E2bEnabled) {
            let why = "E2B's API has tokens: without them any page in a browser could use it";
            return Err(Error::usage("--insecure-no-auth", why)
                .with_hint("server.e2b.enabled = false, or authentication"));
        }
        let owner = match (args.private, args.local, args.dev) {
            (false, false, false) => None,
            (true, ..) => {
                let parent = context.controller(settings).private_dir();
                Some(Owner::Program(super::super::mcp::private_dir(&parent)?))
            }
            (_, true, _) => Some(Owner::User(place())),
            (_, _, true) => Some(Owner::Developer(place())),
        };
        if let Some(owner) = owner {
            return Self::of_one_user(context, args, settings, owner);
        }
        if settings.text(Key::EngineKind) == Some("auto") {
            let why = "a service does not choose its engine by what it finds";
            return Err(Error::usage(settings.named(Key::EngineKind), why)
                .with_hint("--engine docker, or --engine embedded"));
        }
        let data_dir = settings.path_of(Key::ServerDataDir).ok_or_else(|| {
            Error::usage("--data-dir", "the service needs a data directory")
                .with_hint("--data-dir DIR, or [server] data_dir, names one; it is created")
        })?;
        let data_dir = here.join(data_dir);
        let endpoint = endpoint(settings, here)?;
        let mut controller = context.controller(settings);
        target::refuse_served(&settings.named(Key::ServerDataDir), &data_dir, &controller)?;
        if let Endpoint::Unix(path) = &endpoint {
            target::refuse_served(&settings.named(Key::ServerListen), path, &controller)?;
        }
        // Overrides `io.scratch_dir`: an io dir is moved to the files of its execution at its end,
        // so both must be on one file system.
        controller.shared_scratch_dir = Some(controller.scratch_dir);
        controller.scratch_dir = data_dir.join("scratch");
        let tls = tls(settings, here)?;
        let disk_reserve = controller.disk_reserve;
        let inject = inject(&context.environment, settings)?;
        let service = ServiceConfig { disk_reserve, inject, ..service(args, settings, data_dir)? };
        Ok(Self {
            endpoints: vec![endpoint],
            controller,
            service,
            http: HttpConfig {
                connections: ConnectionLimits {
                    connections: settings.count(Key::ServerMaxConnections).unwrap_or(1),
                    of_an_address: settings
                        .count(Key::ServerMaxConnectionsOfAnAddress)
                        .unwrap_or(1),
                },
                hosts: settings.names(Key::ServerAllowedHosts),
                origins: settings.names(Key::ServerAllowedOrigins),
                resource: resource(settings)?,
                ..HttpConfig::default()
            },
            tls,
            jwt: jwt(settings)?,
            pool: settings.pool(),
            shutdown_timeout: settings.time(Key::ServerShutdownTimeout).unwrap_or_default(),
            owner: Owner::Team,
            cluster: cluster(&context.environment, args, settings)?,
        })
    }

    /// For one user, who names what image and host he likes. Who comes by a socket also names directories.
    fn of_one_user(
        context: &Context<'_>,
        args: &ServeArgs,
        settings: &Settings,
        owner: Owner,
    ) -> Result<Self, Error> {
        let mut controller = context.controller(settings);
        let here = &context.environment.working_directory;
        let named_root = args.sandbox.root.local().absolute(here);
        let (data_dir, service_dir, socket, root) = match &owner {
            Owner::Program(dir) => {
                (dir.data_dir(), dir.path().to_owned(), dir.path().join("socket"), named_root)
            }
            Owner::Team | Owner::User(_) | Owner::Developer(_) => {
                let place = Place::of(&context.environment);
                place.create()?;
                let root = place.root(&named_root)?;
                let data_dir = match chosen(settings, Key::ServerDataDir) {
                    Some(Value::Path(dir)) => here.join(dir),
                    _ => place.data_dir(),
                };
                (data_dir.clone(), data_dir, place.socket(), root)
            }
        };
        let mut endpoints = vec![Endpoint::Unix(socket)];
        if let Owner::Developer(_) = owner {
            let named = settings.named(Key::ServerDataDir);
            target::refuse_served(&named, &data_dir, &controller)?;
            endpoints.push(match chosen(settings, Key::ServerListen) {
                Some(_) => endpoint(settings, here)?,
                None => Endpoint::Tcp(DEVELOPERS.into()),
            });
        }
        controller.shared_scratch_dir = Some(controller.scratch_dir);
        controller.scratch_dir = data_dir.join("scratch");
        controller.service_dir = Some(service_dir);
        let is_programs = matches!(owner, Owner::Program(_));
        let mut defaults = service(args, settings, data_dir)?;
        defaults.sandbox.inject = own_injections(&context.environment, settings)?;
        let port = endpoints.iter().find_map(|endpoint| match endpoint {
            Endpoint::Tcp(address) => Some(address.port()),
            Endpoint::Unix(_) => None,
        });
        let service = ServiceConfig {
            // A developer's browser comes without TLS, and none comes to a socket.
            previews: defaults.previews.filter(|_| port.is_some()).map(|previews| PreviewConfig {
                scheme: "http",
                port,
                ..previews
            }),
            io: match settings.io_enabled() {
                true => IoPosture::PrivatePerExecution,
                false => IoPosture::Off,
            },
            default_root: match args.sandbox.root.is_named() {
                true => defaults.default_root,
                false => root.root(),
            },
            allowed_images: vec!["*".to_owned()],
            hosts: HostPolicy::Any { usual: settings.allow()? },
            // Its token may get further than its user.
            host_dirs: !matches!(owner, Owner::Developer(_)),
            // A program may have got the name of an image from a model.
            pull: if is_programs { settings.tools_pull() } else { settings.pull() },
            locked_names: Some(controller.state_dir.join(NAMES_DIR)),
            waited_in_memory: is_programs,
            concurrency: PRIVATE_CALLS,
            max_queued: PRIVATE_QUEUE,
            disk_reserve: controller.disk_reserve,
            quotas: Quotas {
                concurrency: PRIVATE_CALLS,
                sandboxes: defaults.kept.sandboxes,
                ..Quotas::default()
            },
            request: RequestBounds {
                stdin_bytes: HttpConfig::default().max_request,
                ..RequestBounds::default()
            },
            max_event_bytes: ByteSize::b(PRIVATE_EVENTS as u64),
            retention: PRIVATE_RETENTION,
            ..defaults
        };
        Ok(Self {
            endpoints,
            controller,
            service,
            http: HttpConfig { max_upload: ByteSize::b(u64::MAX), ..HttpConfig::default() },
            tls: None,
            jwt: None,
            pool: settings.pool(),
            shutdown_timeout: Duration::ZERO,
            owner,
            cluster: None,
        })
    }
}

/// What a flag says. What is configured is for the service of a team.
fn chosen(settings: &Settings, key: Key) -> Option<&Value> {
    let setting = settings.setting(key);
    setting.value.as_ref().filter(|_| setting.layer == Layer::Flag)
}

fn endpoint(settings: &Settings, here: &Path) -> Result<Endpoint, Error> {
    let endpoint = settings.text(Key::ServerListen).unwrap_or_default().parse();
    let endpoint = endpoint.map_err(|error: sandbox_http::InvalidEndpoint| {
        Error::usage(settings.named(Key::ServerListen), error.to_string())
    })?;
    Ok(match endpoint {
        Endpoint::Unix(path) => Endpoint::Unix(here.join(path)),
        endpoint => endpoint,
    })
}

/// The files of the certificate and its key.
fn tls(settings: &Settings, here: &Path) -> Result<Option<(PathBuf, PathBuf)>, Error> {
    match [Key::ServerTlsCert, Key::ServerTlsPrivate].map(|key| settings.path_of(key)) {
        [Some(certificate), Some(key)] => Ok(Some((here.join(certificate), here.join(key)))),
        [None, None] => Ok(None),
        _ => Err(Error::usage(
            "--tls-cert",
            "a certificate needs its key, and a key its certificate",
        )
        .with_hint("--tls-cert FILE --tls-key FILE")),
    }
}

/// Reads a certificate and its key.
///
/// # Errors
///
/// If they cannot be used.
pub fn load_tls((certificate, key): &(PathBuf, PathBuf)) -> Result<Tls, Error> {
    Tls::load(certificate, key).map_err(|error| {
        let flag = if matches!(error, TlsError::Key(_)) { "--tls-key" } else { "--tls-cert" };
        Error::usage(flag, causes(&error)).with_hint(error.hint())
    })
}

/// The refusal of the keys of an issuer.
pub fn refused_keys(error: &KeyFileError) -> Error {
    Error::usage("server.jwt", causes(error)).with_hint_of(error.hint())
}

/// What a service would refuse of the settings, and of the files that they name.
pub fn problems(settings: &Settings, environment: &Environment) -> Vec<Error> {
    let here = &environment.working_directory;
    let read_keys = |keys: Option<JwtConfig>| match keys {
        Some(keys) => JwtKeys::read(&keys).map(drop).map_err(|error| refused_keys(&error)),
        None => Ok(()),
    };
    let checks = [
        endpoint(settings, here).map(drop),
        tls(settings, here)
            .and_then(|files| files.as_ref().map_or(Ok(()), |it| load_tls(it).map(drop))),
        resource(settings).map(drop),
        jwt(settings).and_then(read_keys),
        database::config(environment, settings).map(drop),
        inject(environment, settings).map(drop),
        PeerPlan::of(settings).map(drop),
    ];
    checks.into_iter().filter_map(Result::err).collect()
}

/// The secrets of the callers.
fn inject(
    environment: &Environment,
    settings: &Settings,
) -> Result<BTreeMap<String, Vec<Injection>>, Error> {
    let read = |(subject, rules): (String, Vec<String>)| {
        let what = format!("server.inject.{subject}");
        Ok((subject, injections(environment, &what, &rules)?))
    };
    settings.server_inject().into_iter().map(read).collect()
}

fn service(
    args: &ServeArgs,
    settings: &Settings,
    data_dir: PathBuf,
) -> Result<ServiceConfig, Error> {
    let mut sandbox = SandboxSpec::new()
        .io_errors(settings.io_errors())
        .protected(settings.protected())
        .default_encoding(settings.default_encoding());
    sandbox.allowed_paths = settings.allowed_paths();
    let io = match &args.io_dir {
        Some(dir) => {
            let dir = dir.canonicalize().map_err(|error| {
                Error::unusable("--io-dir", dir, &error).with_hint("name a directory that exists")
            })?;
            if is_in(&dir, &data_dir) || is_in(&data_dir, &dir) {
                let (dir, data_dir) = (dir.display(), data_dir.display());
                let why =
                    format!("{dir} and the service's data directory {data_dir} are in each other");
                return Err(Error::usage("--io-dir", why).with_hint("name a directory elsewhere"));
            }
            IoPosture::Shared(dir)
        }
        // Scripts of others have no files unless that is wanted.
        None if settings.io_enabled()
            && settings.setting(Key::IoEnabled).layer != Layer::Default =>
        {
            IoPosture::PrivatePerExecution
        }
        None => IoPosture::Off,
    };
    let scripts = settings.bounds(Scope::Limits)?;
    let max_ttl = settings.time(Key::ServerMaxTtl).unwrap_or_default();
    let kept = KeptBounds::default();
    let scrollback = settings.size(Key::ServerScrollback).unwrap_or(kept.scrollback);
    if !SCROLLBACKS.contains(&scrollback.as_u64()) {
        let key = settings.named(Key::ServerScrollback);
        return Err(Error::usage(key, "it is from 64KiB to 16MiB"));
    }
    let defaults = ServiceConfig::new(data_dir);
    Ok(ServiceConfig {
        previews: previews(settings)?,
        io,
        sandbox,
        default_root: args.sandbox.root.root(settings),
        allowed_images: settings.names(Key::ServerAllowedImages),
        pull: settings.tools_pull(),
        hosts: HostPolicy::Listed(settings.allow()?),
        limits: scripts.limits,
        ceiling: scripts.ceiling,
        programs: Some(settings.bounds(Scope::Exec)?),
        concurrency: settings.count(Key::ServerConcurrency).unwrap_or(1),
        max_queued: settings.count(Key::ServerMaxQueued).unwrap_or(1),
        quotas: quotas(settings),
        retention: settings.time(Key::ServerRetention).unwrap_or_default(),
        max_stored: settings.size(Key::ServerMaxStored).unwrap_or(defaults.max_stored),
        kept: KeptBounds {
            sandboxes: settings.count(Key::ServerSandboxes).unwrap_or(kept.sandboxes),
            max_ttl,
            ttl: kept.ttl.min(max_ttl),
            paused: settings.count(Key::ServerMaxPaused).unwrap_or(kept.paused),
            paused_for: settings.time(Key::ServerMaxPausedTime).unwrap_or(kept.paused_for),
            scrollback,
            ..kept
        },
        prepared: settings.prepared(),
        figures_by_subject: settings.is_on(Key::ServerMetricsBySubject),
        ..defaults
    })
}

/// The cluster that the service is a node of, if any.
fn cluster(
    environment: &Environment,
    args: &ServeArgs,
    settings: &Settings,
) -> Result<Option<(DatabaseConfig, PeerPlan)>, Error> {
    let Some(database) = database::config(environment, settings)? else { return Ok(None) };
    if args.io_dir.is_some() {
        let why = "it would be another directory on each machine of a cluster";
        return Err(Error::usage("--io-dir", why).with_hint(
            "`[io] enabled = true` gives each execution a directory of its own, and keeps its files",
        ));
    }
    Ok(Some((database, PeerPlan::of(settings)?)))
}

/// The metadata of the service as a resource of OAuth, if its URL is configured.
fn resource(settings: &Settings) -> Result<Option<ResourceMetadata>, Error> {
    let Some(url) = settings.text(Key::ServerUrl) else { return Ok(None) };
    let is_url = ["https://", "http://"].iter().any(|scheme| {
        // It becomes a part of headers.
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'?' | b'#');
        let rest = url.strip_prefix(scheme);
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(is_plain))
    });
    if !is_url {
        return Err(Error::usage(settings.named(Key::ServerUrl), "it is not a URL of HTTP")
            .with_hint("such as https://sandbox.example.org"));
    }
    let authorization_servers = settings.text(Key::JwtIssuer).map(str::to_owned);
    Ok(Some(ResourceMetadata {
        url: url.to_owned(),
        authorization_servers: authorization_servers.into_iter().collect(),
    }))
}

/// Where ports have hosts of their own. Pages of guests are there: no such host has to do with those of the API.
fn previews(settings: &Settings) -> Result<Option<PreviewConfig>, Error> {
    let key = Key::ServerPreviewDomain;
    let Some(domain) = settings.text(key) else { return Ok(None) };
    let domain = domain.to_ascii_lowercase();
    let refuse = |why: String| Error::usage(settings.named(key), why);
    let is_label = |label: &str| {
        let is_of = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        matches!(label.len(), 1..=63) && label.bytes().all(is_of)
    };
    let is_domain = domain.len() <= 189 && domain.split('.').all(is_label);
    if !is_domain || domain.rsplit('.').next().is_some_and(|last| last.parse::<u8>().is_ok()) {
        return Err(refuse("it is not a domain".to_owned())
            .with_hint("such as preview.example.org, for https://8080-ID.preview.example.org"));
    }
    let url = settings.text(Key::ServerUrl).and_then(|url| url.parse::<hyper::Uri>().ok());
    let mut hosts = settings.names(Key::ServerAllowedHosts);
    hosts.extend(url.as_ref().and_then(|url| url.host()).map(str::to_owned));
    let is_below = |host: &str, other: &str| {
        host == other || host.strip_suffix(other).is_some_and(|rest| rest.ends_with('.'))
    };
    for host in hosts {
        let host = host.to_ascii_lowercase();
        if is_below(&host, &domain) || is_below(&domain, &host) {
            return Err(refuse(format!(
                "it is not apart from {host}, a host of the service itself"
            ))
            .with_hint("pages of sandboxes need a domain that has nothing to do with the API's"));
        }
    }
    if domain == "localhost" {
        return Err(refuse("localhost is a host of the service itself".to_owned())
            .with_hint("preview.localhost, for a browser on this machine"));
    }
    let scheme = match url.as_ref().and_then(|url| url.scheme_str()) {
        Some("http") => "http",
        _ => "https",
    };
    let port = url.as_ref().and_then(|url| url.port_u16());
    let may_be_public = settings.is_on(Key::ServerPublicPorts);
    Ok(Some(PreviewConfig { domain, scheme, port, may_be_public }))
}

/// Whose tokens are accepted.
fn jwt(settings: &Settings) -> Result<Option<JwtConfig>, Error> {
    let text = |key| settings.text(key).map(str::to_owned);
    let (issuer, audience) = (text(Key::JwtIssuer), text(Key::JwtAudience));
    let jwks_file = settings.path_of(Key::JwtJwksFile);
    let secret_file = settings.path_of(Key::JwtSecretFile);
    match (issuer, audience, jwks_file.is_some() || secret_file.is_some()) {
        (None, None, false) => Ok(None),
        (Some(issuer), Some(audience), true) => {
            Ok(Some(JwtConfig { issuer, audience, jwks_file, secret_file }))
        }
        _ => Err(Error::usage("server.jwt", "an issuer needs all of its settings")
            .with_hint("issuer, audience, and one of jwks_file and secret_file")),
    }
}

/// The bounds of each caller.
pub fn quotas(settings: &Settings) -> Quotas {
    Quotas {
        concurrency: settings.count(Key::ServerSubjectConcurrency).unwrap_or(1),
        rate_per_minute: settings.count(Key::QuotaRate).and_then(|rate| u32::try_from(rate).ok()),
        stored: settings.size(Key::QuotaStored),
        cpu_per_day: settings.time(Key::QuotaCpu),
        sandboxes: settings.count(Key::QuotaSandboxes).unwrap_or(Quotas::default().sandboxes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    fn previews_of(values: &[(Key, &str)]) -> Option<PreviewConfig> {
        let variables: Vec<_> = values.iter().map(|(key, text)| (key.variable(), *text)).collect();
        let variables: Vec<_> = variables.iter().map(|(name, text)| (&**name, *text)).collect();
        let environment = Environment::new(Path::new("/"), 1000, &variables);
        previews(&Settings::load(&environment, Flags::default()).unwrap()).ok().flatten()
    }

    #[test]
    fn previews_have_nothing_in_common_with_the_hosts_of_the_service() {
        let url = (Key::ServerUrl, "https://Sandbox.Example.org:8443/api");
        let hosts = (Key::ServerAllowedHosts, "['api.internal']");
        let at = |domain: &str| previews_of(&[(Key::ServerPreviewDomain, domain), url, hosts]);
        let found = at("Preview.Example.net").unwrap();
        assert_eq!(
            (&*found.domain, found.scheme, found.port),
            ("preview.example.net", "https", Some(8443))
        );
        assert!(!found.may_be_public);
        assert!(at("preview.example.org").is_some() && at("preview.localhost").is_some());
        for refused in [
            "sandbox.example.org", "example.org", "a.sandbox.example.org", "internal",
            "x.api.internal", "localhost", "https://preview.example.net", "*.preview.example.net",
            "preview..net", "192.0.2.1",
        ] {
            assert_eq!(at(refused), None, "{refused}");
        }
        assert_eq!(previews_of(&[url]), None);
        let plain = previews_of(&[(Key::ServerPreviewDomain, "preview.example.net")]).unwrap();
        assert_eq!((plain.scheme, plain.port), ("https", None));
    }
}
