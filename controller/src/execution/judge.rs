//! How a run ended: from evidence to [`Outcome`]. Pure.
//!
//! A result is never better than its evidence. The agent's answer stands where there is one; else
//! what we did (cancel, kill at the deadline); else what the engine saw (out of memory, a kill
//! from outside); else the agent is lost. A missing exit code is never a success.

use std::time::Duration;

use sandbox_api::{CancelCause, Exit, KilledBy, Outcome, failure};
use sandbox_engine::{ExitEvidence, KILLED};
use sandbox_protocol::message::{ExecEnd, ExecStop, RunEnd, ScriptError};
use sandbox_protocol::{ErrorKind, WireError};
use serde_json::value::RawValue;

use crate::error::Error;
use crate::mounts::MountLost;

/// The agent's word of how something ended.
#[derive(Debug)]
pub(crate) enum AgentReport {
    /// A script.
    Script(RunEnd),
    /// A program.
    Program {
        end: ExecEnd,
        /// Why the agent killed it, where it did.
        stopped: Option<ExecStop>,
        /// Memory ran out in the sandbox while it ran, by the engine's word.
        out_of_memory: bool,
    },
    /// A program that did not begin.
    ExecFailed(WireError),
}

/// What is known when a run is over.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// What ended: `script` or `program`, for the message.
    pub what: &'static str,
    /// The agent's answer, where it gave one.
    pub answer: Option<AgentReport>,
    /// The caller's cancel, where there was one before the end.
    pub cancel: Option<CancelCause>,
    /// The limit that we saw it pass.
    pub limit: Option<ScriptError>,
    /// Why we killed the container, where we did.
    pub our_kill: Option<KillReason>,
    /// What the engine saw of the container's end, where it ended and could be asked.
    pub exit: Option<ExitEvidence>,
    /// The time limit, for the message.
    pub timeout: Duration,
    /// The container's memory limit, for the message.
    pub memory: sandbox_api::ByteSize,
    /// The limit of a program's output, for the message.
    pub output_bytes: sandbox_api::ByteSize,
    /// The last lines that the agent wrote to stderr.
    pub stderr: String,
}

/// Why we killed a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KillReason {
    /// The run's deadline and its grace had passed.
    Deadline,
    /// The caller cancelled, and the agent did not end the run in time.
    Cancel,
    /// The agent broke the protocol.
    Breach(String),
    /// The sandbox's lifetime was over.
    Lifetime,
    /// Something was mounted below what the sandbox has.
    MountLost(MountLost),
}

/// The signal that nobody can catch.
pub(crate) const SIGKILL: u8 = 9;
/// 128 + SIGSYS: a system call that the seccomp profile forbids.
const BAD_SYSTEM_CALL: i64 = 159;

impl Evidence {
    /// The truth, as far as it is known.
    pub(crate) fn judge(mut self) -> Outcome {
        match &self.our_kill {
            Some(KillReason::Breach(detail)) => {
                return Outcome::AgentLost { detail: with_stderr(detail, &self.stderr) };
            }
            // Whatever it says: it may have worked where nobody looks.
            Some(KillReason::MountLost(lost)) => return Error::from(lost.clone()).into(),
            _ => {}
        }
        if let Some(limit) = self.limit.take() {
            // Whatever it says: it is over its limit.
            return Outcome::Limit(limit);
        }
        match self.answer.take() {
            Some(AgentReport::Script(end)) => return judge_script(end, self.cancel),
            Some(AgentReport::Program { end, stopped, out_of_memory }) => {
                return self.judge_program(end, stopped, out_of_memory);
            }
            Some(AgentReport::ExecFailed(error)) => return judge_beginning(error),
            None => {}
        }
        if let Some(cause) = self.cancel {
            return Outcome::Cancelled { cause };
        }
        let oom =
            self.exit.is_some_and(|exit| exit.oom_killed == Some(true) && exit.code != Some(0));
        match self.our_kill {
            Some(KillReason::Deadline | KillReason::Lifetime) => {
                let limit = humantime::format_duration(self.timeout);
                return Outcome::Timeout(failure(
                    ErrorKind::Timeout,
                    format!("killed: the {} did not end within its {limit}", self.what),
                ));
            }
            Some(KillReason::Cancel | KillReason::Breach(_) | KillReason::MountLost(_)) | None => {}
        }
        if oom {
            return self.out_of_memory();
        }
        if self.exit.is_some_and(|exit| exit.removed) {
            return Outcome::Killed { by: KilledBy::Outside };
        }
        let detail = match self.exit.and_then(|exit| exit.code) {
            Some(KILLED) => {
                let told = self.exit.is_some_and(|exit| exit.oom_killed.is_some());
                let by = if told { KilledBy::Outside } else { KilledBy::OutsideOrMemory };
                return Outcome::Killed { by };
            }
            Some(BAD_SYSTEM_CALL) => {
                "the agent was killed for a forbidden system call (exit code 159)".to_owned()
            }
            Some(code) => format!("the agent ended with exit code {code} without an answer"),
            None => "the agent ended without an answer".to_owned(),
        };
        Outcome::AgentLost { detail: with_stderr(&detail, &self.stderr) }
    }

