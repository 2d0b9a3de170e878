//! The data directory: accessible only to root, on a mount without noexec.
//!
//! `containers/` has the [records](super::records), `roots/` the unpacked [images](sandbox_rootfs),
//! and `mnt/` is where helpers mount root filesystems, each in its own mount namespace: on the host
//! it is always empty. So is `empty/`, from which `doctor` makes a sandbox. None of sandboxctl's
//! executables are in it.

use std::path::Path;

use rustix::fs::StatVfsMountFlags;
use sandbox_dirfd::create_private_dir;
use sandbox_rootfs::RootCache;

use crate::config::EmbeddedConfig;
use crate::error::EmbeddedProblem;

/// Creates the directory if it is missing, checks whether it can be used, and opens the unpacked images in it.
pub(super) fn open(path: &Path) -> Result<RootCache, EmbeddedProblem> {
    let failed = |source| EmbeddedProblem::DataDir { path: path.to_owned(), source };
    create_private_dir(path).map_err(failed)?;
    let mount = rustix::fs::statvfs(path).map_err(|errno| failed(errno.into()))?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(EmbeddedProblem::NoExec { path: path.to_owned() });
    }
    let empty = EmbeddedConfig::empty_root(path);
    for folder in [path.join("containers"), path.join("mnt"), empty] {
        create_private_dir(&folder).map_err(failed)?;
    }
    let roots = path.join("roots");
    RootCache::open(roots.clone())
        .map_err(|source| EmbeddedProblem::DataDir { path: roots, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o755] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = open(dir.path()).unwrap_err();
            assert!(matches!(error, EmbeddedProblem::DataDir { .. }), "{error}");
        }
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(open(&file).is_err());
    }
}
