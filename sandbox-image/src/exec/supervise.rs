//! Supervises a command from its start until every process that it started has ended: copies its
//! input and output, enforces its timeout, asks its tree to end, and kills it.
//!
//! ```text
//!            ┌─ bytes, both ways ─┐
//! running ───┴────────────────────┴── the program ends ──> kill what it left ──> the rest of its bytes
//!    │                                                          ▲
//!    ├─ deadline, cancel: SIGTERM to the tree, and its grace ───┤
//!    └─ too many bytes, a second cancel: kill the tree ─ it ends┘
//! ```
//!
//! One thread does all of it, so that a command costs one thread. It never reads more than the
//! console accepts: the rest stays in the pipe, and the command blocks.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use sandbox_protocol::limits::MAX_CHUNK_BYTES;
use sandbox_protocol::message::{ExecEnd, ExecReply, ExecStop};
use sandbox_protocol::{ErrorKind, WireError};

use super::reaper::Death;
use super::signs::{OwnPlaces, Tail, signs};
use super::tree::{KILL_TIMEOUT, Tree};
use crate::stop::{StopFlag, StopReason};
use crate::wake::Wake;

/// How many pieces of input are written before anything else is checked.
const PIECES: usize = 4;
/// How long after a command's deadline its last bytes may wait for credit. The controller starts to
/// discard unwanted output half a second after the deadline.
const LAST_BYTES: Duration = Duration::from_millis(1500);
/// How often to check whether the processes that a program left behind have ended in its grace
/// period.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// One of a command's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Descriptor 1.
    Stdout = 0,
    /// Descriptor 2.
    Stderr = 1,
}

impl Output {
    /// Both.
    pub(super) const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];
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

/// A command that has started.
#[derive(Debug)]
pub struct Running {
    /// All processes that it starts.
    pub tree: Tree,
    /// Its exit.
    pub death: Arc<Death>,
    /// Woken by its exit, by its console and by its stop flag.
    pub wake: Arc<Wake>,
    /// The other ends of its outputs, all non-blocking.
    pub outputs: [OwnedFd; 2],
    /// The other end of its stdin, also non-blocking.
    pub stdin: Option<OwnedFd>,
    /// What stopped it while it was being started.
    pub stopped: Option<ExecStop>,
}

/// The limits of a command.
#[derive(Debug)]
pub struct Bounds<'a> {
    /// Ends it early.
    pub stop: &'a StopFlag,
    /// Its deadline.
    pub deadline: Instant,
    /// How long its processes may go on after they were asked to end.
    pub grace: Duration,
    /// The most bytes of both outputs together.
    pub output_bytes: u64,
}

impl Bounds<'_> {
    /// What must end the command by now, if anything.
    fn reached(&self) -> Option<ExecStop> {
        match self.stop.reason() {
            StopReason::Cancelled => Some(ExecStop::Cancelled),
            StopReason::Timeout => Some(ExecStop::Timeout),
            StopReason::None => (Instant::now() >= self.deadline).then_some(ExecStop::Timeout),
        }
    }

    /// Waits until `what` is readable or closed, or until the command must be ended.
    pub fn outlast(&self, wake: &Wake, what: BorrowedFd<'_>) -> Option<ExecStop> {
        loop {
            let mut fds =
                [PollFd::new(wake, PollFlags::IN), PollFd::from_borrowed_fd(what, PollFlags::IN)];
            _ = poll(&mut fds, until(self.deadline).as_ref());
            if !fds[1].revents().is_empty() {
                return None;
            }
            wake.see();
            let reached = self.reached();
            if reached.is_some() {
                return reached;
            }
        }
    }
}

/// The time left until then.
fn until(deadline: Instant) -> Option<Timespec> {
    Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok()
}

