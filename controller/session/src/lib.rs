//! The session with the agent: JSON-RPC over a container's stdio.
//!
//! The agent must be considered hostile as soon as any guest code has run. Every line, id, wait and
//! total is bounded. Anything that an honest agent does not send (an unknown id, a second reply,
//! more log than its limit, a path outside the mounts, a chunk of an unknown stream) is a breach
//! that ends the session.
//!
//! One task reads, and waits for nothing but the agent; callers write, and a thread sends the agent
//! heartbeats. The log and the changed paths of a run are collected as they arrive, so that nothing
//! is lost if the agent is killed.

#![forbid(unsafe_code)]

#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod heartbeat;
mod outbound;
mod streams;
mod tunnels;

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::StreamExt;
use sandbox_engine::{Attached, Output};
use sandbox_protocol::frame::FrameDecoder;
use sandbox_protocol::limits::{
    FIRST_DIAL, MAX_IN_FLIGHT, MAX_MESSAGE_BYTES, cut_encoded, encoded_len,
};
use sandbox_protocol::message::{
    Call, CaseEnd, Changes, Chunk, Dial, Done, Exec, ExecReply, Exited, HostCall, Log, Page,
    Refused, Request, Started, Touched, Watched,
};
use sandbox_protocol::{FromAgent, ToAgent, WireError};
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

pub use self::outbound::Ended;
use self::outbound::Sender;
use self::streams::{Content, Streams};
pub use self::streams::{Fin, Flow, Incoming, Outgoing};
use self::tunnels::Tunnels;
pub use self::tunnels::{ConnectHandler, Received, Tunnel};

/// How many bytes of the agent's stderr are kept: the last ones.
const STDERR_TAIL: usize = 4 << 10;

/// Why a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// The agent's stdout ended, or the connection to it was lost.
    Eof,
    /// The agent broke the protocol.
    Breach(String),
}

/// A request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The agent refused it.
    #[error(transparent)]
    Refused(#[from] WireError),
    /// The session has ended; [`Session::ended`] returns why.
    #[error("the session has ended")]
    Over,
    /// The request is too large for the wire.
    #[error("a request is too large: {0}")]
    TooLarge(sandbox_protocol::frame::FrameError),
}

/// Handles the agent's notifications about a request. An error is a breach. The session drops it when it has
/// delivered the answer, or has ended.
pub trait NotificationHandler: Send + Sync {
    /// An entry of the log.
    fn log(&self, log: Log) -> Result<(), String> {
        Err(format!("a log entry for an unknown run (id {})", log.request))
    }
    /// A test case has ended.
    fn case(&self, end: CaseEnd) -> Result<(), String> {
        Err(format!("a test case for an unknown run (id {})", end.request))
    }
    /// A path is about to be changed.
    fn touched(&self, touched: Touched) -> Result<(), String> {
        Err(format!("a changed path for a request that changes no files (id {})", touched.request))
    }
    /// A script was denied access to a path.
    fn refused(&self, refused: Refused) -> Result<(), String> {
        Err(format!("a refusal for an unknown run (id {})", refused.request))
    }
    /// A script calls the host.
    fn call(&self, call: HostCall) -> Result<(), String> {
        Err(format!("a call of the host by an unknown run (id {})", call.request))
    }
    /// Entries of a list.
    fn page(&self, page: Page) -> Result<(), String> {
        Err(format!("entries for an unknown list (id {})", page.request))
    }
    /// The program of a kept command has been executed: once, and before everything else of it.
    fn started(&self, started: Started) -> Result<(), String> {
        Err(format!("the start of an unknown command (id {})", started.request))
    }
    /// The program of a kept command has ended: once, after its start and before the answer.
    fn exited(&self, exited: Exited) -> Result<(), String> {
        Err(format!("the exit of an unknown command (id {})", exited.request))
    }
    /// A watch is on: once, and before everything else of it.
    fn watched(&self, watched: Watched) -> Result<(), String> {
        Err(format!("the start of an unknown watch (id {})", watched.request))
    }
    /// What has changed in a watched directory.
    fn changes(&self, changes: Changes) -> Result<(), String> {
        Err(format!("changes for an unknown watch (id {})", changes.request))
    }
}

