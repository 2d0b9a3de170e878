//! What callers ask of kept sandboxes: to create, list, change and remove them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox_api::SandboxSpec;
use sandbox_api::service::{
    SandboxList, SandboxPatch, SandboxRequest, SandboxStatus, SandboxView, Subject, Time,
};
use sandbox_dirfd::random_hex;
use sandbox_store::{Cursor, SandboxElsewhere, SandboxRecord};
use serde_json::{Map, Value};

use super::prepared::Claimed;
use super::registry::{SandboxEntry, SandboxLease};
use crate::config::ServiceConfig;
use crate::core::Core;
use crate::error::ServiceError;
use crate::name_lock::NameLock;
use crate::plan::{metadata, plan_kept, resolve_host_dir};
use crate::service::Service;

/// The sandboxes of one page of a list, unless fewer are asked for.
const SANDBOX_PAGE: usize = 200;

/// Which kept sandboxes a list has; by default all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxQuery {
    /// Those whose metadata has all these members: strings, or other values as they are in JSON.
    pub metadata: BTreeMap<String, String>,
    /// That of this name.
    pub name: Option<String>,
    /// Those in this state.
    pub status: Option<SandboxStatus>,
    /// How many of them, 1 to 200.
    pub limit: Option<usize>,
    /// Those after a page that ended with this.
    pub cursor: Option<String>,
}

impl SandboxQuery {
    fn matches(&self, sandbox: &SandboxView) -> bool {
        let has = |(key, expected): (&String, &String)| match sandbox.metadata.get(key) {
            Some(Value::String(value)) => value == expected,
            Some(value) => serde_json::to_string(value).is_ok_and(|text| text == *expected),
            None => false,
        };
        self.metadata.iter().all(has)
            && (self.name.is_none() || self.name == sandbox.name)
            && self.status.is_none_or(|status| status == sandbox.status)
    }

