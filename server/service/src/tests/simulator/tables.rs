//! A model of the database: its tables, and what its functions do to them in one transaction.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::Flaw;
use crate::cluster::decide::Orphan;

/// An execution.
pub type Id = u64;
/// Who submitted it.
pub type Subject = u32;
/// A node's lease for all that it does.
pub type Session = i64;
/// A machine.
pub type NodeId = usize;

/// The end of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Ok,
    Killed,
    Cancelled,
    Error,
}

/// An event of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Queued,
    Started,
    Log,
    End,
}

/// A row of `executions`, with its events.
#[derive(Debug, Clone)]
pub struct Execution {
    pub subject: Subject,
    pub session: Option<Session>,
    pub claims: u32,
    pub is_begun: bool,
    /// The end and the number of the change that stored it.
    pub end: Option<(End, u64)>,
    pub is_cancelled: bool,
    /// The session whose process has its secrets.
    pub secrets_of: Option<Session>,
    /// By their numbers, in the order in which they were stored.
    pub events: Vec<(u64, Event)>,
}

impl Execution {
    fn push(&mut self, event: Event) {
        let last = self.events.iter().map(|&(number, _)| number).max();
        self.events.push((last.map_or(1, |last| last + 1), event));
    }

    const fn is_held(&self) -> bool {
        self.session.is_some() && self.end.is_none()
    }
}

/// A row of `sessions`.
#[derive(Debug, Clone, Copy)]
pub struct SessionRow {
    pub node: NodeId,
    /// Of this node.
    pub process: u64,
    pub beat: i64,
    /// By the database's clock, in microseconds. Only a broken variant looks at it.
    pub beat_at: i64,
}

/// A request that is to be accepted.
#[derive(Debug, Clone, Copy)]
pub struct Submission {
    pub id: Id,
    pub subject: Subject,
    pub key: Option<u64>,
    pub has_secrets: bool,
    /// Whether the node would begin it at once.
    pub has_slot: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    Begun,
    Queued,
    Same(Id),
    /// The session is over: it can have neither a slot nor secrets.
    Fenced,
}

/// What became of a change that only the session which holds the execution may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    Done,
    /// It was done before: the answer was lost.
    Before,
    Refused,
}

#[derive(Debug, Clone)]
pub enum Beat {
    Renewed { others: Vec<(Session, SessionRow)>, cancelled: Vec<Id>, clock: i64 },
    SessionLost,
}

/// What a claim chose, and what its second statement takes.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    pub subject: Subject,
    pub session: Session,
    session_is_there: bool,
}

/// A change that invariants are about, when it was committed.
#[derive(Debug, Clone, Copy)]
pub enum Change {
    Ended { id: Id, end: End },
    Held { subject: Subject, held: usize },
}

/// All tables.
#[derive(Debug)]
pub struct Tables {
    flaw: Option<Flaw>,
    /// How many of a subject are held at one time.
    pub limit: usize,
    pub executions: BTreeMap<Id, Execution>,
    pub keys: BTreeMap<(Subject, u64), Id>,
    pub queue: BTreeMap<(Subject, i64), Id>,
    pub shares: BTreeMap<Subject, u64>,
    pub sessions: BTreeMap<Session, SessionRow>,
    pub draining: BTreeSet<NodeId>,
    /// Documents that were accounted for, by subject.
    pub usage: BTreeMap<Subject, u64>,
    /// The index `held`.
    held: BTreeMap<Subject, usize>,
    /// The index `of_session`.
    of_session: BTreeMap<Session, BTreeSet<Id>>,
    next_session: Session,
    next_turn: u64,
    next_position: i64,
    next_change: u64,
    /// Since they were last taken.
    pub changes: Vec<Change>,
}

