//! Results for tests of the formats.

use std::borrow::Cow;
use std::io::Write as _;
use std::process::{Command, Stdio};

use sandbox_api::service::ExecutionKind;
use sandbox_api::{
    ArtifactsReport, DocumentBody, ErrorKind, ExecutionDocument, Failure, OutputEncoding,
    ReceiptReport, ScriptBody, Secrets, Status, TestCase, TestStatus, TouchedFile,
};

use crate::report::{Entry, Subject};

/// Text with which a guest tries to leave its place in a format.
pub const HOSTILE: &str = "]]></system-out>&\"'<b>\u{0}\u{1b}[31m\u{fffe}\r\n```\n| a | b |\n\
                           [link](http://x) ![](y) @all";

fn run(index: usize, name: &str, source: &str, document: ExecutionDocument<'static>) -> Entry {
    let subject = Subject {
        name: name.to_owned(),
        source: Some(source.into()),
        is_file: true,
        secrets: Secrets::new(),
    };
    let (exit_code, last_lines) = (document.process_exit_code(), String::new());
    Entry { index, subject, document, exit_code, last_lines }
}

fn document(error: Option<Failure>, status: Status, exit_code: u8) -> ExecutionDocument<'static> {
    let failure = Failure::new(ErrorKind::Internal, "", None);
    let mut document = ExecutionDocument::failed(ExecutionKind::Script, failure, exit_code);
    document.id = Some("s1".into());
    document.status = status;
    document.common.error = error;
    document
}

/// What only the document of a script has.
fn body<'a>(document: &'a mut ExecutionDocument<'static>) -> &'a mut ScriptBody<'static> {
    match &mut document.body {
        DocumentBody::Script(body) => body,
        DocumentBody::Command(_) => panic!("it is of a command"),
    }
}

/// A script that returned.
pub fn ok_script() -> Entry {
    let mut document = document(None, Status::Ok, 0);
    let result = serde_json::value::RawValue::from_string(r#"{"a":"`"}"#.to_owned()).unwrap();
    body(&mut document).result = Some(Cow::Owned(result));
    body(&mut document).logs = vec!["one".into(), "two".into()];
    run(0, "tests/good.luau", "return 1", document)
}

/// A script that raised an error.
pub fn failed_script() -> Entry {
    let mut failure = Failure::new(ErrorKind::Runtime, "script:2: attempt to call 'x'", None);
    failure.line = Some(2);
    failure.traceback = Some("script:2\nscript:9".to_owned());
    failure.hint = Some("try `y`".to_owned());
    let document = document(Some(failure), Status::ScriptError, 1);
    run(1, "tests/bad one.luau", "local x\n  x(1) -- 'no x'\n", document)
}

/// A script whose every text is hostile.
fn hostile_script() -> Entry {
    let mut failure = Failure::new(ErrorKind::Timeout, HOSTILE, Some(HOSTILE.to_owned()));
    failure.line = Some(1);
    failure.traceback = Some(HOSTILE.to_owned());
    let mut document = document(Some(failure), Status::Timeout, 124);
    body(&mut document).logs = vec![HOSTILE.into()];
    let file = TouchedFile::new(HOSTILE.as_bytes(), sandbox_api::FileOp::Write, 1);
    document.common.files_touched = vec![file].into();
    run(2, HOSTILE, HOSTILE, document)
}

/// A script with test cases.
pub fn tested_script() -> Entry {
    let case = |name: &str, status, message: Option<&str>, line| TestCase {
        name: name.to_owned(),
        status,
        message: message.map(str::to_owned),
        line,
        duration_ms: 1234,
    };
    let cases = vec![
        case("sums", TestStatus::Passed, None, None),
        case(HOSTILE, TestStatus::Failed, Some(HOSTILE), Some(1)),
        case("later", TestStatus::Skipped, Some("not yet"), None),
    ];
    let failure = sandbox_api::test_failure(&cases).unwrap().into();
    let mut document = document(Some(failure), Status::ScriptError, 1);
    body(&mut document).tests = cases.into();
    run(5, "tests/sums.luau", "test.case('sums', print)", document)
}

/// A command that failed, and one that never ran.
fn commands() -> [Entry; 2] {
    let failure = Failure::new(ErrorKind::Image, "no such image", None);
    let never = ExecutionDocument::failed(ExecutionKind::Command, failure, 125);
    let mut failed = never.clone();
    failed.common.error = None;
    failed.status = Status::Exit;
    if let DocumentBody::Command(body) = &mut failed.body {
        body.exit_code = Some(3);
        (body.stdout, body.stderr) = ("AP8=".into(), HOSTILE.into());
        body.stdout_encoding = OutputEncoding::Base64;
    }
    let entry = |index, document, exit_code| {
        let name = "sh -c 'x | y'".to_owned();
        let subject = Subject { name, source: None, is_file: false, secrets: Secrets::new() };
        Entry { index, subject, document, exit_code, last_lines: HOSTILE.to_owned() }
    };
    [entry(3, failed, 3), entry(4, never, 125)]
}

/// Scripts that returned, and whose artifacts or receipt could not be written.
pub fn incomplete_scripts() -> [Entry; 2] {
    let error =
        || Some(Failure::new(ErrorKind::DiskFull, "no space", Some("free some".to_owned())));
    let [mut artifacts, mut receipt] = [ok_script(), ok_script()];
    for (index, entry) in [(6, &mut artifacts), (7, &mut receipt)] {
        (entry.index, entry.exit_code) = (index, 125);
    }
    let (dir, file) = ("dist".to_owned(), "receipt.json".to_owned());
    let (omitted, unmatched) = (Vec::new(), Vec::new());
    let report = ArtifactsReport { dir, files: 0, bytes: 0, omitted, unmatched, error: error() };
    artifacts.document.common.artifacts = Some(Cow::Owned(report));
    let report = ReceiptReport { file, error: error() };
    receipt.document.common.receipt = Some(Cow::Owned(report));
    [artifacts, receipt]
}

/// Results of every kind.
pub fn all_entries() -> Vec<Entry> {
    let scripts = [ok_script(), failed_script(), hostile_script(), tested_script()]
        .into_iter()
        .chain(incomplete_scripts());
    scripts.chain(commands()).collect()
}

/// Validates JUnit's XML against the published schema.
#[track_caller]
pub fn xmllint(xml: &str) {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/schemas/junit-10.xsd");
    let mut child = Command::new("xmllint")
        .args(["--noout", "--schema", schema, "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("xmllint is installed (Debian's libxml2-utils)");
    child.stdin.take().unwrap().write_all(xml.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{xml}", String::from_utf8_lossy(&output.stderr));
}
