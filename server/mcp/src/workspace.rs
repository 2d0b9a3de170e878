//! What the calls of one caller share: an io dir, and a sandbox in which the file tools work.
//!
//! Sandboxes are the service's: it starts them, admits what runs in them, and removes them.

mod processes;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rmcp::model::JsonObject;
use sandbox_api::files::ReadData;
use sandbox_api::operation::{OperationRequest, Read, read_result};
use sandbox_api::service::{SandboxRef, Subject};
use sandbox_api::{
    CancelCause, Encoding, ErrorKind, ExecutionEvent, ExecutionResult, Failure, GuestPath, Input,
    Lifespan, SandboxSpec, Workload,
};
use sandbox_service::host_tools::ToolGrant;
use sandbox_service::permission::Permission;
use sandbox_service::{CancelHandle, Service, ServiceError};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lock;
use crate::outputs::Outputs;
use crate::settings::{Access, Audience, Settings};
use crate::subscriptions::Subscriptions;
use crate::transport::progress::Progress;
use crate::uris;

/// How many file operations of one workspace are in progress at a time: as many as an agent takes.
const OPERATIONS: usize = 16;
/// How long [`Workspace::close`] waits for calls in progress after it has cancelled them.
const CLOSE_WAIT: Duration = Duration::from_secs(10);
/// The most files of one change that are compared with subscriptions; of more, each file may have changed.
const MAX_TOUCHED: usize = 256;
/// The title of the sandbox of the file tools.
const FILES: &str = "mcp files";

/// The io dir of a [`Workspace`] cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the io dir {}", .path.display())]
pub struct WorkspaceError {
    path: PathBuf,
    source: io::Error,
}

impl WorkspaceError {
    /// A suggested next step.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        "--io-dir names a directory that you may write to"
    }
}

/// What the calls of one caller share.
pub struct Workspace {
    /// Given up at the end: the opener of the workspace is its last owner then.
    service: Mutex<Option<Service>>,
    subject: Subject,
    settings: Arc<Settings>,
    io_dir: WorkspaceDir,
    _made: MadeDirs,
    operations: Semaphore,
    processes: Processes,
    /// Scripts and commands in progress.
    runs: TaskTracker,
    /// Counts the changes of the list of files.
    changes: watch::Sender<u64>,
    subscribers: Arc<Mutex<Subscribers>>,
    outputs: Outputs,
    closing: CancellationToken,
}

/// Where the processes of a workspace are.
#[derive(Debug, Default)]
struct Processes {
    /// The sandbox in which the last one was started, with its generation.
    sandbox: Mutex<Option<SandboxRef>>,
    /// Held while one is started: as many as may run are counted before.
    starting: tokio::sync::Mutex<()>,
    /// Where the files are watched.
    watched: Arc<Mutex<Option<SandboxRef>>>,
}

/// Who hears of changed files.
#[derive(Debug, Default)]
struct Subscribers {
    clients: Vec<Weak<Subscriptions>>,
    /// Files have changed.
    is_touched: bool,
}

impl Subscribers {
    /// Whether a client has subscribed to a file.
    fn has_any(&self) -> bool {
        self.clients.iter().filter_map(Weak::upgrade).any(|client| !client.is_empty())
    }

    /// Notifies all clients of these changed files; without paths, any may have changed.
    fn touch(&mut self, paths: Option<&[GuestPath]>) {
        self.is_touched = true;
        let clients = self.clients.iter().filter_map(Weak::upgrade);
        clients.for_each(|client| client.touch(paths));
    }
}

/// The io dir of a workspace.
#[derive(Debug, Clone)]
pub enum WorkspaceDir {
    /// None: there are no files.
    Off,
    /// A directory that the caller named. It is created if it is missing, and removed again at the end
    /// if it was and is empty.
    Named(PathBuf),
    /// A private io dir that is [kept](SandboxSpec::kept_io_dir) at this path.
    Kept(PathBuf),
}

/// The directories that were made for an io dir, outermost first. Dropping it removes those that are empty.
#[derive(Debug, Default)]
struct MadeDirs(Vec<PathBuf>);

