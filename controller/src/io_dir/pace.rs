//! When to scan an io dir again. Pure.
//!
//! The cost of a scan is proportional to the number of entries, so it is followed by a rest. The
//! free space of the filesystem takes microseconds to check: as long as less space is gone since
//! the last scan than commands may still use, none of their limits can have been exceeded; as soon
//! as that much is gone, it is time for a scan, whoever used the space.

use std::time::Duration;

use tokio::time::Instant;

use crate::io_dir::disk::{DiskReserve, FreeSpace};

/// The minimum interval between the starts of two scans, and the maximum if they are cheap.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(2);
/// The rest after a scan, as a multiple of its duration: 5 % of one CPU ...
const REST: u32 = 19;
/// ... or a quarter of a CPU, if space is gone since then and the rest would be longer than
/// [`LATEST`].
const SHORT_REST: u32 = 3;
/// A scan that the free space triggers comes no sooner after the last one than that one took. If
/// such scans find nothing, because others write, the rest is doubled each time, up to this
/// multiple of a scan's duration ...
const MOST_FRUITLESS: u32 = 16;
/// ... but only while at most this much is gone beyond what the commands may use: a command that
/// triggers useless scans to benefit from that rest gains no more than this.
const SLACK: (u64, u64) = (32 << 20, 1000);
/// The interval of free space checks: short enough that commands that write at this many bytes per
/// second can use up neither their limit nor the space above the reserve in between, within these
/// bounds.
const FASTEST: u64 = 4 << 30;
const IDLE_TICK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// The minimum interval, if the rate of the loss is known.
const LEAST_TICK: Duration = Duration::from_millis(1);

/// How much commands may still use before one of their limits is exceeded, and of how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub bytes: u64,
    pub most_bytes: u64,
    pub entries: u64,
    pub most_entries: u64,
}

impl Room {
    /// Nothing more: the next scan is due as soon as possible.
    pub const NONE: Self = Self { bytes: 0, most_bytes: 1, entries: 0, most_entries: 1 };

    /// The remaining fraction.
    fn share(&self) -> f64 {
        let part = |left: u64, most: u64| (left as f64 / most.max(1) as f64).min(1.0);
        part(self.bytes, self.most_bytes).min(part(self.entries, self.most_entries))
    }
}

/// The result of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The sandbox uses, or may use, more than at the previous scan.
    Growth,
    Nothing,
}

/// Schedules scans and free space checks.
#[derive(Debug)]
pub(crate) struct Pace {
    /// When the last scan ended, how long it took, and the free space then.
    last_scan: Instant,
    took: Duration,
    space: Option<FreeSpace>,
    /// The time and the result of the last check.
    last_check: (Instant, Option<FreeSpace>),
    tick: Duration,
    /// The disk reserve.
    reserve: DiskReserve,
    /// Whether the free space triggered the scan that is due, and the rest before such a scan, as a
    /// multiple of the last one's duration.
    is_urgent: bool,
    urgent_rest: u32,
}

impl Pace {
    /// After a scan that has just ended.
    pub fn new(now: Instant, space: Option<FreeSpace>, reserve: DiskReserve) -> Self {
        Self {
            last_scan: now,
            took: Duration::ZERO,
            space,
            last_check: (now, space),
            tick: IDLE_TICK.0,
            reserve,
            is_urgent: false,
            urgent_rest: 1,
        }
    }

    /// How long to wait until the next free space check.
    pub const fn tick(&self) -> Duration {
        self.tick
    }

    /// Records a free space check that took `cost`; returns whether a scan is due.
    pub fn is_due(
        &mut self,
        now: Instant,
        cost: Duration,
        space: Option<FreeSpace>,
        room: Room,
    ) -> bool {
        let (bytes, inodes) = gone(self.space, space);
        self.is_urgent = bytes >= room.bytes || inodes >= room.entries;
        let (lately, _) = gone(self.last_check.1, space);
        let spare = space
            .map_or(u64::MAX, |space| space.available.saturating_sub(self.reserve.of(space.size)));
        let nanos = room.bytes.min(spare).saturating_mul(1_000_000_000) / FASTEST;
        let idle = Duration::from_nanos(nanos);
        self.tick = idle.clamp(IDLE_TICK.0, IDLE_TICK.1);
        if lately > 0 {
            // Half of the remaining time, so that the end is hit closely.
            let left = room.bytes.saturating_sub(bytes) as f64 / lately as f64;
            let until = (now - self.last_check.0).as_secs_f64() * left / 2.0;
            self.tick = self.tick.min(Duration::from_secs_f64(until.min(1.0))).max(LEAST_TICK);
        }
        self.tick = self.tick.max((cost * REST).min(LATEST));
        self.last_check = (now, space);
        let rest = match self.is_urgent {
            true => self.urgent_rest((bytes, inodes), room),
            false => rest(self.took, [self.space, space], room),
        };
        now - self.last_scan >= rest
    }

