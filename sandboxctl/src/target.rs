//! Files of the host that are replaced only when all of their new content has been written.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sandbox_controller::Config;
use tempfile::NamedTempFile;

use crate::error::Error;

/// A destination for content on the host.
#[derive(Debug)]
pub enum Target {
    /// A temporary file beside the destination, which it replaces once it is complete: a partial
    /// file is useless, and the existing one may be the only copy. Removed if that does not happen.
    Replaces(NamedTempFile, PathBuf),
    /// A pipe, a device, or the target of stdout or stderr, which is written directly.
    Stream(fs::File),
}

impl Target {
    /// Opens it. Nothing that exists changes yet.
    ///
    /// # Errors
    ///
    /// If it is a directory, or cannot be written or created.
    pub fn open(file: &Path) -> io::Result<Self> {
        let (file, mode) = match file.metadata() {
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
                (file.canonicalize()?, Some(found.permissions().mode() & 0o777))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (file.to_owned(), None),
            Err(error) => return Err(error),
        };
        let folder = match file.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let temporary = tempfile::Builder::new()
            .prefix(".sandboxctl-")
            .permissions(fs::Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        if let Some(mode) = mode {
            temporary.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        }
        Ok(Self::Replaces(temporary, file))
    }

    /// The file to write to.
    ///
    /// # Errors
    ///
    /// If no descriptor is available.
    pub fn writer(&self) -> io::Result<fs::File> {
        match self {
            Self::Replaces(temporary, _) => temporary.as_file().try_clone(),
            Self::Stream(file) => file.try_clone(),
        }
    }

    /// Everything is written: replaces the file by the new one.
    ///
    /// # Errors
    ///
    /// If it cannot be replaced; the old one stays.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::Replaces(temporary, file) => {
                temporary.persist(file).map(drop).map_err(|failed| failed.error)
            }
            Self::Stream(_) => Ok(()),
        }
    }
}

/// Refuses a file in the io dir, where what runs could replace it. `flag` is the flag that names it.
///
/// # Errors
///
/// If it is in there.
pub fn refuse_in_io_dir(flag: &str, file: &Path, io_dir: Option<&Path>) -> Result<(), Error> {
    let Some(io_dir) = io_dir else { return Ok(()) };
    if [parent_of(file), file].into_iter().any(|path| is_in(path, io_dir)) {
        let why = format!("{} is in the io dir, where the run could replace it", file.display());
        return Err(Error::usage(flag, why).with_hint("name a file elsewhere"));
    }
    Ok(())
}

/// Refuses to write what a sandbox made into a directory of the controller's own. `flag` names it.
///
/// # Errors
///
/// If it would be in there.
pub fn refuse_own(flag: &str, path: &Path, config: &Config) -> Result<(), Error> {
    config.check_output(path).map_err(|refusal| {
        Error::usage(flag, format!("{}: {refusal}", path.display())).with_hint(refusal.hint())
    })
}

/// Whether a file is this process's stdout or stderr, by whatever name.
pub fn is_own_stream(file: &Path) -> bool {
    let is_open = |found: &fs::Metadata| open_already(found, STANDARD.map(|it| it())).is_some();
    file.metadata().is_ok_and(|found| is_open(&found))
}

/// The directory of a path.
pub fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a path leads into a directory or through it, or will once what is missing of either has been
/// made. One of which that cannot be said does.
pub fn is_in(path: &Path, directory: &Path) -> bool {
    let Some(directory) = place(directory, |_| {}) else { return true };
    let mut is_through = false;
    // From below a directory, `..` is what whoever may rename there makes of it.
    let is_below = |at: &Path| at != directory && at.starts_with(&directory);
    let begin = std::env::current_dir().and_then(|it| it.canonicalize());
    is_through |= path.is_relative() && begin.is_ok_and(|begin| is_below(&begin));
    let end = place(path, |at| is_through |= at.starts_with(&directory));
    is_through || end.is_none_or(|end| end.starts_with(&directory))
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
    use std::io::Write;
    use std::os::fd::AsRawFd;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_stays_until_a_whole_one_takes_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("image.tar");
        fs::write(&file, "the old one").unwrap();
        let target = Target::open(&file).unwrap();
        target.writer().unwrap().write_all(b"half").unwrap();
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
            // Whoever makes `new/a` decides what these are.
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
