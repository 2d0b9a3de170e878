//! Supervision shared by scripts and commands, which end by the agent's answer, the deadline, a
//! cancel, a limit that the controller watches, or the loss of the agent.

use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{CancelCause, Limits, Outcome, Usage, millis};
use sandbox_engine::{EngineError, ExitEvidence};
use sandbox_protocol::WireError;
use sandbox_protocol::message::Cancel;
use sandbox_session::{CallError, Reply, SessionEnd};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::or_never;
use crate::error::Error;
use crate::execution::judge::{AgentReport, Evidence, KillReason};
use crate::io_dir::write_monitor::WriteMonitor;
use crate::sandbox::{EndCause, Inner};
use crate::step::Step;

/// How long the agent's output may take to end once its container has.
const AFTER_KILL: Duration = Duration::from_secs(1);

/// How long a container may continue after its agent's stdout has ended: a busy engine reports an exit seconds
/// after it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(9);

/// How long the engine is given to report what an execution used.
const USAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Cancels a script or a command from anywhere. It exists before what it cancels: what is not there
/// yet does not start any more.
#[derive(Debug, Clone, Default)]
pub struct CancelHandle(Arc<watch::Sender<Cancelled>>);

/// The cancel requests so far.
#[derive(Debug, Clone, Copy, Default)]
struct Cancelled {
    /// The cause of the first one.
    cause: Option<CancelCause>,
    /// There was more than one: do not wait for the agent.
    at_once: bool,
}

impl CancelHandle {
    /// A handle for something that is to be started.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels it: the processes of a command get SIGTERM, and are killed after the [stop
    /// timeout](Limits::stop_timeout). A second call does not wait: it kills the container at once.
    pub fn cancel(&self, cause: CancelCause) {
        self.0.send_modify(|cancelled| match cancelled.cause {
            None => cancelled.cause = Some(cause),
            Some(_) => cancelled.at_once = true,
        });
    }

    /// Why it was cancelled; `None` if it was not.
    pub fn cause(&self) -> Option<CancelCause> {
        self.0.borrow().cause
    }

    /// Waits until it is cancelled.
    pub async fn cancelled(&self) {
        let mut cancelled = self.0.subscribe();
        // The sender is ours.
        _ = cancelled.wait_for(|cancelled| cancelled.cause.is_some()).await;
    }
}

/// Supervises a script or a command, and collects the evidence of how it ended.
pub(crate) struct Supervisor {
    pub inner: Arc<Inner>,
    cancelled: watch::Receiver<Cancelled>,
    /// How long the agent may take to answer after it was to end it, before the container is killed.
    grace: Duration,
    /// How long it may go on after a cancel, before the agent kills it.
    stop_timeout: Duration,
    /// What the controller did and saw so far.
    evidence: Evidence,
}

impl Supervisor {
    pub fn new(
        what: &'static str,
        inner: Arc<Inner>,
        cancel: &CancelHandle,
        grace: Duration,
        stop_timeout: Duration,
    ) -> Self {
        let mut cancelled = cancel.0.subscribe();
        if cancel.cause().is_some() {
            // It came while this was started.
            cancelled.mark_changed();
        }
        let evidence = Evidence { what, ..Evidence::default() };
        Self { inner, cancelled, grace, stop_timeout, evidence }
    }

    /// Whether the agent was asked to end it early.
    pub const fn is_cancelled(&self) -> bool {
        self.evidence.cancel.is_some() || self.evidence.limit.is_some()
    }

    /// Sends the request. `None`: there will be no answer.
    ///
    /// # Errors
    ///
    /// If the request could not be sent: nothing has run.
    pub async fn begin<T>(
        &mut self,
        request: impl Future<Output = Result<T, CallError>>,
        kill_at: Instant,
    ) -> Result<Option<T>, Error> {
        if self.inner.check_mounts_before_use().await.is_err() {
            // The judge says so.
            return Ok(None);
        }
        tokio::select! {
            biased;
            begun = request => match begun {
                Ok(begun) => Ok(Some(begun)),
                Err(CallError::Over) => {
                    self.lost().await;
                    Ok(None)
                }
                Err(error) => Err(error.into()),
            },
            // An agent that does not answer requests accepts no more of them.
            Ok(()) = self.cancelled.changed() => {
                self.evidence.cancel = self.cancelled.borrow_and_update().cause;
                self.give_up(KillReason::Cancel).await;
                Ok(None)
            }
            () = self.inner.clock.sleep_until(kill_at) => {
                self.give_up(KillReason::Deadline).await;
                Ok(None)
            }
        }
    }

