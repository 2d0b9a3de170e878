//! All that an execution left as one archive, which is written as it is read.

use std::future::ready;
use std::io::{self, Write};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use sandbox_api::changes::ChangeManifest;
use sandbox_api::service::Subject;
use sandbox_controller::artifacts::ArchiveFormat;
use tokio::sync::{mpsc, oneshot};

use crate::error::ServiceError;
use crate::service::Service;

/// How many pieces are written ahead of the reader.
const PIECES: usize = 4;

/// An archive in pieces. An error means that it is incomplete; dropping it ends the work.
pub type Archive = BoxStream<'static, io::Result<Bytes>>;

impl Service {
    /// An archive of what an execution left: a tar archive, compressed.
    ///
    /// # Errors
    ///
    /// As of [`files`](Self::files); [`ServiceError::invalid`] for a format that cannot be streamed;
    /// [`ServiceError::too_many_files`]; [`ServiceError::too_fast`] if too many are read already.
    pub async fn archive(
        &self,
        subject: &Subject,
        id: &str,
        format: ArchiveFormat,
    ) -> Result<Archive, ServiceError> {
        if format == ArchiveFormat::Zip {
            return Err(ServiceError::invalid("format", "it is one of tar.zst and tar.gz"));
        }
        let core = self.core.with_files(subject, id).await?;
        let (sender, mut receiver) = mpsc::channel(PIECES);
        let id = id.to_owned();
        let reading = core.clone();
        core.readers.read_files(subject, move || {
            let proceed = || !sender.is_closed();
            let written = reading.files.archive(&id, format, Pieces(sender.clone()), &proceed);
            if let Err(error) = written {
                // The receiver may be gone.
                _ = sender.blocking_send(Err(error));
            }
        })?;
        // What fails before it has begun is an error of the request, and not of an archive.
        let panicked = ServiceError::internal("the reader of files panicked");
        let first = receiver.recv().await.ok_or(panicked)??;
        let rest = stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|piece| (piece, receiver))
        });
        let pieces = stream::once(ready(Ok(first))).chain(rest);
        Ok(pieces.map(|piece| piece.map_err(io::Error::other)).boxed())
    }

    /// The change manifest of an execution's own files: everything in it was created by it.
    ///
    /// # Errors
    ///
    /// As of [`archive`](Self::archive).
    pub async fn changes(
        &self,
        subject: &Subject,
        id: &str,
    ) -> Result<ChangeManifest, ServiceError> {
        let core = self.core.with_files(subject, id).await?;
        let id = id.to_owned();
        let reading = core.clone();
        let (sender, read) = oneshot::channel();
        core.readers.read_files(subject, move || {
            // The work ends when the caller is gone.
            let changes = reading.files.changes(&id, &|| !sender.is_closed());
            _ = sender.send(changes);
        })?;
        read.await.map_err(|_| ServiceError::internal("the reader of files panicked"))?
    }
}

/// Sends what is written, and waits for the reader.
struct Pieces(mpsc::Sender<Result<Bytes, ServiceError>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        self.0.blocking_send(Ok(piece)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
