//! GitLab's sections: `section_start:TIME:NAME` and `section_end:TIME:NAME`, anywhere in the log.

use std::borrow::Cow;

use crate::render::escaped_line;

/// What begins a mark. With another character in place of the last one it is none.
const MARK: &[u8] = b"section_";
const NEUTRAL: &[u8] = b"section-";

/// Begins a section that is collapsed.
#[must_use]
pub fn open(title: &str, token: &str, time: u64) -> String {
    let title = without_marks(escaped_line(title).as_bytes()).into_owned();
    let title = String::from_utf8_lossy(&title).into_owned();
    format!("\u{1b}[0Ksection_start:{time}:sandboxctl_{token}[collapsed=false]\r\u{1b}[0K{title}\n")
}

/// Ends it on a line of its own.
#[must_use]
pub fn close(token: &str, time: u64) -> String {
    format!("\n\u{1b}[0Ksection_end:{time}:sandboxctl_{token}\r\u{1b}[0K\n")
}

/// Whether the runner finds a mark in this text.
#[must_use]
pub fn has_mark(text: &str) -> bool {
    text.as_bytes().windows(MARK.len()).any(|window| window == MARK)
}

/// JSON without section marks, and the same value.
#[must_use]
pub fn json(json: &str) -> Cow<'_, str> {
    match has_mark(json) {
        true => json.replace("section_", "section\\u005f").into(),
        false => json.into(),
    }
}

/// Text without section marks.
#[must_use]
pub fn without_marks(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.windows(MARK.len()).any(|window| window == MARK) {
        return Cow::Borrowed(bytes);
    }
    let mut filter = MarkFilter::default();
    let mut all = filter.push(bytes);
    all.extend(filter.finish());
    Cow::Owned(all)
}

/// Removes marks from a stream, also where they are split over pieces.
#[derive(Debug, Default)]
pub struct MarkFilter {
    /// How many bytes of a mark the stream ends with: they are held back.
    held: usize,
}

impl MarkFilter {
    /// What can be printed after this piece.
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut text = Vec::with_capacity(piece.len() + self.held);
        for &byte in piece {
            if byte == MARK[self.held] {
                self.held += 1;
                if self.held == MARK.len() {
                    text.extend_from_slice(NEUTRAL);
                    self.held = 0;
                }
                continue;
            }
            // No byte but the first begins a mark again.
            text.extend_from_slice(&MARK[..self.held]);
            self.held = usize::from(byte == MARK[0]);
            if self.held == 0 {
                text.push(byte);
            }
        }
        text
    }

    /// What was held back.
    pub fn finish(&mut self) -> Vec<u8> {
        MARK[..std::mem::take(&mut self.held)].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_mark_is_left_however_it_is_split(
            parts in proptest::collection::vec("(section_|sect|ion_|s|start:1:x|\r|e|_)", 0..12)
        ) {
            let mut filter = MarkFilter::default();
            let mut all: Vec<u8> = parts.iter().flat_map(|it| filter.push(it.as_bytes())).collect();
            all.extend(filter.finish());
            let whole = parts.concat();
            prop_assert_eq!(&*String::from_utf8_lossy(&all), whole.replace("section_", "section-"));
            prop_assert_eq!(without_marks(whole.as_bytes()).into_owned(), all);
        }
    }

    #[test]
    fn other_text_is_the_same() {
        let text = b"sections of a section\xff";
        assert!(matches!(without_marks(text), Cow::Borrowed(same) if same == text));
        let title = open("a\rsection_end:1:x", "t", 7);
        assert_eq!(title.matches("section_").count(), 1);
    }
}
