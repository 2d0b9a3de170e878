//! The wire is frozen: `protocol/schema/` holds one sample of every message and every constant.
//! A change of the wire fails here; where it is meant, raise `PROTOCOL_VERSION` and bless it:
//!
//! ```sh
//! BLESS=1 cargo test -p sandbox-protocol --test schema
//! ```

use std::fmt::Write as _;
use std::path::Path;

use sandbox_protocol::message::*;
use sandbox_protocol::{
    Base64, ErrorKind, FromAgent, PROTOCOL_VERSION, ToAgent, WireError, WireString, limits,
};
use serde_json::{Map, json, value::to_raw_value};

fn hold_against(name: &str, now: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, now).expect("schema/ is writable");
    }
    let frozen = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        frozen, now,
        "the wire is not what protocol/schema/{name} says. If the change is meant, raise \
         PROTOCOL_VERSION and run: BLESS=1 cargo test -p sandbox-protocol --test schema"
    );
}

fn configure() -> Configure {
    Configure {
        limits: Limits {
            vm_memory_bytes: 1,
            write_bytes: 2,
            entries: 3,
            file_bytes: 4,
            open_handles: 5,
            log_bytes: 6,
            log_lines: 7,
            result_bytes: 8,
            list_entries: 9,
            list_depth: 10,
            operation_timeout_ms: 11,
            output_bytes: 12,
            collected_bytes: 13,
            disk_reserve_bytes: 14,
            cpu_seconds: Some(15),
        },
        policy: Policy {
            io: true,
            io_errors: IoErrors::Return,
            allowed_paths: [Access::Read, Access::Write]
                .map(|access| AllowedPath { path: "/io".into(), access })
                .into(),
            protected: vec![".bashrc".into()],
            files: FileScope::All,
        },
        ca: Some(Box::new(Ca {
            certificate: "-----BEGIN CERTIFICATE-----\n".into(),
            variables: vec![Variable {
                name: WireString::new("TOKEN"),
                value: WireString::new("sandboxctl-injected-TOKEN"),
            }],
        })),
    }
}

fn requests() -> Vec<Request> {
    let timestamp = Timestamp { seconds: -1, nanoseconds: 250_000_000 };
    vec![
        Hello { protocol: PROTOCOL_VERSION, nonce: Some("token".into()) }.into(),
        configure().into(),
        Run {
            source: "return 1".into(),
            args: Map::from_iter([("k".into(), json!("v"))]),
            secrets: secrets(),
            timeout_ms: 30_000,
            seed: Some(7),
            now: Some(1_767_225_600),
            tools: true,
        }
        .into(),
        exec(Command::Program(Program {
            program: WireString::new("a"),
            args: vec![WireString::new(b"\xff")],
        }))
        .into(),
        Read { offset: 1, limit: Some(2), ..Read::new(path()) }.into(),
        View { lines: ViewLines { offset: 1, limit: Some(2) }, ..View::new(path()) }.into(),
        Write { permissions: Some(0o640), ..Write::new(path()) }.into(),
        Edit::new(path(), "a", "b").into(),
        List { recursive: true, max_depth: Some(1), details: true, ..List::new(path()) }.into(),
        Glob {
            path: path(),
            exclude: vec!["a/**".into()],
            globs: vec!["b".into()],
            hidden: true,
            limit: Some(1),
            ..Glob::new("*")
        }
        .into(),
        Grep {
            path: path(),
            glob: Some("*".into()),
            exclude: vec!["a".into()],
            globs: vec!["!b".into()],
            context: 1,
            ignore_case: true,
            hidden: true,
            limit: Some(1),
            ..Grep::new("a")
        }
        .into(),
        Mkdir::new(path()).into(),
        Touch { mtime: Some(timestamp), ..Touch::new(path()) }.into(),
        Remove { recursive: true, ..Remove::new(path()) }.into(),
        Exists::new(path()).into(),
        Stat { follow: true, ..Stat::new(path()) }.into(),
        Rename { overwrite: true, parents: true, ..Rename::new("a", path()) }.into(),
        Copy { recursive: true, overwrite: true, ..Copy::new("a", path()) }.into(),
        Chmod { recursive: true, ..Chmod::new(path(), 0o640_u32) }.into(),
        Symlink::new(path(), "../b").into(),
        ReadLink::new(path()).into(),
        SetMetadata::new(path(), metadata()).into(),
        Cancel { id: 2, at_once: false }.into(),
        Signal { id: 2, signal: SignalName::Term, to: SignalTarget::Group }.into(),
        Resize { id: 2, cols: 80, rows: 24 }.into(),
        Dial { tunnel: limits::FIRST_DIAL, port: 8080 }.into(),
        ListPorts {}.into(),
        Watch { path: path(), recursive: true }.into(),
        Flush {}.into(),
        call_result(CallEnd::Value(json!({ "a": [1] }))).into(),
        Shutdown {}.into(),
    ]
}

