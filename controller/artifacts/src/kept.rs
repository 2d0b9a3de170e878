//! Files that a run left in a directory of its own, which began empty: listed as changes, and
//! archived. Without a manifest, so that nothing is hashed before it is requested.

use std::io::{self, BufWriter, Read, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::fs::{FileType, Stat};
use sandbox_api::artifacts::ArtifactMode;
use sandbox_api::changes::{Change, ChangeManifest, ChangeOp, ChangeType};
use sandbox_dirfd::{
    HoleAllowance, KnownFiles, ScanCoverage, SparseReader, Visit, WalkBounds, hex, join, walk,
};
use sha2::{Digest as _, Sha256};

use crate::archive::{Added, ArchiveFormat, Tar, failed, tar_gzip, tar_zstd};
use crate::copy::{Progress, describe, open, target_of};
use crate::cursor::{Cursor, MissingDir};
use crate::error::text;
use crate::{ContinueFn, Error, MAX_DEPTH};

/// The files that a run left.
#[derive(Debug, Clone, Copy)]
pub struct KeptFiles<'a> {
    root: BorrowedFd<'a>,
    /// The maximum number of entries.
    most: u64,
}

/// An entry, by its path.
type Entry = (Vec<u8>, Stat);

impl<'a> KeptFiles<'a> {
    /// The files below `root`, of which at most `most` are looked at.
    pub const fn new(root: BorrowedFd<'a>, most: u64) -> Self {
        Self { root, most }
    }

    /// Everything below the directory, sorted by path, and whether there is more.
    pub fn entries(&self) -> (Vec<Entry>, bool) {
        let bounds =
            WalkBounds { entries: self.most, depth: MAX_DEPTH, time: Duration::from_secs(10) };
        let mut entries = Vec::new();
        let (_, coverage) = walk(self.root, bounds, |folder, name, stat| {
            entries.push((join(folder, name), *stat));
            Visit::Enter
        });
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        (entries, coverage != ScanCoverage::All)
    }

    /// The change manifest: everything was created.
    ///
    /// # Errors
    ///
    /// [`Error`] if something cannot be read or changes meanwhile, or if it was cancelled.
    pub fn changes(&self, proceed: ContinueFn<'_>) -> Result<ChangeManifest, Error> {
        let (entries, truncated) = self.entries();
        let mut from = Cursor::new(self.root, MissingDir::Fail);
        let mut progress = Progress::default();
        let mut changes = Vec::with_capacity(entries.len());
        for (path, stat) in entries {
            if !proceed() {
                return Err(Error::Cancelled);
            }
            changes.push(change(&mut from, &path, &stat, &mut progress, proceed)?);
        }
        Ok(ChangeManifest { changes, truncated, ..ChangeManifest::default() })
    }

    /// Writes a tar archive of the regular files, the directories, and the symbolic links, which are not
    /// followed.
    ///
    /// # Errors
    ///
    /// [`Error::TooMany`] if there are more entries than may be looked at, [`Error::Holes`] if the files have
    /// more holes than are read: nothing was written then.
    /// [`Error`] if something cannot be read or written or changes meanwhile, or if it was cancelled: the
    /// archive is incomplete then.
    pub fn archive(
        &self,
        format: ArchiveFormat,
        to: impl Write + Send,
        proceed: ContinueFn<'_>,
    ) -> Result<(), Error> {
        let (entries, truncated) = self.entries();
        if truncated {
            return Err(Error::TooMany { most: self.most });
        }
        check_holes(&entries)?;
        let to = BufWriter::with_capacity(64 << 10, to);
        let fill = |archive: &mut dyn Tar| self.fill(&entries, archive, proceed);
        match format {
            ArchiveFormat::TarGzip => tar_gzip(to, fill),
            ArchiveFormat::TarZstd => tar_zstd(to, fill),
            ArchiveFormat::Zip => Err(failed(io::ErrorKind::Unsupported.into())),
        }
    }

