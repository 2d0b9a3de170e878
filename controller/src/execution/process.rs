//! Drives a process that lives on: it is one long request, and its driver a task that has the request
//! and its streams until nothing of the process is left.
//!
//! Output is taken as fast as the readers that it waits for read it, and at a bounded pace without
//! one. The order of what the agent reports is the session's to check; what its answer says is
//! checked here.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use sandbox_api::process::{MAX_OUTPUT_EVENT_BYTES, SCROLLBACKS};
use sandbox_api::{
    ByteSize, Command, CommandLine, ExecutionEvent, Limits, ProcessCommand, ProcessEnd,
    ProcessStop, Processes, SignalName, Stdin, generation_of,
};
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{
    Call, Cancel, ControlReply, ExecEnd, ExecReply, ExecStop, Exited, Resize, Signal, Started,
};
use sandbox_session::{
    CallError, Console, ConsoleSpec, Ended, Fin, Flow, InFlightPermit, NotificationHandler,
    Outgoing, Reply,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::CONTROL_TIMEOUT;
use super::command::{CLOCK_SKEW, CommandOutput, Term, check_reply, printed, request};
use super::judge::{SIGKILL, never_ran};
use crate::audit::{self, Event};
use crate::clock::or_never;
use crate::error::Error;
use crate::io_dir::write_monitor::WriteMonitor;
use crate::process::{Answer, Identity, Input, Place, Process, Request, Used};
use crate::sandbox::idle::Active;
use crate::sandbox::{Inner, KernelBaseline, Sandbox};

/// How long the agent may take to answer after its last time limit.
const GRACE: Duration = Duration::from_secs(3);
/// How long a program may take until it is executed.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// A time limit of this length or more counts as no limit.
const NO_LIMIT: Duration = Duration::from_secs(1 << 30);
/// About how many bytes the last event has.
const MAX_END: u64 = 4 << 10;
/// How many bytes of what runs are in a list.
const MAX_SHOWN: usize = 512;

impl Sandbox {
    /// Starts a process, and returns when its program is executed. If the caller stops waiting before
    /// that, the process is stopped.
    ///
    /// # Errors
    ///
    /// [`Error::ProcessesUnsupported`] if the sandbox does not
    /// [keep](sandbox_api::Processes::Kept) its processes, [`Error::TooMany`] if it has 64,
    /// [`Error::OverLimit`] if more was written in it than may be, [`Error::OverCeiling`] if its stop
    /// timeout is longer than may be; [`Error`] if it has ended or is paused, or if the command is invalid
    /// or cannot be executed.
    pub async fn start_process(
        &self,
        command: impl Into<ProcessCommand>,
    ) -> Result<Process, Error> {
        let (inner, asked) = (self.inner(), command.into());
        let program = asked.command.program().to_vec();
        let started = async {
            let started = begin(inner, asked).await?.await;
            let gone = || Error::Ended { detail: "the runtime is shutting down".to_owned() };
            started.unwrap_or_else(|_| Err(gone()))
        };
        let started = started.await;
        if let Err(error) = &started {
            let program = inner.redactions.bytes(&program);
            let (program, outcome) = (Some(&*program), error.kind().as_str());
            let event = Event::new(inner.id(), "process.start");
            inner.audit().record(&Event { program, outcome, ..event });
        }
        started
    }

    /// Its processes, the latest first: those that live, and of those that have ended the last 256, for
    /// 10 minutes.
    pub fn processes(&self) -> Vec<Process> {
        self.inner().processes.all()
    }

    /// The process with this id, if it is one of [`processes`](Self::processes).
    pub fn process(&self, id: u32) -> Option<Process> {
        self.processes().into_iter().find(|process| process.id() == id)
    }
}

/// Where a process that is started appears.
type Starting = oneshot::Receiver<Result<Process, Error>>;

async fn begin(inner: &Arc<Inner>, asked: ProcessCommand) -> Result<Starting, Error> {
    if inner.keeps == Processes::PerCommand {
        return Err(Error::ProcessesUnsupported);
    }
    if !inner.supports_exec {
        return Err(Error::ExecUnsupported);
    }
    inner.refusal().map_or(Ok(()), Err)?;
    let ProcessCommand { mut command, open_stdin, tag, scrollback } = asked;
    let scrollback = scrollback.as_u64();
    if !SCROLLBACKS.contains(&scrollback) {
        let [least, most] = [SCROLLBACKS.start(), SCROLLBACKS.end()].map(|it| ByteSize::b(*it));
        return Err(Error::Command { reason: format!("it keeps {least} to {most} of output") });
    }
    let stop_timeout = command.stop_timeout.unwrap_or(inner.limits.stop_timeout);
    Limits { stop_timeout, ..inner.limits }.check(inner.ceiling())?;
    let place = inner.processes.place()?;
    inner.redactions.add(&command.secrets);
    let program = inner.redactions.bytes(command.program()).into_owned();
    let stdin = std::mem::take(&mut command.stdin);
    let input = match &stdin {
        Stdin::Bytes(bytes) => Bytes::copy_from_slice(bytes),
        Stdin::Null | Stdin::Stream => Bytes::new(),
    };
    let open_stdin = open_stdin || stdin == Stdin::Stream;
    let timeout = command.timeout.filter(|timeout| *timeout < NO_LIMIT);
    let identity = Identity {
        run_id: String::new(),
        pid: 0,
        generation: generation_of(inner.id()).map_or(1, |(_, generation)| generation),
        command: shown(inner, &command),
        tag,
        has_terminal: command.pty.is_some(),
        scrollback,
    };
    let (sender, received) = mpsc::unbounded_channel();
    let reporter = Arc::new(Reporter { sender, flows: OnceLock::new() });
    let console = ConsoleSpec {
        has_stdin: open_stdin || stdin != Stdin::Null,
        has_stderr: !command.merge && command.pty.is_none(),
        most: u64::MAX,
        kept: Some(reporter.clone()),
    };
    let params = request(command, inner.image_workdir(), Term::Kept(timeout), stop_timeout)?;
    let active = inner.activity.begin();
    let guard = guard(inner).await?;
    inner.check_mounts_before_use().await?;
    let run_id = inner.next_run_id();
    let since = inner.kernel_baseline().await;
    let began = inner.clock.now();
    let asked = inner.session.converse(InFlightPermit::of_kept(), console, params);
    let (reply, Console { stdin, output }) = asked.await?;
    let flows: Vec<_> = output.flows().cloned().collect();
    _ = reporter.flows.set(flows.clone());
    let output = CommandOutput::of(output, inner.redactions.clone());
    let identity = Identity { run_id, ..identity };
    let hurry_at = timeout.map(|timeout| began + timeout);
    let driver = Driver {
        inner: inner.clone(),
        reports: Reports { received, reply },
        output,
        flows,
        since,
        began,
        timeout,
        stop_timeout,
        hurry_at,
        kill_at: hurry_at.map(|at| at + stop_timeout + GRACE),
        is_hurried: false,
        is_stopped: false,
        is_killed: false,
        _held: (active, guard, place),
    };
    let (starting, started) = oneshot::channel();
    let stdin = stdin.map(|stdin| (stdin, input));
    crate::spawn(driver.run(Starter { starting, identity, program, stdin, open_stdin }));
    Ok(started)
}

/// What runs, for people.
fn shown(inner: &Inner, command: &Command) -> String {
    let line = match &command.what {
        CommandLine::Shell(line) => line.clone(),
        CommandLine::Program { program, args } => {
            let mut words = vec![program.as_slice()];
            words.extend(args.iter().map(Vec::as_slice));
            words.join(&b' ')
        }
    };
    let line = inner.redactions.bytes(&line);
    String::from_utf8_lossy(&line[..line.len().min(MAX_SHOWN)]).into_owned()
}

/// Watches over all processes of the sandbox as long as one of them lives: over what is written, and
/// over its mounts.
async fn guard(inner: &Arc<Inner>) -> Result<Arc<AbortOnDropHandle<()>>, Error> {
    let mut guard = inner.processes.guard.lock().await;
    if let Some(guard) = guard.upgrade() {
        return Ok(guard);
    }
    let monitor = inner.monitor_life().await;
    let refusal = monitor.as_ref().and_then(|monitor| monitor.refusal().or(monitor.exceeded()));
    if let Some(limit) = refusal {
        return Err(Error::OverLimit { limit });
    }
    let inner = inner.clone();
    let watch = crate::spawn(async move {
        tokio::select! {
            limit = or_never(monitor.as_ref().map(WriteMonitor::passed)) => inner.overrun(limit).await,
            () = inner.look_at_mounts() => {}
        }
    });
    let watch = Arc::new(AbortOnDropHandle::new(watch));
    *guard = Arc::downgrade(&watch);
    Ok(watch)
}

/// A report of the agent about a process: each once, and in this order.
enum Report {
    Started(u32),
    /// With how much it had printed, if that is known.
    Exited(Exited, Option<u64>),
    Answered(Result<ExecReply, CallError>),
}

/// The reports of a process, in their order.
struct Reports {
    /// All but the answer. The session has their sender until it has delivered that.
    received: mpsc::UnboundedReceiver<Report>,
    reply: Reply<ExecReply>,
}

impl Reports {
    /// The next of it. To be called until the answer. Cancel-safe.
    ///
    /// The answer is looked at only when there can be no more reports: all of them may arrive between two
    /// looks, and then it would overtake those.
    async fn next(&mut self) -> Report {
        match self.received.recv().await {
            Some(report) => report,
            None => Report::Answered(self.reply.wait().await),
        }
    }
}

/// Passes the reports on, from the task that reads the agent's messages.
struct Reporter {
    sender: mpsc::UnboundedSender<Report>,
    flows: OnceLock<Vec<Arc<Flow>>>,
}

impl NotificationHandler for Reporter {
    fn started(&self, started: Started) -> Result<(), String> {
        // The driver may be gone.
        _ = self.sender.send(Report::Started(started.pid));
        Ok(())
    }

    fn exited(&self, exited: Exited) -> Result<(), String> {
        let printed = self.flows.get().map(|flows| printed(flows));
        _ = self.sender.send(Report::Exited(exited, printed));
        Ok(())
    }
}

/// What a process is made of once it has started.
struct Starter {
    starting: oneshot::Sender<Result<Process, Error>>,
    identity: Identity,
    program: Vec<u8>,
    /// Its stdin, and the first input.
    stdin: Option<(Outgoing, Bytes)>,
    open_stdin: bool,
}

/// The driver of a process. All of its times are the sandbox's clock's.
struct Driver {
    inner: Arc<Inner>,
    reports: Reports,
    output: CommandOutput,
    /// What has come on its output streams.
    flows: Vec<Arc<Flow>>,
    since: KernelBaseline,
    began: Instant,
    timeout: Option<Duration>,
    stop_timeout: Duration,
    /// From when on nothing waits for its output to be read.
    hurry_at: Option<Instant>,
    /// When the sandbox is ended, unless the process has.
    kill_at: Option<Instant>,
    is_hurried: bool,
    /// A caller has asked for its end.
    is_stopped: bool,
    /// A signal may have killed it.
    is_killed: bool,
    _held: (Active, Arc<AbortOnDropHandle<()>>, Place),
}

impl Driver {
    async fn run(mut self, starter: Starter) {
        let Starter { starting, identity, program, stdin, open_stdin } = starter;
        let pid = match self.started().await {
            Ok(pid) => pid,
            Err(error) => {
                // The caller may be gone.
                _ = starting.send(Err(error));
                return;
            }
        };
        let (table, identity) = (&self.inner.processes, Identity { pid, ..identity });
        let (process, requests, input) = table.add(identity, open_stdin);
        let sent = stdin.map(|(outgoing, first)| crate::spawn(send(outgoing, first, input)));
        let _input = sent.map(AbortOnDropHandle::new);
        self.record(&process, &program, "process.start", audit::OK);
        if starting.send(Ok(process.clone())).is_err() {
            // No caller knows that it was started.
            self.stop();
        }
        let answer = self.pump(&process, requests).await;
        self.end(&process, &program, answer).await;
    }

    /// Waits until its program is executed.
    async fn started(&mut self) -> Result<u32, Error> {
        let inner = self.inner.clone();
        let breach = match inner.clock.timeout(START_TIMEOUT, self.reports.next()).await {
            Some(Report::Started(pid)) => return Ok(pid),
            Some(Report::Answered(Err(CallError::Refused(_)))) if printed(&self.flows) > 0 => {
                "output of a program that it did not begin".to_owned()
            }
            Some(Report::Answered(Err(CallError::Refused(mut source))))
                if never_ran(source.kind()) =>
            {
                inner.redactions.text(&mut source.message);
                return Err(Error::ExecFailed { source });
            }
            Some(Report::Answered(Err(CallError::Refused(source)))) => {
                format!("an error of a program that it did not begin: {source}")
            }
            Some(Report::Answered(Err(CallError::Over))) => return Err(inner.why_ended().await),
            Some(Report::Answered(Err(CallError::TooLarge(error)))) => {
                return Err(Error::Command { reason: error.to_string() });
            }
            // The session lets neither through.
            Some(Report::Exited(..)) => "the end of a program that it did not begin".to_owned(),
            Some(Report::Answered(Ok(_))) => {
                "an answer about a program that it did not begin".to_owned()
            }
            None => {
                inner.abandon("a program was not executed in time").await;
                return Err(inner.why_ended().await);
            }
        };
        inner.session.breach(breach);
        Err(inner.why_ended().await)
    }

    /// Takes its output and serves requests until the answer, which comes when nothing of it is left.
    async fn pump(
        &mut self,
        process: &Process,
        mut requests: mpsc::Receiver<Request>,
    ) -> Result<ExecReply, CallError> {
        let inner = self.inner.clone();
        let mut over = std::pin::pin!(inner.session.ended());
        let (mut pieces, mut passes_at) = (VecDeque::new(), inner.clock.now());
        let (mut exit, mut stopped, mut is_read) = (None::<(Exited, u64)>, None, false);
        let (mut is_silent, mut answer) = (false, None);
        loop {
            if let Some((exited, printed)) = exit
                && self.output.taken() >= printed
            {
                exit = None;
                self.output.flush();
                while let Some(event) = self.output.ready() {
                    pieces.extend(split(event));
                }
                pieces.push_back(ExecutionEvent::Exited(process_end(exited.end)));
                stopped = process_stop(exited.stopped);
            }
            let is_reported = is_read && pieces.is_empty() && exit.is_none();
            if is_reported && !is_silent {
                is_silent = true;
                process.silent();
            }
            if is_reported && let Some(answer) = answer.take() {
                return answer;
            }
            let is_hurried = self.is_hurried;
            let next = pieces.front().map(length);
            let room = or_never(next.map(async |length| {
                if !is_hurried {
                    inner.clock.sleep_until(passes_at).await;
                    process.room(length, &inner.clock).await;
                }
            }));
            let late_at = self.hurry_at.filter(|_| !is_hurried).or(self.kill_at);
            let late = or_never(late_at.map(|at| inner.clock.sleep_until(at)));
            tokio::select! {
                biased;
                Some(request) = requests.recv() => self.serve(process, request),
                report = self.reports.next(), if exit.is_none() && answer.is_none() => match report {
                    // It has.
                    Report::Started(_) => {}
                    Report::Exited(exited, by_then) => {
                        exit = Some((exited, by_then.unwrap_or_else(|| printed(&self.flows))));
                    }
                    Report::Answered(it) => answer = Some(it),
                },
                _ = &mut over, if !is_hurried => self.is_hurried = true,
                () = late => match is_hurried || self.hurry_at.is_none() {
                    // The agent kills it at its timeout.
                    false => (self.is_hurried, self.is_killed) = (true, true),
                    true => {
                        self.kill_at = None;
                        inner.abandon("a process did not end when it was to").await;
                    }
                },
                () = room => match pieces.pop_front() {
                    Some(ExecutionEvent::Exited(end)) => self.exited(process, end, stopped).await,
                    Some(piece) => process.push(piece),
                    None => {}
                },
                event = self.output.next(), if pieces.is_empty() && !is_read => match event {
                    Some(event) => {
                        pieces.extend(split(event));
                        let (bytes, now) = (pieces.iter().map(length).sum(), inner.clock.now());
                        passes_at = match process.has_waiting_reader() {
                            true => now,
                            false => inner.processes.unread(bytes, now),
                        };
                    }
                    None => is_read = true,
                },
            }
        }
    }

    /// Its program has ended.
    async fn exited(&self, process: &Process, end: ProcessEnd, stopped: Option<ProcessStop>) {
        let is_kill = end == ProcessEnd::Signal(SIGKILL) && !self.is_killed;
        let out_of_memory = match is_kill {
            true => self.inner.oom_since(&self.since).await,
            false => Some(false),
        };
        process.exited(end, stopped, out_of_memory);
    }

    /// The agent has answered, or is gone.
    async fn end(self, process: &Process, program: &[u8], answer: Result<ExecReply, CallError>) {
        let answer = match answer {
            Ok(reply) => match self.check(process, &reply) {
                Ok(()) => Some(reply),
                Err(what) => {
                    self.inner.session.breach(what);
                    None
                }
            },
            Err(CallError::Refused(error)) if error.kind() == ErrorKind::Internal => {
                // The kernel did not end it. It ends with the sandbox.
                self.inner.abandon("a process cannot be killed").await;
                None
            }
            Err(CallError::Refused(error)) => {
                self.inner.session.breach(format!("an error of a process that ran: {error}"));
                None
            }
            Err(CallError::Over | CallError::TooLarge(_)) => None,
        };
        let stopped = process_stop(answer.as_ref().and_then(|reply| reply.stopped));
        let used = answer.map(|ExecReply { cpu_ms, peak_memory_bytes, .. }| Used {
            cpu_ms,
            // Pages of the image may be charged to others.
            peak_memory_bytes: Some(peak_memory_bytes.min(self.inner.limits.memory.as_u64()))
                .filter(|&bytes| bytes > 0),
        });
        let out_of_memory = match used {
            Some(_) => None,
            None => self.inner.ended_out_of_memory().await,
        };
        if !self.is_hurried {
            process.room(MAX_END, &self.inner.clock).await;
        }
        process.ended(stopped, used, out_of_memory);
        let view = process.view();
        let outcome = match (view.exit_code, view.signal, view.stopped) {
            (_, _, Some(ProcessStop::Timeout)) => "timeout",
            (_, _, Some(ProcessStop::Cancelled)) => "cancelled",
            (_, _, Some(ProcessStop::EvasionOfAnother)) => "killed",
            (Some(0), _, None) => audit::OK,
            (None, None, None) if self.inner.is_closing() => "cancelled",
            (None, None, None) => ErrorKind::AgentLost.as_str(),
            _ => "exit",
        };
        self.record(process, program, "process.exit", outcome);
        let bytes = Some(process.written()).filter(|&bytes| bytes > 0);
        if bytes.is_some() {
            let event = Event::new(process.run_id(), "process.stdin");
            self.inner.audit().record(&Event { bytes, ..event });
        }
    }

    /// Names what an honest agent would not answer.
    fn check(&self, process: &Process, reply: &ExecReply) -> Result<(), &'static str> {
        if process.end() != Some(process_end(reply.end)) {
            return Err("the answer has another end than was reported");
        }
        check_reply(reply, &self.flows, |stop| match stop {
            ExecStop::EvasionOfAnother => true,
            // The agent's clock does not stand still.
            ExecStop::Timeout => {
                self.timeout.is_some_and(|it| self.began.elapsed() + CLOCK_SKEW >= it)
            }
            ExecStop::Cancelled => self.is_stopped || self.inner.is_closing(),
            ExecStop::OutputLimit => false,
        })
    }

    fn serve(&mut self, process: &Process, request: Request) {
        let id = self.reports.reply.answer.id;
        match request {
            Request::Attached => {
                self.inner.audit().record(&Event::new(process.run_id(), "process.attach"));
            }
            Request::Signal(signal, to, answer) => {
                self.is_killed |= signal == SignalName::Kill;
                self.inner.audit().record(&Event::new(process.run_id(), "process.signal"));
                self.control(Signal { id, signal, to }, answer);
            }
            Request::Resize(size, answer) => {
                self.control(Resize { id, cols: size.cols, rows: size.rows }, answer);
            }
            Request::Stop => self.stop(),
        }
    }

    /// Asks the agent for something that it does at once, in a separate task.
    fn control<C>(&self, request: C, answer: Answer)
    where
        C: Call<Reply = ControlReply> + Send + 'static,
    {
        let inner = self.inner.clone();
        crate::spawn(async move {
            let result = match inner.refusal() {
                Some(error) => Err(error),
                None => {
                    let why = "a signal to a process was not answered";
                    let call = inner.session.call(request);
                    let replied = inner.answered(CONTROL_TIMEOUT, why, call).await;
                    replied.map(|ControlReply { found }| found)
                }
            };
            // The caller may be gone.
            _ = answer.send(result);
        });
    }

    /// Asks the agent to end it: the second time at once.
    fn stop(&mut self) {
        let at_once = std::mem::replace(&mut self.is_stopped, true);
        (self.is_hurried, self.is_killed) = (true, true);
        let grace = if at_once { Duration::ZERO } else { self.stop_timeout };
        let kill_at = self.inner.clock.now() + grace + GRACE;
        self.kill_at = Some(self.kill_at.map_or(kill_at, |at| at.min(kill_at)));
        let (inner, cancel) =
            (self.inner.clone(), Cancel { id: self.reports.reply.answer.id, at_once });
        // In a separate task: an agent that does not read must not delay the end.
        crate::spawn(async move { _ = inner.session.call(cancel).await });
    }

    fn record(&self, process: &Process, program: &[u8], operation: &str, outcome: &str) {
        let duration = Some(self.inner.clock.now() - self.began);
        let event = Event::new(process.run_id(), operation);
        let event = Event { program: Some(program), outcome, duration, ..event };
        self.inner.audit().record(&event);
    }
}

