//! A run of a script in a sandbox: its log, its changed files, and its result.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use sandbox_api::{
    ExecutionEvent, FilesTouched, Limits, LogEntry, Outcome, ResultBody, Script, Sign, ToolCall,
    ToolOutcome, Usage, millis, test_failure,
};
use sandbox_protocol::limits::{
    MAX_LOG_ENTRY_BYTES, MAX_MESSAGE_BYTES, MAX_REFUSALS, MAX_RESULT_BYTES, MAX_SOURCE_BYTES,
    MAX_TEST_CASES, MAX_TEST_MESSAGE_BYTES, MAX_TEST_NAME_BYTES, MAX_TOOL_ARGUMENT_BYTES,
    MAX_TOOL_NAME_BYTES, encoded_len, size_text,
};
use sandbox_protocol::message::{
    AgentUsage, CallEnd, CallResult, CallTarget, CaseEnd, HostCall, Log, Refused, RunEnd, RunReply,
    ScriptError, TestCase, Touched,
};
use sandbox_protocol::path::{GuestPath, MAX_PATH_BYTES};
use sandbox_protocol::{ErrorKind, WireError, message};
use sandbox_redact::Redactions;
use sandbox_session::NotificationHandler;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::audit::{By, Event};
use crate::error::Error;
use crate::execution::driver::{Call, Driven, Execute, ExecutionDriver, Requested};
use crate::execution::judge::AgentReport;
use crate::execution::supervisor::{CancelHandle, Supervisor};
use crate::failpoint::{Point, failpoint};
use crate::host_tools::ToolGrant;
use crate::host_tools::gate::{Answered, Gate};
use crate::io_dir::touched::TouchedPaths;
use crate::io_dir::write_monitor::blocking;
use crate::sandbox::{Inner, KernelBaseline};

/// How much of an agent's resident memory may not count against its container's limit: pages of its
/// executable, which are charged to the process that reads them first.
const FOREIGN_MEMORY: u64 = 16 << 20;

/// The name of a script in the audit.
pub(super) const OPERATION: &str = "run";

/// Starts a script when the previous one has ended.
pub(super) async fn begin(
    inner: Arc<Inner>,
    script: Script,
    tools: Option<ToolGrant>,
    cancel: &CancelHandle,
) -> Result<(Driven, ScriptEvents), Error> {
    Script::check_args(&script.args)?;
    let timeout = script.timeout.unwrap_or(inner.limits.timeout);
    let limits = Limits { timeout, ..inner.limits };
    limits.check(inner.ceiling())?;
    let turn = inner.acquire_run_lock().await?;
    // Commands and file operations may hold all permits: the run's time has not begun yet.
    let permit = inner.acquire_permit::<message::Run>().await?;
    let active = inner.activity.begin();
    let id = inner.next_run_id();
    inner.redactions.add(&script.secrets);
    let gate = tools.map(|grant| Arc::new(Gate::new(grant)));
    inner.policy.set_tools(gate.iter().flat_map(|gate| gate.rules()));
    // The script waits for each of its calls.
    let (sender, calls) = mpsc::channel(1);
    let record = Arc::new(Record::new(id.clone(), &inner, gate.is_some(), sender));
    let events = ScriptEvents { record: record.clone(), seen: 0 };
    let calls = Some(calls);
    let execution = ScriptExecution { script, record, gate, calls, answered: false, _turn: turn };
    let driven = ExecutionDriver::spawn(execution, id, limits, inner, permit, active, cancel);
    Ok((driven, events))
}

/// The log and the test cases of a script, as they come.
pub(super) struct ScriptEvents {
    record: Arc<Record>,
    /// How many have been returned.
    seen: usize,
}

impl ScriptEvents {
    /// Waits for the next one; `None` after the last one. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<ExecutionEvent> {
        loop {
            {
                let state = crate::lock(&self.record.state);
                if let Some(event) = state.events.get(self.seen) {
                    self.seen += 1;
                    return Some(event.clone());
                }
                if state.closed {
                    return None;
                }
            }
            // `Notify` keeps a notification that was sent since the check.
            self.record.changed.notified().await;
        }
    }
}

