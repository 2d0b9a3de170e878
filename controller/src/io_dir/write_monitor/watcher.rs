//! The task that measures an io dir while commands run.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use sandbox_api::DiskReserve;
use sandbox_dirfd::DiskUsage;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::judge::{Reading, too_little};
use super::scan::{Scanner, blocking, space_of};
use super::schedule::{gone, rest, tick};
use crate::clock::Clock;

/// Measures an io dir for as long as it has users.
#[derive(Debug)]
pub(super) struct Watcher {
    pub measured: watch::Sender<Reading>,
    runs: Arc<Runs>,
    _task: AbortOnDropHandle<()>,
}

impl Watcher {
    pub fn start(scanner: Scanner, reserve: DiskReserve, clock: Clock, now: Reading) -> Arc<Self> {
        let (measured, runs) = (watch::Sender::new(now), Arc::new(Runs::default()));
        let runtime = scanner.runtime.clone();
        let work = keep_measuring(scanner, reserve, clock, runs.clone(), measured.clone());
        let task = AbortOnDropHandle::new(runtime.spawn(work));
        Arc::new(Self { measured, runs, _task: task })
    }

    /// Adds how large the io dir may become in a run, for as long as the returned value exists.
    pub fn begin(&self, limit: DiskUsage) -> Arc<DiskUsage> {
        let limit = Arc::new(limit);
        let mut all = crate::lock(&self.runs.0);
        all.retain(|limit| limit.strong_count() > 0);
        all.push(Arc::downgrade(&limit));
        limit
    }
}

/// The limits of all runs in progress.
#[derive(Debug, Default)]
struct Runs(Mutex<Vec<Weak<DiskUsage>>>);

impl Runs {
    /// The lowest limit and the highest, of each.
    fn limits(&self) -> (DiskUsage, DiskUsage) {
        let all = crate::lock(&self.0);
        let all: Vec<_> = all.iter().filter_map(Weak::upgrade).map(|limit| *limit).collect();
        let lowest = |of: fn(&DiskUsage) -> u64| all.iter().map(of).min().unwrap_or(u64::MAX);
        let least = DiskUsage { bytes: lowest(|it| it.bytes), entries: lowest(|it| it.entries) };
        (least, all.into_iter().reduce(DiskUsage::or).unwrap_or_default())
    }
}

/// The task of a watcher.
async fn keep_measuring(
    scanner: Scanner,
    reserve: DiskReserve,
    clock: Clock,
    runs: Arc<Runs>,
    measured: watch::Sender<Reading>,
) {
    let mut space = measured.borrow().space;
    // When the last measurement ended, how long it took, and the free space before it.
    let (mut ended, mut took, mut space_before) = (Instant::now(), Duration::ZERO, space);
    loop {
        let (least, most) = runs.limits();
        let used = measured.borrow().usage;
        let left = DiskUsage {
            bytes: least.bytes.saturating_sub(used.bytes),
            entries: least.entries.saturating_sub(used.entries),
        };
        let next = clock.now() + tick(left, space, reserve);
        clock.sleep_until(next).await;
        let io_dir = scanner.io_dir.clone();
        space = blocking(&scanner.runtime, move || space_of(&io_dir)).await.flatten();
        if ended.elapsed() < rest(took, gone(space_before, space), left) {
            measured.send_if_modified(|last| {
                last.space = space;
                space.is_some_and(|space| too_little(space, reserve).is_some())
            });
            continue;
        }
        let began = Instant::now();
        let found = scanner.measure(most.entries.saturating_add(1)).await;
        (ended, took, space_before) = (Instant::now(), began.elapsed(), space);
        measured.send_modify(|last| match found {
            Some((usage, coverage)) => {
                *last = Reading { usage, coverage, space, is_missing: false };
            }
            None => last.is_missing = true,
        });
    }
}
