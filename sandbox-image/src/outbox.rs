//! Sends the agent's messages: one writer behind a lock, one write per frame.
//!
//! The thread that does the work also sends, so that an announcement is in the pipe before the
//! change it announces, and a log entry before what follows it. The thread that reads requests must
//! never wait for the controller to read: its answers are sent by a [`Replier`].

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, poll};
use sandbox_protocol::frame::FrameError;
use sandbox_protocol::limits::MAX_IN_FLIGHT;
use sandbox_protocol::message::{DialReply, Refused, Touched};
use sandbox_protocol::{ErrorKind, FromAgent, WireError};
use serde::Serialize;

use crate::files::Announce;
use crate::proxy::FrameSender;
use crate::{Exit, die};

/// The most answers that the controller has not read yet. It has at most [`MAX_IN_FLIGHT`] requests
/// and as many control requests open; the rest is for refusals.
const MAX_WAITING_ANSWERS: usize = 256;

/// The agent's end of stdout.
pub struct Outbox {
    writer: Mutex<FrameWriter>,
    /// Requests that were admitted and are not yet answered.
    in_flight: AtomicUsize,
}

struct FrameWriter {
    writer: Box<dyn Write + Send>,
    /// Set after the last message of a run whose thread may never return.
    silenced: bool,
}

impl Outbox {
    /// An outbox over `writer`, which gets every frame in one `write_all`.
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        let writer = FrameWriter { writer: Box::new(writer), silenced: false };
        Self { writer: Mutex::new(writer), in_flight: AtomicUsize::new(0) }
    }

    /// Sends a notification.
    pub fn notify(&self, message: &FromAgent<'_>) {
        let frame = message.encode().unwrap_or_else(|error| {
            die(Exit::Internal, &format!("cannot send a notification: {error}"))
        });
        let mut writer = self.writer.lock().unwrap();
        if !writer.silenced {
            writer.write(&frame);
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

    /// The same for a kept command, which was not admitted: it is not among the requests in flight.
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

    fn write_answer(&self, frame: &[u8]) {
        self.writer.lock().unwrap().write(frame);
    }
}

impl Announce for Outbox {
    fn announce(&self, touched: Touched) {
        self.notify(&FromAgent::Touched(touched));
    }

    fn refuse(&self, refused: Refused) {
        self.notify(&FromAgent::Refused(refused));
    }
}

impl FrameSender for Outbox {
    fn send(&self, message: &FromAgent<'_>) {
        self.notify(message);
    }

    fn answer(&self, id: u64, result: Result<DialReply, WireError>) {
        // It was not admitted: it is not among the requests in flight.
        self.answer_kept(id, result, || ());
    }
}

impl FrameWriter {
    fn write(&mut self, frame: &[u8]) {
        if let Err(error) = self.writer.write_all(frame) {
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

/// Sends the reading thread's answers from a thread of its own, in order.
#[derive(Clone)]
pub struct Replier(SyncSender<Outgoing>);

enum Outgoing {
    Response(Vec<u8>),
    Exit,
}

impl Replier {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(outbox: Arc<Outbox>) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_WAITING_ANSWERS);
        std::thread::Builder::new()
            .name("replies".to_owned())
            .spawn(move || send_all(&outbox, &receiver))?;
        Ok(Self(sender))
    }

    /// Sends the answer to a request as soon as the controller reads.
    pub fn answer<T: Serialize>(&self, id: u64, result: Result<T, WireError>) {
        self.push(Outgoing::Response(encode_answer(id, result)));
    }

    /// Exits with code 0 once every answer is sent.
    pub fn exit(&self) {
        self.push(Outgoing::Exit);
    }

    fn push(&self, outgoing: Outgoing) {
        match self.0.try_send(outgoing) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => die(Exit::Protocol, "the controller reads no answers"),
            Err(TrySendError::Disconnected(_)) => die(Exit::Internal, "the replier is gone"),
        }
    }
}

fn send_all(outbox: &Outbox, receiver: &Receiver<Outgoing>) {
    for outgoing in receiver {
        match outgoing {
            Outgoing::Response(frame) => outbox.write_answer(&frame),
            Outgoing::Exit => crate::exit(Exit::Done),
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
    use sandbox_protocol::limits::MAX_FRAME_BYTES;
    use sandbox_protocol::message::{CancelReply, Change};

    fn touched() -> Touched {
        Touched { request: 1, path: "/io/a".into(), existed: false, change: Change::Write }
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
    fn an_abandoned_run_sends_nothing_after_its_reply() {
        let recorder = Recorder::default();
        let outbox = Outbox::new(recorder.clone());
        outbox.announce(touched());
        outbox.answer_and_silence(1, Ok(CancelReply { found: true }));
        outbox.announce(touched());
        assert_eq!(recorder.lines().len(), 2);
    }
}
