//! The artifacts directory: checked before the run, built under a temporary name next to its final
//! place, and renamed when complete.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::{fs, iter};

use rustix::fs::{
    Access, AtFlags, Mode, OFlags, accessat, fchmod, fstat, mkdirat, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;
use sandbox_dirfd::{
    Identity, Links, create_locked_dir, lock_directory, open_path, remove_opened_tree,
};

use crate::Error;

/// How the names of unfinished directories begin.
const PREFIX: &str = ".sandboxctl-artifacts-";
/// A file in an unfinished directory: users who may rename the directories of others cannot create
/// it there.
pub(crate) const MARK: &str = ".sandboxctl-unfinished";

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Where artifacts are to be: a directory that is missing or empty.
#[derive(Debug, Clone)]
pub struct Destination {
    /// As the caller wrote it.
    given: PathBuf,
    /// Absolute, and without links as far as it exists.
    path: PathBuf,
    /// The nearest existing parent, held open: later changes of the path do not matter.
    above: Arc<OwnedFd>,
    /// The names of those between the two, which are missing.
    missing: Vec<OsString>,
}

impl Destination {
    /// Checks a directory, which is not created yet. It may neither be in one of `others`, such as
    /// the io dir, nor contain one; each has a name for messages.
    ///
    /// # Errors
    ///
    /// If it cannot be used.
    pub fn new(given: &Path, others: &[(&str, &Path)]) -> Result<Self, Error> {
        let refuse = |reason: String| Error::destination(given, reason, None);
        let system = |error: io::Error| refuse(error.to_string());
        if given.as_os_str().is_empty() {
            return Err(refuse("the path is empty".to_owned()));
        }
        // A trailing slash would follow a link.
        let written: PathBuf = std::path::absolute(given).map_err(system)?.components().collect();
        if fs::symlink_metadata(&written).is_ok_and(|found| found.is_symlink()) {
            let hint = "name the directory that it leads to";
            return Err(Error::destination(given, "it is a symbolic link", Some(hint)));
        }
        let path = resolve(&written).map_err(system)?;
        if path.file_name().is_none() {
            return Err(refuse("it is the root of the whole system".to_owned()));
        }
        for (what, other) in others {
            let other = std::path::absolute(other).and_then(|it| resolve(&it)).map_err(system)?;
            let relation = match (path.starts_with(&other), other.starts_with(&path)) {
                (true, true) => format!("it is {what}"),
                (true, false) => format!("it is in {what}, {}", other.display()),
                (false, true) => format!("{what}, {}, is in it", other.display()),
                (false, false) => continue,
            };
            return Err(outside(given, relation));
        }
        match fs::read_dir(&path) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(not_empty(given));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(system(error)),
        }
        let folder = path.parent().unwrap_or(Path::new("/"));
        let parent = folder.ancestors().find(|folder| folder.exists());
        let parent = parent.unwrap_or(Path::new("/"));
        let unusable = |errno| refuse(format!("cannot write to {}: {errno}", parent.display()));
        let above = open_path(parent, DIRECTORY | OFlags::RDONLY, Links::Refuse);
        let above = above.map_err(unusable)?;
        let access = Access::WRITE_OK | Access::EXEC_OK;
        accessat(&above, ".", access, AtFlags::EACCESS).map_err(unusable)?;
        let names = folder.strip_prefix(parent).unwrap_or(Path::new("")).iter();
        let missing = names.map(OsStr::to_owned).collect();
        Ok(Self { given: given.to_owned(), path, above: Arc::new(above), missing })
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if it is in the directory with this identity, compared by inodes instead of paths.
    fn check_outside(&self, parent: &OwnedFd, name: &OsStr, io_dir: Identity) -> Result<(), Error> {
        let refuse = |errno: Errno| Error::destination(&self.given, errno, None);
        let itself = sandbox_dirfd::open_child(parent, as_bytes(name), DIRECTORY).ok();
        let mut at = parent.try_clone().map_err(|error| Error::io("open", b".")(error))?;
        let mut last = itself.map(|fd| fstat(&fd)).transpose().map_err(refuse)?;
        loop {
            if last.as_ref().map(Identity::of) == Some(io_dir) {
                return Err(outside(&self.given, "it is in the io dir".to_owned()));
            }
            let here = fstat(&at).map_err(refuse)?;
            if last.is_some_and(|last| Identity::of(&last) == Identity::of(&here)) {
                return Ok(());
            }
            last = Some(here);
            let flags = DIRECTORY | OFlags::PATH;
            at = openat(&at, "..", flags, Mode::empty()).map_err(refuse)?;
        }
    }

    /// Creates the staging directory of this destination, and removes those that crashed commands
    /// left next to it.
    pub(crate) fn stage(&self, io_dir: Identity) -> Result<Staging, Error> {
        let refuse = |reason: String| Error::destination(&self.given, reason, None);
        let name = self.path.file_name().unwrap_or_default();
        let created = create_all(&self.above, &self.missing);
        let (parent, undo) = created.map_err(|errno| refuse(errno.to_string()))?;
        sweep(&parent);
        self.check_outside(&parent, name, io_dir)?;
        let made = create_locked_dir(&parent, PREFIX);
        let (temporary, root) = made.map_err(|errno| refuse(errno.to_string()))?;
        mark(&root).map_err(|errno| refuse(errno.to_string()))?;
        let (destination, is_published) = (self.clone(), false);
        Ok(Staging { destination, parent, temporary, root, is_published, undo })
    }
}

/// A directory that is not complete yet. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Staging {
    destination: Destination,
    parent: OwnedFd,
    temporary: String,
    /// Locked.
    root: OwnedFd,
    is_published: bool,
    undo: Undo,
}

