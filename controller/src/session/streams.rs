//! The byte streams of a session: the content that `chunk` and `credit` carry.
//!
//! What comes is put in a queue that the credit bounds, so the task that reads the agent waits for
//! nobody; credit goes back when the consumer takes a piece. What goes waits for credit, or for the
//! end of its stream: the answer to its request, however that comes.

use std::collections::HashMap;
use std::sync::Arc;

use sandbox_protocol::ToAgent;
use sandbox_protocol::limits::FIRST_TUNNEL;
use sandbox_protocol::message::{Chunk, Credit};
use sandbox_protocol::stream::{ReceiveWindow, SendWindow, StreamError};
use tokio::sync::{Notify, mpsc};

use super::Shared;

/// The open streams of a session, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Streams {
    next: u32,
    open: HashMap<u32, Open>,
}

/// Our end of an open stream.
#[derive(Debug)]
enum Open {
    /// The agent sends.
    Incoming {
        window: ReceiveWindow,
        /// How many more bytes an honest agent sends at most.
        left: u64,
        /// Bounded by the credit. Nobody may be there to take it any more.
        pieces: mpsc::UnboundedSender<Vec<u8>>,
    },
    /// We send.
    Outgoing {
        window: SendWindow,
        /// There is credit, or the stream has ended.
        changed: Arc<Notify>,
    },
}

impl Streams {
    fn number(&mut self) -> u32 {
        loop {
            let number = self.next;
            // Those above are the agent's.
            self.next = (self.next + 1) % FIRST_TUNNEL;
            if !self.open.contains_key(&number) {
                return number;
            }
        }
    }

    /// Opens a stream on which the agent sends, `most` bytes at most.
    pub fn incoming(&mut self, most: u64) -> (u32, mpsc::UnboundedReceiver<Vec<u8>>) {
        let number = self.number();
        let (pieces, receiver) = mpsc::unbounded_channel();
        let window = ReceiveWindow::new(number);
        self.open.insert(number, Open::Incoming { window, left: most, pieces });
        (number, receiver)
    }

    /// Opens a stream on which we send.
    pub fn outgoing(&mut self) -> (u32, Arc<Notify>) {
        let number = self.number();
        let changed = Arc::new(Notify::new());
        let window = SendWindow::new(number);
        self.open.insert(number, Open::Outgoing { window, changed: changed.clone() });
        (number, changed)
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

    /// Takes a chunk; an error is a breach.
    pub fn chunk(&mut self, chunk: Chunk) -> Result<(), String> {
        let number = chunk.stream;
        let Some(Open::Incoming { window, left, pieces }) = self.open.get_mut(&number) else {
            return Err(format!("a chunk of no stream ({number})"));
        };
        window.receive(&chunk).map_err(|error| error.to_string())?;
        if chunk.data.0.is_empty() && !chunk.last {
            // No credit and no limit would ever end them.
            return Err(format!("an empty chunk that is not the last one ({number})"));
        }
        let left_after = left.checked_sub(chunk.data.0.len() as u64);
        *left = left_after
            .ok_or_else(|| format!("a stream brought more than was asked for ({number})"))?;
        if !chunk.data.0.is_empty() {
            // Nobody may want it any more.
            _ = pieces.send(chunk.data.0);
        }
        Ok(())
    }

    /// Takes a grant; an error is a breach.
    pub fn credit(&mut self, credit: Credit) -> Result<(), String> {
        match self.open.get_mut(&credit.stream) {
            Some(Open::Outgoing { window, changed }) => {
                window.grant(&credit).map_err(|error| error.to_string())?;
                changed.notify_one();
                Ok(())
            }
            _ => Err(format!("credit for no stream ({})", credit.stream)),
        }
    }
}

/// The consumer's end of a stream on which the agent sends.
pub(crate) struct Incoming {
    number: u32,
    pieces: mpsc::UnboundedReceiver<Vec<u8>>,
    lines: mpsc::Sender<Vec<u8>>,
    shared: Arc<Shared>,
}

impl Incoming {
    pub(super) const fn new(
        number: u32,
        pieces: mpsc::UnboundedReceiver<Vec<u8>>,
        lines: mpsc::Sender<Vec<u8>>,
        shared: Arc<Shared>,
    ) -> Self {
        Self { number, pieces, lines, shared }
    }

    /// The next piece; `None` where the stream has ended, for which the answer says why.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        let piece = self.pieces.recv().await?;
        let credit = match self.shared.lock().streams.open.get_mut(&self.number) {
            Some(Open::Incoming { window, .. }) if !window.is_ended() => {
                Some(window.consumed(piece.len() as u64))
            }
            // Nothing more comes that needs it.
            _ => None,
        };
        if let Some(credit) = credit
            && let Ok(line) = ToAgent::Credit(credit).encode()
        {
            // Where it cannot be sent the session is over, which the answer tells.
            _ = self.lines.send(line).await;
        }
        Some(piece)
    }
}

/// The producer's end of a stream on which we send.
pub(crate) struct Outgoing {
    number: u32,
    changed: Arc<Notify>,
    lines: mpsc::Sender<Vec<u8>>,
    shared: Arc<Shared>,
}

/// What comes after the bytes that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// More of them.
    More,
    /// The end of the stream, with the last of them.
    Nothing,
}

/// The stream ended before everything was sent: the answer says why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended;

impl Outgoing {
    pub(super) const fn new(
        number: u32,
        changed: Arc<Notify>,
        lines: mpsc::Sender<Vec<u8>>,
        shared: Arc<Shared>,
    ) -> Self {
        Self { number, changed, lines, shared }
    }

    /// Sends as much of `data` as one chunk takes, once there is credit, and says how much that
    /// was.
    pub async fn send(&mut self, data: &[u8], then: Then) -> Result<usize, Ended> {
        loop {
            let chunk = match self.shared.lock().streams.open.get_mut(&self.number) {
                Some(Open::Outgoing { window, .. }) => match window.capacity().min(data.len()) {
                    0 if !data.is_empty() => None,
                    size => {
                        let is_last = then == Then::Nothing && size == data.len();
                        Some((window.chunk(data[..size].to_vec(), is_last), size))
                    }
                },
                _ => return Err(Ended),
            };
            match chunk {
                Some((chunk, size)) => return self.put(chunk).await.map(|()| size),
                None => self.changed.notified().await,
            }
        }
    }

    async fn put(&self, chunk: Result<Chunk, StreamError>) -> Result<(), Ended> {
        let line = ToAgent::Chunk(chunk.map_err(|_| Ended)?).encode().map_err(|_| Ended)?;
        self.lines.send(line).await.map_err(|_| Ended)
    }
}
