//! The calls of one run: whether each is given, its limits, and what is recorded of it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox_api::{HostTool, ToolCall, ToolEffect, ToolOutcome, ToolRule, millis};
use sandbox_protocol::limits::{
    MAX_MESSAGE_BYTES, MAX_TOOL_FILE_BYTES, MAX_TOOL_FILE_NAME_BYTES, MAX_TOOL_FILES,
    MAX_TOOL_VALUE_BYTES, MAX_VALUE_DEPTH, cut_encoded,
};
use sandbox_protocol::message::{CallEnd, CallFile};
use sandbox_protocol::{Base64, ErrorKind};
use sandbox_receipts::sha256;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::{HostAnswer, HostFile, HostToolError, Listed, ToolGrant};
use super::{luau, search};
use crate::permission::{Answer, Ask, ask};

/// The window of the rate limit.
const SECOND: Duration = Duration::from_secs(1);
/// Most bytes of a tool's description in the answer to a search.
const MAX_SUMMARY_BYTES: usize = 200;

/// The calls of a run.
#[derive(Debug)]
pub struct Gate {
    grant: ToolGrant,
    /// The tools as they were listed last.
    listed: Mutex<Option<Listed>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: u32,
    /// Of all arguments and results.
    bytes: u64,
    /// When the current second began, and the calls in it.
    window: Option<(Instant, u32)>,
    /// The call in progress, and when it began.
    open: Option<(ToolCall, Instant)>,
    done: Vec<ToolCall>,
    is_truncated: bool,
}

/// What a script gets of a call.
pub type Answered = (CallEnd, Vec<CallFile>);

/// Why a call has no result.
#[derive(Debug)]
struct Refusal(ToolOutcome, String);

impl Refusal {
    fn end(self) -> CallEnd {
        let Self(outcome, message) = self;
        let kind = match outcome {
            ToolOutcome::Refused | ToolOutcome::Limit => ErrorKind::Policy,
            ToolOutcome::Unknown => ErrorKind::NotFound,
            ToolOutcome::TooLarge => ErrorKind::TooLarge,
            _ => ErrorKind::Runtime,
        };
        CallEnd::Failed { kind, message: cut_encoded(&message, MAX_MESSAGE_BYTES).to_owned() }
    }
}

impl From<HostToolError> for Refusal {
    fn from(error: HostToolError) -> Self {
        let outcome = match error {
            HostToolError::Failed(_) => ToolOutcome::Failed,
            HostToolError::Unknown => ToolOutcome::Unknown,
            HostToolError::NotPermitted => ToolOutcome::Refused,
            HostToolError::Timeout => ToolOutcome::Timeout,
            HostToolError::TooLarge => ToolOutcome::TooLarge,
            HostToolError::Unavailable(_) => ToolOutcome::Unavailable,
        };
        Self(outcome, error.to_string())
    }
}

