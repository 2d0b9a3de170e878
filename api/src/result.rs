//! Results of runs and commands: the types of the library, and the documents `sandboxctl.result/1`
//! and `sandboxctl.exec/1`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_protocol::limits::{MAX_LOG_ENTRY_BYTES, cut_encoded};
use sandbox_protocol::message::Confinement;
use sandbox_protocol::{Base64, ErrorKind, message};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::Failure;
use crate::engine_kind::EngineKind;
use crate::limits::{LimitKey, Limits};
use crate::outcome::{Outcome, Status};

/// The schema name of a script's result document.
pub const RESULT_SCHEMA: &str = "sandboxctl.result/1";

/// The schema name of a command's result document.
pub const EXEC_SCHEMA: &str = "sandboxctl.exec/1";

/// The result of a run, however it ended.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// The unique run id: the sandbox's id, with a number appended from the second run on.
    pub id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Its log, within the limits; also for killed runs.
    pub logs: Vec<LogEntry>,
    /// Entries were omitted, and the last one says why; or some were cut, and say so.
    pub logs_truncated: bool,
    /// The files it changed.
    pub files_touched: FilesTouched,
    /// The engine it ran on.
    pub engine: EngineKind,
    /// Why another engine was not chosen, if the choice was not the default.
    pub engine_notice: Option<String>,
    /// The io dir on the host, absolute.
    pub io_dir: Option<PathBuf>,
    /// The limits it ran under.
    pub limits: Limits,
    /// The resources it used.
    pub usage: Usage,
    /// The confinement of the agent beyond its container.
    pub confinement: Confinement,
    /// The agent reported how the run ended, before the agent itself ended.
    pub answered: bool,
}

impl RunResult {
    /// The exit code of a process that ends with this result.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.outcome.exit_code()
    }

    /// A suggested next step, if there is one: for a limit, the setting that raises it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        // An agent that could still report was not killed: the VM's memory was exhausted.
        let memory = if self.answered { LimitKey::VmMemory } else { LimitKey::Memory };
        hint(&self.outcome, memory)
    }
}

/// The result of a command, however it ended.
#[derive(Debug, Clone)]
pub struct ExecResult {
    /// The unique id of the command: the sandbox's id, with a number appended from the second run
    /// or command on.
    pub id: String,
    /// How it ended. [`Outcome::exit_code`] is the exit code of a process that forwards it.
    pub outcome: Outcome,
    /// The command's own exit code; `None` if it was ended by a signal, or if it is unknown.
    pub exit_code: Option<i32>,
    /// The signal that ended the command; `None` if none did, or if it is unknown. 9 if it was
    /// killed because of a limit or a cancel.
    pub signal: Option<i32>,
    /// The beginning of its stdout, without the output that `next_output` returned.
    pub stdout: Vec<u8>,
    /// The beginning of its stderr, likewise.
    pub stderr: Vec<u8>,
    /// There was more output than `stdout` contains.
    pub stdout_truncated: bool,
    /// There was more output than `stderr` contains.
    pub stderr_truncated: bool,
    /// The files that changed while it ran, whoever changed them.
    pub files_touched: FilesTouched,
    /// The engine it ran on.
    pub engine: EngineKind,
    /// Why another engine was not chosen, if the choice was not the default.
    pub engine_notice: Option<String>,
    /// The io dir on the host, absolute.
    pub io_dir: Option<PathBuf>,
    /// The limits it ran under.
    pub limits: Limits,
    /// The resources it used.
    pub usage: Usage,
    /// Its confinement beyond its container.
    pub confinement: Confinement,
}

impl ExecResult {
    /// Whether it did not exit with code 0.
    #[must_use]
    pub const fn failed(&self) -> bool {
        !matches!(self.outcome, Outcome::Ok { .. })
    }

    /// Whether it exceeded its time limit.
    #[must_use]
    pub const fn timed_out(&self) -> bool {
        matches!(self.outcome, Outcome::Timeout(_))
    }

