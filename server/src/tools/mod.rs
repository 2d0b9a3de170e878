//! The tools for workflow steps: calls with JSON arguments, on sandboxes that are kept by name.
//!
//! [`Tools::call`] takes a call, whoever brings it: lines on stdin ([`stdio`]), or one command line.

mod answer;
mod args;
mod call;
mod catalogue;
mod command;
mod data;
mod error;
mod perform;
mod script;
pub mod stdio;
mod stop;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use sandbox_controller::{Controller, GuestPath, Limits};
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use answer::{Answer, CommandRemarks, Document, Extent, Remarks};
pub use args::{
    CommandArgs, ContentEncoding, CreateDirectoryArgs, DeleteArgs, DestroyArgs, ExecuteScriptArgs,
    ExistsArgs, FileInfoArgs, InitArgs, ListDirectoryArgs, ReadFileArgs, WriteFileArgs,
};
pub use call::{Call, FileCall, Tool};
pub use catalogue::{Description, catalogue};
pub use data::{
    CommandData, CreateDirectoryData, Data, DeleteData, DestroyData, EntryData, EntryType,
    ExecuteScriptData, ExistsData, FileInfoData, FilesystemData, FilesystemMetadata, InitData,
    ListDirectoryData, ReadFileData, ScriptResult, WriteFileData,
};
pub use error::{CommandFailure, Partial, ScriptFailure, ToolError};
use perform::{Failed, Performed};
pub use stop::{Stop, StopCause, Stopper, stop};

use crate::registry::{RegisteredSandbox, Registry, SandboxRequest, Scope, Settings};

/// Bytes of files that are read and not answered yet; more only for a single file.
const MAX_READ_BYTES: usize = 64 << 20;
const _: () = assert!(MAX_READ_BYTES <= u32::MAX as usize, "permits are counted so");

/// The tools, and the sandboxes that they keep.
pub struct Tools {
    registry: Arc<Registry>,
    limits: Limits,
    read_bytes: Arc<Semaphore>,
}

type Work = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What became of a call.
struct Done {
    outcome: Result<Data, ToolError>,
    remarks: Remarks,
    /// Held until the answer has been given away.
    held: Option<OwnedSemaphorePermit>,
}

impl From<Result<Data, ToolError>> for Done {
    fn from(outcome: Result<Data, ToolError>) -> Self {
        Self { outcome, remarks: Remarks::default(), held: None }
    }
}

impl Tools {
    /// Tools over a controller.
    ///
    /// # Errors
    ///
    /// Where one of the allowed directories cannot be looked at.
    pub fn new(controller: Arc<Controller>, settings: Settings) -> io::Result<Self> {
        Ok(Self {
            limits: settings.limits,
            registry: Arc::new(Registry::new(controller, settings)?),
            read_bytes: Arc::new(Semaphore::new(MAX_READ_BYTES)),
        })
    }

    /// Takes a call. Its place among the calls of its sandbox is settled when this returns, so the
    /// order in which calls are taken counts; what it gives may be awaited at any time, beside
    /// others.
    pub fn call(
        &self,
        tool: &str,
        args: &RawValue,
        stop: Stop,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let started = Instant::now();
        let call = tool.parse().and_then(|tool| Call::decode(tool, args));
        let is_a_script = tool == Tool::ExecuteScript.name();
        let is_a_command = tool == Tool::Command.name();
        let is_a_read = call.as_ref().is_ok_and(Call::is_a_read);
        let work = call.and_then(|call| self.begin(call, stop));
        async move {
            let Done { mut outcome, remarks, held } = match work {
                Ok(work) => work.await,
                Err(error) => Err(error).into(),
            };
            if is_a_read {
                outcome = outcome.map_err(ToolError::of_a_read);
            }
            if is_a_script {
                outcome = outcome.map_err(ToolError::of_a_script);
            }
            if is_a_command {
                outcome = outcome.map_err(ToolError::of_a_command);
            }
            Answer { outcome, remarks, took: started.elapsed(), _held: held }
        }
    }

