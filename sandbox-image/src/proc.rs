//! What the agent reads from `/proc`. It is opened early: a confined agent can open nothing but the
//! mounts.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Longest `status`; the kernel's has about 1,500 bytes.
const STATUS_BYTES: usize = 8 << 10;

/// Information about this process and its kernel.
#[derive(Debug)]
pub struct Proc {
    /// The kernel's boot id; empty on a kernel that does not report it. An empty id equals no
    /// other.
    pub boot_id: String,
    status: Option<File>,
    /// CPU time used before this program started: the process ran the engine's code before it
    /// executed the agent.
    cpu_before: Duration,
}

impl Proc {
    /// Reads what is constant, and opens what is not.
    pub fn open() -> Self {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        Self {
            boot_id: boot_id.map(|id| id.trim().to_owned()).unwrap_or_default(),
            status: File::open("/proc/self/status").ok(),
            cpu_before: process_time(),
        }
    }

    /// CPU time of this program, all threads.
    pub fn cpu_time(&self) -> Duration {
        process_time().saturating_sub(self.cpu_before)
    }

    /// Peak resident size of this program; getrusage would include the engine's code before it. 0
    /// if the kernel does not report it.
    pub fn peak_memory(&self) -> u64 {
        let mut status = [0; STATUS_BYTES];
        let length = match &self.status {
            Some(file) => file.read_at(&mut status, 0).unwrap_or(0),
            None => 0,
        };
        let status = String::from_utf8_lossy(&status[..length]);
        let field = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = field.and_then(|field| field.trim().strip_suffix(" kB")?.trim().parse().ok());
        kib.map_or(0, |kib: u64| kib << 10)
    }
}

/// CPU time of this process, all threads, since it was created.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc_opened_before_confinement_stay_readable() {
        let proc = Proc::open();
        assert!(!proc.boot_id.is_empty());
        // More than the whole process has used so far.
        let before = proc.peak_memory();
        assert!(before > 0);
        let block = std::hint::black_box(vec![1_u8; usize::try_from(before).unwrap()]);
        assert!(proc.peak_memory() > before);
        drop(block);
    }
}
