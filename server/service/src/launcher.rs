//! What the service needs of a controller: sandboxes that start, run something and end. A trait, so
//! that queues, recovery and events are tested without containers.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Stream};
use futures_util::{FutureExt as _, TryFutureExt as _};
use sandbox_api::files::WriteReply;
use sandbox_api::operation::{OperationRequest, Read, Write};
use sandbox_api::service::Subject;
use sandbox_api::{
    EngineKind, Envelope, EventRecord, ExecutionEvent, ExecutionResult, Failure, PortList,
    ProcessCommand, ProcessView, ReadFrom, ReadMode, SandboxSpec, SignalRequest, TerminalSize,
    ToolCall, WatchRecord, WatchRequest, Workload,
};
use sandbox_controller::files::{FileWatch, FileWriter};
use sandbox_controller::host_tools::ToolGrant;
use sandbox_controller::{
    CancelHandle, CheckReply, ContainerUse, Controller, Error, KeptOutput, PoolStats,
    PreparedSandbox, Process, Sandbox, StdinError, Until,
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::ServiceError;

/// A call that our side may fail.
pub(crate) type Called<'a, T> = BoxFuture<'a, Result<T, ServiceError>>;

/// The events of a process.
pub(crate) type ProcessEvents = BoxStream<'static, Arc<EventRecord>>;

/// Receives the events of what runs.
pub(crate) type Sink<'a> = &'a (dyn Fn(ExecutionEvent) + Send + Sync);

/// Starts sandboxes.
pub(crate) trait Launcher: Send + Sync + 'static {
    /// Starts a sandbox.
    fn launch(&self, sandbox: PreparedSandbox) -> Called<'_, Arc<dyn Guest>>;

    /// Has sandboxes like this one started ahead, if there is a pool.
    fn prewarm(&self, spec: SandboxSpec) -> Called<'_, ()>;

    /// The engine that sandboxes run on.
    fn engine(&self) -> EngineKind;

    /// Whether the engine answers.
    fn ping(&self) -> BoxFuture<'_, Result<(), String>>;

    /// What the pool has done and has, if there is one.
    fn pool(&self) -> Option<PoolStats>;

    /// Writes to the audit what happened to a port of a kept sandbox.
    fn audit(&self, sandbox: &str, operation: &'static str, port: u16);

    /// Writes to the audit a call of a tool of the host that a subject made itself.
    fn audit_call(&self, subject: &Subject, made: &ToolCall);

    /// Whether a script compiles.
    fn check(&self, script: Vec<u8>) -> Called<'_, CheckReply>;
}

/// A sandbox that is there.
pub(crate) trait Guest: Send + Sync + 'static {
    /// Runs something to its end. A script may call these tools.
    fn run<'a>(
        &'a self,
        workload: Workload,
        tools: Option<ToolGrant>,
        cancel: CancelHandle,
        sink: Sink<'a>,
    ) -> Called<'a, ExecutionResult>;

    /// Moves its private io dir to where its files are kept.
    fn keep_files(&self, to: &Path) -> Result<(), ServiceError>;

    /// Performs a file operation.
    fn perform(&self, request: OperationRequest) -> BoxFuture<'_, Envelope>;

    /// Reads a file.
    fn reader(&self, read: Read) -> Called<'_, ContentReader>;

    /// Writes a file.
    fn writer(&self, write: Write) -> Called<'_, Box<dyn ContentWriter>>;

    /// Connects to a port of its loopback.
    fn dial(&self, port: u16) -> Called<'_, Box<dyn Connection>>;

    /// What listens in it.
    fn listening_ports(&self) -> Called<'_, PortList>;

    /// Watches a directory. It ends with what this gives.
    fn watch_files(&self, request: WatchRequest) -> Called<'_, Box<dyn GuestWatch>>;

    /// Starts a process.
    fn start_process(&self, command: ProcessCommand) -> Called<'_, Arc<dyn GuestProcess>>;

    /// Its processes, the latest first: those that have not ended, and those that ended lately.
    fn processes(&self) -> Vec<Arc<dyn GuestProcess>>;

    /// The one of this id.
    fn process(&self, id: u32) -> Option<Arc<dyn GuestProcess>>;

    /// What its container uses now, if that can be measured. No use.
    fn current_use(&self) -> BoxFuture<'_, Option<ContainerUse>> {
        async { None }.boxed()
    }

    /// Freezes it; nothing happens to one that is frozen.
    fn pause(&self) -> Called<'_, ()>;

    /// Lets it go on; nothing happens to one that is not frozen.
    fn resume(&self) -> Called<'_, ()>;

    /// Whether it accepts nothing any more.
    fn has_ended(&self) -> bool;

    /// Waits until it accepts nothing any more.
    fn until_ended(&self) -> BoxFuture<'static, ()>;

    /// Removes it.
    fn close(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// A connection to a port of a sandbox.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Connection for C {}

/// A process of a sandbox.
pub(crate) trait GuestProcess: Send + Sync + 'static {
    /// Its id.
    fn id(&self) -> u32;

    /// What is known of it.
    fn view(&self) -> ProcessView;

    /// The most bytes that are kept of its output.
    fn scrollback(&self) -> u64;

    /// What is kept of its output, once it has ended.
    fn kept_output(&self) -> Option<KeptOutput>;

    /// Drops that but for its end, and returns how many bytes it was.
    fn drop_output(&self) -> u64;

    /// Its events.
    fn attach(&self, from: ReadFrom, mode: ReadMode) -> Result<ProcessEvents, ServiceError>;

    /// Writes to its stdin.
    fn write_stdin(&self, bytes: Bytes) -> Called<'_, ()>;

    /// Closes that.
    fn close_stdin(&self) -> Called<'_, ()>;

    /// Sets the size of its terminal, if it has one.
    fn resize(&self, size: TerminalSize) -> Called<'_, bool>;

    /// Sends a signal, if there is a process to send it to.
    fn signal(&self, request: SignalRequest) -> Called<'_, bool>;

    /// Begins to end it; for the second time, at once.
    fn stop(&self) -> BoxFuture<'_, ()>;

    /// Waits for its exit or its end, which is that of the sandbox at the latest.
    fn until(&self, what: Until) -> BoxFuture<'static, ()>;
}

