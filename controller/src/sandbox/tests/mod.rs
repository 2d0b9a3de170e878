//! Sandboxes on a scripted engine with a scripted agent: every way in which either can fail.

mod audited;
mod exec;
pub(crate) mod fake;
mod operations;
mod ports;
mod processes;
mod tools;
mod watch;

use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime};

use sandbox_api::changes::CommitPolicy;
use sandbox_api::{
    ByteSize, CancelCause, ErrorKind, ExecutionDocument, FileOp, Input, Lifespan, Limits, Outcome,
    ResultBody, RootFs, SandboxSpec, Script, Status, Usage,
};
use sandbox_engine::{
    ContainerSummary, EmbeddedConfig, GroupsUsage, Prepared, ProgramRoot, Source, UserMapping,
    container_name,
};
use sandbox_protocol::FromAgent;
use sandbox_protocol::argv::{ConfinementPolicy, EXIT_UNCONFINED};
use sandbox_protocol::limits::{
    MAX_IN_FLIGHT, MAX_MESSAGE_BYTES, MAX_REFUSALS, MAX_TEST_CASES, MAX_TEST_MESSAGE_BYTES,
};
use sandbox_protocol::message::{
    AgentUsage, Change, Done, HelloReply, Log, LogLevel, MountIdentity, Request, RunEnd, RunReply,
    ScriptError, TestStatus,
};
use sandbox_protocol::path::MAX_PATH_BYTES;
use sandbox_session::fake::FakeAgent;
use serde_json::value::RawValue;

use self::fake::{Fake, NextEvent as _, Scripted, World, greeted, hello_reply};
use super::*;
use crate::config::Sweep;
use crate::controller::Controller;
use crate::gc::reap;
use crate::gc::state_dir::Instance;
use crate::{CancelHandle, PreparedSandbox, Step};

