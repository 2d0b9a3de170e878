//! Directories that only one user can access.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Creates a directory that only this user may access, with its missing parents, or checks an
/// existing one.
///
/// # Errors
///
/// If it cannot be created, or if what exists is not a directory, belongs to another user, or is
/// accessible to others.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // Created or existing, it is checked in its current state.
    check_private_dir(path)
}

/// Checks that only this user may access a directory. A link is refused.
///
/// # Errors
///
/// If it does not exist, is not a directory, belongs to another user, or is accessible to others.
pub fn check_private_dir(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    let why = if !metadata.is_dir() {
        "it is not a directory"
    } else if metadata.uid() != rustix::process::geteuid().as_raw() {
        "it belongs to another user"
    } else if metadata.mode() & 0o077 != 0 {
        "other users may enter it (its mode must be 0700)"
    } else {
        return Ok(());
    };
    Err(io::Error::other(why))
}
