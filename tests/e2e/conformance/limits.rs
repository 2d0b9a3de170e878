//! The limits that the container sets, met by a program that nothing else holds back.

use serde_json::json;

use crate::agent::Actor;
use crate::engine::engine;
use crate::engines::{Feature, has, out_of_memory};

#[test]
fn memory_that_runs_out_in_pid_1_is_a_limit_and_loses_no_log() {
    let actor = Actor::new();
    let played = actor.play("fills-memory", &["--memory", "32MiB", "--vm-memory", "8MiB"]);
    let document = &played.document;
    let (status, code, kind) = out_of_memory();
    assert_eq!(document["status"], status, "{document:#}");
    assert_eq!(document["error"]["kind"], kind);
    assert_eq!(document["exit_code"], code);
    assert_eq!(document["logs"], json!(["before"]));
}

#[test]
fn memory_that_runs_out_in_a_child_is_the_childs_end_alone() {
    let actor = Actor::new();
    let played = actor.play("child-fills-memory", &["--memory", "32MiB", "--vm-memory", "8MiB"]);
    if !has(Feature::OwnMemory) {
        assert_eq!(played.document["status"], "limit", "{:#}", played.document);
        return;
    }
    assert_eq!(played.document["status"], "ok", "{:#}", played.document);
    assert_eq!(played.document["result"], 1);
}

#[test]
fn threads_are_counted() {
    let actor = Actor::new();
    let played = actor.play("makes-threads", &["--pids", "20"]);
    if !has(Feature::OwnLimits) {
        // The kernel that stands between has more threads than that.
        assert_eq!(played.document["status"], "error", "{:#}", played.document);
        return;
    }
    let result = &played.document["result"];
    // The first thread is one of them. EAGAIN.
    assert_eq!(result["errno"], 11, "{:#}", played.document);
    assert!(result["made"].as_u64().unwrap() < 20, "{result}");
    assert!(result["made"].as_u64().unwrap() > 10, "{result}");
}

#[test]
fn processors_are_a_share() {
    let actor = Actor::new();
    let played = actor.play("spins", &["--cpus", "0.2"]);
    let result = &played.document["result"];
    let [cpu, wall] = ["cpu_ms", "wall_ms"].map(|key| result[key].as_u64().unwrap());
    if !has(Feature::OwnLimits) {
        // It estimates, and an estimate says nothing about its share.
        assert!(cpu <= wall, "{result}");
        return;
    }
    // A busy machine can only reduce its share; one period of the scheduler (100 ms) may run ahead.
    assert!(wall >= 1000 && cpu * 10 <= wall * 4, "{result}");
}

#[test]
fn a_loop_that_no_one_interrupts_is_killed_at_its_deadline() {
    let actor = Actor::new();
    let played = actor.play("says-nothing", &["--timeout", "300ms"]);
    assert_eq!(played.document["status"], "timeout", "{:#}", played.document);
    assert_eq!(played.document["usage"]["cpu_ms"].as_u64().is_some(), engine().reports_usage());
}
