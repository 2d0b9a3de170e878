//! Permits for what a front end runs and keeps itself, such as the MCP tools. It shares the queue,
//! the quotas and the usage of executions and kept sandboxes, but is not stored, and has no id. Its
//! files are in a directory of its subject.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sandbox_api::service::{Subject, Time};
use sandbox_api::{Status, Usage};
use sandbox_dirfd::random_hex;
use tokio::sync::oneshot;

use crate::core::{Core, Queued, RunPermit};
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::service::Service;

/// A sandbox that a front end keeps itself. It counts as a kept sandbox of its subject until this is
/// dropped.
pub struct SandboxPermit {
    core: Arc<Core>,
    subject: Subject,
}

/// Leaves the queue when it is dropped.
struct Waiter<'a> {
    core: &'a Core,
    subject: &'a Subject,
    id: String,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.core.unqueue_front_end(self.subject, &self.id);
    }
}

impl Drop for SandboxPermit {
    fn drop(&mut self) {
        self.core.subject_dirs.changed(&self.subject);
        self.core.kept.release(&self.subject);
    }
}

impl RunPermit {
    /// It has ended: what it used is added to what its subject has used, durably.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn end(self, status: Status, used: Usage) -> Result<(), ServiceError> {
        self.core.counting.ended(status);
        let time = Duration::from_millis(used.wall_ms);
        self.core.counting.ran(status, &self.subject, time);
        self.core.records.add_usage(&self.subject, Time::now(), used).await
    }
}

impl std::fmt::Debug for SandboxPermit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SandboxPermit")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

impl Service {
    /// Waits until a subject may run something outside of this service's executions, by the same
    /// queue and quotas. Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// As of [`submit`](Self::submit).
    pub async fn run_permit(&self, subject: &Subject) -> Result<RunPermit, ServiceError> {
        let core = &self.core;
        if !core.is_accepting.load(Ordering::Acquire) {
            return Err(ServiceError::shutting_down());
        }
        let (reserved, _) = core.admit(subject, 0).await?;
        let (sender, granted) = oneshot::channel();
        let waiter = Waiter { core, subject, id: random_hex::<12>() };
        let since = Instant::now();
        reserved.fill(waiter.id.clone(), Queued::FrontEnd(sender));
        let permit = granted.await.map_err(|_| ServiceError::shutting_down())?;
        core.counting.waited(subject, since.elapsed());
        Ok(permit)
    }

    /// Refuses what would make the files that a front end keeps of a subject larger, if the subject has
    /// as much as it may.
    ///
    /// # Errors
    ///
    /// [`ServiceError::quota_exceeded`] and [`ServiceError::disk_full`]; if the store fails.
    pub async fn check_stored(&self, subject: &Subject) -> Result<(), ServiceError> {
        self.core.make_room(subject, 0).await.map(drop)
    }

    /// Counts a sandbox that a front end keeps itself.
    ///
    /// # Errors
    ///
    /// [`ServiceError::quota_exceeded`].
    pub fn sandbox_permit(&self, subject: &Subject) -> Result<SandboxPermit, ServiceError> {
        let core = &self.core;
        let (quota, most) = (core.quotas().sandboxes, core.config.kept.sandboxes);
        let begun = core.kept.reserve(subject, quota, most);
        begun.inspect_err(|_| Counting::add(&core.counting.refused_quota))?;
        Ok(SandboxPermit { core: core.clone(), subject: subject.clone() })
    }
}
