//! Properties that hold for every value that a script returns.

use std::fmt::Write as _;
use std::sync::Arc;

use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::MAX_VALUE_DEPTH;
use sandbox_protocol::message::{IoErrors, Limits, RunEnd};
use serde_json::{Map, Value};

use super::RunContext;
use crate::calls::HostCalls;
use crate::log::LogSink;
use crate::outbox::Outbox;

const LIMITS: Limits = Limits {
    vm_memory_bytes: 64 << 20,
    write_bytes: 0,
    entries: 1,
    file_bytes: 0,
    open_handles: 1,
    log_bytes: 1 << 20,
    log_lines: 100,
    result_bytes: 0,
    list_entries: 1,
    list_depth: 1,
    operation_timeout_ms: 1000,
    output_bytes: 0,
    collected_bytes: 0,
    disk_reserve_bytes: 0,
    cpu_seconds: None,
};

/// Most values of one result, so that its source stays short.
const MAX_VALUES: u32 = 2000;
/// Deepest nesting of the source: the compiler has 255 registers.
const MAX_SOURCE_DEPTH: usize = 20;
/// Most doublings, one inside another.
const MAX_TWICE_DEPTH: usize = 5;
/// Most bytes of texts that repeat.
const MAX_LONG_BYTES: usize = 1 << 20;

/// A value of a script, built from the bytes, and its JSON. The first byte sets the limit of the
/// JSON.
pub fn result(data: &[u8]) {
    let Some((&limit, rest)) = data.split_first() else { return };
    let limits = Limits { result_bytes: 4 << (limit % 16), ..LIMITS };
    let mut builder = Builder { bytes: rest, values: MAX_VALUES, long: MAX_LONG_BYTES };
    let made = builder.value(0);
    let mut expression = String::new();
    made.write(&mut expression);
    let source = format!(
        "local value = {expression}\n\
         for _, options in {{ {{}}, {{ pretty = true }} }} do\n\
         local ok, text = pcall(json.encode, value, options)\n\
         if ok then\n\
         local again = json.encode(json.decode(text), options)\n\
         if again ~= text then error(`{{text}} came back as {{again}}`) end\n\
         end\n\
         end\n\
         return value\n"
    );
    let outbox = Arc::new(Outbox::new(std::io::sink()));
    let context = RunContext {
        files: None,
        io_errors: IoErrors::Raise,
        log: Arc::new(LogSink::new(outbox.clone(), 1, &limits)),
        stop: Arc::default(),
        limits: limits.clone(),
        programs: None,
        seed: None,
        now: None,
        secrets: Vec::new(),
        calls: Arc::new(HostCalls::new(outbox, 1)),
        has_tools: false,
    };
    let end = super::run(&source, &Map::new(), context);
    let expected = made.json(0).map(|json| json.to_string());
    match (end, expected) {
        (RunEnd::Returned(json), Some(expected)) => {
            assert_eq!(json.get(), expected, "{source}");
            assert!(expected.len() as u64 <= limits.result_bytes, "{source}");
        }
        (RunEnd::Returned(json), None) => panic!("{json} for what JSON cannot hold: {source}"),
        (RunEnd::Failed(error), expected) => match (error.kind, expected) {
            (ErrorKind::ResultNotJson, None) => {
                assert!(error.message.starts_with("result"), "{error:?} {source}");
            }
            // The first error is reported.
            (ErrorKind::ResultTooLarge, None) => {}
            (ErrorKind::ResultTooLarge, Some(expected)) => {
                assert!(expected.len() as u64 > limits.result_bytes, "{source}");
            }
            _ => panic!("{error:?} {source}"),
        },
    }
}

/// A value as a script builds it.
enum Made {
    Nil,
    Null,
    Boolean(bool),
    Number(f64),
    Text(Vec<u8>),
    /// A text that repeats.
    Long(u8, usize),
    Function,
    /// A table that contains itself.
    Cycle,
    /// Inside this many nested tables; at least one.
    Deep(usize, Box<Self>),
    /// One value in two places.
    Twice(Box<Self>),
    Table {
        marked: bool,
        entries: Vec<(Key, Self)>,
    },
}

