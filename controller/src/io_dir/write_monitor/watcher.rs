//! The watcher of an io dir: scans it again and again while something runs, and finds the sandbox's
//! processes, whose unnamed files count too.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sandbox_api::DiskReserve;
use sandbox_dirfd::{FreeSpace, ScanCoverage};
use sandbox_engine::{Container, Processes, Stopped};
use sandbox_staging::snapshot::{DiskUsage, measure};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::judge::{Bounds, Ledger, MANY_ENTRIES, Reading, is_worth_a_stop, room, too_little};
use super::pace::{Pace, Room};
use super::promptness::{Locality, Promptness};
use super::scan::{SCAN_TIMEOUT, blocking};
use crate::io_dir::IoDir;
use crate::io_dir::unlinked_files::{Depth, Unnamed, unnamed};

/// The interval of free space checks during a scan that may find a limit exceeded.
const STOP_TICK: Duration = Duration::from_millis(5);
/// How many scans in a row may find that a program ran on though it was stopped: honest ones may be
/// slow to stop.
const ESCAPES: u32 = 3;
/// The initial and the maximum interval of retries if the processes are not found.
const FIND_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The sandbox's processes, once they were found.
pub(super) type FoundProcesses = Arc<OnceCell<Processes>>;

/// What is monitored, and how.
pub(crate) struct Watched {
    pub io_dir: Arc<IoDir>,
    pub container: Arc<dyn Container>,
    pub reserve: DiskReserve,
    /// Where the watcher and its scans run.
    pub runtime: Handle,
}

/// Measures an io dir for as long as it has users.
#[derive(Debug)]
pub(super) struct Watcher {
    pub measured: watch::Sender<Reading>,
    /// The bounds of all runs in progress.
    bounds: Arc<Mutex<Vec<Weak<Bounds>>>>,
    task: AbortHandle,
}

impl Watcher {
    pub fn start(
        watched: Watched,
        processes: FoundProcesses,
        now: Reading,
        locality: Locality,
    ) -> Arc<Self> {
        let Watched { io_dir, container, reserve, runtime } = watched;
        let measured = watch::Sender::new(now);
        let bounds = Arc::<Mutex<Vec<Weak<Bounds>>>>::default();
        let watch = Watch {
            pace: Pace::new(Instant::now(), now.space, reserve),
            promptness: Promptness::new(locality),
            io_dir,
            reserve,
            has_found: processes.initialized(),
            ledger: Ledger::new(&now),
            written: 0,
            settled: 0,
            escapes: 0,
            processes,
            container,
            finding: None,
            bounds: bounds.clone(),
            measured: measured.clone(),
            runtime: runtime.clone(),
        };
        let task = runtime.spawn(watch.run()).abort_handle();
        Arc::new(Self { measured, bounds, task })
    }

