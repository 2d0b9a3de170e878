//! A controller that is killed at any point leaves nothing for long: the next command removes what
//! is left, and only that.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::engine::{Engine, engine};
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually, files_below, sandboxctl, spawn, wait};
use crate::shared::cases;

const SCRIPT: &str = "io.open('f', 'w'):write('x'):close() print(io.open('/in/x'):read('a'))";

/// Every point of a run, in its order. What is made is the longest list there is: an io dir, an
/// input from stdin, a container.
const POINTS: &[&str] = &[
    "Registered", "Opened", "Before(Image)", "After(Image)", "Before(Create)", "After(Create)",
    "Before(Attach)", "After(Attach)", "Before(Start)", "After(Start)", "Greeted", "Requested",
    "Answered", "Before(Remove)", "After(Remove)", "Closed",
];

/// The points of a run's end where the container has to be asked how it ended.
const POINTS_WITHOUT_AN_ANSWER: &[&str] =
    &["Before(Exit)", "After(Exit)", "Before(Evidence)", "After(Evidence)"];

/// A run that is held at `point`.
fn held_at(place: &Fixture, point: &str, args: &[&str]) -> Child {
    held_in(place, SCRIPT, point, args)
}

/// A run of `script` that is held at `point`.
fn held_in(place: &Fixture, script: &str, point: &str, args: &[&str]) -> Child {
    let reached = place.home().join(point);
    place.write("script.luau", script);
    let mut command = Command::new(sandboxctl());
    command.args(["run", "--timeout", "60s", "--in", "-:x"]).args(args).arg("script.luau");
    place.equip(&mut command);
    command.env("SANDBOX_FAILPOINT", &reached);
    command.stdin(File::open(place.write("input", "secret")).unwrap());
    let child = spawn(command);
    eventually(point, || reached.exists().then_some(()));
    std::fs::remove_file(reached).unwrap();
    child
}

/// Only the lock file of the dead controller is left for a while.
fn assert_nothing_is_left(place: &Fixture, at: &str) {
    eventually(&format!("nothing is left of a controller killed at {at}"), || {
        place.sandboxctl(["gc"]).assert_code(0);
        (place.containers().is_empty() && engine().remains(place).is_empty()).then_some(())
    });
    let left: Vec<_> = files_below(&place.state())
        .into_iter()
        .filter(|file| {
            let name = file.file_name().unwrap().to_string_lossy();
            !name.ends_with(".lock") && !name.starts_with("image-")
        })
        .collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new(), "{at}");
    // The io dir was made by the dead one: it goes, unless the script has left something in it.
    let io_dir = place.path("sandbox-files");
    let files = files_below(&io_dir);
    assert!(!io_dir.exists() || files == [io_dir.join("f")], "{at}: {files:?}");
    _ = std::fs::remove_dir_all(io_dir);
}

#[test]
fn a_controller_that_is_killed_at_any_point_leaves_nothing_that_the_next_does_not_remove() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    place.run_json("return 1", &["--no-io"]);
    eventually("it is removed in the background", || place.containers().is_empty().then_some(()));
    // Docker takes five seconds for each: for a commit every other one, from the second.
    let step = if engine() == Engine::Docker { cases(2, 1) } else { 1 };
    for point in POINTS.iter().skip(step - 1).step_by(step) {
        let mut child = held_at(&place, point, &[]);
        let is_asked = *point == "After(Remove)" && has(Feature::RemovalFinished);
        if is_asked || *point == "Closed" {
            // The engine was asked for the removal, and does it by itself.
            eventually(point, || place.containers().is_empty().then_some(()));
        }
        // While it lives, another controller's sweep leaves it alone.
        let before = place.containers();
        place.sandboxctl(["gc"]).assert_code(0);
        assert_eq!(place.containers(), before, "{point}");
        // From the second point to the removal there is an io dir that it made.
        let is_made = place.path("sandbox-files").exists();
        assert_eq!(is_made, *point != "Registered", "{point}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_nothing_is_left(&place, point);
    }
}

