//! `sandboxctl run`: every status, its exit code and its document.

use std::ffi::OsStr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::engine::{Engine, engine};
use crate::engines::{Feature, has, out_of_memory};
use crate::fixture::{Fixture, finish, in_its_time};

#[test]
fn a_script_returns_a_result_and_leaves_files() {
    let place = Fixture::new();
    let document = place.run_json(
        r#"
            print("hello", 1, true)
            warn("careful")
            io.open("out/a.txt", "w"):write("abc"):close()
            return { rows = 3, list = { 1, 2.5, "x" }, none = json.null, empty = json.array({}) }
        "#,
        &[],
    );
    assert_eq!(document["status"], "ok", "{document:#}");
    assert_eq!(document["exit_code"], 0);
    assert_eq!(
        document["result"],
        json!({"rows": 3, "list": [1, 2.5, "x"], "none": null, "empty": []})
    );
    assert_eq!(document["logs"][0], "hello\t1\ttrue");
    assert_eq!(document["logs"][1], "[warn] careful");
    assert_eq!(document["error"], json!(null));
    assert_eq!(document["engine"], engine().name());
    assert_eq!(document["io_dir"], place.path("sandbox-files").to_str().unwrap());
    assert_eq!(document["files_touched_source"], "observed");
    assert_eq!(
        document["files_touched"],
        json!([{"name": "out/a.txt", "op": "write", "bytes": 3}])
    );
    assert_eq!(document["usage"]["written_bytes"], 3);
    assert!(document["usage"]["wall_ms"].as_u64().is_some());
    let peak = document["usage"]["peak_memory_bytes"].as_u64();
    assert_eq!(peak.is_some_and(|bytes| bytes > 1 << 20), has(Feature::PeakMemory), "{peak:?}");
    assert_eq!(place.read("sandbox-files/out/a.txt"), "abc");
}

#[test]
fn stdout_is_the_scripts_and_stderr_is_for_messages() {
    let place = Fixture::new();
    place.write("a.luau", "print('one')\nprint('two')\nreturn {a = 1}");
    let ended = place.sandboxctl(["run", "a.luau"]);
    ended.assert_code(0);
    assert_eq!(ended.stdout, "one\ntwo\n{\n  \"a\": 1\n}\n");

    let nothing = place.sandboxctl_with(b"print('quiet')", ["run", "-", "--quiet"]);
    nothing.assert_code(0);
    assert_eq!((nothing.stdout.as_str(), nothing.stderr.as_str()), ("quiet\n", ""));
}

#[test]
fn files_belong_to_the_owner_of_the_io_dir() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let place = Fixture::new();
    let io_dir = place.path("sandbox-files");
    std::fs::create_dir(&io_dir).unwrap();
    let owner = if rustix::process::geteuid().is_root() {
        4321
    } else {
        rustix::process::geteuid().as_raw()
    };
    chown(&io_dir, Some(owner), Some(owner)).unwrap();
    let document = place.run_json("io.open('d/f', 'w'):write('x'):close()", &[]);
    assert_eq!(document["status"], "ok", "{document:#}");
    for name in ["d", "d/f"] {
        let made = std::fs::metadata(io_dir.join(name)).unwrap();
        assert_eq!((made.uid(), made.gid()), (owner, owner), "{name}");
        assert_eq!(made.permissions().mode() & 0o022, 0, "{name}");
    }
}

#[test]
fn a_script_error_has_line_traceback_and_files() {
    let place = Fixture::new();
    let source = "io.open('kept.txt', 'w'):write('kept')\nprint('before')\nlocal function f()\n  error('boom')\nend\nf()\n";
    let document = place.run_json(source, &[]);
    assert_eq!(document["status"], "script_error");
    assert_eq!(document["exit_code"], 1);
    assert_eq!(document["error"]["kind"], "runtime");
    assert_eq!(document["error"]["message"], "script:4: boom");
    assert_eq!(document["error"]["line"], 4);
    assert!(document["error"]["traceback"].as_str().unwrap().contains("script:6"));
    assert_eq!(document["logs"], json!(["before"]));
    assert_eq!(document["files_touched"][0]["name"], "kept.txt");
    assert_eq!(place.read("sandbox-files/kept.txt"), "kept");

    let ended = place.sandboxctl(["run", "script.luau"]);
    ended.assert_code(1).assert_stderr_has("script:4: boom").assert_stderr_has("error('boom')");
    assert_eq!(ended.stdout, "before\n");
}

