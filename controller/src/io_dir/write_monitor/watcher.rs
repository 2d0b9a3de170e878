//! The watcher of an io dir: scans it again and again while something runs, and finds the sandbox's
//! processes, whose unnamed files count too.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sandbox_api::DiskReserve;
use sandbox_dirfd::{DiskUsage, FreeSpace, ScanCoverage};
use sandbox_engine::{
    Container, Processes, Stop, Unnamed, UnnamedDepth as Depth, Written, free_lost_sockets,
};
use sandbox_staging::snapshot::measure;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::judge::{
    Bounds, Ledger, MANY_ENTRIES, Reading, is_too_much, is_worth_a_stop, room, too_little,
};
use super::pace::{Pace, Room, ScanRecord, StopRecord, gone, waits_on};
use super::promptness::{Locality, Promptness};
use super::scan::{SCAN_TIMEOUT, blocking};
use crate::io_dir::IoDir;

/// The interval of free space checks during a scan that may find a limit exceeded.
const STOP_TICK: Duration = Duration::from_millis(5);
/// How often and how long at most the kernel is waited for while it frees what is lost.
const FREEING: (Duration, Duration) = (Duration::from_millis(15), Duration::from_millis(200));
/// How long it may take to look at what processes hold: while they run, and while they are stopped.
const LONGEST_LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// How long commands that are to end stay stopped at most.
const LONGEST_END: Duration = Duration::from_millis(500);
/// What others may write near a command's limit without a stop of the command.
const LEAST_SUSPICIOUS: u64 = 1 << 20;
/// The initial and the maximum interval of retries if the processes are not found.
const FIND_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The sandbox's processes, once they were found.
pub(super) type FoundProcesses = Arc<OnceCell<Processes>>;

/// What is monitored, and how.
pub(crate) struct Watched {
    pub io_dir: Arc<IoDir>,
    pub container: Arc<dyn Container>,
    /// Whether its agent runs on the kernel of this process.
    pub is_our_kernel: bool,
    pub reserve: DiskReserve,
    /// Where the watcher and its scans run.
    pub runtime: Handle,
}

/// Measures an io dir for as long as it has users.
#[derive(Debug)]
pub(super) struct Watcher {
    pub measured: watch::Sender<Reading>,
    runs: Arc<Runs>,
    processes: FoundProcesses,
    task: AbortHandle,
}

impl Watcher {
    pub fn start(
        watched: Watched,
        processes: FoundProcesses,
        now: Reading,
        locality: Locality,
    ) -> Arc<Self> {
        let Watched { io_dir, container, is_our_kernel, reserve, runtime } = watched;
        let measured = watch::Sender::new(now);
        let runs = Arc::new(Runs::new(is_our_kernel));
        let watch = Watch {
            pace: Pace::new(Instant::now(), now.space, reserve),
            promptness: Promptness::new(locality),
            io_dir,
            reserve,
            has_found: processes.initialized(),
            ledger: Ledger::new(&now),
            written: Written::default(),
            processes: processes.clone(),
            container,
            finding: None,
            runs: runs.clone(),
            measured: measured.clone(),
            runtime: runtime.clone(),
        };
        let task = runtime.spawn(watch.run()).abort_handle();
        Arc::new(Self { measured, runs, processes, task })
    }

    pub fn bound(&self, bounds: Bounds) -> Arc<Bounds> {
        self.runs.begin(bounds)
    }

    /// Kills the programs, if all runs in progress are being ended.
    pub fn kill_programs(&self) {
        if let Some(processes) = self.processes.get() {
            self.runs.kill_programs(processes);
        }
    }
}

/// The bounds of all runs in progress.
#[derive(Debug)]
struct Runs {
    bounds: Mutex<Vec<Weak<Bounds>>>,
    /// Whether their programs may be killed here.
    may_kill: bool,
    /// Held while they are killed: no run begins then.
    killing: Mutex<()>,
}

impl Runs {
    fn new(may_kill: bool) -> Self {
        Self { bounds: Mutex::default(), may_kill, killing: Mutex::default() }
    }

