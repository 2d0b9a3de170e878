//! The commands and watches that the controller has requested, and the one thread that serves them all.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};
use sandbox_protocol::limits::{MAX_COMMAND_BYTES, MAX_COMMANDS, MAX_TERMINALS, MAX_WATCHES};
use sandbox_protocol::message::{
    self, Done, Exec, ExecEnd, ExecReply, ExecStop, Exited, SignalName, SignalTarget, Started,
    Watched as WatchIsOn,
};
use sandbox_protocol::operation::Way;
use sandbox_protocol::{FromAgent, WireError};
use serde::Serialize;

use super::changes::{Answers, Asked, Reading};
use super::poller::{Poller, Source};
use super::programs::Programs;
use super::pty::{self, Terminal};
use super::stdio::{Outputs, no_descriptor};
use super::watch::{Bounds, Console, Input, LONGEST, Left, Output, Process, Step, Task, Watch};
use crate::files::{self, Files, Watches};
use crate::outbox::Outbox;
use crate::stop::{StopFlag, StopReason, no_thread};
use crate::stream::{Stream, Streams};
use crate::threads::{self, ThreadJob};
use crate::wake::Wake;

/// Stack size of the thread.
const STACK_BYTES: usize = 256 << 10;
/// A turn of the thread lasts at least [`TURN`] with this many commands, and twice that with twice as many or more: the
/// agent and the controller wake about once for all that has come meanwhile, and not for each line of each command.
const MANY: usize = 8;
const TURN: Duration = Duration::from_millis(1);
/// The thread's own number in its poller: that of no command.
const OWN: u64 = 0;

/// The commands of requests.
#[derive(Clone)]
pub struct Execs(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    outbox: Arc<Outbox>,
    streams: Arc<Streams>,
}

#[derive(Default)]
struct State {
    commands: HashMap<u64, Arc<Entry>>,
    /// What the thread has not taken yet.
    accepted: Vec<Job>,
    /// Once something was watched.
    watches: Option<Arc<Watches>>,
    /// What ends each watch.
    watching: HashMap<u64, Arc<StopFlag>>,
    /// What the thread has not taken yet.
    asked: Vec<Asked>,
    /// Wakes the thread, once there is one.
    thread: Option<Arc<Wake>>,
    /// Called when no command or watch is in progress any more.
    last: Vec<Box<dyn FnOnce() + Send>>,
    closing: bool,
}

/// A command in progress, as control requests find it.
struct Entry {
    programs: Arc<Programs>,
    stop: Arc<StopFlag>,
    left: Left,
    /// The agent's end of its terminal.
    terminal: Option<Arc<OwnedFd>>,
    /// Once the program has been executed.
    process: OnceLock<Process>,
}

/// A command for the thread.
struct Job {
    exec: Exec,
    accepted: Instant,
    output_bytes: u64,
    outputs: Outputs,
    console: WireConsole,
    wake: Arc<Wake>,
}

