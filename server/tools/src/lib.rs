//! The tools for workflow steps: calls with JSON arguments, on named sandboxes. Each caller has a process
//! of its own and its sandboxes end with it, so they are kept here and not in a service.
//!
//! [`Tools::call`] starts a call of any front end: lines on stdin ([`stdio`]), or one command line.
//!
//! Like the controller it does not use the environment, the home directory or a terminal.

#![forbid(unsafe_code)]

mod args;
mod callbacks;
mod command;
mod destroy;
mod entry;
mod error;
mod files;
mod init;
mod metadata;
mod registry;
mod response;
mod schema;
mod script;
pub mod stdio;
mod stop;
mod table;
mod tool;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sandbox_controller::Controller;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

pub use callbacks::Callbacks;
pub use error::ToolError;
use init::Init;
pub use response::{Document, ToolResponse};
pub use stop::{Stop, StopCause};
pub use table::{Description, catalogue, check, names};
use tool::{Context, MAX_READ_BYTES, Tool};

use registry::Registry;
pub use registry::Settings;

/// Locks a mutex. What a thread that panicked has left in it is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tool that creates a sandbox for the others.
pub const INIT: &str = Init::NAME;

/// The tools, and their sandboxes.
pub struct Tools(Context);

impl Tools {
    /// Tools over a controller.
    ///
    /// # Errors
    ///
    /// If one of the allowed directories cannot be accessed.
    pub fn new(controller: Arc<Controller>, settings: Settings) -> io::Result<Self> {
        Ok(Self(Context {
            registry: Arc::new(Registry::new(controller, settings)?),
            read_bytes: Arc::new(Semaphore::new(MAX_READ_BYTES)),
            callbacks: Arc::default(),
        }))
    }

    /// The calls of scripts to functions of the caller, for [`stdio::serve`].
    pub fn callbacks(&self) -> &Callbacks {
        &self.0.callbacks
    }

    /// Has a sandbox started ahead, if the controller has a pool, for the first of the allowed
    /// directories: for a `sandbox_init` that names that one, and nothing besides.
    ///
    /// # Errors
    ///
    /// As a launch.
    pub async fn prewarm(&self) -> Result<(), sandbox_controller::Error> {
        self.0.registry.prewarm(init::workspace()).await
    }

    /// Starts a call. Its position among the calls of its sandbox is fixed when this returns, so
    /// the order of these calls matters; the returned futures may be awaited at any time,
    /// concurrently.
    pub fn call(
        &self,
        tool: &str,
        args: &RawValue,
        stop: Stop,
    ) -> impl Future<Output = ToolResponse> + Send + use<> {
        let started = Instant::now();
        let work = table::find(tool).map(|tool| (tool.begin)(&self.0, args, stop));
        async move {
            let outcome = async { work?.await }.await;
            ToolResponse { outcome, took: started.elapsed() }
        }
    }

    /// Removes every sandbox, even if calls are in progress in it, and waits until that is done.
    /// Returns those that could not be removed, with the reasons.
    pub async fn close(self) -> Vec<String> {
        let left = self.0.registry.close().await.into_iter();
        left.map(|(handle, why)| format!("Container '{handle}' could not be removed: {why}"))
            .collect()
    }
}
