//! The MCP tools at `/mcp` of a service: authentication, bad input, quotas, and what a client
//! leaves behind that goes away.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::service::{Service, serve};
use crate::fixture::{Fixture, eventually, peak_memory_kib};
use crate::rootfs::Rootfs;
use crate::servers;

/// Runs until it is stopped, and prints when it has started.
const LOOP: &str = "print('begun') while true do end";
/// The memory of a service for its replies to many calls, beyond its base: as many messages as it
/// reads at one time, and the sandboxes' sessions.
const MEMORY_KIB: u64 = 256 << 10;

/// Files for scripts, which those of others have only where that is wanted.
const FILES: (&str, &str) = ("SANDBOXCTL_IO_ENABLED", "true");

/// A reply to a raw client.
#[derive(Debug)]
struct Response {
    status: u16,
    head: String,
    body: String,
}

impl Response {
    fn parse(text: &str) -> Self {
        let status = text.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {text:?}"));
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = status.parse().unwrap();
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// The message that answers the request: the body, or the last event of a stream.
    fn message(&self) -> Value {
        let mut events = self.body.lines().filter_map(|line| line.strip_prefix("data: {"));
        let json = match events.next_back() {
            Some(event) => format!("{{{event}"),
            None => self.body.clone(),
        };
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The text of a call that failed.
    #[track_caller]
    fn failure(&self) -> String {
        let message = self.message();
        assert_eq!(message["result"]["isError"], true, "{message:#}");
        message["result"]["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

/// A client of the stateless revision.
#[derive(Clone)]
struct Client {
    address: String,
    /// More headers, or others in place of its own.
    headers: Vec<(&'static str, String)>,
}

impl Client {
    fn new(service: &Service<'_>) -> Self {
        let address = service.url.strip_prefix("http://").unwrap().to_owned();
        Self { address, headers: Vec::new() }
    }

    fn with(&self, name: &'static str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.push((name, value.to_owned()));
        client
    }

    /// Sends a message, and gives the connection. The answer ends with it: HTTP/1.0 has no chunks.
    fn send(&self, message: &[u8], its_headers: &[(&'static str, &str)]) -> TcpStream {
        let mut headers = vec![
            ("host", self.address.clone()),
            ("accept", "application/json, text/event-stream".to_owned()),
            ("content-type", "application/json".to_owned()),
            ("content-length", message.len().to_string()),
            ("mcp-protocol-version", "2026-07-28".to_owned()),
        ];
        headers.extend(its_headers.iter().map(|(name, value)| (*name, (*value).to_owned())));
        for (name, value) in &self.headers {
            headers.retain(|(known, _)| known != name);
            headers.push((name, value.clone()));
        }
        self.send_as("POST", message, &headers)
    }

    fn send_as(
        &self,
        method: &str,
        message: &[u8],
        headers: &[(&'static str, String)],
    ) -> TcpStream {
        let mut head = format!("{method} /mcp HTTP/1.0\r\n");
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        let mut connection = TcpStream::connect(&self.address).unwrap();
        connection.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        // One that is refused is not read to its end.
        _ = connection.write_all(message);
        connection
    }

    /// Begins a session of an older revision.
    fn in_session(&self, revision: &'static str) -> Self {
        self.in_session_with(revision, &json!({}))
    }

    /// The same for a client of these capabilities.
    fn in_session_with(&self, revision: &'static str, capabilities: &Value) -> Self {
        let client = self.with("mcp-protocol-version", revision);
        let hello = json!({
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {
                "protocolVersion": revision,
                "capabilities": capabilities,
                "clientInfo": { "name": "test", "version": "1" },
            },
        });
        let begun = client.ask_raw(hello.to_string().as_bytes(), &[]);
        assert_eq!(begun.status, 200, "{begun:?}");
        let session = begun.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        let client = client.with("mcp-session-id", session.expect("a session"));
        client.notify("notifications/initialized", json!({}));
        client
    }

    fn header(&self, name: &str) -> &str {
        &self.headers.iter().find(|(known, _)| *known == name).unwrap().1
    }

    fn notify(&self, method: &str, params: Value) {
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        assert_eq!(self.ask_raw(message.to_string().as_bytes(), &[]).status, 202);
    }

    /// The answer to a call in a session.
    fn call_in_session(&self, tool: &str, arguments: Value) -> Response {
        let message = json!({
            "jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": { "name": tool, "arguments": arguments },
        });
        self.ask_raw(message.to_string().as_bytes(), &[])
    }

    fn ask_raw(&self, message: &[u8], headers: &[(&'static str, &str)]) -> Response {
        let mut text = Vec::new();
        // What was not read of the request resets the connection after the answer.
        _ = self.send(message, headers).read_to_end(&mut text);
        Response::parse(&String::from_utf8_lossy(&text))
    }

    fn ask(&self, method: &str, params: Value) -> Response {
        self.ask_raw(&request(method, params), &[("mcp-method", method)])
    }

    /// Sends a call, and gives the connection.
    fn begin_call(&self, tool: &str, arguments: Value) -> TcpStream {
        let params = json!({
            "name": tool,
            "arguments": arguments,
            "_meta": { "progressToken": "t" },
        });
        let headers = [("mcp-method", "tools/call"), ("mcp-name", tool)];
        self.send(&request("tools/call", params), &headers)
    }

    fn call(&self, tool: &str, arguments: Value) -> Response {
        let params = json!({ "name": tool, "arguments": arguments });
        let headers = [("mcp-method", "tools/call"), ("mcp-name", tool)];
        self.ask_raw(&request("tools/call", params), &headers)
    }

    /// The structured content of a call that succeeds.
    #[track_caller]
    fn data(&self, tool: &str, arguments: Value) -> Value {
        let message = self.call(tool, arguments).message();
        assert_eq!(message["result"]["isError"], false, "{tool}: {message:#}");
        message["result"]["structuredContent"].clone()
    }

    /// Begins a script that does not end by itself, and waits until it runs.
    fn begin_loop(&self) -> TcpStream {
        let arguments = json!({ "script": LOOP, "timeout_ms": 600_000 });
        let mut connection = self.begin_call("execute_script", arguments);
        let (mut reported, mut piece) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&reported).contains("begun") {
            let read = connection.read(&mut piece).unwrap();
            assert_ne!(read, 0, "it has ended: {}", String::from_utf8_lossy(&reported));
            reported.extend_from_slice(&piece[..read]);
        }
        connection
    }
}

/// A request of the stateless revision.
fn request(method: &str, mut params: Value) -> Vec<u8> {
    let meta = &mut params["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    meta["io.modelcontextprotocol/clientInfo"] = json!({ "name": "test", "version": "1" });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    message.to_string().into_bytes()
}

impl Service<'_> {
    /// What the caller has used, and has now.
    fn usage(&self) -> Value {
        let (status, body) = self.http("GET", "/v1/usage", "", "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

/// A token in the data directory of the services here.
fn token(place: &Fixture, scope: &str, expires: &str) -> String {
    let args = ["token", "create", "--data-dir", "service", "--subject", "agent"];
    let args = [&args[..], &["--scope", scope, "--expires", expires]].concat();
    format!("Bearer {}", place.sandboxctl(args).assert_code(0).stdout.trim_end())
}

#[test]
fn agent_over_http_is_let_in_by_its_host_origin_token_and_scope() {
    let place = Fixture::new();
    let good = token(&place, "sandboxes", "1h");
    let other = token(&place, "executions:write", "1h");
    let expired = token(&place, "sandboxes", "1ms");
    let url = [("SANDBOXCTL_SERVER_URL", "https://sandbox.example.org")];
    let service = Service::start(&place, serve(&place, &["--listen", "127.0.0.1:0"], &url));
    let client = Client::new(&service);
    let metadata = "resource_metadata=\"https://sandbox.example.org/.well-known/\
                    oauth-protected-resource/mcp\"";
    let authorized = client.with("authorization", &good);
    for (who, client, status, expected) in [
        ("nobody", &client, 401, metadata),
        ("nobody", &client, 401, "scope=\"sandboxes\""),
        ("forged", &client.with("authorization", "Bearer x"), 401, "error=\"invalid_token\""),
        ("expired", &client.with("authorization", &expired), 401, metadata),
        ("without the scope", &client.with("authorization", &other), 403, "scope=\"sandboxes\""),
        ("without the scope", &client.with("authorization", &other), 403, metadata),
        ("foreign host", &authorized.with("host", "evil.example"), 421, ""),
        ("foreign origin", &authorized.with("origin", "https://evil.example"), 403, ""),
        ("opaque origin", &authorized.with("origin", "null"), 403, ""),
    ] {
        let answer = client.ask("tools/list", json!({}));
        assert_eq!(answer.status, status, "{who}: {answer:?}");
        assert!(answer.head.contains(expected), "{who}: {answer:?}");
        assert!(!answer.body.contains("execute_script"), "{who}: {answer:?}");
    }
    let listed = authorized.ask("tools/list", json!({}));
    assert_eq!(listed.status, 200, "{listed:?}");
    assert_eq!(listed.message()["result"]["tools"][0]["name"], "execute_script");
    let (_, reported) = service.http("GET", "/.well-known/oauth-protected-resource/mcp", "", "");
    let reported: Value = serde_json::from_str(&reported).unwrap();
    assert_eq!(reported["resource"], "https://sandbox.example.org/mcp", "{reported:#}");
    assert_eq!(reported["scopes_supported"], json!(["sandboxes"]), "{reported:#}");
    assert!(reported.get("authorization_servers").is_none(), "it names no issuer: {reported:#}");
    assert_eq!(place.containers(), Vec::<String>::new());
    service.stop();
}

#[test]
fn bad_input_over_http_is_answered_and_the_next_call_works() {
    let place = Fixture::new();
    let service = Service::with(&place, &[], &[FILES]);
    let client = Client::new(&service);
    client.data("execute_script", json!({ "script": "fs.write('data.bin', '\\255\\254\\0')" }));
    let before = peak_memory_kib(service.child.id());

    // What is wrong with a message is an error of the protocol or of HTTP.
    let call = |name: &str| json!({ "name": name, "arguments": {} });
    let named = |message: &[u8], method: &'static str, name: &str| {
        client.ask_raw(message, &[("mcp-method", method), ("mcp-name", name)])
    };
    let unknown = named(&request("tools/call", call("nope")), "tools/call", "nope");
    assert_eq!(unknown.message()["error"]["code"], -32602, "{unknown:?}");
    let unknown = client.ask("no/such", json!({}));
    assert_eq!(unknown.message()["error"]["code"], -32601, "{unknown:?}");
    assert_eq!(unknown.message()["error"]["message"], "method not found: no/such");
    let listed = client.ask("tools/list", json!({ "cursor": 5 }));
    assert_eq!(listed.message()["error"]["code"], -32602, "{listed:?}");
    let other_name = named(&request("tools/call", call("stat")), "tools/call", "remove");
    assert_eq!(other_name.status, 400, "the headers are of another call: {other_name:?}");
    let wrong = named(&request("tools/call", json!({ "name": 7 })), "tools/call", "stat");
    assert_eq!(wrong.message()["error"]["code"], -32602, "{wrong:?}");
    for (nonsense, code) in
        [(&b"nonsense"[..], -32700), (b"[]", -32600), (b"{\"id\":7}", -32600), (b"", -32700)]
    {
        let answer = client.ask_raw(nonsense, &[("mcp-method", "tools/list")]);
        assert_eq!((answer.status, &answer.message()["error"]["code"]), (400, &json!(code)));
    }
    let huge = vec![b' '; 64 << 20];
    let answer = client.ask_raw(&huge, &[("mcp-method", "tools/list")]);
    assert_eq!(answer.status, 413, "{answer:?}");
    let large = [&request("tools/list", json!({}))[..], &huge[..20 << 20]].concat();
    let answer = client.ask_raw(&large, &[("mcp-method", "tools/list")]);
    assert_eq!(answer.status, 413, "{answer:?}");
    // The reply to an invalid request carries its id, if that can be read.
    let cut = br#"{"jsonrpc":"2.0","id":77,"method":"ping","params":{"a":"\ud83d"}}"#;
    let mut long = br#"{"jsonrpc":"2.0","id":77,"method":"ping","params":{"a":""#.to_vec();
    long.resize(17 << 20, b'x');
    for (message, status, code) in [(&cut[..], 400, -32700), (&long, 413, -32600)] {
        let answer = client.ask_raw(message, &[("mcp-method", "ping")]);
        let error = answer.message();
        let found = (answer.status, &error["id"], &error["error"]["code"]);
        assert_eq!(found, (status, &json!(77), &json!(code)), "{answer:?}");
    }
    // What the revision without sessions has not is not found.
    let removed = client.ask("initialize", json!({}));
    assert_eq!((removed.status, &removed.message()["error"]["code"]), (404, &json!(-32601)));

    // What is wrong with a call is its result, with what would be right.
    for (tool, arguments, expected) in [
        ("execute_script", json!({ "script": "return 1", "x": 1 }), "unknown field `x`"),
        ("execute_script", json!({ "script": 7 }), "invalid type"),
        ("execute_script", json!({ "script": "-".repeat(300_000) }), "source_too_large"),
        ("execute_script", json!({ "script": "", "timeout_ms": 0 }), "must be 1 to 600000"),
        ("execute_script", json!({ "script": "", "timeout_ms": -1 }), "must be 1 to 600000"),
        ("execute_script", json!({ "script": "", "timeout_ms": 600_001 }), "must be 1 to 600000"),
        ("execute_script", json!({ "script": "", "timeout_ms": 1.5 }), "must be 1 to 600000"),
        ("execute_script", json!({ "script": "while true do end", "timeout_ms": 50 }), "(timeout)"),
        ("read_file", json!({ "path": "data.bin" }), "`encoding: \"base64\"`"),
        ("read_file", json!({ "path": "../etc/passwd" }), "path_escape"),
        ("read_file", json!({ "path": "/etc/passwd" }), "path_escape"),
        (
            "write_file",
            json!({ "path": ".bashrc", "content": "x" }),
            "the service protects these names",
        ),
        (
            "execute_script",
            json!({ "script": "fs.write('.git/x', '')" }),
            "the service protects these names",
        ),
        ("write_file", json!({ "path": "a" }), "missing field `content`"),
        ("stat", json!({ "path": "absent" }), "not_found"),
    ] {
        let text = client.call(tool, arguments).failure();
        assert!(text.contains(expected), "{tool}: {text}");
        assert!(!text.contains(place.work().to_str().unwrap()), "no path of the host: {text}");
        assert!(!text.contains(" --") && !text.contains("`--"), "nor a flag: {text}");
    }
    let gone = json!({ "uri": "sandbox:///io/absent" });
    let gone = named(&request("resources/read", gone), "resources/read", "sandbox:///io/absent");
    assert_eq!(gone.message()["error"]["code"], -32602, "as this revision says: {gone:?}");

    assert_eq!(client.data("execute_script", json!({ "script": "return 1" }))["result"], 1);
    let after = peak_memory_kib(service.child.id());
    assert!(after < before + MEMORY_KIB, "{before} KiB, {after} KiB");
    // The sandbox of the files stays.
    eventually("the calls' containers are gone", || (place.containers().len() == 1).then_some(()));
    service.stop();
}

#[test]
fn answers_are_json_of_any_size_where_nothing_else_is_sent() {
    let place = Fixture::new();
    let service = Service::with(&place, &[], &[FILES]);
    let stateless = Client::new(&service);
    let script = "fs.write('a.png', '\\137PNG\\r\\n\\26\\n' .. ('x'):rep(790000)) \
                  fs.write('large', ('x'):rep(3 * 2^19)) print('written') return ('x'):rep(530000)";
    let answer = stateless.call("execute_script", json!({ "script": script }));
    // It takes long, and reports progress: events of a size that clients accept.
    assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
    assert!(answer.body.len() < 1 << 20, "{}", answer.body.len());
    let ran = answer.message();
    assert_eq!(ran["result"]["structuredContent"]["truncated"], true);
    assert!(ran["result"]["content"].to_string().contains("sandbox://output/1/result.json"));

    let in_session = stateless.in_session("2025-11-25");
    let read = |client: &Client, uri: &str| {
        let name = [("mcp-method", "resources/read"), ("mcp-name", uri)];
        client.ask_raw(&request("resources/read", json!({ "uri": uri })), &name)
    };
    let as_json = |answer: &Response| answer.head.contains("content-type: application/json");
    for (client, uri, bytes) in [
        (&stateless, "sandbox:///io/large", 3 << 19),
        (&stateless, "sandbox://output/1/result.json", 530_002),
    ] {
        let answer = read(client, uri);
        assert!(as_json(&answer), "{}", answer.head);
        let text = &answer.message()["result"]["contents"][0]["text"];
        assert_eq!(text.as_str().unwrap().len(), bytes, "{uri}");
    }
    let call = |client: &Client, tool: &str, arguments: Value| match client
        .headers
        .iter()
        .any(|(name, _)| *name == "mcp-session-id")
    {
        true => client.call_in_session(tool, arguments),
        false => client.call(tool, arguments),
    };
    for client in [&stateless, &in_session] {
        let answer = call(client, "read_file", json!({ "path": "a.png" }));
        assert!(as_json(&answer), "{}", answer.head);
        let image = &answer.message()["result"]["content"][0];
        assert!(image["data"].as_str().unwrap().len() > 1 << 20);
    }
    // A client that takes JSON alone is served, too.
    for client in [&stateless, &in_session] {
        let client = client.with("accept", "application/json");
        let arguments = json!({ "script": "print('x') return 1" });
        let answer = call(&client, "execute_script", arguments);
        assert!(as_json(&answer), "{answer:?}");
        assert_eq!(answer.message()["result"]["structuredContent"]["result"], 1, "{answer:?}");
    }
    service.stop();
}

#[test]
fn two_thousand_calls_over_http_cost_others_nothing() {
    /// Connections at one time, each with calls one after the other.
    const CONNECTIONS: usize = 200;
    const CALLS: usize = 2000;
    let place = Fixture::new();
    let tokens = ["busy", "other"].map(|subject| {
        let args = ["token", "create", "--data-dir", "service", "--scope", "sandboxes"];
        let created = place.sandboxctl([&args[..], &["--subject", subject]].concat());
        format!("Bearer {}", created.assert_code(0).stdout.trim_end())
    });
    let mut command = serve(&place, &["--listen", "127.0.0.1:0"], &[FILES]);
    command.env("SANDBOXCTL_SERVER_MAX_CONNECTIONS", "1000");
    let service = Service::start(&place, command);
    let [busy, other] = tokens.map(|token| Client::new(&service).with("authorization", &token));
    busy.data("write_file", json!({ "path": "a.txt", "content": "x\n" }));
    let before = peak_memory_kib(service.child.id());
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                for _ in 0..CALLS / CONNECTIONS {
                    assert_eq!(busy.data("stat", json!({ "path": "a.txt" }))["size"], 2);
                }
            });
        }
        let script = json!({ "script": "return 1" });
        assert_eq!(other.data("execute_script", script)["result"], 1);
        // Files of another subject are missing.
        let text = other.call("stat", json!({ "path": "a.txt" })).failure();
        assert!(text.contains("not_found"), "{text}");
    });
    let after = peak_memory_kib(service.child.id());
    assert!(after < before + MEMORY_KIB, "{before} KiB, {after} KiB");
    service.stop();
}

#[test]
fn client_that_goes_away_over_http_ends_its_call_and_is_charged_for_it() {
    let place = Fixture::new();
    let service = Service::open(&place);
    let client = Client::new(&service);
    let connection = client.begin_loop();
    assert_eq!(place.containers().len(), 1);
    assert_eq!(service.usage()["running"], 1);
    // As the kernel does for a client that was killed.
    drop(connection);
    eventually("its container is gone", || place.containers().is_empty().then_some(()));
    let usage = eventually("its turn is over", || {
        let usage = service.usage();
        (usage["running"] == 0).then_some(usage)
    });
    assert_eq!(usage["executions"], 1, "{usage:#}");
    assert!(usage["cpu_ms"].as_u64().unwrap() > 0, "{usage:#}");
    assert_eq!(client.data("execute_script", json!({ "script": "return 1" }))["result"], 1);
    service.stop();
}

#[test]
fn session_over_http_cancels_its_call_and_ends_in_the_middle_of_one() {
    let place = Fixture::new();
    let service = Service::open(&place);
    let client = Client::new(&service).in_session("2025-11-25");
    let session = client.header("mcp-session-id").to_owned();
    let notify = |method: &str, params: Value| client.notify(method, params);
    let begin = |id: u64| {
        let message = json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {
                "name": "execute_script",
                "arguments": { "script": LOOP, "timeout_ms": 600_000 },
            },
        });
        let connection = client.send(message.to_string().as_bytes(), &[]);
        eventually("it runs", || {
            (service.usage()["running"] == 1).then_some(connection.try_clone())
        })
    };
    let is_over = || {
        eventually("its container is gone", || place.containers().is_empty().then_some(()));
        eventually("its turn is over", || (service.usage()["running"] == 0).then_some(()));
    };
    let cancelled = begin(2);
    notify("notifications/cancelled", json!({ "requestId": 2 }));
    is_over();
    let ended = begin(3);
    let headers = format!("mcp-session-id: {session}\r\nmcp-protocol-version: 2025-11-25\r\n");
    let (status, body) = service.http("DELETE", "/mcp", &headers, "");
    assert_eq!((status, &*body), (204, ""));
    is_over();
    drop((cancelled, ended));
    service.stop();
}

#[test]
fn session_is_its_subjects_alone_and_hears_of_its_changes() {
    let place = Fixture::new();
    let tokens = ["alice", "bob"].map(|subject| {
        let args = ["token", "create", "--data-dir", "service", "--scope", "sandboxes"];
        let created = place.sandboxctl([&args[..], &["--subject", subject]].concat());
        format!("Bearer {}", created.assert_code(0).stdout.trim_end())
    });
    let command = serve(&place, &["--listen", "127.0.0.1:0"], &[FILES]);
    let service = Service::start(&place, command);
    let [alice, bob] = tokens.map(|token| Client::new(&service).with("authorization", &token));
    let alice = alice.in_session("2025-06-18");
    let written = alice.call_in_session("write_file", json!({ "path": "a", "content": "x" }));
    assert_eq!(written.message()["result"]["isError"], false, "{written:?}");

    let bob = bob.with("mcp-protocol-version", "2025-06-18").with("x-request-id", "r-7");
    let foreign = bob.with("mcp-session-id", alice.header("mcp-session-id"));
    let refused = foreign.call_in_session("stat", json!({ "path": "a" }));
    let unknown = bob
        .with("mcp-session-id", "00000000-0000-4000-8000-000000000000")
        .call_in_session("stat", json!({ "path": "a" }));
    assert_eq!((refused.status, unknown.status), (404, 404));
    assert_eq!(refused.body, unknown.body, "the answer does not disclose which sessions exist");
    let problem: Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(problem["instance"], "urn:sandboxctl:request:r-7");
    let stream = |client: &Client, method: &str| {
        let mut headers = vec![("host", client.address.clone())];
        headers.push(("accept", "text/event-stream".to_owned()));
        headers.extend(client.headers.iter().cloned());
        BufReader::new(client.send_as(method, b"", &headers))
    };
    for method in ["GET", "DELETE"] {
        let mut text = String::new();
        stream(&foreign, method).read_to_string(&mut text).unwrap();
        assert_eq!(Response::parse(&text).status, 404, "{method}: {text}");
    }
    // It is still there, and its stream has the news.
    let mut news = stream(&alice, "GET").lines();
    assert!(news.next().unwrap().unwrap().ends_with("200 OK"));
    let written = alice.call_in_session("write_file", json!({ "path": "b", "content": "x" }));
    assert_eq!(written.message()["result"]["isError"], false, "{written:?}");
    let changed = "notifications/resources/list_changed";
    assert!(news.any(|line| line.unwrap().contains(changed)));
    drop(news);
    let seen = alice.call_in_session("stat", json!({ "path": "b" })).message();
    assert_eq!(seen["result"]["structuredContent"]["size"], 1, "{seen:#}");
    service.stop();
}

#[test]
fn sessions_that_one_subject_begins_cost_no_other_one() {
    let place = Fixture::new();
    let tokens = ["alice", "bob"].map(|subject| {
        let args = ["token", "create", "--data-dir", "service", "--scope", "sandboxes"];
        let created = place.sandboxctl([&args[..], &["--subject", subject]].concat());
        format!("Bearer {}", created.assert_code(0).stdout.trim_end())
    });
    let service = Service::start(&place, serve(&place, &["--listen", "127.0.0.1:0"], &[]));
    let [alice, bob] = tokens.map(|token| Client::new(&service).with("authorization", &token));
    let first = alice.in_session("2025-11-25");
    // More than one subject may have.
    for _ in 0..600 {
        alice.in_session("2025-11-25");
    }
    let script = || json!({ "script": "return 1" });
    assert_eq!(first.call_in_session("execute_script", script()).status, 404, "it made room");
    assert_eq!(bob.data("execute_script", script())["result"], 1);
    let called = bob.in_session("2025-11-25").call_in_session("execute_script", script());
    assert_eq!(called.message()["result"]["structuredContent"]["result"], 1, "{called:?}");
    service.stop();
}

#[test]
fn scripts_of_agents_over_http_call_tools_of_other_servers_by_the_rules_of_the_service() {
    let place = Fixture::new();
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    let command = servers::mcp(&place.path("notes"), &[]);
    let script = json!({ "script": "local seen = {}
        for _, name in { 'list_items', 'create_item', 'delete_item' } do
            seen[name] = (pcall(tools.fake[name], { repo = 'site' }))
        end
        seen.other = (pcall(tools.fake.create_item, { repo = 'other' }))
        return seen" });
    for is_allowed in [false, true] {
        let config = format!(
            "[server]\ntool_rules = [\"fake.create_item /repo=site\", \"fake.delete_*\"]\n\
             allow_destructive = {is_allowed}\n[server.upstream.fake]\ncommand = {command:?}\n"
        );
        std::fs::write(user.join("config.toml"), config).unwrap();
        let service = Service::with(&place, &[], &[]);
        let client = Client::new(&service);
        let expected = json!({
            "list_items": false, "create_item": true, "delete_item": is_allowed, "other": false,
        });
        assert_eq!(client.data("execute_script", script.clone())["result"], expected);
        let listed = client.ask("tools/list", json!({})).message();
        let execute = listed["result"]["tools"][0]["description"].as_str().unwrap();
        assert!(execute.contains("tools.search") && !execute.contains("create_item"), "{execute}");
        service.stop();
    }
    let notes = place.read("notes");
    let called = notes.lines().filter_map(|line| line.strip_prefix("call ")?.split(' ').next());
    assert_eq!(called.collect::<Vec<_>>(), ["create_item", "create_item", "delete_item"]);
}

#[test]
fn user_of_a_caller_is_asked_about_a_tool_that_destroys_where_the_service_says_so() {
    let place = Fixture::new();
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    let command = servers::mcp(&place.path("notes"), &[]);
    let config = format!(
        "[server]\ntool_rules = [\"fake.delete_*\"]\nask_destructive = true\n\
         [server.upstream.fake]\ncommand = {command:?}\n"
    );
    std::fs::write(user.join("config.toml"), config).unwrap();
    let tokens = ["alice", "bob"].map(|subject| {
        let args = ["token", "create", "--data-dir", "service", "--scope", "sandboxes"];
        let created = place.sandboxctl([&args[..], &["--subject", subject]].concat());
        format!("Bearer {}", created.assert_code(0).stdout.trim_end())
    });
    let service = Service::start(&place, serve(&place, &["--listen", "127.0.0.1:0"], &[]));
    let [alice, bob] = tokens.map(|token| Client::new(&service).with("authorization", &token));
    let arguments = json!({ "script": "return (pcall(tools.fake.delete_item, { id = 3 }))" });
    let capabilities = json!({ "elicitation": { "form": {} } });
    assert_eq!(alice.data("execute_script", arguments.clone())["result"], false, "it cannot ask");

    // By the answer to the call.
    let call = |client: &Client, more: &Value| {
        let mut params = json!({ "name": "execute_script", "arguments": arguments });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let message = request("tools/call", params);
        let mut message: Value = serde_json::from_slice(&message).unwrap();
        let meta = &mut message["params"]["_meta"];
        meta["io.modelcontextprotocol/clientCapabilities"] = capabilities.clone();
        let headers = [("mcp-method", "tools/call"), ("mcp-name", "execute_script")];
        client.ask_raw(message.to_string().as_bytes(), &headers).message()
    };
    let asked = call(&alice, &json!({}));
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked:#}");
    let question = &asked["result"]["inputRequests"]["permission"]["params"]["message"];
    assert!(question.as_str().unwrap().contains("fake.delete_item"), "{asked:#}");
    let answer = json!({
        "requestState": asked["result"]["requestState"],
        "inputResponses": { "permission": { "action": "accept" } },
    });
    let foreign = call(&bob, &answer);
    assert_eq!(foreign["error"]["code"], -32602, "it is another subject's call: {foreign:#}");
    let answered = call(&alice, &answer);
    assert_eq!(answered["result"]["structuredContent"]["result"], true, "{answered:#}");

    // By a request on the stream of the call, where the client listens to nothing else.
    let alice = alice.in_session_with("2025-11-25", &capabilities);
    let message = json!({
        "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": { "name": "execute_script", "arguments": arguments },
    });
    let connection = alice.send(message.to_string().as_bytes(), &[]);
    let mut lines = BufReader::new(connection).lines().map(Result::unwrap);
    let question = lines.find(|line| line.contains("elicitation/create")).expect("a question");
    let question: Value = serde_json::from_str(question.strip_prefix("data: ").unwrap()).unwrap();
    let result = json!({ "action": "accept", "content": {} });
    let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
    assert_eq!(alice.ask_raw(answer.to_string().as_bytes(), &[]).status, 202);
    let answered = lines.find(|line| line.contains("structuredContent")).expect("an answer");
    assert!(answered.contains("\"result\":true"), "{answered}");
    service.stop();
    let notes = place.read("notes");
    let called = notes.lines().filter(|line| line.starts_with("call delete_item "));
    assert_eq!(called.count(), 2, "{notes}");
}

#[test]
fn files_of_agents_are_off_unless_the_service_has_them() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let flags: Vec<&str> = root.iter().map(String::as_str).collect();
    let service = Service::with(&place, &flags, &[]);
    let client = Client::new(&service);
    let listed = client.ask("tools/list", json!({})).message();
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    // There are no previews.
    let processes =
        ["start_process", "read_output", "send_input", "stop_process", "list_processes"];
    assert_eq!(names, [&["execute_script", "exec"][..], &processes].concat());
    assert!(tools[1]["description"].as_str().unwrap().contains("Files are off"), "{listed:#}");
    let resources = client.ask("resources/list", json!({})).message();
    let resources = resources["result"]["resources"].as_array().unwrap();
    let names: Vec<_> = resources.iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["sandboxctl"], "the skill alone");
    let script = "return { io == nil, fs == nil }";
    let data = client.data("execute_script", json!({ "script": script }));
    assert_eq!(data["result"], json!([true, true]));
    let made = client.data("exec", json!({ "shell": "echo out; echo x > /tmp/file; exit 3" }));
    let expected = (&json!("out\n"), &json!(3), &json!([]));
    assert_eq!((&made["stdout"], &made["exit_code"], &made["files_touched"]), expected, "{made:#}");
    service.stop();
}

#[test]
fn calls_of_agents_have_the_rate_of_executions() {
    let place = Fixture::new();
    let rate = [("SANDBOXCTL_SERVER_QUOTA_RATE", "3"), FILES];
    let service = Service::with(&place, &[], &rate);
    let client = Client::new(&service);
    let script = || json!({ "script": "return 1" });
    let submit = || service.http("POST", "/v1/executions?wait=60", "", r#"{"script":"return 1"}"#);
    assert_eq!(submit().0, 200);
    assert_eq!(client.data("execute_script", script())["result"], 1);
    let failed = client.call("execute_script", json!({ "script": "error('boom')" }));
    assert!(failed.failure().contains("boom"));
    // As the API, with the time to try again where a model reads it.
    let text = client.call("execute_script", script()).failure();
    assert!(text.starts_with("Script execution error: too many requests (busy)"), "{text}");
    assert!(text.contains("\nhint: try again in "), "{text}");
    assert_eq!(submit().0, 429);
    // Calls of file tools are not counted as executions, like file operations of the API.
    client.data("write_file", json!({ "path": "a", "content": "x" }));
    let usage = service.usage();
    let expected = json!([3, 0, 0, 1]);
    let reported = ["executions", "queued", "running", "sandboxes"].map(|name| usage[name].clone());
    assert_eq!(json!(reported), expected, "{usage:#}");
    service.stop();
}

#[test]
fn files_of_agents_have_the_quota_of_stored_bytes() {
    let place = Fixture::new();
    let quota = [("SANDBOXCTL_SERVER_QUOTA_STORED_BYTES", "64KiB"), FILES];
    let service = Service::with(&place, &[], &quota);
    let client = Client::new(&service);
    let write = |bytes: usize| json!({ "path": "a", "content": "x".repeat(bytes) });
    let full = "the quota of stored bytes is used up (busy)";
    let is_full = |text: String| assert!(text.contains(full), "{text}");
    is_full(client.call("write_file", write(100_000)).failure());
    let script = "fs.write('a', string.rep('x', 100000))";
    client.data("execute_script", json!({ "script": script }));
    is_full(client.call("write_file", write(1)).failure());
    is_full(client.call("execute_script", json!({ "script": "return 1" })).failure());
    let submit = || service.http("POST", "/v1/executions?wait=60", "", r#"{"script":"return 1"}"#);
    assert_eq!(submit().0, 429);
    let stored = || service.usage()["stored_bytes"].as_u64().unwrap();
    assert!(stored() >= 100_000);
    client.data("remove", json!({ "path": "a" }));
    eventually("what was removed does not count", || (stored() < 64 << 10).then_some(()));
    assert_eq!(client.data("execute_script", json!({ "script": "return 1" }))["result"], 1);
    assert_eq!(submit().0, 200);
    service.stop();
}

#[test]
fn port_of_an_agents_process_has_a_preview() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let flags: Vec<&str> = root.iter().map(String::as_str).collect();
    let domain = ("SANDBOXCTL_SERVER_PREVIEW_DOMAIN", "preview.example.net");
    let service = Service::with(&place, &flags, &[domain]);
    let client = Client::new(&service);
    let line = "cd /tmp && printf hello > mcp && exec httpd -f -p 127.0.0.1:8080";
    client.data("start_process", json!({ "shell": line, "ready": { "port": 8080 } }));
    let refused = client.call("open_port", json!({ "port": 8080, "public": true })).failure();
    assert!(refused.contains("previews of this service are not public"), "{refused}");
    let opened = client.data("open_port", json!({ "port": 8080 }));
    let host = opened["url"].as_str().unwrap().strip_prefix("https://").unwrap();
    let token = opened["token"].as_str().unwrap();
    let ask = |token: &str| {
        let host = host.trim_end_matches('/').to_owned();
        let headers = [("host", host), ("sandbox-port-token", token.to_owned())];
        let mut text = String::new();
        client.send_as("GET", b"", &headers).read_to_string(&mut text).unwrap();
        Response::parse(&text)
    };
    assert_eq!(ask("1.00").status, 401);
    let answer = ask(token);
    assert_eq!((answer.status, &*answer.body), (200, "hello"));
    service.stop();
}

#[test]
fn calls_of_agents_have_the_turns_and_processor_time_of_executions() {
    let place = Fixture::new();
    let quotas = [
        ("SANDBOXCTL_SERVER_SUBJECT_CONCURRENCY", "1"),
        ("SANDBOXCTL_SERVER_QUOTA_CPU_TIME", "20ms"),
    ];
    let service = Service::with(&place, &[], &quotas);
    let client = Client::new(&service);
    let connection = client.begin_loop();
    let queued = service.submit("return 7");
    assert_eq!(service.get(&queued)["status"], "queued");
    drop(connection);
    assert_eq!(service.until(&queued, "ok")["result"], 7);
    let script = json!({ "script": "for i = 1, 1e8 do end" });
    // It may be refused, too: what was cut off counts.
    client.call("execute_script", script.clone());
    let text = client.call("execute_script", script).failure();
    assert!(text.contains("the quota of processor time is used up (busy)"), "{text}");
    assert!(text.contains("\nhint: try again in "), "{text}");
    let (status, body) = service.http("POST", "/v1/executions", "", r#"{"script":"return 1"}"#);
    assert_eq!(status, 429, "{body}");
    service.stop();
}
