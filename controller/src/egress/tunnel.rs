//! A connection, from the request to its end.
//!
//! ```text
//!   wish ─▶ the list ─▶ resolve ─▶ the addresses ─▶ dial ─▶ bytes both ways ─▶ end
//!             │           │            │              │            │
//!             └───────────┴────────────┴──────────────┴────────────┴──▶ closed, with why
//! ```
//!
//! A name that is not in the allow list is not resolved: no DNS query is sent for it. The dialled
//! addresses are exactly the ones that were checked. Each connection has an audit line, but
//! those to the policy, which is answered here.

use std::io;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use rustix::process::{Resource, getrlimit};
use sandbox_api::hosts::{HOST_LOOPBACK, NoHost, Special, Target};
use sandbox_api::{ContactedHost, LimitKey, RefusedHost};
use sandbox_engine::own_address::is_own;
use sandbox_grants::policy::{Policy, Refusal};
use sandbox_intercept::{Exchange, Interceptor};
use sandbox_protocol::limits::MAX_CHUNK_BYTES;
use sandbox_protocol::message::{ClosedReason, Connect};
use sandbox_session::{Ended, Received, Tunnel};
use sandbox_tls::{Guard, TlsRefusal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::gate::Egress;
use crate::audit::{By, Connection, Event, RequestRecord};

/// The maximum number of addresses of a name that are dialled.
const MAX_ADDRESSES: usize = 8;
/// How long to wait for an address before the next one is dialled in parallel (RFC 8305).
const STAGGER: Duration = Duration::from_millis(250);

/// The status of a request that no rule allows.
const FORBIDDEN: u16 = 403;
/// Why the loopback cannot be listed.
const OWN_LOOPBACK: &str = "it is the sandbox's own loopback, reached without the proxy; this machine's is host.sandbox.internal";

/// The sockets of the connections of all sandboxes, dialled and open: half of the descriptors that this
/// process may have. The other half is for all else that it does.
static SOCKETS: LazyLock<Semaphore> = LazyLock::new(|| {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let half = usize::try_from(descriptors / 2).unwrap_or(usize::MAX);
    Semaphore::new(half.min(Semaphore::MAX_PERMITS))
});

/// Why a connection was refused or aborted. Messages to the command contain no addresses of the
/// host's networks.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    NoHost(#[from] NoHost),
    #[error("{target} is not on this sandbox's list of hosts{}", allowed_by(.target))]
    NotListed { target: Target },
    #[error(
        "{target} has {what}, which is reached only where the address itself is on the list too: \
         --allow {needed}", what = .special.as_str(), needed = needed(.target, .addresses)
    )]
    SpecialAddress { target: Target, special: Special, addresses: Vec<IpAddr> },
    #[error(
        "{target} is this machine, which is reached only where its address is on the list too: --allow ADDRESS"
    )]
    ThisMachine { target: Target, listed: Target },
    #[error("cannot determine whether {target} is this machine: {source}")]
    Undetermined { target: Target, source: io::Error },
    #[error("{0}; the connection is to {1}")]
    Tls(TlsRefusal, Target),
    #[error("{0}; the connection is to {1}")]
    Terminated(sandbox_intercept::Failure, Target),
    #[error("connection limit exceeded; {}", LimitKey::Connections.hint())]
    TooMany,
    #[error("network byte limit exceeded; {}", LimitKey::NetworkBytes.hint())]
    TooMuch,
    #[error("{name} has no address: {source}")]
    NoAddress { name: String, source: io::Error },
    #[error("cannot connect to {target}: {source}")]
    Unreachable { target: Target, source: io::Error },
    #[error("{target} could not be reached in {}", humantime::format_duration(*.after))]
    Late { target: Target, after: Duration },
    #[error("no data sent or received for {}", humantime::format_duration(*.0))]
    Idle(Duration),
    #[error("the connection to the server failed")]
    Peer,
    #[error("the connection of the client failed")]
    Program,
    #[error("sandboxctl failed")]
    Panic,
}

