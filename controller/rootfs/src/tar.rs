//! Reads untrusted tar archives, one entry at a time, in bounded memory.
//!
//! Libraries read a header's extension completely, up to the length that it claims, and take the
//! map of a sparse file in the pax formats for content; hence this parser. It reads all formats
//! that images use: V7, ustar, pax, GNU with long names, and sparse files in all four notations.
//! Where formats are ambiguous, it follows Go's library, which the engines use.

use std::io;
use std::io::Read;
use std::ops::Range;

use crate::error::{RootfsError, TarProblem};

/// The unit of the format.
pub(super) const BLOCK: u64 = 512;
/// A long name, or the extended headers of one entry. Go's library has the same limit.
const MAX_EXTENSION: u64 = 1 << 20;
/// Pieces of a sparse file.
const MAX_EXTENTS: usize = 65_536;

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const TYPE: usize = 156;
const LINK: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..265;
const PREFIX: Range<usize> = 345..500;
const GNU_EXTENTS: Range<usize> = 386..482;
const GNU_IS_EXTENDED: usize = 482;
const GNU_REAL_SIZE: Range<usize> = 483..495;
/// Of a block that has nothing but more extents.
const MORE_EXTENTS: Range<usize> = 0..504;
const MORE_IS_EXTENDED: usize = 504;

/// What a tar is read from.
pub(super) trait Source: Read + Sized {
    /// Skips bytes.
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        pass(self, bytes)
    }
}

/// Skips the rest of a stream.
pub(super) fn pass(source: &mut impl Read, bytes: u64) -> io::Result<()> {
    let passed = io::copy(&mut source.take(bytes), &mut io::sink())?;
    if passed == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// An entry, as in the archive: untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Any bytes.
    pub path: Vec<u8>,
    pub kind: Kind,
    /// The target of a link; any bytes.
    pub link: Vec<u8>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds since 1970, and nanoseconds.
    pub mtime: (i64, u32),
    /// Of a file, holes included.
    pub size: u64,
    /// The extents of the file that have content, in ascending order; the rest is holes. Their
    /// content can be [read](Entries).
    pub extents: Vec<SparseExtent>,
}

/// A piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SparseExtent {
    pub offset: u64,
    pub length: u64,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    /// A device, or a FIFO.
    Special,
}

/// Extended headers, which precede the header of an entry.
#[derive(Debug, Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    gnu_path: Option<Vec<u8>>,
    gnu_link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    sparse: Option<PaxSparse>,
}

/// A sparse file in one of the pax notations.
#[derive(Debug, Default)]
struct PaxSparse {
    /// The real name; the one in the header is a placeholder.
    path: Option<Vec<u8>>,
    real_size: Option<u64>,
    /// In the first two notations; in the third one it precedes the content.
    map: Vec<u64>,
    map_is_content: bool,
}

/// The entries of a tar.
pub(super) struct Entries<S> {
    source: S,
    /// What is left of the current entry's content, and after it up to the next header.
    content: u64,
    padding: u64,
}

impl<S: Source> Entries<S> {
    pub fn new(source: S) -> Self {
        Self { source, content: 0, padding: 0 }
    }

    /// What is read from. Between [`next`](Self::next) and the first byte of content it stands
    /// where the content begins.
    pub fn source(&self) -> &S {
        &self.source
    }

    pub fn into_source(self) -> S {
        self.source
    }

    /// The next entry; `None` at the archive's end.
    pub fn next(&mut self) -> Result<Option<Entry>, RootfsError> {
        let mut extensions = Extensions::default();
        loop {
            self.finish_entry()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = number(&header[SIZE])?;
            match header[TYPE] {
                b'x' => {
                    let text = self.extension(size)?;
                    let Extensions { gnu_path, gnu_link, .. } = extensions;
                    extensions = Extensions { gnu_path, gnu_link, ..pax(&text)? };
                }
                // Global headers are ignored, as by the users of Go's library.
                b'g' => drop(self.extension(size)?),
                b'L' => extensions.gnu_path = Some(until_nul(&self.extension(size)?).to_owned()),
                b'K' => extensions.gnu_link = Some(until_nul(&self.extension(size)?).to_owned()),
                _ => return self.entry(&header, extensions).map(Some),
            }
        }
    }

    fn finish_entry(&mut self) -> Result<(), RootfsError> {
        let left = self.content.checked_add(self.padding).ok_or(TarProblem::Number)?;
        (self.content, self.padding) = (0, 0);
        Ok(self.source.skip(left)?)
    }

