//! Derives the [`Outcome`] of a run from the evidence. Pure.
//!
//! An outcome is never better than its evidence. If the agent answered, its answer decides;
//! otherwise what the controller did (cancel, kill at the deadline); otherwise what the engine saw
//! (out of memory, a kill from outside); otherwise the agent is lost. A missing exit code is never
//! a success.

use sandbox_api::{CancelCause, Exit, KilledBy, Limits, Outcome, failure};
use sandbox_engine::{ExitEvidence, KILLED};
use sandbox_protocol::message::{ExecEnd, ExecStop, RunEnd, ScriptError};
use sandbox_protocol::{ErrorKind, WireError};
use serde_json::value::RawValue;

use crate::error::Error;
use crate::mounts::MountLost;

/// The agent's report of how a script or a command ended.
#[derive(Debug)]
pub(crate) enum AgentReport {
    /// A script.
    Script(RunEnd),
    /// A command.
    Program {
        end: ExecEnd,
        /// Why the agent killed it, if it did.
        stopped: Option<ExecStop>,
        /// According to the engine, memory ran out in the sandbox while it ran.
        out_of_memory: bool,
    },
    /// A command that failed to start.
    ExecFailed(WireError),
}

/// The evidence at the end of a run.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// What ended, for the message: `script` or `program`.
    pub what: &'static str,
    /// The agent's answer, if there was one.
    pub answer: Option<AgentReport>,
    /// The caller's cancel, if there was one before the end.
    pub cancel: Option<CancelCause>,
    /// The limit that the controller saw it exceed.
    pub limit: Option<ScriptError>,
    /// Why the controller killed the container, if it did.
    pub our_kill: Option<KillReason>,
    /// Why it is unknown whether that kill has ended the container.
    pub unproven: Option<String>,
    /// The engine's evidence of the container's exit, if it exited and the engine could be asked.
    pub exit: Option<ExitEvidence>,
    /// The limits, for the messages.
    pub limits: Limits,
    /// The last lines that the agent wrote to stderr.
    pub stderr: String,
}

/// Why the controller killed a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KillReason {
    /// The deadline and its grace period had passed.
    Deadline,
    /// The caller cancelled, and the agent did not end the run in time.
    Cancel,
    /// The agent broke the protocol, or worked on a file operation for longer than it may.
    Breach(String),
    /// The sandbox's lifetime was over.
    Lifetime,
    /// A mount appeared below one of the sandbox's mounts.
    MountLost(MountLost),
}

/// The signal that cannot be caught.
pub(crate) const SIGKILL: u8 = 9;
/// 128 + SIGSYS: a system call that the seccomp profile denies.
const BAD_SYSTEM_CALL: i64 = 159;

impl Evidence {
    /// The outcome, as far as the evidence proves it.
    pub(crate) fn judge(mut self) -> Outcome {
        match &self.our_kill {
            Some(KillReason::Breach(detail)) => {
                return Outcome::AgentLost { detail: with_stderr(detail, &self.stderr) };
            }
            // The agent's report does not count: it may have worked on unchecked files.
            Some(KillReason::MountLost(lost)) => return Error::from(lost.clone()).into(),
            _ => {}
        }
        if let Some(limit) = self.limit.take() {
            // The agent's report does not count: the limit was exceeded.
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
        let oom = self.exit.is_some_and(|exit| {
            exit.over_memory || exit.oom_killed == Some(true) && exit.code != Some(0)
        });
        if let Some(KillReason::Deadline | KillReason::Lifetime) = self.our_kill {
            return self.timed_out(self.unproven.as_deref());
        }
        if oom {
            return self.out_of_memory();
        }
        if self.exit.is_some_and(|exit| exit.removed) {
            return Outcome::Killed { by: KilledBy::Outside };
        }
        let detail = match self.exit.and_then(|exit| exit.code) {
            Some(KILLED) => {
                let is_known = self.exit.is_some_and(|exit| exit.oom_killed.is_some());
                let by = if is_known { KilledBy::Outside } else { KilledBy::OutsideOrMemory };
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

    /// `unproven` is why it may go on.
    fn timed_out(&self, unproven: Option<&str>) -> Outcome {
        let limit = humantime::format_duration(self.limits.timeout);
        let text = format!("the {} did not end within its {limit}", self.what);
        let message = match unproven {
            None => format!("killed: {text}"),
            Some(why) => format!("{text}; its container may not have ended yet: {why}"),
        };
        Outcome::Timeout(failure(ErrorKind::Timeout, message))
    }

    fn out_of_memory(&self) -> Outcome {
        let message =
            format!("killed: the sandbox used more than its {} of memory", self.limits.memory);
        Outcome::Limit(failure(ErrorKind::OutOfMemory, message))
    }

    fn judge_program(
        &self,
        end: ExecEnd,
        stopped: Option<ExecStop>,
        out_of_memory: bool,
    ) -> Outcome {
        match (stopped, end) {
            (Some(ExecStop::Timeout), _) => self.timed_out(None),
            (Some(ExecStop::OutputLimit), _) => {
                let most = self.limits.output_bytes;
                let message = format!("killed: its output was more than {most}");
                Outcome::Limit(failure(ErrorKind::OutputLimit, message))
            }
            (Some(ExecStop::Cancelled), _) => cancelled(self.cancel, "program"),
            (None | Some(ExecStop::EvasionOfAnother), end) => match end {
                ExecEnd::Exited(0) => Outcome::Ok { result: RawValue::NULL.to_owned() },
                ExecEnd::Exited(code) => Outcome::Exit(Exit::Code(code)),
                ExecEnd::Signaled(SIGKILL) if out_of_memory => self.out_of_memory(),
                ExecEnd::Signaled(signal) => Outcome::Exit(Exit::Signal(signal)),
            },
        }
    }
}

/// Whether an honest agent answers so if a command did not start.
pub(super) const fn never_ran(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::OutOfMemory
            | ErrorKind::CommandNotFound
            | ErrorKind::NotExecutable
            | ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::PermissionDenied
            | ErrorKind::PathEscape
            | ErrorKind::InvalidPath
            | ErrorKind::InvalidRequest
            | ErrorKind::Busy
            | ErrorKind::Internal
    )
}

/// The outcome of a command that failed to start.
fn judge_beginning(source: WireError) -> Outcome {
    match source.kind() {
        // The command was too large for the sandbox's memory.
        ErrorKind::OutOfMemory => Outcome::Limit(failure(ErrorKind::OutOfMemory, &source.message)),
        kind if never_ran(kind) => Error::ExecFailed { source }.into(),
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
            ErrorKind::Cancelled => cancelled(cancel, "run"),
            kind if kind.is_limit() => Outcome::Limit(error),
            ErrorKind::Syntax | ErrorKind::Runtime | ErrorKind::ResultNotJson => {
                Outcome::ScriptError(error)
            }
            kind if kind.is_sandbox_rule() => Outcome::ScriptError(error),
            // A tool that was not given, or that does not exist.
            ErrorKind::Policy | ErrorKind::NotFound => Outcome::ScriptError(error),
            kind => Outcome::AgentLost {
                detail: format!("the agent ended the run as {kind}: {}", error.message),
            },
        },
    }
}

/// The outcome of what the agent reports as cancelled. Without a cancel request the report is false.
fn cancelled(cancel: Option<CancelCause>, what: &str) -> Outcome {
    match cancel {
        Some(cause) => Outcome::Cancelled { cause },
        None => Outcome::AgentLost {
            detail: format!("the agent reports a cancelled {what} without a cancel request"),
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
