//! Files of the host that are replaced only when all of their new content has been written.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, fchmod, flock, linkat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use sandbox_controller::{Config, HostPlaces, MountRefusal};
use sandbox_dirfd::{Links, open_path, random_hex};

use crate::error::Error;

/// A place for content on the host, opened once: it cannot be redirected from then on. If it is a
/// link, that has been followed.
#[derive(Debug)]
pub enum Place {
    /// A regular file, or a name that is free.
    File(FilePlace),
    /// A pipe, a device, or the target of stdout or stderr, which is written directly.
    Stream(fs::File),
}

/// The name of a file in an open directory.
#[derive(Debug)]
pub struct FilePlace {
    directory: Arc<OwnedFd>,
    name: OsString,
    /// The permissions of the file that is there.
    mode: Option<Mode>,
}

impl Place {
    /// Opens it. Nothing that exists changes yet.
    ///
    /// # Errors
    ///
    /// If it is a directory, or cannot be written or created.
    pub fn open(file: &Path) -> io::Result<Self> {
        let (file, mode, links) = match file.metadata() {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => {
                return fs::File::options().write(true).open(file).map(Self::Stream);
            }
            Ok(found) => {
                // Such as /dev/stdout, redirected to a file: other output to it must not be lost.
                if let Some(open) = open_already(&found, STANDARD.map(|descriptor| descriptor())) {
                    return Ok(Self::Stream(open.try_clone_to_owned()?.into()));
                }
                // A link keeps its target, and the file keeps its permissions.
                let mode = Mode::from_raw_mode(found.mode() & 0o777);
                (file.canonicalize()?, Some(mode), Links::Refuse)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (file.to_owned(), None, Links::Follow)
            }
            Err(error) => return Err(error),
        };
        let Some(name) = file.file_name() else { return Err(io::ErrorKind::NotFound.into()) };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let directory = Arc::new(open_path(parent_of(&file), flags, links)?);
        let place = FilePlace { directory, name: name.to_owned(), mode };
        // That it can be written shows now.
        drop(place.begin()?);
        Ok(Self::File(place))
    }

    /// As [`open`](Self::open), of a file for `flag`.
    ///
    /// # Errors
    ///
    /// Also if it is in the io dir, where what runs could replace it.
    pub fn outside(flag: &str, file: &Path, io_dir: Option<&Path>) -> Result<Self, Error> {
        refuse_in_io_dir(flag, file, io_dir)?;
        let place = Self::open(file).map_err(|error| Error::unusable(flag, file, &error))?;
        // As it is now: what its path led through may have changed since that was looked at.
        if let Self::File(FilePlace { directory, .. }) = &place {
            refuse_opened_in_io_dir(flag, file, directory.as_fd(), io_dir)?;
        }
        Ok(place)
    }

    /// Begins to write all of its content.
    ///
    /// # Errors
    ///
    /// If no file can be created.
    pub fn target(&self) -> io::Result<Target> {
        match self {
            Self::File(place) => place.begin().map(Target::Replaces),
            Self::Stream(file) => file.try_clone().map(Target::Stream),
        }
    }

    /// Opens it to be written directly, and empties it.
    ///
    /// # Errors
    ///
    /// If it cannot be written, such as through a link that was made since.
    pub fn truncate(&self) -> io::Result<fs::File> {
        let Self::File(FilePlace { directory, name, .. }) = self else {
            return self.target()?.writer();
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(directory, name, flags, Mode::from_raw_mode(0o666))?.into())
    }
}

impl FilePlace {
    fn begin(&self) -> io::Result<Temporary> {
        let temporary = OsString::from(format!(".sandboxctl-{}", random_hex::<8>()));
        let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o666));
        // Without a name until it is complete, where that is supported: then nothing is left of it
        // however this process ends.
        let unnamed = openat(&self.directory, ".", flags | OFlags::TMPFILE, mode);
        let is_named = unnamed.is_err();
        let file = unnamed.or_else(|_| {
            openat(&self.directory, &temporary, flags | OFlags::CREATE | OFlags::EXCL, mode)
        })?;
        let (directory, name) = (self.directory.clone(), self.name.clone());
        let temporary = Temporary { directory, temporary, is_named, name, file: file.into() };
        if let Some(mode) = self.mode {
            fchmod(&temporary.file, mode)?;
        }
        Ok(temporary)
    }
}

