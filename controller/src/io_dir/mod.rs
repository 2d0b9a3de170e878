//! The io dir on the host: opened once, held open, and never looked up by path again.

pub(crate) mod inputs;
pub(crate) mod path_map;
pub(crate) mod private;
pub(crate) mod staged;
pub(crate) mod touched;
pub(crate) mod write_monitor;

use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fs, io};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sandbox_api::{Disk, DiskBackend, DiskBound, DiskReserve, Limits, SandboxSpec};
use sandbox_dirfd::{
    Access, DiskUsage, FreeSpace, Identity, Links, check_access, open_path, path_of,
};
use sandbox_engine::{Layers, Source};
use sandbox_staging::bounded::BoundedDir;
use sandbox_staging::created::{self, CreatedDirs, hold};
use sandbox_staging::fresh::FreshDir;
use sandbox_staging::{CopyBounds, Method, NewDirectory, Records, Stage, StageError, copy_out};

use crate::error::{CLOSED, Error};

/// The files of a private io dir, until it ends or they are kept.
#[derive(Debug)]
enum PrivateFiles {
    /// A directory on disk.
    Fresh(FreshDir),
    /// A file system of their own, which ends with its last descriptor.
    Bounded,
}

/// An open io dir.
#[derive(Debug)]
pub(crate) struct IoDir {
    /// Absolute, without symbolic links.
    path: PathBuf,
    /// The source of its mount.
    pub source: Source,
    /// Its files; of an overlay, the upper layer.
    files: Arc<OwnedFd>,
    pub identity: Identity,
    pub owner: (u32, u32),
    /// It is removed with its sandbox, and callers do not use its path.
    is_private: bool,
    /// A shared lock, which marks it as in use.
    hold: Mutex<Option<OwnedFd>>,
    /// The directories that were created for it.
    made: Option<CreatedDirs>,
    /// Its files, if it is private.
    private: Mutex<Option<PrivateFiles>>,
    /// The file system that bounds it.
    bounded: Option<Arc<BoundedDir>>,
    /// Why nothing bounds it, if it was to be bounded.
    unbounded: Option<String>,
    /// The path that callers know, if this is a stage.
    shown: Option<PathBuf>,
    /// The io dir that this stages, until its changes are committed or discarded.
    staged: Mutex<Option<Box<StagedIoDir>>>,
    /// The sandbox's view, if that is an overlay.
    view: Mutex<Option<Arc<OwnedFd>>>,
}

/// An io dir whose sandbox works on a stage of it. Dropping it discards the changes.
#[derive(Debug)]
pub(crate) struct StagedIoDir {
    stage: Stage,
    io_dir: IoDir,
    /// The copy, or the upper layer.
    files: Source,
}

impl Drop for StagedIoDir {
    fn drop(&mut self) {
        self.io_dir.release();
    }
}

/// How an io dir is to be staged.
#[derive(Debug)]
pub(crate) enum Staging {
    Copy,
    /// By an overlay with its upper layer in this image, or why there is no image: then next to the io
    /// dir. By a copy if no overlay is possible.
    Overlay(Result<BoundedDir, String>),
}

/// A stage, its files, and the layers of the overlay, if it is to be one.
type Staged = (Stage, IoDir, Option<Layers>);

/// How often to retry opening an io dir that others remove at the same time.
const TRIES: usize = 100;

