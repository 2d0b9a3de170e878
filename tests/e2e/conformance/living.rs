//! A service with a sandbox that keeps its processes, for the tests of these.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::service::Service;
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, TIMEOUT, eventually};
use crate::rootfs::{Provided, Rootfs};

/// A service, and a sandbox of it that has busybox and keeps its processes.
pub(super) struct Living<'a> {
    pub(super) service: Service<'a>,
    /// Of the sandbox.
    pub(super) id: String,
    provided: Provided,
}

/// The request for a sandbox that keeps its processes, with `more` of it and of its spec.
pub(super) fn request(provided: &Provided, mut more: Value) -> Value {
    let mut spec = json!({ "processes": "kept" });
    if let Provided::Image(name) = provided {
        spec["image"] = json!(name);
    }
    for (member, value) in more["spec"].as_object().into_iter().flatten() {
        spec[member] = value.clone();
    }
    more["spec"] = spec;
    more
}

/// A service whose commands run in this file system.
pub(super) fn serve<'a>(place: &'a Fixture, provided: &Provided) -> Service<'a> {
    let root = provided.args();
    match provided {
        Provided::Image(name) => Service::with(place, &["--allowed-image", name], &[]),
        _ => Service::with(place, &[&*root[0], &*root[1]], &[]),
    }
}

impl<'a> Living<'a> {
    /// `None` on an engine that cannot keep processes, which says so.
    pub(super) fn new(place: &'a Fixture) -> Option<Self> {
        Self::with(place, &Rootfs::busybox(), json!({}))
    }

    /// The same, from this file system, with more in its request.
    pub(super) fn with(place: &'a Fixture, rootfs: &Rootfs, more: Value) -> Option<Self> {
        let provided = rootfs.provide();
        let service = serve(place, &provided);
        let request = request(&provided, more).to_string();
        let (status, created) = service.http("POST", "/v1/sandboxes", "", &request);
        assert_eq!(status, 201, "{created}");
        let created: Value = serde_json::from_str(&created).unwrap();
        let id = created["id"].as_str().unwrap().to_owned();
        let living = Self { service, id, provided };
        if has(Feature::KeptProcesses) {
            return Some(living);
        }
        let start = json!({ "command": { "program": "true" } }).to_string();
        let (status, refused) = living.send("POST", "/processes", &start);
        assert!((400..500).contains(&status), "{status} {refused}");
        living.end();
        None
    }

    /// Kills the service, and starts another one in its place, after this was done without one.
    pub(super) fn restart_after_a_kill(self, place: &'a Fixture, meanwhile: impl FnOnce()) -> Self {
        let Self { service, id, provided } = self;
        place.expect_a_dead_instance();
        service.kill();
        meanwhile();
        Self { service: serve(place, &provided), id, provided }
    }

    /// An exchange about the sandbox.
    pub(super) fn send(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let path = format!("/v1/sandboxes/{}{path}", self.id);
        self.service.http(method, &path, "", body)
    }

    /// The same, whose answer has this status.
    #[track_caller]
    pub(super) fn ask(&self, status: u16, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (its, answer) = self.send(method, path, &body);
        assert_eq!(its, status, "{method} {path}: {answer}");
        serde_json::from_str(&answer).unwrap_or_default()
    }

    /// The kind of a problem.
    #[track_caller]
    pub(super) fn refused(&self, status: u16, method: &str, path: &str, body: &Value) -> String {
        self.ask(status, method, path, body)["kind"].as_str().unwrap().to_owned()
    }

    /// The view of the sandbox.
    pub(super) fn view(&self) -> Value {
        self.ask(200, "GET", "", &Value::Null)
    }

    /// Starts a process, and returns its id.
    #[track_caller]
    pub(super) fn start(&self, request: &Value) -> u64 {
        self.ask(201, "POST", "/processes", request)["id"].as_u64().unwrap()
    }

    #[track_caller]
    pub(super) fn start_shell(&self, line: &str) -> u64 {
        self.start(&json!({ "command": { "shell": line } }))
    }

    /// A process.
    #[track_caller]
    pub(super) fn process(&self, id: u64) -> Value {
        self.ask(200, "GET", &format!("/processes/{id}"), &Value::Null)
    }

    #[track_caller]
    pub(super) fn until(&self, id: u64, state: &str) -> Value {
        eventually(&format!("process {id} is {state}"), || {
            let view = self.process(id);
            (view["state"] == state).then_some(view)
        })
    }

