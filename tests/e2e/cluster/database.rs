//! A database that is stopped, replaced by its standby, or another one.

use sandbox_store::fixture::{Postgres, Stop};
use serde_json::json;

use super::nodes::{Cluster, LONG_LEASE, MIDDLE_LEASE, NODES};
use crate::fixture::{Fixture, eventually};

/// Row 7, for less than a minute: longer than anybody's lease.
#[test]
fn outage_of_the_database_kills_nothing_and_is_said() {
    let place = Fixture::new();
    let mut cluster = Cluster::started(&place, Postgres::start(), MIDDLE_LEASE);
    let ids: Vec<_> = (0..NODES)
        .map(|node| {
            let script = "local since = os.clock() while os.clock() - since < 1 do end return 'x'";
            cluster.run_on(node, "a", script)
        })
        .collect();
    let sessions = cluster.sessions();
    cluster.postgres.stop(Stop::Immediate);
    let call = cluster.call(0, "a");
    let (status, problem) =
        call.json("POST", "/v1/executions", &json!({ "script": "return 1" }).to_string()).unwrap();
    assert_eq!((status, &problem["kind"]), (503, &json!("unavailable")), "{problem}");
    for node in 0..NODES {
        let ready =
            || cluster.call(node, "a").exchange("GET", "/readyz", "").map(|answer| answer.0);
        eventually("it not to be ready", || (ready() == Some(503)).then_some(()));
    }
    // What ran has ended by now, and more than a lease has passed.
    std::thread::sleep(MIDDLE_LEASE * 3 / 2);
    cluster.postgres.start_again();
    for id in &ids {
        let document = cluster.ended(1, "a", id);
        assert_eq!(
            (&document["status"], &document["result"]),
            (&json!("ok"), &json!("x")),
            "{document:#}"
        );
    }
    assert_eq!(cluster.sessions(), sessions, "no node was declared dead");
    for node in 0..NODES {
        let ready =
            || cluster.call(node, "a").exchange("GET", "/readyz", "").map(|answer| answer.0);
        eventually("it to be ready", || (ready() == Some(200)).then_some(()));
    }
    cluster.end();
}

/// Row 6.
#[test]
fn failover_to_a_synchronous_standby_loses_and_kills_nothing() {
    let place = Fixture::new();
    let primary = Postgres::start();
    let standby = primary.standby();
    let mut cluster = Cluster::new(&place, primary, LONG_LEASE);
    // The nodes find the primary by themselves, as with several hosts in the address.
    cluster.add_standby(standby.port());
    (0..NODES).for_each(|node| cluster.start(node));
    let running = cluster.run_on(
        0,
        "a",
        "local since = os.clock() while os.clock() - since < 2 do end return 'x'",
    );
    let sessions = cluster.sessions();
    let acked: Vec<_> =
        (0..10).map(|number| cluster.call(number % NODES, "a").submit("return 1")).collect();
    cluster.postgres.kill();
    standby.promote();
    cluster.postgres = standby;
    for id in acked.iter().chain([&running]) {
        let document = cluster.ended(1, "a", id);
        assert_eq!(document["status"], "ok", "{document:#}");
    }
    assert_eq!(cluster.sessions(), sessions, "no node was declared dead");
    let id = cluster.call(2, "a").submit("return 2");
    assert_eq!(cluster.ended(0, "a", &id)["result"], 2);
    cluster.end();
}

/// Row 30.
#[test]
fn data_directory_of_another_cluster_is_refused_and_stays_as_it_is() {
    let place = Fixture::new();
    let cluster = Cluster::new(&place, Postgres::shared(), LONG_LEASE);
    cluster.start(0);
    let id = cluster.call(0, "a").submit("return 1");
    assert_eq!(cluster.ended(0, "a", &id)["status"], "ok");
    cluster.stop(0);
    let other = cluster.postgres.database();
    place.sandboxctl(["database", "init", "--database", &other]).assert_code(0);
    let listen = ["--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"];
    let serve = ["serve", "--data-dir", "node0", "--database", &other];
    let refused = place.sandboxctl(serve.iter().chain(&listen));
    assert_ne!(refused.code, 0, "{refused:?}");
    refused.assert_stderr_has("cluster").assert_stderr_has("hint:");
    // Nor is it a service of its own.
    let alone = place.sandboxctl(["serve", "--data-dir", "node0", "--listen", "127.0.0.1:0"]);
    assert_ne!(alone.code, 0, "{alone:?}");
    alone.assert_stderr_has("is that of a node").assert_stderr_has("--database");
    cluster.start(0);
    assert_eq!(cluster.ended(0, "a", &id)["status"], "ok");
    cluster.end();
}