    /// The next block; `None` if the source ends before it.
    fn block(&mut self) -> Result<Option<[u8; BLOCK as usize]>, RootfsError> {
        let mut block = Vec::with_capacity(BLOCK as usize);
        self.source.by_ref().take(BLOCK).read_to_end(&mut block)?;
        if block.is_empty() {
            return Ok(None);
        }
        block.try_into().map(Some).map_err(|_| TarProblem::Truncated.into())
    }

    fn header(&mut self) -> Result<Option<[u8; BLOCK as usize]>, RootfsError> {
        let Some(block) = self.block()? else { return Ok(None) };
        if block == [0; BLOCK as usize] {
            // Two empty blocks mark the end; one at the end of the source is accepted too.
            return match self.block()? {
                None => Ok(None),
                Some(second) if second == [0; BLOCK as usize] => Ok(None),
                Some(_) => Err(TarProblem::Checksum.into()),
            };
        }
        let checksum = number(&block[CHECKSUM]).map_err(|_| TarProblem::Checksum)?;
        let without = |index: usize, byte: u8| if CHECKSUM.contains(&index) { b' ' } else { byte };
        let bytes = || block.iter().enumerate().map(|(index, &byte)| without(index, byte));
        let sum: u64 = bytes().map(u64::from).sum();
        // Old programs added signed bytes.
        let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
        if checksum != sum && i64::try_from(checksum) != Ok(signed) {
            return Err(TarProblem::Checksum.into());
        }
        Ok(Some(block))
    }

    fn begin_content(&mut self, size: u64) {
        self.content = size;
        self.padding = size.wrapping_neg() % BLOCK;
    }

    /// The content of an entry that describes the next one.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>, RootfsError> {
        if size > MAX_EXTENSION {
            return Err(TarProblem::ExtensionTooLong.into());
        }
        self.begin_content(size);
        let mut text = vec![0; usize::try_from(size).unwrap_or_default()];
        self.read_exact(&mut text)?;
        Ok(text)
    }

    fn entry(
        &mut self,
        header: &[u8; BLOCK as usize],
        extensions: Extensions,
    ) -> Result<Entry, RootfsError> {
        let is_gnu = header[MAGIC] == *b"ustar  \0";
        let mut path = until_nul(&header[NAME]).to_owned();
        if header[MAGIC].starts_with(b"ustar\0") && header[PREFIX.start] != 0 {
            path = [until_nul(&header[PREFIX]), b"/", &path].concat();
        }
        let path = extensions.gnu_path.or(extensions.path).unwrap_or(path);
        let link = extensions.gnu_link.or(extensions.link);
        let link = link.unwrap_or_else(|| until_nul(&header[LINK]).to_owned());
        let stored = extensions.size.map_or_else(|| number(&header[SIZE]), Ok)?;
        let kind = match header[TYPE] {
            // V7 has no type for directories.
            0 | b'0' if path.ends_with(b"/") && stored == 0 => Kind::Directory,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' | b'4' | b'6' => Kind::Special,
            b'5' => Kind::Directory,
            other => return Err(TarProblem::UnknownType(other).into()),
        };
        let id = |extended: Option<u64>, field: Range<usize>| match extended {
            Some(id) => Ok(id),
            None => number(&header[field]),
        };
        let owner = |id: u64| match u32::try_from(id) {
            // The last number means "no owner".
            Ok(id) if id < u32::MAX => Ok(id),
            _ => Err(TarProblem::Owner),
        };
        let mut entry = Entry {
            path,
            kind,
            link,
            mode: u32::try_from(number(&header[MODE])? & 0o7777).unwrap_or_default(),
            uid: owner(id(extensions.uid, UID)?)?,
            gid: owner(id(extensions.gid, GID)?)?,
            mtime: match extensions.mtime {
                Some(mtime) => mtime,
                None => (time(&header[MTIME])?, 0),
            },
            size: 0,
            extents: Vec::new(),
        };
        if kind == Kind::File {
            if stored > i64::MAX as u64 {
                return Err(TarProblem::Number.into());
            }
            self.file(header, &mut entry, stored, extensions.sparse, is_gnu)?;
        }
        Ok(entry)
    }

    /// Reads the extents of a file.
    fn file(
        &mut self,
        header: &[u8; BLOCK as usize],
        entry: &mut Entry,
        stored: u64,
        sparse: Option<PaxSparse>,
        is_gnu: bool,
    ) -> Result<(), RootfsError> {
        let mut map = Vec::new();
        let real_size = if header[TYPE] == b'S' {
            if !is_gnu {
                return Err(TarProblem::Sparse.into());
            }
            numbers_of_extents(&header[GNU_EXTENTS], &mut map)?;
            let mut is_extended = header[GNU_IS_EXTENDED] != 0;
            while is_extended {
                let more = self.block()?.ok_or(TarProblem::Truncated)?;
                numbers_of_extents(&more[MORE_EXTENTS], &mut map)?;
                is_extended = more[MORE_IS_EXTENDED] != 0;
            }
            self.begin_content(stored);
            number(&header[GNU_REAL_SIZE])?
        } else {
            self.begin_content(stored);
            let Some(sparse) = sparse else {
                entry.size = stored;
                entry.extents = vec![SparseExtent { offset: 0, length: stored }];
                return Ok(());
            };
            entry.path = sparse.path.unwrap_or_else(|| std::mem::take(&mut entry.path));
            map = if sparse.map_is_content { self.map_before_content()? } else { sparse.map };
            sparse.real_size.ok_or(TarProblem::Sparse)?
        };
        entry.extents = extents(&map, real_size)?;
        entry.size = real_size;
        let is_all = entry.extents.iter().map(|extent| extent.length).sum::<u64>() == self.content;
        if is_all { Ok(()) } else { Err(TarProblem::Sparse.into()) }
    }

    /// The map of a sparse file as pax 1.0 has it: numbers, a line each, the first of which is how
    /// many pairs there are, in whole blocks before the content.
    fn map_before_content(&mut self) -> Result<Vec<u64>, RootfsError> {
        let mut numbers = Vec::new();
        let mut line = Vec::new();
        let mut wanted = 1;
        while numbers.len() < wanted {
            // Of the content, whose length is a whole number of blocks up to here.
            self.content = self.content.checked_sub(BLOCK).ok_or(TarProblem::Sparse)?;
            let block = self.block()?.ok_or(TarProblem::Truncated)?;
            for byte in block {
                match byte {
                    b'\n' if numbers.len() < wanted => {
                        numbers.push(decimal(&line)?);
                        line.clear();
                        if numbers.len() == 1 {
                            let pairs = usize::try_from(numbers[0]).unwrap_or(usize::MAX);
                            if pairs > MAX_EXTENTS {
                                return Err(TarProblem::Sparse.into());
                            }
                            wanted = 1 + 2 * pairs;
                        }
                    }
                    _ if numbers.len() == wanted => break,
                    _ if line.len() > 20 => return Err(TarProblem::Sparse.into()),
                    _ => line.push(byte),
                }
            }
        }
        numbers.remove(0);
        Ok(numbers)
    }
}

