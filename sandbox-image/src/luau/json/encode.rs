//! Values to JSON.

use std::fmt::Display;

use sandbox_protocol::limits::{MAX_VALUE_DEPTH, encoded_len};

use super::super::ffi::{Call, Kind, Slot};

/// Integers up to this are exact, and print as integers.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
/// How many values are encoded between two checks of the deadline.
const STOP_EVERY: u32 = 1024;
/// How much of a key is shown in a path.
const KEY_SHOWN: usize = 128;

/// The layout of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Without whitespace.
    Compact,
    /// One element a line, indented by two spaces.
    Pretty,
}

/// Why encoding failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A value that JSON cannot represent, with its path, in front of which each level puts its step.
    Value(String),
    /// The result is over the limit.
    TooLong,
    /// The run must end.
    Stopped,
}

impl Refusal {
    /// Puts a step in front of the path of a value.
    fn at(self, step: &str) -> Self {
        match self {
            Self::Value(what) => Self::Value(format!("{step}{what}")),
            other => other,
        }
    }
}

/// Pops the value on top and encodes it. `root` is the beginning of its path.
pub(super) fn encode(
    call: &mut Call<'_>,
    root: &str,
    limit: usize,
    layout: Layout,
) -> Result<String, Refusal> {
    let value = call.top();
    let mut encoder = Encoder::new(call, limit, layout);
    let result = encoder.value(value);
    encoder.finish(result, root)
}

/// Encodes what the script returned as one array.
pub(super) fn encode_outcomes(
    call: &mut Call<'_>,
    root: &str,
    limit: usize,
    count: i32,
) -> Result<String, Refusal> {
    let mut encoder = Encoder::new(call, limit, Layout::Compact);
    // As if it were inside a table.
    encoder.ancestors.push(0);
    let result = encoder.array(count as usize, |call, index| call.push_outcome(index as i32));
    encoder.finish(result, root)
}

struct Encoder<'c, 'a> {
    call: &'c mut Call<'a>,
    out: Vec<u8>,
    limit: usize,
    /// The least that the pending keys will take once they are written.
    promised: usize,
    layout: Layout,
    /// The tables around the value.
    ancestors: Vec<usize>,
    until_stop: u32,
}

impl<'c, 'a> Encoder<'c, 'a> {
    fn new(call: &'c mut Call<'a>, limit: usize, layout: Layout) -> Self {
        Self {
            call,
            out: Vec::new(),
            limit,
            promised: 0,
            layout,
            ancestors: Vec::new(),
            until_stop: STOP_EVERY,
        }
    }

    fn finish(self, result: Result<(), Refusal>, root: &str) -> Result<String, Refusal> {
        result.map_err(|refusal| refusal.at(root))?;
        String::from_utf8(self.out).map_err(|_| Refusal::Value(format!("{root} is not UTF-8")))
    }

    /// Whether this many bytes fit, before they are written: the limit may be one of memory.
    fn room(&self, bytes: usize) -> Result<(), Refusal> {
        let left = self.limit - self.promised - self.out.len();
        if bytes > left { Err(Refusal::TooLong) } else { Ok(()) }
    }

    /// The same for a string. A byte takes at most six, so most strings need no count.
    fn room_for(&self, text: &str) -> Result<(), Refusal> {
        self.room(6 * text.len() + 2).or_else(|_| self.room(encoded_len(text) + 2))
    }

    fn write(&mut self, text: &[u8]) -> Result<(), Refusal> {
        self.room(text.len())?;
        self.out.extend_from_slice(text);
        Ok(())
    }

    fn break_line(&mut self, depth: usize) -> Result<(), Refusal> {
        if self.layout == Layout::Pretty {
            self.write(b"\n")?;
            for _ in 0..depth {
                self.write(b"  ")?;
            }
        }
        Ok(())
    }

