//! Agents that are hostile: each costs its own run, and nothing else. Memory and time stay
//! bounded, the result says what is known, and the container is gone at the end, which the
//! place asserts.

use std::os::unix::fs::symlink;
use std::time::Duration;

use sandbox_api::operation::{Exists, Read};
use sandbox_api::{Limits, SandboxSpec};
use sandbox_controller::{AgentSource, Sandbox};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::agent::{Actor, Played};
use crate::engine::engine;
use crate::engines::{Feature, has};
use crate::fixture::{eventually, finish, spawn, wait_and_watch};
use crate::library::{Library, kind_of};

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
        ("unknown-id", "unknown request (id 4711)"),
        ("deep", "nested"),
        ("not-utf8", "UTF-8"),
        ("nul", "malformed"),
        ("logs-for-ever", "limit in lines"),
        ("logs-an-entry-too-long", "limit in bytes"),
        ("logs-for-another", "unknown run"),
        ("result-too-large", "result over its limit"),
        ("result-of-4-mib", "result over its limit"),
        ("touches /etc/passwd", "outside the mounts"),
        ("touches /io/../etc/passwd", "a changed path is invalid"),
        ("touches /io", "outside the mounts"),
        ("touches relative", "a changed path is invalid"),
        ("chunk", "unknown stream"),
        ("credit", "unknown stream"),
        ("requests", "malformed"),
        ("refuses-for-ever", "more than 1000 refusals"),
        ("answers-hello-again", "unknown request (id 0)"),
    ] {
        // Longer than even a busy machine needs to see it.
        let played = actor.play(play, &["--timeout", "5m"]);
        played.assert("agent_lost", words, &honest);
        assert_eq!(played.ended.code, 122, "{play}");
        assert_eq!(played.document["error"]["kind"], "agent_lost", "{play}");
    }
}

