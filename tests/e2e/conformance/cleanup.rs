//! Nothing stays behind, for every end of a run.

use std::process::Child;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use sandbox_api::operation::{Exists, Write};
use sandbox_api::{Outcome, SandboxSpec, Script};
use sandbox_protocol::limits::{HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT};
use serde_json::{Value, json};

use crate::engine::engine;
use crate::fixture::{Fixture, eventually, files_below, spawn, wait};
use crate::library::Guest;

pub const LOOP: &str =
    "print('started') io.open('f', 'w'):write('x'):close() pcall(io.open, '/no') while true do end";

/// Starts a run that loops, and waits until its script has written, and has said so.
pub fn looping(place: &Fixture, args: &[&str]) -> Child {
    let script = place.write("loop.luau", LOOP);
    // Some loop for a quarter of a minute: other tests need the processors.
    let mut all = vec!["run", "--timeout", "3m", "--audit", "audit", "--cpus", "0.2"];
    all.extend(args);
    all.push(script.to_str().unwrap());
    let child = spawn(place.command(all));
    // What was said before the refusal has arrived too: a helper that is killed takes with it what
    // is still on its way.
    eventually("the script is refused a path", || {
        let audit = std::fs::read_to_string(place.path("audit")).ok()?;
        audit.contains("path_escape").then_some(())
    });
    child
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn ctrl_c_cancels_reports_and_cleans_up() {
    let place = Fixture::new();
    let child = looping(&place, &["--json"]);
    signal(&child, Signal::INT);
    let document = place.document(&wait(child));
    assert_eq!(document["status"], "cancelled", "{document:#}");
    assert_eq!(document["exit_code"], 130);
    assert_eq!(document["logs"], json!(["started"]));
    assert_eq!(document["files_touched"][0]["name"], "f");
}

#[test]
fn sigterm_cancels_with_143() {
    let place = Fixture::new();
    let child = looping(&place, &[]);
    signal(&child, Signal::TERM);
    wait(child).assert_code(143);
}

#[test]
fn sighup_cancels_with_129_unless_it_was_ignored_at_the_start() {
    // The test runner may ignore it too, so both cases are set up.
    for (disposition, sent, code) in [
        ("--default-signal=HUP", &[Signal::HUP][..], 129),
        ("--ignore-signal=HUP", &[Signal::HUP, Signal::TERM], 143),
    ] {
        let place = Fixture::new();
        let script = place.write("loop.luau", LOOP);
        let args = ["run", "--timeout", "60s", script.to_str().unwrap()];
        let child = spawn(place.command_with_signals(disposition, args));
        eventually("the script writes", || place.path("sandbox-files/f").exists().then_some(()));
        for &sent in sent {
            signal(&child, sent);
        }
        wait(child).assert_code(code);
    }
}

#[test]
fn a_container_killed_from_outside_is_killed_not_ok() {
    let place = Fixture::new();
    let child = looping(&place, &["--json"]);
    let containers = eventually("the container is listed", || {
        let containers = place.containers();
        (!containers.is_empty()).then_some(containers)
    });
    engine().kill(&containers[0]);
    let document = place.document(&wait(child));
    assert_eq!(document["status"], "killed", "{document:#}");
    assert_eq!(document["exit_code"], 137);
    assert_eq!(document["logs"], json!(["started"]));
    assert_eq!(document["files_touched"], json!([{"name": "f", "op": "write", "bytes": 1}]));
}

#[test]
fn a_killed_controller_leaves_an_agent_that_ends_and_the_next_run_removes_it() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let mut child = looping(&place, &[]);
    let containers = place.containers();
    assert_eq!(containers.len(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    if engine().removes_by_itself() {
        eventually("everything goes with its helper", || {
            (place.containers().is_empty() && engine().remains(&place).is_empty()).then_some(())
        });
        return;
    }
    eventually("the agent ends with its stdin", || {
        (!engine().is_running(&containers[0])).then_some(())
    });
    // Who only looks removes nothing.
    let left = |key: &str, args: &[&str]| {
        let ended = place.sandboxctl(args);
        let document: Value = serde_json::from_str(&ended.assert_code(0).stdout).unwrap();
        let listed = if key.is_empty() { &document } else { &document[key] };
        let listed = listed.as_array().unwrap().iter();
        let ours: Vec<_> = listed.filter(|it| it["container"] == *containers[0]).collect();
        assert_eq!(ours.len(), 1, "{args:?}: {document:#}");
        assert_eq!(ours[0]["state"], "leftover", "{args:?}");
    };
    left("", &["ps", "--json"]);
    left("removed", &["gc", "--dry-run", "--json"]);
    assert_eq!(place.containers(), containers);
    place.run_json("return 1", &["--no-io"]);
    eventually("nothing is left", || place.containers().is_empty().then_some(()));
}

#[test]
fn controller_that_is_stopped_loses_its_agent() {
    let place = Fixture::new();
    let child = looping(&place, &["--json"]);
    let containers = place.containers();
    assert_eq!(containers.len(), 1);
    // Its descriptors stay open, and nothing ever comes on them.
    signal(&child, Signal::STOP);
    eventually("the agent ends", || (!engine().is_running(&containers[0])).then_some(()));
    signal(&child, Signal::CONT);
    let document = place.document(&wait(child));
    assert_eq!(document["status"], "agent_lost", "{document:#}");
    let message = document["error"]["message"].as_str().unwrap();
    assert!(message.contains("the controller has sent nothing for 15s"), "{document:#}");
    assert_eq!(document["logs"], json!(["started"]));
    assert_eq!(document["files_touched"], json!([{"name": "f", "op": "write", "bytes": 1}]));
}

#[test]
fn sandbox_outlives_a_runtime_that_is_not_polled() {
    // A program that waits for each call by itself: between two of them no task goes on.
    let guest = Guest::in_one_thread(|spec| spec);
    let silent = Instant::now();
    let longer = HEARTBEAT_TIMEOUT + 2 * HEARTBEAT_INTERVAL;
    eventually("an agent would have ended", || (silent.elapsed() > longer).then_some(()));
    let result = guest.wait(guest.sandbox.run(Script::new("return 1"))).unwrap();
    assert!(matches!(result.outcome, Outcome::Ok { .. }), "{result:#?}");
}

#[test]
fn sandboxes_outlive_a_machine_that_is_busy() {
    let guest = Guest::new();
    let writing = guest.library.launch(SandboxSpec::new().io_dir(guest.place.path("written")));
    let began = Instant::now();
    let longer = HEARTBEAT_TIMEOUT + 2 * HEARTBEAT_INTERVAL;
    let is_over = || began.elapsed() > longer;
    let processors = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 0..2 * processors {
            scope.spawn(|| while !is_over() {});
        }
        let content = vec![b'x'; 8 << 20];
        // A fast machine would write more than it may.
        for _ in 0..100 {
            if !is_over() {
                let write = writing.write(Write::new("large"), &content);
                guest.wait(write).unwrap();
            }
        }
        while !is_over() {
            guest.wait(writing.call(Exists::new("large"))).unwrap();
        }
    });
    for sandbox in [&guest.sandbox, &writing] {
        let result = guest.wait(sandbox.run(Script::new("return 1"))).unwrap();
        assert!(matches!(result.outcome, Outcome::Ok { .. }), "{result:#?}");
    }
}

