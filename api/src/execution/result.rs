//! Results of scripts and commands.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;

use sandbox_protocol::limits::{MAX_LOG_ENTRY_BYTES, cut_encoded};
use sandbox_protocol::message::{Confinement, TestCase};
use sandbox_protocol::{ErrorKind, WireString, message};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::changes::Changes;
use crate::disk::Disk;
use crate::engine_kind::EngineKind;
use crate::host_tools::ToolCall;
use crate::json::In;
use crate::limits::{LimitKey, Limits};
use crate::named::named;
use crate::network::Network;
use crate::notes::Note;
use crate::outcome::Outcome;
use crate::timing::Timing;

/// What a failure of the kind [`ErrorKind::TooManyFiles`] says of an io dir that cannot be scanned completely.
pub const UNMEASURED_PART: &str = "so it is unknown how much is written there";

/// The result of a script or a command, however it ended.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecutionResult {
    /// The unique id of the run or command: the sandbox's id, with a number appended from the
    /// second run or command on.
    pub id: String,
    /// How it ended. [`Outcome::exit_code`] is the exit code of a process that forwards it.
    pub outcome: Outcome,
    /// The files that changed: those that a script changed; while a command ran, those that anyone
    /// changed.
    pub files_touched: FilesTouched,
    /// The engine it ran on.
    pub engine: EngineKind,
    /// Why another engine was not chosen, if the choice was not the default.
    pub engine_notice: Option<String>,
    /// The io dir on the host, absolute.
    #[serde(with = "In::<Option<WireString>>")]
    pub io_dir: Option<PathBuf>,
    /// What bounds the disk space that programs take in the io dir; `None` without either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// The hosts that its commands reached, and those that they were refused; `None` if no host is
    /// allowed: without a network, there is nothing that refuses one.
    pub network: Option<Network>,
    /// What became of its changes, if its io dir was staged and that was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
    /// The limits it ran under.
    pub limits: Limits,
    /// The resources it used.
    pub usage: Usage,
    /// What stood in its way in the sandbox; nothing, if it ended well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// How long its parts took; `None` from who does not say so.
    #[serde(default)]
    pub timing: Option<Timing>,
    /// Its confinement beyond its container.
    pub confinement: Confinement,
    /// What only scripts or only commands have.
    pub body: ResultBody,
}

/// The part of an [`ExecutionResult`] that only scripts or only commands have.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum ResultBody {
    /// Of a script.
    Script {
        /// Its log, within the limits; also for killed runs.
        logs: Vec<LogEntry>,
        /// Entries were omitted, and the last one says why; or some were cut, and say so.
        logs_truncated: bool,
        /// Its test cases, in the order of their ends; also for killed runs.
        tests: Vec<TestCase>,
        /// Its calls of tools of the host, in order: the first 1,000.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
        /// There were more calls than are listed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tool_calls_truncated: bool,
        /// The agent reported how the run ended, before the agent itself ended.
        answered: bool,
    },
    /// Of a command.
    Command {
        /// The command's own exit code; `None` if it was ended by a signal, or if it is unknown.
        exit_code: Option<i32>,
        /// The signal that ended the command; `None` if none did, or if it is unknown. At its
        /// deadline and at a cancel it is usually 15, and 9 if it was killed then, or because of a
        /// limit.
        signal: Option<i32>,
        /// The beginning of its stdout.
        stdout: Captured,
        /// The beginning of its stderr.
        stderr: Captured,
    },
}

/// The beginning of an output stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Captured {
    /// Its bytes.
    #[serde(with = "In::<WireString>")]
    pub bytes: Vec<u8>,
    /// There was more.
    pub truncated: bool,
}

impl Captured {
    /// Nothing, and there was no more.
    pub const NOTHING: &Self = &Self { bytes: Vec::new(), truncated: false };

    pub(super) fn push(&mut self, data: &[u8], limit: usize) {
        let room = limit.saturating_sub(self.bytes.len()).min(data.len());
        self.bytes.extend_from_slice(&data[..room]);
        self.truncated |= room < data.len();
    }
}

impl ExecutionResult {
    /// The exit code of a process that ends with this result.
    pub fn exit_code(&self) -> u8 {
        self.outcome.exit_code()
    }

    /// Whether it did not end well: a command that ended with another code than 0 did not.
    pub const fn failed(&self) -> bool {
        !matches!(self.outcome, Outcome::Ok { .. })
    }

    /// Whether it exceeded its time limit.
    pub const fn timed_out(&self) -> bool {
        matches!(self.outcome, Outcome::Timeout(_))
    }

    /// The log of a script.
    pub fn logs(&self) -> &[LogEntry] {
        match &self.body {
            ResultBody::Script { logs, .. } => logs,
            ResultBody::Command { .. } => &[],
        }
    }

    /// The test cases of a script.
    pub fn tests(&self) -> &[TestCase] {
        match &self.body {
            ResultBody::Script { tests, .. } => tests,
            ResultBody::Command { .. } => &[],
        }
    }

    /// The calls of tools by a script, and whether there were more.
    pub fn tool_calls(&self) -> (&[ToolCall], bool) {
        match &self.body {
            ResultBody::Script { tool_calls, tool_calls_truncated, .. } => {
                (tool_calls, *tool_calls_truncated)
            }
            ResultBody::Command { .. } => (&[], false),
        }
    }

    /// The beginning of a command's stdout.
    pub const fn stdout(&self) -> &Captured {
        match &self.body {
            ResultBody::Script { .. } => Captured::NOTHING,
            ResultBody::Command { stdout, .. } => stdout,
        }
    }

