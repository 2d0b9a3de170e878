//! Results of calls.

use rmcp::model::{CallToolResult, ContentBlock};
use sandbox_api::{ErrorKind, Failure};
use serde_json::Value;

/// The most bytes of one result: models and clients want less.
pub(super) const MAX_RESULT_BYTES: usize = 4 << 20;

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
