//! The judgement of measurements: whether growth exceeds a limit, or space falls below the reserve.
//! Pure.

use sandbox_api::{ByteSize, DiskReserve, Limits, UNMEASURED_PART, failure};
use sandbox_dirfd::{DiskUsage, FreeSpace, ScanCoverage};
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{LIFETIME_ENTRIES, LIFETIME_WRITE_BYTES};
use sandbox_protocol::message::ScriptError;
use sandbox_staging::snapshot::MAX_DEPTH;

use super::schedule::gone;

/// How much the io dir may grow over a sandbox's whole life if a single run has no lower limit: the
/// same as the agent's own limits.
const LIFE: DiskUsage = DiskUsage { bytes: LIFETIME_WRITE_BYTES, entries: LIFETIME_ENTRIES };
/// What is never reached.
const NEVER: DiskUsage = DiskUsage { bytes: u64::MAX, entries: u64::MAX };
/// Why the commands must end.
pub(super) const UNMEASURED: &str =
    "the io dir could not be measured within 30 s, so no limit of what is written there holds";
/// Why a staged io dir grows by more than was written.
const COPIES: &str = " (a file that was there is copied when it is first written)";

/// How much the io dir may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Most {
    /// While a run goes on.
    pub in_run: DiskUsage,
    /// In the life of the sandbox.
    pub in_life: DiskUsage,
}

impl Most {
    /// Those of a run with these limits. In an io dir that the kernel bounds only those count that
    /// are lower.
    pub fn of(bounds: Option<DiskUsage>, limits: &Limits) -> Self {
        let run = DiskUsage {
            bytes: limits.max_write.as_u64(),
            entries: u64::from(limits.entries.get()),
        };
        let Some(bounds) = bounds else { return Self { in_run: run, in_life: run.or(LIFE) } };
        let lower = |run: u64, bound: u64| if run < bound { run } else { u64::MAX };
        let in_run = DiskUsage {
            bytes: lower(run.bytes, bounds.bytes),
            entries: lower(run.entries, bounds.entries),
        };
        Self { in_run, in_life: NEVER }
    }
}

/// The state that later measurements are compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Baseline {
    pub usage: DiskUsage,
    /// How much of it that is.
    pub coverage: ScanCoverage,
    /// The usage before the sandbox's first command.
    pub first: DiskUsage,
    pub most: Most,
    pub space: Option<FreeSpace>,
    pub reserve: DiskReserve,
    /// The io dir is the upper layer of an overlay.
    pub is_overlay: bool,
}

/// The result of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub usage: DiskUsage,
    pub coverage: ScanCoverage,
    /// What is free on the disk; `None` if it takes none of a disk.
    pub space: Option<FreeSpace>,
    /// There was no reply in time, and the rest is from the previous one.
    pub is_missing: bool,
}

impl Baseline {
    pub fn passed(&self, now: &Reading) -> Option<ScriptError> {
        if now.is_missing {
            return Some(failure(ErrorKind::WriteLimit, UNMEASURED));
        }
        self.grown(now).or_else(|| {
            let space = now.space?;
            let little = too_little(space, self.reserve)?;
            if space.available >= self.reserve.of(space.size) {
                return Some(failure(ErrorKind::DiskFull, little));
            }
            let grown = now.usage.bytes.saturating_sub(self.usage.bytes);
            let share = match (self.is_measured(), ByteSize::b(grown >> 20 << 20)) {
                (true, grown) => format!(", of which the sandbox has taken at least {grown}"),
                (false, _) => String::new(),
            };
            let fallen = ByteSize::b(gone(self.space, now.space).0 >> 20 << 20);
            let message = format!("{little}: {fallen} less than at the beginning{share}");
            Some(failure(ErrorKind::DiskFull, message))
        })
    }

    /// Whether the difference to another measurement means something.
    fn is_measured(&self) -> bool {
        self.coverage < ScanCoverage::Hidden
    }

    fn grown(&self, now: &Reading) -> Option<ScriptError> {
        if !self.is_measured() {
            return None;
        }
        let Most { in_run, in_life } = self.most;
        let copies = if self.is_overlay { COPIES } else { "" };
        let life = format!(" in the sandbox's life{copies}");
        over(self.usage, now, in_run, copies).or_else(|| over(self.first, now, in_life, &life))
    }
}

/// Whether less space is free than the reserve, or fewer inodes.
pub(super) fn too_little(space: FreeSpace, reserve: DiskReserve) -> Option<String> {
    let short = reserve.shortage(&space)?;
    Some(format!("the io dir's file system has {short} left (limits.disk_reserve)"))
}

/// The limit that the growth has exceeded.
fn over(before: DiskUsage, now: &Reading, most: DiskUsage, when: &str) -> Option<ScriptError> {
    let (bytes, entries) = (most.bytes, most.entries);
    if now.usage.bytes.saturating_sub(before.bytes) > bytes {
        let bytes = ByteSize::b(bytes);
        let message = format!("the io dir grew by more than {bytes}{when}");
        return Some(failure(ErrorKind::WriteLimit, message));
    }
    if now.usage.entries.saturating_sub(before.entries) > entries {
        let message = format!("more than {entries} files and directories were added{when}");
        return Some(failure(ErrorKind::TooManyFiles, message));
    }
    Some(failure(ErrorKind::TooManyFiles, unseen(now.coverage)?))
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

#[cfg(test)]
mod tests;
