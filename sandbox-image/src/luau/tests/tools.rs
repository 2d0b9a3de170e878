//! `tools` and `policy`: what reaches the host, and what a script gets of its answers.

use sandbox_protocol::Base64;
use sandbox_protocol::limits::{MAX_TOOL_ARGUMENT_BYTES, MAX_TOOL_NAME_BYTES};
use sandbox_protocol::message::CallTarget;

use super::*;

fn failed(kind: ErrorKind, message: &str) -> Option<(CallEnd, Vec<CallFile>)> {
    Some((CallEnd::Failed { kind, message: message.to_owned() }, Vec::new()))
}

/// A host with a few tools.
fn host(call: &HostCall) -> Option<(CallEnd, Vec<CallFile>)> {
    let value = |value| Some((CallEnd::Value(value), Vec::new()));
    let arguments: Value = serde_json::from_str(call.arguments.get()).unwrap();
    match (call.target, call.name.as_str()) {
        (CallTarget::Tool, "a.echo") => value(arguments),
        (CallTarget::Tool, "a.b-c") => value(json!([1, null, { "x": [] }])),
        (CallTarget::Tool, "a.fails") => failed(ErrorKind::Runtime, "no such issue"),
        (CallTarget::Tool, "a.refused") => failed(ErrorKind::Policy, "not given"),
        (CallTarget::Tool, "a.large") => value(json!(18_446_744_073_709_551_615_u64)),
        (CallTarget::Tool, "a.picture") => {
            let (name, mime_type) = ("a.picture-1.png".to_owned(), "image/png".to_owned());
            let file = CallFile { name, mime_type, data: Base64(b"\x89PNG".to_vec()) };
            Some((CallEnd::Value(json!("taken")), vec![file]))
        }
        (CallTarget::Search, words) => value(json!([{ "name": words }])),
        (CallTarget::Describe, name) => value(json!(name)),
        (CallTarget::Policy, "") => value(json!({ "hosts": [] })),
        _ => None,
    }
}

fn sandbox() -> Sandbox {
    Sandbox { has_tools: true, host, ..Sandbox::new() }
}

