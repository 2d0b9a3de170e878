//! What a node does when it hears something. What it decides is [`decide`](crate::cluster::decide)'s.

use std::collections::BTreeSet;
use std::time::Duration;

use super::messages::{Answer, Call, Draft, Event, Fault, Request, Timer, ToNode};
use super::node::{Power, Step};
use super::plan::{Flaw, LEASE, Moment};
use super::tables::{Accepted, Beat, End, Fenced, Id, NodeId, Session, Submission};
use super::world::World;
use crate::cluster::decide::{Action, Adoption, Fate, Orphan, adopt};

/// How long a node waits for an answer.
const TIMEOUT: Moment = LEASE / 2;
/// How long it waits until it repeats what failed, or looks for a free slot again.
const RETRY: Moment = LEASE / 20;
/// How long it waits until it asks for work again, if there was none.
const POLL: Moment = LEASE / 5;

impl World {
    pub fn start_process(&mut self, node: NodeId) {
        let its = &mut self.nodes[node];
        its.forget();
        its.power = Power::On;
        its.process += 1;
        its.is_leaving = false;
        its.stops_at_begin = false;
        its.inbox.clear();
        self.checker.unhealthy(node, self.now);
        self.ask(node, Request::BeginSession);
    }

    pub fn kill(&mut self, node: NodeId) {
        self.stop_runs(node);
        let its = &mut self.nodes[node];
        its.power = Power::Off;
        its.forget();
        its.inbox.clear();
        its.stopped_clock = None;
    }

    fn stop_runs(&mut self, node: NodeId) {
        let running = self.nodes[node].tasks.iter().filter(|(_, step)| **step == Step::Running);
        for (&id, _) in running {
            self.checker.run_stopped(id, self.now);
        }
    }

    fn later(&mut self, node: NodeId, delay: Moment, timer: Timer) {
        let process = self.nodes[node].process;
        self.schedule(delay, Event::ToNode(node, process, ToNode::Timer(timer)));
    }

    fn ask(&mut self, node: NodeId, request: Request) {
        let now = self.now;
        let its = &mut self.nodes[node];
        its.next_call += 1;
        let number = its.next_call;
        let session = its.session.unwrap_or(0);
        let call = Call { node, process: its.process, number, session, sent: now, request };
        let asked = its.clock(now);
        its.calls.insert(number, (call, asked));
        self.send(call);
        self.later(node, TIMEOUT, Timer::Timeout(number));
    }

    pub fn hear(&mut self, node: NodeId, what: ToNode) {
        match what {
            ToNode::Answer(number, answer) => {
                if let Some((call, asked)) = self.nodes[node].calls.remove(&number) {
                    self.answered(node, call, asked, answer);
                }
            }
            ToNode::Timer(Timer::Timeout(number)) => {
                if let Some((call, asked)) = self.nodes[node].calls.remove(&number) {
                    self.answered(node, call, asked, Answer::Lost);
                }
            }
            ToNode::Timer(timer) => self.timer(node, timer),
            ToNode::Submission(draft) => self.submission(node, draft),
            ToNode::Cancellation(id) if self.nodes[node].session.is_some() => {
                self.ask(node, Request::Cancel(id));
            }
            ToNode::Cancellation(_) => {}
        }
    }

    fn timer(&mut self, node: NodeId, timer: Timer) {
        let session = self.nodes[node].session;
        let is_current = |its: Session| session.unwrap_or(0) == its;
        match timer {
            Timer::Again(its, request) if is_current(its) => self.ask(node, request),
            Timer::Claim(poll) if self.nodes[node].polls == poll => self.claim(node),
            Timer::Says(its, id)
                if is_current(its) && self.nodes[node].tasks.get(&id) == Some(&Step::Running) =>
            {
                self.write(node, Request::Log(id));
            }
            Timer::Sweep(its) if is_current(its) => {
                self.ask(node, Request::Orphans);
                self.later(node, LEASE, timer);
            }
            Timer::RunEnds(its, id) if is_current(its) => self.end_run(node, id, End::Ok),
            _ => {}
        }
    }

