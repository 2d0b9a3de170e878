//! A service, and the commands that use it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde_json::{Value, json};

use super::artifacts::outputs_are_refused;
use crate::engine::engine;
use crate::fixture::{
    Ended, Fixture, SIGNALS_BY_DEFAULT, TIMEOUT, eventually, files_below, finish, own_host,
    sandboxctl, spawn, wait, workspace,
};
use crate::tls::{OPENSSL, certify};

/// Runs until it is ended.
const LOOP: &str = "print('started') while true do end";

/// `sandboxctl serve` under way.
pub(super) struct Service<'a> {
    place: &'a Fixture,
    pub(super) child: Child,
    /// Where it listens.
    pub(super) url: String,
    /// What it says on stderr.
    log: Receiver<String>,
}

/// How a service is started: these flags and variables, on the data directory `service`.
pub(super) fn serve(place: &Fixture, flags: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = place.command(["serve", "--data-dir", "service"]);
    command.args(flags).envs(variables.iter().copied());
    command
}

/// A failed test leaves no service behind.
impl Drop for Service<'_> {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl<'a> Service<'a> {
    /// On a port of its own, for everybody on this machine.
    pub(super) fn open(place: &'a Fixture) -> Self {
        Self::with(place, &[], &[])
    }

    pub(super) fn with(place: &'a Fixture, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let all = [&["--listen", "127.0.0.1:0", "--insecure-no-auth"], flags].concat();
        Self::start(place, serve(place, &all, variables))
    }

    pub(super) fn start(place: &'a Fixture, mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, log) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| _ = sender.send(line));
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(url) = line.trim_end().strip_prefix("listening on ") else {
            panic!("it does not listen: {line:?} {:?}", log.iter().collect::<Vec<_>>());
        };
        let url = url.to_owned();
        Self { place, child, url, log }
    }

    /// A command that uses it.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("SANDBOXCTL_SERVER", &self.url);
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        wait(spawn(self.command(args)))
    }

    /// The id of a script that was submitted.
    #[track_caller]
    pub(super) fn submit(&self, code: &str) -> String {
        let ended = self.run(&["executions", "run", "--detach", "-c", code]);
        ended.assert_code(0).stdout.trim_end().to_owned()
    }

    pub(super) fn get(&self, id: &str) -> Value {
        let ended = self.run(&["executions", "get", id, "--json"]);
        serde_json::from_str(&ended.assert_code(0).stdout).unwrap()
    }

    pub(super) fn until(&self, id: &str, status: &str) -> Value {
        eventually(&format!("{id} is {status}"), || {
            let execution = self.get(id);
            (execution["status"] == status).then_some(execution)
        })
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end, and gives its code and what it still said.
    fn end(mut self) -> (Option<i32>, String) {
        let since = std::time::Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(since.elapsed() < TIMEOUT, "it does not end");
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        (status.code(), self.log.iter().collect::<Vec<_>>().join("\n"))
    }

    /// Kills it: it removes nothing.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn stop(self) -> String {
        self.signal(Signal::TERM);
        self.end_well()
    }

    /// Waits for the end of a service that was stopped, and returns its last output.
    fn end_well(self) -> String {
        let place = self.place;
        let (code, log) = self.end();
        assert_eq!(code, Some(0), "{log}");
        assert_eq!(place.containers(), Vec::<String>::new());
        eventually("no helper is left", || engine().remains(place).is_empty().then_some(()));
        log
    }

    /// The status and the body of a raw request.
    pub(super) fn http(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (u16, String) {
        let (status, _, body) = self.exchange(method, path, headers, body);
        (status, body)
    }

    /// The same, with the head of the answer.
    pub(super) fn exchange(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (u16, String, String) {
        let address = self.url.strip_prefix("http://").unwrap();
        let mut connection = TcpStream::connect(address).unwrap();
        let length = body.len();
        let media_type = match path.split('?').next().is_some_and(|path| path.ends_with("/stdin")) {
            true => "application/octet-stream",
            false => "application/json",
        };
        // Of this version no answer comes in chunks.
        let request = format!(
            "{method} {path} HTTP/1.0\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: {media_type}\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (status, head.to_owned(), body.to_owned())
    }
}

/// A document without what is another time otherwise.
pub(super) fn lasting(ended: &Ended) -> Value {
    let mut document: Value = serde_json::from_str(&ended.stdout).unwrap();
    for member in ["id", "usage", "timing", "io_dir"] {
        document.as_object_mut().unwrap().remove(member);
    }
    for case in document.get_mut("tests").and_then(Value::as_array_mut).into_iter().flatten() {
        case.as_object_mut().unwrap().remove("duration_ms");
    }
    document
}

#[test]
fn data_directory_of_a_service_that_runs_is_not_mounted_by_another_command() {
    let place = Fixture::new();
    let service = Service::with(&place, &[], &[("SANDBOXCTL_IO_ENABLED", "true")]);
    std::fs::create_dir(place.path("service/own")).unwrap();
    let problem = "it is in the data directory of a service that runs, ";
    for flags in [["--io-dir", "service"], ["--io-dir", "service/own"], ["--in", "service/own:x"]] {
        let refused = place.sandboxctl(["run", "-c", "return 1"].iter().chain(&flags));
        refused.assert_code(121).assert_stderr_has(problem).assert_stderr_has("hint: ");
    }
    // Its own sandboxes have io dirs there.
    let request = r#"{"script": "io.open('f', 'w')", "io": {"mode": "private"}}"#;
    service.run(&["executions", "run", "--request", request]).assert_code(0);
    service.stop();
}

#[test]
fn nothing_is_written_into_the_data_directory_of_a_service_that_runs() {
    let place = Fixture::new();
    let service = Service::open(&place);
    let why = "it is in the data directory of a service that runs, ";
    let before = files_below(&place.path("service"));
    for own in ["service/out", "service/files/out"] {
        outputs_are_refused(&place, &place.path(own), why);
    }
    // Nor is anything made there: an io dir, what another service has, or a copy of its own database.
    place.sandboxctl(["run", "a.luau", "--io-dir", "service/new"]).assert_stderr_has(why);
    assert!(!place.path("service/new").exists());
    let token = ["token", "create", "--subject", "a", "--scope", "admin", "--data-dir"];
    let serve = ["serve", "--insecure-no-auth", "--listen"];
    let others: [&[&str]; 4] = [
        &[&token[..], &["service/files/new"]].concat(),
        &[&serve[..], &["127.0.0.1:0", "--data-dir", "service/files/new"]].concat(),
        &[&serve[..], &["unix:service/s.sock", "--data-dir", "other"]].concat(),
        &["server", "restore", "a.luau", "--data-dir", "service/files/new"],
    ];
    for other in others {
        place.sandboxctl(other).assert_code(2).assert_stderr_has(why);
    }
    let backup = ["server", "backup", "service/copy.db", "--data-dir", "service"];
    let refused = place.sandboxctl(backup);
    refused.assert_code(2).assert_stderr_has("it is in the service's data directory ");
    assert_eq!(files_below(&place.path("service")), before);
    service.stop();
}

#[test]
fn script_prints_on_a_service_what_it_prints_here() {
    let place = Fixture::new();
    // Inputs are files, which scripts of others have only where that is wanted.
    let service = Service::with(&place, &[], &[("SANDBOXCTL_IO_ENABLED", "true")]);
    for (script, args) in [
        ("print('a') warn('b') return { x = 1 }", &[][..]),
        ("return 'text'", &["--result-only"]),
        ("print(args.k) return args", &["--arg", "k=v"]),
        ("print('before') error('no')", &[]),
        ("local x =", &[]),
        ("while true do end", &["--timeout", "300ms"]),
        ("print(fs.read('/in/a.txt'))", &["--in", "a.txt"]),
        ("print(string.rep('x', 70000))", &[]),
        ("test.case('one', print) test.case('two', error)", &[]),
        ("print('quiet') error('no')", &["-q"]),
        ("warn('a\\n\\27[31mb') return nil", &["--raw"]),
        ("return ('x'):rep(300)", &[]),
    ] {
        place.write("s.luau", script);
        place.write("a.txt", "input");
        let own = if args.contains(&"--in") {
            &["run", "s.luau"][..]
        } else {
            &["run", "s.luau", "--no-io"]
        };
        let all = [own, args].concat();
        let here = place.sandboxctl(&all);
        let there = service.run(&all);
        assert_eq!((there.code, &there.stdout), (here.code, &here.stdout), "{script}: {there:#?}");
        assert_eq!(there.stderr, here.stderr, "{script}");
        if args.contains(&"--result-only") {
            continue;
        }
        let all = [&all[..], &["--json"]].concat();
        let (here, there) = (place.sandboxctl(&all), service.run(&all));
        assert_eq!(lasting(&there), lasting(&here), "{script}");
    }
    let refused = service.run(&["run", "s.luau", "--io-dir", "out"]);
    refused
        .assert_code(2)
        .assert_stderr_has("--io-dir: it applies only to sandboxes on this machine");
    service.stop();
}

#[test]
fn full_log_of_a_service_is_cut_off_in_the_words_of_this_machine() {
    let place = Fixture::new();
    let service = Service::open(&place);
    let args = ["run", "--no-io", "-c", "for n = 1, 20 do print(n) end"];
    let [here, there] = [place.command(args), service.command(&args)].map(|mut command| {
        command.env("SANDBOXCTL_LIMITS_LOG_LINES", "10");
        wait(spawn(command))
    });
    there.assert_code(0).assert_stderr_has("cut off: the log after 10 entries (");
    assert_eq!((there.stdout, there.stderr), (here.stdout, here.stderr));
    service.stop();
}

#[test]
fn service_that_is_started_with_few_descriptors_serves_more_connections() {
    let place = Fixture::new();
    let mut command = serve(&place, &["--listen", "127.0.0.1:0", "--insecure-no-auth"], &[]);
    let few = || {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit })?;
        Ok(())
    };
    // SAFETY: it makes two system calls, and uses nothing of other threads.
    unsafe { command.pre_exec(few) };
    let service = Service::start(&place, command);
    let address = service.url.strip_prefix("http://").unwrap();
    let held: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    service.run(&["run", "-c", "return 1"]).assert_code(0);
    drop(held);
    service.signal(Signal::TERM);
    assert_eq!(service.end().0, Some(0));
}

