//! Receipts: the inputs and outputs of a run, verified and replayed by somebody else.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::exec_cli::Commands;
use crate::fixture::{Ended, Fixture, eventually, finish, sandboxctl, spawn, wait};

const SCRIPT: &str = "local sum = 0
for line in io.lines('/in/sales.csv') do sum += tonumber(line) or 0 end
fs.write('dist/report.txt', `{args.title}: {sum}, {math.random(1000)}, {os.date('%Y-%m-%d')}\\n`)
fs.write('dist/data.json', json.encode({sum = sum}))
return sum";

/// The flags of the run and of its replay that say what it is made of.
const MADE_OF: [&str; 4] = ["--in", "sales.csv", "--arg", "title=Sales"];

/// A run with a signed receipt, as a job makes it.
fn job() -> Fixture {
    let place = Fixture::new();
    place.write("sales.csv", "10\n32\n");
    place.write("script.luau", SCRIPT);
    place.sandboxctl(["keys", "new", "release.key"]).assert_code(0);
    let ended = place.sandboxctl(
        [
            &["run", "script.luau"][..],
            &MADE_OF,
            &["--artifact", "dist", "--artifacts-dir", "out", "--seed", "7"],
            &["--now", "2026-01-01T00:00:00Z"],
            &["--receipt", "receipt.json", "--sign", "release.key"],
        ]
        .concat(),
    );
    ended.assert_code(0);
    place
}

fn verify(place: &Fixture, more: &[&str]) -> Ended {
    place.sandboxctl([&["receipt", "verify", "receipt.json"], more].concat())
}

const BY_KEY: [&str; 4] = ["--key", "release.key.pub", "--artifacts", "out"];

fn replay(place: &Fixture, more: &[&str]) -> Ended {
    let flags = ["replay", "receipt.json", "--script", "script.luau"];
    place.sandboxctl([&flags[..], more].concat())
}

/// What differs, without the lines that say how.
fn differing(replayed: &Ended) -> String {
    let lines = replayed.assert_code(1).stdout.split_inclusive('\n');
    lines.filter(|line| !line.starts_with(' ')).collect()
}

/// The statement in a receipt.
fn statement(place: &Fixture) -> Value {
    let document: Value = serde_json::from_str(&place.read("receipt.json")).unwrap();
    let Some(payload) = document["payload"].as_str() else { return document };
    let payload: sandbox_protocol::Base64 = serde_json::from_value(json!(payload)).unwrap();
    serde_json::from_slice(&payload.0).unwrap()
}

/// The path leads to something else while the run opens it, and back again before the receipt is made.
#[test]
fn receipt_is_only_of_what_the_run_has_opened() {
    let place = Fixture::new();
    place.write("data/f", "digested");
    place.write("other/f", "used");
    place.write("a.luau", "fs.write('seen', fs.read('/in/f')) while not fs.exists('go') do end");
    let point = place.home().join("Registered");
    // With artifacts it works in the io dir itself, where the test sees it and can end it.
    let flags = ["--artifact", "seen", "--artifacts-dir", "out", "--receipt", "r"];
    let mut run = place.command(["run", "a.luau", "--in", "data/f"].iter().chain(&flags));
    run.env("SANDBOX_FAILPOINT", &point);
    let run = spawn(run);
    eventually("it is digested", || point.exists().then_some(()));
    let exchange = || {
        for (from, to) in [("data", "aside"), ("other", "data"), ("aside", "other")] {
            fs::rename(place.path(from), place.path(to)).unwrap();
        }
    };
    exchange();
    fs::write(point.with_extension("go"), "").unwrap();
    let seen = place.path("sandbox-files/seen");
    eventually("it is used", || fs::read_to_string(&seen).ok().filter(|it| it == "used"));
    exchange();
    place.write("sandbox-files/go", "");
    let ended = wait(run);
    assert_ne!(ended.code, 0, "{ended:#?}");
    ended.assert_stderr_has("data/f changed while the run used it: no receipt");
    assert!(!place.path("r").exists());
}

