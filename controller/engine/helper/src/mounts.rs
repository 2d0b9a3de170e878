//! File systems and mounts, by descriptors: a mount is made, restricted, and only then attached.
//! So nothing is ever reachable without its restrictions.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

/// No set-id bit of its files has an effect.
pub const NOSUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
/// No device of it opens.
pub const NODEV: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
/// No file of it is executed.
pub const NOEXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
/// Nothing of it is written to.
pub const RDONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;

/// A mount of a new file system, attached nowhere yet. `source` is the name that the mount table shows.
/// Each option has a value, empty for a flag; no mount of it allows what is in `restrictions`.
///
/// # Errors
///
/// Those of the kernel.
pub fn make(
    kind: &str,
    source: &str,
    options: &[(&str, String)],
    restrictions: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    create(kind, source, options, restrictions).map(|(_, mount)| mount)
}

/// The same, after the file system itself, which can be configured again.
///
/// # Errors
///
/// Those of the kernel.
pub fn create(
    kind: &str,
    source: &str,
    options: &[(&str, String)],
    restrictions: MountAttrFlags,
) -> Result<(OwnedFd, OwnedFd), Errno> {
    let filesystem = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&filesystem, "source", source)?;
    for (name, value) in options {
        match value.as_str() {
            "" => fsconfig_set_flag(&filesystem, *name)?,
            value => fsconfig_set_string(&filesystem, *name, value)?,
        }
    }
    fsconfig_create(&filesystem)?;
    let mount = fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, restrictions)?;
    Ok((filesystem, mount))
}

/// How far [`restrict`] reaches.
#[derive(Debug, Clone, Copy)]
pub enum Reach {
    /// The mount.
    Itself,
    /// And all mounts below it, at once.
    All,
}

/// Adds restrictions to a mount, attached or not, and separates it from the mounts that it is a copy
/// of: what is mounted below one is not mounted below the other. No restriction is lifted.
///
/// # Errors
///
/// Those of the kernel: before Linux 5.12 it lacks the call.
pub fn restrict(mount: impl AsFd, restrictions: MountAttrFlags, reach: Reach) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: u64::from(restrictions.bits()),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let reach = match reach {
        Reach::Itself => 0,
        Reach::All => libc::AT_RECURSIVE,
    };
    #[expect(unsafe_code, reason = "rustix does not have this call")]
    // SAFETY: the path is empty and ends with a null, and the structure has the given size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | reach,
            &raw const attributes,
            size_of_val(&attributes),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
