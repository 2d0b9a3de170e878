//! The core of a service: what waits and runs, and what everything in this crate needs to know of it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sandbox_api::SandboxSpec;
use sandbox_api::service::Subject;
use sandbox_controller::PreparedSandbox;
use tokio::sync::{Notify, RwLock, oneshot};

use crate::cluster::node::Node;
use crate::config::{Quotas, ServiceConfig};
use crate::counters::Counting;
use crate::disk_usage::SubjectDirs;
use crate::error::ServiceError;
use crate::files::Files;
use crate::first_uses::FirstUses;
use crate::launcher::{Guest, Launcher};
use crate::live::{Live, PendingExecution};
use crate::lock;
use crate::rate::Rates;
use crate::records::Records;
use crate::room::Pending;
use crate::sandboxes::prepared::PreparedSandboxes;
use crate::sandboxes::registry::KeptSandboxes;
use crate::schedule::{Bounds, Schedule};
use crate::turns::Turns;

/// What all parts of a service share.
pub(crate) struct Core {
    pub config: ServiceConfig,
    pub launcher: Arc<dyn Launcher>,
    pub records: Records,
    /// What it is in a cluster.
    pub node: Option<Arc<Node>>,
    pub files: Arc<Files>,
    pub counting: Counting,
    pub kept: KeptSandboxes,
    pub prepared: PreparedSandboxes,
    /// Who reads the files of executions.
    pub readers: Turns,
    pub previews_used: FirstUses,
    pub subject_dirs: SubjectDirs,
    pub pending: Pending,
    state: Mutex<State>,
    /// Events wait for the store.
    pub events_due: Arc<Notify>,
    /// Something has ended that may have to be removed some day.
    pub ended: Arc<Notify>,
    pub is_accepting: AtomicBool,
    /// When it was started.
    pub since: Instant,
    /// For those who have a script checked.
    pub checks: Turns,
    /// Held while something is accepted. A shutdown waits for it, so that it knows what runs.
    pub accepts: RwLock<()>,
}

/// The background tasks end when they find that it is gone.
impl Drop for Core {
    fn drop(&mut self) {
        for task in [&self.events_due, &self.ended, &self.kept.changed] {
            task.notify_one();
        }
    }
}

/// What changes of it.
pub(crate) struct State {
    pub schedule: Schedule<Queued>,
    pub live: HashMap<String, Arc<Live>>,
    /// The ids of those that have ended and are not stored, the first ended first.
    ended_in_memory: VecDeque<String>,
    /// The ids of those that are being accepted by a node of a cluster.
    pub accepting: HashSet<String>,
    /// Keys whose requests are just being accepted.
    pub keys: HashSet<(Subject, String)>,
    pub rates: Rates,
    quotas: Quotas,
}

