//! Files that have several names. A guest can give one file so many that to copy or read it once for
//! each would fill a disk, or take hours.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{AtFlags, Stat, linkat};
use rustix::io::{Errno, Result};

use crate::disk_usage::allocated;
use crate::resolve::{Resolver, Root, split};
use crate::stamp::FileStamp;

/// What was found out about files that have several names.
#[derive(Debug)]
pub struct KnownFiles<T>(HashMap<(u64, u64), (FileStamp, T)>);

impl<T> KnownFiles<T> {
    /// What is known about a file, if it has not changed since.
    #[must_use]
    pub fn get(&self, file: &Stat) -> Option<&T> {
        let (stamp, known) = self.0.get(&(file.st_dev, file.st_ino))?;
        (*stamp == FileStamp::of(file)).then_some(known)
    }

    /// Keeps something about a file, if it has other names.
    pub fn add(&mut self, file: &Stat, known: T) {
        if file.st_nlink > 1 {
            self.0.insert((file.st_dev, file.st_ino), (FileStamp::of(file), known));
        }
    }
}

impl<T> Default for KnownFiles<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

/// How many bytes may be copied that are copies of a file beyond its first: a file has several names,
/// and each becomes a file, or what is [known](KnownFiles) of it is out of date whenever it is touched.
#[derive(Debug)]
pub struct CopyAllowance {
    copied: HashSet<(u64, u64)>,
    left: u64,
}

impl CopyAllowance {
    /// The bytes of such copies in one result.
    pub const BYTES: u64 = 1 << 30;

    /// So many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { copied: HashSet::new(), left: bytes }
    }

    /// Takes a copy of a file. `false` if it is not the first, and larger than what is left.
    pub fn take(&mut self, file: &Stat) -> bool {
        if file.st_nlink < 2 || self.copied.insert((file.st_dev, file.st_ino)) {
            return true;
        }
        let left = self.left.checked_sub(allocated(file));
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }
}

impl Default for CopyAllowance {
    fn default() -> Self {
        Self::new(Self::BYTES)
    }
}

/// Links the file at `path` below `root`, which only this process changes, to another name.
///
/// # Errors
///
/// Of `linkat`: on some filesystems a file has only one name.
pub fn link_below(
    root: BorrowedFd<'_>,
    path: &[u8],
    (parent, name): (BorrowedFd<'_>, &[u8]),
) -> Result<()> {
    match linkat(root, path, parent, name, AtFlags::empty()) {
        // Longer than a path can be for the kernel.
        Err(Errno::NAMETOOLONG) => {
            let (folder, file) = split(path);
            let root = Root { resolver: Resolver::Walk, ..Root::new(root)? };
            linkat(root.directory(folder)?.as_fd(), file, parent, name, AtFlags::empty())
        }
        linked => linked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;
    use std::time::SystemTime;

    use rustix::fs::{Mode, OFlags, mkdirat, openat, stat};

    #[test]
    fn only_a_file_that_has_other_names_and_did_not_change_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other, single] = ["one", "other", "single"].map(|name| dir.path().join(name));
        fs::write(&one, "1").unwrap();
        fs::write(&single, "1").unwrap();
        fs::hard_link(&one, &other).unwrap();
        let mut known = KnownFiles::default();
        known.add(&stat(&one).unwrap(), 1);
        known.add(&stat(&single).unwrap(), 2);
        assert_eq!(known.get(&stat(&other).unwrap()), Some(&1));
        assert_eq!(known.get(&stat(&single).unwrap()), None);
        fs::write(&other, "22").unwrap();
        assert_eq!(known.get(&stat(&one).unwrap()), None);
    }

    #[test]
    fn copies_of_one_file_are_bounded_whatever_changed_of_it_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other, single] = ["one", "other", "single"].map(|name| dir.path().join(name));
        for file in [&one, &single] {
            fs::write(file, [1; 8192]).unwrap();
            // Before that it may have no blocks.
            File::open(file).unwrap().sync_all().unwrap();
        }
        fs::hard_link(&one, &other).unwrap();
        let mut copies = CopyAllowance::new(20_000);
        let mut take = |path: &Path| {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::now()).unwrap();
            copies.take(&stat(path).unwrap())
        };
        // The first, and 16 KiB.
        assert!([&one, &other, &one].into_iter().all(|path| take(path)));
        assert!(!take(&other));
        assert!((0..9).all(|_| take(&single)));
    }

    #[test]
    fn file_is_linked_whatever_the_length_of_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let root = File::open(dir.path()).unwrap();
        let name = [b'd'; 200];
        let (mut path, mut parent) = (Vec::new(), root.try_clone().unwrap().into());
        for _ in 0..30 {
            mkdirat(&parent, &name[..], Mode::RWXU).unwrap();
            parent = openat(&parent, &name[..], OFlags::DIRECTORY, Mode::empty()).unwrap();
            path.extend_from_slice(&name);
            path.push(b'/');
        }
        path.push(b'f');
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = openat(&parent, "f", flags, Mode::RUSR).unwrap();
        link_below(root.as_fd(), &path, (root.as_fd(), b"again")).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 2);
        // `TempDir` removes it by its path.
        crate::remove_tree(root.as_fd(), std::ffi::OsStr::from_bytes(&name)).unwrap();
    }
}
