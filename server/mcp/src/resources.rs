//! The io dir's files as resources: `sandbox:///io/a.csv` is the file `/io/a.csv`. What calls put out
//! beyond what a model is given is one, too: `sandbox://output/1/stdout`. So is the file of our
//! [skill](crate::skills).

use std::cmp::Ordering;
use std::fmt::Write as _;

use rmcp::model::{
    CacheScope, CompletionInfo, ErrorData, JsonObject, ListResourceTemplatesResult,
    ListResourcesResult, MetaObject, ReadResourceResult, Resource, ResourceContents,
    ResourceTemplate,
};
use sandbox_api::files::{Entry, EntryKind, ListData, StatData};
use sandbox_api::operation::{List, Read, Stat};
use sandbox_api::{Encoding, ErrorKind, Failure, WireString};
use serde_json::json;

use crate::hints::explained;
use crate::settings::Settings;
use crate::skills;
use crate::uris::{path, uri};
use crate::workspace::Workspace;

/// How many resources a page of the list has.
const PAGE: usize = 500;
/// How many directories are listed for a page.
const LISTS: usize = 256;
/// The largest file that is read as a resource.
pub(crate) const MAX_RESOURCE_BYTES: u64 = 4 << 20;

fn not_found(uri: &str) -> ErrorData {
    let shown: String = uri.chars().take(512).collect();
    ErrorData::resource_not_found(
        format!("no such resource: {shown}"),
        Some(json!({ "uri": shown })),
    )
}

/// An operation's failure as an error of the protocol.
fn protocol_error(uri: &str, failure: Failure, settings: &Settings) -> ErrorData {
    let failure = explained(failure, settings);
    match failure.kind {
        ErrorKind::NotFound | ErrorKind::NotADirectory => not_found(uri),
        ErrorKind::Internal | ErrorKind::Engine | ErrorKind::AgentLost => {
            ErrorData::internal_error(failure.message.clone(), None)
        }
        kind => {
            let message = match &failure.hint {
                Some(hint) => format!("{} (hint: {hint})", failure.message),
                None => failure.message.clone(),
            };
            ErrorData::invalid_params(message, Some(json!({ "uri": uri, "kind": kind })))
        }
    }
}

/// The order of a list: component by component, a directory before its content.
fn order(one: &[u8], other: &[u8]) -> Ordering {
    let components = |path| <[u8]>::split(path, |byte: &u8| *byte == b'/');
    components(one).cmp(components(other))
}

/// A page of the files, after the path that the cursor names. The first one begins with the skill's.
pub(crate) async fn list(
    workspace: &Workspace,
    cursor: Option<&str>,
) -> Result<ListResourcesResult, ErrorData> {
    let after = cursor.map(|cursor| {
        path(cursor).ok_or_else(|| ErrorData::invalid_params("invalid cursor", None))
    });
    let after = after.transpose()?;
    let skill = after.is_none().then(skills::resource);
    if !workspace.has_files() {
        let none = ListResourcesResult::with_all_items(skill.into_iter().collect());
        return Ok(none.with_ttl_ms(0).with_cache_scope(CacheScope::Private));
    }
    let page = page(workspace, after.as_deref()).await;
    let page = page.map_err(|failure| protocol_error("", failure, workspace.settings()))?;
    let root = root(&page.root);
    let resources = page.files.iter().map(|entry| {
        let path = entry.path.to_string_lossy();
        let name = path.strip_prefix(&root).unwrap_or(&path);
        Resource::new(uri(entry.path.as_bytes()), name).with_size(entry.size)
    });
    let mut result =
        ListResourcesResult::with_all_items(skill.into_iter().chain(resources).collect());
    result.next_cursor = page.next.map(|path| uri(&path));
    if page.is_cut {
        let note = "a directory has more than 10,000 entries: list_directory and glob find the \
                    others";
        result.meta = Some(MetaObject(JsonObject::from_iter([
            ("truncated".to_owned(), true.into()),
            ("note".to_owned(), note.into()),
        ])));
    }
    Ok(result.with_ttl_ms(0).with_cache_scope(CacheScope::Private))
}

/// A part of the files in their order.
#[derive(Default)]
struct Page {
    files: Vec<Entry>,
    /// The path of the listed directory.
    root: String,
    /// The path after which the next page begins, if there is one.
    next: Option<Vec<u8>>,
    /// A directory has more entries than one list may have.
    is_cut: bool,
}

/// What comes next in a walk.
enum Pending {
    File(Box<Entry>),
    Directory(Vec<u8>),
}