    pub fn bound(&self, bounds: Bounds) -> Arc<Bounds> {
        let bounds = Arc::new(bounds);
        let mut all = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|bounds| bounds.strong_count() > 0);
        all.push(Arc::downgrade(&bounds));
        bounds
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sets `cell` to the result of `find`, and retries as long as there is none: an engine that is
/// busy once must not leave a sandbox's unnamed files uncounted for ever.
async fn find_until_found<T, F: Future<Output = Option<T>>>(
    cell: &OnceCell<T>,
    find: impl Fn() -> F,
) {
    let mut pause = FIND_AGAIN.0;
    while cell.get_or_try_init(|| async { find().await.ok_or(()) }).await.is_err() {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(FIND_AGAIN.1);
    }
}

/// The processes of a container, if they are visible.
pub(crate) async fn find_processes(
    runtime: &Handle,
    container: &dyn Container,
) -> Option<Processes> {
    let init = tokio::time::timeout(SCAN_TIMEOUT, container.init_pid()).await.ok()??;
    let container = container.id().to_owned();
    runtime.spawn_blocking(move || Processes::of(init, &container)).await.ok()?
}

/// The task of a watcher.
struct Watch {
    pace: Pace,
    io_dir: Arc<IoDir>,
    reserve: DiskReserve,
    promptness: Promptness,
    processes: FoundProcesses,
    has_found: bool,
    ledger: Ledger,
    /// How many bytes the processes had written at the last scan, and at the last one that found
    /// everything while they were stopped.
    written: u64,
    settled: u64,
    /// How many scans in a row a program ran on.
    escapes: u32,
    container: Arc<dyn Container>,
    /// The task that finds the processes.
    finding: Option<JoinSet<()>>,
    bounds: Arc<Mutex<Vec<Weak<Bounds>>>>,
    measured: watch::Sender<Reading>,
    runtime: Handle,
}

impl Watch {
    async fn run(mut self) {
        // Here, so that no command waits for it.
        self.written = self.processes.get().map_or(0, Processes::written);
        self.settled = self.written;
        loop {
            tokio::time::sleep(self.pace.tick()).await;
            let (space, cost) = self.free_space().await;
            let now = Instant::now();
            let last = *self.measured.borrow();
            let bounds = self.all_bounds();
            let unexplained = self.ledger.unexplained(last.usage, space);
            let left = room(&bounds, last.usage);
            // Together with what was found, it may exceed the limit.
            let is_suspicious = unexplained >= left.bytes;
            let just_found = !std::mem::replace(&mut self.has_found, self.processes.initialized())
                && self.has_found;
            let room = match just_found || last.unseen && is_suspicious {
                // Unseen usage is believed after two consecutive scans.
                true => Room::NONE,
                false => left,
            };
            let (bytes, inodes) = self.pace.gone(space);
            let is_near = bytes >= room.bytes / 2 || inodes >= room.entries / 2;
            if is_near || last.usage.entries >= MANY_ENTRIES {
                self.find();
            }
            if !self.pace.is_due(now, cost, space, room) {
                self.measured.send_if_modified(|last| {
                    last.space = space;
                    space.is_some_and(|space| too_little(space, self.reserve).is_some())
                });
                continue;
            }
            self.find();
            let depth = if is_suspicious { Depth::Everything } else { Depth::Open };
            let most = bounds.iter().map(|it| it.entries).max().unwrap_or(0).saturating_add(1);
            // They continue after the scan.
            let suspects = if is_suspicious { self.stop_suspects(left).await } else { None };
            let is_stopped = suspects.is_some();
            let space = if is_stopped { self.free_space().await.0 } else { space };
            let scanned = match suspects {
                Some(stopped) => self.scan(depth, most, Some(stopped)).await,
                None => tokio::select! {
                    scanned = self.scan(depth, most, None) => scanned,
                    stopped = self.stop_programs(last.usage.entries, left) => {
                        self.scan(depth, most, Some(stopped)).await
                    }
                },
            };
            let ended = Instant::now();
            let Some(Scan { unnamed, named, space: after, written, stood_still }) = scanned else {
                self.pace.record_scan(now, ended, space, false);
                self.measured.send_modify(|last| last.is_missing = true);
                continue;
            };
            self.written = written;
            let found = DiskUsage { bytes: unnamed.bytes, entries: unnamed.entries };
            let mut reading = Reading { unnamed: found, space, is_missing: false, ..last };
            reading = reading.with_named(named);
            let has_escaped = is_stopped && !stood_still;
            self.escapes = if has_escaped { self.escapes + 1 } else { 0 };
            let is_all = depth == Depth::Everything;
            reading.unseen = is_all && (unnamed.has_unseen || self.escapes >= ESCAPES);
            reading.was_unseen = is_all && last.unseen;
            let is_clear = is_all && self.has_found && !unnamed.has_unseen && !has_escaped;
            if is_clear && is_stopped {
                self.settled = written;
            }
            reading.stood_still = stood_still;
            reading.is_backed = stood_still || self.ledger.backs(reading.usage, after);
            reading.unexplained = self.ledger.enter(reading.usage, [space, after], is_clear);
            self.pace.record_scan(now, ended, space, reading.has_grown_since(&last));
            self.measured.send_replace(reading);
        }
    }

    /// Begins to find the processes: to ask an engine takes longer than many commands run.
    fn find(&mut self) {
        self.finding.get_or_insert_with(|| {
            let (container, processes) = (self.container.clone(), self.processes.clone());
            let runtime = self.runtime.clone();
            let find = async move {
                find_until_found(&processes, || find_processes(&runtime, &*container)).await;
            };
            [find].into_iter().collect()
        });
    }