#[test]
fn a_live_instance_keeps_its_container_while_another_sweeps() {
    let place = Fixture::new();
    let child = looping(&place, &["--json"]);
    place.sandboxctl(["gc"]).assert_code(0);
    let containers = place.containers();
    assert_eq!(containers.len(), 1);
    let listed = place.sandboxctl(["ps", "--json"]);
    let listed: Value = serde_json::from_str(&listed.assert_code(0).stdout).unwrap();
    let mut listed = listed.as_array().unwrap().iter();
    let ours = listed.find(|it| it["container"] == *containers[0]).expect("it is listed");
    assert_eq!(ours["state"], "running");
    signal(&child, Signal::INT);
    assert_eq!(place.document(&wait(child))["status"], "cancelled");
}

#[test]
fn a_killed_controllers_stdin_input_goes_with_the_next_command() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    place.write("loop.luau", LOOP);
    let mut command = place.command(["run", "--timeout", "60s", "--in", "-:x", "loop.luau"]);
    command.stdin(std::fs::File::open(place.write("secret", "secret")).unwrap());
    let mut child = spawn(command);
    eventually("the script writes", || place.path("sandbox-files/f").exists().then_some(()));
    let spooled = || {
        files_below(&place.state()).iter().any(|file| file.to_string_lossy().contains(".spool/"))
    };
    assert!(spooled());
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the next command removes container and input", || {
        place.sandboxctl(["gc"]).assert_code(0);
        (place.containers().is_empty() && !spooled()).then_some(())
    });
}
