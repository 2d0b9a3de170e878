//! The public documents of executions, byte for byte: every status in both documents, and both in
//! the answer of `executions/{id}`. A change here is a change for every caller.

use std::fmt::Write as _;
use std::time::Duration;

use sandbox_api::service::{Execution, ExecutionKind, ExecutionState, ExecutionSummary, Time};
use sandbox_api::{
    CancelCause, Captured, Confinement, ContactedHost, Disk, DiskBackend, DiskBound, EngineKind,
    ErrorKind, EventRecord, ExecDocument, ExecutionDocument, ExecutionResult, Exit, Failure,
    FileOp, FilesTouched, KilledBy, Limits, LogEntry, LogLevel, Network, Note, NoteKind, Outcome,
    RefusedHost, ResultBody, ResultDocument, ScriptError, StartKind, Status, TestCase, TestStatus,
    Timing, ToolCall, ToolOutcome, TouchedFile, TouchedSource, UnixSockets, Usage, failure, schema,
};
use serde_json::value::RawValue;
use serde_json::{Map, json};

/// The document of a result.
fn document(result: &ExecutionResult) -> String {
    let json = ExecutionDocument::from(result).to_json().unwrap();
    let read = ExecutionDocument::from_json(&json).unwrap();
    assert_eq!(read.to_json().unwrap(), json);
    json
}

/// What only a script has.
fn script(is_full: bool) -> ResultBody {
    let log =
        |level, text: &str| LogEntry { level, text: text.to_owned(), lossy: false, cut: false };
    let case = |name: &str, status| TestCase {
        name: name.to_owned(),
        status,
        message: (status == TestStatus::Failed).then(|| "no".to_owned()),
        line: Some(3),
        duration_ms: 2,
    };
    let (logs, tests) = match is_full {
        true => (
            vec![
                log(LogLevel::Print, "a\n\"b\""),
                log(LogLevel::Warn, "w"),
                LogEntry::log_full("limits.log_lines (2)"),
            ],
            vec![case("one", TestStatus::Passed), case("two", TestStatus::Failed)],
        ),
        false => (Vec::new(), Vec::new()),
    };
    let call = ToolCall {
        tool: "github.list_issues".to_owned(),
        outcome: ToolOutcome::Ok,
        duration_ms: 2,
        argument_bytes: 2,
        result_bytes: 4,
        arguments_sha256: "0".repeat(64),
        result_sha256: "1".repeat(64),
    };
    ResultBody::Script {
        logs,
        logs_truncated: is_full,
        tests,
        tool_calls: if is_full { vec![call] } else { Vec::new() },
        tool_calls_truncated: is_full,
        answered: is_full,
    }
}

/// What only a command has.
fn command(outcome: &Outcome, is_full: bool) -> ResultBody {
    let (exit_code, signal) = match outcome {
        Outcome::Ok { .. } => (Some(0), None),
        Outcome::Exit(Exit::Code(code)) => (Some((*code).into()), None),
        Outcome::Exit(Exit::Signal(signal)) => (None, Some((*signal).into())),
        Outcome::Timeout(_) => (None, Some(15)),
        _ => (None, None),
    };
    let captured = |bytes: &[u8]| Captured { bytes: bytes.to_vec(), truncated: is_full };
    let (stdout, stderr) = match is_full {
        true => (captured(&"out \u{20ac}".as_bytes()[..6]), captured(b"\xffe")),
        false => (captured(b"out\n"), captured(b"")),
    };
    ResultBody::Command { exit_code, signal, stdout, stderr }
}

fn failed(kind: ExecutionKind, status: Status, failure: Failure) -> (String, u8) {
    let document = ExecutionDocument::ended(kind, "e1", status, failure);
    (document.to_json().unwrap(), document.process_exit_code())
}

/// The documents of `sandboxctl` for a failure before anything ran.
fn never_began(failure: Failure) -> [String; 2] {
    [ExecutionKind::Script, ExecutionKind::Command].map(|kind| {
        let exit_code = sandbox_api::exit_code(failure.kind);
        ExecutionDocument::failed(kind, failure.clone(), exit_code).to_json().unwrap()
    })
}

/// `executions/{id}`, made of what is stored and made of what was read.
fn execution(summary: ExecutionSummary, document: Option<String>) -> String {
    let read = document.as_ref().map(|json| {
        let document = ExecutionDocument::from_json(json).unwrap();
        assert_eq!(&document.to_json().unwrap(), json);
        document
    });
    let execution = Execution { summary: summary.clone(), document: read };
    let json = summary.to_json_with(document).unwrap();
    assert_eq!(serde_json::to_string(&execution).unwrap(), json);
    let again: Execution = serde_json::from_str(&json).unwrap();
    // Members of a map have no order of their own.
    let value = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
    assert_eq!(value(&serde_json::to_string(&again).unwrap()), value(&json));
    json
}

