//! Files of a runner to which steps append.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// GitHub's limit on the summary of a step; a longer one is not shown at all.
const MAX_SUMMARY: u64 = 1 << 20;
/// The end of a summary that was cut.
const CUT: &str = "\n\n… [cut]\n";

/// Appends text.
///
/// # Errors
///
/// If it cannot be written.
pub fn append(file: &Path, text: &str) -> io::Result<()> {
    File::options().append(true).create(true).open(file)?.write_all(text.as_bytes())
}

/// Appends to a step summary as much as it may still have, in whole lines.
///
/// # Errors
///
/// If it cannot be written.
pub fn append_summary(file: &Path, text: &str) -> io::Result<()> {
    let has = file.metadata().map_or(0, |found| found.len());
    let room = usize::try_from(MAX_SUMMARY.saturating_sub(has)).unwrap_or(usize::MAX);
    match fitting(text, room) {
        "" => Ok(()),
        all if all.len() == text.len() => append(file, all),
        part => append(file, &format!("{part}{CUT}")),
    }
}

/// The lines at the beginning of a text that fit with the mark that says that more are cut.
fn fitting(text: &str, room: usize) -> &str {
    if text.len() <= room {
        return text;
    }
    let bytes = &text.as_bytes()[..room.saturating_sub(CUT.len()).min(text.len())];
    let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_never_longer_than_a_mebibyte() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("summary");
        let text = "é line\n".repeat(60_000);
        for _ in 0..4 {
            append_summary(&file, &text).unwrap();
            assert!(file.metadata().unwrap().len() <= MAX_SUMMARY);
        }
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(written.len() > 1_000_000 && written.ends_with(CUT));
    }
}
