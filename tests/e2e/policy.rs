//! What a sandbox can read of its own rules, and rules that are learnt: `http://policy.sandbox.internal`,
//! `--learn` and `--rules`, without a terminal. Nothing is asked here, so nothing is allowed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use sandbox_api::hosts::HOST_LOOPBACK;
use serde_json::{Value, json};

use crate::agent::network;
use crate::fixture::{Ended, Fixture, eventually, finish, spawn, wait};
use crate::rootfs::{Provided, Rootfs};

/// busybox, and the program that says what it reaches.
fn rootfs() -> Provided {
    Rootfs::busybox().copy("network", network()).provide()
}

/// `sandboxctl exec` of a line for the shell.
fn exec(place: &Fixture, rootfs: &Provided, flags: &[&str], line: &str) -> Command {
    let root = rootfs.args();
    let mut args = vec!["exec", "--timeout", "2m", "--shell", line];
    args.extend(flags);
    args.extend(root.iter().map(String::as_str));
    place.command(args)
}

/// A server of this machine's loopback that says hello.
fn server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            // A request that is not read would reset the connection, and its answer with it.
            let request = BufReader::new(&client).lines().map_while(Result::ok);
            request.take_while(|line| !line.is_empty()).for_each(drop);
            _ = client.write_all(b"HTTP/1.0 200 OK\r\n\r\nhello\n");
        }
    });
    port
}

/// Rules that are in force: lines that are no comments.
fn in_force(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| line.starts_with('"')).collect()
}

#[test]
fn program_reads_what_it_may_reach_and_why_the_last_host_was_refused() {
    let (place, rootfs) = (Fixture::new(), rootfs());
    let line = "for host in evil.example:443 10.0.0.1:80 policy.sandbox.internal:443; do \
                /network ask $host >/dev/null; done; \
                wget -q -O - http://policy.sandbox.internal/; \
                wget -q -O - http://policy.sandbox.internal/x; echo $?";
    let flags = ["--json", "--allow", "ok.example", "--allow", "*.internal:8080"];
    let ended = finish(exec(&place, &rootfs, &flags, line));
    let document: Value = serde_json::from_str(&ended.assert_code(0).stdout).unwrap();
    let printed = document["stdout"].as_str().unwrap();
    let (policy, status) = printed.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(status, "1", "nothing else is there: {document:#}");
    let policy: Value = serde_json::from_str(policy).unwrap();
    assert_eq!(policy["allow"], json!(["ok.example", "*.internal:8080"]));
    assert_eq!(policy["limits"]["connections"], 10_000);
    assert_eq!((&policy["tools"], &policy["injected"]), (&json!([]), &json!([])));
    let refused = json!([
        { "target": "evil.example:443", "reason": "not on the list", "allow": ["evil.example"] },
        { "target": "10.0.0.1:80", "reason": "private address", "allow": ["10.0.0.1"] },
        { "target": "policy.sandbox.internal:443", "reason": "not on the list", "allow": [] },
    ]);
    assert_eq!(policy["refused"], refused);
    // The controller answers it itself: it is no host that was connected to.
    assert_eq!(document["network"]["contacted"], json!([]));
    for rule in ["policy.sandbox.internal", "*.sandbox.internal"] {
        let ended = finish(exec(&place, &rootfs, &["--allow", rule], "true"));
        ended.assert_code(2).assert_stderr_has("the sandbox's own");
    }
}

