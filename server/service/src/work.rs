//! One execution, from its start to its durable end.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use sandbox_api::service::{ExecutionRequest, ExecutionState, ExecutionSummary, SandboxRef, Time};
use sandbox_api::{
    CancelCause, DocumentBody, EngineKind, ErrorKind, ExecutionDocument, ExecutionEvent,
    ExecutionResult, Failure, Limits, SandboxSpec, Status, Usage, Workload, millis,
};
use sandbox_store::{Finish, Start, StoreError, StoredExecution, UsedGeneration};
use serde_json::value::RawValue;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::config::IoPosture;
use crate::core::{Core, HeldSlot};
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::launcher::Guest;
use crate::live::{
    Launching, Live, PendingExecution, PendingWork, Phase, StartFailure, StartedLaunch,
};
use crate::plan::{Plan, PlannedIo, plan, plan_in_sandbox};
use crate::records::stored_events;
use crate::room::StorageReservation;

/// The pause before a call to an unresponsive engine is repeated; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How an execution ended.
struct Ended {
    document: String,
    status: Status,
    exit_code: u8,
    usage: Option<Usage>,
    /// Whether its files are kept.
    keeps_files: bool,
    /// Its own sandbox, which is to be removed.
    guest: Option<Arc<dyn Guest>>,
}

impl Core {
    /// Runs an execution whose turn has come, and which counts as one that runs, on a task of its own.
    pub fn begin_work(self: &Arc<Self>, waiting: PendingExecution) {
        let span = waiting.live.span.clone();
        _ = crate::spawn(self.clone().work(waiting).instrument(span));
    }

    /// Runs an execution whose turn has come. It always ends, and its place is given back.
    async fn work(self: Arc<Self>, waiting: PendingExecution) {
        let PendingExecution { live, work, mut room } = waiting;
        let executed = AssertUnwindSafe(self.execute(&live, work, &mut room)).catch_unwind().await;
        let ended = match executed {
            Ok(Ok(ended)) => ended,
            Ok(Err(StartFailure::Cancelled)) => {
                let is_queued = matches!(&*live.phase.borrow(), Phase::Queued);
                let cause = live.cancel.cause();
                if self.node.is_some() && is_queued && cause == Some(CancelCause::Stopped) {
                    // It has not begun: another node can run it.
                    live.lose();
                }
                cancelled(&live)
            }
            Ok(Err(StartFailure::Failed(failure))) => not_run(&live, Status::Error, failure),
            Err(_) => {
                let failure = Failure::new(ErrorKind::Internal, "the execution panicked", None);
                not_run(&live, Status::Error, failure)
            }
        };
        self.finish(&live, ended, HeldSlot::Yes).await;
    }

    /// Ends an execution that was cancelled in the queue.
    pub async fn cancel_waiting(self: Arc<Self>, waiting: PendingExecution) {
        let PendingExecution { live, room: _room, .. } = waiting;
        self.end_cancelled(&live).await;
    }

    /// Ends an execution that was cancelled before it began.
    pub async fn end_cancelled(self: &Arc<Self>, live: &Arc<Live>) {
        let ended = cancelled(live);
        self.finish(live, ended, HeldSlot::No).await;
    }

    /// Ends an execution that does not run.
    pub async fn end_not_run(
        self: &Arc<Self>,
        live: &Arc<Live>,
        failure: Failure,
        held_slot: HeldSlot,
    ) {
        let ended = not_run(live, Status::Error, failure);
        self.finish(live, ended, held_slot).await;
    }

    /// Ends an execution that ran when its service was killed, with what is stored of it.
    pub async fn end_killed(
        self: &Arc<Self>,
        live: &Arc<Live>,
        engine: Option<EngineKind>,
        limits: Option<Limits>,
        message: &str,
    ) {
        // It ended with its service, or soon after, at an unknown time.
        let timeout = limits.unwrap_or_default().timeout;
        let wall = |since| self.records.now().since(since).min(timeout);
        let usage = live.summary().started_at;
        let usage = usage.map(|at| Usage { wall_ms: millis(wall(at)), ..Usage::default() });
        let (document, keeps_files) = self.killed_document(live, engine, limits, message).await;
        let exit_code = document.process_exit_code();
        let document = document.to_json().unwrap_or_default();
        let (status, guest) = (Status::Killed, None);
        let ended = Ended { document, status, exit_code, usage, keeps_files, guest };
        self.finish(live, ended, HeldSlot::No).await;
    }

