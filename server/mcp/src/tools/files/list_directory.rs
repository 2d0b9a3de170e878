//! `list_directory`.

use sandbox_api::files::ListData;
use sandbox_api::operation::List;

use super::super::tool::Hints;
use super::operation::FileTool;

#[derive(Debug)]
pub(in crate::tools) struct ListDirectory;

impl FileTool for ListDirectory {
    const NAME: &'static str = "list_directory";
    const TITLE: &'static str = "List a directory";
    const DESCRIPTION: &'static str =
        "List the entries of a directory, sorted, with types, sizes and times.";
    const OPERATION: &'static str = "list";
    const HINTS: Hints = Hints::READ_ONLY;
    type Args = List;
    type Data = ListData;
}
