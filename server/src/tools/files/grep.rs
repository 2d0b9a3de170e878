//! `sandbox_grep`.

use sandbox_api::files::GrepOptions;
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::Base64;
use sandbox_protocol::message::globs;
use schemars::JsonSchema;
use serde::Serialize;

use super::operation::{FileArguments, FileTool, OperationOutput, file_arguments};

pub(in crate::tools) struct Grep;

file_arguments! {
    GrepArgs,
    "The file or directory, absolute or relative to the mounted directory, which is the default"
        = "super::operation::here",
    /// The regular expression that lines match, without look-around and back-references
    pattern: String,
    /// Only files whose name matches this, such as *.rs; with a slash, whose path below the directory
    /// does; with ! before it, all others
    #[serde(default)]
    glob: Option<String>,
    /// Files and directories to leave out: patterns of names, or with a slash of paths below the
    /// directory, such as node_modules and **/target/**
    #[serde(default)]
    exclude: Vec<String>,
    /// Lines of context on each side of a match, at most 100
    #[serde(default)]
    context: u64,
    /// Ignore case
    #[serde(default)]
    ignore_case: bool,
    /// Search files and directories whose names begin with a dot too, without those of version control
    #[serde(default)]
    hidden: bool,
    /// Matching lines to return at most; 10,000 by default
    #[serde(default)]
    limit: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct GrepData {
    /// The lines, by file and number; `truncated` in the metadata says whether there is more
    lines: Vec<LineData>,
    /// The number of lines that match
    matches: u64,
    /// The number of files that were searched; what is not text is searched up to its first NUL
    files: u64,
}

/// A line of a file
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
struct LineData {
    /// The file, absolute
    path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    path_b64: Option<Base64>,
    /// Its number, from 1
    line: u64,
    /// Its text, without the line end; at most 2 KiB
    text: String,
    /// It does not match: it is near a line that does
    context: bool,
}

impl FileTool for Grep {
    const NAME: &'static str = "sandbox_grep";
    const DESCRIPTION: &'static str = "Find lines in files by a regular expression.";
    const OPERATION: &'static str = "grep";
    const CHANGES_FILES: bool = false;
    type Args = GrepArgs;
    type Data = GrepData;

    async fn perform(
        sandbox: &Sandbox,
        args: GrepArgs,
    ) -> Result<OperationOutput<GrepData>, Error> {
        let path = args.path().to_vec();
        let GrepArgs { pattern, glob, exclude, context, ignore_case, hidden, limit, .. } = args;
        let globs = globs(glob, exclude);
        let options = GrepOptions { globs, context, ignore_case, hidden, limit };
        let found = sandbox.grep(path, &pattern, options).await?;
        let (items, truncated) = (Some(found.matches), Some(found.truncated));
        let lines = found.lines.into_iter().map(|line| LineData {
            path: line.path,
            path_b64: line.path_b64,
            line: line.line,
            text: line.text,
            context: line.context,
        });
        let data = GrepData { lines: lines.collect(), matches: found.matches, files: found.files };
        Ok(OperationOutput { truncated, items, note: found.note, ..data.into() })
    }
}
