//! Processes of kept sandboxes: they live on beside commands, and later clients find them,
//! their output and their end.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use sandbox_api::{Processes, SandboxSpec};
use sandbox_controller::{AgentSource, Command, Until};
use serde_json::{Value, json};

use super::living::{Living, Reader, assert_numbered, number, request, serve, text};
use crate::agent::Actor;
use crate::engine::engine;
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually, finish, in_its_time};
use crate::library::Library;
use crate::rootfs::Rootfs;

/// The process of this machine that has this argument.
fn on_host(argument: &str) -> Option<u32> {
    let mut processes = std::fs::read_dir("/proc").unwrap();
    processes.find_map(|entry| {
        let entry = entry.unwrap();
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let its = line.split(|&byte| byte == 0).any(|it| it == argument.as_bytes());
        entry.file_name().to_str()?.parse().ok().filter(|_| its)
    })
}

/// The processor time of a process of this machine, in ticks.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    // After the name: the 14th and the 15th of all.
    fields.split_whitespace().skip(11).take(2).map(|time| time.parse::<u64>().unwrap()).sum()
}

#[test]
fn process_lives_on_with_its_input_and_numbered_events_until_its_end() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let request = json!({ "command": { "program": "cat" }, "stdin": true, "tag": "echo" });
    let started = living.ask(201, "POST", "/processes", &request);
    assert_eq!((&started["id"], &started["state"]), (&json!(1), &json!("running")), "{started}");
    let pid = started["pid"].as_u64().unwrap();
    // Other clients find it by its number there, and in the list.
    living.run(&format!("kill -0 {pid}"));
    let listed = living.ask(200, "GET", "/processes?tag=echo&state=running", &Value::Null);
    assert_eq!(listed["processes"][0]["id"], 1, "{listed}");
    assert_eq!(living.view()["processes"], 1);

    let mut reader = living.read(1, "after=0");
    living.write(1, "one\n");
    let first = reader.until("one\n");
    assert_eq!((&first[0]["event"], &first[0]["seq"]), (&json!("start"), &json!(1)), "{first:?}");
    let seen = number(first.last().unwrap());
    // A client that is gone ends nothing, and misses nothing when it comes again.
    drop(reader);
    living.write(1, "two\n");
    let mut again = living.read(1, &format!("after={seen}"));
    let more = again.until("two\n");
    assert_numbered(&more, seen);
    assert_eq!(text(&more, "stdout"), "two\n");
    living.ask(204, "POST", "/processes/1/stdin/close", &Value::Null);
    let rest: Vec<Value> = again.collect();
    assert_eq!((&rest[0]["event"], &rest[0]["exit_code"]), (&json!("exit"), &json!(0)), "{rest:?}");
    let end = rest.last().unwrap();
    let document = &end["document"];
    assert_eq!((&end["event"], &end["exit_code"]), (&json!("end"), &json!(0)), "{end}");
    assert_eq!((&document["state"], &document["exit_code"]), (&json!("ended"), &json!(0)), "{end}");

    let all = living.events(1, 0);
    assert_numbered(&all, 0);
    assert_eq!(text(&all, "stdout"), "one\ntwo\n");
    let view = living.process(1);
    assert_eq!(view["last_event"], all.last().unwrap()["seq"], "{view}");
    let late = living.refused(409, "POST", "/processes/1/stdin", &json!("late"));
    assert!(["no_stdin", "process_ended"].contains(&&*late), "{late}");
    assert_eq!(living.refused(404, "GET", "/processes/2", &Value::Null), "not_found");
    assert_eq!(living.start_shell("exit 3"), 2, "an id is used once");
    assert_eq!(living.until(2, "ended")["exit_code"], 3);
    living.end();
}

/// Everything that a one-shot started, in whatever session, and with its output elsewhere.
const LEFT_BEHIND: &str = "sleep 7001 & (setsid sleep 7002 &) ; nohup sleep 7003 >/dev/null 2>&1 &";

