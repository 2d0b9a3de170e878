//! Stopping a call early.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sandbox_api::{CancelCause, ErrorKind, ExecutionResult, Workload};
use sandbox_controller::{CancelHandle, Error, Sandbox};
use tokio::sync::watch;

use super::error::ToolError;
use crate::registry::RegistryError;

/// Why a call is stopped early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// The caller cancelled it.
    Cancelled,
    /// The caller's timeout expired.
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

/// Stops the call.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<Option<StopCause>>);

/// Signals a call to stop.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<Option<StopCause>>);

/// A pair of both.
#[must_use]
pub fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(None);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    /// Stops the call. The first cause counts.
    pub fn stop(&self, cause: StopCause) {
        self.0.send_if_modified(|before| {
            let is_first = before.is_none();
            *before = before.or(Some(cause));
            is_first
        });
    }
}

impl Stop {
    /// Waits until the call must stop; forever if the stopper is gone.
    pub async fn stopped(&mut self) -> StopCause {
        match self.0.wait_for(Option::is_some).await.map(|cause| *cause) {
            Ok(Some(cause)) => cause,
            _ => std::future::pending().await,
        }
    }

    /// Runs work that is dropped when the call must stop: this cancels what it had started.
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

    /// Runs something in a sandbox when that is ready. If the call is stopped, what runs is
    /// cancelled, and its result is returned with the cause.
    pub async fn run(
        &mut self,
        ready: impl Future<Output = Result<Arc<Sandbox>, RegistryError>>,
        workload: Workload,
        failed: impl FnOnce(Error) -> ToolError,
    ) -> Result<(ExecutionResult, Option<StopCause>), ToolError> {
        let sandbox = tokio::select! {
            biased;
            sandbox = ready => sandbox?,
            cause = self.stopped() => return Err(cause.into()),
        };
        let cancel = CancelHandle::new();
        let work = async { sandbox.start(workload, cancel.clone()).await?.wait().await };
        tokio::pin!(work);
        let (ended, cause) = tokio::select! {
            biased;
            ended = &mut work => (ended, None),
            cause = self.stopped() => {
                cancel.cancel(CancelCause::Caller);
                (work.await, Some(cause))
            }
        };
        match (ended, cause) {
            (Err(Error::Cancelled), Some(cause)) => Err(cause.into()),
            (Err(error), _) => Err(failed(error)),
            (Ok(result), cause) => Ok((result, cause)),
        }
    }
}
