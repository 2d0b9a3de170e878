//! Sends the agent's messages: one writer behind a lock, one write per frame, or for all frames of a turn of
//! the thread that serves commands.
//!
//! The thread that does the work also sends, so that an announcement is in the pipe before the
//! change it announces, and a log entry before what follows it. The thread that reads requests must
//! never wait for the controller to read: its answers are sent by a [`Replier`], but for the first ones, which an
//! empty pipe takes.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, poll};
use sandbox_protocol::frame::FrameError;
use sandbox_protocol::limits::MAX_IN_FLIGHT;
use sandbox_protocol::{ErrorKind, FromAgent, WireError};
use serde::Serialize;

use crate::{Exit, die};

/// The most answers that the controller has not read yet. It has at most [`MAX_IN_FLIGHT`] requests
/// and as many control requests open; the rest is for refusals.
const MAX_WAITING_ANSWERS: usize = 256;
/// From this size on, a frame is worth a write of its own.
const ONE_WRITE: usize = 8 << 10;
/// What the smallest pipe takes before anything is read: a page.
const FIRST_BYTES: usize = 4 << 10;

/// The agent's end of stdout.
pub struct Outbox {
    writer: Mutex<FrameWriter>,
    /// Something was queued since the last flush.
    is_queued: AtomicBool,
    /// Requests that were admitted and are not yet answered.
    in_flight: AtomicUsize,
}

struct FrameWriter {
    writer: Box<dyn Write + Send>,
    /// Set after the last message of a run whose thread may never return.
    silenced: bool,
    /// Frames that go with the next one.
    queued: Vec<u8>,
    /// The bytes of all that was written.
    written: usize,
}

