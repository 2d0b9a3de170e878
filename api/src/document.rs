//! The documents `sandboxctl.result/1` and `sandboxctl.exec/1`: results as `--json` prints them.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{Confinement, TestCase};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Failure;
use crate::artifacts::ArtifactsReport;
use crate::changes::{ChangeManifest, StagingMethod};
use crate::engine_kind::EngineKind;
use crate::limits::Limits;
use crate::network::Network;
use crate::notes::Note;
use crate::outcome::{Outcome, Status};
use crate::result::{
    ExecResult, ExecutionReport, LOG_FULL, LogEntry, LogLevel, RunResult, TouchedFile,
    TouchedSource, Usage,
};
use crate::timing::Timing;

/// The document of `--json`, for every way a run can end, including failures of sandboxctl itself;
/// see [`failed`](Self::failed) for those before the run began.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultDocument<'a> {
    /// Its name and version.
    pub schema: ResultSchema,
    /// The run's id.
    pub id: Option<Cow<'a, str>>,
    /// How it ended.
    pub status: Status,
    /// The exit code of sandboxctl.
    pub exit_code: u8,
    /// The script's result.
    pub result: Option<Cow<'a, RawValue>>,
    /// Its log, an entry a text.
    pub logs: Vec<Cow<'a, str>>,
    /// Entries were omitted, and the last one says why; or some were cut, and say so.
    pub logs_truncated: bool,
    /// Its test cases, if it has some.
    #[serde(default, skip_serializing_if = "<[TestCase]>::is_empty")]
    pub tests: Cow<'a, [TestCase]>,
    /// The members that both documents have.
    #[serde(flatten)]
    pub execution: ExecutionDocument<'a>,
}

/// The document of `exec --json`, for every way a command can end, including failures of sandboxctl
/// itself; see [`failed`](Self::failed) for those before the command began.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecDocument<'a> {
    /// Its name and version.
    pub schema: ExecSchema,
    /// The command's id.
    pub id: Option<Cow<'a, str>>,
    /// How it ended.
    pub status: Status,
    /// The exit code of the command itself, like `signal`: never one of sandboxctl.
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// Whether it did not exit with code 0.
    pub failed: bool,
    /// Whether it exceeded its time limit.
    pub timed_out: bool,
    /// The beginning of its stdout.
    pub stdout: Cow<'a, str>,
    /// How `stdout` is encoded.
    pub stdout_encoding: OutputEncoding,
    /// There was more output.
    pub stdout_truncated: bool,
    /// The beginning of its stderr.
    pub stderr: Cow<'a, str>,
    /// How `stderr` is encoded.
    pub stderr_encoding: OutputEncoding,
    /// There was more output.
    pub stderr_truncated: bool,
    /// The members that both documents have.
    #[serde(flatten)]
    pub execution: ExecutionDocument<'a>,
}

/// The members that both documents have, for every execution: an [`ExecutionReport`] after its
/// status, or a failure before it began.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionDocument<'a> {
    /// The files that changed.
    pub files_touched: Cow<'a, [TouchedFile]>,
    /// How they were found.
    pub files_touched_source: TouchedSource,
    /// There are more than are listed.
    pub files_touched_truncated: bool,
    /// Why it failed.
    pub error: Option<Failure>,
    /// The engine it ran on.
    pub engine: Option<EngineKind>,
    /// Why another engine was not chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_notice: Option<Cow<'a, str>>,
    /// The io dir on the host; lossy where it is not UTF-8.
    pub io_dir: Option<Cow<'a, str>>,
    /// The hosts that its commands reached, and those that they were refused; null if no host was
    /// allowed.
    pub network: Option<Cow<'a, Network>>,
    /// The limits it ran under.
    pub limits: Option<Limits>,
    /// The resources it used.
    pub usage: Option<Usage>,
    /// What stood in its way in the sandbox; absent if nothing did, or it ended well.
    #[serde(default, skip_serializing_if = "<[Note]>::is_empty")]
    pub notes: Cow<'a, [Note]>,
    /// How long its parts took.
    #[serde(default)]
    pub timing: Option<Timing>,
    /// Its confinement beyond its container.
    pub confinement: Option<Cow<'a, Confinement>>,
    /// Whether the io dir has the changes, where they were staged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<bool>,
    /// How the changes were kept apart from the io dir until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging: Option<StagingMethod>,
    /// The changes, as the change manifest lists them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Cow<'a, ChangeManifest>>,
    /// What was copied out of the io dir, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Cow<'a, ArtifactsReport>>,
    /// Whether its receipt was written, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Cow<'a, ReceiptReport>>,
}

