//! The content of files that may have holes. A large hole costs a guest nothing to create, so
//! reading one must be cheap too; the bytes of holes that were skipped are counted.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{SeekFrom, Stat, fstat, seek};
use rustix::io::{Errno, Result};

use crate::disk_usage::allocated;

/// The next range of a file that has data, at or after `at` and before `size`. On a filesystem that
/// does not report holes, everything is data.
pub fn next_data(file: BorrowedFd<'_>, at: u64, size: u64) -> Result<Option<Range<u64>>> {
    if at >= size {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        // A hole up to the end.
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(at..size)),
        Err(errno) => return Err(errno),
    };
    // A file that changes meanwhile may give anything: it may have grown, too.
    if start >= size {
        return Ok(None);
    }
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(size).clamp(start + 1, size);
    Ok(Some(start..end))
}

/// Reads a file from its beginning, and changes its position. Holes become zeros without being
/// read.
#[derive(Debug)]
pub struct SparseReader<'a> {
    file: &'a File,
    at: u64,
    /// The size when it was opened. What was appended since is read as data.
    size: u64,
    /// The data that was found last, or the empty end of the file.
    data: Range<u64>,
}

impl<'a> SparseReader<'a> {
    /// At the beginning of a file.
    ///
    /// # Errors
    ///
    /// If its metadata cannot be read.
    pub fn new(file: &'a File) -> io::Result<Self> {
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        Ok(Self { file, at: 0, size, data: 0..0 })
    }

    fn read_at_most(&mut self, buffer: &mut [u8], end: u64) -> io::Result<usize> {
        let most = usize::try_from(end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Read for SparseReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.size {
            return self.read_at_most(buffer, u64::MAX);
        }
        if self.at >= self.data.end {
            let found = next_data(self.file.as_fd(), self.at, self.size)?;
            self.data = found.unwrap_or(self.size..self.size);
        }
        if self.at >= self.data.start {
            return self.read_at_most(buffer, self.data.end);
        }
        let hole = usize::try_from(self.data.start - self.at).unwrap_or(usize::MAX);
        let count = hole.min(buffer.len());
        buffer[..count].fill(0);
        self.at += count as u64;
        Ok(count)
    }
}

/// How many bytes of holes may still be hashed: a digest takes its time for them, too.
#[derive(Debug)]
pub struct HoleAllowance(AtomicU64);

impl HoleAllowance {
    /// The bytes of holes that are hashed for one result: seconds.
    pub const BYTES: u64 = 4 << 30;

    /// So many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Takes what a file has that is on no disk. `false` if that is more than what is left.
    pub fn take(&self, file: &Stat) -> bool {
        let size = u64::try_from(file.st_size).unwrap_or(0);
        let take = |left: u64| left.checked_sub(size.saturating_sub(allocated(file)));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

impl Default for HoleAllowance {
    fn default() -> Self {
        Self::new(Self::BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: u64, data: &[(u64, &[u8])]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        for (at, bytes) in data {
            file.write_all_at(bytes, *at).unwrap();
        }
        file
    }

    #[test]
    fn content_is_the_same_as_without_regard_to_holes() {
        let block = [7; 5000];
        type Data<'a> = &'a [(u64, &'a [u8])];
        let cases: [(u64, Data<'_>); 6] = [
            (0, &[]),
            (3, &[(0, b"abc")]),
            (300_000, &[]),
            (300_000, &[(100_000, &block)]),
            (300_000, &[(0, &block), (200_000, &block)]),
            (300_000, &[(299_999, b"x")]),
        ];
        for (size, data) in cases {
            let file = file(size, data);
            let mut plain = vec![0; usize::try_from(size).unwrap()];
            file.read_exact_at(&mut plain, 0).unwrap();
            let mut content = Vec::new();
            SparseReader::new(&file).unwrap().read_to_end(&mut content).unwrap();
            assert!(content == plain, "{size} {data:?}");
        }
    }

    #[test]
    fn bytes_appended_meanwhile_are_read() {
        let file = file(100_000, &[]);
        let mut reader = SparseReader::new(&file).unwrap();
        file.write_all_at(b"more", 100_000).unwrap();
        let mut content = Vec::new();
        reader.read_to_end(&mut content).unwrap();
        assert_eq!(content[99_999..], *b"\0more");
    }

    #[test]
    fn data_beyond_the_known_size_is_ignored() {
        let file = file(1 << 20, &[]);
        let mut reader = SparseReader::new(&file).unwrap();
        file.write_all_at(b"more", 1 << 21).unwrap();
        assert_eq!(next_data(file.as_fd(), 0, 1 << 20).unwrap(), None);
        let mut content = Vec::new();
        reader.read_to_end(&mut content).unwrap();
        assert_eq!((content.len(), &content[1 << 21..]), ((1 << 21) + 4, &b"more"[..]));
    }

    #[test]
    fn a_hole_is_not_read() {
        // No test would end if it were.
        let file = file(1 << 42, &[(1 << 41, b"x")]);
        let range = next_data(file.as_fd(), 0, 1 << 42).unwrap().unwrap();
        assert!(range.contains(&(1 << 41)) && range.end - range.start < 1 << 20, "{range:?}");
        assert_eq!(next_data(file.as_fd(), range.end, 1 << 42).unwrap(), None);
    }

    #[test]
    fn holes_are_taken_until_none_are_left() {
        let allowance = HoleAllowance::default();
        let hole = |size| fstat(file(size, &[])).unwrap();
        assert!(allowance.take(&hole(HoleAllowance::BYTES - 5000)));
        assert!(!allowance.take(&hole(6000)));
        assert!(allowance.take(&hole(5000)));
        assert!(!allowance.take(&hole(1)));
        assert!(allowance.take(&fstat(file(4096, &[(0, &[1; 4096])])).unwrap()));
    }
}
