//! The JSON Schemas of the public documents: each accepts what serde reads and writes, and nothing
//! else.

use std::any::type_name;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use jsonschema::Validator;
use sandbox_api::artifacts::{ArtifactManifest, ArtifactsDiff};
use sandbox_api::changes::ChangeManifest;
use sandbox_api::files::{
    CopyReply, ExistsReply, GlobData, GrepData, ListData, MkdirReply, ReadData, StatData, ViewData,
};
use sandbox_api::operation::{OperationRequest, read_result, result_json};
use sandbox_api::service::ExecutionKind;
use sandbox_api::{
    EngineKind, Envelope, ErrorKind, ExecDocument, ExecutionDocument, Failure, GcReport, Limits,
    ResultDocument, RootFs, SandboxSpec, SandboxState, SandboxSummary, Script, Status, User,
    schema,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

fn validator<T>(schema: &Value) -> Validator {
    jsonschema::draft202012::new(schema)
        .unwrap_or_else(|error| panic!("{}: {error}: {schema}", type_name::<T>()))
}

fn check(validator: &Validator, value: &Value, is_valid: bool, name: &str) {
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert_eq!(errors.is_empty(), is_valid, "{name}: {value}: {errors:?}");
}

/// What is written is valid, and is not valid any more with a member that serde does not know.
fn accepts<T: JsonSchema + Serialize>(document: &T) {
    let value = serde_json::to_value(document).unwrap();
    let name = type_name::<T>();
    let schema = schema::answer::<T>();
    let (written, read) = (validator::<T>(&schema), validator::<T>(&schema::request::<T>()));
    for validator in [&written, &read] {
        check(validator, &value, true, name);
        let mut more = value.clone();
        more["unknown"] = 1.into();
        check(validator, &more, false, name);
    }
    // Each member that is always written is required of what is written. A choice has no such list.
    let Some(required) = schema.get("required").and_then(Value::as_array) else { return };
    for key in required.iter().filter_map(Value::as_str) {
        let mut less = value.clone();
        less.as_object_mut().unwrap().remove(key).unwrap_or_else(|| panic!("{name}: {key}"));
        check(&written, &less, false, name);
    }
}

/// The schema of what is read agrees with serde about these.
fn agrees<T: JsonSchema + DeserializeOwned>(values: impl IntoIterator<Item = Value>) {
    let read = validator::<T>(&schema::request::<T>());
    for value in values {
        let serde = serde_json::from_value::<T>(value.clone());
        check(&read, &value, serde.is_ok(), type_name::<T>());
    }
}

/// A result of an operation is read as it was written, and as its schema says.
fn gives<T: JsonSchema + Serialize + DeserializeOwned>(values: impl IntoIterator<Item = Value>) {
    for value in values {
        let result: T = read_result(&value.to_string()).unwrap();
        let json = result_json(&result).unwrap();
        assert_eq!(serde_json::from_str::<Value>(json.get()).unwrap(), value);
        let written = validator::<T>(&schema::answer::<T>());
        check(&written, &value, true, type_name::<T>());
        let mut more = value;
        more["unknown"] = 1.into();
        check(&written, &more, false, type_name::<T>());
    }
}

/// The same, of documents that are written as they were read.
fn agrees_both_ways<T: JsonSchema + Serialize + DeserializeOwned>(
    values: impl IntoIterator<Item = Value>,
) {
    for value in values {
        let document: T = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&document).unwrap(), value);
        accepts(&document);
    }
}

/// A document, with the schema of a script's or a command's.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct DocumentOf<K> {
    document: ExecutionDocument<'static>,
    #[serde(skip)]
    _kind: PhantomData<K>,
}

impl<K: JsonSchema> JsonSchema for DocumentOf<K> {
    fn schema_name() -> Cow<'static, str> {
        K::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        K::json_schema(generator)
    }
}

fn failed<K>(kind: ExecutionKind) -> DocumentOf<K> {
    let document = ExecutionDocument::failed(kind, failure(), 125);
    DocumentOf { document, _kind: PhantomData }
}

fn failure() -> Failure {
    Failure::new(ErrorKind::Engine, "it does not answer", Some("start it".to_owned()))
}

