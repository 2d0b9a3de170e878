//! `sandboxctl fs`: every command, what it prints, how it ends, and what it leaves alone.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::mounts::HostMount;
use crate::fixture::{Ended, Fixture, eventually, files_below, wait, wait_and_watch};

/// More than all that may wait on the way into a sandbox: what a pipe took of it has arrived.
const MORE_THAN_WAITS: usize = 4 << 20;

pub fn fs<S: AsRef<OsStr>>(place: &Fixture, args: &[S]) -> Ended {
    let args = args.iter().map(AsRef::as_ref);
    place.sandboxctl([OsStr::new("fs")].into_iter().chain(args))
}

pub fn fs_with(place: &Fixture, input: &[u8], args: &[&str]) -> Ended {
    place.sandboxctl_with(input, ["fs"].iter().chain(args))
}

/// Runs a command that is to succeed, and gives what it prints.
#[track_caller]
pub fn done(place: &Fixture, args: &[&str]) -> String {
    let ended = fs(place, args);
    ended.assert_code(0);
    assert_eq!(ended.stderr, "", "{args:?}");
    ended.stdout
}

/// What a command prints, byte for byte.
pub fn bytes(place: &Fixture, args: &[&str]) -> Vec<u8> {
    let file = place.path("stdout");
    let mut command = place.command(["fs"].iter().chain(args));
    assert!(command.stdout(File::create(&file).unwrap()).status().unwrap().success());
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    bytes
}

#[track_caller]
pub fn envelope(text: &str) -> Value {
    let envelope: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    let keys: Vec<&String> = envelope.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["data", "error", "metadata", "success"], "{envelope:#}");
    assert_eq!(envelope["success"], envelope["error"].is_null(), "{envelope:#}");
    assert!(envelope["success"] == true || envelope["data"].is_null(), "{envelope:#}");
    assert!(envelope["metadata"]["duration_ms"].is_u64(), "{envelope:#}");
    envelope
}

/// The data of a command that is to succeed with `--json`.
#[track_caller]
pub fn data(place: &Fixture, args: &[&str]) -> Value {
    let ended = fs(place, &[args, &["--json"]].concat());
    assert_eq!(ended.stdout.lines().count(), 1, "{ended:#?}");
    let mut envelope = envelope(&ended.stdout);
    assert_eq!((&envelope["success"], ended.code), (&json!(true), 0), "{ended:#?}");
    envelope["data"].take()
}

/// A command that is to fail: the exit code, in text and in JSON, and the kind.
#[track_caller]
pub fn refused(place: &Fixture, args: &[&str], code: i32, kind: &str) -> String {
    let text = fs(place, args);
    text.assert_code(code);
    assert_eq!(text.stdout, "", "{args:?}");
    assert!(text.stderr.starts_with("error: "), "{text:#?}");
    let json = fs(place, &[args, &["--json"]].concat());
    json.assert_code(code);
    let envelope = envelope(&json.stdout);
    assert_eq!(envelope["error"]["kind"], kind, "{args:?}: {envelope:#}");
    assert_eq!(json.stderr, "", "{args:?}");
    text.stderr
}

/// Content in which every byte differs from the next one.
pub fn content(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

pub fn fifo(place: &Fixture, name: &str) {
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, place.path(name), FileType::Fifo, mode, 0).unwrap();
}

pub fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// Names below the io dir.
pub fn left(place: &Fixture) -> Vec<String> {
    let io_dir = place.path("sandbox-files");
    let name = |file: &Path| file.strip_prefix(&io_dir).unwrap().to_str().unwrap().to_owned();
    files_below(&io_dir).iter().map(|file| name(file)).collect()
}

