//! Drives a command from its request to its result.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{
    ExecResult, ExecutionReport, FilesTouched, Limits, Outcome, TouchedSource, Usage, millis,
};
use sandbox_engine::OomBaseline;
use sandbox_protocol::WireError;
use sandbox_protocol::message::{Exec, ExecEnd, ExecReply, ExecStop};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::stdin::Source;
use crate::audit::{self, Event};
use crate::error::Error;
use crate::execution::judge::{AgentReport, SIGKILL};
use crate::execution::supervisor::{Begun, CancelHandle, Supervisor};
use crate::io_dir::write_monitor::WriteMonitor;
use crate::sandbox::Inner;
use crate::sandbox::idle::Active;
use crate::session::{Console, ConsoleStreams, Flow, InFlightPermit, Incoming};

/// The name of a command in the audit.
pub(super) const OPERATION: &str = "exec";

/// How long after its deadline, or after a cancel, the agent may take to answer before the
/// container is killed. The agent gives the command's processes two seconds to exit.
const GRACE: Duration = Duration::from_secs(3);
/// How long after its deadline a command's unread output is drained.
const UNWANTED_AFTER: Duration = Duration::from_millis(500);
/// How much unread output is drained: the maximum that a pipe holds, and what may precede it.
const UNWANTED_BYTES: u64 = (1 << 20) + (64 << 10);
/// How much earlier than the controller the agent's clock may reach a deadline.
const CLOCK_SKEW: Duration = Duration::from_millis(100);

/// Drives a command from its request to its result.
pub(super) struct ExecutionDriver {
    id: String,
    program: Vec<u8>,
    /// The sandbox's limits, with the command's own time limit.
    limits: Limits,
    inner: Arc<Inner>,
    ending: Supervisor,
    _active: Active,
}

/// The request, and the receiver of its output.
struct Asked<R> {
    permit: InFlightPermit,
    request: R,
    input: Option<Source>,
    begun: oneshot::Sender<[Incoming; 2]>,
    started: Instant,
}

/// How a command ended according to the agent.
type Answer = Result<ExecReply, WireError>;

impl ExecutionDriver {
    pub fn new(
        id: String,
        program: Vec<u8>,
        limits: Limits,
        inner: Arc<Inner>,
        cancel: &CancelHandle,
        active: Active,
    ) -> Self {
        let ending = Supervisor::new("program", inner.clone(), cancel, GRACE);
        Self { id, program, limits, inner, ending, _active: active }
    }

    /// Returns the result without the output, which belongs to its reader: `begun` receives both
    /// streams.
    pub async fn conduct(
        mut self,
        permit: InFlightPermit,
        request: impl FnOnce(ConsoleStreams) -> Exec,
        input: Option<Source>,
        begun: oneshot::Sender<[Incoming; 2]>,
    ) -> Result<ExecResult, Error> {
        let started = Instant::now();
        let ended = self.conduct_unrecorded(permit, request, input, begun).await;
        let outcome = match &ended {
            Ok(result) => {
                self.inner.record_changes(&self.id, &result.files_touched);
                result.outcome.status().as_str()
            }
            Err(_) => audit::outcome(&ended),
        };
        self.inner.audit().record(&Event {
            program: Some(&self.program),
            outcome,
            duration: Some(started.elapsed()),
            ..Event::new(&self.id, OPERATION)
        });
        ended
    }

    async fn conduct_unrecorded(
        &mut self,
        permit: InFlightPermit,
        request: impl FnOnce(ConsoleStreams) -> Exec,
        input: Option<Source>,
        begun: oneshot::Sender<[Incoming; 2]>,
    ) -> Result<ExecResult, Error> {
        let monitor = self.inner.monitor_writes(self.limits).await;
        let before = self.inner.oom_baseline();
        let started = Instant::now();
        let refusal = monitor.as_ref().and_then(WriteMonitor::refusal);
        let answer = match &refusal {
            Some(_) => Ok(None),
            None => {
                let asked = Asked { permit, request, input, begun, started };
                self.ask(asked, monitor.as_ref()).await?
            }
        };
        let wall = started.elapsed();
        let mut usage = Usage { wall_ms: millis(wall), ..Usage::default() };
        let end = match &answer {
            Ok(Some(Ok(reply))) => Some(reply.end),
            _ => None,
        };
        let outcome = match (refusal, answer) {
            (Some(refusal), _) => Ok(Outcome::Limit(refusal)),
            (None, Ok(answer)) => {
                let word = match answer {
                    Some(answer) => Some(self.word(answer, before, &mut usage).await),
                    None => None,
                };
                self.ending.judge(word, &self.limits, &mut usage).await
            }
            (None, Err(error)) => Err(error),
        };
        let outcome = outcome.unwrap_or_else(Outcome::from);
        let (files_touched, passed) = match monitor {
            Some(monitor) => monitor.end().await,
            None => (FilesTouched { source: TouchedSource::Scan, ..FilesTouched::default() }, None),
        };
        let (exit_code, signal) = match end {
            Some(ExecEnd::Exited(code)) => (Some(code.into()), None),
            Some(ExecEnd::Signaled(signal)) => (None, Some(signal.into())),
            None => (None, None),
        };
        let inner = &self.inner;
        let execution = ExecutionReport {
            id: self.id.clone(),
            outcome: outcome.beyond(passed),
            files_touched,
            engine: inner.engine().kind,
            engine_notice: inner.engine().notice.clone(),
            io_dir: inner.io_dir().and_then(|dir| dir.host_path()).map(Path::to_owned),
            limits: self.limits,
            usage,
            confinement: inner.confinement.clone(),
        };
        Ok(ExecResult {
            execution,
            exit_code,
            signal,
            stdout: Vec::new(),
            stderr: Vec::new(),
            stdout_truncated: false,
            stderr_truncated: false,
        })
    }

