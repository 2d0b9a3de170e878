//! The two ways to open a path beneath a directory. Both give the same guarantees: no symbolic link
//! anywhere in the path, nothing outside the directory, no other filesystem. And paths of the host.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, openat, openat2,
    statx,
};
use rustix::io::{Errno, Result};

use crate::Identity;

/// How paths are opened beneath a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolver {
    /// A single `openat2` with `RESOLVE_BENEATH` and related flags.
    Openat2,
    /// Component by component with `O_NOFOLLOW`, if the kernel has no `openat2`.
    Walk,
}

/// What a path beneath a directory must not leave, when it is opened component by component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Within {
    /// The directory's device.
    Device,
    /// Its mount: an overlay may show a file with another device than that of its directories. Where the
    /// kernel does not tell the mounts of files, the device.
    Mount,
}

/// A directory to open paths beneath, such as the root of a mount.
#[derive(Debug, Clone, Copy)]
pub struct Root<'a> {
    /// The directory.
    pub fd: BorrowedFd<'a>,
    /// Its `st_dev`.
    pub dev: u64,
    /// How to resolve beneath it.
    pub resolver: Resolver,
    /// What a path must not leave.
    pub within: Within,
}

/// A directory beneath a root, or the root itself.
#[derive(Debug)]
pub enum Directory<'a> {
    /// The root.
    Root(BorrowedFd<'a>),
    /// A directory that was opened beneath it.
    Inside(OwnedFd),
}

impl Directory<'_> {
    /// Duplicates the handle.
    pub fn try_clone(&self) -> Result<Self> {
        match self {
            Self::Root(fd) => Ok(Self::Root(*fd)),
            Self::Inside(fd) => again(fd.as_fd()).map(Self::Inside),
        }
    }
}

impl AsFd for Directory<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Root(fd) => fd.as_fd(),
            Self::Inside(fd) => fd.as_fd(),
        }
    }
}

/// Reopens a directory, to access entries in it.
pub fn again(directory: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry(|| openat(directory, ".", flags, Mode::empty()))
}

/// The resolver that this kernel supports. A seccomp filter that denies `openat2` counts as a
/// kernel without it.
pub fn probe(root: BorrowedFd<'_>) -> Resolver {
    match retry(|| by_openat2(root, b".", OFlags::PATH | OFlags::DIRECTORY)) {
        Ok(_) => Resolver::Openat2,
        Err(_) => Resolver::Walk,
    }
}

impl<'a> Root<'a> {
    /// A root directory, with the resolver that this process can use.
    ///
    /// # Errors
    ///
    /// If `fstat` fails on the directory.
    pub fn new(fd: BorrowedFd<'a>) -> Result<Self> {
        let dev = fstat(fd)?.st_dev;
        Ok(Self { fd, dev, resolver: probe(fd), within: Within::Device })
    }

    /// Opens `relative`: components separated by single slashes, none of them `.` or `..`; empty
    /// for the root. A symbolic link anywhere is `ELOOP`, another filesystem `EXDEV`.
    pub fn open(&self, relative: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let relative = if relative.is_empty() { b"." } else { relative };
        retry(|| self.resolve(relative, flags))
    }

