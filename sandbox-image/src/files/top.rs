//! What every walk of a tree has: the directory where it begins, and what it may meet below that.

use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, OFlags, Stat, statat};
use rustix::io::Errno;
use sandbox_protocol::message::{Cut, CutBy};
use sandbox_protocol::path::join_written;

use super::error::{FileError, beneath};
use super::mounts::LocatedPath;
use super::watch::Watch;
use sandbox_dirfd::{Root, retry};

/// The directory where a walk begins. What is below it is named relative to it; itself is empty.
pub(super) struct Top<'a> {
    pub root: &'a Root<'a>,
    /// Its path beneath the mount.
    pub relative: &'a [u8],
    /// How long its path is.
    length: usize,
    written: &'a [u8],
    pub watch: &'a Watch,
    /// Whether directories below that may not be read are left out.
    leaves_out_unreadable: bool,
    /// What the walk does not have.
    pub cut: Option<Cut>,
}

impl<'a> Top<'a> {
    pub fn new(
        located: &'a LocatedPath<'a>,
        (written, watch): (&'a [u8], &'a Watch),
        leaves_out_unreadable: bool,
    ) -> Result<Self, FileError> {
        let (root, relative) = located.beneath(written)?;
        let length = located.path.as_bytes().len();
        Ok(Self { root, relative, length, written, watch, leaves_out_unreadable, cut: None })
    }

    /// Opens a directory; `None` if there is nothing to read.
    pub fn open(&mut self, below: &[u8]) -> Result<Option<OwnedFd>, FileError> {
        let is_top = below.is_empty();
        let relative = join_written(self.relative, below);
        match self.root.open(&relative, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => Ok(Some(directory)),
            Err(errno) if self.is_left_out(errno, below) => Ok(None),
            // It was a directory a moment ago and no longer is: it has no entries.
            Err(Errno::NOTDIR | Errno::LOOP) if !is_top => Ok(None),
            // Another file system, which no operation enters.
            Err(Errno::XDEV) if !is_top => {
                Cut::add(&mut self.cut, CutBy::Mount, below);
                Ok(None)
            }
            Err(errno) => Err(self.failed(errno, below)),
        }
    }

    /// The end of reading a directory, which may have been removed meanwhile.
    pub fn read(&self, read: rustix::io::Result<()>, below: &[u8]) -> Result<(), FileError> {
        match read {
            Err(errno) if self.is_left_out(errno, below) => Ok(()),
            read => read.map_err(|errno| self.failed(errno, below)),
        }
    }

    /// What an entry of a directory is; `None` if it was removed meanwhile, or no path leads to it.
    pub fn stat(
        &self,
        directory: &OwnedFd,
        below: &[u8],
        name: &[u8],
    ) -> Result<Option<Stat>, FileError> {
        match retry(|| statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(stat) => Ok(Some(stat)),
            Err(errno) if errno == Errno::NOENT || self.is_left_out(errno, below) => Ok(None),
            Err(errno) => {
                let path = join_written(&join_written(self.written, below), name);
                Err(FileError::system(errno, &path))
            }
        }
    }

    pub fn failed(&self, errno: Errno, below: &[u8]) -> FileError {
        beneath(errno, &join_written(self.written, below))
    }

    /// The bytes before the name of an entry in its path.
    pub fn before_name(&self, below: &[u8]) -> usize {
        self.length + 1 + below.len() + usize::from(!below.is_empty())
    }

    fn is_left_out(&self, errno: Errno, below: &[u8]) -> bool {
        let is_unreadable = errno == Errno::ACCESS && self.leaves_out_unreadable;
        !below.is_empty() && (errno == Errno::NOENT || is_unreadable)
    }
}

/// The first names in order, as many as are wanted.
pub(super) struct First {
    names: BinaryHeap<Vec<u8>>,
    most: usize,
}

impl First {
    pub fn new(most: usize) -> Self {
        Self { names: BinaryHeap::new(), most }
    }

    pub fn add(&mut self, name: &[u8]) {
        if self.names.len() < self.most {
            self.names.push(name.to_vec());
        } else if let Some(mut last) = self.names.peek_mut()
            && name < last.as_slice()
        {
            *last = name.to_vec();
        }
    }

    pub fn in_order(self) -> Vec<Vec<u8>> {
        self.names.into_sorted_vec()
    }
}
