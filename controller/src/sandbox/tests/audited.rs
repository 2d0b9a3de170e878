//! The audit lines of a sandbox's life.

use std::path::Path;

use bytes::Bytes;
use sandbox_api::hosts::HOST_LOOPBACK;
use sandbox_api::operation::{Exists, Operation, OperationRequest, Read, Rename};
use sandbox_api::{
    Limits, ProcessCommand, Processes, ReadFrom, ReadMode, Script, SignalName, SignalTarget,
};
use sandbox_protocol::limits::FIRST_TUNNEL;
use sandbox_protocol::message::{Change, Connect, ControlReply, ExecEnd, ExistsReply};
use sandbox_protocol::{ErrorKind, ToAgent, WireError};
use serde_json::{Value, json};

use super::exec::{Program, launch, with_programs};
use super::fake::{Scripted, World, greeted};
use super::*;
use crate::audit::AuditReport;
use crate::config::Sweep;
use crate::controller::Controller;
use crate::process::Until;
use sandbox_api::Command;

/// The lines, without values that differ each time; the sandbox's id is `ID`.
pub fn lines(file: &Path, id: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap().replace(id, "ID");
    let line = |line| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let members = line.as_object_mut().unwrap();
        assert!(members.remove("time").is_some_and(|time| time.is_string()));
        members.remove("duration_ms").unwrap();
        line
    };
    text.lines().map(line).collect()
}

pub fn whole(operation: &str, outcome: &str, bytes: Option<u64>) -> Value {
    json!({
        "run_id": "ID", "operation": operation, "by": "caller", "path": null,
        "outcome": outcome, "bytes": bytes,
    })
}

pub async fn closed(world: &World) {
    let report = report(world).await;
    assert_eq!((report.lost, report.failure), (0, None));
}

async fn report(world: &World) -> AuditReport {
    world.shared.cleanup.finish().await;
    world.shared.audit.idle().await;
    Controller::new(world.shared.clone(), Sweep::Never).close().await.unwrap()
}

#[tokio::test]
async fn the_audit_has_a_sandboxs_life_and_what_its_runs_changed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let world = greeted(async |mut agent: Scripted, _| {
        let id = agent.run_request().await;
        agent.touched("/io/b", Change::Append).await;
        agent.touched("/io/a", Change::Write).await;
        agent.touched("/io/gone", Change::Remove).await;
        agent.refused("../x", None, ErrorKind::PathEscape).await;
        agent.touched("/io/never-made", Change::Write).await;
        agent.returned(id, "1").await;
        let id = agent.run_request().await;
        agent.returned(id, "2").await;
        agent.rest().await;
    })
    .audited(&file);
    std::fs::write(world.io.path().join("a"), "12345").unwrap();
    std::fs::write(world.io.path().join("b"), "1").unwrap();

    let sandbox = world.launch().await.unwrap();
    sandbox.run(Script::new("x")).await.unwrap();
    sandbox.run(Script::new("x")).await.unwrap();
    let id = sandbox.id().to_owned();
    sandbox.close().await.unwrap();
    closed(&world).await;

    let changed = |operation: &str, path: &str, bytes: u64| {
        json!({
            "run_id": "ID", "operation": operation, "by": "script", "path": path,
            "outcome": "ok", "bytes": bytes,
        })
    };
    let mut second = whole("run", "ok", Some(3));
    second["run_id"] = "ID-2".into();
    assert_eq!(
        lines(&file, &id),
        [
            whole("launch", "ok", None),
            json!({
                "run_id": "ID", "operation": "read", "by": "script", "path": "../x",
                "outcome": "path_escape", "bytes": null,
            }),
            changed("write", "/io/a", 5),
            changed("write", "/io/b", 1),
            changed("remove", "/io/gone", 0),
            whole("run", "ok", Some(3)),
            second,
            whole("close", "ok", None),
        ]
    );
}

#[tokio::test]
async fn request_refused_before_sending_is_audited() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await).audited(&file);

    let sandbox = world.launch().await.unwrap();
    let args = serde_json::from_value(json!({"n": u64::MAX})).unwrap();
    sandbox.run(Script::new("x").args(args)).await.unwrap_err();
    let id = sandbox.id().to_owned();
    drop(sandbox);
    world.shared.cleanup.finish().await;

    let limits = Limits { memory: ByteSize::b(1 << 50), ..Limits::default() };
    Sandbox::launch(world.shared.clone(), world.spec().limits(limits)).await.unwrap_err();
    closed(&world).await;

    let lines = lines(&file, &id);
    let refused = &lines[3];
    assert_eq!(refused["outcome"], "policy");
    assert_ne!(refused["run_id"], "ID");
    assert_eq!(
        lines[..3],
        [whole("launch", "ok", None), whole("run", "usage", None), whole("close", "ok", None)]
    );
}