    /// Sends the request and waits for its answer. An error means that nothing has run.
    async fn ask(
        &mut self,
        asked: Asked<impl FnOnce(ConsoleStreams) -> Exec>,
        monitor: Option<&WriteMonitor>,
    ) -> Result<Result<Option<Answer>, Error>, Error> {
        let Asked { permit, request, input, begun, started } = asked;
        let (inner, limits) = (self.inner.clone(), self.limits);
        let deadline = started + limits.timeout;
        let kill_at = deadline + GRACE;
        let most = limits.output_bytes.as_u64();
        let asked = inner.session().converse(permit, input.is_some(), most, request);
        let (reply, console) = match self.ending.begin(asked, kill_at).await? {
            Begun::UnderWay(asked) => asked,
            Begun::Lost(lost) => return Ok(lost.map(|()| None)),
        };
        let Console { stdin, stdout, stderr } = console;
        // Ends with this call: a command that has ended reads nothing.
        let _input =
            stdin.zip(input).map(|(stdin, input)| AbortOnDrop(tokio::spawn(input.send(stdin))));
        let flows = [&stdout, &stderr].map(|stream| (stream.number(), stream.flow().clone()));
        // The receiver may be gone.
        _ = begun.send([stdout, stderr]);
        let check = |ending: &Supervisor, answer: &Answer| {
            let flows = flows.each_ref().map(|(_, flow)| &**flow);
            check(
                answer,
                flows,
                &limits,
                started.elapsed(),
                ending.is_cancelled() || inner.is_closing(),
            )
        };
        let unwanted = async {
            tokio::time::sleep_until(deadline + UNWANTED_AFTER).await;
            for (number, _) in &flows {
                inner.session().advance(*number, UNWANTED_BYTES).await;
            }
            std::future::pending().await
        };
        Ok(tokio::select! {
            biased;
            answer = self.ending.answer(reply, kill_at, monitor, check) => answer,
            () = unwanted => unreachable!("it never ends"),
        })
    }

    /// The agent's report, as far as it can be true.
    async fn word(&self, answer: Answer, before: OomBaseline, usage: &mut Usage) -> AgentReport {
        match answer {
            Ok(ExecReply { end, stopped, cpu_ms, .. }) => {
                usage.cpu_ms = Some(cpu_ms).filter(|&ms| ms <= millis(self.limits.most_cpu()));
                // Killed, but not by the agent: only the engine can know why.
                let out_of_memory = stopped.is_none()
                    && end == ExecEnd::Signaled(SIGKILL)
                    && self.inner.ran_out_of_memory(before).await;
                AgentReport::Program { end, stopped, out_of_memory }
            }
            Err(error) => AgentReport::ExecFailed(error),
        }
    }
}

/// Names what an honest agent would not send in an answer.
fn check(
    answer: &Answer,
    [stdout, stderr]: [&Flow; 2],
    limits: &Limits,
    elapsed: Duration,
    is_cancelled: bool,
) -> Result<(), String> {
    let refuse = |what: &str| Err(what.to_owned());
    let reply = match answer {
        Ok(reply) => reply,
        Err(error) if error.kind() == sandbox_protocol::ErrorKind::Internal => return Ok(()),
        Err(_) if stdout.bytes() + stderr.bytes() > 0 => {
            return refuse("output of a program that did not begin");
        }
        Err(_) => return Ok(()),
    };
    if !(stdout.has_ended() && stderr.has_ended()) {
        return refuse("an answer before the end of a program's output");
    }
    if (stdout.bytes(), stderr.bytes()) != (reply.stdout_bytes, reply.stderr_bytes) {
        return refuse("a program's output of another length");
    }
    // A stopped command need not have been killed: if it has ended and nobody reads its last
    // output, `stopped` describes the end of that output.
    let is_possible = match reply.stopped {
        None => true,
        Some(ExecStop::Timeout) => elapsed + CLOCK_SKEW >= limits.timeout,
        Some(ExecStop::Cancelled) => is_cancelled,
        Some(ExecStop::OutputLimit) => {
            stdout.bytes() + stderr.bytes() == limits.output_bytes.as_u64()
        }
    };
    if !is_possible {
        return refuse("a program stopped for a reason that there is not");
    }
    Ok(())
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
