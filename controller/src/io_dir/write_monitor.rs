//! How an io dir grows while programs run, and what they changed in it when they have ended.
//!
//! What a program writes nobody counts: its limits on writing are held by looking. A [`Watcher`], one
//! for all that runs in a sandbox at a time, measures the io dir again and again: what has a name, by a
//! walk, and what has none any more ([`unnamed`](crate::io_dir::unnamed)). Between two looks it asks the file
//! system what is left, which costs microseconds, and looks at once where so much is gone that the limit
//! may be passed ([`pace`](crate::io_dir::pace)). Whoever runs compares with what was there before it began.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use sandbox_api::{ByteSize, FilesTouched, Limits, TouchedSource, failure};
use sandbox_engine::Container;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{LIFETIME_ENTRIES, LIFETIME_WRITE_BYTES};
use sandbox_protocol::message::ScriptError;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::Instant;

use crate::io_dir::IoDir;
use crate::io_dir::disk::{DiskReserve, FreeSpace, Locality, Promptness};
use crate::io_dir::pace::{Found, Pace, Room};
use crate::io_dir::snapshot::{DiskUsage, MAX_DEPTH, ScanCoverage, Snapshot, measure};
use crate::io_dir::unnamed::{Depth, Processes, Stopped, Unnamed};

/// How long a walk is waited for. It ends by itself before, unless its file system hangs.
const LOOK: Duration = Duration::from_secs(30);
/// Paths that are remembered, for each entry that may be made.
const KNOWN_PER_ENTRY: u64 = 10;
/// Bytes and entries by which the io dir may grow in a sandbox's whole life, where one run may not
/// make it grow more: those of the agent's own count.
const LIFE: DiskUsage = DiskUsage { bytes: LIFETIME_WRITE_BYTES, entries: LIFETIME_ENTRIES };
/// What others may write at the same time, where the file system's free space is all that can be asked.
const OTHERS: u64 = 64 << 20;
/// What a program may write after its end was asked for, before its container is killed: at least this.
const OVERRUN: u64 = 64 << 20;
/// Entries of an io dir in which a walk takes so long that programs are stopped for one that may find a
/// limit passed.
const MANY_ENTRIES: u64 = 5000;
/// The same, of the last look: processes with many descriptors make one long too.
const LONG_LOOK: Duration = Duration::from_millis(10);
/// How often the file system is asked during a look at so many.
const STOP_TICK: Duration = Duration::from_millis(5);

/// How soon they are looked for again where they are not found, and at last.
const FIND_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The sandbox's, once somebody has found them.
type FoundProcesses = Arc<OnceCell<Processes>>;

/// Where a sandbox's programs write.
#[derive(Debug, Default)]
pub(crate) struct WriteBaseline {
    /// What was there before the first of them.
    first: OnceLock<DiskUsage>,
    /// Alive while somebody runs.
    watcher: Mutex<Weak<Watcher>>,
    processes: FoundProcesses,
}

/// What is watched, and how.
pub(crate) struct Watched {
    pub io_dir: Arc<IoDir>,
    pub container: Arc<dyn Container>,
    pub reserve: DiskReserve,
}

/// Somebody who runs in a sandbox with programs.
#[derive(Debug)]
pub(crate) struct WriteMonitor {
    io_dir: Arc<IoDir>,
    limits: Limits,
    /// `None` where that could not be found out.
    before: Option<Before>,
}

#[derive(Debug)]
struct Before {
    snapshot: Arc<Snapshot>,
    baseline: Baseline,
    watcher: Arc<Watcher>,
    /// Known to the watcher for as long as this is there.
    bounds: Arc<Bounds>,
}

/// What later looks are compared with.
#[derive(Debug, Clone, Copy)]
struct Baseline {
    /// Of what had names and of what had none.
    extent: DiskUsage,
    /// Of what had names, alone.
    named: DiskUsage,
    /// Whether that is known well enough to tell what was added.
    is_measured: bool,
    /// Before the first of the sandbox's programs.
    first: DiskUsage,
    space: Option<FreeSpace>,
    reserve: DiskReserve,
}

/// Where somebody's limits end, as absolute figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    /// Of the io dir.
    bytes: u64,
    entries: u64,
    /// How much it may grow.
    most: DiskUsage,
}

/// One look at an io dir.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// With what has no name.
    extent: DiskUsage,
    reach: ScanCoverage,
    unnamed: DiskUsage,
    /// Whether the sandbox keeps what cannot be measured; and whether it did at the look before.
    unseen: bool,
    was_unseen: bool,
    /// What the file system has lost, and no file that was met explains, since nothing was unseen.
    unexplained: u64,
    /// Whether nothing was met twice: the file system has lost as much as was met, or the programs stood
    /// still.
    is_backed: bool,
    space: Option<FreeSpace>,
}