/// The controller's end of a session.
pub struct Session {
    outgoing: Arc<Sender>,
    in_flight: Arc<Semaphore>,
    /// Permits of `cancel` and `shutdown`, which must not wait for the requests they end.
    control: Arc<Semaphore>,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    end: watch::Sender<Option<SessionEnd>>,
    /// Handles connection requests and sends the replies. Weak: stdin is closed when the session
    /// ends.
    gate: Option<(Arc<dyn ConnectHandler>, Weak<Sender>)>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    pending: HashMap<u64, Pending>,
    streams: Streams,
    tunnels: Tunnels,
    stderr: Vec<u8>,
}

/// Decodes the answer and delivers it; an error is a breach.
type Deliver = Box<dyn FnOnce(Result<&RawValue, WireError>) -> Result<(), String> + Send>;

struct Pending {
    deliver: Deliver,
    /// Handles the agent's notifications meanwhile.
    sink: Option<Arc<dyn NotificationHandler>>,
    /// The streams that the request opened, or the tunnel that it dials.
    streams: Vec<u32>,
    /// Of a kept command or a watch: what it has reported of itself.
    kept: Option<Kept>,
    _place: Option<OwnedSemaphorePermit>,
}

/// What a kept command or a watch has reported of itself. Each step is reported once, in this order,
/// before the answer; an error before the first one means that it never ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Requested,
    Started,
    Exited,
    /// Of a watch, instead of the other two.
    Watching,
}

/// A request that opens streams.
struct Opening<T> {
    request: Request,
    /// The numbers of its streams.
    streams: Vec<u32>,
    /// That of the one whose number is in the envelope, not in the params.
    stream: Option<u32>,
    /// The first chunk of the one on which the controller sends.
    chunk: Option<Chunk>,
    /// The controller's ends.
    ends: T,
}

impl<T> Opening<T> {
    const fn new(request: Request, streams: Vec<u32>, ends: T) -> Self {
        Self { request, streams, stream: None, chunk: None, ends }
    }
}

/// A permit for one request in flight.
pub struct InFlightPermit {
    /// `None` for a request that is not counted.
    place: Option<OwnedSemaphorePermit>,
    kept: Option<Kept>,
}

impl InFlightPermit {
    /// That of a kept command or a watch, which may be in flight as long as its sandbox lives.
    pub const fn of_kept() -> Self {
        Self { place: None, kept: Some(Kept::Requested) }
    }
}

/// Waits for one of these places.
async fn acquire(places: &Arc<Semaphore>) -> Result<InFlightPermit, CallError> {
    let place = places.clone().acquire_owned().await.map_err(|_| CallError::Over)?;
    Ok(InFlightPermit { place: Some(place), kept: None })
}

/// Which streams a command has besides its stdout, and how it is reported.
#[derive(Clone, Default)]
pub struct ConsoleSpec {
    /// Whether it has a stdin.
    pub has_stdin: bool,
    /// Whether its stderr is a stream of its own.
    pub has_stderr: bool,
    /// How many bytes it may print on all of them.
    pub most: u64,
    /// Gets its notifications if it is kept.
    pub kept: Option<Arc<dyn NotificationHandler>>,
}

/// The controller's ends of a command's streams.
pub struct Console {
    /// What it reads, if it has a stdin.
    pub stdin: Option<Outgoing>,
    /// What it prints: on stdout, and if that is a stream of its own, on stderr.
    pub output: Incoming,
}

/// The decoded answer to a request. Only who sent that knows its type: what is between is compiled once, not
/// for each type.
pub type Decoded = Box<dyn Any + Send>;

type Decode = fn(&RawValue) -> Result<Decoded, serde_json::Error>;

