//! `sandboxctl mcp`: the tools of an agent over stdin and stdout.

mod manners;
mod output;
mod processes;
mod skills;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::engine::{Engine, engine};
use crate::fixture::{Fixture, eventually, peak_memory_kib};
use crate::rootfs::Rootfs;
use crate::shared::cases;

/// Longer than any answer of these tests takes.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What a client of a revision with a hello begins with.
fn hello(revision: &str) -> Value {
    json!({
        "protocolVersion": revision,
        "capabilities": {},
        "clientInfo": { "name": "test", "version": "1" },
    })
}

/// What each request of the stateless revision has.
fn stateless() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
    })
}

/// A client of `sandboxctl mcp`.
pub struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    messages: Receiver<Value>,
    /// Answers that came before somebody asked for them, by their ids.
    early: HashMap<u64, Value>,
    notifications: Vec<Value>,
    requests: u64,
    /// What it replies to the next request of the server.
    reply: Option<Value>,
    /// The last request of the server.
    asked: Option<Value>,
}

impl Client {
    /// One of the revision 2025-11-25, which has said hello.
    pub fn new(place: &Fixture, flags: &[&str]) -> Self {
        Self::of(place, flags, "2025-11-25")
    }

    /// One of a revision that begins with a hello, which it has said.
    fn of(place: &Fixture, flags: &[&str], revision: &str) -> Self {
        let mut client = Self::silent(place, flags);
        let hello = client.ask("initialize", hello(revision));
        assert_eq!(hello["result"]["protocolVersion"], revision, "{hello:#}");
        client.notify("notifications/initialized", json!({}));
        client
    }

    /// One that has not said anything.
    pub fn silent(place: &Fixture, flags: &[&str]) -> Self {
        let mut command = place.command(["mcp"]);
        command.args(flags);
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
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
        let (reply, asked) = (None, None);
        Self { child, stdin, messages, early, notifications, requests: 0, reply, asked }
    }

    fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Sends a request, and gives its id.
    pub fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.requests += 1;
        let id = self.requests;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    pub fn begin_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.begin("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// The answer to a request.
    pub fn answer(&mut self, id: u64) -> Value {
        loop {
            if let Some(answer) = self.early.remove(&id) {
                return answer;
            }
            let message = self.messages.recv_timeout(TIMEOUT).expect("an answer");
            match message["id"].as_u64() {
                _ if message.get("method").is_some() && message.get("id").is_some() => {
                    let result = self.reply.take().expect("the server asks for nothing");
                    self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }));
                    self.asked = Some(message);
                }
                Some(id) => _ = self.early.insert(id, message),
                None => self.notifications.push(message),
            }
        }
    }

    /// Waits until the server asks for something, and does not reply.
    pub fn question(&mut self) -> Value {
        loop {
            let message = self.messages.recv_timeout(TIMEOUT).expect("a question");
            match (message.get("method"), message["id"].as_u64()) {
                (Some(_), Some(_)) => return message,
                (None, Some(id)) => _ = self.early.insert(id, message),
                _ => self.notifications.push(message),
            }
        }
    }

    /// What it replies when the server asks for something.
    pub fn say_when_asked(&mut self, result: Value) {
        self.reply = Some(result);
    }

    /// What the server has asked for.
    pub fn asked(&mut self) -> Option<Value> {
        self.asked.take()
    }

    pub fn ask(&mut self, method: &str, params: Value) -> Value {
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
    pub fn data(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments.clone());
        assert_eq!(result["isError"], false, "{tool} {arguments}: {result:#}");
        result["structuredContent"].clone()
    }

    /// The text of a call that fails.
    #[track_caller]
    pub fn failure(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments.clone());
        assert_eq!(result["isError"], true, "{tool} {arguments}: {result:#}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Ends stdin, and waits for the end of the server.
    pub fn end(mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0));
        // That its files changed may still be said after the answer.
        let last = loop {
            match self.messages.recv_timeout(TIMEOUT) {
                Ok(message) if message.get("id").is_none() => {}
                last => break last,
            }
        };
        assert_eq!(last, Err(RecvTimeoutError::Disconnected));
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
    let place = Fixture::new();
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
    assert_eq!(text, "result: {\"rows\":2}\nlog:\nwritten\n");
    let link = &result["content"][1];
    assert_eq!((&link["type"], &link["size"]), (&json!("resource_link"), &json!(13)), "{link}");

    let read = client.ask("resources/read", json!({ "uri": link["uri"] }));
    assert_eq!(read["result"]["contents"][0]["text"], "n,sq\n1,1\n2,4\n", "{read:#}");
    let path = "report/a b.csv";
    client.data("edit_file", json!({ "path": path, "old": "2,4", "new": "2,four" }));
    let latin1 = json!({ "path": "latin1.txt", "content": "Y2Fm6Q==", "encoding": "base64" });
    client.data("write_file", latin1);
    let edit = json!({ "path": "latin1.txt", "old": "caf", "new": "tea" });
    let refused = client.failure("edit_file", edit);
    assert!(refused.contains("write_file with `encoding: \"latin1\"`"), "{refused}");
    client.data("remove", json!({ "path": "latin1.txt" }));
    let found = client.data("grep", json!({ "pattern": "f[o]ur" }));
    assert_eq!(found["lines"][0]["line"], 3, "{found:#}");
    client.data("copy", json!({ "from": path, "to": "b.csv" }));
    client.data("move", json!({ "from": "b.csv", "to": "c.csv" }));
    let globbed = client.data("glob", json!({ "pattern": "**/*.csv" }));
    assert_eq!(globbed["matches"].as_array().unwrap().len(), 2, "{globbed:#}");
    let excluding = json!({ "pattern": "**/*.csv", "exclude": ["report/**"] });
    let globbed = client.data("glob", excluding);
    assert_eq!(globbed["matches"].as_array().unwrap().len(), 1, "{globbed:#}");
    let excluding = json!({ "pattern": "four", "glob": "!report/**" });
    assert_eq!(client.data("grep", excluding)["matches"], 1);
    let listed = client.ask("resources/list", json!({}));
    let names = listed["result"]["resources"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["sandboxctl", "c.csv", "report/a b.csv"], "the skill, and the files");
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

    // What is no text, too much, or elsewhere.
    let script = "fs.write('bytes', '\\255\\254') fs.write('much', ('x'):rep(5 * 2^20))";
    client.data("execute_script", json!({ "script": script }));
    let read = client.ask("resources/read", json!({ "uri": "sandbox:///io/bytes" }));
    assert_eq!(read["result"]["contents"][0]["blob"], "//4=", "{read:#}");
    for (uri, code, reported) in [
        ("sandbox:///io/much", -32602, "a resource has at most 4 MiB"),
        ("sandbox:///etc/passwd", -32602, "--io-dir"),
        ("sandbox:///io/../etc/passwd", -32602, "--io-dir"),
        ("file:///etc/passwd", -32002, "no such resource"),
    ] {
        let refused = client.ask("resources/read", json!({ "uri": uri }));
        assert_eq!(refused["error"]["code"], code, "{refused:#}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains(reported), "{uri}: {message}");
    }
    let completed = client.ask(
        "completion/complete",
        json!({
            "ref": { "type": "ref/prompt", "name": "review_changes" },
            "argument": { "name": "path", "value": "b" },
        }),
    );
    assert_eq!(completed["result"]["completion"]["values"], json!(["bytes"]));
    client.answered_list_changed();
    client.end();
    assert_eq!(place.read("out/c.csv"), "n,sq\n1,1\n2,four\n");
}

impl Client {
    /// Whether the client was notified that the list of files has changed.
    #[track_caller]
    fn answered_list_changed(&mut self) {
        let changed = "notifications/resources/list_changed";
        while !self.notifications.iter().any(|it| it["method"] == changed) {
            let message = self.messages.recv_timeout(TIMEOUT).expect("a notification");
            self.notifications.push(message);
        }
    }
}

impl Client {
    /// Waits for notifications of this method, and takes them with all that came before.
    #[track_caller]
    pub fn notified(&mut self, method: &str) -> Vec<Value> {
        while !self.notifications.iter().any(|it| it["method"] == method) {
            let message = self.messages.recv_timeout(TIMEOUT).expect("a notification");
            self.notifications.push(message);
        }
        let all = std::mem::take(&mut self.notifications).into_iter();
        all.filter(|it| it["method"] == method).map(|mut it| it["params"].take()).collect()
    }
}

