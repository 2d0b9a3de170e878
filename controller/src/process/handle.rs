//! A process as those know it who started it: what it is, what is kept of it, and what it is asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandbox_api::service::Time;
use sandbox_api::{
    ExecutionEvent, ProcessEnd, ProcessState, ProcessStop, ProcessView, Recorded, SignalName,
    SignalTarget, TerminalSize, exit_code,
};
use sandbox_protocol::ErrorKind;
use serde_json::value::RawValue;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::readers::Readers;
use super::ring::{Ring, weight_of};
use super::stdin::{Input, Stdin, StdinError};
use crate::clock::Clock;
use crate::error::Error;

/// How many requests to a process wait for its driver.
const MAX_REQUESTS: usize = 16;

/// A process of a sandbox. It does not end with this: it ends by itself, when it is
/// [stopped](Self::stop), or with its sandbox.
#[derive(Clone)]
pub struct Process(pub(super) Arc<Entry>);

/// What a process is, from its start on.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Its number in the audit.
    pub run_id: String,
    pub pid: u32,
    pub generation: u64,
    /// What runs, for lists.
    pub command: String,
    pub tag: Option<String>,
    pub has_terminal: bool,
    /// What its kept events may take, in bytes.
    pub scrollback: u64,
}

/// What is kept of the output of a process that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptOutput {
    /// What its events take, in bytes.
    pub bytes: u64,
    /// Since when it has ended.
    pub since: Instant,
    /// Whether it has a reader.
    pub is_read: bool,
}

#[cfg(test)]
impl Identity {
    pub fn of_tests() -> Self {
        Self {
            run_id: String::new(),
            pid: 1,
            generation: 1,
            command: String::new(),
            tag: None,
            has_terminal: false,
            scrollback: 64 << 10,
        }
    }
}

pub(super) struct Entry {
    id: u32,
    run_id: String,
    scrollback: u64,
    pub state: watch::Sender<State>,
    /// A reader for which the process waits has taken an event, or is gone.
    pub taken: Notify,
    stdin: Option<Stdin>,
    requests: mpsc::Sender<Request>,
}

/// What changes of a process.
#[derive(Debug)]
pub(super) struct State {
    pub ring: Ring,
    pub readers: Readers,
    /// Without the numbers of its events, which the ring has.
    view: ProcessView,
    /// Nothing that is left of it can print.
    is_silent: bool,
    pub ended: Option<Instant>,
}

/// What a process and what it started have used, in milliseconds and bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub cpu_ms: u64,
    pub peak_memory_bytes: Option<u64>,
}

/// What the driver of a process is asked for.
#[derive(Debug)]
pub(crate) enum Request {
    Signal(SignalName, SignalTarget, Answer),
    Resize(TerminalSize, Answer),
    /// Ends it: with a grace, and the second time without.
    Stop,
    /// Nothing: it has a new reader, which the audit records.
    Attached,
}

/// Whether there was such a process, or such a terminal.
pub(crate) type Answer = oneshot::Sender<Result<bool, Error>>;

/// What of a process is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The end of its program.
    Exited,
    /// The end of its program, and that stdout and stderr are closed by all that it started: what is left
    /// of it prints nothing more.
    Silent,
    /// That nothing is left of what it started.
    Ended,
}

impl fmt::Debug for Process {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Process").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Process {
    /// It has a new reader. That of a process that has ended is not in the audit any more.
    pub(super) fn attached(&self) {
        _ = self.0.requests.try_send(Request::Attached);
    }

    /// A process that has just started, what it is asked for, and its input, if its stdin is open.
    pub(super) fn new(
        id: u32,
        identity: Identity,
        has_stdin: bool,
    ) -> (Self, mpsc::Receiver<Request>, Option<Input>) {
        let (requests, asked) = mpsc::channel(MAX_REQUESTS);
        let (stdin, input) = has_stdin.then(Stdin::open).unzip();
        let Identity { run_id, pid, generation, command, tag, has_terminal, scrollback } = identity;
        let mut ring = Ring::new(scrollback);
        let started_at = Time::now();
        ring.push(ExecutionEvent::Started.into(), started_at);
        let view = ProcessView {
            id,
            pid,
            generation,
            command,
            tag,
            state: ProcessState::Running,
            pty: has_terminal,
            started_at,
            exited_at: None,
            exit_code: None,
            signal: None,
            stopped: None,
            out_of_memory: None,
            cpu_ms: None,
            peak_memory_bytes: None,
            first_event: 0,
            last_event: 0,
        };
        let readers = Readers::default();
        let state =
            watch::Sender::new(State { ring, readers, view, is_silent: false, ended: None });
        let taken = Notify::new();
        let entry = Entry { id, run_id, scrollback, state, taken, stdin, requests };
        (Self(Arc::new(entry)), asked, input)
    }

