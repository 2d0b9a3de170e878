//! What a sandbox may reach and what it was refused last, for what runs in it: `policy()` in scripts, and
//! `http://policy.sandbox.internal` for programs, which is answered here and never dialled.
//!
//! The document has rules as they were given, and nothing that a refusal does not tell a program too: no
//! path and no address of the host, no secret and no name of one.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox_api::hosts::Allowlist;
use sandbox_api::network::cut;
use sandbox_api::{ByteSize, Limits, millis};
use serde::Serialize;
use serde_json::{Value, json};

/// How many refusals are kept.
const MAX_REFUSALS: usize = 20;

/// The limits of a sandbox's connections over its whole life. At most
/// [`MAX_TUNNELS`](sandbox_protocol::limits::MAX_TUNNELS) are open at a time. The default allows none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EgressLimits {
    /// The number of connections, including refused ones.
    pub connections: u64,
    /// The number of bytes, both directions together.
    pub bytes: ByteSize,
    /// DNS and connect timeout.
    pub connect_timeout: Duration,
    /// Idle timeout of a connection.
    pub idle_timeout: Duration,
}

impl From<&Limits> for EgressLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            connections: limits.connections.get().into(),
            bytes: limits.network_bytes,
            connect_timeout: limits.connect_timeout,
            idle_timeout: limits.connection_idle,
        }
    }
}

/// The policy of a sandbox as far as it is known.
#[derive(Debug, Default)]
pub struct Policy(Mutex<Known>);

/// The document.
#[derive(Debug, Default, Serialize)]
struct Known {
    /// The rules of hosts.
    allow: Vec<String>,
    /// The hosts to which credentials are added.
    injected: Vec<String>,
    /// The rules of tools, or their names.
    tools: Vec<String>,
    /// With the names that requests to a service have; null until they are set.
    limits: Value,
    /// The last ones, the oldest first.
    refused: VecDeque<Refusal>,
}

/// A host or a tool that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Refusal {
    /// The host and port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Why, in a few words.
    pub reason: String,
    /// The rules to ask for; empty if none would help.
    pub allow: Vec<String>,
}

impl Policy {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The document.
    pub fn document(&self) -> Value {
        let known = self.lock();
        json!(*known)
    }

    /// The rules of hosts, and the limits of connections to them.
    pub fn set_hosts(&self, list: &Allowlist, limits: EgressLimits) {
        let known = &mut self.lock();
        known.allow = list.rules().iter().map(ToString::to_string).collect();
        known.limits = json!({
            "connections": limits.connections,
            "network_bytes": limits.bytes.as_u64(),
            "connect_timeout_ms": millis(limits.connect_timeout),
            "connection_idle_ms": millis(limits.idle_timeout),
        });
    }

    /// A host that was allowed beyond the rules.
    pub fn add_host(&self, target: String) {
        self.lock().allow.push(target);
    }

    /// The hosts to which credentials are added: `HOST:PORT`.
    pub fn set_injected(&self, hosts: impl IntoIterator<Item = String>) {
        self.lock().injected = hosts.into_iter().collect();
    }

    /// What the run in progress may call: the rules of its tools, or their names.
    pub fn set_tools(&self, tools: impl IntoIterator<Item = String>) {
        self.lock().tools = tools.into_iter().collect();
    }

    /// Records that a tool was refused, and the rule that would give it.
    pub fn refuse_tool(&self, tool: &str, reason: &str, rule: Option<String>) {
        let (tool, reason) = (tool.to_owned(), reason.to_owned());
        let allow = rule.into_iter().collect();
        self.refuse(Refusal { tool: Some(tool), reason, allow, ..Refusal::default() });
    }

    /// Records a refusal. One that is among the last ones moves to their end.
    pub fn refuse(&self, mut refusal: Refusal) {
        let Refusal { target, tool, reason, allow } = &mut refusal;
        target.iter_mut().chain(tool).chain([reason]).chain(allow).for_each(cut);
        let refused = &mut self.lock().refused;
        refused.retain(|known| *known != refusal);
        if refused.len() == MAX_REFUSALS {
            refused.pop_front();
        }
        refused.push_back(refusal);
    }

    /// The answer to the request of HTTP with this head. Nothing of the request is in it.
    pub fn answer(&self, head: &[u8]) -> String {
        let mut words = head.split(|byte| b" \r".contains(byte));
        let (method, path) = (words.next(), words.next());
        let error = |text: &str| json!({ "error": text });
        let (status, body) = match (method, path) {
            (Some(b"GET" | b"HEAD"), Some(b"/")) => ("200 OK", self.document()),
            (Some(b"GET" | b"HEAD"), _) => ("404 Not Found", error("the document is at /")),
            _ => ("405 Method Not Allowed\r\nAllow: GET, HEAD", error("it can only be read")),
        };
        let body = format!("{body}\n");
        let length = body.len();
        let body = if method == Some(b"HEAD") { "" } else { &body };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
        )
    }
}

#[cfg(test)]
mod tests {
    use sandbox_api::network::MAX_TEXT;

    use super::*;

    fn answer(policy: &Policy, request: &str) -> (String, String) {
        let answer = policy.answer(request.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split("\r\n").next().unwrap();
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.unwrap().parse().unwrap();
        assert!(body.is_empty() && request.starts_with("HEAD") || body.len() == length, "{answer}");
        (status.to_owned(), body.to_owned())
    }

    #[test]
    fn only_the_document_is_there_and_it_can_only_be_read() {
        let policy = Policy::default();
        policy.set_hosts(
            &["a.example".parse().unwrap()].into_iter().collect(),
            EgressLimits::default(),
        );
        let (status, body) = answer(&policy, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), policy.document());
        assert_eq!(policy.document()["allow"], json!(["a.example"]));
        for (request, expected) in [
            ("HEAD / HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK"),
            ("GET /x HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
            ("GET /?x HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
            ("HEAD /x HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", "HTTP/1.1 405 Method Not Allowed"),
            ("TRACE / HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
            ("get / HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
            ("GET\r\n\r\n", "HTTP/1.1 404 Not Found"),
            ("GET / x HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK"),
            ("\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
            ("", "HTTP/1.1 405 Method Not Allowed"),
            ("\u{16}\u{3}\u{1}\u{2}", "HTTP/1.1 405 Method Not Allowed"),
        ] {
            assert_eq!(answer(&policy, request).0, expected, "{request:?}");
        }
    }

    #[test]
    fn the_last_refusals_are_kept_each_once_and_cut() {
        let policy = Policy::default();
        let refuse = |target: String| {
            let target = Some(target);
            policy.refuse(Refusal { target, reason: "é".repeat(1000), ..Refusal::default() });
        };
        (0..30).for_each(|at| refuse(format!("{at}.example:443")));
        refuse("15.example:443".to_owned());
        refuse("x".repeat(1000));
        let document = policy.document();
        let refused = document["refused"].as_array().unwrap();
        let targets: Vec<_> = refused.iter().map(|it| it["target"].as_str().unwrap()).collect();
        assert_eq!(targets.len(), MAX_REFUSALS);
        assert_eq!((targets[0], targets[18]), ("11.example:443", "15.example:443"));
        assert_eq!(targets[19].len(), MAX_TEXT);
        assert_eq!(targets.iter().filter(|it| **it == "15.example:443").count(), 1);
        assert_eq!(refused[0]["reason"].as_str().unwrap().chars().count(), MAX_TEXT);
    }
}
