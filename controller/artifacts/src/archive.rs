//! Archives of an artifacts directory. Equal trees give equal bytes: the order, the times and the
//! owners are fixed, and modes are the manifest's. A file that has several names is stored once, where
//! the format has links.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, PipeReader, Read, Seek, Write};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::thread;

use flate2::{Compression, GzBuilder};
use rustix::fs::{Stat, fstat};
use ruzstd::encoding::{CompressionLevel, FrameCompressor};
use sandbox_api::ErrorKind;
use sandbox_api::artifacts::{Artifact, ArtifactMode, CheckDifference};
use sandbox_dirfd::{CopyAllowance, KnownFiles, SparseReader, hex};
use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, System, ZipWriter};

use crate::copy;
use crate::cursor::{Cursor, MissingDir};
use crate::error::text;
use crate::verify::{ArtifactsDir, Compare};
use crate::{ContinueFn, Error};

/// The time of every file: 1980-01-01, the earliest that each format has.
const TIME: u64 = 315_532_800;
/// The name of a tar entry that has a long link target.
const LONG_LINK: &[u8] = b"././@LongLink";
/// The size from which the zip format needs larger numbers.
const LARGE: u64 = u32::MAX as u64;

/// The format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveFormat {
    /// A tar archive, compressed as zstd.
    TarZstd,
    /// A tar archive, compressed as gzip.
    TarGzip,
    /// A zip archive.
    Zip,
}

impl ArchiveFormat {
    /// The format that a file's name ends with.
    pub fn of(file: &Path) -> Option<Self> {
        let name = file.file_name()?.to_string_lossy().to_ascii_lowercase();
        let formats = [
            (".tar.zst", Self::TarZstd),
            (".tar.gz", Self::TarGzip),
            (".tgz", Self::TarGzip),
            (".zip", Self::Zip),
        ];
        formats.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, format)| format)
    }
}

impl ArtifactsDir {
    /// Writes an archive with every file, the manifest and the checksums. It is verified while it
    /// is read.
    ///
    /// # Errors
    ///
    /// If the directory is not as its manifest says, if something cannot be read or written, or if
    /// it was cancelled. The archive is incomplete then.
    pub fn archive(
        &self,
        format: ArchiveFormat,
        to: File,
        proceed: ContinueFn<'_>,
    ) -> Result<(), Error> {
        self.require(Compare::Names, proceed)?;
        match format {
            ArchiveFormat::TarZstd => {
                tar_zstd(BufWriter::new(to), |archive| self.write_to(archive, proceed))
            }
            ArchiveFormat::TarGzip => {
                tar_gzip(BufWriter::new(to), |archive| self.write_to(archive, proceed))
            }
            ArchiveFormat::Zip => self.zip(to, proceed),
        }
    }

    fn zip(&self, to: File, proceed: ContinueFn<'_>) -> Result<(), Error> {
        // Other names are other paths for some programs, or none.
        let is_plain = |path: &str| !path.contains(|it: char| it.is_control() || it == '\\');
        let odd =
            self.manifest.files.iter().find(|it| it.path_b64.is_some() || !is_plain(&it.path));
        if let Some(odd) = odd {
            let message = format!("a zip archive cannot hold the name '{}'", odd.path);
            let hint = ".tar.zst and .tar.gz archives hold any name";
            return Err(Error::refused(ErrorKind::Usage, message, Some(hint)));
        }
        let mut zip = Zip(ZipWriter::new(BufWriter::new(to)));
        if let Err(error) = self.write_to(&mut zip, proceed) {
            // Dropped, it would try to complete the archive, and print that it cannot.
            std::mem::forget(zip);
            return Err(error);
        }
        let written = zip.0.finish().map_err(io::Error::from);
        written.and_then(|mut to| to.flush()).map_err(failed)
    }

