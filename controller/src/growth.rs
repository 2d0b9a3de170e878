//! How an io dir grows while programs run, and what they changed in it when they have ended.
//!
//! What a program writes nobody counts: its limits on writing are held by looking. A [`Watcher`], one
//! for all that runs in a sandbox at a time, measures the io dir again and again; whoever runs compares
//! with what was there before it began.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::ScriptError;
use tokio::sync::watch;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::Instant;

use crate::iodir::IoDir;
use crate::limits::{ByteSize, Limits};
use crate::outcome::failure;
use crate::report::{FilesTouched, TouchedSource};
use crate::scan::{Extent, MAX_DEPTH, Reach, Snapshot, measure};

/// How long a walk is waited for. It ends by itself before, unless its file system hangs.
const LOOK: Duration = Duration::from_secs(30);
/// Paths that are remembered, for each entry that may be made.
const KNOWN_PER_ENTRY: u64 = 10;
/// How far apart two measurements begin at least, and at most where they cost little.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(2);
/// A measurement is followed by a rest of so many times what it took: one processor's 5 % ...
const REST: u32 = 19;
/// ... or, where that would be longer than [`LATEST`], a quarter of it.
const SHORT_REST: u32 = 3;
/// Bytes and entries by which the io dir may grow in a sandbox's whole life, where one run may not
/// make it grow more: those of the agent's own count.
const LIFE: Extent = Extent { bytes: 1 << 30, entries: 100_000 };

/// Where a sandbox's programs write.
#[derive(Debug, Default)]
pub(crate) struct Ground {
    /// What was there before the first of them.
    first: OnceLock<Extent>,
    /// Alive while somebody runs.
    watcher: Mutex<Weak<Watcher>>,
}

/// Somebody who runs in a sandbox with programs.
#[derive(Debug)]
pub(crate) struct Lookout {
    io_dir: Arc<IoDir>,
    limits: Limits,
    /// `None` where that could not be found out.
    before: Option<Before>,
}

#[derive(Debug)]
struct Before {
    snapshot: Arc<Snapshot>,
    first: Extent,
    watcher: Arc<Watcher>,
}

impl Lookout {
    /// Looks at the io dir before anything runs.
    pub async fn begin(ground: &Ground, io_dir: Arc<IoDir>, limits: Limits) -> Self {
        let snapshot = snapshot(&io_dir, &limits).await.map(Arc::new);
        let before = snapshot.map(|snapshot| Before {
            first: *ground.first.get_or_init(|| snapshot.extent),
            watcher: ground.watcher(&io_dir),
            snapshot,
        });
        Self { io_dir, limits, before }
    }

    /// Why nothing may run: programs would write where nobody looks, as much as they like. An earlier one
    /// may have made it so.
    pub fn refusal(&self) -> Option<ScriptError> {
        let reach = self.before.as_ref()?.snapshot.reach;
        Some(failure(ErrorKind::TooManyFiles, format!("nothing was started: {}", unseen(reach)?)))
    }

    /// Waits until the io dir has grown by more than the limits allow: for ever, where that cannot
    /// be told.
    pub async fn passed(&self) -> ScriptError {
        let Some(before) = self.before.as_ref().filter(|before| before.is_measured()) else {
            return std::future::pending().await;
        };
        let most = before.most(&self.limits);
        before.watcher.most.fetch_max(most, Ordering::Relaxed);
        let mut measured = before.watcher.measured.subscribe();
        loop {
            if measured.changed().await.is_err() {
                return std::future::pending().await;
            }
            let (extent, reach) = *measured.borrow_and_update();
            if before.passed(extent, reach, &self.limits).is_none() {
                continue;
            }
            // A walk may meet twice what moves under it: two of them are believed.
            if let Some((extent, reach)) = look(&self.io_dir, most).await
                && let Some(limit) = before.passed(extent, reach, &self.limits)
            {
                let message = format!("killed: {}", limit.message);
                return ScriptError { message, ..limit };
            }
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
        let Some(after) = snapshot(&self.io_dir, &self.limits).await else {
            return (unknown, None);
        };
        let limit = match before.is_measured() {
            true => before.passed(after.extent, after.reach, &self.limits),
            false => None,
        };
        let snapshot = before.snapshot;
        let changes = spawn_blocking(move || snapshot.changes(&after)).await;
        (changes.unwrap_or(unknown), limit)
    }
}

impl Before {
    /// Whether what was there before is known well enough to tell what was added.
    fn is_measured(&self) -> bool {
        self.snapshot.reach < Reach::Hidden
    }

    /// Entries at which nobody need count any more.
    fn most(&self, limits: &Limits) -> u64 {
        let entries = u64::from(limits.entries.get());
        self.snapshot.extent.entries.saturating_add(entries).saturating_add(1)
    }