#[test]
fn artifacts_are_verified_and_made_again_by_who_has_the_receipt() {
    let place = job();
    assert_eq!(place.read("out/dist/report.txt").split(", ").last(), Some("2026-01-01\n"));
    let verified = verify(&place, &BY_KEY);
    assert_eq!(verified.assert_code(0).stdout, "verified the signature and 2 files\n");
    let replayed = replay(&place, &[&MADE_OF[..], &BY_KEY[..2]].concat());
    assert_eq!(replayed.assert_code(0).stdout, "identical\n", "{}", replayed.stderr);
    // Nothing of the host, and everything that determined the result.
    let statement = statement(&place);
    let text = statement.to_string();
    assert!(!text.contains(place.work().to_str().unwrap()), "{text}");
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
    let names = |list: &Value| -> Vec<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&statement["subject"]), ["dist/data.json", "dist/report.txt"]);
    let definition = &statement["predicate"]["buildDefinition"];
    let made_of = names(&definition["resolvedDependencies"]);
    assert_eq!(made_of, ["agent", "args", "in/sales.csv", "script"]);
    let mut sum = Command::new("sha256sum");
    sum.args(["out/dist/data.json", "sales.csv", "script.luau"]).current_dir(place.work());
    let sums = finish(sum).stdout;
    let sums: Vec<_> = sums.lines().map(|line| line.split(' ').next().unwrap()).collect();
    let dependencies = &definition["resolvedDependencies"];
    let digests = [&statement["subject"][0], &dependencies[2], &dependencies[3]];
    assert_eq!(digests.map(|it| it["digest"]["sha256"].as_str().unwrap()), sums[..]);
    let outcome = &statement["predicate"]["runDetails"]["byproducts"][0]["annotations"];
    assert_eq!(outcome, &json!({"status": "ok", "exit_code": 0}));
}

#[test]
fn second_job_verifies_and_replays_what_the_first_one_published() {
    let first = Fixture::new();
    first.write("sales.csv", "10\n32\n");
    first.write("script.luau", SCRIPT);
    first.sandboxctl(["keys", "new", "release.key"]).assert_code(0);
    let mut job = first.command(
        [
            &["run", "script.luau"][..],
            &MADE_OF,
            &["--artifact", "dist", "--artifacts-dir", "out", "--seed", "7"],
            &["--now", "2026-01-01T00:00:00Z"],
            &["--receipt", "receipt.json", "--sign", "release.key"],
        ]
        .concat(),
    );
    job.env("GITHUB_ACTIONS", "true");
    job.env("GITHUB_STEP_SUMMARY", first.path("summary.md"));
    job.env("GITHUB_OUTPUT", first.path("outputs"));
    finish(job).assert_code(0);
    assert!(first.read("summary.md").contains("script.luau"));
    assert!(first.read("outputs").contains("status"));

    // On another machine, with what was published and the public key.
    let second = Fixture::new();
    let published = ["receipt.json", "release.key.pub", "sales.csv", "script.luau"];
    let artifacts = ["out/dist/data.json", "out/dist/report.txt"];
    for name in published.iter().chain(&artifacts) {
        second.write(name, first.read(name));
    }
    let verified = verify(&second, &[&BY_KEY[..], &["--require-ok"]].concat());
    assert_eq!(verified.assert_code(0).stdout, "verified the signature and 2 files\n");
    let again = [&MADE_OF[..], &BY_KEY[..2]].concat();
    assert_eq!(replay(&second, &again).assert_code(0).stdout, "identical\n");
    second.write("out/dist/data.json", "{}");
    verify(&second, &BY_KEY).assert_code(1);
    second.write("script.luau", "return 42");
    replay(&second, &again).assert_code(1);
    second.write("receipt.json", first.read("receipt.json").replacen("a", "b", 40));
    assert_ne!(verify(&second, &BY_KEY[..2]).code, 0);
}

#[test]
fn private_key_is_read_by_openssl_and_node_and_signs_for_its_public_key() {
    let place = job();
    let public = place.read("release.key.pub");
    let mut openssl = Command::new("openssl");
    openssl.args(["pkey", "-in", "release.key", "-pubout"]).current_dir(place.work());
    assert_eq!(finish(openssl).assert_code(0).stdout, public);
    let mut node = Command::new("node");
    let program = "const {createPrivateKey, createPublicKey} = require('crypto');
        const key = createPrivateKey(require('fs').readFileSync('release.key'));
        process.stdout.write(createPublicKey(key).export({type: 'spki', format: 'pem'}));";
    node.args(["-e", program]).current_dir(place.work());
    assert_eq!(finish(node).assert_code(0).stdout, public);
    // One of an earlier version, which has the public key in it, is read all the same.
    place.write(
        "v2.key",
        "-----BEGIN PRIVATE KEY-----\n\
         MFECAQEwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
         gSEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
         -----END PRIVATE KEY-----\n",
    );
    place.write("script.luau", "return 1");
    let run = ["run", "script.luau", "--no-io", "--receipt", "v2.json", "--sign", "v2.key"];
    place.sandboxctl(run).assert_code(0).assert_stderr_has("others can read it: chmod 600");
}

