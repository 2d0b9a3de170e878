//! Byte streams between the controller and an operation, or a command.
//!
//! The thread that reads requests delivers chunks and credit here and never waits. The operation's
//! thread waits here, and is woken by what it waits for or by a stop. A command's thread also waits
//! for its pipes, so it only polls here, when it is woken. What arrives for a stream that is not
//! open was sent before the other side knew, and is dropped.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

use sandbox_protocol::limits::MAX_CHUNK_BYTES;
use sandbox_protocol::message::{Chunk, Credit};
use sandbox_protocol::operation::Way;
use sandbox_protocol::stream::{ReceiveWindow, SendWindow, StreamError};
use sandbox_protocol::{FromAgent, WireError};

use crate::files::{FileError, Watch};
use crate::outbox::Outbox;
use crate::stop::StopReason;
use crate::threads::Threads;
use crate::wake::Wake;

/// The open streams of a session.
pub struct Streams {
    open: Mutex<HashMap<u32, Arc<Stream>>>,
    /// One of which reads what the others wait for.
    threads: Arc<Threads>,
}

/// An open stream.
pub struct Stream {
    number: u32,
    end: Mutex<End>,
    changed: Condvar,
    /// Threads that wait for more than this stream.
    wake: Option<Arc<Wake>>,
    threads: Arc<Threads>,
}

enum End {
    Sending(SendWindow),
    Receiving { window: ReceiveWindow, chunks: VecDeque<Chunk> },
}

impl Streams {
    /// Starts with none. One of `threads` delivers what arrives.
    pub fn new(threads: Arc<Threads>) -> Self {
        Self { open: Mutex::default(), threads }
    }

    /// Opens a stream. Incoming data wakes `wake`.
    ///
    /// # Errors
    ///
    /// `invalid_request` if a stream with this number is open.
    pub fn open(
        &self,
        number: u32,
        way: Way,
        wake: Option<Arc<Wake>>,
    ) -> Result<Arc<Stream>, WireError> {
        let mut open = self.open.lock().unwrap();
        if open.contains_key(&number) {
            let message = format!("the stream {number} is open already");
            return Err(WireError::invalid(message));
        }
        let end = match way {
            Way::Out => End::Sending(SendWindow::new(number)),
            Way::In => {
                End::Receiving { window: ReceiveWindow::new(number), chunks: VecDeque::new() }
            }
        };
        let changed = Condvar::new();
        let threads = self.threads.clone();
        let stream = Arc::new(Stream { number, end: Mutex::new(end), changed, wake, threads });
        open.insert(number, stream.clone());
        Ok(stream)
    }

    /// Called by a thread that has read a request and takes longer with it: another reads on.
    pub fn hand_over(&self) {
        self.threads.hand_over();
    }

    /// Closes a stream, before the answer that ends it is sent.
    pub fn close(&self, stream: &Stream) {
        self.open.lock().unwrap().remove(&stream.number);
    }

    fn find(&self, number: u32) -> Option<Arc<Stream>> {
        self.open.lock().unwrap().get(&number).cloned()
    }

    /// Delivers a chunk.
    ///
    /// # Errors
    ///
    /// If the controller broke the rules of the stream.
    pub fn take_chunk(&self, chunk: Chunk) -> Result<(), StreamError> {
        self.find(chunk.stream).map_or(Ok(()), |stream| stream.take_chunk(chunk))
    }

    /// Delivers credit.
    ///
    /// # Errors
    ///
    /// If the controller broke the rules of the stream.
    pub fn take_credit(&self, credit: &Credit) -> Result<(), StreamError> {
        self.find(credit.stream).map_or(Ok(()), |stream| stream.take_credit(credit))
    }
}

impl Stream {
    fn take_chunk(&self, chunk: Chunk) -> Result<(), StreamError> {
        match &mut *self.end.lock().unwrap() {
            End::Receiving { window, chunks } => {
                window.receive(&chunk)?;
                chunks.push_back(chunk);
            }
            // The agent sends nothing on a stream that it receives: there is no credit for it.
            End::Sending(_) => return Err(StreamError::CreditOverrun),
        }
        self.notify();
        Ok(())
    }

    fn take_credit(&self, credit: &Credit) -> Result<(), StreamError> {
        match &mut *self.end.lock().unwrap() {
            End::Sending(window) => window.grant(credit)?,
            End::Receiving { .. } => return Err(StreamError::AbsurdCredit),
        }
        self.notify();
        Ok(())
    }

    /// Notifies the waiting threads that something has arrived.
    fn notify(&self) {
        self.changed.notify_all();
        if let Some(wake) = &self.wake {
            wake.wake();
        }
    }

