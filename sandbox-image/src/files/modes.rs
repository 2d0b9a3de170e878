//! Permissions and links as such: changing the ones, creating and reading the others.

use rustix::fs::{FileType, Mode, fchmod, readlinkat, symlinkat};
use rustix::io::Errno;
use sandbox_dirfd::retry;
use sandbox_protocol::message::{
    Chmod, ChmodReply, EntryKind, List, ReadLinkReply, Symlink, SymlinkReply,
};
use sandbox_protocol::path::{MAX_PATH_BYTES, join_written};
use sandbox_protocol::{ErrorKind, WireString};

use super::access::Files;
use super::entries::entry;
use super::error::{FileError, beneath};
use super::follow::LastLink;
use super::list::DEPTH_OF_PATHS;
use super::mounts::MountTarget;
use super::watch::Watch;

/// The permissions that a request gives: set-id and sticky bits are refused.
pub(super) fn mode_of(permissions: u32, written: &[u8]) -> Result<Mode, FileError> {
    if permissions & !0o777 != 0 {
        let reason = format!("{permissions:#o} has other bits than the nine of permissions");
        return Err(FileError::invalid(reason, written));
    }
    Ok(Mode::from_raw_mode(permissions))
}

impl Files {
    /// Sets the permissions of a file or a directory, or of all that is in it; returns how many. The
    /// inner ones come first, so that a directory that is closed stays reachable until then.
    ///
    /// # Errors
    ///
    /// [`FileError`]; the permissions of a part may have been set.
    pub fn chmod(&self, request: &Chmod, watch: &Watch) -> Result<ChmodReply, FileError> {
        let written = request.path.as_bytes();
        let mode = mode_of(request.permissions, written)?;
        let located = self.locate_to_write(written, LastLink::Follow)?;
        match &located.target {
            MountTarget::Beneath(_, relative) if !relative.is_empty() => {}
            _ => return Err(FileError::mount_root(written)),
        }
        let (top, kind) = self.open_existing(&located, written)?;
        let mut below = Vec::new();
        if request.recursive && kind == FileType::Directory {
            let every = List { recursive: true, ..List::new(written) };
            let end = self.walk(&every, DEPTH_OF_PATHS, watch, |entry| {
                if matches!(entry.kind, EntryKind::File | EntryKind::Directory) {
                    below.push(entry.name);
                }
                Ok(())
            })?;
            if let Some(cut) = end.cut {
                let at = cut.at.to_string_lossy();
                let reason = format!("it has more than can be changed at once: '{at}' is left out");
                return Err(FileError::rule(ErrorKind::TooLarge, reason, written));
            }
        }
        let set = |file, written: &[u8]| {
            retry(|| fchmod(&file, mode)).map_err(|errno| FileError::system(errno, written))
        };
        let entries = below.len() as u64 + 1;
        for path in below.into_iter().rev() {
            watch.check()?;
            let written = join_written(written, path.as_bytes());
            let located = self.locate_to_write(&written, LastLink::Keep)?;
            set(self.open_existing(&located, &written)?.0, &written)?;
        }
        set(top, written)?;
        Ok(ChmodReply { path: (&located.path).into(), entries })
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    ///
    /// [`FileError`], and nothing has changed.
    pub fn symlink(&self, request: &Symlink) -> Result<SymlinkReply, FileError> {
        let (written, target) = (request.path.as_bytes(), request.target.as_bytes());
        self.expect_following(written)?;
        if target.is_empty() || target.contains(&0) || target.len() > MAX_PATH_BYTES {
            let reason = "the target is empty, too long, or has a NUL byte";
            return Err(FileError::rule(ErrorKind::InvalidPath, reason, written));
        }
        let located = self.locate_to_write(written, LastLink::Keep)?;
        if located.wants_directory {
            return Err(FileError::system(Errno::NOTDIR, written));
        }
        let fail = |errno| beneath(errno, written);
        let entry = entry(&located, written)?.ok_or_else(|| fail(Errno::EXIST))?;
        self.quota.take_entries(located.mount.fd(), 1)?;
        let made = retry(|| symlinkat(target, &entry.directory, entry.name));
        if let Err(errno) = made {
            self.quota.give_back_entries(1);
            return Err(fail(errno));
        }
        Ok(SymlinkReply { path: (&located.path).into() })
    }

    /// What a symbolic link points to.
    ///
    /// # Errors
    ///
    /// [`FileError`]; `invalid_request` for anything but a link.
    pub fn read_link(&self, written: &[u8]) -> Result<ReadLinkReply, FileError> {
        self.expect_following(written)?;
        let located = self.locate_to_read(written, LastLink::Keep)?;
        let none = || FileError::invalid("not a symbolic link", written);
        if !matches!(located.target, MountTarget::Beneath(..)) {
            return Err(none());
        }
        let entry = entry(&located, written)?.ok_or_else(none)?;
        let target = match retry(|| readlinkat(&entry.directory, entry.name, Vec::new())) {
            Ok(target) => WireString::new(target.as_bytes()),
            Err(Errno::INVAL) => return Err(none()),
            Err(errno) => return Err(FileError::system(errno, written)),
        };
        Ok(ReadLinkReply { path: (&located.path).into(), target })
    }
}