    fn check_stop(&mut self) -> Result<(), Refusal> {
        self.until_stop -= 1;
        if self.until_stop == 0 {
            self.until_stop = STOP_EVERY;
            self.call.check_stop().map_err(|_| Refusal::Stopped)?;
        }
        Ok(())
    }

    fn value(&mut self, slot: Slot) -> Result<(), Refusal> {
        self.check_stop()?;
        match self.call.kind(slot) {
            Kind::None | Kind::Nil | Kind::Null => self.write(b"null"),
            Kind::Boolean if self.call.is_true(slot) => self.write(b"true"),
            Kind::Boolean => self.write(b"false"),
            Kind::Number => self.number(self.call.number(slot).unwrap_or_default()),
            Kind::String => {
                let text = self.call.string(slot).unwrap_or_default();
                let Ok(text) = std::str::from_utf8(text) else {
                    return Err(refuse("is a string that is not UTF-8"));
                };
                self.room_for(text)?;
                write_string(&mut self.out, text);
                Ok(())
            }
            Kind::Table => self.table(slot),
            Kind::Other => {
                let type_name = self.call.type_name(slot);
                Err(refuse(format!("is a {type_name}, which JSON cannot hold")))
            }
        }
    }

    fn number(&mut self, number: f64) -> Result<(), Refusal> {
        if !number.is_finite() {
            let name = if number.is_nan() { "not a number (NaN)" } else { "infinite" };
            return Err(refuse(format!("is {name}, which JSON cannot hold")));
        }
        let mut text = Vec::with_capacity(24);
        let written = if number.fract() == 0.0 && number.abs() <= MAX_EXACT {
            #[expect(clippy::cast_possible_truncation, reason = "integral and below 2^53")]
            serde_json::to_writer(&mut text, &(number as i64))
        } else {
            serde_json::to_writer(&mut text, &number)
        };
        written.map_err(|error| refuse(error.to_string()))?;
        self.write(&text)
    }

    fn table(&mut self, table: Slot) -> Result<(), Refusal> {
        let identity = self.call.identity(table);
        if self.ancestors.contains(&identity) {
            return Err(refuse("contains itself"));
        }
        if self.ancestors.len() == MAX_VALUE_DEPTH {
            return Err(refuse(format!("is nested deeper than {MAX_VALUE_DEPTH}")));
        }
        // A key and a value per level, and the key that an iteration pushes in addition.
        self.call.reserve(6).map_err(|_| refuse("is nested too deeply"))?;
        let marked = self.call.metatable_identity(table) == self.call.host().array_mark.get();
        let shape = self.shape(table)?;
        self.ancestors.push(identity);
        let encoded = match shape {
            Shape::Empty if marked => self.write(b"[]"),
            Shape::Empty => self.write(b"{}"),
            Shape::Array(len) => self.array(len, |call, index| call.push_element(table, index)),
            Shape::Object(_) if marked => Err(refuse("is a json.array with keys that are strings")),
            Shape::Object(keys) => self.object(table, keys),
        };
        self.ancestors.pop();
        encoded
    }

    /// Determines the kind of table, in one iteration over its keys.
    fn shape(&mut self, table: Slot) -> Result<Shape, Refusal> {
        let base = self.call.len();
        let mut keys = Keys::default();
        let (mut indices, mut largest) = (0_usize, 0.0_f64);
        let mut position = 0;
        while let Some(next) = self.call.next(table, position) {
            position = next;
            self.check_stop()?;
            let key = Slot::arg(base + 1);
            match self.call.kind(key) {
                Kind::String => {
                    let key = self.call.string(key).unwrap_or_default();
                    self.room(promise(key))?;
                    self.promised += promise(key);
                    keys.push(key);
                }
                Kind::Number => {
                    let index = self.call.number(key).unwrap_or_default();
                    if index < 1.0 || index.fract() != 0.0 {
                        return Err(refuse(format!("has the key {index}, which JSON cannot hold")));
                    }
                    indices += 1;
                    largest = largest.max(index);
                }
                _ => {
                    let type_name = self.call.type_name(key);
                    return Err(refuse(format!("has a key that is a {type_name}")));
                }
            }
            self.call.truncate(base);
        }
        match (indices, keys.ends.is_empty()) {
            (0, true) => Ok(Shape::Empty),
            (0, false) => Ok(Shape::Object(keys)),
            (_, false) => Err(refuse("has both indices and keys that are strings")),
            #[expect(clippy::cast_precision_loss, reason = "no table has 2^53 elements")]
            (len, true) if largest == len as f64 => Ok(Shape::Array(len)),
            (len, true) => Err(refuse(format!("has holes: {len} elements up to index {largest}"))),
        }
    }

