//! The last things that are done in a container's namespaces, and not by its own process: what
//! libcontainer leaves undone.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::mount::MountFlags;
use rustix::process::Pid;
use rustix::thread::LinkNameSpaceType;

use crate::loopback;

/// Brings up the loopback device of a process's namespaces, and makes its `/dev` read-only.
pub fn finish(pid: Pid) -> io::Result<()> {
    within(pid, "net", LinkNameSpaceType::Network, loopback::up)?;
    within(pid, "mnt", LinkNameSpaceType::Mount, seal_devices)
}

/// Does something in another process's namespace. Mounts are as much a thread's own as the network
/// is: this process has one thread, whose root is its namespace's before and after.
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

/// libcontainer drops a read-only `/dev` from the configuration, because it makes the devices
/// there. It is a root-owned directory in memory: a sandbox that runs as root, without any
/// capability, could fill it. Devices can be written to all the same.
fn seal_devices() -> io::Result<()> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
    Ok(rustix::mount::mount_remount("/dev", flags, c"")?)
}
