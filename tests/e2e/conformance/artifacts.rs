//! Artifacts: what `--artifact` copies out of an io dir, and what it refuses.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::exec_cli::{Commands, document};
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually, files_below, finish, spawn, wait};

/// Asserts that coreutils accept the checksums of an artifacts directory, and lists its files.
#[track_caller]
fn verified(dir: &Path) -> Vec<String> {
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(dir);
    finish(check).assert_code(0);
    let paths = files_below(dir);
    paths.iter().map(|path| path.strip_prefix(dir).unwrap().to_string_lossy().into()).collect()
}

fn manifest(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("manifest.json")).unwrap()).unwrap()
}

/// The names in the working directory that begin as ours do.
fn leftovers(place: &Fixture) -> Vec<String> {
    let entries = std::fs::read_dir(place.work()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".sandboxctl")).collect()
}

const SCRIPT: &str = "fs.mkdir('dist/sub'); fs.write('dist/a.txt', 'one'); \
    fs.write('dist/sub/b.json', '{}'); fs.write('dist/c.tmp', 'x'); fs.write('other', 'x')";

#[test]
fn artifacts_of_a_script_are_copied_with_manifest_and_checksums() {
    let place = Fixture::new();
    let flags = ["--artifact", "dist/**", "--artifact", "!**/*.tmp", "--artifacts-dir", "new/out"];
    let reported = place.run_json(SCRIPT, &flags);
    let out = place.path("new/out");
    let expected = json!({"dir": out.to_str().unwrap(), "files": 2, "bytes": 5, "omitted": []});
    assert_eq!(reported["artifacts"], expected, "{reported:#}");
    let files = ["SHA256SUMS", "dist/a.txt", "dist/sub/b.json", "manifest.json"];
    assert_eq!(verified(&out), files);
    let manifest = manifest(&out);
    assert_eq!(manifest["schema"], "sandboxctl.artifacts/1");
    let sha256 = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
    let first = json!({"path": "dist/a.txt", "bytes": 3, "sha256": sha256, "mode": "0644",
        "mime": "text/plain"});
    assert_eq!(manifest["files"][0], first);
    assert_eq!(place.read("sandbox-files/dist/c.tmp"), "x");
    // Without the flags there is no such member.
    assert_eq!(place.run_json("return 1", &[]).get("artifacts"), None);
    // The path that the script sees is as good as a relative one.
    let ended = place.sandboxctl([
        "run", "script.luau", "--artifact", "/io/dist/a.txt", "--artifacts-dir", "second",
    ]);
    ended.assert_code(0);
    let line = format!("note: copied 1 file (3 B) to {}\n", place.path("second").display());
    assert_eq!(ended.stderr, line);
}

#[test]
fn artifacts_of_a_command_come_from_its_fresh_io_dir_whatever_its_exit_code() {
    let commands = Commands::new();
    let flags = ["--artifact", "report.xml", "--artifact", "dist/*", "--artifacts-dir", "out"];
    let line = "echo '<x/>' > report.xml; printf '#!/bin/sh' > run; chmod 700 run; exit 7";
    let ended = commands.shell(&flags, line);
    ended.assert_code(7);
    let out = commands.place.path("out");
    let notes = format!(
        "note: copied 1 file (5 B) to {}\nnote: no file matches the artifact 'dist/*'\n",
        out.display()
    );
    assert_eq!(ended.stderr, notes);
    assert_eq!(verified(&out), ["SHA256SUMS", "manifest.json", "report.xml"]);

    // Long enough for the shell to have made it, on a busy machine too.
    let flags = ["--json", "--artifact", "run", "--artifacts-dir", "two", "--timeout", "5s"];
    let reported = document(&commands.shell(&flags, &format!("({line}); sleep 1000")));
    assert_eq!(
        (&reported["status"], &reported["artifacts"]["files"]),
        (&json!("timeout"), &json!(1))
    );
    assert_eq!(manifest(&commands.place.path("two"))["files"][0]["mode"], "0755");
}

