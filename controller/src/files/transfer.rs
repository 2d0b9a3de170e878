//! Transfers of content: files read and written in chunks.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_protocol::operation::{FileOperation as _, Read, ReadReply, Write, WriteReply};
use sandbox_protocol::path::GuestPath;
use sandbox_session::{Fin, Incoming, Outgoing};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio_util::io::StreamReader;
use tokio_util::task::AbortOnDropHandle;

use super::call::{OperationCall, PendingReply};
use crate::error::Error;
use crate::sandbox::Inner;

/// How many bytes a writer buffers before it waits for the agent.
const BUFFER_BYTES: usize = 256 << 10;

/// A file being read.
pub(super) struct Reading {
    call: OperationCall,
    incoming: Incoming,
    /// `None` once the answer has arrived.
    answer: Option<PendingReply<ReadReply>>,
    /// The first chunk, which proved that the read began.
    first: Option<Vec<u8>>,
    bytes: u64,
}

impl Reading {
    /// Requests the content, and waits until it arrives or is refused.
    pub async fn start(inner: Arc<Inner>, request: Read) -> Result<Self, Error> {
        let call = OperationCall::new(inner, Read::NAME, request.paths());
        let inner = call.inner();
        let most = inner.limits.max_file_size.as_u64();
        let most = request.limit.map_or(most, |limit| limit.min(most));
        let begun = call.send(inner.session.receive(most, request)).await;
        let (reply, incoming) = match begun {
            Ok(begun) => begun,
            Err(error) => return call.end_with(None, Err(error)),
        };
        let answer = Some(call.pending_reply(reply));
        let mut reading = Self { call, incoming, answer, first: None, bytes: 0 };
        match reading.piece().await {
            Ok(first) => Ok(Self { first, ..reading }),
            Err(error) => reading.call.end_with(None, Err(error)),
        }
    }

    /// The next chunk; `None` at the end, after everything that was due has arrived.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.piece().await,
        }
    }

    async fn piece(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if self.answer.is_none() {
            return Ok(None);
        }
        if let Some(piece) = self.call.with_timeout(self.bytes, self.incoming.next()).await? {
            self.bytes += piece.len() as u64;
            return Ok(Some(piece));
        }
        let Some(answer) = self.answer.take() else { return Ok(None) };
        let reply = self.call.verified(answer.wait().await?)?;
        if reply.bytes != self.bytes {
            return Err(self.call.breach("the reply's length does not match the data"));
        }
        Ok(None)
    }

    /// Ends it.
    pub fn end<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        self.call.end_with(Some(self.bytes), result)
    }

    /// The file's path, once some content was read.
    pub fn path(&self) -> Result<GuestPath, Error> {
        self.call.resolved()
    }

    /// Reads the rest.
    pub async fn rest(&mut self) -> Result<Vec<u8>, Error> {
        let mut content = Vec::new();
        while let Some(piece) = self.next().await? {
            content.extend_from_slice(&piece);
        }
        Ok(content)
    }

    pub fn into_reader(self) -> FileReader {
        let pieces = stream::unfold(Some(self), |reading| async {
            let mut reading = reading?;
            match reading.next().await {
                Ok(Some(piece)) => Some((Ok(Bytes::from(piece)), Some(reading))),
                Ok(None) => {
                    _ = reading.end(Ok(()));
                    None
                }
                Err(error) => {
                    let error = reading.end(Err::<(), _>(error)).err();
                    error.map(|error| (Err(io::Error::other(error)), None))
                }
            }
        });
        // A reader may be asked again after its end.
        Box::pin(StreamReader::new(pieces.fuse()))
    }
}

/// The content of a file, from [`Sandbox::reader`](crate::Sandbox::reader). Its I/O errors wrap an
/// [`Error`]. Dropping it before the end cancels the read.
///
/// Unread content occupies at most 256 KiB, and one of the sandbox's 16 permits.
pub type FileReader = Pin<Box<dyn AsyncRead + Send>>;

/// A file being written.
pub(super) struct Writing {
    call: OperationCall,
    outgoing: Outgoing,
    /// `None` once the answer has arrived.
    answer: Option<PendingReply<WriteReply>>,
    /// How much was sent.
    bytes: u64,
}

impl Writing {
    /// Begins a write. What fits of `content`, if it is all known, is sent with the request.
    pub async fn start(
        inner: Arc<Inner>,
        request: Write,
        content: Option<&[u8]>,
    ) -> Result<Self, Error> {
        let call = OperationCall::new(inner, Write::NAME, request.paths());
        let begun = call.send(call.inner().session.send(content, request)).await;
        match begun {
            Ok((reply, outgoing, sent)) => {
                let answer = Some(call.pending_reply(reply));
                Ok(Self { call, outgoing, answer, bytes: sent as u64 })
            }
            Err(error) => call.end_with(None, Err(error)),
        }
    }

