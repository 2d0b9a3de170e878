//! Server-sent events, from the bytes of a response's body.

/// The longest event that is read: the last one has the whole result.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// An event.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// Its number, for resuming after it.
    pub id: Option<String>,
    /// Its content: the lines of `data`, with line breaks between them.
    pub data: String,
}

/// An event is longer than any that a service sends, or is not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// Too long.
    #[error("an event is longer than 64 MiB")]
    TooLong,
    /// Not UTF-8.
    #[error("an event is not UTF-8 text")]
    NotUtf8,
}

/// Reads events from pieces of a body, wherever those end.
#[derive(Debug, Default)]
pub struct SseParser {
    /// The bytes of a line that is not complete.
    line: Vec<u8>,
    /// The last byte was a carriage return, so that a line feed ends no further line.
    after_return: bool,
    event: SseEvent,
    has_data: bool,
}

impl SseParser {
    /// Reads a piece, and gives the events that it completes.
    ///
    /// # Errors
    ///
    /// [`SseError`]; then nothing more can be read.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<SseEvent>, SseError> {
        let mut events = Vec::new();
        let mut rest = piece;
        if std::mem::take(&mut self.after_return) {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            self.grow(&rest[..end])?;
            let is_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if is_return {
                self.after_return = rest.is_empty();
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            }
            events.extend(self.end_line()?);
        }
        self.grow(rest)?;
        Ok(events)
    }

    fn grow(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len() + self.event.data.len() + bytes.len() > MAX_EVENT_BYTES {
            return Err(SseError::TooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Result<Option<SseEvent>, SseError> {
        let line = std::mem::take(&mut self.line);
        let line = std::str::from_utf8(&line).map_err(|_| SseError::NotUtf8)?;
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return Ok(std::mem::take(&mut self.has_data).then_some(event));
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "id" => self.event.id = Some(value.to_owned()),
            // Comments, which keep the connection alive, the type, which the data has too, and the
            // time to wait before a connection is made again, which is ours to choose.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: Option<&str>, data: &str) -> SseEvent {
        SseEvent { id: id.map(str::to_owned), data: data.to_owned() }
    }

    #[test]
    fn events_are_read_wherever_the_pieces_end() {
        let text = b": hello\n\nid: 1\nevent: log\ndata: {\"a\":\ndata:1}\n\nretry: 5\r\ndata: x\r\rdata\n\n";
        let expected = [event(Some("1"), "{\"a\":\n1}"), event(None, "x"), event(None, "")];
        for length in 1..=text.len() {
            let mut parser = SseParser::default();
            let pieces = text.chunks(length).map(|piece| parser.push(piece).unwrap());
            let events: Vec<_> = pieces.flatten().collect();
            assert_eq!(events, expected, "{length}");
        }
    }

    #[test]
    fn event_without_end_is_no_event_and_one_without_bound_is_refused() {
        let mut parser = SseParser::default();
        assert_eq!(parser.push(b"id: 7\ndata: x\n").unwrap(), []);
        assert_eq!(parser.push(b"data: \xff\n"), Err(SseError::NotUtf8));
        let mut parser = SseParser::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..65).find_map(|_| parser.push(&piece).err());
        assert_eq!(refused, Some(SseError::TooLong));
    }
}