#[test]
fn agent_hears_what_is_wrong_and_can_go_on() {
    let place = Fixture::new();
    place.write("out/data.bin", b"\xff\xfe\x00");
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let unknown = client.ask("tools/call", json!({ "name": "nope", "arguments": {} }));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown:#}");
    let unknown = client.ask("no/such", json!({}));
    assert_eq!(unknown["error"]["code"], -32601, "{unknown:#}");
    assert_eq!(unknown["error"]["message"], "method not found: no/such");
    let listed = client.ask("tools/list", json!({ "cursor": 5 }));
    assert_eq!(listed["error"]["code"], -32602, "{listed:#}");

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
        ("execute_script", json!({ "script": 7 }), "invalid type"),
        ("execute_script", json!({}), "missing field `script`"),
        ("execute_script", json!({ "script": "", "timeout_ms": 1.5 }), "must be 1 to 600000"),
        ("execute_script", json!({ "script": "while true do end", "timeout_ms": 50 }), "(timeout)"),
        ("execute_script", json!({ "script": "-".repeat(300_000) }), "source_too_large"),
        ("read_file", json!({ "path": "data.bin" }), "`encoding: \"base64\"`"),
        ("read_file", json!({ "path": "../etc/passwd" }), "path_escape"),
        ("read_file", json!({ "path": "/etc/passwd" }), "path_escape"),
        ("write_file", json!({ "path": ".bashrc", "content": "x" }), "--no-protect"),
        // The rule that would allow it, for a script as for a tool.
        ("execute_script", json!({ "script": "fs.write('.git/config', '')" }), "--no-protect"),
        ("execute_script", json!({ "script": "fs.read('/etc/passwd')" }), "--io-dir"),
        (
            "execute_script",
            json!({ "script": "", "args": { "a": "x".repeat(8 << 20) } }),
            "to a file",
        ),
        ("stat", json!({ "path": "absent" }), "not_found"),
    ] {
        let text = client.failure(tool, arguments);
        assert!(text.contains(expected), "{tool}: {text}");
        // No error contains a path of the host.
        assert!(!text.contains(place.work().to_str().unwrap()), "{tool}: {text}");
    }
    let bytes = client.data("read_file", json!({ "path": "data.bin", "encoding": "base64" }));
    assert_eq!(bytes["content"], "//4A");
    assert_eq!(client.data("execute_script", json!({ "script": "return 1" }))["result"], 1);
    client.end();
}

