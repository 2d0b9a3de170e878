//! What happens: the order of events, the network, the database's outages, and the faults.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use super::check::Checker;
use super::messages::{Answer, Call, Draft, Event, Fault, Request, ToNode};
use super::node::{Link, Node, Power};
use super::plan::{Chance, Flaw, LEASE, Moment, Plan};
use super::tables::{Candidate, Execution, Id, NodeId, Subject, Tables};

const MILLISECOND: Moment = 1000;

struct Scheduled {
    at: Moment,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Up,
    Hung,
    Down,
}

/// A cluster, its clients and its faults.
pub struct World {
    pub plan: Plan,
    pub now: Moment,
    pub chance: Chance,
    pub tables: Tables,
    pub nodes: Vec<Node>,
    pub checker: Checker,
    /// Of every execution that was sent to the database, what is to run.
    pub drafts: BTreeMap<Id, Draft>,
    events: BinaryHeap<Scheduled>,
    next_number: u64,
    pub next_id: Id,
    next_key: u64,
    last_draft: Option<Draft>,
    database: Health,
    /// Commits that wait.
    waiting: Vec<Event>,
    database_clock: i64,
    pub steps: u64,
    is_over: bool,
}

impl World {
    pub fn new(plan: Plan, seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let nodes = (0..plan.nodes).map(|_| Node::new(&plan, &mut chance)).collect();
        let mut world = Self {
            now: 0,
            tables: Tables::new(plan.limit, plan.flaw),
            checker: Checker::new(plan.nodes),
            drafts: BTreeMap::new(),
            events: BinaryHeap::new(),
            next_number: 0,
            next_id: 1,
            next_key: 0,
            last_draft: None,
            database: Health::Up,
            waiting: Vec::new(),
            database_clock: 0,
            steps: 0,
            is_over: false,
            chance,
            nodes,
            plan,
        };
        for node in 0..plan.nodes {
            world.start_process(node);
        }
        for _ in 0..plan.submissions {
            let at = world.chance.below(plan.duration);
            let draft = world.draft();
            world.schedule_at(at, Event::Submit(draft));
        }
        for _ in 0..plan.faults {
            let at = world.chance.below(plan.duration);
            let fault = world.fault();
            let length = match world.chance.below(3) {
                // Long enough for another node to begin it.
                _ if matches!(fault, Fault::StopAtBegin(_)) => {
                    world.chance.between(LEASE + LEASE / 4, 3 * LEASE)
                }
                0 => world.chance.between(LEASE / 20, LEASE),
                1 => world.chance.between(LEASE / 2, 2 * LEASE),
                _ => world.chance.between(LEASE, 6 * LEASE),
            };
            world.schedule_at(at, Event::Fault(fault));
            world.schedule_at((at + length).min(plan.duration), Event::Heal(fault));
        }
        world
    }

    fn draft(&mut self) -> Draft {
        // Some callers send a request twice at one time, to two nodes.
        if let Some(last) = self.last_draft.take_if(|last| last.key.is_some())
            && self.chance.in_a_thousand(200)
        {
            return last;
        }
        let is_endless = self.chance.in_a_thousand(50);
        let has_key = is_endless || self.chance.in_a_thousand(600);
        self.next_key += 1;
        let draft = Draft {
            subject: self.chance.below(u64::from(self.plan.subjects)) as Subject,
            key: has_key.then_some(self.next_key),
            has_secrets: self.chance.in_a_thousand(50),
            is_endless,
        };
        self.last_draft = Some(draft);
        draft
    }

    fn fault(&mut self) -> Fault {
        let node = self.chance.below(self.plan.nodes as u64) as NodeId;
        match self.chance.below(25) {
            0..5 => Fault::Kill(node),
            5 => Fault::Term(node),
            6..9 => Fault::Stop(node),
            9 => Fault::Suspend(node),
            10..12 => Fault::Cut(node),
            12..15 => Fault::Mute(node),
            15..17 => Fault::Slow(node),
            17 => Fault::Drain(node),
            18 | 19 => Fault::DatabaseStop,
            20 => Fault::DatabaseHang,
            21..24 => Fault::StopAtBegin(node),
            _ => Fault::DatabaseClock(self.chance.below(7200) as i64 * 1_000_000 - 3_600_000_000),
        }
    }