/// A temporary file next to the file that it is to replace. Dropping it removes it.
#[derive(Debug)]
pub struct Temporary {
    directory: Arc<OwnedFd>,
    temporary: OsString,
    /// Whether it has that name from the beginning.
    is_named: bool,
    name: OsString,
    file: fs::File,
}

impl Temporary {
    /// Gives it the name of what it replaces.
    fn replace(&self) -> io::Result<()> {
        if !self.is_named {
            let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(CWD, file, &self.directory, &self.temporary, AtFlags::SYMLINK_FOLLOW)?;
        }
        Ok(renameat(&self.directory, &self.temporary, &self.directory, &self.name)?)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After it got its name, it is missing.
        _ = unlinkat(&self.directory, &self.temporary, AtFlags::empty());
    }
}

/// Content on the host that is being written.
#[derive(Debug)]
pub enum Target {
    /// A temporary file, which replaces another one once it is complete: a partial file is useless, and
    /// the existing one may be the only copy.
    Replaces(Temporary),
    /// As that of [`Place`].
    Stream(fs::File),
}

impl Target {
    /// Opens a place to write to it now.
    ///
    /// # Errors
    ///
    /// As of [`Place::open`].
    pub fn open(file: &Path) -> io::Result<Self> {
        Place::open(file)?.target()
    }

    /// The file to write to.
    ///
    /// # Errors
    ///
    /// If no descriptor is available.
    pub fn writer(&self) -> io::Result<fs::File> {
        match self {
            Self::Replaces(Temporary { file, .. }) | Self::Stream(file) => file.try_clone(),
        }
    }

    /// Everything is written: replaces the file by the new one.
    ///
    /// # Errors
    ///
    /// If it cannot be replaced; the old one stays.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::Replaces(new) => new.replace(),
            Self::Stream(_) => Ok(()),
        }
    }

    /// Writes all of it.
    ///
    /// # Errors
    ///
    /// As of [`finish`](Self::finish).
    pub fn write(self, content: &[u8]) -> io::Result<()> {
        self.writer()?.write_all(content)?;
        self.finish()
    }
}

/// Refuses a file in the io dir, where what runs could replace it. `flag` is the flag that names it.
///
/// # Errors
///
/// If it is in there.
pub fn refuse_in_io_dir(flag: &str, file: &Path, io_dir: Option<&Path>) -> Result<(), Error> {
    let Some(io_dir) = io_dir else { return Ok(()) };
    match [parent_of(file), file].into_iter().any(|path| is_in(path, io_dir)) {
        true => Err(in_io_dir(flag, file)),
        false => Ok(()),
    }
}

/// The same of the directory that a file will be in, which is open.
///
/// # Errors
///
/// If it is in there.
pub fn refuse_opened_in_io_dir(
    flag: &str,
    file: &Path,
    directory: BorrowedFd<'_>,
    io_dir: Option<&Path>,
) -> Result<(), Error> {
    let Some(io_dir) = io_dir else { return Ok(()) };
    let directory = format!("/proc/self/fd/{}", directory.as_raw_fd());
    match HostPlaces::now().contains(io_dir, Path::new(&directory)) {
        true => Err(in_io_dir(flag, file)),
        false => Ok(()),
    }
}

fn in_io_dir(flag: &str, file: &Path) -> Error {
    let why = format!("{} is in the io dir, where the run could replace it", file.display());
    Error::usage(flag, why).with_hint("name a file elsewhere")
}

/// Refuses to write into a directory of the controller's own, into that of a service that runs, or into
/// an io dir [in use](refuse_used): for every output that a command line names. `flag` names it.
///
/// # Errors
///
/// If it would be in there.
pub fn refuse_own(flag: &str, path: &Path, config: &Config) -> Result<(), Error> {
    refuse_used(flag, path)?;
    config.check_output(path).map_err(|refusal| {
        Error::usage(flag, format!("{}: {refusal}", path.display())).with_hint(refusal.hint())
    })
}

/// Refuses what a service creates, such as its data directory, inside that of another running one.
///
/// # Errors
///
/// If it would be in there.
pub fn refuse_served(flag: &str, path: &Path, config: &Config) -> Result<(), Error> {
    match config.check_output(parent_of(path)) {
        Err(refusal @ MountRefusal::ServedDir { .. }) => {
            let why = format!("{}: {refusal}", path.display());
            Err(Error::usage(flag, why).with_hint(refusal.hint()))
        }
        _ => Ok(()),
    }
}

