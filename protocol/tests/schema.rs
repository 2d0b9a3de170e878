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
    Base64, ErrorKind, FromAgent, PROTOCOL_VERSION, ToAgent, WireError, limits,
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

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL_VERSION,
        nonce: Some("token".into()),
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
        },
        policy: Policy {
            io: true,
            io_errors: IoErrors::Return,
            allowed_paths: [Access::Read, Access::Write]
                .map(|access| AllowedPath { path: "/io".into(), access })
                .into(),
            protected: vec![".bashrc".into()],
        },
    }
}

fn requests() -> Vec<Request> {
    vec![
        hello().into(),
        Run {
            source: "return 1".into(),
            args: Map::from_iter([("k".into(), json!("v"))]),
            timeout_ms: 30_000,
        }
        .into(),
        Cancel { id: 2 }.into(),
        Shutdown {}.into(),
    ]
}

fn chunk() -> Chunk {
    Chunk { stream: 1, seq: 0, data: Base64(vec![0, 255]), last: true }
}

fn credit() -> Credit {
    Credit { stream: 1, bytes: 65536 }
}

#[test]
fn what_the_controller_sends_is_frozen() {
    let mut lines = String::new();
    for (id, request) in (1..).zip(requests()) {
        lines += std::str::from_utf8(&ToAgent::Request { id, request }.encode().unwrap()).unwrap();
    }
    for message in [ToAgent::Chunk(chunk()), ToAgent::Credit(credit())] {
        lines += std::str::from_utf8(&message.encode().unwrap()).unwrap();
    }
    for line in lines.lines() {
        let read = ToAgent::decode(line).unwrap();
        assert_eq!(read.encode().unwrap(), format!("{line}\n").into_bytes());
    }
    assert_eq!(requests().iter().map(Request::method).collect::<Vec<_>>(), Request::METHODS);
    hold_against("to_agent.ndjson", &lines);
}

#[test]
fn what_the_agent_sends_is_frozen() {
    let usage = AgentUsage { cpu_ms: 1, peak_memory_bytes: 2, written_bytes: 3 };
    let error = ScriptError {
        kind: ErrorKind::Runtime,
        message: "script:3: no".into(),
        line: Some(3),
        traceback: Some("script:3".into()),
    };
    let reply = |end| RunReply { end, logs_truncated: false, usage };
    let log = |level, lossy, cut| {
        FromAgent::Log(Log { request: 2, level, text: "hi".into(), lossy, cut })
    };
    let touched = |change, path_b64| {
        FromAgent::Touched(Touched {
            request: 2,
            path: "/io/a".into(),
            path_b64,
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
        FromAgent::encode_reply(3, Ok(CancelReply { found: true })),
        FromAgent::encode_reply(4, Ok(ShutdownReply {})),
        FromAgent::encode_reply::<()>(
            5,
            Err(WireError::new(ErrorKind::Busy, "a run is under way")),
        ),
        log(LogLevel::Print, false, false).encode(),
        log(LogLevel::Warn, true, true).encode(),
        touched(Change::Write, None).encode(),
        touched(Change::Append, None).encode(),
        touched(Change::Remove, Some(Base64(b"/io/\xff".into()))).encode(),
        touched(Change::Failed, None).encode(),
        FromAgent::Chunk(chunk()).encode(),
        FromAgent::Credit(credit()).encode(),
    ]
    .map(|line| String::from_utf8(line.unwrap()).unwrap())
    .concat();
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
         MAX_LOG_ENTRY_BYTES {}\nMAX_SOURCE_BYTES {}\nMAX_RESULT_BYTES {}\nMAX_ARGS_BYTES {}\n\
         MAX_MESSAGE_BYTES {}\nINITIAL_CREDIT {}\n",
        limits::MAX_FRAME_BYTES,
        limits::MAX_CHUNK_BYTES,
        limits::MAX_NESTING,
        limits::MAX_VALUE_DEPTH,
        limits::MAX_IN_FLIGHT,
        limits::LIST_PAGE,
        limits::MAX_LOG_ENTRY_BYTES,
        limits::MAX_SOURCE_BYTES,
        limits::MAX_RESULT_BYTES,
        limits::MAX_ARGS_BYTES,
        limits::MAX_MESSAGE_BYTES,
        limits::INITIAL_CREDIT,
    );
    for kind in ErrorKind::ALL {
        writeln!(text, "error {kind}").unwrap();
    }
    hold_against("constants.txt", &text);
}
