//! Processes of kept sandboxes: they live on after the request that started them, and belong to the
//! generation that they were started in.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_api::service::{SandboxRef, SandboxView, Subject, Time};
use sandbox_api::{
    Limits, ProcessCommand, ProcessList, ProcessRequest, ProcessState, ProcessView, ReadFrom,
    ReadMode, SandboxSpec, SignalRequest, TerminalError, TerminalSize, Usage, millis,
};
use sandbox_controller::Until;
use tracing::Instrument as _;

use super::operations::{InSandbox, done};
use super::registry::{LivingProcess, SandboxEntry, SandboxLease};
use crate::core::Core;
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::events::Events;
use crate::idempotency::{IdempotencyKey, digest};
use crate::launcher::GuestProcess;
use crate::plan::plan_process;
use crate::service::Service;

/// Which processes a list has; by default all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessFilter {
    /// Those in this state.
    pub state: Option<ProcessState>,
    /// Those with this tag.
    pub tag: Option<String>,
}

impl SandboxLease {
    /// A process of its generation.
    fn process(&self, id: u32) -> Result<Arc<dyn GuestProcess>, ServiceError> {
        self.guest.process(id).ok_or_else(|| ServiceError::no_process(id))
    }
}

impl Core {
    async fn start_process(
        self: &Arc<Self>,
        subject: &Subject,
        place: &SandboxRef,
        request: ProcessRequest,
        key: Option<IdempotencyKey>,
    ) -> Result<InSandbox<ProcessView>, ServiceError> {
        let kept = self.kept.find_any(subject, &place.id)?;
        let failed = |_| ServiceError::internal("a request cannot be written");
        let json = serde_json::to_string(&request).map_err(failed)?;
        let digest = digest(&json, request.secrets.0.keys().map(String::as_str));
        // What is refused starts no container.
        let command = plan_process(request, kept.spec()?, kept.env(), &self.config)?;
        let in_use = self.spawn_lease(kept.clone(), place.generation).await?;
        let Some(key) = key else {
            let process = self.start_in(&in_use, command).await?;
            return Ok(done(process.view(), &in_use));
        };
        // The same request under the same key waits for it.
        let mut keys = kept.keys.lock().await;
        let process = match keys.find(in_use.generation, &key, &digest)? {
            Some(id) => in_use.process(id)?,
            None => {
                let process = self.start_in(&in_use, command).await?;
                keys.add(in_use.generation, &key, digest, process.id());
                process
            }
        };
        Ok(done(process.view(), &in_use))
    }

    /// Starts a process in a sandbox that is in use.
    async fn start_in(
        self: &Arc<Self>,
        in_use: &SandboxLease,
        command: ProcessCommand,
    ) -> Result<Arc<dyn GuestProcess>, ServiceError> {
        let kept = &in_use.kept;
        self.check_quotas(&kept.record.subject).await?;
        let (generation, bounds) = (in_use.generation, &self.config.kept);
        let living = self.kept.begin_process(kept, generation, command.scrollback, bounds);
        let living = living.inspect_err(|_| Counting::add(&self.counting.refused_quota))?;
        let process = in_use.guest.start_process(command).await;
        let process = process.map_err(|error| in_use.failed(error))?;
        Counting::add(&self.counting.processes_started);
        self.follow(kept, living, process.clone());
        Ok(process)
    }

    /// Waits for the end of a process, which is that of its sandbox at the latest, and counts what it used.
    pub(super) fn follow(
        self: &Arc<Self>,
        kept: &SandboxEntry,
        living: LivingProcess,
        process: Arc<dyn GuestProcess>,
    ) {
        let subject = kept.record.subject.clone();
        let limits = kept.spec().map_or_else(|_| Limits::default(), |spec| spec.limits);
        let core = Arc::downgrade(self);
        let following = async move {
            process.until(Until::Ended).await;
            drop(living);
            let Some(core) = core.upgrade() else { return };
            core.kept.changed.notify_one();
            let view = process.view();
            let ended_at = view.exited_at.unwrap_or_else(Time::now);
            let used = Usage {
                wall_ms: millis(ended_at.since(view.started_at)),
                cpu_ms: view.cpu_ms,
                peak_memory_bytes: None,
                written_bytes: None,
            };
            core.records.add_usage(&subject, used.charged(&limits)).await;
        };
        crate::spawn(following.in_current_span());
    }
}