    async fn execute(
        self: &Arc<Self>,
        live: &Arc<Live>,
        work: PendingWork,
        room: &mut StorageReservation,
    ) -> Result<Ended, StartFailure> {
        let waited = live.accepted.elapsed();
        self.counting.waited(&live.subject, waited);
        live.trace.began();
        let queued_ms = millis(waited);
        if live.cancel.cause().is_some() {
            return Err(StartFailure::Cancelled);
        }
        let (request, secrets) = match work {
            PendingWork::Started(begun) => {
                return self.execute_fresh(live, *begun, queued_ms).await;
            }
            PendingWork::Queued { request, secrets } => (request, secrets),
        };
        let request = match request {
            Some(request) => *request,
            None => self.records.request(&live.id).await?,
        };
        live.keep_request(&request, &secrets);
        let request = ExecutionRequest { secrets, ..request };
        match &live.sandbox {
            None => {
                // Nothing of it has run before it is known to run, and the two need each other's time.
                let plan = plan(request, &self.config)?;
                let limits = plan.spec.limits;
                let begun = self.begin(live, plan);
                self.mark_running(live, limits, None, room).await?;
                self.execute_fresh(live, begun, queued_ms).await
            }
            Some(sandbox) => {
                let place = SandboxRef { id: sandbox.clone(), generation: live.generation };
                self.execute_kept(live, &place, request, queued_ms, room).await
            }
        }
    }

    fn with_io_dir(&self, spec: SandboxSpec, io: PlannedIo) -> SandboxSpec {
        match (io, &self.config.io) {
            (PlannedIo::Private, _) => spec.fresh_io_dir(),
            (PlannedIo::Shared, IoPosture::Shared(dir)) => spec.io_dir(dir).no_symlinks(),
            (PlannedIo::Off | PlannedIo::Shared, _) => spec.no_io(),
        }
    }

    /// Has sandboxes started ahead for scripts of which nothing is known: what most requests ask for.
    /// Where they cannot be started, requests start their own and say why that fails.
    pub(crate) async fn prewarm(&self) {
        let usual = ExecutionRequest { script: Some("return".into()), ..Default::default() };
        let Ok(Plan { spec, io, .. }) = plan(usual, &self.config) else { return };
        if let Err(error) = self.launcher.prewarm(self.with_io_dir(spec, io)).await {
            tracing::warn!(reason = %error, "no sandbox is prewarmed");
        }
    }

    /// Begins to start a sandbox for an execution.
    pub fn begin(self: &Arc<Self>, live: &Arc<Live>, plan: Plan) -> StartedLaunch {
        let Plan { spec, workload, io } = plan;
        let spec = self.with_io_dir(spec, io);
        let (core, live, span) = (self.clone(), live.clone(), live.span.clone());
        let launch = async move {
            let start = || core.launch(&live.subject, spec.clone());
            core.retry_transient(&live, start).await
        };
        let launching = crate::spawn(launch.instrument(span));
        StartedLaunch { workload, io, launching: Launching(launching) }
    }

    /// Runs it in a sandbox of its own.
    async fn execute_fresh(
        self: &Arc<Self>,
        live: &Arc<Live>,
        begun: StartedLaunch,
        queued_ms: u64,
    ) -> Result<Ended, StartFailure> {
        let StartedLaunch { workload, io, mut launching } = begun;
        let failed = |_| ServiceError::internal("the start of a sandbox panicked");
        let guest = (&mut launching.0).await.map_err(failed)??;
        let (result, waited_ms) = match self.run(live, &*guest, workload).await {
            Ok(ended) => ended,
            Err(error) => {
                self.remove(guest);
                return Err(error.into());
            }
        };
        let kept = match io {
            PlannedIo::Private => self.keep(live, guest.clone()).await.map(|()| true),
            PlannedIo::Off | PlannedIo::Shared => Ok(false),
        };
        let mut document = document(live, &result, queued_ms.saturating_add(waited_ms), true);
        let mut exit_code = result.exit_code();
        if kept.is_err() {
            document = without_files(document);
            exit_code = document.process_exit_code();
        }
        Ok(Ended {
            usage: Some(result.usage),
            keeps_files: kept.unwrap_or(false),
            guest: Some(guest),
            ..Ended::with(&document, exit_code)?
        })
    }

