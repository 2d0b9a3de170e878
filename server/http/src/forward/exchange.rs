//! A request, the node that has what it is about, and its answer.

use std::pin::pin;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::response::Response;
use futures_util::TryFutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sandbox_api::{ErrorKind, ProblemKind};
use sandbox_service::{Location, NodeSession, Target};
use tokio::time::timeout;

use super::node::Sent;
use super::owner::TargetOf;
use super::peers::Peers;
use super::{head, tunnel};
use crate::access::Caller;
use crate::here::Here;
use crate::refusal::{Refusal, Result};
use crate::serve::{Places, places};

/// How often the node of a request is looked for.
const ATTEMPTS: usize = 2;
/// While a node does not answer: how often it is looked up whether it is still the one that will.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// After how long another attempt makes sense.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A caller's request, and who may answer it.
pub(super) struct Forward {
    pub peers: Peers,
    pub caller: Caller,
    pub here: Here,
}

/// What became of an attempt to have a request answered by another node.
pub(super) enum Attempt {
    Answered(Response),
    /// Nothing of it was sent.
    Unsent(Request),
    /// That node does not have what it is about.
    Moved,
    /// That node may have done something.
    Lost,
}

impl Forward {
    pub async fn place(&self, target: &Target) -> Result<Location> {
        Ok(self.peers.places().place(&self.caller.subject, target).await?)
    }

    /// The answer to a request that another node sent here.
    pub async fn answer_as_owner(self, of: TargetOf, request: Request) -> Result<Response> {
        let (head, body) = request.into_parts();
        match self.place(&of(&head)).await? {
            Location::Here => Ok(self.here.answer(Request::from_parts(head, body)).await),
            Location::At(_) | Location::Away { .. } => {
                Err(Refusal::new(ProblemKind::Misdirected, "another node has this"))
            }
        }
    }

    /// The answer of the node that has what the request is about.
    pub async fn by_owner(self, of: TargetOf, request: Request) -> Result<Response> {
        let (head, body) = request.into_parts();
        let target = of(&head);
        // Of a body, the first node may have read a part.
        let again = body.is_end_stream().then(|| head.clone());
        let mut request = Request::from_parts(head, body);
        for _ in 0..ATTEMPTS {
            let node = match self.place(&target).await? {
                Location::Here => return Ok(self.here.answer(request).await),
                Location::Away { node, retry_after } => return Err(away(&node, retry_after)),
                Location::At(node) => node,
            };
            request = match (self.send(&node, &target, request).await, &again) {
                (Attempt::Answered(response), _) => return Ok(response),
                (Attempt::Unsent(request), _) => request,
                (Attempt::Moved, Some(head)) => without_body(head),
                (Attempt::Moved, None) => break,
                (Attempt::Lost, _) => return Err(lost()),
            };
        }
        let detail = "the node that has this cannot be reached from here";
        Err(Refusal::new(ProblemKind::Unavailable, detail).retry_after(Some(RETRY_AFTER)))
    }

    /// The same for a request without a body, which is answered from the store if the node cannot.
    pub async fn by_owner_or_store(&self, of: TargetOf, request: Request) -> Result<Response> {
        let (mut head, _) = request.into_parts();
        let (target, since) = (of(&head), Instant::now());
        for _ in 0..ATTEMPTS {
            let Location::At(node) = self.place(&target).await? else { break };
            match self.send(&node, &target, without_body(&head)).await {
                Attempt::Answered(response) => return Ok(response),
                Attempt::Unsent(_) | Attempt::Moved => {}
                Attempt::Lost => break,
            }
        }
        shorten_wait(&mut head, since.elapsed());
        Ok(self.here.clone().answer(without_body(&head)).await)
    }

    /// Sends a request to a node.
    pub async fn send(&self, node: &NodeSession, target: &Target, request: Request) -> Attempt {
        let upgrade = request.extensions().get::<OnUpgrade>().cloned();
        let held = places(request.extensions());
        let sent = self.while_at(node, target, self.peers.send(node, &self.caller, request)).await;
        let gone = || Sent::Lost("it is gone, or cannot be reached any more".into());
        let (result, attempt) = match sent.unwrap_or_else(gone) {
            Sent::Answered(response) if response.status() == StatusCode::MISDIRECTED_REQUEST => {
                ("moved", Attempt::Moved)
            }
            Sent::Answered(response) => {
                let mut response = self.relay(response, upgrade, held);
                response.extensions_mut().insert(node.clone());
                ("ok", Attempt::Answered(response))
            }
            Sent::Unsent(request, error) => {
                tracing::warn!(node = node.node, error, "a node cannot be reached");
                ("unreachable", Attempt::Unsent(request))
            }
            Sent::Lost(error) => {
                tracing::warn!(node = node.node, error, "a node was lost before it answered");
                ("failed", Attempt::Lost)
            }
        };
        self.here.app.metrics.forwarded(result);
        attempt
    }

