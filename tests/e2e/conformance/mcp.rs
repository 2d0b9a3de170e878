//! `sandboxctl mcp`: the tools of an agent over stdin and stdout.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::place::{Place, eventually};

/// Longer than any answer of these tests takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// A client of `sandboxctl mcp`.
struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    messages: Receiver<Value>,
    /// Answers that came before somebody asked for them, by their ids.
    early: HashMap<u64, Value>,
    notifications: Vec<Value>,
    requests: u64,
}

impl Client {
    /// One of the revision 2025-11-25, which has said hello.
    fn new(place: &Place, flags: &[&str]) -> Self {
        let mut client = Self::silent(place, flags);
        let hello = client.ask(
            "initialize",
            json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": { "name": "test", "version": "1" },
            }),
        );
        assert_eq!(hello["result"]["protocolVersion"], "2025-11-25", "{hello:#}");
        client.notify("notifications/initialized", json!({}));
        client
    }

    /// One that has not said anything.
    fn silent(place: &Place, flags: &[&str]) -> Self {
        let mut command = place.command(["mcp"]);
        command.args(flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, messages) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines {
                let line = line.unwrap();
                // Nothing else is on stdout.
                let message = serde_json::from_str(&line)
                    .unwrap_or_else(|error| panic!("no message: {error}: {line}"));
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        let (early, notifications) = (HashMap::new(), Vec::new());
        Self { child, stdin, messages, early, notifications, requests: 0 }
    }

    fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Sends a request, and gives its id.
    fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.requests += 1;
        let id = self.requests;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    fn begin_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.begin("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// The answer to a request.
    fn answer(&mut self, id: u64) -> Value {
        loop {
            if let Some(answer) = self.early.remove(&id) {
                return answer;
            }
            let message = self.messages.recv_timeout(PATIENCE).expect("an answer");
            match message["id"].as_u64() {
                Some(id) => _ = self.early.insert(id, message),
                None => self.notifications.push(message),
            }
        }
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    /// The result of a call.
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.begin_call(tool, arguments);
        let answer = self.answer(id);
        assert!(answer.get("error").is_none(), "{tool}: {answer:#}");
        answer["result"].clone()
    }

    /// The structured content of a call that succeeds.
    #[track_caller]
    fn data(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments.clone());
        assert_eq!(result["isError"], false, "{tool} {arguments}: {result:#}");
        result["structuredContent"].clone()
    }

    /// The text of a call that fails.
    #[track_caller]
    fn failure(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments.clone());
        assert_eq!(result["isError"], true, "{tool} {arguments}: {result:#}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Ends stdin, and waits for the end of the server.
    fn end(mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0));
        assert_eq!(self.messages.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[test]
fn agent_works_on_files_with_a_script_and_with_tools() {
    let place = Place::new();
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let script = "io.open('report/a b.csv', 'w'):write('n,sq\\n1,1\\n2,4\\n'):close()\n\
                  print('written') return { rows = 2 }";
    let result = client.call("execute_script", json!({ "script": script }));
    let expected = json!({
        "result": { "rows": 2 },
        "logs": ["written"],
        "files_touched": [{ "name": "report/a b.csv", "op": "write", "bytes": 13 }],
    });
    assert_eq!(result["structuredContent"], expected);
    let text = result["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), expected);
    let link = &result["content"][1];
    assert_eq!((&link["type"], &link["size"]), (&json!("resource_link"), &json!(13)), "{link}");

    let read = client.ask("resources/read", json!({ "uri": link["uri"] }));
    assert_eq!(read["result"]["contents"][0]["text"], "n,sq\n1,1\n2,4\n", "{read:#}");
    let path = "report/a b.csv";
    client.data("edit_file", json!({ "path": path, "old": "2,4", "new": "2,four" }));
    let found = client.data("grep", json!({ "pattern": "f[o]ur" }));
    assert_eq!(found["lines"][0]["line"], 3, "{found:#}");
    client.data("copy", json!({ "from": path, "to": "b.csv" }));
    client.data("move", json!({ "from": "b.csv", "to": "c.csv" }));
    let globbed = client.data("glob", json!({ "pattern": "**/*.csv" }));
    assert_eq!(globbed["matches"].as_array().unwrap().len(), 2, "{globbed:#}");
    let listed = client.ask("resources/list", json!({}));
    let names = listed["result"]["resources"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["c.csv", "report/a b.csv"]);
    let completed = client.ask(
        "completion/complete",
        json!({
            "ref": { "type": "ref/resource", "uri": "sandbox:///io/{+path}" },
            "argument": { "name": "path", "value": "report/" },
        }),
    );
    assert_eq!(completed["result"]["completion"]["values"], json!(["report/a b.csv"]));
    client.data("remove", json!({ "path": "report", "recursive": true }));
    let gone = client.ask("resources/read", json!({ "uri": link["uri"] }));
    assert_eq!(gone["error"]["code"], -32002, "{gone:#}");
    client.answered_list_changed();
    client.end();
    assert_eq!(place.read("out/c.csv"), "n,sq\n1,1\n2,four\n");
}

impl Client {
    /// Whether the client was told that the list of files has changed.
    #[track_caller]
    fn answered_list_changed(&mut self) {
        let changed = "notifications/resources/list_changed";
        while !self.notifications.iter().any(|it| it["method"] == changed) {
            let message = self.messages.recv_timeout(PATIENCE).expect("a notification");
            self.notifications.push(message);
        }
    }
}

#[test]
fn agent_hears_what_is_wrong_and_can_go_on() {
    let place = Place::new();
    place.write("out/data.bin", b"\xff\xfe\x00");
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let unknown = client.ask("tools/call", json!({ "name": "nope", "arguments": {} }));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown:#}");
    let unknown = client.ask("no/such", json!({}));
    assert_eq!(unknown["error"]["code"], -32601, "{unknown:#}");

    let script = "print('before') io.open('kept', 'w'):write('x') error('boom')";
    let result = client.call("execute_script", json!({ "script": script }));
    assert_eq!(result["isError"], true);
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("Script execution error: script:1: boom"), "{text}");
    let structured = &result["structuredContent"];
    assert_eq!(structured["logs"], json!(["before"]), "{structured:#}");
    assert_eq!(structured["files_touched"][0]["name"], "kept", "{structured:#}");

    for (timeout, expected) in [(0, "1 to 600000"), (-1, "1 to 600000"), (600_001, "1 to 600000")] {
        let arguments = json!({ "script": "return 1", "timeout_ms": timeout });
        let text = client.failure("execute_script", arguments);
        assert!(text.starts_with("Script execution error:") && text.contains(expected), "{text}");
    }
    for (tool, arguments, expected) in [
        ("execute_script", json!({ "script": "return 1", "x": 1 }), "unknown field `x`"),
        ("execute_script", json!({ "script": "while true do end", "timeout_ms": 50 }), "(timeout)"),
        ("execute_script", json!({ "script": "-".repeat(300_000) }), "source_too_large"),
        ("read_file", json!({ "path": "data.bin" }), "`encoding: \"base64\"`"),
        ("read_file", json!({ "path": "../etc/passwd" }), "path_escape"),
        ("read_file", json!({ "path": "/etc/passwd" }), "path_escape"),
        ("write_file", json!({ "path": ".bashrc", "content": "x" }), "protected"),
        ("stat", json!({ "path": "absent" }), "not_found"),
    ] {
        let text = client.failure(tool, arguments);
        assert!(text.contains(expected), "{tool}: {text}");
        // No path of the host, whatever is wrong.
        assert!(!text.contains(place.work().to_str().unwrap()), "{tool}: {text}");
    }
    let bytes = client.data("read_file", json!({ "path": "data.bin", "encoding": "base64" }));
    assert_eq!(bytes["content"], "//4A");
    assert_eq!(client.data("execute_script", json!({ "script": "return 1" }))["result"], 1);
    client.end();
}

#[test]
fn client_of_the_stateless_revision_needs_no_hello() {
    let place = Place::new();
    let mut client = Client::silent(&place, &["--no-io", "--pool", "0"]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
    });
    let discovered = client.ask("server/discover", json!({ "_meta": meta }));
    let versions = discovered["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!("2026-07-28")), "{discovered:#}");
    // Without files there are neither their tools nor resources.
    let capabilities = &discovered["result"]["capabilities"];
    assert!(capabilities.get("resources").is_none(), "{discovered:#}");
    let listed = client.ask("tools/list", json!({ "_meta": meta }));
    let result = &listed["result"];
    assert_eq!(result["tools"].as_array().unwrap().len(), 1, "{listed:#}");
    let description = result["tools"][0]["description"].as_str().unwrap();
    assert!(description.contains("Files are off"), "{description}");
    assert!(result["ttlMs"].is_u64() && result["cacheScope"].is_string(), "{result:#}");
    assert_eq!(result["resultType"], "complete", "{result:#}");
    let arguments = json!({ "script": "return { io == nil, args.n }", "args": { "n": 2 } });
    let params = json!({ "_meta": meta, "name": "execute_script", "arguments": arguments });
    let called = client.ask("tools/call", params);
    assert_eq!(called["result"]["structuredContent"]["result"], json!([true, 2]), "{called:#}");
    client.end();
}

#[test]
fn cancelled_call_ends_its_container_and_no_other() {
    let place = Place::new();
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let params = json!({
        "name": "execute_script",
        "arguments": { "script": "print('begun') while true do end", "timeout_ms": 600_000 },
        "_meta": { "progressToken": "t" },
    });
    let endless = client.begin("tools/call", params);
    let begun = loop {
        let message = client.messages.recv_timeout(PATIENCE).unwrap();
        if message["method"] == "notifications/progress" {
            break message;
        }
    };
    assert_eq!(begun["params"]["message"], "begun", "{begun:#}");
    assert_eq!(begun["params"]["progressToken"], "t", "{begun:#}");
    client.notify("notifications/cancelled", json!({ "requestId": endless }));
    eventually("the container of the cancelled call is gone", || {
        place.containers().is_empty().then_some(())
    });
    assert_eq!(client.data("execute_script", json!({ "script": "return 1" }))["result"], 1);
    // What is cancelled is not answered.
    assert!(!client.early.contains_key(&endless));
    client.end();
}

#[test]
fn client_that_is_killed_or_leaves_in_the_middle_leaves_nothing() {
    let place = Place::new();
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "1"]);
    client.begin_call(
        "execute_script",
        json!({ "script": "while true do end", "timeout_ms": 600_000 }),
    );
    eventually("a container runs", || (!place.containers().is_empty()).then_some(()));
    // As the kernel does for a client that was killed.
    drop(client.stdin.take());
    client.child.wait().unwrap();
    assert_eq!(place.containers(), Vec::<String>::new());
    drop(client);

    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    client.begin_call(
        "execute_script",
        json!({ "script": "while true do end", "timeout_ms": 600_000 }),
    );
    eventually("a container runs", || (!place.containers().is_empty()).then_some(()));
    let pid = Pid::from_raw(client.child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(client.child.wait().unwrap().code(), Some(143));
    assert_eq!(place.containers(), Vec::<String>::new());
}

#[test]
fn sandbox_that_dies_costs_the_calls_in_it_alone() {
    let place = Place::new();
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    client.data("write_file", json!({ "path": "a", "content": "x" }));
    let kept = place.containers();
    assert_eq!(kept.len(), 1);
    crate::ENGINE.kill(&kept[0]);
    eventually("the next call has another sandbox", || {
        (client.call("read_file", json!({ "path": "a" }))["isError"] == false).then_some(())
    });
    client.end();
}

#[test]
fn two_thousand_calls_at_once_are_all_answered() {
    let place = Place::new();
    place.write("out/a.txt", "x\n");
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let mut stdin = client.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        for id in 1001..3001_u64 {
            let params = json!({ "name": "stat", "arguments": { "path": "a.txt" } });
            let call =
                json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
            stdin.write_all(format!("{call}\n").as_bytes()).unwrap();
        }
        stdin
    });
    for id in 1001..3001 {
        let answer = client.answer(id);
        assert_eq!(answer["result"]["structuredContent"]["size"], 2, "{answer:#}");
    }
    client.stdin = Some(writer.join().unwrap());
    client.end();
}

#[test]
fn nothing_can_be_written_where_files_are_read_only() {
    let place = Place::new();
    place.write("out/a.txt", "x\n");
    let mut client = Client::new(&place, &["--io-dir", "out", "--read-only", "--pool", "0"]);
    let listed = client.ask("tools/list", json!({}));
    let names = listed["result"]["tools"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|tool| tool["name"].as_str().unwrap()).collect();
    let expected = ["execute_script", "read_file", "list_directory", "stat", "glob", "grep"];
    assert_eq!(names, expected);
    let read = client.call("read_file", json!({ "path": "a.txt" }));
    assert_eq!(read["content"][0]["text"], "x\n", "{read:#}");
    let script = "return { fs.read('a.txt'), pcall(fs.write, 'b.txt', 'y') }";
    let data = client.data("execute_script", json!({ "script": script }));
    assert_eq!(
        (&data["result"][0], &data["result"][1]),
        (&json!("x\n"), &json!(false)),
        "{data:#}"
    );
    client.end();
    assert!(!place.path("out/b.txt").exists());
}
