//! Secrets: who can read them, and that their bytes are nowhere else.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sandbox_api::{
    CancelCause, ExecutionResult, OutputStream, SandboxSpec, Script, SecretValue, Secrets, Status,
};
use sandbox_controller::{CancelHandle, Command};
use serde_json::{Value, json};

use super::exec_cli::Commands;
use crate::engine::{Engine, docker, engine, first_process, helpers};
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, files_below, finish, spawn};
use crate::library::{Guest, NextEvent as _};
use crate::rootfs::Rootfs;

/// No other text of this machine has it. The second line is replaced by itself too.
const SECRET: &str = "hx7-Quartz\"Vow\\Lynx-4419\nzebra+second/line=88";
/// What can be searched for, in any representation that keeps text: JSON escapes what is between.
const MARKS: [&str; 3] = ["hx7-Quartz", "Lynx-4419", "zebra+second"];

#[track_caller]
fn assert_absent(what: &str, bytes: impl AsRef<[u8]>) {
    let bytes = bytes.as_ref();
    for mark in MARKS {
        let is_there = bytes.windows(mark.len()).any(|window| window == mark.as_bytes());
        assert!(!is_there, "{what}: {}", String::from_utf8_lossy(bytes));
    }
}

/// The files of sandboxctl: state, data, scratch, audit, and all in the working directory.
fn assert_absent_from_files(place: &Fixture) {
    let folders = [place.work(), place.state(), place.data(), place.scratch(), place.home()];
    let files: Vec<_> = folders.iter().flat_map(|folder| files_below(folder)).collect();
    assert!(!files.is_empty());
    for file in files.iter().filter(|file| file.is_file() && !is_of_an_image(file)) {
        assert_absent(&file.display().to_string(), std::fs::read(file).unwrap_or_default());
    }
}

/// Large, and without secrets.
fn is_of_an_image(file: &Path) -> bool {
    file.metadata().is_ok_and(|it| it.len() > 16 << 20)
}

/// What processes of this machine were started with, apart from those to which the test gave it.
fn assert_absent_from(pid: i32) {
    for name in ["cmdline", "environ"] {
        let file = format!("/proc/{pid}/{name}");
        assert_absent(&file, std::fs::read(&file).unwrap_or_default());
    }
}

