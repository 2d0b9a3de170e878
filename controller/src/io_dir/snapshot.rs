//! Scans of the io dir: what commands changed in it, and how much it contains.
//!
//! Commands write without the agent, so nobody announces their changes: a scan before and one after
//! finds them. A scan uses dirfds starting at the io dir's own, follows no link and enters no
//! mount, and ends at a maximum number of entries, depth and time; it reports if it was cut short.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sandbox_api::{FileOp, FilesTouched, TouchedFile, TouchedSource};

/// The maximum directory depth of a scan. Each level holds a descriptor.
pub(crate) const MAX_DEPTH: usize = 128;
/// The maximum number of entries that a scan counts.
const MAX_ENTRIES: u64 = 2_000_000;
/// The maximum number of bytes of all paths that a scan remembers.
const MAX_PATH_BYTES: usize = 16 << 20;
/// The maximum number of listed files.
const MAX_FILES: usize = 10_000;
/// The maximum duration of a scan.
const LONGEST: Duration = Duration::from_secs(10);
/// The largest block that a filesystem allocates at once.
const LARGEST_BLOCK: u64 = 64 << 10;
/// How many entries are scanned between two checks of the clock.
const ENTRIES_PER_TIME_CHECK: u64 = 256;

/// How much of its filesystem an io dir uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DiskUsage {
    /// Allocated bytes of files; a file with several names counts once.
    pub bytes: u64,
    /// Files, directories and all other entries.
    pub entries: u64,
}

/// How much of the io dir a scan covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ScanCoverage {
    /// Everything.
    All,
    /// Everything except another user's directories that it may not read.
    Readable,
    /// Everything except a directory that its owner, the io dir's owner, can write to but not read,
    /// so that only root could scan it.
    Hidden,
    /// Everything except what is below [`MAX_DEPTH`].
    Deep,
    /// Up to the maximum number of entries, or the time limit.
    Cut,
}

/// The files at the time of a scan.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// By their paths relative to the io dir. Without directories.
    files: HashMap<Box<[u8]>, Fingerprint>,
    /// Whether `files` is complete.
    is_whole: bool,
    pub usage: DiskUsage,
    /// Whether `usage` is complete.
    pub coverage: ScanCoverage,
}

/// Detects a change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    dev: u64,
    ino: u64,
    /// The size of a regular file; 0 for other types.
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
    /// Scans `root`, and remembers at most `most` paths. It may take long on a slow filesystem.
    pub fn take(root: impl AsFd, most: u64) -> Self {
        let mut files = HashMap::new();
        let (mut is_whole, mut bytes) = (true, 0);
        let (usage, coverage) = walk(root, MAX_ENTRIES, |folder, name, stat| {
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
        is_whole &= coverage == ScanCoverage::All;
        Self { files, is_whole, usage, coverage }
    }

    /// The differences between this scan and `after`. If one of them was cut short, a file that
    /// only the other one found is not listed: it may have existed all the time.
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

/// Measures the content of `root`, up to `most` entries.
pub(crate) fn measure(root: impl AsFd, most: u64) -> (DiskUsage, ScanCoverage) {
    walk(root, most.min(MAX_ENTRIES), |_, _, _| {})
}

/// A directory that is open for as long as a subdirectory of it is still to be scanned.
struct Folder {
    fd: OwnedFd,
    path: Vec<u8>,
    depth: usize,
}

/// Calls `see` with the directory path and the name of every entry of `root`, and counts the
/// entries.
fn walk(
    root: impl AsFd,
    most: u64,
    mut see: impl FnMut(&[u8], &[u8], &Stat),
) -> (DiskUsage, ScanCoverage) {
    let deadline = Instant::now() + LONGEST;
    let (mut usage, mut coverage) = (DiskUsage::default(), ScanCoverage::All);
    let owner = rustix::fs::fstat(&root).map(|stat| stat.st_uid).ok();
    let unread = |stat: Result<Stat, Errno>, errno: Errno| match stat {
        Ok(stat) if errno == Errno::ACCESS && Some(stat.st_uid) == owner => ScanCoverage::Hidden,
        _ => ScanCoverage::Readable,
    };
    let mut linked = HashSet::new();
    // Directories still to be scanned, each in an open directory. Only names are kept, so that it
    // uses little memory however long the paths are.
    let mut waiting: Vec<(Option<Rc<Folder>>, Box<CStr>)> = vec![(None, c".".into())];
    while let Some((parent, name)) = waiting.pop() {
        let parent_fd = parent.as_ref().map_or(root.as_fd(), |parent| parent.fd.as_fd());
        let opened = open(parent_fd, &name);
        let opened = opened.and_then(|fd| Dir::read_from(&fd).map(|entries| (fd, entries)));
        let (fd, entries) = match opened {
            Ok(opened) => opened,
            // Removed meanwhile, or something is mounted there.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
            Err(errno) => {
                let stat = rustix::fs::statat(parent_fd, &*name, AtFlags::SYMLINK_NOFOLLOW);
                coverage = coverage.max(unread(stat, errno));
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
                coverage = coverage.max(ScanCoverage::Readable);
                break;
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match rustix::fs::statat(&folder.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Removed meanwhile.
                Err(Errno::NOENT) => continue,
                Err(errno) => {
                    coverage = coverage.max(unread(rustix::fs::fstat(&folder.fd), errno));
                    continue;
                }
            };
            usage.entries += 1;
            let is_late = usage.entries % ENTRIES_PER_TIME_CHECK == 0 && Instant::now() > deadline;
            if usage.entries > most || is_late {
                return (usage, ScanCoverage::Cut);
            }
            let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let bytes = match is_folder {
                true => bytes_of_names(&stat),
                false if stat.st_nlink > 1 && !linked.insert((stat.st_dev, stat.st_ino)) => 0,
                false => bytes_of(&stat),
            };
            usage.bytes = usage.bytes.saturating_add(bytes);
            see(&folder.path, name.to_bytes(), &stat);
            if is_folder && folder.depth == MAX_DEPTH {
                coverage = coverage.max(ScanCoverage::Deep);
            } else if is_folder {
                waiting.push((Some(folder.clone()), name.into()));
            }
        }
    }
    (usage, coverage)
}

/// The disk usage of a file: the allocated part of its size, or more if more is allocated than its
/// last block explains.
pub(crate) fn bytes_of(stat: &Stat) -> u64 {
    // Their types depend on the platform.
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let block = u64::try_from(stat.st_blksize).unwrap_or(0).clamp(512, LARGEST_BLOCK);
    if allocated < size.saturating_add(block) { size.min(allocated) } else { allocated }
}

/// How much a directory's entries use beyond its first block: a filesystem may keep that space when
/// the entries are removed.
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

/// Opens a subdirectory of `parent`.
fn open(parent: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags =
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(&parent, name, flags, Mode::empty(), resolve) {
        // A single component, so nothing else can be in its path.
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