#[test]
fn receipt_from_a_pipe_without_a_writer_is_not_waited_for() {
    let place = job();
    for (name, fifo) in [("receipt.json", "r"), ("release.key.pub", "k")] {
        let mut mkfifo = Command::new("mkfifo");
        mkfifo.arg(fifo).current_dir(place.work());
        finish(mkfifo).assert_code(0);
        let named = |file: &str| if file == name { fifo } else { file }.to_owned();
        let [receipt, key] = ["receipt.json", "release.key.pub"].map(named);
        let verify = ["receipt", "verify", &receipt, "--key", &key];
        place.sandboxctl(verify).assert_code(2).assert_stderr_has("it is a pipe without a writer");
        let again = ["replay", &receipt, "--key", &key, "--script", "script.luau"];
        place.sandboxctl(again).assert_code(2).assert_stderr_has("it is a pipe without a writer");
    }
    // What a shell makes of `<(…)` is one that somebody writes to.
    let mut bash = Command::new("bash");
    let verify = r#"exec "$0" receipt verify <(cat receipt.json) --key <(cat release.key.pub)"#;
    bash.args(["-c", verify]).arg(sandboxctl());
    place.equip(&mut bash);
    finish(bash).assert_code(0);
}

#[test]
fn signature_is_what_openssl_verifies() {
    let place = job();
    let envelope: Value = serde_json::from_str(&place.read("receipt.json")).unwrap();
    let bytes = |value: &Value| -> Vec<u8> {
        serde_json::from_value::<sandbox_protocol::Base64>(value.clone()).unwrap().0
    };
    let payload = bytes(&envelope["payload"]);
    let kind = "application/vnd.in-toto+json";
    assert_eq!(envelope["payloadType"], kind);
    let mut signed = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    signed.extend(payload);
    place.write("signed", signed);
    place.write("signature", bytes(&envelope["signatures"][0]["sig"]));
    let mut openssl = Command::new("openssl");
    openssl.args(["pkeyutl", "-verify", "-pubin", "-inkey", "release.key.pub", "-rawin"]);
    openssl.args(["-in", "signed", "-sigfile", "signature"]).current_dir(place.work());
    finish(openssl).assert_code(0);
}

#[test]
fn tampered_artifact_receipt_and_script_are_refused() {
    let place = job();
    place.write("out/dist/data.json", "{\"sum\":43}");
    place.write("out/dist/more", "");
    fs::remove_file(place.path("out/dist/report.txt")).unwrap();
    let differs = verify(&place, &BY_KEY);
    let lines = "changed    dist/data.json\nunexpected dist/more\nmissing    dist/report.txt\n";
    assert_eq!(differs.assert_code(1).stdout, lines);
    // Each byte of a signed receipt counts.
    let receipt = place.read("receipt.json");
    let mut envelope: Value = serde_json::from_str(&receipt).unwrap();
    let forged = statement(&place).to_string().replace("\"seed\":7", "\"seed\":8");
    envelope["payload"] =
        serde_json::to_value(sandbox_protocol::Base64(forged.into_bytes())).unwrap();
    place.write("receipt.json", envelope.to_string());
    let refused = verify(&place, &BY_KEY[..2]);
    refused.assert_code(1).assert_stderr_has("no signature of the receipt is by this key");
    replay(&place, &[&MADE_OF[..], &BY_KEY[..2]].concat())
        .assert_code(1)
        .assert_stderr_has("no signature of the receipt is by this key");
    // Without a key the forgery is undetected, and the message says so; its replay differs.
    verify(&place, &[]).assert_code(0).assert_stderr_has("anybody may have written");
    let differs = replay(&place, &MADE_OF);
    assert_eq!(differing(&differs), "changed    dist/report.txt\n");
    place.write("receipt.json", &receipt);
    let other = ["--in", "sales.csv", "--arg", "title=Other"];
    let differs = replay(&place, &other);
    assert_eq!(differing(&differs), "changed    args\n");
    place.write("sales.csv", "11\n32\n");
    place.write("script.luau", format!("{SCRIPT} --"));
    let differs = replay(&place, &MADE_OF);
    assert_eq!(differing(&differs), "changed    in/sales.csv\nchanged    script\n");
    let differs = replay(&place, &MADE_OF[2..]);
    assert_eq!(differing(&differs), "missing    in/sales.csv\nchanged    script\n");
}

