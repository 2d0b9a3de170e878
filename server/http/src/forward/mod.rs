//! Requests that another node of a cluster answers.
//!
//! Each node takes every request, knows its caller, and asks the service where what it is about is. If that is at
//! another node, the request goes there as it is, over TLS between the nodes, with a header in place of the
//! caller's credentials; body and answer are streamed. A request is sent on once: a node that is not the owner
//! answers 421, and the first one asks again where it is.

pub(crate) mod create;
mod events;
mod exchange;
pub(crate) mod head;
mod node;
pub(crate) mod owner;
pub(crate) mod peers;
pub(crate) mod places;
pub(crate) mod tunnel;

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use sandbox_api::ProblemKind;

use self::create::NewSandbox;
use self::exchange::Forward;
use self::owner::Owner;
use self::peers::Peers;
use crate::access::{Caller, FromNode};
use crate::here::Here;

/// The answer to a caller's request, from here or from the node that has what it is about.
pub(crate) async fn answer(
    peers: &Peers,
    caller: Caller,
    here: Here,
    request: Request,
) -> Response {
    let is_from_node = request.extensions().get::<FromNode>().is_some();
    let gate = here.gate.clone();
    let owner = match request.extensions().get::<NewSandbox>() {
        Some(_) => Owner::NewSandbox,
        None => gate.owner,
    };
    let forward = Forward { peers: peers.clone(), caller, here };
    let answered = match (owner, is_from_node) {
        (Owner::Any, _) | (Owner::NewSandbox, true) => return forward.here.answer(request).await,
        (Owner::Node(of) | Owner::NodeOrStore(of) | Owner::Events(of), true) => {
            forward.answer_as_owner(of, request).await
        }
        (Owner::Node(of), false) => forward.by_owner(of, request).await,
        (Owner::NodeOrStore(of), false) => forward.by_owner_or_store(of, request).await,
        (Owner::Events(of), false) => events::follow(forward, of, request).await,
        (Owner::NewSandbox, false) => create::answer(forward, request).await,
    };
    answered.unwrap_or_else(|refusal| match refusal.problem().kind {
        // For the other node.
        ProblemKind::Misdirected => refusal.into_response(),
        _ => gate.refuse(refusal),
    })
}
