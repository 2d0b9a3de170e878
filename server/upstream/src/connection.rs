//! One upstream: its connection, which is started when it is needed, and the list of its tools.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, Implementation,
    JsonObject, PaginatedRequestParams, ProtocolVersion, SubscriptionFilter,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, NotificationContext, RoleClient, RunningService,
    ServiceError, serve_client_with_lifecycle,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use sandbox_api::{HostTool, ToolEffect};
use sandbox_controller::host_tools::HostToolError;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::answer::{MAX_FAILURE, clean, tool};
use crate::child::{ChildTransport, Tail};
use crate::http::HttpClient;
use crate::settings::Target;

/// How long a server may take until it answers: it may have to be installed first.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take for the list of its tools.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long its stderr is read when it has ended.
const STDERR_TIMEOUT: Duration = Duration::from_millis(200);
/// How long its end may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest pause before it is started again.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// The most tools, pages of their list, and bytes of what is kept of it.
const MAX_TOOLS: usize = 1000;
const MAX_PAGES: usize = 100;
const MAX_LIST: usize = 8 << 20;
/// The most of an error's text.
const MAX_REASON: usize = 300;

/// Why there is no connection.
#[derive(Debug, Clone)]
pub(crate) struct StartError {
    /// For the author of the script: without a path of the host.
    pub text: String,
    /// The path that it is about, for the user of the host.
    pub path: String,
    /// What the program wrote to stderr, for the same.
    pub stderr: String,
    /// The server ended before it answered.
    has_ended: bool,
}

/// A list of tools that is being read. Unless it comes, also if no call waits for it any more, it is stale again.
struct Reading<'a> {
    is_stale: &'a AtomicBool,
    is_whole: bool,
}

impl<'a> Reading<'a> {
    /// What changes from now on makes it stale.
    fn begin(is_stale: &'a AtomicBool) -> Self {
        is_stale.store(false, Ordering::Relaxed);
        Self { is_stale, is_whole: false }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            self.is_stale.store(true, Ordering::Relaxed);
        }
    }
}

impl From<StartError> for HostToolError {
    fn from(error: StartError) -> Self {
        Self::Unavailable(error.text)
    }
}

/// An upstream.
#[derive(Debug)]
pub(crate) struct Connection {
    name: String,
    target: Target,
    state: tokio::sync::Mutex<State>,
    /// The last list of its tools, which holds while it is started again.
    known: Mutex<Option<Arc<[HostTool]>>>,
    /// Cancelled when it is closed: a start ends then.
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    live: Option<Arc<Live>>,
    /// How often it failed in a row, the last time why, and when it may be started again.
    failures: u32,
    failure: Option<(StartError, Instant)>,
}

/// A connection that was established.
#[derive(Debug)]
pub(crate) struct Live {
    service: RunningService<RoleClient, Handler>,
    /// Its list of tools has changed.
    is_stale: Arc<AtomicBool>,
    /// Cancelled when it sent more than a message may have.
    too_long: CancellationToken,
    has_answered: AtomicBool,
    _stderr: Option<AbortOnDropHandle<()>>,
    _listener: Option<AbortOnDropHandle<()>>,
}