#[test]
fn every_command_does_what_it_says() {
    let place = Fixture::new();
    assert_eq!(done(&place, &["write", "d/a.txt", "--content", "one\ntwo\n"]), "");
    assert_eq!(place.read("sandbox-files/d/a.txt"), "one\ntwo\n");
    assert_eq!(done(&place, &["read", "d/a.txt"]), "one\ntwo\n");
    assert_eq!(done(&place, &["edit", "d/a.txt", "--old", "two", "--new", "2"]), "");
    assert_eq!(done(&place, &["read", "/io/d/a.txt", "--offset", "2", "--limit", "3"]), "e\n2");
    assert_eq!(done(&place, &["ls"]), "d\n");
    assert_eq!(done(&place, &["ls", "-R"]), "d\nd/a.txt\n");
    assert_eq!(done(&place, &["ls", "d"]), "a.txt\n");
    let table = done(&place, &["ls", "-l", "d"]);
    assert!(table.starts_with("TYPE  SIZE  MODIFIED"), "{table}");
    assert!(table.contains("\nfile  6     20") && table.ends_with("Z  a.txt\n"), "{table}");
    assert_eq!(done(&place, &["mkdir", "e/f"]), "");
    assert_eq!(done(&place, &["mkdir", "-p", "e/f"]), "");
    assert_eq!(done(&place, &["touch", "e/f/new"]), "");
    assert_eq!(done(&place, &["touch", "d/a.txt", "--mtime", "2001-02-03T04:05:06Z"]), "");
    assert!(done(&place, &["stat", "d/a.txt"]).contains("2001-02-03T04:05:06Z"));
    assert_eq!(place.read("sandbox-files/d/a.txt"), "one\n2\n");
    assert_eq!(done(&place, &["mv", "d/a.txt", "e/b.txt"]), "");
    assert_eq!(done(&place, &["exists", "~/e/b.txt"]), "");
    let stat = done(&place, &["stat", "e/b.txt"]);
    for line in ["path:        /io/e/b.txt", "type:        file", "size:        6"] {
        assert!(stat.contains(line), "{stat}");
    }
    assert!(stat.contains("permissions: rw-r--r-- (0644)\n"), "{stat}");
    assert_eq!(done(&place, &["rm", "e/b.txt"]), "");
    assert_eq!(done(&place, &["rm", "-r", "e"]), "");
    assert_eq!(done(&place, &["rm", "-f", "e"]), "");
    let absent = fs(&place, &["exists", "e"]);
    absent.assert_code(1);
    assert_eq!((&*absent.stdout, &*absent.stderr), ("", ""));
}

#[test]
fn a_tree_eight_thousand_deep_is_removed_whole() {
    use rustix::fs::{OFlags, mkdirat, openat};
    let place = Fixture::new();
    place.write("sandbox-files/top/f", "x");
    let mut here = File::open(place.path("sandbox-files/top")).unwrap();
    for _ in 0..8_000 {
        mkdirat(&here, "d", Mode::from_raw_mode(0o777)).unwrap();
        here = openat(&here, "d", OFlags::RDONLY, Mode::empty()).unwrap().into();
    }
    drop(here);
    // As long as a busy machine needs: what it costs is counted elsewhere.
    let removed = data(&place, &["rm", "-r", "top", "--timeout", "4m"]);
    assert_eq!(removed["entries"], 8_002);
    assert!(!place.path("sandbox-files/top").exists());
}

#[test]
fn ten_mebibytes_go_in_and_out_byte_for_byte() {
    let place = Fixture::new();
    let content = content(10 << 20);
    place.write("host.bin", &content);
    let written = fs_with(&place, &content, &["write", "a.bin", "--json"]);
    assert_eq!(envelope(&written.stdout)["data"]["bytes_written"], 10 << 20);
    assert!(bytes(&place, &["read", "a.bin"]) == content);
    assert!(bytes(&place, &["cp", ":a.bin", "-"]) == content);
    done(&place, &["cp", "host.bin", ":b.bin"]);
    done(&place, &["cp", ":b.bin", ":c.bin"]);
    done(&place, &["cp", ":c.bin", "copy.bin"]);
    assert!(std::fs::read(place.path("copy.bin")).unwrap() == content);
    let part = bytes(&place, &["read", "a.bin", "--offset", "1000000", "--limit", "1000000"]);
    assert!(part == content[1_000_000..2_000_000]);
    assert!(bytes(&place, &["read", "a.bin", "--offset", "10485760"]).is_empty());
    // One byte more than a file may have: nothing changes.
    let mut more = content.clone();
    more.push(0);
    fs_with(&place, &more, &["write", "a.bin"]).assert_code(120);
    assert!(std::fs::read(place.path("sandbox-files/a.bin")).unwrap() == content);
    assert_eq!(left(&place), ["a.bin", "b.bin", "c.bin"]);
}

#[test]
fn a_large_file_passes_in_bounded_memory() {
    let place = Fixture::new();
    let size = 100 << 20;
    let limits = ["--max-file-size", "128MiB", "--max-write", "128MiB", "--timeout", "4m"];
    let host = File::create(place.path("host.bin")).unwrap();
    host.set_len(size).unwrap();
    for args in [["cp", "host.bin", ":a.bin"], ["cp", ":a.bin", "copy.bin"]] {
        let mut command = place.command(["fs"].iter().chain(&args).chain(&limits));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (ended, peak_kib) = wait_and_watch(command.spawn().unwrap());
        ended.assert_code(0);
        assert!(peak_kib < 32 << 10, "{args:?}: {peak_kib} KiB");
    }
    assert_eq!(place.path("copy.bin").metadata().unwrap().len(), size);
}

