//! Processes are where their sandbox is, and reached from everywhere.

use sandbox_store::fixture::Postgres;
use serde_json::{Value, json};

use super::nodes::{Cluster, LONG_LEASE};
use crate::conformance::terminals::WebSocket;
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually};
use crate::rootfs::{Provided, Rootfs};

#[test]
fn processes_and_terminals_are_used_through_another_node_and_end_with_their_own() {
    if !has(Feature::KeptProcesses) {
        return;
    }
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let mut cluster = Cluster::new(&place, Postgres::shared(), LONG_LEASE);
    let mut spec = json!({ "processes": "kept" });
    match &provided {
        Provided::Image(name) => {
            spec["image"] = json!(name);
            cluster.flags = vec!["--allowed-image".to_owned(), name.clone()];
        }
        _ => cluster.flags = provided.args(),
    }
    cluster.start(0);
    cluster.start(1);
    let request = json!({ "name": "kept", "spec": spec }).to_string();
    let created = cluster.call(0, "a").expect(201, "POST", "/v1/sandboxes", &request);
    let sandbox = format!("/v1/sandboxes/{}", created["id"].as_str().unwrap());
    let home = cluster.rows("SELECT node FROM sandboxes")[0][0].clone();
    let owner = usize::from(cluster.id(0) != home);
    let other = cluster.call(1 - owner, "a");
    let processes = format!("{sandbox}/processes");

    let cat = json!({ "command": { "program": "cat" }, "stdin": true, "tag": "echo" });
    let started = other.expect(201, "POST", &processes, &cat.to_string());
    assert_eq!((&started["id"], &started["state"]), (&json!(1), &json!("running")), "{started}");
    let cat = format!("{processes}/1");
    assert_eq!(other.exchange("POST", &format!("{cat}/stdin"), "hello\n").unwrap().0, 204);
    let listed = other.expect(200, "GET", &format!("{processes}?tag=echo"), "");
    assert_eq!(listed["processes"][0]["id"], 1, "{listed}");
    // No other subject has it at any node.
    assert_eq!(cluster.call(1 - owner, "b").exchange("GET", &cat, "").unwrap().0, 404);

    let shell = json!({
        "command": { "program": "sh" }, "pty": { "cols": 80, "rows": 24 }, "stdin": true,
    });
    let shell = other.expect(201, "POST", &processes, &shell.to_string())["id"].to_string();
    let path = format!("{processes}/{shell}/attach?after=0");
    let bearer = format!("authorization: Bearer {}\r\n", cluster.token("a"));
    let mut socket = WebSocket::open(&other.address.to_string(), &path, &bearer);
    socket.send(1, r#"{"resize":{"cols":97,"rows":41}}"#);
    socket.send(2, "stty size\r");
    socket.until("41 97");

    assert_eq!(other.exchange("POST", &format!("{cat}/stdin/close"), "").unwrap().0, 204);
    let (status, events) = other.exchange("GET", &format!("{cat}/events?after=0"), "").unwrap();
    assert_eq!(status, 200, "{events}");
    let events = events.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["start", "output", "exit", "end"], "{events:?}");
    assert_eq!(events[1]["text"], "hello\n");

    // What is frozen at its node is thawed through the other one.
    let paused = other.expect(200, "POST", &format!("{sandbox}/pause"), "");
    assert_eq!(paused["status"], "paused", "{paused}");
    eventually("it is listed as paused", || {
        let (_, list) = other.json("GET", "/v1/sandboxes?status=paused", "")?;
        (list["sandboxes"].as_array()?.len() == 1).then_some(())
    });
    let line = json!({ "command": { "shell": "echo used" } }).to_string();
    other.expect(200, "POST", &format!("{sandbox}/resume"), "");
    let ran = other.expect(200, "POST", &format!("{sandbox}/executions?wait=60"), &line);
    assert_eq!(ran["stdout"], "used\n", "{ran}");
    socket.send(2, "echo sti''ll here\r");
    socket.until("still here");

    cluster.kill(owner);
    let (status, _) = other.exchange("GET", &format!("{processes}/{shell}"), "").unwrap();
    assert!([502, 503].contains(&status), "{status}");
    cluster.start(owner);
    eventually("they are gone with their generation", || {
        let old = format!("{processes}/{shell}?generation=1");
        let (status, problem) = other.json("GET", &old, "")?;
        (status == 410).then(|| assert_eq!(problem["kind"], "gone"))
    });
    let ran = other.expect(200, "POST", &format!("{sandbox}/executions?wait=60"), &line);
    assert_eq!((&ran["stdout"], &ran["generation"]), (&json!("used\n"), &json!(2)), "{ran}");
    cluster.end();
}
