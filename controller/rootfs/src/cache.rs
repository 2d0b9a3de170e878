//! Unpacked images, each once, whoever unpacks it.
//!
//! Of an image there may be three names in the folder: `KEY` is its tree, whole; `KEY.part` one
//! that is being unpacked, or removed; `KEY.lock` is a file that is locked by whoever does either,
//! and whose time says when the tree was last used. The kernel lets go of a lock however its
//! process ends, so a part whose lock is free is nobody's. A tree in use is locked itself, shared,
//! by the descriptor that a sandbox has of it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::budget::Stop;
use crate::digest::Digest;
use crate::error::RootfsError;
use sandbox_dirfd::create_private_dir;

/// How the trees in the cache are made. Another number is another tree.
const FORMAT: u32 = 1;
/// How long a tree is kept that nobody uses.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often somebody who waits for another process looks.
const POLL: Duration = Duration::from_millis(20);
/// How many looks say that the other one unpacks: who tidies up is done sooner.
const PATIENCE: u32 = 10;

const LOCK: &str = ".lock";
const PART: &str = ".part";
/// What a whole archive is decompressed into. It has its name for a moment only.
const SPOOL: &str = "spool-";

/// A folder of unpacked images.
#[derive(Debug, Clone)]
pub struct RootCache {
    folder: PathBuf,
}

/// An image's place in the cache.
#[derive(Debug, Clone)]
pub(super) struct Place {
    root: PathBuf,
    part: PathBuf,
    lock: PathBuf,
}

/// An unpacked image in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedTree {
    /// Its name in the cache.
    pub key: String,
    /// The space that it takes, in bytes.
    pub size: u64,
    /// When a sandbox was last made from it.
    pub used: SystemTime,
}

/// What there is in a place.
#[derive(Debug)]
pub(super) enum Claimed {
    /// The tree; it stays for as long as the descriptor, or a copy of it, is open.
    There(Arc<OwnedFd>),
    /// Nothing: it is the caller's to fill, and nobody else's.
    Mine(Filling),
}

/// A place that is being filled. Dropped, it is empty again.
#[derive(Debug)]
pub(super) struct Filling {
    place: Place,
    lock: File,
    is_done: bool,
}

impl RootCache {
    /// The folder must be ours alone; it is made where it is missing.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        create_private_dir(&folder)?;
        Ok(Self { folder })
    }

    /// The place of the image whose layers have this digest.
    pub(super) fn place(&self, chain: Digest) -> Place {
        self.named(&format!("{FORMAT}-{}", chain.hex()))
    }

    fn named(&self, key: &str) -> Place {
        let path = |suffix| self.folder.join(format!("{key}{suffix}"));
        Place { root: path(""), part: path(PART), lock: path(LOCK) }
    }

    /// A file without a name, which is gone when it is closed.
    pub(super) fn spool(&self) -> Result<File, RootfsError> {
        let path = self.folder.join(format!("{SPOOL}{}", sandbox_dirfd::random_hex::<8>()));
        let mut options = File::options();
        let opened = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = opened.and_then(|file| fs::remove_file(&path).map(|()| file));
        file.map_err(|source| RootfsError::Cache { path, source })
    }

    /// Lists the unpacked images, the last used first.
    pub fn list(&self) -> io::Result<Vec<CachedTree>> {
        self.unused_for(Duration::ZERO)
    }

    /// Lists the unpacked images that [`tidy`](Self::tidy) removes, if they are not in use.
    pub fn expired(&self) -> io::Result<Vec<CachedTree>> {
        self.unused_for(KEPT)
    }

    fn unused_for(&self, least: Duration) -> io::Result<Vec<CachedTree>> {
        let mut trees = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let Ok(key) = entry.file_name().into_string() else { continue };
            if key.ends_with(PART) || !entry.file_type()?.is_dir() {
                continue;
            }
            let place = self.named(&key);
            let used = fs::metadata(&place.lock).and_then(|lock| lock.modified());
            let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
            if used.elapsed().unwrap_or_default() < least {
                continue;
            }
            // Another process may be removing it.
            let Ok(size) = size_of(&place.root) else { continue };
            trees.push(CachedTree { key, size, used });
        }
        trees.sort_by(|a, b| (b.used, &a.key).cmp(&(a.used, &b.key)));
        Ok(trees)
    }

    /// Removes an unpacked image. False if it is in use, or another process is at it.
    pub fn remove(&self, key: &str) -> io::Result<bool> {
        // A key is a name in the folder, and no path out of it.
        if key.contains('/') || key.starts_with('.') {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.named(key).tidy(Duration::ZERO)?;
        Ok(!self.named(key).root.exists())
    }

    /// Removes what dead processes left half unpacked, and what nobody has used for long.
    pub fn tidy(&self) {
        let mut keys = BTreeSet::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with(SPOOL) {
                _ = fs::remove_file(entry.path());
            } else {
                let key = name.strip_suffix(LOCK).or_else(|| name.strip_suffix(PART));
                keys.insert(key.unwrap_or(&name).to_owned());
            }
        }
        for key in keys {
            if let Err(error) = self.named(&key).tidy(KEPT) {
                tracing::debug!(%error, key, "cannot tidy up the unpacked image");
            }
        }
    }
}

