//! `serve`: a service, from its start to its end.

mod access;
mod e2b;
mod listen;
mod mcp;
mod node;
pub mod own;
pub mod plan;
mod telemetry;

use std::future::pending;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::OptionFuture;
use sandbox_api::service::{BySubject, ShutdownReport, Subject, Time};
use sandbox_auth::{LOCAL_SUBJECT, SIGN_IN_CODE_VALIDITY, Scope, Token};
use sandbox_controller::{AccessRecord, Controller};
use sandbox_e2b::E2b;
use sandbox_http::{AccessDecision, Endpoint, Http, HttpConfig, Shutdown, Tls};
use sandbox_service::{Service, ServiceConfig};
use sandbox_store::{Durability, Store, StoreError};
use sd_notify::NotifyState;
use serde_json::json;
use tokio::task::block_in_place;

use self::access::{Access, Policy};
use self::e2b::Whose;
use self::listen::Listening;
use self::node::Node;
use self::own::{PROTOCOL, Place, Record};
use self::plan::{Owner, Plan};
use self::telemetry::Telemetry;
use super::{Context, token, upstream};
use crate::cli::root::LocalRootArgs;
use crate::cli::serve::ServeArgs;
use crate::cli::token::Expiry;
use crate::config::{Key, Settings};
use crate::error::{Error, Signal, causes};
use crate::signals::Signals;

/// How long connections may go on after all executions have ended.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// For how long the local service waits for the one before it, which is ending.
const PREDECESSOR: Duration = Duration::from_secs(60);
/// How long it does so without a word.
const SILENCE: Duration = Duration::from_secs(1);

pub fn serve(context: &Context<'_>, args: &ServeArgs) -> Result<u8, Error> {
    if !args.local {
        return serve_as(context, args);
    }
    // No terminal and no signal to its starter's group ends it. It has no other leader if it leads a
    // group already.
    _ = rustix::process::setsid();
    serve_as(context, args).inspect_err(|error| {
        // The command that started it asks why it is not there.
        Place::of(&context.environment).write_failure(&error.document());
    })
}

fn serve_as(context: &Context<'_>, args: &ServeArgs) -> Result<u8, Error> {
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    let plan = Plan::of(context, args, &settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::system("the runtime", error))?;
    let ended = runtime.block_on(run(context, args, &settings, plan));
    runtime.shutdown_background();
    ended
}

/// A service that runs, and what can be read again while it does.
struct Running<'a> {
    context: &'a Context<'a>,
    args: &'a ServeArgs,
    service: Service,
    access: Arc<Access>,
    tls: Option<Arc<Tls>>,
}

