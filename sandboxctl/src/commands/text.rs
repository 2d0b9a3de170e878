//! A filter for streamed content: selects lines.

use memchr::memchr;

use crate::cli::fs::Lines;

/// Selects lines from content that arrives in pieces, byte for byte.
#[derive(Debug)]
pub struct LineCut {
    first: u64,
    last: Option<u64>,
    /// The number of the current line, from 1.
    line: u64,
    /// Whether the current line has bytes already.
    inside: bool,
}

impl LineCut {
    pub fn new(lines: Lines) -> Self {
        let last = lines.last.map(std::num::NonZeroU64::get);
        Self { first: lines.first.get(), last, line: 1, inside: false }
    }

    /// The part of the next piece that is in the selected lines.
    pub fn take<'a>(&mut self, piece: &'a [u8]) -> &'a [u8] {
        let mut at = 0;
        while self.line < self.first && at < piece.len() {
            at += self.pass_line(&piece[at..]);
        }
        let start = at;
        match self.last {
            None => {
                at = piece.len();
                self.inside |= start < at;
            }
            Some(last) => {
                while self.line <= last && at < piece.len() {
                    at += self.pass_line(&piece[at..]);
                }
            }
        }
        &piece[start..at]
    }

    /// Skips the rest of a line, and returns its length.
    fn pass_line(&mut self, bytes: &[u8]) -> usize {
        match memchr(b'\n', bytes) {
            Some(end) => {
                self.line += 1;
                self.inside = false;
                end + 1
            }
            None => {
                self.inside = true;
                bytes.len()
            }
        }
    }

    /// Whether no further bytes can be in the selected lines.
    pub fn is_done(&self) -> bool {
        self.last.is_some_and(|last| self.line > last)
    }

    /// At the end of the content: the number of lines, if the first requested line is after them.
    /// The first line of empty content may be requested.
    pub fn lines_past_end(&self) -> Option<u64> {
        let lines = self.line - 1 + u64::from(self.inside);
        (self.first > lines.max(1)).then_some(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::{StyledText, escaped_text};
    use proptest::prelude::*;

    fn cut(lines: &str, pieces: &[&[u8]]) -> (Vec<u8>, Option<u64>) {
        let mut cut = LineCut::new(lines.parse().unwrap());
        let mut taken = Vec::new();
        for piece in pieces {
            if cut.is_done() {
                return (taken, None);
            }
            taken.extend_from_slice(cut.take(piece));
        }
        (taken, cut.lines_past_end())
    }

    #[test]
    fn lines_are_cut_out_with_their_ends() {
        let text: &[&[u8]] = &[b"one\ntwo\r\nth", b"ree\n\nfive"];
        for (lines, taken) in [
            ("1", "one\n"),
            ("2:3", "two\r\nthree\n"),
            ("3:", "three\n\nfive"),
            (":2", "one\ntwo\r\n"),
            ("4", "\n"),
            ("5:9", "five"),
        ] {
            assert_eq!(cut(lines, text), (taken.into(), None), "{lines}");
        }
        assert_eq!(cut("6:", text), (Vec::new(), Some(5)));
        assert_eq!(cut("3", &[b"a\nb\n"]), (Vec::new(), Some(2)));
        assert_eq!(cut("2:", &[b"a\n"]), (Vec::new(), Some(1)));
        assert_eq!(cut("1:", &[]), (Vec::new(), None), "what is empty has no lines to miss");
        assert_eq!(cut("2", &[]), (Vec::new(), Some(0)));
    }

    #[test]
    fn a_character_in_two_pieces_is_one() {
        let mut text = StyledText::plain();
        assert_eq!(text.take(b"a\xc3"), "a");
        assert_eq!(text.take(b"\xa9\x1b[2J"), "é\\u{1b}[2J");
        // What is no character is shown with what follows it.
        assert_eq!(text.take(b"\xff\xe2\x82"), "");
        assert_eq!(text.end(), "\\xff\\xe2\\x82");
        assert_eq!(text.end(), "");
    }

    proptest! {
        #[test]
        fn cutting_does_not_depend_on_the_pieces(
            text in "[ab\n]{0,40}", first in 1u64..8, more in 0u64..8, size in 1usize..9,
        ) {
            let last = first + more;
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let expected: String = text
                .split_inclusive('\n')
                .skip(first as usize - 1)
                .take(more as usize + 1)
                .collect();
            let (taken, behind) = cut(&format!("{first}:{last}"), &pieces);
            prop_assert_eq!(taken, expected.into_bytes());
            let lines = text.split_inclusive('\n').count() as u64;
            prop_assert_eq!(behind, (first > lines.max(1)).then_some(lines));
        }

        #[test]
        fn a_terminal_is_never_steered(bytes in any::<Vec<u8>>(), size in 1usize..5) {
            let mut text = StyledText::plain();
            let mut shown: String = bytes.chunks(size).map(|piece| text.take(piece)).collect();
            shown.push_str(&text.end());
            let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
            prop_assert!(!shown.contains(steers));
            if let Ok(whole) = std::str::from_utf8(&bytes) {
                prop_assert_eq!(shown, escaped_text(whole));
            }
        }
    }
}
