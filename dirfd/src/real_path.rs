//! The path of a file without links, also of one that does not exist yet.

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Resolves all links of a path. The part that does not exist is used as written.
///
/// # Errors
///
/// If a link leads nowhere, or if `..` comes after a directory that does not exist.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    // Components are not normalised: only the OS can resolve `..` after a link.
    let mut missing: Vec<&OsStr> = Vec::new();
    let mut existing = path;
    loop {
        match existing.symlink_metadata() {
            // A dangling link exists, and cannot be resolved.
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        match existing.components().next_back() {
            Some(Component::Normal(name)) => missing.push(name),
            Some(Component::ParentDir) => {
                return Err(io::Error::other("'..' after a directory that is not there"));
            }
            _ => return Err(io::Error::other("it leads nowhere")),
        }
        existing = existing.parent().unwrap_or(Path::new("/"));
    }
    let mut resolved = existing.canonicalize()?;
    resolved.extend(missing.iter().rev());
    Ok(resolved)
}
