//! The mounts of the sandbox, opened once, before any user input is read.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;
use sandbox_protocol::argv::AgentArgs;
use sandbox_protocol::limits::IO_IS_OFF;
use sandbox_protocol::message::{Access, EntryKind, MountIdentity};
use sandbox_protocol::path::{GuestPath, INPUTS, PathError, ResolvedPath};
use sandbox_protocol::{ErrorKind, argv};

use super::error::{FileError, OUTSIDE, beneath};
use super::follow::{LastLink, follow, is_kernels};
use super::path_locks::PathLocks;
use crate::confine::landlock::{Grant, GrantKind};
use sandbox_dirfd::{Identity, Resolver, Root, Within};

/// Longest nonce.
const NONCE_BYTES: u64 = 4 << 10;

/// What every container has beside the mounts of the command line, its root first. The files are mounted
/// by some engines.
const CONTAINER: [&str; 8] =
    ["/", "/tmp", "/dev/shm", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", USERS, GROUPS];
/// Where a program may write there.
const WRITABLE: [&str; 2] = ["/tmp", "/dev/shm"];
/// The names of the container's users.
pub(super) const USERS: &str = "/etc/passwd";
/// The names of its groups.
pub(super) const GROUPS: &str = "/etc/group";

/// All mounts, and the bases of `~` and relative paths.
#[derive(Debug)]
pub struct Mounts {
    mounts: Vec<Mount>,
    home: Option<GuestPath>,
    workdir: GuestPath,
    /// How paths are resolved.
    pub resolver: Resolver,
    /// Serializes changes of a file.
    pub(super) path_locks: PathLocks,
    /// The rest of the container, its root first, if operations may go there.
    container: OnceLock<Vec<Mount>>,
}

/// One mount.
#[derive(Debug)]
pub struct Mount {
    /// Its path in the sandbox.
    pub(super) path: GuestPath,
    /// The access allowed in it.
    pub(super) access: Access,
    target: Target,
    id: Identity,
}

#[derive(Debug)]
enum Target {
    Directory(OwnedFd),
    /// A single file. It is opened by its name in the directory that holds the mount point, which
    /// belongs to the image and which nothing in the sandbox can change; the identity is compared
    /// nevertheless.
    File {
        parent: OwnedFd,
        name: Vec<u8>,
        /// Keeps the inode open, so that its number is not reused.
        file: OwnedFd,
    },
}

/// The directory above the inputs, and each input by its name.
pub(super) type Inputs<'a> = (GuestPath, Vec<(&'a [u8], &'a Mount)>);

/// A mount that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the mount {path}: {source}")]
pub struct MountError {
    path: GuestPath,
    source: Errno,
}

/// A resolved path.
#[derive(Debug)]
pub struct LocatedPath<'a> {
    /// The mount.
    pub mount: &'a Mount,
    /// The normalised path.
    pub path: GuestPath,
    /// It was written with a trailing slash: `a/`.
    pub wants_directory: bool,
    /// What it refers to in the mount.
    pub target: MountTarget<'a>,
}

/// What a path refers to in its mount.
#[derive(Debug)]
pub enum MountTarget<'a> {
    /// An entry of a mounted directory, by its relative path; empty for the directory itself.
    Beneath(Root<'a>, Vec<u8>),
    /// The mount itself, which is a single file.
    File,
}

impl<'a> LocatedPath<'a> {
    /// Where it is beneath the mount of a directory.
    pub(super) fn beneath(&self, written: &[u8]) -> Result<(&Root<'a>, &[u8]), FileError> {
        match &self.target {
            MountTarget::Beneath(root, relative) => Ok((root, relative)),
            MountTarget::File => Err(FileError::system(Errno::NOTDIR, written)),
        }
    }

    /// Opens it, in a mount of a directory or as a mount that is a single file.
    pub(super) fn open(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        match &self.target {
            MountTarget::Beneath(root, relative) => root.open(relative, flags),
            MountTarget::File => self.mount.open_file(flags),
        }
    }

