//! The end of a service.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sandbox_api::CancelCause;
use sandbox_api::service::ShutdownReport;

use crate::live::{all_ended, cancel_all};
use crate::service::Service;

/// How long cancelled executions have to end at a shutdown.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
impl Service {
    /// Ends the service: nothing more is accepted, what runs may end until the deadline and is killed
    /// then, and what waits is run by the next service on this store.
    pub async fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        let core = &self.core;
        core.is_accepting.store(false, Ordering::Release);
        _ = tokio::time::timeout(deadline, core.accepts.write()).await;
        if let Some(node) = &core.node {
            node.claims_settled().await;
        }
        // What was just about to run is no longer in the queue.
        let (running, queued) = core.running_and_queued();
        let mut report = ShutdownReport { queued, ..ShutdownReport::default() };
        _ = tokio::time::timeout(deadline, all_ended(&running)).await;
        let (finished, cancelled): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|live| live.has_ended());
        cancel_all(&cancelled, CancelCause::Stopped, CANCEL_TIMEOUT).await;
        report.finished = finished.iter().map(|live| live.id.clone()).collect();
        report.cancelled = cancelled.iter().map(|live| live.id.clone()).collect();
        report.left = core.close_kept().await;
        core.close_prepared().await;
        if let Some(node) = &core.node {
            node.leave().await;
            // What did not begin is another node's now.
            if let Err(error) = core.end_orphans().await {
                tracing::warn!(%error, "what did not begin waits until another node looks for it");
            }
        }
        report
    }
}
