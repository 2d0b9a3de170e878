//! Server-sent events, from the bytes of a response's body.

/// The longest event that is read: the last one has the whole result.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// Reads events from pieces of a body, wherever those end.
#[derive(Debug, Default)]
pub struct SseParser {
    /// The bytes of a line that is not complete.
    line: Vec<u8>,
    /// The last byte was a carriage return, so that a line feed ends no further line.
    after_return: bool,
    /// The lines of `data` of an event that is not complete, with line breaks between them.
    data: Option<String>,
}

impl SseParser {
    /// Reads a piece, and gives the data of the events that it completes.
    ///
    /// # Errors
    ///
    /// If an event is longer than any that a service sends, or is not text; then nothing more can be read.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<String>, &'static str> {
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

    fn grow(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        let data = self.data.as_ref().map_or(0, String::len);
        if self.line.len() + data + bytes.len() > MAX_EVENT_BYTES {
            return Err("an event is longer than 64 MiB");
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Result<Option<String>, &'static str> {
        let line = std::mem::take(&mut self.line);
        let line = std::str::from_utf8(&line).map_err(|_| "an event is not UTF-8 text")?;
        if line.is_empty() {
            return Ok(self.data.take());
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        // Others are comments, which keep the connection alive, the number and the type, which the data has too,
        // and the time to wait before a connection is made again, which is ours to choose.
        if name == "data" {
            match &mut self.data {
                Some(data) => data.extend(["\n", value]),
                None => self.data = Some(value.to_owned()),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_wherever_the_pieces_end() {
        let text = b": hello\n\nid: 1\nevent: log\ndata: {\"a\":\ndata:1}\n\nretry: 5\r\ndata: x\r\rdata\n\n";
        let expected = ["{\"a\":\n1}", "x", ""];
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
        assert!(parser.push(b"id: 7\ndata: x\n").unwrap().is_empty());
        assert_eq!(parser.push(b"data: \xff\n"), Err("an event is not UTF-8 text"));
        let mut parser = SseParser::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..65).find_map(|_| parser.push(&piece).err());
        assert_eq!(refused, Some("an event is longer than 64 MiB"));
    }
}
