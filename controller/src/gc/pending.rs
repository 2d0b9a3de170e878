//! Background work that must be completed before the process exits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::error::Error;

/// Removals in progress.
pub(crate) struct Cleanup {
    /// The runtime that connected: values may be dropped outside of it.
    runtime: Handle,
    tasks: TaskTracker,
    has_failed: Arc<AtomicBool>,
    /// Whether an engine is removing something by itself.
    is_handed_over: AtomicBool,
}

impl Cleanup {
    /// No work yet. Must be called in the runtime that is to do the work.
    pub fn new() -> Self {
        Self {
            runtime: Handle::current(),
            tasks: TaskTracker::new(),
            has_failed: Arc::default(),
            is_handed_over: AtomicBool::new(false),
        }
    }

    /// Does `work` in the background; the returned receiver reports the result.
    pub fn spawn(
        &self,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> oneshot::Receiver<Result<(), Error>> {
        let (sender, receiver) = oneshot::channel();
        let has_failed = self.has_failed.clone();
        self.tasks.spawn_on(
            async move {
                let result = work.await;
                if let Err(error) = &result {
                    has_failed.store(true, Ordering::Relaxed);
                    tracing::debug!(error = error.full_message(), "left for the next command");
                }
                _ = sender.send(result);
            },
            &self.runtime,
        );
        receiver
    }

    /// Records that an engine is removing something without a waiting caller.
    pub fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::Relaxed);
    }

    /// Whether an engine may still be removing something.
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Relaxed)
    }

    /// Records that something may remain that this process cannot remove.
    pub fn leave_for_the_next_command(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Waits for all work, and returns whether everything was removed.
    pub async fn finish(&self) -> bool {
        self.tasks.close();
        self.tasks.wait().await;
        !self.has_failed.load(Ordering::Relaxed)
    }
}
