//! Failures as plain data, for result documents, databases and brokers.

use sandbox_protocol::limits::{IO_IS_OFF, ONLY_EMPTY, TOO_MANY_BYTES};
use sandbox_protocol::message::ScriptError;
use sandbox_protocol::{ErrorKind, WireError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Encoding, LimitKey};

/// A failure as data: the `error` of a [`ResultDocument`](crate::ResultDocument) and an
/// [`ExecDocument`](crate::ExecDocument).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The error's kind.
    pub kind: ErrorKind,
    /// A one-line message.
    pub message: String,
    /// The line of the script where it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The script's call stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceback: Option<String>,
    /// The table that the script raised, as JSON: `error({ code = 7 })`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// A suggested next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of the caller's own, such as an unknown flag.
    pub fn new(kind: ErrorKind, message: impl Into<String>, hint: Option<String>) -> Self {
        Self { kind, message: message.into(), line: None, traceback: None, value: None, hint }
    }

    /// The same with how to get [a part](crate::operation::OperationRequest::part_hint) of what is too large, and [what to
    /// do](crate::operation::OperationRequest::bytes_hint) with content that is not UTF-8.
    #[must_use]
    pub fn with_hints(mut self, part: Option<&str>, bytes: Option<&str>) -> Self {
        match (self.kind, part, bytes, &mut self.hint) {
            (ErrorKind::TooLarge, Some(part), _, Some(hint)) => *hint = format!("{part}; {hint}"),
            (ErrorKind::Encoding, _, Some(bytes), Some(hint)) => bytes.clone_into(hint),
            _ => {}
        }
        self
    }
}

/// An error with its causes, on one line. A transparent error repeats its cause.
#[must_use]
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| cause.source()) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

impl From<ScriptError> for Failure {
    fn from(error: ScriptError) -> Self {
        let ScriptError { kind, message, line, traceback, value } = error;
        Self { kind, message, line, traceback, value, hint: None }
    }
}

/// The failure of a file operation.
impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        let hint = failure_hint(&error);
        Self::new(error.kind(), error.to_string(), hint)
    }
}

/// The exit code of a process that ends with an error of this kind.
pub const fn exit_code(kind: ErrorKind) -> u8 {
    use ErrorKind as Kind;
    match kind {
        // The requested operation or the script failed.
        Kind::NotFound
        | Kind::AlreadyExists
        | Kind::IsDirectory
        | Kind::NotADirectory
        | Kind::NotEmpty
        | Kind::PermissionDenied
        | Kind::Symlink
        | Kind::SpecialFile
        | Kind::DiskFull
        | Kind::Encoding
        | Kind::Busy
        | Kind::Syntax
        | Kind::Runtime
        | Kind::ResultNotJson => 1,
        Kind::Usage | Kind::Config | Kind::InvalidRequest | Kind::InvalidPath => 2,
        Kind::TooLarge
        | Kind::WriteLimit
        | Kind::TooManyFiles
        | Kind::TooManyHandles
        | Kind::OutOfMemory
        | Kind::OutputLimit
        | Kind::SourceTooLarge
        | Kind::ResultTooLarge => 120,
        Kind::Policy
        | Kind::NotAllowed
        | Kind::Protected
        | Kind::PathEscape
        | Kind::ReadOnly
        | Kind::NetworkRefused => 121,
        Kind::AgentLost => 122,
        Kind::Conflict => 123,
        Kind::Timeout => 124,
        Kind::NotExecutable => 126,
        Kind::CommandNotFound => 127,
        Kind::Cancelled => 130,
        Kind::Killed => 137,
        // Internal failures: engine, image and others.
        _ => 125,
    }
}

/// A suggested next step for a file operation that failed with this error, if there is one.
pub fn failure_hint(error: &WireError) -> Option<String> {
    let is_digits = |encoding: &Encoding| {
        let invalid = encoding.error("").to_string();
        error.message.contains(&invalid)
    };
    match error.kind() {
        // Of a directory with too many entries: no setting allows more.
        ErrorKind::TooLarge if !error.message.contains(TOO_MANY_BYTES) => None,
        ErrorKind::NotEmpty if error.message.contains(ONLY_EMPTY) => None,
        ErrorKind::NotAllowed if error.message.ends_with(IO_IS_OFF) => Some(
            "`[io] enabled = true` in the configuration, or an `image` with programs, gives it one"
                .to_owned(),
        ),
        // The content itself is wrong: in another encoding it would be other bytes.
        ErrorKind::Encoding if [Encoding::Base64, Encoding::Hex].iter().any(is_digits) => None,
        kind => operation_hint(kind),
    }
}

/// A suggested next step for a file operation that failed with an error of this kind, if there is one.
pub fn operation_hint(kind: ErrorKind) -> Option<String> {
    let hint = match kind {
        ErrorKind::IsDirectory => "`list` shows what is in a directory",
        ErrorKind::NotEmpty => "`recursive` removes a directory with all that is in it",
        ErrorKind::PathEscape => {
            "paths are relative to the working directory, or absolute under a mount: the io dir's, /in/…"
        }
        ErrorKind::NotAllowed => "filesystem.allowed_paths says which paths may be used",
        ErrorKind::Protected => "filesystem.protected names what no operation may change",
        ErrorKind::Symlink => "links are never followed: name what the link leads to",
        ErrorKind::TooLarge => return Some(LimitKey::MaxFileSize.hint()),
        ErrorKind::WriteLimit => return Some(LimitKey::MaxWrite.hint()),
        ErrorKind::TooManyFiles => return Some(LimitKey::Entries.hint()),
        ErrorKind::Encoding => "the encoding base64 takes and gives any bytes",
        ErrorKind::Timeout => return Some(LimitKey::OperationTimeout.hint()),
        _ => return None,
    };
    Some(hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_names_a_setting_only_where_it_helps() {
        let hint = |kind, message: &str| failure_hint(&WireError::new(kind, message));
        for message in [
            "d: too many entries to rename (max 10000)",
            "d: directories are nested deeper than 64: too deep to rename",
            "d: too many entries to copy (max 10000)",
        ] {
            assert_eq!(hint(ErrorKind::TooLarge, message), None);
        }
        let not_empty = |more| hint(ErrorKind::NotEmpty, &format!("d: Directory not empty{more}"));
        assert!(not_empty("").is_some() && not_empty(ONLY_EMPTY).is_none());
        let without_files = hint(ErrorKind::NotAllowed, &format!("a: {IO_IS_OFF}")).unwrap();
        assert!(without_files.contains("[io] enabled = true"), "{without_files}");
        assert!(
            hint(ErrorKind::NotAllowed, "a: not among them").unwrap().contains("allowed_paths")
        );
        let of_a_file = hint(ErrorKind::TooLarge, "f: 11 MiB are too many (max 10 MiB)").unwrap();
        assert!(of_a_file.contains("--max-file-size"), "{of_a_file}");
        for encoding in [Encoding::Base64, Encoding::Hex] {
            let error = encoding.encode("?").unwrap_err();
            assert_eq!(hint(ErrorKind::Encoding, &format!("f: {error}")), None);
        }
        let error = Encoding::Ascii.encode("\u{e9}").unwrap_err();
        for message in [format!("f: {error}"), "f: not UTF-8".to_owned()] {
            assert!(hint(ErrorKind::Encoding, &message).unwrap().contains("base64"), "{message}");
        }
    }
}
