//! Sandboxes that are kept.

use std::task::Poll;

use futures_util::FutureExt as _;
use sandbox_api::operation::{OperationRequest, Write};
use sandbox_api::service::{KeptSpec, SandboxRequest, SandboxStatus, SandboxView};

use super::*;
use crate::SandboxQuery;

fn request(name: Option<&str>) -> SandboxRequest {
    SandboxRequest { name: name.map(str::to_owned), ..SandboxRequest::default() }
}

fn stat() -> OperationRequest {
    serde_json::from_str(r#"{"operation":"stat","path":"a"}"#).unwrap()
}

impl World {
    fn create(&self, request: SandboxRequest) -> Result<crate::CreatedSandbox, ServiceError> {
        self.block_on(self.service().create_sandbox(me(), request))
    }

    fn perform(&self, id: &str, generation: Option<u64>) -> Result<(u64, bool), ServiceError> {
        let done =
            self.block_on(self.service().perform(me(), &of_sandbox(id, generation), stat()))?;
        Ok((done.generation, done.restarted))
    }

    fn view(&self, id: &str) -> SandboxView {
        self.block_on(self.service().sandbox(me(), id)).unwrap()
    }
}

#[test]
fn sandbox_of_a_name_is_created_once_and_another_spec_is_a_conflict() {
    let world = World::new();
    let first = world.create(request(Some("a"))).unwrap();
    assert!(first.is_new);
    assert_eq!((first.sandbox.generation, first.sandbox.status), (1, SandboxStatus::Ready));
    let again = world.create(request(Some("a"))).unwrap();
    assert_eq!((again.sandbox.id, again.is_new), (first.sandbox.id.clone(), false));
    assert_ne!(world.create(request(None)).unwrap().sandbox.id, first.sandbox.id);
    let mut different = request(Some("a"));
    different.spec = KeptSpec { mount_path: Some("/work".to_owned()), ..KeptSpec::default() };
    let error = world.create(different).unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::Conflict, "{error}");
    let hint = error.problem().hint.clone().unwrap_or_default();
    assert!(hint.starts_with("it differs in: mount_path; "), "{hint}");
    assert_eq!(
        world
            .block_on(world.service().sandboxes(me(), SandboxQuery::default()))
            .unwrap()
            .sandboxes
            .len(),
        2
    );
    // Another subject has names of its own, and sees none of these.
    let of_other =
        world.block_on(world.service().sandboxes(other(), SandboxQuery::default())).unwrap();
    assert!(of_other.sandboxes.is_empty());
    let theirs = world.service().create_sandbox(other(), request(Some("a")));
    assert!(world.block_on(theirs).unwrap().is_new);
    let error = world.block_on(world.service().sandbox(other(), &first.sandbox.id)).unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::NotFound, "{error}");
}

#[test]
fn creation_whose_caller_goes_away_leaves_a_whole_sandbox() {
    let mut world = World::new();
    for polls in 1.. {
        let name = format!("after {polls}");
        let mut creating = Box::pin(world.service().create_sandbox(me(), request(Some(&name))));
        let mut left = polls;
        let ended = world.block_on(std::future::poll_fn(|context| {
            left -= 1;
            match creating.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(true),
                Poll::Pending if left == 0 => Poll::Ready(false),
                Poll::Pending => Poll::Pending,
            }
        }));
        drop(creating);
        let id = world.create(request(Some(&name))).unwrap().sandbox.id;
        world.restart();
        assert_eq!(
            world
                .block_on(world.service().sandboxes(me(), SandboxQuery::default()))
                .unwrap()
                .sandboxes
                .len(),
            1
        );
        world.perform(&id, None).unwrap();
        world.block_on(world.service().delete_sandbox(me(), &id)).unwrap();
        if ended {
            break;
        }
    }
}

