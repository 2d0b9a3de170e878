//! Private io dirs, which only their sandbox sees and which are removed with it: on disk
//! ([`FreshDir`]), or in memory.
//!
//! One in memory is a tmpfs with the sandbox's write limit as its size: the kernel enforces the
//! sandbox's limits of its size and number of entries. It is monitored like any other io dir all
//! the same: a run's own limits may be lower, and changes are listed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use sandbox_api::Limits;
use sandbox_dirfd::Links;
use sandbox_engine::Source;
use sandbox_protocol::User;
use sandbox_staging::fresh::FreshDir;

use super::IoDir;
use crate::error::Error;

/// The largest default page size of a kernel.
const LARGEST_PAGE: u64 = 64 << 10;

impl IoDir {
    /// Creates one for `owner`. Requires root and Linux 5.2.
    pub fn in_memory(limits: &Limits, owner: User) -> Result<Self, Error> {
        let refuse = |error: io::Error| Error::PrivateIoDir { reason: error.to_string() };
        let mount = mount(limits, (owner.uid(), owner.gid())).map_err(refuse)?;
        let stat = rustix::fs::fstat(&mount).map_err(|errno| refuse(errno.into()))?;
        let files = Arc::new(mount);
        let source = Source::private(files.clone());
        Ok(Self { is_private: true, ..Self::opened(PathBuf::new(), source, files, &stat) })
    }

    /// Creates one on disk, in `scratch`, for `owner`.
    pub fn fresh(scratch: &Path, owner: Option<(u32, u32)>) -> Result<Self, Error> {
        let refuse = |source| Error::Scratch { path: scratch.to_owned(), source };
        let fresh = FreshDir::create(scratch, owner).map_err(refuse)?;
        let io_dir = Self::open_at(&fresh.path(), Links::Follow)
            .map_err(|why| refuse(io::Error::other(why)))?;
        Ok(Self { is_private: true, fresh: Mutex::new(Some(fresh)), ..io_dir })
    }
}

/// Creates a detached mount.
fn mount(limits: &Limits, (uid, gid): (u32, u32)) -> io::Result<OwnedFd> {
    let file_system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // The kernel rounds up to whole pages, and a size of 0 would mean no limit.
    let size = (limits.max_write.as_u64() / LARGEST_PAGE).max(1) * LARGEST_PAGE;
    let size = size.to_string();
    // The root directory counts as an entry.
    let entries = u64::from(limits.entries.get()).saturating_add(1).to_string();
    let (uid, gid) = (uid.to_string(), gid.to_string());
    for (option, value) in [
        ("size", &*size),
        ("nr_inodes", &*entries),
        ("uid", &*uid),
        ("gid", &*gid),
        ("mode", "0755"),
    ] {
        fsconfig_set_string(&file_system, option, value)?;
    }
    fsconfig_create(&file_system)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&file_system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    use rustix::io::Errno;

    use sandbox_api::ByteSize;

    #[test]
    fn a_private_io_dir_holds_as_much_as_may_be_written_and_no_more() {
        let limits = Limits {
            max_write: ByteSize::b(1 << 20),
            entries: NonZeroU32::new(3).unwrap(),
            ..Limits::default()
        };
        let io_dir = IoDir::in_memory(&limits, User::new(1000, 100).unwrap()).unwrap();
        assert_eq!((io_dir.host_path(), io_dir.owner()), (None, (1000, 100)));
        let stat = rustix::fs::fstat(io_dir.fd()).unwrap();
        assert_eq!((stat.st_uid, stat.st_gid, stat.st_mode & 0o7777), (1000, 100, 0o755));
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(io_dir.fd(), "f", flags, Mode::RUSR).unwrap();
        let block = vec![1; 1 << 20];
        assert_eq!(rustix::io::write(&file, &block), Ok(1 << 20));
        assert_eq!(rustix::io::write(&file, b"x"), Err(Errno::NOSPC));
        let mkdir = |name: &str| mkdirat(io_dir.fd(), name, Mode::RWXU);
        assert_eq!((mkdir("a"), mkdir("b"), mkdir("c")), (Ok(()), Ok(()), Err(Errno::NOSPC)));
    }
}