    fn fill(
        &self,
        entries: &[Entry],
        archive: &mut dyn Tar,
        proceed: ContinueFn<'_>,
    ) -> Result<(), Error> {
        let mut from = Cursor::new(self.root, MissingDir::Fail);
        let mut added = Added::default();
        for (path, stat) in entries {
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {}
                FileType::Directory => {
                    archive.directory(path).map_err(failed)?;
                    continue;
                }
                FileType::Symlink => {
                    archive.symlink(path, &target_of(&mut from, path)?).map_err(failed)?;
                    continue;
                }
                _ => continue,
            }
            let file = open(&mut from, path)?;
            let stat = rustix::fs::fstat(&file).map_err(Error::io("read", path))?;
            if added.link(archive, path, &stat, |it: &&Vec<u8>| it)?.is_some() {
                continue;
            }
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            let inner = SparseReader::new(&file).map_err(failed)?.take(size);
            let mut content = Exactly { inner, left: size, proceed };
            archive.add(path, ArtifactMode::of(stat.st_mode), size, &mut content).map_err(
                |error| match proceed() {
                    true if content.left > 0 && error.kind() == io::ErrorKind::UnexpectedEof => {
                        Error::changing(path)
                    }
                    true => failed(error),
                    false => Error::Cancelled,
                },
            )?;
            added.known.add(&stat, path);
        }
        Ok(())
    }
}

/// An archive is written as it is read, so that what is too much must be known before.
fn check_holes(entries: &[Entry]) -> Result<(), Error> {
    let (holes, mut known) = (HoleAllowance::default(), KnownFiles::default());
    for (path, stat) in entries {
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && known.get(stat).is_none()
        {
            known.add(stat, ());
            if !holes.take(stat) {
                return Err(Error::Holes { path: text(path) });
            }
        }
    }
    Ok(())
}

/// A file of which exactly so many bytes are read: a header has promised them.
struct Exactly<'a> {
    inner: io::Take<SparseReader<'a>>,
    left: u64,
    proceed: ContinueFn<'a>,
}

impl Read for Exactly<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !(self.proceed)() {
            return Err(io::Error::other("cancelled"));
        }
        let count = self.inner.read(buffer)?;
        if count == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left = self.left.saturating_sub(count as u64);
        Ok(count)
    }
}

