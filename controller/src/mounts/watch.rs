//! The mount table as it changes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use sandbox_engine::mount_table::{MOUNTINFO, MountTable};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

/// The minimum interval between two reads of the table: changes within it count as one.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// The bytes of a table that is short: about a hundred mounts.
const SHORT: usize = 16 << 10;

/// The mount table, or why it could not be read.
pub(super) type Table = Result<Arc<MountTable>, Arc<io::Error>>;
/// The mount table after the last change. `None` before the first one.
type Latest = Option<Table>;

/// Watches the mount table for as long as there are subscribers, once for all of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct MountWatch(Arc<Mutex<Weak<Watcher>>>);

#[derive(Debug)]
struct Watcher {
    shared: Arc<MountReader>,
    _task: AbortOnDropHandle<()>,
}

/// Reads the table.
#[derive(Debug)]
pub(super) struct MountReader {
    /// Open while the table is watched: reading it again needs no new descriptor, which could be
    /// refused. Locked, because overlapping reads would tear lines.
    mountinfo: Mutex<Arc<File>>,
    /// The bytes of the table when it was last read.
    length: AtomicUsize,
    /// The text of that table, and what it says: mostly the next one is the same.
    last: Mutex<Option<(Vec<u8>, MountTable)>>,
    latest: watch::Sender<Latest>,
    /// A request to read the table without a change.
    again: Notify,
    /// The table of the last check or launch, and the start of that read.
    looked: Mutex<Option<(Instant, Table)>>,
}

/// The changes since the subscription.
#[derive(Debug)]
pub(super) struct MountChanges {
    latest: watch::Receiver<Latest>,
    /// For reading the table at any time.
    pub reader: Arc<MountReader>,
    /// Watching ends when the last of these is dropped.
    _watcher: Option<Arc<Watcher>>,
}

impl MountWatch {
    /// The current table. All later changes are reported.
    pub(super) fn subscribe(&self) -> io::Result<(Arc<MountTable>, MountChanges)> {
        let mut watcher = crate::lock(&self.0);
        let watcher = match watcher.upgrade() {
            Some(watcher) => watcher,
            None => {
                let new = Arc::new(Watcher::start()?);
                *watcher = Arc::downgrade(&new);
                new
            }
        };
        let reader = watcher.shared.clone();
        let mountinfo = crate::lock(&reader.mountinfo);
        let began = Instant::now();
        let table = reader.read(&mountinfo)?;
        // The mounts of a launch are checked by it, so the first use after that needs no other look.
        *crate::lock(&reader.looked) = Some((began, Ok(Arc::new(table.clone()))));
        let table = Arc::new(table);
        // Tables published so far are older than this one; later ones are not.
        let latest = reader.latest.subscribe();
        drop(mountinfo);
        Ok((table, MountChanges { latest, reader, _watcher: Some(watcher) }))
    }
}

impl Watcher {
    #[expect(
        deprecated,
        reason = "what is unsound is another type's AsRawFd: a File's is constant"
    )]
    fn start() -> io::Result<Self> {
        let mountinfo = Arc::new(File::open(MOUNTINFO)?);
        let reader = Arc::new(MountReader::new(mountinfo.clone()));
        // The kernel compares with the moment at which the file was opened: no change before the
        // task's first poll is missed. It reports changes as POLLPRI and POLLERR.
        let changes = AsyncFd::with_interest(mountinfo, Interest::PRIORITY)?;
        let shared = reader.clone();
        let task = crate::spawn(async move {
            loop {
                tokio::select! {
                    changed = changes.ready(Interest::PRIORITY) => match changed {
                        Ok(mut changed) => changed.clear_ready(),
                        // The runtime is shutting down.
                        Err(_) => return,
                    },
                    () = reader.again.notified() => {}
                }
                // The table can be long.
                let reader = reader.clone();
                if tokio::task::spawn_blocking(move || reader.publish()).await.is_err() {
                    return;
                }
                tokio::time::sleep(READ_INTERVAL).await;
            }
        });
        Ok(Self { shared, _task: AbortOnDropHandle::new(task) })
    }
}

impl MountReader {
    #[cfg(test)]
    pub fn of(mountinfo: File) -> Arc<Self> {
        Arc::new(Self::new(Arc::new(mountinfo)))
    }

    /// The table, at most `age` old. All checks share it.
    pub async fn table(self: &Arc<Self>, age: Duration) -> Table {
        if let Some(table) = self.looked(age) {
            return table;
        }
        // Reading a short one takes less time than a thread switch.
        if self.length.load(Ordering::Relaxed) <= SHORT {
            return self.look(age);
        }
        let reader = self.clone();
        let read = tokio::task::spawn_blocking(move || reader.look(age)).await;
        read.unwrap_or_else(|error| Err(Arc::new(io::Error::other(error))))
    }

