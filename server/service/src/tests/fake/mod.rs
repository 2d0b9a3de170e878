//! A launcher of sandboxes without containers, for the tests of this crate and of its front ends, and for what
//! measures a service alone: the first word of a script or a shell line says what it does.
//!
//! `wait` waits until a test lets it [go on](FakeLauncher::go_on), `sleep MS` takes so many milliseconds,
//! `log WORD...` logs each word, `log-and-wait` does both, `fail`, `panic` and `until-closed` fail; anything else
//! returns at once. For processes see `process`.

mod process;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::Stream;
use sandbox_api::files::{WriteMode, WriteReply};
use sandbox_api::operation::{Operation, OperationRequest, Read, Write};
use sandbox_api::service::{ExecutionKind, Subject};
use sandbox_api::{
    Captured, Command, CommandLine, Confinement, EngineKind, Envelope, ErrorKind, ExecutionEvent,
    ExecutionResult, Failure, FileChange, FileEvent, FilesTouched, Limits, ListeningPort, LogEntry,
    Outcome, OutputStream, PortList, ProcessCommand, ResultBody, SandboxSpec, StartKind, Timing,
    ToolCall, UnixSockets, Usage, WatchRecord, WatchRequest, Workload,
};
use sandbox_controller::host_tools::ToolGrant;
use sandbox_controller::{
    CancelHandle, CheckReply, ContainerUse, Error, PoolStats, PreparedSandbox,
};
use sandbox_protocol::WireString;
use sandbox_protocol::message::ScriptError;
use sandbox_store::Store;
use serde_json::value::RawValue;
use tokio::io::{AsyncWrite, DuplexStream, duplex};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::config::ServiceConfig;
use crate::error::ServiceError;
use crate::launcher::{
    Called, Connection, ContentReader, ContentWriter, Guest, GuestProcess, GuestWatch, Launcher,
    Sink,
};
use crate::service::Service;
use process::FakeProcess;

/// What the tests see and control.
#[derive(Debug)]
pub struct FakeLauncher {
    /// Launches that succeeded.
    pub launches: AtomicUsize,
    /// What is to be started ahead.
    pub prewarmed: Mutex<Vec<SandboxSpec>>,
    /// Runs that have begun.
    pub runs: AtomicUsize,
    /// Sandboxes that were closed.
    pub closed: Arc<AtomicUsize>,
    /// Sandboxes without an owner.
    pub dropped: AtomicUsize,
    /// How many launches fail because the engine does not answer.
    pub failing: AtomicUsize,
    /// Launches that have begun.
    pub begun: AtomicUsize,
    /// Whether each launch needs a permit.
    pub holds_launches: AtomicBool,
    /// Those permits.
    pub may_launch: Semaphore,
    /// A permit lets one `wait` end.
    pub go_on: Arc<Semaphore>,
    /// Files cannot be kept while it is set.
    pub loses_files: AtomicBool,
    /// The specs that sandboxes were started from.
    pub launched: Mutex<Vec<SandboxSpec>>,
    /// All sandboxes end when it is set.
    pub all_ended: Arc<AtomicBool>,
    /// What each execution leaves, by its path.
    pub files: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
    /// The content of every file of a kept sandbox; `None` without files.
    pub content: Mutex<Option<&'static [u8]>>,
    /// How often a sandbox was paused.
    pub pauses: AtomicUsize,
    /// How often one was resumed.
    pub resumes: AtomicUsize,
    /// Sandboxes cannot be paused while it is set.
    pub refuses_pauses: AtomicBool,
    /// What the audit has of ports.
    pub audited: Mutex<Vec<(&'static str, u16)>>,
    /// What listens in every sandbox.
    listeners: Mutex<BTreeMap<u16, mpsc::UnboundedSender<DuplexStream>>>,
}

impl Default for FakeLauncher {
    fn default() -> Self {
        Self {
            launches: AtomicUsize::new(0),
            prewarmed: Mutex::default(),
            runs: AtomicUsize::new(0),
            closed: Arc::default(),
            dropped: AtomicUsize::new(0),
            failing: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            holds_launches: AtomicBool::new(false),
            may_launch: Semaphore::new(0),
            go_on: Arc::new(Semaphore::new(0)),
            loses_files: AtomicBool::new(false),
            launched: Mutex::default(),
            all_ended: Arc::default(),
            files: Mutex::new(vec![(b"out.txt".to_vec(), b"made".to_vec())]),
            content: Mutex::default(),
            pauses: AtomicUsize::new(0),
            resumes: AtomicUsize::new(0),
            refuses_pauses: AtomicBool::new(false),
            audited: Mutex::default(),
            listeners: Mutex::default(),
        }
    }
}

/// What a connection holds in each direction.
const CONNECTION_BYTES: usize = 64 << 10;

impl FakeLauncher {
    /// Listens on a port of every sandbox: each connection to it comes from here, until that is dropped.
    pub fn listen(&self, port: u16) -> mpsc::UnboundedReceiver<DuplexStream> {
        let (connected, connections) = mpsc::unbounded_channel();
        self.listeners.lock().unwrap().insert(port, connected);
        connections
    }
}

struct FakeGuest {
    launcher: Arc<FakeLauncher>,
    generation: u64,
    is_closed: watch::Sender<bool>,
    is_paused: AtomicBool,
    /// The oldest first.
    processes: Mutex<Vec<FakeProcess>>,
}

impl FakeGuest {
    /// A paused one does nothing that is asked of it.
    fn check(&self) -> Result<(), ServiceError> {
        match self.is_paused.load(Ordering::SeqCst) {
            true => Err(failed(ErrorKind::Busy, "the sandbox is paused")),
            false => Ok(()),
        }
    }

