//! The server: connections over TCP, TLS and UNIX sockets, each within its bounds.
//!
//! Every wait for a peer has a limit: for its handshake, its first request, the rest of a header or
//! a body, its next request, and for it to take what it asked for. At most so many connections exist
//! at one time; those beyond wait in the kernel. Those beyond the share of their address are refused.

pub(crate) mod body;
mod drain;
mod listener;
mod overflow;
pub(crate) mod peer;
mod slots;
mod stall;
mod tls;

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::EXPECT;
use axum::http::{Extensions, Request, Version as HttpVersion};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::Service as _;

use self::drain::DrainOnDrop;
use self::listener::Accepted;
pub use self::listener::{Endpoint, InvalidEndpoint, ListenError, Listener};
pub use self::peer::{PeerIdentity, PeerIdentityError};
use self::slots::{Slot, Slots};
use self::stall::StallGuard;
pub(crate) use self::tls::Certificate;
pub use self::tls::{Tls, TlsError};
use crate::access::{InFlightRequest, Peer};
use crate::lock;
use crate::metrics::{InGauge, Metrics};

/// How long a TLS handshake may take, and then the head of the first request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a connection may have no request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How long nothing may come or go in spite of its requests. Longer than any of them waits: streams
/// of events have comments meanwhile.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(900);
/// How long a connection that is being closed may go on, once it has no request.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The headers of a request, and their bytes.
const MAX_HEADERS: usize = 100;
const MAX_HEADER_BYTES: usize = 32 << 10;
/// Requests at one time over one connection of HTTP/2.
const MAX_STREAMS: u32 = 100;
/// What a sender may have under way, of one request and in all, before it must wait.
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;
/// What is buffered for a reader of HTTP/2.
const SEND_BUFFER: usize = 128 << 10;
/// Streams that a peer has reset and that are still being cleared away.
const MAX_RESET_STREAMS: usize = 20;
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Where the process has no descriptor left for a connection: until some are free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// In all.
    pub connections: usize,
    /// Of one address; for IPv6, of one /64. A reverse proxy is one address.
    pub of_an_address: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { connections: 1024, of_an_address: 256 }
    }
}

/// Accepts connections until `stop`, and handles their requests until they end or `kill`.
pub(crate) struct Server {
    pub router: Router,
    pub tls: Option<Certificate>,
    pub limits: ConnectionLimits,
    pub metrics: Arc<Metrics>,
    /// No more connections and requests.
    pub stop: CancellationToken,
    /// No more patience.
    pub kill: CancellationToken,
}

impl Server {
    /// Serves what the listeners accept. Returns when every connection has ended.
    pub async fn run(self, listeners: Vec<Listener>) {
        let slots = Slots::new(self.limits.connections, self.limits.of_an_address);
        // For those that are being refused with 503.
        let overflow = Arc::new(Semaphore::new(overflow::AT_ONE_TIME));
        let server = Arc::new(self);
        let tasks = TaskTracker::new();
        for listener in listeners {
            let (server, slots, connections) = (Arc::clone(&server), slots.clone(), tasks.clone());
            let overflow = overflow.clone();
            tasks.spawn(async move {
                let accept = server.accept(listener, slots, overflow, connections);
                server.stop.run_until_cancelled(accept).await;
            });
        }
        tasks.close();
        tasks.wait().await;
    }