/// What is said to a server, and heard from it. It is offered nothing.
#[derive(Debug)]
struct Handler(Arc<AtomicBool>);

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let client = Implementation::new("sandboxctl", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), client)
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Connection {
    pub fn new(name: String, target: Target) -> Self {
        let (state, known) = (tokio::sync::Mutex::default(), Mutex::default());
        Self { name, target, state, known, closed: CancellationToken::new() }
    }

    /// Its tools as they were listed last.
    pub fn known(&self) -> Option<Arc<[HostTool]>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection, which is started if there is none. A start goes on if no call waits for it any more.
    pub async fn connected(self: &Arc<Self>) -> Result<Arc<Live>, StartError> {
        let connection = self.clone();
        let started = tokio::spawn(async move { connection.connect().await });
        started.await.unwrap_or_else(|_| Err(failed("it cannot be started")))
    }

    async fn connect(&self) -> Result<Arc<Live>, StartError> {
        let mut state = self.state.lock().await;
        if let Some(live) = state.live.take() {
            if !live.service.peer().is_transport_closed() && !live.too_long.is_cancelled() {
                state.live = Some(live.clone());
                return Ok(live);
            }
            if live.has_answered.load(Ordering::Relaxed) {
                state.failures = 0;
            }
            state.fail(failed("its connection was lost"));
        }
        if let Some((error, until)) = &state.failure
            && let Some(pause) = until.checked_duration_since(Instant::now())
            && !pause.is_zero()
        {
            let mut error = error.clone();
            error.text += &format!("; it is started again in {} s", pause.as_secs() + 1);
            return Err(error);
        }
        let started = self.closed.run_until_cancelled(self.start()).await;
        match started.unwrap_or_else(|| Err(failed("it was closed"))) {
            Ok(live) => {
                let live = Arc::new(live);
                state.live = Some(live.clone());
                Ok(live)
            }
            Err(error) => {
                let StartError { text, path, stderr, .. } = &error;
                tracing::warn!(upstream = self.name, "{text}: {path}{stderr}");
                state.fail(error.clone());
                Err(error)
            }
        }
    }

    async fn start(&self) -> Result<Live, StartError> {
        let newest = vec![ProtocolVersion::LATEST];
        let legacy = Some(ProtocolVersion::LATEST_WITH_INITIALIZE);
        let auto = ClientLifecycleMode::Auto { preferred_versions: newest, legacy_version: legacy };
        match self.start_as(auto).await {
            // Some of the revisions before end when `initialize` is not the first request.
            Err(error) if error.has_ended => self.start_as(ClientLifecycleMode::Initialize).await,
            started => started,
        }
    }

    async fn start_as(&self, mode: ClientLifecycleMode) -> Result<Live, StartError> {
        // A list from before is read again.
        let is_stale = Arc::new(AtomicBool::new(true));
        let (too_long, tail) = (CancellationToken::new(), Tail::default());
        let handler = Handler(is_stale.clone());
        let refused = |error| failed(format!("it cannot be started: {error}"));
        let mut stderr = None;
        let started = match &self.target {
            Target::Command { command, env, cwd } => {
                let what = (&**command, env, &**cwd);
                let (too_long, tail) = (too_long.clone(), tail.clone());
                let started = ChildTransport::start(&self.name, what, too_long, tail);
                let (child, reader) = started.map_err(|error| not_started(what, &error))?;
                stderr = Some(reader);
                timeout(START_TIMEOUT, serve_client_with_lifecycle(handler, child, mode)).await
            }
            Target::Url { url, headers } => {
                let client = HttpClient::new(url, too_long.clone()).map_err(refused)?;
                let config = StreamableHttpClientTransportConfig::with_uri(&**url)
                    .custom_headers(headers.clone());
                let transport = StreamableHttpClientTransport::with_client(client, config);
                timeout(START_TIMEOUT, serve_client_with_lifecycle(handler, transport, mode)).await
            }
        };
        let error = match started {
            Ok(Ok(service)) => {
                return Ok(Live {
                    _listener: listener(&service, is_stale.clone()),
                    service,
                    is_stale,
                    too_long,
                    has_answered: AtomicBool::new(false),
                    _stderr: stderr,
                });
            }
            Ok(Err(error)) => reason(&error),
            Err(_) => failed(format!("it did not answer within {} s", START_TIMEOUT.as_secs())),
        };
        if let Some(reader) = stderr {
            _ = timeout(STDERR_TIMEOUT, reader).await;
        }
        Err(StartError { stderr: tail.text(), ..error })
    }

    /// Reads its tools in a task of its own, which goes on if no call waits for it any more.
    pub fn listing(self: &Arc<Self>) -> JoinHandle<Result<Arc<[HostTool]>, StartError>> {
        let connection = self.clone();
        tokio::spawn(async move { connection.tools().await })
    }

    /// Starts it or reads its tools again, unless that is under way, as after a failure. Waits for nothing.
    pub fn wake(self: &Arc<Self>) {
        // While it is started the state is locked; while its tools are read they are not stale.
        let is_stale = |live: &Arc<Live>| live.is_stale.load(Ordering::Relaxed);
        if self.state.try_lock().is_ok_and(|state| state.live.as_ref().is_none_or(is_stale)) {
            self.listing();
        }
    }

    /// Its tools: as they are known, or read again if they have changed.
    pub async fn tools(self: &Arc<Self>) -> Result<Arc<[HostTool]>, StartError> {
        let is_current = |live: &Arc<Live>| !live.is_stale.load(Ordering::Relaxed);
        let known = self.known();
        if let (Some(known), Ok(state)) = (&known, self.state.try_lock())
            && state.live.as_ref().is_none_or(is_current)
        {
            return Ok(known.clone());
        }
        let live = self.connected().await?;
        let mut reading = Reading::begin(&live.is_stale);
        let listed = self.closed.run_until_cancelled(live.list(&self.name));
        let listed = timeout(LIST_TIMEOUT, listed).await.map(Option::transpose);
        reading.is_whole = matches!(listed, Ok(Ok(Some(_))));
        let tools = listed.map_err(|_| failed("it did not list its tools in time"))?;
        let tools = tools.map_err(|error| match error {
            ServiceError::TransportSend(error) => failed(words(&error.error)),
            error => failed(words(&error)),
        })?;
        let tools = tools.ok_or_else(|| failed("it was closed"))?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(tools.clone());
        Ok(tools)
    }

    /// Ends it.
    pub async fn close(&self) {
        self.closed.cancel();
        let live = self.state.lock().await.live.take();
        if let Some(live) = live.and_then(Arc::into_inner) {
            let mut service = live.service;
            _ = service.close_with_timeout(CLOSE_TIMEOUT).await;
        }
    }
}

