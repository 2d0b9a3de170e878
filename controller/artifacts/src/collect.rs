//! Copying artifacts out of an io dir: found, copied, recorded, and then in their place at once.

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat};
use sandbox_api::ErrorKind;
use sandbox_api::artifacts::{ArtifactManifest, LineDifference, OmitReason, OmittedEntry};
use sandbox_dirfd::{Identity, ScanCoverage, Visit, WalkBounds, join, open_directory, walk};

use crate::copy::{Progress, copy, describe, open};
use crate::cursor::{Cursor, MissingDir};
use crate::destination::{Destination, Staging};
use crate::error::{Error, text};
use crate::lines::Reference;
use crate::{CHECKSUMS, ContinueFn, MANIFEST, MAX_DEPTH, Selection, is_reserved, manifest, sums};

/// How much of an io dir is scanned.
const SCAN: WalkBounds =
    WalkBounds { entries: 2_000_000, depth: MAX_DEPTH, time: Duration::from_secs(30) };

/// What is to be copied, and where to.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which files.
    pub selection: Selection,
    /// The artifacts directory; `None` if they are listed only, with their digests.
    pub destination: Option<Destination>,
    /// What a glob without a match is.
    pub unmatched: Unmatched,
    /// What the files are compared with, if they are listed only.
    pub reference: Option<Reference>,
}

/// What a glob is that no file matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmatched {
    /// An error: nothing is copied.
    Refuse,
    /// Reported.
    Allow,
}

/// A path as it may be shown: without secrets.
pub type Shown<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// What was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    /// The content of `manifest.json`.
    pub manifest: ArtifactManifest,
    /// The globs that no file matches.
    pub unmatched: Vec<String>,
    /// The first line that differs from the reference.
    pub line: Option<LineDifference>,
}

impl Collected {
    /// The number of files.
    pub fn files(&self) -> u64 {
        self.manifest.files.len() as u64
    }

    /// The bytes of all files together.
    pub fn bytes(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.bytes).sum()
    }
}

/// Copies the selected files of an io dir to the destination, with their manifest and checksums:
/// all of them or nothing. At most `most` entries may match. A name that `shown` changes is an error:
/// it would stand in the manifest.
///
/// # Errors
///
/// [`Error`]. The destination is then as it was.
pub fn collect(
    io_dir: BorrowedFd<'_>,
    request: &Request,
    most: u64,
    shown: Shown<'_>,
    proceed: ContinueFn<'_>,
) -> Result<Collected, Error> {
    let Request { selection, destination, unmatched, reference } = request;
    // Its descriptor may be one that only names it.
    let root = open_directory(io_dir, ".").map_err(Error::io("read", b"."))?;
    // A listing without copies writes no manifest.
    let reserves = destination.is_some();
    let found = find(root.as_fd(), selection, most, reserves)?;
    // Omitted entries are masked before any output names them.
    let omitted = found.omitted.iter().map(OmittedEntry::path);
    for path in found.files.iter().map(Vec::as_slice).chain(omitted) {
        let shown = shown(path);
        if shown != path {
            let message = format!("the name of a file contains a secret: '{}'", text(&shown));
            let hint = "rename the file, or exclude it: --artifact '!GLOB'";
            return Err(Error::refused(ErrorKind::Policy, message, Some(hint)));
        }
    }
    if let (Unmatched::Refuse, Some(pattern)) = (unmatched, found.unmatched.first()) {
        let only = found
            .omitted_of
            .get(pattern)
            .map(|entry| format!(": '{}' is {}", entry.path, entry.reason.as_str()));
        let message = format!("no file matches '{pattern}'{}", only.unwrap_or_default());
        let hint = "globs are relative to the io dir; --artifact-optional allows no match";
        return Err(Error::refused(ErrorKind::NotFound, message, Some(hint)));
    }
    let mut from = Cursor::new(root.as_fd(), MissingDir::Fail);
    let mut progress = Progress::default();
    let Some(destination) = destination else {
        let (mut files, mut line) = (Vec::with_capacity(found.files.len()), None);
        for path in &found.files {
            let file = describe(&mut from, path, &mut progress, proceed)?;
            let reference = reference.as_ref().filter(|_| line.is_none());
            if let Some(reference) = reference.filter(|it| !it.has(path, &file.sha256)) {
                line = reference.first_difference(path, open(&mut from, path)?);
            }
            files.push(file);
        }
        let (manifest, _) = manifest::encode(files, found.omitted);
        return Ok(Collected { manifest, unmatched: found.unmatched, line });
    };
    let identity = fstat(&root).map_err(|errno| Error::io("read", b".")(errno))?;
    let staging = destination.stage(Identity::of(&identity))?;
    let mut to = Cursor::new(staging.root(), MissingDir::Create);
    let mut files = Vec::with_capacity(found.files.len());
    for path in &found.files {
        files.push(copy(&mut from, &mut to, path, &mut progress, proceed)?);
    }
    drop(to);
    let (manifest, json) = manifest::encode(files, found.omitted);
    write(&staging, MANIFEST, &json)?;
    write(&staging, CHECKSUMS, &sums::checksums(&manifest, &json))?;
    if !proceed() {
        return Err(Error::Cancelled);
    }
    staging.publish()?;
    Ok(Collected { manifest, unmatched: found.unmatched, line: None })
}