    /// What is in it fails when it is closed.
    async fn closed(&self) -> ServiceError {
        _ = self.is_closed.subscribe().wait_for(|is_closed| *is_closed).await;
        failed(ErrorKind::AgentLost, "the agent is gone")
    }
}

/// Counts what is written.
struct FakeWriter {
    path: WireString,
    bytes: u64,
}

impl AsyncWrite for FakeWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.bytes += bytes.len() as u64;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl ContentWriter for FakeWriter {
    fn finish(self: Box<Self>) -> Called<'static, WriteReply> {
        let Self { path, bytes } = *self;
        let written = WriteReply { path, bytes_written: bytes, created: true };
        async { Ok(written) }.boxed()
    }
}

/// One that reports a write, and then nothing more.
struct FakeWatch(u64);

impl Stream for FakeWatch {
    type Item = Result<WatchRecord, Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0 += 1;
        if self.0 > 1 {
            return Poll::Pending;
        }
        let (name, change) = ("out.txt".into(), FileChange::Write);
        Poll::Ready(Some(Ok(WatchRecord::Event(FileEvent { seq: 1, name, change, kind: None }))))
    }
}

impl GuestWatch for FakeWatch {
    fn flushed(&self) -> BoxFuture<'static, ()> {
        async {}.boxed()
    }
}

impl FakeGuest {
    fn content(&self) -> Result<&'static [u8], ServiceError> {
        let content = *self.launcher.content.lock().unwrap();
        content.ok_or_else(|| failed(ErrorKind::NotFound, "no file"))
    }
}