fn decode<C: Call>(raw: &RawValue) -> Result<Decoded, serde_json::Error> {
    serde_json::from_str::<C::Reply>(raw.get()).map(|reply| Box::new(reply) as Decoded)
}

/// The answer to a request whose answers have this type.
///
/// # Panics
///
/// If it is that to another one.
pub fn typed<T: 'static>(decoded: Decoded) -> T {
    *decoded.downcast::<T>().expect("it was decoded as that")
}

/// A request, and how its answer is decoded.
pub struct Question<'a> {
    request: Request,
    decode: Decode,
    /// Where it takes its permit.
    places: &'a Arc<Semaphore>,
}

/// The pending answer to a request.
pub struct Reply<T> {
    /// The answer.
    pub answer: Answer,
    /// Gives it its type.
    pub typed: fn(Decoded) -> T,
}

impl<T: 'static> Reply<T> {
    fn new(answer: Answer) -> Self {
        Self { answer, typed: typed::<T> }
    }
}

impl<T> Reply<T> {
    /// Waits for the answer. Cancel-safe. If there will be none, the reason is known when this
    /// returns.
    pub async fn wait(&mut self) -> Result<T, CallError> {
        self.answer.wait().await.map(self.typed)
    }
}

/// The pending answer to a request, without its type.
pub struct Answer {
    /// The request's id.
    pub id: u64,
    answer: oneshot::Receiver<Result<Decoded, WireError>>,
    /// Whether there will be no answer.
    is_lost: bool,
    end: watch::Receiver<Option<SessionEnd>>,
}

impl Answer {
    /// Waits for the answer, as [`Reply::wait`] does.
    pub async fn wait(&mut self) -> Result<Decoded, CallError> {
        if !self.is_lost {
            match (&mut self.answer).await {
                Ok(answer) => return answer.map_err(CallError::Refused),
                Err(_) => self.is_lost = true,
            }
        }
        // The sender of an invalid answer is dropped a moment before the session ends because of
        // it.
        _ = self.end.wait_for(Option::is_some).await;
        Err(CallError::Over)
    }
}

