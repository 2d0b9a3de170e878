//! What writes to the clipboard of a terminal's user is left out: a guest's text could be pasted
//! anywhere.

/// The numbers of the commands of a terminal (OSC) that read or write its clipboard: xterm's, which all
/// know, kitty's, and iTerm2's, which has others too.
const CLIPBOARD: [u32; 3] = [52, 5522, 1337];
/// The longest beginning of a command that is held back until its number is known. A longer one has no number.
const LONGEST: usize = 64;

const BELL: u8 = 0x07;
const CANCEL: u8 = 0x18;
const SUBSTITUTE: u8 = 0x1a;
const ESCAPE: u8 = 0x1b;
/// The second byte, in UTF-8, of the characters that begin and end a command; the first one is 0xc2.
const C1: u8 = 0xc2;
const OSC: u8 = 0x9d;
const ST: u8 = 0x9c;

/// Leaves out such commands, in output that comes in pieces. Everything else passes as it is.
#[derive(Debug, Default)]
pub struct ClipboardFilter {
    state: State,
    /// What has been held back.
    held: Vec<u8>,
    /// How many more bytes a character of UTF-8 has.
    rest: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After an escape.
    Escape,
    /// After the first byte of a control character in UTF-8.
    C1,
    /// In the number of a command.
    Number(u32),
    /// In a command that is left out.
    Dropped,
    /// The same, after an escape.
    DroppedEscape,
    /// The same, after the first byte of a control character in UTF-8.
    DroppedC1,
}

