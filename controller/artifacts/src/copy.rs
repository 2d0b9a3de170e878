//! One regular file: opened beneath a directory, copied and hashed as one state of its content.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fstat, readlinkat};
use rustix::io::Errno;
use sandbox_api::artifacts::{Artifact, ArtifactMode, text_and_bytes};
use sandbox_dirfd::{
    CopyAllowance, FileStamp, HoleAllowance, KnownFiles, SparseReader, hex, link_below, open_child,
};
use sha2::{Digest as _, Sha256};

use crate::cursor::Cursor;
use crate::error::{Error, text};
use crate::{ContinueFn, PIECE, manifest};

/// How often a file is copied that changes meanwhile.
const TRIES: usize = 4;

/// Opens a file that was found to be regular, for reading.
///
/// Opened with `O_PATH` first: a writer of its directory may have put a device there.
pub fn open(from: &mut Cursor<'_>, path: &[u8]) -> Result<File, Error> {
    let failed = |errno: Errno| match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => {
            Error::Vanished { path: text(path) }
        }
        errno => Error::io("read", path)(errno),
    };
    let (parent, name) = from.parent(path).map_err(failed)?;
    let found = open_child(parent, name, OFlags::PATH).map_err(failed)?;
    let stat = fstat(&found).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::Vanished { path: text(path) });
    }
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(again, flags, Mode::empty()).map(File::from).map_err(failed)
}

/// What was copied or read until now.
#[derive(Debug, Default)]
pub struct Progress {
    /// Files that have several names: their copies have them too.
    known: KnownFiles<Artifact>,
    /// For one that is touched after each copy.
    copies: CopyAllowance,
    holes: HoleAllowance,
}

impl Progress {
    #[cfg(test)]
    fn with_any_holes() -> Self {
        Self { holes: HoleAllowance::new(u64::MAX), ..Self::default() }
    }

    #[cfg(test)]
    pub fn bounded(copies: u64) -> Self {
        Self { copies: CopyAllowance::new(copies), ..Self::default() }
    }

    /// Takes one state of a file, which is tried again if the file changes meanwhile: by `link` if it is known by
    /// another name, or else by `read`.
    fn take(
        &mut self,
        source: &File,
        action: &'static str,
        path: &[u8],
        link: impl Fn(&Artifact) -> bool,
        read: impl Fn(&Stat) -> io::Result<Option<Content>>,
    ) -> Result<Artifact, Error> {
        let failed = Error::io::<io::Error>(action, path);
        for _ in 0..TRIES {
            let before = fstat(source).map_err(|errno| failed(errno.into()))?;
            if let Some(known) = self.known.get(&before).filter(|known| link(known)) {
                return Ok(by_name(known, path));
            }
            self.count(&before, path)?;
            let content = read(&before).map_err(&failed)?.ok_or(Error::Cancelled)?;
            let after = fstat(source).map_err(|errno| failed(errno.into()))?;
            if FileStamp::of(&before) == FileStamp::of(&after) && content.bytes == size(&before) {
                return Ok(self.artifact(&after, path, content));
            }
        }
        Err(Error::changing(path))
    }

    /// Takes a file into account that is copied or read.
    fn count(&mut self, file: &Stat, path: &[u8]) -> Result<(), Error> {
        match (self.copies.take(file), self.holes.take(file)) {
            (true, true) => Ok(()),
            (false, _) => Err(Error::TooManyNames { path: text(path) }),
            (_, false) => Err(Error::Holes { path: text(path) }),
        }
    }

    /// The artifact that a file is, which is known from now on.
    fn artifact(&mut self, file: &Stat, path: &[u8], content: Content) -> Artifact {
        let Content { bytes, sha256, head } = content;
        let (mode, mime) = (ArtifactMode::of(file.st_mode), manifest::mime(path, &head));
        let (path, path_b64) = text_and_bytes(path);
        let artifact = Artifact { path, path_b64, bytes, sha256, mode, mime };
        self.known.add(file, artifact.clone());
        artifact
    }
}

/// An artifact by another name of its file.
fn by_name(artifact: &Artifact, path: &[u8]) -> Artifact {
    let (path, path_b64) = text_and_bytes(path);
    Artifact { path, path_b64, ..artifact.clone() }
}

/// The text of a symbolic link.
pub fn target_of(from: &mut Cursor<'_>, path: &[u8]) -> Result<Vec<u8>, Error> {
    let failed = Error::io("read", path);
    let (parent, name) = from.parent(path).map_err(&failed)?;
    let target = readlinkat(parent, name, Vec::new()).map_err(&failed)?;
    Ok(target.into_bytes())
}

/// Copies the file at `path` below one directory to the same path below another.
pub fn copy(
    from: &mut Cursor<'_>,
    to: &mut Cursor<'_>,
    path: &[u8],
    progress: &mut Progress,
    proceed: ContinueFn<'_>,
) -> Result<Artifact, Error> {
    let source = open(from, path)?;
    let root = to.root();
    let (parent, name) = to.parent(path).map_err(Error::io("copy", path))?;
    let link = |known: &Artifact| link_below(root, known.path(), (parent, name)).is_ok();
    progress.take(&source, "copy", path, link, |before| {
        let mut target = create(parent, name)?;
        let content = transfer(&source, &mut target, before, proceed)?;
        let mode = ArtifactMode::of(before.st_mode);
        fchmod(&target, Mode::from_raw_mode(mode.bits()))?;
        Ok(content)
    })
}

