//! The files of executions and kept sandboxes, below `files`, which only this user can enter: a
//! directory for each, or an image. Guests created their content, so everything in them is reached by descriptors,
//! and no link is followed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use sandbox_api::changes::ChangeManifest;
use sandbox_api::service::{FileEntry, FileKind, FileList, Time};
use sandbox_api::{ErrorKind, Failure};
use sandbox_controller::artifacts::{ArchiveFormat, Error, KeptFiles};
use sandbox_dirfd::{FreeSpace, Root, Visit, WalkBounds, create_private_dir, remove_tree, walk};
use sandbox_protocol::path::{MAX_COMPONENT_BYTES, MAX_PATH_BYTES};

use crate::error::ServiceError;

/// The maximum number of files in a list, a change manifest and an archive.
pub(crate) const MAX_ENTRIES: u64 = 10_000;
/// How much of a directory is looked at to know its size.
const SIZE: WalkBounds =
    WalkBounds { entries: 1_000_000, depth: 128, time: Duration::from_secs(10) };
/// How a directory is opened.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// What each file, directory and link counts for beside its blocks: a file system has only so many.
const ENTRY_BYTES: u64 = 4096;
/// The name of the directory in the data directory.
pub(crate) const NAME: &str = "files";

/// The directories of files.
#[derive(Debug)]
pub(crate) struct Files {
    path: PathBuf,
    root: OwnedFd,
}

/// A regular file that is open for reading.
#[derive(Debug)]
pub struct OpenFile {
    /// Its content, from the beginning.
    pub file: File,
    /// Its size.
    pub bytes: u64,
    /// When it was last modified.
    pub modified: Time,
    /// The last component of its path; lossy where it is not UTF-8.
    pub name: String,
    /// Differs from that of every other file, and of the same one with another content.
    pub version: String,
}

