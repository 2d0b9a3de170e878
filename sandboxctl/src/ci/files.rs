//! Files of a runner to which steps append.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use sandbox_dirfd::{Links, open_path};

/// GitHub's limit on the summary of a step; a longer one is not shown.
const MAX_SUMMARY: u64 = 1 << 20;
/// The end of a summary that was cut.
const CUT: &str = "\n\n… [cut]\n";

/// Appends text as lines of its own. No link is followed where one could be a guest's.
///
/// # Errors
///
/// If it cannot be written.
pub fn append(file: &Path, text: &str, links: Links) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let mut file = File::from(open_path(file, flags, links)?);
    let begin = if lacks_a_line_end(&file).unwrap_or(false) { "\n" } else { "" };
    file.write_all(format!("{begin}{text}").as_bytes())
}

/// Whether a file's last line has no end. It is open for writing alone, and opened again to be read.
fn lacks_a_line_end(file: &File) -> io::Result<bool> {
    let found = file.metadata()?;
    if !found.is_file() || found.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?
        .read_exact_at(&mut last, found.len() - 1)?;
    Ok(last != *b"\n")
}

/// Appends to a step summary up to its limit, in whole lines.
///
/// # Errors
///
/// If it cannot be written.
pub fn append_summary(file: &Path, text: &str, links: Links) -> io::Result<()> {
    let has = file.metadata().map_or(0, |found| found.len());
    let space = usize::try_from(MAX_SUMMARY.saturating_sub(has)).unwrap_or(usize::MAX);
    match fitting(text, space) {
        "" => Ok(()),
        all if all.len() == text.len() => append(file, all, links),
        part => append(file, &format!("{part}{CUT}"), links),
    }
}

/// The lines at the beginning of a text that fit with the mark that says that more are cut.
fn fitting(text: &str, space: usize) -> &str {
    if text.len() <= space {
        return text;
    }
    let bytes = &text.as_bytes()[..space.saturating_sub(CUT.len()).min(text.len())];
    let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_has_no_end_is_not_continued() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outputs");
        for expected in ["a=1\n", "a=1\na=1\n"] {
            append(&file, "a=1\n", Links::Follow).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);
        }
        std::fs::write(&file, "b").unwrap();
        append(&file, "a=1\n", Links::Follow).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "b\na=1\n");
    }

    #[test]
    fn link_that_could_be_a_guests_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert!(append(&link, "a\n", Links::Refuse).is_err() && !file.exists());
        append(&file, "a\n", Links::Refuse).unwrap();
        append(&link, "b\n", Links::Follow).unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "a\nb\n");
    }

    #[test]
    fn summary_is_never_longer_than_a_mebibyte() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("summary");
        let text = "é line\n".repeat(60_000);
        for _ in 0..4 {
            append_summary(&file, &text, Links::Refuse).unwrap();
            assert!(file.metadata().unwrap().len() <= MAX_SUMMARY);
        }
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(written.len() > 1_000_000 && written.ends_with(CUT));
    }
}
