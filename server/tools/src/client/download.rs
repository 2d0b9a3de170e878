//! `sandbox_download`: a file of any size, in chunks.

use sandbox_api::operation::Read;
use sandbox_controller::Error;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::error::ToolError;
use crate::exchange::{CallMessage, Exchange, MAX_CHUNK_BYTES};
use crate::files::operation::file_arguments;
use crate::registry::Scope;
use crate::stop::Stop;
use crate::tool::{Context, Tool, Work};

pub(crate) struct Download;

file_arguments!(DownloadArgs, "The file");

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DownloadData {
    /// The size of the content
    pub bytes: u64,
}

impl Tool for Download {
    const NAME: &'static str = "sandbox_download";
    const DESCRIPTION: &'static str = "Read a file of any size, in chunks before the answer. For \
        programs that speak the line protocol.";
    type Args = DownloadArgs;
    type Data = DownloadData;

    fn is_read_only(_args: &DownloadArgs) -> bool {
        true
    }

    fn begin(
        args: DownloadArgs,
        context: &Context,
        stop: Stop,
        mut exchange: Exchange,
    ) -> Result<Work<DownloadData>, ToolError> {
        let mut lease = context.registry.find(&args.container_id)?.enter(Scope::Concurrent);
        let read = Read::new(args.path);
        Ok(stop.or(async move {
            let sandbox = lease.ready().await?;
            let reader = sandbox.reader(read).await;
            let mut reader = reader.map_err(|error| lease.failure(error))?;
            let mut bytes = 0;
            loop {
                let chunk = next_chunk(&mut reader).await.map_err(|error| lease.failure(error))?;
                if chunk.is_empty() {
                    return Ok(DownloadData { bytes }.into());
                }
                exchange.credit().await?;
                bytes += chunk.len() as u64;
                exchange.send(CallMessage::Chunk(chunk)).await;
            }
        }))
    }
}

/// The next chunk of a file; an empty one at its end.
async fn next_chunk(reader: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, Error> {
    let mut chunk = Vec::with_capacity(MAX_CHUNK_BYTES);
    let read = reader.take(MAX_CHUNK_BYTES as u64).read_to_end(&mut chunk).await;
    match read {
        Ok(_) => Ok(chunk),
        // The reader wraps what the sandbox said.
        Err(error) => {
            let text = error.to_string();
            let source = error.into_inner().and_then(|source| source.downcast::<Error>().ok());
            Err(source.map_or(Error::Ended { detail: text }, |source| *source))
        }
    }
}
