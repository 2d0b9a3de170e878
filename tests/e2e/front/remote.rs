//! What `run --server` and `exec --server` print of what a service answers. A stand-in answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use sandbox_api::service::ExecutionKind;
use sandbox_api::{ErrorKind, ExecutionDocument, Failure};
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::rootfs::Rootfs;

/// A service whose executions all have these events: where it is.
fn service(events: Vec<Value>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let event = |(seq, mut event): (u64, Value)| {
        event["seq"] = json!(seq);
        event["time"] = json!("2026-11-22T06:11:28.000Z");
        format!("id: {seq}\ndata: {event}\n\n")
    };
    let events: String = (1..).zip(events).map(event).collect();
    std::thread::spawn(move || {
        for (connection, number) in listener.incoming().zip(1..) {
            answer(connection.unwrap(), number, &events);
        }
    });
    url
}

/// Answers a request, and closes the connection.
fn answer(connection: TcpStream, number: u32, events: &str) {
    let mut reader = BufReader::new(connection);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let begin = head.len();
        reader.read_line(&mut head).unwrap();
        let line = head[begin..].trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).unwrap();
    let (status, body) = match head.starts_with("POST /v1/executions") {
        true => ("202 Accepted", format!(r#"{{"id":"e{number}","status":"queued"}}"#)),
        false => ("200 OK", events.to_owned()),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    // A client that has seen the last event may be gone.
    _ = reader.get_mut().write_all((head + &body).as_bytes());
}

#[test]
fn log_and_tests_of_a_script_whose_service_was_killed_are_printed_and_its_head_once() {
    let place = Fixture::new();
    place.write("a.luau", "");
    place.write("b.luau", "");
    let failure = Failure::new(ErrorKind::Killed, "the server was stopped while it ran", None);
    let mut document =
        serde_json::to_value(ExecutionDocument::failed(ExecutionKind::Script, failure, 137))
            .unwrap();
    document["status"] = json!("killed");
    document["logs"] = json!(["reported", "[warn] of it", "[log cut off: the server was stopped]"]);
    document["logs_truncated"] = json!(true);
    document["files_touched"] = json!([{"name": "a.txt", "op": "write", "bytes": 3}]);
    let url = service(vec![
        json!({"event": "start"}),
        json!({"event": "log", "level": "print", "text": "reported"}),
        json!({"event": "end", "exit_code": 137, "document": document}),
    ]);
    let ended = place.sandboxctl(["run", "--server", &url, "-j", "2", "a.luau", "b.luau"]);
    ended.assert_code(137);
    let log = "reported\n[warn] of it\n[log cut off: the server was stopped]\n";
    assert_eq!(ended.stdout, log.repeat(2), "{ended:#?}");
    for (text, count) in [
        ("running a.luau", 1),
        ("running b.luau", 1),
        ("the server was stopped while it ran", 2),
        ("the service keeps 1 file", 2),
    ] {
        assert_eq!(ended.stderr.matches(text).count(), count, "{text}: {ended:#?}");
    }
}

#[test]
fn output_that_was_printed_as_it_came_is_not_cut_off() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let local = [&*root[0], &*root[1], "--json", "--", "sh", "-c", "yes | head -c 1500000"];
    let local = place.sandboxctl([&["exec"][..], &local].concat());
    local.assert_code(0).assert_stderr_has("cut off: stdout after 1,000,000 bytes");
    let document: Value = serde_json::from_str(&local.stdout).unwrap();
    assert_eq!(document["stdout_truncated"], true);
    let url = service(vec![
        json!({"event": "start"}),
        json!({"event": "output", "stream": "stdout", "text": "all of it\n", "encoding": "utf-8"}),
        json!({"event": "end", "exit_code": 0, "document": document}),
    ]);
    let ended = place.sandboxctl(["exec", "--server", &url, "image", "yes"]);
    assert_eq!((ended.code, &*ended.stdout, &*ended.stderr), (0, "all of it\n", ""));
    let ended = place.sandboxctl(["exec", "--server", &url, "--json", "image", "yes"]);
    ended.assert_code(0).assert_stderr_has("cut off: stdout after 1,000,000 bytes");
}
