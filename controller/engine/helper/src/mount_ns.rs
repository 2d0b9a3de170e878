//! The helper's own mount namespace, in which a container is created. It contains only what the
//! container needs.
//!
//! No file of a container is ever on a disk, and no mount of one is ever seen on the host: all
//! that must be removed afterwards is its control groups. It is also faster:
//! the container's namespace is a copy of this one, and the host's mounts may be hundreds.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};
use rustix::thread::UnshareFlags;
use sandbox_helper::cgroup::{Hierarchies, Homes, Tenant};

/// The future root of the container.
pub const ROOT: &str = "/rootfs";
/// The directory of its OCI configuration.
pub const BUNDLE: &str = "/bundle";
/// libcontainer's state directory.
pub const STATE: &str = "/state";
/// The image's directory and the upper layer, while the overlay is mounted.
const LOWER: &str = "/lower";
const LAYER: &str = "/layer";
const FOLDER: Mode = Mode::from_raw_mode(0o755);

/// The mount namespace for one container.
pub struct MountNamespace {
    /// The directory of records.
    pub records: OwnedFd,
    /// Control groups.
    pub hierarchies: Hierarchies,
    /// The groups of this process, which are hidden from libcontainer.
    pub homes: Option<Homes>,
    /// What the root is for.
    pub tenant: Tenant,
    root: OwnedFd,
}

/// The limits of `/tmp`.
pub struct Tmp {
    pub bytes: u64,
    pub inodes: u64,
}

impl MountNamespace {
    /// Leaves the host's mount namespace for a new one.
    pub fn prepare(data_dir: &Path) -> Result<Self, super::Error> {
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
        let hierarchies = Hierarchies::here()?;
        Ok(Self { records, hierarchies, homes, tenant: Tenant::Scripts, root })
    }

    /// Recreates the root from a received directory, below a layer in memory, which gets what a
    /// container needs and the directory lacks. The container sees all of it read-only.
    pub fn make_root(
        &mut self,
        mut sent: Vec<OwnedFd>,
        files: &[(String, String)],
        tmp: &Tmp,
    ) -> Result<(), super::Error> {
        let directory = sent.pop().ok_or("no directory was sent")?;
        self.tenant = Tenant::Programs;
        rustix::mount::unmount(ROOT, UnmountFlags::DETACH)?;

        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        for folder in [LOWER, LAYER] {
            fs::create_dir(folder)?;
        }
        move_to(&directory, Path::new(LOWER))?;
        rustix::mount::mount_remount(LOWER, flags | MountFlags::BIND | MountFlags::RDONLY, c"")?;
        rustix::mount::mount("tmpfs", LAYER, "tmpfs", flags, c"mode=0700,size=1m")?;
        for folder in ["upper", "work"] {
            fs::create_dir(Path::new(LAYER).join(folder))?;
        }
        // The directory cannot control the overlay: extended attributes of lower layers are not
        // honoured.
        let options = format!(
            "lowerdir={LOWER},upperdir={LAYER}/upper,workdir={LAYER}/work,redirect_dir=nofollow,\
             metacopy=off,index=off"
        );
        let options = CString::new(options)?;
        rustix::mount::mount("overlay", ROOT, "overlay", flags, &*options)?;
        // The overlay has mounts of its own of both.
        for folder in [LOWER, LAYER] {
            rustix::mount::unmount(folder, UnmountFlags::DETACH)?;
        }
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.root = rustix::fs::open(ROOT, folder, Mode::empty())?;

        // These are mount targets by path, so no link of the directory may be there.
        for name in ["proc", "dev", "sys", "tmp"] {
            self.real_folder(name)?;
        }
        for view in self.hierarchies.of("").views() {
            self.real_folder(&view.target)?;
            let (folder, name) = split(&view.target)?;
            let folder = self.real_folder(folder)?;
            for link in &view.links {
                _ = rustix::fs::symlinkat(name, &folder, link);
            }
        }
        for (path, content) in files {
            let (folder, name) = split(path)?;
            let mut file = File::from(new_file(&self.folder(folder)?, name)?);
            file.write_all(content.as_bytes())?;
        }
        let options = format!("mode=1777,size={},nr_inodes={}", tmp.bytes, tmp.inodes);
        let options = CString::new(options)?;
        rustix::mount::mount("tmpfs", Path::new(ROOT).join("tmp"), "tmpfs", flags, &*options)?;
        Ok(())
    }

