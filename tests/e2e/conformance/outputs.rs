//! Files of the host that a command line names while another run may change what its paths lead to.
//! Mounting needs root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::mounts::HostMount;
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually, finish, spawn, wait};

/// What the tries of an attack are: one in three showed what it was to show.
const TRIES: usize = 25;

/// Exchanges two names for as long as `run` lasts, as a concurrent run can.
fn while_exchanged(one: &Path, other: &Path, run: impl FnOnce()) {
    /// Also if what runs meanwhile panics.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let _done = Done(&done);
        run();
    });
}

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn link_that_replaces_a_matched_file_is_not_followed() {
    if !has(Feature::MountNumbers) {
        // Which file of the host an input is, is not visible.
        return;
    }
    let place = Fixture::new();
    place.write("secret", "of the host");
    place.write("in/x.txt", "plain");
    symlink("../secret", place.path("in/link")).unwrap();
    place.write("a.luau", "return fs.read('/in/x.txt')");
    let run = || place.sandboxctl(["run", "a.luau", "--in", "in/*.txt"]);
    assert!(run().assert_code(0).stdout.contains("plain"));
    while_exchanged(&place.path("in/x.txt"), &place.path("in/link"), || {
        for _ in 0..TRIES {
            let ended = run();
            let reported = format!("{}{}", ended.stdout, ended.stderr);
            assert!(!reported.contains("of the host"), "{reported}");
        }
    });
}

#[test]
fn io_dir_of_a_project_is_not_led_elsewhere_by_a_link() {
    let place = Fixture::new();
    place.write("sandboxctl.toml", "[io]\ndir = 'a/b'\n");
    place.write("secret/b/key", "of the host");
    place.write("a/b/x", "");
    symlink("secret", place.path("link")).unwrap();
    place.write("a.luau", "fs.write('made', '') return fs.exists('key') ~= false");
    let run = || place.sandboxctl(["run", "a.luau"]);
    assert!(run().assert_code(0).stdout.contains("false"));
    while_exchanged(&place.path("a"), &place.path("link"), || {
        for _ in 0..TRIES {
            let ended = run();
            assert!(!ended.stdout.contains("true"), "{ended:#?}");
        }
    });
    assert_eq!(count(&place.path("secret/b")), 1);
}

#[test]
fn links_in_a_path_that_the_caller_named_are_followed() {
    let place = Fixture::new();
    place.write("elsewhere/io/x", "");
    place.write("elsewhere/in/1.txt", "");
    symlink("elsewhere", place.path("link")).unwrap();
    place.write("a.luau", "fs.write('made', '') return fs.exists(args.path)");
    for (input, path) in [
        ("link/in:in", "path=/in/in/1.txt"),
        ("link/in/1.txt", "path=/in/1.txt"),
        ("link/in/*.txt", "path=/in/1.txt"),
    ] {
        let args = ["run", "a.luau", "--io-dir", "link/io/new", "--in", input, "--arg", path];
        let ended = place.sandboxctl(args);
        ended.assert_code(0);
        assert!(ended.stdout.contains("file"), "{ended:#?}");
    }
    assert!(place.path("elsewhere/io/new/made").exists());
}

#[test]
fn output_is_refused_in_the_io_dir_by_any_name_of_it() {
    let place = Fixture::new();
    place.write("sandbox-files/sub/x", "");
    place.write("a.luau", "fs.write('ran', '')");
    place.sandboxctl(["keys", "new", "key"]).assert_code(0);
    fs::rename(place.path("key"), place.path("sandbox-files/sub/key")).unwrap();
    let _alias = HostMount::bind(&place.path("sandbox-files"), place.path("alias"));
    let _below = HostMount::bind(&place.path("sandbox-files/sub"), place.path("below"));
    let cases: &[&[&str]] = &[
        &["--report", "json=alias/r"],
        &["--report", "ndjson=below/r"],
        &["--changes", "alias/c"],
        &["--changes", "below/x"],
        &["--receipt", "alias/new"],
        &["--receipt", "r", "--sign", "alias/sub/key"],
        &["--receipt", "r", "--sign", "below/key"],
        &["--keep-staged", "below/kept"],
        &["--artifact", "**", "--artifacts-dir", "alias/out"],
        &["--audit", "alias/a"],
        &["--audit", "below/x"],
    ];
    for flags in cases {
        let ended = place.sandboxctl(["run", "a.luau"].iter().chain(*flags));
        ended.assert_code(2).assert_stderr_has(" is in ");
    }
    place.sandboxctl(["fs", "cp", ":sub/x", "below/y"]).assert_code(2);
    assert!(!place.path("sandbox-files/ran").exists());
    assert_eq!(count(&place.path("sandbox-files")), 1);
}

