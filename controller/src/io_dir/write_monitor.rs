//! Monitors how an io dir grows while commands run, and finds what they changed.
//!
//! Nobody counts what a command writes, so write limits are enforced by scanning. A [`Watcher`],
//! one for everything that runs in a sandbox at a time, measures the io dir again and again: named
//! files by a scan, and [unnamed files](crate::io_dir::unlinked_files). Between two scans it checks the
//! filesystem's free space, which takes microseconds, and scans at once if so much space is gone
//! that a limit may be exceeded ([`pace`](crate::io_dir::pace)). Each run compares the result with
//! the state before it began.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use sandbox_api::{ByteSize, FilesTouched, Limits, TouchedSource, failure};
use sandbox_engine::Container;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{LIFETIME_ENTRIES, LIFETIME_WRITE_BYTES};
use sandbox_protocol::message::ScriptError;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{OnceCell, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::io_dir::IoDir;
use crate::io_dir::disk::{DiskReserve, FreeSpace, Locality, Promptness};
use crate::io_dir::pace::{Found, Pace, Room};
use crate::io_dir::unlinked_files::{Depth, Processes, Stopped, Unnamed};
use sandbox_dirfd::ScanCoverage;
use sandbox_staging::snapshot::{DiskUsage, MAX_DEPTH, Snapshot, measure};

/// How long to wait for a scan. It ends by itself before that, unless its filesystem hangs.
const LOOK: Duration = Duration::from_secs(30);
/// How many paths are remembered for each entry that may be created.
const KNOWN_PER_ENTRY: u64 = 10;
/// How much the io dir may grow over a sandbox's whole life if a single run has no lower limit: the
/// same as the agent's own limits.
const LIFE: DiskUsage = DiskUsage { bytes: LIFETIME_WRITE_BYTES, entries: LIFETIME_ENTRIES };
/// How much others may write at the same time, if the filesystem's free space is the only evidence.
const OTHERS: u64 = 64 << 20;
/// How much a command may at least write after it was asked to end, before its container is killed.
const OVERRUN: u64 = 64 << 20;
/// The number of entries of an io dir above which commands are stopped during a scan that may find
/// a limit exceeded, because such a scan takes long.
const MANY_ENTRIES: u64 = 5000;
/// The same, for the duration of the last scan: processes with many descriptors also make a scan
/// long.
const LONG_LOOK: Duration = Duration::from_millis(10);
/// The number of entries up to which an io dir is scanned on a thread that others wait for, if the last
/// scan was prompt: another thread costs more.
const FEW: u64 = 64;
/// The interval of free space checks during such a scan.
const STOP_TICK: Duration = Duration::from_millis(5);

/// The initial and the maximum interval of retries if the processes are not found.
const FIND_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// Why nothing may go on.
const UNMEASURED: &str =
    "the io dir could not be measured within 30 s, so no limit of what is written there holds";
/// Why a staged io dir grows by more than what was written.
const COPIES: &str = " (a file that was there is copied when it is first written)";

/// The sandbox's processes, once they were found.
type FoundProcesses = Arc<OnceCell<Processes>>;

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

/// What is monitored, and how.
pub(crate) struct Watched {
    pub io_dir: Arc<IoDir>,
    pub container: Arc<dyn Container>,
    pub reserve: DiskReserve,
}

/// Monitors the writes of a run in a sandbox that supports commands.
#[derive(Debug)]
pub(crate) struct WriteMonitor {
    io_dir: Arc<IoDir>,
    limits: Limits,
    is_prompt: Arc<AtomicBool>,
    /// `None` if it could not be measured.
    before: Option<Before>,
}

#[derive(Debug)]
struct Before {
    snapshot: Arc<Snapshot>,
    baseline: Baseline,
    watcher: Arc<Watcher>,
    /// Known to the watcher for as long as this exists.
    bounds: Arc<Bounds>,
}

/// The state that later scans are compared with.
#[derive(Debug, Clone, Copy)]
struct Baseline {
    /// The usage of named and unnamed files.
    usage: DiskUsage,
    /// The usage of named files alone.
    named: DiskUsage,
    /// Whether that is known well enough to tell what was added.
    is_measured: bool,
    /// The usage before the sandbox's first command.
    first: DiskUsage,
    space: Option<FreeSpace>,
    reserve: DiskReserve,
    /// The io dir is the upper layer of an overlay.
    is_overlay: bool,
}

/// The limits of a run as absolute numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    /// Of the io dir.
    bytes: u64,
    entries: u64,
    /// How much it may grow.
    most: DiskUsage,
}

