//! Parts of a file that share its descriptor.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;

use crate::tar::{Source, SparseExtent};

/// Buffer size for reading a layer from the file.
const PIECE: usize = 128 << 10;

/// A part of a file, which is read from its beginning on.
#[derive(Debug, Clone)]
pub(super) struct Section {
    file: Rc<File>,
    at: u64,
    end: u64,
}

impl Section {
    pub fn whole(file: File) -> io::Result<Self> {
        Ok(Self { at: 0, end: file.metadata()?.len(), file: Rc::new(file) })
    }

    /// A part of it, by its place in the file.
    pub fn part(&self, SparseExtent { offset, length }: SparseExtent) -> Self {
        Self { file: self.file.clone(), at: offset, end: offset + length }
    }

    /// Where in the file it begins.
    pub const fn position(&self) -> u64 {
        self.at
    }

    pub const fn length(&self) -> u64 {
        self.end - self.at
    }

    pub fn buffered(self) -> BufReader<Self> {
        BufReader::with_capacity(PIECE, self)
    }
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.length()).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Source for Section {
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        if bytes > self.length() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += bytes;
        Ok(())
    }
}
