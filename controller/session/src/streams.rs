//! The byte streams of a session: content sent as `chunk`, with flow control by `credit`.
//!
//! Incoming data is put in a queue that the credit bounds, so the task that reads the agent's
//! messages never blocks; credit is returned when the consumer takes a piece. Outgoing data waits
//! for credit, or for the end of its stream: the answer to its request, however that arrives.
//!
//! A request waits behind all content that is on its way to the agent, in the engine's buffers too. So
//! there is less of a file's while requests come one after another.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sandbox_protocol::ToAgent;
use sandbox_protocol::limits::{CREDIT_STEP, FIRST_DIAL, INITIAL_CREDIT, MAX_CHUNK_BYTES};
use sandbox_protocol::message::{Chunk, Credit};
use sandbox_protocol::stream::{ReceiveWindow, SendWindow};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::Shared;
use super::outbound::{Ended, Sender};

/// The most bytes of a file that are on their way to the agent while requests come: two chunks, of which
/// one is sent while the agent takes the other.
const FEW_BYTES: u64 = 2 * MAX_CHUNK_BYTES as u64;
/// How long after a request another one is expected.
const EXPECTED: Duration = Duration::from_millis(50);

// A whole chunk fits, whatever the agent holds back of its credit.
const _: () = assert!(FEW_BYTES >= MAX_CHUNK_BYTES as u64 + CREDIT_STEP);

/// The open streams of a session, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Streams {
    next: u32,
    open: HashMap<u32, Open>,
    /// When the last request without content was sent.
    requested: Option<Instant>,
}

/// What the controller sends on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A file. Requests that come meanwhile are more urgent.
    File,
    /// What a command reads.
    Stdin,
}

/// The controller's end of an open stream.
#[derive(Debug)]
enum Open {
    /// The agent sends.
    Incoming {
        window: ReceiveWindow,
        /// How many more bytes an honest agent may send, on all streams that share this counter.
        left: Arc<AtomicU64>,
        flow: Arc<Flow>,
        /// Bounded by the credit. The consumer may be gone. None after the last one: the consumer sees the end of
        /// its streams then, before there is an answer.
        pieces: Option<Pieces>,
    },
    /// The controller sends.
    Outgoing {
        window: SendWindow,
        content: Content,
        /// There is credit, or the stream has ended.
        changed: Arc<Notify>,
    },
}

/// Where what is received goes: the number of its stream, and a piece. Several streams may have one
/// consumer, which gets their pieces in the order in which they came.
pub(super) type Pieces = mpsc::UnboundedSender<(u32, Vec<u8>)>;

/// What has been received on a stream.
#[derive(Debug, Default)]
pub struct Flow {
    bytes: AtomicU64,
    has_ended: AtomicBool,
}

impl Flow {
    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the agent has sent the end of the stream.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }
}

impl Streams {
    fn number(&mut self) -> u32 {
        loop {
            let number = self.next;
            // Higher numbers are those of tunnels.
            self.next = (self.next + 1) % FIRST_DIAL;
            if !self.open.contains_key(&number) {
                return number;
            }
        }
    }

    /// Opens a stream on which the agent sends, at most `left` bytes together with the other
    /// streams that share that counter.
    pub fn incoming(&mut self, left: Arc<AtomicU64>, pieces: Pieces) -> ReceivedStream {
        let number = self.number();
        let (window, flow) = (ReceiveWindow::new(number), Arc::<Flow>::default());
        self.open.insert(
            number,
            Open::Incoming { window, left, flow: flow.clone(), pieces: Some(pieces) },
        );
        ReceivedStream { number, flow, owed: 0 }
    }

    /// Returns credit for consumed bytes, if the stream continues.
    pub fn advance(&mut self, number: u32, bytes: u64) -> Option<Credit> {
        match self.open.get_mut(&number) {
            Some(Open::Incoming { window, .. }) if !window.is_ended() => {
                Some(window.consumed(bytes))
            }
            _ => None,
        }
    }

    /// Whether the agent has sent something on it.
    pub fn has_received(&self, number: u32) -> bool {
        match self.open.get(&number) {
            Some(Open::Incoming { flow, .. }) => flow.bytes() > 0 || flow.has_ended(),
            Some(Open::Outgoing { .. }) | None => false,
        }
    }

