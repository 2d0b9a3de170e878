//! What is said beside what an execution printed and made: the hosts that it was refused, the files that it
//! changed, and what its result does not have.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use sandbox_api::{
    DocumentBody, ExecutionDocument, FileOp, LimitKey, LogLevel, RefusedHost, TouchedFile,
};

use crate::output::Output;
use crate::render;

/// How many refused hosts are printed for each script or command; further ones are mentioned.
const HOSTS_SHOWN: usize = 10;
/// How many files are listed; further ones are counted.
const FILES_SHOWN: usize = 10;

/// Prints a refused host, if not many were `printed` before.
pub fn refused_host(output: &Output, printed: usize, host: &RefusedHost) {
    if printed < HOSTS_SHOWN {
        output.notice(&note_of(host));
    } else if printed == HOSTS_SHOWN {
        output.notice("more hosts were refused; --json and --audit FILE list them");
    }
}

fn note_of(RefusedHost { host, port, reason, allow }: &RefusedHost) -> String {
    let refused = format!("refused {host}:{port} ({reason})");
    if allow.is_empty() {
        return refused;
    }
    let flag = |rule: &String| match rule.contains(' ') {
        true => format!("--allow '{rule}'"),
        false => format!("--allow {rule}"),
    };
    let flags: Vec<_> = allow.iter().map(flag).collect();
    format!("{refused}; to allow it: {}", flags.join(" "))
}

/// Lists the changed files of an io dir, with paths relative to `here`. Those of a private io dir,
/// which has no path, are counted: they are gone.
pub fn touched(
    output: &Output,
    here: &Path,
    io_dir: Option<&Path>,
    files: &[TouchedFile],
    truncated: bool,
) {
    let Some(io_dir) = io_dir else {
        if let Some(text) = discarded(files, truncated) {
            output.notice(&text);
        }
        return;
    };
    for file in files.iter().take(FILES_SHOWN) {
        let path = io_dir.join(OsStr::from_bytes(file.name.as_bytes()));
        let path = path.strip_prefix(here).unwrap_or(&path).display();
        output.progress(&match file.op {
            FileOp::Write => format!("wrote {path} ({})", render::size(file.bytes)),
            FileOp::Append => format!("appended to {path} ({})", render::size(file.bytes)),
            FileOp::Remove => format!("removed {path}"),
        });
    }
    if files.len() > FILES_SHOWN || truncated {
        let more = files.len().saturating_sub(FILES_SHOWN);
        let or_more = if truncated { " or more" } else { "" };
        output.progress(&format!("and {more}{or_more} others"));
    }
}

/// Prints where the files of a kept io dir are. An empty one is removed.
pub fn kept(output: &Output, io_dir: Option<&Path>) {
    if let Some(dir) = io_dir.filter(|dir| has_files(dir)) {
        output.notice(&format!("the files are in {}", dir.display()));
    }
}

/// Whether there is something in a directory.
pub fn has_files(dir: &Path) -> bool {
    dir.read_dir().is_ok_and(|mut entries| entries.next().is_some())
}

/// How many of the changed files are left, and their bytes.
pub fn left(files: &[TouchedFile]) -> (u64, u64) {
    let left = files.iter().filter(|file| file.op != FileOp::Remove);
    left.fold((0_u64, 0_u64), |(count, bytes), file| (count + 1, bytes.saturating_add(file.bytes)))
}

/// What was left in a private io dir.
fn discarded(files: &[TouchedFile], truncated: bool) -> Option<String> {
    let (count, bytes) = left(files);
    let (files, size) = (render::count(count, "file", "files"), render::size(bytes));
    match (count, truncated) {
        (0, _) => None,
        (_, true) => {
            Some(format!("{count} files ({size}) or more were discarded; --io-dir DIR keeps them"))
        }
        (1, false) => Some(format!("{files} ({size}) was discarded; --io-dir DIR keeps it")),
        (_, false) => Some(format!("{files} ({size}) were discarded; --io-dir DIR keeps them")),
    }
}

/// Warns of what was cut off. A log that is full is a warning even if quiet, where it was shown as
/// text: nothing else says so. The output of a command is complete where it was copied.
pub fn cut_off(output: &Output, document: &ExecutionDocument<'_>, json: bool) {
    let mut parts = Vec::new();
    let mut is_log_full = false;
    match &document.body {
        // A log of what was killed with its service says itself that it is cut off.
        DocumentBody::Script(body) if body.logs_truncated && document.common.usage.is_some() => {
            let (text, is_full) = full_log(document);
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
fn full_log(document: &ExecutionDocument<'_>) -> (String, bool) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_of_a_refused_host_names_all_rules_that_it_needs() {
        let note = |allow: &[&str]| {
            let allow = allow.iter().map(|&rule| rule.to_owned()).collect();
            let (host, reason) = ("localhost".to_owned(), "loopback address".to_owned());
            note_of(&RefusedHost { host, port: 8098, reason, allow })
        };
        assert_eq!(note(&[]), "refused localhost:8098 (loopback address)");
        assert_eq!(
            note(&["127.0.0.1:8098", "[::1]:8098"]),
            "refused localhost:8098 (loopback address); to allow it: --allow 127.0.0.1:8098 --allow [::1]:8098"
        );
        assert_eq!(
            note(&["GET https://localhost:8098/a"]),
            "refused localhost:8098 (loopback address); to allow it: --allow 'GET https://localhost:8098/a'"
        );
    }

    #[test]
    fn discarded_files_are_counted_without_removed_ones() {
        let file = |name: &str, op, bytes| TouchedFile::new(name.as_bytes(), op, bytes);
        let removed = file("r", FileOp::Remove, 0);
        assert_eq!(discarded(std::slice::from_ref(&removed), false), None);
        let one = [removed, file("a", FileOp::Write, 5)];
        let text = "1 file (5 B) was discarded; --io-dir DIR keeps it";
        assert_eq!(discarded(&one, false).as_deref(), Some(text));
        let two = [file("a", FileOp::Write, 4096), file("b", FileOp::Append, 8192)];
        let text = "2 files (12.0 KiB) were discarded; --io-dir DIR keeps them";
        assert_eq!(discarded(&two, false).as_deref(), Some(text));
        let text = "2 files (12.0 KiB) or more were discarded; --io-dir DIR keeps them";
        assert_eq!(discarded(&two, true).as_deref(), Some(text));
    }
}
