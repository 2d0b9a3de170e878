//! The processes of a container, in this machine's `/proc`.
//!
//! The agent is not asked: a hostile command may have taken it over. They can be seen if the engine is
//! on this kernel, and inspected if this process is root or the user that they run as.

pub mod unnamed_files;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long children wait until their parents have stopped.
const PARENTS_FIRST: Duration = Duration::from_millis(10);
/// The shortest and the longest pause between two checks of processes that are to stop: a sixteenth
/// of the time since the first.
const PAUSES: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));
/// How long signalling all processes may take: a sandbox may have thousands, and start more.
const LONGEST_SIGNALLING: Duration = Duration::from_secs(1);
/// How many are signalled between two checks whether to continue.
const SIGNALS_AT_ONCE: usize = 256;
/// How often processes are listed again if new ones appear meanwhile.
const KILL_ROUNDS: usize = 16;
/// The system calls that wait for another process, without a file: to start one, and a connection that
/// the agent makes for a program.
#[cfg(target_arch = "x86_64")]
const WAITS: &[libc::c_long] =
    &[libc::SYS_clone, libc::SYS_clone3, libc::SYS_connect, libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const WAITS: &[libc::c_long] = &[libc::SYS_clone, libc::SYS_clone3, libc::SYS_connect];
/// Opens a thread, not its process: `PIDFD_THREAD`.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());
/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The processes of a container, if this machine shows them.
#[derive(Debug, Clone)]
pub struct Processes {
    /// The agent's pid.
    init: u32,
    /// Their line in `/proc/PID/cgroup`.
    group: String,
    /// The file that lists the threads of the cgroup.
    threads: PathBuf,
}

/// How many bytes each process has written, by its pid.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Written(BTreeMap<u32, u64>);

impl Written {
    /// How much they have written since; `None` if some have started or ended meanwhile, because
    /// their writes are unknown.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<u64> {
        self.0.keys().eq(before.0.keys()).then(|| self.known_since(before))
    }

    /// The same, as far as it is known: without processes that have ended meanwhile.
    #[must_use]
    pub fn known_since(&self, before: &Self) -> u64 {
        let before = |pid| before.0.get(pid).copied().unwrap_or(0);
        self.0.iter().map(|(pid, bytes)| bytes.saturating_sub(before(pid))).sum()
    }
}

/// What a thread does, and how long it has run, as the kernel's text says it.
#[derive(Debug, PartialEq, Eq)]
enum ThreadState {
    Stopped(String),
    /// Waits for another process in the kernel, and stops before it runs on.
    Waits(String),
    Runs,
}

/// How completely processes were stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Nothing ran.
    Complete,
    /// Some did not stop in time, or were started meanwhile.
    Partial,
    /// Some continued after they had stopped, because of a timer or a death.
    Broken,
}

/// Stopped processes of commands. Dropping this continues them.
#[derive(Debug)]
struct Stopped<'a> {
    processes: &'a Processes,
    /// Parents before their children. Without those that were stopped already.
    programs: Vec<Program>,
    /// The states of the threads that have stopped.
    stood: HashMap<u32, ThreadState>,
    /// Whether one of them was seen to run.
    is_broken: bool,
    /// Whether one may not be stopped: it runs as another user.
    is_denied: bool,
}

/// A process that was sent a stop signal.
#[derive(Debug)]
struct Program {
    pid: u32,
    process: OwnedFd,
    /// Whether to continue it: no other process had stopped it.
    resumes: bool,
    /// Whether it had taken the signal when all were waited for.
    has_taken: bool,
}

