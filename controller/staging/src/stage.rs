//! A stage: a directory of this user alone, on the io dir's filesystem, with the files that a run
//! works on, what the commit removed, and the journal. These files are a copy of the io dir, or the
//! upper layer of an overlay. An upper layer may be in a bounded directory instead: then a commit copies
//! what changed into the stage first, so that from there on it needs nothing else.
//!
//! It is next to the io dir, or inside it where that is impossible: the sandbox does not see the io
//! dir then. A [record](crate::records) names it, so that it is found after its controller was
//! killed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Mode, Stat, fchmod, fremovexattr, fstat, mkdirat, statat, syncfs, unlinkat,
};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};
use sandbox_api::changes::ChangeManifest;
use sandbox_dirfd::{FileStamp, Identity, Root, open_directory, path_of, random_hex};

use crate::bounded::BoundedDir;
use crate::commit::{self, Commit};
use crate::compare::{Comparison, compare};
use crate::copy::{Baseline, CopyBounds, LinkedFiles, copy_tree, finish, is_socket};
use crate::error::StageError;
use crate::journal::Journal;
use crate::location::{FILES, Location, PREFIX, keeping_times, make_directory, mount_of};
use crate::overlay;
use crate::records::{Record, Records};
use crate::tree::{entries, stamp_time, wait_for_tick};

/// A directory for the kernel, on behalf of the overlay.
const WORK: &str = "work";

/// A stage in use. Dropped, it is removed; after a commit that was interrupted it stays, and
/// [`Records::recover`] completes it.
#[derive(Debug)]
pub struct Stage {
    io_dir: OwnedFd,
    at: Location,
    records: Records,
    record: Record,
    files: OwnedFd,
    /// Where the files are, if they are not in the stage.
    image: Option<Arc<BoundedDir>>,
    /// The bounds of copies.
    bounds: CopyBounds,
    before: Before,
    /// A commit has started and is incomplete.
    is_interrupted: bool,
}

/// What was there before the run.
#[derive(Debug)]
enum Before {
    /// What was copied.
    Copied(Arc<Baseline>),
    /// The lower layer of the overlay, which is the io dir.
    Lower {
        work: OwnedFd,
        /// The io dir itself.
        root: FileStamp,
        /// When the stage was created.
        since: Timespec,
    },
}

/// How a stage keeps changes apart from the io dir.
#[derive(Debug, Clone)]
pub enum Method {
    /// A private copy of it.
    Copy,
    /// An overlay, if the engine can mount one. Only in a directory next to the io dir.
    Overlay,
    /// An overlay whose upper layer is in a bounded directory, which is empty.
    Image(Arc<BoundedDir>),
}

