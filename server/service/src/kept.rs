//! Sandboxes that are kept: each has a name or an id, files that outlive its processes, and a
//! generation, which is the number of its container.
//!
//! A use starts a container if there is none, and renews the idle limit when it begins and when it
//! ends. Looking at a sandbox is no use. Each one has a lock of its own: uses that need a container
//! wait for one launch.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use sandbox_api::SandboxSpec;
use sandbox_api::service::{
    KeptSpec, SandboxList, SandboxRequest, SandboxStatus, SandboxView, Subject, Time,
};
use sandbox_dirfd::random_hex;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tracing::Instrument as _;

use crate::config::ServiceConfig;
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::plan::{metadata, plan_kept};
use crate::records::Records;
use crate::runner::Machine;
use crate::service::{Core, SandboxTarget, Service};
use crate::size::Size;

/// How many sandboxes that are gone are known as such.
const MAX_GONE: usize = 1024;
/// The longest name.
const MAX_NAME_BYTES: usize = 128;
/// The longest sleep, in case the clock is set.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// How long the removal of a container may take at a shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// All kept sandboxes.
#[derive(Default)]
pub(crate) struct KeptSandboxes {
    state: Mutex<State>,
    /// Something changed that may be due earlier.
    pub changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    by_id: HashMap<String, Arc<KeptSandbox>>,
    /// How many sandboxes front ends keep themselves.
    places: HashMap<Subject, usize>,
    gone: VecDeque<(Subject, String)>,
}

/// A sandbox as the store has it.
#[derive(Debug, Clone)]
pub(crate) struct KeptRecord {
    pub id: String,
    pub subject: Subject,
    pub name: Option<String>,
    pub spec: KeptSpec,
    pub metadata: Map<String, Value>,
    pub generation: u64,
    pub idle: Option<Duration>,
    pub created_at: Time,
    pub last_used_at: Time,
    pub expires_at: Time,
    pub max_expires_at: Time,
}

/// A kept sandbox.
pub(crate) struct KeptSandbox {
    record: KeptRecord,
    /// What it is started from; an error if this service does not allow it.
    spec: Result<SandboxSpec, ServiceError>,
    info: Mutex<Info>,
    /// Held while its container is started or removed.
    container: tokio::sync::Mutex<Option<Arc<dyn Machine>>>,
    is_deleted: AtomicBool,
    size: Size,
}

struct Info {
    generation: u64,
    /// It was started in place of an earlier one, and no caller knows yet.
    is_untold: bool,
    status: SandboxStatus,
    last_used_at: Time,
    expires_at: Time,
    uses: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A use of a kept sandbox. Its container is not removed for idleness before it ends.
pub(crate) struct Use {
    kept: Arc<KeptSandbox>,
    machine: Arc<dyn Machine>,
    generation: u64,
    is_new: bool,
    is_restart: bool,
    changed: Arc<Notify>,
}

impl Use {
    pub fn machine(&self) -> &dyn Machine {
        &*self.machine
    }

    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether it started its container.
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether its generation is not the first, and nobody was told of it before this use: whoever
    /// started it may have gone away.
    pub const fn is_restart(&self) -> bool {
        self.is_restart
    }

    /// Its caller is told whether it [is a restart](Self::is_restart).
    pub fn told(&self) {
        let mut info = self.kept.info();
        info.is_untold &= info.generation != self.generation;
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut info = self.kept.info();
        info.uses -= 1;
        info.last_used_at = Time::now();
        drop(info);
        self.kept.size.changed();
        self.changed.notify_one();
    }
}

impl KeptSandbox {
    fn new(record: KeptRecord, spec: Result<SandboxSpec, ServiceError>) -> Self {
        let info = Info {
            generation: record.generation,
            is_untold: false,
            status: SandboxStatus::Stopped,
            last_used_at: record.last_used_at,
            expires_at: record.expires_at,
            uses: 0,
        };
        Self {
            record,
            spec,
            info: Mutex::new(info),
            container: tokio::sync::Mutex::default(),
            is_deleted: AtomicBool::new(false),
            size: Size::default(),
        }
    }

