//! The command line: bad input, and the commands that are not `run`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};

use crate::engines::{Feature, has};
use crate::fixture::{Fixture, finish};

#[test]
fn bad_input_exits_2_names_its_flag_and_makes_nothing() {
    let place = Fixture::new();
    place.write("ok.luau", "return 1");
    place.write("a-file", "");
    place.write("list.json", "[1]");
    for (args, names) in [
        (&["run", "none.luau"][..], "none.luau"),
        (&["run"], "SCRIPT"),
        (&["run", "ok.luau", "--io-dir", "a-file"], "--io-dir"),
        (&["run", "ok.luau", "--io-dir", ""], "--io-dir"),
        (&["run", "ok.luau", "--in", ""], "--in"),
        (&["run", "ok.luau", "--args-file", ""], "--args-file"),
        (&["run", "ok.luau", "--config", ""], "--config"),
        (&["run", "ok.luau", "--config", "."], "--config"),
        (&["run", "ok.luau", "--mount-path", "/"], "--mount-path"),
        (&["run", "ok.luau", "--mount-path", "/in"], "--mount-path"),
        (&["run", "ok.luau", "--mount-path", "io"], "--mount-path"),
        (&["run", "ok.luau", "--workdir", "/tmp"], "--workdir"),
        (&["run", "ok.luau", "--runtime", "no-such-runtime"], "--runtime"),
        (&["run", "ok.luau", "--timeout", "-5s"], "is not a duration"),
        (&["image", "load", "a-file"], "FILE"),
        (&["image", "load", "list.json"], "FILE"),
        (&["image", "load", "."], "FILE"),
        (&["image", "load", "none.tar"], "FILE"),
        (&["run", "ok.luau", "--in", "none.csv"], "--in"),
        (&["run", "ok.luau", "--in", "a-file:../x"], "--in"),
        (&["run", "ok.luau", "--in", "a-file", "--in", "a-file"], "--in"),
        (&["run", "ok.luau", "--in", "/dev/null"], "--in"),
        (&["run", "ok.luau", "--timeout", "30x"], "--timeout"),
        (&["run", "ok.luau", "--volume", "cache:/x"], "./cache"),
        (&["run", "ok.luau", "--timeout", "fast"], "--timeout"),
        (&["run", "ok.luau", "--memory", "lots"], "--memory"),
        (&["run", "ok.luau", "--cpus", "0"], "--cpus"),
        (&["run", "ok.luau", "--pids", "0"], "--pids"),
        (&["run", "ok.luau", "--io-errors", "ignore"], "--io-errors"),
        (&["run", "ok.luau", "--arg", "novalue"], "--arg"),
        (&["run", "ok.luau", "--args-file", "list.json"], "--args-file"),
        (&["run", "ok.luau", "--args-file", "none.json"], "--args-file"),
        (&["run", "ok.luau", "--engine", "podman"], "--engine"),
        (&["run", "ok.luau", "--output-dir", "x"], "--io-dir"),
        (&["run", "ok.luau", "--no-such-flag"], "--no-such-flag"),
        (&["check", "none.luau"], "none.luau"),
    ] {
        let ended = place.sandboxctl(args);
        ended.assert_code(2).assert_stderr_has(names);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    let odd = <OsStr as OsStrExt>::from_bytes(b"odd\xff");
    for flag in ["--io-dir", "--in", "--timeout", "--engine"] {
        let args = ["run", "ok.luau", flag].map(OsStr::new);
        let ended = place.sandboxctl(args.into_iter().chain([odd]));
        ended.assert_code(2).assert_stderr_has(flag);
    }
    assert!(!place.path("sandbox-files").exists());
    assert!(!place.work().join(odd).exists());
}

#[test]
fn a_saved_image_is_kept_where_saving_again_fails() {
    let place = Fixture::new();
    let saved = place.write("image.tar", "the only one");
    let host = ["--host", "unix:///nowhere/docker.sock"];
    place.sandboxctl(["image", "save", "image.tar"].iter().chain(&host)).assert_code(125);
    assert_eq!(std::fs::read_to_string(&saved).unwrap(), "the only one");
    assert_eq!(std::fs::read_dir(place.work()).unwrap().count(), 1, "nothing is left beside it");

    place.sandboxctl(["image", "save", "image.tar"]).assert_code(0);
    place.sandboxctl(["image", "load", "image.tar"]).assert_code(0);
    let mut command = place.command(["image", "save", "-"]);
    command.stdout(std::fs::File::create(place.path("stdout.tar")).unwrap());
    assert!(command.status().unwrap().success());
    place.sandboxctl(["image", "load", "stdout.tar"]).assert_code(0);
}

#[test]
fn verbose_logs_sandboxctl_and_not_its_libraries() {
    let place = Fixture::new();
    place.write("ok.luau", "return 1");
    let ended = place.sandboxctl(["-vvv", "run", "ok.luau"]);
    ended.assert_code(0);
    for part in
        ["endpoint=", "image=", "container=", "user=", "creating the container", "answered="]
    {
        ended.assert_stderr_has(part);
    }
    assert!(!ended.stderr.contains("hyper"), "{ended:#?}");
}

#[test]
fn colour_is_for_claps_own_words_too() {
    let place = Fixture::new();
    let ended = place.sandboxctl(["--color", "always", "--no-such-flag"]);
    assert!(ended.assert_code(2).stderr.contains('\u{1b}'), "{ended:#?}");
    let mut command = place.command(["--color=never", "--no-such-flag"]);
    command.env("CLICOLOR_FORCE", "1");
    let ended = finish(command);
    assert!(!ended.assert_code(2).stderr.contains('\u{1b}'), "{ended:#?}");
}

#[test]
fn a_doctor_with_a_broken_io_dir_says_so_and_goes_on() {
    let place = Fixture::new();
    place.write("sandbox-files", "a file");
    let ended = place.sandboxctl(["doctor"]);
    ended.assert_code(125);
    assert!(ended.stdout.contains("FAIL  io_dir"), "{ended:#?}");
    assert!(ended.stdout.contains("ok    sandbox"), "{ended:#?}");
    let ended = place.sandboxctl(["doctor", "--host", "unix:///nowhere/docker.sock"]);
    assert!(!ended.assert_code(125).stdout.contains("sandboxctl doctor"), "{ended:#?}");
}

#[test]
fn a_password_in_the_engines_address_is_neither_printed_nor_stored() {
    let place = Fixture::new();
    place.write("a.luau", "print(1)");
    let commands: [&[&str]; 3] = [
        &["doctor", "--json"],
        &["run", "a.luau", "--verbose", "--verbose"],
        &["run", "a.luau", "--json"],
    ];
    for args in commands {
        let mut command = place.command(args);
        command.env("DOCKER_HOST", "tcp://user:hunter2@127.0.0.1:1");
        let ended = finish(command);
        assert_ne!(ended.code, 0, "{ended:#?}");
        let reported = format!("{}{}", ended.stdout, ended.stderr);
        assert!(reported.contains("DOCKER_HOST") && !reported.contains("hunter2"), "{ended:#?}");
    }
    let locks = place.state().join("sandboxctl/instances");
    for lock in std::fs::read_dir(locks).into_iter().flatten() {
        let lock = std::fs::read_to_string(lock.unwrap().path()).unwrap();
        assert!(!lock.contains("hunter2"), "{lock}");
    }
}

#[test]
fn a_doctor_works_below_ceilings_that_are_lower_than_the_defaults() {
    let place = Fixture::new();
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("config.toml"), "[limits.ceiling]\nmemory = \"128MiB\"\n").unwrap();
    let ended = place.sandboxctl(["doctor"]);
    assert!(ended.assert_code(0).stdout.contains("ok    sandbox"), "{ended:#?}");
}