    /// Encodes elements, each of which is pushed by its index.
    fn array(&mut self, len: usize, push: impl Fn(&mut Call<'_>, usize)) -> Result<(), Refusal> {
        self.write(b"[")?;
        for index in 1..=len {
            if index > 1 {
                self.write(b",")?;
            }
            self.break_line(self.ancestors.len())?;
            push(&mut *self.call, index);
            let value = self.call.top();
            self.value(value).map_err(|refusal| refusal.at(&format!("[{index}]")))?;
            self.call.truncate(value.number() - 1);
        }
        self.close(b"]")
    }

    fn object(&mut self, table: Slot, keys: Keys) -> Result<(), Refusal> {
        self.write(b"{")?;
        for (number, key) in keys.sorted().into_iter().enumerate() {
            if number > 0 {
                self.write(b",")?;
            }
            self.break_line(self.ancestors.len())?;
            let Ok(text) = std::str::from_utf8(key) else {
                return Err(refuse("has a key that is not UTF-8"));
            };
            self.promised -= promise(key);
            self.room_for(text)?;
            write_string(&mut self.out, text);
            self.write(if self.layout == Layout::Pretty { b": " } else { b":" })?;
            self.call.push_field(table, key);
            let value = self.call.top();
            self.value(value).map_err(|refusal| refusal.at(&step(key)))?;
            self.call.truncate(value.number() - 1);
        }
        self.close(b"}")
    }

    fn close(&mut self, bracket: &[u8]) -> Result<(), Refusal> {
        self.break_line(self.ancestors.len() - 1)?;
        self.write(bracket)
    }
}

enum Shape {
    Empty,
    Array(usize),
    Object(Keys),
}

/// The keys of an object, in one block.
#[derive(Default)]
struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Keys {
    fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    fn sorted(&self) -> Vec<&[u8]> {
        let mut start = 0;
        let key = |&end: &usize| &self.bytes[std::mem::replace(&mut start, end)..end];
        let mut keys: Vec<_> = self.ends.iter().map(key).collect();
        keys.sort_unstable();
        keys
    }
}

/// The step of a path to the value of a key.
fn step(key: &[u8]) -> String {
    let (shown, cut) = match key.split_at_checked(KEY_SHOWN) {
        Some((shown, [_, ..])) => (shown, "…"),
        _ => (key, ""),
    };
    let text = String::from_utf8_lossy(shown) + cut;
    if is_name(text.as_bytes()) { format!(".{text}") } else { format!("[{text:?}]") }
}

/// The least that a key takes: itself, two quotes, a colon and a value.
const fn promise(key: &[u8]) -> usize {
    key.len() + 4
}

/// Whether a key is one that a script may write behind a dot.
pub(in crate::luau) fn is_name(key: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    key.first().is_some_and(is_letter)
        && key.iter().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

fn refuse(what: impl Display) -> Refusal {
    Refusal::Value(format!(" {what}"))
}

/// Escapes exactly as the protocol does. Writing to memory cannot fail.
fn write_string(out: &mut Vec<u8>, text: &str) {
    _ = serde_json::to_writer(out, text);
}
