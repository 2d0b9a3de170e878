//! Executions that wait in the cluster, or are at another node: waiting for them, and cancelling them. One query asks for
//! all of them, when another node says that one of them changed, and regularly, because that can be lost.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sandbox_api::CancelCause;
use sandbox_api::service::{ExecutionState, Subject};
use sandbox_dirfd::is_random_hex;
use sandbox_store::{Progress, StoredExecution};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::node::Node;
use crate::core::Core;
use crate::error::ServiceError;
use crate::service::Service;

/// How late the events of an execution at another node may be.
const POLL: Duration = Duration::from_millis(250);

/// Asks how far they are, as long as there is the node.
pub(super) async fn follow(node: Weak<Node>) {
    loop {
        let Some(strong) = node.upgrade() else { return };
        let ids = strong.followed.ids();
        if ids.is_empty() {
            // Not for ever: the node may be gone.
            let due = strong.followed.due.notified();
            _ = timeout(4 * POLL, due).await;
            continue;
        }
        let asked = ids.clone();
        match strong.call(move |cluster| cluster.progress(&asked)).await {
            Ok(found) => strong.followed.learn(&ids, &found.into_iter().collect()),
            Err(error) => tracing::debug!(%error, "executions of other nodes are not followed"),
        }
        _ = timeout(POLL, strong.followed.due.notified()).await;
    }
}

impl Service {
    /// An execution with its result document when it has ended, or as it is after this time, wherever it runs.
    ///
    /// # Errors
    ///
    /// [`ServiceError::not_found`] if this subject has none of this id.
    pub async fn wait(
        &self,
        subject: &Subject,
        id: &str,
        up_to: Duration,
    ) -> Result<StoredExecution, ServiceError> {
        let (core, since) = (&self.core, Instant::now());
        let left = || up_to.saturating_sub(since.elapsed());
        let mut progress = None;
        loop {
            if let Some(live) = core.find_live(subject, id).filter(|live| !live.is_lost()) {
                _ = timeout(left(), live.ended()).await;
                if !live.is_lost() {
                    return Ok(live.view());
                }
            }
            let stored = core.records.stored(subject, id).await?;
            let has_ended = matches!(stored.summary.status, ExecutionState::Ended(_));
            if has_ended || core.node.is_none() || left().is_zero() {
                return Ok(stored);
            }
            // Subscribed before the next look: what changes meanwhile is noticed.
            match &mut progress {
                None => progress = core.followed(id),
                Some(progress) => _ = timeout(left(), progress.changed()).await,
            }
        }
    }
}

impl Core {
    /// Says when an execution that is not here is further; none without a cluster.
    pub fn followed(&self, id: &str) -> Option<watch::Receiver<Progress>> {
        Some(self.node.as_ref()?.followed.subscribe(id))
    }

    /// Cancels an execution that is not known here.
    pub async fn cancel_elsewhere(
        self: Arc<Self>,
        subject: &Subject,
        id: &str,
    ) -> Result<StoredExecution, ServiceError> {
        // Any other text is no id, and may be none that the database takes.
        if let Some(node) = &self.node
            && is_random_hex::<12>(id)
        {
            let (of, execution) = (subject.clone(), id.to_owned());
            if let Some(waiting) =
                node.call(move |cluster| cluster.waiting(&of, &execution)).await?
            {
                let live = self.live_of(waiting, None);
                live.cancel.cancel(CancelCause::Caller);
                let core = self.clone();
                let of = live.clone();
                // It goes on if the caller does not wait.
                _ = crate::spawn(async move { core.end_cancelled(&of).await }).await;
                if !live.is_lost() {
                    return Ok(live.view());
                }
            }
            // A session has it, or has just taken it.
            let (of, execution) = (subject.clone(), id.to_owned());
            node.call(move |cluster| cluster.ask_cancel(&of, &execution)).await?;
        }
        self.records.stored(subject, id).await
    }
}
