//! Overlays: a mount that shows a directory of the host, and whose changes go to another one.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{StatVfsMountFlags, fstatvfs};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// Whole files are copied, and directories of `lower` are never renamed, so that `upper` alone tells
/// what changed. The kernel marks it with attributes that only root can set (`trusted.overlay.…`): an
/// earlier run may have set any other on the files of `lower`.
const OPTIONS: [(&str, &str); 3] =
    [("index", "off"), ("metacopy", "off"), ("redirect_dir", "nofollow")];

/// The opened directories of an overlay.
#[derive(Debug, Clone)]
pub struct Layers {
    /// What it shows. It is never written to.
    pub lower: Arc<OwnedFd>,
    /// Where changes go.
    pub upper: Arc<OwnedFd>,
    /// An empty directory for the kernel, on the filesystem of `upper`.
    pub work: Arc<OwnedFd>,
}

impl Layers {
    fn all(&self) -> [(&'static str, BorrowedFd<'_>); 3] {
        [
            ("lowerdir", self.lower.as_fd()),
            ("upperdir", self.upper.as_fd()),
            ("workdir", self.work.as_fd()),
        ]
    }

    /// Whether the filesystem of `lower` executes programs.
    fn executes(&self) -> bool {
        let is_noexec = |flags: StatVfsMountFlags| flags.contains(StatVfsMountFlags::NOEXEC);
        fstatvfs(&self.lower).is_ok_and(|stat| !is_noexec(stat.f_flag))
    }

    /// Mounts it, detached from all directories. Requires root, Linux 5.2, and filesystems that can be
    /// layers.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub fn mount(&self) -> io::Result<OwnedFd> {
        let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (option, layer) in self.all() {
            // By a path, because kernels before Linux 6.13 accept no descriptors.
            let path = format!("/proc/self/fd/{}", layer.as_raw_fd());
            fsconfig_set_string(&overlay, option, path)?;
        }
        for (option, value) in OPTIONS {
            fsconfig_set_string(&overlay, option, value)?;
        }
        fsconfig_create(&overlay)?;
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        if !self.executes() {
            attributes |= MountAttrFlags::MOUNT_ATTR_NOEXEC;
        }
        Ok(fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
    }

    /// The mount options for a process that has this one in its `/proc`, and its mount namespace.
    pub(crate) fn mount_options(&self) -> String {
        let process = std::process::id();
        let mut options = vec!["nosuid".to_owned(), "nodev".to_owned()];
        if !self.executes() {
            options.push("noexec".to_owned());
        }
        options.extend(
            self.all().map(|(option, layer)| {
                format!("{option}=/proc/{process}/fd/{}", layer.as_raw_fd())
            }),
        );
        options.extend(OPTIONS.map(|(option, value)| format!("{option}={value}")));
        options.join(",")
    }
}
