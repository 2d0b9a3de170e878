//! The output of a process for a model: bounded, and as text that does nothing where it is shown.

use rmcp::model::CallToolResult;
use sandbox_api::{EventRecord, ExecutionEvent, ProcessState, ProcessView, Recorded};
use schemars::JsonSchema;
use serde::Serialize;

use crate::tools::result::with_text;

/// What a process has printed, and how it is.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProcessOutput {
    /// The number of the process.
    process: u32,
    state: ProcessState,
    exit_code: Option<u8>,
    signal: Option<u8>,
    /// Its stdout and stderr, in the order in which they were read; control characters as `\u{1b}`.
    output: String,
    /// The `after` of the next read.
    next: u64,
    /// More was printed before this than is kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    omitted: bool,
    /// The last piece of output was too long: its rest is not in the next one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// Whether it became ready; null if no condition was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<bool>,
}

impl ProcessOutput {
    /// As text too, with how the process is.
    pub fn result(&self) -> CallToolResult {
        let mut text = self.output.clone();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let ProcessOutput { process, next, .. } = self;
        let state = match (self.state, self.exit_code, self.signal) {
            (ProcessState::Running, ..) => "runs".to_owned(),
            (_, Some(code), _) => format!("has exited with code {code}"),
            (_, None, Some(signal)) => format!("was ended by signal {signal}"),
            (_, None, None) => "has ended".to_owned(),
        };
        let readiness = match self.ready {
            Some(true) => " and is ready",
            Some(false) => ", and is not ready",
            None => "",
        };
        text.push_str(&format!("[process {process} {state}{readiness}; read on after {next}]"));
        with_text(serde_json::to_value(self).unwrap_or_default(), text)
    }
}

/// What has come of the events of a process.
#[derive(Debug, Default)]
pub(super) struct Collected {
    output: Vec<u8>,
    /// What it takes as text.
    room: usize,
    next: u64,
    omitted: bool,
    truncated: bool,
    /// The next event did not fit.
    pub is_full: bool,
    pub has_exited: bool,
    pub has_ended: bool,
}

impl Collected {
    pub fn after(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// Adds an event, if it fits.
    pub fn add(&mut self, event: &EventRecord, most: usize) {
        self.has_ended |= event.event.is_end();
        self.has_exited |= matches!(event.event, Recorded::Event(ExecutionEvent::Exited(_)));
        self.has_exited |= self.has_ended;
        if self.is_full {
            return;
        }
        match &event.event {
            Recorded::Event(ExecutionEvent::Output { data, .. }) => {
                let mut room = self.room;
                let fits = |byte: &&u8| {
                    room += room_of(**byte);
                    room <= most
                };
                let fitting = data.iter().take_while(fits).count();
                if fitting < data.len() && !self.output.is_empty() {
                    self.is_full = true;
                    return;
                }
                (self.truncated, self.is_full) = (fitting < data.len(), fitting < data.len());
                self.output.extend_from_slice(&data[..fitting]);
                self.room = room;
            }
            Recorded::Event(ExecutionEvent::Omitted) => self.omitted = true,
            Recorded::Event(_) | Recorded::End { .. } => {}
        }
        self.next = event.seq;
    }

    pub fn is_empty(&self) -> bool {
        self.output.is_empty() && !self.omitted && !self.has_exited
    }

    pub fn shown(self, view: ProcessView, ready: Option<bool>) -> ProcessOutput {
        let ProcessView { id: process, state, exit_code, signal, .. } = view;
        let Self { output, next, omitted, truncated, .. } = self;
        let output = escaped(&output);
        ProcessOutput { process, state, exit_code, signal, output, next, omitted, truncated, ready }
    }
}

/// How many bytes a byte takes in [`escaped`] text at most.
const fn room_of(byte: u8) -> usize {
    match byte {
        b'\n' | b'\t' | 0x20..=0x7e => 1,
        0x80.. => 3,
        _ => 6,
    }
}

/// Output as text, whose control characters do nothing where it is shown.
fn escaped(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output).replace("\r\n", "\n");
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() && !matches!(character, '\n' | '\t') {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

/// Finds a text in output that comes in pieces.
pub(super) struct Search {
    text: Vec<u8>,
    tail: Vec<u8>,
}

impl Search {
    pub fn new(text: String) -> Self {
        Self { text: text.into_bytes(), tail: Vec::new() }
    }

    /// Whether it is there, with this piece.
    pub fn find(&mut self, piece: &[u8]) -> bool {
        self.tail.extend_from_slice(piece);
        if memchr::memmem::find(&self.tail, &self.text).is_some() {
            return true;
        }
        let begin = self.tail.len().saturating_sub(self.text.len());
        self.tail.drain(..begin);
        false
    }
}

#[cfg(test)]
mod tests {
    use sandbox_api::OutputStream;
    use sandbox_api::service::Time;

    use super::*;

    fn record(seq: u64, event: impl Into<Recorded>) -> EventRecord {
        EventRecord { seq, time: Time::from_unix_millis(0), name: None, event: event.into() }
    }

    fn output(seq: u64, data: &'static [u8]) -> EventRecord {
        let (stream, data) = (OutputStream::Stdout, data.into());
        record(seq, ExecutionEvent::Output { stream, data })
    }

    #[test]
    fn output_is_given_in_whole_events_and_the_next_read_has_the_rest() {
        let mut collected = Collected::after(3);
        collected.add(&record(4, ExecutionEvent::Started), 10);
        assert!(collected.is_empty());
        collected.add(&output(5, b"12345"), 10);
        collected.add(&output(6, b"678901"), 10);
        collected.add(&output(7, b"8"), 10);
        assert_eq!((&*collected.output, collected.next), (&b"12345"[..], 5));
        assert!(collected.is_full && !collected.truncated);
        // One that never fits is cut.
        let mut collected = Collected::after(5);
        collected.add(&output(6, b"678\x1b90"), 10);
        assert_eq!((&*collected.output, collected.next), (&b"678\x1b9"[..], 6));
        assert!(collected.truncated);
        let mut collected = Collected::after(8);
        collected.add(&record(9, ExecutionEvent::Omitted), 10);
        assert!(collected.omitted && !collected.is_empty());
    }

    #[test]
    fn output_is_text_that_does_nothing_where_it_is_shown() {
        let text = escaped(b"a\r\n\x1b[31mb\t\x07\xff\x7f\xc3\xa9\n");
        assert_eq!(text, "a\n\\u{1b}[31mb\t\\u{7}\u{fffd}\\u{7f}\u{e9}\n");
        let bytes: Vec<u8> = (0..=255).collect();
        let room: usize = bytes.iter().map(|byte| room_of(*byte)).sum();
        assert!(escaped(&bytes).len() <= room);
    }

    #[test]
    fn text_is_found_however_it_is_cut() {
        let all = b"it is Ready. Ready to serve";
        for size in 1..all.len() {
            let mut search = Search::new("Ready to".to_owned());
            let found = all.chunks(size).position(|piece| search.find(piece));
            // In the piece with its last byte.
            assert_eq!(found, Some(20 / size), "in pieces of {size}");
        }
        assert!(!Search::new("x".to_owned()).find(all));
    }
}
