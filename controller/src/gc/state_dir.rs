//! This user's state directory: which controllers are alive, and their files between commands.
//!
//! Every controller holds a lock on a file of its own in it; the kernel releases the lock however
//! the controller ends. The file contains the endpoint of the engine that its containers are on.

use std::fs::{self, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sandbox_dirfd::{Identity, create_private_dir};
use sandbox_engine::CACHE_PREFIX;
use sandbox_staging::{Records, created, fresh};

use crate::error::Error;

/// The directory of the locks of names, which one process of this user has at a time.
pub const NAMES_DIR: &str = "names";
const LOCK_SUFFIX: &str = "lock";
const SPOOL_SUFFIX: &str = "spool";
const MADE_SUFFIX: &str = "made";
/// The suffix of a file that is being written, before it is renamed.
const PART_SUFFIX: &str = "part";
/// How long the lock file of a dead controller is kept, because the engine may still be creating a
/// container for it; and how long a file may be incomplete.
pub(crate) const GRACE: Duration = Duration::from_secs(600);
/// After this time, unused files are removed: caches, and the files of dead controllers whose
/// engine is gone too.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);

/// The state directory.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    path: PathBuf,
    instances: PathBuf,
    /// Where fresh io dirs are.
    pub scratch: PathBuf,
    /// The records of stages of io dirs.
    pub stages: Records,
    /// Identifies this boot of this machine, and this user.
    pub host: String,
}

/// The state of an instance's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// The instance is alive.
    Held,
    /// The instance is dead.
    Free,
    /// There is no such instance in this state directory, or not any more.
    Missing,
}

impl StateDir {
    /// Creates the directory if it is missing. Its content decides which containers are removed, so
    /// only this user may have access. Fresh io dirs and the records of stages are in `scratch`: they
    /// outlast a reboot.
    pub fn open(path: &Path, scratch: &Path, boot_id: &str) -> Result<Self, Error> {
        let instances = path.join("instances");
        for folder in [path, &instances] {
            create_private_dir(folder)
                .map_err(|source| Error::State { path: folder.to_owned(), source })?;
        }
        let uid = rustix::process::geteuid().as_raw();
        // Commits of changes to an io dir lock the state directory.
        let stages = Records::new(scratch, path.to_owned(), boot_id.to_owned());
        let host = format!("{boot_id}:{uid}");
        Ok(Self { path: path.to_owned(), instances, scratch: scratch.to_owned(), stages, host })
    }

    /// The directory of empty images of io dirs.
    pub fn templates_dir(&self) -> PathBuf {
        self.path.join("templates")
    }

    /// Whether an instance is alive.
    pub fn lock_of(&self, instance: &str) -> Lock {
        // A label can contain anything: only a valid name is looked up.
        if instance.is_empty() || !instance.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Lock::Missing;
        }
        try_lock(&self.file(instance, LOCK_SUFFIX))
    }

    /// Removes files that are no longer needed. `is_done` returns whether a dead instance, given by
    /// its id and its engine's endpoint, certainly has no containers.
    ///
    /// The lock file of a recently dead instance is kept for a while: the engine may still be
    /// creating a container for it. Its spooled inputs are removed at once: they may be secret, and
    /// large.
    pub fn tidy(&self, is_done: impl Fn(&str, &str) -> bool) {
        for path in entries(&self.instances) {
            let (Some(id), Some(suffix)) = (text(path.file_stem()), text(path.extension())) else {
                continue;
            };
            let age = age(&path);
            match suffix {
                PART_SUFFIX if age > GRACE => _ = fs::remove_file(&path),
                SPOOL_SUFFIX if self.lock_of(id) != Lock::Held => _ = fs::remove_dir_all(&path),
                MADE_SUFFIX if self.lock_of(id) != Lock::Held => created::reap(&path),
                LOCK_SUFFIX if self.lock_of(id) == Lock::Free => {
                    let endpoint = fs::read_to_string(&path).unwrap_or_default();
                    if age > FORGOTTEN || (age > GRACE && is_done(id, &endpoint)) {
                        _ = fs::remove_file(&path);
                    }
                }
                _ => {}
            }
        }
        for path in entries(&self.path.join(NAMES_DIR)) {
            if age(&path) > GRACE {
                remove_if_free(&path);
            }
        }
        self.stages.recover();
        fresh::reap(&self.scratch, FORGOTTEN);
        for path in entries(&self.path) {
            let Some(name) = text(path.file_name()) else { continue };
            let kept = match name.strip_prefix(CACHE_PREFIX) {
                Some(rest) if rest.contains('.') => GRACE,
                Some(_) => FORGOTTEN,
                None => continue,
            };
            if age(&path) > kept {
                _ = fs::remove_file(&path);
            }
        }
    }

    fn file(&self, instance: &str, suffix: &str) -> PathBuf {
        self.instances.join(instance).with_extension(suffix)
    }
}