impl Files {
    /// Opens the directory in the data directory, and creates it if it is missing.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        create_private_dir(data_dir)?;
        let path = data_dir.join(NAME);
        create_private_dir(&path)?;
        let root = OwnedFd::from(File::open(&path)?);
        Ok(Self { path, root })
    }

    /// The free space of their file system, which is that of the store too.
    pub fn free_space(&self) -> rustix::io::Result<FreeSpace> {
        FreeSpace::of(&self.root)
    }

    /// Where the files of this id are, or will be.
    pub fn path(&self, id: &str) -> PathBuf {
        self.path.join(id)
    }

    fn directory(&self, id: &str) -> rustix::io::Result<OwnedFd> {
        openat(&self.root, id, DIRECTORY, Mode::empty())
    }

    /// Checks that what was kept of this id is there: a database that was restored may be older.
    pub fn check(&self, id: &str) -> Result<(), ServiceError> {
        match self.directory(id) {
            Ok(_) => Ok(()),
            Err(Errno::NOENT) => Err(ServiceError::files_lost(id)),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// What is not there is empty: an execution that leaves nothing has no directory.
    fn if_any<T: Default>(
        &self,
        id: &str,
        look: impl FnOnce(BorrowedFd<'_>) -> Result<T, ServiceError>,
    ) -> Result<T, ServiceError> {
        match self.directory(id) {
            Ok(directory) => look(directory.as_fd()),
            Err(Errno::NOENT) => Ok(T::default()),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Lists everything, sorted by path.
    pub fn list(&self, id: &str) -> Result<FileList, ServiceError> {
        Ok(self.kept(id)?.unwrap_or(FileList { files: Vec::new(), truncated: false }))
    }

    /// The same, if there is a directory.
    pub fn kept(&self, id: &str) -> Result<Option<FileList>, ServiceError> {
        self.if_any(id, |root| {
            let (entries, truncated) = KeptFiles::new(root, MAX_ENTRIES).entries();
            let files: Vec<_> = entries.iter().map(|(path, stat)| entry(path, stat)).collect();
            Ok(Some(FileList { files, truncated }))
        })
    }

    /// The change manifest: everything was created.
    pub fn changes(
        &self,
        id: &str,
        proceed: &(dyn Fn() -> bool + Sync),
    ) -> Result<ChangeManifest, ServiceError> {
        self.if_any(id, |root| {
            KeptFiles::new(root, MAX_ENTRIES).changes(proceed).map_err(|error| {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot list changes");
                ServiceError::internal("the files cannot be read")
            })
        })
    }

    /// Writes an archive of the files, directories and links.
    pub fn archive(
        &self,
        id: &str,
        format: ArchiveFormat,
        to: impl Write + Send,
        proceed: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), ServiceError> {
        let directory = match self.directory(id) {
            Err(Errno::NOENT) => self.empty_directory(),
            directory => directory,
        };
        let directory = directory.map_err(failed)?;
        let kept = KeptFiles::new(directory.as_fd(), MAX_ENTRIES);
        kept.archive(format, to, proceed).map_err(|error| match error {
            Error::TooMany { most } => ServiceError::too_many_files(id, most),
            error @ Error::Holes { .. } => ServiceError::sandbox(Failure::new(
                error.kind(),
                error.to_string(),
                Some("download its files one by one".to_owned()),
            )),
            error => ServiceError::files(io::Error::other(error)),
        })
    }

    /// A directory that cannot get anything.
    fn empty_directory(&self) -> rustix::io::Result<OwnedFd> {
        let empty = format!("{}.empty", sandbox_dirfd::random_hex::<8>());
        mkdirat(&self.root, &empty, Mode::RWXU)?;
        let directory = self.directory(&empty);
        unlinkat(&self.root, &empty, AtFlags::REMOVEDIR)?;
        directory
    }

    /// Opens a regular file.
    pub fn open_file(&self, id: &str, path: &[u8]) -> Result<OpenFile, ServiceError> {
        let shown = || String::from_utf8_lossy(path).chars().take(256).collect::<String>();
        let refuse = |kind, problem| Err(ServiceError::file_refused(&shown(), problem, kind));
        let components = path.split(|&byte| byte == b'/');
        let mut name: &[u8] = b"";
        for component in components {
            match component {
                b"" => return refuse(ErrorKind::InvalidPath, "a name in it is empty"),
                b"." | b".." => return refuse(ErrorKind::InvalidPath, "'.' and '..' name no file"),
                it if it.contains(&0) => {
                    return refuse(ErrorKind::InvalidPath, "it has a NUL byte");
                }
                it if it.len() > MAX_COMPONENT_BYTES => {
                    return refuse(ErrorKind::InvalidPath, "a name in it is too long");
                }
                it => name = it,
            }
        }
        if path.len() > MAX_PATH_BYTES {
            return refuse(ErrorKind::InvalidPath, "it is too long");
        }
        let not_found = || ServiceError::file_not_found(&shown());
        let directory = match self.directory(id) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Err(not_found()),
            Err(errno) => return Err(failed(errno)),
        };
        let root = Root::new(directory.as_fd()).map_err(failed)?;
        let found = match root.open(path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(not_found()),
            Err(Errno::LOOP) => return refuse(ErrorKind::Symlink, "a link is never followed"),
            Err(Errno::XDEV) => {
                return refuse(ErrorKind::SpecialFile, "something is mounted there");
            }
            Err(errno) => return Err(failed(errno)),
        };
        let stat = fstat(&found).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return refuse(ErrorKind::IsDirectory, "it is a directory"),
            FileType::Symlink => return refuse(ErrorKind::Symlink, "a link is never followed"),
            _ => return refuse(ErrorKind::SpecialFile, "not a regular file"),
        }
        // First without reading it: it could have been a device.
        let again = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(again, flags, Mode::empty()).map(File::from).map_err(failed)?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let name = String::from_utf8_lossy(name).into_owned();
        Ok(OpenFile { file, bytes, modified: modified(&stat), name, version: version(&stat) })
    }

    /// What the files of this id count for: their bytes on the disk, and [`ENTRY_BYTES`] for each.
    pub fn bytes(&self, id: &str) -> u64 {
        self.directory(id).map_or(0, |directory| bytes(&directory))
    }

    /// Removes the directory of this id if it is empty.
    pub fn remove_if_empty(&self, id: &str) {
        _ = unlinkat(&self.root, id, AtFlags::REMOVEDIR);
    }

    /// Removes everything of this id.
    pub fn remove(&self, id: &str) -> io::Result<()> {
        let removed = match remove_tree(self.root.as_fd(), std::ffi::OsStr::new(id)) {
            Err(Errno::NOTDIR) => unlinkat(&self.root, id, AtFlags::empty()),
            removed => removed,
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// How long ago something was last added to a directory, or taken from it.
    pub fn age(&self, id: &str) -> Option<Duration> {
        fs::symlink_metadata(self.path(id)).ok()?.modified().ok()?.elapsed().ok()
    }

    /// The ids of all directories.
    pub fn ids(&self) -> io::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            ids.push(String::from_utf8_lossy(entry?.file_name().as_bytes()).into_owned());
        }
        Ok(ids)
    }
}

/// What everything below a directory of the service counts for, as of [`Files::bytes`].
pub(crate) fn bytes_below(path: &Path) -> u64 {
    openat(CWD, path, DIRECTORY, Mode::empty()).map_or(0, |directory| bytes(&directory))
}

/// The bytes that an image at a path has on the disk; `None` if there is none.
pub(crate) fn image_bytes(path: &Path) -> Option<u64> {
    let found = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some(found.blocks().saturating_mul(512))
}

fn bytes(directory: &OwnedFd) -> u64 {
    let mut bytes = 0_u64;
    walk(directory, SIZE, |_, _, stat| {
        // Allocated, because a file may have holes; one that is linked twice counts twice.
        bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512 + ENTRY_BYTES;
        Visit::Enter
    });
    bytes
}

fn entry(path: &[u8], stat: &Stat) -> FileEntry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let bytes = match kind {
        FileKind::File => u64::try_from(stat.st_size).unwrap_or(0),
        _ => 0,
    };
    FileEntry { path: path.into(), kind, bytes, modified: Some(modified(stat)) }
}

fn modified(stat: &Stat) -> Time {
    let millis = i64::try_from(stat.st_mtime_nsec / 1_000_000).unwrap_or(0);
    Time::from_unix_millis(stat.st_mtime.saturating_mul(1000).saturating_add(millis))
}

/// Of the inode and its change time, which a guest cannot set. Not of the content: a guest leaves files
/// of terabytes of holes.
fn version(stat: &Stat) -> String {
    let Stat { st_ino, st_size, st_ctime, st_ctime_nsec, .. } = stat;
    format!("{st_ino:x}-{st_size:x}-{st_ctime:x}-{st_ctime_nsec:x}")
}

fn failed(errno: Errno) -> ServiceError {
    let error = io::Error::from(errno);
    tracing::error!(%error, "cannot use the files");
    ServiceError::files(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    /// Files with what a hostile guest may have left.
    fn files() -> (tempfile::TempDir, Files) {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let files = Files::open(&data).unwrap();
        let at = files.path("e1");
        fs::create_dir(&at).unwrap();
        fs::create_dir(at.join("d")).unwrap();
        fs::write(at.join("d/a.txt"), "hello").unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        symlink(dir.path().join("secret"), at.join("link")).unwrap();
        symlink(dir.path(), at.join("up")).unwrap();
        rustix::fs::mkfifoat(CWD, at.join("fifo"), Mode::RUSR).unwrap();
        (dir, files)
    }

    #[test]
    fn files_are_listed_and_read_and_no_link_is_followed() {
        let (_dir, files) = files();
        let list = files.list("e1").unwrap();
        let shown: Vec<_> = list.files.into_iter().map(|it| (it.path, it.kind)).collect();
        let expected = [
            ("d", FileKind::Directory),
            ("d/a.txt", FileKind::File),
            ("fifo", FileKind::Other),
            ("link", FileKind::Symlink),
            ("up", FileKind::Symlink),
        ];
        assert_eq!(shown, expected.map(|(path, kind)| (path.into(), kind)));
        let mut open = files.open_file("e1", b"d/a.txt").unwrap();
        let mut content = String::new();
        open.file.read_to_string(&mut content).unwrap();
        assert_eq!((&*content, open.bytes, &*open.name), ("hello", 5, "a.txt"));
        for (path, kind) in [
            (&b"link"[..], ErrorKind::Symlink),
            (b"up/secret", ErrorKind::Symlink),
            (b"d", ErrorKind::IsDirectory),
            (b"fifo", ErrorKind::SpecialFile),
            (b"../e1/d/a.txt", ErrorKind::InvalidPath),
            (b"d//a.txt", ErrorKind::InvalidPath),
            (b"/etc/passwd", ErrorKind::InvalidPath),
            (b"", ErrorKind::InvalidPath),
            (b"a\0b", ErrorKind::InvalidPath),
            (b"nothing", ErrorKind::NotFound),
            (b"d/a.txt/b", ErrorKind::NotFound),
        ] {
            let error = files.open_file("e1", path).unwrap_err();
            assert_eq!(error.kind(), kind, "{}: {error}", String::from_utf8_lossy(path));
        }
    }

    #[test]
    fn file_of_holes_is_opened_without_being_read_and_has_a_version() {
        let (_dir, files) = files();
        let holes = File::create(files.path("e1").join("holes")).unwrap();
        holes.set_len(1 << 40).unwrap();
        let open = || files.open_file("e1", b"holes").unwrap();
        assert_eq!((open().bytes, open().version), (1 << 40, open().version));
        assert_ne!(open().version, files.open_file("e1", b"d/a.txt").unwrap().version);
        let before = open().version;
        holes.set_len(5).unwrap();
        assert_ne!(open().version, before);
    }

    #[test]
    fn directory_of_files_is_closed_to_others_and_goes_with_all_its_content() {
        let (dir, files) = files();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir.path().join("data/files")), 0o700);
        assert_eq!(files.ids().unwrap(), ["e1"]);
        let before = files.bytes("e1");
        (0..100).for_each(|name| drop(File::create(files.path("e1").join(name.to_string()))));
        assert!(files.bytes("e1") >= before + 100 * ENTRY_BYTES);
        files.remove_if_empty("e1");
        assert!(files.path("e1").exists());
        files.remove("e1").unwrap();
        files.remove("e1").unwrap();
        assert!(!files.path("e1").exists() && dir.path().join("secret").exists());
        // As an image is.
        fs::write(files.path("e1"), [1; 5000]).unwrap();
        assert_eq!(image_bytes(&files.path("e1")), Some(8192));
        files.remove("e1").unwrap();
        assert!(files.list("e1").unwrap().files.is_empty());
        assert_eq!(files.open_file("e1", b"a").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn changes_and_archive_of_nothing_are_empty_ones() {
        let (_dir, files) = files();
        let changes = files.changes("e1", &|| true).unwrap();
        assert_eq!(changes.changes.len(), 5);
        assert!(files.changes("other", &|| true).unwrap().is_empty());
        let mut archive = Vec::new();
        files.archive("other", ArchiveFormat::TarGzip, &mut archive, &|| true).unwrap();
        assert_eq!(archive[..2], [0x1f, 0x8b]);
        assert_eq!(files.ids().unwrap(), ["e1"]);
    }
}