    fn schedule_at(&mut self, at: Moment, event: Event) {
        self.next_number += 1;
        self.events.push(Scheduled { at, number: self.next_number, event });
    }

    pub fn schedule(&mut self, delay: Moment, event: Event) {
        self.schedule_at(self.now + delay, event);
    }

    /// Runs to the end: all faults are healed then, and what was accepted has time to end.
    pub fn run(&mut self) {
        let end = self.plan.duration + self.plan.patience;
        while let Some(Scheduled { at, event, .. }) = self.events.pop() {
            if at > end || self.is_over && self.is_quiet() {
                break;
            }
            if at >= self.plan.duration && !self.is_over {
                self.is_over = true;
                self.now = self.plan.duration;
                self.heal_all();
            }
            self.now = self.now.max(at);
            self.steps += 1;
            self.step(event);
            for change in std::mem::take(&mut self.tables.changes) {
                self.checker.changed(self.now, self.tables.limit, change);
            }
        }
    }

    /// Whether there is nothing left to do.
    fn is_quiet(&self) -> bool {
        let has_ended = self.checker.ended() == self.tables.executions.len();
        let is_idle = |node: &Node| node.power == Power::On && node.is_idle();
        has_ended
            && self.checker.has_no_request_open()
            && self.nodes.iter().all(is_idle)
            && self.tables.sessions.len() == self.nodes.len()
    }

    fn heal_all(&mut self) {
        self.database = Health::Up;
        for event in std::mem::take(&mut self.waiting) {
            self.schedule(MILLISECOND, event);
        }
        for node in 0..self.nodes.len() {
            for fault in
                [Fault::Stop(node), Fault::Suspend(node), Fault::Mute(node), Fault::Drain(node)]
            {
                self.heal(fault);
            }
            if self.nodes[node].power == Power::Off {
                self.start_process(node);
            }
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Arrival(call) => self.arrive(call),
            Event::Take { call, candidate, left, taken } => self.take(call, candidate, left, taken),
            Event::ToNode(node, process, what) => self.reach(node, process, what),
            Event::Submit(draft) => self.submit(draft),
            Event::Cancel(id) => self.cancel(id),
            Event::Fault(fault) => self.begin_fault(fault),
            Event::Heal(fault) => self.heal(fault),
        }
    }

