//! The session of this node. One statement renews it, whatever runs; its answer says what the others do.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use sandbox_api::CancelCause;
use sandbox_store::{Beat, Drain, NewSession, StoreError};

use super::decide::{Action, Observer};
use super::node::{Node, NodeState};
use crate::core::Core;
use crate::error::ServiceError;
use crate::lock;

impl Node {
    /// Begins a session, which ends the earlier ones of this node: its data directory is in use by this process
    /// alone.
    pub async fn begin_session(&self) -> Result<(), StoreError> {
        let settings: NewSession = self.settings.clone();
        let session = self.call(move |cluster| cluster.begin_session(&settings)).await?;
        lock(&self.secrets).clear();
        self.session.store(session, Ordering::Release);
        let (node, cluster) = (&self.settings.node, &self.cluster.identity().id);
        tracing::info!(node, cluster, session, "a session of this node began");
        Ok(())
    }

    /// Waits until what is being claimed is known here.
    pub async fn claims_settled(&self) {
        drop(self.claiming.lock().await);
    }

    /// Ends the session, so that no node waits for its lease.
    pub async fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
        let session = self.session();
        let left = self.call(move |cluster| cluster.end_session(session)).await;
        if let Err(error) = left {
            tracing::warn!(%error, "the session of this node ends with its lease");
        }
    }

    fn learn(&self, beat: &Beat) {
        self.is_draining.store(beat.drain != Drain::No, Ordering::Release);
        *lock(&self.state) = NodeState {
            renewed: Some(Instant::now()),
            sessions: beat.others.len() as u64 + 1,
            waiting: beat.waiting,
            oldest: beat.oldest,
        };
    }
}

/// Renews the session of a node, as long as there is its service.
pub(super) async fn renew(core: Weak<Core>, node: Arc<Node>) {
    let origin = Instant::now();
    let lease = node.cluster.identity().lease;
    let mut observer = Observer::new(lease);
    let mut ticks = tokio::time::interval(observer.interval());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut is_late = false;
    loop {
        ticks.tick().await;
        let Some(core) = core.upgrade() else { return };
        if node.has_left.load(Ordering::Acquire) {
            return;
        }
        if node.lost_answer.swap(false, Ordering::AcqRel) {
            observer.lost_answer();
        }
        let session = node.session();
        let [running, sandboxes] = [core.running(), core.kept.count()]
            .map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let asked = origin.elapsed();
        let beat = node.call(move |cluster| cluster.beat(session, running, sandboxes));
        match beat.await {
            Ok(beat) => {
                node.learn(&beat);
                if std::mem::take(&mut is_late) {
                    tracing::info!(session, "the session of this node is renewed again");
                }
                core.cancel_asked(&beat.cancel_asked);
                if beat.drain == Drain::Evict {
                    core.evict();
                }
                for action in observer.answered(asked, origin.elapsed(), beat.others) {
                    // What may take long does not delay the next beat.
                    crate::spawn(act(core.clone(), node.clone(), action));
                }
            }
            Err(StoreError::SessionLost) if !node.has_left.load(Ordering::Acquire) => {
                tracing::error!(session, "the others have declared this node dead");
                core.lose_executions();
                match node.begin_session().await {
                    Ok(()) => observer = Observer::new(lease),
                    Err(error) => tracing::warn!(%error, "no session could be begun"),
                }
            }
            // Once for an outage.
            Err(error) if !std::mem::replace(&mut is_late, true) => {
                tracing::warn!(%error, "the session of this node was not renewed");
            }
            Err(error) => tracing::debug!(%error, "the session of this node was not renewed"),
        }
    }
}

async fn act(core: Arc<Core>, node: Arc<Node>, action: Action) {
    let acted = match action {
        Action::DeclareDead { session, beat } => {
            let declared = node.call(move |cluster| cluster.declare_dead(session, beat)).await;
            match declared {
                Ok(true) => {
                    tracing::warn!(
                        session,
                        "a node is gone: its session was not renewed for a lease"
                    );
                    core.end_orphans().await
                }
                // It was renewed meanwhile, or another node was first.
                Ok(false) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
        Action::Adopt => core.adopt().await,
    };
    if let Err(error) = acted {
        node.lost_answer.store(true, Ordering::Release);
        tracing::warn!(%error, "executions of sessions were not looked at");
    }
}

impl Core {
    fn cancel_asked(&self, ids: &[String]) {
        let state = self.state();
        for live in ids.iter().filter_map(|id| state.live.get(id)) {
            live.cancel.cancel(CancelCause::Caller);
        }
    }

    /// Removes the kept sandboxes of this node.
    fn evict(self: &Arc<Self>) {
        for kept in self.kept.all() {
            let core = self.clone();
            crate::spawn(async move {
                let id = kept.record.id.clone();
                if let Err(error) = core.delete_kept(kept).await {
                    tracing::warn!(id, %error, "a sandbox was not removed");
                }
            });
        }
    }

    /// Ends everything that runs: its end is not to be stored by this node any more.
    fn lose_executions(&self) {
        let lost: Vec<_> = std::mem::take(&mut self.state().live).into_values().collect();
        for live in lost {
            live.lose();
            live.cancel.cancel(CancelCause::Stopped);
        }
    }

    /// Compares what this node knows with what its session holds, and ends what no session holds.
    async fn adopt(self: &Arc<Self>) -> Result<(), ServiceError> {
        self.adopt_claims().await?;
        self.end_orphans().await
    }
}
