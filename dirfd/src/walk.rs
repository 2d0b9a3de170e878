//! Walks of a directory whose content may be hostile: by descriptors from its own, following no
//! link and entering no mount, with bounds.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

/// How many entries are seen between two checks of the clock.
const ENTRIES_PER_TIME_CHECK: u64 = 256;

/// The bounds of a walk.
#[derive(Debug, Clone, Copy)]
pub struct WalkBounds {
    /// The maximum number of entries.
    pub entries: u64,
    /// The maximum directory depth. Each level holds a descriptor.
    pub depth: usize,
    /// The maximum duration.
    pub time: Duration,
}

/// How much of a directory a walk covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScanCoverage {
    /// Everything.
    All,
    /// Everything except another user's directories that it may not read.
    Readable,
    /// Everything except a directory that its owner, the root's owner, can write to but not read,
    /// so that only root could scan it.
    Hidden,
    /// Everything except what is below the maximum depth.
    Deep,
    /// Up to the maximum number of entries, or the time limit.
    Cut,
}

/// What a walk does with an entry that is a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// Goes on to its entries.
    Enter,
    /// Leaves out its entries.
    Skip,
}

/// A directory that is open for as long as a subdirectory of it is still to be walked.
struct Folder {
    fd: OwnedFd,
    path: Vec<u8>,
    depth: usize,
}

/// Calls `see` with the directory path and the name of every entry of `root`, in no order. Returns
/// the number of entries, which is more than the bound if that ended the walk.
pub fn walk(
    root: impl AsFd,
    bounds: WalkBounds,
    mut see: impl FnMut(&[u8], &[u8], &Stat) -> Visit,
) -> (u64, ScanCoverage) {
    let deadline = Instant::now() + bounds.time;
    let (mut entries_seen, mut coverage) = (0, ScanCoverage::All);
    let owner = rustix::fs::fstat(&root).map(|stat| stat.st_uid).ok();
    let unread = |stat: Result<Stat>, errno: Errno| match stat {
        Ok(stat) if errno == Errno::ACCESS && Some(stat.st_uid) == owner => ScanCoverage::Hidden,
        _ => ScanCoverage::Readable,
    };
    // Directories still to be walked, each in an open directory. Only names are kept, so that it
    // uses little memory however long the paths are.
    let mut waiting: Vec<(Option<Rc<Folder>>, Box<CStr>)> = vec![(None, c".".into())];
    while let Some((parent, name)) = waiting.pop() {
        let parent_fd = parent.as_ref().map_or(root.as_fd(), |parent| parent.fd.as_fd());
        let opened = open_child(parent_fd, name.to_bytes(), OFlags::RDONLY | OFlags::DIRECTORY);
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
            Some(parent) => (join(&parent.path, name.to_bytes()), parent.depth + 1),
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
            entries_seen += 1;
            let is_late = entries_seen % ENTRIES_PER_TIME_CHECK == 0 && Instant::now() > deadline;
            if entries_seen > bounds.entries || is_late {
                return (entries_seen, ScanCoverage::Cut);
            }
            let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if see(&folder.path, name.to_bytes(), &stat) == Visit::Skip || !is_folder {
                continue;
            }
            if folder.depth == bounds.depth {
                coverage = coverage.max(ScanCoverage::Deep);
            } else {
                waiting.push((Some(folder.clone()), name.into()));
            }
        }
    }
    (entries_seen, coverage)
}

/// The path of an entry of a directory; the root's own path is empty.
#[must_use]
pub fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match folder {
        [] => name.to_vec(),
        folder => [folder, b"/", name].concat(),
    }
}

/// Opens an entry of `parent`: no link, and nothing that is mounted there. It never waits for the
/// other end of a FIFO.
///
/// # Errors
///
/// `ELOOP` (with `O_DIRECTORY` perhaps `ENOTDIR`) for a link, `EXDEV` for a mount.
pub fn open_child(parent: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
    // With O_PATH nothing is opened that could wait, and openat2 refuses that flag.
    let waits = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
    let flags = flags | waits | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(&parent, name, flags, Mode::empty(), resolve) {
        // A single component, so nothing else can be in its path. A filter of system calls says PERM.
        Err(Errno::NOSYS | Errno::PERM) => {
            let child = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
            let device = |fd| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
            match device(child.as_fd())? == device(parent.as_fd())? {
                true => Ok(child),
                false => Err(Errno::XDEV),
            }
        }
        result => result,
    }
}

/// Opens a directory to list or to lock it, also one that is a mount. A link is `ENOTDIR`.
///
/// # Errors
///
/// As of `openat`.
pub fn open_directory(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

    /// Its number on every architecture.
    const OPENAT2: i64 = 437;

    #[test]
    fn child_is_opened_where_a_filter_denies_openat2() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "of a").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        let parent = std::fs::File::open(dir.path()).unwrap();
        let denied = SeccompAction::Errno(Errno::PERM.raw_os_error().unsigned_abs());
        let rules = [(OPENAT2, Vec::new())].into();
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, arch).unwrap();
        let filter: BpfProgram = filter.try_into().unwrap();
        // It holds for its thread alone.
        let opened = std::thread::spawn(move || {
            apply_filter(&filter).unwrap();
            let none = ResolveFlags::empty();
            let direct =
                rustix::fs::openat2(&parent, "a", OFlags::RDONLY, Mode::empty(), none).err();
            let open = |name| open_child(&parent, name, OFlags::RDONLY).err();
            (direct, open(b"a"), open(b"link"), open(b"nothing"))
        });
        let (denied, loops, none) = (Some(Errno::PERM), Some(Errno::LOOP), Some(Errno::NOENT));
        assert_eq!(opened.join().unwrap(), (denied, None, loops, none));
    }
}
