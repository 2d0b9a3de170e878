//! A service that is killed under load, again and again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::engine::engine;
use crate::fixture::{Fixture, TIMEOUT, eventually, own_host};
use crate::shared::{cases, seed};

/// Every run leaves one byte in the file of its number.
const SCRIPT: &str = "local file = io.open(args.name, 'a') file:write('x') file:close() \
                      while os.clock() < args.seconds do end return args.name";
/// How many kept sandboxes there are.
const SANDBOXES: u64 = 3;
/// Clients at one time.
const CLIENTS: u64 = 4;

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(place: &Fixture) -> Self {
        let io_dir = place.path("shared");
        // Where no other test's server is found when this one is killed.
        let listen = format!("{}:0", own_host(1));
        let mut command = place.command([
            "serve", "--listen", &listen, "--insecure-no-auth", "--pool", "2", "--data-dir",
            "service", "--io-dir",
        ]);
        command.arg(io_dir).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on http://");
        let address = address.unwrap_or_else(|| panic!("it does not listen: {line:?}")).to_owned();
        Self { child, address }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Removes what a killed one left, and stops this one, which leaves nothing itself.
    fn stop(mut self, place: &Fixture) {
        // An engine may create a container after its controller was killed, and after the first sweep
        // of the next one.
        place.sandboxctl(["gc"]).assert_code(0);
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

/// The status and the JSON of an answer; `None` if the server is gone before it is whole.
fn request(address: &str, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let (status, body) = exchange(address, method, path, body)?;
    Some((status, serde_json::from_str(&body).ok()?))
}

/// The status and the body of an answer.
fn exchange(address: &str, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// What clients received, by id: the name of the run, and its result if they saw one.
type Reported = Mutex<BTreeMap<String, (String, Option<Value>)>>;

/// Whether the run of this number has an io dir of its own.
const fn is_private(number: u64) -> bool {
    number % 3 == 1
}

/// Creates the sandbox of a name, or finds it.
fn create(address: &str, number: u64) -> Option<(u16, Value)> {
    let body = json!({ "name": format!("kept {number}") }).to_string();
    request(address, "POST", "/v1/sandboxes", &body)
}

/// Submits until it is stopped.
fn submit(address: &str, numbers: &AtomicU64, is_over: &AtomicBool, reported: &Reported) {
    while !is_over.load(Ordering::Relaxed) {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let name = number.to_string();
        let seconds = if number.is_multiple_of(4) { 0.2 } else { 0.0 };
        let wait = if number.is_multiple_of(2) { "?wait=5" } else { "" };
        if number % 8 == 3
            && let Some((status, sandbox)) = create(address, number % SANDBOXES)
        {
            assert!(matches!(status, 200 | 201), "{sandbox}");
        }
        let io = json!({ "mode": if is_private(number) { "private" } else { "shared" } });
        let args = json!({ "name": name, "seconds": seconds });
        let body = json!({ "script": SCRIPT, "args": args, "io": io });
        let path = format!("/v1/executions{wait}");
        let Some((status, answer)) = request(address, "POST", &path, &body.to_string()) else {
            continue;
        };
        let result = (status == 200).then(|| answer.clone());
        if matches!(status, 200 | 202) {
            let id = answer["id"].as_str().unwrap().to_owned();
            reported.lock().unwrap().insert(id, (name, result));
        }
    }
}

#[test]
fn server_that_is_killed_again_and_again_loses_and_repeats_nothing() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    std::fs::create_dir(place.path("shared")).unwrap();
    let (numbers, reported) = (Arc::new(AtomicU64::new(0)), Arc::new(Reported::default()));
    let kills: u64 = cases(4, 20);
    for kill in 0..kills {
        let server = Server::start(&place);
        let (is_over, address) = (AtomicBool::new(false), server.address.clone());
        let (numbers, reported, is_over, address) = (&numbers, &reported, &is_over, &address);
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(move || submit(address, numbers, is_over, reported));
            }
            // However slow the machine is.
            eventually("something is accepted", || {
                (reported.lock().unwrap().len() as u64 > kill + 1).then_some(())
            });
            // At moments that have nothing to do with each other.
            let moment = (seed() + kill).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let until = Instant::now() + Duration::from_millis(100 + moment % 1500);
            while Instant::now() < until {
                thread::yield_now();
                thread::park_timeout(until.saturating_duration_since(Instant::now()));
            }
            server.kill();
            is_over.store(true, Ordering::Relaxed);
        });
    }

    let server = Server::start(&place);
    let reported = reported.lock().unwrap();
    assert!(reported.len() as u64 > kills, "too little was accepted: {}", reported.len());
    let fetch = |path: &str| {
        let (status, answer) = request(&server.address, "GET", path, "").unwrap();
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    };
    let get = |id: &str| fetch(&format!("/v1/executions/{id}"));
    for (id, (name, result)) in &*reported {
        let execution = eventually(&format!("{id} has ended"), || {
            let execution = get(id);
            let status = execution["status"].as_str().unwrap();
            (!["queued", "running"].contains(&status)).then_some(execution)
        });
        let is_private = is_private(name.parse().unwrap());
        let file = match is_private {
            true => place.path("service/files").join(id).join(name),
            false => place.path("shared").join(name),
        };
        let runs = std::fs::read(file).map_or(0, |runs| runs.len());
        match execution["status"].as_str().unwrap() {
            "ok" => assert_eq!((runs, &execution["result"]), (1, &json!(name)), "{execution}"),
            "killed" => assert!(runs <= 1, "{id} ran {runs} times"),
            _ => panic!("{execution}"),
        }
        if let Some(result) = result {
            assert_eq!(&execution, result, "a result changed after it was reported");
        }
    }
    // Also executions whose acceptance no client saw.
    for number in 0..numbers.load(Ordering::Relaxed) {
        let runs = std::fs::read(place.path("shared").join(number.to_string()));
        assert!(runs.map_or(0, |runs| runs.len()) <= 1, "{number} ran more than once");
    }
    // Every name leads to a whole sandbox.
    for number in 0..SANDBOXES {
        let (status, sandbox) = create(&server.address, number).unwrap();
        assert!(matches!(status, 200 | 201), "{sandbox}");
        let path = format!("/v1/sandboxes/{}/files/a", sandbox["id"].as_str().unwrap());
        assert_eq!(request(&server.address, "PUT", &path, "x").unwrap().0, 200);
    }
    let ids = |list: &Value| -> Vec<String> {
        let objects = list.as_array().unwrap().iter();
        objects.map(|it| it["id"].as_str().unwrap().to_owned()).collect()
    };
    let sandboxes = ids(&fetch("/v1/sandboxes")["sandboxes"]);
    assert_eq!(sandboxes.len() as u64, SANDBOXES);
    let (mut listed, mut path) = (sandboxes, "/v1/executions?limit=200".to_owned());
    loop {
        let page = fetch(&path);
        listed.extend(ids(&page["executions"]));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/executions?limit=200&cursor={cursor}");
    }
    for id in reported.keys() {
        assert!(listed.contains(id), "{id} was accepted and is not listed");
    }
    drop(reported);
    server.stop(&place);
    let names = |dir: &str| -> Vec<String> {
        let entries = std::fs::read_dir(place.path(dir)).unwrap();
        entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
    };
    for id in names("service/files") {
        assert!(listed.contains(&id), "{id} has files and is not listed");
    }
    eventually("no io dir is left", || names("service/scratch").is_empty().then_some(()));
    eventually("nothing is left on the engine", || {
        let is_clean = place.containers().is_empty() && engine().remains(&place).is_empty();
        is_clean.then_some(())
    });
}