    /// Opens the directory `relative`, only to access entries in it.
    pub fn directory(&self, relative: &[u8]) -> Result<Directory<'a>> {
        if relative.is_empty() {
            return Ok(Directory::Root(self.fd));
        }
        self.open(relative, OFlags::PATH | OFlags::DIRECTORY).map(Directory::Inside)
    }

    /// Opens an entry of another directory of this mount, under the same rules. Not with `openat2`,
    /// which returns `EXDEV` also if the opened directory is moved elsewhere in the mount: for a
    /// single component it has no advantage.
    pub fn child(&self, directory: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
        retry(|| self.step(directory, name, flags))
    }

    /// Returns the metadata of `relative`, which is as in [`open`](Self::open) but must not be
    /// empty. A symbolic link as the last component is not followed.
    ///
    /// # Errors
    ///
    /// As of `open`, except for that link.
    pub fn stat(&self, relative: &[u8]) -> Result<Stat> {
        fstat(self.resolve(relative, OFlags::PATH | OFlags::NOFOLLOW)?)
    }

    fn resolve(&self, relative: &[u8], flags: OFlags) -> Result<OwnedFd> {
        match self.resolver {
            Resolver::Openat2 => by_openat2(self.fd, relative, flags),
            Resolver::Walk => self.by_walking(relative, flags),
        }
    }

    /// Whether an entry with another device is in the mount of its directory all the same, where that
    /// counts.
    fn is_in_mount(&self, directory: BorrowedFd<'_>, entry: &OwnedFd) -> bool {
        self.within == Within::Mount && {
            let mount = mount_of(directory);
            mount.is_some() && mount == mount_of(entry.as_fd())
        }
    }

    fn by_walking(&self, relative: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let (parents, name) = split(relative);
        let mut directory = Directory::Root(self.fd);
        for parent in parents.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            let next = self.step(directory.as_fd(), parent, OFlags::PATH | OFlags::DIRECTORY)?;
            directory = Directory::Inside(next);
        }
        self.step(directory.as_fd(), name, flags)
    }

    /// Opens one component.
    fn step(&self, directory: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
        // With O_PATH a link itself is opened, and together with O_DIRECTORY it gives ENOTDIR like
        // any file: omit that flag, so that fstat can distinguish the two.
        let opens_link = flags.contains(OFlags::PATH | OFlags::NOFOLLOW);
        let path_only = flags.contains(OFlags::PATH);
        let open_flags = if path_only { flags - OFlags::DIRECTORY } else { flags };
        let opened =
            openat(directory, name, open_flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let fd = match opened {
            Err(Errno::NOTDIR) if is_link(directory, name) => return Err(Errno::LOOP),
            // gVisor has followed it.
            Err(Errno::NOENT)
                if open_flags.contains(OFlags::DIRECTORY) && is_link(directory, name) =>
            {
                return Err(Errno::LOOP);
            }
            other => other?,
        };
        let stat = fstat(&fd)?;
        if open_flags.contains(OFlags::DIRECTORY) {
            refuse_followed(directory, name, &stat)?;
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink if !opens_link => Err(Errno::LOOP),
            _ if stat.st_dev != self.dev && !self.is_in_mount(directory, &fd) => Err(Errno::XDEV),
            FileType::Directory => Ok(fd),
            _ if flags.contains(OFlags::DIRECTORY) => Err(Errno::NOTDIR),
            _ => Ok(fd),
        }
    }
}

/// The number of the mount of a file, if the kernel tells it.
fn mount_of(file: BorrowedFd<'_>) -> Option<u64> {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

/// Whether symbolic links in a path of the host are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Links are followed: the caller trusts the path.
    Follow,
    /// A link anywhere in it is `ELOOP`, whenever it was made.
    Refuse,
}

/// Opens an absolute path of the host. With `O_CREAT` a file that is missing is created.
///
/// # Errors
///
/// As of `open`, and for a refused link.
pub fn open_path(path: &Path, flags: OFlags, links: Links) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    let is_created = flags.contains(OFlags::CREATE);
    let mode = if is_created { Mode::from_raw_mode(0o666) } else { Mode::empty() };
    let open = |flags| retry(|| rustix::fs::open(path, flags, mode));
    if links == Links::Follow {
        return open(flags);
    }
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // Without O_NOFOLLOW, which could return a link instead of refusing it.
    let plain = flags - OFlags::NOFOLLOW;
    match retry(|| openat2(CWD, path, plain, mode, resolve)) {
        Err(Errno::NOSYS | Errno::PERM) if !is_created => {
            let opened = open(flags | OFlags::NOFOLLOW)?;
            refuse_other_path(path, opened)
        }
        opened => opened,
    }
}

