//! What programs print, for a terminal: colours and what moves within a line pass, everything else
//! is shown.

use anstyle_parse::{Params, Parser, Perform, Utf8Parser};

use super::escape::escaped_text;

/// Longest sequence that is waited for: one without an end is shown.
const LONGEST: usize = 64;
/// Ends all colours.
const RESET: &str = "\u{1b}[0m";

/// Converts output that arrives in pieces into text for a terminal. SGR (colours), erase-in-line,
/// carriage return, backspace, tab and newline pass; other control characters and sequences, and
/// invalid UTF-8, are shown as escapes.
pub struct StyledText {
    parser: Parser<Utf8Parser>,
    /// The bytes of the incomplete character or sequence.
    pending: Vec<u8>,
    /// Whether colours pass; they are dropped otherwise.
    colour: bool,
    /// Nothing but text passes.
    is_plain: bool,
    /// A colour may be in force.
    is_styled: bool,
}

impl StyledText {
    /// Nothing has been printed yet.
    pub fn new(colour: bool) -> Self {
        let (parser, pending) = (Parser::<Utf8Parser>::new(), Vec::new());
        Self { parser, pending, colour, is_plain: false, is_styled: false }
    }

    /// The same for content of files: everything but text, tabs and newlines is shown.
    pub fn plain() -> Self {
        Self { is_plain: true, ..Self::new(false) }
    }

    /// The next piece.
    pub fn take(&mut self, piece: &[u8]) -> String {
        let mut text = String::with_capacity(piece.len() + 16);
        for &byte in piece {
            let mut seen = Seen::Nothing;
            self.pending.push(byte);
            self.parser.advance(&mut seen, byte);
            if seen != Seen::Nothing || self.pending.len() > LONGEST {
                self.flush(seen, &mut text);
            }
        }
        text
    }

    /// The rest at the end; colours end with it.
    pub fn end(&mut self) -> String {
        let mut text = String::new();
        self.flush(Seen::Other, &mut text);
        if std::mem::take(&mut self.is_styled) {
            text.push_str(RESET);
        }
        text
    }

    /// Adds the pending bytes, now that their kind is known.
    fn flush(&mut self, seen: Seen, text: &mut String) {
        let pending = std::mem::take(&mut self.pending);
        match (seen, pending.as_slice()) {
            (Seen::Control, b"\r" | b"\x08") if !self.is_plain => text.push(char::from(pending[0])),
            (Seen::Sequence, sequence) if !self.is_plain && passes(sequence) => {
                let is_colour = sequence.ends_with(b"m");
                if !is_colour || self.colour {
                    text.push_str(&String::from_utf8_lossy(sequence));
                }
                self.is_styled |= is_colour && self.colour;
            }
            (_, shown) => {
                for chunk in shown.utf8_chunks() {
                    text.push_str(&escaped_text(chunk.valid()));
                    chunk
                        .invalid()
                        .iter()
                        .for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
                }
                // A sequence that is too long goes on: what follows is text again.
                if seen == Seen::Nothing {
                    self.parser = Parser::<Utf8Parser>::new();
                }
            }
        }
    }
}

/// Whether it is exactly one sequence of colours, or one that erases in its line.
fn passes(sequence: &[u8]) -> bool {
    let Some((last, parameters)) =
        sequence.strip_prefix(b"\x1b[").and_then(|rest| rest.split_last())
    else {
        return false;
    };
    let are_numbers =
        parameters.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b';' | b':'));
    matches!(last, b'm' | b'K') && are_numbers
}

/// What the parser has seen the end of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Nothing,
    /// A character.
    Character,
    /// A control character.
    Control,
    /// A control sequence.
    Sequence,
    /// Anything else.
    Other,
}

impl Perform for Seen {
    fn print(&mut self, _: char) {
        *self = Self::Character;
    }

    fn execute(&mut self, _: u8) {
        *self = Self::Control;
    }

    fn hook(&mut self, _: &Params, _: &[u8], _: bool, _: u8) {
        *self = Self::Other;
    }

