//! Writes the tree of an image. Writes stay inside one directory, for any paths in a layer.
//!
//! A path is walked component by component, from the tree's own descriptor, and never through a
//! link: neither to create an entry, nor to remove it, nor to link to it. No other process writes
//! to the tree meanwhile; even if one did, the walk would not leave it.

use std::collections::{BTreeMap, HashSet};
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use sandbox_dirfd::split;

use crate::budget::Budget;
use crate::error::{EntryProblem, RootfsError};
use crate::tar::SparseExtent;

/// Flags to open a directory.
const OPEN_DIR: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags to list a directory, or to change its metadata.
const LIST: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The mode of a directory while its entries are created.
const OPEN: Mode = Mode::RWXU;
/// Permissions and the sticky bit; set-id bits are dropped.
const KEPT_MODE: u32 = 0o1777;
/// Buffer size for file content.
const PIECE: usize = 128 << 10;

/// The metadata of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metadata {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: (i64, u32),
}

impl Metadata {
    /// Of a directory that no layer describes.
    const DEFAULT: Self = Self { mode: 0o755, uid: 0, gid: 0, mtime: (0, 0) };

    fn mode(&self) -> Mode {
        Mode::from_raw_mode(self.mode & KEPT_MODE)
    }

    fn times(&self) -> Timestamps {
        let (seconds, nanoseconds) = self.mtime;
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
        Timestamps { last_access: time, last_modification: time }
    }
}

/// The owner of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owners {
    /// As in the image: a sandbox has the same users as the image has on Docker.
    FromArchive,
    /// This process's user: only root can change owners.
    Current,
}

/// The paths of the layer that is being unpacked, with their parents. Whiteouts do not remove
/// them.
#[derive(Debug, Default)]
pub(super) struct Kept(HashSet<Box<[u8]>>);

impl Kept {
    /// Directories without an entry count as entries: each is created and remembered.
    pub fn insert(&mut self, path: &[u8], budget: &Budget) -> Result<(), RootfsError> {
        let mut parents = path;
        self.0.insert(path.into());
        while let Some(slash) = parents.iter().rposition(|&byte| byte == b'/') {
            parents = &parents[..slash];
            if !self.0.insert(parents.into()) {
                break;
            }
            budget.entry(parents)?;
        }
        Ok(())
    }
}

/// A tree that is being written. Its paths have neither `.` nor `..` nor redundant slashes; the
/// empty path is the root.
#[derive(Debug)]
pub(super) struct Tree {
    root: Rc<OwnedFd>,
    owners: Owners,
    /// The last parent directory.
    last: Option<(Vec<u8>, Rc<OwnedFd>)>,
    /// The final metadata of directories: writing into them needs permissions, and changes times.
    directories: BTreeMap<Vec<u8>, Metadata>,
    buffer: Vec<u8>,
}

/// The parent directory of an entry, and its name there.
type Parent<'path> = (Rc<OwnedFd>, &'path [u8]);

/// What to do about missing parent directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absent {
    Make,
    Leave,
}

