//! What a helper does that is not root.
//!
//! It enters a user namespace, in which it has every capability over what belongs to its user: it mounts
//! and makes namespaces, but has no other rights on this machine. One user and one group are mapped, the
//! container's to the helper's own: the kernel lets every user map no more than that.
//!
//! A mount of another namespace cannot be copied there. So the engine sends what it has opened, and the
//! helper opens each path again, and compares.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;
use sandbox_helper::spec::{Descriptors, Process};

use crate::devices::DEVICES;
use crate::failed::{Failed, Step as _};

/// What a container gets in place of what only root can make.
pub struct Rootless {
    /// Mounts of the host's devices, in the order of [`DEVICES`].
    devices: Vec<OwnedFd>,
}

impl Rootless {
    /// Opens it, in a mount namespace that has the host's mounts.
    pub fn prepare() -> Result<Self, Failed> {
        let copy = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::OPEN_TREE_CLONE;
        let devices = DEVICES.iter().map(|(name, ..)| {
            let path = format!("/dev/{name}");
            rustix::mount::open_tree(CWD, &path, copy).step_at("copy the mount", path)
        });
        Ok(Self { devices: devices.collect::<Result<_, _>>()? })
    }

    /// The mounts of devices, by the names of these.
    pub fn devices(&self) -> impl Iterator<Item = (&'static str, &OwnedFd)> {
        DEVICES.iter().map(|(name, ..)| *name).zip(&self.devices)
    }
}

/// Enters a user namespace in which this process's user has the ids of the container's.
pub fn enter_user_namespace(process: &Process) -> Result<(), Failed> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    #[expect(unsafe_code, reason = "some of unshare's flags are unsafe, so it is as a whole")]
    // SAFETY: this process has one thread, and no memory or descriptors become its own by it.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }
        .step("make a user namespace")?;
    // Groups are fixed before one is mapped: dropping one could open what it is denied.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{} {uid} 1", process.uid)),
        ("gid_map", format!("{} {gid} 1", process.gid)),
    ] {
        fs::write(format!("/proc/self/{file}"), text).step("map its user in a user namespace")?;
    }
    Ok(())
}

/// The paths of what a launch mounts, from the root of its container on.
pub struct Sources {
    paths: Vec<PathBuf>,
}

impl Sources {
    /// Of opened files and directories, in the mount namespace that they were opened in.
    pub fn of(given: &Descriptors<OwnedFd>) -> Result<Self, Failed> {
        let paths = given.root.iter().chain(&given.mounts).map(|source| {
            fs::read_link(format!("/proc/self/fd/{}", source.as_raw_fd()))
                .step("find the path of a mount")
        });
        Ok(Self { paths: paths.collect::<Result<_, _>>()? })
    }

    /// Replaces each by a detached mount of the same, in a copy of that mount namespace.
    pub fn mount(self, given: &mut Descriptors<OwnedFd>) -> Result<(), Failed> {
        for (path, source) in self.paths.iter().zip(given.root.iter_mut().chain(&mut given.mounts))
        {
            let shown = path.display();
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            let found = rustix::fs::openat2(CWD, path, flags, Mode::empty(), no_links)
                .step_at("open again", &shown)?;
            let identity =
                |file: &OwnedFd| rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino));
            if identity(&found).step("look at a mount")?
                != identity(source).step("look at a mount")?
            {
                return Err(Failed(format!("cannot mount {shown}: it was replaced meanwhile")));
            }
            let copy = OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::AT_EMPTY_PATH;
            *source = match rustix::mount::open_tree(&found, c"", copy) {
                Err(Errno::INVAL) => {
                    let why = "something is mounted below it, and only root can leave that out";
                    return Err(Failed(format!("cannot mount {shown}: {why}")));
                }
                mount => mount.step_at("copy the mount", &shown)?,
            };
        }
        Ok(())
    }
}
