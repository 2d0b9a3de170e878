//! The life of kept sandboxes: containers that start with a use and end for idleness, and the end of the
//! sandbox.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use sandbox_api::service::{SandboxRef, SandboxStatus, Subject, Time};
use sandbox_api::{CancelCause, SandboxSpec, generation_id};
use tracing::Instrument as _;

use super::registry::{DueAction, SandboxEntry, SandboxLease};
use crate::core::{Core, HeldSlot};
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::launcher::Guest;
use crate::live::{Live, cancel_all};

/// The longest sleep, in case the clock is set.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// How long executions may take to end, once and once more, when their sandbox is removed.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the removal of a container may take at a shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

impl Core {
    /// Begins a use, and starts a container if it is missing.
    pub async fn lease(
        self: &Arc<Self>,
        subject: &Subject,
        place: &SandboxRef,
    ) -> Result<SandboxLease, ServiceError> {
        let kept = self.kept.find(subject, &place.id)?;
        self.spawn_lease(kept, place.generation).await
    }

    /// Begins a use of the attached sandbox of this title, which is made from the spec if it is missing.
    pub async fn lease_attached(
        self: &Arc<Self>,
        subject: &Subject,
        title: &'static str,
        spec: impl Fn() -> SandboxSpec,
    ) -> Result<SandboxLease, ServiceError> {
        loop {
            if !self.is_accepting.load(Ordering::Acquire) {
                return Err(ServiceError::shutting_down());
            }
            let make = || SandboxEntry::attached(subject, title, spec());
            let bounds = (self.quotas().sandboxes, self.config.kept.sandboxes);
            let kept = self.kept.attached(subject, title, make, bounds);
            let kept = kept.inspect_err(|_| Counting::add(&self.counting.refused_quota))?;
            match self.spawn_lease(kept.clone(), None).await {
                // It was removed meanwhile.
                Err(_) if kept.is_deleted.load(Ordering::Acquire) => {}
                Err(error) => {
                    self.delete_unstarted(kept).await?;
                    return Err(error);
                }
                used => return used,
            }
        }
    }

    /// Begins a use on a task of its own: a launch goes on if its caller does not wait, and the next use
    /// has it.
    async fn spawn_lease(
        self: &Arc<Self>,
        kept: Arc<SandboxEntry>,
        generation: Option<u64>,
    ) -> Result<SandboxLease, ServiceError> {
        let core = self.clone();
        let using = async move { core.begin_use(kept, generation).await };
        let using = tokio::spawn(using.in_current_span());
        let failed = |_| ServiceError::internal("the start of a sandbox panicked");
        using.await.map_err(failed)?
    }

    /// The same, which ends if its caller does not wait.
    pub async fn begin_use(
        self: &Arc<Self>,
        kept: Arc<SandboxEntry>,
        asked: Option<u64>,
    ) -> Result<SandboxLease, ServiceError> {
        let mut container = kept.container.lock().await;
        if kept.is_deleted.load(Ordering::Acquire) || kept.info().expires_at <= Time::now() {
            return Err(kept.gone());
        }
        self.remove_ended(&kept, &mut container);
        let current = kept.info().generation;
        let stale = |asked| ServiceError::stale_generation(&kept.record.id, asked);
        if let Some(asked) = asked
            && (asked != current || container.is_none())
        {
            return Err(stale(asked));
        }
        let (guest, is_new) = match &*container {
            Some(guest) => (guest.clone(), false),
            None => {
                let guest = self.start_kept(&kept, current + 1).await?;
                *container = Some(guest.clone());
                (guest, true)
            }
        };
        let used = SandboxLease::begin(kept.clone(), guest, is_new, self.kept.changed.clone());
        drop(container);
        Ok(used)
    }

    /// Removes its container, if that has ended by itself.
    fn remove_ended(self: &Arc<Self>, kept: &SandboxEntry, container: &mut Option<Arc<dyn Guest>>) {
        if let Some(guest) = container.take_if(|guest| guest.has_ended()) {
            self.remove(guest);
            kept.info().status = SandboxStatus::Stopped;
            self.announce_status(kept, false);
        }
    }

    /// Tells the lists of other nodes.
    fn announce_status(&self, kept: &SandboxEntry, is_ready: bool) {
        if let Some(node) = &self.node
            && kept.attached.is_none()
        {
            node.clone().set_ready(kept.record.id.clone(), is_ready);
        }
    }

    async fn start_kept(
        self: &Arc<Self>,
        kept: &Arc<SandboxEntry>,
        generation: u64,
    ) -> Result<Arc<dyn Guest>, ServiceError> {
        let spec = kept.spec()?.clone();
        if kept.attached.is_none() {
            // Durable before anything of it runs: no two containers have one generation.
            let (now, expires_at) = (Time::now(), kept.info().expires_at);
            self.records.update_sandbox(&kept.record.id, generation, now, expires_at).await?;
        }
        {
            let mut info = kept.info();
            info.generation = generation;
            info.restart_unreported = info.has_started;
            info.status = SandboxStatus::Starting;
        }
        let spec = match kept.attached {
            Some(title) => spec.title(title),
            None => self.spec_of(kept, spec, generation),
        };
        let launched = self.launch(&kept.record.subject, spec).await;
        let mut info = kept.info();
        info.has_started |= launched.is_ok();
        info.status = match launched {
            Ok(_) => SandboxStatus::Ready,
            Err(_) => SandboxStatus::Stopped,
        };
        drop(info);
        self.kept.changed.notify_one();
        self.announce_status(kept, launched.is_ok());
        if let Ok(guest) = &launched {
            let (core, kept) = (Arc::downgrade(self), Arc::downgrade(kept));
            let ended = guest.until_ended();
            // The next use may never come.
            tokio::spawn(async move {
                ended.await;
                if let (Some(core), Some(kept)) = (core.upgrade(), kept.upgrade()) {
                    core.remove_ended(&kept, &mut *kept.container.lock().await);
                }
            });
        }
        launched
    }

