//! Drives a script or a command from its request to its result.
//!
//! A separate task does it, so that the deadline applies even if the caller is blocked or gone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{
    ExecutionResult, FilesTouched, KernelEvents, Limits, Network, NoteEvidence, Outcome,
    RefusedHost, ResultBody, Sign, Usage, millis,
};
use sandbox_session::InFlightPermit;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::audit::{self, Event};
use crate::error::Error;
use crate::execution::judge::AgentReport;
use crate::execution::supervisor::{CancelHandle, Supervisor};
use crate::failpoint::{Point, failpoint};
use crate::io_dir::write_monitor::WriteMonitor;
use crate::sandbox::idle::Active;
use crate::sandbox::{Inner, KernelBaseline};

/// What a script and a command do differently.
pub(crate) trait Execute: Send + 'static {
    /// Its name in the audit.
    const OPERATION: &'static str;
    /// Its name in messages.
    const WHAT: &'static str;
    /// How long the agent may take to answer after it was to end something, before the container is
    /// killed.
    const GRACE: Duration;
    /// The agent's answer.
    type Reply: Send;

    /// How long after its deadline, or after a cancel, it may go on before the agent kills it.
    fn stop_timeout(limits: &Limits) -> Duration;

    /// The program, for the audit.
    fn program(&self) -> Option<&[u8]>;

    /// Sends the request and waits for its answer.
    fn ask(&mut self, call: Call<'_>) -> impl Future<Output = Requested<Self::Reply>> + Send;

    /// Takes over what the agent reported, as far as it can be true. An outcome that is already
    /// known is passed on.
    fn settle(
        &mut self,
        answer: Result<Option<Self::Reply>, Outcome>,
        inner: &Inner,
        limits: &Limits,
        since: &KernelBaseline,
        usage: &mut Usage,
    ) -> impl Future<Output = Result<Option<AgentReport>, Outcome>> + Send;

    /// What the agent saw that stood in its way.
    fn signs(&self) -> &[Sign];

    /// The changed files that the agent announced, in their final state.
    fn files_touched(&mut self, inner: &Arc<Inner>) -> impl Future<Output = FilesTouched> + Send;

    /// Its part of the result, without what its reader has of the output.
    fn body(&mut self) -> ResultBody;
}

/// The answer; `None` if there will be none. The inner error means that how it ended is unknown,
/// the outer one that nothing has run.
pub(crate) type Requested<T> = Result<Result<Option<T>, Error>, Error>;

/// What a request is sent with.
pub(crate) struct Call<'a> {
    pub inner: &'a Arc<Inner>,
    pub limits: &'a Limits,
    pub supervisor: &'a mut Supervisor,
    pub permit: InFlightPermit,
    pub monitor: Option<&'a WriteMonitor>,
    /// When it began.
    pub started: Instant,
    /// When the container is killed if there is no answer, by the sandbox's clock.
    pub kill_at: Instant,
}

/// The task that drives an execution.
pub(super) type Driver = JoinHandle<Result<ExecutionResult, Error>>;

/// An execution that is driven.
pub(super) struct Driven {
    pub id: String,
    pub task: Driver,
    pub refused: RefusedHosts,
}

/// The hosts that a script or a command is refused, as it happens: those of
/// [`Network::refused`].
pub(super) struct RefusedHosts {
    network: Option<watch::Receiver<Network>>,
    /// How many have been returned.
    seen: usize,
}

impl RefusedHosts {
    /// Waits for the next one; forever after the last one. Cancel-safe.
    pub(super) async fn next(&mut self) -> RefusedHost {
        let seen = self.seen;
        if let Some(network) = &mut self.network {
            let is_more = network.wait_for(|network| network.refused.len() > seen).await.is_ok();
            if is_more && let Some(host) = self.seen_next() {
                return host;
            }
        }
        std::future::pending().await
    }

    /// The next one that is there already.
    pub(super) fn seen_next(&mut self) -> Option<RefusedHost> {
        let host = self.network.as_ref()?.borrow().refused.get(self.seen)?.clone();
        self.seen += 1;
        Some(host)
    }
}

/// Drives a script or a command.
pub(crate) struct ExecutionDriver<E> {
    execution: E,
    id: String,
    /// The sandbox's limits, with a time limit of its own.
    limits: Limits,
    inner: Arc<Inner>,
    supervisor: Supervisor,
    network: Option<Arc<watch::Sender<Network>>>,
    _active: Active,
}

