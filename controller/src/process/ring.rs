//! The events of a process that are kept: the last ones, as many as have room. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use sandbox_api::service::Time;
use sandbox_api::{EventRecord, ExecutionEvent, Recorded};

/// Events with numbers from 1 on, without gaps. Whole ones are dropped from the front.
#[derive(Debug)]
pub(super) struct Ring {
    events: VecDeque<Arc<EventRecord>>,
    /// What the events take.
    bytes: u64,
    /// What they may take.
    most: u64,
    /// The number of the last one.
    last: u64,
}

/// What an event with this much output takes.
pub(super) const fn weight_of(output: usize) -> u64 {
    (output + size_of::<EventRecord>()) as u64
}

/// What an event takes.
fn weight(event: &Recorded) -> u64 {
    weight_of(match event {
        Recorded::Event(ExecutionEvent::Output { data, .. }) => data.len(),
        Recorded::Event(_) => 0,
        Recorded::End { document, .. } => document.get().len(),
    })
}

impl Ring {
    pub const fn new(most: u64) -> Self {
        Self { events: VecDeque::new(), bytes: 0, most, last: 0 }
    }

    /// The number of the first event that is kept; 0 without one.
    pub fn first(&self) -> u64 {
        self.events.front().map_or(0, |event| event.seq)
    }

    /// The number of the last event; 0 without one.
    pub const fn last(&self) -> u64 {
        self.last
    }

    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds an event. The last one is always kept.
    pub fn push(&mut self, event: Recorded, time: Time) {
        let size = weight(&event);
        self.drop_to(self.dropped_for(size));
        self.last += 1;
        self.bytes += size;
        self.events.push_back(Arc::new(EventRecord { seq: self.last, time, name: None, event }));
    }

    /// Drops the events up to this one.
    pub fn drop_to(&mut self, seq: u64) {
        while self.events.front().is_some_and(|first| first.seq <= seq) {
            let first = self.events.pop_front();
            self.bytes -= first.map_or(0, |first| weight(&first.event));
        }
    }

    /// The number of the last event that is dropped to make room for one of this size.
    pub fn dropped_for(&self, size: u64) -> u64 {
        let mut bytes = self.bytes;
        let dropped = self.events.iter().take_while(|event| {
            let is_dropped = bytes + size > self.most;
            bytes -= weight(&event.event);
            is_dropped
        });
        dropped.last().map_or(0, |event| event.seq)
    }

    /// The event after the one of this number, once it is there. If it was dropped, an `omitted` that
    /// has the number of the last one that was.
    pub fn after(&self, seq: u64) -> Option<Arc<EventRecord>> {
        let first = self.events.front().filter(|_| seq < self.last)?;
        if seq + 1 < first.seq {
            let (seq, event) = (first.seq - 1, ExecutionEvent::Omitted.into());
            return Some(Arc::new(EventRecord { seq, time: first.time, name: None, event }));
        }
        self.events.get(usize::try_from(seq + 1 - first.seq).ok()?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use sandbox_api::OutputStream;

    fn output(length: usize) -> Recorded {
        let data = Bytes::from(vec![b'x'; length]);
        ExecutionEvent::Output { stream: OutputStream::Stdout, data }.into()
    }

    /// All events after one, as a reader gets them.
    fn read(ring: &Ring, mut after: u64) -> Vec<(u64, bool)> {
        let mut seen = Vec::new();
        while let Some(event) = ring.after(after) {
            assert!(event.seq > after, "{event:?}");
            let is_omitted = matches!(event.event, Recorded::Event(ExecutionEvent::Omitted));
            seen.push((event.seq, is_omitted));
            after = event.seq;
        }
        seen
    }

    #[test]
    fn whole_events_are_dropped_from_the_front_and_their_number_is_reported() {
        let most = 3 * weight(&output(100));
        let mut ring = Ring::new(most);
        assert_eq!((ring.first(), ring.last()), (0, 0));
        assert_eq!(read(&ring, 0), []);
        for _ in 0..3 {
            assert_eq!(ring.dropped_for(weight(&output(100))), 0);
            ring.push(output(100), Time::now());
        }
        assert_eq!(read(&ring, 0), [(1, false), (2, false), (3, false)]);
        assert_eq!(read(&ring, 2), [(3, false)]);
        assert_eq!(ring.dropped_for(weight(&output(101))), 2);
        ring.push(output(101), Time::now());
        assert_eq!((ring.first(), ring.last()), (3, 4));
        assert_eq!(read(&ring, 0), [(2, true), (3, false), (4, false)]);
        assert_eq!(read(&ring, 1), [(2, true), (3, false), (4, false)]);
        assert_eq!(read(&ring, 2), [(3, false), (4, false)]);
        assert_eq!(read(&ring, 4), []);
        assert_eq!(read(&ring, 7), []);
    }

    #[test]
    fn events_take_no_more_than_they_may_and_have_no_gap() {
        let mut ring = Ring::new(64 << 10);
        let mut state = 7_u32;
        for _ in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ring.push(output(state as usize % (32 << 10)), Time::now());
            assert!(ring.bytes() <= 64 << 10);
            let sizes: u64 = ring.events.iter().map(|event| weight(&event.event)).sum();
            assert_eq!(ring.bytes(), sizes);
            let numbers = ring.events.iter().map(|event| event.seq);
            assert!(numbers.eq(ring.first()..=ring.last()));
        }
        assert_eq!(ring.last(), 10_000);
    }
}
