//! What ends with its caller.

use sandbox_api::operation::{OperationRequest, Stat, Write};
use sandbox_api::service::SandboxRequest;
use sandbox_api::{
    CancelCause, Envelope, ExecutionResult, SandboxSpec, Script, WatchRecord, WatchRequest,
};
use tokio::task::JoinHandle;

use super::*;
use crate::{CancelHandle, SandboxQuery};

/// A run that has begun, or waits.
type Running = JoinHandle<Result<ExecutionResult, ServiceError>>;

impl World {
    fn begin_run(&self, subject: &'static Subject, source: &str) -> (CancelHandle, Running) {
        let (service, cancel) = (self.service().clone(), CancelHandle::new());
        let (script, handle) = (Script::new(source), cancel.clone());
        let spec = SandboxSpec::new();
        let run = async move { service.run(subject, spec, script, None, &handle, &|_| {}).await };
        (cancel, self.spawn(run))
    }

    /// One that runs until its handle cancels it.
    fn held_run(&self, subject: &'static Subject) -> (CancelHandle, Running) {
        let before = self.launcher.runs.load(Ordering::SeqCst);
        let run = self.begin_run(subject, "wait");
        self.until_true(|| self.launcher.runs.load(Ordering::SeqCst) > before);
        run
    }

    pub(super) fn run(&self, subject: &'static Subject) -> Result<ExecutionResult, ServiceError> {
        let (_cancel, run) = self.begin_run(subject, "return 1");
        self.block_on(run).unwrap()
    }

    fn perform_attached(
        &self,
        subject: &Subject,
        operation: impl Into<OperationRequest>,
    ) -> Result<Envelope, ServiceError> {
        let performed =
            self.service().perform_attached(subject, "files", SandboxSpec::new, operation.into());
        self.block_on(performed)
    }
}

#[test]
fn attached_run_waits_and_counts_as_an_execution_of_its_subject() {
    let world = World::with(|config| config.quotas.concurrency = 1);
    let (cancel, mine) = world.held_run(me());
    let execution = world.submit("return 1");
    assert_eq!(world.status(&execution), ExecutionState::Queued);
    let usage = |subject| world.block_on(world.service().usage(subject)).unwrap();
    let now = usage(me());
    assert_eq!((now.running, now.queued, now.executions), (1, 1, 0));
    // That of another subject does not wait.
    world.run(other()).unwrap();
    cancel.cancel(CancelCause::Caller);
    let result = world.block_on(mine).unwrap().unwrap();
    assert_eq!(result.outcome.status(), Status::Cancelled);
    world.wait(&execution);
    // Its place is free a moment after its end is published.
    world.until_true(|| usage(me()).running == 0);
    assert_eq!((usage(me()).executions, usage(me()).cpu_ms), (2, 7 + 7));
    assert_eq!(usage(other()).executions, 1);
    world.until_true(|| world.launcher.closed.load(Ordering::SeqCst) == 3);

    let running = world.submit("wait");
    world.until(&running, ExecutionState::Running);
    let (_cancel, waits) = world.begin_run(me(), "return 1");
    world.until_true(|| world.service().counters().queued == 1);
    world.launcher.go_on.add_permits(1);
    world.block_on(waits).unwrap().unwrap();
}

#[test]
fn caller_that_stops_waiting_leaves_the_queue() {
    let world = World::with(|config| config.concurrency = 1);
    let (cancel, running) = world.held_run(me());
    let queued = || world.service().counters().queued;
    let (_cancel, dropped) = world.begin_run(me(), "return 1");
    world.until_true(|| queued() == 1);
    dropped.abort();
    world.until_true(|| queued() == 0);
    let (cancels, cancelled) = world.begin_run(me(), "return 1");
    world.until_true(|| queued() == 1);
    cancels.cancel(CancelCause::Caller);
    let error = world.block_on(cancelled).unwrap().unwrap_err();
    assert_eq!((error.kind(), queued()), (ErrorKind::Cancelled, 0));
    cancel.cancel(CancelCause::Caller);
    world.block_on(running).unwrap().unwrap();
    world.run(me()).unwrap();
    assert_eq!(world.service().counters().running, 0);
}

#[test]
fn dropped_run_gives_its_place_and_its_sandbox_back() {
    let world = World::with(|config| config.concurrency = 1);
    let (_cancel, run) = world.held_run(me());
    run.abort();
    world.until_true(|| world.launcher.dropped.load(Ordering::SeqCst) == 1);
    world.run(me()).unwrap();
}

#[test]
fn attached_runs_and_executions_have_the_same_quotas() {
    let world = World::with(|config| config.quotas.rate_per_minute = Some(2));
    world.submit("return 1");
    world.run(me()).unwrap();
    let error = world.run(me()).unwrap_err();
    assert!(error.retry_after().is_some_and(|after| after <= Duration::from_secs(30)), "{error}");
    let error = world.submit_as(me(), "return 1").unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::RateLimited);
    let quotas = Quotas { cpu_per_day: Some(Duration::from_millis(7)), ..Quotas::default() };
    world.service().set_quotas(quotas);
    for error in [world.run(me()).unwrap_err(), world.submit_as(me(), "return 1").unwrap_err()] {
        assert_eq!(error.problem().kind, ProblemKind::QuotaExceeded, "{error}");
    }
    world.run(other()).unwrap();
}

