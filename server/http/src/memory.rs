//! The memory that bodies take. It is counted as they grow, and each subject leaves as much free as it
//! has: however many take all they may, others have some.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox_api::ProblemKind;
use sandbox_api::service::{Subject, has_room};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::lock;
use crate::refusal::{Refusal, Result};

/// What a body takes without being counted: there are few connections.
pub(crate) const UNCOUNTED: u64 = 64 << 10;
/// How long a body waits for memory.
const PATIENCE: Duration = Duration::from_secs(10);
/// After how long another attempt makes sense.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The memory that bodies may take, all together.
#[derive(Debug, Clone)]
pub(crate) struct Memory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: u64,
    used: Mutex<MemoryUsage>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct MemoryUsage {
    all: u64,
    by_subject: HashMap<Subject, u64>,
}

/// What one body takes, until the last clone is gone. What is mounted with access of its own finds one in the
/// extensions of its requests, for bodies that it reads whole: nothing is counted where they stream.
#[derive(Debug, Clone)]
pub struct Held(Arc<HeldBytes>);

#[derive(Debug)]
struct HeldBytes {
    memory: Memory,
    subject: Subject,
    bytes: Mutex<u64>,
}

impl Memory {
    pub fn new(most: u64) -> Self {
        Self(Arc::new(Inner { most, used: Mutex::default(), freed: Notify::new() }))
    }

    /// For a body of this subject, which takes nothing yet.
    pub fn hold(&self, subject: &Subject) -> Held {
        let (memory, subject) = (self.clone(), subject.clone());
        Held(Arc::new(HeldBytes { memory, subject, bytes: Mutex::default() }))
    }
}

impl Held {
    /// Takes so many bytes more, if there is room.
    pub(crate) fn try_add(&self, bytes: u64) -> Result<()> {
        let HeldBytes { memory, subject, bytes: own } = &*self.0;
        let (mut own, mut used) = (lock(own), lock(&memory.0.used));
        let grown = own.saturating_add(bytes);
        let more = grown.saturating_sub(UNCOUNTED) - own.saturating_sub(UNCOUNTED);
        let of_subject = used.by_subject.get(subject).copied().unwrap_or(0) + more;
        let most = memory.0.most;
        let fits_alone = |bytes| has_room(bytes, bytes, most);
        if !fits_alone(grown.saturating_sub(UNCOUNTED)) {
            return Err(Refusal::new(ProblemKind::TooLarge, "this takes too much memory"));
        }
        let refusal = if more > 0 && !fits_alone(of_subject) {
            Refusal::new(ProblemKind::RateLimited, "too many large bodies of yours at one time")
        } else if more > 0 && !has_room(of_subject, used.all + more, most) {
            Refusal::new(ProblemKind::Full, "too many large bodies at one time")
        } else {
            *own = grown;
            if more > 0 {
                used.all += more;
                *used.by_subject.entry(subject.clone()).or_default() += more;
            }
            return Ok(());
        };
        Err(refusal.retry_after(Some(RETRY_AFTER)))
    }

    /// Gives all of it back.
    pub fn release(&self) {
        self.0.release();
    }

    /// Takes so many bytes more, and waits for memory. There is no queue: smaller requests get it first.
    ///
    /// # Errors
    ///
    /// If it never fits, or there is none in time.
    pub async fn add(&self, bytes: u64) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let freed = self.0.memory.0.freed.notified();
            tokio::pin!(freed);
            // Before it looks: what is freed after that is noticed.
            freed.as_mut().enable();
            match self.try_add(bytes) {
                Err(refusal) if refusal.problem().kind != ProblemKind::TooLarge => {
                    timeout_at(until, freed).await.map_err(|_| refusal)?;
                }
                added => return added,
            }
        }
    }
}

impl HeldBytes {
    fn release(&self) {
        let counted = std::mem::take(&mut *lock(&self.bytes)).saturating_sub(UNCOUNTED);
        if counted == 0 {
            return;
        }
        let mut used = lock(&self.memory.0.used);
        used.all -= counted;
        if let Some(of_subject) = used.by_subject.get_mut(&self.subject) {
            *of_subject -= counted;
            if *of_subject == 0 {
                used.by_subject.remove(&self.subject);
            }
        }
        drop(used);
        self.memory.0.freed.notify_waiters();
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn status(result: Result<()>) -> u16 {
        result.map_or_else(|refusal| refusal.problem().status, |()| 200)
    }

    fn subjects() -> [Subject; 3] {
        ["alice", "bob", "carol"].map(|name| Subject::new(name).unwrap())
    }

    #[test]
    fn body_takes_what_has_arrived_and_a_subject_its_share() {
        let memory = Memory::new(4 * MIB);
        let [alice, bob, carol] = subjects();
        // Any number that has hardly begun takes nothing, however long they are to be.
        let begun: Vec<_> = (0..1000).map(|_| memory.hold(&alice)).collect();
        assert!(begun.iter().all(|held| status(held.try_add(UNCOUNTED)) == 200));
        assert_eq!(status(begun[0].try_add(2 * MIB)), 200);
        assert_eq!(status(begun[1].try_add(1)), 429);
        assert_eq!(status(begun[0].try_add(1)), 413, "it never fits");
        // Two that take all they may leave room for a third.
        let of_bob = memory.hold(&bob);
        assert_eq!(status(of_bob.try_add(UNCOUNTED + 2 * MIB)), 503);
        assert_eq!(status(of_bob.try_add(UNCOUNTED + MIB)), 200);
        let of_carol = memory.hold(&carol);
        assert_eq!(status(of_carol.try_add(UNCOUNTED + MIB / 2)), 200);
        assert_eq!(status(of_carol.try_add(1)), 503);
        drop(of_bob.clone());
        assert_eq!(status(of_carol.try_add(1)), 503, "it is held by another clone");
        drop(of_bob);
        assert_eq!(status(of_carol.try_add(1)), 200);
        drop((begun, of_carol));
        let used = lock(&memory.0.used);
        assert_eq!((used.all, used.by_subject.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn large_body_that_waits_blocks_no_smaller_one() {
        let memory = Memory::new(4 * MIB);
        let [alice, bob, carol] = subjects();
        let [first, large, small] = [&alice, &bob, &carol].map(|subject| memory.hold(subject));
        let second = memory.hold(&carol);
        first.try_add(UNCOUNTED + 2 * MIB).unwrap();
        second.try_add(UNCOUNTED + MIB / 2).unwrap();
        let bytes = UNCOUNTED + MIB + MIB / 2;
        let waits = tokio::spawn(async move { large.add(bytes).await.map(|()| large) });
        tokio::task::yield_now().await;
        small.add(UNCOUNTED + MIB / 2).await.unwrap();
        drop(small);
        assert!(!waits.is_finished());
        drop(first);
        let large = waits.await.unwrap().unwrap();
        // And a wait in vain ends with an error.
        let more = memory.hold(&alice);
        assert_eq!(status(more.add(UNCOUNTED + 2 * MIB).await), 503);
        drop(large);
    }
}