    /// Runs it to its end, and says how many milliseconds it waited for its sandbox, where another
    /// script ran.
    async fn run(
        &self,
        live: &Live,
        guest: &dyn Guest,
        workload: Workload,
    ) -> Result<(ExecutionResult, u64), ServiceError> {
        let (since, waited_ms) = (Instant::now(), OnceLock::new());
        let sink = |event: ExecutionEvent| match event {
            // That it starts was reported when it was stored.
            ExecutionEvent::Started => _ = waited_ms.set(millis(since.elapsed())),
            event => self.report(live, event),
        };
        let _running = live.trace.step("run");
        let tools = self.config.host_tools.of(&live.subject).clone();
        let result = guest.run(workload, tools, live.cancel.clone(), &sink).await?;
        Ok((result, waited_ms.get().copied().unwrap_or_default()))
    }

    /// Runs it in a kept sandbox.
    async fn execute_kept(
        self: &Arc<Self>,
        live: &Arc<Live>,
        place: &SandboxRef,
        request: ExecutionRequest,
        queued_ms: u64,
        room: &mut StorageReservation,
    ) -> Result<Ended, StartFailure> {
        let kept = self.kept.check(&live.subject, place)?;
        let of_sandbox = kept.spec()?.limits;
        let workload = plan_in_sandbox(request, kept.spec()?, kept.env(), &self.config)?;
        let used = self.retry_transient(live, || self.lease(&live.subject, place)).await?;
        let (generation, is_restart) = (used.generation, used.is_restart);
        let timeout = workload.timeout().unwrap_or(of_sandbox.timeout);
        let limits = Limits { timeout, ..of_sandbox };
        let of = UsedGeneration { generation, is_restart };
        self.mark_running(live, limits, Some(of), room).await?;
        used.mark_restart_reported();
        let is_started_for_it = used.is_new;
        let ran = self.run(live, &*used.guest, workload).await;
        let (result, waited_ms) = ran.map_err(|error| match StartFailure::from(error) {
            StartFailure::Cancelled => StartFailure::Cancelled,
            failed => used.gone().map_or(failed, StartFailure::from),
        })?;
        let queued_ms = queued_ms.saturating_add(waited_ms);
        let document = document(live, &result, queued_ms, is_started_for_it);
        let ended = Ended::with(&document, result.exit_code())?;
        Ok(Ended { usage: Some(result.usage), ..ended })
    }

    fn report(&self, live: &Live, event: ExecutionEvent) {
        live.feed.push(event);
        self.events_due.notify_one();
    }

    /// The start of an execution, with what is known of it.
    pub fn start_of(
        &self,
        at: Time,
        limits: Limits,
        used: Option<UsedGeneration>,
        session: Option<i64>,
    ) -> Start {
        Start { at, engine: self.launcher.engine(), limits, used, session }
    }

    async fn mark_running(
        &self,
        live: &Live,
        limits: Limits,
        used: Option<UsedGeneration>,
        room: &mut StorageReservation,
    ) -> Result<(), ServiceError> {
        let start = self.start_of(self.records.now(), limits, used, live.session);
        if live.in_memory.is_none() {
            let _commit = live.trace.step("commit");
            self.store_start(live, start).await?;
        }
        room.begin();
        if let Some(used) = used {
            _ = live.used.set(used);
        }
        live.phase.send_replace(Phase::Running(start.at));
        self.report(live, ExecutionEvent::Started);
        Ok(())
    }