impl Core {
    /// A service that does nothing yet.
    pub fn new(
        config: ServiceConfig,
        launcher: Arc<dyn Launcher>,
        records: Records,
        node: Option<Arc<Node>>,
        files: Files,
    ) -> Self {
        let quotas = config.quotas;
        let counting = Counting::new(config.figures_by_subject);
        let prepared = PreparedSandboxes::new(&config.prepared);
        let state = State {
            schedule: Schedule::new(bounds(&config, &quotas)),
            live: HashMap::new(),
            ended_in_memory: VecDeque::new(),
            accepting: HashSet::new(),
            keys: HashSet::new(),
            rates: Rates::default(),
            quotas,
        };
        Self {
            config,
            launcher,
            records,
            node,
            files: Arc::new(files),
            counting,
            kept: KeptSandboxes::default(),
            prepared,
            // Each reader has a thread.
            readers: Turns::new(16, 4, Duration::from_secs(1)),
            previews_used: FirstUses::default(),
            subject_dirs: SubjectDirs::default(),
            pending: Pending::default(),
            state: Mutex::new(state),
            events_due: Arc::default(),
            ended: Arc::default(),
            is_accepting: AtomicBool::new(true),
            since: Instant::now(),
            // Each check is a process of this machine.
            checks: Turns::new(4, 1, Duration::from_secs(5)),
            accepts: RwLock::default(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn find_live(&self, subject: &Subject, id: &str) -> Option<Arc<Live>> {
        self.state().live.get(id).filter(|live| live.subject == *subject).cloned()
    }

    /// How many executions, and runs that end with their callers, run here.
    pub fn running(&self) -> usize {
        self.state().schedule.running()
    }

    /// The ids of what is known here, or is being accepted.
    pub fn known_ids(&self) -> HashSet<String> {
        let state = self.state();
        state.live.keys().chain(&state.accepting).cloned().collect()
    }

    /// Everything that waits or runs.
    pub fn all_live(&self) -> Vec<Arc<Live>> {
        self.state().live.values().filter(|live| !live.has_ended()).cloned().collect()
    }

    pub fn quotas(&self) -> Quotas {
        self.state().quotas
    }

    pub fn set_quotas(self: &Arc<Self>, quotas: Quotas) {
        let mut state = self.state();
        state.quotas = quotas;
        state.schedule.set_bounds(bounds(&self.config, &quotas));
        drop(state);
        self.dispatch();
    }

    /// Whether something of a subject runs, or a front end keeps a sandbox of it.
    pub fn is_active(&self, subject: &Subject) -> bool {
        self.state().schedule.of(subject).1 > 0 || self.kept.has_attached(subject)
    }

    /// The spec with the secrets that are added to requests of the sandbox.
    pub fn injected(&self, subject: Option<&Subject>, mut spec: SandboxSpec) -> SandboxSpec {
        let own = subject.and_then(|subject| self.config.inject.get(subject.as_str()));
        match spec.supports_exec() {
            true => spec.inject.extend(own.into_iter().flatten().cloned()),
            // Only programs have a network.
            false => spec.inject.clear(),
        }
        spec
    }

    /// Starts a sandbox for a subject.
    pub async fn launch(
        &self,
        subject: &Subject,
        spec: SandboxSpec,
    ) -> Result<Arc<dyn Guest>, ServiceError> {
        let since = Instant::now();
        let sandbox = PreparedSandbox::from(self.injected(Some(subject), spec))
            .permission(self.config.permission.clone());
        let launched = self.launcher.launch(sandbox).await;
        if launched.is_ok() {
            self.counting.started(subject, since.elapsed());
        }
        launched
    }

    /// Starts what may run now.
    pub fn dispatch(self: &Arc<Self>) {
        self.dispatch_own();
        if let Some(node) = &self.node {
            node.slot_freed();
        }
    }

    /// Refuses what would begin now, if the service is being shut down.
    pub fn check_accepting(&self) -> Result<(), ServiceError> {
        match self.is_accepting.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(ServiceError::shutting_down()),
        }
    }

    /// Starts what waits here and may run now.
    pub fn dispatch_own(self: &Arc<Self>) {
        loop {
            if !self.is_accepting.load(Ordering::Acquire) {
                return;
            }
            let Some((subject, _, queued)) = self.state().schedule.next() else { return };
            match queued {
                Queued::Execution(waiting) => self.begin_work(waiting),
                // If the waiter is gone, it is returned at once.
                Queued::Attached(granted) => {
                    _ = granted.send(RunPermit { core: self.clone(), subject });
                }
            }
        }
    }

    /// An execution has ended, and its end is as durable as it becomes. One that is not stored is found
    /// until as many others have ended as run at one time.
    pub fn retire(self: &Arc<Self>, live: &Live, held_slot: HeldSlot) {
        let mut state = self.state();
        match live.in_memory.is_some() {
            true => state.ended_in_memory.push_back(live.id.clone()),
            // In a cluster it may have come back meanwhile.
            false => {
                if state.live.get(&live.id).is_some_and(|it| std::ptr::eq(&**it, live)) {
                    state.live.remove(&live.id);
                }
            }
        }
        if state.ended_in_memory.len() > self.config.concurrency
            && let Some(first) = state.ended_in_memory.pop_front()
        {
            state.live.remove(&first);
        }
        if held_slot == HeldSlot::Yes {
            state.schedule.done(&live.subject);
        }
        drop(state);
        self.ended.notify_one();
        self.dispatch();
    }

    /// Something that had a place among what runs is over.
    pub fn release_run(self: &Arc<Self>, subject: &Subject) {
        self.state().schedule.done(subject);
        self.dispatch();
    }

    /// The executions that run or are about to, and the ids of those that wait.
    pub fn running_and_queued(&self) -> (Vec<Arc<Live>>, Vec<String>) {
        let state = self.state();
        let is_execution = |id: &&str| state.live.contains_key(*id);
        let queued: HashSet<&str> = state.schedule.ids().filter(is_execution).collect();
        let running = |live: &&Arc<Live>| !queued.contains(&*live.id) && !live.has_ended();
        let running = state.live.values().filter(running).cloned();
        (running.collect(), queued.iter().map(|&id| id.to_owned()).collect())
    }

    /// Takes an execution out of the queue; `None` if it does not wait.
    pub fn unqueue(&self, live: &Live) -> Option<PendingExecution> {
        match self.state().schedule.remove(&live.subject, &live.id) {
            Some(Queued::Execution(waiting)) => Some(waiting),
            Some(Queued::Attached(_)) | None => None,
        }
    }

    /// Queues what was accepted before this service started.
    pub fn restore(&self, waiting: PendingExecution) {
        let live = waiting.live.clone();
        let mut state = self.state();
        state.live.insert(live.id.clone(), live.clone());
        state.schedule.restore(&live.subject, live.id.clone(), Queued::Execution(waiting));
    }

    /// The bytes that are stored of a subject, with those that are about to be.
    pub async fn stored_bytes(self: &Arc<Self>, subject: &Subject) -> Result<u64, ServiceError> {
        let pending = self.pending.bytes_of(subject);
        Ok(self.kept_bytes(subject).await?.saturating_add(pending))
    }

    /// The bytes that are kept of a subject now: its results, and all files.
    pub async fn kept_bytes(self: &Arc<Self>, subject: &Subject) -> Result<u64, ServiceError> {
        let of = subject.clone();
        let results = self.records.call(move |store| store.stored_bytes(&of)).await?;
        let kept = self.kept.bytes_of(subject, &self.files).await;
        let directory = self.config.subject_dirs().join(subject.directory_name());
        let is_in_use = self.is_active(subject);
        let own = self.subject_dirs.bytes_of(subject, directory, is_in_use).await;
        Ok(results.saturating_add(kept).saturating_add(own))
    }

    /// Removes the files of an execution or a sandbox.
    pub async fn remove_files(&self, id: &str) -> Result<(), ServiceError> {
        let (files, id) = (self.files.clone(), id.to_owned());
        crate::blocking(move || files.remove(&id).map_err(ServiceError::files)).await
    }

    /// Itself, if this execution has ended.
    pub async fn with_files(
        self: &Arc<Self>,
        subject: &Subject,
        id: &str,
    ) -> Result<Arc<Self>, ServiceError> {
        // Its end is published before it leaves the list.
        match self.find_live(subject, id) {
            Some(live) if !live.has_ended() => return Err(ServiceError::not_ended(id)),
            Some(live) if live.sandbox.is_some() => return Err(ServiceError::no_files(id)),
            _ => {}
        }
        let execution = self.records.stored(subject, id).await?;
        if execution.summary.sandbox.is_some() {
            return Err(ServiceError::no_files(id));
        }
        if execution.has_files {
            let (core, id) = (self.clone(), id.to_owned());
            crate::blocking(move || core.files.check(&id)).await?;
        }
        Ok(self.clone())
    }
}

/// Whether an execution had a place among those that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldSlot {
    /// It had.
    Yes,
    /// It only waited.
    No,
}

/// The queued work.
pub(crate) enum Queued {
    /// An execution of this service.
    Execution(PendingExecution),
    /// What ends with its caller.
    Attached(oneshot::Sender<RunPermit>),
}

/// A place among what runs, for what ends with its caller. It counts as a running execution of its subject
/// until it is dropped.
pub(crate) struct RunPermit {
    core: Arc<Core>,
    subject: Subject,
}

impl Drop for RunPermit {
    fn drop(&mut self) {
        self.core.subject_dirs.changed(&self.subject);
        self.core.release_run(&self.subject);
    }
}

const fn bounds(config: &ServiceConfig, quotas: &Quotas) -> Bounds {
    Bounds {
        running: config.concurrency,
        running_of_one: quotas.concurrency,
        waiting: config.max_queued,
    }
}
