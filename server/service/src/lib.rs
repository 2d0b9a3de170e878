//! Executions that are queued, run, kept and reported, and sandboxes that are kept, for many subjects
//! that know nothing of each other.
//!
//! Accepted means stored: an execution that [`Service::submit`] returned is listed with a true
//! status for as long as it is kept, however this process ends; but for one that a service of one program
//! [keeps in memory](ServiceConfig::waited_in_memory). Each runs at most once. A front end
//! is thin: it knows the caller and the format, and this crate decides and acts.
//!
//! Like the controller it does not use the environment, the home directory or a terminal.

#![forbid(unsafe_code)]

use tracing::Instrument as _;

mod admission;
mod archive;
mod attached;
mod background;
mod cluster;
mod config;
mod core;
mod counters;
mod disk_usage;
mod error;
mod events;
#[cfg(any(test, feature = "testing"))]
#[path = "tests/fake/mod.rs"]
pub mod fake;
mod feed;
mod files;
mod first_uses;
mod idempotency;
mod launcher;
mod live;
mod name_lock;
mod plan;
mod preparation;
mod previews;
mod rate;
mod records;
mod recovery;
mod room;
mod sandboxes;
mod schedule;
mod script_check;
mod service;
mod shutdown;
mod status;
mod storage;
#[cfg(test)]
mod tests;
mod trace;
mod turns;
mod work;

use std::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandbox_controller::spawn;
use tokio::task::JoinError;

pub use admission::Submitted;
pub use archive::Archive;
pub use cluster::node::ClusterCounters;
pub use cluster::place::Location;
pub use config::{
    HostPolicy, IoPosture, KeptBounds, PreviewConfig, Quotas, RequestBounds, ServiceConfig,
};
pub use counters::{Counters, Histogram};
pub use error::ServiceError;
pub use events::Events;
pub use files::OpenFile;
pub use idempotency::IdempotencyKey;
pub use preparation::{Preparation, Ready};
pub use previews::PreviewHost;
pub use sandbox_controller::artifacts::ArchiveFormat;
pub use sandbox_controller::{CancelHandle, PoolStats, host_tools, permission};
pub use sandbox_store::{
    ExecutionQuery, NewSession, NodeSession, SigningKey, StoredExecution, Target,
};
pub use sandboxes::{
    CreatedSandbox, FileContent, FileWatch, InSandbox, KeptWriter, PortStream, ProcessFilter,
    SandboxQuery,
};
pub use service::{Service, WeakService};

/// `Debug` of types whose members mean nothing to a reader.
macro_rules! opaque {
    ($($name:ident),+) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )+};
}

opaque!(FileWatch, KeptWriter, PortStream, Service);

/// Locks a mutex. What a thread that panicked has left in it is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Runs something on the threads for calls that block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
) -> Result<T, ServiceError> {
    let failed = |_| ServiceError::internal("a call that blocks panicked");
    on_a_thread(work).await.map_err(failed)?
}

/// Runs something on the threads for calls that block: behind a pointer, as a [task](spawn).
async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let work = move || Box::new(work()) as Box<dyn Any + Send>;
    let work: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> = Box::new(work);
    let done = tokio::task::spawn_blocking(work).await?;
    Ok(*done.downcast::<T>().expect("it is what the work returned"))
}

/// Runs something on a task of its own: it goes on if its caller does not wait.
async fn detached<T: Send + 'static>(
    what: &str,
    work: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
) -> Result<T, ServiceError> {
    let failed = |_| ServiceError::internal(&format!("{what} panicked"));
    spawn(work.in_current_span()).await.map_err(failed)?
}
