//! Processes that go on after the call that started them.

use serde_json::json;

use super::Client;
use crate::fixture::Fixture;
use crate::rootfs::Rootfs;

#[test]
fn agent_starts_a_server_talks_to_a_process_and_ends_both() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let mut flags: Vec<&str> = root.iter().map(String::as_str).collect();
    flags.extend(["--pool", "0"]);
    let mut client = Client::new(&place, &flags);
    assert_eq!(client.data("list_processes", json!({})), json!({ "processes": [] }));
    client.data("write_file", json!({ "path": "greeting", "content": "hello\n" }));

    let server = json!({ "command": "nc -l -p 8080 < greeting", "ready": { "port": 8080 } });
    let server = client.data("start_process", server);
    assert_eq!((&server["process"], &server["ready"]), (&json!(1), &json!(true)), "{server:#}");
    // It has the same loopback, and a condition on its output.
    let asks = json!({ "command": "nc 127.0.0.1 8080", "ready": { "text": "hello\n" } });
    let asks = client.data("start_process", asks);
    assert_eq!((&asks["output"], &asks["ready"]), (&json!("hello\n"), &json!(true)), "{asks:#}");

    let line = "while read -r line; do printf 'got \\033[1m%s\\n' \"$line\"; done; exit 7";
    let repl = client.data("start_process", json!({ "shell": line, "env": { "A": "b" } }));
    assert_eq!(repl["state"], "running", "{repl:#}");
    let process = repl["process"].clone();
    client.data("send_input", json!({ "process": process, "text": "one\ntwo\n" }));
    let mut read = repl;
    let mut output = String::new();
    while !output.contains("two") {
        let arguments = json!({ "process": process, "after": read["next"], "wait_ms": 30_000 });
        read = client.data("read_output", arguments);
        output.push_str(read["output"].as_str().unwrap());
    }
    assert_eq!(output, "got \\u{1b}[1mone\ngot \\u{1b}[1mtwo\n");
    client.data("send_input", json!({ "process": process, "eof": true }));
    while read["state"] != "ended" {
        let arguments = json!({ "process": process, "after": read["next"], "wait_ms": 30_000 });
        read = client.data("read_output", arguments);
    }
    assert_eq!(read["exit_code"], 7, "{read:#}");
    // All of it once more, and a part.
    let first = json!({ "process": process, "after": 0, "max_bytes": 5 });
    assert_eq!(client.data("read_output", first)["output"], "got ");

    let forked = json!({ "shell": "sleep 600 & sleep 601", "pty": true });
    let forked = client.data("start_process", forked)["process"].clone();
    let stopped = client.data("stop_process", json!({ "process": forked }));
    assert_eq!(stopped["state"], "ended", "{stopped:#}");
    let listed = client.data("list_processes", json!({}));
    let numbers = listed["processes"].as_array().unwrap().iter().map(|it| it["process"].clone());
    // Not that which looked whether the port is listened on.
    let expected = [forked, process.clone(), asks["process"].clone(), json!(1)];
    assert_eq!(numbers.collect::<Vec<_>>(), expected, "{listed:#}");

    // What asks it to end, and how long it may take for that.
    for (signal, time, code) in [("INT", 60_000, json!(6)), ("TERM", 0, json!(null))] {
        let line = format!("trap 'exit 6' {signal}; echo up; while :; do sleep 0.05; done");
        let started = json!({
            "shell": line, "ready": { "text": "up\n" },
            "stop_signal": signal, "stop_timeout_ms": time,
        });
        let process = client.data("start_process", started)["process"].clone();
        let stopped = client.data("stop_process", json!({ "process": process }));
        assert_eq!(stopped["exit_code"], code, "{stopped:#}");
    }

    for (tool, arguments, expected) in [
        ("read_output", json!({ "process": 99 }), "there is no process '99'"),
        (
            "read_output",
            json!({ "process": process, "wait_ms": 60_000 }),
            "`wait_ms` is at most 30000",
        ),
        ("send_input", json!({ "process": process }), "give `text`, or `eof: true`"),
        ("send_input", json!({ "process": process, "text": "x" }), "has ended"),
        ("start_process", json!({}), "give one of `program` and `shell`"),
        ("start_process", json!({ "shell": "a", "ready": {} }), "give one of `port` and `text`"),
        ("start_process", json!({ "shell": "a", "stop_signal": "SEGV" }), "unknown variant `SEGV`"),
        (
            "start_process",
            json!({ "shell": "a", "stop_timeout_ms": 60_001 }),
            "the most that is allowed",
        ),
    ] {
        let text = client.failure(tool, arguments);
        assert!(text.contains(expected), "{text}");
    }
    client.end();
}

#[test]
fn agent_has_sixteen_processes_at_a_time() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let mut flags: Vec<&str> = root.iter().map(String::as_str).collect();
    flags.extend(["--pool", "0"]);
    let mut client = Client::new(&place, &flags);
    let sleep = json!({ "program": "sleep", "args": ["600"] });
    for number in 1..=16 {
        assert_eq!(client.data("start_process", sleep.clone())["process"], number);
    }
    let text = client.failure("start_process", sleep.clone());
    assert!(text.contains("16 processes run") && text.contains("stop_process"), "{text}");
    client.data("stop_process", json!({ "process": 5 }));
    assert_eq!(client.data("start_process", sleep)["process"], 17);
    client.end();
}

#[test]
fn client_hears_of_what_a_process_changes_in_files_that_it_has_subscribed_to() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let mut flags: Vec<&str> = root.iter().map(String::as_str).collect();
    flags.extend(["--io-dir", "out", "--pool", "0"]);
    let updated = "notifications/resources/updated";
    let [first, second] = ["sandbox:///io/first", "sandbox:///io/deep/second"];
    let mut client = Client::new(&place, &flags);
    client.ask("resources/subscribe", json!({ "uri": first }));
    let line = "while read -r name; do mkdir -p deep; echo x >> \"$name\"; done";
    let started = client.data("start_process", json!({ "shell": line }));
    // What it did before its files were watched is not known.
    assert_eq!(client.notified(updated), [json!({ "uri": first })]);
    let process = &started["process"];
    client.data("send_input", json!({ "process": process, "text": "other\nfirst\n" }));
    let heard = client.notified(updated);
    assert!(heard.iter().all(|it| it["uri"] == first), "{heard:?}");
    // One subscription more, of a file in a directory that was made meanwhile.
    client.ask("resources/subscribe", json!({ "uri": second }));
    client.data("send_input", json!({ "process": process, "text": "deep/second\n" }));
    while !client.notified(updated).iter().any(|it| it["uri"] == second) {}
    client.end();
}
