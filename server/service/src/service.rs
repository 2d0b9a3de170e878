//! The service: executions that are accepted, wait for their turn, run, and are kept.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sandbox_api::service::{
    EventBody, Execution, ExecutionDocuments, ExecutionKind, ExecutionList, ExecutionRequest,
    ExecutionStatus, FileList, Health, HealthCheck, Subject, Time, UsageTotals,
};
use sandbox_api::{ErrorKind, Failure, Status};
use sandbox_controller::Controller;
use sandbox_dirfd::{hex, random_hex};
use sandbox_store::{Accepted, ExecutionQuery, NewExecution, Store, StoredExecution};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, RwLock, watch};
use tracing::Instrument as _;

use crate::config::{Quotas, ServiceConfig};
use crate::counters::{Counters, Counting};
use crate::error::ServiceError;
use crate::feed::Feed;
use crate::files::{Files, OpenFile};
use crate::kept::KeptSandboxes;
use crate::live::{Live, Phase, Queued, Waiting, Waits, span};
use crate::plan::{plan, plan_in_sandbox};
use crate::rate::Rates;
use crate::readers::Readers;
use crate::records::Records;
use crate::runner::{Cancel, Runner};
use crate::schedule::{Bounds, Schedule};
use crate::turn::{SubjectDirs, Turn};

/// The largest request that stays in memory while it waits; others are read from the store again.
const MAX_WAITING_BYTES: usize = 64 << 10;
/// How many executions a page has at most.
const MAX_PAGE: usize = 200;
/// How many a page has that asks for no number.
const DEFAULT_PAGE: usize = 50;
/// The longest idempotency key.
const MAX_KEY_BYTES: usize = 255;

/// A service. Clones are the same one.
#[derive(Clone)]
pub struct Service {
    pub(crate) core: Arc<Core>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Service").finish_non_exhaustive()
    }
}

/// What makes a repeated request the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// A key of a caller's choice, unique among those of its subject.
    ///
    /// # Errors
    ///
    /// If it is empty, longer than 255 bytes, or has something else than visible ASCII characters.
    pub fn new(key: impl Into<String>) -> Result<Self, ServiceError> {
        let key = key.into();
        let is_valid = (1..=MAX_KEY_BYTES).contains(&key.len());
        match is_valid && key.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(key)),
            false => Err(ServiceError::invalid(
                "Idempotency-Key",
                "a key has 1 to 255 visible ASCII characters",
            )),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A request that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// The execution's id.
    pub id: String,
    /// Whether it is new: otherwise its key was used before, with the same request.
    pub is_new: bool,
}

/// Which executions a list has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListQuery {
    /// Only those with one of these; any if it is empty.
    pub statuses: Vec<ExecutionStatus>,
    /// Only those of this kind.
    pub kind: Option<ExecutionKind>,
    /// Only those in this kept sandbox.
    pub sandbox: Option<String>,
    /// Only those that were accepted at this time or later.
    pub created_from: Option<Time>,
    /// Only those that were accepted before this time.
    pub created_before: Option<Time>,
    /// Only those with these members in their metadata.
    pub metadata: Vec<(String, String)>,
    /// At most so many; 50 if it is not given, never more than 200.
    pub limit: Option<usize>,
    /// What the page before ended with.
    pub cursor: Option<String>,
}

pub(crate) struct Core {
    pub config: ServiceConfig,
    pub runner: Arc<dyn Runner>,
    pub records: Records,
    pub files: Files,
    pub counting: Counting,
    pub kept: KeptSandboxes,
    pub readers: Readers,
    pub subject_dirs: SubjectDirs,
    state: Mutex<State>,
    /// Events wait for the store.
    pub events_due: Arc<Notify>,
    /// Something has ended that may have to be removed some day.
    pub ended: Arc<Notify>,
    pub is_accepting: AtomicBool,
    /// Held while something is accepted. A shutdown waits for it, so that it knows what runs.
    pub accepts: RwLock<()>,
}

/// The tasks beside requests end when they find that it is gone.
impl Drop for Core {
    fn drop(&mut self) {
        for task in [&self.events_due, &self.ended, &self.kept.changed] {
            task.notify_one();
        }
    }
}

struct State {
    schedule: Schedule<Queued>,
    live: HashMap<String, Arc<Live>>,
    /// Keys whose requests are just being accepted.
    keys: HashSet<(Subject, String)>,
    rates: Rates,
    quotas: Quotas,
}

/// A day, as quotas have it.
const DAY_MILLIS: i64 = 24 * 3600 * 1000;

