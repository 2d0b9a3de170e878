//! Streams of layers: decompressed, counted, and verified against their digests.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest as _, Sha256};

use crate::budget::Budget;
use crate::digest::Digest;
use crate::error::RootfsError;
use crate::section::Section;
use crate::tar::{Source, pass};

/// Size of a buffer.
const PIECE: usize = 64 << 10;

/// A compression format. It is detected from the content: names and media types are not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    pub fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, 8, ..] => Self::Gzip,
            // A frame, or a skippable frame.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// The decompressed content of a stream that may be compressed.
pub(super) enum Plain<B> {
    AsIs(B),
    Gzip(Box<MultiGzDecoder<B>>),
    Zstd(Box<Zstd<B>>),
}

impl<B: BufRead> Plain<B> {
    pub fn new(mut source: B) -> io::Result<Self> {
        Ok(match Compression::of(source.fill_buf()?) {
            Compression::None => Self::AsIs(source),
            Compression::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(source))),
            Compression::Zstd => Self::Zstd(Box::new(Zstd::new(source))),
        })
    }

    fn into_source(self) -> B {
        match self {
            Self::AsIs(source) => source,
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.source,
        }
    }
}

impl<B: BufRead> Read for Plain<B> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::AsIs(source) => source.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer),
        }
    }
}

/// Any number of Zstandard frames, one after the other.
pub(super) struct Zstd<B> {
    source: B,
    /// Its window is 128 MiB at most, which is all that `zstd` uses unless it is forced.
    decoder: FrameDecoder,
    is_in_frame: bool,
}

impl<B: BufRead> Zstd<B> {
    fn new(source: B) -> Self {
        Self { source, decoder: FrameDecoder::new(), is_in_frame: false }
    }
}

impl<B: BufRead> Read for Zstd<B> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let broken = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        while !buffer.is_empty() {
            if self.is_in_frame {
                if self.decoder.can_collect() > 0 {
                    return self.decoder.read(buffer);
                }
                self.is_in_frame = !self.decoder.is_finished();
                if self.is_in_frame {
                    let some = BlockDecodingStrategy::UptoBlocks(1);
                    self.decoder.decode_blocks(&mut self.source, some).map_err(broken)?;
                }
            } else if self.source.fill_buf()?.is_empty() {
                break;
            } else {
                match self.decoder.init(&mut self.source) {
                    Ok(()) => self.is_in_frame = true,
                    Err(FrameDecoderError::ReadFrameHeaderError(
                        ReadFrameHeaderError::SkipFrame { length, .. },
                    )) => pass(&mut self.source, length.into())?,
                    Err(error) => return Err(broken(error)),
                }
            }
        }
        Ok(0)
    }
}

/// Counts what is read against the budget.
pub(super) struct CountedReader<'budget, R> {
    inner: R,
    budget: &'budget Budget,
}

impl<'budget, R: Read> CountedReader<'budget, R> {
    pub fn new(inner: R, budget: &'budget Budget) -> Self {
        Self { inner, budget }
    }
}

impl<R: Read> Read for CountedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.budget.bytes(count as u64)?;
        Ok(count)
    }
}

/// Remembers the digest of what is read.
struct Hashed<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

/// A layer's tar.
pub(super) struct LayerStream<'budget> {
    plain: Hashed<CountedReader<'budget, Plain<BufReader<Hashed<Section>>>>>,
}

/// The digests of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digests {
    /// Of the content as stored in the archive.
    pub blob: Digest,
    /// Of the decompressed content.
    pub diff: Digest,
}

impl<'budget> LayerStream<'budget> {
    pub fn new(section: Section, budget: &'budget Budget) -> io::Result<Self> {
        let blob = Hashed { inner: section, hash: Sha256::new() };
        let plain = Plain::new(BufReader::with_capacity(PIECE, blob))?;
        Ok(Self { plain: Hashed { inner: CountedReader::new(plain, budget), hash: Sha256::new() } })
    }

    /// The digests of the whole stream, including what follows the tar's end.
    pub fn finish(mut self) -> Result<Digests, RootfsError> {
        io::copy(&mut self.plain, &mut io::sink())?;
        let mut blob = self.plain.inner.inner.into_source().into_inner();
        io::copy(&mut blob, &mut io::sink())?;
        Ok(Digests { blob: Digest::finish(blob.hash), diff: Digest::finish(self.plain.hash) })
    }
}

impl Read for LayerStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.plain.read(buffer)
    }
}

impl Source for LayerStream<'_> {}
