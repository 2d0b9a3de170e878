//! Supervises a command from its start until every process that it started has ended: copies its
//! input and output, enforces its timeout, asks its tree to end, and kills it.
//!
//! ```text
//!                         ┌─ bytes, both ways ─┐
//! launching ──> running ──┴────────────────────┴── the program ends ──> killing ──> draining ──> reply
//!      │           │  └─ kept: the program ends ── running, until nothing is left ──────▲
//!      │           ├─ deadline, cancel: a signal to the tree, its grace, nothing is left┤
//!      │           └─ the grace is over, too many bytes, a second cancel ──> killing ───┘
//!      └─ deadline, cancel: killed, then running
//! ```
//!
//! A [`Watch`] never blocks: its driver waits for its descriptors with a [`Poller`], tells it what is
//! ready, and lets it take a step. So one thread supervises all commands of requests
//! ([`table`](super::table)), and a script's thread its own. A watch never reads more than the console
//! accepts: the rest stays in the pipe, and the command blocks.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Signal, kill_process};
use sandbox_protocol::limits::MAX_CHUNK_BYTES;
use sandbox_protocol::message::{Command, ExecEnd, ExecReply, ExecStop};
use sandbox_protocol::{ErrorKind, WireError};

use super::command::{Prepared, SpawnError};
use super::poller::{Poller, Source};
use super::programs::{Programs, RunningPermit};
use super::pty::MOST_HELD;
use super::reaper::Death;
use super::signs::{Tail, signs};
use super::spawn::{Beginning, Launch, spawn};
use super::stdio::{Ends, Outputs, no_descriptor};
use super::tree::{Chase, Chased, Tree};
use crate::stop::{StopFlag, StopReason};
use crate::wake::Wake;

/// The longest timeout of a command that is not kept, even if a longer one was requested.
pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// How many pieces of input are written before anything else is checked.
const PIECES: usize = 4;
/// How long after a command's deadline its last bytes may wait for credit. The controller starts to
/// discard unwanted output half a second after the deadline.
const LAST_BYTES: Duration = Duration::from_millis(1500);
/// The shortest time between two checks of whether the processes that a program left behind have
/// ended, and between two tries to type into a terminal that takes no more.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// The longest, though no event said that any has ended.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);
/// How many times, and at which interval, execution of a file that is still open for writing is
/// retried: a command that starts at the same moment holds it open for that long.
const BUSY_TRIES: u32 = 20;
const BUSY_WAIT: Duration = Duration::from_millis(5);

/// One of a command's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Descriptor 1; or a terminal.
    Stdout = 0,
    /// Descriptor 2, if it is another one.
    Stderr = 1,
}

impl Output {
    /// Both.
    const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];
}

/// Where a command's output goes, and where its input comes from. A change wakes the command's
/// [`Wake`]; no method blocks.
pub trait Console {
    /// How many bytes can be written now.
    fn room(&self, output: Output) -> usize;
    /// Sends output of the command, at most as much as there is credit for.
    fn give(&mut self, output: Output, data: Vec<u8>);
    /// Returns the next piece of its input.
    fn input(&mut self) -> Input;
    /// The program has been executed. Called once, before anything else, unless it never is.
    fn started(&mut self, _process: Process) {}
    /// The program has ended, and what it printed has been given.
    fn exited(&mut self, _end: ExecEnd, _stopped: Option<ExecStop>) {}
    /// All has been given.
    fn end(&mut self) {}
}

/// The next piece of a command's input.
#[derive(Debug)]
pub enum Input {
    /// A piece.
    Piece(Vec<u8>),
    /// Nothing available yet.
    Later,
    /// End of input.
    End,
}

/// A program that has been executed, and what it starts.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its exit.
    pub death: Arc<Death>,
    /// All processes that it starts.
    pub tree: Arc<Tree>,
}

