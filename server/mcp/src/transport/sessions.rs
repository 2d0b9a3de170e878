//! The sessions of revisions before 2026-07-28, and the calls in them.
//!
//! In a session, a client that goes away has not cancelled its call: it may come back and resume the
//! stream of the answer. It has [`RESUME_WAIT`] for that; then its call is cancelled, as if it had said
//! so itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use rmcp::model::{
    CancelledNotification, CancelledNotificationParam, ClientJsonRpcMessage, JsonRpcMessage,
    RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, SessionConfig,
};
use rmcp::transport::streamable_http_server::session::{
    RestoreOutcome, ServerSseMessage, SessionId, SessionManager,
};
use sandbox_api::service::Subject;
use tokio::sync::watch;

/// How long a client may take to resume a stream. It is told to do so after 3 s.
const RESUME_WAIT: Duration = Duration::from_secs(10);
/// How much longer than any call a session lives in which nothing happens.
const IDLE_WAIT: Duration = Duration::from_secs(60);

/// The sessions, and whose they are.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    local: Arc<LocalSessionManager>,
    owners: Mutex<HashMap<String, Subject>>,
    calls: Arc<Calls>,
}

/// The calls that may be resumed.
type Calls = Mutex<HashMap<StreamName, watch::Sender<CallState>>>;

/// A stream is known by its session, and by what the ids of its events end with.
type StreamName = (SessionId, String);

/// How far a call is.
#[derive(Debug, Default)]
struct CallState {
    /// How many streams for its answer there are.
    streams: usize,
    is_answered: bool,
    /// What its streams are known by, after their first event.
    name: Option<StreamName>,
}

/// A stream of a call, while it is open.
struct OpenStream(watch::Sender<CallState>);

impl OpenStream {
    fn of(call: watch::Sender<CallState>) -> Self {
        call.send_modify(|call| call.streams += 1);
        Self(call)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|call| call.streams -= 1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the ids of the events of one stream have in common; none for those of no call.
fn stream_of(event: &str) -> Option<&str> {
    event.split_once('/').map(|(_, stream)| stream)
}

impl Sessions {
    /// No session yet. They outlive each call, which takes at most so long.
    pub fn new(longest_call: Duration) -> Self {
        let mut config = SessionConfig::default();
        let idle = longest_call.saturating_add(IDLE_WAIT);
        config.keep_alive = config.keep_alive.map(|keep_alive| keep_alive.max(idle));
        let mut local = LocalSessionManager::default();
        local.session_config = config;
        Self { local: Arc::new(local), ..Self::default() }
    }

    /// How many there are.
    pub async fn count(&self) -> usize {
        self.local.sessions.read().await.len()
    }

    /// Whether a session is another subject's.
    pub fn is_foreign(&self, id: &str, subject: Option<&Subject>) -> bool {
        lock(&self.owners).get(id).is_some_and(|owner| Some(owner) != subject)
    }

    /// A session is this subject's.
    pub async fn own(&self, id: &str, subject: Subject) {
        let known = self.local.sessions.read().await;
        let mut owners = lock(&self.owners);
        owners.retain(|id, _| known.contains_key(&**id));
        owners.insert(id.to_owned(), subject);
    }

    /// Events as they come, and the stream is open until they are dropped.
    fn open(
        &self,
        session: &SessionId,
        call: watch::Sender<CallState>,
        events: impl Stream<Item = ServerSseMessage> + Send + Sync + 'static,
    ) -> impl Stream<Item = ServerSseMessage> + Send + Sync + 'static {
        let (session, calls) = (session.clone(), self.calls.clone());
        let open = OpenStream::of(call);
        events.map(move |event| {
            let is_answer = matches!(
                event.message.as_deref(),
                Some(JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))
            );
            if is_answer {
                open.0.send_modify(|call| call.is_answered = true);
            } else if open.0.borrow().name.is_none()
                && let Some(stream) = event.event_id.as_deref().and_then(stream_of)
            {
                let name = (session.clone(), stream.to_owned());
                lock(&calls).insert(name.clone(), open.0.clone());
                open.0.send_modify(|call| call.name = Some(name));
            }
            event
        })
    }
}

