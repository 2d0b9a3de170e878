//! A command's input on its way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream};

use crate::session::{Fin, Outgoing};

/// What a writer takes before it waits for the program.
const BUFFER_BYTES: usize = 64 << 10;

/// What a command reads: written here as it comes, and ended by a shutdown or by being dropped.
///
/// A program that reads no more gives `BrokenPipe`, as a pipe does; so does one that has ended.
#[derive(Debug)]
pub struct ExecStdin(DuplexStream);

impl ExecStdin {
    /// A writer, and what it is given.
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

/// Where a command's input comes from.
#[derive(Debug)]
pub(super) enum Source {
    /// It is all there.
    Bytes(Vec<u8>),
    /// The other end of an [`ExecStdin`].
    Stream(DuplexStream),
}

impl Source {
    /// Sends all of it, and its end, for as long as the agent takes it.
    pub async fn send(self, outgoing: Outgoing) {
        match self {
            Self::Bytes(bytes) => send(&*bytes, outgoing).await,
            Self::Stream(stream) => send(stream, outgoing).await,
        }
    }
}

async fn send(mut input: impl AsyncRead + Unpin, mut outgoing: Outgoing) {
    let mut piece = vec![0; BUFFER_BYTES];
    loop {
        // Whoever drops a pipe has ended it: to read it does not fail.
        let length = input.read(&mut piece).await.unwrap_or(0);
        let then = if length == 0 { Fin::Nothing } else { Fin::More };
        let mut rest = &piece[..length];
        loop {
            match outgoing.send(rest, then).await {
                Ok(sent) => rest = &rest[sent..],
                // The answer has come, and nothing is read any more.
                Err(_) => return,
            }
            if rest.is_empty() {
                break;
            }
        }
        if then == Fin::Nothing {
            return;
        }
    }
}
