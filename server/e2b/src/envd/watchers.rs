//! Watched directories, and the watchers that are asked for what changes in them.
//!
//! An upload of a new file appears in one step; E2B's clients expect to see it created, given its owner and
//! written. So what the sandbox reports of a file that was just uploaded here becomes these three events.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use sandbox_api::operation::EntryKind;
use sandbox_api::{FileChange, FileEvent, WatchRecord};
use sandbox_dirfd::random_hex;
use sandbox_service::{FileWatch, ServiceError};
use tokio::time::Instant;

use crate::connect::{Code, ConnectError};
use crate::sandbox::lock;

/// The most watchers at a time, and of one sandbox.
const MAX_WATCHERS: usize = 1024;
const MAX_WATCHERS_OF_SANDBOX: usize = 8;
/// The most events that wait to be asked for.
const MAX_EVENTS: usize = 4096;
/// When a watcher that no request reads is forgotten.
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
pub(super) struct Watcher {
    watched: Watched,
    events: VecDeque<Event>,
    has_ended: bool,
    /// Whether some are missing, which is reported once.
    is_missing_some: bool,
    asked_at: Instant,
}

/// A directory that is being watched.
pub(super) struct Watched {
    watch: FileWatch,
    sandbox: String,
    pub root: String,
    /// Whether events have the entries that they are about.
    pub has_entries: bool,
    /// Weak: one of them may be in it.
    watchers: Weak<Watchers>,
}

/// What happened to a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub name: String,
    pub change: FileChange,
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

    /// Forgets those that have ended or that no request reads any more, and makes room for one.
    pub(super) fn make_room(&self, sandbox: &str) -> Result<(), ConnectError> {
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

    /// A directory that is watched from now on.
    pub(super) fn watched(
        self: &Arc<Self>,
        watch: FileWatch,
        sandbox: String,
        root: String,
        has_entries: bool,
    ) -> Watched {
        self.watches.fetch_add(1, Ordering::AcqRel);
        Watched { watch, sandbox, root, has_entries, watchers: Arc::downgrade(self) }
    }

    /// Adds a watcher; returns its id.
    pub(super) fn add(&self, watched: Watched) -> String {
        let (id, sandbox) = (random_hex::<16>(), watched.sandbox.clone());
        let watcher = Watcher {
            watched,
            events: VecDeque::new(),
            has_ended: false,
            is_missing_some: false,
            asked_at: Instant::now(),
        };
        let watcher = Arc::new(tokio::sync::Mutex::new(watcher));
        lock(&self.by_id).insert(id.clone(), (sandbox, watcher));
        id
    }

    pub(super) fn remove(&self, sandbox: &str, id: &str) -> Result<(), ConnectError> {
        self.find(sandbox, id)?;
        lock(&self.by_id).remove(id);
        Ok(())
    }

    pub(super) fn find(&self, sandbox: &str, id: &str) -> Result<Shared, ConnectError> {
        let by_id = lock(&self.by_id);
        let found = by_id.get(id).filter(|(its, _)| its == sandbox);
        found.map(|(_, watcher)| watcher.clone()).ok_or_else(no_watcher)
    }
}

fn no_watcher() -> ConnectError {
    ConnectError::new(Code::NotFound, "there is no watcher of this id")
}

impl Watched {
    /// What happens next, if the watch goes on.
    pub(super) async fn next(&mut self) -> Option<Result<WatchRecord, ServiceError>> {
        self.watch.next().await
    }

    /// The events of a record.
    pub(super) fn events(&self, record: WatchRecord) -> Result<Vec<Event>, ConnectError> {
        events_of(record, |name| {
            let watchers = self.watchers.upgrade();
            let path = path_of(&self.root, name);
            watchers.is_some_and(|watchers| watchers.was_uploaded(&self.sandbox, &path))
        })
    }
}

/// The events of a record: three for a file that was just uploaded.
fn events_of(
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
pub(super) fn path_of(root: &str, name: &str) -> String {
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
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// Takes all that has happened since it was asked before.
    pub(super) async fn take(&mut self) -> Result<VecDeque<Event>, ConnectError> {
        // What the same client did before is among them.
        let flushed = self.watched.watch.flushed();
        flushed.await;
        self.drain();
        self.asked_at = Instant::now();
        match std::mem::take(&mut self.is_missing_some) {
            // What is left is for who asks again.
            true => Err(missing()),
            false => Ok(std::mem::take(&mut self.events)),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_of_a_new_file_is_reported_as_three_events() {
        let record = |name: &str, change, kind| {
            WatchRecord::Event(FileEvent { seq: 1, name: name.into(), change, kind })
        };
        let changes = |record, uploaded| {
            let events = events_of(record, |name| name == uploaded).unwrap().into_iter();
            events.map(|event| event.change).collect::<Vec<_>>()
        };
        let created = || record("d/a", FileChange::Create, Some(EntryKind::File));
        let three = [FileChange::Create, FileChange::Chmod, FileChange::Write];
        assert_eq!(changes(created(), "d/a"), three);
        assert_eq!(changes(created(), "a"), [FileChange::Create]);
        let directory = record("d", FileChange::Create, Some(EntryKind::Directory));
        assert_eq!(changes(directory, "d"), [FileChange::Create]);
        assert_eq!(changes(record("a", FileChange::Write, None), "a"), [FileChange::Write]);
        assert_eq!(events_of(WatchRecord::Omitted { events: 2 }, |_| false), Err(missing()));
        assert_eq!((path_of("/", "a"), path_of("/d", "")), ("/a".to_owned(), "/d".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_is_remembered_for_a_while_where_there_is_a_watcher() {
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
