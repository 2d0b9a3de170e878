//! Where the target of a request is: what runs at a node, the files of what ran there, and kept sandboxes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_api::service::{SandboxStatus, Subject, Time};
use sandbox_store::{Cluster, NodeSession, Place, StoreError, Target};

use super::node::{ClusterCounters, Node};
use crate::error::ServiceError;
use crate::lock;
use crate::service::Service;

/// How old what is known of the sessions may be.
const SESSIONS_AGE: Duration = Duration::from_secs(1);

/// Where a request is to be handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// By this service.
    Here,
    /// By the service of this session.
    At(NodeSession),
    /// By a node that is not there now.
    Away {
        /// The node.
        node: String,
        /// When to try again.
        retry_after: Duration,
    },
}

impl Node {
    /// The sessions that are alive, as of a moment ago.
    async fn sessions(&self) -> Result<Vec<NodeSession>, StoreError> {
        if let Some((at, sessions)) = &*lock(&self.sessions)
            && at.elapsed() < SESSIONS_AGE
        {
            return Ok(sessions.clone());
        }
        let (at, sessions) = (Instant::now(), self.call(Cluster::sessions).await?);
        *lock(&self.sessions) = Some((at, sessions.clone()));
        Ok(sessions)
    }

    /// Says in the lists of other nodes how a kept sandbox is, a little later.
    pub fn set_status(self: Arc<Self>, id: String, status: SandboxStatus) {
        crate::spawn(async move {
            let set = self.call(move |cluster| cluster.set_status(&id, status)).await;
            if let Err(error) = set {
                tracing::warn!(%error, "other nodes do not learn the state of a sandbox");
            }
        });
    }

    async fn session_of(&self, id: i64) -> Result<Option<NodeSession>, StoreError> {
        let find = |all: Vec<NodeSession>| all.into_iter().find(|session| session.id == id);
        if let Some(found) = find(self.sessions().await?) {
            return Ok(Some(found));
        }
        // It may have begun since.
        *lock(&self.sessions) = None;
        Ok(find(self.sessions().await?))
    }
}

impl Service {
    /// The session of this node now.
    #[must_use]
    pub fn session(&self) -> Option<i64> {
        self.core.node.as_ref().map(|node| node.session())
    }

    /// The time, by the clock that all nodes have in common.
    #[must_use]
    pub fn cluster_time(&self) -> Time {
        self.core.records.now()
    }

    /// What it has done and knows as a node.
    #[must_use]
    pub fn cluster_counters(&self) -> Option<ClusterCounters> {
        self.core.node.as_ref().map(|node| node.counters(self.cluster_time()))
    }

    /// The nodes that take new work, with this one if it does.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn ready_nodes(&self) -> Result<Vec<NodeSession>, ServiceError> {
        let Some(node) = &self.core.node else { return Ok(Vec::new()) };
        let mut sessions = node.sessions().await?;
        sessions.retain(|session| !session.is_draining);
        Ok(sessions)
    }

    /// Where a request is to be handled. What is nowhere is handled here, where it is found not to exist.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn place(
        &self,
        subject: &Subject,
        target: &Target,
    ) -> Result<Location, ServiceError> {
        let core = &self.core;
        let Some(node) = &core.node else { return Ok(Location::Here) };
        let is_here = match target {
            Target::Here => true,
            Target::Execution(id) | Target::Files(id) => core.find_live(subject, id).is_some(),
            Target::Sandbox(id) => core.kept.find(subject, id).is_ok(),
            Target::SandboxNamed(_) | Target::Workspace => false,
        };
        if is_here {
            return Ok(Location::Here);
        }
        let own = &node.settings.node;
        let (of, asked, here) = (subject.clone(), target.clone(), own.clone());
        let found = node.call(move |cluster| cluster.place(&of, &asked, &here)).await?;
        let (at, session) = match found {
            Place::Nowhere => return Ok(Location::Here),
            // The store answers for one that does not run.
            Place::Node { session: None, .. } if matches!(target, Target::Execution(_)) => {
                return Ok(Location::Here);
            }
            Place::Node { node, session } => (node, session),
        };
        // A name that no sandbox has yet is here too; for one in use the answer names the node.
        let is_name = matches!(target, Target::SandboxNamed(_));
        if at == *own && !is_name {
            return Ok(Location::Here);
        }
        let found = match session {
            Some(session) => node.session_of(session).await?,
            None => None,
        };
        let retry_after = node.cluster.identity().lease;
        Ok(found.map_or(Location::Away { node: at, retry_after }, Location::At))
    }
}