async fn run(
    context: &Context<'_>,
    args: &ServeArgs,
    settings: &Settings,
    plan: Plan,
) -> Result<u8, Error> {
    let mut signals = Signals::listen()?;
    let Plan {
        endpoints,
        controller,
        service,
        http,
        tls,
        jwt,
        shutdown_timeout,
        pool,
        owner,
        cluster,
    } = plan;
    let tls = tls.as_ref().map(plan::load_tls).transpose()?.map(Arc::new);
    let listening = match &owner {
        Owner::Team => Listening::passed_or_at(&endpoints, settings)?,
        Owner::Program(_) => Listening::at(&endpoints, settings)?,
        Owner::User(_) => Listening::passed_as_stdin(&endpoints)?,
        Owner::Developer(place) => take_place(place, &endpoints, settings)?,
    };
    if args.insecure_no_auth {
        listening.refuse_others()?;
    }
    let telemetry = match owner {
        Owner::Team => Telemetry::start(settings, &endpoints[0])?,
        _ => Telemetry::default(),
    };
    let (durability, patience) = match owner {
        Owner::Team => (Durability::Disk, Duration::ZERO),
        Owner::Program(_) => (Durability::Process, Duration::ZERO),
        Owner::User(_) | Owner::Developer(_) => (Durability::Disk, PREDECESSOR),
    };
    let (store, peers) = match cluster {
        None => {
            let waits = |error: &StoreError| {
                context.output.notice(&format!("{error}: waiting for its end"));
                if let Owner::User(place) = &owner {
                    // The command that started it waits too.
                    place.write_failure(&unopened(error).document());
                }
            };
            let opening = open(&service.data_dir, durability, patience, waits);
            let opened = signals.guard(opening).await?;
            let is_own = matches!(owner, Owner::User(_) | Owner::Developer(_));
            let store = opened.map_err(|error| match error {
                StoreError::InUse { .. } if is_own => unopened(&error),
                error => error.into(),
            })?;
            if let Owner::User(place) = &owner {
                place.forget_failure();
            }
            (store, None)
        }
        Some((database, peers)) => (block_in_place(|| Store::connect(&database))?, Some(peers)),
    };
    let node = match (peers, store.cluster()) {
        (Some(peers), Some(cluster)) => Some(Node::bind(peers, cluster, &service.data_dir)?),
        _ => None,
    };
    let own_token = match owner {
        Owner::Developer(_) => Some(OwnToken::create(&store)?),
        _ => None,
    };
    let mut service = ServiceConfig { node: node.as_ref().map(|it| it.session.clone()), ..service };
    let policy = if args.insecure_no_auth { Policy::NoCaller } else { Policy::Others };
    let access = Access::new(policy, store.clone(), jwt);
    let access = access.map_err(|error| plan::refused_keys(&error))?;
    if policy == Policy::Others
        && !listening.is_local()
        && !block_in_place(|| access.knows_tokens())?
    {
        return Err(Error::usage(
            "--listen",
            "no way to authenticate: there is no token, and no issuer of tokens",
        )
        .with_hint(
            "`sandboxctl token create` makes a token in the data directory; [server.jwt] names an \
             issuer; --listen unix:PATH is for this user; --insecure-no-auth is for everybody on \
             this machine",
        ));
    }
    if tls.is_none() && !listening.is_loopback() {
        tracing::warn!(
            "connections from other machines are not encrypted: --tls-cert, or a reverse proxy, \
             encrypts them"
        );
    }

    // What is configured is for the service of a team.
    let upstreams = match owner {
        Owner::Team => upstream::of_service(&context.environment, settings)?,
        Owner::Developer(_) | Owner::Program(_) | Owner::User(_) => BySubject::default(),
    };
    service.host_tools = upstream::tools_of_service(&upstreams, settings);
    let controller = context.connect(controller, &mut signals).await?;
    let offers_e2b = match owner {
        Owner::Team => settings.is_on(Key::E2bEnabled),
        Owner::Developer(_) => args.e2b,
        Owner::Program(_) | Owner::User(_) => false,
    };
    let examined = async {
        if let Some(place) = controller.examine_programs().await? {
            tracing::info!("programs are executed {place}");
        }
        if !offers_e2b {
            return Ok(None);
        }
        let is_developers = matches!(owner, Owner::Developer(_));
        let public_ports = is_developers || settings.is_on(Key::ServerPublicPorts);
        if let Some(previews) = &mut service.previews {
            previews.may_be_public = public_ports;
        }
        let whose = if is_developers { Whose::Developers } else { Whose::Others };
        let (environment, service) = (&context.environment, &mut service);
        let offered =
            e2b::settings(settings, environment, &controller, service, whose, public_ports);
        offered.await.map(Some)
    };
    let e2b = match examined.await {
        Ok(e2b) => e2b,
        Err(error) => {
            context.close(controller, &mut signals).await;
            return Err(error);
        }
    };
    let controller = Arc::new(controller);
    if pool.size > 0 {
        controller.pool(pool);
    }
    let tools = mcp::options(&service, settings, upstreams)?;
    let starting = Service::start(service, controller.clone(), store);
    let service = match signals.guard(starting).await {
        Ok(started) => started.map_err(|error| Error::system("the service", error))?,
        Err(signalled) => {
            context.close_shared(controller, &mut signals).await;
            return Err(signalled);
        }
    };
    let access = Arc::new(access);
    let shutdown = Shutdown::default();
    let (stop, kill) = (shutdown.stop.clone(), shutdown.kill.clone());
    let audit = Arc::downgrade(&controller);
    // The terminal of a developer shows the link and the token, not each request of the page.
    let logs_all = !matches!(owner, Owner::Developer(_));
    let audit = move |decision: &AccessDecision<'_>| record_access(&audit, logs_all, decision);
    let (peers, peer_listener, node_dir) = match node.map(|node| node.join(&service)) {
        Some((peers, listener, dir)) => (Some(peers), Some(listener), Some(dir)),
        None => (None, None, None),
    };
    let has_auth = policy == Policy::Others;
    let http = HttpConfig { audit: Some(Arc::new(audit)), peers, has_auth, ..http };
    let (tools, mount) = mcp::mount(&service, tools);
    let mut mounts = vec![mount];
    if let Some(e2b) = e2b {
        let app = sandbox_e2b::App::new(service.clone(), e2b, stop.clone());
        mounts.extend(E2b::new(app, access.clone()).mounts());
    }
    let http = Http::new(http, service.clone(), access.clone(), mounts, shutdown);
    let addresses = listening.addresses(tls.is_some());
    let code = own_token.as_ref().map(|it| http.sign_in_code(&it.token.expose()));
    if let Owner::User(place) | Owner::Developer(place) = &owner {
        // What it was started with is kept by now.
        let root = place.root(&LocalRootArgs::default())?;
        place.write_record(&Record::new(&controller, settings, &root, &addresses))?;
        controller.audit_service(LOCAL_SUBJECT, "local.start", None);
    }
    let connections = http.connections();
    let peers_served = OptionFuture::from(peer_listener.map(|it| http.serve_peers(it)));
    let served = http.serve(listening.into_listeners(), tls.clone());
    let mut served = tokio::spawn(async move { tokio::join!(served, peers_served) });

    if let (Owner::Program(_), Endpoint::Unix(socket)) = (&owner, &endpoints[0]) {
        let (protocol, version) = (PROTOCOL, env!("CARGO_PKG_VERSION"));
        let hello = json!({ "protocol": protocol, "version": version, "socket": socket });
        context.output.document(&hello)?;
    } else {
        for address in &addresses {
            context.output.text(&format!("listening on {address}\n"))?;
        }
    }
    if let Owner::Team = owner {
        notify(&[NotifyState::Ready]);
    }
    if let (Some(OwnToken { token, .. }), Some(code)) = (&own_token, code) {
        let server = server_of(&addresses);
        context.output.text(&next_steps(server, token, &code))?;
        if offers_e2b {
            context.output.text(&e2b::next_steps(server, token))?;
        }
    }
    tracing::info!(addresses = addresses.join(" "), "ready");

    let running = Running { context, args, service, access, tls };
    let signal = {
        let over = over(&owner, running.service.clone(), connections);
        tokio::pin!(over);
        loop {
            tokio::select! {
                signal = signals.next() => match signal {
                    Signal::Hangup => running.reload(),
                    signal => break Some(signal),
                },
                _ = &mut served => break None,
                () = &mut over => break Some(Signal::Terminate),
            }
        }
    };
    match &owner {
        Owner::Team => notify(&[NotifyState::Stopping]),
        Owner::Program(_) => {}
        Owner::User(place) | Owner::Developer(place) => place.leave(),
    }
    if let Some(own_token) = own_token {
        own_token.revoke();
    }
    tracing::info!(timeout = ?shutdown_timeout, "shutting down: no more is accepted");
    stop.cancel();
    let Running { service, access, .. } = running;
    let shutdown = async { tokio::join!(service.shutdown(shutdown_timeout), tools.close()).0 };
    let second = end(&mut signals, shutdown).await;
    let report = match second {
        Ok(report) => report,
        // What is left dies with this process, and the next one says what became of it.
        Err(signal) => std::process::exit(signal.exit_code().into()),
    };
    log_report(&report);
    if signal.is_some() && tokio::time::timeout(ANSWER_TIMEOUT, &mut served).await.is_err() {
        kill.cancel();
        _ = tokio::time::timeout(ANSWER_TIMEOUT, &mut served).await;
    }
    // The last figures are those of a service that still exists.
    _ = tokio::task::spawn_blocking(|| telemetry.stop()).await;
    drop((service, access, tools));
    drop(node_dir);
    if let Owner::User(_) | Owner::Developer(_) = owner {
        controller.audit_service(LOCAL_SUBJECT, "local.stop", None);
    }
    context.close_shared(controller, &mut signals).await;
    Ok(0)
}