    fn begin(&self, bounds: Bounds) -> Arc<Bounds> {
        let bounds = Arc::new(bounds);
        let _nothing_is_killed = self.killing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|bounds| bounds.strong_count() > 0);
        all.push(Arc::downgrade(&bounds));
        bounds
    }

    fn all(&self) -> Vec<Arc<Bounds>> {
        let bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        bounds.iter().filter_map(Weak::upgrade).collect()
    }

    /// Kills the programs, if all runs are being ended: whose they are is not known.
    fn kill_programs(&self, processes: &Processes) {
        let _nothing_begins = self.killing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.may_kill && self.are_all_ending() {
            processes.kill();
        }
    }

    fn are_all_ending(&self) -> bool {
        self.all().iter().all(|run| run.is_ending())
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
    /// What the processes had written at the last scan.
    written: Written,
    container: Arc<dyn Container>,
    /// The task that finds the processes.
    finding: Option<JoinSet<()>>,
    runs: Arc<Runs>,
    measured: watch::Sender<Reading>,
    runtime: Handle,
}

impl Watch {
    async fn run(mut self) {
        // Here, so that no command waits for it.
        self.written = self.processes.get().map(Processes::written).unwrap_or_default();
        loop {
            tokio::time::sleep(self.pace.tick()).await;
            let (space, cost) = self.free_space().await;
            let now = Instant::now();
            let last = *self.measured.borrow();
            let bounds = self.runs.all();
            let unexplained = self.ledger.unexplained(last.usage, space);
            let left = room(&bounds, last.usage);
            // Together with what was found, it may exceed the limit.
            let is_suspicious = may_exceed(unexplained, left);
            let just_found = !std::mem::replace(&mut self.has_found, self.processes.initialized())
                && self.has_found;
            let is_stopped_again = is_suspicious && self.pace.is_hiding();
            let room = match just_found || last.unseen && is_suspicious || is_stopped_again {
                // Unseen usage is believed after two consecutive scans, and a stop that was cut short
                // is followed by another.
                true => Room::NONE,
                false => left,
            };
            let (bytes, inodes) = self.pace.gone(space);
            let is_near = bytes >= room.bytes / 2 || inodes >= room.entries / 2;
            if is_near || last.usage.entries >= MANY_ENTRIES {
                self.find();
            }
            let theirs = (left.bytes / 2).max(LEAST_SUSPICIOUS);
            let is_due = self.pace.is_due(now, cost, space, room)
                || self.pace.is_due_if_theirs(now) && self.have_written(theirs).await;
            if !is_due {
                self.measured.send_if_modified(|last| {
                    last.space = space;
                    space.is_some_and(|space| too_little(space, self.reserve).is_some())
                });
                continue;
            }
            self.find();
            let depth = if is_suspicious { Depth::Everything } else { Depth::Open };
            let most = bounds.iter().map(|it| it.entries).max().unwrap_or(0).saturating_add(1);
            let mut given_up = Duration::ZERO;
            let mut scanned = match is_stopped_again {
                true => self.scan(depth, most, Some(last.usage)).await,
                false => tokio::select! {
                    scanned = self.scan(depth, most, None) => scanned,
                    () = self.worth_a_stop(now, last.usage.entries, left) => {
                        given_up = now.elapsed();
                        self.scan(depth, most, Some(last.usage)).await
                    }
                },
            };
            let hidden_by = |scan: &Option<Scan>| scan.as_ref().is_some_and(|it| self.hides(it));
            let is_stoppable = is_suspicious && self.has_found && self.promptness.is_local();
            let mut hides = hidden_by(&scanned);
            let first =
                scanned.as_ref().filter(|scan| hides && is_stoppable && scan.stop.is_none());
            if let Some(&Scan { took, .. }) = first {
                // A system call in progress keeps a file that nothing else shows, unless it is
                // interrupted.
                let stopped = self.scan(depth, most, first.map(Scan::usage)).await;
                scanned = stopped.map(|scan| Scan { took: took + scan.took, ..scan });
                hides = hidden_by(&scanned);
            }
            let ended = Instant::now();
            let Some(scan) = scanned else {
                let none = ScanRecord::none(ended, space);
                self.pace.record(ScanRecord { took: ended - now, hides: true, ..none });
                self.measured.send_modify(|last| last.is_missing = true);
                continue;
            };
            let Scan { unnamed, named, space: [space, after], written, took, stop } = scan;
            if let Some(stop) = stop {
                tracing::debug!(?stop, ?unnamed, "stopped the commands for a scan");
            }
            let stopped = stop.map(|record| record.stop);
            self.written = written;
            let reading = Reading { unnamed: unnamed.usage, space, is_missing: false, ..last };
            let mut reading = reading.with_named(named);
            let is_all = depth == Depth::Everything;
            // A thread that is slow to stop may be an honest one that waits for a disk.
            let is_unseen = unnamed.has_unseen
                || stopped == Some(Stop::Broken)
                || hides && self.pace.is_hiding_for_long();
            reading.unseen = is_all && is_unseen;
            reading.stood_still = stopped == Some(Stop::Complete);
            // Scans that are no evidence come between two that are.
            let was_unseen = last.unseen || last.was_unseen && !reading.stood_still;
            reading.was_unseen = is_all && was_unseen;
            let is_whole = reading.stood_still || !self.promptness.is_local();
            let is_clear = is_all && self.has_found && !unnamed.has_unseen && is_whole;
            reading.is_backed = reading.stood_still || self.ledger.backs(reading.usage, after);
            reading.unexplained = self.ledger.enter(reading.usage, [space, after], is_clear);
            let took = took + given_up;
            let waited = (ended - now).saturating_sub(took);
            let has_grown = reading.has_grown_since(&last);
            self.pace.record(ScanRecord { ended, took, waited, space, has_grown, stop, hides });
            self.measured.send_replace(reading);
        }
    }

