//! Why an image archive cannot be used.

use std::io;
use std::path::PathBuf;

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
        /// Which file or folder of it.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is none.
    #[error("not an image archive: it has neither a manifest.json nor an index.json")]
    NoImage,
    /// It has several.
    #[error("it has {count} images, and one is expected")]
    SeveralImages {
        /// How many.
        count: usize,
    },
    /// It has none for this machine.
    #[error("its image is for {found}, and this machine is {ours}")]
    Platform {
        /// What it has.
        found: String,
        /// What is needed.
        ours: String,
    },
    /// Something that it speaks of is not in it.
    #[error("it lacks {member}")]
    Missing {
        /// What.
        member: String,
    },
    /// One of its documents is not what it must be.
    #[error("{member} cannot be used: {reason}")]
    Document {
        /// Which.
        member: String,
        /// What is wrong.
        reason: String,
    },
    /// Its content is not what its name says.
    #[error("{member} has the digest {found} and should have {expected}")]
    Mismatch {
        /// What.
        member: String,
        /// What is said.
        expected: Digest,
        /// What is so.
        found: Digest,
    },
    /// It is longer or shorter than is said of it.
    #[error("{member} has {found} bytes and should have {expected}")]
    Size {
        /// What.
        member: String,
        /// What is said.
        expected: u64,
        /// What is so.
        found: u64,
    },
    /// A tar is broken.
    #[error("the tar is broken")]
    Tar(#[from] TarProblem),
    /// An entry of a layer is not what one may be.
    #[error("'{path}' cannot be unpacked")]
    Entry {
        /// Its path in the layer.
        path: String,
        /// What is wrong.
        #[source]
        problem: EntryProblem,
    },
    /// What went wrong in a layer.
    #[error("layer {layer} of {layers}")]
    Layer {
        /// Which, from 1 on, the lowest first.
        layer: usize,
        /// How many there are.
        layers: usize,
        /// What.
        source: Box<RootfsError>,
    },
    /// It is more than is unpacked.
    #[error("it has more than {limit} {what}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// The most that is unpacked.
        limit: u64,
    },
    /// Nobody waits for it any more.
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
    /// A header is none.
    #[error("a header has a wrong checksum")]
    Checksum,
    /// A number of a header is none, or beyond all bounds.
    #[error("a header has an invalid number")]
    Number,
    /// An owner that no file can have.
    #[error("an entry has an owner id out of range")]
    Owner,
    /// An entry of a type that is in no image.
    #[error("an entry has the unknown type {0:#04x}")]
    UnknownType(u8),
    /// A name, or extended headers, without end.
    #[error("the extended headers of an entry are longer than 1 MiB")]
    ExtensionTooLong,
    /// Extended headers that are none.
    #[error("the extended headers of an entry cannot be read")]
    Pax,
    /// A sparse file whose map is none.
    #[error("the map of a sparse file cannot be read")]
    Sparse,
}

/// What an entry of a layer may not be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryProblem {
    /// It leads out of the image, or would.
    #[error("'..' is not allowed in a path of a layer")]
    ParentFolder,
    /// A NUL.
    #[error("it contains a NUL byte")]
    Nul,
    /// Too long to be made.
    #[error("the path is too long or too deep")]
    TooLong,
    /// The image itself is a directory.
    #[error("only a directory can be the root")]
    Root,
    /// A whiteout of nothing.
    #[error("it hides nothing that can be there")]
    Whiteout,
    /// A path below something that is no directory.
    #[error("its parent is not a directory")]
    NoDirectory,
    /// A path below a symbolic link.
    #[error("it lies beyond a symbolic link, and those are not followed")]
    ThroughLink,
    /// A symbolic link to nothing.
    #[error("a link needs a target")]
    NoTarget,
    /// A hard link to something that is not there.
    #[error("it is a hard link to '{target}', which is not a file of the image")]
    MissingTarget {
        /// What.
        target: String,
    },
    /// The file system's word.
    #[error("it cannot be written")]
    Io(#[source] io::Error),
}

impl RootfsError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Layer { source, .. } => return source.hint(),
            Self::NoFile { .. } => {
                "--rootfs takes a directory with a file system; an OCI layout that is a directory \
                 is packed by `tar -C DIRECTORY -cf FILE .`"
            }
            Self::NoImage => {
                "`docker save IMAGE -o FILE` writes one, and so does `skopeo copy … \
                 oci-archive:FILE`; the file system of a container alone is none"
            }
            Self::SeveralImages { .. } => "save the one that is wanted by itself",
            Self::Platform { .. } => "save the image of this machine's platform: --platform",
            Self::Missing { .. } | Self::Mismatch { .. } | Self::Size { .. } | Self::Tar(_) => {
                "the archive is damaged, or it was not written to its end: save it again"
            }
            Self::Cache { .. } => "engine.data_dir names the folder, which needs room",
            _ => return None,
        })
    }
}

impl From<io::Error> for RootfsError {
    /// A reader that is stopped by us says why in its own words.
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
