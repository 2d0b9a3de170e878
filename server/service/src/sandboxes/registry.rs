//! The kept sandboxes of a service, as they are in memory: their states, and who uses them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use sandbox_api::service::{
    IdleAction, KeptSpec, SandboxCounts, SandboxRef, SandboxStatus, SandboxView, Subject, Time,
};
use sandbox_api::{ByteSize, DEFAULT_IDLE_LIMIT, SandboxSpec};
use sandbox_dirfd::random_hex;
use sandbox_store::SandboxRecord;
use serde_json::{Map, Value};
use tokio::sync::Notify;

use crate::config::{KeptBounds, ServiceConfig};
use crate::disk_usage::DiskUsage;
use crate::error::ServiceError;
use crate::files::Files;
use crate::launcher::Guest;
use crate::lock;
use crate::name_lock::NameLock;
use crate::plan::{Env, plan_kept};
use crate::records::Records;
use crate::sandboxes::prepared::Claimed;
use crate::sandboxes::start_keys::StartKeys;

/// How many sandboxes that are gone are known as such.
const MAX_GONE: usize = 1024;
/// How many connections to ports the sandboxes of a subject have at a time.
const MAX_CONNECTIONS: usize = 512;
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
    /// As it was created or found; what changes since is beside it.
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
    /// Held while it is changed in the store and then here.
    pub changing: tokio::sync::Mutex<()>,
    /// Held while a process is started under a key.
    pub keys: tokio::sync::Mutex<StartKeys>,
    /// Its name, if no other process may have it.
    pub name_lock: OnceLock<Arc<NameLock>>,
    /// Its first container, if that was started before it was asked for.
    pub claimed: Mutex<Option<Claimed>>,
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
    /// Since when it counts as idle if nothing uses it.
    pub idle_from: Time,
    pub expires_at: Time,
    pub metadata: Map<String, Value>,
    pub uses: usize,
    /// How many of the uses only read what comes, and wait for it as long as that takes.
    pub readers: usize,
    /// The container, while there is one.
    guest: Option<Weak<dyn Guest>>,
    /// The processes of this generation that are being started or have not ended.
    pub processes: usize,
    /// The most bytes that are kept of their output.
    scrollback: u64,
    /// The connections to its ports that are open or being made.
    connections: usize,
    /// When it ends if it stays paused; also while it is being paused.
    pub paused_until: Option<Time>,
    /// The memory that it had just before it was paused, in bytes.
    pub paused_memory: Option<u64>,
}

impl Info {
    /// It is used now.
    pub fn touch(&mut self) {
        self.last_used_at = Time::now();
        self.idle_from = self.last_used_at;
    }

    /// Its container has started.
    pub fn set_ready(&mut self, guest: &Arc<dyn Guest>) {
        self.has_started = true;
        self.status = SandboxStatus::Ready;
        self.guest = Some(Arc::downgrade(guest));
        (self.processes, self.scrollback) = (0, 0);
    }

    /// Its container is there, and is not frozen any more.
    pub fn set_thawed(&mut self) {
        self.status = SandboxStatus::Ready;
        self.paused_until = None;
        self.paused_memory = None;
    }

    /// It has no container.
    pub fn set_stopped(&mut self) {
        self.status = SandboxStatus::Stopped;
        self.guest = None;
        (self.processes, self.scrollback) = (0, 0);
        self.paused_until = None;
        self.paused_memory = None;
    }

    /// Whether something uses it that ends by itself.
    pub const fn is_busy(&self) -> bool {
        self.uses > self.readers
    }

    /// Whether something may write its files now.
    fn is_in_use(&self) -> bool {
        self.uses > 0 || self.processes > 0
    }

    /// Its container, if there is one.
    pub fn guest(&self) -> Option<Arc<dyn Guest>> {
        self.guest.as_ref()?.upgrade()
    }
}