/// The rule that such addresses need. The text reveals nothing of the host's networks to the
/// command.
fn needed(target: &Target, addresses: &[IpAddr]) -> String {
    match addresses.iter().any(IpAddr::is_loopback) {
        true => format!("{HOST_LOOPBACK}:{}", target.port),
        false => "ADDRESS".to_owned(),
    }
}

/// The rule to suggest to the command, if there is one for which to ask a person.
fn allowed_by(target: &Target) -> String {
    if target.is_own_loopback() {
        return format!(": {OWN_LOOPBACK}");
    }
    let rule = target.suggested_rule();
    rule.map_or_else(String::new, |rule| format!("; the rule that allows it: --allow {rule}"))
}

impl Failure {
    /// The reason on the wire.
    const fn reason(&self) -> ClosedReason {
        match self {
            Self::NoHost(_)
            | Self::NotListed { .. }
            | Self::SpecialAddress { .. }
            | Self::ThisMachine { .. }
            | Self::Undetermined { .. }
            | Self::Tls(..)
            | Self::Terminated(..) => ClosedReason::Refused,
            Self::TooMany | Self::TooMuch => ClosedReason::Limit,
            Self::NoAddress { .. } | Self::Unreachable { .. } => ClosedReason::Unreachable,
            Self::Late { .. } | Self::Idle(_) => ClosedReason::Timeout,
            Self::Peer | Self::Program | Self::Panic => ClosedReason::Reset,
        }
    }

    /// The refused host in the report; `None` if the connection failed in another way. Unlike a
    /// command, the reader of a report may know addresses of the host's networks.
    fn refused(&self, connect: &Connect) -> Option<RefusedHost> {
        let mut allow = Vec::new();
        let mut suggest = |target: &Target| {
            allow.extend(target.suggested_rule().map(|rule| rule.to_string()));
        };
        let (target, reason) = match self {
            Self::NoHost(_) => (None, "neither a host name nor an address".to_owned()),
            Self::NotListed { target } if target.is_own_loopback() => {
                (Some(target), OWN_LOOPBACK.to_owned())
            }
            Self::NotListed { target } => {
                suggest(target);
                let reason = target.special().map_or("not on the list", Special::name);
                (Some(target), reason.to_owned())
            }
            Self::SpecialAddress { target, special, addresses } => {
                let addresses = addresses.iter().take(MAX_ADDRESSES);
                let listed = |address: IpAddr| Target::from((address, target.port)).listed();
                addresses.for_each(|&address| suggest(&listed(address)));
                (Some(target), special.name().to_owned())
            }
            Self::ThisMachine { target, listed } => {
                suggest(listed);
                (Some(target), "address of this machine".to_owned())
            }
            Self::Undetermined { target, source } => {
                (Some(target), format!("perhaps an address of this machine: {source}"))
            }
            Self::Tls(refusal, target) => (Some(target), refusal.to_string()),
            Self::Terminated(failure, target) => (Some(target), failure.to_string()),
            _ => return None,
        };
        let host = target.map_or_else(|| connect.host.to_string(), |it| it.host.to_string());
        Some(RefusedHost { host, port: connect.port, reason, allow })
    }

    /// Whether the host is allowed, and was not connected to.
    const fn is_unreached(&self) -> bool {
        matches!(self, Self::NoAddress { .. } | Self::Unreachable { .. } | Self::Late { .. })
    }

    /// The outcome in the audit.
    const fn outcome(&self) -> &'static str {
        match self.reason() {
            ClosedReason::Refused => "network_refused",
            reason => reason.as_str(),
        }
    }
}

/// The facts about a connection for its audit line.
#[derive(Default)]
struct Account {
    /// Normalised, or as the command wrote it.
    target: String,
    address: Option<IpAddr>,
    bytes: AtomicU64,
}

