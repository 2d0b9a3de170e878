//! JSON of requests, read as its schemas say.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use sandbox_api::{ProblemKind, strict, without_bom};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::memory::UNCOUNTED;
use crate::refusal::{Refusal, Result};

/// How many large bodies are parsed at one time.
const PARSERS: usize = 2;

/// Parses large bodies: on threads for that, a few at one time.
#[derive(Debug, Clone)]
pub(crate) struct Parsers(Arc<Semaphore>);

impl Default for Parsers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PARSERS)))
    }
}

impl Parsers {
    pub async fn parse<T: DeserializeOwned + Send + 'static>(&self, json: Bytes) -> Result<T> {
        if json.len() as u64 <= UNCOUNTED {
            return parse_json(&json);
        }
        let ended = |_| Refusal::internal("a large body could not be parsed");
        let turn = Arc::clone(&self.0).acquire_owned().await.map_err(|_| ended(()))?;
        let parse = move || {
            let parsed = parse_json::<T>(&json);
            drop((json, turn));
            Box::new(parsed) as Box<dyn Any + Send>
        };
        // Behind a pointer: tokio's own part of a task is compiled for each type of closure.
        let parse: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> = Box::new(parse);
        let parsed = spawn_blocking(parse).await.map_err(|_| ended(()))?;
        *parsed.downcast::<Result<T>>().expect("it is what was parsed")
    }
}

/// Parses JSON; an error says where it is.
fn parse_json<T: DeserializeOwned>(json: &[u8]) -> Result<T> {
    let json = without_bom(json);
    let mistake = match strict::from_slice(json) {
        Ok(value) => return Ok(value),
        Err(mistake) if !mistake.error.is_data() => return Err(malformed(&mistake.error)),
        Err(mistake) => mistake,
    };
    // What follows the member may be no JSON: that comes first.
    if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(json) {
        return Err(malformed(&error));
    }
    let (pointer, what) = (pointer(&mistake.path), mistake.what());
    let detail = match &*pointer {
        "#" => what.clone(),
        pointer => format!("{}: {what}", pointer.trim_start_matches("#/").replace('/', ".")),
    };
    Err(Refusal::new(ProblemKind::Invalid, detail).at(pointer, what))
}

fn malformed(error: &serde_json::Error) -> Refusal {
    Refusal::new(ProblemKind::Malformed, format!("the body is not JSON: {error}"))
}

/// As a fragment: `#/limits/timeout_ms`.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = "#".to_owned();
    for segment in path.iter() {
        let name = match segment {
            Segment::Seq { index } => index.to_string(),
            Segment::Map { key } => key.replace('~', "~0").replace('/', "~1"),
            Segment::Enum { variant } => variant.clone(),
            Segment::Unknown => continue,
        };
        pointer.push('/');
        pointer.push_str(&name);
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_api::service::ExecutionRequest;
    use std::future::{Future as _, poll_fn};
    use std::task::{Context, Poll};

    fn refused(json: &str) -> (u16, String, String) {
        let refusal = parse_json::<ExecutionRequest>(json.as_bytes()).unwrap_err();
        let problem = refusal.problem();
        let pointer = problem.errors.first().map(|it| it.pointer.clone()).unwrap_or_default();
        (problem.status, pointer, problem.detail.clone())
    }

    #[test]
    fn json_is_malformed_or_has_an_invalid_member() {
        for json in ["", "{", "{]", "{} {}", "nul", "\u{feff}", "{\"a\":1,}", "\"\\ud800"] {
            assert_eq!(refused(json).0, 400, "{json}");
        }
        // A byte-order mark is not part of it.
        let body = "\u{feff}{\"script\":\"return 1\"}";
        parse_json::<ExecutionRequest>(body.as_bytes()).unwrap();
        let deep = format!("{{\"args\":{{\"a\":{}1{}}}}}", "[".repeat(200), "]".repeat(200));
        assert_eq!(refused(&deep).0, 400);
        for (json, pointer, part) in [
            ("[]", "#", "invalid type"),
            (r#"{"limits":[5]}"#, "#/limits", "limits: invalid type: array, expected an object"),
            (r#"{"command":{"program":"a","args":{}}}"#, "#/command/args", "invalid type: object"),
            ("null", "#", "invalid type"),
            (
                r#"{"scripts":"x"}"#,
                "#/scripts",
                "unknown field `scripts`, expected one of `script`",
            ),
            (r#"{"limits":{"timeout":5}}"#, "#/limits/timeout", "unknown field `timeout`"),
            (
                r#"{"limits":{"timeout_ms":"5s"}}"#,
                "#/limits/timeout_ms",
                "limits.timeout_ms: invalid type: string \"5s\", expected a whole number from 0",
            ),
            (r#"{"limits":{"timeout_ms":1.5}}"#, "#/limits/timeout_ms", "invalid type"),
            (r#"{"network":{"allow":[1]}}"#, "#/network/allow/0", "invalid type"),
            (r#"{"script":"a","script":"b"}"#, "#", "duplicate field `script`"),
        ] {
            let (status, at, detail) = refused(json);
            assert_eq!((status, &*at), (422, pointer), "{json}: {detail}");
            assert!(detail.contains(part) && !detail.contains("column"), "{json}: {detail}");
        }
    }

    #[test]
    fn whole_number_is_an_integer_however_it_is_written() {
        let json = br#"{"script":"a","limits":{"timeout_ms":5e3,"pids":32.0},"args":{"a":1.0}}"#;
        let request: ExecutionRequest = parse_json(json).unwrap();
        let written = serde_json::to_value(&request).unwrap();
        assert_eq!(written["limits"], serde_json::json!({ "timeout_ms": 5000, "pids": 32 }));
        // What is no integer stays as it is.
        assert!(written["args"]["a"].is_f64());
    }

    /// The thread that it was read on.
    #[derive(Debug)]
    struct ReadOn(std::thread::ThreadId);

    impl<'de> serde::Deserialize<'de> for ReadOn {
        fn deserialize<D: serde::Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
            serde::de::IgnoredAny::deserialize(json)?;
            Ok(Self(std::thread::current().id()))
        }
    }

    #[tokio::test]
    async fn large_body_is_parsed_on_a_thread_and_few_are_at_one_time() {
        let parsers = Parsers::default();
        let here = std::thread::current().id();
        let text = |bytes: usize| Bytes::from(format!("\"{}\"", "x".repeat(bytes)));
        assert_eq!(parsers.parse::<ReadOn>(text(100)).await.unwrap().0, here);
        let large = text(UNCOUNTED as usize);
        assert_ne!(parsers.parse::<ReadOn>(large.clone()).await.unwrap().0, here);
        let turns = Arc::clone(&parsers.0).acquire_many_owned(PARSERS as u32).await.unwrap();
        let mut waits = std::pin::pin!(parsers.parse::<ReadOn>(large));
        let is_pending =
            |context: &mut Context<'_>| Poll::Ready(waits.as_mut().poll(context).is_pending());
        assert!(poll_fn(is_pending).await);
        assert_eq!(parsers.parse::<ReadOn>(text(100)).await.unwrap().0, here);
        drop(turns);
        waits.await.unwrap();
    }
}
