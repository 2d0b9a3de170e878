//! Io dirs that cannot be staged or committed, and unusual ones that can. Mounting needs root.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::super::exec_cli::{Commands, document};
use super::{HostMount, assert_no_stage_is_left, assert_same, tree};
use crate::fixture::Fixture;

/// Runs a script on an io dir with `--commit on-success`, and asserts that it fails with one error that
/// has `why` in it, and changes nothing.
fn assert_fails(place: &Fixture, io: &Path, source: &str, code: i32, why: &str) {
    let before = tree(io);
    place.write("script.luau", source);
    let flags = ["--commit", "on-success", "--io-dir", io.to_str().unwrap()];
    let ended = place.sandboxctl(["run", "script.luau"].iter().chain(&flags));
    ended.assert_code(code).assert_stderr_has(why);
    let errors = ended.stderr.lines().filter(|line| line.starts_with("error")).count();
    assert_eq!(errors, 1, "{ended:#?}");
    assert_same(&tree(io), &before, why);
    assert_no_stage_is_left(place, io, why);
}

#[test]
fn read_only_io_dir_is_refused_and_stays_as_it_is() {
    let place = Fixture::new();
    place.write("ro/io/f", "old");
    let mount = HostMount::read_only(place.path("ro"));
    let why = "it cannot be staged: ";
    assert_fails(&place, &place.path("ro/io"), "fs.write('f', 'new')", 2, why);
    assert_fails(&place, &place.path("ro/io"), "fs.write('f', 'new')", 2, "Read-only file system");
    drop(mount);
    // As a mount point itself.
    let _mount = HostMount::read_only(place.path("ro/io"));
    assert_fails(&place, &place.path("ro/io"), "fs.write('f', 'new')", 2, "Read-only file system");
}

/// Commits changes of an io dir, and says how it was staged.
fn commits(place: &Fixture, io: &Path) -> String {
    fs::create_dir_all(io.join("dir")).unwrap();
    for name in ["f", "gone", "dir/old"] {
        fs::write(io.join(name), "old").unwrap();
    }
    let script = "fs.write('f', 'new'); os.remove('gone'); fs.write('dir/new', 'new')";
    let flags = ["--commit", "on-success", "--io-dir", io.to_str().unwrap()];
    let reported = place.run_json(script, &flags);
    assert_eq!(
        (&reported["status"], &reported["committed"]),
        (&json!("ok"), &json!(true)),
        "{reported:#}"
    );
    let found = tree(io);
    let names: Vec<_> = found.keys().map(|name| String::from_utf8_lossy(name)).collect();
    assert_eq!(names, ["", "dir", "dir/new", "dir/old", "f"]);
    assert_eq!(fs::read_to_string(io.join("f")).unwrap(), "new");
    assert_no_stage_is_left(place, io, &reported["staging"].to_string());
    // What fails is not committed.
    assert_fails(place, io, "fs.write('f', 'newer'); error('late')", 1, "late");
    reported["staging"].as_str().unwrap().to_owned()
}

#[test]
fn io_dir_on_tmpfs_is_committed_below_a_mount_point_and_as_one() {
    let place = Fixture::new();
    let _mount = HostMount::of("tmpfs", place.path("memory"), "size=8m");
    commits(&place, &place.path("memory/io"));
    let place = Fixture::new();
    let _mount = HostMount::of("tmpfs", place.path("memory/io"), "size=8m");
    assert_eq!(commits(&place, &place.path("memory/io")), "copy", "a stage cannot be beside it");
}

#[test]
fn io_dir_on_a_filesystem_without_sizes_is_committed() {
    let place = Fixture::new();
    let _mount = HostMount::of("ramfs", place.path("memory"), "");
    commits(&place, &place.path("memory/io"));
}

#[test]
fn io_dir_on_an_overlay_is_committed() {
    let place = Fixture::new();
    place.write("lower/io/of-lower", "kept");
    let _mount = HostMount::overlay(&place);
    fs::remove_file(place.path("merged/io/of-lower")).unwrap();
    // As the lower layer of another one since Linux 6.7.
    commits(&place, &place.path("merged/io"));
}

#[test]
fn disk_that_fills_while_an_io_dir_is_staged_leaves_nothing() {
    let place = Fixture::new();
    let io = place.path("memory/io");
    let _mount = HostMount::of("tmpfs", io.clone(), "size=2m");
    fs::write(io.join("large"), vec![b'x'; 1_500_000]).unwrap();
    assert_fails(&place, &io, "return 1", 2, "not enough space for a copy (limits.disk_reserve)");
}

#[test]
fn disk_that_fills_before_a_commit_leaves_the_old_io_dir_and_nothing_else() {
    let commands = Commands::new();
    let place = &commands.place;
    let _mount = HostMount::of("tmpfs", place.path("memory"), "size=4m");
    let io = place.path("memory/io");
    fs::create_dir(&io).unwrap();
    fs::write(io.join("f"), "old").unwrap();
    let before = tree(&io);
    let io_dir = io.to_str().unwrap();
    let mut command = commands.exec(
        &["--json", "--commit", "on-success", "--io-dir", io_dir, "--max-write", "16MiB"],
        &["sh", "-c", "echo new > f; head -c 8000000 /dev/zero > full 2>/dev/null; true"],
    );
    command.env("SANDBOXCTL_LIMITS_DISK_RESERVE", "0B");
    let reported = document(&crate::fixture::finish(command));
    assert_eq!(
        (&reported["status"], &reported["committed"]),
        (&json!("error"), &json!(null)),
        "{reported:#}"
    );
    let message = reported["error"]["message"].as_str().unwrap();
    // Of the program's write, or of the copy that is committed.
    let reasons = ["No space left", "not enough space for a copy"];
    assert!(reasons.iter().any(|reason| message.contains(reason)), "{message}");
    assert_same(&tree(&io), &before, message);
    assert_no_stage_is_left(place, &io, message);
}
