//! `glob`.

use sandbox_api::files::GlobData;
use sandbox_api::operation;

use super::super::tool::Hints;
use super::operation::FileTool;

#[derive(Debug)]
pub(in crate::tools) struct Glob;

impl FileTool for Glob {
    const NAME: &'static str = "glob";
    const TITLE: &'static str = "Find files by name";
    const DESCRIPTION: &'static str = "Find paths by a pattern: `*` and `?` match within a name, `**` any \
        directories, and there are [a-z] and {a,b}.";
    const OPERATION: &'static str = "glob";
    const HINTS: Hints = Hints::READ_ONLY;
    type Args = operation::Glob;
    type Data = GlobData;
}
