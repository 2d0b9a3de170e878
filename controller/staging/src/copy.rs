//! A private copy of a tree, and what is recorded to find out later what changed.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
    copy_file_range, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, fstatvfs, ftruncate,
    futimens, ioctl_ficlone, mkdirat, mknodat, openat, readlinkat, symlinkat, utimensat,
};
use rustix::io::Errno;
use sandbox_dirfd::{
    CopyAllowance, FileStamp, KnownFiles, join, link_below, next_data, open_child, open_directory,
    remove_tree,
};

use crate::error::StageError;
use crate::tree::{
    BirthTime, WalkCount, birth_time, check_depth, entries, open, set_mode, wait_for_tick,
};

/// How often to copy a file that changes meanwhile.
const TRIES: usize = 4;
/// The size of a buffer, where the kernel cannot copy.
const BUFFER: usize = 256 << 10;
/// Extended attributes that are copied: what the user set, and ACLs.
const ATTRIBUTES: [&[u8]; 2] = [b"user.", b"system.posix_acl_"];

/// An entry of the io dir and its copy, when it was copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    pub original: FileStamp,
    pub copy: FileStamp,
    /// When the inode of the copy was created.
    pub born: BirthTime,
}

impl From<FileStamp> for Copied {
    /// An entry that an overlay shows as it is.
    fn from(original: FileStamp) -> Self {
        Self { original, copy: original, born: None }
    }
}

/// All entries at the time of the copy, by path.
#[derive(Debug)]
pub(crate) struct Baseline {
    pub root: Copied,
    pub entries: BTreeMap<Box<[u8]>, Copied>,
}

impl Baseline {
    /// Waits until every change has another ctime than what was recorded.
    pub fn wait_for_tick(&self) {
        let all = self.entries.values().chain([&self.root]);
        if let Some(latest) = all.flat_map(|it| [it.copy.changed, it.original.changed]).max() {
            wait_for_tick(latest);
        }
    }
}

/// How much a copy may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyBounds {
    /// The bytes of the filesystem that stay free.
    pub reserve: u64,
    /// The bytes of copies of files beyond the first of each: every name of a file becomes a file, and a
    /// run can leave thousands of names of a large file.
    pub repeated: u64,
}

impl Default for CopyBounds {
    fn default() -> Self {
        Self { reserve: 0, repeated: CopyAllowance::BYTES }
    }
}

/// Files of several names, by the first one in the copy.
pub(crate) type LinkedFiles = KnownFiles<Box<[u8]>>;

/// Whether it is a socket: nothing serves a copy of it.
pub(crate) fn is_socket(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Socket
}

/// Copies everything below `from` into the empty directory `to`, except devices, and what is
/// `skipped`. Files of several names are such in the copy if it is given a record of them, and
/// separate files otherwise.
pub(crate) fn copy_tree(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    skipped: &dyn Fn(&CStr, &Stat) -> bool,
    bounds: CopyBounds,
    linked: Option<LinkedFiles>,
) -> Result<Baseline, StageError> {
    let at = StageError::at(b".");
    let (from, to) = (
        open(from, c".", OFlags::DIRECTORY).map_err(&at)?,
        open(to, c".", OFlags::DIRECTORY).map_err(&at)?,
    );
    let original = fstat(&from).map_err(&at)?;
    let mut copying = Copying {
        skipped,
        root: to.as_fd(),
        reserve: bounds.reserve,
        copies: CopyAllowance::new(bounds.repeated),
        linked,
        seen: WalkCount::default(),
        copied: BTreeMap::new(),
    };
    copying.directory((from.as_fd(), to.as_fd()), b"")?;
    finish(&from, &to, &original).map_err(&at)?;
    let copy = FileStamp::of(&fstat(&to).map_err(&at)?);
    let born = birth_time(to.as_fd(), c".");
    let root = Copied { original: FileStamp::of(&original), copy, born };
    Ok(Baseline { root, entries: copying.copied })
}

/// A directory that is to be created. Its parent is opened beforehand, so that a path changed
/// meanwhile cannot redirect it.
#[derive(Debug, Clone)]
pub struct NewDirectory {
    path: PathBuf,
    parent: Arc<OwnedFd>,
    name: OsString,
}

impl NewDirectory {
    /// Opens the directory that it will be in.
    ///
    /// # Errors
    ///
    /// If that is missing or cannot be read, or the path does not end in a name.
    pub fn at(path: &Path) -> io::Result<Self> {
        let Some(name) = path.file_name() else { return Err(Errno::EXIST.into()) };
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
        let (path, name) = (path.to_owned(), name.to_owned());
        Ok(Self { path, parent: Arc::new(parent), name })
    }

