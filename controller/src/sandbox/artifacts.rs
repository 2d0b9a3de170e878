//! Artifacts: files of the io dir that are copied to the caller's directory.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandbox_artifacts::{Collected, Request, collect};
use tokio::task::JoinHandle;

use super::Sandbox;
use crate::error::Error;
use crate::failpoint::{Point, hold};

/// A copy in progress. Dropping it cancels it.
#[derive(Debug)]
pub struct ArtifactCopy {
    is_cancelled: Arc<AtomicBool>,
    work: JoinHandle<Result<Collected, Error>>,
}

impl Sandbox {
    /// Keeps the files of a private io dir in `to`: for a caller who created the sandbox with a
    /// [fresh one](sandbox_api::SandboxSpec::fresh_io_dir) and wants its files. They are copied out of
    /// one that the kernel bounds, which may take long; a directory is moved. `to` must not exist,
    /// and be on the file system of [`Config::scratch_dir`](crate::Config::scratch_dir). It belongs
    /// to the caller. Its parent must admit only this user: every user may write to it at times. Call
    /// it when nothing runs in the sandbox any more: what does may still change the files.
    ///
    /// # Errors
    ///
    /// [`Error::NoFreshIoDir`] if there is no such io dir, or the sandbox was closed;
    /// [`Error::KeepIoDir`] if it cannot be copied or moved.
    pub fn keep_io_dir(&self, to: impl AsRef<Path>) -> Result<(), Error> {
        self.inner.io_dir().ok_or(Error::NoFreshIoDir)?.keep(to.as_ref())
    }

    /// Starts to copy files of the io dir, at most as many as `limits.entries`. Call it when
    /// nothing runs in the sandbox any more, and before it is closed: a fresh io dir is removed
    /// with it.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start_artifacts(&self, request: Request) -> ArtifactCopy {
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let (cancelled, io_dir) = (is_cancelled.clone(), self.inner.io_dir.clone());
        let redactions = self.inner.redactions.clone();
        let most = u64::from(self.inner.limits.entries.get());
        let work = tokio::task::spawn_blocking(move || {
            let io_dir = io_dir.ok_or(Error::NoIoDir)?;
            io_dir.settle().map_err(|source| sandbox_artifacts::Error::Io {
                action: "copy",
                path: ".".to_owned(),
                source,
            })?;
            let is_cancelled = || cancelled.load(Ordering::Relaxed);
            let proceed = || {
                hold(Point::Copying, is_cancelled);
                !is_cancelled()
            };
            let shown = |path: &[u8]| redactions.bytes(path).into_owned();
            Ok(collect(io_dir.view().as_fd(), &request, most, &shown, &proceed)?)
        });
        ArtifactCopy { is_cancelled, work }
    }
}

impl ArtifactCopy {
    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// [`Error`] if nothing was copied.
    pub async fn wait(&mut self) -> Result<Collected, Error> {
        (&mut self.work).await.unwrap_or_else(|error| {
            Err(Error::Ended { detail: format!("artifacts were not copied: {error}") })
        })
    }

    /// Ends it soon: [`wait`](Self::wait) returns when the copied files are removed.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }
}

impl Drop for ArtifactCopy {
    fn drop(&mut self) {
        self.cancel();
    }
}