/// What a scan found.
struct Selected {
    /// The paths of regular files, sorted.
    files: Vec<Vec<u8>>,
    /// Sorted.
    omitted: Vec<OmittedEntry>,
    unmatched: Vec<String>,
    /// For a glob without a file, an entry that it matches.
    omitted_of: std::collections::HashMap<String, OmittedEntry>,
}

fn find(
    root: BorrowedFd<'_>,
    selection: &Selection,
    most: u64,
    reserves: bool,
) -> Result<Selected, Error> {
    let patterns = selection.patterns();
    let mut is_matched = vec![false; patterns.len()];
    let (mut files, mut omitted) = (Vec::new(), Vec::new());
    let mut omitted_of = std::collections::HashMap::new();
    let mut matching = 0;
    let (_, coverage) = walk(root, SCAN, |folder, name, stat| {
        let path = join(folder, name);
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return if selection.prunes(&path) { Visit::Skip } else { Visit::Enter };
        }
        let globs = selection.matches(&path);
        if globs.is_empty() {
            return Visit::Skip;
        }
        matching += 1;
        if matching > most {
            // Counted, and not remembered.
            return Visit::Skip;
        }
        let reason = match kind {
            FileType::RegularFile if reserves && is_reserved(&path) => OmitReason::ReservedName,
            FileType::RegularFile => {
                globs.into_iter().for_each(|glob| is_matched[glob] = true);
                files.push(path);
                return Visit::Skip;
            }
            FileType::Symlink => OmitReason::Symlink,
            FileType::Fifo => OmitReason::Fifo,
            FileType::Socket => OmitReason::Socket,
            _ => OmitReason::Device,
        };
        let entry = OmittedEntry::new(&path, reason);
        for glob in globs {
            omitted_of.entry(patterns[glob].clone()).or_insert_with(|| entry.clone());
        }
        omitted.push(entry);
        Visit::Skip
    });
    complete("the io dir", coverage)?;
    if matching > most {
        return Err(Error::TooMany { most });
    }
    files.sort_unstable();
    omitted.sort_unstable_by(|one: &OmittedEntry, other| one.path().cmp(other.path()));
    let unmatched = patterns.iter().zip(is_matched).filter(|(_, is_matched)| !is_matched);
    let unmatched = unmatched.map(|(pattern, _)| pattern.clone()).collect();
    Ok(Selected { files, omitted, unmatched, omitted_of })
}

/// Fails if a scan left something out, which could be an artifact.
pub fn complete(what: &str, coverage: ScanCoverage) -> Result<(), Error> {
    let reason = match coverage {
        ScanCoverage::All => return Ok(()),
        ScanCoverage::Readable | ScanCoverage::Hidden => "a directory in it cannot be read",
        ScanCoverage::Deep => "its directories are too deep",
        ScanCoverage::Cut => "it has too many entries, or its file system is too slow",
    };
    let message = format!("cannot scan all of {what}: {reason}");
    Err(Error::refused(ErrorKind::Internal, message, None))
}

