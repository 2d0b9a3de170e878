//! Monitors how much commands write to an io dir while they run, and finds what they changed.
//!
//! The writes of commands cannot be counted. The kernel counts them in a [bounded
//! directory](sandbox_staging::bounded), and enforces the sandbox's limits there; what is left to
//! monitor is a run's lower limit, by what the kernel says is in use. Any other io dir is measured by
//! walks at a bounded pace ([`schedule`]). A [`Watcher`], one for everything that runs in a sandbox at
//! a time, measures repeatedly, and checks the free space of the disk in between. Each run compares
//! the result with the state before it began ([`judge`]).

mod judge;
mod scan;
mod schedule;
mod watcher;

use std::sync::{Arc, Mutex, OnceLock, Weak};

use sandbox_api::{DiskReserve, FilesTouched, Limits, TouchedSource, failure};
use sandbox_dirfd::DiskUsage;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::ScriptError;
use sandbox_staging::snapshot::Snapshot;
use tokio::runtime::Handle;

use self::judge::{Baseline, Most, Reading, UNMEASURED, too_little, unseen};
use self::scan::{FEW_ENTRIES, Scanner, space_of};
use self::watcher::Watcher;
use crate::clock::Clock;
use crate::io_dir::IoDir;

pub(crate) use self::scan::{blocking, watch_runtime};

/// The minimum that a command may write after it was asked to end, before its container is killed.
const OVERRUN: u64 = 64 << 20;

/// The directory that a sandbox's commands write to, and its state.
#[derive(Debug)]
pub(crate) struct WriteBaseline {
    scanner: Scanner,
    reserve: DiskReserve,
    /// The sandbox's: nothing is measured while it stands still.
    clock: Clock,
    /// The usage before the first of them.
    first: OnceLock<DiskUsage>,
    /// Alive while something runs.
    watcher: Mutex<Weak<Watcher>>,
}

/// Monitors the writes of a run in a sandbox that supports commands.
#[derive(Debug)]
pub(crate) struct WriteMonitor {
    scanner: Scanner,
    limits: Limits,
    /// `None` if it could not be measured.
    before: Option<Before>,
}

#[derive(Debug)]
struct Before {
    /// Of a run: what it changes is compared with it.
    snapshot: Option<Arc<Snapshot>>,
    baseline: Baseline,
    watcher: Arc<Watcher>,
    /// Registered with the watcher while this exists.
    limit: Arc<DiskUsage>,
}

impl WriteMonitor {
    /// Scans the io dir before anything runs.
    pub async fn begin(baseline: &WriteBaseline, limits: Limits) -> Self {
        let scanner = baseline.scanner.clone();
        let before = scanner.snapshot(&limits).await;
        let before =
            before.map(|(snapshot, now)| Before::new(baseline, &limits, now, Some(snapshot)));
        Self { scanner, limits, before }
    }

    /// Monitors what is written from the first run on, by whatever lives in the sandbox: together it may
    /// write as much as one run.
    pub async fn of_life(baseline: &WriteBaseline, limits: Limits) -> Self {
        let scanner = baseline.scanner.clone();
        let before = scanner.measure(u64::MAX).await.map(|(usage, coverage)| {
            let space = space_of(&scanner.io_dir);
            let now = Reading { usage, coverage, space, is_missing: false };
            Before::new(baseline, &limits, now, None)
        });
        Self { scanner, limits, before }
    }

    /// Why nothing may run: commands could write without limit where it cannot be measured, or
    /// there is no space that they may use. An earlier command may have caused this.
    pub fn refusal(&self) -> Option<ScriptError> {
        let refuse = |kind, why| Some(failure(kind, format!("nothing was started: {why}")));
        let Some(before) = &self.before else {
            return refuse(ErrorKind::WriteLimit, UNMEASURED.to_owned());
        };
        if let Some(unseen) = unseen(before.baseline.coverage) {
            return refuse(ErrorKind::TooManyFiles, unseen);
        }
        let Baseline { space, reserve, .. } = before.baseline;
        refuse(ErrorKind::DiskFull, too_little(space?, reserve)?)
    }

    /// The limit that is exceeded already.
    pub fn exceeded(&self) -> Option<ScriptError> {
        let before = self.before.as_ref()?;
        before.baseline.passed(&before.watcher.measured.borrow())
    }

