//! The mount table as this process sees it: `/proc/self/mountinfo`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statat, statx};
use rustix::io::Errno;
use sandbox_api::service::{DATABASE_FILE, LOCK_FILE};
use sandbox_dirfd::{is_locked_file, path_of, unescape};

/// The kernel's text.
pub const MOUNTINFO: &str = "/proc/self/mountinfo";
const O_PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// Most links in a path, as the kernel has it.
const MAX_LINKS: u32 = 40;

/// A file or directory by its place in its filesystem. Bind mounts give one directory many paths on
/// the host, and links even more, but it has one location.
///
/// Locations are ordered by path components: those below a directory come right after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    device: Device,
    /// The path from the root of the filesystem, even if only a part of it is mounted.
    path: PathBuf,
}

/// The `major:minor` of a filesystem. `st_dev` differs for each subvolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Device(u32, u32);

impl Location {
    /// The relative path from here to `other`, if that is the same directory or below it.
    pub fn path_to<'a>(&self, other: &'a Self) -> Option<&'a Path> {
        if self.device != other.device {
            return None;
        }
        other.path.strip_prefix(&self.path).ok()
    }

    fn below(&self, path: &Path) -> Self {
        // Joining an empty path would append a slash.
        let path =
            if path.as_os_str().is_empty() { self.path.clone() } else { self.path.join(path) };
        Self { device: self.device, path }
    }
}

/// The mount table. Copies share what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountTable {
    /// The mounts by their ids.
    mounts: Arc<BTreeMap<u64, Mount>>,
    /// The ids of the mounts by the location that they cover. If several cover one directory, any
    /// of them.
    points: Arc<BTreeMap<Location, u64>>,
}

/// A mount.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    parent: u64,
    /// The part of its filesystem that is mounted.
    root: Location,
    /// The mount point as seen by this process.
    point: PathBuf,
    /// `None` if the line ends before it: the mount counts all the same.
    fs_type: Option<String>,
}

/// An open file or directory, and the mount it was opened on.
#[derive(Debug, Clone, Copy)]
pub struct Opened<'a> {
    /// The file or directory.
    pub file: BorrowedFd<'a>,
    /// The mount's id, which neither a link nor a later mount changes.
    pub mount: u64,
}

impl<'a> Opened<'a> {
    /// Looks up the mount, which briefly needs a descriptor.
    ///
    /// # Errors
    ///
    /// If the kernel does not report it.
    pub fn new(file: BorrowedFd<'a>) -> io::Result<Self> {
        Ok(Self { file, mount: mount_id(file)? })
    }
}

/// The location of a file or directory, and its filesystem.
#[derive(Debug)]
pub struct Located<'a> {
    /// Where it is.
    pub location: Location,
    /// The type, such as `ext4`.
    pub fs_type: &'a str,
    /// Its own path, without links; for a missing one, that of the directory where it would be.
    pub path: PathBuf,
}

impl Located<'_> {
    /// The data directory of a running server that contains it, if any: such a directory has a
    /// database, and a lock that the server holds.
    pub fn served_dir(&self) -> Option<PathBuf> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let is_served = |folder: &&Path| {
            statat(CWD, folder.join(DATABASE_FILE), flags).is_ok()
                && is_locked_file(folder.join(LOCK_FILE))
        };
        self.path.ancestors().find(is_served).map(Path::to_owned)
    }
}

impl MountTable {
    /// The current table.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or not be parsed.
    pub fn now() -> io::Result<Self> {
        Self::parse(&fs::read(MOUNTINFO)?)
    }

    /// Parses the kernel's text.
    ///
    /// # Errors
    ///
    /// If a line has an unexpected format.
    pub fn parse(text: &[u8]) -> io::Result<Self> {
        let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let mounts = lines.map(|line| {
            // No name that the creator of a mount chooses can cause this error. Without its numbers
            // and paths the mount could be anywhere, including below a sandbox's mounts.
            parse_line(line).ok_or_else(|| {
                let line = String::from_utf8_lossy(line).into_owned();
                io::Error::new(io::ErrorKind::InvalidData, format!("unknown format: {line}"))
            })
        });
        let mounts: BTreeMap<u64, Mount> = mounts.collect::<io::Result<_>>()?;
        let points = mounts.iter().filter_map(|(&id, mount)| Some((mount.sits_on(&mounts)?, id)));
        Ok(Self { points: Arc::new(points.collect()), mounts: Arc::new(mounts) })
    }