    fn out_of_memory(&self) -> Outcome {
        let message = format!("killed: the sandbox used more than its {} of memory", self.memory);
        Outcome::Limit(failure(ErrorKind::OutOfMemory, message))
    }

    fn judge_program(
        &self,
        end: ExecEnd,
        stopped: Option<ExecStop>,
        out_of_memory: bool,
    ) -> Outcome {
        match (stopped, end) {
            (Some(ExecStop::Timeout), _) => {
                let limit = humantime::format_duration(self.timeout);
                let message = format!("killed: the {} did not end within its {limit}", self.what);
                Outcome::Timeout(failure(ErrorKind::Timeout, message))
            }
            (Some(ExecStop::OutputLimit), _) => {
                let message = format!("killed: its output was more than {}", self.output_bytes);
                Outcome::Limit(failure(ErrorKind::OutputLimit, message))
            }
            (Some(ExecStop::Cancelled), _) => match self.cancel {
                Some(cause) => Outcome::Cancelled { cause },
                None => Outcome::AgentLost {
                    detail: "the agent says that the program was cancelled, and nobody did"
                        .to_owned(),
                },
            },
            (None, ExecEnd::Exited(0)) => Outcome::Ok { result: RawValue::NULL.to_owned() },
            (None, ExecEnd::Exited(code)) => Outcome::Exit(Exit::Code(code)),
            (None, ExecEnd::Signaled(signal)) if out_of_memory && signal == SIGKILL => {
                self.out_of_memory()
            }
            (None, ExecEnd::Signaled(signal)) => Outcome::Exit(Exit::Signal(signal)),
        }
    }
}

/// Of a program that did not begin.
fn judge_beginning(source: WireError) -> Outcome {
    match source.kind() {
        // It was too large for the sandbox.
        ErrorKind::OutOfMemory => Outcome::Limit(failure(ErrorKind::OutOfMemory, &source.message)),
        ErrorKind::CommandNotFound
        | ErrorKind::NotExecutable
        | ErrorKind::NotFound
        | ErrorKind::NotADirectory
        | ErrorKind::PermissionDenied
        | ErrorKind::PathEscape
        | ErrorKind::InvalidPath
        | ErrorKind::InvalidRequest
        | ErrorKind::Busy
        | ErrorKind::Internal => Error::ExecFailed { source }.into(),
        kind => Outcome::AgentLost {
            detail: format!("the agent did not begin the program, for {kind}: {}", source.message),
        },
    }
}

fn judge_script(answer: RunEnd, cancel: Option<CancelCause>) -> Outcome {
    match answer {
        RunEnd::Returned(result) => Outcome::Ok { result },
        RunEnd::Failed(error) => match error.kind {
            ErrorKind::Timeout => Outcome::Timeout(error),
            ErrorKind::Cancelled => match cancel {
                Some(cause) => Outcome::Cancelled { cause },
                None => Outcome::AgentLost {
                    detail: "the agent says that the run was cancelled, and nobody did".to_owned(),
                },
            },
            kind if kind.is_limit() => Outcome::Limit(error),
            ErrorKind::Syntax | ErrorKind::Runtime | ErrorKind::ResultNotJson => {
                Outcome::ScriptError(error)
            }
            kind if kind.is_sandbox_rule() => Outcome::ScriptError(error),
            kind => Outcome::AgentLost {
                detail: format!("the agent ended the run as {kind}: {}", error.message),
            },
        },
    }
}

fn with_stderr(detail: &str, stderr: &str) -> String {
    match stderr.trim() {
        "" => detail.to_owned(),
        stderr => format!("{detail}; agent stderr: {stderr}"),
    }
}

#[cfg(test)]
mod tests;