    /// Creates the directory at a path of the root, replacing anything else on the way, even links,
    /// so that the path leads to it.
    fn real_folder(&self, path: &str) -> io::Result<OwnedFd> {
        let mut folder = self.root.try_clone()?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
            match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                Ok(FileType::Directory) => {}
                Ok(_) => {
                    rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
                    rustix::fs::mkdirat(&folder, name, FOLDER)?;
                }
                Err(Errno::NOENT) => rustix::fs::mkdirat(&folder, name, FOLDER)?,
                Err(error) => return Err(error.into()),
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = rustix::fs::openat(&folder, name, flags, Mode::empty())?;
        }
        Ok(folder)
    }

    /// Mounts a received detached mount in the container.
    pub fn mount(
        &self,
        mut sent: Vec<OwnedFd>,
        target: &str,
        read_only: bool,
    ) -> Result<(), super::Error> {
        let mount = sent.pop().ok_or("nothing was sent to mount")?;
        // Restrictions of the host's mount are kept.
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

    /// Attaches a detached mount in the container's root.
    fn attach(&self, mount: &OwnedFd, target: &str, flags: MountFlags) -> io::Result<()> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(mount)?.st_mode);
        let at = if kind == FileType::Directory {
            self.real_folder(target)?
        } else {
            let (folder, name) = split(target)?;
            new_file(&self.real_folder(folder)?, name)?
        };
        let empty =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(mount, c"", &at, c"", empty)?;
        // A copy of a mount that the host shares is shared too: what is mounted below one would be
        // mounted below the other.
        let private = MountPropagationFlags::PRIVATE;
        rustix::mount::mount_change(proc_path(mount.as_fd()), private)?;
        let flags = flags | MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
        // By its descriptor: a path may be longer than the kernel takes at once.
        rustix::mount::mount_remount(proc_path(mount.as_fd()), flags, c"")?;
        Ok(())
    }

    /// The directory at a path of the root, as a process in the container resolves it: links are
    /// followed, never out of the root. Missing directories are created, replacing other files.
    fn folder(&self, path: &str) -> io::Result<OwnedFd> {
        let mut folder = self.root.try_clone()?;
        let mut so_far = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            so_far = format!("{so_far}/{name}");
            folder = match self.open_folder(&so_far) {
                Ok(folder) => folder,
                Err(_) => {
                    _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
                    rustix::fs::mkdirat(&folder, name, FOLDER)?;
                    self.open_folder(&so_far)?
                }
            };
        }
        Ok(folder)
    }

    fn open_folder(&self, path: &str) -> io::Result<OwnedFd> {
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let open = || rustix::fs::openat2(&self.root, path, folder, Mode::empty(), inside);
        // A concurrent rename on the host: retry.
        let opened = (0..100).map(|_| open()).find(|opened| !matches!(opened, Err(Errno::AGAIN)));
        Ok(opened.unwrap_or(Err(Errno::AGAIN))?)
    }
}

/// The path of a file's directory, and its name.
fn split(path: &str) -> io::Result<(&str, &str)> {
    Ok(path.rsplit_once('/').ok_or(Errno::INVAL)?)
}

/// A new file, replacing what is there unless it is a directory.
fn new_file(folder: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
    let file = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, file, Mode::from_raw_mode(0o644))?)
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
    // SAFETY: this process has one thread, so no other thread is affected.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?)
}

/// Removes a file from the directory of records.
pub fn remove_record(records: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(records, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