#[tokio::test(start_paused = true)]
async fn a_sandbox_goes_through_its_life_in_order() {
    let world = greeted(async |mut agent: Scripted, _| {
        let id = agent.run_request().await;
        agent.log("hello").await;
        agent.returned(id, r#"{"a":1}"#).await;
        agent.rest().await;
    });
    let result = world.run().await;
    assert_eq!(result.outcome.status(), Status::Ok);
    assert_eq!(result.logs().iter().map(|log| &log.text).collect::<Vec<_>>(), ["hello"]);
    assert_eq!(result.usage.cpu_ms, Some(1));
    let calls = world.fake.calls();
    assert_eq!(calls, ["prepare", "user_mapping", "create", "attach", "start", "remove"]);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_went_is_prepared_again_in_its_own_time() {
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    world.fake.lacks_its_image.store(true, Ordering::Relaxed);
    world.run().await;
    let calls = world.fake.calls();
    assert_eq!(
        calls,
        ["prepare", "user_mapping", "create", "prepare", "create", "attach", "start", "remove"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_made_for_the_wrong_user_is_never_started() {
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let io = world.io.path();
    let owner = || std::fs::metadata(io).map(|io| (io.uid(), io.gid())).unwrap();
    if owner().0 == 0 {
        std::os::unix::fs::chown(io, Some(1000), Some(1000)).unwrap();
    }
    *world.fake.likely_mapping.lock().unwrap() = UserMapping::Rootless { owner: owner().0 };
    let sandbox = world.launch().await.unwrap();
    assert_eq!(
        world.fake.calls(),
        ["prepare", "user_mapping", "create", "remove", "create", "attach", "start"]
    );
    let user = world.fake.user.lock().unwrap().map(|user| (user.uid(), user.gid()));
    assert_eq!(user, Some(owner()));
    sandbox.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_says_nothing_is_killed_a_second_after_the_deadline() {
    let world = greeted(async |mut agent: Scripted, _| {
        agent.run_request().await;
        agent.log("before").await;
        agent.touched("/io/made", Change::Write).await;
        std::future::pending().await
    });
    std::fs::write(world.io.path().join("made"), "12345").unwrap();
    let before = tokio::time::Instant::now();
    let result = world.run().await;
    assert_eq!(result.outcome.status(), Status::Timeout);
    assert_eq!(result.exit_code(), 124);
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(31) && took < Duration::from_secs(34), "{took:?}");
    // What the agent sent before is not lost; unknown values are null.
    assert_eq!(result.logs()[0].text, "before");
    assert_eq!(result.files_touched.files.len(), 1);
    assert_eq!(result.files_touched.files[0].bytes, 5);
    assert_eq!(result.files_touched.files[0].op, FileOp::Write);
    assert_eq!(result.usage.cpu_ms, None);
    assert_eq!(result.hint().as_deref(), Some("--timeout raises the limit"));
}

fn usage(cpu: Duration, peak_memory: u64) -> GroupsUsage {
    GroupsUsage { cpu, peak_memory, ..GroupsUsage::default() }
}

#[tokio::test(start_paused = true)]
async fn usage_of_a_killed_agent_comes_from_the_engine() {
    let used = usage(Duration::from_millis(1500), 5 << 20);
    for (earlier, expected) in [(0, (Some(1500), Some(5 << 20))), (1, (None, None))] {
        let world = greeted(async |mut agent: Scripted, _| {
            while let Some((id, request)) = agent.agent.request().await {
                match request {
                    Request::Run(run) if run.source == "short" => agent.returned(id, "1").await,
                    _ => {}
                }
            }
        });
        *world.fake.usage.lock().unwrap() = Some(used);
        let sandbox = world.launch().await.unwrap();
        for _ in 0..earlier {
            sandbox.run(Script::new("short")).await.unwrap();
        }
        let result = sandbox.run(Script::new("long")).await.unwrap();
        assert_eq!(result.outcome.status(), Status::Timeout);
        // The container's usage over its whole life is not reported for a later run.
        let Usage { cpu_ms, peak_memory_bytes, written_bytes, .. } = result.usage;
        assert_eq!((cpu_ms, peak_memory_bytes), expected, "after {earlier} runs");
        assert_eq!(written_bytes, None);
    }
}

#[tokio::test(start_paused = true)]
async fn the_agents_own_answer_within_the_grace_wins() {
    let world = greeted(async |mut agent: Scripted, _| {
        let id = agent.run_request().await;
        tokio::time::sleep(Duration::from_millis(30_900)).await;
        agent.returned(id, "1").await;
        agent.rest().await;
    });
    assert_eq!(world.run().await.outcome.status(), Status::Ok);
    assert!(!world.fake.calls().contains(&"kill"));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_given_a_second_and_a_second_one_nothing() {
    for times in [1, 2] {
        let world = greeted(async |mut agent: Scripted, _| {
            agent.run_request().await;
            std::future::pending().await
        });
        let sandbox = world.launch().await.unwrap();
        let run = sandbox.start(Script::new("x"), CancelHandle::new()).await.unwrap();
        let before = tokio::time::Instant::now();
        for _ in 0..times {
            run.cancel_handle().cancel(CancelCause::Terminate);
        }
        let result = run.wait().await.unwrap();
        assert_eq!(result.outcome.status(), Status::Cancelled);
        assert_eq!(result.exit_code(), 143);
        let is_at_once = before.elapsed() < Duration::from_millis(500);
        assert_eq!(is_at_once, times == 2, "{:?}", before.elapsed());
        drop(sandbox);
        world.assert_removed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn engine_evidence_decides_when_the_agent_is_silent() {
    for (code, oom_killed, status) in [
        (Some(137), true, Status::Limit),
        (Some(137), false, Status::Killed),
        (Some(0), false, Status::AgentLost),
        (None, false, Status::AgentLost),
    ] {
        let world = greeted(async move |mut agent: Scripted, fake: Arc<Fake>| {
            agent.run_request().await;
            agent.log("last words").await;
            fake.ends_with(code, oom_killed);
        });
        let result = world.run().await;
        assert_eq!(result.outcome.status(), status, "{code:?} {oom_killed}");
        assert_eq!(result.logs()[0].text, "last words");
    }
}

#[tokio::test(start_paused = true)]
async fn hint_for_container_memory_names_its_own_limit() {
    for usage in [None, Some(usage(Duration::from_secs(1), 256 << 20))] {
        let world = greeted(async move |mut agent: Scripted, fake: Arc<Fake>| {
            agent.run_request().await;
            fake.ends_with(Some(137), true);
            *fake.usage.lock().unwrap() = usage;
        });
        let result = world.run().await;
        assert_eq!(result.usage.cpu_ms, usage.map(|_| 1000));
        assert_eq!(result.hint().as_deref(), Some("--memory raises the limit"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_breach_of_the_protocol_kills_and_keeps_the_log() {
    for what in [
        "flood",
        "lines",
        "outside",
        "refusals",
        "the refusal has no policy error kind",
        "test cases",
        "a test case that is long",
        "a refused path that is long",
        "a refused path that is long in bytes",
        "garbage",
        "huge result",
        "huge error",
        "huge traceback",
        "two answers",
        "another request",
    ] {
        let world = greeted(async move |mut agent: Scripted, _| {
            let id = agent.run_request().await;
            agent.log("first").await;
            match what {
                "flood" => {
                    for _ in 0..20 {
                        agent.log(&"x".repeat(64 << 10)).await;
                    }
                }
                "lines" => {
                    for _ in 0..10_001 {
                        agent.log("").await;
                    }
                }
                "outside" => agent.touched("/etc/passwd", Change::Write).await,
                "refusals" => {
                    for _ in 0..=MAX_REFUSALS {
                        agent.refused("..", None, ErrorKind::PathEscape).await;
                    }
                }
                "test cases" => {
                    for _ in 0..=MAX_TEST_CASES {
                        agent.case("c", TestStatus::Passed, None).await;
                    }
                }
                "a test case that is long" => {
                    let long = Some("x".repeat(MAX_TEST_MESSAGE_BYTES + 1));
                    agent.case("c", TestStatus::Failed, long).await;
                }
                "the refusal has no policy error kind" => {
                    agent.refused("a", None, ErrorKind::NotFound).await
                }
                "a refused path that is long" => {
                    let long = "x".repeat(MAX_PATH_BYTES + 1);
                    agent.refused(&long, None, ErrorKind::Symlink).await;
                }
                "a refused path that is long in bytes" => {
                    let long = Some(vec![0xff; MAX_PATH_BYTES + 1]);
                    agent.refused("x", long, ErrorKind::Symlink).await;
                }
                "garbage" => agent.agent.send("}\n").await,
                "huge error" | "huge traceback" => {
                    let long = "x".repeat(MAX_MESSAGE_BYTES + 1);
                    let (message, traceback) = match what {
                        "huge error" => (long, None),
                        _ => ("x".to_owned(), Some(long)),
                    };
                    let kind = ErrorKind::Runtime;
                    let error = ScriptError { kind, message, line: None, traceback, value: None };
                    let usage = AgentUsage { cpu_ms: 1, peak_memory_bytes: 2, written_bytes: 3 };
                    let end = RunEnd::Failed(error);
                    agent.agent.answer(id, RunReply { end, logs_truncated: false, usage }).await;
                }
                "two answers" => {
                    // The id of `hello`, which was answered long ago.
                    agent.agent.answer(0, Done {}).await;
                }
                "another request" => {
                    agent.run += 1;
                    agent.log("not mine").await;
                }
                _ => agent.returned(id, &format!("\"{}\"", "x".repeat(1 << 20))).await,
            }
            std::future::pending().await
        });
        let result = world.run().await;
        assert_eq!(result.outcome.status(), Status::AgentLost, "{what}");
        assert_eq!(result.logs()[0].text, "first", "{what}");
        assert!(world.fake.calls().contains(&"kill"), "{what}");
        let bytes: usize = result.logs().iter().map(|log| log.text.len()).sum();
        assert!(bytes <= (1 << 20) + 100 && result.logs().len() <= 10_001, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn script_that_returns_after_a_failed_test_case_has_failed() {
    for (status, expected) in [
        (TestStatus::Failed, Status::ScriptError),
        (TestStatus::Skipped, Status::Ok),
        (TestStatus::Passed, Status::Ok),
    ] {
        let world = greeted(async move |mut agent: Scripted, _| {
            let id = agent.run_request().await;
            agent.case("sums", status, None).await;
            agent.returned(id, "7").await;
            agent.rest().await;
        });
        let result = world.run().await;
        assert_eq!(result.outcome.status(), expected);
        assert_eq!((result.tests().len(), result.tests()[0].status), (1, status));
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_slower_than_its_deadline_is_a_timeout() {
    for what in ["a byte a second", "reads nothing"] {
        let world = greeted(async move |mut agent: Scripted, _| {
            if what == "a byte a second" {
                agent.run_request().await;
                loop {
                    agent.agent.send("x").await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
            let _agent = agent;
            std::future::pending().await
        });
        let sandbox = world.launch().await.unwrap();
        let before = tokio::time::Instant::now();
        // Longer than what the pipe holds.
        let result = sandbox.run(Script::new("x".repeat(200 << 10))).await.unwrap();
        assert_eq!(result.outcome.status(), Status::Timeout, "{what}");
        assert!(before.elapsed() < Duration::from_secs(34), "{what}: {:?}", before.elapsed());
        sandbox.close().await.unwrap();
        world.assert_removed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_answers_before_anything_is_asked_runs_nothing() {
    let world = greeted(async |mut agent: Scripted, _| {
        agent.agent.answer(0, Done {}).await;
        std::future::pending().await
    });
    let sandbox = world.launch().await.unwrap();
    sandbox.inner.session.ended().await;
    let error = sandbox.run(Script::new("x")).await.unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    assert!(error.to_string().contains("unknown request (id 0)"), "{error}");
    // In a separate task.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(world.fake.calls().contains(&"kill"));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_sees_other_mounts_is_refused() {
    for what in ["none", "one more", "another name", "another directory", "another version"] {
        let io: Arc<Mutex<PathBuf>> = Arc::default();
        let place = io.clone();
        let world = World::new(async move |mut agent: FakeAgent, _| {
            let mut reply = hello_reply(&place.lock().unwrap().clone());
            let first = reply.mounts[0].clone();
            match what {
                "none" => reply.mounts.clear(),
                "one more" => reply.mounts.push(first),
                "another name" => reply.mounts[0].path = "/elsewhere".into(),
                "another directory" => reply.mounts[0].ino += 1,
                _ => reply.protocol += 1,
            }
            let (id, _) = agent.request().await.unwrap();
            agent.answer(id, reply).await;
            std::future::pending().await
        });
        *io.lock().unwrap() = world.io.path().to_owned();
        let error = world.launch().await.unwrap_err();
        let is_expected = match what {
            "another directory" => matches!(error, Error::IoDirElsewhere { .. }),
            "another version" => matches!(error, Error::AgentMismatch { .. }),
            _ => matches!(error, Error::StartFailed { .. }),
        };
        assert!(is_expected, "{what}: {error}");
        assert_eq!(error.exit_code(), 125, "{what}");
        world.assert_removed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_log_of_a_killed_run_says_that_it_may_be_longer() {
    let world = greeted(async |mut agent: Scripted, _| {
        agent.run_request().await;
        for _ in 0..10_000 {
            agent.log("x").await;
        }
        std::future::pending().await
    });
    let result = world.run().await;
    assert!(matches!(result.body, ResultBody::Script { logs_truncated: true, .. }));
    assert_eq!(result.logs().len(), 10_001);
    let last = &result.logs().last().unwrap().text;
    assert!(last.contains("limits.log_lines (10000)"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_closes_its_stdout_and_goes_on_is_killed() {
    // Also if the controller gets no time until each of its limits has passed.
    for stall in [Duration::ZERO, Step::Exit.time_limit() * 2] {
        let world = greeted(async move |mut agent: Scripted, fake: Arc<Fake>| {
            agent.run_request().await;
            drop(agent);
            while !fake.calls().contains(&"wait") {
                tokio::task::yield_now().await;
            }
            tokio::time::advance(stall).await;
            std::future::pending().await
        });
        let result = world.run().await;
        assert_eq!(result.outcome.status(), Status::AgentLost, "{stall:?}: {result:?}");
        assert!(world.fake.calls().contains(&"kill"), "{stall:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_comes_as_it_is_made() {
    let world = greeted(async |mut agent: Scripted, _| {
        let id = agent.run_request().await;
        agent.log("one").await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        agent.log("two").await;
        agent.returned(id, "null").await;
        agent.rest().await;
    });
    let sandbox = world.launch().await.unwrap();
    let before = tokio::time::Instant::now();
    let mut run = sandbox.start(Script::new("x"), CancelHandle::new()).await.unwrap();
    assert_eq!(run.next_log().await.unwrap().text, "one");
    assert!(before.elapsed() < Duration::from_secs(5));
    assert_eq!(run.next_log().await.unwrap().text, "two");
    assert_eq!(run.next_log().await, None);
    assert_eq!(run.next_log().await, None);
    run.wait().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_sandbox_is_cancelled_without_having_run() {
    let world = greeted(async |mut agent: Scripted, _| {
        agent.run_request().await;
        agent.rest().await;
    });
    let sandbox = world.launch().await.unwrap();
    let cancel = CancelHandle::new();
    cancel.cancel(CancelCause::Caller);
    let refused = sandbox.start(Script::new("x"), cancel).await.unwrap_err();
    assert_eq!((refused.kind(), refused.exit_code()), (ErrorKind::Cancelled, 130));
    // Another script runs.
    let first = sandbox.start(Script::new("x"), CancelHandle::new()).await.unwrap();
    let cancel = CancelHandle::new();
    let second = sandbox.start(Script::new("x"), cancel.clone());
    let (second, ()) = tokio::join!(second, async { cancel.cancel(CancelCause::Deleted) });
    assert_eq!(second.unwrap_err().to_string(), "cancelled before it began");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_hangs_fails_within_its_time_and_the_container_is_removed() {
    for (call, step) in [
        ("prepare", Step::Image),
        ("create", Step::Create),
        ("attach", Step::Attach),
        ("start", Step::Start),
    ] {
        let world = World::with(Some(call), async |_, _| {});
        let before = tokio::time::Instant::now();
        let error = world.launch().await.unwrap_err();
        assert!(matches!(&error, Error::Engine { step: failed, .. } if *failed == step), "{error}");
        assert_eq!(error.exit_code(), 125);
        assert!(before.elapsed() <= step.time_limit() + Duration::from_secs(1));
        world.shared.cleanup.finish().await;
        assert_eq!(world.fake.calls().contains(&"remove"), call != "prepare", "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_launch_cancelled_while_the_container_is_created_leaves_none() {
    let world = World::with(Some("create"), async |_, _| {});
    let launch = tokio::time::timeout(Duration::from_secs(1), world.launch()).await;
    assert!(launch.is_err());
    assert!(!world.shared.cleanup.finish().await, "it may still come into being");
    assert_eq!(world.fake.calls(), ["prepare", "user_mapping", "create", "remove"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_a_greeting_times_out() {
    let world = World::new(async |agent, _| {
        let _agent = agent;
        std::future::pending().await
    });
    let error = world.launch().await.unwrap_err();
    assert!(matches!(error, Error::Engine { step: Step::Hello, .. }), "{error}");
    world.assert_removed().await;

    let world = World::new(async |_, fake: Arc<Fake>| fake.ends_with(Some(3), false));
    let error = world.launch().await.unwrap_err().to_string();
    assert!(error.contains("exit code 3"), "{error}");
    world.assert_removed().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_could_not_confine_itself_has_its_own_error() {
    let world = World::new(async |_, fake: Arc<Fake>| {
        fake.ends_with(Some(EXIT_UNCONFINED.into()), false);
    });
    let error = world.launch().await.unwrap_err();
    assert!(matches!(error, Error::Unconfined { .. }), "{error}");
    assert_eq!(error.exit_code(), 125);
    assert!(error.hint().is_some());
    world.assert_removed().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_confined_by_less_than_the_policy_wants_is_refused_before_any_run() {
    for policy in ConfinementPolicy::ALL {
        let io: Arc<Mutex<PathBuf>> = Arc::default();
        let place = io.clone();
        let mut world = World::new(async move |mut agent: FakeAgent, _| {
            let mut reply = hello_reply(&place.lock().unwrap());
            reply.confinement.seccomp = false;
            let (id, _) = agent.request().await.unwrap();
            agent.answer(id, reply).await;
            Scripted::configured(agent).await.rest().await;
        });
        *io.lock().unwrap() = world.io.path().to_owned();
        Arc::get_mut(&mut world.shared).unwrap().confinement = policy;
        if policy == ConfinementPolicy::Required {
            let error = world.launch().await.unwrap_err();
            assert!(matches!(error, Error::Unconfined { .. }), "{error}");
            world.assert_removed().await;
        } else {
            let result = world.run().await;
            assert!(!result.confinement.seccomp);
            let document = serde_json::to_value(ExecutionDocument::from(&result)).unwrap();
            assert_eq!(document["confinement"]["seccomp"], false);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_another_version_names_the_command_that_helps() {
    let world = World::new(async |mut agent, _| {
        let (id, _) = agent.request().await.unwrap();
        let error = sandbox_protocol::WireError::new(ErrorKind::Image, "version 0, not 1");
        agent.send(FromAgent::encode_reply::<()>(id, Err(error)).unwrap()).await;
        agent.request().await;
    });
    let error = world.launch().await.unwrap_err();
    assert!(matches!(error, Error::AgentMismatch { .. }), "{error}");
    assert!(error.hint().unwrap().contains("image build"));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_dies_in_the_middle_is_our_failure() {
    let world = greeted(async |mut agent: Scripted, fake: Arc<Fake>| {
        agent.run_request().await;
        fake.is_dead.store(true, Ordering::Relaxed);
    });
    let sandbox = world.launch().await.unwrap();
    let result = sandbox.run(Script::new("x")).await.unwrap();
    assert_eq!((result.outcome.status(), result.exit_code()), (Status::Error, 125));
    let failure = result.outcome.failure().unwrap();
    assert_eq!(failure.kind, ErrorKind::Engine);
    assert!(failure.message.contains("the engine died"), "{}", failure.message);
    assert!(result.hint().is_some());
    assert!(sandbox.close().await.is_err());
    // A container that could not be removed is found by its labels: the instance keeps its file.
    assert!(!world.shared.cleanup.finish().await);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_could_not_be_removed_is_when_it_is_asked_for_again() {
    let world = greeted(async |mut agent: Scripted, fake: Arc<Fake>| {
        fake.is_dead.store(true, Ordering::Relaxed);
        agent.rest().await;
    });
    let removals = || world.fake.calls().iter().filter(|&&call| call == "remove").count();
    let sandbox = world.launch().await.unwrap();
    let (one, other) = tokio::join!(sandbox.close(), sandbox.close());
    // Neither caller gets a success.
    assert!(one.is_err() && other.is_err());
    assert_eq!(removals(), 2);
    assert!(sandbox.ended().is_some());
    world.fake.is_dead.store(false, Ordering::Relaxed);
    sandbox.close().await.unwrap();
    sandbox.close().await.unwrap();
    drop(sandbox);
    world.shared.cleanup.finish().await;
    assert_eq!(removals(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_run_may_have_more_time_than_its_sandbox_gives_and_never_more_than_the_ceiling() {
    let world = greeted(async |mut agent: Scripted, _| {
        agent.run_request().await;
        std::future::pending().await
    });
    let sandbox = world.launch().await.unwrap();
    let over = Script::new("x").timeout(Duration::from_secs(601));
    let error = sandbox.start(over, CancelHandle::new()).await.unwrap_err();
    assert!(matches!(error, Error::OverCeiling(_)), "{error}");
    let before = tokio::time::Instant::now();
    let result = sandbox.run(Script::new("x").timeout(Duration::from_secs(90))).await.unwrap();
    assert_eq!(result.outcome.status(), Status::Timeout);
    assert_eq!(result.limits.timeout, Duration::from_secs(90));
    assert!(before.elapsed() >= Duration::from_secs(90));
    sandbox.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_hangs_ends_the_log_and_loses_nothing_of_the_run() {
    let io: Arc<Mutex<PathBuf>> = Arc::default();
    let place = io.clone();
    let world = World::with(Some("kill"), async move |agent, _| {
        let io = place.lock().unwrap().clone();
        let mut agent = Scripted::greet(agent, &io).await;
        agent.run_request().await;
        agent.log("before").await;
        agent.touched("/io/made", Change::Write).await;
        std::future::pending().await
    });
    std::fs::write(world.io.path().join("made"), "12345").unwrap();
    *io.lock().unwrap() = world.io.path().to_owned();
    let sandbox = world.launch().await.unwrap();
    let before = tokio::time::Instant::now();
    let mut run = sandbox.start(Script::new("x"), CancelHandle::new()).await.unwrap();
    assert_eq!(run.next_log().await.unwrap().text, "before");
    assert_eq!(run.next_log().await, None);
    let result = run.wait().await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(45));
    // Its deadline has passed, even if the kill fails.
    let Outcome::Timeout(error) = &result.outcome else { panic!("{:?}", result.outcome) };
    assert!(error.message.contains("may not have ended"), "{error:?}");
    assert!(error.message.contains(Step::Kill.as_str()), "{error:?}");
    assert_eq!(result.logs()[0].text, "before");
    assert_eq!(result.files_touched.files[0].bytes, 5);
    assert_eq!(result.usage.cpu_ms, None);
    let document = serde_json::to_value(ExecutionDocument::from(&result)).unwrap();
    assert_eq!(document["status"], "timeout");
    for key in ["id", "engine", "io_dir", "limits", "usage"] {
        assert!(!document[key].is_null(), "{key}: {document:#}");
    }
    // It serves nothing more, and its removal is waited for.
    let refused = sandbox.start(Script::new("y"), CancelHandle::new()).await.unwrap_err();
    assert!(refused.to_string().contains("was killed"), "{refused}");
    sandbox.release().await.unwrap();
    let calls = world.fake.calls();
    assert!(calls.contains(&"remove") && !calls.contains(&"begin_removal"), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn entries_that_were_cut_and_warnings_are_marked() {
    let world = greeted(async |mut agent: Scripted, _| {
        let id = agent.run_request().await;
        for (level, text, cut) in [
            (LogLevel::Warn, "careful".to_owned(), false),
            (LogLevel::Print, "é".repeat(1 << 15), true),
        ] {
            let request = agent.run;
            agent.notify(FromAgent::Log(Log { request, level, text, lossy: false, cut })).await;
        }
        agent.returned(id, "null").await;
        agent.rest().await;
    });
    let result = world.run().await;
    assert!(matches!(result.body, ResultBody::Script { logs_truncated: true, .. }));
    let document = serde_json::to_value(ExecutionDocument::from(&result)).unwrap();
    assert_eq!(document["logs"][0], "[warn] careful");
    let cut = document["logs"][1].as_str().unwrap();
    assert!(cut.ends_with("é… [cut]") && cut.len() <= 64 << 10, "{}", cut.len());
    assert_eq!(result.logs().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_sandbox_is_removed_and_its_run_is_cancelled() {
    let world = greeted(async |mut agent: Scripted, _| {
        agent.run_request().await;
        std::future::pending().await
    });
    let sandbox = world.launch().await.unwrap();
    let run = sandbox.start(Script::new("x"), CancelHandle::new()).await.unwrap();
    drop(sandbox);
    assert_eq!(run.wait().await.unwrap().outcome.status(), Status::Cancelled);
    world.assert_removed().await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_is_cancelled_and_the_next_one_waits_for_its_end() {
    let world = greeted(async |mut agent: Scripted, _| {
        let id = agent.run_request().await;
        let (_, request) = agent.agent.request().await.unwrap();
        assert!(matches!(request, Request::Cancel(_)));
        agent.returned(id, "1").await;
        agent.rest().await;
    });
    let sandbox = world.launch().await.unwrap();
    drop(sandbox.start(Script::new("x"), CancelHandle::new()).await.unwrap());
    let second = sandbox.run(Script::new("y")).await.unwrap();
    assert_eq!(second.outcome.status(), Status::Ok);
    assert_eq!(second.id, format!("{}-2", sandbox.id()));
    sandbox.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_for_one_run_takes_no_second() {
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let spec = world.spec().lifespan(Lifespan::OneRun);
    let sandbox = Sandbox::launch(world.shared.clone(), spec).await.unwrap();
    sandbox.run(Script::new("x")).await.unwrap();
    let error = sandbox.run(Script::new("x")).await.unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_ends_with_its_lifetime() {
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let spec = world.spec().lifetime(Duration::from_secs(60));
    let sandbox = Sandbox::launch(world.shared.clone(), spec).await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;
    let error = sandbox.run(Script::new("x")).await.unwrap_err();
    assert!(error.to_string().contains("lifetime"), "{error}");
    assert!(world.fake.calls().contains(&"kill"));
}

#[tokio::test(start_paused = true)]
async fn the_nonce_detects_an_engine_that_sees_another_directory() {
    // Another kernel's inode numbers, and the same directory.
    let answers = |sees_it: bool| {
        let io: Arc<Mutex<PathBuf>> = Arc::default();
        let place = io.clone();
        let world = World::new(async move |mut agent: FakeAgent, _| {
            let io = place.lock().unwrap().clone();
            let (id, _) = agent.request().await.unwrap();
            let reply = HelloReply { boot_id: "another".into(), ..hello_reply(&io) };
            agent.answer(id, reply.clone()).await;
            let (id, request) = agent.request().await.unwrap();
            let Request::Hello(hello) = request else { panic!("{request:?}") };
            let path = io.join(hello.nonce.unwrap());
            let nonce = sees_it.then(|| std::fs::read_to_string(path).unwrap());
            agent.answer(id, HelloReply { nonce, ..reply }).await;
            Scripted::configured(agent).await.rest().await;
        });
        *io.lock().unwrap() = world.io.path().to_owned();
        world
    };
    let world = answers(true);
    world.launch().await.unwrap().close().await.unwrap();
    let world = answers(false);
    let error = world.launch().await.unwrap_err();
    assert!(matches!(error, Error::IoDirElsewhere { .. }), "{error}");
    world.assert_removed().await;
    assert_eq!(std::fs::read_dir(world.io.path()).unwrap().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_answers_no_cancel_is_killed_when_it_has_no_place_left_for_one() {
    let world = greeted(async |mut agent: Scripted, _| {
        let mut run = 0;
        while let Some((id, request)) = agent.agent.request().await {
            match request {
                Request::Run(_) => run = id,
                // The run is answered, the cancel never: its permit stays taken.
                Request::Cancel(_) => agent.returned(run, "null").await,
                Request::Hello(_) | Request::Shutdown(_) => {}
                other => panic!("{other:?}"),
            }
        }
    });
    let sandbox = world.launch().await.unwrap();
    for _ in 0..=MAX_IN_FLIGHT {
        let run = sandbox.start(Script::new("x"), CancelHandle::new()).await.unwrap();
        run.cancel_handle().cancel(CancelCause::Caller);
        assert!(!world.fake.calls().contains(&"kill"));
        run.wait().await.unwrap();
    }
    assert!(world.fake.calls().contains(&"kill"));
    let error = sandbox.run(Script::new("x")).await.unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_input_that_is_another_file_than_the_one_opened_is_refused() {
    let (right, wrong) =
        (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    for (seen, is_refused) in [(right.path(), false), (wrong.path(), true)] {
        let metadata = std::fs::metadata(seen).unwrap();
        let io: Arc<Mutex<PathBuf>> = Arc::default();
        let place = io.clone();
        let world = World::new(async move |mut agent: FakeAgent, _| {
            let io = place.lock().unwrap().clone();
            let mut reply = hello_reply(&io);
            let (dev, ino) = (metadata.dev(), metadata.ino());
            reply.mounts.push(MountIdentity { path: "/in/x".into(), dev, ino });
            let (id, _) = agent.request().await.unwrap();
            agent.answer(id, reply).await;
            Scripted::configured(agent).await.rest().await;
        });
        *io.lock().unwrap() = world.io.path().to_owned();
        let spec = world.spec().input(Input::path(right.path(), "x"));
        match Sandbox::launch(world.shared.clone(), spec).await {
            Ok(sandbox) if !is_refused => sandbox.close().await.unwrap(),
            Err(Error::StartFailed { detail }) if is_refused => {
                assert!(detail.contains("/in/x"), "{detail}");
                world.assert_removed().await;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The usage in the results of consecutive runs whose agent reports these values.
async fn usage_of(
    says: &'static [(u64, u64, u64)],
) -> Vec<(Option<u64>, Option<u64>, Option<u64>)> {
    let world = greeted(async move |mut agent: Scripted, _| {
        for &(cpu_ms, peak_memory_bytes, written_bytes) in says {
            let id = agent.run_request().await;
            let end = RunEnd::Returned(RawValue::from_string("1".into()).unwrap());
            let usage = AgentUsage { cpu_ms, peak_memory_bytes, written_bytes };
            agent.agent.answer(id, RunReply { end, logs_truncated: false, usage }).await;
        }
        agent.rest().await;
    });
    let sandbox = world.launch().await.unwrap();
    let mut reported = Vec::new();
    for _ in says {
        let result = sandbox.run(Script::new("return 1")).await.unwrap();
        assert_eq!(result.outcome.status(), Status::Ok);
        let Usage { cpu_ms, peak_memory_bytes, written_bytes, .. } = result.usage;
        reported.push((cpu_ms, peak_memory_bytes, written_bytes));
    }
    sandbox.close().await.unwrap();
    reported
}

#[tokio::test(start_paused = true)]
async fn impossible_usage_is_not_reported() {
    const MOST: (u64, u64, u64) = (37_000, 272 << 20, 50 << 20);
    const MORE: (u64, u64, u64) = (37_001, (272 << 20) + 1, (50 << 20) + 1);
    const ALL: (u64, u64, u64) = (u64::MAX, u64::MAX, u64::MAX);
    assert_eq!(usage_of(&[MOST]).await, [(Some(37_000), Some(272 << 20), Some(50 << 20))]);
    assert_eq!(usage_of(&[MORE]).await, [(None, None, None)]);
    assert_eq!(usage_of(&[ALL]).await, [(None, None, None)]);
    // A kernel that does not report it.
    assert_eq!(usage_of(&[(0, 0, 0)]).await, [(Some(0), None, Some(0))]);
}

#[tokio::test(start_paused = true)]
async fn each_run_of_a_sandbox_reports_its_own_processor_time() {
    let usage = usage_of(&[(100, 7, 1), (130, 7, 2), (120, 7, 0)]).await;
    let cpu: Vec<Option<u64>> = usage.iter().map(|usage| usage.0).collect();
    assert_eq!(cpu, [Some(100), Some(30), Some(0)]);
}

#[tokio::test(start_paused = true)]
async fn invalid_scripts_are_judged_without_the_agent() {
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let sandbox = world.launch().await.unwrap();
    let result = sandbox.run(Script::new(vec![b'x'; (256 << 10) + 1])).await.unwrap();
    assert_eq!(result.outcome.status(), Status::Limit);
    let Usage { cpu_ms, peak_memory_bytes, written_bytes, .. } = result.usage;
    assert_eq!((cpu_ms, peak_memory_bytes, written_bytes), (None, None, Some(0)));
    let result = sandbox.run(Script::new(b"a = 1\nb = '\xff'".to_vec())).await.unwrap();
    assert_eq!(result.outcome.status(), Status::ScriptError);
    let failure = result.outcome.failure().unwrap();
    assert_eq!(failure.line, Some(2));
    assert_eq!(
        failure.message,
        r"script:2: the script is not UTF-8 text (write such bytes as \xNN)"
    );
    let args = serde_json::Map::from_iter([("a".to_owned(), "x".repeat(1 << 20).into())]);
    let error = sandbox.run(Script::new("x").args(args)).await.unwrap_err();
    assert_eq!(error.exit_code(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_limit_over_its_ceiling_is_refused_before_anything_is_made() {
    let world = World::new(async |_, _| {});
    let limits = Limits { memory: ByteSize::b(1 << 40), ..Limits::default() };
    let error =
        Sandbox::launch(world.shared.clone(), world.spec().limits(limits)).await.unwrap_err();
    assert_eq!(error.exit_code(), 121);
    assert_eq!(world.fake.calls(), Vec::<&str>::new());
}

/// A container of a controller that is dead or alive.
fn container_of(instance: &Instance, id: &str) -> ContainerSummary {
    let (created, sandbox) = (SystemTime::now(), "0123456789abcdef");
    let expires = created + Duration::from_secs(3600);
    let labels = reap::labels(instance, sandbox, expires, &SandboxSpec::new(), None);
    let name = container_name(sandbox);
    ContainerSummary { id: id.to_owned(), name, labels, running: true, created }
}

#[tokio::test(start_paused = true)]
async fn leftovers_go_at_once_and_every_half_minute_until_the_controller_ends() {
    let world = World::new(async |_, _| {});
    let state = world.shared.instance.state.clone();
    let (live, dead) = (
        Instance::register(state.clone(), "fake").unwrap(),
        Instance::register(state.clone(), "fake").unwrap(),
    );
    let leftover = container_of(&dead, "left");
    drop(dead);
    let listed = || {
        let listed = world.fake.listed.lock().unwrap();
        listed.iter().map(|listed| listed.id.clone()).collect::<Vec<_>>()
    };
    let lists = || world.fake.calls().iter().filter(|&&call| call == "list").count();
    world.fake.listed.lock().unwrap().extend([leftover.clone(), container_of(&live, "lives")]);

    // However short its life, a controller sweeps once.
    let controller = Controller::new(world.shared.clone(), Sweep::Regularly);
    controller.close().await;
    assert_eq!((listed(), lists()), (vec!["lives".to_owned()], 1));

    let controller = Controller::new(world.shared.clone(), Sweep::Regularly);
    tokio::time::sleep(Duration::from_secs(29)).await;
    world.fake.listed.lock().unwrap().push(leftover.clone());
    assert_eq!(lists(), 2);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((listed(), lists()), (vec!["lives".to_owned()], 3));
    drop(controller);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(lists(), 3);

    // A controller that only inspects removes nothing.
    world.fake.listed.lock().unwrap().push(leftover);
    Controller::new(world.shared.clone(), Sweep::Never).close().await;
    assert_eq!(lists(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_in_a_sweep_blocks_commands_only_briefly() {
    let world = World::with(Some("list"), async |_, _| {});
    let before = tokio::time::Instant::now();
    Controller::new(world.shared.clone(), Sweep::Regularly).close().await;
    assert!(before.elapsed() <= Duration::from_secs(6), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn only_the_doctors_own_directory_may_be_a_root() {
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let empty = EmbeddedConfig::empty_root(&world._state.path().join("data"));
    std::fs::create_dir_all(&empty).unwrap();
    let file = Arc::new(std::fs::File::open(&empty).unwrap().into());
    let root = ProgramRoot::Directory(Source::new(empty.to_str().unwrap().to_owned(), file));
    let prepared = Prepared { root, env: Vec::new(), workdir: String::new(), named: None };
    let launch = |sandbox: PreparedSandbox| {
        let sandbox = PreparedSandbox { prepared: Some(prepared.clone()), ..sandbox };
        Sandbox::launch(world.shared.clone(), sandbox)
    };
    let refused =
        launch(world.spec().root(RootFs::Directory(empty.clone())).into()).await.unwrap_err();
    assert!(matches!(refused, Error::MountRefused { .. }), "{refused}");
    assert!(!world.fake.calls().contains(&"create"), "{:?}", world.fake.calls());
    let sandbox = launch(PreparedSandbox::on_engine_directory(world.spec(), empty)).await.unwrap();
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn released_sandbox_is_asked_to_be_removed_and_not_waited_for() {
    let world = greeted(|mut agent, _| async move { agent.rest().await });
    world.fake.begins_removals.store(true, Ordering::Relaxed);
    let sandbox = world.launch().await.unwrap();
    sandbox.run(Script::new("x")).await.unwrap();
    sandbox.release().await.unwrap();
    // It is as closed as any.
    sandbox.close().await.unwrap();
    drop(sandbox);
    let calls = world.fake.calls();
    assert_eq!(calls.iter().filter(|&&call| call == "begin_removal").count(), 1);
    assert!(!calls.contains(&"remove"), "{calls:?}");
    // Whether it is gone is unknown: the next command checks.
    assert!(world.shared.cleanup.finish().await && world.shared.cleanup.is_handed_over());
}

#[tokio::test]
async fn released_sandbox_of_an_engine_that_must_be_waited_for_is_closed() {
    let world = greeted(|mut agent, _| async move { agent.rest().await });
    let sandbox = world.launch().await.unwrap();
    sandbox.run(Script::new("x")).await.unwrap();
    sandbox.release().await.unwrap();
    assert!(world.shared.cleanup.finish().await);
    world.assert_removed().await;
}

#[tokio::test]
async fn sandbox_that_has_ended_is_removed_before_its_release_returns() {
    let world = greeted(|mut agent, _| async move {
        agent.run_request().await;
    });
    world.fake.begins_removals.store(true, Ordering::Relaxed);
    let sandbox = world.launch().await.unwrap();
    sandbox.run(Script::new("x")).await.unwrap();
    sandbox.release().await.unwrap();
    assert!(!world.fake.calls().contains(&"begin_removal"));
    world.assert_removed().await;
}

/// A world whose io dir is `place`/io, staged by a copy beside it. Its agent adds a file, and then does this.
fn staging<F>(
    place: &Path,
    hangs: Option<&'static str>,
    act: impl FnOnce(Scripted) -> F + Send + 'static,
) -> World
where
    F: Future<Output = ()> + Send + 'static,
{
    std::fs::create_dir(place.join("io")).unwrap();
    let place = place.to_owned();
    let world = World::with(hangs, move |agent: FakeAgent, _| async move {
        let mut beside = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path());
        let stage = beside.find(|path| path.to_string_lossy().contains("-stage-")).unwrap();
        let copy = stage.join("files");
        let agent = Scripted::greet(agent, &copy).await;
        std::fs::write(copy.join("new"), "content").unwrap();
        act(agent).await;
    });
    world.fake.begins_removals.store(true, Ordering::Relaxed);
    world
}

/// Runs a script in it, and commits what it changed.
async fn commit_in(world: &World, io_dir: &Path) -> Sandbox {
    let spec = SandboxSpec::new().io_dir(io_dir).staged();
    let sandbox = Sandbox::launch(world.shared.clone(), spec).await.unwrap();
    let run = sandbox.run(Script::new("x")).await.unwrap();
    let options = FinishOptions { commit: CommitPolicy::Always, ..FinishOptions::default() };
    let end = sandbox.finish(options, &run.outcome).await.unwrap().unwrap();
    assert!(end.changes.committed, "{:?}", end.changes);
    assert_eq!(std::fs::read_to_string(io_dir.join("new")).unwrap(), "content");
    sandbox
}

#[tokio::test]
async fn commit_waits_for_the_end_of_the_container_and_not_for_its_removal() {
    let place = tempfile::tempdir().unwrap();
    let world = staging(place.path(), None, async |mut agent: Scripted| agent.rest().await);
    let sandbox = commit_in(&world, &place.path().join("io")).await;
    let calls = world.fake.calls();
    assert!(calls.contains(&"wait") && !calls.contains(&"remove"), "{calls:?}");
    sandbox.release().await.unwrap();
    let calls = world.fake.calls();
    assert_eq!(calls.iter().filter(|&&call| call == "begin_removal").count(), 1);
    assert!(!calls.contains(&"remove"), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn commit_waits_for_the_removal_of_a_container_whose_end_the_engine_does_not_report() {
    let place = tempfile::tempdir().unwrap();
    let world = staging(place.path(), Some("wait"), async |mut agent: Scripted| agent.rest().await);
    let sandbox = commit_in(&world, &place.path().join("io")).await;
    assert!(world.fake.calls().contains(&"remove"));
    sandbox.release().await.unwrap();
    world.assert_removed().await;
}

#[tokio::test(start_paused = true)]
async fn commit_asks_an_agent_that_does_not_end_only_once() {
    let place = tempfile::tempdir().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let world = staging(place.path(), None, async move |mut agent: Scripted| {
        while let Some((id, request)) = agent.agent.request().await {
            match request {
                Request::Run(_) => agent.returned(id, "null").await,
                Request::Shutdown(_) => _ = count.fetch_add(1, Ordering::Relaxed),
                other => panic!("{other:?}"),
            }
        }
    });
    let _sandbox = commit_in(&world, &place.path().join("io")).await;
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    world.assert_removed().await;
}
