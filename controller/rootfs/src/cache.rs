//! The cache of unpacked images, shared by all processes of a user.
//!
//! An image has up to three names in the cache directory: `KEY` is its complete tree; `KEY.part` is
//! a tree that is being unpacked or removed; `KEY.lock` is locked by the process that unpacks or
//! removes, and its modification time is when the tree was last used. The kernel releases a lock
//! when its process ends, so a part whose lock is free is a leftover. A tree in use has a shared
//! lock, held by the descriptor that the sandbox has of it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FlockOperation};
use rustix::io::Errno;
use sandbox_dirfd::{create_private_dir, open_directory};

use crate::budget::Stop;
use crate::digest::Digest;
use crate::error::RootfsError;

/// The version of the tree format. It is part of the key, so a new version unpacks images again.
const FORMAT: u32 = 1;
/// How long an unused tree is kept.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Poll interval while another process unpacks.
const POLL: Duration = Duration::from_millis(20);
/// How many polls to wait before reporting that another process unpacks: a clean-up ends sooner.
const POLLS_BEFORE_NOTICE: u32 = 10;

const LOCK: &str = ".lock";
const PART: &str = ".part";
/// Name prefix of a file that a whole archive is decompressed into. It is unlinked once open.
const SPOOL: &str = "spool-";

/// A directory of unpacked images.
#[derive(Debug, Clone)]
pub struct RootCache {
    directory: PathBuf,
}

/// The paths of an image in the cache.
#[derive(Debug, Clone)]
pub(super) struct CachePaths {
    pub root: PathBuf,
    part: PathBuf,
    lock: PathBuf,
}

/// An unpacked image in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedTree {
    /// Its name in the cache.
    pub key: String,
    /// Its disk usage, in bytes.
    pub size: u64,
    /// When a sandbox was last created from it.
    pub used: SystemTime,
}

/// The result of claiming an image in the cache.
#[derive(Debug)]
pub(super) enum Claimed {
    /// The tree; it stays for as long as the descriptor, or a copy of it, is open.
    Ready(Arc<OwnedFd>),
    /// Not unpacked yet: the caller holds the lock and must unpack it.
    Missing(PartialTree),
}

/// An image that is being unpacked. Dropping it removes the partial tree.
#[derive(Debug)]
pub(super) struct PartialTree {
    paths: CachePaths,
    lock: File,
    is_done: bool,
}

impl RootCache {
    /// Opens the cache directory, or creates it. No other user may have access to it.
    pub fn open(directory: PathBuf) -> io::Result<Self> {
        create_private_dir(&directory)?;
        Ok(Self { directory })
    }

    /// The paths of the image whose layers have this digest.
    pub(super) fn paths(&self, chain: Digest) -> CachePaths {
        self.named(&format!("{FORMAT}-{}", chain.hex()))
    }

    fn named(&self, key: &str) -> CachePaths {
        let path = |suffix| self.directory.join(format!("{key}{suffix}"));
        CachePaths { root: path(""), part: path(PART), lock: path(LOCK) }
    }

    /// Opens the directory, to ask for the free space around it.
    pub(super) fn handle(&self) -> Result<OwnedFd, RootfsError> {
        open_directory(CWD, &self.directory).map_err(failed(&self.directory))
    }