#[test]
fn syntax_errors_bytecode_and_odd_sources_never_run() {
    let place = Fixture::new();
    let document = place.run_json("print('x')\nlocal = 3\n", &[]);
    assert_eq!(document["status"], "script_error");
    assert_eq!(document["error"]["kind"], "syntax");
    assert_eq!(document["error"]["line"], 2);
    assert_eq!(document["logs"], json!([]));

    for (name, source) in [
        ("bytecode", &b"\x06\x03\x01\x04main\x00"[..]),
        ("nul", b"return 1 --\0"),
        ("not utf-8", b"return '\xff'"),
    ] {
        place.write("odd.luau", source);
        let ended = place.sandboxctl(["run", "--json", "odd.luau"]);
        let document = place.document(&ended);
        assert_eq!(document["status"], "script_error", "{name}: {document:#}");
        assert_eq!(document["error"]["kind"], "syntax", "{name}");
    }

    place.write("large.luau", format!("--{}\nreturn 1", "x".repeat(256 << 10)));
    let document = place.document(&place.sandboxctl(["run", "--json", "large.luau"]));
    assert_eq!(document["status"], "limit");
    assert_eq!(document["exit_code"], 120);
    assert_eq!(document["error"]["kind"], "source_too_large");

    place.write("bom.luau", "\u{feff}#!/usr/bin/env sandboxctl\nreturn 7");
    let document = place.document(&place.sandboxctl(["run", "--json", "bom.luau"]));
    assert_eq!(document["result"], 7, "{document:#}");
}

/// The document of a script that writes this into the file `f`, and then runs for ever.
fn timed_out(place: &Fixture, source: &str, written: &str) -> Value {
    let run =
        |time: Duration| place.run_json(source, &["--timeout", &format!("{}s", time.as_secs())]);
    let has_written = |_: &Value| {
        std::fs::read(place.path("sandbox-files/f")).is_ok_and(|it| it == written.as_bytes())
    };
    in_its_time(run, has_written)
}

#[test]
fn a_loop_ends_at_the_deadline_whatever_it_catches() {
    let place = Fixture::new();
    let source = "print('start') io.open('f', 'w'):write('half')\nwhile true do pcall(function() while true do end end) end";
    let document = timed_out(&place, source, "half");
    assert_eq!(document["status"], "timeout", "{document:#}");
    assert_eq!(document["exit_code"], 124);
    assert_eq!(document["error"]["kind"], "timeout");
    assert_eq!(document["logs"], json!(["start"]));
    assert_eq!(place.read("sandbox-files/f"), "half");
    assert_eq!(document["files_touched"], json!([{"name": "f", "op": "write", "bytes": 4}]));
}

#[test]
fn a_native_call_that_does_not_come_back_is_a_timeout_too() {
    let place = Fixture::new();
    let source = "print('start')\nlocal f = io.open('f', 'w') f:write('kept')\n\
         local s = string.rep('a', 8000000)\nreturn s:find(string.rep('a', 4000000) .. 'b', 1, true)";
    let document = timed_out(&place, source, "kept");
    assert_eq!(document["status"], "timeout", "{document:#}");
    assert_eq!(document["logs"], json!(["start"]));
    assert_eq!(place.read("sandbox-files/f"), "kept");
}