#[test]
fn what_is_learnt_without_a_person_is_refused_and_stays_so_until_someone_reviews_it() {
    let (place, rootfs) = (Fixture::new(), rootfs());
    // A name of control characters is no host, and these addresses are not to be allowed.
    let line = r"for host in evil.example:8443 EVIL.example.:8443 8.8.8.8:53 127.0.0.1:80 10.0.0.1:80 \
                 169.254.169.254:80 metadata.google.internal:80 host.sandbox.internal:80; do \
                 /network ask $host | head -n 1; done; \
                 printf '\005\001\000\005\001\000\003\007\033[31m.x\000\001' | nc 127.0.0.1 3128 >/dev/null; exit 3";
    let ended = finish(exec(&place, &rootfs, &["--learn", "rules.toml"], line));
    assert_eq!(ended.assert_code(3).stdout, "HTTP/1.1 403 Forbidden\r\n".repeat(8));
    ended.assert_stderr_has("note: rules.toml: 0 rules in force, 2 to review");
    let text = place.read("rules.toml");
    assert_eq!(in_force(&text), [""; 0], "{text}");
    assert!(!text.contains(|it: char| it.is_control() && it != '\n'), "{text:?}");
    let rules: Vec<_> = text.lines().filter_map(|line| line.trim().strip_prefix("# \"")).collect();
    assert_eq!(rules, ["evil.example:8443\",", "8.8.8.8:53\","], "{text}");
    assert!(text.contains("# asked for once by a program; no question was asked\n"), "{text}");
    assert!(text.contains(", exec: for host in evil.example:8443 "), "{text}");
    // As rules it gives nothing.
    let again = ["--rules", "rules.toml", "--learn", "rules.toml"];
    let ended = finish(exec(&place, &rootfs, &again, "/network ask evil.example:8443"));
    assert!(ended.assert_code(0).stdout.starts_with("HTTP/1.1 403 "), "{ended:?}");
    ended.assert_stderr_has("note: rules.toml: no rule in force: all are comments");
    assert_eq!(place.read("rules.toml"), text);
}

#[test]
fn rules_of_a_file_are_added_and_what_a_person_wrote_in_it_is_kept() {
    let (place, rootfs) = (Fixture::new(), rootfs());
    let target = format!("{HOST_LOOPBACK}:{}", server());
    let before = format!("# Mine.\nallow = [\n  '{target}', # the build's server\n]\n");
    place.write("rules.toml", &before);
    let line = format!("wget -q -O - http://{target}/ && /network ask other.example:1 >/dev/null");
    let flags = ["--rules", "rules.toml", "--allow", "ok.example", "--learn", "rules.toml"];
    let ended = finish(exec(&place, &rootfs, &flags, &line));
    assert_eq!(ended.assert_code(0).stdout, "hello\n");
    let after = place.read("rules.toml");
    let new = after.strip_prefix(&before).unwrap();
    assert!(
        new.starts_with("\n[[learnt]] # ") && new.ends_with("\n    # \"other.example:1\",\n]\n"),
        "{after}"
    );
    // A script without programs has no use for its hosts.
    place.sandboxctl(["run", "-c", "return 1", "--rules", "rules.toml"]).assert_code(0);
}

#[test]
fn rules_are_written_after_an_interrupt_too() {
    let (place, rootfs) = (Fixture::new(), rootfs());
    let line = "/network ask evil.example:443 >/dev/null; touch asked; sleep 100";
    let command = exec(&place, &rootfs, &["--io-dir", "io", "--learn", "rules.toml"], line);
    let child = spawn(command);
    eventually("it has asked", || place.path("io/asked").exists().then_some(()));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    wait(child).assert_code(130);
    assert!(place.read("rules.toml").contains("# \"evil.example:443\","));
}

#[test]
fn rules_file_is_refused_where_it_is_wrong_or_a_run_could_write_it() {
    let place = Fixture::new();
    let run = |flags: &[&str]| -> Ended {
        place.sandboxctl(["run", "-c", "return 1"].iter().chain(flags))
    };
    place.write("wrong.toml", "allow = [\n  'a.example',\n  'b.example:x',\n]\n");
    let ended = run(&["--rules", "wrong.toml"]);
    ended.assert_code(2).assert_stderr_has("wrong.toml:3: allow: 'x' is not a port");
    // Before anything runs, and it stays as it is.
    run(&["--learn", "wrong.toml"]).assert_code(2).assert_stderr_has("wrong.toml:3: ");
    assert!(place.read("wrong.toml").ends_with("'b.example:x',\n]\n"));
    place.write("unknown.toml", "\n[network]\nallow = []\n");
    run(&["--rules", "unknown.toml"])
        .assert_code(2)
        .assert_stderr_has("unknown.toml:2: unknown field `network`");
    run(&["--rules", "missing.toml"]).assert_code(2).assert_stderr_has("no such file");
    place.write("io/rules.toml", "");
    for flag in ["--rules", "--learn"] {
        let ended = run(&["--io-dir", "io", flag, "io/rules.toml"]);
        ended.assert_code(2).assert_stderr_has("is in the io dir");
    }
    // A project has no say in it.
    place.write("sandboxctl.toml", "[network]\nrules = 'rules.toml'\n");
    run(&[]).assert_code(2).assert_stderr_has("unknown key 'network.rules'");
}