/// What changes in a watched directory.
pub(crate) trait GuestWatch:
    Stream<Item = Result<WatchRecord, Error>> + Send + Unpin
{
    /// Completes when all that was changed before is there to be read.
    fn flushed(&self) -> BoxFuture<'static, ()>;
}

/// The content of a file.
pub(crate) type ContentReader = Box<dyn AsyncRead + Send + Unpin>;

/// The content of a file that is being written.
pub(crate) trait ContentWriter: AsyncWrite + Send + Unpin {
    /// Ends it, and waits until the file is written.
    fn finish(self: Box<Self>) -> Called<'static, WriteReply>;
}

/// A sandbox could not be started.
fn not_started(error: Error) -> ServiceError {
    let is_transient = match &error {
        Error::Connect(_) => true,
        Error::Engine { source, .. } => is_transient(source),
        _ => false,
    };
    ServiceError::not_started(failure_of(&error), is_transient).on_host(Failure::from(&error))
}

/// A sandbox could not be used.
pub(crate) fn failed(error: Error) -> ServiceError {
    match error {
        Error::TooMany { .. } => return ServiceError::too_many_in_sandbox(failure_of(&error)),
        Error::PortClosed { port } => return ServiceError::port_closed(port),
        Error::PortNotListed { port } => return ServiceError::port_not_open(port),
        _ => {}
    }
    ServiceError::sandbox(failure_of(&error)).on_host(Failure::from(&error))
}

