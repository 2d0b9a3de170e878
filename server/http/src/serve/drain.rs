//! Draining a request's body that is not read to its end. A connection that is closed with unread
//! bytes is reset, and a peer that is still sending may see that in place of its answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How much is drained. A peer that sends more waits, and can read its answer.
const MAX_DRAIN_BYTES: usize = 4 << 20;
/// After this time the body is dropped.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A body that is drained in the background when it is dropped before its end.
pub(super) struct DrainOnDrop<B: DrainableBody> {
    /// Until it has ended.
    body: Option<B>,
    /// The peer waits for `100 Continue`, which the first read sends: until then there is nothing to
    /// drain.
    awaits_continue: bool,
}

/// A body that a task can drain.
pub(super) trait DrainableBody: HttpBody<Data = Bytes> + Send + Unpin + 'static {}

impl<B: HttpBody<Data = Bytes> + Send + Unpin + 'static> DrainableBody for B {}

impl<B: DrainableBody> DrainOnDrop<B> {
    pub const fn new(body: B, awaits_continue: bool) -> Self {
        Self { body: Some(body), awaits_continue }
    }
}

impl<B: DrainableBody> HttpBody for DrainOnDrop<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.awaits_continue = false;
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

impl<B: DrainableBody> Drop for DrainOnDrop<B> {
    fn drop(&mut self) {
        if let Some(body) = self.body.take()
            && !self.awaits_continue
            && !body.is_end_stream()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(timeout(DRAIN_TIMEOUT, drain(body)));
        }
    }
}

/// Reads a body to its end. One that is longer than what is drained is kept open.
async fn drain(mut body: impl DrainableBody) {
    let mut left = MAX_DRAIN_BYTES;
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
    async fn dropped_body_is_drained_within_its_bounds() {
        const PIECE: usize = 64 << 10;
        let body = |pieces: usize| {
            let sent = Arc::new(AtomicUsize::new(0));
            let count = sent.clone();
            let pieces = (0..pieces).map(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(Bytes::from_static(&[0; PIECE]))
            });
            (DrainOnDrop::new(Body::from_stream(stream::iter(pieces)), false), sent)
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
        after(DRAIN_TIMEOUT / 2).await;
        assert_eq!(sent.load(Ordering::Relaxed), MAX_DRAIN_BYTES / PIECE);
        assert_eq!(Arc::strong_count(&sent), 2, "its peer reads its answer");
        after(DRAIN_TIMEOUT).await;
        assert_eq!(Arc::strong_count(&sent), 1);
    }
}
