//! The memory that JSON takes once it is read, computed from its text as it arrives.

use sandbox_api::ProblemKind;

use crate::refusal::{Refusal, Result};

/// The most values of a body: as many as the arguments of a script can have, but for a few.
const MAX_VALUES: u64 = 500_000;
/// What a value takes beyond its text, and an object beyond its values.
const VALUE_BYTES: u64 = 96;
const OBJECT_BYTES: u64 = 512;

/// The values of a text so far: each begins one of `[`, `{` and `,`, outside of strings.
#[derive(Debug, Default)]
pub(crate) struct JsonSize {
    values: u64,
    in_string: bool,
    escaped: bool,
}

impl JsonSize {
    /// The bytes that this piece of the text takes.
    pub fn add(&mut self, piece: &[u8]) -> Result<u64> {
        let (mut values, mut objects) = (0, 0);
        for byte in piece {
            if self.in_string {
                (self.in_string, self.escaped) = match byte {
                    _ if self.escaped => (true, false),
                    b'\\' => (true, true),
                    byte => (*byte != b'"', false),
                };
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b',' | b'[' => values += 1,
                b'{' => (values, objects) = (values + 1, objects + 1),
                _ => {}
            }
        }
        self.values += values;
        if self.values > MAX_VALUES {
            let detail = format!("the body has more than {MAX_VALUES} values");
            return Err(Refusal::new(ProblemKind::TooLarge, detail));
        }
        Ok(piece.len() as u64 + values * VALUE_BYTES + objects * OBJECT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings_however_the_text_is_cut() {
        let text = br#"{"a\"[,{": [1, "\\", {"b": "]},"}], "c": "\"[["}"#;
        let whole = JsonSize::default().add(text).unwrap();
        assert_eq!(whole, text.len() as u64 + 6 * VALUE_BYTES + 2 * OBJECT_BYTES);
        let mut size = JsonSize::default();
        let by_byte: u64 = text.chunks(1).map(|piece| size.add(piece).unwrap()).sum();
        assert_eq!(by_byte, whole);
    }

    #[test]
    fn text_of_too_many_values_is_refused_before_its_end() {
        let mut size = JsonSize::default();
        let piece = b"0,".repeat(1000);
        let read = (1..).find(|_| size.add(&piece).is_err()).unwrap();
        assert_eq!(read, MAX_VALUES / 1000 + 1);
        // Text alone is as large as its route allows.
        let mut size = JsonSize::default();
        size.add(b"\"").unwrap();
        assert_eq!(size.add(&b"0,".repeat(1 << 20)).unwrap(), 2 << 20);
    }
}
