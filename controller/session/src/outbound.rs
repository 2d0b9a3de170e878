//! The lines to the agent, in order.
//!
//! The sender of a line writes it, because waking another thread takes longer than everything else.
//! Bytes that the agent's stdin does not accept at once are left to a task, [`Writer`].

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use sandbox_protocol::HEARTBEAT;
use sandbox_protocol::limits::MAX_IN_FLIGHT;
use tokio::io::AsyncWrite;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The maximum number of lines waiting for the agent to read. Since requests are bounded, it is
/// never reached for long.
const MAX_WAITING_LINES: usize = 2 * MAX_IN_FLIGHT;
/// The minimum size that is worth a separate write.
const ONE_WRITE: usize = 8 << 10;

/// The agent's stdin.
type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// The lines of a session.
pub(super) struct Lines {
    state: Mutex<State>,
    places: Arc<Semaphore>,
    /// There is something for the writer to do.
    work: Notify,
}

struct State {
    /// `None` once the session has ended.
    input: Option<Input>,
    /// Bytes that `input` has not accepted yet.
    waiting: VecDeque<Line>,
    /// The writer's task is waiting for the input. The input wakes only the waker that was
    /// registered last, so no other task may poll it.
    is_busy: bool,
    /// No sender is left.
    closing: bool,
}

struct Line {
    bytes: Vec<u8>,
    places: OwnedSemaphorePermit,
}

/// Sends lines. When its last holder is gone, the agent's stdin is closed after the lines that wait.
pub(super) struct Sender(Arc<Lines>);

/// A place for one line.
pub(super) struct Slot<'s> {
    lines: &'s Lines,
    place: OwnedSemaphorePermit,
}

/// The stream, or its session, ended before everything was sent: the answer has the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended;

/// Returns the sender of lines to `input`, and the work that is to be done for it meanwhile.
pub(super) fn open(input: Input) -> (Arc<Sender>, Writer) {
    let state =
        State { input: Some(input), waiting: VecDeque::new(), is_busy: false, closing: false };
    let lines = Arc::new(Lines {
        state: Mutex::new(state),
        places: Arc::new(Semaphore::new(MAX_WAITING_LINES)),
        work: Notify::new(),
    });
    (Arc::new(Sender(lines.clone())), Writer(lines))
}

impl Sender {
    /// Waits until another line may be sent.
    pub async fn reserve(&self) -> Result<Slot<'_>, Ended> {
        let Self(lines) = self;
        let place = lines.places.clone().acquire_owned().await.map_err(|_| Ended)?;
        Ok(Slot { lines, place })
    }

    /// Sends a line.
    pub async fn send(&self, line: Vec<u8>) -> Result<(), Ended> {
        self.reserve().await.map(|slot| slot.send(line))
    }

    /// For heartbeats.
    pub fn lines(&self) -> Weak<Lines> {
        Arc::downgrade(&self.0)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.lock().closing = true;
        self.0.work.notify_one();
    }
}

impl Slot<'_> {
    /// Sends a line, which is lost if the session has ended.
    pub fn send(self, bytes: Vec<u8>) {
        let mut state = self.lines.lock();
        let is_first = state.waiting.is_empty() && !state.is_busy;
        state.waiting.push_back(Line { bytes, places: self.place });
        if is_first && !matches!(state.poll_write(&mut without_waker()), Poll::Ready(Ok(()))) {
            // No waker was registered, so the writer has to be notified here.
            self.lines.work.notify_one();
        }
    }
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a heartbeat if the agent has nothing to read; returns whether the session goes on.
    pub fn beat(&self) -> bool {
        let mut state = self.lock();
        let is_idle = state.waiting.is_empty() && !state.is_busy;
        match &mut state.input {
            None => false,
            Some(input) if is_idle => {
                // No waker is needed: if it does not fit now, there are unread bytes before it.
                let mut context = without_waker();
                let written = input.as_mut().poll_write(&mut context, HEARTBEAT);
                if matches!(written, Poll::Ready(Ok(_))) {
                    _ = input.as_mut().poll_flush(&mut context);
                }
                !matches!(written, Poll::Ready(Err(_)))
            }
            Some(_) => true,
        }
    }
}

const fn without_waker() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