#[test]
fn key_is_for_one_submission() {
    let place = Fixture::new();
    let service = Service::open(&place);
    let submit = |code: &str| {
        let args = ["executions", "run", "--detach", "--idempotency-key", "k1", "-c", code];
        service.run(&args)
    };
    let first = submit("return 1").assert_code(0).stdout.clone();
    assert_eq!(submit("return 1").assert_code(0).stdout, first);
    submit("return 2").assert_code(2).assert_stderr_has("key was used for another request");
    let listed = service.run(&["executions", "ls", "-q"]);
    assert_eq!(listed.assert_code(0).stdout, first);
    service.stop();
}

#[test]
fn events_are_resumed_by_their_number_and_end_with_the_result() {
    let place = Fixture::new();
    let service = Service::open(&place);
    let id = service.submit("print('one') print('two') return 3");
    let events = |args: &[&str]| -> Vec<Value> {
        let ended = service.run(&[&["executions", "events", &id, "--json"], args].concat());
        let lines = ended.assert_code(0).stdout.lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let all = events(&[]);
    let numbers: Vec<_> = all.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
    let names: Vec<_> = all.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["queued", "start", "log", "log", "end"]);
    assert_eq!(all[4]["document"]["result"], 3);
    let rest = events(&["--after", "3"]);
    assert_eq!(rest, all[3..]);
    // There is no event after the last one, and none will come.
    for last in ["5", "99"] {
        assert_eq!(events(&["--after", last]), Vec::<Value>::new());
    }
    assert_eq!(service.get(&id)["result"], 3);
    service.stop();
}