impl Core {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn find_live(&self, subject: &Subject, id: &str) -> Option<Arc<Live>> {
        self.state().live.get(id).filter(|live| live.subject == *subject).cloned()
    }

    /// Everything that waits or runs.
    pub fn all_live(&self) -> Vec<Arc<Live>> {
        self.state().live.values().cloned().collect()
    }

    pub fn quotas(&self) -> Quotas {
        self.state().quotas
    }

    /// Whether something of a subject runs, or a front end keeps a sandbox of it.
    pub fn is_active(&self, subject: &Subject) -> bool {
        self.state().schedule.of(subject).1 > 0 || self.kept.has_place(subject)
    }

    /// Starts what may run now.
    pub fn dispatch(self: &Arc<Self>) {
        loop {
            if !self.is_accepting.load(Ordering::Acquire) {
                return;
            }
            let Some((subject, _, queued)) = self.state().schedule.next() else { return };
            match queued {
                Queued::Execution(waiting) => {
                    let span = waiting.live.span.clone();
                    _ = tokio::spawn(self.clone().work(waiting).instrument(span));
                }
                // Where nobody waits for it any more it is given back at once.
                Queued::Turn(granted) => _ = granted.send(Turn::new(self.clone(), subject)),
            }
        }
    }

    /// An execution has ended, and its end is durable.
    pub fn retire(self: &Arc<Self>, live: &Live, has_run: HasRun) {
        let mut state = self.state();
        state.live.remove(&live.id);
        if has_run == HasRun::Yes {
            state.schedule.done(&live.subject);
        }
        drop(state);
        self.ended.notify_one();
        self.dispatch();
    }

    /// A turn that was granted is over.
    pub fn end_turn(self: &Arc<Self>, subject: &Subject) {
        self.state().schedule.done(subject);
        self.dispatch();
    }

    /// The executions that run or are about to, and the ids of those that wait.
    pub fn running_and_queued(&self) -> (Vec<Arc<Live>>, Vec<String>) {
        let state = self.state();
        let is_execution = |id: &&str| state.live.contains_key(*id);
        let queued: HashSet<&str> = state.schedule.ids().filter(is_execution).collect();
        let running = state.live.values().filter(|live| !queued.contains(&*live.id)).cloned();
        (running.collect(), queued.iter().map(|&id| id.to_owned()).collect())
    }

    /// Takes an execution out of the queue; `None` if it does not wait.
    fn unqueue(&self, live: &Live) -> Option<Waiting> {
        match self.state().schedule.remove(&live.subject, &live.id) {
            Some(Queued::Execution(waiting)) => Some(waiting),
            Some(Queued::Turn(_)) | None => None,
        }
    }

    /// Takes a turn that nobody waits for any more out of the queue.
    pub fn unqueue_turn(&self, subject: &Subject, id: &str) {
        self.state().schedule.remove(subject, id);
    }
}

/// Whether an execution had a place among those that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HasRun {
    /// It had.
    Yes,
    /// It only waited.
    No,
}

