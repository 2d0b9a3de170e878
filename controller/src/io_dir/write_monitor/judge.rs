//! The judgement of scans: whether growth exceeds a limit, space falls below the reserve, or usage
//! hides. Pure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandbox_api::{ByteSize, DiskReserve, Limits, UNMEASURED_PART, failure};
use sandbox_dirfd::{DiskUsage, FreeSpace, ScanCoverage};
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{LIFETIME_ENTRIES, LIFETIME_WRITE_BYTES};
use sandbox_protocol::message::ScriptError;
use sandbox_staging::snapshot::MAX_DEPTH;

use super::schedule::{RemainingBudget, gone};

/// How much the io dir may grow over a sandbox's whole life if a single run has no lower limit: the
/// same as the agent's own limits.
const LIFE: DiskUsage = DiskUsage { bytes: LIFETIME_WRITE_BYTES, entries: LIFETIME_ENTRIES };
/// How much others may write at the same time, if the filesystem's free space is the only evidence.
pub(super) const OTHERS: u64 = 64 << 20;
/// The number of entries of an io dir above which commands are stopped during a scan that may find
/// a limit exceeded, because such a scan takes long.
pub(super) const MANY_ENTRIES: u64 = 5000;
/// The same, for the duration of the last scan: processes with many descriptors also make a scan
/// long.
const LONG_SCAN: Duration = Duration::from_millis(10);
/// Why the commands must end.
pub(super) const UNMEASURED: &str =
    "the io dir could not be measured within 30 s, so no limit of what is written there holds";
/// Why a staged io dir grows by more than was written.
const COPIES: &str = " (a file that was there is copied when it is first written)";

/// The state that later scans are compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Baseline {
    /// The usage of named and unnamed files.
    pub usage: DiskUsage,
    /// The usage of named files alone.
    pub named: DiskUsage,
    /// Whether that is known well enough to compute the difference.
    pub is_measured: bool,
    /// The usage before the sandbox's first command.
    pub first: DiskUsage,
    pub space: Option<FreeSpace>,
    pub reserve: DiskReserve,
    /// The io dir is the upper layer of an overlay.
    pub is_overlay: bool,
}

/// The limits of a run as absolute numbers.
#[derive(Debug)]
pub(super) struct Bounds {
    /// How large the io dir may become.
    pub limit: DiskUsage,
    /// How much it may grow.
    most: DiskUsage,
    /// Whether calls in progress took too much: the calls end, and the space may be free again
    /// before the run is judged.
    took_too_much: AtomicBool,
    /// Whether it is being ended, for any limit.
    is_ending: AtomicBool,
}

impl Bounds {
    pub fn new(before: DiskUsage, most: DiskUsage) -> Self {
        let (took_too_much, is_ending) = (AtomicBool::default(), AtomicBool::default());
        Self { limit: before + most, most, took_too_much, is_ending }
    }

    /// Ends the run, because its calls took too much.
    pub fn end(&self) {
        self.took_too_much.store(true, Ordering::Relaxed);
        self.set_ending();
    }

    /// Records that the run is being ended.
    pub fn set_ending(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Why the run must end, if its calls took too much.
    pub fn reason_to_end(&self) -> Option<ScriptError> {
        let message = format!(
            "calls in progress took more than what was left of {}, and 64 MiB",
            ByteSize::b(self.most.bytes)
        );
        let took_too_much = self.took_too_much.load(Ordering::Relaxed);
        took_too_much.then(|| failure(ErrorKind::WriteLimit, message))
    }

    /// How much of the limits is left.
    pub fn budget(&self, now: DiskUsage) -> RemainingBudget {
        RemainingBudget {
            bytes: self.limit.bytes.saturating_add(1).saturating_sub(now.bytes),
            most_bytes: self.most.bytes,
            entries: self.limit.entries.saturating_add(1).saturating_sub(now.entries),
            most_entries: self.most.entries,
        }
    }
}

/// The result of a scan of the io dir.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// Including unnamed files.
    pub usage: DiskUsage,
    pub coverage: ScanCoverage,
    pub unnamed: DiskUsage,
    /// Whether the sandbox holds something that cannot be measured, now and at the previous scan.
    pub unseen: bool,
    pub was_unseen: bool,
    /// How much space the filesystem has lost that the files found do not explain, since the last
    /// scan without unseen files.
    pub unexplained: u64,
    /// Whether no file was counted twice: the filesystem has lost as much space as was found, or
    /// the commands were stopped.
    pub is_backed: bool,
    /// Whether the commands were stopped.
    pub stood_still: bool,
    pub space: Option<FreeSpace>,
    /// There was no reply in time, and the rest is from the previous one.
    pub is_missing: bool,
}

