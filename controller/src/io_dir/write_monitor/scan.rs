//! Scans of an io dir: what it contains, and how much space its filesystem has left.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sandbox_api::Limits;
use sandbox_dirfd::{DiskUsage, FreeSpace, Locality, ScanCoverage};
use sandbox_staging::snapshot::{Snapshot, measure};
use tokio::runtime::{Builder, Handle};

use super::latency::ScanLatency;
use crate::io_dir::IoDir;

/// How long to wait for a scan. It ends by itself before that, unless its filesystem hangs.
pub(super) const SCAN_TIMEOUT: Duration = Duration::from_secs(30);
/// How many paths are remembered for each entry that may be created.
const KNOWN_PER_ENTRY: u64 = 10;
/// The number of entries up to which an io dir is scanned on a thread that others wait for, if the last
/// scan was prompt: another thread costs more.
pub(super) const FEW_ENTRIES: u64 = 64;

/// Scans an io dir.
#[derive(Debug, Clone)]
pub(super) struct Scanner {
    pub io_dir: Arc<IoDir>,
    /// Whether the last scan was done at once, on a local filesystem.
    pub is_prompt: Arc<AtomicBool>,
    /// Where scans run that may take long.
    pub runtime: Handle,
}

impl Scanner {
    /// The usage of named files.
    pub async fn measure(&self, most: u64) -> Option<(DiskUsage, ScanCoverage)> {
        let io_dir = self.io_dir.clone();
        blocking(&self.runtime, move || measure(io_dir.fd(), most)).await
    }

    pub async fn snapshot(
        &self,
        limits: &Limits,
    ) -> Option<(Snapshot, Option<FreeSpace>, Locality)> {
        let Self { io_dir, is_prompt, .. } = self;
        if is_prompt.load(Ordering::Relaxed)
            && io_dir.lower().is_none()
            && let Some(snapshot) = Snapshot::take_few(io_dir.fd(), FEW_ENTRIES)
        {
            return Some((snapshot, FreeSpace::of(io_dir.fd()).ok(), Locality::Local));
        }
        let (io_dir, is_prompt) = (io_dir.clone(), is_prompt.clone());
        let most = u64::from(limits.entries.get()).saturating_mul(KNOWN_PER_ENTRY);
        blocking(&self.runtime, move || {
            let since = Instant::now();
            let snapshot = Snapshot::take(io_dir.fd(), io_dir.lower(), most);
            let (space, locality) = (FreeSpace::of(io_dir.fd()).ok(), Locality::of(io_dir.fd()));
            let mut latency = ScanLatency::new(locality);
            latency.answered(since.elapsed());
            is_prompt.store(latency.is_inline(), Ordering::Relaxed);
            (snapshot, space, locality)
        })
        .await
    }
}

/// Runs a blocking function on a thread of `runtime`. `None` if it takes longer than
/// [`SCAN_TIMEOUT`].
pub(super) async fn blocking<T: Send + 'static>(
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