#[test]
fn files_of_an_execution_are_kept_and_can_be_fetched() {
    let place = Fixture::new();
    // A directory for io dirs that is on another file system is not for those of a service.
    let elsewhere =
        [("SANDBOXCTL_IO_ENABLED", "true"), ("SANDBOXCTL_IO_SCRATCH_DIR", "/dev/shm/x")];
    let service = Service::with(&place, &[], &elsewhere);
    place.write("w.luau", "fs.mkdir('d') io.open('d/a.txt', 'w'):write('content'):close()");
    let ended = service.run(&["run", "w.luau"]);
    ended.assert_code(0).assert_stderr_has("the service keeps 1 file");
    let id = service.run(&["executions", "ls", "-q"]).stdout.trim_end().to_owned();
    let files = service.run(&["executions", "files", &id, "--json"]);
    let files: Value = serde_json::from_str(&files.assert_code(0).stdout).unwrap();
    assert!(files["files"].as_array().unwrap().iter().any(|it| it["path"] == "d/a.txt"), "{files}");
    let one = service.run(&["executions", "download", &id, "d/a.txt", "-o", "-"]);
    assert_eq!(one.assert_code(0).stdout, "content");
    service.run(&["executions", "download", &id, "-o", "all.tar.gz"]).assert_code(0);
    assert!(std::fs::read(place.path("all.tar.gz")).unwrap().starts_with(&[0x1f, 0x8b]));
    let none = service.run(&["executions", "download", &id, "../../etc/passwd", "-o", "-"]);
    assert_ne!(none.code, 0, "{none:#?}");
    service.stop();
}

