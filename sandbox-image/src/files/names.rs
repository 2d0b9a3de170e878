//! Metadata of paths, and creating directories.

use std::os::fd::AsFd as _;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, StatxFlags, fstat, mkdirat, statat, statx,
};
use rustix::io::Errno;
use sandbox_protocol::message::{EntryDetails, EntryKind, Mkdir, MkdirReply, StatReply, Timestamp};
use sandbox_protocol::path::GuestPath;

use super::access::Files;
use super::error::{FileError, beneath};
use super::follow::LastLink;
use super::mounts::{LocatedPath, MountTarget};
use super::open::{ParentDir, make_parents};
use sandbox_dirfd::{retry, split};

/// How often a mkdir is retried because the name appeared or vanished in between.
const RACES: usize = 8;

pub(super) const fn kind_of(file_type: FileType) -> EntryKind {
    match file_type {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}

pub(super) fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn timestamp(seconds: i64, nanoseconds: impl TryInto<u32>) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanoseconds: nanoseconds.try_into().ok()? })
}

pub(super) fn modified(stat: &Stat) -> Option<Timestamp> {
    timestamp(stat.st_mtime, stat.st_mtime_nsec)
}

impl Files {
    /// The metadata of a path; of a symbolic link itself.
    ///
    /// # Errors
    ///
    /// [`FileError`].
    pub fn stat(&self, written: &[u8]) -> Result<StatReply, FileError> {
        self.stat_at(written, LastLink::Keep)
    }

    /// The same, and perhaps of what a link points to.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn stat_at(&self, written: &[u8], last: LastLink) -> Result<StatReply, FileError> {
        let (located, stat, created) = self.look(written, last)?;
        let EntryDetails { permissions, uid, gid, owner, group, target, metadata } =
            self.details_of(&located, &stat);
        Ok(StatReply {
            path: (&located.path).into(),
            kind: kind_of(FileType::from_raw_mode(stat.st_mode)),
            size: size_of(&stat),
            permissions,
            uid,
            gid,
            modified: modified(&stat),
            accessed: timestamp(stat.st_atime, stat.st_atime_nsec),
            created,
            owner,
            group,
            target,
            metadata,
        })
    }

    /// What the kernel says of a path, and when it was created.
    pub(super) fn look(
        &self,
        written: &[u8],
        last: LastLink,
    ) -> Result<(LocatedPath<'_>, Stat, Option<Timestamp>), FileError> {
        let located = self.locate_to_read(written, last)?;
        let (stat, created) = metadata(&located, written)?;
        located.expect_directory(FileType::from_raw_mode(stat.st_mode), written)?;
        Ok((located, stat, created))
    }

    /// The type of a path, or `None` if nothing exists.
    ///
    /// # Errors
    ///
    /// [`FileError`] if it cannot be determined, or the path is refused.
    pub fn exists(&self, written: &[u8]) -> Result<(GuestPath, Option<EntryKind>), FileError> {
        let located = match self.locate_to_read(written, LastLink::Keep) {
            // No input has this name, or the one that has it is a file.
            Err(error) if error.is_absence() => {
                let path = self.mounts.meant(written).ok_or(error)?;
                return Ok((path, None));
            }
            located => located?,
        };
        match metadata(&located, written) {
            Ok((stat, _)) => {
                let kind = FileType::from_raw_mode(stat.st_mode);
                located.expect_directory(kind, written)?;
                Ok((located.path, Some(kind_of(kind))))
            }
            Err(error) if error.is_absence() => Ok((located.path, None)),
            Err(error) => Err(error),
        }
    }

    /// Creates a directory; returns false if it exists.
    ///
    /// # Errors
    ///
    /// [`FileError`]; nothing has changed, except that parents may have been created.
    pub fn mkdir(&self, request: &Mkdir) -> Result<MkdirReply, FileError> {
        self.mkdir_with(request, Mode::from_raw_mode(0o777))
    }

    /// The same with a mode, as far as the umask leaves it.
    ///
    /// # Errors
    ///
    /// The same.
    pub(super) fn mkdir_with(&self, request: &Mkdir, mode: Mode) -> Result<MkdirReply, FileError> {
        let written = request.path.as_bytes();
        let located = self.locate_to_write(written, LastLink::Follow)?;
        let reply = |created| MkdirReply { path: (&located.path).into(), created };
        let MountTarget::Beneath(root, relative) = &located.target else {
            return Err(FileError::system(Errno::EXIST, written));
        };
        for _ in 0..RACES {
            match root.open(relative, OFlags::PATH | OFlags::DIRECTORY) {
                Ok(_) => return Ok(reply(false)),
                Err(Errno::NOENT) => {}
                Err(Errno::NOTDIR)
                    if !located.wants_directory && metadata(&located, written).is_ok() =>
                {
                    return Err(FileError::system(Errno::EXIST, written));
                }
                Err(errno) => return Err(beneath(errno, written)),
            }
            let ParentDir { directory, missing, name } =
                self.parent(&located, root, relative, written)?;
            if !request.parents && !missing.is_empty() {
                return Err(FileError::system(Errno::NOENT, written));
            }
            let wanted = missing.len() as u64 + 1;
            self.quota.take_entries(located.mount.fd(), wanted)?;
            let mut made = 0;
            let result = make_parents(root, directory, &missing, &mut made)
                .and_then(|directory| retry(|| mkdirat(&directory, name, mode)));
            made += u64::from(result.is_ok());
            self.quota.give_back_entries(wanted - made);
            match result {
                Ok(()) => return Ok(reply(true)),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(beneath(errno, written)),
            }
        }
        Err(FileError::system(Errno::AGAIN, written))
    }
}

/// The kernel's metadata of a path, and its creation time.
fn metadata(
    located: &LocatedPath<'_>,
    written: &[u8],
) -> Result<(Stat, Option<Timestamp>), FileError> {
    let fail = |errno| beneath(errno, written);
    let (stat, created) = match &located.target {
        MountTarget::File => {
            let fd = located.mount.open_file(OFlags::PATH).map_err(fail)?;
            (fstat(&fd).map_err(fail)?, created(&fd, b""))
        }
        MountTarget::Beneath(root, relative) if relative.is_empty() => {
            (fstat(root.fd).map_err(fail)?, created(root.fd, b""))
        }
        MountTarget::Beneath(root, relative) => {
            let (parent, name) = split(relative);
            let directory = root.directory(parent).map_err(fail)?;
            let stat = retry(|| statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW));
            (stat.map_err(fail)?, created(directory.as_fd(), name))
        }
    };
    Ok((stat, created))
}

/// When a file was created, if the file system records that and the kernel reports it.
fn created(directory: impl std::os::fd::AsFd, name: &[u8]) -> Option<Timestamp> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let found = retry(|| statx(&directory, name, flags, StatxFlags::BTIME)).ok()?;
    // gVisor claims to know it, and gives 0.
    let is_given = (found.stx_btime.tv_sec, found.stx_btime.tv_nsec) != (0, 0);
    let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0 && is_given;
    is_known.then(|| timestamp(found.stx_btime.tv_sec, found.stx_btime.tv_nsec))?
}