impl Execs {
    /// Starts without commands.
    pub fn new(outbox: Arc<Outbox>, streams: Arc<Streams>) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), outbox, streams }))
    }

    /// Starts the command of the request `id`. Its answer is sent when none of its processes is
    /// left.
    ///
    /// # Errors
    ///
    /// `invalid_request` if the request contradicts itself, the command is too long, or a stream is open;
    /// `busy` if the session ends, there are too many commands, or no thread, terminal or descriptor is
    /// available.
    pub fn start(
        &self,
        id: u64,
        exec: Exec,
        accepted: Instant,
        programs: Arc<Programs>,
        output_bytes: u64,
    ) -> Result<(), WireError> {
        check(&exec, &programs)?;
        // Before it is `busy`, which would say that it may be tried again.
        let size = exec.pty.as_ref().map(pty::checked).transpose()?;
        let mut state = self.0.state.lock().unwrap();
        state.admit(size.is_some())?;
        let wake = Arc::new(Wake::new().map_err(no_descriptor)?);
        let outputs = match size {
            Some(size) => Outputs::Terminal(Terminal::open(size)?),
            None if exec.stderr.is_none() => Outputs::Merged,
            None => Outputs::Apart,
        };
        let entry = Arc::new(Entry {
            programs,
            stop: Arc::new(StopFlag::waking(&wake)),
            left: if exec.kept { Left::Kept } else { Left::Killed },
            terminal: match &outputs {
                Outputs::Terminal(terminal) => Some(terminal.master.clone()),
                Outputs::Merged | Outputs::Apart => None,
            },
            process: OnceLock::new(),
        });
        let console = WireConsole::open(&self.0, id, &exec, &entry, &wake)?;
        let thread = self.0.thread(&mut state)?;
        state.commands.insert(id, entry);
        state.accepted.push(Job { exec, accepted, output_bytes, outputs, console, wake });
        thread.wake();
        Ok(())
    }

    /// Accepts the watch `id`, and returns the work that begins it, in at most `time`. Its answer is sent
    /// when it has ended.
    ///
    /// # Errors
    ///
    /// `busy` if the session ends, there are too many watches, or no thread or descriptor is available.
    pub fn watch(
        &self,
        id: u64,
        request: message::Watch,
        files: Files,
        time: Duration,
    ) -> Result<ThreadJob, WireError> {
        let mut state = self.0.state.lock().unwrap();
        if state.closing {
            return Err(WireError::busy("the session ends"));
        }
        if state.watching.len() >= MAX_WATCHES {
            return Err(WireError::busy(format!("{MAX_WATCHES} directories are watched already")));
        }
        let refused = |errno| {
            let message = format!("the kernel watches no directories for this user now: {errno}");
            WireError::busy(message)
        };
        let watches = match state.watches.clone() {
            Some(watches) => watches,
            None => state.watches.insert(Arc::new(Watches::new().map_err(refused)?)).clone(),
        };
        self.0.thread(&mut state)?;
        let stop = Arc::new(StopFlag::default());
        state.watching.insert(id, stop.clone());
        let shared = self.0.clone();
        Ok(Box::new(move || {
            let time = files::Watch::new(stop.clone(), time);
            match watches.begin(id, Arc::new(files), &request, &time) {
                Ok(()) => {
                    shared.outbox.notify(&FromAgent::Watched(WatchIsOn { request: id }));
                    match watches.turn_on(id, &stop) {
                        true => shared.state.lock().unwrap().ask(Asked::Send),
                        false => shared.answer(id, Left::Kept, Ok(Done {})),
                    }
                }
                Err(error) => {
                    let error = WireError::new(error.kind, error.to_string());
                    shared.answer::<Done>(id, Left::Kept, Err(error));
                }
            }
        }))
    }

    /// Answers the `flush` with this id once all changes so far are sent; `false` if nothing is watched.
    pub fn flush(&self, id: u64) -> bool {
        let mut state = self.0.state.lock().unwrap();
        let is_watching = !state.watching.is_empty();
        if is_watching {
            state.ask(Asked::Flush(id));
        }
        is_watching
    }

    /// Ends the command or the watch of this request early; returns whether there was one.
    pub fn cancel(&self, id: u64, at_once: bool) -> bool {
        let mut state = self.0.state.lock().unwrap();
        if state.end_watch(id) {
            return true;
        }
        drop(state);
        let Some(entry) = self.find(id) else { return false };
        match at_once {
            true => entry.stop.stop_at_once(StopReason::Cancelled),
            false => entry.stop.stop(StopReason::Cancelled),
        }
        true
    }

    /// Sends a signal to processes of a command; returns whether there was one.
    pub fn signal(&self, message::Signal { id, signal, to }: message::Signal) -> bool {
        self.find(id).is_some_and(|entry| entry.signal(named(signal), to))
    }

    /// Sets the size of a command's terminal; returns whether there was one.
    ///
    /// # Errors
    ///
    /// `invalid_request` for a size that no terminal has.
    pub fn resize(
        &self,
        message::Resize { id, cols, rows }: message::Resize,
    ) -> Result<bool, WireError> {
        let entry = self.find(id);
        let terminal = entry.as_ref().and_then(|entry| entry.terminal.as_ref());
        terminal.map_or(Ok(false), |terminal| pty::resize(terminal, cols, rows))
    }

    fn find(&self, id: u64) -> Option<Arc<Entry>> {
        self.0.state.lock().unwrap().commands.get(&id).cloned()
    }

    /// Ends all commands and watches at once, refuses new ones, and calls `then` when all are answered.
    pub fn end(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock().unwrap();
        state.closing = true;
        for entry in state.commands.values() {
            entry.stop.stop_at_once(StopReason::Cancelled);
        }
        let watching: Vec<u64> = state.watching.keys().copied().collect();
        for id in watching {
            state.end_watch(id);
        }
        if state.is_quiet() {
            drop(state);
            then();
        } else {
            state.last.push(Box::new(then));
        }
    }
}