/// The files after a path. A tree with more entries than one list may have is listed by its
/// directories.
async fn page(workspace: &Workspace, after: Option<&[u8]>) -> Result<Page, Failure> {
    let list = async |directory: &[u8], recursive| -> Result<ListData, Failure> {
        workspace.result_of(List { recursive, ..List::new(directory) }).await
    };
    let mut page = Page::default();
    let mut pending = vec![Pending::Directory(b".".to_vec())];
    let mut lists = 0;
    while let Some(next) = pending.pop() {
        let directory = match next {
            Pending::File(_) if page.files.len() == PAGE => {
                page.next = page.files.last().map(|entry| entry.path.as_bytes().to_vec());
                break;
            }
            Pending::File(entry) => {
                page.files.push(*entry);
                continue;
            }
            // What is in it comes after it.
            Pending::Directory(directory) if lists >= LISTS => {
                page.next = Some(directory);
                break;
            }
            Pending::Directory(directory) => directory,
        };
        lists += 1;
        let mut listed = match list(&directory, true).await {
            // It was removed meanwhile.
            Err(failure) if lists > 1 && failure.kind == ErrorKind::NotFound => continue,
            listed => listed?,
        };
        let by_directories = listed.truncated;
        if by_directories {
            lists += 1;
            listed = list(&directory, false).await?;
            page.is_cut |= listed.truncated;
        }
        if page.root.is_empty() {
            page.root = listed.path.to_string_lossy().into_owned();
        }
        // What is pushed last comes first.
        pending.extend(listed.entries.into_iter().rev().filter_map(|entry| match entry.kind {
            EntryKind::File if is_after(entry.path.as_bytes(), after) => {
                Some(Pending::File(Box::new(entry)))
            }
            EntryKind::Directory if by_directories && has_after(entry.path.as_bytes(), after) => {
                Some(Pending::Directory(entry.path.into_bytes()))
            }
            _ => None,
        }));
    }
    Ok(page)
}

/// Whether a path comes after another, in the order of a list.
fn is_after(path: &[u8], after: Option<&[u8]>) -> bool {
    after.is_none_or(|after| order(path, after) == Ordering::Greater)
}

/// Whether something in a directory may come after a path.
fn has_after(directory: &[u8], after: Option<&[u8]>) -> bool {
    after.is_none_or(|after| {
        let below = after.strip_prefix(directory);
        order(directory, after) != Ordering::Less
            || below.is_some_and(|below| below.starts_with(b"/"))
    })
}

/// A directory's path as the beginning of those in it.
fn root(path: &str) -> String {
    format!("{}/", path.trim_end_matches('/'))
}

/// The template of the files' URIs, if there are files.
pub(crate) fn templates(mount_path: &str, has_files: bool) -> ListResourceTemplatesResult {
    let template = format!("{}/{{+path}}", uri(mount_path.trim_end_matches('/').as_bytes()));
    let template = ResourceTemplate::new(template, "file")
        .with_title("A file of the sandbox")
        .with_description("A file of the io dir, by its path in it");
    let templates = has_files.then_some(template).into_iter().collect();
    ListResourceTemplatesResult::with_all_items(templates)
        .with_ttl_ms(3_600_000)
        .with_cache_scope(CacheScope::Private)
}

/// A file or an output: as text if it is UTF-8, otherwise as base64.
pub(crate) async fn read(
    workspace: &Workspace,
    given: &str,
) -> Result<ReadResourceResult, ErrorData> {
    if let Some(skill) = skills::read(given) {
        return Ok(skill);
    }
    if let Some((kept, content)) = workspace.outputs().find(given) {
        let content = match String::from_utf8(content.to_vec()) {
            Ok(text) => ResourceContents::text(text, kept.uri),
            Err(error) => {
                let blob = Encoding::Base64.decode(error.into_bytes()).unwrap_or_default();
                ResourceContents::blob(blob, kept.uri)
            }
        };
        return Ok(result(content.with_mime_type(kept.mime_type)));
    }
    let path = path(given).filter(|_| workspace.has_files()).ok_or_else(|| not_found(given))?;
    let failed = |failure| protocol_error(given, failure, workspace.settings());
    let stat: StatData = workspace.result_of(Stat::new(&*path)).await.map_err(failed)?;
    if stat.kind == EntryKind::File && stat.size > MAX_RESOURCE_BYTES {
        let most = MAX_RESOURCE_BYTES >> 20;
        let message = format!(
            "a resource has at most {most} MiB (hint: read_file reads parts of it, execute_script \
             all of it)"
        );
        return Err(ErrorData::invalid_params(message, Some(json!({ "uri": given }))));
    }
    // It may have grown since.
    let whole = Read { limit: Some(MAX_RESOURCE_BYTES), ..Read::new(&*path) };
    let read = match workspace.read(whole.clone(), Encoding::Utf8).await {
        Err(failure) if failure.kind == ErrorKind::Encoding => {
            workspace.read(whole, Encoding::Base64).await
        }
        read => read,
    };
    let read = read.map_err(failed)?;
    let content = match read.encoding {
        Encoding::Base64 => ResourceContents::blob(read.content, given),
        _ => ResourceContents::text(read.content, given),
    };
    Ok(result(content.with_mime_type(read.mime_type)))
}

