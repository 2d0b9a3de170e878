//! `grep`.

use sandbox_api::files::GrepData;
use sandbox_api::operation;

use super::super::tool::Hints;
use super::operation::FileTool;

#[derive(Debug)]
pub(in crate::tools) struct Grep;

impl FileTool for Grep {
    const NAME: &'static str = "grep";
    const TITLE: &'static str = "Search in files";
    const DESCRIPTION: &'static str =
        "Find the lines of files that match a regular expression (Rust's syntax).";
    const OPERATION: &'static str = "grep";
    const HINTS: Hints = Hints::READ_ONLY;
    type Args = operation::Grep;
    type Data = GrepData;
}
