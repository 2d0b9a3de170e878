//! What the sandbox's owner allows, and what is written down of it, through the whole way down.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde_json::{Value, json};

use crate::fixture::{Ended, Fixture};

/// A script that reports the outcome of each of these calls.
fn attempts(calls: &[(&str, &str)]) -> String {
    let tries = calls.iter().map(|(name, call)| {
        format!(
            "do local ok, e = pcall(function() return {call} end) \
             seen[\"{name}\"] = if ok then 'ok' else tostring(e) end\n"
        )
    });
    format!("local seen = {{}}\n{}return seen", tries.collect::<String>())
}

/// The lines of an audit.
fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.ends_with('\n'), "{text}");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Of a line, what is the same each time.
fn reported(line: &Value) -> Value {
    json!([line["operation"], line["by"], line["path"], line["outcome"], line["bytes"]])
}

fn fifo(place: &Fixture) -> PathBuf {
    let path = place.path("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    path
}

fn run(place: &Fixture, source: &str, args: &[&str]) -> Ended {
    let script = place.write("script.luau", source);
    place.sandboxctl(["run", script.to_str().unwrap()].iter().chain(args))
}

/// Does operations in one sandbox, and gives of each its envelope.
fn batch(place: &Fixture, args: &[&str], operations: &[Value]) -> Vec<Value> {
    let lines: String = operations.iter().map(|operation| format!("{operation}\n")).collect();
    let args = ["fs", "batch", "--keep-going"].iter().chain(args);
    let ended = place.sandboxctl_with(lines.as_bytes(), args);
    let envelopes: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(envelopes.len(), operations.len(), "{ended:#?}");
    envelopes
}

/// `ok`, or the kind of the error.
fn outcome(envelope: &Value) -> &str {
    envelope["error"]["kind"].as_str().unwrap_or("ok")
}

#[test]
fn a_protected_name_refuses_what_would_change_it_and_is_read() {
    let place = Fixture::new();
    place.write("sandbox-files/a/.git/hooks/pre-commit", "old");
    place.write("sandbox-files/.bashrc", "old");
    place.write("sandbox-files/x", "x");
    let calls = [
        ("hook", "fs.write('a/.git/hooks/pre-commit', 'new')"),
        ("open", "io.open('.bashrc', 'a')"),
        ("case", "fs.write('.BashRC', 'new')"),
        ("remove", "os.remove('.bashrc')"),
        ("tree", "fs.remove('a', {recursive = true})"),
        ("onto", "os.rename('x', '.bashrc')"),
        ("away", "os.rename('a/.git', 'b')"),
        ("own", "fs.write('secret.key', 'new')"),
        ("read", "fs.read('.bashrc')"),
        ("other", "fs.write('.bashrc2', 'new')"),
    ];
    let config = place.write("c.toml", "[filesystem]\nprotected = ['secret.key']\n");
    let args = ["--protect", "--config", config.to_str().unwrap()];
    let document = place.run_json(&attempts(&calls), &args);
    let seen = &document["result"];
    for name in ["hook", "open", "case", "remove", "tree", "onto", "away", "own"] {
        let message = seen[name].as_str().unwrap();
        assert!(message.contains("protected"), "{name}: {document:#}");
    }
    assert_eq!((&seen["read"], &seen["other"]), (&json!("ok"), &json!("ok")), "{document:#}");
    assert_eq!(place.read("sandbox-files/.bashrc"), "old");
    assert_eq!(place.read("sandbox-files/a/.git/hooks/pre-commit"), "old");

    // Only configured names are protected.
    let document = place.run_json(&attempts(&calls[..2]), &[]);
    assert_eq!(document["result"], json!({"hook": "ok", "open": "ok"}), "{document:#}");
}

#[test]
fn a_protected_name_cannot_be_moved_in_any_spelling() {
    let place = Fixture::new();
    place.write("sandbox-files/proj/.git/config", "old");
    place.write("sandbox-files/proj/src/f", "old");
    let calls = [
        ("rename", "os.rename('proj', 'old')"),
        ("remove", "fs.remove('proj', {recursive = true})"),
        ("dot", "fs.write('proj/.git.', 'new')"),
        ("space", "fs.write('proj/.git /config', 'new')"),
        ("short", "fs.mkdir('proj/GIT~1')"),
        ("stream", "io.open('proj/.git::$INDEX_ALLOCATION', 'w')"),
        ("unseen", "fs.write('proj/.gi\u{200c}t', 'new')"),
        ("short file", "fs.write('BASHRC~1', 'new')"),
        ("other", "os.rename('proj/src', 'src')"),
    ];
    let document = place.run_json(&attempts(&calls), &["--protect"]);
    for (name, _) in &calls[..calls.len() - 1] {
        let message = document["result"][name].as_str().unwrap();
        assert!(message.contains("a protected name"), "{name}: {document:#}");
    }
    assert_eq!(document["result"]["other"], "ok", "{document:#}");
    let ended = place.sandboxctl(["fs", "mv", "proj", "old", "--protect"]);
    ended.assert_code(121).assert_stderr_has("proj/.git: a protected name");
    let ended = place.sandboxctl(["fs", "rm", "-r", "proj", "--protect"]);
    ended.assert_code(121).assert_stderr_has("proj/.git: a protected name");
    assert_eq!(place.read("sandbox-files/proj/.git/config"), "old");
    let uncaught = place.write("uncaught.luau", "os.rename('proj', 'old')");
    let ended = place.sandboxctl(["run", "--json", "--protect", uncaught.to_str().unwrap()]);
    let document = place.document(&ended);
    assert_eq!(
        (&document["status"], &document["error"]["kind"]),
        (&json!("script_error"), &json!("protected"))
    );
    place.sandboxctl(["fs", "mv", "proj", "old"]).assert_code(0);
}

#[test]
fn an_uncaught_refusal_has_its_kind_and_a_failure_of_the_system_is_the_scripts() {
    let place = Fixture::new();
    place.write("sandbox-files/f", "x");
    let input = place.write("input", "x");
    for (source, kind) in [
        ("io.open('../x')", "path_escape"),
        ("fs.write('/in/x', '')", "read_only"),
        ("fs.read('none')", "runtime"),
        ("fs.list('a\\0')", "invalid_path"),
    ] {
        let script = place.write("s.luau", source);
        let mount = format!("{}:x", input.display());
        let ended = place.sandboxctl(["run", "--json", "--in", &mount, script.to_str().unwrap()]);
        let document = place.document(&ended);
        assert_eq!(document["error"]["kind"], kind, "{source}: {document:#}");
        assert_eq!((&document["status"], ended.code), (&json!("script_error"), 1), "{source}");
    }
}

#[test]
fn paths_are_allowed_by_component_and_by_the_longest_rule() {
    let place = Fixture::new();
    place.write("sandbox-files/keep/a", "old");
    let config = place.write(
        "c.toml",
        "[filesystem]\nallowed_paths = [{ path = '/io', access = 'write' }, \
         { path = '/io/keep', access = 'read' }, { path = '/io/keep/out', access = 'write' }]\n",
    );
    let calls = [
        ("write", "fs.write('keep/a', 'new')"),
        ("open", "io.open('keep/a', 'w')"),
        ("input", "fs.read('/in/data')"),
        ("read", "fs.read('keep/a')"),
        ("out", "fs.write('keep/out/a', 'new')"),
        ("sibling", "fs.write('keeper', 'new')"),
    ];
    let data = place.write("data", "1");
    let args = ["--config", config.to_str().unwrap(), "--in", data.to_str().unwrap()];
    let document = place.run_json(&attempts(&calls), &args);
    for name in ["write", "open", "input"] {
        let message = document["result"][name].as_str().unwrap();
        assert!(message.contains("not among the allowed paths"), "{name}: {document:#}");
    }
    for name in ["read", "out", "sibling"] {
        assert_eq!(document["result"][name], "ok", "{document:#}");
    }
    assert_eq!(place.read("sandbox-files/keep/a"), "old");
}

#[test]
fn limits_of_operations_hold_for_scripts() {
    let place = Fixture::new();
    place.write("sandbox-files/large", "x".repeat(2000));
    place.write("sandbox-files/1/2/3/f", "x");
    let config = place.write(
        "c.toml",
        "[filesystem]\nmax_file_size = '1000B'\nmax_depth = 2\n[limits.ceiling]\n\
         filesystem.max_depth = 3\n",
    );
    let calls = [
        ("read", "fs.read('large')"),
        ("write", "fs.write('new', string.rep('x', 1001))"),
        ("list", "fs.list('.', {recursive = true})"),
        ("small", "fs.write('small', string.rep('x', 1000))"),
        ("flat", "fs.list('1')"),
    ];
    let config = config.to_str().unwrap();
    let document = place.run_json(&attempts(&calls), &["--config", config]);
    for name in ["read", "write", "list"] {
        let message = document["result"][name].as_str().unwrap();
        assert!(message != "ok", "{name}: {document:#}");
    }
    assert!(document["result"]["list"].as_str().unwrap().contains("deeper than 2"));
    assert_eq!(document["result"]["small"], "ok", "{document:#}");
    assert_eq!(document["result"]["flat"], "ok", "{document:#}");
    assert_eq!(document["limits"]["list_depth"], 2);
    assert!(!place.path("sandbox-files/new").exists());

    let mut command = place.command(["run", "--config", config, "script.luau"]);
    command.env("SANDBOXCTL_FILESYSTEM_MAX_DEPTH", "4");
    let ended = crate::fixture::finish(command);
    ended.assert_code(121);
    assert!(ended.stderr.contains("above its ceiling of 3"), "{ended:#?}");
}

#[test]
fn the_audit_has_a_scripts_changes_and_refusals() {
    let place = Fixture::new();
    place.write("sandbox-files/old", "12345");
    std::os::unix::fs::symlink("/etc/passwd", place.path("sandbox-files/link")).unwrap();
    let source = r#"
        pcall(fs.write, ".ssh/authorized_keys", "key")
        pcall(io.open, "link")
        pcall(io.open, "../outside")
        pcall(fs.write, "/in/data", "x")
        fs.write("new\27\n", "123")
        os.remove("old")
        error("stop")
    "#;
    let data = place.write("data", "1");
    let audit = place.path("audit.log");
    let args = ["--protect", "--in", data.to_str().unwrap(), "--audit", "audit.log"];
    let document = place.run_json(source, &args);
    assert_eq!(document["status"], "script_error");
    let lines = lines(&audit);
    for line in &lines {
        assert_eq!(line["run_id"], document["id"], "{line}");
        assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    assert_eq!(
        lines.iter().map(reported).collect::<Vec<_>>(),
        [
            json!(["launch", "caller", null, "ok", null]),
            json!(["write", "script", "/io/.ssh/authorized_keys", "protected", null]),
            json!(["read", "script", "/io/link", "symlink", null]),
            json!(["read", "script", "../outside", "path_escape", null]),
            json!(["write", "script", "/in/data", "read_only", null]),
            json!(["write", "script", "/io/new\u{1b}\n", "ok", 3]),
            json!(["remove", "script", "/io/old", "ok", 0]),
            json!(["run", "caller", null, "script_error", 3]),
            // The engine is asked for the removal; one that cannot be asked so is waited for.
            json!(["close", "caller", null, lines[8]["outcome"], null]),
        ]
    );
    assert!(["requested", "ok"].contains(&lines[8]["outcome"].as_str().unwrap()), "{lines:#?}");
    let text = place.read("audit.log");
    for secret in ["key", "123\"", place.work().to_str().unwrap()] {
        assert!(!text.replace("authorized_keys", "").contains(secret), "{secret} in {text}");
    }
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn an_unread_audit_blocks_no_run_and_its_losses_are_reported() {
    let place = Fixture::new();
    let fifo = fifo(&place);
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let reader = File::options().read(true).custom_flags(flags).open(&fifo).unwrap();
    // More than a pipe holds.
    let source = "for i = 1, 400 do fs.write(i .. string.rep('x', 240), '') end return 1";
    for quiet in [&[][..], &["--quiet"]] {
        let ended = run(&place, source, &[&["--audit", "fifo"], quiet].concat());
        ended.assert_code(0);
        assert_eq!(ended.stdout, "1\n");
        let warning = ended.stderr.lines().find(|line| line.starts_with("warning: the audit "));
        let warning = warning.unwrap_or_else(|| panic!("{ended:#?}"));
        assert!(warning.contains("lines (it accepts no data)"), "{warning}");
    }
    drop(reader);

    let ended = run(&place, source, &["--audit", "fifo"]);
    ended.assert_code(2);
    assert!(ended.stderr.contains("a FIFO without a reader"), "{ended:#?}");
}

#[test]
fn an_audit_on_a_full_disk_costs_no_run_its_result() {
    let place = Fixture::new();
    let ended = run(&place, "return 1", &["--audit", "/dev/full"]);
    ended.assert_code(0);
    assert_eq!(ended.stdout, "1\n");
    let warning = "warning: the audit /dev/full lacks 3 lines (No space left on device";
    assert!(ended.stderr.contains(warning), "{ended:#?}");
}

#[test]
fn commands_that_share_an_audit_write_whole_lines() {
    let place = Fixture::new();
    std::fs::create_dir(place.path("sandbox-files")).unwrap();
    let source = "for i = 1, 200 do fs.write(args.name .. i .. string.rep('x', 200), '') end";
    std::thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            let place = &place;
            scope.spawn(move || {
                let script = place.write(&format!("{name}.luau"), source);
                let arg = format!("name={name}");
                let script = script.to_str().unwrap();
                place
                    .sandboxctl(["run", script, "--arg", &arg, "--audit", "audit.log"])
                    .assert_code(0);
            });
        }
    });
    let lines = lines(&place.path("audit.log"));
    let count =
        |operation: &str| lines.iter().filter(|line| line["operation"] == operation).count();
    assert_eq!(["launch", "write", "run", "close"].map(count), [3, 600, 3, 3]);
    assert_eq!(lines.len(), 609);
}

