//! The list of error kinds, and the form of an error on the wire.

use serde::{Deserialize, Serialize};

crate::words! {
    /// The kind of an error. The same names are used in the agent's answers, in results, in the
    /// HTTP API and in MCP.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[non_exhaustive]
    pub enum ErrorKind {
        /// The path does not exist.
        NotFound = "not_found",
        /// The path exists already.
        AlreadyExists = "already_exists",
        /// A directory, where a file is required.
        IsDirectory = "is_directory",
        /// Not a directory, where one is required.
        NotADirectory = "not_a_directory",
        /// The directory is not empty.
        NotEmpty = "not_empty",
        /// The file's owner or mode forbids it.
        PermissionDenied = "permission_denied",
        /// The path leads out of the mounts, or has a `..` component.
        PathEscape = "path_escape",
        /// The path is empty, too long, or has a NUL byte.
        InvalidPath = "invalid_path",
        /// Outside `filesystem.allowed_paths`.
        NotAllowed = "not_allowed",
        /// A protected name.
        Protected = "protected",
        /// The mount or the open file is read-only.
        ReadOnly = "read_only",
        /// A symbolic link, which is never followed.
        Symlink = "symlink",
        /// A FIFO, socket or device.
        SpecialFile = "special_file",
        /// Over `filesystem.max_file_size`; nothing was changed.
        TooLarge = "too_large",
        /// Over `io.max_bytes`.
        WriteLimit = "write_limit",
        /// Over `limits.entries`.
        TooManyFiles = "too_many_files",
        /// Over `io.max_open_handles`.
        TooManyHandles = "too_many_handles",
        /// No space left on the device.
        DiskFull = "disk_full",
        /// Content that is not in the encoding.
        Encoding = "encoding",
        /// The memory limit of the VM or of the container.
        OutOfMemory = "out_of_memory",
        /// Over `limits.output_bytes`.
        OutputLimit = "output_limit",
        /// The script is longer than 256 KiB.
        SourceTooLarge = "source_too_large",
        /// The result is longer than 1 MiB of JSON.
        ResultTooLarge = "result_too_large",
        /// The script does not compile.
        Syntax = "syntax",
        /// An uncaught error of the script.
        Runtime = "runtime",
        /// The script returned a value that JSON cannot represent.
        ResultNotJson = "result_not_json",
        /// The command exists and cannot be executed.
        NotExecutable = "not_executable",
        /// The command does not exist.
        CommandNotFound = "command_not_found",
        /// The network allowlist forbids it.
        NetworkRefused = "network_refused",
        /// The deadline has passed.
        Timeout = "timeout",
        /// The caller cancelled it.
        Cancelled = "cancelled",
        /// The container was killed from outside.
        Killed = "killed",
        /// Too many requests at one time, or a run is in progress.
        Busy = "busy",
        /// The request is malformed.
        InvalidRequest = "invalid_request",
        /// Invalid use of the command line.
        Usage = "usage",
        /// Invalid configuration.
        Config = "config",
        /// A policy forbids it: a ceiling, or a refused user.
        Policy = "policy",
        /// The container engine failed or does not answer.
        Engine = "engine",
        /// The sandbox image is missing, stale or cannot be built.
        Image = "image",
        /// The changes of a run were not committed: something else changed the same paths.
        Conflict = "conflict",
        /// The agent broke the protocol or vanished.
        AgentLost = "agent_lost",
        /// An internal error.
        Internal = "internal",
    }
}

impl ErrorKind {
    /// Whether the same call may succeed when it is repeated. A `timeout` is retryable only for
    /// operations that read, which the caller knows.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Busy | Self::Engine | Self::AgentLost)
    }

    /// Whether this error means that a run hit a limit (status `limit`).
    pub const fn is_limit(self) -> bool {
        matches!(
            self,
            Self::OutOfMemory
                | Self::WriteLimit
                | Self::TooManyFiles
                | Self::TooManyHandles
                | Self::OutputLimit
                | Self::SourceTooLarge
                | Self::ResultTooLarge
        )
    }

    /// Whether a file error of this kind, if the script does not catch it, becomes the kind of the
    /// script's error: a rule of the sandbox was broken. OS errors become `runtime`.
    pub const fn is_sandbox_rule(self) -> bool {
        self.is_limit() || self.is_refusal() || matches!(self, Self::InvalidPath | Self::TooLarge)
    }

    /// Whether a rule of the sandbox refused access to a path.
    pub const fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::PathEscape
                | Self::NotAllowed
                | Self::Protected
                | Self::ReadOnly
                | Self::Symlink
                | Self::SpecialFile
        )
    }
}

/// JSON-RPC's error object: a request that was refused or that failed.
///
/// The result of a script is not an error of its request: it is data in the answer
/// ([`RunReply`](crate::message::RunReply)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(deny_unknown_fields)]
#[error("{message}")]
pub struct WireError {
    /// JSON-RPC's error code, derived from the kind in `data`.
    pub code: i32,
    /// One line for people, with guest paths only, at most
    /// [`MAX_MESSAGE_BYTES`](crate::limits::MAX_MESSAGE_BYTES) encoded.
    pub message: String,
    /// The machine-readable part.
    pub data: WireErrorData,
}

/// The machine-readable part of a [`WireError`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireErrorData {
    /// The kind of the error.
    pub kind: ErrorKind,
}

impl WireError {
    /// An error of `kind`; a message that is too long is cut.
    pub fn new(kind: ErrorKind, message: impl AsRef<str>) -> Self {
        let code = match kind {
            ErrorKind::InvalidRequest => -32602,
            ErrorKind::Internal => -32603,
            _ => -32000,
        };
        let message =
            crate::limits::cut_encoded(message.as_ref(), crate::limits::MAX_MESSAGE_BYTES);
        Self { code, message: message.to_owned(), data: WireErrorData { kind } }
    }

    /// A request that is wrong in itself.
    pub fn invalid(message: impl AsRef<str>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// A request that may succeed later.
    pub fn busy(message: impl AsRef<str>) -> Self {
        Self::new(ErrorKind::Busy, message)
    }

    /// The kind of the error.
    pub const fn kind(&self) -> ErrorKind {
        self.data.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_its_own_word_on_the_wire() {
        for kind in ErrorKind::ALL {
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
            assert_eq!(ErrorKind::from_word(kind.as_str()), Some(kind));
        }
    }
}
