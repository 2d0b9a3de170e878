//! Watches over a program from its beginning to the end of all that it started: carries its bytes,
//! keeps its time, kills its tree.
//!
//! ```text
//!            ┌─ bytes, both ways ─┐
//! running ───┴────────────────────┴── the program ends ──> kill what it left ──> the rest of its bytes
//!    │                                                          ▲
//!    └─ deadline, cancel, too many bytes: kill the tree ── it ends ┘
//! ```
//!
//! One thread does all of it, so that a program costs one, and never reads more than there is room
//! for: what nobody takes stays in the pipe, and the program waits.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sandbox_protocol::limits::MAX_CHUNK_BYTES;
use sandbox_protocol::message::{ExecEnd, ExecReply, ExecStop};
use sandbox_protocol::{ErrorKind, WireError};

use super::reaper::{Death, Remains};
use super::tree::Tree;
use super::{Output, Wake};
use crate::run::{StopFlag, StopReason};

/// How long a program that was killed may take to be reaped.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where a program's bytes go, and where its input comes from. What changes there wakes the program's
/// [`Wake`]; nothing here waits for it.
pub trait Console {
    /// How many bytes may be given now.
    fn room(&self, output: Output) -> usize;
    /// Gives what the program wrote, at most as much as there is room for.
    fn give(&mut self, output: Output, data: Vec<u8>);
    /// The next of its input.
    fn input(&mut self) -> Input;
}

/// What comes next of a program's input.
#[derive(Debug)]
pub enum Input {
    /// A piece.
    Piece(Vec<u8>),
    /// Nothing yet.
    Later,
    /// Nothing any more.
    End,
}

/// A program that has begun.
#[derive(Debug)]
pub struct Running {
    /// All that it starts.
    pub tree: Tree,
    /// Its end.
    pub death: Arc<Death>,
    /// Woken by its end, by its console and by what stops it.
    pub wake: Arc<Wake>,
    /// The other ends of its outputs; none of them waits.
    pub outputs: [OwnedFd; 2],
    /// That of its input, which does not wait either.
    pub stdin: Option<OwnedFd>,
}

/// What bounds a program.
#[derive(Debug)]
pub struct Bounds<'a> {
    /// What ends it early.
    pub stop: &'a StopFlag,
    /// When its time is up.
    pub deadline: Instant,
    /// How many bytes both of its outputs may have together.
    pub output_bytes: u64,
}

/// What is under way.
struct Watch<'a, C> {
    console: &'a mut C,
    bounds: &'a Bounds<'a>,
    outputs: [Option<OwnedFd>; 2],
    given: [u64; 2],
    stdin: Option<OwnedFd>,
    /// Input that the pipe had no room for yet.
    piece: Vec<u8>,
    stopped: Option<ExecStop>,
}

/// Watches over the program until nothing of it is left.
///
/// # Errors
///
/// `internal` where the kernel does not end what was killed.
pub fn supervise(
    running: Running,
    console: &mut impl Console,
    bounds: &Bounds<'_>,
) -> Result<ExecReply, WireError> {
    let Running { tree, death, wake, outputs, stdin } = running;
    let mut watch = Watch {
        console,
        bounds,
        outputs: outputs.map(Some),
        given: [0; 2],
        stdin,
        piece: Vec::new(),
        stopped: None,
    };
    let remains = loop {
        wake.see();
        if let Some(remains) = death.remains() {
            break remains;
        }
        watch.carry();
        watch.look_at_bounds();
        if watch.stopped.is_some() {
            _ = tree.kill();
            break await_death(&death, &wake)?;
        }
        watch.wait(&wake);
    };
    watch.stdin = None;
    if !tree.kill() {
        return Err(unkillable());
    }
    let Remains { end, cpu } = remains;
    if watch.stopped != Some(ExecStop::OutputLimit) {
        // Where it ended by itself at that very moment, nobody stopped it.
        watch.stopped = watch.stopped.filter(|_| end == ExecEnd::Signaled(9));
        watch.carry_the_rest(&wake);
    }
    Ok(ExecReply {
        end,
        stopped: watch.stopped,
        stdout_bytes: watch.given[0],
        stderr_bytes: watch.given[1],
        cpu_ms: u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX),
    })
}

