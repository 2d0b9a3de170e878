//! What a service does now, for who administers it.

use sandbox_api::service::{NodeStatus, PoolStatus, ServiceStatus, SubjectStatus};
use sandbox_controller::PoolStats;
use sandbox_store::SubjectUsage;

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
    pub async fn overview(&self) -> Result<ServiceStatus, ServiceError> {
        let (core, counters) = (&self.core, self.counters());
        let mut found = core.records.subjects(MAX_SUBJECTS + 1).await?;
        let more_subjects = found.len() > MAX_SUBJECTS;
        found.truncate(MAX_SUBJECTS);
        let nodes = match &core.node {
            Some(node) => node.nodes().await?.into_iter().map(NodeStatus::from).collect(),
            None => Vec::new(),
        };
        Ok(ServiceStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            engine: core.launcher.engine(),
            uptime_ms: u64::try_from(core.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            queued: counters.queued,
            max_queued: core.config.max_queued as u64,
            running: counters.running,
            max_running: core.state().schedule.slots() as u64,
            pool: counters.pool.as_ref().map(pool),
            sandboxes: core.kept.by_status(),
            subjects: found.into_iter().map(subject).collect(),
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

fn subject(usage: SubjectUsage) -> SubjectStatus {
    let SubjectUsage { subject, queued, running, sandboxes, executions, cpu_ms, stored_bytes } =
        usage;
    SubjectStatus {
        subject,
        queued,
        running,
        sandboxes,
        executions_today: executions,
        cpu_ms_today: cpu_ms,
        stored_bytes,
    }
}