/// Refuses a path into an io dir that a sandbox uses now, or through one: what runs there may
/// redirect it, at any time. The lock on an io dir shows that it is in use.
///
/// # Errors
///
/// If it leads there.
pub fn refuse_used(flag: &str, path: &Path) -> Result<(), Error> {
    let mut used = None;
    let mut look = |at: &Path| {
        if used.is_none() && is_used(at) {
            used = Some(at.to_owned());
        }
    };
    if path.is_relative()
        && let Ok(begin) = std::env::current_dir().and_then(|it| it.canonicalize())
    {
        begin.ancestors().for_each(&mut look);
    }
    place(path, look);
    let Some(used) = used else { return Ok(()) };
    let (path, used) = (path.display(), used.display());
    let why = format!("{path} leads through {used}, which another sandbox uses as its io dir");
    Err(Error::usage(flag, why).with_hint("name a file elsewhere"))
}

/// How often a directory that is locked is looked at, in 0 to 9 ms.
const LOOKS: u64 = 10;

/// Whether a directory is an io dir in use.
fn is_used(directory: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty());
    opened.is_ok_and(|opened| {
        (0..LOOKS).all(|look| {
            // Another process may be looking too, which takes the lock for a moment.
            std::thread::sleep(Duration::from_millis(look));
            flock(&opened, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        })
    })
}

/// Whether a file is this process's stdout or stderr, under any name.
pub fn is_own_stream(file: &Path) -> bool {
    let is_open = |found: &fs::Metadata| open_already(found, STANDARD.map(|it| it())).is_some();
    file.metadata().is_ok_and(|found| is_open(&found))
}

/// The directory of a path.
pub fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a path leads into a directory or through it, under any name, or will once the missing
/// parts of either have been created. Unknown counts as yes.
pub fn is_in(path: &Path, directory: &Path) -> bool {
    let Some(directory) = place(directory, |_| {}) else { return true };
    let places = HostPlaces::now();
    let holds = |at: &Path| at.starts_with(&directory) || places.contains(&directory, at);
    let mut is_through = false;
    // Below a directory, a user who may rename there decides what `..` means.
    let is_below = |at: &Path| holds(at) && !places.contains(at, &directory);
    let begin = std::env::current_dir().and_then(|it| it.canonicalize());
    is_through |= path.is_relative() && begin.is_ok_and(|begin| is_below(&begin));
    let end = place(path, |at| is_through |= holds(at));
    is_through || end.is_none_or(|end| holds(&end))
}

/// Most links in a path, as the kernel has it.
const MAX_LINKS: u32 = 40;

/// Where a path leads, as far as it exists, and `visit` with each place on the way. `None` for one with
/// `..` in what does not exist, or too many links.
fn place(path: &Path, mut visit: impl FnMut(&Path)) -> Option<PathBuf> {
    let mut at = match path.is_absolute() {
        true => PathBuf::from("/"),
        false => std::env::current_dir().ok()?.canonicalize().ok()?,
    };
    let words = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|it| it.as_os_str().to_owned()).collect()
    };
    let mut rest = words(path);
    let (mut links, mut is_missing) = (0, false);
    while let Some(word) = rest.pop() {
        match word.as_bytes() {
            b"/" => at = PathBuf::from("/"),
            b"." => {}
            b".." if is_missing => return None,
            b".." => _ = at.pop(),
            _ => {
                let next = at.join(&word);
                visit(&next);
                match next.read_link() {
                    Ok(_) if links == MAX_LINKS => return None,
                    Ok(target) => {
                        links += 1;
                        rest.extend(words(&target));
                    }
                    Err(error) => {
                        is_missing |= error.kind() == io::ErrorKind::NotFound;
                        at = next;
                    }
                }
            }
        }
    }
    Some(at)
}

