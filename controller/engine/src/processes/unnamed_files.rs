//! Unnamed files of a sandbox's processes: open or mapped, but removed from every directory. No
//! scan of the io dir finds them, but they use space of its filesystem nevertheless.
//!
//! The controller itself looks for them in its machine's `/proc`, without asking the agent, which a
//! hostile command may have taken over. It can see them if the engine is on this kernel and the
//! controller is root or the user that the commands run as. It reports what it cannot see, so that
//! the filesystem's free space can be checked instead.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;
use std::{fs, io};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sandbox_dirfd::{DiskMeter, DiskUsage};

use super::{Processes, folder_of, state};

/// When to retry after there was no free descriptor.
const PAUSE: Duration = Duration::from_millis(1);

/// The device numbers of a filesystem: an overlay has several.
type Devices = [u64; 3];

/// Usage in addition to that of named files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unnamed {
    /// That of unnamed files.
    pub usage: DiskUsage,
    /// Whether a process holds, or may hold, something that cannot be measured: descriptors in
    /// flight in a socket's queue, or anything if the process cannot be inspected or there is no time
    /// for it.
    pub has_unseen: bool,
}

/// How thorough a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnnamedDepth {
    /// Open files.
    Open,
    /// Also mapped files, and descriptors in flight.
    Everything,
}

impl Processes {
    /// The unnamed files that they hold on the filesystem of the meter, which has these device
    /// numbers. What is not inspected while it `goes_on` is unseen: they may have hundreds of
    /// thousands of descriptors.
    #[must_use]
    pub fn unnamed_files(
        &self,
        meter: DiskMeter,
        devs: [u64; 3],
        depth: UnnamedDepth,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Unnamed {
        let mut search = Search::new(meter, devs, depth, goes_on);
        let threads = search.with_descriptor(|_| self.threads().map_err(errno));
        let Ok(threads) = threads else { return Unnamed { has_unseen: true, ..search.found } };
        // The agent hides itself from commands, and thereby from a controller of the same user.
        let agent = self.threads_of_agent();
        for thread in threads {
            match search.with_descriptor(|search| search.visit(thread)) {
                Ok(()) | Err(Errno::NOENT | Errno::SRCH) => {}
                Err(_) if agent.contains(&thread) => {}
                Err(_) => search.found.has_unseen = true,
            }
            if !(search.goes_on)() {
                search.found.has_unseen = true;
                break;
            }
        }
        search.found
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Makes the kernel free UNIX sockets that are only referenced by each other's queues, and the
/// files in these queues: they are in no process's descriptor table. It searches for them when any
/// UNIX socket is closed, in a thread of its own.
pub fn free_lost_sockets() {
    drop(UnixStream::pair());
}

/// What threads may have in common.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// Their memory: `KCMP_VM`.
    Memory = 1,
    /// Their table of descriptors: `KCMP_FILES`.
    Descriptors = 2,
}

/// Inspected parts: one thread of each, in an order that the kernel has. A thousand threads with a
/// thousand descriptors have a million entries in `/proc`, and one table.
#[derive(Debug, Default)]
struct Shared {
    memory: Vec<u32>,
    descriptors: Vec<u32>,
}

impl Shared {
    /// Inspects a part of a thread, unless another thread that shares it was inspected.
    fn once(
        &mut self,
        thread: u32,
        part: Part,
        look: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let known = match part {
            Part::Memory => &mut self.memory,
            Part::Descriptors => &mut self.descriptors,
        };
        let (mut low, mut high) = (0, known.len());
        while low < high {
            let middle = low.midpoint(high);
            match compare(known[middle], thread, part) {
                Some(Ordering::Equal) => return Ok(()),
                Some(Ordering::Less) => low = middle + 1,
                Some(Ordering::Greater) => high = middle,
                // The other one has exited, and shares nothing any more.
                None if has_exited(known[middle]) => {
                    known.remove(middle);
                    (low, high) = (0, known.len());
                }
                // Shared with another thread, or unsupported by this kernel.
                None => return look(),
            }
        }
        look()?;
        // Of one that exits meanwhile only some may have been seen.
        if !has_exited(thread) {
            known.insert(low, thread);
        }
        Ok(())
    }
}

fn has_exited(thread: u32) -> bool {
    matches!(state(&folder_of(thread)), b'Z' | b'X')
}

/// Compares a part of two threads, by what it is and where the kernel has it.
fn compare(one: u32, other: u32, part: Part) -> Option<Ordering> {
    // SAFETY: it takes numbers alone, and writes to no memory.
    #[expect(unsafe_code, reason = "nothing safe compares what threads share")]
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, part as libc::c_long, 0, 0) };
    match order {
        0 => Some(Ordering::Equal),
        1 => Some(Ordering::Less),
        2 => Some(Ordering::Greater),
        _ => None,
    }
}

