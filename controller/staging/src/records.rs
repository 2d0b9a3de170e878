//! Records of stages: how a stage is found after its controller was killed, or the power was cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, fsync, unlinkat};
use rustix::io::Errno;
use sandbox_api::{CommitConflicts, LeftStage, SomePaths};
use sandbox_dirfd::{Root, check_private_dir, create_private_dir, open_directory};
use serde::{Deserialize, Serialize};

use crate::commit;
use crate::error::StageError;
use crate::journal::Journal;
use crate::location::{FILES, Location, PREFIX, keeping_times, mount_of};
use crate::tree::Inode;

/// The extension of a record that is being written.
const PART: &str = "part";
/// How often to try again if others take a record that is being written for one left over.
const TRIES: usize = 100;
/// How long the record of an earlier boot is kept if its stage is not there: its filesystem may not be
/// mounted yet.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);
/// The maximum number of commits whose conflicts are remembered.
const MAX_CONFLICTS: usize = 100;

/// The records of this user's stages on this machine. They outlast a reboot.
///
/// A controller has a shared lock on the record of a stage in use. Who completes what a dead one
/// left has an exclusive lock on it.
#[derive(Debug, Clone)]
pub struct Records {
    directory: PathBuf,
    lock: PathBuf,
    boot: String,
    host: String,
    conflicts: ConflictLog,
}

/// What recoveries of one process could not commit: clones share it.
#[derive(Debug, Clone, Default)]
pub struct ConflictLog(Arc<Mutex<Vec<CommitConflicts>>>);

impl ConflictLog {
    /// What was found since the last time.
    pub fn take(&self) -> Vec<CommitConflicts> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, conflicts: CommitConflicts) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() < MAX_CONFLICTS {
            log.push(conflicts);
        }
    }
}

/// The content of a record. A writer of the stage's parent directory could swap the stage, so the
/// stage is identified by its inode, and so is the io dir.
#[derive(Debug, Serialize, Deserialize)]
struct Recorded {
    /// The machine.
    host: String,
    /// The boot of the machine: devices may have other numbers after the next.
    boot: String,
    path: PathBuf,
    /// `None` until it is there.
    stage: Option<Inode>,
    io_path: PathBuf,
    io_dir: Inode,
    /// A commit has started, or is about to: it is completed, even if its directories were moved.
    #[serde(default)]
    is_committing: bool,
}

/// The record of a stage in use.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    /// Holds the lock.
    file: File,
    recorded: Recorded,
}

impl Records {
    /// The name of the directory of records.
    pub const NAME: &str = "stages";

    /// The records in a directory of `parent`, which only this user may access: what a record says is
    /// done. Both are created when there is something to record. `lock` is a file or directory that all
    /// commits of this user lock, so that they take turns. `boot` identifies this boot of this machine.
    pub fn new(parent: &Path, lock: PathBuf, boot: String) -> Self {
        // Home directories are shared by machines and containers, and locks are not.
        let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let name = rustix::system::uname();
        let host = format!("{}:{}", machine.trim(), name.nodename().to_string_lossy());
        let conflicts = ConflictLog::default();
        Self { directory: parent.join(Self::NAME), lock, boot, host, conflicts }
    }

    /// What [`recover`](Self::recover) could not commit because something else had changed it.
    pub const fn conflicts(&self) -> &ConflictLog {
        &self.conflicts
    }

    fn private_directories(&self) -> impl Iterator<Item = &Path> {
        self.directory.parent().into_iter().chain([&*self.directory])
    }

    /// Waits for the turn to commit; it ends with the returned file.
    pub(crate) fn lock_for_commit(&self) -> Result<File, StageError> {
        let locked = (|| {
            let file = File::open(&self.lock)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        })();
        locked.map_err(StageError::stage(&self.lock))
    }