fn await_death(death: &Death, wake: &Wake) -> Result<Remains, WireError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        wake.see();
        if let Some(remains) = death.remains() {
            return Ok(remains);
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
    /// Takes and gives what is there, a little of each.
    fn carry(&mut self) {
        for output in Output::BOTH {
            _ = self.carry_output(output);
        }
        self.carry_input();
    }

    /// Whether there was something.
    fn carry_output(&mut self, output: Output) -> bool {
        let Some(fd) = &self.outputs[output as usize] else { return false };
        let room = self.console.room(output).min(MAX_CHUNK_BYTES);
        if room == 0 {
            return false;
        }
        let mut data = Vec::with_capacity(room);
        match rustix::io::read(fd, rustix::buffer::spare_capacity(&mut data)) {
            Ok(0) => {
                self.outputs[output as usize] = None;
                false
            }
            Ok(_) => {
                let given = self.given[0] + self.given[1];
                let left = self.bounds.output_bytes.saturating_sub(given);
                if data.len() as u64 > left {
                    data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                    self.stopped = self.stopped.or(Some(ExecStop::OutputLimit));
                }
                self.given[output as usize] += data.len() as u64;
                if !data.is_empty() {
                    self.console.give(output, data);
                }
                true
            }
            Err(Errno::AGAIN) => false,
            Err(Errno::INTR) => true,
            Err(_) => {
                self.outputs[output as usize] = None;
                false
            }
        }
    }

    fn carry_input(&mut self) {
        while let Some(fd) = &self.stdin {
            if self.piece.is_empty() {
                match self.console.input() {
                    Input::Piece(piece) => self.piece = piece,
                    Input::Later => return,
                    Input::End => self.stdin = None,
                }
                continue;
            }
            match rustix::io::write(fd, &self.piece) {
                Ok(written) => _ = self.piece.drain(..written),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // The program reads no more. What is on its way for it is never taken.
                Err(_) => {
                    self.stdin = None;
                    self.piece = Vec::new();
                }
            }
        }
    }

    fn look_at_bounds(&mut self) {
        let stop = match self.bounds.stop.reason() {
            StopReason::Cancelled => Some(ExecStop::Cancelled),
            StopReason::Timeout => Some(ExecStop::Timeout),
            StopReason::None => {
                (Instant::now() >= self.bounds.deadline).then_some(ExecStop::Timeout)
            }
        };
        self.stopped = self.stopped.or(stop);
    }

    /// Waits for whatever comes first.
    fn wait(&self, wake: &Wake) {
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        for output in Output::BOTH {
            if let Some(fd) = &self.outputs[output as usize]
                && self.console.room(output) > 0
            {
                fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
            }
        }
        if let Some(fd) = &self.stdin
            && !self.piece.is_empty()
        {
            fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::OUT));
        }
        let left = self.bounds.deadline.saturating_duration_since(Instant::now());
        _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
    }

    /// What is left in the pipes when nobody writes to them any more: all of it, or, where a process
    /// of another tree holds one open, what is there now. It waits for room as long as that takes, but
    /// not beyond a cancel.
    fn carry_the_rest(&mut self, wake: &Wake) {
        for output in Output::BOTH {
            loop {
                wake.see();
                if self.console.room(output) > 0 {
                    if !self.carry_output(output) || self.stopped == Some(ExecStop::OutputLimit) {
                        break;
                    }
                } else if self.bounds.stop.reason() != StopReason::None {
                    self.look_at_bounds();
                    return;
                } else if self.outputs[output as usize].is_none() {
                    break;
                } else {
                    _ = poll(&mut [PollFd::new(wake, PollFlags::IN)], None);
                }
            }
        }
    }
}