    async fn accept(
        self: &Arc<Self>,
        listener: Listener,
        slots: Slots,
        overflow: Arc<Semaphore>,
        tasks: TaskTracker,
    ) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                // The peer is gone already.
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // One more than there are places is accepted; the next ones the kernel holds.
            let Some(slot) = slots.assign(slots.wait().await, &peer) else {
                self.metrics.connection_refused();
                tracing::debug!(%peer, "too many connections of this address");
                // A handshake would cost more than a place.
                if let (Accepted::Tcp(stream), None) = (stream, &self.tls)
                    && let Ok(overflow_slot) = Arc::clone(&overflow).try_acquire_owned()
                {
                    let kill = self.kill.clone();
                    tasks.spawn(async move {
                        let refuse = overflow::refuse(stream, overflow::too_many());
                        kill.run_until_cancelled(refuse).await;
                        drop(overflow_slot);
                    });
                }
                continue;
            };
            let server = Arc::clone(self);
            let open = self.metrics.connection_opened();
            let place = ConnectionPlace { _held: Arc::new((slot, open, tasks.token())) };
            tasks.spawn(async move {
                server.kill.run_until_cancelled(server.connection(stream, peer, place)).await;
            });
        }
    }

    async fn connection(&self, stream: Accepted, peer: Peer, place: ConnectionPlace) {
        let ended = match (stream, &self.tls) {
            (Accepted::Tcp(stream), None) => {
                self.requests(StallGuard::new(stream), peer, Version::Any, place).await
            }
            (Accepted::Tcp(stream), Some(tls)) => {
                let handshake = async {
                    let mut first = [0];
                    stream.peek(&mut first).await?;
                    // A method: a handshake begins with no letter.
                    if first[0].is_ascii_uppercase() {
                        overflow::refuse(stream, overflow::without_tls()).await;
                        return Err(io::Error::other("plain HTTP, where TLS is spoken"));
                    }
                    tls.acceptor().accept(StallGuard::new(stream)).await
                };
                match timeout(HEADER_TIMEOUT, handshake).await {
                    Ok(Ok(stream)) => {
                        // Without ALPN the client gets HTTP/1.1.
                        let version = match stream.get_ref().1.alpn_protocol() {
                            Some(tls::H2) => Version::Http2,
                            _ => Version::Http1,
                        };
                        self.requests(stream, peer, version, place).await
                    }
                    Ok(Err(error)) => Err(error.into()),
                    Err(_) => Err("the TLS handshake did not end in time".into()),
                }
            }
            // Its peer is on this machine: no one is in between.
            (Accepted::Unix(stream), _) => {
                self.requests(StallGuard::new(stream), peer, Version::Any, place).await
            }
        };
        if let Err(error) = ended {
            match self.tls {
                // Only nodes have reason to connect.
                Some(Certificate::Node(_)) => {
                    tracing::warn!(%peer, %error, "a connection to the port for nodes failed");
                }
                _ => tracing::debug!(%peer, %error, "connection failed"),
            }
        }
    }

    async fn requests<S>(
        &self,
        stream: S,
        peer: Peer,
        version: Version,
        place: ConnectionPlace,
    ) -> Result<(), axum::BoxError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Arc::new(Activity::new());
        let service = service_fn({
            let (router, activity) = (self.router.clone(), Arc::clone(&activity));
            move |request: Request<Incoming>| {
                let busy = activity.begin();
                let mut router = router.clone();
                let activity = Arc::clone(&activity);
                let awaits_continue = request.headers().contains_key(EXPECT);
                let is_alone = request.version() < HttpVersion::HTTP_2;
                let mut request = request.map(|inner| match is_alone {
                    true => {
                        let inner = DrainOnDrop::new(inner, awaits_continue);
                        Body::new(ActiveBody { inner, activity, _busy: None })
                    }
                    // A request of HTTP/2 ends without its connection.
                    false => Body::new(ActiveBody { inner, activity, _busy: None }),
                });
                request.extensions_mut().insert(peer);
                request.extensions_mut().insert(place.clone());
                async move {
                    let response = router.call(request).await?;
                    let activity = Arc::clone(&busy.0);
                    let active = |inner| ActiveBody { inner, activity, _busy: Some(busy) };
                    Ok::<_, Infallible>(response.map(active))
                }
            }
        });
        let builder = builder(version);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let mut closing = false;
        loop {
            let due = activity.due(closing);
            tokio::select! {
                ended = connection.as_mut() => return ended,
                () = self.stop.cancelled(), if !closing => {}
                () = sleep_until(due) => {
                    // Something may have happened meanwhile.
                    if activity.due(closing) > Instant::now() {
                        continue;
                    }
                    // It has had its time; what is left of it does not come any more.
                    if closing || !activity.is_idle() {
                        return Ok(());
                    }
                }
            }
            closing = true;
            activity.touch();
            connection.as_mut().graceful_shutdown();
        }
    }
}

/// The place of a connection, which it has until the last clone is gone: one that becomes a WebSocket is not
/// served here any more, and is still one. The server ends after it.
#[derive(Clone)]
pub(crate) struct ConnectionPlace {
    _held: Arc<(Slot, InGauge, TaskTrackerToken)>,
}

/// The places that a request takes: that of its connection, and its own.
pub(crate) type Places = (Option<ConnectionPlace>, Option<Arc<InFlightRequest>>);

/// Those of the request with these extensions, for what goes on after its answer.
pub(crate) fn places(extensions: &Extensions) -> Places {
    (extensions.get().cloned(), extensions.get().cloned())
}

/// Which versions of HTTP a connection may speak.
#[derive(Debug, Clone, Copy)]
enum Version {
    /// Detected by its first bytes.
    Any,
    Http1,
    Http2,
}

fn builder(version: Version) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // The first head has its own, which is shorter.
        .header_read_timeout(IDLE_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    match version {
        Version::Any => builder,
        Version::Http1 => builder.http1_only(),
        Version::Http2 => builder.http2_only(),
    }
}

/// The peer has disconnected before it was accepted: no reason to wait.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionAborted | Kind::ConnectionRefused | Kind::ConnectionReset
    )
}

/// Whether a connection has requests, and when something came or went.
struct Activity {
    requests: AtomicUsize,
    begun: AtomicBool,
    since: Mutex<Instant>,
}

impl Activity {
    fn new() -> Self {
        Self {
            requests: AtomicUsize::new(0),
            begun: AtomicBool::new(false),
            since: Mutex::new(Instant::now()),
        }
    }

    fn begin(self: &Arc<Self>) -> Busy {
        self.begun.store(true, Ordering::Relaxed);
        self.touch();
        self.requests.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// Whether it had requests, and has none.
    fn is_idle(&self) -> bool {
        self.has_begun() && self.requests.load(Ordering::Relaxed) == 0
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    fn touch(&self) {
        *lock(&self.since) = Instant::now();
    }

    /// When it is to be looked at again.
    fn due(&self, closing: bool) -> Instant {
        let patience = match (self.requests.load(Ordering::Relaxed), closing, self.has_begun()) {
            (0, true, _) => CLOSE_TIMEOUT,
            (0, false, false) => HEADER_TIMEOUT,
            (0, false, true) => IDLE_TIMEOUT,
            _ => PROGRESS_TIMEOUT,
        };
        *lock(&self.since) + patience
    }
}

/// A request in progress, up to the last byte of its answer.
struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body whose pieces are signs of life; that of an answer keeps its connection busy.
struct ActiveBody<B> {
    inner: B,
    activity: Arc<Activity>,
    _busy: Option<Busy>,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for ActiveBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        if frame.is_ready() {
            self.activity.touch();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