    /// Creates an unlinked temporary file.
    pub(super) fn spool(&self) -> Result<File, RootfsError> {
        let path = self.directory.join(format!("{SPOOL}{}", sandbox_dirfd::random_hex::<8>()));
        let mut options = File::options();
        let opened = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        opened.and_then(|file| fs::remove_file(&path).map(|()| file)).map_err(failed(&path))
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
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let Ok(key) = entry.file_name().into_string() else { continue };
            if key.ends_with(PART) || !entry.file_type()?.is_dir() {
                continue;
            }
            let paths = self.named(&key);
            let used = fs::metadata(&paths.lock).and_then(|lock| lock.modified());
            let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
            if used.elapsed().unwrap_or_default() < least {
                continue;
            }
            // Another process may be removing it.
            let Ok(size) = size_of(&paths.root) else { continue };
            trees.push(CachedTree { key, size, used });
        }
        trees.sort_by(|a, b| (b.used, &a.key).cmp(&(a.used, &b.key)));
        Ok(trees)
    }

    /// Removes an unpacked image. False if it is in use, or another process unpacks or removes it.
    pub fn remove(&self, key: &str) -> io::Result<bool> {
        // A key is a file name, not a path out of the directory.
        if key.contains('/') || key.starts_with('.') {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.named(key).tidy(Duration::ZERO)?;
        Ok(!self.named(key).root.exists())
    }

    /// Removes partial trees of dead processes, and trees that have not been used for long.
    pub fn tidy(&self) {
        let mut keys = BTreeSet::new();
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
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

impl CachePaths {
    /// Returns the tree, or the lock to unpack it. If another process unpacks it, calls `waiting`
    /// and waits.
    pub fn claim(&self, stop: &Stop, mut waiting: impl FnMut()) -> Result<Claimed, RootfsError> {
        let mut polls = 0_u32;
        loop {
            stop.check()?;
            if let Some(tree) = self.hold().map_err(failed(&self.root))? {
                return Ok(Claimed::Ready(tree));
            }
            // An exclusive lock, and never an upgraded shared one: of several processes, one gets
            // it.
            if let Some(lock) = self.lock().map_err(failed(&self.lock))?
                && !self.root.exists()
            {
                let partial = PartialTree { paths: self.clone(), lock, is_done: false };
                clear(&self.part).map_err(failed(&self.part))?;
                let made = fs::DirBuilder::new().mode(0o700).create(&self.part);
                made.map_err(failed(&self.part))?;
                return Ok(Claimed::Missing(partial));
            }
            polls = polls.saturating_add(1);
            if polls == POLLS_BEFORE_NOTICE {
                waiting();
            }
            std::thread::sleep(POLL);
        }
    }

    /// Locks the tree as in use; `None` if it is missing or being removed.
    fn hold(&self) -> io::Result<Option<Arc<OwnedFd>>> {
        let Some(tree) = open_tree(&self.root)? else { return Ok(None) };
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

    /// Records the time of the last use, for [`tidy`](Self::tidy).
    fn use_now(&self) {
        let marked = File::open(&self.lock).and_then(|lock| lock.set_modified(SystemTime::now()));
        if let Err(error) = marked {
            tracing::debug!(%error, path = %self.lock.display(), "cannot record that it is used");
        }
    }

    /// Takes the exclusive lock; `None` if another process holds it.
    fn lock(&self) -> io::Result<Option<File>> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(&self.lock)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        // The previous holder may have removed the file.
        Ok(is_at(&self.lock, lock.metadata()?.ino()).then_some(lock))
    }

    /// Removes a partial tree, and the tree if it has not been used for this long.
    fn tidy(&self, kept: Duration) -> io::Result<()> {
        let Some(lock) = self.lock()? else { return Ok(()) };
        clear(&self.part)?;
        let age = lock.metadata()?.modified()?.elapsed().unwrap_or_default();
        if age >= kept
            && let Some(tree) = open_tree(&self.root)?
            && rustix::fs::flock(&tree, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            // A partly removed tree must not be found.
            fs::rename(&self.root, &self.part)?;
            clear(&self.part)?;
        }
        if !self.root.exists() {
            fs::remove_file(&self.lock)?;
        }
        Ok(())
    }
}

impl PartialTree {
    /// The empty directory to unpack into.
    pub fn directory(&self) -> Result<OwnedFd, RootfsError> {
        let path = &self.paths.part;
        let opened = open_tree(path).map_err(failed(path))?;
        opened.ok_or(io::ErrorKind::NotFound).map_err(failed(path))
    }

    /// Publishes the complete tree.
    pub fn finish(mut self) -> Result<Arc<OwnedFd>, RootfsError> {
        let tree = self.directory()?;
        let CachePaths { root, part, .. } = &self.paths;
        // Its content is not verified again: after a power cut it must be complete, or absent.
        rustix::fs::syncfs(&tree).map_err(failed(root))?;
        // Locked before it is published, so that no other process can remove it.
        let locked = rustix::fs::flock(&tree, FlockOperation::NonBlockingLockShared);
        locked.map_err(failed(root))?;
        fs::rename(part, root).map_err(failed(root))?;
        self.is_done = true;
        self.paths.use_now();
        Ok(Arc::new(tree))
    }
}

impl Drop for PartialTree {
    fn drop(&mut self) {
        if !self.is_done {
            let cleared = clear(&self.paths.part);
            if let Err(error) = cleared.and_then(|()| fs::remove_file(&self.paths.lock)) {
                tracing::debug!(%error, "cannot remove a partial tree");
            }
        }
        // Closing the descriptor does not unlock while a process that another thread is just
        // starting has a copy of it.
        _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

/// An error of a file or directory of the cache.
fn failed<E: Into<io::Error>>(path: &Path) -> impl FnOnce(E) -> RootfsError {
    move |error| RootfsError::Cache { path: path.to_owned(), source: error.into() }
}

fn open_tree(path: &Path) -> io::Result<Option<OwnedFd>> {
    match open_directory(CWD, path) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn is_at(path: &Path, inode: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.ino() == inode)
}

/// The disk usage of a tree. Links are not followed.
fn size_of(root: &Path) -> io::Result<u64> {
    /// The unit of `st_blocks`, in bytes.
    const BLOCK: u64 = 512;
    let mut size = 0;
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory)? {
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

/// Removes a tree, if it exists.
fn clear(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
