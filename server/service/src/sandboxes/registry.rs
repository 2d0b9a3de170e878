//! The kept sandboxes of a service, as they are in memory: their states, and who uses them.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use sandbox_api::service::{KeptSpec, SandboxRef, SandboxStatus, SandboxView, Subject, Time};
use sandbox_api::{DEFAULT_IDLE_LIMIT, SandboxSpec};
use sandbox_dirfd::random_hex;
use sandbox_store::SandboxRecord;
use serde_json::Map;
use tokio::sync::Notify;

use crate::config::ServiceConfig;
use crate::disk_usage::DiskUsage;
use crate::error::ServiceError;
use crate::files::Files;
use crate::launcher::Guest;
use crate::name_lock::NameLock;
use crate::plan::plan_kept;
use crate::records::Records;

/// How many sandboxes that are gone are known as such.
const MAX_GONE: usize = 1024;
/// All kept sandboxes.
#[derive(Default)]
pub(crate) struct KeptSandboxes {
    state: Mutex<State>,
    /// Something changed that may be due earlier.
    pub changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    by_id: HashMap<String, Arc<SandboxEntry>>,
    gone: VecDeque<(Subject, String)>,
    /// The names that this process has.
    locked: HashMap<String, Weak<NameLock>>,
}

/// A kept sandbox.
pub(crate) struct SandboxEntry {
    pub record: SandboxRecord,
    /// The title of one that a front end keeps for a subject: it is in no list and not stored, and ends when
    /// it is idle.
    pub attached: Option<&'static str>,
    /// What it is started from; an error if this service does not allow it.
    spec: Result<SandboxSpec, ServiceError>,
    info: Mutex<Info>,
    /// Held while its container is started or removed.
    pub container: tokio::sync::Mutex<Option<Arc<dyn Guest>>>,
    pub is_deleted: AtomicBool,
    /// Its name, if no other process may have it.
    pub name_lock: OnceLock<Arc<NameLock>>,
    size: DiskUsage,
}

pub(crate) struct Info {
    pub generation: u64,
    /// A container of it has started, or may have before this service did.
    pub has_started: bool,
    /// It was started in place of an earlier one, and no caller knows yet.
    pub restart_unreported: bool,
    pub status: SandboxStatus,
    pub last_used_at: Time,
    pub expires_at: Time,
    pub uses: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A use of a kept sandbox. Its container is not removed for idleness before it ends.
pub(crate) struct SandboxLease {
    kept: Arc<SandboxEntry>,
    guest: Arc<dyn Guest>,
    generation: u64,
    is_new: bool,
    is_restart: bool,
    changed: Arc<Notify>,
}

impl SandboxLease {
    /// Begins a use of a sandbox whose container there is; `is_new` if it was started for it.
    pub fn begin(
        kept: Arc<SandboxEntry>,
        guest: Arc<dyn Guest>,
        is_new: bool,
        changed: Arc<Notify>,
    ) -> Self {
        let mut info = kept.info();
        info.uses += 1;
        info.last_used_at = Time::now();
        let (generation, is_restart) = (info.generation, info.restart_unreported);
        drop(info);
        Self { kept, guest, generation, is_new, is_restart, changed }
    }

    pub fn guest(&self) -> &dyn Guest {
        &*self.guest
    }

    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether it started its container.
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether its generation is not the first, and no caller was notified before this use: the use
    /// that started it may have been dropped.
    pub const fn is_restart(&self) -> bool {
        self.is_restart
    }

    /// The error of everything in it, if its sandbox was removed meanwhile.
    pub fn gone(&self) -> Option<ServiceError> {
        self.kept.is_deleted.load(Ordering::Acquire).then(|| self.kept.gone())
    }

    /// The failure of something in it.
    pub fn failed(&self, error: ServiceError) -> ServiceError {
        self.gone().unwrap_or(error)
    }

    /// Ends it, and gives the sandbox as it is then.
    pub fn end(self) -> SandboxView {
        let kept = self.kept.clone();
        drop(self);
        kept.view()
    }

    /// It added so many bytes to the files of its sandbox.
    pub fn grew(&self, bytes: u64) {
        self.kept.size.grew(bytes);
    }

