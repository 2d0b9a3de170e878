//! The processes of a container, in this machine's `/proc`.
//!
//! The agent is not asked: a hostile command may have taken it over. They can be seen if the engine is
//! on this kernel, and inspected if this process is root or the user that they run as.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use nix::sys::ptrace;
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long processes may take to stop. One that takes longer is in a long system call.
const LONGEST_STOP: Duration = Duration::from_millis(100);
/// The system calls that wait for another process, without a file: to start one, and a connection that
/// the agent makes for a program.
#[cfg(target_arch = "x86_64")]
const WAITS: &[libc::c_long] =
    &[libc::SYS_clone, libc::SYS_clone3, libc::SYS_connect, libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const WAITS: &[libc::c_long] = &[libc::SYS_clone, libc::SYS_clone3, libc::SYS_connect];
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

/// How long each thread has run, as the kernel's text says it.
type RunTimes = BTreeMap<u32, String>;

/// Stopped processes of commands. Those that this thread traces continue when it ends, whatever ends
/// it; dropping this continues the others.
#[derive(Debug)]
struct Stopped<'a> {
    processes: &'a Processes,
    /// Those that may not be traced, without those that their own parents had stopped.
    signalled: Vec<OwnedFd>,
    /// How long each thread had run when all of them had stopped. `None` if some did not.
    stood: Option<RunTimes>,
}

