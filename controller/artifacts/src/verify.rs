//! An artifacts directory, compared with its manifest.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat};
use sandbox_api::ErrorKind;
use sandbox_api::artifacts::{
    Artifact, ArtifactManifest, ArtifactsCheck, CheckDifference, PathDifference,
};
use sandbox_dirfd::{Visit, WalkBounds, join, walk};

use crate::collect::complete;
use crate::copy::{self, hash};
use crate::cursor::{Cursor, MissingDir};
use crate::error::{Error, text};
use crate::{CHECKSUMS, ContinueFn, MANIFEST, MAX_DEPTH, manifest, sums};

/// The bounds of what is scanned outside of an io dir.
pub(crate) const SCAN: WalkBounds =
    WalkBounds { entries: 2_000_000, depth: MAX_DEPTH, time: Duration::from_secs(600) };

/// An artifacts directory with a manifest. What else is in it is not known to be right.
#[derive(Debug)]
pub struct ArtifactsDir {
    pub(crate) path: PathBuf,
    pub(crate) root: OwnedFd,
    pub(crate) manifest: ArtifactManifest,
    /// The content of its manifest and of its checksums, by their names.
    pub(crate) records: [(&'static str, Vec<u8>); 2],
}

/// How much of each file is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compare {
    /// Whether it is there.
    Names,
    /// Its content.
    Content,
}

impl ArtifactsDir {
    /// What its manifest says that is in it.
    pub const fn manifest(&self) -> &ArtifactManifest {
        &self.manifest
    }

    /// Opens a directory and reads its manifest.
    ///
    /// # Errors
    ///
    /// If it is no artifacts directory.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| Error::manifest(path, errno))?;
        let mut cursor = Cursor::new(root.as_fd(), MissingDir::Fail);
        let json = read(&mut cursor, MANIFEST).map_err(|error| match error {
            Error::Vanished { .. } => Error::manifest(path, "it has no manifest.json"),
            error => Error::manifest(path, format!("its manifest.json cannot be read: {error}")),
        })?;
        let manifest = manifest::decode(path, &json)?;
        let checksums = sums::checksums(&manifest, &json);
        let records = [(MANIFEST, json), (CHECKSUMS, checksums)];
        Ok(Self { path: path.to_owned(), root, manifest, records })
    }

    /// Compares the content of every file with the manifest. Modes and times do not count: they
    /// are lost on many ways between machines.
    ///
    /// # Errors
    ///
    /// If something cannot be read, or it was cancelled.
    pub fn verify(&self, proceed: ContinueFn<'_>) -> Result<ArtifactsCheck, Error> {
        self.compare(Compare::Content, proceed)
    }

    /// Fails with the first difference, if there is one.
    pub(crate) fn require(&self, compare: Compare, proceed: ContinueFn<'_>) -> Result<(), Error> {
        match self.compare(compare, proceed)?.differences.first() {
            Some(first) => Err(self.differs(first.change, first.path())),
            None => Ok(()),
        }
    }

    pub(crate) fn differs(&self, how: CheckDifference, path: &[u8]) -> Error {
        let (directory, how, file) = (self.path.display(), how.as_str(), text(path));
        Error::refused(
            ErrorKind::Usage,
            format!("{directory} differs from its manifest: {how} '{file}'"),
            Some("`sandboxctl artifacts verify DIR` lists all differences"),
        )
    }

    pub(crate) fn compare(
        &self,
        compare: Compare,
        proceed: ContinueFn<'_>,
    ) -> Result<ArtifactsCheck, Error> {
        let mut found = self.scan()?;
        let mut differences = Vec::new();
        let mut cursor = Cursor::new(self.root.as_fd(), MissingDir::Fail);
        for file in &self.manifest.files {
            let change = match found.remove(file.path()) {
                None => CheckDifference::Missing,
                Some(FileType::RegularFile)
                    if compare == Compare::Names || is_same(&mut cursor, file, proceed)? =>
                {
                    continue;
                }
                Some(_) => CheckDifference::Changed,
            };
            differences.push(PathDifference::new(file.path(), change));
        }
        found.remove(MANIFEST.as_bytes());
        let change = match found.remove(CHECKSUMS.as_bytes()) {
            None => Some(CheckDifference::Missing),
            Some(FileType::RegularFile) if read(&mut cursor, CHECKSUMS)? == self.records[1].1 => {
                None
            }
            Some(_) => Some(CheckDifference::Changed),
        };
        let changed = change.map(|change| PathDifference::new(CHECKSUMS.as_bytes(), change));
        differences.extend(changed);
        let unexpected = |path: &Vec<u8>| PathDifference::new(path, CheckDifference::Unexpected);
        differences.extend(found.keys().map(unexpected));
        differences.sort_by(|one, other| one.path().cmp(other.path()));
        let files = self.manifest.files.len() as u64;
        // A manifest may claim anything.
        let bytes = self.manifest.files.iter().fold(0_u64, |sum, it| sum.saturating_add(it.bytes));
        Ok(ArtifactsCheck { files, bytes, differences })
    }

