//! When to scan an io dir again. Pure.
//!
//! The cost of a scan is proportional to the number of entries, so it is followed by a rest. The
//! free space of the filesystem takes microseconds to check: while less space is gone since the
//! last scan than commands may still use, no limit can have been exceeded; once that much is gone,
//! a scan is due, even if other processes used the space.

use std::time::Duration;

use sandbox_api::DiskReserve;
use sandbox_dirfd::FreeSpace;
use sandbox_engine::Stop;
use tokio::time::Instant;

use super::scan::SCAN_TIMEOUT;

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
/// How long the rest is before a scan that the free space triggers if the commands have written
/// that much, and the interval of that check, which takes milliseconds: they may make each scan
/// take seconds.
const REST_IF_THEIRS: Duration = Duration::from_millis(20);
/// The initial time limit for stopping the commands; one that takes longer is in a long call.
const SHORT_STOP: Duration = Duration::from_millis(250);
/// The maximum time limit: longer than most calls that use a disk take, and acceptable for an
/// honest program.
const LONGEST_STOP: Duration = Duration::from_secs(4);
/// The interval of free space checks: short enough that commands that write at this many bytes and
/// create this many files per second can use up neither their limit nor what is above the reserve in
/// between, within these bounds.
const FASTEST: u64 = 4 << 30;
const FASTEST_ENTRIES: u64 = 800_000;
const IDLE_TICK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// The minimum interval, if the rate of the loss is known.
const LEAST_TICK: Duration = Duration::from_millis(1);

/// How much commands may still use before one of their limits is exceeded, and the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemainingBudget {
    pub bytes: u64,
    pub most_bytes: u64,
    pub entries: u64,
    pub most_entries: u64,
}

impl RemainingBudget {
    /// Nothing more: the next scan is due as soon as possible.
    pub const NONE: Self = Self { bytes: 0, most_bytes: 1, entries: 0, most_entries: 1 };

    /// The remaining fraction.
    fn share(&self) -> f64 {
        let part = |left: u64, most: u64| (left as f64 / most.max(1) as f64).min(1.0);
        part(self.bytes, self.most_bytes).min(part(self.entries, self.most_entries))
    }
}

/// A scan, as the schedule of the next ones needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScanRecord {
    pub ended: Instant,
    /// How long it took.
    pub took: Duration,
    /// How long the commands were waited for: to stop, to free space, to die. That is idle time of
    /// this process, but not of theirs.
    pub waited: Duration,
    /// The free space before it.
    pub space: Option<FreeSpace>,
    /// Whether it found more than the last one.
    pub has_grown: bool,
    /// How completely the commands had stopped for it, if they were to.
    pub stop: Option<StopRecord>,
    /// Whether it did not find the lost space.
    pub hides: bool,
}

impl ScanRecord {
    /// A scan that took no time and found nothing.
    pub const fn none(ended: Instant, space: Option<FreeSpace>) -> Self {
        let (took, waited) = (Duration::ZERO, Duration::ZERO);
        Self { ended, took, waited, space, has_grown: false, stop: None, hides: false }
    }
}

/// A stop of the commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StopRecord {
    /// How complete it was.
    pub stop: Stop,
    /// How long they were waited for.
    pub after: Duration,
    /// How much calls in progress had taken by then.
    pub taken: u64,
}

/// Whether a stop waits longer, given the time since all were signalled, the maximum, and how much
/// calls in progress have taken meanwhile. Commands that a timer continues could write: then a scan
/// is due.
pub(super) fn waits_on(since: Duration, longest: Duration, taken: u64) -> bool {
    since < SHORT_STOP || since < longest && taken < SLACK.0
}

/// A series of stops that were cut short while something was hidden.
#[derive(Debug, Clone, Copy)]
struct Hiding {
    since: Instant,
    /// How long the next stop may take.
    longest_stop: Duration,
    /// How much calls in progress have taken in all of them.
    taken: u64,
}

/// Schedules scans and free space checks.
#[derive(Debug)]
pub(crate) struct ScanSchedule {
    last_scan: ScanRecord,
    /// The time and the result of the last check.
    last_check: (Instant, Option<FreeSpace>),
    tick: Duration,
    /// The disk reserve.
    reserve: DiskReserve,
    /// Whether the free space triggered the scan that is due.
    is_urgent: bool,
    /// The rest before such a scan, as a multiple of the last one's duration.
    rest_factor: u32,
    /// When the commands' writes were last checked for such a scan.
    last_ask: Instant,
    hiding: Option<Hiding>,
}

