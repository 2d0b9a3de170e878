//! Where things are: the service says it, and in tests of several nodes without a database a table.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sandbox_api::service::{Subject, Time};
use sandbox_service::{Location, NodeSession, Service, ServiceError, Target};

/// Where things are in a cluster.
pub trait Places: Send + Sync + 'static {
    /// Where something of a subject is.
    fn place<'a>(
        &'a self,
        subject: &'a Subject,
        target: &'a Target,
    ) -> BoxFuture<'a, Result<Location, ServiceError>>;
    /// The nodes that take new sandboxes, this one among them if it does.
    fn ready_nodes(&self) -> BoxFuture<'_, Result<Vec<NodeSession>, ServiceError>>;
    /// The session of this node.
    fn session(&self) -> Option<i64>;
    /// The time, by the clock of the cluster.
    fn cluster_time(&self) -> Time;
}

impl Places for Service {
    fn place<'a>(
        &'a self,
        subject: &'a Subject,
        target: &'a Target,
    ) -> BoxFuture<'a, Result<Location, ServiceError>> {
        Self::place(self, subject, target).boxed()
    }

    fn ready_nodes(&self) -> BoxFuture<'_, Result<Vec<NodeSession>, ServiceError>> {
        Self::ready_nodes(self).boxed()
    }

    fn session(&self) -> Option<i64> {
        Self::session(self)
    }

    fn cluster_time(&self) -> Time {
        Self::cluster_time(self)
    }
}
