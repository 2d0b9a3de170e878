//! An engine that dies or hangs in the middle: a proxy before the real one, which fails at a chosen
//! request, or from a chosen answer on.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::engine::engine_socket;
use crate::fixture::{Ended, Fixture, eventually, spawn, wait};

#[derive(Clone, Copy)]
enum Fault {
    /// The connection closes.
    Dies,
    /// Nothing comes any more.
    Hangs,
}

#[derive(Clone, Copy)]
enum At {
    /// The first request with this text fails, and only that.
    Request(&'static str),
    /// The first request with this text that the engine does not refuse is served, and its answer
    /// fails.
    AnswerTo(&'static str),
    /// What follows the first answer with this text fails, on all connections. Only removals are
    /// served, so that a test need not wait for their time limit too.
    Answer(&'static str),
}

/// A proxy in front of the engine, which injects faults.
struct Proxy {
    socket: PathBuf,
    faulty: Arc<Faulty>,
}

struct Faulty {
    at: At,
    fault: Fault,
    hit: AtomicBool,
}

impl Proxy {
    fn new(place: &Fixture, at: At, fault: Fault) -> Self {
        let socket = place.path("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let faulty = Arc::new(Faulty { at, fault, hit: AtomicBool::new(false) });
        let shared = Arc::clone(&faulty);
        // Ends with the test process; it holds nothing but sockets.
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, faulty) = (client.unwrap(), Arc::clone(&shared));
                thread::spawn(move || faulty.serve(&client));
            }
        });
        Self { socket, faulty }
    }

    /// Runs a script through the proxy, and asserts that it got as far as the fault.
    fn run(&self, place: &Fixture, source: &str, args: &[&str]) -> Ended {
        place.write("faulty.luau", source);
        let host = format!("unix://{}", self.socket.display());
        let ended = place.sandboxctl(
            ["run", "--host", &host].into_iter().chain(args.iter().copied()).chain(["faulty.luau"]),
        );
        // What is asked for last may still be on its way when the command has ended.
        eventually("the fault is reached", || self.faulty.hit.load(Ordering::SeqCst).then_some(()));
        ended
    }
}

fn has(piece: &[u8], text: &str) -> bool {
    piece.windows(text.len()).any(|part| part == text.as_bytes())
}

impl Faulty {
    fn serve(&self, client: &UnixStream) {
        let engine = &UnixStream::connect(engine_socket()).unwrap();
        let is_lost = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                self.answers(engine, client, is_lost);
                _ = client.shutdown(Shutdown::Write);
            });
            self.requests(client, engine, is_lost);
            _ = engine.shutdown(Shutdown::Both);
        });
    }

    fn requests(&self, mut client: &UnixStream, mut engine: &UnixStream, is_lost: &AtomicBool) {
        let mut piece = [0; 64 << 10];
        while let Ok(size @ 1..) = client.read(&mut piece) {
            let fails = match self.at {
                At::Request(text) => has(&piece[..size], text) && self.is_first_hit(),
                At::AnswerTo(text) => {
                    is_lost.store(has(&piece[..size], text), Ordering::SeqCst);
                    false
                }
                At::Answer(_) => {
                    self.hit.load(Ordering::SeqCst) && !has(&piece[..size], "DELETE /")
                }
            };
            if fails {
                return self.fail(client, client);
            }
            if engine.write_all(&piece[..size]).is_err() {
                return;
            }
        }
    }

    fn answers(&self, mut engine: &UnixStream, mut client: &UnixStream, is_lost: &AtomicBool) {
        let mut piece = [0; 64 << 10];
        while let Ok(size @ 1..) = engine.read(&mut piece) {
            // Podman refuses at first, for want of a filter that it takes: it has made nothing then.
            let is_refusal = piece.starts_with(b"HTTP/1.1 500");
            if is_lost.load(Ordering::SeqCst) && !is_refusal && self.is_first_hit() {
                return self.fail(engine, client);
            }
            if client.write_all(&piece[..size]).is_err() {
                return;
            }
            if let At::Answer(text) = self.at
                && has(&piece[..size], text)
                && self.is_first_hit()
            {
                return self.fail(engine, client);
            }
        }
    }

    fn is_first_hit(&self) -> bool {
        !self.hit.swap(true, Ordering::SeqCst)
    }

    fn fail(&self, mut from: &UnixStream, client: &UnixStream) {
        match self.fault {
            Fault::Dies => _ = client.shutdown(Shutdown::Both),
            // Until the client gives up.
            Fault::Hangs => while matches!(from.read(&mut [0; 4 << 10]), Ok(1..)) {},
        }
    }
}