    /// Its caller learns whether it [is a restart](Self::is_restart).
    pub fn mark_restart_reported(&self) {
        let mut info = self.kept.info();
        info.restart_unreported &= info.generation != self.generation;
    }
}

impl Drop for SandboxLease {
    fn drop(&mut self) {
        let mut info = self.kept.info();
        info.uses -= 1;
        info.last_used_at = Time::now();
        drop(info);
        self.kept.size.changed();
        self.changed.notify_one();
    }
}

impl SandboxEntry {
    pub fn new(record: SandboxRecord, spec: Result<SandboxSpec, ServiceError>) -> Self {
        let info = Info {
            generation: record.generation,
            has_started: record.generation > 0,
            restart_unreported: false,
            status: SandboxStatus::Stopped,
            last_used_at: record.last_used_at,
            expires_at: record.expires_at,
            uses: 0,
        };
        Self {
            record,
            attached: None,
            spec,
            info: Mutex::new(info),
            container: tokio::sync::Mutex::default(),
            is_deleted: AtomicBool::new(false),
            name_lock: OnceLock::new(),
            size: DiskUsage::default(),
        }
    }

    /// One that a front end keeps.
    pub fn attached(subject: &Subject, title: &'static str, spec: SandboxSpec) -> Self {
        let (now, never) = (Time::now(), Time::from_unix_millis(i64::MAX));
        let record = SandboxRecord {
            id: random_hex::<12>(),
            subject: subject.clone(),
            name: None,
            spec: KeptSpec::default(),
            metadata: Map::new(),
            generation: 0,
            idle: Some(DEFAULT_IDLE_LIMIT),
            created_at: now,
            last_used_at: now,
            expires_at: never,
            max_expires_at: never,
        };
        Self { attached: Some(title), ..Self::new(record, Ok(spec)) }
    }

    pub fn info(&self) -> MutexGuard<'_, Info> {
        lock(&self.info)
    }

    /// What it is started from.
    pub fn spec(&self) -> Result<&SandboxSpec, ServiceError> {
        self.spec.as_ref().map_err(Clone::clone)
    }