#[test]
fn sandbox_that_is_not_allowed_any_more_keeps_its_files_and_is_not_used() {
    let allow: fn(&mut ServiceConfig) = |config| config.allowed_images = vec!["debian:*".into()];
    let mut world = World::with(allow);
    let spec = KeptSpec { image: Some("debian:13".to_owned()), ..KeptSpec::default() };
    let id = world.create(SandboxRequest { spec, ..request(None) }).unwrap().sandbox.id;
    let file = world.data_dir().join("files").join(&id).join("a.txt");
    std::fs::write(&file, "kept").unwrap();
    world.change = |_| {};
    world.restart();
    let view = world.view(&id);
    assert_eq!((view.status, view.generation), (SandboxStatus::Stopped, 1));
    let is_forbidden = |error: ServiceError| {
        assert_eq!(error.problem().kind, ProblemKind::Policy, "{error}");
        assert!(error.to_string().contains("'debian:13' is not allowed here"), "{error}");
    };
    is_forbidden(world.perform(&id, None).unwrap_err());
    let run = world.service().submit(me(), script("return 1"), at(&id, None), None);
    is_forbidden(world.block_on(run).unwrap_err());
    world.change = allow;
    world.restart();
    assert!(file.exists());
    // No start was counted that was not allowed.
    assert_eq!(world.perform(&id, None).unwrap(), (2, true));
}

#[test]
fn queued_execution_of_a_generation_that_is_gone_never_runs_in_the_next() {
    let mut world = World::with(|config| config.concurrency = 1);
    let id = world.create(request(None)).unwrap().sandbox.id;
    let busy = world.submit("wait");
    world.until(&busy, ExecutionState::Running);
    let submit = world.service().submit(me(), script("return 1"), at(&id, Some(1)), key("k"));
    let queued = world.block_on(submit).unwrap().id;
    let view = world.now(&queued).unwrap();
    assert_eq!((view.summary.generation, view.summary.restarted), (Some(1), None));
    world.restart();
    let execution = world.wait(&queued);
    assert_eq!(execution.summary.status, ExecutionState::Ended(Status::Error));
    assert_eq!(failure(&execution).1, format!("generation 1 of the sandbox {id} is gone"));
    // A client that asks again is given the execution that was accepted, not a refusal.
    let again = world.service().submit(me(), script("return 1"), at(&id, Some(1)), key("k"));
    let again = world.block_on(again).unwrap();
    assert_eq!((again.id, again.is_new), (queued, false));
    world.block_on(world.service().delete_sandbox(me(), &id)).unwrap();
    let gone = world.service().submit(me(), script("return 1"), at(&id, Some(1)), key("k"));
    assert!(!world.block_on(gone).unwrap().is_new);
}

#[test]
fn waited_execution_of_a_service_of_one_program_is_in_memory_with_the_last_that_ended() {
    let mut world = World::with(|config| {
        (config.waited_in_memory, config.concurrency) = (true, 2);
    });
    let id = world.create(request(None)).unwrap().sandbox.id;
    let submit = |source: &str, key_text: &str| {
        let submitted =
            world.service().submit_waited(me(), script(source), at(&id, None), key(key_text));
        world.block_on(submitted)
    };
    let first = submit("wait", "k").unwrap();
    assert!(first.is_new);
    world.until(&first.id, ExecutionState::Running);
    assert_eq!(submit("return 1", "k").unwrap_err().problem().kind, ProblemKind::KeyReused);
    // The one who cancels finds it by its key, and does not wait.
    let again = world.service().submit(me(), script("wait"), at(&id, None), key("k"));
    let again = world.block_on(again).unwrap();
    assert_eq!((&again.id, again.is_new), (&first.id, false));
    world.block_on(world.service().cancel(me(), &first.id)).unwrap();
    let ended = world.wait(&first.id);
    assert_eq!(ended.summary.status, ExecutionState::Ended(Status::Cancelled));
    assert_eq!(world.events(&first.id, 0), [(1, "queued"), (2, "start"), (3, "end")]);
    let files = world.block_on(world.service().files(me(), &first.id)).unwrap_err();
    assert_eq!(files.problem(), ServiceError::no_files(&first.id).problem());
    // It is not read from the store, however large it is.
    let large = submit(&format!("return 1 {}", " ".repeat(100_000)), "large").unwrap();
    assert_eq!(world.wait(&large.id).summary.status, ExecutionState::Ended(Status::Ok));
    let list = world.block_on(world.service().list(me(), all())).unwrap();
    assert!(list.executions.is_empty());
    assert!(!submit("wait", "k").unwrap().is_new);
    world.wait(&submit("return 1", "last").unwrap().id);
    world.until_true(|| world.now(&first.id).is_err());
    // One with a listener is stored, as is one of its own sandbox.
    let stored = world.service().submit(me(), script("log a"), at(&id, None), None);
    let stored = world.block_on(stored).unwrap().id;
    world.wait(&stored);
    let alone = world.service().submit_waited(me(), script("log a"), None, None);
    let alone = world.block_on(alone).unwrap().id;
    world.wait(&alone);
    world.restart();
    assert!(world.now(&large.id).is_err());
    assert_eq!(world.events(&stored, 2), [(3, "log"), (4, "end")]);
    assert_eq!(world.events(&alone, 2), [(3, "log"), (4, "end")]);
}

