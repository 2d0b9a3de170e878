use std::collections::BTreeMap;

use proptest::prelude::*;
use sandbox_api::service::Subject;

use super::check::Promise;
use super::plan::{Flaw, LEASE};
use super::tables::{Accepted, End, Submission, Tables};
use super::*;
use crate::schedule::{Bounds, Schedule};

/// How many histories a test runs: the first number for each commit, the second one in `./scripts/test full`, which
/// takes a seed of its own.
fn seeds(commit: u64, full: u64) -> std::ops::Range<u64> {
    #[expect(clippy::disallowed_methods, reason = "what a test runs, not what a node decides")]
    let variable = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    if let Some(seed) = variable("SIMULATION_SEED") {
        return seed..seed + 1;
    }
    match variable("SANDBOX_TEST_SEED") {
        Some(seed) => seed..seed + full,
        None => 1..1 + commit,
    }
}

#[test]
fn every_history_keeps_every_promise() {
    let (mut steps, mut executions, mut declared_dead) = (0, 0, 0);
    for seed in seeds(250, 5_000) {
        let plan = Plan::of(seed, None);
        let report = run(plan, seed);
        assert!(
            report.violations.is_empty(),
            "SIMULATION_SEED={seed} ({plan:?}) breaks:\n{:#?}",
            report.violations
        );
        steps += report.steps;
        executions += report.executions;
        declared_dead += report.declared_dead;
    }
    println!(
        "{steps} steps, {executions} executions, {declared_dead} declared dead that were only not heard"
    );
}

/// What a flaw breaks at least, of the promises.
#[track_caller]
fn assert_caught(flaw: Flaw, expected: &[Promise]) {
    let mut broken: BTreeMap<Promise, (u64, String)> = BTreeMap::new();
    for seed in seeds(300, 3000) {
        let report = run(Plan::of(seed, Some(flaw)), seed);
        for violation in report.violations {
            broken.entry(violation.promise).or_insert((seed, violation.what));
        }
        if expected.iter().all(|promise| broken.contains_key(promise)) {
            println!("{flaw:?}: {broken:#?}");
            return;
        }
    }
    panic!("{flaw:?} is not caught: of {expected:?} it breaks {broken:#?}");
}

#[test]
fn protocol_without_a_fence_is_caught() {
    let expected = [Promise::OneAnswer, Promise::AtMostOnce, Promise::Events, Promise::Usage];
    assert_caught(Flaw::NoFence, &expected);
}

#[test]
fn fence_by_time_is_caught() {
    assert_caught(Flaw::FenceByTime, &[Promise::AtMostOnce]);
}

#[test]
fn claim_before_count_is_caught() {
    assert_caught(Flaw::ClaimBeforeCount, &[Promise::Limit]);
}

#[test]
fn acknowledgement_before_commit_is_caught() {
    assert_caught(Flaw::AckBeforeCommit, &[Promise::NothingIsLost]);
}

#[test]
fn death_by_the_databases_clock_is_caught() {
    assert_caught(Flaw::DeathByDatabaseClock, &[Promise::NoFalseDeath]);
}

#[test]
fn requeue_of_what_had_begun_is_caught() {
    assert_caught(Flaw::RequeueOfBegun, &[Promise::AtMostOnce]);
}

#[test]
fn history_comes_again_with_its_seed() {
    for seed in seeds(5, 5) {
        let [first, second] = [0; 2].map(|_| run(Plan::of(seed, None), seed));
        assert_eq!((first.steps, first.executions), (second.steps, second.executions));
    }
}

#[test]
#[ignore = "a million events of one cluster: `./scripts/test full` runs it"]
fn long_history_keeps_every_promise() {
    let first = seeds(1, 1).start;
    let plan = Plan {
        nodes: 50,
        slots: 4,
        subjects: 30,
        limit: 12,
        submissions: 60_000,
        faults: 1500,
        duration: 1500 * LEASE,
        patience: 2000 * LEASE,
        flaw: None,
    };
    let report = run(plan, first);
    println!("{} steps, {} executions", report.steps, report.executions);
    assert!(
        report.violations.is_empty(),
        "SIMULATION_SEED={first} breaks:\n{:#?}",
        report.violations
    );
    assert!(report.steps >= 1_000_000, "{} steps are too few", report.steps);
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Submit(u32),
    Claim,
    Finish(usize),
    Cancel(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0u32..4).prop_map(Act::Submit),
        3 => Just(Act::Claim),
        2 => (0usize..8).prop_map(Act::Finish),
        1 => (0u64..60).prop_map(Act::Cancel),
    ]
}

proptest! {
    /// The tables take turns as the queue of one process does, which the database's functions are held to as well.
    #[test]
    fn tables_take_the_turns_of_the_schedule(
        acts in proptest::collection::vec(act(), 0..120),
        limit in 1usize..4,
    ) {
        let bounds = Bounds { running: usize::MAX, running_of_one: limit, waiting: 1000 };
        let mut schedule: Schedule<u64> = Schedule::new(bounds);
        let subject = |of: u32| Subject::new(format!("s{of}")).unwrap();
        let mut tables = Tables::new(limit, None);
        let session = tables.begin_session(0, 1, 0);
        let mut held: Vec<(u64, u32)> = Vec::new();
        for (id, act) in (0u64..).zip(acts) {
            match act {
                Act::Submit(of) => {
                    let new =
                        Submission { id, subject: of, key: None, has_secrets: false, has_slot: true };
                    let accepted = tables.accept(session, &new);
                    prop_assert!(schedule.reserve(&subject(of)));
                    let begins = schedule.begin(&subject(of));
                    prop_assert_eq!(accepted == Accepted::Begun, begins);
                    match begins {
                        true => held.push((id, of)),
                        false => schedule.fill(&subject(of), id.to_string(), id),
                    }
                }
                Act::Claim => {
                    let claimed = tables.choose(session).and_then(|candidate| tables.take(candidate));
                    let next = schedule.next();
                    prop_assert_eq!(claimed, next.as_ref().map(|next| next.2));
                    held.extend(claimed.map(|id| (id, tables.executions[&id].subject)));
                }
                Act::Finish(at) if at < held.len() => {
                    let (id, of) = held.remove(at);
                    tables.finish(session, id, End::Ok);
                    schedule.done(&subject(of));
                }
                Act::Finish(_) => {}
                Act::Cancel(id) => {
                    if held.iter().all(|(its, _)| *its != id)
                        && let Some(execution) = tables.executions.get(&id)
                    {
                        let (of, waits) = (execution.subject, execution.end.is_none());
                        tables.cancel(id);
                        prop_assert_eq!(schedule.remove(&subject(of), &id.to_string()).is_some(), waits);
                    }
                }
            }
        }
    }
}
