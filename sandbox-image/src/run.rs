//! One run of a script: its input, its timeout, and its one answer.
//!
//! A run has two threads. The script's thread runs the VM and does nothing else. The supervisor
//! waits for it, enforces the timeout, and sends the reply: when the script has ended; or, if the
//! VM was asked to stop and did not return (it may be in C code without interrupts), without it.
//! After that the VM's thread can never be trusted again, and the process exits.
//!
//! ```text
//!   run ──> running ── script ends ──────────────────────> answer, idle
//!              │
//!              └─ deadline or cancel: flag ── script ends ─> answer, idle
//!                                      └──── GRACE ───────> flush, answer, exit(0)
//! ```

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sandbox_protocol::WireError;
use sandbox_protocol::message::{
    AgentUsage, CallResult, Done, IoErrors, Limits, Run, RunEnd, RunReply,
};

use crate::calls::HostCalls;
use crate::exec::Programs;
use crate::files::Files;
use crate::log::LogSink;
use crate::luau::RunContext;
use crate::outbox::{Outbox, Replier};
use crate::proc::Proc;
use crate::stop::{StopFlag, StopReason, no_thread};
use crate::{luau, source};

/// Stack of a thread that runs the VM or the compiler, which recurse in C.
pub const STACK_BYTES: usize = 16 << 20;
/// How long a script may take to stop on request. The controller waits a second.
const GRACE: Duration = Duration::from_millis(250);
/// The longest timeout of a run, even if a longer one was requested.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Starts runs, one at a time, and ends them.
pub struct Runner {
    state: Mutex<State>,
    outbox: Arc<Outbox>,
    replier: Replier,
    proc: Arc<Proc>,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    /// The id of a `shutdown` that waits for the run to end.
    shutdown: Option<u64>,
}

struct Running {
    id: u64,
    stop: Arc<StopFlag>,
    calls: Arc<HostCalls>,
    events: Sender<Event>,
}

impl Running {
    fn cancel(&self) {
        self.stop.stop(StopReason::Cancelled);
        // If the run ends at this moment nothing listens, which is fine.
        _ = self.events.send(Event::Cancel);
    }
}

enum Event {
    Ended(RunEnd),
    Cancel,
}

/// A run that is about to start.
pub struct Job {
    /// The request's id.
    pub id: u64,
    /// The script.
    pub run: Run,
    /// When the request was received.
    pub accepted: Instant,
    /// The sandbox's limits.
    pub limits: Limits,
    /// How `io` reports OS errors.
    pub io_errors: IoErrors,
    /// The files, if io is enabled.
    pub files: Option<Arc<Files>>,
    /// The commands, if the sandbox supports them.
    pub programs: Option<Arc<Programs>>,
}

impl Runner {
    /// An idle runner.
    pub fn new(outbox: Arc<Outbox>, replier: Replier, proc: Arc<Proc>) -> Self {
        Self { state: Mutex::default(), outbox, replier, proc }
    }

    /// Starts a run, whose answer is sent when it ends.
    ///
    /// # Errors
    ///
    /// `busy` while another one is in progress; `internal` if a thread cannot be started.
    pub fn start(self: &Arc<Self>, job: Job) -> Result<(), WireError> {
        let mut state = self.state.lock().unwrap();
        if state.shutdown.is_some() {
            return Err(WireError::busy("the session is ending"));
        }
        if state.running.is_some() {
            return Err(WireError::busy("another run is in progress"));
        }
        let (sender, events) = channel();
        let stop = Arc::new(StopFlag::default());
        let calls = Arc::new(HostCalls::new(self.outbox.clone(), job.id));
        let (of_job, events_of_job) = (calls.clone(), sender.clone());
        let running = Running { id: job.id, stop: stop.clone(), calls, events: events_of_job };
        let runner = self.clone();
        std::thread::Builder::new()
            .name("run".to_owned())
            .spawn(move || runner.conduct(job, stop, of_job, sender, &events))
            .map_err(no_thread)?;
        state.running = Some(running);
        Ok(())
    }

    /// Ends the run with this id early; returns whether there was one.
    pub fn cancel(&self, id: u64) -> bool {
        let state = self.state.lock().unwrap();
        let running = state.running.as_ref().filter(|running| running.id == id);
        running.map(Running::cancel).is_some()
    }