    /// Opens it as a directory, to be read.
    pub(super) fn open_directory(&self, written: &[u8]) -> Result<OwnedFd, FileError> {
        let (root, relative) = self.beneath(written)?;
        let opened = root.open(relative, OFlags::RDONLY | OFlags::DIRECTORY);
        opened.map_err(|errno| beneath(errno, written))
    }

    /// Refuses what is not a directory if the path was written as one: a link with the usual error,
    /// the rest as "Not a directory".
    pub(super) fn expect_directory(
        &self,
        found: FileType,
        written: &[u8],
    ) -> Result<(), FileError> {
        match found {
            _ if !self.wants_directory => Ok(()),
            FileType::Directory => Ok(()),
            FileType::Symlink => Err(beneath(Errno::LOOP, written)),
            _ => Err(FileError::system(Errno::NOTDIR, written)),
        }
    }
}

impl Mounts {
    /// Opens the mounts of the command line.
    ///
    /// # Errors
    ///
    /// [`MountError`] for the first one that is missing, or is neither directory nor file.
    pub fn open(args: &AgentArgs) -> Result<Self, MountError> {
        let mounts = args
            .mounts
            .iter()
            .map(|mount| Mount::open(mount, Path::new(OsStr::from_bytes(mount.path.as_bytes()))));
        Ok(Self::new(mounts.collect::<Result<_, _>>()?, args.home.clone(), args.base()))
    }

    pub(super) fn new(mounts: Vec<Mount>, home: Option<GuestPath>, workdir: GuestPath) -> Self {
        Self {
            mounts,
            home,
            workdir,
            resolver: Resolver::Walk,
            path_locks: PathLocks::default(),
            container: OnceLock::new(),
        }
    }

    /// Opens the rest of the container, whose root is at `root` for this process, for operations that
    /// may go anywhere in it.
    ///
    /// # Errors
    ///
    /// [`MountError`] if the root cannot be opened.
    pub fn open_container(&self, root: &Path) -> Result<(), MountError> {
        let mut mounts = Vec::new();
        for path in CONTAINER {
            let access = if WRITABLE.contains(&path) { Access::Write } else { Access::Read };
            let at = root.join(path.trim_start_matches('/'));
            let path = GuestPath::new(path).expect("a constant path");
            match Mount::open(&argv::Mount { path, access }, &at) {
                Ok(mount) if is_kernels(mount.fd()).unwrap_or(true) => {}
                Ok(mount) => mounts.push(mount),
                Err(error) if mounts.is_empty() => return Err(error),
                // There is none, or it is a link to another place.
                Err(_) => {}
            }
        }
        _ = self.container.set(mounts);
        Ok(())
    }

    /// One of the container's own files, if the container is open and has it.
    pub(super) fn container_file(&self, path: &str) -> Option<&Mount> {
        let mut mounts = self.container.get()?.iter();
        mounts.find(|mount| mount.path.as_bytes() == path.as_bytes())
    }

    /// The devices of the container's own that programs may write: those in memory.
    pub(super) fn in_memory(&self) -> Vec<u64> {
        let container = self.container.get().into_iter().flatten();
        let root = self.container.get().and_then(|mounts| mounts.first());
        let others: Vec<_> = self.mounts.iter().chain(root).collect();
        container
            .filter(|mount| mount.access == Access::Write)
            .map(|mount| mount.id.dev)
            .filter(|device| others.iter().all(|other| other.id.dev != *device))
            .collect()
    }

    /// Uses `resolver` from now on.
    #[must_use]
    pub const fn with_resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// Which resolver this process can use under its current confinement.
    pub fn probe_resolver(&self) -> Resolver {
        sandbox_dirfd::probe(self.mounts.first().map_or(CWD, |mount| match &mount.target {
            Target::Directory(fd) | Target::File { parent: fd, .. } => fd.as_fd(),
        }))
    }