#[test]
fn document_of_what_was_killed_says_what_its_events_say() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    std::fs::create_dir(place.path("shared")).unwrap();
    let server = Server::start(&place);
    // The text that it prints is not in the request.
    let script = "print('be' .. 'gun') warn('and ' .. 'warned') while true do end";
    let body = json!({ "script": script, "limits": { "timeout_ms": 60000 } }).to_string();
    let (_, accepted) = request(&server.address, "POST", "/v1/executions", &body).unwrap();
    let path = format!("/v1/executions/{}", accepted["id"].as_str().unwrap());
    eventually("its events are stored", || {
        let is_in = |name: &str| {
            let file = std::fs::read(place.path("service").join(name)).unwrap_or_default();
            file.windows(10).any(|part| part == b"and warned")
        };
        ["store.db", "store.db-wal"].into_iter().any(is_in).then_some(())
    });
    server.kill();
    let server = Server::start(&place);
    let (_, document) = request(&server.address, "GET", &format!("{path}?wait=20"), "").unwrap();
    let (_, events) = exchange(&server.address, "GET", &format!("{path}/events"), "").unwrap();
    let events = events.lines().filter_map(|line| line.strip_prefix("data:"));
    let events = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let reported =
        events.filter(|event| event["event"] == "log").map(|event| match &event["level"] {
            level if level == "warn" => format!("[warn] {}", event["text"].as_str().unwrap()),
            _ => event["text"].as_str().unwrap().to_owned(),
        });
    let mut reported: Vec<String> = reported.collect();
    assert_eq!(reported, ["begun", "[warn] and warned"]);
    reported.push("[log cut off: the server was stopped]".to_owned());
    assert_eq!((&document["status"], &document["logs"]), (&json!("killed"), &json!(reported)));
    assert_eq!(document["engine"], engine().name());
    assert_eq!(document["limits"]["timeout_ms"], 60000);
    for truncated in ["logs_truncated", "files_touched_truncated"] {
        assert_eq!(document[truncated], true, "{truncated} of {document:#}");
    }
    server.stop(&place);
    eventually("nothing is left on the engine", || {
        let is_clean = place.containers().is_empty() && engine().remains(&place).is_empty();
        is_clean.then_some(())
    });
}