    /// Whether a scan has not found as much as the commands would need to exceed a limit, though it is
    /// gone.
    fn hides(&self, scan: &Scan) -> bool {
        let usage = scan.usage();
        let left = room(&self.runs.all(), usage);
        let space = scan.space.into_iter().flatten().max_by_key(|space| space.bytes);
        left.bytes > 0 && may_exceed(self.ledger.unexplained(usage, space), left)
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

    /// Whether the commands may have written this much since the last scan.
    async fn have_written(&self, least: u64) -> bool {
        let processes = self.processes.clone();
        let written = move || processes.get().map(Processes::written).unwrap_or_default();
        let written = self.runtime.spawn_blocking(written).await.unwrap_or_default();
        written.since(&self.written).is_none_or(|more| more >= least)
    }

    /// Waits until, before or during a scan that began then, as much space is gone as the commands may
    /// still write and they may have written it, or as many inodes as they may still create files, which
    /// nobody counts: during a scan that takes long they could write many times as much.
    async fn worth_a_stop(&self, began: Instant, entries: u64, left: Room) {
        if !self.promptness.is_inline() {
            return std::future::pending().await;
        }
        let (bytes, inodes) = loop {
            let gone = self.pace.gone(FreeSpace::of(self.io_dir.fd()).ok());
            let takes = self.pace.last_took().max(began.elapsed());
            if is_worth_a_stop(entries, takes, gone, left) {
                break gone;
            }
            tokio::time::sleep(STOP_TICK).await;
        };
        // They must have written half of what they may still write.
        let is_theirs = inodes >= left.entries
            || bytes >= left.bytes && self.have_written(left.bytes / 2).await;
        if !is_theirs {
            std::future::pending().await
        }
    }

    /// Scans named and unnamed files; if it is given what the commands use, while they are stopped.
    async fn scan(&self, depth: Depth, most: u64, stopped: Option<DiskUsage>) -> Option<Scan> {
        let (io_dir, processes) = (self.io_dir.clone(), self.processes.clone());
        let stop = stopped.map(|usage| StoppedScan {
            usage,
            longest_stop: self.pace.longest_stop(),
            taken_before: self.pace.taken(),
            reserve: self.reserve,
            runs: self.runs.all(),
            users: Arc::downgrade(&self.runs),
            measured: self.measured.clone(),
        });
        blocking(&self.runtime, move || {
            let processes = processes.get();
            let scan = |goes_on: &mut dyn FnMut() -> bool| {
                let began = Instant::now();
                let space = FreeSpace::of(io_dir.fd()).ok();
                let written = processes.map(Processes::written).unwrap_or_default();
                // Before the scan of named files: a file that is unlinked meanwhile is counted once,
                // or by the next scan.
                let unnamed = match processes {
                    Some(processes) => processes.unnamed_files(io_dir.devices(), depth, goes_on),
                    None => Unnamed::default(),
                };
                let named = measure(io_dir.fd(), most);
                let space = [space, FreeSpace::of(io_dir.fd()).ok()];
                Scan { unnamed, named, space, written, took: began.elapsed(), stop: None }
            };
            match processes.zip(stop) {
                Some((processes, stop)) => stop.run(processes, &io_dir, scan),
                None => scan(&mut within(LONGEST_LOOK.0)),
            }
        })
        .await
    }
}

/// A scan while the commands are stopped.
struct StoppedScan {
    /// What they used when it began.
    usage: DiskUsage,
    longest_stop: Duration,
    /// What calls in progress took in earlier stops of a series.
    taken_before: u64,
    reserve: DiskReserve,
    runs: Vec<Arc<Bounds>>,
    /// The watcher: no stop waits longer than it lives.
    users: Weak<Runs>,
    measured: watch::Sender<Reading>,
}

impl StoppedScan {
    fn run(
        self,
        processes: &Processes,
        io_dir: &IoDir,
        scan: impl FnOnce(&mut dyn FnMut() -> bool) -> Scan,
    ) -> Scan {
        let asked = Instant::now();
        let space = || FreeSpace::of(io_dir.fd()).ok();
        let (before, written_before) = (space(), processes.given_to_disks());
        let taken = Cell::new(0);
        // Soon nothing but calls in progress writes. Whether they may go on.
        let look = || {
            let now = space();
            taken.set(match gone(before, now).0 {
                gone if gone < LEAST_SUSPICIOUS => 0,
                gone => gone.min(processes.given_to_disks().known_since(&written_before)),
            });
            let is_short = now.is_some_and(|now| too_little(now, self.reserve).is_some());
            if is_short {
                self.measured.send_modify(|reading| reading.space = now);
            }
            !is_short
                && self.too_much(taken.get()).next().is_none()
                && self.users.strong_count() > 0
        };
        let waits = |since| look() && waits_on(since, self.longest_stop, taken.get());
        let work = || {
            let after = asked.elapsed();
            let have_ended = self.end_runs(taken.get(), processes);
            free_lost_sockets();
            settle(space);
            let (mut in_time, mut next, mut may_go_on) =
                (within(LONGEST_LOOK.1), Instant::now(), true);
            let scan = scan(&mut || {
                let now = Instant::now();
                if may_go_on && !have_ended && now >= next {
                    may_go_on = look();
                    next = Instant::now() + STOP_TICK.max(4 * now.elapsed());
                }
                may_go_on && in_time()
            });
            if !may_go_on {
                self.end_runs(taken.get(), processes);
            }
            (scan, after)
        };
        let ((scan, after), stop) = processes.while_stopped(waits, work);
        Scan { stop: Some(StopRecord { stop, after, taken: taken.get() }), ..scan }
    }

