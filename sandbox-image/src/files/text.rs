//! Files as text: UTF-8 checks, and windows of lines.

use memchr::{memchr, memchr_iter};
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{MAX_VIEW_BYTES, MAX_VIEW_LINES};
use sandbox_protocol::message::{TextWindow, TruncatedBy};

use super::error::FileError;

/// Checks whether its input is UTF-8, however it is split into pieces.
#[derive(Debug, Default)]
pub(super) struct Utf8Check {
    /// The beginning of a character that the last piece split.
    partial: Vec<u8>,
    broken: bool,
}

impl Utf8Check {
    /// Adds the next piece.
    pub fn feed(&mut self, mut piece: &[u8]) {
        while !self.broken && !self.partial.is_empty() && !piece.is_empty() {
            self.partial.push(piece[0]);
            piece = &piece[1..];
            match std::str::from_utf8(&self.partial) {
                Ok(_) => self.partial.clear(),
                Err(error) => self.broken = error.error_len().is_some(),
            }
        }
        if self.broken {
            return;
        }
        if let Err(error) = std::str::from_utf8(piece) {
            self.broken = error.error_len().is_some();
            self.partial.extend_from_slice(&piece[error.valid_up_to()..]);
        }
    }

    /// Whether all of it was UTF-8, with no incomplete character at the end.
    pub const fn is_whole(&self) -> bool {
        !self.broken && self.partial.is_empty()
    }
}

/// A text, or at most `max` bytes of its beginning, which do not end in the middle of a character.
pub(super) fn beginning(text: &[u8], max: usize) -> &[u8] {
    let Some((head, [_, ..])) = text.split_at_checked(max) else { return text };
    match std::str::from_utf8(head) {
        Err(error) if error.error_len().is_none() => &head[..error.valid_up_to()],
        _ => head,
    }
}

/// A file that is not UTF-8 text.
pub(super) fn not_utf8(written: &[u8]) -> FileError {
    FileError::rule(ErrorKind::Encoding, "not UTF-8 text", written)
}

/// A window of lines of a text that is read in pieces, and a count of all lines.
#[derive(Debug, Default)]
pub(super) struct LineWindow {
    first: u64,
    lines: u64,
    /// How many bytes there are before the window.
    skipped: u64,
    text: Vec<u8>,
    /// Where the last line in `text` begins that has no line end yet.
    line_start: usize,
    /// Complete lines in `text`.
    taken: u64,
    /// Why the window ended, and whether its only line is cut.
    closed: Option<(TruncatedBy, bool)>,
    /// Line ends so far.
    ends: u64,
    /// The text so far ends in the middle of a line.
    inside: bool,
}

impl LineWindow {
    /// At most `limit` lines, starting with line `first`.
    pub fn new(first: u64, limit: Option<u64>) -> Self {
        let lines = limit.unwrap_or(MAX_VIEW_LINES).min(MAX_VIEW_LINES);
        Self { first, lines, ..Self::default() }
    }

    /// Adds the next piece.
    pub fn feed(&mut self, mut piece: &[u8]) {
        while self.closed.is_none() && !piece.is_empty() {
            let line = match memchr(b'\n', piece) {
                Some(end) => &piece[..=end],
                None => piece,
            };
            piece = &piece[line.len()..];
            self.take(line);
        }
        if !piece.is_empty() {
            self.ends += memchr_iter(b'\n', piece).count() as u64;
            self.inside = !piece.ends_with(b"\n");
        }
    }

    /// A line, or a part of one.
    fn take(&mut self, line: &[u8]) {
        let is_end = line.ends_with(b"\n");
        if self.ends + 1 < self.first {
            self.skipped += line.len() as u64;
        } else {
            if self.taken == self.lines {
                self.closed = Some((TruncatedBy::Lines, false));
            } else if self.text.len() + line.len() <= MAX_VIEW_BYTES {
                self.text.extend_from_slice(line);
                if is_end {
                    self.taken += 1;
                    self.line_start = self.text.len();
                }
            } else if self.taken > 0 {
                self.text.truncate(self.line_start);
                self.closed = Some((TruncatedBy::Bytes, false));
            } else {
                // The first line is too long: show its beginning.
                self.text.extend_from_slice(&line[..MAX_VIEW_BYTES - self.text.len()]);
                self.closed = Some((TruncatedBy::Bytes, true));
            }
        }
        self.ends += u64::from(is_end);
        self.inside = !is_end;
    }