#[test]
fn nothing_of_a_command_is_left_at_its_result_beside_processes_that_are_kept() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let kept = living.start_shell("setsid sleep 7004 & sleep 7005");
    eventually("both run", || (living.runs("7004") && living.runs("7005")).then_some(()));
    for _ in 0..3 {
        living.run(LEFT_BEHIND);
        for left in ["7001", "7002", "7003"] {
            assert!(!living.runs(left), "{left}");
        }
    }
    assert!(living.runs("7004") && living.runs("7005"));
    assert_eq!(living.process(kept)["state"], "running");
    living.end();
}

#[test]
fn what_a_process_leaves_still_prints_and_ends_with_its_tree_alone() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let other = living.start_shell("sleep 7011");
    let line = "(until [ -e go ]; do sleep 0.02; done; echo later; exec sleep 7012) & exit 3";
    let id = living.start_shell(line);
    let view = living.until(id, "left");
    assert_eq!((&view["exit_code"], &view["signal"]), (&json!(3), &Value::Null), "{view}");
    assert!(view["exited_at"].is_string(), "{view}");
    let mut reader = living.read(id, "after=0");
    living.touch("go");
    let events = reader.until("later\n");
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["start", "exit", "output"]);
    // The program has exited: only what it left is there to get a signal.
    eventually("it is what it will be", || living.runs("7012").then_some(()));
    living.signal(id, "KILL", "tree");
    let ended = living.until(id, "ended");
    assert_eq!((&ended["exit_code"], &ended["stopped"]), (&json!(3), &Value::Null), "{ended}");
    assert!(!living.runs("7012") && living.runs("7011"));
    assert_eq!(living.process(other)["state"], "running");
    let signal = json!({ "signal": "TERM", "to": "tree" });
    let refused = living.refused(409, "POST", &format!("/processes/{id}/signal"), &signal);
    assert_eq!(refused, "process_ended");
    living.end();
}

#[test]
fn signal_reaches_the_processes_that_it_names_and_no_others() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let line = "trap 'echo main' USR1\n\
        sh -c 'trap \"echo child\" USR1; echo ready; while :; do sleep 0.05; done' &\n\
        setsid sh -c 'trap \"echo far\" USR1; echo ready; while :; do sleep 0.05; done' &\n\
        echo ready\n\
        while :; do wait; done";
    let [id, other] = [line, line].map(|line| living.start_shell(line));
    let mut readers = [id, other].map(|id| living.read(id, "after=0"));
    for reader in &mut readers {
        let mut ready = 0;
        while ready < 3 {
            let event = reader.next().unwrap();
            let its = event["text"].as_str().unwrap_or_default();
            ready += its.matches("ready").count();
        }
    }
    let [mut reader, _] = readers;
    for (to, who) in [
        ("process", &["main"][..]),
        ("group", &["main", "child"]),
        ("tree", &["main", "child", "far"]),
    ] {
        living.signal(id, "USR1", to);
        let mut said = String::new();
        while !who.iter().all(|who| said.contains(who)) {
            let event = reader.next().unwrap();
            said.push_str(event["text"].as_str().unwrap_or_default());
        }
    }
    for id in [id, other] {
        living.signal(id, "KILL", "tree");
        assert_eq!(living.until(id, "ended")["signal"], 9);
    }
    let counts = |id| {
        let printed = text(&living.events(id, 0), "stdout");
        ["main", "child", "far"].map(|who| printed.lines().filter(|line| *line == who).count())
    };
    assert_eq!((counts(id), counts(other)), ([3, 2, 1], [0, 0, 0]));
    living.end();
}