#[test]
fn bytes_of_a_secret_are_found_nowhere() {
    let commands = Commands::new();
    let place = &commands.place;
    let audit = place.path("audit.jsonl");
    // It prints the secret whole, in two pieces, by lines, to stderr, and as a file's name.
    let line = "echo > ready; while [ ! -e go ]; do sleep 0.05; done; env; printf %s \"$TOKEN\"; printf 'a\\n%.9s' \"$TOKEN\"; \
                printf '%s\\n' \"${TOKEN#?????????}\"; echo \"$TOKEN\" >&2; \
                touch \"$(echo \"$TOKEN\" | head -1)\"; exit 3";
    let flags = ["--json", "--secret", "TOKEN=env:GIVEN"];
    let reports = ["--report", "ndjson=events", "--report", "markdown=summary", "--audit"];
    let flags = flags.into_iter().chain(reports).chain([audit.to_str().unwrap()]);
    let mut flags: Vec<&str> = flags.collect();
    // Another kernel's files are not seen through its first process: there the io dir is a named one, which a
    // receipt would stage.
    let (elsewhere, sees_files) = (Fixture::new(), has(Feature::SharedKernel));
    let named = elsewhere.path("io");
    flags.extend(match sees_files {
        true => ["--receipt", "receipt.json"],
        false => ["--io-dir", named.to_str().unwrap()],
    });
    // With --json nothing is printed before the end: a file says that it waits, and for one.
    let mut exec = commands.exec(&flags, &["sh", "-c", line]);
    exec.env("GIVEN", SECRET);
    let child = spawn(exec);
    // The io dir has no path of the host. One that was made for another user is never started.
    let (container, io_dir) = crate::fixture::eventually("the command", || {
        place.containers().into_iter().find_map(|container| {
            let seen = format!("/proc/{}/root/io", engine().first_process(&container)?);
            let io_dir = if sees_files { PathBuf::from(seen) } else { named.clone() };
            io_dir.join("ready").exists().then_some((container, io_dir))
        })
    });
    assert_absent_from_files(place);
    match engine() {
        Engine::Docker => {
            let inspected = docker(&["inspect", &container]).stdout;
            assert!(inspected.len() > 100);
            assert_absent("docker inspect", inspected);
        }
        Engine::Embedded => {
            let helpers = helpers(place);
            assert!(!helpers.is_empty());
            helpers.iter().for_each(|pid| assert_absent_from(pid.as_raw_nonzero().get()));
            // The agent is the first: what it started for this command has the variable.
            let agent = first_process(&container).expect("it runs");
            assert_absent_from(agent.as_raw_nonzero().get());
        }
    }
    std::fs::write(io_dir.join("go"), "").unwrap();
    let ended = crate::fixture::wait(child);
    ended.assert_code(3);
    assert_absent("the document", &ended.stdout);
    assert_absent("stderr", &ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let stdout = document["stdout"].as_str().unwrap();
    assert!(stdout.contains("TOKEN=***\n"), "{stdout}");
    assert!(stdout.ends_with("***a\n***\n"), "{stdout}");
    assert_eq!(document["stderr"], "***\n");
    let files = document["files_touched"].as_array().unwrap();
    assert!(files.iter().any(|file| file["name"] == "***"), "{document:#}");
    assert_absent("the audit", std::fs::read(&audit).unwrap());
    assert_absent_from_files(place);
}

#[test]
fn script_reads_a_secret_and_nothing_that_it_says_shows_it() {
    let place = Fixture::new();
    let audit = place.path("audit.jsonl");
    let run = |source: &str| {
        let mut run = place.command(["run", "--json", "--secret", "KEY=env:GIVEN", "--audit"]);
        run.arg(&audit).args(["-c", source]).env("GIVEN", SECRET);
        // Its io dir is staged, so that names are in the manifest of changes and in the receipt too.
        run.args(["--changes", "changes.json", "--diff", "--receipt", "receipt.json"]);
        for kind in ["json", "ndjson", "junit", "markdown", "sarif"] {
            run.args(["--report", &format!("{kind}=report.{kind}")]);
        }
        let ended = finish(run);
        assert_absent("the document", &ended.stdout);
        assert_absent("stderr", &ended.stderr);
        place.document(&ended)
    };
    let length = SECRET.len();
    let document = run("print('<' .. secrets.KEY .. '>') \
                        for line in secrets.KEY:gmatch('[^\\n]+') do warn(line) end \
                        io.open('out', 'w'):write(#secrets.KEY):close() \
                        return {[secrets.KEY] = {secrets.KEY}, length = #secrets.KEY}");
    assert_eq!(document["result"], json!({"***": ["***"], "length": length}));
    assert_eq!(document["logs"], json!(["<***>", "[warn] ***", "[warn] ***"]));
    let document = run("io.open('x' .. secrets.KEY:match('[^\\n]+'), 'w')");
    assert_eq!(document["files_touched"][0]["name"], "x***", "{document:#}");
    let document = run("error({key = secrets.KEY})");
    assert_eq!(document["error"]["value"], json!({"key": "***"}));
    let document = run("error('it is ' .. secrets.KEY)");
    assert!(document["error"]["message"].as_str().unwrap().ends_with("it is ***"), "{document:#}");
    let document = run("local f = io.open('../' .. secrets.KEY)");
    assert_ne!(document["status"], "ok");
    assert_absent("the audit", std::fs::read(&audit).unwrap());
    assert_absent_from_files(&place);
}

#[test]
fn secret_in_the_name_of_an_artifact_is_masked() {
    let place = Fixture::new();
    let mut run = place.command(["run", "--json", "--secret", "KEY=env:GIVEN"]);
    run.env("GIVEN", SECRET).args(["--receipt", "receipt.json", "--report", "markdown=summary.md"]);
    run.args(["--artifact", "**", "--artifacts-dir", "out", "-c"]);
    // Also where the name of a directory has it.
    run.arg(
        "local name = secrets.KEY:match('[^\\n]+') \
         fs.write('kept', 'x') fs.write('a/' .. name .. '/b', 'x') return 'done'",
    );
    let ended = finish(run);
    ended.assert_code(125);
    assert_absent("stderr", &ended.stderr);
    assert_absent("the document", &ended.stdout);
    let document = place.document(&ended);
    let error = &document["artifacts"]["error"];
    assert_eq!(error["message"], "the name of a file contains a secret: 'a/***/b'", "{document:#}");
    // The outcome of the script stands.
    assert_eq!((&document["status"], &document["result"]), (&"ok".into(), &"done".into()));
    assert!(!place.path("out").exists());
    for file in ["receipt.json", "summary.md"] {
        assert_absent(file, std::fs::read(place.path(file)).unwrap_or_default());
    }
    let name = SECRET.lines().next().unwrap();
    assert!(place.path("sandbox-files/a").join(name).join("b").exists(), "only the guest has it");
}

#[test]
fn secret_in_the_name_of_an_uncopied_file_is_masked() {
    let place = Fixture::new();
    place.write("sandbox-files/kept", "");
    // More directories below each other than are compared.
    let deep = "local path = secrets.KEY:match('[^\\n]+') for _ = 1, 600 do path ..= '/d' end \
                fs.mkdir(path, {parents = true})";
    let mut run =
        place.command(["run", "--json", "--secret", "KEY=env:GIVEN", "--commit", "always"]);
    run.env("GIVEN", SECRET).args(["--report", "markdown=summary.md", "-c", deep]);
    let ended = finish(run);
    assert_absent("stderr", &ended.stderr);
    assert_absent("the document", &ended.stdout);
    assert_absent("the report", std::fs::read(place.path("summary.md")).unwrap());
}

#[test]
fn unknown_secret_is_a_clear_error_and_check_knows_the_name() {
    let place = Fixture::new();
    let document = place.run_json("return secrets.NONE", &[]);
    let message = document["error"]["message"].as_str().unwrap();
    assert_eq!(
        message,
        "script:1: there is no secret 'NONE' (--secret NONE=env:VARIABLE gives one)"
    );
    let script = place.write("check.luau", "return secrets.KEY");
    place.sandboxctl(["check", script.to_str().unwrap()]).assert_code(0);
}

#[test]
fn unusable_secret_is_refused_before_anything_runs() {
    let place = Fixture::new();
    let refused = |args: &[&str]| {
        let mut run = place.command(["run", "-c", "print('ran')"]);
        run.args(args).env("EMPTY", "").env("GIVEN", SECRET);
        let ended = finish(run);
        ended.assert_code(2);
        assert!(ended.stderr.contains("hint: "), "{ended:?}");
        assert_eq!(ended.stdout, "");
        assert_absent("stderr", &ended.stderr);
        assert!(place.containers().is_empty());
    };
    refused(&["--secret", "A=env:EMPTY"]);
    refused(&["--secret", "A=env:NONE"]);
    refused(&["--secret", SECRET]);
    refused(&["--secret", &format!("A={SECRET}")]);
    refused(&["--secret", "A=file:none"]);
    refused(&["--secret", "A=-", "--secret", "B=-"]);
    refused(&["--secret", "A=-", "--in", "-:a"]);
    refused(&["--secret", "A=env:GIVEN", "--secret", "A=env:GIVEN"]);
    place.write("sandboxctl.toml", "[secrets]\nA = \"env:GIVEN\"\n");
    refused(&[]);
}

/// A sandbox with busybox, by the library.
struct Box {
    guest: Guest,
    _provided: crate::rootfs::Provided,
}

impl Box {
    fn new() -> Self {
        let provided = Rootfs::busybox().provide();
        let guest = Guest::in_place(Fixture::new(), |spec: SandboxSpec| spec.root(provided.root()));
        Self { guest, _provided: provided }
    }

    fn shell(&self, line: &str, secrets: Secrets) -> ExecutionResult {
        let command = Command::shell(line).secrets(secrets);
        self.guest.wait(self.guest.sandbox.run(command)).unwrap()
    }
}

fn token() -> Secrets {
    let mut secrets = Secrets::new();
    secrets.add("TOKEN", SecretValue::new(SECRET)).unwrap();
    secrets
}

/// How many processes that a command can look at have the variable: its value would be redacted.
const COUNT: &str = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c '^TOKEN='";

#[test]
fn secret_of_one_command_is_not_a_variable_of_another() {
    let sandbox = Box::new();
    let own = sandbox.shell("env | grep -c '^TOKEN='", token());
    assert_eq!((own.command_exit_code(), &*own.stdout().bytes), (Some(0), &b"1\n"[..]));
    // One run has it, and a concurrent one does not.
    let waiting = sandbox.guest.wait(async {
        let command = Command::shell("echo ready; sleep 1000").secrets(token());
        let mut execution =
            sandbox.guest.sandbox.start(command, CancelHandle::new()).await.unwrap();
        let (stream, ready) = execution.next_output().await.unwrap();
        assert_eq!((stream, &*ready), (OutputStream::Stdout, &b"ready\n"[..]));
        execution
    });
    if has(Feature::CommandsAtOnce) {
        let beside = sandbox.shell("env | grep -c '^TOKEN='", Secrets::new());
        assert_eq!((beside.command_exit_code(), &*beside.stdout().bytes), (Some(1), &b"0\n"[..]));
    }
    waiting.cancel_handle().cancel(CancelCause::Caller);
    sandbox.guest.wait(waiting.wait()).unwrap();
    // After its end no process has it, and a script's programs never do.
    let after = sandbox.shell(COUNT, Secrets::new());
    if has(Feature::SharedKernel) {
        assert_eq!(&*after.stdout().bytes, b"0\n", "{after:?}");
    }
    let script = "return process.exec('/bin/sh', {'-c', 'env'}).stdout:find('TOKEN=') == nil";
    let script = Script::new(script).secrets(token());
    let result = sandbox.guest.wait(sandbox.guest.sandbox.run(script)).unwrap();
    assert_eq!(result.outcome.status(), Status::Ok);
    assert!(format!("{:?}", result.outcome).contains("true"), "{result:?}");
}

#[test]
fn secret_in_the_name_of_a_program_or_a_host_is_masked() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let audit = place.path("audit.jsonl");
    let mut exec = place.command(["exec", "--json", "--secret", "KEY=env:GIVEN", "--audit"]);
    exec.arg(&audit).args(["--allow", "other.example.org"]).args(provided.args());
    let absent = "S3cr3t-Zebra-9f";
    exec.args(["--", &format!("/bin/{absent}")]).env("GIVEN", absent);
    let ended = finish(exec);
    let mut reported = format!("{}{}", ended.stdout, ended.stderr);
    let mut exec = place.command(["exec", "--json", "--secret", "KEY=env:GIVEN", "--audit"]);
    exec.arg(&audit).args(["--allow", "other.example.org"]).args(provided.args());
    let ask = "printf 'CONNECT %s.example.org:443 HTTP/1.1\\r\\n\\r\\n' $KEY | nc 127.0.0.1 3128";
    exec.args(["--", "sh", "-c", ask]).env("GIVEN", absent);
    let ended = finish(exec);
    reported += &format!("{}{}", ended.stdout, ended.stderr);
    reported += &std::fs::read_to_string(&audit).unwrap();
    let shown = reported.to_ascii_lowercase();
    assert!(!shown.contains(&absent.to_ascii_lowercase()), "{reported}");
    assert!(shown.contains("/bin/***") && shown.contains("***.example.org"), "{reported}");
}

