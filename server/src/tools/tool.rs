//! What a tool is.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sandbox_api::{ErrorKind, Limits};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::args::Members;
use super::error::ToolError;
use super::metadata::Metadata;
use super::stop::Stop;
use crate::registry::Registry;

/// Bytes of files that are read and not answered yet; more only for a single file.
pub(super) const MAX_READ_BYTES: usize = 64 << 20;
const _: () = assert!(MAX_READ_BYTES <= u32::MAX as usize, "permits are counted so");

/// What all calls share.
pub(super) struct Context {
    pub registry: Arc<Registry>,
    pub limits: Limits,
    /// Permits for [`MAX_READ_BYTES`].
    pub read_bytes: Arc<Semaphore>,
}

/// A tool: its name, what it takes and gives, and how a call of it runs.
pub(super) trait Tool: 'static {
    const NAME: &'static str;
    /// What it does, for programs and models.
    const DESCRIPTION: &'static str;
    type Args: Arguments;
    type Data: Serialize + JsonSchema + Send + Sync + 'static;

    /// Whether a call changes nothing, so that it may be made again whatever became of it.
    fn is_read_only(_args: &Self::Args) -> bool {
        false
    }

    /// Begins a call. Its turn among the calls of its sandbox is settled when this returns.
    fn begin(
        args: Self::Args,
        context: &Context,
        stop: Stop,
    ) -> Result<Work<Self::Data>, ToolError>;

    /// The error of a failed call, with the metadata that every failure of this tool has.
    fn complete_error(error: ToolError) -> ToolError {
        error
    }
}

/// What a tool takes.
pub(super) trait Arguments: JsonSchema + Send + Sized + 'static {
    /// Reads the members of the object that a caller gave.
    fn decode(tool: &str, members: Members<'_>) -> Result<Self, ToolError>;

    /// The sandbox that the call is for.
    fn container_id(&self) -> &str;
}

/// A call under way.
pub(super) type Work<D> = BoxFuture<'static, Result<Output<D>, ToolError>>;

/// What a call gives.
pub(super) struct Output<D> {
    pub data: D,
    pub metadata: Metadata,
    /// What went wrong, of a failure that the tool gives as data.
    pub failure: Option<ErrorKind>,
    /// Held until the answer has been given away.
    pub held: Option<OwnedSemaphorePermit>,
}

impl<D> From<D> for Output<D> {
    fn from(data: D) -> Self {
        Self { data, metadata: Metadata::default(), failure: None, held: None }
    }
}

pub(super) fn decode<T: Tool>(args: &RawValue) -> Result<T::Args, ToolError> {
    T::Args::decode(T::NAME, Members::read(T::NAME, args)?)
}
