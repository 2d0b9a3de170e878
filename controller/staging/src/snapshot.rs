//! Scans of the io dir: what commands changed in it, and how much it contains.
//!
//! Commands write without the agent, so their changes are not announced: a scan before and one
//! after finds them. A scan uses dirfds starting at the io dir's own, follows no link and enters no
//! mount, and ends at a maximum number of entries, depth and time; it reports if it was cut short.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::{FileType, OFlags, Stat};
use sandbox_api::{FileOp, FilesTouched, TouchedFile, TouchedSource};
use sandbox_dirfd::{DiskMeter, DiskUsage, FileStamp, Root, ScanCoverage, Visit, WalkBounds, join};

use crate::overlay::{is_opaque, is_whiteout};

/// The maximum directory depth of a scan. Each level holds a descriptor.
pub const MAX_DEPTH: usize = 128;
/// The maximum number of entries that a scan counts.
const MAX_ENTRIES: u64 = 2_000_000;
/// The maximum number of bytes of all paths that a scan remembers.
const MAX_PATH_BYTES: usize = 16 << 20;
/// The maximum number of listed files.
const MAX_FILES: usize = 10_000;
/// The maximum duration of a scan.
const LONGEST: Duration = Duration::from_secs(10);

/// The files at the time of a scan.
#[derive(Debug)]
pub struct Snapshot {
    /// By their paths relative to the io dir. Without directories.
    files: HashMap<Box<[u8]>, FileStamp>,
    /// Those that the upper layer of an overlay hides: they were removed.
    removed: HashSet<Box<[u8]>>,
    /// Whether `files` is complete.
    is_whole: bool,
    /// How much of its filesystem they use.
    pub usage: DiskUsage,
    /// Whether `usage` is complete.
    pub coverage: ScanCoverage,
}

impl Snapshot {
    /// Scans `root`, and remembers at most `most` paths. `lower` is the other layer, if `root` is the
    /// upper one of an overlay. It may take long on a slow filesystem.
    pub fn take(root: impl AsFd, lower: Option<BorrowedFd<'_>>, most: u64) -> Self {
        Self::take_within(root, lower, most, MAX_ENTRIES)
    }

    /// Scans a `root` with at most so many entries, which takes a moment. `None` if it has more, or
    /// cannot be scanned whole.
    pub fn take_few(root: impl AsFd, entries: u64) -> Option<Self> {
        let taken = Self::take_within(root, None, entries, entries.saturating_add(1));
        (taken.is_whole && taken.usage.entries <= entries).then_some(taken)
    }

    fn take_within(
        root: impl AsFd,
        lower: Option<BorrowedFd<'_>>,
        most: u64,
        entries: u64,
    ) -> Self {
        let (mut files, mut hiding) = (HashMap::new(), Vec::new());
        let (mut is_whole, mut bytes) = (true, 0);
        let (usage, coverage) = walk(&root, entries, |folder, name, stat| {
            let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let may_hide = lower.is_some() && (is_folder || is_whiteout(stat));
            if is_folder && !may_hide {
                return;
            }
            if (files.len() + hiding.len()) as u64 >= most || bytes >= MAX_PATH_BYTES {
                is_whole = false;
                return;
            }
            let path: Box<[u8]> = join(folder, name).into();
            bytes += path.len();
            if may_hide {
                hiding.push(path);
            } else {
                files.insert(path, FileStamp::of(stat));
            }
        });
        is_whole &= coverage == ScanCoverage::All;
        let mut removed = HashSet::new();
        if let Some(lower) = lower {
            let hidden = hidden_files(root.as_fd(), lower, hiding, most);
            is_whole &= hidden.is_some();
            removed = hidden.unwrap_or_default();
            removed.retain(|path| !files.contains_key(path));
        }
        Self { files, removed, is_whole, usage, coverage }
    }

