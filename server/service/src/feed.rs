//! The events of one execution: numbered, bounded, stored in batches, and read by any number of
//! readers who take them when they want to. A slow reader never slows the run: what is not in memory
//! any more is in the store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use sandbox_api::service::Time;
use sandbox_api::{EventRecord, ExecutionEvent, Recorded};
use sandbox_store::Store;
use serde_json::value::RawValue;
use tokio::sync::watch;

use crate::lock;

/// The bytes of stored events that stay in memory for readers who keep up.
pub(crate) const RECENT_BYTES: usize = 64 << 10;
/// The bytes of events that wait for the store, at least; more are omitted.
const MAX_UNSAVED_BYTES: usize = 2 << 20;
/// The cost of an event in addition to its text.
const OVERHEAD: usize = 128;
/// More events than can have been published and not stored when a service is killed: only tests and
/// refused hosts, which are few, are not bounded by [`MAX_UNSAVED_BYTES`].
const MAX_LOST: u64 = 1 << 20;

/// The events of an execution that has not ended.
#[derive(Debug)]
pub(crate) struct Feed {
    state: Mutex<State>,
    /// The number of the last event; readers wait for it.
    last: watch::Sender<u64>,
    /// The bytes of log entries and output in all events.
    max_bytes: u64,
    /// The bytes of events that wait for the store: all text, and as much for the events themselves.
    max_unsaved: usize,
    /// The clock of the nodes of a cluster.
    clock: Option<Store>,
}

#[derive(Debug)]
struct State {
    /// Events in order, without gaps: the stored ones that are still here, then those that are not
    /// stored yet.
    recent: VecDeque<Arc<EventRecord>>,
    recent_bytes: usize,
    unsaved_bytes: usize,
    /// The number of the next event.
    next: u64,
    /// The number of the last event that is stored.
    saved: u64,
    /// Bytes of log entries and output so far.
    bytes: u64,
    /// Whether the last event says that some are missing.
    omits: bool,
    /// Whether the last event is the end.
    has_ended: bool,
    /// What comes is in the store only.
    is_lost: bool,
}

/// What a reader finds.
#[derive(Debug)]
pub(crate) enum FeedRead {
    /// The next events, at least one.
    Events(Vec<Arc<EventRecord>>),
    /// They are in the store only.
    InStore,
    /// There are none yet.
    NotYet,
    /// There are none any more.
    Ended,
}

impl Feed {
    /// A feed that continues after the event `last`.
    pub fn new(last: u64, max_bytes: u64) -> Self {
        Self::going_on(last, last + 1, max_bytes)
    }

    /// The feed of an execution that ran when its service was killed, with `last` as the last
    /// stored event. Later events were published and lost; their numbers are not used again, so
    /// that a reader who has seen them gets the new ones.
    pub fn after_crash(last: u64, max_bytes: u64) -> Self {
        Self::going_on(last, last + 1 + MAX_LOST, max_bytes)
    }

    fn going_on(last: u64, next: u64, max_bytes: u64) -> Self {
        let state = State {
            recent: VecDeque::new(),
            recent_bytes: 0,
            unsaved_bytes: 0,
            next,
            saved: last,
            bytes: 0,
            omits: false,
            has_ended: false,
            is_lost: false,
        };
        let (state, last) = (Mutex::new(state), watch::Sender::new(last));
        let max_unsaved = usize::try_from(max_bytes.saturating_mul(2)).unwrap_or(usize::MAX);
        let max_unsaved = max_unsaved.max(MAX_UNSAVED_BYTES);
        Self { state, last, max_bytes, max_unsaved, clock: None }
    }

    /// Its events have the times of the store's clock.
    pub fn by_clock(self, store: &Store) -> Self {
        Self { clock: Some(store.clone()), ..self }
    }