#[test]
fn links_special_files_and_odd_names_are_listed_and_never_followed() {
    let commands = Commands::new();
    let line = r#"mkdir d; n=$(printf 'd/new\nline\\x'); printf x > "${n%x}"; printf z > d/-f
        printf y > "$(printf 'd/\377')"; ln -s /etc/passwd d/link; ln -s / root; mkfifo d/fifo"#;
    let flags = ["--json", "--artifact", "**", "--artifacts-dir", "out"];
    let reported = document(commands.shell(&flags, line).assert_code(0));
    let mut omitted = vec![
        json!({"path": "d/link", "reason": "symlink"}),
        json!({"path": "root", "reason": "symlink"}),
    ];
    // Another kernel keeps its FIFOs to itself.
    if has(Feature::SharedKernel) {
        omitted.insert(0, json!({"path": "d/fifo", "reason": "fifo"}));
    }
    assert_eq!(reported["artifacts"]["omitted"], json!(omitted), "{reported:#}");
    let out = commands.place.path("out");
    verified(&out);
    for (name, content) in [(&b"new\nline\\"[..], "x"), (b"\xff", "y"), (b"-f", "z")] {
        let path = out.join("d").join(OsStr::from_bytes(name));
        assert_eq!(std::fs::read_to_string(path).unwrap(), content);
    }
    assert_eq!(manifest(&out)["files"][2]["path_b64"], "ZC//", "{:#}", manifest(&out));
    commands.place.sandboxctl(["artifacts", "verify", "out"]).assert_code(0);
}

#[test]
fn glob_without_a_match_fails_a_run_that_was_ok() {
    let place = Fixture::new();
    place.write("a.luau", "fs.write('a.txt', 'x')");
    let run = |more: &[&str]| {
        let all = ["run", "a.luau", "--artifact", "*.whl", "--artifacts-dir", "out"];
        place.sandboxctl(all.iter().chain(more))
    };
    let ended = run(&[]);
    ended.assert_code(125);
    let text = "error: no file matches '*.whl'\nhint: globs are relative to the io dir; \
                --artifact-optional allows no match\n";
    assert_eq!(ended.stderr, text);
    let reported = place.document(run(&["--json"]).assert_code(125));
    assert_eq!((&reported["status"], &reported["artifacts"]["files"]), (&json!("ok"), &json!(0)));
    assert_eq!(reported["artifacts"]["error"]["kind"], "not_found", "{reported:#}");
    assert!(!place.path("out").exists());
    let reported = place.document(run(&["--json", "--artifact-optional"]).assert_code(0));
    assert_eq!(reported["artifacts"]["unmatched"], json!(["*.whl"]));
    assert_eq!(verified(&place.path("out")), ["SHA256SUMS", "manifest.json"]);
}

#[test]
fn artifacts_directory_that_cannot_be_used_is_refused_before_anything_runs() {
    let place = Fixture::new();
    place.write("a.luau", "fs.write('ran', 'x')");
    place.write("full/f", "x");
    std::fs::create_dir(place.path("empty")).unwrap();
    std::fs::create_dir(place.path("input")).unwrap();
    symlink("empty", place.path("link")).unwrap();
    let refused = |args: &[&str], text: &str| {
        let all = ["run", "a.luau", "--io-dir", "io"];
        place.sandboxctl(all.iter().chain(args)).assert_code(2).assert_stderr_has(text);
        assert!(!place.path("io").exists(), "{args:?}");
    };
    let dir = |dir: &str, text: &str| {
        refused(&["--artifact", "**", "--in", "input", "--artifacts-dir", dir], text);
    };
    dir("full", "it is not empty\nhint: name another directory");
    dir("full/f", "Not a directory");
    dir("link", "it is a symbolic link");
    dir("io", "it is the io dir");
    dir("io/sub/out", "it is in the io dir");
    dir("input/out", "it is in an input");
    dir(".", "is in it");
    dir("/proc/artifacts", "it is on a pseudo file system");
    refused(&["--artifact", "*"], "hint: --artifacts-dir DIR names one");
    refused(&["--artifacts-dir", "out"], "hint: --artifact GLOB selects");
    refused(&["--artifact-optional"], "there are no artifacts");
    refused(&["--artifact", "!*", "--artifacts-dir", "out"], "every glob excludes");
    refused(&["--artifact", "../x", "--artifacts-dir", "out"], "it contains '..'");
    refused(&["--artifact", "/etc/*", "--artifacts-dir", "out"], "it is not in the io dir");
    refused(&["a.luau", "--artifact", "*", "--artifacts-dir", "out"], "one script at a time");
    let no_io = ["run", "a.luau", "--no-io", "--artifact", "*", "--artifacts-dir", "out"];
    place.sandboxctl(no_io).assert_code(2).assert_stderr_has("without an io dir");
    assert!(!place.path("out").exists());
}