    /// Sends some of the content.
    pub async fn put(&mut self, content: &[u8]) -> Result<(), Error> {
        self.send(content, Fin::More).await
    }

    async fn send(&mut self, mut content: &[u8], fin: Fin) -> Result<(), Error> {
        loop {
            let sent = self.call.with_timeout(self.bytes, self.outgoing.send(content, fin)).await?;
            let Ok(sent) = sent else { return Err(self.refused().await) };
            content = &content[sent..];
            self.bytes += sent as u64;
            if content.is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends the end of the content: this changes the file.
    pub async fn commit(&mut self) -> Result<WriteReply, Error> {
        self.send(&[], Fin::Nothing).await?;
        self.written().await
    }

    /// Sends the rest of `content`, of which the beginning was sent with the request: this changes
    /// the file.
    pub async fn commit_rest(&mut self, content: &[u8]) -> Result<WriteReply, Error> {
        let rest = usize::try_from(self.bytes).ok().and_then(|sent| content.get(sent..));
        if let Some(rest @ [_, ..]) = rest {
            self.send(rest, Fin::Nothing).await?;
        }
        self.written().await
    }

    /// Waits for the answer.
    async fn written(&mut self) -> Result<WriteReply, Error> {
        let reply = match self.answer.take() {
            Some(answer) => self.call.verified(answer.wait().await?)?,
            None => return Err(self.call.breach("duplicate reply to a write")),
        };
        match reply.bytes_written == self.bytes {
            true => Ok(reply),
            false => Err(self.call.breach("the reply's length does not match the data")),
        }
    }

    /// Why the write ended before everything was sent.
    async fn refused(&mut self) -> Error {
        if let Some(answer) = self.answer.take()
            && let Err(error) = answer.wait().await
        {
            return error;
        }
        self.call.breach("the write was acknowledged before its end")
    }

    /// Ends it.
    pub fn end<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        // A failed write has written nothing of what was sent.
        let written = result.is_ok().then_some(self.bytes);
        self.call.end_with(written, result)
    }
}

/// A file to write to, from [`Sandbox::writer`](crate::Sandbox::writer). Nothing changes before
/// [`finish`](Self::finish), or at all if it is dropped without.
#[derive(Debug)]
pub struct FileWriter {
    pipe: DuplexStream,
    /// Signals that the content is complete. Dropped: it is not.
    whole: oneshot::Sender<()>,
    task: AbortOnDropHandle<Result<WriteReply, Error>>,
}

impl FileWriter {
    pub(super) fn new(mut writing: Writing) -> Self {
        let (pipe, mut content) = tokio::io::duplex(BUFFER_BYTES);
        let (whole, is_whole) = oneshot::channel();
        let task = crate::spawn(async move {
            let mut piece = vec![0; BUFFER_BYTES];
            loop {
                let sent = match content.read(&mut piece).await {
                    // The other end of the pipe is gone: the writer was dropped or is done.
                    Ok(0) | Err(_) => break,
                    Ok(length) => writing.put(&piece[..length]).await,
                };
                if let Err(error) = sent {
                    return writing.end(Err(error));
                }
            }
            // Without the signal this is dropped, which cancels the write.
            let Ok(()) = is_whole.await else {
                return Err(Error::Ended { detail: "the writer was dropped".to_owned() });
            };
            let written = writing.commit().await;
            writing.end(written)
        });
        Self { pipe, whole, task: AbortOnDropHandle::new(task) }
    }

    /// Ends the content and waits until the file is written.
    ///
    /// # Errors
    ///
    /// Those of [`Sandbox::write`](crate::Sandbox::write), including errors that earlier writes
    /// met.
    pub async fn finish(mut self) -> Result<WriteReply, Error> {
        // If the pipe is closed, the task returns the reason.
        _ = self.pipe.shutdown().await;
        _ = self.whole.send(());
        drop(self.pipe);
        self.task.await.unwrap_or_else(|error| {
            Err(Error::Ended { detail: format!("the writer's task ended: {error}") })
        })
    }
}

impl AsyncWrite for FileWriter {
    /// `BrokenPipe` means that the sandbox accepts no more; [`finish`](FileWriter::finish) returns
    /// the reason.
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(context)
    }
}