#[test]
fn execution_says_which_generation_it_ran_in_and_whether_it_started_it() {
    let mut world = World::new();
    let created = world.create(request(Some("a"))).unwrap();
    assert!(!created.restarted);
    let id = created.sandbox.id;
    let run = |world: &World| {
        let submit = world.service().submit(me(), script("log a"), at(&id, None), None);
        let id = world.block_on(submit).unwrap().id;
        let ended = world.wait(&id);
        let summary = ended.summary.clone();
        assert_eq!(world.now(&id).unwrap().summary, summary);
        let timing = ended.document.as_ref().unwrap().common.timing.unwrap();
        (summary.generation, summary.restarted, timing.start_ms.is_some())
    };
    // The start of a sandbox is charged to its caller.
    assert_eq!(run(&world), (Some(1), Some(false), false));
    world.restart();
    assert_eq!(run(&world), (Some(2), Some(true), true));
    assert_eq!(run(&world), (Some(2), Some(false), false));
    world.restart();
    let found = world.create(request(Some("a"))).unwrap();
    assert_eq!((found.sandbox.generation, found.is_new, found.restarted), (3, false, true));
    // One of its own has none.
    let alone = world.wait(&world.submit("return 1")).summary.clone();
    assert_eq!((alone.generation, alone.restarted), (None, None));
}

#[test]
fn sandbox_without_programs_has_files_where_scripts_have_some() {
    let io_is_off = |world: &World, image: Option<&str>| {
        let spec = KeptSpec { image: image.map(str::to_owned), ..KeptSpec::default() };
        world.create(SandboxRequest { spec, ..request(None) }).unwrap();
        let launched = world.launcher.launched.lock().unwrap();
        let spec = launched.last().unwrap();
        assert_eq!(spec.kept_at.is_none(), spec.io_is_off);
        spec.io_is_off
    };
    let world = World::new();
    assert!(!io_is_off(&world, None));
    let world = World::with(|config| {
        config.io = IoPosture::Off;
        config.allowed_images = vec!["debian:*".into()];
    });
    assert!(io_is_off(&world, None));
    // Commands have files in any case.
    assert!(!io_is_off(&world, Some("debian:13")));
    let mut with_input = request(None);
    with_input.spec.inputs.insert("a".to_owned(), "x".into());
    assert_eq!(world.create(with_input).unwrap_err().problem().kind, ProblemKind::Policy);
}

#[test]
fn container_of_a_sandbox_has_its_name_its_files_and_its_longest_life() {
    let world = World::with(|config| config.kept.max_ttl = Duration::from_secs(100));
    let created = world.create(SandboxRequest { ttl_ms: Some(50_000), ..request(Some("a")) });
    let id = created.unwrap().sandbox.id;
    let launched = world.launcher.launched.lock().unwrap();
    let spec = &launched[0];
    assert_eq!(spec.container_name.as_deref(), Some("a"));
    assert_eq!(spec.id, Some(format!("{id}-g1")));
    assert_eq!(spec.kept_at, Some(world.data_dir().join("files").join(id)));
    // Not its time to live, which can be extended up to that.
    assert!((Duration::from_secs(60)..=Duration::from_secs(100)).contains(&spec.lifetime));
}