#[test]
fn errors_of_sandboxctl_give_a_document_too() {
    let place = Fixture::new();
    let ended = place.sandboxctl(["run", "--json", "none.luau"]);
    let document = place.document(ended.assert_code(2));
    assert_eq!(document["status"], "error");
    assert_eq!(document["error"]["kind"], "usage");

    place.write("ok.luau", "return 1");
    let ended =
        place.sandboxctl(["run", "--json", "--host", "unix:///nowhere/docker.sock", "ok.luau"]);
    let document = place.document(ended.assert_code(125));
    assert_eq!(document["status"], "error");
    assert_eq!(document["error"]["kind"], "engine");
    assert!(document["error"]["hint"].is_string(), "{document:#}");
}

#[test]
fn without_an_engine_it_says_what_was_tried() {
    let place = Fixture::new();
    place.write("ok.luau", "return 1");
    let mut command = place.command(["run", "ok.luau", "--host", "unix:///nowhere/docker.sock"]);
    command.env_remove("DOCKER_HOST");
    let ended = finish(command);
    ended.assert_code(125).assert_stderr_has("/nowhere/docker.sock").assert_stderr_has("hint:");
    assert!(!place.path("sandbox-files").exists());
}

#[test]
fn a_limit_above_its_ceiling_is_a_policy_error() {
    let place = Fixture::new();
    place.write("ok.luau", "return 1");
    let ended = place.sandboxctl(["run", "ok.luau", "--timeout", "1h"]);
    ended.assert_code(121).assert_stderr_has("--timeout").assert_stderr_has("hint:");
    // The message names its origin, and no flag that was not typed.
    let mut command = place.command(["run", "ok.luau"]);
    command.env("SANDBOXCTL_LIMITS_TIMEOUT", "1h");
    let ended = finish(command);
    ended.assert_code(121).assert_stderr_has("SANDBOXCTL_LIMITS_TIMEOUT");
    assert!(!ended.stderr.contains("--timeout"), "{ended:#?}");
}

