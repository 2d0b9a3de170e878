//! A file operation in progress: its deadline, its end, and its cancellation when it is dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sandbox_protocol::message::Cancel;
use sandbox_protocol::operation::{FileOperation, FileReply, OperationStats, Paths};
use sandbox_protocol::path::GuestPath;
use sandbox_protocol::{ErrorKind, WireError, WireString};
use sandbox_session::{Answer, CallError, Decoded, NotificationHandler, Question, Reply, typed};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::audit::{self, Event};
use crate::error::Error;
use crate::sandbox::Inner;
use crate::sandbox::idle::Active;

/// How much longer than the agent the controller waits: the agent's own timeout has a better
/// message.
const GRACE: Duration = Duration::from_secs(1);

/// The minimum transfer rate of content, in bytes per second: far below the slowest machine, but
/// enough that no agent can delay a transfer for ever.
const SLOWEST: u64 = 256 << 10;

/// A file operation in progress, from its call to its result.
pub(crate) struct OperationCall {
    inner: Arc<Inner>,
    operation: &'static str,
    /// As the caller wrote it.
    path: WireString,
    to: Option<WireString>,
    started: Instant,
    /// The time spent waiting for the agent.
    waited: Duration,
    ended: bool,
    _active: Active,
}

impl OperationCall {
    pub fn new(inner: Arc<Inner>, operation: &'static str, (path, to): Paths<'_>) -> Self {
        let active = inner.activity.begin();
        let started = Instant::now();
        let (path, to) = (path.clone(), to.cloned());
        let waited = Duration::ZERO;
        Self { inner, operation, path, to, started, waited, ended: false, _active: active }
    }

    pub const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The normalised path, once a reply was verified.
    pub fn resolved(&self) -> Result<GuestPath, Error> {
        let resolved = self.inner.resolve(self.path.as_bytes());
        resolved.ok_or_else(|| self.breach("the requested path does not resolve"))
    }

    /// Does the work, and ends with its result.
    pub async fn run<T: OperationStats>(
        mut self,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let result = work(&mut self).await;
        self.end(result)
    }

    /// Ends it.
    pub fn end<T: OperationStats>(self, result: Result<T, Error>) -> Result<T, Error> {
        let bytes = result.as_ref().ok().and_then(OperationStats::bytes);
        self.end_with(bytes, result)
    }

    /// Ends it, with the number of bytes of content that were transferred.
    pub fn end_with<T>(mut self, bytes: Option<u64>, result: Result<T, Error>) -> Result<T, Error> {
        self.record_audit(result.as_ref().err().map(Error::kind), bytes);
        result
    }

    fn record_audit(&mut self, error: Option<ErrorKind>, bytes: Option<u64>) {
        self.ended = true;
        let outcome = error.map_or(audit::OK, ErrorKind::as_str);
        let took = self.started.elapsed();
        let normalised = |written: &WireString| match self.inner.resolve(written.as_bytes()) {
            Some(path) => path.as_bytes().to_vec(),
            None => written.as_bytes().to_vec(),
        };
        let path = normalised(&self.path);
        let to = self.to.as_ref().map(normalised);
        let text = String::from_utf8_lossy(&path);
        tracing::debug!(operation = self.operation, path = %text, outcome, bytes, ?took);
        self.inner.audit().record(&Event {
            path: Some(&path),
            to: to.as_deref(),
            outcome,
            bytes,
            duration: Some(took),
            ..Event::new(self.inner.id(), self.operation)
        });
    }

    /// Checks that a reply is about the requested paths, both of them where there are two: anything else
    /// is a breach of the protocol.
    pub fn verified<R: FileReply>(&self, reply: R) -> Result<R, Error> {
        let is_named = |written: &WireString, named: &WireString| {
            let resolved = self.inner.resolve(written.as_bytes());
            resolved.is_some_and(|path| path.as_bytes() == named.as_bytes())
        };
        let (path, to) = reply.paths();
        let is_about_both = is_named(&self.path, path)
            && match (&self.to, to) {
                (Some(written), Some(named)) => is_named(written, named),
                (written, named) => written.is_none() && named.is_none(),
            };
        match (is_about_both, reply.is_consistent()) {
            (true, true) => Ok(reply),
            (false, _) => Err(self.breach("the reply names a different path")),
            (true, false) => Err(self.breach("the reply contradicts itself")),
        }
    }