impl ScanSchedule {
    /// After a scan that has just ended.
    pub fn new(now: Instant, space: Option<FreeSpace>, reserve: DiskReserve) -> Self {
        Self {
            last_scan: ScanRecord::none(now, space),
            last_check: (now, space),
            tick: IDLE_TICK.0,
            reserve,
            is_urgent: false,
            rest_factor: 1,
            last_ask: now,
            hiding: None,
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
        budget: RemainingBudget,
    ) -> bool {
        let (bytes, inodes) = self.gone(space);
        self.is_urgent = bytes >= budget.bytes || inodes >= budget.entries;
        let lately = gone(self.last_check.1, space);
        let spare = space.map_or((u64::MAX, u64::MAX), |space| self.reserve.leaves(&space));
        let nanos = |left: u64, fastest| left.saturating_mul(1_000_000_000) / fastest;
        let idle = nanos(budget.bytes.min(spare.0), FASTEST)
            .min(nanos(budget.entries.min(spare.1), FASTEST_ENTRIES));
        self.tick = Duration::from_nanos(idle).clamp(IDLE_TICK.0, IDLE_TICK.1);
        let since = (now - self.last_check.0).as_secs_f64();
        let left = (budget.bytes.saturating_sub(bytes), budget.entries.saturating_sub(inodes));
        for (left, lately) in [(left.0, lately.0), (left.1, lately.1)] {
            if lately > 0 {
                // Half of the remaining time, so that the end is hit closely.
                let until = since * (left as f64 / lately as f64) / 2.0;
                self.tick = self.tick.min(Duration::from_secs_f64(until.min(1.0))).max(LEAST_TICK);
            }
        }
        self.tick = self.tick.max((cost * REST).min(LATEST));
        self.last_check = (now, space);
        let rest = match self.is_urgent {
            true => self.urgent_rest((bytes, inodes), budget),
            false => rest(self.last_scan.took, [self.last_scan.space, space], budget),
        };
        now - self.last_scan.ended >= rest
    }

    /// Whether a scan becomes due if the commands have written what is gone.
    pub fn is_due_if_theirs(&mut self, now: Instant) -> bool {
        let since = now - self.last_ask.max(self.last_scan.ended);
        let asks = self.is_urgent && since >= REST_IF_THEIRS;
        if asks {
            self.last_ask = now;
        }
        asks
    }

    fn urgent_rest(&self, (bytes, inodes): (u64, u64), budget: RemainingBudget) -> Duration {
        let is_much = bytes >= budget.bytes.saturating_add(SLACK.0)
            || inodes >= budget.entries.saturating_add(SLACK.1);
        let ScanRecord { took, waited, .. } = self.last_scan;
        match is_much {
            true => took,
            false => (took * self.rest_factor).max(waited).min(LATEST).max(took),
        }
    }

    /// How long the last scan took.
    pub const fn last_took(&self) -> Duration {
        self.last_scan.took
    }

    /// How long the commands may take to stop for the next scan.
    pub fn longest_stop(&self) -> Duration {
        self.hiding.map_or(SHORT_STOP, |hiding| hiding.longest_stop)
    }

    /// How much calls in progress have taken in earlier stops that were cut short.
    pub fn taken(&self) -> u64 {
        self.hiding.map_or(0, |hiding| hiding.taken)
    }

    /// Whether stops have been cut short, and the commands may hide something in calls.
    pub const fn is_hiding(&self) -> bool {
        self.hiding.is_some()
    }

    /// Whether that has lasted too long to be measured, as of the last scan.
    pub fn is_hiding_for_long(&self) -> bool {
        self.hiding.is_some_and(|hiding| self.last_scan.ended - hiding.since >= SCAN_TIMEOUT)
    }

    /// How many bytes and inodes are gone since the last scan.
    pub fn gone(&self, space: Option<FreeSpace>) -> (u64, u64) {
        gone(self.last_scan.space, space)
    }

    /// Records a scan.
    pub fn record(&mut self, scan: ScanRecord) {
        self.last_scan = scan;
        self.rest_factor = match (scan.has_grown, self.is_urgent) {
            (true, _) => 1,
            (false, true) => (self.rest_factor * 2).min(MOST_FRUITLESS),
            (false, false) => self.rest_factor,
        };
        self.hiding = self.hiding_after(scan);
    }

    /// A call that uses a disk may keep its file until it has ended: while that may explain the
    /// loss, each stop may take twice as long as the one before it.
    fn hiding_after(&self, scan: ScanRecord) -> Option<Hiding> {
        let Some(StopRecord { stop, after, taken }) = scan.stop.filter(|_| scan.hides) else {
            return self.hiding.filter(|_| scan.hides);
        };
        let taken = self.taken() + taken;
        match stop {
            Stop::Complete => None,
            // A process that was started meanwhile makes a stop partial too, but is not waited for.
            Stop::Partial if after >= SHORT_STOP => {
                let since = self.hiding.map_or(scan.ended, |hiding| hiding.since);
                let longest_stop = (self.longest_stop() * 2).min(LONGEST_STOP);
                Some(Hiding { since, longest_stop, taken })
            }
            _ => self.hiding.map(|hiding| Hiding { taken, ..hiding }),
        }
    }
}

/// Bytes and inodes that are gone between two checks.
pub(super) fn gone(before: Option<FreeSpace>, now: Option<FreeSpace>) -> (u64, u64) {
    let (Some(before), Some(now)) = (before, now) else { return (0, 0) };
    (before.bytes.saturating_sub(now.bytes), before.inodes.saturating_sub(now.inodes))
}

/// The rest after work of this duration.
pub(super) fn rest_after(took: Duration) -> Duration {
    (took * REST).max(SOONEST)
}

/// How long to wait after a scan of this duration, given the free space then and now.
fn rest(took: Duration, space: [Option<FreeSpace>; 2], budget: RemainingBudget) -> Duration {
    let longest = rest_after(took);
    let shorter = |part| longest.min(LATEST).mul_f64(part).max(took * SHORT_REST).max(IDLE_TICK.0);
    // A filesystem that does not count inodes says nothing about new entries, nor, without its
    // counters, about space: Btrfs.
    let [Some(_), Some(FreeSpace { inodes: 1.., .. })] = space else {
        return shorter(budget.share());
    };
    match gone(space[0], space[1]) {
        (0, 0) => longest,
        gone => shorter(budget.share().max(untouched(gone, budget))),
    }
}

/// The fraction of what commands may still use that they cannot have used, given how much is gone.
fn untouched((bytes, inodes): (u64, u64), budget: RemainingBudget) -> f64 {
    let part = |gone: u64, budget: u64| 1.0 - (gone as f64 / budget.max(1) as f64).min(1.0);
    part(bytes, budget.bytes).min(part(inodes, budget.entries))
}

#[cfg(test)]
mod tests;
