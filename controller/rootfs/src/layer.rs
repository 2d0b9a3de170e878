//! A layer's changes: what each entry means, and the layer as a whole.

use std::collections::HashSet;

use crate::budget::Budget;
use crate::error::{EntryProblem, RootfsError};
use crate::tar::{Entries, Entry, Kind, Source};
use crate::tree::{Kept, Metadata, Tree};

/// As the kernel has it, without the NUL.
pub(super) const MAX_PATH: usize = 4095;
/// How deep a path may be. Trees are walked, and removed, with a descriptor for each level.
pub(super) const MAX_DEPTH: usize = 256;

/// What begins the name of what hides something of the layers below.
const WHITEOUT: &[u8] = b".wh.";
/// The name of what hides all that the layers below have in a directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// What begins the names of an old storage driver's own files.
const DRIVERS_OWN: &[u8] = b".wh..wh.";

/// What an entry asks for. Paths are relative, without `.` or `..`; the root's is empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Directory(Vec<u8>),
    File(Vec<u8>),
    Symlink(Vec<u8>),
    HardLink {
        path: Vec<u8>,
        target: Vec<u8>,
    },
    /// A device or a FIFO. There is none in a sandbox but those that the engine makes: nothing
    /// will be there.
    Special(Vec<u8>),
    /// Nothing of the layers below is there any more.
    Hide(Vec<u8>),
    /// Nothing of the layers below is in that directory any more.
    HideWithin(Vec<u8>),
    /// Nothing.
    Ignore,
}

impl Change {
    pub fn of(entry: &Entry) -> Result<Self, EntryProblem> {
        let path = relative(&entry.path)?;
        let (above, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path.as_slice()),
        };
        let mut folders = above.split(|&byte| byte == b'/');
        if let Some(folder) = folders.find(|folder| folder.starts_with(WHITEOUT)) {
            // Nothing can be below what hides something.
            let is_ignored = folder.starts_with(DRIVERS_OWN);
            return if is_ignored { Ok(Self::Ignore) } else { Err(EntryProblem::Whiteout) };
        }
        if name == OPAQUE {
            return Ok(Self::HideWithin(above.to_owned()));
        }
        if name.starts_with(DRIVERS_OWN) {
            return Ok(Self::Ignore);
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            if matches!(hidden, b"" | b"." | b"..") {
                return Err(EntryProblem::Whiteout);
            }
            let slash = if above.is_empty() { &b""[..] } else { b"/" };
            return Ok(Self::Hide([above, slash, hidden].concat()));
        }
        if path.is_empty() && entry.kind != Kind::Directory {
            return Err(EntryProblem::Root);
        }
        Ok(match entry.kind {
            Kind::Directory => Self::Directory(path),
            Kind::File => Self::File(path),
            Kind::Symlink if entry.link.len() > MAX_PATH => return Err(EntryProblem::TooLong),
            Kind::Symlink => Self::Symlink(path),
            Kind::HardLink => Self::HardLink { path, target: relative(&entry.link)? },
            Kind::Special => Self::Special(path),
        })
    }
}

/// A path in an image: an absolute one is meant from the image's root, as every engine has it.
pub(super) fn relative(path: &[u8]) -> Result<Vec<u8>, EntryProblem> {
    let mut relative = Vec::with_capacity(path.len());
    let mut depth = 0;
    for component in path.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => continue,
            b".." => return Err(EntryProblem::ParentFolder),
            _ if component.contains(&0) => return Err(EntryProblem::Nul),
            _ => {}
        }
        depth += 1;
        if depth > 1 {
            relative.push(b'/');
        }
        relative.extend(component);
    }
    if depth > MAX_DEPTH || relative.len() > MAX_PATH {
        return Err(EntryProblem::TooLong);
    }
    Ok(relative)
}

/// Makes all changes of a layer, and gives back what is left of its stream.
///
/// What hides something hides it in the layers below alone, wherever it stands in its own.
pub(super) fn unpack<S: Source>(
    layer: S,
    tree: &mut Tree,
    budget: &Budget,
) -> Result<S, RootfsError> {
    let mut entries = Entries::new(layer);
    let mut kept = Kept::default();
    let (mut hidden, mut emptied) = (HashSet::new(), HashSet::new());
    while let Some(entry) = entries.next()? {
        budget.entry(&entry.path)?;
        let named = |problem| RootfsError::entry(&entry.path, problem);
        let metadata =
            Metadata { mode: entry.mode, uid: entry.uid, gid: entry.gid, mtime: entry.mtime };
        match Change::of(&entry).map_err(named)? {
            Change::Directory(path) => {
                kept.insert(&path, budget)?;
                tree.directory(&path, metadata).map_err(named)?;
            }
            Change::File(path) => {
                let stored: u64 = entry.extents.iter().map(|extent| extent.length).sum();
                budget.bytes(entry.size.saturating_sub(stored))?;
                kept.insert(&path, budget)?;
                let content = |buffer: &mut [u8]| entries.content(buffer);
                tree.file(&path, metadata, (entry.size, &entry.extents), content)?;
            }
            Change::Symlink(path) => {
                kept.insert(&path, budget)?;
                tree.symlink(&path, metadata, &entry.link).map_err(named)?;
            }
            Change::HardLink { path, target } => {
                kept.insert(&path, budget)?;
                tree.hard_link(&path, &target).map_err(named)?;
            }
            Change::Special(path) => tree.remove(&path).map_err(named)?,
            // What is hidden twice costs nothing twice: all that has come since is kept.
            Change::Hide(path) if hidden.insert(path.clone()) => {
                tree.hide(&path, &kept).map_err(named)?;
            }
            Change::HideWithin(path) if emptied.insert(path.clone()) => {
                tree.hide_within(&path, &kept).map_err(named)?;
            }
            Change::Hide(_) | Change::HideWithin(_) => {}
            Change::Ignore => {}
        }
    }
    Ok(entries.into_source())
}
