//! What a service knows and has done as a node of a cluster.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use sandbox_api::service::{RequestSecrets, Time};
use sandbox_store::{Cluster, NewSession, NodeSession, StoreError, Wake};
use tokio::sync::Notify;

use super::followed::Followed;
use crate::lock;

/// What a service knows as a node.
pub(crate) struct Node {
    pub(super) cluster: Cluster,
    /// What its sessions say of it.
    pub settings: NewSession,
    pub(super) session: AtomicI64,
    pub(super) is_draining: AtomicBool,
    /// Whether nothing waited when this node looked last.
    pub(super) queue_looked_empty: AtomicBool,
    /// An answer to a claim was lost: the session may hold what is not known here.
    pub(super) lost_answer: AtomicBool,
    /// Its session was ended by itself.
    pub(super) has_left: AtomicBool,
    /// There may be something to claim.
    pub(super) claims_due: Notify,
    /// Held while executions are claimed or adopted, until they are known here.
    pub(super) claiming: tokio::sync::Mutex<()>,
    /// Held while orphans are looked for.
    pub(super) sweeping: tokio::sync::Mutex<()>,
    /// Of the executions that wait for this session, or are being accepted.
    pub(super) secrets: Mutex<HashMap<String, RequestSecrets>>,
    pub(super) followed: Followed,
    /// The sessions that were alive, and when they were asked for.
    pub(super) sessions: Mutex<Option<(Instant, Vec<NodeSession>)>>,
    pub(super) state: Mutex<NodeState>,
    pub(super) figures: Figures,
}

/// What the last beat said.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeState {
    pub renewed: Option<Instant>,
    pub sessions: u64,
    pub waiting: u64,
    pub oldest: Option<Time>,
}

#[derive(Debug, Default)]
pub(super) struct Figures {
    pub claims: AtomicU64,
    pub empty_claims: AtomicU64,
    pub requeued: AtomicU64,
}

/// What a node has done and knows, for metrics.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClusterCounters {
    /// Sessions that are alive, with its own.
    pub sessions: u64,
    /// The age of its last beat in seconds.
    pub beat_age: f64,
    /// Executions that it took from the queue.
    pub claims: u64,
    /// Looks into the queue that found nothing.
    pub empty_claims: u64,
    /// Executions that it put back for a node that was gone before they began.
    pub requeued: u64,
    /// How long the oldest execution in the queue waits, in seconds.
    pub queue_oldest: f64,
    /// Transactions that it committed.
    pub commits: u64,
    /// How long they took together, in seconds.
    pub commit_seconds: f64,
    /// Transactions that it began again.
    pub database_retries: u64,
}

impl Node {
    pub fn new(cluster: Cluster, settings: NewSession) -> Self {
        Self {
            cluster,
            settings,
            session: AtomicI64::new(0),
            is_draining: AtomicBool::new(false),
            queue_looked_empty: AtomicBool::new(false),
            lost_answer: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            claims_due: Notify::new(),
            claiming: tokio::sync::Mutex::default(),
            sweeping: tokio::sync::Mutex::default(),
            secrets: Mutex::default(),
            followed: Followed::default(),
            sessions: Mutex::default(),
            state: Mutex::default(),
            figures: Figures::default(),
        }
    }

    /// Calls the cluster, on a thread for that.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Cluster) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let cluster = self.cluster.clone();
        let called = crate::on_a_thread(move || call(&cluster)).await;
        called.unwrap_or(Err(StoreError::Closed))
    }

    /// The session of this node now.
    pub fn session(&self) -> i64 {
        self.session.load(Ordering::Acquire)
    }

    /// Whether what is accepted here is likely to be begun at once. The database decides; its sandbox is started
    /// meanwhile.
    pub fn offers_slot(&self) -> bool {
        self.queue_looked_empty.load(Ordering::Acquire) && !self.is_draining.load(Ordering::Acquire)
    }

    /// Something waits that any node may take.
    pub fn queued(&self) {
        self.queue_looked_empty.store(false, Ordering::Release);
        self.claims_due.notify_one();
        self.cluster.announce(Wake::Queued);
    }

    /// A slot of this node is free.
    pub fn slot_freed(&self) {
        if !self.queue_looked_empty.load(Ordering::Acquire) {
            self.claims_due.notify_one();
        }
    }

    /// A caller of another node may wait for the end of an execution that waited.
    pub fn changed(&self, id: &str) {
        self.cluster.announce(Wake::Changed(id.to_owned()));
    }

    pub fn counters(&self, now: Time) -> ClusterCounters {
        let state = *lock(&self.state);
        let database = self.cluster.figures();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClusterCounters {
            sessions: state.sessions,
            beat_age: state.renewed.map_or(0.0, |renewed| renewed.elapsed().as_secs_f64()),
            claims: count(&self.figures.claims),
            empty_claims: count(&self.figures.empty_claims),
            requeued: count(&self.figures.requeued),
            queue_oldest: state.oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64()),
            commits: database.commits,
            commit_seconds: database.commit_time.as_secs_f64(),
            database_retries: database.retries,
        }
    }

    /// How many executions wait, as of the last beat.
    pub fn waiting(&self) -> u64 {
        lock(&self.state).waiting
    }

    /// Whether the session was renewed within the last lease; if not, why not.
    pub fn check(&self) -> Result<(), String> {
        let lease = self.cluster.identity().lease;
        match lock(&self.state).renewed {
            Some(renewed) if renewed.elapsed() < lease => Ok(()),
            _ => Err("the session of this node could not be renewed".to_owned()),
        }
    }

    /// Another node, or this one, has announced something.
    pub(super) fn woken(&self, wake: Wake) {
        match wake {
            Wake::Queued => {
                self.queue_looked_empty.store(false, Ordering::Release);
                self.claims_due.notify_one();
            }
            Wake::Changed(id) => self.followed.touch(&id),
            Wake::Missed => self.claims_due.notify_one(),
        }
    }
}