/// The result of a scan of the io dir.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Including unnamed files.
    usage: DiskUsage,
    coverage: ScanCoverage,
    unnamed: DiskUsage,
    /// Whether the sandbox holds something that cannot be measured, now and at the previous scan.
    unseen: bool,
    was_unseen: bool,
    /// How much space the filesystem has lost that the files found do not explain, since the last
    /// time when nothing was unseen.
    unexplained: u64,
    /// Whether no file was counted twice: the filesystem has lost as much space as was found, or
    /// the commands were stopped.
    is_backed: bool,
    /// Whether they were.
    stood_still: bool,
    space: Option<FreeSpace>,
    /// There was no answer in time, and the rest is of the last one.
    is_missing: bool,
}

impl WriteMonitor {
    /// Scans the io dir before anything runs.
    pub async fn begin(baseline: &WriteBaseline, watched: Watched, limits: Limits) -> Self {
        let (io_dir, is_prompt) = (watched.io_dir.clone(), baseline.is_prompt.clone());
        let taken = snapshot(&io_dir, &limits, &is_prompt).await;
        let before = taken.map(|(snapshot, space, locality)| {
            let reserve = watched.reserve;
            let now = Reading::new(snapshot.usage, snapshot.coverage, space);
            let watcher = baseline.watcher(watched, now, locality);
            // Those of other runs in progress.
            let unnamed = watcher.measured.borrow().unnamed;
            let now = Reading { unnamed, ..Reading::new(snapshot.usage, snapshot.coverage, space) };
            let usage = now.with_named((snapshot.usage, snapshot.coverage)).usage;
            let most = DiskUsage {
                bytes: limits.max_write.as_u64(),
                entries: limits.entries.get().into(),
            };
            let bounds = watcher.bound(Bounds {
                bytes: usage.bytes.saturating_add(most.bytes),
                entries: usage.entries.saturating_add(most.entries),
                most,
            });
            let baseline = Baseline {
                usage,
                named: snapshot.usage,
                is_measured: snapshot.coverage < ScanCoverage::Hidden,
                first: *baseline.first.get_or_init(|| snapshot.usage),
                space,
                reserve,
                is_overlay: io_dir.lower().is_some(),
            };
            Before { snapshot: Arc::new(snapshot), baseline, watcher, bounds }
        });
        Self { io_dir, limits, is_prompt, before }
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
            let Some(limit) = before.baseline.passed(&reading, &self.limits) else { continue };
            let limit = match limit.kind {
                _ if reading.is_missing => limit,
                // The filesystem itself reports this.
                ErrorKind::DiskFull => limit,
                ErrorKind::WriteLimit if reading.is_backed => limit,
                ErrorKind::TooManyFiles if reading.stood_still => limit,
                _ => {
                    // A scan may count files twice that are moved meanwhile: two results are
                    // believed.
                    let most = before.bounds.entries.saturating_add(1);
                    let Some(again) = scan(&self.io_dir, most).await else { continue };
                    let again = reading.with_named(again);
                    match before.baseline.passed(&again, &self.limits) {
                        Some(limit) => limit,
                        None => continue,
                    }
                }
            };
            let message = format!("killed: {}", limit.message);
            return ScriptError { message, ..limit };
        }
    }

    /// Waits until the sandbox uses much more than when it was asked to end: asking was not enough.
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
        let Some((after, ..)) = snapshot(&self.io_dir, &self.limits, &self.is_prompt).await else {
            return (unknown, Some(failure(ErrorKind::WriteLimit, UNMEASURED)));
        };
        let (usage, coverage) = (after.usage, after.coverage);
        let reading = Reading::new(usage, coverage, None);
        let limit = before.baseline.of_names().passed(&reading, &self.limits);
        let snapshot = before.snapshot.clone();
        let changes = match usage.entries.max(snapshot.usage.entries) <= FEW {
            true => Ok(snapshot.changes(&after)),
            false => spawn_blocking(move || snapshot.changes(&after)).await,
        };
        (changes.unwrap_or(unknown), limit)
    }
}

