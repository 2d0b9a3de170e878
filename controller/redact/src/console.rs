//! The two output streams of a command.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::patterns::Patterns;
use crate::stream::Stream;

/// How long a stream may say nothing before what is held back is passed on: a prompt that ends as a
/// secret begins must not wait for its answer.
const PAUSE: Duration = Duration::from_millis(100);

/// Replaces secrets in stdout and stderr, each for itself. Without secrets it passes everything on.
#[derive(Debug)]
pub struct Console {
    patterns: Option<Arc<Patterns>>,
    outputs: [Output; 2],
}

#[derive(Debug, Default)]
struct Output {
    stream: Stream,
    /// When what is held back is passed on.
    due: Option<Instant>,
}

impl Console {
    /// Two streams at their beginning.
    pub fn new(patterns: Option<Arc<Patterns>>) -> Self {
        Self { patterns, outputs: Default::default() }
    }

    /// Whether these are the patterns that it looks for.
    pub fn looks_for(&self, patterns: Option<&Arc<Patterns>>) -> bool {
        match (&self.patterns, patterns) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (None, None) => true,
            _ => false,
        }
    }

    /// What can be passed on after this piece of a stream, which arrived `now`.
    pub fn push(&mut self, number: usize, piece: Vec<u8>, now: Instant) -> Vec<u8> {
        let Some(patterns) = &self.patterns else { return piece };
        let Output { stream, due } = &mut self.outputs[number];
        let mut passed = Vec::with_capacity(piece.len());
        stream.push(patterns, &piece, &mut passed);
        *due = stream.is_holding().then(|| now + PAUSE);
        passed
    }

    /// What is left at the end of a stream.
    pub fn end(&mut self, number: usize) -> Vec<u8> {
        let mut passed = Vec::new();
        if let Some(patterns) = &self.patterns {
            let Output { stream, due } = &mut self.outputs[number];
            stream.flush(patterns, &mut passed);
            *due = None;
        }
        passed
    }

    /// When [`pause`](Self::pause) has something.
    pub fn due(&self) -> Option<Instant> {
        self.outputs.iter().filter_map(|output| output.due).min()
    }

    /// What was held back too long, with the number of its stream.
    pub fn pause(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        let is_due = |output: &Output| output.due.is_some_and(|due| due <= now);
        let number = self.outputs.iter().position(is_due)?;
        Some((number, self.end(number)))
    }
}