impl Drop for FakeGuest {
    fn drop(&mut self) {
        self.launcher.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// The result of what ended like this.
fn result(kind: ExecutionKind, outcome: Outcome) -> ExecutionResult {
    ExecutionResult {
        id: "in the sandbox".to_owned(),
        outcome,
        files_touched: FilesTouched::default(),
        engine: EngineKind::Embedded,
        engine_notice: None,
        io_dir: Some("/srv/io".into()),
        disk: None,
        network: None,
        changes: None,
        limits: Limits::default(),
        usage: Usage {
            wall_ms: 1,
            cpu_ms: Some(7),
            peak_memory_bytes: None,
            written_bytes: Some(3),
        },
        notes: Vec::new(),
        timing: Some(Timing::new(Some((StartKind::Cold, Duration::from_millis(8))), 1)),
        confinement: Confinement {
            no_new_privileges: true,
            undumpable: true,
            landlock_abi: None,
            seccomp: true,
            unix_sockets: UnixSockets::None,
            missing: Vec::new(),
        },
        body: match kind {
            ExecutionKind::Script => ResultBody::Script {
                logs: Vec::new(),
                logs_truncated: false,
                tests: Vec::new(),
                tool_calls: Vec::new(),
                tool_calls_truncated: false,
                answered: true,
            },
            ExecutionKind::Command => ResultBody::Command {
                exit_code: Some(0),
                signal: None,
                stdout: Captured::default(),
                stderr: Captured::default(),
            },
        },
    }
}

/// Starts a service on sandboxes of this launcher.
///
/// # Errors
///
/// As of [`Service::start`].
pub async fn start(
    config: ServiceConfig,
    launcher: Arc<FakeLauncher>,
    store: Store,
) -> Result<Service, ServiceError> {
    Service::start_with(config, Arc::new(Shared(launcher)), store).await
}

fn failed(kind: ErrorKind, message: &str) -> ServiceError {
    ServiceError::sandbox(Failure::new(kind, message, None))
}

/// A launcher is shared with its sandboxes.
struct Shared(Arc<FakeLauncher>);

impl Launcher for Shared {
    fn launch(&self, sandbox: PreparedSandbox) -> Called<'_, Arc<dyn Guest>> {
        let spec = sandbox.spec().clone();
        async {
            self.0.begun.fetch_add(1, Ordering::SeqCst);
            if self.0.holds_launches.load(Ordering::SeqCst) {
                self.0.may_launch.acquire().await.unwrap().forget();
            }
            let failing = &self.0.failing;
            let fails = |left: usize| left.checked_sub(1);
            if failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
                let failure = Failure::new(ErrorKind::Engine, "cannot connect to the engine", None);
                return Err(ServiceError::not_started(failure, true));
            }
            self.0.launches.fetch_add(1, Ordering::SeqCst);
            if let Some(path) = &spec.kept_at {
                std::fs::create_dir_all(path).unwrap();
            }
            let of = spec.id.as_deref().and_then(sandbox_api::generation_of);
            let generation = of.map_or(1, |(_, generation)| generation);
            self.0.launched.lock().unwrap().push(spec);
            self.0.all_ended.store(false, Ordering::SeqCst);
            let guest = FakeGuest {
                launcher: self.0.clone(),
                generation,
                is_closed: watch::Sender::new(false),
                is_paused: AtomicBool::new(false),
                processes: Mutex::default(),
            };
            Ok(Arc::new(guest) as Arc<dyn Guest>)
        }
        .boxed()
    }

    fn prewarm(&self, spec: SandboxSpec) -> Called<'_, ()> {
        self.0.prewarmed.lock().unwrap().push(spec);
        async { Ok(()) }.boxed()
    }

    fn audit(&self, _: &str, operation: &'static str, port: u16) {
        self.0.audited.lock().unwrap().push((operation, port));
    }

    fn audit_call(&self, _: &Subject, _: &ToolCall) {}

    fn engine(&self) -> EngineKind {
        EngineKind::Embedded
    }

    /// Every word `wrong` does not compile.
    fn check(&self, script: Vec<u8>) -> Called<'_, CheckReply> {
        let text = String::from_utf8_lossy(&script).into_owned();
        let line = text.lines().position(|line| line.contains("wrong")).map(|at| at as u32 + 1);
        let error = line.map(|line| ScriptError {
            kind: ErrorKind::Syntax,
            message: format!("script:{line}: it is wrong"),
            line: Some(line),
            traceback: None,
            value: None,
        });
        async { Ok(CheckReply { error, warnings: Vec::new() }) }.boxed()
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), String>> {
        async {
            match self.0.failing.load(Ordering::SeqCst) {
                0 => Ok(()),
                _ => Err("cannot connect to the engine".to_owned()),
            }
        }
        .boxed()
    }

    fn pool(&self) -> Option<PoolStats> {
        let filled = self.0.launches.load(Ordering::SeqCst) as u64;
        Some(PoolStats { target: 1, filled, ..PoolStats::default() })
    }
}

