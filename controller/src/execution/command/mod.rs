//! Commands in a sandbox whose root filesystem has programs: requests, streams and results.
//!
//! A command's output goes straight to its reader: if it is not read, the command blocks, until its
//! deadline.

mod exchange;
mod request;
mod stdin;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use sandbox_api::{Command, ExecutionEvent, Limits, OutputStream, Stdin};
use sandbox_protocol::message;
use sandbox_redact::{Console, Redactions};
use sandbox_session::Incoming;
use tokio::io::DuplexStream;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

pub(super) use self::exchange::{CLOCK_SKEW, OPERATION, check_reply, printed};
use self::exchange::{CommandExecution, Request};
pub(super) use self::request::{Term, request};
use self::stdin::{BUFFER_BYTES, Source};
use crate::error::Error;
use crate::execution::driver::{Driven, ExecutionDriver};
use crate::execution::supervisor::CancelHandle;
use crate::sandbox::Inner;

/// The streams of a command's output, in the order of its request.
const STREAMS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

/// A command that has begun: its driver, its output, and the other ends of it.
pub(super) struct Begun {
    pub driven: Driven,
    pub output: CommandOutput,
    pub stdin: Option<DuplexStream>,
    /// The id of its request, once that is sent.
    pub request: watch::Receiver<Option<u64>>,
}

/// Starts a command when there is a free slot.
pub(super) async fn begin(
    inner: Arc<Inner>,
    mut command: Command,
    cancel: &CancelHandle,
) -> Result<Begun, Error> {
    if !inner.supports_exec {
        return Err(Error::ExecUnsupported);
    }
    let timeout = command.timeout.unwrap_or(inner.limits.timeout);
    let stop_timeout = command.stop_timeout.unwrap_or(inner.limits.stop_timeout);
    let limits = Limits { timeout, stop_timeout, ..inner.limits };
    limits.check(inner.ceiling())?;
    let program = command.program().to_vec();
    let (stdin, input) = match std::mem::take(&mut command.stdin) {
        Stdin::Null => (None, None),
        Stdin::Bytes(bytes) => (None, Some(Source::Bytes(bytes))),
        Stdin::Stream => {
            let (stdin, source) = tokio::io::duplex(BUFFER_BYTES);
            (Some(stdin), Some(Source::Stream(source)))
        }
    };
    inner.redactions.add(&command.secrets);
    let redactions = inner.redactions.clone();
    let has_stderr = !command.merge && command.pty.is_none();
    let term = Term::Limited(limits.timeout);
    let params = request(command, inner.image_workdir(), term, limits.stop_timeout)?;
    let active = inner.activity.begin();
    let permit = inner.acquire_permit::<message::Exec>().await?;
    let id = inner.next_run_id();
    let (begin, begun) = oneshot::channel();
    let (request_id, request) = watch::channel(None);
    let asked = Request { params, input, has_stderr, begun: begin, id: request_id };
    let execution = CommandExecution::new(program, asked);
    let driven = ExecutionDriver::spawn(execution, id, limits, inner, permit, active, cancel);
    let output = CommandOutput { begun: Some(begun), ..CommandOutput::new(redactions) };
    Ok(Begun { driven, output, stdin, request })
}

/// The output of a command, as it comes. Nothing is between it and the agent's credit: what is not
/// read here is not sent.
pub(super) struct CommandOutput {
    /// Its output, once the command has started.
    begun: Option<oneshot::Receiver<Incoming>>,
    output: Option<Incoming>,
    /// How many bytes were taken from it.
    taken: u64,
    /// Replaces secrets in both streams.
    console: Console,
    redactions: Arc<Redactions>,
    /// What the console has passed on, and was not returned yet.
    passed: VecDeque<(OutputStream, Vec<u8>)>,
}

impl CommandOutput {
    fn new(redactions: Arc<Redactions>) -> Self {
        let console = Console::new(redactions.patterns());
        let (begun, output, passed) = (None, None, VecDeque::new());
        Self { begun, output, taken: 0, console, redactions, passed }
    }

    /// The output of a command that has started.
    pub(super) fn of(output: Incoming, redactions: Arc<Redactions>) -> Self {
        Self { output: Some(output), ..Self::new(redactions) }
    }

    /// How many bytes of the output are in what was returned, or are held back.
    pub(super) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Has what is held back returned next: nothing that follows from it is to be waited for.
    pub(super) fn flush(&mut self) {
        for (number, stream) in STREAMS.into_iter().enumerate() {
            let held = self.console.end(number);
            if !held.is_empty() {
                self.passed.push_back((stream, held));
            }
        }
    }

    /// What can be returned without waiting.
    pub(super) fn ready(&mut self) -> Option<ExecutionEvent> {
        let (stream, data) = self.passed.pop_front()?;
        Some(ExecutionEvent::Output { stream, data: Bytes::from(data) })
    }

    /// Waits for the next piece; `None` after the last one. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<ExecutionEvent> {
        if let Some(begun) = &mut self.begun {
            let output = begun.await;
            self.begun = None;
            self.output = output.ok();
        }
        loop {
            if let Some(event) = self.ready() {
                return Some(event);
            }
            let piece = self.output.as_mut()?.next_of_any();
            let piece = match self.console.due() {
                Some(due) => match timeout_at(due.into(), piece).await {
                    Ok(piece) => piece,
                    Err(_) => {
                        if let Some((number, held)) = self.console.pause(Instant::now().into_std())
                        {
                            self.passed.push_back((STREAMS[number], held));
                        }
                        continue;
                    }
                },
                None => piece.await,
            };
            if !self.console.looks_for(self.redactions.patterns().as_ref()) {
                // The sandbox was given a secret meanwhile.
                self.flush();
                self.console = Console::new(self.redactions.patterns());
            }
            let Some((number, piece)) = piece else {
                self.output = None;
                self.flush();
                return self.ready();
            };
            self.taken += piece.len() as u64;
            let passed = self.console.push(number, piece, Instant::now().into_std());
            if !passed.is_empty() {
                self.passed.push_back((STREAMS[number], passed));
            }
        }
    }
}
