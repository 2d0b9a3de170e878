//! Commands in a sandbox whose root filesystem has programs: requests, streams and results.
//!
//! A command's output goes straight to its reader: if it is not read, the command blocks, until its
//! deadline.

mod exchange;
mod request;
mod stdin;

use std::sync::Arc;

use bytes::Bytes;
use sandbox_api::{Command, ExecutionEvent, Limits, OutputStream, Stdin};
use sandbox_protocol::message;
use sandbox_redact::Console;
use sandbox_session::Incoming;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

pub(super) use self::exchange::OPERATION;
use self::exchange::{CommandExecution, Request};
pub use self::stdin::ExecStdin;
use self::stdin::Source;
use crate::error::Error;
use crate::execution::driver::{Driven, ExecutionDriver};
use crate::execution::supervisor::CancelHandle;
use crate::sandbox::Inner;

/// Starts a command when there is a free slot.
pub(super) async fn begin(
    inner: Arc<Inner>,
    mut command: Command,
    cancel: &CancelHandle,
) -> Result<(Driven, CommandOutput, Option<ExecStdin>), Error> {
    if !inner.supports_exec() {
        return Err(Error::ExecUnsupported);
    }
    let timeout = command.timeout.unwrap_or(inner.limits.timeout);
    let limits = Limits { timeout, ..inner.limits };
    limits.check(inner.ceiling())?;
    let program = command.program().to_vec();
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
    let execution = CommandExecution::new(program, Request { params, input, begun: begin });
    let driven = ExecutionDriver::spawn(execution, id, limits, inner, permit, active, cancel);
    let output = CommandOutput { begun: Some(begun), stdout: None, stderr: None, console };
    Ok((driven, output, stdin))
}

/// The output of a command, as it comes. Nothing is between it and the agent's credit: what is not
/// read here is not sent.
pub(super) struct CommandOutput {
    /// Both output streams, once the command has started.
    begun: Option<oneshot::Receiver<[Incoming; 2]>>,
    stdout: Option<Incoming>,
    stderr: Option<Incoming>,
    /// Replaces secrets in both streams.
    console: Console,
}

impl CommandOutput {
    /// Waits for the next piece; `None` after the last one. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<ExecutionEvent> {
        if let Some(begun) = &mut self.begun {
            let outputs = begun.await;
            self.begun = None;
            if let Ok([stdout, stderr]) = outputs {
                (self.stdout, self.stderr) = (Some(stdout), Some(stderr));
            }
        }
        let output = |stream, data| ExecutionEvent::Output { stream, data: Bytes::from(data) };
        loop {
            let due = self.console.due();
            let piece = next_piece(&mut self.stdout, &mut self.stderr);
            let (stream, piece) = match due {
                Some(due) => match timeout_at(due.into(), piece).await {
                    Ok(piece) => piece?,
                    Err(_) => match self.console.pause(Instant::now().into_std()) {
                        Some((0, held)) => return Some(output(OutputStream::Stdout, held)),
                        Some((_, held)) => return Some(output(OutputStream::Stderr, held)),
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
                        OutputStream::Stdout => self.stdout = None,
                        OutputStream::Stderr => self.stderr = None,
                    }
                    self.console.end(stream as usize)
                }
            };
            if !passed.is_empty() {
                return Some(output(stream, passed));
            }
        }
    }
}

/// The next piece of one of these streams, or its end; `None` if both have ended.
async fn next_piece(
    stdout: &mut Option<Incoming>,
    stderr: &mut Option<Incoming>,
) -> Option<(OutputStream, Option<Vec<u8>>)> {
    Some(match (stdout, stderr) {
        (Some(stdout), Some(stderr)) => tokio::select! {
            piece = stdout.next() => (OutputStream::Stdout, piece),
            piece = stderr.next() => (OutputStream::Stderr, piece),
        },
        (Some(stdout), None) => (OutputStream::Stdout, stdout.next().await),
        (None, Some(stderr)) => (OutputStream::Stderr, stderr.next().await),
        (None, None) => return None,
    })
}
