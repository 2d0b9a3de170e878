//! The io dir and the inputs on the host: opened once, held, and never found by path again.

mod memory;

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use sandbox_api::{Input, InputSource};
use sandbox_dirfd::Identity;
use sandbox_engine::{Source, UserMapping};
use sandbox_protocol::User;
use sandbox_protocol::path::MAX_COMPONENT_BYTES;

use crate::error::Error;
use crate::made::{self, Made, hold};

/// The user of a sandbox without an io dir: a number that nobody has. It is below 65534, so that
/// engines whose users are mapped have it, and in no range that systemd or a distribution gives
/// out.
const NO_IO_USER: User = match User::new(60_700, 60_700) {
    Ok(user) => user,
    Err(_) => panic!("it is not -1"),
};
/// "nobody": on some hosts it has the disk's reserved blocks, and it owns what has no owner.
const NOBODY: u32 = 65_534;
/// Users that a remapping engine maps, one by one.
const REMAPPED_USERS: u32 = 65_536;

/// An open io dir.
#[derive(Debug)]
pub(crate) struct IoDir {
    /// Absolute, without links.
    path: PathBuf,
    source: Source,
    identity: Identity,
    owner: (u32, u32),
    /// Says to others that it is in use.
    hold: Mutex<Option<OwnedFd>>,
    /// What was made for it.
    made: Option<Made>,
}

/// How often an io dir is looked for that others remove at the same time.
const TRIES: usize = 100;

impl IoDir {
    /// Opens the io dir, makes it where it is missing, and records in `records` what was made.
    pub fn make(given: &Path, records: &Path) -> Result<Self, Error> {
        let refuse = |reason: String| Error::IoDir { path: given.to_owned(), reason };
        let path = absolute(given).map_err(refuse)?;
        let mut tries = 0;
        loop {
            tries += 1;
            match Self::make_at(&path, records) {
                Ok(io_dir) => return Ok(io_dir),
                Err(reason) if tries == TRIES || is_something_else(&path) => {
                    return Err(refuse(reason));
                }
                // Perhaps another run had made it, and removes it as we come.
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    fn make_at(path: &Path, records: &Path) -> Result<Self, String> {
        let made = Made::make(path, records).map_err(|error| error.to_string())?;
        let held = Self::open_at(path).and_then(|io_dir| match hold(io_dir.fd()) {
            Ok(hold) => Ok(Self { hold: Mutex::new(hold), ..io_dir }),
            Err(errno) => Err(io::Error::from(errno).to_string()),
        });
        match held {
            Ok(io_dir) => Ok(Self { made: Some(made), ..io_dir }),
            Err(reason) => {
                made.remove_if_empty();
                Err(reason)
            }
        }
    }

    /// Opens an io dir that is there.
    ///
    /// A link as the last component is refused: the default io dir lies in the working directory,
    /// which may be somebody else's repository, with a link to anywhere in it.
    pub fn open(given: &Path) -> Result<Self, Error> {
        let refuse = |reason: String| Error::IoDir { path: given.to_owned(), reason };
        absolute(given).and_then(|path| Self::open_at(&path)).map_err(refuse)
    }

    fn open_at(path: &Path) -> Result<Self, String> {
        let io = |error: io::Error| error.to_string();
        let metadata = fs::symlink_metadata(path).map_err(io)?;
        if metadata.is_symlink() {
            let target = fs::canonicalize(path).unwrap_or_default();
            return Err(format!("it is a symbolic link; name its target, {}", target.display()));
        }
        if !metadata.is_dir() {
            return Err("it is not a directory".to_owned());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| io(errno.into()))?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| io(errno.into()))?;
        let path = path_of(&fd).map_err(io)?;
        if path == Path::new("/") {
            return Err("it is the root of the whole system".to_owned());
        }
        let text = path.to_str().ok_or_else(|| "its path is not UTF-8".to_owned())?.to_owned();
        let source = Source { path: text, file: Arc::new(fd) };
        let (identity, owner) = (Identity::of(&stat), (stat.st_uid, stat.st_gid));
        Ok(Self { path, source, identity, owner, hold: Mutex::default(), made: None })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.source.file.as_fd()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is on the host; `None` of a private one, which is nowhere.
    pub fn host_path(&self) -> Option<&Path> {
        Some(&*self.path).filter(|_| !self.source.is_private())
    }

    /// What an engine mounts.
    pub fn source(&self) -> &Source {
        &self.source
    }

    pub const fn identity(&self) -> Identity {
        self.identity
    }

    pub const fn owner(&self) -> (u32, u32) {
        self.owner
    }

    /// Writes a file that only the io dir's owner can read, and whose content nobody can guess.
    pub fn write_nonce(&self) -> Result<Nonce<'_>, Errno> {
        let name = format!(".sandboxctl-{}", sandbox_dirfd::random_hex::<8>());
        let content = sandbox_dirfd::random_hex::<16>();
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.fd(), &name, flags, Mode::RUSR | Mode::WUSR)?;
        let nonce = Nonce { io_dir: self, name, content };
        let (uid, gid) = self.owner;
        let owner = (Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)));
        if rustix::fs::fchown(&file, owner.0, owner.1).is_err() {
            // Not root, and not the owner: the sandbox can only read it as one of the others.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        }
        let mut rest = nonce.content.as_bytes();
        while !rest.is_empty() {
            let written = rustix::io::write(&file, rest)?;
            rest = &rest[written..];
        }
        Ok(nonce)
    }