#[test]
fn receipt_without_artifacts_is_of_what_changed_in_the_io_dir() {
    let place = Fixture::new();
    place.write("script.luau", "fs.write('new', fs.read('old') .. '!') return 1");
    place.write("sandbox-files/old", "content");
    let run = ["run", "script.luau", "--receipt", "receipt.json"];
    place.sandboxctl(run).assert_code(0);
    assert_eq!(place.read("sandbox-files/new"), "content!");
    let statement = statement(&place);
    assert_eq!(statement["subject"].as_array().unwrap().len(), 1);
    assert_eq!(statement["subject"][0]["name"], "new");
    replay(&place, &[]).assert_code(2).assert_stderr_has("--io-dir DIR names a directory");
    place.write("before/old", "content");
    let replayed = replay(&place, &["--io-dir", "before"]);
    assert_eq!(replayed.assert_code(0).stdout, "identical\n");
    assert!(!place.path("before/new").exists(), "it is not changed");
    place.write("before/old", "other");
    let differs = replay(&place, &["--io-dir", "before"]);
    assert_eq!(differing(&differs), "changed    io\n");
}

#[test]
fn changed_file_may_have_the_name_of_a_manifest_and_an_input_may_be_stdin() {
    let place = Fixture::new();
    place.write("script.luau", "fs.write('manifest.json', fs.read('/in/x')) return 1");
    let flags = ["run", "script.luau", "--in", "-:x", "--receipt", "receipt.json"];
    place.sandboxctl_with(b"a,b\n", flags).assert_code(0);
    assert_eq!(statement(&place)["subject"][0]["name"], "manifest.json");
    verify(&place, &["--artifacts", "sandbox-files"]).assert_code(0);
    let again = ["replay", "receipt.json", "--script", "script.luau", "--in", "-:x"];
    assert_eq!(place.sandboxctl_with(b"a,b\n", again).assert_code(0).stdout, "identical\n");
    let other = place.sandboxctl_with(b"other", again);
    assert_eq!(differing(&other), "changed    in/x\n");
    verify(&place, &["--artifacts", "nosuch"]).assert_code(2).assert_stderr_has("--artifacts");
}

#[test]
fn io_dir_with_files_gets_a_note() {
    let place = Fixture::new();
    place.write("script.luau", "fs.write('new', 'x')");
    place.write("sandbox-files/old", "content");
    let ended = place.sandboxctl(["run", "script.luau", "--receipt", "receipt.json"]);
    ended.assert_code(0).assert_stderr_has("note: the io dir had 1 file before the run");
}

#[test]
fn script_that_is_not_reproducible_differs_in_its_replay() {
    let place = Fixture::new();
    place.write("script.luau", "return math.random(1e9), os.time()");
    let flags = ["--seed", "1", "--now", "1767225600"];
    let run = |flags: &[&str]| {
        let run = ["run", "script.luau", "--no-io", "--receipt", "receipt.json"];
        place.sandboxctl([&run[..], flags].concat()).assert_code(0).stdout.clone()
    };
    assert_eq!(run(&flags), run(&flags));
    assert_eq!(statement(&place)["subject"][0]["name"], "result");
    assert_eq!(replay(&place, &[]).assert_code(0).stdout, "identical\n");
    let replayed = replay(&place, &["--json"]);
    let reported: Value = serde_json::from_str(&replayed.assert_code(0).stdout).unwrap();
    let expected = json!({
        "identical": true, "verified": null, "stage": "results", "outcome": "same",
        "differences": [], "expected": { "status": "ok", "exit_code": 0 },
        "actual": { "status": "ok", "exit_code": 0 },
    });
    assert_eq!(reported, expected);
    run(&[]);
    assert_eq!(differing(&replay(&place, &[])), "outcome    differs\n");
}