/// A controller as seen by others: a locked file in the state directory.
#[derive(Debug)]
pub(crate) struct Instance {
    pub id: String,
    pub state: StateDir,
    /// Holds the lock.
    lock: fs::File,
}

impl Instance {
    /// Registers a new instance, whose containers are on the engine at `endpoint`.
    pub fn register(state: StateDir, endpoint: &str) -> Result<Self, Error> {
        let id = sandbox_dirfd::random_hex::<8>();
        let path = state.file(&id, LOCK_SUFFIX);
        // Locked before it gets its name, so that it is never visible unlocked.
        let lock = (|| {
            let part = state.file(&id, PART_SUFFIX);
            let mut lock = fs::File::create_new(&part)?;
            lock.write_all(endpoint.as_bytes())?;
            lock.try_lock()?;
            fs::rename(&part, &path)?;
            Ok(lock)
        })()
        .map_err(|source| Error::State { path, source })?;
        Ok(Self { id, state, lock })
    }

    /// The directory where this instance spools inputs.
    pub fn spool_dir(&self) -> PathBuf {
        self.state.file(&self.id, SPOOL_SUFFIX)
    }

    /// The directory where this instance records the directories it created.
    pub fn made_dir(&self) -> PathBuf {
        self.state.file(&self.id, MADE_SUFFIX)
    }

    /// Unregisters the instance after the engine was asked to remove all its containers, which may
    /// not be done: the next sweep checks that, and then removes the lock file.
    pub fn retire(&self) {
        self.remove_dirs();
        // Backdated, because no container can be created for it any more.
        let long_ago = SystemTime::now() - GRACE - Duration::from_secs(60);
        _ = self.lock.set_modified(long_ago);
    }

    /// Unregisters the instance, and removes everything it has here.
    pub fn unregister(&self) {
        self.remove_dirs();
        _ = fs::remove_file(self.state.file(&self.id, LOCK_SUFFIX));
    }

    fn remove_dirs(&self) {
        _ = fs::remove_dir_all(self.spool_dir());
        // Directories that another sandbox of this instance was still using when their own sandbox
        // ended. The next sweep handles those that others still use.
        created::reap(&self.made_dir());
    }
}

/// This kernel's boot id.
pub(crate) fn boot_id() -> Result<String, Error> {
    let path = "/proc/sys/kernel/random/boot_id";
    fs::read_to_string(path)
        .map(|id| id.trim().to_owned())
        .map_err(|source| Error::State { path: path.into(), source })
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn text(name: Option<&std::ffi::OsStr>) -> Option<&str> {
    name.and_then(|name| name.to_str())
}

/// The time since it was last written; zero if that is unknown.
fn age(path: &Path) -> Duration {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    modified.ok().and_then(|modified| modified.elapsed().ok()).unwrap_or_default()
}

fn try_lock(path: &Path) -> Lock {
    // Shared, so that two concurrent checks both get the right answer.
    match fs::File::open(path).map(|file| file.try_lock_shared()) {
        Ok(Ok(())) => Lock::Free,
        Ok(Err(TryLockError::WouldBlock)) => Lock::Held,
        Ok(Err(TryLockError::Error(_))) | Err(_) => Lock::Missing,
    }
}

/// Removes the lock file of a dead process. A process that removes a lock file holds its lock and checks
/// that the path still has this file, because another process may have created a new one.
fn remove_if_free(path: &Path) {
    let Ok(file) = fs::File::open(path) else { return };
    if file.try_lock().is_ok()
        && let (Ok(opened), Ok(there)) = (rustix::fs::fstat(&file), rustix::fs::lstat(path))
        && Identity::of(&opened) == Identity::of(&there)
    {
        _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests;
