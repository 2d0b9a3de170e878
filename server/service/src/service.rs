//! The service, as its front ends see it: executions that are accepted, wait for their turn, run, and
//! are kept.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sandbox_api::CancelCause;
use sandbox_api::service::{
    ExecutionList, ExecutionRequest, FileList, Health, HealthCheck, SandboxRef, Subject,
    UsageTotals,
};
use sandbox_controller::{Controller, PoolStats};
use sandbox_store::{ExecutionQuery, NewSession, SigningKey, Store, StoredExecution};

use crate::admission::Submitted;
use crate::cluster::node::Node;
use crate::config::{Quotas, ServiceConfig};
use crate::core::Core;
use crate::counters::Counters;
use crate::error::ServiceError;
use crate::files::{Files, OpenFile};
use crate::idempotency::IdempotencyKey;
use crate::launcher::Launcher;
use crate::records::Records;

/// A service. Clones are the same one.
#[derive(Clone)]
pub struct Service {
    pub(crate) core: Arc<Core>,
}

/// A service, without keeping it: for what may outlive it.
#[derive(Clone)]
pub struct WeakService(Weak<Core>);

impl WeakService {
    /// The service, while it exists.
    #[must_use]
    pub fn upgrade(&self) -> Option<Service> {
        self.0.upgrade().map(|core| Service { core })
    }
}

impl Service {
    /// This service, without keeping it.
    #[must_use]
    pub fn downgrade(&self) -> WeakService {
        WeakService(Arc::downgrade(&self.core))
    }

    /// Starts a service on a store that no other one uses. What waited when the last service on it
    /// ended is queued again, and what ran is `killed`.
    ///
    /// # Errors
    ///
    /// If the store or the directory of files cannot be used.
    pub async fn start(
        config: ServiceConfig,
        controller: Arc<Controller>,
        store: Store,
    ) -> Result<Self, ServiceError> {
        Self::start_with(config, Arc::new(controller), store).await
    }

    pub(crate) async fn start_with(
        mut config: ServiceConfig,
        launcher: Arc<dyn Launcher>,
        store: Store,
    ) -> Result<Self, ServiceError> {
        let data_dir = config.data_dir.clone();
        let files =
            crate::blocking(move || Files::open(&data_dir).map_err(ServiceError::files)).await?;
        let node = match (store.cluster(), config.node.clone()) {
            (Some(cluster), Some(settings)) => {
                // Other nodes wait for ends, and have nothing of this one's memory.
                config.waited_in_memory = false;
                let slots = u32::try_from(config.concurrency).unwrap_or(u32::MAX);
                Some(Arc::new(Node::new(cluster.clone(), NewSession { slots, ..settings })))
            }
            (None, _) => None,
            (Some(_), None) => {
                return Err(ServiceError::internal("the node of a cluster has no settings"));
            }
        };
        if let Some(node) = &node {
            node.begin_session().await?;
        }
        let records = crate::blocking(move || {
            let signing_key = store.signing_key()?;
            Ok(Records::new(store, signing_key))
        })
        .await?;
        let core = Arc::new(Core::new(config, launcher, records, node, files));
        core.recover().await?;
        crate::background::start(&core);
        if let Some(node) = &core.node {
            crate::cluster::start(&core, node);
        }
        core.dispatch();
        core.prewarm().await;
        core.start_prepared();
        Ok(Self { core })
    }

    /// The key that signs what the service gives out.
    #[must_use]
    pub fn signing_key(&self) -> &SigningKey {
        self.core.records.signing_key()
    }

    /// Accepts an execution, in a kept sandbox if one is named, otherwise in one of its own: it is
    /// durable when this returns.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; nothing was accepted then.
    pub async fn submit(
        &self,
        subject: &Subject,
        request: ExecutionRequest,
        sandbox: Option<SandboxRef>,
        key: Option<IdempotencyKey>,
    ) -> Result<Submitted, ServiceError> {
        self.core.clone().submit(subject.clone(), request, key, sandbox, false).await
    }

    /// The same for a caller who waits for the end: in a kept sandbox it is not stored where the service
    /// [keeps such executions in memory](ServiceConfig::waited_in_memory).
    ///
    /// # Errors
    ///
    /// As of [`submit`](Self::submit).
    pub async fn submit_waited(
        &self,
        subject: &Subject,
        request: ExecutionRequest,
        sandbox: Option<SandboxRef>,
        key: Option<IdempotencyKey>,
    ) -> Result<Submitted, ServiceError> {
        self.core.clone().submit(subject.clone(), request, key, sandbox, true).await
    }

    /// Cancels an execution, and gives it as it is then: one that waited has ended, one that runs
    /// ends soon, and one that has ended is not changed. Once more kills it at once.
    ///
    /// # Errors
    ///
    /// As of [`wait`](Self::wait).
    pub async fn cancel(
        &self,
        subject: &Subject,
        id: &str,
    ) -> Result<StoredExecution, ServiceError> {
        let Some(live) = self.core.find_live(subject, id) else {
            return self.core.clone().cancel_elsewhere(subject, id).await;
        };
        // First, for one that is just about to run.
        live.cancel.cancel(CancelCause::Caller);
        if let Some(waiting) = self.core.unqueue(&live) {
            // It goes on if the caller does not wait.
            _ = crate::spawn(self.core.clone().cancel_waiting(waiting)).await;
        }
        Ok(live.view())
    }

