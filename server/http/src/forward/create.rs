//! Where a new sandbox is made: at the node that has one of its name, otherwise at one that has room.

use std::cmp::Reverse;
use std::hash::{BuildHasher as _, RandomState};

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use sandbox_api::{ProblemKind, without_bom};
use sandbox_service::{Location, NodeSession, Target};
use serde::Deserialize;

use super::exchange::{Attempt, Forward, RETRY_AFTER, away, lost};
use crate::refusal::{Refusal, Result};
use crate::serve::body::BoundedBody;

/// How many nodes are asked before a sandbox is refused.
const MAX_NODES: usize = 3;
/// The most bytes of a request to what is mounted.
const MAX_MOUNTED: u64 = 1 << 20;

/// That a request to what is mounted makes a sandbox: the node answers that has the one of this name, or one with
/// room. In the extensions of the request, when it was [admitted](crate::Admit::admit).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    /// The name, if it has one.
    pub name: Option<String>,
}

/// What is read of a request to find its node; that node reads all of it.
#[derive(Deserialize)]
struct Named {
    name: Option<String>,
}

/// The answer of the node that has a sandbox of the name, or that made a new one.
pub(super) async fn answer(forward: Forward, request: Request) -> Result<Response> {
    let of_mount = request.extensions().get::<NewSandbox>().cloned();
    let request = match of_mount {
        // Elsewhere what is mounted streams.
        Some(_) => request.map(|body| Body::new(BoundedBody::new(body, MAX_MOUNTED))),
        None => request,
    };
    let (head, body) = forward.here.read(request).await?;
    let name = match of_mount {
        Some(NewSandbox { name }) => name,
        None => serde_json::from_slice::<Named>(without_bom(&body)).ok().and_then(|it| it.name),
    };
    let target = name.map_or(Target::Here, Target::SandboxNamed);
    let nodes = match forward.place(&target).await? {
        Location::At(node) => vec![node],
        Location::Away { node, retry_after } => return Err(away(&node, retry_after)),
        Location::Here => candidates(forward.peers.places().ready_nodes().await?),
    };
    let own = forward.peers.places().session();
    let mut refused = None;
    for node in nodes {
        let request = with_body(&head, &body);
        let answer = match Some(node.id) == own {
            true => forward.here.clone().answer(request).await,
            false => match forward.send(&node, &target, request).await {
                Attempt::Answered(answer) => answer,
                Attempt::Unsent(_) | Attempt::Moved => continue,
                Attempt::Lost => return Err(lost()),
            },
        };
        match answer.status() {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::INSUFFICIENT_STORAGE => {
                refused = Some(answer);
            }
            _ => return Ok(answer),
        }
    }
    refused.ok_or_else(|| {
        Refusal::new(ProblemKind::Unavailable, "no node can be reached that may make a sandbox")
            .retry_after(Some(RETRY_AFTER))
    })
}

fn with_body(head: &Parts, body: &Bytes) -> Request {
    Request::from_parts(head.clone(), Body::from(body.clone()))
}

/// Some nodes in random order, but for the first two: the one with more room goes first. Two that are compared
/// keep the load as even as all would, and what is known of them is a beat old.
fn candidates(mut nodes: Vec<NodeSession>) -> Vec<NodeSession> {
    // Each new state of the standard library's hasher is random.
    nodes.sort_by_cached_key(|_| RandomState::new().hash_one(()));
    nodes.truncate(MAX_NODES);
    let pair = nodes.len().min(2);
    nodes[..pair].sort_by_key(|node| Reverse(room(node)));
    nodes
}

/// The executions and sandboxes that a node has room for.
fn room(node: &NodeSession) -> i64 {
    i64::from(node.slots) - i64::from(node.running) - i64::from(node.sandboxes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;

    fn node(id: i64, running: u32, sandboxes: u32) -> NodeSession {
        NodeSession {
            id,
            node: format!("node-{id}"),
            name: String::new(),
            address: String::new(),
            certificate: [0; 32],
            version: String::new(),
            slots: 8,
            running,
            sandboxes,
            config_digest: String::new(),
            is_draining: false,
            beat_age: Duration::ZERO,
        }
    }

    #[test]
    fn emptier_of_two_nodes_is_asked_first() {
        for _ in 0..100 {
            let ids: Vec<_> =
                candidates(vec![node(1, 3, 2), node(2, 1, 0)]).iter().map(|it| it.id).collect();
            assert_eq!(ids, [2, 1]);
        }
        assert_eq!(candidates(Vec::new()), []);
    }

    #[test]
    fn every_node_is_asked_first_some_time_but_the_fullest() {
        let first: HashSet<_> = (0..1000)
            .map(|_| {
                let nodes: Vec<_> = (0..5).map(|id| node(id, id as u32, 0)).collect();
                let asked = candidates(nodes);
                assert_eq!(asked.len(), MAX_NODES);
                asked[0].id
            })
            .collect();
        assert_eq!(first, HashSet::from([0, 1, 2, 3]));
    }
}
