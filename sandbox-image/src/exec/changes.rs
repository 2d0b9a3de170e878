//! Watches of requests. The thread that supervises commands also reads what the kernel reports of watched
//! directories: it waits for descriptors anyway, and another thread would count towards the sandbox's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_protocol::limits::{LIST_PAGE, LIST_PAGE_BYTES};
use sandbox_protocol::message::{ChangedEntry, Changes};
use sandbox_protocol::{FromAgent, WireString};

use crate::files::Watches;
use crate::outbox::Outbox;

/// How often changes are read, unless a request waits for them. What happens to a file meanwhile is one
/// change.
const PACE: Duration = Duration::from_millis(50);
/// How long the thread reads before it looks at its commands.
const TURN: Duration = Duration::from_millis(5);

/// What the thread is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asked {
    /// Answer this `flush`.
    Flush(u64),
    /// End this `watch`.
    End(u64),
    /// Send what has been read of a watch that is on now.
    Send,
}

/// What is to be answered now.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The `flush` requests that are done.
    pub flushed: Vec<u64>,
    /// The watches that have ended.
    pub ended: Vec<u64>,
}

/// The thread's part of the watches.
pub(super) struct Reading {
    watches: Arc<Watches>,
    /// There is something to read.
    is_ready: bool,
    /// When it was read last.
    read_at: Option<Instant>,
    /// The `flush` requests that wait.
    flushes: Vec<u64>,
}

impl Reading {
    pub const fn new(watches: Arc<Watches>) -> Self {
        Self { watches, is_ready: true, read_at: None, flushes: Vec::new() }
    }

    /// There is something to read.
    pub const fn note(&mut self) {
        self.is_ready = true;
    }

    /// When the next step is due.
    pub fn due(&self) -> Option<Instant> {
        match self.read_at.filter(|_| self.flushes.is_empty()) {
            _ if !self.is_ready => None,
            Some(at) => Some(at + PACE),
            None => Some(Instant::now()),
        }
    }

    /// Sends what has changed, if it is time or a request asks for it.
    pub fn step(&mut self, asked: Vec<Asked>, outbox: &Outbox) -> Answers {
        // First: what is due at once is not later than now.
        let due = self.due();
        let now = Instant::now();
        let mut answers = Answers::default();
        let is_asked = !asked.is_empty();
        for asked in asked {
            match asked {
                Asked::Flush(id) => self.flushes.push(id),
                Asked::End(id) if self.watches.end(id) => answers.ended.push(id),
                // One that is not on yet ends itself.
                Asked::End(_) | Asked::Send => {}
            }
        }
        if !is_asked && due.is_none_or(|due| due > now) {
            return answers;
        }
        self.is_ready = self.watches.read(now + TURN);
        self.read_at = (!self.is_ready).then_some(now);
        for (changes, is_over) in self.watches.take() {
            let id = changes.request;
            send(changes, outbox);
            if is_over && self.watches.end(id) {
                answers.ended.push(id);
            }
        }
        if !self.is_ready {
            answers.flushed = std::mem::take(&mut self.flushes);
        }
        answers
    }
}

/// Sends changes, a page at a time.
fn send(changes: Changes, outbox: &Outbox) {
    let Changes { request, mut omitted, entries } = changes;
    let mut rest = VecDeque::from(entries);
    while omitted > 0 || !rest.is_empty() {
        let mut bytes = 0;
        let fits = |entry: &&ChangedEntry| {
            let has_room = bytes < LIST_PAGE_BYTES;
            bytes += WireString::encoded_len(&entry.name);
            has_room
        };
        let count = rest.iter().take(LIST_PAGE).take_while(fits).count();
        let entries = rest.drain(..count).collect();
        outbox.notify(&FromAgent::Changes(Changes { request, omitted, entries }));
        omitted = 0;
    }
}
