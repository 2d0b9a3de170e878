//! A sandbox's life: create, attach, start, hello, requests, shutdown, exit evidence, remove.
//!
//! Every step has its own time limit ([`Step::time_limit`]). What was started is owned by
//! [`RemovalGuard`], whose end removes it; what even that cannot remove (the process was killed, the
//! engine is gone) carries labels by which the next command does ([`reap`](crate::gc::reap)).

pub(crate) mod confinement;
pub(crate) mod context;
pub(crate) mod idle;
pub(crate) mod inner;
mod launch;
pub(crate) mod owner;
pub(crate) mod plan;
pub(crate) mod prepared;
mod removal;
#[cfg(test)]
mod tests;
pub(crate) mod user;

pub(crate) use self::inner::Inner;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandbox_protocol::message::Confinement;
use sandbox_protocol::path::GuestPath;

use crate::error::Error;
use crate::io_dir::IoDir;
use crate::sandbox::removal::Attempt;

/// A sandbox: one container, which serves it alone. Dropped without [`close`](Self::close): killed
/// and removed.
pub struct Sandbox {
    inner: Arc<Inner>,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sandbox").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Its id, which is also in its container's labels and name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// The engine's id of its container.
    #[must_use]
    pub fn container_id(&self) -> &str {
        self.inner.container.id()
    }

    /// Its io dir on the host, absolute; `None` of one that is private.
    #[must_use]
    pub fn io_dir(&self) -> Option<&Path> {
        self.inner.io_dir().and_then(IoDir::host_path)
    }

    /// What confines the agent beyond its container.
    #[must_use]
    pub fn confinement(&self) -> &Confinement {
        &self.inner.confinement
    }

    /// Where a file or directory of the host appears in the sandbox; `None` where it does not, or
    /// its path is relative or has `..` in it. The path is not looked at: what is there may be a
    /// link, or nothing.
    #[must_use]
    pub fn guest_path(&self, host: impl AsRef<Path>) -> Option<GuestPath> {
        self.inner.path_map.guest(host.as_ref())
    }

    /// Where a guest path, written as operations take it, is on the host; `None` where that is
    /// outside the mounts. What is there belongs to the guest: open it only if you would open what
    /// any script may have put there.
    #[must_use]
    pub fn host_path(&self, guest: impl AsRef<[u8]>) -> Option<PathBuf> {
        self.inner.path_map.host(&self.inner.resolve(guest.as_ref())?)
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Why nothing can be asked of it any more; `None` as long as it is not known to have ended.
    #[must_use]
    pub fn ended(&self) -> Option<Error> {
        self.inner.ended()
    }

    /// Ends it: the agent is told, the container is removed. A run that is under way is cancelled.
    /// Asked again, it tries again where the container could not be removed.
    ///
    /// # Errors
    ///
    /// [`Error`] where the container could not be removed. The next command will.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.close().await
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.inner.is_closing.store(true, Ordering::Relaxed);
        self.inner.removal.remove(Attempt::First);
    }
}
