//! `edit_file`.

use sandbox_api::Encoding;
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

    fn encoding_hint(encoding: Encoding) -> Option<String> {
        Some(format!(
            "{}, and edit_file takes UTF-8 alone: read_file and write_file with `encoding: \
             \"{encoding}\"` take all of it",
            name_of(encoding)
        ))
    }
}
