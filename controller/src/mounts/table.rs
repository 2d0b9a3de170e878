//! What is mounted where, as this process sees it: `/proc/self/mountinfo`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

pub(super) const MOUNTINFO: &str = "/proc/self/mountinfo";

/// A file or directory by its place in its file system. Bind mounts give one directory many paths on
/// the host, and links more: it has one location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Location {
    /// `major:minor` of the file system: `st_dev` is another one for each subvolume.
    device: String,
    /// From the root of the file system, whatever of it is mounted.
    path: PathBuf,
}

impl Location {
    /// The path from here to `other`, where that is the same directory or lies below it.
    pub fn path_to<'a>(&self, other: &'a Self) -> Option<&'a Path> {
        if self.device != other.device {
            return None;
        }
        other.path.strip_prefix(&self.path).ok()
    }
}

/// The mount table.
#[derive(Debug)]
pub(super) struct MountTable {
    /// By their ids.
    mounts: BTreeMap<u64, Mount>,
}

/// A mount.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    parent: u64,
    /// What of its file system is mounted.
    root: Location,
    /// Where, for this process.
    point: PathBuf,
    fs_type: String,
}

/// A file or directory, and what it is on.
#[derive(Debug)]
pub(super) struct Located<'a> {
    pub location: Location,
    /// Such as `ext4`.
    pub fs_type: &'a str,
}

impl MountTable {
    /// The mounts of this moment.
    pub fn read() -> io::Result<Self> {
        Self::parse(&fs::read(MOUNTINFO)?)
    }

    fn parse(text: &[u8]) -> io::Result<Self> {
        let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let mounts = lines.map(|line| {
            parse_line(line).ok_or_else(|| {
                let line = String::from_utf8_lossy(line).into_owned();
                io::Error::new(io::ErrorKind::InvalidData, format!("unknown format: {line}"))
            })
        });
        Ok(Self { mounts: mounts.collect::<io::Result<_>>()? })
    }

    /// Where something open is. `None` where its mount is not in the table: it is another
    /// namespace's, was unmounted, or is outside of this process's root.
    pub fn locate(&self, file: BorrowedFd<'_>) -> io::Result<Option<Located<'_>>> {
        let Some(mount) = self.mounts.get(&mount_id(file)?) else { return Ok(None) };
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let Ok(rest) = path.strip_prefix(&mount.point) else { return Ok(None) };
        Ok(Some(Located { location: mount.root.below(rest), fs_type: &mount.fs_type }))
    }

    /// The same of a path, whose links are followed. What is missing of it is where it would be.
    pub fn locate_path(&self, path: &Path) -> io::Result<Option<Located<'_>>> {
        let path = std::path::absolute(path)?;
        for existing in path.ancestors() {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let Ok(opened) = rustix::fs::open(existing, flags, Mode::empty()) else { continue };
            let missing = path.strip_prefix(existing).unwrap_or(Path::new(""));
            let located = self.locate(opened.as_fd())?;
            return Ok(located.map(|Located { location, fs_type }| Located {
                location: location.below(missing),
                fs_type,
            }));
        }
        Ok(None)
    }

    /// A mount point below a directory, by its path on the host. It counts wherever it was made: a
    /// mount sits on a directory of the file system, and goes with that for all who see it.
    pub fn mount_point_below(&self, directory: &Location) -> Option<&Path> {
        let mut points = self.mounts.values().filter(|mount| {
            let Some(parent) = self.mounts.get(&mount.parent) else { return false };
            let Ok(rest) = mount.point.strip_prefix(&parent.point) else { return false };
            directory
                .path_to(&parent.root.below(rest))
                .is_some_and(|path| !path.as_os_str().is_empty())
        });
        points.next().map(|mount| &*mount.point)
    }
}

impl Location {
    fn below(&self, path: &Path) -> Self {
        // Joined with nothing, a path would end in a slash.
        let path =
            if path.as_os_str().is_empty() { self.path.clone() } else { self.path.join(path) };
        Self { device: self.device.clone(), path }
    }
}

/// `27 1 254:0 /root /point options [tags…] - type source options`.
fn parse_line(line: &[u8]) -> Option<(u64, Mount)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = unescape(after.next()?).into_os_string().into_string().ok()?;
    let root = Location { device, path: root };
    Some((id, Mount { parent, root, point, fs_type }))
}

