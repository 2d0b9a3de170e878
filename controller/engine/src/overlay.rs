//! Overlays: a mount that shows a directory of the host, and whose changes go to another one.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, StatVfsMountFlags, fstat, fstatvfs, unlinkat};
use sandbox_dirfd::{Identity, open_directory};
use sandbox_helper::mounts::{self, NODEV, NOEXEC, NOSUID};

use crate::lock;

/// Whole files are copied, and directories of `lower` are never renamed, so `upper` alone shows
/// what changed. The kernel marks it with attributes that only root can set (`trusted.overlay.…`):
/// an earlier run may have set any other on the files of `lower`. With `xino` the files of both
/// layers have the device number of the overlay, even if these are on two filesystems: the agent
/// enters no other one. It makes every new directory opaque, too.
const OPTIONS: [(&str, &str); 4] =
    [("index", "off"), ("metacopy", "off"), ("redirect_dir", "nofollow"), ("xino", "on")];
/// Without this its unmount waits for the disk. A commit syncs `upper` itself, and what is not
/// committed is discarded.
const WITHOUT_SYNC: &str = "volatile";
/// What such a mount leaves in `work`, so that no other one follows by accident: innermost first.
const MARKS: [(&str, AtFlags); 3] = [
    ("work/incompat/volatile/dirty", AtFlags::empty()),
    ("work/incompat/volatile", AtFlags::REMOVEDIR),
    ("work/incompat", AtFlags::REMOVEDIR),
];

/// The opened directories of an overlay that can be mounted.
#[derive(Debug, Clone)]
pub struct Layers {
    pub(crate) lower: Arc<OwnedFd>,
    pub(crate) upper: Arc<OwnedFd>,
    pub(crate) work: Arc<OwnedFd>,
    /// The trial mount, until an engine needs it or mounts the overlay itself.
    pub(crate) trial: Arc<Mutex<Option<OwnedFd>>>,
    /// Its root, from when this process has mounted it for a container until it is taken.
    pub(crate) root: Arc<Mutex<Option<OwnedFd>>>,
}

impl Layers {
    /// An overlay that shows `lower`, which is never written to. Changes go to `upper`; `work` is an
    /// empty directory for the kernel, on the filesystem of `upper`.
    ///
    /// # Errors
    ///
    /// Those of the kernel, if it cannot be mounted: kernels and filesystems differ. It requires root
    /// and Linux 5.10.
    pub fn new(lower: Arc<OwnedFd>, upper: Arc<OwnedFd>, work: Arc<OwnedFd>) -> io::Result<Self> {
        let layers = Self { lower, upper, work, trial: Arc::default(), root: Arc::default() };
        let trial = layers.make()?;
        *lock(&layers.trial) = Some(trial);
        Ok(layers)
    }

    /// Takes the root of the overlay, if that is this one, and this process has mounted it for a container.
    /// The overlay stays mounted for as long as it is open.
    pub fn take_root(&self, is: Identity) -> Option<OwnedFd> {
        let is_it = |root: &mut OwnedFd| fstat(root).is_ok_and(|stat| Identity::of(&stat) == is);
        lock(&self.root).take_if(is_it)
    }

    /// The mounted view.
    pub fn lower(&self) -> BorrowedFd<'_> {
        self.lower.as_fd()
    }

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

    /// Mounts it for a container, detached from all directories.
    pub(crate) fn mount(&self) -> io::Result<OwnedFd> {
        let trial = lock(&self.trial).take();
        let mount = trial.map_or_else(|| self.make(), Ok)?;
        *lock(&self.root) = open_directory(&mount, ".").ok();
        Ok(mount)
    }

    fn make(&self) -> io::Result<OwnedFd> {
        // By paths, because kernels before Linux 6.13 accept no descriptors.
        let path = |layer: BorrowedFd<'_>| format!("/proc/self/fd/{}", layer.as_raw_fd());
        let layers = self.all().map(|(option, layer)| (option, path(layer)));
        let others = OPTIONS.map(|(option, value)| (option, value.to_owned()));
        let options = [&layers[..], &others, &[(WITHOUT_SYNC, String::new())]].concat();
        let mut restrictions = NOSUID | NODEV;
        if !self.executes() {
            restrictions |= NOEXEC;
        }
        Ok(mounts::make("overlay", "none", &options, restrictions)?)
    }

    /// The mount options for a process that has this one in its `/proc`, and its mount namespace.
    pub(crate) fn mount_options(&self) -> String {
        if let Some(trial) = lock(&self.trial).take() {
            drop(trial);
            // Nothing was written. If this fails, so does the engine's mount.
            for (mark, flags) in MARKS {
                _ = unlinkat(&self.work, mark, flags);
            }
        }
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
        options.push(WITHOUT_SYNC.to_owned());
        options.join(",")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir};

    use super::*;

    #[test]
    fn root_of_an_overlay_that_is_mounted_for_a_container_can_be_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| {
            create_dir(dir.path().join(name)).unwrap();
            Arc::new(OwnedFd::from(File::open(dir.path().join(name)).unwrap()))
        });
        // Only root can mount one, and not on every file system.
        let Ok(layers) = Layers::new(lower.clone(), upper, work) else { return };
        let identity = |of: &OwnedFd| Identity::of(&fstat(of).unwrap());
        let trial = identity(lock(&layers.trial).as_ref().unwrap());
        assert!(layers.take_root(trial).is_none());
        let mount = layers.clone().mount().unwrap();
        assert_eq!(identity(&mount), trial);
        assert!(layers.take_root(identity(&lower)).is_none());
        assert_eq!(identity(&layers.take_root(trial).unwrap()), trial);
        // Nothing else keeps it mounted.
        assert!(layers.take_root(trial).is_none());
    }
}