#[test]
fn result_documents_are_as_their_schemas_say() {
    accepts(&failed::<ResultDocument>(ExecutionKind::Script));
    accepts(&failed::<ExecDocument>(ExecutionKind::Command));
    let limits = serde_json::to_value(Limits::default()).unwrap();
    let confinement = json!({
        "no_new_privileges": true, "undumpable": true, "landlock_abi": 4, "seccomp": true,
        "unix_sockets": "none", "missing": []
    });
    let network = json!({
        "contacted": [{"host": "example.org", "port": 443}],
        "refused": [{"host": "example.org", "port": 22, "reason": "r", "allow": ["example.org:22"]}],
        "truncated": false
    });
    let common = json!({
        "files_touched": [{"name": "a�", "name_b64": "Yf8=", "op": "write", "bytes": 3}],
        "files_touched_source": "observed", "files_touched_truncated": false,
        "error": {"kind": "runtime", "message": "m", "line": 3, "traceback": "t", "value": {"a": 1}},
        "engine": "docker", "io_dir": null, "network": network, "limits": limits,
        "usage": {"wall_ms": 1, "cpu_ms": null, "peak_memory_bytes": 7, "written_bytes": 0},
        "timing": {"queued_ms": 1, "start_ms": 2, "start": "warm", "run_ms": 3},
        "confinement": confinement, "committed": true, "staging": "copy",
        "changes": {"schema": "sandboxctl.changes/1", "changes": [], "truncated": false},
        "artifacts": {"dir": "/a", "files": 1, "bytes": 2, "omitted": []}
    });
    let with = |more: Value| {
        let mut document = common.clone();
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        document
    };
    let script = with(json!({
        "schema": "sandboxctl.result/1", "id": "s", "status": "script_error", "exit_code": 1,
        "result": null, "logs": ["a"], "logs_truncated": false,
        "tests": [{"name": "t", "status": "failed", "message": "m", "line": 1, "duration_ms": 1}]
    }));
    agrees_both_ways::<DocumentOf<ResultDocument>>([script.clone()]);
    let command = with(json!({
        "schema": "sandboxctl.exec/1", "id": "s", "status": "exit", "exit_code": 3, "signal": null,
        "failed": true, "timed_out": false, "stdout": "a", "stdout_encoding": "utf-8",
        "stdout_truncated": false, "stderr": "/w==", "stderr_encoding": "base64",
        "stderr_truncated": true
    }));
    agrees_both_ways::<DocumentOf<ExecDocument>>([command]);
    let wrong = |member: &str, value: Value| {
        let mut document = script.clone();
        document[member] = value;
        document
    };
    agrees::<DocumentOf<ResultDocument>>([
        wrong("status", json!("fine")),
        wrong("exit_code", json!(256)),
        wrong("schema", json!("sandboxctl.exec/1")),
        wrong("files_touched", json!([{"name": "a", "op": "write"}])),
        wrong("engine", json!("podman")),
        wrong("usage", json!(null)),
        wrong("committed", json!(1)),
    ]);
}

