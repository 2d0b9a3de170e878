//! One key, at several nodes.

use std::collections::BTreeSet;

use sandbox_store::fixture::Postgres;
use serde_json::json;

use super::nodes::{Cluster, LONG_LEASE, NODES};
use crate::fixture::Fixture;

/// Rows 15, 16 and 35.
#[test]
fn key_is_one_execution_at_all_nodes_and_a_token_is_valid_and_revoked_at_all() {
    let place = Fixture::new();
    let cluster = Cluster::started(&place, Postgres::shared(), LONG_LEASE);
    let body = json!({ "script": "return 1" }).to_string();
    std::thread::scope(|scope| {
        for round in 0..20 {
            let key = format!("k{round}");
            let calls = (0..2 * NODES).map(|node| {
                let call = cluster.call(node % NODES, "a").with("Idempotency-Key", &key);
                let body = &body;
                scope.spawn(move || {
                    loop {
                        match call.json("POST", "/v1/executions", body).unwrap() {
                            (200 | 202, answer) => {
                                return answer["id"].as_str().unwrap().to_owned();
                            }
                            // At the node that is just accepting it.
                            (409, _) => {}
                            other => panic!("{other:?}"),
                        }
                    }
                })
            });
            let calls: Vec<_> = calls.collect();
            let ids: BTreeSet<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
            assert_eq!(ids.len(), 1, "{key} has {ids:?}");
        }
    });
    let other = json!({ "script": "return 2" }).to_string();
    for node in 0..NODES {
        let refused = cluster
            .call(node, "a")
            .with("Idempotency-Key", "k0")
            .expect(422, "POST", "/v1/executions", &other);
        assert_eq!(refused["kind"], "idempotency_key_reused", "{refused}");
    }
    // The keys of another subject are its own.
    cluster
        .call(1, "b")
        .with("Idempotency-Key", "k0")
        .expect(202, "POST", "/v1/executions", &other);

    let token = cluster.token("b");
    let url = cluster.postgres.url(&cluster.database);
    let id = cluster.rows("SELECT id FROM tokens WHERE subject = 'b'")[0][0].clone();
    place.sandboxctl(["token", "revoke", &id, "--database", &url]).assert_code(0);
    for node in 0..NODES {
        crate::fixture::eventually("it to be refused", || {
            let answer = cluster.call(node, "b").exchange("GET", "/v1/executions", "").unwrap();
            (answer.0 == 401).then_some(())
        });
    }
    assert!(!token.is_empty());
    cluster.end();
}