    pub fn view(&self) -> SandboxView {
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
            node_away: false,
        }
    }

    /// When something is to be done about it if nothing uses it, and what.
    pub fn due(&self) -> Option<(Time, DueAction)> {
        let info = self.info();
        if info.uses > 0 {
            return None;
        }
        let expiry = (info.expires_at, DueAction::Delete);
        let idle = self.record.idle.map(|idle| info.last_used_at.after(idle));
        if self.attached.is_some() {
            return idle.map(|idle| (idle, DueAction::Delete));
        }
        match (info.status, idle) {
            (SandboxStatus::Ready, Some(idle)) if idle < info.expires_at => {
                Some((idle, DueAction::Stop))
            }
            (SandboxStatus::Ready | SandboxStatus::Stopped, _) => Some(expiry),
            (SandboxStatus::Starting, _) => None,
        }
    }

    pub fn gone(&self) -> ServiceError {
        ServiceError::sandbox_gone(&self.record.id)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DueAction {
    Stop,
    Delete,
}

impl State {
    fn of<'a>(&'a self, subject: &'a Subject) -> impl Iterator<Item = &'a Arc<SandboxEntry>> {
        self.by_id.values().filter(move |kept| kept.record.subject == *subject)
    }

    /// Whether a subject may keep one more sandbox.
    fn check_room(&self, subject: &Subject, quota: usize, most: usize) -> Result<(), ServiceError> {
        match self.of(subject).count() >= quota || self.by_id.len() >= most {
            true => Err(ServiceError::quota_exceeded("sandboxes", None)),
            false => Ok(()),
        }
    }
}

impl KeptSandboxes {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn count(&self) -> usize {
        self.state().by_id.len()
    }

    pub fn count_of(&self, subject: &Subject) -> usize {
        self.state().of(subject).count()
    }

    /// The attached sandbox of this title, which is made if it is missing and there may be one more.
    pub fn attached(
        &self,
        subject: &Subject,
        title: &'static str,
        make: impl FnOnce() -> SandboxEntry,
        (quota, most): (usize, usize),
    ) -> Result<Arc<SandboxEntry>, ServiceError> {
        let mut state = self.state();
        if let Some(known) = state.of(subject).find(|kept| kept.attached == Some(title)) {
            return Ok(known.clone());
        }
        state.check_room(subject, quota, most)?;
        let kept = Arc::new(make());
        state.by_id.insert(kept.record.id.clone(), kept.clone());
        Ok(kept)
    }

    /// Whether a front end keeps a sandbox of this subject.
    pub fn has_attached(&self, subject: &Subject) -> bool {
        self.state().of(subject).any(|kept| kept.attached.is_some())
    }

    pub fn ids(&self) -> Vec<String> {
        self.state().by_id.keys().cloned().collect()
    }

    pub fn all(&self) -> Vec<Arc<SandboxEntry>> {
        self.state().by_id.values().cloned().collect()
    }

    pub fn find(&self, subject: &Subject, id: &str) -> Result<Arc<SandboxEntry>, ServiceError> {
        let state = self.state();
        match state.by_id.get(id) {
            Some(kept) if kept.record.subject == *subject && kept.attached.is_none() => {
                Ok(kept.clone())
            }
            _ if state.gone.iter().any(|(of, gone)| of == subject && gone == id) => {
                Err(ServiceError::sandbox_gone(id))
            }
            _ => Err(ServiceError::no_sandbox(id)),
        }
    }

    /// The sandbox, if an execution in it can be accepted.
    pub fn check(
        &self,
        subject: &Subject,
        place: &SandboxRef,
    ) -> Result<Arc<SandboxEntry>, ServiceError> {
        let kept = self.find(subject, &place.id)?;
        let info = kept.info();
        let is_current = info.status != SandboxStatus::Stopped
            && place.generation.is_none_or(|asked| asked == info.generation);
        drop(info);
        match place.generation {
            Some(asked) if !is_current => Err(ServiceError::stale_generation(&place.id, asked)),
            _ => Ok(kept),
        }
    }

    /// Forgets a sandbox, and knows that it existed.
    pub fn take(&self, kept: &SandboxEntry) -> bool {
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
            self.state().by_id.insert(id, Arc::new(SandboxEntry::new(record, spec)));
        }
        Ok(())
    }

    /// Registers a sandbox, or finds the one of its name; whether it is new.
    pub fn register(
        &self,
        kept: &Arc<SandboxEntry>,
        quota: usize,
        most: usize,
    ) -> Result<(Arc<SandboxEntry>, bool), ServiceError> {
        let record = &kept.record;
        let mut state = self.state();
        if let Some(name) = &record.name
            && let Some(known) =
                state.of(&record.subject).find(|it| it.record.name.as_ref() == Some(name))
        {
            return match known.record.spec == record.spec {
                true => Ok((known.clone(), false)),
                false => Err(ServiceError::name_taken(name)),
            };
        }
        state.check_room(&record.subject, quota, most)?;
        state.by_id.insert(record.id.clone(), kept.clone());
        Ok((kept.clone(), true))
    }

    /// Takes a name for this process, which may have it already.
    pub fn lock_name(&self, dir: &Path, name: &str) -> Result<Arc<NameLock>, ServiceError> {
        let mut state = self.state();
        if let Some(lock) = state.locked.get(name).and_then(Weak::upgrade) {
            return Ok(lock);
        }
        let lock = NameLock::take(dir, name).map_err(ServiceError::files)?;
        let lock = Arc::new(lock.ok_or_else(|| ServiceError::name_in_use(name))?);
        state.locked.retain(|_, lock| lock.strong_count() > 0);
        state.locked.insert(name.to_owned(), Arc::downgrade(&lock));
        Ok(lock)
    }

    /// Undoes that of one that could not be created.
    pub fn unregister(&self, kept: &SandboxEntry) {
        kept.is_deleted.store(true, Ordering::Release);
        self.state().by_id.remove(&kept.record.id);
    }

    /// The bytes of the files of a subject's sandboxes.
    pub async fn bytes_of(&self, subject: &Subject, files: &Arc<Files>) -> u64 {
        let own: Vec<_> = self.state().of(subject).cloned().collect();
        let mut bytes = 0_u64;
        for kept in own {
            let path = files.path(&kept.record.id);
            let is_in_use = kept.info().uses > 0;
            bytes = bytes.saturating_add(kept.size.bytes_of(path, is_in_use).await);
        }
        bytes
    }
}
