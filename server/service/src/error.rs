//! Why a service refuses a request, or cannot do what it asks.

use std::error::Error;
use std::fmt;
use std::io;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{
    ByteSize, DiskShortage, ErrorKind, Failure, OverCeiling, Problem, ProblemKind as Kind,
    WorkloadError,
};
use sandbox_store::StoreError;

const SOON: Duration = Duration::from_secs(1);

/// Why a request was refused or failed. Its messages have no secret, and no path of the host but for
/// [`failure_on_host`](Self::failure_on_host).
#[derive(Debug, Clone)]
pub struct ServiceError {
    problem: Box<Problem>,
    kind: ErrorKind,
    retry_after: Option<Duration>,
    is_transient: bool,
    source: Option<Arc<dyn Error + Send + Sync>>,
    /// The same for a reader on this host, where it has more.
    on_host: Option<Box<Failure>>,
}

impl ServiceError {
    fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let problem = Box::new(Problem::new(kind, detail));
        let kind = error_kind(kind);
        let (retry_after, is_transient, source, on_host) = (None, false, None, None);
        Self { problem, kind, retry_after, is_transient, source, on_host }
    }

    /// No object of this subject has this id: `what` is `execution` or `sandbox`.
    pub fn not_found(what: &str, id: &str) -> Self {
        Self::new(Kind::NotFound, format!("there is no {what} '{}'", shown(id)))
    }

    /// A path is not one of a file that can be read.
    pub fn file_refused(path: &str, problem: &str, kind: ErrorKind) -> Self {
        Self::new(kind.into(), format!("cannot read '{path}': {problem}"))
            .with_kind(kind)
            .with_hint("the list of files names those that can be read")
    }

    /// A sandbox has as many processes as it may, or a process as many readers.
    pub fn too_many_in_sandbox(failure: Failure) -> Self {
        Self::of_failure(Kind::QuotaExceeded, failure).with_hint("end one that is not needed")
    }

    /// There is no process of this id in the sandbox's generation.
    pub fn no_process(id: u32) -> Self {
        let error = Self::not_found("process", &id.to_string());
        error.with_hint(
            "a process is forgotten 10 minutes after its end; the sandbox lists the others",
        )
    }

    /// The subject has used what it may; there is more again after this time, if that is known.
    pub fn quota_exceeded(what: &str, retry_after: Option<Duration>) -> Self {
        let error = Self::new(Kind::QuotaExceeded, format!("the quota of {what} is used up"));
        match retry_after {
            Some(time) => error.after(time),
            None => error.with_hint("delete what is not needed any more"),
        }
    }

    /// A member of a request, such as `inputs`, is invalid.
    pub fn invalid(field: &str, problem: impl Into<String>) -> Self {
        Self::of_member(Kind::Invalid, field, problem.into())
    }

    /// A member of a request asks for what this service does not allow.
    pub fn forbidden(field: &str, problem: impl Into<String>) -> Self {
        Self::of_member(Kind::Policy, field, problem.into())
    }

    /// A member of a request is a limit above its ceiling.
    pub(crate) fn over_ceiling(field: &str, over: &OverCeiling) -> Self {
        let OverCeiling { asked, ceiling, .. } = over;
        let problem = format!("{asked} is more than {ceiling}, the most that is allowed here");
        Self::invalid(field, problem).with_kind(ErrorKind::Policy)
    }

    fn of_member(kind: Kind, field: &str, problem: String) -> Self {
        Self::new(kind, format!("{field}: {problem}"))
            .at(format!("#/{}", field.replace('.', "/")), problem)
    }

    /// A sandbox could not be used.
    pub fn sandbox(failure: Failure) -> Self {
        Self::of_failure(failure.kind.into(), failure)
    }

    /// What began was cancelled.
    pub(crate) fn cancelled() -> Self {
        Self::sandbox(Failure::new(ErrorKind::Cancelled, "cancelled", None))
    }

    /// A sandbox could not be started. If it is transient it may start a little later: the engine does not
    /// answer.
    pub fn not_started(failure: Failure, is_transient: bool) -> Self {
        let kind = match failure.kind {
            ErrorKind::Internal => Kind::Internal,
            ErrorKind::Policy => Kind::Policy,
            ErrorKind::Usage | ErrorKind::InvalidRequest | ErrorKind::Image => Kind::Invalid,
            _ => Kind::Unavailable,
        };
        Self { is_transient, ..Self::of_failure(kind, failure) }
    }

    fn of_failure(kind: Kind, failure: Failure) -> Self {
        let mut error = Self::new(kind, failure.message).with_kind(failure.kind);
        error.problem.hint = failure.hint;
        error
    }

    /// Files of the service failed.
    pub fn files(cause: impl Into<io::Error>) -> Self {
        Self::unavailable("the service cannot use its files", Arc::new(cause.into()))
    }

    fn unavailable(detail: &str, cause: Arc<dyn Error + Send + Sync>) -> Self {
        let error = Self::new(Kind::Unavailable, detail).with_kind(ErrorKind::Internal);
        Self { source: Some(cause), ..error.after(SOON) }
    }

    /// A fault of the service.
    pub fn internal(detail: &str) -> Self {
        Self::new(Kind::Internal, format!("internal error: {detail}"))
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.problem.hint = Some(hint.into());
        self
    }

    pub(crate) fn with_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    pub(crate) fn on_host(self, failure: Failure) -> Self {
        Self { on_host: Some(Box::new(failure)), ..self }
    }

    fn at(mut self, pointer: String, detail: String) -> Self {
        *self.problem = self.problem.at(pointer, detail);
        self
    }

    fn after(self, time: Duration) -> Self {
        Self { retry_after: Some(time), ..self }
    }

    /// As an answer of the API.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The error's kind.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// When to try again, if that may help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether the same may work a little later: the engine does not answer.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        self.is_transient
    }

    /// As data.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let Problem { detail, hint, .. } = &*self.problem;
        Failure::new(self.kind, detail.clone(), hint.clone())
    }

    /// As data for a reader on this host: with its paths.
    #[must_use]
    pub fn failure_on_host(&self) -> Failure {
        self.on_host.as_deref().cloned().unwrap_or_else(|| self.failure())
    }

    /// Whether the store refused a change because what is changed belongs to another session.
    pub(crate) fn is_fenced(&self) -> bool {
        matches!(self.of_store(), Some(StoreError::Fenced { .. }))
    }

    /// What the store said, if it failed.
    pub(crate) fn of_store(&self) -> Option<&StoreError> {
        self.source.as_deref()?.downcast_ref()
    }
}