impl Guest for FakeGuest {
    fn run<'a>(
        &'a self,
        workload: Workload,
        _: Option<ToolGrant>,
        cancel: CancelHandle,
        sink: Sink<'a>,
    ) -> Called<'a, ExecutionResult> {
        async move {
            self.check()?;
            self.launcher.runs.fetch_add(1, Ordering::SeqCst);
            let kind = workload.kind();
            let source = match workload {
                Workload::Script(script) => script.source,
                Workload::Command(Command { what: CommandLine::Shell(line), .. }) => line,
                Workload::Command(other) => panic!("it is no line: {other:?}"),
            };
            let source = String::from_utf8(source).unwrap();
            let mut outcome = Outcome::Ok { result: RawValue::NULL.to_owned() };
            let mut words = source.split(' ');
            let verb = words.next().unwrap();
            sink(ExecutionEvent::Started);
            if matches!(verb, "log" | "log-and-wait") {
                for word in words.by_ref() {
                    sink(match kind {
                        ExecutionKind::Script => ExecutionEvent::Log(LogEntry::from_line(word)),
                        ExecutionKind::Command => {
                            let data = word.to_owned().into();
                            ExecutionEvent::Output { stream: OutputStream::Stdout, data }
                        }
                    });
                }
            }
            match verb {
                "wait" | "log-and-wait" => {
                    tokio::select! {
                        // A sandbox that is removed cancels first what runs in it.
                        biased;
                        permit = self.launcher.go_on.acquire() => permit.unwrap().forget(),
                        () = cancel.cancelled() => {
                            outcome = Outcome::Cancelled { cause: cancel.cause().unwrap() };
                        }
                        error = self.closed() => return Err(error),
                    }
                }
                "sleep" => {
                    let millis = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                }
                "until-closed" => return Err(self.closed().await),
                "panic" => panic!("as the script says"),
                "fail" => return Err(failed(ErrorKind::AgentLost, "the agent is gone")),
                _ => {}
            }
            Ok(result(kind, outcome))
        }
        .boxed()
    }

    fn keep_files(&self, to: &Path) -> Result<(), ServiceError> {
        if self.launcher.loses_files.load(Ordering::SeqCst) {
            return Err(failed(ErrorKind::Internal, "another file system"));
        }
        for (path, content) in &*self.launcher.files.lock().unwrap() {
            let file = to.join(OsStr::from_bytes(path));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, content).unwrap();
        }
        Ok(())
    }

    fn perform(&self, request: OperationRequest) -> BoxFuture<'_, Envelope> {
        async move {
            if let Err(error) = self.check() {
                return Envelope::failed(Duration::ZERO, error.failure());
            }
            if let Operation::Exists(_) = request.operation {
                return Envelope::failed(Duration::ZERO, self.closed().await.failure());
            }
            let is_kernels = request.operation.paths().0.as_bytes().starts_with(b"/proc/");
            let kind = if is_kernels { ErrorKind::SpecialFile } else { ErrorKind::NotFound };
            Envelope::failed(Duration::ZERO, Failure::new(kind, request.operation.name(), None))
        }
        .boxed()
    }

    fn reader(&self, _: Read) -> Called<'_, ContentReader> {
        async { Ok(Box::new(self.content()?) as ContentReader) }.boxed()
    }

    fn writer(&self, write: Write) -> Called<'_, Box<dyn ContentWriter>> {
        async move {
            self.content()?;
            if write.mode == WriteMode::CreateNew && write.path == "taken" {
                return Err(failed(ErrorKind::AlreadyExists, "taken"));
            }
            Ok(Box::new(FakeWriter { path: write.path, bytes: 0 }) as Box<dyn ContentWriter>)
        }
        .boxed()
    }

    fn dial(&self, port: u16) -> Called<'_, Box<dyn Connection>> {
        async move {
            self.check()?;
            let (ours, theirs) = duplex(CONNECTION_BYTES);
            let listeners = self.launcher.listeners.lock().unwrap();
            let connected = listeners.get(&port).map(|listener| listener.send(theirs));
            match connected {
                Some(Ok(())) => Ok(Box::new(ours) as Box<dyn Connection>),
                Some(Err(_)) | None => Err(ServiceError::port_closed(port)),
            }
        }
        .boxed()
    }

    fn listening_ports(&self) -> Called<'_, PortList> {
        async move {
            self.check()?;
            let listeners = self.launcher.listeners.lock().unwrap();
            let open = listeners.iter().filter(|(_, listener)| !listener.is_closed());
            let address = std::net::Ipv4Addr::LOCALHOST.into();
            let ports = open.map(|(&port, _)| ListeningPort { port, address }).collect();
            Ok(PortList { ports })
        }
        .boxed()
    }

    fn watch_files(&self, request: WatchRequest) -> Called<'_, Box<dyn GuestWatch>> {
        async move {
            self.check()?;
            match request.path == "missing" {
                true => Err(failed(ErrorKind::NotFound, "no such directory")),
                false => Ok(Box::new(FakeWatch(0)) as Box<dyn GuestWatch>),
            }
        }
        .boxed()
    }

    fn start_process(&self, command: ProcessCommand) -> Called<'_, Arc<dyn GuestProcess>> {
        async move {
            self.check()?;
            let mut processes = self.processes.lock().unwrap();
            let id = u32::try_from(processes.len() + 1).unwrap();
            let process = FakeProcess::start(id, self.generation, command);
            processes.push(process.clone());
            Ok(Arc::new(process) as Arc<dyn GuestProcess>)
        }
        .boxed()
    }

    fn processes(&self) -> Vec<Arc<dyn GuestProcess>> {
        let processes = self.processes.lock().unwrap();
        let handle = |process: &FakeProcess| Arc::new(process.clone()) as Arc<dyn GuestProcess>;
        processes.iter().rev().map(handle).collect()
    }

    fn process(&self, id: u32) -> Option<Arc<dyn GuestProcess>> {
        self.processes().into_iter().find(|process| process.id() == id)
    }

    fn current_use(&self) -> BoxFuture<'_, Option<ContainerUse>> {
        let used =
            ContainerUse { cpu_used_ratio: 0.25, memory_bytes: 1 << 20, cache_bytes: 1 << 10 };
        async move { Some(used) }.boxed()
    }

    fn pause(&self) -> Called<'_, ()> {
        async {
            if self.launcher.refuses_pauses.load(Ordering::SeqCst) {
                return Err(failed(ErrorKind::Usage, "there is no freezer"));
            }
            self.launcher.pauses.fetch_add(1, Ordering::SeqCst);
            self.is_paused.store(true, Ordering::SeqCst);
            Ok(())
        }
        .boxed()
    }

    fn resume(&self) -> Called<'_, ()> {
        async {
            self.launcher.resumes.fetch_add(1, Ordering::SeqCst);
            self.is_paused.store(false, Ordering::SeqCst);
            Ok(())
        }
        .boxed()
    }

    fn has_ended(&self) -> bool {
        self.launcher.all_ended.load(Ordering::SeqCst)
    }

    fn until_ended(&self) -> BoxFuture<'static, ()> {
        let mut is_closed = self.is_closed.subscribe();
        async move { _ = is_closed.wait_for(|is_closed| *is_closed).await }.boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        async {
            self.launcher.closed.fetch_add(1, Ordering::SeqCst);
            self.is_closed.send_replace(true);
            self.processes.lock().unwrap().iter().for_each(FakeProcess::kill);
            Ok(())
        }
        .boxed()
    }
}
