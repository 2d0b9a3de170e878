//! How a run or a command ended.

use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{MAX_MESSAGE_BYTES, cut_encoded};
use sandbox_protocol::message::ScriptError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::failure::Failure;

/// How a run ended.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// The script returned, or the command ended with code 0.
    Ok {
        /// The script's result, as JSON; null for a command.
        result: Box<RawValue>,
    },
    /// An uncaught error, a syntax error, or a result that is not JSON.
    ScriptError(ScriptError),
    /// An uncaught limit error, or a kill because of a limit.
    Limit(ScriptError),
    /// The deadline, enforced by the agent or by the controller.
    Timeout(ScriptError),
    /// The caller cancelled it.
    Cancelled {
        /// The cause.
        cause: CancelCause,
    },
    /// The container was killed, but not by the controller.
    Killed {
        /// By whom.
        by: KilledBy,
    },
    /// The agent broke the protocol or disappeared.
    AgentLost {
        /// What is known.
        detail: String,
    },
    /// The command exited with a code other than 0, or was ended by a signal.
    Exit(Exit),
    /// The controller or the engine failed while it ran, so how it ended is unknown.
    Error {
        /// What failed.
        failure: Failure,
        /// The exit code of a process that ends with this failure. It cannot be derived from the
        /// failure's kind alone.
        exit_code: u8,
    },
}

/// Who killed a container that the controller did not kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KilledBy {
    /// Another process.
    Outside,
    /// Another process, or the kernel for lack of memory: the engine does not report which.
    OutsideOrMemory,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// With this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

/// Why a caller cancelled a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CancelCause {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP.
    Hangup,
    /// Its sandbox was deleted.
    Deleted,
    /// The service that ran it was stopped.
    Stopped,
    /// Another reason.
    Caller,
}

impl CancelCause {
    /// The message of what it cancelled.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupted",
            Self::Terminate => "terminated",
            Self::Hangup => "hung up",
            Self::Deleted => "the sandbox was deleted",
            Self::Stopped => "the server was stopped while it ran",
            Self::Caller => "cancelled by the caller",
        }
    }
}

sandbox_protocol::words! {
    /// The status of an [`Outcome`], or of a [`Failure`] before a run began.
    #[derive(JsonSchema)]
    pub enum Status {
        /// The script returned, or the command ended with code 0.
        Ok = "ok",
        /// An uncaught error, a syntax error, or a result that is not JSON.
        ScriptError = "script_error",
        /// The command exited with a code other than 0, or was ended by a signal.
        Exit = "exit",
        /// An uncaught limit error, or a kill because of a limit.
        Limit = "limit",
        /// The deadline has passed.
        Timeout = "timeout",
        /// The caller cancelled it.
        Cancelled = "cancelled",
        /// It was killed from outside.
        Killed = "killed",
        /// The agent in the sandbox broke the protocol or disappeared.
        AgentLost = "agent_lost",
        /// sandboxctl or its engine failed: nothing ran, or how it ended is unknown.
        Error = "error",
    }
}

impl Outcome {
    /// Applies a limit that was found afterwards to be exceeded: a run that ended by itself becomes
    /// [`Outcome::Limit`].
    pub fn or_limit(self, limit: Option<ScriptError>) -> Self {
        match (self, limit) {
            (Self::Ok { .. } | Self::Exit(_) | Self::ScriptError(_), Some(limit)) => {
                Self::Limit(limit)
            }
            (outcome, _) => outcome,
        }
    }

    /// Its status.
    pub const fn status(&self) -> Status {
        match self {
            Self::Ok { .. } => Status::Ok,
            Self::ScriptError(_) => Status::ScriptError,
            Self::Limit(_) => Status::Limit,
            Self::Timeout(_) => Status::Timeout,
            // No caller requested it.
            Self::Killed { .. } | Self::Cancelled { cause: CancelCause::Stopped } => Status::Killed,
            Self::Cancelled { .. } => Status::Cancelled,
            Self::AgentLost { .. } => Status::AgentLost,
            Self::Exit(_) => Status::Exit,
            Self::Error { .. } => Status::Error,
        }
    }

    /// The exit code of a process that ends with this outcome.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Ok { .. } => 0,
            Self::ScriptError(_) => 1,
            Self::Limit(_) => 120,
            Self::AgentLost { .. } => 122,
            Self::Timeout(_) => 124,
            Self::Cancelled { cause: CancelCause::Terminate } => 143,
            Self::Cancelled { cause: CancelCause::Hangup } => 129,
            Self::Killed { .. } | Self::Cancelled { cause: CancelCause::Stopped } => 137,
            Self::Cancelled { .. } => 130,
            Self::Exit(Exit::Code(code)) => *code,
            Self::Exit(Exit::Signal(signal)) => 128_u8.saturating_add(*signal),
            Self::Error { exit_code, .. } => *exit_code,
        }
    }

    /// The failure; `None` without one, and for a command's own exit code.
    pub fn failure(&self) -> Option<ScriptError> {
        match self {
            Self::Ok { .. } | Self::Exit(_) => None,
            Self::ScriptError(error) | Self::Limit(error) | Self::Timeout(error) => {
                Some(error.clone())
            }
            Self::Cancelled { cause: cause @ CancelCause::Stopped } => {
                Some(failure(ErrorKind::Killed, cause.message()))
            }
            Self::Cancelled { cause } => Some(failure(ErrorKind::Cancelled, cause.message())),
            Self::Killed { by } => {
                let by = match by {
                    KilledBy::Outside => "the container was killed from outside",
                    KilledBy::OutsideOrMemory => {
                        "the container was killed: from outside, or because it ran out of memory, \
                         which this engine does not tell"
                    }
                };
                Some(failure(ErrorKind::Killed, by))
            }
            Self::AgentLost { detail } => Some(failure(ErrorKind::AgentLost, detail)),
            Self::Error { failure: error, .. } => Some(failure(error.kind, &error.message)),
        }
    }
}

/// A failure of this kind, with its message cut to the maximum length of the wire format.
pub fn failure(kind: ErrorKind, message: impl AsRef<str>) -> ScriptError {
    let message = cut_encoded(message.as_ref(), MAX_MESSAGE_BYTES).to_owned();
    ScriptError::new(kind, message)
}
