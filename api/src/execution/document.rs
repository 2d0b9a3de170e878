//! The documents `sandboxctl.result/1` and `sandboxctl.exec/1`: results as `--json` prints them.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{Confinement, TestCase};
use schemars::JsonSchema;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::kind::ExecutionKind;
use super::result::{
    Captured, ExecutionResult, LOG_FULL, LogEntry, LogLevel, ResultBody, TouchedFile,
    TouchedSource, Usage,
};
use crate::artifacts::ArtifactsReport;
use crate::changes::{ChangeManifest, StagingMethod};
use crate::disk::Disk;
use crate::engine_kind::EngineKind;
use crate::failure::Failure;
use crate::host_tools::ToolCall;
use crate::limits::Limits;
use crate::network::Network;
use crate::notes::Note;
use crate::outcome::{Outcome, Status};
use crate::timing::Timing;

/// The document of `--json`, for every way a script or a command can end, including failures of
/// sandboxctl itself: `sandboxctl.result/1` or `sandboxctl.exec/1`. See [`failed`](Self::failed)
/// for those before it began.
#[derive(Debug, Clone)]
pub struct ExecutionDocument<'a> {
    /// The id of the run or command.
    pub id: Option<Cow<'a, str>>,
    /// How it ended.
    pub status: Status,
    /// The members that only one of the documents has.
    pub body: DocumentBody<'a>,
    /// The members that both documents have.
    pub common: CommonMembers<'a>,
}

/// The members that only one of the documents has.
#[derive(Debug, Clone)]
pub enum DocumentBody<'a> {
    /// `sandboxctl.result/1`.
    Script(ScriptBody<'a>),
    /// `sandboxctl.exec/1`.
    Command(CommandBody<'a>),
}

/// The members that the document of a script has.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct ScriptBody<'a> {
    /// The exit code of sandboxctl.
    pub exit_code: u8,
    /// The script's result.
    #[serde(default, deserialize_with = "read_apart")]
    #[schemars(!default)]
    pub result: Option<Cow<'a, RawValue>>,
    /// Its log, an entry a text.
    pub logs: Vec<Cow<'a, str>>,
    /// Entries were omitted, and the last one says why; or some were cut, and say so.
    pub logs_truncated: bool,
    /// Its test cases, if it has some.
    #[serde(default, skip_serializing_if = "<[TestCase]>::is_empty")]
    pub tests: Cow<'a, [TestCase]>,
    /// Its calls of tools of the host, if it made some: the first 1,000.
    #[serde(default, skip_serializing_if = "<[ToolCall]>::is_empty")]
    pub tool_calls: Cow<'a, [ToolCall]>,
    /// There were more calls than are listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tool_calls_truncated: bool,
}

/// The members that the document of a command has.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct CommandBody<'a> {
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
}

/// The members that both documents have: an [`ExecutionResult`] after its status, or a failure
/// before it began.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct CommonMembers<'a> {
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
    /// What bounds the disk space that programs take in the io dir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Cow<'a, Disk>>,
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
    /// The body of the request that asked a service for it; absent if that had secrets or is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Cow<'a, Map<String, Value>>>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum OutputEncoding {
    /// As text.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// The output is not text, or not where it was cut.
    #[serde(rename = "base64")]
    Base64,
}