fn call_result(end: CallEnd) -> CallResult {
    let name = "a-1.png".into();
    let file = CallFile { name, mime_type: "image/png".into(), data: Base64(vec![0, 255]) };
    let files = if matches!(end, CallEnd::Value(_)) { vec![file] } else { Vec::new() };
    CallResult { request: 2, call: 1, end, files }
}

fn metadata() -> std::collections::BTreeMap<String, String> {
    [("k".to_owned(), "v".to_owned())].into()
}

fn exec(command: Command) -> Exec {
    Exec {
        command,
        cwd: Some(WireString::new("/io")),
        env: vec![Variable { name: WireString::new("A"), value: WireString::new("b") }],
        secrets: secrets(),
        stdin: Some(1),
        stdout: 2,
        stderr: Some(3),
        pty: None,
        kept: false,
        timeout_ms: Some(30_000),
        grace_ms: 2_000,
        stop_signal: None,
    }
}

/// A kept command in a terminal.
fn kept(command: Command) -> Exec {
    let pty = Some(Pty { cols: 80, rows: 24, term: "xterm-256color".into() });
    let stop_signal = Some(SignalName::Int);
    Exec { stderr: None, pty, kept: true, timeout_ms: None, stop_signal, ..exec(command) }
}

fn secrets() -> Vec<Secret> {
    vec![Secret { name: "S".into(), value: Base64(b"\xff".to_vec()) }]
}

fn path() -> WireString {
    WireString::new(b"a\xff")
}

fn time() -> Option<Timestamp> {
    Some(Timestamp { seconds: -1, nanoseconds: 500_000_000 })
}

/// The words of the enums that no other sample shows.
fn modes() -> String {
    let mut words = String::new();
    for mode in [WriteMode::Overwrite, WriteMode::Append, WriteMode::CreateNew] {
        writeln!(words, "mode {}", serde_json::to_string(&mode).unwrap()).unwrap();
    }
    for kind in [EntryKind::File, EntryKind::Directory, EntryKind::Symlink, EntryKind::Other] {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        writeln!(words, "type {kind}", kind = kind.as_str()).unwrap();
    }
    for by in [
        CutBy::Name,
        CutBy::Mount,
        CutBy::Depth,
        CutBy::Directories,
        CutBy::Files,
        CutBy::Bytes,
        CutBy::Time,
        CutBy::Entries,
    ] {
        writeln!(words, "cut {}", serde_json::to_string(&by).unwrap()).unwrap();
    }
    for signal in SignalName::ALL {
        writeln!(words, "signal {}", serde_json::to_string(&signal).unwrap()).unwrap();
    }
    for target in SignalTarget::ALL {
        writeln!(words, "target {}", serde_json::to_string(&target).unwrap()).unwrap();
    }
    words
}