#[test]
fn failed_run_has_a_receipt_of_its_failure() {
    let place = Fixture::new();
    place.write("script.luau", "fs.write('half', 'x') error('no')");
    let flags = ["--artifact", "half", "--artifacts-dir", "out", "--receipt", "receipt.json"];
    place.sandboxctl([&["run", "script.luau"][..], &flags].concat()).assert_code(1);
    let statement = statement(&place);
    let outcome = &statement["predicate"]["runDetails"]["byproducts"][0]["annotations"];
    let expected = json!({"status": "script_error", "exit_code": 1, "error": "runtime"});
    assert_eq!(outcome, &expected);
    assert_eq!(statement["subject"][0]["name"], "half");
    // A receipt of a failure is verified as such.
    let verified = verify(&place, &["--artifacts", "out"]);
    verified.assert_code(0).assert_stderr_has("its run ended with script_error, exit code 1");
    let required = verify(&place, &["--artifacts", "out", "--require-ok", "--json"]);
    let reported: Value = serde_json::from_str(&required.assert_code(1).stdout).unwrap();
    assert_eq!(reported["outcome"], json!({"status": "script_error", "exit_code": 1}));
    assert_eq!(replay(&place, &[]).assert_code(0).stdout, "identical\n");
}

#[test]
fn receipt_of_a_command_names_its_image_and_its_words() {
    let commands = Commands::new();
    let flags = ["--artifact", "a", "--artifacts-dir", "out", "--receipt", "receipt.json"];
    commands.shell(&flags, "echo one > a").assert_code(0);
    let place = &commands.place;
    let definition = &statement(place)["predicate"]["buildDefinition"];
    assert_eq!(definition["buildType"], "urn:sandboxctl:command:v1");
    let made_of = definition["resolvedDependencies"].as_array().unwrap();
    let names: Vec<_> = made_of.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"command") && names.contains(&"agent"), "{names:?}");
    assert!(names.contains(&"image") || names.contains(&"rootfs"), "{names:?}");
    verify(place, &["--artifacts", "out"]).assert_code(0);
    place.write("script.luau", "");
    replay(place, &[]).assert_code(2).assert_stderr_has("it is the receipt of a command");
}

#[test]
fn command_is_replayed_by_its_words_and_what_differs_is_shown() {
    let commands = Commands::new();
    let place = &commands.place;
    let made = ["--artifact", "dist", "--artifacts-dir", "out", "--receipt", "receipt.json"];
    // An image is named by the receipt; a directory or an archive is named again.
    let root: Vec<_> = commands.provided.args();
    let root = if root[0] == "--image" { Vec::new() } else { root };
    let again = |flags: &[&str], words: &[&str]| {
        let mut replay = place.command(["replay", "receipt.json"]);
        replay.args(&root).args(flags);
        if !words.is_empty() {
            replay.arg("--").args(words);
        }
        finish(replay)
    };
    let line = "mkdir dist; printf 'hello\\n%s\\n' $WHO > dist/a; exit 3";
    commands.shell(&[&made[..], &["-e", "WHO=you"]].concat(), line).assert_code(3);
    let words = ["sh", "-c", line];
    assert_eq!(again(&["-e", "WHO=you"], &words).assert_code(0).stdout, "identical\n");
    assert!(!statement(place).to_string().contains("printf"), "no words unless asked for");
    let unnamed = again(&["-e", "WHO=you"], &[]);
    unnamed.assert_code(2).assert_stderr_has("replay RECEIPT -- COMMAND");
    let differs = again(&["-e", "WHO=me"], &words);
    assert_eq!(differing(&differs), "changed    env\n");
    differs.assert_stderr_has("-e NAME=VALUE");
    assert!(differs.stdout.contains("\n  expected sha256:"), "{}", differs.stdout);
    let differs = again(&["-e", "WHO=you"], &["true"]);
    assert_eq!(differing(&differs), "changed    command\n");

    fs::remove_dir_all(place.path("out")).unwrap();
    let line = "mkdir dist; echo same > dist/a; head -c 9 /dev/urandom | md5sum >> dist/a";
    let flags = [&made[..], &["--receipt-argv", "-w", "/io"]].concat();
    commands.shell(&flags, line).assert_code(0);
    let parameters = &statement(place)["predicate"]["buildDefinition"]["externalParameters"];
    let recorded = json!({"line": {"argv": ["sh", "-c", line]}, "cwd": "/io"});
    assert_eq!(parameters["command"], recorded);
    let differs = again(&["--artifacts", "out"], &[]);
    assert_eq!(differing(&differs), "changed    dist/a\n");
    assert!(differs.stdout.contains("\n  line 2:\n  expected "), "{}", differs.stdout);
    let reported: Value =
        serde_json::from_str(&again(&["--json"], &[]).assert_code(1).stdout).unwrap();
    assert_eq!((&reported["outcome"], &reported["line"]), (&json!("same"), &Value::Null));
    let expected = &statement(place)["subject"][0]["digest"]["sha256"];
    assert_eq!(&reported["differences"][0]["expected"], expected);
    assert_ne!(&reported["differences"][0]["actual"], expected);
    assert_eq!(reported["actual"], json!({"status": "ok", "exit_code": 0}));
    let shown = place.sandboxctl(["receipt", "show", "receipt.json"]);
    let shown = &shown.assert_code(0).stdout;
    assert!(shown.contains("ran        sh -c 'mkdir dist; "), "{shown}");
    assert!(shown.contains(&format!("made       dist/a sha256:{}", expected.as_str().unwrap())));
    let shown = place.sandboxctl(["receipt", "show", "receipt.json", "--json"]);
    let shown: Value = serde_json::from_str(&shown.assert_code(0).stdout).unwrap();
    assert_eq!(shown, statement(place));
    assert_eq!(place.sandboxctl(["artifacts", "ls", "out"]).assert_code(0).stdout, "dist/a\n");
    let table = place.sandboxctl(["artifacts", "ls", "-l", "out"]);
    assert!(table.assert_code(0).stdout.contains(expected.as_str().unwrap()), "{table:?}");

    let mut with_secret = place.command(["exec"]);
    with_secret.args(commands.provided.args()).args(["--secret", "KEY=env:GIVEN"]);
    with_secret.args(["--receipt", "r.json", "--receipt-argv", "--", "echo", "is-hunter2val"]);
    with_secret.env("GIVEN", "hunter2val");
    let refused = finish(with_secret);
    refused.assert_code(2).assert_stderr_has("a secret stands in the command");
    assert!(!place.path("r.json").exists() && !refused.stderr.contains("hunter2val"));
}