    /// A suggested next step, if there is one: for a limit, the setting that raises it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        hint(&self.outcome, LimitKey::Memory)
    }
}

/// A suggested next step for this outcome. `memory` is the limit to name if memory ran out.
fn hint(outcome: &Outcome, memory: LimitKey) -> Option<String> {
    let kind = match outcome {
        Outcome::Error { failure, .. } => return failure.hint.clone(),
        outcome => outcome.failure()?.kind,
    };
    let limit = match kind {
        ErrorKind::Timeout => LimitKey::Timeout,
        ErrorKind::OutOfMemory => memory,
        ErrorKind::WriteLimit => LimitKey::MaxWrite,
        ErrorKind::TooManyFiles => LimitKey::Entries,
        ErrorKind::TooManyHandles => LimitKey::OpenHandles,
        ErrorKind::OutputLimit => LimitKey::OutputBytes,
        ErrorKind::DiskFull => {
            let hint = "make room on that file system, or use an io dir on another one";
            return Some(hint.to_owned());
        }
        _ => return None,
    };
    Some(format!("{} raises the limit", limit.flag().unwrap_or(limit.key())))
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Its origin.
    pub level: LogLevel,
    /// Its text, possibly of several lines.
    pub text: String,
    /// It was not UTF-8, and `text` contains U+FFFD.
    pub lossy: bool,
    /// It was longer and was cut; `text` ends with a mark that says so.
    pub cut: bool,
}

/// The suffix of an entry that was cut.
const CUT: &str = "… [cut]";

impl LogEntry {
    /// The entry as shown to people and in documents: entries of `warn` are marked.
    #[must_use]
    pub fn line(&self) -> Cow<'_, str> {
        match self.level {
            LogLevel::Print | LogLevel::Truncated => Cow::Borrowed(&self.text),
            LogLevel::Warn => Cow::Owned(format!("[warn] {}", self.text)),
        }
    }
}

/// The origin of a log entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogLevel {
    /// The script's `print`.
    Print,
    /// The script's `warn`.
    Warn,
    /// The controller: entries were omitted.
    Truncated,
}

impl From<message::Log> for LogEntry {
    fn from(log: message::Log) -> Self {
        let level = match log.level {
            message::LogLevel::Print => LogLevel::Print,
            message::LogLevel::Warn => LogLevel::Warn,
        };
        let mut text = log.text;
        if log.cut {
            text.truncate(cut_encoded(&text, MAX_LOG_ENTRY_BYTES - CUT.len()).len());
            text.push_str(CUT);
        }
        Self { level, text, lossy: log.lossy, cut: log.cut }
    }
}

/// The files that a run changed, in their final state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilesTouched {
    /// Sorted by name, without duplicates.
    pub files: Vec<TouchedFile>,
    /// How they were found.
    pub source: TouchedSource,
    /// There are more than are listed.
    pub truncated: bool,
}

impl FilesTouched {
    /// Merges a scan with observed changes, which include files that were created and removed
    /// again.
    pub fn with(mut self, observed: Self) -> Self {
        let known: HashSet<Vec<u8>> = self.files.iter().map(|file| file.path().to_vec()).collect();
        let others = observed.files.into_iter().filter(|file| !known.contains(file.path()));
        self.files.extend(others);
        self.files.sort_by(|one, other| one.path().cmp(other.path()));
        self.truncated |= observed.truncated;
        self
    }
}

/// How changed files were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TouchedSource {
    /// The agent announced each path before it changed it; the controller then checked each.
    #[default]
    Observed,
    /// Scans before and after the run.
    Scan,
}

/// A file that a run changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TouchedFile {
    /// Relative to the io dir; lossy where it is not UTF-8.
    pub name: String,
    /// The name's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_b64: Option<Base64>,
    /// The kind of change.
    pub op: FileOp,
    /// Its current size; 0 if it was removed.
    pub bytes: u64,
}