    /// A page of these sandboxes, the latest first.
    fn page(&self, mut sandboxes: Vec<SandboxView>) -> Result<SandboxList, ServiceError> {
        let limit = self.limit.unwrap_or(SANDBOX_PAGE);
        if !(1..=SANDBOX_PAGE).contains(&limit) {
            return Err(ServiceError::invalid("limit", format!("it is not 1 to {SANDBOX_PAGE}")));
        }
        let after: Option<Cursor> =
            self.cursor.as_deref().map(str::parse).transpose().map_err(|_| {
                ServiceError::invalid("cursor", "it is not a `next_cursor` of a list")
            })?;
        let position = |sandbox: &SandboxView| Cursor::new(sandbox.created_at, &sandbox.id);
        sandboxes.retain(|sandbox| {
            self.matches(sandbox) && after.as_ref().is_none_or(|after| position(sandbox) < *after)
        });
        sandboxes.sort_by_cached_key(|sandbox| std::cmp::Reverse(position(sandbox)));
        let has_more = sandboxes.len() > limit;
        sandboxes.truncate(limit);
        let next_cursor = sandboxes.last().filter(|_| has_more).map(|it| position(it).to_string());
        Ok(SandboxList { sandboxes, next_cursor })
    }
}

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
        self.core.check_accepting()?;
        // A caller that goes away does not leave a sandbox half created.
        let creating = self.core.clone().create_sandbox(subject.clone(), request);
        let (used, is_new) = crate::detached("the creation of a sandbox", creating).await?;
        let restarted = used.is_restart;
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

    /// A page of a subject's sandboxes, the latest first. Of those at other nodes of a cluster the processes are
    /// not known here.
    ///
    /// # Errors
    ///
    /// If the limit or the cursor is invalid; if the store of a cluster fails.
    pub async fn sandboxes(
        &self,
        subject: &Subject,
        query: SandboxQuery,
    ) -> Result<SandboxList, ServiceError> {
        let all = self.core.kept.all();
        let is_own = |kept: &&Arc<SandboxEntry>| kept.record.subject == *subject;
        let own = all.iter().filter(is_own).filter(|kept| kept.attached.is_none());
        let mut sandboxes: Vec<_> = own.map(|kept| kept.view()).collect();
        sandboxes.extend(self.core.sandboxes_elsewhere(subject).await?);
        query.page(sandboxes)
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
        let expiry = move |current: Time| Some(Time::now().after(ttl).max(current));
        self.change_sandbox(subject, id, expiry, None).await
    }

    /// Changes how long a sandbox exists, to longer or shorter, never past its longest life, and replaces its
    /// metadata: what the patch has of these.
    ///
    /// # Errors
    ///
    /// [`ServiceError::invalid`]; as of [`sandbox`](Self::sandbox).
    pub async fn patch_sandbox(
        &self,
        subject: &Subject,
        id: &str,
        patch: SandboxPatch,
    ) -> Result<SandboxView, ServiceError> {
        let SandboxPatch { ttl_ms, metadata: changed } = patch;
        if ttl_ms == Some(0) {
            return Err(
                ServiceError::invalid("ttl_ms", "it is 0").with_hint("DELETE removes a sandbox")
            );
        }
        if let Some(changed) = &changed {
            metadata(changed, &self.core.config)?;
        }
        let ttl = ttl_ms.map(Duration::from_millis);
        let expiry = move |_| ttl.map(|ttl| Time::now().after(ttl));
        self.change_sandbox(subject, id, expiry, changed).await
    }

    /// Changes when a sandbox expires, which `expiry` says by when it does now, and its metadata.
    async fn change_sandbox(
        &self,
        subject: &Subject,
        id: &str,
        expiry: impl FnOnce(Time) -> Option<Time> + Send + 'static,
        metadata: Option<Map<String, Value>>,
    ) -> Result<SandboxView, ServiceError> {
        let kept = self.core.kept.find(subject, id)?;
        // A caller that goes away does not leave the store with something else than is here.
        let core = self.core.clone();
        let changing = async move {
            let _changing = kept.changing.lock().await;
            let current = kept.info().expires_at;
            let expires_at = expiry(current).map(|at| at.min(kept.record.max_expires_at));
            let new = metadata.clone();
            let changed = core.records.change_sandbox(&kept.record.id, move |store, id| {
                store.change_sandbox(id, expires_at, new)
            });
            changed.await?;
            {
                let mut info = kept.info();
                info.expires_at = expires_at.unwrap_or(current);
                if let Some(metadata) = metadata {
                    info.metadata = metadata;
                }
            }
            core.kept.changed.notify_one();
            Ok(kept.view())
        };
        crate::detached("the change of a sandbox", changing).await
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
                // If its node is not there, that removes the rest when it is back.
                if let Some(node) = &self.core.node {
                    let (of, id) = (subject.clone(), id.to_owned());
                    if node.call(move |it| it.remove_away_sandbox(&of, &id)).await? {
                        return Ok(());
                    }
                }
                let elsewhere = self.core.sandboxes_elsewhere(subject).await?;
                let is_there = elsewhere.iter().any(|sandbox| sandbox.id == id);
                return Err(if is_there { ServiceError::sandbox_elsewhere(id) } else { error });
            }
        };
        let core = self.core.clone();
        crate::detached("the removal of a sandbox", async move { core.delete_kept(kept).await })
            .await
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
        idle_action: request.idle,
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
        self.prepared.resolve(&mut request.spec)?;
        let spec = plan_kept(request.spec.clone(), &self.config)?;
        let mut record = record(&subject, request, &self.config)?;
        self.make_room(&subject, 0).await?;
        // One that was started ahead has no secrets of its subject.
        let claimed = match self.config.inject.contains_key(subject.as_str()) {
            true => None,
            false => self.prepared.claim(&record.spec),
        };
        if let Some(claimed) = &claimed {
            record.id = claimed.id().to_owned();
        }
        let (kept, is_new) = self.register(record, spec, claimed).await?;
        match self.spawn_lease(kept.clone(), None).await {
            Ok(used) => Ok((used, is_new)),
            Err(error) => {
                let id = kept.record.id.clone();
                if is_new && let Err(error) = self.delete_unstarted(kept).await {
                    tracing::warn!(id, %error, "a sandbox was not removed");
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
        let (of, own) = (subject.clone(), node.settings.node.clone());
        let found = node.call(move |cluster| cluster.sandboxes_elsewhere(&of, &own)).await?;
        let view = |it: SandboxElsewhere| {
            let SandboxElsewhere { record, status, is_there } = it;
            let mut view = SandboxEntry::new(record, Ok(SandboxSpec::new())).view();
            (view.node_away, view.processes) = (!is_there, None);
            if is_there {
                view.status = status;
            }
            view
        };
        Ok(found.into_iter().map(view).collect())
    }

    /// Registers a sandbox, or finds the one of its name.
    async fn register(
        self: &Arc<Self>,
        record: SandboxRecord,
        spec: SandboxSpec,
        claimed: Option<Claimed>,
    ) -> Result<(Arc<SandboxEntry>, bool), ServiceError> {
        let quota = self.quotas().sandboxes;
        // Those at other nodes count; of creations at one time some may be too many.
        let elsewhere = self.counts_of(&record.subject).await?.2 as usize;
        let own = self.kept.count_of(&record.subject);
        let quota = quota.saturating_sub(elsewhere.saturating_sub(own));
        let mut kept = SandboxEntry::new(record, Ok(spec));
        kept.claimed = Mutex::new(claimed);
        let kept = Arc::new(kept);
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