/// A command in progress.
struct Watch<'a, C> {
    console: &'a mut C,
    bounds: &'a Bounds<'a>,
    outputs: [Option<OwnedFd>; 2],
    given: [u64; 2],
    stdin: Option<OwnedFd>,
    /// Input for which the pipe was too full. A script's input is one piece: taking bytes from its
    /// front must not move the rest.
    piece: VecDeque<u8>,
    stopped: Option<ExecStop>,
    /// When its processes are killed that were asked to end.
    killed_at: Option<Instant>,
    /// There was more output than it may have.
    is_full: bool,
    /// The end of its output.
    tail: Tail,
}

/// Supervises the command until none of its processes is left.
///
/// # Errors
///
/// `internal` if the kernel does not end killed processes.
pub fn supervise(
    running: Running,
    console: &mut impl Console,
    bounds: &Bounds<'_>,
    places: &OwnPlaces,
) -> Result<ExecReply, WireError> {
    let Running { tree, death, wake, outputs, stdin, stopped } = running;
    let mut watch = Watch {
        console,
        bounds,
        outputs: outputs.map(Some),
        given: [0; 2],
        stdin,
        piece: VecDeque::new(),
        stopped,
        killed_at: None,
        is_full: false,
        tail: Tail::default(),
    };
    let mut readable = [false; 2];
    let end = loop {
        wake.see();
        let exit = death.exit();
        if let Some(exit) = exit
            && (watch.killed_at.is_none() || tree.is_gone())
        {
            break exit;
        }
        watch.carry(&wake, readable);
        watch.look_at_bounds();
        if watch.is_to_be_killed(&tree) {
            _ = tree.kill();
            break await_death(&death, &wake)?;
        }
        readable = watch.wait(&wake, exit.is_some());
    };
    watch.stdin = None;
    if !tree.kill() {
        return Err(unkillable());
    }
    if watch.stopped != Some(ExecStop::OutputLimit) {
        // If it exited by itself at that very moment, it was not stopped.
        let is_asked = watch.killed_at.is_some();
        watch.stopped = watch.stopped.filter(|_| is_asked || end == ExecEnd::Signaled(9));
        watch.carry_the_rest(&wake);
    }
    let signs = match (end, watch.stopped) {
        (ExecEnd::Exited(0), None) => Vec::new(),
        _ => signs(places, &watch.tail),
    };
    let used = tree.used();
    Ok(ExecReply {
        end,
        stopped: watch.stopped,
        stdout_bytes: watch.given[0],
        stderr_bytes: watch.given[1],
        cpu_ms: u64::try_from(used.cpu.as_millis()).unwrap_or(u64::MAX),
        peak_memory_bytes: used.peak_memory,
        signs,
    })
}

fn await_death(death: &Death, wake: &Wake) -> Result<ExecEnd, WireError> {
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        wake.see();
        if let Some(exit) = death.exit() {
            return Ok(exit);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(unkillable());
        }
        let mut fds = [PollFd::new(wake, PollFlags::IN)];
        _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
    }
}

fn unkillable() -> WireError {
    WireError::new(ErrorKind::Internal, "the program was killed, and the kernel does not end it")
}