    /// Waits for the answer; `None` if there will be none. When this returns, the agent sends
    /// nothing more about this request. A limit that the `monitor` sees exceeded ends the request,
    /// and kills the sandbox if the agent did not end it; `check` returns an error for what an honest
    /// agent never answers.
    pub async fn answer<T>(
        &mut self,
        mut reply: Reply<T>,
        mut kill_at: Instant,
        monitor: Option<&WriteMonitor>,
        check: impl Fn(&Self, &Result<T, WireError>) -> Result<(), String>,
    ) -> Result<Option<Result<T, WireError>>, Error> {
        let mut passed = std::pin::pin!(or_never(monitor.map(WriteMonitor::passed)));
        let mut overrun = std::pin::pin!(or_never(monitor.map(WriteMonitor::overrun)));
        let mut is_overrun = false;
        let inner = self.inner.clone();
        let clock = &inner.clock;
        let mut looks = std::pin::pin!(inner.look_at_mounts());
        loop {
            tokio::select! {
                biased;
                answer = reply.wait() => return self.settle(answer, &check).await,
                Ok(()) = self.cancelled.changed() => {
                    let cancelled = *self.cancelled.borrow_and_update();
                    self.evidence.cancel = cancelled.cause;
                    if cancelled.at_once {
                        kill_at = clock.now();
                    } else {
                        kill_at = kill_at.min(clock.now() + self.stop_timeout + self.grace);
                        self.ask_to_cancel(Cancel { id: reply.answer.id, at_once: false });
                    }
                }
                limit = &mut passed, if self.evidence.limit.is_none() => {
                    self.evidence.limit = Some(limit);
                    kill_at = kill_at.min(clock.now() + self.grace);
                    self.ask_to_cancel(Cancel { id: reply.answer.id, at_once: true });
                }
                () = &mut overrun, if self.evidence.limit.is_some() && !is_overrun => {
                    is_overrun = true;
                    kill_at = clock.now();
                }
                () = clock.sleep_until(kill_at) => break,
                () = &mut looks => {}
            }
        }
        self.evidence.our_kill =
            Some(if self.is_cancelled() { KillReason::Cancel } else { KillReason::Deadline });
        self.drain_after_kill(&mut reply, &check).await
    }

    fn ask_to_cancel(&self, cancel: Cancel) {
        // In a separate task: an agent that does not read must not delay the kill.
        let (inner, grace) = (self.inner.clone(), self.grace);
        crate::spawn(async move {
            let call = inner.session.call(cancel);
            if !matches!(tokio::time::timeout(grace, call).await, Ok(Ok(_))) {
                tracing::debug!("the agent did not take the cancel");
            }
        });
    }

    /// Kills the container, unless it was killed: the awaited event will not happen. Whether it has
    /// ended already changes nothing about the reason.
    async fn give_up(&mut self, our_kill: KillReason) {
        let was_killed = self.evidence.our_kill.replace(our_kill).is_some();
        if !was_killed && let Err(error) = self.inner.kill().await {
            self.leave_unproven(&error);
        }
    }

    /// Records that the container may go on for a while. Its removal shows whether it does.
    fn leave_unproven(&mut self, error: &Error) {
        let why = error.full_message();
        tracing::warn!(why, "a container that was killed may not have ended");
        self.evidence.unproven.get_or_insert(why);
        // Its output would otherwise be waited for as long as it lives.
        self.inner.session.abandon();
    }

    /// The session has ended, so there will be no answer.
    async fn lost(&mut self) {
        if let Some(SessionEnd::Breach(detail)) = self.inner.session.end() {
            self.give_up(KillReason::Breach(detail)).await;
            return;
        }
        if self.evidence.our_kill.is_some() {
            return;
        }
        self.evidence.our_kill = match self.inner.end_cause() {
            Some(EndCause::Outlived(_)) => Some(KillReason::Lifetime),
            Some(EndCause::Unanswered(why)) => Some(KillReason::Breach((*why).to_owned())),
            Some(EndCause::OverLimit(limit)) => {
                self.evidence.limit = Some(limit.clone());
                return;
            }
            Some(EndCause::MountLost(_)) | None => return,
        };
    }