    fn begin_fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(node) => self.kill(node),
            Fault::Term(node) => self.nodes[node].is_leaving = true,
            Fault::Stop(node) | Fault::Suspend(node) if self.nodes[node].power == Power::On => {
                self.nodes[node].power = Power::Stopped;
                self.nodes[node].stopped_clock =
                    matches!(fault, Fault::Suspend(_)).then_some(self.now);
            }
            Fault::Stop(_) | Fault::Suspend(_) => {}
            Fault::StopAtBegin(node) => self.nodes[node].stops_at_begin = true,
            Fault::Cut(node) => {
                self.nodes[node].link.loses_requests = true;
                self.nodes[node].link.loses_answers = true;
            }
            Fault::Mute(node) => self.nodes[node].link.loses_answers = true,
            Fault::Slow(node) => self.nodes[node].link.is_slow = true,
            Fault::Drain(node) => _ = self.tables.draining.insert(node),
            Fault::DatabaseStop => self.database = Health::Down,
            Fault::DatabaseHang if self.database == Health::Up => self.database = Health::Hung,
            Fault::DatabaseHang => {}
            Fault::DatabaseClock(jump) => self.database_clock += jump,
        }
    }

    fn heal(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(node) | Fault::Term(node) => {
                if self.nodes[node].power == Power::Off {
                    self.start_process(node);
                }
            }
            Fault::Stop(node) | Fault::StopAtBegin(node) | Fault::Suspend(node) => self.wake(node),
            Fault::Cut(node) | Fault::Mute(node) | Fault::Slow(node) => {
                self.nodes[node].link = Link::default();
                self.checker.unhealthy(node, self.now);
            }
            Fault::Drain(node) => _ = self.tables.draining.remove(&node),
            Fault::DatabaseStop | Fault::DatabaseHang => {
                self.database = Health::Up;
                for event in std::mem::take(&mut self.waiting) {
                    let delay = self.chance.between(0, 20 * MILLISECOND);
                    self.schedule(delay, event);
                }
            }
            Fault::DatabaseClock(_) => {}
        }
    }

    fn wake(&mut self, node: NodeId) {
        let its = &mut self.nodes[node];
        its.stops_at_begin = false;
        if its.power != Power::Stopped {
            return;
        }
        its.power = Power::On;
        its.lost_clock += its.stopped_clock.take().map_or(0, |since| self.now - since);
        let process = its.process;
        let mut inbox = std::mem::take(&mut its.inbox);
        // What was due at one time is done in any order.
        if !inbox.is_empty() && self.chance.in_a_thousand(500) {
            let middle = self.chance.below(inbox.len() as u64) as usize;
            inbox.rotate_left(middle);
        }
        self.checker.unhealthy(node, self.now);
        for what in inbox {
            self.schedule(0, Event::ToNode(node, process, what));
        }
    }

    /// A request of a node, on its way.
    pub fn send(&mut self, call: Call) {
        let link = self.nodes[call.node].link;
        if link.loses_requests {
            return self.checker.unhealthy(call.node, self.now);
        }
        let delay = self.latency(call.node);
        self.schedule(delay, Event::Arrival(call));
    }

    fn latency(&mut self, node: NodeId) -> Moment {
        let is_slow = self.nodes[node].link.is_slow || self.chance.in_a_thousand(3);
        if is_slow && self.chance.in_a_thousand(500) {
            self.checker.unhealthy(node, self.now);
            // An answer that comes after its timeout is not heard; what was asked is done.
            return self.chance.between(LEASE / 10, 2 * LEASE);
        }
        self.chance.between(MILLISECOND / 4, 4 * MILLISECOND)
    }

    /// When the database is not up: a request waits or fails.
    fn is_held_up(&mut self, node: NodeId, event: Event, call: &Call) -> bool {
        match self.database {
            Health::Up => return false,
            Health::Hung => self.waiting.push(event),
            Health::Down => self.answer_to(node, call, Answer::Lost),
        }
        true
    }

    fn answer_to(&mut self, node: NodeId, call: &Call, answer: Answer) {
        if self.nodes[node].link.loses_answers {
            return self.checker.unhealthy(node, self.now);
        }
        let delay = self.latency(node);
        self.schedule(
            delay,
            Event::ToNode(node, call.process, ToNode::Answer(call.number, answer)),
        );
    }

    fn arrive(&mut self, call: Call) {
        if self.is_held_up(call.node, Event::Arrival(call), &call) {
            return;
        }
        let clock = self.database_clock.saturating_add_unsigned(self.now);
        let answer = match call.request {
            Request::BeginSession => {
                Answer::Session(self.tables.begin_session(call.node, call.process, clock))
            }
            Request::Beat => Answer::Beat(self.tables.beat(call.session, clock)),
            Request::Claim(left) => {
                // Other transactions commit between its statements.
                return match self.tables.choose(call.session) {
                    Some(candidate) => {
                        let delay = self.chance.between(1, MILLISECOND);
                        self.schedule(
                            delay,
                            Event::Take { call, candidate, left, taken: Vec::new() },
                        );
                    }
                    None => self.answer_to(call.node, &call, Answer::Claimed(Vec::new())),
                };
            }
            Request::Accept(submission) => {
                Answer::Accepted(self.tables.accept(call.session, &submission))
            }
            Request::LookUp(submission) => {
                let found = self.tables.executions.get(&submission.id);
                let is_mine = |it: &Execution| {
                    it.is_begun && it.session == Some(call.session) && it.end.is_none()
                };
                Answer::Found { is_there: found.is_some(), is_mine: found.is_some_and(is_mine) }
            }
            Request::MarkRunning(id) => Answer::Written(self.tables.mark_running(call.session, id)),
            Request::Log(id) => Answer::Written(self.tables.append_log(call.session, id)),
            Request::Finish(id, end) => Answer::Written(self.tables.finish(call.session, id, end)),
            Request::Held => Answer::Held(self.tables.held(call.session)),
            Request::DeclareDead(session, beat) => {
                let is_there = |it: &Node| it.session == Some(session) && it.power == Power::On;
                let node = self.nodes.iter().position(is_there);
                if self.tables.declare_dead(session, beat)
                    && let Some(node) = node
                {
                    self.checker.declared_dead(call.sent, session, node);
                }
                Answer::Done
            }
            Request::Orphans => Answer::Orphans(self.tables.orphans()),
            Request::Requeue(id, session) => {
                self.tables.requeue(id, session);
                Answer::Done
            }
            Request::EndOrphan(id, session, end) => {
                self.tables.end_orphan(id, session, end);
                Answer::Done
            }
            Request::Cancel(id) => {
                self.tables.cancel(id);
                Answer::Done
            }
            Request::Leave => {
                self.tables.leave(call.session);
                Answer::Done
            }
        };
        self.answer_to(call.node, &call, answer);
    }

    fn take(&mut self, call: Call, candidate: Candidate, left: u32, mut taken: Vec<Id>) {
        match self.database {
            Health::Up => {}
            Health::Hung => return self.waiting.push(Event::Take { call, candidate, left, taken }),
            Health::Down => return self.answer_to(call.node, &call, Answer::Lost),
        }
        taken.extend(self.tables.take(candidate));
        let next = (left > 1).then(|| self.tables.choose(call.session)).flatten();
        match next {
            Some(candidate) => {
                let delay = self.chance.between(1, MILLISECOND);
                self.schedule(delay, Event::Take { call, candidate, left: left - 1, taken });
            }
            None => self.answer_to(call.node, &call, Answer::Claimed(taken)),
        }
    }

    fn reach(&mut self, node: NodeId, process: u64, what: ToNode) {
        let its = &mut self.nodes[node];
        match its.power {
            Power::On if its.process == process => self.hear(node, what),
            Power::Stopped if its.process == process => its.inbox.push(what),
            _ => {}
        }
    }

    fn submit(&mut self, draft: Draft) {
        if draft.key.is_some_and(|key| self.checker.is_acked(draft.subject, key)) {
            return;
        }
        self.checker.asks(&draft);
        // A caller with a key repeats its request until it has an answer; another one never knows.
        if draft.key.is_some() {
            let delay = self.chance.between(LEASE / 2, 2 * LEASE);
            self.schedule(delay, Event::Submit(draft));
        }
        let node = self.chance.below(self.nodes.len() as u64) as NodeId;
        let process = self.nodes[node].process;
        self.reach(node, process, ToNode::Submission(draft));
    }

    fn cancel(&mut self, id: Id) {
        if self.checker.is_cancelled(id) {
            return;
        }
        let node = self.chance.below(self.nodes.len() as u64) as NodeId;
        let process = self.nodes[node].process;
        self.reach(node, process, ToNode::Cancellation(id));
        let delay = self.chance.between(LEASE / 2, 2 * LEASE);
        self.schedule(delay, Event::Cancel(id));
    }

    /// A node answers a client that its request is accepted.
    pub fn ack(&mut self, draft: &Draft, id: Id) {
        if self.checker.acked(draft, id) && draft.is_endless {
            let delay = self.chance.between(0, 4 * LEASE);
            self.schedule(delay, Event::Cancel(id));
        }
    }

    pub fn has(&self, flaw: Flaw) -> bool {
        self.plan.flaw == Some(flaw)
    }
}
