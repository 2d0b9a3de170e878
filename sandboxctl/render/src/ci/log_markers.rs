//! What a reader of logs takes for its own, wherever it stands in a line.

use std::borrow::Cow;

/// A mark, and what is printed in its place.
#[derive(Debug, PartialEq, Eq)]
pub struct LogMarker {
    /// What a reader looks for.
    pub read: &'static [u8],
    /// Much the same for people.
    pub neutral: &'static [u8],
}

impl LogMarker {
    /// Text without marks.
    pub fn removed_from<'a>(&'static self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if !self.is_in(bytes) {
            return Cow::Borrowed(bytes);
        }
        let mut filter = MarkFilter::new(self);
        let mut all = filter.push(bytes);
        all.extend(filter.finish());
        Cow::Owned(all)
    }

    /// Whether it is in a text.
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        bytes.windows(self.read.len()).any(|window| window == self.read)
    }

    /// How many bytes of the mark a stream still ends with that went on otherwise after `held` of them.
    fn shorter(&self, held: usize) -> usize {
        let partial = &self.read[..held];
        (1..held).rev().find(|&length| partial.ends_with(&self.read[..length])).unwrap_or(0)
    }
}

/// Removes marks from a stream, also where they are split over pieces.
#[derive(Debug)]
pub struct MarkFilter {
    mark: &'static LogMarker,
    /// How many bytes of a mark the stream ends with: they are held back.
    held: usize,
}

impl MarkFilter {
    /// A filter of one mark.
    pub const fn new(mark: &'static LogMarker) -> Self {
        Self { mark, held: 0 }
    }

    /// What can be printed after this piece.
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let LogMarker { read, neutral } = self.mark;
        let mut text = Vec::with_capacity(piece.len() + self.held);
        for &byte in piece {
            while self.held > 0 && byte != read[self.held] {
                let shorter = self.mark.shorter(self.held);
                text.extend_from_slice(&read[..self.held - shorter]);
                self.held = shorter;
            }
            match byte == read[self.held] {
                true => self.held += 1,
                false => text.push(byte),
            }
            if self.held == read.len() {
                text.extend_from_slice(neutral);
                self.held = 0;
            }
        }
        text
    }

    /// What was held back.
    pub fn finish(&mut self) -> Vec<u8> {
        self.mark.read[..std::mem::take(&mut self.held)].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static SECTION: LogMarker = LogMarker { read: b"section_", neutral: b"section-" };
    static COMMAND: LogMarker = LogMarker { read: b"##[", neutral: b"## [" };

    fn filtered(mark: &'static LogMarker, parts: &[String]) -> String {
        let mut filter = MarkFilter::new(mark);
        let mut all: Vec<u8> = parts.iter().flat_map(|it| filter.push(it.as_bytes())).collect();
        all.extend(filter.finish());
        let whole = parts.concat();
        assert_eq!(mark.removed_from(whole.as_bytes()).into_owned(), all);
        String::from_utf8(all).unwrap()
    }

    proptest! {
        #[test]
        fn no_mark_is_left_however_it_is_split(
            parts in proptest::collection::vec("(section_|sect|ion_|s|start:1:x|\r|e|_)", 0..12),
            others in proptest::collection::vec("(##\\[|#|##|\\[|###\\[|x)", 0..12),
        ) {
            let expected = parts.concat().replace("section_", "section-");
            prop_assert_eq!(filtered(&SECTION, &parts), expected);
            let expected = others.concat().replace("##[", "## [");
            prop_assert_eq!(filtered(&COMMAND, &others), expected);
        }
    }

    #[test]
    fn other_text_is_the_same() {
        let text = b"sections of a section\xff";
        assert!(matches!(SECTION.removed_from(text), Cow::Borrowed(same) if same == text));
    }
}
