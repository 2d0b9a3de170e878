//! One run of a script: what it is given, and what may end it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{IoErrors, Limits, ScriptError};

use crate::files::Files;
pub use crate::log::LogSink;

/// What a script runs with.
pub struct RunContext {
    /// The files; `None` where io is off.
    pub files: Option<Arc<Files>>,
    /// How `io` tells a failure of the system.
    pub io_errors: IoErrors,
    /// Where `print` and `warn` go.
    pub log: Arc<LogSink>,
    /// What may end the run.
    pub stop: Arc<StopFlag>,
    /// What the script may use.
    pub limits: Limits,
}

/// Why a run is to end before its script does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StopReason {
    /// It is not: go on.
    None = 0,
    /// The deadline has passed.
    Timeout = 1,
    /// The caller cancelled it.
    Cancelled = 2,
}

impl StopReason {
    /// How a run ends that was stopped for this reason.
    #[must_use]
    pub fn error(self) -> ScriptError {
        let (kind, message) = match self {
            Self::None => (ErrorKind::Internal, "the run was not stopped"),
            Self::Timeout => (ErrorKind::Timeout, "the run's time is up"),
            Self::Cancelled => (ErrorKind::Cancelled, "the run was cancelled"),
        };
        ScriptError { kind, message: message.to_owned(), line: None, traceback: None }
    }
}

/// Set from outside the script's thread, read by the VM's interrupt. Once set it stays.
#[derive(Debug, Default)]
pub struct StopFlag(AtomicU8);

impl StopFlag {
    /// Why the run is to end: one atomic load.
    #[must_use]
    pub fn reason(&self) -> StopReason {
        match self.0.load(Ordering::Relaxed) {
            0 => StopReason::None,
            1 => StopReason::Timeout,
            _ => StopReason::Cancelled,
        }
    }

    /// Stops the run. The first reason stays.
    pub fn stop(&self, reason: StopReason) {
        _ = self.0.compare_exchange(0, reason as u8, Ordering::Relaxed, Ordering::Relaxed);
    }
}