#[test]
fn files_of_kept_sandboxes_count_as_stored() {
    let world = World::new();
    let id = world.create(request(None)).unwrap().sandbox.id;
    let stored = || world.block_on(world.service().usage(me())).unwrap().stored_bytes;
    let before = stored();
    let file = world.data_dir().join("files").join(&id).join("a");
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    world.perform(&id, None).unwrap();
    world.until_true(|| stored() >= before + (1 << 20));
    let quotas = Quotas { stored: Some(ByteSize::b(1024)), ..Quotas::default() };
    world.service().set_quotas(quotas);
    let is_refused = |error: ServiceError| {
        error.problem() == ServiceError::quota_exceeded("stored bytes", None).problem()
    };
    assert!(is_refused(world.submit_as(me(), "return 1").unwrap_err()));
    assert!(is_refused(world.create(request(None)).unwrap_err()));
    let write = r#"{"operation":"write","path":"b","content":"x"}"#;
    let write = serde_json::from_str(write).unwrap();
    let written = world.block_on(world.service().perform(me(), &of_sandbox(&id, None), write));
    assert!(is_refused(written.unwrap_err()));
    world.submit_as(other(), "return 1").unwrap();
    // What it removes makes room.
    std::fs::remove_file(&file).unwrap();
    world.perform(&id, None).unwrap();
    world.until_true(|| world.submit_as(me(), "return 1").is_ok());
}

#[test]
fn concurrent_creations_of_one_name_start_one_container() {
    let world = World::new();
    let created = world.block_on(async {
        let creations = (0..10).map(|_| world.service().create_sandbox(me(), request(Some("a"))));
        futures_util::future::join_all(creations).await
    });
    let ids: Vec<_> = created.into_iter().map(|it| it.unwrap().sandbox.id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]));
    assert_eq!(world.launcher.launches.load(Ordering::SeqCst), 1);
}

#[test]
fn creation_that_fails_removes_no_sandbox_that_another_has_started() {
    let world = World::new();
    world.launcher.holds_launches.store(true, Ordering::SeqCst);
    world.launcher.failing.store(1, Ordering::SeqCst);
    let service = world.service().clone();
    let first = world.spawn(async move { service.create_sandbox(me(), request(Some("a"))).await });
    world.until_true(|| world.launcher.begun.load(Ordering::SeqCst) == 1);
    let id =
        world.block_on(world.service().sandboxes(me(), SandboxQuery::default())).unwrap().sandboxes
            [0]
        .id
        .clone();
    // The second is the next to start it.
    let core = &world.service().core;
    let mut second = Box::pin(core.begin_use(core.kept.find(me(), &id).unwrap(), None));
    assert!(world.block_on(async { (&mut second).now_or_never().is_none() }));
    world.launcher.may_launch.add_permits(2);
    let used = world.block_on(second).unwrap();
    assert!(world.block_on(first).unwrap().is_err());
    drop(used);
    assert_eq!(world.view(&id).status, SandboxStatus::Ready);
    assert!(world.data_dir().join("files").join(&id).exists());
    assert_eq!(world.create(request(Some("a"))).unwrap().sandbox.id, id);
}

#[test]
fn unreported_restart_is_reported_to_the_next_use() {
    let world = World::new();
    let id = world.create(request(None)).unwrap().sandbox.id;
    world.launcher.all_ended.store(true, Ordering::SeqCst);
    world.launcher.holds_launches.store(true, Ordering::SeqCst);
    let (service, of) = (world.service().clone(), id.clone());
    let gone =
        world.spawn(async move { service.perform(me(), &of_sandbox(&of, None), stat()).await });
    world.until_true(|| world.launcher.begun.load(Ordering::SeqCst) == 2);
    gone.abort();
    assert!(world.block_on(gone).unwrap_err().is_cancelled());
    world.launcher.may_launch.add_permits(1);
    world.until_true(|| world.view(&id).status == SandboxStatus::Ready);
    assert_eq!(world.perform(&id, None).unwrap(), (2, true));
    assert_eq!(world.perform(&id, None).unwrap(), (2, false));
}

#[test]
fn sandbox_that_ended_starts_a_new_generation_and_a_handle_of_the_old_one_is_gone() {
    let world = World::new();
    let id = world.create(request(None)).unwrap().sandbox.id;
    assert_eq!(world.perform(&id, Some(1)).unwrap(), (1, false));
    world.launcher.all_ended.store(true, Ordering::SeqCst);
    let error = world.perform(&id, Some(1)).unwrap_err();
    assert_eq!(error.problem(), ServiceError::stale_generation(&id, 1).problem());
    assert_eq!(world.perform(&id, None).unwrap(), (2, true));
    assert_eq!(world.perform(&id, None).unwrap(), (2, false));
    assert_eq!(world.perform(&id, Some(2)).unwrap(), (2, false));
    assert_eq!(world.perform(&id, Some(1)).unwrap_err().problem().kind, ProblemKind::Gone);
}