    /// Ends the use of the io dir. What was made for it and is empty goes.
    pub fn release(&self) {
        if let Some(held) = self.hold.lock().unwrap_or_else(PoisonError::into_inner).take() {
            made::let_go(&held);
        }
        if let Some(made) = &self.made {
            made.remove_if_empty();
        }
    }
}

fn is_something_else(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir())
}

/// The path without what would lead elsewhere, before anything is made there.
fn absolute(given: &Path) -> Result<PathBuf, String> {
    if given.as_os_str().is_empty() {
        return Err("the path is empty".to_owned());
    }
    if given.to_str().is_none() {
        return Err("its path is not UTF-8".to_owned());
    }
    // Collected from its components: a slash at the end would follow a link.
    let path = std::path::absolute(given).map_err(|error| error.to_string())?;
    Ok(path.components().collect())
}

/// A file whose content only somebody who sees the io dir can tell. Removed when dropped.
pub(crate) struct Nonce<'a> {
    io_dir: &'a IoDir,
    pub name: String,
    pub content: String,
}

impl Drop for Nonce<'_> {
    fn drop(&mut self) {
        // The agent removes it too.
        _ = rustix::fs::unlinkat(self.io_dir.fd(), &self.name, AtFlags::empty());
    }
}

fn path_of(fd: &OwnedFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// An input that is ready to be mounted.
#[derive(Debug)]
pub(crate) struct OpenInput {
    /// What an engine mounts. Held, so that its identity is not given to another file.
    pub source: Source,
    pub identity: Identity,
    /// `None` where it is the caller's own file.
    pub spool: Option<Spool>,
}

/// A file with an input's bytes. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Spool(PathBuf);

impl Drop for Spool {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

/// Opens the inputs. Bytes are spooled to files in `spool_dir`.
pub(crate) fn open_inputs(inputs: Vec<Input>, spool_dir: &Path) -> Result<Vec<OpenInput>, Error> {
    let mut names = HashSet::new();
    inputs
        .into_iter()
        .map(|Input { name, source }| {
            let refuse = |reason: String| Error::Input { name: name.clone(), reason };
            check_name(&name).map_err(|reason| refuse(reason.to_owned()))?;
            if !names.insert(name.clone()) {
                return Err(refuse("there are two of this name".to_owned()));
            }
            open_input(source, spool_dir).map_err(|error| refuse(error.to_string()))
        })
        .collect()
}

fn check_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("the name is empty"),
        "." | ".." => Err("the name is no file name"),
        _ if name.contains('/') => Err("the name has a '/'"),
        _ if name.contains('\0') => Err("the name has a NUL byte"),
        _ if name.len() > MAX_COMPONENT_BYTES => Err("the name is longer than 255 bytes"),
        _ => Ok(()),
    }
}