/// The refusal of a local service whose data directory another one has.
fn unopened(error: &StoreError) -> Error {
    Error::usage("the local service", error.to_string()).with_hint(
        "a service of this user that was started with another XDG_RUNTIME_DIR may have it: \
         `sandboxctl local stop` with that value, or without the variable, ends it; its sandboxes and their files stay",
    )
}

/// The store of a data directory. One that another service holds is waited for; after a while that is said once.
async fn open(
    data_dir: &Path,
    durability: Durability,
    patience: Duration,
    waits: impl Fn(&StoreError),
) -> Result<Store, StoreError> {
    let (since, mut is_said) = (Instant::now(), false);
    loop {
        match block_in_place(|| Store::open(data_dir, durability)) {
            Err(error @ StoreError::InUse { .. }) if since.elapsed() < patience => {
                if !is_said && since.elapsed() >= SILENCE {
                    is_said = true;
                    waits(&error);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            opened => return opened,
        }
    }
}

/// Listens where the local service does, in its place, and at the other addresses.
fn take_place(
    place: &Place,
    endpoints: &[Endpoint],
    settings: &Settings,
) -> Result<Listening, Error> {
    place.create()?;
    let lock = place.lock();
    let _lock = lock.map_err(|error| Error::system("the lock", error))?;
    if place.is_served()? {
        let why = "the local service is running already, and has the sandboxes";
        let hint =
            "`sandboxctl local stop` ends it; its sandboxes and their files stay, for this one too";
        return Err(Error::usage("--dev", why).with_hint(hint));
    }
    Listening::at(endpoints, settings)
}

/// The token of a developer, which is valid as long as the service runs.
struct OwnToken {
    store: Store,
    token: Token,
}

impl OwnToken {
    fn subject() -> Subject {
        Subject::new(LOCAL_SUBJECT).expect("it is the name of one")
    }

    fn create(store: &Store) -> Result<Self, StoreError> {
        // A service that was killed has left its own.
        store.revoke_tokens_of(&Self::subject(), Time::now())?;
        let scopes = Scope::ALL.to_vec();
        let (_, token) = token::create(store, Self::subject(), scopes, Expiry(None))?;
        Ok(Self { store: store.clone(), token })
    }

    fn revoke(self) {
        if let Err(error) = self.store.revoke_tokens_of(&Self::subject(), Time::now()) {
            tracing::warn!(%error, "the token was not revoked; the next service of this user does it");
        }
    }
}

/// Where a developer's programs find it.
fn server_of(addresses: &[String]) -> &str {
    let server = addresses.iter().find(|address| address.starts_with("http"));
    server.or(addresses.first()).map_or("", String::as_str)
}

/// What a developer types next.
fn next_steps(server: &str, token: &Token, code: &str) -> String {
    let token = token.expose();
    let mut steps = format!(
        "\nIn another terminal:\n  export SANDBOXCTL_SERVER={server} SANDBOXCTL_TOKEN={token}\n  \
         sandboxctl sandbox create debian:13\n"
    );
    if server.starts_with("http") {
        let minutes = SIGN_IN_CODE_VALIDITY.as_secs() / 60;
        steps.push_str(&format!(
            "\nIn a browser, within {minutes} minutes (the link is good once):\n  {server}/#/sign-in?code={code}\n"
        ));
    }
    steps
}

/// Returns when there is nothing more to do for the owner.
async fn over(owner: &Owner, service: Service, connections: impl Fn() -> usize) {
    match owner {
        // When the program that started this one has ended, or closed its pipe.
        Owner::Program(_) => {
            _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
        }
        Owner::User(place) => place.unused(&service, connections).await,
        Owner::Team | Owner::Developer(_) => {
            drop(service);
            pending().await
        }
    }
}

/// Waits for the end of the service, or for a second signal that does not wait.
async fn end(
    signals: &mut Signals,
    shutdown: impl Future<Output = ShutdownReport>,
) -> Result<ShutdownReport, Signal> {
    tokio::pin!(shutdown);
    loop {
        match signals.guard(&mut shutdown).await {
            Ok(report) => return Ok(report),
            Err(Error::Signalled(signal)) if signal != Signal::Hangup => return Err(signal),
            Err(_) => {}
        }
    }
}

impl Running<'_> {
    /// Reads keys, certificates and quotas again. What cannot be read stays as it was.
    fn reload(&self) {
        let now = NotifyState::monotonic_usec_now();
        let reloading = [NotifyState::Reloading].into_iter().chain(now.ok());
        notify(&reloading.collect::<Vec<_>>());
        let failed = |what: &str, why: String| tracing::error!(what, why, "not reloaded");
        match self.context.settings_with(|flags| self.args.add_flags(flags)) {
            Ok(settings) => self.service.set_quotas(plan::quotas(&settings)),
            Err(error) => failed("quotas", error.message()),
        }
        if let Err(error) = self.access.reload() {
            failed("keys", causes(&error));
        }
        if let Some(Err(error)) = self.tls.as_ref().map(|tls| tls.reload()) {
            failed("certificates", causes(&error));
        }
        tracing::info!("keys, certificates and quotas were read again");
        notify(&[NotifyState::Ready]);
    }
}

/// Reports the state to the service manager, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// A line of the log for each request, and one of the audit while there is one. Unless all are logged, those
/// that are not refused are at the level `debug`.
fn record_access(audit: &Weak<Controller>, logs_all: bool, decision: &AccessDecision<'_>) {
    let AccessDecision { request, subject, method, path, status, refused, reason, .. } = *decision;
    let (peer, method) = (&decision.peer.to_string(), method.as_str());
    let (subject, refused) = (subject.map(Subject::as_str), refused.map(|kind| kind.as_str()));
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(
                target: "sandboxctl::access",
                request,
                trace_id = decision.trace_id,
                %peer,
                subject,
                %method,
                path,
                status,
                refused,
                reason,
                "request",
            )
        };
    }
    match logs_all || status >= 400 {
        true => log!(info),
        false => log!(debug),
    }
    if let Some(controller) = audit.upgrade() {
        let record = AccessRecord { request, peer, subject, method, path, status, refused, reason };
        controller.audit_access(record);
    }
}