#[test]
fn a_controller_that_is_killed_while_it_asks_how_a_container_ended_leaves_nothing_either() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    place.run_json("return 1", &["--no-io"]);
    // The kernel ends its agent.
    let eat = "local t = {} for i = 1, 1e9 do t[i] = string.rep('x', 1e6) .. i end";
    for point in POINTS_WITHOUT_AN_ANSWER {
        let limits = ["--memory", "32MiB", "--vm-memory", "512MiB"];
        let mut child = held_in(&place, eat, point, &limits);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_nothing_is_left(&place, point);
    }
}

#[test]
fn a_run_begins_with_the_removal_of_what_was_left() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let mut child = held_at(&place, "After(Create)", &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    // Never started: a container that only was made goes too.
    assert!(engine().removes_by_itself() || place.containers().len() == 1);
    place.run_json("return 1", &["--no-io"]);
    assert_nothing_is_left(&place, "After(Create)");
}

#[test]
fn two_ctrl_c_end_a_command_at_any_point_and_leave_nothing_behind() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    for point in
        ["Before(Create)", "After(Create)", "After(Start)", "Greeted", "Requested", "Answered"]
    {
        let mut child = held_at(&place, point, &[]);
        // One asks, another insists; a third and a fourth end what a held point holds up.
        let ended = eventually("the command ends", || {
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
            child.try_wait().unwrap()
        });
        assert_eq!(ended.code(), Some(130), "{point}");
        assert_nothing_is_left(&place, point);
    }
}

#[test]
fn an_agent_ends_with_its_controller_without_a_sweep() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    for point in ["Greeted", "Requested"] {
        let mut child = held_at(&place, point, &[]);
        let containers = place.containers();
        assert_eq!(containers.len(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("the agent ends", || (!engine().is_running(&containers[0])).then_some(()));
        assert_nothing_is_left(&place, point);
    }
}

/// A terminal, and the command in it.
struct Terminal {
    keyboard: File,
    child: Child,
}

impl Terminal {
    /// Runs the command as a login shell does: the leader of a session that has the terminal.
    fn run(place: &Fixture, args: &[&str]) -> Self {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let screen = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let run = place.command(args);
        let mut command = Command::new("setsid");
        // It is no group's leader, so that it becomes the command.
        command.arg("--ctty").arg(run.get_program()).args(run.get_args());
        place.equip(&mut command);
        let stdio = || Stdio::from(OwnedFd::from(screen.try_clone().unwrap()));
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = command.spawn().unwrap();
        Self { keyboard: File::from(keyboard), child }
    }
}

#[test]
fn ctrl_c_in_a_terminal_reaches_the_whole_process_group_and_cleans_up() {
    let place = Fixture::new();
    place.write("loop.luau", "io.open('f', 'w'):write('x'):close() while true do end");
    let mut terminal = Terminal::run(&place, &["run", "--timeout", "60s", "loop.luau"]);
    eventually("the script writes", || place.path("sandbox-files/f").exists().then_some(()));
    // The key, which the terminal turns into a signal to everybody in the foreground.
    terminal.keyboard.write_all(b"\x03").unwrap();
    let ended = eventually("the command ends", || terminal.child.try_wait().unwrap());
    assert_eq!(ended.code(), Some(130));
    let shown = super::fs::all_of(terminal.keyboard);
    assert!(shown.contains("interrupted"), "{shown}");
    assert_eq!(place.read("sandbox-files/f"), "x");
}

#[test]
fn another_live_instance_keeps_its_sandbox_while_a_dead_ones_is_reaped() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let mut dead = held_at(&place, "Greeted", &["--io-dir", "dead"]);
    let live = held_at(&place, "Greeted", &["--io-dir", "live"]);
    assert_eq!(place.containers().len(), 2);
    dead.kill().unwrap();
    dead.wait().unwrap();
    eventually("only the live one's is left", || {
        place.sandboxctl(["gc"]).assert_code(0);
        (place.containers().len() == 1).then_some(())
    });
    let listed = place.sandboxctl(["ps", "--json"]);
    let listed: Value = serde_json::from_str(&listed.assert_code(0).stdout).unwrap();
    let ours = place.containers();
    let states: Vec<_> =
        listed.as_array().unwrap().iter().filter(|it| it["container"] == *ours[0]).collect();
    assert_eq!((states.len(), &states[0]["state"]), (1, &"running".into()), "{listed:#}");
    let mut live = live;
    live.kill().unwrap();
    wait(live);
    assert_nothing_is_left(&place, "Greeted");
}