#[test]
fn receipt_of_a_command_covers_what_it_ran_in_and_no_stdin() {
    let commands = Commands::new();
    let place = &commands.place;
    let dependencies = |flags: &[&str]| {
        let flags = [&["--receipt", "receipt.json"], flags].concat();
        commands.shell(&flags, "true").assert_code(0);
        let made_of = &statement(place)["predicate"]["buildDefinition"]["resolvedDependencies"];
        made_of.clone()
    };
    let (one, other) = (dependencies(&["-e", "A=1"]), dependencies(&["-e", "A=2"]));
    assert_ne!(one, other);
    assert_ne!(dependencies(&["-w", "/tmp"]), dependencies(&["-w", "/io"]));
    // stdin can be a program.
    let ended = commands.shell(&["--receipt", "receipt.json", "--stdin"], "sh");
    ended.assert_code(2).assert_stderr_has("it says nothing of stdin");
}

#[test]
fn input_elsewhere_is_called_nothing_else() {
    let place = Fixture::new();
    place.write("data", "x");
    place.write("script.luau", "return fs.exists('/image')");
    let run = ["run", "script.luau", "--receipt", "receipt.json"];
    let volumes = ["-v", "./data:/image:ro", "-v", "./data:/agent:ro"];
    let ended = place.sandboxctl([&run[..], &volumes].concat());
    ended.assert_code(0);
    let made_of = &statement(&place)["predicate"]["buildDefinition"]["resolvedDependencies"];
    let names: Vec<_> = made_of.as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(json!(names), json!(["agent", "args", "mount/agent", "mount/image", "script"]));
    verify(&place, &[]).assert_code(0);
    let again = ["--volume", "./data:/image:ro", "--volume", "./data:/agent:ro"];
    assert_eq!(replay(&place, &again).assert_code(0).stdout, "identical\n");
    replay(&place, &[]).assert_code(1).assert_stderr_has("--volume SRC:DST:ro");
    replay(&place, &["--volume", "./data:/image"]).assert_code(2).assert_stderr_has("writable");
}

