//! Final setup of a container's namespaces from outside: what libcontainer does not do.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags};
use rustix::process::Pid;
use rustix::thread::LinkNameSpaceType;
use sandbox_helper::cgroup::View;

use crate::loopback;

/// Brings up the loopback device of a process's namespaces, masks paths of its `/proc`, makes
/// its `/dev` read-only, and shows it control groups.
pub fn finish(pid: Pid, masked: &[String], views: &[View]) -> io::Result<()> {
    within(pid, "net", LinkNameSpaceType::Network, loopback::up)?;
    let views = open(views)?;
    within(pid, "mnt", LinkNameSpaceType::Mount, || {
        mask(masked)?;
        seal_devices()?;
        show(&views)
    })
}

/// Runs a function in another process's namespaces. Mount and network namespaces belong to a
/// thread: this process has only one, whose root is that of its namespace before and after.
fn within(
    pid: Pid,
    name: &str,
    kind: LinkNameSpaceType,
    act: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let home = File::open(format!("/proc/self/ns/{name}"))?;
    let there = File::open(format!("/proc/{pid}/ns/{name}"))?;
    rustix::thread::move_into_link_name_space(there.as_fd(), Some(kind))?;
    let result = act();
    rustix::thread::move_into_link_name_space(home.as_fd(), Some(kind))?;
    result
}

/// Covers files by the null device and directories by an empty one. One system call a path:
/// libcontainer makes several, and logs, which with dozens of paths is milliseconds a container.
fn mask(paths: &[String]) -> io::Result<()> {
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // What is not found from here on is a path to mask, not what masks it.
    rustix::fs::stat("/dev/null")?;
    for path in paths {
        let covered = match rustix::mount::mount_bind("/dev/null", path.as_str()) {
            Err(Errno::NOTDIR) => {
                rustix::mount::mount("tmpfs", path.as_str(), "tmpfs", flags, c"size=4k,nr_inodes=1")
            }
            covered => covered,
        };
        match covered {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(io::Error::other(format!("cannot mask {path}: {error}"))),
        }
    }
    Ok(())
}

/// libcontainer drops a read-only `/dev` from the configuration, because it makes the devices
/// there. It is a root-owned directory in memory: a sandbox that runs as root, without any
/// capability, could fill it. Devices can be written to all the same.
fn seal_devices() -> io::Result<()> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
    Ok(rustix::mount::mount_remount("/dev", flags, c"")?)
}

/// Mounts of the groups that exist, attached nowhere yet, and where they belong.
fn open(views: &[View]) -> io::Result<Vec<(OwnedFd, &str)>> {
    let copy = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::OPEN_TREE_CLONE;
    let mut opened = Vec::new();
    for view in views {
        match rustix::mount::open_tree(CWD, &view.group, copy) {
            Ok(group) => opened.push((group, &*view.target)),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(opened)
}

/// Mounts the container's own cgroups, and nothing above them, where programs look for their
/// limits. The mounts are read-only, because root owns a cgroup's files and the sandbox may run as
/// root. The mount points are in a tmpfs of this helper.
fn show(views: &[(OwnedFd, &str)]) -> io::Result<()> {
    let flags = MountFlags::BIND
        | MountFlags::RDONLY
        | MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOEXEC;
    for (group, target) in views {
        let from = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(group, c"", CWD, *target, from)?;
        rustix::mount::mount_remount(*target, flags, c"")?;
    }
    Ok(())
}
