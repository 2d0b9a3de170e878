//! The agent's executable: embedded in this library, or read from a file.

use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write as _};
use std::path::Path;
use std::sync::Arc;

use lz4::block::decompress_to_buffer;
use sha2::{Digest, Sha256};

use crate::config::AgentSource;
use crate::error::AgentError;

include!(concat!(env!("OUT_DIR"), "/programs.rs"));

/// The bytes of a program.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    /// As they are.
    Plain(&'a [u8]),
    /// As the build script packed them.
    Packed {
        /// Blocks of LZ4, each after its length.
        packed: &'a [u8],
        /// How many bytes they are.
        size: usize,
    },
}

impl<'a> Content<'a> {
    /// How many bytes they are.
    pub const fn size(self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::Packed { size, .. } => size,
        }
    }

    /// Reads them. What is packed is in memory in parts only.
    pub fn open(self) -> Box<dyn BufRead + 'a> {
        match self {
            Self::Plain(bytes) => Box::new(bytes),
            Self::Packed { packed, .. } => Box::new(Unpack::new(packed)),
        }
    }

    /// Writes them to a file.
    pub(crate) fn write_to(self, file: &mut File) -> io::Result<()> {
        let mut content = self.open();
        loop {
            let part = content.fill_buf()?;
            let length = part.len();
            if length == 0 {
                return Ok(());
            }
            file.write_all(part)?;
            content.consume(length);
        }
    }

    /// All of them in memory.
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size());
        self.open().read_to_end(&mut bytes).expect("it is what the build script packed");
        bytes
    }
}

/// Reads what the build script packed. In memory is one block of it.
struct Unpack<'a> {
    packed: &'a [u8],
    block: Vec<u8>,
    /// What of the block was not read.
    start: usize,
    end: usize,
}

impl<'a> Unpack<'a> {
    /// Begins with the first block.
    fn new(packed: &'a [u8]) -> Self {
        Self { packed, block: vec![0; BLOCK_BYTES], start: 0, end: 0 }
    }
}

impl BufRead for Unpack<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end
            && let Some((length, rest)) = self.packed.split_first_chunk()
        {
            let length = u32::from_le_bytes(*length) as usize;
            let (block, rest) =
                rest.split_at_checked(length).ok_or(io::ErrorKind::UnexpectedEof)?;
            self.end =
                decompress_to_buffer(block, i32::try_from(BLOCK_BYTES).ok(), &mut self.block)?;
            self.start = 0;
            self.packed = rest;
        }
        Ok(&self.block[self.start..self.end])
    }

    fn consume(&mut self, length: usize) {
        self.start = (self.start + length).min(self.end);
    }
}

impl Read for Unpack<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(into)?;
        self.consume(length);
        Ok(length)
    }
}

/// The agent to use. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Agent {
    /// The agent that was built with this crate.
    Embedded,
    /// An agent from a file.
    File {
        /// The executable.
        bytes: Arc<[u8]>,
        /// Its digest, in hex.
        sha256: Arc<str>,
    },
}

impl Agent {
    /// Loads the agent to use.
    ///
    /// # Errors
    ///
    /// [`AgentError`] if the file cannot be read, or is not an executable.
    pub fn open(source: &AgentSource) -> Result<Self, AgentError> {
        match source {
            AgentSource::Embedded => Ok(Self::Embedded),
            AgentSource::File(path) => {
                Self::read(path).map_err(|source| AgentError { path: path.clone(), source })
            }
        }
    }

    fn read(path: &Path) -> io::Result<Self> {
        let bytes = fs::read(path)?;
        if !bytes.starts_with(b"\x7fELF") {
            return Err(io::Error::other("it is not a program"));
        }
        let sha256 = sandbox_dirfd::hex(&Sha256::digest(&bytes)).into();
        Ok(Self::File { bytes: bytes.into(), sha256 })
    }

    /// The executable.
    pub fn content(&self) -> Content<'_> {
        match self {
            Self::Embedded => AGENT,
            Self::File { bytes, .. } => Content::Plain(bytes),
        }
    }

    /// Its digest, in hex.
    pub fn sha256(&self) -> &str {
        match self {
            Self::Embedded => AGENT_SHA256,
            Self::File { sha256, .. } => sha256,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_has_the_size_and_the_digest_of_the_program() {
        for (content, sha256) in [(AGENT, AGENT_SHA256), (HELPER, HELPER_SHA256)] {
            let bytes = content.to_vec();
            assert!(bytes.starts_with(b"\x7fELF"));
            assert_eq!(bytes.len(), content.size());
            assert_eq!(sandbox_dirfd::hex(&Sha256::digest(&bytes)), sha256);
            let Content::Packed { packed, .. } = content else { panic!("it is not packed") };
            assert!(packed.len() * 3 < bytes.len() * 2, "{} of {}", packed.len(), bytes.len());
        }
    }
}