fn check(exec: &Exec, programs: &Programs) -> Result<(), WireError> {
    let problem = if exec.command_bytes() > MAX_COMMAND_BYTES {
        format!(
            "the command and its environment are longer than {MAX_COMMAND_BYTES} bytes, each \
             word counted with eight more"
        )
    } else if exec.pty.is_some() && exec.stderr.is_some() {
        "a terminal has no stderr of its own".to_owned()
    } else if !exec.kept && exec.timeout_ms.is_none() {
        "only a kept command may have no timeout".to_owned()
    } else if exec.kept && !programs.context.marks.tell_apart() {
        "no command can be kept: this kernel cannot distinguish their processes".to_owned()
    } else {
        return Ok(());
    };
    Err(WireError::invalid(problem))
}

impl State {
    /// Whether no command or watch is in progress.
    fn is_quiet(&self) -> bool {
        self.commands.is_empty() && self.watching.is_empty()
    }

    /// Has the thread do something.
    fn ask(&mut self, asked: Asked) {
        self.asked.push(asked);
        self.thread.iter().for_each(|thread| thread.wake());
    }

    /// Ends the watch of this request; returns whether there was one.
    fn end_watch(&mut self, id: u64) -> bool {
        let Some(stop) = self.watching.get(&id) else { return false };
        // One that has not begun ends by this, and another one by the thread.
        stop.stop(StopReason::Cancelled);
        self.ask(Asked::End(id));
        true
    }

    fn admit(&self, has_terminal: bool) -> Result<(), WireError> {
        if self.closing {
            return Err(WireError::busy("the session ends"));
        }
        if self.commands.len() >= MAX_COMMANDS {
            return Err(WireError::busy(format!(
                "{MAX_COMMANDS} commands are in progress already"
            )));
        }
        let terminals = self.commands.values().filter(|entry| entry.terminal.is_some()).count();
        if has_terminal && terminals >= MAX_TERMINALS {
            return Err(WireError::busy(format!("{MAX_TERMINALS} terminals are open already")));
        }
        Ok(())
    }
}

impl Entry {
    /// A process of another command never gets it: the program is not reaped meanwhile, and each of the
    /// others is held while its mark is checked.
    fn signal(&self, signal: Signal, to: SignalTarget) -> bool {
        let Some(Process { death, tree }) = self.process.get() else { return false };
        let program = |send: fn(Pid, Signal) -> rustix::io::Result<()>| {
            let sent = self.programs.reaper.holding(death, |pid| send(pid, signal).is_ok());
            sent.unwrap_or(false)
        };
        let is_of = |group: Pid| move |pid: Pid| getpgid(Some(pid)) == Ok(group);
        match to {
            SignalTarget::Process => program(kill_process),
            // At once, while its leader is there.
            SignalTarget::Group => {
                program(kill_process_group) || tree.signal(&[signal], is_of(death.pid))
            }
            SignalTarget::Foreground => {
                let group = self.terminal.as_ref().and_then(pty::foreground);
                group.is_some_and(|group| tree.signal(&[signal], is_of(group)))
            }
            SignalTarget::Tree => tree.signal(&[signal], |_| true),
        }
    }
}

const fn named(signal: SignalName) -> Signal {
    match signal {
        SignalName::Hup => Signal::HUP,
        SignalName::Int => Signal::INT,
        SignalName::Quit => Signal::QUIT,
        SignalName::Kill => Signal::KILL,
        SignalName::Usr1 => Signal::USR1,
        SignalName::Usr2 => Signal::USR2,
        SignalName::Term => Signal::TERM,
        SignalName::Cont => Signal::CONT,
        SignalName::Stop => Signal::STOP,
        SignalName::Tstp => Signal::TSTP,
        SignalName::Winch => Signal::WINCH,
    }
}

impl Shared {
    /// What wakes the thread, which is started if there is none.
    fn thread(self: &Arc<Self>, state: &mut State) -> Result<Arc<Wake>, WireError> {
        Ok(match state.thread.clone() {
            Some(thread) => thread,
            None => state.thread.insert(self.start_thread()?).clone(),
        })
    }