    fn new(mountinfo: Arc<File>) -> Self {
        let latest = watch::Sender::new(None);
        Self {
            mountinfo: Mutex::new(mountinfo),
            length: AtomicUsize::new(usize::MAX),
            last: Mutex::default(),
            latest,
            again: Notify::new(),
            looked: Mutex::default(),
        }
    }

    /// Reads the table from its beginning.
    fn read(&self, mountinfo: &File) -> io::Result<MountTable> {
        let text = read(mountinfo)?;
        self.length.store(text.len(), Ordering::Relaxed);
        let mut last = crate::lock(&self.last);
        if let Some((_, table)) = last.as_ref().filter(|(of, _)| *of == text) {
            return Ok(table.clone());
        }
        let table = MountTable::parse(&text)?;
        *last = Some((text, table.clone()));
        Ok(table)
    }

    fn publish(&self) {
        let mountinfo = crate::lock(&self.mountinfo);
        self.latest.send_replace(Some(self.read(&mountinfo).map(Arc::new).map_err(Arc::new)));
    }

    fn looked(&self, age: Duration) -> Option<Table> {
        let looked = crate::lock(&self.looked);
        looked.as_ref().filter(|(began, _)| began.elapsed() < age).map(|(_, table)| table.clone())
    }

    fn look(&self, age: Duration) -> Table {
        let mountinfo = crate::lock(&self.mountinfo);
        // Another check may just have read it.
        self.looked(age).unwrap_or_else(|| {
            let began = Instant::now();
            let table = self.read(&mountinfo).map(Arc::new).map_err(Arc::new);
            *crate::lock(&self.looked) = Some((began, table.clone()));
            table
        })
    }
}

impl MountChanges {
    /// Waits for the table after the next change, or after several.
    pub async fn next(&mut self) -> Table {
        while self.latest.changed().await.is_ok() {
            if let Some(table) = &*self.latest.borrow_and_update() {
                return table.clone();
            }
        }
        // The runtime is shutting down.
        std::future::pending().await
    }

    /// The table after the last change since the subscription, if there was one.
    pub fn latest(&self) -> Latest {
        let has_changed = self.latest.has_changed().unwrap_or(false);
        has_changed.then(|| self.latest.borrow().clone()).flatten()
    }

    /// Requests another read of the table soon, whether it changes or not.
    pub fn read_again(&self) {
        self.reader.again.notify_one();
    }
}

fn read(mountinfo: &File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    // The kernel gives a page at a time.
    let mut part = [0; 4 << 10];
    loop {
        match mountinfo.read_at(&mut part, text.len() as u64) {
            Ok(0) => return Ok(text),
            Ok(length) => text.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Changes made up by a test.
#[cfg(test)]
pub(super) struct MadeUp(Arc<MountReader>);

#[cfg(test)]
impl MadeUp {
    pub fn new() -> (Self, MountChanges) {
        let reader = Arc::new(MountReader::new(Arc::new(File::open(MOUNTINFO).unwrap())));
        let latest = reader.latest.subscribe();
        (Self(reader.clone()), MountChanges { latest, reader, _watcher: None })
    }

    /// Publishes a table.
    pub fn publish(&self, table: io::Result<MountTable>) {
        self.0.latest.send_replace(Some(table.map(Arc::new).map_err(Arc::new)));
    }

    /// Waits until another read is requested.
    pub async fn is_asked_again(&self) {
        self.0.again.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_again_from_the_same_descriptor() {
        let mountinfo = File::open(MOUNTINFO).unwrap();
        let fresh = || std::fs::read(MOUNTINFO).unwrap();
        assert!(!fresh().is_empty());
        let again = || read(&mountinfo).unwrap();
        // Other processes mount too: retried until none has.
        assert!((0..1000).any(|_| [fresh(), fresh()] == [again(), again()]));
    }

    #[tokio::test]
    async fn the_table_of_a_launch_is_a_look_and_is_read_again_after_that() {
        let watch = MountWatch::default();
        let (_table, changes) = watch.subscribe().unwrap();
        let of_launch = changes.reader.looked(Duration::MAX).expect("it was read").unwrap();
        let looked = changes.reader.table(Duration::MAX).await.unwrap();
        assert!(Arc::ptr_eq(&of_launch, &looked));
        let looked = changes.reader.table(Duration::ZERO).await.unwrap();
        assert!(!Arc::ptr_eq(&of_launch, &looked));
    }

    #[tokio::test]
    async fn all_who_watch_have_one_table_and_one_that_is_asked_for_again_is_read() {
        let watch = MountWatch::default();
        let (_table, mut one) = watch.subscribe().unwrap();
        let (_table, mut other) = watch.subscribe().unwrap();
        one.read_again();
        let (one, other) = tokio::join!(one.next(), other.next());
        assert!(Arc::ptr_eq(&one.unwrap(), &other.unwrap()));
    }
}
