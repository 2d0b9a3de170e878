//! Runs untrusted scripts, each in a fresh container.
//!
//! ```no_run
//! # async fn example() -> Result<(), sandbox_controller::Error> {
//! use sandbox_api::{SandboxSpec, Script};
//! use sandbox_controller::{Config, Controller};
//!
//! let controller = Controller::connect(Config::new("/run/user/1000/sandboxctl")).await?;
//! let sandbox = controller.launch(SandboxSpec::new().io_dir("out")).await?;
//! let run = sandbox.run(Script::new("return 6 * 7")).await?;
//! println!("{}: {:?}", run.outcome.status(), run.files_touched.files);
//! sandbox.close().await?;
//! controller.close().await;
//! # Ok(()) }
//! ```
//!
//! The library reads no environment, home directory or terminal: [`Config`] says it all.
//! What a script did is data, an [`Outcome`](sandbox_api::Outcome); an [`Error`] means that our side failed.

#![deny(unsafe_code)]

mod activity;
mod audit;
mod changes;
mod check;
mod cleanup;
mod config;
mod confinement;
mod controller;
mod disk;
mod doctor;
mod egress;
mod ending;
mod engine_call;
mod error;
pub mod exec;
mod failpoint;
pub mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod growth;
mod iodir;
mod made;
mod mounts;
mod outcome;
mod owner;
mod pace;
mod places;
mod plan;
mod prepared;
mod reap;
mod run;
mod sandbox;
mod scan;
mod session;
mod shared;
mod state;
mod step;
mod unnamed;

pub use audit::AuditReport;
pub use check::check_script;
pub use config::{Config, Sweep};
pub use controller::Controller;
pub use disk::{DiskReserve, DiskReserveError};
pub use doctor::{Check, CheckStatus, examine};
pub use ending::CancelHandle;
pub use error::Error;
pub use exec::{Command, ExecStream, Execution, Stdin};
pub use mounts::MountRefusal;
pub use prepared::PreparedSandbox;
pub use reap::{
    Force, GcFailure, GcMode, GcOptions, GcReport, Reaper, SandboxState, SandboxSummary,
};
pub use run::Run;
pub use sandbox::Sandbox;
pub use sandbox_engine::{
    AGENT, AGENT_SHA256, AgentError, AgentSource, ConnectError, DockerEndpoint, EmbeddedConfig,
    EmbeddedProblem, EngineChoice, EngineConfig, EngineError, EngineFacts, ImageIdError, ImageInfo,
    ImageSelector, MASKED_PATHS, READONLY_PATHS, Rebuild, RootfsError, Tried, UnknownEngine,
};
pub use sandbox_protocol::argv::ConfinementPolicy;
pub use step::Step;
