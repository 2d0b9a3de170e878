//! How a run or a command ended.

use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{MAX_MESSAGE_BYTES, cut_encoded};
use sandbox_protocol::message::ScriptError;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::failure::Failure;

/// How a run ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The script returned, or the command ended with code 0.
    Ok {
        /// The script's result, as JSON; of a command null.
        result: Box<RawValue>,
    },
    /// An uncaught error, a syntax error, or a result that is not JSON.
    ScriptError(ScriptError),
    /// An uncaught limit error, or a kill by a limit.
    Limit(ScriptError),
    /// The deadline, whoever enforced it.
    Timeout(ScriptError),
    /// The caller ended it.
    Cancelled {
        /// Why.
        cause: CancelCause,
    },
    /// The container was killed, and not by us.
    Killed {
        /// By whom.
        by: KilledBy,
    },
    /// The agent broke the protocol or vanished.
    AgentLost {
        /// What is known.
        detail: String,
    },
    /// The command ended otherwise than with code 0.
    Exit(Exit),
    /// Our side failed while it ran: nobody can say how it ended.
    Error {
        /// What failed.
        failure: Failure,
        /// The exit code of a command that ends by it, which its kind alone does not tell.
        exit_code: u8,
    },
}

/// Who killed a container that we did not kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KilledBy {
    /// Somebody outside.
    Outside,
    /// Somebody outside, or the kernel because memory had run out: the engine does not tell.
    OutsideOrMemory,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// With this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

/// Why a caller ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CancelCause {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP.
    Hangup,
    /// Another reason of the caller's.
    Caller,
}

/// The word for an [`Outcome`], or for a [`Failure`] before there was a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// See [`Outcome::Ok`].
    Ok,
    /// See [`Outcome::ScriptError`].
    ScriptError,
    /// See [`Outcome::Exit`].
    Exit,
    /// See [`Outcome::Limit`].
    Limit,
    /// See [`Outcome::Timeout`].
    Timeout,
    /// See [`Outcome::Cancelled`].
    Cancelled,
    /// See [`Outcome::Killed`].
    Killed,
    /// See [`Outcome::AgentLost`].
    AgentLost,
    /// See [`Outcome::Error`].
    Error,
}

impl Status {
    /// The word in the result document.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ScriptError => "script_error",
            Self::Exit => "exit",
            Self::Limit => "limit",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Killed => "killed",
            Self::AgentLost => "agent_lost",
            Self::Error => "error",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl Outcome {
    /// The same, where it was found afterwards that a limit was passed: what ended by itself ended
    /// beyond its limit.
    pub fn beyond(self, limit: Option<ScriptError>) -> Self {
        match (self, limit) {
            (Self::Ok { .. } | Self::Exit(_) | Self::ScriptError(_), Some(limit)) => {
                Self::Limit(limit)
            }
            (outcome, _) => outcome,
        }
    }

    /// The word for it.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::Ok { .. } => Status::Ok,
            Self::ScriptError(_) => Status::ScriptError,
            Self::Limit(_) => Status::Limit,
            Self::Timeout(_) => Status::Timeout,
            Self::Cancelled { .. } => Status::Cancelled,
            Self::Killed { .. } => Status::Killed,
            Self::AgentLost { .. } => Status::AgentLost,
            Self::Exit(_) => Status::Exit,
            Self::Error { .. } => Status::Error,
        }
    }

    /// The exit code of a command that ends by it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Ok { .. } => 0,
            Self::ScriptError(_) => 1,
            Self::Limit(_) => 120,
            Self::AgentLost { .. } => 122,
            Self::Timeout(_) => 124,
            Self::Cancelled { cause: CancelCause::Terminate } => 143,
            Self::Cancelled { cause: CancelCause::Hangup } => 129,
            Self::Cancelled { cause: CancelCause::Interrupt | CancelCause::Caller } => 130,
            Self::Killed { .. } => 137,
            Self::Exit(Exit::Code(code)) => *code,
            Self::Exit(Exit::Signal(signal)) => 128_u8.saturating_add(*signal),
            Self::Error { exit_code, .. } => *exit_code,
        }
    }

    /// What went wrong; `None` where nothing did, and for a command's own exit code.
    #[must_use]
    pub fn failure(&self) -> Option<ScriptError> {
        match self {
            Self::Ok { .. } | Self::Exit(_) => None,
            Self::ScriptError(error) | Self::Limit(error) | Self::Timeout(error) => {
                Some(error.clone())
            }
            Self::Cancelled { cause } => {
                let by = match cause {
                    CancelCause::Interrupt => "interrupted",
                    CancelCause::Terminate => "terminated",
                    CancelCause::Hangup => "hung up",
                    CancelCause::Caller => "cancelled by the caller",
                };
                Some(failure(ErrorKind::Cancelled, by))
            }
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

/// A failure of this kind, its message cut to what the wire carries.
#[must_use]
pub fn failure(kind: ErrorKind, message: impl AsRef<str>) -> ScriptError {
    let message = cut_encoded(message.as_ref(), MAX_MESSAGE_BYTES).to_owned();
    ScriptError { kind, message, line: None, traceback: None }
}