fn faulty_engine_is_125_and_leaves_nothing(at: At, fault: Fault) {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    // The image is there, so that the step under test is reached.
    place.run_json("return 1", &[]);
    let proxy = Proxy::new(&place, at, fault);
    let ended = proxy.run(&place, "return 1", &["--json"]);
    let document = place.document(ended.assert_code(125));
    assert_eq!(document["status"], "error", "{document:#}");
    assert_eq!(document["error"]["kind"], "engine");
    assert!(!place.path("sandbox-files").exists());
    // The engine is back: the next run removes what was left.
    place.run_json("return 1", &[]);
    eventually("nothing is left", || place.containers().is_empty().then_some(()));
}

#[test]
fn an_engine_that_dies_at_create_is_125() {
    faulty_engine_is_125_and_leaves_nothing(At::Request("/containers/create"), Fault::Dies);
}

#[test]
fn an_engine_that_dies_when_it_has_made_the_container_is_125() {
    faulty_engine_is_125_and_leaves_nothing(At::AnswerTo("/containers/create"), Fault::Dies);
}

#[test]
fn a_container_whose_controller_died_before_it_heard_of_it_is_removed() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    place.run_json("return 1", &[]);
    let proxy = Proxy::new(&place, At::AnswerTo("/containers/create"), Fault::Hangs);
    place.write("faulty.luau", "return 1");
    let host = format!("unix://{}", proxy.socket.display());
    let mut child = spawn(place.command(["run", "--host", &host, "--no-io", "faulty.luau"]));
    let container = eventually("the container is made", || place.containers().into_iter().next());
    child.kill().unwrap();
    child.wait().unwrap();
    // Its controller's lock was on another address of the same engine. Runs leave their own containers to
    // the engine, which may still be removing them.
    eventually("nothing is left", || {
        place.run_json("return 1", &[]);
        (!place.containers().contains(&container)).then_some(())
    });
}

#[test]
fn an_engine_that_dies_at_attach_is_125() {
    faulty_engine_is_125_and_leaves_nothing(At::Request("/attach?"), Fault::Dies);
}

#[test]
fn an_engine_that_dies_at_start_is_125() {
    faulty_engine_is_125_and_leaves_nothing(At::Request("/start"), Fault::Dies);
}

#[test]
fn an_engine_that_hangs_at_start_is_125() {
    faulty_engine_is_125_and_leaves_nothing(At::Request("/start"), Fault::Hangs);
}

#[test]
fn an_engine_that_hangs_at_create_is_125() {
    faulty_engine_is_125_and_leaves_nothing(At::Request("/containers/create"), Fault::Hangs);
}

#[test]
fn an_engine_that_dies_at_removal_loses_no_result() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    place.run_json("return 1", &[]);
    let ended = Proxy::new(&place, At::Request("DELETE /"), Fault::Dies).run(
        &place,
        "return 1",
        &["--json"],
    );
    let document = place.document(&ended);
    assert_eq!((&document["status"], &document["result"]), (&"ok".into(), &1.into()), "{ended:#?}");
    place.sandboxctl(["gc"]).assert_code(0);
    eventually("nothing is left", || place.containers().is_empty().then_some(()));
}