    /// Its path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that it will be in.
    pub fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }
}

/// Copies a tree into a new directory at `to`. Nothing is there if that fails.
///
/// # Errors
///
/// [`StageError`], also if `to` exists.
pub fn copy_out(from: BorrowedFd<'_>, to: &NewDirectory) -> Result<(), StageError> {
    let NewDirectory { path, parent, name } = to;
    let failed = |errno: Errno| StageError::stage(path)(errno.into());
    mkdirat(parent, name, Mode::RWXU).map_err(failed)?;
    let copied = open_directory(parent, name).map_err(failed).and_then(|to| {
        let is_left_out = |_: &CStr, stat: &Stat| is_socket(stat);
        // A copy of what a guest left must not be larger than that.
        let linked = Some(LinkedFiles::default());
        copy_tree(from, to.as_fd(), &is_left_out, CopyBounds::default(), linked).map(drop)
    });
    if copied.is_err() {
        _ = remove_tree(parent.as_fd(), name);
    }
    copied
}

/// A directory, and its copy.
type Between<'a> = (BorrowedFd<'a>, BorrowedFd<'a>);

struct Copying<'a> {
    skipped: &'a dyn Fn(&CStr, &Stat) -> bool,
    /// The root of the copy.
    root: BorrowedFd<'a>,
    reserve: u64,
    copies: CopyAllowance,
    /// The paths of files that have several names, if these are to be names of one copy.
    linked: Option<LinkedFiles>,
    seen: WalkCount,
    copied: BTreeMap<Box<[u8]>, Copied>,
}

impl Copying<'_> {
    fn directory(&mut self, (from, to): Between<'_>, path: &[u8]) -> Result<(), StageError> {
        for (name, stat) in entries(from).map_err(StageError::at(path))? {
            if (self.skipped)(&name, &stat) {
                continue;
            }
            let path = join(path, name.to_bytes());
            self.seen.add(&path)?;
            let original = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => self.subdirectory((from, to), &name, &path)?,
                FileType::RegularFile => self.file((from, to), &name, &path)?,
                FileType::Symlink => {
                    link(from, to, &name).map_err(StageError::at(&path))?.then_some(stat)
                }
                kind @ (FileType::Fifo | FileType::Socket) => {
                    Some(special(to, &name, kind, stat).map_err(StageError::at(&path))?)
                }
                _ => None,
            };
            let Some(original) = original else { continue };
            let copy = rustix::fs::statat(to, &*name, AtFlags::SYMLINK_NOFOLLOW);
            let copied = Copied {
                original: FileStamp::of(&original),
                copy: FileStamp::of(&copy.map_err(StageError::at(&path))?),
                born: birth_time(to, &name),
            };
            self.copied.insert(path.into(), copied);
        }
        Ok(())
    }

    fn file(
        &mut self,
        (from, to): Between<'_>,
        name: &CStr,
        path: &[u8],
    ) -> Result<Option<Stat>, StageError> {
        if let Ok(stat) = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW) {
            if let Some(first) = self.linked.as_ref().and_then(|linked| linked.get(&stat))
                && link_below(self.root, first, (to, name.to_bytes())).is_ok()
            {
                return Ok(Some(stat));
            }
            if !self.copies.take(&stat) {
                return Err(StageError::TooManyNames { path: path.to_owned() });
            }
        }
        let copied = copy_file((from, to), name, path, self.reserve)?;
        if let (Some(linked), Some(stat)) = (&mut self.linked, &copied) {
            linked.add(stat, path.into());
        }
        Ok(copied)
    }

    fn subdirectory(
        &mut self,
        (from, to): Between<'_>,
        name: &CStr,
        path: &[u8],
    ) -> Result<Option<Stat>, StageError> {
        let at = StageError::at(path);
        check_depth(path)?;
        let from = match open(from, name, OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            opened => opened.map_err(&at)?,
        };
        let original = fstat(&from).map_err(&at)?;
        mkdirat(to, name, Mode::RWXU).map_err(&at)?;
        let to = open(to, name, OFlags::DIRECTORY).map_err(&at)?;
        self.directory((from.as_fd(), to.as_fd()), path)?;
        finish(&from, &to, &original).map_err(&at)?;
        Ok(Some(original))
    }
}

