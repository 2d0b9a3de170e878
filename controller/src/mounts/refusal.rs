//! Why a file or directory of the host may not be mounted.

use std::io;
use std::path::PathBuf;

/// The directory of the device nodes: often a plain tmpfs.
pub(super) const DEVICES: &str = "/dev";

/// Why a file or directory of the host may not be mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountRefusal {
    /// Something is mounted below it. A sandbox would work in the hidden directory underneath, and
    /// could detach the mount by removing or replacing that directory.
    #[error("{} is a mount point below it", .mount_point.display())]
    MountPoint {
        /// The mount point on the host.
        mount_point: PathBuf,
    },
    /// It is on a pseudo filesystem, an interface of the kernel.
    #[error("it is on a pseudo file system ({fs_type})")]
    PseudoFileSystem {
        /// The type of the filesystem, such as `proc`.
        fs_type: String,
    },
    /// It is one of the host's device nodes.
    #[error("it is in {DEVICES}, among the host's devices")]
    Devices,
    /// It is the root of the whole system, or contains it.
    #[error("programs could read all of this machine's files")]
    Root,
    /// It is in one of the controller's own directories.
    #[error("it is in the {name} {}", .folder.display())]
    ReservedDir {
        /// `state directory` or `data directory`.
        name: &'static str,
        /// The path of that directory.
        folder: PathBuf,
    },
    /// It is in the data directory of a service that runs, though the configuration does not name it.
    #[error("it is in the data directory of a service that runs, {}", .folder.display())]
    ServedDir {
        /// The path of that directory.
        folder: PathBuf,
    },
    /// It contains one of the controller's own directories, which could be changed there.
    #[error("the {name} {} is in it", .folder.display())]
    ParentOfReservedDir {
        /// `state directory` or `data directory`.
        name: &'static str,
        /// The path of that directory.
        folder: PathBuf,
    },
    /// It contains one of the controller's own directories, which does not exist and cannot be made:
    /// only one that exists can be hidden.
    #[error("the {name} {} in it would have to be hidden, and cannot be made: {reason}", .folder.display())]
    UnhiddenDir {
        /// `state directory` or `data directory`.
        name: &'static str,
        /// The path of that directory.
        folder: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// It contains a file that decides what runs outside of sandboxes.
    #[error("{} is in it", .file.display())]
    ParentOfReservedFile {
        /// That file.
        file: PathBuf,
    },
    /// It is on no mount that this process can see.
    #[error("it is on a mount that this process's mount table does not list")]
    NotListed,
    /// Its location cannot be determined.
    #[error("cannot inspect its mount: {reason}")]
    Unknown {
        /// The reason.
        reason: String,
    },
}

impl MountRefusal {
    pub(super) fn unknown(error: &io::Error) -> Self {
        Self::Unknown { reason: error.to_string() }
    }

    pub(super) fn unhidden(name: &'static str, folder: PathBuf, error: &io::Error) -> Self {
        Self::UnhiddenDir { name, folder, reason: error.to_string() }
    }

    /// How to fix it.
    pub fn hint(&self) -> String {
        let hint = match self {
            Self::MountPoint { mount_point } => {
                let point = mount_point.display();
                return format!("unmount {point}, or give a directory without a mount point below");
            }
            Self::PseudoFileSystem { .. } => {
                "give a file or directory of a file system that stores files; `--in -:NAME < FILE` \
                 gives a copy of what a file shows"
            }
            Self::Devices => "give a file or directory of a file system that stores files",
            Self::Root => "give a directory with the files of the programs alone",
            Self::ReservedDir { .. }
            | Self::ServedDir { .. }
            | Self::ParentOfReservedDir { .. }
            | Self::ParentOfReservedFile { .. } => {
                "give another directory: what is there decides what runs outside of sandboxes"
            }
            Self::UnhiddenDir { folder, .. } => {
                let folder = folder.display();
                return format!("make {folder}, or give a directory that does not contain it");
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
