//! The sessions of revisions before 2026-07-28, and the calls in them.
//!
//! In a session, a client that goes away has not cancelled its call: it may come back and resume the
//! stream of the answer. It has [`RESUME_WAIT`] for that; then its call is cancelled, as if it had said
//! so itself.
//!
//! The number of sessions is bounded, per subject too: a session over the bound evicts its
//! subject's least recently used one.

use std::collections::{HashMap, HashSet};
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
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
use sandbox_api::service::{Subject, has_room};
use tokio::sync::watch;
use tokio::time::Instant;

use super::lines::{answered_id, id_in_progress};
use crate::lock;

/// The most sessions.
const MAX_SESSIONS: usize = 1024;
/// How long a client may take to resume a stream. It is asked to do so after 3 s.
const RESUME_WAIT: Duration = Duration::from_secs(10);
/// How much longer than any call a session lives in which nothing happens.
const IDLE_WAIT: Duration = Duration::from_secs(60);

/// The sessions, and whose they are.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    local: Arc<LocalSessionManager>,
    owned: Mutex<HashMap<SessionId, Owned>>,
    calls: Arc<Calls>,
    in_progress: Arc<InProgress>,
}

/// Further facts about a session.
#[derive(Debug)]
struct Owned {
    subject: Option<Subject>,
    used: Instant,
    /// Held by its requests.
    requests: Arc<()>,
}

tokio::task_local! {
    /// Whose request it is, which may begin a session.
    pub(crate) static SUBJECT: Option<Subject>;
}

/// Whether who has `own` of `all` may have one more.
pub(crate) const fn has_room_for_one(own: usize, all: usize, most: usize) -> bool {
    has_room(own as u64 + 1, all as u64 + 1, most as u64)
}

/// The calls that may be resumed.
type Calls = Mutex<HashMap<StreamName, watch::Sender<CallState>>>;

/// The ids of the requests in progress, by session.
type InProgress = Mutex<HashSet<(SessionId, RequestId)>>;

/// An id that is in use, until this is dropped.
#[derive(Debug)]
struct IdInUse {
    in_progress: Arc<InProgress>,
    id: (SessionId, RequestId),
}

impl IdInUse {
    /// None if it is in use already.
    fn begin(in_progress: &Arc<InProgress>, id: (SessionId, RequestId)) -> Option<Self> {
        let is_free = lock(in_progress).insert(id.clone());
        is_free.then(|| Self { in_progress: in_progress.clone(), id })
    }
}

impl Drop for IdInUse {
    fn drop(&mut self) {
        lock(&self.in_progress).remove(&self.id);
    }
}

/// A stream is known by its session, and by what the ids of its events end with.
type StreamName = (SessionId, String);

