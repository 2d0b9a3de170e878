//! The mount table as it changes.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::table::{MOUNTINFO, MountTable};

/// The mount table at its last change. `None` before the first one.
type Latest = Option<Arc<io::Result<MountTable>>>;

/// Watches the mount table for as long as somebody wants to know of it, once for all who do.
#[derive(Debug, Default)]
pub(crate) struct MountWatch(Mutex<Weak<Watcher>>);

#[derive(Debug)]
struct Watcher {
    latest: watch::Receiver<Latest>,
    task: AbortHandle,
}

/// Changes from the subscription on.
#[derive(Debug)]
pub(super) struct MountChanges {
    latest: watch::Receiver<Latest>,
    /// It ends with the last of these.
    _watcher: Arc<Watcher>,
}

impl MountWatch {
    /// Every change from now on is seen.
    pub(super) fn subscribe(&self) -> io::Result<MountChanges> {
        let mut watcher = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watcher = match watcher.upgrade() {
            Some(watcher) => watcher,
            None => {
                let new = Arc::new(Watcher::start()?);
                *watcher = Arc::downgrade(&new);
                new
            }
        };
        let mut latest = watcher.latest.clone();
        // What it says already is older than whatever the subscriber reads from now on.
        latest.mark_unchanged();
        Ok(MountChanges { latest, _watcher: watcher })
    }
}

impl Watcher {
    #[expect(
        deprecated,
        reason = "what is unsound is another type's AsRawFd: a File's is constant"
    )]
    fn start() -> io::Result<Self> {
        // The kernel compares with the moment at which it was opened: nothing between now and the
        // task's first look is missed. It says so by POLLPRI and POLLERR.
        let mountinfo = AsyncFd::with_interest(File::open(MOUNTINFO)?, Interest::PRIORITY)?;
        let (sender, latest) = watch::channel(None);
        let task = tokio::spawn(async move {
            loop {
                match mountinfo.ready(Interest::PRIORITY).await {
                    Ok(mut changed) => changed.clear_ready(),
                    // The runtime is shutting down.
                    Err(_) => return,
                }
                sender.send_replace(Some(Arc::new(MountTable::read())));
            }
        });
        Ok(Self { latest, task: task.abort_handle() })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl MountChanges {
    /// The table after the next change, or after several.
    pub async fn next(&mut self) -> Arc<io::Result<MountTable>> {
        while self.latest.changed().await.is_ok() {
            if let Some(table) = &*self.latest.borrow_and_update() {
                return table.clone();
            }
        }
        // The runtime is shutting down.
        std::future::pending().await
    }
}
