//! What a run changed. Compares a copy with what was recorded when it was made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::fstat;
use sandbox_api::changes::{ChangeOp, ChangeType};
use sandbox_dirfd::FileStamp;

use crate::changed::{Changed, Digests, content_of};
use crate::copy::Baseline;
use crate::error::StageError;
use crate::tree::{BirthTime, WalkCount, birth_time, kind_of, walk};

/// What a run changed in its io dir.
#[derive(Debug)]
pub struct Comparison {
    /// What was there before, as far as it matters for what changed.
    pub(crate) baseline: Arc<Baseline>,
    /// The paths that something else changed, too, as far as that is known already.
    pub(crate) conflicts: BTreeSet<Box<[u8]>>,
    pub(crate) changed: BTreeMap<Box<[u8]>, Changed>,
    /// Directories that are there before and after, with their state in the copy: a commit restores
    /// their modes and times.
    pub(crate) directories: BTreeMap<Box<[u8]>, FileStamp>,
    /// The state of the copy's root.
    pub(crate) root: FileStamp,
}

impl Comparison {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.root_before().is_none()
    }

    /// The io dir itself before the run, if that changed its permissions.
    pub(crate) fn root_before(&self) -> Option<FileStamp> {
        let before = self.baseline.root.copy;
        (before.permissions() != self.root.permissions()).then_some(before)
    }

    /// Reads the content of what was written, and drops what is as it was.
    pub(crate) fn read(mut self, original: BorrowedFd<'_>, files: BorrowedFd<'_>) -> Self {
        content_of(&mut self.changed, original, files);
        self.changed.retain(|_, change| is_change(change));
        let Self { changed, conflicts, .. } = &mut self;
        conflicts.retain(|path| changed.contains_key(path));
        self
    }
}

/// Compares a copy with what was recorded. `original` is the io dir.
pub(crate) fn compare(
    original: BorrowedFd<'_>,
    copy: BorrowedFd<'_>,
    baseline: &Arc<Baseline>,
) -> Result<Comparison, StageError> {
    let mut found: BTreeMap<Box<[u8]>, (FileStamp, BirthTime)> = BTreeMap::new();
    let mut seen = WalkCount::default();
    walk(copy, &mut |visit| {
        seen.add(visit.path)?;
        let stamp = FileStamp::of(visit.stat);
        let is_known = baseline.entries.get(visit.path).is_some_and(|it| it.copy.ino == stamp.ino);
        // It is only needed to recognise a file that has another name now.
        let born = if is_known { None } else { birth_time(visit.parent, visit.name) };
        found.insert(visit.path.into(), (stamp, born));
        Ok(())
    })?;

    let mut changed = BTreeMap::new();
    let mut directories = BTreeMap::new();
    for (path, (stamp, _)) in &found {
        let before = baseline.entries.get(path).copied();
        if stamp.is_directory() && before.is_some_and(|it| it.copy.is_directory()) {
            directories.insert(path.clone(), *stamp);
        }
        if let Some(op) = op_of(before.map(|it| it.copy), *stamp) {
            changed.insert(path.clone(), Changed::new(op, Some(*stamp), before));
        }
    }
    for (path, before) in &baseline.entries {
        if !found.contains_key(path) {
            let change = Changed::new(ChangeOp::Removed, None, Some(*before));
            changed.insert(path.clone(), change);
        }
    }
    name_origins(&mut changed, &found, baseline);
    let root = FileStamp::of(&fstat(copy).map_err(StageError::at(b"."))?);
    let baseline = baseline.clone();
    let compared = Comparison { baseline, conflicts: BTreeSet::new(), changed, directories, root };
    Ok(compared.read(original, copy))
}

/// What happened to an entry by its metadata; `None` if nothing. A written file may turn out to have
/// the same content.
pub(crate) fn op_of(before: Option<FileStamp>, now: FileStamp) -> Option<ChangeOp> {
    let Some(before) = before else { return Some(ChangeOp::Created) };
    if kind_of(before) != kind_of(now) {
        return Some(ChangeOp::Modified);
    }
    match kind_of(now) {
        ChangeType::Directory => {
            (before.permissions() != now.permissions()).then_some(ChangeOp::Mode)
        }
        ChangeType::Other => (before != now).then_some(ChangeOp::Modified),
        ChangeType::File | ChangeType::Symlink => (before != now).then_some(ChangeOp::Modified),
    }
}

/// Decides what a file or a link that was written is, now that its content is known. False if it is as
/// it was.
fn is_change(change: &mut Changed) -> bool {
    let (Some(now), Some(before)) = (change.now, change.before) else { return true };
    let is_same_type = kind_of(now) == kind_of(before.copy);
    let has_content = matches!(kind_of(now), ChangeType::File | ChangeType::Symlink);
    if change.op != ChangeOp::Modified || !is_same_type || !has_content {
        return true;
    }
    let Digests { now: Some(digest), before: Some(digest_before), has_other_attributes } =
        change.digests
    else {
        return true;
    };
    if digest != digest_before {
        return true;
    }
    let is_file = kind_of(now) == ChangeType::File;
    let has_other_mode = now.permissions() != before.copy.permissions();
    change.op = if is_file && (has_other_mode || has_other_attributes) {
        ChangeOp::Mode
    } else {
        ChangeOp::Times
    };
    change.op == ChangeOp::Mode || now.modified != before.copy.modified
}

/// Names the old path of what only has another path now: its inode is that of a copy that is no longer
/// at its old path, and was created when that copy was.
fn name_origins(
    changed: &mut BTreeMap<Box<[u8]>, Changed>,
    found: &BTreeMap<Box<[u8]>, (FileStamp, BirthTime)>,
    baseline: &Baseline,
) {
    let moved: HashMap<u64, (&[u8], BirthTime)> = baseline
        .entries
        .iter()
        .filter(|(path, it)| found.get(*path).is_none_or(|(now, _)| now.ino != it.copy.ino))
        .map(|(path, it)| (it.copy.ino, (&**path, it.born)))
        .collect();
    for (path, change) in changed {
        let Some((stamp, born)) = found.get(path) else { continue };
        if let Some((from, copied)) = moved.get(&stamp.ino)
            && born.is_some()
            && born == copied
        {
            change.from = Some((*from).into());
        }
    }
}