#[tokio::test]
async fn an_audit_in_the_io_dir_is_refused() {
    let world = greeted(async |mut agent: Scripted, _| agent.rest().await);
    let file = world.io.path().join("audit.log");
    let world = world.audited(&file);
    let error = world.launch().await.unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("where a script could change it"), "{error}");
    assert!(world.fake.calls().is_empty());
}

#[tokio::test]
async fn a_full_disk_ends_no_run_and_is_reported_at_the_end() {
    let world = greeted(async |mut agent: Scripted, _| {
        let id = agent.run_request().await;
        agent.returned(id, "1").await;
        agent.rest().await;
    })
    .audited(Path::new("/dev/full"));
    assert_eq!(world.run().await.outcome.status(), Status::Ok);
    let report = report(&world).await;
    assert_eq!((report.written, report.lost), (0, 3));
    assert!(report.failure.unwrap().contains("No space left"));
}

#[tokio::test]
async fn each_operation_of_the_callers_has_its_line_however_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let world = greeted(async |mut agent: Scripted, _| {
        while let Some((id, request)) = agent.agent.request().await {
            match request {
                Request::File(Operation::Exists(_)) => {
                    let reply = ExistsReply { path: "/io/a".into(), exists: false, kind: None };
                    agent.agent.answer(id, reply).await;
                }
                Request::File(Operation::Rename(_)) => {
                    let error = WireError::new(ErrorKind::PathEscape, "no");
                    let line = FromAgent::encode_reply::<()>(id, Err(error)).unwrap();
                    agent.agent.send(line).await;
                }
                Request::Cancel(_) => agent.agent.answer(id, ControlReply { found: true }).await,
                _ => {}
            }
        }
    })
    .audited(&file);

    let sandbox = world.launch().await.unwrap();
    sandbox.call(Exists::new("./a")).await.unwrap();
    sandbox.call(Rename::new("a\u{1b}", "../b")).await.unwrap_err();
    tokio::select! {
        biased;
        read = sandbox.read(Read::new("a"), None) => panic!("{read:?}"),
        () = tokio::task::yield_now() => {}
    }
    // Refused before anything is sent: half a byte.
    let write = r#"{"operation":"write","path":"a","content":"f","encoding":"hex"}"#;
    let envelope = sandbox.perform(OperationRequest::from_json(write).unwrap()).await;
    assert!(!envelope.success);
    let id = sandbox.id().to_owned();
    drop(sandbox);
    closed(&world).await;

    let line = |operation: &str, path: &str, outcome: &str| {
        json!({
            "run_id": "ID", "operation": operation, "by": "caller", "path": path,
            "outcome": outcome, "bytes": null,
        })
    };
    let mut renamed = line("rename", "/io/a\u{1b}", "path_escape");
    renamed["to"] = "../b".into();
    assert_eq!(
        lines(&file, &id),
        [
            whole("launch", "ok", None),
            line("exists", "/io/a", "ok"),
            renamed,
            line("read", "/io/a", "cancelled"),
            line("write", "/io/a", "encoding"),
            whole("close", "ok", None),
        ]
    );
}

#[tokio::test]
async fn a_command_has_its_program_in_the_audit_and_neither_its_arguments_nor_its_variables() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let world = World::in_its_io(async |io, mut agent: Scripted, _| {
        let mut program = Program::asked(&mut agent).await;
        std::fs::write(io.join("a"), "123").unwrap();
        program.write(0, "secret").await;
        program.end(ExecEnd::Exited(3), None).await;
        Program::asked(&mut agent).await.refuse(ErrorKind::CommandNotFound).await;
        agent.rest().await;
    })
    .audited(&file);
    let sandbox = launch(&world, with_programs(&world)).await;
    let command = || Command::new("curl").arg("secret").env("TOKEN", "secret");
    sandbox.run(command()).await.unwrap();
    sandbox.run(command()).await.unwrap();
    sandbox.run(Command::shell("secret\0")).await.unwrap_err();
    let id = sandbox.id().to_owned();
    sandbox.close().await.unwrap();
    closed(&world).await;

    let exec = |run_id: &str, program: &str, outcome: &str| {
        let mut line = whole("exec", outcome, None);
        (line["run_id"], line["program"]) = (run_id.into(), program.into());
        line
    };
    assert_eq!(
        lines(&file, &id),
        [
            whole("launch", "ok", None),
            json!({
                "run_id": "ID", "operation": "write", "by": "script", "path": "/io/a",
                "outcome": "ok", "bytes": 3,
            }),
            exec("ID", "curl", "exit"),
            exec("ID-2", "curl", "error"),
            exec("ID", "/bin/sh", "usage"),
            whole("close", "ok", None),
        ]
    );
}

