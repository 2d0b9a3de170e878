//! Executions in a sandbox: scripts and commands, what happens while they run, and their results.

mod command;
mod driver;
mod judge;
mod process;
pub(crate) mod script;
mod supervisor;

use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{
    CancelCause, ExecutionEvent, ExecutionResult, OutputCapture, ResultBody, TerminalSize, Workload,
};
use sandbox_protocol::message::Resize;
use tokio::io::{AsyncWrite, DuplexStream};
use tokio::sync::watch;

use self::command::CommandOutput;
use self::driver::{Driven, Driver, RefusedHosts};
use self::script::ScriptEvents;
pub use self::supervisor::CancelHandle;
use crate::audit::{self, Event};
use crate::error::Error;
use crate::host_tools::ToolGrant;
use crate::sandbox::{Inner, Sandbox};

/// How long the agent may take to answer what it answers at once.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);

impl Sandbox {
    /// Runs a script or a command to its end: [`start`](Self::start) and [`Execution::wait`].
    ///
    /// # Errors
    ///
    /// The errors of both. How it ended is data.
    pub async fn run(&self, workload: impl Into<Workload>) -> Result<ExecutionResult, Error> {
        self.start(workload, CancelHandle::new()).await?.wait().await
    }

    /// Starts a script or a command, which the handle cancels from now on. Scripts are sequential:
    /// this waits for the previous one. Several commands can run at once, alongside a script and
    /// file operations; at most 16 of all these are in progress at a time, and further ones wait.
    ///
    /// # Errors
    ///
    /// [`Error`] if it is invalid, if the sandbox has ended or does not support commands, or if it
    /// was cancelled before it began.
    pub async fn start(
        &self,
        workload: impl Into<Workload>,
        cancel: CancelHandle,
    ) -> Result<Execution, Error> {
        self.start_with_tools(workload, None, cancel).await
    }

    /// The same, with tools of the host that a script may call. A command has none.
    ///
    /// # Errors
    ///
    /// As of [`start`](Self::start).
    pub async fn start_with_tools(
        &self,
        workload: impl Into<Workload>,
        tools: Option<ToolGrant>,
        cancel: CancelHandle,
    ) -> Result<Execution, Error> {
        let (inner, workload) = (self.inner(), workload.into());
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Error::Cancelled),
            started = begin(inner, workload, tools, &cancel) => started,
        }
    }
}

/// Starts it. What did not start is recorded in the audit.
async fn begin(
    inner: &Arc<Inner>,
    workload: Workload,
    tools: Option<ToolGrant>,
    cancel: &CancelHandle,
) -> Result<Execution, Error> {
    let (operation, program) = match &workload {
        Workload::Script(_) => (script::OPERATION, None),
        Workload::Command(command) => (command::OPERATION, Some(command.program().to_vec())),
    };
    let started = match workload {
        Workload::Script(script) => script::begin(inner.clone(), script, tools, cancel)
            .await
            .map(|(driven, events)| Execution::new(cancel, driven, EventSource::Script(events))),
        Workload::Command(command) => {
            let capture = OutputCapture::new(command.output_limit);
            command::begin(inner.clone(), command, cancel).await.map(|begun| {
                let source = EventSource::Command(Box::new(begun.output));
                let mut execution = Execution::new(cancel, begun.driven, source);
                execution.request = Some((inner.clone(), begun.request));
                (execution.stdin, execution.capture) = (begun.stdin, capture);
                execution
            })
        }
    };
    if started.is_err() {
        let outcome = audit::outcome(&started);
        let program = program.as_deref().map(|name| inner.redactions.bytes(name));
        let program = program.as_deref();
        inner.audit().record(&Event { program, outcome, ..Event::new(inner.id(), operation) });
    }
    started
}

/// A script or a command in progress. Dropping it without [`wait`](Self::wait) cancels it.
pub struct Execution {
    id: String,
    cancel: CancelHandle,
    has_started: bool,
    source: EventSource,
    /// All of the source has been returned.
    is_read: bool,
    refused: RefusedHosts,
    stdin: Option<DuplexStream>,
    capture: OutputCapture,
    /// Of a command: its sandbox, and the id of its request, once that is sent.
    request: Option<(Arc<Inner>, watch::Receiver<Option<u64>>)>,
    /// `None` after its end.
    task: Option<Driver>,
    ended: Option<Result<ExecutionResult, Error>>,
}