impl Tables {
    pub fn new(limit: usize, flaw: Option<Flaw>) -> Self {
        Self {
            flaw,
            limit,
            executions: BTreeMap::new(),
            keys: BTreeMap::new(),
            queue: BTreeMap::new(),
            shares: BTreeMap::new(),
            sessions: BTreeMap::new(),
            draining: BTreeSet::new(),
            usage: BTreeMap::new(),
            held: BTreeMap::new(),
            of_session: BTreeMap::new(),
            next_session: 1,
            next_turn: 1,
            next_position: 1,
            next_change: 1,
            changes: Vec::new(),
        }
    }

    pub fn held_of(&self, subject: Subject) -> usize {
        self.held.get(&subject).copied().unwrap_or(0)
    }

    /// Begins a session, and ends those of earlier processes of the node: its data directory is in use by one. Another
    /// one of the same process is not touched: this may be an attempt whose answer was lost, late.
    pub fn begin_session(&mut self, node: NodeId, process: u64, clock: i64) -> Session {
        let session = self.next_session;
        self.next_session += 1;
        self.sessions.retain(|_, row| row.node != node || row.process >= process);
        self.sessions.insert(session, SessionRow { node, process, beat: 0, beat_at: clock });
        session
    }

    pub fn beat(&mut self, session: Session, clock: i64) -> Beat {
        let Some(row) = self.sessions.get_mut(&session) else { return Beat::SessionLost };
        row.beat += 1;
        row.beat_at = clock;
        let others = self.sessions.iter().filter(|&(&other, _)| other != session);
        let others = others.map(|(&other, &row)| (other, row)).collect();
        let cancelled = self.ids_of(session).filter(|(_, it)| it.is_cancelled);
        let cancelled = cancelled.map(|(id, _)| id).collect();
        Beat::Renewed { others, cancelled, clock }
    }

    /// What a session holds.
    fn ids_of(&self, session: Session) -> impl Iterator<Item = (Id, &Execution)> {
        let ids = self.of_session.get(&session).into_iter().flatten();
        ids.filter_map(|&id| Some((id, self.executions.get(&id)?)))
    }

    /// The executions that a session holds, and whether they have begun.
    pub fn held(&self, session: Session) -> Vec<(Id, bool)> {
        self.ids_of(session).map(|(id, execution)| (id, execution.is_begun)).collect()
    }

    pub fn accept(&mut self, session: Session, new: &Submission) -> Accepted {
        if let Some(&id) = new.key.and_then(|key| self.keys.get(&(new.subject, key))) {
            return Accepted::Same(id);
        }
        let is_there = self.sessions.contains_key(&session);
        if new.has_secrets && !is_there {
            return Accepted::Fenced;
        }
        if let Some(key) = new.key {
            self.keys.insert((new.subject, key), new.id);
        }
        let may_run = |subject: Subject| self.held_of(subject) < self.limit;
        let waits = self.queue.keys().any(|&(subject, _)| may_run(subject));
        let begins = new.has_slot
            && is_there
            && !self.is_draining(session)
            && !waits
            && may_run(new.subject);
        let mut execution = Execution {
            subject: new.subject,
            session: None,
            claims: 0,
            is_begun: begins,
            end: None,
            is_cancelled: false,
            secrets_of: new.has_secrets.then_some(session),
            events: Vec::new(),
        };
        execution.push(Event::Queued);
        if begins {
            execution.push(Event::Started);
        }
        self.executions.insert(new.id, execution);
        match begins {
            true => self.hold(new.id, session),
            false => self.enqueue(new.id, Place::Back),
        }
        if begins { Accepted::Begun } else { Accepted::Queued }
    }

    fn enqueue(&mut self, id: Id, place: Place) {
        let Some(execution) = self.executions.get(&id) else { return };
        let subject = execution.subject;
        let mut waiting = self.queue.range((subject, i64::MIN)..=(subject, i64::MAX));
        let front = waiting.next().map(|(&(_, position), _)| position);
        if front.is_none() {
            let turn = self.next_turn();
            self.shares.insert(subject, turn);
        }
        let position = match place {
            Place::Front => front.unwrap_or(self.next_position) - 1,
            Place::Back => self.next_position,
        };
        self.next_position += 1;
        self.queue.insert((subject, position), id);
    }