#[test]
fn memory_of_the_vm_and_of_the_container_are_limits() {
    let place = Fixture::new();
    let eat = "print('start') local t = {} for i = 1, 1e9 do t[i] = string.rep('x', 1e6) .. i end";
    let document = place.run_json(eat, &[]);
    assert_eq!(document["status"], "limit", "{document:#}");
    assert_eq!(document["error"]["kind"], "out_of_memory");
    assert_eq!(document["error"]["hint"], "--vm-memory raises the limit", "{document:#}");
    assert_eq!(document["logs"], json!(["start"]));

    let caught = place.run_json(&format!("return pcall(function() {eat} end)"), &[]);
    assert_eq!(caught["status"], "ok", "{caught:#}");
    assert_eq!(caught["result"][0], false);

    let document = place.run_json(eat, &["--memory", "32MiB", "--vm-memory", "512MiB"]);
    let (status, code, kind) = out_of_memory();
    assert_eq!(document["status"], status, "{document:#}");
    assert_eq!(document["exit_code"], code);
    assert_eq!(document["error"]["kind"], kind);
    assert!(document["error"]["message"].as_str().unwrap().contains("memory"), "{document:#}");
    if status == "limit" {
        assert_eq!(document["error"]["hint"], "--memory raises the limit", "{document:#}");
    }
    assert_eq!(document["logs"], json!(["start"]));
    let peak = &document["usage"]["peak_memory_bytes"];
    assert_eq!(peak.is_null(), !engine().reports_usage(), "{document:#}");
}

#[test]
fn a_flood_of_print_is_cut_with_a_marker_and_the_run_goes_on() {
    let place = Fixture::new();
    let document = place.run_json("for i = 1, 20000 do print(i) end return 'done'", &[]);
    assert_eq!(document["status"], "ok");
    assert_eq!(document["result"], "done");
    assert_eq!(document["logs_truncated"], true);
    let logs = document["logs"].as_array().unwrap();
    assert_eq!(logs.len(), 10_001);
    assert_eq!(logs[9_999], "10000");
    assert!(logs[10_000].as_str().unwrap().contains("limits.log_lines"), "{}", logs[10_000]);

    let document = place.run_json("print(string.rep('x', 100000)) return 1", &[]);
    let entry = document["logs"][0].as_str().unwrap();
    assert!(entry.len() <= 64 << 10, "{}", entry.len());
    assert_eq!(document["status"], "ok");
}

#[test]
fn a_result_that_json_cannot_hold_is_named() {
    let place = Fixture::new();
    for (source, path) in [
        ("return print", "result"),
        ("return {rows = {{}, {}, {f = print}}}", "result.rows[3].f"),
        ("return {1, 2, a = 3}", "result"),
        ("return 0/0", "result"),
        ("local t = {} t.t = t return t", "result.t"),
        ("return '\\xff'", "result"),
    ] {
        let document = place.run_json(&format!("print('x') {source}"), &[]);
        assert_eq!(document["status"], "script_error", "{source}: {document:#}");
        assert_eq!(document["error"]["kind"], "result_not_json");
        assert!(document["error"]["message"].as_str().unwrap().contains(path), "{document:#}");
        assert_eq!(document["logs"], json!(["x"]));
    }
    let document = place.run_json("return string.rep('x', 2000000)", &[]);
    assert_eq!(document["status"], "limit");
    assert_eq!(document["error"]["kind"], "result_too_large");
}

#[test]
fn several_values_are_an_array_and_nothing_is_null() {
    let place = Fixture::new();
    for (source, result) in [
        ("", json!(null)),
        ("return nil", json!(null)),
        ("return 1, nil, 'x'", json!([1, null, "x"])),
        ("return {}", json!({})),
        ("return 1e15", json!(1_000_000_000_000_000_i64)),
        ("return -0.5", json!(-0.5)),
    ] {
        let document = place.run_json(source, &[]);
        assert_eq!(document["result"], result, "{source}");
    }
}