/// The parameters of a command.
#[derive(Debug)]
pub struct Task<'a> {
    /// The command.
    pub command: &'a Command,
    /// The working directory, as it was written.
    pub cwd: Option<&'a [u8]>,
    /// Names and values.
    pub env: Vec<(&'a [u8], &'a [u8])>,
    /// Whether its console provides input.
    pub has_input: bool,
    /// Where it prints.
    pub outputs: Outputs,
    /// Its limits.
    pub bounds: Bounds,
}

/// The limits of a command.
#[derive(Debug)]
pub struct Bounds {
    /// Ends it early.
    pub stop: Arc<StopFlag>,
    /// Its deadline.
    pub deadline: Option<Instant>,
    /// How long its processes may go on after they were asked to end.
    pub grace: Duration,
    /// How they are asked.
    pub stop_signal: Signal,
    /// The most bytes of both outputs together.
    pub output_bytes: u64,
    /// What becomes of the processes that it leaves behind.
    pub left: Left,
}

/// What becomes of the processes that a program leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// They are killed.
    Killed,
    /// They belong to the command, which is over when they are.
    Kept,
}

impl Bounds {
    /// What must end the command by now, if anything.
    fn reached(&self) -> Option<ExecStop> {
        match self.stop.reason() {
            StopReason::Cancelled => Some(ExecStop::Cancelled),
            StopReason::Timeout => Some(ExecStop::Timeout),
            StopReason::None if self.deadline.is_some_and(|at| at <= Instant::now()) => {
                Some(ExecStop::Timeout)
            }
            StopReason::None => None,
        }
    }
}

/// A command in progress.
pub struct Watch<C> {
    console: C,
    bounds: Bounds,
    permit: RunningPermit,
    tree: Arc<Tree>,
    wake: Arc<Wake>,
    /// That of its descriptors.
    number: u64,
    phase: Phase,
    tries: u32,
    death: Option<Arc<Death>>,
    ends: Ends,
    /// What is ready: the outputs to be read, and the input to be written.
    ready: [bool; 2],
    is_input_ready: bool,
    given: [u64; 2],
    /// Input for which the pipe was too full. A script's input is one piece: taking bytes from its
    /// front must not move the rest.
    piece: VecDeque<u8>,
    stopped: Option<ExecStop>,
    /// When its processes are killed that were asked to end.
    killed_at: Option<Instant>,
    /// There was more output than it may have.
    is_full: bool,
    /// The program's end, once it was seen.
    end: Option<ExecEnd>,
    /// The console knows of it.
    is_told: bool,
    /// The ends of its outputs were sent.
    is_closed: bool,
    /// At most so much is left in the outputs of what was written before the program ended, or before
    /// nothing was left.
    rest: [u64; 2],
    /// The last look for what the program left, and the tree's reaps then.
    looked: Option<(Instant, u64)>,
    /// The end of its output.
    tail: Tail,
}

/// Where a command is in its life.
enum Phase {
    /// Its child may not have executed the program yet.
    Launching(Launch),
    /// The program is open for writing, and is tried again then.
    Retrying(Box<Beginning>, Instant),
    /// It runs, or what it left does.
    Running,
    /// Its processes are being killed.
    Killing(Chase),
    /// Nothing of it runs any more. What it wrote is given until then.
    Draining(Option<Instant>),
    /// It has been replied to.
    Over,
}

/// What comes next.
enum Turn {
    /// Another phase, at once.
    On(Phase),
    /// This phase, once something is ready, or then.
    Wait(Phase, Option<Instant>),
    Over(Result<ExecReply, WireError>),
}

/// What a step came to.
#[derive(Debug)]
pub enum Step {
    /// The next one is when a descriptor is ready, or at that time.
    Wait(Option<Instant>),
    /// It was the last one. An error means that the program was not executed; `internal`, that the kernel
    /// does not end killed processes.
    Over(Result<ExecReply, WireError>),
}