fn write(staging: &Staging, name: &str, content: &[u8]) -> Result<(), Error> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let written = rustix::fs::openat(staging.root(), name, flags, mode)
        .map(std::fs::File::from)
        .map_err(std::io::Error::from)
        .and_then(|mut file| {
            rustix::fs::fchmod(&file, mode)?;
            file.write_all(content)
        });
    written.map_err(|error| Error::Io {
        action: "write",
        path: text(name.as_bytes()),
        source: error,
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs::{self, File, Permissions};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;
    use sandbox_dirfd::HoleAllowance;

    pub struct Fixture {
        dir: tempfile::TempDir,
    }

    impl Fixture {
        pub fn new() -> Self {
            let place = Self { dir: tempfile::tempdir().unwrap() };
            fs::create_dir(place.at("io")).unwrap();
            place
        }

        pub fn at(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        pub fn file(&self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> PathBuf {
            let path = self.at("io").join(OsStr::from_bytes(path.as_ref()));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            path
        }

        pub fn collect(&self, globs: &[&str], to: &str) -> Result<Collected, Error> {
            self.collect_while(globs, to, &|| true)
        }

        fn collect_while(
            &self,
            globs: &[&str],
            to: &str,
            proceed: ContinueFn<'_>,
        ) -> Result<Collected, Error> {
            let io_dir = File::open(self.at("io")).unwrap();
            let request = Request {
                selection: Selection::new(globs, "/io").unwrap(),
                destination: Some(Destination::new(
                    &self.at(to),
                    &[("the io dir", &self.at("io"))],
                )?),
                unmatched: Unmatched::Refuse,
                reference: None,
            };
            let shown = |path: &[u8]| {
                let at = path.windows(7).position(|it| it == b"hunter2");
                at.map_or(path.to_vec(), |at| [&path[..at], b"***"].concat())
            };
            collect(io_dir.as_fd(), &request, 100, &shown, proceed)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.dir.path()).unwrap();
            let mut names: Vec<_> =
                entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    /// Whether coreutils accept the checksums of a directory.
    fn sha256sum_accepts(dir: &Path) -> bool {
        let mut check = Command::new("sha256sum");
        let checked = check.args(["--check", "--strict", "--quiet", CHECKSUMS]).current_dir(dir);
        checked.output().unwrap().status.success()
    }

    #[test]
    fn file_with_many_names_is_copied_once() {
        use std::os::unix::fs::MetadataExt as _;
        let place = Fixture::new();
        let file = place.file("dist/a", "content");
        fs::create_dir(place.at("io/dist/sub")).unwrap();
        for number in 0..50 {
            fs::hard_link(&file, place.at(&format!("io/dist/sub/{number}"))).unwrap();
        }
        place.file("dist/other", "content");
        let collected = place.collect(&["dist"], "out").unwrap();
        assert_eq!((collected.files(), collected.bytes()), (52, 52 * 7));
        let found = |name: &str| fs::metadata(place.at("out").join(name)).unwrap();
        let (one, other) = (found("dist/a"), found("dist/sub/49"));
        assert_eq!((one.ino(), one.nlink(), one.len()), (other.ino(), 51, 7));
        assert_ne!(one.ino(), found("dist/other").ino());
        assert!(sha256sum_accepts(&place.at("out")));
    }

    #[test]
    fn file_with_many_names_that_is_touched_is_copied_at_most_so_often() {
        let place = Fixture::new();
        let file = place.file("0", vec![1; 64 << 10]);
        File::open(&file).unwrap().sync_all().unwrap();
        for number in 1..20 {
            fs::hard_link(&file, place.at(&format!("io/{number}"))).unwrap();
        }
        let touch = || {
            let file = File::options().write(true).open(&file).unwrap();
            file.set_modified(std::time::SystemTime::now()).unwrap();
        };
        let (from, to) = (File::open(place.at("io")).unwrap(), File::open(place.at(".")).unwrap());
        let mut from = Cursor::new(from.as_fd(), MissingDir::Fail);
        let mut to = Cursor::new(to.as_fd(), MissingDir::Create);
        let mut progress = Progress::bounded(300 << 10);
        let mut names = (0..20).map(|number: u32| number.to_string().into_bytes());
        let error = names.find_map(|name| {
            touch();
            copy(&mut from, &mut to, &name, &mut progress, &|| true).err()
        });
        assert!(matches!(error, Some(Error::TooManyNames { .. })), "{error:?}");
        assert!((2..8).contains(&fs::read_dir(place.at(".")).unwrap().count()));
    }

    #[test]
    fn files_with_larger_holes_than_are_read_are_an_error_and_nothing_is_written() {
        let place = Fixture::new();
        place.file("a", "content");
        let sparse = File::create(place.at("io/b")).unwrap();
        sparse.set_len(HoleAllowance::BYTES + 1).unwrap();
        let error = place.collect(&["**"], "out").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        assert!(error.to_string().starts_with("'b': "), "{error}");
        assert_eq!(place.names(), ["io"]);
    }

    #[test]
    fn selected_files_are_copied_with_their_manifest_and_checksums() {
        let place = Fixture::new();
        place.file("dist/app", "binary\0");
        let program = place.at("io/dist/app");
        fs::set_permissions(program, Permissions::from_mode(0o4710)).unwrap();
        place.file("dist/sub/a.json", "{}");
        place.file("dist/sub/skipped.o", "x");
        place.file("other", "x");
        let collected = place.collect(&["dist", "!**/*.o"], "out/here").unwrap();
        let out = place.at("out/here");
        assert_eq!((collected.files(), collected.bytes()), (2, 9));
        let files: Vec<_> = collected.manifest.files.iter().map(|file| &*file.path).collect();
        assert_eq!(files, ["dist/app", "dist/sub/a.json"]);
        assert_eq!(fs::read(out.join("dist/app")).unwrap(), b"binary\0");
        let mode = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().mode() & 0o7777;
        let modes = ["dist/app", "dist/sub/a.json", "dist/sub", "", MANIFEST, CHECKSUMS].map(mode);
        assert_eq!(modes, [0o755, 0o644, 0o755, 0o755, 0o644, 0o644]);
        let json = fs::read(out.join(MANIFEST)).unwrap();
        assert_eq!(manifest::decode(&out, &json).unwrap(), collected.manifest);
        assert!(sha256sum_accepts(&out));
        assert!(!out.join("dist/sub/skipped.o").exists() && !out.join("other").exists());
        assert_eq!(place.names(), ["io", "out"]);
    }

    #[test]
    fn secret_in_a_name_is_copied_and_masked_in_all_output() {
        let place = Fixture::new();
        place.file("dist/app", "x");
        place.file("dist/of-hunter2", "x");
        symlink("app", place.at("io/hunter2-link")).unwrap();
        for globs in [&["dist"][..], &["*link"]] {
            let error = place.collect(globs, "out").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Policy, "{error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        assert!(!place.at("out").exists());
        let collected = place.collect(&["dist", "!**/of-*"], "out").unwrap();
        assert_eq!(collected.files(), 1);
    }

    #[test]
    fn links_special_files_and_reserved_names_are_omitted_with_the_reason() {
        let place = Fixture::new();
        place.file("f", "x");
        place.file("manifest.json", "{}");
        place.file("sub/manifest.json", "{}");
        fs::write(place.at("secret"), "secret").unwrap();
        symlink("../secret", place.at("io/link")).unwrap();
        symlink("..", place.at("io/dir-link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, place.at("io/fifo"), Mode::RUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place.at("io/socket")).unwrap();
        let collected = place.collect(&["**"], "out").unwrap();
        let ArtifactManifest { files, omitted, .. } = collected.manifest;
        let files: Vec<_> = files.iter().map(|file| &*file.path).collect();
        assert_eq!(files, ["f", "sub/manifest.json"]);
        let omitted: Vec<_> = omitted.iter().map(|entry| (&*entry.path, entry.reason)).collect();
        let expected = [
            ("dir-link", OmitReason::Symlink),
            ("fifo", OmitReason::Fifo),
            ("link", OmitReason::Symlink),
            ("manifest.json", OmitReason::ReservedName),
            ("socket", OmitReason::Socket),
        ];
        assert_eq!(omitted, expected);
        assert!(sha256sum_accepts(&place.at("out")));
        let error = place.collect(&["f", "link"], "other").unwrap_err();
        assert_eq!(error.to_string(), "no file matches 'link': 'link' is a symbolic link");
    }

    #[test]
    fn glob_without_a_match_is_an_error_and_nothing_is_written() {
        let place = Fixture::new();
        place.file("f", "x");
        let error = place.collect(&["f", "*.whl"], "out").unwrap_err();
        assert_eq!(error.to_string(), "no file matches '*.whl'");
        assert_eq!(place.names(), ["io"]);
        let io_dir = File::open(place.at("io")).unwrap();
        let request = Request {
            selection: Selection::new(&["*.whl"], "/io").unwrap(),
            destination: Some(Destination::new(&place.at("out"), &[]).unwrap()),
            unmatched: Unmatched::Allow,
            reference: None,
        };
        let collected = collect(io_dir.as_fd(), &request, 1, &<[u8]>::to_vec, &|| true).unwrap();
        assert_eq!((collected.files(), collected.unmatched), (0, vec!["*.whl".to_owned()]));
        assert!(sha256sum_accepts(&place.at("out")));
    }

    #[test]
    fn more_files_than_allowed_are_an_error() {
        let place = Fixture::new();
        for number in 0..101 {
            place.file(number.to_string(), "");
        }
        let error = place.collect(&["**"], "out").unwrap_err();
        assert_eq!(error.to_string(), "more than 100 files match");
        assert_eq!(place.collect(&["**", "!7"], "out").unwrap().files(), 100);
    }

    #[test]
    fn tree_that_is_too_deep_is_an_error_and_not_a_gap() {
        let place = Fixture::new();
        let deep = |depth: usize| vec!["d"; depth].join("/");
        place.file(format!("{}/f", deep(MAX_DEPTH)), "x");
        assert_eq!(place.collect(&["**"], "out").unwrap().files(), 1);
        place.file(format!("{}/f", deep(MAX_DEPTH + 1)), "x");
        let error = place.collect(&["**"], "other").unwrap_err();
        assert!(error.to_string().contains("too deep"), "{error}");
        assert_eq!(
            place.collect(&["**", "!d/d", "!*"], "other").unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }

    #[test]
    fn cancelled_copy_leaves_nothing_wherever_it_is() {
        let place = Fixture::new();
        place.file("a/f", vec![7; 3 * crate::PIECE]);
        place.file("g", "x");
        let calls = AtomicUsize::new(0);
        let count = || {
            calls.fetch_add(1, Ordering::Relaxed);
            true
        };
        place.collect_while(&["**"], "all", &count).unwrap();
        let all = calls.into_inner();
        assert!(all > 5, "{all}");
        for most in 0..all {
            let calls = AtomicUsize::new(0);
            let stop = || calls.fetch_add(1, Ordering::Relaxed) < most;
            let error = place.collect_while(&["**"], "out/sub", &stop).unwrap_err();
            assert!(matches!(error, Error::Cancelled), "{error}");
            assert_eq!(place.names(), ["all", "io"], "{most}");
        }
    }

    #[test]
    fn file_that_is_replaced_by_a_link_is_not_followed() {
        let place = Fixture::new();
        let file = place.file("b/f", "x");
        place.file("a", "x");
        fs::write(place.at("secret"), "secret").unwrap();
        // While the first file is copied.
        let calls = AtomicUsize::new(0);
        let replace = || {
            if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                fs::remove_file(&file).unwrap();
                symlink(place.at("secret"), &file).unwrap();
            }
            true
        };
        let error = place.collect_while(&["**"], "out", &replace).unwrap_err();
        assert!(error.to_string().starts_with("'b/f' was removed or replaced"), "{error}");
        assert_eq!(place.names(), ["io", "secret"]);
    }

    fn name() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            4 => any::<u8>(),
            2 => prop::sample::select(&b"\n\r\\ *#-ab"[..]),
        ];
        prop::collection::vec(byte, 1..20).prop_filter("a name", |name| {
            !name.contains(&0) && !name.contains(&b'/') && !matches!(&**name, b"." | b"..")
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn files_of_any_name_are_copied_and_accepted_by_sha256sum(
            names in prop::collection::btree_map(name(), any::<[u8; 3]>(), 1..8),
            folder in name(),
        ) {
            let place = Fixture::new();
            for (name, content) in &names {
                place.file([b"d/", &*folder, b"/", name].concat(), content);
            }
            let collected = place.collect(&["**"], "out").unwrap();
            prop_assert_eq!(collected.files(), names.len() as u64);
            for (file, (name, content)) in collected.manifest.files.iter().zip(&names) {
                prop_assert_eq!(file.path(), [b"d/", &*folder, b"/", &**name].concat());
                let copy = place.at("out").join(OsStr::from_bytes(file.path()));
                prop_assert_eq!(fs::read(copy).unwrap(), content);
            }
            prop_assert!(sha256sum_accepts(&place.at("out")));
        }
    }
}
