//! The directories of paths that come in order: each is opened once, and held while paths need it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fchmod, mkdirat};
use rustix::io::{Errno, Result};
use sandbox_dirfd::{open_child, split};

/// What to do about a directory that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingDir {
    Fail,
    Create,
}

/// The open directories between a root and the last path.
pub struct Cursor<'a> {
    root: BorrowedFd<'a>,
    missing: MissingDir,
    open: Vec<(Vec<u8>, OwnedFd)>,
}

impl<'a> Cursor<'a> {
    pub const fn new(root: BorrowedFd<'a>, missing: MissingDir) -> Self {
        Self { root, missing, open: Vec::new() }
    }

    pub const fn root(&self) -> BorrowedFd<'a> {
        self.root
    }

    /// The directory of `path`, and its name there. It follows no link and enters no mount.
    pub fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(BorrowedFd<'_>, &'p [u8])> {
        let (folders, name) = split(path);
        let mut folders =
            folders.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
        let mut kept = 0;
        while let (Some((known, _)), Some(folder)) = (self.open.get(kept), folders.peek())
            && known == folder
        {
            kept += 1;
            folders.next();
        }
        self.open.truncate(kept);
        for folder in folders {
            let opened = self.enter(folder)?;
            self.open.push((folder.to_owned(), opened));
        }
        Ok((self.last(), name))
    }

    fn last(&self) -> BorrowedFd<'_> {
        self.open.last().map_or(self.root, |(_, fd)| fd.as_fd())
    }

    fn enter(&self, folder: &[u8]) -> Result<OwnedFd> {
        let parent = self.last();
        let is_new = self.missing == MissingDir::Create
            && match mkdirat(parent, folder, Mode::RWXU) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(errno),
            };
        let opened = open_child(parent, folder, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if is_new {
            // Independent of the umask.
            fchmod(&opened, Mode::from_raw_mode(0o755))?;
        }
        Ok(opened)
    }
}
