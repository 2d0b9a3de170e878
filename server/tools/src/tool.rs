//! The definition of a tool.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sandbox_api::ErrorKind;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::args::Members;
use super::callbacks::Callbacks;
use super::error::ToolError;
use super::metadata::Metadata;
use super::stop::Stop;
use crate::registry::Registry;

/// Most bytes of files that are read and not yet answered; more only for a single file.
pub(super) const MAX_READ_BYTES: usize = 64 << 20;
const _: () = assert!(MAX_READ_BYTES <= u32::MAX as usize, "permits are counted so");

/// The state shared by all calls.
pub(super) struct Context {
    pub registry: Arc<Registry>,
    /// Permits for [`MAX_READ_BYTES`].
    pub read_bytes: Arc<Semaphore>,
    /// The functions of the caller that scripts may call.
    pub callbacks: Arc<Callbacks>,
}

/// A tool: its name, its arguments and result, and how a call of it runs.
pub(super) trait Tool: 'static {
    const NAME: &'static str;
    /// The description, for programs and models.
    const DESCRIPTION: &'static str;
    type Args: Arguments;
    type Data: Serialize + JsonSchema + Send + Sync + 'static;

    /// Whether a call changes nothing, so that it may be repeated in any case.
    fn is_read_only(_args: &Self::Args) -> bool {
        false
    }

    /// Starts a call. Its position among the calls of its sandbox is fixed when this returns.
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

/// The arguments of a tool.
pub(super) trait Arguments: JsonSchema + Send + Sized + 'static {
    /// Decodes the members of a caller's object.
    fn decode(tool: &str, members: Members<'_>) -> Result<Self, ToolError>;

    /// The sandbox that the call is for.
    fn container_id(&self) -> &str;
}

/// Arguments that are decoded by their fields.
macro_rules! arguments {
    ($args:ty) => {
        impl $crate::tool::Arguments for $args {
            fn decode(
                tool: &str,
                members: $crate::args::Members<'_>,
            ) -> Result<Self, $crate::error::ToolError> {
                members.decode(tool)
            }

            fn container_id(&self) -> &str {
                &self.container_id
            }
        }
    };
}
pub(super) use arguments;

/// A call in progress.
pub(super) type Work<D> = BoxFuture<'static, Result<Output<D>, ToolError>>;

/// The result of a call.
pub(super) struct Output<D> {
    pub data: D,
    pub metadata: Metadata,
    /// The error, if the tool returns a failure as data.
    pub failure: Option<ErrorKind>,
    /// Held until the answer is written.
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