    fn put(&mut self, _: u8) {
        *self = Self::Other;
    }

    fn unhook(&mut self) {
        *self = Self::Other;
    }

    fn osc_dispatch(&mut self, _: &[&[u8]], _: bool) {
        *self = Self::Other;
    }

    fn csi_dispatch(&mut self, _: &Params, _: &[u8], is_cut: bool, _: u8) {
        *self = if is_cut { Self::Other } else { Self::Sequence };
    }

    fn esc_dispatch(&mut self, _: &[u8], _: bool, _: u8) {
        *self = Self::Other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(pieces: &[&[u8]], colour: bool) -> String {
        let mut styled = StyledText::new(colour);
        let mut text: String = pieces.iter().map(|piece| styled.take(piece)).collect();
        text.push_str(&styled.end());
        text
    }

    #[test]
    fn colours_and_moves_within_a_line_pass() {
        let green = b"\x1b[1;32mok\x1b[0m\n";
        assert_eq!(shown(&[green], true), "\u{1b}[1;32mok\u{1b}[0m\n\u{1b}[0m");
        assert_eq!(shown(&[green], false), "ok\n");
        assert_eq!(shown(&[b"10%\r20%\x1b[K\x08!\t."], true), "10%\r20%\u{1b}[K\u{8}!\t.");
        assert_eq!(shown(&[b"\x1b[3", b"8;5;1", b"2mx"], true), "\u{1b}[38;5;12mx\u{1b}[0m");
        assert_eq!(shown(&["é".as_bytes(), b"\xc3", b"\xa9"], true), "éé");
    }

    #[test]
    fn everything_else_is_shown() {
        for (printed, text) in [
            (&b"\x1b[2J"[..], "\\u{1b}[2J"),
            (b"\x1b[1A", "\\u{1b}[1A"),
            (b"\x1b[?25l", "\\u{1b}[?25l"),
            (b"\x1b[>0m", "\\u{1b}[>0m"),
            (b"\x1b]0;title\x07x", "\\u{1b}]0;title\\u{7}x"),
            (b"\x1b]52;c;aGk=\x1b\\x", "\\u{1b}]52;c;aGk=\\u{1b}\\x"),
            (b"\x1bc", "\\u{1b}c"),
            (b"\x07\x00", "\\u{7}\\u{0}"),
            (b"\xff\xc2\x9b2J", "\\xff\\u{9b}2J"),
            ("\u{202e}x".as_bytes(), "\\u{202e}x"),
            (b"\x1b[31", "\\u{1b}[31"),
            (b"\x1b[3\x071m", "\\u{1b}[3\\u{7}1m"),
        ] {
            assert_eq!(shown(&[printed], true), text, "{printed:?}");
        }
        let endless = [b"\x1b]0;".as_slice(), &[b'a'; 1000], b"\nnext"].concat();
        let text = shown(&[&endless], true);
        assert!(text.starts_with("\\u{1b}]0;aaa") && text.ends_with("a\nnext"), "{text}");
    }

    proptest! {
        #[test]
        fn terminal_is_styled_and_never_steered(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0x1b), Just(b'['), Just(b'm'), Just(b'1'), Just(b';')],
                0..200,
            ),
            size in 1usize..5,
        ) {
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            let whole = shown(&[&bytes], true);
            prop_assert_eq!(&shown(&pieces, true), &whole, "it does not depend on the pieces");
            let mut rest = whole.as_str();
            while let Some(at) = rest.find('\u{1b}') {
                let sequence = &rest[at..];
                let end = sequence.find(['m', 'K']).map(|end| end + 1).unwrap_or(sequence.len());
                prop_assert!(passes(&sequence.as_bytes()[..end]), "{sequence:?}");
                rest = &sequence[end..];
            }
            let is_control = |c: char| c.is_control() && !"\n\t\r\u{8}\u{1b}".contains(c);
            prop_assert!(!whole.contains(is_control));
        }
    }
}
