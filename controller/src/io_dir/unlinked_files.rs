//! Unnamed files of a sandbox's processes: open or mapped, but removed from every directory. No
//! scan of the io dir finds them, but they use space of its filesystem all the same.
//!
//! The controller itself looks for them in its machine's `/proc`, without asking the agent, which a
//! hostile command may have taken over. It can see them if the engine is on this kernel and the
//! controller is root or the user that the commands run as. It reports what it cannot see, so that
//! the filesystem's free space can be checked instead.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox_staging::snapshot::bytes_of;

/// The maximum duration of a check. A sandbox may have thousands of threads with a thousand files
/// each.
const LONGEST: Duration = Duration::from_secs(1);
/// How often to look for processes that started while others were being stopped.
const STOP_ROUNDS: usize = 8;
/// How long stopped processes may take to stop.
const SETTLED: Duration = Duration::from_millis(250);
/// The system calls that start a process.
#[cfg(target_arch = "x86_64")]
const FORKS: [libc::c_long; 3] = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const FORKS: [libc::c_long; 2] = [libc::SYS_clone, libc::SYS_clone3];
/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The processes of a container, if this machine shows them.
#[derive(Debug)]
pub(crate) struct Processes {
    /// The agent's pid.
    init: u32,
    /// Their line in `/proc/PID/cgroup`.
    group: String,
    /// The file that lists the threads of the cgroup.
    threads: PathBuf,
}

/// Stopped processes of commands. Dropping this continues them.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    programs: Vec<(u32, OwnedFd)>,
    /// Whether no running process was left.
    is_complete: bool,
}

impl Stopped {
    /// Whether all of them remained stopped: a timer may have continued one.
    pub fn stood_still(&self) -> bool {
        self.is_complete && self.programs.iter().all(|&(pid, _)| has_stopped(pid) != Some(false))
    }

    /// Waits until all of them have stopped, but not for long. One that does not stop is in a long
    /// system call, which keeps the files that it uses though no descriptor is left.
    pub fn settle(self) -> Self {
        let deadline = Instant::now() + SETTLED;
        while !self.stood_still() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for (_, program) in &self.programs {
            _ = pidfd_send_signal(program, Signal::CONT);
        }
    }
}

/// Whether all threads of a process are stopped; `None` if it has exited. The main thread may have
/// exited before others.
fn has_stopped(pid: u32) -> Option<bool> {
    Some(threads(pid)?.all(|thread| thread_has_stopped(&thread) != Some(false)))
}

/// The directories in `/proc` of a process's threads; `None` if it has exited.
fn threads(pid: u32) -> Option<impl Iterator<Item = PathBuf>> {
    let listed = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    Some(listed.flatten().map(|entry| entry.path()))
}

/// Whether a thread is stopped, given its directory in `/proc`; `None` if it has exited.
fn thread_has_stopped(thread: &Path) -> Option<bool> {
    let stat = fs::read(thread.join("stat")).ok()?;
    let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
    Some(match stat.get(name_ends + 2)? {
        b'T' | b'Z' | b'X' => true,
        // It waits for a child that has not executed its program yet, and may itself be stopped.
        b'D' => fs::read_to_string(thread.join("syscall")).is_ok_and(|call| is_fork(&call)),
        _ => false,
    })
}

/// Whether a line of `/proc/PID/syscall` is about a call that starts a process.
fn is_fork(call: &str) -> bool {
    let number = call.split(' ').next().and_then(|number| number.parse().ok());
    number.is_some_and(|number: libc::c_long| FORKS.contains(&number))
}

/// Usage in addition to that of named files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Unnamed {
    /// The disk usage of unnamed files.
    pub bytes: u64,
    /// The number of unnamed files.
    pub entries: u64,
    /// Whether a process holds, or may hold, something that cannot be measured: descriptors in
    /// flight in a socket's queue, or anything if the process cannot be inspected.
    pub has_unseen: bool,
}

/// How thorough a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Open files.
    Open,
    /// Also mapped files, and descriptors in flight.
    Everything,
}

impl Processes {
    /// The processes of the container with the id `container`, of which `init` is the first. `None`
    /// if that process is not on this machine, or if its pid here belongs to another process.
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
    pub fn written(&self) -> u64 {
        let counts = |pid: u32| fs::read_to_string(format!("/proc/{pid}/io")).ok();
        let count = |line: &str| -> u64 {
            let (name, bytes) = line.split_once(": ").unwrap_or_default();
            if matches!(name, "wchar" | "write_bytes") { bytes.parse().unwrap_or(0) } else { 0 }
        };
        let all = self.processes().into_iter().filter_map(counts);
        all.flat_map(|text| text.lines().map(count).collect::<Vec<_>>()).sum()
    }

    /// Stops the commands' processes, but not the agent, so that nothing writes while the io dir is
    /// scanned. A process that its own parent has stopped is left as it is.
    pub fn stop(&self) -> Stopped {
        let mut stopped = Stopped::default();
        let mut met = HashSet::from([self.init]);
        // A process that is not stopped yet may start others.
        for _ in 0..STOP_ROUNDS {
            let mut new: Vec<u32> = self.processes();
            new.retain(|&pid| met.insert(pid));
            if new.is_empty() {
                stopped.is_complete = true;
                break;
            }
            let programs = new.into_iter().filter_map(|pid| Some((pid, self.stop_one(pid)?)));
            stopped.programs.extend(programs);
        }
        stopped
    }

