//! Calls as lines: one JSON object per input line, one per output line, in any order.
//!
//! Everything is bounded. A line is read completely only up to [`MAX_LINE_BYTES`]; a longer one is
//! answered, with its id where that was found, and skipped without being stored. At most [`MAX_CALLS`]
//! calls are in progress, with [`MAX_PENDING_BYTES`] of lines between them; [`MAX_WAITING`] more wait, so
//! that what is for those in progress is read: a cancel, the end of the input. A waiting call that is
//! cancelled, or whose timeout expires, is answered at once. Beyond that nothing is read until one has been answered,
//! and a call counts until its answer is written. So a client that does not read its answers
//! delays the calls, but does not fill the memory.
//!
//! A script may call functions of the program: `{"call": {"id", "tool", "arguments"}}` is a line to it,
//! and `{"result": {"id", "value"}}`, or `"error"`, its answer. While one is waited for, lines are read in
//! any case; a call for which there is no room is refused then.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use sandbox_api::{ErrorKind, IdReader, MessageLine, MessageLines, strict, without_bom};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::callbacks::{CallAnswer, Callbacks};
use super::error::ToolError;
use super::response::ToolResponse;
use super::stop::{Stop, StopCause};
use crate::lock;

/// Longest line, in both directions, without its newline.
pub const MAX_LINE_BYTES: usize = 64 << 20;
/// Most calls in progress.
pub const MAX_CALLS: usize = 64;
/// Most bytes of the lines of calls in progress.
pub const MAX_PENDING_BYTES: usize = 2 * MAX_LINE_BYTES;
/// Most calls that wait for one in progress to end, and how many bytes their lines have when nothing more
/// is read.
pub const MAX_WAITING: usize = 1024;
const MAX_WAITING_BYTES: usize = MAX_LINE_BYTES;
/// Longest id.
const MAX_ID_BYTES: usize = 1024;

const _: () = assert!(MAX_LINE_BYTES <= MAX_PENDING_BYTES, "any line can be accepted");
const _: () = assert!(MAX_PENDING_BYTES <= u32::MAX as usize, "permits are counted so");

/// Answers the calls on the input lines, until there are no more lines and every call has been
/// answered, or until the output is closed. When interrupted, it drops the calls in progress and
/// returns what interrupted it.
///
/// `call` is called in the order of the lines; its futures are awaited concurrently.
///
/// # Errors
///
/// If reading or writing fails, except when the reader of the answers is gone.
pub async fn serve<C, F, I>(
    input: impl AsyncBufRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
    callbacks: &Callbacks,
    call: C,
    interruption: impl Future<Output = I>,
) -> io::Result<Option<I>>
where
    C: FnMut(&str, &RawValue, Stop) -> F,
    F: Future<Output = ToolResponse> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let served = tokio::select! {
        biased;
        interruption = interruption => Ok(Some(interruption)),
        served = answer_all(input, output, callbacks, call, &mut tasks) => served.map(|()| None),
    };
    callbacks.close();
    tasks.shutdown().await;
    served
}