impl MadeDirs {
    fn make(path: &Path) -> Result<Self, WorkspaceError> {
        let is_missing = |dir: &&Path| fs::symlink_metadata(dir).is_err();
        let dirs = path.ancestors().filter(|dir| !dir.as_os_str().is_empty());
        let missing: Vec<&Path> = dirs.take_while(is_missing).collect();
        // Dropped on an error, so that nothing is left of a path that cannot be created.
        let mut made = Self::default();
        for dir in missing.into_iter().rev() {
            match fs::DirBuilder::new().mode(0o755).create(dir) {
                Ok(()) => made.0.push(dir.to_owned()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(WorkspaceError { path: path.to_owned(), source }),
            }
        }
        Ok(made)
    }
}

impl Drop for MadeDirs {
    fn drop(&mut self) {
        for dir in self.0.iter().rev() {
            // Fails where there are files, which stay.
            _ = fs::remove_dir(dir);
        }
    }
}

impl Workspace {
    /// A workspace of this subject with this io dir. No sandbox is started yet.
    ///
    /// # Errors
    ///
    /// [`WorkspaceError`] if the io dir cannot be created.
    pub fn open(
        service: Service,
        subject: Subject,
        settings: Arc<Settings>,
        io_dir: WorkspaceDir,
    ) -> Result<Self, WorkspaceError> {
        let made = match &io_dir {
            WorkspaceDir::Named(path) => MadeDirs::make(path)?,
            WorkspaceDir::Off | WorkspaceDir::Kept(_) => MadeDirs::default(),
        };
        Ok(Self {
            service: Mutex::new(Some(service)),
            subject,
            settings,
            io_dir,
            _made: made,
            operations: Semaphore::new(OPERATIONS),
            processes: Processes::default(),
            runs: TaskTracker::new(),
            changes: watch::Sender::new(0),
            subscribers: Arc::default(),
            outputs: Outputs::default(),
            closing: CancellationToken::new(),
        })
    }

    /// The same with outputs that share a count.
    pub(crate) fn with_outputs(self, outputs: Outputs) -> Self {
        Self { outputs, ..self }
    }

    /// The service, until the workspace is closed.
    fn service(&self) -> Result<Service, Failure> {
        let service = lock(&self.service).clone();
        service.filter(|_| !self.closing.is_cancelled()).ok_or_else(cancelled)
    }

    /// Whether it has files.
    pub(crate) const fn has_files(&self) -> bool {
        !matches!(self.io_dir, WorkspaceDir::Off)
    }

    /// Whose it is.
    pub(crate) const fn subject(&self) -> &Subject {
        &self.subject
    }

    /// What it was opened with.
    pub(crate) const fn settings(&self) -> &Arc<Settings> {
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
        let io_dir = match &self.io_dir {
            WorkspaceDir::Off => return spec.no_io(),
            WorkspaceDir::Kept(path) => return spec.kept_io_dir(path),
            WorkspaceDir::Named(path) => path,
        };
        match self.settings.access {
            Access::ReadWrite => spec.io_dir(io_dir),
            Access::ReadOnly => {
                let mount_path = spec.mount_path.clone();
                let input = Input::path(io_dir, mount_path.clone());
                // The mount point of the io dir is taken by the input.
                spec.input(input).workdir(mount_path)
            }
        }
    }

    /// The spec of a sandbox for one script or one command, such as a pool starts ahead.
    #[must_use]
    pub fn spec_of_run(&self, title: &str) -> SandboxSpec {
        self.spec().lifespan(Lifespan::OneRun).title(title)
    }

    /// Runs one script or one command in a sandbox of its own, gives its events to `sink`, and sends its
    /// progress. A call that is cancelled before it has a sandbox does not wait for it.
    pub(crate) async fn run(
        &self,
        title: &str,
        workload: impl Into<Workload>,
        token: &CancellationToken,
        progress: Option<&Progress>,
        asker: Option<Arc<dyn Permission>>,
        sink: &(dyn Fn(ExecutionEvent) + Send + Sync),
    ) -> Result<ExecutionResult, Failure> {
        let (service, _run) = (self.service()?, self.runs.token());
        let (spec, cancel) = (self.spec_of_run(title), CancelHandle::new());
        let run = service.run(&self.subject, spec, workload, asker, &cancel, sink);
        tokio::pin!(run);
        let mut ticks = Progress::ticks();
        let result = loop {
            tokio::select! {
                biased;
                () = token.cancelled(), if cancel.cause().is_none() => {
                    cancel.cancel(CancelCause::Caller);
                }
                _ = ticks.tick(), if progress.is_some() => {
                    if let Some(progress) = progress {
                        progress.send(token).await;
                    }
                }
                result = &mut run => break result,
            }
        };
        if let Some(progress) = progress {
            progress.send(token).await;
        }
        let result = result.map_err(|error| self.failure(&error))?;
        let touched = &result.files_touched;
        let names = touched.files.iter().map(|file| file.name.as_bytes());
        let path = |name| uris::path_below(&self.settings.sandbox.mount_path, name);
        self.files_touched((!touched.truncated).then(|| names.map(path).collect()));
        if !touched.files.is_empty() {
            self.files_changed();
        }
        Ok(result)
    }

    /// What its scripts are given of other servers.
    pub(crate) fn tools(&self, asker: Option<Arc<dyn Permission>>) -> Option<ToolGrant> {
        self.service().ok()?.tools_of(&self.subject, asker)
    }