/// Why our side failed, without a path of the host.
fn failure_of(error: &Error) -> Failure {
    let is_about_host_paths = matches!(
        error,
        Error::IoDir { .. }
            | Error::MountRefused { .. }
            | Error::MountLost { .. }
            | Error::IoDirElsewhere { .. }
            | Error::Scratch { .. }
            | Error::State { .. }
            | Error::Staging { .. }
            | Error::Audit { .. }
            | Error::Agent(_)
            | Error::Connect(_)
            | Error::PrivateIoDir { .. }
    );
    if !is_about_host_paths {
        return Failure::from(error);
    }
    // Paths of the host are for the operator, not for callers.
    tracing::error!(error = error.full_message(), hint = error.hint(), "a sandbox failed");
    Failure::new(error.kind(), "the server cannot make a sandbox with what it has", None)
}

/// Whether an engine that fails like this may work again by itself.
fn is_transient(error: &sandbox_controller::EngineError) -> bool {
    use sandbox_controller::EngineError as Engine;
    !matches!(
        error,
        Engine::UnusableImage { .. }
            | Engine::ProgramImage { .. }
            | Engine::UnusableRoot { .. }
            | Engine::Archive { .. }
            | Engine::Refused(_)
    )
}

impl Launcher for Arc<Controller> {
    fn launch(&self, sandbox: PreparedSandbox) -> Called<'_, Arc<dyn Guest>> {
        let launched = Controller::launch(self, sandbox).map_err(not_started);
        launched.map_ok(|sandbox| Arc::new(sandbox) as Arc<dyn Guest>).boxed()
    }

    fn prewarm(&self, spec: SandboxSpec) -> Called<'_, ()> {
        async move { Controller::prewarm(self, spec).await.map_err(not_started) }.boxed()
    }

    fn engine(&self) -> EngineKind {
        Controller::engine(self).kind
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), String>> {
        self.engine_facts().map_ok(drop).map_err(|error| failure_of(&error).message).boxed()
    }

    fn pool(&self) -> Option<PoolStats> {
        self.pool_stats()
    }

    fn audit(&self, sandbox: &str, operation: &'static str, port: u16) {
        self.audit_service(sandbox, operation, Some(port));
    }

    fn audit_call(&self, subject: &Subject, made: &ToolCall) {
        self.audit_tool_call(subject.as_str(), made);
    }

    fn check(&self, script: Vec<u8>) -> Called<'_, CheckReply> {
        async move { self.check_script(&script).await.map_err(failed) }.boxed()
    }
}

