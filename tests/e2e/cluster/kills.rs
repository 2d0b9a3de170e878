//! Nodes that are killed, stopped and asked to end.

use std::collections::BTreeSet;

use rustix::process::Signal;
use sandbox_store::fixture::Postgres;
use serde_json::{Value, json};

use super::nodes::{Cluster, LEASE, LONG_LEASE, NODES};
use super::witness::{Runs, check_changes, record_changes};
use crate::fixture::{Fixture, eventually};

/// Runs until it is ended.
const LOOP: &str = "print('be' .. 'gun') while true do end";

/// A script that leaves a file of its number and takes so long.
fn leaves(number: usize, seconds: f64) -> String {
    let args = json!({ "name": number.to_string(), "seconds": seconds });
    let script = "local file = io.open(args.name, 'a') file:write('x') file:close() \
                  local since = os.clock() while os.clock() - since < args.seconds do end";
    json!({ "script": script, "args": args, "io": { "mode": "private" } }).to_string()
}

/// The events that an answer of a stream has.
fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

/// Rows 1 and 19.
#[test]
fn what_runs_on_a_node_that_is_killed_is_killed_and_its_readers_elsewhere_see_the_end() {
    let place = Fixture::new();
    let cluster = Cluster::started(&place, Postgres::shared(), LEASE);
    let id = cluster.run_on(0, "a", LOOP);
    let path = format!("/v1/executions/{id}/events");
    let wait = format!("/v1/executions/{id}?wait=60");
    std::thread::scope(|scope| {
        let (cluster, path, wait) = (&cluster, &path, &wait);
        // Before the node is killed it is forwarded, and then the store has what is left: one answer.
        let readers: Vec<_> = [1, 2]
            .map(|node| scope.spawn(move || cluster.call(node, "a").exchange("GET", path, "")))
            .into();
        let waiter = scope.spawn(move || cluster.call(1, "a").json("GET", wait, ""));
        eventually("its log to be stored", || {
            let logged = format!(
                "SELECT 1 FROM executions JOIN events ON seq = execution WHERE id = '{id}' AND json LIKE '%begun%'"
            );
            (!cluster.rows(&logged).is_empty()).then_some(())
        });
        cluster.kill(0);
        for reader in readers {
            let (status, text) = reader.join().unwrap().expect("a whole answer");
            assert_eq!(status, 200, "{text}");
            let events = events(&text);
            let numbers: Vec<_> =
                events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
            assert!(numbers.is_sorted_by(|before, after| before < after), "{numbers:?}");
            let names: Vec<_> =
                events.iter().map(|event| event["event"].as_str().unwrap()).collect();
            assert_eq!(names.iter().filter(|name| **name == "end").count(), 1, "{names:?}");
            assert_eq!(names.last(), Some(&"end"));
            assert!(names.contains(&"log"), "{names:?}");
        }
        let (_, document) = waiter.join().unwrap().expect("a whole answer");
        assert_eq!(document["status"], "killed", "{document:#}");
        let logs = document["logs"].as_array().unwrap();
        assert_eq!(logs[0], "begun", "the log so far: {document:#}");
    });
    assert_eq!(cluster.ended(2, "a", &id), cluster.ended(1, "a", &id));
    // The node comes back as a new one.
    cluster.start(0);
    let again = cluster.run_on(0, "a", LOOP);
    assert_eq!(
        cluster.call(1, "a").exchange("DELETE", &format!("/v1/executions/{again}"), "").unwrap().0,
        200
    );
    assert_eq!(cluster.ended(2, "a", &again)["status"], "cancelled");
    cluster.end();
}

/// Row 13.
#[test]
fn node_that_is_stopped_past_its_lease_commits_nothing_and_works_on() {
    let place = Fixture::new();
    let cluster = Cluster::new(&place, Postgres::shared(), LEASE);
    record_changes(&cluster);
    (0..NODES).for_each(|node| cluster.start(node));
    let short =
        "print('a') local since = os.clock() while os.clock() - since < 0.3 do end return 1";
    let ids = [cluster.run_on(0, "a", short), cluster.run_on(0, "a", LOOP)];
    let session = cluster.session(0);
    cluster.signal(0, Signal::STOP);
    // One of them may have ended before the node was stopped.
    let before = ids.clone().map(|id| cluster.ended(1, "a", &id));
    assert_eq!(before[1]["status"], "killed", "{:#}", before[1]);
    cluster.signal(0, Signal::CONT);
    assert_ne!(cluster.session_after(0, Some(&session)), session);
    // What it had is gone: nothing takes its slots, and nothing of it is on the engine.
    eventually("its containers to be gone", || place.containers().is_empty().then_some(()));
    cluster.run_on(0, "a", "local since = os.clock() while os.clock() - since < 0.3 do end");
    assert_eq!(ids.map(|id| cluster.ended(0, "a", &id)), before, "an end changed");
    check_changes(&cluster, usize::MAX);
    cluster.end();
}