    /// What the agent must be allowed to do.
    pub fn grants(&self) -> impl Iterator<Item = Grant<'_>> {
        self.mounts.iter().map(|mount| {
            let kind = match mount.target {
                Target::Directory(_) => GrantKind::Directory,
                Target::File { .. } => GrantKind::File,
            };
            Grant { fd: mount.fd(), access: mount.access, kind }
        })
    }

    /// The identities of the mounts, in the order of the command line.
    pub fn identities<'a>(&'a self) -> impl Iterator<Item = MountIdentity> + 'a {
        self.mounts.iter().map(|mount| MountIdentity {
            path: mount.path.to_string(),
            dev: mount.id.dev,
            ino: mount.id.ino,
        })
    }

    /// Reads and removes the controller's nonce file in the root of the home mount: if the agent
    /// reads what the controller wrote, both see the same directory.
    pub fn take_nonce(&self, name: &str) -> Option<String> {
        let path = self.home.as_ref()?.join(name.as_bytes()).ok()?;
        let located = self.locate(path.as_bytes()).ok()?;
        let MountTarget::Beneath(root, relative) = &located.target else { return None };
        let fd = root.open(relative, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
        let stat = fstat(&fd).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let mut content = String::new();
        let mut file = std::fs::File::from(fd).take(NONCE_BYTES + 1);
        file.read_to_string(&mut content).ok()?;
        let (parent, name) = sandbox_dirfd::split(relative);
        // If this fails, for example on a read-only mount, the controller removes the file.
        _ = unlinkat(root.directory(parent).ok()?, name, AtFlags::empty());
        (content.len() as u64 <= NONCE_BYTES).then_some(content)
    }

    /// Applies the pure path rules alone.
    fn resolve(&self, written: &[u8]) -> Result<ResolvedPath, PathError> {
        GuestPath::resolve(written, &self.workdir, self.home.as_ref())
    }

    /// The path, if it is valid.
    pub(super) fn meant(&self, written: &[u8]) -> Option<GuestPath> {
        self.resolve(written).ok().map(|resolved| resolved.path)
    }

    /// The inputs by their names, in order, if a path is the directory above them, which is no mount.
    pub(super) fn inputs(&self, written: &[u8]) -> Option<Inputs<'_>> {
        let above = self.meant(written).filter(|path| path.as_bytes() == INPUTS.as_bytes())?;
        let mounts = self.mounts.iter();
        let mut inputs: Vec<_> =
            mounts.filter_map(|mount| Some((mount.path.strip_prefix(&above)?, mount))).collect();
        inputs.sort_unstable_by_key(|(name, _)| *name);
        Some((above, inputs))
    }

    /// Applies the pure rules, and finds the mount.
    pub(super) fn locate(&self, written: &[u8]) -> Result<LocatedPath<'_>, FileError> {
        if self.mounts.is_empty() {
            return Err(FileError::rule(ErrorKind::NotAllowed, IO_IS_OFF, written));
        }
        self.find(self.resolved(written)?, &[], written)
    }

    /// The same anywhere in the container, with links followed.
    pub(super) fn locate_in_container(
        &self,
        written: &[u8],
        last: LastLink,
    ) -> Result<LocatedPath<'_>, FileError> {
        let Some(container) = self.container.get() else { return self.locate(written) };
        let resolved = self.resolved(written)?;
        let followed = follow(container[0].fd(), &resolved.path, last, written)?;
        if followed.ends_in_link && resolved.wants_directory {
            return Err(FileError::system(Errno::NOTDIR, written));
        }
        self.find(ResolvedPath { path: followed.path, ..resolved }, container, written)
    }

    fn resolved(&self, written: &[u8]) -> Result<ResolvedPath, FileError> {
        self.resolve(written)
            .map_err(|error| FileError::rule(error.kind(), error.to_string(), written))
    }

    /// Finds the mount of a path, among these and further ones.
    fn find<'a>(
        &'a self,
        resolved: ResolvedPath,
        more: &'a [Mount],
        written: &[u8],
    ) -> Result<LocatedPath<'a>, FileError> {
        let (mount, relative) = self
            .mounts
            .iter()
            .chain(more)
            .filter_map(|mount| Some((mount, resolved.path.strip_prefix(&mount.path)?)))
            .min_by_key(|(_, relative)| relative.len())
            .ok_or_else(|| no_mount(&resolved.path, written))?;
        let target = match &mount.target {
            Target::Directory(fd) => {
                let is_of_container = more.iter().any(|other| std::ptr::eq(other, mount));
                let within = if is_of_container { Within::Mount } else { Within::Device };
                let (dev, resolver) = (mount.id.dev, self.resolver);
                let root = Root { fd: fd.as_fd(), dev, resolver, within };
                MountTarget::Beneath(root, relative.to_vec())
            }
            Target::File { .. } if relative.is_empty() => MountTarget::File,
            Target::File { .. } => return Err(FileError::system(Errno::NOTDIR, written)),
        };
        let wants_directory = resolved.wants_directory;
        Ok(LocatedPath { mount, path: resolved.path, wants_directory, target })
    }
}

