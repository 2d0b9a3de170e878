//! Launches of the embedded engine that are killed at any point, or that a kernel is too old for; and
//! how a helper ends.

use std::process::Child;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};

use crate::engine::{engine, helpers};
use crate::fixture::{Fixture, eventually, spawn, wait};
use crate::rootfs::Rootfs;

/// `controller/engine/helper/src/failpoint.rs` says what each is.
const POINTS: [&str; 8] =
    ["Prepared", "Received", "Grouped", "Cloned", "Entered", "Mounted", "Pivoted", "Executed"];

/// A run of a sandbox with programs, whose launch is held at a point.
fn held(place: &Fixture, point: &str) -> Child {
    let root = Rootfs::empty().file("etc/motd", 0o644, "hello");
    let folder = place.path("root");
    std::fs::create_dir(&folder).unwrap();
    root.write_to(&folder);
    place.write("one.luau", "return 1");
    let reached = place.path(&format!("Launch({point})"));
    let mut command = place.command(["run", "--json", "--no-io", "--rootfs", "root", "one.luau"]);
    command.env("SANDBOX_FAILPOINT", &reached);
    let child = spawn(command);
    eventually("the launch is there", || reached.exists().then_some(()));
    child
}

/// The process of a container that is not the agent yet has the helper's command line: the helper is
/// the controller's child.
fn helper_of(place: &Fixture, controller: &Child) -> Pid {
    let parent = format!("PPid:\t{}\n", controller.id());
    let is_helper = |pid: &Pid| {
        std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))
            .is_ok_and(|status| status.contains(&parent))
    };
    helpers(place).into_iter().find(is_helper).expect("it is held")
}

fn assert_nothing_is_left(place: &Fixture, point: &str) {
    eventually(&format!("nothing is left of a launch that was killed at {point}"), || {
        place.sandboxctl(["gc"]).assert_code(0);
        (place.containers().is_empty() && engine().remains(place).is_empty()).then_some(())
    });
}

#[test]
fn a_helper_that_is_killed_at_any_point_of_a_launch_leaves_nothing() {
    for point in POINTS {
        let place = Fixture::new();
        let child = held(&place, point);
        place.containers();
        kill_process(helper_of(&place, &child), Signal::KILL).unwrap();
        let ended = wait(child);
        ended.assert_code(125);
        // The container's process does not go on without its helper.
        eventually("it has died too", || helpers(&place).is_empty().then_some(()));
        assert_nothing_is_left(&place, point);
    }
}

#[test]
fn a_controller_that_is_killed_at_any_point_of_a_launch_leaves_nothing() {
    for point in POINTS {
        let place = Fixture::new();
        place.expect_a_dead_instance();
        let mut child = held(&place, point);
        place.containers();
        child.kill().unwrap();
        child.wait().unwrap();
        place.write(&format!("Launch({point}).go"), "");
        assert_nothing_is_left(&place, point);
    }
}

#[test]
fn a_kernel_without_a_system_call_is_answered_with_words() {
    for (call, step) in [
        ("clone3", "cannot make a process in new namespaces"),
        ("fsopen", "cannot make a file system of the kind tmpfs"),
        ("mount_setattr", "cannot restrict the mount at /io"),
    ] {
        let place = Fixture::new();
        place.write("one.luau", "return 1");
        let mut command = place.command(["run", "one.luau"]);
        command.env("SANDBOX_FAILPOINT", place.path(&format!("Absent({call})")));
        let ended = wait(spawn(command));
        ended.assert_code(125);
        ended.assert_stderr_has(step);
        ended.assert_stderr_has("the embedded engine needs Linux 5.12 or newer");
        assert_nothing_is_left(&place, call);
    }
}

#[test]
fn a_helper_whose_controller_does_not_wait_for_it_succeeds() {
    // Helpers that outlive their controller become this process's children.
    set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let place = Fixture::new();
    place.write("one.luau", "return 1");
    for command in [&["run", "--no-io", "one.luau"][..], &["ps"]] {
        place.sandboxctl(command).assert_code(0);
        while let Ok(Some((pid, status))) = waitpid(None, WaitOptions::empty()) {
            assert_eq!(status.exit_status(), Some(0), "{pid:?} of {command:?}");
        }
    }
}
