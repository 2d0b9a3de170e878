//! The changes of files and links as a diff that `git apply` and `patch` take.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use sandbox_api::changes::ChangeType;
use sandbox_dirfd::{FileStamp, Root};
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};

use crate::changed::{Changed, target};
use crate::compare::Comparison;
use crate::tree::kind_of;

/// The largest file that is in a diff.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The size from which on a diff only counts changes.
const MAX_DIFF_BYTES: usize = 16 << 20;
/// After this time, what is left is shown as removed and added lines.
const LONGEST: Duration = Duration::from_secs(5);
/// Unchanged lines around a change.
const CONTEXT: usize = 3;

impl Comparison {
    /// A diff of what changed, in the format of git: the content of files and links as it is, and a line
    /// for anything else, which no program takes for a part of it. `show` gives the bytes of a path as
    /// they are printed.
    pub(crate) fn diff(
        &self,
        original: BorrowedFd<'_>,
        copy: BorrowedFd<'_>,
        show: &dyn Fn(&[u8]) -> Vec<u8>,
    ) -> Vec<u8> {
        let (Ok(original), Ok(copy)) = (Root::new(original), Root::new(copy)) else {
            return Vec::new();
        };
        let mut diff = Vec::new();
        let deadline = Instant::now() + LONGEST;
        let mut left = self.changed.len();
        for (path, change) in &self.changed {
            if diff.len() > MAX_DIFF_BYTES {
                diff.extend_from_slice(format!("… {left} more changes\n").as_bytes());
                break;
            }
            left -= 1;
            let shown = show(path);
            match Sides::of(path, change, &original, &copy) {
                Ok(sides) => sides.write(&shown, deadline, &mut diff),
                Err(why) => {
                    let name = in_header(&shown);
                    diff.extend(
                        [change.op.as_str().as_bytes(), b": ", &name, why.as_bytes()].concat(),
                    );
                    diff.push(b'\n');
                }
            }
        }
        diff
    }
}

/// A file or a link before and after.
struct Sides {
    old: Option<Side>,
    new: Option<Side>,
}

#[derive(PartialEq)]
struct Side {
    /// As git writes it: of permissions it has only that to execute.
    mode: &'static str,
    content: Vec<u8>,
}

impl Sides {
    /// Reads both. An error is what a line says of the change instead.
    fn of(
        path: &[u8],
        change: &Changed,
        original: &Root<'_>,
        copy: &Root<'_>,
    ) -> Result<Self, &'static str> {
        let before = change.before.map(|it| it.original);
        let old = before.map(|stamp| Side::read(original, path, stamp)).transpose()?;
        let new = change.now.map(|stamp| Side::read(copy, path, stamp)).transpose()?;
        let (old, new) = (old.flatten(), new.flatten());
        if old == new { Err("") } else { Ok(Self { old, new }) }
    }

    fn write(&self, path: &[u8], deadline: Instant, diff: &mut Vec<u8>) {
        match (&self.old, &self.new) {
            // `patch` changes no link, and neither program what something is.
            (Some(old), Some(new)) if old.mode == LINK || new.mode == LINK => {
                section(path, Some(old), None, deadline, diff);
                section(path, None, Some(new), deadline, diff);
            }
            (old, new) => section(path, old.as_ref(), new.as_ref(), deadline, diff),
        }
    }
}

/// The mode of a link.
const LINK: &str = "120000";

impl Side {
    /// `None` for what is neither a file nor a link: a directory is there with what is in it.
    fn read(root: &Root<'_>, path: &[u8], stamp: FileStamp) -> Result<Option<Self>, &'static str> {
        let (mode, content) = match kind_of(stamp) {
            ChangeType::File if stamp.size > MAX_FILE_BYTES => return Err(" (larger than 1 MiB)"),
            ChangeType::File => {
                let mode = if stamp.mode & 0o100 == 0 { "100644" } else { "100755" };
                (mode, content(root, path))
            }
            ChangeType::Symlink => (LINK, target(root, path)),
            ChangeType::Directory | ChangeType::Other => return Ok(None),
        };
        Ok(Some(Self { mode, content: content.ok_or(" (it cannot be read)")? }))
    }
}

/// What changed of one path.
fn section<'a>(
    path: &[u8],
    old: Option<&'a Side>,
    new: Option<&'a Side>,
    deadline: Instant,
    diff: &mut Vec<u8>,
) {
    let with = |prefix: &[u8]| [prefix, path].concat();
    let mut line = |parts: &[&[u8]]| {
        parts.iter().for_each(|part| diff.extend_from_slice(part));
        diff.push(b'\n');
    };
    line(&[b"diff --git ", &in_header(&with(b"a/")), b" ", &in_header(&with(b"b/"))]);
    match (old, new) {
        (None, Some(new)) => line(&[b"new file mode ", new.mode.as_bytes()]),
        (Some(old), None) => line(&[b"deleted file mode ", old.mode.as_bytes()]),
        (Some(old), Some(new)) if old.mode != new.mode => {
            line(&[b"old mode ", old.mode.as_bytes()]);
            line(&[b"new mode ", new.mode.as_bytes()]);
        }
        _ => {}
    }
    // `patch` leaves an empty file that is removed, unless it reads this line of Git's.
    match (old, new) {
        (None, Some(new)) if new.content.is_empty() => line(&[b"index 0000000..e69de29"]),
        (Some(old), None) if old.content.is_empty() => line(&[b"index e69de29..0000000"]),
        _ => {}
    }
    let content = |side: Option<&'a Side>| -> &'a [u8] {
        match side {
            Some(side) => &side.content,
            None => &[],
        }
    };
    let hunks = hunks(content(old), content(new), deadline);
    if hunks.is_empty() {
        return;
    }
    let name = |side: Option<&Side>, prefix: &[u8]| match side {
        Some(_) => in_hunk(&with(prefix)),
        None => b"/dev/null".to_vec(),
    };
    line(&[b"--- ", &name(old, b"a/")]);
    line(&[b"+++ ", &name(new, b"b/")]);
    diff.extend_from_slice(&hunks);
}

