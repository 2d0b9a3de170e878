//! The warm pool: sandboxes that are started ahead, each for one launch.

use std::time::Duration;

use sandbox_api::{Limits, Outcome, SandboxSpec, Script, StartKind};
use sandbox_controller::{PoolConfig, Sandbox};
use serde_json::{Value, json};

use super::service::Service;
use crate::engine::engine;
use crate::engines::{Feature, Kind, has, kind};
use crate::fixture::{Fixture, eventually, files_below};
use crate::library::Library;
use crate::rootfs::{Provided, Rootfs};

fn spec() -> SandboxSpec {
    SandboxSpec::new().fresh_io_dir()
}

/// A library whose pool has this many sandboxes.
fn library_with_pool(place: &Fixture, size: usize) -> Library {
    let library = Library::new(place);
    let controller = library.controller();
    library.wait(async {
        controller.pool(PoolConfig { size, ..PoolConfig::default() });
        controller.prewarm(spec()).await.unwrap();
        controller.pool_settled().await;
    });
    library
}

fn start(sandbox: &Sandbox) -> StartKind {
    sandbox.launch_info().start
}

/// How often pooled sandboxes may not answer a claim in its time, on a busy machine.
const MISSES: u64 = 20;

/// A launch that a pooled sandbox serves.
#[track_caller]
fn warm(library: &Library) -> Sandbox {
    for _ in 0..=MISSES {
        let sandbox = library.launch(spec());
        if start(&sandbox) == StartKind::Warm {
            return sandbox;
        }
        library.wait(sandbox.close()).unwrap();
        library.wait(library.controller().pool_settled());
    }
    panic!("{:?}", library.controller().pool_stats());
}