impl Service {
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
        config: ServiceConfig,
        runner: Arc<dyn Runner>,
        store: Store,
    ) -> Result<Self, ServiceError> {
        let data_dir = config.data_dir.clone();
        let files = crate::blocking(move || {
            Files::open(&data_dir).map_err(|error| ServiceError::Files(Arc::new(error)))
        })
        .await?;
        let quotas = config.quotas;
        let state = State {
            schedule: Schedule::new(bounds(&config, &quotas)),
            live: HashMap::new(),
            keys: HashSet::new(),
            rates: Rates::default(),
            quotas,
        };
        let core = Arc::new(Core {
            config,
            runner,
            records: Records::new(store),
            files,
            counting: Counting::default(),
            kept: KeptSandboxes::default(),
            readers: Readers::default(),
            subject_dirs: SubjectDirs::default(),
            state: Mutex::new(state),
            events_due: Arc::default(),
            ended: Arc::default(),
            is_accepting: AtomicBool::new(true),
            accepts: RwLock::default(),
        });
        core.recover().await?;
        crate::background::start(&core);
        core.dispatch();
        core.prewarm().await;
        Ok(Self { core })
    }

    /// Accepts an execution with a sandbox of its own: it is durable when this returns.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; nothing was accepted then.
    pub async fn submit(
        &self,
        subject: &Subject,
        request: ExecutionRequest,
        key: Option<IdempotencyKey>,
    ) -> Result<Submitted, ServiceError> {
        self.core.clone().submit(subject.clone(), request, key, None).await
    }

    /// Accepts an execution in a kept sandbox. Without a generation it is whatever generation the
    /// sandbox has then.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; nothing was accepted then.
    pub async fn submit_in(
        &self,
        subject: &Subject,
        sandbox: &str,
        generation: Option<u64>,
        request: ExecutionRequest,
        key: Option<IdempotencyKey>,
    ) -> Result<Submitted, ServiceError> {
        let place = SandboxTarget { sandbox: sandbox.to_owned(), generation };
        self.core.clone().submit(subject.clone(), request, key, Some(place)).await
    }

    /// An execution as it is now.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NotFound`] if this subject has none of this id.
    pub async fn execution(
        &self,
        subject: &Subject,
        id: &str,
    ) -> Result<Arc<Execution>, ServiceError> {
        match self.core.find_live(subject, id) {
            Some(live) => Ok(live.view()),
            None => self.core.stored(subject, id).await,
        }
    }

    /// An execution when it has ended, or as it is after this time.
    ///
    /// # Errors
    ///
    /// As of [`execution`](Self::execution).
    pub async fn wait(
        &self,
        subject: &Subject,
        id: &str,
        up_to: Duration,
    ) -> Result<Arc<Execution>, ServiceError> {
        let Some(live) = self.core.find_live(subject, id) else {
            return self.core.stored(subject, id).await;
        };
        live.ended(up_to).await;
        Ok(live.view())
    }

    /// The same with its result document as it is stored, which is not read.
    ///
    /// # Errors
    ///
    /// As of [`execution`](Self::execution).
    pub async fn wait_for_document(
        &self,
        subject: &Subject,
        id: &str,
        up_to: Duration,
    ) -> Result<StoredExecution, ServiceError> {
        if let Some(live) = self.core.find_live(subject, id) {
            live.ended(up_to).await;
            if !live.has_ended() {
                return Ok(StoredExecution { summary: live.summary(), document: None });
            }
        }
        self.core.records.stored(subject, id).await
    }

    /// Cancels an execution, and gives it as it is then: one that waited has ended, one that runs
    /// ends soon, and one that has ended is not changed. Once more kills it at once.
    ///
    /// # Errors
    ///
    /// As of [`execution`](Self::execution).
    pub async fn cancel(
        &self,
        subject: &Subject,
        id: &str,
    ) -> Result<Arc<Execution>, ServiceError> {
        let Some(live) = self.core.find_live(subject, id) else {
            return self.core.stored(subject, id).await;
        };
        // First, for one that is just about to run.
        live.cancel();
        if let Some(waiting) = self.core.unqueue(&live) {
            let core = self.core.clone();
            // It goes on if the caller does not wait.
            let cancelled = tokio::spawn(async move { core.cancel_waiting(waiting).await });
            _ = cancelled.await;
        }
        Ok(live.view())
    }

    /// A page of a subject's executions, the latest first.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Invalid`] if the cursor is none of this list.
    pub async fn list(
        &self,
        subject: &Subject,
        query: ListQuery,
    ) -> Result<ExecutionList, ServiceError> {
        let limit = query.limit.unwrap_or(DEFAULT_PAGE).clamp(1, MAX_PAGE);
        let cursor = query.cursor.map(|cursor| cursor.parse()).transpose();
        let cursor =
            cursor.map_err(|_| ServiceError::invalid("cursor", "it is the cursor of no page"))?;
        let query = ExecutionQuery {
            statuses: query.statuses,
            kind: query.kind,
            sandbox: query.sandbox,
            created_from: query.created_from,
            created_before: query.created_before,
            metadata: query.metadata,
            cursor,
            limit,
        };
        self.core.records.list(subject, query).await
    }

    /// The files that an execution left.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NotEnded`] before its end; as of [`execution`](Self::execution).
    pub async fn files(&self, subject: &Subject, id: &str) -> Result<FileList, ServiceError> {
        let core = self.core.with_files(subject, id).await?;
        let id = id.to_owned();
        crate::blocking(move || core.files.list(&id)).await
    }

    /// Opens a file that an execution left, relative to its io dir.
    ///
    /// # Errors
    ///
    /// [`ServiceError::FileNotFound`] and [`ServiceError::FileRefused`]; as of
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
        let mut state = self.core.state();
        state.quotas = quotas;
        state.schedule.set_bounds(bounds(&self.core.config, &quotas));
        drop(state);
        self.core.dispatch();
    }

    /// What a subject has used, and has now.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn usage(&self, subject: &Subject) -> Result<UsageTotals, ServiceError> {
        let totals = self.core.records.usage(subject).await?;
        let stored_bytes = self.core.stored_bytes(subject).await?;
        let (queued, running) = self.core.state().schedule.of(subject);
        let sandboxes = self.core.kept.count_of(subject) as u64;
        let (queued, running) = (queued as u64, running as u64);
        Ok(UsageTotals { queued, running, sandboxes, stored_bytes, ..totals })
    }

    /// What it has done since it started.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let state = self.core.state();
        let (queued, running) = (state.schedule.waiting(), state.schedule.running());
        drop(state);
        Counters {
            queued: queued as u64,
            running: running as u64,
            sandboxes: self.core.kept.count() as u64,
            ..self.core.counting.so_far()
        }
    }

    /// Whether it can do its work.
    pub async fn health(&self) -> Health {
        const PING_TIMEOUT: Duration = Duration::from_secs(5);
        let core = &self.core;
        let engine = async {
            tokio::time::timeout(PING_TIMEOUT, core.runner.ping())
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
        let check = |(name, result): (&str, Result<(), String>)| HealthCheck {
            name: name.to_owned(),
            ok: result.is_ok(),
            problem: result.err(),
        };
        let pool = core.runner.pool().map(|pool| ("pool", pool));
        let checks = [("accepting", accepting), ("engine", engine), ("store", store)];
        let checks: Vec<_> = checks.into_iter().chain(pool).map(check).collect();
        Health { ready: checks.iter().all(|check| check.ok), checks }
    }
}