impl Staging {
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// It is complete: moves it to its place. If there is a directory by now, it must be empty.
    pub fn publish(mut self) -> Result<(), Error> {
        let given = &self.destination.given;
        let name = self.destination.path.file_name().unwrap_or_default();
        let moved = unlinkat(&self.root, MARK, AtFlags::empty())
            .and_then(|()| fchmod(&self.root, Mode::from_raw_mode(0o755)))
            .and_then(|()| renameat(&self.parent, &self.temporary, &self.parent, name));
        match moved {
            Ok(()) => {
                self.is_published = true;
                self.undo.0.clear();
                Ok(())
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(not_empty(given)),
            Err(Errno::BUSY) => Err(Error::destination(
                given,
                "something is mounted there",
                Some("name a directory in it"),
            )),
            Err(errno) => Err(Error::destination(given, errno, None)),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.is_published
            && let Err(errno) =
                remove_opened_tree(self.parent.as_fd(), OsStr::new(&self.temporary), &self.root)
        {
            // The next command that writes there tries again.
            let path = self.destination.path.with_file_name(&self.temporary);
            tracing::warn!(path = %path.display(), %errno, "cannot remove unfinished artifacts");
        }
    }
}

/// Directories that were created, each by the one that it is in, the deepest last. Dropping it removes
/// those that are empty.
#[derive(Debug)]
struct Undo(Vec<(OwnedFd, OsString)>);

impl Drop for Undo {
    fn drop(&mut self) {
        while let Some((parent, created)) = self.0.pop() {
            if unlinkat(parent, created, AtFlags::REMOVEDIR).is_err() {
                return;
            }
        }
    }
}

/// Creates missing directories, each in the one before it. Returns the last one, and those that it
/// created.
fn create_all(above: &OwnedFd, missing: &[OsString]) -> rustix::io::Result<(OwnedFd, Undo)> {
    let flags = DIRECTORY | OFlags::RDONLY;
    let mut parent = openat(above, ".", flags, Mode::empty())?;
    let mut undo = Undo(Vec::new());
    for name in missing {
        let is_new = match mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno),
        };
        let next = openat(&parent, name, flags, Mode::empty())?;
        let parent = std::mem::replace(&mut parent, next);
        if is_new {
            undo.0.push((parent, name.clone()));
        }
    }
    Ok((parent, undo))
}