    /// Notes that a request without content is sent.
    pub fn note_request(&mut self) {
        self.requested = Some(Instant::now());
    }

    /// Opens a stream on which the controller sends.
    pub fn outgoing(&mut self, content: Content) -> (u32, Arc<Notify>) {
        let number = self.number();
        let changed = Arc::new(Notify::new());
        let window = SendWindow::new(number);
        self.open.insert(number, Open::Outgoing { window, content, changed: changed.clone() });
        (number, changed)
    }

    /// Returns the next chunk of a stream on which the controller sends: as much of `data` as fits.
    /// `None` if nothing does before there is more credit.
    pub fn next_chunk(
        &mut self,
        number: u32,
        data: &[u8],
        then: Fin,
    ) -> Result<Option<Chunk>, Ended> {
        let are_expected = self.requested.is_some_and(|at| at.elapsed() < EXPECTED);
        let Some(Open::Outgoing { window, content, .. }) = self.open.get_mut(&number) else {
            return Err(Ended);
        };
        let most = match content {
            Content::File if are_expected => FEW_BYTES,
            Content::File | Content::Stdin => INITIAL_CREDIT,
        };
        let size = window.capacity_within(most).min(data.len());
        if size == 0 && !data.is_empty() {
            return Ok(None);
        }
        let is_last = then == Fin::Nothing && size == data.len();
        window.chunk(data[..size].to_vec(), is_last).map(Some).map_err(|_| Ended)
    }

    /// Ends a stream.
    pub fn close(&mut self, number: u32) {
        if let Some(Open::Outgoing { changed, .. }) = self.open.remove(&number) {
            changed.notify_one();
        }
    }

    /// Ends all streams.
    pub fn clear(&mut self) {
        for (_, open) in self.open.drain() {
            if let Open::Outgoing { changed, .. } = open {
                changed.notify_one();
            }
        }
    }

    /// Handles a chunk; an error is a breach.
    pub fn chunk(&mut self, chunk: Chunk) -> Result<(), String> {
        let number = chunk.stream;
        let Some(Open::Incoming { window, left, flow, pieces }) = self.open.get_mut(&number) else {
            return Err(format!("a chunk for an unknown stream ({number})"));
        };
        window.receive(&chunk).map_err(|error| error.to_string())?;
        if chunk.data.0.is_empty() && !chunk.last {
            // Neither credit nor a limit would ever end them.
            return Err(format!("an empty chunk that is not the last one ({number})"));
        }
        let bytes = chunk.data.0.len() as u64;
        // Only ever used under the lock of all streams.
        let left_after = left.load(Ordering::Relaxed).checked_sub(bytes);
        let left_after =
            left_after.ok_or_else(|| format!("a chunk beyond the stream's credit ({number})"))?;
        left.store(left_after, Ordering::Relaxed);
        flow.bytes.fetch_add(bytes, Ordering::Relaxed);
        flow.has_ended.store(chunk.last, Ordering::Relaxed);
        if let Some(to) = pieces.as_ref().filter(|_| !chunk.data.0.is_empty()) {
            // The consumer may be gone.
            _ = to.send((number, chunk.data.0));
        }
        if chunk.last {
            *pieces = None;
        }
        Ok(())
    }

    /// Handles a grant of credit; an error is a breach.
    pub fn credit(&mut self, credit: Credit) -> Result<(), String> {
        match self.open.get_mut(&credit.stream) {
            Some(Open::Outgoing { window, changed, .. }) => {
                window.grant(&credit).map_err(|error| error.to_string())?;
                changed.notify_one();
                Ok(())
            }
            _ => Err(format!("credit for an unknown stream ({})", credit.stream)),
        }
    }
}

/// A stream on which the agent sends, as its consumer knows it.
#[derive(Debug)]
pub(super) struct ReceivedStream {
    number: u32,
    flow: Arc<Flow>,
    /// Consumed bytes for which no credit was returned yet.
    owed: u64,
}