fn change(
    from: &mut Cursor<'_>,
    path: &[u8],
    stat: &Stat,
    progress: &mut Progress,
    proceed: ContinueFn<'_>,
) -> Result<Change, Error> {
    let mode = Some(format!("{:04o}", stat.st_mode & 0o7777));
    let mut change = Change {
        path: path.into(),
        op: ChangeOp::Created,
        kind: ChangeType::Other,
        bytes: None,
        sha256: None,
        mode,
        mime: None,
        target: None,
        from: None,
        before: None,
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            change.kind = ChangeType::File;
            match describe(from, path, progress, proceed) {
                Ok(file) => {
                    change.bytes = Some(file.bytes);
                    change.sha256 = Some(file.sha256);
                    change.mime = Some(file.mime);
                }
                Err(Error::Holes { .. } | Error::TooManyNames { .. }) => {
                    change.bytes = u64::try_from(stat.st_size).ok()
                }
                Err(error) => return Err(error),
            }
        }
        FileType::Directory => change.kind = ChangeType::Directory,
        FileType::Symlink => {
            let target = target_of(from, path)?;
            change.kind = ChangeType::Symlink;
            change.bytes = Some(target.len() as u64);
            change.sha256 = Some(hex(&Sha256::digest(&target)));
            change.mode = None;
            change.target = Some(String::from_utf8_lossy(&target).into_owned());
        }
        _ => {}
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::tests::Fixture;
    use rustix::fs::Mode;
    use std::fs::{self, File};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    fn tree() -> (Fixture, File) {
        let place = Fixture::new();
        place.file("d/a.txt", "hello\n");
        place.file("manifest.json", "mine");
        symlink("/etc/passwd", place.at("io/link")).unwrap();
        let root = File::open(place.at("io")).unwrap();
        (place, root)
    }

    #[test]
    fn everything_in_a_directory_that_began_empty_was_created() {
        let (_place, root) = tree();
        let manifest = KeptFiles::new(root.as_fd(), 100).changes(&|| true).unwrap();
        let shown: Vec<_> = manifest
            .changes
            .iter()
            .map(|it| (it.path.as_bytes(), it.kind, it.bytes, it.target.as_deref()))
            .collect();
        let expected = [
            (&b"d"[..], ChangeType::Directory, None, None),
            (b"d/a.txt", ChangeType::File, Some(6), None),
            (b"link", ChangeType::Symlink, Some(11), Some("/etc/passwd")),
            (b"manifest.json", ChangeType::File, Some(4), None),
        ];
        assert_eq!(shown, expected);
        assert!(!manifest.truncated);
        let few = KeptFiles::new(root.as_fd(), 2).changes(&|| true).unwrap();
        assert!(few.truncated && few.changes.len() == 2);
    }

    #[test]
    fn archive_has_files_empty_directories_and_links_as_they_are() {
        let (place, root) = tree();
        let long = "far//".repeat(50);
        fs::create_dir_all(place.at("io/empty/inner")).unwrap();
        symlink(&long, place.at("io/d/long")).unwrap();
        symlink("../d", place.at("io/empty/up")).unwrap();
        let slashes = format!("{}x", "/".repeat(200));
        symlink(&slashes, place.at("io/d/slashes")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, place.at("io/fifo"), Mode::RUSR).unwrap();
        let path = place.at("a.tar.gz");
        let kept = KeptFiles::new(root.as_fd(), 100);
        kept.archive(ArchiveFormat::TarGzip, File::create(&path).unwrap(), &|| true).unwrap();
        let listed = Command::new("tar").arg("tzf").arg(&path).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&listed.stdout),
            "d/\nd/a.txt\nd/long\nd/slashes\nempty/\nempty/inner/\nempty/up\nlink\nmanifest.json\n"
        );
        fs::create_dir(place.at("out")).unwrap();
        let mut unpack = Command::new("tar");
        unpack.arg("xzf").arg(&path).arg("-C").arg(place.at("out"));
        assert!(unpack.status().unwrap().success());
        for (link, target) in [
            ("link", "/etc/passwd"),
            ("d/long", &*long),
            ("d/slashes", &*slashes),
            ("empty/up", "../d"),
        ] {
            let read = fs::read_link(place.at("out").join(link)).unwrap();
            assert_eq!(read.to_str(), Some(target));
        }
        assert!(place.at("out/empty/inner").is_dir());
        let mut zstd = Vec::new();
        kept.archive(ArchiveFormat::TarZstd, &mut zstd, &|| true).unwrap();
        assert_eq!(zstd[..4], [0x28, 0xb5, 0x2f, 0xfd]);
        let cancelled = kept.archive(ArchiveFormat::TarGzip, io::sink(), &|| false);
        assert!(matches!(cancelled, Err(Error::Cancelled)));
        let mut nothing = Vec::new();
        let few = KeptFiles::new(root.as_fd(), 2);
        let refused = few.archive(ArchiveFormat::TarGzip, &mut nothing, &|| true);
        assert!(matches!(refused, Err(Error::TooMany { most: 2 })) && nothing.is_empty());
        // As large together, but none alone; another name of a file is stored as a link.
        let hole = |name: &str| {
            let file = File::create(place.at(&format!("io/{name}"))).unwrap();
            file.set_len(HoleAllowance::BYTES / 2 + 1).unwrap();
        };
        hole("hole");
        fs::hard_link(place.at("io/hole"), place.at("io/hole-too")).unwrap();
        let entries = || KeptFiles::new(root.as_fd(), 100).entries().0;
        assert!(check_holes(&entries()).is_ok());
        hole("other");
        let refused = kept.archive(ArchiveFormat::TarGzip, &mut nothing, &|| true);
        assert!(matches!(refused, Err(Error::Holes { .. })) && nothing.is_empty());
    }
}