    fn info(&self) -> MutexGuard<'_, Info> {
        lock(&self.info)
    }

    /// What it is started from.
    pub fn spec(&self) -> Result<&SandboxSpec, ServiceError> {
        self.spec.as_ref().map_err(Clone::clone)
    }

    fn view(&self) -> SandboxView {
        let (record, info) = (&self.record, self.info());
        let is_idle = info.status == SandboxStatus::Ready && info.uses == 0;
        let idle_at = record.idle.filter(|_| is_idle).map(|idle| info.last_used_at.after(idle));
        SandboxView {
            id: record.id.clone(),
            name: record.name.clone(),
            generation: info.generation,
            status: info.status,
            spec: record.spec.clone(),
            created_at: record.created_at,
            last_used_at: info.last_used_at,
            expires_at: info.expires_at,
            max_expires_at: record.max_expires_at,
            idle_at,
            metadata: record.metadata.clone(),
        }
    }

    /// When something is to be done about it if nothing uses it, and what.
    fn due(&self) -> Option<(Time, Due)> {
        let info = self.info();
        if info.uses > 0 {
            return None;
        }
        let expiry = (info.expires_at, Due::Delete);
        let idle = self.record.idle.map(|idle| info.last_used_at.after(idle));
        match (info.status, idle) {
            (SandboxStatus::Ready, Some(idle)) if idle < info.expires_at => Some((idle, Due::Stop)),
            (SandboxStatus::Ready | SandboxStatus::Stopped, _) => Some(expiry),
            (SandboxStatus::Starting, _) => None,
        }
    }