/// The kept sandbox that an execution runs in.
pub(crate) struct SandboxTarget {
    pub sandbox: String,
    pub generation: Option<u64>,
}

const fn bounds(config: &ServiceConfig, quotas: &Quotas) -> Bounds {
    Bounds {
        running: config.concurrency,
        running_of_one: quotas.concurrency,
        waiting: config.max_queued,
    }
}

/// A key that is in use while its request is being accepted.
struct KeyInUse {
    core: Arc<Core>,
    key: (Subject, String),
}

impl Drop for KeyInUse {
    fn drop(&mut self) {
        self.core.state().keys.remove(&self.key);
    }
}

/// A place in the queue, or among what runs, that is not used yet.
pub(crate) struct Reserved {
    core: Arc<Core>,
    subject: Subject,
    of: Reservation,
}

/// What is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reservation {
    Queue,
    Run,
    /// Nothing any more: it was used.
    Used,
}

impl Reserved {
    /// Makes it a place among what runs, if that which it is for would be the next to run.
    fn begin(&mut self) -> bool {
        let begins = self.core.state().schedule.begin(&self.subject);
        if begins {
            self.of = Reservation::Run;
        }
        begins
    }

    /// Queues an execution, and starts what may run; starts it at once in a place among what runs.
    fn fill_with(mut self, waiting: Waiting) {
        match self.of {
            Reservation::Run => {
                self.of = Reservation::Used;
                let live = waiting.live.clone();
                let span = live.span.clone();
                self.core.state().live.insert(live.id.clone(), live);
                Counting::add(&self.core.counting.accepted);
                _ = tokio::spawn(self.core.clone().work(waiting).instrument(span));
            }
            Reservation::Queue | Reservation::Used => {
                self.fill(waiting.live.id.clone(), Queued::Execution(waiting));
            }
        }
    }

    /// Queues what it was reserved for, and starts what may run.
    pub fn fill(mut self, id: String, queued: Queued) {
        self.of = Reservation::Used;
        let mut state = self.core.state();
        if let Queued::Execution(waiting) = &queued {
            state.live.insert(id.clone(), waiting.live.clone());
        }
        state.schedule.fill(&self.subject, id, queued);
        drop(state);
        Counting::add(&self.core.counting.accepted);
        self.core.dispatch();
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        match self.of {
            Reservation::Queue => self.core.state().schedule.release(&self.subject),
            Reservation::Run => self.core.end_turn(&self.subject),
            Reservation::Used => {}
        }
    }
}

impl Core {
    async fn submit(
        self: Arc<Self>,
        subject: Subject,
        request: ExecutionRequest,
        key: Option<IdempotencyKey>,
        place: Option<SandboxTarget>,
    ) -> Result<Submitted, ServiceError> {
        // A caller that goes away does not leave a request half accepted.
        let accepting = tokio::spawn(self.accept(subject, request, key, place).in_current_span());
        let failed = |_| ServiceError::Internal { detail: "a request could not be accepted" };
        accepting.await.map_err(failed)?
    }