/// The answers to file operations.
fn answers() -> Vec<Vec<u8>> {
    let path = || WireString::new(b"/io/a\xff");
    let cut = || Some(Cut { by: CutBy::Entries, at: WireString::new(b"a\xff") });
    let text = TextWindow {
        text: "a\n".into(),
        first_line: 1,
        output_lines: 1,
        total_lines: 2,
        truncated_by: Some(TruncatedBy::Lines),
        footer: Some("[…]".into()),
    };
    let bytes_cut = TextWindow { truncated_by: Some(TruncatedBy::Bytes), ..text.clone() };
    let image = ImageContent { mime_type: "image/png".into(), bytes: 1 };
    let view = |content| FromAgent::encode_reply(6, Ok(ViewReply { path: path(), content }));
    let exec = |end, stopped| {
        let signs = if end == ExecEnd::Exited(1) { Sign::ALL.to_vec() } else { Vec::new() };
        let (stdout_bytes, stderr_bytes, cpu_ms, peak_memory_bytes) = (1, 2, 3, 4);
        let reply = ExecReply {
            end,
            stopped,
            stdout_bytes,
            stderr_bytes,
            cpu_ms,
            peak_memory_bytes,
            signs,
        };
        FromAgent::encode_reply(4, Ok(reply))
    };
    [
        exec(ExecEnd::Exited(1), None),
        exec(ExecEnd::Signaled(9), Some(ExecStop::Timeout)),
        exec(ExecEnd::Signaled(9), Some(ExecStop::Cancelled)),
        exec(ExecEnd::Signaled(9), Some(ExecStop::OutputLimit)),
        exec(ExecEnd::Signaled(9), Some(ExecStop::EvasionOfAnother)),
        FromAgent::Started(Started { request: 4, pid: 15 }).encode(),
        FromAgent::Exited(Exited { request: 4, end: ExecEnd::Exited(1), stopped: None }).encode(),
        FromAgent::encode_reply(4, Ok(ControlReply { found: true })),
        FromAgent::encode_reply(4, Ok(Done {})),
        FromAgent::encode_reply(
            4,
            Ok(ListPortsReply {
                listening: vec![ListeningPort { port: 80, address: [0; 16].into() }],
            }),
        ),
        FromAgent::encode_reply(5, Ok(ReadReply { path: path(), bytes: 1, size: 2 })),
        view(ViewContent::Text(text)),
        view(ViewContent::Text(bytes_cut)),
        view(ViewContent::Image(image)),
        FromAgent::encode_reply(
            7,
            Ok(WriteReply { path: path(), bytes_written: 1, created: true }),
        ),
        FromAgent::encode_reply(8, Ok(EditReply { path: path(), replacements: 1 })),
        FromAgent::encode_reply(9, Ok(ListReply { path: path(), entries: 1, cut: None })),
        FromAgent::encode_reply(10, Ok(MkdirReply { path: path(), created: true })),
        FromAgent::encode_reply(10, Ok(TouchReply { path: path(), created: false })),
        FromAgent::encode_reply(11, Ok(RemoveReply { path: path(), removed: true, entries: 1 })),
        FromAgent::encode_reply(
            12,
            Ok(ExistsReply { path: path(), exists: true, kind: Some(EntryKind::File) }),
        ),
        FromAgent::encode_reply(
            13,
            Ok(StatReply {
                path: path(),
                kind: EntryKind::Symlink,
                size: 1,
                permissions: 0o755,
                uid: 2,
                gid: 3,
                modified: time(),
                accessed: time(),
                created: None,
                owner: Some("a".into()),
                group: Some("b".into()),
                target: Some("../b".into()),
                metadata: metadata(),
            }),
        ),
        FromAgent::encode_reply(14, Ok(RenameReply { from: "/io/a".into(), to: path() })),
        FromAgent::encode_reply(
            15,
            Ok(CopyReply { from: "/io/a".into(), to: path(), entries: 1, bytes: 2 }),
        ),
        FromAgent::encode_reply(15, Ok(ChmodReply { path: path(), entries: 1 })),
        FromAgent::encode_reply(15, Ok(SymlinkReply { path: path() })),
        FromAgent::encode_reply(15, Ok(ReadLinkReply { path: path(), target: "../b".into() })),
        FromAgent::encode_reply(15, Ok(SetMetadataReply { path: path() })),
        FromAgent::encode_reply(
            16,
            Ok(GlobReply { path: path(), names: vec!["a".into()], cut: cut() }),
        ),
        FromAgent::encode_reply(
            17,
            Ok(GrepReply {
                path: path(),
                lines: vec![GrepLine {
                    name: "a".into(),
                    line: 1,
                    text: "x".into(),
                    cut: true,
                    context: true,
                }],
                files: 1,
                cut: cut(),
            }),
        ),
        FromAgent::Page(Page {
            request: 9,
            entries: vec![Entry {
                name: WireString::new(b"sub/a\xff"),
                kind: EntryKind::File,
                size: 1,
                modified: time(),
                details: Some(EntryDetails {
                    permissions: 0o640,
                    uid: 2,
                    gid: 3,
                    owner: Some("a".into()),
                    group: Some("b".into()),
                    target: Some("../b".into()),
                    metadata: metadata(),
                }),
            }],
        })
        .encode(),
    ]
    .map(Result::unwrap)
    .into()
}