#[test]
fn output_of_one_command_is_redacted_when_another_prints_it() {
    let sandbox = Box::new();
    let wrote = sandbox.shell("printf %s \"$TOKEN\" > file", token());
    assert_eq!(wrote.command_exit_code(), Some(0));
    let printed = sandbox.shell("cat file; wc -c < file", Secrets::new());
    assert_eq!(String::from_utf8_lossy(&printed.stdout().bytes), format!("***{}\n", SECRET.len()));
}

#[test]
fn secret_that_is_printed_in_pieces_is_redacted_and_a_prompt_is_not_held_back() {
    let commands = Commands::new();
    // The prompt ends as the secret begins. The rest follows after the answer.
    let line =
        "printf 'name? hx7'; read answer; printf -- '-Quartz\"V'; printf 'ow\\\\Lynx-4419'; echo .";
    let flags = ["--stdin", "--secret", "TOKEN=env:GIVEN"];
    let mut exec = commands.exec(&flags, &["sh", "-c", line]);
    exec.env("GIVEN", SECRET.lines().next().unwrap()).stdin(Stdio::piped());
    let mut child = spawn(exec);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut prompt = [0; 9];
    stdout.read_exact(&mut prompt).unwrap();
    assert_eq!(&prompt, b"name? hx7");
    child.stdin.take().unwrap().write_all(b"me\n").unwrap();
    let mut rest = String::new();
    stdout.read_line(&mut rest).unwrap();
    assert_eq!(rest, "***.\n");
    assert!(child.wait().unwrap().success());
}
