//! Files that are created beside another one, and replace it or become it when they are complete.
//!
//! If the file system supports it, such a file has no name until then, so nothing is left of it
//! when the agent is killed. Otherwise it has an unpredictable name, and is removed by any exit of
//! the agent that the agent can handle.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Mutex;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat, unlinkat};
use rustix::io::{Errno, Result};

use sandbox_dirfd::{Directory, again, is_random_hex, random_hex, retry};

/// The names in use, to be removed when the process exits.
static NAMED: Mutex<Vec<(OwnedFd, String)>> = Mutex::new(Vec::new());

/// Removes every temporary file that has a name. Called when the process exits.
pub fn remove_all() {
    // The holder of the lock is about to end; it is better to leave a file than not to exit.
    if let Ok(mut named) = NAMED.try_lock() {
        for (directory, name) in named.drain(..) {
            _ = unlinkat(&directory, name, AtFlags::empty());
        }
    }
}

const PREFIX: &str = ".sandboxctl-";
const SUFFIX: &str = ".tmp";

/// Whether this is the name of such a file: of this agent, of another sandbox over the same
/// directory, or left by a killed agent. Lists omit it.
pub(super) fn is_temporary(name: &[u8]) -> bool {
    let digits = name
        .strip_prefix(PREFIX.as_bytes())
        .and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()))
        .unwrap_or_default();
    std::str::from_utf8(digits).is_ok_and(is_random_hex::<16>)
}

/// A file in a directory that nothing else can find.
#[derive(Debug)]
pub(super) struct Temporary<'a> {
    directory: Directory<'a>,
    /// The file.
    pub fd: OwnedFd,
    name: Option<Name>,
}

/// A name that is removed on drop.
#[derive(Debug)]
struct Name(String);

/// What to do if the new name exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    /// Replace it.
    Replace,
    /// Return `EEXIST`.
    Refuse,
}

