//! Runs untrusted scripts, each in a fresh container.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use sandbox_api::{SandboxSpec, Script};
//! use sandbox_controller::Controller;
//!
//! // Docker where it runs, otherwise the embedded engine, as on the command line.
//! let controller = Controller::connect(sandbox_env::config()?).await?;
//! let sandbox = controller.launch(SandboxSpec::new().io_dir("out")).await?;
//! let run = sandbox.run(Script::new("return 6 * 7")).await?;
//! println!("{}: {:?}", run.outcome.status(), run.files_touched.files);
//! sandbox.close().await?;
//! controller.close().await;
//! # Ok(()) }
//! ```
//!
//! The library reads no environment variables, home directory or terminal: [`Config`] has all of
//! its configuration, and the crate `sandbox-env` makes one from the environment. What a script did is data, an [`Outcome`](sandbox_api::Outcome); an [`Error`]
//! means that the controller or the engine failed.

#![deny(unsafe_code)]

mod audit;
mod check;
mod clock;
mod config;
mod controller;
mod doctor;
mod egress;
mod engine_call;
mod error;
mod execution;
mod failpoint;
pub mod files;
mod gc;
mod io_dir;
mod mounts;
mod pool;
mod ports;
mod process;
mod sandbox;
mod step;

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::JoinHandle;

pub use audit::{AccessRecord, AuditReport};
pub use check::check_script;
pub use config::{Config, Sweep};
pub use controller::Controller;
pub use doctor::{Check, CheckStatus, examine};
pub use error::Error;
pub use execution::{CancelHandle, Execution};
pub use gc::reap::Reaper;
pub use gc::state_dir::NAMES_DIR;
pub use io_dir::staged::{FinishOptions, StagedEnd};
pub use mounts::HostPlaces;
pub use mounts::refusal::MountRefusal;
pub use ports::PortStream;
pub use process::{KeptOutput, Process, ProcessEvents, StdinError, Until};
pub use sandbox::artifacts::ArtifactCopy;
pub use sandbox::prepared::PreparedSandbox;
pub use sandbox::{ContainerUse, LaunchInfo, Sandbox};
pub use sandbox_api::{
    Command, DiskReserve, DiskReserveError, ImageInfo, ProcessCommand, ProgramImage, ReadFrom,
    ReadMode, Stdin,
};
pub use sandbox_artifacts as artifacts;
pub use sandbox_engine::{
    AGENT, AGENT_SHA256, AgentError, AgentSource, ConnectError, DockerEndpoint, EmbeddedConfig,
    EmbeddedProblem, EngineChoice, EngineConfig, EngineError, EngineFacts, ImageIdError,
    ImageSelector, MASKED_PATHS, READONLY_PATHS, Rebuild, RootfsError, RootlessLimits, Tried,
};
pub use sandbox_grants::{host_tools, permission};
pub use sandbox_protocol::argv::{CheckReply, CheckWarning, ConfinementPolicy};
pub use sandbox_receipts as receipts;
pub use sandbox_redact::{MASK, Patterns};
pub use sandbox_staging::{ConflictLog, NewDirectory};
pub use sandbox_warm_pool::{PoolConfig, PoolStats};
pub use step::Step;

/// Locks it. What is locked here is consistent between any two statements that can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a task. Behind a pointer: tokio's own part of a task is compiled for each type of future.
#[doc(hidden)]
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
    tokio::spawn(work)
}
