//! How a run ended: from evidence to [`Outcome`]. Pure.
//!
//! A result is never better than its evidence. The agent's answer stands where there is one; else
//! what we did (cancel, kill at the deadline); else what the engine saw (out of memory, a kill
//! from outside); else the agent is lost. A missing exit code is never a success.

use std::sync::Arc;
use std::time::Duration;

use sandbox_protocol::limits::{MAX_MESSAGE_BYTES, cut_encoded};
use sandbox_protocol::message::{ExecEnd, ExecStop, RunEnd, ScriptError};
use sandbox_protocol::{ErrorKind, WireError};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::Error;
use crate::mounts::MountLost;

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
        by: Killer,
    },
    /// The agent broke the protocol or vanished.
    AgentLost {
        /// What is known.
        detail: String,
    },
    /// The command ended otherwise than with code 0.
    Exit(Exit),
    /// Our side failed while it ran: nobody can say how it ended.
    Error(Arc<Error>),
}

/// Who killed a container that we did not kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Killer {
    /// Somebody outside.
    Outside,
    /// Somebody outside, or the kernel because memory had run out: the engine does not tell.
    OutsideOrMemory,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

/// Why a caller ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
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

/// The word for an [`Outcome`], or for an [`Error`] before there was a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
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
    pub(crate) fn beyond(self, limit: Option<ScriptError>) -> Self {
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
            Self::Error(_) => Status::Error,
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
            Self::Error(error) => error.exit_code(),
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
                    Killer::Outside => "the container was killed from outside",
                    Killer::OutsideOrMemory => {
                        "the container was killed: from outside, or because it ran out of memory, \
                         which this engine does not tell"
                    }
                };
                Some(failure(ErrorKind::Killed, by))
            }
            Self::AgentLost { detail } => Some(failure(ErrorKind::AgentLost, detail)),
            Self::Error(error) => Some(failure(error.kind(), error.full_message())),
        }
    }
}

/// The agent's word of how something ended.
#[derive(Debug)]
pub(crate) enum Word {
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
    NotBegun(WireError),
}

/// What is known when a run is over.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// What ended: `script` or `program`, for the message.
    pub what: &'static str,
    /// The agent's answer, where it gave one.
    pub answer: Option<Word>,
    /// The caller's cancel, where there was one before the end.
    pub cancel: Option<CancelCause>,
    /// The limit that we saw it pass.
    pub limit: Option<ScriptError>,
    /// Why we killed the container, where we did.
    pub our_kill: Option<OurKill>,
    /// What the engine saw of the container's end, where it ended and could be asked.
    pub exit: Option<ExitEvidence>,
    /// The time limit, for the message.
    pub timeout: Duration,
    /// The container's memory limit, for the message.
    pub memory: crate::ByteSize,
    /// The limit of a program's output, for the message.
    pub output_bytes: crate::ByteSize,
    /// The last lines that the agent wrote to stderr.
    pub stderr: String,
}

/// Why we killed a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OurKill {
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

/// What the engine saw of a container's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ExitEvidence {
    /// The exit code; `None` where the engine does not tell.
    pub code: Option<i64>,
    /// Whether the kernel killed something in it for want of memory.
    /// `None` where the engine does not tell.
    pub oom_killed: Option<bool>,
    /// Somebody else has removed it: nothing else is known.
    pub removed: bool,
}

/// What a container used in its whole life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContainerUsage {
    /// Processor time of all that ran in it.
    pub cpu: Duration,
    /// The most memory that its cgroup had at one time, in bytes.
    pub peak_memory: u64,
}

/// 128 + SIGKILL.
pub(crate) const KILLED: i64 = 137;
/// The signal that nobody can catch.
pub(crate) const SIGKILL: u8 = 9;
/// 128 + SIGSYS: a system call that the seccomp profile forbids.
const BAD_SYSTEM_CALL: i64 = 159;

