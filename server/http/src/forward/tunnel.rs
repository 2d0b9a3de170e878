//! Connections that change to another protocol (101): what it is does not matter here.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio_util::sync::CancellationToken;

/// Joins the connection of a caller and another one, once both are there, until one of them ends or `stop`. What is
/// held meanwhile is dropped then.
pub(crate) fn join<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    caller: OnUpgrade,
    other: impl Future<Output = Result<C, hyper::Error>> + Send + 'static,
    stop: CancellationToken,
    held: impl Send + 'static,
) {
    tokio::spawn(async move {
        let joined = async {
            let (caller, mut other) = tokio::try_join!(caller, other)?;
            copy_bidirectional(&mut TokioIo::new(caller), &mut other).await?;
            Ok::<_, axum::BoxError>(())
        };
        if let Some(Err(error)) = stop.run_until_cancelled(joined).await {
            tracing::debug!(error, "an upgraded connection broke off");
        }
        drop(held);
    });
}