/// A use of a kept sandbox. Its container is not removed for idleness before it ends.
pub(crate) struct SandboxLease {
    pub kept: Arc<SandboxEntry>,
    pub guest: Arc<dyn Guest>,
    pub generation: u64,
    /// Whether it started its container.
    pub is_new: bool,
    /// Whether its generation is not the first, and no caller was notified before this use: the use
    /// that started it may have been dropped.
    pub is_restart: bool,
    is_reader: bool,
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
        info.touch();
        let (generation, is_restart) = (info.generation, info.restart_unreported);
        drop(info);
        Self { kept, guest, generation, is_new, is_restart, is_reader: false, changed }
    }

    /// It only reads what comes from now on: it hinders neither the expiry of its sandbox nor a pause that
    /// is asked for.
    pub fn into_reader(mut self) -> Self {
        self.is_reader = true;
        self.kept.info().readers += 1;
        self.changed.notify_one();
        self
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
        info.readers -= usize::from(self.is_reader);
        info.touch();
        drop(info);
        self.kept.size.changed();
        self.changed.notify_one();
    }
}

/// A process that is being started or has not ended, which counts in its sandbox until this is dropped.
pub(crate) struct LivingProcess {
    kept: Weak<SandboxEntry>,
    generation: u64,
    scrollback: u64,
}

impl LivingProcess {
    /// Begins one of which this many bytes of output may be kept.
    pub fn begin(kept: &Arc<SandboxEntry>, generation: u64, scrollback: u64) -> Self {
        let mut info = kept.info();
        if info.generation == generation {
            info.processes += 1;
            info.scrollback += scrollback;
        }
        drop(info);
        Self { kept: Arc::downgrade(kept), generation, scrollback }
    }
}

impl Drop for LivingProcess {
    fn drop(&mut self) {
        let Some(kept) = self.kept.upgrade() else { return };
        let mut info = kept.info();
        if info.generation == self.generation && info.processes > 0 {
            info.processes -= 1;
            info.scrollback = info.scrollback.saturating_sub(self.scrollback);
            if kept.record.idle_action == IdleAction::Stop {
                info.touch();
            }
        }
    }
}