    const fn next_turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    fn hold(&mut self, id: Id, session: Session) {
        let Some(execution) = self.executions.get_mut(&id) else { return };
        execution.session = Some(session);
        let subject = execution.subject;
        self.of_session.entry(session).or_default().insert(id);
        let held = self.held.entry(subject).or_default();
        *held += 1;
        self.changes.push(Change::Held { subject, held: *held });
    }

    /// An execution is not held any more.
    fn let_go(&mut self, id: Id) {
        let Some(execution) = self.executions.get(&id) else { return };
        let (Some(session), subject) = (execution.session, execution.subject) else { return };
        if self.of_session.get_mut(&session).is_some_and(|ids| ids.remove(&id)) {
            *self.held.entry(subject).or_default() -= 1;
        }
    }

    /// The first statement of a claim: whose turn it is.
    pub fn choose(&self, session: Session) -> Option<Candidate> {
        let has_work = |subject: Subject| self.first_for(subject, session).is_some();
        let may_run = |subject: Subject| self.held_of(subject) < self.limit;
        let shares =
            self.shares.iter().filter(|&(&subject, _)| has_work(subject) && may_run(subject));
        let (&subject, _) = shares.min_by_key(|&(_, turn)| turn)?;
        let session_is_there = self.sessions.contains_key(&session);
        Some(Candidate { subject, session, session_is_there })
    }

    fn is_draining(&self, session: Session) -> bool {
        self.sessions.get(&session).is_some_and(|row| self.draining.contains(&row.node))
    }

    /// The first of a subject that this session may run: secrets are in one process, and a node that drains is given
    /// nothing else.
    fn first_for(&self, subject: Subject, session: Session) -> Option<(i64, Id)> {
        let mut waiting = self.queue.range((subject, i64::MIN)..=(subject, i64::MAX));
        let is_draining = self.is_draining(session);
        let may = |id: &Id| {
            let secrets_of = self.executions.get(id).and_then(|execution| execution.secrets_of);
            secrets_of.map_or(!is_draining, |of| of == session)
        };
        waiting.find(|(_, id)| may(id)).map(|(&(_, position), &id)| (position, id))
    }

    /// The second statement of a claim, with the share locked: counts again, and takes the first. That the session
    /// was there when the claim began is all that it knows of it: the sweep ends what raced its death.
    pub fn take(&mut self, candidate: Candidate) -> Option<Id> {
        let Candidate { subject, session, session_is_there } = candidate;
        let counts = self.flaw != Some(Flaw::ClaimBeforeCount);
        if !session_is_there || counts && self.held_of(subject) >= self.limit {
            return None;
        }
        let (position, id) = self.first_for(subject, session)?;
        self.queue.remove(&(subject, position));
        let turn = self.next_turn();
        self.shares.insert(subject, turn);
        self.executions.get_mut(&id)?.claims += 1;
        self.hold(id, session);
        Some(id)
    }

    /// Whether this session may write what it has of this execution.
    fn is_fenced(&self, execution: &Execution, session: Session) -> bool {
        match self.flaw {
            Some(Flaw::NoFence) => false,
            Some(Flaw::FenceByTime) => execution.end.is_some(),
            _ => execution.end.is_some() || execution.session != Some(session),
        }
    }

    pub fn mark_running(&mut self, session: Session, id: Id) -> Fenced {
        let Some(execution) = self.executions.get(&id) else { return Fenced::Refused };
        if self.is_fenced(execution, session) {
            return Fenced::Refused;
        }
        let is_checked = !matches!(self.flaw, Some(Flaw::NoFence | Flaw::FenceByTime));
        if is_checked && execution.is_begun {
            return Fenced::Before;
        }
        if let Some(execution) = self.executions.get_mut(&id) {
            execution.is_begun = true;
            execution.push(Event::Started);
        }
        Fenced::Done
    }