impl State {
    fn fail(&mut self, error: StartError) {
        self.failures = self.failures.saturating_add(1);
        self.failure = Some((error, Instant::now() + pause(self.failures)));
    }
}

/// None after the first failure in a row, then twice as long each time.
fn pause(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        more => MAX_PAUSE.min(Duration::from_secs(1 << (more - 2).min(6))),
    }
}

fn failed(text: impl Into<String>) -> StartError {
    let (path, stderr) = (String::new(), String::new());
    StartError { text: text.into(), path, stderr, has_ended: false }
}

/// Why a program was not started. A path of the host is only for its user.
fn not_started(
    (command, _, cwd): (&[String], &BTreeMap<String, String>, &Path),
    error: &io::Error,
) -> StartError {
    let (text, path) = match command.first() {
        _ if !cwd.is_dir() => {
            ("its working directory (cwd) is not a directory".to_owned(), cwd.display().to_string())
        }
        Some(program) => {
            let name = program.rsplit('/').next().unwrap_or_default();
            let path = if name == program { String::new() } else { program.clone() };
            (format!("its program '{name}' cannot be started: {error}"), path)
        }
        None => (format!("it cannot be started: {error}"), String::new()),
    };
    StartError { path, ..failed(clean(&text, MAX_REASON)) }
}

/// Why a server was not reached; no text of it is longer than a line.
fn reason(error: &ClientInitializeError) -> StartError {
    let ended = StartError { has_ended: true, ..failed("it ended before it answered") };
    match error {
        ClientInitializeError::ConnectionClosed(_) => ended,
        // It does not read any more.
        ClientInitializeError::TransportError { error, .. } if error.error.is::<io::Error>() => {
            ended
        }
        ClientInitializeError::TransportError { error, .. } => failed(words(&error.error)),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => reason(fallback),
        error => failed(words(error)),
    }
}

/// An error in a line, without rmcp's word for those of the connection.
fn words(error: &impl ToString) -> String {
    let text = error.to_string();
    clean(&text.replacen("Client error: ", "", 1), MAX_REASON)
}