#[tokio::test]
async fn a_process_has_its_start_readers_signals_end_and_input_in_the_audit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let world = greeted(async |mut agent: Scripted, _| {
        Program::asked(&mut agent).await.refuse(ErrorKind::CommandNotFound).await;
        let mut program = Program::asked(&mut agent).await;
        program.started(15).await;
        // Input and signals are in no order.
        let (mut is_closed, mut is_answered) = (false, false);
        while !(is_closed && is_answered) {
            match program.agent.agent.message().await {
                Some(ToAgent::Chunk(chunk)) => is_closed = chunk.last,
                Some(ToAgent::Request { id, request: Request::Signal(_), .. }) => {
                    program.agent.agent.answer(id, ControlReply { found: true }).await;
                    is_answered = true;
                }
                other => panic!("{other:?}"),
            }
        }
        program.exited(ExecEnd::Exited(3)).await;
        program.end(ExecEnd::Exited(3), None).await;
        agent.rest().await;
    })
    .audited(&file);
    let sandbox = launch(&world, with_programs(&world).processes(Processes::Kept)).await;
    let command = |program: &str| Command::new(program).arg("secret").env("TOKEN", "secret");
    sandbox.start_process(command("none")).await.unwrap_err();
    let serve = ProcessCommand { open_stdin: true, ..command("serve").into() };
    let process = sandbox.start_process(serve).await.unwrap();
    drop(process.attach(ReadFrom::After(0), ReadMode::Lossy).unwrap());
    process.write_stdin(Bytes::from_static(b"secret")).await.unwrap();
    process.close_stdin().await.unwrap();
    assert!(process.signal(SignalName::Usr1, SignalTarget::Tree).await.unwrap());
    process.until(Until::Ended).await;
    let id = sandbox.id().to_owned();
    sandbox.close().await.unwrap();
    closed(&world).await;

    let line = |operation: &str, outcome: &str, bytes: Option<u64>| {
        let mut line = whole(operation, outcome, bytes);
        line["run_id"] = "ID-2".into();
        line
    };
    let of_program = |program: &str, mut line: Value| {
        line["program"] = program.into();
        line
    };
    assert_eq!(
        lines(&file, &id),
        [
            whole("launch", "ok", None),
            // It has no run.
            of_program("none", whole("process.start", "command_not_found", None)),
            of_program("serve", line("process.start", "ok", None)),
            line("process.attach", "ok", None),
            line("process.signal", "ok", None),
            of_program("serve", line("process.exit", "exit", None)),
            line("process.stdin", "ok", Some(6)),
            whole("close", "ok", None),
        ]
    );
}

#[tokio::test]
async fn a_connection_that_ends_with_its_sandbox_has_its_line_before_the_sandboxs_last() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let world = greeted(async move |mut agent: Scripted, _| {
        let (tunnel, port) = (FIRST_TUNNEL, address.port());
        let host = HOST_LOOPBACK.to_owned();
        agent.notify(FromAgent::Connect(Connect { tunnel, host, port })).await;
        let said = agent.agent.message().await;
        assert!(matches!(said, Some(ToAgent::Connected(_))), "{said:?}");
        agent.rest().await;
    })
    .audited(&file);
    let rule = format!("{HOST_LOOPBACK}:{}", address.port());
    let list = [rule.parse().unwrap()].into_iter().collect();
    let sandbox = launch(&world, with_programs(&world).allow(list)).await;
    let (_connection, _) = listener.accept().await.unwrap();
    let id = sandbox.id().to_owned();
    sandbox.close().await.unwrap();
    closed(&world).await;

    let lines = lines(&file, &id);
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let outcomes = lines.iter().map(|line| [&line["operation"], &line["outcome"]].map(word));
    let expected = [["launch", "ok"], ["connect", "reset"], ["close", "ok"]];
    assert_eq!(outcomes.collect::<Vec<_>>(), expected);
    assert_eq!(lines[1]["connection"]["target"], rule);
    assert_eq!(lines[1]["connection"]["address"], "127.0.0.1");
    assert_eq!(lines[1]["by"], "script");
}
