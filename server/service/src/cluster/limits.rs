//! What all nodes count together: where an execution may run, how often a subject may ask, and how much it has.

use std::sync::Arc;
use std::time::Instant;

use sandbox_api::service::{RequestSecrets, Subject};
use sandbox_store::{Lane, Placement};

use super::node::Node;
use crate::OnDrop;
use crate::core::Core;
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::lock;

impl Core {
    /// Where an execution may run, and within which bounds it may wait.
    pub fn placement(&self, node: &Node, is_in_sandbox: bool, has_secrets: bool) -> Placement {
        Placement {
            node: node.settings.node.clone(),
            session: node.session(),
            lane: match (is_in_sandbox, has_secrets) {
                (_, true) => Lane::Session,
                (true, false) => Lane::Node,
                (false, false) => Lane::Any,
            },
            subject_limit: self.quotas().concurrency as u64,
            max_queued: self.config.max_queued as u64,
            max_queued_bytes: self.config.max_queued_bytes.as_u64(),
        }
    }

    /// Counts a request against the rate of its subject.
    pub async fn take_rate(&self, subject: &Subject) -> Result<(), ServiceError> {
        let Some(per_minute) = self.quotas().rate_per_minute else { return Ok(()) };
        let waits = match &self.node {
            Some(node) => {
                let subject = subject.clone();
                node.call(move |cluster| cluster.take_rate(&subject, per_minute.max(1))).await?
            }
            None => self.state().rates.take(subject, Some(per_minute), Instant::now()).err(),
        };
        let Some(retry_after) = waits else { return Ok(()) };
        Counting::add(&self.counting.refused_quota);
        Err(ServiceError::too_fast(retry_after))
    }

    /// How many executions of a subject wait and run, and how many sandboxes it keeps.
    pub async fn counts_of(&self, subject: &Subject) -> Result<(u64, u64, u64), ServiceError> {
        let (queued, running) = self.state().schedule.of(subject);
        let sandboxes = self.kept.count_of(subject);
        let own = (queued as u64, running as u64, sandboxes as u64);
        let Some(node) = &self.node else { return Ok(own) };
        let subject = subject.clone();
        let counts = node.call(move |cluster| cluster.counts_of(&subject)).await?;
        Ok((counts.queued, counts.running, counts.sandboxes))
    }

    /// An execution that is being accepted: a session that holds it already is not wrong about it.
    /// Its secrets are there before it can be claimed. They are dropped when it does not wait for them.
    pub fn accepting(
        self: &Arc<Self>,
        node: &Node,
        id: &str,
        secrets: &RequestSecrets,
    ) -> OnDrop<impl FnMut() + use<>> {
        let (core, id) = (self.clone(), id.to_owned());
        core.state().accepting.insert(id.clone());
        if !secrets.is_empty() {
            lock(&node.secrets).insert(id.clone(), secrets.clone());
        }
        OnDrop(move || _ = core.state().accepting.remove(&id))
    }
}