#[test]
fn interrupted_client_cancels_its_execution() {
    let place = Fixture::new();
    let service = Service::open(&place);
    place.write("loop.luau", LOOP);
    let mut child = {
        let mut command = service.command(&["run", "loop.luau", "--timeout", "5m"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "started");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let id = service.run(&["executions", "ls", "-q"]).stdout.trim_end().to_owned();
    service.until(&id, "cancelled");
    service.stop();
}

#[test]
fn executions_that_can_be_cancelled_are_though_others_cannot() {
    let place = Fixture::new();
    let service = Service::open(&place);
    let [first, second] = [LOOP; 2].map(|code| service.submit(code));
    let unknown = "aaaaaaaaaaaaaaaa";
    let ended = service.run(&["executions", "cancel", &first, unknown, &second, unknown]);
    let alone = service.run(&["executions", "cancel", unknown]);
    assert_eq!((ended.code, &ended.stderr), (alone.code, &alone.stderr.repeat(2)));
    assert_ne!(ended.code, 0);
    for id in [first, second] {
        service.until(&id, "cancelled");
    }
    service.stop();
}

#[test]
fn killed_service_forgets_nothing_that_it_accepted() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let one_at_a_time = [("SANDBOXCTL_SERVER_CONCURRENCY", "1")];
    let service = Service::with(&place, &[], &one_at_a_time);
    let running = service.submit(LOOP);
    service.until(&running, "running");
    let queued: Vec<_> = (0..3).map(|n| service.submit(&format!("return {n}"))).collect();
    service.kill();

    let service = Service::with(&place, &[], &one_at_a_time);
    let killed = service.get(&running);
    assert_eq!((&killed["status"], &killed["exit_code"]), (&json!("killed"), &json!(137)));
    assert!(killed["error"]["message"].is_string(), "{killed:#}");
    for (n, id) in queued.iter().enumerate() {
        assert_eq!(service.until(id, "ok")["result"], json!(n));
    }
    let all = service.run(&["executions", "ls", "-q"]);
    assert_eq!(all.stdout.lines().count(), 4);
    service.stop();
    eventually("nothing is left", || {
        place.sandboxctl(["gc"]).assert_code(0);
        (place.containers().is_empty() && engine().remains(&place).is_empty()).then_some(())
    });
}

#[test]
fn data_directory_is_of_one_service() {
    let place = Fixture::new();
    let service = Service::open(&place);
    let flags = ["--listen", "127.0.0.1:0", "--insecure-no-auth"];
    let second = wait(spawn(serve(&place, &flags, &[])));
    assert_ne!(second.code, 0, "{second:#?}");
    assert!(second.stderr.contains("\nhint: ") || second.stderr.contains("hint: "), "{second:#?}");
    assert_eq!(service.run(&["run", "-c", "return 1"]).assert_code(0).stdout, "1\n");
    service.stop();
}

#[test]
fn stopping_service_lets_running_executions_end_and_keeps_queued_ones() {
    let place = Fixture::new();
    // One at a time, with files.
    let variables = [("SANDBOXCTL_SERVER_CONCURRENCY", "1"), ("SANDBOXCTL_IO_ENABLED", "true")];
    let service = Service::with(&place, &[], &variables);
    let until_signalled = "fs.write('begun', '') while not fs.exists('go') do end return 'done'";
    let begins = |file: &str| {
        eventually("the script runs", || {
            let files = files_below(&place.path("service/scratch"));
            files.into_iter().find(|path| path.ends_with(file))
        })
    };
    let running = service.submit(until_signalled);
    let begun = begins("begun");
    let queued = service.submit("return 'later'");
    service.signal(Signal::TERM);
    let mut said: Vec<String> = Vec::new();
    eventually("it is said that it ends", || {
        said.extend(service.log.try_iter());
        said.iter().any(|line| line.contains("shutting down")).then_some(())
    });
    std::fs::write(begun.with_file_name("go"), "").unwrap();
    said.push(service.end_well());
    let log = said.join("\n");
    assert!(log.contains("1 finished") && log.contains("1 queued"), "{log}");
    let says = |log: &str, id: &str, became: &str| {
        let is_it = |line: &str| line.contains(&format!(" {became} ")) && line.contains(id);
        assert!(log.lines().any(is_it), "{id} {became}: {log}");
    };
    says(&log, &running, "finished");
    says(&log, &queued, "queued for the next start");

    let service = Service::with(&place, &["--shutdown-timeout", "100ms"], &variables);
    assert_eq!(service.get(&running)["result"], "done");
    assert_eq!(service.until(&queued, "ok")["result"], "later");
    let looping = service.submit("fs.write('looping', '') while true do end");
    begins("looping");
    let log = service.stop();
    assert!(log.contains("1 cancelled"), "{log}");
    says(&log, &looping, "cancelled");
    let service = Service::open(&place);
    let killed = service.until(&looping, "killed");
    assert_eq!(killed["error"]["message"], "the server was stopped while it ran");
    service.stop();
}

#[test]
fn every_line_about_an_execution_has_its_request_and_its_trace() {
    let place = Fixture::new();
    let service = Service::with(&place, &["--log-format", "json", "--pool", "0"], &[]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let headers = format!("traceparent: 00-{trace}-00f067aa0ba902b7-01\r\nx-request-id: r-7\r\n");
    let script = r#"{"script":"return 1"}"#;
    let (status, body) = service.http("POST", "/v1/executions?wait=60", &headers, script);
    assert_eq!(status, 200, "{body}");
    let execution = serde_json::from_str::<Value>(&body).unwrap()["id"].clone();
    let log = service.stop();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines: Vec<_> = lines.filter(|line| line["trace_id"] == trace).collect();
    let with = |what: &str| {
        let line = lines.iter().find(|line| line["message"].as_str().unwrap().contains(what));
        line.unwrap_or_else(|| panic!("no line '{what}' of the trace: {log}"))
    };
    for what in ["created a container", "running the script"] {
        let line = with(what);
        assert_eq!((&line["execution"], &line["id"]), (&execution, &json!("r-7")), "{line}");
        assert_eq!(line["subject"], "local", "{line}");
    }
    assert_eq!(
        (&with("request")["request"], &with("request")["status"]),
        (&json!("r-7"), &json!(200))
    );
}

#[test]
fn metrics_say_what_the_pool_did_and_how_executions_ended() {
    let place = Fixture::new();
    let by_subject = [("SANDBOXCTL_SERVER_METRICS_BY_SUBJECT", "true")];
    let service = Service::with(&place, &["--pool", "1"], &by_subject);
    for script in ["return 1", "error('no')"] {
        let request = json!({ "script": script }).to_string();
        assert_eq!(service.http("POST", "/v1/executions?wait=60", "", &request).0, 200);
    }
    let (_, text) = service.http("GET", "/metrics", "", "");
    for line in [
        "sandboxctl_executions_ended_total{status=\"ok\"} 1.0\n",
        "sandboxctl_executions_ended_total{status=\"script_error\"} 1.0\n",
        "sandboxctl_executions_ended_total{status=\"timeout\"} 0.0\n",
        "sandboxctl_pool_claims_total 2.0\n",
        "sandboxctl_pool_keys 1.0\n",
        "sandboxctl_pool_failed_total 0.0\n",
        "sandboxctl_queue_wait_seconds_count{subject=\"local\"} 2\n",
        "sandboxctl_execution_seconds_count{status=\"ok\",subject=\"local\"} 1\n",
        "sandboxctl_execution_seconds_bucket{le=\"+Inf\",status=\"script_error\",subject=\"local\"} 1\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // The alerts that are published know no others; those of a cluster are checked by `scripts/published`.
    let rules =
        std::fs::read_to_string(workspace().join("packaging/prometheus/sandboxctl.rules.yml"));
    let rules = rules.unwrap();
    let (rules, _) = rules.split_once("- name: sandboxctl-cluster").unwrap();
    let is_part = |it: char| it.is_ascii_lowercase() || it == '_';
    let names = rules.split(|it| !is_part(it)).filter(|it| it.starts_with("sandboxctl_"));
    let names: std::collections::BTreeSet<_> = names.collect();
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        assert!(
            text.contains(&format!("\n{name}{{")) || text.contains(&format!("\n{name} ")),
            "{name}: {text}"
        );
    }
    for name in ["fill_seconds", "filled", "claimed_age_seconds", "dead", "expired", "unpooled"] {
        assert!(text.contains(&format!("\nsandboxctl_pool_{name}_total ")), "{name}: {text}");
    }
    service.stop();
}

#[test]
fn second_signal_ends_a_service_at_once() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let service = Service::with(&place, &["--shutdown-timeout", "5m"], &[]);
    let looping = service.submit(LOOP);
    service.until(&looping, "running");
    service.signal(Signal::TERM);
    eventually("it is said that it ends", || {
        service.log.try_iter().any(|line| line.contains("shutting down")).then_some(())
    });
    service.signal(Signal::TERM);
    let (code, log) = service.end();
    assert_eq!(code, Some(143), "{log}");
    eventually("nothing is left", || {
        place.sandboxctl(["gc"]).assert_code(0);
        (place.containers().is_empty() && engine().remains(&place).is_empty()).then_some(())
    });
}

#[test]
fn socket_is_of_the_user_who_serves() {
    let place = Fixture::new();
    let service = Service::start(&place, serve(&place, &["--listen", "unix:s.sock"], &[]));
    assert!(service.url.starts_with("unix:"), "{}", service.url);
    let mode = std::fs::metadata(place.path("s.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(service.run(&["run", "-c", "return 7"]).assert_code(0).stdout, "7\n");
    service.stop();
    assert!(!place.path("s.sock").exists());
}

#[test]
fn service_that_would_let_everybody_in_does_not_start() {
    let place = Fixture::new();
    let refused = |flags: &[&str], variables: &[(&str, &str)], why: &str| {
        let ended = wait(spawn(serve(&place, flags, variables)));
        ended.assert_code(2).assert_stderr_has(why).assert_stderr_has("hint: ");
    };
    refused(&["--listen", "127.0.0.1:0"], &[], "no way to authenticate");
    refused(&["--listen", "0.0.0.0:0", "--insecure-no-auth"], &[], "--insecure-no-auth");
    refused(
        &["--listen", "127.0.0.1:0", "--insecure-no-auth"],
        &[("SANDBOXCTL_ENGINE_KIND", "auto")],
        "engine.kind",
    );
    let mut command = place.command(["serve", "--listen", "127.0.0.1:0", "--insecure-no-auth"]);
    command.stdout(Stdio::piped());
    wait(spawn(command)).assert_code(2).assert_stderr_has("--data-dir");
}

#[test]
fn caller_needs_a_token_that_is_valid() {
    let place = Fixture::new();
    let create = ["token", "create", "--data-dir", "service", "--subject", "ci"];
    let scopes = ["--scope", "executions:write", "--scope", "executions:read"];
    let created = place.sandboxctl(create.iter().chain(&scopes));
    let token = created.assert_code(0).stdout.trim_end().to_owned();
    let audit = [("SANDBOXCTL_AUDIT_FILE", place.path("audit.log"))];
    let mut command = serve(&place, &["--listen", "127.0.0.1:0"], &[]);
    command.envs(audit);
    let service = Service::start(&place, command);
    let run = |token: Option<&str>| {
        let mut command = service.command(&["run", "-c", "return 1"]);
        command.envs(token.map(|token| ("SANDBOXCTL_TOKEN", token)));
        wait(spawn(command))
    };
    run(None).assert_code(121).assert_stderr_has("hint: SANDBOXCTL_TOKEN or --token-file");
    run(Some("forged")).assert_code(121);
    assert_eq!(run(Some(&token)).assert_code(0).stdout, "1\n");
    place.write("token", &token);
    let ended = service.run(&["run", "-c", "return 2", "--token-file", "token"]);
    assert_eq!(ended.assert_code(0).stdout, "2\n");
    // What the log and the audit have of requests has no token.
    let log = service.stop();
    assert!(!log.contains(&token), "{log}");
    let audit = place.read("audit.log");
    assert!(!audit.contains(&token), "{audit}");
    let lines = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let reported: Vec<_> = lines
        .filter(|line| line["operation"] == "access" && line["access"]["method"] == "POST")
        .map(|line| json!([line["outcome"], line["access"]["subject"], line["access"]["status"]]))
        .collect();
    let (unknown, ci) = (json!(["unauthenticated", null, 401]), json!(["ok", "ci", 202]));
    assert_eq!(reported, [unknown.clone(), unknown, ci.clone(), ci]);
}

#[test]
fn sandbox_keeps_its_processes_unless_its_service_has_no_programs() {
    let place = Fixture::new();
    let mut command = serve(&place, &["--listen", "127.0.0.1:0", "--insecure-no-auth"], &[]);
    command.env("SANDBOXCTL_AUDIT_FILE", place.path("audit.log"));
    let service = Service::start(&place, command);
    // Only the service knows whether it has an image: it is asked for kept processes first.
    for more in [&["--name", "notes"][..], &["--per-command"]] {
        let created = service.run(&[&["sandbox", "create", "--json"], more].concat());
        let sandbox: Value = serde_json::from_str(&created.assert_code(0).stdout).unwrap();
        assert_ne!(sandbox["spec"]["processes"], "kept", "{sandbox}");
    }
    service.stop();
    let audit = place.read("audit.log");
    let lines = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let asked =
        lines.filter(|line| line["operation"] == "access" && line["access"]["method"] == "POST");
    let statuses: Vec<_> = asked.map(|line| line["access"]["status"].clone()).collect();
    assert_eq!(statuses, [422, 201, 201].map(Value::from));
}

#[test]
fn hangup_reads_quotas_again() {
    let place = Fixture::new();
    let config = place.write("config.toml", "");
    let flags = ["--config", config.to_str().unwrap()];
    let service = Service::with(&place, &flags, &[]);
    let submit = || service.http("POST", "/v1/executions?wait=60", "", r#"{"script":"return 1"}"#);
    for _ in 0..3 {
        let (status, body) = submit();
        assert_eq!(status, 200, "{body}");
    }
    place.write("config.toml", "[server.quota]\nrate = 1\n");
    service.signal(Signal::HUP);
    eventually("the quota holds", || (submit().0 == 429).then_some(()));
    // A mistake changes nothing, and is reported.
    place.write("config.toml", "[server.quota]\nrat = 1\n");
    service.signal(Signal::HUP);
    eventually("the mistake is said", || {
        service.log.try_iter().any(|line| line.contains("server.quota.rat")).then_some(())
    });
    assert_eq!(service.http("GET", "/healthz", "", "").0, 200);
    service.stop();
}

#[test]
fn certificate_that_is_replaced_is_used_after_a_hangup() {
    let place = Fixture::new();
    certify(&place.work());
    std::fs::copy(place.path("cert.pem"), place.path("first.pem")).unwrap();
    let service = Service::with(&place, &TLS, &[]);
    // The certificate is for this name.
    let url = service.url.replace("127.0.0.1", "localhost");
    assert!(url.starts_with("https://"), "{url}");
    let run = |trusted: &str| {
        let mut command = service.command(&["run", "-c", "return 1", "--ca-file", trusted]);
        command.env("SANDBOXCTL_SERVER", &url);
        wait(spawn(command))
    };
    assert_eq!(run("first.pem").assert_code(0).stdout, "1\n");
    certify(&place.work());
    run("cert.pem")
        .assert_code(125)
        .assert_stderr_has("hint: --ca-file FILE, or SANDBOXCTL_CA_FILE");
    service.signal(Signal::HUP);
    eventually("the new one is used", || (run("cert.pem").code == 0).then_some(()));
    run("first.pem").assert_code(125);
    // Half a pair changes nothing.
    place.write("key.pem", "no key");
    service.signal(Signal::HUP);
    eventually("the mistake is said", || {
        service.log.try_iter().any(|line| line.contains("certificates")).then_some(())
    });
    run("cert.pem").assert_code(0);
    service.stop();
}

const TLS: [&str; 4] = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];

#[test]
fn wrong_scheme_is_reported_at_once_in_both_directions() {
    let place = Fixture::new();
    certify(&place.work());
    let run = |url: &str| {
        let mut command = place.command(["run", "-c", "return 1", "--ca-file", "cert.pem"]);
        command.env("SANDBOXCTL_SERVER", url);
        wait(spawn(command))
    };
    let service = Service::with(&place, &TLS, &[]);
    let plain = service.url.replace("https://127.0.0.1", "http://localhost");
    let refused = run(&plain);
    assert_ne!(refused.code, 0);
    refused.assert_stderr_has("this port speaks HTTPS").assert_stderr_has("hint: use https://");
    let encrypted = plain.replace("http://", "https://");
    assert_eq!(run(&encrypted).assert_code(0).stdout, "1\n");
    service.stop();
    let service = Service::open(&place);
    let encrypted = service.url.replace("http://127.0.0.1", "https://localhost");
    let refused = run(&encrypted);
    refused.assert_code(125).assert_stderr_has("does not answer in TLS");
    refused.assert_stderr_has("hint: if it speaks plain HTTP: --server http://localhost:");
    service.stop();
}

#[test]
fn certificate_that_cannot_be_trusted_says_what_to_do() {
    let place = Fixture::new();
    // As the first line of most guides makes it.
    let mut openssl = Command::new(OPENSSL);
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]);
    openssl.args(["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem"]);
    openssl.args(["-out", "cert.pem"]).current_dir(place.work());
    finish(openssl).assert_code(0);
    let service = Service::with(&place, &TLS, &[]);
    let url = service.url.replace("127.0.0.1", "localhost");
    let run = |url: &str, flags: &[&str]| {
        let mut command = service.command(&[&["run", "-c", "return 1"], flags].concat());
        command.env("SANDBOXCTL_SERVER", url).env("SANDBOXCTL_CA_FILE", "cert.pem");
        wait(spawn(command))
    };
    let refused = run(&url, &[]);
    refused.assert_code(125).assert_stderr_has("CaUsedAsEndEntity");
    refused.assert_stderr_has("-addext basicConstraints=critical,CA:FALSE");
    certify(&place.work());
    service.signal(Signal::HUP);
    eventually("the new one is used", || (run(&url, &[]).code == 0).then_some(()));
    // The certificate has no address.
    run(&service.url, &[]).assert_code(125).assert_stderr_has("hint: name the service as its");
    run(&url, &["--ca-file", "key.pem"]).assert_code(2).assert_stderr_has("BEGIN CERTIFICATE");
    service.stop();
}

#[test]
fn private_key_that_others_can_read_is_refused() {
    let place = Fixture::new();
    certify(&place.work());
    let open = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(place.path("key.pem"), open).unwrap();
    let all = [&["--listen", "127.0.0.1:0", "--insecure-no-auth"][..], &TLS].concat();
    let refused = wait(spawn(serve(&place, &all, &[])));
    refused.assert_code(2).assert_stderr_has("key.pem has a secret and is open to others");
    refused.assert_stderr_has("chmod 600");
    // It is reported before the service is stopped for a new configuration, too.
    let (cert, key) = (place.path("cert.pem"), place.path("key.pem"));
    let config = format!("[server]\nlisten = 'nowhere'\ntls_cert = {cert:?}\ntls_key = {key:?}\n");
    let config = place.write("config.toml", config);
    let check = ["config", "check", "--config", config.to_str().unwrap()];
    let checked = place.sandboxctl(check);
    checked.assert_code(2).assert_stderr_has("open to others").assert_stderr_has("'nowhere'");
    place.write("config.toml", "");
    place.sandboxctl(check).assert_code(0);
}

/// A JWT, signed with OpenSSL: `sign` has its options.
fn jwt(place: &Fixture, header: &Value, claims: &Value, sign: &[&str]) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    place.write("signed", &signed);
    let mut command = Command::new(OPENSSL);
    command.args(["dgst", "-sha256", "-binary"]).args(sign).arg("signed");
    let output = command.current_dir(place.work()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(output.stdout))
}

