//! The embedded engine's helpers: killed, orphaned, mistaken for somebody else, and not needed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::fs::{Mode, SealFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::agent::Actor;
use crate::conformance::cleanup::{LOOP, looping};
use crate::conformance::exec_cli::Commands;
use crate::conformance::mounts::{HostMount, assert_refused};
use crate::engine::{engine, first_process, helpers};
use crate::fixture::{
    Ended, Fixture, eventually, files_below, finish, sandboxctl, spawn, wait, workspace,
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
        match kill_process(helper, Signal::KILL) {
            // One that was not needed ends when the other has.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => panic!("{error}"),
        }
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

/// What a helper and its container's first process execute, by their names.
fn executed(place: &Fixture) -> Vec<(&'static str, PathBuf)> {
    let helpers = helpers(place).into_iter().map(|pid| ("sandbox-helper", pid));
    let agent = first_process(&place.containers()[0]).expect("it runs");
    let all = helpers.chain([("sandbox-agent", agent)]);
    let all: Vec<_> = all
        .map(|(name, pid)| (name, format!("/proc/{}/exe", pid.as_raw_nonzero()).into()))
        .collect();
    assert!(all.len() > 1, "{all:?}");
    all
}

fn interrupt(place: &Fixture, mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    child.wait().unwrap();
    assert_nothing_is_left(place);
}

/// What `doctor` says of the programs.
fn executables(place: &Fixture) -> Value {
    let ended = place.sandboxctl(["doctor", "--json"]);
    let checks: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    checks.into_iter().find(|it| it["id"] == "executables").expect("it is checked")
}

#[test]
fn helper_and_agent_are_executed_from_the_store_and_no_file_that_root_can_write() {
    let place = Fixture::new();
    let child = looping(&place, &["--json"]);
    for (name, exe) in executed(&place) {
        // In a mount that is in no directory.
        assert_eq!(std::fs::read_link(&exe).unwrap(), PathBuf::from(format!("/{name}")));
        for options in [File::options().write(true), File::options().append(true)] {
            let refused = options.open(&exe).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{refused}");
        }
        let program = File::open(&exe).unwrap();
        let refused = rustix::fs::fchmod(&program, Mode::RWXU).unwrap_err();
        assert_eq!(refused, Errno::ROFS);
    }
    // Nothing is there that somebody could replace.
    let is_program =
        |file: &PathBuf| std::fs::read(file).is_ok_and(|content| content.starts_with(b"\x7fELF"));
    let files = files_below(&place.data());
    assert_eq!(files.into_iter().filter(is_program).collect::<Vec<_>>(), Vec::<PathBuf>::new());
    interrupt(&place, child);
}

#[test]
fn root_in_a_sandbox_reaches_no_program_that_the_next_one_executes() {
    let commands = Commands::new();
    let io_dir = commands.place.path("sandbox-files");
    std::fs::create_dir(&io_dir).unwrap();
    std::os::unix::fs::chown(&io_dir, Some(0), Some(0)).unwrap();
    let attack = r#"
        id -u
        for it in /proc/[0-9]*/exe /proc/self/exe /proc/[0-9]*/fd/* /proc/[0-9]*/map_files/*; do
            case $it in /proc/$$/fd/*|/proc/self/fd/*) continue;; esac
            (echo x >>$it) 2>/dev/null && echo "appended to $it"
            (chmod 777 $it) 2>/dev/null && echo "changed the mode of $it"
            (cp /bin/busybox $it) 2>/dev/null && echo "copied to $it"
        done
        for it in $(cut -d" " -f5 /proc/self/mountinfo); do
            mount -o remount,rw $it 2>/dev/null && echo "remounted $it"
            for name in sandbox-agent sandbox-helper; do
                [ -e $it/$name ] && echo "found $it/$name"
            done
        done
        grep -e /run/sandboxctl -e 'tmpfs sandboxctl ' /proc/self/mountinfo
        true"#;
    let io = ["--io-dir", io_dir.to_str().unwrap()];
    let ended = commands.shell(&io, attack);
    assert_eq!(ended.assert_code(0).stdout, "0\n", "{ended:#?}");
    let found = executables(&commands.place);
    assert_eq!(found["status"], "ok", "{found:#}");
    assert!(found["detail"].as_str().unwrap().ends_with(": unchanged"), "{found:#}");
    assert_eq!(commands.shell(&io, "echo next").assert_code(0).stdout, "next\n");
}

#[test]
fn store_of_programs_is_not_mounted_by_any_path() {
    let place = Fixture::new();
    place.write("one.luau", "return 1");
    let found = executables(&place);
    let detail = found["detail"].as_str().unwrap();
    let store =
        detail.split("read-only at ").nth(1).and_then(|rest| rest.strip_suffix(": unchanged"));
    let store = store.expect(detail);
    let folder = Path::new(store).parent().unwrap().to_str().unwrap();
    let bind = HostMount::bind(Path::new(store), place.home().join("view"));
    for path in [store, folder, bind.0.to_str().unwrap()] {
        let input = format!("{path}:x");
        for args in
            [&["run", "--in", &input, "one.luau"][..], &["run", "--io-dir", path, "one.luau"]]
        {
            assert_refused(&place.sandboxctl(args), "it is in the directory of programs");
        }
        let ended = place.sandboxctl(["exec", "--rootfs", path, "--", "/sandbox-agent"]);
        assert_refused(&ended, "it is in the directory of programs");
    }
}

/// Runs a script of the shell's, whose `$0` is `sandboxctl`, with a `/run` of its own, in which nothing is.
fn with_own_run(place: &Fixture, script: &str, variables: &[(&str, &Path)]) -> Ended {
    let mut command = Command::new("unshare");
    // Those of the host would be counted too.
    let prepare = "umount -l /run/sandboxctl/programs/* 2>/dev/null || true
        mount -t tmpfs -o mode=755 tmpfs /run";
    let script = format!("set -e\n{prepare}\n{script}");
    command.args(["--mount", "sh", "-c", &script]).arg(sandboxctl());
    place.equip(&mut command);
    command.envs(variables.iter().copied());
    finish(command)
}

/// Prints how many stores are mounted.
const COUNT: &str = "grep -c /run/sandboxctl/programs/ /proc/self/mountinfo || true";

#[test]
fn making_of_the_store_that_is_killed_leaves_none_or_a_whole_one() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    place.write("one.luau", "return 1");
    for (point, stores) in [("locked", 0), ("written", 0), ("sealed", 0), ("mounted", 1)] {
        let reached = place.path(&format!("Store(\"{point}\")"));
        let script = format!(
            r#"SANDBOX_FAILPOINT="$reached" "$0" run --no-io one.luau & held=$!
            until [ -e "$reached" ]; do sleep 0.01; done
            {COUNT}
            kill -9 $held; wait $held || true
            {COUNT}
            "$0" run --no-io one.luau
            {COUNT}
            "$0" doctor | grep executables"#
        );
        let ended = with_own_run(&place, &script, &[("reached", &reached)]);
        let lines: Vec<_> = ended.assert_code(0).stdout.lines().collect();
        let stores = stores.to_string();
        assert_eq!(lines[..4], [&stores, &stores, "1", "1"], "{point}: {ended:#?}");
        assert!(lines[4].ends_with(": unchanged"), "{point}: {ended:#?}");
    }
}

#[test]
fn many_first_commands_make_one_store_that_only_gc_all_removes() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    for name in ["one", "two"] {
        place.write(&format!("{name}.luau"), "return 1");
    }
    let script = format!(
        r#"for i in 1 2 3 4 5 6 7 8; do "$0" run --quiet --no-io one.luau & all="$all $!"; done
        for it in $all; do wait $it; done
        {COUNT}
        "$0" gc >/dev/null
        {COUNT}
        "$0" gc --all
        {COUNT}
        ls -A /run
        "$0" run --quiet --no-io two.luau
        {COUNT}"#
    );
    let ended = with_own_run(&place, &script, &[]);
    let expected = "1\n1\n1\n1\n1\n1\n1\n1\n1\n1\nremoved 0 containers, kept 0 containers\nremoved 1 program store\n0\n1\n1\n";
    assert_eq!(ended.assert_code(0).stdout, expected, "{ended:#?}");
}

#[test]
fn without_a_store_helper_and_agent_are_executed_from_sealed_memory() {
    let place = Fixture::new();
    place.write("loop.luau", LOOP);
    let mut command = Command::new("unshare");
    // What is at its path is not followed.
    let script = "mount -t tmpfs tmpfs /run && ln -s /tmp /run/sandboxctl && exec \"$0\" \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(sandboxctl());
    command.args(["run", "--json", "--timeout", "60s", "loop.luau"]);
    place.equip(&mut command);
    let child = spawn(command);
    let written = || std::fs::read(place.path("sandbox-files/f")).is_ok_and(|it| it == b"x");
    eventually("the script has written", || written().then_some(()));
    for (name, exe) in executed(&place) {
        let link = std::fs::read_link(&exe).unwrap();
        assert_eq!(link.to_str().unwrap(), format!("/memfd:{name} (deleted)"));
        let seals = rustix::fs::fcntl_get_seals(File::open(exe).unwrap()).unwrap();
        let expected = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        assert!(seals.contains(expected), "{seals:?}");
    }
    interrupt(&place, child);
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
fn without_root_and_control_groups_it_is_125_with_what_to_do_instead() {
    let place = Fixture::new();
    place.write("one.luau", "return 1");
    // In a separate user namespace, without a root user.
    let mut command = Command::new("unshare");
    command.arg("--user").arg(sandboxctl()).args(["run", "one.luau"]);
    place.equip(&mut command);
    command.env_remove("SANDBOXCTL_ENGINE_ROOTLESS_LIMITS");
    let ended = finish(command);
    ended.assert_code(125);
    assert!(ended.stderr.contains("without root its limits need delegated"), "{ended:#?}");
    assert!(ended.stderr.contains("hint: `systemd-run --user"), "{ended:#?}");
    assert!(ended.stderr.contains("--limits best-effort accepts weaker limits"), "{ended:#?}");
    assert!(!place.path("sandbox-files").exists());
}