impl Place {
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The tree, or the right to make it. Where another process is at it, that is waited for;
    /// `waiting` is called then.
    pub fn claim(&self, stop: &Stop, mut waiting: impl FnMut()) -> Result<Claimed, RootfsError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| RootfsError::Cache { path, source }
        };
        let mut looks = 0_u32;
        loop {
            stop.check()?;
            if let Some(tree) = self.hold().map_err(failed(&self.root))? {
                return Ok(Claimed::There(tree));
            }
            // Asked for alone and never in exchange for a shared one: of those who want it one
            // has it.
            if let Some(lock) = self.lock().map_err(failed(&self.lock))?
                && !self.root.exists()
            {
                let filling = Filling { place: self.clone(), lock, is_done: false };
                clear(&self.part).map_err(failed(&self.part))?;
                let made = fs::DirBuilder::new().mode(0o700).create(&self.part);
                made.map_err(failed(&self.part))?;
                return Ok(Claimed::Mine(filling));
            }
            looks = looks.saturating_add(1);
            if looks == PATIENCE {
                waiting();
            }
            std::thread::sleep(POLL);
        }
    }

    /// Says that the tree is in use; nothing where there is none, or it is just being removed.
    fn hold(&self) -> io::Result<Option<Arc<OwnedFd>>> {
        let Some(tree) = open_folder(&self.root)? else { return Ok(None) };
        match rustix::fs::flock(&tree, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        // It may have been removed before it was locked.
        if !is_at(&self.root, rustix::fs::fstat(&tree)?.st_ino) {
            return Ok(None);
        }
        self.use_now();
        Ok(Some(Arc::new(tree)))
    }

    /// Whoever tidies up sees when the tree was used last.
    fn use_now(&self) {
        let marked = File::open(&self.lock).and_then(|lock| lock.set_modified(SystemTime::now()));
        if let Err(error) = marked {
            tracing::debug!(%error, path = %self.lock.display(), "cannot say that it is used");
        }
    }

    /// The right to change the place, where nobody else has it.
    fn lock(&self) -> io::Result<Option<File>> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(&self.lock)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        // Whoever had it before may have removed the file.
        Ok(is_at(&self.lock, lock.metadata()?.ino()).then_some(lock))
    }

    /// Removes what is half unpacked, and the tree if it is not in use and was not for this long.
    fn tidy(&self, kept: Duration) -> io::Result<()> {
        let Some(lock) = self.lock()? else { return Ok(()) };
        clear(&self.part)?;
        let age = lock.metadata()?.modified()?.elapsed().unwrap_or_default();
        if age >= kept
            && let Some(tree) = open_folder(&self.root)?
            && rustix::fs::flock(&tree, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            // Half removed it must not be found.
            fs::rename(&self.root, &self.part)?;
            clear(&self.part)?;
        }
        if !self.root.exists() {
            fs::remove_file(&self.lock)?;
        }
        Ok(())
    }
}

impl Filling {
    /// What is to be filled: an empty directory.
    pub fn folder(&self) -> Result<OwnedFd, RootfsError> {
        let path = &self.place.part;
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let opened = open_folder(path).and_then(|folder| folder.ok_or_else(gone));
        opened.map_err(|source| RootfsError::Cache { path: path.clone(), source })
    }

    /// It is whole: from now on everybody finds it.
    pub fn finish(mut self) -> Result<Arc<OwnedFd>, RootfsError> {
        let place = self.place.clone();
        let failed = |source| RootfsError::Cache { path: place.root.clone(), source };
        let tree = self.folder()?;
        // Nobody looks into it again: after a power cut it must be there as a whole, or not at all.
        rustix::fs::syncfs(&tree).map_err(|errno| failed(errno.into()))?;
        // Held before it can be found: nobody removes it under us.
        rustix::fs::flock(&tree, FlockOperation::NonBlockingLockShared)
            .map_err(|errno| failed(errno.into()))?;
        fs::rename(&place.part, &place.root).map_err(failed)?;
        self.is_done = true;
        place.use_now();
        Ok(Arc::new(tree))
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if !self.is_done {
            let cleared = clear(&self.place.part);
            if let Err(error) = cleared.and_then(|()| fs::remove_file(&self.place.lock)) {
                tracing::debug!(%error, "cannot remove what was half unpacked");
            }
        }
        // Closing alone would not do, while a process that another thread is just starting has a
        // copy of it.
        _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

fn open_folder(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(folder) => Ok(Some(folder)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn is_at(path: &Path, inode: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.ino() == inode)
}

/// The space that a tree takes. Links are not followed.
fn size_of(root: &Path) -> io::Result<u64> {
    /// Bytes of the blocks that `stat` counts.
    const BLOCK: u64 = 512;
    let mut size = 0;
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            size += metadata.blocks() * BLOCK;
            if metadata.is_dir() {
                left.push(entry.path());
            }
        }
    }
    Ok(size)
}

/// Removes a tree. It is no error where it is not there.
fn clear(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
