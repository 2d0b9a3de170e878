//! Stops a script, a command or a file operation early.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, Thread};

use sandbox_protocol::message::ScriptError;
use sandbox_protocol::{ErrorKind, WireError};

use crate::wake::Wake;

/// Why a run must end before its script does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// It was not stopped.
    None,
    /// The deadline has passed.
    Timeout,
    /// The caller cancelled it.
    Cancelled,
}

impl StopReason {
    /// The error of a run that was stopped for this reason.
    pub fn error(self) -> ScriptError {
        let (kind, message) = match self {
            Self::None => (ErrorKind::Internal, "the run was not stopped"),
            Self::Timeout => (ErrorKind::Timeout, "script timed out"),
            Self::Cancelled => (ErrorKind::Cancelled, "the run was cancelled"),
        };
        ScriptError::new(kind, message)
    }
}

/// Set from outside the script's thread, read by the VM's interrupt. Once set it stays set.
#[derive(Debug, Default)]
pub struct StopFlag {
    reason: OnceLock<StopReason>,
    at_once: AtomicBool,
    /// The threads that wait in `poll` meanwhile.
    waiting: Mutex<Option<Arc<Wake>>>,
    /// The script's thread, while it waits for the host. Scripts alone have no `poll`.
    parked: Mutex<Option<Thread>>,
}

impl StopFlag {
    /// Why the run must end: one atomic load.
    pub fn reason(&self) -> StopReason {
        self.reason.get().copied().unwrap_or(StopReason::None)
    }

    /// Whether processes are killed without a grace.
    pub fn is_at_once(&self) -> bool {
        self.at_once.load(Ordering::Relaxed)
    }

    /// Stops the run, and has its processes killed without a grace.
    pub fn stop_at_once(&self, reason: StopReason) {
        self.at_once.store(true, Ordering::Relaxed);
        self.stop(reason);
    }

    /// Stops the run. The first reason stays.
    pub fn stop(&self, reason: StopReason) {
        _ = self.reason.set(reason);
        if let Some(waiting) = &*self.waiting.lock().unwrap() {
            waiting.wake();
        }
        if let Some(parked) = &*self.parked.lock().unwrap() {
            parked.unpark();
        }
    }

    /// Runs work that parks its thread, which a stop unparks.
    pub fn while_parked<T>(&self, work: impl FnOnce() -> T) -> T {
        *self.parked.lock().unwrap() = Some(thread::current());
        let done = work();
        *self.parked.lock().unwrap() = None;
        done
    }

    /// A flag of work that waits for `wake`, which a stop also wakes.
    pub fn waking(wake: &Arc<Wake>) -> Self {
        Self { waiting: Mutex::new(Some(wake.clone())), ..Self::default() }
    }

    /// Runs work that waits for `wake`, which a stop also wakes; also a stop that came before.
    pub fn while_waking<T>(&self, wake: &Arc<Wake>, work: impl FnOnce() -> T) -> T {
        *self.waiting.lock().unwrap() = Some(wake.clone());
        if self.reason() != StopReason::None {
            wake.wake();
        }
        let done = work();
        *self.waiting.lock().unwrap() = None;
        done
    }
}

/// Commands may have used up the sandbox's process limit, which also counts threads.
pub fn no_thread(error: std::io::Error) -> WireError {
    let message =
        format!("no thread can be started, as where there are limits.pids of them: {error}");
    WireError::busy(message)
}