impl Stopped<'_> {
    /// Sends a process a stop signal, unless it is stopped already.
    fn stop_one(&mut self, pid: u32) {
        let Some(process) = self.processes.open(pid) else { return };
        let resumes = match stopping(pid) {
            Stopping::Done => return,
            // It stays stopped: its tracer or parent is waiting for that event.
            Stopping::Pending => false,
            Stopping::No => true,
        };
        match pidfd_send_signal(&process, Signal::STOP) {
            Ok(()) => self.programs.push(Program { pid, process, resumes, has_taken: false }),
            Err(errno) => self.is_denied |= errno == Errno::PERM,
        }
    }

    /// Signals each thread that still runs. The kernel gives a process's signal to one thread,
    /// which may be unable to handle it while a child of `vfork` lives or a disk call lasts; and
    /// other processes may have continued it. From Linux 6.9 on.
    fn stop_again(&mut self, pid: u32) {
        let is_running = |thread: &PathBuf| matches!(state(thread), b'R' | b'S');
        let threads: Vec<_> = threads_of(pid).into_iter().flatten().filter(is_running).collect();
        if threads.is_empty() {
            return;
        }
        match self.programs.iter_mut().find(|program| program.pid == pid) {
            Some(program) => program.resumes |= stopping(pid) == Stopping::No,
            None => self.stop_one(pid),
        }
        for thread in threads.iter().filter(|thread| self.processes.has(thread)) {
            let Some(id) = number_of(thread).and_then(|id| Pid::from_raw(id.cast_signed())) else {
                continue;
            };
            if let Ok(thread) = pidfd_open(id, PIDFD_THREAD) {
                _ = pidfd_send_signal(thread, Signal::STOP);
            }
        }
    }

    /// Checks which threads have stopped since the last check. Returns whether all have.
    fn look(&mut self) -> bool {
        let Ok(threads) = self.processes.threads_of_commands() else { return false };
        let mut have_all = true;
        for thread in threads {
            let folder = folder_of(thread);
            // A stopped thread is compared at the end: here its state suffices.
            if let Some(ThreadState::Stopped(_)) = self.stood.get(&thread) {
                self.is_broken |= !matches!(state(&folder), b'T' | b'Z' | b'X' | b'?');
                continue;
            }
            match thread_state(&folder) {
                None => {}
                Some(ThreadState::Runs) => have_all = false,
                Some(stopped) => _ = self.stood.insert(thread, stopped),
            }
        }
        have_all
    }

    /// How completely they have been stopped until now. They may have run meanwhile and be stopped
    /// again.
    fn so_far(&self) -> Stop {
        let mut so_far = if self.is_broken { Stop::Broken } else { Stop::Complete };
        let Ok(threads) = self.processes.threads_of_commands() else { return Stop::Partial };
        for thread in threads {
            let now = thread_state(&folder_of(thread));
            match (self.stood.get(&thread), now) {
                (_, None) => {}
                (Some(before), Some(now)) if *before == now => {}
                (Some(ThreadState::Stopped(_)), _) => return Stop::Broken,
                _ => so_far = so_far.max(Stop::Partial),
            }
        }
        so_far
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        for program in self.programs.iter().rev().filter(|program| program.resumes) {
            // Another signal to stop came meanwhile: it would be lost.
            if !(program.has_taken && has_stop_pending(program.pid)) {
                _ = pidfd_send_signal(&program.process, Signal::CONT);
            }
        }
    }
}

