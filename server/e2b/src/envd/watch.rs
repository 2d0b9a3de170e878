//! Watched directories: streams of what changes, and watchers that are asked for it.
//!
//! An upload of a new file appears in one step; E2B's clients expect to see it created, given its owner and
//! written. So what the sandbox reports of a file that was just uploaded here is told as these three.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use sandbox_api::operation::EntryKind;
use sandbox_api::{FileChange, FileEvent, WatchRecord, WatchRequest};
use sandbox_dirfd::random_hex;
use sandbox_service::FileWatch;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Call;
use crate::connect::json::or_default;
use crate::connect::{Bounds, Code, ConnectError, Messages, after, bounded, to_json};

/// The most watchers at a time, and of one sandbox.
const MAX_WATCHERS: usize = 1024;
const MAX_WATCHERS_OF_SANDBOX: usize = 8;
/// The most events that wait to be asked for.
const MAX_EVENTS: usize = 4096;
/// When a watcher that nobody asks is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(3600);
/// For how long an upload is remembered, and how many are.
const UPLOADED: Duration = Duration::from_secs(10);
const MAX_UPLOADS: usize = 1024;

/// A watcher that several requests share.
type Shared = Arc<tokio::sync::Mutex<Watcher>>;

/// The watchers of all sandboxes here.
#[derive(Default)]
pub(super) struct Watchers {
    /// With the sandbox of each.
    by_id: Mutex<HashMap<String, (String, Shared)>>,
    /// The uploads of the last seconds: when, in which sandbox, and the path.
    uploads: Mutex<VecDeque<(Instant, String, String)>>,
    /// Watches of any kind that are on.
    watches: AtomicUsize,
}

/// One of them.
struct Watcher {
    watched: Watched,
    events: VecDeque<Event>,
    has_ended: bool,
    /// Whether some are missing, which is told once.
    is_missing_some: bool,
    asked_at: Instant,
}

/// A directory that is being watched.
struct Watched {
    watch: FileWatch,
    sandbox: String,
    root: String,
    has_entries: bool,
    /// Weak: one of them may be in it.
    watchers: Weak<Watchers>,
}

/// What happened to a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    name: String,
    change: FileChange,
}

impl std::fmt::Debug for Watchers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let watches = self.watches.load(Ordering::Relaxed);
        formatter.debug_struct("Watchers").field("watches", &watches).finish_non_exhaustive()
    }
}

impl Watchers {
    /// A file is about to appear, if it is a new one.
    pub(super) fn uploading(&self, sandbox: &str, path: &str) {
        if self.watches.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut uploads = lock(&self.uploads);
        let now = Instant::now();
        while uploads.front().is_some_and(|(at, ..)| *at + UPLOADED <= now)
            || uploads.len() >= MAX_UPLOADS
        {
            uploads.pop_front();
        }
        uploads.push_back((now, sandbox.to_owned(), path.to_owned()));
    }

    fn was_uploaded(&self, sandbox: &str, path: &str) -> bool {
        let now = Instant::now();
        lock(&self.uploads)
            .iter()
            .any(|(at, its, uploaded)| now < *at + UPLOADED && its == sandbox && uploaded == path)
    }

    /// Forgets those that have ended or that nobody asks any more, and makes room for one.
    fn make_room(&self, sandbox: &str) -> Result<(), ConnectError> {
        let mut by_id = lock(&self.by_id);
        let now = Instant::now();
        by_id.retain(|_, (_, watcher)| match watcher.try_lock() {
            Ok(mut watcher) => {
                watcher.drain();
                !watcher.has_ended && now < watcher.asked_at + FORGOTTEN
            }
            // It is being asked.
            Err(_) => true,
        });
        let own = by_id.values().filter(|(its, _)| its == sandbox).count();
        match by_id.len() >= MAX_WATCHERS || own >= MAX_WATCHERS_OF_SANDBOX {
            true => Err(ConnectError::new(Code::ResourceExhausted, "too many watchers")),
            false => Ok(()),
        }
    }