impl<C: Console> Watch<'_, C> {
    /// Copies what is available, a little of each stream; of the outputs, of those that are readable.
    fn carry(&mut self, wake: &Wake, readable: [bool; 2]) {
        for output in Output::BOTH {
            if readable[output as usize] {
                _ = self.carry_output(output);
            }
        }
        self.carry_input(wake);
    }

    /// Returns the number of bytes copied.
    fn carry_output(&mut self, output: Output) -> usize {
        let Some(fd) = &self.outputs[output as usize] else { return 0 };
        let room = self.console.room(output).min(MAX_CHUNK_BYTES);
        if room == 0 {
            return 0;
        }
        let mut data = Vec::with_capacity(room);
        let read =
            retry_on_intr(|| rustix::io::read(fd, rustix::buffer::spare_capacity(&mut data)));
        match read {
            Ok(0) => {
                self.outputs[output as usize] = None;
                0
            }
            Ok(read) => {
                let given = self.given[0] + self.given[1];
                let left = self.bounds.output_bytes.saturating_sub(given);
                if data.len() as u64 > left {
                    data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                    self.stopped = self.stopped.or(Some(ExecStop::OutputLimit));
                    self.is_full = true;
                }
                self.tail.push(&data);
                self.given[output as usize] += data.len() as u64;
                if !data.is_empty() {
                    self.console.give(output, data);
                }
                read
            }
            Err(Errno::AGAIN) => 0,
            Err(_) => {
                self.outputs[output as usize] = None;
                0
            }
        }
    }

    /// Writes some of its input; a fast sender and a fast reader must not block everything else.
    fn carry_input(&mut self, wake: &Wake) {
        let mut pieces = 0;
        while let Some(fd) = &self.stdin {
            if self.piece.is_empty() {
                if pieces == PIECES {
                    // Input that has arrived already does not wake again.
                    return wake.wake();
                }
                pieces += 1;
                match self.console.input() {
                    Input::Piece(piece) => self.piece = piece.into(),
                    Input::Later => return,
                    Input::End => self.stdin = None,
                }
                continue;
            }
            match rustix::io::write(fd, self.piece.as_slices().0) {
                Ok(written) => _ = self.piece.drain(..written),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // The command reads no more. Input on its way to it is never consumed.
                Err(_) => {
                    self.stdin = None;
                    self.piece = VecDeque::new();
                }
            }
        }
    }

    fn look_at_bounds(&mut self) {
        self.stopped = self.stopped.or_else(|| self.bounds.reached());
    }

    /// Whether its processes are to be killed now. Those of a command that is to end are asked first, and
    /// have their grace, unless a limit ends it.
    fn is_to_be_killed(&mut self, tree: &Tree) -> bool {
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
                tree.terminate();
                false
            }
        }
    }

    /// Waits for the first event. Returns which outputs are readable. The end of processes that an
    /// `exited` program left behind is not an event.
    fn wait(&self, wake: &Wake, exited: bool) -> [bool; 2] {
        let (mut fds, mut polled) = (vec![PollFd::new(wake, PollFlags::IN)], [None; 2]);
        for output in Output::BOTH {
            if let Some(fd) = &self.outputs[output as usize]
                && self.console.room(output) > 0
            {
                polled[output as usize] = Some(fds.len());
                fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
            }
        }
        if let Some(fd) = &self.stdin
            && !self.piece.is_empty()
        {
            fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::OUT));
        }
        let next = self.killed_at.unwrap_or(self.bounds.deadline);
        let next = if exited { next.min(Instant::now() + LOOK_INTERVAL) } else { next };
        _ = poll(&mut fds, until(next).as_ref());
        polled.map(|at| at.is_some_and(|at: usize| !fds[at].revents().is_empty()))
    }

    /// Reads what is left in the pipes when no process of the tree writes to them any more; what
    /// processes of other trees write is not read. It waits for credit, but not after a cancel, nor
    /// long after the command's own deadline.
    fn carry_the_rest(&mut self, wake: &Wake) {
        let latest = self.bounds.deadline.max(Instant::now()) + LAST_BYTES;
        for output in Output::BOTH {
            let rest = self.outputs[output as usize].as_ref().map(rustix::io::ioctl_fionread);
            let mut rest = rest.and_then(Result::ok).unwrap_or(0);
            while rest > 0 && self.stopped != Some(ExecStop::OutputLimit) {
                wake.see();
                if self.console.room(output) > 0 {
                    match self.carry_output(output) {
                        0 => break,
                        carried => rest = rest.saturating_sub(carried as u64),
                    }
                } else if self.bounds.stop.reason() != StopReason::None || Instant::now() >= latest
                {
                    self.look_at_bounds();
                    return;
                } else {
                    _ = poll(&mut [PollFd::new(wake, PollFlags::IN)], until(latest).as_ref());
                }
            }
        }
    }
}
