//! What callers ask of kept sandboxes: to create, list, extend and remove them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandbox_api::SandboxSpec;
use sandbox_api::service::{
    SandboxList, SandboxRef, SandboxRequest, SandboxStatus, SandboxView, Subject, Time,
};
use sandbox_dirfd::random_hex;
use sandbox_store::{SandboxElsewhere, SandboxRecord};
use tracing::Instrument as _;

use super::registry::{SandboxEntry, SandboxLease};
use crate::config::ServiceConfig;
use crate::core::Core;
use crate::error::ServiceError;
use crate::name_lock::NameLock;
use crate::plan::{metadata, plan_kept, resolve_host_dir};
use crate::service::Service;

/// A sandbox that was created, or was there.
#[derive(Debug, Clone)]
pub struct CreatedSandbox {
    /// The sandbox.
    pub sandbox: SandboxView,
    /// Whether it was created now.
    pub is_new: bool,
    /// Whether a generation replaced an earlier one, and no caller was notified before.
    pub restarted: bool,
}

impl Service {
    /// Creates a sandbox and starts its container, or gives the one of this name.
    ///
    /// # Errors
    ///
    /// [`ServiceError::name_taken`] if the one of this name has another spec; [`ServiceError`] if it
    /// is not allowed or cannot be started.
    pub async fn create_sandbox(
        &self,
        subject: &Subject,
        request: SandboxRequest,
    ) -> Result<CreatedSandbox, ServiceError> {
        if !self.core.is_accepting.load(Ordering::Acquire) {
            return Err(ServiceError::shutting_down());
        }
        // A caller that goes away does not leave a sandbox half created.
        let creating = self.core.clone().create_sandbox(subject.clone(), request);
        let creating = tokio::spawn(creating.in_current_span());
        let failed = |_| ServiceError::internal("the creation of a sandbox panicked");
        let (used, is_new) = creating.await.map_err(failed)??;
        let restarted = used.is_restart();
        used.mark_restart_reported();
        Ok(CreatedSandbox { sandbox: used.end(), is_new, restarted })
    }

    /// A sandbox as it is now. This is no use.
    ///
    /// # Errors
    ///
    /// [`ServiceError::not_found`] and [`ServiceError::sandbox_gone`].
    pub async fn sandbox(&self, subject: &Subject, id: &str) -> Result<SandboxView, ServiceError> {
        match self.core.kept.find(subject, id) {
            Ok(kept) => Ok(kept.view()),
            Err(error) => {
                let elsewhere = self.core.sandboxes_elsewhere(subject).await?;
                elsewhere.into_iter().find(|sandbox| sandbox.id == id).ok_or(error)
            }
        }
    }

    /// A subject's sandboxes, the latest first.
    ///
    /// # Errors
    ///
    /// If the store of a cluster fails.
    pub async fn sandboxes(&self, subject: &Subject) -> Result<SandboxList, ServiceError> {
        let all = self.core.kept.all();
        let is_own = |kept: &&Arc<SandboxEntry>| kept.record.subject == *subject;
        let own = all.iter().filter(is_own).filter(|kept| kept.attached.is_none());
        let mut sandboxes: Vec<_> = own.map(|kept| kept.view()).collect();
        sandboxes.extend(self.core.sandboxes_elsewhere(subject).await?);
        sandboxes.sort_by(|one, other| {
            other.created_at.cmp(&one.created_at).then_with(|| one.id.cmp(&other.id))
        });
        Ok(SandboxList { sandboxes })
    }

    /// Lets a sandbox exist for this time from now on, never past its longest life, and never
    /// shorter than before.
    ///
    /// # Errors
    ///
    /// As of [`sandbox`](Self::sandbox).
    pub async fn extend_sandbox(
        &self,
        subject: &Subject,
        id: &str,
        ttl: Duration,
    ) -> Result<SandboxView, ServiceError> {
        let kept = self.core.kept.find(subject, id)?;
        let (generation, last_used_at, expires_at) = {
            let info = kept.info();
            let asked = Time::now().after(ttl).min(kept.record.max_expires_at);
            (info.generation, info.last_used_at, asked.max(info.expires_at))
        };
        self.core.records.update_sandbox(id, generation, last_used_at, expires_at).await?;
        let mut info = kept.info();
        info.expires_at = info.expires_at.max(expires_at);
        drop(info);
        self.core.kept.changed.notify_one();
        Ok(kept.view())
    }

    /// Removes a sandbox with its files.
    ///
    /// # Errors
    ///
    /// As of [`sandbox`](Self::sandbox); if something cannot be removed.
    pub async fn delete_sandbox(&self, subject: &Subject, id: &str) -> Result<(), ServiceError> {
        let kept = match self.core.kept.find(subject, id) {
            Ok(kept) => kept,
            Err(error) => {
                if self.core.remove_away(subject, id).await? {
                    return Ok(());
                }
                let elsewhere = self.core.sandboxes_elsewhere(subject).await?;
                let is_there = elsewhere.iter().any(|sandbox| sandbox.id == id);
                return Err(if is_there { ServiceError::sandbox_elsewhere(id) } else { error });
            }
        };
        let core = self.core.clone();
        // It goes on if the caller does not wait.
        let deleting = tokio::spawn(async move { core.delete_kept(kept).await });
        let failed = |_| ServiceError::internal("the removal of a sandbox panicked");
        deleting.await.map_err(failed)?
    }
}