impl Session {
    /// Starts a session on a container's stdio. `gate` handles the connection requests of commands;
    /// without one they are a breach.
    ///
    /// # Errors
    ///
    /// If the heartbeat thread cannot be started: the agent would soon end itself.
    pub fn start(attached: Attached, gate: Option<Arc<dyn ConnectHandler>>) -> io::Result<Self> {
        let (outgoing, writer) = outbound::open(attached.input);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            end: watch::Sender::new(None),
            gate: gate.map(|gate| (gate, Arc::downgrade(&outgoing))),
        });
        let mut end = shared.end.subscribe();
        heartbeat::begin(outgoing.lines())?;
        tokio::spawn(async move {
            // When the session ends, the whole connection must be closed, even if the agent reads
            // no more: an engine whose output is not read can block on that container.
            tokio::select! {
                () = writer.run() => {}
                _ = end.wait_for(Option::is_some) => {}
            }
        });
        tokio::spawn(read(attached.output, shared.clone()));
        let places = || Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        Ok(Self { outgoing, in_flight: places(), control: places(), shared })
    }

    /// Sends a request and waits for its answer, without a time limit: that is the caller's
    /// responsibility.
    pub async fn call<C: Call>(&self, params: C) -> Result<C::Reply, CallError> {
        self.begin(params, None).await?.wait().await
    }

    /// Sends a request. `sink` receives the agent's notifications about it.
    pub async fn begin<C: Call>(
        &self,
        params: C,
        sink: Option<Arc<dyn NotificationHandler>>,
    ) -> Result<Reply<C::Reply>, CallError> {
        self.ask(self.question(params), sink).await.map(Reply::new)
    }

    /// Sends a request with a permit.
    pub async fn begin_at<C: Call>(
        &self,
        permit: InFlightPermit,
        params: C,
        sink: Option<Arc<dyn NotificationHandler>>,
    ) -> Result<Reply<C::Reply>, CallError> {
        self.ask_at(permit, self.question(params), sink).await.map(Reply::new)
    }

    /// A request to [`ask`](Self::ask).
    pub fn question<C: Call>(&self, params: C) -> Question<'_> {
        Question { request: params.into(), decode: decode::<C>, places: self.places::<C>() }
    }

    /// Sends a request, as [`begin`](Self::begin) does.
    pub async fn ask(
        &self,
        question: Question<'_>,
        sink: Option<Arc<dyn NotificationHandler>>,
    ) -> Result<Answer, CallError> {
        let permit = acquire(question.places).await?;
        self.ask_at(permit, question, sink).await
    }

    async fn ask_at(
        &self,
        permit: InFlightPermit,
        Question { request, decode, .. }: Question<'_>,
        sink: Option<Arc<dyn NotificationHandler>>,
    ) -> Result<Answer, CallError> {
        let open = |_: &mut Streams| Opening::new(request, Vec::new(), ());
        self.open(permit, sink, decode, open).await.map(|(answer, ())| answer)
    }

    /// Sends a request that opens a stream, on which the agent sends at most `most` bytes.
    pub async fn receive<C: Call>(
        &self,
        most: u64,
        params: C,
    ) -> Result<(Reply<C::Reply>, Incoming), CallError> {
        let permit = self.acquire_permit::<C>().await?;
        let open = |streams: &mut Streams| {
            let incoming = self.incoming(streams, 1, most);
            let numbers: Vec<_> = incoming.numbers().collect();
            let stream = numbers.first().copied();
            Opening { stream, ..Opening::new(params.into(), numbers, incoming) }
        };
        let (answer, incoming) = self.open(permit, None, decode::<C>, open).await?;
        Ok((Reply::new(answer), incoming))
    }

    /// Sends a request that opens a stream from the controller. If `content`, the whole stream, is
    /// given, its first chunk is sent with the request: returns the length of that chunk.
    pub async fn send<C: Call>(
        &self,
        content: Option<&[u8]>,
        params: C,
    ) -> Result<(Reply<C::Reply>, Outgoing, usize), CallError> {
        let permit = self.acquire_permit::<C>().await?;
        let open = |streams: &mut Streams| {
            let outgoing = self.outgoing(streams, Content::File);
            let number = outgoing.number();
            let chunk =
                content.and_then(|data| streams.next_chunk(number, data, Fin::Nothing).ok()?);
            let sent = chunk.as_ref().map_or(0, |chunk| chunk.data.0.len());
            let stream = Some(number);
            let (request, ends) = (params.into(), (outgoing, sent));
            Opening { request, streams: vec![number], stream, chunk, ends }
        };
        let (answer, (outgoing, sent)) = self.open(permit, None, decode::<C>, open).await?;
        Ok((Reply::new(answer), outgoing, sent))
    }

    /// Sends a request for a command, with the numbers of its streams.
    pub async fn converse(
        &self,
        permit: InFlightPermit,
        spec: ConsoleSpec,
        params: Exec,
    ) -> Result<(Reply<ExecReply>, Console), CallError> {
        let ConsoleSpec { has_stdin, has_stderr, most, kept } = spec;
        let open = |streams: &mut Streams| {
            let console = Console {
                stdin: has_stdin.then(|| self.outgoing(streams, Content::Stdin)),
                output: self.incoming(streams, if has_stderr { 2 } else { 1 }, most),
            };
            let stdin = console.stdin.as_ref().map(Outgoing::number);
            let outputs: Vec<_> = console.output.numbers().collect();
            let (stdout, stderr) = (outputs[0], outputs.get(1).copied());
            let streams = outputs.into_iter().chain(stdin).collect();
            let request = Exec { stdin, stdout, stderr, ..params }.into();
            Opening::new(request, streams, console)
        };
        let (answer, console) = self.open(permit, kept, decode::<Exec>, open).await?;
        Ok((Reply::new(answer), console))
    }

    /// Connects to a port of the sandbox's loopback; `None` if there are as many connections as there may
    /// be. It must be waited for: otherwise a tunnel without an owner is left.
    pub async fn dial(&self, port: u16) -> Result<Option<Tunnel>, CallError> {
        let Some(tunnel) = Tunnel::dial(&self.shared, Arc::downgrade(&self.outgoing)) else {
            return Ok(None);
        };
        let number = tunnel.number();
        let dial = Dial { tunnel: number, port };
        let open = |_: &mut Streams| Opening::new(dial.into(), vec![number], ());
        let permit = InFlightPermit { place: None, kept: None };
        // It is bounded as tunnels are. Among the requests in flight, or those that must not wait for
        // them, sockets that accept nothing would take their places.
        let dialled = async { self.open(permit, None, decode::<Dial>, open).await?.0.wait().await };
        match dialled.await.map(typed::<Done>) {
            Ok(Done {}) => Ok(Some(tunnel)),
            Err(error) => {
                tunnel.forget();
                Err(error)
            }
        }
    }

    /// Opens so many streams for one consumer, on which the agent sends at most `most` bytes together.
    fn incoming(&self, streams: &mut Streams, count: usize, most: u64) -> Incoming {
        let left = Arc::new(AtomicU64::new(most));
        let (sender, pieces) = mpsc::unbounded_channel();
        let streams = (0..count).map(|_| streams.incoming(left.clone(), sender.clone())).collect();
        Incoming { streams, pieces, lines: self.outgoing.clone(), shared: self.shared.clone() }
    }

    fn outgoing(&self, streams: &mut Streams, content: Content) -> Outgoing {
        let (number, changed) = streams.outgoing(content);
        Outgoing { number, changed, lines: self.outgoing.clone(), shared: self.shared.clone() }
    }

    /// Waits until another request may be in flight.
    pub async fn acquire_permit<C: Call>(&self) -> Result<InFlightPermit, CallError> {
        acquire(self.places::<C>()).await
    }

    const fn places<C: Call>(&self) -> &Arc<Semaphore> {
        if C::IS_CONTROL { &self.control } else { &self.in_flight }
    }

    /// Returns credit for the consumed bytes of a stream: unconsumed ones stay buffered.
    pub async fn advance(&self, stream: u32, bytes: u64) {
        let Ok(slot) = self.outgoing.reserve().await else { return };
        let credit = self.shared.lock().streams.advance(stream, bytes);
        if let Some(line) = credit.and_then(|credit| ToAgent::Credit(credit).encode().ok()) {
            slot.send(line);
        }
    }

    /// Sends the request that `make` returns, and returns the controller's ends of the streams that
    /// it opens.
    async fn open<T>(
        &self,
        InFlightPermit { place, kept }: InFlightPermit,
        sink: Option<Arc<dyn NotificationHandler>>,
        decode: Decode,
        make: impl FnOnce(&mut Streams) -> Opening<T>,
    ) -> Result<(Answer, T), CallError> {
        // A caller that gives up before this point has not sent the request.
        let slot = self.outgoing.reserve().await.map_err(|_| CallError::Over)?;
        let (sender, answer) = oneshot::channel();
        let deliver: Deliver = Box::new(move |answer| {
            let answer = match answer {
                Ok(raw) => Ok(decode(raw).map_err(|error| format!("a malformed answer: {error}"))?),
                Err(error) if encoded_len(&error.message) > MAX_MESSAGE_BYTES => {
                    return Err("an error message over the size limit".to_owned());
                }
                Err(error) => Err(error),
            };
            // The caller may be gone.
            _ = sender.send(answer);
            Ok(())
        });
        let (id, line, ends) = {
            let mut state = self.shared.lock();
            if self.shared.end.borrow().is_some() {
                return Err(CallError::Over);
            }
            let id = state.next_id;
            let Opening { request, streams, stream, chunk, ends } = make(&mut state.streams);
            if stream.is_none() {
                state.streams.note_request();
            }
            let request = ToAgent::Request { id, request, stream };
            let chunk = chunk.map(ToAgent::Chunk);
            let line = match request.encode().and_then(|mut line| {
                // In one write, so that the agent is woken once for both.
                let content = chunk.map(|chunk| chunk.encode()).transpose()?;
                line.extend(content.unwrap_or_default());
                Ok(line)
            }) {
                Ok(line) => line,
                Err(error) => {
                    streams.into_iter().for_each(|stream| state.streams.close(stream));
                    return Err(CallError::TooLarge(error));
                }
            };
            state.next_id += 1;
            let pending = Pending { deliver, sink, streams, kept, _place: place };
            state.pending.insert(id, pending);
            (id, line, ends)
        };
        slot.send(line);
        let end = self.shared.end.subscribe();
        Ok((Answer { id, answer, is_lost: false, end }, ends))
    }

    /// Waits until nothing more can come of the tunnels that the agent has closed so far.
    pub async fn settle_tunnels(&self) {
        let ends = self.shared.lock().tunnels.ends();
        for end in ends {
            end.cancelled().await;
        }
    }

    /// Ends the session: the agent's messages contradict each other.
    pub fn breach(&self, detail: impl Into<String>) {
        self.shared.finish(SessionEnd::Breach(detail.into()));
    }

    /// Ends the session with an agent that cannot be killed: pending requests and streams fail.
    pub fn abandon(&self) {
        self.shared.finish(SessionEnd::Eof);
    }

    /// Waits for the end of the session, and returns the reason.
    pub async fn ended(&self) -> SessionEnd {
        self.subscribe_end().await
    }

    /// Like [`ended`](Self::ended), without borrowing the session.
    pub fn subscribe_end(&self) -> impl Future<Output = SessionEnd> + Send + use<> {
        let mut end = self.shared.end.subscribe();
        async move {
            let end = end.wait_for(Option::is_some).await;
            end.ok().and_then(|end| end.clone()).unwrap_or(SessionEnd::Eof)
        }
    }

    /// Why the session has ended, if it has.
    pub fn end(&self) -> Option<SessionEnd> {
        self.shared.end.borrow().clone()
    }

    /// The last bytes of the agent's stderr, as text.
    pub fn stderr(&self) -> String {
        let text = String::from_utf8_lossy(&self.shared.lock().stderr).into_owned();
        cut_encoded(text.trim(), 2 * STDERR_TAIL).to_owned()
    }
}