impl Processes {
    /// The processes of the container with the id `container`, of which `init` is the first. `None`
    /// if that process is not on this machine, or if its pid here belongs to another process.
    #[must_use]
    pub fn of(init: u32, container: &str) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{init}/cgroup")).ok()?;
        let (group, threads) = groups
            .lines()
            .filter(|line| line.contains(container))
            .flat_map(|line| files_of_threads(line).map(move |file| (line, file)))
            .find(|(_, file)| numbers(file).is_ok_and(|threads| threads.contains(&init)))?;
        Some(Self { init, group: group.to_owned(), threads })
    }

    /// How much they have written so far with system calls and mappings, including children that they
    /// have waited for; 0 if the kernel does not count it.
    #[must_use]
    pub fn written(&self) -> Written {
        self.counted(&["wchar", "write_bytes"])
    }

    /// The bytes they have passed to file systems for writing. Calls in progress add to this at
    /// once, unlike to [`Processes::written`].
    #[must_use]
    pub fn write_bytes(&self) -> Written {
        self.counted(&["write_bytes"])
    }

    fn counted(&self, names: &[&str]) -> Written {
        let all = self.all().unwrap_or_default().into_iter();
        Written(all.map(|pid| (pid, counted(pid, names))).collect())
    }

    /// The ids of all their threads. A container that has ended has none.
    ///
    /// # Errors
    ///
    /// Any other failure to read them.
    pub fn threads(&self) -> io::Result<Vec<u32>> {
        members(&self.threads)
    }

    /// Whether only the agent is left.
    #[must_use]
    pub fn are_gone(&self) -> bool {
        self.threads_of_commands().is_ok_and(|mut threads| threads.next().is_none())
    }

    /// The ids of the agent's threads.
    #[must_use]
    pub fn threads_of_agent(&self) -> HashSet<u32> {
        threads_of(self.init).into_iter().flatten().filter_map(|it| number_of(&it)).collect()
    }

    /// Runs `work` while the commands' processes are stopped, but not the agent. Blocking system
    /// calls are interrupted; disk calls are waited for while `waits_on` returns true, which gets
    /// the time since all processes were signalled. A process that its own parent has stopped is
    /// not continued.
    pub fn while_stopped<T>(
        &self,
        waits_on: impl FnMut(Duration) -> bool,
        work: impl FnOnce() -> T,
    ) -> (T, Stop) {
        let stopped = self.stop(waits_on);
        (work(), stopped.so_far())
    }

    /// Parents stop before their children, and continue after them: if one exits while a child is
    /// stopped, the kernel ends the child's job (`SIGHUP`). Children wait only briefly for that;
    /// processes that still run afterwards are signalled again, thread by thread.
    fn stop(&self, mut waits_on: impl FnMut(Duration) -> bool) -> Stopped<'_> {
        let mut stopped = Stopped {
            processes: self,
            programs: Vec::new(),
            stood: HashMap::new(),
            is_broken: false,
            is_denied: false,
        };
        let mut met = HashSet::from([self.init]);
        let (began, mut signalled) = (Instant::now(), None);
        'stopping: loop {
            // A process that is not stopped yet may start others.
            let all: BTreeSet<u32> = self.all().unwrap_or_default().into_iter().collect();
            let is_everybody = all.iter().all(|pid| met.contains(pid));
            let since = began.elapsed();
            let is_in_time = since < PARENTS_FIRST;
            let is_program = |pid: &u32| *pid != self.init && all.contains(pid);
            for (number, &pid) in all.iter().enumerate() {
                if number % SIGNALS_AT_ONCE == SIGNALS_AT_ONCE - 1 && !waits_on(Duration::ZERO) {
                    break 'stopping;
                }
                let is_early = || is_in_time && parent(pid).filter(is_program).is_some_and(runs);
                if !met.contains(&pid) && !is_early() {
                    met.insert(pid);
                    stopped.stop_one(pid);
                } else if pid != self.init && !is_in_time {
                    stopped.stop_again(pid);
                }
            }
            if is_everybody || since >= LONGEST_SIGNALLING {
                signalled.get_or_insert(since);
            }
            let have_stopped = stopped.look() && is_everybody;
            let is_over = have_stopped || stopped.is_broken || stopped.is_denied;
            let since_signal =
                signalled.map_or(Duration::ZERO, |signalled| began.elapsed() - signalled);
            if !waits_on(since_signal) || is_over {
                break;
            }
            std::thread::sleep((since / 16).clamp(PAUSES.0, PAUSES.1));
        }
        for program in &mut stopped.programs {
            program.has_taken = !has_stop_pending(program.pid);
        }
        stopped
    }

    /// Kills the commands' processes, and those that they start meanwhile, but not the agent. The
    /// agent is asked to end them too, but gets no CPU time while their system calls use up the
    /// container's.
    ///
    /// Only for an agent on this kernel: under another kernel the pids mean other processes.
    pub fn kill(&self) {
        let mut met = HashSet::from([self.init]);
        for _ in 0..KILL_ROUNDS {
            let mut new = self.all().unwrap_or_default();
            new.retain(|pid| met.insert(*pid));
            if new.is_empty() {
                return;
            }
            for process in new.into_iter().filter_map(|pid| self.open(pid)) {
                _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
    }

    /// One of their processes.
    fn open(&self, pid: u32) -> Option<OwnedFd> {
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let process = pidfd_open(process, PidfdFlags::empty()).ok()?;
        // The pid may have been reused. A thread that has exited may be in no cgroup any more.
        threads_of(pid)?.any(|thread| self.has(&thread)).then_some(process)
    }

    fn all(&self) -> io::Result<Vec<u32>> {
        members(&self.threads.with_file_name("cgroup.procs"))
    }

    /// Whether a thread is one of theirs, given its directory in `/proc`.
    fn has(&self, thread: &Path) -> bool {
        let groups = fs::read_to_string(thread.join("cgroup"));
        groups.is_ok_and(|groups| groups.lines().any(|line| line == self.group))
    }

    /// The ids of all threads but the agent's.
    fn threads_of_commands(&self) -> io::Result<impl Iterator<Item = u32>> {
        let threads = self.threads()?;
        // Read later: the agent may just have started a thread.
        let agent = self.threads_of_agent();
        Ok(threads.into_iter().filter(move |it| !agent.contains(it)))
    }
}

/// The sum of these numbers in a process's `/proc/PID/io`.
fn counted(pid: u32, names: &[&str]) -> u64 {
    let counts = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let count = |line: &str| -> u64 {
        let (name, bytes) = line.split_once(": ").unwrap_or_default();
        if names.contains(&name) { bytes.parse().unwrap_or(0) } else { 0 }
    };
    counts.lines().map(count).sum()
}

/// The directory in `/proc` of a thread, whichever process it belongs to.
fn folder_of(thread: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{thread}"))
}

/// The directories in `/proc` of a process's threads; `None` if it has exited.
fn threads_of(pid: u32) -> Option<impl Iterator<Item = PathBuf>> {
    let listed = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    Some(listed.flatten().map(|entry| entry.path()))
}

/// The number that its directory in `/proc` is named by.
fn number_of(thread: &Path) -> Option<u32> {
    thread.file_name()?.to_str()?.parse().ok()
}

/// Whether a thread of a process runs.
fn runs(pid: u32) -> bool {
    let mut states = threads_of(pid).into_iter().flatten().map(|it| thread_state(&it));
    states.any(|state| state == Some(ThreadState::Runs))
}

/// What a thread does, given its directory in `/proc`; `None` if it has exited.
fn thread_state(thread: &Path) -> Option<ThreadState> {
    // Not every kernel counts it.
    let run_time = || fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    match state(thread) {
        b'Z' | b'X' => None,
        b'T' => {
            // A thread is in this state before it has left its processor. This file, where it may be
            // read, waits for that.
            _ = fs::read(thread.join("syscall"));
            Some(ThreadState::Stopped(run_time()))
        }
        b'D' if is_in_wait(thread) => Some(ThreadState::Waits(run_time())),
        _ => Some(ThreadState::Runs),
    }
}

/// The kernel's letter for the state of a thread: `X` if it has exited, `?` if it is not known.
fn state(thread: &Path) -> u8 {
    match fs::read(thread.join("stat")) {
        Ok(stat) => after_name(&stat).and_then(|fields| fields.first().copied()).unwrap_or(b'?'),
        Err(error) if is_gone(&error) => b'X',
        Err(_) => b'?',
    }
}

/// The process that started this one, or that has taken it over.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let fields = std::str::from_utf8(after_name(&stat)?).ok()?;
    fields.split(' ').nth(1)?.parse().ok()
}

