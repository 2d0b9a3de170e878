//! Monitors how an io dir grows while commands run, and finds what they changed.
//!
//! The writes of commands cannot be counted, so write limits are enforced by scanning. A
//! [`Watcher`], one for everything that runs in a sandbox at a time, measures the io dir
//! repeatedly: named files by a scan, and [unnamed
//! files](sandbox_engine::Processes::unnamed_files). Between two scans it checks the filesystem's
//! free space, which takes microseconds, and scans at once if so much space is gone that a limit
//! may be exceeded ([`schedule`]). Each run compares the result with the state before it began
//! ([`judge`]).

mod judge;
mod latency;
mod scan;
mod schedule;
mod watcher;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use sandbox_api::{FilesTouched, Limits, TouchedSource, failure};
use sandbox_dirfd::{DiskUsage, Locality, ScanCoverage};
use sandbox_engine::free_lost_sockets;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::ScriptError;
use sandbox_staging::snapshot::Snapshot;

use self::judge::{Baseline, Bounds, Reading, UNMEASURED, too_little, unseen};
use self::scan::{FEW_ENTRIES, Scanner};
use self::watcher::{FoundProcesses, Watcher};

pub(crate) use self::scan::watch_runtime;
pub(crate) use self::watcher::{Watched, find_processes};

/// The minimum that a command may write after it was asked to end, before its container is killed.
const OVERRUN: u64 = 64 << 20;

/// The state of the directory that a sandbox's commands write to.
#[derive(Debug, Default)]
pub(crate) struct WriteBaseline {
    /// The usage before the first of them.
    first: OnceLock<DiskUsage>,
    /// Alive while something runs.
    watcher: Mutex<Weak<Watcher>>,
    /// Whether the last scan was done at once, on a local filesystem.
    is_prompt: Arc<AtomicBool>,
    processes: FoundProcesses,
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
    snapshot: Arc<Snapshot>,
    baseline: Baseline,
    watcher: Arc<Watcher>,
    /// Registered with the watcher while this exists.
    bounds: Arc<Bounds>,
}

impl WriteMonitor {
    /// Scans the io dir before anything runs.
    pub async fn begin(baseline: &WriteBaseline, watched: Watched, limits: Limits) -> Self {
        let scanner = Scanner {
            io_dir: watched.io_dir.clone(),
            is_prompt: baseline.is_prompt.clone(),
            runtime: watched.runtime.clone(),
        };
        let taken = scanner.snapshot(&limits).await;
        let before = taken.map(|(snapshot, space, locality)| {
            let reserve = watched.reserve;
            let now = Reading::new(snapshot.usage, snapshot.coverage, space);
            let watcher = baseline.watcher(watched, now, locality);
            // With the unnamed files of other runs in progress.
            let usage = snapshot.usage + watcher.measured.borrow().unnamed;
            let most = DiskUsage {
                bytes: limits.max_write.as_u64(),
                entries: limits.entries.get().into(),
            };
            let bounds = watcher.bound(Bounds::new(usage, most));
            let baseline = Baseline {
                usage,
                named: snapshot.usage,
                is_measured: snapshot.coverage < ScanCoverage::Hidden,
                first: *baseline.first.get_or_init(|| snapshot.usage),
                space,
                reserve,
                is_overlay: scanner.io_dir.lower().is_some(),
            };
            Before { snapshot: Arc::new(snapshot), baseline, watcher, bounds }
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
        if let Some(unseen) = unseen(before.snapshot.coverage) {
            return refuse(ErrorKind::TooManyFiles, unseen);
        }
        let Baseline { space, reserve, .. } = before.baseline;
        refuse(ErrorKind::DiskFull, too_little(space?, reserve)?)
    }

    /// Waits until the io dir has grown beyond the limits, or its filesystem has less free space
    /// than the reserve, or can no longer be measured.
    pub async fn passed(&self) -> ScriptError {
        let Some(before) = &self.before else { return std::future::pending().await };
        let mut measured = before.watcher.measured.subscribe();
        loop {
            if measured.changed().await.is_err() {
                return std::future::pending().await;
            }
            let reading = *measured.borrow_and_update();
            let ended = before.bounds.reason_to_end();
            let is_certain = ended.is_some() || reading.is_missing;
            let passed = ended.or_else(|| before.baseline.passed(&reading, &self.limits));
            let Some(limit) = passed else { continue };
            let limit = match limit.kind {
                _ if is_certain => limit,
                // The filesystem itself reports this.
                ErrorKind::DiskFull => limit,
                ErrorKind::WriteLimit if reading.is_backed => limit,
                ErrorKind::TooManyFiles if reading.stood_still => limit,
                _ => {
                    // A scan may count files twice that are moved meanwhile: a limit is exceeded
                    // only after two results.
                    let most = before.bounds.limit.entries.saturating_add(1);
                    let Some(again) = self.scanner.measure(most).await else { continue };
                    let again = reading.with_named(again);
                    let passed = before.baseline.passed(&again, &self.limits);
                    let Some(limit) = passed else { continue };
                    limit
                }
            };
            let message = format!("killed: {}", limit.message);
            return ScriptError { message, ..limit };
        }
    }

    /// Kills the programs unless another run is to go on. The agent is asked to end them too, but gets no
    /// processor time while their system calls use up the container's.
    pub fn kill_programs(&self) {
        if let Some(Before { watcher, bounds, .. }) = &self.before {
            bounds.set_ending();
            let watcher = watcher.clone();
            self.scanner.runtime.spawn_blocking(move || watcher.kill_programs());
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
        free_lost_sockets();
        let Some(before) = self.before else { return (unknown, None) };
        let Some((after, ..)) = self.scanner.snapshot(&self.limits).await else {
            return (unknown, Some(failure(ErrorKind::WriteLimit, UNMEASURED)));
        };
        let (usage, coverage) = (after.usage, after.coverage);
        let reading = Reading::new(usage, coverage, None);
        let passed = || before.baseline.of_names().passed(&reading, &self.limits);
        let limit = before.bounds.reason_to_end().or_else(passed);
        let snapshot = before.snapshot.clone();
        let changes = match usage.entries.max(snapshot.usage.entries) <= FEW_ENTRIES {
            true => Ok(snapshot.changes(&after)),
            false => self.scanner.runtime.spawn_blocking(move || snapshot.changes(&after)).await,
        };
        (changes.unwrap_or(unknown), limit)
    }
}

impl WriteBaseline {
    fn watcher(&self, watched: Watched, now: Reading, locality: Locality) -> Arc<Watcher> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        watcher.upgrade().unwrap_or_else(|| {
            let new = Watcher::start(watched, self.processes.clone(), now, locality);
            *watcher = Arc::downgrade(&new);
            new
        })
    }
}

#[cfg(test)]
mod tests;