    /// All events of a process that has ended, after a number.
    #[track_caller]
    pub(super) fn events(&self, id: u64, after: u64) -> Vec<Value> {
        let (status, text) = self.send("GET", &format!("/processes/{id}/events?after={after}"), "");
        assert_eq!(status, 200, "{text}");
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The events of a process as they come.
    pub(super) fn read(&self, id: u64, query: &str) -> Reader {
        let path = format!("/v1/sandboxes/{}/processes/{id}/events?{query}", self.id);
        Reader::open(&self.service.url, &path)
    }

    #[track_caller]
    pub(super) fn write(&self, id: u64, input: &str) {
        let (status, answer) = self.send("POST", &format!("/processes/{id}/stdin"), input);
        assert_eq!(status, 204, "{answer}");
    }

    #[track_caller]
    pub(super) fn signal(&self, id: u64, signal: &str, to: &str) {
        let request = json!({ "signal": signal, "to": to });
        self.ask(204, "POST", &format!("/processes/{id}/signal"), &request);
    }

    /// Stops a process, and waits until nothing of it is left.
    #[track_caller]
    pub(super) fn end_process(&self, id: u64) -> Value {
        self.ask(200, "DELETE", &format!("/processes/{id}?wait=300"), &Value::Null)
    }

    /// What a command of its own prints.
    #[track_caller]
    pub(super) fn run(&self, line: &str) -> String {
        let request = json!({ "command": { "shell": line } });
        let ended = self.ask(200, "POST", "/executions?wait=60", &request);
        assert_eq!(ended["status"], "ok", "{ended}");
        ended["stdout"].as_str().unwrap().to_owned()
    }

    /// Whether a process of the sandbox has this word among its arguments.
    #[track_caller]
    pub(super) fn runs(&self, word: &str) -> bool {
        let line = "for it in /proc/[0-9]*; do tr '\\0' '\\n' <$it/cmdline; done 2>/dev/null; true";
        self.run(line).lines().any(|it| it == word)
    }

    /// Makes a file in it, for which a process waits.
    #[track_caller]
    pub(super) fn touch(&self, file: &str) {
        let (status, answer) = self.send("PUT", &format!("/files/{file}"), "");
        assert_eq!(status, 200, "{answer}");
    }

    /// Removes the sandbox and ends the service: nothing is left.
    pub(super) fn end(self) {
        self.ask(204, "DELETE", "", &Value::Null);
        self.service.stop();
    }
}

/// Events as they come. A reader that is dropped is a client that is gone.
pub(super) struct Reader(BufReader<TcpStream>);

impl Reader {
    pub(super) fn open(url: &str, path: &str) -> Self {
        let address = url.strip_prefix("http://").unwrap();
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(TIMEOUT)).unwrap();
        write!(connection, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").unwrap();
        let mut reader = BufReader::new(connection);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert_eq!(head.split(' ').nth(1), Some("200"), "{head}");
        Self(reader)
    }

    /// Reads until the output that came has this text, and returns the events.
    #[track_caller]
    pub(super) fn until(&mut self, text: &str) -> Vec<Value> {
        let mut events = Vec::new();
        while !String::from_utf8_lossy(&output(&events, "stdout")).contains(text) {
            events.push(self.next().unwrap_or_else(|| panic!("no {text:?} in {events:?}")));
        }
        events
    }
}

impl Iterator for Reader {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        while self.0.read_line(&mut line).unwrap() > 0 {
            if let Some(event) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(event).unwrap());
            }
            line.clear();
        }
        None
    }
}

/// What events have of a stream.
fn output(events: &[Value], stream: &str) -> Vec<u8> {
    let its = events.iter().filter(|event| event["stream"] == stream);
    its.flat_map(|event| {
        let text = event["text"].as_str().unwrap();
        match event["encoding"].as_str().unwrap() {
            "base64" => STANDARD.decode(text).unwrap(),
            _ => text.as_bytes().to_vec(),
        }
    })
    .collect()
}

#[track_caller]
pub(super) fn text(events: &[Value], stream: &str) -> String {
    String::from_utf8(output(events, stream)).unwrap()
}

/// Asserts that numbers go on without gaps; an event that says that others are missing stands for those
/// up to its own number.
#[track_caller]
pub(super) fn assert_numbered(events: &[Value], after: u64) {
    let mut last = after;
    for event in events {
        let seq = event["seq"].as_u64().unwrap();
        match event["event"] == "omitted" {
            true => assert!(seq > last, "{seq} after {last}"),
            false => assert_eq!(seq, last + 1, "{event}"),
        }
        last = seq;
    }
}

pub(super) fn number(event: &Value) -> u64 {
    event["seq"].as_u64().unwrap()
}
