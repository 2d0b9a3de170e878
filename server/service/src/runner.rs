//! What the service needs of a controller: sandboxes that start, run something and end. A trait, so
//! that queues, recovery and events are tested without containers.

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sandbox_api::files::{WriteData, WriteOptions};
use sandbox_api::service::{EventBody, OutputStream};
use sandbox_api::{
    CancelCause, DEFAULT_COLLECTED_BYTES, Envelope, ErrorKind, ExecDocument, Failure, Operation,
    ResultDocument, SandboxSpec, Status, Usage,
};
use sandbox_controller::files::{FileReader, FileWriter};
use sandbox_controller::{Controller, Error, ExecStream, RefusedHosts, Sandbox};
use tokio::sync::watch;

use crate::plan::Work;

/// Receives the events of what runs.
pub(crate) type Sink<'a> = &'a (dyn Fn(EventBody) + Send + Sync);

/// Starts sandboxes.
pub(crate) trait Runner: Send + Sync + 'static {
    /// Starts a sandbox.
    fn launch(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Machine>, Failed>>;

    /// Whether the engine answers.
    fn ping(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Whether the pool has begun to do its work; `None` without a pool.
    fn pool(&self) -> Option<Result<(), String>>;
}

/// A sandbox that is there.
pub(crate) trait Machine: Send + Sync + 'static {
    /// Runs something to its end.
    fn run<'a>(&'a self, run: Job, sink: Sink<'a>) -> BoxFuture<'a, Result<Ran, Failed>>;

    /// Moves its private io dir to where its files are kept.
    fn keep_files(&self, to: &Path) -> Result<(), Failed>;

    /// Performs a file operation.
    fn perform(&self, operation: Operation) -> BoxFuture<'_, Envelope>;

    /// Reads a file.
    fn reader(
        &self,
        path: Vec<u8>,
        offset: u64,
        limit: Option<u64>,
    ) -> BoxFuture<'_, Result<FileReader, Failed>>;

    /// Writes a file.
    fn writer(
        &self,
        path: Vec<u8>,
        options: WriteOptions,
    ) -> BoxFuture<'_, Result<FileWriter, Failed>>;

    /// Whether it accepts nothing any more.
    fn has_ended(&self) -> bool;

    /// Removes it.
    fn close(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// Something to run.
pub(crate) struct Job {
    /// The execution's id.
    pub id: String,
    /// What runs.
    pub work: Work,
    /// How long it waited in the queue, in milliseconds.
    pub queued_ms: u64,
    /// Becomes true to cancel it; once more to kill it.
    pub cancel: watch::Receiver<Cancel>,
}

/// How far an execution is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Cancel {
    /// Not.
    #[default]
    No,
    /// By its caller.
    Asked,
    /// By its caller or a shutdown, and at once.
    AtOnce,
}

/// How something ended that ran.
#[derive(Debug, Clone)]
pub(crate) struct Ran {
    /// The result document, with the execution's id and without a path of the host.
    pub document: String,
    /// Its status.
    pub status: Status,
    /// The exit code of a process that forwards it.
    pub exit_code: u8,
    /// The resources that it used.
    pub usage: Usage,
}

/// Nothing ran, or nothing was done, because our side failed.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    /// Why, without a path of the host.
    pub failure: Box<Failure>,
    /// Whether the same may work a little later: the engine does not answer.
    pub is_transient: bool,
}

impl Failed {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let failure = Failure::new(kind, message, None);
        Self { failure: Box::new(failure), is_transient: false }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let is_transient = match &error {
            Error::Connect(_) => true,
            Error::Engine { source, .. } => is_transient(source),
            _ => false,
        };
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
        let failure = if is_about_host_paths {
            // Callers are told no path of the host; whoever operates it is.
            tracing::error!(error = error.full_message(), hint = error.hint(), "a sandbox failed");
            let message = "the server cannot make a sandbox with what it has";
            Failure::new(error.kind(), message, None)
        } else {
            Failure::from(&error)
        };
        Self { failure: Box::new(failure), is_transient }
    }
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

impl Runner for Arc<Controller> {
    fn launch(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Machine>, Failed>> {
        async move {
            let sandbox = Controller::launch(self, spec).await?;
            Ok(Arc::new(sandbox) as Arc<dyn Machine>)
        }
        .boxed()
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), String>> {
        async move {
            match self.engine_facts().await {
                Ok(_) => Ok(()),
                Err(error) => Err(Failed::from(error).failure.message),
            }
        }
        .boxed()
    }

    fn pool(&self) -> Option<Result<(), String>> {
        let stats = self.pool_stats()?;
        let has_begun = stats.target == 0 || stats.filled > 0 || stats.claims > 0;
        Some(match (has_begun, stats.failed) {
            (true, _) => Ok(()),
            (false, 0) => Err("no sandbox is ready yet".to_owned()),
            (false, _) => Err("no sandbox could be started ahead".to_owned()),
        })
    }
}

impl Machine for Sandbox {
    fn run<'a>(&'a self, run: Job, sink: Sink<'a>) -> BoxFuture<'a, Result<Ran, Failed>> {
        async move {
            let Job { id, work, queued_ms, cancel } = run;
            match work {
                Work::Script(script) => {
                    run_script(self, script, &id, queued_ms, cancel, sink).await
                }
                Work::Command(command) => {
                    run_command(self, command, &id, queued_ms, cancel, sink).await
                }
            }
        }
        .boxed()
    }

    fn keep_files(&self, to: &Path) -> Result<(), Failed> {
        Ok(self.keep_io_dir(to)?)
    }

    fn perform(&self, operation: Operation) -> BoxFuture<'_, Envelope> {
        self.perform(operation).boxed()
    }

