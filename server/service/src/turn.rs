//! Turns and places of what a front end runs and keeps itself, such as the tools of agents. They have
//! the queue, the quotas and the usage of executions and kept sandboxes, and are neither: they are not
//! stored, and nobody finds them by an id. What they leave is in a directory of their subject.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_api::service::{Subject, Time};
use sandbox_api::{Status, Usage};
use sandbox_dirfd::random_hex;
use tokio::sync::oneshot;

use crate::counters::Counting;
use crate::error::ServiceError;
use crate::files::bytes_below;
use crate::live::Queued;
use crate::service::{Core, Service};
use crate::size::Size;

/// The turn of something that a front end runs itself. It counts as a running execution of its subject
/// until it is dropped.
pub struct Turn {
    core: Arc<Core>,
    subject: Subject,
}

/// A sandbox that a front end keeps itself. It counts as a kept sandbox of its subject until this is
/// dropped.
pub struct SandboxPlace {
    core: Arc<Core>,
    subject: Subject,
}

/// Leaves the queue when nobody waits any more.
struct Waiter<'a> {
    core: &'a Core,
    subject: &'a Subject,
    id: String,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.core.unqueue_turn(self.subject, &self.id);
    }
}

impl Turn {
    pub(crate) const fn new(core: Arc<Core>, subject: Subject) -> Self {
        Self { core, subject }
    }

    /// It has ended: what it used is added to what its subject has used, durably.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn end(self, status: Status, used: Usage) -> Result<(), ServiceError> {
        self.core.counting.ended(status);
        self.core.records.add_usage(&self.subject, Time::now(), used).await
    }
}

/// The sizes of the directories of subjects, of those that have one.
#[derive(Debug, Default)]
pub(crate) struct SubjectDirs(Mutex<HashMap<Subject, Size>>);

impl SubjectDirs {
    fn sizes(&self) -> MutexGuard<'_, HashMap<Subject, Size>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self, subject: &Subject) {
        if let Some(size) = self.sizes().get(subject) {
            size.changed();
        }
    }
}

impl Core {
    /// The bytes of the files that front ends keep of a subject.
    pub async fn subject_dir_bytes(&self, subject: &Subject) -> u64 {
        let size = self.subject_dirs.sizes().entry(subject.clone()).or_default().clone();
        let directory = self.config.subject_dirs().join(subject.directory_name());
        let bytes = size.bytes(self.is_active(subject), move || bytes_below(&directory)).await;
        let mut sizes = self.subject_dirs.sizes();
        if bytes == 0 && size.is_unshared() {
            sizes.remove(subject);
        }
        drop(sizes);
        bytes
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.core.subject_dirs.changed(&self.subject);
        self.core.end_turn(&self.subject);
    }
}

impl Drop for SandboxPlace {
    fn drop(&mut self) {
        self.core.subject_dirs.changed(&self.subject);
        self.core.kept.end_place(&self.subject);
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Turn").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SandboxPlace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SandboxPlace")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

impl Service {
    /// Waits until a subject may run something that is no execution of this service, by the same queue
    /// and quotas. Whoever stops waiting leaves the queue.
    ///
    /// # Errors
    ///
    /// As of [`submit`](Self::submit).
    pub async fn turn(&self, subject: &Subject) -> Result<Turn, ServiceError> {
        let core = &self.core;
        if !core.is_accepting.load(Ordering::Acquire) {
            return Err(ServiceError::ShuttingDown);
        }
        let reserved = core.admit(subject).await?;
        let (sender, granted) = oneshot::channel();
        let waiter = Waiter { core, subject, id: random_hex::<12>() };
        reserved.fill(waiter.id.clone(), Queued::Turn(sender));
        granted.await.map_err(|_| ServiceError::ShuttingDown)
    }

    /// Refuses what would make the files that a front end keeps of a subject larger, if the subject has
    /// as much as it may.
    ///
    /// # Errors
    ///
    /// [`ServiceError::QuotaExceeded`]; if the store fails.
    pub async fn check_stored(&self, subject: &Subject) -> Result<(), ServiceError> {
        self.core.check_stored(subject).await
    }

    /// Counts a sandbox that a front end keeps itself.
    ///
    /// # Errors
    ///
    /// [`ServiceError::QuotaExceeded`].
    pub fn sandbox_place(&self, subject: &Subject) -> Result<SandboxPlace, ServiceError> {
        let core = &self.core;
        let (quota, most) = (core.quotas().sandboxes, core.config.kept.sandboxes);
        let begun = core.kept.begin_place(subject, quota, most);
        begun.inspect_err(|_| Counting::add(&core.counting.refused_quota))?;
        Ok(SandboxPlace { core: core.clone(), subject: subject.clone() })
    }
}
