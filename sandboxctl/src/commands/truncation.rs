//! Warns of what a result does not have, in one line at its end.

use sandbox_api::{ExecResult, LimitKey, LogLevel, RunResult};

use crate::output::Output;

/// Warns of what was cut off from a run.
pub fn warn_of_run(output: &Output, result: &RunResult) {
    let log = result.logs_truncated.then(|| log(result));
    warn(output, log.into_iter().chain(files(result.files_touched.truncated)).collect());
}

/// Warns of what was cut off from a command. Its output is complete where it was copied.
pub fn warn_of_command(output: &Output, result: &ExecResult) {
    let streams = [("stdout", result.stdout_truncated), ("stderr", result.stderr_truncated)];
    let streams = streams.into_iter().filter(|(_, cut)| *cut).map(|(stream, _)| {
        format!("{stream} after 1,000,000 bytes (without --json all of it is printed)")
    });
    warn(output, streams.chain(files(result.files_touched.truncated)).collect());
}

/// Warns of what was cut off from the list of changed files.
pub fn warn_of_files(output: &Output, truncated: bool) {
    warn(output, files(truncated).into_iter().collect());
}

fn warn(output: &Output, parts: Vec<String>) {
    if !parts.is_empty() {
        output.caution(&format!("cut off: {}", parts.join("; ")));
    }
}

fn log(result: &RunResult) -> String {
    if result.logs.last().is_none_or(|entry| entry.level != LogLevel::Truncated) {
        return "log entries after 64 KiB each".to_owned();
    }
    let lines = result.logs.len() as u64 - 1;
    let is_full_of_lines = lines >= result.limits.log_lines.get().into();
    let limit = if is_full_of_lines { LimitKey::LogLines } else { LimitKey::LogBytes };
    format!("the log after {lines} entries ({})", limit.hint())
}

fn files(truncated: bool) -> Option<String> {
    truncated.then(|| "the list of changed files".to_owned())
}