    fn passed(&self, now: Extent, reach: Reach, limits: &Limits) -> Option<ScriptError> {
        let most =
            Extent { bytes: limits.max_write.as_u64(), entries: u64::from(limits.entries.get()) };
        over(self.snapshot.extent, now, reach, most, "")
            .or_else(|| over(self.first, now, reach, most.or(LIFE), " in the sandbox's life"))
    }
}

impl Extent {
    /// The larger of both, each.
    fn or(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), entries: self.entries.max(other.entries) }
    }
}

/// The limit that growth has passed.
fn over(
    before: Extent,
    now: Extent,
    reach: Reach,
    most: Extent,
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
fn unseen(reach: Reach) -> Option<String> {
    match reach {
        Reach::All | Reach::Readable | Reach::Cut => None,
        Reach::Hidden => Some(
            "the io dir has a directory that its owner cannot read, so nobody could count what is \
             written there"
                .to_owned(),
        ),
        Reach::Deep => Some(format!(
            "the io dir has directories more than {MAX_DEPTH} deep, so nobody could count what is \
             written there"
        )),
    }
}

impl Ground {
    fn watcher(&self, io_dir: &Arc<IoDir>) -> Arc<Watcher> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        watcher.upgrade().unwrap_or_else(|| {
            let new = Watcher::start(io_dir.clone());
            *watcher = Arc::downgrade(&new);
            new
        })
    }
}

/// Measures an io dir for as long as somebody has it.
#[derive(Debug)]
struct Watcher {
    measured: watch::Sender<(Extent, Reach)>,
    /// Entries that it counts.
    most: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Watcher {
    fn start(io_dir: Arc<IoDir>) -> Arc<Self> {
        let measured = watch::Sender::new((Extent::default(), Reach::Cut));
        let most = Arc::<AtomicU64>::default();
        let task = tokio::spawn({
            let (measured, most) = (measured.clone(), most.clone());
            async move {
                let mut period = SOONEST;
                loop {
                    tokio::time::sleep(period).await;
                    let started = Instant::now();
                    if let Some(seen) = look(&io_dir, most.load(Ordering::Relaxed)).await {
                        measured.send_replace(seen);
                    }
                    period = rest(started.elapsed());
                }
            }
        });
        Arc::new(Self { measured, most, task: task.abort_handle() })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How long to wait after a measurement that took so long.
fn rest(took: Duration) -> Duration {
    (took * REST).clamp(SOONEST, LATEST).max(took * SHORT_REST)
}

async fn look(io_dir: &Arc<IoDir>, most: u64) -> Option<(Extent, Reach)> {
    let io_dir = io_dir.clone();
    in_time(spawn_blocking(move || measure(io_dir.fd(), most))).await
}

async fn snapshot(io_dir: &Arc<IoDir>, limits: &Limits) -> Option<Snapshot> {
    let io_dir = io_dir.clone();
    let most = u64::from(limits.entries.get()).saturating_mul(KNOWN_PER_ENTRY);
    in_time(spawn_blocking(move || Snapshot::take(io_dir.fd(), most))).await
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
mod tests {
    use super::*;

    #[test]
    fn growth_is_measured_against_what_was_there_before() {
        let extent = |bytes, entries| Extent { bytes, entries };
        let most = extent(100, 10);
        let kind = |before, now, reach| {
            over(before, now, reach, most, "").map(|limit: ScriptError| limit.kind)
        };
        let before = extent(1000, 50);
        for (now, reach, expected) in [
            (extent(1100, 60), Reach::All, None),
            (extent(1101, 50), Reach::All, Some(ErrorKind::WriteLimit)),
            (extent(1000, 61), Reach::Cut, Some(ErrorKind::TooManyFiles)),
            // What was removed makes room.
            (extent(0, 0), Reach::All, None),
            (extent(1000, 50), Reach::Readable, None),
            // What is too deep to be counted is too much.
            (extent(1000, 50), Reach::Deep, Some(ErrorKind::TooManyFiles)),
            (extent(1000, 50), Reach::Hidden, Some(ErrorKind::TooManyFiles)),
        ] {
            assert_eq!(kind(before, now, reach), expected, "{now:?} {reach:?}");
        }
    }

    #[test]
    fn a_measurement_that_costs_much_is_made_less_often() {
        let rest = |millis| rest(Duration::from_millis(millis)).as_millis();
        assert_eq!([rest(0), rest(1), rest(20), rest(100)], [100, 100, 380, 1900]);
        assert_eq!([rest(200), rest(666), rest(2000)], [2000, 2000, 6000]);
    }
}