/// Serves a tunnel until it ends.
pub(super) async fn serve(egress: Arc<Egress>, tunnel: Tunnel, connect: Connect) {
    let began = Instant::now();
    let target = connect.host.parse().map(|host| Target { host, port: connect.port });
    let is_policy = target.is_ok_and(|target| target.is_policy());
    let mut account =
        Account { target: format!("{}:{}", connect.host, connect.port), ..Account::default() };
    let conducted = AssertUnwindSafe(conduct(&egress, &tunnel, &connect, &mut account));
    let result = conducted.catch_unwind().await.unwrap_or(Err(Failure::Panic));
    if let Err(failure) = &result
        && let Some(host) = failure.refused(&connect)
    {
        // Other rules than those for what the program named have addresses of the host's networks.
        let is_named = matches!(failure, Failure::NotListed { .. });
        let allow = if is_named { host.allow.clone() } else { Vec::new() };
        report_refused(&egress, &host, allow);
    }
    if let Some(failure) = result.as_ref().err().filter(|failure| failure.is_unreached()) {
        egress.add_to_reports(|network| network.add_unreached(failure.to_string()));
    }
    let message = result.as_ref().err().map(ToString::to_string);
    if !is_policy {
        let mut reason = message.clone();
        let texts = reason.iter_mut().chain([&mut account.target]);
        texts.for_each(|text| egress.redactions.text(text));
        (egress.record)(&Event {
            by: By::Script,
            outcome: result.as_ref().err().map_or("ok", Failure::outcome),
            bytes: account.address.map(|_| account.bytes.load(Ordering::Relaxed)),
            duration: Some(began.elapsed()),
            connection: Some(Connection {
                target: &account.target,
                address: account.address,
                reason: reason.as_deref(),
            }),
            ..Event::new(&egress.sandbox_id, "connect")
        });
    }
    let why = result.as_ref().err().map_or(ClosedReason::Done, Failure::reason);
    tunnel.close(why, message.as_deref().unwrap_or_default()).await;
}

/// Reports a refusal: in results, and to the sandbox with the rules that it may ask for.
fn report_refused(egress: &Egress, host: &RefusedHost, allow: Vec<String>) {
    let target = Some(format!("{}:{}", host.host, host.port));
    let reason = host.reason.clone();
    egress.policy.refuse(Refusal { target, reason, allow, ..Refusal::default() });
    egress.add_to_reports(|network| network.add_refused(host.clone()));
}

/// Answers a request on a connection to [`POLICY_HOST`](sandbox_api::hosts::POLICY_HOST).
async fn serve_policy(policy: &Policy, tunnel: &Tunnel) -> Result<(), Ended> {
    const MAX_HEAD: usize = 16 << 10;
    const HEAD_END: &[u8] = b"\r\n\r\n";
    tunnel.connected().await?;
    let mut head = Vec::new();
    while head.len() <= MAX_HEAD && !head.windows(HEAD_END.len()).any(|it| it == HEAD_END) {
        let Received::Bytes(bytes) = tunnel.receive().await? else { break };
        tunnel.consumed(bytes.len() as u64).await?;
        head.extend(bytes);
    }
    tunnel.send(policy.answer(&head).as_bytes()).await?;
    tunnel.finish().await?;
    // A client that is still sending when the connection is closed may lose the answer.
    while let Ok(Received::Bytes(bytes)) = tunnel.receive().await {
        tunnel.consumed(bytes.len() as u64).await?;
    }
    Ok(())
}

