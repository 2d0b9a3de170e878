//! Which processes a program has started, however they may have hidden, and their end.
//!
//! Parents do not tell: a process that was forked twice is the agent's child, whoever started it. So
//! every program carries a mark that all of its descendants inherit and none can change: the limit
//! `RLIMIT_LOCKS`, which kernels keep and have made no use of since Linux 2.4. To raise it takes a
//! capability, and to change it at all is refused by the filter
//! ([`last`](crate::confine::seccomp::programs::last)). Where there is no such limit (gVisor), programs
//! run one at a time, and everything in the sandbox but the agent is its tree.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process, pidfd_open, pidfd_send_signal,
};

/// How long what was killed may take to be gone: longer only where the kernel itself hangs.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest wait between two looks.
const LOOK: Duration = Duration::from_millis(8);

/// Makes marks.
#[derive(Debug)]
pub struct Marks {
    /// `None` where there are none to be had.
    next: Option<AtomicU64>,
}

impl Marks {
    /// Takes the limit down from what it is, so that no other process has a mark of ours: the agents of
    /// tests, which share a kernel and its processes, by chance alone.
    #[must_use]
    pub fn new() -> Self {
        let highest = rustix::process::getrlimit(Resource::Locks).maximum.unwrap_or(u64::MAX);
        let mut random = [0; 4];
        _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
        let below = (u64::from(u32::from_ne_bytes(random)) + 1) << 24;
        let first = highest.checked_sub(below).filter(|&first| {
            let limit = Rlimit { current: Some(first), maximum: Some(first) };
            rustix::process::setrlimit(Resource::Locks, limit).is_ok()
        });
        Self { next: first.map(|first| AtomicU64::new(first - 1)) }
    }

    /// Whether several programs can be told apart.
    #[must_use]
    pub const fn tell_apart(&self) -> bool {
        self.next.is_some()
    }

    /// The tree of a new program.
    #[must_use]
    pub fn tree(&self) -> Tree {
        Tree { mark: self.next.as_ref().map(|next| next.fetch_sub(1, Ordering::Relaxed)) }
    }
}

/// A program and all that it has started.
#[derive(Debug)]
pub struct Tree {
    mark: Option<u64>,
}

impl Tree {
    /// The mark that the program is to carry.
    #[must_use]
    pub const fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// Kills all of it, and waits until nothing is left; whether that is so.
    ///
    /// A process that is killed forks no more, and one that is begun meanwhile has a higher number and
    /// is met later on the same walk, or on the next one.
    #[must_use]
    pub fn kill(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let mut wait = Duration::from_micros(250);
        loop {
            if self.strike() == 0 {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(LOOK);
        }
    }

    /// One walk: how many were there, those included that are dead and not reaped yet.
    fn strike(&self) -> usize {
        let own = rustix::process::getpid();
        processes().filter(|&pid| pid != own && self.strike_one(pid)).count()
    }

    fn strike_one(&self, pid: Pid) -> bool {
        if !self.has(pid) {
            return false;
        }
        // Looked at once more when it is held: so what is killed is what was looked at.
        let held = pidfd_open(pid, PidfdFlags::empty());
        if !self.has(pid) {
            return false;
        }
        _ = match held {
            Ok(held) => pidfd_send_signal(held, Signal::KILL),
            Err(_) => kill_process(pid, Signal::KILL),
        };
        true
    }

    fn has(&self, pid: Pid) -> bool {
        match self.mark {
            Some(mark) => limit_of(pid) == Some(mark),
            // Only where the agent is the sandbox's first process is everything else the tree.
            None => rustix::process::getpid().is_init(),
        }
    }
}

/// All processes that are seen from here.
fn processes() -> impl Iterator<Item = Pid> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = openat(CWD, "/proc", flags, Mode::empty()).and_then(rustix::fs::Dir::new);
    listed.into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        Pid::from_raw(entry.file_name().to_str().ok()?.parse().ok()?)
    })
}

/// The limit that is the mark, of another process. `None` where it is gone, or somebody else's.
fn limit_of(pid: Pid) -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let pid = pid.as_raw_nonzero().get();
    #[expect(unsafe_code, reason = "no safe interface asks for another process's limit")]
    // SAFETY: the new limit is none, and the old one is ours to write to.
    let asked =
        unsafe { libc::prlimit64(pid, libc::RLIMIT_LOCKS, std::ptr::null(), &raw mut limit) };
    (asked == 0).then_some(limit.rlim_max)
}