/// Without `openat2`: what was opened through a link has another path.
fn refuse_other_path(path: &Path, opened: OwnedFd) -> Result<OwnedFd> {
    let is_link = FileType::from_raw_mode(fstat(&opened)?.st_mode) == FileType::Symlink;
    let found = path_of(&opened)?;
    let mut expected = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => _ = expected.pop(),
            component => expected.push(component),
        }
    }
    match !is_link && found.as_os_str() == expected.as_os_str() {
        true => Ok(opened),
        false => Err(Errno::LOOP),
    }
}

/// The path that an open file has now, without links.
///
/// # Errors
///
/// If `/proc` is not mounted.
pub fn path_of(opened: impl AsFd) -> Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new())?;
    Ok(OsString::from_vec(path.into_bytes()).into())
}

/// Decodes a path of the kernel's mount table, where `\040` is a space: three octal digits also for a tab, a
/// newline, a backslash and `#`.
pub fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match (first, tail.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// Splits a path into its parent and its last component.
pub fn split(relative: &[u8]) -> (&[u8], &[u8]) {
    match relative.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&relative[..slash], &relative[slash + 1..]),
        None => (b"", relative),
    }
}

/// An absolute path without `.`, `..` and double slashes, wherever links may lead.
pub fn clean(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

/// Refuses a directory that was opened through a link: gVisor follows a link with `O_DIRECTORY`
/// despite `O_NOFOLLOW`.
fn refuse_followed(directory: BorrowedFd<'_>, name: &[u8], opened: &Stat) -> Result<()> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)? {
        entry if Identity::of(&entry) == Identity::of(opened) => Ok(()),
        entry if FileType::from_raw_mode(entry.st_mode) == FileType::Symlink => Err(Errno::LOOP),
        // Replaced meanwhile.
        _ => Err(Errno::AGAIN),
    }
}

/// Only used to choose the error.
fn is_link(directory: BorrowedFd<'_>, name: &[u8]) -> bool {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

fn by_openat2(root: BorrowedFd<'_>, relative: &[u8], flags: OFlags) -> Result<OwnedFd> {
    // O_NOFOLLOW only if the link itself is requested: with O_DIRECTORY it would turn the last
    // component's ELOOP into ENOTDIR, and RESOLVE_NO_SYMLINKS already refuses that link.
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    // EAGAIN: a rename somewhere raced with the lookup, so that the kernel cannot guarantee the
    // result.
    for _ in 0..64 {
        match openat2(root, relative, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Retries an operation that failed with a transient error: at most eight times, with pauses that
/// double from a millisecond, and for no longer than a second in total.
pub fn retry<T>(mut operation: impl FnMut() -> Result<T>) -> Result<T> {
    let mut pause = Duration::from_millis(1);
    let mut first_failure = None;
    for _ in 0..7 {
        match operation() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::STALE | Errno::TIMEDOUT | Errno::BUSY) => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            other => return other,
        }
        if first_failure.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(1) {
            break;
        }
    }
    operation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn path_is_opened_through_no_link_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let at = |path: &str| dir.join(path);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/f"), "").unwrap();
        symlink("a", at("link")).unwrap();
        symlink("f", at("a/b/last")).unwrap();
        let open = |path: &str, links| open_path(&at(path), OFlags::PATH, links);
        let by_path = |path: &str| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            refuse_other_path(&at(path), rustix::fs::open(at(path), flags, Mode::empty())?)
        };
        for (path, is_refused) in [
            ("a/b/f", false),
            ("a/b", false),
            ("a/../a/b/f", false),
            ("link/b/f", true),
            ("a/b/last", true),
            ("link/../a", true),
        ] {
            open(path, Links::Follow).unwrap();
            let expected = if is_refused { Some(Errno::LOOP) } else { None };
            assert_eq!(open(path, Links::Refuse).err(), expected, "{path}");
            // What the last one gives is the directory that its path without `..` names.
            if path != "link/../a" {
                assert_eq!(by_path(path).err(), expected, "{path} without openat2");
            }
        }
        assert_eq!(open("missing", Links::Refuse).err(), Some(Errno::NOENT));
    }
}
