//! Permits for what a front end runs and keeps itself.

use sandbox_api::Usage;
use sandbox_api::service::SandboxRequest;

use super::*;
use crate::RunPermit;

fn used(cpu_ms: u64) -> Usage {
    Usage { cpu_ms: Some(cpu_ms), ..Usage::default() }
}

impl World {
    fn run_permit(&self, subject: &Subject) -> Result<RunPermit, ServiceError> {
        self.block_on(self.service().run_permit(subject))
    }

    fn end(&self, permit: RunPermit, used: Usage) {
        self.block_on(permit.end(Status::Ok, used)).unwrap();
    }
}

#[test]
fn permit_to_run_waits_and_counts_as_an_execution_of_its_subject() {
    let world = World::with(|config| config.quotas.concurrency = 1);
    let permit = world.run_permit(me()).unwrap();
    let execution = world.submit("return 1");
    assert_eq!(world.status(&execution), ExecutionState::Queued);
    let usage = world.block_on(world.service().usage(me())).unwrap();
    assert_eq!((usage.running, usage.queued, usage.executions), (1, 1, 0));
    let theirs = world.run_permit(other()).unwrap();
    world.end(permit, used(5));
    world.wait(&execution);
    drop(theirs);
    let usage = || world.block_on(world.service().usage(me())).unwrap();
    // Its place is free a moment after its end is published.
    world.until_true(|| usage().running == 0);
    assert_eq!((usage().executions, usage().cpu_ms), (2, 5 + 7));
    // One that was dropped without an end has used nothing.
    assert_eq!(world.block_on(world.service().usage(other())).unwrap().executions, 0);

    let running = world.submit("wait");
    world.until(&running, ExecutionState::Running);
    let (service, queued) = (world.service().clone(), || world.service().counters().queued);
    let waits = world.spawn(async move { service.run_permit(me()).await });
    world.until_true(|| queued() == 1);
    world.launcher.go_on.add_permits(1);
    let permit = world.block_on(waits).unwrap().unwrap();
    world.end(permit, Usage::default());
}

#[test]
fn caller_that_stops_waiting_for_a_permit_leaves_the_queue() {
    let world = World::with(|config| config.concurrency = 1);
    let permit = world.run_permit(me()).unwrap();
    let service = world.service().clone();
    let waits = world.spawn(async move { service.run_permit(me()).await });
    world.until_true(|| world.service().counters().queued == 1);
    waits.abort();
    world.until_true(|| world.service().counters().queued == 0);
    drop(permit);
    drop(world.run_permit(me()).unwrap());
    assert_eq!(world.service().counters().running, 0);
}

#[test]
fn permits_and_executions_have_the_same_quotas() {
    let world = World::with(|config| config.quotas.rate_per_minute = Some(2));
    world.submit("return 1");
    let permit = world.run_permit(me()).unwrap();
    let error = world.run_permit(me()).unwrap_err();
    assert!(error.retry_after().is_some_and(|after| after <= Duration::from_secs(30)), "{error}");
    let error = world.submit_as(me(), "return 1").unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::RateLimited);
    world.end(permit, used(1000));
    let quotas = Quotas { cpu_per_day: Some(Duration::from_secs(1)), ..Quotas::default() };
    world.service().set_quotas(quotas);
    for error in
        [world.run_permit(me()).unwrap_err(), world.submit_as(me(), "return 1").unwrap_err()]
    {
        assert_eq!(error.problem().kind, ProblemKind::QuotaExceeded, "{error}");
    }
    drop(world.run_permit(other()).unwrap());
}

#[test]
fn sandbox_that_a_front_end_keeps_is_one_of_the_quota() {
    let world = World::with(|config| {
        config.quotas.sandboxes = 1;
        config.kept.sandboxes = 2;
    });
    let create = || world.block_on(world.service().create_sandbox(me(), SandboxRequest::default()));
    let permit = world.service().sandbox_permit(me()).unwrap();
    assert_eq!(world.block_on(world.service().usage(me())).unwrap().sandboxes, 1);
    for error in [create().unwrap_err(), world.service().sandbox_permit(me()).unwrap_err()] {
        assert_eq!(error.problem().kind, ProblemKind::QuotaExceeded, "{error}");
    }
    let theirs = world.service().sandbox_permit(other()).unwrap();
    let third = Subject::new("third").unwrap();
    assert!(world.service().sandbox_permit(&third).is_err());
    drop((permit, theirs));
    create().unwrap();
    assert!(world.service().sandbox_permit(me()).is_err());
}

#[test]
fn files_that_a_front_end_keeps_count_as_stored() {
    let world = World::new();
    let directory = world.data_dir().join("mcp").join(me().directory_name());
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("a");
    let stored = |subject| world.block_on(world.service().usage(subject)).unwrap().stored_bytes;
    assert_eq!(stored(me()), 0);
    // What a permit was for is known when it is over, and what is there at a start is known at once.
    let permit = world.run_permit(me()).unwrap();
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    world.end(permit, Usage::default());
    world.until_true(|| stored(me()) >= 1 << 20);
    assert_eq!(stored(other()), 0);
    let mut world = world;
    world.restart();
    let quotas = Quotas { stored: Some(ByteSize::b(1 << 20)), ..Quotas::default() };
    world.service().set_quotas(quotas);
    for error in [
        world.run_permit(me()).unwrap_err(),
        world.submit_as(me(), "return 1").unwrap_err(),
        world.block_on(world.service().check_stored(me())).unwrap_err(),
    ] {
        let is_stored =
            error.problem() == ServiceError::quota_exceeded("stored bytes", None).problem();
        assert!(is_stored, "{error}");
    }
    drop(world.run_permit(other()).unwrap());
    // The file tools make room.
    let permit = world.service().sandbox_permit(me()).unwrap();
    std::fs::remove_file(&file).unwrap();
    drop(permit);
    world.until_true(|| world.run_permit(me()).is_ok());
}

#[test]
fn shutdown_grants_no_permit() {
    let world = World::with(|config| config.concurrency = 1);
    let permit = world.run_permit(me()).unwrap();
    let service = world.service().clone();
    let waits = world.spawn(async move { service.run_permit(me()).await });
    world.until_true(|| world.service().counters().queued == 1);
    let report = world.block_on(world.service().shutdown(Duration::ZERO));
    // It is nothing that the next start could run.
    assert!(report.queued.is_empty() && report.cancelled.is_empty(), "{report:?}");
    let error = world.run_permit(me()).unwrap_err();
    assert_eq!(error.problem(), ServiceError::shutting_down().problem());
    world.end(permit, Usage::default());
    assert!(!waits.is_finished());
    waits.abort();
}