    fn urgent_rest(&self, (bytes, inodes): (u64, u64), room: Room) -> Duration {
        let is_much = bytes >= room.bytes.saturating_add(SLACK.0)
            || inodes >= room.entries.saturating_add(SLACK.1);
        match is_much {
            true => self.took,
            false => (self.took * self.urgent_rest).min(LATEST).max(self.took),
        }
    }

    /// How long the last scan took.
    pub const fn last_took(&self) -> Duration {
        self.took
    }

    /// How much is gone since the last scan.
    pub fn gone(&self, space: Option<FreeSpace>) -> u64 {
        gone(self.space, space).0
    }

    /// Records the end of a scan.
    pub fn record_scan(
        &mut self,
        started: Instant,
        ended: Instant,
        space: Option<FreeSpace>,
        found: Found,
    ) {
        (self.last_scan, self.took, self.space) = (ended, ended - started, space);
        self.urgent_rest = match (found, self.is_urgent) {
            (Found::Growth, _) => 1,
            (Found::Nothing, true) => (self.urgent_rest * 2).min(MOST_FRUITLESS),
            (Found::Nothing, false) => self.urgent_rest,
        };
    }
}

/// Bytes and inodes that are gone between two checks.
fn gone(before: Option<FreeSpace>, now: Option<FreeSpace>) -> (u64, u64) {
    let (Some(before), Some(now)) = (before, now) else { return (0, 0) };
    (before.bytes.saturating_sub(now.bytes), before.inodes.saturating_sub(now.inodes))
}

/// How long to wait after a scan of this duration, given the free space then and now.
fn rest(took: Duration, space: [Option<FreeSpace>; 2], room: Room) -> Duration {
    let longest = (took * REST).max(SOONEST);
    let shorter = |part| longest.min(LATEST).mul_f64(part).max(took * SHORT_REST).max(IDLE_TICK.0);
    // A filesystem that counts no inodes also reports used space late: Btrfs.
    let [Some(_), Some(FreeSpace { inodes: 1.., .. })] = space else {
        return shorter(room.share());
    };
    match gone(space[0], space[1]) {
        (0, 0) => longest,
        gone => shorter(room.share().max(untouched(gone, room))),
    }
}

