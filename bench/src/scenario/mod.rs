//! What is measured: a file each. A new one is a file and its line in [`ALL`].

mod agent;
mod changes;
mod cluster;
mod cold_run;
mod connect;
mod egress;
mod embedded_exec;
mod embedded_run;
mod growth;
mod leaks;
mod library;
mod list;
mod living;
mod memory;
mod mounts;
mod operation_leaks;
mod operations;
mod pool;
mod programs;
mod rootless;
mod script_io;
mod service;
mod service_files;
mod service_idle;
mod service_soak;
mod streams;
mod transfer;
mod version;

use futures_util::future::LocalBoxFuture;
use serde_json::Value;

use crate::bench::{Bench, Counts, Work};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::report::Row;

/// All scenarios, in the order in which they are measured.
pub const ALL: &[Scenario] = &[
    cold_run::SCENARIO,
    embedded_run::SCENARIO,
    rootless::SCENARIO,
    mounts::SCENARIO,
    version::SCENARIO,
    library::SCENARIO,
    pool::CLAIM,
    pool::BURSTS,
    operations::SCENARIO,
    transfer::SCENARIO,
    service_files::SCENARIO,
    streams::SCENARIO,
    list::SCENARIO,
    script_io::SCENARIO,
    changes::SCENARIO,
    programs::SCENARIO,
    embedded_exec::SCENARIO,
    egress::SCENARIO,
    connect::SCENARIO,
    living::SCENARIO,
    service::SCENARIO,
    agent::SCENARIO,
    cluster::SCENARIO,
    memory::SCENARIO,
    service_idle::SCENARIO,
    leaks::SCENARIO,
    service_soak::SCENARIO,
    operation_leaks::SCENARIO,
    growth::SCENARIO,
];

/// Something to measure.
pub struct Scenario {
    /// Its name on the command line and in the documentation.
    pub id: &'static str,
    /// What it measures, in one line.
    pub title: &'static str,
    /// How often, unless the command line says otherwise.
    pub counts: Counts,
    /// Measures it.
    pub measure: Measure,
    /// What it has done in processes of their own.
    pub work: Option<DoWork>,
}

/// Measures a scenario.
pub type Measure = for<'a> fn(&'a Bench, Counts) -> LocalBoxFuture<'a, Result<Vec<Row>, Error>>;

/// Does a scenario's job in a worker.
pub type DoWork = fn(Work<Value>, Interrupt) -> LocalBoxFuture<'static, Result<Value, Error>>;
