//! The background work of a node.

use std::sync::Arc;

use super::node::Node;
use super::{claims, elsewhere, session};
use crate::core::Core;

/// Starts the tasks of a node. They end with its service.
pub(crate) fn start(core: &Arc<Core>, node: &Arc<Node>) {
    node.claims_due.notify_one();
    crate::spawn(session::renew(Arc::downgrade(core), node.clone()));
    crate::spawn(claims::claim_all(Arc::downgrade(core), node.clone()));
    crate::spawn(elsewhere::follow(Arc::downgrade(node)));
    let of = Arc::downgrade(node);
    node.cluster.listen(move |wake| {
        let Some(node) = of.upgrade() else { return false };
        node.woken(wake);
        true
    });
}
