//! Kept sandboxes are where they were made, and reached from everywhere.

use sandbox_store::fixture::Postgres;
use serde_json::{Value, json};

use super::nodes::{Cluster, LEASE, LONG_LEASE, NODES};
use crate::fixture::{Fixture, eventually};

/// Rows 31 and 32.
#[test]
fn kept_sandbox_is_used_from_every_node_and_ends_with_its_own() {
    let place = Fixture::new();
    let cluster = Cluster::started(&place, Postgres::shared(), LEASE);
    let body = json!({ "name": "kept" }).to_string();
    let created = cluster.call(0, "a").expect(201, "POST", "/v1/sandboxes", &body);
    let sandbox = created["id"].as_str().unwrap().to_owned();
    let home = cluster.rows("SELECT node FROM sandboxes")[0][0].clone();
    let owner = (0..NODES).find(|node| cluster.id(*node) == home).unwrap();
    let others: Vec<usize> = (0..NODES).filter(|node| *node != owner).collect();
    // A name is one sandbox, wherever it is asked for.
    for node in 0..NODES {
        let found = cluster.call(node, "a").expect(200, "POST", "/v1/sandboxes", &body);
        assert_eq!(found["id"], *sandbox);
        let listed = cluster.call(node, "a").expect(200, "GET", "/v1/sandboxes", "");
        assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 1, "{listed}");
    }
    let file = format!("/v1/sandboxes/{sandbox}/files/note.txt");
    assert_eq!(cluster.call(others[0], "a").exchange("PUT", &file, "hello").unwrap().0, 200);
    let run = format!("/v1/sandboxes/{sandbox}/executions?wait=60");
    let script = json!({ "script": "return fs.read('note.txt')" }).to_string();
    let ran = cluster.call(others[1], "a").expect(200, "POST", &run, &script);
    assert_eq!(ran["result"], "hello", "{ran:#}");
    // What only its subject has is found by no other subject at any node.
    for node in 0..NODES {
        assert_eq!(cluster.call(node, "b").exchange("GET", &file, "").unwrap().0, 404);
    }

    // Its node restarts: its files are there, in a new generation.
    cluster.kill(owner);
    let away = cluster.call(others[0], "a").exchange("GET", &file, "").unwrap();
    assert!([502, 503].contains(&away.0), "{away:?}");
    cluster.start(owner);
    eventually("its files to be there", || {
        let read = cluster.call(others[0], "a").exchange("GET", &file, "")?;
        (read == (200, "hello".to_owned())).then_some(())
    });
    let again = cluster.call(others[1], "a").expect(200, "POST", &run, &script);
    assert_eq!(again["result"], "hello", "{again:#}");
    assert!(again["generation"].as_u64() > ran["generation"].as_u64(), "{again:#}");

    // Its node is gone for good.
    cluster.kill(owner);
    eventually("the session of its node to end", || {
        cluster.sessions().iter().all(|row| row[1] != home).then_some(())
    });
    for node in &others {
        let (status, problem) = cluster.call(*node, "a").json("GET", &file, "").unwrap();
        assert_eq!((status, &problem["kind"]), (503, &json!("unavailable")), "{problem}");
    }
    let url = cluster.postgres.url(&cluster.database);
    place.sandboxctl(["cluster", "forget", &home, "--database", &url]).assert_code(0);
    for node in &others {
        let (status, _) = cluster.call(*node, "a").exchange("GET", &file, "").unwrap();
        assert!([404, 410].contains(&status), "{status}");
    }
    let made = cluster.call(others[0], "a").expect(201, "POST", "/v1/sandboxes", &body);
    assert_ne!(made["id"], *sandbox, "its name is free");
    let files = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    assert!(
        [200, 204]
            .contains(&cluster.call(others[1], "a").exchange("DELETE", &files, "").unwrap().0)
    );
    cluster.end();
}

/// The structured result of a script that an agent runs through a node.
fn run_as_agent(cluster: &Cluster<'_>, node: usize, script: &str) -> Value {
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {
            "name": "execute_script",
            "arguments": { "script": script },
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            },
        },
    });
    let call = cluster
        .call(node, "a")
        .with("Accept", "application/json, text/event-stream")
        .with("Mcp-Protocol-Version", "2026-07-28")
        .with("Mcp-Method", "tools/call")
        .with("Mcp-Name", "execute_script");
    let (status, body) = call.exchange("POST", "/mcp", &message.to_string()).expect("an answer");
    assert_eq!(status, 200, "node {node}: {body}");
    let event = body.lines().filter_map(|line| line.strip_prefix("data: {")).next_back();
    let json = event.map_or(body.clone(), |event| format!("{{{event}"));
    let answer: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(answer["result"]["isError"], false, "node {node}: {answer:#}");
    answer["result"]["structuredContent"]["result"].clone()
}

#[test]
fn agent_has_one_workspace_at_all_nodes() {
    let place = Fixture::new();
    let cluster = Cluster::started(&place, Postgres::shared(), LONG_LEASE);
    run_as_agent(&cluster, 0, "fs.write('note.txt', 'from node 0')");
    for node in 0..NODES {
        assert_eq!(
            run_as_agent(&cluster, node, "return fs.read('note.txt')"),
            "from node 0",
            "at {node}"
        );
    }
    run_as_agent(&cluster, 2, "fs.write('note.txt', 'from node 2')");
    assert_eq!(run_as_agent(&cluster, 1, "return fs.read('note.txt')"), "from node 2");
    cluster.end();
}