/// The record of a new sandbox.
fn record(
    subject: &Subject,
    request: SandboxRequest,
    config: &ServiceConfig,
) -> Result<SandboxRecord, ServiceError> {
    let bounds = &config.kept;
    if request.name.as_ref().is_some_and(|name| !NameLock::is_valid(name)) {
        let problem = "a name has 1 to 128 bytes, and no control characters";
        return Err(ServiceError::invalid("name", problem));
    }
    metadata(&request.metadata, config)?;
    let time = |field, asked: Option<u64>, default: Duration| match asked.map(Duration::from_millis)
    {
        None => Ok(default.min(bounds.max_ttl)),
        Some(Duration::ZERO) => Err(ServiceError::invalid(field, "it is 0")),
        Some(asked) if asked > bounds.max_ttl => {
            let most = bounds.max_ttl.as_millis();
            Err(ServiceError::invalid(field, format!("more than {most}, the longest life")))
        }
        Some(asked) => Ok(asked),
    };
    let ttl = time("ttl_ms", request.ttl_ms, bounds.ttl)?;
    let idle = time("idle_ms", request.idle_ms, bounds.idle)?;
    let created_at = Time::now();
    Ok(SandboxRecord {
        id: random_hex::<12>(),
        subject: subject.clone(),
        name: request.name,
        spec: request.spec,
        metadata: request.metadata,
        generation: 0,
        idle: Some(idle),
        created_at,
        last_used_at: created_at,
        expires_at: created_at.after(ttl),
        max_expires_at: created_at.after(bounds.max_ttl),
    })
}

impl Core {
    async fn create_sandbox(
        self: Arc<Self>,
        subject: Subject,
        mut request: SandboxRequest,
    ) -> Result<(SandboxLease, bool), ServiceError> {
        resolve_host_dir(&mut request.spec, &self.config).await?;
        let spec = plan_kept(request.spec.clone(), &self.config)?;
        let record = record(&subject, request, &self.config)?;
        self.make_room(&subject, 0).await?;
        let (kept, is_new) = self.register(record, spec).await?;
        let place = SandboxRef { id: kept.record.id.clone(), generation: None };
        match self.lease(&subject, &place).await {
            Ok(used) => Ok((used, is_new)),
            Err(error) => {
                if is_new && let Err(error) = self.delete_unstarted(kept).await {
                    tracing::warn!(id = place.id, %error, "a sandbox was not removed");
                }
                Err(error)
            }
        }
    }

    /// The kept sandboxes of a subject at other nodes, the latest first.
    async fn sandboxes_elsewhere(
        &self,
        subject: &Subject,
    ) -> Result<Vec<SandboxView>, ServiceError> {
        let Some(node) = &self.node else { return Ok(Vec::new()) };
        let found = node.sandboxes_elsewhere(subject).await?;
        let view = |it: SandboxElsewhere| {
            let SandboxElsewhere { record, is_ready, is_there } = it;
            let mut view = SandboxEntry::new(record, Ok(SandboxSpec::new())).view();
            view.node_away = !is_there;
            if is_ready && is_there {
                view.status = SandboxStatus::Ready;
            }
            view
        };
        Ok(found.into_iter().map(view).collect())
    }

    /// Forgets a sandbox whose node is not there: it removes the rest when it is back. Whether there was one.
    async fn remove_away(&self, subject: &Subject, id: &str) -> Result<bool, ServiceError> {
        match &self.node {
            Some(node) => Ok(node.remove_away_sandbox(subject, id).await?),
            None => Ok(false),
        }
    }

    /// Registers a sandbox, or finds the one of its name.
    async fn register(
        self: &Arc<Self>,
        record: SandboxRecord,
        spec: SandboxSpec,
    ) -> Result<(Arc<SandboxEntry>, bool), ServiceError> {
        let quota = self.quotas().sandboxes;
        // Those at other nodes count; of creations at one time some may be too many.
        let elsewhere = self.counts_of(&record.subject).await?.2 as usize;
        let own = self.kept.count_of(&record.subject);
        let quota = quota.saturating_sub(elsewhere.saturating_sub(own));
        let kept = Arc::new(SandboxEntry::new(record, Ok(spec)));
        // Others that find it meanwhile wait.
        let container = kept.container.lock().await;
        let most = self.config.kept.sandboxes;
        let (registered, is_new) = self.kept.register(&kept, quota, most)?;
        if !is_new {
            return Ok((registered, false));
        }
        let created = self.create_kept(&kept).await;
        drop(container);
        created.inspect_err(|_| self.kept.unregister(&kept))?;
        Ok((registered, true))
    }

    async fn create_kept(self: &Arc<Self>, kept: &Arc<SandboxEntry>) -> Result<(), ServiceError> {
        if let (Some(dir), Some(name)) = (&self.config.locked_names, &kept.record.name) {
            let (core, dir, name) = (self.clone(), dir.clone(), name.clone());
            let lock = crate::blocking(move || core.kept.lock_name(&dir, &name)).await?;
            _ = kept.name_lock.set(lock);
        }
        self.records.add_sandbox(kept.record.clone()).await
    }
}
