//! A command's exchange with the agent: its request, its streams, and its answer.

use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{
    Captured, FilesTouched, Limits, Outcome, ResultBody, Sign, TouchedSource, Usage, millis,
};
use sandbox_protocol::WireError;
use sandbox_protocol::message::{Exec, ExecEnd, ExecReply, ExecStop};
use sandbox_session::{Console, ConsoleSpec, Flow, Incoming};
use tokio::sync::{oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use super::stdin::Source;
use crate::execution::driver::{Call, Execute, Requested};
use crate::execution::judge::{AgentReport, SIGKILL};
use crate::execution::supervisor::Supervisor;
use crate::sandbox::{Inner, KernelBaseline};

/// The name of a command in the audit.
pub(crate) const OPERATION: &str = "exec";

/// How long after its deadline and its grace a command's unread output is drained.
const UNWANTED_AFTER: Duration = Duration::from_millis(500);
/// How much unread output is drained: the maximum that a pipe holds, and what may precede it.
const UNWANTED_BYTES: u64 = (1 << 20) + (64 << 10);
/// How much earlier than the controller the agent's clock may reach a deadline.
pub(in crate::execution) const CLOCK_SKEW: Duration = Duration::from_millis(100);

/// A command and what is known of its end.
pub(super) struct CommandExecution {
    program: Vec<u8>,
    /// `None` after the request.
    request: Option<Request>,
    end: Option<ExecEnd>,
    /// What the agent saw that stood in its way.
    signs: Vec<Sign>,
}

/// The request, and the receivers of what becomes of it.
pub(super) struct Request {
    pub params: Exec,
    pub input: Option<Source>,
    /// Whether its stderr is a stream of its own.
    pub has_stderr: bool,
    /// Receives its output, which belongs to its reader.
    pub begun: oneshot::Sender<Incoming>,
    /// Receives its id.
    pub id: watch::Sender<Option<u64>>,
}

/// How a command ended according to the agent.
type Reply = Result<ExecReply, WireError>;

impl CommandExecution {
    pub const fn new(program: Vec<u8>, request: Request) -> Self {
        Self { program, request: Some(request), end: None, signs: Vec::new() }
    }
}

impl Execute for CommandExecution {
    const OPERATION: &'static str = OPERATION;
    const WHAT: &'static str = "program";
    /// The agent sends the last bytes for up to one and a half.
    const GRACE: Duration = Duration::from_secs(3);
    type Reply = Reply;

    fn stop_timeout(limits: &Limits) -> Duration {
        limits.stop_timeout
    }

    fn program(&self) -> Option<&[u8]> {
        Some(&self.program)
    }

    async fn ask(&mut self, call: Call<'_>) -> Requested<Self::Reply> {
        let request = self.request.take().expect("it is asked once");
        let Request { params, input, has_stderr, begun, id } = request;
        let Call { inner, limits, supervisor, permit, monitor, started, kill_at } = call;
        let has_stdin = input.is_some();
        let most = limits.output_bytes.as_u64();
        let console = ConsoleSpec { has_stdin, has_stderr, most, kept: None };
        let asked = inner.session.converse(permit, console, params);
        let Some((reply, console)) = supervisor.begin(asked, kill_at).await? else {
            return Ok(Ok(None));
        };
        id.send_replace(Some(reply.answer.id));
        let Console { stdin, output } = console;
        // Ends with this call: a command that has ended reads nothing.
        let _input = stdin
            .zip(input)
            .map(|(stdin, input)| AbortOnDropHandle::new(crate::spawn(input.send(stdin))));
        let numbers: Vec<_> = output.numbers().collect();
        let flows: Vec<_> = output.flows().cloned().collect();
        // The receiver may be gone.
        _ = begun.send(output);
        let check = |supervisor: &Supervisor, answer: &Reply| {
            let is_cancelled = supervisor.is_cancelled() || inner.is_closing();
            check(answer, &flows, limits, started.elapsed(), is_cancelled).map_err(str::to_owned)
        };
        let unwanted = async {
            inner.clock.sleep_until(kill_at - Self::GRACE + UNWANTED_AFTER).await;
            for &number in &numbers {
                inner.session.advance(number, UNWANTED_BYTES).await;
            }
            std::future::pending().await
        };
        Ok(tokio::select! {
            biased;
            answer = supervisor.answer(reply, kill_at, monitor, check) => answer,
            () = unwanted => unreachable!("it never ends"),
        })
    }

    async fn settle(
        &mut self,
        answer: Result<Option<Self::Reply>, Outcome>,
        inner: &Inner,
        limits: &Limits,
        since: &KernelBaseline,
        usage: &mut Usage,
    ) -> Result<Option<AgentReport>, Outcome> {
        let Some(answer) = answer? else { return Ok(None) };
        Ok(Some(match answer {
            Ok(ExecReply { end, stopped, cpu_ms, peak_memory_bytes, signs, .. }) => {
                (self.end, self.signs) = (Some(end), signs);
                // Pages of the image may be charged to others: no more than its own counts.
                usage.peak_memory_bytes =
                    Some(peak_memory_bytes.min(limits.memory.as_u64())).filter(|&bytes| bytes > 0);
                let reported = Some(cpu_ms).filter(|&ms| ms <= millis(limits.most_cpu()));
                usage.cpu_ms = reported.max(inner.cpu_since(since).await);
                // Killed, but not by the agent: only the engine can know why.
                let out_of_memory = stopped.is_none()
                    && end == ExecEnd::Signaled(SIGKILL)
                    && inner.ran_out_of_memory(since).await;
                AgentReport::Program { end, stopped, out_of_memory }
            }
            Err(error) => AgentReport::ExecFailed(error),
        }))
    }

    fn signs(&self) -> &[Sign] {
        &self.signs
    }

    /// The agent announces none: scans before and after find them.
    async fn files_touched(&mut self, _: &Arc<Inner>) -> FilesTouched {
        FilesTouched { source: TouchedSource::Scan, ..FilesTouched::default() }
    }

    fn body(&mut self) -> ResultBody {
        let (exit_code, signal) = match self.end {
            Some(ExecEnd::Exited(code)) => (Some(code.into()), None),
            Some(ExecEnd::Signaled(signal)) => (None, Some(signal.into())),
            None => (None, None),
        };
        let (stdout, stderr) = (Captured::default(), Captured::default());
        ResultBody::Command { exit_code, signal, stdout, stderr }
    }
}

/// Names what an honest agent would not send in an answer.
fn check(
    answer: &Reply,
    flows: &[Arc<Flow>],
    limits: &Limits,
    elapsed: Duration,
    is_cancelled: bool,
) -> Result<(), &'static str> {
    match answer {
        // A stopped command need not have been killed: if it has ended and its last output is unread,
        // `stopped` describes the end of that output.
        Ok(reply) => check_reply(reply, flows, |stop| match stop {
            ExecStop::EvasionOfAnother => true,
            ExecStop::Timeout => elapsed + CLOCK_SKEW >= limits.timeout,
            ExecStop::Cancelled => is_cancelled,
            ExecStop::OutputLimit => printed(flows) == limits.output_bytes.as_u64(),
        }),
        Err(error) if error.kind() == sandbox_protocol::ErrorKind::Internal => Ok(()),
        Err(_) if printed(flows) > 0 => Err("output without a started program"),
        Err(_) => Ok(()),
    }
}

/// The same of the answer of a program that was executed, which may have been stopped for these reasons.
pub(in crate::execution) fn check_reply(
    reply: &ExecReply,
    flows: &[Arc<Flow>],
    is_possible: impl FnOnce(ExecStop) -> bool,
) -> Result<(), &'static str> {
    let [stdout, stderr] = [0, 1].map(|at| flows.get(at).map_or(0, |flow| flow.bytes()));
    if !flows.iter().all(|flow| flow.has_ended()) {
        return Err("reply before end of output");
    }
    if (stdout, stderr) != (reply.stdout_bytes, reply.stderr_bytes) {
        return Err("the reply's length does not match the data");
    }
    match reply.stopped.is_none_or(is_possible) {
        true => Ok(()),
        false => Err("impossible stop reason"),
    }
}

/// How many bytes have come on output streams.
pub(in crate::execution) fn printed(flows: &[Arc<Flow>]) -> u64 {
    flows.iter().map(|flow| flow.bytes()).sum()
}
