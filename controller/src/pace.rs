//! When to look at an io dir again. Pure.
//!
//! A look costs as much as there is to be walked, so it is followed by a rest. What the file system has
//! left costs microseconds to ask: as long as less is gone since the last look than the programs may
//! still take, no limit of theirs was passed meanwhile; as soon as that much is gone, it is time for a
//! look, whoever has taken it.

use std::time::Duration;

use tokio::time::Instant;

use crate::disk::FreeSpace;

/// How far apart two looks begin at least, and at most where they cost little.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(2);
/// A look is followed by a rest of so many times what it took: one processor's 5 % ...
const REST: u32 = 19;
/// ... or, where that would be longer than [`LATEST`], a quarter of it.
const SHORT_REST: u32 = 3;
/// How often the file system is asked: as often as programs could take all that they may, at so many
/// bytes a second, within these bounds.
const FASTEST: u64 = 4 << 30;
const IDLE_TICK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));
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
}

impl Pace {
    /// Somebody has looked just now.
    pub fn new(now: Instant, space: Option<FreeSpace>) -> Self {
        let tick = IDLE_TICK.0;
        Self { looked: now, took: Duration::ZERO, space, asked: (now, space), tick }
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
        let is_urgent = bytes >= room.bytes || inodes >= room.entries;
        let (lately, _) = gone(self.asked.1, space);
        let idle = Duration::from_nanos(room.bytes.saturating_mul(1_000_000_000) / FASTEST);
        self.tick = idle.clamp(IDLE_TICK.0, IDLE_TICK.1);
        if lately > 0 {
            // Half of the way, so that the end is met within little.
            let left = room.bytes.saturating_sub(bytes) as f64 / lately as f64;
            let until = (now - self.asked.0).as_secs_f64() * left / 2.0;
            self.tick = self.tick.min(Duration::from_secs_f64(until.min(1.0))).max(LEAST_TICK);
        }
        self.tick = self.tick.max((cost * REST).min(LATEST));
        self.asked = (now, space);
        let rest = if is_urgent { self.took } else { rest(self.took, room.share()) };
        now - self.looked >= rest
    }

    /// What is gone since the last look.
    pub fn gone(&self, space: Option<FreeSpace>) -> u64 {
        gone(self.space, space).0
    }

    /// A look is over.
    pub fn looked(&mut self, started: Instant, ended: Instant, space: Option<FreeSpace>) {
        (self.looked, self.took, self.space) = (ended, ended - started, space);
    }
}

/// Bytes and inodes that are gone from one answer to the next.
fn gone(before: Option<FreeSpace>, now: Option<FreeSpace>) -> (u64, u64) {
    let (Some(before), Some(now)) = (before, now) else { return (0, 0) };
    (before.bytes.saturating_sub(now.bytes), before.inodes.saturating_sub(now.inodes))
}

/// How long to wait after a look that took so long, where such a share of a limit is left.
fn rest(took: Duration, share: f64) -> Duration {
    let longest = (took * REST).clamp(SOONEST, LATEST);
    longest.mul_f64(share).max(took * SHORT_REST).max(IDLE_TICK.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room =
        Room { bytes: 50 << 20, most_bytes: 50 << 20, entries: 100, most_entries: 100 };

    fn left(bytes: u64, inodes: u64) -> Option<FreeSpace> {
        Some(FreeSpace { bytes, available: bytes, inodes, size: 100 << 30 })
    }

    #[test]
    fn a_look_that_costs_much_is_made_less_often() {
        let rest = |millis| rest(Duration::from_millis(millis), 1.0).as_millis();
        assert_eq!([rest(0), rest(1), rest(20), rest(100)], [100, 100, 380, 1900]);
        assert_eq!([rest(200), rest(666), rest(2000)], [2000, 2000, 6000]);
    }

    #[test]
    fn looks_come_closer_together_as_a_limit_comes_near() {
        let rest = |share| rest(Duration::from_millis(1), share).as_millis();
        assert_eq!([rest(1.0), rest(0.5), rest(0.1), rest(0.0)], [100, 50, 10, 5]);
        let nearer = Room { entries: 10, ..ROOM };
        assert!((nearer.share() - 0.1).abs() < 1e-9 && (ROOM.share() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_look_is_due_at_once_when_as_much_is_gone_as_may_still_be_taken() {
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        let due = |space, room| {
            let mut pace = Pace::new(begun, left(10 << 30, 1000));
            pace.is_due(after(10), Duration::ZERO, space, room)
        };
        assert!(!due(left(10 << 30, 1000), ROOM));
        assert!(!due(left((10 << 30) - (49 << 20), 1000), ROOM));
        assert!(due(left((10 << 30) - (50 << 20), 1000), ROOM));
        assert!(due(left(10 << 30, 900), ROOM));
        assert!(due(left(10 << 30, 1000), Room::NONE));
        // What others free meanwhile, and a file system that tells nothing, leave it to the clock.
        assert!(!due(left(11 << 30, 2000), ROOM) && !due(None, ROOM));
        let mut pace = Pace::new(begun, None);
        assert!(pace.is_due(after(100), Duration::ZERO, None, ROOM));
        // One that took long is not followed at once by another.
        let mut pace = Pace::new(begun, left(10 << 30, 1000));
        pace.looked(begun, after(30), left(10 << 30, 1000));
        assert!(!pace.is_due(after(50), Duration::ZERO, left(0, 0), ROOM));
        assert!(pace.is_due(after(60), Duration::ZERO, left(0, 0), ROOM));
    }

    #[test]
    fn the_file_system_is_asked_more_often_the_quicker_it_fills() {
        let begun = Instant::now();
        let tick = |gone: u64, cost: u64, room: Room| {
            let mut pace = Pace::new(begun, left(10 << 30, 1000));
            let now = begun + Duration::from_millis(10);
            let cost = Duration::from_micros(cost);
            pace.is_due(now, cost, left((10 << 30) - gone, 1000), room);
            pace.tick().as_millis()
        };
        assert_eq!(tick(0, 0, ROOM), 12);
        assert_eq!(tick(25 << 20, 0, ROOM), 5);
        assert_eq!(tick(49 << 20, 0, ROOM), 1);
        assert_eq!(tick(0, 0, Room { bytes: 0, ..ROOM }), 5);
        assert_eq!(tick(0, 0, Room { bytes: 1 << 40, ..ROOM }), 50);
        // One that answers slowly, over a network, is not asked all the time.
        assert_eq!(tick(49 << 20, 20_000, ROOM), 380);
    }
}
