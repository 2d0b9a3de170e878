//! The task that measures an io dir while commands run.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use sandbox_api::DiskReserve;
use sandbox_dirfd::{DiskUsage, FreeSpace};
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
        let watch = Watch {
            scanner,
            reserve,
            clock,
            ended: Instant::now(),
            took: Duration::ZERO,
            space: now.space,
            runs: runs.clone(),
            measured: measured.clone(),
        };
        let task = AbortOnDropHandle::new(runtime.spawn(watch.run()));
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
struct Watch {
    scanner: Scanner,
    reserve: DiskReserve,
    clock: Clock,
    /// When the last measurement ended, how long it took, and the free space before it.
    ended: Instant,
    took: Duration,
    space: Option<FreeSpace>,
    runs: Arc<Runs>,
    measured: watch::Sender<Reading>,
}

impl Watch {
    async fn run(mut self) {
        let mut space = self.space;
        loop {
            let (least, most) = self.runs.limits();
            let used = self.measured.borrow().usage;
            let left = DiskUsage {
                bytes: least.bytes.saturating_sub(used.bytes),
                entries: least.entries.saturating_sub(used.entries),
            };
            let next = self.clock.now() + tick(left, space, self.reserve);
            self.clock.sleep_until(next).await;
            space = self.free_space().await;
            if self.ended.elapsed() >= rest(self.took, gone(self.space, space), left) {
                self.measure(space, most.entries.saturating_add(1)).await;
            } else {
                self.measured.send_if_modified(|last| {
                    last.space = space;
                    space.is_some_and(|space| too_little(space, self.reserve).is_some())
                });
            }
        }
    }

    async fn measure(&mut self, space: Option<FreeSpace>, most: u64) {
        let began = Instant::now();
        let measured = self.scanner.measure(most).await;
        (self.ended, self.took, self.space) = (Instant::now(), began.elapsed(), space);
        self.measured.send_modify(|last| match measured {
            Some((usage, coverage)) => {
                *last = Reading { usage, coverage, space, is_missing: false };
            }
            None => last.is_missing = true,
        });
    }

    async fn free_space(&self) -> Option<FreeSpace> {
        let io_dir = self.scanner.io_dir.clone();
        blocking(&self.scanner.runtime, move || space_of(&io_dir)).await.flatten()
    }
}