/// What runs there may make a link of any name in it, before or after it is looked at.
#[test]
fn output_is_refused_in_an_io_dir_that_another_sandbox_uses() {
    let place = Fixture::new();
    place.write("theirs/sub/x", "");
    place.write("sandbox-files/x", "");
    place.write("precious", "old");
    place.write("a.luau", "return 1");
    place.write("wait.luau", "fs.write('ready', '') while not fs.exists('go') do end");
    let run = spawn(place.command(["run", "wait.luau", "--io-dir", "theirs", "--timeout", "5m"]));
    let ready = place.path("theirs/ready");
    eventually("the script runs", || ready.exists().then_some(()));
    symlink("../precious", place.path("theirs/planted")).unwrap();
    symlink("theirs/planted", place.path("round")).unwrap();
    let cases: &[&[&str]] = &[
        &["run", "a.luau", "--report", "json=theirs/planted"],
        &["run", "a.luau", "--report", "junit=round"],
        &["run", "a.luau", "--report", "ndjson=theirs/sub/new"],
        &["run", "a.luau", "--changes", "theirs/planted"],
        &["run", "a.luau", "--receipt", "theirs/new"],
        &["run", "a.luau", "--audit", "theirs/planted"],
        &["run", "a.luau", "--keep-staged", "theirs/kept"],
        &["run", "a.luau", "--artifact", "**", "--artifacts-dir", "theirs/sub/out"],
        &["fs", "cp", ":x", "theirs/planted"],
        &["keys", "new", "theirs/key"],
    ];
    for args in cases {
        let refused = place.sandboxctl(*args);
        refused.assert_code(2).assert_stderr_has("which another sandbox uses as its io dir");
    }
    let mut below = place.command(["run", "../../a.luau", "--report", "json=new"]);
    below.current_dir(place.path("theirs/sub"));
    finish(below).assert_code(2).assert_stderr_has("which another sandbox uses as its io dir");
    place.write("theirs/go", "");
    wait(run).assert_code(0);
    assert_eq!((&*place.read("precious"), count(&place.path("theirs/sub"))), ("old", 1));
    // Then it is a directory like any other.
    place.sandboxctl(["run", "a.luau", "--report", "json=theirs/r"]).assert_code(0);
}

/// Another run has the directories as its io dir.
#[test]
fn output_is_written_where_it_was_to_be_when_a_link_leads_elsewhere_by_then() {
    let place = Fixture::new();
    place.write("a/b/x", "");
    fs::create_dir_all(place.path("secret/b")).unwrap();
    place.write("a.luau", "fs.write('ready', '') while not fs.exists('go') do end");
    let flags = ["--report", "json=a/j", "--report", "ndjson=a/b/n"];
    let artifacts = ["--artifact", "ready", "--artifacts-dir", "a/b/new/out"];
    let run = spawn(place.command(["run", "a.luau"].iter().chain(&flags).chain(&artifacts)));
    let ready = place.path("sandbox-files/ready");
    eventually("the script runs", || ready.exists().then_some(()));
    fs::rename(place.path("a"), place.path("moved")).unwrap();
    symlink("secret", place.path("a")).unwrap();
    place.write("sandbox-files/go", "");
    wait(run).assert_code(0);
    assert_eq!((count(&place.path("secret")), count(&place.path("secret/b"))), (1, 0));
    for made in ["j", "b/n", "b/new/out/ready"] {
        assert!(place.path("moved").join(made).exists(), "{made}");
    }
}

#[test]
fn link_that_the_caller_made_keeps_its_target_and_one_that_is_made_meanwhile_does_not() {
    let place = Fixture::new();
    place.write("wanted", "old");
    place.write("precious", "old");
    place.write("out/x", "");
    symlink("../wanted", place.path("out/own")).unwrap();
    place.write("a.luau", "fs.write('ready', '') while not fs.exists('go') do end");
    let flags = ["--report", "json=out/own", "--report", "junit=out/later"];
    let run = spawn(place.command(["run", "a.luau"].iter().chain(&flags)));
    let ready = place.path("sandbox-files/ready");
    eventually("the script runs", || ready.exists().then_some(()));
    symlink("../precious", place.path("out/later")).unwrap();
    place.write("sandbox-files/go", "");
    wait(run).assert_code(0);
    assert_eq!(place.read("precious"), "old");
    assert!(place.path("out/own").is_symlink() && place.read("wanted") != "old");
    assert!(!place.path("out/later").is_symlink());
}

#[test]
fn copy_into_a_directory_is_refused_where_its_name_there_leads_to_our_own() {
    let place = Fixture::new();
    place.write("a.luau", "return 1");
    place.sandboxctl(["run", "a.luau"]).assert_code(0);
    place.write("sandbox-files/x", "guest");
    fs::create_dir(place.path("out")).unwrap();
    let own = place.state().join("sandboxctl");
    symlink(own.join("evil"), place.path("out/x")).unwrap();
    let refused = place.sandboxctl(["fs", "cp", ":x", "out"]);
    refused.assert_code(2).assert_stderr_has("it is in the state directory");
    assert!(!own.join("evil").exists());
}

#[test]
fn holes_of_an_earlier_run_do_not_hold_up_a_receipt() {
    let place = Fixture::new();
    place.write("a.luau", "fs.write('ran', '')");
    let file = place.write("holes/large", "");
    fs::File::options().write(true).open(file).unwrap().set_len(5 << 30).unwrap();
    for flags in [["--in", "holes"], ["--io-dir", "holes"]] {
        let ended = place.sandboxctl(["run", "a.luau", "--receipt", "r"].iter().chain(&flags));
        assert_ne!(ended.code, 0);
        let text = "'large': the files of an input have holes of more than 4 GiB together";
        ended.assert_stderr_has(text).assert_stderr_has("hint: ");
    }
    assert!(!place.path("r").exists() && !place.path("holes/ran").exists());
}
