//! Warns of what a result does not have, in one line at its end.

use sandbox_api::{DocumentBody, ExecutionDocument, LimitKey, LogLevel};

use crate::output::Output;

/// Warns of what was cut off. A log that is full is a warning even if quiet, where it was shown as
/// text: nothing else says so. The output of a command is complete where it was copied.
pub fn warn(output: &Output, document: &ExecutionDocument<'_>, json: bool) {
    let mut parts = Vec::new();
    let mut is_log_full = false;
    match &document.body {
        // A log of what was killed with its service says itself that it is cut off.
        DocumentBody::Script(body) if body.logs_truncated && document.common.usage.is_some() => {
            let (text, is_full) = log(document);
            is_log_full = is_full;
            parts.push(text);
        }
        DocumentBody::Command(body) if json => {
            let streams = [("stdout", body.stdout_truncated), ("stderr", body.stderr_truncated)];
            parts.extend(streams.into_iter().filter(|(_, cut)| *cut).map(|(stream, _)| {
                format!("{stream} after 1,000,000 bytes (without --json all of it is printed)")
            }));
        }
        _ => {}
    }
    if document.common.files_touched_truncated {
        parts.push("the list of changed files".to_owned());
    }
    if !parts.is_empty() {
        let text = format!("cut off: {}", parts.join("; "));
        match is_log_full && !json {
            true => output.warning(&text),
            false => output.caution(&text),
        }
    }
}

/// What is cut off of a log, and whether it was full.
fn log(document: &ExecutionDocument<'_>) -> (String, bool) {
    let entries = document.log_entries();
    if entries.last().is_none_or(|entry| entry.level != LogLevel::Truncated) {
        return ("log entries after 64 KiB each".to_owned(), false);
    }
    let lines = entries.len() as u64 - 1;
    let most_lines = document.common.limits.map(|limits| u64::from(limits.log_lines.get()));
    let limit = match most_lines.is_some_and(|most| lines >= most) {
        true => LimitKey::LogLines,
        false => LimitKey::LogBytes,
    };
    let hint = limit.hint();
    (format!("the log after {lines} entries ({hint}); a file (io.write) has no such limit"), true)
}