/// A connection to a port, which counts in its sandbox until this is dropped.
pub(crate) struct OpenConnection(Arc<SandboxEntry>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.info().connections -= 1;
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
            idle_from: record.last_used_at,
            expires_at: record.expires_at,
            metadata: record.metadata.clone(),
            uses: 0,
            readers: 0,
            guest: None,
            processes: 0,
            scrollback: 0,
            connections: 0,
            paused_until: None,
            paused_memory: None,
        };
        Self {
            record,
            attached: None,
            spec,
            info: Mutex::new(info),
            container: tokio::sync::Mutex::default(),
            is_deleted: AtomicBool::new(false),
            changing: tokio::sync::Mutex::default(),
            keys: tokio::sync::Mutex::default(),
            name_lock: OnceLock::new(),
            claimed: Mutex::default(),
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
            idle_action: IdleAction::Stop,
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

    /// Its container, if there is one, and the number of its generation. Nothing is started.
    pub fn guest(&self, asked: Option<u64>) -> Result<(Option<Arc<dyn Guest>>, u64), ServiceError> {
        let info = self.info();
        let guest = info.guest().filter(|guest| !guest.has_ended());
        match asked {
            Some(asked) if asked != info.generation || guest.is_none() => {
                Err(ServiceError::stale_generation(&self.record.id, asked))
            }
            _ => Ok((guest, info.generation)),
        }
    }

    /// The bytes of its files; none of one that a front end keeps.
    pub async fn stored_bytes(&self, files: &Files) -> u64 {
        if self.attached.is_some() {
            return 0;
        }
        let is_in_use = self.info().is_in_use();
        self.size.bytes_of(files.path(&self.record.id), is_in_use).await
    }

    /// Its container that was started before it was asked for, once.
    pub fn take_claimed(&self) -> Option<Arc<dyn Guest>> {
        lock(&self.claimed).take()?.into_guest()
    }

    /// The environment of its commands.
    pub const fn env(&self) -> &Env {
        &self.record.spec.env
    }

    /// When it has been idle for as long as it may be, if nothing uses it now. A process is a use, unless it
    /// is frozen with its sandbox.
    fn idle_at(&self, info: &Info) -> Option<Time> {
        let is_used_by_processes =
            info.processes > 0 && self.record.idle_action == IdleAction::Stop;
        let is_idle = info.uses == 0 && !is_used_by_processes;
        self.record.idle.filter(|_| is_idle).map(|idle| info.idle_from.after(idle))
    }

    pub fn view(&self) -> SandboxView {
        let (record, info) = (&self.record, self.info());
        let is_ready = info.status == SandboxStatus::Ready;
        let idle_at = self.idle_at(&info).filter(|_| is_ready);
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
            idle: record.idle_action,
            processes: Some(info.processes as u64),
            paused_memory: info.paused_memory,
            metadata: info.metadata.clone(),
            node_away: false,
        }
    }

    /// When something is to be done about it, and what. Nothing is while it is in use by what ends by itself.
    pub fn due(&self) -> Option<(Time, DueAction)> {
        let info = self.info();
        if info.is_busy() {
            return None;
        }
        let idle = self.idle_at(&info);
        if self.attached.is_some() {
            return idle.map(|idle| (idle, DueAction::Delete));
        }
        let earlier = match (info.status, self.record.idle_action) {
            (SandboxStatus::Starting, _) => return None,
            (SandboxStatus::Ready, IdleAction::Stop) => idle.zip(Some(DueAction::Stop)),
            (SandboxStatus::Ready, IdleAction::Freeze) => idle.zip(Some(DueAction::Freeze)),
            (SandboxStatus::Paused, _) => info.paused_until.zip(Some(DueAction::Stop)),
            (SandboxStatus::Stopped, _) => None,
        };
        match earlier {
            Some((at, _)) if at < info.expires_at => earlier,
            _ => Some((info.expires_at, DueAction::Delete)),
        }
    }

    /// Whether that is to be done now.
    pub fn is_due(&self, action: DueAction) -> bool {
        self.due().is_some_and(|(at, due)| due == action && at <= Time::now())
    }

    pub fn gone(&self) -> ServiceError {
        ServiceError::sandbox_gone(&self.record.id)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DueAction {
    Stop,
    Freeze,
    Delete,
}

impl State {
    fn of<'a>(&'a self, subject: &'a Subject) -> impl Iterator<Item = &'a Arc<SandboxEntry>> {
        self.by_id.values().filter(move |kept| kept.record.subject == *subject)
    }

    fn paused(&self) -> usize {
        self.by_id.values().filter(|kept| kept.info().paused_until.is_some()).count()
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

    /// How many there are in each state.
    pub fn by_status(&self) -> SandboxCounts {
        let mut counts = SandboxCounts::default();
        for kept in self.state().by_id.values() {
            *match kept.info().status {
                SandboxStatus::Starting => &mut counts.starting,
                SandboxStatus::Ready => &mut counts.ready,
                SandboxStatus::Paused => &mut counts.paused,
                SandboxStatus::Stopped => &mut counts.stopped,
            } += 1;
        }
        counts
    }

    /// A figure of all of them together.
    pub fn sum(&self, of: impl Fn(&Info) -> u64) -> u64 {
        self.state().by_id.values().map(|kept| of(&kept.info())).sum()
    }

    /// Counts a sandbox as one that is paused, if there may be one more.
    pub fn mark_paused(&self, kept: &SandboxEntry, bounds: &KeptBounds) -> bool {
        let state = self.state();
        let has_room = state.paused() < bounds.paused;
        if has_room {
            kept.info().paused_until = Some(match kept.record.idle_action {
                IdleAction::Stop => Time::now().after(bounds.paused_for),
                // Its expiry comes first, however far it is put off meanwhile.
                IdleAction::Freeze => kept.record.max_expires_at,
            });
        }
        has_room
    }

    /// Counts a process that is being started, if its subject may have one more. The output that may be kept of it
    /// counts until it has ended. What is kept after that is dropped where it is in the way: that of the subject
    /// first, the oldest first, and output with a reader last.
    pub fn begin_process(
        &self,
        kept: &Arc<SandboxEntry>,
        generation: u64,
        scrollback: ByteSize,
        bounds: &KeptBounds,
    ) -> Result<LivingProcess, ServiceError> {
        let state = self.state();
        let scrollback = scrollback.as_u64();
        let (most, most_of_all) = (bounds.output.as_u64(), bounds.output_of_all.as_u64());
        let (mut processes, mut bytes, mut bytes_of_all) = (1, scrollback, scrollback);
        let mut ended = Vec::new();
        for other in state.by_id.values() {
            let info = other.info();
            let is_own = other.record.subject == kept.record.subject;
            bytes_of_all += info.scrollback;
            if is_own {
                processes += info.processes;
                bytes += info.scrollback;
            }
            for process in info.guest().iter().flat_map(|guest| guest.processes()) {
                ended.extend(process.kept_output().map(|output| (output, is_own, process)));
            }
        }
        if processes > bounds.processes || bytes > most || bytes_of_all > most_of_all {
            return Err(ServiceError::too_many_processes());
        }
        for (output, is_own, _) in &ended {
            bytes_of_all += output.bytes;
            bytes += if *is_own { output.bytes } else { 0 };
        }
        if bytes_of_all <= most_of_all && bytes <= most {
            // Nothing is in the way, as for nearly every command.
            ended.clear();
        }
        ended.sort_unstable_by_key(|(output, is_own, _)| (output.is_read, !is_own, output.since));
        for (_, is_own, process) in ended {
            if bytes_of_all > most_of_all || is_own && bytes > most {
                let dropped = process.drop_output();
                bytes_of_all -= dropped;
                bytes -= if is_own { dropped } else { 0 };
            }
        }
        Ok(LivingProcess::begin(kept, generation, scrollback))
    }

    /// Counts a connection to a port, if the sandbox's subject may have one more.
    pub fn begin_connection(
        &self,
        kept: &Arc<SandboxEntry>,
    ) -> Result<OpenConnection, ServiceError> {
        let state = self.state();
        let open: usize = state.of(&kept.record.subject).map(|it| it.info().connections).sum();
        if open >= MAX_CONNECTIONS {
            return Err(ServiceError::quota_exceeded("connections", None));
        }
        kept.info().connections += 1;
        Ok(OpenConnection(kept.clone()))
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

    /// The sandbox of this id, whosever it is.
    pub fn get(&self, id: &str) -> Option<Arc<SandboxEntry>> {
        self.state().by_id.get(id).cloned()
    }

    pub fn ids(&self) -> Vec<String> {
        self.state().by_id.keys().cloned().collect()
    }

    pub fn all(&self) -> Vec<Arc<SandboxEntry>> {
        self.state().by_id.values().cloned().collect()
    }

    /// The sandbox of this id, if it is a caller's own and not one that a front end keeps.
    pub fn find(&self, subject: &Subject, id: &str) -> Result<Arc<SandboxEntry>, ServiceError> {
        match self.find_any(subject, id) {
            Ok(kept) if kept.attached.is_some() => Err(ServiceError::not_found("sandbox", id)),
            found => found,
        }
    }

    /// The sandbox of this id.
    pub fn find_any(&self, subject: &Subject, id: &str) -> Result<Arc<SandboxEntry>, ServiceError> {
        let state = self.state();
        match state.by_id.get(id) {
            Some(kept) if kept.record.subject == *subject => Ok(kept.clone()),
            _ if state.gone.iter().any(|(of, gone)| of == subject && gone == id) => {
                Err(ServiceError::sandbox_gone(id))
            }
            _ => Err(ServiceError::not_found("sandbox", id)),
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
        for record in records.call(|store| store.sandboxes()).await? {
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
                false => Err(ServiceError::name_taken(name)
                    .with_hint(what_differs(&known.record.spec, &record.spec))),
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
            bytes = bytes.saturating_add(kept.stored_bytes(files).await);
        }
        bytes
    }
}

/// What to do about a sandbox of a name whose spec is another one.
fn what_differs(known: &KeptSpec, asked: &KeptSpec) -> String {
    let [known, asked] = [known, asked].map(|spec| serde_json::to_value(spec).unwrap_or_default());
    let all = [&known, &asked].into_iter().filter_map(Value::as_object).flat_map(Map::keys);
    let names: BTreeSet<_> = all.map(String::as_str).filter(|it| known[it] != asked[it]).collect();
    let names = Vec::from_iter(names).join(", ");
    format!("it differs in: {names}; delete it first, or use another name")
}
