//! Tools of the host, and agents that were taken over: what they ask for is judged outside, so that they reach
//! no more than an honest script.

use serde_json::json;

use crate::agent::Actor;
use crate::servers;

#[test]
fn agent_that_was_taken_over_calls_no_tool_that_its_run_was_not_given() {
    let actor = Actor::new();
    let notes = actor.place.path("notes");
    std::fs::write(&notes, "").unwrap();
    let upstream = format!("fake={}", servers::mcp(&notes, &[]).join(" "));
    let given = ["--timeout", "5m", "--upstream", &*upstream, "--tool", "fake.list_*"];
    for (play, answer) in [
        ("calls fake.create_item", "policy"),
        ("calls fake.delete_item", "policy"),
        ("calls fake.LIST_ITEMS", "not_found"),
        ("calls fake.list_items\0", "not_found"),
        ("calls other.list_items", "not_found"),
        ("calls list_items", "not_found"),
        ("describes fake.delete_item", "not_found"),
    ] {
        let played = actor.play(play, &given);
        assert_eq!(played.document["status"], "ok", "{play}: {:#}", played.document);
        let answered = played.document["result"].as_str().unwrap();
        assert!(answered.contains(&format!("\"kind\":\"{answer}\"")), "{play}: {answered}");
    }
    let played = actor.play("searches item", &given);
    let answered = played.document["result"].as_str().unwrap();
    assert!(answered.contains("fake.list_items"), "{answered}");
    assert!(!answered.contains("fake.create_item"), "{answered}");
    // What no honest agent does ends its run.
    for play in ["calls-for-another fake.list_items", "calls-twice fake.list_items"] {
        let played = actor.play(play, &given);
        assert_eq!(played.document["status"], "agent_lost", "{play}: {:#}", played.document);
    }
    let played = actor.play("calls fake.list_items", &["--timeout", "5m"]);
    assert_eq!(played.document["status"], "agent_lost", "it has no tools: {:#}", played.document);
    let played = actor.play("calls-after-its-end fake.create_item", &given);
    assert_eq!(played.document["result"], json!(1), "{:#}", played.document);
    let noted = std::fs::read_to_string(&notes).unwrap();
    let called = noted.lines().filter(|line| line.starts_with("call "));
    assert!(called.clone().all(|line| line.starts_with("call list_items ")), "{noted}");
    assert!(called.count() <= 2, "{noted}");
}