/// Marks a directory as one that is not complete yet.
fn mark(root: &OwnedFd) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(root, MARK, flags, Mode::RUSR | Mode::WUSR).map(drop)
}

/// Removes the unlocked unfinished directories of this user.
fn sweep(parent: &OwnedFd) {
    let user = rustix::process::geteuid().as_raw();
    let Ok(entries) = rustix::fs::Dir::read_from(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let Ok(lock) = lock_directory(parent, name) else { continue };
        // A writer of the parent may have given another directory of this user such a name.
        let has_mark = statat(&lock, MARK, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let is_own = fstat(&lock).is_ok_and(|stat| stat.st_uid == user);
        let name = std::os::unix::ffi::OsStrExt::from_bytes(name.to_bytes());
        if !is_own || !has_mark {
            // Killed before it had its mark, it is empty.
            _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
        } else if let Err(errno) = remove_opened_tree(parent.as_fd(), name, &lock) {
            tracing::debug!(?name, %errno, "cannot remove unfinished artifacts");
        }
    }
}

/// The path without links as far as it exists. What does not exist contains no `..`.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut rest = Vec::new();
    for folder in path.ancestors() {
        match fs::canonicalize(folder) {
            Ok(found) => return Ok(iter::once(&*found).chain(rest.into_iter().rev()).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        match folder.components().next_back() {
            Some(Component::Normal(name)) => rest.push(Path::new(name)),
            _ => return Err(io::Error::other("it contains '..' below a missing directory")),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn not_empty(path: &Path) -> Error {
    Error::destination(path, "it is not empty", Some("name another directory, or empty it"))
}

fn outside(path: &Path, reason: String) -> Error {
    Error::destination(path, reason, Some("name a directory that the sandbox does not see"))
}

fn as_bytes(name: &OsStr) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const NOWHERE: Identity = Identity { dev: 0, ino: 0 };

    fn names(dir: &Path) -> Vec<OsString> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    fn refusal(given: &Path, others: &[(&str, &Path)]) -> String {
        Destination::new(given, others).unwrap_err().to_string()
    }

    #[test]
    fn directory_that_is_not_empty_or_none_is_refused_before_anything_runs() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "x").unwrap();
        fs::create_dir(at("empty")).unwrap();
        symlink("empty", at("link")).unwrap();
        assert!(refusal(dir.path(), &[]).ends_with("it is not empty"));
        assert!(refusal(&at("file"), &[]).contains("Not a directory"));
        assert!(refusal(&at("link/"), &[]).ends_with("it is a symbolic link"));
        assert!(refusal(Path::new("/"), &[]).contains("root of the whole system"));
        assert!(refusal(Path::new(""), &[]).contains("the path is empty"));
        assert!(refusal(&at("missing/../../x"), &[]).contains("'..'"));
        assert_eq!(Destination::new(&at("empty"), &[]).unwrap().path(), at("empty"));
        assert_eq!(Destination::new(&at("link/a/b"), &[]).unwrap().path(), at("empty/a/b"));
        assert_eq!(names(&at("empty")), Vec::<OsString>::new());
    }

    #[test]
    fn directory_in_the_io_dir_or_around_it_is_refused_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("io")).unwrap();
        symlink("io", at("link")).unwrap();
        let others = |io: &'static str| at(io);
        let io = others("io");
        let others = [("the io dir", &*io)];
        assert!(refusal(&io, &others).ends_with("it is the io dir"));
        assert!(refusal(&at("link/new/dir"), &others).contains("it is in the io dir, /"));
        let (later, around) = (at("new/io"), at("new"));
        assert!(refusal(&around, &[("the io dir", &later)]).contains("is in it"));
        assert!(Destination::new(&at("io2"), &others).is_ok());
        // A path that only the kernel sees through, as of a bind mount.
        let identity = Identity::of(&rustix::fs::stat(&io).unwrap());
        for inside in ["io", "io/a/b"] {
            let destination = Destination::new(&at(inside), &[]).unwrap();
            let error = destination.stage(identity).unwrap_err().to_string();
            assert!(error.ends_with("it is in the io dir"), "{error}");
        }
        assert_eq!(names(&io), Vec::<OsString>::new());
    }

    #[test]
    fn unfinished_directory_is_removed_with_the_parents_that_were_made_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let destination = Destination::new(&dir.path().join("a/b/c"), &[]).unwrap();
        let staging = destination.stage(NOWHERE).unwrap();
        mkdirat(staging.root(), "d", Mode::RWXU).unwrap();
        assert_eq!(names(&dir.path().join("a/b")).len(), 1);
        drop(staging);
        assert_eq!(names(dir.path()), Vec::<OsString>::new());
        destination.stage(NOWHERE).unwrap().publish().unwrap();
        assert_eq!(names(&dir.path().join("a/b")), ["c"]);
    }

    #[test]
    fn directory_is_made_where_it_was_to_be_whatever_leads_elsewhere_by_then() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::create_dir_all(at("secret/b")).unwrap();
        let destinations =
            ["a/b/out", "a/b/c/out"].map(|to| Destination::new(&at(to), &[]).unwrap());
        fs::rename(at("a"), at("moved")).unwrap();
        symlink("secret", at("a")).unwrap();
        for destination in destinations {
            destination.stage(NOWHERE).unwrap().publish().unwrap();
        }
        assert!(at("moved/b/out").is_dir() && at("moved/b/c/out").is_dir());
        assert_eq!(names(&at("secret/b")), Vec::<OsString>::new());

        let destination = Destination::new(&at("moved/b/d/out"), &[]).unwrap();
        symlink(at("secret"), at("moved/b/d")).unwrap();
        destination.stage(NOWHERE).unwrap_err();
        assert_eq!(names(&at("secret")), ["b"]);
    }

    #[test]
    fn leftover_of_a_killed_command_is_removed_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let used = Destination::new(&at("one"), &[]).unwrap().stage(NOWHERE).unwrap();
        fs::create_dir_all(at(&format!("{PREFIX}dead/sub"))).unwrap();
        fs::write(at(&format!("{PREFIX}dead/{MARK}")), "").unwrap();
        fs::create_dir(at(&format!("{PREFIX}empty"))).unwrap();
        // Renamed by another process.
        fs::create_dir_all(at(&format!("{PREFIX}precious/sub"))).unwrap();
        fs::write(at(&format!("{PREFIX}file")), "x").unwrap();
        let other = Destination::new(&at("other"), &[]).unwrap().stage(NOWHERE).unwrap();
        assert!(at(&format!("{PREFIX}precious/sub")).exists());
        assert!(!at(&format!("{PREFIX}empty")).exists());
        assert!(!at(&format!("{PREFIX}dead")).exists() && at(&format!("{PREFIX}file")).exists());
        used.publish().unwrap();
        other.publish().unwrap();
        assert!(at("one").is_dir() && at("other").is_dir());
    }

    #[test]
    fn place_that_is_taken_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("place");
        let destination = Destination::new(&place, &[]).unwrap();
        let stage = || destination.stage(NOWHERE).unwrap();
        let staging = stage();
        fs::create_dir(&place).unwrap();
        fs::write(place.join("f"), "kept").unwrap();
        assert!(staging.publish().unwrap_err().to_string().contains("not empty"));
        fs::remove_dir_all(&place).unwrap();
        let staging = stage();
        symlink("/", &place).unwrap();
        staging.publish().unwrap_err();
        assert!(place.is_symlink());
        fs::remove_file(&place).unwrap();
        let staging = stage();
        fs::create_dir(&place).unwrap();
        staging.publish().unwrap();
        assert_eq!(names(dir.path()), ["place"]);
    }
}
