//! `sandbox_command`: programs in the sandboxes that `sandbox_init` makes from an image.

use serde_json::{Value, json};

use super::{Server, c, init};
use crate::fixture::{Fixture, eventually};
use crate::rootfs::{Provided, Rootfs};

/// A server whose sandboxes have programs: by their callers' word, where the engine has images.
fn server<'a>(place: &'a Fixture, provided: &Provided) -> (Server<'a>, Value) {
    let mut args = init("c");
    match provided {
        Provided::Image(name) => {
            args["imageName"] = json!(name);
            (Server::new(place), args)
        }
        Provided::Directory(_) | Provided::Shared(_) | Provided::Archive(_) => {
            let flags = provided.args();
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            (Server::with(place, &flags), args)
        }
    }
}

fn shell(line: &str) -> Value {
    c(json!({"executable": "sh", "args": ["-c", line]}))
}

#[test]
fn commands_run_in_a_kept_sandbox_and_leave_files_and_the_truth() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().folder("srv", 0o755).provide();
    let (mut server, init) = server(&place, &provided);
    let made = server.data("sandbox_init", init);
    assert_eq!(made["containerId"], "c");

    let answer = server.ask("sandbox_command", shell("echo out; echo err >&2; exit 7"));
    let data = json!({"stdout": "out", "stderr": "err", "exitCode": 7, "timedOut": false});
    assert_eq!(answer["data"], data, "{answer:#}");
    let metadata = &answer["metadata"];
    for flag in ["stdoutTruncated", "stderrTruncated", "stdoutLossy", "stderrLossy"] {
        assert_eq!(metadata[flag], false, "{answer:#}");
    }

    // White space within is the command's own, and so is a file's.
    let spaced = server.data("sandbox_command", shell("printf ' \\n a  b\\n\\n'; echo >&2"));
    assert_eq!((&spaced["stdout"], &spaced["stderr"]), (&json!("a  b"), &json!("")));
    server.data("sandbox_write_file", c(json!({"path": "spaced", "content": " a \n"})));
    assert_eq!(server.data("sandbox_read_file", c(json!({"path": "spaced"})))["content"], " a \n");

    // The working directory is the root unless the caller says; the variables are theirs.
    let output = |server: &mut Server<'_>, args: Value| {
        let data = server.data("sandbox_command", args);
        assert_eq!((&data["exitCode"], &data["timedOut"]), (&json!(0), &json!(false)), "{data:#}");
        data["stdout"].as_str().unwrap().to_owned()
    };
    assert_eq!(output(&mut server, c(json!({"executable": "pwd"}))), "/");
    let there = c(json!({"executable": "pwd", "workingDirectory": "/srv"}));
    assert_eq!(output(&mut server, there), "/srv");
    let relative = c(json!({"executable": "pwd", "workingDirectory": "."}));
    assert_eq!(output(&mut server, relative), "/workspace");
    let own = ["A=b=c", "EMPTY=", "HOME=/x", "USER=me", "PATH=/bin:/usr/bin"];
    for (given, expected) in [(&own[..], &own[..]), (&[], &["HOME=/workspace"])] {
        let variables = c(json!({"executable": "env", "envVars": given}));
        let variables = output(&mut server, variables);
        for line in expected {
            assert!(variables.lines().any(|it| it == *line), "{line} in {variables}");
        }
    }

    // It is one sandbox: what a command makes, the next call finds.
    let made = server.ask("sandbox_command", shell("echo made > /workspace/a; echo x > /tmp/b"));
    assert_eq!(made["data"]["exitCode"], 0, "{made:#}");
    let read = server.data("sandbox_read_file", c(json!({"path": "a"})));
    assert_eq!(read["content"], "made\n");
    assert_eq!(output(&mut server, shell("cat /tmp/b")), "x");
    let script = json!({"script": "return process.exec('cat', {'/tmp/b'}).stdout"});
    assert_eq!(server.data("sandbox_execute_script", c(script))["result"], "x\n");

    let killed = server.ask("sandbox_command", shell("kill -9 $$"));
    assert_eq!(killed["data"]["exitCode"], 137, "{killed:#}");
    assert_eq!(killed["metadata"]["signal"], 9, "{killed:#}");
    server.end_well();
}