#[test]
fn manifests_and_results_of_operations_are_as_their_schemas_say() {
    let digest = "0".repeat(64);
    agrees_both_ways::<ChangeManifest>([json!({
        "schema": "sandboxctl.changes/1", "truncated": false,
        "changes": [
            {"path": "a", "op": "created", "type": "file", "bytes": 1, "sha256": digest,
             "mode": "0644", "mime": "text/plain", "before": null},
            {"path": "b�", "path_b64": "Yv8=", "op": "modified", "type": "symlink", "bytes": 1,
             "sha256": digest, "mode": null, "mime": null, "target": "a", "from": "c",
             "before": {"bytes": 1, "sha256": null, "mode": "0755"}},
        ],
    })]);
    agrees_both_ways::<ArtifactManifest>([json!({
        "schema": "sandboxctl.artifacts/1",
        "files": [{"path": "a", "bytes": 3, "sha256": digest, "mode": "0755", "mime": "text/plain"}],
        "omitted": [{"path": "link", "reason": "symlink"}],
    })]);
    agrees_both_ways::<ArtifactsDiff>([json!({"differences": [{"path": "a", "change": "added"}]})]);
    gives::<ReadData>([json!({
        "path": "/io/a", "content": "a", "encoding": "utf-16le", "bytes": 2, "mime_type": "text/plain"
    })]);
    gives::<ViewData>([
        json!({"type": "image", "path": "/io/a", "content": "Yf8=", "mime_type": "image/png", "bytes": 2}),
        json!({"type": "text", "path": "/io/a", "text": "", "first_line": 1, "output_lines": 0,
            "total_lines": 0, "truncated": true, "truncated_by": "lines", "footer": null}),
    ]);
    let entry = json!({"name": "a", "path": "/io/a", "type": "file", "size": 1,
        "modified": "1969-12-31T23:59:59.25Z"});
    gives::<ListData>([json!({"path": "/io", "entries": [entry], "truncated": false})]);
    gives::<MkdirReply>([
        json!({"path": "/io/a", "created": true}),
        json!({"path": "/io/a\u{fffd}", "path_b64": "L2lvL2H/", "created": true}),
    ]);
    gives::<ExistsReply>([json!({"path": "/io/a", "exists": false, "type": null})]);
    gives::<StatData>([json!({
        "path": "/io/a", "type": "directory", "size": 1, "permissions": "rwxr-xr-x", "mode": "0755",
        "uid": 0, "gid": 0, "owner": "root", "group": "0", "modified": null, "accessed": null,
        "created": "2026-11-22T06:11:28.5Z"
    })]);
    gives::<GlobData>([json!({"path": "/io", "matches": [{"name": "a", "path": "/io/a"}],
        "truncated": false})]);
    let line = json!({"name": "a", "path": "/io/a", "line": 3, "text": "b", "cut": true});
    gives::<GrepData>([json!({"path": "/io", "lines": [line], "matches": 1, "files": 2,
        "truncated": false})]);
    gives::<CopyReply>([
        json!({"from": "/io/a", "to": "/io/b", "entries": 1, "bytes": 2}),
        json!({"from": "/io/a", "to": "\u{fffd}", "to_b64": "/w==", "entries": 1, "bytes": 2}),
    ]);
    agrees_both_ways::<Envelope>([
        json!({"success": true, "data": {"a": 1}, "error": null, "metadata": {"duration_ms": 1}}),
        json!({"success": false, "data": null, "error": {"kind": "busy", "message": "m"},
            "metadata": {"duration_ms": 1, "bytes": 1, "items": 2}}),
    ]);
    let sandbox = SandboxSummary {
        id: "s".to_owned(),
        generation: Some(1),
        engine: EngineKind::Embedded,
        container: "c".to_owned(),
        instance: "i".to_owned(),
        state: SandboxState::Leftover,
        created: SystemTime::UNIX_EPOCH,
        expires: SystemTime::UNIX_EPOCH + Duration::from_secs(3600),
        name: None,
        title: Some("a.luau".to_owned()),
        image: None,
        io_dir: None,
    };
    let report = GcReport { removed: vec![sandbox], ..GcReport::default() };
    // Their readers ignore members that they do not know.
    let written = validator::<GcReport>(&schema::answer::<GcReport>());
    check(&written, &serde_json::to_value(&report).unwrap(), true, "GcReport");
}

