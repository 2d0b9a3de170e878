//! Bodies of requests: bounded in size, and in the time that a sender may take.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

/// How long a sender may pause.
const PAUSE: Duration = Duration::from_secs(30);
/// How long a sender may take in all, beyond a second for each [`BYTES_A_SECOND`].
const GRACE: Duration = Duration::from_secs(30);
/// Slower senders are cut off. Only the time that was spent waiting for them counts.
const BYTES_A_SECOND: u64 = 8 << 10;

/// Why the body of a request cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// It is longer than its route reads.
    #[error("the body is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    /// It comes too slowly.
    #[error("the body did not arrive in time")]
    TooSlow,
}

/// A body within its bounds.
pub(crate) struct BoundedBody {
    inner: Body,
    limit: u64,
    received: u64,
    /// The time that was spent waiting, without the present wait.
    waited: Duration,
    /// Since when it waits for the sender, and until when it may.
    wait: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Whether it waits only so long.
    is_timed: bool,
}

impl BoundedBody {
    pub fn new(inner: Body, limit: u64) -> Self {
        Self { inner, limit, received: 0, waited: Duration::ZERO, wait: None, is_timed: true }
    }

    /// One whose sender may take its time: the reader bounds that.
    pub fn at_any_pace(inner: Body, limit: u64) -> Self {
        Self { is_timed: false, ..Self::new(inner, limit) }
    }

    /// How long it may wait from now on.
    fn patience(&self) -> Duration {
        let earned = GRACE + Duration::from_secs(self.received / BYTES_A_SECOND);
        earned.saturating_sub(self.waited).min(PAUSE)
    }
}

impl HttpBody for BoundedBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) else {
            if !self.is_timed {
                return Poll::Pending;
            }
            let patience = self.patience();
            let (_, until) =
                self.wait.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(patience))));
            ready!(until.as_mut().poll(context));
            return Poll::Ready(Some(Err(BodyError::TooSlow.into())));
        };
        if let Some((since, _)) = self.wait.take() {
            self.waited += since.elapsed();
        }
        let frame = match frame {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => frame,
        };
        if let Some(data) = frame.data_ref() {
            self.received = self.received.saturating_add(data.len() as u64);
            if self.received > self.limit {
                return Poll::Ready(Some(Err(BodyError::TooLarge { limit: self.limit }.into())));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Why a body could not be read, if that is ours to say: otherwise its sender is gone.
pub(crate) fn body_error(error: &(dyn std::error::Error + 'static)) -> Option<BodyError> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref::<BodyError>().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::BodyExt as _;

    async fn read(body: Body, limit: u64) -> Result<usize, Option<BodyError>> {
        match BoundedBody::new(body, limit).collect().await {
            Ok(all) => Ok(all.to_bytes().len()),
            Err(error) => Err(body_error(&*error)),
        }
    }

    #[tokio::test]
    async fn body_is_as_long_as_its_limit_at_most() {
        assert_eq!(read(Body::from("12345"), 5).await, Ok(5));
        let error = Err(Some(BodyError::TooLarge { limit: 4 }));
        assert_eq!(read(Body::from("12345"), 4).await, error);
    }

    /// Sends a byte every so often.
    fn trickle(every: Duration) -> Body {
        Body::from_stream(stream::unfold((), move |()| async move {
            sleep(every).await;
            Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b"x")), ()))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn slow_sender_is_cut_off() {
        let start = Instant::now();
        assert_eq!(
            read(trickle(Duration::from_secs(3600)), 100).await,
            Err(Some(BodyError::TooSlow))
        );
        assert_eq!(start.elapsed(), PAUSE);
        let start = Instant::now();
        assert_eq!(read(trickle(Duration::from_secs(1)), 100).await, Err(Some(BodyError::TooSlow)));
        assert_eq!(start.elapsed().as_secs(), GRACE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_a_reader_does_not_count_as_the_senders() {
        let chunks = (0..10).map(|_| Ok::<_, std::convert::Infallible>(Bytes::from_static(b"x")));
        let mut body = BoundedBody::new(Body::from_stream(stream::iter(chunks)), 100);
        for _ in 0..10 {
            sleep(PAUSE).await;
            body.frame().await.unwrap().unwrap();
        }
        assert!(body.frame().await.is_none());
    }
}
