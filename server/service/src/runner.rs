//! What the service needs of a controller: sandboxes that start, run something and end. A trait, so
//! that queues, recovery and events are tested without containers.

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
#[cfg(test)]
use sandbox_api::ErrorKind;
use sandbox_api::files::WriteReply;
use sandbox_api::operation::{OperationRequest, Read, Write};
use sandbox_api::{
    EngineKind, Envelope, ExecutionEvent, ExecutionResult, Failure, SandboxSpec, Workload,
};
use sandbox_controller::files::{FileReader, FileWriter};
use sandbox_controller::{CancelHandle, Controller, Error, Sandbox};

/// Receives the events of what runs.
pub(crate) type Sink<'a> = &'a (dyn Fn(ExecutionEvent) + Send + Sync);

/// Starts sandboxes.
pub(crate) trait Runner: Send + Sync + 'static {
    /// Starts a sandbox.
    fn launch(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Machine>, Failed>>;

    /// Has sandboxes like this one started ahead, if there is a pool.
    fn prewarm(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<(), Failed>>;

    /// The engine that sandboxes run on.
    fn engine(&self) -> EngineKind;

    /// Whether the engine answers.
    fn ping(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Whether the pool has begun to do its work; `None` without a pool.
    fn pool(&self) -> Option<Result<(), String>>;
}

/// A sandbox that is there.
pub(crate) trait Machine: Send + Sync + 'static {
    /// Runs something to its end.
    fn run<'a>(
        &'a self,
        workload: Workload,
        cancel: CancelHandle,
        sink: Sink<'a>,
    ) -> BoxFuture<'a, Result<ExecutionResult, Failed>>;

    /// Moves its private io dir to where its files are kept.
    fn keep_files(&self, to: &Path) -> Result<(), Failed>;

    /// Performs a file operation.
    fn perform(&self, request: OperationRequest) -> BoxFuture<'_, Envelope>;

    /// Reads a file.
    fn reader(&self, read: Read) -> BoxFuture<'_, Result<FileReader, Failed>>;

    /// Writes a file.
    fn writer(&self, write: Write) -> BoxFuture<'_, Result<FileWriter, Failed>>;

    /// Whether it accepts nothing any more.
    fn has_ended(&self) -> bool;

    /// Removes it.
    fn close(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// Nothing ran, or nothing was done, because our side failed.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    /// Why, without a path of the host.
    pub failure: Box<Failure>,
    /// Whether the same may work a little later: the engine does not answer.
    pub is_transient: bool,
}

impl Failed {
    #[cfg(test)]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let failure = Failure::new(kind, message, None);
        Self { failure: Box::new(failure), is_transient: false }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let is_transient = match &error {
            Error::Connect(_) => true,
            Error::Engine { source, .. } => is_transient(source),
            _ => false,
        };
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
        let failure = if is_about_host_paths {
            // Callers are told no path of the host; whoever operates it is.
            tracing::error!(error = error.full_message(), hint = error.hint(), "a sandbox failed");
            let message = "the server cannot make a sandbox with what it has";
            Failure::new(error.kind(), message, None)
        } else {
            Failure::from(&error)
        };
        Self { failure: Box::new(failure), is_transient }
    }
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

impl Runner for Arc<Controller> {
    fn launch(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Machine>, Failed>> {
        async move {
            let sandbox = Controller::launch(self, spec).await?;
            Ok(Arc::new(sandbox) as Arc<dyn Machine>)
        }
        .boxed()
    }

    fn prewarm(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<(), Failed>> {
        async move { Ok(Controller::prewarm(self, spec).await?) }.boxed()
    }

    fn engine(&self) -> EngineKind {
        Controller::engine(self).kind
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), String>> {
        async move {
            match self.engine_facts().await {
                Ok(_) => Ok(()),
                Err(error) => Err(Failed::from(error).failure.message),
            }
        }
        .boxed()
    }

    fn pool(&self) -> Option<Result<(), String>> {
        let stats = self.pool_stats()?;
        let has_begun = stats.target == 0 || stats.filled > 0 || stats.claims > 0;
        Some(match (has_begun, stats.failed) {
            (true, _) => Ok(()),
            (false, 0) => Err("no sandbox is ready yet".to_owned()),
            (false, _) => Err("no sandbox could be started ahead".to_owned()),
        })
    }
}

impl Machine for Sandbox {
    fn run<'a>(
        &'a self,
        workload: Workload,
        cancel: CancelHandle,
        sink: Sink<'a>,
    ) -> BoxFuture<'a, Result<ExecutionResult, Failed>> {
        async move {
            let mut execution = self.start(workload, cancel).await?;
            while let Some(event) = execution.next().await {
                sink(event);
            }
            Ok(execution.wait().await?)
        }
        .boxed()
    }

    fn keep_files(&self, to: &Path) -> Result<(), Failed> {
        Ok(self.keep_io_dir(to)?)
    }

    fn perform(&self, request: OperationRequest) -> BoxFuture<'_, Envelope> {
        self.perform(request).boxed()
    }

    fn reader(&self, read: Read) -> BoxFuture<'_, Result<FileReader, Failed>> {
        async move { Ok(self.reader(read).await?) }.boxed()
    }

    fn writer(&self, write: Write) -> BoxFuture<'_, Result<FileWriter, Failed>> {
        async move { Ok(self.writer(write).await?) }.boxed()
    }

    fn has_ended(&self) -> bool {
        self.ended().is_some()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        async move { self.close().await.map_err(|error| error.full_message()) }.boxed()
    }
}

/// The result of a write, as it is answered.
pub(crate) async fn finish_write(writer: FileWriter) -> Result<WriteReply, Failed> {
    Ok(writer.finish().await?)
}
