//! Commands in a sandbox whose root has programs: what is asked, what comes while they run, how they
//! ended.
//!
//! A task of its own ([`driver`]) holds to the deadline, whatever the caller does meanwhile. What a
//! program writes goes straight to whoever takes it: where nobody does, the program waits, until its
//! deadline.

mod driver;
mod request;
mod stdin;

use std::sync::Arc;

use bytes::Bytes;
use sandbox_api::{CancelCause, ExecResult, Limits};
use sandbox_protocol::message;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::driver::ExecutionDriver;
pub use self::request::{Command, Stdin};
pub use self::stdin::ExecStdin;
use self::stdin::Source;
use crate::audit::{Event, outcome};
use crate::error::Error;
use crate::execution::command::driver::OPERATION;
use crate::execution::supervisor::CancelHandle;
use crate::sandbox::{Inner, Sandbox};
use crate::session::Incoming;

impl Sandbox {
    /// Runs a command to its end, and keeps the beginning of what it writes:
    /// [`start_exec`](Self::start_exec) and [`Execution::wait`].
    ///
    /// # Errors
    ///
    /// As of the two. How a command ended is data, also that it did not begin.
    pub async fn exec(&self, command: Command) -> Result<ExecResult, Error> {
        self.start_exec(command).await?.wait().await
    }

    /// Starts a command. Several run at once, beside a script and file operations; 16 of them all
    /// are under way at a time, and one more waits for its place.
    ///
    /// # Errors
    ///
    /// [`Error`] where the sandbox has no programs or has ended, or the command cannot be given to
    /// it.
    pub async fn start_exec(&self, command: Command) -> Result<Execution, Error> {
        Execution::start(self.inner().clone(), command).await
    }
}

/// One of a command's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExecStream {
    /// Its output.
    Stdout,
    /// Its error output.
    Stderr,
}

/// A command under way. Dropped without [`wait`](Self::wait): cancelled.
pub struct Execution {
    id: String,
    /// Both outputs, once there is a program.
    begun: Option<oneshot::Receiver<[Incoming; 2]>>,
    stdout: Option<Incoming>,
    stderr: Option<Incoming>,
    stdin: Option<ExecStdin>,
    /// Bytes of each output that the result keeps.
    collected: usize,
    cancel: CancelHandle,
    /// `None` once it has been waited for.
    task: Option<JoinHandle<Result<ExecResult, Error>>>,
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Execution").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Execution {
    /// Its id, unique: the sandbox's, and from the second run or command on a number behind it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The next piece of its output, at most 64 KiB, as it comes; `None` when no more will.
    /// Cancel-safe. What is not taken makes the program wait, and is bounded: half a megabyte or so.
    pub async fn next_output(&mut self) -> Option<(ExecStream, Bytes)> {
        if let Some(begun) = &mut self.begun {
            let outputs = begun.await;
            self.begun = None;
            if let Ok([stdout, stderr]) = outputs {
                (self.stdout, self.stderr) = (Some(stdout), Some(stderr));
            }
        }
        loop {
            let (stream, piece) = match (&mut self.stdout, &mut self.stderr) {
                (Some(stdout), Some(stderr)) => tokio::select! {
                    piece = stdout.next() => (ExecStream::Stdout, piece),
                    piece = stderr.next() => (ExecStream::Stderr, piece),
                },
                (Some(stdout), None) => (ExecStream::Stdout, stdout.next().await),
                (None, Some(stderr)) => (ExecStream::Stderr, stderr.next().await),
                (None, None) => return None,
            };
            match (piece, stream) {
                (Some(piece), _) => return Some((stream, Bytes::from(piece))),
                (None, ExecStream::Stdout) => self.stdout = None,
                (None, ExecStream::Stderr) => self.stderr = None,
            }
        }
    }

    /// What it reads, where the command has [`Stdin::Stream`]: once, and then the caller's.
    pub const fn stdin(&mut self) -> Option<ExecStdin> {
        self.stdin.take()
    }

    /// A handle that ends it from anywhere.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Waits for its end. Output that [`next_output`](Self::next_output) has not given is in the
    /// result, as far as the command's [`output_limit`](Command::output_limit) goes.
    ///
    /// Input that was not asked for with [`stdin`](Self::stdin) has ended.
    ///
    /// # Errors
    ///
    /// [`Error`] where our side failed and nothing ran. How a command ended is data, also where our
    /// side failed in the middle of it: [`Outcome::Error`](sandbox_api::Outcome::Error).
    pub async fn wait(mut self) -> Result<ExecResult, Error> {
        self.stdin = None;
        let mut kept = [CapturedOutput::default(), CapturedOutput::default()];
        while let Some((stream, piece)) = self.next_output().await {
            kept[stream as usize].take(&piece, self.collected);
        }
        let task = self.task.as_mut().expect("taken only below");
        let result = task.await;
        self.task = None;
        let mut result = result.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::Ended { detail: "the runtime is shutting down".to_owned() }),
        })?;
        let [stdout, stderr] = kept;
        (result.stdout, result.stdout_truncated) = (stdout.bytes, stdout.truncated);
        (result.stderr, result.stderr_truncated) = (stderr.bytes, stderr.truncated);
        Ok(result)
    }

    async fn start(inner: Arc<Inner>, command: Command) -> Result<Self, Error> {
        let program = command.program().to_vec();
        let started = Self::begin(inner.clone(), command).await;
        if started.is_err() {
            let outcome = outcome(&started);
            let event = Event::new(inner.id(), OPERATION);
            inner.audit().record(&Event { program: Some(&program), outcome, ..event });
        }
        started
    }

    async fn begin(inner: Arc<Inner>, mut command: Command) -> Result<Self, Error> {
        if !inner.supports_exec() {
            return Err(Error::ExecUnsupported);
        }
        let timeout = command.timeout.unwrap_or(inner.limits.timeout);
        let limits = Limits { timeout, ..inner.limits };
        limits.check(inner.ceiling())?;
        let program = command.program().to_vec();
        let collected = command.collected;
        let (stdin, input) = match std::mem::take(&mut command.stdin) {
            Stdin::Null => (None, None),
            Stdin::Bytes(bytes) => (None, Some(Source::Bytes(bytes))),
            Stdin::Stream => {
                let (stdin, source) = ExecStdin::new();
                (Some(stdin), Some(Source::Stream(source)))
            }
        };
        let request = command.request(inner.image_workdir(), timeout)?;
        let active = inner.activity.begin();
        let permit = inner.acquire_permit::<message::Exec>().await?;
        let id = inner.next_run_id();
        let cancel = CancelHandle::new();
        let (begin, begun) = oneshot::channel();
        let conductor = ExecutionDriver::new(id.clone(), program, limits, inner, &cancel, active);
        let task = tokio::spawn(conductor.conduct(permit, request, input, begin));
        let begun = Some(begun);
        let (stdout, stderr) = (None, None);
        Ok(Self { id, begun, stdout, stderr, stdin, collected, cancel, task: Some(task) })
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.cancel.cancel(CancelCause::Caller);
        }
    }
}

/// The beginning of an output.
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