    /// The agent contradicts itself: ends the sandbox.
    pub fn breach(&self, detail: &str) -> Error {
        breach(&self.inner, detail)
    }

    /// Sends a request, whose notifications `sink` handles, and returns its verified reply.
    pub async fn call<O: FileOperation>(
        &self,
        request: O,
        sink: Option<Arc<dyn NotificationHandler>>,
    ) -> Result<O::Reply, Error> {
        let question = self.inner.session.question(request);
        self.verified(typed(self.answer_to(question, sink).await?))
    }

    /// It is boxed, and knows no type of an operation: it is compiled once, not for each of them.
    fn answer_to<'a>(
        &'a self,
        question: Question<'a>,
        sink: Option<Arc<dyn NotificationHandler>>,
    ) -> BoxFuture<'a, Result<Decoded, Error>> {
        let answered = async move {
            let answer = self.send(self.inner.session.ask(question, sink)).await?;
            self.pending_answer(answer).wait().await
        };
        Box::pin(answered)
    }

    /// Awaits the sending of a request, once the mounts are as they must be. It may wait for a permit;
    /// every request that holds one has a deadline.
    pub async fn send<T>(
        &self,
        request: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, Error> {
        if let Some(error) = self.inner.refusal() {
            return Err(error);
        }
        self.inner.check_mounts_before_use().await?;
        match request.await {
            Ok(begun) => Ok(begun),
            Err(error) => Err(failed(&self.inner, error).await),
        }
    }

    /// Returns a future of the answer to a request.
    pub fn pending_reply<T>(&self, Reply { answer, typed }: Reply<T>) -> PendingReply<T> {
        PendingReply { answer: self.pending_answer(answer), typed }
    }

    fn pending_answer(&self, answer: Answer) -> PendingAnswer {
        let runtime = Handle::current();
        PendingAnswer { inner: self.inner.clone(), answer: Some(answer), runtime }
    }

    /// Waits for one message of the agent, after `moved` bytes of content. All waits of the
    /// operation count together.
    pub async fn with_timeout<T>(
        &mut self,
        moved: u64,
        sign: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let limit = self.inner.limits.operation_timeout;
        let moving = Duration::from_millis(moved.saturating_mul(1000) / SLOWEST);
        let patience = (limit + GRACE + moving).saturating_sub(self.waited);
        let since = self.inner.clock.now();
        let sign = with_patience(&self.inner, patience, sign).await;
        self.waited += self.inner.clock.now() - since;
        sign
    }
}

impl Drop for OperationCall {
    fn drop(&mut self) {
        if !self.ended {
            self.record_audit(Some(ErrorKind::Cancelled), None);
        }
    }
}

/// Waits for one message of the agent, for slightly longer than the time limit of an operation.
pub(super) async fn with_timeout<T>(
    inner: &Inner,
    sign: impl Future<Output = T>,
) -> Result<T, Error> {
    with_patience(inner, inner.limits.operation_timeout + GRACE, sign).await
}

async fn with_patience<T>(
    inner: &Inner,
    patience: Duration,
    sign: impl Future<Output = T>,
) -> Result<T, Error> {
    keep_timer(inner);
    let sign = inner.clock.timeout(patience, sign).await;
    sign.ok_or_else(|| {
        let limit = humantime::format_duration(inner.limits.operation_timeout);
        let message = format!("no answer within filesystem.timeout ({limit})");
        Error::Operation { source: WireError::new(ErrorKind::Timeout, message) }
    })
}

