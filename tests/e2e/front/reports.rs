//! Reports of `run` and `exec`, and test cases of scripts.

use std::os::unix::fs::symlink;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::conformance::exec_cli::Commands;
use crate::fixture::{Fixture, eventually, finish, spawn, wait, workspace};

const ALL: [&str; 10] = [
    "--report", "json=r.json", "--report", "ndjson=r.ndjson", "--report", "junit=r.xml",
    "--report", "markdown=r.md", "--report", "sarif=r.sarif",
];

const TESTS: &str = "print('begins')
test.case('sums', function() test.equal(1 + 1, 2) end)
test.case('words', function()
    test.equal({ word = 'a' }, { word = 'b' })
end)
test.case('later', function() test.skip('not yet') end)
return 7";

fn json_of(place: &Fixture, name: &str) -> Value {
    serde_json::from_str(&place.read(name)).unwrap()
}

fn events(place: &Fixture) -> Vec<Value> {
    let lines = place.read("r.ndjson");
    let events: Vec<Value> = lines.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let numbers: Vec<_> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
    assert_eq!(events[0]["schema"], "sandboxctl.events/1");
    events
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

fn assert_valid_junit(place: &Fixture) {
    let mut xmllint = Command::new("xmllint");
    let schema = workspace().join("tests/schemas/junit-10.xsd");
    xmllint.args(["--noout", "--schema"]).arg(schema).arg(place.path("r.xml"));
    finish(xmllint).assert_code(0);
}

#[test]
fn failed_test_case_makes_a_script_error_and_every_report_has_it() {
    let place = Fixture::new();
    place.write("sums.luau", TESTS);
    let ended = place.sandboxctl([&["run", "sums.luau"][..], &ALL].concat());
    ended.assert_code(1);
    assert_eq!(ended.stdout, "begins\n");
    ended.assert_stderr_has("1 of 3 test cases failed: words");
    ended.assert_stderr_has("words: script:4: expected \"b\", got \"a\" at .word");
    ended.assert_stderr_has("note: test cases: 1 passed, 1 failed, 1 skipped");

    let document = json_of(&place, "r.json");
    assert_eq!(document["status"], "script_error");
    assert_eq!((&document["error"]["line"], &document["result"]), (&json!(4), &Value::Null));
    let tests = document["tests"].as_array().unwrap();
    let reported: Vec<_> = tests.iter().map(|it| (&it["name"], &it["status"])).collect();
    let [sums, words, later] = ["sums", "words", "later"].map(|name| json!(name));
    let [passed, failed, skipped] = ["passed", "failed", "skipped"].map(|status| json!(status));
    assert_eq!(reported, [(&sums, &passed), (&words, &failed), (&later, &skipped)]);

    let events = events(&place);
    assert_eq!(kinds(&events), ["start", "log", "test", "test", "test", "end"]);
    assert_eq!((&events[1]["text"], &events[1]["level"]), (&json!("begins"), &json!("print")));
    assert_eq!(events[5]["document"], document);

    assert_valid_junit(&place);
    let xml = place.read("r.xml");
    assert!(xml.contains(r#"tests="3" failures="1" errors="0" skipped="1""#), "{xml}");
    let sarif = json_of(&place, "r.sarif");
    let location = &sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert_eq!(location["artifactLocation"]["uri"], "sums.luau");
    assert_eq!(location["region"]["startLine"], 4);
    assert!(place.read("r.md").contains("` words ` (line 4)"), "{}", place.read("r.md"));

    place.write("passes.luau", "test.case('a', function() end) return 7");
    let ended = place.sandboxctl(["run", "--json", "passes.luau"]);
    let document = place.document(&ended);
    assert_eq!((&document["result"], &document["tests"][0]["status"]), (&json!(7), &passed));
    assert!(place.run_json("return 1", &[]).get("tests").is_none());
}

#[test]
fn live_output_is_the_same_with_reports_and_several_scripts_are_in_one() {
    let place = Fixture::new();
    place.write("a.luau", "print('a') return { x = 1 }");
    place.write("b.luau", "print('b') error('no')");
    let plain = place.sandboxctl(["run", "a.luau", "b.luau"]);
    for jobs in ["1", "2"] {
        let scripts = ["run", "a.luau", "b.luau", "-j", jobs];
        let ended = place.sandboxctl([&scripts[..], &ALL].concat());
        ended.assert_code(1);
        assert_eq!(ended.stdout, plain.stdout);
        let documents: Vec<Value> =
            place.read("r.json").lines().map(|it| serde_json::from_str(it).unwrap()).collect();
        assert_eq!(
            (documents[0]["exit_code"].clone(), documents[1]["exit_code"].clone()),
            (json!(0), json!(1))
        );
        let events = events(&place);
        let of_b = events.iter().filter(|event| event["name"] == "b.luau").cloned();
        assert_eq!(kinds(&of_b.collect::<Vec<_>>()), ["start", "log", "end"]);
        assert_valid_junit(&place);
        assert!(place.read("r.md").contains("1 of 2 failed"));
    }
}

#[test]
fn report_of_a_command_has_its_output() {
    let commands = Commands::new();
    let place = &commands.place;
    let ended = commands.shell(&ALL, "echo out; echo err >&2; exit 3");
    ended.assert_code(3);
    assert_eq!(ended.stdout, "out\n");
    let document = json_of(place, "r.json");
    assert_eq!(document["schema"], "sandboxctl.exec/1");
    assert_eq!((&document["stdout"], &document["stderr"]), (&json!("out\n"), &json!("err\n")));
    let events = events(place);
    let last = events.last().unwrap();
    assert_eq!((&last["event"], &last["exit_code"]), (&json!("end"), &json!(3)));
    assert!(events.iter().any(|it| it["stream"] == "stderr" && it["text"] == "err\n"));
    assert_valid_junit(place);
    assert!(place.read("r.xml").contains(r#"message="exit code 3""#));
}

#[test]
fn reports_are_written_for_every_outcome() {
    let place = Fixture::new();
    let script = "print('on') fs.write('f', 'x') while true do end";
    place.write("loop.luau", script);
    let status = || json_of(&place, "r.json")["status"].as_str().unwrap().to_owned();

    let ended = place.sandboxctl([&["run", "loop.luau", "--timeout", "1s"][..], &ALL].concat());
    ended.assert_code(124);
    assert_eq!(status(), "timeout");
    assert_valid_junit(&place);
    assert!(place.read("r.xml").contains(r#"errors="1""#));

    // On a busy machine the second may have been over before it was made.
    _ = std::fs::remove_file(place.path("sandbox-files/f"));
    let child =
        spawn(place.command([&["run", "loop.luau", "--timeout", "60s"][..], &ALL].concat()));
    eventually("the script writes", || place.path("sandbox-files/f").exists().then_some(()));
    // Events are written as they come.
    eventually("its log is in the events", || {
        place.read("r.ndjson").lines().any(|line| line.contains(r#""text":"on""#)).then_some(())
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    wait(child).assert_code(143);
    assert_eq!(status(), "cancelled");
    assert_eq!(kinds(&events(&place)), ["start", "log", "end"]);
    assert_valid_junit(&place);
    let sarif = json_of(&place, "r.sarif");
    assert_eq!(sarif["runs"][0]["invocations"][0]["exitCode"], 143);

    // Nothing ran.
    let nowhere = ["run", "loop.luau", "--engine", "docker", "--host", "unix:///nonexistent.sock"];
    let ended = place.sandboxctl([&nowhere[..], &ALL].concat());
    ended.assert_code(125);
    assert_eq!(status(), "error");
    assert_eq!(kinds(&events(&place)), ["end"]);
    assert_valid_junit(&place);
}

#[test]
fn report_that_cannot_be_written_is_named_and_the_outcome_stands() {
    let place = Fixture::new();
    place.write("ok.luau", "return 'fine'");
    place.write("bad.luau", "error('its own')");
    for kind in ["json", "ndjson", "junit", "markdown", "sarif"] {
        let report = format!("{kind}=/dev/full");
        let ended =
            place.sandboxctl(["run", "ok.luau", "--report", &report, "--report", "json=r.json"]);
        let ended = match kind {
            "json" => place.sandboxctl(["run", "ok.luau", "--report", &report]),
            _ => {
                // The others are written.
                assert_eq!(json_of(&place, "r.json")["result"], "fine");
                ended
            }
        };
        ended.assert_code(125);
        assert_eq!(ended.stdout, "\"fine\"\n");
        ended.assert_stderr_has(&format!("error: cannot write --report {kind} /dev/full"));
        let ended = place.sandboxctl(["run", "bad.luau", "--report", &report]);
        ended.assert_code(1).assert_stderr_has("/dev/full");
        ended.assert_stderr_has("its own");
    }
}

#[test]
fn report_in_the_io_dir_is_refused_before_anything_runs() {
    let place = Fixture::new();
    place.write("ok.luau", "fs.write('ran', 'x')");
    std::fs::create_dir(place.path("io")).unwrap();
    symlink("io", place.path("link")).unwrap();
    for file in ["io/r.json", "link/r.json"] {
        let report = format!("json={file}");
        let ended = place.sandboxctl(["run", "ok.luau", "--io-dir", "io", "--report", &report]);
        ended.assert_code(2).assert_stderr_has("is in the io dir, where the run could replace it");
    }
    for (report, why) in [("json=no/such", "no/such"), ("html=x", "there is no kind 'html'")] {
        let ended = place.sandboxctl(["run", "ok.luau", "--io-dir", "io", "--report", report]);
        ended.assert_code(2).assert_stderr_has(why);
    }
    assert_eq!(std::fs::read_dir(place.path("io")).unwrap().count(), 0);
}

#[test]
fn file_is_written_through_no_link_in_the_io_dir() {
    let place = Fixture::new();
    place.write("io/kept", "");
    place.write("script.luau", "return 1");
    std::fs::create_dir(place.path("outside")).unwrap();
    symlink("../outside", place.path("io/link")).unwrap();
    symlink("io/link", place.path("round")).unwrap();
    for path in ["io/link/r", "round/r"] {
        for flags in [
            &["--report", &format!("json={path}")][..],
            &["--report", &format!("markdown={path}")],
            &["--receipt", path],
            &["--changes", path],
        ] {
            let run = ["run", "script.luau", "--io-dir", "io"];
            place.sandboxctl([&run, flags].concat()).assert_code(2);
        }
    }
    assert_eq!(std::fs::read_dir(place.path("outside")).unwrap().count(), 0);
}

#[test]
fn receipt_that_cannot_be_written_has_its_reason_in_every_report() {
    let place = Fixture::new();
    let flags = ["run", "-c", "return 1", "--json", "--receipt", "/dev/full"];
    let ended = place.sandboxctl([&flags[..], &ALL].concat());
    ended.assert_code(125).assert_stderr_has("/dev/full");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&document["status"], &document["exit_code"]), (&json!("ok"), &json!(125)));
    assert_eq!(document["receipt"]["error"]["kind"], "disk_full");
    assert_eq!(json_of(&place, "r.json")["receipt"], document["receipt"]);
    assert_valid_junit(&place);
    assert!(place.read("r.xml").contains(r#"<error type="disk_full" message=""#));
    let result = &json_of(&place, "r.sarif")["runs"][0]["results"][0];
    assert_eq!(result["ruleId"], "disk_full");
    // It is no file.
    assert_eq!(result.get("locations"), None);
    assert!(place.read("r.md").contains("/dev/full"));
}

#[test]
fn events_of_an_earlier_run_stay_until_something_runs() {
    let place = Fixture::new();
    place.write("r.ndjson", "of an earlier run");
    let report = ["run", "-c", "return 1", "--report", "ndjson=r.ndjson"];
    let refused = [&report[..], &["--report", "json=no/such/directory"]].concat();
    place.sandboxctl(refused).assert_code(2);
    assert_eq!(place.read("r.ndjson"), "of an earlier run");
    place.sandboxctl(report).assert_code(0);
    assert_eq!(kinds(&events(&place)), ["start", "end"]);
}