impl Gate {
    /// A run that has made no calls.
    pub fn new(grant: ToolGrant) -> Self {
        Self { grant, listed: Mutex::default(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it gives, for people: its rules, or what holds without one.
    pub fn rules(&self) -> Vec<String> {
        let ToolGrant { rules, added, .. } = &self.grant;
        let default = rules.is_empty().then(|| "tools that only read".to_owned());
        default.into_iter().chain(rules.iter().chain(added).map(ToString::to_string)).collect()
    }

    /// The rule that would give a refused tool; `None` if one names it already, whose conditions are not met,
    /// and for a name that would be another rule.
    pub fn suggested_rule(&self, tool: &str) -> Option<String> {
        let mut rules = self.grant.rules.iter().chain(&self.grant.added);
        let suggested = ToolRule::suggested(tool).filter(|_| !rules.any(|rule| rule.names(tool)));
        suggested.map(str::to_owned)
    }

    /// The given tools that have these words. None is an answer only where all tools are known.
    pub async fn search(&self, words: &str) -> Answered {
        self.wait_for_turn().await;
        let found = self.list().await.and_then(|(all, missing)| {
            let found = search::search(all.iter().filter(|tool| self.grant.gives(tool)), words);
            let entry = |tool: &HostTool| {
                let first = tool.description.lines().next().unwrap_or_default();
                let summary = cut_encoded(first, MAX_SUMMARY_BYTES);
                json!({ "name": tool.name, "description": summary })
            };
            let found: Vec<_> = found.into_iter().map(entry).collect();
            let missing = missing.iter().find(|server| self.grant.may_give_one_of(server));
            match missing.filter(|_| found.is_empty()) {
                Some(server) => {
                    let why = format!("the server '{server}' has not listed its tools");
                    Err(HostToolError::Unavailable(why).into())
                }
                None => Ok(found.into()),
            }
        });
        (found.map_or_else(Refusal::end, CallEnd::Value), Vec::new())
    }

    /// The types of a given tool.
    pub async fn describe(&self, name: &str) -> Answered {
        self.wait_for_turn().await;
        let described = match self.find(name, Duration::MAX).await {
            Ok(tool) if self.grant.gives(&tool) => Ok(luau::describe(&tool).into()),
            Ok(_) => Err(self.unknown(name).await),
            Err(refusal) => Err(refusal),
        };
        (described.map_or_else(Refusal::end, CallEnd::Value), Vec::new())
    }

    /// Calls a tool, which takes `left` at most. Gives what is recorded of it, too.
    pub async fn call(
        &self,
        name: &str,
        arguments: &RawValue,
        left: Duration,
    ) -> (Answered, Option<ToolCall>) {
        let number = self.begin(name, arguments);
        let call = async {
            let limits = &self.grant.limits;
            if number > limits.calls {
                let message = format!("this script may call tools {} times", limits.calls);
                return Err(Refusal(ToolOutcome::Limit, message));
            }
            self.spend(0)?;
            let Ok(arguments) = serde_json::from_str::<Map<String, Value>>(arguments.get()) else {
                let message = format!("the arguments of '{name}' are not an object");
                return Err(Refusal(ToolOutcome::Refused, message));
            };
            self.wait_for_turn().await;
            let tool = self.find(name, left).await?;
            let permitted = self.permit(&tool, &arguments).await?;
            // What it says of itself may have changed since.
            let called = self.grant.tools.call(name, arguments, permitted);
            let answer = timeout(limits.timeout.min(left), called).await;
            self.take(&tool, number, answer.unwrap_or(Err(HostToolError::Timeout))?)
        };
        let (outcome, text, answered) = match call.await {
            Ok((text, answered)) => (ToolOutcome::Ok, text, answered),
            Err(refusal) => (refusal.0, refusal.1.clone(), (refusal.end(), Vec::new())),
        };
        let files: usize = answered.1.iter().map(|file| file.data.0.len()).sum();
        (answered, self.end(outcome, text.len() + files, sha256(text)))
    }

    /// Records that a call has begun; returns its number.
    fn begin(&self, name: &str, arguments: &RawValue) -> u32 {
        let call = ToolCall {
            tool: name.to_owned(),
            outcome: ToolOutcome::Cancelled,
            duration_ms: 0,
            argument_bytes: arguments.get().len() as u64,
            result_bytes: 0,
            arguments_sha256: sha256(arguments.get()),
            result_sha256: sha256(""),
        };
        let mut state = self.lock();
        state.calls = state.calls.saturating_add(1);
        state.bytes = state.bytes.saturating_add(call.argument_bytes);
        state.open = Some((call, Instant::now()));
        state.calls
    }

    /// Records how the call in progress has ended, if there is one.
    fn end(&self, outcome: ToolOutcome, bytes: usize, result_sha256: String) -> Option<ToolCall> {
        let mut state = self.lock();
        let (call, began) = state.open.take()?;
        let duration_ms = millis(began.elapsed());
        let result_bytes = bytes as u64;
        let call = ToolCall { outcome, duration_ms, result_bytes, result_sha256, ..call };
        match state.done.len() < ToolCall::MAX_RECORDED {
            true => state.done.push(call.clone()),
            false => state.is_truncated = true,
        }
        Some(call)
    }

    /// Records the call in progress, if there is one, as cancelled: the run has ended.
    pub fn close(&self) -> Option<ToolCall> {
        self.end(ToolOutcome::Cancelled, 0, sha256(""))
    }

    /// All calls, and whether there were more.
    pub fn calls(&self) -> (Vec<ToolCall>, bool) {
        let state = self.lock();
        (state.done.clone(), state.is_truncated)
    }

    /// What the tool may do in this call, which is given or which a person permits.
    async fn permit(
        &self,
        tool: &HostTool,
        arguments: &Map<String, Value>,
    ) -> Result<ToolEffect, Refusal> {
        let (name, effect) = (&tool.name, tool.effect);
        let given = self.grant.given(tool, |rule| rule.allows(name, arguments));
        if let Some(most) = given.filter(|most| effect <= *most) {
            return Ok(most);
        }
        let ToolGrant { permission, learner, .. } = &self.grant;
        let asked = if given.is_some() { permission } else { learner };
        let question = Ask::Tool { tool: name, arguments, effect };
        if ask(asked.as_ref(), &question).await == Answer::Allowed {
            return Ok(effect);
        }
        let word = self.grant.needs_permission(tool).then(|| "--allow-destructive".to_owned());
        let rule = ToolRule::suggested(name).map(|rule| format!("--tool '{rule}'"));
        let (why, needed) = match (given, self.grant.unmet(tool, arguments)) {
            (Some(_), _) => (
                "may remove or overwrite something, which was not allowed".to_owned(),
                [None, word],
            ),
            (None, Some((rule, condition))) => {
                let why = "was not given with these arguments";
                (format!("{why}: the rule '{rule}' needs {condition}"), [None, word])
            }
            (None, None) => {
                let word = word.filter(|_| rule.is_some());
                ("was not given".to_owned(), [rule, word])
            }
        };
        let needed = Vec::from_iter(needed.into_iter().flatten()).join(" and ");
        let end = if needed.is_empty() { needed } else { format!("; it needs {needed}") };
        Err(Refusal(ToolOutcome::Refused, format!("the tool '{name}' {why}{end}")))
    }

    /// The tool of this name, given or not.
    async fn find(&self, name: &str, left: Duration) -> Result<HostTool, Refusal> {
        let found = timeout(self.grant.limits.timeout.min(left), self.grant.tools.find(name)).await;
        match found.unwrap_or(Err(HostToolError::Timeout)) {
            Err(HostToolError::Unknown) => Err(self.unknown(name).await),
            found => Ok(found?),
        }
    }

    /// The refusal of a name that no given tool has: with the names that are like it.
    async fn unknown(&self, name: &str) -> Refusal {
        let (all, _) = self.list().await.unwrap_or_default();
        let nearest = search::nearest(all.iter().filter(|tool| self.grant.gives(tool)), name);
        let hint = match nearest.is_empty() {
            true => "tools.search(words) finds tools".to_owned(),
            false => format!("did you mean '{}'?", nearest.join("', '")),
        };
        Refusal(ToolOutcome::Unknown, format!("there is no tool '{name}': {hint}"))
    }

    async fn list(&self) -> Result<Listed, Refusal> {
        let lock = || self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let before = lock().clone();
        if let Some(before) = before {
            // Servers are waited for once; what is there since is known.
            let known = if before.1.is_empty() { None } else { self.grant.tools.known() };
            let listed = known.unwrap_or(before);
            *lock() = Some(listed.clone());
            return Ok(listed);
        }
        let listed = timeout(self.grant.limits.timeout, self.grant.tools.list_some()).await;
        let listed = listed.unwrap_or(Err(HostToolError::Timeout))?;
        *lock() = Some(listed.clone());
        Ok(listed)
    }

    /// Waits until another call may be made in this second.
    async fn wait_for_turn(&self) {
        loop {
            let next = {
                let (mut state, now) = (self.lock(), Instant::now());
                let (began, calls) = state.window.get_or_insert((now, 0));
                if now.saturating_duration_since(*began) >= SECOND {
                    (*began, *calls) = (now, 0);
                }
                if *calls < self.grant.limits.rate.max(1) {
                    *calls += 1;
                    return;
                }
                *began + SECOND
            };
            sleep_until(next).await;
        }
    }

    /// Counts the bytes of a result.
    fn spend(&self, bytes: usize) -> Result<(), Refusal> {
        let (mut state, most) = (self.lock(), self.grant.limits.bytes);
        state.bytes = state.bytes.saturating_add(bytes as u64);
        if state.bytes <= most.as_u64() {
            return Ok(());
        }
        let message = format!("the calls of this script may have {most} of arguments and results");
        Err(Refusal(ToolOutcome::Limit, message))
    }

    /// What a script gets of an answer, and the JSON of its value.
    fn take(
        &self,
        tool: &HostTool,
        number: u32,
        answer: HostAnswer,
    ) -> Result<(String, Answered), Refusal> {
        let HostAnswer { mut value, files } = answer;
        if luau::result_member(tool).is_some()
            && let Some(result) = value.get_mut("result")
        {
            value = result.take();
        }
        let bytes: usize = files.iter().map(|file| file.data.len()).sum();
        let text = value.to_string();
        if files.len() > MAX_TOOL_FILES
            || bytes > MAX_TOOL_FILE_BYTES
            || text.len() > MAX_TOOL_VALUE_BYTES
            || !is_within(&value, MAX_VALUE_DEPTH)
        {
            return Err(HostToolError::TooLarge.into());
        }
        self.spend(text.len() + bytes)?;
        let files = files.into_iter().enumerate();
        let files = files.map(|(index, file)| named(&tool.name, number, index, file)).collect();
        Ok((text, (CallEnd::Value(value), files)))
    }
}

/// Whether a value is nested at most this deep.
fn is_within(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(items) => depth > 0 && items.iter().all(|it| is_within(it, depth - 1)),
        Value::Object(items) => depth > 0 && items.values().all(|it| is_within(it, depth - 1)),
        _ => true,
    }
}

/// A file with a name of its own in the run, by its tool and media type.
fn named(
    tool: &str,
    number: u32,
    index: usize,
    HostFile { mime_type, data }: HostFile,
) -> CallFile {
    const LONGEST: usize = 64;
    let safe = |char: char| if char.is_ascii_alphanumeric() || char == '.' { char } else { '_' };
    let stem: String = tool.chars().map(safe).take(LONGEST).collect();
    let is_type = mime_type.len() <= MAX_TOOL_FILE_NAME_BYTES
        && mime_type.bytes().all(|byte| byte.is_ascii_graphic());
    let mime_type = if is_type { mime_type } else { "application/octet-stream".to_owned() };
    let subtype = mime_type.rsplit('/').next().unwrap_or_default().chars();
    let end: String = subtype.take_while(char::is_ascii_alphanumeric).take(8).collect();
    let stem = stem.trim_start_matches('.');
    let name = format!("{stem}-{number}-{}.{end}", index + 1);
    CallFile { name, mime_type, data: Base64(data) }
}

#[cfg(test)]
mod tests;