/// What the agent reports during a run.
#[derive(Debug)]
struct Record {
    /// The run id.
    id: String,
    /// Receives refusals. Weak, because it owns the session that holds this.
    inner: Weak<Inner>,
    redactions: Arc<Redactions>,
    state: Mutex<RecordState>,
    /// Signalled when entries were added, or when no more will be.
    changed: Notify,
    max_bytes: u64,
    max_lines: u64,
    /// The mount in which files can change.
    mount: Option<GuestPath>,
    /// Whether it was given tools.
    has_tools: bool,
    /// Receives its calls of the host.
    calls: mpsc::Sender<HostCall>,
}

#[derive(Debug, Default)]
struct RecordState {
    /// Log entries and test cases.
    events: Vec<ExecutionEvent>,
    /// The number of log entries.
    lines: u64,
    /// The size of the encoded entries.
    bytes: u64,
    touched: TouchedPaths,
    refusals: usize,
    /// The number of test cases.
    cases: usize,
    /// A call of the host is in progress.
    is_calling: bool,
    closed: bool,
    /// Whether the last entry was cut because the log was full.
    is_cut_short: bool,
    /// Whether entries were omitted or cut.
    is_truncated: bool,
}

impl RecordState {
    fn logs(&self) -> Vec<LogEntry> {
        let entry = |event: &ExecutionEvent| match event {
            ExecutionEvent::Log(entry) => Some(entry.clone()),
            _ => None,
        };
        self.events.iter().filter_map(entry).collect()
    }

    fn tests(&self) -> Vec<TestCase> {
        let case = |event: &ExecutionEvent| match event {
            ExecutionEvent::Test(case) => Some(case.clone()),
            _ => None,
        };
        self.events.iter().filter_map(case).collect()
    }
}

impl Record {
    fn new(id: String, inner: &Arc<Inner>, has_tools: bool, calls: mpsc::Sender<HostCall>) -> Self {
        let limits = &inner.limits;
        Self {
            id,
            inner: Arc::downgrade(inner),
            redactions: inner.redactions.clone(),
            state: Mutex::default(),
            changed: Notify::new(),
            max_bytes: limits.log_bytes.as_u64(),
            max_lines: limits.log_lines.get().into(),
            mount: inner.io_mount.clone(),
            has_tools,
            calls,
        }
    }

    /// Ends the log. `truncated` is what the agent reported, if it could: without a report, a full
    /// log may have been longer.
    fn close(&self, truncated: Option<bool>) {
        let mut state = crate::lock(&self.state);
        if state.closed {
            return;
        }
        let is_full_of_lines = state.lines >= self.max_lines;
        let is_full = is_full_of_lines || state.bytes >= self.max_bytes || state.is_cut_short;
        let truncated = truncated.unwrap_or(is_full);
        let is_cut =
            |event: &ExecutionEvent| matches!(event, ExecutionEvent::Log(entry) if entry.cut);
        state.is_truncated = truncated || state.events.iter().any(is_cut);
        if truncated {
            let limit = if is_full_of_lines {
                format!("limits.log_lines ({})", self.max_lines)
            } else {
                format!("limits.log_bytes ({})", size_text(self.max_bytes))
            };
            state.events.push(ExecutionEvent::Log(LogEntry::log_full(&limit)));
        }
        state.closed = true;
        self.changed.notify_one();
    }
}

impl NotificationHandler for Record {
    fn log(&self, mut log: Log) -> Result<(), String> {
        let mut state = crate::lock(&self.state);
        let bytes = encoded_len(&log.text) as u64;
        let left = self.max_bytes.saturating_sub(state.bytes);
        if bytes > left || bytes > MAX_LOG_ENTRY_BYTES as u64 {
            return Err("more log than its limit in bytes".to_owned());
        }
        if state.lines >= self.max_lines {
            return Err("more log than its limit in lines".to_owned());
        }
        (state.lines, state.bytes) = (state.lines + 1, state.bytes + bytes);
        state.is_cut_short = log.cut && left < MAX_LOG_ENTRY_BYTES as u64;
        self.redactions.text(&mut log.text);
        state.events.push(ExecutionEvent::Log(log.into()));
        self.changed.notify_one();
        Ok(())
    }

