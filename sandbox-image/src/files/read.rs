//! Reading a file in full, or a range of it.

use std::os::fd::OwnedFd;

use rustix::fs::fstat;
use sandbox_protocol::limits::MAX_CHUNK_BYTES;
use sandbox_protocol::path::GuestPath;

use super::access::Files;
use super::error::FileError;
use super::open_mode::OpenMode;
use super::watch::Watch;
use sandbox_dirfd::{FileStamp, retry};

/// A file that is open for reading, and the range to read.
pub struct Reading {
    fd: OwnedFd,
    /// The file.
    pub path: GuestPath,
    /// The size of the whole file when it was opened.
    pub size: u64,
    written: Vec<u8>,
    offset: u64,
    left: u64,
}

impl Files {
    /// Opens a file to read `limit` bytes from `offset`, or all.
    ///
    /// # Errors
    ///
    /// [`FileError`]; `too_large` if the range has more than `filesystem.max_file_size`.
    pub fn read(
        &self,
        written: &[u8],
        offset: u64,
        limit: Option<u64>,
    ) -> Result<Reading, FileError> {
        let file = self.open(written, OpenMode::Read)?;
        let left = file.size.saturating_sub(offset).min(limit.unwrap_or(u64::MAX));
        self.refuse_size(left, written)?;
        let written = written.to_vec();
        Ok(Reading { fd: file.fd, path: file.path, size: file.size, written, offset, left })
    }
}

impl Reading {
    /// How many bytes of the range are left.
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// The next piece, at most [`MAX_CHUNK_BYTES`]; empty at the end of the range, or of the file
    /// if it has shrunk.
    ///
    /// # Errors
    ///
    /// OS errors, and the reasons that stop the operation.
    pub fn next(&mut self, watch: &Watch) -> Result<Vec<u8>, FileError> {
        watch.check()?;
        let length = MAX_CHUNK_BYTES.min(usize::try_from(self.left).unwrap_or(MAX_CHUNK_BYTES));
        let mut piece = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let at = self.offset + filled as u64;
            let read = retry(|| rustix::io::pread(&self.fd, &mut piece[filled..], at));
            match read.map_err(|errno| FileError::system(errno, &self.written))? {
                0 => break,
                count => filled += count,
            }
        }
        piece.truncate(filled);
        self.offset += filled as u64;
        self.left = if filled < length { 0 } else { self.left - filled as u64 };
        Ok(piece)
    }

    /// Changes if the file is changed, or its name refers to another file.
    ///
    /// # Errors
    ///
    /// OS errors.
    pub(super) fn version(&self) -> Result<FileStamp, FileError> {
        let stat = fstat(&self.fd).map_err(|errno| FileError::system(errno, &self.written))?;
        Ok(FileStamp::of(&stat))
    }

    /// Goes back to the beginning of the file, whose size is the one that was checked.
    pub(super) const fn rewind(&mut self) {
        self.offset = 0;
        self.left = self.size;
    }
}
