//! Directories that only one user can access.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FileType, Mode, fstat, mkdirat};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::open_directory;

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
    check(metadata.mode(), metadata.uid())
}

/// Opens a directory in another one, for listing and locking too. It is created if it is missing, and
/// checked as it is opened.
///
/// # Errors
///
/// As of [`create_private_dir`], whose parents must exist.
pub fn open_private_child(parent: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    match mkdirat(&parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let opened = open_directory(parent, name)?;
    let stat = fstat(&opened)?;
    check(stat.st_mode, stat.st_uid)?;
    Ok(opened)
}

fn check(mode: u32, owner: u32) -> io::Result<()> {
    let why = if FileType::from_raw_mode(mode) != FileType::Directory {
        "it is not a directory"
    } else if owner != rustix::process::geteuid().as_raw() {
        "it belongs to another user"
    } else if mode & 0o077 != 0 {
        "other users may enter it (its mode must be 0700)"
    } else {
        return Ok(());
    };
    Err(io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn private_directory_is_this_users_alone_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        let mode = || fs::metadata(&own).unwrap().mode() & 0o777;
        let set = |mode| fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
        let why = |path: &Path| create_private_dir(path).unwrap_err().to_string();
        for _ in 0..2 {
            create_private_dir(&own).unwrap();
            assert_eq!(mode(), 0o700);
        }
        // What others may have done in it before is not undone by closing it.
        for others in [0o777, 0o720, 0o702, 0o750, 0o705, 0o701] {
            set(others);
            assert!(why(&own).starts_with("other users may enter it"), "{others:o}");
            assert_eq!(mode(), others);
        }
        set(0o700);
        let link = folder.path().join("link");
        symlink(&own, &link).unwrap();
        assert_eq!(why(&link), "it is not a directory");
        // Only root gives a directory away; for everybody else there is one of root's.
        let foreign = match rustix::process::geteuid().is_root() {
            true => {
                chown(&own, Some(65534), None).unwrap();
                own
            }
            false => PathBuf::from("/"),
        };
        assert_eq!(why(&foreign), "it belongs to another user");
    }
}
