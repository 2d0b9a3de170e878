//! What is left of a request's body when it is answered. A connection that is closed on bytes which
//! nobody has read is reset, and a peer that is still sending may see that in place of its answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How much of the rest is read. A peer that sends more waits, and can read its answer.
const MAX_BYTES: usize = 4 << 20;
/// After this time it is given up.
const TIME: Duration = Duration::from_secs(2);

/// A body whose rest is read for a while when nobody wants it any more.
pub(super) struct ReadOn<B: Rest> {
    /// Until it has ended.
    body: Option<B>,
    asks: Asks,
}

/// When a peer sends the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    /// With the head.
    No,
    /// When the body is first read: it asks for `100 Continue`.
    First,
}

/// A body that may be read by a task.
pub(super) trait Rest: HttpBody<Data = Bytes> + Send + Unpin + 'static {}

impl<B: HttpBody<Data = Bytes> + Send + Unpin + 'static> Rest for B {}

impl<B: Rest> ReadOn<B> {
    pub const fn new(body: B, asks: Asks) -> Self {
        Self { body: Some(body), asks }
    }
}

impl<B: Rest> HttpBody for ReadOn<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.asks = Asks::No;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl<B: Rest> Drop for ReadOn<B> {
    fn drop(&mut self) {
        if let Some(body) = self.body.take()
            && self.asks == Asks::No
            && !body.is_end_stream()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(timeout(TIME, read(body)));
        }
    }
}

/// Reads a body to its end. Beyond what is read of it, it is kept open.
async fn read(mut body: impl Rest) {
    let mut left = MAX_BYTES;
    while left > 0 {
        match body.frame().await {
            Some(Ok(frame)) => left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len)),
            Some(Err(_)) | None => return,
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::Body;
    use futures_util::stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rest_of_a_body_is_read_within_its_bounds() {
        const PIECE: usize = 64 << 10;
        let body = |pieces: usize| {
            let sent = Arc::new(AtomicUsize::new(0));
            let count = sent.clone();
            let pieces = (0..pieces).map(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(Bytes::from_static(&[0; PIECE]))
            });
            (ReadOn::new(Body::from_stream(stream::iter(pieces)), Asks::No), sent)
        };
        let after = |time| async move { tokio::time::sleep(time).await };
        let (mut short, sent) = body(10);
        short.frame().await.unwrap().unwrap();
        drop(short);
        after(Duration::from_millis(1)).await;
        assert_eq!(sent.load(Ordering::Relaxed), 10);
        assert_eq!(Arc::strong_count(&sent), 1, "it is not held when it has ended");
        let (long, sent) = body(10_000);
        drop(long);
        after(TIME / 2).await;
        assert_eq!(sent.load(Ordering::Relaxed), MAX_BYTES / PIECE);
        assert_eq!(Arc::strong_count(&sent), 2, "its peer reads its answer");
        after(TIME).await;
        assert_eq!(Arc::strong_count(&sent), 1);
    }
}