/// Reads the current entry's content.
impl<S: Source> Read for Entries<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.by_ref().take(self.content).read(buffer)?;
        if count == 0 && self.content > 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.content -= count as u64;
        Ok(count)
    }
}

/// Pairs of numbers as extents, each beyond the one before, all within the file.
fn extents(map: &[u64], size: u64) -> Result<Vec<SparseExtent>, TarProblem> {
    let (pairs, []) = map.as_chunks::<2>() else { return Err(TarProblem::Sparse) };
    let mut extents = Vec::with_capacity(pairs.len());
    let mut end = 0;
    for &[offset, length] in pairs {
        let next = offset.checked_add(length).filter(|&next| next <= size);
        let (true, Some(next)) = (offset >= end, next) else { return Err(TarProblem::Sparse) };
        end = next;
        extents.push(SparseExtent { offset, length });
    }
    Ok(extents)
}

/// The numbers of extents in a GNU header: 12 bytes each, until the first pair that is not used.
fn numbers_of_extents(fields: &[u8], map: &mut Vec<u64>) -> Result<(), TarProblem> {
    for pair in fields.chunks_exact(24) {
        if pair[0] == 0 || pair[12] == 0 {
            break;
        }
        if map.len() >= 2 * MAX_EXTENTS {
            return Err(TarProblem::Sparse);
        }
        map.extend([number(&pair[..12])?, number(&pair[12..])?]);
    }
    Ok(())
}