    /// Makes its start durable. In a cluster it waits for a database that is not there: what was claimed is not
    /// lost. Where it is not known to be this service's, it is not this service that ends it either.
    async fn store_start(&self, live: &Live, start: Start) -> Result<(), ServiceError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let Err(error) = self.records.mark_running(&live.id, start).await else {
                return Ok(());
            };
            match error.of_store() {
                Some(StoreError::Fenced { .. } | StoreError::Unknown) => {
                    live.lose();
                    return Err(error);
                }
                Some(cause)
                    if live.session.is_some() && cause.is_transient() && !live.is_lost() => {}
                _ => return Err(error),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                () = live.cancel.cancelled() => return Err(ServiceError::cancelled()),
            }
        }
    }

    /// Starts a sandbox, unless it is cancelled. Calls to an unresponsive engine are repeated for a
    /// while: nothing of the execution has run yet.
    async fn retry_transient<T, F>(
        &self,
        live: &Live,
        start: impl Fn() -> F,
    ) -> Result<T, StartFailure>
    where
        F: Future<Output = Result<T, ServiceError>>,
    {
        let _starting = live.trace.step("start");
        let give_up = Instant::now() + self.config.engine_retry_time;
        let mut pause = FIRST_PAUSE;
        let starting = async {
            loop {
                match start().await {
                    Err(error) if error.is_transient() && Instant::now() + pause < give_up => {
                        let message = error.to_string();
                        tracing::warn!(id = live.id, message, "engine error, retrying");
                    }
                    started => return Ok(started?),
                }
                Counting::add(&self.counting.retried_starts);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        };
        tokio::select! {
            started = starting => started,
            () = live.cancel.cancelled() => Err(StartFailure::Cancelled),
        }
    }

    /// Keeps the files of an execution that has ended.
    async fn keep(&self, live: &Live, guest: Arc<dyn Guest>) -> Result<(), ServiceError> {
        let to = self.files.path(&live.id);
        let kept = crate::blocking(move || guest.keep_files(&to)).await;
        kept.inspect_err(|error| {
            tracing::error!(id = live.id, %error, "files are not kept");
        })
    }

    /// Makes the end of an execution durable, unless it is in memory alone, and then publishes it.
    async fn finish(self: &Arc<Self>, live: &Arc<Live>, ended: Ended, held_slot: HeldSlot) {
        let Ended { document, status, exit_code, usage, keeps_files, guest } = ended;
        let files_bytes = match keeps_files {
            true => {
                let (core, id) = (self.clone(), live.id.clone());
                let size = crate::blocking(move || {
                    core.files.remove_if_empty(&id);
                    Ok(core.files.bytes(&id))
                });
                size.await.unwrap_or(0)
            }
            false => 0,
        };
        let raw =
            RawValue::from_string(document.clone()).unwrap_or_else(|_| RawValue::NULL.to_owned());
        let end = live.feed.end(exit_code, raw);
        let ended_at = end.time;
        if live.in_memory.is_none() {
            let mut events = live.feed.unsaved();
            events.push(end);
            let finish = Finish {
                id: live.id.clone(),
                session: live.session,
                status,
                stored_bytes: files_bytes.saturating_add(document.len() as u64),
                document: document.clone(),
                usage,
                ended_at,
                events: stored_events(&events),
            };
            let _commit = live.trace.step("commit");
            let mut pause = FIRST_PAUSE;
            loop {
                // Lost before, or now: then its end is another one's to store.
                let finished = match live.is_lost() {
                    false => self.records.finish(finish.clone()).await,
                    true => return self.abandon(live, keeps_files, guest, held_slot),
                };
                let Err(error) = finished else { break };
                if error.is_fenced() {
                    return self.abandon(live, keeps_files, guest, held_slot);
                }
                // No result is reported that a crash would take back. The next start of a service
                // says that it was killed.
                tracing::error!(id = live.id, %error, "a result cannot be stored; it is tried again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        live.trace.ended(status);
        self.counting.ended(status);
        if let (HeldSlot::Yes, Some(usage)) = (held_slot, usage) {
            self.counting.ran(status, &live.subject, Duration::from_millis(usage.wall_ms));
        }
        let (status, ended_at) = (ExecutionState::Ended(status), Some(ended_at));
        let summary = ExecutionSummary { status, ended_at, ..live.summary() };
        let ended =
            StoredExecution { summary, document: Some(document), has_files: files_bytes > 0 };
        live.phase.send_replace(Phase::Ended(Arc::new(ended)));
        live.feed.publish_end();
        if let Some(guest) = guest {
            self.remove(guest);
        }
        self.retire(live, held_slot);
        if live.was_shared
            && let Some(node) = &self.node
        {
            node.changed(&live.id);
        }
    }

    /// Drops the end of an execution that another one ends, or has ended.
    fn abandon(
        self: &Arc<Self>,
        live: &Arc<Live>,
        keeps_files: bool,
        guest: Option<Arc<dyn Guest>>,
        held_slot: HeldSlot,
    ) {
        let (id, session) = (&live.id, live.session);
        if held_slot == HeldSlot::Yes {
            tracing::warn!(id, session, "what ran here was ended by another node");
            Counting::add(&self.counting.fenced);
        } else {
            tracing::debug!(id, session, "another node was first to end it");
        }
        live.lose();
        if let Some(guest) = guest {
            self.remove(guest);
        }
        self.retire(live, held_slot);
        if keeps_files {
            let (core, id) = (self.clone(), live.id.clone());
            let remove = move || core.files.remove(&id).map_err(ServiceError::files);
            crate::spawn(crate::blocking(remove));
        }
    }

    /// Removes a sandbox in the background. If it cannot be removed, the controller's sweep does it.
    pub fn remove(self: &Arc<Self>, guest: Arc<dyn Guest>) {
        let core = self.clone();
        let closing = async move {
            if let Err(error) = guest.close().await {
                Counting::add(&core.counting.failed_removals);
                tracing::warn!(error, "a sandbox was not removed");
            }
        };
        crate::spawn(closing.in_current_span());
    }
}

impl Ended {
    /// An end with this document, without anything that is to be kept or removed.
    fn with(document: &ExecutionDocument<'_>, exit_code: u8) -> Result<Self, ServiceError> {
        let failed = |_| ServiceError::internal("a result cannot be stored");
        let (status, document) = (document.status, document.to_json().map_err(failed)?);
        Ok(Self { document, status, exit_code, usage: None, keeps_files: false, guest: None })
    }
}

/// The document of what ran, with the execution's id and without a path of the host. The start of a
/// sandbox that was not started for it is not its own.
fn document<'a>(
    live: &'a Live,
    result: &'a ExecutionResult,
    queued_ms: u64,
    is_started_for_it: bool,
) -> ExecutionDocument<'a> {
    let mut document = ExecutionDocument::from(result);
    document.id = Some((&*live.id).into());
    document.common.io_dir = None;
    document.common.request = live.request.get().map(Cow::Borrowed);
    if let Some(timing) = &mut document.common.timing {
        timing.queued_ms = Some(queued_ms);
        if !is_started_for_it {
            (timing.start, timing.start_ms) = (None, None);
        }
    }
    document
}

/// The document of an execution whose files could not be kept. It is no success then, and its
/// document says why.
fn without_files(mut document: ExecutionDocument<'_>) -> ExecutionDocument<'_> {
    const LOST: &str = "its files could not be kept";
    match &mut document.common.error {
        Some(error) => error.message = format!("{}; {LOST}", error.message),
        None => {
            document.status = Status::Error;
            let message = format!("it ran to its end, but {LOST}");
            document.common.error = Some(Failure::new(ErrorKind::Internal, message, None));
        }
    }
    match &mut document.body {
        DocumentBody::Script(body) if document.status == Status::Error => {
            body.exit_code = sandbox_api::exit_code(ErrorKind::Internal);
        }
        DocumentBody::Command(body) => body.failed = true,
        DocumentBody::Script(_) => {}
    }
    document
}

/// The end of an execution that did not run.
fn not_run(live: &Live, status: Status, failure: Failure) -> Ended {
    let mut document = ExecutionDocument::ended(live.kind, &live.id, status, failure);
    document.common.request = live.request.get().map(Cow::Borrowed);
    let exit_code = document.process_exit_code();
    let document = document.to_json().unwrap_or_default();
    Ended { document, status, exit_code, usage: None, keeps_files: false, guest: None }
}

/// Why an execution did not begin that can be submitted again.
pub(crate) fn not_begun(kind: ErrorKind, message: impl Into<String>) -> Failure {
    Failure::new(kind, message, Some("submit it again".to_owned()))
}

/// The end of an execution that was cancelled and did not run.
fn cancelled(live: &Live) -> Ended {
    if live.cancel.cause() == Some(CancelCause::Stopped) {
        let failure = not_begun(ErrorKind::Killed, "the server was stopped before it began");
        return not_run(live, Status::Killed, failure);
    }
    let failure = Failure::new(ErrorKind::Cancelled, "cancelled before it began", None);
    not_run(live, Status::Cancelled, failure)
}
