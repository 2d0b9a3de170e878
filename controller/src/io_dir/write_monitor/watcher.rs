//! The watcher of an io dir: scans it again and again while something runs, and finds the sandbox's
//! processes, whose unnamed files count too.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sandbox_api::DiskReserve;
use sandbox_dirfd::{DiskMeter, DiskUsage, FreeSpace, Locality, ScanCoverage, free_removed};
use sandbox_engine::{
    Container, Processes, Stop, Unnamed, UnnamedDepth as Depth, Written, free_lost_sockets,
};
use sandbox_staging::snapshot::measure;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::Instant;

use super::judge::{
    Bounds, Ledger, MANY_ENTRIES, Reading, budget, is_too_much, is_worth_a_stop, too_little,
};
use super::latency::ScanLatency;
use super::scan::{SCAN_TIMEOUT, blocking};
use super::schedule::{
    RemainingBudget, ScanRecord, ScanSchedule, StopRecord, gone, rest_after, waits_on,
};
use crate::io_dir::IoDir;

/// The interval of free space checks during a scan that may find a limit exceeded.
const STOP_TICK: Duration = Duration::from_millis(5);
/// The interval, and the maximum, of waiting for the kernel to free removed files.
const FREEING: (Duration, Duration) = (Duration::from_millis(15), Duration::from_millis(200));
/// Time limits for inspecting what processes hold: while they run, and while they are stopped.
const LONGEST_LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The maximum time that commands which must end stay stopped.
const LONGEST_END: Duration = Duration::from_millis(500);
/// How much other processes may write near a command's limit without a stop of the command.
const LEAST_SUSPICIOUS: u64 = 1 << 20;
/// The amount that is not worth asking the filesystem to free it.
const LEAST_REMOVED: u64 = 16 << 20;
/// The initial and the maximum interval of retries if the processes are not found.
const FIND_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The sandbox's processes, once they were found.
pub(super) type FoundProcesses = Arc<OnceCell<Processes>>;

/// The monitored io dir, and how to monitor it.
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
            schedule: ScanSchedule::new(Instant::now(), now.space, reserve),
            latency: ScanLatency::new(locality),
            io_dir,
            reserve,
            has_found: processes.initialized(),
            ledger: Ledger::new(&now),
            written: Written::default(),
            processes: processes.clone(),
            container,
            finding: None,
            freeing: None,
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
    /// Held while they are killed: no run starts meanwhile.
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

    /// Kills the programs, if all runs are being ended: the run of a program is unknown.
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

/// Sets `cell` to the result of `find`, and retries until there is one: a busy engine must not
/// leave a sandbox's unnamed files uncounted.
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

/// A scan that is due.
struct DueScan {
    since: Instant,
    space: Option<FreeSpace>,
    /// The previous scan, and what the commands may still use since then.
    last: Reading,
    left: RemainingBudget,
    /// Whether the unexplained loss of space would exceed a limit.
    is_suspicious: bool,
    /// Whether it belongs to a series of stops.
    is_in_series: bool,
    /// Whether it is due because the commands may have written half of what they may still write.
    are_theirs: bool,
}

/// The task of a watcher.
struct Watch {
    schedule: ScanSchedule,
    io_dir: Arc<IoDir>,
    reserve: DiskReserve,
    latency: ScanLatency,
    processes: FoundProcesses,
    has_found: bool,
    ledger: Ledger,
    /// What the processes had written at the last scan.
    written: Written,
    container: Arc<dyn Container>,
    /// The task that finds the processes.
    finding: Option<JoinSet<()>>,
    /// Ends when the filesystem may be asked again to free what was removed.
    freeing: Option<JoinHandle<()>>,
    runs: Arc<Runs>,
    measured: watch::Sender<Reading>,
    runtime: Handle,
}

impl Watch {
    async fn run(mut self) {
        // In the background, so that no command waits for it.
        self.written = self.processes.get().map(Processes::written).unwrap_or_default();
        loop {
            tokio::time::sleep(self.schedule.tick()).await;
            if let Some(due) = self.due().await {
                self.find();
                let scan = self.carry_out(&due).await;
                self.record(&due, scan);
            }
        }
    }