    /// Records that there will be a stage at `path`.
    pub(crate) fn create(
        &self,
        path: &Path,
        io_path: &Path,
        io_dir: impl AsFd,
    ) -> io::Result<Record> {
        for directory in self.private_directories() {
            create_private_dir(directory)?;
        }
        let recorded = Recorded {
            host: self.host.clone(),
            boot: self.boot.clone(),
            path: path.to_owned(),
            stage: None,
            io_path: io_path.to_owned(),
            io_dir: Inode::of(io_dir)?,
            is_committing: false,
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let path = self.directory.join(name.trim_start_matches(PREFIX));
        let file = recorded.write(&path)?;
        Ok(Record { path, file, recorded })
    }

    /// Completes the commits that dead controllers began, and removes the stages of all others. What
    /// cannot be completed stays, and is tried again the next time: so does a commit whose stage or io dir
    /// is elsewhere, or that something mounted in the io dir keeps from a path.
    pub fn recover(&self) {
        for (path, recorded, file) in self.left() {
            if let Err(error) = self.recover_one(&path, recorded, &file) {
                tracing::warn!(record = %path.display(), %error, "cannot complete a commit");
            }
        }
    }

    /// The stages that dead controllers left.
    pub fn leftovers(&self) -> Vec<LeftStage> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let stages = self.left().filter_map(|(record, recorded, _)| {
            let recorded = recorded?;
            let stage = self.find(&recorded).ok().flatten();
            let is_interrupted = match &stage {
                Some(stage) => recorded.stage.is_some() && Journal::is_written(stage.dir.as_fd()),
                None if recorded.is_committing => true,
                None => return None,
            };
            let Recorded { path, io_path, .. } = &recorded;
            let io_dir = is_interrupted.then(|| self.find_io_dir(&recorded).ok().flatten());
            let has_io_dir = io_dir.as_ref().is_none_or(Option::is_some);
            let places = [(path, stage.is_some()), (io_path, has_io_dir)];
            let missing = places.into_iter().filter(|(_, is_there)| !is_there);
            let blocked = match (&stage, io_dir.flatten()) {
                (Some(stage), Some(io_dir)) => blocked(stage, &io_dir).unwrap_or_default(),
                _ => Vec::new(),
            };
            Some(LeftStage {
                is_interrupted,
                blocked: SomePaths::of(&blocked),
                missing: missing.map(|(path, _)| text(path)).collect(),
                record: text(&record),
                path: text(path),
                io_dir: text(io_path),
            })
        });
        stages.collect()
    }

    /// The records of unused stages, locked; without their content if they are incomplete.
    fn left(&self) -> impl Iterator<Item = (PathBuf, Option<Recorded>, File)> {
        let is_private = self.private_directories().all(|it| check_private_dir(it).is_ok());
        let entries = is_private.then(|| fs::read_dir(&self.directory).ok()).flatten();
        entries.into_iter().flatten().flatten().filter_map(|entry| {
            let path = entry.path();
            let mut file = unused(&path)?;
            let mut text = Vec::new();
            file.read_to_end(&mut text).ok()?;
            // A record that was not renamed into place does not count, even if complete.
            let is_part = path.extension().is_some_and(|extension| extension == PART);
            let recorded: Option<Recorded> = serde_json::from_slice(&text).ok();
            let recorded = recorded.filter(|_| !is_part);
            let is_here = recorded.as_ref().is_none_or(|it| it.host == self.host);
            is_here.then_some((path, recorded, file))
        })
    }

    fn recover_one(
        &self,
        record: &Path,
        recorded: Option<Recorded>,
        file: &File,
    ) -> Result<(), StageError> {
        let forget = || match fs::remove_file(record) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StageError::stage(record)(error))
            }
            _ => Ok(()),
        };
        // Without its end: its stage was not made yet.
        let Some(mut recorded) = recorded else { return forget() };
        let _lock = self.lock_for_commit()?;
        let Some(at) = self.find(&recorded)? else {
            return match recorded.is_committing {
                true => Err(missing(&recorded.path)),
                // Its filesystem may not be mounted yet.
                false if recorded.boot != self.boot && age(file) < FORGOTTEN => Ok(()),
                false => forget(),
            };
        };
        if recorded.stage.is_none() {
            // It was killed before it knew its stage, which is empty then.
            let remove = || unlinkat(&at.parent, &at.name, AtFlags::REMOVEDIR);
            _ = keeping_times(&at.parent, at.is_inside, remove);
            return forget();
        }
        if let Some(journal) = Journal::read(at.dir.as_fd()).map_err(StageError::stage(&at.path))? {
            let io_dir = self.find_io_dir(&recorded)?.ok_or_else(|| missing(&recorded.io_path))?;
            let root = Root::new(io_dir.as_fd()).map_err(StageError::at(b"."))?;
            let mut left = at.apply(&journal, &root, &mut |_| {})?;
            if left.blocked.is_empty() {
                at.set_directories(&journal, &root, &mut left)?;
            }
            if let Some(path) = left.blocked.first() {
                return Err(StageError::MountPoint { path: path.clone() });
            }
            // Before the end: a recovery that is interrupted here finds them again.
            if !left.conflicts.is_empty() {
                self.conflicts.add(CommitConflicts {
                    io_dir: recorded.io_path.to_string_lossy().into_owned(),
                    paths: SomePaths::of(&left.conflicts),
                });
            }
            at.end()?;
        }
        // Before its stage is removed, which a commit that has not ended would need.
        let was_committing = std::mem::take(&mut recorded.is_committing);
        let _held = was_committing.then(|| recorded.write(record));
        if at.remove() {
            forget()?;
        }
        Ok(())
    }

    /// The recorded stage; `None` if it is not there, or if what is there is something else.
    fn find(&self, recorded: &Recorded) -> Result<Option<Location>, StageError> {
        let Recorded { path, stage, io_path, .. } = recorded;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let found = (|| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let parent = rustix::fs::open(parent, flags, Mode::empty())?;
            let dir = open_directory(&parent, name)?;
            Ok((Inode::of(&dir)?, parent, dir))
        })();
        let Some((inode, parent, dir)) = if_there(path, found)? else { return Ok(None) };
        if stage.is_some_and(|stage| !self.is_same(recorded, stage, inode)) {
            return Ok(None);
        }
        let is_inside = path.parent() == Some(io_path);
        Ok(Some(Location { parent, name: name.to_owned(), path: path.clone(), dir, is_inside }))
    }

    /// The recorded io dir; `None` if it is not there, or if what is there is something else.
    fn find_io_dir(&self, recorded: &Recorded) -> Result<Option<OwnedFd>, StageError> {
        let found = open_directory(CWD, &recorded.io_path);
        let found = found.and_then(|found| Ok((Inode::of(&found)?, found)));
        let found = if_there(&recorded.io_path, found)?;
        let found = found.filter(|(inode, _)| self.is_same(recorded, recorded.io_dir, *inode));
        Ok(found.map(|(_, io_dir)| io_dir))
    }

    /// Whether an inode is one of a record.
    fn is_same(&self, recorded: &Recorded, inode: Inode, found: Inode) -> bool {
        let is_of_this_boot = recorded.boot == self.boot;
        found == inode || !is_of_this_boot && Inode { device: inode.device, ..found } == inode
    }
}