#[test]
fn names_of_any_bytes_are_listed_read_and_written() {
    let place = Fixture::new();
    let odd = OsStr::from_bytes(b"odd\xff\n\x1b[2J");
    std::fs::create_dir(place.path("sandbox-files")).unwrap();
    std::fs::write(place.path("sandbox-files").join(odd), "odd").unwrap();
    assert_eq!(bytes(&place, &["ls"]), b"odd\xff\n\x1b[2J\n");
    let table = done(&place, &["ls", "-l"]);
    assert!(table.contains("\\n\\u{1b}[2J\n") && !table.contains('\u{1b}'), "{table:?}");
    let entry = &data(&place, &["ls"])["entries"][0];
    assert!(entry["name_b64"].is_string() && entry["path_b64"].is_string(), "{entry:#}");
    let read = fs(&place, &[OsStr::new("read"), odd]);
    assert_eq!((read.code, &*read.stdout), (0, "odd"));
    let copied =
        fs(&place, &[OsStr::new("cp"), OsStr::from_bytes(b":odd\xff\n\x1b[2J"), OsStr::new(".")]);
    copied.assert_code(0);
    assert_eq!(std::fs::read(place.work().join(odd)).unwrap(), b"odd");
    fs(&place, &[OsStr::new("rm"), odd]).assert_code(0);
    assert_eq!(done(&place, &["ls"]), "");
}

#[test]
fn a_copy_goes_to_its_target_and_a_failed_one_leaves_the_old_file() {
    let place = Fixture::new();
    place.write("host.txt", "host");
    place.write("sandbox-files/dir/guest.txt", "guest");
    for (to, file) in [
        (":", "host.txt"),
        (":dir", "dir/host.txt"),
        (":new/", "new/host.txt"),
        (":new/other.txt", "new/other.txt"),
        (":/io/abs.txt", "abs.txt"),
    ] {
        done(&place, &["cp", "host.txt", to]);
        assert_eq!(place.read(&format!("sandbox-files/{file}")), "host", "{to}");
    }
    std::fs::create_dir(place.path("out")).unwrap();
    let old = place.write("out/old.txt", "old");
    std::fs::set_permissions(&old, PermissionsExt::from_mode(0o600)).unwrap();
    symlink("old.txt", place.path("out/link.txt")).unwrap();
    done(&place, &["cp", ":dir/guest.txt", "out"]);
    done(&place, &["cp", ":dir/guest.txt", "out/"]);
    assert_eq!(place.read("out/guest.txt"), "guest");
    done(&place, &["cp", ":dir/guest.txt", "out/link.txt"]);
    assert_eq!(place.read("out/old.txt"), "guest");
    assert!(place.path("out/link.txt").is_symlink());
    assert_eq!(old.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    fs_with(&place, b"stdin", &["cp", "-", ":stdin.txt"]).assert_code(0);
    assert_eq!(done(&place, &["cp", ":stdin.txt", "-"]), "stdin");
    done(&place, &["cp", ":stdin.txt", "/dev/null"]);

    refused(&place, &["cp", ":none", "out/old.txt"], 1, "not_found");
    let small = ["cp", ":dir/guest.txt", "out/old.txt", "--max-file-size", "4B"];
    refused(&place, &small, 120, "too_large");
    assert_eq!(place.read("out/old.txt"), "guest");
    place.write("large.txt", "too large");
    refused(&place, &["cp", "large.txt", ":host.txt", "--max-file-size", "4B"], 120, "too_large");
    assert_eq!(place.read("sandbox-files/host.txt"), "host");
    let names: Vec<_> = files_below(&place.path("out"));
    assert_eq!(names.len(), 3, "{names:?}");
}

/// Half a page and the beginning of a store were left.
#[test]
fn a_full_disk_leaves_no_page_of_the_manual_and_no_data_directory() {
    let place = Fixture::new();
    let small = place.path("small");
    let _mounted = HostMount::memory(small.clone(), c"size=1m");
    // Some free pages, but too few.
    std::fs::write(small.join("full"), content((1 << 20) - (40 << 10))).unwrap();
    let token = "token create --data-dir small/new/data --subject a --scope sandboxes";
    for line in ["man --dir small/new/man", token] {
        let ended = place.sandboxctl(line.split(' '));
        assert!(ended.stderr.starts_with("error: "), "{line}: {}", ended.stderr);
        let left: Vec<_> =
            std::fs::read_dir(&small).unwrap().map(|it| it.unwrap().path()).collect();
        assert_eq!(left, [small.join("full")], "{line}");
    }
}

#[test]
fn a_full_disk_leaves_the_old_file_whole_and_nothing_beside_it() {
    let place = Fixture::new();
    let small = place.path("small");
    let mounted = HostMount::memory(small.clone(), c"size=1m");
    std::fs::write(small.join("a"), "old").unwrap();
    let content = content(2 << 20);
    place.write("host.bin", &content);
    for args in [&["cp", "host.bin", ":a"][..], &["cp", "host.bin", ":new"]] {
        let args = [args, &["--io-dir", "small"]].concat();
        refused(&place, &args, 1, "disk_full");
    }
    fs_with(&place, &content, &["write", "a", "--append", "--io-dir", "small"]).assert_code(1);
    fs_with(&place, &content, &["write", "a", "--in-place", "--io-dir", "small"]).assert_code(1);
    assert_eq!(std::fs::read(small.join("a")).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(&small).unwrap().count(), 1);
    // The host's disk may be the full one.
    std::fs::create_dir_all(place.path("sandbox-files")).unwrap();
    std::fs::write(place.path("sandbox-files/big"), &content).unwrap();
    let reported = refused(&place, &["cp", ":big", "small/a"], 1, "disk_full");
    assert!(reported.starts_with("error: small/a: No space left"), "{reported}");
    assert_eq!(std::fs::read(small.join("a")).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(&small).unwrap().count(), 1);
    drop(mounted);
}

#[test]
fn ctrl_c_in_the_middle_changes_nothing_and_leaves_nothing() {
    let place = Fixture::new();
    place.write("sandbox-files/a", "old");
    fifo(&place, "source");
    // By stdin, and by a pipe of the host's; the second one into a directory that is not there.
    let mut write = place.command(["fs", "write", "a"]);
    let mut child =
        write.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&content(MORE_THAN_WAITS)).unwrap();
    interrupt(&child);
    let ended = wait(child);
    ended.assert_code(130);
    assert_eq!(ended.stderr, "error: interrupted\n");
    drop(stdin);

    let mut copy = place.command(["fs", "cp", "source", ":new/b", "--json"]);
    let child = copy.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut source = File::options().write(true).open(place.path("source")).unwrap();
    source.write_all(&content(MORE_THAN_WAITS)).unwrap();
    interrupt(&child);
    let ended = wait(child);
    ended.assert_code(130);
    assert_eq!(envelope(&ended.stdout)["error"]["kind"], "cancelled");
    assert_eq!(place.read("sandbox-files/a"), "old");
    assert_eq!(left(&place), ["a"]);
}

