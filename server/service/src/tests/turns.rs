//! The queue in the database of a cluster, compared with the pure [`Schedule`].

use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sandbox_api::service::{ExecutionKind, Subject, Time};
use sandbox_api::{EngineKind, Limits, Status};
use sandbox_store::fixture::Postgres;
use sandbox_store::{
    Accepted, Cluster, DatabaseConfig, Finish, NewExecution, NewSession, Placement, Start, Store,
};

use crate::schedule::{Bounds, Schedule};

/// How much runs at one time: at the only node, and of a subject.
const SLOTS: usize = 5;
const LIMIT: usize = 2;

#[derive(Debug, Clone)]
enum Act {
    /// One of a subject is accepted; whether the node offers a slot.
    Accept(usize, bool),
    Next,
    /// The first one of a subject that runs has ended.
    Done(usize),
    /// One that waits is cancelled.
    Cancel(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0usize..4, any::<bool>()).prop_map(|(of, offers)| Act::Accept(of, offers)),
        4 => Just(Act::Next),
        2 => (0usize..4).prop_map(Act::Done),
        1 => (0usize..20).prop_map(Act::Cancel),
    ]
}

fn subject(number: usize) -> Subject {
    Subject::new(format!("s{number}")).unwrap()
}

struct Queue {
    store: Store,
    cluster: Cluster,
    session: i64,
    accepted: usize,
}

impl Queue {
    /// The id of a new execution, and whether it has begun.
    fn accept(&mut self, of: usize, offers: bool) -> (String, bool) {
        self.accepted += 1;
        let id = format!("{:024}", self.accepted);
        let start = Start {
            at: Time::now(),
            engine: EngineKind::Embedded,
            limits: Limits::default(),
            used: None,
            session: Some(self.session),
        };
        let new = NewExecution {
            id: id.clone(),
            subject: subject(of),
            kind: ExecutionKind::Script,
            request: "{}".to_owned(),
            has_secrets: false,
            key: None,
            created_at: Time::now(),
            start: offers.then_some(start),
            metadata: serde_json::Map::new(),
            image: None,
            sandbox: None,
            generation: None,
            events: Vec::new(),
            trace_parent: None,
            placement: Placement {
                session: self.session,
                subject_limit: LIMIT as u64,
                max_queued: 1000,
                max_queued_bytes: 1 << 20,
                ..Placement::default()
            },
        };
        match self.store.accept(new).unwrap() {
            Accepted::New => (id, offers),
            Accepted::Queued => (id, false),
            other => panic!("{other:?}"),
        }
    }

    fn next(&self) -> Option<String> {
        let claims = self.cluster.claim(self.session, 1, LIMIT as u64).unwrap();
        claims.claimed.first().map(|claimed| claimed.execution.summary.id.clone())
    }

    fn end(&self, id: &str, session: Option<i64>) {
        let end = Finish {
            id: id.to_owned(),
            status: Status::Ok,
            document: "{}".to_owned(),
            stored_bytes: 2,
            usage: None,
            ended_at: Time::now(),
            events: Vec::new(),
            session,
        };
        self.store.finish(end).unwrap();
    }
}

#[test]
fn turns_in_the_database_are_those_of_the_schedule() {
    static POSTGRES: LazyLock<Postgres> = LazyLock::new(Postgres::shared);
    let database = DatabaseConfig::new(POSTGRES.database());
    Store::initialize(&database, Some(Duration::from_secs(60))).unwrap();
    let store = Store::connect(&database).unwrap();
    let cluster = store.cluster().unwrap().clone();
    let node = NewSession {
        node: "node".to_owned(),
        name: "node".to_owned(),
        address: String::new(),
        certificate: [0; 32],
        version: String::new(),
        slots: SLOTS as u32,
        config_digest: String::new(),
    };
    let session = cluster.begin_session(&node).unwrap();
    let mut queue = Queue { store, cluster, session, accepted: 0 };
    let config = Config { cases: 16, failure_persistence: None, ..Config::default() };
    let acts = proptest::collection::vec(act(), 1..60);
    let queue = std::cell::RefCell::new(&mut queue);
    let compared = TestRunner::new(config).run(&acts, |acts| {
        let mut queue = queue.borrow_mut();
        let bounds = Bounds { running: SLOTS, running_of_one: LIMIT, waiting: 1000 };
        let mut schedule = Schedule::new(bounds);
        let mut running: Vec<(usize, String)> = Vec::new();
        let mut waiting: Vec<(usize, String)> = Vec::new();
        for act in acts {
            match act {
                Act::Accept(of, offers) => {
                    let offers = offers && schedule.running() < SLOTS;
                    // The database begins nothing at once while anything waits.
                    let may_begin = offers && schedule.waiting() == 0;
                    prop_assert!(schedule.reserve(&subject(of)));
                    let begins = may_begin && schedule.begin(&subject(of));
                    let (id, begun) = queue.accept(of, offers);
                    prop_assert_eq!(begun, begins);
                    match begun {
                        true => running.push((of, id)),
                        false => {
                            schedule.fill(&subject(of), id.clone(), of);
                            waiting.push((of, id));
                        }
                    }
                }
                Act::Next if schedule.running() < SLOTS => {
                    let expected = schedule.next();
                    let next = queue.next();
                    prop_assert_eq!(&next, &expected.map(|(_, id, _)| id));
                    let at = waiting.iter().position(|(_, id)| Some(id) == next.as_ref());
                    running.extend(at.map(|at| waiting.remove(at)));
                }
                Act::Next => {}
                Act::Done(of) => {
                    if let Some(at) = running.iter().position(|(subject, _)| *subject == of) {
                        let (_, id) = running.remove(at);
                        schedule.done(&subject(of));
                        queue.end(&id, Some(queue.session));
                    }
                }
                Act::Cancel(at) if at < waiting.len() => {
                    let (of, id) = waiting.remove(at);
                    prop_assert!(schedule.remove(&subject(of), &id).is_some());
                    queue.end(&id, None);
                }
                Act::Cancel(_) => {}
            }
            let counts = queue.cluster.counts_of(&subject(0)).unwrap();
            let expected = schedule.of(&subject(0));
            prop_assert_eq!((counts.queued as usize, counts.running as usize), expected);
        }
        running.iter().for_each(|(_, id)| queue.end(id, Some(queue.session)));
        waiting.iter().for_each(|(_, id)| queue.end(id, None));
        Ok(())
    });
    compared.unwrap();
}
