//! When to look at an io dir again. Pure.
//!
//! A look costs as much as there is to be walked, so it is followed by a rest. What the file system has
//! left costs microseconds to ask: as long as less is gone since the last look than the programs may
//! still take, no limit of theirs was passed meanwhile; as soon as that much is gone, it is time for a
//! look, whoever has taken it.

use std::time::Duration;

use tokio::time::Instant;

use crate::io_dir::disk::{DiskReserve, FreeSpace};

/// How far apart two looks begin at least, and at most where they cost little.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(2);
/// A look is followed by a rest of so many times what it took: one processor's 5 % ...
const REST: u32 = 19;
/// ... or, where something is gone since and that would be longer than [`LATEST`], a quarter of it.
const SHORT_REST: u32 = 3;
/// A look that the free space asks for follows the last one after as long as that took. Where such looks
/// find nothing, since others write, the rest is doubled each time, up to so many times what one took ...
const MOST_FRUITLESS: u32 = 16;
/// ... and only while no more than this is gone beyond what the programs may take: whoever wastes
/// looks to hide behind that rest gets no more by it.
const SLACK: (u64, u64) = (32 << 20, 1000);
/// How often the file system is asked: as often as programs could take all that they may, or all that
/// need not stay free, at so many bytes a second, within these bounds.
const FASTEST: u64 = 4 << 30;
const IDLE_TICK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// The same, where it is seen how quickly space goes.
const LEAST_TICK: Duration = Duration::from_millis(1);

/// What programs may still take before one of their limits is passed, and of how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub bytes: u64,
    pub most_bytes: u64,
    pub entries: u64,
    pub most_entries: u64,
}

impl Room {
    /// Nothing more at all: it is to be looked at as soon as can be.
    pub const NONE: Self = Self { bytes: 0, most_bytes: 1, entries: 0, most_entries: 1 };

    /// The part that is left.
    fn share(&self) -> f64 {
        let part = |left: u64, most: u64| (left as f64 / most.max(1) as f64).min(1.0);
        part(self.bytes, self.most_bytes).min(part(self.entries, self.most_entries))
    }
}

/// What a look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// That the sandbox has, or may have, more than at the look before.
    Growth,
    Nothing,
}

/// How looks and questions follow each other.
#[derive(Debug)]
pub(crate) struct Pace {
    /// When the last look ended, how long it took, and what was left then.
    looked: Instant,
    took: Duration,
    space: Option<FreeSpace>,
    /// The last question's time and answer.
    asked: (Instant, Option<FreeSpace>),
    tick: Duration,
    /// What must stay free.
    reserve: DiskReserve,
    /// Whether the free space asked for the look that is due, and how long the rest before such a look
    /// is, as a multiple of what the last one took.
    is_urgent: bool,
    urgent_rest: u32,
}

impl Pace {
    /// Somebody has looked just now.
    pub fn new(now: Instant, space: Option<FreeSpace>, reserve: DiskReserve) -> Self {
        Self {
            looked: now,
            took: Duration::ZERO,
            space,
            asked: (now, space),
            tick: IDLE_TICK.0,
            reserve,
            is_urgent: false,
            urgent_rest: 1,
        }
    }

    /// How long to wait until the file system is asked again.
    pub const fn tick(&self) -> Duration {
        self.tick
    }

    /// Takes the file system's answer, which took `cost`: whether it is time for a look.
    pub fn is_due(
        &mut self,
        now: Instant,
        cost: Duration,
        space: Option<FreeSpace>,
        room: Room,
    ) -> bool {
        let (bytes, inodes) = gone(self.space, space);
        self.is_urgent = bytes >= room.bytes || inodes >= room.entries;
        let (lately, _) = gone(self.asked.1, space);
        let spare = space
            .map_or(u64::MAX, |space| space.available.saturating_sub(self.reserve.of(space.size)));
        let nanos = room.bytes.min(spare).saturating_mul(1_000_000_000) / FASTEST;
        let idle = Duration::from_nanos(nanos);
        self.tick = idle.clamp(IDLE_TICK.0, IDLE_TICK.1);
        if lately > 0 {
            // Half of the way, so that the end is met within little.
            let left = room.bytes.saturating_sub(bytes) as f64 / lately as f64;
            let until = (now - self.asked.0).as_secs_f64() * left / 2.0;
            self.tick = self.tick.min(Duration::from_secs_f64(until.min(1.0))).max(LEAST_TICK);
        }
        self.tick = self.tick.max((cost * REST).min(LATEST));
        self.asked = (now, space);
        let rest = match self.is_urgent {
            true => self.urgent_rest((bytes, inodes), room),
            false => rest(self.took, [self.space, space], room),
        };
        now - self.looked >= rest
    }

