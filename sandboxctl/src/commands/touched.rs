//! Prints the changed files.

use std::path::Path;

use sandbox_api::{FileOp, FilesTouched};

use crate::output::Output;
use crate::render;

/// How many files are listed; further ones are counted.
const FILES_SHOWN: usize = 10;

/// Lists the changed files of an io dir, with paths relative to `here`.
pub fn print(output: &Output, here: &Path, io_dir: Option<&Path>, touched: &FilesTouched) {
    let Some(io_dir) = io_dir else { return };
    let files = &touched.files;
    for file in files.iter().take(FILES_SHOWN) {
        let path = io_dir.join(&file.name);
        let path = path.strip_prefix(here).unwrap_or(&path).display();
        output.progress(&match file.op {
            FileOp::Write => format!("wrote {path} ({})", render::size(file.bytes)),
            FileOp::Append => format!("appended to {path} ({})", render::size(file.bytes)),
            FileOp::Remove => format!("removed {path}"),
        });
    }
    if files.len() > FILES_SHOWN || touched.truncated {
        let more = files.len().saturating_sub(FILES_SHOWN);
        let or_more = if touched.truncated { " or more" } else { "" };
        output.progress(&format!("and {more}{or_more} others"));
    }
}
