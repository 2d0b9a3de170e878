//! Networks that lose, hold and delay, between a node and the database and between nodes.

use std::time::Duration;

use sandbox_store::fixture::Postgres;
use serde_json::json;

use super::nodes::{Cluster, LEASE, LONG_LEASE, MIDDLE_LEASE, NODES};
use super::proxy::Flow;
use super::witness::{Runs, check_changes, record_changes};
use crate::fixture::{Fixture, eventually};

/// Rows 9, 10 and 34.
#[test]
fn partition_from_the_database_is_felt_when_it_is_longer_than_the_lease() {
    let place = Fixture::new();
    let cluster = Cluster::new(&place, Postgres::shared(), MIDDLE_LEASE);
    record_changes(&cluster);
    (0..NODES).for_each(|node| cluster.start(node));
    let session = cluster.session(0);
    let script = "local since = os.clock() while os.clock() - since < 0.5 do end return 'x'";

    let id = cluster.run_on(0, "a", script);
    cluster.nodes[0].database.partition();
    std::thread::sleep(MIDDLE_LEASE / 4);
    cluster.nodes[0].database.heal();
    assert_eq!(cluster.ended(1, "a", &id)["status"], "ok");
    assert_eq!(cluster.session(0), session, "it was declared dead");

    // It ends while no node can be reached, and is refused afterwards.
    let longer = "local since = os.clock() while os.clock() - since < 3 do end return 'x'";
    let id = cluster.run_on(0, "a", longer);
    cluster.nodes[0].database.partition();
    let document = cluster.ended(1, "a", &id);
    assert_eq!(document["status"], "killed", "{document:#}");
    cluster.nodes[0].database.heal();
    assert_ne!(cluster.session_after(0, Some(&session)), session);
    eventually("its containers to be gone", || place.containers().is_empty().then_some(()));
    assert_eq!(cluster.ended(0, "a", &id), document);
    let again = cluster.run_on(0, "a", script);
    assert_eq!(cluster.ended(2, "a", &again)["status"], "ok");

    // Without wake-ups what waits is found as well.
    (0..NODES).for_each(|node| cluster.nodes[node].database.reset());
    let submit = |number| cluster.call(number % NODES, "a").submit_in_time("return 1");
    let ids: Vec<_> = (0..30).map(submit).collect();
    for id in &ids {
        assert_eq!(cluster.ended(1, "a", id)["status"], "ok");
    }
    check_changes(&cluster, usize::MAX);
    cluster.end();
}

/// Row 12.
#[test]
fn changes_whose_answers_are_lost_are_made_once() {
    let place = Fixture::new();
    let cluster = Cluster::new(&place, Postgres::shared(), LEASE);
    record_changes(&cluster);
    (0..NODES).for_each(|node| cluster.start(node));
    let runs = Runs::watch(&cluster);
    let body = |number: u64| {
        let script = "local file = io.open(args.name, 'a') file:write('x') file:close() \
                      local since = os.clock() while os.clock() - since < 0.05 do end";
        json!({ "script": script, "args": { "name": number.to_string() }, "io": { "mode": "private" } }).to_string()
    };
    let mut ids = Vec::new();
    for number in 0..12u64 {
        let key = format!("k{number}");
        // Node 0 hears no answers for a while that is shorter than its lease.
        if number % 4 == 0 {
            cluster.nodes[0].database.set(Flow::Passes, Flow::IsLost);
        }
        let call = |node: usize| cluster.call(node, "a").with("Idempotency-Key", &key);
        let mute = call(0).within(LEASE / 4).json("POST", "/v1/executions", &body(number));
        cluster.nodes[0].database.heal();
        let known = eventually("an answer", || {
            match call(1).json("POST", "/v1/executions", &body(number)) {
                Some((200 | 202, answer)) => answer["id"].as_str().map(str::to_owned),
                _ => None,
            }
        });
        if let Some((200 | 202, answer)) = mute {
            assert_eq!(answer["id"], *known);
        }
        ids.push(known);
    }
    for id in &ids {
        let document = cluster.ended(2, "a", id);
        // One that was begun while no other node knew is not begun again.
        assert!(["ok", "killed"].contains(&document["status"].as_str().unwrap()), "{document:#}");
    }
    check_changes(&cluster, usize::MAX);
    for (number, times) in runs.end() {
        assert_eq!(times, 1, "{number} ran {times} times");
    }
    let executions = cluster.rows("SELECT count(*) FROM executions");
    assert_eq!(executions, [["12"]], "one a key");
    cluster.end();
}

/// Row 18.
#[test]
fn nodes_that_do_not_reach_each_other_lose_what_is_forwarded_alone() {
    let place = Fixture::new();
    let cluster = Cluster::started(&place, Postgres::shared(), LONG_LEASE);
    let created = cluster.call(0, "a").expect(
        201,
        "POST",
        "/v1/sandboxes",
        &json!({ "name": "kept" }).to_string(),
    );
    let sandbox = created["id"].as_str().unwrap();
    let owner = (0..NODES)
        .find(|node| cluster.id(*node) == cluster.rows("SELECT node FROM sandboxes")[0][0])
        .unwrap();
    let other = (owner + 1) % NODES;
    let file = format!("/v1/sandboxes/{sandbox}/files/a");
    assert_eq!(cluster.call(other, "a").exchange("PUT", &file, "x").unwrap().0, 200, "forwarded");
    let id = cluster.run_on(
        owner,
        "a",
        "print('a') local since = os.clock() while os.clock() - since < 1 do end return 7",
    );

    cluster.nodes[owner].peers.partition();
    let (status, text) = cluster.call(other, "a").exchange("GET", &file, "").unwrap();
    assert!([502, 503].contains(&status), "{status} {text}");
    // The store knows them.
    let waited =
        cluster.call(other, "a").expect(200, "GET", &format!("/v1/executions/{id}?wait=60"), "");
    assert_eq!((&waited["status"], &waited["result"]), (&json!("ok"), &json!(7)), "{waited:#}");
    let (_, events) = cluster
        .call(other, "a")
        .exchange("GET", &format!("/v1/executions/{id}/events"), "")
        .unwrap();
    assert!(events.contains("event: end") || events.contains("\"end\""), "{events}");

    cluster.nodes[owner].peers.heal();
    eventually("it to be forwarded again", || {
        let call = cluster.call(other, "a").within(Duration::from_secs(5));
        (call.exchange("GET", &file, "") == Some((200, "x".to_owned()))).then_some(())
    });
    cluster.end();
}