#[test]
fn run_whose_receipt_would_mislead_has_none() {
    let place = Fixture::new();
    let with_secret = |code: &str, flags: &[&str]| {
        _ = fs::remove_file(place.path("receipt.json"));
        let mut run = place.command(["run", "--secret", "X=env:GIVEN"]);
        run.env("GIVEN", "hunter2secretval").args(["--receipt", "receipt.json"]);
        run.args(flags).args(["-c", code]);
        finish(run)
    };
    // Names that are the same in a receipt, and artifacts that are not there.
    let changes = ["--changes", "changes.json"];
    let ended = with_secret("fs.write(secrets.X, '1') fs.write(secrets.X .. 'b', '2')", &changes);
    ended.assert_code(125).assert_stderr_has("a secret may stand in the name of a file: '***");
    assert!(!place.path("receipt.json").exists());
    let artifacts = ["--artifact", "**", "--artifacts-dir", "out"];
    let ended = with_secret("fs.write(secrets.X, '1')", &artifacts);
    ended.assert_code(125).assert_stderr_has("its artifacts were not copied: no receipt");
    assert!(!place.path("receipt.json").exists());
    // A key that is an input by another name.
    place.sandboxctl(["keys", "new", "key"]).assert_code(0);
    fs::hard_link(place.path("key"), place.path("other")).unwrap();
    let flags = ["--receipt", "r.json", "--sign", "key", "--in", "other", "-c", "return 1"];
    place.sandboxctl(["run"].iter().chain(&flags)).assert_code(2).assert_stderr_has("an input");
}

#[test]
fn mount_among_artifacts_is_detected() {
    let place = job();
    fs::create_dir(place.path("out/more")).unwrap();
    verify(&place, &BY_KEY).assert_code(0);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    rustix::mount::mount_bind(place.path("out/dist"), place.path("out/more")).unwrap();
    let ended = verify(&place, &BY_KEY);
    rustix::mount::unmount(place.path("out/more"), rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(ended.assert_code(1).stdout.contains("more"), "{ended:#?}");
}

#[test]
fn test_cases_of_a_script_are_in_its_receipt() {
    let place = Fixture::new();
    let source = "test.case('one', function() test.equal(1, 1) end)
        test.case('two', function() test.fail('no') end)";
    place.write("script.luau", source);
    place.sandboxctl(["keys", "new", "k"]).assert_code(0);
    let run = ["run", "script.luau", "--no-io", "--receipt", "receipt.json", "--sign", "k"];
    place.sandboxctl(run).assert_code(1);
    let lines = place.read("receipt.json");
    let lines: Vec<_> = lines.lines().collect();
    let [receipt, tests] = &*lines else { panic!("{lines:?}") };
    let verified = verify(&place, &["--key", "k.pub", "--json"]);
    let reported: Value = serde_json::from_str(&verified.assert_code(0).stdout).unwrap();
    assert_eq!((&reported["tests"], &reported["verified"]), (&json!("FAILED"), &json!(true)));
    place.write("receipt.json", tests);
    let statement = statement(&place);
    let kind = "https://in-toto.io/attestation/test-result/v0.1";
    assert_eq!(statement["predicateType"], kind);
    assert_eq!(statement["predicate"]["failedTests"], json!(["two"]));
    assert_eq!(statement["predicate"]["passedTests"], json!(["one"]));
    verify(&place, &[]).assert_code(2).assert_stderr_has("its predicate type is");
    // The tests of another receipt do not pass as those of this one.
    place.write("script.luau", "test.case('two', function() end) return 2");
    place.sandboxctl(run).assert_code(0);
    let other = place.read("receipt.json");
    let other = other.lines().nth(1).unwrap();
    place.write("receipt.json", format!("{receipt}\n{other}\n"));
    verify(&place, &["--key", "k.pub"])
        .assert_code(2)
        .assert_stderr_has("belong to a different run");
    place.write("receipt.json", format!("{receipt}\n"));
    verify(&place, &["--key", "k.pub"]).assert_code(2).assert_stderr_has("tests are missing");
}

#[test]
fn invalid_receipts_and_keys_are_refused() {
    let place = job();
    let receipt = statement(&place);
    let mut cases =
        vec![("{}".to_owned(), "missing field"), ("x".to_owned(), "it is not a receipt")];
    let mut with = |change: &dyn Fn(&mut Value), expected| {
        let mut changed = receipt.clone();
        change(&mut changed);
        cases.push((changed.to_string(), expected));
    };
    with(&|it| it["extra"] = json!(1), "unknown field `extra`");
    with(&|it| it["predicate"]["buildDefinition"]["externalParameters"]["x"] = json!(1), "unknown");
    with(&|it| it["predicateType"] = json!("https://example.org/x"), "its predicate type is");
    with(&|it| it["_type"] = json!("https://in-toto.io/Statement/v0.1"), "its statement type is");
    for (text, expected) in cases {
        place.write("receipt.json", text);
        verify(&place, &[]).assert_code(2).assert_stderr_has(expected);
    }
    place.write("receipt.json", receipt.to_string());
    verify(&place, &BY_KEY[..2]).assert_code(1).assert_stderr_has("the receipt is not signed");
    let key = ["--key", "release.key"];
    verify(&place, &key).assert_code(2).assert_stderr_has("not an ed25519 public key");
    let again = place.sandboxctl(["keys", "new", "release.key"]);
    again.assert_code(2).assert_stderr_has("release.key");
    // A receipt allows nothing here.
    let mut wider = receipt.clone();
    let sandbox = &mut wider["predicate"]["buildDefinition"]["externalParameters"]["sandbox"];
    sandbox["allow"] = json!(["example.org:443"]);
    place.write("receipt.json", wider.to_string());
    let refused = replay(&place, &MADE_OF);
    refused.assert_code(2).assert_stderr_has("--allow example.org:443 allows it");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut changed = receipt.clone();
        change(&mut changed["predicate"]["buildDefinition"]);
        place.write("receipt.json", changed.to_string());
        replay(&place, &MADE_OF)
    };
    let sandbox = |it: &mut Value, name: &str, value: Value| {
        it["externalParameters"]["sandbox"][name] = value;
    };
    with(&|it| it["externalParameters"]["sandbox"]["limits"]["memory_bytes"] = json!(1_u64 << 50))
        .assert_code(2)
        .assert_stderr_has("the ceiling here is 4GiB");
    // It names nothing of this host: no input, no io dir, no image except by its digest.
    let input = json!([{"name": "h", "source": {"path": "/etc/hostname"}}]);
    let names_files = "it names files of a host";
    with(&|it| sandbox(it, "inputs", input.clone())).assert_code(2).assert_stderr_has(names_files);
    with(&|it| sandbox(it, "io_dir", json!("/etc"))).assert_code(2).assert_stderr_has(names_files);
    let images = ["registry.invalid:5000/evil:latest", "sha256:00"];
    for reference in images {
        let image = json!({"image": {"reference": reference, "pull": "always"}});
        with(&|it| sandbox(it, "root", image.clone()))
            .assert_code(2)
            .assert_stderr_has("its image is not named by the digest");
    }
}