#[test]
fn attached_sandbox_is_one_of_the_quota_and_in_no_list() {
    let world = World::with(|config| {
        config.quotas.sandboxes = 1;
        config.kept.sandboxes = 2;
    });
    let create = || world.block_on(world.service().create_sandbox(me(), SandboxRequest::default()));
    for _ in 0..2 {
        let envelope = world.perform_attached(me(), Stat::new("a")).unwrap();
        assert_eq!(envelope.into_result().unwrap_err().message, "stat");
    }
    assert_eq!(world.launcher.launches.load(Ordering::SeqCst), 1);
    assert_eq!(world.block_on(world.service().usage(me())).unwrap().sandboxes, 1);
    assert!(world.service().has_attached(me()) && !world.service().has_attached(other()));
    assert_eq!(
        world.block_on(world.service().sandboxes(me(), SandboxQuery::default())).unwrap().sandboxes,
        []
    );
    let error = create().unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::QuotaExceeded, "{error}");
    world.perform_attached(other(), Stat::new("a")).unwrap();
    let third = Subject::new("third").unwrap();
    assert!(world.perform_attached(&third, Stat::new("a")).is_err());
    // It has its place until its end, whatever became of its container, and is not restored.
    let mut world = world;
    world.restart();
    assert!(!world.service().has_attached(me()));
    let create = || world.block_on(world.service().create_sandbox(me(), SandboxRequest::default()));
    create().unwrap();
    assert!(world.perform_attached(me(), Stat::new("a")).is_err());
}

#[test]
fn attached_sandbox_that_has_ended_is_started_again_and_one_that_fails_is_forgotten() {
    let world = World::new();
    world.perform_attached(me(), Stat::new("a")).unwrap();
    world.launcher.all_ended.store(true, Ordering::SeqCst);
    world.perform_attached(me(), Stat::new("a")).unwrap();
    assert_eq!(world.launcher.launches.load(Ordering::SeqCst), 2);
    world.launcher.failing.store(1, Ordering::SeqCst);
    let error = world.perform_attached(other(), Stat::new("a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine, "{error}");
    assert!(!world.service().has_attached(other()));
    world.perform_attached(other(), Stat::new("a")).unwrap();
}

#[test]
fn watched_attached_sandbox_ends_when_nothing_else_uses_it() {
    let world = World::new();
    let place = world.service().attached_sandbox(me(), "processes", SandboxSpec::new);
    let place = world.block_on(place).unwrap();
    let request = WatchRequest { path: ".".into(), recursive: true };
    let watch = world.service().watch_attached_files(me(), &place, request);
    let mut watch = world.block_on(watch).unwrap();
    let kept = world.service().core.kept.find_any(me(), &place.id).unwrap();
    assert!(kept.due().is_some(), "it is idle");
    let changed = world.block_on(watch.next()).unwrap().unwrap();
    assert!(matches!(changed, WatchRecord::Event(_)), "and watched");
    kept.info().idle_from = Time::from_unix_millis(0);
    world.service().core.kept.changed.notify_one();
    world.until_true(|| world.launcher.closed.load(Ordering::SeqCst) == 1);
    assert!(!world.service().has_attached(me()));
    drop(watch);
}

#[test]
fn files_of_a_subject_count_as_stored() {
    let world = World::new();
    let directory = world.data_dir().join("mcp").join(me().directory_name());
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("a");
    let stored = |subject| world.block_on(world.service().usage(subject)).unwrap().stored_bytes;
    assert_eq!(stored(me()), 0);
    // What a run wrote is known when it is over, and what is there at a start is known at once.
    let (cancel, run) = world.held_run(me());
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    cancel.cancel(CancelCause::Caller);
    world.block_on(run).unwrap().unwrap();
    world.until_true(|| stored(me()) >= 1 << 20);
    assert_eq!(stored(other()), 0);
    let mut world = world;
    world.restart();
    let quotas = Quotas { stored: Some(ByteSize::b(1 << 20)), ..Quotas::default() };
    world.service().set_quotas(quotas);
    for error in [
        world.run(me()).unwrap_err(),
        world.submit_as(me(), "return 1").unwrap_err(),
        world.perform_attached(me(), Write::new("a")).unwrap_err(),
    ] {
        let is_stored =
            error.problem() == ServiceError::quota_exceeded("stored bytes", None).problem();
        assert!(is_stored, "{error}");
    }
    world.run(other()).unwrap();
    // The file tools make room.
    world.perform_attached(me(), Stat::new("a")).unwrap();
    std::fs::remove_file(&file).unwrap();
    world.until_true(|| world.run(me()).is_ok());
}

#[test]
fn shutdown_begins_no_run_and_closes_the_attached_sandboxes() {
    let world = World::with(|config| config.concurrency = 1);
    let (cancel, running) = world.held_run(me());
    let (_cancel, waits) = world.begin_run(me(), "return 1");
    world.until_true(|| world.service().counters().queued == 1);
    world.perform_attached(me(), Stat::new("a")).unwrap();
    let report = world.block_on(world.service().shutdown(Duration::ZERO));
    // It is nothing that the next start could run.
    assert!(report.queued.is_empty() && report.cancelled.is_empty(), "{report:?}");
    assert_eq!(world.launcher.closed.load(Ordering::SeqCst), 1);
    for error in
        [world.run(me()).unwrap_err(), world.perform_attached(me(), Stat::new("a")).unwrap_err()]
    {
        assert_eq!(error.problem(), ServiceError::shutting_down().problem());
    }
    cancel.cancel(CancelCause::Caller);
    world.block_on(running).unwrap().unwrap();
    assert!(!waits.is_finished());
    waits.abort();
}