    /// Starts the thread; returns what wakes it.
    fn start_thread(self: &Arc<Self>) -> Result<Arc<Wake>, WireError> {
        let wake = Arc::new(Wake::new().map_err(no_descriptor)?);
        let poller = Poller::new().map_err(no_descriptor)?;
        poller.add(OWN, Source::Wake, &*wake).map_err(no_descriptor)?;
        let shared = self.clone();
        let run = move || {
            let watched = BTreeMap::new();
            Supervisor { shared, poller, watched, last: OWN, reading: None }.run()
        };
        threads::start("exec", STACK_BYTES, run).map_err(no_thread)?;
        Ok(wake)
    }

    /// Answers a request that is over, of a command or a watch.
    fn answer<T: Serialize>(&self, id: u64, left: Left, result: Result<T, WireError>) {
        let mut last = Vec::new();
        let before = || {
            let mut state = self.state.lock().unwrap();
            state.commands.remove(&id);
            state.watching.remove(&id);
            if state.is_quiet() {
                last = std::mem::take(&mut state.last);
            }
        };
        match left {
            Left::Killed => self.outbox.answer(id, result, before),
            Left::Kept => self.outbox.answer_kept(id, result, before),
        }
        last.into_iter().for_each(|last| last());
    }
}

/// The thread.
struct Supervisor {
    shared: Arc<Shared>,
    poller: Poller,
    /// By their numbers.
    watched: BTreeMap<u64, Watched>,
    /// The last number that was used.
    last: u64,
    /// Once something was watched.
    reading: Option<Reading>,
}

struct Watched {
    id: u64,
    left: Left,
    watch: Watch<WireConsole>,
    /// When its next step is due, unless something is ready before.
    due: Option<Instant>,
}

impl Supervisor {
    fn run(mut self) -> ! {
        loop {
            let dues = self.watched.values().filter_map(|watched| watched.due);
            let until = dues.chain(self.reading.as_ref().and_then(Reading::due)).min();
            let now = Instant::now();
            for (number, source) in self.poller.wait(until) {
                if source == Source::Changes {
                    self.reading.iter_mut().for_each(Reading::note);
                } else if let Some(watched) = self.watched.get_mut(&number) {
                    watched.watch.note(source);
                    watched.due = Some(now);
                }
            }
            let mut state = self.shared.state.lock().unwrap();
            let accepted = std::mem::take(&mut state.accepted);
            let (asked, watches) = (std::mem::take(&mut state.asked), state.watches.clone());
            drop(state);
            accepted.into_iter().for_each(|job| self.begin(job));
            self.step();
            if let Some(watches) = watches {
                self.report(asked, watches);
            }
            self.shared.outbox.flush();
            // What has more to do goes on at once.
            let is_due = |it: &Watched| it.due.is_some_and(|due| due <= Instant::now());
            let turn = match self.watched.len() / MANY {
                0 => Duration::ZERO,
                1 => TURN,
                _ => 2 * TURN,
            };
            if !turn.is_zero() && !self.watched.values().any(is_due) {
                std::thread::sleep(turn.saturating_sub(now.elapsed()));
            }
        }
    }

    /// Sends what has changed in watched directories.
    fn report(&mut self, asked: Vec<Asked>, watches: Arc<Watches>) {
        let poller = &self.poller;
        let reading = self.reading.get_or_insert_with(|| {
            // Without this event only what is asked for is sent.
            _ = poller.add(OWN, Source::Changes, &*watches);
            Reading::new(watches)
        });
        let Answers { flushed, ended } = reading.step(asked, &self.shared.outbox);
        for id in ended {
            self.shared.answer(id, Left::Kept, Ok(Done {}));
        }
        for id in flushed {
            self.shared.outbox.answer_kept(id, Ok(Done {}), || {});
        }
    }

    fn begin(&mut self, job: Job) {
        self.last += 1;
        let Job { exec, accepted, output_bytes, outputs, console, wake } = job;
        let (id, entry) = (console.id, console.entry.clone());
        let term = exec.pty.as_ref().map(|pty| (&b"TERM"[..], pty.term.as_bytes()));
        let env =
            exec.env.iter().map(|variable| (variable.name.as_bytes(), variable.value.as_bytes()));
        let secrets = exec.secrets.iter().map(|secret| (secret.name.as_bytes(), &*secret.value.0));
        let timeout = exec.timeout_ms.map(Duration::from_millis);
        let is_kept = entry.left == Left::Kept;
        let bounds = Bounds {
            stop: entry.stop.clone(),
            deadline: match is_kept {
                true => timeout.and_then(|timeout| accepted.checked_add(timeout)),
                false => timeout.map(|timeout| accepted + timeout.min(LONGEST)),
            },
            grace: Duration::from_millis(exec.grace_ms).min(LONGEST),
            stop_signal: exec.stop_signal.map_or(Signal::TERM, named),
            output_bytes: if is_kept { u64::MAX } else { output_bytes },
            left: entry.left,
        };
        let task = Task {
            command: &exec.command,
            cwd: exec.cwd.as_ref().map(|cwd| cwd.as_bytes()),
            env: term.into_iter().chain(env).chain(secrets).collect(),
            has_input: exec.stdin.is_some(),
            outputs,
            bounds,
        };
        match Watch::begin(&entry.programs, task, console, &wake, &self.poller, self.last) {
            Ok(watch) => {
                let watched = Watched { id, left: entry.left, watch, due: Some(accepted) };
                self.watched.insert(self.last, watched);
            }
            Err(error) => self.shared.answer::<ExecReply>(id, entry.left, Err(error)),
        }
    }

