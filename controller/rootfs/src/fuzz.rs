//! The body of the fuzz target `layers`: a layer's bytes, compressed or not.

use std::io::{self, BufReader, Read};

use crate::error::RootfsError;
use crate::layer::Change;
use crate::stream::{Compression, Plain};
use crate::tar::{Entries, Entry, Kind, Source};

/// The most that is read of what is compressed: a bomb proves nothing here.
const MOST: u64 = 1 << 20;

/// Bytes that come in pieces.
struct Pieces<'bytes> {
    bytes: &'bytes [u8],
    most: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.most.min(buffer.len());
        self.bytes.read(&mut buffer[..most])
    }
}

impl Source for Pieces<'_> {}

/// What was read of a tar.
type Reading = (Vec<(Entry, Vec<u8>)>, Option<String>);

/// Holds what must be so of any layer.
pub fn layers(data: &[u8]) {
    let whole = plain(data, usize::MAX);
    if Compression::of(data) != Compression::None {
        match (&whole, &plain(data, 7)) {
            (Ok(one), Ok(other)) => assert_eq!(one, other, "cuts make no difference"),
            // How much of it comes before it is seen to be broken is the library's business.
            (Err(one), Err(other)) => {
                assert!(one.starts_with(other) || other.starts_with(one));
            }
            (one, other) => panic!("{} and {}", one.is_ok(), other.is_ok()),
        }
    }
    // What can be read of it is a tar.
    let tar = whole.unwrap_or_else(|plain| plain);
    let reading = read(Pieces { bytes: &tar, most: usize::MAX });
    assert_eq!(reading, read(Pieces { bytes: &tar, most: 5 }), "cuts make no difference");
    for (entry, content) in &reading.0 {
        hold_entry(entry, content);
        if let Ok(change) = Change::of(entry) {
            hold_change(&change);
        }
    }
}

/// What it is when it is not compressed, or the part before it breaks.
fn plain(data: &[u8], most: usize) -> Result<Vec<u8>, Vec<u8>> {
    // The first bytes come together, as a file gives them: they say what it is.
    let (start, rest) = data.split_at(data.len().min(8));
    let source = start.chain(BufReader::new(Pieces { bytes: rest, most }));
    let mut plain = Vec::new();
    match Plain::new(source).and_then(|source| source.take(MOST).read_to_end(&mut plain)) {
        Ok(_) => Ok(plain),
        Err(_) => Err(plain),
    }
}

fn read(tar: impl Source) -> Reading {
    let mut entries = Entries::new(tar);
    let mut read = Vec::new();
    loop {
        match next(&mut entries) {
            Ok(Some(entry)) => read.push(entry),
            Ok(None) => return (read, None),
            Err(error) => return (read, Some(error.to_string())),
        }
    }
}

fn next<S: Source>(entries: &mut Entries<S>) -> Result<Option<(Entry, Vec<u8>)>, RootfsError> {
    let Some(entry) = entries.next()? else { return Ok(None) };
    let mut content = Vec::new();
    entries.read_to_end(&mut content)?;
    Ok(Some((entry, content)))
}

/// The pieces of a file lie in it, one after the other, and are exactly its content.
fn hold_entry(entry: &Entry, content: &[u8]) {
    let mut end = 0;
    for extent in &entry.extents {
        assert!(extent.offset >= end);
        end = extent.offset + extent.length;
    }
    assert!(end <= entry.size);
    let stored: u64 = entry.extents.iter().map(|extent| extent.length).sum();
    assert_eq!(stored, content.len() as u64);
    assert!(entry.kind == Kind::File || (entry.size == 0 && content.is_empty()));
    assert!(entry.uid != u32::MAX && entry.gid != u32::MAX && entry.mode <= 0o7777);
    assert!(entry.mtime.1 < 1_000_000_000);
}

/// Its paths are below the root by a second reading, which is the kernel's.
fn hold_change(change: &Change) {
    let hold = |path: &[u8]| {
        assert!(path.len() <= 4095 && !path.contains(&0));
        let components = || path.split(|&byte| byte == b'/');
        assert!(path.is_empty() || components().all(|name| !matches!(name, b"" | b"." | b"..")));
        assert!(components().count() <= 256);
    };
    match change {
        Change::Directory(path) | Change::HideWithin(path) => hold(path),
        Change::File(path) | Change::Symlink(path) | Change::Special(path) | Change::Hide(path) => {
            assert!(!path.is_empty());
            hold(path);
        }
        Change::HardLink { path, target } => {
            assert!(!path.is_empty());
            hold(path);
            hold(target);
        }
        Change::Ignore => {}
    }
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn layer_properties_hold_for_the_corpus() {
        corpus::replay("layers", super::layers);
    }
}
