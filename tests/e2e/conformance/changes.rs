//! Changes of an io dir: listed, and committed atomically.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::exec_cli::{Commands, document};
use crate::engine::{Engine, docker, engine};
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually, files_below, finish, sandboxctl, spawn, wait};

/// The digest that coreutils compute.
fn sha256(path: &Path) -> String {
    let mut sum = Command::new("sha256sum");
    sum.arg(path);
    finish(sum).stdout.split(' ').next().unwrap().to_owned()
}

/// Name, content and times of everything in the io dir; and no file of the project next to it.
fn seen(place: &Fixture) -> BTreeMap<String, (String, i64, i64)> {
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

fn with_files() -> Fixture {
    let place = Fixture::new();
    place.write("sandbox-files/kept", "kept\n");
    place.write("sandbox-files/old", "one\ntwo\n");
    place.write("sandbox-files/gone", "gone\n");
    place
}

const SCRIPT: &str = "fs.write('old', 'one\\n2\\n'); fs.write('new', 'new\\n'); os.remove('gone'); return fs.read('kept')";

#[test]
fn manifest_of_a_script_is_what_changed() {
    let place = with_files();
    let reported = place.run_json(SCRIPT, &["--changes", "changes.json"]);
    assert_eq!(
        (&reported["result"], &reported["committed"]),
        (&json!("kept\n"), &json!(true)),
        "{reported:#}"
    );
    let manifest: Value = serde_json::from_str(&place.read("changes.json")).unwrap();
    assert_eq!(
        manifest,
        json!({"schema": "sandboxctl.changes/1", "changes": reported["changes"]["changes"],
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
    let reported = place.run_json(
        &SCRIPT.replace("return fs.read('kept')", "error('late')"),
        &["--commit", "on-success"],
    );
    assert_eq!(
        (&reported["status"], &reported["committed"]),
        (&json!("script_error"), &json!(false))
    );
    assert_eq!(reported["changes"]["changes"].as_array().unwrap().len(), 3);
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

/// What an overlay takes for itself, and for what was removed, is not the script's.
#[test]
fn a_script_that_is_staged_has_all_of_its_limits() {
    let place = Fixture::new();
    for number in 0..40 {
        place.write(&format!("sandbox-files/old-{number}"), "old");
    }
    let source = "for n = 1, 9 do fs.write('new-' .. n, 'x') end fs.write('large', string.rep('x', 1000000)) \
                  for n = 0, 39 do os.remove('old-' .. n) end \
                  local ok, why = pcall(fs.write, 'one more', 'x') return {ok, tostring(why)}";
    let limits = ["--entries", "10", "--max-write", "1MiB", "--commit", "on-success"];
    let reported = place.run_json(source, &limits);
    let expected = (&json!([false, "too many files created (max 10)"]), &json!(true));
    assert_eq!((&reported["result"], &reported["committed"]), expected, "{reported:#}");
    assert_eq!(seen(&place).len(), 10);
    let most = ["--entries", "2", "--max-write", "100KB", "--commit", "on-success"];
    let reported = place.run_json("fs.write('most', string.rep('x', 100000))", &most);
    assert_eq!(reported["committed"], true, "{reported:#}");
}

#[test]
fn diff_in_a_file_is_what_git_and_patch_apply() {
    let place = Fixture::new();
    for folder in ["sandbox-files", "git", "patch"] {
        place.write(&format!("{folder}/a name"), "one\r\ntwo\r\n");
        place.write(&format!("{folder}/gone"), "");
    }
    let source =
        "fs.write('a name', 'one\\r\\n2\\r\\n'); fs.write('new\\n', '\\0\\r'); os.remove('gone')";
    let ended = place.sandboxctl(["run", "-c", source, "--commit", "never", "--diff"]);
    place.write("changes.diff", &ended.assert_code(0).stderr);
    for (program, args) in [
        ("git", &["apply", "--whitespace=nowarn", "../changes.diff"][..]),
        ("patch", &["-p1", "-s", "-f", "-i", "../changes.diff"]),
    ] {
        let mut apply = Command::new(program);
        apply.args(args).current_dir(place.path(program));
        apply.env("GIT_CEILING_DIRECTORIES", place.work());
        finish(apply).assert_code(0);
        let files = files_below(&place.path(program));
        assert_eq!(files.len(), 2, "{program}: {files:?}");
        assert_eq!(place.read(&format!("{program}/a name")), "one\r\n2\r\n");
        assert_eq!(place.read(&format!("{program}/new\n")), "\0\r");
    }
}

#[test]
fn diff_in_a_file_has_nothing_that_the_guest_wrote_to_stderr() {
    let commands = Commands::new();
    let line = "echo x > f; printf -- '--- /dev/null\\n+++ b/g\\n@@ -0,0 +1 @@\\n+y\\n' >&2";
    let refused = commands.shell(&["--io-dir", "files", "--diff"], line);
    refused.assert_code(2).assert_stderr_has("hint: --diff=FILE writes the diff alone to a file");
    assert!(!commands.place.path("files/f").exists());
    let ended = commands.shell(&["--io-dir", "files", "--diff=f.diff"], line);
    ended.assert_code(0).assert_stderr_has("+y\n");
    assert!(!ended.stderr.contains("+x"), "{}", ended.stderr);
    let diff = commands.place.read("f.diff");
    assert!(diff.contains("+++ b/f\n") && !diff.contains("b/g"), "{diff}");
    // Where the document has the command's stderr, the diff is alone too.
    let ended =
        commands.shell(&["--io-dir", "files", "--json", "--diff"], "echo z > f; echo hello >&2");
    ended.assert_code(0).assert_stderr_has("+z\n");
    assert!(!ended.stderr.contains("hello"), "{}", ended.stderr);
    let flags = [(&["-r", "--diff"][..], 2), (&["-r", "--diff=r.diff"], 0), (&["--diff=-"], 2)];
    for (flags, code) in flags {
        let mut run = commands.place.command(["run", "--io-dir", "files"]);
        run.args(flags).args(["-c", "fs.write('f', 'w')"]);
        finish(run).assert_code(code);
    }
}

#[test]
fn changes_of_commands_are_committed_if_they_succeed() {
    let commands = Commands::new();
    let place = &commands.place;
    place.write("sandbox-files/f", "old");
    let flags = ["--json", "--io-dir", "sandbox-files", "--commit", "on-success"];
    let line = "echo new > f; mkdir d; ln -s ../f d/link; chmod 700 d; echo x > 'd/a b'";
    let reported = document(&commands.shell(&flags, &format!("{line}; exit 3")));
    assert_eq!(
        (&reported["exit_code"], &reported["committed"]),
        (&json!(3), &json!(false)),
        "{reported:#}"
    );
    assert_eq!(place.read("sandbox-files/f"), "old");
    assert!(!place.path("sandbox-files/d").exists());

    let reported = document(&commands.shell(&flags, line));
    assert_eq!(
        (&reported["status"], &reported["committed"]),
        (&json!("ok"), &json!(true)),
        "{reported:#}"
    );
    let changes = reported["changes"]["changes"].as_array().unwrap();
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
    let marker = place.work().display().to_string();
    let line = format!("echo mine > f; echo x > g; exec grep -q '{marker}'");
    let mut command = commands.exec(&flags, &["sh", "-c", &line]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = spawn(command);
    // Wherever its stage is: a container may be one that had to be started again by a copy.
    let is_there = |at: &Path| files_below(at).iter().any(|file| file.ends_with("g"));
    // Or its last program runs: a stage in an image has no path.
    let waits = format!("grep\0-q\0{marker}\0");
    let is_waiting = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|it| fs::read(it.path().join("cmdline")).ok());
        lines.any(|line| line == waits.as_bytes())
    };
    eventually("it has written", || {
        let has_written = is_waiting() || is_there(&place.work()) || is_there(&place.scratch());
        has_written.then_some(())
    });
    place.write("sandbox-files/f", "theirs");
    writeln!(child.stdin.take().unwrap(), "{marker}").unwrap();
    let mut reported = String::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        reported += &line.unwrap();
    }
    assert_eq!(child.wait().unwrap().code(), Some(123), "{reported}");
    let reported: Value = serde_json::from_str(&reported).unwrap();
    assert_eq!(
        (&reported["status"], &reported["committed"]),
        (&json!("error"), &json!(false)),
        "{reported:#}"
    );
    assert_eq!(reported["error"]["kind"], "conflict");
    assert!(reported["error"]["message"].as_str().unwrap().contains("f changed"), "{reported:#}");
    assert_eq!(place.read("sandbox-files/f"), "theirs");
    assert!(!place.path("sandbox-files/g").exists());
}

#[test]
fn path_that_changes_during_the_commit_is_a_conflict_and_not_in_the_manifest() {
    let place = Fixture::new();
    place.write("sandbox-files/f", "old");
    place.write("a.luau", "fs.write('f', 'run') fs.write('g', 'run')");
    let point = place.home().join("Commit(\"journaled\")");
    let mut command = Command::new(sandboxctl());
    command.args(["run", "a.luau", "--changes", "c.json", "--json"]);
    place.equip(&mut command);
    let run = spawn({
        command.env("SANDBOX_FAILPOINT", &point);
        command
    });
    eventually("it begins to commit", || point.exists().then_some(()));
    place.write("sandbox-files/f", "theirs, and longer");
    fs::write(point.with_extension("go"), "").unwrap();
    let ended = wait(run);
    let reported = place.document(&ended);
    assert_eq!((ended.code, &reported["error"]["kind"]), (123, &json!("conflict")), "{reported:#}");
    assert!(reported["error"]["message"].as_str().unwrap().contains("f changed"), "{reported:#}");
    let manifest: Value = serde_json::from_str(&place.read("c.json")).unwrap();
    let paths: Vec<_> =
        manifest["changes"].as_array().unwrap().iter().map(|change| &change["path"]).collect();
    assert_eq!(paths, ["g"], "{manifest:#}");
    assert_eq!(place.read("sandbox-files/f"), "theirs, and longer");
    assert_eq!(place.read("sandbox-files/g"), "run");
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
        // Any next command of this user on the io dir.
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
        let reported = format!("{}{}", ended.assert_code(2).stdout, ended.stderr);
        assert!(reported.contains(why) && reported.contains(hint), "{args:?}: {reported}");
    }
    let kept = |dir| ["run", "a.luau", "--keep-staged", dir];
    for (dir, why) in [
        ("sandbox-files/kept-here", "is in the io dir"),
        ("sandbox-files", "exists"),
        ("no/such/dir", "No such file"),
    ] {
        place.sandboxctl(kept(dir)).assert_code(2).assert_stderr_has(why);
    }
    let commands = Commands::new();
    let ended = commands.shell(&["--changes", "c"], "true");
    ended.assert_code(2).assert_stderr_has("no io dir that stays").assert_stderr_has("--io-dir");
}

/// How a run on this io dir is staged, on this machine.
fn method() -> &'static str {
    let is_root = rustix::process::geteuid().is_root();
    if is_root && has(Feature::Overlay) { "overlay" } else { "copy" }
}

/// Everything that Docker has mounted or keeps for containers.
fn volumes() -> String {
    match engine() {
        Engine::Docker => String::from_utf8(docker(&["volume", "ls", "-q"]).stdout).unwrap(),
        Engine::Embedded => String::new(),
    }
}

#[test]
fn staging_is_an_overlay_where_there_can_be_one_and_leaves_nothing_of_it() {
    // Names that mean something in mount options.
    let place = Fixture::new();
    let before = volumes();
    place.write("a:b,c\\d=e/kept", "kept");
    place.write("a:b,c\\d=e/dir/inner/f", "f");
    place.write("a:b,c\\d=e/replaced/old", "old");
    let script = "fs.rename('dir', 'moved'); fs.write('kept', 'changed'); \
        fs.remove('replaced', {recursive = true}); fs.mkdir('replaced'); \
        fs.write('replaced/new', 'new')";
    let reported = place.run_json(script, &["--io-dir", "a:b,c\\d=e", "--commit", "on-success"]);
    assert_eq!(
        (&reported["staging"], &reported["committed"]),
        (&json!(method()), &json!(true)),
        "{reported:#}"
    );
    let moved = reported["changes"]["changes"].as_array().unwrap();
    let moved = moved.iter().find(|it| it["path"] == "moved/inner/f").unwrap();
    assert_eq!((&moved["op"], &moved["from"]), (&json!("created"), &json!("dir/inner/f")));
    let io_dir = place.path("a:b,c\\d=e");
    let mut left: Vec<_> = files_below(&io_dir);
    left.sort();
    let expected = ["kept", "moved/inner/f", "replaced/new"].map(|name| io_dir.join(name));
    assert_eq!(left, expected);
    for path in left.iter().map(PathBuf::as_path).chain([&*io_dir, &io_dir.join("moved")]) {
        let mut names = [0; 1024];
        let length = rustix::fs::listxattr(path, &mut names).unwrap_or(0);
        let names = String::from_utf8_lossy(&names[..length]).into_owned();
        assert!(!names.contains("overlay"), "{}: {names}", path.display());
    }
    if engine() == Engine::Docker {
        // Others may have some at the same time; none is of an overlay that is gone.
        let left: Vec<String> = volumes().lines().map(str::to_owned).collect();
        let new = left.iter().filter(|volume| !before.contains(volume.as_str()));
        for volume in new {
            eventually("the volume ends with its container", || {
                (!volumes().contains(volume.as_str())).then_some(())
            });
        }
    }
}

#[test]
fn files_that_a_staged_command_removed_and_changed_are_listed_as_in_place() {
    let commands = Commands::new();
    let place = &commands.place;
    let list = |flags: &[&str]| {
        place.write("io/a/one", "1");
        place.write("io/a/b/two", "2");
        place.write("io/c/three", "3");
        place.write("io/kept", "kept");
        place.write("io/written", "old");
        let line = "rm -r a; rm -r c; mkdir c; echo 4 > c/four; echo more >> written";
        let flags: Vec<&str> = ["--json", "--io-dir", "io"].iter().chain(flags).copied().collect();
        let reported = document(&commands.shell(&flags, line));
        fs::remove_dir_all(place.path("io")).unwrap();
        (reported["files_touched"].clone(), reported["files_touched_truncated"].clone())
    };
    let in_place = list(&[]);
    assert_eq!(in_place.0.as_array().unwrap().len(), 5, "{in_place:#?}");
    assert_eq!(list(&["--commit", "on-success"]), in_place);
}

#[test]
fn first_write_to_a_large_file_counts_against_the_write_limit() {
    let commands = Commands::new();
    let place = &commands.place;
    place.write("io/large", vec![b'x'; 24 << 20]);
    place.write("io/one", vec![b'x'; 6 << 20]);
    place.write("io/two", vec![b'x'; 6 << 20]);
    let flags = ["--json", "--io-dir", "io", "--commit", "on-success", "--max-write", "8MiB"];
    let is_overlay = method() == "overlay";
    // The kernel refuses to make a file that large, copied or not.
    let reported = document(&commands.shell(&flags, "echo more >> large"));
    assert_ne!(reported["status"], "ok", "{reported:#}");
    let reported = document(&commands.shell(&flags, "echo more | tee -a one >> two; sleep 3"));
    // Where the kernel bounds the changes, the copy itself fails.
    let is_bounded = reported["disk"]["bound"] == "kernel";
    // Since Linux 6.15 an image takes the changes of an overlay.
    let has_images = linux() >= (6, 15) && Path::new("/dev/loop-control").exists();
    assert_eq!(is_bounded, is_overlay && has_images, "{reported:#}");
    let is_ended = is_overlay && !is_bounded;
    assert_eq!(reported["status"] == "limit", is_ended, "{reported:#}");
    let (text, expected) = match is_bounded {
        true => (&reported["stderr"], "No space left on device"),
        false => (&reported["error"]["message"], "copied when it is first"),
    };
    assert!(!is_overlay || text.as_str().unwrap().contains(expected), "{reported:#}");
    let script = "for _, name in {'one', 'two'} do local f = io.open(name, 'a'); f:write('x'); \
        f:close() end";
    let reported = place.run_json(script, &flags[1..]);
    assert_eq!(reported["status"] == "ok", !is_overlay, "{reported:#}");
    assert_eq!(reported["error"]["kind"] == "write_limit", is_ended, "{reported:#}");
    assert_eq!(fs::metadata(place.path("io/one")).unwrap().len() == 6 << 20, is_overlay);
}

#[test]
fn artifacts_and_a_kept_tree_have_everything_that_the_run_saw() {
    let place = with_files();
    place.write("script.luau", SCRIPT.replace("return fs.read('kept')", "error('late')"));
    let artifacts = ["--artifact", "**", "--artifacts-dir", "dist"];
    let kept = ["--commit", "on-success", "--keep-staged", "staged"];
    let ended = place.sandboxctl(["run", "script.luau"].iter().chain(&artifacts).chain(&kept));
    ended.assert_code(1).assert_stderr_has("note: kept 3 changes in staged");
    for dir in ["dist", "staged"] {
        let names = ["kept", "old", "new"].map(|name| place.read(&format!("{dir}/{name}")));
        assert_eq!(names, ["kept\n", "one\n2\n", "new\n"], "{dir}");
        assert!(!place.path(dir).join("gone").exists(), "{dir}");
    }
    assert_eq!(place.read("sandbox-files/old"), "one\ntwo\n");
    // Nothing to keep where everything was committed.
    place.write("script.luau", SCRIPT);
    let kept = ["--commit", "on-success", "--keep-staged", "again"];
    place.sandboxctl(["run", "script.luau"].iter().chain(&kept)).assert_code(0);
    assert!(!place.path("again").exists());
}

/// The version of the kernel, major and minor.
fn linux() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(|it| it.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