#[test]
fn an_audit_that_cannot_be_is_refused_before_anything_runs() {
    let place = Fixture::new();
    place.write("sandbox-files/x", "");
    std::os::unix::fs::symlink("sandbox-files", place.path("link")).unwrap();
    let source = "fs.write('ran', '')";
    for (file, why) in [
        (".", "Is a directory"),
        ("missing/audit.log", "No such file or directory"),
        ("sandbox-files/audit.log", "in the io dir, where the run could replace it"),
        ("link/audit.log", "in the io dir, where the run could replace it"),
    ] {
        let ended = run(&place, source, &["--audit", file]);
        ended.assert_code(2);
        assert!(ended.stderr.contains(why), "{file}: {ended:#?}");
    }
    assert!(!place.path("sandbox-files/ran").exists());
}

#[test]
fn a_projects_file_neither_names_an_audit_nor_gives_up_what_is_protected() {
    let place = Fixture::new();
    place.write("sandboxctl.toml", "[audit]\nfile = '/tmp/x'\n");
    let ended = run(&place, "return 1", &[]);
    ended.assert_code(2);
    assert!(ended.stderr.contains("a project's file may not set it"), "{ended:#?}");

    place.write("sandboxctl.toml", "[filesystem]\nprotected = []\n");
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("config.toml"), "[filesystem]\nprotected = ['mine']\n").unwrap();
    let document = place.run_json(&attempts(&[("write", "fs.write('mine', '')")]), &[]);
    assert!(document["result"]["write"].as_str().unwrap().contains("protected"), "{document:#}");
}