fn open_input(source: InputSource, spool_dir: &Path) -> io::Result<OpenInput> {
    let (path, spool) = match source {
        InputSource::Path(path) => (fs::canonicalize(path)?, None),
        InputSource::Bytes(content) => {
            let spool = spool(spool_dir, &content)?;
            (spool.0.clone(), Some(spool))
        }
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(&path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => {}
        other => return Err(io::Error::other(format!("it is a {}", kind_name(other)))),
    }
    // Whether it can be read is known only by opening it.
    let readable = format!("/proc/self/fd/{}", fd.as_raw_fd());
    fs::File::open(readable)?;
    let source = path.to_str().ok_or_else(|| io::Error::other("its path is not UTF-8"))?;
    Ok(OpenInput {
        source: Source { path: source.to_owned(), file: Arc::new(fd) },
        identity: Identity::of(&stat),
        spool,
    })
}

const fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Symlink => "symbolic link",
        FileType::RegularFile | FileType::Directory | FileType::Unknown => "file of another kind",
    }
}

fn spool(folder: &Path, content: &[u8]) -> io::Result<Spool> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    fs::create_dir_all(folder)?;
    let path = folder.join(sandbox_dirfd::random_hex::<8>());
    // Readable by the sandbox's user; the folders above keep everyone else out.
    let mut file = fs::File::options().write(true).create_new(true).mode(0o444).open(&path)?;
    let spool = Spool(path);
    file.write_all(content)?;
    Ok(spool)
}