    fn reader(
        &self,
        path: Vec<u8>,
        offset: u64,
        limit: Option<u64>,
    ) -> BoxFuture<'_, Result<FileReader, Failed>> {
        async move { Ok(self.reader(path, offset, limit).await?) }.boxed()
    }

    fn writer(
        &self,
        path: Vec<u8>,
        options: WriteOptions,
    ) -> BoxFuture<'_, Result<FileWriter, Failed>> {
        async move { Ok(self.writer(path, options).await?) }.boxed()
    }

    fn has_ended(&self) -> bool {
        self.ended().is_some()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        async move { self.close().await.map_err(|error| error.full_message()) }.boxed()
    }
}

/// Waits until it is to be cancelled, further than `so_far`.
async fn cancelled(cancel: &mut watch::Receiver<Cancel>, so_far: Cancel) -> Cancel {
    let asked = cancel.wait_for(|asked| *asked > so_far).await.map(|asked| *asked);
    match asked {
        Ok(asked) => asked,
        // Nobody is left who could cancel it.
        Err(_) => std::future::pending().await,
    }
}

/// Cancels what runs when it is asked to, for as long as it is polled.
async fn cancel_when_asked(
    mut cancel: watch::Receiver<Cancel>,
    handle: sandbox_controller::CancelHandle,
) {
    let mut so_far = Cancel::No;
    while so_far < Cancel::AtOnce {
        let asked = cancelled(&mut cancel, so_far).await;
        handle.cancel(CancelCause::Caller);
        if asked == Cancel::AtOnce {
            handle.cancel(CancelCause::Caller);
        }
        so_far = asked;
    }
    std::future::pending().await
}

/// Reports the hosts that are refused, for as long as it is polled.
async fn report_refused(mut hosts: RefusedHosts, sink: Sink<'_>) {
    while let Some(host) = hosts.next().await {
        sink(EventBody::Refused { host });
    }
    std::future::pending().await
}

async fn run_script(
    sandbox: &Sandbox,
    script: sandbox_api::Script,
    id: &str,
    queued_ms: u64,
    cancel: watch::Receiver<Cancel>,
    sink: Sink<'_>,
) -> Result<Ran, Failed> {
    let mut run = sandbox.start(script).await?;
    let cancelling = cancel_when_asked(cancel, run.cancel_handle());
    let following = async {
        while let Some(entry) = run.next_log().await {
            sink(EventBody::log(&entry));
        }
        run.wait().await
    };
    let result = tokio::select! {
        result = following => result?,
        () = cancelling => unreachable_end()?,
    };
    for case in &result.tests {
        sink(EventBody::Test { case: case.clone() });
    }
    let mut document = ResultDocument::from(&result);
    document.id = Some(id.into());
    document.execution.io_dir = None;
    set_queued(&mut document.execution, queued_ms);
    let (status, exit_code, usage) = (document.status, document.exit_code, result.usage);
    Ok(Ran { document: encode(&document)?, status, exit_code, usage })
}

async fn run_command(
    sandbox: &Sandbox,
    command: sandbox_api::Command,
    id: &str,
    queued_ms: u64,
    cancel: watch::Receiver<Cancel>,
    sink: Sink<'_>,
) -> Result<Ran, Failed> {
    let mut execution = sandbox.start_exec(command).await?;
    let cancelling = cancel_when_asked(cancel, execution.cancel_handle());
    let refusing = report_refused(execution.refused_hosts(), sink);
    let following = async {
        let mut kept = [(Vec::new(), false), (Vec::new(), false)];
        while let Some((stream, piece)) = execution.next_output().await {
            let (stream, kept) = match stream {
                ExecStream::Stdout => (OutputStream::Stdout, &mut kept[0]),
                ExecStream::Stderr => (OutputStream::Stderr, &mut kept[1]),
            };
            let room = DEFAULT_COLLECTED_BYTES.saturating_sub(kept.0.len()).min(piece.len());
            kept.0.extend_from_slice(&piece[..room]);
            kept.1 |= room < piece.len();
            sink(EventBody::output(stream, &piece));
        }
        let mut result = execution.wait().await?;
        let [stdout, stderr] = kept;
        (result.stdout, result.stdout_truncated) = stdout;
        (result.stderr, result.stderr_truncated) = stderr;
        Ok::<_, Error>(result)
    };
    let result = tokio::select! {
        biased;
        () = refusing => unreachable_end()?,
        result = following => result?,
        () = cancelling => unreachable_end()?,
    };
    let mut document = ExecDocument::from(&result);
    document.id = Some(id.into());
    document.execution.io_dir = None;
    set_queued(&mut document.execution, queued_ms);
    let (status, exit_code, usage) = (document.status, result.outcome.exit_code(), result.usage);
    Ok(Ran { document: encode(&document)?, status, exit_code, usage })
}

fn set_queued(document: &mut sandbox_api::ExecutionDocument<'_>, queued_ms: u64) {
    if let Some(timing) = &mut document.timing {
        timing.queued_ms = Some(queued_ms);
    }
}

fn encode(document: &impl serde::Serialize) -> Result<String, Failed> {
    serde_json::to_string(document)
        .map_err(|error| Failed::new(ErrorKind::Internal, format!("the result: {error}")))
}

/// What only waits has ended.
fn unreachable_end<T>() -> Result<T, Failed> {
    Err(Failed::new(ErrorKind::Internal, "an execution was followed to no end"))
}

/// The result of a write, as it is answered.
pub(crate) async fn finish_write(writer: FileWriter) -> Result<WriteData, Failed> {
    Ok(writer.finish().await?)
}
