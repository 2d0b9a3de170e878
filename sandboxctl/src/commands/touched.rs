//! Prints the changed files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use sandbox_api::{FileOp, TouchedFile};

use crate::output::Output;
use crate::render;

/// How many files are listed; further ones are counted.
const FILES_SHOWN: usize = 10;

/// Lists the changed files of an io dir, with paths relative to `here`. Those of a private io dir,
/// which has no path, are counted: they are gone.
pub fn print(
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
pub fn print_kept(output: &Output, io_dir: Option<&Path>) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