    /// Delivers the result of a script's call; returns whether the script waits for it.
    pub fn take_result(&self, result: CallResult) -> bool {
        let state = self.state.lock().unwrap();
        state.running.as_ref().is_some_and(|running| running.calls.take(result))
    }

    /// Answers `shutdown` and exits, after a run in progress has been cancelled and answered.
    pub fn shutdown(&self, id: u64) {
        let mut state = self.state.lock().unwrap();
        if state.shutdown.is_some() {
            let error = WireError::busy("the session is ending");
            return self.replier.answer::<Done>(id, Err(error));
        }
        state.shutdown = Some(id);
        match &state.running {
            Some(running) => running.cancel(),
            None => self.leave(id),
        }
    }

    /// A run from its start to its answer.
    fn conduct(
        &self,
        job: Job,
        stop: Arc<StopFlag>,
        calls: Arc<HostCalls>,
        sender: Sender<Event>,
        events: &Receiver<Event>,
    ) {
        let Job { id, run, accepted, limits, io_errors, files, programs } = job;
        let Run { source, args, secrets, timeout_ms, seed, now, tools } = run;
        let log = Arc::new(LogSink::new(self.outbox.clone(), id, &limits));
        let deadline = accepted + Duration::from_millis(timeout_ms).min(LONGEST);
        let context = RunContext {
            files: files.clone(),
            io_errors,
            log: log.clone(),
            stop: stop.clone(),
            limits,
            programs: programs.clone(),
            seed,
            now,
            secrets,
            calls,
            has_tools: tools,
        };
        let script = crate::threads::start("script", STACK_BYTES, move || {
            let end = source::prepare(&source)
                .map_or_else(RunEnd::Failed, |text| luau::run(text, &args, context));
            // The supervisor may have stopped waiting; then the process is about to exit.
            _ = sender.send(Event::Ended(end));
        });
        if let Err(error) = script {
            return self.finish(id, Err(no_thread(error)));
        }
        let end = wait(events, &stop, deadline);
        if end.is_none()
            && let Some(files) = &files
        {
            // The run has failed anyway.
            _ = files.flush_all_best_effort();
        }
        let given_up = end.is_none();
        let reply = RunReply {
            end: end.unwrap_or_else(|| RunEnd::Failed(stop.reason().error())),
            logs_truncated: log.is_truncated(),
            usage: self.usage(files.as_deref(), programs.as_deref()),
        };
        if given_up { self.give_up(id, reply) } else { self.finish(id, Ok(reply)) }
    }

    fn finish(&self, id: u64, result: Result<RunReply, WireError>) {
        let mut shutdown = None;
        // The next run may start before this answer is sent, but cannot send anything before it.
        self.outbox.answer(id, result, || {
            let mut state = self.state.lock().unwrap();
            state.running = None;
            shutdown = state.shutdown;
        });
        if let Some(id) = shutdown {
            self.leave(id);
        }
    }

    /// The run stays `running`, so that no other one starts in this process.
    fn give_up(&self, id: u64, reply: RunReply) {
        self.outbox.answer_and_silence(id, Ok(reply));
        match self.state.lock().unwrap().shutdown {
            Some(id) => self.leave(id),
            None => self.replier.exit(),
        }
    }

    fn usage(&self, files: Option<&Files>, programs: Option<&Programs>) -> AgentUsage {
        let own = u64::try_from(self.proc.cpu_time().as_millis()).unwrap_or(u64::MAX);
        AgentUsage {
            cpu_ms: own.saturating_add(programs.map_or(0, Programs::scripts_cpu)),
            peak_memory_bytes: self.proc.peak_memory(),
            written_bytes: files.map_or(0, Files::written),
        }
    }

    fn leave(&self, shutdown: u64) {
        self.replier.answer(shutdown, Ok(Done {}));
        self.replier.exit();
    }
}

/// Waits for the script to end, and requests its stop when its deadline passes or it was cancelled.
/// `None` if it has not returned within [`GRACE`] after that.
fn wait(events: &Receiver<Event>, stop: &StopFlag, deadline: Instant) -> Option<RunEnd> {
    let mut until = deadline;
    let mut stopping = false;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(Event::Ended(end)) => return Some(end),
            // The flag is already set.
            Ok(Event::Cancel) => {}
            Err(RecvTimeoutError::Timeout) if stopping => return None,
            Err(RecvTimeoutError::Timeout) => stop.stop(StopReason::Timeout),
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        if !stopping {
            stopping = true;
            until = Instant::now() + GRACE;
        }
    }
}