/// What the agent says while it runs.
enum EventSource {
    Script(ScriptEvents),
    Command(Box<CommandOutput>),
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Execution").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Execution {
    fn new(cancel: &CancelHandle, driven: Driven, source: EventSource) -> Self {
        let Driven { id, task, refused } = driven;
        Self {
            id,
            cancel: cancel.clone(),
            has_started: false,
            source,
            is_read: false,
            refused,
            stdin: None,
            request: None,
            capture: OutputCapture::new(0),
            task: Some(task),
            ended: None,
        }
    }

    /// Its unique id: the sandbox's id, with a number appended from the second run or command on.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Waits for the next event; `None` after the last one. Cancel-safe.
    ///
    /// A piece of output has at most 64 KiB. The buffer for unread output is bounded, about half a
    /// megabyte; then the command blocks, until its deadline. A host that was refused precedes what
    /// follows from it.
    pub async fn next(&mut self) -> Option<ExecutionEvent> {
        if !std::mem::replace(&mut self.has_started, true) {
            return Some(ExecutionEvent::Started);
        }
        loop {
            if self.is_read && self.task.is_none() {
                return self.refused.seen_next().map(ExecutionEvent::HostRefused);
            }
            tokio::select! {
                biased;
                host = self.refused.next() => return Some(ExecutionEvent::HostRefused(host)),
                event = self.source.next(), if !self.is_read => match event {
                    Some(event) => {
                        self.capture.push(&event);
                        return Some(event);
                    }
                    None => self.is_read = true,
                },
                result = join(&mut self.task), if self.task.is_some() => {
                    self.task = None;
                    self.ended = Some(result);
                }
            }
        }
    }

    /// Returns its stdin if a command has [`Stdin::Stream`](sandbox_api::Stdin::Stream); `None`
    /// after the first call. A shutdown or a drop closes it.
    ///
    /// A write fails with `BrokenPipe`, as on a pipe, if the command closed its stdin or has ended.
    pub const fn stdin(&mut self) -> Option<impl AsyncWrite + Send + Unpin + use<>> {
        self.stdin.take()
    }

    /// Sets the size of a command's terminal, as soon as it has one. The returned future is whether that
    /// was possible.
    pub fn resize(
        &self,
        TerminalSize { cols, rows }: TerminalSize,
    ) -> impl Future<Output = bool> + Send + use<> {
        let request = self.request.clone();
        async move {
            let Some((inner, mut id)) = request else { return false };
            let Some(id) = id.wait_for(Option::is_some).await.ok().and_then(|id| *id) else {
                return false;
            };
            let resized = inner.session.call(Resize { id, cols, rows });
            matches!(inner.clock.timeout(CONTROL_TIMEOUT, resized).await, Some(Ok(it)) if it.found)
        }
    }

    /// Returns the handle that cancels it from anywhere.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Waits for its end, and discards the events that [`next`](Self::next) has not returned. The
    /// result has the log of a script, and the beginning of a command's output up to its
    /// [`output_limit`](sandbox_api::Command::output_limit), however much of them was read.
    ///
    /// If [`stdin`](Self::stdin) was not called, the command's stdin is closed.
    ///
    /// # Errors
    ///
    /// [`Error`] if nothing ran because the controller or the engine failed. How it ended is data,
    /// even if they failed while it ran: [`Outcome::Error`](sandbox_api::Outcome::Error).
    pub async fn wait(mut self) -> Result<ExecutionResult, Error> {
        self.stdin = None;
        // A script's log needs no reader.
        if matches!(self.source, EventSource::Command(_)) {
            while self.next().await.is_some() {}
        }
        let mut result = match self.ended.take() {
            Some(ended) => ended?,
            None => {
                let result = join(&mut self.task).await;
                self.task = None;
                result?
            }
        };
        if let ResultBody::Command { stdout, stderr, .. } = &mut result.body {
            *stdout = std::mem::take(&mut self.capture.stdout);
            *stderr = std::mem::take(&mut self.capture.stderr);
        }
        Ok(result)
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.cancel.cancel(CancelCause::Caller);
        }
    }
}

impl EventSource {
    async fn next(&mut self) -> Option<ExecutionEvent> {
        match self {
            Self::Script(events) => events.next().await,
            Self::Command(output) => output.next().await,
        }
    }
}

/// Waits for the end of a task that has not been waited for.
async fn join(task: &mut Option<Driver>) -> Result<ExecutionResult, Error> {
    let task = task.as_mut().expect("it is waited for once");
    task.await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(Error::Ended { detail: "the runtime is shutting down".to_owned() }),
    })
}