#[test]
fn a_stopped_command_reports_its_output() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let (mut server, init) = server(&place, &provided);
    server.data("sandbox_init", init);

    let mut late = shell("echo before; sleep 1000");
    late["timeout"] = json!(5000);
    let data = server.data("sandbox_command", late);
    let expected = json!({"stdout": "before", "stderr": "", "exitCode": -1, "timedOut": true});
    assert_eq!(data, expected);

    let begun = |name: &str| shell(&format!("echo before; touch /workspace/{name}; sleep 1000"));
    let id = server.begin("sandbox_command", begun("one"));
    eventually("it begins", || place.path("sandbox-files/one").exists().then_some(()));
    server.send(&json!({"cancel": id}).to_string());
    let answer = server.answer(&id);
    assert_eq!(answer["metadata"]["kind"], "cancelled", "{answer:#}");
    assert_eq!(answer["metadata"]["stdout"], "before\n", "{answer:#}");

    // Of calls that wait for each other the second begins when the first has ended.
    let first = server.begin("sandbox_command", shell("sleep 0.3; echo 1 > /workspace/order"));
    let second = server.begin("sandbox_command", shell("cat /workspace/order"));
    assert_eq!(server.answer(&second)["data"]["stdout"], "1");
    assert_eq!(server.answer(&first)["data"]["exitCode"], 0);
    server.end_well();
}

#[test]
fn output_that_is_not_text_or_too_long_is_marked() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let (mut server, init) = server(&place, &provided);
    server.data("sandbox_init", init);
    let answer = server.ask("sandbox_command", shell(r"printf 'a\377b'; printf 'ok' >&2"));
    assert_eq!(answer["data"]["stdout"], "a\u{fffd}b", "{answer:#}");
    assert_eq!(answer["metadata"]["stdoutLossy"], true);
    assert_eq!(answer["metadata"]["stderrLossy"], false);
    let answer = server.ask("sandbox_command", shell("yes | head -c 1500000"));
    assert_eq!(answer["data"]["stdout"].as_str().unwrap().len(), 1_000_000);
    assert_eq!(answer["metadata"]["stdoutTruncated"], true);
    assert_eq!(answer["metadata"]["stderrTruncated"], false);
    assert_eq!(answer["data"]["exitCode"], 0);
    server.end_well();
}

#[test]
fn invalid_commands_are_refused_by_name() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().file("srv/plain", 0o644, "no program").provide();
    let (mut server, init) = server(&place, &provided);
    server.data("sandbox_init", init);
    let command = |args: Value| c(args);
    for (args, kind, names) in [
        (json!({"executable": "nope"}), "command_not_found", "'nope' was not found"),
        (json!({"executable": "/srv/plain"}), "not_executable", "/srv/plain"),
        (json!({"executable": ""}), "invalid_request", "`executable`"),
        (json!({"executable": "true", "timeout": 0}), "invalid_request", "`timeout`"),
        (json!({"executable": "true", "timeout": 86_400_000}), "policy", "limits.timeout"),
        (json!({"executable": "true", "envVars": ["A"]}), "invalid_request", "`envVars[0]`"),
        (json!({"executable": "true", "args": ["a\0b"]}), "invalid_request", "NUL"),
        (json!({"executable": "true", "workingDirectory": "/no"}), "not_found", "/no"),
    ] {
        let answer = server.ask("sandbox_command", command(args.clone()));
        let metadata = &answer["metadata"];
        assert_eq!(metadata["kind"], kind, "{args}: {answer:#}");
        assert!(answer["error"].as_str().unwrap().contains(names), "{args}: {answer:#}");
        assert_eq!(metadata["stdout"], "", "{args}: {answer:#}");
    }
    server.end_well();
}

#[test]
fn one_call_has_a_sandbox_made_for_it() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let mut args = init("c");
    let mut tool = place.command(["tool", "sandbox_command"]);
    match &provided {
        Provided::Image(name) => args["imageName"] = json!(name),
        Provided::Directory(_) | Provided::Shared(_) | Provided::Archive(_) => {
            _ = tool.args(provided.args())
        }
    }
    let input = shell("echo hello; exit 3");
    tool.args(["--init", &args.to_string(), "--input", &input.to_string()]);
    let ended = crate::fixture::finish(tool);
    // The call was done; how the command ended is data.
    ended.assert_code(0);
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(answer["data"]["stdout"], "hello", "{answer:#}");
    assert_eq!(answer["data"]["exitCode"], 3, "{answer:#}");
}

#[test]
fn only_images_that_are_allowed_may_be_named() {
    let place = Fixture::new();
    place.write("sandboxctl.toml", "[tools]\nallowed_images = ['sandboxctl-test/none:*']\n");
    let mut server = Server::new(&place);
    for (name, kind) in [
        // The embedded engine has no images; Docker does not have this one, and contacts no
        // registry.
        ("sandboxctl-test/none:1", "image"),
        ("sandboxctl-test/none", "not_allowed"),
        ("busybox", "not_allowed"),
    ] {
        let mut args = init("c");
        args["imageName"] = json!(name);
        let (reported, message) = server.failure("sandbox_init", args);
        assert_eq!(reported, kind, "{message}");
        assert!(message.starts_with(&format!("imageName '{name}': ")), "{message}");
    }
    server.init();
    let (kind, message) = server.failure("sandbox_command", shell("true"));
    assert_eq!(kind, "invalid_request");
    assert!(message.contains("needs one"), "{message}");
    server.end_well();
}