    fn submission(&mut self, node: NodeId, draft: Draft) {
        let id = self.next_id;
        let has_slot = self.nodes[node].free_slots() > 0;
        let its = &mut self.nodes[node];
        if its.session.is_none() || its.is_leaving {
            return;
        }
        self.next_id += 1;
        if has_slot {
            its.offered.insert(id);
        }
        its.tasks.insert(id, Step::Accepting);
        self.drafts.insert(id, draft);
        if self.has(Flaw::AckBeforeCommit) {
            self.ack(&draft, id);
        }
        let Draft { subject, key, has_secrets, .. } = draft;
        self.ask(node, Request::Accept(Submission { id, subject, key, has_secrets, has_slot }));
    }

    /// Asks for as much work as there are free slots, one question at a time.
    fn claim(&mut self, node: NodeId) {
        let its = &mut self.nodes[node];
        if its.is_claiming.is_some() || its.known.is_some() || its.session.is_none() {
            return;
        }
        if std::mem::take(&mut its.must_adopt) {
            its.known = Some(its.tasks.keys().copied().collect());
            return self.ask(node, Request::Held);
        }
        let free = its.free_slots();
        if its.is_leaving && its.tasks.is_empty() {
            return self.ask(node, Request::Leave);
        }
        if free == 0 {
            return self.poll(node, RETRY);
        }
        its.is_claiming = Some(free);
        self.ask(node, Request::Claim(free));
    }

    fn poll(&mut self, node: NodeId, delay: Moment) {
        self.nodes[node].polls += 1;
        self.later(node, delay, Timer::Claim(self.nodes[node].polls));
    }

    /// A change that only the session which holds an execution may make.
    fn write(&mut self, node: NodeId, request: Request) {
        let now = self.now;
        let its = &self.nodes[node];
        // Checked, sent, and committed who knows when.
        if self.has(Flaw::FenceByTime) && its.clock(now) > its.leased_until {
            return self.again(node, request);
        }
        let session = its.session.unwrap_or(0);
        let begins = matches!(request, Request::MarkRunning(_));
        if begins && std::mem::take(&mut self.nodes[node].stops_at_begin) {
            self.nodes[node].power = Power::Stopped;
            return self.nodes[node].inbox.push(ToNode::Timer(Timer::Again(session, request)));
        }
        self.ask(node, request);
    }

    fn again(&mut self, node: NodeId, request: Request) {
        let session = self.nodes[node].session.unwrap_or(0);
        self.later(node, RETRY, Timer::Again(session, request));
    }