#[test]
fn process_is_asked_to_end_and_killed_with_all_of_it_after_its_grace() {
    let place = Fixture::new();
    // Long enough for a shell to hear of it, on a busy machine too.
    let limits = json!({ "spec": { "limits": { "stop_timeout_ms": 5000 } } });
    let Some(living) = Living::with(&place, &Rootfs::busybox(), limits) else { return };
    // One that ends when it is asked to.
    let id =
        living.start_shell("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done");
    living.read(id, "after=0").until("up\n");
    let ended = living.end_process(id);
    assert_eq!((&ended["exit_code"], &ended["stopped"]), (&json!(5), &json!("cancelled")));
    assert_eq!(text(&living.events(id, 0), "stdout"), "up\nbye\n");
    // One that is asked by a signal of its own.
    let line = "trap '' TERM; trap 'exit 6' INT; echo up; while :; do sleep 0.05; done";
    let id = living.start(&json!({ "command": { "shell": line }, "stop_signal": "INT" }));
    living.read(id, "after=0").until("up\n");
    let ended = living.end_process(id);
    assert_eq!((&ended["exit_code"], &ended["stopped"]), (&json!(6), &json!("cancelled")));
    // One that has no time for that, whatever its sandbox gives.
    let line = "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done";
    let at_once = json!({ "command": { "shell": line }, "stop_timeout_ms": 0 });
    let mut run = place.command(["sandbox", "run", "-d", "--stop-timeout", "0", &*living.id]);
    run.args(["--shell", line]).env("SANDBOXCTL_SERVER", &living.service.url);
    let run = run.output().unwrap();
    let number = String::from_utf8(run.stdout).unwrap();
    for id in [living.start(&at_once), number.trim().parse().unwrap()] {
        living.read(id, "after=0").until("up\n");
        let ended = living.end_process(id);
        assert_eq!((&ended["signal"], &ended["stopped"]), (&json!(9), &json!("cancelled")));
    }
    // A command that ends with its result has a signal and a grace of its own too.
    let line = "trap '' TERM; trap 'echo bye; exit 6' INT; echo up; while :; do sleep 0.05; done";
    let timed_out = |time: Duration| {
        let time = format!("{}s", time.as_secs());
        let mut exec = place.command(["sandbox", "exec", "--json", "--timeout", &*time]);
        exec.args(["--stop-signal", "INT", "--stop-timeout", "60s", &*living.id, "--shell", line]);
        let ended = exec.env("SANDBOXCTL_SERVER", &living.service.url).output().unwrap();
        serde_json::from_slice::<Value>(&ended.stdout).unwrap()
    };
    let has_begun = |ended: &Value| ended["stdout"].as_str().unwrap().starts_with("up\n");
    let ended = in_its_time(timed_out, has_begun);
    assert_eq!((&ended["status"], &ended["exit_code"]), (&json!("timeout"), &json!(6)), "{ended}");
    assert_eq!(ended["stdout"], "up\nbye\n");
    // One that does not, with processes in sessions of their own.
    let line = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 7021; sleep 7022' & sleep 7023; sleep 7024";
    let timed_out = |time: Duration| {
        let millis = u64::try_from(time.as_millis()).unwrap();
        let id = living.start(&json!({ "command": { "shell": line }, "timeout_ms": millis }));
        living.until(id, "ended")
    };
    // It may not have begun to ignore what asks it to end.
    let ended = in_its_time(timed_out, |ended| ended["signal"] == 9);
    assert_eq!((&ended["signal"], &ended["stopped"]), (&json!(9), &json!("timeout")), "{ended}");
    for of_it in ["7021", "7022", "7023", "7024"] {
        assert!(!living.runs(of_it), "{of_it}");
    }
    living.end();
}

#[test]
fn output_beyond_what_is_kept_is_reported_as_missing() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let id = living.start_shell("head -c 3000000 /dev/zero | tr '\\0' a; echo; echo done");
    let view = living.until(id, "ended");
    let events = living.events(id, 0);
    assert_numbered(&events, 0);
    assert_eq!(events[0]["event"], "omitted", "{:?}", events[0]);
    assert_eq!(view["first_event"], number(&events[0]) + 1, "{view}");
    let kept = text(&events, "stdout");
    assert!(kept.ends_with("a\ndone\n"), "{}", &kept[kept.len() - 20..]);
    assert!((500_000..1_100_000).contains(&kept.len()), "{}", kept.len());
    // A client that has a part gets what follows.
    let middle = &events[events.len() / 2];
    let rest = living.events(id, number(middle));
    assert_eq!(rest, events[events.len() / 2 + 1..]);
    assert_eq!(living.events(id, number(events.last().unwrap())), Vec::<Value>::new());
    living.end();
}

