//! The other nodes of a cluster: who may send requests here, and the connections to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use sandbox_auth::{Caller, FORWARDED, ForwardKey, ForwardRefusal, ForwardVerifier};
use sandbox_service::NodeSession;

use super::head::{prepare, target};
use super::node::{NodeConnections, Sent};
use super::places::Places;
use crate::lists::only;
use crate::lock;
use crate::serve::peer::PeerIdentity;

const X_SANDBOXCTL_FORWARDED: HeaderName = HeaderName::from_static(FORWARDED);
/// The sessions whose connections are known. Those of sessions that are over are a few.
const MAX_SESSIONS: usize = 1024;

/// What a node needs to send requests to the others, and to take theirs.
#[derive(Clone)]
pub struct Peers(Arc<Inner>);

struct Inner {
    identity: Arc<PeerIdentity>,
    key: ForwardKey,
    verifier: Mutex<ForwardVerifier>,
    places: Arc<dyn Places>,
    /// By their sessions: a node that starts again has another certificate.
    connections: Mutex<HashMap<i64, Arc<NodeConnections>>>,
}

impl Peers {
    /// With the certificate of this node, and the key of the cluster.
    #[must_use]
    pub fn new(identity: PeerIdentity, key: &[u8; 32], places: Arc<dyn Places>) -> Self {
        let key = ForwardKey::new(key);
        let verifier = Mutex::new(ForwardVerifier::new(key.clone(), identity.digest()));
        let (identity, connections) = (Arc::new(identity), Mutex::default());
        Self(Arc::new(Inner { identity, key, verifier, places, connections }))
    }

    pub(crate) fn identity(&self) -> &Arc<PeerIdentity> {
        &self.0.identity
    }

    /// Who sent a request that came over the port for nodes.
    pub(crate) fn verify(&self, request: &Request) -> Result<Caller, ForwardRefusal> {
        let header = only(request.headers(), X_SANDBOXCTL_FORWARDED);
        let header = header.ok_or(ForwardRefusal::Missing)?;
        let header = header.to_str().map_err(|_| ForwardRefusal::Malformed)?;
        let (method, target) = (request.method().as_str(), target(request.uri()));
        lock(&self.0.verifier).verify(header, method, target, self.places().cluster_time())
    }

    pub(super) fn places(&self) -> &dyn Places {
        &*self.0.places
    }

    /// Sends a request of this caller to a node.
    pub(super) async fn send(&self, node: &NodeSession, caller: &Caller, request: Request) -> Sent {
        let (mut head, body) = request.into_parts();
        prepare(&mut head);
        let (method, target) = (head.method.as_str(), target(&head.uri));
        let now = self.places().cluster_time();
        let header = self.0.key.sign(&node.certificate, method, target, caller, now);
        let header = HeaderValue::try_from(header);
        let (Some(connections), Ok(header)) = (self.connections(node), header) else {
            return Sent::Unsent(Request::from_parts(head, body), "it cannot be spoken to".into());
        };
        head.headers.insert(X_SANDBOXCTL_FORWARDED, header);
        connections.send(Request::from_parts(head, body)).await
    }

    /// Whether a node can be connected to now.
    pub(super) async fn reach(&self, node: &NodeSession) -> bool {
        match self.connections(node) {
            Some(connections) => connections.is_reachable().await,
            None => false,
        }
    }

    fn connections(&self, node: &NodeSession) -> Option<Arc<NodeConnections>> {
        let mut all = lock(&self.0.connections);
        if let Some(known) = all.get(&node.id) {
            return Some(known.clone());
        }
        let made = NodeConnections::new(&node.address, node.certificate);
        let made = made.inspect_err(|error| tracing::error!(error, "no TLS between nodes")).ok()?;
        if all.len() >= MAX_SESSIONS {
            all.clear();
        }
        Some(all.entry(node.id).or_insert(Arc::new(made)).clone())
    }
}