impl<C: Console> Watch<C> {
    /// Starts a command. Its console, its tree and its stop flag wake `wake`; its descriptors have this
    /// number in the poller.
    ///
    /// # Errors
    ///
    /// Why it cannot be started.
    pub fn begin(
        programs: &Arc<Programs>,
        task: Task<'_>,
        console: C,
        wake: &Arc<Wake>,
        poller: &Poller,
        number: u64,
    ) -> Result<Self, WireError> {
        let Task { command, cwd, env, has_input, outputs, bounds } = task;
        let permit = RunningPermit::take(programs)?;
        let context = &programs.context;
        let prepared = Prepared::new(command, cwd, &env, &context.defaults)?;
        let (stdio, ends) = outputs.open(has_input, &context.null)?;
        let layers = context.layers.clone();
        let beginning = Beginning { prepared, stdio, has_terminal: ends.has_terminal, layers };
        let mut watch = Self {
            console,
            bounds,
            permit,
            tree: Arc::new(context.marks.tree(wake)),
            wake: wake.clone(),
            number,
            phase: Phase::Over,
            tries: 0,
            death: None,
            ends,
            ready: [true; 2],
            is_input_ready: true,
            given: [0; 2],
            piece: VecDeque::new(),
            stopped: None,
            killed_at: None,
            is_full: false,
            end: None,
            is_told: false,
            is_closed: false,
            rest: [0; 2],
            looked: None,
            tail: Tail::default(),
        };
        watch.register(poller).map_err(no_descriptor)?;
        watch.phase = Phase::Launching(watch.launch(Box::new(beginning), poller)?);
        Ok(watch)
    }

    fn register(&self, poller: &Poller) -> rustix::io::Result<()> {
        poller.add(self.number, Source::Wake, &*self.wake)?;
        let [stdout, stderr] = &self.ends.outputs;
        // A terminal is one descriptor.
        let stdin = self.ends.stdin.as_ref().filter(|_| !self.ends.has_terminal);
        for (source, fd) in [
            (Source::Stdout, stdout.as_ref()),
            (Source::Stderr, stderr.as_ref()),
            (Source::Stdin, stdin),
        ] {
            if let Some(fd) = fd {
                poller.add(self.number, source, fd)?;
            }
        }
        Ok(())
    }

    fn launch(&self, beginning: Box<Beginning>, poller: &Poller) -> Result<Launch, WireError> {
        let programs = self.permit.programs();
        let (spawner, reaper) = (&programs.spawner, &programs.reaper);
        let launch = spawn(beginning, &self.tree, spawner, reaper, &self.wake)
            .map_err(|(error, beginning)| beginning.prepared.explain(error))?;
        // Without this event it is looked at a moment later.
        _ = poller.add(self.number, Source::Launch, &launch);
        Ok(launch)
    }

    /// Notes that a descriptor of it is ready.
    pub fn note(&mut self, source: Source) {
        match source {
            Source::Stdout => {
                self.ready[Output::Stdout as usize] = true;
                self.is_input_ready |= self.ends.has_terminal;
            }
            Source::Stderr => self.ready[Output::Stderr as usize] = true,
            Source::Stdin => self.is_input_ready = true,
            // What it is of is looked at in every step.
            Source::Wake | Source::Launch | Source::Changes => {}
        }
    }

    /// Goes on as far as it can without waiting.
    pub fn step(&mut self, poller: &Poller) -> Step {
        loop {
            let turn = match mem::replace(&mut self.phase, Phase::Over) {
                Phase::Launching(launch) => self.launching(launch),
                Phase::Retrying(beginning, at) if at <= Instant::now() => {
                    match self.launch(beginning, poller) {
                        Ok(launch) => Turn::On(Phase::Launching(launch)),
                        Err(error) => Turn::Over(Err(error)),
                    }
                }
                Phase::Retrying(beginning, at) => {
                    Turn::Wait(Phase::Retrying(beginning, at), Some(at))
                }
                Phase::Running => self.running(),
                Phase::Killing(chase) => self.killing(chase),
                Phase::Draining(latest) => self.draining(latest),
                Phase::Over => unreachable!("it has been replied to"),
            };
            match turn {
                Turn::On(phase) => self.phase = phase,
                Turn::Wait(phase, until) => {
                    self.phase = phase;
                    return Step::Wait(until);
                }
                Turn::Over(result) => return Step::Over(result),
            }
        }
    }

