//! Watched directories: a long request to the agent, and what it reports until its reader is gone.
//!
//! The agent reports at its own pace, and nothing waits for the reader: a slow one misses the oldest
//! changes.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures_util::stream::Stream;
use sandbox_api::{FileEvent, WatchRecord, WatchRequest};
use sandbox_protocol::limits::LIST_PAGE;
use sandbox_protocol::message::{ChangedEntry, Changes, Done, Flush, Watch, Watched};
use sandbox_protocol::path::MAX_PATH_BYTES;
use sandbox_session::{CallError, InFlightPermit, NotificationHandler, Reply};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::call::{OperationCall, cancel, failed, with_timeout};
use crate::error::Error;
use crate::sandbox::idle::Active;
use crate::sandbox::{Inner, Sandbox};

/// How many changes are kept for a reader, and how many bytes of their names.
const MOST_KEPT: usize = 4096;
const MOST_KEPT_BYTES: usize = 1 << 20;

const UNENDED: &str = "a watch did not end after its cancel";

impl Sandbox {
    /// Watches a directory: what changes in it is reported until the result is dropped, or the directory is
    /// gone. The watch is on when this returns.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `not_a_directory`; `busy` if the sandbox has 8 watches;
    /// `invalid_request` if it runs scripts only.
    pub async fn watch_files(&self, request: WatchRequest) -> Result<FileWatch, Error> {
        let call = OperationCall::new(self.inner().clone(), "watch", (&request.path, None));
        let watch = begin(&call, &request).await;
        call.end_with(None, watch)
    }
}

async fn begin(call: &OperationCall, request: &WatchRequest) -> Result<FileWatch, Error> {
    let (inner, queue) = (call.inner(), Arc::new(Queue::default()));
    let asked = Watch { path: request.path.clone(), recursive: request.recursive };
    let permit = InFlightPermit::of_kept();
    let reply = call.send(inner.session.begin_at(permit, asked, Some(queue.clone()))).await?;
    let dropped = CancellationToken::new();
    let (inner, queue) = (inner.clone(), queue);
    // A caller that stops waiting drops it too.
    let watch = FileWatch {
        inner: inner.clone(),
        queue: queue.clone(),
        _reader: dropped.clone().drop_guard(),
    };
    let active = inner.activity.begin();
    let (starting, started) = oneshot::channel();
    let driver = Driver { inner, reply, queue, dropped, _active: active };
    crate::spawn(driver.run(starting));
    let gone = |_| Error::Ended { detail: "the runtime is shutting down".to_owned() };
    started.await.map_err(gone)?.map(|()| watch)
}

/// The changes in a directory. It ends when the directory is gone, and with an error if the sandbox ends.
/// Dropping it ends the watch.
pub struct FileWatch {
    inner: Arc<Inner>,
    queue: Arc<Queue>,
    _reader: DropGuard,
}

impl FileWatch {
    /// Completes when all that was changed before is there to be read, or the sandbox does not answer.
    pub fn flushed(&self) -> impl Future<Output = ()> + Send + use<> {
        let inner = self.inner.clone();
        async move {
            let flushed = inner.session.call(Flush {});
            _ = with_timeout(&inner, flushed).await;
        }
    }
}

impl Stream for FileWatch {
    type Item = Result<WatchRecord, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.queue.poll(context)
    }
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FileWatch").finish_non_exhaustive()
    }
}

/// Changes on their way to the reader.
#[derive(Default)]
struct Queue {
    /// The watch is on.
    is_on: Notify,
    state: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<FileEvent>,
    /// The bytes of their names.
    bytes: usize,
    /// The number of the last one.
    last: u64,
    /// How many are missing before these.
    omitted: u64,
    /// Nothing more comes, and why, unless the directory is gone.
    end: Option<Option<Error>>,
    reader: Option<Waker>,
}

impl Queue {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<WatchRecord, Error>>> {
        let mut state = crate::lock(&self.state);
        if state.omitted > 0 {
            let events = std::mem::take(&mut state.omitted);
            return Poll::Ready(Some(Ok(WatchRecord::Omitted { events })));
        }
        if let Some(event) = state.events.pop_front() {
            state.bytes -= event.name.as_bytes().len();
            return Poll::Ready(Some(Ok(WatchRecord::Event(event))));
        }
        if let Some(end) = &mut state.end {
            return Poll::Ready(end.take().map(Err));
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn end(&self, why: Option<Error>) {
        let mut state = crate::lock(&self.state);
        state.end = Some(why);
        state.wake();
    }
}

impl Kept {
    /// Adds changes, before which some are missing.
    fn add(&mut self, omitted: u64, entries: Vec<ChangedEntry>) {
        if omitted > 0 {
            // Those that are kept came before: what is missing is missing at one place.
            let kept = std::mem::take(&mut self.events).len() as u64;
            self.bytes = 0;
            self.last = self.last.saturating_add(omitted);
            self.omitted = self.omitted.saturating_add(omitted).saturating_add(kept);
        }
        for ChangedEntry { name, change, kind } in entries {
            self.last = self.last.saturating_add(1);
            self.bytes += name.as_bytes().len();
            self.events.push_back(FileEvent { seq: self.last, name, change, kind });
        }
        while self.events.len() > MOST_KEPT || self.bytes > MOST_KEPT_BYTES {
            let Some(dropped) = self.events.pop_front() else { break };
            self.bytes -= dropped.name.as_bytes().len();
            self.omitted = self.omitted.saturating_add(1);
        }
    }