#[derive(PartialEq)]
enum Key {
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
}

/// Builds a value from bytes; after their end, zeros follow.
struct Builder<'a> {
    bytes: &'a [u8],
    /// How many more values it builds.
    values: u32,
    /// How many more bytes of repeated texts.
    long: usize,
}

impl Builder<'_> {
    fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((&byte, rest)) => {
                self.bytes = rest;
                byte
            }
            None => 0,
        }
    }

    fn text(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte() % 32).min(self.bytes.len());
        let (text, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        text.to_vec()
    }

    fn number(&mut self) -> f64 {
        match self.byte() % 4 {
            0 => f64::from(self.byte()),
            1 => f64::from(self.byte()) - 9_007_199_254_740_992.0,
            2 => f64::from(self.byte()) * f64::from(self.byte()).exp2() / 8.0,
            _ => f64::from_be_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    fn value(&mut self, depth: usize) -> Made {
        let Some(left) = self.values.checked_sub(1) else { return Made::Nil };
        self.values = left;
        match self.byte() {
            0 => Made::Nil,
            1 => Made::Null,
            2 => Made::Boolean(true),
            3 => Made::Boolean(false),
            4 => Made::Function,
            5 => Made::Cycle,
            6 => {
                let (byte, count) = (self.byte(), usize::from(self.byte()) << (self.byte() % 10));
                let count = count.min(self.long);
                self.long -= count;
                Made::Long(byte, count)
            }
            7 if depth < MAX_SOURCE_DEPTH => {
                let levels = usize::from(self.byte() % 64);
                let inner = self.value(depth + 1);
                if levels == 0 { inner } else { Made::Deep(levels, Box::new(inner)) }
            }
            8..40 => Made::Text(self.text()),
            40..80 => Made::Number(self.number()),
            80..90 if depth < MAX_TWICE_DEPTH => Made::Twice(Box::new(self.value(depth + 1))),
            kind @ 90.. if depth < MAX_SOURCE_DEPTH => self.table(kind, depth),
            _ => Made::Nil,
        }
    }

    fn table(&mut self, kind: u8, depth: usize) -> Made {
        let mut entries = Vec::new();
        for index in 1..=self.byte() % 16 {
            let key = match (kind, self.byte()) {
                (_, 0) => Key::Boolean(true),
                (_, 1) => Key::Number(f64::from(self.byte()) - 4.0),
                (_, 2) => Key::Number(f64::from(self.byte()) / 2.0),
                (..128, _) | (_, 3) => Key::Number(index.into()),
                (128.., _) => Key::Text(self.text()),
            };
            entries.push((key, self.value(depth + 1)));
        }
        Made::Table { marked: kind.is_multiple_of(5), entries }
    }
}

impl Made {
    /// The expression that creates it.
    fn write(&self, out: &mut String) {
        // Writing to a string cannot fail.
        _ = match self {
            Self::Nil => write!(out, "nil"),
            Self::Null => write!(out, "json.null"),
            Self::Boolean(value) => write!(out, "{value}"),
            Self::Number(number) => write!(out, "{}", number_text(*number)),
            Self::Text(text) => write!(out, "{}", quoted(text)),
            Self::Long(byte, count) => {
                write!(out, "string.rep({}, {count})", quoted(&[*byte]))
            }
            Self::Function => write!(out, "print"),
            Self::Cycle => write!(out, "(function() local t = {{}} t.t = t return t end)()"),
            Self::Deep(levels, inner) => {
                _ = write!(
                    out,
                    "(function(v) for _ = 1, {levels} do v = {{ v }} end return v end)("
                );
                inner.write(out);
                write!(out, ")")
            }
            Self::Twice(inner) => {
                out.push_str("(function(v) return { v, { v } } end)(");
                inner.write(out);
                write!(out, ")")
            }
            Self::Table { marked, entries } => {
                out.push_str(if *marked { "json.array({" } else { "({" });
                for (key, value) in entries {
                    match key {
                        Key::Text(text) => _ = write!(out, "[{}]=", quoted(text)),
                        Key::Number(number) => _ = write!(out, "[{}]=", number_text(*number)),
                        Key::Boolean(value) => _ = write!(out, "[{value}]="),
                    }
                    value.write(out);
                    out.push(',');
                }
                write!(out, "}})")
            }
        };
    }

    /// Its JSON by the reference implementation; `None` if JSON cannot represent it.
    fn json(&self, depth: usize) -> Option<Value> {
        match self {
            Self::Nil | Self::Null => Some(Value::Null),
            Self::Boolean(value) => Some((*value).into()),
            Self::Number(number) if !number.is_finite() => None,
            #[expect(clippy::cast_possible_truncation, reason = "integral and below 2^53")]
            Self::Number(number)
                if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 =>
            {
                Some((*number as i64).into())
            }
            Self::Number(number) => Some((*number).into()),
            Self::Text(text) => String::from_utf8(text.clone()).ok().map(Value::from),
            Self::Long(byte, count) => String::from_utf8(vec![*byte; *count]).ok().map(Value::from),
            Self::Function | Self::Cycle => None,
            Self::Deep(levels, _) if depth + levels > MAX_VALUE_DEPTH => None,
            Self::Deep(levels, inner) => {
                // `{ nil }` is empty.
                let (inner, around) = match **inner {
                    Self::Nil => (Map::new().into(), levels - 1),
                    _ => (inner.json(depth + levels)?, *levels),
                };
                Some((0..around).fold(inner, |inner, _| Value::Array(vec![inner])))
            }
            Self::Twice(_) if depth + 2 > MAX_VALUE_DEPTH => None,
            // `{ nil, { nil } }` has a hole.
            Self::Twice(inner) if matches!(**inner, Self::Nil) => None,
            Self::Twice(inner) => {
                let inner = inner.json(depth + 2)?;
                Some(Value::Array(vec![inner.clone(), Value::Array(vec![inner])]))
            }
            Self::Table { marked, entries } => table_json(*marked, entries, depth),
        }
    }
}

fn table_json(marked: bool, entries: &[(Key, Made)], depth: usize) -> Option<Value> {
    if depth == MAX_VALUE_DEPTH {
        return None;
    }
    // The last value of a key counts, and nil is no entry.
    let last = |index: usize| entries[index + 1..].iter().all(|(key, _)| *key != entries[index].0);
    let held: Vec<&(Key, Made)> = entries
        .iter()
        .enumerate()
        .filter(|&(index, (_, value))| last(index) && !matches!(value, Made::Nil))
        .map(|(_, entry)| entry)
        .collect();
    if held.is_empty() {
        return Some(if marked { Value::Array(Vec::new()) } else { Map::new().into() });
    }
    let mut object = Map::new();
    let mut array = vec![None; held.len()];
    for (key, value) in held {
        match key {
            Key::Boolean(_) => return None,
            Key::Text(key) => {
                let key = String::from_utf8(key.clone()).ok()?;
                object.insert(key, value.json(depth + 1)?);
            }
            Key::Number(number) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "checked by the comparison"
                )]
                let index = (*number as usize).checked_sub(1)?;
                #[expect(clippy::cast_precision_loss, reason = "the keys are small")]
                if (index + 1) as f64 != *number {
                    return None;
                }
                *array.get_mut(index)? = Some(value.json(depth + 1)?);
            }
        }
    }
    let indices = array.iter().flatten().count();
    match (object.is_empty(), indices) {
        (true, _) => array.into_iter().collect::<Option<Vec<_>>>().map(Value::Array),
        (false, 0) if !marked => Some(object.into()),
        (false, _) => None,
    }
}

fn number_text(number: f64) -> String {
    if number.is_nan() {
        "(0/0)".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { "(1/0)" } else { "(-1/0)" }.to_owned()
    } else {
        format!("({number:?})")
    }
}

fn quoted(text: &[u8]) -> String {
    let mut quoted = "\"".to_owned();
    for byte in text {
        // Writing to a string cannot fail.
        _ = write!(quoted, "\\{byte:03}");
    }
    quoted.push('"');
    quoted
}
