//! The digest of an input: of a file, or of everything in a directory.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat};
use rustix::io::Errno;
use sandbox_api::ErrorKind;
use sandbox_dirfd::{FileStamp, HoleAllowance, Visit, hex, join, open_child, walk};
use sha2::{Digest as _, Sha256};

use crate::ContinueFn;
use crate::collect::complete;
use crate::copy::{Progress, describe, hash, target_of};
use crate::cursor::{Cursor, MissingDir};
use crate::error::{Error, text};
use crate::verify::SCAN;

/// The digest of an input, and what shows later whether it is still the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputDigest {
    /// The SHA-256 of a file's content; of a directory, that of its listing: one line for each entry
    /// below it, sorted by the bytes of their paths,
    /// `TYPE MODE SHA256 PATH` with `file`, `directory`, `symlink` or `other`, the permission bits in
    /// octal, the digest of the content or of the link's target (`-` for others), and the path
    /// with everything but printable ASCII escaped as in Rust (`\n`, `\xc3`).
    pub sha256: String,
    /// The number of regular files.
    pub files: u64,
    /// The bytes of all of them.
    pub bytes: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Of everything that changes with an entry: sizes, times, inodes.
    state: String,
}

impl InputDigest {
    /// Whether the path has that input, unchanged since, by sizes, times and inodes.
    ///
    /// # Errors
    ///
    /// [`Error`] if it cannot be read any more.
    pub fn is_still_of(&self, path: &Path) -> Result<bool, Error> {
        let root = open(path)?;
        Ok(self.state == Entries::of(&root, path)?.state())
    }
}

/// Digests a file, or a directory with everything in it. Links below it are not followed. An earlier
/// run may have made the files: holes, which cost it nothing, are read up to a bound.
///
/// # Errors
///
/// [`Error`] if something cannot be read, changes meanwhile, or is too deep or too much.
pub fn digest_input(path: &Path, proceed: ContinueFn<'_>) -> Result<InputDigest, Error> {
    let name = path.as_os_str().as_encoded_bytes();
    let failed = Error::io("read", name);
    let root = open(path)?;
    let entries = Entries::of(&root, path)?;
    let state = entries.state();
    let Entries { root: stat, below } = entries;
    let (mut files, mut bytes) = (0, 0);
    let sha256 = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        let mut listing = Sha256::new();
        let mut from = Cursor::new(root.as_fd(), MissingDir::Fail);
        let mut progress = Progress::default();
        for (path, stat) in &below {
            let (kind, digest) = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    let described = describe(&mut from, path, &mut progress, proceed);
                    let file = described.map_err(|error| match error {
                        Error::Holes { .. } => input_holes(path),
                        error => error,
                    })?;
                    files += 1;
                    bytes += file.bytes;
                    ("file", file.sha256)
                }
                FileType::Directory => ("directory", "-".to_owned()),
                FileType::Symlink => ("symlink", hex(&Sha256::digest(target_of(&mut from, path)?))),
                _ => ("other", "-".to_owned()),
            };
            let (mode, path) = (stat.st_mode & 0o7777, path.escape_ascii());
            listing.update(format!("{kind} {mode:04o} {digest} {path}\n"));
        }
        hex(&listing.finalize())
    } else {
        if !HoleAllowance::default().take(&stat) {
            return Err(input_holes(name));
        }
        let file = File::from(root.try_clone().map_err(&failed)?);
        let Some(content) = hash(&file, u64::MAX, proceed).map_err(&failed)? else {
            return Err(Error::Cancelled);
        };
        (files, bytes) = (1, content.bytes);
        content.sha256
    };
    let is_directory = !matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile);
    let digest = InputDigest { sha256, files, bytes, is_directory, state };
    match digest.is_still_of(path)? {
        true => Ok(digest),
        false => Err(Error::changing(name)),
    }
}

fn input_holes(path: &[u8]) -> Error {
    let message = format!(
        "'{}': the files of an input have holes of more than {} GiB together",
        text(path),
        HoleAllowance::BYTES >> 30
    );
    let hint = "`cp --sparse=never` fills holes; without --receipt nothing is digested";
    Error::refused(ErrorKind::TooLarge, message, Some(hint))
}

/// A file in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDigest {
    /// Its path.
    pub path: Vec<u8>,
    /// The SHA-256 of its content; `None` if it is no regular file, or none that is known, or has
    /// larger holes than are read.
    pub sha256: Option<String>,
}

