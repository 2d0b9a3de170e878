//! Opening a regular file, and creating it and its parents.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fstat, ftruncate,
    futimens, mkdirat, openat,
};
use rustix::io::Errno;
use sandbox_protocol::message::{Access, Change, Timestamp, Touch, TouchReply};
use sandbox_protocol::path::GuestPath;

use super::access::Files;
use super::error::{FileError, beneath, not_allowed, special};
use super::follow::LastLink;
use super::mounts::{LocatedPath, MountTarget};
use super::open_mode::OpenMode;
use sandbox_dirfd::{Directory, Root, retry, split};

/// How often an open is retried because the file appeared or vanished in between.
const RACES: usize = 8;

/// An open regular file.
#[derive(Debug)]
pub struct OpenFile {
    /// The descriptor (`O_APPEND` in the append modes).
    pub fd: OwnedFd,
    /// The file's identity.
    pub path: GuestPath,
    /// The mode in which it was opened.
    pub mode: OpenMode,
    /// Its size when it was opened (0 for `w` and `w+`).
    pub size: u64,
}

/// What to do if the path does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// Return an error.
    Refuse,
    /// Ignore it; when writing, create the file.
    Accept,
}

impl OpenMode {
    const fn creates(self) -> bool {
        !matches!(self, Self::Read | Self::ReadUpdate)
    }

    /// Never O_TRUNC: the opened file is checked first. O_NONBLOCK, so that a FIFO or a device is
    /// refused without waiting.
    const fn flags(self) -> OFlags {
        let access = match self {
            Self::Read => OFlags::RDONLY,
            Self::Write => OFlags::WRONLY,
            Self::Append => OFlags::WRONLY.union(OFlags::APPEND),
            Self::ReadUpdate | Self::WriteUpdate => OFlags::RDWR,
            Self::AppendUpdate => OFlags::RDWR.union(OFlags::APPEND),
        };
        access.union(OFlags::NONBLOCK).union(OFlags::NOCTTY)
    }
}

impl Files {
    /// Opens a regular file. The write modes create missing parents; nothing is created or
    /// truncated before every check has passed.
    ///
    /// # Errors
    ///
    /// [`FileError`], and nothing has changed (except for parents that were created before the disk
    /// was full).
    pub fn open(&self, written: &[u8], mode: OpenMode) -> Result<OpenFile, FileError> {
        let located = match mode {
            OpenMode::Read => self.locate_to_read(written, LastLink::Follow)?,
            _ => self.locate_to_write(written, LastLink::Follow)?,
        };
        let absent = if mode.creates() { Absent::Accept } else { Absent::Refuse };
        expect_file(&located, absent, written)?;
        for _ in 0..RACES {
            match (located.open(mode.flags()), &located.target) {
                (Ok(fd), _) => return self.accept(fd, located.path, mode, written),
                (Err(Errno::NOENT), MountTarget::Beneath(root, relative)) if mode.creates() => {
                    if let Some(fd) = self.create(&located, root, relative, mode, written)? {
                        return Ok(OpenFile { fd, path: located.path, mode, size: 0 });
                    }
                }
                (Err(errno), _) => return Err(explain(errno, &located, written)),
            }
        }
        Err(FileError::system(Errno::AGAIN, written))
    }

    /// Creates an empty file if there is none, with its parents, and sets when a file or a directory was
    /// last modified. Returns whether the file was created.
    ///
    /// # Errors
    ///
    /// [`FileError`], and nothing has changed, except that a file or parents may have been created.
    pub fn touch(&self, request: &Touch) -> Result<TouchReply, FileError> {
        let written = request.path.as_bytes();
        let located = self.locate_to_write(written, LastLink::Follow)?;
        let reply = |created| TouchReply { path: (&located.path).into(), created };
        // Enough to set times, of directories too.
        let flags = OpenMode::Read.flags();
        for _ in 0..RACES {
            let fd = match (located.open(flags), &located.target) {
                (Ok(fd), _) => fd,
                (Err(Errno::NOENT), MountTarget::Beneath(root, relative)) => {
                    if located.wants_directory {
                        return Err(no_file(root, relative, Absent::Accept, written));
                    }
                    let created =
                        self.create(&located, root, relative, OpenMode::Write, written)?;
                    let Some(fd) = created else { continue };
                    if request.mtime.is_some() {
                        set_modified(&fd, request.mtime)
                            .map_err(|errno| FileError::system(errno, written))?;
                    }
                    return Ok(reply(true));
                }
                (Err(errno), _) => return Err(explain(errno, &located, written)),
            };
            let stat = fstat(&fd).map_err(|errno| FileError::system(errno, written))?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            located.expect_directory(kind, written)?;
            // Directories are no files that a run leaves. The content of a file is kept.
            let pending = match kind {
                FileType::RegularFile => {
                    Some(self.announced.announce(&located.path, true, Change::Append))
                }
                FileType::Directory => None,
                _ => return Err(special(written)),
            };
            let set = set_modified(&fd, request.mtime);
            pending.into_iter().for_each(|it| it.end(set.is_ok()));
            set.map_err(|errno| FileError::system(errno, written))?;
            return Ok(reply(false));
        }
        Err(FileError::system(Errno::AGAIN, written))
    }

