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
mod agent;
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
mod engine;
mod error;
pub mod exec;
mod failpoint;
pub mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod growth;
mod image;
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
mod sealed;
mod session;
mod shared;
mod state;
mod unnamed;

pub use agent::{AGENT, AGENT_SHA256};
pub use audit::AuditReport;
pub use check::check_script;
pub use config::{
    AgentSource, Config, DockerEndpoint, EmbeddedConfig, EngineChoice, EngineConfig, Sweep,
    UnknownEngine,
};
pub use controller::Controller;
pub use disk::{DiskReserve, DiskReserveError};
pub use doctor::{Check, CheckStatus, examine};
pub use ending::CancelHandle;
pub use engine::{EmbeddedProblem, EngineError, EngineFacts, MASKED_PATHS, READONLY_PATHS};
pub use error::{Error, Step, Tried};
pub use exec::{Command, ExecStream, Execution, Stdin};
pub use image::{ImageInfo, ImageSelector, Rebuild};
pub use mounts::MountRefusal;
pub use prepared::PreparedSandbox;
pub use reap::{
    Force, GcFailure, GcMode, GcOptions, GcReport, Reaper, SandboxState, SandboxSummary,
};
pub use run::Run;
pub use sandbox::Sandbox;
pub use sandbox_protocol::argv::ConfinementPolicy;
pub use sandbox_rootfs::{Digest, EntryProblem, RootfsError, TarProblem};
