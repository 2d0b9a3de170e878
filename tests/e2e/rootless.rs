//! The embedded engine as a user who is not root, and is in one more group. No machine of these tests
//! delegates control groups, so limits are by best effort.

use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use serde_json::{Value, json};

use crate::fixture::{Ended, Fixture, files_below, finish};
use crate::rootfs::{Provided, Rootfs};

const USER: (u32, u32) = (60_777, 60_778);
const GROUP: u32 = 60_779;

fn place() -> Fixture {
    let place = Fixture::new();
    place.give_to(USER);
    place
}

fn command(place: &Fixture, args: &[&str]) -> Command {
    place.command_in_group(USER, GROUP, &place.command(args))
}

/// The same command in a mount namespace that has an empty file system there.
fn with_tmpfs_at(place: &Fixture, path: &str, command: Command) -> Command {
    let mut inside = Command::new("unshare");
    let script = format!("mount -t tmpfs tmpfs {path} && exec \"$0\" \"$@\"");
    inside.args(["--mount", "sh", "-c", &script]);
    inside.arg(command.get_program()).args(command.get_args());
    place.equip(&mut inside);
    inside
}

/// A file system of busybox alone, which belongs to the user.
fn root() -> Provided {
    let root = Rootfs::busybox().directory();
    let owner = format!("{}:{}", USER.0, USER.1);
    let given = Command::new("chown").args(["--recursive", &owner, &root.args()[1]]).status();
    assert!(given.unwrap().success());
    root
}

/// A command in such a file system, with these flags.
fn exec(place: &Fixture, flags: &[&str], words: &[&str]) -> (Ended, Value) {
    let root = root();
    let rootfs = root.args();
    let rootfs: Vec<_> = rootfs.iter().map(String::as_str).collect();
    let args = [&["exec", "--json"][..], &rootfs, flags, &["--"], words].concat();
    let ended = finish(command(place, &args));
    let document = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:#?}"));
    (ended, document)
}

#[test]
fn files_are_the_users_and_the_container_has_no_other_user_or_group() {
    let place = place();
    place.write("one.luau", "fs.write('a.txt', 'a') return 1");
    let ended = finish(command(&place, &["run", "one.luau"]));
    assert_eq!(ended.assert_code(0).stdout, "1\n");
    let made = std::fs::metadata(place.path("sandbox-files/a.txt")).unwrap();
    assert_eq!((made.uid(), made.gid()), USER);

    let words = ["sh", "-c", "id -u; id -G; cat /proc/self/uid_map; chown 1 /tmp; ls -n /bin/sh"];
    let (_, document) = exec(&place, &["--user", "7:8"], &words);
    let stdout = document["stdout"].as_str().unwrap();
    let lines: Vec<Vec<&str>> =
        stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["7"], "{stdout}");
    // The group that cannot be dropped has no number there.
    assert_eq!(lines[1], ["8", "65534"], "{stdout}");
    let uid = USER.0.to_string();
    assert_eq!(lines[2], ["7", uid.as_str(), "1"], "{stdout}");
    assert_eq!(lines.len(), 4, "{stdout}");
    assert!(document["stderr"].as_str().unwrap().contains("chown"), "{document:#}");
}

#[test]
fn image_archive_is_unpacked_once_for_the_user_to_whom_all_of_it_belongs() {
    let place = place();
    let image = Rootfs::busybox()
        .file("etc/closed", 0o600, "closed")
        .file("bin/raised", 0o4755, "")
        .config(json!({"Env": ["FROM=archive"]}));
    place.write("image.tar", image.docker_archive("a:b"));
    let script =
        "cat /etc/closed; echo $FROM; echo new > /io/new; echo new > /etc/new || echo refused";
    let exec = |script: &str| {
        let flags = ["exec", "--image-archive", "image.tar", "--io-dir", "out", "--"];
        let args = [&flags[..], &["sh", "-c", script]].concat();
        finish(command(&place, &args)).assert_code(0).stdout.clone()
    };
    assert_eq!(exec(script), "closedarchive\nrefused\n");
    let made = std::fs::metadata(place.path("out/new")).unwrap();
    assert_eq!((made.uid(), made.gid()), USER);
    // The archive has all of it for root.
    let roots = place.data().join("roots");
    let files = files_below(&roots);
    let raised = files.iter().find(|file| file.ends_with("bin/raised")).expect("it is unpacked");
    assert_eq!(raised.metadata().unwrap().mode() & 0o7777, 0o755);
    for file in &files {
        let of = file.symlink_metadata().unwrap();
        assert_eq!((of.uid(), of.gid()), USER, "{}", file.display());
    }
    let unpacked = raised.metadata().unwrap().ino();
    assert_eq!(exec("echo again"), "again\n");
    assert_eq!(raised.metadata().unwrap().ino(), unpacked, "it is used again");
    let listed = finish(command(&place, &["image", "ls", "--programs", "--json"]));
    let listed: Value = serde_json::from_str(&listed.assert_code(0).stdout).unwrap();
    let id = listed[0]["id"].as_str().unwrap_or_else(|| panic!("{listed:#}"));
    finish(command(&place, &["image", "rm", "--programs", id])).assert_code(0);
    assert!(!raised.exists());
}

