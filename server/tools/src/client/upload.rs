//! `sandbox_upload`: a file of any size, in chunks.

use sandbox_api::files::WriteReply;
use sandbox_api::operation::{Published, Write};
use tokio::io::AsyncWriteExt as _;

use crate::args::yes;
use crate::error::ToolError;
use crate::exchange::{CallMessage, CutOff, Exchange};
use crate::files::operation::file_arguments;
use crate::registry::Scope;
use crate::stop::Stop;
use crate::tool::{Context, Tool, Work};

pub(crate) struct Upload;

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
        mut exchange: Exchange,
    ) -> Result<Work<Self::Data>, ToolError> {
        let mut lease = context.registry.find(&args.container_id)?.enter(Scope::Concurrent);
        let write = Write { parents: args.parents, ..Write::new(args.path) };
        Ok(stop.or(async move {
            let sandbox = lease.ready().await?;
            let writer = sandbox.writer(write).await;
            let mut writer = writer.map_err(|error| lease.failure(error))?;
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
            Ok(Published(written.map_err(|error| lease.failure(error))?).into())
        }))
    }
}
