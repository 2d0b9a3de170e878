//! Files that are whole, or not there.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Writes a file next to its final place, to which [`put`](NewFile::put) renames it. Dropping it
/// removes it.
pub struct NewFile(NamedTempFile);

impl NewFile {
    /// Writes it to the disk, with this mode.
    ///
    /// # Errors
    ///
    /// If it cannot be written: nothing of it is left.
    pub fn write(folder: &Path, content: &[u8], mode: u32) -> io::Result<Self> {
        let mut new = NamedTempFile::new_in(folder)?;
        new.write_all(content)?;
        new.as_file().set_permissions(Permissions::from_mode(mode))?;
        new.as_file().sync_all()?;
        Ok(Self(new))
    }

    /// Gives it its name, in the place of a file that had it.
    ///
    /// # Errors
    ///
    /// If that is no file: nothing of it is left.
    pub fn put(self, file: &Path) -> io::Result<()> {
        self.0.persist(file).map(drop).map_err(|error| error.error)
    }
}

/// The directories of a path that were not there.
pub struct MissingDirs(Vec<PathBuf>);

impl MissingDirs {
    /// Those of this one, itself included.
    pub fn of(dir: &Path) -> Self {
        let missing = dir.ancestors().take_while(|it| !it.as_os_str().is_empty() && !it.exists());
        Self(missing.map(Path::to_owned).collect())
    }

    /// Whether there is one.
    pub const fn is_some(&self) -> bool {
        !self.0.is_empty()
    }

    /// Removes those that were made since and are empty.
    pub fn remove(&self) {
        self.0.iter().for_each(|dir| _ = fs::remove_dir(dir));
    }
}