#[test]
fn ctrl_c_ends_a_read_whose_reader_does_not_read() {
    let place = Fixture::new();
    place.write("sandbox-files/a", content(10 << 20));
    let mut read = place.command(["fs", "read", "a"]);
    let mut child = read.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0];
    stdout.read_exact(&mut first).unwrap();
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_second_ctrl_c_ends_a_command_whose_stdout_is_full() {
    let place = Fixture::new();
    place.write("sandbox-files/a", content(5 << 20));
    let mut read = place.command(["fs", "read", "a", "--encoding", "hex", "--json"]);
    let mut child = read.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The result is on its way, and there is more of it than a pipe takes.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    // One that follows too soon is the same one.
    let ended = eventually("it ends", || {
        interrupt(&child);
        child.try_wait().unwrap()
    });
    assert_eq!(ended.code(), Some(130));
    place.expect_a_dead_instance();
    eventually("what was left goes with the next command", || {
        place.sandboxctl(["gc"]).assert_code(0);
        place.containers().is_empty().then_some(())
    });
}

#[test]
fn a_reader_that_goes_away_ends_a_read_quietly() {
    let place = Fixture::new();
    place.write("sandbox-files/a", content(10 << 20));
    for args in [&["read", "a"][..], &["read", "a", "--lines", "1:"], &["cp", ":a", "-"]] {
        let mut command = place.command(["fs"].iter().chain(args));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        child.stdout = Some(null_reader());
        let ended = wait(child);
        ended.assert_code(141);
        assert_eq!(ended.stderr, "", "{args:?}");
    }
}

