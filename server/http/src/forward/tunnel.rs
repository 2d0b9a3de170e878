//! Connections that change to another protocol (101): what it is does not matter here.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio_util::sync::CancellationToken;

/// Joins the connection of a caller and that of a node, once both have changed, until one of them ends or `stop`.
/// What is held meanwhile is dropped then.
pub(crate) fn join(
    caller: OnUpgrade,
    node: OnUpgrade,
    stop: CancellationToken,
    held: impl Send + 'static,
) {
    tokio::spawn(async move {
        let joined = async {
            let (caller, node) = tokio::try_join!(caller, node)?;
            let (mut caller, mut node) = (TokioIo::new(caller), TokioIo::new(node));
            copy_bidirectional(&mut caller, &mut node).await?;
            Ok::<_, axum::BoxError>(())
        };
        tokio::select! {
            ended = joined => if let Err(error) = ended {
                tracing::debug!(error, "an upgraded connection broke off");
            },
            () = stop.cancelled() => {}
        }
        drop(held);
    });
}
