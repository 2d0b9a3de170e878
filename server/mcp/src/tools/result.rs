//! Results of calls.

use rmcp::model::{CallToolResult, ContentBlock};
use sandbox_api::{ErrorKind, Failure, FilesTouched, TouchedFile};
use serde_json::Value;

/// The most bytes of one result: models and clients want less.
pub(super) const MAX_RESULT_BYTES: usize = 4 << 20;
/// The most bytes of the list of changed files in one result.
const MAX_TOUCHED_BYTES: usize = 1 << 20;

/// The result of a call that failed, for a model to read: what, and what to do.
pub(super) fn failed(failure: &Failure) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(failure_text(failure))])
}

/// A failure in words.
pub(super) fn failure_text(failure: &Failure) -> String {
    let Failure { kind, message, hint, .. } = failure;
    let mut text = format!("{message} ({kind})");
    if let Some(hint) = hint {
        text.push_str("\nhint: ");
        text.push_str(hint);
    }
    text
}

/// A structured result, with the same as text.
pub(super) fn structured(value: Value) -> CallToolResult {
    let text = value.to_string();
    with_text(value, text)
}

/// A structured result with a text of its own.
pub(super) fn with_text(value: Value, text: String) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(value);
    result
}

/// Arguments that are refused.
pub(super) fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::InvalidRequest, message, None)
}

/// A result that is too large for a message.
pub(super) fn too_large(bytes: usize, hint: &str) -> Failure {
    let most = MAX_RESULT_BYTES >> 20;
    let message = format!("the result has {bytes} bytes, over the maximum of {most} MiB");
    Failure::new(ErrorKind::ResultTooLarge, message, Some(hint.to_owned()))
}

/// The changed files as far as a result lists them, and whether there are more.
pub(super) fn listed(touched: FilesTouched) -> (Vec<TouchedFile>, bool) {
    let FilesTouched { mut files, truncated, .. } = touched;
    let mut bytes = 0;
    let fitting = files.iter().take_while(|file| {
        bytes += serde_json::to_vec(file).map_or(0, |json| json.len() + 1);
        bytes <= MAX_TOUCHED_BYTES
    });
    let listed = fitting.count();
    let is_cut = listed < files.len();
    files.truncate(listed);
    (files, truncated || is_cut)
}

#[cfg(test)]
mod tests {
    use sandbox_api::FileOp;

    use super::*;

    #[test]
    fn list_of_changed_files_is_cut_where_it_is_too_large() {
        let name = |number: usize| format!("{number:0>1000}");
        let file = |number| TouchedFile::new(name(number).as_bytes(), FileOp::Write, 1);
        let files = |count| FilesTouched {
            files: (0..count).map(file).collect(),
            ..FilesTouched::default()
        };
        let (all, is_cut) = listed(files(900));
        assert_eq!((all.len(), is_cut), (900, false));
        let (some, is_cut) = listed(files(9000));
        assert!(is_cut && some.len() > 900, "{}", some.len());
        assert!(serde_json::to_vec(&some).unwrap().len() <= MAX_TOUCHED_BYTES + 2);
        let (_, is_cut) = listed(FilesTouched { truncated: true, ..files(1) });
        assert!(is_cut);
    }
}