    /// Its id: a number from 1, never used twice in its sandbox.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// What is known of it.
    pub fn view(&self) -> ProcessView {
        self.0.state.borrow().view()
    }

    /// The bytes that its kept events take: at most its
    /// [scrollback](sandbox_api::ProcessCommand::scrollback).
    pub fn kept_bytes(&self) -> u64 {
        self.0.state.borrow().ring.bytes()
    }

    /// The most bytes that its kept events take.
    pub fn scrollback(&self) -> u64 {
        self.0.scrollback
    }

    /// What is kept of its output, once it has ended.
    pub fn kept_output(&self) -> Option<KeptOutput> {
        let state = self.0.state.borrow();
        let (bytes, is_read) = (state.ring.bytes(), state.readers.is_any());
        state.ended.map(|since| KeptOutput { bytes, since, is_read })
    }

    /// Drops what is kept of its output, but for its end, if it has ended; returns how many bytes that were. Its
    /// readers get an `omitted` event.
    pub fn drop_output(&self) -> u64 {
        let mut dropped = 0;
        self.0.state.send_if_modified(|State { ring, ended, .. }| {
            if ended.is_some() {
                let before = ring.bytes();
                ring.drop_to(ring.last() - 1);
                dropped = before - ring.bytes();
            }
            false
        });
        dropped
    }

    /// Writes to its stdin. Up to 256 KiB wait until it reads them; then this waits, for at most 10 s.
    ///
    /// # Errors
    ///
    /// [`StdinError`]. After `Full`, nothing of `bytes` was written if they are at most 256 KiB; of more,
    /// a beginning may have been.
    pub async fn write_stdin(&self, bytes: Bytes) -> Result<(), StdinError> {
        self.0.stdin.as_ref().ok_or(StdinError::NoStdin)?.write(bytes).await
    }

    /// Closes its stdin, after what was written.
    ///
    /// # Errors
    ///
    /// [`StdinError`].
    pub async fn close_stdin(&self) -> Result<(), StdinError> {
        self.0.stdin.as_ref().ok_or(StdinError::NoStdin)?.close()
    }

    /// Sets the size of its terminal; returns whether it has one.
    ///
    /// # Errors
    ///
    /// [`Error`] if no terminal has that size, or the sandbox is paused.
    pub async fn resize(&self, size: TerminalSize) -> Result<bool, Error> {
        size.check().map_err(|error| Error::Command { reason: error.to_string() })?;
        self.ask(|answer| Request::Resize(size, answer)).await
    }

    /// Sends a signal; returns whether there was a process to send it to.
    ///
    /// # Errors
    ///
    /// [`Error`] if the sandbox is paused.
    pub async fn signal(&self, signal: SignalName, to: SignalTarget) -> Result<bool, Error> {
        self.ask(|answer| Request::Signal(signal, to, answer)).await
    }

    /// Stops it and all that it started: SIGTERM, or the stop signal of its command, and SIGKILL after its
    /// [stop timeout](sandbox_api::Limits::stop_timeout). A second call does not wait for that.
    /// Does nothing if it has ended. [`until`](Self::until) waits for its end.
    pub async fn stop(&self) {
        // Otherwise it has ended.
        _ = self.0.requests.send(Request::Stop).await;
    }

    /// Waits for this of it. The end of the sandbox is all of that.
    pub fn until(&self, what: Until) -> impl Future<Output = ()> + Send + use<> {
        let mut states = self.0.state.subscribe();
        async move {
            let is_there = |state: &State| match what {
                Until::Exited => state.view.exited_at.is_some(),
                Until::Silent => state.is_silent || state.ended.is_some(),
                Until::Ended => state.ended.is_some(),
            };
            // It fails if the process is forgotten, which has then ended.
            _ = states.wait_for(is_there).await;
        }
    }

    async fn ask(&self, request: impl FnOnce(Answer) -> Request) -> Result<bool, Error> {
        let (answer, answered) = oneshot::channel();
        match self.0.requests.send(request(answer)).await {
            Ok(()) => answered.await.unwrap_or(Ok(false)),
            Err(_) => Ok(false),
        }
    }