    /// Calls a tool of another server: its whole result, or the text of its failure.
    pub(crate) async fn call_tool(
        &self,
        name: &str,
        arguments: &JsonObject,
        asker: Option<Arc<dyn Permission>>,
        token: &CancellationToken,
    ) -> Result<Result<Value, String>, Failure> {
        let (service, _run) = (self.service()?, self.runs.token());
        let failed = |message: String| Failure::new(ErrorKind::Internal, message, None);
        let given = self.tools(asker).ok_or_else(|| failed("it has no tools".to_owned()))?;
        let tools = Arc::new(self.settings.upstreams.of(&self.subject).whole());
        let grant = ToolGrant { tools, ..given };
        let arguments = to_raw_value(arguments).map_err(|error| failed(error.to_string()))?;
        let called = service.call_tool(&self.subject, grant, (name, &*arguments), token).await;
        called.map_err(|error| self.failure(&error))
    }

    /// Whether it can be dropped: it has no sandbox, and only its owner uses it.
    pub(crate) fn is_unused(self: &Arc<Self>) -> bool {
        let has_sandbox = self.service().is_ok_and(|service| service.has_attached(&self.subject));
        !has_sandbox && Arc::strong_count(self) == 1
    }

    /// Performs a file operation in the sandbox of the file tools, which is started if it is missing. If
    /// that dies meanwhile, this call has failed, and the next one gets another sandbox.
    pub(crate) async fn perform(
        &self,
        request: impl Into<OperationRequest>,
    ) -> Result<Box<RawValue>, Failure> {
        let _permit = self.operations.acquire().await.map_err(|_| cancelled())?;
        let (service, request) = (self.service()?, request.into());
        let performed = service.perform_attached(&self.subject, FILES, || self.spec(), request);
        performed.await.map_err(|error| self.failure(&error))?.into_result()
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

    /// Why the service did not do something, and when to try again: a tool has no header for that.
    pub(crate) fn failure(&self, error: &ServiceError) -> Failure {
        let failure = match self.settings.audience {
            Audience::Local => error.failure_on_host(),
            Audience::Remote => error.failure(),
        };
        let Some(after) = error.retry_after() else { return failure };
        let seconds = after.as_millis().div_ceil(1000).max(1);
        Failure { hint: Some(format!("try again in {seconds} s")), ..failure }
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

    /// Says which files a call has changed, by their guest paths; without any, each may have changed.
    pub(crate) fn files_touched(&self, paths: Option<Vec<Vec<u8>>>) {
        let paths = paths.filter(|paths| paths.len() <= MAX_TOUCHED);
        let paths: Option<Vec<_>> =
            paths.and_then(|it| it.into_iter().map(|path| GuestPath::new(path).ok()).collect());
        if paths.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        lock(&self.subscribers).touch(paths.as_deref());
    }

    /// Notifies a client of changes from now on; true if files have changed before.
    pub(crate) fn tell(&self, client: &Arc<Subscriptions>) -> bool {
        let is_touched = {
            let mut subscribers = lock(&self.subscribers);
            let client = Arc::downgrade(client);
            subscribers.clients.retain(|it| it.strong_count() > 0 && !it.ptr_eq(&client));
            subscribers.clients.push(client);
            subscribers.is_touched
        };
        self.watch_files_of_processes();
        is_touched
    }

    /// Cancels what is in progress, waits until scripts and commands have ended, and gives its service
    /// up, whose [shutdown](Service::shutdown) removes the sandbox of the file tools.
    pub async fn close(&self) {
        self.closing.cancel();
        self.operations.close();
        self.runs.close();
        if tokio::time::timeout(CLOSE_WAIT, self.runs.wait()).await.is_err() {
            tracing::warn!("calls in progress did not end in {CLOSE_WAIT:?}");
        }
        drop(lock(&self.service).take());
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
        drop(MadeDirs::make(&new).unwrap());
        assert!(!folder.path().join("a").exists(), "nor what was made above it");
        let made = MadeDirs::make(&new).unwrap();
        fs::write(new.join("file"), "x").unwrap();
        drop(made);
        assert!(new.join("file").exists());
        // Nothing is left of what cannot be created.
        let long = folder.path().join("b/c").join("n".repeat(300));
        assert!(MadeDirs::make(&long).is_err());
        assert!(!folder.path().join("b").exists());
        let below = new.join("file/x");
        assert!(MadeDirs::make(&below).is_err());
        // It was there before: it stays.
        let old = folder.path().join("old");
        fs::create_dir(&old).unwrap();
        drop(MadeDirs::make(&old).unwrap());
        assert!(old.exists());
    }
}