/// The lines that differ, and those around them. A line is what a newline ends, and nothing else.
fn hunks(old: &[u8], new: &[u8], deadline: Instant) -> Vec<u8> {
    let lines = |text| <[u8]>::split_inclusive(text, |&byte| byte == b'\n').collect::<Vec<_>>();
    let (old, new) = (lines(old), lines(new));
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline));
    let mut text = Vec::new();
    for group in group_diff_ops(in_place(ops), CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let range = |start: usize, end: usize| match end - start {
            1 => (start + 1).to_string(),
            0 => format!("{start},0"),
            count => format!("{},{count}", start + 1),
        };
        let old_range = range(first.old_range().start, last.old_range().end);
        let new_range = range(first.new_range().start, last.new_range().end);
        text.extend_from_slice(format!("@@ -{old_range} +{new_range} @@\n").as_bytes());
        for op in &group {
            let (old, new) = (&old[op.old_range()], &new[op.new_range()]);
            if op.tag() == DiffTag::Equal {
                push_lines(&mut text, b' ', old);
            } else {
                push_lines(&mut text, b'-', old);
                push_lines(&mut text, b'+', new);
            }
        }
    }
    text
}

/// The same, each where those before it end. Where the library has moved a removal, it leaves the index of the other
/// side as it was.
fn in_place(mut ops: Vec<DiffOp>) -> Vec<DiffOp> {
    let (mut old, mut new) = (0, 0);
    for op in &mut ops {
        let (old_len, new_len) = (op.old_range().len(), op.new_range().len());
        match op {
            DiffOp::Equal { old_index, new_index, .. }
            | DiffOp::Delete { old_index, new_index, .. }
            | DiffOp::Insert { old_index, new_index, .. }
            | DiffOp::Replace { old_index, new_index, .. } => {
                (*old_index, *new_index) = (old, new);
            }
        }
        (old, new) = (old + old_len, new + new_len);
    }
    ops
}

fn push_lines(text: &mut Vec<u8>, mark: u8, lines: &[&[u8]]) {
    for line in lines {
        text.push(mark);
        text.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            text.extend_from_slice(b"\n\\ No newline at end of file\n");
        }
    }
}

/// A path where a space ends it.
fn in_header(path: &[u8]) -> Vec<u8> {
    if is_plain(path) && !path.contains(&b' ') { path.to_vec() } else { quoted(path) }
}

/// A path where only a tab ends it.
fn in_hunk(path: &[u8]) -> Vec<u8> {
    match is_plain(path) && !path.ends_with(b" ") {
        true if path.contains(&b' ') => [path, b"\t"].concat(),
        true => path.to_vec(),
        false => quoted(path),
    }
}

/// Whether a path has nothing that could pass for something else than a name.
fn is_plain(path: &[u8]) -> bool {
    std::str::from_utf8(path)
        .is_ok_and(|text| !text.contains(|c: char| c.is_control() || matches!(c, '"' | '\\')))
}

/// A path in quotes, as git and C write it.
fn quoted(path: &[u8]) -> Vec<u8> {
    let mut text = vec![b'"'];
    for &byte in path {
        match byte {
            b'"' | b'\\' => text.extend_from_slice(&[b'\\', byte]),
            b'\t' => text.extend_from_slice(b"\\t"),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b' '..=b'~' => text.push(byte),
            _ => text.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
        }
    }
    text.push(b'"');
    text
}

/// The content of a file.
fn content(root: &Root<'_>, path: &[u8]) -> Option<Vec<u8>> {
    let opened = root.open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK);
    let mut content = Vec::new();
    let read = File::from(opened.ok()?).take(MAX_FILE_BYTES + 1).read_to_end(&mut content);
    read.is_ok_and(|read| read as u64 <= MAX_FILE_BYTES).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_of_a_hunk_counts_its_lines() {
        let hunks = hunks(b"y\n\ny\nx", b"\n\nx\nx", Instant::now() + LONGEST);
        let hunks = String::from_utf8(hunks).unwrap();
        assert!(hunks.starts_with("@@ -1,4 +1,4 @@\n-y\n"), "{hunks}");
    }
}
