//! Why a service refuses a request, or cannot do what it asks.

use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{ByteSize, DiskShortage, ErrorKind, Failure, OverCeiling, WorkloadError};
use sandbox_store::StoreError;

use crate::runner::Failed;

/// Why a request was refused or failed. Its messages have no path of the host and no secret.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// No object of this subject has this id.
    #[error("there is no {what} '{id}'")]
    NotFound {
        /// `execution` or `sandbox`.
        what: &'static str,
        /// The id as given.
        id: String,
    },
    /// An execution left no file of this path.
    #[error("there is no file '{path}'")]
    FileNotFound {
        /// The path as given.
        path: String,
    },
    /// A path is not one of a file that can be read.
    #[error("cannot read '{path}': {problem}")]
    FileRefused {
        /// The path as given.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
        /// Its kind.
        kind: ErrorKind,
    },
    /// An execution keeps no files.
    #[error("the execution {id} keeps no files")]
    NoFiles {
        /// Its id.
        id: String,
    },
    /// An execution left more than an archive has.
    #[error(
        "the execution {id} left more than {most} files and directories, the most for an archive"
    )]
    TooManyFiles {
        /// Its id.
        id: String,
        /// The most.
        most: u64,
    },
    /// Files of an execution that has not ended.
    #[error("the execution {id} has not ended")]
    NotEnded {
        /// Its id.
        id: String,
    },
    /// A key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// The request of this key is just being accepted.
    #[error("a request with this idempotency key is in flight")]
    KeyInFlight,
    /// A sandbox of this name has another spec.
    #[error("a sandbox named '{name}' exists with a different spec")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A handle of an earlier generation.
    #[error("generation {asked} of the sandbox {id} is gone")]
    StaleGeneration {
        /// The sandbox.
        id: String,
        /// The generation of the handle.
        asked: u64,
    },
    /// A sandbox that existed.
    #[error("the sandbox {id} is gone")]
    SandboxGone {
        /// Its id.
        id: String,
    },
    /// The subject asks too often.
    #[error("too many requests")]
    TooFast {
        /// When to try again.
        retry_after: Duration,
    },
    /// The subject has used what it may.
    #[error("the quota of {what} is used up")]
    QuotaExceeded {
        /// What there is no more of.
        what: &'static str,
        /// When there is more again, if that is known.
        retry_after: Option<Duration>,
    },
    /// Too many executions wait.
    #[error("the queue is full: {queued} executions wait")]
    Full {
        /// How many wait.
        queued: usize,
    },
    /// The requests that wait have as many bytes as they may.
    #[error("the queue is full: the requests that wait may have {most} at one time")]
    FullOfBytes {
        /// How many.
        most: ByteSize,
    },
    /// The file system of the data directory has less left than its reserve.
    #[error("the server's disk has {shortage} left (limits.disk_reserve)")]
    DiskFull {
        /// What it is short of.
        shortage: DiskShortage,
    },
    /// The service is being shut down.
    #[error("the service is being shut down")]
    ShuttingDown,
    /// A part of a request is invalid.
    #[error("{field}: {problem}")]
    Invalid {
        /// The member, such as `inputs`.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What to do about it.
        hint: Option<String>,
        /// Its kind.
        kind: ErrorKind,
    },
    /// A request asks for what this service does not allow.
    #[error("{field}: {problem}")]
    Forbidden {
        /// The member, such as `image`.
        field: String,
        /// What is not allowed.
        problem: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// A limit is above its ceiling.
    #[error("limits.{}: {} is more than {}, the most that is allowed here", .0.key.json_name(), .0.asked, .0.ceiling)]
    OverCeiling(#[from] OverCeiling),
    /// A sandbox could not be used.
    #[error("{}", .0.message)]
    Sandbox(Failure),
    /// A sandbox could not be started.
    #[error("{}", .failure.message)]
    NotStarted {
        /// Why.
        failure: Failure,
        /// Whether it may start a little later: the engine does not answer.
        is_transient: bool,
    },
    /// The store failed.
    #[error("the service cannot use its store")]
    Store(#[source] Arc<StoreError>),
    /// Files of the service failed.
    #[error("the service cannot use its files")]
    Files(#[source] Arc<std::io::Error>),
    /// A fault of the service.
    #[error("internal error: {detail}")]
    Internal {
        /// What happened.
        detail: &'static str,
    },
}

/// What kind of answer a [`ServiceError`] is: one for each status of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServiceErrorKind {
    /// There is no such thing, for this subject.
    NotFound,
    /// It exists as something else, or is in use.
    Conflict,
    /// It existed, and does not any more.
    Gone,
    /// The request is invalid.
    Invalid,
    /// The request is not allowed here.
    Forbidden,
    /// The subject asks for too much.
    TooMany,
    /// The service has too much to do, or is being shut down, or its store or engine fails.
    Unavailable,
    /// A fault of the service.
    Internal,
}

impl From<WorkloadError> for ServiceError {
    fn from(error: WorkloadError) -> Self {
        let WorkloadError { field, problem, hint, kind } = error;
        Self::Invalid { field: field.to_owned(), problem, hint, kind }
    }
}

impl ServiceError {
    pub(crate) fn invalid(field: &str, problem: impl Into<String>) -> Self {
        let (field, problem) = (field.to_owned(), problem.into());
        Self::Invalid { field, problem, hint: None, kind: ErrorKind::InvalidRequest }
    }

    pub(crate) fn forbidden(field: &str, problem: impl Into<String>) -> Self {
        Self::Forbidden { field: field.to_owned(), problem: problem.into(), hint: None }
    }

    pub(crate) fn with_hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Invalid { hint, .. } | Self::Forbidden { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    pub(crate) fn with_kind(mut self, is: ErrorKind) -> Self {
        if let Self::Invalid { kind, .. } = &mut self {
            *kind = is;
        }
        self
    }

    pub(crate) fn no_execution(id: &str) -> Self {
        Self::NotFound { what: "execution", id: shown(id) }
    }

    pub(crate) fn no_sandbox(id: &str) -> Self {
        Self::NotFound { what: "sandbox", id: shown(id) }
    }

    /// What kind of answer it is.
    #[must_use]
    pub const fn answer(&self) -> ServiceErrorKind {
        use ServiceErrorKind as Kind;
        match self {
            Self::NotFound { .. } | Self::FileNotFound { .. } | Self::NoFiles { .. } => {
                Kind::NotFound
            }
            Self::NotEnded { .. } | Self::KeyInFlight | Self::NameTaken { .. } => Kind::Conflict,
            Self::StaleGeneration { .. } | Self::SandboxGone { .. } => Kind::Gone,
            Self::Invalid { .. }
            | Self::OverCeiling(_)
            | Self::FileRefused { .. }
            | Self::TooManyFiles { .. }
            | Self::KeyReused => Kind::Invalid,
            Self::Forbidden { .. } => Kind::Forbidden,
            Self::TooFast { .. } | Self::QuotaExceeded { .. } => Kind::TooMany,
            Self::Full { .. }
            | Self::FullOfBytes { .. }
            | Self::DiskFull { .. }
            | Self::ShuttingDown
            | Self::Store(_)
            | Self::Files(_) => Kind::Unavailable,
            Self::Sandbox(failure) | Self::NotStarted { failure, .. } => match failure.kind {
                ErrorKind::Internal => Kind::Internal,
                ErrorKind::Policy => Kind::Forbidden,
                ErrorKind::Usage | ErrorKind::InvalidRequest | ErrorKind::Image => Kind::Invalid,
                _ => Kind::Unavailable,
            },
            Self::Internal { .. } => Kind::Internal,
        }
    }

    /// The error's kind.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. }
            | Self::FileNotFound { .. }
            | Self::NoFiles { .. }
            | Self::StaleGeneration { .. }
            | Self::SandboxGone { .. } => ErrorKind::NotFound,
            Self::Invalid { kind, .. } | Self::FileRefused { kind, .. } => *kind,
            Self::TooManyFiles { .. } => ErrorKind::TooManyFiles,
            Self::KeyReused => ErrorKind::InvalidRequest,
            Self::NotEnded { .. } | Self::KeyInFlight => ErrorKind::Busy,
            Self::NameTaken { .. } => ErrorKind::Conflict,
            Self::TooFast { .. }
            | Self::QuotaExceeded { .. }
            | Self::Full { .. }
            | Self::FullOfBytes { .. }
            | Self::ShuttingDown => ErrorKind::Busy,
            Self::DiskFull { .. } => ErrorKind::DiskFull,
            Self::Forbidden { .. } | Self::OverCeiling(_) => ErrorKind::Policy,
            Self::Sandbox(failure) | Self::NotStarted { failure, .. } => failure.kind,
            Self::Store(_) | Self::Files(_) | Self::Internal { .. } => ErrorKind::Internal,
        }
    }

    /// When to try again, if that may help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::TooFast { retry_after } => Some(*retry_after),
            Self::QuotaExceeded { retry_after, .. } => *retry_after,
            Self::Full { .. } | Self::FullOfBytes { .. } | Self::Store(_) | Self::Files(_) => {
                Some(Duration::from_secs(1))
            }
            Self::ShuttingDown => Some(Duration::from_secs(5)),
            Self::KeyInFlight => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// A suggested next step, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Invalid { hint, .. } | Self::Forbidden { hint, .. } => return hint.clone(),
            Self::Sandbox(failure) | Self::NotStarted { failure, .. } => {
                return failure.hint.clone();
            }
            Self::NotEnded { .. } => "wait for its end: its files are final then",
            Self::KeyReused => "use a new key for a new request",
            Self::KeyInFlight => "ask again with the same key",
            Self::NameTaken { .. } => "delete it first, or use another name",
            Self::StaleGeneration { .. } => {
                "its processes are gone and its files are kept: use it without a generation"
            }
            Self::SandboxGone { .. } => "create another one",
            Self::Full { .. } | Self::FullOfBytes { .. } | Self::TooFast { .. } => {
                "try again later"
            }
            Self::DiskFull { .. } => "results and files that are deleted or expire make room",
            Self::QuotaExceeded { retry_after: None, .. } => "delete what is not needed any more",
            Self::TooManyFiles { .. } => "download its files one by one",
            Self::FileRefused { .. } => "the list of files names those that can be read",
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// As data.
    #[must_use]
    pub fn failure(&self) -> Failure {
        Failure::new(self.kind(), self.to_string(), self.hint())
    }
}

impl From<Failed> for ServiceError {
    /// Of the start of a sandbox.
    fn from(failed: Failed) -> Self {
        Self::NotStarted { failure: *failed.failure, is_transient: failed.is_transient }
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        tracing::error!(error = &error as &dyn std::error::Error, "the store failed");
        Self::Store(Arc::new(error))
    }
}

/// An id that a caller wrote, short enough to be repeated.
fn shown(id: &str) -> String {
    id.chars().filter(|it| !it.is_control()).take(64).collect()
}