async fn conduct(
    egress: &Egress,
    tunnel: &Tunnel,
    connect: &Connect,
    account: &mut Account,
) -> Result<(), Failure> {
    let target = connect.host.parse().map(|host| Target { host, port: connect.port });
    if target.as_ref().is_ok_and(Target::is_policy) {
        let limit = egress.limits().idle_timeout;
        let served = timeout(limit, serve_policy(&egress.policy, tunnel)).await;
        return served.map_err(|_| Failure::Idle(limit))?.map_err(|_| Failure::Program);
    }
    if !egress.count_connection() {
        return Err(Failure::TooMany);
    }
    if egress.is_spent() {
        return Err(Failure::TooMuch);
    }
    let target = target?;
    account.target = target.to_string();
    if !egress.allows(&target) {
        let permitted = egress.asked.is_permitted(&target, &egress.redactions, &egress.policy);
        let is_permitted = tokio::select! {
            biased;
            is_permitted = permitted => is_permitted,
            () = tunnel.broken() => return Err(Failure::Program),
        };
        if !is_permitted {
            return Err(Failure::NotListed { target });
        }
    }
    if tunnel.is_broken() {
        return Err(Failure::Program);
    }
    let after = egress.limits().connect_timeout;
    let (mut stream, _socket) = tokio::select! {
        biased;
        // A host that was reached is in the report, even if the command has ended by now.
        stream = timeout(after, reach(egress, &target)) => {
            stream.map_err(|_| Failure::Late { target: target.clone(), after })??
        }
        () = tunnel.broken() => return Err(Failure::Program),
    };
    account.address = stream.peer_addr().ok().map(|at| at.ip());
    let host = ContactedHost { host: target.host.to_string(), port: target.port };
    egress.add_to_reports(|network| network.add_contacted(host.clone()));
    tunnel.connected().await.map_err(|_| Failure::Program)?;
    if let Some(interceptor) = egress.interceptor(&target) {
        return terminate(egress, tunnel, &target, interceptor, stream, account).await;
    }
    let (reader, writer) = stream.split();
    let guard = Guard::new(target.host.clone(), target.port, egress.sessions.clone());
    let ends = (reader, writer, Some(guard));
    let result = relay(egress, tunnel, &target, ends, &account.bytes).await;
    if result.is_err() {
        // An abort on the tunnel must not look like a normal end to the host.
        _ = stream.set_zero_linger();
    }
    result
}

/// Resolves the name, checks the addresses, and dials.
async fn reach(
    egress: &Egress,
    target: &Target,
) -> Result<(TcpStream, SemaphorePermit<'static>), Failure> {
    let addresses = match target.host.known_addresses() {
        Some(known) => known,
        None => {
            let name = target.host.to_string();
            let no_address = |source| Failure::NoAddress { name: name.clone(), source };
            let mut found = (egress.resolver)(name.clone()).await.map_err(no_address)?;
            let mut known = std::collections::HashSet::new();
            found.retain(|address| known.insert(*address));
            if found.is_empty() {
                return Err(no_address(io::Error::other("its answer is empty")));
            }
            found
        }
    };
    // One bad address is enough: the operator of the name's DNS may be malicious.
    let refusal = |&address: &IpAddr| {
        egress.check(address, target.port).err().map(|special| (address, special))
    };
    let refused: Vec<_> = addresses.iter().filter_map(refusal).collect();
    if let Some(&(_, special)) = refused.first() {
        let addresses = refused.into_iter().map(|(address, _)| address).collect();
        return Err(Failure::SpecialAddress { target: target.clone(), special, addresses });
    }
    let addresses = &addresses[..addresses.len().min(MAX_ADDRESSES)];
    // A service that listens on all of this machine's addresses also listens on public ones. What
    // cannot be determined is refused.
    let refuse_own = |address: IpAddr| {
        let listed = Target::from((address, target.port)).listed();
        let target = target.clone();
        if egress.allows(&listed) {
            return Ok(());
        }
        match is_own(address, target.port) {
            Ok(false) => Ok(()),
            Ok(true) => Err(Failure::ThisMachine { target, listed }),
            Err(source) => Err(Failure::Undetermined { target, source }),
        }
    };
    // Before it could accept a connection. Addresses with a separate route, such as one to nowhere,
    // are not refused.
    let (mut safe, mut undetermined) = (Vec::new(), None);
    for &address in addresses {
        match refuse_own(address) {
            Ok(()) => safe.push(address),
            Err(failure @ Failure::Undetermined { .. }) => undetermined = Some(failure),
            Err(failure) => return Err(failure),
        }
    }
    if let Some(failure) = undetermined.filter(|_| safe.is_empty()) {
        return Err(failure);
    }
    let dials: FuturesUnordered<_> = (0..)
        .zip(safe)
        .map(|(place, address)| async move {
            sleep(STAGGER * place).await;
            // Each tunnel dials one without asking.
            let _dial = match place {
                0 => None,
                _ => Some(egress.dials.acquire().await.map_err(io::Error::other)?),
            };
            let socket = SOCKETS.acquire().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((TcpStream::connect((address, target.port)).await?, socket))
        })
        .collect();
    let unreachable = |source| Failure::Unreachable { target: target.clone(), source };
    let (stream, socket) = first(dials).await.map_err(unreachable)?;
    // Routes can change meanwhile.
    let peer = stream.peer_addr().map_err(unreachable)?;
    refuse_own(peer.ip())?;
    // Chunks are written whole as they arrive.
    _ = stream.set_nodelay(true);
    Ok((stream, socket))
}

