//! Commands in a sandbox whose root filesystem has programs: requests, streams and results.
//!
//! A command's output goes straight to its reader: if nobody reads, the command blocks, until its
//! deadline.

mod exchange;
mod request;
mod stdin;

use std::sync::Arc;

use bytes::Bytes;
use sandbox_api::{Command, ExecResult, Limits, Stdin};
use sandbox_protocol::message;
use sandbox_redact::Console;
use sandbox_session::Incoming;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use self::exchange::{CommandExecution, OPERATION, Request};
pub use self::stdin::ExecStdin;
use self::stdin::Source;
use crate::error::Error;
use crate::execution::driver::{ExecutionDriver, RefusedHosts, Task, audit_start};
use crate::execution::supervisor::CancelHandle;
use crate::sandbox::{Inner, Sandbox};

impl Sandbox {
    /// Runs a command to its end, and keeps the beginning of its output:
    /// [`start_exec`](Self::start_exec) and [`Execution::wait`].
    ///
    /// # Errors
    ///
    /// The errors of both. How a command ended is data, including a failure to start.
    pub async fn exec(&self, command: Command) -> Result<ExecResult, Error> {
        self.start_exec(command).await?.wait().await
    }

    /// Starts a command. Several commands can run at once, alongside a script and file operations;
    /// at most 16 of all these are in progress at a time, and further ones wait.
    ///
    /// # Errors
    ///
    /// [`Error`] if the sandbox does not support commands or has ended, or if the command is
    /// invalid.
    pub async fn start_exec(&self, command: Command) -> Result<Execution, Error> {
        Execution::start(self.inner().clone(), command).await
    }
}

/// One of a command's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExecStream {
    /// Its stdout.
    Stdout,
    /// Its stderr.
    Stderr,
}

/// A command in progress. Dropping it without [`wait`](Self::wait) cancels it.
pub struct Execution {
    id: String,
    /// Both output streams, once the command has started.
    begun: Option<oneshot::Receiver<[Incoming; 2]>>,
    stdout: Option<Incoming>,
    stderr: Option<Incoming>,
    stdin: Option<ExecStdin>,
    /// The maximum number of bytes of each stream that the result keeps.
    collected: usize,
    /// Replaces secrets in both streams.
    console: Console,
    task: Task<ExecResult>,
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Execution").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Execution {
    /// Its unique id: the sandbox's id, with a number appended from the second run or command on.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Waits for the next chunk of its output, at most 64 KiB; `None` after the last one.
    /// Cancel-safe. The buffer for unread output is bounded, about half a megabyte; then the
    /// command blocks.
    pub async fn next_output(&mut self) -> Option<(ExecStream, Bytes)> {
        if let Some(begun) = &mut self.begun {
            let outputs = begun.await;
            self.begun = None;
            if let Ok([stdout, stderr]) = outputs {
                (self.stdout, self.stderr) = (Some(stdout), Some(stderr));
            }
        }
        loop {
            let due = self.console.due();
            let piece = next_piece(&mut self.stdout, &mut self.stderr);
            let (stream, piece) = match due {
                Some(due) => match timeout_at(due.into(), piece).await {
                    Ok(piece) => piece?,
                    Err(_) => match self.console.pause(Instant::now().into_std()) {
                        Some((0, held)) => return Some((ExecStream::Stdout, Bytes::from(held))),
                        Some((_, held)) => return Some((ExecStream::Stderr, Bytes::from(held))),
                        None => continue,
                    },
                },
                None => piece.await?,
            };
            let passed = match (piece, stream) {
                (Some(piece), _) => {
                    self.console.push(stream as usize, piece, Instant::now().into_std())
                }
                (None, stream) => {
                    match stream {
                        ExecStream::Stdout => self.stdout = None,
                        ExecStream::Stderr => self.stderr = None,
                    }
                    self.console.end(stream as usize)
                }
            };
            if !passed.is_empty() {
                return Some((stream, Bytes::from(passed)));
            }
        }
    }

    /// Returns its stdin if the command has [`Stdin::Stream`]; `None` after the first call.
    pub const fn stdin(&mut self) -> Option<ExecStdin> {
        self.stdin.take()
    }