    fn launching(&mut self, launch: Launch) -> Turn {
        if !launch.has_left() {
            if self.stopped.is_none() {
                self.look_at_bounds();
                if self.stopped.is_some() {
                    let kill = |pid| _ = kill_process(pid, Signal::KILL);
                    self.permit.programs().reaper.holding(&launch.death, kill);
                }
            }
            let look = Instant::now() + LOOK_INTERVAL;
            let until = self.bounds.deadline.filter(|_| self.stopped.is_none());
            let until = until.map_or(look, |at| at.min(look));
            return Turn::Wait(Phase::Launching(launch), Some(until));
        }
        match launch.finish() {
            Ok(death) => {
                self.death = Some(death.clone());
                self.console.started(Process { death, tree: self.tree.clone() });
                Turn::On(Phase::Running)
            }
            Err((SpawnError::Program(_, Errno::TXTBSY), beginning)) if self.tries < BUSY_TRIES => {
                self.tries += 1;
                Turn::On(Phase::Retrying(beginning, Instant::now() + BUSY_WAIT))
            }
            Err((error, beginning)) => Turn::Over(Err(beginning.prepared.explain(error))),
        }
    }

    fn running(&mut self) -> Turn {
        let end = self.exit();
        // What is asked to end has its grace after the program's end too.
        let is_left_alone = self.bounds.left == Left::Kept || self.killed_at.is_some();
        if end.is_some() {
            if !is_left_alone {
                return Turn::On(Phase::Killing(Chase::new(&self.tree)));
            }
            if self.finds_nothing() {
                return Turn::On(self.drain());
            }
        }
        let has_more = self.carry();
        self.look_at_bounds();
        if end.is_some() && (self.rest == [0; 2] || self.stopped.is_some()) {
            self.tell_exit();
        }
        let is_kept = self.bounds.left == Left::Kept;
        if is_kept && self.is_told && self.ends.outputs.iter().all(Option::is_none) {
            // Nothing that is left of it can print any more.
            self.close_outputs();
        }
        if self.is_to_be_killed() {
            return Turn::On(Phase::Killing(Chase::new(&self.tree)));
        }
        let until = if has_more { Some(Instant::now()) } else { self.next_look() };
        Turn::Wait(Phase::Running, until)
    }

    /// When something is to be done that no event announces.
    fn next_look(&self) -> Option<Instant> {
        let limit = self.killed_at.or(self.bounds.deadline.filter(|_| self.stopped.is_none()));
        let look = self.looked.map(|(at, reaps)| at + self.look_interval(reaps));
        let types = self.ends.has_terminal && !self.piece.is_empty();
        let typing = types.then(|| Instant::now() + LOOK_INTERVAL);
        [limit, look, typing].into_iter().flatten().min()
    }

    fn look_interval(&self, reaps: u64) -> Duration {
        if self.tree.reaps() == reaps { LOOK_ANYWAY } else { LOOK_INTERVAL }
    }

    /// Whether nothing is left of the tree of a program that has ended, if it is time to look.
    fn finds_nothing(&mut self) -> bool {
        let now = Instant::now();
        if self.looked.is_some_and(|(at, reaps)| now < at + self.look_interval(reaps)) {
            return false;
        }
        self.looked = Some((now, self.tree.reaps()));
        self.tree.is_gone()
    }

    /// The program's end, if it has ended.
    fn exit(&mut self) -> Option<ExecEnd> {
        if self.end.is_none() {
            self.end = self.death.as_ref().and_then(|death| death.exit());
            if self.end.is_some() {
                // Of a terminal that is empty no event would say so.
                (self.ready, self.rest) = ([true; 2], self.held());
            }
        }
        self.end
    }