#[test]
fn reader_that_does_not_read_holds_no_process_up() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let id = living.start_shell("head -c 12000000 /dev/zero | tr '\\0' a");
    let readers = [0; 2].map(|_| living.read(id, "after=0&mode=lossy"));
    assert_eq!(living.until(id, "ended")["exit_code"], 0);
    for reader in readers {
        let events: Vec<Value> = reader.collect();
        assert_numbered(&events, 0);
        assert_eq!(events.last().unwrap()["event"], "end");
    }
    living.end();
}

#[test]
fn reader_that_waits_and_never_reads_holds_a_process_up_for_a_while_only() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let id = living.start_shell("head -c 40000000 /dev/zero | tr '\\0' a");
    let waiting = living.read(id, "after=0&mode=wait");
    assert_eq!(living.until(id, "ended")["exit_code"], 0);
    let events: Vec<Value> = waiting.collect();
    assert_numbered(&events, 0);
    assert!(events.iter().any(|event| event["event"] == "omitted"), "the omission is reported");
    living.end();
}

#[test]
fn process_has_eight_readers_and_the_next_is_refused() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let id = living.start(&json!({ "command": { "program": "cat" }, "stdin": true }));
    let mut readers: Vec<Reader> = (0..8).map(|_| living.read(id, "after=now")).collect();
    let (ninth, _) = living.send("GET", &format!("/processes/{id}/events"), "");
    assert!([409, 429].contains(&ninth), "{ninth}");
    living.write(id, "to all\n");
    for reader in &mut readers {
        assert_eq!(text(&reader.until("to all\n"), "stdout"), "to all\n");
    }
    drop(readers);
    eventually("there is room again", || {
        // The service hears of those that are gone when it next writes to them.
        living.write(id, "x\n");
        let path = format!("/v1/sandboxes/{}/processes/{id}/events?after=now", living.id);
        let address = living.service.url.strip_prefix("http://").unwrap();
        let mut connection = TcpStream::connect(address).unwrap();
        write!(connection, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").unwrap();
        let mut status = String::new();
        BufReader::new(connection).read_line(&mut status).unwrap();
        status.contains(" 200 ").then_some(())
    });
    living.end();
}

#[test]
fn input_that_is_never_read_is_refused_and_others_have_theirs() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let deaf = living.start(&json!({ "command": { "shell": "exec sleep 7031" }, "stdin": true }));
    let hears = living.start(&json!({ "command": { "program": "cat" }, "stdin": true }));
    let piece = "x".repeat(100_000);
    let path = format!("/processes/{deaf}/stdin");
    let refused = (0..20).map(|_| living.send("POST", &path, &piece)).find(|it| it.0 != 204);
    let (status, problem) = refused.expect("it takes no two megabytes");
    assert_eq!(status, 409, "{problem}");
    assert!(problem.contains("stdin_full"), "{problem}");
    living.write(hears, "hello\n");
    living.read(hears, "after=0").until("hello\n");
    assert_eq!(living.run("echo ok"), "ok\n");
    living.end();
}

#[test]
fn sandbox_has_sixty_four_processes_and_the_next_is_refused() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let cat = json!({ "command": { "program": "cat" }, "stdin": true });
    let ids: Vec<u64> = (0..64).map(|_| living.start(&cat)).collect();
    let (next, refused) = living.send("POST", "/processes", &cat.to_string());
    assert!([409, 429].contains(&next), "{refused}");
    for id in &ids {
        living.write(*id, &format!("for {id}\n"));
    }
    for id in &ids {
        let line = format!("for {id}\n");
        assert_eq!(text(&living.read(*id, "after=0").until(&line), "stdout"), line);
    }
    assert_eq!(living.view()["processes"], 64);
    // One ends, and there is room for a command.
    living.end_process(ids[0]);
    assert_eq!(living.run("echo ok"), "ok\n");
    living.end();
}

#[test]
fn merged_output_is_in_the_order_of_writing() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let line = "for n in 1 2 3 4 5; do echo out $n; echo error $n >&2; done";
    let id = living.start(&json!({ "command": { "shell": line }, "merge": true }));
    living.until(id, "ended");
    let expected: String = (1..=5).map(|n| format!("out {n}\nerror {n}\n")).collect();
    assert_eq!(text(&living.events(id, 0), "stdout"), expected);
    living.end();
}