/// Has a timer that ends before those of the operations that begin meanwhile. Without it each of these
/// is the runtime's next one, and wakes the thread that waits for that.
fn keep_timer(inner: &Inner) {
    if !inner.has_timer.swap(true, Ordering::Relaxed) {
        let (has_timer, limit) = (inner.has_timer.clone(), inner.limits.operation_timeout);
        crate::spawn(async move {
            sleep(limit).await;
            has_timer.store(false, Ordering::Relaxed);
        });
    }
}

/// Cancels a request, and waits for its end: the sandbox of an agent that does not end it is abandoned.
pub(super) async fn cancel(inner: &Inner, answer: &mut Answer, why: &'static str) {
    let cancelled = async {
        _ = inner.session.call(Cancel { id: answer.id, at_once: false }).await;
        _ = answer.wait().await;
    };
    if with_timeout(inner, cancelled).await.is_err() {
        inner.abandon(why).await;
    }
}

fn breach(inner: &Inner, detail: &str) -> Error {
    inner.session.breach(detail);
    inner.ended().unwrap_or_else(|| Error::Ended { detail: detail.to_owned() })
}

pub(super) async fn failed(inner: &Inner, error: CallError) -> Error {
    match error {
        CallError::Refused(source) if source.kind() == ErrorKind::Cancelled => {
            match inner.is_closing() {
                true => inner.why_ended().await,
                false => breach(inner, "it reports a cancelled operation without a cancel request"),
            }
        }
        CallError::Refused(source) if !ends_operations(source.kind()) => {
            breach(inner, &format!("unexpected error kind for a file operation: {source}"))
        }
        CallError::Refused(source) => Error::Operation { source },
        CallError::Over => inner.why_ended().await,
        CallError::TooLarge(error) => {
            let source = WireError::invalid(error.to_string());
            Error::Operation { source }
        }
    }
}

/// Whether an honest agent ends a file operation with this error: it knows nothing of engines.
const fn ends_operations(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::OutputLimit
            | ErrorKind::SourceTooLarge
            | ErrorKind::ResultTooLarge
            | ErrorKind::Syntax
            | ErrorKind::Runtime
            | ErrorKind::ResultNotJson
            | ErrorKind::NotExecutable
            | ErrorKind::CommandNotFound
            | ErrorKind::NetworkRefused
            | ErrorKind::Killed
            | ErrorKind::Usage
            | ErrorKind::Config
            | ErrorKind::Policy
            | ErrorKind::Engine
            | ErrorKind::Image
            | ErrorKind::AgentLost
    )
}

/// Waits for an answer. Dropping it before the answer arrives cancels the request.
pub(super) struct PendingReply<T> {
    answer: PendingAnswer,
    typed: fn(Decoded) -> T,
}

impl<T> PendingReply<T> {
    /// Waits for the answer.
    pub async fn wait(self) -> Result<T, Error> {
        let Self { answer, typed } = self;
        answer.wait().await.map(typed)
    }
}

/// A [`PendingReply`] without the type of the answer.
struct PendingAnswer {
    inner: Arc<Inner>,
    answer: Option<Answer>,
    /// The runtime to use if the value is dropped outside of it.
    runtime: Handle,
}

impl PendingAnswer {
    async fn wait(mut self) -> Result<Decoded, Error> {
        let inner = self.inner.clone();
        let answer = self.answer.as_mut().expect("taken only here and by the end");
        let answered = with_timeout(&inner, answer.wait()).await?;
        self.answer = None;
        let decoded = match answered {
            Ok(decoded) => decoded,
            Err(error) => return Err(failed(&inner, error).await),
        };
        // One that took its time may have worked below a mount.
        inner.check_mounts_before_use().await.map(|()| decoded)
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let Some(mut answer) = self.answer.take() else { return };
        let inner = self.inner.clone();
        self.runtime.spawn(async move {
            let why = "a file operation did not stop after its timeout or cancel";
            cancel(&inner, &mut answer, why).await;
        });
    }
}
