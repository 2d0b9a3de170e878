//! The life of kept sandboxes: containers that start with a use and end for idleness, and the end of the
//! sandbox.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use sandbox_api::service::{SandboxRef, SandboxStatus, Subject, Time};
use sandbox_api::{CancelCause, ProcessState, SandboxSpec, generation_id};
use sandbox_controller::Until;

use super::registry::{DueAction, LivingProcess, SandboxEntry, SandboxLease};
use crate::core::{Core, HeldSlot};
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::launcher::Guest;
use crate::live::{Live, cancel_all};

/// The longest sleep, in case the clock is set.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// The wait after a removal that failed.
const RETRY: Duration = Duration::from_secs(60);
/// How long executions may take to end, once and once more, and processes, when their sandbox is removed.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the removal of a container may take at a shutdown.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

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

    /// The same of a sandbox that a front end keeps too, and only with the container that is there: processes
    /// are in no other.
    pub async fn lease_current(
        self: &Arc<Self>,
        subject: &Subject,
        place: &SandboxRef,
    ) -> Result<SandboxLease, ServiceError> {
        let kept = self.kept.find_any(subject, &place.id)?;
        let generation = {
            let info = kept.info();
            match (place.generation, info.status) {
                (None, SandboxStatus::Stopped) => return Err(ServiceError::not_running(&place.id)),
                // One that is started meanwhile has none of these processes.
                (asked, _) => asked.unwrap_or(info.generation),
            }
        };
        self.spawn_lease(kept, Some(generation)).await
    }

    /// Begins a use of the attached sandbox of this title, which is made from the spec if it is missing.
    pub async fn lease_attached(
        self: &Arc<Self>,
        subject: &Subject,
        title: &'static str,
        spec: impl Fn() -> SandboxSpec,
    ) -> Result<SandboxLease, ServiceError> {
        loop {
            self.check_accepting()?;
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
    pub async fn spawn_lease(
        self: &Arc<Self>,
        kept: Arc<SandboxEntry>,
        generation: Option<u64>,
    ) -> Result<SandboxLease, ServiceError> {
        let core = self.clone();
        let using = async move { core.begin_use(kept, generation).await };
        crate::detached("the start of a sandbox", using).await
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
        if let Some(asked) = asked
            && (asked != current || container.is_none())
        {
            return Err(ServiceError::stale_generation(&kept.record.id, asked));
        }
        let (guest, is_new) = match &*container {
            Some(guest) => {
                if kept.info().status == SandboxStatus::Paused {
                    guest.resume().await?;
                    kept.info().set_thawed();
                    self.announce_status(&kept);
                }
                (guest.clone(), false)
            }
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

    /// Pauses a sandbox until its next use. Those who only read what comes have to wait.
    pub async fn pause_kept(
        self: &Arc<Self>,
        kept: &SandboxEntry,
        asked: Option<u64>,
    ) -> Result<(), ServiceError> {
        let mut container = kept.container.lock().await;
        self.remove_ended(kept, &mut container);
        let (id, current) = (&kept.record.id, kept.info().generation);
        let guest = match (&*container, asked) {
            (_, Some(asked)) if asked != current => {
                return Err(ServiceError::stale_generation(id, asked));
            }
            (None, _) => return Err(ServiceError::not_running(id)),
            (Some(guest), _) => guest,
        };
        if kept.info().status == SandboxStatus::Paused {
            return Ok(());
        }
        if kept.info().is_busy() {
            return Err(ServiceError::sandbox_in_use(id));
        }
        self.pause_guest(kept, &**guest).await
    }

    /// Pauses a container that nothing uses, and whose lock is held.
    async fn pause_guest(
        &self,
        kept: &SandboxEntry,
        guest: &dyn Guest,
    ) -> Result<(), ServiceError> {
        if !self.kept.mark_paused(kept, &self.config.kept) {
            return Err(ServiceError::too_many_paused());
        }
        let used = guest.current_use().await;
        let paused = guest.pause().await;
        match paused {
            Ok(()) => {
                let mut info = kept.info();
                info.status = SandboxStatus::Paused;
                info.paused_memory = used.map(|used| used.memory_bytes);
                drop(info);
                self.announce_status(kept);
                Counting::add(&self.counting.pauses);
            }
            Err(_) => kept.info().set_thawed(),
        }
        self.kept.changed.notify_one();
        paused
    }

    /// Freezes a sandbox that has been idle for long enough. If it cannot be, it is as with one that is to be
    /// stopped.
    async fn freeze_idle(self: &Arc<Self>, kept: &SandboxEntry) {
        let mut container = kept.container.lock().await;
        let Some(guest) = container.as_ref().filter(|_| kept.is_due(DueAction::Freeze)) else {
            return;
        };
        let Err(error) = self.pause_guest(kept, &**guest).await else { return };
        tracing::info!(id = kept.record.id, %error, "an idle sandbox was not frozen");
        if kept.info().processes > 0 {
            // It is looked at again after as long.
            kept.info().idle_from = Time::now();
            return;
        }
        self.stop_container(kept, &mut container);
    }

    /// Removes its container, if that has ended by itself.
    fn remove_ended(self: &Arc<Self>, kept: &SandboxEntry, container: &mut Option<Arc<dyn Guest>>) {
        if container.as_ref().is_some_and(|guest| guest.has_ended()) {
            self.stop_container(kept, container);
        }
    }

    /// Removes its container, if there is one.
    fn stop_container(
        self: &Arc<Self>,
        kept: &SandboxEntry,
        container: &mut Option<Arc<dyn Guest>>,
    ) {
        if let Some(guest) = container.take() {
            self.remove(guest);
            kept.info().set_stopped();
            self.announce_status(kept);
        }
    }

    /// Tells the lists of other nodes.
    fn announce_status(&self, kept: &SandboxEntry) {
        if let Some(node) = &self.node
            && kept.attached.is_none()
        {
            node.clone().set_status(kept.record.id.clone(), kept.info().status);
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
            let started = self.records.change_sandbox(&kept.record.id, move |store, id| {
                store.update_sandbox(id, generation, Time::now())
            });
            started.await?;
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
        let launched = self.launch_kept(kept, spec).await;
        match &launched {
            Ok(guest) => kept.info().set_ready(guest),
            Err(_) => kept.info().set_stopped(),
        }
        self.kept.changed.notify_one();
        self.announce_status(kept);
        if let Ok(guest) = &launched {
            for process in guest.processes() {
                let living = LivingProcess::begin(kept, generation, process.scrollback());
                self.follow(kept, living, process);
            }
            let (core, kept) = (Arc::downgrade(self), Arc::downgrade(kept));
            let ended = guest.until_ended();
            // The next use may never come.
            crate::spawn(async move {
                ended.await;
                if let (Some(core), Some(kept)) = (core.upgrade(), kept.upgrade()) {
                    core.remove_ended(&kept, &mut *kept.container.lock().await);
                }
            });
        }
        launched
    }

    /// The container of a generation, with the process that it is to have.
    async fn launch_kept(
        self: &Arc<Self>,
        kept: &SandboxEntry,
        spec: SandboxSpec,
    ) -> Result<Arc<dyn Guest>, ServiceError> {
        if let Some(guest) = kept.take_claimed() {
            return Ok(guest);
        }
        let guest = self.launch(&kept.record.subject, spec).await?;
        let prepared = self.prepare(&*guest, &kept.record.spec, kept.spec()?).await;
        prepared.inspect_err(|_| self.remove(guest.clone()))?;
        Ok(guest)
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

    /// Removes its container, if nothing has used it since that was due.
    async fn stop_kept(self: &Arc<Self>, kept: &SandboxEntry) {
        let mut container = kept.container.lock().await;
        if kept.is_due(DueAction::Stop) {
            self.stop_container(kept, &mut container);
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
        let guest = kept.container.lock().await.take().or_else(|| kept.take_claimed());
        let status = kept.info().status;
        if let Some(guest) = guest
            && let Err(error) = close_guest(&*guest, status).await
        {
            Counting::add(&self.counting.failed_removals);
            tracing::warn!(id = kept.record.id, error, "a sandbox was not removed");
        }
        if kept.attached.is_some() {
            self.subject_dirs.changed(&kept.record.subject);
            return Ok(());
        }
        self.remove_files(&kept.record.id).await
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
            let status = kept.info().status;
            kept.info().set_stopped();
            let closed = tokio::time::timeout(CLOSE_TIMEOUT, close_guest(&*guest, status)).await;
            let closed = closed.unwrap_or_else(|_| Err("it takes too long".to_owned()));
            closed.err().map(|error| format!("{}: {error}", kept.record.id))
        };
        join_all(self.kept.all().into_iter().map(close)).await.into_iter().flatten().collect()
    }
}

/// Kills the processes in a container, so that what they have used is known, and removes it.
async fn close_guest(guest: &dyn Guest, status: SandboxStatus) -> Result<(), String> {
    // Nothing in a paused one ends before it is removed.
    if status == SandboxStatus::Ready {
        let mut processes = guest.processes();
        processes.retain(|process| process.view().state != ProcessState::Ended);
        for process in &processes {
            process.stop().await;
            // The second time without a grace.
            process.stop().await;
        }
        let ended = join_all(processes.iter().map(|process| process.until(Until::Ended)));
        _ = tokio::time::timeout(CANCEL_TIMEOUT, ended).await;
    }
    guest.close().await
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
                Some((at, DueAction::Freeze)) if at <= now => strong.freeze_idle(&kept).await,
                Some((at, DueAction::Delete)) if at <= now => {
                    let id = kept.record.id.clone();
                    if let Err(error) = strong.delete_kept(kept).await {
                        tracing::warn!(id, %error, "a sandbox was not removed");
                        let retry = now.after(RETRY);
                        next = Some(next.map_or(retry, |next| next.min(retry)));
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