impl Stage {
    /// Creates a stage of the io dir. `bounds` is for copies. `reached` is called between the steps.
    ///
    /// # Errors
    ///
    /// [`StageError`] if something cannot be copied, or the io dir cannot be changed. Nothing is left
    /// then.
    pub fn create(
        io_dir: BorrowedFd<'_>,
        records: &Records,
        method: Method,
        bounds: CopyBounds,
        reached: &mut dyn FnMut(&'static str),
    ) -> Result<Self, StageError> {
        let name = format!("{PREFIX}{}", random_hex::<8>());
        // Next to the io dir or in it; a layer of an overlay cannot be inside another layer.
        let places: &[bool] = match method {
            Method::Copy => &[false, true],
            Method::Overlay | Method::Image(_) => &[false],
        };
        let mut last = io::ErrorKind::NotFound.into();
        for is_inside in places {
            match Location::make(io_dir, *is_inside, &name, records, reached) {
                Ok((at, record)) => {
                    let records = (records.clone(), record);
                    return Self::fill(io_dir, at, records, (method, bounds), reached);
                }
                Err(error) => last = error,
            }
        }
        Err(StageError::stage(path_of(io_dir).unwrap_or_default())(last))
    }

    fn fill(
        io_dir: BorrowedFd<'_>,
        at: Location,
        (records, record): (Records, Record),
        (method, bounds): (Method, CopyBounds),
        reached: &mut dyn FnMut(&'static str),
    ) -> Result<Self, StageError> {
        let staged = (|| {
            let io_dir = open_directory(io_dir, ".").map_err(StageError::at(b"."))?;
            let failed = |errno: Errno| StageError::stage(&at.path)(errno.into());
            let (files, before, image) = match method {
                Method::Copy => {
                    let files = at.make_directories().map_err(failed)?;
                    reached("empty");
                    let is_left_out = |name: &CStr, stat: &Stat| {
                        is_socket(stat) || name.to_bytes().starts_with(PREFIX.as_bytes())
                    };
                    let copied =
                        copy_tree(io_dir.as_fd(), files.as_fd(), &is_left_out, bounds, None)?;
                    copied.wait_for_tick();
                    (files, Before::Copied(Arc::new(copied)), None)
                }
                Method::Overlay => {
                    let files = at.make_directories().map_err(failed)?;
                    reached("empty");
                    let before = layer(&io_dir, &files, at.dir.as_fd()).map_err(failed)?;
                    (files, before, None)
                }
                Method::Image(image) => {
                    // A commit makes the directories, if there is one. A filesystem without the attributes,
                    // such as another overlay, may be no lower layer.
                    overlay::probe(&at.dir).map_err(failed)?;
                    reached("empty");
                    let upper = make_directory(image.files(), FILES).map_err(failed)?;
                    let before = layer(&io_dir, &upper, image.files().as_fd()).map_err(failed)?;
                    (upper, before, Some(image))
                }
            };
            Ok((io_dir, files, before, image))
        })();
        let (io_dir, files, before, image) = staged.inspect_err(|_| at.remove_with(&record))?;
        reached("filled");
        let is_interrupted = false;
        Ok(Self { io_dir, at, records, record, files, image, bounds, before, is_interrupted })
    }

    /// Copies what changed from its image into the stage, without the marks of the overlay.
    fn copy_changes(&self, comparison: &Comparison) -> Result<Baseline, StageError> {
        let failed = |errno: Errno| StageError::stage(&self.at.path)(errno.into());
        let to = self.at.make_directories().map_err(failed)?;
        let (from, linked) = (self.files.as_fd(), Some(LinkedFiles::default()));
        let copied = copy_tree(from, to.as_fd(), &|_, _| false, self.bounds, linked)?;
        let missing = comparison
            .changed
            .iter()
            .find(|(path, change)| change.now.is_some() && !copied.entries.contains_key(*path));
        match missing {
            Some((path, _)) => Err(StageError::at(path)(Errno::OPNOTSUPP)),
            None => Ok(copied),
        }
    }

    /// The copy, or the upper layer.
    pub fn files(&self) -> BorrowedFd<'_> {
        self.files.as_fd()
    }

    /// The work directory of the overlay; `None` if this is a copy.
    pub fn work(&self) -> Option<BorrowedFd<'_>> {
        match &self.before {
            Before::Copied(_) => None,
            Before::Lower { work, .. } => Some(work.as_fd()),
        }
    }

    /// Waits until every change of the io dir has a later time than those before the stage: kernels
    /// count it in ticks. Before anything runs in the sandbox.
    pub fn wait_for_tick(&self) {
        if let Before::Lower { since, .. } = self.before {
            wait_for_tick(stamp_time(since));
        }
    }

    /// Compares what the run left with the io dir as it was. Nothing may run in the sandbox any more.
    /// `view` is what the sandbox saw.
    ///
    /// # Errors
    ///
    /// [`StageError`] if something cannot be read, or is larger or deeper than can be compared.
    pub fn compare(&self, view: BorrowedFd<'_>) -> Result<Comparison, StageError> {
        let (lower, upper) = (self.io_dir.as_fd(), self.files.as_fd());
        match &self.before {
            Before::Copied(baseline) => compare(lower, upper, baseline),
            Before::Lower { root, since, .. } => {
                if let Some(image) = &self.image {
                    let incomplete = |source| StageError::Path { path: b".".to_vec(), source };
                    image.settle().map_err(incomplete)?;
                }
                let opened = overlay::Opened { lower, upper, view };
                overlay::compare(opened, *root, stamp_time(*since))
            }
        }
    }

    /// The manifest of what changed, with at most `most` changes.
    pub fn manifest(&self, comparison: &Comparison, most: usize) -> ChangeManifest {
        comparison.manifest(self.files.as_fd(), most)
    }

    /// A diff of what changed, in the format of git, with each path as `show` returns its bytes.
    /// The content is unescaped: escape it before printing on a terminal.
    pub fn diff(&self, comparison: &Comparison, show: &dyn Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
        comparison.diff(self.io_dir.as_fd(), self.files.as_fd(), show)
    }

