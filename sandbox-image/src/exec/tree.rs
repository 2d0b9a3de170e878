//! Finds all processes that a command has started, however they try to hide, and asks them to end or
//! kills them.
//!
//! The parent is not sufficient: a double-forked process becomes the agent's child. So every
//! command carries a mark that all of its descendants inherit and cannot change: the limit
//! `RLIMIT_LOCKS`, which kernels keep and have not used since Linux 2.4. Raising it takes a
//! capability, and a filter ([`of_a_command`](crate::confine::seccomp::programs::of_a_command))
//! refuses any change. If there is no such limit (gVisor), commands run one at a time, and every
//! process of the sandbox except the agent belongs to the tree.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process, pidfd_open, pidfd_send_signal,
};

/// How long to wait until a further killed process is reaped. It takes longer only if the kernel
/// itself hangs. On a busy machine, neither the agent nor the killed processes may have run for
/// seconds.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a tree may evade the walks that kill it.
const CHASE: Duration = Duration::from_secs(1);
/// The longest wait between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(8);

/// Allocates marks.
#[derive(Debug)]
pub struct Marks {
    /// `None` if marks are not available.
    next: Option<AtomicU64>,
}

impl Marks {
    /// Counts the limit down from its current value, so that no other process has one of our marks;
    /// agents of tests, which share a kernel and its processes, could only by chance.
    ///
    /// # Errors
    ///
    /// If `/proc` does not show this process, and so would not show those it starts.
    pub fn new() -> io::Result<Self> {
        let own = rustix::process::getpid();
        if !processes()?.any(|pid| pid.is_ok_and(|pid| pid == own)) {
            return Err(io::Error::other("/proc does not list the processes"));
        }
        let highest = rustix::process::getrlimit(Resource::Locks).maximum.unwrap_or(u64::MAX);
        let mut random = [0; 4];
        _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
        let below = (u64::from(u32::from_ne_bytes(random)) + 1) << 24;
        let first = highest.checked_sub(below).filter(|&first| {
            let limit = Rlimit { current: Some(first), maximum: Some(first) };
            rustix::process::setrlimit(Resource::Locks, limit).is_ok()
        });
        Ok(Self { next: first.map(|first| AtomicU64::new(first - 1)) })
    }

    /// Whether several commands can be distinguished.
    #[must_use]
    pub const fn tell_apart(&self) -> bool {
        self.next.is_some()
    }

    /// The tree of a new command.
    #[must_use]
    pub fn tree(&self) -> Tree {
        let mark = self.next.as_ref().map(|next| next.fetch_sub(1, Ordering::Relaxed));
        Tree { mark, reaped: Arc::default() }
    }
}

/// What a process has used, and those that it waited for.
#[derive(Debug, Clone, Copy)]
pub struct Used {
    /// CPU time.
    pub cpu: Duration,
    /// Peak resident size of the largest, in bytes.
    pub peak_memory: u64,
}

/// What the agent has reaped of a tree.
#[derive(Debug, Default)]
pub struct Reaped {
    /// Incremented before and after each process, so it is odd meanwhile.
    count: AtomicU64,
    /// CPU time of these processes, and of those that they waited for, in microseconds.
    cpu_us: AtomicU64,
    /// Peak resident size of the largest of all these, in bytes.
    peak_memory: AtomicU64,
}

impl Reaped {
    /// A process begins to be reaped, or has been.
    pub fn count(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Adds what a process has used, before it is counted as reaped.
    pub fn add(&self, used: &Used) {
        let cpu = u64::try_from(used.cpu.as_micros()).unwrap_or(u64::MAX);
        self.cpu_us.fetch_add(cpu, Ordering::SeqCst);
        self.peak_memory.fetch_max(used.peak_memory, Ordering::SeqCst);
    }
}

/// A command and all processes that it has started.
#[derive(Debug)]
pub struct Tree {
    mark: Option<u64>,
    reaped: Arc<Reaped>,
}

impl Tree {
    /// The mark that the command carries.
    #[must_use]
    pub const fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// What the reaper has reaped of it.
    #[must_use]
    pub const fn reaped(&self) -> &Arc<Reaped> {
        &self.reaped
    }

    /// What its processes used that were reaped: all of them, once it was [killed](Self::kill). That of a
    /// process whose parent ignores the exits of its children is lost: the kernel reaps it.
    #[must_use]
    pub fn used(&self) -> Used {
        Used {
            cpu: Duration::from_micros(self.reaped.cpu_us.load(Ordering::SeqCst)),
            peak_memory: self.reaped.peak_memory.load(Ordering::SeqCst),
        }
    }

