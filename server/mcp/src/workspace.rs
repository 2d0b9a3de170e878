//! What the calls of one caller share: an io dir, and a sandbox in which the file tools work.
//!
//! **Invariant:** every sandbox that a workspace launched is gone when [`Workspace::close`] returns,
//! or its container could not be removed, which the controller reports and tries again.

use std::any::Any;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use sandbox_api::files::ReadData;
use sandbox_api::operation::{OperationRequest, Read, read_result};
use sandbox_api::{
    CancelCause, DEFAULT_IDLE_LIMIT, Encoding, ErrorKind, ExecutionEvent, ExecutionResult, Failure,
    Input, Lifespan, SandboxSpec, SpecError, Status, Usage, Workload,
};
use sandbox_controller::{CancelHandle, Controller, Error, Sandbox};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::outputs::Outputs;
use crate::quotas::{Account, Turn};
use crate::settings::{Access, Audience, Settings};
use crate::transport::progress::Progress;

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
    /// Dropped at the end: the opener of the workspace is its last owner then.
    controller: StdMutex<Option<Arc<Controller>>>,
    settings: Arc<Settings>,
    io_dir: Option<IoDir>,
    /// Whose calls they are, where there are quotas.
    account: Option<Account>,
    /// The sandbox of the file tools; none before the first call, and after it has ended.
    kept: Arc<Mutex<Option<FileSandbox>>>,
    containers: Arc<Semaphore>,
    operations: Semaphore,
    /// Removals, which calls do not wait for.
    tasks: TaskTracker,
    /// Counts the changes of the list of files.
    changes: watch::Sender<u64>,
    outputs: Outputs,
    closing: CancellationToken,
}

/// The io dir, which exists as long as the workspace does.
#[derive(Debug)]
struct IoDir {
    path: PathBuf,
    /// What did not exist before, outermost first: removed again where it is empty.
    made: Vec<PathBuf>,
}

impl IoDir {
    fn open(path: PathBuf) -> Result<Self, WorkspaceError> {
        let is_missing = |dir: &&Path| fs::symlink_metadata(dir).is_err();
        let dirs = path.ancestors().filter(|dir| !dir.as_os_str().is_empty());
        let missing: Vec<PathBuf> = dirs.take_while(is_missing).map(Path::to_owned).collect();
        // Dropped on an error, so that nothing is left of a path that cannot be created.
        let mut io_dir = Self { path, made: Vec::new() };
        for dir in missing.into_iter().rev() {
            match fs::DirBuilder::new().mode(0o755).create(&dir) {
                Ok(()) => io_dir.made.push(dir),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    return Err(WorkspaceError::IoDir { path: io_dir.path.clone(), source });
                }
            }
        }
        Ok(io_dir)
    }
}

impl Drop for IoDir {
    fn drop(&mut self) {
        for dir in self.made.iter().rev() {
            // Fails where there are files, which stay.
            _ = fs::remove_dir(dir);
        }
    }
}

/// The sandbox of the file tools, with its place among those of its subject.
struct FileSandbox {
    sandbox: Arc<Sandbox>,
    place: Option<Box<dyn Any + Send>>,
}

/// A sandbox of one script or one command, which is removed when this is dropped. The removal is
/// not waited for, and counts as a running container until it is done.
pub(crate) struct Fresh {
    sandbox: Option<(Sandbox, OwnedSemaphorePermit)>,
    /// None where there are no quotas, and after the end.
    turn: Option<Box<dyn Turn>>,
    tasks: TaskTracker,
}

impl Fresh {
    /// The sandbox.
    pub fn sandbox(&self) -> &Sandbox {
        let (sandbox, _) = self.sandbox.as_ref().expect("taken only by `drop`");
        sandbox
    }

    /// What it ran has ended like this; none if it did not run.
    pub async fn ended(&mut self, result: Option<&ExecutionResult>) {
        let Some(turn) = self.turn.take() else { return };
        match result {
            Some(result) => {
                turn.end(result.outcome.status(), result.usage.charged(&result.limits)).await;
            }
            None => turn.end(Status::Error, Usage::default()).await,
        }
    }
}

/// Runs something to its end, and sends its progress.
async fn follow(
    sandbox: &Sandbox,
    workload: Workload,
    token: &CancellationToken,
    mut progress: Option<Progress>,
    mut push: impl FnMut(&ExecutionEvent, Option<&mut Progress>),
) -> Result<ExecutionResult, Error> {
    let cancel = CancelHandle::new();
    let mut execution = sandbox.start(workload, cancel.clone()).await?;
    loop {
        tokio::select! {
            biased;
            () = token.cancelled(), if cancel.cause().is_none() => {
                cancel.cancel(CancelCause::Caller);
            }
            // The clock of what is not sent yet.
            () = Progress::due(&progress), if progress.is_some() => {
                if let Some(progress) = &mut progress {
                    progress.send(token).await;
                }
            }
            event = execution.next() => match event {
                Some(event) => push(&event, progress.as_mut()),
                None => break,
            },
        }
    }
    if let Some(progress) = &mut progress {
        progress.send(token).await;
    }
    execution.wait().await
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let Some((sandbox, permit)) = self.sandbox.take() else { return };
        self.tasks.spawn(async move {
            remove(&sandbox).await;
            drop(permit);
        });
    }
}

