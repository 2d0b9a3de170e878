//! What the calls of one caller share: an io dir, and a sandbox in which the file tools work.
//!
//! **Invariant:** every sandbox that a workspace launched is gone when [`Workspace::close`] returns,
//! or its container could not be removed, which the controller reports and tries again.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sandbox_api::operation::{Envelope, Operation};
use sandbox_api::{DEFAULT_IDLE_LIMIT, ErrorKind, Failure, Input, Lifespan, SandboxSpec};
use sandbox_controller::{Controller, Error, Sandbox};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::settings::{Access, Audience, Settings};

/// How many file operations of one workspace are in progress at a time: as many as an agent takes.
const OPERATIONS: usize = 16;
/// How long [`Workspace::close`] waits for calls in progress after it has cancelled them.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// An error of a [`Workspace`].
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// The io dir cannot be created.
    #[error("cannot create the io dir {}", .path.display())]
    IoDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl WorkspaceError {
    /// A suggested next step.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::IoDir { .. } => "--io-dir names a directory that you may write to",
        }
    }
}

/// What the calls of one caller share.
pub struct Workspace {
    controller: Arc<Controller>,
    settings: Arc<Settings>,
    io_dir: Option<IoDir>,
    /// The sandbox of the file tools; none before the first call, and after it has ended.
    kept: Mutex<Option<Arc<Sandbox>>>,
    containers: Arc<Semaphore>,
    operations: Semaphore,
    /// Removals, which calls do not wait for.
    tasks: TaskTracker,
    /// Counts the changes of the list of files.
    changes: watch::Sender<u64>,
    closing: CancellationToken,
}

/// The io dir, which exists as long as the workspace does.
#[derive(Debug)]
struct IoDir {
    path: PathBuf,
    /// It did not exist before: it is removed again if it is empty.
    is_new: bool,
}

impl IoDir {
    fn open(path: PathBuf) -> Result<Self, WorkspaceError> {
        let created = fs::DirBuilder::new().recursive(false).mode(0o755).create(&path);
        let is_new = match created {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&path);
                made.map_err(|source| WorkspaceError::IoDir { path: path.clone(), source })?;
                true
            }
            Err(source) => return Err(WorkspaceError::IoDir { path, source }),
        };
        Ok(Self { path, is_new })
    }
}

impl Drop for IoDir {
    fn drop(&mut self) {
        if self.is_new {
            // Fails where there are files, which stay.
            _ = fs::remove_dir(&self.path);
        }
    }
}

/// A sandbox of one script or one command, which is removed when this is dropped. The removal is
/// not waited for, and counts as a running container until it is done.
pub(crate) struct Fresh {
    sandbox: Option<(Sandbox, OwnedSemaphorePermit)>,
    tasks: TaskTracker,
}

impl Fresh {
    /// The sandbox.
    pub fn sandbox(&self) -> &Sandbox {
        let (sandbox, _) = self.sandbox.as_ref().expect("taken only by `drop`");
        sandbox
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let Some((sandbox, permit)) = self.sandbox.take() else { return };
        self.tasks.spawn(async move {
            if let Err(error) = sandbox.close().await {
                tracing::warn!("a sandbox could not be removed yet: {}", error.full_message());
            }
            drop(permit);
        });
    }
}

impl Workspace {
    /// A workspace with this io dir, which is created if it is missing, and removed again at the end
    /// if it was and is empty; without one, there are no files. No sandbox is launched yet.
    ///
    /// # Errors
    ///
    /// [`WorkspaceError`] if the io dir cannot be created.
    pub fn open(
        controller: Arc<Controller>,
        settings: Arc<Settings>,
        io_dir: Option<PathBuf>,
    ) -> Result<Self, WorkspaceError> {
        let io_dir = io_dir.map(IoDir::open).transpose()?;
        let concurrency = settings.concurrency.get() as usize;
        Ok(Self {
            controller,
            settings,
            io_dir,
            kept: Mutex::new(None),
            containers: Arc::new(Semaphore::new(concurrency)),
            operations: Semaphore::new(OPERATIONS),
            tasks: TaskTracker::new(),
            changes: watch::Sender::new(0),
            closing: CancellationToken::new(),
        })
    }

    /// Whether it has files.
    pub(crate) const fn has_files(&self) -> bool {
        self.io_dir.is_some()
    }

    /// Cancelled when the workspace closes.
    pub(crate) const fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// The spec of its sandboxes.
    fn spec(&self) -> SandboxSpec {
        let spec = self.settings.sandbox.clone();
        let Some(io_dir) = &self.io_dir else { return spec.no_io() };
        match self.settings.access {
            Access::ReadWrite => spec.io_dir(&io_dir.path),
            Access::ReadOnly => {
                let mount_path = spec.mount_path.clone();
                let input = Input::path(&io_dir.path, mount_path.clone());
                // The mount point of the io dir is taken by the input.
                spec.input(input).workdir(mount_path)
            }
        }
    }

