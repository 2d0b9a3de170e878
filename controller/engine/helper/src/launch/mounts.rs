//! What a container sees: mounts are made, attached, made read-only, and masked.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags};
use sandbox_helper::mounts::{self, NODEV, NOEXEC, NOSUID, RDONLY, Reach};

use crate::failed::{Failed, Step as _};
use crate::failpoint;

/// Makes a file system, which only the container has, as [`mounts::make`] does.
pub fn make(
    kind: &str,
    source: &str,
    options: &[(&str, String)],
    restrictions: MountAttrFlags,
) -> Result<OwnedFd, Failed> {
    let make = || {
        failpoint::call("fsopen")?;
        failpoint::call(kind)?;
        mounts::make(kind, source, options, restrictions)
    };
    make().step_at("make a file system of the kind", kind)
}

/// Restricts a mount, as [`mounts::restrict`] does.
pub fn restrict(mount: impl AsFd, restrictions: MountAttrFlags, reach: Reach) -> io::Result<()> {
    failpoint::call("mount_setattr")?;
    mounts::restrict(mount, restrictions, reach)
}

/// Attaches a mount to a directory or file.
pub fn attach(mount: impl AsFd, target: impl AsFd) -> Result<(), Errno> {
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", target, c"", empty)
}

/// Makes a path of the container read-only, by a mount of it over itself. A path that this kernel lacks
/// needs none.
pub fn make_read_only(path: &str) -> Result<(), Failed> {
    let copy = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::OPEN_TREE_CLONE;
    let tree = match rustix::mount::open_tree(CWD, path, copy) {
        Err(Errno::NOENT) => return Ok(()),
        tree => tree.step_at("copy the mount", path)?,
    };
    restrict(&tree, RDONLY | NOSUID | NODEV | NOEXEC, Reach::Itself)
        .step_at("make read-only", path)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&tree, c"", CWD, path, flags).step_at("mount at", path)
}

/// Covers files of the container by its null device, and directories by an empty one. There are dozens, and
/// which is which is found out before: the kernel waits for all processors to take a mount away that does not
/// fit, which takes as long as six others.
pub fn mask(paths: &[String]) -> Result<(), Failed> {
    // What is not found from here on is a path to mask, not what masks it.
    rustix::fs::stat("/dev/null").step("find /dev/null")?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mut empty = None;
    for path in paths.iter().map(String::as_str) {
        let kind = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let covered = match (kind, empty) {
            (Ok(FileType::Directory), None) => {
                rustix::mount::mount("tmpfs", path, "tmpfs", flags, c"size=4k,nr_inodes=1")
                    .inspect(|()| empty = Some(path))
            }
            // A copy is as read-only as the first, and is made in less than half the time.
            (Ok(FileType::Directory), Some(empty)) => rustix::mount::mount_bind(empty, path),
            (Ok(_), _) => rustix::mount::mount_bind("/dev/null", path),
            (Err(error), _) => Err(error),
        };
        match covered {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error).step_at("mask", path),
        }
    }
    Ok(())
}