    /// Opens a file or a directory that exists, to change what is known of it.
    pub(super) fn open_existing(
        &self,
        located: &LocatedPath<'_>,
        written: &[u8],
    ) -> Result<(OwnedFd, FileType), FileError> {
        let opened = match (located.open(OpenMode::Read.flags()), &located.target) {
            // Its owner may perhaps write it and not read it.
            (Err(Errno::ACCESS), MountTarget::Beneath(root, relative)) => {
                root.open(relative, OpenMode::Append.flags())
            }
            (opened, _) => opened,
        };
        let opened = opened.map_err(|errno| explain(errno, located, written))?;
        let stat = fstat(&opened).map_err(|errno| FileError::system(errno, written))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        located.expect_directory(kind, written)?;
        match kind {
            FileType::RegularFile | FileType::Directory => Ok((opened, kind)),
            _ => Err(special(written)),
        }
    }

    /// Creates the missing directories above the new path of something that exists.
    ///
    /// # Errors
    ///
    /// [`FileError`]; some of them may have been created.
    pub(super) fn make_parents_for(&self, from: &[u8], to: &[u8]) -> Result<(), FileError> {
        if self.exists(from)?.1.is_none() {
            return Err(FileError::system(Errno::NOENT, from));
        }
        let located = self.locate_to_write(to, LastLink::Keep)?;
        let MountTarget::Beneath(root, relative) = &located.target else { return Ok(()) };
        let ParentDir { directory, missing, .. } = self.parent(&located, root, relative, to)?;
        let wanted = missing.len() as u64;
        self.quota.take_entries(located.mount.fd(), wanted)?;
        let mut made = 0;
        let result = make_parents(root, directory, &missing, &mut made);
        self.quota.give_back_entries(wanted - made);
        result.map(drop).map_err(|errno| beneath(errno, to))
    }

    /// Accepts the opened file if it is a regular file, and truncates it if the mode requires that.
    fn accept(
        &self,
        fd: OwnedFd,
        path: GuestPath,
        mode: OpenMode,
        written: &[u8],
    ) -> Result<OpenFile, FileError> {
        let stat = fstat(&fd).map_err(|errno| FileError::system(errno, written))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(FileError::system(Errno::ISDIR, written)),
            _ => return Err(special(written)),
        }
        let mut size = u64::try_from(stat.st_size).unwrap_or(0);
        if matches!(mode, OpenMode::Write | OpenMode::WriteUpdate) {
            let pending = self.announced.announce(&path, true, mode.change());
            let truncated = if size > 0 { retry(|| ftruncate(&fd, 0)) } else { Ok(()) };
            pending.end(truncated.is_ok());
            truncated.map_err(|errno| FileError::system(errno, written))?;
            size = 0;
        }
        Ok(OpenFile { fd, path, mode, size })
    }

    /// Creates a missing file, with its parents; `None` if it exists by now.
    fn create(
        &self,
        located: &LocatedPath<'_>,
        root: &Root<'_>,
        relative: &[u8],
        mode: OpenMode,
        written: &[u8],
    ) -> Result<Option<OwnedFd>, FileError> {
        let ParentDir { directory, missing, name } =
            self.parent(located, root, relative, written)?;
        let wanted = missing.len() as u64 + 1;
        self.quota.take_entries(located.mount.fd(), wanted)?;
        let pending = self.announced.announce(&located.path, false, mode.change());
        let mut made = 0;
        let directory = make_parents(root, directory, &missing, &mut made);
        let created = directory.and_then(|directory| {
            // O_EXCL follows no link and opens no existing file.
            let flags =
                mode.flags() | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            retry(|| openat(&directory, name, flags, Mode::from_raw_mode(0o666)))
        });
        self.quota.give_back_entries(wanted - made - u64::from(created.is_ok()));
        pending.end(created.is_ok());
        match created {
            Err(Errno::EXIST) => Ok(None),
            created => created.map(Some).map_err(|errno| beneath(errno, written)),
        }
    }

    /// Where a new entry would be created; checks that every directory to be created for it is
    /// allowed.
    pub(super) fn parent<'a, 'p>(
        &self,
        located: &LocatedPath<'_>,
        root: &Root<'a>,
        relative: &'p [u8],
        written: &[u8],
    ) -> Result<ParentDir<'a, 'p>, FileError> {
        let (parent, name) = split(relative);
        let parents: Vec<&[u8]> =
            parent.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
        let (directory, depth) = match root.directory(parent) {
            Ok(directory) => (directory, parents.len()),
            Err(Errno::NOENT) => {
                deepest(root, &parents).map_err(|errno| beneath(errno, written))?
            }
            Err(errno) => return Err(beneath(errno, written)),
        };
        for end in depth..parents.len() {
            let made = parents[..=end]
                .iter()
                .try_fold(located.mount.path.clone(), |path, name| path.join(name));
            if made.ok().and_then(|path| self.policy.access(&path)) != Some(Access::Write) {
                return Err(not_allowed(written));
            }
        }
        Ok(ParentDir { directory, missing: parents[depth..].to_vec(), name })
    }
}