#[test]
fn an_agent_that_exits_or_falls_silent_is_judged_by_evidence() {
    let actor = Actor::new();
    let honest = honest(&actor);
    for (play, status, words) in [
        ("exits 0", "agent_lost", "exit code 0 without an answer; agent stderr: last words"),
        ("exits 7", "agent_lost", "exit code 7"),
        ("child-holds-stdout", "timeout", "did not end within"),
        ("child-outlives-init", "agent_lost", "exit code 0"),
        ("says-nothing", "timeout", "did not end within"),
        ("never-reads", "timeout", "did not end within"),
        ("byte-a-second", "timeout", "did not end within"),
        ("cries-for-ever", "timeout", "did not end within"),
        ("touches-for-ever", "timeout", "did not end within"),
        ("internal-error", "agent_lost", "the engine is gone"),
        ("cancels-itself", "agent_lost", "without a cancel request"),
    ] {
        // Only who does nothing but wait is not given time, so that a busy machine changes nothing.
        let time = match (play, status) {
            ("child-holds-stdout", _) => "5s",
            (_, "timeout") => "1s",
            _ => "1m",
        };
        let played = actor.play(play, &["--timeout", time]);
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
    let closed = if engine().detects_closed_streams() { "agent_lost" } else { "timeout" };
    for (play, status) in [("closes 1", "timeout"), ("closes 1 2", closed)] {
        let time = if status == "timeout" { "5s" } else { "1m" };
        let played = actor.play(play, &["--timeout", time]);
        played.assert(status, "", &honest);
        assert_eq!(played.document["logs"], json!(["before"]), "{play}");
    }
}

#[test]
fn an_answer_stands_whatever_its_agent_does_besides() {
    let actor = Actor::new();
    let honest = honest(&actor);
    for play in ["ignores-shutdown", "cries", "child-outlives-the-answer"] {
        // A busy machine takes its time to read all that one of them cries.
        let played = actor.play(play, &["--timeout", "5m"]);
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
fn changes_claimed_by_an_agent_are_verified() {
    let actor = Actor::new();
    let honest = honest(&actor);
    symlink("/etc/passwd", actor.place.path("sandbox-files/link")).unwrap();
    let played = actor.play("lies-about-files", &[]);
    played.assert("ok", "", &honest);
    // An existing file is listed with its own size, a missing one as removed, and a link is not a
    // file.
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
fn an_agent_that_does_not_start_is_an_internal_error_with_its_reason() {
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
fn an_agent_that_greets_too_slowly_or_never_times_out() {
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

/// The outcome of a file operation with a scripted agent.
struct Operated {
    play: String,
    error: Value,
    code: i32,
    peak_kib: u64,
}

impl Operated {
    /// One operation, in a sandbox of its own, that may take `time`.
    fn new(actor: &Actor, play: &str, operation: &Value, time: &str) -> Self {
        actor.place.write("sandbox-files/play", play);
        let batch = actor.place.write("operations.ndjson", operation.to_string());
        let mut command = actor.command(&["fs", "batch", batch.to_str().unwrap()]);
        command.env("SANDBOXCTL_FILESYSTEM_TIMEOUT", time);
        let (ended, peak_kib) = wait_and_watch(spawn(command));
        let envelope: Value = serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|error| panic!("{play}: {error}: {ended:#?}"));
        let (play, error) = (play.to_owned(), envelope["error"].clone());
        Self { play, error, code: ended.code, peak_kib }
    }

    #[track_caller]
    fn assert(&self, kind: &str, words: &str, honest: &Played) {
        let Self { play, error, code, peak_kib } = self;
        assert_eq!(error["kind"], kind, "{play}: {error:#}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(words), "{play}: no {words:?} in {message:?}");
        assert_eq!(*code, if kind == "timeout" { 124 } else { 122 }, "{play}");
        let most = honest.peak_kib + MAX_GROWTH_KIB;
        assert!(*peak_kib < most, "{play}: {peak_kib} KiB, of at most {most}");
    }
}

#[test]
fn an_operation_whose_agent_breaks_the_protocol_is_agent_lost_in_bounded_memory() {
    let actor = Actor::new();
    let honest = honest(&actor);
    let read = json!({"operation": "read", "path": "/io/f", "limit": 1000});
    let read_all = json!({"operation": "read", "path": "/io/f"});
    let view = json!({"operation": "view", "path": "/io/f"});
    let list = json!({"operation": "list", "path": "."});
    let write = json!({"operation": "write", "path": "/io/f", "content": "x".repeat(1 << 20)});
    let small = json!({"operation": "write", "path": "/io/f", "content": "xyz"});
    let stat = json!({"operation": "stat", "path": "/io/f"});
    let exists = json!({"operation": "exists", "path": "/io/f"});
    let rename = json!({"operation": "rename", "from": "/io/f", "to": "/io/g"});
    for (play, operation, words) in [
        // Answers.
        ("answers-another-path", &read, "a different path"),
        ("answers-a-path-outside", &read, "a different path"),
        ("answers-as-another-operation", &stat, "malformed"),
        ("answers-as-another-operation", &rename, "malformed"),
        ("answers-with-extras", &exists, "malformed"),
        ("contradicts-itself", &exists, "contradicts itself"),
        ("exits-in-the-middle", &read, "exit code 7"),
        ("internal-error", &stat, "the engine is gone"),
        ("error-too-long", &stat, "over the size limit"),
        ("cancels-itself", &stat, "without a cancel request"),
        // What is no part of that operation.
        ("logs", &write, "unknown run"),
        ("refuses-for-ever", &write, "unknown run"),
        ("touches /io/f", &read, "unknown run"),
        ("touches /io/f", &list, "changes no files"),
        ("touches-for-ever", &write, "unknown run"),
        ("touches /io/f", &rename, "unknown run"),
        ("page-of-no-list", &list, "unknown list"),
        ("pages-for-ever", &read, "unknown list"),
        // Content that comes.
        ("chunk-of-no-stream", &read, "unknown stream"),
        ("chunk-of-no-stream", &write, "unknown stream"),
        ("chunks 3", &write, "unknown stream"),
        ("chunks 3", &stat, "unknown stream"),
        ("chunk-out-of-order", &read, "out of order"),
        ("chunk-after-the-last", &read, "after the last"),
        ("chunk-too-large", &read_all, "more than 65536 bytes"),
        ("chunk-that-is-none", &read, "malformed"),
        ("chunks 1001", &read, "beyond the stream's credit"),
        ("empty-chunks", &read, "an empty chunk"),
        ("empty-chunks", &view, "an empty chunk"),
        ("answers-another-length", &read, "length does not match"),
        ("credit-for-what-comes", &read, "unknown stream"),
        ("image-that-is-none", &view, "image type mismatch"),
        ("text-too-long", &view, "longer than a view"),
        // Lists.
        ("pages-for-ever", &list, "more entries than were asked for"),
        ("empty-pages", &list, "empty page"),
        ("huge-names", &list, "a name that is too long"),
        ("lists ../x", &list, "outside the directory"),
        ("lists /etc/passwd", &list, "outside the directory"),
        ("lists a/../b", &list, "outside the directory"),
        ("lists a//b", &list, "outside the directory"),
        ("lists .", &list, "outside the directory"),
        ("lists", &list, "outside the directory"),
        ("lists-another-number", &list, "length does not match"),
        // Content that goes.
        ("writes-nothing", &write, "before its end"),
        ("writes-another-length", &small, "length does not match"),
        ("absurd-credit", &write, "the credit of a stream exceeds"),
        ("credit-for-no-stream", &write, "unknown stream"),
    ] {
        // Longer than even a busy machine needs to see it.
        Operated::new(&actor, play, operation, "1m").assert("agent_lost", words, &honest);
    }
}

#[test]
fn an_operation_whose_agent_never_ends_it_has_its_deadline() {
    let actor = Actor::new();
    let honest = honest(&actor);
    let read = json!({"operation": "read", "path": "/io/f"});
    let list = json!({"operation": "list", "path": "."});
    let write = json!({"operation": "write", "path": "/io/f", "content": "x".repeat(1 << 20)});
    let stat = json!({"operation": "stat", "path": "/io/f"});
    for (play, operation) in [
        ("answers-nothing", &stat),
        ("answers-nothing", &list),
        ("answers-nothing", &read),
        ("stops-in-the-middle", &read),
        ("drips", &read),
        // It takes what its first credit lets through, and no more.
        ("answers-nothing", &write),
        ("hears-and-says-nothing", &write),
    ] {
        let operated = Operated::new(&actor, play, operation, "200ms");
        operated.assert("timeout", "filesystem.timeout (200ms)", &honest);
    }
}

#[test]
fn impossible_metadata_from_an_agent_is_corrected() {
    let actor = Actor::new();
    let stat = json!({"operation": "stat", "path": "/io/f"});
    actor.place.write("sandbox-files/play", "times-that-are-none");
    let batch = actor.place.write("operations.ndjson", stat.to_string());
    let ended = finish(actor.command(&["fs", "batch", batch.to_str().unwrap()]));
    let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
    let data = &envelope["data"];
    assert_eq!((&data["modified"], &data["created"]), (&json!(null), &json!(null)), "{data:#}");
    assert_eq!(data["mode"], "7777");
}

/// A sandbox of the library with a scripted agent.
struct ScriptedSandbox {
    // Dropped in this order.
    sandbox: Sandbox,
    library: Library,
    actor: Actor,
}

impl ScriptedSandbox {
    /// One whose operations may take `time`.
    fn new(play: &str, time: Duration) -> Self {
        let actor = Actor::new();
        actor.place.write("sandbox-files/play", play);
        let agent = AgentSource::File(actor.program().to_owned());
        let library = Library::with_agent(&actor.place, agent);
        let limits = Limits { operation_timeout: time, ..Limits::default() };
        let io_dir = actor.place.path("sandbox-files");
        let sandbox = library.launch(SandboxSpec::new().io_dir(io_dir).limits(limits));
        Self { sandbox, library, actor }
    }

    /// Waits until its container is killed, without further requests.
    fn wait_for_its_end(&self) {
        let containers = self.actor.place.containers();
        eventually("its container ends", || {
            containers.iter().all(|container| !engine().is_running(container)).then_some(())
        });
        let asked = self.library.wait(self.sandbox.call(Exists::new("f")));
        assert_eq!(kind_of(asked), "agent_lost");
    }
}

#[test]
fn a_cancel_that_is_never_answered_ends_the_sandbox() {
    let scripted = ScriptedSandbox::new("hears-and-says-nothing", Duration::from_secs(5));
    let heard = scripted.actor.place.path("sandbox-files/heard");
    // Dropped in the middle: it has asked, and nothing ever answers.
    scripted.library.wait(async {
        let is_heard = async {
            while !heard.exists() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = scripted.sandbox.read(Read::new("f"), None) => panic!("something has answered"),
            () = is_heard => {}
        }
    });
    scripted.wait_for_its_end();
}

#[test]
fn content_beyond_what_a_reader_has_room_for_ends_the_sandbox() {
    let scripted = ScriptedSandbox::new("chunks-beyond-credit", Duration::from_secs(60));
    let reader = scripted.library.wait(scripted.sandbox.reader(Read::new("f"))).unwrap();
    // Which reads nothing.
    scripted.wait_for_its_end();
    drop(reader);
}
