//! Executions that this node takes from the queue of the cluster: never more than it has free slots.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sandbox_api::ErrorKind;
use sandbox_api::service::ExecutionState;
use sandbox_store::{Claimed, Claims};

use super::decide::{self, Adoption};
use super::node::Node;
use crate::core::{Core, HeldSlot};
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::live::{PendingExecution, PendingWork};
use crate::lock;
use crate::work::not_begun;

/// When to look without a wake-up that something waits: one can be lost.
const POLL: Duration = Duration::from_secs(1);
/// The same where wake-ups do not come.
const POLL_ALONE: Duration = Duration::from_millis(250);

/// Takes executions whenever there may be some, as long as there is the service.
pub(super) async fn claim_all(core: Weak<Core>, node: Arc<Node>) {
    let poll = if node.cluster.listens() { POLL } else { POLL_ALONE };
    loop {
        _ = tokio::time::timeout(poll, node.claims_due.notified()).await;
        let Some(core) = core.upgrade() else { return };
        while core.claim(&node).await {}
    }
}

impl Core {
    /// Takes what there are slots for. Whether there may be more.
    async fn claim(self: &Arc<Self>, node: &Node) -> bool {
        let _claiming = node.claiming.lock().await;
        if !self.is_accepting.load(Ordering::Acquire) {
            return false;
        }
        let limit = self.quotas().concurrency as u64;
        // They count as used until it is known how many are.
        let asked = {
            let schedule = &mut self.state().schedule;
            let [slots, held] = [schedule.slots(), schedule.running()]
                .map(|count| u32::try_from(count).unwrap_or(u32::MAX));
            let asked = decide::free_slots(slots, held);
            schedule.take_slots(asked as usize);
            asked
        };
        if asked == 0 {
            return false;
        }
        let session = node.session();
        let claims = node.call(move |cluster| cluster.claim(session, asked, limit)).await;
        let claims = claims.unwrap_or_else(|error| {
            tracing::debug!(%error, "nothing was claimed");
            node.lost_answer.store(true, Ordering::Release);
            Claims { claimed: Vec::new(), has_more: true }
        });
        node.queue_looked_empty.store(!claims.has_more, Ordering::Release);
        let count = claims.claimed.len();
        match count {
            0 => Counting::add(&node.figures.empty_claims),
            _ => _ = node.figures.claims.fetch_add(count as u64, Ordering::Relaxed),
        }
        for claimed in claims.claimed {
            self.begin_claimed(node, session, claimed);
        }
        self.state().schedule.give_slots(asked as usize);
        // What waits here alone may have found none meanwhile.
        self.dispatch_own();
        count == asked as usize && claims.has_more
    }

    /// Runs an execution that this session holds.
    fn begin_claimed(self: &Arc<Self>, node: &Node, session: i64, claimed: Claimed) {
        let Claimed { execution, request } = claimed;
        let (bytes, has_secrets) = (execution.request_bytes, execution.has_secrets);
        let secrets = lock(&node.secrets).remove(&execution.summary.id);
        let live = self.live_of(execution, Some(session));
        let mut state = self.state();
        state.schedule.hold(&live.subject);
        state.live.insert(live.id.clone(), live.clone());
        drop(state);
        node.followed.touch(&live.id);
        if has_secrets && secrets.is_none() {
            // It was accepted, and its answer was lost before its secrets were kept.
            let core = self.clone();
            let message = "it was not accepted for certain, and its secrets are stored nowhere";
            let failure = not_begun(ErrorKind::Internal, message);
            crate::spawn(async move { core.end_not_run(&live, failure, HeldSlot::Yes).await });
            return;
        }
        let mut room = self.pending.room(&live.subject);
        room.restore(bytes);
        // One that cannot be read is read once more, and fails with the reason.
        let request = serde_json::from_str(&request).ok();
        let work = PendingWork::Queued { request, secrets: secrets.unwrap_or_default() };
        self.begin_work(PendingExecution { live, work, room });
    }

    /// Begins what the session holds and is not known here, because the answer to a claim was lost. What it holds
    /// as begun, and does not run here, was accepted without an answer: it ends as killed.
    pub(super) async fn adopt_claims(self: &Arc<Self>) -> Result<(), ServiceError> {
        let Some(node) = self.node.clone() else { return Ok(()) };
        let _claiming = node.claiming.lock().await;
        if !self.is_accepting.load(Ordering::Acquire) {
            return Ok(());
        }
        let session = node.session();
        let before = self.known_ids();
        let holdings = node.call(move |cluster| cluster.holdings(session)).await?;
        let waiting: HashSet<_> = holdings.waiting.iter().collect();
        let known = self.known_ids();
        lock(&node.secrets).retain(|id, _| waiting.contains(id) || known.contains(id));
        let mut unknown = Vec::new();
        for (id, is_begun) in holdings.held {
            match decide::adopt(is_begun, before.contains(&id) || known.contains(&id)) {
                Adoption::Known => {}
                Adoption::Begin | Adoption::EndKilled => unknown.push(id),
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        for claimed in node.call(move |cluster| cluster.held_by(session, &unknown)).await? {
            tracing::warn!(
                id = claimed.execution.summary.id,
                "it was claimed, and the answer was lost"
            );
            if claimed.execution.summary.status == ExecutionState::Queued {
                self.begin_claimed(&node, session, claimed);
                continue;
            }
            let (engine, limits) = (claimed.execution.engine, claimed.execution.limits);
            let live = self.live_of(claimed.execution, Some(session));
            let message = "its acceptance was not confirmed, and it did not run";
            self.end_killed(&live, engine, limits, message).await;
        }
        Ok(())
    }
}