/// The first one that connects, or the last one's error.
async fn first<T>(
    mut dials: FuturesUnordered<impl Future<Output = io::Result<T>>>,
) -> io::Result<T> {
    let mut last = io::Error::other("no address");
    while let Some(dialled) = dials.next().await {
        match dialled {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Serves a connection whose TLS ends here. It counts as the program's own does.
async fn terminate(
    egress: &Egress,
    tunnel: &Tunnel,
    target: &Target,
    interceptor: &Interceptor,
    stream: TcpStream,
    account: &Account,
) -> Result<(), Failure> {
    let (near, far) = tokio::io::duplex(MAX_CHUNK_BYTES);
    let (reader, writer) = tokio::io::split(near);
    let record = |exchange: &Exchange| record(egress, target, account.address, exchange);
    let served = async {
        let served = interceptor.serve(far, stream, target, &record).await;
        served.map_err(|failure| Failure::Terminated(failure, target.clone()))
    };
    let relayed = relay(egress, tunnel, target, (reader, writer, None), &account.bytes);
    tokio::try_join!(served, relayed).map(|_| ())
}

/// Records a request, and reports it if no rule allows it.
fn record(egress: &Egress, target: &Target, address: Option<IpAddr>, exchange: &Exchange) {
    let Exchange { method, path, status, refused, rule, is_unreached } = exchange;
    if refused.is_some() && *status == FORBIDDEN {
        let (host, port) = (target.host.to_string(), target.port);
        let (reason, allow) = (format!("{method} {path}"), Vec::from_iter(rule.clone()));
        let refused = RefusedHost { host, port, reason, allow: allow.clone() };
        report_refused(egress, &refused, allow);
    }
    if let Some(words) = refused.as_ref().filter(|_| *is_unreached) {
        egress.add_to_reports(|network| network.add_unreached(words.clone()));
    }
    let mut texts = [target.to_string(), path.clone()];
    texts.iter_mut().for_each(|text| egress.redactions.text(text));
    let [target, path] = &texts;
    (egress.record)(&Event {
        by: By::Script,
        outcome: if refused.is_some() { "network_refused" } else { "ok" },
        connection: Some(Connection { target, address, reason: refused.as_deref() }),
        request: Some(RequestRecord { method, path, status: *status }),
        ..Event::new(&egress.sandbox_id, "request")
    });
}

/// Forwards bytes in both directions until both have ended. Without a guard they are those of what terminates
/// the connection.
async fn relay(
    egress: &Egress,
    tunnel: &Tunnel,
    target: &Target,
    (reader, writer, guard): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin, Option<Guard>),
    bytes: &AtomicU64,
) -> Result<(), Failure> {
    let relay = Relay {
        egress,
        tunnel,
        target,
        guard: guard.map(Mutex::new),
        heard: Notify::new(),
        bytes,
        moved: AtomicBool::new(false),
    };
    let both = async { tokio::try_join!(relay.upload(writer), relay.download(reader)) };
    tokio::select! {
        ended = both => ended.map(|_| ()),
        () = tunnel.broken() => Err(Failure::Program),
        idle = relay.watch() => Err(idle),
    }
}

struct Relay<'a> {
    egress: &'a Egress,
    tunnel: &'a Tunnel,
    target: &'a Target,
    guard: Option<Mutex<Guard>>,
    /// The server has sent data that the guard was waiting for.
    heard: Notify,
    bytes: &'a AtomicU64,
    /// Whether bytes were forwarded since the last idle check.
    moved: AtomicBool,
}

impl Relay<'_> {
    /// From the command to the host.
    async fn upload(&self, mut writer: impl AsyncWrite + Unpin) -> Result<(), Failure> {
        loop {
            let received = self.tunnel.receive().await.map_err(|_| Failure::Program)?;
            let Received::Bytes(bytes) = received else { break };
            let count = bytes.len();
            self.count(count)?;
            let (mut passed, mut waits) = self.judged(bytes)?;
            loop {
                // Held-back bytes do not count as forwarded: a slowly sent ClientHello is idle too.
                if !passed.is_empty() {
                    match writer.write_all(&passed).await {
                        Ok(()) => self.moved.store(true, Ordering::Relaxed),
                        // It has answered, and the program may still read that.
                        Err(_) if self.guard.is_none() => {}
                        Err(_) => return Err(Failure::Peer),
                    }
                }
                // Its state of that time: the server may have sent data since.
                if !waits {
                    break;
                }
                self.heard.notified().await;
                (passed, waits) = self.judged(Vec::new())?;
            }
            self.tunnel.consumed(count as u64).await.map_err(|_| Failure::Program)?;
        }
        let rest = self.guarded(Guard::finish)?;
        writer.write_all(&rest).await.map_err(|_| Failure::Peer)?;
        // The other end may already be gone.
        _ = writer.shutdown().await;
        Ok(())
    }

    /// The part of the command's data that may be forwarded, and whether the rest waits for the
    /// server.
    fn judged(&self, bytes: Vec<u8>) -> Result<(Vec<u8>, bool), Failure> {
        if self.guard.is_none() {
            return Ok((bytes, false));
        }
        self.guarded(|guard| Ok((guard.client(bytes)?, guard.is_waiting())))
    }

    /// From the host to the command.
    async fn download(&self, mut reader: impl AsyncRead + Unpin) -> Result<(), Failure> {
        let mut buffer = vec![0; MAX_CHUNK_BYTES];
        loop {
            let count = reader.read(&mut buffer).await.map_err(|_| Failure::Peer)?;
            let bytes = &buffer[..count];
            if bytes.is_empty() {
                self.guarded(|guard| {
                    guard.server_ended();
                    Ok(())
                })?;
                self.heard.notify_one();
                return self.tunnel.finish().await.map_err(|_| Failure::Program);
            }
            self.count(count)?;
            self.guarded(|guard| {
                guard.server(bytes);
                Ok(())
            })?;
            self.heard.notify_one();
            self.tunnel.send(bytes).await.map_err(|_| Failure::Program)?;
            self.moved.store(true, Ordering::Relaxed);
        }
    }

    /// Completes when nothing was forwarded for too long.
    async fn watch(&self) -> Failure {
        let limit = self.egress.limits().idle_timeout;
        // Checks twice per timeout: it fires between one and one and a half timeouts.
        let mut quiet = 0;
        let mut at = Instant::now();
        while quiet < 2 {
            at += limit / 2;
            sleep_until(at).await;
            quiet = if self.moved.swap(false, Ordering::Relaxed) { 0 } else { quiet + 1 };
        }
        Failure::Idle(limit)
    }

    fn count(&self, bytes: usize) -> Result<(), Failure> {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.egress.spend(bytes) { Ok(()) } else { Err(Failure::TooMuch) }
    }

    fn guarded<T: Default>(
        &self,
        act: impl FnOnce(&mut Guard) -> Result<T, TlsRefusal>,
    ) -> Result<T, Failure> {
        let Some(guard) = &self.guard else { return Ok(T::default()) };
        // A guard that panicked is not used again: its relay ends with it.
        let mut guard = crate::lock(guard);
        act(&mut guard).map_err(|refusal| Failure::Tls(refusal, self.target.clone()))
    }
}