#[test]
fn check_compiles_without_a_container() {
    let place = Fixture::new();
    place.write("good.luau", "error('not run')");
    place.write("bad.luau", "local x =\n  = 3\n");
    place.sandboxctl(["check", "good.luau"]).assert_code(0);
    place.sandboxctl(["check", "bad.luau"]).assert_code(1).assert_stderr_has("bad.luau");
    let ended = place.sandboxctl(["check", "--json", "bad.luau"]);
    let document: Value = serde_json::from_str(&ended.assert_code(1).stdout).unwrap();
    assert_eq!(document["error"]["kind"], "syntax", "{document:#}");
    assert_eq!(document["error"]["line"], 2);
    // No engine is asked.
    let mut command = place.command(["check", "good.luau"]);
    command.env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    finish(command).assert_code(0);
}

#[test]
fn every_reporting_command_speaks_json() {
    let place = Fixture::new();
    place.run_json("return 1", &[]);
    let json = |args: &[&str]| -> Value {
        let ended = place.sandboxctl(args);
        serde_json::from_str(&ended.assert_code(0).stdout).unwrap_or_else(|_| panic!("{ended:#?}"))
    };
    let images = json(&["image", "ls", "--json"]);
    let current: Vec<&Value> =
        images.as_array().unwrap().iter().filter(|image| image["current"] == true).collect();
    assert!(!current.is_empty(), "{images:#}");
    for key in ["id", "engine", "agent", "created", "size", "current"] {
        assert!(!current[0][key].is_null(), "{images:#}");
    }
    assert!(json(&["ps", "--json"]).is_array());
    json(&["gc", "--dry-run", "--json"]);
    let checks = json(&["doctor", "--json"]);
    for check in checks.as_array().unwrap() {
        for key in ["id", "status", "detail"] {
            assert!(check[key].is_string(), "{check:#}");
        }
        assert!(check.get("fix").is_some(), "{check:#}");
    }
    // For any values: the check asked a running sandbox.
    let unix_sockets = checks.as_array().unwrap().iter().find(|it| it["id"] == "unix_sockets");
    let unix_sockets = unix_sockets.expect("a check of UNIX sockets");
    let detail = unix_sockets["detail"].as_str().unwrap();
    assert!(detail.starts_with("programs have "), "{unix_sockets:#}");
    json(&["config", "show", "--json"]);
}

#[test]
fn help_man_completions_types_and_version_work_without_an_engine() {
    let place = Fixture::new();
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["image", "build", "--help"],
        &["--version"],
        &["man"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
        &["types"],
    ] {
        let mut command = place.command(args);
        command.env("DOCKER_HOST", "unix:///nowhere/docker.sock");
        let ended = finish(command);
        ended.assert_code(0);
        assert!(!ended.stdout.is_empty(), "{args:?}");
    }
    assert!(place.sandboxctl(["types"]).stdout.contains("declare io"));
}

#[test]
fn a_runtime_is_taken_or_refused_and_never_ignored() {
    let place = Fixture::new();
    place.write("ok.luau", "return 1");
    let ended = place.sandboxctl(["run", "--runtime", "runc", "ok.luau"]);
    if has(Feature::NamedRuntime) {
        assert_eq!(ended.assert_code(0).stdout, "1\n");
    } else {
        ended.assert_code(2).assert_stderr_has("--runtime");
    }
}

