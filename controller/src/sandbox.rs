//! A sandbox's life.

use std::path::Path;

use crate::error::Error;
use crate::outcome::CancelCause;
use crate::report::{LogEntry, RunResult};
use crate::spec::Script;

/// A sandbox: one container, which serves it alone. Dropped without [`close`](Self::close): killed
/// and removed.
#[derive(Debug)]
pub struct Sandbox {
    id: String,
}

/// A run under way.
#[derive(Debug)]
pub struct Run {
    _private: (),
}

/// Ends a run from anywhere.
#[derive(Debug, Clone)]
pub struct CancelHandle {
    _private: (),
}

impl Sandbox {
    /// Its id, which is also in its container's labels and name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its io dir on the host, absolute.
    #[must_use]
    pub fn io_dir(&self) -> Option<&Path> {
        None
    }

    /// Runs a script to its end: [`start`](Self::start) and [`Run::wait`].
    ///
    /// # Errors
    ///
    /// [`Error`] where our side failed. How the script ended is data.
    pub async fn run(&self, script: Script) -> Result<RunResult, Error> {
        self.start(script).await?.wait().await
    }

    /// Starts a script. One runs at a time; another waits for it.
    ///
    /// # Errors
    ///
    /// [`Error`] where our side failed, or the sandbox has ended.
    #[expect(clippy::unused_async, reason = "the body comes next")]
    pub async fn start(&self, _script: Script) -> Result<Run, Error> {
        Err(Error::Ended { detail: "not there yet".to_owned() })
    }

    /// Ends it: the agent is told, the container is removed.
    ///
    /// # Errors
    ///
    /// [`Error`] where the container could not be removed. The next command will.
    #[expect(clippy::unused_async, reason = "the body comes next")]
    pub async fn close(self) -> Result<(), Error> {
        Ok(())
    }
}

impl Run {
    /// The next entry of the log, as it comes; `None` when no more will.
    #[expect(clippy::unused_async, reason = "the body comes next")]
    pub async fn next_log(&mut self) -> Option<LogEntry> {
        None
    }

    /// A handle that ends this run from anywhere.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle { _private: () }
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// [`Error`] where our side failed. How the script ended is data.
    #[expect(clippy::unused_async, reason = "the body comes next")]
    pub async fn wait(self) -> Result<RunResult, Error> {
        Err(Error::Ended { detail: "not there yet".to_owned() })
    }
}

impl CancelHandle {
    /// Ends the run. A second call does not wait for the agent: the container is killed at once.
    pub fn cancel(&self, _cause: CancelCause) {}
}