/// How far a process is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopping {
    No,
    /// It has yet to take the signal, or one of its threads has.
    Pending,
    Done,
}

/// How far a process is stopped, by any sender.
fn stopping(pid: u32) -> Stopping {
    // In this order: the kernel clears the one and sets the other at a time.
    let mut is_pending = has_stop_pending(pid);
    let mut is_done = true;
    for thread in threads_of(pid).into_iter().flatten() {
        match state(&thread) {
            b'Z' | b'X' => {}
            b'T' => is_pending = true,
            _ => is_done = false,
        }
    }
    match (is_done, is_pending) {
        (true, _) => Stopping::Done,
        (false, true) => Stopping::Pending,
        (false, false) => Stopping::No,
    }
}

/// Whether a process has yet to take a signal that stops it, which was sent to all of it. It can
/// neither block nor ignore that.
fn has_stop_pending(pid: u32) -> bool {
    const STOP: u64 = 1 << (libc::SIGSTOP - 1);
    // The program's name in it may have any bytes.
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let pending = pending.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    pending.is_some_and(|signals| signals & STOP != 0)
}

/// The fields of a `stat` file after the program's name, which may have any bytes.
fn after_name(stat: &[u8]) -> Option<&[u8]> {
    let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(name_ends + 2..)
}

/// Whether a thread is in such a system call. Only root can see it, and the thread's user where the
/// kernel permits.
fn is_in_wait(thread: &Path) -> bool {
    fs::read_to_string(thread.join("syscall")).is_ok_and(|call| is_wait(&call))
}

/// Whether a line of `/proc/PID/syscall` is about such a call.
fn is_wait(call: &str) -> bool {
    let number = call.split(' ').next().and_then(|number| number.parse().ok());
    number.is_some_and(|number: libc::c_long| WAITS.contains(&number))
}

/// The files that list the threads of a cgroup, given a line of `/proc/PID/cgroup`. Threads instead
/// of processes, because a thread may have its own descriptor table.
fn files_of_threads(line: &str) -> impl Iterator<Item = PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, group) = (fields.next(), fields.next());
    let group = group.unwrap_or_default().trim_start_matches('/').to_owned();
    let (hierarchies, name) = match controllers {
        // cgroup v2: alone, or next to v1.
        Some("") => (vec![String::new(), "unified".to_owned()], "cgroup.threads"),
        Some(controllers) => (vec![controllers.trim_start_matches("name=").to_owned()], "tasks"),
        None => (Vec::new(), ""),
    };
    hierarchies.into_iter().map(move |it| Path::new(CGROUPS).join(it).join(&group).join(name))
}

fn numbers(file: &Path) -> io::Result<Vec<u32>> {
    let listed = fs::read_to_string(file)?;
    Ok(listed.lines().filter_map(|line| line.parse().ok()).collect())
}

/// The ids in a file of a cgroup. One that has been removed has none.
fn members(file: &Path) -> io::Result<Vec<u32>> {
    match numbers(file) {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        listed => listed,
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ESRCH))
}

#[cfg(test)]
mod tests;