/// Undoes the kernel's `\040`: three octal digits for a blank, a tab, a newline, a backslash, `#`.
fn unescape(field: &[u8]) -> PathBuf {
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

/// The id of the mount that something was opened on, which no link and no later mount changes.
/// `statx` gives it from Linux 5.8 on; this does on older kernels too.
fn mount_id(file: BorrowedFd<'_>) -> io::Result<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.and_then(|id| id.trim().parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "fdinfo without a mnt_id"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    fn table(text: &str) -> MountTable {
        MountTable::parse(text.as_bytes()).unwrap()
    }

    fn location(device: &str, path: &str) -> Location {
        Location { device: device.into(), path: path.into() }
    }

    fn point(table: &MountTable, device: &str, path: &str) -> Option<String> {
        let point = table.mount_point_below(&location(device, path))?;
        Some(point.to_str().unwrap().to_owned())
    }

    #[test]
    fn mountinfo_line_is_parsed_with_any_number_of_tags_and_any_byte_in_its_paths() {
        let mounts = table(
            "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
             36 27 0:30 /a\\040b /mnt/\\011x\\012y\\134z\\043\\303\\244 rw shared:2 master:3 - \
             fuse.x-y none rw\n",
        );
        let mount = &mounts.mounts[&36];
        assert_eq!((mount.parent, mount.fs_type.as_str()), (27, "fuse.x-y"));
        assert_eq!(mount.root, location("0:30", "/a b"));
        assert_eq!(mount.point.as_os_str().as_bytes(), "/mnt/\tx\ny\\z#ä".as_bytes());
        assert_eq!(mounts.mounts[&27].root, location("254:0", "/"));
        for (escaped, plain) in [("a\\", "a\\"), ("\\04", "\\04"), ("\\999x", "\\999x")] {
            assert_eq!(unescape(escaped.as_bytes()), Path::new(plain));
        }
        for unknown in ["27", "27 1 254:0 / / rw", "x 1 254:0 / / rw - ext4 /dev/vda rw"] {
            assert!(MountTable::parse(unknown.as_bytes()).is_err(), "{unknown}");
        }
    }

    #[test]
    fn mount_point_counts_by_where_it_is_in_the_file_system() {
        let mounts = table(
            "20 1 8:1 / / rw - ext4 /dev/a rw\n\
             21 20 0:5 / /srv/io/m rw - tmpfs t rw\n\
             22 20 8:1 /data /b rw - ext4 /dev/a rw\n\
             23 22 0:6 / /b/x/m rw - tmpfs t rw\n\
             24 20 8:2 / /home rw - ext4 /dev/c rw\n\
             25 24 8:1 /data/x/sub /home/s rw - ext4 /dev/a rw\n\
             26 25 8:1 /etc /home/s/same rw - ext4 /dev/a rw\n\
             27 20 8:1 /self /self rw - ext4 /dev/a rw\n",
        );
        assert_eq!(point(&mounts, "8:1", "/srv/io").as_deref(), Some("/srv/io/m"));
        // Made below another mount of the same directory.
        assert_eq!(point(&mounts, "8:1", "/data").as_deref(), Some("/b/x/m"));
        // Of the same device, below a bind mount of a directory in it.
        assert_eq!(point(&mounts, "8:1", "/data/x/sub").as_deref(), Some("/home/s/same"));
        // On it or beside it is not below it; where its own directories are mounted is elsewhere.
        for (device, path) in [
            ("8:1", "/srv/io/m"),
            ("8:1", "/srv/i"),
            ("8:1", "/srv/io/mm"),
            ("8:1", "/self"),
            ("8:2", "/s"),
            ("8:1", "/etc"),
            ("8:3", "/"),
        ] {
            assert_eq!(point(&mounts, device, path), None, "{device} {path}");
        }
    }

    #[test]
    fn what_is_hidden_under_another_mount_is_not_below_what_hides_it() {
        let mounts = table(
            "20 1 8:1 / / rw - ext4 /dev/a rw\n\
             21 20 0:5 / /mnt/m rw - tmpfs t rw\n\
             22 20 8:2 / /mnt rw - ext4 /dev/b rw\n",
        );
        assert_eq!(point(&mounts, "8:2", "/"), None);
        assert_eq!(point(&mounts, "8:1", "/mnt").as_deref(), Some("/mnt/m"));
    }

    #[test]
    fn a_path_is_located_through_links_and_where_it_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        let table = MountTable::read().unwrap();
        let locate = |path: &Path| table.locate_path(path).unwrap().unwrap().location;
        let there = locate(dir.path());
        assert_eq!(there, locate(&dir.path().join("link")));
        let missing = locate(&dir.path().join("link/a/b"));
        assert_eq!(there.path_to(&missing), Some(Path::new("a/b")));
        assert_eq!(missing.path_to(&there), None);
        let opened = fs::File::open(dir.path().join("link")).unwrap();
        assert_eq!(table.locate(opened.as_fd()).unwrap().unwrap().location, there);
        assert_eq!(table.locate_path(Path::new("/proc/1")).unwrap().unwrap().fs_type, "proc");
        // What no mount of ours has: a pipe.
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(table.locate(pipe.as_fd()).unwrap().is_none());
    }
}