    /// Starts sandboxes for scripts and commands ahead, where the controller has a pool.
    ///
    /// # Errors
    ///
    /// As a launch.
    pub async fn prewarm(&self) -> Result<(), Error> {
        match self.controller.prewarm(self.fresh_spec("mcp")).await {
            // Those with inputs, as a read-only io dir is one, always start cold.
            Err(Error::NotPooled { .. }) => Ok(()),
            warmed => warmed,
        }
    }

    fn fresh_spec(&self, title: &str) -> SandboxSpec {
        self.spec().lifespan(Lifespan::OneRun).title(title)
    }

    /// Launches a sandbox for one script or one command, when there are not too many.
    pub(crate) async fn fresh(&self, title: &str) -> Result<Fresh, Failure> {
        let permit = self.containers.clone().acquire_owned().await;
        let permit = permit.map_err(|_| cancelled())?;
        let launched = self.controller.launch(self.fresh_spec(title)).await;
        let sandbox = launched.map_err(|error| self.launch_failure(&error))?;
        Ok(Fresh { sandbox: Some((sandbox, permit)), tasks: self.tasks.clone() })
    }

    /// The sandbox of the file tools, which is launched if there is none.
    pub(crate) async fn kept(&self) -> Result<Arc<Sandbox>, Failure> {
        let mut kept = self.kept.lock().await;
        if let Some(sandbox) = &*kept
            && sandbox.ended().is_none()
        {
            return Ok(sandbox.clone());
        }
        if self.closing.is_cancelled() {
            return Err(cancelled());
        }
        if let Some(ended) = kept.take() {
            self.tasks.spawn(async move { _ = ended.close().await });
        }
        let spec = self.spec().idle_limit(Some(DEFAULT_IDLE_LIMIT)).title("mcp files");
        let launched = self.controller.launch(spec).await;
        let sandbox = Arc::new(launched.map_err(|error| self.launch_failure(&error))?);
        *kept = Some(sandbox.clone());
        Ok(sandbox)
    }

    /// Performs a file operation in the kept sandbox. If that dies meanwhile, this call has failed,
    /// and the next one gets another sandbox.
    pub(crate) async fn perform(&self, operation: Operation) -> Result<Envelope, Failure> {
        let _permit = self.operations.acquire().await.map_err(|_| cancelled())?;
        let sandbox = self.kept().await?;
        Ok(sandbox.perform(operation).await)
    }

    /// Works with the kept sandbox.
    pub(crate) async fn with_kept<T>(
        &self,
        work: impl AsyncFnOnce(&Sandbox) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let _permit = self.operations.acquire().await.map_err(|_| cancelled())?;
        let sandbox = self.kept().await?;
        work(&sandbox).await.map_err(|error| Failure::from(&error))
    }

    /// Why a launch failed, in words for its caller.
    fn launch_failure(&self, error: &Error) -> Failure {
        let failure = Failure::from(error);
        match self.settings.audience {
            Audience::Local => failure,
            Audience::Remote => {
                tracing::error!("a sandbox cannot be launched: {}", failure.message);
                Failure::new(failure.kind, "the sandbox could not be launched", None)
            }
        }
    }

    /// An error of a sandbox, in words for its caller.
    pub(crate) fn failure(&self, error: &Error) -> Failure {
        match error {
            Error::MountLost { .. } | Error::MountRefused { .. } | Error::IoDir { .. } => {
                self.launch_failure(error)
            }
            error => Failure::from(error),
        }
    }

    /// Says that files were created or removed.
    pub(crate) fn files_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Follows the changes of the list of files.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The io dir, if there is one.
    #[must_use]
    pub fn io_dir(&self) -> Option<&Path> {
        self.io_dir.as_ref().map(|io_dir| &*io_dir.path)
    }

    /// Cancels what is in progress, and waits until its sandboxes are removed.
    pub async fn close(&self) {
        self.closing.cancel();
        let all = self.settings.concurrency.get();
        let ended = tokio::time::timeout(CLOSE_WAIT, self.containers.acquire_many(all)).await;
        if ended.is_err() {
            tracing::warn!("calls in progress did not end in {CLOSE_WAIT:?}");
        }
        self.containers.close();
        self.operations.close();
        if let Some(kept) = self.kept.lock().await.take()
            && let Err(error) = kept.close().await
        {
            tracing::warn!("a sandbox could not be removed yet: {}", error.full_message());
        }
        self.tasks.close();
        if tokio::time::timeout(CLOSE_WAIT, self.tasks.wait()).await.is_err() {
            tracing::warn!("sandboxes were not removed in {CLOSE_WAIT:?}");
        }
    }
}

/// The failure of a call that its caller, or the end of the server, has cancelled.
pub(crate) fn cancelled() -> Failure {
    Failure::new(ErrorKind::Cancelled, "cancelled", None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_dir_that_was_created_and_left_empty_is_removed_again() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("a/new");
        drop(IoDir::open(new.clone()).unwrap());
        assert!(!new.exists());
        let opened = IoDir::open(new.clone()).unwrap();
        fs::write(new.join("file"), "x").unwrap();
        drop(opened);
        assert!(new.join("file").exists());
        // It was there before: it stays.
        let old = folder.path().join("old");
        fs::create_dir(&old).unwrap();
        drop(IoDir::open(old.clone()).unwrap());
        assert!(old.exists());
    }
}