impl TouchedFile {
    /// A change of the file at this path, relative to the io dir.
    pub fn new(path: &[u8], op: FileOp, bytes: u64) -> Self {
        let name = String::from_utf8_lossy(path).into_owned();
        let is_exact = name.as_bytes() == path;
        let name_b64 = (!is_exact).then(|| Base64(path.to_vec()));
        Self { name, name_b64, op, bytes }
    }

    /// The bytes of its path.
    pub fn path(&self) -> &[u8] {
        self.name_b64.as_ref().map_or(self.name.as_bytes(), |exact| &exact.0)
    }
}

/// How a file changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileOp {
    /// Created or overwritten.
    Write,
    /// It existed before, and was only appended to.
    Append,
    /// Removed; also if the run itself created it.
    Remove,
}

impl FileOp {
    /// Its name in documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Append => "append",
            Self::Remove => "remove",
        }
    }
}

/// The resources that a run used. `None` means unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Usage {
    /// From when the agent accepted the script until it ended.
    pub wall_ms: u64,
    /// Processor time.
    pub cpu_ms: Option<u64>,
    /// The maximum resident set size, over the sandbox's life so far.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes written to files.
    pub written_bytes: Option<u64>,
}

/// The document of `--json`, for every way a run can end, including failures of sandboxctl itself;
/// see [`failed`](Self::failed) for those before the run began.
#[derive(Debug, Serialize)]
pub struct ResultDocument<'a> {
    schema: &'static str,
    id: Option<&'a str>,
    status: Status,
    exit_code: u8,
    result: Option<&'a RawValue>,
    logs: Logs<'a>,
    logs_truncated: bool,
    files_touched: &'a [TouchedFile],
    files_touched_source: TouchedSource,
    files_touched_truncated: bool,
    error: Option<Failure>,
    engine: Option<EngineKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_notice: Option<&'a str>,
    io_dir: Option<String>,
    limits: Option<&'a Limits>,
    usage: Option<Usage>,
    confinement: Option<&'a Confinement>,
}

/// The document of `exec --json`, for every way a command can end, including failures of sandboxctl
/// itself; see [`failed`](Self::failed) for those before the command began.
#[derive(Debug, Serialize)]
pub struct ExecDocument<'a> {
    schema: &'static str,
    id: Option<&'a str>,
    status: Status,
    /// The exit code of the command itself, like `signal`: never one of sandboxctl.
    exit_code: Option<i32>,
    signal: Option<i32>,
    failed: bool,
    timed_out: bool,
    stdout: Cow<'a, str>,
    stdout_encoding: OutputEncoding,
    stdout_truncated: bool,
    stderr: Cow<'a, str>,
    stderr_encoding: OutputEncoding,
    stderr_truncated: bool,
    files_touched: &'a [TouchedFile],
    files_touched_source: TouchedSource,
    files_touched_truncated: bool,
    error: Option<Failure>,
    engine: Option<EngineKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_notice: Option<&'a str>,
    io_dir: Option<String>,
    limits: Option<&'a Limits>,
    usage: Option<Usage>,
    confinement: Option<&'a Confinement>,
}

/// The encoding of a command's output in the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum OutputEncoding {
    /// As text.
    #[serde(rename = "utf-8")]
    Utf8,
    /// The output is not text, or not where it was cut.
    #[serde(rename = "base64")]
    Base64,
}