#[test]
fn a_copy_whose_reader_goes_away_fails_and_one_to_stdout_leaves_what_is_there() {
    let place = Fixture::new();
    place.write("sandbox-files/a", content(MORE_THAN_WAITS));
    place.write("sandbox-files/b", "guest");
    fifo(&place, "pipe");
    let mut copy = place.command(["fs", "cp", ":a", "pipe", "--json"]);
    let child = copy.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    File::open(place.path("pipe")).unwrap().read_exact(&mut [0]).unwrap();
    let ended = wait(child);
    ended.assert_code(125);
    let message = envelope(&ended.stdout)["error"]["message"].clone();
    assert_eq!(message, "pipe: broken pipe");

    let log = place.write("log", "before\n");
    for to in ["/dev/stdout", "log"] {
        let stdout = File::options().append(true).open(&log).unwrap();
        let copied = place.command(["fs", "cp", ":b", to]).stdout(stdout).status().unwrap();
        assert!(copied.success());
    }
    assert_eq!(place.read("log"), "before\nguestguest");
}

/// In the place of a pipe that is closed.
fn null_reader() -> std::process::ChildStdout {
    std::os::fd::OwnedFd::from(File::open("/dev/null").unwrap()).into()
}

/// A terminal: what is shown on it, and the side that a program has.
pub fn terminal() -> (File, File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let shown = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&shown).unwrap();
    unlockpt(&shown).unwrap();
    let name = ptsname(&shown, Vec::new()).unwrap();
    let mut options = File::options();
    let side = options.read(true).write(true).open(OsStr::from_bytes(name.as_bytes())).unwrap();
    (shown.into(), side)
}

/// What a terminal shows, until its other side is closed.
pub fn all_of(mut shown: File) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    // The end is an error: EIO.
    while let Ok(length @ 1..) = shown.read(&mut piece) {
        all.extend_from_slice(&piece[..length]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn a_copy_that_takes_its_time_shows_how_far_it_is_on_a_terminal_alone() {
    let place = Fixture::new();
    fifo(&place, "source");
    let (mut shown, side) = terminal();
    let mut command = place.command(["fs", "cp", "source", ":a"]);
    let mut child = command.env("TERM", "xterm").stderr(side).spawn().unwrap();
    drop(command);
    let mut source = File::options().write(true).open(place.path("source")).unwrap();
    let is_shown = Arc::new(AtomicBool::new(false));
    let seen = is_shown.clone();
    let writer = std::thread::spawn(move || {
        let mut length = 0;
        // As slowly as it takes; a bar that never comes ends this by the limit on a file.
        while !seen.load(Ordering::Relaxed) && source.write_all(&[b'x'; 1024]).is_ok() {
            length += 1024;
            std::thread::sleep(Duration::from_millis(5));
        }
        length
    });
    let mut all = String::new();
    let mut piece = [0; 4096];
    while !all.contains("KiB/s") {
        let length = shown.read(&mut piece).unwrap_or(0);
        assert_ne!(length, 0, "{all:?}");
        all.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    is_shown.store(true, Ordering::Relaxed);
    let length: u64 = writer.join().unwrap();
    all_of(shown);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(place.path("sandbox-files/a").metadata().unwrap().len(), length);
}

#[test]
fn the_sandbox_is_what_its_flags_say() {
    let place = Fixture::new();
    place.write("input.txt", "input");
    place.write("work/sub/a", "a");
    let flags = ["--io-dir", "work", "--mount-path", "/workspace", "--workdir", "/workspace/sub"];
    assert_eq!(done(&place, &[&["read", "a"], &flags[..]].concat()), "a");
    // Before the command's name too.
    assert_eq!(done(&place, &[&flags[..], &["ls", "/workspace"]].concat()), "sub\n");
    assert_eq!(data(&place, &[&["stat", "a"], &flags[..]].concat())["path"], "/workspace/sub/a");
    let input = ["--in", "input.txt:data/x"];
    assert_eq!(fs(&place, &[&["ls"], &input[..]].concat()).code, 2, "no such name");
    let input = ["--in", "input.txt:x"];
    assert_eq!(done(&place, &[&["read", "/in/x"], &input[..]].concat()), "input");
    let piped = fs_with(&place, b"piped", &["read", "/in/x", "--in", "-:x"]);
    assert_eq!((piped.code, &*piped.stdout), (0, "piped"));
    place.write("sandboxctl.toml", "[io]\nenabled = false\n");
    let off = refused(&place, &["ls"], 121, "not_allowed");
    assert!(off.starts_with("error: .: the sandbox has no io dir, because io is off\nhint: "));
    assert_eq!(done(&place, &["--io-dir", "work", "ls"]), "sub\n");
}
