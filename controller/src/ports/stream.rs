//! A connection to a port, as its owner has it.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sandbox_protocol::limits::MAX_CHUNK_BYTES;
use sandbox_protocol::message::ClosedReason;
use sandbox_session::{Received, Tunnel};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::audit;

/// Takes the bytes of both directions, and how the connection ended.
type OnEnd = Box<dyn FnOnce(u64, &str) + Send>;

/// A connection to a port of a sandbox. What is not read here is held back there, and the other way
/// round. A shutdown ends one direction; dropping it ends the connection, by a reset unless one of the
/// directions has ended.
pub struct PortStream {
    tunnel: Arc<Tunnel>,
    receiving: Option<BoxFuture<'static, io::Result<Received>>>,
    /// What was received and not read.
    received: Bytes,
    /// What was read and not given back as credit.
    owed: u64,
    /// It has been read to its end.
    is_read: bool,
    /// In a task: it goes on while no task polls this, as a socket does.
    sending: Option<JoinHandle<io::Result<()>>>,
    /// It was shut down.
    is_finished: bool,
    bytes: u64,
    /// Called once.
    ended: Option<OnEnd>,
    runtime: Handle,
}

impl PortStream {
    /// One on a connected tunnel; within a runtime.
    pub(super) fn new(tunnel: Tunnel, ended: impl FnOnce(u64, &str) + Send + 'static) -> Self {
        Self {
            tunnel: Arc::new(tunnel),
            receiving: None,
            received: Bytes::new(),
            owed: 0,
            is_read: false,
            sending: None,
            is_finished: false,
            bytes: 0,
            ended: Some(Box::new(ended)),
            runtime: Handle::current(),
        }
    }

    /// Begins to send.
    fn send<F>(&mut self, sends: impl FnOnce(Arc<Tunnel>) -> F)
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        self.sending = Some(self.runtime.spawn(sends(self.tunnel.clone())));
    }

    /// Waits until all that was written has been sent.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(sending) = &mut self.sending else { return Poll::Ready(Ok(())) };
        let sent = ready!(Pin::new(sending).poll(context));
        self.sending = None;
        Poll::Ready(sent.unwrap_or_else(|_| Err(broken())))
    }
}

/// The connection was reset in the sandbox, or the sandbox is gone.
fn broken() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

async fn receive(tunnel: Arc<Tunnel>, owed: u64) -> io::Result<Received> {
    if owed > 0 {
        // Where nothing more comes, what came before is left.
        _ = tunnel.consumed(owed).await;
    }
    tunnel.receive().await.map_err(|_| broken())
}

impl AsyncRead for PortStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.received.is_empty() && !this.is_read && buffer.remaining() > 0 {
            let (tunnel, owed) = (&this.tunnel, &mut this.owed);
            let receiving = this
                .receiving
                .get_or_insert_with(|| Box::pin(receive(tunnel.clone(), std::mem::take(owed))));
            let received = ready!(receiving.as_mut().poll(context));
            this.receiving = None;
            match received? {
                Received::Bytes(bytes) => this.received = bytes.into(),
                Received::End => this.is_read = true,
            }
        }
        let count = this.received.len().min(buffer.remaining());
        buffer.put_slice(&this.received.split_to(count));
        this.owed += count as u64;
        this.bytes += count as u64;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_sent(context))?;
        if this.is_finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = bytes.len().min(MAX_CHUNK_BYTES);
        let piece = bytes[..count].to_vec();
        this.bytes += count as u64;
        this.send(|tunnel| async move { tunnel.send(&piece).await.map_err(|_| broken()) });
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_sent(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_sent(context))?;
        if !this.is_finished {
            this.is_finished = true;
            this.send(|tunnel| async move { tunnel.finish().await.map_err(|_| broken()) });
        }
        this.poll_sent(context)
    }
}

impl Drop for PortStream {
    fn drop(&mut self) {
        if let Some(sending) = &self.sending {
            sending.abort();
        }
        let is_done = self.is_read || self.is_finished;
        let reason = if is_done { ClosedReason::Done } else { ClosedReason::Reset };
        if let Some(ended) = self.ended.take() {
            ended(self.bytes, if is_done { audit::OK } else { reason.as_str() });
        }
        let tunnel = self.tunnel.clone();
        self.runtime.spawn(async move { tunnel.close(reason, "").await });
    }
}

impl fmt::Debug for PortStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PortStream").finish_non_exhaustive()
    }
}