/// The output as text, if it is UTF-8; otherwise as base64.
fn text(output: &[u8], truncated: bool) -> (Cow<'_, str>, OutputEncoding) {
    let text = match std::str::from_utf8(output) {
        Ok(text) => Some(text),
        // Cut within a character: the partial character is dropped.
        Err(error) if truncated && error.error_len().is_none() => {
            std::str::from_utf8(&output[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    match text {
        Some(text) => (Cow::Borrowed(text), OutputEncoding::Utf8),
        None => (Cow::Owned(STANDARD.encode(output)), OutputEncoding::Base64),
    }
}

impl<'a> From<&'a ExecResult> for ExecDocument<'a> {
    fn from(result: &'a ExecResult) -> Self {
        let (stdout, stdout_encoding) = text(&result.stdout, result.stdout_truncated);
        let (stderr, stderr_encoding) = text(&result.stderr, result.stderr_truncated);
        Self {
            schema: EXEC_SCHEMA,
            id: Some(&result.id),
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
            files_touched: &result.files_touched.files,
            files_touched_source: result.files_touched.source,
            files_touched_truncated: result.files_touched.truncated,
            error: result
                .outcome
                .failure()
                .map(|failure| Failure { hint: result.hint(), ..failure.into() }),
            engine: Some(result.engine),
            engine_notice: result.engine_notice.as_deref(),
            io_dir: result.io_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()),
            limits: Some(&result.limits),
            usage: Some(result.usage),
            confinement: Some(&result.confinement),
        }
    }
}

impl ExecDocument<'_> {
    /// The document of a failure before anything ran.
    #[must_use]
    pub const fn failed(error: Failure) -> Self {
        Self {
            schema: EXEC_SCHEMA,
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
            files_touched: &[],
            files_touched_source: TouchedSource::Scan,
            files_touched_truncated: false,
            error: Some(error),
            engine: None,
            engine_notice: None,
            io_dir: None,
            limits: None,
            usage: None,
            confinement: None,
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

#[derive(Debug)]
struct Logs<'a>(&'a [LogEntry]);

impl Serialize for Logs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(LogEntry::line))
    }
}

impl<'a> From<&'a RunResult> for ResultDocument<'a> {
    fn from(run: &'a RunResult) -> Self {
        Self {
            schema: RESULT_SCHEMA,
            id: Some(&run.id),
            status: run.outcome.status(),
            exit_code: run.exit_code(),
            result: match &run.outcome {
                Outcome::Ok { result } => Some(result),
                _ => None,
            },
            logs: Logs(&run.logs),
            logs_truncated: run.logs_truncated,
            files_touched: &run.files_touched.files,
            files_touched_source: run.files_touched.source,
            files_touched_truncated: run.files_touched.truncated,
            error: run
                .outcome
                .failure()
                .map(|failure| Failure { hint: run.hint(), ..failure.into() }),
            engine: Some(run.engine),
            engine_notice: run.engine_notice.as_deref(),
            io_dir: run.io_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()),
            limits: Some(&run.limits),
            usage: Some(run.usage),
            confinement: Some(&run.confinement),
        }
    }
}

impl ResultDocument<'_> {
    /// The document of a failure before anything ran.
    #[must_use]
    pub const fn failed(error: Failure, exit_code: u8) -> Self {
        Self {
            schema: RESULT_SCHEMA,
            id: None,
            status: status_of(&error),
            exit_code,
            result: None,
            logs: Logs(&[]),
            logs_truncated: false,
            files_touched: &[],
            files_touched_source: TouchedSource::Observed,
            files_touched_truncated: false,
            error: Some(error),
            engine: None,
            engine_notice: None,
            io_dir: None,
            limits: None,
            usage: None,
            confinement: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;

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
            let (text, encoding) = text(output, truncated);
            assert_eq!((&*text, encoding), expected, "{output:?} {truncated}");
        }
    }

    #[test]
    fn the_document_of_a_command_that_never_was_has_all_members() {
        let error = Failure::new(ErrorKind::Usage, "no such flag", None);
        let document = serde_json::to_value(ExecDocument::failed(error)).unwrap();
        assert_eq!(document["schema"], EXEC_SCHEMA);
        assert_eq!(document["status"], "error");
        assert_eq!(document["error"]["kind"], "usage");
        for null in ["id", "exit_code", "signal", "engine", "io_dir", "limits", "usage"] {
            assert!(document[null].is_null(), "{null}");
        }
        assert_eq!(
            (&document["stdout"], &document["stdout_encoding"]),
            (&"".into(), &"utf-8".into())
        );
    }
}
