//! The io dir on the host: opened once, held open, and never looked up by path again.

pub(crate) mod disk;
pub(crate) mod inputs;
mod pace;
pub(crate) mod path_map;
pub(crate) mod private;
pub(crate) mod snapshot;
pub(crate) mod staged;
pub(crate) mod touched;
pub(crate) mod unnamed;
pub(crate) mod write_monitor;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sandbox_dirfd::Identity;
use sandbox_engine::Source;
use sandbox_staging::Stage;
use sandbox_staging::created::{self, CreatedDirs, hold};

use crate::error::Error;
use crate::io_dir::private::fresh::FreshDir;
use crate::io_dir::staged::StagedIoDir;

/// An open io dir.
#[derive(Debug)]
pub(crate) struct IoDir {
    /// Absolute, without symbolic links.
    path: PathBuf,
    source: Source,
    identity: Identity,
    owner: (u32, u32),
    /// It ends with its sandbox, and no caller uses its path.
    is_private: bool,
    /// A shared lock, which tells others that it is in use.
    hold: Mutex<Option<OwnedFd>>,
    /// The directories that were created for it.
    made: Option<CreatedDirs>,
    /// The directory on disk that ends with it, if it is a private one.
    fresh: Mutex<Option<FreshDir>>,
    /// The path that callers know, if this is a copy of what is there.
    shown: Option<PathBuf>,
    /// The io dir that this is a copy of, until its changes are committed or discarded.
    staged: Mutex<Option<Box<StagedIoDir>>>,
}

/// How often to retry opening an io dir that others remove at the same time.
const TRIES: usize = 100;