    fn answered(&mut self, node: NodeId, call: Call, asked: Moment, answer: Answer) {
        if matches!(answer, Answer::Lost) {
            self.nodes[node].observer.lost_answer();
        }
        match (call.request, answer) {
            (Request::BeginSession, Answer::Session(session)) => self.session_begun(node, session),
            (Request::Beat, Answer::Beat(beat)) => self.beat(node, asked, beat),
            (Request::Claim(_), answer) => {
                self.nodes[node].is_claiming = None;
                let delay = match answer {
                    Answer::Claimed(ids) => {
                        let is_empty = ids.is_empty();
                        for id in ids {
                            self.begin(node, id);
                        }
                        if is_empty { POLL } else { 0 }
                    }
                    _ => RETRY,
                };
                self.poll(node, delay);
            }
            (Request::Accept(new), Answer::Accepted(accepted)) => {
                self.accepted(node, &new, accepted)
            }
            (Request::Accept(new), _) => self.again(node, Request::LookUp(new)),
            (Request::LookUp(new), Answer::Found { is_there, is_mine }) => {
                if is_there {
                    self.acked(&new);
                }
                self.settle(node, new.id, if is_mine { Accepted::Begun } else { Accepted::Queued });
            }
            (Request::MarkRunning(id), Answer::Written(written)) => match written {
                // Only this task of this process asks for it.
                Fenced::Done | Fenced::Before => self.run_task(node, id, Step::Marking),
                Fenced::Refused => _ = self.nodes[node].tasks.remove(&id),
            },
            (Request::Log(id), Answer::Written(Fenced::Refused)) => {
                if self.nodes[node].tasks.remove(&id).is_some() {
                    self.checker.run_stopped(id, self.now);
                }
            }
            (Request::DeclareDead(..), Answer::Done) => self.ask(node, Request::Orphans),
            (Request::Log(_) | Request::DeclareDead(..), _) => {}
            // Who sweeps next sees what is left.
            (Request::Requeue(..) | Request::EndOrphan(..), _) => {}
            (Request::Finish(id, _), Answer::Written(_)) => _ = self.nodes[node].tasks.remove(&id),
            (Request::Held, answer) => {
                let known = self.nodes[node].known.take().unwrap_or_default();
                if let Answer::Held(held) = answer {
                    self.adopt(node, &known, held);
                }
                self.poll(node, 0);
            }
            (Request::Orphans, answer) => {
                if let Answer::Orphans(orphans) = answer {
                    self.sweep(node, orphans);
                }
            }
            (Request::Cancel(id), Answer::Done) => self.checker.cancelled(id),
            (Request::Cancel(_), _) => {}
            (Request::Leave, Answer::Done) => {
                self.nodes[node].forget();
                self.nodes[node].power = Power::Off;
                let delay = self.chance.below(LEASE);
                self.schedule(delay, Event::Heal(Fault::Term(node)));
            }
            (request, _) => self.again(node, request),
        }
    }

    fn session_begun(&mut self, node: NodeId, session: Session) {
        let its = &mut self.nodes[node];
        its.session = Some(session);
        its.leased_until = its.clock(self.now) + LEASE;
        self.ask(node, Request::Beat);
        self.claim(node);
        self.later(node, 0, Timer::Sweep(session));
    }

    fn beat(&mut self, node: NodeId, asked: Moment, beat: Beat) {
        let now = self.nodes[node].clock(self.now);
        let Beat::Renewed { others, cancelled, clock } = beat else {
            // It is declared dead: it ends all that it has and begins anew.
            self.stop_runs(node);
            self.nodes[node].forget();
            return self.ask(node, Request::BeginSession);
        };
        let its = &mut self.nodes[node];
        its.leased_until = asked + LEASE;
        let beats = others.iter().map(|(session, row)| (*session, row.beat));
        let [asked, answered] = [asked, now].map(Duration::from_micros);
        let mut actions = its.observer.answered(asked, answered, beats);
        let interval = its.observer.interval().as_micros() as u64;
        if self.has(Flaw::DeathByDatabaseClock) {
            actions.retain(|action| *action == Action::Adopt);
            let is_old = |beat_at: i64| clock - beat_at > LEASE as i64;
            let dead = others.iter().filter(|(_, row)| is_old(row.beat_at));
            actions.extend(
                dead.map(|&(session, row)| Action::DeclareDead { session, beat: row.beat }),
            );
        }
        for action in actions {
            match action {
                Action::DeclareDead { session, beat } => {
                    self.ask(node, Request::DeclareDead(session, beat));
                }
                Action::Adopt => {
                    self.nodes[node].must_adopt = true;
                    self.claim(node);
                }
            }
        }
        for id in cancelled {
            self.end_run(node, id, End::Cancelled);
        }
        let session = self.nodes[node].session.unwrap_or(0);
        let spent = answered.saturating_sub(asked).as_micros() as u64;
        self.later(node, interval.saturating_sub(spent), Timer::Again(session, Request::Beat));
    }

    fn acked(&mut self, new: &Submission) {
        if let Some(draft) = self.drafts.get(&new.id).copied() {
            self.ack(&draft, new.id);
        }
    }

