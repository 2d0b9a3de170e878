//! Which processes a program has started, however they may have hidden, and their end.
//!
//! Parents do not tell: a process that was forked twice is the agent's child, whoever started it. So
//! every program carries a mark that all of its descendants inherit and none can change: the limit
//! `RLIMIT_LOCKS`, which kernels keep and have made no use of since Linux 2.4. To raise it takes a
//! capability, and to change it at all is refused by the filter
//! ([`last`](crate::confine::seccomp::programs::last)). Where there is no such limit (gVisor), programs
//! run one at a time, and everything in the sandbox but the agent is its tree.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process, pidfd_open, pidfd_send_signal,
};

/// How long what was killed may take until one more of it is reaped: longer only where the kernel itself
/// hangs. A busy machine has run neither the agent nor what it killed for seconds.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a tree may run away from the walks after it.
const CHASE: Duration = Duration::from_secs(1);
/// The longest wait between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(8);

/// Makes marks.
#[derive(Debug)]
pub struct Marks {
    /// `None` where there are none to be had.
    next: Option<AtomicU64>,
}

impl Marks {
    /// Takes the limit down from what it is, so that no other process has a mark of ours: the agents of
    /// tests, which share a kernel and its processes, by chance alone.
    ///
    /// # Errors
    ///
    /// Where `/proc` does not show this process, and so not what it begins either.
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

    /// Whether several programs can be told apart.
    #[must_use]
    pub const fn tell_apart(&self) -> bool {
        self.next.is_some()
    }

    /// The tree of a new program.
    #[must_use]
    pub fn tree(&self) -> Tree {
        let mark = self.next.as_ref().map(|next| next.fetch_sub(1, Ordering::Relaxed));
        Tree { mark, reap_count: Arc::default() }
    }
}

/// How often the agent has reaped a process of a tree, counted before it does and after: odd, while it
/// does.
pub type ReapCount = AtomicU64;

/// A program and all that it has started.
#[derive(Debug)]
pub struct Tree {
    mark: Option<u64>,
    reap_count: Arc<ReapCount>,
}

impl Tree {
    /// The mark that the program is to carry.
    #[must_use]
    pub const fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// What the reaper counts.
    #[must_use]
    pub const fn reap_count(&self) -> &Arc<ReapCount> {
        &self.reap_count
    }

    /// Kills all of it, and waits until nothing is left; whether that is so.
    ///
    /// A process that is killed forks no more. One that forks and ends before it is met hides its child
    /// from the walk, again and again; but its parent is the agent then, or was, before it ended
    /// too, and so the agent reaps on such a walk. A walk on which nobody was met, and nobody of the
    /// tree was reaped, has seen that nobody is left. Whoever goes on running away is killed in one
    /// stroke with everything else in the sandbox.
    #[must_use]
    pub fn kill(&self) -> bool {
        let begun = Instant::now();
        let mut progress = (self.reap_count.load(Ordering::SeqCst), begun);
        let mut wait = Duration::from_micros(250);
        loop {
            let before = self.reap_count.load(Ordering::SeqCst);
            if before != progress.0 {
                progress = (before, Instant::now());
            }
            // A walk that could not be made has seen nobody, which says nothing.
            let met = self.kill_marked().unwrap_or(usize::MAX);
            let still =
                before.is_multiple_of(2) && self.reap_count.load(Ordering::SeqCst) == before;
            if met == 0 && still {
                return true;
            }
            if progress.1.elapsed() >= KILL_TIMEOUT {
                return false;
            }
            if begun.elapsed() >= CHASE {
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

    /// One walk: how many were there, those included that are dead and not reaped yet.
    fn kill_marked(&self) -> io::Result<usize> {
        let own = rustix::process::getpid();
        let mut met = 0;
        for pid in processes()? {
            let pid = pid?;
            met += usize::from(pid != own && self.strike_one(pid));
        }
        Ok(met)
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

/// Kills every other process of the sandbox at once, which nobody outruns: no process is begun while
/// the kernel does it. Does nothing where the agent is not the first of its PID namespace, and others
/// than its programs are there.
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

/// All processes that are seen from here.
fn processes() -> io::Result<impl Iterator<Item = io::Result<Pid>>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = rustix::fs::Dir::new(openat(CWD, "/proc", flags, Mode::empty())?)?;
    Ok(listed.filter_map(|entry| match entry {
        Ok(entry) => Pid::from_raw(entry.file_name().to_str().ok()?.parse().ok()?).map(Ok),
        Err(errno) => Some(Err(errno.into())),
    }))
}

/// The limit that is the mark, of another process. `None` where it is gone, or somebody else's.
pub fn limit_of(pid: Pid) -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let pid = pid.as_raw_nonzero().get();
    #[expect(unsafe_code, reason = "no safe interface asks for another process's limit")]
    // SAFETY: the new limit is none, and the old one is ours to write to.
    let asked =
        unsafe { libc::prlimit64(pid, libc::RLIMIT_LOCKS, std::ptr::null(), &raw mut limit) };
    (asked == 0).then_some(limit.rlim_max)
}
