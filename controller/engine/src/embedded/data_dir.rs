//! The data directory: accessible only to root, on a mount without noexec.
//!
//! `containers/` has the [records](super::records), `roots/` the unpacked [images](sandbox_rootfs),
//! and `mnt/` is where helpers mount root filesystems, each in its own mount namespace: on the host
//! it is always empty. So is `empty/`, from which `doctor` makes a sandbox. None of sandboxctl's
//! executables are in it.

use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use sandbox_dirfd::create_private_dir;
use sandbox_rootfs::RootCache;

use crate::config::EmbeddedConfig;
use crate::error::EmbeddedProblem;

/// A usable data directory.
#[derive(Debug, Clone)]
pub(super) struct DataDir {
    path: PathBuf,
}

impl DataDir {
    /// Creates it if it is missing, and checks whether it can be used.
    pub fn open(path: &Path) -> Result<Self, EmbeddedProblem> {
        let failed = |source| EmbeddedProblem::DataDir { path: path.to_owned(), source };
        let dir = Self { path: path.to_owned() };
        create_private_dir(path).map_err(failed)?;
        let mount = rustix::fs::statvfs(path).map_err(|errno| failed(errno.into()))?;
        if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err(EmbeddedProblem::NoExec { path: path.to_owned() });
        }
        let empty = EmbeddedConfig::empty_root(path);
        for folder in [path.join("containers"), path.join("mnt"), empty] {
            create_private_dir(&folder).map_err(failed)?;
        }
        Ok(dir)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The unpacked images.
    pub fn roots(&self) -> Result<RootCache, EmbeddedProblem> {
        let path = self.path.join("roots");
        let failed = |source| EmbeddedProblem::DataDir { path: path.clone(), source };
        RootCache::open(path.clone()).map_err(failed)
    }
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
            let error = DataDir::open(dir.path()).unwrap_err();
            assert!(matches!(error, EmbeddedProblem::DataDir { .. }), "{error}");
        }
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(DataDir::open(&file).is_err());
    }
}