    /// Lets each command take a step for which it is time.
    fn step(&mut self) {
        let now = Instant::now();
        let (mut over, poller) = (Vec::new(), &self.poller);
        self.watched.retain(|_, watched| {
            if watched.due.is_none_or(|due| due > now) {
                return true;
            }
            match watched.watch.step(poller) {
                Step::Wait(until) => {
                    watched.due = until;
                    true
                }
                Step::Over(result) => {
                    over.push((watched.id, watched.left, result));
                    false
                }
            }
        });
        // Their streams are closed by now, and the proxy has dropped their clients.
        for (id, left, result) in over {
            self.shared.answer(id, left, result);
        }
    }
}

/// A command's console on the wire. Its streams are open as long as it is there.
struct WireConsole {
    shared: Arc<Shared>,
    id: u64,
    entry: Arc<Entry>,
    outputs: [Option<Arc<Stream>>; 2],
    stdin: Option<Arc<Stream>>,
}

impl WireConsole {
    fn open(
        shared: &Arc<Shared>,
        id: u64,
        exec: &Exec,
        entry: &Arc<Entry>,
        wake: &Arc<Wake>,
    ) -> Result<Self, WireError> {
        let mut console = Self {
            shared: shared.clone(),
            id,
            entry: entry.clone(),
            outputs: [None, None],
            stdin: None,
        };
        // On failure, those that were opened are closed with it.
        let open = |number: Option<u32>, way| {
            let open = |number| shared.streams.open(number, way, Some(wake.clone()));
            number.map(open).transpose()
        };
        console.outputs[Output::Stdout as usize] = open(Some(exec.stdout), Way::Out)?;
        console.outputs[Output::Stderr as usize] = open(exec.stderr, Way::Out)?;
        console.stdin = open(exec.stdin, Way::In)?;
        Ok(console)
    }

    fn output(&self, output: Output) -> Option<&Arc<Stream>> {
        self.outputs[output as usize].as_ref()
    }

    fn notify(&self, message: &FromAgent<'_>) {
        if self.entry.left == Left::Kept {
            self.shared.outbox.queue(message);
        }
    }
}

impl Drop for WireConsole {
    fn drop(&mut self) {
        for stream in self.outputs.iter().flatten().chain(&self.stdin) {
            self.shared.streams.close(stream);
        }
    }
}

impl Console for WireConsole {
    fn room(&self, output: Output) -> usize {
        self.output(output).map_or(0, |stream| stream.room())
    }

    fn give(&mut self, output: Output, data: Vec<u8>) {
        if let Some(stream) = self.output(output) {
            stream.send_now(&self.shared.outbox, data, false);
        }
    }

    fn input(&mut self) -> Input {
        let Some(stdin) = &self.stdin else { return Input::End };
        match stdin.receive_now(&self.shared.outbox) {
            Some(Some(piece)) => Input::Piece(piece),
            Some(None) => Input::End,
            None => Input::Later,
        }
    }

    fn started(&mut self, process: Process) {
        let pid = process.death.pid.as_raw_nonzero().get().unsigned_abs();
        _ = self.entry.process.set(process);
        self.notify(&FromAgent::Started(Started { request: self.id, pid }));
    }

    fn exited(&mut self, end: ExecEnd, stopped: Option<ExecStop>) {
        self.notify(&FromAgent::Exited(Exited { request: self.id, end, stopped }));
    }

    /// Sends the last chunk of each output.
    fn end(&mut self) {
        for stream in self.outputs.iter().flatten() {
            stream.send_now(&self.shared.outbox, Vec::new(), true);
        }
    }
}