    /// The runs for which calls in progress have taken too much, with those of earlier stops.
    fn too_much(&self, taken: u64) -> impl Iterator<Item = &Arc<Bounds>> {
        let taken = taken.saturating_add(self.taken_before);
        self.runs.iter().filter(move |run| is_too_much(taken, run.room(self.usage)))
    }

    /// Ends them, and waits until everything is dead: until then it would begin other calls. Whether there
    /// were any.
    fn end_runs(&self, taken: u64, processes: &Processes) -> bool {
        let runs: Vec<_> = self.too_much(taken).collect();
        if runs.is_empty() {
            return false;
        }
        for run in runs {
            run.end();
        }
        if let Some(all) = self.users.upgrade() {
            all.kill_programs(processes);
        }
        tracing::debug!(taken, "calls in progress took too much");
        self.measured.send_modify(|_| {});
        let began = Instant::now();
        while began.elapsed() < LONGEST_END && !processes.are_gone() {
            std::thread::sleep(STOP_TICK);
        }
        true
    }
}

/// Whether no more time than this has passed since now.
fn within(longest: Duration) -> impl FnMut() -> bool {
    let began = Instant::now();
    move || began.elapsed() < longest
}

/// Waits for as long as the free space rises.
fn settle(space: impl Fn() -> Option<FreeSpace>) {
    let began = Instant::now();
    let mut last = space();
    while began.elapsed() < FREEING.1 {
        std::thread::sleep(FREEING.0);
        let now = space();
        if gone(now, last).0 == 0 {
            return;
        }
        last = now;
    }
}

/// Whether the commands have exceeded a limit, if they have used what is not explained.
fn may_exceed(unexplained: u64, left: Room) -> bool {
    unexplained >= left.bytes.max(LEAST_SUSPICIOUS)
}

/// The findings of a scan.
struct Scan {
    unnamed: Unnamed,
    named: (DiskUsage, ScanCoverage),
    /// The free space before and after it.
    space: [Option<FreeSpace>; 2],
    /// What the processes had written before it.
    written: Written,
    /// How long it took.
    took: Duration,
    /// How the processes were stopped for it, if they were.
    stop: Option<StopRecord>,
}

impl Scan {
    fn usage(&self) -> DiskUsage {
        self.named.0 + self.unnamed.usage
    }
}

#[cfg(test)]
mod tests;
