//! Readers of a process's events. Each has a [place](super::readers) in the kept events, and nothing of
//! its own: what it has not read when it falls out of them, it misses.

use std::sync::Arc;
use std::task::Poll;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use sandbox_api::{EventRecord, ReadFrom, ReadMode};

use super::handle::{Process, State};
use super::readers::MAX_READERS;
use crate::error::Error;

/// The events of a process, from its start or from where its reader was. The last one is the end.
pub type ProcessEvents = BoxStream<'static, Arc<EventRecord>>;

impl Process {
    /// Its events. A reader in [`ReadMode::Wait`] slows it down to its own pace, but holds it up for at
    /// most 30 s: then the reader is a lossy one. Dropping a reader ends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::TooMany`] if it has 8 readers.
    pub fn attach(&self, from: ReadFrom, mode: ReadMode) -> Result<ProcessEvents, Error> {
        let reader = Reader::new(self.clone(), from, mode)?;
        self.attached();
        let events = stream::unfold(Some(reader), |reader| async {
            let reader = reader?;
            let event = reader.next().await?;
            let reader = (!event.event.is_end()).then_some(reader);
            Some((event, reader))
        });
        Ok(events.boxed())
    }
}

/// A reader, which leaves its place when it is dropped.
struct Reader {
    process: Process,
    id: u64,
}

impl Reader {
    fn new(process: Process, from: ReadFrom, mode: ReadMode) -> Result<Self, Error> {
        let mut place = None;
        process.0.state.send_if_modified(|State { ring, readers, .. }| {
            let after = match from {
                ReadFrom::After(after) => after.min(ring.last()),
                ReadFrom::Now => ring.last(),
            };
            place = readers.add(after, mode);
            false
        });
        let id = place.ok_or(Error::TooMany { most: MAX_READERS, what: "readers" })?;
        Ok(Self { process, id })
    }

    async fn next(&self) -> Option<Arc<EventRecord>> {
        let mut states = self.process.0.state.subscribe();
        loop {
            states.mark_unchanged();
            match self.take() {
                Poll::Ready(event) => return event,
                Poll::Pending => states.changed().await.ok()?,
            }
        }
    }

    /// The next event, if it is there; `None` for one that was attached after the last event.
    fn take(&self) -> Poll<Option<Arc<EventRecord>>> {
        let (mut event, mut is_over) = (None, false);
        // Both are of one moment: what comes last is not overtaken by the end.
        self.process.0.state.send_if_modified(|State { ring, readers, ended, .. }| {
            (event, is_over) = (readers.take(self.id, ring), ended.is_some());
            false
        });
        match event {
            Some(event) => {
                self.process.0.taken.notify_one();
                Poll::Ready(Some(event))
            }
            None if is_over => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.process.0.state.send_if_modified(|state| {
            state.readers.remove(self.id);
            false
        });
        self.process.0.taken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sandbox_api::{ExecutionEvent, OutputStream};

    use super::super::handle::Identity;
    use super::*;

    #[tokio::test]
    async fn output_that_was_dropped_after_the_end_is_reported_as_missing() {
        let (process, _asked, _input) = Process::new(1, Identity::of_tests(), false);
        let (stream, data) = (OutputStream::Stdout, Bytes::from_static(&[b'x'; 100]));
        process.push(ExecutionEvent::Output { stream, data });
        assert_eq!((process.kept_output(), process.drop_output()), (None, 0));
        process.ended(None, None, None);
        assert!(!process.kept_output().unwrap().is_read);
        let events = process.attach(ReadFrom::After(0), ReadMode::Wait).unwrap();
        let kept = process.kept_output().unwrap();
        assert!(kept.is_read && kept.bytes == process.kept_bytes());
        let dropped = process.drop_output();
        assert!(dropped > 100 && process.kept_bytes() == kept.bytes - dropped);
        let seen: Vec<_> = events.map(|event| event.event.name()).collect().await;
        assert_eq!(seen, ["omitted", "end"]);
        assert_eq!(process.drop_output(), 0);
    }

    /// Once for each of many processes that end while they are read.
    #[test]
    fn a_reader_gets_the_end_of_a_process_that_ends_as_it_looks() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        for _ in 0..2000 {
            let (process, _asked, _input) = Process::new(1, Identity::of_tests(), false);
            let events = process.attach(ReadFrom::After(0), ReadMode::Wait).unwrap();
            let reading =
                runtime.spawn(events.map(|event| event.event.is_end()).collect::<Vec<_>>());
            std::thread::yield_now();
            process.ended(None, None, None);
            let seen = runtime.block_on(reading).unwrap();
            assert_eq!(seen, [false, true]);
        }
    }
}