#[test]
fn results_are_data_and_arguments_one_table() {
    let sandbox = sandbox();
    for (source, result) in [
        ("return tools.a.echo { x = { 1, 2 }, y = 'z' }", json!({ "x": [1, 2], "y": "z" })),
        ("return tools.a.echo()", json!({})),
        ("return tools.a.echo({})", json!({})),
        ("local echo = tools['a'].echo return echo(nil)", json!({})),
        ("return tools.a['b-c']()", json!([1, null, { "x": [] }])),
        ("return tools.a['b-c']()[2] == json.null", json!(true)),
        ("return tools.search('x y')", json!([{ "name": "x y" }])),
        ("return tools.describe('a.echo')", json!("a.echo")),
        ("return policy()", json!({ "hosts": [] })),
        ("return select('#', tools.a.echo())", json!(1)),
    ] {
        assert_eq!(sandbox.value(source), result, "{source}");
    }
    let calls = sandbox.calls();
    let targets: Vec<_> = calls.iter().map(|call| call.target).collect();
    assert_eq!(targets.iter().filter(|&&target| target == CallTarget::Tool).count(), 7);
    assert_eq!(calls[0].arguments.get(), r#"{"x":[1,2],"y":"z"}"#);
    assert!(calls.iter().all(|call| call.request == 1));
}

#[test]
fn failure_raises_the_text_of_the_tool() {
    let sandbox = sandbox();
    assert_eq!(sandbox.value("return pcall(tools.a.fails, {})"), json!([false, "no such issue"]));
    assert_eq!(
        sandbox.value("return select(2, pcall(function() tools.a.fails {} end))"),
        json!("script:1: no such issue")
    );
    let error = sandbox.error("tools.a.fails {}");
    assert_eq!((error.kind, &*error.message), (ErrorKind::Runtime, "script:1: no such issue"));
    assert_eq!(sandbox.error("tools.a.refused {}").kind, ErrorKind::Policy);
    let error = sandbox.error("tools.a.large {}");
    assert!(error.message.contains("beyond 2^53"), "{error:?}");
}

#[test]
fn what_cannot_be_an_argument_or_a_name_is_refused_before_the_host_is_asked() {
    let sandbox = sandbox();
    let long = "x".repeat(MAX_TOOL_NAME_BYTES);
    for (source, message) in [
        ("tools.a.echo('x')".to_owned(), "table expected, got string"),
        ("tools.a.echo({ 1, 2 })".to_owned(), "not an array"),
        ("tools.a.echo({ f = print })".to_owned(), "arguments.f is a function"),
        ("tools.a:echo({})".to_owned(), "after a dot and not a colon"),
        ("tools.a.echo({}, {})".to_owned(), "one table"),
        ("tools.a[1]()".to_owned(), "string expected, got number"),
        ("return tools[true]".to_owned(), "string expected, got boolean"),
        (format!("tools.a.{long}()"), "at most 256 bytes"),
        ("tools.a['\\xff']()".to_owned(), "UTF-8"),
        ("tools.search(1)".to_owned(), "string expected, got number"),
        ("tools.describe()".to_owned(), "string expected"),
        (
            format!("tools.a.echo {{ x = string.rep('x', {MAX_TOOL_ARGUMENT_BYTES}) }}"),
            "longer than 1048576 bytes",
        ),
        ("tools.a = 1".to_owned(), "readonly"),
        ("tools.a.b = 1".to_owned(), "readonly"),
    ] {
        let error = sandbox.error(&source);
        assert!(error.message.contains(message), "{source}: {}", error.message);
    }
    assert!(sandbox.calls().is_empty());
    assert_eq!(
        sandbox.value("return next(tools.a) == nil, type(getmetatable(tools))"),
        json!([true, "string"])
    );
}

#[test]
fn files_of_a_result_are_in_the_io_dir() {
    let picture = "local value, files = tools.a.picture {} return value, files";
    let sandbox = sandbox();
    let path = "/io/tool-files/a.picture-1.png";
    let file = json!({ "path": path, "type": "image/png", "bytes": 4 });
    assert_eq!(sandbox.value(picture), json!(["taken", [file]]));
    let written = std::fs::read(sandbox.path().join("tool-files/a.picture-1.png")).unwrap();
    assert_eq!(written, b"\x89PNG");
    assert_eq!(sandbox.value("return #fs.read(select(2, tools.a.picture())[1].path)"), json!(4));
}

#[test]
fn without_files_a_result_says_that_its_files_were_left_out() {
    let sandbox = Sandbox { has_tools: true, host, ..Sandbox::without_files() };
    let file = json!({ "omitted": "io is off in this run", "type": "image/png", "bytes": 4 });
    assert_eq!(sandbox.value("return tools.a.picture()"), json!(["taken", [file]]));
}

#[test]
fn waiting_ends_with_the_run() {
    for (reason, kind) in
        [(StopReason::Timeout, ErrorKind::Timeout), (StopReason::Cancelled, ErrorKind::Cancelled)]
    {
        let sandbox = sandbox();
        let error = sandbox.stopped("print('x') tools.a.never {}", reason);
        assert_eq!(error.kind, kind);
        // A script cannot catch it.
        let sandbox = self::sandbox();
        let error = sandbox.stopped("print('x') pcall(tools.a.never) while true do end", reason);
        assert_eq!(error.kind, kind);
    }
}

#[test]
fn result_of_a_call_that_has_ended_is_not_taken() {
    let outbox = Arc::new(Outbox::new(Recorder::default()));
    let calls = HostCalls::new(outbox, 1);
    let end = CallEnd::Value(Value::Null);
    assert!(!calls.take(CallResult { request: 1, call: 0, end, files: Vec::new() }));
}

#[test]
fn run_without_tools_has_a_policy_and_no_tools() {
    let sandbox = Sandbox { host, ..Sandbox::new() };
    assert_eq!(sandbox.value("return tools == nil, policy()"), json!([true, { "hosts": [] }]));
}