fn state(status: Option<Status>) -> ExecutionState {
    status.map_or(ExecutionState::Queued, ExecutionState::Ended)
}

fn running() -> ExecutionState {
    ExecutionState::Running
}

fn schemas() -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("result/1", schema::answer::<ResultDocument>()),
        ("exec/1", schema::answer::<ExecDocument>()),
        ("result/1, read", schema::request::<ResultDocument>()),
        ("exec/1, read", schema::request::<ExecDocument>()),
        ("execution", schema::answer::<Execution>()),
        ("summary", schema::answer::<ExecutionSummary>()),
        ("event", schema::answer::<EventRecord>()),
    ]
}

fn error(kind: ErrorKind) -> ScriptError {
    ScriptError {
        line: Some(7),
        traceback: Some("script:7".to_owned()),
        value: Some(json!({ "a": 1 })),
        ..failure(kind, "it failed")
    }
}

fn outcomes() -> Vec<(&'static str, Outcome)> {
    let result = RawValue::from_string(r#"{"x": [1, 2.50, 12345678901234567890]}"#.to_owned());
    let cause = |cause| Outcome::Cancelled { cause };
    vec![
        ("ok", Outcome::Ok { result: result.unwrap() }),
        ("script_error", Outcome::ScriptError(error(ErrorKind::Runtime))),
        ("script_error, syntax", Outcome::ScriptError(failure(ErrorKind::Syntax, "script:1: x"))),
        ("limit, memory", Outcome::Limit(failure(ErrorKind::OutOfMemory, "no memory"))),
        ("limit, output", Outcome::Limit(failure(ErrorKind::OutputLimit, "too much"))),
        ("timeout", Outcome::Timeout(failure(ErrorKind::Timeout, "killed"))),
        ("cancelled, interrupt", cause(CancelCause::Interrupt)),
        ("cancelled, terminate", cause(CancelCause::Terminate)),
        ("cancelled, hangup", cause(CancelCause::Hangup)),
        ("cancelled, deleted", cause(CancelCause::Deleted)),
        ("cancelled, caller", cause(CancelCause::Caller)),
        ("killed, outside", Outcome::Killed { by: KilledBy::Outside }),
        ("killed, or memory", Outcome::Killed { by: KilledBy::OutsideOrMemory }),
        ("agent_lost", Outcome::AgentLost { detail: "it ended".to_owned() }),
        ("exit, code", Outcome::Exit(Exit::Code(3))),
        ("exit, signal", Outcome::Exit(Exit::Signal(9))),
        (
            "error",
            Outcome::Error {
                failure: Failure::new(ErrorKind::Engine, "gone", Some("start it".to_owned())),
                exit_code: 125,
            },
        ),
    ]
}

fn result(outcome: Outcome, is_full: bool, is_script: bool) -> ExecutionResult {
    let mut network = Network::default();
    network.add_contacted(ContactedHost { host: "a.example".to_owned(), port: 443 });
    network.add_refused(RefusedHost {
        host: "localhost".to_owned(),
        port: 80,
        reason: "loopback address".to_owned(),
        allow: vec!["127.0.0.1".to_owned()],
    });
    let files = [(&b"a.txt"[..], FileOp::Write, 3), (b"b\xff", FileOp::Remove, 0)];
    let files = files.map(|(path, op, bytes)| TouchedFile::new(path, op, bytes)).to_vec();
    let note = Note {
        kind: NoteKind::Processes,
        message: "no thread".to_owned(),
        hint: Some("--pids".to_owned()),
    };
    let (body, source) = match is_script {
        true => (script(is_full), TouchedSource::Observed),
        false => (command(&outcome, is_full), TouchedSource::Scan),
    };
    ExecutionResult {
        id: "s1".to_owned(),
        outcome,
        files_touched: FilesTouched {
            files: if is_full { files } else { Vec::new() },
            source,
            truncated: is_full,
        },
        engine: if is_full { EngineKind::Embedded } else { EngineKind::Docker },
        engine_notice: is_full.then(|| "no socket".to_owned()),
        io_dir: is_full.then(|| "/srv/io".into()),
        disk: is_full.then(|| Disk {
            bound: DiskBound::Watched,
            backend: DiskBackend::Directory,
            bytes: 1 << 30,
            entries: 10,
            reason: Some("no loop device".to_owned()),
        }),
        network: is_full.then_some(network),
        changes: None,
        limits: Limits::default(),
        usage: Usage {
            wall_ms: 12,
            cpu_ms: is_full.then_some(7),
            peak_memory_bytes: None,
            written_bytes: Some(3),
        },
        notes: if is_full { vec![note] } else { Vec::new() },
        timing: is_full.then(|| Timing::new(Some((StartKind::Cold, Duration::from_millis(8))), 12)),
        confinement: Confinement {
            no_new_privileges: true,
            undumpable: true,
            landlock_abi: Some(4),
            seccomp: true,
            unix_sockets: UnixSockets::None,
            missing: vec!["a".to_owned()],
        },
        body,
    }
}

fn summary(kind: ExecutionKind, status: ExecutionState) -> ExecutionSummary {
    ExecutionSummary {
        id: "e1".to_owned(),
        kind,
        status,
        created_at: Time::from_unix_millis(0),
        started_at: Some(Time::from_unix_millis(1)),
        ended_at: None,
        metadata: Map::from_iter([("step".to_owned(), 3.into())]),
        sandbox: Some("s9".to_owned()),
        generation: Some(2),
        restarted: Some(true),
        image: None,
        subject: None,
    }
}

#[test]
fn documents_of_every_status_are_byte_for_byte_what_they_were() {
    let mut text = String::new();
    for (name, outcome) in outcomes() {
        let status = outcome.status();
        for is_full in [false, true] {
            let of_script = document(&result(outcome.clone(), is_full, true));
            let of_command = document(&result(outcome.clone(), is_full, false));
            for (kind, json) in
                [(ExecutionKind::Script, of_script), (ExecutionKind::Command, of_command)]
            {
                _ = writeln!(text, "{name}, {kind:?}:\n{json}");
                let answer = execution(summary(kind, state(Some(status))), Some(json));
                _ = writeln!(text, "{answer}\n");
            }
        }
    }
    insta::assert_snapshot!("documents", text);
}

#[test]
fn documents_of_what_did_not_run_are_byte_for_byte_what_they_were() {
    let mut text = String::new();
    let statuses = [
        Status::Ok,
        Status::ScriptError,
        Status::Exit,
        Status::Limit,
        Status::Timeout,
        Status::Cancelled,
        Status::Killed,
        Status::AgentLost,
        Status::Error,
    ];
    for kind in [ExecutionKind::Script, ExecutionKind::Command] {
        for status in statuses {
            let hint = Some("try".to_owned());
            let (document, exit_code) =
                failed(kind, status, Failure::new(ErrorKind::Internal, "it is so", hint));
            let answer = execution(summary(kind, state(Some(status))), Some(document.clone()));
            _ = writeln!(text, "{kind:?}, {status}, {exit_code}:\n{document}\n{answer}\n");
        }
        for status in [state(None), running()] {
            let answer = execution(summary(kind, status), None);
            _ = writeln!(text, "{kind:?}, {status}:\n{answer}\n");
        }
    }
    for kind in [ErrorKind::Usage, ErrorKind::Cancelled] {
        let documents = never_began(Failure::new(kind, "no", None));
        _ = writeln!(text, "{kind}:\n{}\n", documents.join("\n"));
    }
    insta::assert_snapshot!("not_run", text);
}

#[test]
fn execution_has_the_members_of_its_document_before_its_end_too() {
    let schema = jsonschema::draft202012::new(&schema::answer::<Execution>()).unwrap();
    for kind in [ExecutionKind::Script, ExecutionKind::Command] {
        let error = Failure::new(ErrorKind::Engine, "gone", None);
        let document = ExecutionDocument::ended(kind, "e1", Status::Error, error);
        let plain = serde_json::to_value(&document).unwrap();
        let ended = summary(kind, state(Some(Status::Error)));
        let queued = summary(kind, state(None));
        let [ended, queued] = [(ended, Some(document)), (queued, None)].map(|it| {
            let (summary, document) = it;
            serde_json::to_value(Execution { summary, document }).unwrap()
        });
        for (name, value) in plain.as_object().unwrap() {
            assert_eq!(&ended[name], value, "{name}");
            assert!(queued.get(name).is_some(), "{name}");
        }
        assert_eq!((&ended["id"], &ended["status"]), (&json!("e1"), &json!("error")));
        assert_eq!(queued["status"], "queued");
        assert!(queued["exit_code"].is_null() && queued["error"].is_null(), "{queued}");
        for json in [ended, queued] {
            let back: Execution = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(back.summary.kind, kind);
            assert_eq!(serde_json::to_value(&back).unwrap(), json);
            let errors: Vec<String> =
                schema.iter_errors(&json).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{json}: {errors:?}");
        }
    }
}

#[test]
fn stored_document_that_is_no_object_is_an_error() {
    let summary = summary(ExecutionKind::Script, state(Some(Status::Error)));
    for broken in ["", "{}", "{\"a\":1", "[]"] {
        assert!(summary.clone().to_json_with(Some(broken.to_owned())).is_err(), "{broken}");
    }
}

#[test]
fn schemas_of_the_documents_are_what_they_were() {
    let mut text = String::new();
    for (name, schema) in schemas() {
        _ = writeln!(text, "{name}:\n{}\n", serde_json::to_string_pretty(&schema).unwrap());
    }
    insta::assert_snapshot!("schemas", text);
}