    /// Everything in it that is not a directory.
    fn scan(&self) -> Result<BTreeMap<Vec<u8>, FileType>, Error> {
        let mut found = BTreeMap::new();
        let (_, coverage) = walk(&self.root, SCAN, |folder, name, stat| {
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind != FileType::Directory {
                found.insert(join(folder, name), kind);
            }
            Visit::Enter
        });
        complete(&self.path.display().to_string(), coverage)?;
        Ok(found)
    }
}

fn is_same(
    cursor: &mut Cursor<'_>,
    file: &Artifact,
    proceed: ContinueFn<'_>,
) -> Result<bool, Error> {
    let opened = copy::open(cursor, file.path())?;
    let failed = |error: std::io::Error| Error::io("read", file.path())(error);
    let stat = fstat(&opened).map_err(|errno| failed(errno.into()))?;
    if u64::try_from(stat.st_size) != Ok(file.bytes) {
        return Ok(false);
    }
    let most = file.bytes.saturating_add(1);
    let content = hash(&opened, most, proceed).map_err(failed)?.ok_or(Error::Cancelled)?;
    Ok(content.bytes == file.bytes && content.sha256 == file.sha256)
}

/// Reads a file of the artifacts directory itself.
fn read(cursor: &mut Cursor<'_>, name: &str) -> Result<Vec<u8>, Error> {
    let file: File = copy::open(cursor, name.as_bytes())?;
    let mut content = Vec::new();
    let failed = Error::io("read", name.as_bytes());
    file.take(manifest::MAX_BYTES).read_to_end(&mut content).map_err(failed)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::tests::Fixture;
    use std::fs;

    fn differences(place: &Fixture) -> Vec<(String, CheckDifference)> {
        let check = ArtifactsDir::open(&place.at("out")).unwrap().verify(&|| true).unwrap();
        check.differences.into_iter().map(|it| (it.path, it.change)).collect()
    }

    fn artifacts() -> Fixture {
        let place = Fixture::new();
        place.file("d/a", "12");
        place.file("d/b", "12");
        place.file("c", "12");
        place.collect(&["**"], "out").unwrap();
        place
    }

    #[test]
    fn missing_changed_and_unexpected_files_are_found() {
        let place = artifacts();
        assert_eq!(differences(&place), []);
        fs::write(place.at("out/d/a"), "34").unwrap();
        fs::write(place.at("out/d/b"), "123").unwrap();
        fs::write(place.at("out/d/new"), "").unwrap();
        fs::remove_file(place.at("out/c")).unwrap();
        let expected = [
            ("c", CheckDifference::Missing),
            ("d/a", CheckDifference::Changed),
            ("d/b", CheckDifference::Changed),
            ("d/new", CheckDifference::Unexpected),
        ];
        assert_eq!(differences(&place), expected.map(|(path, how)| (path.to_owned(), how)));
    }

    #[test]
    fn link_in_place_of_a_file_is_a_change_whatever_it_leads_to() {
        let place = artifacts();
        fs::rename(place.at("out/c"), place.at("same")).unwrap();
        std::os::unix::fs::symlink(place.at("same"), place.at("out/c")).unwrap();
        fs::rename(place.at("out/d"), place.at("d")).unwrap();
        std::os::unix::fs::symlink(place.at("d"), place.at("out/d")).unwrap();
        let expected = [
            ("c", CheckDifference::Changed),
            ("d", CheckDifference::Unexpected),
            ("d/a", CheckDifference::Missing),
            ("d/b", CheckDifference::Missing),
        ];
        assert_eq!(differences(&place), expected.map(|(path, how)| (path.to_owned(), how)));
    }

    #[test]
    fn manifest_that_does_not_fit_its_checksums_is_a_change() {
        let place = artifacts();
        let json = fs::read_to_string(place.at("out/manifest.json")).unwrap();
        fs::write(place.at("out/manifest.json"), json.replace("0644", "0755")).unwrap();
        let changed = [(CHECKSUMS.to_owned(), CheckDifference::Changed)];
        assert_eq!(differences(&place), changed);
        fs::remove_file(place.at("out/SHA256SUMS")).unwrap();
        assert_eq!(differences(&place), [(CHECKSUMS.to_owned(), CheckDifference::Missing)]);
        fs::remove_file(place.at("out/manifest.json")).unwrap();
        let error = ArtifactsDir::open(&place.at("out")).unwrap_err();
        assert!(error.to_string().contains("it has no manifest.json"), "{error}");
        assert!(ArtifactsDir::open(&place.at("nowhere")).is_err());
    }
}