    /// Returns a handle that cancels it from anywhere.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.task.cancel_handle()
    }

    /// Returns the hosts that it is refused, from its start on.
    #[must_use]
    pub fn refused_hosts(&self) -> RefusedHosts {
        self.task.refused_hosts()
    }

    /// Waits for the command to end. The result contains the output that
    /// [`next_output`](Self::next_output) has not returned, up to the command's
    /// [`output_limit`](Command::output_limit).
    ///
    /// If [`stdin`](Self::stdin) was not called, the command's stdin is closed.
    ///
    /// # Errors
    ///
    /// [`Error`] if nothing ran because the controller or the engine failed. How a command ended is
    /// data, even if they failed while it ran: [`Outcome::Error`](sandbox_api::Outcome::Error).
    pub async fn wait(mut self) -> Result<ExecResult, Error> {
        self.stdin = None;
        let mut kept = [CapturedOutput::default(), CapturedOutput::default()];
        while let Some((stream, piece)) = self.next_output().await {
            kept[stream as usize].take(&piece, self.collected);
        }
        let mut result = self.task.wait().await?;
        let [stdout, stderr] = kept;
        (result.stdout, result.stdout_truncated) = (stdout.bytes, stdout.truncated);
        (result.stderr, result.stderr_truncated) = (stderr.bytes, stderr.truncated);
        Ok(result)
    }

    async fn start(inner: Arc<Inner>, command: Command) -> Result<Self, Error> {
        let program = command.program().to_vec();
        let started = Self::begin(inner.clone(), command).await;
        audit_start(&inner, OPERATION, Some(&program), started)
    }

    async fn begin(inner: Arc<Inner>, mut command: Command) -> Result<Self, Error> {
        if !inner.supports_exec() {
            return Err(Error::ExecUnsupported);
        }
        let timeout = command.timeout.unwrap_or(inner.limits.timeout);
        let limits = Limits { timeout, ..inner.limits };
        limits.check(inner.ceiling())?;
        let program = command.program().to_vec();
        let collected = command.output_limit;
        let (stdin, input) = match std::mem::take(&mut command.stdin) {
            Stdin::Null => (None, None),
            Stdin::Bytes(bytes) => (None, Some(Source::Bytes(bytes))),
            Stdin::Stream => {
                let (stdin, source) = ExecStdin::new();
                (Some(stdin), Some(Source::Stream(source)))
            }
        };
        inner.redactions.add(&command.secrets);
        let console = Console::new(inner.redactions.patterns());
        let params = request::request(command, inner.image_workdir(), &limits)?;
        let active = inner.activity.begin();
        let permit = inner.acquire_permit::<message::Exec>().await?;
        let id = inner.next_run_id();
        let (begin, begun) = oneshot::channel();
        let request = Request { params, input, begun: begin };
        let execution = CommandExecution::new(program, request);
        let task = ExecutionDriver::spawn(execution, id.clone(), limits, inner, permit, active);
        let begun = Some(begun);
        let (stdout, stderr) = (None, None);
        Ok(Self { id, begun, stdout, stderr, stdin, collected, console, task })
    }
}

/// The next piece of one of these streams, or its end; `None` if both have ended.
async fn next_piece(
    stdout: &mut Option<Incoming>,
    stderr: &mut Option<Incoming>,
) -> Option<(ExecStream, Option<Vec<u8>>)> {
    Some(match (stdout, stderr) {
        (Some(stdout), Some(stderr)) => tokio::select! {
            piece = stdout.next() => (ExecStream::Stdout, piece),
            piece = stderr.next() => (ExecStream::Stderr, piece),
        },
        (Some(stdout), None) => (ExecStream::Stdout, stdout.next().await),
        (None, Some(stderr)) => (ExecStream::Stderr, stderr.next().await),
        (None, None) => return None,
    })
}

/// The beginning of an output stream.
#[derive(Debug, Default)]
struct CapturedOutput {
    bytes: Vec<u8>,
    truncated: bool,
}

impl CapturedOutput {
    fn take(&mut self, piece: &[u8], most: usize) {
        let room = most.saturating_sub(self.bytes.len()).min(piece.len());
        self.bytes.extend_from_slice(&piece[..room]);
        self.truncated |= room < piece.len();
    }
}
