//! What a service does now, for who administers it.

use sandbox_api::millis;
use sandbox_api::service::{PoolStatus, ServiceStatus};
use sandbox_controller::PoolStats;
use sandbox_store::Cluster;

use crate::error::ServiceError;
use crate::service::Service;

/// The most subjects that are listed.
const MAX_SUBJECTS: usize = 100;

impl Service {
    /// What it does now. Subjects and nodes are those of the whole cluster.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn status(&self) -> Result<ServiceStatus, ServiceError> {
        let (core, counters) = (&self.core, self.counters());
        let now = core.records.now();
        let subjects = core.records.call(move |store| store.subjects(now, MAX_SUBJECTS + 1));
        let mut subjects = subjects.await?;
        let more_subjects = subjects.len() > MAX_SUBJECTS;
        subjects.truncate(MAX_SUBJECTS);
        let nodes = match &core.node {
            Some(node) => node.call(Cluster::nodes).await?,
            None => Vec::new(),
        };
        Ok(ServiceStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            engine: core.launcher.engine(),
            uptime_ms: millis(core.since.elapsed()),
            queued: counters.queued,
            max_queued: core.config.max_queued as u64,
            running: counters.running,
            max_running: core.state().schedule.slots() as u64,
            pool: counters.pool.as_ref().map(pool),
            sandboxes: core.kept.by_status(),
            subjects,
            more_subjects,
            nodes,
        })
    }
}

fn pool(stats: &PoolStats) -> PoolStatus {
    PoolStatus {
        kinds: stats.keys as u64,
        target: stats.target as u64,
        ready: stats.parked as u64,
        starting: stats.filling as u64,
        claims: stats.claims,
        hits: stats.hits,
        failed: stats.failed,
    }
}