    /// Asks all of it to end: SIGTERM, also to what is stopped.
    pub fn terminate(&self) {
        for signal in [Signal::TERM, Signal::CONT] {
            _ = self.signal_marked(Some(signal));
        }
    }

    /// Whether nothing is left of it, as far as one walk finds.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.signal_marked(None).is_ok_and(|met| met == 0)
    }

    /// Kills all of it, and waits until nothing is left; returns whether that succeeded.
    ///
    /// A killed process forks no more. A process that forks and exits before a walk finds it can
    /// hide its child from walk after walk. But its parent is the agent, or was a process that
    /// exited before it, so the agent reaps during such a walk. If a walk found no process, and
    /// none of the tree was reaped during it, no process is left. If a tree keeps evading the
    /// walks, everything else in the sandbox is killed at once.
    #[must_use]
    pub fn kill(&self) -> bool {
        let start = Instant::now();
        let mut progress = (self.reaped.count.load(Ordering::SeqCst), start);
        let mut wait = Duration::from_micros(250);
        loop {
            let before = self.reaped.count.load(Ordering::SeqCst);
            if before != progress.0 {
                progress = (before, Instant::now());
            }
            // A failed walk proves nothing.
            let met = self.signal_marked(Some(Signal::KILL)).unwrap_or(usize::MAX);
            let still =
                before.is_multiple_of(2) && self.reaped.count.load(Ordering::SeqCst) == before;
            if met == 0 && still {
                return true;
            }
            if progress.1.elapsed() >= KILL_TIMEOUT {
                return false;
            }
            if start.elapsed() >= CHASE {
                kill_all();
            }
            if met == 0 {
                std::thread::yield_now();
                continue;
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(POLL_INTERVAL);
        }
    }

    /// One walk, with a signal for what is found: the number of processes, including dead ones that are
    /// not reaped yet.
    fn signal_marked(&self, signal: Option<Signal>) -> io::Result<usize> {
        let own = rustix::process::getpid();
        let mut met = 0;
        for pid in processes()? {
            let pid = pid?;
            met += usize::from(pid != own && self.signal_one(pid, signal));
        }
        Ok(met)
    }

    fn signal_one(&self, pid: Pid, signal: Option<Signal>) -> bool {
        if !self.has(pid) {
            return false;
        }
        let Some(signal) = signal else { return true };
        // Check again once it is held by a pidfd, so that what gets the signal is what was checked.
        let held = pidfd_open(pid, PidfdFlags::empty());
        if !self.has(pid) {
            return false;
        }
        _ = match held {
            Ok(held) => pidfd_send_signal(held, signal),
            Err(_) => kill_process(pid, signal),
        };
        true
    }

    fn has(&self, pid: Pid) -> bool {
        match self.mark {
            Some(mark) => limit_of(pid) == Some(mark),
            // Everything else is part of the tree only if the agent is the sandbox's init process.
            None => rustix::process::getpid().is_init(),
        }
    }
}

/// Kills every other process of the sandbox at once, which none can evade: no process is started
/// while the kernel does it. Does nothing if the agent is not the init process of its PID
/// namespace, because other processes than its commands exist there.
fn kill_all() {
    const EVERYBODY: c_int = -1;
    if rustix::process::getpid().is_init() {
        #[expect(unsafe_code, reason = "no safe interface signals everybody")]
        // SAFETY: a system call over plain numbers.
        unsafe {
            libc::kill(EVERYBODY, libc::SIGKILL);
        }
    }
}

/// All processes that are visible from here.
fn processes() -> io::Result<impl Iterator<Item = io::Result<Pid>>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = rustix::fs::Dir::new(openat(CWD, "/proc", flags, Mode::empty())?)?;
    Ok(listed.filter_map(|entry| match entry {
        Ok(entry) => Pid::from_raw(entry.file_name().to_str().ok()?.parse().ok()?).map(Ok),
        Err(errno) => Some(Err(errno.into())),
    }))
}

/// The marking limit of another process. `None` if the process is gone, or belongs to another user.
pub fn limit_of(pid: Pid) -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let pid = pid.as_raw_nonzero().get();
    #[expect(unsafe_code, reason = "no safe interface asks for another process's limit")]
    // SAFETY: no new limit is set, and the old one is written to our memory.
    let asked =
        unsafe { libc::prlimit64(pid, libc::RLIMIT_LOCKS, std::ptr::null(), &raw mut limit) };
    (asked == 0).then_some(limit.rlim_max)
}
