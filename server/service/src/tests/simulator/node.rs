//! A node: what its process remembers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::messages::{Call, ToNode};
use super::plan::{Chance, LEASE, Moment, Plan};
use super::tables::{End, Id, Session};
use crate::cluster::decide::{Observer, free_slots};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    On,
    Stopped,
    Off,
}

/// What becomes of messages between a node and the database.
#[derive(Debug, Clone, Copy, Default)]
pub struct Link {
    pub loses_requests: bool,
    pub loses_answers: bool,
    pub is_slow: bool,
}

/// Where an execution is on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Accepting,
    Marking,
    Running,
    Finishing(End),
}

#[derive(Debug)]
pub struct Node {
    pub power: Power,
    /// The number of its process, or of the last one.
    pub process: u64,
    pub link: Link,
    pub is_leaving: bool,
    /// It is stopped before it says that its next execution begins.
    pub stops_at_begin: bool,
    /// Since when its clock stands still.
    pub stopped_clock: Option<Moment>,
    /// For how long its clock stood still.
    pub lost_clock: Moment,
    /// What it hears when it is woken.
    pub inbox: Vec<ToNode>,
    pub session: Option<Session>,
    pub slots: u32,
    /// How fast its clock is, in millionths.
    pub rate: u64,
    pub observer: Observer,
    pub tasks: BTreeMap<Id, Step>,
    pub calls: BTreeMap<u64, (Call, Moment)>,
    pub next_call: u64,
    pub polls: u64,
    /// Slots that a claim or an acceptance asks for.
    pub is_claiming: Option<u32>,
    pub offered: BTreeSet<Id>,
    /// What was known when the session's executions were asked for.
    pub known: Option<BTreeSet<Id>>,
    pub must_adopt: bool,
    /// The lease by its own clock. Only a broken variant looks at it.
    pub leased_until: Moment,
}

impl Node {
    pub fn new(plan: &Plan, chance: &mut Chance) -> Self {
        Self {
            power: Power::Off,
            process: 0,
            link: Link::default(),
            is_leaving: false,
            stops_at_begin: false,
            stopped_clock: None,
            lost_clock: 0,
            inbox: Vec::new(),
            session: None,
            slots: plan.slots,
            rate: chance.between(990_000, 1_010_000),
            observer: Observer::new(Duration::from_micros(LEASE)),
            tasks: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            polls: 0,
            is_claiming: None,
            offered: BTreeSet::new(),
            known: None,
            must_adopt: false,
            leased_until: 0,
        }
    }

    /// Whether it has a session and nothing to run.
    pub fn is_idle(&self) -> bool {
        self.session.is_some() && self.tasks.is_empty()
    }

    pub const fn clock(&self, now: Moment) -> Moment {
        (now - self.lost_clock) / 1000 * self.rate / 1000
    }

    /// Forgets what a session was about.
    pub fn forget(&mut self) {
        self.session = None;
        self.observer = Observer::new(Duration::from_micros(LEASE));
        self.tasks.clear();
        self.calls.clear();
        self.is_claiming = None;
        self.offered.clear();
        self.known = None;
        self.must_adopt = false;
    }

    pub fn free_slots(&self) -> u32 {
        let asked = self.is_claiming.unwrap_or(0) as usize + self.offered.len();
        let held = self.tasks.values().filter(|step| **step != Step::Accepting).count() + asked;
        if self.is_leaving { 0 } else { free_slots(self.slots, held as u32) }
    }
}