const CREATE: OFlags = OFlags::RDWR
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl<'a> Temporary<'a> {
    /// Creates an empty file in `directory`.
    pub fn new(directory: Directory<'a>) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match retry(|| openat(&directory, ".", flags, Mode::from_raw_mode(0o666))) {
            Ok(fd) => Ok(Self { directory, fd, name: None }),
            // The errors of file systems and kernels that do not support such files; ext4 also
            // returns one for a deleted directory, for which a named file then returns the right
            // error.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
                Self::with_name(directory)
            }
            Err(errno) => Err(errno),
        }
    }

    /// The same with a name.
    pub fn with_name(directory: Directory<'a>) -> Result<Self> {
        let name = Name::register(&directory)?;
        let fd = retry(|| openat(&directory, &name.0, CREATE, Mode::from_raw_mode(0o666)))?;
        Ok(Self { directory, fd, name: Some(name) })
    }

    /// Gives the file its name in `directory`, atomically: before, no file or the old one has the
    /// name. On an error nothing has changed. `copy` fills the file that it is given from this one,
    /// if there is no other way.
    pub fn publish(
        &self,
        directory: &Directory<'_>,
        name: &[u8],
        existing: Existing,
        copy: impl FnOnce(&OwnedFd, &OwnedFd) -> Result<()>,
    ) -> Result<()> {
        if self.name.is_some() {
            return self.rename(directory, name, existing);
        }
        if existing == Existing::Refuse {
            match self.link(directory, name) {
                Err(errno) if is_unable(errno) => {}
                linked => return linked,
            }
        } else {
            let temporary = Name::register(&self.directory)?;
            match self.link(&self.directory, temporary.0.as_bytes()) {
                Ok(()) => {
                    retry(|| renameat(&self.directory, &temporary.0, directory, name))?;
                    temporary.forget();
                    return Ok(());
                }
                Err(errno) if is_unable(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
        // This kernel cannot link a file without a name.
        let named = Self::with_name(self.directory.try_clone()?)?;
        copy(&self.fd, &named.fd)?;
        named.rename(directory, name, existing)
    }

    fn link(&self, directory: &Directory<'_>, name: &[u8]) -> Result<()> {
        // Since Linux 6.10 the opener of the file may; before, it takes a capability.
        match retry(|| linkat(&self.fd, "", directory, name, AtFlags::EMPTY_PATH)) {
            Err(errno) if is_unable(errno) => {
                let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
                retry(|| linkat(CWD, &path, directory, name, AtFlags::SYMLINK_FOLLOW))
            }
            linked => linked,
        }
    }

    fn rename(&self, directory: &Directory<'_>, name: &[u8], existing: Existing) -> Result<()> {
        let Some(Name(temporary)) = &self.name else { return Err(Errno::NOENT) };
        match existing {
            Existing::Replace => retry(|| renameat(&self.directory, temporary, directory, name)),
            // By a link, if there are any: who watches the directory sees that it is new.
            Existing::Refuse => {
                let flags = AtFlags::empty();
                match retry(|| linkat(&self.directory, temporary, directory, name, flags)) {
                    Err(errno) if is_unable(errno) => {
                        let old = temporary.as_bytes();
                        rename_to_nothing(&self.directory, old, directory, name, || Err(errno))
                    }
                    linked => linked,
                }
            }
        }
    }
}

/// Renames if the new name does not exist. `otherwise` does it if the file system cannot.
pub(super) fn rename_to_nothing(
    old_directory: &Directory<'_>,
    old: &[u8],
    new_directory: &Directory<'_>,
    new: &[u8],
    otherwise: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let renamed = retry(|| {
        rustix::fs::renameat_with(old_directory, old, new_directory, new, RenameFlags::NOREPLACE)
    });
    match renamed {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => otherwise(),
        renamed => renamed,
    }
}

/// Whether a link failed because this system does not support it at all.
fn is_unable(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::PERM
            | Errno::ACCESS
            | Errno::INVAL
            | Errno::XDEV
            | Errno::NOSYS
            | Errno::OPNOTSUPP
    )
}

/// An unpredictable name that does not exist.
pub(super) fn random_name(suffix: &str) -> String {
    format!("{PREFIX}{}{suffix}", random_hex::<16>())
}

impl Name {
    fn register(directory: &Directory<'_>) -> Result<Self> {
        let name = random_name(SUFFIX);
        let directory = again(directory.as_fd())?;
        NAMED.lock().unwrap().push((directory, name.clone()));
        Ok(Self(name))
    }

    /// It has become the name of a file: there is nothing to remove.
    fn forget(&self) -> Option<(OwnedFd, String)> {
        let mut named = NAMED.lock().unwrap();
        let at = named.iter().position(|(_, name)| *name == self.0)?;
        Some(named.swap_remove(at))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        // If it was never created, this name does not exist.
        if let Some((directory, name)) = self.forget() {
            _ = unlinkat(&directory, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// A file with and without a name, in a directory that has `old`.
    fn each(test: impl Fn(&Path, &dyn Fn() -> Temporary<'static>)) {
        for named in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("old"), b"old").unwrap();
            let make = || {
                let made = if named {
                    Temporary::with_name(open(directory.path()))
                } else {
                    Temporary::new(open(directory.path()))
                };
                let made = made.unwrap();
                rustix::io::write(&made.fd, b"new").unwrap();
                made
            };
            test(directory.path(), &make);
        }
    }

    fn open(directory: &Path) -> Directory<'static> {
        Directory::Inside(fs::File::open(directory).unwrap().into())
    }

    fn never(_: &OwnedFd, _: &OwnedFd) -> Result<()> {
        panic!("there is another way")
    }

    fn count(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_file_without_a_name_is_invisible_and_one_with_a_name_goes_with_its_value() {
        each(|directory, make| {
            let made = make();
            assert_eq!(count(directory), 1 + usize::from(made.name.is_some()));
            drop(made);
            assert_eq!(count(directory), 1);
        });
    }

    #[test]
    fn names_of_such_files_are_known_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let made = Temporary::with_name(open(directory.path())).unwrap();
        let name = made.name.as_ref().unwrap().0.clone();
        assert!(is_temporary(name.as_bytes()), "{name}");
        for other in [
            "",
            ".sandboxctl-.tmp",
            &name[1..],
            &name[..name.len() - 1],
            &name.replace(".tmp", "0.tmp"),
            &name.to_uppercase(),
            &format!(".sandboxctl-{}.tmp", "g".repeat(32)),
        ] {
            assert!(!is_temporary(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_published_file_replaces_or_refuses_and_leaves_nothing_else() {
        each(|directory, make| {
            let to = open(directory);
            let refused = make().publish(&to, b"old", Existing::Refuse, never);
            assert_eq!(refused, Err(Errno::EXIST));
            assert_eq!(fs::read(directory.join("old")).unwrap(), b"old");
            make().publish(&to, b"old", Existing::Replace, never).unwrap();
            assert_eq!(fs::read(directory.join("old")).unwrap(), b"new");
            make().publish(&to, b"more", Existing::Refuse, never).unwrap();
            fs::create_dir(directory.join("below")).unwrap();
            let below = open(&directory.join("below"));
            make().publish(&below, b"deep", Existing::Refuse, never).unwrap();
            make().publish(&below, b"deep", Existing::Replace, never).unwrap();
            assert_eq!(fs::read(directory.join("below/deep")).unwrap(), b"new");
            assert_eq!((count(directory), count(&directory.join("below"))), (3, 1));
        });
    }

    #[test]
    fn a_file_whose_publishing_fails_leaves_nothing() {
        each(|directory, make| {
            fs::create_dir(directory.join("in the way")).unwrap();
            let made = make();
            let failed = made.publish(&open(directory), b"in the way", Existing::Replace, never);
            assert_eq!(failed, Err(Errno::ISDIR));
            drop(made);
            assert_eq!(count(directory), 2);
        });
    }
}