fn result(content: ResourceContents) -> ReadResourceResult {
    ReadResourceResult::new(vec![content]).with_ttl_ms(0).with_cache_scope(CacheScope::Private)
}

/// The paths that begin with `value`: the entries of its directory, a directory with a slash.
pub(crate) async fn complete(workspace: &Workspace, value: &str) -> CompletionInfo {
    let (directory, prefix) = match value.rfind('/') {
        Some(at) => value.split_at(at + 1),
        None => ("", value),
    };
    let listed_path = if directory.is_empty() { "." } else { directory };
    let listed = workspace.result_of(List::new(listed_path)).await;
    let (entries, is_cut) =
        listed.map(|listed: ListData| (listed.entries, listed.truncated)).unwrap_or_default();
    let names = entries.iter().filter_map(|entry| {
        let name = std::str::from_utf8(entry.name.as_bytes()).ok()?;
        Some((name, if entry.kind == EntryKind::Directory { "/" } else { "" }))
    });
    let found = names.filter(|(name, _)| name.starts_with(prefix));
    let mut values: Vec<String> =
        found.map(|(name, slash)| format!("{directory}{name}{slash}")).collect();
    let total = values.len();
    values.truncate(CompletionInfo::MAX_VALUES);
    let has_more = values.len() < total || is_cut;
    let total = u32::try_from(total).ok().filter(|_| !is_cut);
    CompletionInfo::with_pagination(values, total, has_more).unwrap_or_default()
}

/// The files of a directory, the latest first: name, size and time of change; or a file alone.
pub(crate) async fn latest(
    workspace: &Workspace,
    path: &str,
    most: usize,
) -> Result<String, ErrorData> {
    let all = List { recursive: true, ..List::new(path) };
    let settings = workspace.settings();
    let failed = |failure| protocol_error(path, failure, settings);
    let (entries, note) = match workspace.result_of(all).await {
        Err(failure) if failure.kind == ErrorKind::NotADirectory => {
            let stat = workspace.result_of(Stat::new(path)).await.map_err(failed)?;
            let StatData { path, kind, size, modified, .. } = stat;
            let name = WireString::default();
            (vec![Entry { name, path, kind, size, modified, details: None }], None)
        }
        listed => {
            let ListData { entries, note, .. } = listed.map_err(failed)?;
            (entries, note)
        }
    };
    let root = root(&settings.sandbox.mount_path);
    let mut files: Vec<&Entry> =
        entries.iter().filter(|entry| entry.kind == EntryKind::File).collect();
    files.sort_by_key(|entry| {
        std::cmp::Reverse(entry.modified.map(|time| (time.seconds, time.nanoseconds)))
    });
    let mut text = String::new();
    for entry in files.iter().take(most) {
        let path = entry.path.to_string_lossy();
        let name = path.strip_prefix(&root).unwrap_or(&path);
        let time = entry.modified.and_then(sandbox_api::files::time_text).unwrap_or_default();
        _ = writeln!(text, "{time} {:>10} {name}", entry.size);
    }
    if files.len() > most {
        _ = writeln!(text, "and {} more", files.len() - most);
    }
    if let Some(note) = note {
        _ = writeln!(
            text,
            "Later changes may be missing: {note}. Look at directories further down."
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_goes_on_where_the_last_page_ended_even_if_that_file_is_gone() {
        let mut paths = ["/io/a/b", "/io/a-b", "/io/a", "/io/b"];
        paths.sort_by(|one, other| order(one.as_bytes(), other.as_bytes()));
        assert_eq!(paths, ["/io/a", "/io/a/b", "/io/a-b", "/io/b"]);
        let after = Some(&b"/io/a/b"[..]);
        assert!(is_after(b"/io/a/b/c", after) && is_after(b"/io/a-b", after));
        assert!(!is_after(b"/io/a/b", after) && !is_after(b"/io/a/a", after));
        // A directory is left out if all that is in it comes before.
        for (directory, expected) in
            [("/io/a", true), ("/io/a/b", true), ("/io/a/a", false), ("/io/b", true)]
        {
            assert_eq!(has_after(directory.as_bytes(), after), expected, "{directory}");
        }
        assert!(has_after(b"/io/a/b", None));
    }

    #[test]
    fn template_has_the_mount_path() {
        let of_files = templates("/work space", true);
        assert_eq!(of_files.resource_templates[0].uri_template, "sandbox:///work%20space/{+path}");
        assert!(templates("/io", false).resource_templates.is_empty());
    }
}