    fn write_to(&self, archive: &mut dyn Archive, proceed: ContinueFn<'_>) -> Result<(), Error> {
        for (name, content) in &self.records {
            let size = content.len() as u64;
            let added = archive.add(name.as_bytes(), ArtifactMode::Plain, size, &mut &content[..]);
            added.map_err(failed)?;
        }
        let mut cursor = Cursor::new(self.root.as_fd(), MissingDir::Fail);
        let mut added = Added::default();
        for file in &self.manifest.files {
            let path = file.path();
            let opened = copy::open(&mut cursor, path)?;
            let stat = fstat(&opened).map_err(Error::io("read", path))?;
            if let Some(first) = added.link(archive, path, &stat, |it: &&Artifact| it.path())? {
                let content = |it: &Artifact| (it.bytes, it.sha256.clone(), it.mode);
                if content(first) != content(file) {
                    return Err(self.differs(CheckDifference::Changed, path));
                }
                continue;
            }
            let content = SparseReader::new(&opened).map_err(failed)?.take(file.bytes);
            let (hasher, bytes, is_cancelled) = (Sha256::new(), 0, false);
            let mut reader = Hashed { content, hasher, bytes, proceed, is_cancelled };
            let written = archive.add(path, file.mode, file.bytes, &mut reader);
            if reader.is_cancelled {
                return Err(Error::Cancelled);
            }
            written.map_err(failed)?;
            let is_longer = reader.content.into_inner().read(&mut [0]).map_err(failed)? > 0;
            let sha256 = hex(&reader.hasher.finalize());
            if is_longer || reader.bytes != file.bytes || sha256 != file.sha256 {
                return Err(self.differs(CheckDifference::Changed, path));
            }
            added.known.add(&stat, file);
        }
        Ok(())
    }
}

/// The files that an archive has, for those with several names.
pub struct Added<T> {
    pub known: KnownFiles<T>,
    copies: CopyAllowance,
}

impl<T> Default for Added<T> {
    fn default() -> Self {
        Self { known: KnownFiles::default(), copies: CopyAllowance::default() }
    }
}

impl<T> Added<T> {
    /// Adds another name of a file that the archive has, and returns that; nothing if the file itself
    /// is to be added.
    pub fn link(
        &mut self,
        archive: &mut dyn Archive,
        path: &[u8],
        file: &Stat,
        path_of: impl Fn(&T) -> &[u8],
    ) -> Result<Option<&T>, Error> {
        if let Some(first) = self.known.get(file)
            && archive.link(path, path_of(first)).map_err(failed)?
        {
            return Ok(Some(first));
        }
        match self.copies.take(file) {
            true => Ok(None),
            false => Err(Error::TooManyNames { path: text(path) }),
        }
    }
}

/// Writes a tar archive that is compressed as gzip.
pub fn tar_gzip(
    to: impl Write,
    fill: impl FnOnce(&mut dyn Tar) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut tar = tar::Builder::new(GzBuilder::new().mtime(0).write(to, Compression::default()));
    fill(&mut tar)?;
    let gzip = tar.into_inner().map_err(failed)?;
    gzip.finish().and_then(|mut to| to.flush()).map_err(failed)
}

/// Writes a tar archive that is compressed as zstd. The compressor reads, and so has a thread.
pub fn tar_zstd(
    to: impl Write + Send,
    fill: impl FnOnce(&mut dyn Tar) -> Result<(), Error>,
) -> Result<(), Error> {
    let (reader, writer) = io::pipe().map_err(failed)?;
    thread::scope(|scope| {
        let compressor = scope.spawn(move || compress(reader, to));
        let write = |writer| {
            let mut tar = tar::Builder::new(BufWriter::new(writer));
            fill(&mut tar)?;
            tar.into_inner().and_then(|mut pipe| pipe.flush()).map_err(failed)
        };
        let written = write(writer);
        let compressed =
            compressor.join().unwrap_or_else(|_| Err(io::Error::other("the compressor failed")));
        match (written, compressed) {
            // The pipe is then broken for that reason.
            (Err(Error::Archive { .. }) | Ok(()), Err(error)) => Err(failed(error)),
            (written, _) => written,
        }
    })
}