    fn begin(&self, call: Call, stop: Stop) -> Result<Work, ToolError> {
        Ok(match call {
            Call::Init(args) => {
                let container_id = args.container_id.clone();
                let launch = self.registry.launch(SandboxRequest {
                    handle: args.container_id,
                    image: args.image_name,
                    container_name: args.container_name,
                    host_dir: args.project_out_path,
                    mount_path: args.root_path,
                })?;
                unless_stopped(stop, async move {
                    match launch.ready().await {
                        Ok(sandbox) => {
                            let docker_id = sandbox.container_id().to_owned();
                            Ok(Data::Init(InitData { container_id, docker_id })).into()
                        }
                        Err(error) => Err(error.into()).into(),
                    }
                })
            }
            Call::Destroy(args) => {
                let container_id = args.container_id;
                let removal = self.registry.remove(&container_id)?;
                unless_stopped(stop, async move {
                    let reason = match removal.finished().await {
                        Ok(reason) => reason,
                        Err(error) => return Err(error.into()).into(),
                    };
                    let data = DestroyData { container_id, removed: reason.is_none() };
                    let remarks = Remarks { reason, ..Remarks::default() };
                    Done { remarks, ..Ok(Data::Destroy(data)).into() }
                })
            }
            Call::Command(args) => {
                let sandbox = self.registry.find(&args.container_id)?;
                if !sandbox.has_programs() {
                    let message = format!(
                        "Container '{}' has no image, and so no programs: sandbox_command needs one",
                        args.container_id
                    );
                    let hint = "imageName of sandbox_init names one; sandbox_execute_script runs \
                                scripts without";
                    return Err(ToolError::invalid(message).with_hint(hint));
                }
                let ticket = sandbox.enter(Scope::Script);
                let (registry, limits) = (self.registry.clone(), self.limits);
                Box::pin(async move {
                    command::run(registry, sandbox, args, limits, ticket, stop).await
                })
            }
            Call::ExecuteScript(args) => {
                let sandbox = self.registry.find(&args.container_id)?;
                let ticket = sandbox.enter(Scope::Script);
                let registry = self.registry.clone();
                Box::pin(async move { script::run(registry, sandbox, args, ticket, stop).await })
            }
            Call::File(call) => self.file(call, stop, perform::alone)?,
            Call::Filesystem(call) => self.file(call, stop, perform::enveloped)?,
        })
    }

    /// An operation on files, and what becomes of what it gives.
    fn file(
        &self,
        call: FileCall,
        stop: Stop,
        told: fn(Result<Performed, Failed>) -> Done,
    ) -> Result<Work, ToolError> {
        let registered = self.registry.find(call.container_id())?;
        // A path that is none depends on nothing: it is refused.
        let ticket = scope(&call, &registered).map(|scope| registered.enter(scope));
        let registry = self.registry.clone();
        let (read_bytes, most) = (self.read_bytes.clone(), self.limits.max_file_size.as_u64());
        Ok(unless_stopped(stop, async move {
            let mut ticket = ticket;
            if let Some(ticket) = &mut ticket {
                ticket.turn().await;
            }
            let sandbox = match registered.ready().await {
                Ok(sandbox) => sandbox,
                Err(error) => return told(Err(Failed::Call(error.into()))),
            };
            let held = match &call {
                FileCall::Read(args) => Some(hold(read_bytes, args.limit, most).await),
                _ => None,
            };
            let performed = perform::perform(&sandbox, call).await;
            let performed = performed.map_err(|error| Failed::of(error, &registry, &registered));
            Done { held: held.flatten(), ..told(performed) }
        }))
    }

    /// Removes every sandbox, whatever is under way in it, and waits until that is done. Gives what
    /// could not be removed, and why.
    pub async fn close(self) -> Vec<String> {
        let left = self.registry.close().await.into_iter();
        left.map(|(handle, why)| format!("Container '{handle}' could not be removed: {why}"))
            .collect()
    }
}

/// What a call is about.
fn scope(call: &FileCall, sandbox: &RegisteredSandbox) -> Option<Scope> {
    let mount = GuestPath::new(sandbox.mount_path()).ok()?;
    let path = GuestPath::resolve(call.path(), &mount, Some(&mount)).ok()?.path;
    Some(Scope::Path { path, changes: call.changes() })
}

/// Waits until what a read may give fits among what has not been answered yet.
async fn hold(
    bytes: Arc<Semaphore>,
    limit: Option<u64>,
    most: u64,
) -> Option<OwnedSemaphorePermit> {
    let most = limit.map_or(most, |limit| limit.min(most));
    let most = u32::try_from(most).unwrap_or(u32::MAX).min(MAX_READ_BYTES as u32);
    // It is never closed.
    bytes.acquire_many_owned(most).await.ok()
}

/// Work that is given up when the call is to end: what it had begun is cancelled.
fn unless_stopped(mut stop: Stop, work: impl Future<Output = Done> + Send + 'static) -> Work {
    Box::pin(async move {
        tokio::select! {
            biased;
            done = work => done,
            cause = stop.stopped() => Err(cause.into()).into(),
        }
    })
}
