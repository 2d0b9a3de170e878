//! `create_directory`.

use sandbox_api::files::MkdirData;
use sandbox_api::operation::Mkdir;

use super::super::tool::Hints;
use super::operation::FileTool;

#[derive(Debug)]
pub(in crate::tools) struct CreateDirectory;

impl FileTool for CreateDirectory {
    const NAME: &'static str = "create_directory";
    const TITLE: &'static str = "Create a directory";
    const DESCRIPTION: &'static str =
        "Create a directory, and its missing parents. An existing one is not an error.";
    const OPERATION: &'static str = "mkdir";
    const HINTS: Hints = Hints { is_destructive: false, is_idempotent: true, ..Hints::DESTRUCTIVE };
    type Args = Mkdir;
    type Data = MkdirData;
}