#[test]
fn operations_are_read_as_their_schema_says() {
    agrees::<OperationRequest>([
        json!({"operation": "read", "path": "a", "encoding": "utf8", "offset": 3, "limit": null}),
        json!({"operation": "read", "path": {"b64": "Yf8="}}),
        json!({"operation": "read", "path": {"b64": "!"}}),
        json!({"operation": "read", "path": {"b64": "Yf8=", "text": "a"}}),
        json!({"operation": "read", "path": "a", "path_b64": "Yf8="}),
        json!({"operation": "read", "path": null}),
        json!({"operation": "read"}),
        json!({"operation": "read", "path": "a", "offset": -1}),
        json!({"operation": "read", "path": "a", "encoding": "utf-7"}),
        json!({"operation": "read", "path": "a", "unknown": 1}),
        json!({"operation": "view", "path": "a", "lines": {"offset": 2}}),
        json!({"operation": "view", "path": "a", "lines": {"from": 2}}),
        json!({"operation": "write", "path": "a", "content": "", "mode": "append", "atomic": false}),
        json!({"operation": "write", "path": "a", "content": "", "mode": "x"}),
        json!({"operation": "write", "path": "a"}),
        json!({"operation": "edit", "path": "a", "old": "b", "new": "c", "count": 1}),
        json!({"operation": "edit", "path": "a", "old": "b", "new": "c", "count": 0}),
        json!({"operation": "list"}),
        json!({"operation": "list", "path": 1}),
        json!({"operation": "stat", "path": "a", "encoding": "hex"}),
        json!({"operation": "glob", "pattern": "*"}),
        json!({"operation": "grep", "pattern": "a", "context": 2, "ignore_case": true}),
        json!({"operation": "mkdir", "path": "a", "parents": 1}),
        json!({"operation": "touch", "path": "a", "mtime": "2026-11-22T06:11:28.5+01:00"}),
        json!({"operation": "touch", "path": "a", "mtime": null}),
        json!({"operation": "touch", "path": "a", "mtime": 7}),
        json!({"operation": "remove", "path": "a", "recursive": true}),
        json!({"operation": "exists", "path": "a"}),
        json!({"operation": "stat", "path": 1}),
        json!({"operation": "rename", "from": "a", "to": {"b64": "Yf8="}}),
        json!({"operation": "rename", "from": "a"}),
        json!({"operation": "copy", "from": "a", "to": "b", "overwrite": true}),
        json!({"operation": "reed", "path": "a"}),
        json!({"path": "a"}),
        json!([]),
    ]);
}

#[test]
fn time_that_is_not_rfc_3339_is_refused_by_its_name() {
    for mtime in ["", "now", "2026-11-22", "-000001-01-01T00:00:00Z"] {
        let request = json!({"operation": "touch", "path": "a", "mtime": mtime});
        let error = OperationRequest::from_json(&request.to_string()).unwrap_err().to_string();
        assert_eq!(error, format!("touch: mtime: '{mtime}' is not a time of RFC 3339"));
    }
}

#[test]
fn requests_are_read_as_their_schemas_say() {
    let spec = SandboxSpec::new()
        .root(RootFs::Image { reference: "debian:13".to_owned(), pull: sandbox_api::Pull::Never })
        .io_dir("out")
        .input(sandbox_api::Input::bytes("b", b"\xff".to_vec()))
        .user(Some(User::new(1000, 100).unwrap()))
        .allow(["*.example.org:8080".parse().unwrap()].into_iter().collect());
    accepts(&spec);
    agrees::<SandboxSpec>([
        json!({}),
        json!({"root": "builtin", "io_dir": {"b64": "Yf8="}, "idle_limit_ms": 1, "user": "0:0"}),
        json!({"io-dir": "a"}),
        json!({"user": "0"}),
        json!({"lifetime_ms": "1s"}),
        json!({"inputs": [{"name": "a", "source": {"bytes": "b"}}]}),
        json!({"inputs": [{"name": "a", "source": {"text": "b"}}]}),
        json!({"allowed_paths": [{"path": "/io", "access": "write"}]}),
        json!({"allowed_paths": [{"path": "/io", "access": "all"}]}),
        json!({"io_errors": "ignore"}),
    ]);
    accepts(&Script::new("return 1").timeout(Duration::from_secs(1)));
    agrees::<Script>([
        json!({"source": "return 1"}),
        json!({"source": {"b64": "/w=="}, "args": {"a": 1}, "seed": 1, "now": 0}),
        json!({"source": "a", "seed": 4_294_967_296_u64}),
        json!({"source": "a", "secrets": {}}),
        json!({"args": {}}),
    ]);
    accepts(&Limits::default());
    agrees::<Limits>([
        json!({}),
        json!({"timeout_ms": 5, "cpus": 0.5, "pids": 16, "tmpfs_bytes": 1_048_576}),
        json!({"timeout_ms": 0}),
        json!({"timeout_ms": "5s"}),
        json!({"timeout": 5}),
        json!({"cpus": 0}),
        json!({"cpus": 0.001}),
        json!({"pids": 15}),
        json!({"memory_bytes": 16_777_215}),
        json!({"memory_bytes": null}),
    ]);
    let names: Vec<Value> = ErrorKind::ALL.iter().map(|kind| json!(kind.as_str())).collect();
    agrees::<ErrorKind>(names);
    agrees::<ErrorKind>([json!("nothing"), json!(1)]);
    agrees::<Status>([json!("ok"), json!("agent_lost"), json!("running")]);
}