#[test]
fn rules_hold_for_operations_as_they_do_for_scripts() {
    let place = Fixture::new();
    for (name, content) in
        [("keep/a", "old"), (".bashrc", "old"), ("d/.git/config", "old"), ("x", "x")]
    {
        place.write(&format!("sandbox-files/{name}"), content);
    }
    place.write("sandbox-files/large", "x".repeat(2000));
    place.write("sandbox-files/1/2/3/f", "x");
    std::os::unix::fs::symlink("/etc", place.path("sandbox-files/link")).unwrap();
    let config = place.write(
        "c.toml",
        "[filesystem]\nmax_file_size = '1000B'\nmax_depth = 2\nprotected = ['.bashrc', '.git']\n\
         allowed_paths = [{ path = '/io', access = 'write' }, { path = '/io/keep', access = 'read' }]",
    );
    let data = place.write("data", "1");
    let write = |path: &str| json!({"operation": "write", "path": path, "content": "new"});
    let on = |operation: &str, path: &str| json!({"operation": operation, "path": path});
    let rename = |from: &str, to: &str| json!({"operation": "rename", "from": from, "to": to, "overwrite": true});
    let edit = |path: &str| json!({"operation": "edit", "path": path, "old": "old", "new": "new"});
    let tree = |path: &str| json!({"operation": "remove", "path": path, "recursive": true});
    let cases = [
        (write(".bashrc"), "protected"),
        (write("new/.GIT/hooks/x"), "protected"),
        (edit(".bashrc"), "protected"),
        (on("remove", ".bashrc"), "protected"),
        (on("mkdir", "new/.git"), "protected"),
        (tree("d"), "protected"),
        (rename("d/.git", "e"), "protected"),
        (rename("x", ".bashrc"), "protected"),
        (on("read", ".bashrc"), "ok"),
        (write("keep/a"), "not_allowed"),
        (edit("keep/a"), "not_allowed"),
        (on("mkdir", "keep/b"), "not_allowed"),
        (on("touch", "keep/a"), "not_allowed"),
        (tree("keep"), "not_allowed"),
        (rename("keep", "kept"), "not_allowed"),
        (rename("x", "keep/x"), "not_allowed"),
        (on("read", "keep/a"), "ok"),
        (on("stat", "keep/a"), "ok"),
        (write("keeper"), "ok"),
        // The input is mounted, and no rule allows it.
        (on("read", "/in/data"), "not_allowed"),
        (on("exists", "/in/data"), "not_allowed"),
        (on("list", "/etc"), "path_escape"),
        (on("stat", "../x"), "path_escape"),
        (on("view", "link/passwd"), "symlink"),
        (on("read", "large"), "too_large"),
        (json!({"operation": "write", "path": "y", "content": "x".repeat(1001)}), "too_large"),
        (
            json!({"operation": "write", "path": "x", "content": "y".repeat(1000),
            "mode": "append"}),
            "too_large",
        ),
    ];
    let operations: Vec<Value> = cases.iter().map(|(operation, _)| operation.clone()).collect();
    let config = config.to_str().unwrap();
    let args = ["--config", config, "--in", data.to_str().unwrap(), "--audit", "audit.log"];
    let envelopes = batch(&place, &args, &operations);
    let audit = lines(&place.path("audit.log"));
    assert_eq!(audit.len(), cases.len() + 2, "{audit:#?}");
    for (((operation, expected), envelope), line) in cases.iter().zip(&envelopes).zip(&audit[1..]) {
        assert_eq!(outcome(envelope), *expected, "{operation}: {envelope}");
        // What was done and what was refused is in the audit alike.
        assert_eq!(line["operation"], operation["operation"], "{line}");
        assert_eq!(line["outcome"], *expected, "{operation}: {line}");
        assert_eq!(line["by"], "caller");
    }
    for name in ["keep/a", ".bashrc", "d/.git/config"] {
        assert_eq!(place.read(&format!("sandbox-files/{name}")), "old", "{name}");
    }
    for name in ["new", "e", "kept", "y", "keep/b", "keep/x"] {
        assert!(!place.path(&format!("sandbox-files/{name}")).exists(), "{name}");
    }
    assert_eq!(place.read("sandbox-files/x"), "x");

    let list = json!({"operation": "list", "path": "1", "recursive": true, "max_depth": 9});
    let listed = &batch(&place, &["--config", config], &[list])[0];
    assert_eq!(listed["data"]["truncated"], true, "{listed}");
    let names: Vec<_> = listed["data"]["entries"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 2, "{listed}");
}

