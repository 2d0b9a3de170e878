//! Errors of our side, their exit codes, and their messages.

use std::io;
use std::path::Path;

pub use sandbox_api::causes;
use sandbox_api::{CancelCause, ErrorKind, Failure, Outcome};

use crate::config;
use crate::remote;
use crate::render::{escaped_line, reason};

/// An error of any kind.
type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// An error of our side. The failure of a script is not one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid use: a flag or an argument.
    #[error("{what}: {why}")]
    Usage {
        /// The flag or argument.
        what: String,
        /// What is wrong with it.
        why: String,
        /// The next step.
        hint: Option<String>,
    },
    /// Invalid configuration.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The controller failed.
    #[error(transparent)]
    Controller(#[from] sandbox_controller::Error),
    /// The controller failed, and an argument suggests why.
    #[error("{source}")]
    Argument {
        /// The failure.
        source: Box<sandbox_controller::Error>,
        /// The next step.
        hint: String,
    },
    /// A service failed, or refused.
    #[error(transparent)]
    Remote(#[from] remote::Error),
    /// The data directory of a service cannot be used.
    #[error(transparent)]
    Store(#[from] sandbox_store::StoreError),
    /// An OS error.
    #[error("{what}")]
    System {
        /// What it concerns.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// Content on the host side cannot be read or written any further.
    #[error("{what}")]
    Content {
        /// A file, or stdin.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// A signal arrived before there was a run to cancel.
    #[error("{}", .0.cause().message())]
    Signalled(Signal),
}

/// The exit code of a command whose output has no reader any more, and which ends for that: as of a program
/// that SIGPIPE ends, without a message.
pub const UNREAD: u8 = 141;

/// A signal that ends the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal is gone.
    Hangup,
}

impl Signal {
    /// Why it cancels what runs.
    pub const fn cause(self) -> CancelCause {
        match self {
            Self::Interrupt => CancelCause::Interrupt,
            Self::Terminate => CancelCause::Terminate,
            Self::Hangup => CancelCause::Hangup,
        }
    }

    /// The exit code of a command that is ended by it.
    pub fn exit_code(self) -> u8 {
        Outcome::Cancelled { cause: self.cause() }.exit_code()
    }
}

impl Error {
    /// Invalid use of `what`, a flag or an argument.
    pub fn usage(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), why: why.into(), hint: None }
    }

    /// Something of the system failed, such as a file or a thread.
    pub fn system(what: impl Into<String>, source: impl Into<BoxedError>) -> Self {
        Self::System { what: what.into(), source: io::Error::other(source) }
    }

    /// stdout cannot be written, although its reader is not gone.
    pub fn stdout(source: impl Into<io::Error>) -> Self {
        Self::System { what: "cannot write to stdout".to_owned(), source: source.into() }
    }

    /// A file of the host that an argument names cannot be used.
    pub fn unusable(what: impl Into<String>, file: &Path, error: &io::Error) -> Self {
        Self::usage(what, format!("{}: {}", file.display(), reason(error)))
    }

    /// The same error with a next step.
    #[must_use]
    pub fn with_hint(self, next: impl Into<String>) -> Self {
        self.with_hint_of(Some(next))
    }

    /// The same error with a next step, if there is one.
    #[must_use]
    pub fn with_hint_of(mut self, next: Option<impl Into<String>>) -> Self {
        if let (Self::Usage { hint, .. }, Some(next)) = (&mut self, next) {
            *hint = Some(next.into());
        }
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Usage { .. } => ErrorKind::Usage,
            Self::Config(config::Error::OverCeiling { .. }) => ErrorKind::Policy,
            Self::Config(_) => ErrorKind::Config,
            Self::Controller(error) => error.kind(),
            Self::Argument { source, .. } => source.kind(),
            Self::Remote(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::Content { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::DiskFull,
                io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                io::ErrorKind::IsADirectory => ErrorKind::IsDirectory,
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Internal,
            },
            Self::System { .. } => ErrorKind::Internal,
            Self::Signalled(_) => ErrorKind::Cancelled,
        }
    }

    /// The exit code of a command that fails with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Signalled(signal) => signal.exit_code(),
            Self::Remote(error) => error.exit_code(),
            _ => sandbox_api::exit_code(self.kind()),
        }
    }

    /// The next step, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::Config(error) => error.hint(),
            Self::Remote(error) => error.hint(),
            Self::Store(error) => error.hint().map(str::to_owned),
            Self::Argument { hint, .. } => Some(hint.clone()),
            Self::Controller(sandbox_controller::Error::State { .. }) => {
                Some("set XDG_RUNTIME_DIR to a directory that is private to this user".to_owned())
            }
            Self::Controller(error) => {
                use sandbox_controller::ConnectError::NoEngine;
                use sandbox_controller::Error::{Connect, Engine, StartFailed};
                let doctor = match error {
                    // The given value is wrong, not the machine.
                    error if matches!(error.kind(), ErrorKind::Usage | ErrorKind::Image) => None,
                    Connect(NoEngine { .. }) | Engine { .. } | StartFailed { .. } => {
                        Some("`sandboxctl doctor` says more".to_owned())
                    }
                    _ => None,
                };
                let hints: Vec<_> = error.hint().into_iter().chain(doctor).collect();
                (!hints.is_empty()).then(|| hints.join("; "))
            }
            Self::System { .. } | Self::Content { .. } | Self::Signalled(_) => None,
        }
    }

    /// The message with all its causes, on one line.
    pub fn message(&self) -> String {
        escaped_line(&causes(self)).into_owned()
    }

    /// The message and, on a line of its own, the hint.
    #[cfg(test)]
    pub fn to_text(&self) -> String {
        match self.hint() {
            Some(hint) => format!("{}\nhint: {}", self.message(), escaped_line(&hint)),
            None => self.message(),
        }
    }

    /// For the result document.
    pub fn document(&self) -> Failure {
        Failure::new(self.kind(), self.message(), self.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_and_hint_follow_the_message() {
        let gone = || io::Error::new(io::ErrorKind::NotFound, "gone\nerror: forged");
        let error = Error::System { what: "the working directory".into(), source: gone() };
        assert_eq!(error.to_text(), "the working directory: gone\\nerror: forged");
        let error = Error::usage("--in x", "no such file").with_hint("look");
        assert_eq!(error.to_text(), "--in x: no such file\nhint: look");
    }

    #[test]
    fn exit_codes_are_as_documented() {
        assert_eq!(Error::usage("SCRIPT", "missing").exit_code(), 2);
        let content = |kind: io::ErrorKind| {
            let error = Error::Content { what: "a.bin".to_owned(), source: kind.into() };
            (error.kind(), error.exit_code())
        };
        assert_eq!(content(io::ErrorKind::StorageFull), (ErrorKind::DiskFull, 1));
        assert_eq!(content(io::ErrorKind::Other), (ErrorKind::Internal, 125));
        assert_eq!(Error::Signalled(Signal::Interrupt).exit_code(), 130);
        assert_eq!(Error::Signalled(Signal::Terminate).exit_code(), 143);
        assert_eq!(Error::Signalled(Signal::Hangup).exit_code(), 129);
        let state = sandbox_controller::Error::State {
            path: "/x".into(),
            source: io::Error::other("it is not a directory"),
        };
        let state = Error::from(state);
        assert_eq!(state.exit_code(), 125);
        assert!(state.to_text().contains("XDG_RUNTIME_DIR"));
    }
}