#[test]
fn a_script_with_a_closed_stdout_is_cancelled_without_a_message() {
    let place = Fixture::new();
    place.write("s.luau", "while true do print(string.rep('x', 100)) end");
    place.write("quiet.luau", "return 1");
    let unread = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = place.command(args).stdout(writer).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for args in [&["run", "s.luau"][..], &["run", "quiet.luau"], &["run", "--json", "quiet.luau"]] {
        assert_eq!(unread(args), (Some(141), String::new()), "{args:?}");
    }
    place.write("s.luau", "error('no')");
    let (code, stderr) = unread(&["run", "s.luau"]);
    assert!(code == Some(1) && stderr.contains("no"), "{code:?} {stderr}");
}

#[test]
fn guest_text_cannot_imitate_messages_on_stderr() {
    let place = Fixture::new();
    place.write("s.luau", "error('x\\nhint: run rm -rf\\27[2J', 0)");
    let ended = place.sandboxctl(["run", "s.luau"]);
    ended.assert_code(1);
    assert!(!ended.stderr.lines().any(|line| line.starts_with("hint: run rm")), "{ended:#?}");
    assert!(!ended.stderr.contains('\u{1b}'), "{ended:#?}");
    assert_eq!(json!(ended.code), 1);
}

#[test]
fn input_quoted_on_stderr_is_escaped() {
    const EVIL: &str = "\u{1b}]0;title\u{7}\u{1b}[2J\r\nerror: forged\u{202e}";
    let place = Fixture::new();
    place.write("ok.luau", "return 1");
    place.write("evil.toml", "[limits]\ntimeout = \"\\u001b[2J\\nerror: forged\\u202e\"\n");
    place.write("unknown.toml", "[limits]\n\"\\u001b[2J\\nerror: forged\\u202e\" = 1\n");
    let evil = |start: &str| format!("{start}{EVIL}");
    let shown = "error: forged\\u{202e}";
    let escaped = |what: &str, stderr: &str| {
        let steers = |it: char| (it.is_control() && it != '\n') || it == '\u{202e}';
        assert!(!stderr.contains(steers), "{what}: {stderr:?}");
        assert!(!stderr.lines().any(|line| line.starts_with("error: forged")), "{what}: {stderr}");
        assert!(stderr.contains(shown), "{what}: {stderr}");
    };
    for args in [
        vec![evil("")],
        vec!["run".to_owned(), evil("./")],
        vec!["run".to_owned(), "ok.luau".to_owned(), evil("--no-such")],
        vec!["run".to_owned(), "ok.luau".to_owned(), evil("")],
        vec!["run".to_owned(), "ok.luau".to_owned(), evil("--timeout=")],
        vec!["run".to_owned(), "ok.luau".to_owned(), evil("--engine=")],
        vec!["run".to_owned(), "ok.luau".to_owned(), evil("--in=")],
        vec!["run".to_owned(), "ok.luau".to_owned(), evil("--args-file=")],
        vec!["run".to_owned(), "ok.luau".to_owned(), evil("--config=")],
        vec!["run".to_owned(), "ok.luau".to_owned(), "--config=evil.toml".to_owned()],
        vec!["run".to_owned(), "ok.luau".to_owned(), "--config=unknown.toml".to_owned()],
        vec!["check".to_owned(), evil("./")],
        vec!["image".to_owned(), "load".to_owned(), evil("./")],
        vec!["fs".to_owned(), evil("")],
        vec!["tools".to_owned(), evil("--")],
        vec!["completions".to_owned(), evil("")],
    ] {
        let ended = place.sandboxctl(&args);
        assert_ne!(ended.code, 0, "{args:?}");
        escaped(&format!("{args:?}"), &ended.stderr);
    }
    for variable in ["SANDBOXCTL_LIMITS_TIMEOUT", "SANDBOXCTL_ENGINE_KIND", "SANDBOXCTL_LOG"] {
        let mut command = place.command(["run", "ok.luau", "--in", "none"]);
        command.env(variable, EVIL);
        escaped(variable, &finish(command).stderr);
    }
    // Documents have it too, in JSON's escapes or in ours.
    for args in [["run", "--json", EVIL], ["tool", EVIL, "--input={}"]] {
        let ended = place.sandboxctl(args);
        assert_ne!(ended.code, 0);
        assert!(!ended.stdout.trim_end().contains(char::is_control), "{:?}", ended.stdout);
    }
}