async fn answer_all<C, F>(
    input: impl AsyncBufRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
    callbacks: &Callbacks,
    mut call: C,
    tasks: &mut JoinSet<()>,
) -> io::Result<()>
where
    C: FnMut(&str, &RawValue, Stop) -> F,
    F: Future<Output = ToolResponse> + Send + 'static,
{
    let mut lines = Lines { input, lines: MessageLines::new(MAX_LINE_BYTES) };
    let server = Arc::new(Server {
        output: tokio::sync::Mutex::new(output),
        failed: watch::Sender::new(None),
        active_calls: Mutex::default(),
    });
    let (calls, bytes) =
        (Arc::new(Semaphore::new(MAX_CALLS)), Arc::new(Semaphore::new(MAX_PENDING_BYTES)));
    let mut waiting: VecDeque<Waiting> = VecDeque::new();
    let mut has_ended = false;
    let mut called = callbacks.open();
    while !has_ended || !waiting.is_empty() {
        let waiting_bytes: usize = waiting.iter().map(|call| call.length).sum();
        let has_room = tasks.len() + waiting.len() < MAX_CALLS + MAX_WAITING;
        let has_room = has_room && waiting_bytes < MAX_WAITING_BYTES;
        let reads = !has_ended && (has_room || callbacks.is_waiting());
        let next = waiting.front().map(|call| call.length);
        let line = tokio::select! {
            biased;
            () = server.failed() => break,
            (index, timeout) = next_timeout(&waiting) => {
                server.drop_waiting(&mut waiting, index, StopCause::TimedOut(timeout), tasks);
                continue;
            }
            Some(_) = tasks.join_next() => continue,
            Some(line) = called.recv() => {
                let server = server.clone();
                tasks.spawn(async move { server.write_line(|| Ok(line)).await });
                continue;
            }
            permits = permits(&calls, &bytes, next) => {
                let Some(Waiting { call: Call { id, tool, args, timeout }, stop, started, .. }) =
                    waiting.pop_front()
                else {
                    continue;
                };
                let answer = call(&tool, &args, stop.clone());
                let server = server.clone();
                tasks.spawn(async move {
                    let answer = answered(answer, timeout, started, &stop).await;
                    server.answer(&id, answer).await;
                    drop(permits);
                });
                continue;
            }
            line = lines.next(), if reads => line?,
        };
        let (id, error) = match line {
            None => {
                has_ended = true;
                callbacks.close();
                continue;
            }
            Some(MessageLine::TooLong(id)) => {
                let max = MAX_LINE_BYTES >> 20;
                let message = format!("the line is longer than {max} MiB");
                (valid_id(id), ToolError::new(ErrorKind::TooLarge, message))
            }
            Some(MessageLine::Whole(line)) => match Request::read(&line) {
                Ok(None) => continue,
                Ok(Some(Request::Cancel(id))) => {
                    if let Some(index) = waiting.iter().position(|it| it.call.id == id) {
                        server.drop_waiting(&mut waiting, index, StopCause::Cancelled, tasks);
                    } else if let Some(stop) = lock(&server.active_calls).get(&key(&id)) {
                        stop.stop(StopCause::Cancelled);
                    }
                    continue;
                }
                Ok(Some(Request::Result(answer))) => match callbacks.answer(answer) {
                    Ok(()) => continue,
                    Err(why) => {
                        let message = format!("the line is not a result: {why}");
                        (Value::Null, ToolError::invalid(message))
                    }
                },
                Ok(Some(Request::Call(call))) if !has_room => {
                    (call.id, ToolError::new(ErrorKind::Busy, "too many calls wait"))
                }
                Ok(Some(Request::Call(call))) => {
                    // Its timeout starts now, including all waits.
                    let started = Instant::now();
                    if let Some(stop) = server.enter(&call.id) {
                        waiting.push_back(Waiting { call, stop, started, length: line.len() });
                        continue;
                    }
                    let message = format!("a call with id {} is in progress", call.id);
                    (call.id, ToolError::invalid(message))
                }
                Err(refused) => refused,
            },
        };
        server.refuse(&id, error).await;
    }
    // Accepted calls are answered; if the output is closed, they are dropped.
    loop {
        tokio::select! {
            biased;
            () = server.failed() => break,
            ended = tasks.join_next() => if ended.is_none() { break },
        }
    }
    match server.failed.send_replace(None) {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Waits for a free slot for a line of this length, without a time limit: no call is refused for
/// want of one.
async fn permits(
    calls: &Arc<Semaphore>,
    bytes: &Arc<Semaphore>,
    length: Option<usize>,
) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
    let Some(length) = length else { return std::future::pending().await };
    let length = u32::try_from(length).ok()?;
    // Neither semaphore is ever closed.
    let call = calls.clone().acquire_owned().await.ok()?;
    let bytes = bytes.clone().acquire_many_owned(length).await.ok()?;
    Some((call, bytes))
}

/// Waits until the timeout of a waiting call expires: its index, and the timeout.
async fn next_timeout(waiting: &VecDeque<Waiting>) -> (usize, Duration) {
    let timeout = |(index, it): (usize, &Waiting)| {
        let timeout = it.call.timeout?;
        Some((it.started.checked_add(timeout)?, index, timeout))
    };
    let first = waiting.iter().enumerate().filter_map(timeout).min();
    let Some((deadline, index, timeout)) = first else { return std::future::pending().await };
    sleep_until(deadline).await;
    (index, timeout)
}

/// The answer of a call, which is stopped when its timeout expires; a call that panics gets an
/// answer too.
async fn answered(
    answer: impl Future<Output = ToolResponse>,
    timeout: Option<Duration>,
    started: Instant,
    stop: &Stop,
) -> ToolResponse {
    let answer = AssertUnwindSafe(answer).catch_unwind();
    tokio::pin!(answer);
    let answer = match timeout {
        None => answer.await,
        Some(timeout) => tokio::select! {
            biased;
            answer = &mut answer => answer,
            () = tokio::time::sleep(timeout.saturating_sub(started.elapsed())) => {
                stop.stop(StopCause::TimedOut(timeout));
                answer.await
            }
        },
    };
    answer.unwrap_or_else(|_| {
        ToolResponse::refused(ToolError::new(
            ErrorKind::Internal,
            "internal error: the tool failed",
        ))
    })
}

struct Server<W> {
    output: tokio::sync::Mutex<W>,
    /// Why writing has become impossible.
    failed: watch::Sender<Option<io::Error>>,
    active_calls: Mutex<HashMap<String, Stop>>,
}

/// A call that waits for a slot.
struct Waiting {
    call: Call,
    stop: Stop,
    started: Instant,
    /// The length of its line.
    length: usize,
}

impl<W: AsyncWrite + Unpin + Send + 'static> Server<W> {
    /// Waits until writing has become impossible.
    async fn failed(&self) {
        // `self` holds its sender.
        _ = self.failed.subscribe().wait_for(Option::is_some).await;
    }

    /// Registers a call; none if one with this id is in progress.
    fn enter(&self, id: &Value) -> Option<Stop> {
        let mut active_calls = lock(&self.active_calls);
        let key = key(id);
        if active_calls.contains_key(&key) {
            return None;
        }
        let stop = Stop::default();
        active_calls.insert(key, stop.clone());
        Some(stop)
    }

    async fn answer(&self, id: &Value, answer: ToolResponse) {
        // Before its answer can be seen: the id may be reused then.
        lock(&self.active_calls).remove(&key(id));
        self.write_line(|| line(id, &answer)).await;
    }

    /// Replies to a waiting call that is stopped: it never begins. Input is still read if that
    /// reply is not.
    fn drop_waiting(
        self: &Arc<Self>,
        waiting: &mut VecDeque<Waiting>,
        index: usize,
        cause: StopCause,
        tasks: &mut JoinSet<()>,
    ) {
        let Some(Waiting { call: Call { id, .. }, .. }) = waiting.remove(index) else { return };
        lock(&self.active_calls).remove(&key(&id));
        let server = self.clone();
        tasks.spawn(async move { server.refuse(&id, cause.into()).await });
    }

    async fn refuse(&self, id: &Value, error: ToolError) {
        self.write_line(|| line(id, &ToolResponse::refused(error))).await;
    }

    async fn write_line(&self, line: impl FnOnce() -> io::Result<Vec<u8>>) {
        // One line at a time is built and written.
        let mut output = self.output.lock().await;
        let line = line();
        let written = async {
            output.write_all(&line?).await?;
            output.flush().await
        };
        if let Err(error) = written.await {
            self.failed.send_modify(|failed| _ = failed.get_or_insert(error));
        }
    }
}

