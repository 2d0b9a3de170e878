//! The content of what changed: digests, made in parallel, and the manifest.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::fs::{OFlags, fstat, readlinkat};
use sandbox_api::changes::{Before, Change, ChangeManifest, ChangeOp, ChangeType, path_forms};
use sandbox_dirfd::{HoleAllowance, KnownFiles, Root, SparseReader, split};
use sha2::{Digest as _, Sha256};

use crate::compare::{Changed, Comparison};
use crate::tree::Stamp;

const BUFFER: usize = 128 << 10;

/// The digest of a file's content, or of a link's target.
pub(crate) type Digest = [u8; 32];

/// The digests of a changed path; `None` where it has no content, or is not as it was recorded.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    pub now: Option<Digest>,
    pub before: Option<Digest>,
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
                    change.digests = Digests { now, before };
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
        stamp: Stamp,
        buffer: &mut [u8],
    ) -> Option<Digest> {
        match stamp.kind() {
            ChangeType::File => {
                let opened = root.open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK);
                let file = File::from(opened.ok()?);
                let stat = fstat(&file).ok()?;
                if Stamp::of(&stat) != stamp {
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
                // Nobody wrote to it meanwhile.
                let is_same = Stamp::of(&fstat(&file).ok()?) == stamp;
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

/// Where a link leads.
pub(crate) fn target(root: &Root<'_>, path: &[u8]) -> Option<Vec<u8>> {
    let (parent, name) = split(path);
    let parent = root.directory(parent).ok()?;
    Some(readlinkat(&parent, name, Vec::new()).ok()?.into_bytes())
}

impl Comparison {
    /// The manifest, with at most `most` changes. `copy` is the copy that was compared.
    pub(crate) fn manifest(&self, copy: BorrowedFd<'_>, most: usize) -> ChangeManifest {
        let copy = Root::new(copy).ok();
        let root = self.root_before().map(|before| {
            let change = Changed::new(ChangeOp::Mode, Some(self.root), Some(before.into()));
            document(b".", &change, None)
        });
        let listed =
            self.changed.iter().map(|(path, change)| document(path, change, copy.as_ref()));
        let count = self.changed.len() + usize::from(root.is_some());
        ChangeManifest {
            changes: root.into_iter().chain(listed).take(most).collect(),
            truncated: count > most,
            ..ChangeManifest::default()
        }
    }
}

fn document(path: &[u8], change: &Changed, copy: Option<&Root<'_>>) -> Change {
    let (text, path_b64) = path_forms(path);
    let kind = change.kind();
    let is_link = |stamp: Stamp| stamp.kind() == ChangeType::Symlink;
    let before = change.before.map(|before| Before {
        bytes: bytes(before.original),
        sha256: change.digests.before.as_ref().map(hex),
        mode: mode(before.original),
    });
    let is_file = kind == ChangeType::File && change.op != ChangeOp::Removed;
    let mime = is_file.then(|| mime_guess::from_path(Path::new(OsStr::from_bytes(path))));
    let target = match (change.now, copy) {
        (Some(now), Some(copy)) if is_link(now) => target(copy, path),
        _ => None,
    };
    Change {
        path: text,
        path_b64,
        op: change.op,
        kind,
        bytes: change.now.and_then(bytes),
        sha256: change.digests.now.as_ref().map(hex),
        mode: change.now.and_then(mode),
        mime: mime.and_then(|guess| Some(guess.first()?.essence_str().to_owned())),
        target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
        from: change.from.as_ref().map(|from| String::from_utf8_lossy(from).into_owned()),
        before,
    }
}

fn bytes(stamp: Stamp) -> Option<u64> {
    matches!(stamp.kind(), ChangeType::File | ChangeType::Symlink).then_some(stamp.size)
}

fn mode(stamp: Stamp) -> Option<String> {
    (stamp.kind() != ChangeType::Symlink).then(|| format!("{:04o}", stamp.permissions()))
}

fn hex(digest: &Digest) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}