impl Reading {
    /// Of named files only.
    pub const fn new(usage: DiskUsage, coverage: ScanCoverage, space: Option<FreeSpace>) -> Self {
        Self {
            usage,
            coverage,
            unnamed: DiskUsage { bytes: 0, entries: 0 },
            unseen: false,
            was_unseen: false,
            unexplained: 0,
            is_backed: false,
            stood_still: false,
            space,
            is_missing: false,
        }
    }

    /// Whether the sandbox uses, or may use, more than at the previous scan.
    pub const fn has_grown_since(&self, last: &Self) -> bool {
        self.usage.bytes > last.usage.bytes
            || self.usage.entries > last.usage.entries
            // Unmeasurable usage may be the sandbox's.
            || self.unseen && self.unexplained > last.unexplained
    }

    /// The same, with this scan's numbers of named files.
    pub fn with_named(self, (named, coverage): (DiskUsage, ScanCoverage)) -> Self {
        Self { usage: named + self.unnamed, coverage, ..self }
    }
}

impl Baseline {
    /// The same, to be compared with a scan alone: unnamed files of others existed before, and
    /// would allow the same amount to be written.
    pub const fn of_names(self) -> Self {
        Self { usage: self.named, ..self }
    }

    pub fn passed(&self, now: &Reading, limits: &Limits) -> Option<ScriptError> {
        if now.is_missing {
            return Some(failure(ErrorKind::WriteLimit, UNMEASURED));
        }
        self.grown(now, limits).or_else(|| {
            let space = now.space?;
            let little = too_little(space, self.reserve)?;
            if space.available >= self.reserve.of(space.size) {
                return Some(failure(ErrorKind::DiskFull, little));
            }
            let grown = now.usage.bytes.saturating_sub(self.usage.bytes);
            let share = match (self.is_measured, ByteSize::b(grown >> 20 << 20)) {
                (true, grown) => format!(", of which the sandbox has taken at least {grown}"),
                (false, _) => String::new(),
            };
            let fallen = ByteSize::b(gone(self.space, now.space).0 >> 20 << 20);
            let message = format!("{little}: {fallen} less than at the beginning{share}");
            Some(failure(ErrorKind::DiskFull, message))
        })
    }

    fn grown(&self, now: &Reading, limits: &Limits) -> Option<ScriptError> {
        if !self.is_measured {
            return None;
        }
        let most = DiskUsage {
            bytes: limits.max_write.as_u64(),
            entries: u64::from(limits.entries.get()),
        };
        let copies = if self.is_overlay { COPIES } else { "" };
        over(self.usage, now.usage, now.coverage, most, copies)
            .or_else(|| {
                let when = format!(" in the sandbox's life{copies}");
                over(self.first, now.usage, now.coverage, most.or(LIFE), &when)
            })
            .or_else(|| {
                // The amount cannot be measured; the filesystem's free space shows how much is
                // gone.
                let grown = now.usage.bytes.saturating_sub(self.usage.bytes);
                let gone = grown.saturating_add(now.unexplained);
                let hides =
                    now.unseen && now.was_unseen && gone > most.bytes.saturating_add(OTHERS);
                hides.then(|| {
                    let bytes = ByteSize::b(most.bytes);
                    let message = format!(
                        "the io dir's file system lost more than {bytes}, while the sandbox kept \
                         files where they cannot be measured"
                    );
                    failure(ErrorKind::WriteLimit, message)
                })
            })
    }
}

/// Whether less space is free than the reserve, or fewer inodes.
pub(super) fn too_little(space: FreeSpace, reserve: DiskReserve) -> Option<String> {
    let short = reserve.shortage(&space)?;
    Some(format!("the io dir's file system has {short} left (limits.disk_reserve)"))
}

