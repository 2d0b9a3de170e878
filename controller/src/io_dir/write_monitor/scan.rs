//! Measurements of an io dir: what it contains, and how much space its disk has left.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sandbox_api::Limits;
use sandbox_dirfd::{DiskUsage, FreeSpace, ScanCoverage, is_local};
use sandbox_staging::snapshot::{Snapshot, measure};
use tokio::runtime::{Builder, Handle};

use super::judge::Reading;
use crate::io_dir::IoDir;

/// How long to wait for a scan. It ends by itself before that, unless its filesystem hangs, as one on a
/// network can.
const SCAN_TIMEOUT: Duration = Duration::from_secs(30);
/// How many paths are remembered for each entry that may be created.
const KNOWN_PER_ENTRY: u64 = 10;
/// The number of entries up to which an io dir is scanned on a thread that others wait for, if the last
/// scan was prompt: another thread costs more.
pub(super) const FEW_ENTRIES: u64 = 64;
/// Longer than any answer from memory, but too short for others to notice.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Measures an io dir.
#[derive(Debug, Clone)]
pub(super) struct Scanner {
    pub io_dir: Arc<IoDir>,
    /// Whether the last scan was done at once, on a local filesystem.
    pub is_prompt: Arc<AtomicBool>,
    /// Where scans run that may take long.
    pub runtime: Handle,
}

impl Scanner {
    /// What is in use, and how much of it was seen, up to `most` entries.
    pub async fn measure(&self, most: u64) -> Option<(DiskUsage, ScanCoverage)> {
        let io_dir = self.io_dir.clone();
        let measure = move || used(&io_dir).unwrap_or_else(|| measure(io_dir.fd(), most));
        blocking(&self.runtime, measure).await
    }

    pub async fn snapshot(&self, limits: &Limits) -> Option<(Snapshot, Reading)> {
        let Self { io_dir, is_prompt, .. } = self;
        if is_prompt.load(Ordering::Relaxed)
            && io_dir.lower().is_none()
            && let Some(snapshot) = Snapshot::take_few(io_dir.fd(), FEW_ENTRIES)
        {
            return Some(taken(io_dir, snapshot));
        }
        let (io_dir, is_prompt) = (io_dir.clone(), is_prompt.clone());
        let most = u64::from(limits.entries.get()).saturating_mul(KNOWN_PER_ENTRY);
        blocking(&self.runtime, move || {
            let since = Instant::now();
            let taken = taken(&io_dir, Snapshot::take(io_dir.fd(), io_dir.lower(), most));
            let is_local = is_local(io_dir.fd());
            is_prompt.store(is_local && since.elapsed() < AT_ONCE, Ordering::Relaxed);
            taken
        })
        .await
    }
}

fn taken(io_dir: &IoDir, snapshot: Snapshot) -> (Snapshot, Reading) {
    let (usage, coverage) = used(io_dir).unwrap_or((snapshot.usage, snapshot.coverage));
    let space = space_of(io_dir);
    (snapshot, Reading { usage, coverage, space, is_missing: false })
}

/// What is in use of an io dir that the kernel bounds; `None` for another one.
fn used(io_dir: &IoDir) -> Option<(DiskUsage, ScanCoverage)> {
    io_dir.bounds()?;
    Some((FreeSpace::of(io_dir.fd()).ok()?.used(), ScanCoverage::All))
}

/// The free space of the disk whose space the io dir takes; `None` if it takes none, or it is unknown.
pub(super) fn space_of(io_dir: &IoDir) -> Option<FreeSpace> {
    FreeSpace::of(io_dir.disk()?).ok()
}

/// Runs a blocking function on a thread of `runtime`. `None` if it takes longer than
/// [`SCAN_TIMEOUT`].
pub(crate) async fn blocking<T: Send + 'static>(
    runtime: &Handle,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match tokio::time::timeout(SCAN_TIMEOUT, runtime.spawn_blocking(work)).await {
        Ok(Ok(result)) => Some(result),
        Ok(Err(_)) | Err(_) => {
            tracing::warn!("the io dir does not answer: what is changed in it is unknown");
            None
        }
    }
}

/// The runtime of all watchers and their scans in this process, so that other work cannot block
/// their threads; the caller's, if it cannot be started.
pub(crate) fn watch_runtime() -> Handle {
    static RUNTIME: LazyLock<Option<Handle>> = LazyLock::new(|| {
        let start = || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let serve = move || runtime.block_on(std::future::pending::<()>());
            std::thread::Builder::new().name("watch".to_owned()).spawn(serve)?;
            io::Result::Ok(handle)
        };
        start().inspect_err(|error| tracing::warn!(%error, "no thread to watch io dirs")).ok()
    });
    RUNTIME.clone().unwrap_or_else(Handle::current)
}