/// A constructor a row: the problem of the error, and its text; its kind, if that is not the one of the problem; the
/// next step; when to try again. The texts have the arguments in braces.
macro_rules! refusals {
    ($(
        $(#[$doc:meta])*
        $vis:vis fn $name:ident($($argument:ident: $type:ty),*) = $problem:expr, $detail:literal
        $(, kind $kind:ident)? $(, hint $hint:literal)? $(, after $time:expr)?;
    )+) => {
        impl ServiceError {
            $(
                $(#[$doc])*
                $vis fn $name($($argument: $type),*) -> Self {
                    Self::new($problem, format!($detail))
                        $(.with_kind(ErrorKind::$kind))?
                        $(.with_hint(format!($hint)))?
                        $(.after($time))?
                }
            )+
        }
    };
}

refusals! {
    /// A service that has no previews.
    pub(crate) fn no_previews() = Kind::Invalid, "this service has no previews",
        hint "server.preview_domain is the domain of their hosts; `sandbox port` forwards a port";

    /// A cluster, where other nodes do not know the sandbox of a front end.
    pub(crate) fn no_attached_previews() = Kind::Invalid,
        "in a cluster the ports of this sandbox have no previews",
        hint "POST /v1/sandboxes makes a sandbox that has some";

    /// A service whose previews all need a token.
    pub(crate) fn no_public_previews() = Kind::Policy, "previews of this service are not public",
        hint "server.public_ports allows it; without `public` requests send a token";

    /// An execution left no file of this path.
    pub fn file_not_found(path: &str) = Kind::NotFound, "there is no file '{path}'";

    /// An execution keeps no files.
    pub fn no_files(id: &str) = Kind::NotFound, "the execution {id} keeps no files";

    /// Files of an execution were kept, and are not there.
    pub fn files_lost(id: &str) = Kind::NotFound,
        "the files of the execution {id} are not here any more",
        hint "a backup of the database has results and no files";

    /// An execution left more than an archive has.
    pub fn too_many_files(id: &str, most: u64) = ErrorKind::TooManyFiles.into(),
        "the execution {id} left more than {most} files and directories, the most for an archive",
        hint "download its files one by one";

    /// Files of an execution that has not ended.
    pub fn not_ended(id: &str) = Kind::Conflict, "the execution {id} has not ended",
        kind Busy, hint "wait for its end: its files are final then";

    /// A key was used for another request.
    pub fn key_reused() = Kind::KeyReused, "the idempotency key was used for another request",
        hint "use a new key for a new request";

    /// The request of this key is just being accepted.
    pub fn key_in_flight() = Kind::InFlight, "a request with this idempotency key is in flight",
        hint "repeat the request with the same key", after SOON;

    /// A sandbox of this name has another spec.
    pub fn name_taken(name: &str) = Kind::Conflict,
        "a sandbox named '{name}' exists with a different spec",
        hint "delete it first, or use another name";

    /// Another node of the cluster has just created a sandbox of this name.
    pub fn name_elsewhere(name: &str) = Kind::Unavailable,
        "another node has just created a sandbox named '{name}'", hint "ask again", after SOON;

    /// A sandbox of another node of the cluster.
    pub fn sandbox_elsewhere(id: &str) = Kind::Unavailable,
        "the sandbox {id} is at another node, which cannot be reached",
        hint "try again later", after SOON;

    /// Another process of this user has a sandbox of this name.
    pub fn name_in_use(name: &str) = Kind::Conflict,
        "another program has a sandbox named '{name}'",
        hint "wait until that one is closed, or use another name";

    /// A handle of an earlier generation.
    pub fn stale_generation(id: &str, asked: u64) = Kind::Gone,
        "generation {asked} of the sandbox {id} is gone",
        hint "its processes are gone and its files are kept: use it without a generation";

    /// A sandbox that existed.
    pub fn sandbox_gone(id: &str) = Kind::Gone, "the sandbox {id} is gone",
        hint "create another one";

    /// A sandbox without a container, of what needs the one that there was.
    pub fn not_running(id: &str) = Kind::Gone,
        "the sandbox {id} is stopped, and its processes are gone",
        hint "its files are kept: the next command or process starts it";

    /// Something runs in a sandbox that is to be paused.
    pub fn sandbox_in_use(id: &str) = Kind::Conflict,
        "a request in the sandbox {id} has not ended",
        kind Busy, hint "pause it when its executions and file operations have ended";

    /// As many sandboxes are paused as may be.
    pub fn too_many_paused() = Kind::QuotaExceeded, "no more sandboxes can be paused here",
        hint "resume or delete another one; server.max_paused is the most";

    /// A sandbox whose processes end with their commands.
    pub fn keeps_no_processes() = Kind::Invalid,
        "the processes of this sandbox end with their commands",
        hint "create a sandbox whose spec has `\"processes\": \"kept\"`";

    /// The subject has as many processes as it may, or as much of their output is kept as may be.
    pub fn too_many_processes() = Kind::QuotaExceeded,
        "no more processes, or output that may be kept of them, are allowed here",
        hint "stop a process or delete a sandbox";

    /// The stdin of a process is not open: it never was, or was closed.
    pub fn no_stdin() = Kind::NoStdin, "the process has no open stdin",
        kind Conflict, hint "start it with `\"stdin\": true`";

    /// A process has ended.
    pub fn process_ended() = Kind::ProcessEnded, "the process has ended", kind Conflict;

    /// A process does not read its stdin.
    pub fn stdin_full() = Kind::StdinFull, "the process does not read its stdin",
        kind Busy, hint "write the rest later", after SOON;

    /// A process without a terminal.
    pub fn no_terminal() = Kind::Conflict, "the process has no terminal", hint "start it with `pty`";

    /// A port that the sandbox's spec does not open.
    pub fn port_not_open(port: u16) = Kind::Policy, "the sandbox's spec does not list port {port}",
        hint "create a sandbox whose spec has `\"ports\": [{port}]`, or \"any\"";

    /// Nothing in the sandbox accepts connections to a port.
    pub fn port_closed(port: u16) = Kind::PortClosed,
        "nothing in the sandbox accepts connections to port {port}", kind NotFound,
        hint "a server listens on 127.0.0.1, ::1 or on all addresses; it may still be starting";

    /// The subject asks too often.
    pub fn too_fast(retry_after: Duration) = Kind::RateLimited, "too many requests",
        hint "try again later", after retry_after;

    /// So many executions wait, and no more may.
    pub fn full(queued: u64) = Kind::Full, "the queue is full: {queued} executions wait",
        hint "try again later", after SOON;

    /// The requests that wait have as many bytes as they may.
    pub fn full_of_bytes(most: ByteSize) = Kind::Full,
        "the queue is full: the requests that wait may have {most} at one time",
        hint "try again later", after SOON;

    /// The file system of the data directory has less left than its reserve.
    pub fn disk_full(shortage: DiskShortage) = ErrorKind::DiskFull.into(),
        "the server's disk has {shortage} left (limits.disk_reserve)",
        hint "results and files that are deleted or expire make room";

    /// The service is being shut down.
    pub fn shutting_down() = Kind::Unavailable, "the service is being shut down",
        after Duration::from_secs(5);
}

/// The kind of an error that is answered like this, unless it has another.
const fn error_kind(kind: Kind) -> ErrorKind {
    match kind {
        Kind::Sandbox(kind) => kind,
        Kind::NotFound | Kind::Gone => ErrorKind::NotFound,
        Kind::Conflict => ErrorKind::Conflict,
        Kind::Invalid | Kind::KeyReused => ErrorKind::InvalidRequest,
        Kind::Policy => ErrorKind::Policy,
        Kind::InFlight
        | Kind::RateLimited
        | Kind::QuotaExceeded
        | Kind::Full
        | Kind::Unavailable => ErrorKind::Busy,
        _ => ErrorKind::Internal,
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.problem.detail)
    }
}

impl Error for ServiceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        match &error {
            // Another node was first, or took this one for dead: that is no failure of the store.
            StoreError::Fenced { .. } | StoreError::SessionLost => {
                tracing::debug!(%error, "the store refused a change");
            }
            // A log of text has no causes of its own.
            failed => {
                let causes = iter::successors(Some(failed as &dyn Error), |&it| it.source());
                let causes: Vec<_> = causes.map(ToString::to_string).collect();
                tracing::error!(error = causes.join(": "), "the store failed");
            }
        }
        Self::unavailable("the service cannot use its store", Arc::new(error))
    }
}

impl From<OverCeiling> for ServiceError {
    fn from(over: OverCeiling) -> Self {
        Self::over_ceiling(&format!("limits.{}", over.key.json_name()), &over)
    }
}

impl From<WorkloadError> for ServiceError {
    fn from(error: WorkloadError) -> Self {
        let mut invalid = Self::invalid(error.field, error.problem).with_kind(error.kind);
        invalid.problem.hint = error.hint;
        invalid
    }
}

/// An id that a caller wrote, short enough to be repeated.
fn shown(id: &str) -> String {
    id.chars().filter(|it| !it.is_control()).take(64).collect()
}