    /// The window.
    ///
    /// # Errors
    ///
    /// `encoding` if it is not UTF-8; `invalid_request` if it starts past the end.
    pub fn finish(self, written: &[u8]) -> Result<TextWindow, FileError> {
        let total_lines = self.ends + u64::from(self.inside);
        let Self { first, skipped, mut text, taken, closed, line_start, .. } = self;
        if first > total_lines.max(1) {
            let lines = if total_lines == 1 { "line" } else { "lines" };
            let reason =
                format!("line {first} is past the end of the file ({total_lines} {lines})");
            return Err(FileError::invalid(reason, written));
        }
        let is_cut = matches!(closed, Some((_, true)));
        if is_cut
            && let Err(error) = std::str::from_utf8(&text)
            && error.error_len().is_none()
        {
            text.truncate(error.valid_up_to());
        }
        let output_lines = match closed {
            Some((_, is_cut)) => taken + u64::from(is_cut),
            None => taken + u64::from(text.len() > line_start),
        };
        let bytes = text.len();
        let text = String::from_utf8(text).map_err(|_| not_utf8(written))?;
        let last = first + output_lines.saturating_sub(1);
        let footer = closed.map(|(_, is_cut)| {
            // How it goes on, in the options of the operations.
            let lines = format!("lines={{\"offset\":{}}} to continue", last + 1);
            let rest = skipped + bytes as u64;
            let rest = format!("read with encoding=\"utf-8\", offset={rest} for the rest of it");
            match (is_cut, last < total_lines) {
                (true, true) => format!(
                    "[Showing the first {bytes} bytes of line {first} of {total_lines}. Use {rest}, \
                     {lines}.]"
                ),
                (true, false) => format!(
                    "[Showing the first {bytes} bytes of line {first} of {total_lines}. Use {rest}.]"
                ),
                (false, true) => {
                    format!("[Showing lines {first}-{last} of {total_lines}. Use {lines}.]")
                }
                (false, false) => format!("[Showing lines {first}-{last} of {total_lines}.]"),
            }
        });
        Ok(TextWindow {
            text,
            first_line: first,
            output_lines,
            total_lines,
            truncated_by: closed.map(|(by, _)| by),
            footer,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn window(text: &[u8], first: u64, limit: Option<u64>) -> Result<TextWindow, FileError> {
        let mut window = LineWindow::new(first, limit);
        for piece in text.chunks(7) {
            window.feed(piece);
        }
        window.finish(b"f")
    }

    #[track_caller]
    fn shows(text: &str, first: u64, limit: Option<u64>, expected: (&str, u64, u64, Option<&str>)) {
        let window = window(text.as_bytes(), first, limit).unwrap();
        let found = (
            window.text.as_str(),
            window.output_lines,
            window.total_lines,
            window.footer.as_deref(),
        );
        assert_eq!(found, expected, "{text:?} {first} {limit:?}");
    }

    #[test]
    fn a_window_has_its_lines_and_says_where_to_go_on() {
        shows("", 1, None, ("", 0, 0, None));
        shows("a", 1, None, ("a", 1, 1, None));
        shows("a\n", 1, None, ("a\n", 1, 1, None));
        shows("a\r\nb", 1, Some(2), ("a\r\nb", 2, 2, None));
        shows("a\nb\nc\n", 2, Some(2), ("b\nc\n", 2, 3, None));
        shows("\n\n\n", 2, None, ("\n\n", 2, 3, None));
        let footer = "[Showing lines 1-1 of 3. Use lines={\"offset\":2} to continue.]";
        shows("a\nb\nc", 1, Some(1), ("a\n", 1, 3, Some(footer)));
        let footer = "[Showing lines 2-2 of 3. Use lines={\"offset\":3} to continue.]";
        shows("a\nb\nc", 2, Some(1), ("b\n", 1, 3, Some(footer)));
    }

    #[test]
    fn a_window_has_at_most_its_lines_and_bytes() {
        let many = "x\n".repeat(3000);
        let found = window(many.as_bytes(), 1, Some(u64::MAX)).unwrap();
        assert_eq!((found.output_lines, found.total_lines), (2000, 3000));
        assert_eq!(found.truncated_by, Some(TruncatedBy::Lines));
        let wide = format!("{}\n", "y".repeat(999)).repeat(60);
        let found = window(wide.as_bytes(), 3, None).unwrap();
        assert_eq!((found.output_lines, found.text.len()), (51, 51_000));
        assert_eq!(found.truncated_by, Some(TruncatedBy::Bytes));
        let footer = "[Showing lines 3-53 of 60. Use lines={\"offset\":54} to continue.]";
        assert_eq!(found.footer.as_deref(), Some(footer));
        let exact = format!("{}\n", "z".repeat(MAX_VIEW_BYTES - 1));
        let found = window(exact.as_bytes(), 1, None).unwrap();
        assert_eq!((found.text.len(), found.truncated_by), (MAX_VIEW_BYTES, None));
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_between_characters() {
        let long = format!("{}\nnext", "é".repeat(MAX_VIEW_BYTES));
        let found = window(format!("a{long}").as_bytes(), 1, None).unwrap();
        assert_eq!((found.text.len(), found.output_lines), (MAX_VIEW_BYTES - 1, 1));
        let bytes = MAX_VIEW_BYTES - 1;
        let shown = |line: u64, lines: u64| {
            format!("[Showing the first {bytes} bytes of line {line} of {lines}.")
        };
        let rest = |offset: usize| {
            format!("Use read with encoding=\"utf-8\", offset={offset} for the rest of it")
        };
        let next = "lines={\"offset\":2} to continue.]";
        let footer = format!("{} {}, {next}", shown(1, 2), rest(bytes));
        assert_eq!(found.footer, Some(footer));
        assert_eq!(window(long.as_bytes(), 2, None).unwrap().text, "next");
        // The last line, after others.
        let found = window(format!("1\n2\na{}", "é".repeat(MAX_VIEW_BYTES)).as_bytes(), 3, None);
        assert_eq!(
            found.unwrap().footer.unwrap(),
            format!("{} {}.]", shown(3, 3), rest(4 + bytes))
        );
    }

    #[test]
    fn a_window_behind_the_end_and_one_that_is_no_text_are_errors() {
        let error = window(b"a\nb", 3, None).unwrap_err();
        assert_eq!(error.to_string(), "f: line 3 is past the end of the file (2 lines)");
        assert_eq!(window(b"\xff\n", 1, None).unwrap_err().kind, ErrorKind::Encoding);
        assert_eq!(window(b"ok\n\xff\n", 1, Some(1)).unwrap().text, "ok\n");
    }

    proptest! {
        #[test]
        fn windows_one_after_the_other_are_the_text(text in "[ab\\né]{0,60}", lines in 1_u64..4) {
            let (mut first, mut all) = (1, String::new());
            loop {
                let found = window(text.as_bytes(), first, Some(lines)).unwrap();
                prop_assert_eq!(found.total_lines, text.lines().count() as u64);
                prop_assert!(found.output_lines <= lines);
                prop_assert_eq!(found.footer.is_some(), found.truncated_by.is_some());
                all += &found.text;
                first += found.output_lines;
                if found.truncated_by.is_none() { break }
            }
            prop_assert_eq!(all, text);
        }

        #[test]
        fn utf8_is_what_std_says_it_is_in_any_pieces(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80_u8..0xc0], 0..12),
            text in "\\PC{0,6}",
            size in 1_usize..5,
        ) {
            for bytes in [&bytes[..], text.as_bytes()] {
                let mut check = Utf8Check::default();
                bytes.chunks(size).for_each(|piece| check.feed(piece));
                prop_assert_eq!(check.is_whole(), std::str::from_utf8(bytes).is_ok());
            }
        }
    }
}
