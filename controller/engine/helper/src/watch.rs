//! Limits the memory of a container that has no control groups, by looking at it.
//!
//! It is weaker than the kernel's limit: between two looks a program may take more, and memory that
//! no process maps, in a `memfd` or a socket, is not seen. The kernel's own limits of a process are
//! no replacement: one of address space stops a JVM, Node.js and AddressSanitizer.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::event::Timespec;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::process::Pid;

/// The time between two looks.
pub const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The file systems in memory that programs write to.
const TEMPORARY: [&str; 2] = ["tmp", "dev/shm"];

/// What is looked at, of one container.
#[derive(Debug)]
pub struct Watch {
    limit: u64,
    /// The container's own `/proc`, which has its processes alone.
    processes: OwnedFd,
    temporary: Vec<OwnedFd>,
}

/// Memory of processes, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Memory {
    /// Of processes alone, with what is swapped out and the page tables.
    own: u64,
    /// Of files in memory, and what processes share.
    shared: u64,
}

impl Watch {
    /// Of the container whose first process this is: it has its root already.
    pub fn of(first: Pid, limit: u64) -> io::Result<Self> {
        let root = format!("/proc/{first}/root");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &str| rustix::fs::open(format!("{root}/{path}"), flags, Mode::empty());
        // A container for scripts has neither.
        let temporary = TEMPORARY.iter().filter_map(|path| open(path).ok()).collect();
        Ok(Self { limit, processes: open("proc")?, temporary })
    }

    /// Whether it uses more memory than it may.
    pub fn is_exceeded(&self) -> bool {
        let temporary = self.temporary.iter().filter_map(used).sum();
        // Pages that several processes map count for each of them here, so it is the most that it can
        // be, and cheap.
        let most = |path: &Path| of_status(&read(path, "status")?);
        if total(self.sum(most), temporary) <= self.limit {
            return false;
        }
        let share = |path: &Path| of_rollup(&read(path, "smaps_rollup")?, &read(path, "status")?);
        // The kernel does not show the share of some programs: of those, all that they map counts.
        let used = self.sum(|path| share(path).or_else(|| most(path)));
        total(used, temporary) > self.limit
    }

    fn sum(&self, memory: impl Fn(&Path) -> Option<Memory>) -> Memory {
        let mut sum = Memory::default();
        let listed = rustix::io::fcntl_dupfd_cloexec(self.processes.as_fd(), 3).and_then(Dir::new);
        let Ok(mut listed) = listed else { return sum };
        // A copy of the descriptor has the position of the other.
        listed.rewind();
        for entry in listed.flatten() {
            let Ok(name) = entry.file_name().to_str() else { continue };
            if !name.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            let path = format!("/proc/self/fd/{}/{name}", self.processes.as_raw_fd());
            let path = Path::new(&path);
            // Where the first thread has ended, another one shows it. One that has ended has none.
            let of_others = || {
                let threads = fs::read_dir(path.join("task")).ok()?;
                threads.flatten().find_map(|thread| memory(&thread.path()))
            };
            if let Some(memory) = memory(path).or_else(of_others) {
                sum.own += memory.own;
                sum.shared += memory.shared;
            }
        }
        sum
    }
}

/// Files in memory may be mapped, so the larger of both counts.
fn total(memory: Memory, temporary: u64) -> u64 {
    memory.own + memory.shared.max(temporary)
}

/// The bytes that a file system in memory holds.
fn used(mount: &OwnedFd) -> Option<u64> {
    let stat = rustix::fs::fstatvfs(mount).ok()?;
    Some((stat.f_blocks - stat.f_bfree) * stat.f_bsize)
}

/// In `/proc/PID/status`, which everybody may read.
fn of_status(text: &str) -> Option<Memory> {
    // A zombie has no memory.
    let shared = kib(text, "RssShmem:")?;
    let own = sum_of(text, &["RssAnon:", "VmSwap:", "VmPTE:", "HugetlbPages:"]);
    Some(Memory { own, shared })
}

/// In `/proc/PID/smaps_rollup`: each page divided by the number of processes that map it. It has no page
/// tables, which a status has.
fn of_rollup(text: &str, status: &str) -> Option<Memory> {
    let shared = kib(text, "Pss_Shmem:")?;
    let own = sum_of(text, &["Pss_Anon:", "SwapPss:", "Shared_Hugetlb:", "Private_Hugetlb:"]);
    Some(Memory { own: own + kib(status, "VmPTE:").unwrap_or(0), shared })
}

/// Not every kernel has each of them.
fn sum_of(text: &str, names: &[&str]) -> u64 {
    names.iter().filter_map(|name| kib(text, name)).sum()
}

/// A file of a process as text. A process chooses its name, which need not be UTF-8.
fn read(path: &Path, name: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(path.join(name)).ok()?).into_owned())
}

fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_process_is_all_that_it_takes_but_files_of_a_disk() {
        let status = "Name:\tx\nVmPTE:\t 5 kB\nVmSwap:\t 7 kB\nHugetlbPages:\t 8 kB\nVmRSS:\t 9 kB\n\
                      RssAnon:\t    4 kB\nRssFile:\t    3 kB\nRssShmem:\t    2 kB\n";
        let expected = Memory { own: 24 << 10, shared: 2 << 10 };
        assert_eq!(of_status(status), Some(expected));
        let rollup = "Rss:  9 kB\nPss:  8 kB\nPss_Anon:   4 kB\nPss_File:  3 kB\nPss_Shmem:  2 kB\n\
                      Shared_Hugetlb: 6 kB\nPrivate_Hugetlb: 2 kB\nSwap: 9 kB\nSwapPss: 7 kB\n";
        assert_eq!(of_rollup(rollup, status), Some(expected));
        assert_eq!(of_status("Name:\tx\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn process_whose_name_is_no_text_or_whose_share_cannot_be_read_counts() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("7")).unwrap();
        let status = b"Name:\t\xff\xfe\nRssAnon:\t    4 kB\nRssShmem:\t    0 kB\n";
        fs::write(proc.path().join("7/status"), status).unwrap();
        let processes = fs::File::open(proc.path()).unwrap().into();
        let watch = Watch { limit: 4095, processes, temporary: Vec::new() };
        assert!(watch.is_exceeded());
    }

    #[test]
    fn process_whose_first_thread_has_ended_has_the_memory_that_another_shows() {
        let proc = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = proc.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("7/status", "State:\tZ (zombie)\n");
        write("7/task/8/status", "RssAnon:\t    4 kB\nRssShmem:\t    2 kB\n");
        write("7/task/8/smaps_rollup", "Pss_Anon:   4 kB\nPss_Shmem:  2 kB\n");
        for (limit, is_exceeded) in [(6 << 10, false), ((6 << 10) - 1, true)] {
            let processes = fs::File::open(proc.path()).unwrap().into();
            let watch = Watch { limit, processes, temporary: Vec::new() };
            assert_eq!(watch.is_exceeded(), is_exceeded, "{limit}");
        }
    }

    #[test]
    fn files_in_memory_that_are_mapped_count_once() {
        let memory = Memory { own: 10, shared: 5 };
        assert_eq!((total(memory, 4), total(memory, 7)), (15, 17));
    }
}
