//! Why measuring could not go on.

use std::io;
use std::path::PathBuf;

use crate::stats::ENOUGH;

/// Why measuring could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A signal asked for the end.
    #[error("interrupted")]
    Interrupted,
    /// A file or folder.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A program that is there could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Which.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// A measured program did something else than what is measured.
    #[error("`{command}` {how}{}", said(stderr))]
    Command {
        /// Its command line.
        command: String,
        /// What it did.
        how: String,
        /// What it said.
        stderr: String,
    },
    /// The controller failed.
    #[error(transparent)]
    Controller(#[from] sandbox_controller::Error),
    /// A measured script did something else than what is measured.
    #[error("unexpected end of a script: {0}")]
    Outcome(String),
    /// A file operation did something else than what is measured.
    #[error("unexpected result of {0}")]
    Operation(String),
    /// A sandbox is expected to have one process, which is looked at through `/proc`.
    #[error("there are {0} processes in the cgroup of a sandbox, where its agent alone should be")]
    Agent(usize),
    /// A worker answered with something that makes no sense.
    #[error("a worker's answer makes no sense")]
    Worker(#[source] serde_json::Error),
    /// Too few measurements for the record.
    #[error("--write-docs: figures of record are of at least {ENOUGH} measurements")]
    TooFew,
    /// The page of the documentation has no place for a table.
    #[error("{} has no place for the figures of {id}", path.display())]
    NoPlace {
        /// The page.
        path: PathBuf,
        /// The table.
        id: &'static str,
    },
}

fn said(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        stderr => format!(": {stderr}"),
    }
}

impl Error {
    /// For `map_err`: a file or folder.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// The message and its causes.
    #[must_use]
    pub fn full_message(&self) -> String {
        let mut message = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        message
    }
}