    fn case(&self, CaseEnd { mut case, .. }: CaseEnd) -> Result<(), String> {
        let mut state = crate::lock(&self.state);
        let message = case.message.as_deref().unwrap_or_default();
        if state.cases == MAX_TEST_CASES
            || encoded_len(&case.name) > MAX_TEST_NAME_BYTES
            || encoded_len(message) > MAX_TEST_MESSAGE_BYTES
        {
            return Err("test case limit exceeded".to_owned());
        }
        self.redactions.text(&mut case.name);
        if let Some(message) = &mut case.message {
            self.redactions.text(message);
        }
        state.cases += 1;
        state.events.push(ExecutionEvent::Test(case));
        self.changed.notify_one();
        Ok(())
    }

    fn touched(&self, touched: Touched) -> Result<(), String> {
        crate::lock(&self.state).touched.record(&touched, self.mount.as_ref())
    }

    fn refused(&self, refused: Refused) -> Result<(), String> {
        if !refused.kind.is_refusal() {
            return Err(format!("the refusal has no policy error kind ({})", refused.kind));
        }
        if refused.path.as_bytes().len() > MAX_PATH_BYTES {
            return Err("a refused path over its limit".to_owned());
        }
        let mut state = crate::lock(&self.state);
        if state.refusals == MAX_REFUSALS {
            return Err(format!("more than {MAX_REFUSALS} refusals"));
        }
        state.refusals += 1;
        drop(state);
        if let Some(inner) = self.inner.upgrade() {
            inner.refused(&self.id, &refused);
        }
        Ok(())
    }

    fn call(&self, call: HostCall) -> Result<(), String> {
        if call.name.len() > MAX_TOOL_NAME_BYTES
            || call.arguments.get().len() > MAX_TOOL_ARGUMENT_BYTES
        {
            return Err("a call of the host over its limit".to_owned());
        }
        if !self.has_tools && call.target != CallTarget::Policy {
            return Err("a call of a tool by a run without tools".to_owned());
        }
        if std::mem::replace(&mut crate::lock(&self.state).is_calling, true) {
            return Err("two calls of the host at a time".to_owned());
        }
        // Without a receiver the run has ended, and nothing waits for the result.
        _ = self.calls.try_send(call);
        Ok(())
    }
}

/// The outcome of a script that is too long. Its exact length is not needed.
pub(crate) fn source_too_large() -> ScriptError {
    let max = sandbox_api::ByteSize::b(MAX_SOURCE_BYTES as u64);
    ScriptError::new(
        ErrorKind::SourceTooLarge,
        format!("the script is longer than {MAX_SOURCE_BYTES} bytes ({max})"),
    )
}

/// Names a part of the answer that is longer than an honest agent sends.
fn over_its_limit(end: &RunEnd) -> Option<&'static str> {
    match end {
        RunEnd::Returned(result) => {
            (result.get().len() > MAX_RESULT_BYTES).then_some("a result over its limit")
        }
        RunEnd::Failed(error) => {
            let is_long = |text: &String| encoded_len(text) > MAX_MESSAGE_BYTES;
            (is_long(&error.message) || error.traceback.as_ref().is_some_and(is_long))
                .then_some("an error message over the size limit")
        }
    }
}

/// A script and what is known of its run.
struct ScriptExecution {
    /// Empty after the request.
    script: Script,
    record: Arc<Record>,
    /// The tools that it was given.
    gate: Option<Arc<Gate>>,
    /// Its calls of the host, until they are answered.
    calls: Option<mpsc::Receiver<HostCall>>,
    answered: bool,
    /// The next run waits for it.
    _turn: OwnedSemaphorePermit,
}

impl Drop for ScriptExecution {
    /// However the run ends, no caller keeps waiting for log entries.
    fn drop(&mut self) {
        self.record.close(None);
    }
}

/// Answers the calls of a script, one after the other. Dropping it cancels the call in progress.
struct HostCalls {
    inner: Arc<Inner>,
    record: Arc<Record>,
    gate: Option<Arc<Gate>>,
    calls: mpsc::Receiver<HostCall>,
    /// When the script is killed, by the sandbox's clock.
    kill_at: Instant,
}