impl WriteMonitor {
    /// Looks at the io dir before anything runs.
    pub async fn begin(baseline: &WriteBaseline, watched: Watched, limits: Limits) -> Self {
        let io_dir = watched.io_dir.clone();
        let taken = snapshot(&io_dir, &limits).await;
        let before = taken.map(|(snapshot, space, locality)| {
            let reserve = watched.reserve;
            let now = Reading::new(snapshot.extent, snapshot.reach, space);
            let watcher = baseline.watcher(watched, now, locality);
            // Of others who run already.
            let unnamed = watcher.measured.borrow().unnamed;
            let now = Reading { unnamed, ..Reading::new(snapshot.extent, snapshot.reach, space) };
            let extent = now.with_named((snapshot.extent, snapshot.reach)).extent;
            let most = DiskUsage {
                bytes: limits.max_write.as_u64(),
                entries: limits.entries.get().into(),
            };
            let bounds = watcher.bound(Bounds {
                bytes: extent.bytes.saturating_add(most.bytes),
                entries: extent.entries.saturating_add(most.entries),
                most,
            });
            let baseline = Baseline {
                extent,
                named: snapshot.extent,
                is_measured: snapshot.reach < ScanCoverage::Hidden,
                first: *baseline.first.get_or_init(|| snapshot.extent),
                space,
                reserve,
            };
            Before { snapshot: Arc::new(snapshot), baseline, watcher, bounds }
        });
        Self { io_dir, limits, before }
    }

    /// Why nothing may run: programs would write where nobody looks, as much as they like, or there is
    /// no space that they may take. An earlier one may have made it so.
    pub fn refusal(&self) -> Option<ScriptError> {
        let before = self.before.as_ref()?;
        let refuse = |kind, why| Some(failure(kind, format!("nothing was started: {why}")));
        if let Some(unseen) = unseen(before.snapshot.reach) {
            return refuse(ErrorKind::TooManyFiles, unseen);
        }
        let Baseline { space, reserve, .. } = before.baseline;
        refuse(ErrorKind::DiskFull, too_little(space?, reserve)?)
    }

    /// Waits until the io dir has grown by more than the limits allow, or its file system has less
    /// space left than must stay free: for ever, where that cannot be told.
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
                // The file system itself says so.
                ErrorKind::DiskFull => limit,
                ErrorKind::WriteLimit if reading.is_backed => limit,
                _ => {
                    // A walk may meet twice what moves under it: two of them are believed.
                    let most = before.bounds.entries.saturating_add(1);
                    let Some(again) = look(&self.io_dir, most).await else { continue };
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

    /// Waits until the sandbox has taken much more than it had when its end was asked for: it is not
    /// ended by asking.
    pub async fn overrun(&self) {
        let Some(before) = &self.before else { return std::future::pending().await };
        let mut measured = before.watcher.measured.subscribe();
        let more = self.limits.max_write.as_u64().max(OVERRUN);
        let most = measured.borrow().extent.bytes.saturating_add(more);
        if measured.wait_for(|reading| reading.extent.bytes > most).await.is_err() {
            std::future::pending().await
        }
    }

    /// Looks at the io dir after the end: what was changed, and the limit that it has passed.
    pub async fn end(self) -> (FilesTouched, Option<ScriptError>) {
        let unknown = FilesTouched {
            source: TouchedSource::Scan,
            truncated: true,
            ..FilesTouched::default()
        };
        let Some(before) = self.before else { return (unknown, None) };
        let Some((after, ..)) = snapshot(&self.io_dir, &self.limits).await else {
            return (unknown, None);
        };
        let (extent, reach) = (after.extent, after.reach);
        let reading = Reading::new(extent, reach, None);
        let limit = before.baseline.of_names().passed(&reading, &self.limits);
        let snapshot = before.snapshot.clone();
        let changes = spawn_blocking(move || snapshot.changes(&after)).await;
        (changes.unwrap_or(unknown), limit)
    }
}

impl Reading {
    /// Of what has names, alone.
    const fn new(extent: DiskUsage, reach: ScanCoverage, space: Option<FreeSpace>) -> Self {
        Self {
            extent,
            reach,
            unnamed: DiskUsage { bytes: 0, entries: 0 },
            unseen: false,
            was_unseen: false,
            unexplained: 0,
            is_backed: false,
            space,
        }
    }

