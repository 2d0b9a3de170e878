//! A service as a node of a cluster: its session, the executions that it takes from the queue of all nodes, and what
//! it does for those of nodes that are gone.
//!
//! The queue, its turns and the limits of subjects are in the database (`postgres/functions.sql` of the store); what
//! is decided here is in [`decide`]. In the service's own [`Schedule`](crate::schedule::Schedule) are its slots, and what
//! ends with its caller, which waits and counts at its node alone.
//!
//! | | |
//! |---|---|
//! | [`session`] | the session of this node: begun, renewed, lost |
//! | [`claims`] | executions that are taken from the queue |
//! | [`orphans`] | what others, or this node before, held when their session ended |
//! | [`elsewhere`] | executions at other nodes that a caller of this node waits for, or cancels |
//! | [`limits`] | what all nodes count together |
//! | [`node`] | what a service knows as a node |
//! | [`place`] | where the target of a request is |

mod claims;
pub(crate) mod decide;
mod elsewhere;
mod followed;
mod limits;
pub(crate) mod node;
mod orphans;
pub(crate) mod place;
mod session;

use std::sync::Arc;

use crate::core::Core;
use node::Node;

/// Starts the background work of a node, which ends with its service.
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
