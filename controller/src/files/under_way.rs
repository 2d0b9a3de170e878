//! An operation under way: its deadline, its end, and what becomes of it where nobody waits.

use std::sync::Arc;
use std::time::Duration;

use sandbox_protocol::message::{Call, Cancel};
use sandbox_protocol::path::{GuestPath, to_wire};
use sandbox_protocol::{Base64, ErrorKind, WireError};
use tokio::time::{Instant, timeout};

use super::{Changes, Extent};
use crate::activity::Active;
use crate::audit::Event;
use crate::error::Error;
use crate::sandbox::Inner;
use crate::session::{CallError, Reply};

/// How much longer than the agent we wait: it gives up by itself, and says so better.
const GRACE: Duration = Duration::from_secs(1);

/// An operation under way, from its call to its data or error.
pub(crate) struct UnderWay {
    inner: Arc<Inner>,
    operation: &'static str,
    /// As the caller wrote it.
    path: Vec<u8>,
    to: Option<Vec<u8>>,
    started: Instant,
    ended: bool,
    _active: Active,
}

impl UnderWay {
    pub fn new(inner: Arc<Inner>, operation: &'static str, path: &[u8]) -> Self {
        let active = inner.activity.begin();
        let started = Instant::now();
        let path = path.to_vec();
        Self { inner, operation, path, to: None, started, ended: false, _active: active }
    }

    /// It has a second path.
    pub fn to(mut self, path: &[u8]) -> Self {
        self.to = Some(path.to_vec());
        self
    }

    pub const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The path as the wire has it.
    pub fn wire(&self) -> (String, Option<Base64>) {
        to_wire(&self.path)
    }

    /// The normalised path, where the written one leads to one.
    pub fn resolved(&self) -> Option<GuestPath> {
        self.inner.resolve(&self.path)
    }

    /// Ends it.
    pub fn end<T: Extent>(self, result: Result<T, Error>) -> Result<T, Error> {
        let bytes = result.as_ref().ok().and_then(Extent::bytes);
        self.end_with(bytes, result)
    }

    /// Ends it, with `bytes` of content moved.
    pub fn end_with<T>(mut self, bytes: Option<u64>, result: Result<T, Error>) -> Result<T, Error> {
        self.tell(result.as_ref().err().map(Error::kind), bytes);
        result
    }

    fn tell(&mut self, error: Option<ErrorKind>, bytes: Option<u64>) {
        self.ended = true;
        let outcome = error.map_or("ok", ErrorKind::as_str);
        let took = self.started.elapsed();
        let normalised = |written: &[u8]| match self.inner.resolve(written) {
            Some(path) => path.as_bytes().to_vec(),
            None => written.to_vec(),
        };
        let path = normalised(&self.path);
        let to = self.to.as_deref().map(normalised);
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

    /// The agent's answer names what was asked for: anything else is a breach.
    pub fn checked(
        &self,
        path: &str,
        path_b64: Option<&Base64>,
    ) -> Result<(String, Option<Base64>), Error> {
        self.checked_as(self.resolved(), path, path_b64)
    }

    /// As [`checked`](Self::checked), for another path than the first.
    pub fn checked_as(
        &self,
        expected: Option<GuestPath>,
        path: &str,
        path_b64: Option<&Base64>,
    ) -> Result<(String, Option<Base64>), Error> {
        match expected {
            Some(expected)
                if sandbox_protocol::path::written(path, path_b64) == expected.as_bytes() =>
            {
                Ok(expected.to_wire())
            }
            _ => Err(self.breach("an answer about another path")),
        }
    }

    /// The agent contradicts itself: the sandbox ends.
    pub fn breach(&self, detail: &str) -> Error {
        self.inner.session().breach(detail);
        self.inner.ended().unwrap_or_else(|| Error::Ended { detail: detail.to_owned() })
    }

    /// Asks for something that changes nothing.
    pub async fn ask<C>(&self, request: C) -> Result<C::Reply, Error>
    where
        C: Call,
        C::Reply: Send + 'static,
    {
        let reply = self.within(self.inner.session().begin(request, None)).await?;
        self.answer_to(reply).answer().await
    }

    /// Asks for a change.
    pub async fn change<C>(&self, request: C) -> Result<C::Reply, Error>
    where
        C: Call,
        C::Reply: Send + 'static,
    {
        let sink = Arc::new(Changes(self.inner.clone()));
        let reply = self.within(self.inner.session().begin(request, Some(sink))).await?;
        self.answer_to(reply).answer().await
    }

    /// A request that is being made. It waits for a place among those in flight, each of which has
    /// a deadline.
    pub async fn within<T>(
        &self,
        request: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, Error> {
        match request.await {
            Ok(begun) => Ok(begun),
            Err(error) => Err(failed(&self.inner, error).await),
        }
    }

    /// The wait for the answer to a request.
    pub fn answer_to<T: Send + 'static>(&self, reply: Reply<T>) -> Answer<T> {
        Answer { inner: self.inner.clone(), reply: Some(reply) }
    }

    /// Waits for one sign of the agent.
    pub async fn in_time<T>(&self, sign: impl Future<Output = T>) -> Result<T, Error> {
        in_time(&self.inner, sign).await
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.ended {
            self.tell(Some(ErrorKind::Cancelled), None);
        }
    }
}

/// Waits for one sign of the agent, for as long as an operation may take and a little more.
pub(super) async fn in_time<T>(inner: &Inner, sign: impl Future<Output = T>) -> Result<T, Error> {
    let limit = inner.limits.operation_timeout;
    timeout(limit + GRACE, sign).await.map_err(|_| {
        let message =
            format!("no answer within filesystem.timeout ({})", humantime::format_duration(limit));
        Error::Operation { source: WireError::new(ErrorKind::Timeout, message) }
    })
}

async fn failed(inner: &Inner, error: CallError) -> Error {
    match error {
        CallError::Refused(source) => Error::Operation { source },
        CallError::Over => inner.why_ended().await,
        CallError::TooLarge(error) => {
            let source = WireError::new(ErrorKind::InvalidRequest, error.to_string());
            Error::Operation { source }
        }
    }
}

/// The wait for an answer. Dropped before it has come: the request is cancelled.
pub(super) struct Answer<T: Send + 'static> {
    inner: Arc<Inner>,
    reply: Option<Reply<T>>,
}

impl<T: Send + 'static> Answer<T> {
    /// Waits for it.
    pub async fn answer(mut self) -> Result<T, Error> {
        let inner = self.inner.clone();
        let reply = self.reply.as_mut().expect("taken only here and by the end");
        let answer = in_time(&inner, reply.wait()).await?;
        self.reply = None;
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => Err(failed(&inner, error).await),
        }
    }
}

impl<T: Send + 'static> Drop for Answer<T> {
    fn drop(&mut self) {
        let Some(mut reply) = self.reply.take() else { return };
        // Without a runtime everything ends, the sandbox too.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let inner = self.inner.clone();
        runtime.spawn(async move {
            let cancelled = async {
                _ = inner.session().call(Cancel { id: reply.id }).await;
                _ = reply.wait().await;
            };
            if in_time(&inner, cancelled).await.is_err() {
                inner.session().breach("a file operation was cancelled, and never answered");
            }
        });
    }
}
