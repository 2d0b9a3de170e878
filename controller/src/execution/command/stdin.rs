//! The stdin of a running command.

use sandbox_session::{Ended, Fin, Outgoing};
use tokio::io::{AsyncReadExt as _, DuplexStream};

/// How many bytes a writer buffers before it waits for the command.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// The source of a command's stdin.
#[derive(Debug)]
pub(super) enum Source {
    /// All bytes are there already.
    Bytes(Vec<u8>),
    /// The other end of a command's [`stdin`](crate::Execution::stdin).
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
