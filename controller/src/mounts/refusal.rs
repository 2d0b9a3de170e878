//! Why something of the host is not mounted.

use std::io;
use std::path::PathBuf;

/// Where the device nodes are: often a plain tmpfs.
pub(super) const DEVICES: &str = "/dev";

/// Why something of the host is not mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountRefusal {
    /// Something is mounted below it. A sandbox would work in the directory underneath, where nobody
    /// looks, and by removing or replacing that directory it would detach the mount.
    #[error("{} is a mount point below it", .mount_point.display())]
    MountPoint {
        /// Where, on the host.
        mount_point: PathBuf,
    },
    /// It is an interface of the kernel.
    #[error("it is on a pseudo file system ({fs_type})")]
    PseudoFileSystem {
        /// Which, such as `proc`.
        fs_type: String,
    },
    /// It is among the host's device nodes.
    #[error("it is in {DEVICES}, among the host's devices")]
    Devices,
    /// It is in a folder of the controller's own.
    #[error("it is in the {name} {}", .folder.display())]
    OwnFolder {
        /// `state folder` or `data directory`.
        name: &'static str,
        /// Where that is.
        folder: PathBuf,
    },
    /// A folder of the controller's own is in it, and it could be changed there.
    #[error("the {name} {} is in it", .folder.display())]
    ParentOfOwnFolder {
        /// `state folder` or `data directory`.
        name: &'static str,
        /// Where that is.
        folder: PathBuf,
    },
    /// It is on no mount that this process sees.
    #[error("it is on a mount that this process's mount table does not list")]
    NotListed,
    /// Where it is cannot be found out.
    #[error("cannot look at its mount: {reason}")]
    Unknown {
        /// Why.
        reason: String,
    },
}

impl MountRefusal {
    pub(super) fn unknown(error: &io::Error) -> Self {
        Self::Unknown { reason: error.to_string() }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        let hint = match self {
            Self::MountPoint { mount_point } => {
                let point = mount_point.display();
                return format!("unmount {point}, or give a directory without a mount point below");
            }
            Self::PseudoFileSystem { .. } | Self::Devices => {
                "give a file or directory of a file system that stores files"
            }
            Self::OwnFolder { .. } | Self::ParentOfOwnFolder { .. } => {
                "give another directory: what is there decides what runs outside of sandboxes"
            }
            Self::NotListed => {
                "give a path in this process's mount namespace; the root of a chroot must be a mount \
                 point (`mount --bind`)"
            }
            Self::Unknown { .. } => "`sandboxctl` needs /proc mounted, and readable",
        };
        hint.to_owned()
    }
}