    fn urgent_rest(&self, (bytes, inodes): (u64, u64), room: Room) -> Duration {
        let is_much = bytes >= room.bytes.saturating_add(SLACK.0)
            || inodes >= room.entries.saturating_add(SLACK.1);
        match is_much {
            true => self.took,
            false => (self.took * self.urgent_rest).min(LATEST).max(self.took),
        }
    }

    /// How long the last look took.
    pub const fn last_took(&self) -> Duration {
        self.took
    }

    /// What is gone since the last look.
    pub fn gone(&self, space: Option<FreeSpace>) -> u64 {
        gone(self.space, space).0
    }

    /// A look is over.
    pub fn looked(
        &mut self,
        started: Instant,
        ended: Instant,
        space: Option<FreeSpace>,
        found: Found,
    ) {
        (self.looked, self.took, self.space) = (ended, ended - started, space);
        self.urgent_rest = match (found, self.is_urgent) {
            (Found::Growth, _) => 1,
            (Found::Nothing, true) => (self.urgent_rest * 2).min(MOST_FRUITLESS),
            (Found::Nothing, false) => self.urgent_rest,
        };
    }
}

/// Bytes and inodes that are gone from one answer to the next.
fn gone(before: Option<FreeSpace>, now: Option<FreeSpace>) -> (u64, u64) {
    let (Some(before), Some(now)) = (before, now) else { return (0, 0) };
    (before.bytes.saturating_sub(now.bytes), before.inodes.saturating_sub(now.inodes))
}

/// How long to wait after a look that took so long, by what was left then and is left now.
fn rest(took: Duration, space: [Option<FreeSpace>; 2], room: Room) -> Duration {
    let longest = (took * REST).max(SOONEST);
    let shorter = |part| longest.min(LATEST).mul_f64(part).max(took * SHORT_REST).max(IDLE_TICK.0);
    // One that counts no inodes tells late what is taken, too: Btrfs.
    let [Some(_), Some(FreeSpace { inodes: 1.., .. })] = space else {
        return shorter(room.share());
    };
    match gone(space[0], space[1]) {
        (0, 0) => longest,
        gone => shorter(room.share().max(untouched(gone, room))),
    }
}

/// The part of what programs may still take that they cannot have taken where so much is gone.
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
        // One processor's 5 % for as long as nothing is gone; then at most a quarter.
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
        // Where something is gone: by what is left of the limit, or of what is left.
        assert_eq!(after(left((10 << 30) - (1 << 20), 1000)), 80);
        assert_eq!(after(left((10 << 30) - (5 << 20) + 1, 1000)), 10);
        assert_eq!(after(left(10 << 30, 991)), 10);
        // A file system that tells nothing, or counts no inodes.
        assert_eq!([after(None), after(left(10 << 30, 0))], [10, 10]);
        // Far from a limit, others that write make no look come sooner.
        let far = rest(Duration::from_millis(1), [space, left(9 << 30, 1)], ROOM);
        assert_eq!(far.as_millis(), 100);
    }

    #[test]
    fn looks_for_what_others_write_come_further_apart_until_something_grows() {
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        let (before, now) = (left(10 << 30, 1000), left((10 << 30) - (50 << 20), 1000));
        let mut pace = Pace::new(begun, before, NONE);
        // The rest before an urgent look, in multiples of the 10 ms that the last one took.
        let rest = |pace: &mut Pace, space| {
            pace.looked = after(0);
            (0..).find(|&it| pace.is_due(after(it * 10), Duration::ZERO, space, ROOM)).unwrap()
        };
        pace.looked(begun, after(10), before, Found::Nothing);
        for expected in [1, 2, 4, 8, 16, 16] {
            assert_eq!(rest(&mut pace, now), expected);
            pace.looked(begun, after(10), before, Found::Nothing);
        }
        // Nobody hides behind that: what goes beyond it is looked for as soon as ever.
        assert_eq!(rest(&mut pace, left((10 << 30) - (82 << 20), 1000)), 1);
        assert_eq!(rest(&mut pace, left((10 << 30) - (81 << 20), 1000)), 16);
        pace.looked(begun, after(10), before, Found::Growth);
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
        // What others free meanwhile, and a file system that tells nothing, leave it to the clock.
        assert!(!due(left(11 << 30, 2000), ROOM) && !due(None, ROOM));
        let mut pace = Pace::new(begun, None, NONE);
        assert!(pace.is_due(after(100), Duration::ZERO, None, ROOM));
        // One that took long is not followed at once by another.
        let mut pace = Pace::new(begun, left(10 << 30, 1000), NONE);
        pace.looked(begun, after(30), left(10 << 30, 1000), Found::Nothing);
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
        // One that answers slowly, over a network, is not asked all the time.
        assert_eq!(tick(49 << 20, 20_000, ROOM), 380);
    }
}