    /// What it has found since the one before.
    const fn found_since(&self, last: &Self) -> Found {
        let has_grown = self.extent.bytes > last.extent.bytes
            || self.extent.entries > last.extent.entries
            // What is kept where nobody can measure it may be the sandbox's.
            || self.unseen && self.unexplained > last.unexplained;
        if has_grown { Found::Growth } else { Found::Nothing }
    }

    /// The same, with this walk's figures of what has names.
    fn with_named(self, (named, reach): (DiskUsage, ScanCoverage)) -> Self {
        let extent = DiskUsage {
            bytes: named.bytes.saturating_add(self.unnamed.bytes),
            entries: named.entries.saturating_add(self.unnamed.entries),
        };
        Self { extent, reach, ..self }
    }
}

impl Baseline {
    /// The same, to be compared with a walk alone: what others keep without a name was there before, and
    /// would make room for as much.
    const fn of_names(self) -> Self {
        Self { extent: self.named, ..self }
    }

    /// By how much the free space has fallen since then.
    fn fallen(&self, now: &Reading) -> u64 {
        let (Some(before), Some(now)) = (self.space, now.space) else { return 0 };
        before.bytes.saturating_sub(now.bytes)
    }

    fn passed(&self, now: &Reading, limits: &Limits) -> Option<ScriptError> {
        self.grown(now, limits).or_else(|| {
            let little = too_little(now.space?, self.reserve)?;
            let grown = now.extent.bytes.saturating_sub(self.extent.bytes);
            let share = match (self.is_measured, ByteSize::b(grown >> 20 << 20)) {
                (true, grown) => format!(", of which the sandbox has taken {grown}"),
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
        over(self.extent, now.extent, now.reach, most, "")
            .or_else(|| {
                over(self.first, now.extent, now.reach, most.or(LIFE), " in the sandbox's life")
            })
            .or_else(|| {
                // Nobody can say how much it is; the file system can say how much is gone.
                let grown = now.extent.bytes.saturating_sub(self.extent.bytes);
                let gone = grown.saturating_add(now.unexplained);
                let hides =
                    now.unseen && now.was_unseen && gone > most.bytes.saturating_add(OTHERS);
                hides.then(|| {
                    let bytes = ByteSize::b(most.bytes);
                    let message = format!(
                        "the io dir's file system lost more than {bytes}, while the sandbox kept \
                         files where nobody can measure them"
                    );
                    failure(ErrorKind::WriteLimit, message)
                })
            })
    }
}

impl DiskUsage {
    /// The larger of both, each.
    fn or(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), entries: self.entries.max(other.entries) }
    }
}

/// That less space is left than must stay free.
fn too_little(space: FreeSpace, reserve: DiskReserve) -> Option<String> {
    let reserve = reserve.of(space.size);
    (space.available < reserve).then(|| {
        let reserve = bytesize::ByteSize::b(reserve).display().iec();
        format!("the io dir's file system has less than {reserve:.1} left (limits.disk_reserve)")
    })
}

/// The limit that growth has passed.
fn over(
    before: DiskUsage,
    now: DiskUsage,
    reach: ScanCoverage,
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
    Some(failure(ErrorKind::TooManyFiles, unseen(reach)?))
}

/// What keeps a walk from what programs can write to.
fn unseen(reach: ScanCoverage) -> Option<String> {
    match reach {
        ScanCoverage::All | ScanCoverage::Readable | ScanCoverage::Cut => None,
        ScanCoverage::Hidden => Some(
            "the io dir has a directory that its owner cannot read, so nobody could count what is \
             written there"
                .to_owned(),
        ),
        ScanCoverage::Deep => Some(format!(
            "the io dir has directories more than {MAX_DEPTH} deep, so nobody could count what is \
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

/// Measures an io dir for as long as somebody has it.
#[derive(Debug)]
struct Watcher {
    measured: watch::Sender<Reading>,
    /// Of all who run.
    bounds: Arc<Mutex<Vec<Weak<Bounds>>>>,
    tasks: [AbortHandle; 2],
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
        let wanted = Arc::new(Notify::new());
        let find = {
            let (processes, wanted) = (processes.clone(), wanted.clone());
            async move {
                // To ask an engine takes longer than many a program.
                wanted.notified().await;
                found(&processes, || find_processes(&*container)).await;
            }
        };
        let watch = Watch {
            pace: Pace::new(Instant::now(), now.space, reserve),
            promptness: Promptness::new(locality),
            io_dir,
            reserve,
            has_found: processes.initialized(),
            ledger: Ledger::new(&now),
            written: 0,
            processes,
            wanted,
            bounds: bounds.clone(),
            measured: measured.clone(),
        };
        let tasks = [tokio::spawn(find), tokio::spawn(watch.go_on())].map(|it| it.abort_handle());
        Arc::new(Self { measured, bounds, tasks })
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
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Sets `cell` to what `find` finds, and asks again where that is nothing: an engine that is busy once
/// must not leave a sandbox's files without names uncounted for ever.
async fn found<T, F: Future<Output = Option<T>>>(cell: &OnceCell<T>, find: impl Fn() -> F) {
    let mut pause = FIND_AGAIN.0;
    while cell.get_or_try_init(|| async { find().await.ok_or(()) }).await.is_err() {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(FIND_AGAIN.1);
    }
}

/// The processes of a container, where they are to be seen.
pub(crate) async fn find_processes(container: &dyn Container) -> Option<Processes> {
    let init = tokio::time::timeout(LOOK, container.init_pid()).await.ok()??;
    let container = container.id().to_owned();
    spawn_blocking(move || Processes::of(init, &container)).await.ok()?
}

/// What a watcher does.
struct Watch {
    pace: Pace,
    io_dir: Arc<IoDir>,
    reserve: DiskReserve,
    promptness: Promptness,
    processes: FoundProcesses,
    has_found: bool,
    ledger: Ledger,
    /// What the processes had written at the last look.
    written: u64,
    /// Told when the processes are to be found.
    wanted: Arc<Notify>,
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
            let unexplained = self.ledger.unexplained(last.extent, space);
            let left = room(&bounds, last.extent);
            // With what is met, it may be more than the limit.
            let is_suspicious = unexplained >= left.bytes;
            let just_found = !std::mem::replace(&mut self.has_found, self.processes.initialized())
                && self.has_found;
            let room = match just_found || last.unseen && is_suspicious {
                // What is kept unseen is believed when it was met twice.
                true => Room::NONE,
                false => left,
            };
            if self.pace.gone(space) >= room.bytes / 2 || last.extent.entries >= MANY_ENTRIES {
                self.wanted.notify_one();
            }
            if !self.pace.is_due(now, cost, space, room) {
                self.measured.send_if_modified(|last| {
                    last.space = space;
                    space.is_some_and(|space| too_little(space, self.reserve).is_some())
                });
                continue;
            }
            self.wanted.notify_one();
            let depth = if is_suspicious { Depth::Everything } else { Depth::Open };
            let most = bounds.iter().map(|bounds| bounds.entries).max().unwrap_or(0);
            let most = most.saturating_add(1);
            let (looked, stood_still) = tokio::select! {
                looked = self.look(depth, most) => (looked, false),
                // They continue when the look is over.
                stopped = self.stop_programs(last.extent.entries, left.bytes) => {
                    let looked = self.look(depth, most).await;
                    (looked, stopped.stood_still())
                }
            };
            let ended = Instant::now();
            let Some(Look { unnamed, named: (named, reach), space: after, written }) = looked
            else {
                self.pace.looked(now, ended, space, Found::Nothing);
                continue;
            };
            self.written = written;
            let (bytes, entries) = (unnamed.bytes, unnamed.entries);
            let mut reading = Reading { unnamed: DiskUsage { bytes, entries }, space, ..last };
            reading = reading.with_named((named, reach));
            if depth == Depth::Everything {
                (reading.unseen, reading.was_unseen) = (unnamed.has_unseen, last.unseen);
            }
            let is_clear = depth == Depth::Everything && !unnamed.has_unseen;
            reading.is_backed = stood_still || self.ledger.backs(reading.extent, after);
            reading.unexplained = self.ledger.enter(reading.extent, [space, after], is_clear);
            self.pace.looked(now, ended, space, reading.found_since(&last));
            self.measured.send_replace(reading);
        }
    }

    fn all_bounds(&self) -> Vec<Arc<Bounds>> {
        let bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        bounds.iter().filter_map(Weak::upgrade).collect()
    }

    /// What is left, and how long the answer took.
    async fn free_space(&mut self) -> (Option<FreeSpace>, Duration) {
        let io_dir = self.io_dir.clone();
        let ask = move || {
            let asked = std::time::Instant::now();
            let space = FreeSpace::of(io_dir.fd()).ok();
            (space, asked.elapsed())
        };
        // Another thread costs many times as much as the question.
        let (space, cost) = match self.promptness.is_inline() {
            true => ask(),
            false => in_time(spawn_blocking(ask)).await.unwrap_or((None, LOOK)),
        };
        self.promptness.answered(cost);
        (space, cost)
    }

    /// Stops the programs when, before or during a look, as much is gone as they may still write and they
    /// may have written it: they could write many times as much in the time that a look at many entries
    /// takes. Otherwise for ever.
    async fn stop_programs(&self, entries: u64, left: u64) -> Stopped {
        let is_short = entries < MANY_ENTRIES && self.pace.last_took() < LONG_LOOK;
        if is_short || !self.promptness.is_inline() {
            return std::future::pending().await;
        }
        while self.pace.gone(FreeSpace::of(self.io_dir.fd()).ok()) < left {
            tokio::time::sleep(STOP_TICK).await;
        }
        let (processes, written_before) = (self.processes.clone(), self.written);
        let stop = move || {
            let processes = processes.get()?;
            let written = processes.written().saturating_sub(written_before);
            (written >= left / 2).then(|| processes.stop())
        };
        match spawn_blocking(stop).await {
            Ok(Some(stopped)) => stopped,
            _ => std::future::pending().await,
        }
    }

    /// Looks at files with and without names.
    async fn look(&self, depth: Depth, most: u64) -> Option<Look> {
        let (io_dir, processes) = (self.io_dir.clone(), self.processes.clone());
        in_time(spawn_blocking(move || {
            let written = processes.get().map_or(0, Processes::written);
            // First: what loses its name meanwhile is counted once, or by the next look.
            let unnamed = match processes.get() {
                Some(processes) => processes.unnamed(io_dir.identity().dev, depth),
                None => Unnamed::default(),
            };
            let named = measure(io_dir.fd(), most);
            Look { unnamed, named, space: FreeSpace::of(io_dir.fd()).ok(), written }
        }))
        .await
    }
}

/// What one look has met.
struct Look {
    unnamed: Unnamed,
    named: (DiskUsage, ScanCoverage),
    /// What was left after it.
    space: Option<FreeSpace>,
    /// What the processes had written before it.
    written: u64,
}

/// Whether what is gone of the free space is in files that were met. What these take and what is left make
/// one sum for as long as nobody else writes and nothing is hidden.
#[derive(Debug)]
struct Ledger {
    highest: u64,
}

impl Ledger {
    fn new(now: &Reading) -> Self {
        let left = now.space.map_or(0, |space| space.bytes);
        Self { highest: now.extent.bytes.saturating_add(left) }
    }

    /// What is gone, by a later answer of the file system.
    fn unexplained(&self, met: DiskUsage, space: Option<FreeSpace>) -> u64 {
        let Some(space) = space else { return 0 };
        self.highest.saturating_sub(met.bytes.saturating_add(space.bytes))
    }

    /// Whether at least as much is gone as is met more: what a walk met twice is not.
    fn backs(&self, met: DiskUsage, space: Option<FreeSpace>) -> bool {
        space.is_some_and(|space| met.bytes.saturating_add(space.bytes) <= self.highest)
    }

    /// What is gone by a look, before and after which so much was left. One that is clear has shown
    /// that nothing is hidden, so what is gone is others'.
    fn enter(&mut self, met: DiskUsage, space: [Option<FreeSpace>; 2], is_clear: bool) -> u64 {
        let [Some(before), Some(after)] = space else { return 0 };
        let sum = |left: u64| met.bytes.saturating_add(left);
        // Files may have come or gone during the look.
        let (least, most) = (before.bytes.min(after.bytes), before.bytes.max(after.bytes));
        self.highest = if is_clear { sum(least) } else { self.highest.max(sum(least)) };
        self.highest.saturating_sub(sum(most))
    }
}

/// What all of them may still take.
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

async fn look(io_dir: &Arc<IoDir>, most: u64) -> Option<(DiskUsage, ScanCoverage)> {
    let io_dir = io_dir.clone();
    in_time(spawn_blocking(move || measure(io_dir.fd(), most))).await
}

async fn snapshot(
    io_dir: &Arc<IoDir>,
    limits: &Limits,
) -> Option<(Snapshot, Option<FreeSpace>, Locality)> {
    let io_dir = io_dir.clone();
    let most = u64::from(limits.entries.get()).saturating_mul(KNOWN_PER_ENTRY);
    in_time(spawn_blocking(move || {
        let snapshot = Snapshot::take(io_dir.fd(), most);
        (snapshot, FreeSpace::of(io_dir.fd()).ok(), Locality::of(io_dir.fd()))
    }))
    .await
}

async fn in_time<T>(walk: tokio::task::JoinHandle<T>) -> Option<T> {
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