    pub(super) fn has_ended_for(&self, time: Duration) -> bool {
        self.0.state.borrow().ended.is_some_and(|at| at.elapsed() >= time)
    }
}

/// For its driver.
impl Process {
    pub(crate) fn run_id(&self) -> &str {
        &self.0.run_id
    }

    /// Whether a reader sets its pace.
    pub(crate) fn has_waiting_reader(&self) -> bool {
        self.0.state.borrow().readers.is_waited_for()
    }

    /// How its program ended, once that is known.
    pub(crate) fn end(&self) -> Option<ProcessEnd> {
        self.0.state.borrow().end()
    }

    /// How many bytes were written to its stdin since its start.
    pub(crate) fn written(&self) -> u64 {
        self.0.stdin.as_ref().map_or(0, Stdin::written)
    }

    /// Waits until no reader for which it waits would miss something by an event with this much output.
    /// Cancel-safe.
    pub(crate) async fn room(&self, output: u64, clock: &Clock) {
        let weight = weight_of(usize::try_from(output).unwrap_or(usize::MAX));
        loop {
            let (mut until, now) = (None, clock.now());
            self.0.state.send_if_modified(|State { ring, readers, .. }| {
                until = readers.hold_up(ring.dropped_for(weight), now);
                false
            });
            let Some(until) = until else { return };
            tokio::select! {
                () = self.0.taken.notified() => {}
                () = clock.sleep_until(until) => {}
            }
        }
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: ExecutionEvent) {
        self.0.state.send_modify(|state| state.ring.push(event.into(), Time::now()));
    }

    /// Its program has ended.
    pub(crate) fn exited(
        &self,
        end: ProcessEnd,
        stopped: Option<ProcessStop>,
        out_of_memory: Option<bool>,
    ) {
        self.0.state.send_modify(|State { ring, view, .. }| {
            let now = Time::now();
            (view.exited_at, view.state) = (Some(now), ProcessState::Left);
            match end {
                ProcessEnd::Code(code) => view.exit_code = Some(code),
                ProcessEnd::Signal(signal) => view.signal = Some(signal),
            }
            (view.stopped, view.out_of_memory) = (stopped, out_of_memory);
            ring.push(ExecutionEvent::Exited(end).into(), now);
        });
    }

    /// It prints nothing any more: all of its output is in its events.
    pub(crate) fn silent(&self) {
        self.0.state.send_modify(|state| state.is_silent = true);
    }

    /// Nothing of it is left: its last event. Without `used` it ended with its sandbox, and
    /// `ran_out_of_memory` says whether that is known to be why.
    pub(crate) fn ended(
        &self,
        stopped: Option<ProcessStop>,
        used: Option<Used>,
        ran_out_of_memory: Option<bool>,
    ) {
        if let Some(stdin) = &self.0.stdin {
            stdin.end();
        }
        self.0.state.send_modify(|state| {
            let (now, view) = (Time::now(), &mut state.view);
            if view.exited_at.is_none() {
                (view.exited_at, view.out_of_memory) = (Some(now), ran_out_of_memory);
            }
            (view.state, view.stopped) = (ProcessState::Ended, stopped);
            view.cpu_ms = used.map(|used| used.cpu_ms);
            view.peak_memory_bytes = used.and_then(|used| used.peak_memory_bytes);
            state.ended = Some(Instant::now());
            let code = match (stopped, state.end()) {
                (Some(ProcessStop::Timeout), _) => exit_code(ErrorKind::Timeout),
                (_, Some(ProcessEnd::Code(code))) => code,
                (_, Some(ProcessEnd::Signal(signal))) => 128 + (signal & 127),
                (_, None) => exit_code(ErrorKind::AgentLost),
            };
            // It has the number of the event that it is in.
            let mut view = state.view();
            view.last_event += 1;
            let document = serde_json::value::to_raw_value(&view);
            let document = document.unwrap_or_else(|_| RawValue::NULL.to_owned());
            state.ring.push(Recorded::End { exit_code: code, document }, now);
        });
    }
}

impl State {
    fn view(&self) -> ProcessView {
        let (first_event, last_event) = (self.ring.first(), self.ring.last());
        ProcessView { first_event, last_event, ..self.view.clone() }
    }

    fn end(&self) -> Option<ProcessEnd> {
        let signal = self.view.signal.map(ProcessEnd::Signal);
        self.view.exit_code.map(ProcessEnd::Code).or(signal)
    }
}