/// A request that is not in progress, or has no handler: any notification about it is a breach of the protocol.
struct Unknown;

impl NotificationHandler for Unknown {
    fn touched(&self, touched: Touched) -> Result<(), String> {
        Err(format!("a changed path for an unknown run (id {})", touched.request))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a line; an error is a breach.
    fn take(self: &Arc<Self>, line: &str) -> Result<(), String> {
        match FromAgent::decode(line).map_err(|error| error.to_string())? {
            FromAgent::Reply { id, result } => {
                let pending = {
                    let mut state = self.lock();
                    let pending = state.pending.remove(&id);
                    for &stream in pending.iter().flat_map(|pending| &pending.streams) {
                        match stream >= FIRST_DIAL {
                            true => state.tunnels.answered(stream, result.is_ok()),
                            false => state.streams.close(stream),
                        }
                    }
                    pending
                };
                let pending =
                    pending.ok_or_else(|| format!("an answer to an unknown request (id {id})"))?;
                let may_answer = matches!(pending.kept, None | Some(Kept::Exited | Kept::Watching));
                if !may_answer && result.is_ok() {
                    return Err(format!("an answer before the exit of its command (id {id})"));
                }
                (pending.deliver)(result)
            }
            FromAgent::Log(log) => self.sink(log.request).log(log),
            FromAgent::Case(end) => self.sink(end.request).case(end),
            FromAgent::Touched(touched) => self.sink(touched.request).touched(touched),
            FromAgent::Refused(refused) => self.sink(refused.request).refused(refused),
            FromAgent::Call(call) => self.sink(call.request).call(call),
            FromAgent::Page(page) => self.sink(page.request).page(page),
            FromAgent::Started(started) => {
                let sink = self.step(started.request, Kept::Requested, Kept::Started)?;
                sink.started(started)
            }
            FromAgent::Exited(exited) => {
                let sink = self.step(exited.request, Kept::Started, Kept::Exited)?;
                sink.exited(exited)
            }
            FromAgent::Watched(watched) => {
                let sink = self.step(watched.request, Kept::Requested, Kept::Watching)?;
                sink.watched(watched)
            }
            FromAgent::Changes(changes) => {
                // It stays so until the answer.
                let sink = self.step(changes.request, Kept::Watching, Kept::Watching)?;
                sink.changes(changes)
            }
            FromAgent::Chunk(chunk) if chunk.stream >= FIRST_DIAL => {
                self.lock().tunnels.chunk(&chunk)
            }
            FromAgent::Credit(credit) if credit.stream >= FIRST_DIAL => {
                self.lock().tunnels.credit(&credit)
            }
            FromAgent::Chunk(chunk) => self.lock().streams.chunk(chunk),
            FromAgent::Credit(credit) => self.lock().streams.credit(credit),
            FromAgent::Connect(connect) => Tunnel::open(self, connect),
            FromAgent::Close(close) => self.lock().tunnels.close(close),
        }
    }

    fn sink(&self, request: u64) -> Arc<dyn NotificationHandler> {
        let sink = self.lock().pending.get(&request).and_then(|pending| pending.sink.clone());
        sink.unwrap_or_else(|| Arc::new(Unknown))
    }

    /// A kept command or a watch has taken a step, which goes to its handler; an error is a breach.
    fn step(
        &self,
        request: u64,
        from: Kept,
        to: Kept,
    ) -> Result<Arc<dyn NotificationHandler>, String> {
        let State { pending, streams, .. } = &mut *self.lock();
        let pending = pending.get_mut(&request).filter(|pending| pending.kept == Some(from));
        let pending = pending.ok_or_else(|| format!("{to:?} of no such command (id {request})"))?;
        if to == Kept::Started && pending.streams.iter().any(|&it| streams.has_received(it)) {
            return Err(format!("a chunk before the start of its command (id {request})"));
        }
        pending.kept = Some(to);
        pending.sink.clone().ok_or_else(|| "a command without a handler".to_owned())
    }

    fn finish(&self, end: SessionEnd) {
        let mut state = self.lock();
        // Under the lock: no request is added after this. The first end counts.
        self.end.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert(end);
            is_first
        });
        // Fails all pending requests and streams.
        state.pending.clear();
        state.streams.clear();
        state.tunnels.close_all();
    }
}

async fn read(mut output: impl StreamExt<Item = io::Result<Output>> + Unpin, shared: Arc<Shared>) {
    let mut decoder = FrameDecoder::new();
    let end = loop {
        match output.next().await {
            Some(Ok(Output::Stdout(bytes))) => {
                decoder.extend(&bytes);
                if let Err(breach) = take_lines(&mut decoder, &shared) {
                    break SessionEnd::Breach(breach);
                }
            }
            Some(Ok(Output::Stderr(bytes))) => {
                let stderr = &mut shared.lock().stderr;
                stderr.extend_from_slice(&bytes);
                let surplus = stderr.len().saturating_sub(STDERR_TAIL);
                stderr.drain(..surplus);
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "the connection to the agent was cut");
                break SessionEnd::Eof;
            }
            // A killed agent may leave an incomplete line: that is not a breach.
            None => break SessionEnd::Eof,
        }
    };
    shared.finish(end);
}

fn take_lines(decoder: &mut FrameDecoder, shared: &Arc<Shared>) -> Result<(), String> {
    while let Some(line) = decoder.next_frame().map_err(|error| error.to_string())? {
        shared.take(line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