/// Why the sandbox ended a process, if the agent says that it did.
fn process_stop(stopped: Option<ExecStop>) -> Option<ProcessStop> {
    match stopped? {
        ExecStop::Timeout => Some(ProcessStop::Timeout),
        ExecStop::Cancelled => Some(ProcessStop::Cancelled),
        ExecStop::EvasionOfAnother => Some(ProcessStop::EvasionOfAnother),
        ExecStop::OutputLimit => None,
    }
}

const fn process_end(end: ExecEnd) -> ProcessEnd {
    match end {
        ExecEnd::Exited(code) => ProcessEnd::Code(code),
        ExecEnd::Signaled(signal) => ProcessEnd::Signal(signal),
    }
}

/// Output in pieces that fit in one event.
fn split(event: ExecutionEvent) -> impl Iterator<Item = ExecutionEvent> {
    let (stream, mut data) = match event {
        ExecutionEvent::Output { stream, data } => (Some(stream), data),
        _ => (None, Bytes::new()),
    };
    std::iter::from_fn(move || {
        let stream = stream.filter(|_| !data.is_empty())?;
        let data = data.split_to(data.len().min(MAX_OUTPUT_EVENT_BYTES));
        Some(ExecutionEvent::Output { stream, data })
    })
}

fn length(event: &ExecutionEvent) -> u64 {
    match event {
        ExecutionEvent::Output { data, .. } => data.len() as u64,
        _ => 0,
    }
}

/// Sends a process its input, first this and then what is written, as it reads it.
async fn send(mut outgoing: Outgoing, first: Bytes, input: Option<Input>) -> Result<(), Ended> {
    outgoing.send_all(&first, Fin::More).await?;
    if let Some(mut input) = input {
        while let Some(written) = input.recv().await {
            outgoing.send_all(&written.bytes, Fin::More).await?;
        }
    }
    outgoing.send_all(&[], Fin::Nothing).await
}

#[cfg(test)]
mod tests;