/// Sets when a file was last modified; `None` for now, which is also when it was last read.
fn set_modified(file: &OwnedFd, time: Option<Timestamp>) -> rustix::io::Result<()> {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = match time {
        None => {
            Timestamps { last_access: special(UTIME_NOW), last_modification: special(UTIME_NOW) }
        }
        Some(Timestamp { seconds, nanoseconds }) => Timestamps {
            last_access: special(UTIME_OMIT),
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
        },
    };
    retry(|| futimens(file, &times))
}

/// Where a new entry is created.
#[derive(Debug)]
pub(super) struct ParentDir<'a, 'p> {
    /// The deepest parent directory that exists.
    pub directory: Directory<'a>,
    /// The missing directories below it.
    pub missing: Vec<&'p [u8]>,
    /// The entry's name in the last of them.
    pub name: &'p [u8],
}

/// Creates directories, counts those created, and returns the last one.
pub(super) fn make_parents<'a>(
    root: &Root<'a>,
    mut directory: Directory<'a>,
    missing: &[&[u8]],
    made: &mut u64,
) -> rustix::io::Result<Directory<'a>> {
    for &name in missing {
        match retry(|| mkdirat(&directory, name, Mode::from_raw_mode(0o777))) {
            Ok(()) => *made += 1,
            // Created by someone else meanwhile; the open below checks whether it is a directory.
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let next = root.child(directory.as_fd(), name, OFlags::PATH | OFlags::DIRECTORY)?;
        directory = Directory::Inside(next);
    }
    Ok(directory)
}

/// The deepest of these directories that exists, and how many of them lead to it.
fn deepest<'a>(root: &Root<'a>, parents: &[&[u8]]) -> rustix::io::Result<(Directory<'a>, usize)> {
    let mut directory = Directory::Root(root.fd);
    for (depth, name) in parents.iter().enumerate() {
        match root.child(directory.as_fd(), name, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(next) => directory = Directory::Inside(next),
            Err(Errno::NOENT) => return Ok((directory, depth)),
            Err(errno) => return Err(errno),
        }
    }
    Ok((directory, parents.len()))
}

/// Refuses a path that is written as a directory's, and the root of a mount.
pub(super) fn expect_file(
    located: &LocatedPath<'_>,
    absent: Absent,
    written: &[u8],
) -> Result<(), FileError> {
    match &located.target {
        MountTarget::Beneath(root, relative) if located.wants_directory || relative.is_empty() => {
            Err(no_file(root, relative, absent, written))
        }
        MountTarget::File if located.wants_directory => {
            Err(FileError::system(Errno::NOTDIR, written))
        }
        _ => Ok(()),
    }
}

/// Why `a/`, or the root, cannot be opened as a file; if nothing exists there, no file can be
/// created.
fn no_file(root: &Root<'_>, relative: &[u8], absent: Absent, written: &[u8]) -> FileError {
    match root.directory(relative) {
        Ok(_) => FileError::system(Errno::ISDIR, written),
        Err(Errno::NOENT) if absent == Absent::Accept => FileError::system(Errno::ISDIR, written),
        Err(errno) => beneath(errno, written),
    }
}

/// Improves the error of a failed open. A socket, a FIFO without a reader or a device whose driver
/// or control group refuses give unclear error numbers, so look up the type, only to name it.
pub(super) fn explain(errno: Errno, located: &LocatedPath<'_>, written: &[u8]) -> FileError {
    let unclear = matches!(
        errno,
        Errno::NXIO | Errno::NODEV | Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP
    );
    if unclear
        && let Ok(fd) = located.open(OFlags::PATH)
        && let Ok(stat) = fstat(&fd)
        && !matches!(
            FileType::from_raw_mode(stat.st_mode),
            FileType::RegularFile | FileType::Directory
        )
    {
        return special(written);
    }
    beneath(errno, written)
}