impl State {
    /// Writes what waits; after an error nothing is written any more. The rest of a line waits before
    /// all others, so that nothing comes into the middle of one.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(input) = &mut self.input else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let written = Self::poll_write_all(input, &mut self.waiting, context);
        if matches!(written, Poll::Ready(Err(_))) {
            self.end();
        }
        written
    }

    fn poll_write_all(
        input: &mut Input,
        waiting: &mut VecDeque<Line>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(mut line) = waiting.pop_front() {
            // One write for several short lines: a request and its content.
            while line.bytes.len() < ONE_WRITE
                && let Some(next) = waiting.pop_front()
            {
                line.bytes.extend_from_slice(&next.bytes);
                line.places.merge(next.places);
            }
            let mut written = 0;
            while written < line.bytes.len() {
                match input.as_mut().poll_write(context, &line.bytes[written..]) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(count)) => written += count,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        line.bytes.drain(..written);
                        waiting.push_front(line);
                        return Poll::Pending;
                    }
                }
            }
        }
        input.as_mut().poll_flush(context)
    }

    /// No line will come, and none waits.
    fn is_done(&self) -> bool {
        self.closing && self.waiting.is_empty()
    }

    fn end(&mut self) {
        self.input = None;
        self.waiting.clear();
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.input {
            Some(input) => input.as_mut().poll_shutdown(context),
            None => Poll::Ready(Ok(())),
        }
    }
}

/// Writes what senders could not. When it is dropped, the agent's stdin is closed, and senders get
/// [`Ended`].
pub(super) struct Writer(Arc<Lines>);

impl Writer {
    /// Writes until no sender is left, or the agent's stdin fails: the reader notices why.
    pub async fn run(self) {
        let Self(lines) = &self;
        loop {
            lines.work.notified().await;
            let write = poll_fn(|context| {
                let mut state = lines.lock();
                let written = state.poll_write(context);
                state.is_busy = written.is_pending();
                written
            });
            if write.await.is_err() {
                return;
            }
            if lines.lock().is_done() {
                // The agent exits on end of input.
                _ = poll_fn(|context| lines.lock().poll_close(context)).await;
                return;
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.places.close();
        self.0.lock().end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, DuplexStream};

    fn session(most: usize) -> (Arc<Sender>, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(most);
        let (sender, writer) = open(Box::pin(ours));
        tokio::spawn(writer.run());
        (sender, theirs)
    }

    #[tokio::test]
    async fn line_is_written_by_its_sender() {
        let (ours, mut agent) = tokio::io::duplex(64);
        let (sender, _writer_that_never_runs) = open(Box::pin(ours));
        sender.send(b"first\n".to_vec()).await.unwrap();
        sender.send(b"second\n".to_vec()).await.unwrap();
        let mut got = [0; 13];
        agent.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"first\nsecond\n");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn lines_of_many_senders_are_whole_and_in_the_order_of_each() {
        const LINES: usize = 500;
        let (sender, mut agent) = session(16);
        for name in ["a", "b", "c"] {
            let sender = sender.clone();
            tokio::spawn(async move {
                for at in 0..LINES {
                    sender.send(format!("{name} {at} {}\n", "x".repeat(at)).into_bytes()).await?;
                }
                Ok::<_, Ended>(())
            });
        }
        drop(sender);
        // Until the end: the stdin is closed after the lines of the last sender.
        let mut text = String::new();
        agent.read_to_string(&mut text).await.unwrap();
        for name in ["a", "b", "c"] {
            let lines = text.lines().filter(|line| line.starts_with(name));
            let expected = (0..LINES).map(|at| format!("{name} {at} {}", "x".repeat(at)));
            assert!(lines.eq(expected), "{name}");
        }
        assert_eq!(text.lines().count(), 3 * LINES);
    }

    #[tokio::test(start_paused = true)]
    async fn agent_that_does_not_read_bounds_what_waits() {
        let (sender, _agent) = session(1);
        for _ in 0..MAX_WAITING_LINES {
            sender.send(b"line\n".to_vec()).await.unwrap();
        }
        let one_more = sender.send(b"line\n".to_vec());
        let waited = tokio::time::timeout(std::time::Duration::from_millis(50), one_more).await;
        assert!(waited.is_err(), "it waits for a place");
    }

    #[tokio::test]
    async fn sender_to_an_ended_session_gets_an_error() {
        let (ours, agent) = tokio::io::duplex(1);
        let (sender, writer) = open(Box::pin(ours));
        let writer = tokio::spawn(writer.run());
        drop(agent);
        // This send detects it.
        sender.send(b"line\n".to_vec()).await.unwrap();
        writer.await.unwrap();
        assert!(sender.send(b"line\n".to_vec()).await.is_err());
        assert!(Arc::downgrade(&sender).upgrade().is_some());
    }
}