fn run(library: &Library, sandbox: &Sandbox, source: &str) -> String {
    let run = library.wait(sandbox.run(Script::new(source))).unwrap();
    match &run.outcome {
        Outcome::Ok { result } => result.get().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_pooled_sandbox_serves_one_launch_with_files_and_limits_of_its_own() {
    let place = Fixture::new();
    let library = library_with_pool(&place, 2);
    assert_eq!(place.containers().len(), 2);
    let (mut seen, mut misses) = (Vec::new(), 0);
    while seen.len() < 4 {
        let timeout = Duration::from_secs(20 + seen.len() as u64);
        let limits = Limits { timeout, ..Limits::default() };
        let sandbox = library.launch(spec().limits(limits));
        if start(&sandbox) == StartKind::Cold {
            // It did not answer a claim in its time: the machine is busy.
            misses += 1;
            assert!(misses <= MISSES, "{:?}", library.controller().pool_stats());
            library.wait(sandbox.close()).unwrap();
            library.wait(library.controller().pool_settled());
            continue;
        }
        let files = "local n = #fs.list('.') fs.write('mark', 'x') return n";
        assert_eq!(run(&library, &sandbox, files), "0", "it has what another left");
        let result = library.wait(sandbox.run(Script::new("return 1"))).unwrap();
        assert_eq!(result.limits, limits);
        seen.push(sandbox.container_id().to_owned());
        library.wait(sandbox.close()).unwrap();
        library.wait(library.controller().pool_settled());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4);
    let stats = library.controller().pool_stats().unwrap();
    assert_eq!((stats.hits, stats.misses, stats.parked), (4, misses, 2));
    // Closed with two unclaimed sandboxes: the place is clean.
}

#[test]
fn launch_of_another_kind_or_beyond_the_pool_is_cold_at_once() {
    let place = Fixture::new();
    let library = library_with_pool(&place, 1);
    let other = library.launch(spec().mount_path("/elsewhere"));
    assert_eq!(start(&other), StartKind::Cold);
    assert_eq!(run(&library, &other, "return fs.exists('/elsewhere')"), "\"directory\"");
    let named = library.launch(SandboxSpec::new().io_dir(place.path("out")));
    assert_eq!(start(&named), StartKind::Cold);
    let burst = (0..=MISSES).find_map(|_| {
        library.wait(library.controller().pool_settled());
        let burst = library.wait(async {
            let launch = || library.controller().launch(spec());
            tokio::join!(launch(), launch(), launch())
        });
        let burst = [burst.0.unwrap(), burst.1.unwrap(), burst.2.unwrap()];
        assert!(burst.iter().any(|sandbox| start(sandbox) == StartKind::Cold));
        burst.iter().any(|sandbox| start(sandbox) == StartKind::Warm).then_some(burst)
    });
    let burst = burst.expect("the pooled sandbox serves one of them");
    for sandbox in &burst {
        assert_eq!(run(&library, sandbox, "return 1"), "1");
    }
}

#[test]
fn pooled_sandbox_that_is_killed_is_replaced() {
    let place = Fixture::new();
    let library = library_with_pool(&place, 1);
    let before = place.containers();
    engine().kill(&before[0]);
    let controller = library.controller();
    eventually("it is replaced", || {
        let stats = controller.pool_stats().unwrap();
        (stats.dead == 1 && stats.parked == 1).then_some(())
    });
    let sandbox = warm(&library);
    assert_eq!(run(&library, &sandbox, "return 1"), "1");
}

#[test]
fn pooled_sandboxes_of_a_killed_program_are_removed_by_the_next() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let mut command = place.command(["tools", "--stdio", "--pool", "2"]);
    command.stdin(std::process::Stdio::piped());
    let mut child = crate::fixture::spawn(command);
    eventually("two are ready", || (place.containers().len() == 2).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("nothing is left", || {
        place.sandboxctl(["gc"]).assert_code(0);
        (place.containers().is_empty() && engine().remains(&place).is_empty()).then_some(())
    });
    assert_eq!(files_below(&place.scratch()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn kept_io_dir_of_a_pooled_sandbox_outlives_it() {
    let place = Fixture::new();
    let library = library_with_pool(&place, 1);
    let sandbox = warm(&library);
    run(&library, &sandbox, "fs.write('out.csv', 'a,b') return 1");
    // The library's scratch directory is below its state.
    let kept = place.state().join("kept");
    sandbox.keep_io_dir(&kept).unwrap();
    assert_eq!(run(&library, &sandbox, "return fs.read('out.csv')"), "\"a,b\"");
    library.wait(sandbox.close()).unwrap();
    assert_eq!(std::fs::read_to_string(kept.join("out.csv")).unwrap(), "a,b");
    std::fs::remove_dir_all(kept).unwrap();
}

#[test]
fn answered_command_does_not_wait_for_the_removal_which_happens_all_the_same() {
    let place = Fixture::new();
    for _ in 0..3 {
        let args = ["--audit", "audit.log"];
        let id = place.run_json("return 1", &args)["id"].as_str().unwrap().to_owned();
        let audit = place.read("audit.log");
        let last: Value = serde_json::from_str(audit.lines().last().unwrap()).unwrap();
        // Podman may give a request up with its client: it is waited for there.
        let outcome = if kind() == Kind::Podman { "ok" } else { "requested" };
        assert_eq!((&last["operation"], &last["outcome"]), (&json!("close"), &json!(outcome)));
        eventually("its container is removed in the background", || {
            let is_left = |container: &String| container.contains(&id);
            (!place.containers().iter().any(is_left) && engine().remains(&place).is_empty())
                .then_some(())
        });
    }
}

#[test]
fn sandbox_of_a_preparation_has_its_process_before_it_is_asked_for() {
    if !has(Feature::KeptProcesses) {
        return;
    }
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let (flags, image) = match &provided {
        Provided::Image(name) => (["--allowed-image", name], format!("image = '{name}'\n")),
        _ => ([&*root[0], &*root[1]], String::new()),
    };
    let command = "['sh', '-c', 'echo loaded; exec cat']";
    let prepared = format!(
        "[[pool.prepared]]\nname = 'echo'\n{image}command = {command}\n\
         ready = {{ text = 'loaded' }}\ncount = 1\n"
    );
    let config = place.home().join(".config/sandboxctl/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(config, prepared).unwrap();
    let service = Service::with(&place, &flags, &[]);
    let ask = |method: &str, path: &str, body: &Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, answer) = service.http(method, path, "", &body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        serde_json::from_str::<Value>(&answer).unwrap_or_default()
    };
    let mut ids = Vec::new();
    let mut create = |spec: Value| {
        let created = ask("POST", "/v1/sandboxes", &json!({ "spec": spec }));
        let path = format!("/v1/sandboxes/{}", created["id"].as_str().unwrap());
        let listed = ask("GET", &format!("{path}/processes?tag=echo"), &Value::Null);
        let process = listed["processes"][0].clone();
        assert_eq!((&process["id"], &process["state"]), (&json!(1), &json!("running")), "{listed}");
        let was_ready = process["started_at"].as_str() < created["created_at"].as_str();
        ids.push(path.clone());
        (path, was_ready)
    };
    let path = eventually("one is ready when it is asked for", || {
        let (path, was_ready) = create(json!({ "prepared": "echo" }));
        if !was_ready {
            ask("DELETE", &path, &Value::Null);
        }
        was_ready.then_some(path)
    });
    // It is not ready twice, and one of another kind is started with the same process.
    let (other, was_ready) = create(json!({ "prepared": "echo", "env": { "K": "v" } }));
    assert!(!was_ready);
    for (path, input) in [(&path, "one\n"), (&other, "other\n")] {
        let process = format!("{path}/processes/1");
        let (status, answer) = service.http("POST", &format!("{process}/stdin"), "", input);
        assert_eq!(status, 204, "{answer}");
        ask("POST", &format!("{process}/stdin/close"), &Value::Null);
        let (_, events) = service.http("GET", &format!("{process}/events?after=0"), "", "");
        assert!(events.contains("loaded") && events.contains(input.trim()), "{events}");
        ask("DELETE", path, &Value::Null);
    }
    ids.sort();
    let all = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), all, "none serves two");
    let (status, _) =
        service.http("POST", "/v1/sandboxes", "", r#"{"spec":{"prepared":"another"}}"#);
    assert_eq!(status, 422);
    service.stop();
}