/// The uid and gid of the container.
pub(crate) fn container_user(
    mapping: UserMapping,
    io_dir_owner: Option<(u32, u32)>,
    asked: Option<User>,
) -> Result<User, Error> {
    let refuse =
        |(uid, gid), reason: &str| Err(Error::User { uid, gid, reason: reason.to_owned() });
    let (uid, gid) = match (asked, io_dir_owner, mapping) {
        (Some(user), _, _) => (user.uid(), user.gid()),
        (None, None, _) => (NO_IO_USER.uid(), NO_IO_USER.gid()),
        (None, Some(owner), UserMapping::Identity) => owner,
        (None, Some(owner), UserMapping::Rootless { owner: engine }) => {
            if owner.0 != engine {
                let reason = format!(
                    "the engine is rootless, and its user ({engine}) does not own the io dir"
                );
                return refuse(owner, &reason);
            }
            (0, 0)
        }
        (None, Some(owner), UserMapping::Remapped { uid, gid }) => {
            let map =
                |id: u32, base: u32| id.checked_sub(base).filter(|&mapped| mapped < REMAPPED_USERS);
            match (map(owner.0, uid), map(owner.1, gid)) {
                (Some(uid), Some(gid)) => (uid, gid),
                _ => {
                    let reason = format!(
                        "the engine maps users from {uid}:{gid} on, and the io dir's owner is \
                         none of them"
                    );
                    return refuse(owner, &reason);
                }
            }
        }
    };
    if uid == NOBODY || gid == NOBODY {
        return refuse((uid, gid), "65534 is \"nobody\", who owns what has no owner");
    }
    User::new(uid, gid).or_else(|error| refuse((uid, gid), &error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn reason(result: Result<IoDir, Error>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_missing_io_dir_is_made_and_removed_again_if_it_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let make = || IoDir::make(&path, &dir.path().join("records")).unwrap();
        let io_dir = make();
        assert!(path.is_dir());
        fs::write(path.join("f"), "").unwrap();
        io_dir.release();
        assert!(path.is_dir());
        fs::remove_dir_all(dir.path().join("a")).unwrap();
        make().release();
        assert!(!dir.path().join("a").exists());
        assert_eq!(fs::read_dir(dir.path().join("records")).unwrap().count(), 0);
    }

    #[test]
    fn a_process_that_is_just_being_started_keeps_no_io_dir_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let io_dir = IoDir::make(&dir.path().join("a"), &dir.path().join("records")).unwrap();
        // What a child has between its fork and its exec.
        let child = io_dir.hold.lock().unwrap().as_ref().unwrap().try_clone().unwrap();
        io_dir.release();
        assert!(!dir.path().join("a").exists());
        drop(child);
    }

    #[test]
    fn what_was_made_is_removed_and_nothing_that_has_come_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("outside/b")).unwrap();

        // A link above leads to an empty directory of the same name.
        let io_dir = IoDir::make(&at("a/b"), &at("records")).unwrap();
        fs::rename(at("a"), at("moved")).unwrap();
        symlink(at("outside"), at("a")).unwrap();
        io_dir.release();
        assert!(at("outside/b").is_dir() && at("a").is_symlink());
        assert!(!at("moved/b").exists() && at("moved").is_dir());

        // Another empty directory stands there, or a link to one.
        fs::remove_file(at("a")).unwrap();
        for replace in [
            (|at| fs::create_dir(at).unwrap()) as fn(&Path),
            |at| symlink("outside", at).unwrap(),
            |at| fs::write(at, "").unwrap(),
        ] {
            let io_dir = IoDir::make(&at("made"), &at("records")).unwrap();
            fs::rename(at("made"), at("elsewhere")).unwrap();
            replace(&at("made"));
            io_dir.release();
            assert!(at("made").symlink_metadata().is_ok() && at("elsewhere").is_dir());
            fs::rename(at("made"), at("gone")).unwrap();
            _ = fs::remove_file(at("gone"));
            _ = fs::remove_dir(at("gone"));
            fs::remove_dir(at("elsewhere")).unwrap();
        }
        assert!(at("outside/b").is_dir());
    }

    #[test]
    fn a_nonce_that_was_swapped_is_removed_by_its_name_alone() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let io_dir = IoDir::open(dir.path()).unwrap();
        let nonce = io_dir.write_nonce().unwrap();
        let path = dir.path().join(&nonce.name);
        fs::remove_file(&path).unwrap();
        symlink(outside.path().join("secret"), &path).unwrap();
        drop(nonce);
        assert!(!path.is_symlink());
        assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "secret");

        // A directory is not what was made there.
        let nonce = io_dir.write_nonce().unwrap();
        let path = dir.path().join(&nonce.name);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        drop(nonce);
        assert!(path.is_dir());
    }

    #[test]
    fn an_io_dir_that_was_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        IoDir::make(dir.path(), &dir.path().join("records")).unwrap().release();
        assert!(dir.path().is_dir() && !dir.path().join("records").exists());
    }

    #[test]
    fn runs_that_share_an_io_dir_never_lose_it_under_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let (path, records) = (dir.path().join("a/b"), dir.path().join("records"));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let io_dir = IoDir::make(&path, &records).unwrap();
                        let stat = rustix::fs::stat(&path).unwrap();
                        assert_eq!(Identity::of(&stat), io_dir.identity());
                        io_dir.release();
                    }
                });
            }
        });
        // What one left because another used it then, the next sweep removes.
        made::reap(&records);
        assert!(!path.exists() && !records.exists());
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("f"), "").unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        symlink("d", dir.path().join("link")).unwrap();
        symlink("nowhere", dir.path().join("dangling")).unwrap();
        let open = |path: &Path| IoDir::make(path, &dir.path().join("records"));
        assert!(reason(open(&dir.path().join("f"))).contains("not a directory"));
        for link in ["link", "link/", "link/.", "dangling"] {
            let reason = reason(open(&dir.path().join(link)));
            assert!(reason.contains("symbolic link"), "{link}: {reason}");
        }
        assert!(reason(open(Path::new("/"))).contains("root"));
        assert!(reason(open(Path::new(""))).contains("empty"));
        assert!(open(&dir.path().join("f/x")).is_err());
    }

    #[test]
    fn a_nonce_is_read_through_the_io_dir_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let io_dir = IoDir::open(dir.path()).unwrap();
        let nonce = io_dir.write_nonce().unwrap();
        let path = dir.path().join(&nonce.name);
        assert_eq!(fs::read_to_string(&path).unwrap(), nonce.content);
        drop(nonce);
        assert!(!path.exists());
    }

    #[test]
    fn inputs_are_regular_files_or_directories_with_one_plain_name_each() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "x").unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
        let open = |inputs: &[(&Path, &str)]| {
            let inputs = inputs.iter().map(|&(path, name)| Input::path(path, name)).collect();
            open_inputs(inputs, &dir.path().join("spool")).map_err(|error| error.to_string())
        };
        assert_eq!(open(&[(&file, "a"), (dir.path(), "b")]).unwrap().len(), 2);
        for (inputs, words) in [
            (vec![(file.as_path(), "a"), (file.as_path(), "a")], "two of this name"),
            (vec![(fifo.as_path(), "a")], "FIFO"),
            (vec![(Path::new("/dev/null"), "a")], "device"),
            (vec![(Path::new("/nowhere"), "a")], "No such file"),
            (vec![(file.as_path(), "..")], "no file name"),
            (vec![(file.as_path(), "a/b")], "has a '/'"),
            (vec![(file.as_path(), "")], "empty"),
        ] {
            let error = open(&inputs).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn bytes_are_spooled_for_as_long_as_the_input_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let inputs = vec![Input::bytes("stdin", b"hello".to_vec())];
        let inputs = open_inputs(inputs, &dir.path().join("spool")).unwrap();
        let source = PathBuf::from(&inputs[0].source.path);
        assert_eq!(fs::read(&source).unwrap(), b"hello");
        drop(inputs);
        assert!(!source.exists());
    }

    #[test]
    fn the_container_runs_as_the_user_who_maps_to_the_io_dirs_owner() {
        let me = Some((1000, 100));
        let rootless = UserMapping::Rootless { owner: 1000 };
        let remapped = UserMapping::Remapped { uid: 100_000, gid: 200_000 };
        for (mapping, owner, asked, expected) in [
            (UserMapping::Identity, me, None, Some((1000, 100))),
            (UserMapping::Identity, Some((0, 0)), None, Some((0, 0))),
            (UserMapping::Identity, None, None, Some((60_700, 60_700))),
            (UserMapping::Identity, me, Some((7, 8)), Some((7, 8))),
            (UserMapping::Identity, Some((NOBODY, 0)), None, None),
            (UserMapping::Identity, Some((0, NOBODY)), None, None),
            (UserMapping::Identity, me, Some((NOBODY, NOBODY)), None),
            (rootless, me, None, Some((0, 0))),
            (rootless, Some((1001, 100)), None, None),
            (rootless, None, None, Some((60_700, 60_700))),
            // What a kernel reads as "unchanged", by whatever way it comes.
            (UserMapping::Identity, Some((u32::MAX, 0)), None, None),
            (UserMapping::Identity, Some((0, u32::MAX)), None, None),
            (UserMapping::Identity, Some((65_535, 65_535)), None, None),
            (remapped, Some((165_535, 200_000)), None, None),
            (remapped, Some((100_000, 200_000)), None, Some((0, 0))),
            (remapped, Some((101_000, 200_100)), None, Some((1000, 100))),
            (remapped, Some((165_534, 200_000)), None, None),
            (remapped, Some((165_536, 200_000)), None, None),
            (remapped, me, None, None),
        ] {
            let asked = asked.map(|(uid, gid)| User::new(uid, gid).unwrap());
            let user = container_user(mapping, owner, asked).ok();
            let user = user.map(|user| (user.uid(), user.gid()));
            assert_eq!(user, expected, "{mapping:?} {owner:?} {asked:?}");
        }
    }
}