    fn wake(&mut self) {
        self.reader.take().into_iter().for_each(Waker::wake);
    }
}

impl NotificationHandler for Queue {
    fn watched(&self, _: Watched) -> Result<(), String> {
        self.is_on.notify_one();
        Ok(())
    }

    fn changes(&self, Changes { omitted, entries, .. }: Changes) -> Result<(), String> {
        if entries.len() > LIST_PAGE || !entries.iter().all(|entry| is_below(entry.name.as_bytes()))
        {
            return Err("changes that are not below the watched directory".to_owned());
        }
        let mut state = crate::lock(&self.state);
        state.add(omitted, entries);
        state.wake();
        Ok(())
    }
}

/// Whether this is the path of something below a directory, or empty for that itself.
fn is_below(name: &[u8]) -> bool {
    let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
    name.is_empty() || name.len() <= MAX_PATH_BYTES && name.split(|&it| it == b'/').all(is_name)
}

/// Has the request until it is answered.
struct Driver {
    inner: Arc<Inner>,
    reply: Reply<Done>,
    queue: Arc<Queue>,
    /// The reader is gone.
    dropped: CancellationToken,
    _active: Active,
}

impl Driver {
    async fn run(mut self, starting: oneshot::Sender<Result<(), Error>>) {
        let inner = self.inner.clone();
        let begun = async {
            tokio::select! {
                biased;
                () = self.queue.is_on.notified() => None,
                answer = self.reply.wait() => Some(answer),
            }
        };
        match with_timeout(&inner, begun).await {
            // The caller may be gone, which is noticed below.
            Ok(None) => _ = starting.send(Ok(())),
            Ok(Some(Err(error))) => {
                _ = starting.send(Err(failed(&inner, error).await));
                return;
            }
            // It was on, as the session lets no other through: both have come since it was last looked for.
            Ok(Some(Ok(Done {}))) => {
                _ = starting.send(Ok(()));
                return self.queue.end(None);
            }
            Err(late) => {
                _ = starting.send(Err(late));
                return cancel(&inner, &mut self.reply.answer, UNENDED).await;
            }
        }
        let answer = tokio::select! {
            biased;
            answer = self.reply.wait() => answer,
            () = self.dropped.cancelled() => {
                return cancel(&inner, &mut self.reply.answer, UNENDED).await;
            }
        };
        let why = match answer {
            Ok(Done {}) => None,
            Err(CallError::Over) => Some(inner.why_ended().await),
            Err(error) => Some(failed(&inner, error).await),
        };
        self.queue.end(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_protocol::message::FileChange;

    fn entry(name: &[u8]) -> ChangedEntry {
        ChangedEntry { name: name.into(), change: FileChange::Write, kind: None }
    }

    fn read(queue: &Queue) -> Vec<String> {
        let mut context = Context::from_waker(Waker::noop());
        let mut read = Vec::new();
        while let Poll::Ready(Some(record)) = queue.poll(&mut context) {
            read.push(match record.unwrap() {
                WatchRecord::Event(event) => format!("{} {}", event.seq, event.name),
                WatchRecord::Omitted { events } => format!("omitted {events}"),
            });
        }
        read
    }

    #[test]
    fn slow_reader_misses_the_oldest_changes_and_gets_their_number() {
        let queue = Queue::default();
        let changes =
            |omitted, names: Vec<ChangedEntry>| Changes { request: 1, omitted, entries: names };
        queue.changes(changes(0, vec![entry(b"a"), entry(b"b/c")])).unwrap();
        assert_eq!(read(&queue), ["1 a", "2 b/c"]);
        queue.changes(changes(3, vec![entry(b"d")])).unwrap();
        assert_eq!(read(&queue), ["omitted 3", "6 d"]);
        for _ in 0..MOST_KEPT / 100 + 1 {
            queue.changes(changes(0, vec![entry(b"x"); 100])).unwrap();
        }
        let seen = read(&queue);
        let more = (MOST_KEPT / 100 + 1) * 100 - MOST_KEPT;
        assert_eq!((seen.len(), &*seen[0]), (MOST_KEPT + 1, &*format!("omitted {more}")));
        assert_eq!(seen[1], format!("{} x", 7 + more));
        queue.end(None);
        assert!(read(&queue).is_empty());
    }

    #[test]
    fn agent_that_reports_what_is_not_below_the_directory_breaks_the_protocol() {
        let queue = Queue::default();
        for name in [&b"/a"[..], b"..", b"a/../b", b"a//b", b"a/", b"a\0", &[b'a'; 4097]] {
            let changes = Changes { request: 1, omitted: 0, entries: vec![entry(name)] };
            assert!(queue.changes(changes).is_err(), "{}", String::from_utf8_lossy(name));
        }
        let itself = Changes { request: 1, omitted: 0, entries: vec![entry(b"")] };
        queue.changes(itself).unwrap();
        let many = vec![entry(b"a"); LIST_PAGE + 1];
        assert!(queue.changes(Changes { request: 1, omitted: 0, entries: many }).is_err());
    }
}