#[test]
fn memory_that_the_helper_sees_beyond_the_limit_is_that_limit() {
    let place = place();
    let dd = "while :; do dd if=/dev/zero of=/dev/null bs=200M count=3; done";
    let fill = "dd if=/dev/zero of=/tmp/a bs=1M; dd if=/dev/zero of=/dev/shm/a bs=1M; sleep 60";
    for (script, flags) in [
        (dd, &["--memory", "96MiB"][..]),
        (fill, &["--memory", "96MiB", "--shm-size", "64MiB"][..]),
    ] {
        let (ended, document) = exec(&place, flags, &["sh", "-c", script]);
        ended.assert_code(120);
        assert_eq!(document["error"]["kind"], "out_of_memory", "{document:#}");
        let notice = document["engine_notice"].as_str().unwrap();
        assert!(notice.contains("by best effort"), "{notice}");
    }
}

#[test]
fn processors_and_processes_are_limited_and_no_program_changes_that() {
    let place = place();
    let (_, document) = exec(
        &place,
        &["--cpus", "0.5"],
        &["sh", "-c", "nproc; taskset -p ffff $$ || echo refused"],
    );
    assert_eq!(document["stdout"].as_str().unwrap().lines().next(), Some("1"), "{document:#}");
    assert!(document["stdout"].as_str().unwrap().ends_with("refused\n"), "{document:#}");

    // The user's other processes do not count.
    let script = "n=0; while [ $n -lt 40 ]; do sleep 60 & n=$((n+1)); echo $n; done";
    let (_, document) = exec(&place, &["--pids", "20"], &["sh", "-c", script]);
    let started = document["stdout"].as_str().unwrap().lines().count();
    assert!((8..20).contains(&started), "{document:#}");
}

#[test]
fn what_one_user_cannot_have_is_refused_with_words() {
    let place = place();
    place.write("one.luau", "return 1");
    // Root's, but everybody may write to it.
    std::fs::create_dir(place.path("others")).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(place.path("others"), open).unwrap();
    let ended = finish(command(&place, &["run", "--io-dir", "others", "one.luau"]));
    ended.assert_code(121);
    assert!(ended.stderr.contains("without root all is done as user"), "{ended:#?}");

    let (root, below) = (place.path("root"), place.path("root/below"));
    std::fs::create_dir_all(&below).unwrap();
    std::os::unix::fs::chown(&root, Some(USER.0), Some(USER.1)).unwrap();
    let args = ["exec", "--no-io", "--rootfs", root.to_str().unwrap(), "--", "true"];
    let ended = finish(with_tmpfs_at(&place, below.to_str().unwrap(), command(&place, &args)));
    ended.assert_code(125);
    assert!(ended.stderr.contains("something is mounted below"), "{ended:#?}");
}

#[test]
fn auto_uses_it_for_a_user_where_no_docker_is_and_says_so() {
    let place = place();
    place.write("one.luau", "return 1");
    // No socket is there.
    let mut command = with_tmpfs_at(&place, "/run", command(&place, &["run", "one.luau"]));
    command.env_remove("SANDBOXCTL_ENGINE_KIND").env_remove("DOCKER_HOST");
    let ended = finish(command);
    assert_eq!(ended.assert_code(0).stdout, "1\n");
    assert!(ended.stderr.contains("using the embedded engine without root"), "{ended:#?}");
}

#[test]
fn kernel_without_overlays_in_user_namespaces_is_answered_with_words() {
    let (place, root) = (place(), root());
    let args = ["exec", "--no-io", "--rootfs", &root.args()[1], "--", "true"];
    let mut command = command(&place, &args);
    command.env("SANDBOX_FAILPOINT", place.path("Absent(overlay)"));
    let ended = finish(command);
    ended.assert_code(125);
    assert!(ended.stderr.contains("the kernel must allow overlays"), "{ended:#?}");
}

#[test]
fn doctor_makes_the_namespaces_also_where_limits_are_missing() {
    let place = place();
    let mut command = command(&place, &["doctor"]);
    command.env_remove("SANDBOXCTL_ENGINE_ROOTLESS_LIMITS");
    let ended = finish(command);
    ended.assert_code(125);
    assert!(ended.stdout.contains("FAIL  endpoint"), "{ended:#?}");
    assert!(ended.stdout.contains("ok    namespaces"), "{ended:#?}");
}
