//! `sandbox_upload`: a file of any size, in chunks.

use sandbox_api::files::WriteReply;
use sandbox_api::operation::{Published, Write};
use tokio::io::AsyncWriteExt as _;

use super::super::args::yes;
use super::super::error::ToolError;
use super::super::exchange::{CallMessage, CutOff, Exchange};
use super::super::files::operation::file_arguments;
use super::super::stop::Stop;
use super::super::tool::{Context, Tool, Work};
use super::sandbox_ref::SandboxRef;

pub(in crate::tools) struct Upload;

file_arguments!(
    UploadArgs,
    "The file",
    /// Whether to make missing directories
    #[serde(default = "yes")]
    parents: bool,
);

impl Tool for Upload {
    const NAME: &'static str = "sandbox_upload";
    const DESCRIPTION: &'static str = "Write a file of any size, whole or not at all, in chunks \
        after the call. For programs that speak the line protocol.";
    type Args = UploadArgs;
    type Data = Published<WriteReply>;

    fn begin(
        args: UploadArgs,
        context: &Context,
        stop: Stop,
    ) -> Result<Work<Self::Data>, ToolError> {
        Self::begin_with(args, context, stop, Exchange::closed())
    }

    fn begin_with(
        args: UploadArgs,
        context: &Context,
        stop: Stop,
        mut exchange: Exchange,
    ) -> Result<Work<Self::Data>, ToolError> {
        let place = SandboxRef::find(context, &args.container_id)?;
        let write = Write { parents: args.parents, ..Write::new(args.path) };
        Ok(stop.or(async move {
            let sandbox = place.ready().await?;
            let writer = sandbox.writer(write).await;
            let mut writer = writer.map_err(|error| place.failure(error))?;
            loop {
                // Dropped without its end, nothing is written.
                let chunk = exchange.chunk().await.map_err(|wrong| match wrong {
                    Some(wrong) => ToolError::invalid(format!("sandbox_upload: a chunk: {wrong}")),
                    None => CutOff.into(),
                })?;
                let Some(chunk) = chunk else { break };
                if writer.write_all(&chunk).await.is_err() {
                    // Why is known at the end.
                    break;
                }
                exchange.send(CallMessage::More(1)).await;
            }
            let written = writer.finish().await;
            Ok(Published(written.map_err(|error| place.failure(error))?).into())
        }))
    }
}
