//! Lines: splitting a byte stream into them, and writing them.

use memchr::{memchr, memchr2};
use serde::Serialize;

use crate::limits::{MAX_FRAME_BYTES, MAX_NESTING};

/// Why bytes are not a frame, or why a message cannot be written as one. After any of these the
/// stream cannot be read further: end the session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A line, complete or not, over [`MAX_FRAME_BYTES`].
    #[error("a frame is longer than {MAX_FRAME_BYTES} bytes")]
    TooLong,
    /// A line that is not UTF-8.
    #[error("a frame is not UTF-8")]
    NotUtf8,
    /// Objects and arrays nested deeper than [`MAX_NESTING`].
    #[error("a frame is nested deeper than {MAX_NESTING}")]
    TooDeep,
    /// A message that serde_json cannot serialize.
    #[error("cannot encode a message: {0}")]
    Encode(String),
}

/// Splits a stream into lines. Feed it pieces of any size; it holds at most one frame and one
/// piece.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Where the next frame starts.
    start: usize,
    /// Up to here there is no newline.
    scanned: usize,
    failed: Option<FrameError>,
}

impl FrameDecoder {
    /// An empty decoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes that were read. Take all frames out with [`next_frame`](Self::next_frame) before
    /// the next piece, or the buffer grows.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        if self.failed.is_none() {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next complete line, without its newline, or `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// [`FrameError`]; every later call returns the same error.
    pub fn next_frame(&mut self) -> Result<Option<&str>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let end = match memchr(b'\n', &self.buffer[self.scanned..]) {
            Some(offset) => self.scanned + offset,
            None => {
                self.scanned = self.buffer.len();
                if self.buffer.len() - self.start >= MAX_FRAME_BYTES {
                    return Err(self.fail(FrameError::TooLong));
                }
                return Ok(None);
            }
        };
        let line = self.start..end;
        if line.len() >= MAX_FRAME_BYTES {
            return Err(self.fail(FrameError::TooLong));
        }
        if nesting(&self.buffer[line.clone()]) > MAX_NESTING {
            return Err(self.fail(FrameError::TooDeep));
        }
        self.start = end + 1;
        self.scanned = end + 1;
        let Self { buffer, failed, .. } = self;
        match std::str::from_utf8(&buffer[line]) {
            Ok(line) => Ok(Some(line)),
            Err(_) => {
                *failed = Some(FrameError::NotUtf8);
                Err(FrameError::NotUtf8)
            }
        }
    }

    fn fail(&mut self, error: FrameError) -> FrameError {
        self.failed = Some(error.clone());
        self.buffer = Vec::new();
        self.start = 0;
        self.scanned = 0;
        error
    }
}

/// Encodes `message` as one line, with its newline.
///
/// # Errors
///
/// [`FrameError::TooLong`] and [`FrameError::TooDeep`], if the other side would refuse it.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut line =
        serde_json::to_vec(message).map_err(|error| FrameError::Encode(error.to_string()))?;
    line.push(b'\n');
    if line.len() > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong);
    }
    if nesting(&line) > MAX_NESTING {
        return Err(FrameError::TooDeep);
    }
    Ok(line)
}

/// The deepest nesting of objects and arrays in a line of JSON. serde_json does not count the
/// nesting of raw values, so this is checked before anything is parsed.
pub fn nesting(line: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            // Strings make up most of a line: content is one.
            b'"' => at = end_of_string(line, at),
            _ => {}
        }
    }
    deepest
}

/// The end of the string that contains `at`.
fn end_of_string(line: &[u8], mut at: usize) -> usize {
    while let Some(offset) = line.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += offset + 1;
        if line[at - 1] == b'"' {
            return at;
        }
        // An escaped quote does not end the string.
        at += 1;
    }
    line.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::decoded;
    use proptest::prelude::*;

    fn frames(pieces: &[&[u8]]) -> (Vec<String>, Result<(), FrameError>) {
        decoded(pieces.iter().copied())
    }

    #[test]
    fn a_line_of_the_longest_length_passes_and_one_byte_more_does_not() {
        let mut line = vec![b'x'; MAX_FRAME_BYTES - 1];
        line.push(b'\n');
        assert_eq!(frames(&[&line]).0.len(), 1);
        line.insert(0, b'x');
        assert_eq!(frames(&[&line]), (vec![], Err(FrameError::TooLong)));
        assert_eq!(frames(&[&line[..MAX_FRAME_BYTES]]), (vec![], Err(FrameError::TooLong)));
    }

    #[test]
    fn memory_stays_bounded_after_an_endless_line() {
        let mut decoder = FrameDecoder::new();
        let piece = vec![b'['; 64 << 10];
        for _ in 0..1000 {
            decoder.extend(&piece);
            _ = decoder.next_frame();
            assert!(decoder.buffer.len() <= MAX_FRAME_BYTES + piece.len());
        }
        assert_eq!(decoder.next_frame(), Err(FrameError::TooLong));
    }

    #[test]
    fn nesting_counts_outside_strings_only() {
        let deep = |n: usize| format!("{}{}\n", "[".repeat(n), "]".repeat(n)).into_bytes();
        assert_eq!(frames(&[&deep(MAX_NESTING)]).1, Ok(()));
        assert_eq!(frames(&[&deep(MAX_NESTING + 1)]).1, Err(FrameError::TooDeep));
        let text = format!("\"\\\"{}\"\n", "[".repeat(100));
        assert_eq!(frames(&[text.as_bytes()]).1, Ok(()));
    }

    #[test]
    fn a_string_ends_at_the_first_quote_that_is_not_escaped() {
        for (line, expected) in [
            (r#""[[" ["#, 1),
            (r#""\"[[[[" "#, 0),
            (r#""\\"[["#, 2),
            (r#""\\\"[["#, 0),
            (r#""never ends [["#, 0),
            ("\"\\", 0),
            ("\"", 0),
            ("", 0),
        ] {
            assert_eq!(nesting(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn invalid_utf8_is_named_and_a_cut_line_waits() {
        assert_eq!(frames(&[b"a\n\xff\nb\n"]), (vec!["a".into()], Err(FrameError::NotUtf8)));
        assert_eq!(frames(&[b"a\nb"]), (vec!["a".into()], Ok(())));
    }

    #[test]
    fn a_message_that_is_too_large_is_not_written() {
        assert_eq!(encode(&"x".repeat(MAX_FRAME_BYTES)), Err(FrameError::TooLong));
    }

    proptest! {
        #[test]
        fn lines_come_out_whole_however_the_stream_is_cut(
            lines in proptest::collection::vec("[^\n\\[{]{0,40}", 0..20),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let stream: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            at.extend([0, stream.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            prop_assert_eq!(frames(&pieces), (lines, Ok(())));
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            _ = frames(&[&bytes]);
        }
    }
}
