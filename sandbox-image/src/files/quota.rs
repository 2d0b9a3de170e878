//! The quotas of a run, and of a sandbox for its lifetime: bytes written and entries created.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{fstat, fstatvfs};
use rustix::io::Errno;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{LIFETIME_ENTRIES, LIFETIME_WRITE_BYTES, size_text};
use sandbox_protocol::message::Limits;

use super::error::FileError;

/// The space that one byte may occupy. The largest usual block; ext4's and XFS's is 4 KiB.
const BLOCK_BYTES: u64 = 16 << 10;
/// Bytes written between two queries of the file system's free space.
const BETWEEN_QUESTIONS: u64 = 1 << 20;

/// A counter with a limit.
#[derive(Debug)]
struct Counter {
    used: AtomicU64,
    max: u64,
}

impl Counter {
    const fn new(max: u64) -> Self {
        Self { used: AtomicU64::new(0), max }
    }

    /// Adds `n`, or returns an error and adds nothing if that would exceed the limit.
    fn take(&self, n: u64) -> Result<(), u64> {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(n).filter(|&sum| sum <= self.max)
            })
            .map(drop)
            .map_err(|_| self.max)
    }

    fn give_back(&self, n: u64) {
        self.used.fetch_sub(n, Ordering::Relaxed);
    }
}

/// The disk reserve: what stays free on the file system, even if other processes fill it.
#[derive(Debug)]
struct Reserve {
    bytes: u64,
    /// What may be written before the file system is queried again.
    known_free: AtomicU64,
}

impl Reserve {
    /// Whether `n` more bytes in `file`, or one more entry, leave the reserve free: a byte may
    /// occupy one block, and two if it starts in a half-full one. If a file system does not report
    /// its free space, it is assumed to be sufficient.
    fn is_kept(&self, file: impl AsFd, n: u64) -> bool {
        let n = n.saturating_add(BLOCK_BYTES);
        let take = |free: u64| free.checked_sub(n);
        let known = self.known_free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if self.bytes == 0 || known.is_ok() {
            return true;
        }
        let Ok(now) = fstatvfs(file) else { return true };
        let left = now.f_bavail.saturating_mul(now.f_frsize);
        let spare = left.checked_sub(self.bytes.saturating_add(n));
        self.known_free.store(spare.unwrap_or(0).min(BETWEEN_QUESTIONS), Ordering::Relaxed);
        spare.is_some()
    }
}

/// What a sandbox may use in its lifetime.
#[derive(Debug)]
pub struct Lifetime {
    bytes: Counter,
    entries: Counter,
}

impl Lifetime {
    /// The budget of a sandbox whose runs have these limits.
    pub fn new(limits: &Limits) -> Self {
        Self {
            bytes: Counter::new(limits.write_bytes.max(LIFETIME_WRITE_BYTES)),
            entries: Counter::new(limits.entries.max(LIFETIME_ENTRIES)),
        }
    }
}

/// What one run may use, within its sandbox's quota.
#[derive(Debug)]
pub(super) struct Quota {
    bytes: Counter,
    entries: Counter,
    lifetime: Arc<Lifetime>,
    reserve: Reserve,
    /// Devices on which no reserve is kept.
    spared: Vec<u64>,
}

impl Quota {
    pub fn new(limits: &Limits, lifetime: Arc<Lifetime>) -> Self {
        Self {
            bytes: Counter::new(limits.write_bytes),
            entries: Counter::new(limits.entries),
            lifetime,
            reserve: Reserve { bytes: limits.disk_reserve_bytes, known_free: AtomicU64::new(0) },
            spared: Vec::new(),
        }
    }

    /// Keeps no reserve on these devices: they are in memory, and end with the sandbox.
    pub fn spare(&mut self, devices: Vec<u64>) {
        self.spared = devices;
    }

    /// Refuses what would use the reserve.
    fn keep(&self, file: impl AsFd, n: u64) -> Result<(), FileError> {
        let is_spared = |device| self.spared.contains(&device);
        if !self.spared.is_empty() && fstat(&file).is_ok_and(|stat| is_spared(stat.st_dev))
            || self.reserve.is_kept(file, n)
        {
            return Ok(());
        }
        let reason = format!(
            "No space left on device: {} stay free (limits.disk_reserve)",
            size_text(self.reserve.bytes)
        );
        Err(FileError { reason, ..FileError::system(Errno::NOSPC, b"") })
    }