/// Listens for changes of the list of tools, where that is a request of its own.
fn listener(
    service: &RunningService<RoleClient, Handler>,
    is_stale: Arc<AtomicBool>,
) -> Option<AbortOnDropHandle<()>> {
    let info = service.peer().peer_info()?;
    let changes = info.capabilities.tools.as_ref().and_then(|tools| tools.list_changed);
    if info.protocol_version.has_initialize() || changes != Some(true) {
        return None;
    }
    let peer = service.peer().clone();
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        let Ok(mut changes) = peer.listen(filter).await else { return };
        while let Ok(Some(_)) = changes.next().await {
            is_stale.store(true, Ordering::Relaxed);
        }
    })))
}

impl Live {
    /// All pages of its list, within bounds.
    async fn list(&self, upstream: &str) -> Result<Arc<[HostTool]>, ServiceError> {
        let (mut tools, mut bytes, mut cursor) = (Vec::<HostTool>::new(), 0, None);
        for _ in 0..MAX_PAGES {
            let page = PaginatedRequestParams::default().with_cursor(cursor);
            let page = self.service.peer().list_tools(Some(page)).await?;
            for listed in page.tools.into_iter().filter_map(|it| tool(upstream, it)) {
                bytes += serde_json::to_vec(&listed).map_or(0, |json| json.len());
                if tools.len() >= MAX_TOOLS || bytes > MAX_LIST {
                    tracing::warn!(
                        upstream,
                        "it has more tools than the {} that are listed",
                        tools.len()
                    );
                    return Ok(tools.into());
                }
                match tools.iter_mut().find(|it| it.name == listed.name) {
                    // Of two of one name the worst is believed.
                    Some(same) if same.effect != listed.effect => {
                        same.effect = ToolEffect::Destructive;
                        same.annotations.clear();
                    }
                    Some(_) => {}
                    None => tools.push(listed),
                }
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(tools.into())
    }

    /// Calls a tool. A call that is dropped is cancelled.
    pub async fn call(
        &self,
        tool: &str,
        arguments: JsonObject,
    ) -> Result<CallToolResult, HostToolError> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let called = tokio::select! {
            biased;
            () = self.too_long.cancelled() => return Err(HostToolError::TooLarge),
            called = self.service.call_tool(params) => called,
        };
        let why = match called {
            Ok(result) => {
                self.has_answered.store(true, Ordering::Relaxed);
                return Ok(result);
            }
            Err(ServiceError::McpError(error)) => {
                return Err(HostToolError::Failed(clean(&error.message, MAX_FAILURE)));
            }
            Err(ServiceError::TransportClosed) => "its connection was lost".to_owned(),
            Err(ServiceError::TransportSend(error)) => words(&error.error),
            Err(error) => words(&error),
        };
        Err(HostToolError::Unavailable(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_connection_is_in_its_own_words() {
        assert_eq!(words(&"Client error: cannot connect to a"), "cannot connect to a");
        assert_eq!(words(&"cannot connect"), "cannot connect");
    }

    #[test]
    fn what_is_missing_of_a_program_is_named() {
        let error = io::Error::from(io::ErrorKind::NotFound);
        let not_started = |program: &str, cwd: &str| {
            not_started((&[program.to_owned()][..], &BTreeMap::new(), Path::new(cwd)), &error)
        };
        let text = not_started("uvx", "/").text;
        assert!(text.starts_with("its program 'uvx' cannot be started: "), "{text}");
        let absolute = not_started("/opt/of/me/uvx", "/");
        assert!(!absolute.text.contains("/opt") && absolute.path == "/opt/of/me/uvx");
        let directory = not_started("uvx", "/no/such");
        assert!(!directory.text.contains("/no") && directory.text.contains("cwd"));
        assert_eq!(directory.path, "/no/such");
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let pauses = (0..12).map(|failures| pause(failures).as_secs()).collect::<Vec<_>>();
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert_eq!(pause(u32::MAX), MAX_PAUSE);
    }
}