    /// Checks the free space: whether a scan is due.
    async fn due(&mut self) -> Option<DueScan> {
        let (space, cost) = self.free_space().await;
        let now = Instant::now();
        let last = *self.measured.borrow();
        let left = budget(&self.runs.all(), last.usage);
        self.free_removed(space, left);
        // Together with what was found, it may exceed the limit.
        let is_suspicious = may_exceed(self.ledger.unexplained(last.usage, space), left);
        let just_found =
            !std::mem::replace(&mut self.has_found, self.processes.initialized()) && self.has_found;
        let is_in_series = is_suspicious && self.schedule.is_hiding();
        let budget = match just_found || last.unseen && is_suspicious || is_in_series {
            // Unseen usage is believed after two consecutive scans, and a stop that was cut short
            // is followed by another.
            true => RemainingBudget::NONE,
            false => left,
        };
        let (bytes, inodes) = self.schedule.gone(space);
        let is_near = bytes >= budget.bytes / 2 || inodes >= budget.entries / 2;
        if is_near || last.usage.entries >= MANY_ENTRIES {
            self.find();
        }
        let theirs = (left.bytes / 2).max(LEAST_SUSPICIOUS);
        let is_due = self.schedule.is_due(now, cost, space, budget);
        let are_theirs =
            !is_due && self.schedule.is_due_if_theirs(now) && self.have_written(theirs).await;
        if !is_due && !are_theirs {
            self.measured.send_if_modified(|last| {
                last.space = space;
                space.is_some_and(|space| too_little(space, self.reserve).is_some())
            });
            return None;
        }
        Some(DueScan { since: now, space, last, left, is_suspicious, is_in_series, are_theirs })
    }

    /// Carries out a scan, for which the commands are stopped if it needs that.
    async fn carry_out(&self, due: &DueScan) -> Option<Scan> {
        let used = Some(due.last.usage);
        let scan = match due.is_in_series {
            true => self.scan(due, used).await?,
            false => tokio::select! {
                scan = self.scan(due, None) => scan?,
                () = self.worth_a_stop(due), if self.latency.is_inline() => {
                    let given_up = due.since.elapsed();
                    self.scan(due, used).await?.after(given_up)
                }
            },
        };
        let is_stoppable = due.is_suspicious && self.has_found && self.latency.is_local();
        if !is_stoppable || scan.stop.is_some() || !self.hides(&scan) {
            return Some(scan);
        }
        // A system call in progress keeps a file that nothing else shows, unless it is interrupted.
        Some(self.scan(due, Some(scan.usage())).await?.after(scan.took))
    }

    /// Records a scan, and reports what it has found.
    fn record(&mut self, due: &DueScan, scan: Option<Scan>) {
        let ended = Instant::now();
        let Some(scan) = scan else {
            let none = ScanRecord::none(ended, due.space);
            self.schedule.record(ScanRecord { took: ended - due.since, hides: true, ..none });
            self.measured.send_modify(|last| last.is_missing = true);
            return;
        };
        let (hides, usage) = (self.hides(&scan), scan.usage());
        let Scan { unnamed, named: (_, coverage), space: [space, after], written, took, stop } =
            scan;
        if let Some(stop) = stop {
            tracing::debug!(?stop, ?unnamed, "stopped the commands for a scan");
        }
        let (last, is_all) = (due.last, due.is_suspicious);
        let stopped = stop.map(|record| record.stop);
        let stood_still = stopped == Some(Stop::Complete);
        // A thread that is slow to stop may be honest and waiting for a disk.
        let is_unseen = unnamed.has_unseen
            || stopped == Some(Stop::Broken)
            || hides && self.schedule.is_hiding_for_long();
        // Inconclusive scans happen between two conclusive ones.
        let was_unseen = last.unseen || last.was_unseen && !stood_still;
        let is_whole = stood_still || !self.latency.is_local();
        let is_clear = is_all && self.has_found && !unnamed.has_unseen && is_whole;
        let is_backed = stood_still || self.ledger.backs(usage, after);
        let reading = Reading {
            unnamed: unnamed.usage,
            unseen: is_all && is_unseen,
            was_unseen: is_all && was_unseen,
            unexplained: self.ledger.enter(usage, [space, after], is_clear),
            is_backed,
            stood_still,
            ..Reading::new(usage, coverage, space)
        };
        self.written = written;
        let waited = (ended - due.since).saturating_sub(took);
        let has_grown = reading.has_grown_since(&last);
        self.schedule.record(ScanRecord { ended, took, waited, space, has_grown, stop, hides });
        self.measured.send_replace(reading);
    }

    /// Whether the space that is gone, but was not found by a scan, would exceed a limit of the
    /// commands.
    fn hides(&self, scan: &Scan) -> bool {
        let usage = scan.usage();
        let left = budget(&self.runs.all(), usage);
        let space = scan.space.into_iter().flatten().max_by_key(|space| space.bytes);
        left.bytes > 0 && may_exceed(self.ledger.unexplained(usage, space), left)
    }