impl Stopped<'_> {
    /// Whether nothing has run since all of them stopped: a timer or a death may continue a process
    /// that a signal stopped, and it may stop itself again.
    fn stood_still(&self) -> bool {
        self.stood.is_some() && self.processes.standing() == self.stood
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        for program in &self.signalled {
            _ = pidfd_send_signal(program, Signal::CONT);
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

    /// How many bytes all of them have written so far with system calls and mappings, including
    /// children that they have waited for; 0 if the kernel does not count them.
    #[must_use]
    pub fn written(&self) -> u64 {
        let counts = |pid: u32| fs::read_to_string(format!("/proc/{pid}/io")).ok();
        let count = |line: &str| -> u64 {
            let (name, bytes) = line.split_once(": ").unwrap_or_default();
            if matches!(name, "wchar" | "write_bytes") { bytes.parse().unwrap_or(0) } else { 0 }
        };
        let all = self.all().unwrap_or_default().into_iter().filter_map(counts);
        all.flat_map(|text| text.lines().map(count).collect::<Vec<_>>()).sum()
    }

    /// The ids of all their threads. A container that has ended has none.
    ///
    /// # Errors
    ///
    /// Any other failure to read them.
    pub fn threads(&self) -> io::Result<Vec<u32>> {
        members(&self.threads)
    }

    /// The ids of the agent's threads.
    #[must_use]
    pub fn threads_of_agent(&self) -> HashSet<u32> {
        let number = |thread: PathBuf| thread.file_name()?.to_str()?.parse().ok();
        threads_of(self.init).into_iter().flatten().filter_map(number).collect()
    }

    /// Runs `work` while the commands' processes are stopped, but not the agent, and returns whether
    /// they were stopped for all of it. They have a tenth of a second to stop, and the system calls in
    /// which they wait are interrupted.
    ///
    /// # Panics
    ///
    /// If `work` does.
    pub fn while_stopped<T: Send>(&self, work: impl FnOnce() -> T + Send) -> (T, bool) {
        let stop = || {
            let stopped = self.stop();
            let result = work();
            (result, stopped.stood_still())
        };
        std::thread::scope(|scope| scope.spawn(stop).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Stops them until this thread ends. No signal, timer or death continues a traced thread. A
    /// process that may not be traced is stopped by a signal, unless its own parent has stopped it.
    fn stop(&self) -> Stopped<'_> {
        let mut stopped = Stopped { processes: self, signalled: Vec::new(), stood: None };
        let (mut threads, mut programs) = (HashSet::new(), HashSet::from([self.init]));
        let deadline = Instant::now() + LONGEST_STOP;
        loop {
            // A process that is not stopped yet may start others.
            let mut new = self.threads_of_programs().unwrap_or_default();
            new.retain(|&thread| threads.insert(thread));
            let is_everybody = new.is_empty();
            new.retain(|&thread| !self.trace(thread));
            if !new.is_empty() {
                let mut new = self.all().unwrap_or_default();
                new.retain(|&pid| programs.insert(pid));
                stopped.signalled.extend(new.into_iter().filter_map(|pid| self.signal(pid)));
            }
            if is_everybody {
                stopped.stood = self.standing();
            }
            if stopped.stood.is_some() || Instant::now() > deadline {
                return stopped;
            }
            if is_everybody {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Stops a thread for as long as this thread lives. Returns whether it is stopped, or ends.
    fn trace(&self, thread: u32) -> bool {
        let Ok(id) = thread.try_into().map(Pid::from_raw) else { return false };
        let is_ours = || self.has(Path::new(&format!("/proc/{thread}")));
        // The id may have been reused, until this thread traces it.
        if !is_ours() {
            return true;
        }
        ptrace::seize(id, ptrace::Options::empty()).is_ok()
            && (!is_ours() || ptrace::interrupt(id).is_ok())
    }

    /// Stops a process by a signal, unless it is stopped already.
    fn signal(&self, pid: u32) -> Option<OwnedFd> {
        let opened =
            pidfd_open(rustix::process::Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty())
                .ok()?;
        // The pid may have been reused. A thread that has exited may be in no cgroup any more.
        if !threads_of(pid)?.any(|thread| self.has(&thread))
            || threads_of(pid)?.all(|thread| is_stopped(&thread))
        {
            return None;
        }
        pidfd_send_signal(&opened, Signal::STOP).ok()?;
        Some(opened)
    }

    fn all(&self) -> io::Result<Vec<u32>> {
        members(&self.threads.with_file_name("cgroup.procs"))
    }

    fn threads_of_programs(&self) -> io::Result<Vec<u32>> {
        let mut all = self.threads()?;
        // Read later: the agent may just have started a thread.
        let agent = self.threads_of_agent();
        all.retain(|thread| !agent.contains(thread));
        Ok(all)
    }

    /// Whether a thread is one of theirs, given its directory in `/proc`.
    fn has(&self, thread: &Path) -> bool {
        let groups = fs::read_to_string(thread.join("cgroup"));
        groups.is_ok_and(|groups| groups.lines().any(|line| line == self.group))
    }

    /// How long each thread has run but the agent's, if they all are stopped.
    fn standing(&self) -> Option<RunTimes> {
        let run_time = |thread: u32| {
            let folder = PathBuf::from(format!("/proc/{thread}"));
            // Not every kernel counts it.
            let time = || fs::read_to_string(folder.join("schedstat")).unwrap_or_default();
            (is_stopped(&folder) || waits(&folder)).then(|| (thread, time()))
        };
        self.threads_of_programs().ok()?.into_iter().map(run_time).collect()
    }
}

/// The directories in `/proc` of a process's threads; `None` if it has exited.
fn threads_of(pid: u32) -> Option<impl Iterator<Item = PathBuf>> {
    let listed = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    Some(listed.flatten().map(|entry| entry.path()))
}

/// The state of a thread, given its directory in `/proc`; `None` if it has exited.
fn state(thread: &Path) -> Option<u8> {
    let stat = fs::read(thread.join("stat")).ok()?;
    let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(name_ends + 2).copied()
}

/// Whether a thread is stopped, or has exited.
fn is_stopped(thread: &Path) -> bool {
    state(thread).is_none_or(|state| matches!(state, b'T' | b't' | b'Z' | b'X'))
}

/// Whether a thread waits for another process in the kernel, and stops before it runs on. Only root,
/// and where the kernel lets it its user, is told.
fn waits(thread: &Path) -> bool {
    let call = || fs::read_to_string(thread.join("syscall"));
    state(thread) == Some(b'D') && call().is_ok_and(|call| is_wait(&call))
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
        // Version 2: alone, or beside version 1.
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
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

#[cfg(test)]
mod tests;
