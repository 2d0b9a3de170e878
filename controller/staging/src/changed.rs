//! A changed path, and the digests of its content, made in parallel.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustix::fs::{OFlags, fstat, readlinkat};
use sandbox_api::changes::{ChangeOp, ChangeType};
use sandbox_dirfd::{FileStamp, HoleAllowance, KnownFiles, Root, SparseReader, split};
use sha2::{Digest as _, Sha256};

use crate::copy::{Copied, attributes};
use crate::tree::kind_of;

const BUFFER: usize = 128 << 10;

/// A changed path.
#[derive(Debug)]
pub(crate) struct Changed {
    pub op: ChangeOp,
    /// Its state in the copy; `None` if it was removed.
    pub now: Option<FileStamp>,
    pub before: Option<Copied>,
    /// The path that the same file had before.
    pub from: Option<Box<[u8]>>,
    pub digests: Digests,
}

impl Changed {
    pub fn new(op: ChangeOp, now: Option<FileStamp>, before: Option<Copied>) -> Self {
        Self { op, now, before, from: None, digests: Digests::default() }
    }

    /// Its type now; if it was removed, its type before.
    pub fn kind(&self) -> ChangeType {
        let before = || self.before.map(|it| kind_of(it.original));
        self.now.map(kind_of).or_else(before).unwrap_or(ChangeType::Other)
    }

    /// Whether it is a directory before and after.
    pub fn stays_directory(&self) -> bool {
        let is_directory = |stamp: FileStamp| stamp.is_directory();
        self.now.is_some_and(is_directory)
            && self.before.is_some_and(|before| before.original.is_directory())
    }
}

/// The digest of a file's content, or of a link's target.
pub(crate) type Digest = [u8; 32];

/// The digests of a changed path; `None` where it has no content, or is not as it was recorded.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    pub now: Option<Digest>,
    pub before: Option<Digest>,
    /// Both are equal, and the extended attributes or ACLs are not.
    pub has_other_attributes: bool,
}

/// Reads the content of files and links that changed, on as many threads as there are processors.
pub(crate) fn content_of(
    changed: &mut BTreeMap<Box<[u8]>, Changed>,
    original: BorrowedFd<'_>,
    copy: BorrowedFd<'_>,
) {
    let (Ok(original), Ok(copy)) = (Root::new(original), Root::new(copy)) else { return };
    let work: Vec<_> = changed.iter_mut().map(Mutex::new).collect();
    let (next, reading) = (AtomicUsize::new(0), Reading::default());
    let threads = thread::available_parallelism().map_or(1, usize::from).min(work.len());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = vec![0; BUFFER];
                while let Some(work) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut work = work.lock().unwrap_or_else(PoisonError::into_inner);
                    let (path, change) = &mut *work;
                    let mut read = |root, stamp| reading.digest(root, path, stamp, &mut buffer);
                    let now = change.now.and_then(|now| read(&copy, now));
                    let before = change.before.and_then(|it| read(&original, it.original));
                    let has_other_attributes = now.is_some()
                        && now == before
                        && attributes_at(&original, path) != attributes_at(&copy, path);
                    change.digests = Digests { now, before, has_other_attributes };
                }
            });
        }
    });
}

/// What was read until now: a file costs nothing to make that is one hole, or has many names.
#[derive(Debug, Default)]
struct Reading {
    holes: HoleAllowance,
    known: Mutex<KnownFiles<Digest>>,
}

impl Reading {
    /// `None` if the file is not as it was recorded, or if no more holes are read.
    fn digest(
        &self,
        root: &Root<'_>,
        path: &[u8],
        stamp: FileStamp,
        buffer: &mut [u8],
    ) -> Option<Digest> {
        match kind_of(stamp) {
            ChangeType::File => {
                let opened = root.open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK);
                let file = File::from(opened.ok()?);
                let stat = fstat(&file).ok()?;
                if FileStamp::of(&stat) != stamp {
                    return None;
                }
                // Held while it is read: another thread may have another name of it.
                let mut known = (stat.st_nlink > 1)
                    .then(|| self.known.lock().unwrap_or_else(PoisonError::into_inner));
                if let Some(digest) = known.as_ref().and_then(|known| known.get(&stat)) {
                    return Some(*digest);
                }
                if !self.holes.take(&stat) {
                    return None;
                }
                let mut content = SparseReader::new(&file).ok()?;
                let mut hash = Sha256::new();
                loop {
                    match content.read(buffer).ok()? {
                        0 => break,
                        read => hash.update(&buffer[..read]),
                    }
                }
                // Unchanged while it was read.
                let is_same = FileStamp::of(&fstat(&file).ok()?) == stamp;
                let digest = is_same.then(|| hash.finalize().into())?;
                if let Some(known) = &mut known {
                    known.add(&stat, digest);
                }
                Some(digest)
            }
            ChangeType::Symlink => Some(Sha256::digest(target(root, path)?).into()),
            ChangeType::Directory | ChangeType::Other => None,
        }
    }
}

/// The attributes of a file, as far as they are committed.
fn attributes_at(root: &Root<'_>, path: &[u8]) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Some(attributes(&root.open(path, flags).ok()?))
}

/// Where a link leads.
pub(crate) fn target(root: &Root<'_>, path: &[u8]) -> Option<Vec<u8>> {
    let (parent, name) = split(path);
    let parent = root.directory(parent).ok()?;
    Some(readlinkat(&parent, name, Vec::new()).ok()?.into_bytes())
}
