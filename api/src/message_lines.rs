//! Messages by line, out of bytes that come in pieces. Pure: one that is too long is skipped, and its id is found.

use serde_json::Value;

use crate::message_id::IdReader;

/// Takes lines out of what is read, each with at most so many bytes.
#[derive(Debug)]
pub struct MessageLines {
    most: usize,
    /// The line so far.
    line: Vec<u8>,
    rest: Rest,
}

/// A line, without its newline.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageLine {
    /// All of it.
    Whole(Vec<u8>),
    /// It is too long. Its id, where that was found.
    TooLong(Option<Value>),
}

/// The rest of a line that is too long, which is skipped.
#[derive(Debug)]
enum Rest {
    None,
    /// The line was reported.
    Reported,
    /// It has no id yet.
    WithoutId(Box<IdReader>),
}

impl MessageLines {
    /// Nothing was read yet.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { most, line: Vec::new(), rest: Rest::None }
    }

    /// Takes what belongs to one line from the bytes read: how many bytes, and the line if it is complete.
    pub fn take(&mut self, read: &[u8]) -> (usize, Option<MessageLine>) {
        let newline = memchr::memchr(b'\n', read);
        let part = &read[..newline.unwrap_or(read.len())];
        match &mut self.rest {
            Rest::None if self.line.len() + part.len() <= self.most => {
                self.line.extend_from_slice(part);
            }
            Rest::None => {
                let mut id = IdReader::default();
                id.feed(&std::mem::take(&mut self.line));
                id.feed(part);
                self.rest = Rest::WithoutId(Box::new(id));
            }
            Rest::Reported => {}
            Rest::WithoutId(id) => id.feed(part),
        }
        let mut line = None;
        if let Rest::WithoutId(id) = &self.rest
            && (id.is_settled() || newline.is_some())
        {
            // At once, where its id is known: the rest may never come.
            line = Some(MessageLine::TooLong(id.id().cloned()));
            self.rest = Rest::Reported;
        }
        if newline.is_some()
            && let Rest::None = std::mem::replace(&mut self.rest, Rest::None)
        {
            line = Some(MessageLine::Whole(std::mem::take(&mut self.line)));
        }
        (part.len() + usize::from(newline.is_some()), line)
    }

    /// What is left at the end, if the last line needs no newline.
    pub fn end(&mut self) -> Option<MessageLine> {
        match std::mem::replace(&mut self.rest, Rest::None) {
            Rest::WithoutId(_) => Some(MessageLine::TooLong(None)),
            Rest::None | Rest::Reported if self.line.is_empty() => None,
            Rest::None | Rest::Reported => Some(MessageLine::Whole(std::mem::take(&mut self.line))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// All lines of a text that comes in pieces of this length.
    fn lines(text: &[u8], piece: usize) -> Vec<MessageLine> {
        let mut lines = MessageLines::new(20);
        let mut found = Vec::new();
        for mut piece in text.chunks(piece) {
            while !piece.is_empty() {
                let (taken, line) = lines.take(piece);
                piece = &piece[taken..];
                found.extend(line);
            }
        }
        found.extend(lines.end());
        found
    }

    #[test]
    fn line_that_is_too_long_is_skipped_and_has_its_id() {
        let text = b"{\"id\":1}\n\n{\"id\":\"a\",\"text\":\"longer than 20\"}\n{\"id\":2}";
        let whole = |text: &str| MessageLine::Whole(text.as_bytes().to_vec());
        let too_long = MessageLine::TooLong(Some(json!("a")));
        for piece in [1, 7, text.len()] {
            let expected = [whole("{\"id\":1}"), whole(""), too_long.clone(), whole("{\"id\":2}")];
            assert_eq!(lines(text, piece), expected, "{piece}");
        }
    }

    #[test]
    fn memory_of_a_long_line_is_not_kept() {
        let mut lines = MessageLines::new(20);
        lines.take(&[b'x'; 15]);
        lines.take(&[b'x'; 15]);
        assert_eq!(lines.line.capacity(), 0);
    }

    #[test]
    fn long_line_that_does_not_end_is_reported_once() {
        assert_eq!(lines(&[b'x'; 50], 8), [MessageLine::TooLong(None)]);
        assert_eq!(lines(b"", 8), []);
    }
}
