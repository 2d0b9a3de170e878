//! Walks of the io dir: what programs changed in it, and how much there is.
//!
//! Programs write without the agent, so nobody announces what they change: it is found by a walk
//! before and one after. Every walk goes by dirfds from the io dir's own, through no link and into
//! nothing that is mounted, and ends at a bound on its entries, its depth and its time; one that was
//! cut short says so.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sandbox_api::{FileOp, FilesTouched, TouchedFile, TouchedSource};

/// Directories in each other that a walk enters. Each holds a descriptor.
pub(crate) const MAX_DEPTH: usize = 128;
/// Entries that a walk counts at most.
const MAX_ENTRIES: u64 = 2_000_000;
/// Bytes of all paths that a walk remembers.
const MAX_PATH_BYTES: usize = 16 << 20;
/// Files that are listed.
const MAX_FILES: usize = 10_000;
/// How long a walk may take.
const LONGEST: Duration = Duration::from_secs(10);
/// The largest block that a file system allocates at once.
const LARGEST_BLOCK: u64 = 64 << 10;
/// How often it looks at the clock.
const ENTRIES_A_LOOK: u64 = 256;

/// What an io dir takes of its file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DiskUsage {
    /// Bytes of files that are allocated, those of a file with several names once.
    pub bytes: u64,
    /// Files, directories and whatever else has a name.
    pub entries: u64,
}

/// How far a walk came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ScanCoverage {
    /// To everything.
    All,
    /// Not into what it may not read, and is another user's.
    Readable,
    /// Not into a directory that the io dir's owner cannot read, and so nobody but root, who can write
    /// to it all the same.
    Hidden,
    /// Not below [`MAX_DEPTH`].
    Deep,
    /// To its last entry, or the end of its time.
    Cut,
}

/// What was where.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// By their paths below the io dir. Without directories.
    files: HashMap<Box<[u8]>, Fingerprint>,
    /// Whether `files` has all of them.
    is_whole: bool,
    pub extent: DiskUsage,
    /// Whether `extent` is all of it.
    pub reach: ScanCoverage,
}