impl IoDir {
    /// Opens the io dir, creating it if it is missing, for `owner`, and records in `records` what was
    /// created.
    pub fn make(
        given: &Path,
        links: Links,
        records: &Path,
        owner: Option<(u32, u32)>,
    ) -> Result<Self, Error> {
        let refuse = |reason: String| Error::IoDir { path: given.to_owned(), reason };
        let path = absolute(given).map_err(refuse)?;
        let mut tries = 0;
        loop {
            tries += 1;
            match Self::make_at(&path, links, records, owner) {
                Ok(io_dir) => return Ok(io_dir),
                Err(reason) if tries == TRIES || is_something_else(&path) => {
                    return Err(refuse(reason));
                }
                // Another run may have created it, and may be removing it.
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    fn make_at(
        path: &Path,
        links: Links,
        records: &Path,
        owner: Option<(u32, u32)>,
    ) -> Result<Self, String> {
        let created = CreatedDirs::make(path, records, links, owner);
        let created = created.map_err(|error| error.to_string())?;
        let held = Self::open_at(path, links).and_then(|io_dir| match hold(io_dir.fd()) {
            Ok(hold) => Ok(Self { hold: Mutex::new(hold), ..io_dir }),
            Err(errno) => Err(io::Error::from(errno).to_string()),
        });
        let held = held.inspect_err(|_| created.remove_if_empty());
        held.map(|io_dir| Self { made: Some(created), ..io_dir })
    }

    /// Stages an io dir: returns the copy, or the upper layer of the overlay. The stage is recorded
    /// in `stages`; a copy leaves `reserve` free.
    pub fn staged(
        self,
        stages: &Records,
        (method, reserve): (Staging, DiskReserve),
        reached: &mut dyn FnMut(&'static str),
    ) -> Result<Self, Error> {
        let refuse = |reason: String| Error::IoDir {
            path: self.path.clone(),
            reason: format!("it cannot be staged: {reason}"),
        };
        let (stage, opened, overlay) = match self.stage(stages, method, reserve, reached) {
            Ok(staged) => staged,
            Err(reason) => {
                self.release();
                return Err(refuse(reason));
            }
        };
        let source = match &overlay {
            Some(_) => Source { overlay, ..self.source.clone() },
            None => opened.source.clone(),
        };
        let (shown, files) = (Some(self.path.clone()), opened.source.clone());
        let staged = StagedIoDir { stage, io_dir: self, files };
        Ok(Self { source, shown, staged: Mutex::new(Some(Box::new(staged))), ..opened })
    }

    /// Stages it, by a copy if an overlay is impossible.
    fn stage(
        &self,
        records: &Records,
        method: Staging,
        reserve: DiskReserve,
        reached: &mut dyn FnMut(&'static str),
    ) -> Result<Staged, String> {
        let size = FreeSpace::of(self.fd()).map_or(0, |space| space.size);
        let bounds = CopyBounds { reserve: reserve.of(size), ..CopyBounds::default() };
        let mut unbounded = only_directories();
        if let Staging::Overlay(image) = method {
            let image = image.and_then(|image| {
                let image = Arc::new(image);
                let staged = self.overlay(Some(&image), records, bounds, reached);
                staged.map_err(|reason| format!("no overlay in a bounded directory: {reason}"))
            });
            match image {
                Ok(staged) => return Ok(staged),
                Err(reason) => {
                    tracing::warn!(reason, "a staged io dir is watched, not bounded");
                    unbounded = reason;
                }
            }
            match self.overlay(None, records, bounds, reached) {
                Ok((stage, files, layers)) => {
                    return Ok((stage, Self { unbounded: Some(unbounded), ..files }, layers));
                }
                Err(reason) => tracing::debug!(reason, "no overlay of the io dir"),
            }
        }
        let stage = Stage::create(self.fd(), records, Method::Copy, bounds, reached);
        let stage = stage.map_err(|error| error.to_string())?;
        let files = Self::of_stage(&stage)?;
        Ok((stage, Self { unbounded: Some(unbounded), ..files }, None))
    }

    /// By an overlay, whose upper layer is in the `image` if there is one.
    fn overlay(
        &self,
        image: Option<&Arc<BoundedDir>>,
        records: &Records,
        bounds: CopyBounds,
        reached: &mut dyn FnMut(&'static str),
    ) -> Result<Staged, String> {
        let method = image.cloned().map_or(Method::Overlay, Method::Image);
        let stage = Stage::create(self.fd(), records, method, bounds, reached);
        let stage = stage.map_err(|error| error.to_string())?;
        let files = match image {
            Some(image) => self.in_image(&stage, image.clone())?,
            None => Self::of_stage(&stage)?,
        };
        let work = stage.work().ok_or("it has no work directory")?.try_clone_to_owned();
        let work = Arc::new(work.map_err(|error| error.to_string())?);
        let (lower, upper) = (self.files.clone(), files.files.clone());
        let layers = Layers::new(lower, upper, work).map_err(|error| error.to_string())?;
        Ok((stage, files, Some(layers)))
    }

    /// Opens an existing io dir.
    ///
    /// A symbolic link as the last component is refused: the default io dir is in the working
    /// directory, which may be someone else's repository, containing a link to anywhere.
    pub fn open(given: &Path, links: Links) -> Result<Self, Error> {
        let refuse = |reason: String| Error::IoDir { path: given.to_owned(), reason };
        absolute(given).and_then(|path| Self::open_at(&path, links)).map_err(refuse)
    }

    fn open_at(path: &Path, links: Links) -> Result<Self, String> {
        let io = |error: io::Error| error.to_string();
        let metadata = fs::symlink_metadata(path).map_err(io)?;
        if metadata.is_symlink() {
            let target = fs::canonicalize(path).unwrap_or_default();
            return Err(format!("it is a symbolic link; name its target, {}", target.display()));
        }
        if !metadata.is_dir() {
            return Err("it is not a directory".to_owned());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let dir = open_path(path, flags, links).map_err(|errno| match errno {
            Errno::LOOP => "a symbolic link is in its path".to_owned(),
            errno => io(errno.into()),
        })?;
        // Otherwise users of the engine could open the directories of others through it.
        let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        check_access(&dir, all).map_err(|errno| format!("{CLOSED}: {}", io(errno.into())))?;
        Self::of(dir)
    }

    /// The files of a stage. Its path may have been redirected: it is next to the io dir, or in it,
    /// where another run may write.
    fn of_stage(stage: &Stage) -> Result<Self, String> {
        stage.files().try_clone_to_owned().map_err(|error| error.to_string()).and_then(Self::of)
    }

    /// The files of a stage of it in an image, which have no path.
    fn in_image(&self, stage: &Stage, image: Arc<BoundedDir>) -> Result<Self, String> {
        let files = stage.files().try_clone_to_owned().map_err(|error| error.to_string())?;
        let stat = rustix::fs::fstat(&files).map_err(|errno| io::Error::from(errno).to_string())?;
        let files = Arc::new(files);
        let source = Source::private(files.clone(), None);
        let opened = Self::opened(self.path.clone(), source, files, &stat);
        Ok(Self { bounded: Some(image), ..opened })
    }

    fn of(fd: OwnedFd) -> Result<Self, String> {
        let io = |error: io::Error| error.to_string();
        let stat = rustix::fs::fstat(&fd).map_err(|errno| io(errno.into()))?;
        let path = path_of(&fd).map_err(|errno| io(errno.into()))?;
        if path == Path::new("/") {
            return Err("it is the root of the whole system".to_owned());
        }
        let text = path.to_str().ok_or_else(|| "its path is not UTF-8".to_owned())?.to_owned();
        let files = Arc::new(fd);
        Ok(Self::opened(path, Source::new(text, files.clone()), files, &stat))
    }

    fn opened(path: PathBuf, source: Source, files: Arc<OwnedFd>, stat: &Stat) -> Self {
        Self {
            path,
            source,
            files,
            identity: Identity::of(stat),
            owner: (stat.st_uid, stat.st_gid),
            is_private: false,
            hold: Mutex::default(),
            made: None,
            private: Mutex::default(),
            bounded: None,
            unbounded: None,
            shown: None,
            staged: Mutex::default(),
            view: Mutex::default(),
        }
    }

    /// Its files. With an [overlay](Self::lower), only those that its sandbox changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.files.as_fd()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its path on the host; `None` if it is private, because it is removed with its sandbox.
    pub fn host_path(&self) -> Option<&Path> {
        self.shown.as_deref().or(Some(&self.path)).filter(|_| !self.is_private)
    }

    /// The staged io dir and the stage, unless that is in an image: both must be mountable.
    pub fn staged_sources(&self) -> Vec<Source> {
        let staged = crate::lock(&self.staged);
        let sources =
            |staged: &StagedIoDir| vec![staged.io_dir.source.clone(), staged.files.clone()];
        let mut sources = staged.as_deref().map(sources).unwrap_or_default();
        sources.retain(|source| !source.is_private());
        sources
    }

    /// A path of the caller's directory that cannot be redirected.
    pub fn host_dir(&self) -> PathBuf {
        let staged = crate::lock(&self.staged);
        let source = staged.as_ref().map_or(&self.source, |staged| &staged.io_dir.source);
        format!("/proc/self/fd/{}", source.file.as_raw_fd()).into()
    }

    /// Takes what decides about the changes, if this is a stage. If it is not taken, the changes
    /// are discarded at the end.
    pub fn take_staged(&self) -> Option<Box<StagedIoDir>> {
        crate::lock(&self.staged).take()
    }

    /// Opens what the sandbox sees at `path`, given the sandbox's first process: the overlay, which
    /// the engine has mounted. It must be the one that the agent `reported`.
    pub fn open_view(&self, init: u32, path: &str, reported: Identity) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{init}/root"), flags, Mode::empty())?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let view = rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve)?;
        if Identity::of(&rustix::fs::fstat(&view)?) != reported {
            return Err(io::Error::other("it is not what the agent sees"));
        }
        self.set_view(view);
        Ok(())
    }

    /// The same of an overlay that this process has mounted; whether that is what the agent `reported`.
    pub fn has_mounted(&self, reported: Identity) -> bool {
        let view = self.source.overlay.as_ref().and_then(|layers| layers.take_root(reported));
        view.map(|view| self.set_view(view)).is_some()
    }

    fn set_view(&self, view: OwnedFd) {
        let staged = crate::lock(&self.staged);
        if let Some(staged) = &*staged {
            staged.stage.wait_for_tick();
        }
        *crate::lock(&self.view) = Some(Arc::new(view));
    }

    /// The sandbox's view.
    pub fn view(&self) -> Arc<OwnedFd> {
        let view = crate::lock(&self.view);
        view.as_ref().unwrap_or(&self.files).clone()
    }

    /// What the sandbox sees, if it is in a file system that ends with its last user.
    pub fn own_mount(&self) -> Option<Arc<OwnedFd>> {
        self.bounded.as_ref().map(|_| self.view())
    }

    /// The lower layer of its overlay.
    pub fn lower(&self) -> Option<BorrowedFd<'_>> {
        self.source.overlay.as_ref().map(|layers| layers.lower())
    }

    /// A directory of the filesystem whose space it takes; `None` if it is in memory.
    pub fn disk(&self) -> Option<BorrowedFd<'_>> {
        match &self.bounded {
            Some(bounded) => bounded.disk(),
            None => Some(self.fd()),
        }
    }

    /// What fits in it, if the kernel enforces that.
    pub fn bounds(&self) -> Option<DiskUsage> {
        self.bounded.as_deref().map(BoundedDir::size)
    }

    /// Waits until what was written can be read, before files are taken out of it.
    pub fn settle(&self) -> io::Result<()> {
        self.bounded.as_ref().map_or(Ok(()), |bounded| bounded.settle())
    }

    /// What bounds the disk space that programs with these limits take in it, for documents.
    pub fn describe_disk(&self, limits: &Limits) -> Disk {
        let DiskUsage { bytes, entries } = self.bounds().unwrap_or_else(|| size_of(limits));
        let (bound, backend) = match &self.bounded {
            Some(bounded) => (DiskBound::Kernel, bounded.backend()),
            None => (DiskBound::Watched, DiskBackend::Directory),
        };
        Disk { bound, backend, bytes, entries, reason: self.unbounded.clone() }
    }

    /// Writes a file with unpredictable content, which any user of the sandbox can read.
    pub fn write_nonce(&self) -> io::Result<Nonce<'_>> {
        let name = format!(".sandboxctl-{}", sandbox_dirfd::random_hex::<8>());
        let content = sandbox_dirfd::random_hex::<16>();
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.fd(), &name, flags, Mode::RUSR | Mode::WUSR)?;
        let nonce = Nonce { io_dir: self, name, content };
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        fs::File::from(file).write_all(nonce.content.as_bytes())?;
        Ok(nonce)
    }

    /// Keeps the files of a private io dir in a new directory `to`: by a move if they are in a
    /// directory of the host, which the sandbox still sees, and else by a copy.
    pub fn keep(&self, to: &Path) -> Result<(), Error> {
        let mut private = crate::lock(&self.private);
        let kept = match private.as_ref().ok_or(Error::NoFreshIoDir)? {
            PrivateFiles::Fresh(dir) => dir.keep(to),
            PrivateFiles::Bounded => self
                .settle()
                .and_then(|()| NewDirectory::at(to))
                .and_then(|to| copy_out(self.fd(), &to).map_err(StageError::into_io)),
        };
        kept.map_err(|source| Error::KeepIoDir { path: to.to_owned(), source })?;
        *private = None;
        Ok(())
    }

    /// Ends the use of the io dir: a fresh one is removed, and so are directories that were created
    /// for a named one, if they are empty.
    pub fn release(&self) {
        drop(crate::lock(&self.view).take());
        drop(self.take_staged());
        if let Some(Err(error)) = self.bounded.as_ref().and_then(|bounded| bounded.settle_kept()) {
            tracing::error!(%error, "an io dir that is kept has lost files");
        }
        drop(crate::lock(&self.private).take());
        if let Some(held) = crate::lock(&self.hold).take() {
            created::release(&held);
        }
        if let Some(made) = &self.made {
            made.remove_if_empty();
        }
    }
}

/// Why an engine is given no image to mount.
pub(crate) fn only_directories() -> String {
    let why = match rustix::process::geteuid().is_root() {
        true => "the engine mounts directories only",
        false => "only root can make a file system",
    };
    why.to_owned()
}

/// The size of an io dir that holds what limits permit to write.
pub(crate) fn size_of(limits: &Limits) -> DiskUsage {
    DiskUsage { bytes: limits.max_write.as_u64(), entries: limits.entries.get().into() }
}

/// How to treat links in the paths of a spec.
pub(crate) const fn links_of(spec: &SandboxSpec) -> Links {
    if spec.no_symlinks { Links::Refuse } else { Links::Follow }
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

#[cfg(test)]
mod tests;
