//! The sizes of directories that change: each is measured again when it may be another one, and that
//! costs a small part of the time, however large it is and however often it is asked for.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use sandbox_api::service::Subject;

use crate::files::{bytes_below, image_bytes};
use crate::lock;

/// A directory is measured again after so many times as long as the last time took.
const PAUSE: u32 = 10;

/// The size of a directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiskUsage(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    measured: Mutex<Measured>,
    /// Held by the one that measures.
    measuring: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Measured {
    /// When it was last measured.
    bytes: u64,
    /// How often it was.
    times: u64,
    /// The bytes that were added to it, as far as its callers know.
    added: u64,
    /// How often it has changed.
    changes: u64,
    /// How often it had when it was last measured.
    changes_in_it: Option<u64>,
    /// Before this it is not measured again.
    not_before: Option<Instant>,
}

impl DiskUsage {
    fn lock(&self) -> MutexGuard<'_, Measured> {
        lock(&self.0.measured)
    }

    /// It may be another one now.
    pub fn changed(&self) {
        self.lock().changes += 1;
    }

    /// So many bytes were added to it: they count before it is measured again.
    pub fn grew(&self, bytes: u64) {
        let mut measured = self.lock();
        measured.added += bytes;
        measured.bytes = measured.bytes.saturating_add(bytes);
    }

    /// Whether there is no other user of it, except the one that keeps it.
    pub fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) <= 2
    }

    /// The bytes of an io dir that is kept at a path: of an image, those that it has on the disk now.
    pub async fn bytes_of(&self, path: PathBuf, is_in_use: bool) -> u64 {
        let image = path.clone();
        match crate::blocking(move || Ok(image_bytes(&image))).await {
            Ok(Some(bytes)) => bytes,
            _ => self.bytes(is_in_use, move || bytes_below(&path)).await,
        }
    }

    /// The bytes by `measure`, or those of the last time. While the directory is in use it changes all
    /// the time. One measures at a time, and goes on if its caller goes away; others wait for it.
    pub async fn bytes(
        &self,
        is_in_use: bool,
        measure: impl FnOnce() -> u64 + Send + 'static,
    ) -> u64 {
        let times = {
            let measured = self.lock();
            let is_due = measured.not_before.is_none_or(|at| Instant::now() >= at);
            let is_current = measured.changes_in_it == Some(measured.changes);
            if !is_due || (is_current && !is_in_use) {
                return measured.bytes;
            }
            measured.times
        };
        let turn = self.0.measuring.clone().lock_owned().await;
        {
            let measured = self.lock();
            if measured.times > times {
                return measured.bytes;
            }
        }
        let size = self.clone();
        let measuring = crate::spawn(async move {
            size.measure(measure).await;
            drop(turn);
        });
        _ = measuring.await;
        self.lock().bytes
    }

    async fn measure(&self, measure: impl FnOnce() -> u64 + Send + 'static) {
        let (since, (changes, added)) = (Instant::now(), {
            let measured = self.lock();
            (measured.changes, measured.added)
        });
        let bytes = crate::blocking(move || Ok(measure())).await;
        let mut measured = self.lock();
        if let Ok(bytes) = bytes {
            // What was added meanwhile may not have been seen.
            measured.bytes = bytes.saturating_add(measured.added - added);
            // What changes meanwhile may not be.
            measured.changes_in_it = Some(changes);
        }
        measured.times += 1;
        measured.not_before = Some(Instant::now() + since.elapsed() * PAUSE);
    }
}

/// The sizes of the directories of subjects, of those that have one.
#[derive(Debug, Default)]
pub(crate) struct SubjectDirs(Mutex<HashMap<Subject, DiskUsage>>);

impl SubjectDirs {
    pub fn changed(&self, subject: &Subject) {
        if let Some(size) = lock(&self.0).get(subject) {
            size.changed();
        }
    }

    /// The bytes below the directory of a subject, which changes all the time while it is in use.
    pub async fn bytes_of(&self, subject: &Subject, directory: PathBuf, is_in_use: bool) -> u64 {
        let size = lock(&self.0).entry(subject.clone()).or_default().clone();
        let bytes = size.bytes_of(directory, is_in_use).await;
        let mut sizes = lock(&self.0);
        if bytes == 0 && size.is_unshared() {
            sizes.remove(subject);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;

    use super::*;

    /// A measurement that ends when a test lets it.
    fn held(bytes: u64) -> (mpsc::Sender<()>, impl FnOnce() -> u64 + Send + 'static) {
        let (end, ended) = mpsc::channel();
        let measure = move || {
            ended.recv().unwrap();
            bytes
        };
        (end, measure)
    }

    #[tokio::test]
    async fn measurement_goes_on_without_its_caller_and_others_wait_for_it() {
        let size = DiskUsage::default();
        let (end, measure) = held(7);
        let mut caller = Box::pin(size.bytes(false, measure));
        assert!((&mut caller).now_or_never().is_none());
        drop(caller);
        let mut other = Box::pin(size.bytes(false, || panic!("it is measured twice")));
        // A size that was not measured is not reported.
        assert!((&mut other).now_or_never().is_none());
        end.send(()).unwrap();
        assert_eq!(other.await, 7);
        assert_eq!(size.bytes(false, || panic!("nothing has changed")).await, 7);
    }

    #[tokio::test]
    async fn directory_that_changes_while_it_is_measured_is_measured_again() {
        let size = DiskUsage::default();
        let (end, measure) = held(1);
        let mut caller = Box::pin(size.bytes(false, measure));
        assert!((&mut caller).now_or_never().is_none());
        // It begins on a task of its own.
        tokio::task::yield_now().await;
        size.changed();
        end.send(()).unwrap();
        assert_eq!(caller.await, 1);
        size.lock().not_before = None;
        assert_eq!(size.bytes(false, || 2).await, 2);
    }

    #[tokio::test]
    async fn what_was_added_counts_before_it_is_measured() {
        let size = DiskUsage::default();
        assert_eq!(size.bytes(false, || 1).await, 1);
        size.grew(7);
        assert_eq!(size.bytes(false, || panic!("nothing else has changed")).await, 8);
        size.changed();
        size.lock().not_before = None;
        let grows = size.clone();
        let measure = move || {
            grows.grew(9);
            8
        };
        assert_eq!(size.bytes(false, measure).await, 8 + 9);
    }

    #[tokio::test]
    async fn many_that_ask_at_one_time_measure_once() {
        let (size, count) = (DiskUsage::default(), Arc::<AtomicUsize>::default());
        let ask = |_| {
            let count = Arc::clone(&count);
            size.bytes(true, move || {
                count.fetch_add(1, Ordering::Relaxed);
                3
            })
        };
        assert!(join_all((0..10).map(ask)).await.iter().all(|bytes| *bytes == 3));
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