/// Rows 3, 4 and 8: what waits is run and what had begun is killed, whatever died; a key has its id.
#[test]
fn everything_may_die_at_once_and_nothing_is_lost_or_repeated() {
    let place = Fixture::new();
    let mut cluster = Cluster::new(&place, Postgres::start(), LONG_LEASE);
    cluster.variables.push(("SANDBOXCTL_SERVER_CONCURRENCY", "2".to_owned()));
    record_changes(&cluster);
    (0..NODES).for_each(|node| cluster.start(node));
    let runs = Runs::watch(&cluster);
    let mut ids = Vec::new();
    for number in 0..20 {
        let call = cluster.call(number % NODES, "a").with("Idempotency-Key", &format!("k{number}"));
        let accepted = call.expect(202, "POST", "/v1/executions", &leaves(number, 0.5));
        ids.push(accepted["id"].as_str().unwrap().to_owned());
    }
    cluster.postgres.kill();
    (0..NODES).for_each(|node| cluster.kill(node));
    cluster.postgres.start_again();
    (0..NODES).for_each(|node| cluster.start(node));
    for (number, id) in ids.iter().enumerate() {
        let call =
            cluster.call((number + 1) % NODES, "a").with("Idempotency-Key", &format!("k{number}"));
        let again = call.expect(202, "POST", "/v1/executions", &leaves(number, 0.5));
        assert_eq!(again["id"], **id);
    }
    let ended: Vec<_> = ids.iter().map(|id| cluster.ended(0, "a", id)).collect();
    check_changes(&cluster, usize::MAX);
    let runs = runs.end();
    for (number, document) in ended.iter().enumerate() {
        let times = runs.get(&(number as u64)).copied().unwrap_or(0);
        match document["status"].as_str().unwrap() {
            "ok" => assert_eq!(times, 1, "{document:#}"),
            "killed" => assert!(times <= 1, "{document:#}"),
            _ => panic!("{document:#}"),
        }
    }
    let ok = ended.iter().filter(|document| document["status"] == "ok").count();
    assert!(ok >= 20 - 2 * NODES, "only what ran may be killed: {ok} are ok");
    cluster.end();
}

/// Row 25.
#[test]
fn drain_and_an_orderly_end_under_load_kill_nothing() {
    let place = Fixture::new();
    let mut cluster = Cluster::new(&place, Postgres::shared(), LONG_LEASE);
    cluster.variables.push(("SANDBOXCTL_SERVER_CONCURRENCY", "2".to_owned()));
    (0..NODES).for_each(|node| cluster.start(node));
    let mut ids = Vec::new();
    for number in 0..24 {
        let call = cluster.call(number % NODES, "a");
        let accepted = call.expect(202, "POST", "/v1/executions", &leaves(number, 0.3));
        ids.push(accepted["id"].as_str().unwrap().to_owned());
    }
    let url = cluster.postgres.url(&cluster.database);
    let drain = |verb: &str, node: usize| {
        place.sandboxctl(["cluster", verb, &cluster.id(node), "--database", &url]).assert_code(0);
    };
    drain("drain", 0);
    cluster.stop(1);
    let statuses: BTreeSet<_> = ids
        .iter()
        .map(|id| cluster.ended(2, "a", id)["status"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(statuses, BTreeSet::from(["ok".to_owned()]));
    // Drained: what is submitted there runs elsewhere.
    let id = cluster.call(0, "a").submit("return 1");
    assert_eq!(cluster.ended(0, "a", &id)["status"], "ok");
    assert_eq!(cluster.node_of(&id), Some(2));
    drain("undrain", 0);
    drain("drain", 2);
    let id = cluster.call(2, "a").submit("return 1");
    assert_eq!(cluster.ended(2, "a", &id)["status"], "ok");
    assert_eq!(cluster.node_of(&id), Some(0));
    drain("undrain", 2);
    cluster.end();
    // A node that is asked to end leaves no session that others wait for.
    assert_eq!(cluster.sessions().len(), 0);
}