#[test]
fn caller_of_an_identity_provider_shows_its_token() {
    let place = Fixture::new();
    let secret = "a secret of the issuer and of this service";
    let file = place.write("secret", secret);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = format!(
        "[server.jwt]\nissuer = 'https://id.example.org/'\naudience = 'sandboxctl'\n\
         secret_file = {file:?}\n"
    );
    let config = place.write("config.toml", config);
    let flags = ["--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    let service = Service::start(&place, serve(&place, &flags, &[]));
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let claims = json!({"iss": "https://id.example.org/", "aud": "sandboxctl", "sub": "alice",
        "exp": now + 600, "scope": "executions:write executions:read"});
    let hs256 = json!({"alg": "HS256", "typ": "JWT"});
    let run = |token: &str| {
        let mut command = service.command(&["run", "-c", "return 1"]);
        command.env("SANDBOXCTL_TOKEN", token);
        wait(spawn(command))
    };
    let with = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        jwt(&place, &hs256, &claims, &["-hmac", secret])
    };
    assert_eq!(run(&with("sub", "alice".into())).assert_code(0).stdout, "1\n");
    for (name, value) in [
        ("exp", json!(now - 600)),
        ("exp", Value::Null),
        ("iss", json!("https://other.example.org/")),
        ("iss", json!(["https://id.example.org/"])),
        ("aud", json!("another service")),
        ("aud", Value::Null),
    ] {
        run(&with(name, value)).assert_code(121);
    }
    run(&jwt(&place, &hs256, &claims, &["-hmac", "a guess"])).assert_code(121);
    let none = jwt(&place, &json!({"alg": "none"}), &claims, &["-hmac", secret]);
    run(&none).assert_code(121);
    run(none.rsplit_once('.').unwrap().0).assert_code(121);
    // The client sends no such token.
    run(&format!("{none}{}", "A".repeat(100_000))).assert_code(2);
    // It may read, and not write.
    run(&with("scope", json!("executions:read"))).assert_code(121);
    let (_, body) = service.http("GET", "/v1/openapi.json", "", "");
    assert!(!body.contains(secret));
    let log = service.stop();
    assert!(!log.contains(secret), "{log}");
}