#[test]
fn arguments_come_from_flags_and_files() {
    let place = Fixture::new();
    place.write("args.json", r#"{"n": 3, "deep": {"list": [1, null]}, "k": "file"}"#);
    let document = place.run_json(
        "return {k = args.k, e = args.e, n = args.n, len = #args.deep.list, ro = pcall(function() args.k = 1 end)}",
        &["--args-file", "args.json", "--arg", "k=v=w", "--arg", "e="],
    );
    assert_eq!(
        document["result"],
        json!({"k": "v=w", "e": "", "n": 3, "len": 2, "ro": false}),
        "{document:#}"
    );
}

#[test]
fn inputs_are_read_only_and_stdin_is_one() {
    let place = Fixture::new();
    place.write("data.csv", "a,b\n");
    place.write("folder/x.txt", "x");
    place.write(
        "s.luau",
        r#"
            local function try(f, ...) local ok, e = pcall(f, ...) return if ok then "ok" else e end
            return {
                data = io.open("/in/data.csv"):read("a"), other = io.open("/in/other"):read("a"),
                list = io.list("/in/folder"), stdin = io.open("/in/piped"):read("a"),
                write = try(io.open, "/in/data.csv", "a"), new = try(io.open, "/in/folder/new", "w"),
                remove = try(os.remove, "/in/folder/x.txt"),
            }
        "#,
    );
    let run = |stdin: &[u8]| {
        let inputs = ["--in=data.csv", "--in=data.csv:other", "--in=folder", "--in=-:piped"];
        place.sandboxctl_with(stdin, ["run", "--json", "s.luau"].into_iter().chain(inputs))
    };
    // The bytes arrive whole; JSON cannot hold them.
    let document = place.document(&run(b"from stdin\xff"));
    assert_eq!(document["error"]["kind"], "result_not_json", "{document:#}");

    let ended = run(b"from stdin");
    let result = &place.document(&ended)["result"];
    assert_eq!(result["data"], "a,b\n", "{ended:#?}");
    assert_eq!(result["other"], "a,b\n");
    assert_eq!(result["list"], json!(["x.txt"]));
    assert_eq!(result["stdin"], "from stdin");
    for key in ["write", "new", "remove"] {
        let message = result[key].as_str().unwrap();
        assert!(message.contains("ead-only"), "{key}: {message}");
    }
    assert_eq!(place.read("data.csv"), "a,b\n");
    assert_eq!(std::fs::read_dir(place.path("folder")).unwrap().count(), 1);
}

#[test]
fn without_io_there_are_no_files() {
    let place = Fixture::new();
    let document = place.run_json(
        "return {io == nil, fs == nil, os.remove == nil, os.rename == nil, os.time() > 0}",
        &["--no-io"],
    );
    assert_eq!(document["result"], json!([true, true, true, true, true]), "{document:#}");
    assert_eq!(document["io_dir"], json!(null));
    assert!(!place.path("sandbox-files").exists());
}

#[test]
fn inputs_without_io_are_refused_with_the_place_that_turned_it_off() {
    let place = Fixture::new();
    place.write("a.csv", "1");
    place.write("s.luau", "return io ~= nil");
    let refused = place.sandboxctl(["run", "--no-io", "--in", "a.csv", "s.luau"]);
    refused.assert_code(2).assert_stderr_has("--in").assert_stderr_has("--no-io");
    place.write("sandboxctl.toml", "[io]\nenabled = false\n");
    let refused = place.sandboxctl(["run", "--in", "a.csv", "s.luau"]);
    refused.assert_code(2).assert_stderr_has("io.enabled").assert_stderr_has("sandboxctl.toml");
}

#[test]
fn an_argument_that_no_number_equals_is_the_callers_mistake() {
    let place = Fixture::new();
    place.write("args.json", r#"{"id": 9007199254740993}"#);
    place.write("s.luau", "return args");
    let ended = place.sandboxctl(["run", "--json", "--args-file", "args.json", "s.luau"]);
    let document = place.document(ended.assert_code(2));
    assert_eq!(document["error"]["kind"], "usage", "{document:#}");
    let message = document["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("--args-file") && message.contains("args.id"), "{message}");
}

#[test]
fn an_entry_that_is_too_long_says_that_it_was_cut() {
    let place = Fixture::new();
    let source = "print(string.rep('x', 100000)) print('next')";
    let document = place.run_json(source, &[]);
    let entry = document["logs"][0].as_str().unwrap();
    assert!(entry.ends_with("x… [cut]") && entry.len() <= 64 << 10, "{}", entry.len());
    assert_eq!((&document["logs"][1], &document["logs_truncated"]), (&json!("next"), &json!(true)));

    let ended = place.sandboxctl(["run", "script.luau"]);
    assert_eq!(ended.assert_code(0).stdout, format!("{entry}\nnext\n"));
}

#[test]
fn a_limit_names_the_setting_that_raises_it() {
    let place = Fixture::new();
    let document = place.run_json("while true do end", &["--timeout", "100ms"]);
    assert_eq!(document["error"]["hint"], "--timeout raises the limit", "{document:#}");
}

#[test]
fn an_io_dir_that_stays_empty_is_removed_again_and_one_that_was_there_stays() {
    let place = Fixture::new();
    place.run_json("return 1", &[]);
    assert!(!place.path("sandbox-files").exists());
    std::fs::create_dir(place.path("mine")).unwrap();
    place.run_json("return 1", &["--io-dir", "mine"]);
    assert!(place.path("mine").exists());
    place.run_json("io.open('x', 'w')", &["--io-dir", "new/deep"]);
    assert!(place.path("new/deep/x").exists());
}

#[test]
fn id_that_kernels_read_as_unchanged_is_refused_before_anything_is_made() {
    let place = Fixture::new();
    place.write("one.luau", "return 1");
    for user in ["4294967295:0", "0:4294967295", "65535:0", "0:65535", "-1:0", "+0", "1000:+5"] {
        let exec = ["exec", "--user", user, "--image", "none", "--", "true"];
        for args in [&["run", "--user", user, "one.luau"][..], &exec] {
            place.sandboxctl(args).assert_code(2).assert_stderr_has("--user");
            assert!(!place.path("sandbox-files").exists(), "{args:?}");
        }
    }
    assert_eq!(place.instances(), Vec::<String>::new());
}

#[test]
fn id_that_the_engine_cannot_have_is_refused_before_anything_is_made() {
    let place = Fixture::new();
    // One that it has.
    let highest = if engine() == Engine::Docker { "2147483647" } else { "4294967294" };
    let run = |user: &str| place.sandboxctl(["run", "-c", "return 1", "--no-io", "--user", user]);
    run(highest).assert_code(0);
    if engine() == Engine::Docker {
        for user in ["2147483648", "4294967294", "0:2147483648"] {
            run(user)
                .assert_code(121)
                .assert_stderr_has("the engine takes users and groups up to 2147483647")
                .assert_stderr_has("hint: ");
        }
    }
}

#[test]
fn cut_off_log_is_one_warning_at_the_end() {
    let place = Fixture::new();
    let file = place.write("many.luau", "for i = 1, 5 do print(i) end print(('x'):rep(70000))");
    let stderr = |flags: &[&str], lines: &str| {
        let mut command = place.command(["run"].iter().chain(flags).map(OsStr::new));
        command.arg(&file).env("SANDBOXCTL_LIMITS_LOG_LINES", lines);
        finish(command).assert_code(0).messages().to_owned()
    };
    let warning = "warning: cut off: the log after 3 entries (SANDBOXCTL_LIMITS_LOG_LINES, or \
                   limits.log_lines in ~/.config/sandboxctl/config.toml, raises the limit); a file \
                   (io.write) has no such limit\n";
    assert_eq!(stderr(&[], "3"), warning);
    // On stdout is only data, without a line of sandboxctl: nothing else reports it.
    assert_eq!(stderr(&["-q"], "3"), warning);
    assert_eq!(stderr(&["--json"], "3"), warning);
    let mut command = place.command(["run"]);
    command.arg(&file).env("SANDBOXCTL_LIMITS_LOG_LINES", "3");
    assert_eq!(finish(command).assert_code(0).stdout, "1\n2\n3\n");
    assert_eq!(stderr(&[], "6"), "warning: cut off: log entries after 64 KiB each\n");
}