    /// The spec of a generation of a stored sandbox.
    fn spec_of(&self, kept: &SandboxEntry, spec: SandboxSpec, generation: u64) -> SandboxSpec {
        let record = &kept.record;
        let spec = match spec.io_is_off || spec.io_dir.is_some() {
            true => spec,
            false => spec.kept_io_dir(self.files.path(&record.id)),
        };
        let spec = spec.lifetime(record.max_expires_at.since(Time::now())).title("sandbox");
        let spec = spec.id(generation_id(&record.id, generation));
        match &record.name {
            Some(name) => spec.container_name(name),
            None => spec,
        }
    }

    /// Removes its container, if nothing uses it.
    async fn stop_kept(self: &Arc<Self>, kept: &SandboxEntry) {
        let mut container = kept.container.lock().await;
        if kept.info().uses > 0 {
            return;
        }
        if let Some(guest) = container.take() {
            kept.info().status = SandboxStatus::Stopped;
            self.remove(guest);
            self.announce_status(kept, false);
        }
    }

    /// Removes a sandbox that could not be started, unless another creator of its name has started it.
    pub async fn delete_unstarted(
        self: &Arc<Self>,
        kept: Arc<SandboxEntry>,
    ) -> Result<(), ServiceError> {
        let container = kept.container.lock().await;
        if container.is_some() || kept.info().uses > 0 {
            return Ok(());
        }
        // Uses that wait for the container do not start it any more.
        kept.is_deleted.store(true, Ordering::Release);
        drop(container);
        self.delete_kept(kept).await
    }

    /// Removes a sandbox with its files, even if it is in use.
    pub async fn delete_kept(
        self: &Arc<Self>,
        kept: Arc<SandboxEntry>,
    ) -> Result<(), ServiceError> {
        if kept.attached.is_none() {
            self.records.remove_sandbox(&kept.record.id).await?;
        }
        kept.is_deleted.store(true, Ordering::Release);
        if !self.kept.take(&kept) {
            return Ok(());
        }
        self.end_executions_in(&kept).await;
        let guest = kept.container.lock().await.take();
        if let Some(guest) = guest
            && let Err(error) = guest.close().await
        {
            Counting::add(&self.counting.failed_removals);
            tracing::warn!(id = kept.record.id, error, "a sandbox was not removed");
        }
        if kept.attached.is_some() {
            self.subject_dirs.changed(&kept.record.subject);
            return Ok(());
        }
        let (core, id) = (self.clone(), kept.record.id.clone());
        crate::blocking(move || core.files.remove(&id).map_err(ServiceError::files)).await
    }

    /// Ends the executions in a sandbox that is being removed. Queued ones do not run; started ones
    /// are cancelled before the container is gone, which would look like a failure.
    async fn end_executions_in(self: &Arc<Self>, kept: &SandboxEntry) {
        let mut begun = Vec::new();
        let is_in = |live: &Arc<Live>| live.sandbox.as_ref() == Some(&kept.record.id);
        for live in self.all_live().into_iter().filter(is_in) {
            match self.unqueue(&live) {
                Some(_waiting) => {
                    self.end_not_run(&live, kept.gone().failure(), HeldSlot::No).await
                }
                None => begun.push(live),
            }
        }
        cancel_all(&begun, CancelCause::Deleted, CANCEL_TIMEOUT).await;
    }

    /// Removes all containers. Those that could not be removed, and why.
    pub async fn close_kept(self: &Arc<Self>) -> Vec<String> {
        let close = |kept: Arc<SandboxEntry>| async move {
            let guest = kept.container.lock().await.take()?;
            kept.info().status = SandboxStatus::Stopped;
            let closed = tokio::time::timeout(CLOSE_TIMEOUT, guest.close()).await;
            let closed = closed.unwrap_or_else(|_| Err("it takes too long".to_owned()));
            closed.err().map(|error| format!("{}: {error}", kept.record.id))
        };
        join_all(self.kept.all().into_iter().map(close)).await.into_iter().flatten().collect()
    }
}

/// Stops idle sandboxes, and removes expired ones.
pub(crate) async fn end_unused(core: Weak<Core>) {
    loop {
        let Some(strong) = core.upgrade() else { return };
        let now = Time::now();
        let mut next: Option<Time> = None;
        for kept in strong.kept.all() {
            match kept.due() {
                Some((at, DueAction::Stop)) if at <= now => strong.stop_kept(&kept).await,
                Some((at, DueAction::Delete)) if at <= now => {
                    let id = kept.record.id.clone();
                    if let Err(error) = strong.delete_kept(kept).await {
                        tracing::warn!(id, %error, "a sandbox was not removed");
                        next = Some(next.unwrap_or(Time::from_unix_millis(i64::MAX)))
                            .map(|at| at.min(now.after(Duration::from_secs(60))));
                    }
                    continue;
                }
                _ => {}
            }
            if let Some((at, _)) = kept.due() {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        let sleep = next.map_or(LONGEST_SLEEP, |at| at.since(Time::now())).min(LONGEST_SLEEP);
        let changed = strong.kept.changed.clone();
        drop(strong);
        tokio::select! {
            () = tokio::time::sleep(sleep.max(Duration::from_millis(1))) => {}
            () = changed.notified() => {}
        }
    }
}