/// The fraction of what commands may still use that they cannot have used, given how much is gone.
fn untouched((bytes, inodes): (u64, u64), room: Room) -> f64 {
    let part = |gone: u64, room: u64| 1.0 - (gone as f64 / room.max(1) as f64).min(1.0);
    part(bytes, room.bytes).min(part(inodes, room.entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room =
        Room { bytes: 50 << 20, most_bytes: 50 << 20, entries: 100, most_entries: 100 };

    const NONE: DiskReserve = DiskReserve::Bytes(sandbox_api::ByteSize::b(0));

    fn left(bytes: u64, inodes: u64) -> Option<FreeSpace> {
        Some(FreeSpace { bytes, available: bytes, inodes, size: 100 << 30 })
    }

    #[test]
    fn a_look_that_costs_much_is_made_less_often() {
        let space = left(10 << 30, 1000);
        let after =
            |millis, now| rest(Duration::from_millis(millis), [space, now], ROOM).as_millis();
        let idle = |millis| after(millis, space);
        assert_eq!([idle(0), idle(1), idle(20), idle(100)], [100, 100, 380, 1900]);
        // 5 % of one CPU for as long as nothing is gone; then at most a quarter.
        assert_eq!([idle(200), idle(2000)], [3800, 38_000]);
        for now in [left((10 << 30) - 1, 1000), left(10 << 30, 999), left(10 << 30, 0), None] {
            assert_eq!([after(200, now), after(2000, now)], [2000, 6000], "{now:?}");
        }
    }

    #[test]
    fn an_idle_program_near_its_limit_is_looked_at_no_more_often_than_another() {
        let space = left(10 << 30, 1000);
        let near = Room { bytes: 5 << 20, entries: 10, ..ROOM };
        let after = |now| rest(Duration::from_millis(1), [space, now], near).as_millis();
        assert_eq!(after(space), 100);
        // If space is gone: by the remaining part of the limit, or of the free space.
        assert_eq!(after(left((10 << 30) - (1 << 20), 1000)), 80);
        assert_eq!(after(left((10 << 30) - (5 << 20) + 1, 1000)), 10);
        assert_eq!(after(left(10 << 30, 991)), 10);
        // A filesystem that reports nothing, or counts no inodes.
        assert_eq!([after(None), after(left(10 << 30, 0))], [10, 10]);
        // Far from a limit, other writers do not trigger earlier scans.
        let far = rest(Duration::from_millis(1), [space, left(9 << 30, 1)], ROOM);
        assert_eq!(far.as_millis(), 100);
    }

    #[test]
    fn looks_for_what_others_write_come_further_apart_until_something_grows() {
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        let (before, now) = (left(10 << 30, 1000), left((10 << 30) - (50 << 20), 1000));
        let mut pace = Pace::new(begun, before, NONE);
        // The rest before a triggered scan, in multiples of the 10 ms that the last one took.
        let rest = |pace: &mut Pace, space| {
            pace.last_scan = after(0);
            (0..).find(|&it| pace.is_due(after(it * 10), Duration::ZERO, space, ROOM)).unwrap()
        };
        pace.record_scan(begun, after(10), before, Found::Nothing);
        for expected in [1, 2, 4, 8, 16, 16] {
            assert_eq!(rest(&mut pace, now), expected);
            pace.record_scan(begun, after(10), before, Found::Nothing);
        }
        // It cannot be used to hide: a loss beyond it triggers a scan as soon as ever.
        assert_eq!(rest(&mut pace, left((10 << 30) - (82 << 20), 1000)), 1);
        assert_eq!(rest(&mut pace, left((10 << 30) - (81 << 20), 1000)), 16);
        pace.record_scan(begun, after(10), before, Found::Growth);
        assert_eq!(rest(&mut pace, now), 1);
    }

    #[test]
    fn disk_reserve_is_checked_before_it_can_be_passed() {
        let begun = Instant::now();
        let tick = |free: u64| {
            let mut pace = Pace::new(begun, left(free, 1000), DiskReserve::Auto);
            let room = Room { bytes: 1 << 40, ..ROOM };
            pace.is_due(begun, Duration::ZERO, left(free, 1000), room);
            pace.tick().as_millis()
        };
        assert_eq!([tick(10 << 30), tick(3 << 29), tick(1 << 30)], [250, 125, 5]);
    }

    #[test]
    fn looks_come_closer_together_as_a_limit_comes_near_that_the_file_system_does_not_tell() {
        let room = |bytes| Room { bytes, ..ROOM };
        let rest = |room| rest(Duration::from_millis(1), [None, None], room).as_millis();
        let rooms = [50 << 20, 25 << 20, 5 << 20, 0].map(room);
        assert_eq!(rooms.map(rest), [100, 50, 10, 5]);
        assert_eq!(rest(Room { entries: 10, ..ROOM }), 10);
    }

    #[test]
    fn a_look_is_due_at_once_when_as_much_is_gone_as_may_still_be_taken() {
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        let due = |space, room| {
            let mut pace = Pace::new(begun, left(10 << 30, 1000), NONE);
            pace.is_due(after(10), Duration::ZERO, space, room)
        };
        assert!(!due(left(10 << 30, 1000), ROOM));
        assert!(!due(left((10 << 30) - (49 << 20), 1000), ROOM));
        assert!(due(left((10 << 30) - (50 << 20), 1000), ROOM));
        assert!(due(left(10 << 30, 900), ROOM));
        assert!(due(left(10 << 30, 1000), Room::NONE));
        // If others free space meanwhile, or the filesystem reports nothing, the schedule decides.
        assert!(!due(left(11 << 30, 2000), ROOM) && !due(None, ROOM));
        let mut pace = Pace::new(begun, None, NONE);
        assert!(pace.is_due(after(100), Duration::ZERO, None, ROOM));
        // A long scan is not followed by another at once.
        let mut pace = Pace::new(begun, left(10 << 30, 1000), NONE);
        pace.record_scan(begun, after(30), left(10 << 30, 1000), Found::Nothing);
        assert!(!pace.is_due(after(50), Duration::ZERO, left(0, 0), ROOM));
        assert!(pace.is_due(after(60), Duration::ZERO, left(0, 0), ROOM));
    }

    #[test]
    fn the_file_system_is_asked_more_often_the_quicker_it_fills() {
        let begun = Instant::now();
        let tick = |gone: u64, cost: u64, room: Room| {
            let mut pace = Pace::new(begun, left(10 << 30, 1000), NONE);
            let now = begun + Duration::from_millis(10);
            let cost = Duration::from_micros(cost);
            pace.is_due(now, cost, left((10 << 30) - gone, 1000), room);
            pace.tick().as_millis()
        };
        assert_eq!(tick(0, 0, ROOM), 12);
        assert_eq!(tick(25 << 20, 0, ROOM), 5);
        assert_eq!(tick(49 << 20, 0, ROOM), 1);
        assert_eq!(tick(0, 0, Room { bytes: 0, ..ROOM }), 5);
        assert_eq!(tick(0, 0, Room { bytes: 1 << 40, ..ROOM }), 250);
        // A slow filesystem, over a network, is not asked all the time.
        assert_eq!(tick(49 << 20, 20_000, ROOM), 380);
    }
}