    async fn accept(
        self: Arc<Self>,
        subject: Subject,
        mut request: ExecutionRequest,
        key: Option<IdempotencyKey>,
        place: Option<SandboxTarget>,
    ) -> Result<Submitted, ServiceError> {
        let _accepts = self.accepts.read().await;
        if !self.is_accepting.load(Ordering::Acquire) {
            return Err(ServiceError::ShuttingDown);
        }
        let _key = key.as_ref().map(|key| self.use_key(&subject, key)).transpose()?;
        let checked = request.clone();
        let secrets = std::mem::take(&mut request.secrets);
        let names: Vec<&str> = secrets.0.keys().map(String::as_str).collect();
        let sandbox = place.as_ref().map(|place| place.sandbox.as_str());
        let json = serde_json::to_string(&request)
            .map_err(|_| ServiceError::Internal { detail: "a request cannot be stored" })?;
        let generation = place.as_ref().and_then(|place| place.generation);
        let generation_text = generation.map(|generation| generation.to_string());
        let of = names.iter().copied().chain(sandbox).chain(generation_text.as_deref());
        let digest = digest(&json, of);
        if let Some(key) = &key
            && let Some(accepted) = self.records.find_key(&subject, key.as_str(), &digest).await?
        {
            return submitted(accepted);
        }
        // What was accepted before is found whatever has changed since.
        let (kind, plan) = match &place {
            Some(place) => {
                let supports_exec = self.kept.check(&subject, place)?.spec()?.supports_exec();
                (plan_in_sandbox(checked, supports_exec, &self.config)?.kind(), None)
            }
            None => {
                let plan = plan(checked, &self.config)?;
                (plan.work.kind(), Some(plan))
            }
        };
        let mut reserved = self.admit(&subject).await?;
        let (id, created_at, accepted) = (random_hex::<12>(), Time::now(), Instant::now());
        let has_secrets = !secrets.is_empty();
        let metadata = request.metadata.clone();
        let is_large = json.len() > MAX_WAITING_BYTES;
        // One in a kept sandbox runs when that is in use, and no earlier.
        let plan = plan.filter(|_| reserved.begin());
        let start = plan.as_ref().map(|plan| self.start_of(created_at, plan.spec.limits, None));
        let live = Arc::new(Live {
            span: span(&id, &subject),
            id: id.clone(),
            subject: subject.clone(),
            kind,
            created_at,
            accepted,
            metadata: metadata.clone(),
            sandbox: place.map(|place| place.sandbox),
            generation,
            used: OnceLock::new(),
            feed: Feed::new(0, self.config.max_event_bytes.as_u64()),
            cancel: watch::Sender::new(Cancel::No),
            phase: watch::Sender::new(
                start.map_or(Phase::Queued, |start| Phase::Running(start.at)),
            ),
        });
        // Its sandbox is started while it is stored. If it is not accepted, nothing runs in it.
        let begun = plan.map(|plan| Box::new(self.begin(&live, plan)));
        let record = NewExecution {
            id: id.clone(),
            subject: subject.clone(),
            kind,
            request: json,
            has_secrets,
            key: key.map(|key| (key.as_str().to_owned(), digest)),
            created_at,
            // One flush in place of two for what does not wait.
            start,
            metadata,
            sandbox: live.sandbox.clone(),
            generation,
        };
        match self.records.accept(record).await? {
            Accepted::New => {}
            other => return submitted(other),
        }
        live.feed.push(EventBody::Queued);
        if start.is_some() {
            live.feed.push(EventBody::Start);
        }
        let work = match begun {
            Some(begun) => Waits::Begun(begun),
            None => Waits::Queued { request: (!is_large).then(|| Box::new(request)), secrets },
        };
        reserved.fill_with(Waiting { live, work });
        self.events_due.notify_one();
        Ok(Submitted { id, is_new: true })
    }

    fn use_key(
        self: &Arc<Self>,
        subject: &Subject,
        key: &IdempotencyKey,
    ) -> Result<KeyInUse, ServiceError> {
        let key = (subject.clone(), key.as_str().to_owned());
        match self.state().keys.insert(key.clone()) {
            true => Ok(KeyInUse { core: self.clone(), key }),
            false => Err(ServiceError::KeyInFlight),
        }
    }

