//! Changes of an io dir: listed, and committed whole or not at all.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::exec_cli::{Commands, document};
use crate::place::{Place, eventually, finish, sandboxctl, spawn};

/// The digest that coreutils compute.
fn sha256(path: &Path) -> String {
    let mut sum = Command::new("sha256sum");
    sum.arg(path);
    finish(sum).stdout.split(' ').next().unwrap().to_owned()
}

/// Name, content and times of everything in the io dir, and nothing of ours beside it.
fn seen(place: &Place) -> BTreeMap<String, (String, i64, i64)> {
    let beside: Vec<_> = fs::read_dir(place.work())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".sandboxctl"))
        .collect();
    assert_eq!(beside, [""; 0]);
    let io_dir = place.path("sandbox-files");
    fs::read_dir(&io_dir)
        .into_iter()
        .flatten()
        .map(|entry| {
            let path = entry.unwrap().path();
            let metadata = fs::metadata(&path).unwrap();
            let content = fs::read_to_string(&path).unwrap_or_default();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, (content, metadata.mtime(), metadata.mtime_nsec()))
        })
        .collect()
}

fn with_files() -> Place {
    let place = Place::new();
    place.write("sandbox-files/kept", "kept\n");
    place.write("sandbox-files/old", "one\ntwo\n");
    place.write("sandbox-files/gone", "gone\n");
    place
}

const SCRIPT: &str = "fs.write('old', 'one\\n2\\n'); fs.write('new', 'new\\n'); os.remove('gone'); return fs.read('kept')";

