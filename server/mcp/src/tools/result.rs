//! Results of calls.

use std::fmt::Write as _;

use rmcp::model::{CallToolResult, ContentBlock, Resource};
use sandbox_api::files::{ImageView, ViewData};
use sandbox_api::operation::View;
use sandbox_api::{
    Encoding, ErrorKind, ExecutionResult, Failure, FileOp, FilesTouched, Outcome, RefusedHost,
    TouchedFile,
};
use serde::Serialize;
use serde_json::Value;

use crate::outputs::Kept;
use crate::uris::uri_below;
use crate::workspace::Workspace;

/// The most bytes of one result of a file operation.
pub(super) const MAX_RESULT_BYTES: usize = 4 << 20;
/// The most bytes of a script's or a command's result, which is one event: the SDK for Python takes events
/// of 1 MiB. All that is in it without images has less, whatever it is.
const MAX_EVENT_BYTES: usize = 960 << 10;
/// The most bytes of the list of changed files in one result.
const MAX_TOUCHED_BYTES: usize = 128 << 10;
/// The most hosts in the list of those that were refused.
const MAX_REFUSED: usize = 100;
/// The most files that a result links to, and the most bytes of these links.
const MAX_LINKS: usize = 100;
const MAX_LINK_BYTES: usize = 64 << 10;
/// The most images in a result.
const MAX_IMAGES: usize = 4;
/// How the names of images end that models can see.
const IMAGES: &[&str] = &["png", "jpg", "jpeg", "gif", "webp"];

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

/// The structured result of a run, which failed or did not.
pub(super) fn ran(
    content: Vec<ContentBlock>,
    data: &impl Serialize,
    failed: bool,
) -> CallToolResult {
    let mut result = match failed {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    result.structured_content = serde_json::to_value(data).ok();
    result
}

/// Why something that ran failed, and what to do. A command's own end is data.
pub(super) fn run_failure(result: &ExecutionResult) -> Option<Failure> {
    let error = match &result.outcome {
        Outcome::Ok { .. } | Outcome::Exit(_) => None,
        outcome => outcome.failure(),
    }?;
    let hint = match error.kind {
        ErrorKind::Timeout => Some("`timeout_ms` gives it more time".to_owned()),
        _ => result.hint(),
    };
    Some(Failure { hint, ..error.into() })
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

/// The refused hosts as far as a result lists them, and whether there are more.
pub(super) fn listed_hosts(mut refused: Vec<RefusedHost>) -> (Vec<RefusedHost>, bool) {
    let is_cut = refused.len() > MAX_REFUSED;
    refused.truncate(MAX_REFUSED);
    (refused, is_cut)
}

/// Says which hosts were refused, and what would allow them.
pub(super) fn write_refused(text: &mut String, refused: &[RefusedHost]) {
    for RefusedHost { host, port, reason, allow } in refused {
        _ = write!(text, "refused: {host}:{port} ({reason})");
        if !allow.is_empty() {
            _ = write!(text, "; a rule that allows it: {}", allow.join(" or "));
        }
        text.push('\n');
    }
}

/// Adds what was kept of the output, and the first of the files that a call left, as links; and images among
/// them as a model sees them.
pub(super) async fn attach(
    result: &mut CallToolResult,
    kept: impl IntoIterator<Item = Kept>,
    touched: &[TouchedFile],
    workspace: &Workspace,
) {
    for Kept { uri, name, bytes, mime_type } in kept {
        let link = Resource::new(uri, name).with_mime_type(mime_type).with_size(bytes);
        result.content.push(ContentBlock::resource_link(link));
    }
    let exist = touched.iter().filter(|file| file.op != FileOp::Remove);
    result.content.extend(links(exist.clone(), &workspace.settings().sandbox.mount_path));
    let length = serde_json::to_vec(&result).map_or(MAX_EVENT_BYTES, |json| json.len());
    let mut room = MAX_EVENT_BYTES.saturating_sub(length);
    let is_image = |file: &&TouchedFile| {
        let name = file.name.to_string_lossy();
        let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        ending.is_some_and(|ending| IMAGES.contains(&&*ending))
    };
    for file in exist.filter(is_image).take(MAX_IMAGES) {
        // In base64, with what is around it.
        if file.bytes.saturating_mul(4) / 3 + 256 > room as u64 {
            continue;
        }
        let view = View::new(file.name.clone());
        let viewed = workspace.result_of(view).await;
        let Ok(ViewData::Image(ImageView { content, mime_type, .. })) = viewed else { continue };
        let content = Encoding::Base64.decode(content.0).unwrap_or_default();
        if content.len() + 256 <= room {
            room -= content.len() + 256;
            result.content.push(ContentBlock::image(content, mime_type));
        }
    }
}

fn links<'a>(
    files: impl Iterator<Item = &'a TouchedFile>,
    mount_path: &str,
) -> impl Iterator<Item = ContentBlock> {
    let mut bytes = 0;
    let link = move |file: &TouchedFile| {
        let uri = uri_below(mount_path, file.name.as_bytes());
        let name = file.name.to_string_lossy();
        // A character may take six bytes of JSON.
        bytes += uri.len() + 6 * name.len() + 100;
        (bytes <= MAX_LINK_BYTES)
            .then(|| ContentBlock::resource_link(Resource::new(uri, name).with_size(file.bytes)))
    };
    files.take(MAX_LINKS).map_while(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_changed_files_is_cut_where_it_is_too_large() {
        let name = |number: usize| format!("{number:0>1000}");
        let file = |number| TouchedFile::new(name(number).as_bytes(), FileOp::Write, 1);
        let files = |count| FilesTouched {
            files: (0..count).map(file).collect(),
            ..FilesTouched::default()
        };
        let (all, is_cut) = listed(files(100));
        assert_eq!((all.len(), is_cut), (100, false));
        let (some, is_cut) = listed(files(9000));
        assert!(is_cut && some.len() > 100, "{}", some.len());
        assert!(serde_json::to_vec(&some).unwrap().len() <= MAX_TOUCHED_BYTES + 2);
        let (_, is_cut) = listed(FilesTouched { truncated: true, ..files(1) });
        assert!(is_cut);
    }

    #[test]
    fn links_are_to_the_first_files_and_bounded() {
        let links = |files: &[TouchedFile]| -> Vec<String> {
            let links = links(files.iter(), "/io");
            links.map(|it| it.as_resource_link().unwrap().uri.clone()).collect()
        };
        let named = |name: String| TouchedFile::new(name.as_bytes(), FileOp::Write, 3);
        let short: Vec<_> = (0..150).map(|number| named(format!("a {number}"))).collect();
        assert_eq!(links(&short).len(), MAX_LINKS);
        assert_eq!(links(&short)[7], "sandbox:///io/a%207");
        let long: Vec<_> = (0..150).map(|_| named("é".repeat(2000))).collect();
        let found = links(&long);
        assert!((1..10).contains(&found.len()), "{}", found.len());
    }
}