impl Reading {
    /// Of named files alone.
    const fn new(usage: DiskUsage, coverage: ScanCoverage, space: Option<FreeSpace>) -> Self {
        Self {
            usage,
            coverage,
            unnamed: DiskUsage { bytes: 0, entries: 0 },
            unseen: false,
            was_unseen: false,
            unexplained: 0,
            is_backed: false,
            stood_still: false,
            space,
            is_missing: false,
        }
    }

    /// What it has found compared with the previous one.
    const fn found_since(&self, last: &Self) -> Found {
        let has_grown = self.usage.bytes > last.usage.bytes
            || self.usage.entries > last.usage.entries
            // Unmeasurable usage may be the sandbox's.
            || self.unseen && self.unexplained > last.unexplained;
        if has_grown { Found::Growth } else { Found::Nothing }
    }

    /// The same, with this scan's numbers of named files.
    fn with_named(self, (named, coverage): (DiskUsage, ScanCoverage)) -> Self {
        let usage = DiskUsage {
            bytes: named.bytes.saturating_add(self.unnamed.bytes),
            entries: named.entries.saturating_add(self.unnamed.entries),
        };
        Self { usage, coverage, ..self }
    }
}

impl Baseline {
    /// The same, to be compared with a scan alone: unnamed files of others existed before, and
    /// would allow the same amount to be written.
    const fn of_names(self) -> Self {
        Self { usage: self.named, ..self }
    }

    /// By how much the free space has decreased since then.
    fn fallen(&self, now: &Reading) -> u64 {
        let (Some(before), Some(now)) = (self.space, now.space) else { return 0 };
        before.bytes.saturating_sub(now.bytes)
    }

    fn passed(&self, now: &Reading, limits: &Limits) -> Option<ScriptError> {
        if now.is_missing {
            return Some(failure(ErrorKind::WriteLimit, UNMEASURED));
        }
        self.grown(now, limits).or_else(|| {
            let space = now.space?;
            let little = too_little(space, self.reserve)?;
            if space.available >= self.reserve.of(space.size) {
                return Some(failure(ErrorKind::DiskFull, little));
            }
            let grown = now.usage.bytes.saturating_sub(self.usage.bytes);
            let share = match (self.is_measured, ByteSize::b(grown >> 20 << 20)) {
                (true, grown) => format!(", of which the sandbox has taken at least {grown}"),
                (false, _) => String::new(),
            };
            let fallen = ByteSize::b(self.fallen(now) >> 20 << 20);
            let message = format!("{little}: {fallen} less than at the beginning{share}");
            Some(failure(ErrorKind::DiskFull, message))
        })
    }

    fn grown(&self, now: &Reading, limits: &Limits) -> Option<ScriptError> {
        if !self.is_measured {
            return None;
        }
        let most = DiskUsage {
            bytes: limits.max_write.as_u64(),
            entries: u64::from(limits.entries.get()),
        };
        let copies = if self.is_overlay { COPIES } else { "" };
        over(self.usage, now.usage, now.coverage, most, copies)
            .or_else(|| {
                let when = format!(" in the sandbox's life{copies}");
                over(self.first, now.usage, now.coverage, most.or(LIFE), &when)
            })
            .or_else(|| {
                // The amount cannot be measured; the filesystem's free space shows how much is
                // gone.
                let grown = now.usage.bytes.saturating_sub(self.usage.bytes);
                let gone = grown.saturating_add(now.unexplained);
                let hides =
                    now.unseen && now.was_unseen && gone > most.bytes.saturating_add(OTHERS);
                hides.then(|| {
                    let bytes = ByteSize::b(most.bytes);
                    let message = format!(
                        "the io dir's file system lost more than {bytes}, while the sandbox kept \
                         files where they cannot be measured"
                    );
                    failure(ErrorKind::WriteLimit, message)
                })
            })
    }
}

