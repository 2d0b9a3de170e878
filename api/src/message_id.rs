//! The id of a JSON message that is refused unread: its sender waits for an answer with that id.

use serde_json::Value;

/// The longest id that is read, in bytes as it is written.
const MAX_ID_BYTES: usize = 8 << 10;

/// Reads the member `id` of a JSON object from its bytes as they come, for any content of the other
/// members: half a surrogate pair, a number out of range, too deep a nesting. It stops where the
/// object itself is malformed.
#[derive(Debug, Default)]
pub struct IdReader {
    place: Place,
    /// How deep the current member's value is nested.
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    /// A key, or the value of `id`.
    token: Vec<u8>,
    /// The current member is `id`.
    is_id: bool,
    id: Option<Value>,
}

/// What comes next in the object.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Its beginning.
    #[default]
    Start,
    Key,
    Colon,
    Value,
    /// The rest of a number or a word.
    Word,
    Comma,
    /// Nothing: it has ended, or is malformed.
    End,
}

impl IdReader {
    /// The id of a message: a string or a number.
    pub fn id_of(message: &[u8]) -> Option<Value> {
        let mut reader = Self::default();
        reader.feed(message);
        reader.id
    }

    /// The id, if it has been read.
    pub const fn id(&self) -> Option<&Value> {
        self.id.as_ref()
    }

    /// Whether more bytes make no difference.
    pub fn is_settled(&self) -> bool {
        self.id.is_some() || self.place == Place::End
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.is_settled() {
                return;
            }
            match self.is_in_string {
                true => self.feed_string(*byte),
                false => self.feed_outside(*byte),
            }
        }
    }

    fn feed_string(&mut self, byte: u8) {
        self.keep(byte);
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => {
                self.is_in_string = false;
                if self.depth > 0 {
                    return;
                }
                if self.place == Place::Key {
                    self.is_id = self.token == b"\"id\"";
                    self.token.clear();
                    self.place = Place::Colon;
                } else {
                    self.end_value(Place::Comma);
                }
            }
            _ => {}
        }
    }

    fn feed_outside(&mut self, byte: u8) {
        if self.depth > 0 {
            match byte {
                b'"' => self.is_in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        self.end_value(Place::Comma);
                    }
                }
                _ => {}
            }
            return;
        }
        let is_space = byte.is_ascii_whitespace();
        match (self.place, byte) {
            (Place::Word, b',') => self.end_value(Place::Key),
            (Place::Word, b'}') => self.end_value(Place::End),
            (Place::Word, _) if is_space => self.end_value(Place::Comma),
            (Place::Word, _) => self.keep(byte),
            (_, _) if is_space => {}
            (Place::Start, b'{') | (Place::Comma, b',') => self.place = Place::Key,
            (Place::Colon, b':') => self.place = Place::Value,
            (Place::Key | Place::Value, b'"') => {
                self.is_in_string = true;
                self.keep(byte);
            }
            (Place::Value, b'{' | b'[') => self.depth = 1,
            (Place::Value, b'-' | b'0'..=b'9' | b'a'..=b'z') => {
                self.place = Place::Word;
                self.keep(byte);
            }
            _ => self.place = Place::End,
        }
    }

    /// Keeps a byte of a key or of the id.
    fn keep(&mut self, byte: u8) {
        let is_kept = self.place == Place::Key || self.is_id;
        if is_kept && self.depth == 0 && self.token.len() <= MAX_ID_BYTES {
            self.token.push(byte);
        }
    }

    fn end_value(&mut self, next: Place) {
        if self.is_id && self.token.len() <= MAX_ID_BYTES {
            let id = serde_json::from_slice(&self.token).ok();
            self.id = id.filter(|id: &Value| id.is_string() || id.is_number());
        }
        self.is_id = false;
        self.token.clear();
        self.place = next;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn id_is_read_whatever_stands_beside_it() {
        let nested = format!(r#"{{"a":{}{},"id":77}}"#, "[".repeat(200), "]".repeat(200));
        for message in [
            r#"{"id":77,"content":"\ud83d"}"#,
            r#"{"content":"\ud83d","id":77}"#,
            r#" { "a" : 1e999 , "id" : 77 } "#,
            r#"{"params":{"id":1,"b":"}]\"{"},"id":77,"x":nonsense"#,
            r#"{"a":"\\","id":77 "#,
            &nested,
        ] {
            assert_eq!(IdReader::id_of(message.as_bytes()), Some(json!(77)), "{message}");
        }
        for (message, id) in [
            (r#"{"id":"a\u00e9\"","#, json!("a\u{e9}\"")),
            (r#"{"id":-1.5}"#, json!(-1.5)),
            (r#"{"id":7,}"#, json!(7)),
        ] {
            assert_eq!(IdReader::id_of(message.as_bytes()), Some(id), "{message}");
        }
        assert_eq!(IdReader::id_of(b"{\"a\":\"\xff\",\"id\":1}"), Some(json!(1)));
    }

    #[test]
    fn an_invalid_or_unreadable_id_is_none() {
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(MAX_ID_BYTES));
        for message in [
            "", "nonsense", r#"[{"id":1}]"#, r#"{"params":{"id":1}}"#, r#"{"id":null,"a":1}"#,
            r#"{"id":[1]}"#, r#"{"id":true}"#, r#"{"id":"\ud83d"}"#, r#"{"id":1e999}"#,
            r#"{"a":"x" "id":1}"#, r#"{"a" 1,"id":1}"#,
            // A number may go on where the text ends.
            r#"{"id":1"#, &long,
        ] {
            assert_eq!(IdReader::id_of(message.as_bytes()), None, "{message:.60}");
        }
    }

    proptest! {
        #[test]
        fn id_of_any_object_is_its_own(id in "[a-z\"\\\\é]{0,9}", other in any::<String>(), at in 0..99_usize) {
            let message = json!({ "a": other, "id": id, "z": { "id": 1, "b": [other, {}] } }).to_string();
            let (head, tail) = message.as_bytes().split_at(at.min(message.len()));
            let mut reader = IdReader::default();
            reader.feed(head);
            reader.feed(tail);
            prop_assert_eq!(reader.id(), Some(&json!(id)));
        }

        #[test]
        fn any_bytes_are_read(bytes in any::<Vec<u8>>()) {
            _ = IdReader::id_of(&bytes);
        }
    }
}