    fn gone(&self) -> ServiceError {
        ServiceError::SandboxGone { id: self.record.id.clone() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Stop,
    Delete,
}

impl State {
    fn count(&self) -> usize {
        self.by_id.len() + self.places.values().sum::<usize>()
    }

    fn count_of(&self, subject: &Subject) -> usize {
        let own = self.by_id.values().filter(|kept| kept.record.subject == *subject);
        own.count() + self.places.get(subject).copied().unwrap_or(0)
    }

    /// Whether a subject may keep one more sandbox.
    fn check_room(&self, subject: &Subject, quota: usize, most: usize) -> Result<(), ServiceError> {
        match self.count_of(subject) >= quota || self.count() >= most {
            true => Err(ServiceError::QuotaExceeded { what: "sandboxes", retry_after: None }),
            false => Ok(()),
        }
    }
}

impl KeptSandboxes {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn count(&self) -> usize {
        self.state().count()
    }

    pub fn count_of(&self, subject: &Subject) -> usize {
        self.state().count_of(subject)
    }

    /// Counts a sandbox that a front end keeps, if there may be one more.
    pub fn begin_place(
        &self,
        subject: &Subject,
        quota: usize,
        most: usize,
    ) -> Result<(), ServiceError> {
        let mut state = self.state();
        state.check_room(subject, quota, most)?;
        *state.places.entry(subject.clone()).or_default() += 1;
        Ok(())
    }

    /// Whether a front end keeps one of this subject.
    pub fn has_place(&self, subject: &Subject) -> bool {
        self.state().places.contains_key(subject)
    }

    /// Such a sandbox is gone.
    pub fn end_place(&self, subject: &Subject) {
        let mut state = self.state();
        if let Some(places) = state.places.get_mut(subject) {
            *places -= 1;
            if *places == 0 {
                state.places.remove(subject);
            }
        }
    }

    pub fn ids(&self) -> Vec<String> {
        self.state().by_id.keys().cloned().collect()
    }

    fn all(&self) -> Vec<Arc<KeptSandbox>> {
        self.state().by_id.values().cloned().collect()
    }

    pub fn find(&self, subject: &Subject, id: &str) -> Result<Arc<KeptSandbox>, ServiceError> {
        let state = self.state();
        match state.by_id.get(id) {
            Some(kept) if kept.record.subject == *subject => Ok(kept.clone()),
            _ if state.gone.iter().any(|(of, gone)| of == subject && gone == id) => {
                Err(ServiceError::SandboxGone { id: id.to_owned() })
            }
            _ => Err(ServiceError::no_sandbox(id)),
        }
    }

    /// The sandbox, if an execution in it can be accepted.
    pub fn check(
        &self,
        subject: &Subject,
        place: &SandboxTarget,
    ) -> Result<Arc<KeptSandbox>, ServiceError> {
        let kept = self.find(subject, &place.sandbox)?;
        let info = kept.info();
        let is_current = info.status != SandboxStatus::Stopped
            && place.generation.is_none_or(|asked| asked == info.generation);
        drop(info);
        match place.generation {
            Some(asked) if !is_current => {
                Err(ServiceError::StaleGeneration { id: place.sandbox.clone(), asked })
            }
            _ => Ok(kept),
        }
    }

    /// Forgets a sandbox, and knows that it existed.
    fn take(&self, kept: &KeptSandbox) -> bool {
        let mut state = self.state();
        if state.by_id.remove(&kept.record.id).is_none() {
            return false;
        }
        if state.gone.len() == MAX_GONE {
            state.gone.pop_front();
        }
        state.gone.push_back((kept.record.subject.clone(), kept.record.id.clone()));
        true
    }

    /// The sandboxes of a store. Their processes ended with the last service on it.
    pub async fn restore(
        &self,
        records: &Records,
        config: &ServiceConfig,
    ) -> Result<(), ServiceError> {
        for record in records.sandboxes().await? {
            let id = record.id.clone();
            let is_expired = record.expires_at <= Time::now();
            if is_expired {
                records.remove_sandbox(&id).await?;
                continue;
            }
            let spec = plan_kept(record.spec.clone(), config).map_err(|error| {
                tracing::warn!(id, %error, "a sandbox is not started: it is not allowed now");
                ServiceError::forbidden("spec", format!("it is not allowed any more: {error}"))
                    .with_hint("its files are kept until it expires, for when it is allowed again")
            });
            self.state().by_id.insert(id, Arc::new(KeptSandbox::new(record, spec)));
        }
        Ok(())
    }
}

impl Core {
    /// Begins a use, and starts a container if there is none.
    pub async fn use_kept(
        self: &Arc<Self>,
        subject: &Subject,
        place: &SandboxTarget,
    ) -> Result<Use, ServiceError> {
        let kept = self.kept.find(subject, &place.sandbox)?;
        // A launch goes on if its caller does not wait: the next use has it.
        let (core, generation) = (self.clone(), place.generation);
        let using = async move { core.begin_use(kept, generation).await };
        let using = tokio::spawn(using.in_current_span());
        let failed = |_| ServiceError::Internal { detail: "the start of a sandbox panicked" };
        using.await.map_err(failed)?
    }

    /// The same, which ends if its caller does not wait.
    pub async fn begin_use(
        self: &Arc<Self>,
        kept: Arc<KeptSandbox>,
        asked: Option<u64>,
    ) -> Result<Use, ServiceError> {
        let mut container = kept.container.lock().await;
        if kept.is_deleted.load(Ordering::Acquire) || kept.info().expires_at <= Time::now() {
            return Err(kept.gone());
        }
        if let Some(machine) = &*container
            && machine.has_ended()
        {
            self.remove(machine.clone());
            *container = None;
            kept.info().status = SandboxStatus::Stopped;
        }
        let current = kept.info().generation;
        let stale = |asked| ServiceError::StaleGeneration { id: kept.record.id.clone(), asked };
        if let Some(asked) = asked
            && (asked != current || container.is_none())
        {
            return Err(stale(asked));
        }
        let (machine, is_new) = match &*container {
            Some(machine) => (machine.clone(), false),
            None => {
                let machine = self.start_kept(&kept, current + 1).await?;
                *container = Some(machine.clone());
                (machine, true)
            }
        };
        let mut info = kept.info();
        info.uses += 1;
        info.last_used_at = Time::now();
        let (generation, is_restart) = (info.generation, info.is_untold);
        drop(info);
        drop(container);
        let changed = self.kept.changed.clone();
        Ok(Use { kept, machine, generation, is_new, is_restart, changed })
    }

    async fn start_kept(
        self: &Arc<Self>,
        kept: &KeptSandbox,
        generation: u64,
    ) -> Result<Arc<dyn Machine>, ServiceError> {
        let spec = kept.spec()?.clone();
        // Durable before anything of it runs: no two containers have one generation.
        let (now, expires_at) = (Time::now(), kept.info().expires_at);
        self.records.update_sandbox(&kept.record.id, generation, now, expires_at).await?;
        {
            let mut info = kept.info();
            info.generation = generation;
            info.is_untold = generation > 1;
            info.status = SandboxStatus::Starting;
        }
        let left = kept.record.max_expires_at.since(Time::now());
        let spec = match spec.io_is_off {
            true => spec,
            false => spec.io_dir(self.files.path(&kept.record.id)),
        };
        let spec = spec.lifetime(left).title("sandbox");
        let spec = match &kept.record.name {
            Some(name) => spec.container_name(name),
            None => spec,
        };
        let launched = self.runner.launch(spec).await;
        kept.info().status = match launched {
            Ok(_) => SandboxStatus::Ready,
            Err(_) => SandboxStatus::Stopped,
        };
        self.kept.changed.notify_one();
        launched.map_err(|failed| ServiceError::Sandbox(*failed.failure))
    }

    /// The bytes of the files of a subject's sandboxes.
    pub async fn kept_bytes(self: &Arc<Self>, subject: &Subject) -> u64 {
        let own = self.kept.all().into_iter().filter(|kept| kept.record.subject == *subject);
        let mut bytes = 0_u64;
        for kept in own {
            let (core, id) = (self.clone(), kept.record.id.clone());
            let is_in_use = kept.info().uses > 0;
            let size = kept.size.bytes(is_in_use, move || core.files.bytes(&id)).await;
            bytes = bytes.saturating_add(size);
        }
        bytes
    }

    /// Removes its container, if nothing uses it.
    async fn stop_kept(self: &Arc<Self>, kept: &KeptSandbox) {
        let mut container = kept.container.lock().await;
        if kept.info().uses > 0 {
            return;
        }
        if let Some(machine) = container.take() {
            kept.info().status = SandboxStatus::Stopped;
            self.remove(machine);
        }
    }

    /// Removes a sandbox that could not be started, unless another creator of its name has started it.
    async fn delete_unstarted(
        self: &Arc<Self>,
        kept: Arc<KeptSandbox>,
    ) -> Result<(), ServiceError> {
        let container = kept.container.lock().await;
        if container.is_some() || kept.info().uses > 0 {
            return Ok(());
        }
        // Whoever waits for it does not start it any more.
        kept.is_deleted.store(true, Ordering::Release);
        drop(container);
        self.delete_kept(kept).await
    }

    /// Removes a sandbox with its files, whatever uses it.
    async fn delete_kept(self: &Arc<Self>, kept: Arc<KeptSandbox>) -> Result<(), ServiceError> {
        self.records.remove_sandbox(&kept.record.id).await?;
        kept.is_deleted.store(true, Ordering::Release);
        if !self.kept.take(&kept) {
            return Ok(());
        }
        let machine = kept.container.lock().await.take();
        if let Some(machine) = machine
            && let Err(error) = machine.close().await
        {
            Counting::add(&self.counting.failed_removals);
            tracing::warn!(id = kept.record.id, error, "a sandbox was not removed");
        }
        let (core, id) = (self.clone(), kept.record.id.clone());
        crate::blocking(move || {
            core.files.remove(&id).map_err(|error| ServiceError::Files(Arc::new(error)))
        })
        .await
    }

    /// Removes all containers. Those that could not be removed, and why.
    pub async fn close_kept(self: &Arc<Self>) -> Vec<String> {
        let close = |kept: Arc<KeptSandbox>| async move {
            let machine = kept.container.lock().await.take()?;
            kept.info().status = SandboxStatus::Stopped;
            let closed = tokio::time::timeout(CLOSE_TIMEOUT, machine.close()).await;
            let closed = closed.unwrap_or_else(|_| Err("it takes too long".to_owned()));
            closed.err().map(|error| format!("{}: {error}", kept.record.id))
        };
        join_all(self.kept.all().into_iter().map(close)).await.into_iter().flatten().collect()
    }
}

/// Stops sandboxes that nobody uses, and removes those whose time is over.
pub(crate) async fn end_unused(core: Weak<Core>) {
    loop {
        let Some(strong) = core.upgrade() else { return };
        let now = Time::now();
        let mut next: Option<Time> = None;
        for kept in strong.kept.all() {
            match kept.due() {
                Some((at, Due::Stop)) if at <= now => strong.stop_kept(&kept).await,
                Some((at, Due::Delete)) if at <= now => {
                    let id = kept.record.id.clone();
                    if let Err(error) = strong.delete_kept(kept).await {
                        tracing::warn!(id, %error, "a sandbox was not removed");
                        next = Some(next.unwrap_or(Time::from_unix_millis(i64::MAX)))
                            .map(|at| at.min(now.after(Duration::from_secs(60))));
                    }
                    continue;
                }
                _ => {}
            }
            if let Some((at, _)) = kept.due() {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        let sleep = next.map_or(LONGEST_SLEEP, |at| at.since(Time::now())).min(LONGEST_SLEEP);
        let changed = strong.kept.changed.clone();
        drop(strong);
        tokio::select! {
            () = tokio::time::sleep(sleep.max(Duration::from_millis(1))) => {}
            () = changed.notified() => {}
        }
    }
}

/// What was done in a kept sandbox.
#[derive(Debug)]
pub struct UseOutcome<T> {
    /// What it gave.
    pub value: T,
    /// The generation that did it.
    pub generation: u64,
    /// Whether that generation was started in place of an earlier one and nobody was told before:
    /// earlier processes are gone.
    pub restarted: bool,
}

/// A sandbox that was created, or was there.
#[derive(Debug, Clone)]
pub struct CreatedSandbox {
    /// The sandbox.
    pub sandbox: SandboxView,
    /// Whether it was created now.
    pub is_new: bool,
    /// Whether a generation was started in place of an earlier one and nobody was told before.
    pub restarted: bool,
}

impl Service {
    /// Creates a sandbox and starts its container, or gives the one of this name.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NameTaken`] if the one of this name has another spec; [`ServiceError`] if it
    /// is not allowed or cannot be started.
    pub async fn create_sandbox(
        &self,
        subject: &Subject,
        request: SandboxRequest,
    ) -> Result<CreatedSandbox, ServiceError> {
        if !self.core.is_accepting.load(Ordering::Acquire) {
            return Err(ServiceError::ShuttingDown);
        }
        // A caller that goes away does not leave a sandbox half created.
        let creating = self.core.clone().create_sandbox(subject.clone(), request);
        let creating = tokio::spawn(creating.in_current_span());
        let failed = |_| ServiceError::Internal { detail: "the creation of a sandbox panicked" };
        let (used, is_new) = creating.await.map_err(failed)??;
        let restarted = used.is_restart();
        used.told();
        let kept = used.kept.clone();
        drop(used);
        Ok(CreatedSandbox { sandbox: kept.view(), is_new, restarted })
    }

    /// A sandbox as it is now. This is no use.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NotFound`] and [`ServiceError::SandboxGone`].
    pub fn sandbox(&self, subject: &Subject, id: &str) -> Result<SandboxView, ServiceError> {
        Ok(self.core.kept.find(subject, id)?.view())
    }

    /// A subject's sandboxes, the latest first.
    #[must_use]
    pub fn sandboxes(&self, subject: &Subject) -> SandboxList {
        let all = self.core.kept.all();
        let own = all.iter().filter(|kept| kept.record.subject == *subject);
        let mut sandboxes: Vec<_> = own.map(|kept| kept.view()).collect();
        sandboxes.sort_by(|one, other| {
            other.created_at.cmp(&one.created_at).then_with(|| one.id.cmp(&other.id))
        });
        SandboxList { sandboxes }
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
        let kept = self.core.kept.find(subject, id)?;
        let core = self.core.clone();
        // It goes on if the caller does not wait.
        let deleting = tokio::spawn(async move { core.delete_kept(kept).await });
        let failed = |_| ServiceError::Internal { detail: "the removal of a sandbox panicked" };
        deleting.await.map_err(failed)?
    }
}

/// The record of a new sandbox.
fn record(
    subject: &Subject,
    request: SandboxRequest,
    config: &ServiceConfig,
) -> Result<KeptRecord, ServiceError> {
    let bounds = &config.kept;
    if let Some(name) = &request.name {
        let is_valid = (1..=MAX_NAME_BYTES).contains(&name.len());
        if !is_valid || name.chars().any(char::is_control) {
            let problem = "a name has 1 to 128 bytes, and no control characters";
            return Err(ServiceError::invalid("name", problem));
        }
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
    Ok(KeptRecord {
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
        request: SandboxRequest,
    ) -> Result<(Use, bool), ServiceError> {
        let spec = plan_kept(request.spec.clone(), &self.config)?;
        let record = record(&subject, request, &self.config)?;
        self.check_stored(&subject).await?;
        let (kept, is_new) = self.register(record, spec).await?;
        let place = SandboxTarget { sandbox: kept.record.id.clone(), generation: None };
        match self.use_kept(&subject, &place).await {
            Ok(used) => Ok((used, is_new)),
            Err(error) => {
                if is_new {
                    self.delete_unstarted(kept).await?;
                }
                Err(error)
            }
        }
    }

    /// Registers a sandbox, or finds the one of its name.
    async fn register(
        self: &Arc<Self>,
        record: KeptRecord,
        spec: SandboxSpec,
    ) -> Result<(Arc<KeptSandbox>, bool), ServiceError> {
        let quota = self.quotas().sandboxes;
        let kept = Arc::new(KeptSandbox::new(record, Ok(spec)));
        let record = &kept.record;
        {
            let mut state = self.kept.state();
            let mut own = state.by_id.values().filter(|it| it.record.subject == record.subject);
            if let Some(name) = &record.name
                && let Some(known) = own.find(|it| it.record.name.as_ref() == Some(name))
            {
                return match known.record.spec == record.spec {
                    true => Ok((known.clone(), false)),
                    false => Err(ServiceError::NameTaken { name: name.clone() }),
                };
            }
            state.check_room(&record.subject, quota, self.config.kept.sandboxes)?;
            state.by_id.insert(record.id.clone(), kept.clone());
        }
        // Whoever finds it meanwhile waits.
        let container = kept.container.lock().await;
        let created = self.create_kept(record).await;
        drop(container);
        if let Err(error) = created {
            kept.is_deleted.store(true, Ordering::Release);
            self.kept.state().by_id.remove(&record.id);
            return Err(error);
        }
        Ok((kept, true))
    }

    async fn create_kept(self: &Arc<Self>, record: &KeptRecord) -> Result<(), ServiceError> {
        let (core, id) = (self.clone(), record.id.clone());
        crate::blocking(move || {
            core.files.create(&id).map_err(|error| ServiceError::Files(Arc::new(error)))
        })
        .await?;
        self.records.add_sandbox(record.clone()).await
    }
}