#[test]
fn sandbox_outlives_its_server_with_its_files_and_without_its_processes() {
    let mut world = World::new();
    let before = world.create(request(Some("a"))).unwrap().sandbox;
    let file = world.data_dir().join("files").join(&before.id).join("a.txt");
    std::fs::write(&file, "kept").unwrap();
    world.restart();
    let view = world.view(&before.id);
    assert_eq!((view.status, view.generation), (SandboxStatus::Stopped, 1));
    assert_eq!((view.expires_at, view.max_expires_at), (before.expires_at, before.max_expires_at));
    assert_eq!(world.perform(&before.id, Some(1)).unwrap_err().problem().kind, ProblemKind::Gone);
    assert_eq!(world.perform(&before.id, None).unwrap(), (2, true));
    assert!(file.exists());
    world.block_on(world.service().delete_sandbox(me(), &before.id)).unwrap();
    assert!(!file.exists());
    let error = world.perform(&before.id, None).unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::Gone, "{error}");
}

#[test]
fn file_that_is_announced_as_too_large_is_refused_before_it_comes() {
    let world = World::new();
    let mut small = request(None);
    small.spec.limits =
        serde_json::from_value(serde_json::json!({ "file_bytes": 1 << 20 })).unwrap();
    let id = world.create(small).unwrap().sandbox.id;
    let write = |bytes| {
        let (sandbox, write) = (of_sandbox(&id, None), Write::new("big"));
        let writing = world.service().write_file(me(), &sandbox, write, Some(bytes));
        world.block_on(writing).unwrap_err().failure()
    };
    let refused = write((1 << 20) + 1);
    assert_eq!(refused.kind, ErrorKind::TooLarge);
    assert_eq!(refused.message, "big: more than 1 MiB are too many");
    assert!(!refused.hint.unwrap().contains("read a part"));
    // The sandbox itself says what is wrong with another.
    assert_eq!(write(1 << 20).kind, ErrorKind::NotFound);
}

/// They ended as if the sandbox had failed.
#[test]
fn sandbox_that_is_removed_cancels_what_runs_in_it_and_fails_other_uses_as_gone() {
    let world = World::with(|config| config.concurrency = 2);
    let id = world.create(request(None)).unwrap().sandbox.id;
    let submit = |source| {
        let submitted = world.service().submit(me(), script(source), at(&id, None), None);
        world.block_on(submitted).unwrap().id
    };
    let (cancelled, lost) = (submit("wait"), submit("until-closed"));
    for running in [&cancelled, &lost] {
        world.until(running, ExecutionState::Running);
    }
    let queued = submit("return 1");
    let (service, of) = (world.service().clone(), id.clone());
    let operation = serde_json::from_str(r#"{"operation":"exists","path":"a"}"#).unwrap();
    let operation = world.spawn(async move {
        service.perform(me(), &of_sandbox(&of, None), operation).await.map(drop)
    });
    let uses = || world.service().core.kept.find(me(), &id).unwrap().info().uses;
    world.until_true(|| uses() == 3);
    world.block_on(world.service().delete_sandbox(me(), &id)).unwrap();
    let is_gone = (ErrorKind::NotFound, format!("the sandbox {id} is gone"));
    let cancelled = world.wait(&cancelled);
    assert_eq!(cancelled.summary.status, ExecutionState::Ended(Status::Cancelled));
    assert_eq!(failure(&cancelled).1, "the sandbox was deleted");
    for execution in [&lost, &queued] {
        let execution = world.wait(execution);
        assert_eq!(execution.summary.status, ExecutionState::Ended(Status::Error));
        assert_eq!(failure(&execution), is_gone);
    }
    let error = world.block_on(operation).unwrap().unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::Gone, "{error}");
    assert_eq!(world.launcher.closed.load(Ordering::SeqCst), 1);
    assert_eq!(
        world.wait(&world.submit("return 1")).summary.status,
        ExecutionState::Ended(Status::Ok)
    );
}

#[test]
fn idle_sandbox_has_no_container_until_its_next_use() {
    let world = World::new();
    let created = world.create(SandboxRequest { idle_ms: Some(50), ..request(None) }).unwrap();
    let id = created.sandbox.id;
    world.until_true(|| world.view(&id).status == SandboxStatus::Stopped);
    world.until_true(|| world.launcher.closed.load(Ordering::SeqCst) == 1);
    assert_eq!(world.perform(&id, None).unwrap(), (2, true));
}