/// Parses the extended headers of the next entry.
fn pax(mut text: &[u8]) -> Result<Extensions, TarProblem> {
    let mut extensions = Extensions::default();
    let mut sparse: Option<PaxSparse> = None;
    let (mut major, mut minor) = (None, None);
    while !text.is_empty() {
        let (key, value, rest) = record(text).ok_or(TarProblem::Pax)?;
        text = rest;
        // Without a value, the header's field counts.
        let name = || (!value.is_empty()).then(|| value.to_owned());
        let count = || if value.is_empty() { Ok(None) } else { decimal(value).map(Some) };
        match key {
            b"path" => extensions.path = name(),
            b"linkpath" => extensions.link = name(),
            b"size" => extensions.size = count()?,
            b"uid" => extensions.uid = count()?,
            b"gid" => extensions.gid = count()?,
            b"mtime" if value.is_empty() => extensions.mtime = None,
            b"mtime" => extensions.mtime = Some(pax_time(value).ok_or(TarProblem::Pax)?),
            _ if key.starts_with(b"GNU.sparse.") => {
                let sparse = sparse.get_or_insert_default();
                match &key[b"GNU.sparse.".len()..] {
                    b"major" => major = count()?,
                    b"minor" => minor = count()?,
                    b"name" => sparse.path = name(),
                    b"size" | b"realsize" => sparse.real_size = count()?,
                    b"offset" | b"numbytes" if sparse.map.len() < 2 * MAX_EXTENTS => {
                        sparse.map.push(decimal(value)?);
                    }
                    b"map" => {
                        let numbers = value.split(|&byte| byte == b',').take(2 * MAX_EXTENTS + 1);
                        sparse.map = numbers.map(decimal).collect::<Result<_, _>>()?;
                    }
                    b"numblocks" => {}
                    _ => return Err(TarProblem::Sparse),
                }
            }
            _ => {}
        }
    }
    if let Some(sparse) = &mut sparse {
        sparse.map_is_content = match (major, minor) {
            (Some(1), Some(0)) => true,
            (None | Some(0), None | Some(0 | 1)) => false,
            _ => return Err(TarProblem::Sparse),
        };
        if sparse.map.len() > 2 * MAX_EXTENTS {
            return Err(TarProblem::Sparse);
        }
    }
    extensions.sparse = sparse;
    Ok(extensions)
}

/// A record, `LENGTH KEY=VALUE` with a newline after it: its key, its value, and what follows.
fn record(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = text.iter().take(20).position(|&byte| byte == b' ')?;
    let length = usize::try_from(decimal(&text[..space]).ok()?).ok()?;
    let (record, rest) = text.split_at_checked(length)?;
    let pair = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = pair.iter().position(|&byte| byte == b'=')?;
    (equals > 0).then(|| (&pair[..equals], &pair[equals + 1..], rest))
}

/// `[-]SECONDS[.FRACTION]`.
fn pax_time(text: &[u8]) -> Option<(i64, u32)> {
    let (seconds, fraction) = match text.iter().position(|&byte| byte == b'.') {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &b""[..]),
    };
    let (is_negative, digits) = match seconds.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, seconds),
    };
    let seconds = i64::try_from(decimal(digits).ok()?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |index: usize| fraction.get(index).map_or(0, |digit| u32::from(digit - b'0'));
    let nanoseconds = (0..9).fold(0, |sum, index| sum * 10 + digit(index));
    Some(match (is_negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

fn decimal(text: &[u8]) -> Result<u64, TarProblem> {
    let text = text.trim_ascii();
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| is_number);
    text.and_then(|text| text.parse().ok()).ok_or(TarProblem::Number)
}

/// A number of a header: octal, or binary if marked so. An empty field is 0.
fn number(field: &[u8]) -> Result<u64, TarProblem> {
    u64::try_from(signed_number(field)?).map_err(|_| TarProblem::Number)
}

/// A time; 0 if it is out of range.
fn time(field: &[u8]) -> Result<i64, TarProblem> {
    let number = signed_number(field)?;
    Ok(i64::try_from(number).unwrap_or_default())
}

fn signed_number(field: &[u8]) -> Result<i128, TarProblem> {
    let first = field[0];
    if first & 0x80 == 0 {
        let text = until_nul(field).trim_ascii();
        // 12 digits at most, so it fits.
        return text.iter().try_fold(0, |sum: i128, &digit| match digit {
            b'0'..=b'7' => Ok(sum * 8 + i128::from(digit - b'0')),
            _ => Err(TarProblem::Number),
        });
    }
    // Two's complement of at most 12 bytes; the bit after the marker is the sign.
    let start = i128::from(first & 0x7f) - if first & 0x40 == 0 { 0 } else { 0x80 };
    Ok(field[1..].iter().fold(start, |sum, &byte| sum * 256 + i128::from(byte)))
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}