/// What follows the directory of the inputs in a path that is below it.
pub(super) fn below_inputs(path: &GuestPath) -> Option<&[u8]> {
    path.as_bytes().strip_prefix(INPUTS.as_bytes())?.strip_prefix(b"/")
}

/// Why no mount contains a path.
pub(super) fn no_mount(path: &GuestPath, written: &[u8]) -> FileError {
    match below_inputs(path) {
        Some(below) => {
            let name = below.split(|&byte| byte == b'/').next().unwrap_or_default();
            let name = String::from_utf8_lossy(name);
            let reason = format!("no input is called '{name}' (--in SRC:{name})");
            FileError { reason, ..FileError::system(Errno::NOENT, written) }
        }
        None => FileError::rule(ErrorKind::PathEscape, OUTSIDE, written),
    }
}

impl Mount {
    /// What is mounted.
    pub(super) const fn kind(&self) -> EntryKind {
        match self.target {
            Target::Directory(_) => EntryKind::Directory,
            Target::File { .. } => EntryKind::File,
        }
    }

    /// The directory or the file, opened without read or write access.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match &self.target {
            Target::Directory(fd) | Target::File { file: fd, .. } => fd.as_fd(),
        }
    }

    /// Opens the mount; `at` is its path for this process.
    pub(super) fn open(mount: &argv::Mount, at: &Path) -> Result<Self, MountError> {
        let argv::Mount { path, access } = mount;
        Self::try_open(path, *access, at)
            .map_err(|source| MountError { path: path.clone(), source })
    }

    fn try_open(path: &GuestPath, access: Access, at: &Path) -> rustix::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(CWD, at, flags, Mode::empty())?;
        let stat = fstat(&fd)?;
        let target = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Target::Directory(fd),
            FileType::RegularFile => {
                let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
                    return Err(Errno::INVAL);
                };
                let parent = openat(CWD, parent, flags | OFlags::DIRECTORY, Mode::empty())?;
                Target::File { parent, name: name.as_bytes().to_vec(), file: fd }
            }
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::INVAL),
        };
        Ok(Self { path: path.clone(), access, target, id: Identity::of(&stat) })
    }

    /// Opens a mount that is a single file. `EXDEV` if its name now refers to another file.
    pub(super) fn open_file(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let Target::File { parent, name, .. } = &self.target else { return Err(Errno::ISDIR) };
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = sandbox_dirfd::retry(|| openat(parent, name.as_slice(), flags, Mode::empty()))?;
        let stat = fstat(&fd)?;
        match FileType::from_raw_mode(stat.st_mode) {
            // With O_PATH a symbolic link is opened itself.
            FileType::Symlink => Err(Errno::LOOP),
            _ if Identity::of(&stat) != self.id => Err(Errno::XDEV),
            _ => Ok(fd),
        }
    }
}