#[test]
fn the_time_of_one_operation_is_limited_for_all_who_ask_for_it() {
    let place = Fixture::new();
    for number in 0..5000 {
        place.write(&format!("sandbox-files/d/{number}"), "");
    }
    let config = place.write("c.toml", "filesystem.timeout = '1ms'\n");
    let config = config.to_str().unwrap();
    let tree = json!({"operation": "remove", "path": "d", "recursive": true});
    let envelope = &batch(&place, &["--config", config], &[tree])[0];
    assert_eq!(outcome(envelope), "timeout", "{envelope}");
    let script = "return fs.remove('d', {recursive = true})";
    let document = place.run_json(&attempts(&[("remove", &script[7..])]), &["--config", config]);
    let message = document["result"]["remove"].as_str().unwrap();
    assert!(message.contains("not done within 1 ms"), "{document:#}");
    assert!(place.path("sandbox-files/d").exists());
}

#[test]
fn the_default_encoding_is_the_one_that_is_configured() {
    let place = Fixture::new();
    place.write("sandboxctl.toml", "filesystem.default_encoding = 'hex'\n");
    let write = json!({"operation": "write", "path": "a", "content": "00ff"});
    let read = json!({"operation": "read", "path": "a"});
    let text = json!({"operation": "read", "path": "a", "encoding": "latin1"});
    let bad = json!({"operation": "write", "path": "b", "content": "text"});
    let envelopes = batch(&place, &["--audit", "audit.log"], &[write, read, text, bad]);
    assert_eq!(std::fs::read(place.path("sandbox-files/a")).unwrap(), [0, 0xff]);
    assert_eq!(envelopes[1]["data"]["content"], "00ff", "{envelopes:#?}");
    assert_eq!(envelopes[1]["data"]["encoding"], "hex");
    assert_eq!(envelopes[2]["data"]["content"], "\u{0}\u{ff}");
    assert_eq!(outcome(&envelopes[3]), "encoding");
    let reported: Vec<Value> = lines(&place.path("audit.log"))[1..5].iter().map(reported).collect();
    assert_eq!(
        reported,
        [
            json!(["write", "caller", "/io/a", "ok", 2]),
            json!(["read", "caller", "/io/a", "ok", 2]),
            json!(["read", "caller", "/io/a", "ok", 2]),
            json!(["write", "caller", "/io/b", "encoding", null]),
        ]
    );
}

#[test]
fn text_with_a_wrong_encoding_is_a_failed_write_at_every_door() {
    let place = Fixture::new();
    let stdin = ["fs", "write", "a", "--encoding", "hex", "--audit", "audit.log"];
    place.sandboxctl_with(b"0g", stdin).assert_code(1).assert_stderr_has("a: the content is not");
    let init = r#"{"containerId": "c", "projectOutPath": "out"}"#;
    let call = r#"{"containerId": "c", "path": "b", "content": "AP8", "encoding": "base64"}"#;
    let tool = ["tool", "sandbox_write_file", "--init", init, "--input", call];
    place.sandboxctl(tool.iter().chain(&["--audit", "audit.log"])).assert_code(1);
    let reported: Vec<Value> = lines(&place.path("audit.log")).iter().map(reported).collect();
    let writes: Vec<&Value> = reported.iter().filter(|line| line[0] == "write").collect();
    assert_eq!(
        writes,
        [
            &json!(["write", "caller", "/io/a", "encoding", null]),
            &json!(["write", "caller", "/workspace/b", "encoding", null]),
        ]
    );
}
