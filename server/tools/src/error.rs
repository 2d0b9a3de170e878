//! The error of a call.

use sandbox_api::{ErrorKind, OverCeiling};
use sandbox_controller::Error;
use serde::Serialize;

use crate::metadata::Metadata;

/// Longest message: it may quote what a caller wrote, which may be megabytes.
const MAX_MESSAGE_BYTES: usize = 16 << 10;

/// The error of a call. As JSON it is the metadata of an answer, which has the message beside it.
#[derive(Debug, thiserror::Error, Serialize)]
#[error("{message}")]
pub struct ToolError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// One line for people.
    #[serde(skip)]
    pub message: String,
    /// Whether the same call may succeed when it is repeated.
    pub retryable: bool,
    /// The next step, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Further metadata: what a script or a command had done until then.
    #[serde(flatten)]
    pub(super) metadata: Metadata,
}

impl ToolError {
    /// An error of `kind` without further details.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE_BYTES {
            let mut ends = (0..=MAX_MESSAGE_BYTES).rev();
            let end = ends.find(|&end| message.is_char_boundary(end)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        let (retryable, metadata) = (kind.is_retryable(), Metadata::default());
        Self { kind, message, retryable, hint: None, metadata }
    }

    /// A call that cannot be parsed, or is invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// A call for a sandbox that does not exist.
    #[must_use]
    pub fn not_registered(container_id: &str) -> Self {
        Self::invalid(format!("Container '{container_id}' not registered"))
            .with_hint("sandbox_init makes it")
    }

    /// An argument of `sandbox_init` has a value that cannot be used.
    pub(crate) fn of_value(
        kind: ErrorKind,
        argument: &str,
        value: &str,
        problem: impl std::fmt::Display,
    ) -> Self {
        Self::new(kind, format!("{argument} '{}': {problem}", value.escape_debug()))
    }

    /// The same error for another call that fails of it.
    pub(crate) fn repeated(&self) -> Self {
        let (message, hint) = (self.message.clone(), self.hint.clone());
        Self { message, hint, metadata: Metadata::default(), ..*self }
    }

    /// The same error with a next step.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The same error for a call that changes nothing: a timeout may be retried.
    #[must_use]
    pub(super) fn of_read_only_call(self) -> Self {
        Self { retryable: self.retryable || self.kind == ErrorKind::Timeout, ..self }
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        Self { hint: error.hint(), ..Self::new(error.kind(), error.full_message()) }
    }
}

/// A timeout above its ceiling; `argument` is the tool's name for it.
pub(super) fn over_ceiling(argument: &str, over: &OverCeiling) -> ToolError {
    let OverCeiling { asked, key, ceiling } = over;
    let key = key.key();
    let message = format!("{argument} is {asked}, above the ceiling of {key}: {ceiling}");
    ToolError::new(ErrorKind::Policy, message)
}