    /// Waits until the io dir has grown beyond the limits, or its disk has less free space than the
    /// reserve, or can no longer be measured.
    pub async fn passed(&self) -> ScriptError {
        let Some(before) = &self.before else { return std::future::pending().await };
        let mut measured = before.watcher.measured.subscribe();
        loop {
            if measured.changed().await.is_err() {
                return std::future::pending().await;
            }
            let reading = *measured.borrow_and_update();
            let Some(mut limit) = before.baseline.passed(&reading) else { continue };
            if limit.kind != ErrorKind::DiskFull && !reading.is_missing {
                // A walk may count files twice that are moved meanwhile: a limit is exceeded only
                // after two results.
                let most = before.limit.entries.saturating_add(1);
                let Some((usage, coverage)) = self.scanner.measure(most).await else { continue };
                let again = Reading { usage, coverage, ..reading };
                let Some(passed) = before.baseline.passed(&again) else { continue };
                limit = passed;
            }
            let message = format!("killed: {}", limit.message);
            return ScriptError { message, ..limit };
        }
    }

    /// Waits until the sandbox uses much more than when it was asked to end: then it must be
    /// killed.
    pub async fn overrun(&self) {
        let Some(before) = &self.before else { return std::future::pending().await };
        let mut measured = before.watcher.measured.subscribe();
        let more = self.limits.max_write.as_u64().max(OVERRUN);
        let most = measured.borrow().usage.bytes.saturating_add(more);
        if measured.wait_for(|reading| reading.usage.bytes > most).await.is_err() {
            std::future::pending().await
        }
    }

    /// Scans the io dir after the end: returns the changes, and the limit that was exceeded.
    pub async fn end(self) -> (FilesTouched, Option<ScriptError>) {
        let unknown = FilesTouched {
            source: TouchedSource::Scan,
            truncated: true,
            ..FilesTouched::default()
        };
        let Some(before) = self.before else { return (unknown, None) };
        let Some((after, now)) = self.scanner.snapshot(&self.limits).await else {
            return (unknown, Some(failure(ErrorKind::WriteLimit, UNMEASURED)));
        };
        let limit = before.baseline.passed(&Reading { space: None, ..now });
        let Some(snapshot) = before.snapshot.clone() else { return (unknown, limit) };
        let changes = match after.usage.entries.max(snapshot.usage.entries) <= FEW_ENTRIES {
            true => Ok(snapshot.changes(&after)),
            false => self.scanner.runtime.spawn_blocking(move || snapshot.changes(&after)).await,
        };
        (changes.unwrap_or(unknown), limit)
    }
}

impl Before {
    fn new(
        baseline: &WriteBaseline,
        limits: &Limits,
        now: Reading,
        snapshot: Option<Snapshot>,
    ) -> Self {
        let Reading { usage, coverage, space, .. } = now;
        let (io_dir, reserve) = (&baseline.scanner.io_dir, baseline.reserve);
        let first = *baseline.first.get_or_init(|| usage);
        let usage = if snapshot.is_some() { usage } else { first };
        let most = Most::of(io_dir.bounds(), limits);
        let is_overlay = io_dir.lower().is_some();
        let of_run = Baseline { usage, coverage, first, most, space, reserve, is_overlay };
        let watcher = baseline.watcher(now);
        let limit = watcher.begin(usage + most.in_run);
        Self { snapshot: snapshot.map(Arc::new), baseline: of_run, watcher, limit }
    }
}

impl WriteBaseline {
    /// The watcher and its scans run in `runtime`.
    pub fn new(io_dir: Arc<IoDir>, reserve: DiskReserve, runtime: Handle, clock: Clock) -> Self {
        let scanner = Scanner { io_dir, is_prompt: Arc::default(), runtime };
        Self { scanner, reserve, clock, first: OnceLock::new(), watcher: Mutex::default() }
    }

    fn watcher(&self, now: Reading) -> Arc<Watcher> {
        let mut watcher = crate::lock(&self.watcher);
        watcher.upgrade().unwrap_or_else(|| {
            let new = Watcher::start(self.scanner.clone(), self.reserve, self.clock.clone(), now);
            *watcher = Arc::downgrade(&new);
            new
        })
    }
}

#[cfg(test)]
mod tests;
