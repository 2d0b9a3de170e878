//! Directories of one user alone.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Creates a directory that this user alone may enter, with its missing parents, or finds it so.
///
/// # Errors
///
/// Where it cannot be created, or what is there is no directory, another user's, or open to others.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // Created or found: either way it is judged as it is now, and a link is none.
    let metadata = fs::symlink_metadata(path)?;
    let why = if !metadata.is_dir() {
        "it is no directory"
    } else if metadata.uid() != rustix::process::geteuid().as_raw() {
        "it belongs to another user"
    } else if metadata.mode() & 0o077 != 0 {
        "other users may enter it (its mode must be 0700)"
    } else {
        return Ok(());
    };
    Err(io::Error::other(why))
}
