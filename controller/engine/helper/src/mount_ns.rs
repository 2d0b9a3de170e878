//! The helper's own namespaces. A container's mount namespace is a copy of the helper's, which contains
//! only what the launch of a container needs; its network and IPC are the helper's.
//!
//! No file of a container is ever on a disk, and no mount of one is ever seen on the host: all
//! that must be removed afterwards is its control groups. It is also faster: the host's mounts may
//! be hundreds.

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};
use rustix::thread::UnshareFlags;
use sandbox_helper::cgroup::Hierarchies;
use sandbox_helper::delegation;
use sandbox_helper::spec::{Descriptors, Launch};

use crate::failed::{Failed, Step as _};
use crate::launch::loopback;
use crate::rootless::{self, Rootless};

/// What a helper leaves before it has a request, because it takes half a millisecond. The network and the
/// objects of its IPC are the container's; the helper uses neither.
const NAMESPACES: UnshareFlags =
    UnshareFlags::NEWNS.union(UnshareFlags::NEWNET).union(UnshareFlags::NEWIPC);

/// Where a container's root is made, and the image's directory and the upper layer of an overlay.
pub const ROOT: &str = "/root";
pub const LOWER: &str = "/lower";
pub const LAYER: &str = "/layer";

/// The mount namespace for one container.
pub struct MountNamespace {
    /// The directory of records.
    pub records: OwnedFd,
    /// Control groups.
    pub hierarchies: Hierarchies,
    /// `Some` without root.
    pub rootless: Option<Rootless>,
}

impl MountNamespace {
    /// Leaves the host's mount namespace for a new one. `groups` are the mount points of control groups: to
    /// look for them is to read the host's mounts, which may be hundreds.
    pub fn prepare(data_dir: &Path, groups: &[PathBuf]) -> Result<Self, Failed> {
        Self::with(data_dir, groups, || Ok(None))
    }

    /// The same in a user namespace of the container's user, in which the files and directories that
    /// the launch mounts are opened again.
    pub fn without_root(
        data_dir: &Path,
        wanted: &Launch,
        given: &mut Descriptors<OwnedFd>,
    ) -> Result<Self, Failed> {
        // The engine has decided it: a container never has weaker limits than it knows of.
        let hierarchies = match wanted.has_groups {
            true => delegation::take_delegated().map_err(Failed)?,
            false => Hierarchies::none(),
        };
        let sources = rootless::Sources::of(given)?;
        rootless::enter_user_namespace(&wanted.process)?;
        let groups: Vec<_> = hierarchies.mounted().map(Path::to_owned).collect();
        Self::with(data_dir, &groups, || {
            sources.mount(given)?;
            Rootless::prepare().map(Some)
        })
    }

    /// `host` is called in the new namespace while it has the host's mounts.
    fn with(
        data_dir: &Path,
        groups: &[PathBuf],
        host: impl FnOnce() -> Result<Option<Rootless>, Failed>,
    ) -> Result<Self, Failed> {
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let records = rustix::fs::open(data_dir.join("containers"), folder, Mode::empty());
        let records = records.step_at("open the records of", data_dir.display())?;
        own_namespaces().step("leave the host's namespaces")?;
        loopback::up().step("bring the loopback up")?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).step("make all mounts private")?;
        let rootless = host()?;
        let copy = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::OPEN_TREE_CLONE;
        // In a user namespace a mount cannot be separated from those below it.
        let with_those_below = match rootless {
            None => OpenTreeFlags::empty(),
            Some(_) => OpenTreeFlags::AT_RECURSIVE,
        };
        let tree = |path: &Path| {
            rustix::mount::open_tree(CWD, path, copy | with_those_below)
                .step_at("copy the mount", path.display())
        };
        let proc = tree(Path::new("/proc"))?;
        let groups: Vec<_> =
            groups.iter().map(|point| tree(point.as_path())).collect::<Result<_, _>>()?;

        let base = data_dir.join("mnt");
        let at_base = |path: &str| base.join(path.trim_start_matches('/'));
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("tmpfs", &base, "tmpfs", flags, c"mode=0700,size=1m")
            .step_at("mount a tmpfs at", base.display())?;
        let move_to = |mount: &OwnedFd, target: &Path| {
            fs::create_dir_all(target).step_at("create", target.display())?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            rustix::mount::move_mount(mount, c"", CWD, target, flags)
                .step_at("mount at", target.display())
        };
        move_to(&proc, &at_base("proc"))?;
        for (index, hierarchy) in groups.iter().enumerate() {
            move_to(hierarchy, &at_base("cgroup").join(index.to_string()))?;
        }
        for folder in [ROOT, LOWER, LAYER] {
            fs::create_dir(at_base(folder)).step_at("create", folder)?;
        }
        let entered = rustix::process::chdir(&base).and_then(|()| enter());
        entered.step_at("make a root of", base.display())?;
        let hierarchies = Hierarchies::here().step("find the control groups")?;
        Ok(Self { records, hierarchies, rootless })
    }
}

/// Makes the mount that this process is in the root of its namespace, and detaches everything else.
pub fn enter() -> Result<(), Errno> {
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

#[expect(unsafe_code, reason = "some of unshare's flags are unsafe, so it is as a whole")]
fn own_namespaces() -> Result<(), Errno> {
    // SAFETY: this process has one thread, so no other thread is affected.
    unsafe { rustix::thread::unshare_unsafe(NAMESPACES) }
}

/// Removes a file from the directory of records.
pub fn remove_record(records: &OwnedFd, name: &str) -> Result<(), Errno> {
    match rustix::fs::unlinkat(records.as_fd(), name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}
