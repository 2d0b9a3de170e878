//! Bounded directories: a file system for each, whose size the kernel enforces, whatever programs do
//! with their files: unlinked, mapped, in flight, allocated or written directly.
//!
//! It is in memory (tmpfs), or an ext4 image on a loop device. Its mount is attached to no directory
//! of this machine: there are only descriptors of it. The image has no name either, unless it is
//! [kept](crate::kept), and the loop device frees itself. So nothing is left of it when the last
//! descriptor is closed and the last container that has it mounted is gone, however this process ends.

pub(crate) mod image;
mod loop_device;
mod template;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Uid, fchmod, fchown, fstatvfs, open, syncfs, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use sandbox_api::DiskBackend;
use sandbox_dirfd::{DiskUsage, create_private_dir, open_directory};

use self::image::KeptImage;
use self::template::{Life, WITHHELD, at};

/// The largest default page size of a kernel.
const LARGEST_PAGE: u64 = 64 << 10;
/// Inodes that an ext4 itself uses, when it has no `lost+found`.
const OWN_INODES: u64 = 10;
/// The kernel's background thread would write zeros into an image; and what is synced need not reach
/// the disk, because the image does not outlast a crash.
const EXT4_FLAGS: [&str; 2] = ["noinit_itable", "nobarrier"];

/// In a kept one, space that is deleted is given back to the disk.
const KEPT_FLAGS: [&str; 2] = ["noinit_itable", "discard"];
/// An image holds at most this much more than it was made for, and a sixteenth.
const SLACK: u64 = 4 << 20;

/// A bounded directory. It needs root and Linux 5.2, on disk Linux 5.8.
#[derive(Debug)]
pub struct BoundedDir {
    files: Arc<OwnedFd>,
    device: Option<Arc<OwnedFd>>,
    disk: Option<OwnedFd>,
    size: DiskUsage,
    /// Its root, opened before anything is written: it hears of every write that fails. `None` in memory.
    root: Option<OwnedFd>,
    /// It has heard of one.
    is_incomplete: AtomicBool,
    /// The image, if it is kept.
    kept: Option<Arc<KeptImage>>,
}

impl BoundedDir {
    /// Creates one in memory, for `owner`. So much more than its size fits in it, where something else
    /// counts what is written to it.
    ///
    /// # Errors
    ///
    /// Those of the kernel, if it cannot be mounted.
    pub fn in_memory(
        size: DiskUsage,
        spare: DiskUsage,
        owner: Option<(u32, u32)>,
    ) -> io::Result<Self> {
        // The kernel rounds up to whole pages, and a size of 0 would mean no limit.
        let bytes = size.bytes.saturating_add(spare.bytes);
        let bytes = (bytes / LARGEST_PAGE).max(1).saturating_mul(LARGEST_PAGE);
        // The root directory counts as an entry.
        let entries = size.entries.saturating_add(spare.entries).saturating_add(1);
        let options = [("size", &*bytes.to_string()), ("nr_inodes", &*entries.to_string())];
        let dir = Self { size, ..Self::of(mount("tmpfs", &options, &[])?) };
        dir.give(owner)?;
        Ok(dir)
    }

    /// Creates one on disk, for `owner`: an image in `scratch`, which is created if missing. The empty
    /// image of this size is kept in `templates`.
    ///
    /// # Errors
    ///
    /// [`io::Error`] if there is no `mke2fs`, no free loop device, or the kernel cannot mount it.
    pub fn on_disk(
        size: DiskUsage,
        owner: Option<(u32, u32)>,
        scratch: &Path,
        templates: &Path,
    ) -> io::Result<Self> {
        create_private_dir(scratch)?;
        let image = template::image(size, Life::OneSandbox, scratch, templates);
        let image = image.map_err(at("an image"))?;
        let device = Arc::new(loop_device::attach(&image).map_err(at("a loop device"))?);
        let dir = Self::of_device(&device, open_disk(scratch)?, size, &EXT4_FLAGS)?;
        dir.set_up(owner)?;
        Ok(dir)
    }

    /// Mounts the file system of a device.
    fn of_device(
        device: &Arc<OwnedFd>,
        disk: OwnedFd,
        size: DiskUsage,
        flags: &[&str],
    ) -> io::Result<Self> {
        let source = format!("/proc/self/fd/{}", device.as_raw_fd());
        let files = mount("ext4", &[("source", &source)], flags).map_err(at("its mount"))?;
        // It has a few inodes more than it was made for.
        let entries = fstatvfs(&files)?.f_files.saturating_sub(OWN_INODES);
        let (root, device) = (Some(open_directory(&files, ".")?), Some(device.clone()));
        let size = DiskUsage { entries, ..size };
        Ok(Self { device, disk: Some(disk), size, root, ..Self::of(files) })
    }

