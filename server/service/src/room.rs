//! Reservations for what is about to be stored: bytes that are on their way count as stored already.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use sandbox_api::service::Subject;

use crate::lock;

/// The most that is added at one time, a PiB: a client announces what it likes, and sums are to have an end.
const MAX: u64 = 1 << 50;

/// The bytes that are about to be stored.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending(Arc<Mutex<PendingBytes>>);

#[derive(Debug, Default)]
struct PendingBytes {
    by_subject: HashMap<Subject, PendingOf>,
    /// Those of requests in the store.
    queued: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct PendingOf {
    /// All of them.
    bytes: u64,
    /// Those of requests in the store.
    queued: u64,
}

/// Bytes of a subject that are about to be stored, until this is dropped.
#[derive(Debug)]
pub(crate) struct StorageReservation {
    pending: Pending,
    subject: Subject,
    of: PendingOf,
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, PendingBytes> {
        lock(&self.0)
    }

    /// Those of a subject.
    pub fn bytes_of(&self, subject: &Subject) -> u64 {
        self.lock().by_subject.get(subject).map_or(0, |of| of.bytes)
    }

    /// No bytes yet.
    pub fn room(&self, subject: &Subject) -> StorageReservation {
        StorageReservation {
            pending: self.clone(),
            subject: subject.clone(),
            of: PendingOf::default(),
        }
    }
}

impl PendingBytes {
    fn add_queued(&mut self, subject: &Subject, more: u64, less: u64) {
        self.queued = self.queued + more - less;
        if let Some(of) = self.by_subject.get_mut(subject) {
            of.queued = of.queued + more - less;
        }
    }
}

impl StorageReservation {
    /// Whose they are.
    pub const fn subject(&self) -> &Subject {
        &self.subject
    }

    /// How many they are.
    pub const fn bytes(&self) -> u64 {
        self.of.bytes
    }

    /// Adds bytes, and returns those that were about to be stored of the subject before.
    pub fn add(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.min(MAX);
        self.of.bytes += bytes;
        let mut pending = self.pending.lock();
        let of = pending.by_subject.entry(self.subject.clone()).or_default();
        let before = of.bytes;
        of.bytes += bytes;
        before
    }

    /// Its bytes are those of a request in the store, if all of them together are within `most`. A tenth
    /// more is for subjects of which none is there, so that one cannot take the room of all.
    pub fn queue(&mut self, most: u64) -> bool {
        let mut pending = self.pending.lock();
        let has_some = pending.by_subject.get(&self.subject).is_some_and(|of| of.queued > 0);
        let most = if has_some { most } else { most.saturating_add(most / 10) };
        let fits = pending.queued.saturating_add(self.of.bytes) <= most;
        if fits {
            self.of.queued = self.of.bytes;
            pending.add_queued(&self.subject, self.of.bytes, 0);
        }
        fits
    }

    /// The same, of a request that was there before: there is always room.
    pub fn restore(&mut self, bytes: u64) {
        self.add(bytes);
        self.queue(u64::MAX);
    }

    /// The request is in the store no longer.
    pub fn begin(&mut self) {
        let queued = std::mem::take(&mut self.of.queued);
        self.pending.lock().add_queued(&self.subject, 0, queued);
    }
}

impl Drop for StorageReservation {
    fn drop(&mut self) {
        self.begin();
        let mut pending = self.pending.lock();
        if let Some(of) = pending.by_subject.get_mut(&self.subject) {
            of.bytes -= self.of.bytes;
            if of.bytes == 0 {
                pending.by_subject.remove(&self.subject);
            }
        }
    }
}
