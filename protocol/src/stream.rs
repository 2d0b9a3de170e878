//! Credit windows: the two ends of a byte stream that is sent as `chunk` and `credit`.
//!
//! The sender starts with [`INITIAL_CREDIT`] bytes and stops when they are used; the receiver
//! grants more as it consumes. So a fast sender can never fill a slow receiver's memory, and a
//! reader never waits for its own writer. Pure: no clock, no I/O.

use crate::Base64;
use crate::limits::{INITIAL_CREDIT, MAX_CHUNK_BYTES};
use crate::message::{Chunk, Credit};

/// The peer broke the rules of a stream: the session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A chunk over [`MAX_CHUNK_BYTES`].
    #[error("a chunk has more than {MAX_CHUNK_BYTES} bytes")]
    ChunkTooLarge,
    /// More bytes than were granted.
    #[error("a stream has sent more than its credit")]
    CreditOverrun,
    /// A chunk is missing or was sent twice.
    #[error("a chunk of a stream is out of order")]
    OutOfOrder,
    /// A chunk after the last one.
    #[error("a chunk came after the last one of its stream")]
    AfterLast,
    /// A grant so large that the window's counter would overflow.
    #[error("the credit of a stream exceeds the maximum")]
    AbsurdCredit,
}

/// The sender's end of a stream: it counts as the receiver does.
#[derive(Debug)]
pub struct SendWindow(ReceiveWindow);

impl SendWindow {
    /// The window of a new stream.
    pub const fn new(stream: u32) -> Self {
        Self(ReceiveWindow::new(stream))
    }

    /// The most bytes that the next chunk may hold now.
    pub fn capacity(&self) -> usize {
        self.capacity_within(INITIAL_CREDIT)
    }

    /// The same for a sender that uses less of its credit: at most `most` bytes are sent for which none was
    /// granted yet.
    pub fn capacity_within(&self, most: u64) -> usize {
        let unused = INITIAL_CREDIT.saturating_sub(most);
        let left = self.0.credit.saturating_sub(unused);
        usize::try_from(left).unwrap_or(usize::MAX).min(MAX_CHUNK_BYTES)
    }

    /// Returns the next chunk. `data` is at most [`capacity`](Self::capacity) bytes.
    ///
    /// # Errors
    ///
    /// [`StreamError`] if the chunk would break the rules; then nothing is counted.
    pub fn chunk(&mut self, data: Vec<u8>, last: bool) -> Result<Chunk, StreamError> {
        let (stream, seq) = (self.0.stream, self.0.next_seq);
        let chunk = Chunk { stream, seq, data: Base64(data), last };
        self.0.receive(&chunk)?;
        Ok(chunk)
    }

    /// Adds credit that the receiver granted.
    ///
    /// # Errors
    ///
    /// [`StreamError::AbsurdCredit`] if the sum overflows.
    pub fn grant(&mut self, credit: &Credit) -> Result<(), StreamError> {
        let sum = self.0.credit.checked_add(credit.bytes);
        self.0.credit = sum.ok_or(StreamError::AbsurdCredit)?;
        Ok(())
    }
}

/// The receiver's end of a stream.
#[derive(Debug)]
pub struct ReceiveWindow {
    stream: u32,
    next_seq: u64,
    credit: u64,
    ended: bool,
}

impl ReceiveWindow {
    /// The window of a new stream.
    pub const fn new(stream: u32) -> Self {
        Self { stream, next_seq: 0, credit: INITIAL_CREDIT, ended: false }
    }

    /// Checks a chunk against the window and counts it.
    ///
    /// # Errors
    ///
    /// [`StreamError`] if the sender broke the rules.
    pub fn receive(&mut self, chunk: &Chunk) -> Result<(), StreamError> {
        if self.ended {
            return Err(StreamError::AfterLast);
        }
        if chunk.seq != self.next_seq {
            return Err(StreamError::OutOfOrder);
        }
        if chunk.data.0.len() > MAX_CHUNK_BYTES {
            return Err(StreamError::ChunkTooLarge);
        }
        self.credit =
            self.credit.checked_sub(chunk.data.0.len() as u64).ok_or(StreamError::CreditOverrun)?;
        self.next_seq += 1;
        self.ended = chunk.last;
        Ok(())
    }

    /// The credit to grant after `bytes` were consumed.
    pub const fn consumed(&mut self, bytes: u64) -> Credit {
        self.credit += bytes;
        Credit { stream: self.stream, bytes }
    }

    /// Whether the last chunk was received.
    pub const fn is_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sender_stops_at_its_credit() {
        let mut window = SendWindow::new(1);
        let mut sent = 0;
        while window.capacity() > 0 {
            let size = window.capacity();
            window.chunk(vec![0; size], false).unwrap();
            sent += size as u64;
        }
        assert_eq!(sent, INITIAL_CREDIT);
        assert_eq!(window.chunk(vec![0], false).unwrap_err(), StreamError::CreditOverrun);
    }

    #[test]
    fn a_sender_may_use_less_of_its_credit() {
        let mut window = SendWindow::new(1);
        let whole = MAX_CHUNK_BYTES as u64;
        assert_eq!(window.capacity_within(100), 100);
        window.chunk(vec![0; MAX_CHUNK_BYTES], false).unwrap();
        assert_eq!(window.capacity_within(whole + 100), 100);
        window.chunk(vec![0; MAX_CHUNK_BYTES], false).unwrap();
        assert_eq!(window.capacity_within(whole + 100), 0);
        window.grant(&Credit { stream: 1, bytes: whole }).unwrap();
        assert_eq!(window.capacity_within(whole + 100), 100);
        assert_eq!(window.capacity(), MAX_CHUNK_BYTES);
    }

    #[test]
    fn a_receiver_names_every_breach() {
        let chunk = |seq, size, last| Chunk { stream: 1, seq, data: Base64(vec![0; size]), last };
        let mut window = ReceiveWindow::new(1);
        assert_eq!(window.receive(&chunk(1, 1, false)), Err(StreamError::OutOfOrder));
        assert_eq!(
            window.receive(&chunk(0, MAX_CHUNK_BYTES + 1, false)),
            Err(StreamError::ChunkTooLarge)
        );
        let full = INITIAL_CREDIT / MAX_CHUNK_BYTES as u64;
        for seq in 0..full {
            window.receive(&chunk(seq, MAX_CHUNK_BYTES, false)).unwrap();
        }
        assert_eq!(window.receive(&chunk(full, 1, false)), Err(StreamError::CreditOverrun));
        window.receive(&chunk(full, 0, true)).unwrap();
        assert!(window.is_ended());
        assert_eq!(window.receive(&chunk(full + 1, 0, true)), Err(StreamError::AfterLast));
    }

    proptest! {
        #[test]
        fn send_window_never_exceeds_the_receive_window(
            sizes in proptest::collection::vec(0_usize..100_000, 1..40),
            consume in any::<bool>(),
        ) {
            let (mut sender, mut receiver) = (SendWindow::new(7), ReceiveWindow::new(7));
            for (index, size) in sizes.iter().enumerate() {
                let size = (*size).min(sender.capacity());
                let chunk = sender.chunk(vec![1; size], index + 1 == sizes.len()).unwrap();
                prop_assert_eq!(receiver.receive(&chunk), Ok(()));
                if consume {
                    let credit = receiver.consumed(size as u64);
                    prop_assert_eq!(sender.grant(&credit), Ok(()));
                }
            }
            prop_assert!(receiver.is_ended());
        }
    }
}