/// Whether less space is free than the reserve, or fewer inodes.
fn too_little(space: FreeSpace, reserve: DiskReserve) -> Option<String> {
    let (bytes, inodes) = (reserve.of(space.size), reserve.inodes_of(&space));
    let little = if space.available < bytes {
        format!("less than {:.1}", bytesize::ByteSize::b(bytes).display().iec())
    } else if space.available_inodes < inodes {
        format!("room for fewer than {inodes} files")
    } else {
        return None;
    };
    Some(format!("the io dir's file system has {little} left (limits.disk_reserve)"))
}

/// The limit that the growth has exceeded.
fn over(
    before: DiskUsage,
    now: DiskUsage,
    coverage: ScanCoverage,
    most: DiskUsage,
    when: &str,
) -> Option<ScriptError> {
    let (bytes, entries) = (most.bytes, most.entries);
    if now.bytes.saturating_sub(before.bytes) > bytes {
        let bytes = ByteSize::b(bytes);
        let message = format!("the io dir grew by more than {bytes}{when}");
        return Some(failure(ErrorKind::WriteLimit, message));
    }
    if now.entries.saturating_sub(before.entries) > entries {
        let message = format!("more than {entries} files and directories were added{when}");
        return Some(failure(ErrorKind::TooManyFiles, message));
    }
    Some(failure(ErrorKind::TooManyFiles, unseen(coverage)?))
}