impl Outbox {
    /// An outbox over `writer`, which gets every frame in one `write_all`, and what was queued before it.
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        let (writer, queued) = (Box::new(writer), Vec::new());
        let writer = FrameWriter { writer, silenced: false, queued, written: 0 };
        Self {
            writer: Mutex::new(writer),
            is_queued: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
        }
    }

    /// Sends a notification.
    pub fn notify(&self, message: &FromAgent<'_>) {
        self.pass(message, FrameWriter::write);
    }

    /// Sends a notification with the next message, or by [`flush`](Self::flush), which the caller calls
    /// before it waits for anything.
    pub fn queue(&self, message: &FromAgent<'_>) {
        self.is_queued.store(true, Ordering::Relaxed);
        self.pass(message, FrameWriter::queue);
    }

    /// Sends what is queued. Who has queued nothing does not wait for the controller to read.
    pub fn flush(&self) {
        if self.is_queued.swap(false, Ordering::Relaxed) {
            self.writer.lock().unwrap().flush();
        }
    }

    fn pass(&self, message: &FromAgent<'_>, write: fn(&mut FrameWriter, &[u8])) {
        let frame = message.encode().unwrap_or_else(|error| {
            die(Exit::Internal, &format!("cannot send a notification: {error}"))
        });
        let mut writer = self.writer.lock().unwrap();
        if !writer.silenced {
            write(&mut writer, &frame);
        }
    }

    /// Sends the answer to an admitted request. `before` is called when no other message can be
    /// sent before the answer: work that it allows to start sends its messages after it.
    pub fn answer<T: Serialize>(
        &self,
        id: u64,
        result: Result<T, WireError>,
        before: impl FnOnce(),
    ) {
        self.answer_kept(id, result, || {
            before();
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// The same for a request that was not admitted, such as a kept command: it is not among those in
    /// flight.
    pub fn answer_kept<T: Serialize>(
        &self,
        id: u64,
        result: Result<T, WireError>,
        before: impl FnOnce(),
    ) {
        let frame = encode_answer(id, result);
        let mut writer = self.writer.lock().unwrap();
        before();
        writer.write(&frame);
    }

    /// The same for an abandoned run: no message of that run is sent after its answer.
    pub fn answer_and_silence<T: Serialize>(&self, id: u64, result: Result<T, WireError>) {
        let frame = encode_answer(id, result);
        let mut writer = self.writer.lock().unwrap();
        writer.silenced = true;
        writer.write(&frame);
    }

    /// Sends an answer, if that waits for nothing: with it no more than [`FIRST_BYTES`] were ever sent.
    fn answer_first(&self, frame: &[u8]) -> bool {
        // Who has it may wait for the controller to read.
        let Ok(mut writer) = self.writer.try_lock() else { return false };
        let fits = writer.written + writer.queued.len() + frame.len() <= FIRST_BYTES;
        if fits {
            writer.write(frame);
        }
        fits
    }

    /// Admits a request that will be answered when its work is done.
    ///
    /// Only such requests count towards [`MAX_IN_FLIGHT`], as in the controller; kept commands do not.
    /// Requests that the reading thread answers itself (`hello`, `cancel`, `shutdown`, every refusal) are
    /// never counted: their reply may wait behind others while the controller already sends the next
    /// request.
    ///
    /// # Errors
    ///
    /// `busy` if the maximum is in flight.
    pub fn admit(&self) -> Result<(), WireError> {
        let admit = |count| (count < MAX_IN_FLIGHT).then_some(count + 1);
        match self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit) {
            Ok(_) => Ok(()),
            Err(_) => Err(WireError::busy("too many requests at one time")),
        }
    }

    /// Reverts [`admit`](Self::admit) for a request whose work did not start.
    pub fn withdraw(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FrameWriter {
    fn write(&mut self, frame: &[u8]) {
        if frame.len() < ONE_WRITE && !self.queued.is_empty() {
            self.queued.extend_from_slice(frame);
            return self.flush();
        }
        self.flush();
        self.write_all(frame);
    }

    fn queue(&mut self, frame: &[u8]) {
        if self.queued.len() + frame.len() < ONE_WRITE {
            self.queued.extend_from_slice(frame);
        } else {
            self.write(frame);
        }
    }

    fn flush(&mut self) {
        if !self.queued.is_empty() {
            let mut queued = std::mem::take(&mut self.queued);
            self.write_all(&queued);
            queued.clear();
            self.queued = queued;
        }
    }

    fn write_all(&mut self, bytes: &[u8]) {
        self.written = self.written.saturating_add(bytes.len());
        if let Err(error) = self.writer.write_all(bytes) {
            die(Exit::Lost, &format!("the controller is gone: {error}"));
        }
    }
}

/// Encodes an answer. An answer that the controller would refuse is an internal error, and is
/// answered as such: every request gets an answer.
fn encode_answer<T: Serialize>(id: u64, result: Result<T, WireError>) -> Vec<u8> {
    FromAgent::encode_reply(id, result).unwrap_or_else(|error: FrameError| {
        let error = WireError::new(ErrorKind::Internal, format!("cannot send the answer: {error}"));
        FromAgent::encode_reply::<()>(id, Err(error)).expect("a short error is a frame")
    })
}

/// Sends the reading thread's answers from a thread of its own, in order; after the last one, `None`,
/// it exits. The first ones need no thread: to wake one takes longer than to write.
#[derive(Clone)]
pub struct Replier {
    outbox: Arc<Outbox>,
    answers: SyncSender<Option<Vec<u8>>>,
    /// The thread has got something, and so gets all that follows.
    is_used: Arc<AtomicBool>,
}

impl Replier {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(outbox: Arc<Outbox>) -> io::Result<Self> {
        let (answers, receiver) = sync_channel(MAX_WAITING_ANSWERS);
        let replier = Self { outbox: outbox.clone(), answers, is_used: Arc::default() };
        std::thread::Builder::new()
            .name("replies".to_owned())
            .spawn(move || send_all(&outbox, &receiver))?;
        Ok(replier)
    }

    /// Sends the answer to a request as soon as the controller reads.
    pub fn answer<T: Serialize>(&self, id: u64, result: Result<T, WireError>) {
        let frame = encode_answer(id, result);
        if self.is_used.load(Ordering::Relaxed) || !self.outbox.answer_first(&frame) {
            self.push(Some(frame));
        }
    }

    /// Exits with code 0 once every answer is sent.
    pub fn exit(&self) {
        self.push(None);
    }

    fn push(&self, answer: Option<Vec<u8>>) {
        self.is_used.store(true, Ordering::Relaxed);
        match self.answers.try_send(answer) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => die(Exit::Protocol, "the controller reads no answers"),
            Err(TrySendError::Disconnected(_)) => die(Exit::Internal, "the replier is gone"),
        }
    }
}

fn send_all(outbox: &Outbox, receiver: &Receiver<Option<Vec<u8>>>) {
    for answer in receiver {
        match answer {
            Some(frame) => outbox.writer.lock().unwrap().write(&frame),
            None => crate::exit(Exit::Done),
        }
    }
}

/// Stdout without std's line buffer. It may be a non-blocking descriptor.
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stdout = rustix::stdio::stdout();
        loop {
            match rustix::io::write(stdout, bytes) {
                Err(rustix::io::Errno::AGAIN) => {
                    _ = poll(&mut [PollFd::new(&stdout, PollFlags::OUT)], None);
                }
                other => return Ok(other?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Stores what is written, for tests.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<u8>>>);

#[cfg(test)]
impl Recorder {
    /// The lines written so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        String::from_utf8(bytes.clone()).unwrap().lines().map(str::to_owned).collect()
    }

    /// The lines written since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_protocol::Base64;
    use sandbox_protocol::limits::MAX_FRAME_BYTES;
    use sandbox_protocol::message::{Change, Chunk, ControlReply, ExecEnd, Exited, Touched};

    fn touched() -> FromAgent<'static> {
        let path = "/io/a".into();
        FromAgent::Touched(Touched { request: 1, path, existed: false, change: Change::Write })
    }

    #[test]
    fn an_answer_that_is_too_large_becomes_an_error() {
        let recorder = Recorder::default();
        let outbox = Outbox::new(recorder.clone());
        outbox.admit().unwrap();
        outbox.answer(7, Ok("x".repeat(MAX_FRAME_BYTES)), || {});
        let lines = recorder.lines();
        let FromAgent::Reply { id: 7, result: Err(error) } = FromAgent::decode(&lines[0]).unwrap()
        else {
            panic!("{}", lines[0])
        };
        assert_eq!(error.kind(), ErrorKind::Internal);
    }

    #[test]
    fn first_answers_are_sent_at_once_and_those_after_a_later_one_in_order() {
        let recorder = Recorder::default();
        let outbox = Arc::new(Outbox::new(recorder.clone()));
        let replier = || {
            let (answers, waiting) = sync_channel(MAX_WAITING_ANSWERS);
            (Replier { outbox: outbox.clone(), answers, is_used: Arc::default() }, waiting)
        };
        let found = || Ok(ControlReply { found: true });
        let (one, waiting) = replier();
        one.answer(1, found());
        one.answer(2, found());
        assert_eq!(recorder.take().len(), 2);
        // What a pipe may not take at once, and all that follows.
        one.answer(3, Ok("x".repeat(FIRST_BYTES)));
        one.answer(4, found());
        assert!(recorder.take().is_empty());
        assert_eq!(waiting.try_iter().count(), 2);
        // It does not wait for a thread that waits for the controller to read.
        let (other, waiting) = replier();
        let held = outbox.writer.lock().unwrap();
        other.answer(5, found());
        drop(held);
        assert_eq!(waiting.try_iter().count(), 1);
        // Nor is there room for more once that much was sent.
        outbox.notify(&touched());
        let (other, waiting) = replier();
        for id in 0..MAX_WAITING_ANSWERS {
            other.answer(id as u64, found());
        }
        let sent: usize = recorder.take().iter().map(|line| line.len() + 1).sum();
        assert!(sent <= FIRST_BYTES && waiting.try_iter().count() > 0, "{sent}");
    }

    #[test]
    fn what_is_queued_is_one_write_before_all_that_follows() {
        /// Stores each write.
        #[derive(Clone, Default)]
        struct Writes(Arc<Mutex<Vec<usize>>>, Recorder);
        impl Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
                self.0.lock().unwrap().push(lines);
                self.1.write(bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let writes = Writes::default();
        let outbox = Outbox::new(writes.clone());
        let exited =
            |request| FromAgent::Exited(Exited { request, end: ExecEnd::Exited(0), stopped: None });
        (0..3).for_each(|request| outbox.queue(&exited(request)));
        assert!(writes.0.lock().unwrap().is_empty());
        outbox.flush();
        outbox.flush();
        outbox.queue(&exited(3));
        outbox.notify(&exited(4));
        outbox.flush();
        // What is long waits for nothing, and overtakes nothing.
        outbox.queue(&exited(5));
        let data = Base64(vec![0; ONE_WRITE]);
        outbox.queue(&FromAgent::Chunk(Chunk { stream: 6, seq: 0, data, last: false }));
        assert_eq!(*writes.0.lock().unwrap(), [3, 2, 1, 1]);
        let lines = writes.1.lines();
        for (number, line) in lines.iter().enumerate() {
            assert!(line.contains(&format!(":{number},")), "{line}");
        }
        assert_eq!(lines.len(), 7);
    }

    #[test]
    fn an_abandoned_run_sends_nothing_after_its_reply() {
        let recorder = Recorder::default();
        let outbox = Outbox::new(recorder.clone());
        outbox.notify(&touched());
        outbox.answer_and_silence(1, Ok(ControlReply { found: true }));
        outbox.notify(&touched());
        assert_eq!(recorder.lines().len(), 2);
    }
}
