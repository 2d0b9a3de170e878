//! Streams of events that go on where their node ends: numbers rise, and there is one end.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use sandbox_service::{NodeSession, Target};
use tokio::time::sleep;

use super::exchange::{Forward, without_body};
use super::owner::TargetOf;
use crate::refusal::{Refusal, Result};
use crate::request::LAST_EVENT_ID;

/// Before another source is asked after one that gave nothing.
const PAUSE: Duration = Duration::from_millis(250);
/// The most bytes of a message: the last one has the document.
const MAX_MESSAGE: usize = 64 << 20;

/// The events of an execution from the node that runs it, then from wherever they are.
pub(super) async fn follow(forward: Forward, of: TargetOf, request: Request) -> Result<Response> {
    let (head, _) = request.into_parts();
    let target = of(&head);
    let first = forward.by_owner_or_store(of, without_body(&head)).await?;
    if first.status() != StatusCode::OK {
        return Ok(first);
    }
    let (answer, source) = Source::of(first);
    let followed = Followed { forward, of, target, head, source, messages: Messages::default() };
    let events = stream::try_unfold(followed, |mut followed| async move {
        let next = followed.next().await?;
        Ok::<_, Refusal>(next.map(|messages| (messages, followed)))
    });
    Ok(Response::from_parts(answer, Body::from_stream(events)))
}

/// A stream that is being followed.
struct Followed {
    forward: Forward,
    of: TargetOf,
    target: Target,
    /// Of the request.
    head: Parts,
    source: Source,
    messages: Messages,
}

/// Where events come from now.
struct Source {
    /// `None` for this node.
    node: Option<NodeSession>,
    body: BodyDataStream,
    has_given: bool,
}

impl Source {
    fn of(response: Response) -> (axum::http::response::Parts, Self) {
        let (mut head, body) = response.into_parts();
        let (node, body) = (head.extensions.remove(), body.into_data_stream());
        (head, Self { node, body, has_given: false })
    }
}

impl Followed {
    /// The next whole messages; none after the end, or when the server stops.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let stop = self.forward.here.app.stop.clone();
        loop {
            if self.messages.have_ended {
                return Ok(None);
            }
            let Some(piece) = stop.run_until_cancelled(self.piece()).await else {
                return Ok(None);
            };
            let Some(piece) = piece else {
                self.open_next().await?;
                continue;
            };
            self.source.has_given = true;
            if let Some(messages) = self.messages.add(&piece)? {
                return Ok(Some(messages));
            }
        }
    }

    /// What the source gives next, until it ends in any way.
    async fn piece(&mut self) -> Option<Bytes> {
        let next = self.source.body.next();
        let next = match &self.source.node {
            Some(node) => self.forward.while_at(node, &self.target, next).await.flatten(),
            None => next.await,
        };
        next?.ok()
    }

    /// Asks for what follows the last message.
    async fn open_next(&mut self) -> Result<()> {
        if !self.source.has_given {
            sleep(PAUSE).await;
        }
        self.messages.drop_rest();
        if let Some(last) = self.messages.last {
            self.head.headers.insert(LAST_EVENT_ID, HeaderValue::from(last));
        }
        let answer = self.forward.by_owner_or_store(self.of, without_body(&self.head)).await?;
        if answer.status() != StatusCode::OK {
            // Cut off without an end: the client asks again, and gets this answer.
            let detail = "the events cannot be followed any more";
            return Err(Refusal::new(sandbox_api::ProblemKind::Unavailable, detail));
        }
        self.source = Source::of(answer).1;
        Ok(())
    }
}

/// The messages of a stream: a part of one is not passed on, in case that the rest never comes.
#[derive(Debug, Default)]
struct Messages {
    rest: BytesMut,
    /// Up to where the rest has no end of a message.
    searched: usize,
    /// The number of the last event.
    last: Option<u64>,
    /// Whether the last event was the end.
    have_ended: bool,
}

impl Messages {
    /// Adds a piece of the stream, and takes the messages that are whole then.
    fn add(&mut self, piece: &[u8]) -> Result<Option<Bytes>> {
        self.rest.extend_from_slice(piece);
        let from = self.searched.saturating_sub(1);
        let end = self.rest[from..].windows(2).rposition(|pair| pair == b"\n\n");
        let Some(end) = end.map(|at| from + at + 2) else {
            self.searched = self.rest.len();
            return match self.rest.len() <= MAX_MESSAGE {
                true => Ok(None),
                false => Err(Refusal::internal("an event of another node is too long")),
            };
        };
        let messages = self.rest.split_to(end).freeze();
        self.searched = 0;
        for line in messages.split(|byte| *byte == b'\n') {
            let id = line.strip_prefix(b"id: ").and_then(|id| str::from_utf8(id).ok());
            self.last = id.and_then(|id| id.parse().ok()).or(self.last);
            self.have_ended |= line == b"event: end";
        }
        Ok(Some(messages))
    }

    fn drop_rest(&mut self) {
        self.rest.clear();
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "id: 1\nevent: start\ndata: {}\n\n:\n\nid: 12\nevent: log\ndata: {\"a\": \"id: \
                          9\"}\n\nid: 13\nevent: end\ndata: {}\n\n";

    #[test]
    fn messages_are_passed_on_whole_however_they_come() {
        for size in 1..STREAM.len() {
            let mut messages = Messages::default();
            let mut passed_on = Vec::new();
            for piece in STREAM.as_bytes().chunks(size) {
                if let Some(whole) = messages.add(piece).unwrap() {
                    assert!(whole.ends_with(b"\n\n"));
                    passed_on.extend_from_slice(&whole);
                }
            }
            assert_eq!(passed_on, STREAM.as_bytes(), "in pieces of {size}");
            assert_eq!((messages.last, messages.have_ended), (Some(13), true));
        }
    }

    #[test]
    fn part_of_a_message_is_dropped_with_its_source() {
        let mut messages = Messages::default();
        let (whole, part) = STREAM.split_at(40);
        assert!(messages.add(whole.as_bytes()).unwrap().is_some());
        assert!(messages.add(&part.as_bytes()[..5]).unwrap().is_none());
        messages.drop_rest();
        assert_eq!((messages.last, messages.have_ended), (Some(1), false));
        let next = b"id: 1048589\nevent: end\ndata: {}\n\n";
        assert_eq!(messages.add(next).unwrap().unwrap(), &next[..]);
        assert_eq!((messages.last, messages.have_ended), (Some(1048589), true));
    }
}