impl HostCalls {
    async fn answer_all(mut self) {
        while let Some(call) = self.calls.recv().await {
            let (end, files) = self.answer(&call).await;
            let HostCall { request, call, .. } = call;
            // The next call may be here before the agent has said that it took the result.
            crate::lock(&self.record.state).is_calling = false;
            let result = CallResult { request, call, end, files };
            if self.inner.session.call(result).await.is_err() {
                break;
            }
        }
    }

    async fn answer(&self, call: &HostCall) -> Answered {
        let (inner, name) = (&self.inner, &*call.name);
        match (&self.gate, call.target) {
            (_, CallTarget::Policy) | (None, _) => {
                (CallEnd::Value(inner.policy.document()), Vec::new())
            }
            (Some(gate), CallTarget::Search) => gate.search(name).await,
            (Some(gate), CallTarget::Describe) => gate.describe(name).await,
            (Some(gate), CallTarget::Tool) => {
                let left = self.kill_at.saturating_duration_since(inner.clock.now());
                let (answered, made) = gate.call(name, &call.arguments, left).await;
                if let Some(made) = made {
                    audit_call(inner, &self.record.id, &made);
                    if let (ToolOutcome::Refused, CallEnd::Failed { message, .. }) =
                        (made.outcome, &answered.0)
                    {
                        inner.policy.refuse_tool(name, message, gate.suggested_rule(name));
                    }
                }
                answered
            }
        }
    }
}

/// Records a call of a tool in the audit.
fn audit_call(inner: &Inner, run_id: &str, made: &ToolCall) {
    let tool = inner.redactions.bytes(made.tool.as_bytes());
    inner.audit().record(&Event { by: By::Script, ..Event::tool_call(run_id, &tool, made) });
}

/// The agent's answer, or why the script was not sent to it.
type Reply = Result<RunReply, ScriptError>;

/// The agent's counters are its own claim: a number that the container's limits make impossible is
/// discarded.
fn usage(claimed: AgentUsage, wall_ms: u64, inner: &Inner, limits: &Limits) -> Usage {
    let most_memory = limits.memory.as_u64().saturating_add(FOREIGN_MEMORY);
    Usage {
        wall_ms,
        cpu_ms: Some(inner.cpu_of_this_run(claimed.cpu_ms))
            .filter(|&ms| ms <= millis(limits.most_cpu())),
        // Memory use is never 0: the agent reports 0 if it could not measure it.
        peak_memory_bytes: Some(claimed.peak_memory_bytes)
            .filter(|&bytes| bytes > 0 && bytes <= most_memory),
        written_bytes: Some(claimed.written_bytes)
            .filter(|&bytes| bytes <= limits.max_write.as_u64()),
    }
}

impl Execute for ScriptExecution {
    const OPERATION: &'static str = OPERATION;
    const WHAT: &'static str = "script";
    /// The agent itself gives up after 250 ms.
    const GRACE: Duration = Duration::from_secs(1);
    type Reply = Reply;

    fn stop_timeout(_: &Limits) -> Duration {
        Duration::ZERO
    }

    fn program(&self) -> Option<&[u8]> {
        None
    }

    async fn ask(&mut self, call: Call<'_>) -> Requested<Reply> {
        let Call { inner, limits, supervisor, permit, monitor, kill_at, .. } = call;
        let has_tools = self.gate.is_some();
        let request = match request(std::mem::take(&mut self.script), limits, has_tools) {
            Ok(request) => request,
            Err(error) => return Ok(Ok(Some(Err(error)))),
        };
        let sink: Arc<dyn NotificationHandler> = self.record.clone();
        let asked = inner.session.begin_at(permit, request, Some(sink));
        let Some(reply) = supervisor.begin(asked, kill_at).await? else { return Ok(Ok(None)) };
        failpoint(Point::Requested).await;
        // In a task of its own: a provider of tools must not delay what ends the script.
        let _calls = self.calls.take().map(|calls| {
            let (inner, record, gate) = (inner.clone(), self.record.clone(), self.gate.clone());
            let calls = HostCalls { inner, record, gate, calls, kill_at };
            AbortOnDropHandle::new(crate::spawn(calls.answer_all()))
        });
        let check = |_: &Supervisor, answer: &Result<RunReply, WireError>| match answer {
            Ok(answer) => over_its_limit(&answer.end).map_or(Ok(()), |what| Err(what.to_owned())),
            Err(_) => Ok(()),
        };
        Ok(match supervisor.answer(reply, kill_at, monitor, check).await {
            Ok(Some(Ok(answer))) => Ok(Some(Ok(answer))),
            Ok(Some(Err(source))) => Err(Error::Refused { source }),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        })
    }