#[test]
fn replay_may_do_what_a_run_may_do_here() {
    let place = Fixture::new();
    place.write("script.luau", "fs.write('a.sh', 'x') return 1");
    let run = ["run", "script.luau", "--artifact", "a.sh", "--artifacts-dir", "out"];
    place.sandboxctl([&run[..], &["--receipt", "receipt.json"]].concat()).assert_code(0);
    assert_eq!(replay(&place, &[]).assert_code(0).stdout, "identical\n");
    for (narrower, name) in [
        ("[filesystem]\nprotected = ['a.sh']\n", "filesystem.protected"),
        (
            "[filesystem]\nallowed_paths = [{ path = '/io', access = 'read' }]\n",
            "filesystem.allowed_paths",
        ),
        ("[io]\nenabled = false\n", "io.enabled"),
    ] {
        place.write("sandboxctl.toml", narrower);
        let refused = replay(&place, &[]);
        refused.assert_code(2).assert_stderr_has("its run was allowed more than");
        refused.assert_stderr_has(name);
    }
}

#[test]
fn receipt_that_cannot_be_written_leaves_the_outcome_as_it_is() {
    let place = Fixture::new();
    place.write("script.luau", "fs.write('f', 'x') return 42");
    let run = |flags: &[&str]| place.sandboxctl([&["run", "script.luau"], flags].concat());
    let full = run(&["--receipt", "/dev/full"]);
    full.assert_code(125).assert_stderr_has("/dev/full");
    assert_eq!((&*full.stdout, &*place.read("sandbox-files/f")), ("42\n", "x"));
    run(&["--receipt", "sandbox-files/receipt.json"])
        .assert_code(2)
        .assert_stderr_has("hint: name a file elsewhere");
    run(&["--receipt", "missing/receipt.json"]).assert_code(2).assert_stderr_has("missing");
    run(&["--sign", "k"]).assert_code(2);
    place.write("no.key", "no key");
    let signed = run(&["--receipt", "r.json", "--sign", "no.key"]);
    signed.assert_code(2).assert_stderr_has("`sandboxctl keys new FILE` makes one");
    let two = run(&["script.luau", "--receipt", "r.json"]);
    two.assert_code(2).assert_stderr_has("one script at a time");
    run(&["--now", "yesterday"]).assert_code(2).assert_stderr_has("expected a time");
    assert!(!place.path("r.json").exists());
}