    /// A mount of a kept image, for one sandbox. It is of this size, unless it was made with another one.
    pub(crate) fn of_kept(image: &Arc<KeptImage>, wanted: DiskUsage) -> io::Result<Self> {
        let disk = open_disk(image.directory())?;
        let dir = Self::of_device(image.device(), disk, wanted, &KEPT_FLAGS)?;
        let stat = fstatvfs(&dir.files)?;
        let blocks = stat.f_blocks - (stat.f_blocks / 50).min(WITHHELD);
        let bytes = blocks.saturating_mul(stat.f_frsize);
        let most = wanted.bytes.saturating_add(wanted.bytes / 16).saturating_add(SLACK);
        let bytes = if (wanted.bytes..most).contains(&bytes) { wanted.bytes } else { bytes };
        let size = DiskUsage { bytes, ..dir.size };
        Ok(Self { size, kept: Some(image.clone()), ..dir })
    }

    /// Makes a new file system an empty directory of `owner`.
    pub(crate) fn set_up(&self, owner: Option<(u32, u32)>) -> io::Result<()> {
        self.remove_lost_and_found()?;
        self.give(owner)
    }

    /// Removes what a file system has at its beginning, and after its repair, unless something was
    /// found.
    pub(crate) fn remove_lost_and_found(&self) -> io::Result<()> {
        match unlinkat(&self.files, "lost+found", AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Its owner may write to it.
    fn give(&self, owner: Option<(u32, u32)>) -> io::Result<()> {
        let root = open_directory(&self.files, ".")?;
        if let Some((uid, gid)) = owner {
            fchown(&root, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        Ok(fchmod(&root, Mode::from_raw_mode(0o755))?)
    }

    /// Gives its image its name, if it is to be [kept](crate::kept::KeptImages) and has none yet: when a
    /// container has it mounted.
    ///
    /// # Errors
    ///
    /// If something else has the name.
    pub fn keep_image(&self) -> io::Result<()> {
        self.kept.as_ref().map_or(Ok(()), |image| image.name())
    }

    fn of(files: OwnedFd) -> Self {
        Self {
            files: Arc::new(files),
            device: None,
            disk: None,
            size: DiskUsage::default(),
            root: None,
            is_incomplete: AtomicBool::new(false),
            kept: None,
        }
    }

    /// Waits until its image has what was written to it. Before files are taken out of it: the kernel
    /// fills the image later, and what does not fit on the disk then is lost.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::StorageFull`] if something was lost, now or before.
    pub fn settle(&self) -> io::Result<()> {
        // It hears of it once.
        if self.root.as_ref().is_some_and(|root| syncfs(root).is_err()) {
            self.is_incomplete.store(true, Ordering::Relaxed);
        }
        match self.is_incomplete.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "files are incomplete: the disk had no space for what was written to them",
            )),
        }
    }

    /// The same, if its image is kept.
    pub fn settle_kept(&self) -> Option<io::Result<()>> {
        self.kept.as_ref().map(|_| self.settle())
    }

    /// The directory: the root of a mount that is attached nowhere.
    pub const fn files(&self) -> &Arc<OwnedFd> {
        &self.files
    }

    /// The block device that the same file system can be mounted from; `None` if it is in memory.
    pub const fn device(&self) -> Option<&Arc<OwnedFd>> {
        self.device.as_ref()
    }

    /// A directory of the file system whose space it takes; `None` if it is in memory.
    pub fn disk(&self) -> Option<BorrowedFd<'_>> {
        self.disk.as_ref().map(AsFd::as_fd)
    }

    /// What fits in it, of bytes at least.
    pub const fn size(&self) -> DiskUsage {
        self.size
    }

    /// How it is bounded.
    pub const fn backend(&self) -> DiskBackend {
        match self.device {
            Some(_) => DiskBackend::Ext4,
            None => DiskBackend::Tmpfs,
        }
    }
}

/// Creates a mount that is attached nowhere.
fn mount(kind: &str, options: &[(&str, &str)], flags: &[&str]) -> io::Result<OwnedFd> {
    let file_system = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (option, value) in options {
        fsconfig_set_string(&file_system, *option, *value)?;
    }
    for flag in flags {
        fsconfig_set_flag(&file_system, *flag)?;
    }
    fsconfig_create(&file_system)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&file_system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A directory of the disk, by a descriptor that only names it.
fn open_disk(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests;