    fn all_bounds(&self) -> Vec<Arc<Bounds>> {
        let bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        bounds.iter().filter_map(Weak::upgrade).collect()
    }

    /// The free space, and how long the answer took.
    async fn free_space(&mut self) -> (Option<FreeSpace>, Duration) {
        let io_dir = self.io_dir.clone();
        let ask = move || {
            let asked = std::time::Instant::now();
            let space = FreeSpace::of(io_dir.fd()).ok();
            (space, asked.elapsed())
        };
        // Another thread costs many times as much as the call.
        let (space, cost) = match self.promptness.is_inline() {
            true => ask(),
            false => blocking(&self.runtime, ask).await.unwrap_or((None, SCAN_TIMEOUT)),
        };
        self.promptness.answered(cost);
        (space, cost)
    }

    /// Stops the commands when, before or during a scan, as much space is gone as they may still
    /// write and they may have written it, or as many inodes as they may still create files, which
    /// nobody counts: during a scan of many entries they could write many times as much. Otherwise
    /// never completes.
    async fn stop_programs(&self, entries: u64, left: Room) -> Stopped {
        if !self.promptness.is_inline() {
            return std::future::pending().await;
        }
        let (bytes, inodes) = loop {
            let gone = self.pace.gone(FreeSpace::of(self.io_dir.fd()).ok());
            if is_worth_a_stop(entries, self.pace.last_took(), gone, left) {
                break gone;
            }
            tokio::time::sleep(STOP_TICK).await;
        };
        let before = self.written;
        let is_theirs = move |processes: &Processes| {
            inodes >= left.entries || bytes >= left.bytes && have_written(processes, before, left)
        };
        match self.stop_if(is_theirs).await {
            Some(stopped) => stopped,
            None => std::future::pending().await,
        }
    }

    /// Stops the commands when more space is gone than was found and they may write, and they may have
    /// written it: a system call in progress keeps a file that nothing else shows.
    async fn stop_suspects(&self, left: Room) -> Option<Stopped> {
        let settled = self.settled;
        match self.promptness.is_local() {
            true => self.stop_if(move |processes| have_written(processes, settled, left)).await,
            false => None,
        }
    }

    /// Stops the commands, if they are known and `is_theirs` says that what is gone may be theirs.
    async fn stop_if(
        &self,
        is_theirs: impl FnOnce(&Processes) -> bool + Send + 'static,
    ) -> Option<Stopped> {
        let processes = self.processes.clone();
        let stop = move || processes.get().filter(|it| is_theirs(it)).map(Processes::stop);
        self.runtime.spawn_blocking(stop).await.ok()?
    }

    /// Scans named and unnamed files, and continues the commands that were stopped for it.
    async fn scan(&self, depth: Depth, most: u64, stopped: Option<Stopped>) -> Option<Scan> {
        let (io_dir, processes) = (self.io_dir.clone(), self.processes.clone());
        blocking(&self.runtime, move || {
            let written = processes.get().map_or(0, Processes::written);
            // Before the scan of named files: a file that is unlinked meanwhile is counted once, or
            // by the next scan.
            let unnamed = match processes.get() {
                Some(processes) => unnamed(processes, io_dir.devices(), depth),
                None => Unnamed::default(),
            };
            let named = measure(io_dir.fd(), most);
            let space = FreeSpace::of(io_dir.fd()).ok();
            let stood_still = stopped.is_some_and(|stopped| stopped.stood_still());
            Scan { unnamed, named, space, written, stood_still }
        })
        .await
    }
}

/// Whether processes have written half of what they may still write, since they had written `before`.
fn have_written(processes: &Processes, before: u64, left: Room) -> bool {
    processes.written().saturating_sub(before) >= left.bytes / 2
}

/// The findings of a scan.
struct Scan {
    unnamed: Unnamed,
    named: (DiskUsage, ScanCoverage),
    /// The free space after it.
    space: Option<FreeSpace>,
    /// How many bytes the processes had written before it.
    written: u64,
    /// Whether they were stopped for all of it.
    stood_still: bool,
}

#[cfg(test)]
mod tests;
