//! Why an image archive cannot be used.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use sandbox_api::DiskShortage;

use crate::digest::Digest;

/// Why an image archive cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootfsError {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a regular file.
    #[error("{} is not a regular file", path.display())]
    NoFile {
        /// Which.
        path: PathBuf,
    },
    /// It cannot be read, or what is compressed in it is broken.
    #[error("cannot read the image archive")]
    Read(#[source] io::Error),
    /// What was unpacked cannot be kept.
    #[error("cannot use the cache {}", path.display())]
    Cache {
        /// Which file or directory of it.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not an image archive.
    #[error("not an image archive: it has neither a manifest.json nor an index.json")]
    NoImage,
    /// It has several images.
    #[error("it has {count} images, and one is expected")]
    SeveralImages {
        /// How many.
        count: usize,
    },
    /// It has no image for this machine.
    #[error("its image is for {found}, and this machine is {ours}")]
    Platform {
        /// What it has.
        found: String,
        /// What is needed.
        ours: String,
    },
    /// It refers to a member that it does not have.
    #[error("it lacks {member}")]
    Missing {
        /// What.
        member: String,
    },
    /// One of its documents is invalid.
    #[error("{member} cannot be used: {reason}")]
    Document {
        /// Which.
        member: String,
        /// What is wrong.
        reason: String,
    },
    /// The content of a member does not have the expected digest.
    #[error("{member} has the digest {found} and should have {expected}")]
    Mismatch {
        /// What.
        member: String,
        /// The expected value.
        expected: Digest,
        /// The actual value.
        found: Digest,
    },
    /// The size of a member is not the expected one.
    #[error("{member} has {found} bytes and should have {expected}")]
    Size {
        /// What.
        member: String,
        /// The expected value.
        expected: u64,
        /// The actual value.
        found: u64,
    },
    /// A tar is broken.
    #[error("the tar is broken")]
    Tar(#[from] TarProblem),
    /// An entry of a layer is invalid.
    #[error("'{path}' cannot be unpacked")]
    Entry {
        /// Its path in the layer.
        path: String,
        /// What is wrong.
        #[source]
        problem: EntryProblem,
    },
    /// An error in a layer.
    #[error("layer {layer} of {layers}")]
    Layer {
        /// Which, from 1 on, the lowest first.
        layer: usize,
        /// How many there are.
        layers: usize,
        /// What.
        source: Box<RootfsError>,
    },
    /// A bound on unpacking is exceeded.
    #[error("it has more than {limit} {what}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// The most that is unpacked.
        limit: u64,
    },
    /// Unpacking would leave too little space on the disk of the cache.
    #[error("its disk has {shortage} left (limits.disk_reserve)")]
    DiskFull {
        /// What is short.
        shortage: DiskShortage,
    },
    /// The caller no longer waits.
    #[error("cancelled")]
    Cancelled,
}

/// How a tar is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TarProblem {
    /// It ends in the middle.
    #[error("it ends in the middle of an entry")]
    Truncated,
    /// A header is invalid.
    #[error("a header has a wrong checksum")]
    Checksum,
    /// A number of a header is invalid or out of range.
    #[error("a header has an invalid number")]
    Number,
    /// An owner id is out of range.
    #[error("an entry has an owner id out of range")]
    Owner,
    /// An entry has a type that images do not have.
    #[error("an entry has the unknown type {0:#04x}")]
    UnknownType(u8),
    /// A name, or extended headers, are too long.
    #[error("the extended headers of an entry are longer than 1 MiB")]
    ExtensionTooLong,
    /// Extended headers are invalid.
    #[error("the extended headers of an entry cannot be read")]
    Pax,
    /// The map of a sparse file is invalid.
    #[error("the map of a sparse file cannot be read")]
    Sparse,
}

/// Why an entry of a layer is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryProblem {
    /// It leads out of the image.
    #[error("'..' is not allowed in a path of a layer")]
    ParentFolder,
    /// A NUL.
    #[error("it contains a NUL byte")]
    Nul,
    /// Its path is too long.
    #[error("the path is too long or too deep")]
    TooLong,
    /// The image itself is a directory.
    #[error("only a directory can be the root")]
    Root,
    /// A whiteout without a name.
    #[error("a whiteout needs the name of an entry")]
    Whiteout,
    /// Its parent is not a directory.
    #[error("its parent is not a directory")]
    NoDirectory,
    /// A path below a symbolic link.
    #[error("its path contains a symbolic link, and links are not followed")]
    ThroughLink,
    /// A symbolic link to nothing.
    #[error("a link needs a target")]
    NoTarget,
    /// The target of a hard link does not exist.
    #[error("it is a hard link to '{target}', which is not a file of the image")]
    MissingTarget {
        /// What.
        target: String,
    },
    /// An error of the filesystem.
    #[error("it cannot be written")]
    Io(#[from] Errno),
}

impl RootfsError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Layer { source, .. } => return source.hint(),
            Self::NoFile { .. } => {
                "--rootfs takes a directory with a file system; an OCI layout that is a directory \
                 is packed by `tar -C DIRECTORY -cf FILE .`"
            }
            Self::NoImage => {
                "`docker save IMAGE -o FILE` writes one, and so does `skopeo copy … \
                 oci-archive:FILE`; a container's exported filesystem is not an image"
            }
            Self::SeveralImages { .. } => "save only one image",
            Self::Platform { .. } => "save the image of this machine's platform: --platform",
            Self::Missing { .. } | Self::Mismatch { .. } | Self::Size { .. } | Self::Tar(_) => {
                "the archive is damaged or incomplete: save it again"
            }
            Self::DiskFull { .. } => {
                "free some space on the disk of engine.data_dir, or lower limits.disk_reserve"
            }
            Self::Cache { .. } => "engine.data_dir sets the directory, which needs free space",
            _ => return None,
        })
    }
}

impl From<io::Error> for RootfsError {
    /// A stopped reader carries its own [`RootfsError`] inside an `io::Error`.
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Tar(TarProblem::Truncated)
            }
            Err(error) => Self::Read(error),
        }
    }
}