/// What becomes of a watch.
fn watches() -> Vec<Vec<u8>> {
    let changes = |omitted, changes: &[FileChange]| {
        let entry = |&change: &FileChange| {
            assert_eq!(serde_json::to_value(change).unwrap(), change.as_str());
            let kind = (change == FileChange::Create).then_some(EntryKind::Directory);
            ChangedEntry { name: path(), change, kind }
        };
        let entries = changes.iter().map(entry).collect();
        FromAgent::Changes(Changes { request: 18, omitted, entries }).encode()
    };
    [
        FromAgent::Watched(Watched { request: 18 }).encode(),
        changes(0, &FileChange::ALL),
        changes(1, &[]),
        FromAgent::encode_reply(18, Ok(Done {})),
        FromAgent::encode_reply(19, Ok(Done {})),
    ]
    .map(Result::unwrap)
    .into()
}

fn chunk() -> Chunk {
    Chunk { stream: 1, seq: 0, data: Base64(vec![0, 255]), last: true }
}

fn credit() -> Credit {
    Credit { stream: 1, bytes: 65536 }
}

fn tunnels_to_agent() -> String {
    let tunnel = limits::FIRST_TUNNEL;
    let closed = ClosedReason::ALL.map(|reason| {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        ToAgent::Closed(Closed { tunnel, reason, message: "why".into() })
    });
    let messages = [ToAgent::Connected(Connected { tunnel })].into_iter().chain(closed);
    messages.map(|message| String::from_utf8(message.encode().unwrap()).unwrap()).collect()
}

fn tunnels_from_agent() -> Vec<Vec<u8>> {
    let tunnel = limits::FIRST_TUNNEL;
    let connect = Connect { tunnel, host: "example.org".into(), port: 443 };
    [FromAgent::Connect(connect), FromAgent::Close(Close { tunnel })]
        .map(|message| message.encode().unwrap())
        .into()
}

#[test]
fn requests_of_the_controller_are_frozen() {
    let mut lines = String::new();
    let line = |id, request| {
        let opens = matches!(&request, Request::File(operation) if operation.stream().is_some());
        let message = ToAgent::Request { id, request, stream: opens.then_some(3) };
        String::from_utf8(message.encode().unwrap()).unwrap()
    };
    for (id, request) in (1..).zip(requests()) {
        lines += &line(id, request);
    }
    let shell = || Command::Shell(WireString::new("a | b"));
    lines += &line(99, exec(shell()).into());
    lines += &line(100, kept(shell()).into());
    let failed = CallEnd::Failed { kind: ErrorKind::Policy, message: "no".into() };
    lines += &line(101, call_result(failed).into());
    for message in [ToAgent::Chunk(chunk()), ToAgent::Credit(credit())] {
        lines += std::str::from_utf8(&message.encode().unwrap()).unwrap();
    }
    lines += &tunnels_to_agent();
    lines += std::str::from_utf8(&ToAgent::Heartbeat.encode().unwrap()).unwrap();
    for line in lines.lines() {
        let read = ToAgent::decode(line).unwrap();
        assert_eq!(read.encode().unwrap(), format!("{line}\n").into_bytes());
    }
    let methods: Vec<_> = requests().iter().map(Request::method).collect();
    let (first, last) = Request::METHODS.split_at(4);
    assert_eq!(methods, [first, Operation::NAMES, last].concat());
    hold_against("to_agent.ndjson", &lines);
}