#[test]
fn nothing_that_a_run_made_is_written_into_directories_of_sandboxctl() {
    let place = Fixture::new();
    let own = place.state().join("sandboxctl").join("out");
    outputs_are_refused(&place, &own, "it is in the state directory");
}

/// Every output that a command line can name, at a path where none may be: `why` is why.
pub(super) fn outputs_are_refused(place: &Fixture, own: &Path, why: &str) {
    place.write("a.luau", "fs.write('ran', 'x')");
    let own = own.to_str().unwrap();
    let report = format!("junit={own}");
    let outputs: [&[&str]; 6] = [
        &["--audit", own],
        &["--artifact", "*", "--artifacts-dir", own],
        &["--commit", "never", "--keep-staged", own],
        &["--changes", own],
        &["--receipt", own],
        &["--report", &report],
    ];
    for output in outputs {
        let all = ["run", "a.luau", "--io-dir", "io"];
        let refused = place.sandboxctl(all.iter().chain(output));
        refused.assert_code(2).assert_stderr_has(why);
        assert!(!place.path("io").exists(), "{output:?}");
    }
    let copied = place.sandboxctl(["fs", "--io-dir", "io", "cp", ":a", own]);
    copied.assert_code(2).assert_stderr_has("hint: give another directory");
    for variable in ["GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"] {
        let mut step = place.command(["run", "a.luau", "--io-dir", "io"]);
        let ended = step.env("GITHUB_ACTIONS", "true").env(variable, own).output().unwrap();
        let log = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{log}");
        assert!(log.contains(variable) && log.contains(why), "{log}");
    }
    assert!(!place.path("io").exists());
    // Nor what else the command line names.
    place.write("artifacts/manifest.json", "{}");
    let archive = format!("{own}.tar.gz");
    let download = ["executions", "--server", "http://127.0.0.1:1", "download", "aaaaaaaaaaaaaaaa"];
    let others: [&[&str]; 6] = [
        &["artifacts", "archive", "artifacts", "-o", &archive],
        &[&download[..], &["-o", own]].concat(),
        &["image", "save", own],
        &["keys", "new", own],
        &["server", "backup", own, "--data-dir", "elsewhere"],
        &["man", "--dir", own],
    ];
    for other in others {
        let refused = place.sandboxctl(other);
        refused.assert_code(2).assert_stderr_has(why);
    }
    assert!(!Path::new(own).exists());
}

#[test]
fn link_that_a_guest_left_in_the_io_dir_leads_no_output_elsewhere() {
    let place = Fixture::new();
    place.write("a.luau", "fs.write('ran', 'x')");
    place.write("sandbox-files/a", "guest");
    place.write("file", "old");
    std::fs::create_dir(place.path("elsewhere")).unwrap();
    symlink("../elsewhere", place.path("sandbox-files/link")).unwrap();
    symlink("../file", place.path("sandbox-files/b")).unwrap();
    for to in ["sandbox-files/b", "sandbox-files/link/c", "sandbox-files/link", "sandbox-files/new"]
    {
        let refused = place.sandboxctl(["fs", "cp", ":a", to]);
        refused.assert_code(2).assert_stderr_has("is in the io dir");
        refused.assert_stderr_has("hint: a path that begins with a colon is the sandbox's");
    }
    let run = ["run", "a.luau", "--artifact", "**", "--artifacts-dir", "sandbox-files/link/out"];
    place.sandboxctl(run).assert_code(2).assert_stderr_has("is in the io dir");
    assert_eq!(place.read("file"), "old");
    assert_eq!(std::fs::read_dir(place.path("elsewhere")).unwrap().count(), 0);
    assert!(!place.path("sandbox-files/ran").exists());
}