    fn accepted(&mut self, node: NodeId, new: &Submission, accepted: Accepted) {
        match accepted {
            Accepted::Begun | Accepted::Queued => self.acked(new),
            Accepted::Same(id) => {
                if let Some(draft) = self.drafts.get(&new.id).copied() {
                    self.ack(&draft, id);
                }
            }
            Accepted::Fenced => {}
        }
        self.settle(node, new.id, accepted);
    }

    /// What was accepted runs here, or is the queue's. It may have been claimed meanwhile, by this node too.
    fn settle(&mut self, node: NodeId, id: Id, accepted: Accepted) {
        let its = &mut self.nodes[node];
        its.offered.remove(&id);
        match accepted {
            Accepted::Begun => self.run_task(node, id, Step::Accepting),
            _ if its.tasks.get(&id) == Some(&Step::Accepting) => _ = its.tasks.remove(&id),
            _ => {}
        }
    }

    /// Begins what was claimed.
    fn begin(&mut self, node: NodeId, id: Id) {
        let is_here = self.nodes[node].tasks.get(&id).is_some_and(|step| *step != Step::Accepting);
        if !is_here {
            self.nodes[node].tasks.insert(id, Step::Marking);
            self.write(node, Request::MarkRunning(id));
        }
    }

    /// Runs what waits in this step.
    fn run_task(&mut self, node: NodeId, id: Id, after: Step) {
        let its = &mut self.nodes[node];
        match its.tasks.get_mut(&id) {
            Some(step) if *step == after => *step = Step::Running,
            _ => return,
        }
        let session = its.session.unwrap_or(0);
        self.checker.run_began(id, self.now);
        for _ in 0..self.chance.below(3) {
            let delay = self.chance.below(LEASE);
            self.later(node, delay, Timer::Says(session, id));
        }
        if self.drafts.get(&id).is_some_and(|draft| !draft.is_endless) {
            let seconds = match self.chance.below(4) {
                0 => LEASE / 100,
                1 | 2 => LEASE / 4,
                _ => 2 * LEASE,
            };
            let delay = self.chance.between(seconds / 10, seconds);
            self.later(node, delay, Timer::RunEnds(session, id));
        }
    }

    fn end_run(&mut self, node: NodeId, id: Id, end: End) {
        if let Some(step) = self.nodes[node].tasks.get_mut(&id)
            && *step == Step::Running
        {
            *step = Step::Finishing(end);
            self.checker.run_stopped(id, self.now);
            self.write(node, Request::Finish(id, end));
        }
    }

    /// Ends what sessions held that are gone. Several nodes may do it at one time.
    fn sweep(&mut self, node: NodeId, orphans: Vec<(Id, Option<Session>, Orphan)>) {
        for (id, session, orphan) in orphans {
            let end = match orphan.fate() {
                Fate::Killed if self.has(Flaw::RequeueOfBegun) => None,
                Fate::Requeued => None,
                Fate::Killed => Some(End::Killed),
                Fate::Cancelled => Some(End::Cancelled),
                Fate::SecretsGone | Fate::NeverBegun => Some(End::Error),
            };
            match (end, session) {
                (Some(end), session) => self.ask(node, Request::EndOrphan(id, session, end)),
                (None, Some(session)) => self.ask(node, Request::Requeue(id, session)),
                (None, None) => {}
            }
        }
    }

    fn adopt(&mut self, node: NodeId, known: &BTreeSet<Id>, held: Vec<(Id, bool)>) {
        for (id, is_begun) in held {
            let is_known = known.contains(&id) || self.nodes[node].tasks.contains_key(&id);
            match adopt(is_begun, is_known) {
                Adoption::Known => {}
                Adoption::Begin => self.begin(node, id),
                Adoption::EndKilled => {
                    self.nodes[node].tasks.insert(id, Step::Finishing(End::Killed));
                    self.write(node, Request::Finish(id, End::Killed));
                }
            }
        }
    }
}