    /// How many bytes may be sent now.
    pub fn room(&self) -> usize {
        match &*self.end.lock().unwrap() {
            End::Sending(window) => window.capacity(),
            End::Receiving { .. } => 0,
        }
    }

    /// Queues a piece that fits into the [room](Self::room).
    pub fn send_now(&self, outbox: &Outbox, data: Vec<u8>, last: bool) {
        let chunk = match &mut *self.end.lock().unwrap() {
            End::Sending(window) => window.chunk(data, last),
            End::Receiving { .. } => Err(StreamError::CreditOverrun),
        };
        outbox.queue(&FromAgent::Chunk(chunk.expect("a chunk within its window")));
    }

    /// The next piece, if one has arrived: `Some(None)` after the last one. Credit for it is queued.
    pub fn receive_now(&self, outbox: &Outbox) -> Option<Option<Vec<u8>>> {
        let (chunk, credit) = next_chunk(&mut self.end.lock().unwrap())?;
        if let Some(credit) = credit {
            outbox.queue(&FromAgent::Credit(credit));
        }
        Some(chunk)
    }

    /// All content, if it has arrived in one piece.
    pub fn receive_all_now(&self) -> Option<Vec<u8>> {
        match &mut *self.end.lock().unwrap() {
            End::Receiving { chunks, .. } => {
                let is_all = chunks.front().is_some_and(|chunk| chunk.seq == 0 && chunk.last);
                is_all.then(|| chunks.pop_front()).flatten().map(|all| all.data.0)
            }
            End::Sending(_) => None,
        }
    }

    /// Wakes the waiting threads, so that they see that the operation is stopped.
    pub fn wake(&self) {
        // Under the lock: a thread that has just seen that it is not stopped is waiting by now.
        let _end = self.end.lock().unwrap();
        self.changed.notify_all();
    }

    /// Waits until `ready` returns a value, or the operation is stopped.
    fn wait<T>(
        &self,
        watch: &Watch,
        mut ready: impl FnMut(&mut End) -> Option<T>,
    ) -> Result<T, FileError> {
        let mut end = self.end.lock().unwrap();
        loop {
            if let Some(found) = ready(&mut end) {
                return Ok(found);
            }
            if watch.stop().reason() != StopReason::None {
                watch.check()?;
            }
            self.threads.hand_over();
            end = watch.wait(|| self.changed.wait(end)).unwrap();
        }
    }

    /// Sends a piece, at most [`MAX_CHUNK_BYTES`], once there is credit for it.
    ///
    /// # Errors
    ///
    /// The reason that stopped the operation.
    pub fn send(
        &self,
        outbox: &Outbox,
        data: Vec<u8>,
        last: bool,
        watch: &Watch,
    ) -> Result<(), FileError> {
        assert!(data.len() <= MAX_CHUNK_BYTES, "a piece is a chunk");
        let mut data = Some(data);
        let chunk = self.wait(watch, |end| match end {
            End::Sending(window) => {
                let fits = data.as_ref().is_some_and(|data| data.len() <= window.capacity());
                fits.then(|| window.chunk(data.take().unwrap_or_default(), last))
            }
            End::Receiving { .. } => Some(Err(StreamError::CreditOverrun)),
        })?;
        let chunk = chunk.expect("a chunk within its window");
        watch.wait(|| outbox.notify(&FromAgent::Chunk(chunk)));
        Ok(())
    }

    /// Waits for the next piece; `None` after the last one.
    ///
    /// # Errors
    ///
    /// The reason that stopped the operation.
    pub fn receive(&self, outbox: &Outbox, watch: &Watch) -> Result<Option<Vec<u8>>, FileError> {
        let (chunk, credit) = self.wait(watch, next_chunk)?;
        if let Some(credit) = credit {
            watch.wait(|| outbox.notify(&FromAgent::Credit(credit)));
        }
        Ok(chunk)
    }
}

/// The chunk that has arrived, with the credit to grant for it; no credit after the last one.
fn next_chunk(end: &mut End) -> Option<(Option<Vec<u8>>, Option<Credit>)> {
    match end {
        End::Receiving { window, chunks } => match chunks.pop_front() {
            Some(chunk) => {
                let credit = window.consumed(chunk.data.0.len() as u64);
                let credit = (!chunk.last).then_some(credit);
                Some((Some(chunk.data.0), credit))
            }
            None if window.is_ended() => Some((None, None)),
            None => None,
        },
        End::Sending(_) => Some((None, None)),
    }
}
