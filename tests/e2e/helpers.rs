//! The embedded engine's helpers: killed, orphaned, mistaken for somebody else, and not needed.

use std::path::PathBuf;
use std::process::Command;

use rustix::fs::SealFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::agent::Actor;
use crate::conformance::cleanup::{LOOP, looping};
use crate::engine::{engine, first_process, helpers};
use crate::fixture::{
    Fixture, eventually, files_below, finish, sandboxctl, spawn, wait, workspace,
};

fn assert_nothing_is_left(place: &Fixture) {
    eventually("nothing is left", || {
        place.sandboxctl(["gc"]).assert_code(0);
        (place.containers().is_empty() && engine().remains(place).is_empty()).then_some(())
    });
}

#[test]
fn a_helper_that_is_killed_costs_its_run_alone() {
    let place = Fixture::new();
    let child = looping(&place, &["--json"]);
    assert_eq!(place.containers().len(), 1);
    let helpers = helpers(&place);
    assert!(!helpers.is_empty());
    for helper in helpers {
        kill_process(helper, Signal::KILL).unwrap();
    }
    let document = place.document(&wait(child));
    // Its container dies with it: killed by another process, or for an unknown reason.
    let status = document["status"].as_str().unwrap();
    assert!(["killed", "error", "agent_lost"].contains(&status), "{document:#}");
    assert_eq!(document["logs"], json!(["started"]));
    assert_eq!(document["files_touched"], json!([{"name": "f", "op": "write", "bytes": 1}]));
    place.run_json("return 1", &[]);
    assert_nothing_is_left(&place);
    place.expect_a_dead_instance();
}

#[test]
fn a_controller_and_its_helpers_that_are_killed_at_once_leave_nothing_that_the_next_does_not_remove()
 {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let mut child = looping(&place, &["--json"]);
    assert_eq!(place.containers().len(), 1);
    // Stopped first, so that none of them notices another's end.
    let all: Vec<Pid> = helpers(&place).into_iter().chain([Pid::from_child(&child)]).collect();
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in &all {
            kill_process(*pid, signal).unwrap();
        }
    }
    child.wait().unwrap();
    assert_nothing_is_left(&place);
}

#[test]
fn a_sandbox_that_runs_as_root_can_write_to_its_io_dir_alone() {
    let actor = Actor::new();
    let io_dir = actor.place.path("sandbox-files");
    std::os::unix::fs::chown(io_dir, Some(0), Some(0)).unwrap();
    let played = actor.play("probe", &[]);
    assert_eq!(played.document["status"], "ok", "{:#?}", played.ended);
    let seen = &played.document["result"];
    assert!(seen["status"].as_str().unwrap().contains("Uid:\t0\t0\t0\t0\n"), "{seen:#}");
    assert_eq!(seen["writable"], json!([]));
    let dev = seen["mountinfo"].as_str().unwrap().lines().find(|line| line.contains(" /dev "));
    assert!(dev.unwrap().contains(" ro,nosuid,noexec"), "{dev:?}");
}

#[test]
fn a_helper_keeps_no_descriptors_of_its_parent() {
    let place = Fixture::new();
    let held = place.write("held", "");
    place.write("loop.luau", LOOP);
    // A descriptor that is not closed on exec, as a program that embeds the engine may have.
    let mut command = Command::new("sh");
    let script = "exec 9<\"$1\" && shift && exec \"$@\"";
    command.args(["-c", script, "sh"]).arg(&held).arg(sandboxctl());
    command.args(["run", "--json", "--timeout", "60s", "loop.luau"]);
    place.equip(&mut command);
    let mut child = spawn(command);
    let written = || std::fs::read(place.path("sandbox-files/f")).is_ok_and(|it| it == b"x");
    eventually("the script has written", || written().then_some(()));
    let helpers = helpers(&place);
    assert!(!helpers.is_empty());
    for helper in helpers {
        let folder = format!("/proc/{}/fd", helper.as_raw_nonzero());
        let open = std::fs::read_dir(folder).unwrap().flatten();
        let open: Vec<_> = open.flat_map(|fd| std::fs::read_link(fd.path())).collect();
        assert!(!open.contains(&held), "{open:?}");
    }
    place.expect_a_dead_instance();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_nothing_is_left(&place);
}

#[test]
fn helper_and_agent_are_executed_from_sealed_memory_and_no_file_of_the_host() {
    let place = Fixture::new();
    let mut child = looping(&place, &["--json"]);
    let executed = |pid: Pid, name: &str| {
        let path = format!("/proc/{}/exe", pid.as_raw_nonzero());
        let exe = std::fs::read_link(&path).unwrap();
        assert_eq!(exe.to_str().unwrap(), format!("/memfd:{name} (deleted)"));
        let program = std::fs::File::open(path).unwrap();
        let seals = rustix::fs::fcntl_get_seals(&program).unwrap();
        let expected = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        assert!(seals.contains(expected), "{seals:?}");
    };
    let helpers = helpers(&place);
    assert!(!helpers.is_empty());
    helpers.into_iter().for_each(|helper| executed(helper, "sandbox-helper"));
    let containers = place.containers();
    let agent = first_process(&containers[0]).expect("it runs");
    executed(agent, "sandbox-agent");
    // Nothing is there that somebody could replace.
    let is_program =
        |file: &PathBuf| std::fs::read(file).is_ok_and(|content| content.starts_with(b"\x7fELF"));
    let files = files_below(&place.data());
    assert_eq!(files.into_iter().filter(is_program).collect::<Vec<_>>(), Vec::<PathBuf>::new());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    child.wait().unwrap();
    assert_nothing_is_left(&place);
}

#[test]
fn helpers_that_are_not_needed_end_with_their_controller() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    for command in [&["ps"][..], &["gc"], &["run", "--no-io", "one.luau"]] {
        place.write("one.luau", "return 1");
        place.sandboxctl(command).assert_code(0);
        eventually("no helper is left", || helpers(&place).is_empty().then_some(()));
    }
}

#[test]
fn on_a_machine_without_docker_auto_takes_it_and_says_so() {
    let place = Fixture::new();
    let report = workspace().join("examples/report.luau");
    let run = |args: &[&str]| {
        // No socket is there: a mount namespace whose /run is empty.
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs tmpfs /run && exec \"$0\" \"$@\"";
        command.args(["--mount", "sh", "-c", script]).arg(sandboxctl()).args(args);
        place.equip(&mut command);
        command.env_remove("SANDBOXCTL_ENGINE_KIND").env_remove("DOCKER_HOST");
        finish(command)
    };
    let ended = run(&["run", "--json", report.to_str().unwrap()]);
    let document = place.document(ended.assert_code(0));
    assert_eq!(document["engine"], "embedded", "{document:#}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:#?}");
    assert!(place.path("sandbox-files/sales.csv").exists());
    let quiet = run(&["run", "--quiet", report.to_str().unwrap()]);
    assert_eq!(quiet.assert_code(0).stderr, "");
}

#[test]
fn without_root_it_is_125_with_what_to_do_instead() {
    let place = Fixture::new();
    place.write("one.luau", "return 1");
    // In a separate user namespace, without a root user.
    let mut command = Command::new("unshare");
    command.arg("--user").arg(sandboxctl()).args(["run", "one.luau"]);
    place.equip(&mut command);
    let ended = finish(command);
    ended.assert_code(125);
    assert!(ended.stderr.contains("it needs root"), "{ended:#?}");
    assert!(ended.stderr.contains("hint: run it as root, or without root: rootless"), "{ended:#?}");
    assert!(!place.path("sandbox-files").exists());
}