#[test]
fn manifest_of_a_script_is_what_changed() {
    let place = with_files();
    let told = place.run_json(SCRIPT, &["--changes", "changes.json"]);
    assert_eq!((&told["result"], &told["committed"]), (&json!("kept\n"), &json!(true)), "{told:#}");
    let manifest: Value = serde_json::from_str(&place.read("changes.json")).unwrap();
    assert_eq!(
        manifest,
        json!({"schema": "sandboxctl.changes/1", "changes": told["changes"]["changes"],
        "truncated": false})
    );
    let ops: Vec<_> = manifest["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["path"].as_str().unwrap(), it["op"].as_str().unwrap()))
        .collect();
    assert_eq!(ops, [("gone", "removed"), ("new", "created"), ("old", "modified")]);
    let old = &manifest["changes"][2];
    assert_eq!(old["sha256"], sha256(&place.path("sandbox-files/old")));
    place.write("was", "one\ntwo\n");
    assert_eq!(old["before"]["sha256"], sha256(&place.path("was")));
    assert_eq!(
        (&old["bytes"], &old["type"], &old["mode"]),
        (&json!(6), &json!("file"), &json!("0644"))
    );
    assert_eq!(manifest["changes"][1]["before"], Value::Null);
    let names: Vec<_> = seen(&place).into_keys().collect();
    assert_eq!(names, ["kept", "new", "old"]);
}

#[test]
fn run_that_fails_or_is_a_trial_leaves_the_io_dir_as_it_was() {
    let place = with_files();
    let before = (seen(&place), fs::metadata(place.path("sandbox-files")).unwrap().mtime_nsec());
    let after = || (seen(&place), fs::metadata(place.path("sandbox-files")).unwrap().mtime_nsec());
    let told = place.run_json(
        &SCRIPT.replace("return fs.read('kept')", "error('late')"),
        &["--commit", "on-success"],
    );
    assert_eq!((&told["status"], &told["committed"]), (&json!("script_error"), &json!(false)));
    assert_eq!(told["changes"]["changes"].as_array().unwrap().len(), 3);
    assert_eq!(after(), before);

    place.write("script.luau", SCRIPT);
    let ended = place.sandboxctl(["run", "script.luau", "--commit", "never", "--diff"]);
    ended
        .assert_code(0)
        .assert_stderr_has("--- a/old\n+++ b/old\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n");
    ended.assert_stderr_has("note: discarded 3 changes (--commit never)");
    assert!(!ended.stderr.contains("wrote"), "{}", ended.stderr);
    assert_eq!(after(), before);

    let ended = place.sandboxctl(["run", "script.luau", "--json", "--commit", "never", "--diff"]);
    ended.assert_code(0).assert_stderr_has("-two\n+2\n");

    let ended = place.sandboxctl(["run", "script.luau", "--commit", "on-success"]);
    ended.assert_code(0).assert_stderr_has("note: committed 3 changes");
    assert_eq!(place.read("sandbox-files/old"), "one\n2\n");
}

#[test]
fn changes_of_commands_are_committed_if_they_succeed() {
    let commands = Commands::new();
    let place = &commands.place;
    place.write("sandbox-files/f", "old");
    let flags = ["--json", "--io-dir", "sandbox-files", "--commit", "on-success"];
    let line = "echo new > f; mkdir d; ln -s ../f d/link; chmod 700 d; echo x > 'd/a b'";
    let told = document(&commands.shell(&flags, &format!("{line}; exit 3")));
    assert_eq!((&told["exit_code"], &told["committed"]), (&json!(3), &json!(false)), "{told:#}");
    assert_eq!(place.read("sandbox-files/f"), "old");
    assert!(!place.path("sandbox-files/d").exists());

    let told = document(&commands.shell(&flags, line));
    assert_eq!((&told["status"], &told["committed"]), (&json!("ok"), &json!(true)), "{told:#}");
    let changes = told["changes"]["changes"].as_array().unwrap();
    let listed: Vec<_> = changes
        .iter()
        .map(|it| (it["path"].as_str().unwrap(), it["type"].as_str().unwrap()))
        .collect();
    assert_eq!(
        listed,
        [("d", "directory"), ("d/a b", "file"), ("d/link", "symlink"), ("f", "file")]
    );
    assert_eq!((&changes[0]["mode"], &changes[2]["target"]), (&json!("0700"), &json!("../f")));
    assert_eq!(place.read("sandbox-files/f"), "new\n");
    assert_eq!(fs::metadata(place.path("sandbox-files/d")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::read_link(place.path("sandbox-files/d/link")).unwrap(), Path::new("../f"));
}

#[test]
fn path_that_changes_meanwhile_is_a_conflict_and_commits_nothing() {
    let commands = Commands::new();
    let place = &commands.place;
    place.write("sandbox-files/f", "old");
    let flags =
        ["--json", "-i", "--io-dir", "sandbox-files", "--commit", "always", "--changes", "c.json"];
    let mut command = commands.exec(&flags, &["sh", "-c", "echo mine > f; echo x > g; read line"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = spawn(command);
    eventually("it runs", || (!place.containers().is_empty()).then_some(()));
    place.write("sandbox-files/f", "theirs");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut told = String::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        told += &line.unwrap();
    }
    assert_eq!(child.wait().unwrap().code(), Some(123), "{told}");
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["status"], &told["committed"]), (&json!("error"), &json!(false)), "{told:#}");
    assert_eq!(told["error"]["kind"], "conflict");
    assert!(told["error"]["message"].as_str().unwrap().contains("f changed"), "{told:#}");
    assert_eq!(place.read("sandbox-files/f"), "theirs");
    assert!(!place.path("sandbox-files/g").exists());
}

#[test]
fn controller_that_is_killed_commits_all_or_nothing() {
    for (point, is_committed) in [
        ("planned", false),
        ("synced", false),
        ("journaled", true),
        ("moving", true),
        ("applied", true),
    ] {
        let place = with_files();
        place.expect_a_dead_instance();
        place.write("script.luau", SCRIPT);
        let reached = place.home().join(format!("Commit(\"{point}\")"));
        let mut command = Command::new(sandboxctl());
        command.args(["run", "script.luau", "--commit", "on-success"]);
        place.equip(&mut command);
        command.env("SANDBOX_FAILPOINT", &reached);
        let mut child = spawn(command);
        eventually(point, || reached.exists().then_some(()));
        child.kill().unwrap();
        child.wait().unwrap();
        // The next command of this user on the io dir, whatever it is.
        let listed = place.sandboxctl(["fs", "ls"]);
        let expected = if is_committed { "kept\nnew\nold\n" } else { "gone\nkept\nold\n" };
        assert_eq!(listed.assert_code(0).stdout, expected, "{point}");
        let old = if is_committed { "one\n2\n" } else { "one\ntwo\n" };
        assert_eq!(seen(&place)["old"].0, old, "{point}");
        eventually("nothing is left", || {
            place.sandboxctl(["gc"]).assert_code(0);
            place.containers().is_empty().then_some(())
        });
    }
}

#[test]
fn flags_that_do_not_fit_say_what_does() {
    let place = with_files();
    place.write("a.luau", "return 1");
    let cases: &[(&[&str], &str, &str)] = &[
        (&["run", "a.luau", "a.luau", "--changes", "c"], "one script", "`changes`"),
        (&["run", "a.luau", "--json", "--changes", "-"], "stdout is taken", "`changes`"),
        (&["run", "a.luau", "--no-io", "--commit", "never"], "no io dir", "--io-dir"),
        (&["run", "a.luau", "--commit", "sometimes"], "on-success", "--help"),
        (&["run", "a.luau", "--changes", "no/such/dir/c"], "no/such/dir", ""),
    ];
    for (args, why, hint) in cases {
        let ended = place.sandboxctl(args.iter().copied());
        let told = format!("{}{}", ended.assert_code(2).stdout, ended.stderr);
        assert!(told.contains(why) && told.contains(hint), "{args:?}: {told}");
    }
    let commands = Commands::new();
    let ended = commands.shell(&["--changes", "c"], "true");
    ended.assert_code(2).assert_stderr_has("no io dir that stays").assert_stderr_has("--io-dir");
}
