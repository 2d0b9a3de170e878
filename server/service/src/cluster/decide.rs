//! What a node of a cluster decides, from its state and the rows that it read. Pure: no clock, task or database. The
//! service acts on it, and the simulator (`tests/simulator/`) runs it through thousands of histories.
//!
//! A time is the node's own monotonic clock, as the duration since any start. Clocks of two machines are never
//! compared, and the database's clock decides nothing.

#![deny(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::time::Duration;

/// How often an execution is claimed by nodes that are gone before they begin it, until it is given up.
pub(crate) const MAX_CLAIMS: u32 = 3;

/// How often a node renews its lease in the time of one.
const BEATS_PER_LEASE: u32 = 5;

/// What a node does after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// End this session, whose node is gone, if its beat is still this one.
    DeclareDead {
        /// The session.
        session: i64,
        /// The beat that it had all the time.
        beat: i64,
    },
    /// Ask which executions this node's session holds, and [adopt] those that are unknown here.
    Adopt,
}

/// What a node has seen of the others. It begins anew with each session of the node.
#[derive(Debug)]
pub(crate) struct Observer {
    lease: Duration,
    /// When the last beat of this node was answered.
    answered: Option<Duration>,
    others: BTreeMap<i64, Seen>,
    /// When this node's executions were last compared with those of its session; `None` if they must be, because
    /// an answer was lost.
    adopted: Option<Duration>,
}

/// The beat of a session, and since when it is the same.
#[derive(Debug)]
struct Seen {
    beat: i64,
    since: Duration,
}

impl Observer {
    /// Has seen nothing. `lease` is the cluster's.
    pub const fn new(lease: Duration) -> Self {
        Self { lease, answered: None, others: BTreeMap::new(), adopted: None }
    }

    /// The time from one beat to the next.
    pub fn interval(&self) -> Duration {
        self.lease / BEATS_PER_LEASE
    }

    /// The answer to a change was lost: it may have been committed, and may still be.
    pub const fn lost_answer(&mut self) {
        self.adopted = None;
    }

    /// This node's own beat was committed, with the other sessions and their beats.
    ///
    /// A session is dead if it had one beat for a whole lease while this node's beats were committed. A read would
    /// not do as a proof that the database works: without its synchronous standby it answers reads, and commits
    /// nothing. After a gap in the answers, whether the database, the network or this process was halted, every
    /// session has a whole lease again.
    pub fn answered(
        &mut self,
        asked: Duration,
        now: Duration,
        others: impl IntoIterator<Item = (i64, i64)>,
    ) -> Vec<Action> {
        let had_gap = self.answered.is_none_or(|last| now.saturating_sub(last) > self.lease / 2);
        self.answered = Some(now);
        let mut before = std::mem::take(&mut self.others);
        let mut actions = Vec::new();
        for (session, beat) in others {
            let seen = before.remove(&session).filter(|seen| seen.beat == beat && !had_gap);
            let seen = seen.unwrap_or(Seen { beat, since: now });
            // The answer is as old as the question, at most.
            if asked.saturating_sub(seen.since) > self.lease {
                actions.push(Action::DeclareDead { session, beat });
            }
            self.others.insert(session, seen);
        }
        if self.adopted.is_none_or(|last| now.saturating_sub(last) > self.lease) {
            self.adopted = Some(now);
            actions.push(Action::Adopt);
        }
        actions
    }
}

/// How many executions a node may claim, or begin at once: never more than it has free slots, because what it
/// holds and does not run waits for it alone. `held` are those that run, are claimed or are being asked for. One that
/// drains is given only what no other node can run.
pub(crate) const fn free_slots(slots: u32, held: u32) -> u32 {
    slots.saturating_sub(held)
}

/// What is known of an execution whose session has ended without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Orphan {
    /// Whether it may have begun to run: a node runs nothing before that is stored.
    pub is_begun: bool,
    /// How often it was claimed.
    pub claims: u32,
    /// Whether its secrets were in the memory of the session's process.
    pub has_secrets: bool,
    /// Whether its caller wants it to end.
    pub is_cancelled: bool,
}

/// What becomes of such an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Back to the front of its subject's queue.
    Requeued,
    /// Its end is `killed`: it is not run again.
    Killed,
    /// Its end is `cancelled`.
    Cancelled,
    /// Its end is `error`: its secrets are gone.
    SecretsGone,
    /// Its end is `error`: no node could begin it.
    NeverBegun,
}

