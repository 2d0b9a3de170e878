//! Executions whose session has ended without them. Any node ends them or puts them back: each change names the
//! session that held the execution, and so the first one counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use sandbox_api::service::ExecutionState;
use sandbox_api::{CancelCause, ErrorKind};
use sandbox_store::{Cluster, OrphanedExecution};

use super::decide::{Fate, MAX_CLAIMS, Orphan};
use super::node::Node;
use crate::core::{Core, HeldSlot};
use crate::error::ServiceError;
use crate::work::not_begun;

/// How many are ended at one time.
const AT_ONCE: usize = 8;

impl Core {
    /// Looks for all of them. Those who look at one time wait for the first.
    pub(crate) async fn end_orphans(self: &Arc<Self>) -> Result<(), ServiceError> {
        let Some(node) = &self.node else { return Ok(()) };
        let _sweeping = node.sweeping.lock().await;
        let orphans = node.call(|cluster| cluster.orphans()).await?;
        let ends = orphans.into_iter().map(|orphan| self.end_orphan(node, orphan));
        stream::iter(ends).buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn end_orphan(
        self: &Arc<Self>,
        node: &Node,
        orphan: OrphanedExecution,
    ) -> Result<(), ServiceError> {
        let OrphanedExecution { execution, session, claims, is_cancelled } = orphan;
        let id = execution.summary.id.clone();
        let is_begun = execution.summary.status != ExecutionState::Queued;
        let has_secrets = execution.has_secrets;
        let fate = Orphan { is_begun, claims, has_secrets, is_cancelled }.fate();
        tracing::warn!(id, session, ?fate, "its session has ended");
        let (engine, limits) = (execution.engine, execution.limits);
        match (fate, session) {
            (Fate::Requeued, Some(session)) => {
                let subject = execution.subject;
                let requeue = move |cluster: &Cluster| cluster.requeue(&subject, &id, session);
                if node.call(requeue).await? {
                    node.figures.requeued.fetch_add(1, Ordering::Relaxed);
                    node.queued();
                }
            }
            // It waits already.
            (Fate::Requeued, None) => {}
            (Fate::Killed, _) => {
                let live = self.live_of(execution, session);
                self.end_killed(&live, engine, limits, "the node that ran it is gone").await;
            }
            (Fate::Cancelled, _) => {
                let live = self.live_of(execution, session);
                live.cancel.cancel(CancelCause::Caller);
                self.end_cancelled(&live).await;
            }
            (Fate::SecretsGone, _) => {
                let live = self.live_of(execution, session);
                let message = "the node that had its secrets is gone, and they are stored nowhere";
                let failure = not_begun(ErrorKind::Internal, message);
                self.end_not_run(&live, failure, HeldSlot::No).await;
            }
            (Fate::NeverBegun, _) => {
                let live = self.live_of(execution, session);
                let message = format!("{MAX_CLAIMS} nodes took it, and were gone before it began");
                let failure = not_begun(ErrorKind::Internal, message);
                self.end_not_run(&live, failure, HeldSlot::No).await;
            }
        }
        Ok(())
    }
}
