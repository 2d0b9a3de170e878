//! Applies a layer: interprets each entry, and writes the changes to the tree.

use std::collections::HashSet;

use sandbox_dirfd::{join, split};

use crate::budget::Budget;
use crate::error::{EntryProblem, RootfsError};
use crate::tar::{Entries, Entry, Kind, Source};
use crate::tree::{Kept, Metadata, Tree};

/// The kernel's limit, without the NUL.
pub(super) const MAX_PATH: usize = 4095;
/// The maximum depth of a path. Walking and removing a tree needs a descriptor for each level.
pub(super) const MAX_DEPTH: usize = 256;

/// Name prefix of a whiteout, which hides an entry of the layers below.
const WHITEOUT: &[u8] = b".wh.";
/// Name of an opaque whiteout, which hides the content that the layers below have in a directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Name prefix of the internal files of an old storage driver.
const DRIVERS_OWN: &[u8] = b".wh..wh.";

/// The change that an entry makes. Paths are relative, without `.` or `..`; the root's is empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Directory(Vec<u8>),
    File(Vec<u8>),
    Symlink(Vec<u8>),
    HardLink {
        path: Vec<u8>,
        target: Vec<u8>,
    },
    /// A device or a FIFO, which is removed: a sandbox only has those that the engine creates.
    Special(Vec<u8>),
    /// A whiteout: removes the entry of the layers below.
    Hide(Vec<u8>),
    /// An opaque whiteout: removes the content of the layers below in that directory.
    HideWithin(Vec<u8>),
    /// The entry is ignored.
    Ignore,
}

impl Change {
    pub fn of(entry: &Entry) -> Result<Self, EntryProblem> {
        let path = relative(&entry.path)?;
        let (above, name) = split(&path);
        let mut parents = above.split(|&byte| byte == b'/');
        if let Some(directory) = parents.find(|directory| directory.starts_with(WHITEOUT)) {
            // A whiteout cannot have entries below it.
            let is_ignored = directory.starts_with(DRIVERS_OWN);
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
            return Ok(Self::Hide(join(above, hidden)));
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

/// A path in an image: absolute paths are relative to the image's root, as on every engine.
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

/// Applies all changes of a layer, and returns the rest of its stream.
///
/// A whiteout hides entries of the layers below only, wherever it is in its own layer.
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
                tree.file(&path, metadata, (entry.size, &entry.extents), &mut entries)?;
            }
            Change::Symlink(path) => {
                kept.insert(&path, budget)?;
                tree.symlink(&path, metadata, &entry.link).map_err(named)?;
            }
            Change::HardLink { path, target } => {
                kept.insert(&path, budget)?;
                tree.hard_link(&path, &target).map_err(named)?;
            }
            Change::Special(path) => tree.hide(&path, &Kept::default()).map_err(named)?,
            // A second opaque whiteout of a directory changes nothing: later entries are kept.
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