impl Tree {
    /// In an empty directory.
    pub fn new(root: OwnedFd) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self {
            root: Rc::new(root),
            owners: if is_root { Owners::FromArchive } else { Owners::Current },
            last: None,
            directories: BTreeMap::from([(Vec::new(), Metadata::DEFAULT)]),
            buffer: vec![0; PIECE],
        }
    }

    /// Creates a directory if it does not exist. Anything else at the path is replaced.
    pub fn directory(&mut self, path: &[u8], metadata: Metadata) -> Result<(), EntryProblem> {
        if !path.is_empty() {
            self.make(path, |parent, name| match rustix::fs::mkdirat(parent, name, OPEN) {
                Err(Errno::EXIST) if open_dir(parent, name).is_ok() => Ok(()),
                made => made,
            })?;
        }
        self.directories.insert(path.to_owned(), metadata);
        Ok(())
    }

    /// Creates or replaces a file with `content`, which has the bytes of all
    /// extents, one after the other.
    pub fn file(
        &mut self,
        path: &[u8],
        metadata: Metadata,
        (size, extents): (u64, &[SparseExtent]),
        content: &mut impl Read,
    ) -> Result<(), RootfsError> {
        let named = |problem| RootfsError::entry(path, problem);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = self.make(path, |parent, name| {
            rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)
        });
        let file = File::from(made.map_err(named)?);
        let failed = |errno: Errno| named(errno.into());
        let mut end = 0;
        for extent in extents {
            let mut left = extent.length;
            while left > 0 {
                let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                let piece = &mut self.buffer[..most];
                content.read_exact(piece)?;
                let offset = extent.offset + extent.length - left;
                let written = file.write_all_at(piece, offset);
                written.map_err(|it| failed(Errno::from_io_error(&it).unwrap_or(Errno::IO)))?;
                left -= most as u64;
                end = offset + most as u64;
            }
        }
        if end < size {
            rustix::fs::ftruncate(&file, size).map_err(failed)?;
        }
        self.stamp(&file, metadata, Mode::empty()).map_err(failed)
    }

    /// Creates a symbolic link, replacing what is there, even a directory with content. Its target
    /// is not checked.
    pub fn symlink(
        &mut self,
        path: &[u8],
        metadata: Metadata,
        target: &[u8],
    ) -> Result<(), EntryProblem> {
        if target.is_empty() {
            return Err(EntryProblem::NoTarget);
        }
        let target = CString::new(target).map_err(|_| EntryProblem::Nul)?;
        let owners = self.owners;
        self.make(path, |parent, name| {
            rustix::fs::symlinkat(&target, parent, name)?;
            let itself = AtFlags::SYMLINK_NOFOLLOW;
            if owners == Owners::FromArchive {
                let (uid, gid) = (uid(metadata), gid(metadata));
                rustix::fs::chownat(parent, name, Some(uid), Some(gid), itself)?;
            }
            rustix::fs::utimensat(parent, name, &metadata.times(), itself)
        })
    }

    /// Creates a hard link to a file of the tree, or to a link itself, replacing what is there.
    pub fn hard_link(&mut self, path: &[u8], target: &[u8]) -> Result<(), EntryProblem> {
        let missing =
            || EntryProblem::MissingTarget { target: String::from_utf8_lossy(target).into_owned() };
        if target.is_empty() || target == path {
            return Err(missing());
        }
        let (from, from_name) = match self.parent(target, Absent::Leave) {
            Ok(Some(found)) => found,
            Ok(None) | Err(EntryProblem::NoDirectory) => return Err(missing()),
            Err(problem) => return Err(problem),
        };
        let made = self.make(path, |parent, name| {
            rustix::fs::linkat(&from, from_name, parent, name, AtFlags::empty())
        });
        match made {
            // A directory says the latter.
            Err(EntryProblem::Io(Errno::NOENT | Errno::PERM)) => Err(missing()),
            made => made,
        }
    }

    /// Removes an entry with its content, except kept paths.
    pub fn hide(&mut self, path: &[u8], kept: &Kept) -> Result<(), EntryProblem> {
        self.last = None;
        if let Some((parent, name)) = self.parent(path, Absent::Leave)? {
            sweep(&parent, name, &mut path.to_owned(), kept)?;
        }
        Ok(())
    }

    /// Removes the content of a directory, except kept paths.
    pub fn hide_within(&mut self, path: &[u8], kept: &Kept) -> Result<(), EntryProblem> {
        self.last = None;
        let directory = if path.is_empty() {
            self.root.clone()
        } else {
            let Some((parent, name)) = self.parent(path, Absent::Leave)? else { return Ok(()) };
            match open_dir(&parent, name) {
                Ok(directory) => Rc::new(directory),
                Err(EntryProblem::Io(Errno::NOENT)) => return Ok(()),
                Err(problem) => return Err(problem),
            }
        };
        sweep_within(&directory, &mut path.to_owned(), kept)
    }

    /// Sets the final metadata of the directories.
    pub fn finish(mut self) -> Result<(), RootfsError> {
        // The innermost first: each is reached through those above.
        while let Some((path, metadata)) = self.directories.pop_last() {
            let named = |problem| RootfsError::entry(&path, problem);
            let (parent, name) = match self.parent(&path, Absent::Leave) {
                Ok(Some((parent, name))) => (parent, Path::new(std::ffi::OsStr::from_bytes(name))),
                _ if path.is_empty() => (self.root.clone(), Path::new(".")),
                // A later entry, or another layer, has replaced it.
                Ok(None) | Err(EntryProblem::NoDirectory | EntryProblem::ThroughLink) => continue,
                Err(problem) => return Err(named(problem)),
            };
            let directory = match rustix::fs::openat(&parent, name, LIST, Mode::empty()) {
                Ok(directory) => directory,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(named(errno.into())),
            };
            // A user who is not root can otherwise not remove the tree.
            let own = match self.owners {
                Owners::FromArchive => Mode::empty(),
                Owners::Current => Mode::RWXU,
            };
            self.stamp(&directory, metadata, own).map_err(|errno| named(errno.into()))?;
        }
        Ok(())
    }

    /// Gives a file or directory its owner, its permissions with some more, and its time.
    fn stamp(&self, entry: &impl AsFd, metadata: Metadata, more: Mode) -> Result<(), Errno> {
        if self.owners == Owners::FromArchive {
            rustix::fs::fchown(entry, Some(uid(metadata)), Some(gid(metadata)))?;
        }
        // After the owner, whose change clears bits.
        rustix::fs::fchmod(entry, metadata.mode() | more)?;
        rustix::fs::futimens(entry, &metadata.times())
    }

    /// Creates an entry, after removing what is there.
    fn make<T>(
        &mut self,
        path: &[u8],
        mut make: impl FnMut(&OwnedFd, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, EntryProblem> {
        let Some((parent, name)) = self.parent(path, Absent::Make)? else {
            return Err(EntryProblem::Root);
        };
        match make(&parent, name) {
            Err(Errno::EXIST) => {
                // It may have contained the last parent directory.
                self.last = None;
                sweep(&parent, name, &mut Vec::new(), &Kept::default())?;
                Ok(make(&parent, name)?)
            }
            made => Ok(made?),
        }
    }

    /// The parent and the name of an entry; `None` for the root, and if a parent is missing and is
    /// not created.
    fn parent<'path>(
        &mut self,
        path: &'path [u8],
        absent: Absent,
    ) -> Result<Option<Parent<'path>>, EntryProblem> {
        let (above, name) = split(path);
        if name.is_empty() {
            return Ok(None);
        }
        if let Some((last, directory)) = &self.last
            && last == above
        {
            return Ok(Some((directory.clone(), name)));
        }
        let mut directory = self.root.clone();
        let mut walked = 0;
        for component in above.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            walked += component.len() + usize::from(walked > 0);
            let mut next = open_dir(&directory, component);
            if let Err(EntryProblem::Io(Errno::NOENT)) = next {
                if absent == Absent::Leave {
                    return Ok(None);
                }
                rustix::fs::mkdirat(&directory, component, OPEN)?;
                self.directories.insert(above[..walked].to_owned(), Metadata::DEFAULT);
                next = open_dir(&directory, component);
            }
            directory = Rc::new(next?);
        }
        self.last = Some((above.to_owned(), directory.clone()));
        Ok(Some((directory, name)))
    }
}