/// The consumer's end of streams on which the agent sends: mostly of one, of a command's output of two.
pub struct Incoming {
    pub(super) streams: Vec<ReceivedStream>,
    pub(super) pieces: mpsc::UnboundedReceiver<(u32, Vec<u8>)>,
    pub(super) lines: Arc<Sender>,
    pub(super) shared: Arc<Shared>,
}

impl Incoming {
    /// Their numbers on the wire.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.streams.iter().map(|stream| stream.number)
    }

    /// What has been received on each, consumed or not.
    pub fn flows(&self) -> impl Iterator<Item = &Arc<Flow>> {
        self.streams.iter().map(|stream| &stream.flow)
    }

    /// Waits for the next piece; `None` if the streams have ended, for which the answer has the
    /// reason. Cancel-safe: credit for a piece is returned when the next one is requested.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.next_of_any().await.map(|(_, piece)| piece)
    }

    /// The same with which of the streams it is of.
    pub async fn next_of_any(&mut self) -> Option<(usize, Vec<u8>)> {
        for stream in self.streams.iter_mut().filter(|stream| stream.owed >= CREDIT_STEP) {
            // If no credit can be sent, the session has ended, which the answer reports.
            let Ok(slot) = self.lines.reserve().await else { break };
            let credit = self.shared.lock().streams.advance(stream.number, stream.owed);
            stream.owed = 0;
            if let Some(line) = credit.and_then(|credit| ToAgent::Credit(credit).encode().ok()) {
                slot.send(line);
            }
        }
        let (number, piece) = self.pieces.recv().await?;
        let index = self.streams.iter().position(|stream| stream.number == number)?;
        self.streams[index].owed += piece.len() as u64;
        Some((index, piece))
    }
}

/// The producer's end of a stream on which the controller sends.
pub struct Outgoing {
    pub(super) number: u32,
    pub(super) changed: Arc<Notify>,
    pub(super) lines: Arc<Sender>,
    pub(super) shared: Arc<Shared>,
}

/// What follows the bytes in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fin {
    /// More data.
    More,
    /// Nothing: the stream ends with this chunk.
    Nothing,
}

impl Outgoing {
    /// Its number on the wire.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Sends all of `data`.
    pub async fn send_all(&mut self, mut data: &[u8], then: Fin) -> Result<(), Ended> {
        while !data.is_empty() || then == Fin::Nothing {
            let sent = self.send(data, then).await?;
            if sent == data.len() {
                break;
            }
            data = &data[sent..];
        }
        Ok(())
    }

    /// Sends as much of `data` as fits in one chunk, once there is credit, and returns how much
    /// that was.
    pub async fn send(&mut self, data: &[u8], then: Fin) -> Result<usize, Ended> {
        loop {
            let chunk = self.shared.lock().streams.next_chunk(self.number, data, then)?;
            let Some(chunk) = chunk else {
                self.changed.notified().await;
                continue;
            };
            let size = chunk.data.0.len();
            let line = ToAgent::Chunk(chunk).encode().map_err(|_| Ended)?;
            return self.lines.send(line).await.map(|()| size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends what can be sent, and returns how many bytes that were.
    fn fill(streams: &mut Streams, number: u32) -> u64 {
        let mut sent = 0;
        while let Some(chunk) =
            streams.next_chunk(number, &[0; MAX_CHUNK_BYTES], Fin::More).unwrap()
        {
            sent += chunk.data.0.len() as u64;
        }
        sent
    }

    #[tokio::test(start_paused = true)]
    async fn little_of_a_file_is_on_its_way_while_requests_come() {
        let mut streams = Streams::default();
        let [(file, _), (stdin, _)] =
            [Content::File, Content::Stdin].map(|content| streams.outgoing(content));
        streams.note_request();
        assert_eq!(fill(&mut streams, file), FEW_BYTES);
        assert_eq!(fill(&mut streams, stdin), INITIAL_CREDIT);
        let bytes = MAX_CHUNK_BYTES as u64;
        streams.credit(Credit { stream: file, bytes }).unwrap();
        assert_eq!(fill(&mut streams, file), bytes);
        tokio::time::advance(EXPECTED).await;
        assert_eq!(fill(&mut streams, file), INITIAL_CREDIT - FEW_BYTES);
    }
}