    /// Starts to find the processes: asking an engine takes longer than many commands run.
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
        // A thread switch costs many times as much as the call.
        let (space, cost) = match self.latency.is_inline() {
            true => ask(),
            false => blocking(&self.runtime, ask).await.unwrap_or((None, SCAN_TIMEOUT)),
        };
        self.latency.answered(cost);
        (space, cost)
    }

    /// Makes the filesystem free removed files, before their space counts as exceeding a limit or
    /// the reserve.
    fn free_removed(&mut self, space: Option<FreeSpace>, left: RemainingBudget) {
        let Some(space) = space else { return };
        let spare = self.reserve.leaves(&space).0;
        let is_due = space.uncommitted >= (left.bytes / 2).max(LEAST_REMOVED)
            || space.uncommitted.saturating_add(space.to_write) >= (spare / 2).max(LEAST_REMOVED);
        if is_due && self.freeing.as_ref().is_none_or(JoinHandle::is_finished) {
            let (io_dir, runtime) = (self.io_dir.clone(), self.runtime.clone());
            self.freeing = Some(self.runtime.spawn(async move {
                let began = Instant::now();
                // For any duration: other tasks wait for the threads.
                _ = runtime.spawn_blocking(move || free_removed(io_dir.fd())).await;
                tokio::time::sleep(rest_after(began.elapsed())).await;
            }));
        }
    }

    /// Whether the commands may have written this much since the last scan.
    async fn have_written(&self, least: u64) -> bool {
        let processes = self.processes.clone();
        let written = move || processes.get().map(Processes::written).unwrap_or_default();
        let written = self.runtime.spawn_blocking(written).await.unwrap_or_default();
        written.since(&self.written).is_none_or(|more| more >= least)
    }

    /// Waits until, before or during a scan, as much space is gone as the commands may still write
    /// and they may have written it, or as many inodes as they may still create files, which are
    /// not counted: during a long scan they could write many times as much.
    async fn worth_a_stop(&self, due: &DueScan) {
        let left = due.left;
        let (bytes, inodes) = loop {
            let gone = self.schedule.gone(FreeSpace::of(self.io_dir.fd()).ok());
            let takes = self.schedule.last_took().max(due.since.elapsed());
            if is_worth_a_stop(due.last.usage.entries, takes, gone, left) {
                break gone;
            }
            tokio::time::sleep(STOP_TICK).await;
        };
        // They must have written half of what they may still write.
        let is_theirs = inodes >= left.entries
            || bytes >= left.bytes && (due.are_theirs || self.have_written(left.bytes / 2).await);
        if !is_theirs {
            std::future::pending().await
        }
    }

    /// Scans named and unnamed files; with the commands' usage, it stops the commands for that.
    async fn scan(&self, due: &DueScan, stopped: Option<DiskUsage>) -> Option<Scan> {
        let depth = if due.is_suspicious { Depth::Everything } else { Depth::Open };
        let runs = self.runs.all();
        let most = runs.iter().map(|it| it.limit.entries).max().unwrap_or(0).saturating_add(1);
        let (io_dir, processes) = (self.io_dir.clone(), self.processes.clone());
        let stop = stopped.map(|usage| StoppedScan {
            usage,
            longest_stop: self.schedule.longest_stop(),
            taken_before: self.schedule.taken(),
            reserve: self.reserve,
            runs,
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
                    Some(processes) => {
                        let meter = DiskMeter::new(io_dir.fd());
                        processes.unnamed_files(meter, io_dir.devices(), depth, goes_on)
                    }
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
    /// The watcher: no stop outlives it.
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
        let (before, written_before) = (space(), processes.write_bytes());
        let taken = Cell::new(0);
        // Soon only calls in progress write. Whether to let them continue.
        let look = || {
            let now = space();
            taken.set(match gone(before, now).0 {
                gone if gone < LEAST_SUSPICIOUS => 0,
                gone => gone.min(processes.write_bytes().known_since(&written_before)),
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
        self.runs.iter().filter(move |run| is_too_much(taken, run.budget(self.usage)))
    }

    /// Ends the runs, and waits until all their processes are dead: until then they could start
    /// other calls. Whether there were any.
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

/// Whether at most this time has passed since now.
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
fn may_exceed(unexplained: u64, left: RemainingBudget) -> bool {
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
    /// The same after another scan that took this long.
    fn after(self, took: Duration) -> Self {
        Self { took: took + self.took, ..self }
    }

    fn usage(&self) -> DiskUsage {
        self.named.0 + self.unnamed.usage
    }
}

#[cfg(test)]
mod tests;