/// stdout and stderr.
const STANDARD: [fn() -> BorrowedFd<'static>; 2] = [rustix::stdio::stdout, rustix::stdio::stderr];

/// The descriptor that has the file open.
fn open_already<'a>(found: &fs::Metadata, among: [BorrowedFd<'a>; 2]) -> Option<BorrowedFd<'a>> {
    among.into_iter().find(|fd| {
        rustix::fs::fstat(fd)
            .is_ok_and(|open| (open.st_dev, open.st_ino) == (found.dev(), found.ino()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn who_looks_whether_a_directory_is_in_use_does_not_use_it() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert!(!(0..1000).any(|_| is_used(folder.path()))));
            }
        });
        let held = fs::File::open(folder.path()).unwrap();
        flock(&held, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(is_used(folder.path()));
        drop(held);
        assert!(!is_used(folder.path()));
    }

    #[test]
    fn a_file_stays_until_a_whole_one_takes_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("image.tar");
        fs::write(&file, "the old one").unwrap();
        let target = Target::open(&file).unwrap();
        target.writer().unwrap().write_all(b"half").unwrap();
        // As a killed process leaves it.
        assert_eq!(names(folder.path()), ["image.tar"]);
        drop(target);
        assert_eq!(fs::read_to_string(&file).unwrap(), "the old one");
        assert_eq!(names(folder.path()), ["image.tar"]);

        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("image.tar", &link).unwrap();
        let target = Target::open(&link).unwrap();
        target.writer().unwrap().write_all(b"whole").unwrap();
        target.finish().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "whole");
        assert!(link.is_symlink());
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(names(folder.path()).len(), 2);
        assert!(Target::open(folder.path()).is_err());
        assert!(matches!(Target::open(Path::new("/dev/null")), Ok(Target::Stream(_))));
    }

    #[test]
    fn file_is_written_where_it_was_to_be_whatever_leads_elsewhere_by_then() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for directory in ["a", "secret"] {
            fs::create_dir(at(directory)).unwrap();
        }
        fs::write(at("secret/f"), "precious").unwrap();
        fs::write(at("a/old"), "old").unwrap();
        symlink("a/old", at("link")).unwrap();
        let open = |path: &str| Place::open(&at(path)).unwrap();
        let [new, old, log] = ["a/f", "link", "a/log"].map(open);
        // What may write in `a` makes links of its names.
        symlink(at("secret/f"), at("a/f")).unwrap();
        symlink(at("secret/f"), at("a/log")).unwrap();
        log.truncate().unwrap_err();
        fs::rename(at("a"), at("moved")).unwrap();
        symlink("secret", at("a")).unwrap();
        new.target().unwrap().write(b"new").unwrap();
        old.target().unwrap().write(b"newer").unwrap();
        assert_eq!(fs::read_to_string(at("secret/f")).unwrap(), "precious");
        assert_eq!(names(&at("secret")), ["f"]);
        assert_eq!(fs::read_to_string(at("moved/f")).unwrap(), "new");
        assert_eq!(fs::read_to_string(at("moved/old")).unwrap(), "newer");
        // Nor is it one that leads into the io dir by now.
        let error = Place::outside("--report", &at("a/g"), Some(&at("secret"))).unwrap_err();
        assert!(error.to_text().contains("is in the io dir"));
    }

    #[test]
    fn path_is_in_a_directory_that_is_still_to_be_made() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir(at("made")).unwrap();
        symlink("new", at("link")).unwrap();
        symlink("made/file", at("dangling")).unwrap();
        symlink("loop", at("loop")).unwrap();
        // What runs may change a link in its directory at any time.
        symlink("../other", at("made/away")).unwrap();
        symlink("made/away/b", at("round")).unwrap();
        for (path, directory, expected) in [
            ("new", "new", true),
            ("new/a/b", "new", true),
            ("made/../new/a", "new", true),
            ("made/../other", "new", false),
            ("link/a", "new", true),
            ("new/a", "link", true),
            ("dangling", "made", true),
            ("made/a/b", "made", true),
            ("made/away/b", "made", true),
            ("round", "made", true),
            ("made/../other", "made", true),
            ("new/a", "made", false),
            ("newer", "new", false),
            ("other", "made", false),
            // The creator of `new/a` decides what these are.
            ("new/a/../b", "made", true),
            ("loop/a", "made", true),
        ] {
            assert_eq!(is_in(&at(path), &at(directory)), expected, "{path} in {directory}");
        }
    }

    #[test]
    fn a_file_that_stdout_was_sent_to_is_known_by_any_name() {
        use std::os::fd::AsFd;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (log, other) = (fs::File::create(&path).unwrap(), tempfile::tempfile().unwrap());
        std::os::unix::fs::symlink("log", folder.path().join("link")).unwrap();
        let found = folder.path().join("link").metadata().unwrap();
        let open = open_already(&found, [other.as_fd(), log.as_fd()]);
        assert_eq!(open.map(|fd| fd.as_raw_fd()), Some(log.as_raw_fd()));
        assert!(open_already(&found, [other.as_fd(), other.as_fd()]).is_none());
    }
}