impl Guest for Sandbox {
    fn run<'a>(
        &'a self,
        workload: Workload,
        tools: Option<ToolGrant>,
        cancel: CancelHandle,
        sink: Sink<'a>,
    ) -> Called<'a, ExecutionResult> {
        async move {
            let started = self.start_with_tools(workload, tools, cancel);
            let mut execution = started.await.map_err(failed)?;
            while let Some(event) = execution.next().await {
                sink(event);
            }
            execution.wait().await.map_err(failed)
        }
        .boxed()
    }

    fn keep_files(&self, to: &Path) -> Result<(), ServiceError> {
        self.keep_io_dir(to).map_err(failed)
    }

    fn perform(&self, request: OperationRequest) -> BoxFuture<'_, Envelope> {
        self.perform(request).boxed()
    }

    fn reader(&self, read: Read) -> Called<'_, ContentReader> {
        let reader = self.reader(read).map_err(failed);
        reader.map_ok(|reader| Box::new(reader) as ContentReader).boxed()
    }

    fn writer(&self, write: Write) -> Called<'_, Box<dyn ContentWriter>> {
        let writer = self.writer(write).map_err(failed);
        writer.map_ok(|writer| Box::new(writer) as Box<dyn ContentWriter>).boxed()
    }

    fn dial(&self, port: u16) -> Called<'_, Box<dyn Connection>> {
        let dialled = Self::dial(self, port).map_err(failed);
        dialled.map_ok(|connection| Box::new(connection) as Box<dyn Connection>).boxed()
    }

    fn listening_ports(&self) -> Called<'_, PortList> {
        async move { Self::listening_ports(self).await.map_err(failed) }.boxed()
    }

    fn watch_files(&self, request: WatchRequest) -> Called<'_, Box<dyn GuestWatch>> {
        let watch = Self::watch_files(self, request).map_err(failed);
        watch.map_ok(|watch| Box::new(watch) as Box<dyn GuestWatch>).boxed()
    }

    fn start_process(&self, command: ProcessCommand) -> Called<'_, Arc<dyn GuestProcess>> {
        let started = Self::start_process(self, command).map_err(failed);
        started.map_ok(|process| Arc::new(process) as Arc<dyn GuestProcess>).boxed()
    }

    fn processes(&self) -> Vec<Arc<dyn GuestProcess>> {
        let all = Self::processes(self).into_iter();
        all.map(|process| Arc::new(process) as Arc<dyn GuestProcess>).collect()
    }

    fn process(&self, id: u32) -> Option<Arc<dyn GuestProcess>> {
        Self::process(self, id).map(|process| Arc::new(process) as Arc<dyn GuestProcess>)
    }

    fn current_use(&self) -> BoxFuture<'_, Option<ContainerUse>> {
        Self::current_use(self).boxed()
    }

    fn pause(&self) -> Called<'_, ()> {
        async move { Self::pause(self).await.map_err(failed) }.boxed()
    }

    fn resume(&self) -> Called<'_, ()> {
        async move { Self::resume(self).await.map_err(failed) }.boxed()
    }

    fn has_ended(&self) -> bool {
        self.ended().is_some()
    }

    fn until_ended(&self) -> BoxFuture<'static, ()> {
        self.until_ended().boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        async move { self.close().await.map_err(|error| error.full_message()) }.boxed()
    }
}

impl GuestProcess for Process {
    fn id(&self) -> u32 {
        Self::id(self)
    }

    fn view(&self) -> ProcessView {
        Self::view(self)
    }

    fn scrollback(&self) -> u64 {
        Self::scrollback(self)
    }

    fn kept_output(&self) -> Option<KeptOutput> {
        Self::kept_output(self)
    }

    fn drop_output(&self) -> u64 {
        Self::drop_output(self)
    }

    fn attach(&self, from: ReadFrom, mode: ReadMode) -> Result<ProcessEvents, ServiceError> {
        Self::attach(self, from, mode).map_err(failed)
    }

    fn write_stdin(&self, bytes: Bytes) -> Called<'_, ()> {
        async move { Self::write_stdin(self, bytes).await.map_err(not_written) }.boxed()
    }

    fn close_stdin(&self) -> Called<'_, ()> {
        async move { Self::close_stdin(self).await.map_err(not_written) }.boxed()
    }

    fn resize(&self, size: TerminalSize) -> Called<'_, bool> {
        async move { Self::resize(self, size).await.map_err(failed) }.boxed()
    }

    fn signal(&self, request: SignalRequest) -> Called<'_, bool> {
        async move { Self::signal(self, request.signal, request.to).await.map_err(failed) }.boxed()
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Self::stop(self).boxed()
    }

    fn until(&self, what: Until) -> BoxFuture<'static, ()> {
        Self::until(self, what).boxed()
    }
}

impl GuestWatch for FileWatch {
    fn flushed(&self) -> BoxFuture<'static, ()> {
        Self::flushed(self).boxed()
    }
}

/// The stdin of a process takes nothing.
fn not_written(error: StdinError) -> ServiceError {
    match error {
        StdinError::NoStdin => ServiceError::no_stdin(),
        StdinError::Ended => ServiceError::process_ended(),
        StdinError::Full => ServiceError::stdin_full(),
    }
}

impl ContentWriter for FileWriter {
    fn finish(self: Box<Self>) -> Called<'static, WriteReply> {
        async move { (*self).finish().await.map_err(failed) }.boxed()
    }
}