#[test]
fn sandbox_ends_at_its_time_and_is_extended_up_to_its_longest_life() {
    let world = World::with(|config| config.kept.max_ttl = Duration::from_secs(100));
    let short = world.create(SandboxRequest { ttl_ms: Some(1000), ..request(None) }).unwrap();
    let long = world.create(SandboxRequest { ttl_ms: Some(50_000), ..request(None) }).unwrap();
    let (short, long) = (short.sandbox.id, long.sandbox);
    let extend = |seconds| {
        let ttl = Duration::from_secs(seconds);
        world.block_on(world.service().extend_sandbox(me(), &long.id, ttl)).unwrap().expires_at
    };
    // Never shorter than before.
    assert_eq!(extend(1), long.expires_at);
    assert!(extend(70) > long.expires_at);
    assert_eq!(extend(1000), long.max_expires_at);
    assert_eq!(long.max_expires_at, long.created_at.after(Duration::from_secs(100)));
    let is_gone = || {
        world
            .block_on(world.service().sandbox(me(), &short))
            .is_err_and(|it| it.problem().kind == ProblemKind::Gone)
    };
    world.until_true(is_gone);
    let too_long = SandboxRequest { ttl_ms: Some(101_000), ..request(None) };
    assert_eq!(world.create(too_long).unwrap_err().problem().kind, ProblemKind::Invalid);
}

#[test]
fn execution_in_a_kept_sandbox_goes_through_the_queue_and_uses_its_container() {
    let world = World::new();
    let id = world.create(request(None)).unwrap().sandbox.id;
    let submit = |generation, source| {
        world.block_on(world.service().submit(me(), script(source), at(&id, generation), None))
    };
    let execution = world.wait(&submit(Some(1), "log a").unwrap().id);
    assert_eq!(execution.summary.status, ExecutionState::Ended(Status::Ok));
    assert_eq!(execution.summary.sandbox.as_ref(), Some(&id));
    assert_eq!(world.launcher.launches.load(Ordering::SeqCst), 1);
    let query = ExecutionQuery { sandbox: Some(id.clone()), ..all() };
    let list = world.block_on(world.service().list(me(), query)).unwrap();
    assert_eq!(list.executions.len(), 1);
    let files = world.block_on(world.service().files(me(), &execution.summary.id));
    assert_eq!(files.unwrap_err().kind(), ErrorKind::NotFound);
    // In use it is not idle, however long that takes.
    let long = submit(None, "wait").unwrap().id;
    world.until(&long, ExecutionState::Running);
    assert_eq!(world.view(&id).idle_at, None);
    world.launcher.go_on.add_permits(1);
    world.wait(&long);
    assert!(world.view(&id).idle_at.is_some());
    let error = submit(Some(7), "return 1").unwrap_err();
    assert!(error.to_string().starts_with("generation 7 of"), "{error}");
    let unknown = world.service().submit(me(), script("return 1"), at("nothing", None), None);
    let error = world.block_on(unknown).unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::NotFound, "{error}");
}

#[test]
fn number_of_sandboxes_is_bounded_and_a_failed_start_leaves_none() {
    let world = World::with(|config| config.quotas.sandboxes = 2);
    world.launcher.failing.store(1, Ordering::SeqCst);
    let error = world.create(request(Some("a"))).unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::Unavailable, "{error}");
    assert!(
        world
            .block_on(world.service().sandboxes(me(), SandboxQuery::default()))
            .unwrap()
            .sandboxes
            .is_empty()
    );
    assert!(files_below(&world.data_dir().join("files")).is_empty());
    world.create(request(Some("a"))).unwrap();
    world.create(request(None)).unwrap();
    let error = world.create(request(None)).unwrap_err();
    assert_eq!(error.problem(), ServiceError::quota_exceeded("sandboxes", None).problem());
    assert!(!world.create(request(Some("a"))).unwrap().is_new);
}

#[test]
fn shutdown_ends_the_containers_of_kept_sandboxes() {
    let world = World::new();
    world.create(request(None)).unwrap();
    world.create(request(None)).unwrap();
    let report = world.block_on(world.service().shutdown(Duration::ZERO));
    assert!(report.left.is_empty());
    assert_eq!(world.launcher.closed.load(Ordering::SeqCst), 2);
}
