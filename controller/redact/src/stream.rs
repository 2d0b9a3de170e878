//! Secrets in a byte stream that arrives in pieces.
//!
//! Held back is only what may be the beginning of a secret: the longest end of the bytes so far
//! with which a pattern begins. Every other byte is decided, and passed on at once. Time and memory
//! are linear in the bytes: each is looked at once, and kept at most once.

use std::borrow::Cow;
use std::collections::VecDeque;

use aho_corasick::automaton::StateID;

use crate::patterns::{MASK, Patterns};

/// The state of a stream. Positions count from its beginning.
#[derive(Debug, Default)]
pub struct Stream {
    state: Option<StateID>,
    /// The bytes from `passed` on.
    held: VecDeque<u8>,
    /// How many bytes were passed on, as they are or replaced.
    passed: u64,
    /// How many bytes have arrived.
    arrived: u64,
    /// What of the held bytes is secret: in order, apart from each other.
    secret: VecDeque<(u64, u64)>,
    /// The last byte that was passed on was replaced: what is secret and follows directly needs no
    /// mask of its own.
    is_masked: bool,
}

impl Stream {
    /// Takes the next piece, and appends to `output` what is decided.
    pub fn push(&mut self, patterns: &Patterns, piece: &[u8], output: &mut Vec<u8>) {
        let mut state = self.state.unwrap_or_else(|| patterns.start());
        for &byte in piece {
            state = patterns.step(state, byte);
            self.held.push_back(byte);
            self.arrived += 1;
            let found = patterns.node(state).found;
            if found > 0 {
                self.mark(found.into());
            }
        }
        self.state = Some(state);
        let undecided = u64::from(patterns.node(state).depth);
        self.pass(self.arrived.saturating_sub(undecided).max(self.passed), output);
    }

    /// Appends what is held back to `output`, when the stream pauses or ends: if it is more than
    /// half of a secret, as a mask. If it was the beginning of a secret, the rest is still replaced
    /// when it arrives.
    pub fn flush(&mut self, patterns: &Patterns, output: &mut Vec<u8>) {
        let state = self.state.unwrap_or_else(|| patterns.start());
        let most = patterns.node(state).most;
        if most > 0 {
            self.mark(most.into());
        }
        self.pass(self.arrived, output);
    }

    /// Whether bytes are held back.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// The last bytes so far are secret, as far as they were not passed on.
    fn mark(&mut self, length: u64) {
        let mut start = (self.arrived - length).max(self.passed);
        while let Some(&(before, end)) = self.secret.back()
            && end >= start
        {
            start = start.min(before);
            self.secret.pop_back();
        }
        if start < self.arrived {
            self.secret.push_back((start, self.arrived));
        }
    }

    /// Passes everything on before this position.
    fn pass(&mut self, until: u64, output: &mut Vec<u8>) {
        while self.passed < until {
            let (start, end) = self.secret.front().copied().unwrap_or((until, until));
            if self.passed < start {
                self.take(start.min(until), Some(output));
                self.is_masked = false;
                continue;
            }
            if !self.is_masked {
                output.extend_from_slice(MASK.as_bytes());
                self.is_masked = true;
            }
            self.take(end.min(until), None);
            if self.passed == end {
                self.secret.pop_front();
            }
        }
    }

    fn take(&mut self, until: u64, output: Option<&mut Vec<u8>>) {
        let count = usize::try_from(until - self.passed).unwrap_or(usize::MAX);
        let taken = self.held.drain(..count.min(self.held.len()));
        match output {
            Some(output) => output.extend(taken),
            None => drop(taken),
        }
        self.passed = until;
    }
}

impl Patterns {
    /// Bytes without the secrets, at the end of the text: a suffix that is more than half of a
    /// secret is replaced too, because the text may have been cut there.
    pub fn bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let mut stream = Stream::default();
        let mut replaced = Vec::new();
        stream.push(self, bytes, &mut replaced);
        stream.flush(self, &mut replaced);
        // A mask is shorter than what it stands for.
        match replaced.len() == bytes.len() {
            true => Cow::Borrowed(bytes),
            false => Cow::Owned(replaced),
        }
    }

    /// The same, in place.
    pub fn text(&self, text: &mut String) {
        if let Cow::Owned(replaced) = self.bytes(text.as_bytes()) {
            *text = to_text(replaced);
        }
    }

    /// The bytes with each whole secret replaced, and a cut one at their end as it is; `None` if they have no
    /// whole secret.
    pub(crate) fn whole(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (mut stream, mut replaced) = (Stream::default(), Vec::new());
        stream.push(self, bytes, &mut replaced);
        stream.pass(stream.arrived, &mut replaced);
        (replaced != bytes).then_some(replaced)
    }
}

/// A secret that is not UTF-8 may begin inside a character.
pub(crate) fn to_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
