//! Why a call has no data.

use sandbox_api::ErrorKind;
use sandbox_controller::Error;

use super::answer::CommandRemarks;
use super::data::ExecuteScriptData;

/// Longest message: it may quote what a caller wrote, which may be megabytes.
const MAX_MESSAGE_BYTES: usize = 16 << 10;

/// Why a call has no data.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// What went wrong, in one word.
    pub kind: ErrorKind,
    /// One line for people.
    pub message: String,
    /// The same call may succeed if it is made again.
    pub retryable: bool,
    /// The next step, where there is one to name.
    pub hint: Option<String>,
    /// What a script or a command had done until then.
    pub partial: Option<Box<Partial>>,
}

/// What is known of a script or a command that did not come to its end.
#[derive(Debug, Clone)]
pub enum Partial {
    /// Of a script.
    Script(ScriptFailure),
    /// Of a command.
    Command(CommandFailure),
}

/// What is known of a command that did not come to its end.
#[derive(Debug, Clone, Default)]
pub struct CommandFailure {
    /// What it had written to stdout.
    pub stdout: String,
    /// What it had written to stderr.
    pub stderr: String,
    /// What else there is to say of it.
    pub remarks: CommandRemarks,
}

/// What is known of a script that failed.
#[derive(Debug, Clone, Default)]
pub struct ScriptFailure {
    /// Its result, which is null, its log and its files.
    pub data: ExecuteScriptData,
    /// Something of the log is left out.
    pub logs_truncated: bool,
    /// Files are left out.
    pub files_touched_truncated: bool,
    /// The line where it failed.
    pub line: Option<u32>,
    /// Its call stack there.
    pub traceback: Option<String>,
}

impl ToolError {
    /// An error of `kind`, and no more of it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE_BYTES {
            let mut ends = (0..=MAX_MESSAGE_BYTES).rev();
            let end = ends.find(|&end| message.is_char_boundary(end)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        Self { kind, message, retryable: kind.is_retryable(), hint: None, partial: None }
    }

    /// A call that cannot be understood, or that makes no sense.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// A call for a sandbox that there is not.
    #[must_use]
    pub fn not_registered(container_id: &str) -> Self {
        Self::invalid(format!("Container '{container_id}' not registered"))
            .with_hint("sandbox_init makes it")
    }

    /// The same error with a next step.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The same error of a call that changes nothing: a timeout may be tried again.
    #[must_use]
    pub fn of_a_read(self) -> Self {
        Self { retryable: self.retryable || self.kind == ErrorKind::Timeout, ..self }
    }

    /// The same error of a script, which always tells what the script had done.
    #[must_use]
    pub(super) fn of_a_script(mut self) -> Self {
        self.partial.get_or_insert_with(|| Partial::Script(ScriptFailure::default()).into());
        self
    }

    /// The same error of a command, which always tells what the command had written.
    #[must_use]
    pub(super) fn of_a_command(mut self) -> Self {
        self.partial.get_or_insert_with(|| Partial::Command(CommandFailure::default()).into());
        self
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        Self { hint: error.hint(), ..Self::new(error.kind(), error.full_message()) }
    }
}