/// Copies a file; nothing if it disappears.
fn copy_file(
    (from, to): Between<'_>,
    name: &CStr,
    path: &[u8],
    reserve: u64,
) -> Result<Option<Stat>, StageError> {
    let at = StageError::at(path);
    let from = match open(from, name, OFlags::empty()) {
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
        opened => opened.map_err(&at)?,
    };
    // Something else may have its name by now.
    let opened = fstat(&from).map_err(&at)?;
    if FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let to = openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(&at)?;
    for _ in 0..TRIES {
        let before = fstat(&from).map_err(&at)?;
        content(&from, &to, &before, reserve)
            .map_err(|source| StageError::Path { path: path.to_owned(), source })?;
        let after = fstat(&from).map_err(&at)?;
        if FileStamp::of(&before) == FileStamp::of(&after) {
            finish(&from, &to, &before).map_err(&at)?;
            return Ok(Some(before));
        }
        ftruncate(&to, 0).map_err(&at)?;
    }
    Err(StageError::Unstable { path: path.to_owned() })
}

/// By a clone where the filesystem has them, else by the kernel, else by hand; holes stay holes. `to` is
/// empty.
fn content(from: &OwnedFd, to: &OwnedFd, stat: &Stat, reserve: u64) -> io::Result<()> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size == 0 {
        return Ok(());
    }
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(ftruncate(to, size)?);
    }
    let data = size.min(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
    let space = fstatvfs(to)?;
    // Some filesystems do not say how large they are.
    let is_known = space.f_blocks > 0;
    if is_known && space.f_bavail.saturating_mul(space.f_frsize) < reserve.saturating_add(data) {
        let why = "not enough space for a copy (limits.disk_reserve)";
        return Err(io::Error::new(io::ErrorKind::StorageFull, why));
    }
    let (mut at, mut written) = (0, 0);
    while let Some(data) = next_data(from.as_fd(), at, size)? {
        written = range(from, to, data.start, data.end)?;
        at = data.end;
    }
    if written < size {
        // It ends in a hole.
        ftruncate(to, size)?;
    }
    Ok(())
}

/// Returns where it ended.
fn range(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> io::Result<u64> {
    let mut buffer = Vec::new();
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX);
        let (mut read, mut write) = (at, at);
        let copied = match copy_file_range(from, Some(&mut read), to, Some(&mut write), length) {
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => {
                // A small file needs no large buffer: there may be thousands.
                buffer.resize(length.min(BUFFER), 0);
                let read = rustix::io::pread(from, &mut buffer[..], at)?;
                let mut written = 0;
                while written < read {
                    written += rustix::io::pwrite(to, &buffer[written..read], at + written as u64)?;
                }
                read
            }
            copied => copied?,
        };
        if copied == 0 {
            // It has become shorter: the caller sees that it changed.
            break;
        }
        at += copied as u64;
    }
    Ok(at)
}

/// False if it is no link any more.
fn link(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    let target = match readlinkat(from, name, Vec::new()) {
        Err(Errno::NOENT | Errno::INVAL) => return Ok(false),
        target => target?,
    };
    let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    symlinkat(&*target, to, name)?;
    let owner = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
    // Only root can keep the owners of others' files.
    _ = rustix::fs::chownat(to, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW);
    utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(true)
}

fn special(to: BorrowedFd<'_>, name: &CStr, kind: FileType, stat: Stat) -> Result<Stat, Errno> {
    mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, 0)?;
    let owner = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
    _ = rustix::fs::chownat(to, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW);
    // Whatever the umask is.
    let made = open_child(to, name.to_bytes(), OFlags::PATH)?;
    set_mode(made.as_fd(), stat.st_mode & 0o7777)?;
    utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(stat)
}

/// Gives a copy the attributes, owner, mode and times of its original.
pub(crate) fn finish(from: &OwnedFd, to: &OwnedFd, stat: &Stat) -> Result<(), Errno> {
    for (name, value) in attributes(from) {
        _ = fsetxattr(to, &*name, &value, XattrFlags::empty());
    }
    let made = fstat(to)?;
    if (made.st_uid, made.st_gid) != (stat.st_uid, stat.st_gid) {
        // Only root can keep the owners of others' files.
        _ = fchown(to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
    }
    fchmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    futimens(to, &times(stat))
}

/// The extended attributes that are copied, and ACLs; none on filesystems without them.
pub(crate) fn attributes(file: &OwnedFd) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut names, mut value) = (vec![0; 64 << 10], Vec::new());
    let length = flistxattr(file, &mut names).unwrap_or(0);
    let names = names[..length].split(|&byte| byte == 0);
    let is_copied = |name: &&[u8]| ATTRIBUTES.iter().any(|prefix| name.starts_with(prefix));
    let mut read = |name: &[u8]| {
        value.resize(64 << 10, 0);
        let length = fgetxattr(file, name, &mut value).ok()?;
        Some((name.to_vec(), value[..length].to_vec()))
    };
    names.filter(is_copied).filter_map(&mut read).collect()
}

pub(crate) fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}
