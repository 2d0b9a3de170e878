//! Kept sandboxes for a front end whose requests name one before it is known whose it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandbox_api::Limits;
use sandbox_api::service::{KeptSpec, SandboxView, Subject, Time};
use serde_json::{Map, Value};

use super::registry::SandboxEntry;
use crate::config::{HostPolicy, KeptBounds};
use crate::error::ServiceError;
use crate::plan::plan_kept;
use crate::service::Service;

impl SandboxEntry {
    /// Whether callers have it: it is neither over nor one that a front end keeps.
    fn is_there(&self) -> bool {
        let is_over =
            self.is_deleted.load(Ordering::Acquire) || self.info().expires_at <= Time::now();
        self.attached.is_none() && !is_over
    }
}

impl Service {
    /// Whose a kept sandbox is, at whatever node of a cluster; `None` if there is none of this id, or not any
    /// more.
    ///
    /// # Errors
    ///
    /// If the store of a cluster fails.
    pub async fn subject_of(&self, sandbox: &str) -> Result<Option<Subject>, ServiceError> {
        if let Some(kept) = self.core.kept.get(sandbox) {
            return Ok(kept.is_there().then(|| kept.record.subject.clone()));
        }
        let Some(node) = &self.core.node else { return Ok(None) };
        let id = sandbox.to_owned();
        Ok(node.call(move |cluster| cluster.owner_of_sandbox(&id)).await?)
    }

    /// The ids of the kept sandboxes of all subjects, at all nodes of a cluster, with whose they are.
    ///
    /// # Errors
    ///
    /// If the store of a cluster fails.
    pub async fn sandbox_owners(&self) -> Result<Vec<(String, Subject)>, ServiceError> {
        let all = self.core.kept.all();
        let here = all.iter().filter(|kept| kept.is_there());
        let mut owners: Vec<_> =
            here.map(|kept| (kept.record.id.clone(), kept.record.subject.clone())).collect();
        if let Some(node) = &self.core.node {
            let own = node.settings.node.clone();
            owners.extend(node.call(move |cluster| cluster.owners_elsewhere(&own)).await?);
        }
        Ok(owners)
    }

    /// The kept sandboxes of this node, of all subjects, whose metadata are these. The time of one may be over: it
    /// is removed when nothing uses it any more.
    #[must_use]
    pub fn sandboxes_here(
        &self,
        is_wanted: impl Fn(&Map<String, Value>) -> bool,
    ) -> Vec<(Subject, SandboxView)> {
        let all = self.core.kept.all();
        let is_wanted = |kept: &&Arc<SandboxEntry>| {
            let is_kept = kept.attached.is_none() && !kept.is_deleted.load(Ordering::Acquire);
            is_kept && is_wanted(&kept.info().metadata)
        };
        let wanted = all.iter().filter(is_wanted);
        wanted.map(|kept| (kept.record.subject.clone(), kept.view())).collect()
    }

    /// The bounds of kept sandboxes.
    #[must_use]
    pub fn kept_bounds(&self) -> KeptBounds {
        self.core.config.kept
    }

    /// The limits of a kept sandbox of this spec.
    ///
    /// # Errors
    ///
    /// If the spec is not allowed.
    pub fn limits_of(&self, spec: &KeptSpec) -> Result<Limits, ServiceError> {
        Ok(plan_kept(spec.clone(), &self.core.config)?.limits)
    }

    /// Whether a sandbox that asks for no hosts has some: the usual ones, where any may be asked for.
    #[must_use]
    pub fn has_usual_hosts(&self) -> bool {
        matches!(&self.core.config.hosts, HostPolicy::Any { usual } if !usual.rules().is_empty())
    }
}