/// What became of the receipt of a run: the member `receipt` of its document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiptReport {
    /// The file on the host; lossy where it is not UTF-8.
    pub file: String,
    /// Why it was not written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// The name and version of a script's result document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ResultSchema {
    /// The only version.
    #[serde(rename = "sandboxctl.result/1")]
    V1,
}

/// The name and version of a command's result document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExecSchema {
    /// The only version.
    #[serde(rename = "sandboxctl.exec/1")]
    V1,
}

/// The encoding of a command's output in the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OutputEncoding {
    /// As text.
    #[serde(rename = "utf-8")]
    Utf8,
    /// The output is not text, or not where it was cut.
    #[serde(rename = "base64")]
    Base64,
}

impl<'a> ExecutionDocument<'a> {
    fn new(report: &'a ExecutionReport, hint: Option<String>) -> Self {
        let error = report.outcome.failure().map(|failure| Failure { hint, ..failure.into() });
        Self {
            files_touched: Cow::Borrowed(&report.files_touched.files),
            files_touched_source: report.files_touched.source,
            files_touched_truncated: report.files_touched.truncated,
            error,
            engine: Some(report.engine),
            engine_notice: report.engine_notice.as_deref().map(Cow::Borrowed),
            io_dir: report.io_dir.as_ref().map(|dir| dir.to_string_lossy()),
            network: report.network.as_ref().map(Cow::Borrowed),
            limits: Some(report.limits),
            usage: Some(report.usage),
            notes: Cow::Borrowed(&report.notes),
            timing: report.timing,
            confinement: Some(Cow::Borrowed(&report.confinement)),
            committed: report.changes.as_ref().map(|changes| changes.committed),
            staging: report.changes.as_ref().map(|changes| changes.staging),
            changes: report.changes.as_ref().map(|changes| Cow::Borrowed(&changes.manifest)),
            artifacts: None,
            receipt: None,
        }
    }

    const fn failed(error: Failure, files_touched_source: TouchedSource) -> Self {
        Self {
            files_touched: Cow::Borrowed(&[]),
            files_touched_source,
            files_touched_truncated: false,
            error: Some(error),
            engine: None,
            engine_notice: None,
            io_dir: None,
            network: None,
            limits: None,
            usage: None,
            notes: Cow::Borrowed(&[]),
            timing: None,
            confinement: None,
            committed: None,
            staging: None,
            changes: None,
            artifacts: None,
            receipt: None,
        }
    }
}

impl<'a> From<&'a RunResult> for ResultDocument<'a> {
    fn from(run: &'a RunResult) -> Self {
        Self {
            schema: ResultSchema::V1,
            id: Some(Cow::Borrowed(&run.id)),
            status: run.outcome.status(),
            exit_code: run.exit_code(),
            result: match &run.outcome {
                Outcome::Ok { result } => Some(Cow::Borrowed(result)),
                _ => None,
            },
            logs: run.logs.iter().map(LogEntry::line).collect(),
            logs_truncated: run.logs_truncated,
            tests: Cow::Borrowed(&run.tests),
            execution: ExecutionDocument::new(run, run.hint()),
        }
    }
}

impl ResultDocument<'_> {
    /// The entries of its log, as far as its lines say what they were.
    #[must_use]
    pub fn log_entries(&self) -> Vec<LogEntry> {
        let mut entries: Vec<_> = self.logs.iter().map(|line| LogEntry::from_line(line)).collect();
        if let Some(last) = entries.last_mut()
            && self.logs_truncated
            && last.text.starts_with(LOG_FULL)
        {
            last.level = LogLevel::Truncated;
        }
        entries
    }

    /// The document of a failure before anything ran.
    #[must_use]
    pub const fn failed(error: Failure, exit_code: u8) -> Self {
        Self {
            schema: ResultSchema::V1,
            id: None,
            status: status_of(&error),
            exit_code,
            result: None,
            logs: Vec::new(),
            logs_truncated: false,
            tests: Cow::Borrowed(&[]),
            execution: ExecutionDocument::failed(error, TouchedSource::Observed),
        }
    }
}

