//! What must hold in every history.

use std::collections::{BTreeMap, BTreeSet};

use super::messages::Draft;
use super::plan::{LEASE, Moment};
use super::tables::{Change, End, Event, Id, NodeId, Session, SessionRow, Subject, Tables};

/// A promise of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// Every execution that was acknowledged is there and ends.
    NothingIsLost,
    /// One execution a key, and one document an execution.
    OneAnswer,
    /// Begun at most once.
    AtMostOnce,
    /// A subject never holds more than its limit.
    Limit,
    /// The numbers of events rise; one `end`, and it is the last.
    Events,
    /// Nothing is left: neither rows of the queue nor sessions nor what they hold.
    NothingIsLeft,
    /// The usage is the sum over the documents.
    Usage,
    /// A node that is well is not declared dead.
    NoFalseDeath,
}

/// A promise that a history breaks.
#[derive(Debug, Clone)]
pub struct Violation {
    pub promise: Promise,
    pub what: String,
}

/// What was seen of a history.
#[derive(Debug)]
pub struct Checker {
    /// The id that callers were given, by subject and key, and those without a key.
    acked: BTreeMap<(Subject, u64), Id>,
    acked_ids: BTreeSet<Id>,
    asked: BTreeSet<(Subject, u64)>,
    cancelled: BTreeSet<Id>,
    ended: BTreeMap<Id, End>,
    /// When it began, and when it stopped.
    runs: BTreeMap<Id, Vec<(Moment, Option<Moment>)>>,
    /// When a node was last known not to be well.
    unhealthy: Vec<Moment>,
    pub declared_dead: usize,
    pub violations: Vec<Violation>,
}

impl Checker {
    pub fn new(nodes: usize) -> Self {
        Self {
            acked: BTreeMap::new(),
            acked_ids: BTreeSet::new(),
            asked: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            ended: BTreeMap::new(),
            runs: BTreeMap::new(),
            unhealthy: vec![0; nodes],
            declared_dead: 0,
            violations: Vec::new(),
        }
    }

    fn breaks(&mut self, promise: Promise, what: String) {
        // One history may break a promise thousands of times.
        if self.violations.len() < 100 {
            self.violations.push(Violation { promise, what });
        }
    }

    pub fn asks(&mut self, draft: &Draft) {
        self.asked.extend(draft.key.map(|key| (draft.subject, key)));
    }

    pub fn is_acked(&self, subject: Subject, key: u64) -> bool {
        self.acked.contains_key(&(subject, key))
    }

    pub fn has_no_request_open(&self) -> bool {
        self.asked.len() == self.acked.len()
    }

    /// Whether it is the first answer.
    pub fn acked(&mut self, draft: &Draft, id: Id) -> bool {
        if let Some(key) = draft.key {
            let first = *self.acked.entry((draft.subject, key)).or_insert(id);
            if first != id {
                let what = format!("key {key} of subject {} is {first} and {id}", draft.subject);
                self.breaks(Promise::OneAnswer, what);
            }
        }
        self.acked_ids.insert(id)
    }

    pub fn cancelled(&mut self, id: Id) {
        self.cancelled.insert(id);
    }

    pub fn is_cancelled(&self, id: Id) -> bool {
        self.cancelled.contains(&id)
    }

    pub fn ended(&self) -> usize {
        self.ended.len()
    }

    pub fn unhealthy(&mut self, node: NodeId, now: Moment) {
        self.unhealthy[node] = now;
    }

    /// The session of a process that is there and not stopped was declared dead.
    pub fn declared_dead(&mut self, decided: Moment, session: Session, node: NodeId) {
        self.declared_dead += 1;
        let well_for = decided.saturating_sub(self.unhealthy[node]);
        if well_for > LEASE {
            let what = format!(
                "session {session} of node {node}, which was well for {well_for} us, is declared dead at {decided}"
            );
            self.breaks(Promise::NoFalseDeath, what);
        }
    }

    pub fn run_began(&mut self, id: Id, now: Moment) {
        let runs = self.runs.entry(id).or_default();
        runs.push((now, None));
        if runs.len() > 1 {
            let what = format!("{id} runs {} times: {runs:?}", runs.len());
            self.breaks(Promise::AtMostOnce, what);
        }
    }

    pub fn run_stopped(&mut self, id: Id, now: Moment) {
        let last = self.runs.get_mut(&id).and_then(|runs| runs.last_mut());
        if let Some((_, end @ None)) = last {
            *end = Some(now);
        }
    }

    pub fn changed(&mut self, now: Moment, limit: usize, change: Change) {
        match change {
            Change::Ended { id, end } => {
                if let Some(before) = self.ended.insert(id, end) {
                    let what = format!("{id} ended as {before:?}, and at {now} as {end:?}");
                    self.breaks(Promise::OneAnswer, what);
                }
            }
            Change::Held { subject, held } if held > limit => {
                let what =
                    format!("{held} of subject {subject} are held at {now}, and {limit} may be");
                self.breaks(Promise::Limit, what);
            }
            Change::Held { .. } => {}
        }
    }

    /// Looks at the tables when all faults are healed and there was time for everything.
    pub fn finish(&mut self, tables: &Tables) {
        for id in self.acked_ids.clone() {
            match tables.executions.get(&id) {
                None => self
                    .breaks(Promise::NothingIsLost, format!("{id} was acknowledged and is gone")),
                Some(execution) if execution.end.is_none() => {
                    let what = format!("{id} was acknowledged and does not end: {execution:?}");
                    self.breaks(Promise::NothingIsLost, what);
                }
                Some(_) => {}
            }
        }
        let mut usage: BTreeMap<Subject, u64> = BTreeMap::new();
        for (id, execution) in &tables.executions {
            *usage.entry(execution.subject).or_default() += u64::from(execution.end.is_some());
            let numbers = execution.events.iter().map(|&(number, _)| number);
            let rise = numbers.is_sorted_by(|before, after| before < after);
            let ends = execution.events.iter().filter(|(_, event)| *event == Event::End).count();
            let is_last = execution.events.last().is_some_and(|(_, event)| *event == Event::End);
            if execution.end.is_some() && !(rise && ends == 1 && is_last) {
                self.breaks(Promise::Events, format!("of {id}: {:?}", execution.events));
            }
            if execution.end.is_none() {
                let what = format!("{id} has not ended: {execution:?}");
                self.breaks(Promise::NothingIsLeft, what);
            }
            if execution.end.is_some_and(|(end, _)| end == End::Ok) && !self.runs.contains_key(id) {
                self.breaks(Promise::AtMostOnce, format!("{id} is ok and never ran"));
            }
        }
        if usage != tables.usage {
            self.breaks(Promise::Usage, format!("{usage:?} is stored as {:?}", tables.usage));
        }
        for left in &tables.queue {
            self.breaks(Promise::NothingIsLeft, format!("in the queue: {left:?}"));
        }
        for (session, row) in &tables.sessions {
            let is_of_other =
                |(other, it): (&Session, &SessionRow)| other != session && it.node == row.node;
            if tables.sessions.iter().any(is_of_other) {
                self.breaks(Promise::NothingIsLeft, format!("session {session}: {row:?}"));
            }
        }
    }
}
