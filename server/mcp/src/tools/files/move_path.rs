//! `move`.

use sandbox_api::files::RenameData;
use sandbox_api::operation::Rename;

use super::super::tool::Hints;
use super::operation::FileTool;

#[derive(Debug)]
pub(in crate::tools) struct Move;

impl FileTool for Move {
    const NAME: &'static str = "move";
    const TITLE: &'static str = "Move or rename";
    const DESCRIPTION: &'static str = "Move or rename a file or a directory. An existing target is refused without \
        `overwrite`.";
    const OPERATION: &'static str = "rename";
    const HINTS: Hints = Hints::DESTRUCTIVE;
    const CHANGES_LIST: bool = true;
    type Args = Rename;
    type Data = RenameData;
}