#[test]
fn replies_of_the_agent_are_frozen() {
    let usage = AgentUsage { cpu_ms: 1, peak_memory_bytes: 2, written_bytes: 3 };
    let error = ScriptError {
        kind: ErrorKind::Runtime,
        message: "script:3: no".into(),
        line: Some(3),
        traceback: Some("script:3".into()),
        value: Some(json!({ "code": 7 })),
    };
    let reply = |end| RunReply { end, logs_truncated: false, usage };
    let log = |level, lossy, cut| {
        FromAgent::Log(Log { request: 2, level, text: "hi".into(), lossy, cut })
    };
    let touched = |change, path: &[u8]| {
        FromAgent::Touched(Touched {
            request: 2,
            path: WireString::new(path),
            existed: true,
            change,
        })
    };
    let lines = [
        FromAgent::encode_reply(
            1,
            Ok(HelloReply {
                protocol: PROTOCOL_VERSION,
                agent: "0.1.0".into(),
                confinement: Confinement {
                    no_new_privileges: true,
                    undumpable: true,
                    landlock_abi: Some(6),
                    seccomp: true,
                    unix_sockets: UnixSockets::Supervised,
                    missing: vec!["why".into()],
                },
                resolver: Resolver::Openat2,
                boot_id: "b".into(),
                mounts: vec![MountIdentity { path: "/io".into(), dev: 1, ino: 2 }],
                nonce: Some("token".into()),
            }),
        ),
        FromAgent::encode_reply(2, Ok(reply(RunEnd::Returned(to_raw_value(&[1, 2]).unwrap())))),
        FromAgent::encode_reply(2, Ok(reply(RunEnd::Failed(error)))),
        FromAgent::encode_reply(3, Ok(ControlReply { found: true })),
        FromAgent::encode_reply(4, Ok(Done {})),
        FromAgent::encode_reply::<()>(
            5,
            Err(WireError::new(ErrorKind::Busy, "a run is under way")),
        ),
        log(LogLevel::Print, false, false).encode(),
        log(LogLevel::Warn, true, true).encode(),
        touched(Change::Write, b"/io/a").encode(),
        touched(Change::Append, b"/io/a").encode(),
        touched(Change::Remove, b"/io/\xff").encode(),
        touched(Change::Failed, b"/io/a").encode(),
        FromAgent::Chunk(chunk()).encode(),
        FromAgent::Credit(credit()).encode(),
    ]
    .map(Result::unwrap);
    let refused = OperationName::ALL.iter().map(|&operation| {
        let path = WireString::new(b"../\xff");
        let kind = ErrorKind::PathEscape;
        let refused = Refused { request: 2, operation, path, kind };
        let line = FromAgent::Refused(refused).encode().unwrap();
        let named = format!("\"operation\":\"{}\"", operation.as_str());
        assert!(String::from_utf8_lossy(&line).contains(&named), "{named}");
        line
    });
    let refused: Vec<_> = refused.collect();
    let cases = TestStatus::ALL.map(|status| {
        assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        let message = (status != TestStatus::Passed).then(|| "script:3: no".into());
        let line = (status == TestStatus::Failed).then_some(3);
        let case = TestCase { name: "sums".into(), status, message, line, duration_ms: 7 };
        FromAgent::Case(CaseEnd { request: 2, case }).encode().unwrap()
    });
    let calls = CallTarget::ALL.map(|target| {
        assert_eq!(serde_json::to_value(target).unwrap(), target.as_str());
        let arguments = to_raw_value(&json!({ "a": 1 })).unwrap();
        let call = HostCall { request: 2, call: 1, target, name: "a.b".into(), arguments };
        FromAgent::Call(call).encode().unwrap()
    });
    let lines =
        [&lines[..], &cases, &refused, &answers(), &tunnels_from_agent(), &watches(), &calls]
            .concat();
    let lines = String::from_utf8(lines.concat()).unwrap();
    for line in lines.lines() {
        FromAgent::decode(line).unwrap();
    }
    hold_against("from_agent.ndjson", &lines);
}

