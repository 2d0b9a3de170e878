//! Artifacts: files that a run left in its io dir, copied to a directory of the caller with a
//! manifest and checksums, and what is done with such a directory later.
//!
//! Nothing here trusts what it reads. The content of an io dir was made by a guest, and an
//! artifacts directory may have passed through other hands: both are read by descriptors, without
//! following a link, and within bounds.
//!
//! Long work asks its [`ContinueFn`] between two pieces, so that a caller can cancel it and wait until
//! it has removed what it wrote.

#![forbid(unsafe_code)]

mod archive;
mod collect;
mod copy;
mod cursor;
mod destination;
mod diff;
mod error;
mod kept;
mod lines;
mod manifest;
mod select;
mod sums;
mod tree;
mod verify;

pub use archive::ArchiveFormat;
pub use collect::{Collected, Request, Shown, Unmatched, collect};
pub use destination::Destination;
pub use diff::diff;
pub use error::Error;
pub use kept::KeptFiles;
pub use lines::Reference;
pub use select::Selection;
pub use tree::{FileDigest, InputDigest, digest_files, digest_input};
pub use verify::ArtifactsDir;

/// Whether to go on with long work. Called between pieces of it; `false` ends it with
/// [`Error::Cancelled`].
pub type ContinueFn<'a> = &'a (dyn Fn() -> bool + Sync);

/// The name of the manifest in an artifacts directory.
pub const MANIFEST: &str = "manifest.json";
/// The name of the checksums in an artifacts directory.
pub const CHECKSUMS: &str = "SHA256SUMS";

/// The maximum depth of an artifact's directories: as deep as an io dir is scanned.
const MAX_DEPTH: usize = 128;
/// How much is copied or read between two calls of [`ContinueFn`].
const PIECE: usize = 256 << 10;

/// Whether this path collides with the files of an artifacts directory itself.
pub fn is_reserved(path: &[u8]) -> bool {
    let first = path.split(|&byte| byte == b'/').next();
    [MANIFEST, CHECKSUMS, destination::MARK].iter().any(|name| first == Some(name.as_bytes()))
}