    fn now(&self) -> Time {
        self.clock.as_ref().map_or_else(Time::now, Store::now)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Adds an event; a log entry or output beyond the bounds is omitted, which an event says.
    pub fn push(&self, event: ExecutionEvent) {
        let mut state = self.lock();
        if state.has_ended {
            return;
        }
        let bytes = text_bytes(&event);
        if matches!(event, ExecutionEvent::Log(_) | ExecutionEvent::Output { .. }) {
            let is_over = state.bytes.saturating_add(bytes as u64) > self.max_bytes
                || state.unsaved_bytes + bytes + OVERHEAD > self.max_unsaved;
            if is_over && state.omits {
                return;
            }
            if is_over {
                state.omits = true;
                self.add(&mut state, ExecutionEvent::Omitted, 0);
                return;
            }
            state.bytes += bytes as u64;
        }
        state.omits = false;
        self.add(&mut state, event, bytes);
    }

    fn add(&self, state: &mut State, event: ExecutionEvent, bytes: usize) {
        let seq = state.next;
        state.next += 1;
        let (time, event) = (self.now(), event.into());
        state.recent.push_back(Arc::new(EventRecord { seq, time, name: None, event }));
        state.recent_bytes += bytes + OVERHEAD;
        state.unsaved_bytes += bytes + OVERHEAD;
        self.last.send_replace(seq);
    }

    /// The events that are not stored yet, without the end.
    pub fn unsaved(&self) -> Vec<Arc<EventRecord>> {
        let state = self.lock();
        let is_due = |event: &&Arc<EventRecord>| event.seq > state.saved && !event.event.is_end();
        state.recent.iter().filter(is_due).cloned().collect()
    }

    /// The events up to this one are stored.
    pub fn mark_saved(&self, up_to: u64) {
        let mut state = self.lock();
        state.saved = state.saved.max(up_to);
        let saved = state.saved;
        state.unsaved_bytes = state
            .recent
            .iter()
            .filter(|event| event.seq > saved)
            .map(|event| record_bytes(event) + OVERHEAD)
            .sum();
        while state.recent_bytes > RECENT_BYTES
            && let Some(first) = state.recent.front()
            && first.seq <= saved
        {
            let bytes = record_bytes(first) + OVERHEAD;
            state.recent_bytes -= bytes;
            state.recent.pop_front();
        }
    }

    /// Adds the end, which readers see when it is [durable](Self::publish_end). Its number.
    pub fn end(&self, exit_code: u8, document: Box<RawValue>) -> Arc<EventRecord> {
        let mut state = self.lock();
        let seq = state.next;
        let (time, event) = (self.now(), Recorded::End { exit_code, document });
        let event = Arc::new(EventRecord { seq, time, name: None, event });
        if !state.has_ended {
            state.has_ended = true;
            state.next += 1;
            state.recent.push_back(event.clone());
        }
        event
    }

    /// The end is durable.
    pub fn publish_end(&self) {
        let mut state = self.lock();
        state.saved = state.next - 1;
        self.last.send_replace(state.saved);
    }

    /// What comes is stored by another service.
    pub fn lose(&self) {
        let mut state = self.lock();
        state.is_lost = !state.has_ended || *self.last.borrow() + 1 != state.next;
        // Readers look again.
        self.last.send_modify(|_| {});
    }

    /// The events after this one, at most `most`.
    pub fn after(&self, seq: u64, most: usize) -> FeedRead {
        let state = self.lock();
        let durable = *self.last.borrow();
        if seq >= durable {
            return match state.has_ended && durable + 1 == state.next {
                true => FeedRead::Ended,
                false if state.is_lost => FeedRead::InStore,
                false => FeedRead::NotYet,
            };
        }
        match state.recent.front() {
            Some(first) if first.seq <= seq + 1 => {
                let skip = usize::try_from(seq + 1 - first.seq).unwrap_or(usize::MAX);
                let is_durable = |event: &&Arc<EventRecord>| event.seq <= durable;
                let events = state.recent.iter().skip(skip).take_while(is_durable).take(most);
                FeedRead::Events(events.cloned().collect())
            }
            _ => FeedRead::InStore,
        }
    }

    /// The number of the last event, to wait for a later one.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}

/// The bytes of an event that its execution determines.
fn text_bytes(event: &ExecutionEvent) -> usize {
    match event {
        ExecutionEvent::Log(entry) => entry.text.len(),
        ExecutionEvent::Output { data, .. } => data.len(),
        ExecutionEvent::Test(case) => {
            case.name.len() + case.message.as_ref().map_or(0, String::len)
        }
        ExecutionEvent::HostRefused(host) => host.host.len() + host.reason.len(),
        ExecutionEvent::Queued
        | ExecutionEvent::Started
        | ExecutionEvent::Omitted
        | ExecutionEvent::Exited(_) => 0,
    }
}

fn record_bytes(record: &EventRecord) -> usize {
    match &record.event {
        Recorded::Event(event) => text_bytes(event),
        Recorded::End { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_api::LogEntry;

    fn log(bytes: usize) -> ExecutionEvent {
        ExecutionEvent::Log(LogEntry::from_line(&"x".repeat(bytes)))
    }

    fn names(found: FeedRead) -> Vec<(u64, &'static str)> {
        match found {
            FeedRead::Events(events) => events.iter().map(|it| (it.seq, it.event.name())).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn end(feed: &Feed) -> u64 {
        feed.end(0, RawValue::from_string("{}".to_owned()).unwrap()).seq
    }

    #[test]
    fn events_are_numbered_and_the_end_is_sent_when_it_is_durable() {
        let feed = Feed::new(0, 1000);
        feed.push(ExecutionEvent::Queued);
        feed.push(ExecutionEvent::Started);
        feed.push(log(1));
        assert_eq!(names(feed.after(0, 10)), [(1, "queued"), (2, "start"), (3, "log")]);
        assert_eq!(names(feed.after(1, 1)), [(2, "start")]);
        assert_eq!(end(&feed), 4);
        assert!(matches!(feed.after(3, 10), FeedRead::NotYet));
        assert_eq!(feed.unsaved().len(), 3);
        feed.publish_end();
        assert_eq!(names(feed.after(3, 10)), [(4, "end")]);
        assert!(matches!(feed.after(4, 10), FeedRead::Ended));
        assert!(matches!(feed.after(7, 10), FeedRead::Ended));
        // Nothing comes after it.
        feed.push(log(1));
        assert!(matches!(feed.after(4, 10), FeedRead::Ended));
    }

    #[test]
    fn reader_who_has_seen_events_that_a_crash_lost_gets_the_end() {
        let feed = Feed::after_crash(2, 1000);
        assert!(matches!(feed.after(2, 10), FeedRead::NotYet));
        assert!(matches!(feed.after(9, 10), FeedRead::NotYet));
        let seq = end(&feed);
        assert!(matches!(feed.after(9, 10), FeedRead::NotYet));
        feed.publish_end();
        for seen in [2, 3, 9, seq - 2] {
            assert!(matches!(feed.after(seen, 10), FeedRead::InStore), "{seen}");
        }
        assert_eq!(names(feed.after(seq - 1, 10)), [(seq, "end")]);
        assert!(matches!(feed.after(seq, 10), FeedRead::Ended));
    }

    #[test]
    fn log_beyond_its_bound_is_omitted_once_and_says_so() {
        let feed = Feed::new(0, 10);
        for _ in 0..5 {
            feed.push(log(4));
        }
        feed.push(ExecutionEvent::Started);
        feed.push(log(2));
        let expected = [(1, "log"), (2, "log"), (3, "omitted"), (4, "start"), (5, "log")];
        assert_eq!(names(feed.after(0, 10)), expected);
    }

    #[test]
    fn store_that_is_late_bounds_the_memory() {
        const MAX: usize = 2 * MAX_UNSAVED_BYTES;
        let feed = Feed::new(0, MAX as u64);
        for _ in 0..16 {
            feed.push(log(MAX / 16));
        }
        let is_log = |it: &Arc<EventRecord>| it.event.name() == "log";
        assert_eq!(feed.unsaved().iter().filter(|it| is_log(it)).count(), 16);
        let feed = Feed::new(0, MAX as u64);
        for _ in 0..MAX / 50 {
            feed.push(log(1));
        }
        assert_eq!(feed.unsaved().len(), 2 * MAX / (1 + OVERHEAD) + 1);
        let last = feed.unsaved().last().map(|event| event.seq).unwrap();
        feed.mark_saved(last);
        feed.push(log(100));
        assert_eq!(feed.unsaved().len(), 1);
    }

    #[test]
    fn stored_events_leave_the_memory_and_are_read_from_the_store() {
        let feed = Feed::new(0, u64::MAX);
        for _ in 0..10 {
            feed.push(log(RECENT_BYTES / 2));
        }
        assert_eq!(names(feed.after(0, 1)), [(1, "log")]);
        feed.mark_saved(9);
        assert!(matches!(feed.after(0, 1), FeedRead::InStore));
        assert_eq!(names(feed.after(9, 10)), [(10, "log")]);
    }
}