#[test]
fn constants_and_error_kinds_are_frozen() {
    let mut text = format!(
        "PROTOCOL_VERSION {PROTOCOL_VERSION}\nMAX_FRAME_BYTES {}\nMAX_CHUNK_BYTES {}\n\
         MAX_NESTING {}\nMAX_VALUE_DEPTH {}\nMAX_IN_FLIGHT {}\nLIST_PAGE {}\n\
         LIST_PAGE_BYTES {}\nMAX_VIEW_LINES {}\nMAX_VIEW_BYTES {}\n\
         MAX_REFUSALS {}\nMAX_TEST_CASES {}\nMAX_TEST_NAME_BYTES {}\n\
         MAX_TEST_MESSAGE_BYTES {}\n\
         MAX_LOG_ENTRY_BYTES {}\nMAX_SOURCE_BYTES {}\nMAX_RESULT_BYTES {}\nMAX_ARGS_BYTES {}\n\
         MAX_COMMAND_BYTES {}\nMAX_MESSAGE_BYTES {}\nINITIAL_CREDIT {}\n\
         FIRST_TUNNEL {}\nMAX_TUNNELS {}\nMAX_HOST_BYTES {}\nMAX_CLOSED_MESSAGE_BYTES {}\n\
         MAX_PATTERN_BYTES {}\nMAX_GLOB_BYTES {}\nMAX_GREP_BYTES {}\nMAX_GREP_LINE_BYTES {}\n\
         MAX_GREP_CONTEXT {}\nCREDIT_STEP {}\nHEARTBEAT_INTERVAL {:?}\nHEARTBEAT_TIMEOUT {:?}\n\
         FIRST_BYTE_TIMEOUT {:?}\nMAX_COMMANDS {}\nMAX_TERMINALS {}\nMAX_TERMINAL_SIZE {}\n\
         MAX_TERM_BYTES {}\nFIRST_DIAL {}\nMAX_DIALS {}\nDIAL_TIMEOUT {:?}\nMAX_LISTENING {}\n",
        limits::MAX_FRAME_BYTES,
        limits::MAX_CHUNK_BYTES,
        limits::MAX_NESTING,
        limits::MAX_VALUE_DEPTH,
        limits::MAX_IN_FLIGHT,
        limits::LIST_PAGE,
        limits::LIST_PAGE_BYTES,
        limits::MAX_VIEW_LINES,
        limits::MAX_VIEW_BYTES,
        limits::MAX_REFUSALS,
        limits::MAX_TEST_CASES,
        limits::MAX_TEST_NAME_BYTES,
        limits::MAX_TEST_MESSAGE_BYTES,
        limits::MAX_LOG_ENTRY_BYTES,
        limits::MAX_SOURCE_BYTES,
        limits::MAX_RESULT_BYTES,
        limits::MAX_ARGS_BYTES,
        limits::MAX_COMMAND_BYTES,
        limits::MAX_MESSAGE_BYTES,
        limits::INITIAL_CREDIT,
        limits::FIRST_TUNNEL,
        limits::MAX_TUNNELS,
        limits::MAX_HOST_BYTES,
        limits::MAX_CLOSED_MESSAGE_BYTES,
        limits::MAX_PATTERN_BYTES,
        limits::MAX_GLOB_BYTES,
        limits::MAX_GREP_BYTES,
        limits::MAX_GREP_LINE_BYTES,
        limits::MAX_GREP_CONTEXT,
        limits::CREDIT_STEP,
        limits::HEARTBEAT_INTERVAL,
        limits::HEARTBEAT_TIMEOUT,
        limits::FIRST_BYTE_TIMEOUT,
        limits::MAX_COMMANDS,
        limits::MAX_TERMINALS,
        limits::MAX_TERMINAL_SIZE,
        limits::MAX_TERM_BYTES,
        limits::FIRST_DIAL,
        limits::MAX_DIALS,
        limits::DIAL_TIMEOUT,
        limits::MAX_LISTENING,
    );
    for (name, most) in [
        ("MAX_WATCHES", limits::MAX_WATCHES),
        ("MAX_WATCHED_DIRECTORIES", limits::MAX_WATCHED_DIRECTORIES),
        ("MAX_WATCH_DEPTH", limits::MAX_WATCH_DEPTH),
        ("MAX_TOOL_NAME_BYTES", limits::MAX_TOOL_NAME_BYTES),
        ("MAX_TOOL_ARGUMENT_BYTES", limits::MAX_TOOL_ARGUMENT_BYTES),
        ("MAX_TOOL_VALUE_BYTES", limits::MAX_TOOL_VALUE_BYTES),
        ("MAX_TOOL_FILES", limits::MAX_TOOL_FILES),
        ("MAX_TOOL_FILE_BYTES", limits::MAX_TOOL_FILE_BYTES),
        ("MAX_TOOL_FILE_NAME_BYTES", limits::MAX_TOOL_FILE_NAME_BYTES),
    ] {
        writeln!(text, "{name} {most}").unwrap();
    }
    for kind in ErrorKind::ALL {
        writeln!(text, "error {kind}").unwrap();
    }
    text += &modes();
    hold_against("constants.txt", &text);
}