impl Evidence {
    /// The truth, as far as it is known.
    pub(crate) fn judge(mut self) -> Outcome {
        match &self.our_kill {
            Some(OurKill::Breach(detail)) => {
                return Outcome::AgentLost { detail: with_stderr(detail, &self.stderr) };
            }
            // Whatever it says: it may have worked where nobody looks.
            Some(OurKill::MountLost(lost)) => return Outcome::Error(Arc::new(lost.clone().into())),
            _ => {}
        }
        if let Some(limit) = self.limit.take() {
            // Whatever it says: it is over its limit.
            return Outcome::Limit(limit);
        }
        match self.answer.take() {
            Some(Word::Script(end)) => return judge_script(end, self.cancel),
            Some(Word::Program { end, stopped, out_of_memory }) => {
                return self.judge_program(end, stopped, out_of_memory);
            }
            Some(Word::NotBegun(error)) => return judge_beginning(error),
            None => {}
        }
        if let Some(cause) = self.cancel {
            return Outcome::Cancelled { cause };
        }
        let oom =
            self.exit.is_some_and(|exit| exit.oom_killed == Some(true) && exit.code != Some(0));
        match self.our_kill {
            Some(OurKill::Deadline | OurKill::Lifetime) => {
                let limit = humantime::format_duration(self.timeout);
                return Outcome::Timeout(failure(
                    ErrorKind::Timeout,
                    format!("killed: the {} did not end within its {limit}", self.what),
                ));
            }
            Some(OurKill::Cancel | OurKill::Breach(_) | OurKill::MountLost(_)) | None => {}
        }
        if oom {
            return self.out_of_memory();
        }
        if self.exit.is_some_and(|exit| exit.removed) {
            return Outcome::Killed { by: Killer::Outside };
        }
        let detail = match self.exit.and_then(|exit| exit.code) {
            Some(KILLED) => {
                let told = self.exit.is_some_and(|exit| exit.oom_killed.is_some());
                let by = if told { Killer::Outside } else { Killer::OutsideOrMemory };
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
        | ErrorKind::Internal => Outcome::Error(Arc::new(Error::NotBegun { source })),
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

pub(crate) fn failure(kind: ErrorKind, message: impl AsRef<str>) -> ScriptError {
    let message = cut_encoded(message.as_ref(), MAX_MESSAGE_BYTES).to_owned();
    ScriptError { kind, message, line: None, traceback: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence() -> Evidence {
        Evidence {
            what: "script",
            answer: None,
            cancel: None,
            limit: None,
            our_kill: None,
            exit: None,
            timeout: Duration::from_secs(30),
            memory: crate::ByteSize::b(256 << 20),
            output_bytes: crate::ByteSize::b(1 << 30),
            stderr: String::new(),
        }
    }

    fn exit(code: i64, oom_killed: bool) -> Option<ExitEvidence> {
        let oom_killed = Some(oom_killed);
        Some(ExitEvidence { code: Some(code), oom_killed, ..ExitEvidence::default() })
    }

    fn failed(kind: ErrorKind) -> Option<Word> {
        Some(Word::Script(RunEnd::Failed(failure(kind, "script:1: x"))))
    }

    fn returned() -> Option<Word> {
        Some(Word::Script(RunEnd::Returned(RawValue::from_string("1".into()).unwrap())))
    }

    #[test]
    fn evidence_decides_the_status_and_the_exit_code() {
        let interrupt = Some(CancelCause::Interrupt);
        let terminate = Some(CancelCause::Terminate);
        let breach = Some(OurKill::Breach("an unknown id".into()));
        let table = [
            // The agent's answer stands, whatever else happened.
            (Evidence { answer: returned(), ..evidence() }, Status::Ok, 0),
            (
                Evidence {
                    answer: returned(),
                    exit: exit(137, true),
                    cancel: interrupt,
                    ..evidence()
                },
                Status::Ok,
                0,
            ),
            (Evidence { answer: failed(ErrorKind::Runtime), ..evidence() }, Status::ScriptError, 1),
            (Evidence { answer: failed(ErrorKind::Syntax), ..evidence() }, Status::ScriptError, 1),
            (
                Evidence { answer: failed(ErrorKind::ResultNotJson), ..evidence() },
                Status::ScriptError,
                1,
            ),
            (
                Evidence { answer: failed(ErrorKind::PathEscape), ..evidence() },
                Status::ScriptError,
                1,
            ),
            (
                Evidence { answer: failed(ErrorKind::Protected), ..evidence() },
                Status::ScriptError,
                1,
            ),
            (
                Evidence { answer: failed(ErrorKind::NotFound), ..evidence() },
                Status::AgentLost,
                122,
            ),
            (Evidence { answer: failed(ErrorKind::OutOfMemory), ..evidence() }, Status::Limit, 120),
            (Evidence { answer: failed(ErrorKind::WriteLimit), ..evidence() }, Status::Limit, 120),
            (Evidence { answer: failed(ErrorKind::Timeout), ..evidence() }, Status::Timeout, 124),
            (
                Evidence { answer: failed(ErrorKind::Cancelled), cancel: terminate, ..evidence() },
                Status::Cancelled,
                143,
            ),
            // It may have worked where nobody looks.
            (
                Evidence {
                    answer: returned(),
                    our_kill: Some(OurKill::MountLost(MountLost::made_up())),
                    cancel: interrupt,
                    ..evidence()
                },
                Status::Error,
                121,
            ),
            // It cannot claim what nobody did, nor a kind that no run ends by.
            (
                Evidence { answer: failed(ErrorKind::Cancelled), ..evidence() },
                Status::AgentLost,
                122,
            ),
            (Evidence { answer: failed(ErrorKind::Usage), ..evidence() }, Status::AgentLost, 122),
            // No answer: what we did.
            (
                Evidence { cancel: interrupt, our_kill: Some(OurKill::Cancel), ..evidence() },
                Status::Cancelled,
                130,
            ),
            (
                Evidence {
                    our_kill: Some(OurKill::Deadline),
                    exit: exit(137, false),
                    ..evidence()
                },
                Status::Timeout,
                124,
            ),
            (Evidence { our_kill: breach.clone(), ..evidence() }, Status::AgentLost, 122),
            (
                Evidence { our_kill: breach, cancel: interrupt, ..evidence() },
                Status::AgentLost,
                122,
            ),
            // No answer, not we: what the engine saw.
            (Evidence { exit: exit(137, true), ..evidence() }, Status::Limit, 120),
            (Evidence { exit: exit(137, false), ..evidence() }, Status::Killed, 137),
            (Evidence { exit: exit(159, false), ..evidence() }, Status::AgentLost, 122),
            // Without an answer, code 0 and no code at all are no success.
            (Evidence { exit: exit(0, false), ..evidence() }, Status::AgentLost, 122),
            (Evidence { exit: exit(0, true), ..evidence() }, Status::AgentLost, 122),
            (
                Evidence { exit: Some(ExitEvidence::default()), ..evidence() },
                Status::AgentLost,
                122,
            ),
            (
                Evidence {
                    exit: Some(ExitEvidence { removed: true, ..ExitEvidence::default() }),
                    ..evidence()
                },
                Status::Killed,
                137,
            ),
            (evidence(), Status::AgentLost, 122),
        ];
        for (row, (evidence, status, code)) in table.into_iter().enumerate() {
            let text = format!("row {row}: {evidence:?}");
            let outcome = evidence.judge();
            assert_eq!((outcome.status(), outcome.exit_code()), (status, code), "{text}");
            assert_eq!(outcome.failure().is_none(), status == Status::Ok, "{text}");
            let killed = outcome.failure().is_some_and(|it| it.kind == ErrorKind::Killed);
            assert_eq!(killed, status == Status::Killed, "{text}");
        }
    }

    #[test]
    fn a_kill_by_an_engine_that_tells_nothing_of_memory_is_blamed_on_nobody() {
        let told = |oom_killed| {
            let exit = ExitEvidence { code: Some(KILLED), oom_killed, ..ExitEvidence::default() };
            let outcome = Evidence { exit: Some(exit), ..evidence() }.judge();
            outcome.failure().unwrap().message
        };
        assert_eq!(told(Some(false)), "the container was killed from outside");
        assert!(told(None).contains("memory"), "{}", told(None));
    }

    #[test]
    fn a_lost_agent_leaves_its_last_words() {
        let outcome = Evidence { stderr: "panicked\n".into(), ..evidence() }.judge();
        let failure = outcome.failure().unwrap();
        assert_eq!(failure.message, "the agent ended without an answer; agent stderr: panicked");
    }

    #[test]
    fn a_commands_exit_is_the_exit_code() {
        assert_eq!(Outcome::Exit(Exit::Code(3)).exit_code(), 3);
        assert_eq!(Outcome::Exit(Exit::Signal(15)).exit_code(), 143);
    }
}
