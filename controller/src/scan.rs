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
pub(crate) struct Extent {
    /// Bytes of files that are allocated, those of a file with several names once.
    pub bytes: u64,
    /// Files, directories and whatever else has a name.
    pub entries: u64,
}

/// How far a walk came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
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
    files: HashMap<Box<[u8]>, Mark>,
    /// Whether `files` has all of them.
    is_whole: bool,
    pub extent: Extent,
    /// Whether `extent` is all of it.
    pub reach: Reach,
}

/// By what a change of a file is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    dev: u64,
    ino: u64,
    /// Of a regular file; 0 of what is none.
    size: u64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Mark {
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
            files.insert(path.into(), Mark::of(stat));
        });
        is_whole &= reach == Reach::All;
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
pub(crate) fn measure(root: impl AsFd, most: u64) -> (Extent, Reach) {
    walk(root, most.min(MAX_ENTRIES), |_, _, _| {})
}

/// A directory that is open, for as long as one in it is still to be walked.
struct Folder {
    fd: OwnedFd,
    path: Vec<u8>,
    depth: usize,
}

/// Shows `see` every entry of `root`, by its folder's path and its name, and counts them.
fn walk(root: impl AsFd, most: u64, mut see: impl FnMut(&[u8], &[u8], &Stat)) -> (Extent, Reach) {
    let deadline = Instant::now() + LONGEST;
    let (mut extent, mut reach) = (Extent::default(), Reach::All);
    let owner = rustix::fs::fstat(&root).map(|stat| stat.st_uid).ok();
    let unread = |stat: Result<Stat, Errno>, errno: Errno| match stat {
        Ok(stat) if errno == Errno::ACCESS && Some(stat.st_uid) == owner => Reach::Hidden,
        _ => Reach::Readable,
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
                reach = reach.max(Reach::Readable);
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
                return (extent, Reach::Cut);
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
                reach = reach.max(Reach::Deep);
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
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn open_dir(dir: &Path) -> fs::File {
        fs::File::open(dir).unwrap()
    }

    fn take(dir: &Path) -> Snapshot {
        Snapshot::take(open_dir(dir), 1000)
    }

    fn changes(dir: &Path, change: impl FnOnce(&Path)) -> Vec<(String, FileOp, u64)> {
        let before = take(dir);
        // A clock of the file system that stood still would hide a change of the same size.
        let stamp = |dir: &Path| {
            fs::write(dir.join(".clock"), "").unwrap();
            let stat = rustix::fs::stat(dir.join(".clock")).unwrap();
            fs::remove_file(dir.join(".clock")).unwrap();
            (stat.st_mtime, stat.st_mtime_nsec)
        };
        let now = stamp(dir);
        while stamp(dir) == now {}
        change(dir);
        let FilesTouched { files, source, truncated } = before.changes(&take(dir));
        assert_eq!((source, truncated), (TouchedSource::Scan, false));
        files.into_iter().map(|file| (file.name, file.op, file.bytes)).collect()
    }

    #[test]
    fn a_scan_finds_what_was_made_changed_moved_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["same", "changed", "touched", "moved", "gone"] {
            fs::write(dir.path().join(name), "12").unwrap();
        }
        fs::create_dir_all(dir.path().join("old/sub")).unwrap();
        fs::write(dir.path().join("old/sub/f"), "1234").unwrap();
        let seen = changes(dir.path(), |dir| {
            fs::write(dir.join("changed"), "34").unwrap();
            // A program that gives a file its old time back has changed it all the same.
            let touched = fs::File::options().append(true).open(dir.join("touched")).unwrap();
            touched.set_modified(touched.metadata().unwrap().modified().unwrap()).unwrap();
            fs::rename(dir.join("moved"), dir.join("here")).unwrap();
            fs::remove_file(dir.join("gone")).unwrap();
            fs::rename(dir.join("old"), dir.join("new")).unwrap();
            fs::create_dir(dir.join("empty")).unwrap();
            symlink("same", dir.join("link")).unwrap();
            fs::write(dir.join("made-and-removed"), "1").unwrap();
            fs::remove_file(dir.join("made-and-removed")).unwrap();
        });
        let expected = [
            ("changed", FileOp::Write, 2),
            ("gone", FileOp::Remove, 0),
            ("here", FileOp::Write, 2),
            ("link", FileOp::Write, 0),
            ("moved", FileOp::Remove, 0),
            ("new/sub/f", FileOp::Write, 4),
            ("old/sub/f", FileOp::Remove, 0),
            ("touched", FileOp::Write, 2),
        ];
        assert_eq!(seen, expected.map(|(name, op, bytes)| (name.to_owned(), op, bytes)));
        assert_eq!(changes(dir.path(), |_| {}), []);
    }

    #[test]
    fn a_scan_goes_through_no_link_and_names_survive_it() {
        let outside = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        symlink(outside.path(), dir.path().join("out")).unwrap();
        symlink("..", dir.path().join("up")).unwrap();
        let odd = OsStr::from_bytes(b"\xff");
        fs::create_dir(dir.path().join(odd)).unwrap();
        let before = take(dir.path());
        assert_eq!((before.extent.entries, before.reach), (3, Reach::All));
        fs::write(outside.path().join("f"), "1").unwrap();
        fs::write(dir.path().join(odd).join(odd), "1").unwrap();
        let files = before.changes(&take(dir.path())).files;
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].path(), b"\xff/\xff");
    }

    #[test]
    fn a_scan_that_was_cut_short_lists_only_what_it_knows() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(dir.path().join(name), "1").unwrap();
        }
        let part = Snapshot::take(open_dir(dir.path()), 2);
        assert!(!part.is_whole && part.reach == Reach::All && part.extent.entries == 3);
        for name in ["a", "b", "c", "d"] {
            fs::write(dir.path().join(name), "12").unwrap();
        }
        let found = part.changes(&take(dir.path()));
        // The third may have been there before, and so may the new one.
        assert_eq!((found.files.len(), found.truncated), (2, true));
        // Nor is anything gone because the second walk did not meet it.
        let found = take(dir.path()).changes(&Snapshot::take(open_dir(dir.path()), 1));
        assert_eq!((found.files.len(), found.truncated), (0, true));
    }

    #[test]
    fn directory_counts_what_its_names_take_beyond_one_block() {
        let dir = tempfile::tempdir().unwrap();
        let mut stat = rustix::fs::stat(dir.path()).unwrap();
        stat.st_blksize = 4096;
        for (blocks, bytes) in [(0, 0), (8, 0), (16, 4096), (3072, 1_568_768)] {
            stat.st_blocks = blocks;
            assert_eq!(bytes_of_names(&stat), bytes, "{blocks}");
        }
    }

    #[test]
    fn what_is_allocated_counts_once_and_what_is_sparse_hardly() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = || measure(open_dir(dir.path()), MAX_ENTRIES).0.bytes;
        let empty = bytes();
        fs::File::create(dir.path().join("sparse")).unwrap().set_len(1 << 30).unwrap();
        assert!(bytes() - empty < 1 << 20);
        let sparse = bytes();
        fs::write(dir.path().join("full"), vec![1; (4 << 20) + 1]).unwrap();
        // What its last block has besides is not of its making.
        assert_eq!(bytes() - sparse, (4 << 20) + 1);
        fs::hard_link(dir.path().join("full"), dir.path().join("again")).unwrap();
        assert_eq!(bytes() - sparse, (4 << 20) + 1);
        // Space that is taken beyond a file's size is taken.
        let ahead = fs::File::create(dir.path().join("ahead")).unwrap();
        let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&ahead, flags, 0, 1 << 20).unwrap();
        assert!(bytes() - sparse > 5 << 20);
    }

    #[test]
    fn a_measurement_ends_at_its_bound_and_below_the_deepest_directory() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..20 {
            fs::write(dir.path().join(number.to_string()), "").unwrap();
        }
        let (extent, reach) = measure(open_dir(dir.path()), 10);
        assert_eq!((extent.entries, reach), (11, Reach::Cut));
        let deep = |depth| {
            let dir = tempfile::tempdir().unwrap();
            let path: std::path::PathBuf = std::iter::repeat_n("d", depth).collect();
            fs::create_dir_all(dir.path().join(path)).unwrap();
            measure(open_dir(dir.path()), MAX_ENTRIES)
        };
        assert_eq!(deep(MAX_DEPTH).1, Reach::All);
        let (extent, reach) = deep(MAX_DEPTH + 1);
        assert_eq!((extent.entries as usize, reach), (MAX_DEPTH + 1, Reach::Deep));
    }

    #[test]
    fn what_the_owner_hides_from_itself_is_told_from_what_is_anothers() {
        use rustix::fs::chmod;
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

        let dir = tempfile::tempdir().unwrap();
        let hidden = dir.path().join("hidden");
        fs::create_dir(&hidden).unwrap();
        fs::write(hidden.join("f"), "1").unwrap();
        let reach = || measure(open_dir(dir.path()), MAX_ENTRIES).1;
        std::thread::scope(|scope| {
            // This thread alone: root reads everything.
            let seen = scope.spawn(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective &= !(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
                set_capabilities(None, sets).unwrap();
                [0o300, 0o600, 0o700].map(|mode| {
                    chmod(&hidden, Mode::from_raw_mode(mode)).unwrap();
                    reach()
                })
            });
            assert_eq!(seen.join().unwrap(), [Reach::Hidden, Reach::Hidden, Reach::All]);
        });
    }

    #[test]
    fn a_mount_in_the_io_dir_is_not_entered() {
        // The kernel's own are mounts that every machine has.
        let root = open_dir(Path::new("/"));
        assert!(open(&root, c"etc").is_ok());
        assert_eq!(open(&root, c"proc").unwrap_err(), Errno::XDEV);
    }

    #[test]
    fn nothing_outside_is_met_while_directories_become_links() {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use std::sync::atomic::{AtomicBool, Ordering};

        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "").unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/f"), "").unwrap();
        symlink(outside.path(), dir.path().join("link")).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (a, b) = (dir.path().join("d"), dir.path().join("link"));
                while !over.load(Ordering::Relaxed) {
                    renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
                }
            });
            let mut met = HashSet::new();
            for _ in 0..5000 {
                walk(open_dir(dir.path()), MAX_ENTRIES, |_, name, _| {
                    met.insert(name.to_vec());
                });
            }
            over.store(true, Ordering::Relaxed);
            assert!(met.contains(&b"f"[..]) && !met.contains(&b"secret"[..]), "{met:?}");
        });
    }
}