    /// The differences between this scan and `after`. If one of them was cut short, a file that
    /// only the other one found is not listed: it may have existed all the time.
    pub fn changes(&self, after: &Self) -> FilesTouched {
        let mut files: Vec<(&[u8], FileOp, u64)> = Vec::new();
        for (path, stamp) in &after.files {
            let has_changed = match self.files.get(path) {
                Some(before) => before != stamp,
                None => self.is_whole,
            };
            if has_changed {
                let is_file = stamp.file_type() == FileType::RegularFile;
                files.push((path, FileOp::Write, if is_file { stamp.size } else { 0 }));
            }
        }
        if after.is_whole {
            let gone = self.files.keys().filter(|&path| !after.files.contains_key(path));
            let gone = gone.filter(|&path| !after.removed.contains(path));
            let gone = gone.chain(after.removed.difference(&self.removed));
            files.extend(gone.map(|path| (&**path, FileOp::Remove, 0)));
        }
        files.sort_unstable_by_key(|&(path, ..)| path);
        let truncated = !(self.is_whole && after.is_whole) || files.len() > MAX_FILES;
        files.truncate(MAX_FILES);
        let files = files.into_iter().map(|(path, op, bytes)| TouchedFile::new(path, op, bytes));
        FilesTouched { files: files.collect(), source: TouchedSource::Scan, truncated }
    }
}

/// The files of the lower layer of an overlay that these entries of the upper one hide: whiteouts,
/// and opaque directories. `None` if there are more than `most`.
fn hidden_files(
    upper: BorrowedFd<'_>,
    lower: BorrowedFd<'_>,
    hiding: Vec<Box<[u8]>>,
    most: u64,
) -> Option<HashSet<Box<[u8]>>> {
    let (upper, lower) = (Root::new(upper).ok()?, Root::new(lower).ok()?);
    let mut hidden = HashSet::new();
    for path in hiding {
        let directory = upper.open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW);
        if directory.is_ok_and(|directory| !is_opaque(&directory)) {
            continue;
        }
        // Nothing is hidden where the lower layer has nothing.
        let Ok(stat) = lower.stat(&path) else { continue };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            hidden.insert(path);
        } else if let Ok(directory) = lower.directory(&path) {
            let bounds = WalkBounds { entries: most, depth: MAX_DEPTH, time: LONGEST };
            let (_, coverage) = sandbox_dirfd::walk(&directory, bounds, |folder, name, stat| {
                if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                    hidden.insert(join(&path, &join(folder, name)).into());
                }
                Visit::Enter
            });
            if coverage != ScanCoverage::All {
                return None;
            }
        }
        if hidden.len() as u64 > most {
            return None;
        }
    }
    Some(hidden)
}

/// Measures the content of `root`, up to `most` entries.
pub fn measure(root: impl AsFd, most: u64) -> (DiskUsage, ScanCoverage) {
    walk(root, most.min(MAX_ENTRIES), |_, _, _| {})
}

/// Calls `see` with the directory path and the name of every entry of `root`, and adds up what
/// they use.
fn walk(
    root: impl AsFd,
    most: u64,
    mut see: impl FnMut(&[u8], &[u8], &Stat),
) -> (DiskUsage, ScanCoverage) {
    let bounds = WalkBounds { entries: most, depth: MAX_DEPTH, time: LONGEST };
    let root = root.as_fd();
    let (mut bytes, mut linked, meter) = (0_u64, HashSet::new(), DiskMeter::new(root));
    let (entries, coverage) = sandbox_dirfd::walk(root, bounds, |folder, name, stat| {
        let used = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => bytes_of_names(stat),
            _ if stat.st_nlink > 1 && !linked.insert((stat.st_dev, stat.st_ino)) => 0,
            _ => meter.bytes_of(stat),
        };
        bytes = bytes.saturating_add(used);
        see(folder, name, stat);
        Visit::Enter
    });
    (DiskUsage { bytes, entries }, coverage)
}

/// How much a directory's entries use beyond its first block: a filesystem may keep that space when
/// the entries are removed.
fn bytes_of_names(stat: &Stat) -> u64 {
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let block = u64::try_from(stat.st_blksize).unwrap_or(0);
    allocated.saturating_sub(block)
}

#[cfg(test)]
mod tests;