impl Service {
    /// Starts a process in a kept sandbox, whose container is started if it is missing. With a key, the same
    /// request gives the process that it has started before, in the same generation.
    ///
    /// # Errors
    ///
    /// [`ServiceError::keeps_no_processes`], [`ServiceError::too_many_processes`]; [`ServiceError::sandbox`]
    /// if the command cannot be executed; as of [`perform`](Self::perform).
    pub async fn start_process(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        request: ProcessRequest,
        key: Option<IdempotencyKey>,
    ) -> Result<InSandbox<ProcessView>, ServiceError> {
        self.core.check_accepting()?;
        let (core, subject, place) = (self.core.clone(), subject.clone(), sandbox.clone());
        // A caller that goes away does not leave a process without its key.
        let starting = async move { core.start_process(&subject, &place, request, key).await };
        crate::detached("the start of a process", starting).await
    }

    /// The processes of a sandbox's generation, the latest first: those that run, and those that ended
    /// lately. This is no use; a sandbox without a container has none.
    ///
    /// # Errors
    ///
    /// [`ServiceError::stale_generation`]; as of [`sandbox`](Self::sandbox).
    pub async fn processes(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        filter: ProcessFilter,
    ) -> Result<InSandbox<ProcessList>, ServiceError> {
        let kept = self.core.kept.find_any(subject, &sandbox.id)?;
        let (guest, generation) = kept.guest(sandbox.generation)?;
        let processes = guest.map(|guest| guest.processes()).unwrap_or_default();
        let is_meant = |view: &ProcessView| {
            filter.state.is_none_or(|state| state == view.state)
                && (filter.tag.is_none() || filter.tag == view.tag)
        };
        let processes = processes.iter().map(|it| it.view()).filter(is_meant).collect();
        Ok(InSandbox { value: ProcessList { processes }, generation, restarted: false })
    }

    /// A process when it has exited, or as it is after this time. Without a time this is no use.
    ///
    /// # Errors
    ///
    /// [`ServiceError::no_process`], [`ServiceError::not_running`] and [`ServiceError::stale_generation`]; as
    /// of [`sandbox`](Self::sandbox).
    pub async fn process(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        id: u32,
        wait: Duration,
    ) -> Result<InSandbox<ProcessView>, ServiceError> {
        if wait.is_zero() {
            let kept = self.core.kept.find_any(subject, &sandbox.id)?;
            let (guest, generation) = kept.guest(sandbox.generation)?;
            let guest = guest.ok_or_else(|| ServiceError::not_running(&sandbox.id))?;
            let process = guest.process(id).ok_or_else(|| ServiceError::no_process(id))?;
            return Ok(InSandbox { value: process.view(), generation, restarted: false });
        }
        let reading = self.core.lease_current(subject, sandbox).await?.into_reader();
        let process = reading.process(id)?;
        _ = tokio::time::timeout(wait, process.until(Until::Exited)).await;
        Ok(done(process.view(), &reading))
    }

    /// The events of a process: those that are kept, and then those that come, up to its end. The sandbox is
    /// in use as long as they are read.
    ///
    /// # Errors
    ///
    /// As of [`process`](Self::process); if it has as many readers as it may.
    pub async fn process_events(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        id: u32,
        from: ReadFrom,
        mode: ReadMode,
    ) -> Result<Events, ServiceError> {
        let reading = self.core.lease_current(subject, sandbox).await?.into_reader();
        let events = reading.process(id)?.attach(from, mode)?;
        Ok(events
            .map(move |event| {
                let _in_use = &reading;
                Ok(event)
            })
            .boxed())
    }

    /// Writes to the stdin of a process. Waits while as much as may be waits to be read.
    ///
    /// # Errors
    ///
    /// [`ServiceError::no_stdin`], [`ServiceError::process_ended`], [`ServiceError::stdin_full`]; as of
    /// [`process`](Self::process).
    pub async fn write_process_stdin(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        id: u32,
        bytes: Bytes,
    ) -> Result<(), ServiceError> {
        let in_use = self.core.lease_current(subject, sandbox).await?;
        in_use.process(id)?.write_stdin(bytes).await
    }

