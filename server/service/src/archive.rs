//! All files of an execution as one archive, which is written as it is read.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use sandbox_api::changes::ChangeManifest;
use sandbox_api::service::Subject;
use sandbox_controller::artifacts::ArchiveFormat;
use tokio::sync::{mpsc, oneshot};

use crate::error::ServiceError;
use crate::service::Service;

/// How many pieces are written ahead of the reader.
const PIECES: usize = 4;
/// How many executions' files are read at one time, in all and for one subject. Each reader has a
/// thread of its own: how long it takes is up to the subject, and nothing else waits for it.
const READERS: usize = 16;
const OF_A_SUBJECT: usize = 4;
/// When to try again if there are too many.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The subjects of those that are reading.
#[derive(Debug, Default)]
pub(crate) struct Readers(Arc<Mutex<Vec<Subject>>>);

/// The place of one of them.
struct ReaderSlot {
    readers: Arc<Mutex<Vec<Subject>>>,
    subject: Subject,
}

impl Readers {
    /// Starts a thread for a subject. Dropped work was not started, for want of a thread.
    ///
    /// # Errors
    ///
    /// [`ServiceError::TooFast`] if there are as many as there may be.
    fn start(
        &self,
        subject: &Subject,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServiceError> {
        let too_many = || ServiceError::TooFast { retry_after: RETRY_AFTER };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.iter().filter(|reading| *reading == subject).count();
        if all.len() >= READERS || own >= OF_A_SUBJECT {
            return Err(too_many());
        }
        all.push(subject.clone());
        drop(all);
        let slot = ReaderSlot { readers: Arc::clone(&self.0), subject: subject.clone() };
        let work = move || {
            work();
            drop(slot);
        };
        let started = thread::Builder::new().name("read files".to_owned()).spawn(work);
        started.map(drop).map_err(|_| too_many())
    }
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        let mut all = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.iter().position(|reading| *reading == self.subject) {
            all.swap_remove(at);
        }
    }
}

/// An archive in pieces. An error means that it is incomplete; dropping it ends the work.
pub type Archive = BoxStream<'static, io::Result<Bytes>>;

impl Service {
    /// An archive of the regular files that an execution left: a tar archive, compressed.
    ///
    /// # Errors
    ///
    /// As of [`files`](Self::files); [`ServiceError::Invalid`] for a format that cannot be streamed;
    /// [`ServiceError::TooFast`] if too many are read already.
    pub async fn archive(
        &self,
        subject: &Subject,
        id: &str,
        format: ArchiveFormat,
    ) -> Result<Archive, ServiceError> {
        if format == ArchiveFormat::Zip {
            return Err(ServiceError::invalid("format", "it is one of tar.zst and tar.gz"));
        }
        let core = self.core.with_files(subject, id).await?;
        let (sender, receiver) = mpsc::channel(PIECES);
        let id = id.to_owned();
        let reading = core.clone();
        core.readers.start(subject, move || {
            let proceed = || !sender.is_closed();
            let written = reading.files.archive(&id, format, Pieces(sender.clone()), &proceed);
            if let Err(error) = written {
                // Nobody may be there any more.
                _ = sender.blocking_send(Err(error));
            }
        })?;
        let pieces = stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|piece| (piece, receiver))
        });
        Ok(pieces.boxed())
    }

    /// The change manifest of an execution's own files: everything in it was created by it.
    ///
    /// # Errors
    ///
    /// As of [`archive`](Self::archive).
    pub async fn changes(
        &self,
        subject: &Subject,
        id: &str,
    ) -> Result<ChangeManifest, ServiceError> {
        let core = self.core.with_files(subject, id).await?;
        let id = id.to_owned();
        // Ends the work when the caller is gone.
        let is_wanted = CancelOnDrop(Arc::new(AtomicBool::new(true)));
        let wanted = is_wanted.0.clone();
        let reading = core.clone();
        let (sender, read) = oneshot::channel();
        core.readers.start(subject, move || {
            let wanted = || wanted.load(Ordering::Relaxed);
            _ = sender.send(reading.files.changes(&id, &wanted));
        })?;
        read.await.map_err(|_| ServiceError::Internal { detail: "the reader of files panicked" })?
    }
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Sends what is written, and waits while nobody reads.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        self.0.blocking_send(Ok(piece)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn slow_readers_of_a_subject_leave_room_for_others() {
        let readers = Readers::default();
        let start = |subject: &str| {
            let (sender, end) = mpsc::channel::<()>();
            let subject = Subject::new(subject).unwrap();
            readers.start(&subject, move || _ = end.recv()).map(|()| sender)
        };
        let is_refused =
            |subject: &str| matches!(start(subject).err(), Some(ServiceError::TooFast { .. }));
        let mut held = Vec::new();
        for number in 0..READERS / OF_A_SUBJECT {
            let subject = format!("subject-{number}");
            held.extend((0..OF_A_SUBJECT).map(|_| start(&subject).unwrap()));
            assert!(is_refused(&subject));
        }
        assert!(is_refused("last"));
        held.pop();
        // It is noticed soon.
        while is_refused("last") {
            thread::yield_now();
        }
    }
}
