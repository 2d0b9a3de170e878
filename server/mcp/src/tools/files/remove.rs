//! `remove`.

use sandbox_api::files::RemoveData;
use sandbox_api::operation;

use super::super::tool::Hints;
use super::operation::FileTool;

#[derive(Debug)]
pub(in crate::tools) struct Remove;

impl FileTool for Remove {
    const NAME: &'static str = "remove";
    const TITLE: &'static str = "Remove a file or directory";
    const DESCRIPTION: &'static str = "Remove a file, or a directory: an empty one, or with `recursive` one with all \
        that is in it.";
    const OPERATION: &'static str = "remove";
    const HINTS: Hints = Hints::DESTRUCTIVE;
    const CHANGES_LIST: bool = true;
    type Args = operation::Remove;
    type Data = RemoveData;
}
