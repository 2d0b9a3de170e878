//! `copy`.

use sandbox_api::files::CopyData;
use sandbox_api::operation;

use super::super::tool::Hints;
use super::operation::FileTool;

#[derive(Debug)]
pub(in crate::tools) struct Copy;

impl FileTool for Copy {
    const NAME: &'static str = "copy";
    const TITLE: &'static str = "Copy";
    const DESCRIPTION: &'static str = "Copy a file, or with `recursive` a directory. Existing files are refused \
        without `overwrite`.";
    const OPERATION: &'static str = "copy";
    const HINTS: Hints = Hints::DESTRUCTIVE;
    const CHANGES_LIST: bool = true;
    const DIRECTORY_HINT: &'static str =
        "`recursive: true` copies a directory with all that is in it";
    type Args = operation::Copy;
    type Data = CopyData;
}