impl<'a> From<&'a ExecutionResult> for ExecutionDocument<'a> {
    fn from(result: &'a ExecutionResult) -> Self {
        let body = match &result.body {
            ResultBody::Script {
                logs,
                logs_truncated,
                tests,
                tool_calls,
                tool_calls_truncated,
                ..
            } => DocumentBody::Script(ScriptBody {
                exit_code: result.exit_code(),
                result: match &result.outcome {
                    Outcome::Ok { result } => Some(Cow::Borrowed(result)),
                    _ => None,
                },
                logs: logs.iter().map(LogEntry::line).collect(),
                logs_truncated: *logs_truncated,
                tests: Cow::Borrowed(tests),
                tool_calls: Cow::Borrowed(tool_calls),
                tool_calls_truncated: *tool_calls_truncated,
            }),
            ResultBody::Command { exit_code, signal, stdout, stderr } => {
                let encode = |it: &'a Captured| OutputEncoding::encode(&it.bytes, it.truncated);
                let [(out, stdout_encoding), (err, stderr_encoding)] = [stdout, stderr].map(encode);
                DocumentBody::Command(CommandBody {
                    exit_code: *exit_code,
                    signal: *signal,
                    failed: result.failed(),
                    timed_out: result.timed_out(),
                    stdout: out,
                    stdout_encoding,
                    stdout_truncated: stdout.truncated,
                    stderr: err,
                    stderr_encoding,
                    stderr_truncated: stderr.truncated,
                })
            }
        };
        let hint = result.hint();
        let error = result.outcome.failure().map(|failure| Failure { hint, ..failure.into() });
        let changes = result.changes.as_ref();
        let common = CommonMembers {
            files_touched: Cow::Borrowed(&result.files_touched.files),
            files_touched_source: result.files_touched.source,
            files_touched_truncated: result.files_touched.truncated,
            error,
            engine: Some(result.engine),
            engine_notice: result.engine_notice.as_deref().map(Cow::Borrowed),
            io_dir: result.io_dir.as_ref().map(|dir| dir.to_string_lossy()),
            disk: result.disk.as_ref().map(Cow::Borrowed),
            network: result.network.as_ref().map(Cow::Borrowed),
            limits: Some(result.limits),
            usage: Some(result.usage),
            notes: Cow::Borrowed(&result.notes),
            timing: result.timing,
            confinement: Some(Cow::Borrowed(&result.confinement)),
            committed: changes.map(|changes| changes.committed),
            staging: changes.map(|changes| changes.staging),
            changes: changes.map(|changes| Cow::Borrowed(&changes.manifest)),
            ..CommonMembers::default()
        };
        let (id, status) = (Some(Cow::Borrowed(&*result.id)), result.outcome.status());
        Self { id, status, body, common }
    }
}