/// What prevents a scan from seeing everything that commands can write to.
fn unseen(coverage: ScanCoverage) -> Option<String> {
    match coverage {
        ScanCoverage::All | ScanCoverage::Readable | ScanCoverage::Cut => None,
        ScanCoverage::Hidden => Some(
            "the io dir has a directory that its owner cannot read, so it is unknown how much is \
             written there"
                .to_owned(),
        ),
        ScanCoverage::Deep => Some(format!(
            "the io dir has directories more than {MAX_DEPTH} deep, so it is unknown how much is \
             written there"
        )),
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

/// Measures an io dir for as long as it has users.
#[derive(Debug)]
struct Watcher {
    measured: watch::Sender<Reading>,
    /// The bounds of all runs in progress.
    bounds: Arc<Mutex<Vec<Weak<Bounds>>>>,
    task: AbortHandle,
}

impl Watcher {
    fn start(
        watched: Watched,
        processes: FoundProcesses,
        now: Reading,
        locality: Locality,
    ) -> Arc<Self> {
        let Watched { io_dir, container, reserve } = watched;
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
            processes,
            container,
            finding: None,
            bounds: bounds.clone(),
            measured: measured.clone(),
        };
        let task = watching().spawn(watch.go_on()).abort_handle();
        Arc::new(Self { measured, bounds, task })
    }

    fn bound(&self, bounds: Bounds) -> Arc<Bounds> {
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
async fn found<T, F: Future<Output = Option<T>>>(cell: &OnceCell<T>, find: impl Fn() -> F) {
    let mut pause = FIND_AGAIN.0;
    while cell.get_or_try_init(|| async { find().await.ok_or(()) }).await.is_err() {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(FIND_AGAIN.1);
    }
}

/// The processes of a container, if they are visible.
pub(crate) async fn find_processes(container: &dyn Container) -> Option<Processes> {
    let init = tokio::time::timeout(LOOK, container.init_pid()).await.ok()??;
    let container = container.id().to_owned();
    spawn_blocking(move || Processes::of(init, &container)).await.ok()?
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
    /// How many bytes the processes had written at the last scan.
    written: u64,
    container: Arc<dyn Container>,
    /// The task that finds the processes.
    finding: Option<JoinSet<()>>,
    bounds: Arc<Mutex<Vec<Weak<Bounds>>>>,
    measured: watch::Sender<Reading>,
}

impl Watch {
    async fn go_on(mut self) {
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
            let most = bounds.iter().map(|bounds| bounds.entries).max().unwrap_or(0);
            let most = most.saturating_add(1);
            let (scanned, stood_still) = tokio::select! {
                scanned = self.scan(depth, most) => (scanned, false),
                // They continue after the scan.
                stopped = self.stop_programs(last.usage.entries, left) => {
                    let scanned = self.scan(depth, most).await;
                    (scanned, stopped.stood_still())
                }
            };
            let ended = Instant::now();
            let Some(Scan { unnamed, named: (named, coverage), space: after, written }) = scanned
            else {
                self.pace.record_scan(now, ended, space, Found::Nothing);
                self.measured.send_modify(|last| last.is_missing = true);
                continue;
            };
            self.written = written;
            let (bytes, entries) = (unnamed.bytes, unnamed.entries);
            let found = DiskUsage { bytes, entries };
            let mut reading = Reading { unnamed: found, space, is_missing: false, ..last };
            reading = reading.with_named((named, coverage));
            if depth == Depth::Everything {
                (reading.unseen, reading.was_unseen) = (unnamed.has_unseen, last.unseen);
            }
            let is_clear = depth == Depth::Everything && !unnamed.has_unseen;
            reading.stood_still = stood_still;
            reading.is_backed = stood_still || self.ledger.backs(reading.usage, after);
            reading.unexplained = self.ledger.enter(reading.usage, [space, after], is_clear);
            self.pace.record_scan(now, ended, space, reading.found_since(&last));
            self.measured.send_replace(reading);
        }
    }

    /// Begins to find the processes: to ask an engine takes longer than many commands run.
    fn find(&mut self) {
        self.finding.get_or_insert_with(|| {
            let (container, processes) = (self.container.clone(), self.processes.clone());
            let find = async move { found(&processes, || find_processes(&*container)).await };
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
            false => in_time(spawn_blocking(ask)).await.unwrap_or((None, LOOK)),
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
        let (processes, written_before) = (self.processes.clone(), self.written);
        let stop = move || {
            let processes = processes.get()?;
            let written = || processes.written().saturating_sub(written_before);
            let is_theirs =
                inodes >= left.entries || bytes >= left.bytes && written() >= left.bytes / 2;
            is_theirs.then(|| processes.stop())
        };
        match spawn_blocking(stop).await {
            Ok(Some(stopped)) => stopped,
            _ => std::future::pending().await,
        }
    }

    /// Scans named and unnamed files.
    async fn scan(&self, depth: Depth, most: u64) -> Option<Scan> {
        let (io_dir, processes) = (self.io_dir.clone(), self.processes.clone());
        in_time(spawn_blocking(move || {
            let written = processes.get().map_or(0, Processes::written);
            // Before the scan of named files: a file that is unlinked meanwhile is counted once, or
            // by the next scan.
            let unnamed = match processes.get() {
                Some(processes) => processes.unnamed(io_dir.devices(), depth),
                None => Unnamed::default(),
            };
            let named = measure(io_dir.fd(), most);
            Scan { unnamed, named, space: FreeSpace::of(io_dir.fd()).ok(), written }
        }))
        .await
    }
}

/// The findings of a scan.
struct Scan {
    unnamed: Unnamed,
    named: (DiskUsage, ScanCoverage),
    /// The free space after it.
    space: Option<FreeSpace>,
    /// How many bytes the processes had written before it.
    written: u64,
}

/// Checks whether the lost free space is explained by the files found. Their usage and the free
/// space have a constant sum for as long as nobody else writes and nothing is hidden.
#[derive(Debug)]
struct Ledger {
    highest: u64,
}

impl Ledger {
    fn new(now: &Reading) -> Self {
        let left = now.space.map_or(0, |space| space.bytes);
        Self { highest: now.usage.bytes.saturating_add(left) }
    }

    /// How much is unexplained, given a later value of the free space.
    fn unexplained(&self, met: DiskUsage, space: Option<FreeSpace>) -> u64 {
        let Some(space) = space else { return 0 };
        self.highest.saturating_sub(met.bytes.saturating_add(space.bytes))
    }

    /// Whether at least as much space is gone as additional usage was found: files counted twice
    /// use no space.
    fn backs(&self, met: DiskUsage, space: Option<FreeSpace>) -> bool {
        space.is_some_and(|space| met.bytes.saturating_add(space.bytes) <= self.highest)
    }

    /// Records a scan, with the free space before and after it. A clear one has shown that nothing
    /// is hidden, so that any other loss is of others.
    fn enter(&mut self, met: DiskUsage, space: [Option<FreeSpace>; 2], is_clear: bool) -> u64 {
        let [Some(before), Some(after)] = space else { return 0 };
        let sum = |left: u64| met.bytes.saturating_add(left);
        // Files may have been created or removed during the scan.
        let (least, most) = (before.bytes.min(after.bytes), before.bytes.max(after.bytes));
        self.highest = if is_clear { sum(least) } else { self.highest.max(sum(least)) };
        self.highest.saturating_sub(sum(most))
    }
}

/// Whether a scan takes long, and as much is gone as the commands may still use.
fn is_worth_a_stop(
    entries: u64,
    last_took: Duration,
    (bytes, inodes): (u64, u64),
    left: Room,
) -> bool {
    let is_long = entries.saturating_add(inodes) >= MANY_ENTRIES || last_took >= LONG_LOOK;
    is_long && (bytes >= left.bytes || inodes >= left.entries)
}

/// How much all of them may still write.
fn room(all: &[Arc<Bounds>], now: DiskUsage) -> Room {
    let left = |bounds: &Arc<Bounds>| Room {
        bytes: bounds.bytes.saturating_add(1).saturating_sub(now.bytes),
        most_bytes: bounds.most.bytes,
        entries: bounds.entries.saturating_add(1).saturating_sub(now.entries),
        most_entries: bounds.most.entries,
    };
    let nearer = |one: Room, other: Room| Room {
        bytes: one.bytes.min(other.bytes),
        most_bytes: one.most_bytes.max(other.most_bytes),
        entries: one.entries.min(other.entries),
        most_entries: one.most_entries.max(other.most_entries),
    };
    all.iter().map(left).reduce(nearer).unwrap_or(Room::NONE)
}

async fn scan(io_dir: &Arc<IoDir>, most: u64) -> Option<(DiskUsage, ScanCoverage)> {
    let io_dir = io_dir.clone();
    in_time(spawn_blocking(move || measure(io_dir.fd(), most))).await
}

async fn snapshot(
    io_dir: &Arc<IoDir>,
    limits: &Limits,
    is_prompt: &Arc<AtomicBool>,
) -> Option<(Snapshot, Option<FreeSpace>, Locality)> {
    if is_prompt.load(Ordering::Relaxed)
        && io_dir.lower().is_none()
        && let Some(snapshot) = Snapshot::take_few(io_dir.fd(), FEW)
    {
        return Some((snapshot, FreeSpace::of(io_dir.fd()).ok(), Locality::Local));
    }
    let (io_dir, is_prompt) = (io_dir.clone(), is_prompt.clone());
    let most = u64::from(limits.entries.get()).saturating_mul(KNOWN_PER_ENTRY);
    in_time(spawn_blocking(move || {
        let since = std::time::Instant::now();
        let snapshot = Snapshot::take(io_dir.fd(), io_dir.lower(), most);
        let (space, locality) = (FreeSpace::of(io_dir.fd()).ok(), Locality::of(io_dir.fd()));
        let mut promptness = Promptness::new(locality);
        promptness.answered(since.elapsed());
        is_prompt.store(promptness.is_inline(), Ordering::Relaxed);
        (snapshot, space, locality)
    }))
    .await
}

/// Where watchers and their scans run: whatever else a process does cannot use up these threads.
fn watching() -> Handle {
    static WATCHING: LazyLock<Option<Handle>> = LazyLock::new(|| {
        let start = || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let serve = move || runtime.block_on(std::future::pending::<()>());
            std::thread::Builder::new().name("watch".to_owned()).spawn(serve)?;
            io::Result::Ok(handle)
        };
        start().inspect_err(|error| tracing::warn!(%error, "no thread to watch io dirs")).ok()
    });
    // Unit tests stop the clock of their own runtime.
    WATCHING.clone().filter(|_| !cfg!(test)).unwrap_or_else(Handle::current)
}

fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    watching().spawn_blocking(work)
}

async fn in_time<T>(walk: JoinHandle<T>) -> Option<T> {
    match tokio::time::timeout(LOOK, walk).await {
        Ok(Ok(walked)) => Some(walked),
        Ok(Err(_)) | Err(_) => {
            tracing::warn!("the io dir does not answer: what is changed in it is unknown");
            None
        }
    }
}

#[cfg(test)]
mod tests;
