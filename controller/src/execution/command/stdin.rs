//! The stdin of a running command.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use sandbox_session::{Ended, Fin, Outgoing};
use tokio::io::{AsyncReadExt as _, AsyncWrite, DuplexStream};

/// How many bytes a writer buffers before it waits for the command.
const BUFFER_BYTES: usize = 64 << 10;

/// The stdin of a command. A shutdown or a drop closes it.
///
/// A write fails with `BrokenPipe`, as on a pipe, if the command closed its stdin or has ended.
#[derive(Debug)]
pub struct ExecStdin(DuplexStream);

impl ExecStdin {
    /// A writer, and the stream that receives its bytes.
    pub(super) fn new() -> (Self, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
        (Self(ours), theirs)
    }
}

impl AsyncWrite for ExecStdin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// The source of a command's stdin.
#[derive(Debug)]
pub(super) enum Source {
    /// All bytes are there already.
    Bytes(Vec<u8>),
    /// The other end of an [`ExecStdin`].
    Stream(DuplexStream),
}

impl Source {
    /// Sends all bytes and the end of the stream, for as long as the agent accepts them.
    pub async fn send(self, mut outgoing: Outgoing) -> Result<(), Ended> {
        let mut stream = match self {
            Self::Bytes(bytes) => return outgoing.send_all(&bytes, Fin::Nothing).await,
            Self::Stream(stream) => stream,
        };
        let mut piece = vec![0; BUFFER_BYTES];
        loop {
            // Dropping a pipe closes it: reading it does not fail.
            let length = stream.read(&mut piece).await.unwrap_or(0);
            if length == 0 {
                return outgoing.send_all(&[], Fin::Nothing).await;
            }
            outgoing.send_all(&piece[..length], Fin::More).await?;
        }
    }
}