impl<'a> From<&'a ExecResult> for ExecDocument<'a> {
    fn from(result: &'a ExecResult) -> Self {
        let (stdout, stdout_encoding) =
            OutputEncoding::encode(&result.stdout, result.stdout_truncated);
        let (stderr, stderr_encoding) =
            OutputEncoding::encode(&result.stderr, result.stderr_truncated);
        Self {
            schema: ExecSchema::V1,
            id: Some(Cow::Borrowed(&result.id)),
            status: result.outcome.status(),
            exit_code: result.exit_code,
            signal: result.signal,
            failed: result.failed(),
            timed_out: result.timed_out(),
            stdout,
            stdout_encoding,
            stdout_truncated: result.stdout_truncated,
            stderr,
            stderr_encoding,
            stderr_truncated: result.stderr_truncated,
            execution: ExecutionDocument::new(result, result.hint()),
        }
    }
}

impl ExecDocument<'_> {
    /// The document of a failure before anything ran.
    #[must_use]
    pub const fn failed(error: Failure) -> Self {
        Self {
            schema: ExecSchema::V1,
            id: None,
            status: status_of(&error),
            exit_code: None,
            signal: None,
            failed: true,
            timed_out: false,
            stdout: Cow::Borrowed(""),
            stdout_encoding: OutputEncoding::Utf8,
            stdout_truncated: false,
            stderr: Cow::Borrowed(""),
            stderr_encoding: OutputEncoding::Utf8,
            stderr_truncated: false,
            execution: ExecutionDocument::failed(error, TouchedSource::Scan),
        }
    }
}

/// The status of a request that did not begin.
const fn status_of(error: &Failure) -> Status {
    match error.kind {
        // A caller that gives up before the run begins has cancelled it.
        ErrorKind::Cancelled => Status::Cancelled,
        _ => Status::Error,
    }
}