impl Record {
    /// Records the stage itself, which is there now.
    pub fn add(&mut self, stage: impl AsFd) -> io::Result<()> {
        self.recorded.stage = Some(Inode::of(stage)?);
        self.file = self.recorded.write(&self.path)?;
        Ok(())
    }

    /// Records the start of a commit, durably.
    pub fn begin(&mut self) -> io::Result<()> {
        self.recorded.is_committing = true;
        self.file = self.recorded.write(&self.path)?;
        let directory = self.path.parent().map(File::open).transpose()?;
        Ok(directory.map_or(Ok(()), fsync)?)
    }

    /// Records that the commit has ended. Where that fails, who is killed between the removal of the
    /// stage and that of the record leaves a commit that seems to need its stage.
    pub fn end(&mut self) {
        self.recorded.is_committing = false;
        if let Ok(file) = self.recorded.write(&self.path) {
            self.file = file;
        }
    }

    /// Removes it, because nothing is left of the stage.
    pub fn remove(&self) {
        _ = fs::remove_file(&self.path);
    }
}

impl Recorded {
    /// Never there in part. The returned file holds a lock.
    fn write(&self, path: &Path) -> io::Result<File> {
        let part = path.with_extension(PART);
        let text = serde_json::to_vec(self)?;
        let mut result = Err(io::ErrorKind::NotFound.into());
        for _ in 0..TRIES {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&part)?;
            // On a filesystem without locks, no other process can lock it for removal either.
            if flock(&file, FlockOperation::NonBlockingLockShared) != Err(Errno::WOULDBLOCK) {
                file.write_all(&text)?;
                if self.is_committing {
                    fsync(&file)?;
                }
                result = fs::rename(&part, path).map(|()| file);
                if !result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                    break;
                }
            }
            // Another process was faster than the lock.
            _ = fs::remove_file(&part);
        }
        result
    }
}

/// The record of a stage, with an exclusive lock; `None` if the stage is in use, or if another process
/// has removed the record.
fn unused(record: &Path) -> Option<File> {
    // Network filesystems give exclusive locks only to writers.
    let file = OpenOptions::new().read(true).write(true).open(record).ok()?;
    if let Err(errno) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        let is_shared = || flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
        if errno != Errno::WOULDBLOCK || is_shared() {
            return None;
        }
        // Another process is completing the commit: wait, so that this one sees a complete io dir.
        flock(&file, FlockOperation::LockExclusive).ok()?;
    }
    (fstat(&file).ok()?.st_nlink > 0).then_some(file)
}

/// `None` if nothing is there, or no directory.
fn if_there<T>(path: &Path, found: Result<T, Errno>) -> Result<Option<T>, StageError> {
    match found {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        found => found.map(Some).map_err(|errno| StageError::stage(path)(errno.into())),
    }
}

/// The paths that an interrupted commit cannot move now because something is mounted there.
fn blocked(stage: &Location, io_dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let Some(journal) = Journal::read(stage.dir.as_fd())? else { return Ok(Vec::new()) };
    if mount_of(io_dir)? != mount_of(&stage.dir)? {
        return Ok(vec![b".".to_vec()]);
    }
    let copy = stage.open(FILES)?;
    let (io_dir, copy) = (Root::new(io_dir.as_fd())?, Root::new(copy.as_fd())?);
    Ok(commit::blocked(&journal, &io_dir, &copy))
}

/// A missing directory of a commit that must be completed.
fn missing(path: &Path) -> StageError {
    let reason = "what an interrupted commit needs is not there; `sandboxctl gc` says what to do";
    StageError::stage(path)(io::Error::other(reason))
}

/// How long ago a file was written; zero if that is unknown.
fn age(file: &File) -> Duration {
    let modified = file.metadata().and_then(|metadata| metadata.modified());
    modified.ok().and_then(|modified| modified.elapsed().ok()).unwrap_or_default()
}