    pub fn append_log(&mut self, session: Session, id: Id) -> Fenced {
        let Some(execution) = self.executions.get(&id) else { return Fenced::Refused };
        if self.is_fenced(execution, session) {
            return Fenced::Refused;
        }
        if let Some(execution) = self.executions.get_mut(&id) {
            execution.push(Event::Log);
        }
        Fenced::Done
    }

    pub fn finish(&mut self, session: Session, id: Id, end: End) -> Fenced {
        let Some(execution) = self.executions.get(&id) else { return Fenced::Refused };
        if self.is_fenced(execution, session) {
            let is_mine =
                execution.session == Some(session) && execution.end.is_some_and(|its| its.0 == end);
            return if is_mine { Fenced::Before } else { Fenced::Refused };
        }
        self.end(id, end);
        Fenced::Done
    }

    fn end(&mut self, id: Id, end: End) {
        self.let_go(id);
        let Some(execution) = self.executions.get_mut(&id) else { return };
        execution.end = Some((end, self.next_change));
        execution.push(Event::End);
        self.next_change += 1;
        *self.usage.entry(execution.subject).or_default() += 1;
        self.changes.push(Change::Ended { id, end });
    }

    /// Ends a session whose node is gone, if its beat is still this one.
    pub fn declare_dead(&mut self, session: Session, beat: i64) -> bool {
        let is_same = self.sessions.get(&session).is_some_and(|row| row.beat == beat);
        if is_same {
            self.sessions.remove(&session);
        }
        is_same
    }

    /// What sessions held that are not there, and what waits for the secrets of such a one.
    pub fn orphans(&self) -> Vec<(Id, Option<Session>, Orphan)> {
        let is_gone = |session: &Session| !self.sessions.contains_key(session);
        let held =
            self.of_session.iter().filter(|(session, _)| is_gone(session)).flat_map(|(_, ids)| ids);
        let waits_in_vain = |id: &&Id| {
            let execution = self.executions.get(id);
            execution
                .and_then(|execution| execution.secrets_of)
                .is_some_and(|session| is_gone(&session))
        };
        let ids = held.chain(self.queue.values().filter(waits_in_vain));
        let orphan = |&id| {
            let execution = self.executions.get(&id)?;
            let orphan = Orphan {
                is_begun: execution.is_begun,
                claims: execution.claims,
                has_secrets: execution.secrets_of.is_some(),
                is_cancelled: execution.is_cancelled,
            };
            Some((id, execution.session, orphan))
        };
        ids.filter_map(orphan).collect()
    }

    /// Puts what a session had claimed and not begun back into the queue, before all that its subject has there.
    pub fn requeue(&mut self, id: Id, session: Session) {
        let checks = self.flaw != Some(Flaw::RequeueOfBegun);
        let Some(execution) = self.executions.get(&id) else { return };
        let is_held = execution.session == Some(session) && execution.end.is_none();
        if !is_held || checks && execution.is_begun {
            return;
        }
        self.let_go(id);
        if let Some(execution) = self.executions.get_mut(&id) {
            execution.session = None;
            execution.is_begun = false;
        }
        self.enqueue(id, Place::Front);
    }

    /// Ends what a session held or, without one, what waits.
    pub fn end_orphan(&mut self, id: Id, session: Option<Session>, end: End) {
        let is_there =
            |execution: &Execution| execution.session == session && execution.end.is_none();
        if self.executions.get(&id).is_some_and(is_there) {
            self.queue.retain(|_, waiting| *waiting != id);
            self.end(id, end);
        }
    }

    /// A caller's wish; as durable as this answer.
    pub fn cancel(&mut self, id: Id) {
        let Some(execution) = self.executions.get_mut(&id) else { return };
        if execution.end.is_some() {
            return;
        }
        execution.is_cancelled = true;
        if !execution.is_held() {
            self.queue.retain(|_, waiting| *waiting != id);
            self.end(id, End::Cancelled);
        }
    }

    /// A node that has nothing to do any more ends its session itself: no other waits for a lease.
    pub fn leave(&mut self, session: Session) {
        self.sessions.remove(&session);
    }
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Front,
    Back,
}
