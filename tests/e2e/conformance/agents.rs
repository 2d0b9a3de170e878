//! Agents that are hostile: each costs its own run, and nothing else. Memory and time stay
//! bounded, the result says what is known, and the container is gone at the end, which the
//! place asserts.

use std::os::unix::fs::symlink;

use serde_json::json;

use crate::ENGINE;
use crate::agent::{Actor, Played};
use crate::engines::{Feature, has};

/// More than an honest run takes: what the longest line, a full log and the list of changed
/// files need, and no trace of a gigabyte.
const MAX_GROWTH_KIB: u64 = 48 << 10;

fn honest(actor: &Actor) -> Played {
    let played = actor.play("honest", &[]);
    assert_eq!(played.document["status"], "ok", "{:#}", played.document);
    assert_eq!(played.document["logs"], json!(["hello"]));
    played
}

impl Played {
    #[track_caller]
    fn assert(&self, status: &str, words: &str, honest: &Played) {
        assert_eq!(self.document["status"], status, "{:#?}", self.ended);
        let message = self.document["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(words), "no {words:?} in {message:?}");
        assert!(
            self.peak_kib < honest.peak_kib + MAX_GROWTH_KIB,
            "{} KiB, an honest run {} KiB",
            self.peak_kib,
            honest.peak_kib
        );
    }
}

#[test]
fn a_breach_of_the_protocol_is_agent_lost_in_bounded_memory() {
    let actor = Actor::new();
    let honest = honest(&actor);
    for (play, words) in [
        ("endless-line", "longer"),
        ("endless-nesting", "longer"),
        ("empty-lines", "malformed"),
        ("unknown-id", "no request (id 4711)"),
        ("deep", "nested"),
        ("not-utf8", "UTF-8"),
        ("nul", "malformed"),
        ("logs-for-ever", "limit in lines"),
        ("logs-an-entry-too-long", "limit in bytes"),
        ("logs-for-another", "no run"),
        ("result-too-large", "result over its limit"),
        ("result-of-4-mib", "result over its limit"),
        ("touches /etc/passwd", "outside the mounts"),
        ("touches /io/../etc/passwd", "a changed path that is none"),
        ("touches /io", "outside the mounts"),
        ("touches relative", "a changed path that is none"),
        ("chunk", "no stream"),
        ("credit", "no stream"),
        ("requests", "malformed"),
        ("answers-hello-again", "no request (id 0)"),
    ] {
        let played = actor.play(play, &[]);
        played.assert("agent_lost", words, &honest);
        assert_eq!(played.ended.code, 122, "{play}");
        assert_eq!(played.document["error"]["kind"], "agent_lost", "{play}");
    }
}

#[test]
fn an_agent_that_ends_or_falls_silent_is_told_by_what_was_seen() {
    let actor = Actor::new();
    let honest = honest(&actor);
    for (play, status, words) in [
        ("exits 0", "agent_lost", "exit code 0 without an answer; its last words: last words"),
        ("exits 7", "agent_lost", "exit code 7"),
        ("child-holds-stdout", "timeout", "did not end within"),
        ("child-outlives-init", "agent_lost", "exit code 0"),
        ("says-nothing", "timeout", "did not end within"),
        ("never-reads", "timeout", "did not end within"),
        ("byte-a-second", "timeout", "did not end within"),
        ("cries-for-ever", "timeout", "did not end within"),
        ("touches-for-ever", "timeout", "did not end within"),
        ("error-of-ours", "agent_lost", "the engine is gone"),
        ("cancels-itself", "agent_lost", "nobody did"),
    ] {
        let played = actor.play(play, &["--timeout", "1s"]);
        played.assert(status, words, &honest);
        if ["exits 0", "exits 7", "child-holds-stdout", "child-outlives-init"].contains(&play) {
            assert_eq!(played.document["logs"], json!(["before"]), "{play}");
        }
    }
}

#[test]
fn a_stdout_that_closes_ends_the_run_at_its_deadline_at_the_latest() {
    let actor = Actor::new();
    let honest = honest(&actor);
    // Stdout and stderr are one stream to us, and not every engine ends it before the container.
    let closed = if ENGINE.tells_of_closed_streams() { "agent_lost" } else { "timeout" };
    for (play, status) in [("closes 1", "timeout"), ("closes 1 2", closed)] {
        let played = actor.play(play, &["--timeout", "1s"]);
        played.assert(status, "", &honest);
        assert_eq!(played.document["logs"], json!(["before"]), "{play}");
    }
}

#[test]
fn an_answer_stands_whatever_its_agent_does_besides() {
    let actor = Actor::new();
    let honest = honest(&actor);
    for play in ["ignores-shutdown", "cries", "child-outlives-the-answer"] {
        let played = actor.play(play, &[]);
        played.assert("ok", "", &honest);
        assert_eq!(played.document["result"], 1, "{play}");
    }
    // What comes after the answer to its one run changes nothing of it.
    for play in ["answers-twice", "child-speaks-after-the-end"] {
        let played = actor.play(play, &[]);
        played.assert("ok", "", &honest);
        assert_eq!((&played.document["result"], &played.document["logs"]), (&json!(1), &json!([])));
    }
}

#[test]
fn what_an_agent_says_of_files_is_looked_up() {
    let actor = Actor::new();
    let honest = honest(&actor);
    symlink("/etc/passwd", actor.place.path("sandbox-files/link")).unwrap();
    let played = actor.play("lies-about-files", &[]);
    played.assert("ok", "", &honest);
    // What is there is told by its own size, what is not there as gone, and a link is no file.
    let touched = &played.document["files_touched"];
    let of = |name: &str| touched.as_array().unwrap().iter().find(|file| file["name"] == name);
    assert_eq!(
        of("made"),
        Some(&json!({"name": "made", "op": "write", "bytes": 5})),
        "{touched:#}"
    );
    for name in ["never", "gone/deep", "link"] {
        assert!(of(name).is_none_or(|file| file["bytes"] == 0), "{touched:#}");
    }
    // It says that it used all there is, which no limit would have let it.
    let usage = &played.document["usage"];
    for key in ["cpu_ms", "peak_memory_bytes", "written_bytes"] {
        assert_eq!(usage[key], json!(null), "{usage:#}");
    }
}

#[test]
fn an_error_message_is_cut_or_refused_at_its_limit() {
    let actor = Actor::new();
    let honest = honest(&actor);
    let played = actor.play("error-too-long", &[]);
    played.assert("agent_lost", "", &honest);
    assert!(played.ended.stdout.len() < 100_000, "{} bytes", played.ended.stdout.len());
}

#[test]
fn an_agent_that_does_not_come_up_is_an_error_of_ours_with_its_reason() {
    let actor = Actor::new();
    let honest = honest(&actor);
    for (play, words) in [
        ("exits-at-once", "exit code 7"),
        ("floods-before-hello", "longer"),
        ("cries-before-hello", "exit code 3: "),
        ("speaks-first", "broke the protocol"),
        ("greets-with-garbage", "broke the protocol"),
        ("greets-with-extras", "broke the protocol"),
        ("another-version", "version 99"),
        ("another-mount", "names other mounts"),
        ("one-mount-more", "names other mounts"),
        ("another-identity", ""),
    ] {
        // Numbers of another kernel's say nothing: a file in the io dir proves it there.
        if play == "another-identity" && !has(Feature::MountNumbers) {
            assert_ne!(actor.play(play, &[]).document["status"], "error");
            continue;
        }
        let played = actor.play(play, &[]);
        played.assert("error", words, &honest);
        assert_eq!(played.ended.code, 125, "{play}");
        assert!(played.document["error"]["hint"].is_string(), "{play}: {:#}", played.document);
    }
    let message = actor.play("cries-before-hello", &[]).document["error"]["message"].to_string();
    assert!(message.contains("the very last words"), "{message}");
}

#[test]
fn an_agent_that_is_not_confined_is_refused_unless_the_policy_lets_it() {
    let actor = Actor::new();
    let refused = actor.play("unconfined", &[]);
    assert_eq!(refused.ended.code, 125, "{refused:#?}");
    let error = &refused.document["error"];
    assert!(error["message"].as_str().unwrap().contains("the kernel has none of it"), "{error:#}");
    assert!(error["hint"].as_str().unwrap().contains("--confinement best-effort"), "{error:#}");
    assert!(refused.document["confinement"].is_null());

    let let_through = actor.play("unconfined", &["--confinement", "best-effort"]);
    assert_eq!(let_through.ended.code, 0, "{let_through:#?}");
    let confinement = &let_through.document["confinement"];
    assert_eq!(confinement["seccomp"], false, "{confinement:#}");
    assert_eq!(confinement["missing"][0], "the kernel has none of it");
}

#[test]
fn an_agent_that_greets_too_slowly_or_never_is_given_up() {
    let actor = Actor::new();
    let honest = honest(&actor);
    for play in ["never-greets", "greets-slowly"] {
        let played = actor.play(play, &[]);
        played.assert("error", "", &honest);
        assert_eq!(played.ended.code, 125, "{play}");
        assert_eq!(played.document["error"]["kind"], "engine", "{:#}", played.document);
    }
}

#[test]
fn an_agent_that_breaks_the_protocol_before_its_run_runs_nothing() {
    let actor = Actor::new();
    let honest = honest(&actor);
    for play in ["breaks-before-the-run", "greets-twice"] {
        let played = actor.play(play, &[]);
        // The breach may be seen before the run is asked for, or after.
        let status = &played.document["status"];
        assert!(status == "error" || status == "agent_lost", "{play}: {:#}", played.document);
        played.assert(status.as_str().unwrap(), "", &honest);
        assert!([122, 125].contains(&played.ended.code), "{play}: {:#?}", played.ended);
    }
}
