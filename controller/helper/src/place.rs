//! Where a container is made: a mount namespace of the helper's own, with nothing in it but what a
//! container is made of.
//!
//! No file of a container is ever on a disk, and no mount of one is ever seen on the host: all
//! that the kernel must be told to remove afterwards is its control groups. It is also quicker:
//! the container's namespace is a copy of this one, and the host's mounts may be hundreds.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};
use rustix::thread::UnshareFlags;
use sandbox_helper::cgroup::{Hierarchies, Homes};

/// The container's root, to be.
pub const ROOT: &str = "/rootfs";
/// The folder of its OCI configuration.
pub const BUNDLE: &str = "/bundle";
/// What libcontainer keeps of it.
pub const STATE: &str = "/state";
/// Where the agent is in it.
const AGENT: &str = "/.sandbox/agent";

/// A place to make one container in.
pub struct Place {
    /// The folder of records.
    pub records: OwnedFd,
    /// Control groups.
    pub hierarchies: Hierarchies,
    /// The groups of this process, where libcontainer sees none.
    pub homes: Option<Homes>,
    root: OwnedFd,
}

impl Place {
    /// Leaves the host's mount namespace for one of our own.
    pub fn prepare(data_dir: &Path, agent: &Path) -> Result<Self, super::Error> {
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let records = rustix::fs::open(data_dir.join("containers"), folder, Mode::empty())?;
        own_namespace()?;
        rustix::mount::mount_change(
            "/",
            MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        )?;
        let copy = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::OPEN_TREE_CLONE;
        let proc = rustix::mount::open_tree(CWD, "/proc", copy)?;
        // libcontainer makes a group in every hierarchy that it sees.
        let hierarchies = Hierarchies::here()?;
        let cgroups: Vec<_> = hierarchies
            .used()
            .map(|point| rustix::mount::open_tree(CWD, point, copy).map(|tree| (point, tree)))
            .collect::<Result<_, _>>()?;
        let homes = Homes::open(&hierarchies);
        let agent = rustix::mount::open_tree(CWD, agent, copy)?;

        let base = data_dir.join("mnt");
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("tmpfs", &base, "tmpfs", flags, c"mode=0700,size=1m")?;
        for folder in ["proc", "sys/fs/cgroup", "cgroup", "rootfs", "bundle", "state"] {
            fs::create_dir_all(base.join(folder))?;
        }
        move_to(&proc, &base.join("proc"))?;
        for (index, (point, hierarchy)) in cgroups.iter().enumerate() {
            let at = match (hierarchies.is_v1(), homes.is_some()) {
                (false, _) => base.join("sys/fs/cgroup"),
                (true, false) => {
                    base.join("sys/fs/cgroup").join(point.file_name().unwrap_or_default())
                }
                // libcontainer finds them by their names: here it finds none.
                (true, true) => base.join("cgroup").join(index.to_string()),
            };
            fs::create_dir_all(&at)?;
            move_to(hierarchy, &at)?;
        }
        let rootfs = base.join("rootfs");
        rustix::mount::mount("tmpfs", &rootfs, "tmpfs", flags, c"mode=0755,size=256k")?;

        rustix::process::chdir(&base)?;
        rustix::process::pivot_root(".", ".")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")?;
        let root = rustix::fs::open(ROOT, folder, Mode::empty())?;
        let place = Self { records, hierarchies: Hierarchies::here()?, homes, root };
        place.attach(&agent, AGENT, MountFlags::RDONLY)?;
        Ok(place)
    }

    /// Makes a mount of the container, from the detached one that was sent.
    pub fn mount(
        &self,
        mut sent: Vec<OwnedFd>,
        target: &str,
        read_only: bool,
    ) -> Result<(), super::Error> {
        let mount = sent.pop().ok_or("nothing was sent to mount")?;
        // What the host forbids there stays forbidden.
        let host = rustix::fs::fstatvfs(&mount)?.f_flag;
        let mut flags = MountFlags::empty();
        if host.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
            flags |= MountFlags::NOEXEC;
        }
        if read_only || host.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
            flags |= MountFlags::RDONLY;
        }
        Ok(self.attach(&mount, target, flags)?)
    }

    /// Attaches a detached mount in the container's root. Nothing is in there but what we made, so
    /// no link can lead elsewhere.
    fn attach(&self, mount: &OwnedFd, target: &str, flags: MountFlags) -> io::Result<()> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(mount)?.st_mode);
        let at = self.mount_point(target, kind)?;
        let empty =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(mount, c"", &at, c"", empty)?;
        let flags = flags | MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
        // By its descriptor: a path may be longer than the kernel takes at once.
        rustix::mount::mount_remount(proc_path(mount.as_fd()), flags, c"")?;
        Ok(())
    }

    /// Makes the file or folder that something of this kind is mounted on.
    fn mount_point(&self, target: &str, kind: FileType) -> io::Result<OwnedFd> {
        let mut names: Vec<&str> = target.split('/').filter(|name| !name.is_empty()).collect();
        let last = names.pop().ok_or(Errno::INVAL)?;
        let mut folder = self.root.try_clone()?;
        for name in names {
            folder = make_folder(&folder, name)?;
        }
        if kind == FileType::Directory {
            return make_folder(&folder, last);
        }
        let file = OFlags::CREATE | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&folder, last, file, Mode::from_raw_mode(0o644))?)
    }
}

fn make_folder(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, folder, Mode::empty())?)
}

fn move_to(mount: &OwnedFd, target: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, c"", CWD, target, flags)?)
}

fn proc_path(descriptor: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd as _;
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

#[expect(unsafe_code, reason = "some of unshare's flags are unsafe, so it is as a whole")]
fn own_namespace() -> io::Result<()> {
    // SAFETY: this process has one thread, so nobody else's view of anything changes.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?)
}

/// Removes a file from the folder of records.
pub fn remove_record(records: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(records, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
