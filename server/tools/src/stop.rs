//! Stopping a call early.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sandbox_api::{CancelCause, ErrorKind, ExecutionResult, Outcome, Workload};
use sandbox_controller::host_tools::ToolGrant;
use sandbox_controller::{CancelHandle, Error};

use super::error::{ToolError, over_ceiling};
use crate::registry::Lease;

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

/// Stops a call. Clones stop the same one.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    cause: Arc<OnceLock<StopCause>>,
    /// Of what the call runs.
    pub(super) cancel: CancelHandle,
}

impl Stop {
    /// Stops the call. The first cause counts.
    pub fn stop(&self, cause: StopCause) {
        if self.cause.set(cause).is_ok() {
            self.cancel.cancel(CancelCause::Caller);
        }
    }

    /// Why the call is stopped, if it is.
    pub(super) fn cause(&self) -> Option<StopCause> {
        self.cause.get().copied()
    }

    /// Waits until the call must stop.
    pub async fn stopped(&self) -> StopCause {
        self.cancel.cancelled().await;
        self.cause().unwrap_or(StopCause::Cancelled)
    }

    /// Runs work that is dropped when the call must stop: this cancels what it had started.
    pub(super) fn or<T: Send + 'static>(
        self,
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

    /// Runs something in a sandbox when that is ready, in the order of the calls. A script may call `tools`. If
    /// the call is stopped, what runs is cancelled, and its result is returned. `timeout` is the tool's name for
    /// a limit of time.
    pub(super) async fn run(
        &self,
        mut lease: Lease,
        workload: Workload,
        tools: Option<ToolGrant>,
        timeout: &str,
    ) -> Result<ExecutionResult, ToolError> {
        let sandbox = tokio::select! {
            biased;
            sandbox = lease.ready() => sandbox?,
            cause = self.stopped() => return Err(cause.into()),
        };
        let ran = async {
            let started = sandbox.start_with_tools(workload, tools, self.cancel.clone());
            started.await?.wait().await
        };
        // Calls that wait for this one see all its effects: its place is given up at the end.
        ran.await.map_err(|error| match (error, self.cause()) {
            (Error::Cancelled, Some(cause)) => cause.into(),
            // The call's arguments are wrong, not the command line's.
            (error @ Error::Command { .. }, _) => ToolError::invalid(error.full_message()),
            (Error::OverCeiling(over), _) => over_ceiling(timeout, &over),
            (error, _) => lease.failure(error),
        })
    }

    /// The error of what ran and ended like this.
    pub(super) fn error(&self, result: &ExecutionResult, timeout: &str) -> ToolError {
        match (&result.outcome, self.cause(), result.outcome.failure()) {
            (Outcome::Cancelled { .. }, Some(cause), _) => cause.into(),
            (_, _, Some(failure)) => {
                let hint = match failure.kind {
                    ErrorKind::Timeout => Some(format!("{timeout} gives it more time")),
                    _ => result.hint(),
                };
                ToolError { hint, ..ToolError::new(failure.kind, failure.message) }
            }
            (_, _, None) => {
                ToolError::new(ErrorKind::Internal, "internal error: unexpected outcome")
            }
        }
    }
}
