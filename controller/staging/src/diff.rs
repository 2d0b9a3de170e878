//! The changes of small text files, as a unified diff.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use sandbox_api::changes::{ChangeOp, ChangeType};
use sandbox_dirfd::Root;
use similar::TextDiff;

use crate::changed::Changed;
use crate::compare::Comparison;

/// The largest file that is compared as text.
const MAX_FILE_BYTES: u64 = 256 << 10;
/// The largest diff of all files together.
const MAX_DIFF_BYTES: usize = 1 << 20;
/// After this time, what is left is shown as removed and added lines.
const LONGEST: Duration = Duration::from_secs(5);
/// Unchanged lines around a change.
const CONTEXT: usize = 3;

impl Comparison {
    /// A unified diff of what changed: small text files in full, and a line for anything else. `show`
    /// gives the bytes of a path as they are printed.
    pub(crate) fn diff(
        &self,
        original: BorrowedFd<'_>,
        copy: BorrowedFd<'_>,
        show: &dyn Fn(&[u8]) -> Vec<u8>,
    ) -> String {
        let (Ok(original), Ok(copy)) = (Root::new(original), Root::new(copy)) else {
            return String::new();
        };
        let mut diff = String::new();
        let deadline = Instant::now() + LONGEST;
        let mut left = self.changed.len();
        for (path, change) in &self.changed {
            if diff.len() > MAX_DIFF_BYTES {
                diff.push_str(&format!("… {left} more changes\n"));
                break;
            }
            left -= 1;
            diff.push_str(&one(path, &show(path), change, &original, &copy, deadline));
        }
        diff
    }
}

fn one(
    path: &[u8],
    shown: &[u8],
    change: &Changed,
    original: &Root<'_>,
    copy: &Root<'_>,
    deadline: Instant,
) -> String {
    let name = quoted(shown);
    let has_content =
        matches!(change.op, ChangeOp::Created | ChangeOp::Modified | ChangeOp::Removed);
    let is_file = |kind: Option<ChangeType>| kind.is_none_or(|kind| kind == ChangeType::File);
    let (now, before) =
        (change.now.map(|it| it.kind()), change.before.map(|it| it.original.kind()));
    if has_content && is_file(now) && is_file(before) {
        let old =
            change.before.map_or(Some(String::new()), |it| text(original, path, it.original.size));
        let new = change.now.map_or(Some(String::new()), |it| text(copy, path, it.size));
        if let (Some(old), Some(new)) = (old, new) {
            let side = |exists: bool, letter: &[u8; 1]| match exists {
                true => quoted(&[&letter[..], b"/", shown].concat()),
                false => "/dev/null".to_owned(),
            };
            let (from, to) = (side(before.is_some(), b"a"), side(now.is_some(), b"b"));
            let diff = TextDiff::configure().deadline(deadline).diff_lines(&old, &new);
            let text = diff.unified_diff().context_radius(CONTEXT).header(&from, &to).to_string();
            // An empty file has no lines.
            return if text.is_empty() {
                format!("{}: {name} (empty)\n", word(change.op))
            } else {
                text
            };
        }
    }
    format!("{}: {name}\n", word(change.op))
}

/// A path as it is printed: in quotes if it has characters that could pass for another line.
fn quoted(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    let is_plain = |c: char| !c.is_control() && !matches!(c, '"' | '\\');
    if text.chars().all(is_plain) { text.into_owned() } else { format!("{text:?}") }
}

const fn word(op: ChangeOp) -> &'static str {
    match op {
        ChangeOp::Created => "created",
        ChangeOp::Modified => "modified",
        ChangeOp::Removed => "removed",
        ChangeOp::Mode => "mode",
        ChangeOp::Times => "times",
    }
}

/// The content of a small text file.
fn text(root: &Root<'_>, path: &[u8], size: u64) -> Option<String> {
    if size > MAX_FILE_BYTES {
        return None;
    }
    let opened = root.open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK);
    let mut content = String::new();
    let read = File::from(opened.ok()?).take(MAX_FILE_BYTES + 1).read_to_string(&mut content);
    let is_text = read.is_ok_and(|read| read as u64 <= MAX_FILE_BYTES) && !content.contains('\0');
    is_text.then_some(content)
}
