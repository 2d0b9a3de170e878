//! File operations: their definition, and how a call of one runs.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sandbox_api::Encoding;
use sandbox_api::GuestPath;
use sandbox_api::files::EntryKind;
use sandbox_api::operation::Published;
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::WireString;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ToolError;
use crate::registry::{Lease, Scope};
use crate::stop::Stop;
use crate::tool::{Arguments, Context, MAX_READ_BYTES, Output, Tool, Work};

/// A tool for one file operation.
pub(crate) trait FileTool: 'static {
    const NAME: &'static str;
    /// The description, for programs and models.
    const DESCRIPTION: &'static str;
    /// Its name in `sandbox_filesystem`.
    const OPERATION: &'static str;
    const CHANGES_FILES: bool;
    type Args: Arguments + fmt::Debug;
    type Data: Serialize + JsonSchema + Send + Sync + 'static;

    /// The path's bytes, as given.
    fn path(args: &Self::Args) -> &[u8];

    /// The path that contains all that it uses: calls that use the same paths keep their order.
    fn used_path(args: &Self::Args) -> &[u8] {
        Self::path(args)
    }

    /// The most bytes of its data; `max_file_size` is the limit of a file. None if it returns few.
    fn data_bytes(_args: &Self::Args, _max_file_size: u64) -> Option<u64> {
        None
    }

    fn perform(
        sandbox: &Sandbox,
        args: Self::Args,
    ) -> impl Future<Output = Result<OperationOutput<Self::Data>, Error>> + Send;
}

/// The schema of a path, in the place where it is: parts of these schemas are moved.
pub(crate) fn path_schema(generator: &mut SchemaGenerator) -> Schema {
    WireString::json_schema(generator)
}

/// The mounted directory, where a path may be left out.
pub(super) fn here() -> WireString {
    ".".into()
}

/// The result of an operation.
pub(crate) struct OperationOutput<D> {
    pub data: D,
    /// For a list or a search: whether there is more.
    pub truncated: Option<bool>,
    /// What it leaves out.
    pub note: Option<String>,
    pub bytes_written: Option<u64>,
    pub items: Option<u64>,
    /// Held until the answer is written.
    pub held: Option<OwnedSemaphorePermit>,
}

impl<D> From<D> for OperationOutput<D> {
    fn from(data: D) -> Self {
        Self { data, truncated: None, note: None, bytes_written: None, items: None, held: None }
    }
}

/// Why an operation failed.
pub(super) enum OperationError {
    /// The sandbox does not exist, or has ended.
    Sandbox(ToolError),
    /// The operation was refused, or failed.
    Operation(ToolError),
}

impl From<OperationError> for ToolError {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Sandbox(error) | OperationError::Operation(error) => error,
        }
    }
}

pub(super) type OperationWork<D> = BoxFuture<'static, Result<OperationOutput<D>, OperationError>>;

/// Starts an operation. Its position among the calls of its sandbox is fixed when this returns.
pub(super) fn begin<T: FileTool>(
    args: T::Args,
    context: &Context,
) -> Result<OperationWork<T::Data>, ToolError> {
    let mut lease = context.registry.find(args.container_id())?;
    // An invalid path has no dependencies: it is refused.
    if let Some(scope) = scope(T::used_path(&args), T::CHANGES_FILES, &lease) {
        lease = lease.enter(scope);
    }
    let read_bytes = context.read_bytes.clone();
    let largest = lease.bounds().limits.max_file_size.as_u64();
    let data_bytes = T::data_bytes(&args, largest);
    Ok(Box::pin(async move {
        let sandbox = lease.ready().await.map_err(OperationError::Sandbox)?;
        let held = hold(read_bytes, data_bytes).await;
        let output = T::perform(&sandbox, args).await.map_err(|error| match error {
            Error::Operation { .. } => OperationError::Operation(error.into()),
            error => OperationError::Sandbox(lease.failure(error)),
        })?;
        Ok(OperationOutput { held, ..output })
    }))
}

/// What a call uses.
fn scope(path: &[u8], changes: bool, lease: &Lease) -> Option<Scope> {
    let mount = GuestPath::new(lease.mount_path()).ok()?;
    let path = GuestPath::resolve(path, &mount, Some(&mount)).ok()?.path;
    Some(Scope::Path { path, changes })
}

/// Waits until the data that a read may return fits into the memory for pending answers.
async fn hold(available: Arc<Semaphore>, bytes: Option<u64>) -> Option<OwnedSemaphorePermit> {
    let bytes = u32::try_from(bytes?).unwrap_or(u32::MAX).min(MAX_READ_BYTES as u32);
    // The semaphore is never closed.
    available.acquire_many_owned(bytes).await.ok()
}

/// Each operation is a tool of its own.
impl<T: FileTool> Tool for T {
    const NAME: &'static str = T::NAME;
    const DESCRIPTION: &'static str = T::DESCRIPTION;
    type Args = T::Args;
    type Data = Published<T::Data>;

    fn is_read_only(_args: &T::Args) -> bool {
        !T::CHANGES_FILES
    }

    fn begin(args: T::Args, context: &Context, stop: Stop) -> Result<Work<Self::Data>, ToolError> {
        let work = begin::<T>(args, context)?;
        Ok(stop.or(async move {
            let OperationOutput { data, truncated, note, held, .. } = work.await?;
            let mut output = Output { held, ..Published(data).into() };
            output.metadata.push_some("truncated", truncated);
            output.metadata.push_some("note", note);
            Ok(output)
        }))
    }
}

/// How content is written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum ContentEncoding {
    /// Text.
    #[default]
    #[serde(alias = "utf-8")]
    Utf8,
    /// Any bytes.
    Base64,
}

/// [`ContentEncoding`] as it may be given.
pub(super) fn given_encoding(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "oneOf": [
            { "type": "string", "const": "utf8", "description": "Text." },
            { "type": "string", "const": "utf-8", "description": "The same." },
            { "type": "string", "const": "base64", "description": "Any bytes." },
        ],
    })
}

impl From<ContentEncoding> for Encoding {
    fn from(encoding: ContentEncoding) -> Self {
        match encoding {
            ContentEncoding::Utf8 => Self::Utf8,
            ContentEncoding::Base64 => Self::Base64,
        }
    }
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum EntryType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, which is never followed.
    Symlink,
    /// A FIFO, socket or device.
    Other,
}

impl From<EntryKind> for EntryType {
    fn from(kind: EntryKind) -> Self {
        match kind {
            EntryKind::File => Self::File,
            EntryKind::Directory => Self::Directory,
            EntryKind::Symlink => Self::Symlink,
            EntryKind::Other => Self::Other,
        }
    }
}