    /// A page of a subject's executions, the latest first.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn list(
        &self,
        subject: &Subject,
        query: ExecutionQuery,
    ) -> Result<ExecutionList, ServiceError> {
        let of = subject.clone();
        self.core.records.list(subject, move |store| store.list(&of, &query)).await
    }

    /// A page of the executions of this subject or of all, each with its subject: for who administers the service.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn list_of(
        &self,
        caller: &Subject,
        subject: Option<Subject>,
        query: ExecutionQuery,
    ) -> Result<ExecutionList, ServiceError> {
        self.core.records.list(caller, move |store| store.page(subject.as_ref(), &query)).await
    }

    /// The files that an execution left.
    ///
    /// # Errors
    ///
    /// [`ServiceError::not_ended`] before its end; as of [`wait`](Self::wait).
    pub async fn files(&self, subject: &Subject, id: &str) -> Result<FileList, ServiceError> {
        let core = self.core.with_files(subject, id).await?;
        let id = id.to_owned();
        crate::blocking(move || core.files.list(&id)).await
    }

    /// Opens a file that an execution left, relative to its io dir.
    ///
    /// # Errors
    ///
    /// [`ServiceError::file_not_found`] and [`ServiceError::file_refused`]; as of
    /// [`files`](Self::files).
    pub async fn open_file(
        &self,
        subject: &Subject,
        id: &str,
        path: &[u8],
    ) -> Result<OpenFile, ServiceError> {
        let core = self.core.with_files(subject, id).await?;
        let (id, path) = (id.to_owned(), path.to_vec());
        crate::blocking(move || core.files.open_file(&id, &path)).await
    }

    /// Replaces the bounds of each subject.
    pub fn set_quotas(&self, quotas: Quotas) {
        self.core.set_quotas(quotas);
    }

    /// What a subject has used, and has now.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn usage(&self, subject: &Subject) -> Result<UsageTotals, ServiceError> {
        // First what is in progress: what ends meanwhile is in the totals.
        let (queued, running, sandboxes) = self.core.counts_of(subject).await?;
        let of = subject.clone();
        let totals = self.core.records.call(move |store| store.usage(&of)).await?;
        let stored_bytes = self.core.stored_bytes(subject).await?;
        Ok(UsageTotals { queued, running, sandboxes, stored_bytes, ..totals })
    }

    /// What it has done since it started.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let state = self.core.state();
        let (queued, running) = (state.schedule.waiting(), state.schedule.running());
        drop(state);
        let queued = self.core.node.as_ref().map_or(queued as u64, |node| node.waiting());
        let kept = &self.core.kept;
        Counters {
            queued,
            running: running as u64,
            sandboxes: kept.count() as u64,
            paused: kept.sum(|info| u64::from(info.paused_until.is_some())),
            paused_memory: kept.sum(|info| info.paused_memory.unwrap_or_default()),
            processes: kept.sum(|info| info.processes as u64),
            pool: self.core.launcher.pool(),
            ..self.core.counting.so_far()
        }
    }

    /// Whether it can do its work.
    pub async fn health(&self) -> Health {
        const PING_TIMEOUT: Duration = Duration::from_secs(5);
        let core = &self.core;
        let engine = async {
            tokio::time::timeout(PING_TIMEOUT, core.launcher.ping())
                .await
                .unwrap_or_else(|_| Err("the engine does not answer".to_owned()))
        };
        let store = async {
            tokio::time::timeout(PING_TIMEOUT, core.records.check())
                .await
                .unwrap_or_else(|_| Err("the store does not answer".to_owned()))
        };
        let (engine, store) = tokio::join!(engine, store);
        let accepting = match core.is_accepting.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err("it is being shut down".to_owned()),
        };
        let disk = core.check_disk().map_err(|error| error.to_string());
        let check = |(name, result): (&str, Result<(), String>)| HealthCheck {
            name: name.to_owned(),
            ok: result.is_ok(),
            problem: result.err(),
        };
        let pool = core.launcher.pool().map(|pool| ("pool", has_begun(&pool)));
        let session = core.node.as_ref().map(|node| ("session", node.check()));
        let checks =
            [("accepting", accepting), ("disk", disk), ("engine", engine), ("store", store)];
        let checks: Vec<_> = checks.into_iter().chain(pool).chain(session).map(check).collect();
        Health { ready: checks.iter().all(|check| check.ok), checks }
    }
}

/// Whether a pool has begun to do its work.
fn has_begun(pool: &PoolStats) -> Result<(), String> {
    let has_begun = pool.target == 0 || pool.filled > 0 || pool.claims > 0;
    match (has_begun, pool.failed) {
        (true, _) => Ok(()),
        (false, 0) => Err("no sandbox is ready yet".to_owned()),
        (false, _) => Err("no sandbox could be started ahead".to_owned()),
    }
}
