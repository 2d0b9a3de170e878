//! What a call and its caller say to each other between the call and its answer: events of an
//! execution, and the content of files in chunks. All of it is bounded, and asked for before it comes.

use sandbox_api::{ErrorKind, EventRecord};
use tokio::sync::{mpsc, watch};

use super::error::ToolError;

/// The most bytes of a chunk.
pub const MAX_CHUNK_BYTES: usize = 256 << 10;
/// The most chunks that are sent and not asked for yet, in either direction.
pub const WINDOW: usize = 8;
/// What a call may say before it is written.
const UNWRITTEN: usize = 4;

/// What a call says before its answer.
#[derive(Debug)]
pub(super) enum CallMessage {
    /// An event of what it runs.
    Event(Box<EventRecord>),
    /// A part of a file.
    Chunk(Vec<u8>),
    /// It takes so many more chunks.
    More(usize),
}

/// What a caller sends to a call.
#[derive(Debug)]
enum Sent {
    Chunk(Vec<u8>),
    End,
    /// An unexpected or unrequested line.
    Wrong(String),
}

/// A call's side.
#[derive(Debug)]
pub struct Exchange {
    wants_events: bool,
    said: mpsc::Sender<CallMessage>,
    sent: mpsc::Receiver<Sent>,
    /// The chunks that the caller takes in all.
    credit: watch::Receiver<usize>,
    said_chunks: usize,
}

/// The caller's side: what it sends.
#[derive(Debug)]
pub(super) struct CallInput {
    sent: Option<mpsc::Sender<Sent>>,
    credit: watch::Sender<usize>,
}

/// Both sides, and what the call says.
pub(super) fn exchange(wants_events: bool) -> (Exchange, CallInput, mpsc::Receiver<CallMessage>) {
    let (said, messages) = mpsc::channel(UNWRITTEN);
    // After the last chunk of the window there is room for its end, or for a mistake.
    let (sender, sent) = mpsc::channel(WINDOW + 1);
    let (granted, credit) = watch::channel(WINDOW);
    let call_input = CallInput { sent: Some(sender), credit: granted };
    (Exchange { wants_events, said, sent, credit, said_chunks: 0 }, call_input, messages)
}

/// A caller has sent no more, and no end: it is gone.
pub(super) struct CutOff;

impl From<CutOff> for ToolError {
    fn from(_: CutOff) -> Self {
        Self::new(ErrorKind::Cancelled, "client disconnected")
    }
}

impl Exchange {
    /// Without another side.
    #[must_use]
    pub fn closed() -> Self {
        exchange(false).0
    }

    /// Whether the caller wants events.
    pub(super) const fn wants_events(&self) -> bool {
        self.wants_events
    }

    /// Says something; waits until there is room for it.
    pub(super) async fn send(&self, said: CallMessage) {
        // Without a receiver, the call is about to be dropped.
        _ = self.said.send(said).await;
    }

    /// Waits until the caller takes another chunk. What it takes is said after its end, too.
    pub(super) async fn credit(&mut self) -> Result<(), CutOff> {
        let said = self.said_chunks;
        self.credit.wait_for(|granted| *granted > said).await.map_err(|_| CutOff)?;
        self.said_chunks += 1;
        Ok(())
    }

    /// The next chunk; none after the last one.
    ///
    /// # Errors
    ///
    /// What is wrong with what came, or nothing if the caller is gone.
    pub(super) async fn chunk(&mut self) -> Result<Option<Vec<u8>>, Option<String>> {
        match self.sent.recv().await {
            Some(Sent::Chunk(chunk)) => Ok(Some(chunk)),
            Some(Sent::End) => Ok(None),
            Some(Sent::Wrong(what)) => Err(Some(what)),
            None => Err(None),
        }
    }
}

impl CallInput {
    /// Of a caller that is gone.
    pub fn closed() -> Self {
        exchange(false).1
    }

    /// A chunk, or what is wrong with it. What comes after an end or a mistake is ignored.
    pub fn chunk(&mut self, chunk: Result<Vec<u8>, String>) {
        let Some(sent) = &self.sent else { return };
        let wrong = match chunk {
            Ok(chunk) if sent.capacity() > 1 => {
                _ = sent.try_send(Sent::Chunk(chunk));
                return;
            }
            Ok(_) => "more chunks than requested".to_owned(),
            Err(wrong) => wrong,
        };
        _ = sent.try_send(Sent::Wrong(wrong));
        self.sent = None;
    }

    /// There are no more chunks.
    pub fn end(&mut self) {
        if let Some(sent) = self.sent.take() {
            _ = sent.try_send(Sent::End);
        }
    }

    /// The caller takes so many more chunks.
    pub fn more(&self, chunks: usize) {
        self.credit.send_modify(|granted| *granted = granted.saturating_add(chunks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn chunks_beyond_the_window_are_a_mistake_and_their_end_is_told() {
        let (mut call, mut call_input, _messages) = exchange(false);
        for number in 0..WINDOW {
            call_input.chunk(Ok(vec![u8::try_from(number).unwrap()]));
        }
        call_input.end();
        for number in 0..WINDOW {
            assert_eq!(call.chunk().await, Ok(Some(vec![u8::try_from(number).unwrap()])));
        }
        assert_eq!(call.chunk().await, Ok(None));

        let (mut call, mut call_input, _messages) = exchange(false);
        (0..=WINDOW).for_each(|_| call_input.chunk(Ok(Vec::new())));
        for _ in 0..WINDOW {
            assert_eq!(call.chunk().await, Ok(Some(Vec::new())));
        }
        assert!(call.chunk().await.unwrap_err().unwrap().contains("more chunks than requested"));
        call_input.chunk(Ok(Vec::new()));
        assert_eq!(call.chunk().await, Err(None));
    }

    #[tokio::test]
    async fn chunks_that_a_caller_takes_are_said_after_its_end_and_no_more() {
        let (mut call, call_input, _messages) = exchange(false);
        call_input.more(1);
        drop(call_input);
        for _ in 0..=WINDOW {
            assert!(call.credit().await.is_ok());
        }
        assert!(call.credit().await.is_err());
    }
}