impl ClipboardFilter {
    /// The next piece, without what is left out.
    pub fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(piece.len() + self.held.len());
        for &byte in piece {
            self.byte(byte, &mut out);
        }
        out
    }

    fn byte(&mut self, byte: u8, out: &mut Vec<u8>) {
        match (self.state, byte) {
            (State::Text, _) => self.text(byte, out),
            (State::Escape, b']') => self.hold(byte, State::Number(0)),
            (State::C1, OSC) => self.hold(byte, State::Number(0)),
            // Controls after an escape are executed, and the sequence goes on.
            (State::Escape, 0..=0x17 | 0x19 | 0x1c..=0x1f | 0x7f) => out.push(byte),
            (State::Escape, _) => self.pass_held_then(byte, out),
            (State::C1, _) => {
                self.rest = 1;
                self.pass_held_then(byte, out);
            }
            (State::Number(_), _) if self.held.len() > LONGEST => self.drop_from(byte),
            (State::Number(number), b'0'..=b'9') => {
                let number = number.saturating_mul(10).saturating_add(u32::from(byte - b'0'));
                self.hold(byte, State::Number(number));
            }
            // Controls within a command are ignored by some terminals.
            (State::Number(_), BELL | CANCEL | SUBSTITUTE | ESCAPE) => {
                self.pass_held_then(byte, out);
            }
            (State::Number(number), 0..=0x1f) => self.hold(byte, State::Number(number)),
            (State::Number(number), _) if CLIPBOARD.contains(&number) => self.drop_from(byte),
            (State::Number(_), _) => self.pass_held_then(byte, out),
            (State::Dropped, BELL | CANCEL | SUBSTITUTE) => self.state = State::Text,
            (State::Dropped, ESCAPE) => self.state = State::DroppedEscape,
            (State::Dropped, C1) => self.state = State::DroppedC1,
            (State::Dropped, _) => {}
            (State::DroppedEscape, b'\\') | (State::DroppedC1, ST) => self.state = State::Text,
            (State::DroppedEscape, _) => {
                // Another sequence begins, which ends this one.
                self.hold(ESCAPE, State::Escape);
                self.byte(byte, out);
            }
            (State::DroppedC1, _) => self.drop_from(byte),
        }
    }

    fn text(&mut self, byte: u8, out: &mut Vec<u8>) {
        let is_continued = matches!(byte, 0x80..=0xbf) && self.rest > 0;
        if is_continued {
            self.rest -= 1;
            out.push(byte);
            return;
        }
        self.rest = match byte {
            0xc3..=0xdf => 1,
            0xe0..=0xef => 2,
            0xf0..=0xf4 => 3,
            _ => 0,
        };
        match byte {
            ESCAPE => self.hold(byte, State::Escape),
            C1 => self.hold(byte, State::C1),
            // Of a terminal that does not speak UTF-8.
            OSC => self.hold(byte, State::Number(0)),
            _ => out.push(byte),
        }
    }

    fn hold(&mut self, byte: u8, state: State) {
        self.held.push(byte);
        self.state = state;
    }

    /// What was held back is no such command.
    fn pass_held_then(&mut self, byte: u8, out: &mut Vec<u8>) {
        out.append(&mut self.held);
        self.state = State::Text;
        self.text(byte, out);
    }

    /// What was held back is one, and so is this byte.
    fn drop_from(&mut self, byte: u8) {
        self.held.clear();
        self.state = match byte {
            BELL | CANCEL | SUBSTITUTE => State::Text,
            ESCAPE => State::DroppedEscape,
            C1 => State::DroppedC1,
            _ => State::Dropped,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filtered(pieces: &[&[u8]]) -> Vec<u8> {
        let mut filter = ClipboardFilter::default();
        pieces.iter().flat_map(|piece| filter.take(piece)).collect()
    }

    #[test]
    fn clipboard_is_not_written_however_it_is_asked_for() {
        for command in [
            &b"\x1b]52;c;aGk=\x07"[..],
            b"\x1b]52;c;aGk=\x1b\\",
            b"\x1b]052;p;?\x07",
            b"\x1b]5522;type=write\x1b\\",
            b"\x1b]5\x002;c;aGk=\x07",
            b"\x1b]52;c;\xc2\x80aGk=\xc2\x9c",
            b"\xc2\x9d52;c;aGk=\x07",
            b"\x9d52;c;aGk=\x07",
            b"\x1b]52;c;aGk=\x18",
            b"\x1b]1337;Copy=:aGk=\x07",
        ] {
            let all = [b"a", command, b"b"].concat();
            assert_eq!(filtered(&[&all]), b"ab", "{command:?}");
            let single: Vec<&[u8]> = all.chunks(1).collect();
            assert_eq!(filtered(&single), b"ab", "{command:?} in pieces");
        }
        // Through tmux or screen, to the terminal around it.
        let through = filtered(&[b"\x1bPtmux;\x1b\x1b]52;c;aGk=\x07\x1b\\"]);
        assert!(!through.windows(2).any(|it| it == b"52"), "{through:?}");
        // Controls after the escape.
        for control in [b"\0", b"\x0b", b"\x7f"] {
            let asked = [&b"a\x1b"[..], control, b"]52;c;aGk=\x07b"].concat();
            assert_eq!(filtered(&[&asked]), [&b"a"[..], control, b"b"].concat());
        }
        // A number that never ends.
        let endless = [&b"\x1b]"[..], &[b'0'; 1000], b"52;c;aGk=\x07b"].concat();
        assert_eq!(filtered(&[&endless]), b"b");
        // Another sequence ends it.
        assert_eq!(filtered(&[b"\x1b]52;c;aGk=\x1b[31mred"]), b"\x1b[31mred");
    }

    #[test]
    fn everything_else_passes_as_it_is() {
        for text in [
            &b"plain\r\n"[..],
            b"\x1b[31mred\x1b[0m\x1b[?1049h",
            b"\x1b]0;a title\x07\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\",
            b"\x1b]521;c;x\x07\x1b]5;2\x07\x1b]\x07",
            "\u{201d}52;c; \u{dd}\u{a0}\u{10ffff}".as_bytes(),
            b"\x1b\x1b[A\x1bP$q\x1b\\",
        ] {
            assert_eq!(filtered(&[text]), text, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn pieces_change_nothing(text in "(\u{1b}\\]|\u{1b}|\u{0}|5|2|;|\u{7}|\u{1b}\\\\|x|\u{9d}|\u{201d}){0,40}", at in 0_usize..40) {
            let text = text.as_bytes();
            let at = at.min(text.len());
            prop_assert_eq!(filtered(&[text]), filtered(&[&text[..at], &text[at..]]));
        }
    }
}