#[test]
fn service_manager_passes_its_socket_and_hears_how_the_service_is() {
    let place = Fixture::new();
    let reported = UnixDatagram::bind(place.path("notify")).unwrap();
    reported.set_read_timeout(Some(TIMEOUT)).unwrap();
    let hear = |what: &str| {
        let mut message = [0; 4096];
        loop {
            let length =
                reported.recv(&mut message).unwrap_or_else(|error| panic!("{what}: {error}"));
            let text = String::from_utf8_lossy(&message[..length]).into_owned();
            if text.lines().any(|line| line == what) {
                break;
            }
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // As systemd does: its descriptor is 3, and it is for this process.
    let mut command = Command::new("sh");
    let passed = r#"exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@""#;
    command.args(["-c", passed, "sh", "env", SIGNALS_BY_DEFAULT]).arg(sandboxctl());
    command.args(["serve", "--data-dir", "service", "--insecure-no-auth"]);
    place.equip(&mut command);
    command.env("NOTIFY_SOCKET", place.path("notify")).stdin(OwnedFd::from(listener));
    let service = Service::start(&place, command);
    assert_eq!(service.url, format!("http://{address}"));
    hear("READY=1");
    assert_eq!(service.http("GET", "/healthz", "", "").0, 200);
    service.signal(Signal::HUP);
    hear("RELOADING=1");
    hear("READY=1");
    service.stop();
    hear("STOPPING=1");
}

#[test]
fn data_of_a_service_is_copied_while_it_runs_and_damaged_data_is_refused() {
    let place = Fixture::new();
    let service = Service::open(&place);
    let id = service.submit("return 'kept'");
    service.until(&id, "ok");
    let backup = ["server", "backup", "copy.db", "--data-dir", "service"];
    place.sandboxctl(backup).assert_code(0);
    assert_ne!(place.sandboxctl(backup).code, 0, "it replaces a file");
    let restore = ["server", "restore", "copy.db", "--data-dir", "service"];
    place.sandboxctl(restore).assert_code(2).assert_stderr_has("in use by another server");
    service.stop();

    let store = place.path("service/store.db");
    let refused = |why: &str| {
        let flags = ["--listen", "127.0.0.1:0", "--insecure-no-auth"];
        let ended = wait(spawn(serve(&place, &flags, &[])));
        assert!(ended.code != 0 && !ended.stdout.contains("listening"), "{ended:#?}");
        ended.assert_stderr_has(why).assert_stderr_has("hint: ");
    };
    std::fs::write(&store, "no database, and longer than the head of one: ".repeat(100)).unwrap();
    refused("damaged");
    std::fs::create_dir(place.path("service/files/of-a-later-execution")).unwrap();
    let restored = place.sandboxctl(restore);
    restored.assert_code(0).assert_stderr_has("the database as it was is ");
    restored.assert_stderr_has("deletes the files of 1 execution: the backup does not have them");
    let service = Service::open(&place);
    assert_eq!(service.get(&id)["result"], "kept");
    service.stop();
}

#[test]
fn status_of_a_service_is_that_of_its_data_and_its_own() {
    let place = Fixture::new();
    let status = |more: &[&str]| {
        let mut command = place.command([&["server", "status"], more].concat());
        command.env_remove("SANDBOXCTL_SERVER");
        wait(spawn(command))
    };
    status(&[]).assert_code(2).assert_stderr_has("hint: --data-dir DIR names");
    let service = Service::open(&place);
    let id = service.submit("return 1");
    service.until(&id, "ok");
    let url = service.url.clone();
    let [of_data, of_server] = [["--data-dir", "service"], ["--server", &url]];
    let ended = status(&of_data);
    assert!(ended.assert_code(0).stdout.contains("service: a service runs\n"), "{ended:#?}");
    let ended = status(&[&of_data[..], &of_server, &["--json"]].concat());
    let reported: Value = serde_json::from_str(&ended.assert_code(0).stdout).unwrap();
    assert_eq!(
        (&reported["data_dir"]["running"], &reported["data_dir"]["ended"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(
        (&reported["server"]["ready"], &reported["server"]["url"]),
        (&json!(true), &json!(service.url))
    );
    let checks = reported["server"]["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["ok"] == true) && checks.len() > 3, "{reported:#}");
    service.stop();
    let ended = status(&of_data);
    assert!(ended.assert_code(1).stdout.contains("service: no service runs\n"), "{ended:#?}");
    // Another test's may have its port by now.
    let nobodys = url.replace("127.0.0.1", &own_host(1).to_string());
    status(&["--server", &nobodys]).assert_code(125).assert_stderr_has("cannot connect");
}

#[test]
fn token_is_rotated_and_all_of_a_subject_are_revoked_while_the_service_runs() {
    let place = Fixture::new();
    let token = |args: &[&str]| {
        let ended = place.sandboxctl([&["token"], args, &["--data-dir", "service"]].concat());
        ended.assert_code(0).stdout.trim_end().to_owned()
    };
    let scopes = ["--scope", "executions:write", "--scope", "executions:read"];
    let create = |subject| token(&[&["create", "--subject", subject][..], &scopes].concat());
    let [old, other] = ["ci", "ops"].map(create);
    let service = Service::start(&place, serve(&place, &["--listen", "127.0.0.1:0"], &[]));
    let is_let_in = |token: &str| {
        let mut command = service.command(&["run", "-c", "return 1"]);
        command.env("SANDBOXCTL_TOKEN", token);
        wait(spawn(command)).code == 0
    };
    let both = token(&["rotate", &old, "--overlap", "1h"]);
    assert!(is_let_in(&old) && is_let_in(&both));
    let alone = token(&["rotate", &both]);
    assert!(is_let_in(&alone) && !is_let_in(&both) && is_let_in(&old));
    token(&["revoke", "--subject", "ci"]);
    assert!(!is_let_in(&alone) && !is_let_in(&old) && is_let_in(&other));
    let none = ["token", "revoke", "--subject", "nobody", "--data-dir", "service"];
    place.sandboxctl(none).assert_code(2).assert_stderr_has("no token of this subject");
    service.stop();
}