/// The files in a directory, with the digests of those that `is_known` names: others can be of any
/// size. What is mounted below it is listed as a file is that is not regular.
///
/// # Errors
///
/// [`Error`] if something cannot be read, changes meanwhile, or is too deep or too much.
pub fn digest_files(
    directory: &Path,
    is_known: impl Fn(&[u8]) -> bool,
    proceed: ContinueFn<'_>,
) -> Result<Vec<FileDigest>, Error> {
    let root = open(directory)?;
    let Entries { below, .. } = Entries::of(&root, directory)?;
    let mut from = Cursor::new(root.as_fd(), MissingDir::Fail);
    let mut progress = Progress::default();
    let mut files = Vec::new();
    for (path, stat) in below {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let (parent, name) = from.parent(&path).map_err(Error::io("read", &path))?;
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                if open_child(parent, name, flags).is_err_and(|errno| errno == Errno::XDEV) {
                    files.push(FileDigest { path, sha256: None });
                }
            }
            FileType::RegularFile if is_known(&path) => {
                let sha256 = match describe(&mut from, &path, &mut progress, proceed) {
                    Ok(file) => Some(file.sha256),
                    Err(Error::Holes { .. } | Error::TooManyNames { .. }) => None,
                    Err(error) => return Err(error),
                };
                files.push(FileDigest { path, sha256 });
            }
            _ => files.push(FileDigest { path, sha256: None }),
        }
    }
    Ok(files)
}

fn open(path: &Path) -> Result<OwnedFd, Error> {
    let name = path.as_os_str().as_encoded_bytes();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(Error::io("read", name))?;
    let stat = fstat(&fd).map_err(Error::io("read", name))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory => Ok(fd),
        _ => Err(Error::Vanished { path: text(name) }),
    }
}

/// What is below a path, sorted.
struct Entries {
    root: Stat,
    below: Vec<(Vec<u8>, Stat)>,
}

impl Entries {
    fn of(root: &OwnedFd, path: &Path) -> Result<Self, Error> {
        let name = path.as_os_str().as_encoded_bytes();
        let stat = fstat(root).map_err(Error::io("read", name))?;
        let mut below = Vec::new();
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let (_, coverage) = walk(root, SCAN, |folder, name, stat| {
                below.push((join(folder, name), *stat));
                Visit::Enter
            });
            complete(&path.display().to_string(), coverage)?;
            below.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        }
        Ok(Self { root: stat, below })
    }

    fn state(&self) -> String {
        let mut digest = Sha256::new();
        let root = std::iter::once((&b""[..], &self.root));
        for (path, stat) in root.chain(self.below.iter().map(|(path, stat)| (&**path, stat))) {
            digest.update(format!("{:?} {}\n", FileStamp::of(stat), path.escape_ascii()));
        }
        hex(&digest.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn directory_has_the_digest_of_its_listing_whatever_its_place_and_times() {
        let dir = tempfile::tempdir().unwrap();
        let plant = |name: &str| {
            let root = dir.path().join(name);
            fs::create_dir_all(root.join("b/empty")).unwrap();
            fs::write(root.join("a"), "one").unwrap();
            fs::write(root.join("b/c"), "two").unwrap();
            std::os::unix::fs::symlink("a", root.join("link")).unwrap();
            root
        };
        let (one, other) = (plant("one"), plant("other"));
        let digest = |path: &Path| digest_input(path, &|| true).unwrap();
        let found = digest(&one);
        assert_eq!((found.files, found.bytes, found.is_directory), (2, 6, true));
        assert_eq!(found.sha256, digest(&other).sha256);
        let sha = |text: &str| hex(&Sha256::digest(text));
        let lines = format!(
            "file 0644 {} a\ndirectory 0755 - b\nfile 0644 {} b/c\ndirectory 0755 - b/empty\n\
             symlink 0777 {} link\n",
            sha("one"),
            sha("two"),
            sha("a"),
        );
        assert_eq!(found.sha256, sha(&lines));
        assert!(found.is_still_of(&one).unwrap());
        fs::write(other.join("b/c"), "2").unwrap();
        assert_ne!(digest(&other).sha256, found.sha256);
        fs::write(one.join("b/c"), "owt").unwrap();
        assert!(!found.is_still_of(&one).unwrap());
    }

    #[test]
    fn file_has_the_digest_of_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "content").unwrap();
        let found = digest_input(&file, &|| true).unwrap();
        assert_eq!(found.sha256, hex(&Sha256::digest("content")));
        assert_eq!((found.files, found.bytes, found.is_directory), (1, 7, false));
        assert!(matches!(digest_input(&file, &|| false), Err(Error::Cancelled)));
    }

    #[test]
    fn holes_that_cost_an_earlier_run_nothing_are_not_read_without_bound() {
        let dir = tempfile::tempdir().unwrap();
        let digest = |path: &Path| digest_input(path, &|| panic!("it is read"));
        for number in 0..2 {
            let hole = File::create(dir.path().join(format!("hole{number}"))).unwrap();
            hole.set_len(HoleAllowance::BYTES + 1).unwrap();
        }
        for path in [dir.path().to_owned(), dir.path().join("hole0")] {
            let error = digest(&path).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("hole0': the files of an input have holes of more than 4 GiB"));
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            assert!(error.hint().unwrap().contains("--receipt"));
        }
    }
}