/// Removes a sandbox. What cannot be removed now, the controller tries again.
async fn remove(sandbox: &Sandbox) {
    if let Err(error) = sandbox.close().await {
        tracing::warn!("a sandbox could not be removed yet: {}", error.full_message());
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
        Self::open_for(None, Outputs::default(), controller, settings, io_dir)
    }

    /// The same, with the quotas of a subject.
    pub(crate) fn open_for(
        account: Option<Account>,
        outputs: Outputs,
        controller: Arc<Controller>,
        settings: Arc<Settings>,
        io_dir: Option<PathBuf>,
    ) -> Result<Self, WorkspaceError> {
        let io_dir = io_dir.map(IoDir::open).transpose()?;
        let concurrency = settings.concurrency.get() as usize;
        Ok(Self {
            controller: StdMutex::new(Some(controller)),
            settings,
            io_dir,
            account,
            kept: Arc::default(),
            containers: Arc::new(Semaphore::new(concurrency)),
            operations: Semaphore::new(OPERATIONS),
            tasks: TaskTracker::new(),
            changes: watch::Sender::new(0),
            outputs,
            closing: CancellationToken::new(),
        })
    }

    /// The controller, until the workspace is closed.
    fn controller(&self) -> Option<Arc<Controller>> {
        self.controller.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has files.
    pub(crate) const fn has_files(&self) -> bool {
        self.io_dir.is_some()
    }

    /// What it was opened with.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The outputs that are kept.
    pub(crate) const fn outputs(&self) -> &Outputs {
        &self.outputs
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
        let Some(controller) = self.controller() else { return Ok(()) };
        match controller.prewarm(self.fresh_spec("mcp")).await {
            // Those with inputs, as a read-only io dir is one, always start cold.
            Err(Error::NotPooled { .. }) => Ok(()),
            warmed => warmed,
        }
    }

    fn fresh_spec(&self, title: &str) -> SandboxSpec {
        self.spec().lifespan(Lifespan::OneRun).title(title)
    }

    /// Runs one script or one command in a sandbox of its own, and gives its events to `push`. A call
    /// that is cancelled before it has a sandbox does not wait for it.
    pub(crate) async fn run_fresh(
        &self,
        title: &str,
        workload: impl Into<Workload>,
        token: &CancellationToken,
        progress: Option<Progress>,
        push: impl FnMut(&ExecutionEvent, Option<&mut Progress>),
    ) -> Result<ExecutionResult, Failure> {
        let mut fresh = tokio::select! {
            biased;
            () = token.cancelled() => return Err(cancelled()),
            fresh = self.fresh(title) => fresh?,
        };
        let result = follow(fresh.sandbox(), workload.into(), token, progress, push).await;
        fresh.ended(result.as_ref().ok()).await;
        let result = result.map_err(|error| self.failure(&error))?;
        if !result.files_touched.files.is_empty() {
            self.files_changed();
        }
        Ok(result)
    }

    /// Launches a sandbox for one script or one command, when there are not too many.
    async fn fresh(&self, title: &str) -> Result<Fresh, Failure> {
        let turn = match &self.account {
            Some(account) => Some(account.turn().await?),
            None => None,
        };
        let mut fresh = Fresh { sandbox: None, turn, tasks: self.tasks.clone() };
        let permit = self.containers.clone().acquire_owned().await;
        let permit = permit.map_err(|_| cancelled())?;
        let controller = self.controller().ok_or_else(cancelled)?;
        match controller.launch(self.fresh_spec(title)).await {
            Ok(sandbox) => {
                fresh.sandbox = Some((sandbox, permit));
                Ok(fresh)
            }
            Err(error) => {
                fresh.ended(None).await;
                Err(self.launch_failure(&error))
            }
        }
    }

    /// The sandbox of the file tools, which is launched if it is missing.
    pub(crate) async fn kept(&self) -> Result<Arc<Sandbox>, Failure> {
        let mut kept = self.kept.lock().await;
        if let Some(FileSandbox { sandbox, .. }) = &*kept
            && sandbox.ended().is_none()
        {
            return Ok(sandbox.clone());
        }
        if self.closing.is_cancelled() {
            return Err(cancelled());
        }
        let mut place = None;
        if let Some(ended) = kept.take() {
            place = ended.place;
            self.tasks.spawn(async move { remove(&ended.sandbox).await });
        }
        if let (None, Some(account)) = (&place, &self.account) {
            place = Some(account.sandbox_place()?);
        }
        let spec = self.spec().idle_limit(Some(DEFAULT_IDLE_LIMIT)).title("mcp files");
        let controller = self.controller().ok_or_else(cancelled)?;
        let launched = controller.launch(spec).await;
        let sandbox = Arc::new(launched.map_err(|error| self.launch_failure(&error))?);
        *kept = Some(FileSandbox { sandbox: sandbox.clone(), place });
        self.remove_when_ended(&sandbox);
        Ok(sandbox)
    }

    /// Removes the kept sandbox when it has ended by itself, such as at its idle limit: the next call
    /// may never come.
    fn remove_when_ended(&self, sandbox: &Sandbox) {
        let (kept, closing) = (self.kept.clone(), self.closing.clone());
        let (ended, id) = (sandbox.until_ended(), sandbox.id().to_owned());
        self.tasks.spawn(async move {
            tokio::select! {
                () = ended => {}
                // It is removed there.
                () = closing.cancelled() => return,
            }
            let taken = kept.lock().await.take_if(|kept| kept.sandbox.id() == id);
            if let Some(FileSandbox { sandbox, place }) = taken {
                remove(&sandbox).await;
                drop(place);
            }
        });
    }

    /// Whether it can be dropped: it has no sandbox, and only its owner uses it.
    pub(crate) fn is_unused(self: &Arc<Self>) -> bool {
        let has_none = self.kept.try_lock().is_ok_and(|kept| kept.is_none());
        has_none && Arc::strong_count(self) == 1
    }

    /// Performs a file operation in the kept sandbox. If that dies meanwhile, this call has failed,
    /// and the next one gets another sandbox.
    pub(crate) async fn perform(
        &self,
        request: impl Into<OperationRequest>,
    ) -> Result<Box<RawValue>, Failure> {
        let request = request.into();
        let _permit = self.operations.acquire().await.map_err(|_| cancelled())?;
        if let Some(account) = &self.account
            && request.operation.stores()
        {
            account.check_stored().await?;
        }
        let sandbox = self.kept().await?;
        sandbox.perform(request).await.into_result()
    }

    /// The same, with its result.
    pub(crate) async fn result_of<T: DeserializeOwned>(
        &self,
        request: impl Into<OperationRequest>,
    ) -> Result<T, Failure> {
        let data = self.perform(request).await?;
        read_result(data.get()).map_err(|error| {
            Failure::new(ErrorKind::Internal, format!("the result is unreadable: {error}"), None)
        })
    }

    /// Reads a file, or a range of it, in an encoding.
    pub(crate) async fn read(&self, read: Read, encoding: Encoding) -> Result<ReadData, Failure> {
        self.result_of(OperationRequest { encoding: Some(encoding), ..read.into() }).await
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
            Error::Spec(SpecError::ArgsTooLarge { .. }) => {
                let hint = "write large data to a file, which the script reads".to_owned();
                Failure { hint: self.has_files().then_some(hint), ..Failure::from(error) }
            }
            error => Failure::from(error),
        }
    }

    /// Says that files were created or removed.
    pub(crate) fn files_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Follows the changes of the list of files.
    ///
    /// All earlier changes count as one more: some may be later than the client's subscription.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.subscribe();
        if *changes.borrow() > 0 {
            changes.mark_changed();
        }
        changes
    }

    /// The io dir, if there is one.
    #[must_use]
    pub fn io_dir(&self) -> Option<&Path> {
        self.io_dir.as_ref().map(|io_dir| &*io_dir.path)
    }

    /// Cancels what is in progress, waits until its sandboxes are removed, and gives its controller
    /// up.
    pub async fn close(&self) {
        self.closing.cancel();
        let all = self.settings.concurrency.get();
        let ended = tokio::time::timeout(CLOSE_WAIT, self.containers.acquire_many(all)).await;
        if ended.is_err() {
            tracing::warn!("calls in progress did not end in {CLOSE_WAIT:?}");
        }
        self.containers.close();
        self.operations.close();
        if let Some(kept) = self.kept.lock().await.take() {
            remove(&kept.sandbox).await;
        }
        self.tasks.close();
        if tokio::time::timeout(CLOSE_WAIT, self.tasks.wait()).await.is_err() {
            tracing::warn!("sandboxes were not removed in {CLOSE_WAIT:?}");
        }
        drop(self.controller.lock().unwrap_or_else(PoisonError::into_inner).take());
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
        assert!(!folder.path().join("a").exists(), "nor what was made above it");
        let opened = IoDir::open(new.clone()).unwrap();
        fs::write(new.join("file"), "x").unwrap();
        drop(opened);
        assert!(new.join("file").exists());
        // Nothing is left of what cannot be created.
        let long = folder.path().join("b/c").join("n".repeat(300));
        assert!(IoDir::open(long).is_err());
        assert!(!folder.path().join("b").exists());
        let below = new.join("file/x");
        assert!(IoDir::open(below).is_err());
        // It was there before: it stays.
        let old = folder.path().join("old");
        fs::create_dir(&old).unwrap();
        drop(IoDir::open(old.clone()).unwrap());
        assert!(old.exists());
    }
}