impl ExecutionDocument<'_> {
    /// The document of a failure before anything ran. A command's has no exit code.
    pub fn failed(kind: ExecutionKind, error: Failure, exit_code: u8) -> Self {
        let (body, source) = match kind {
            ExecutionKind::Script => {
                let body = ScriptBody { exit_code, ..ScriptBody::default() };
                (DocumentBody::Script(body), TouchedSource::Observed)
            }
            ExecutionKind::Command => (
                DocumentBody::Command(CommandBody { failed: true, ..CommandBody::default() }),
                TouchedSource::Scan,
            ),
        };
        Self {
            id: None,
            status: match error.kind {
                // A caller that gives up before the run begins has cancelled it.
                ErrorKind::Cancelled => Status::Cancelled,
                _ => Status::Error,
            },
            body,
            common: CommonMembers {
                files_touched_source: source,
                error: Some(error),
                ..CommonMembers::default()
            },
        }
    }

    /// The document of an execution that did not run, or whose end was not observed.
    pub fn ended(kind: ExecutionKind, id: &str, status: Status, error: Failure) -> Self {
        let exit_code = match status {
            // As of outcomes: whatever the kind of the error says.
            Status::Killed => crate::exit_code(ErrorKind::Killed),
            _ => crate::exit_code(error.kind),
        };
        let id = Some(Cow::Owned(id.to_owned()));
        Self { id, status, ..Self::failed(kind, error, exit_code) }
    }

    /// What it is of.
    pub const fn kind(&self) -> ExecutionKind {
        match self.body {
            DocumentBody::Script(_) => ExecutionKind::Script,
            DocumentBody::Command(_) => ExecutionKind::Command,
        }
    }

    /// The exit code of a process that forwards the result.
    pub fn process_exit_code(&self) -> u8 {
        match &self.body {
            DocumentBody::Script(body) => body.exit_code,
            DocumentBody::Command(body) => match (self.status, body.exit_code, body.signal) {
                (Status::Ok, _, _) => 0,
                (Status::Exit, Some(code), _) => u8::try_from(code).unwrap_or(1),
                (Status::Exit, None, Some(signal)) => {
                    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
                }
                (status, _, _) => match &self.common.error {
                    Some(error) => crate::exit_code(error.kind),
                    None if status == Status::Cancelled => crate::exit_code(ErrorKind::Cancelled),
                    None => crate::exit_code(ErrorKind::Internal),
                },
            },
        }
    }

    /// The entries of a script's log, as far as its lines say what they were.
    pub fn log_entries(&self) -> Vec<LogEntry> {
        let DocumentBody::Script(body) = &self.body else { return Vec::new() };
        let mut entries: Vec<_> = body.logs.iter().map(|line| LogEntry::from_line(line)).collect();
        if let Some(last) = entries.last_mut()
            && body.logs_truncated
            && last.text.starts_with(LOG_FULL)
        {
            last.level = LogLevel::Truncated;
        }
        entries
    }

    /// As `--json` prints it.
    ///
    /// # Errors
    ///
    /// As of `serde_json`.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// Reads a document.
    ///
    /// # Errors
    ///
    /// If `json` is not a document.
    pub fn from_json(json: &str) -> serde_json::Result<ExecutionDocument<'static>> {
        #[derive(Deserialize)]
        struct Head<'a> {
            #[serde(borrow)]
            schema: Cow<'a, str>,
            #[serde(borrow, default)]
            result: Option<&'a RawValue>,
        }
        let Head { schema, result } = serde_json::from_str(json)?;
        if schema == "sandboxctl.exec/1" {
            let Members { id, status, body, common, .. } =
                serde_json::from_str::<ReadMembers<ExecSchema, CommandBody<'static>>>(json)?;
            return Ok(ExecutionDocument { id, status, body: DocumentBody::Command(body), common });
        }
        let Members { id, status, mut body, common, .. } =
            serde_json::from_str::<ReadMembers<ResultSchema, ScriptBody<'static>>>(json)?;
        body.result = result.map(|result| Cow::Owned(result.to_owned()));
        Ok(ExecutionDocument { id, status, body: DocumentBody::Script(body), common })
    }
}

/// A document as it is written and read.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Members<S, I, B, C> {
    /// Its name and version.
    schema: S,
    /// Its id.
    id: I,
    /// How it ended.
    status: Status,
    #[serde(flatten)]
    body: B,
    #[serde(flatten)]
    common: C,
}

pub(super) type ReadMembers<S, B> =
    Members<S, Option<Cow<'static, str>>, B, CommonMembers<'static>>;

/// A flattened member cannot be read as it is written: [`ExecutionDocument::from_json`] does it.
fn read_apart<'de, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Cow<'a, RawValue>>, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| None)
}

impl Serialize for ExecutionDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { id, status, body, common } = self;
        let status = *status;
        match body {
            DocumentBody::Script(body) => {
                let schema = ResultSchema::V1;
                Members { schema, id, status, body, common }.serialize(serializer)
            }
            DocumentBody::Command(body) => {
                let schema = ExecSchema::V1;
                Members { schema, id, status, body, common }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for ExecutionDocument<'static> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        ExecutionDocument::from_json(json.get()).map_err(D::Error::custom)
    }
}

impl OutputEncoding {
    /// The output as text, if it is UTF-8; otherwise as base64. Of output that is truncated, a
    /// character that was cut is dropped.
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

    /// The output that is encoded in `text`; empty if `text` is malformed.
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
        ContactedHost, FileOp, FilesTouched, LogLevel, NoteKind, RefusedHost, StartKind,
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

