//! Finds all processes that a command has started, however they try to hide, and asks them to end or
//! kills them.
//!
//! The parent is not sufficient: a double-forked process becomes the agent's child. So every
//! command carries a mark that all of its descendants inherit and cannot change: the limit
//! `RLIMIT_LOCKS`, which kernels keep and have not used since Linux 2.4. Raising it takes a
//! capability, and a filter ([`of_a_command`](crate::confine::seccomp::programs::of_a_command))
//! refuses any change. If there is no such limit (gVisor), commands run one at a time, none is kept, and
//! every process of the sandbox except the agent belongs to the tree.

use std::collections::HashSet;
use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
};

use crate::wake::Wake;

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
    /// How often everything in the sandbox was killed.
    sweeps: Arc<AtomicU64>,
}

impl Marks {
    /// Counts the limit down from its current value, so that no other process has one of our marks;
    /// agents of tests, which share a kernel and its processes, could only by chance.
    ///
    /// # Errors
    ///
    /// If `/proc` does not show this process, and so would not show those it starts.
    pub fn new() -> io::Result<Self> {
        if !processes()?.any(|pid| pid.is_ok_and(|pid| pid == getpid())) {
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
        Ok(Self { next: first.map(|first| AtomicU64::new(first - 1)), sweeps: Arc::default() })
    }

    /// Whether several commands can be distinguished.
    pub const fn tell_apart(&self) -> bool {
        self.next.is_some()
    }

    /// The tree of a new command. `wake` is woken when the agent has reaped a process of it.
    pub fn tree(&self, wake: &Arc<Wake>) -> Tree {
        let mark = self.next.as_ref().map(|next| next.fetch_sub(1, Ordering::Relaxed));
        let reaped = Reaped {
            count: AtomicU64::default(),
            cpu_us: AtomicU64::default(),
            peak_memory: AtomicU64::default(),
            wake: wake.clone(),
        };
        let own_sweeps = AtomicU64::new(self.sweeps.load(Ordering::SeqCst));
        Tree { mark, reaped: Arc::new(reaped), sweeps: self.sweeps.clone(), own_sweeps }
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
#[derive(Debug)]
pub struct Reaped {
    /// Incremented before and after each process, so it is odd meanwhile.
    count: AtomicU64,
    /// CPU time of these processes, and of those that they waited for, in microseconds.
    cpu_us: AtomicU64,
    /// Peak resident size of the largest of all these, in bytes.
    peak_memory: AtomicU64,
    wake: Arc<Wake>,
}

impl Reaped {
    /// Wakes who waits for the tree's end.
    pub fn wake(&self) {
        self.wake.wake();
    }

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
    /// The mark that the command carries.
    pub mark: Option<u64>,
    /// What the reaper has reaped of it.
    pub reaped: Arc<Reaped>,
    sweeps: Arc<AtomicU64>,
    /// How many of them there were before it, or were made because of it.
    own_sweeps: AtomicU64,
}

impl Tree {
    /// What its processes used that were reaped: all of them, once it [is gone](Self::is_gone) or has been
    /// [caught](Chase). That of a process whose parent ignores the exits of its children is lost: the
    /// kernel reaps it.
    pub fn used(&self) -> Used {
        Used {
            cpu: Duration::from_micros(self.reaped.cpu_us.load(Ordering::SeqCst)),
            peak_memory: self.reaped.peak_memory.load(Ordering::SeqCst),
        }
    }

    /// A number that changes when a process of it is reaped. When the last one has ended, the agent
    /// reaps it: its parent is the agent, or was one of these.
    pub fn reaps(&self) -> u64 {
        self.reaped.count.load(Ordering::SeqCst)
    }

    /// Whether everything in the sandbox was killed meanwhile, because of another tree.
    pub fn was_swept(&self) -> bool {
        self.sweeps.load(Ordering::SeqCst) != self.own_sweeps.load(Ordering::SeqCst)
    }

    /// Whether nothing is left of it.
    pub fn is_gone(&self) -> bool {
        self.walk(&[], |_| true).is_ok_and(|walk| walk.proves_the_end())
    }

    /// Sends these signals to those of its processes for which `whom` holds; returns whether there was one.
    /// One that is being forked meanwhile may be missed.
    pub fn signal(&self, signals: &[Signal], whom: impl Fn(Pid) -> bool) -> bool {
        self.walk(signals, whom).is_ok_and(|walk| !walk.met.is_empty())
    }

    /// One walk, with signals for what is found, including dead processes that are not reaped yet.
    fn walk(&self, signals: &[Signal], whom: impl Fn(Pid) -> bool) -> io::Result<Walk> {
        let before = self.reaps();
        let (own, mut met) = (getpid(), HashSet::new());
        let is_meant = |pid| self.has(pid) && whom(pid);
        for pid in processes()? {
            let pid = pid?;
            if pid != own && is_meant(pid) && send(pid, signals, is_meant) {
                met.insert(pid);
            }
        }
        let is_still = before.is_multiple_of(2) && self.reaps() == before;
        Ok(Walk { met, is_still })
    }

    fn has(&self, pid: Pid) -> bool {
        match self.mark {
            Some(mark) => limit_of(pid) == Some(mark),
            // Everything else is part of the tree only if the agent is the sandbox's init process.
            None => getpid().is_init(),
        }
    }

    /// Kills everything else in the sandbox too.
    fn sweep(&self) {
        // Elsewhere there are other processes than those of its commands.
        if getpid().is_init() {
            self.own_sweeps.fetch_add(1, Ordering::SeqCst);
            self.sweeps.fetch_add(1, Ordering::SeqCst);
            kill_all();
        }
    }
}

/// Sends signals to a process; returns whether it is still meant.
fn send(pid: Pid, signals: &[Signal], is_meant: impl Fn(Pid) -> bool) -> bool {
    if signals.is_empty() {
        return true;
    }
    // Check again once it is held by a pidfd, so that what gets the signal is what was checked.
    let held = pidfd_open(pid, PidfdFlags::empty());
    let is_meant = is_meant(pid);
    for &signal in signals.iter().filter(|_| is_meant) {
        _ = match &held {
            Ok(held) => pidfd_send_signal(held, signal),
            Err(_) => kill_process(pid, signal),
        };
    }
    is_meant
}

/// What a walk through all processes found.
struct Walk {
    met: HashSet<Pid>,
    /// None of the tree was reaped during it.
    is_still: bool,
}

impl Walk {
    /// Whether no process can be left.
    ///
    /// A process that forks and exits before a walk finds it can hide its child from walk after walk. But
    /// its parent is the agent, or was a process that exited before it, so the agent reaps during such a
    /// walk.
    fn proves_the_end(&self) -> bool {
        self.met.is_empty() && self.is_still
    }
}

/// The end of a tree: it is killed walk by walk, until one proves that nothing is left. A killed process
/// forks no more. If a tree keeps evading the walks, everything else in the sandbox is killed at once.
#[derive(Debug)]
pub struct Chase {
    start: Instant,
    /// What the last walk met.
    met: HashSet<Pid>,
    /// The last change of the number of reaped processes.
    progress: (u64, Instant),
    wait: Duration,
}

/// What a step of a [`Chase`] came to.
#[derive(Debug)]
pub enum Chased {
    /// Nothing is left.
    All,
    /// The kernel does not end what was killed.
    Never,
    /// The next step is then.
    Later(Instant),
}

impl Chase {
    /// Begins one.
    pub fn new(tree: &Tree) -> Self {
        let start = Instant::now();
        let (met, progress) = (HashSet::new(), (tree.reaps(), start));
        Self { start, met, progress, wait: Duration::from_micros(250) }
    }

    /// Until when what was killed must have been reaped.
    pub fn deadline(&self) -> Instant {
        self.progress.1 + KILL_TIMEOUT
    }

    /// One walk.
    pub fn step(&mut self, tree: &Tree) -> Chased {
        let now = Instant::now();
        let reaps = tree.reaps();
        if reaps != self.progress.0 {
            self.progress = (reaps, now);
        }
        // A failed walk proves nothing.
        let walk = tree.walk(&[Signal::KILL], |_| true);
        if walk.as_ref().is_ok_and(Walk::proves_the_end) {
            return Chased::All;
        }
        if now >= self.deadline() {
            return Chased::Never;
        }
        let Ok(walk) = walk else { return self.later(now) };
        // What the last walk killed may take its time to end; that is no evasion.
        let is_evaded = walk.met.is_empty() || !walk.met.is_subset(&self.met);
        if is_evaded && self.start + CHASE <= now {
            tree.sweep();
        }
        self.met = walk.met;
        if self.met.is_empty() { Chased::Later(now) } else { self.later(now) }
    }

    fn later(&mut self, now: Instant) -> Chased {
        let wait = self.wait;
        self.wait = (wait * 2).min(POLL_INTERVAL);
        Chased::Later(now + wait)
    }
}

/// Kills every other process of its PID namespace at once, which none can evade: no process is started
/// while the kernel does it.
fn kill_all() {
    const EVERYBODY: c_int = -1;
    #[expect(unsafe_code, reason = "no safe interface signals everybody")]
    // SAFETY: a system call over plain numbers.
    unsafe {
        libc::kill(EVERYBODY, libc::SIGKILL);
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