    /// The beginning of a command's stderr.
    pub const fn stderr(&self) -> &Captured {
        match &self.body {
            ResultBody::Script { .. } => Captured::NOTHING,
            ResultBody::Command { stderr, .. } => stderr,
        }
    }

    /// The exit code that a command itself ended with.
    pub const fn command_exit_code(&self) -> Option<i32> {
        match &self.body {
            ResultBody::Script { .. } => None,
            ResultBody::Command { exit_code, .. } => *exit_code,
        }
    }

    /// The signal that ended a command.
    pub const fn signal(&self) -> Option<i32> {
        match &self.body {
            ResultBody::Script { .. } => None,
            ResultBody::Command { signal, .. } => *signal,
        }
    }

    /// A suggested next step, if there is one: for a limit, the setting that raises it.
    pub fn hint(&self) -> Option<String> {
        let failure = match &self.outcome {
            Outcome::Error { failure, .. } => return failure.hint.clone(),
            outcome => outcome.failure()?,
        };
        let limit = match (failure.kind, &self.body) {
            (ErrorKind::Timeout, _) => LimitKey::Timeout,
            // An agent that could still report was not killed: the VM's memory was exhausted.
            (ErrorKind::OutOfMemory, ResultBody::Script { answered: true, .. }) => {
                LimitKey::VmMemory
            }
            (ErrorKind::OutOfMemory, _) => LimitKey::Memory,
            (ErrorKind::WriteLimit, _) => LimitKey::MaxWrite,
            // No limit makes it measurable.
            (ErrorKind::TooManyFiles, _) if failure.message.contains(UNMEASURED_PART) => {
                return None;
            }
            (ErrorKind::TooManyFiles, _) => LimitKey::Entries,
            (ErrorKind::TooManyHandles, _) => LimitKey::OpenHandles,
            (ErrorKind::OutputLimit, _) => LimitKey::OutputBytes,
            (ErrorKind::DiskFull, _) => {
                let hint = "make room on that file system, or use an io dir on another one";
                return Some(hint.to_owned());
            }
            _ => return None,
        };
        Some(limit.hint())
    }
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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

/// The start of the last entry of a log that was full.
pub(super) const LOG_FULL: &str = "[log full: ";
/// The start of the line of an entry of `warn`.
const WARN: &str = "[warn] ";
/// The suffix of an entry that was cut.
const CUT: &str = "… [cut]";

impl LogEntry {
    /// The entry as shown to people and in documents: entries of `warn` are marked.
    pub fn line(&self) -> Cow<'_, str> {
        match self.level {
            LogLevel::Print | LogLevel::Truncated => Cow::Borrowed(&self.text),
            LogLevel::Warn => Cow::Owned(format!("{WARN}{}", self.text)),
        }
    }

    /// The entry that a [`line`](Self::line) shows. A script can print what it shows of `warn`.
    pub fn from_line(line: &str) -> Self {
        let (level, text) = match line.strip_prefix(WARN) {
            Some(text) => (LogLevel::Warn, text),
            None => (LogLevel::Print, line),
        };
        Self { level, text: text.to_owned(), lossy: false, cut: false }
    }

    /// The last entry of a log that was full: it names the limit.
    pub fn log_full(limit: &str) -> Self {
        let text = format!("{LOG_FULL}{limit}]");
        Self { level: LogLevel::Truncated, text, lossy: false, cut: false }
    }
}

/// The origin of a log entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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
        let known: HashSet<Vec<u8>> =
            self.files.iter().map(|file| file.name.as_bytes().to_vec()).collect();
        let others =
            observed.files.into_iter().filter(|file| !known.contains(file.name.as_bytes()));
        self.files.extend(others);
        self.files.sort_by(|one, other| one.name.cmp(&other.name));
        self.truncated |= observed.truncated;
        self
    }
}

/// How changed files were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TouchedSource {
    /// The agent announced each path before it changed it; the controller then checked each.
    #[default]
    Observed,
    /// Scans before and after the run.
    Scan,
}

named! {
    /// A file that a run changed.
    pub struct TouchedFile {
        /// Relative to the io dir; lossy where it is not UTF-8.
        name / name_b64: "The name's bytes, where they are not UTF-8.",
        /// The kind of change.
        op: FileOp,
        /// Its current size; 0 if it was removed.
        bytes: u64,
    }
}

impl TouchedFile {
    /// A change of the file at this path, relative to the io dir.
    pub fn new(path: &[u8], op: FileOp, bytes: u64) -> Self {
        Self { name: path.into(), op, bytes }
    }
}

sandbox_protocol::words! {
    /// How a file changed.
    #[derive(JsonSchema)]
    pub enum FileOp {
        /// Created or overwritten.
        Write = "write",
        /// It existed before, and was only appended to.
        Append = "append",
        /// Removed; also if the run itself created it.
        Remove = "remove",
    }
}

/// The resources that a run used. `None` means unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// From when the agent accepted the script until it ended.
    pub wall_ms: u64,
    /// Processor time.
    pub cpu_ms: Option<u64>,
    /// The maximum resident set size: of a script's agent, over the sandbox's life so far; of a
    /// command's largest process.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes written to files.
    pub written_bytes: Option<u64>,
}

impl Usage {
    /// What a quota counts: an unknown processor time as that of all its processors, for all of its
    /// time.
    #[must_use]
    pub fn charged(self, limits: &Limits) -> Self {
        let most = u128::from(self.wall_ms) * u128::from(limits.cpus.thousandths());
        let most = u64::try_from(most.div_ceil(1000)).unwrap_or(u64::MAX);
        Self { cpu_ms: self.cpu_ms.or(Some(most)), ..self }
    }
}