#[test]
fn client_of_the_stateless_revision_needs_no_hello() {
    let place = Fixture::new();
    let mut client = Client::silent(&place, &["--no-io", "--pool", "0"]);
    let meta = stateless();
    let discovered = client.ask("server/discover", json!({ "_meta": meta }));
    let versions = discovered["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!("2026-07-28")), "{discovered:#}");
    // Without files there are neither their tools nor news of them.
    let capabilities = &discovered["result"]["capabilities"];
    assert_eq!(capabilities["resources"], json!({}), "outputs alone: {discovered:#}");
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
fn client_of_the_stateless_revision_hears_of_changes_and_how_long_answers_are_good() {
    let place = Fixture::new();
    place.write("out/a", "x");
    let mut client = Client::silent(&place, &["--io-dir", "out", "--pool", "0"]);
    let with_meta = |mut params: Value| {
        params["_meta"] = stateless();
        params
    };
    for (method, params) in [
        ("tools/list", json!({})),
        ("prompts/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({ "uri": "sandbox:///io/a" })),
    ] {
        let answer = client.ask(method, with_meta(params));
        let result = &answer["result"];
        assert!(result["ttlMs"].is_u64(), "{method}: {answer:#}");
        assert_eq!(result["cacheScope"], "private", "{method}: {answer:#}");
    }
    let wanted = json!({ "notifications": { "resourcesListChanged": true } });
    let listening = client.begin("subscriptions/listen", with_meta(wanted.clone()));
    while !client
        .notifications
        .iter()
        .any(|it| it["method"] == "notifications/subscriptions/acknowledged")
    {
        let message = client.messages.recv_timeout(TIMEOUT).expect("an acknowledgement");
        client.notifications.push(message);
    }
    let write = json!({ "name": "write_file", "arguments": { "path": "b", "content": "" } });
    client.ask("tools/call", with_meta(write));
    client.answered_list_changed();
    assert!(!client.early.contains_key(&listening), "it goes on");
    // A client that starts later is notified once of all earlier changes.
    client.notifications.clear();
    client.begin("subscriptions/listen", with_meta(wanted));
    client.answered_list_changed();
    client.end();
}

#[test]
fn client_hears_of_changes_of_the_files_that_it_has_subscribed_to() {
    let place = Fixture::new();
    place.write("out/a", "x");
    let updated = "notifications/resources/updated";
    let [a, b] = ["sandbox:///io/a", "sandbox:///io/b"];
    let mut client = Client::silent(&place, &["--io-dir", "out", "--pool", "0"]);
    let hello = client.ask("initialize", hello("2025-11-25"));
    let resources = &hello["result"]["capabilities"]["resources"];
    assert_eq!(resources, &json!({ "subscribe": true, "listChanged": true }), "{hello:#}");
    client.notify("notifications/initialized", json!({}));
    for uri in [a, b] {
        let answer = client.ask("resources/subscribe", json!({ "uri": uri }));
        assert!(answer["result"].is_object(), "{answer:#}");
    }
    assert_eq!(place.containers().len(), 0, "none is started for a subscription");
    let refused = client.ask("resources/subscribe", json!({ "uri": "sandbox://output/1/stdout" }));
    assert_eq!(refused["error"]["code"], -32602, "{refused:#}");

    // An edit, which leaves the list as it is; then a script, of the other file.
    client.data("edit_file", json!({ "path": "a", "old": "x", "new": "y" }));
    assert_eq!(client.notified(updated), [json!({ "uri": a })]);
    client.data("execute_script", json!({ "script": "fs.write('b', '1') fs.write('c', '1')" }));
    assert_eq!(client.notified(updated), [json!({ "uri": b })]);
    client.ask("resources/unsubscribe", json!({ "uri": a }));
    client.data("write_file", json!({ "path": "a", "content": "z" }));
    client.data("move", json!({ "from": "b", "to": "d" }));
    assert_eq!(client.notified(updated), [json!({ "uri": b })], "no more of the other one");
    client.end();

    // The same without a session.
    let with_meta = |mut params: Value| {
        params["_meta"] = stateless();
        params
    };
    let mut client = Client::silent(&place, &["--io-dir", "out", "--pool", "0"]);
    let wanted = json!({ "resourceSubscriptions": [a, "skill://sandboxctl/SKILL.md"] });
    let params = with_meta(json!({ "notifications": wanted }));
    let id = client.begin("subscriptions/listen", params);
    let acknowledged = client.notified("notifications/subscriptions/acknowledged");
    let accepted = json!({ "resourceSubscriptions": [a] });
    assert_eq!(acknowledged[0]["notifications"], accepted, "{acknowledged:?}");
    let write = json!({ "name": "write_file", "arguments": { "path": "a", "content": "" } });
    client.ask("tools/call", with_meta(write));
    let updates = client.notified(updated);
    assert_eq!((&updates[0]["uri"], updates.len()), (&json!(a), 1));
    let subscription = &updates[0]["_meta"]["io.modelcontextprotocol/subscriptionId"];
    assert_eq!(subscription, &json!(id), "{updates:?}");
    let many: Vec<_> = (0..65).map(|number| format!("sandbox:///io/{number}")).collect();
    let many = json!({ "notifications": { "resourceSubscriptions": many } });
    let refused = client.ask("subscriptions/listen", with_meta(many));
    assert_eq!(refused["error"]["code"], -32602, "{refused:#}");
    client.end();

    // A read-only server changes no file, and offers no subscriptions.
    let mut client = Client::silent(&place, &["--io-dir", "out", "--read-only", "--pool", "0"]);
    let hello = client.ask("initialize", self::hello("2025-11-25"));
    let resources = &hello["result"]["capabilities"]["resources"];
    assert_eq!(resources, &json!({ "listChanged": true }), "{hello:#}");
    client.notify("notifications/initialized", json!({}));
    let refused = client.ask("resources/subscribe", json!({ "uri": a }));
    assert_eq!(refused["error"]["code"], -32601, "{refused:#}");
    client.end();
}

#[test]
fn trace_context_of_a_call_is_in_the_log() {
    let place = Fixture::new();
    let mut command = place.command(["mcp", "-vv", "--no-io", "--pool", "0"]);
    let log = place.path("log");
    command.stderr(std::fs::File::create(&log).unwrap());
    let mut client = Client::start(command);
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for context in [parent, "of no such form"] {
        let mut meta = stateless();
        meta["traceparent"] = context.into();
        let arguments = json!({ "script": "return 1" });
        let params = json!({ "_meta": meta, "name": "execute_script", "arguments": arguments });
        let called = client.ask("tools/call", params);
        assert_eq!(called["result"]["structuredContent"]["result"], 1, "{called:#}");
    }
    client.end();
    let log = place.read("log");
    let reported = format!("traceparent={parent}");
    assert!(log.lines().any(|line| line.replace('"', "").contains(&reported)), "{log}");
    assert!(!log.contains("of no such form"), "{log}");
}

#[test]
fn client_of_an_older_revision_is_answered_in_it() {
    let place = Fixture::new();
    let mut client = Client::of(&place, &["--io-dir", "out", "--pool", "0"], "2025-06-18");
    let result = client.call("execute_script", json!({ "script": "return 1" }));
    assert_eq!(result["structuredContent"]["result"], 1, "{result:#}");
    assert!(result.get("resultType").is_none(), "that is of a later revision: {result:#}");
    client.end();
}

#[test]
fn prompts_teach_the_script_api_and_name_the_files() {
    let place = Fixture::new();
    place.write("out/report.csv", "n\n1\n");
    place.write("out/sub/new", "");
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let listed = client.ask("prompts/list", json!({}));
    let names = listed["result"]["prompts"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["write_script", "review_changes"]);
    let mut text = |name: &str, arguments: Value| {
        let prompt = client.ask("prompts/get", json!({ "name": name, "arguments": arguments }));
        let text = prompt["result"]["messages"][0]["content"]["text"].as_str();
        text.map(str::to_owned).ok_or_else(|| prompt["error"]["code"].clone())
    };
    let taught = text("write_script", json!({ "task": "count the words" })).unwrap();
    assert!(taught.contains("count the words") && taught.contains("fs.glob"), "{taught}");
    let review = text("review_changes", json!({})).unwrap();
    assert!(review.contains(" report.csv\n") && review.contains(" sub/new\n"), "{review}");
    for path in ["sub", "sub/new"] {
        let review = text("review_changes", json!({ "path": path })).unwrap();
        assert!(review.contains(" sub/new\n") && !review.contains("report.csv"), "{review}");
    }
    assert_eq!(text("review_changes", json!({ "path": "absent" })), Err(json!(-32002)));
    assert_eq!(text("write_script", json!({})), Err(json!(-32602)));
    assert_eq!(text("absent", json!({})), Err(json!(-32602)));
    client.end();
}

/// A PNG of one pixel.
const IMAGE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8/5+hHgAHggJ/PchI7wAAAABJRU5ErkJggg==";

#[test]
fn agent_sees_images_and_long_files_in_parts() {
    let place = Fixture::new();
    place.write("out/long.txt", (1..=3000).map(|n| format!("{n}\n")).collect::<String>());
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let image = json!({ "path": "a.png", "content": IMAGE, "encoding": "base64" });
    client.data("write_file", image);
    let seen = client.call("read_file", json!({ "path": "a.png" }));
    let content = &seen["content"][0];
    let expected = (&json!("image"), &json!("image/png"), &json!(IMAGE));
    assert_eq!((&content["type"], &content["mimeType"], &content["data"]), expected, "{seen:#}");
    let read = client.call("read_file", json!({ "path": "long.txt" }));
    let text = read["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("1\n2\n") && text.contains("\n2000\n"), "{text}");
    assert!(text.ends_with("Use lines={\"offset\":2001} to continue.]"), "{text}");
    let arguments = json!({ "path": "long.txt", "lines": { "offset": 2001 } });
    let rest = client.call("read_file", arguments);
    assert!(rest["content"][0]["text"].as_str().unwrap().ends_with("\n3000\n"), "{rest:#}");
    client.end();
}

#[test]
fn agent_runs_commands_of_an_image_on_files_that_end_with_the_server() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let mut flags: Vec<&str> = root.iter().map(String::as_str).collect();
    flags.extend(["--pool", "0", "--allow", "ok.example"]);
    let mut client = Client::new(&place, &flags);
    // It has the limits of exec.
    let listed = client.ask("tools/list", json!({}));
    let mut tools = listed["result"]["tools"].as_array().unwrap().iter();
    let exec = tools.find(|tool| tool["name"] == "exec").unwrap();
    let timeout = &exec["inputSchema"]["properties"]["timeout_ms"];
    let expected = (&json!(600_000), &json!(3_600_000));
    assert_eq!((&timeout["default"], &timeout["maximum"]), expected, "{timeout:#}");
    client.data("write_file", json!({ "path": "in.txt", "content": "3\n1\n2\n" }));
    let sorted = client.data("exec", json!({ "program": "sort", "args": ["in.txt"] }));
    assert_eq!((&sorted["stdout"], &sorted["exit_code"]), (&json!("1\n2\n3\n"), &json!(0)));
    let shell = json!({ "shell": "echo error >&2; echo x > made.txt; exit 3" });
    let failed = client.data("exec", shell);
    let expected = (&json!("error\n"), &json!(3), &json!(true));
    assert_eq!((&failed["stderr"], &failed["exit_code"], &failed["failed"]), expected);
    assert_eq!(failed["files_touched"][0]["name"], "made.txt", "{failed:#}");
    let noted = client.data("exec", json!({ "shell": "echo EROFS; exit 3" }));
    let note = "programs can write to /io and /tmp only: the rest is read-only; --io-dir DIR \
                gives it a directory of the host to write to";
    assert_eq!(noted["notes"], json!([note]), "{noted:#}");
    let read = client.data("execute_script", json!({ "script": "return fs.read('made.txt')" }));
    assert_eq!(read["result"], "x\n");
    let own = json!({ "HOME": "/x", "USER": "me", "PATH": "/bin:/x" });
    let shell = json!({ "shell": "echo $HOME $USER $PATH", "env": own });
    assert_eq!(client.data("exec", shell)["stdout"], "/x me /bin:/x\n");

    let ask = "printf 'CONNECT evil.example:443 HTTP/1.1\\r\\n\\r\\n' | nc 127.0.0.1 3128";
    let refused = client.data("exec", json!({ "shell": ask, "timeout_ms": 60_000 }));
    let host = &refused["refused_hosts"][0];
    let expected = (&json!("evil.example"), &json!(["evil.example"]));
    assert_eq!((&host["host"], &host["allow"]), expected, "{refused:#}");

    let script = format!("process.exec('sh', {{'-c', `{}`}})", ask.replace('\\', "\\\\"));
    let refused = client.data("execute_script", json!({ "script": script }));
    let host = &refused["refused_hosts"][0];
    assert_eq!((&host["host"], &host["allow"]), expected, "{refused:#}");

    for (arguments, expected) in [
        (json!({ "shell": "sleep 600", "timeout_ms": 200 }), "`timeout_ms` gives it more time"),
        (json!({ "shell": "true", "timeout_ms": 0 }), "`timeout_ms` is 0: it must be 1 to"),
        (json!({ "shell": "ls", "args": ["-l"] }), "`args`: a shell line has no arguments"),
        (json!({}), "give one of `program` and `shell`"),
    ] {
        let text = client.failure("exec", arguments);
        assert!(text.contains(expected), "{text}");
    }
    client.end();
    assert!(!place.path("sandbox-files").exists());
    let private = place.scratch().with_file_name("scratch-mcp");
    assert_eq!(std::fs::read_dir(private).into_iter().flatten().count(), 0, "files are left");
}

#[test]
fn cancelled_call_ends_its_container_and_no_other() {
    let place = Fixture::new();
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    let params = json!({
        "name": "execute_script",
        "arguments": { "script": "print('begun') while true do end", "timeout_ms": 600_000 },
        "_meta": { "progressToken": "t" },
    });
    let endless = client.begin("tools/call", params);
    let begun = loop {
        let message = client.messages.recv_timeout(TIMEOUT).unwrap();
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
    let place = Fixture::new();
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
fn client_that_does_not_read_holds_up_no_end() {
    /// Less than a pipe holds: a message that does not fit completely waits.
    const FULL: u64 = 32 << 10;
    let place = Fixture::new();
    for signal in [None, Some(Signal::TERM)] {
        let mut command = place.command(["mcp", "--no-io", "--pool", "0"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let params = hello("2025-11-25");
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        stdin.write_all(format!("{hello}\n{ready}\n").as_bytes()).unwrap();
        for id in 1..100 {
            let list = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" });
            stdin.write_all(format!("{list}\n").as_bytes()).unwrap();
        }
        let stdout = child.stdout.take().unwrap();
        eventually("its answers fill the pipe", || {
            (rustix::io::ioctl_fionread(&stdout).unwrap() >= FULL).then_some(())
        });
        let mut stdin = Some(stdin);
        match signal {
            None => drop(stdin.take()),
            Some(signal) => {
                kill_process(Pid::from_child(&child), signal).unwrap();
            }
        }
        let status = eventually("it ends", || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(signal.map_or(0, |_| 143)));
    }
}

#[test]
fn sandbox_that_dies_costs_the_calls_in_it_alone() {
    let place = Fixture::new();
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    client.data("write_file", json!({ "path": "a", "content": "x" }));
    let kept = place.containers();
    assert_eq!(kept.len(), 1);
    engine().kill(&kept[0]);
    // Whether a call comes or not.
    eventually("what is left of it is removed", || place.containers().is_empty().then_some(()));
    assert_eq!(client.call("read_file", json!({ "path": "a" }))["isError"], false);
    let kept = place.containers();
    let endless = json!({ "script": "while true do end", "timeout_ms": 600_000 });
    let script = client.begin_call("execute_script", endless);
    let of_script = eventually("two containers run", || {
        let containers = place.containers();
        let is_of_script = |it: &String| !kept.contains(it);
        (containers.len() == 2).then(|| containers.into_iter().find(is_of_script))?
    });
    engine().kill(&kept[0]);
    eventually("the next call has another sandbox", || {
        (client.call("read_file", json!({ "path": "a" }))["isError"] == false).then_some(())
    });
    eventually("the one that was killed is removed", || {
        (place.containers().len() == 2).then_some(())
    });
    assert!(engine().is_running(&of_script), "the script has one of its own, which runs");
    client.notify("notifications/cancelled", json!({ "requestId": script }));
    client.end();
}

#[test]
fn two_thousand_calls_at_once_are_all_answered() {
    let place = Fixture::new();
    place.write("out/a.txt", "x\n");
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    client.data("stat", json!({ "path": "a.txt" }));
    let before = peak_memory_kib(client.child.id());
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
    let after = peak_memory_kib(client.child.id());
    assert!(after < before + (32 << 10), "{before} KiB, {after} KiB");
    client.stdin = Some(writer.join().unwrap());
    client.end();
}

#[test]
fn instructions_and_prompts_are_about_the_tools_that_are_offered() {
    let place = Fixture::new();
    let mut client =
        Client::silent(&place, &["--io-dir", "out", "--tools", "read_*", "--pool", "0"]);
    let reported = client.ask("initialize", hello("2025-11-25"));
    let instructions = reported["result"]["instructions"].as_str().unwrap();
    assert!(!instructions.contains("script"), "{instructions}");
    client.notify("notifications/initialized", json!({}));
    let listed = client.ask("prompts/list", json!({}));
    assert_eq!(listed["result"]["prompts"].as_array().unwrap().len(), 1, "{listed:#}");
    let params = json!({ "name": "write_script", "arguments": { "task": "x" } });
    assert_eq!(client.ask("prompts/get", params)["error"]["code"], -32602);
    client.end();
}

#[test]
fn entry_of_a_client_is_printed_with_absolute_paths_and_nothing_is_written() {
    let place = Fixture::new();
    let args = ["mcp", "install", "--client", "cursor", "--io-dir", "files", "--print"];
    let printed = place.sandboxctl(args);
    let entry: Value = serde_json::from_str(&printed.assert_code(0).stdout).unwrap();
    let server = &entry["mcpServers"]["sandboxctl"];
    assert!(server["command"].as_str().unwrap().starts_with('/'), "{entry:#}");
    let io_dir = place.path("files");
    assert_eq!(server["args"], json!(["mcp", "--io-dir", io_dir.to_str().unwrap()]));
    let args = ["--client", "cursor", "--print", "--", "--no-io", "--image-archive", "x.tar"];
    let printed = place.sandboxctl([&["mcp", "install"][..], &args].concat());
    let entry: Value = serde_json::from_str(&printed.assert_code(0).stdout).unwrap();
    let archive = place.path("x.tar");
    let expected = json!(["mcp", "--no-io", "--image-archive", archive.to_str().unwrap()]);
    assert_eq!(entry["mcpServers"]["sandboxctl"]["args"], expected);
    assert!(!place.home().join(".cursor").exists());
    let args = ["mcp", "install", "--client", "cursor", "--", "--bogus"];
    place.sandboxctl(args).assert_code(2).assert_stderr_has("unexpected argument '--bogus'");
    assert!(!place.home().join(".cursor").exists());
}

#[test]
fn nothing_can_be_written_where_files_are_read_only() {
    let place = Fixture::new();
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

/// How many calls the test for leaks makes before it looks for the first time.
const FIRST_CALLS: usize = 100;
/// No sandbox takes as many descriptors.
const OF_ONE_SANDBOX: usize = 16;
/// How much more memory may be resident after all of them: what an allocator keeps, and less than two
/// thirds of a leak of 100 KiB a call.
const MEMORY_KIB: u64 = 8 << 10;

#[test]
fn calls_leave_descriptors_memory_and_containers_where_they_were() {
    let place = Fixture::new();
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "1"]);
    let process = format!("/proc/{}", client.child.id());
    let open = || std::fs::read_dir(format!("{process}/fd")).unwrap().count();
    let resident = || {
        let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let call = |client: &mut Client, calls: usize| {
        for number in 0..calls.div_ceil(3) {
            let arguments = json!({ "path": "a.txt", "content": number.to_string() });
            client.data("write_file", arguments);
            let script = format!("return fs.read('a.txt') == '{number}'");
            assert_eq!(client.data("execute_script", json!({ "script": script }))["result"], true);
            client.failure("execute_script", json!({ "script": "error('boom')" }));
        }
        // The sandbox of the files, and the one in the pool.
        let few = || (place.containers().len() == 2).then_some(());
        eventually("the containers of the calls are gone", few);
    };
    call(&mut client, FIRST_CALLS);
    let (descriptors, memory) = (open(), resident());
    // Docker starts a container ten times as slowly.
    let calls = match engine() {
        Engine::Embedded => cases(200, 900),
        Engine::Docker => 150,
    };
    call(&mut client, calls);
    // The sandbox in the pool was perhaps still being started, with fewer descriptors.
    let most = descriptors + OF_ONE_SANDBOX;
    eventually("there are as many descriptors as before", || (open() <= most).then_some(()));
    let now = resident();
    assert!(now <= memory + MEMORY_KIB, "{memory} KiB after {FIRST_CALLS} calls, {now} KiB now");
    client.end();
    assert_eq!(place.containers(), Vec::<String>::new());
}

#[test]
fn list_of_many_resources_comes_in_pages() {
    let place = Fixture::new();
    // More than one list may have, so that it is listed by directories.
    let mut client = Client::new(&place, &["--io-dir", "out", "--pool", "0"]);
    for directory in 0..11 {
        for file in 0..1000 {
            let parent = if file % 2 == 0 { "sub/" } else { "" };
            place.write(&format!("out/d{directory}/{parent}{file}.txt"), "");
        }
    }
    let (mut names, mut cursor) = (Vec::new(), None);
    loop {
        let params = cursor.map_or(json!({}), |cursor: Value| json!({ "cursor": cursor }));
        let page = client.ask("resources/list", params);
        let result = &page["result"];
        assert!(result["_meta"].get("truncated").is_none(), "nothing is left out: {page:#}");
        let resources = result["resources"].as_array().unwrap().iter();
        names.extend(resources.map(|it| it["name"].as_str().unwrap().to_owned()));
        match result.get("nextCursor") {
            Some(next) => cursor = Some(next.clone()),
            None => break,
        }
    }
    assert_eq!(names.remove(0), "sandboxctl", "the skill comes first, and once");
    assert_eq!(names.len(), 11_000);
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len(), "no file comes twice");
    for cursor in ["x", "sandbox:///io/%", ""] {
        let refused = client.ask("resources/list", json!({ "cursor": cursor }));
        assert_eq!(refused["error"]["code"], -32602, "{refused:#}");
    }
    client.end();
}

#[test]
fn message_of_64_mib_is_refused_and_the_next_one_answered() {
    let place = Fixture::new();
    let mut client = Client::new(&place, &["--no-io", "--pool", "0"]);
    let before = peak_memory_kib(client.child.id());
    let stdin = client.stdin.as_mut().unwrap();
    let piece = vec![b'x'; 1 << 20];
    (0..64).for_each(|_| stdin.write_all(&piece).unwrap());
    stdin.write_all(b"\n").unwrap();
    assert!(client.ask("tools/list", json!({}))["result"]["tools"].is_array());
    let refused = client.notifications.iter().find(|it| it.get("error").is_some()).unwrap();
    assert_eq!(refused["error"]["message"], "a message has at most 16777216 bytes");
    // As much as the longest message that is read, and as its buffer grows.
    let after = peak_memory_kib(client.child.id());
    assert!(after < before + (48 << 10), "{before} KiB, {after} KiB");
    client.end();
}
