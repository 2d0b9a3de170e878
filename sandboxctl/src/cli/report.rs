//! Reports: the flag of `run` and `exec`.

use clap::Args;

use super::values::written;
use crate::ci::CiMode;
use crate::report::ReportArgument;

/// Where the results are written to, in addition to the live output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reports")]
pub struct ReportArgs {
    /// Write a report to this file, whatever the outcome: KIND is json, ndjson, junit, markdown or
    /// sarif; repeatable
    #[arg(long = "report", value_name = "KIND=FILE", value_parser = written(ReportArgument::parse))]
    pub reports: Vec<ReportArgument>,

    /// CI runner to write groups, annotations, a summary and outputs for; guest output cannot issue
    /// its commands; auto detects it from the environment
    #[arg(long = "ci", value_name = "RUNNER", value_enum, default_value_t)]
    pub ci: CiMode,
}
