//! When to measure an io dir again. Pure.
//!
//! The cost of a walk is proportional to the number of entries, so it is followed by a rest. The free
//! space of the disk takes microseconds to check: while less of it is gone than commands may still
//! use, named files have exceeded no limit.

use std::time::Duration;

use sandbox_api::DiskReserve;
use sandbox_dirfd::{DiskUsage, FreeSpace};

/// The rest after a walk, as a multiple of its duration: 5 % of one CPU, within these bounds ...
const REST: u32 = 19;
const RESTS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// ... but never less than this.
const LEAST_REST: u32 = 3;
/// The interval of free space checks: as long as commands that write at this many bytes, and create
/// this many files per second, need to use up what is left, within these bounds.
const FASTEST: u64 = 4 << 30;
const FASTEST_ENTRIES: u64 = 800_000;
const TICKS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// How long to wait until the next check of the free space, if commands may still use so much.
pub(super) fn tick(left: DiskUsage, space: Option<FreeSpace>, reserve: DiskReserve) -> Duration {
    let spare = space.map_or((u64::MAX, u64::MAX), |space| reserve.leaves(&space));
    let nanos = |left: u64, fastest| left.saturating_mul(1_000_000_000) / fastest;
    let bytes = nanos(left.bytes.min(spare.0), FASTEST);
    let entries = nanos(left.entries.min(spare.1), FASTEST_ENTRIES);
    Duration::from_nanos(bytes.min(entries)).clamp(TICKS.0, TICKS.1)
}

/// How long to rest after a walk that took so long, if so much of the disk is gone since then, and so
/// much may still be used.
pub(super) fn rest(took: Duration, (bytes, inodes): (u64, u64), left: DiskUsage) -> Duration {
    if bytes > left.bytes || inodes > left.entries {
        return took;
    }
    (took * REST).clamp(RESTS.0, RESTS.1).max(took * LEAST_REST)
}

/// Bytes and inodes that are gone between two checks.
pub(super) fn gone(before: Option<FreeSpace>, now: Option<FreeSpace>) -> (u64, u64) {
    let (Some(before), Some(now)) = (before, now) else { return (0, 0) };
    (before.bytes.saturating_sub(now.bytes), before.inodes.saturating_sub(now.inodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: DiskUsage = DiskUsage { bytes: 50 << 20, entries: 10_000 };

    #[test]
    fn a_walk_takes_a_small_part_of_a_processor_unless_a_limit_may_be_exceeded() {
        let rest = |millis, gone| rest(Duration::from_millis(millis), gone, LEFT).as_millis();
        assert_eq!(rest(1, (0, 0)), 100);
        assert_eq!(rest(50, (50 << 20, 10_000)), 950);
        assert_eq!(rest(400, (0, 0)), 2000);
        assert_eq!(rest(10_000, (0, 0)), 30_000);
        assert_eq!([rest(50, ((50 << 20) + 1, 0)), rest(50, (0, 10_001))], [50; 2]);
    }

    #[test]
    fn free_space_is_checked_before_what_is_left_can_be_used_up() {
        let space =
            |available| Some(FreeSpace { available, size: 1 << 40, ..FreeSpace::default() });
        let none = DiskReserve::Bytes(sandbox_api::ByteSize::b(0));
        let tick = |left, space| tick(left, space, none).as_millis();
        assert_eq!(tick(LEFT, None), 12);
        assert_eq!(tick(DiskUsage::default(), None), 5);
        let unlimited = DiskUsage { bytes: u64::MAX, entries: u64::MAX };
        assert_eq!(tick(unlimited, space(1 << 40)), 250);
        // The reserve is near, which is of everything on that disk.
        assert_eq!(tick(unlimited, space(100 << 20)), 24);
    }
}