    fn stop_one(&self, pid: u32) -> Option<OwnedFd> {
        let opened = pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()?;
        // The pid may have been reused. A thread that has exited may be in no cgroup any more.
        let groups = |thread: PathBuf| fs::read_to_string(thread.join("cgroup"));
        let is_ours = |groups: String| groups.lines().any(|line| line == self.group);
        if has_stopped(pid)? || !threads(pid)?.any(|thread| groups(thread).is_ok_and(is_ours)) {
            return None;
        }
        pidfd_send_signal(&opened, Signal::STOP).ok()?;
        Some(opened)
    }

    fn processes(&self) -> Vec<u32> {
        numbers(&self.threads.with_file_name("cgroup.procs")).unwrap_or_default()
    }

    /// The unnamed files that they hold on the filesystem with these device numbers: that of an overlay,
    /// and that of its layer.
    pub fn unnamed(&self, devs: [u64; 2], depth: Depth) -> Unnamed {
        // A container that has ended holds nothing.
        let threads = numbers(&self.threads).unwrap_or_default();
        let mut search = Search {
            devs,
            depth,
            deadline: Instant::now() + LONGEST,
            met: HashSet::new(),
            found: Unnamed::default(),
        };
        // The agent hides itself from commands, and thereby from a controller of the same user.
        let agent: HashSet<u32> = self.threads_of_agent().collect();
        for thread in threads {
            match search.visit(thread) {
                Ok(()) | Err(Errno::NOENT | Errno::SRCH) => {}
                Err(_) if agent.contains(&thread) => {}
                Err(_) => search.found.has_unseen = true,
            }
            if Instant::now() > search.deadline {
                search.found.has_unseen = true;
                break;
            }
        }
        search.found
    }

    fn threads_of_agent(&self) -> impl Iterator<Item = u32> {
        let number = |thread: PathBuf| thread.file_name()?.to_str()?.parse().ok();
        threads(self.init).into_iter().flatten().filter_map(number)
    }
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

struct Search {
    devs: [u64; 2],
    depth: Depth,
    deadline: Instant,
    /// The inodes of unnamed files found so far.
    met: HashSet<u64>,
    found: Unnamed,
}

impl Search {
    fn visit(&mut self, thread: u32) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, format!("/proc/{thread}/fd"), flags, Mode::empty())?;
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // Follows the link to the open file itself.
            let stat = match rustix::fs::statat(&folder, name, AtFlags::empty()) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            };
            self.meet(&stat);
            let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
            if is_socket && self.depth == Depth::Everything {
                let number = name.to_str().unwrap_or_default();
                let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{number}"));
                self.found.has_unseen |= has_descriptors_in_flight(&info.unwrap_or_default());
            }
            if Instant::now() > self.deadline {
                return Ok(());
            }
        }
        for link in ["exe", "cwd", "root"] {
            match rustix::fs::stat(format!("/proc/{thread}/{link}")) {
                Ok(stat) => self.meet(&stat),
                // A thread of the agent that is starting a command, or a thread that is exiting.
                Err(Errno::NOENT | Errno::SRCH) => {}
                Err(errno) => return Err(errno),
            }
        }
        match self.depth {
            Depth::Open => Ok(()),
            Depth::Everything => self.visit_mapped(thread),
        }
    }

    fn visit_mapped(&mut self, thread: u32) -> Result<(), Errno> {
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let maps = fs::read(format!("/proc/{thread}/maps")).map_err(errno)?;
        for line in maps.split(|&byte| byte == b'\n') {
            let Some((range, inode)) = removed_mapping(line, self.devs) else { continue };
            if self.met.contains(&inode) {
                continue;
            }
            match rustix::fs::stat(format!("/proc/{thread}/map_files/{range}")) {
                Ok(stat) => self.meet(&stat),
                // Unmapped meanwhile.
                Err(Errno::NOENT) => {}
                // Only root may follow it.
                Err(_) => self.found.has_unseen = true,
            }
        }
        Ok(())
    }

    fn meet(&mut self, stat: &Stat) {
        // Directories and links too: a removed directory keeps the space of its entries.
        let is_removed = stat.st_nlink == 0 && self.devs.contains(&stat.st_dev);
        if is_removed && self.met.insert(stat.st_ino) {
            self.found.bytes = self.found.bytes.saturating_add(bytes_of(stat));
            self.found.entries += 1;
        }
    }
}

/// Whether a socket's `fdinfo` reports descriptors in its queue.
fn has_descriptors_in_flight(info: &str) -> bool {
    let mut counts = info.lines().filter_map(|line| line.strip_prefix("scm_fds:"));
    counts.any(|count| count.trim() != "0")
}

/// The address range and the inode of a mapping of a removed file on one of `devs`, from its line in
/// `maps`.
fn removed_mapping(line: &[u8], devs: [u64; 2]) -> Option<(&str, u64)> {
    let line = line.strip_suffix(b" (deleted)")?;
    let mut fields = line.splitn(6, |&byte| byte == b' ').take(5).map(std::str::from_utf8);
    let range = fields.next()?.ok()?;
    let (major, minor) = fields.nth(2)?.ok()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let inode = fields.next()?.ok()?.parse().ok()?;
    devs.contains(&rustix::fs::makedev(number(major)?, number(minor)?)).then_some((range, inode))
}

#[cfg(test)]
mod tests;