impl IoDir {
    /// Opens the io dir, creating it if it is missing, and records in `records` what was created.
    pub fn make(given: &Path, records: &Path) -> Result<Self, Error> {
        let refuse = |reason: String| Error::IoDir { path: given.to_owned(), reason };
        let path = absolute(given).map_err(refuse)?;
        let mut tries = 0;
        loop {
            tries += 1;
            match Self::make_at(&path, records) {
                Ok(io_dir) => return Ok(io_dir),
                Err(reason) if tries == TRIES || is_something_else(&path) => {
                    return Err(refuse(reason));
                }
                // Another run may have created it, and may be removing it right now.
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    fn make_at(path: &Path, records: &Path) -> Result<Self, String> {
        let created = CreatedDirs::make(path, records).map_err(|error| error.to_string())?;
        let held = Self::open_at(path).and_then(|io_dir| match hold(io_dir.fd()) {
            Ok(hold) => Ok(Self { hold: Mutex::new(hold), ..io_dir }),
            Err(errno) => Err(io::Error::from(errno).to_string()),
        });
        match held {
            Ok(io_dir) => Ok(Self { made: Some(created), ..io_dir }),
            Err(reason) => {
                created.remove_if_empty();
                Err(reason)
            }
        }
    }

    /// Opens an io dir, creating it if it is missing, and copies it: this is the copy. `stages` is where
    /// it is recorded.
    pub fn staged(given: &Path, records: &Path, stages: &Path) -> Result<Self, Error> {
        let refuse = |reason: String| Error::IoDir {
            path: given.to_owned(),
            reason: format!("it cannot be staged: {reason}"),
        };
        let io_dir = Self::make(given, records)?;
        let staged = Stage::create(io_dir.fd(), &io_dir.path, stages)
            .map_err(|error| error.to_string())
            .and_then(|stage| Self::open_at(&stage.path()).map(|copy| (stage, copy)));
        let (stage, copy) = match staged {
            Ok(staged) => staged,
            Err(reason) => {
                io_dir.release();
                return Err(refuse(reason));
            }
        };
        let Self { path, source, hold, made, .. } = io_dir;
        let hold = hold.into_inner().unwrap_or_else(PoisonError::into_inner);
        let shown = Some(path.clone());
        let staged = StagedIoDir { stage, path, source, hold, made };
        Ok(Self { shown, staged: Mutex::new(Some(Box::new(staged))), ..copy })
    }

    /// Opens an existing io dir.
    ///
    /// A symbolic link as the last component is refused: the default io dir is in the working
    /// directory, which may be someone else's repository, containing a link to anywhere.
    pub fn open(given: &Path) -> Result<Self, Error> {
        let refuse = |reason: String| Error::IoDir { path: given.to_owned(), reason };
        absolute(given).and_then(|path| Self::open_at(&path)).map_err(refuse)
    }

    fn open_at(path: &Path) -> Result<Self, String> {
        let io = |error: io::Error| error.to_string();
        let metadata = fs::symlink_metadata(path).map_err(io)?;
        if metadata.is_symlink() {
            let target = fs::canonicalize(path).unwrap_or_default();
            return Err(format!("it is a symbolic link; name its target, {}", target.display()));
        }
        if !metadata.is_dir() {
            return Err("it is not a directory".to_owned());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| io(errno.into()))?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| io(errno.into()))?;
        let path = path_of(&fd).map_err(io)?;
        if path == Path::new("/") {
            return Err("it is the root of the whole system".to_owned());
        }
        let text = path.to_str().ok_or_else(|| "its path is not UTF-8".to_owned())?.to_owned();
        let source = Source { path: text, file: Arc::new(fd) };
        let (identity, owner) = (Identity::of(&stat), (stat.st_uid, stat.st_gid));
        let is_private = false;
        Ok(Self {
            path,
            source,
            identity,
            owner,
            is_private,
            hold: Mutex::default(),
            made: None,
            fresh: Mutex::default(),
            shown: None,
            staged: Mutex::default(),
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.source.file.as_fd()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its path on the host; `None` if it is private, because then it ends with its sandbox.
    pub fn host_path(&self) -> Option<&Path> {
        self.shown.as_deref().or(Some(&self.path)).filter(|_| !self.is_private)
    }

    /// The io dir that this is a copy of: it must be one that may be mounted, too.
    pub fn staged_source(&self) -> Option<Source> {
        let staged = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
        staged.as_ref().map(|staged| staged.source.clone())
    }

    /// Takes what decides about the changes, if this is a copy. If nobody takes it, they are discarded
    /// at the end.
    pub fn take_staged(&self) -> Option<Box<StagedIoDir>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether it is on a disk of the host, and not in memory.
    pub fn is_on_disk(&self) -> bool {
        !self.source.is_private()
    }

    /// The source of its mount.
    pub fn source(&self) -> &Source {
        &self.source
    }

    pub const fn identity(&self) -> Identity {
        self.identity
    }

    pub const fn owner(&self) -> (u32, u32) {
        self.owner
    }

    /// Writes a file with unpredictable content that only the io dir's owner can read.
    pub fn write_nonce(&self) -> Result<Nonce<'_>, Errno> {
        let name = format!(".sandboxctl-{}", sandbox_dirfd::random_hex::<8>());
        let content = sandbox_dirfd::random_hex::<16>();
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.fd(), &name, flags, Mode::RUSR | Mode::WUSR)?;
        let nonce = Nonce { io_dir: self, name, content };
        let (uid, gid) = self.owner;
        let owner = (Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)));
        if rustix::fs::fchown(&file, owner.0, owner.1).is_err() {
            // Neither root nor the owner: the sandbox can only read it with the permissions of
            // others.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        }
        let mut rest = nonce.content.as_bytes();
        while !rest.is_empty() {
            let written = rustix::io::write(&file, rest)?;
            rest = &rest[written..];
        }
        Ok(nonce)
    }

    /// Ends the use of the io dir: a fresh one is removed, and so are directories that were created
    /// for a named one, if they are empty.
    pub fn release(&self) {
        drop(self.take_staged());
        drop(self.fresh.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(held) = self.hold.lock().unwrap_or_else(PoisonError::into_inner).take() {
            created::release(&held);
        }
        if let Some(made) = &self.made {
            made.remove_if_empty();
        }
    }
}

fn is_something_else(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir())
}

/// Normalises the path before anything is created there, so that it cannot lead elsewhere.
fn absolute(given: &Path) -> Result<PathBuf, String> {
    if given.as_os_str().is_empty() {
        return Err("the path is empty".to_owned());
    }
    if given.to_str().is_none() {
        return Err("its path is not UTF-8".to_owned());
    }
    // Collected from its components: a trailing slash would follow a link.
    let path = std::path::absolute(given).map_err(|error| error.to_string())?;
    Ok(path.components().collect())
}

/// A file whose content is known only to someone who sees the io dir. Removed when dropped.
pub(crate) struct Nonce<'a> {
    io_dir: &'a IoDir,
    pub name: String,
    pub content: String,
}

impl Drop for Nonce<'_> {
    fn drop(&mut self) {
        // The agent removes it too.
        _ = rustix::fs::unlinkat(self.io_dir.fd(), &self.name, AtFlags::empty());
    }
}

fn path_of(fd: &OwnedFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

#[cfg(test)]
mod tests;