    async fn settle(
        &mut self,
        answer: Result<Option<Reply>, Outcome>,
        inner: &Inner,
        limits: &Limits,
        _: &KernelBaseline,
        used: &mut Usage,
    ) -> Result<Option<AgentReport>, Outcome> {
        let (settled, truncated) = match answer {
            Ok(Some(Ok(RunReply { end, logs_truncated, usage: claimed }))) => {
                *used = usage(claimed, used.wall_ms, inner, limits);
                let end = match (end, test_failure(&crate::lock(&self.record.state).tests())) {
                    (RunEnd::Returned(_), Some(failure)) => RunEnd::Failed(failure),
                    (end, _) => end,
                };
                (Ok(Some(AgentReport::Script(end))), Some(logs_truncated))
            }
            Ok(Some(Err(error))) => {
                used.written_bytes = Some(0);
                (Ok(Some(AgentReport::Script(RunEnd::Failed(error)))), Some(false))
            }
            // It was refused before it began.
            Err(refusal @ Outcome::Limit(_)) => {
                used.written_bytes = Some(0);
                (Err(refusal), Some(false))
            }
            Ok(None) => (Ok(None), None),
            Err(outcome) => (Err(outcome), None),
        };
        if let Some(cancelled) = self.gate.as_ref().and_then(|gate| gate.close()) {
            audit_call(inner, &self.record.id, &cancelled);
        }
        self.answered = matches!(settled, Ok(Some(_)));
        self.record.close(truncated);
        settled
    }

    fn signs(&self) -> &[Sign] {
        &[]
    }

    async fn files_touched(&mut self, inner: &Arc<Inner>) -> FilesTouched {
        let touched = std::mem::take(&mut crate::lock(&self.record.state).touched);
        if touched.is_empty() {
            return FilesTouched::default();
        }
        let inner = inner.clone();
        let scan = move || match (inner.io_dir(), &inner.io_mount) {
            (Some(io_dir), Some(mount)) => touched.scan(io_dir.view(), mount),
            _ => FilesTouched::default(),
        };
        let unknown = FilesTouched { truncated: true, ..FilesTouched::default() };
        blocking(&Handle::current(), scan).await.unwrap_or(unknown)
    }

    fn body(&mut self) -> ResultBody {
        let called = self.gate.as_ref().map(|gate| gate.calls());
        let (mut tool_calls, tool_calls_truncated) = called.unwrap_or_default();
        for call in &mut tool_calls {
            self.record.redactions.text(&mut call.tool);
        }
        let state = crate::lock(&self.record.state);
        ResultBody::Script {
            tool_calls,
            tool_calls_truncated,
            logs: state.logs(),
            logs_truncated: state.is_truncated,
            tests: state.tests(),
            answered: self.answered,
        }
    }
}

fn request(script: Script, limits: &Limits, tools: bool) -> Result<message::Run, ScriptError> {
    if script.source.len() > MAX_SOURCE_BYTES {
        return Err(source_too_large());
    }
    let source = String::from_utf8(script.source).map_err(|not_utf8| {
        let before = &not_utf8.as_bytes()[..not_utf8.utf8_error().valid_up_to()];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let what = r"the script is not UTF-8 text (write such bytes as \xNN)";
        let message = format!("script:{line}: {what}");
        ScriptError {
            line: u32::try_from(line).ok(),
            ..ScriptError::new(ErrorKind::Syntax, message)
        }
    })?;
    let secrets = script.secrets.to_wire();
    let Script { args, seed, now, .. } = script;
    let timeout_ms = millis(limits.timeout);
    Ok(message::Run { source, args, secrets, timeout_ms, seed, now, tools })
}