    /// How many bytes the outputs hold.
    fn held(&self) -> [u64; 2] {
        self.ends.outputs.each_ref().map(|output| match output {
            // What it holds besides cannot be asked for. It ends before, when there is nothing to read.
            Some(_) if self.ends.has_terminal => MOST_HELD,
            Some(fd) => rustix::io::ioctl_fionread(fd).unwrap_or(0),
            None => 0,
        })
    }

    fn tell_exit(&mut self) {
        if let Some(end) = self.end
            && !mem::replace(&mut self.is_told, true)
        {
            self.console.exited(end, self.stopped);
        }
    }

    fn close_outputs(&mut self) {
        if !mem::replace(&mut self.is_closed, true) {
            self.console.end();
        }
    }

    fn killing(&mut self, mut chase: Chase) -> Turn {
        match chase.step(&self.tree) {
            Chased::All if self.exit().is_some() => Turn::On(self.drain()),
            // The reaper is about to report it.
            Chased::All if Instant::now() < chase.deadline() => {
                let until = Some(chase.deadline());
                Turn::Wait(Phase::Killing(chase), until)
            }
            Chased::Later(at) => Turn::Wait(Phase::Killing(chase), Some(at)),
            Chased::All | Chased::Never => Turn::Over(Err(unkillable())),
        }
    }

    /// Nothing is left of the tree: what its processes wrote is still in the outputs. What processes of
    /// other trees write is not read.
    fn drain(&mut self) -> Phase {
        self.ends.stdin = None;
        let is_kept = self.bounds.left == Left::Kept;
        let was_killed = self.end == Some(ExecEnd::Signaled(9));
        if self.stopped != Some(ExecStop::OutputLimit) {
            // If it exited by itself at that very moment, it was not stopped.
            let is_asked = self.killed_at.is_some() || is_kept;
            self.stopped = self.stopped.filter(|_| is_asked || was_killed);
        }
        if self.tree.was_swept() && (was_killed || is_kept) {
            self.stopped = self.stopped.or(Some(ExecStop::EvasionOfAnother));
        }
        self.rest = self.held();
        let latest = self.bounds.deadline.map(|at| at.max(Instant::now()) + LAST_BYTES);
        Phase::Draining(latest)
    }

    /// Gives the rest. It waits for credit, but not after a cancel, nor long after the command's own
    /// deadline.
    fn draining(&mut self, latest: Option<Instant>) -> Turn {
        for output in Output::BOTH {
            while self.rest[output as usize] > 0 && self.stopped != Some(ExecStop::OutputLimit) {
                if self.console.room(output) > 0 {
                    self.carry_output(output);
                } else if self.bounds.stop.reason() != StopReason::None
                    || latest.is_some_and(|at| at <= Instant::now())
                {
                    self.look_at_bounds();
                    self.rest = [0; 2];
                } else {
                    return Turn::Wait(Phase::Draining(latest), latest);
                }
            }
        }
        Turn::Over(self.reply())
    }

    fn reply(&mut self) -> Result<ExecReply, WireError> {
        self.tell_exit();
        let end = self.end.ok_or_else(unkillable)?;
        let signs = match (end, self.stopped) {
            (ExecEnd::Exited(0), None) => Vec::new(),
            _ => signs(&self.permit.programs().context.places, &self.tail),
        };
        let used = self.tree.used();
        self.close_outputs();
        Ok(ExecReply {
            end,
            stopped: self.stopped,
            stdout_bytes: self.given[0],
            stderr_bytes: self.given[1],
            cpu_ms: u64::try_from(used.cpu.as_millis()).unwrap_or(u64::MAX),
            peak_memory_bytes: used.peak_memory,
            signs,
        })
    }

    /// Copies what is ready, a little of each stream; returns whether there is more.
    fn carry(&mut self) -> bool {
        let mut has_more = false;
        for output in Output::BOTH {
            if self.ready[output as usize] {
                self.carry_output(output);
                has_more |= self.ready[output as usize] && self.console.room(output) > 0;
            }
        }
        self.carry_input() || has_more
    }

