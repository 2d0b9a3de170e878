//! What the API needs of a service.

use std::fs::File;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use sandbox_api::EventRecord;
use sandbox_api::changes::ChangeManifest;
use sandbox_api::files::{WriteMode, WriteReply};
use sandbox_api::operation::{Envelope, OperationRequest};
use sandbox_api::service::{
    AcceptedExecution, ExecutionKind, ExecutionList, ExecutionRequest, ExecutionState,
    ExecutionSummary, ExtendRequest, FileList, Health, SandboxList, SandboxRequest, SandboxView,
    Subject, UsageTotals,
};

use crate::refusal::Refusal;

/// The answer of a [`Backend`].
pub type Reply<'a, T> = BoxFuture<'a, Result<T, Refusal>>;

/// What a subject has and asks. An object of another subject is not found.
pub trait Backend: Send + Sync + 'static {
    /// Accepts an execution, durably. With the key of an earlier request
    /// it is that one. In a kept sandbox where one is named.
    fn submit<'a>(
        &'a self,
        subject: &'a Subject,
        request: ExecutionRequest,
        key: Option<String>,
        sandbox: Option<SandboxHandle>,
    ) -> Reply<'a, AcceptedExecution>;
    /// An execution; one that has not ended is waited for up to this long.
    fn execution<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        wait: Duration,
    ) -> Reply<'a, StoredExecution>;
    /// Cancels an execution, if it has not ended.
    fn cancel<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, StoredExecution>;
    /// A page of executions.
    fn executions<'a>(
        &'a self,
        subject: &'a Subject,
        filter: ListFilter,
    ) -> Reply<'a, ExecutionList>;
    /// The events of an execution after this number, up to its end.
    fn events<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        after: u64,
    ) -> Reply<'a, BoxStream<'static, Result<EventRecord, Refusal>>>;
    /// The files that an execution left.
    fn files<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, FileList>;
    /// One of them.
    fn open_file<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        path: &'a [u8],
    ) -> Reply<'a, OpenFile>;
    /// All of them.
    fn archive<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        format: ArchiveFormat,
    ) -> Reply<'a, BoxStream<'static, io::Result<Bytes>>>;
    /// What an execution changed in its io dir.
    fn changes<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, ChangeManifest>;

    /// Creates a sandbox, or finds the one of this name.
    fn create_sandbox<'a>(
        &'a self,
        subject: &'a Subject,
        request: SandboxRequest,
    ) -> Reply<'a, (Used<SandboxView>, IsNew)>;
    /// A sandbox. Reading it does not count as use.
    fn sandbox<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, SandboxView>;
    /// All sandboxes.
    fn sandboxes<'a>(&'a self, subject: &'a Subject) -> Reply<'a, SandboxList>;
    /// Removes a sandbox and its files.
    fn delete_sandbox<'a>(&'a self, subject: &'a Subject, id: &'a str) -> Reply<'a, ()>;
    /// Lets a sandbox exist for longer.
    fn extend_sandbox<'a>(
        &'a self,
        subject: &'a Subject,
        id: &'a str,
        request: ExtendRequest,
    ) -> Reply<'a, SandboxView>;
    /// Performs a file operation.
    fn operate<'a>(
        &'a self,
        subject: &'a Subject,
        sandbox: SandboxHandle,
        request: OperationRequest,
    ) -> Reply<'a, Used<Envelope>>;
    /// The content of a file.
    fn read_file<'a>(
        &'a self,
        subject: &'a Subject,
        sandbox: SandboxHandle,
        path: &'a [u8],
    ) -> Reply<'a, Used<BoxStream<'static, Result<Bytes, Refusal>>>>;
    /// Writes a file whole, or not at all.
    fn write_file<'a>(
        &'a self,
        subject: &'a Subject,
        sandbox: SandboxHandle,
        write: FileWrite<'a>,
    ) -> Reply<'a, Used<WriteReply>>;

    /// What a subject has used.
    fn usage<'a>(&'a self, subject: &'a Subject) -> Reply<'a, UsageTotals>;
    /// Whether it can do its work.
    fn health(&self) -> BoxFuture<'_, Health>;
    /// Its figures: a name, a text that says what it is, its kind and its value.
    fn figures(&self) -> Vec<Figure>;
}

/// A file to write.
pub struct FileWrite<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// What happens to an existing file.
    pub mode: WriteMode,
    /// How many bytes the content has, if that was announced.
    pub bytes: Option<u64>,
    /// The content.
    pub content: BoxStream<'static, Result<Bytes, Refusal>>,
}

/// An execution with its result document as it is stored: an answer has it as it is.
#[derive(Debug)]
pub struct StoredExecution {
    /// What is known before its end.
    pub summary: ExecutionSummary,
    /// Its result document in JSON; `None` before its end.
    pub document: Option<String>,
}

/// A kept sandbox, and the generation that is meant, if one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxHandle {
    /// Its id.
    pub id: String,
    /// The generation; `None` for whichever there is.
    pub generation: Option<u64>,
}

/// What a sandbox was used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used<T> {
    /// What it gave.
    pub value: T,
    /// The generation that was used.
    pub generation: u64,
    /// Whether it was started again and nobody was told before: processes of earlier ones are gone.
    pub restarted: bool,
}

/// Whether a sandbox was created or found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsNew {
    /// Created.
    Yes,
    /// Found.
    No,
}

/// Which executions of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListFilter {
    /// Those with this status.
    pub status: Option<ExecutionState>,
    /// Those of this kind.
    pub kind: Option<ExecutionKind>,
    /// Those that ran in this kept sandbox.
    pub sandbox: Option<String>,
    /// Those after this one, from an earlier page.
    pub cursor: Option<String>,
    /// At most so many.
    pub limit: u32,
}

/// An open file of an execution.
#[derive(Debug)]
pub struct OpenFile {
    /// It, at its beginning.
    pub file: File,
    /// Its size.
    pub bytes: u64,
    /// Letters, digits and dashes that no other file has, nor the same one with another content.
    pub version: String,
    /// When it was last modified, in seconds since 1970, if that is known.
    pub modified: Option<i64>,
}

/// The format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveFormat {
    /// Zstandard.
    TarZst,
    /// gzip.
    TarGz,
}

/// A figure of a service, for `/metrics`.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Its name, such as `executions_queued`.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Names and values of what it is of, such as a status, where there is one of each: those of one name
    /// follow each other, and have the same names.
    pub labels: Vec<(&'static str, String)>,
    /// Its value.
    pub value: FigureValue,
}

/// The value of a [`Figure`].
#[derive(Debug, Clone)]
pub enum FigureValue {
    /// It only grows.
    Counter(f64),
    /// It is what it is now.
    Gauge(f64),
    /// How many observations are up to each bound, the last of which is infinite, and not up to the one
    /// before; and all observations together.
    Histogram {
        /// The bounds, and the observations.
        buckets: Vec<(f64, u64)>,
        /// Their sum.
        sum: f64,
    },
}
