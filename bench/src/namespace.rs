//! Mount namespaces: the machine as it is with more mounts.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use tokio::process::Command;

use crate::error::Error;

/// A copy of this machine's mounts, with more of them. It ends with this value, and all of them.
pub struct Namespace {
    namespace: Arc<OwnedFd>,
}

impl Namespace {
    /// One with `more` mounts, below `folder`. It takes root.
    pub fn with(more: usize, folder: &Path) -> Result<Self, Error> {
        let make = || -> io::Result<OwnedFd> {
            #[expect(
                unsafe_code,
                reason = "some of unshare's flags are unsafe, so it is as a whole"
            )]
            // SAFETY: this one takes no descriptors from other threads.
            unsafe {
                rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)?;
            }
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private)?;
            for mount in 0..more {
                let at = folder.join(mount.to_string());
                std::fs::create_dir(&at)?;
                rustix::mount::mount("tmpfs", &at, "tmpfs", MountFlags::empty(), c"size=4k")?;
            }
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            Ok(rustix::fs::open("/proc/thread-self/ns/mnt", flags, Mode::empty())?)
        };
        // A thread's own: all else of this process stays where it is.
        let made = std::thread::scope(|scope| scope.spawn(make).join());
        let made = made.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")));
        let namespace = made.map_err(Error::file("mount file systems below", folder))?;
        Ok(Self { namespace: Arc::new(namespace) })
    }

    /// The command in it.
    pub fn enter(&self, mut command: Command) -> Result<Command, Error> {
        // A process that enters a mount namespace is in its root.
        let folder = command.as_std().get_current_dir().unwrap_or(Path::new("/"));
        let path = CString::new(folder.as_os_str().as_bytes());
        let path = path.map_err(|error| Error::file("enter", folder)(error.into()))?;
        let namespace = self.namespace.clone();
        let enter = move || -> io::Result<()> {
            let kind = Some(LinkNameSpaceType::Mount);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)?;
            Ok(rustix::process::chdir(&path)?)
        };
        #[expect(unsafe_code, reason = "what runs between fork and exec is unsafe")]
        // SAFETY: two system calls, which take no lock and no memory.
        unsafe {
            command.pre_exec(enter);
        }
        Ok(command)
    }
}