/// Opens a directory in another one; never through a link.
fn open_dir(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, EntryProblem> {
    match rustix::fs::openat(parent, name, OPEN_DIR, Mode::empty()) {
        Err(errno @ (Errno::NOTDIR | Errno::LOOP)) => {
            let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            Err(match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
                rustix::fs::FileType::Symlink => EntryProblem::ThroughLink,
                rustix::fs::FileType::Directory => errno.into(),
                _ => EntryProblem::NoDirectory,
            })
        }
        opened => Ok(opened?),
    }
}

/// Removes an entry of a directory with its content, if it exists, except kept paths. `path` is its
/// path in the tree.
fn sweep(
    directory: &OwnedFd,
    name: &[u8],
    path: &mut Vec<u8>,
    kept: &Kept,
) -> Result<(), EntryProblem> {
    let is_kept = kept.0.contains(path.as_slice());
    if !is_kept {
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let within = match open_dir(directory, name) {
        // It has no content.
        Err(EntryProblem::NoDirectory | EntryProblem::ThroughLink) if is_kept => return Ok(()),
        within => within?,
    };
    sweep_within(&within, path, kept)?;
    if !is_kept {
        rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Removes the content of a directory, except kept paths. Its depth is bounded by that of paths.
fn sweep_within(directory: &OwnedFd, path: &mut Vec<u8>, kept: &Kept) -> Result<(), EntryProblem> {
    // List all names first: removing while listing may skip some.
    let listed = rustix::fs::openat(directory, c".", LIST, Mode::empty())?;
    let names: Result<Vec<CString>, Errno> = rustix::fs::Dir::new(listed)?
        .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
        .collect();
    for name in
        names?.iter().map(|name| name.as_bytes()).filter(|name| !matches!(*name, b"." | b".."))
    {
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend(name);
        let swept = sweep(directory, name, path, kept);
        path.truncate(length);
        swept?;
    }
    Ok(())
}

fn uid(metadata: Metadata) -> Uid {
    Uid::from_raw(metadata.uid)
}

fn gid(metadata: Metadata) -> Gid {
    Gid::from_raw(metadata.gid)
}
