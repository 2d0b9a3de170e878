//! How a call is ended before it is done.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sandbox_api::{CancelCause, ErrorKind};
use sandbox_controller::{CancelHandle, Error};
use tokio::sync::watch;

use super::error::ToolError;

/// Why a call is ended before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// The caller does not want it any more.
    Cancelled,
    /// The time that the caller gave it is over.
    TimedOut(Duration),
}

impl From<StopCause> for ToolError {
    fn from(cause: StopCause) -> Self {
        match cause {
            StopCause::Cancelled => {
                Self::new(ErrorKind::Cancelled, "the call was cancelled by the caller")
            }
            StopCause::TimedOut(after) => Self::new(
                ErrorKind::Timeout,
                format!("the call took longer than its timeout_ms of {}", after.as_millis()),
            ),
        }
    }
}

/// Ends a call.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<Option<StopCause>>);

/// Where a call learns that it is to end.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<Option<StopCause>>);

/// A pair of both.
#[must_use]
pub fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(None);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    /// Ends the call. The first cause counts.
    pub fn stop(&self, cause: StopCause) {
        self.0.send_if_modified(|before| {
            let is_first = before.is_none();
            *before = before.or(Some(cause));
            is_first
        });
    }
}

impl Stop {
    /// Waits until the call is to end; for ever where nobody can end it any more.
    pub async fn stopped(&mut self) -> StopCause {
        match self.0.wait_for(Option::is_some).await.map(|cause| *cause) {
            Ok(Some(cause)) => cause,
            _ => std::future::pending().await,
        }
    }

    /// Work that is given up when the call is to end: what it had begun is cancelled.
    pub(super) fn or<T: Send + 'static>(
        mut self,
        work: impl Future<Output = Result<T, ToolError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, ToolError>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                finished = work => finished,
                cause = self.stopped() => Err(cause.into()),
            }
        })
    }

    /// Begins something that can be cancelled, and waits for its end. Stopped in the middle, it is
    /// cancelled, and what it tells of its end is given with the cause.
    pub async fn ended<T, R, E: Future<Output = Result<R, Error>>>(
        &mut self,
        begun: impl Future<Output = Result<T, ToolError>>,
        ending: impl FnOnce(T) -> (CancelHandle, E),
    ) -> Result<(R, Option<StopCause>), ToolError> {
        let begun = tokio::select! {
            biased;
            begun = begun => begun?,
            cause = self.stopped() => return Err(cause.into()),
        };
        let (cancel, ended) = ending(begun);
        tokio::pin!(ended);
        let (ended, cause) = tokio::select! {
            biased;
            ended = &mut ended => (ended, None),
            cause = self.stopped() => {
                cancel.cancel(CancelCause::Caller);
                (ended.await, Some(cause))
            }
        };
        Ok((ended?, cause))
    }
}
