//! An engine that dies or hangs in the middle: a proxy before the real one, which stops at a
//! chosen request.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::place::{Ended, Place, eventually};

#[derive(Clone, Copy)]
enum Fault {
    /// The connection closes.
    Dies,
    /// Nothing comes any more.
    Hangs,
}

/// Stands before the engine and applies `fault` to the first request that has `at` in it.
struct Proxy {
    socket: PathBuf,
    hit: Arc<AtomicBool>,
}

impl Proxy {
    fn new(place: &Place, at: &'static str, fault: Fault) -> Self {
        let socket = place.path("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let hit = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&hit);
        // Ends with the test process; it holds nothing but sockets.
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, seen) = (client.unwrap(), Arc::clone(&seen));
                thread::spawn(move || serve(&client, at, fault, &seen));
            }
        });
        Self { socket, hit }
    }

    fn host(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Runs a one-line script through the proxy, and asserts that it got as far as the fault.
    fn run(&self, place: &Place) -> Ended {
        place.write("one.luau", "return 1");
        let host = self.host();
        let ended = place.sandboxctl(["run", "--json", "--host", &host, "one.luau"]);
        assert!(self.hit.load(Ordering::SeqCst), "the fault was never reached: {ended:#?}");
        ended
    }
}

fn engine_socket() -> PathBuf {
    let host = std::env::var("DOCKER_HOST").unwrap_or_default();
    Path::new(host.strip_prefix("unix://").unwrap_or("/var/run/docker.sock")).to_owned()
}

fn serve(client: &UnixStream, at: &str, fault: Fault, hit: &AtomicBool) {
    let engine = UnixStream::connect(engine_socket()).unwrap();
    let (mut from_engine, mut to_client) =
        (engine.try_clone().unwrap(), client.try_clone().unwrap());
    let answers = thread::spawn(move || {
        _ = std::io::copy(&mut from_engine, &mut to_client);
        _ = to_client.shutdown(std::net::Shutdown::Write);
    });
    let mut piece = [0; 64 << 10];
    let mut client_in = client.try_clone().unwrap();
    loop {
        match client_in.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(size) => {
                let faulty = piece[..size].windows(at.len()).any(|text| text == at.as_bytes());
                if faulty && !hit.swap(true, Ordering::SeqCst) {
                    match fault {
                        Fault::Dies => {
                            _ = client.shutdown(std::net::Shutdown::Both);
                            break;
                        }
                        // Until the client gives up.
                        Fault::Hangs => while matches!(client_in.read(&mut piece), Ok(1..)) {},
                    }
                    break;
                }
                if (&engine).write_all(&piece[..size]).is_err() {
                    break;
                }
            }
        }
    }
    _ = engine.shutdown(std::net::Shutdown::Both);
    answers.join().unwrap();
}

fn faulty_engine_is_125_and_leaves_nothing(at: &'static str, fault: Fault) {
    let place = Place::new();
    place.expect_a_dead_instance();
    // The image is there, so that the step under test is reached.
    place.run_json("return 1", &[]);
    let ended = Proxy::new(&place, at, fault).run(&place);
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
    faulty_engine_is_125_and_leaves_nothing("/containers/create", Fault::Dies);
}

#[test]
fn an_engine_that_dies_at_attach_is_125() {
    faulty_engine_is_125_and_leaves_nothing("/attach?", Fault::Dies);
}

#[test]
fn an_engine_that_dies_at_start_is_125() {
    faulty_engine_is_125_and_leaves_nothing("/start", Fault::Dies);
}

#[test]
fn an_engine_that_hangs_at_start_is_125() {
    faulty_engine_is_125_and_leaves_nothing("/start", Fault::Hangs);
}

#[test]
fn an_engine_that_hangs_at_create_is_125() {
    faulty_engine_is_125_and_leaves_nothing("/containers/create", Fault::Hangs);
}

#[test]
fn an_engine_that_dies_at_removal_loses_no_result() {
    let place = Place::new();
    place.expect_a_dead_instance();
    place.run_json("return 1", &[]);
    let ended = Proxy::new(&place, "DELETE /", Fault::Dies).run(&place);
    let document = place.document(&ended);
    assert_eq!((&document["status"], &document["result"]), (&"ok".into(), &1.into()), "{ended:#?}");
    place.sandboxctl(["gc"]).assert_code(0);
    eventually("nothing is left", || place.containers().is_empty().then_some(()));
}
