//! What the service needs of a controller: sandboxes that start, run something and end. A trait, so
//! that queues, recovery and events are tested without containers.

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sandbox_api::files::WriteReply;
use sandbox_api::operation::{OperationRequest, Read, Write};
use sandbox_api::{
    EngineKind, Envelope, ExecutionEvent, ExecutionResult, Failure, SandboxSpec, Workload,
};
use sandbox_controller::files::FileWriter;
use sandbox_controller::{CancelHandle, Controller, Error, PoolStats, Sandbox};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::ServiceError;

/// Receives the events of what runs.
pub(crate) type Sink<'a> = &'a (dyn Fn(ExecutionEvent) + Send + Sync);

/// Starts sandboxes.
pub(crate) trait Launcher: Send + Sync + 'static {
    /// Starts a sandbox.
    fn launch(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Guest>, ServiceError>>;

    /// Has sandboxes like this one started ahead, if there is a pool.
    fn prewarm(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<(), ServiceError>>;

    /// The engine that sandboxes run on.
    fn engine(&self) -> EngineKind;

    /// Whether the engine answers.
    fn ping(&self) -> BoxFuture<'_, Result<(), String>>;

    /// What the pool has done and has, if there is one.
    fn pool(&self) -> Option<PoolStats>;
}

/// A sandbox that is there.
pub(crate) trait Guest: Send + Sync + 'static {
    /// Runs something to its end.
    fn run<'a>(
        &'a self,
        workload: Workload,
        cancel: CancelHandle,
        sink: Sink<'a>,
    ) -> BoxFuture<'a, Result<ExecutionResult, ServiceError>>;

    /// Moves its private io dir to where its files are kept.
    fn keep_files(&self, to: &Path) -> Result<(), ServiceError>;

    /// Performs a file operation.
    fn perform(&self, request: OperationRequest) -> BoxFuture<'_, Envelope>;

    /// Reads a file.
    fn reader(&self, read: Read) -> BoxFuture<'_, Result<ContentReader, ServiceError>>;

    /// Writes a file.
    fn writer(&self, write: Write) -> BoxFuture<'_, Result<Box<dyn ContentWriter>, ServiceError>>;

    /// Whether it accepts nothing any more.
    fn has_ended(&self) -> bool;

    /// Waits until it accepts nothing any more.
    fn until_ended(&self) -> BoxFuture<'static, ()>;

    /// Removes it.
    fn close(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// The content of a file.
pub(crate) type ContentReader = Box<dyn AsyncRead + Send + Unpin>;

/// The content of a file that is being written.
pub(crate) trait ContentWriter: AsyncWrite + Send + Unpin {
    /// Ends it, and waits until the file is written.
    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<WriteReply, ServiceError>>;
}

/// A sandbox could not be started.
fn not_started(error: Error) -> ServiceError {
    let is_transient = match &error {
        Error::Connect(_) => true,
        Error::Engine { source, .. } => is_transient(source),
        _ => false,
    };
    ServiceError::not_started(failure_of(&error), is_transient).on_host(Failure::from(&error))
}

/// A sandbox could not be used.
fn failed(error: Error) -> ServiceError {
    ServiceError::sandbox(failure_of(&error)).on_host(Failure::from(&error))
}

/// Why our side failed, without a path of the host.
fn failure_of(error: &Error) -> Failure {
    let is_about_host_paths = matches!(
        error,
        Error::IoDir { .. }
            | Error::MountRefused { .. }
            | Error::MountLost { .. }
            | Error::IoDirElsewhere { .. }
            | Error::Scratch { .. }
            | Error::State { .. }
            | Error::Staging { .. }
            | Error::Audit { .. }
            | Error::Agent(_)
            | Error::Connect(_)
            | Error::PrivateIoDir { .. }
    );
    if !is_about_host_paths {
        return Failure::from(error);
    }
    // Paths of the host are for the operator, not for callers.
    tracing::error!(error = error.full_message(), hint = error.hint(), "a sandbox failed");
    Failure::new(error.kind(), "the server cannot make a sandbox with what it has", None)
}

/// Whether an engine that fails like this may work again by itself.
fn is_transient(error: &sandbox_controller::EngineError) -> bool {
    use sandbox_controller::EngineError as Engine;
    !matches!(
        error,
        Engine::UnusableImage { .. }
            | Engine::ProgramImage { .. }
            | Engine::UnusableRoot { .. }
            | Engine::Archive { .. }
            | Engine::Refused(_)
    )
}

impl Launcher for Arc<Controller> {
    fn launch(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Guest>, ServiceError>> {
        async move {
            let sandbox = Controller::launch(self, spec).await.map_err(not_started)?;
            Ok(Arc::new(sandbox) as Arc<dyn Guest>)
        }
        .boxed()
    }

    fn prewarm(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<(), ServiceError>> {
        async move { Controller::prewarm(self, spec).await.map_err(not_started) }.boxed()
    }

    fn engine(&self) -> EngineKind {
        Controller::engine(self).kind
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), String>> {
        async move {
            match self.engine_facts().await {
                Ok(_) => Ok(()),
                Err(error) => Err(failure_of(&error).message),
            }
        }
        .boxed()
    }

    fn pool(&self) -> Option<PoolStats> {
        self.pool_stats()
    }
}

impl Guest for Sandbox {
    fn run<'a>(
        &'a self,
        workload: Workload,
        cancel: CancelHandle,
        sink: Sink<'a>,
    ) -> BoxFuture<'a, Result<ExecutionResult, ServiceError>> {
        async move {
            let mut execution = self.start(workload, cancel).await.map_err(failed)?;
            while let Some(event) = execution.next().await {
                sink(event);
            }
            execution.wait().await.map_err(failed)
        }
        .boxed()
    }

    fn keep_files(&self, to: &Path) -> Result<(), ServiceError> {
        self.keep_io_dir(to).map_err(failed)
    }

    fn perform(&self, request: OperationRequest) -> BoxFuture<'_, Envelope> {
        self.perform(request).boxed()
    }

    fn reader(&self, read: Read) -> BoxFuture<'_, Result<ContentReader, ServiceError>> {
        async move {
            let reader = self.reader(read).await.map_err(failed)?;
            Ok(Box::new(reader) as ContentReader)
        }
        .boxed()
    }

    fn writer(&self, write: Write) -> BoxFuture<'_, Result<Box<dyn ContentWriter>, ServiceError>> {
        async move {
            let writer = self.writer(write).await.map_err(failed)?;
            Ok(Box::new(writer) as Box<dyn ContentWriter>)
        }
        .boxed()
    }

    fn has_ended(&self) -> bool {
        self.ended().is_some()
    }

    fn until_ended(&self) -> BoxFuture<'static, ()> {
        self.until_ended().boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        async move { self.close().await.map_err(|error| error.full_message()) }.boxed()
    }
}

impl ContentWriter for FileWriter {
    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<WriteReply, ServiceError>> {
        async move { (*self).finish().await.map_err(failed) }.boxed()
    }
}