    /// The location of an open file or directory. `None` if its mount is not in the table: it
    /// belongs to another namespace, was unmounted, or is outside of this process's root.
    ///
    /// # Errors
    ///
    /// If its path cannot be read.
    pub fn locate(&self, opened: Opened<'_>) -> io::Result<Option<Located<'_>>> {
        let Some(mount) = self.mounts.get(&opened.mount) else { return Ok(None) };
        let path = path_of(opened.file)?;
        let Ok(rest) = path.strip_prefix(&mount.point) else { return Ok(None) };
        let fs_type = mount.fs_type.as_deref().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the mount table does not say of what type")
        })?;
        Ok(Some(Located { location: mount.root.below(rest), fs_type, path }))
    }

    /// The location of a path, following links, those to what does not exist too. The missing part of
    /// a path is located where it would be created.
    ///
    /// # Errors
    ///
    /// If that cannot be said, or as of [`locate`](Self::locate).
    pub fn locate_path(&self, path: &Path) -> io::Result<Option<Located<'_>>> {
        let mut path = std::path::absolute(path)?;
        for _ in 0..=MAX_LINKS {
            let open = |it: &Path| match rustix::fs::open(it, O_PATH, Mode::empty()) {
                Ok(opened) => Some(Ok(opened)),
                // Without information about the path.
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => Some(Err(errno)),
                Err(_) => None,
            };
            let existing = path.ancestors().find_map(|it| Some((it, open(it)?)));
            let Some((existing, opened)) = existing else { return Ok(None) };
            let opened = opened?;
            let missing = path.strip_prefix(existing).unwrap_or(Path::new(""));
            let mut names = missing.components();
            let first = names.next().map(|name| existing.join(name));
            if let Some(target) = first.and_then(|it| it.read_link().ok()) {
                path = existing.join(target).join(names.as_path());
                continue;
            }
            if missing.components().any(|name| name == Component::ParentDir) {
                let why = "it leads through `..` of a directory that does not exist";
                return Err(io::Error::new(io::ErrorKind::NotFound, why));
            }
            let located = self.locate(Opened::new(opened.as_fd())?)?;
            return Ok(located.map(|it| Located { location: it.location.below(missing), ..it }));
        }
        Err(Errno::LOOP.into())
    }

    /// A mount point below a directory, by its path on the host. It counts through whichever path
    /// it was mounted: a mount covers a directory of the filesystem, for everyone who sees that
    /// directory.
    pub fn mount_point_below(&self, directory: &Location) -> Option<&Path> {
        self.mounts_below(directory).next().map(|mount| &*mount.point)
    }

    /// The locations of what is mounted below a directory.
    pub fn roots_below(&self, directory: &Location) -> impl Iterator<Item = &Location> {
        self.mounts_below(directory).map(|mount| &mount.root)
    }

    fn mounts_below(&self, directory: &Location) -> impl Iterator<Item = &Mount> {
        let behind = (Bound::Excluded(directory), Bound::Unbounded);
        let points = self.points.range::<Location, _>(behind);
        let below = points.take_while(|(point, _)| directory.path_to(point).is_some());
        below.map(|(_, id)| &self.mounts[id])
    }
}

impl Mount {
    /// The location of the directory or file that it covers.
    fn sits_on(&self, mounts: &BTreeMap<u64, Self>) -> Option<Location> {
        let parent = mounts.get(&self.parent)?;
        let rest = self.point.strip_prefix(&parent.point).ok()?;
        Some(parent.root.below(rest))
    }
}

/// `27 1 254:0 /root /point options [tags…] - type source options`. The user who mounts chooses the
/// bytes of the paths, and with FUSE those of the type.
fn parse_line(line: &[u8]) -> Option<(u64, Mount)> {
    fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
        std::str::from_utf8(field).ok()?.parse().ok()
    }
    let mut fields = line.split(|&byte| byte == b' ');
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let mut device = fields.next()?.splitn(2, |&byte| byte == b':');
    let device = Device(number(device.next()?)?, number(device.next()?)?);
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    let fs_type = fields.skip_while(|field| *field != b"-").nth(1);
    let fs_type = fs_type.map(|name| unescape(name).to_string_lossy().into_owned());
    let root = Location { device, path: root };
    Some((id, Mount { parent, root, point, fs_type }))
}

/// From `statx`, or on kernels before Linux 5.8 from `/proc`, for the price of six more calls.
fn mount_id(file: BorrowedFd<'_>) -> io::Result<u64> {
    let stat = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
    if let Ok(stat) = stat
        && stat.stx_mask & StatxFlags::MNT_ID.bits() != 0
    {
        return Ok(stat.stx_mnt_id);
    }
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.and_then(|id| id.trim().parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "fdinfo without a mnt_id"))
}

#[cfg(test)]
mod tests;
