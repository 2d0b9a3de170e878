//! File systems and mounts, by descriptors: a mount is made, restricted, and only then attached.
//! So nothing is ever reachable without its restrictions.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
};

use super::sys::{Reach, restrict};
use crate::failed::{Failed, Step as _};
use crate::failpoint;

/// No set-id bit of its files has an effect.
pub const NOSUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
/// No device of it opens.
pub const NODEV: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
/// No file of it is executed.
pub const NOEXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
/// Nothing of it is written to.
pub const RDONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;

/// A new file system, which only the container has.
pub struct Filesystem<'a> {
    /// Its kind.
    pub kind: &'static str,
    /// The name that the mount table shows.
    pub source: &'a str,
    /// Its options, each with a value; empty for a flag.
    pub options: &'a [(&'a str, String)],
    /// What no mount of it allows.
    pub restrictions: MountAttrFlags,
}

impl Filesystem<'_> {
    /// Makes it, attached nowhere yet.
    pub fn mount(&self) -> Result<OwnedFd, Failed> {
        let Self { kind, source, options, restrictions } = self;
        let make = || {
            failpoint::call("fsopen")?;
            failpoint::call(kind)?;
            let filesystem = rustix::mount::fsopen(*kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
            rustix::mount::fsconfig_set_string(&filesystem, "source", *source)?;
            for (name, value) in *options {
                match value.as_str() {
                    "" => rustix::mount::fsconfig_set_flag(&filesystem, *name)?,
                    value => rustix::mount::fsconfig_set_string(&filesystem, *name, value)?,
                }
            }
            rustix::mount::fsconfig_create(&filesystem)?;
            rustix::mount::fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, *restrictions)
        };
        make().step_at("make a file system of the kind", kind)
    }
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

/// Covers files of the container by its null device, and directories by an empty one. One system call a
/// path, of which there are dozens.
pub fn mask(paths: &[String]) -> Result<(), Failed> {
    // What is not found from here on is a path to mask, not what masks it.
    rustix::fs::stat("/dev/null").step("find /dev/null")?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    for path in paths {
        let covered = match rustix::mount::mount_bind("/dev/null", path.as_str()) {
            Err(Errno::NOTDIR) => {
                rustix::mount::mount("tmpfs", path.as_str(), "tmpfs", flags, c"size=4k,nr_inodes=1")
            }
            covered => covered,
        };
        match covered {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error).step_at("mask", path),
        }
    }
    Ok(())
}