#[test]
fn process_that_uses_up_the_memory_is_reported_so_and_the_sandbox_serves_on() {
    if !has(Feature::OwnMemory) || !has(Feature::OutOfMemory) {
        return;
    }
    let place = Fixture::new();
    let limits = json!({ "spec": { "limits": { "memory_bytes": 64 << 20 } } });
    let Some(living) = Living::with(&place, &Rootfs::busybox(), limits) else { return };
    let kept = living.start_shell("sleep 7041");
    let id = living.start(&json!({ "command": { "program": "tail", "args": ["/dev/zero"] } }));
    let ended = living.until(id, "ended");
    assert_eq!((&ended["signal"], &ended["stopped"]), (&json!(9), &Value::Null), "{ended}");
    // Whose kill it was is not known everywhere.
    assert_ne!(ended["out_of_memory"], false, "{ended}");
    assert!(ended["peak_memory_bytes"].as_u64() > Some(16 << 20), "{ended}");
    assert_eq!(living.process(kept)["state"], "running");
    // A kill by another process is not part of it.
    living.signal(kept, "KILL", "process");
    assert_eq!(living.until(kept, "ended")["out_of_memory"], false);
    living.end();
}

/// A busy program that has this word.
fn busy(word: &str) -> Value {
    json!({ "command": { "program": "sh", "args": ["-c", "while :; do :; done", word] } })
}

/// Asserts that a process of this machine does not run while others of it do much.
#[track_caller]
fn assert_frozen(living: &Living<'_>, word: &str) {
    if !has(Feature::SharedKernel) {
        return;
    }
    let pid = on_host(word).expect("it is there");
    let before = ticks(pid);
    // It would use some of the time that these take.
    (0..100).for_each(|_| drop(living.view()));
    assert_eq!(ticks(pid), before);
}

#[test]
fn paused_sandbox_runs_no_instruction_and_goes_on_where_it_was() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let word = format!("busy-{}", std::process::id());
    let id = living.start(&busy(&word));
    let cat = living.start(&json!({ "command": { "program": "cat" }, "stdin": true }));
    let verb = |verb: &str, status: &str| {
        let mut command = place.command(["sandbox", verb, &*living.id]);
        command.env("SANDBOXCTL_SERVER", &living.service.url);
        finish(command).assert_code(0);
        assert_eq!(living.view()["status"], status);
    };
    let paused = living.ask(200, "POST", "/pause", &Value::Null);
    assert_eq!(paused["status"], "paused", "{paused}");
    // Twice is as good as once.
    verb("pause", "paused");
    assert_frozen(&living, &word);
    // What is known of its processes is known meanwhile.
    assert_eq!(living.process(id)["state"], "running");
    let resumed = living.ask(200, "POST", "/resume", &Value::Null);
    assert_eq!(resumed["status"], "ready", "{resumed}");
    verb("resume", "ready");
    living.write(cat, "awake\n");
    living.read(cat, "after=0").until("awake\n");
    assert_eq!(living.view()["generation"], 1);
    verb("pause", "paused");
    verb("resume", "ready");
    // It can be ended while it is paused.
    living.ask(200, "POST", "/pause", &Value::Null);
    living.end();
}

#[test]
fn sandbox_that_is_paused_for_longer_than_an_agent_may_be_silent_goes_on_as_it_was() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let cat = living.start(&json!({ "command": { "program": "cat" }, "stdin": true }));
    let pid = living.process(cat)["pid"].clone();
    living.ask(200, "POST", "/pause", &Value::Null);
    // An agent that is not paused is given up after 15 s.
    std::thread::sleep(Duration::from_secs(20));
    assert_eq!(living.view()["status"], "paused");
    living.ask(200, "POST", "/resume", &Value::Null);
    living.write(cat, "awake\n");
    living.read(cat, "after=0").until("awake\n");
    let process = living.process(cat);
    assert_eq!((&process["state"], &process["pid"]), (&json!("running"), &pid), "{process}");
    assert_eq!(living.view()["generation"], 1);
    living.end();
}