impl<E: Execute> ExecutionDriver<E> {
    pub fn spawn(
        execution: E,
        id: String,
        limits: Limits,
        inner: Arc<Inner>,
        permit: InFlightPermit,
        active: Active,
        cancel: &CancelHandle,
    ) -> Driven {
        let stop_timeout = E::stop_timeout(&limits);
        let supervisor = Supervisor::new(E::WHAT, inner.clone(), cancel, E::GRACE, stop_timeout);
        let network = inner.report_network();
        let watched = network.as_ref().map(|network| network.subscribe());
        let refused = RefusedHosts { network: watched, seen: 0 };
        let of = id.clone();
        let driver = Self { execution, id, limits, inner, supervisor, network, _active: active };
        Driven { id: of, task: crate::spawn(driver.drive(permit).in_current_span()), refused }
    }

    async fn drive(mut self, permit: InFlightPermit) -> Result<ExecutionResult, Error> {
        let started = Instant::now();
        let ended = self.execute(permit).await.map_err(|error| match error {
            Error::Refused { mut source } => {
                self.inner.redactions.text(&mut source.message);
                Error::Refused { source }
            }
            error => error,
        });
        let (outcome, bytes) = match &ended {
            Ok(result) => {
                self.inner.record_changes(&self.id, &result.files_touched);
                (result.outcome.status().as_str(), result.usage.written_bytes)
            }
            Err(_) => (audit::outcome(&ended), None),
        };
        tracing::info!(took = ?started.elapsed(), "running the {}", E::WHAT);
        let program = self.execution.program().map(|name| self.inner.redactions.bytes(name));
        self.inner.audit().record(&Event {
            program: program.as_deref(),
            outcome,
            bytes,
            duration: Some(started.elapsed()),
            ..Event::new(&self.id, E::OPERATION)
        });
        ended
    }

    async fn execute(&mut self, permit: InFlightPermit) -> Result<ExecutionResult, Error> {
        let monitor = self.inner.monitor_writes(self.limits).await;
        let since = self.inner.kernel_baseline().await;
        let (started, began) = (Instant::now(), self.inner.clock.now());
        let answer = match monitor.as_ref().and_then(WriteMonitor::refusal) {
            Some(refusal) => Err(Outcome::Limit(refusal)),
            None => {
                let call = Call {
                    inner: &self.inner,
                    limits: &self.limits,
                    supervisor: &mut self.supervisor,
                    permit,
                    monitor: monitor.as_ref(),
                    started,
                    kill_at: began + self.limits.timeout + E::stop_timeout(&self.limits) + E::GRACE,
                };
                self.execution.ask(call).await?.map_err(Outcome::from)
            }
        };
        let run_ms = millis(started.elapsed());
        let mut usage = Usage { wall_ms: run_ms, ..Usage::default() };
        failpoint(Point::Answered).await;
        let (inner, limits) = (&self.inner, &self.limits);
        let settled = self.execution.settle(answer, inner, limits, &since, &mut usage).await;
        let outcome = match settled {
            Ok(report) => {
                let judged = self.supervisor.judge(report, &self.limits, &mut usage).await;
                judged.unwrap_or_else(Outcome::from)
            }
            Err(outcome) => outcome,
        };
        let announced = self.execution.files_touched(&self.inner).await;
        let (files_touched, passed) = match monitor {
            Some(monitor) => {
                let (found, passed) = monitor.end().await;
                // A script announces all that it changes.
                let has_commands = self.inner.supports_exec;
                (if has_commands { found.with(announced) } else { announced }, passed)
            }
            None => (announced, None),
        };
        let inner = &self.inner;
        inner.settle_connections().await;
        let outcome = outcome.or_limit(passed);
        let network = self.network.as_ref().map(|network| network.borrow().clone());
        // What stood in its way, unless it ended well.
        let kernel = match outcome {
            Outcome::Ok { .. } => KernelEvents::default(),
            _ => inner.kernel_events(&since).await.unwrap_or_default(),
        };
        let disk = inner.describe_disk(&self.limits);
        let evidence = NoteEvidence {
            outcome: &outcome,
            limits: &self.limits,
            kernel,
            signs: self.execution.signs(),
            network: network.as_ref(),
            io_dir: inner.io_mount.as_ref().map(ToString::to_string),
            disk: disk.as_ref(),
        };
        let notes = evidence.notes();
        let mut result = ExecutionResult {
            id: self.id.clone(),
            outcome,
            files_touched,
            engine: inner.engine().kind,
            engine_notice: inner.engine().notice.clone(),
            io_dir: inner.io_dir().and_then(|dir| dir.host_path()).map(Path::to_owned),
            disk,
            changes: None,
            network,
            limits: self.limits,
            usage,
            notes,
            timing: Some(inner.timing(&self.id, run_ms)),
            confinement: inner.confinement.clone(),
            body: self.execution.body(),
        };
        inner.redactions.result(&mut result);
        Ok(result)
    }
}
