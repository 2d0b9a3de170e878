//! `edit_file`.

use sandbox_api::ErrorKind;
use sandbox_api::files::EditData;
use sandbox_api::operation::Edit;

use super::super::tool::Hints;
use super::operation::FileTool;
use crate::paths::name_of;

#[derive(Debug)]
pub(in crate::tools) struct EditFile;

impl FileTool for EditFile {
    const NAME: &'static str = "edit_file";
    const TITLE: &'static str = "Edit a file";
    const DESCRIPTION: &'static str = "Replace text in a file. `old` must occur exactly `count` times (1 by \
        default), or nothing is changed: give enough of its surroundings.";
    const OPERATION: &'static str = "edit";
    const HINTS: Hints = Hints::DESTRUCTIVE;
    type Args = Edit;
    type Data = EditData;

    fn hint(kind: ErrorKind) -> Option<&'static str> {
        (kind == ErrorKind::Encoding).then_some(
            "it edits UTF-8 text; read_file gives the bytes of a file with `encoding: \"base64\"`, and \
             write_file takes them so",
        )
    }
}