impl Orphan {
    /// At most once: what may have begun is never begun again.
    pub const fn fate(self) -> Fate {
        match self {
            Self { is_begun: true, .. } => Fate::Killed,
            Self { is_cancelled: true, .. } => Fate::Cancelled,
            Self { has_secrets: true, .. } => Fate::SecretsGone,
            Self { claims, .. } if claims >= MAX_CLAIMS => Fate::NeverBegun,
            Self { .. } => Fate::Requeued,
        }
    }
}

/// What a node does with an execution that its session holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adoption {
    /// It is known here.
    Known,
    /// It was claimed, and the answer was lost: it is begun as any other.
    Begin,
    /// It is stored as begun, and nothing of it runs here: it ends as `killed`.
    EndKilled,
}

/// What a node does with an execution that its session holds. Known is what was known *before* the session's
/// executions were asked for, and what is being claimed or accepted since.
pub(crate) const fn adopt(is_begun: bool, is_known: bool) -> Adoption {
    match (is_known, is_begun) {
        (true, _) => Adoption::Known,
        (false, false) => Adoption::Begin,
        (false, true) => Adoption::EndKilled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(1000);

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// What is declared dead if the node's beats are asked and answered at these times, and another session's
    /// beat is this.
    fn dead(answers: &[(u64, u64, i64)]) -> Vec<usize> {
        let mut observer = Observer::new(LEASE);
        let mut dead = Vec::new();
        for (index, &(asked, now, beat)) in answers.iter().enumerate() {
            let actions = observer.answered(at(asked), at(now), [(7, beat)]);
            if actions.contains(&Action::DeclareDead { session: 7, beat }) {
                dead.push(index);
            }
        }
        dead
    }

    #[test]
    fn session_is_dead_after_a_lease_without_a_beat() {
        let regular: Vec<_> = (0..8).map(|beat| (200 * beat, 200 * beat + 1, 5)).collect();
        assert_eq!(dead(&regular), [6, 7], "at 1200 ms: 1000 ms after 1 ms have not passed");
        let alive: Vec<_> =
            (0..20).map(|beat| (200 * beat, 200 * beat + 1, beat as i64 / 5)).collect();
        assert_eq!(dead(&alive), [0; 0]);
    }

    #[test]
    fn gap_in_the_own_beats_gives_every_session_a_whole_lease() {
        let answers = [(0, 1, 5), (200, 201, 5), (400, 60_000, 5), (60_200, 60_201, 5)];
        assert_eq!(dead(&answers), [0; 0]);
        let stopped = [(0, 1, 5), (200, 201, 5), (60_000, 60_001, 5), (60_200, 60_201, 5)];
        assert_eq!(dead(&stopped), [0; 0]);
    }

    #[test]
    fn answer_that_took_long_is_as_old_as_its_question() {
        let answers = [(0, 1, 5), (400, 401, 5), (800, 801, 5), (990, 1290, 5), (1300, 1301, 5)];
        assert_eq!(dead(&answers), [4]);
    }

    #[test]
    fn beat_that_fell_back_at_a_failover_is_another_beat() {
        let mut answers: Vec<_> = (0..5).map(|beat| (200 * beat, 200 * beat + 1, 9)).collect();
        answers.extend((5..10).map(|beat| (200 * beat, 200 * beat + 1, 8)));
        assert_eq!(dead(&answers), [0; 0]);
    }

    #[test]
    fn executions_are_compared_after_a_lost_answer_and_once_a_lease() {
        let mut observer = Observer::new(LEASE);
        let adopts = |observer: &mut Observer, now: u64| {
            observer.answered(at(now), at(now), []).contains(&Action::Adopt)
        };
        assert!(adopts(&mut observer, 0));
        assert!(!adopts(&mut observer, 200));
        observer.lost_answer();
        assert!(adopts(&mut observer, 400));
        assert!(!adopts(&mut observer, 1400));
        assert!(adopts(&mut observer, 1401));
    }

    #[test]
    fn what_may_have_begun_is_killed_and_nothing_else() {
        for bits in 0..8 {
            let [has_secrets, is_cancelled, was_claimed_often] =
                [1, 2, 4].map(|bit| bits & bit != 0);
            let claims = if was_claimed_often { MAX_CLAIMS } else { 1 };
            let fate = |is_begun| Orphan { is_begun, claims, has_secrets, is_cancelled }.fate();
            assert_eq!(fate(true), Fate::Killed);
            assert_ne!(fate(false), Fate::Killed);
            assert_eq!(fate(false) == Fate::Requeued, bits == 0);
        }
    }

    #[test]
    fn node_that_is_full_claims_nothing() {
        assert_eq!([free_slots(8, 3), free_slots(8, 8), free_slots(8, 9)], [5, 0, 0]);
    }
}