/// The file at `path` below a directory, as its copy would be.
pub fn describe(
    from: &mut Cursor<'_>,
    path: &[u8],
    progress: &mut Progress,
    proceed: ContinueFn<'_>,
) -> Result<Artifact, Error> {
    let source = open(from, path)?;
    progress.take(
        &source,
        "read",
        path,
        |_| true,
        |before| hash(&source, size(before).saturating_add(1), proceed),
    )
}

/// Creates a file in a directory of this crate, replacing one that an earlier try left.
fn create(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::openat(parent, name, flags, mode).map(|fd: OwnedFd| fd.into())
}

/// Copies the content. `None` if it was cancelled.
fn transfer(
    source: &File,
    target: &mut File,
    before: &Stat,
    proceed: ContinueFn<'_>,
) -> io::Result<Option<Content>> {
    // Such as a file of one hole, which the guest made as large as it liked.
    let space = rustix::fs::fstatvfs(&*target)?;
    if size(before) > space.f_bavail.saturating_mul(space.f_frsize) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    // A clone shares its blocks, and is one state of the file.
    if size(before) > 0 && rustix::fs::ioctl_ficlone(&*target, source).is_ok() {
        return hash(target, u64::MAX, proceed);
    }
    // Zeros become holes: they need no space.
    let mut length = 0;
    let zeros = vec![0; PIECE];
    let from = SparseReader::new(source)?;
    let copied = digest(from, size(before).saturating_add(1), proceed, |piece| {
        length += piece.len() as u64;
        match piece == &zeros[..piece.len()] {
            true => target.seek(SeekFrom::Start(length)).map(drop),
            false => target.write_all(piece),
        }
    })?;
    target.set_len(length)?;
    Ok(copied)
}

/// What a file contains.
pub struct Content {
    pub bytes: u64,
    /// In hexadecimal.
    pub sha256: String,
    /// Its beginning.
    pub head: Vec<u8>,
}

/// Reads at most `most` bytes from the beginning. `None` if it was cancelled.
pub fn hash(file: &File, most: u64, proceed: ContinueFn<'_>) -> io::Result<Option<Content>> {
    digest(SparseReader::new(file)?, most, proceed, |_| Ok(()))
}

/// As [`hash`], passing on each piece.
pub fn digest(
    file: impl Read,
    most: u64,
    proceed: ContinueFn<'_>,
    mut pass_on: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Option<Content>> {
    let mut buffer = vec![0; PIECE];
    let (mut hasher, mut bytes, mut head) = (Sha256::new(), 0, Vec::new());
    let mut file = file.take(most);
    loop {
        if !proceed() {
            return Ok(None);
        }
        let count = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let piece = &buffer[..count];
        if bytes == 0 {
            head = piece[..count.min(manifest::HEAD_BYTES)].to_vec();
        }
        hasher.update(piece);
        pass_on(piece)?;
        bytes += count as u64;
    }
    Ok(Some(Content { bytes, sha256: hex(&hasher.finalize()), head }))
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::MissingDir;
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn copy_of(dir: &Path, proceed: ContinueFn<'_>) -> Result<Artifact, Error> {
        copy_in(dir, &mut Progress::default(), proceed)
    }

    fn copy_in(
        dir: &Path,
        progress: &mut Progress,
        proceed: ContinueFn<'_>,
    ) -> Result<Artifact, Error> {
        fs::create_dir_all(dir.join("to")).unwrap();
        let [from, to] = ["from", "to"].map(|name| File::open(dir.join(name)).unwrap());
        let mut from = Cursor::new(from.as_fd(), MissingDir::Fail);
        let mut to = Cursor::new(to.as_fd(), MissingDir::Create);
        copy(&mut from, &mut to, b"f", progress, proceed)
    }

    #[test]
    fn file_that_changes_once_is_copied_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("from")).unwrap();
        let file = dir.path().join("from/f");
        fs::write(&file, "old content").unwrap();
        let calls = AtomicU64::new(0);
        let grow = || {
            if calls.fetch_add(1, Ordering::Relaxed) == 1 {
                fs::write(&file, "new").unwrap();
            }
            true
        };
        let artifact = copy_of(dir.path(), &grow).unwrap();
        let content = fs::read(dir.path().join("to/f")).unwrap();
        assert_eq!((artifact.bytes, &*content), (3, &b"new"[..]));
        assert_eq!(artifact.sha256, hex(&Sha256::digest(b"new")));
    }

    #[test]
    fn file_that_always_grows_is_an_error_that_names_it() {
        use std::io::Write as _;
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("from")).unwrap();
        let file = dir.path().join("from/f");
        fs::write(&file, "x").unwrap();
        let grow = || {
            let mut file = File::options().append(true).open(&file).unwrap();
            file.write_all(b"more").unwrap();
            true
        };
        let error = copy_of(dir.path(), &grow).unwrap_err();
        assert_eq!(error.to_string(), "'f' changes while it is copied");
    }

    #[test]
    fn file_larger_than_the_disk_is_refused_before_it_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("from")).unwrap();
        let hole = File::create(dir.path().join("from/f")).unwrap();
        // As large as its file system allows; a terabyte is more than the disk of a test has.
        hole.set_len(1 << 43).unwrap();
        let error = copy_in(dir.path(), &mut Progress::with_any_holes(), &|| true).unwrap_err();
        assert_eq!(error.kind(), sandbox_api::ErrorKind::DiskFull, "{error}");
        assert_eq!(fs::metadata(dir.path().join("to/f")).unwrap().len(), 0);
    }
}