/// The limit that the growth has exceeded.
fn over(
    before: DiskUsage,
    now: DiskUsage,
    coverage: ScanCoverage,
    most: DiskUsage,
    when: &str,
) -> Option<ScriptError> {
    let (bytes, entries) = (most.bytes, most.entries);
    if now.bytes.saturating_sub(before.bytes) > bytes {
        let bytes = ByteSize::b(bytes);
        let message = format!("the io dir grew by more than {bytes}{when}");
        return Some(failure(ErrorKind::WriteLimit, message));
    }
    if now.entries.saturating_sub(before.entries) > entries {
        let message = format!("more than {entries} files and directories were added{when}");
        return Some(failure(ErrorKind::TooManyFiles, message));
    }
    Some(failure(ErrorKind::TooManyFiles, unseen(coverage)?))
}

/// What prevents a scan from seeing everything that commands can write to.
pub(super) fn unseen(coverage: ScanCoverage) -> Option<String> {
    match coverage {
        ScanCoverage::All | ScanCoverage::Readable | ScanCoverage::Cut => None,
        ScanCoverage::Hidden => Some(format!(
            "the io dir has a directory that its owner cannot read, {UNMEASURED_PART}"
        )),
        ScanCoverage::Deep => Some(format!(
            "the io dir has directories more than {MAX_DEPTH} deep, {UNMEASURED_PART}"
        )),
    }
}

/// Checks whether the lost free space is explained by the files found. Their usage and the free
/// space have a constant sum while no one else writes and nothing is hidden.
#[derive(Debug)]
pub(super) struct Ledger {
    highest: u64,
}

impl Ledger {
    pub fn new(now: &Reading) -> Self {
        let left = now.space.map_or(0, |space| space.bytes);
        Self { highest: now.usage.bytes.saturating_add(left) }
    }

    /// How much is unexplained, given a later value of the free space.
    pub fn unexplained(&self, met: DiskUsage, space: Option<FreeSpace>) -> u64 {
        let Some(space) = space else { return 0 };
        self.highest.saturating_sub(met.bytes.saturating_add(space.bytes))
    }

    /// Whether at least as much space is gone as additional usage was found: files counted twice
    /// use no space.
    pub fn backs(&self, met: DiskUsage, space: Option<FreeSpace>) -> bool {
        space.is_some_and(|space| met.bytes.saturating_add(space.bytes) <= self.highest)
    }

    /// Records a scan, with the free space before and after it. A conclusive one has shown that
    /// nothing is hidden, so any other loss is caused by other processes.
    pub fn enter(&mut self, met: DiskUsage, space: [Option<FreeSpace>; 2], is_clear: bool) -> u64 {
        let [Some(before), Some(after)] = space else { return 0 };
        let sum = |left: u64| met.bytes.saturating_add(left);
        // Files may have been created or removed during the scan.
        let (least, most) = (before.bytes.min(after.bytes), before.bytes.max(after.bytes));
        self.highest = if is_clear { sum(least) } else { self.highest.max(sum(least)) };
        self.highest.saturating_sub(sum(most))
    }
}

/// Whether a scan takes long, and as much is gone as the commands may still use.
pub(super) fn is_worth_a_stop(
    entries: u64,
    last_took: Duration,
    (bytes, inodes): (u64, u64),
    left: RemainingBudget,
) -> bool {
    let is_long = entries.saturating_add(inodes) >= MANY_ENTRIES || last_took >= LONG_SCAN;
    is_long && (bytes >= left.bytes || inodes >= left.entries)
}

/// Whether calls in progress have taken too much since the commands were stopped, for a run that
/// may still use this: more than that, and more than honest calls may write in place at a time.
pub(super) const fn is_too_much(taken: u64, left: RemainingBudget) -> bool {
    taken > left.bytes.saturating_add(OTHERS)
}

/// How much all runs together may still write.
pub(super) fn budget(all: &[Arc<Bounds>], now: DiskUsage) -> RemainingBudget {
    let nearer = |one: RemainingBudget, other: RemainingBudget| RemainingBudget {
        bytes: one.bytes.min(other.bytes),
        most_bytes: one.most_bytes.max(other.most_bytes),
        entries: one.entries.min(other.entries),
        most_entries: one.most_entries.max(other.most_entries),
    };
    all.iter().map(|bounds| bounds.budget(now)).reduce(nearer).unwrap_or(RemainingBudget::NONE)
}

#[cfg(test)]
mod tests;