/// By what a change of a file is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    dev: u64,
    ino: u64,
    /// Of a regular file; 0 of what is none.
    size: u64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Fingerprint {
    fn of(stat: &Stat) -> Self {
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size: if is_file { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 },
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

impl Snapshot {
    /// Walks `root`, and remembers at most `most` paths. It may take long on a slow file system.
    pub fn take(root: impl AsFd, most: u64) -> Self {
        let mut files = HashMap::new();
        let (mut is_whole, mut bytes) = (true, 0);
        let (extent, reach) = walk(root, MAX_ENTRIES, |folder, name, stat| {
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                return;
            }
            if files.len() as u64 >= most || bytes >= MAX_PATH_BYTES {
                is_whole = false;
                return;
            }
            let path = below(folder, name);
            bytes += path.len();
            files.insert(path.into(), Fingerprint::of(stat));
        });
        is_whole &= reach == ScanCoverage::All;
        Self { files, is_whole, extent, reach }
    }

    /// What is another in `after`. Where one of the two walks was cut short, a file that only the
    /// other one met is not listed: it may have been there all the time.
    pub fn changes(&self, after: &Self) -> FilesTouched {
        let mut files: Vec<(&[u8], FileOp, u64)> = Vec::new();
        for (path, mark) in &after.files {
            let has_changed = match self.files.get(path) {
                Some(before) => before != mark,
                None => self.is_whole,
            };
            if has_changed {
                files.push((path, FileOp::Write, mark.size));
            }
        }
        if after.is_whole {
            let gone = self.files.keys().filter(|&path| !after.files.contains_key(path));
            files.extend(gone.map(|path| (&**path, FileOp::Remove, 0)));
        }
        files.sort_unstable_by_key(|&(path, ..)| path);
        let truncated = !(self.is_whole && after.is_whole) || files.len() > MAX_FILES;
        files.truncate(MAX_FILES);
        let files = files.into_iter().map(|(path, op, bytes)| TouchedFile::new(path, op, bytes));
        FilesTouched { files: files.collect(), source: TouchedSource::Scan, truncated }
    }
}

/// Measures what is in `root`, as far as `most` entries.
pub(crate) fn measure(root: impl AsFd, most: u64) -> (DiskUsage, ScanCoverage) {
    walk(root, most.min(MAX_ENTRIES), |_, _, _| {})
}

/// A directory that is open, for as long as one in it is still to be walked.
struct Folder {
    fd: OwnedFd,
    path: Vec<u8>,
    depth: usize,
}

/// Shows `see` every entry of `root`, by its folder's path and its name, and counts them.
fn walk(
    root: impl AsFd,
    most: u64,
    mut see: impl FnMut(&[u8], &[u8], &Stat),
) -> (DiskUsage, ScanCoverage) {
    let deadline = Instant::now() + LONGEST;
    let (mut extent, mut reach) = (DiskUsage::default(), ScanCoverage::All);
    let owner = rustix::fs::fstat(&root).map(|stat| stat.st_uid).ok();
    let unread = |stat: Result<Stat, Errno>, errno: Errno| match stat {
        Ok(stat) if errno == Errno::ACCESS && Some(stat.st_uid) == owner => ScanCoverage::Hidden,
        _ => ScanCoverage::Readable,
    };
    let mut linked = HashSet::new();
    // What is still to be walked: a directory in an open one. Names only, so that it takes little
    // however long the paths are.
    let mut waiting: Vec<(Option<Rc<Folder>>, Box<CStr>)> = vec![(None, c".".into())];
    while let Some((parent, name)) = waiting.pop() {
        let parent_fd = parent.as_ref().map_or(root.as_fd(), |parent| parent.fd.as_fd());
        let opened = open(parent_fd, &name);
        let opened = opened.and_then(|fd| Dir::read_from(&fd).map(|entries| (fd, entries)));
        let (fd, entries) = match opened {
            Ok(opened) => opened,
            // Gone since, or something is mounted there.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
            Err(errno) => {
                let stat = rustix::fs::statat(parent_fd, &*name, AtFlags::SYMLINK_NOFOLLOW);
                reach = reach.max(unread(stat, errno));
                continue;
            }
        };
        let (path, depth) = match &parent {
            None => (Vec::new(), 0),
            Some(parent) => (below(&parent.path, name.to_bytes()), parent.depth + 1),
        };
        drop(parent);
        let folder = Rc::new(Folder { fd, path, depth });
        for entry in entries {
            let Ok(entry) = entry else {
                reach = reach.max(ScanCoverage::Readable);
                break;
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match rustix::fs::statat(&folder.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Gone since.
                Err(Errno::NOENT) => continue,
                Err(errno) => {
                    reach = reach.max(unread(rustix::fs::fstat(&folder.fd), errno));
                    continue;
                }
            };
            extent.entries += 1;
            let is_late = extent.entries % ENTRIES_A_LOOK == 0 && Instant::now() > deadline;
            if extent.entries > most || is_late {
                return (extent, ScanCoverage::Cut);
            }
            let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let bytes = match is_folder {
                true => bytes_of_names(&stat),
                false if stat.st_nlink > 1 && !linked.insert((stat.st_dev, stat.st_ino)) => 0,
                false => bytes_of(&stat),
            };
            extent.bytes = extent.bytes.saturating_add(bytes);
            see(&folder.path, name.to_bytes(), &stat);
            if is_folder && folder.depth == MAX_DEPTH {
                reach = reach.max(ScanCoverage::Deep);
            } else if is_folder {
                waiting.push((Some(folder.clone()), name.into()));
            }
        }
    }
    (extent, reach)
}

/// What a file takes: what is allocated of its size, or more where more is allocated than its last
/// block explains.
pub(crate) fn bytes_of(stat: &Stat) -> u64 {
    // Their types are the platform's.
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let block = u64::try_from(stat.st_blksize).unwrap_or(0).clamp(512, LARGEST_BLOCK);
    if allocated < size.saturating_add(block) { size.min(allocated) } else { allocated }
}

/// What the names in a directory take beyond its first block: a file system may keep that when they
/// are gone.
fn bytes_of_names(stat: &Stat) -> u64 {
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let block = u64::try_from(stat.st_blksize).unwrap_or(0);
    allocated.saturating_sub(block)
}

fn below(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match folder {
        [] => name.to_vec(),
        folder => [folder, b"/", name].concat(),
    }
}

/// Opens a directory in `parent`.
fn open(parent: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags =
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(&parent, name, flags, Mode::empty(), resolve) {
        // One component, so nothing else can be in its way than itself.
        Err(Errno::NOSYS) => {
            let folder = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
            let device = |fd| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
            match device(folder.as_fd())? == device(parent.as_fd())? {
                true => Ok(folder),
                false => Err(Errno::XDEV),
            }
        }
        result => result,
    }
}

#[cfg(test)]
mod tests;