impl OutputEncoding {
    /// The output as text, if it is UTF-8; otherwise as base64. Of output that is truncated, a
    /// character that was cut is dropped.
    #[must_use]
    pub fn encode(output: &[u8], truncated: bool) -> (Cow<'_, str>, Self) {
        let text = match std::str::from_utf8(output) {
            Ok(text) => Some(text),
            Err(error) if truncated && error.error_len().is_none() => {
                std::str::from_utf8(&output[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        match text {
            Some(text) => (Cow::Borrowed(text), Self::Utf8),
            None => (Cow::Owned(STANDARD.encode(output)), Self::Base64),
        }
    }

    /// The output that is encoded in `text`; nothing, if it is none.
    #[must_use]
    pub fn decode(self, text: &str) -> Vec<u8> {
        match self {
            Self::Utf8 => text.as_bytes().to_vec(),
            Self::Base64 => STANDARD.decode(text).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        ContactedHost, Cpus, FileOp, FilesTouched, LogLevel, NoteKind, RefusedHost, StartKind,
        UnixSockets, failure,
    };

    /// The end of every document of [`report`].
    const REST: &str = concat!(
        r#""limits":{"timeout_ms":30000,"operation_timeout_ms":5000,"memory_bytes":268435456,"#,
        r#""vm_memory_bytes":67108864,"cpus":1.5,"pids":64,"write_bytes":52428800,"entries":10000,"#,
        r#""file_bytes":10485760,"list_depth":10,"open_handles":64,"log_bytes":1048576,"#,
        r#""log_lines":10000,"tmpfs_bytes":17179869184,"shm_bytes":67108864,"#,
        r#""stop_timeout_ms":2000,"output_bytes":1073741824,"connections":10000,"#,
        r#""network_bytes":4294967296,"connect_timeout_ms":10000,"connection_idle_ms":300000},"#,
        r#""usage":{"wall_ms":12,"cpu_ms":7,"peak_memory_bytes":null,"written_bytes":3},"#,
        r#""timing":{"queued_ms":null,"start_ms":8,"start":"cold","run_ms":12},"#,
        r#""confinement":{"no_new_privileges":true,"undumpable":true,"landlock_abi":4,"#,
        r#""seccomp":true,"unix_sockets":"none","missing":["a"]}}"#,
    );
    const FILES: &str = concat!(
        r#""files_touched":[{"name":"a.txt","op":"write","bytes":3},"#,
        "{\"name\":\"b\u{fffd}\",\"name_b64\":\"Yv8=\",\"op\":\"remove\",\"bytes\":0}],",
        r#""files_touched_source":"observed","files_touched_truncated":false,"#,
    );

    fn report(outcome: Outcome) -> ExecutionReport {
        let files = [(&b"a.txt"[..], FileOp::Write, 3), (b"b\xff", FileOp::Remove, 0)];
        ExecutionReport {
            id: "s1".to_owned(),
            outcome,
            files_touched: FilesTouched {
                files: files.map(|(path, op, bytes)| TouchedFile::new(path, op, bytes)).to_vec(),
                ..FilesTouched::default()
            },
            engine: EngineKind::Docker,
            engine_notice: None,
            io_dir: Some("/srv/io".into()),
            changes: None,
            network: None,
            limits: Limits {
                cpus: Cpus::from_thousandths(1500.try_into().unwrap()),
                ..Limits::default()
            },
            usage: Usage {
                wall_ms: 12,
                cpu_ms: Some(7),
                peak_memory_bytes: None,
                written_bytes: Some(3),
            },
            notes: Vec::new(),
            timing: Some(Timing::new(Some((StartKind::Cold, Duration::from_millis(8))), 12)),
            confinement: Confinement {
                no_new_privileges: true,
                undumpable: true,
                landlock_abi: Some(4),
                seccomp: true,
                unix_sockets: UnixSockets::None,
                missing: vec!["a".to_owned()],
            },
        }
    }

    fn network() -> Network {
        let mut network = Network::default();
        network.add_contacted(ContactedHost { host: "a.example".to_owned(), port: 443 });
        network.add_refused(RefusedHost {
            host: "localhost".to_owned(),
            port: 80,
            reason: "loopback address".to_owned(),
            allow: vec!["127.0.0.1".to_owned()],
        });
        network
    }

    fn run() -> RunResult {
        let result = RawValue::from_string(r#"{"x": [1, 2.50]}"#.to_owned()).unwrap();
        let (level, text) = (LogLevel::Warn, "w".to_owned());
        RunResult {
            execution: report(Outcome::Ok { result }),
            logs: vec![LogEntry { level, text, lossy: false, cut: false }],
            logs_truncated: false,
            tests: Vec::new(),
            answered: true,
        }
    }

    fn exec() -> ExecResult {
        let timeout = Outcome::Timeout(failure(ErrorKind::Timeout, "killed"));
        ExecResult {
            execution: ExecutionReport {
                engine_notice: Some("no socket".to_owned()),
                io_dir: None,
                network: Some(network()),
                changes: None,
                notes: vec![Note {
                    kind: NoteKind::Processes,
                    message: "no thread".to_owned(),
                    hint: Some("--pids".to_owned()),
                }],
                ..report(timeout)
            },
            exit_code: None,
            signal: Some(9),
            stdout: b"out".to_vec(),
            stderr: b"\xff".to_vec(),
            stdout_truncated: false,
            stderr_truncated: true,
        }
    }

    fn error() -> Failure {
        Failure::new(ErrorKind::Usage, "no such flag", None)
    }

    #[test]
    fn documents_keep_their_members_and_their_order() {
        let run = run();
        let json = |document| serde_json::to_string::<ResultDocument<'_>>(&document).unwrap();
        let head = concat!(
            r#"{"schema":"sandboxctl.result/1","id":"s1","status":"ok","exit_code":0,"#,
            r#""result":{"x": [1, 2.50]},"logs":["[warn] w"],"logs_truncated":false,"#,
        );
        let tail = r#""error":null,"engine":"docker","io_dir":"/srv/io","network":null,"#;
        assert_eq!(json((&run).into()), [head, FILES, tail, REST].concat());
        let none = concat!(
            r#"{"schema":"sandboxctl.result/1","id":null,"status":"error","exit_code":2,"#,
            r#""result":null,"logs":[],"logs_truncated":false,"files_touched":[],"#,
            r#""files_touched_source":"observed","files_touched_truncated":false,"#,
            r#""error":{"kind":"usage","message":"no such flag"},"engine":null,"io_dir":null,"#,
            r#""network":null,"limits":null,"usage":null,"timing":null,"confinement":null}"#,
        );
        assert_eq!(json(ResultDocument::failed(error(), 2)), none);

        let json = |document| serde_json::to_string::<ExecDocument<'_>>(&document).unwrap();
        let head = concat!(
            r#"{"schema":"sandboxctl.exec/1","id":"s1","status":"timeout","exit_code":null,"#,
            r#""signal":9,"failed":true,"timed_out":true,"stdout":"out","stdout_encoding":"utf-8","#,
            r#""stdout_truncated":false,"stderr":"/w==","stderr_encoding":"base64","#,
            r#""stderr_truncated":true,"#,
        );
        let tail = concat!(
            r#""error":{"kind":"timeout","message":"killed","hint":"--timeout raises the limit"},"#,
            r#""engine":"embedded","engine_notice":"no socket","io_dir":null,"#,
            r#""network":{"contacted":[{"host":"a.example","port":443}],"#,
            r#""refused":[{"host":"localhost","port":80,"reason":"loopback address","#,
            r#""allow":["127.0.0.1"]}],"truncated":false},"#,
        );
        let exec = ExecResult {
            execution: ExecutionReport { engine: EngineKind::Embedded, ..exec().execution },
            ..exec()
        };
        let notes =
            r#""notes":[{"kind":"processes","message":"no thread","hint":"--pids"}],"timing""#;
        let rest = REST.replace(r#""timing""#, notes);
        assert_eq!(json((&exec).into()), [head, FILES, tail, &rest].concat());
        let none = concat!(
            r#"{"schema":"sandboxctl.exec/1","id":null,"status":"error","exit_code":null,"#,
            r#""signal":null,"failed":true,"timed_out":false,"stdout":"","#,
            r#""stdout_encoding":"utf-8","stdout_truncated":false,"stderr":"","#,
            r#""stderr_encoding":"utf-8","stderr_truncated":false,"files_touched":[],"#,
            r#""files_touched_source":"scan","files_touched_truncated":false,"#,
            r#""error":{"kind":"usage","message":"no such flag"},"engine":null,"io_dir":null,"#,
            r#""network":null,"limits":null,"usage":null,"timing":null,"confinement":null}"#,
        );
        assert_eq!(json(ExecDocument::failed(error())), none);
    }

    #[test]
    fn the_document_of_a_command_that_never_was_has_all_members() {
        let document = serde_json::to_value(ExecDocument::failed(error())).unwrap();
        assert_eq!(document["schema"], "sandboxctl.exec/1");
        assert_eq!(document["status"], "error");
        assert_eq!(document["error"]["kind"], "usage");
        for null in ["id", "exit_code", "signal", "engine", "io_dir", "network", "limits", "usage"]
        {
            assert!(document[null].is_null(), "{null}");
        }
        assert_eq!(
            (&document["stdout"], &document["stdout_encoding"]),
            (&"".into(), &"utf-8".into())
        );
    }

    /// Reads it and writes it again.
    fn again<T: Serialize + serde::de::DeserializeOwned>(value: &impl Serialize) -> [String; 2] {
        let json = serde_json::to_string(value).unwrap();
        let read: T = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
        [serde_json::to_string(&read).unwrap(), json]
    }

    #[test]
    fn results_and_documents_come_back_as_they_were_written() {
        let (run, exec) = (run(), exec());
        let round_trips = [
            again::<RunResult>(&run),
            again::<ExecResult>(&exec),
            again::<ResultDocument<'_>>(&ResultDocument::from(&run)),
            again::<ResultDocument<'_>>(&ResultDocument::failed(error(), 2)),
            again::<ExecDocument<'_>>(&ExecDocument::from(&exec)),
            again::<ExecDocument<'_>>(&ExecDocument::failed(error())),
        ];
        for [read, written] in round_trips {
            assert_eq!(read, written);
        }
    }

    /// serde does not promise this for a structure with flattened members.
    #[test]
    fn unknown_member_of_a_document_is_refused() {
        let json = serde_json::to_string(&ResultDocument::from(&run())).unwrap();
        for (known, other) in [
            (r#"{"schema""#, r#"{"more":1,"schema""#),
            (r#"sandboxctl.result/1"#, r#"sandboxctl.result/2"#),
            (r#""engine":"docker""#, r#""engine":"docker","more":1"#),
            (r#""cpus":1.5"#, r#""cpus":1.5,"more":1"#),
            (r#""files_touched_source":"observed","#, ""),
        ] {
            let changed = json.replace(known, other);
            assert_ne!(changed, json, "{known}");
            assert!(serde_json::from_str::<ResultDocument<'_>>(&changed).is_err(), "{changed}");
        }
    }

    #[test]
    fn output_that_is_no_text_is_given_as_its_bytes() {
        for (output, truncated, expected) in [
            (&b"a\n"[..], false, ("a\n", OutputEncoding::Utf8)),
            (b"", true, ("", OutputEncoding::Utf8)),
            ("\u{20ac}".as_bytes(), false, ("\u{20ac}", OutputEncoding::Utf8)),
            (b"\xff", false, ("/w==", OutputEncoding::Base64)),
            (b"\xffa", true, ("/2E=", OutputEncoding::Base64)),
            // An incomplete character at the end: valid only in truncated output.
            (b"a\xe2\x82", true, ("a", OutputEncoding::Utf8)),
            (b"a\xe2\x82", false, ("YeKC", OutputEncoding::Base64)),
        ] {
            let (text, encoding) = OutputEncoding::encode(output, truncated);
            assert_eq!((&*text, encoding), expected, "{output:?} {truncated}");
        }
    }
}