/// Says that it is under way, and does not end.
const UNDER_WAY: &str = r#"
    print("before")
    io.open("made", "w"):write("12345"):close()
    print("it is under way")
    while true do end
"#;

fn engine_that_fails_under_a_run_loses_nothing_of_it(fault: Fault) {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    place.run_json("return 1", &[]);
    let proxy = Proxy::new(&place, At::Answer("it is under way"), fault);
    // The deadline passes for any state of the engine, and a run whose engine dies is lost before.
    // The script gets as far as the fault before either, on a busy machine too.
    let (time, code, status, kind) = match fault {
        Fault::Hangs => ("5s", 124, "timeout", "timeout"),
        Fault::Dies => ("60s", 125, "error", "engine"),
    };
    let ended = proxy.run(&place, UNDER_WAY, &["--json", "--timeout", time, "--cpus", "0.2"]);
    let document = place.document(ended.assert_code(code));
    assert_eq!(document["status"], status, "{document:#}");
    assert_eq!(document["error"]["kind"], kind);
    assert!(document["error"]["hint"].is_string());
    let message = document["error"]["message"].as_str().unwrap();
    assert_eq!(message.contains("may not have ended"), code == 124, "{message}");
    assert_eq!(document["logs"], json!(["before", "it is under way"]));
    assert_eq!(document["files_touched"], json!([{"name": "made", "op": "write", "bytes": 5}]));
    assert_eq!(document["engine"], "docker");
    for key in ["id", "io_dir", "limits", "usage"] {
        assert!(!document[key].is_null(), "{key}: {document:#}");
    }
    place.run_json("return 1", &[]);
    eventually("nothing is left", || place.containers().is_empty().then_some(()));
}

#[test]
fn an_engine_that_hangs_under_a_run_loses_nothing_of_it() {
    engine_that_fails_under_a_run_loses_nothing_of_it(Fault::Hangs);
}

#[test]
fn an_engine_that_dies_under_a_run_loses_nothing_of_it() {
    engine_that_fails_under_a_run_loses_nothing_of_it(Fault::Dies);
}

#[test]
fn an_engine_that_dies_during_a_run_is_an_internal_error() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    place.run_json("return 1", &[]);
    let proxy = Proxy::new(&place, At::Answer("it is under way"), Fault::Dies);
    let ended = proxy.run(&place, UNDER_WAY, &["--cpus", "0.2"]);
    ended.assert_code(125).assert_stderr_has("error: ").assert_stderr_has("hint: ");
    assert_eq!(ended.stdout, "before\nit is under way\n");
    place.run_json("return 1", &[]);
    eventually("nothing is left", || place.containers().is_empty().then_some(()));
}

#[test]
fn a_second_ctrl_c_does_not_wait_for_an_engine_that_hangs() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let proxy = Proxy::new(&place, At::Request("DELETE /"), Fault::Hangs);
    place.write("loop.luau", "io.open('f', 'w'):write('x'):close() while true do end");
    let host = format!("unix://{}", proxy.socket.display());
    let mut child = spawn(
        place.command(["run", "--host", &host, "--cpus", "0.2", "--timeout", "60s", "loop.luau"]),
    );
    let interrupt = |child: &Child| kill_process(Pid::from_child(child), Signal::INT).unwrap();
    eventually("the script runs", || place.path("sandbox-files/f").exists().then_some(()));
    interrupt(&child);
    eventually("the removal is asked for, and hangs", || {
        proxy.faulty.hit.load(Ordering::SeqCst).then_some(())
    });
    assert!(child.try_wait().unwrap().is_none(), "one Ctrl-C waits for the removal");
    interrupt(&child);
    wait(child).assert_code(130);
    // The container that it did not wait for goes with the next command.
    place.sandboxctl(["gc"]).assert_code(0);
    eventually("nothing is left", || place.containers().is_empty().then_some(()));
}