/// A file that is hashed as it is read.
struct Hashed<'a> {
    content: io::Take<SparseReader<'a>>,
    hasher: Sha256,
    bytes: u64,
    proceed: ContinueFn<'a>,
    is_cancelled: bool,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !(self.proceed)() {
            self.is_cancelled = true;
            return Err(io::Error::other("cancelled"));
        }
        let count = self.content.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

/// An archive that is being written.
pub trait Archive {
    /// Adds a file.
    fn add(
        &mut self,
        path: &[u8],
        mode: ArtifactMode,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()>;

    /// Adds another name of a file. `false` if the format has no such thing.
    fn link(&mut self, path: &[u8], first: &[u8]) -> io::Result<bool>;
}

/// A tar archive that is being written.
pub trait Tar: Archive {
    /// Adds a directory.
    fn directory(&mut self, path: &[u8]) -> io::Result<()>;

    /// Adds a symbolic link with its text, wherever that leads.
    fn symlink(&mut self, path: &[u8], target: &[u8]) -> io::Result<()>;
}

impl<W: Write> Archive for tar::Builder<W> {
    fn add(
        &mut self,
        path: &[u8],
        mode: ArtifactMode,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let mut header = header(tar::EntryType::Regular, mode);
        header.set_size(size);
        self.append_data(&mut header, OsStr::from_bytes(path), content)
    }

    fn link(&mut self, path: &[u8], first: &[u8]) -> io::Result<bool> {
        let mut header = header(tar::EntryType::Link, ArtifactMode::Plain);
        let [path, first] = [path, first].map(OsStr::from_bytes);
        self.append_link(&mut header, path, first).map(|()| true)
    }
}

impl<W: Write> Tar for tar::Builder<W> {
    fn directory(&mut self, path: &[u8]) -> io::Result<()> {
        let mut header = header(tar::EntryType::Directory, ArtifactMode::Executable);
        let path = [path, b"/"].concat();
        self.append_data(&mut header, OsStr::from_bytes(&path), io::empty())
    }

    fn symlink(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        let mut header = header(tar::EntryType::Symlink, ArtifactMode::Executable);
        let most = header.as_old().linkname.len();
        if target.len() > most {
            // As GNU tar does. The library does so too, but not if the target is short without slashes that
            // stand side by side: then it stores another one.
            let mut long = self::header(tar::EntryType::GNULongLink, ArtifactMode::Plain);
            long.as_old_mut().name[..LONG_LINK.len()].copy_from_slice(LONG_LINK);
            long.set_size(target.len() as u64 + 1);
            long.set_cksum();
            self.append(&long, &*[target, b"\0"].concat())?;
        }
        header.set_link_name_literal(&target[..target.len().min(most)])?;
        self.append_data(&mut header, OsStr::from_bytes(path), io::empty())
    }
}

fn header(kind: tar::EntryType, mode: ArtifactMode) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode.bits());
    header.set_mtime(TIME);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header
}

/// A writer of the zip format.
struct Zip<W: Write + Seek>(ZipWriter<W>);

impl<W: Write + Seek> Archive for Zip<W> {
    fn add(
        &mut self,
        path: &[u8],
        mode: ArtifactMode,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .last_modified_time(DateTime::default())
            .unix_permissions(mode.bits())
            .system(System::Unix)
            .large_file(size >= LARGE)
            .name(path);
        self.0.start_file_with_options(options)?;
        io::copy(content, &mut self.0).map(drop)
    }

    fn link(&mut self, _path: &[u8], _first: &[u8]) -> io::Result<bool> {
        Ok(false)
    }
}

/// Compresses what it reads. The compressor panics at an error, so it sees the end of its input
/// instead.
fn compress(from: PipeReader, to: impl Write) -> io::Result<()> {
    let error = RefCell::new(None);
    let mut compressor = FrameCompressor::new(CompressionLevel::Fastest);
    compressor.set_source(Guarded { inner: from, error: &error });
    compressor.set_drain(Guarded { inner: to, error: &error });
    compressor.compress();
    let drain = compressor.take_drain();
    drop(compressor);
    let mut to = drain.map(|drain| drain.inner);
    match error.into_inner() {
        Some(error) => Err(error),
        None => to.as_mut().map_or(Ok(()), Write::flush),
    }
}