struct Search<'a> {
    meter: DiskMeter,
    devs: Devices,
    depth: UnnamedDepth,
    goes_on: &'a mut dyn FnMut() -> bool,
    /// The inodes of unnamed files found so far.
    met: HashSet<u64>,
    /// The inodes of inspected sockets.
    sockets: HashSet<u64>,
    looked_at: Shared,
    found: Unnamed,
}

impl<'a> Search<'a> {
    fn new(
        meter: DiskMeter,
        devs: Devices,
        depth: UnnamedDepth,
        goes_on: &'a mut dyn FnMut() -> bool,
    ) -> Self {
        Self {
            meter,
            devs,
            depth,
            goes_on,
            met: HashSet::new(),
            sockets: HashSet::new(),
            looked_at: Shared::default(),
            found: Unnamed::default(),
        }
    }

    /// Retries while this process has no free descriptor, which says nothing about the inspected
    /// processes.
    fn with_descriptor<T>(
        &mut self,
        mut look: impl FnMut(&mut Self) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            match look(self) {
                Err(Errno::MFILE | Errno::NFILE) if (self.goes_on)() => sleep(PAUSE),
                result => return result,
            }
        }
    }

    fn visit(&mut self, thread: u32) -> Result<(), Errno> {
        let mut looked_at = std::mem::take(&mut self.looked_at);
        let open = looked_at.once(thread, Part::Descriptors, || self.visit_open(thread));
        let linked = open.and_then(|()| self.visit_linked(thread));
        let all = match self.depth {
            UnnamedDepth::Open => linked,
            UnnamedDepth::Everything => linked
                .and_then(|()| looked_at.once(thread, Part::Memory, || self.visit_mapped(thread))),
        };
        self.looked_at = looked_at;
        all
    }

    fn visit_open(&mut self, thread: u32) -> Result<(), Errno> {
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
            let looks_into = is_socket && self.depth == UnnamedDepth::Everything;
            if looks_into && self.sockets.insert(stat.st_ino) {
                let number = name.to_str().unwrap_or_default();
                let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{number}"));
                self.found.has_unseen |= has_descriptors_in_flight(&info.unwrap_or_default());
            }
            if !(self.goes_on)() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn visit_linked(&mut self, thread: u32) -> Result<(), Errno> {
        for link in ["exe", "cwd", "root"] {
            match rustix::fs::stat(format!("/proc/{thread}/{link}")) {
                Ok(stat) => self.meet(&stat),
                // A thread of the agent that is starting a command, or a thread that is exiting.
                Err(Errno::NOENT | Errno::SRCH) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn visit_mapped(&mut self, thread: u32) -> Result<(), Errno> {
        let maps = fs::read(format!("/proc/{thread}/maps")).map_err(errno)?;
        for line in maps.split(|&byte| byte == b'\n') {
            let Some((range, dev, inode)) = removed_mapping(line) else { continue };
            let may_be_there = self.devs.contains(&dev) || self.meter.has_subvolumes();
            if !may_be_there || self.met.contains(&inode) {
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
            let file = DiskUsage { bytes: self.meter.bytes_of(stat), entries: 1 };
            self.found.usage = self.found.usage + file;
        }
    }
}

/// Whether a socket's `fdinfo` reports descriptors in its queue.
fn has_descriptors_in_flight(info: &str) -> bool {
    let mut counts = info.lines().filter_map(|line| line.strip_prefix("scm_fds:"));
    counts.any(|count| count.trim() != "0")
}

/// The address range, the device and the inode of a mapping of a removed file, from its line in `maps`.
fn removed_mapping(line: &[u8]) -> Option<(&str, u64, u64)> {
    let line = line.strip_suffix(b" (deleted)")?;
    let mut fields = line.splitn(6, |&byte| byte == b' ').take(5).map(std::str::from_utf8);
    let range = fields.next()?.ok()?;
    let (major, minor) = fields.nth(2)?.ok()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let inode = fields.next()?.ok()?.parse().ok()?;
    Some((range, rustix::fs::makedev(number(major)?, number(minor)?), inode))
}

#[cfg(test)]
mod tests;