/// An answer's line, with its newline.
fn line(id: &Value, answer: &ToolResponse) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&answer.document_with_id(id))?;
    if line.len() > MAX_LINE_BYTES {
        let max = MAX_LINE_BYTES >> 20;
        let message = format!("the answer is longer than {max} MiB as a line");
        let error = ToolError::new(ErrorKind::TooLarge, message)
            .with_hint("read a part of it: offset and limit");
        line = serde_json::to_vec(&ToolResponse::refused(error).document_with_id(id))?;
    }
    line.push(b'\n');
    Ok(line)
}

/// The key of an id among the calls in progress: 1 is not "1".
fn key(id: &Value) -> String {
    id.to_string()
}

/// The request in a line.
enum Request {
    Call(Call),
    Cancel(Value),
    Result(CallAnswer),
}

struct Call {
    id: Value,
    tool: String,
    args: Box<RawValue>,
    timeout: Option<Duration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallLine {
    #[serde(rename = "id")]
    _id: IgnoredAny,
    tool: String,
    args: Box<RawValue>,
    #[serde(default)]
    timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelLine<'a> {
    #[serde(borrow)]
    cancel: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResultLine {
    result: CallAnswer,
}

/// The id of an invalid line, so that its caller is informed. Kept unparsed: a line of brackets
/// takes a hundred times its length as a value.
#[derive(Deserialize)]
struct IdLine<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    cancel: Option<IgnoredAny>,
    #[serde(default)]
    result: Option<IgnoredAny>,
}

impl Request {
    /// Parses a line; none if it is blank.
    fn read(line: &[u8]) -> Result<Option<Self>, (Value, ToolError)> {
        let no_id = |message: String| (Value::Null, ToolError::invalid(message));
        // A caller waits for an answer with the id of a line that cannot be read.
        let sender =
            |message: String| (valid_id(IdReader::id_of(line)), ToolError::invalid(message));
        let text = std::str::from_utf8(without_bom(line))
            .map_err(|_| sender("the line is not UTF-8 text".to_owned()))?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        let about: IdLine<'_> = strict::from_slice(text.as_bytes())
            .map_err(|mistake| sender(format!("the line is not a call: {mistake}")))?;
        if about.cancel.is_some() {
            let CancelLine { cancel } = strict::from_slice(text.as_bytes())
                .map_err(|mistake| no_id(format!("the line is not a cancel: {mistake}")))?;
            let cancel = read_id(Some(cancel)).map_err(|what| no_id(format!("cancel: {what}")))?;
            return Ok(Some(Self::Cancel(cancel)));
        }
        if about.result.is_some() {
            let ResultLine { result } = strict::from_slice(text.as_bytes())
                .map_err(|mistake| no_id(format!("the line is not a result: {mistake}")))?;
            return Ok(Some(Self::Result(result)));
        }
        let id = read_id(about.id).map_err(|what| no_id(format!("id: {what}")))?;
        let refuse = |message: String| (id.clone(), ToolError::invalid(message));
        let CallLine { _id: _, tool, args, timeout_ms } = strict::from_slice(text.as_bytes())
            .map_err(|mistake| refuse(format!("the line is not a call: {mistake}")))?;
        if timeout_ms == Some(0) {
            return Err(refuse("timeout_ms: it is 0".to_owned()));
        }
        let timeout = timeout_ms.map(Duration::from_millis);
        Ok(Some(Self::Call(Call { id, tool, args, timeout })))
    }
}

/// Parses an id: a string or an integer. Other values use no memory.
fn read_id(id: Option<&RawValue>) -> Result<Value, String> {
    // By its type, and no longer than it can be if every character is escaped.
    let too_long = || Err(format!("it is longer than {MAX_ID_BYTES} bytes"));
    let wrong = || "it is neither a string nor a whole number".to_owned();
    let written = id.map_or("null", RawValue::get);
    if written == "null" {
        return Err("it is missing".to_owned());
    }
    if written.starts_with(['[', '{']) {
        return Err(wrong());
    }
    if written.len() > 6 * MAX_ID_BYTES + 2 {
        return if written.starts_with('"') { too_long() } else { Err(wrong()) };
    }
    match serde_json::from_str(written).map_err(|_| wrong())? {
        Value::String(text) if text.len() > MAX_ID_BYTES => too_long(),
        id if is_id(&id) => Ok(id),
        _ => Err(wrong()),
    }
}

fn is_id(id: &Value) -> bool {
    match id {
        Value::String(text) => text.len() <= MAX_ID_BYTES,
        id => id.is_i64() || id.is_u64(),
    }
}

/// The id that a line was found to have, or null.
fn valid_id(found: Option<Value>) -> Value {
    found.filter(is_id).unwrap_or_default()
}

/// The lines of the input. The last one needs no newline.
struct Lines<R> {
    input: R,
    /// Reading the rest of a line may be cancelled and resumed.
    lines: MessageLines,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    async fn next(&mut self) -> io::Result<Option<MessageLine>> {
        loop {
            let some = self.input.fill_buf().await?;
            if some.is_empty() {
                return Ok(self.lines.end());
            }
            let (taken, line) = self.lines.take(some);
            self.input.consume(taken);
            if line.is_some() {
                return Ok(line);
            }
        }
    }
}

#[cfg(test)]
mod tests;