    fn result(outcome: Outcome, body: ResultBody) -> ExecutionResult {
        let files = [(&b"a.txt"[..], FileOp::Write, 3), (b"b\xff", FileOp::Remove, 0)];
        ExecutionResult {
            id: "s1".to_owned(),
            outcome,
            files_touched: FilesTouched {
                files: files.map(|(path, op, bytes)| TouchedFile::new(path, op, bytes)).to_vec(),
                ..FilesTouched::default()
            },
            engine: EngineKind::Docker,
            engine_notice: None,
            io_dir: Some("/srv/io".into()),
            disk: None,
            changes: None,
            network: None,
            limits: Limits { cpus: "1.5".parse().unwrap(), ..Limits::default() },
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
            body,
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

    fn run() -> ExecutionResult {
        let value = RawValue::from_string(r#"{"x": [1, 2.50]}"#.to_owned()).unwrap();
        let (level, text) = (LogLevel::Warn, "w".to_owned());
        let body = ResultBody::Script {
            logs: vec![LogEntry { level, text, lossy: false, cut: false }],
            logs_truncated: false,
            tests: Vec::new(),
            tool_calls: Vec::new(),
            tool_calls_truncated: false,
            answered: true,
        };
        result(Outcome::Ok { result: value }, body)
    }

    fn exec() -> ExecutionResult {
        let timeout = Outcome::Timeout(failure(ErrorKind::Timeout, "killed"));
        let body = ResultBody::Command {
            exit_code: None,
            signal: Some(9),
            stdout: Captured { bytes: b"out".to_vec(), truncated: false },
            stderr: Captured { bytes: b"\xff".to_vec(), truncated: true },
        };
        ExecutionResult {
            engine_notice: Some("no socket".to_owned()),
            io_dir: None,
            network: Some(network()),
            notes: vec![Note {
                kind: NoteKind::Processes,
                message: "no thread".to_owned(),
                hint: Some("--pids".to_owned()),
            }],
            ..result(timeout, body)
        }
    }

    fn error() -> Failure {
        Failure::new(ErrorKind::Usage, "no such flag", None)
    }

    /// The document of what never ran.
    fn never(kind: ExecutionKind) -> ExecutionDocument<'static> {
        ExecutionDocument::failed(kind, error(), 2)
    }

    #[test]
    fn documents_keep_their_members_and_their_order() {
        let run = run();
        let json = |document: ExecutionDocument<'_>| document.to_json().unwrap();
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
        assert_eq!(json(never(ExecutionKind::Script)), none);

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
        let exec = ExecutionResult { engine: EngineKind::Embedded, ..exec() };
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
        assert_eq!(json(never(ExecutionKind::Command)), none);
    }

    #[test]
    fn the_document_of_a_command_that_never_was_has_all_members() {
        let document = serde_json::to_value(never(ExecutionKind::Command)).unwrap();
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
            again::<ExecutionResult>(&run),
            again::<ExecutionResult>(&exec),
            again::<ExecutionDocument<'_>>(&ExecutionDocument::from(&run)),
            again::<ExecutionDocument<'_>>(&never(ExecutionKind::Script)),
            again::<ExecutionDocument<'_>>(&ExecutionDocument::from(&exec)),
            again::<ExecutionDocument<'_>>(&never(ExecutionKind::Command)),
        ];
        for [read, written] in round_trips {
            assert_eq!(read, written);
        }
    }

    /// serde does not promise this for a structure with flattened members.
    #[test]
    fn unknown_member_of_a_document_is_refused() {
        let json = ExecutionDocument::from(&run()).to_json().unwrap();
        for (known, other) in [
            (r#"{"schema""#, r#"{"more":1,"schema""#),
            (r#"sandboxctl.result/1"#, r#"sandboxctl.result/2"#),
            (r#""engine":"docker""#, r#""engine":"docker","more":1"#),
            (r#""cpus":1.5"#, r#""cpus":1.5,"more":1"#),
            (r#""files_touched_source":"observed","#, ""),
        ] {
            let changed = json.replace(known, other);
            assert_ne!(changed, json, "{known}");
            assert!(ExecutionDocument::from_json(&changed).is_err(), "{changed}");
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