    /// Moves what changed into the io dir, or nothing if something else changed the same paths.
    ///
    /// # Errors
    ///
    /// [`StageError`]. The io dir is unchanged, unless the commit has started: then the next
    /// command completes it.
    pub fn commit(
        &mut self,
        comparison: &Comparison,
        mut reached: impl FnMut(&'static str),
    ) -> Result<Commit, StageError> {
        if comparison.is_empty() {
            return Ok(Commit::Done);
        }
        let at = StageError::at(b".");
        let _lock = self.records.lock_for_commit()?;
        let io_dir = Root::new(self.io_dir.as_fd()).map_err(&at)?;
        let copied = match (&self.before, &self.image) {
            (Before::Copied(_), _) => None,
            (Before::Lower { .. }, None) => {
                let upper = Root::new(self.files.as_fd()).map_err(&at)?;
                overlay::clean(comparison, &upper).map_err(&at)?;
                None
            }
            (Before::Lower { .. }, Some(_)) => Some(self.copy_changes(comparison)?),
        };
        let mut journal = Journal::new();
        commit::plan(comparison, copied.as_ref(), &mut journal);
        journal.write(self.at.dir.as_fd()).map_err(StageError::stage(&self.at.path))?;
        // What is moved, and what says so, is on the disk before anything moves.
        syncfs(&self.at.dir).map_err(&at)?;
        reached("synced");
        // Only now, because that may take long.
        let mut conflicts = commit::conflicts(comparison, &io_dir);
        if fstat(&self.io_dir).map_err(&at)?.st_nlink == 0 {
            conflicts.push(b".".to_vec());
        }
        if !conflicts.is_empty() {
            return Ok(Commit::Conflicts(conflicts));
        }
        reached("planned");
        self.record.begin().map_err(StageError::stage(&self.at.path))?;
        if let Err(errno) = Journal::begin(self.at.dir.as_fd()) {
            // Without its name it is not a commit: nothing is left of it then.
            self.is_interrupted = Journal::is_written(self.at.dir.as_fd());
            return Err(StageError::stage(&self.at.path)(errno.into()));
        }
        self.is_interrupted = true;
        reached("journaled");
        let mut left = self.at.apply(&journal, &io_dir, &mut reached)?;
        self.at.set_directories(&journal, &io_dir, &mut left)?;
        self.at.end()?;
        self.record.end();
        self.is_interrupted = false;
        reached("applied");
        let kept = [left.conflicts, left.blocked].concat();
        Ok(if kept.is_empty() { Commit::Done } else { Commit::Partial(kept) })
    }
}

#[cfg(test)]
impl Stage {
    /// Leaves everything as `kill -9` of its controller does.
    pub fn die(mut self) {
        self.is_interrupted = true;
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.is_interrupted {
            self.at.remove_with(&self.record);
        }
    }
}

/// Prepares the upper layer of an overlay of `io_dir`, and its work directory in `parent`.
fn layer(io_dir: &OwnedFd, upper: &OwnedFd, parent: BorrowedFd<'_>) -> Result<Before, Errno> {
    overlay::probe(upper)?;
    let stat = fstat(io_dir)?;
    finish(io_dir, upper, &stat)?;
    let (work, root) = (make_directory(parent, WORK)?, FileStamp::of(&stat));
    Ok(Before::Lower { work, root, since: clock_gettime(ClockId::Realtime) })
}

impl Location {
    /// Records and creates the stage in the io dir or next to it, if its content can be renamed
    /// into the io dir. Both are reached by the io dir's descriptor: a path may lead elsewhere by
    /// now.
    fn make(
        io_dir: BorrowedFd<'_>,
        is_inside: bool,
        name: &str,
        records: &Records,
        reached: &mut dyn FnMut(&'static str),
    ) -> io::Result<(Self, Record)> {
        let fd = open_directory(io_dir, if is_inside { "." } else { ".." })?;
        if mount_of(&fd)? != mount_of(io_dir)? {
            return Err(Errno::XDEV.into());
        }
        let io_path = path_of(io_dir)?;
        let path = path_of(&fd)?.join(name);
        if !is_inside {
            let io_name = io_path.file_name().unwrap_or_default();
            let found = statat(&fd, io_name, AtFlags::SYMLINK_NOFOLLOW)?;
            if Identity::of(&found) != Identity::of(&fstat(io_dir)?) {
                // It was moved meanwhile.
                return Err(Errno::NOENT.into());
            }
        }
        let mut record = records.create(&path, &io_path, io_dir)?;
        reached("recorded");
        let made = (|| {
            keeping_times(&fd, is_inside, || mkdirat(&fd, name, Mode::RWXU))?;
            reached("created");
            let dir = open_directory(&fd, name)?;
            if !entries(dir.as_fd())?.is_empty() {
                // Not the directory that was created: leave it alone.
                return Err(Errno::NOTEMPTY.into());
            }
            // What the parent's owner wants of new files is not for these.
            for acl in ["system.posix_acl_default", "system.posix_acl_access"] {
                _ = fremovexattr(&dir, acl);
            }
            fchmod(&dir, Mode::RWXU)?;
            record.add(&dir)?;
            io::Result::Ok(dir)
        })();
        let dir = made.inspect_err(|_| {
            _ = keeping_times(&fd, is_inside, || unlinkat(&fd, name, AtFlags::REMOVEDIR));
            record.remove();
        })?;
        Ok((Self { parent: fd, name: name.into(), path, dir, is_inside }, record))
    }

    fn remove_with(&self, record: &Record) {
        if self.remove() {
            record.remove();
        }
    }
}