    /// Counts bytes before they are written to `file`.
    ///
    /// # Errors
    ///
    /// `write_limit`; `disk_full` if less than the disk reserve would be left. Then nothing is
    /// counted.
    pub fn charge(&self, file: impl AsFd, bytes: u64) -> Result<(), FileError> {
        take_both(&self.bytes, &self.lifetime.bytes, bytes).map_err(|max| {
            let reason = format!("write limit exceeded ({})", size_text(max));
            FileError::rule(ErrorKind::WriteLimit, reason, b"")
        })?;
        self.keep(file, bytes).inspect_err(|_| {
            self.bytes.give_back(bytes);
            self.lifetime.bytes.give_back(bytes);
        })
    }

    pub fn written(&self) -> u64 {
        self.bytes.used.load(Ordering::Relaxed)
    }

    /// Counts entries before they are created on the file system of `file`.
    pub fn take_entries(&self, file: impl AsFd, entries: u64) -> Result<(), FileError> {
        if entries == 0 {
            return Ok(());
        }
        take_both(&self.entries, &self.lifetime.entries, entries).map_err(|max| {
            let reason = format!("too many files created (max {max})");
            FileError::rule(ErrorKind::TooManyFiles, reason, b"")
        })?;
        let blocks = entries.saturating_mul(BLOCK_BYTES);
        self.keep(file, blocks).inspect_err(|_| self.give_back_entries(entries))
    }

    /// For entries that were counted but not created.
    pub fn give_back_entries(&self, entries: u64) {
        self.entries.give_back(entries);
        self.lifetime.entries.give_back(entries);
    }
}

fn take_both(run: &Counter, lifetime: &Counter, n: u64) -> Result<(), u64> {
    run.take(n)?;
    lifetime.take(n).inspect_err(|_| run.give_back(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_is_counted_whole_or_not_at_all() {
        let counter = Counter::new(10);
        assert_eq!(counter.take(8), Ok(()));
        assert_eq!(counter.take(3), Err(10));
        assert_eq!(counter.take(u64::MAX), Err(10));
        assert_eq!(counter.take(2), Ok(()));
        assert_eq!(counter.take(1), Err(10));
        assert_eq!(counter.take(0), Ok(()));
    }

    #[test]
    fn write_that_would_leave_less_than_the_reserve_is_refused_and_not_counted() {
        let file = tempfile::tempfile().unwrap();
        let left = {
            let now = fstatvfs(&file).unwrap();
            now.f_bavail * now.f_frsize
        };
        let quota = |disk_reserve_bytes| {
            let limits = Limits { disk_reserve_bytes, ..crate::files::tests::setup::LIMITS };
            Quota::new(&limits, Arc::new(Lifetime::new(&limits)))
        };
        let full = quota(left + (64 << 30));
        assert_eq!(full.take_entries(&file, 1).unwrap_err().kind, ErrorKind::DiskFull);
        assert_eq!(full.entries.used.load(Ordering::Relaxed), 0);
        let error = full.charge(&file, 1).unwrap_err();
        assert_eq!((error.kind, error.errno), (ErrorKind::DiskFull, Some(Errno::NOSPC)));
        assert!(error.reason.ends_with("(limits.disk_reserve)"), "{error}");
        assert_eq!(full.written(), 0);
        for reserve in [0, left / 2] {
            let quota = quota(reserve);
            quota.charge(&file, 5).unwrap();
            assert_eq!(quota.written(), 5);
        }
    }

    #[test]
    fn writes_refused_by_the_sandbox_quota_are_not_charged_to_the_run() {
        let (run, lifetime) = (Counter::new(10), Counter::new(5));
        assert_eq!(take_both(&run, &lifetime, 6), Err(5));
        assert_eq!(take_both(&run, &lifetime, 5), Ok(()));
        assert_eq!(run.used.load(Ordering::Relaxed), 5);
    }
}