#[test]
fn command_that_is_ended_while_it_copies_leaves_no_artifacts() {
    let place = Fixture::new();
    place.write("a.luau", "fs.write('a.txt', 'x')");
    std::fs::create_dir(place.path("points")).unwrap();
    let copying = |json: &[&str]| {
        let reached = place.path("points").join("Copying");
        let run = ["run", "a.luau", "--artifact", "*", "--artifacts-dir", "out"];
        let mut command = place.command(run.iter().chain(json));
        command.env("SANDBOX_FAILPOINT", &reached);
        let child = spawn(command);
        eventually("it copies", || reached.exists().then_some(()));
        std::fs::remove_file(reached).unwrap();
        assert_eq!(leftovers(&place).len(), 1);
        child
    };
    let child = copying(&["--json"]);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let reported = place.document(wait(child).assert_code(143));
    assert_eq!((&reported["status"], &reported["artifacts"]["files"]), (&json!("ok"), &json!(0)));
    assert_eq!(reported["artifacts"]["error"]["kind"], "cancelled");
    assert_eq!(leftovers(&place), Vec::<String>::new());
    assert!(!place.path("out").exists());
    assert_eq!(place.read("sandbox-files/a.txt"), "x");

    // Killed, it can remove nothing: the next command that writes there does.
    place.expect_a_dead_instance();
    let mut child = copying(&[]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(leftovers(&place).len(), 1);
    eventually("its container is gone", || {
        place.sandboxctl(["gc"]).assert_code(0);
        place.containers().is_empty().then_some(())
    });
    let run = ["run", "a.luau", "--artifact", "*", "--artifacts-dir", "out"];
    place.sandboxctl(run).assert_code(0);
    assert_eq!(leftovers(&place), Vec::<String>::new());
    assert_eq!(verified(&place.path("out")), ["SHA256SUMS", "a.txt", "manifest.json"]);
}

#[test]
fn artifacts_are_verified_archived_and_compared() {
    let place = Fixture::new();
    place.write("a.luau", SCRIPT);
    let copy =
        |to: &str| place.sandboxctl(["run", "a.luau", "--artifact", "dist", "--artifacts-dir", to]);
    copy("one").assert_code(0);
    copy("two").assert_code(0);
    let artifacts = |args: &[&str]| place.sandboxctl(["artifacts"].iter().chain(args));
    let ended = artifacts(&["verify", "one"]);
    assert_eq!(ended.assert_code(0).stdout, "verified 3 files (6 B)\n");
    for name in ["a.tar.zst", "a.tar.gz", "a.zip"] {
        artifacts(&["archive", "one", "-o", name]).assert_code(0);
        let one = std::fs::read(place.path(name)).unwrap();
        artifacts(&["archive", "two", "-o", name]).assert_code(0);
        assert!(one == std::fs::read(place.path(name)).unwrap(), "{name}");
    }
    artifacts(&["archive", "one", "-o", "a.rar"]).assert_code(2).assert_stderr_has("a.rar");
    assert_eq!(artifacts(&["diff", "one", "two"]).assert_code(0).stdout, "");

    place.write("two/dist/a.txt", "two");
    place.write("two/dist/\u{1b}[31m", "");
    let ended = artifacts(&["verify", "two"]);
    let lines = "unexpected dist/\\u{1b}[31m\nchanged    dist/a.txt\n";
    assert_eq!(ended.assert_code(1).stdout, lines);
    let ended = artifacts(&["verify", "two", "--json"]);
    let reported: Value = serde_json::from_str(&ended.assert_code(1).stdout).unwrap();
    assert_eq!(reported["differences"][1], json!({"path": "dist/a.txt", "change": "changed"}));
    let old = std::fs::read(place.path("a.zip")).unwrap();
    let ended = artifacts(&["archive", "two", "-o", "a.zip"]);
    ended.assert_code(2).assert_stderr_has("differs from its manifest");
    assert!(old == std::fs::read(place.path("a.zip")).unwrap());
    artifacts(&["diff", "one", "two"]).assert_code(2);
    artifacts(&["verify", "sandbox-files"]).assert_code(2).assert_stderr_has("manifest.json");

    place.write(
        "a.luau",
        format!("{SCRIPT}; fs.write('dist/a.txt', 'new'); fs.remove('dist/c.tmp')"),
    );
    copy("three").assert_code(0);
    let ended = artifacts(&["diff", "one", "three"]);
    assert_eq!(ended.assert_code(1).stdout, "changed    dist/a.txt\nremoved    dist/c.tmp\n");
    let reported: Value =
        serde_json::from_str(&artifacts(&["diff", "one", "three", "--json"]).stdout).unwrap();
    assert_eq!(reported["differences"][1], json!({"path": "dist/c.tmp", "change": "removed"}));
    assert_eq!(leftovers(&place), Vec::<String>::new());
}
