//! `write_file`.

use sandbox_api::files::WriteData;
use sandbox_api::operation::Write;

use super::super::tool::Hints;
use super::operation::FileTool;

#[derive(Debug)]
pub(in crate::tools) struct WriteFile;

impl FileTool for WriteFile {
    const NAME: &'static str = "write_file";
    const TITLE: &'static str = "Write a file";
    const DESCRIPTION: &'static str = "Write a whole file: readers see the old content or the new. Missing \
        directories are created. `mode` append adds to its end, create_new refuses an existing \
        file.";
    const OPERATION: &'static str = "write";
    const HINTS: Hints = Hints::DESTRUCTIVE;
    const CHANGES_LIST: bool = true;
    type Args = Write;
    type Data = WriteData;
}