    /// Copies at most a chunk.
    fn carry_output(&mut self, output: Output) {
        let at = output as usize;
        let Some(fd) = &self.ends.outputs[at] else {
            (self.ready[at], self.rest[at]) = (false, 0);
            return;
        };
        let room = self.console.room(output).min(MAX_CHUNK_BYTES);
        let mut data = Vec::with_capacity(room);
        let (mut is_empty, mut is_closed) = (false, false);
        while data.len() < data.capacity() && !is_empty && !is_closed {
            match retry_on_intr(|| rustix::io::read(fd, spare_capacity(&mut data))) {
                Ok(0) => is_closed = true,
                Ok(_) => {}
                Err(Errno::AGAIN) => is_empty = true,
                // Of a terminal: no program has it open any more.
                Err(_) => is_closed = true,
            }
        }
        if is_empty || is_closed {
            (self.ready[at], self.rest[at]) = (false, 0);
        }
        if is_closed {
            self.ends.outputs[at] = None;
        }
        self.rest[at] = self.rest[at].saturating_sub(data.len() as u64);
        let given = self.given[0] + self.given[1];
        let left = self.bounds.output_bytes.saturating_sub(given);
        if data.len() as u64 > left {
            data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            self.stopped = self.stopped.or(Some(ExecStop::OutputLimit));
            self.is_full = true;
        }
        if !data.is_empty() {
            self.tail.push(&data);
            self.given[at] += data.len() as u64;
            self.console.give(output, data);
        }
    }

    /// Writes some of its input; returns whether there may be more, which does not wake again: a fast
    /// sender and a fast reader must not block everything else.
    fn carry_input(&mut self) -> bool {
        let mut pieces = 0;
        while let Some(fd) = &self.ends.stdin {
            if self.piece.is_empty() {
                if pieces == PIECES {
                    return true;
                }
                pieces += 1;
                match self.console.input() {
                    Input::Piece(piece) => self.piece = piece.into(),
                    Input::Later => return false,
                    Input::End => self.ends.stdin = None,
                }
                continue;
            }
            // A terminal does not say reliably that it takes more.
            if !self.is_input_ready && !self.ends.has_terminal {
                return false;
            }
            match rustix::io::write(fd, self.piece.as_slices().0) {
                Ok(0) | Err(Errno::AGAIN) => {
                    self.is_input_ready = false;
                    return false;
                }
                Ok(written) => _ = self.piece.drain(..written),
                Err(Errno::INTR) => {}
                // The command reads no more. Input on its way to it is never consumed.
                Err(_) => {
                    self.ends.stdin = None;
                    self.piece = VecDeque::new();
                }
            }
        }
        false
    }

    fn look_at_bounds(&mut self) {
        self.stopped = self.stopped.or_else(|| self.bounds.reached());
    }

    /// Whether its processes are to be killed now. Those of a command that is to end are asked first, and
    /// have their grace, unless a limit ends it.
    fn is_to_be_killed(&mut self) -> bool {
        if self.stopped.is_none() {
            return false;
        }
        if self.is_full || self.bounds.grace.is_zero() || self.bounds.stop.is_at_once() {
            return true;
        }
        match self.killed_at {
            Some(at) => Instant::now() >= at,
            None => {
                self.killed_at = Some(Instant::now() + self.bounds.grace);
                // A shell at a terminal does not end by SIGTERM, but by the end of its terminal. What is
                // stopped gets either when it goes on. A program that has chosen a signal ends by that alone.
                let signal = self.bounds.stop_signal;
                let signals: &[Signal] = match self.ends.has_terminal && signal == Signal::TERM {
                    true => &[signal, Signal::HUP, Signal::CONT],
                    false => &[signal, Signal::CONT],
                };
                self.tree.signal(signals, |_| true);
                false
            }
        }
    }
}

fn unkillable() -> WireError {
    WireError::new(ErrorKind::Internal, "the program was killed, and the kernel does not end it")
}