#[test]
fn idle_sandbox_is_frozen_with_its_processes_and_thawed_by_a_use() {
    let place = Fixture::new();
    let request = json!({ "idle": "freeze", "idle_ms": 100 });
    let Some(living) = Living::with(&place, &Rootfs::busybox(), request) else { return };
    let word = format!("idle-{}", std::process::id());
    let id = living.start(&busy(&word));
    let frozen = || {
        eventually("it is paused", || (living.view()["status"] == "paused").then_some(()));
    };
    frozen();
    assert_frozen(&living, &word);
    assert_eq!(place.containers().len(), 1);
    assert_eq!(living.run("echo used"), "used\n");
    frozen();
    living.touch("used");
    frozen();
    living.signal(id, "TERM", "group");
    assert_eq!(living.until(id, "ended")["signal"], 15);
    assert_eq!(living.view()["generation"], 1, "it was never stopped");
    living.end();
}

#[test]
fn paused_sandbox_of_a_killed_service_is_removed() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let word = format!("paused-{}", std::process::id());
    let id = living.start(&busy(&word));
    living.touch("kept");
    living.ask(200, "POST", "/pause", &Value::Null);
    // Without a service: what removes it is `gc`.
    let living = living.restart_after_a_kill(&place, || {
        eventually("nothing of it is left", || {
            place.sandboxctl(["gc"]).assert_code(0);
            (place.containers().is_empty() && on_host(&word).is_none()).then_some(())
        });
    });
    eventually("it is stopped", || (living.view()["status"] == "stopped").then_some(()));
    // Its processes ended with their generation; its files did not.
    let old = format!("/processes/{id}?generation=1");
    assert_eq!(living.refused(410, "GET", &old, &Value::Null), "gone");
    assert_eq!(living.run("ls"), "kept\n");
    let list = living.ask(200, "GET", "/processes", &Value::Null);
    assert_eq!(list["processes"], json!([]));
    living.end();
}

#[test]
fn processes_of_a_killed_service_end_and_are_gone_for_its_successor() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let word = format!("orphan-{}", std::process::id());
    let id = living.start(&busy(&word));
    living.start_shell(&format!("setsid sh -c 'while :; do :; done' {word} & exit 0"));
    eventually("both run", || living.runs(&word).then_some(()));
    let living = living.restart_after_a_kill(&place, || ());
    eventually("no process of it runs", || on_host(&word).is_none().then_some(()));
    let old = format!("/processes/{id}/events?generation=1");
    assert_eq!(living.refused(410, "GET", &old, &Value::Null), "gone");
    assert_eq!(living.run("echo on"), "on\n");
    assert_eq!(living.view()["generation"], 2);
    living.end();
}

#[test]
fn processes_end_with_their_sandbox_despite_readers() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let word = format!("removed-{}", std::process::id());
    let id = living.start(&busy(&word));
    let left = living.start_shell("(sleep 7051 &); exit 0");
    living.until(left, "left");
    let reader = living.read(id, "after=0");
    living.ask(204, "DELETE", "", &Value::Null);
    assert_eq!(on_host(&word), None);
    // Its events end too, whether with an end or with the connection.
    assert_numbered(&reader.collect::<Vec<_>>(), 0);
    let (status, _) = living.send("GET", &format!("/processes/{id}"), "");
    assert!([404, 410].contains(&status), "{status}");
    living.service.stop();
}

#[test]
fn tree_that_forks_without_end_is_paused_and_killed() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let line = "chase() { (chase &) ; }; chase; (setsid sh -c 'f() { (f &) ; }; f' &)";
    let id = living.start_shell(line);
    living.until(id, "left");
    living.ask(200, "POST", "/pause", &Value::Null);
    living.ask(200, "POST", "/resume", &Value::Null);
    living.end_process(id);
    // The agent, the shell and what it asks, each.
    let listed = living.run("echo /proc/[0-9]*/exe | wc -w");
    assert!((2..=4).contains(&listed.trim().parse::<u32>().unwrap()), "{listed}");
    let again = living.start_shell(line);
    living.until(again, "left");
    living.end();
}