/// Says what became of what ran and waited.
fn log_report(report: &ShutdownReport) {
    let ShutdownReport { finished, cancelled, queued, left } = report;
    tracing::info!(
        "shut down: {} finished, {} cancelled, {} queued for the next start",
        finished.len(),
        cancelled.len(),
        queued.len()
    );
    for (ids, became) in
        [(finished, "finished"), (cancelled, "cancelled"), (queued, "queued for the next start")]
    {
        for id in ids {
            tracing::info!(id, "{became}");
        }
    }
    for sandbox in left {
        tracing::warn!(sandbox, "not removed");
    }
}

impl Listening {
    /// Where it listens, as clients name it.
    fn addresses(&self, is_encrypted: bool) -> Vec<String> {
        let scheme = if is_encrypted { "https" } else { "http" };
        let shown = |endpoint: &Endpoint| match endpoint {
            Endpoint::Tcp(address) => format!("{scheme}://{address}"),
            Endpoint::Unix(path) => format!("unix:{}", path.display()),
        };
        self.endpoints().map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn data_directory_that_another_service_has_is_waited_for_and_that_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, said) = (folder.path().join("data"), Cell::new(0));
        let held = Store::open(&dir, Durability::Disk).unwrap();
        let opening = open(&dir, Durability::Disk, SILENCE * 3 / 2, |_| said.set(said.get() + 1));
        let refused = opening.await.unwrap_err();
        assert!(matches!(refused, StoreError::InUse { .. }), "{refused}");
        assert_eq!(said.get(), 1);
        let text = unopened(&refused).to_text();
        assert!(text.contains("in use") && text.contains("XDG_RUNTIME_DIR"), "{text}");
        drop(held);
        open(&dir, Durability::Disk, Duration::ZERO, |_| said.set(9)).await.unwrap();
        assert_eq!(said.get(), 1);
    }
}