    fn find(
        &self,
        sandbox: &str,
        id: &str,
    ) -> Result<Arc<tokio::sync::Mutex<Watcher>>, ConnectError> {
        let by_id = lock(&self.by_id);
        let found = by_id.get(id).filter(|(its, _)| its == sandbox);
        found.map(|(_, watcher)| watcher.clone()).ok_or_else(no_watcher)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_watcher() -> ConnectError {
    ConnectError::new(Code::NotFound, "there is no watcher of this id")
}

impl Watched {
    /// What a record is told as.
    fn events(&self, record: WatchRecord) -> Result<Vec<Event>, ConnectError> {
        told(record, |name| {
            let watchers = self.watchers.upgrade();
            let path = path_of(&self.root, name);
            watchers.is_some_and(|watchers| watchers.was_uploaded(&self.sandbox, &path))
        })
    }

    /// An event as a message, with the entry if that was asked for and is there.
    async fn message(call: &Call, root: &str, has_entries: bool, event: Event) -> Value {
        let Event { name, change } = event;
        let (kind, may_have_entry) = match change {
            FileChange::Create => ("EVENT_TYPE_CREATE", true),
            FileChange::Write => ("EVENT_TYPE_WRITE", true),
            FileChange::Remove => ("EVENT_TYPE_REMOVE", false),
            FileChange::Rename => ("EVENT_TYPE_RENAME", false),
            FileChange::Chmod => ("EVENT_TYPE_CHMOD", true),
        };
        let path = path_of(root, &name);
        let mut message = json!({ "name": name, "type": kind });
        if has_entries
            && may_have_entry
            && let Ok(found) = call.stat(&path).await
        {
            message["entry"] = call.entry(&path, found).await;
        }
        message
    }
}

/// What a record is told as: a file that was just uploaded as three events.
fn told(
    record: WatchRecord,
    was_uploaded: impl FnOnce(&str) -> bool,
) -> Result<Vec<Event>, ConnectError> {
    // This protocol has no word for what is missing, but an error.
    let FileEvent { name, change, kind, .. } = match record {
        WatchRecord::Event(event) => event,
        WatchRecord::Omitted { .. } => return Err(missing()),
    };
    let name = name.to_string_lossy().into_owned();
    let may_be_new = change == FileChange::Create && matches!(kind, None | Some(EntryKind::File));
    let changes: &[FileChange] = match may_be_new && was_uploaded(&name) {
        true => &[FileChange::Create, FileChange::Chmod, FileChange::Write],
        false => &[change],
    };
    Ok(changes.iter().map(|&change| Event { name: name.clone(), change }).collect())
}

fn missing() -> ConnectError {
    ConnectError::new(Code::DataLoss, "events are missing: there were more than were asked for")
}

/// The path of what is below a watched directory, or of that itself.
fn path_of(root: &str, name: &str) -> String {
    match name {
        "" => root.to_owned(),
        name => format!("{}/{name}", root.trim_end_matches('/')),
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(watchers) = self.watchers.upgrade() {
            watchers.watches.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Watcher {
    /// Takes what is there.
    fn drain(&mut self) {
        while !self.has_ended {
            match self.watched.watch.next().now_or_never() {
                Some(Some(Ok(record))) => match self.watched.events(record) {
                    Ok(events) => self.events.extend(events),
                    Err(_) => self.is_missing_some = true,
                },
                Some(Some(Err(_)) | None) => self.has_ended = true,
                None => break,
            }
            while self.events.len() > MAX_EVENTS {
                self.events.pop_front();
                self.is_missing_some = true;
            }
        }
    }
}

/// Of all calls, each of which has some of these.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Asked {
    #[serde(deserialize_with = "or_default")]
    path: String,
    #[serde(deserialize_with = "or_default")]
    recursive: bool,
    #[serde(deserialize_with = "or_default", alias = "include_entry")]
    include_entry: bool,
    #[serde(deserialize_with = "or_default", alias = "watcher_id")]
    watcher_id: String,
}

impl Call {
    async fn begin_watch(&self, asked: &Asked) -> Result<Watched, ConnectError> {
        let root = self.resolve(&asked.path)?;
        let (subject, sandbox) = (&self.caller.subject, &self.caller.sandbox);
        let request = WatchRequest { path: (&*root).into(), recursive: asked.recursive };
        let watch = self.app.service().watch_files(subject, sandbox, request).await?;
        self.watchers.watches.fetch_add(1, Ordering::AcqRel);
        let (sandbox, watchers) = (sandbox.id.clone(), Arc::downgrade(&self.watchers));
        Ok(Watched { watch, sandbox, root, has_entries: asked.include_entry, watchers })
    }

    pub(super) async fn watch_dir(
        self,
        asked: Asked,
        bounds: Bounds,
    ) -> Result<Messages, ConnectError> {
        let stop = self.app.stop().clone();
        let watched = self.begin_watch(&asked).await?;
        let watching = Watching { call: self, watched, waiting: VecDeque::new() };
        let rest = stream::unfold(Some(watching), |watching| async {
            let mut watching = watching?;
            match watching.next().await {
                Ok(Some(message)) => Some((to_json(&message), Some(watching))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        });
        let rest = bounded(rest.boxed(), bounds, stop, br#"{"keepalive":{}}"#);
        Ok(after(to_json(&json!({ "start": {} }))?, rest))
    }

    pub(super) async fn create_watcher(self, asked: Asked) -> Result<Value, ConnectError> {
        let sandbox = self.caller.sandbox.id.clone();
        self.watchers.make_room(&sandbox)?;
        let watched = self.begin_watch(&asked).await?;
        let watcher = Watcher {
            watched,
            events: VecDeque::new(),
            has_ended: false,
            is_missing_some: false,
            asked_at: Instant::now(),
        };
        let id = random_hex::<16>();
        let watcher = Arc::new(tokio::sync::Mutex::new(watcher));
        lock(&self.watchers.by_id).insert(id.clone(), (sandbox, watcher));
        Ok(json!({ "watcherId": id }))
    }

    pub(super) async fn watcher_events(self, asked: Asked) -> Result<Value, ConnectError> {
        let watcher = self.watchers.find(&self.caller.sandbox.id, &asked.watcher_id)?;
        let mut watcher = watcher.lock().await;
        // What the same client did before is among them.
        let flushed = watcher.watched.watch.flushed();
        flushed.await;
        watcher.drain();
        watcher.asked_at = Instant::now();
        if std::mem::take(&mut watcher.is_missing_some) {
            // What is left is for who asks again.
            return Err(missing());
        }
        let events = std::mem::take(&mut watcher.events);
        let root = watcher.watched.root.clone();
        let has_entries = watcher.watched.has_entries;
        drop(watcher);
        let mut messages = Vec::with_capacity(events.len());
        for event in events {
            messages.push(Watched::message(&self, &root, has_entries, event).await);
        }
        Ok(json!({ "events": messages }))
    }

    pub(super) async fn remove_watcher(self, asked: Asked) -> Result<Value, ConnectError> {
        self.watchers.find(&self.caller.sandbox.id, &asked.watcher_id)?;
        lock(&self.watchers.by_id).remove(&asked.watcher_id);
        Ok(json!({}))
    }
}

/// A stream of what changes.
struct Watching {
    call: Call,
    watched: Watched,
    waiting: VecDeque<Event>,
}

impl Watching {
    async fn next(&mut self) -> Result<Option<Value>, ConnectError> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                let (root, has_entries) = (self.watched.root.clone(), self.watched.has_entries);
                let message = Watched::message(&self.call, &root, has_entries, event).await;
                return Ok(Some(json!({ "filesystem": message })));
            }
            match self.watched.watch.next().await {
                Some(Ok(record)) => self.waiting.extend(self.watched.events(record)?),
                Some(Err(_)) if !self.call.has_sandbox().await => {
                    return Err(ConnectError::killed());
                }
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_of_a_new_file_is_told_as_three_events() {
        let record = |name: &str, change, kind| {
            WatchRecord::Event(FileEvent { seq: 1, name: name.into(), change, kind })
        };
        let changes = |record, uploaded| {
            let events = told(record, |name| name == uploaded).unwrap().into_iter();
            events.map(|event| event.change).collect::<Vec<_>>()
        };
        let created = || record("d/a", FileChange::Create, Some(EntryKind::File));
        let three = [FileChange::Create, FileChange::Chmod, FileChange::Write];
        assert_eq!(changes(created(), "d/a"), three);
        assert_eq!(changes(created(), "a"), [FileChange::Create]);
        let directory = record("d", FileChange::Create, Some(EntryKind::Directory));
        assert_eq!(changes(directory, "d"), [FileChange::Create]);
        assert_eq!(changes(record("a", FileChange::Write, None), "a"), [FileChange::Write]);
        assert_eq!(told(WatchRecord::Omitted { events: 2 }, |_| false), Err(missing()));
        assert_eq!((path_of("/", "a"), path_of("/d", "")), ("/a".to_owned(), "/d".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_is_remembered_for_a_while_where_somebody_watches() {
        let watchers = Watchers::default();
        watchers.uploading("a", "/x");
        assert!(!watchers.was_uploaded("a", "/x"));
        watchers.watches.store(1, Ordering::Release);
        watchers.uploading("a", "/x");
        assert!(watchers.was_uploaded("a", "/x"));
        assert!(!watchers.was_uploaded("b", "/x") && !watchers.was_uploaded("a", "/y"));
        tokio::time::advance(UPLOADED).await;
        assert!(!watchers.was_uploaded("a", "/x"));
        for number in 0..2 * MAX_UPLOADS {
            watchers.uploading("a", &format!("/{number}"));
        }
        assert_eq!(lock(&watchers.uploads).len(), MAX_UPLOADS);
        assert!(watchers.find("a", "none").is_err());
    }
}
