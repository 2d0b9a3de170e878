//! Messages of a stream: a byte of flags, four of the length with the highest first, and JSON. Pure.

use bytes::{Buf as _, Bytes, BytesMut};

/// The bytes before a message.
pub(crate) const HEAD: usize = 5;
/// Its message is compressed.
const COMPRESSED: u8 = 1;
/// It is the last one, of the server: how the stream ended.
const END: u8 = 2;

/// The most bytes of a message that a client sends.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// Why what a client sent is no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvelopeError {
    /// It is compressed, which was not agreed on.
    #[error("compressed messages are not supported")]
    Compressed,
    /// Its flags mean nothing.
    #[error("a message has the flags {0}")]
    Flags(u8),
    /// It is too long.
    #[error("a message has {0} bytes, and may have 1 MiB")]
    TooLarge(u32),
    /// The body ends within it.
    #[error("the body ends within a message")]
    CutOff,
}

/// A message of the server.
#[must_use]
pub(crate) fn message(json: &[u8]) -> Bytes {
    seal(0, json)
}

/// The server's last message: `{}`, or the error that ended the stream.
#[must_use]
pub(crate) fn end(json: &[u8]) -> Bytes {
    seal(END, json)
}

fn seal(flags: u8, json: &[u8]) -> Bytes {
    let mut sealed = Vec::with_capacity(HEAD + json.len());
    sealed.push(flags);
    // Ours are far shorter.
    sealed.extend_from_slice(&u32::try_from(json.len()).unwrap_or(u32::MAX).to_be_bytes());
    sealed.extend_from_slice(json);
    sealed.into()
}

/// Takes the messages of a client out of a body that arrives in pieces. It holds one message, and what came in
/// the same piece.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    arrived: BytesMut,
}

impl Decoder {
    /// Adds a piece of the body.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.arrived.extend_from_slice(piece);
    }

    /// The bytes that are there and in no message yet.
    pub(crate) fn len(&self) -> usize {
        self.arrived.len()
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError`], as soon as the head says so; nothing after it can be read.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, EnvelopeError> {
        let Some(&[flags, a, b, c, d]) = self.arrived.first_chunk::<HEAD>() else {
            return Ok(None);
        };
        match flags {
            0 => {}
            COMPRESSED => return Err(EnvelopeError::Compressed),
            other => return Err(EnvelopeError::Flags(other)),
        }
        let length = u32::from_be_bytes([a, b, c, d]);
        let size = length as usize;
        if size > MAX_MESSAGE {
            return Err(EnvelopeError::TooLarge(length));
        }
        if self.arrived.len() - HEAD < size {
            return Ok(None);
        }
        self.arrived.advance(HEAD);
        Ok(Some(self.arrived.split_to(size).freeze()))
    }

    /// The body has ended.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError::CutOff`] if a message has not.
    pub(crate) fn finish(&self) -> Result<(), EnvelopeError> {
        if self.arrived.is_empty() { Ok(()) } else { Err(EnvelopeError::CutOff) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::envelopes as fuzz;

    #[test]
    fn a_message_is_read_back_however_it_arrives() {
        let body =
            [&message(b"{\"a\":1}")[..], &message(b"")[..], &message(&[b'x'; 300])[..]].concat();
        fuzz(&body);
        let mut decoder = Decoder::default();
        decoder.push(&body);
        assert_eq!(decoder.next().unwrap().unwrap(), &b"{\"a\":1}"[..]);
        assert_eq!(decoder.next().unwrap().unwrap(), &b""[..]);
        assert_eq!(decoder.next().unwrap().unwrap().len(), 300);
        assert_eq!(decoder.next(), Ok(None));
        assert_eq!(decoder.finish(), Ok(()));
        fuzz(&body[..body.len() - 1]);
    }

    #[test]
    fn what_is_no_message_is_refused_by_its_head() {
        for (head, error) in [
            ([1, 0, 0, 0, 1], EnvelopeError::Compressed),
            ([2, 0, 0, 0, 0], EnvelopeError::Flags(2)),
            ([0, 0, 0x80, 0, 1], EnvelopeError::TooLarge(0x80_0001)),
        ] {
            let mut decoder = Decoder::default();
            decoder.push(&head);
            assert_eq!(decoder.next(), Err(error));
            fuzz(&head);
        }
        let mut decoder = Decoder::default();
        decoder.push(&[0, 0, 0, 0, 2, b'{']);
        assert_eq!(decoder.next(), Ok(None));
        assert_eq!(decoder.finish(), Err(EnvelopeError::CutOff));
        assert_eq!(&end(b"{}")[..], b"\x02\0\0\0\x02{}");
    }
}
