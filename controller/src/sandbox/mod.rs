//! The life of a sandbox: create, attach, start, hello, requests, shutdown, exit evidence, remove.
//!
//! Every step has its own time limit ([`Step::time_limit`]). [`RemovalGuard`] owns the started
//! resources and removes them when it is dropped. If even that is impossible (the process was
//! killed, the engine is gone), the container's labels allow the next command to remove it
//! ([`reap`](crate::gc::reap)).

pub(crate) mod artifacts;
pub(crate) mod confinement;
pub(crate) mod context;
pub(crate) mod idle;
pub(crate) mod inner;
pub(crate) mod launch;
pub(crate) mod owner;
mod pause;
pub(crate) mod plan;
pub(crate) mod prepared;
mod removal;
mod stats;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod user;

pub use self::inner::LaunchInfo;
pub(crate) use self::inner::{EndCause, Inner, KernelBaseline};
pub use self::stats::ContainerUse;
use std::fmt;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sandbox_api::Outcome;
use sandbox_engine::EngineFacts;
use sandbox_protocol::message::Confinement;
use sandbox_protocol::path::GuestPath;

use crate::engine_call::step;
use crate::error::Error;
use crate::failpoint::{Point, hold};
use crate::io_dir::IoDir;
use crate::io_dir::staged::{FinishOptions, StagedEnd};
use crate::sandbox::removal::{Attempt, EVIDENCE_TIMEOUT};
use crate::step::Step;

/// A sandbox: one container, used by this sandbox alone. Dropping it without [`close`](Self::close)
/// kills and removes the container.
pub struct Sandbox {
    inner: Arc<Inner>,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sandbox").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl Sandbox {
    /// The sandbox's id, which its container's labels and name contain.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// How it was started.
    pub fn launch_info(&self) -> LaunchInfo {
        self.inner.launch
    }

    /// The engine's id of the container.
    pub fn container_id(&self) -> &str {
        self.inner.container.id()
    }

    /// The io dir on the host, absolute; `None` if it is private.
    pub fn io_dir(&self) -> Option<&Path> {
        self.inner.io_dir().and_then(IoDir::host_path)
    }

    /// The id of the image that its commands run in; `None` if they run in a directory, or in none.
    pub fn image_id(&self) -> Option<&str> {
        self.inner.image_id.as_deref()
    }

    /// What it is made of, by paths that lead to the opened files and directories as long as this
    /// exists: the root directory or image archive of its spec, and then the inputs that are paths.
    pub fn opened(&self) -> Vec<PathBuf> {
        let path = |file: &Arc<OwnedFd>| format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        self.inner.named.iter().map(path).collect()
    }

    /// Facts about its engine.
    ///
    /// # Errors
    ///
    /// [`Error`] if the engine fails.
    pub async fn engine_facts(&self) -> Result<EngineFacts, Error> {
        step(Step::Connect, self.inner.shared.engine.facts()).await
    }

    /// The confinement of the agent beyond its container.
    pub fn confinement(&self) -> &Confinement {
        &self.inner.confinement
    }

    /// The guest path of a file or directory on the host; `None` if it is outside the mounts, or if
    /// the path is relative or contains `..`. The path is not accessed: it may be a link, or not
    /// exist.
    pub fn guest_path(&self, host: impl AsRef<Path>) -> Option<GuestPath> {
        self.inner.path_map.guest(host.as_ref())
    }

    /// The host path of a guest path in the syntax of file operations; `None` if it is outside the
    /// mounts. The guest controls what is there: open it only if you would open a file that any
    /// script may have created.
    pub fn host_path(&self, guest: impl AsRef<[u8]>) -> Option<PathBuf> {
        self.inner.path_map.host(&self.inner.resolve(guest.as_ref())?)
    }

    /// What its container uses now, if its control groups are on this machine. A paused one is asked too.
    pub async fn current_use(&self) -> Option<ContainerUse> {
        let inner = &self.inner;
        let groups =
            tokio::time::timeout(EVIDENCE_TIMEOUT, inner.container.groups()).await.ok()??;
        let current = groups.current()?;
        let processors = f64::from(inner.limits.cpus);
        Some(ContainerUse {
            cpu_used_ratio: inner.cpu_sample.ratio(Instant::now(), current.cpu, processors),
            memory_bytes: current.memory,
            cache_bytes: current.cache,
        })
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Why the sandbox accepts no more requests; `None` as long as it is not known to have ended.
    pub fn ended(&self) -> Option<Error> {
        self.inner.ended()
    }

    /// Completes when the sandbox accepts no more requests, whatever ended it. Its container exists
    /// until it is [closed](Self::close).
    pub fn until_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let end = self.inner.session.subscribe_end();
        async move { _ = end.await }
    }

    /// Ends the sandbox: shuts the agent down, and removes the container. A run in progress is
    /// cancelled. If the container could not be removed, another call tries again.
    ///
    /// # Errors
    ///
    /// [`Error`] if the container could not be removed. The next command will remove it.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.close().await
    }

    /// Ends the sandbox like [`close`](Self::close), and does not wait for the engine: the engine
    /// is asked to remove the container, and does so even if this process ends at once. The
    /// sandbox's resources on this machine, such as a private io dir, are gone when this returns.
    /// If the sandbox has ended already and not by [`finish`](Self::finish), or the engine cannot be asked so
    /// (one behind TCP, or Podman), this is `close`. The next command removes what an engine failed to remove.
    ///
    /// # Errors
    ///
    /// As `close`.
    pub async fn release(&self) -> Result<(), Error> {
        self.inner.release().await
    }

    /// Ends the sandbox, and decides about the changes of a [staged](sandbox_api::SandboxSpec::staged)
    /// io dir: lists them, and commits them if `options` and `outcome` say so. `None` if the io dir is
    /// not staged, or was decided about. Without this call the changes are discarded. It waits for the end of
    /// the container; [`release`](Self::release) or [`close`](Self::close) removes that.
    ///
    /// # Errors
    ///
    /// [`Error`] if the container could neither be ended nor removed: then nothing is committed. Or if the
    /// changes cannot be compared or committed.
    pub async fn finish(
        &self,
        options: FinishOptions,
        outcome: &Outcome,
    ) -> Result<Option<StagedEnd>, Error> {
        let taken = |io_dir: &IoDir| Some((io_dir.take_staged()?, io_dir.view()));
        let Some((staged, view)) = self.inner.io_dir().and_then(taken) else {
            return self.close().await.map(|()| None);
        };
        let stopped = self.inner.stop().await;
        let is_ok = matches!(outcome, Outcome::Ok { .. });
        let most = self.inner.limits.entries.get() as usize;
        let reached = |point| hold(Point::Commit(point), || false);
        let inner = self.inner.clone();
        let finish = move || match stopped {
            Ok(()) => {
                let redactions = &inner.redactions;
                staged.finish(&view, options, is_ok, most, redactions, reached).map(Some)
            }
            // The copy may still change.
            Err(error) => Err(error),
        };
        tokio::task::spawn_blocking(finish).await.unwrap_or_else(|error| {
            Err(Error::Ended { detail: format!("the commit was cancelled: {error}") })
        })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.inner.is_closing.store(true, Ordering::Relaxed);
        self.inner.removal.remove(Attempt::First);
    }
}

/// Does this in a separate task: it is whole even if the caller is gone.
pub(crate) async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let gone = |_| Err(Error::Ended { detail: "the runtime is shutting down".to_owned() });
    crate::spawn(work).await.unwrap_or_else(gone)
}