    /// Waits for something as long as the node has the target, and can be connected to: one that dies without a word
    /// is replaced or away after its lease, and a network that does may heal too late.
    pub async fn while_at<T>(
        &self,
        node: &NodeSession,
        target: &Target,
        awaited: impl Future<Output = T>,
    ) -> Option<T> {
        let mut awaited = pin!(awaited);
        // Once it may just be busy.
        let mut was_unreachable = false;
        loop {
            if let Ok(came) = timeout(LOOK_INTERVAL, &mut awaited).await {
                return Some(came);
            }
            let is_there = match self.place(target).await {
                Ok(Location::At(now)) => now.id == node.id,
                // What is being made is nowhere yet.
                Ok(Location::Here) => matches!(target, Target::Here | Target::SandboxNamed(_)),
                Ok(Location::Away { .. }) => false,
                // That the store fails says nothing of that node.
                Err(_) => continue,
            };
            let is_unreachable = is_there && !self.peers.reach(node).await;
            if !is_there || (is_unreachable && was_unreachable) {
                return None;
            }
            was_unreachable = is_unreachable;
        }
    }

    /// The answer of a node as that to the caller.
    fn relay(
        &self,
        response: Response<Incoming>,
        caller: Option<OnUpgrade>,
        held: Places,
    ) -> Response {
        let (mut head, body) = response.into_parts();
        let upgrades = head.status == StatusCode::SWITCHING_PROTOCOLS;
        head::drop_hop_by_hop(&mut head.headers, upgrades);
        if upgrades
            && let (Some(caller), Some(node)) = (caller, head.extensions.remove::<OnUpgrade>())
        {
            tunnel::join(caller, node.map_ok(TokioIo::new), self.here.app.stop.clone(), held);
        }
        // As a stream: none of it is in memory yet.
        let body = match body.is_end_stream() {
            true => Body::empty(),
            false => Body::from_stream(body.into_data_stream()),
        };
        Response::from_parts(head, body)
    }
}

pub(super) fn without_body(head: &Parts) -> Request {
    let mut head = head.clone();
    head.headers.remove(CONTENT_LENGTH);
    Request::from_parts(head, Body::empty())
}

/// Takes the time that has passed off the wait that a query asks for.
fn shorten_wait(head: &mut Parts, passed: Duration) {
    let wait = head.uri.query().and_then(|query| query.strip_prefix("wait="));
    let Some(wait) = wait.and_then(|wait| wait.parse::<u64>().ok()) else { return };
    let rest = wait.saturating_sub(passed.as_secs());
    if let Ok(uri) = format!("{}?wait={rest}", head.uri.path()).parse() {
        head.uri = uri;
    }
}

/// The refusal of what is at a node that is away.
pub(super) fn away(node: &str, retry_after: Duration) -> Refusal {
    Refusal::new(ProblemKind::Unavailable, format!("the node {node}, which has this, is away"))
        .hint(Some("repeat the request when that node is back"))
        .retry_after(Some(retry_after))
}

/// The refusal of what a node may have done.
pub(super) fn lost() -> Refusal {
    let detail = "the node that has this was lost before it answered";
    Refusal::new(ErrorKind::AgentLost.into(), detail)
        .hint(Some("check whether it was done before you repeat the request"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_that_goes_on_is_as_much_shorter_as_it_lasted() {
        let shortened = |uri: &str| {
            let (mut head, ()) = Request::get(uri).body(()).unwrap().into_parts();
            shorten_wait(&mut head, Duration::from_millis(7900));
            head.uri.to_string()
        };
        assert_eq!(shortened("/v1/executions/a?wait=60"), "/v1/executions/a?wait=53");
        assert_eq!(shortened("/v1/executions/a?wait=5"), "/v1/executions/a?wait=0");
        for other in ["/v1/executions/a", "/v1/executions/a?wait=x", "/v1/executions/a?b=1"] {
            assert_eq!(shortened(other), other);
        }
    }
}
