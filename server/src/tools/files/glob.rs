//! `sandbox_glob`.

use sandbox_api::files::GlobOptions;
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::Base64;
use sandbox_protocol::message::globs;
use schemars::JsonSchema;
use serde::Serialize;

use super::operation::{FileArguments, FileTool, OperationOutput, file_arguments};

pub(in crate::tools) struct Glob;

file_arguments! {
    GlobArgs,
    "The directory, absolute or relative to the mounted one, which is the default"
        = "super::operation::here",
    /// What paths below it match: *.csv, src/**/*.rs, {a,b}/[0-9]?; * and ? match within a name, **
    /// any directories. It may be absolute
    pattern: String,
    /// Paths to leave out: patterns of names, or with a slash of paths as the pattern begins, such as
    /// node_modules and **/target/**
    #[serde(default)]
    exclude: Vec<String>,
    /// Match names that begin with a dot too
    #[serde(default)]
    hidden: bool,
    /// Paths to return at most; 10,000 by default
    #[serde(default)]
    limit: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct GlobData {
    /// The paths, sorted; `truncated` in the metadata says whether there is more
    matches: Vec<MatchData>,
}

/// A path that matches
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
struct MatchData {
    /// The path, absolute
    path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    path_b64: Option<Base64>,
}

impl FileTool for Glob {
    const NAME: &'static str = "sandbox_glob";
    const DESCRIPTION: &'static str = "Find files and directories by a pattern of their paths.";
    const OPERATION: &'static str = "glob";
    const CHANGES_FILES: bool = false;
    type Args = GlobArgs;
    type Data = GlobData;

    fn used_path(args: &GlobArgs) -> &[u8] {
        // An absolute pattern has a directory of its own: the mounted one contains it.
        if args.pattern.starts_with(['/', '~']) { b"." } else { args.path() }
    }

    async fn perform(
        sandbox: &Sandbox,
        args: GlobArgs,
    ) -> Result<OperationOutput<GlobData>, Error> {
        let path = args.path().to_vec();
        let GlobArgs { pattern, exclude, hidden, limit, .. } = args;
        let options = GlobOptions { globs: globs(None, exclude), hidden, limit };
        let found = sandbox.glob(path, &pattern, options).await?;
        let (items, truncated) = (Some(found.matches.len() as u64), Some(found.truncated));
        let matches = found.matches.into_iter();
        let matches =
            matches.map(|found| MatchData { path: found.path, path_b64: found.path_b64 }).collect();
        let note = found.note;
        Ok(OperationOutput { truncated, items, note, ..GlobData { matches }.into() })
    }
}