/// An end of the compressor, which keeps the first error of both.
struct Guarded<'a, T> {
    inner: T,
    error: &'a RefCell<Option<io::Error>>,
}

impl<T: Read> Read for Guarded<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.error.borrow().is_some() {
                return Ok(0);
            }
            match self.inner.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => *self.error.borrow_mut() = Some(error),
                read => return read,
            }
        }
    }
}

impl<T: Write> Write for Guarded<'_, T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.error.borrow().is_none()
            && let Err(error) = self.inner.write_all(buffer)
        {
            *self.error.borrow_mut() = Some(error);
        }
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn failed(source: io::Error) -> Error {
    Error::Archive { source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::tests::Fixture;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    const FORMATS: [(&str, ArchiveFormat); 3] = [
        ("a.tar.zst", ArchiveFormat::TarZstd),
        ("a.tar.gz", ArchiveFormat::TarGzip),
        ("a.zip", ArchiveFormat::Zip),
    ];

    fn archive(place: &Fixture, dir: &str, name: &str) -> Result<Vec<u8>, Error> {
        let format = ArchiveFormat::of(Path::new(name)).unwrap();
        let to = File::create(place.at(name)).unwrap();
        ArtifactsDir::open(&place.at(dir))?.archive(format, to, &|| true)?;
        Ok(fs::read(place.at(name)).unwrap())
    }

    /// A name that only tar archives hold.
    const ODD: &[u8] = b"new\nline\\and\xff";

    /// Files with odd contents.
    fn tree() -> Fixture {
        let place = Fixture::new();
        place.file("d/program", "#!/bin/sh\n");
        fs::set_permissions(place.at("io/d/program"), Permissions::from_mode(0o700)).unwrap();
        place.file([&b"long"[..], &b"/directory-name".repeat(20), b"/file"].concat(), "x");
        place.file("caf\u{e9} d\u{2014}sh", "");
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()[0]
        });
        place.file("noise.bin", noise.take(700_000).collect::<Vec<_>>());
        place.file("zeros.bin", vec![0; 1 << 20]);
        place
    }

    #[test]
    fn equal_trees_give_equal_bytes() {
        let place = tree();
        place.collect(&["**"], "one").unwrap();
        // Another order of creation, other times and modes.
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5000);
        let file = File::options().append(true).open(place.at("io/noise.bin")).unwrap();
        file.set_modified(later).unwrap();
        fs::set_permissions(place.at("io/d/program"), Permissions::from_mode(0o4777)).unwrap();
        place.collect(&["**"], "other").unwrap();
        for (name, _) in FORMATS {
            let one = archive(&place, "one", name).unwrap();
            assert_eq!(one, archive(&place, "other", name).unwrap(), "{name}");
            assert!(one.len() > 500_000 && one.len() < 1_000_000, "{name}: {}", one.len());
        }
    }

    #[test]
    fn archives_are_read_back_by_other_programs() {
        let place = tree();
        place.collect(&["**"], "plain").unwrap();
        place.file(ODD, "x");
        place.collect(&["**"], "odd").unwrap();
        let error = archive(&place, "odd", "a.zip").unwrap_err().to_string();
        assert!(error.starts_with("a zip archive cannot hold the name"), "{error}");
        for (name, format) in FORMATS {
            let dir = if format == ArchiveFormat::Zip { "plain" } else { "odd" };
            archive(&place, dir, name).unwrap();
            let to = place.at(&format!("from-{name}"));
            fs::create_dir(&to).unwrap();
            let command = match name {
                "a.tar.zst" => "zstd -dc ../a.tar.zst | tar x",
                "a.tar.gz" => "tar xzf ../a.tar.gz",
                _ => "python3 -m zipfile -t ../a.zip && unzip -q ../a.zip",
            };
            let mut shell = Command::new("sh");
            let done = shell.args(["-ec", command]).current_dir(&to).output().unwrap();
            assert!(done.status.success(), "{name}: {done:?}");
            let check = ArtifactsDir::open(&to).unwrap().verify(&|| true).unwrap();
            assert_eq!(check.differences, [], "{name}");
            let mode = fs::metadata(to.join("d/program")).unwrap().permissions().mode();
            assert_eq!(mode & 0o111, 0o111, "{name}");
        }
    }

    #[test]
    fn file_with_several_names_is_stored_once_and_unpacked_with_them() {
        use std::os::unix::fs::MetadataExt as _;
        let place = tree();
        let noise = place.at("io/noise.bin");
        for number in 0..9 {
            let parents = "d/".repeat(number * 10);
            fs::create_dir_all(place.at(&format!("io/{parents}"))).unwrap();
            fs::hard_link(&noise, place.at(&format!("io/{parents}name{number}"))).unwrap();
        }
        place.collect(&["**"], "out").unwrap();
        for (name, command) in
            [("a.tar.zst", "zstd -dc ../a.tar.zst | tar x"), ("a.tar.gz", "tar xzf ../a.tar.gz")]
        {
            let size = archive(&place, "out", name).unwrap().len();
            assert!(size < 1_000_000, "{name}: {size}");
            let to = place.at(&format!("from-{name}"));
            fs::create_dir(&to).unwrap();
            let mut shell = Command::new("sh");
            let done = shell.args(["-ec", command]).current_dir(&to).output().unwrap();
            assert!(done.status.success(), "{name}: {done:?}");
            let check = ArtifactsDir::open(&to).unwrap().verify(&|| true).unwrap();
            assert_eq!(check.differences, [], "{name}");
            assert_eq!(fs::metadata(to.join("noise.bin")).unwrap().nlink(), 10, "{name}");
        }
        // A zip archive has no links.
        assert!(archive(&place, "out", "a.zip").unwrap().len() > 7_000_000);
    }

    #[test]
    fn directory_that_does_not_verify_is_not_archived() {
        for (name, _) in FORMATS {
            let place = tree();
            place.collect(&["**"], "out").unwrap();
            let mut changed = fs::read(place.at("out/noise.bin")).unwrap();
            let changes: [fn(&mut Vec<u8>); 3] = [
                |content| content[9] ^= 1,
                |content| content.push(0),
                |content| content.truncate(9),
            ];
            for change in changes {
                change(&mut changed);
                fs::write(place.at("out/noise.bin"), &changed).unwrap();
                let error = archive(&place, "out", name).unwrap_err().to_string();
                assert!(
                    error.contains("differs from its manifest: changed 'noise.bin'"),
                    "{error}"
                );
            }
            fs::write(place.at("out/new"), "").unwrap();
            let error = archive(&place, "out", name).unwrap_err().to_string();
            assert!(error.contains("unexpected 'new'"), "{error}");
        }
    }

    #[test]
    fn full_disk_is_an_error_and_no_panic() {
        let place = tree();
        place.collect(&["**"], "out").unwrap();
        for (name, format) in FORMATS {
            let full = File::options().read(true).write(true).open("/dev/full").unwrap();
            let dir = ArtifactsDir::open(&place.at("out")).unwrap();
            let error = dir.archive(format, full, &|| true).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DiskFull, "{name}: {error:?}");
        }
    }

    #[test]
    fn format_is_known_by_the_name() {
        for (name, format) in FORMATS {
            assert_eq!(ArchiveFormat::of(Path::new(&format!("x/{name}"))), Some(format));
        }
        assert_eq!(ArchiveFormat::of(Path::new("A.TGZ")), Some(ArchiveFormat::TarGzip));
        assert_eq!(ArchiveFormat::of(Path::new("a.tar")), None);
        assert_eq!(ArchiveFormat::of(Path::new("x.zip/a")), None);
    }
}