    /// The answer has arrived, or the session has ended without it.
    async fn settle<T>(
        &mut self,
        answer: Result<T, CallError>,
        check: impl Fn(&Self, &Result<T, WireError>) -> Result<(), String>,
    ) -> Result<Option<Result<T, WireError>>, Error> {
        let answer = match answer {
            Ok(answer) => Ok(answer),
            Err(CallError::Refused(error)) => Err(error),
            Err(CallError::Over) => {
                self.lost().await;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        match check(self, &answer) {
            Ok(()) => Ok(Some(answer)),
            Err(what) => {
                self.give_up(KillReason::Breach(what)).await;
                Ok(None)
            }
        }
    }

    /// Kills the container, and reads what the agent had already sent, which may include its
    /// answer. The reason of the kill is known: neither a slow death nor an engine that fails
    /// meanwhile is another one.
    async fn drain_after_kill<T>(
        &mut self,
        reply: &mut Reply<T>,
        check: impl Fn(&Self, &Result<T, WireError>) -> Result<(), String>,
    ) -> Result<Option<Result<T, WireError>>, Error> {
        let after = Step::Exit.time_limit();
        let inner = self.inner.clone();
        // A kill that takes all of its time may still be followed by the end of the output.
        let answer = tokio::time::timeout(after + AFTER_KILL, reply.wait());
        let (killed, answer) = tokio::join!(inner.kill(), answer);
        if let Err(error) = killed {
            self.leave_unproven(&error);
        }
        match answer {
            Ok(answer) => self.settle(answer, check).await,
            Err(_) => {
                let source = EngineError::TimedOut { after };
                self.leave_unproven(&Error::Engine { step: Step::Exit, source });
                Ok(None)
            }
        }
    }

    /// Determines how it ended, and its resource usage if only the engine can still report it.
    pub async fn judge(
        &mut self,
        answer: Option<AgentReport>,
        limits: &Limits,
        usage: &mut Usage,
    ) -> Result<Outcome, Error> {
        self.inner.check_mounts(Duration::ZERO).await;
        if let Some(lost) = self.inner.lost_mount()
            && !matches!(self.evidence.our_kill, Some(KillReason::Breach(_)))
        {
            self.evidence.our_kill = Some(KillReason::MountLost(lost.clone()));
        }
        let cancel =
            self.evidence.cancel.or(self.inner.is_closing().then_some(CancelCause::Deleted));
        let by_us = self.evidence.our_kill.is_some() || cancel.is_some();
        // The engine is asked only if its evidence decides.
        let exit = match answer {
            None if !by_us => self.exit().await?,
            _ => None,
        };
        if answer.is_none()
            && (by_us || exit.is_some())
            && self.inner.has_run_once()
            && let Some(used) = self.inner.usage(USAGE_TIMEOUT).await
        {
            usage.cpu_ms = Some(millis(used.cpu));
            usage.peak_memory_bytes = Some(used.peak_memory);
        }
        tracing::info!(
            answered = answer.is_some(),
            ?cancel,
            limit = ?self.evidence.limit,
            our_kill = ?self.evidence.our_kill,
            unproven = ?self.evidence.unproven,
            ?exit,
            "the evidence of the end"
        );
        let (limits, stderr) = (*limits, self.inner.session.stderr());
        let known = std::mem::take(&mut self.evidence);
        Ok(Evidence { answer, cancel, exit, limits, stderr, ..known }.judge())
    }

    /// The engine's evidence of the container's exit, after the agent ended without an answer.
    async fn exit(&mut self) -> Result<Option<ExitEvidence>, Error> {
        match tokio::time::timeout(EXIT_TIMEOUT, self.inner.exited()).await {
            // On a machine that is so busy that the step's own limit has passed too, that is found first.
            Ok(Err(Error::Engine { step: Step::Exit, source: EngineError::TimedOut { .. } }))
            | Err(_) => {
                let detail = format!(
                    "the agent closed its stdout, and its container did not end within {} s",
                    EXIT_TIMEOUT.as_secs()
                );
                self.give_up(KillReason::Breach(detail)).await;
                Ok(None)
            }
            Ok(exit) => exit,
        }
    }
}
