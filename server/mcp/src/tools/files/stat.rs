//! `stat`.

use sandbox_api::files::StatData;
use sandbox_api::operation;

use super::super::tool::Hints;
use super::operation::FileTool;

#[derive(Debug)]
pub(in crate::tools) struct Stat;

impl FileTool for Stat {
    const NAME: &'static str = "stat";
    const TITLE: &'static str = "File information";
    const DESCRIPTION: &'static str = "The type, size, permissions, owner and times of a path.";
    const OPERATION: &'static str = "stat";
    const HINTS: Hints = Hints::READ_ONLY;
    type Args = operation::Stat;
    type Data = StatData;
}