#[test]
fn sandbox_without_kept_processes_starts_none() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let service = serve(&place, &provided);
    let mut request = request(&provided, json!({}));
    request["spec"]["processes"] = json!("per_command");
    let (status, created) = service.http("POST", "/v1/sandboxes", "", &request.to_string());
    assert_eq!(status, 201, "{created}");
    let created: Value = serde_json::from_str(&created).unwrap();
    let path = format!("/v1/sandboxes/{}/processes", created["id"].as_str().unwrap());
    let process = json!({ "command": { "program": "true" } }).to_string();
    let (status, problem) = service.http("POST", &path, "", &process);
    assert!((400..500).contains(&status), "{status} {problem}");
    assert!(problem.contains("kept"), "it says what to ask for: {problem}");
    service.stop();
}

#[test]
fn client_that_was_killed_finds_its_log_again() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let command = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("SANDBOXCTL_SERVER", &living.service.url);
        command
    };
    let build = "echo begun; until [ -e go ]; do sleep 0.02; done; echo built; exit 3";
    let mut detached = command(&["sandbox", "run", "-d", &living.id, "--", "sh", "-c", build]);
    let detached = detached.output().unwrap();
    assert!(detached.status.success(), "{detached:?}");
    let id = String::from_utf8(detached.stdout).unwrap().trim().to_owned();
    let mut follower = command(&["sandbox", "logs", "-f", &living.id, &id]);
    let mut follower = follower.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(follower.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    follower.kill().unwrap();
    follower.wait().unwrap();
    living.touch("go");
    let again = command(&["sandbox", "logs", "-f", &living.id, &id]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&again.stdout), "begun\nbuilt\n", "{again:?}");
    let listed = command(&["sandbox", "ps", "-a", &living.id]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains(&id) && listed.contains('3'), "{listed}");
    living.end();
}

#[test]
fn container_that_is_killed_ends_its_processes_and_the_next_use_has_none() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    let id = living.start_shell("sleep 7061");
    let reader = living.read(id, "after=0");
    engine().kill(&place.containers()[0]);
    assert_numbered(&reader.collect::<Vec<_>>(), 0);
    eventually("the service knows", || {
        let (status, _) = living.send("GET", &format!("/processes/{id}?generation=1"), "");
        (status == 410).then_some(())
    });
    assert_eq!(living.run("echo on"), "on\n");
    assert_eq!(living.view()["generation"], 2);
    living.end();
}

#[test]
fn process_whose_agent_breaks_the_protocol_ends_with_its_sandbox() {
    let actor = Actor::new();
    let provided = Rootfs::busybox().provide();
    let agent = AgentSource::File(actor.program().to_owned());
    let library = Library::with_agent(&actor.place, agent);
    let launch = |play: &str| {
        actor.place.write("sandbox-files/play", play);
        let io_dir = actor.place.path("sandbox-files");
        let spec = SandboxSpec::new().io_dir(io_dir).root(provided.root());
        library.launch(spec.processes(Processes::Kept))
    };
    for play in [
        "started-twice", "started-for-nobody", "exited-first", "exited-twice", "prints-first",
        "answers-without-exited", "answers-otherwise", "miscounts", "exited-after-the-answer",
        "floods",
    ] {
        let sandbox = launch(play);
        library.wait(async {
            // Its start may fail for that.
            if let Ok(process) = sandbox.start_process(Command::new("true").merged()).await {
                process.until(Until::Ended).await;
            }
            sandbox.until_ended().await;
        });
        let error = sandbox.ended().unwrap();
        assert_eq!(error.kind().as_str(), "agent_lost", "{play}: {error}");
    }
    let sandbox = launch("honest");
    let process = library.wait(sandbox.start_process(Command::new("true").merged())).unwrap();
    library.wait(process.until(Until::Ended));
    assert_eq!(process.view().exit_code, Some(0));
    assert!(sandbox.ended().is_none(), "{:?}", sandbox.ended());
    library.wait(sandbox.close()).unwrap();
}