/// How far a call is.
#[derive(Debug, Default)]
struct CallState {
    /// How many streams for its answer there are.
    streams: usize,
    is_answered: bool,
    /// Its id, until it is answered.
    id: Option<IdInUse>,
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

/// The common prefix of the event ids of one stream; `None` for events outside of a call.
fn stream_of(event: &str) -> Option<&str> {
    event.split_once('/').map(|(_, stream)| stream)
}

/// The event under the number of the next one. The SDK resumes a stream with the event that its client names,
/// which the client has already, and the first event of a session's own stream has the number of the one before
/// it that only says when to come back.
fn numbered_from_one(mut event: ServerSseMessage) -> ServerSseMessage {
    event.event_id = event.event_id.map(|id| {
        let (number, stream) = id.find('/').map_or((&*id, ""), |at| id.split_at(at));
        match number.parse::<usize>() {
            Ok(number) => format!("{}{stream}", number + 1),
            Err(_) => id,
        }
    });
    event
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

    /// A session as a request uses it, until that is dropped; none if it is another subject's.
    pub fn enter(&self, id: &str, subject: Option<&Subject>) -> Option<Arc<()>> {
        match lock(&self.owned).get_mut(id) {
            Some(owned) if owned.subject.as_ref() != subject => None,
            Some(owned) => {
                owned.used = Instant::now();
                Some(owned.requests.clone())
            }
            // There is none.
            None => Some(Arc::default()),
        }
    }

    /// Makes room for one more session of a subject.
    ///
    /// # Errors
    ///
    /// If there is none, because all of its sessions are in use.
    pub async fn make_room(
        &self,
        subject: Option<&Subject>,
    ) -> Result<(), LocalSessionManagerError> {
        let oldest = {
            let known = self.local.sessions.read().await;
            let mut owned = lock(&self.owned);
            owned.retain(|id, _| known.contains_key(id));
            let own = || owned.iter().filter(|(_, it)| it.subject.as_ref() == subject);
            if has_room_for_one(own().count(), owned.len(), MAX_SESSIONS) {
                return Ok(());
            }
            let idle = own().filter(|(_, it)| Arc::strong_count(&it.requests) == 1);
            idle.min_by_key(|(_, it)| it.used).map(|(id, _)| id.clone())
        };
        // The nearest of what the protocol's SDK has.
        let none = || LocalSessionManagerError::SessionNotFound("none is idle".into());
        self.local.close_session(&oldest.ok_or_else(none)?).await
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
            let event = numbered_from_one(event);
            if event.message.as_deref().and_then(answered_id).is_some() {
                open.0.send_modify(|call| (call.is_answered, call.id) = (true, None));
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
    (session, request): (SessionId, RequestId),
) {
    loop {
        // Its streams hold the sender: an error is their end, too.
        let alone = call.wait_for(|call| call.streams == 0 || call.is_answered).await;
        if alone.is_ok_and(|call| call.is_answered) {
            break;
        }
        let resumed = call.wait_for(|call| call.streams > 0);
        if !matches!(tokio::time::timeout(RESUME_WAIT, resumed).await, Ok(Ok(_))) {
            let reason = "client disconnected".to_owned();
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
        let subject = SUBJECT.try_with(Clone::clone).unwrap_or_default();
        self.make_room(subject.as_ref()).await?;
        let (id, transport) = self.local.create_session().await?;
        let owned = Owned { subject, used: Instant::now(), requests: Arc::default() };
        lock(&self.owned).insert(id.clone(), owned);
        Ok((id, transport))
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
        let mut call = CallState::default();
        let request = match &message {
            JsonRpcMessage::Request(request) => {
                let of_request = (id.clone(), request.id.clone());
                call.id = IdInUse::begin(&self.in_progress, of_request.clone());
                if call.id.is_none() {
                    // It has a stream of its own, so that the first one is not answered by it.
                    let error =
                        ServerJsonRpcMessage::error(id_in_progress(), Some(request.id.clone()));
                    let refused = ServerSseMessage::from_message(error);
                    return Ok(stream::once(ready(refused)).left_stream());
                }
                Some(of_request)
            }
            _ => None,
        };
        let (call, state) = watch::channel(call);
        let events = self.local.create_stream(id, message).await?;
        let events = self.open(id, call, events);
        if let Some(request) = request {
            tokio::spawn(follow(state, self.calls.clone(), self.local.clone(), request));
        }
        Ok(events.right_stream())
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.local.create_standalone_stream(id).await?.map(numbered_from_one))
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
            None => events.map(numbered_from_one).right_stream(),
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
    use rmcp::service::{RequestContext, RoleServer, RunningService};
    use rmcp::{ServerHandler, ServiceExt as _};
    use serde_json::{Value, json};
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    /// Its tool `wait` runs until it is cancelled, and says so; `slow` takes a minute; another is answered
    /// at once.
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
            if request.name == "slow" {
                tokio::time::sleep(Duration::from_secs(60)).await;
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

    /// A session, its server's side, and when its calls are cancelled.
    async fn served()
    -> (Sessions, SessionId, RunningService<RoleServer, Waits>, mpsc::UnboundedReceiver<Instant>)
    {
        let sessions = Sessions::new(Duration::from_secs(600));
        let (id, transport) = sessions.create_session().await.unwrap();
        let (sender, cancelled) = mpsc::unbounded_channel();
        let running = tokio::spawn(async move { Waits(sender).serve(transport).await.unwrap() });
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        });
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello });
        sessions.initialize_session(&id, message(hello)).await.unwrap();
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        sessions.accept_message(&id, message(ready)).await.unwrap();
        (sessions, id, running.await.unwrap(), cancelled)
    }

    /// A session, and when its calls are cancelled.
    async fn session() -> (Sessions, SessionId, mpsc::UnboundedReceiver<Instant>) {
        let (sessions, id, running, cancelled) = served().await;
        tokio::spawn(running.waiting());
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
        let received: Vec<_> = events.collect().await;
        assert!(matches!(
            received.last().and_then(|event| event.message.as_deref()),
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
        assert!(sessions.local.sessions.read().await.is_empty());
    }

    /// The last message of a stream.
    async fn answer(events: impl Stream<Item = ServerSseMessage>) -> Value {
        let events: Vec<_> = events.collect().await;
        let message = events.last().and_then(|event| event.message.as_deref()).unwrap();
        serde_json::to_value(message).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn second_request_with_an_id_in_progress_is_refused_and_the_first_is_answered() {
        let (sessions, id, _cancelled) = session().await;
        let first = sessions.create_stream(&id, call(1, "slow")).await.unwrap();
        let second = answer(sessions.create_stream(&id, call(1, "other")).await.unwrap()).await;
        assert_eq!((&second["id"], &second["error"]["code"]), (&json!(1), &json!(-32600)));
        let (other, _transport) = sessions.create_session().await.unwrap();
        let of_another = (other, RequestId::Number(1));
        assert!(IdInUse::begin(&sessions.in_progress, of_another).is_some());
        assert!(answer(first).await["result"].is_object());
        assert!(lock(&sessions.in_progress).is_empty());
        let again = answer(sessions.create_stream(&id, call(1, "other")).await.unwrap()).await;
        assert!(again["result"].is_object(), "{again}");
    }

    /// The ids of the next events, with whether each has a message.
    async fn next_ids(
        events: &mut (impl Stream<Item = ServerSseMessage> + Unpin),
        count: usize,
    ) -> Vec<(String, bool)> {
        let events: Vec<_> = events.take(count).collect().await;
        let id_of = |it: ServerSseMessage| (it.event_id.unwrap(), it.message.is_some());
        events.into_iter().map(id_of).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn resumed_stream_begins_after_the_event_that_its_client_names() {
        let (sessions, id, _cancelled) = session().await;
        let mut events = Box::pin(sessions.create_stream(&id, call(1, "slow")).await.unwrap());
        let first = next_ids(&mut events, 1).await.remove(0).0;
        drop(events);
        let resumed = sessions.resume(&id, first.clone()).await.unwrap();
        let answers: Vec<_> = resumed.collect().await;
        assert_eq!(answers.len(), 1, "and not the first one again");
        assert!(answers[0].message.is_some());
        assert_ne!(answers[0].event_id.as_deref(), Some(&*first));
    }

    #[tokio::test(start_paused = true)]
    async fn notification_is_sent_again_to_a_client_that_does_not_have_it_and_to_no_other() {
        let (sessions, id, running, _cancelled) = served().await;
        let mut events = Box::pin(sessions.create_standalone_stream(&id).await.unwrap());
        for _ in 0..2 {
            running.peer().notify_resource_list_changed().await.unwrap();
        }
        let both = next_ids(&mut events, 2).await;
        assert_eq!(both, [("1".to_owned(), true), ("2".to_owned(), true)]);
        drop(events);
        // 0 is what the SDK calls the event before the first one.
        for (last, expected) in [("0", &both[..]), ("1", &both[1..])] {
            let mut events = Box::pin(sessions.resume(&id, last.to_owned()).await.unwrap());
            assert_eq!(next_ids(&mut events, expected.len()).await, expected, "{last}");
        }
        let mut events = Box::pin(sessions.resume(&id, "2".to_owned()).await.unwrap());
        running.peer().notify_resource_list_changed().await.unwrap();
        assert_eq!(next_ids(&mut events, 1).await, [("3".to_owned(), true)]);
    }

    /// Begins a session of this subject.
    async fn begin(sessions: &Sessions, subject: &str) -> Option<SessionId> {
        let subject = Some(Subject::new(subject).unwrap());
        let begun = SUBJECT.scope(subject, sessions.create_session()).await;
        // A moment later, so that they have an order.
        tokio::time::advance(Duration::from_millis(1)).await;
        begun.ok().map(|(id, _)| id)
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_of_one_subject_take_the_room_of_no_other() {
        let sessions = Sessions::new(Duration::from_secs(600));
        let alice = Subject::new("alice").unwrap();
        let first = begin(&sessions, "alice").await.unwrap();
        let second = begin(&sessions, "alice").await.unwrap();
        // The first one has a call, and the second one had one lately.
        let call = sessions.enter(&first, Some(&alice)).unwrap();
        let third = begin(&sessions, "alice").await.unwrap();
        drop(sessions.enter(&second, Some(&alice)).unwrap());
        for _ in 3..=MAX_SESSIONS / 2 {
            begin(&sessions, "alice").await.unwrap();
        }
        let has = async |id: &SessionId| sessions.has_session(id).await.unwrap();
        assert!(has(&first).await && has(&second).await && !has(&third).await);
        assert_eq!(sessions.local.sessions.read().await.len(), MAX_SESSIONS / 2);
        let of_bob = begin(&sessions, "bob").await.unwrap();
        assert!(has(&of_bob).await && has(&first).await);
        assert!(sessions.enter(&of_bob, Some(&alice)).is_none(), "it is not hers");
        assert!(sessions.enter(&of_bob, None).is_none());
        assert!(sessions.enter("absent", Some(&alice)).is_some(), "for the protocol to refuse");
        // Where all of them have calls, she gets no more, and he does.
        let ids: Vec<_> = sessions.local.sessions.read().await.keys().cloned().collect();
        let calls: Vec<_> = ids.iter().map(|id| sessions.enter(id, Some(&alice))).collect();
        assert!(begin(&sessions, "alice").await.is_none());
        assert!(begin(&sessions, "bob").await.is_some());
        drop((call, calls));
        assert!(begin(&sessions, "alice").await.is_some());
    }
}