    /// A place in the queue, if the subject may have one.
    pub async fn admit(self: &Arc<Self>, subject: &Subject) -> Result<Reserved, ServiceError> {
        self.check_stored(subject).await?;
        let quotas = self.quotas();
        let now = Time::now();
        if let Some(quota) = quotas.cpu_per_day
            && self.records.cpu_of_day(subject, now).await? >= quota
        {
            Counting::add(&self.counting.refused_quota);
            let next_day = (now.unix_millis().div_euclid(DAY_MILLIS) + 1) * DAY_MILLIS;
            let retry_after = Some(Time::from_unix_millis(next_day).since(now));
            return Err(ServiceError::QuotaExceeded { what: "processor time", retry_after });
        }
        let mut state = self.state();
        if let Err(retry_after) = state.rates.take(subject, quotas.rate_per_minute, Instant::now())
        {
            drop(state);
            Counting::add(&self.counting.refused_quota);
            return Err(ServiceError::TooFast { retry_after });
        }
        if !state.schedule.reserve(subject) {
            let queued = state.schedule.waiting();
            drop(state);
            Counting::add(&self.counting.refused_full);
            return Err(ServiceError::Full { queued });
        }
        drop(state);
        let of = Reservation::Queue;
        Ok(Reserved { core: self.clone(), subject: subject.clone(), of })
    }

    /// The bytes that are kept of a subject now: its results, and all files.
    async fn stored_bytes(self: &Arc<Self>, subject: &Subject) -> Result<u64, ServiceError> {
        let results = self.records.stored_bytes(subject).await?;
        let kept = self.kept_bytes(subject).await;
        Ok(results.saturating_add(kept).saturating_add(self.subject_dir_bytes(subject).await))
    }

    /// Refuses what would store more for a subject that has as much as it may.
    pub async fn check_stored(self: &Arc<Self>, subject: &Subject) -> Result<(), ServiceError> {
        if let Some(stored) = self.quotas().stored
            && self.stored_bytes(subject).await? >= stored.as_u64()
        {
            Counting::add(&self.counting.refused_quota);
            return Err(ServiceError::QuotaExceeded { what: "stored bytes", retry_after: None });
        }
        Ok(())
    }

    /// Queues what was accepted before this service started.
    pub fn restore(&self, waiting: Waiting) {
        let live = waiting.live.clone();
        let mut state = self.state();
        state.live.insert(live.id.clone(), live.clone());
        state.schedule.restore(&live.subject, live.id.clone(), Queued::Execution(waiting));
    }

    /// An execution that has ended, from the store.
    pub async fn stored(
        self: &Arc<Self>,
        subject: &Subject,
        id: &str,
    ) -> Result<Arc<Execution>, ServiceError> {
        self.records.get(subject, id).await.map(Arc::new)
    }

    /// Itself, if this execution has ended.
    pub async fn with_files(
        self: &Arc<Self>,
        subject: &Subject,
        id: &str,
    ) -> Result<Arc<Self>, ServiceError> {
        // Its end is told before it leaves the list.
        let live = self.find_live(subject, id);
        if live.is_some_and(|live| !live.has_ended()) {
            return Err(ServiceError::NotEnded { id: id.to_owned() });
        }
        let execution = self.records.stored(subject, id).await?;
        match execution.summary.sandbox {
            Some(_) => Err(ServiceError::NoFiles { id: id.to_owned() }),
            None => Ok(self.clone()),
        }
    }
}

fn submitted(accepted: Accepted) -> Result<Submitted, ServiceError> {
    match accepted {
        Accepted::Same(id) => Ok(Submitted { id, is_new: false }),
        Accepted::Other => Err(ServiceError::KeyReused),
        Accepted::New => Err(ServiceError::Internal { detail: "a new request is not new" }),
    }
}

/// The digest of a request, to tell another one from the same one. It has the names of secrets and
/// not their values: a digest of something short can be guessed.
fn digest<'a>(json: &str, parts: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.update(json);
    hex(&hasher.finalize())
}

/// The document of an execution that did not run.
pub(crate) fn failed_document(
    kind: ExecutionKind,
    id: &str,
    status: Status,
    failure: Failure,
) -> Result<(String, u8), ServiceError> {
    let document = ExecutionDocuments::failed(kind, id, status, failure);
    let json = document
        .to_json()
        .map_err(|_| ServiceError::Internal { detail: "a result cannot be stored" })?;
    Ok((json, document.process_exit_code()))
}

/// Why an execution that was cancelled did not run.
pub(crate) fn cancelled() -> Failure {
    Failure::new(ErrorKind::Cancelled, "cancelled before it began", None)
}