/// Follows a call to its answer, and cancels it if its client does not come back.
async fn follow(
    mut call: watch::Receiver<CallState>,
    calls: Arc<Calls>,
    local: Arc<LocalSessionManager>,
    session: SessionId,
    request: RequestId,
) {
    loop {
        // Its streams hold the sender: an error is their end, too.
        let alone = call.wait_for(|call| call.streams == 0 || call.is_answered).await;
        if alone.is_ok_and(|call| call.is_answered) {
            break;
        }
        let resumed = call.wait_for(|call| call.streams > 0);
        if !matches!(tokio::time::timeout(RESUME_WAIT, resumed).await, Ok(Ok(_))) {
            let reason = "its client has gone away".to_owned();
            let param = CancelledNotificationParam::new(Some(request), Some(reason));
            let cancelled = CancelledNotification::new(param);
            let message = ClientJsonRpcMessage::notification(cancelled.into());
            // A session that has ended has ended its calls.
            _ = local.accept_message(&session, message).await;
            break;
        }
    }
    let name = call.borrow().name.clone();
    if let Some(name) = name {
        lock(&calls).remove(&name);
    }
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        self.local.create_session().await
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.local.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.local.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.local.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let request = match &message {
            JsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        let (call, state) = watch::channel(CallState::default());
        let events = self.local.create_stream(id, message).await?;
        let events = self.open(id, call, events);
        if let Some(request) = request {
            let (calls, local) = (self.calls.clone(), self.local.clone());
            tokio::spawn(follow(state, calls, local, id.clone(), request));
        }
        Ok(events)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let name = stream_of(&last_event_id).map(|stream| (id.clone(), stream.to_owned()));
        let call = name.and_then(|name| lock(&self.calls).get(&name).cloned());
        // Its client is back before the old events are there.
        let open = call.clone().map(OpenStream::of);
        let events = self.local.resume(id, last_event_id).await?;
        let events = match call {
            Some(call) => self.open(id, call, events).left_stream(),
            None => events.right_stream(),
        };
        drop(open);
        Ok(events)
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        self.local.accept_message(id, message).await
    }

    async fn restore_session(
        &self,
        id: SessionId,
    ) -> Result<RestoreOutcome<Self::Transport>, Self::Error> {
        self.local.restore_session(id).await
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData};
    use rmcp::service::{RequestContext, RoleServer};
    use rmcp::{ServerHandler, ServiceExt as _};
    use serde_json::{Value, json};
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    /// Its tool `wait` runs until it is cancelled, and says so; another is answered at once.
    struct Waits(mpsc::UnboundedSender<Instant>);

    impl ServerHandler for Waits {
        async fn call_tool(
            &self,
            request: CallToolRequestParams,
            context: RequestContext<RoleServer>,
        ) -> Result<CallToolResponse, ErrorData> {
            if request.name == "wait" {
                context.ct.cancelled().await;
                _ = self.0.send(Instant::now());
            }
            Ok(CallToolResult::success(Vec::new()).into())
        }
    }

    fn message(message: Value) -> ClientJsonRpcMessage {
        serde_json::from_value(message).unwrap()
    }

    fn call(id: u32, tool: &str) -> ClientJsonRpcMessage {
        let params = json!({ "name": tool, "arguments": {} });
        message(json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }))
    }

    /// A session, and when its calls are cancelled.
    async fn session() -> (Sessions, SessionId, mpsc::UnboundedReceiver<Instant>) {
        let sessions = Sessions::new(Duration::from_secs(600));
        let (id, transport) = sessions.create_session().await.unwrap();
        let (sender, cancelled) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let running = Waits(sender).serve(transport).await.unwrap();
            _ = running.waiting().await;
        });
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        });
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello });
        sessions.initialize_session(&id, message(hello)).await.unwrap();
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        sessions.accept_message(&id, message(ready)).await.unwrap();
        (sessions, id, cancelled)
    }

    #[tokio::test(start_paused = true)]
    async fn call_in_a_session_is_cancelled_when_its_client_does_not_come_back() {
        let (sessions, id, mut cancelled) = session().await;
        let mut events = Box::pin(sessions.create_stream(&id, call(1, "wait")).await.unwrap());
        let first = events.next().await.unwrap().event_id.unwrap();
        drop(events);
        tokio::time::sleep(RESUME_WAIT / 2).await;
        assert!(cancelled.try_recv().is_err(), "it may still come back");
        let resumed = Box::pin(sessions.resume(&id, first.clone()).await.unwrap());
        tokio::time::sleep(RESUME_WAIT * 3).await;
        assert!(cancelled.try_recv().is_err(), "it is back");
        // Of two streams, one is enough.
        let other = Box::pin(sessions.resume(&id, first).await.unwrap());
        drop(resumed);
        tokio::time::sleep(RESUME_WAIT * 3).await;
        assert!(cancelled.try_recv().is_err(), "it is still there");
        let gone = Instant::now();
        drop(other);
        assert_eq!(cancelled.recv().await.unwrap() - gone, RESUME_WAIT);
        tokio::task::yield_now().await;
        assert!(lock(&sessions.calls).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_is_answered_or_in_a_session_that_ends_is_followed_no_longer() {
        let (sessions, id, mut cancelled) = session().await;
        let events = sessions.create_stream(&id, call(1, "other")).await.unwrap();
        let told: Vec<_> = events.collect().await;
        assert!(matches!(
            told.last().and_then(|event| event.message.as_deref()),
            Some(JsonRpcMessage::Response(_))
        ));
        let mut open = Box::pin(sessions.create_stream(&id, call(2, "wait")).await.unwrap());
        open.next().await.unwrap();
        assert_eq!(lock(&sessions.calls).len(), 1, "the answered one is not there");
        sessions.close_session(&id).await.unwrap();
        cancelled.recv().await.unwrap();
        drop(open);
        tokio::time::sleep(RESUME_WAIT * 2).await;
        assert!(lock(&sessions.calls).is_empty());
        assert_eq!(sessions.count().await, 0);
    }
}