    /// Closes the stdin of a process, after what was written.
    ///
    /// # Errors
    ///
    /// As of [`write_process_stdin`](Self::write_process_stdin).
    pub async fn close_process_stdin(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        id: u32,
    ) -> Result<(), ServiceError> {
        let in_use = self.core.lease_current(subject, sandbox).await?;
        in_use.process(id)?.close_stdin().await
    }

    /// Sets the size of the terminal of a process.
    ///
    /// # Errors
    ///
    /// [`ServiceError::process_ended`] and [`ServiceError::no_terminal`]; as of [`process`](Self::process).
    pub async fn resize_process(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        id: u32,
        size: TerminalSize,
    ) -> Result<(), ServiceError> {
        let invalid = |error: TerminalError| ServiceError::invalid("cols", error.to_string());
        size.check().map_err(invalid)?;
        let in_use = self.core.lease_current(subject, sandbox).await?;
        let process = in_use.process(id)?;
        match process.resize(size).await.map_err(|error| in_use.failed(error))? {
            true => Ok(()),
            false if process.view().pty => Err(ServiceError::process_ended()),
            false => Err(ServiceError::no_terminal()),
        }
    }

    /// Sends a signal to a process, to its group, or to all that it has started.
    ///
    /// # Errors
    ///
    /// [`ServiceError::process_ended`] if there is none to send it to; as of [`process`](Self::process).
    pub async fn signal_process(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        id: u32,
        request: SignalRequest,
    ) -> Result<(), ServiceError> {
        let in_use = self.core.lease_current(subject, sandbox).await?;
        let sent = in_use.process(id)?.signal(request).await;
        match sent.map_err(|error| in_use.failed(error))? {
            true => Ok(()),
            false => Err(ServiceError::process_ended()),
        }
    }

    /// Stops a process and all that it has started: SIGTERM, and SIGKILL a while later; at once if it is
    /// asked for once more. Gives it as it is when nothing of it is left, or after this time.
    ///
    /// # Errors
    ///
    /// As of [`process`](Self::process).
    pub async fn stop_process(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        id: u32,
        wait: Duration,
    ) -> Result<InSandbox<ProcessView>, ServiceError> {
        let in_use = self.core.lease_current(subject, sandbox).await?;
        let process = in_use.process(id)?;
        process.stop().await;
        let reading = in_use.into_reader();
        _ = tokio::time::timeout(wait, process.until(Until::Ended)).await;
        Ok(done(process.view(), &reading))
    }

    /// Pauses a sandbox: nothing in it runs, and its memory stays, until the next use. Those who read the
    /// events of its processes wait meanwhile.
    ///
    /// # Errors
    ///
    /// [`ServiceError::sandbox_in_use`], [`ServiceError::too_many_paused`], and
    /// [`ServiceError::not_running`] without a container; as of [`sandbox`](Self::sandbox).
    pub async fn pause_sandbox(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
    ) -> Result<SandboxView, ServiceError> {
        let kept = self.core.kept.find(subject, &sandbox.id)?;
        let (core, of, asked) = (self.core.clone(), kept.clone(), sandbox.generation);
        // What is half paused is paused or not.
        crate::detached("a pause", async move { core.pause_kept(&of, asked).await }).await?;
        Ok(kept.view())
    }

    /// Lets a paused sandbox go on, as any use does.
    ///
    /// # Errors
    ///
    /// As of [`perform`](Self::perform).
    pub async fn resume_sandbox(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
    ) -> Result<SandboxView, ServiceError> {
        Ok(self.core.lease(subject, sandbox).await?.end())
    }

    /// The sandbox of this title that a front end keeps for a subject, with a container: it is made from the
    /// spec if it is missing. Its processes are reached by what this gives.
    ///
    /// # Errors
    ///
    /// As of [`perform_attached`](Self::perform_attached).
    pub async fn attached_sandbox(
        &self,
        subject: &Subject,
        title: &'static str,
        spec: impl Fn() -> SandboxSpec,
    ) -> Result<SandboxRef, ServiceError> {
        let in_use = self.core.lease_attached(subject, title, spec).await?;
        let id = in_use.kept.record.id.clone();
        Ok(SandboxRef { id, generation: Some(in_use.generation) })
    }
}
