//! Trees that a run changes at random: the manifest says what an independent walk finds, and a commit
//! that is interrupted anywhere ends with the old tree or with the new one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use sandbox_api::changes::{Change, ChangeOp, ChangeType};
use sandbox_dirfd::{DiskUsage, path_of};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::bounded::BoundedDir;
use crate::{
    Commit, Comparison, CopyBounds, Method, NewDirectory, Records, Stage, StageError, copy_out,
};

/// An io dir in a directory of its own, and the state directory.
struct Fixture {
    root: TempDir,
    images: TempDir,
}

/// The methods of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Copy,
    Overlay,
    /// An overlay whose upper layer is in an image.
    Image,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("io")).unwrap();
        Self { root, images: tempfile::tempdir().unwrap() }
    }

    fn io(&self) -> PathBuf {
        self.root.path().join("io")
    }

    fn records(&self) -> Records {
        self.records_of("this boot")
    }

    fn records_of(&self, boot: &str) -> Records {
        let root = self.root.path();
        Records::new(&root.join("records"), root.to_owned(), boot.to_owned())
    }

    /// The only record.
    fn record(&self) -> PathBuf {
        let mut records = fs::read_dir(self.root.path().join("records/stages")).unwrap();
        records.next().unwrap().unwrap().path()
    }

    fn recorded(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.record()).unwrap()).unwrap()
    }

    /// The only stage. What a run changes may be elsewhere.
    fn stage_path(&self) -> PathBuf {
        self.recorded()["path"].as_str().unwrap().into()
    }

    fn create(&self, io_dir: &File, method: How, bounds: CopyBounds) -> Result<Stage, StageError> {
        let method = self.method(method);
        Stage::create(io_dir.as_fd(), &self.records(), method, bounds, &mut |_| {})
    }

    fn method(&self, how: How) -> Method {
        match how {
            How::Copy => Method::Copy,
            How::Overlay => Method::Overlay,
            How::Image => {
                let size = DiskUsage { bytes: 64 << 20, entries: 10_000 };
                let at = |name| self.images.path().join(name);
                let image = BoundedDir::on_disk(size, None, &at("scratch"), &at("templates"));
                Method::Image(image.unwrap().into())
            }
        }
    }

    fn stage(&self) -> Run {
        self.run(How::Copy)
    }

    /// A run that has started.
    fn run(&self, method: How) -> Run {
        let io_dir = File::open(self.io()).unwrap();
        let stage = self.create(&io_dir, method, CopyBounds::default()).unwrap();
        let view = match stage.work() {
            None => stage.files().try_clone_to_owned().unwrap(),
            Some(work) => overlay(&io_dir, stage.files(), work),
        };
        stage.wait_for_tick();
        Run { stage, view }
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.io().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// No part of a stage is left, next to the io dir or in it.
    fn assert_clean(&self) {
        let mut names: Vec<_> = fs::read_dir(self.root.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "records")
            .collect();
        names.sort();
        assert_eq!(names, ["io"]);
        let records =
            fs::read_dir(self.root.path().join("records/stages")).into_iter().flatten().count();
        assert_eq!(records, 0, "records");
        assert!(look(&self.io()).keys().all(|path| !path.contains("sandboxctl")));
    }
}

/// A stage, and what the sandbox sees.
struct Run {
    stage: Stage,
    view: OwnedFd,
}

impl Run {
    fn path(&self) -> PathBuf {
        match self.stage.work() {
            None => path_of(self.stage.files()).unwrap(),
            // It has no path.
            Some(_) => PathBuf::from(format!("/proc/self/fd/{}", self.view.as_raw_fd())),
        }
    }

    fn compare(&self) -> Result<Comparison, StageError> {
        self.stage.compare(self.view.as_fd())
    }
}

impl Deref for Run {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl DerefMut for Run {
    fn deref_mut(&mut self) -> &mut Stage {
        &mut self.stage
    }
}

/// The methods that this user can use.
fn methods() -> Vec<How> {
    let mut methods = vec![How::Copy];
    if rustix::process::geteuid().is_root() {
        methods.extend([How::Overlay, How::Image]);
    }
    methods
}

/// Mounts an overlay, detached from all directories.
fn overlay(lower: &File, upper: BorrowedFd<'_>, work: BorrowedFd<'_>) -> OwnedFd {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
        fsopen,
    };
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    let path = |fd: BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let layers = [("lowerdir", lower.as_fd()), ("upperdir", upper), ("workdir", work)];
    for (option, layer) in layers {
        fsconfig_set_string(&overlay, option, path(layer)).unwrap();
    }
    let options =
        [("index", "off"), ("metacopy", "off"), ("redirect_dir", "nofollow"), ("xino", "on")];
    for (option, value) in options {
        fsconfig_set_string(&overlay, option, value).unwrap();
    }
    fsconfig_create(&overlay).unwrap();
    fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap()
}

/// A walk's view, independent of stages: type, mode, modification time of files, content.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    kind: ChangeType,
    mode: u32,
    modified: (i64, i64),
    content: Vec<u8>,
}

fn look(root: &Path) -> BTreeMap<String, Seen> {
    fn below(directory: &Path, root: &Path, seen: &mut BTreeMap<String, Seen>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let (kind, content) = if metadata.is_dir() {
                (ChangeType::Directory, Vec::new())
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                (ChangeType::Symlink, target.into_os_string().into_encoded_bytes())
            } else {
                (ChangeType::File, fs::read(&path).unwrap())
            };
            // A link has no mode, and the time of a directory changes with its entries.
            let mode = if metadata.is_symlink() { 0 } else { metadata.mode() & 0o7777 };
            let is_dir = metadata.is_dir();
            let modified = if is_dir { (0, 0) } else { (metadata.mtime(), metadata.mtime_nsec()) };
            seen.insert(name, Seen { kind, mode, modified, content });
            if is_dir {
                below(&path, root, seen);
            }
        }
    }
    let mut seen = BTreeMap::new();
    below(root, root, &mut seen);
    seen
}

/// A change that a run makes. Those that cannot be made are left out.
#[derive(Debug, Clone)]
enum Act {
    Write(String, String),
    Append(String, String),
    Truncate(String),
    Mkdir(String),
    Remove(String),
    Rename(String, String),
    Chmod(String, u32),
    Link(String, String),
    Touch(String, u64),
    Rewrite(String),
}

fn act(root: &Path, act: &Act) {
    let at = |path: &str| root.join(path);
    _ = match act {
        Act::Write(path, content) => fs::write(at(path), content),
        Act::Append(path, content) => fs::read(at(path))
            .and_then(|old| fs::write(at(path), [&old, content.as_bytes()].concat())),
        Act::Truncate(path) => File::options().write(true).truncate(true).open(at(path)).map(drop),
        Act::Mkdir(path) => fs::create_dir_all(at(path)),
        Act::Remove(path) => fs::remove_file(at(path)).or_else(|_| fs::remove_dir_all(at(path))),
        Act::Rename(from, to) => fs::rename(at(from), at(to)),
        Act::Chmod(path, mode) if !at(path).is_symlink() => {
            fs::set_permissions(at(path), Permissions::from_mode(*mode))
        }
        Act::Chmod(..) => Ok(()),
        Act::Link(path, target) => symlink(target, at(path)),
        Act::Touch(path, seconds) if at(path).is_file() && !at(path).is_symlink() => {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(*seconds);
            File::open(at(path)).and_then(|file| file.set_modified(time))
        }
        Act::Touch(..) => Ok(()),
        // The same content and time: no change.
        Act::Rewrite(path) => (|| {
            let modified = fs::metadata(at(path))?.modified()?;
            let content = fs::read(at(path))?;
            fs::write(at(path), content)?;
            File::options().write(true).open(at(path))?.set_modified(modified)
        })(),
    };
}

fn some_path() -> impl Strategy<Value = String> {
    proptest::collection::vec("[abc]", 1..4).prop_map(|parts| parts.join("/"))
}

fn some_act() -> impl Strategy<Value = Act> {
    let path = some_path;
    prop_oneof![
        (path(), "[xy\n]{0,8}").prop_map(|(path, content)| Act::Write(path, content)),
        (path(), "[xy]{1,4}").prop_map(|(path, content)| Act::Append(path, content)),
        path().prop_map(Act::Truncate),
        path().prop_map(Act::Mkdir),
        path().prop_map(Act::Remove),
        (path(), path()).prop_map(|(from, to)| Act::Rename(from, to)),
        (path(), prop_oneof![Just(0o700), Just(0o755), Just(0o644), Just(0o500), Just(0o1777)])
            .prop_map(|(path, mode)| Act::Chmod(path, mode)),
        // Never out of the tree: what follows is made through it.
        (path(), "[abc]{1,2}").prop_map(|(path, target)| Act::Link(path, target)),
        (path(), 1_000_u64..2_000).prop_map(|(path, seconds)| Act::Touch(path, seconds)),
        path().prop_map(Act::Rewrite),
    ]
}

/// The changes between two trees, as `path op type`.
fn expected(old: &BTreeMap<String, Seen>, new: &BTreeMap<String, Seen>) -> Vec<(String, ChangeOp)> {
    let mut changes = Vec::new();
    for (path, now) in new {
        let op = match old.get(path) {
            None => ChangeOp::Created,
            Some(before) if before == now => continue,
            Some(before) if (before.kind, &before.content) != (now.kind, &now.content) => {
                ChangeOp::Modified
            }
            Some(before) if before.mode != now.mode => ChangeOp::Mode,
            Some(_) => ChangeOp::Times,
        };
        changes.push((path.clone(), op));
    }
    let removed = old.keys().filter(|path| !new.contains_key(*path));
    changes.extend(removed.map(|path| (path.clone(), ChangeOp::Removed)));
    changes.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
    changes
}

fn hex(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn assert_is(change: &Change, old: Option<&Seen>, new: Option<&Seen>) {
    let content = |seen: &Seen| (seen.kind != ChangeType::Directory).then(|| hex(&seen.content));
    let mode =
        |seen: &Seen| (seen.kind != ChangeType::Symlink).then(|| format!("{:04o}", seen.mode));
    let size =
        |seen: &Seen| (seen.kind != ChangeType::Directory).then_some(seen.content.len() as u64);
    assert_eq!(change.kind, new.or(old).unwrap().kind, "{change:?}");
    assert_eq!(change.sha256, new.and_then(content), "{change:?}");
    assert_eq!(change.bytes, new.and_then(size), "{change:?}");
    assert_eq!(change.mode, new.and_then(mode), "{change:?}");
    let before = change.before.clone();
    assert_eq!(before.as_ref().map(|it| it.sha256.clone()), old.map(content), "{change:?}");
    assert_eq!(before.as_ref().map(|it| it.bytes), old.map(size), "{change:?}");
    assert_eq!(before.as_ref().map(|it| it.mode.clone()), old.map(mode), "{change:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn manifest_equals_an_independent_walk_and_a_commit_gives_the_copy(
        before in proptest::collection::vec(some_act(), 0..20),
        during in proptest::collection::vec(some_act(), 0..20),
        interrupted in proptest::option::of(0_usize..12),
        method in proptest::sample::select(methods()),
    ) {
        let place = Fixture::new();
        for it in &before {
            act(&place.io(), it);
        }
        let old = look(&place.io());
        let mut stage = place.run(method);
        assert_eq!(look(&stage.path()), old, "the sandbox sees the io dir");
        assert!(stage.compare().unwrap().is_empty());
        for it in &during {
            act(&stage.path(), it);
        }
        let new = look(&stage.path());
        let compared = stage.compare().unwrap();
        let manifest = stage.manifest(&compared, usize::MAX);
        let found: Vec<_> = manifest.changes.iter().map(|it| (it.path.to_string(), it.op)).collect();
        assert_eq!(found, expected(&old, &new));
        for change in &manifest.changes {
            let path = change.path.to_string();
            assert_is(change, old.get(&path), new.get(&path));
        }
        assert_eq!(look(&place.io()), old, "nothing is committed yet");

        let mut left = interrupted;
        let mut is_journaled = false;
        let committed = catch_unwind(AssertUnwindSafe(|| {
            stage.commit(&compared, |point| {
                is_journaled |= point == "journaled";
                match &mut left {
                    // As a panic, and without its message.
                    Some(0) => resume_unwind(Box::new(point)),
                    Some(left) => *left -= 1,
                    None => {}
                }
            })
        }));
        match committed {
            Ok(committed) => {
                assert_eq!(committed.unwrap(), Commit::Done);
                drop(stage);
                assert_eq!(look(&place.io()), new);
            }
            Err(_) => {
                // As `kill -9` leaves it.
                let Run { stage, view } = stage;
                stage.die();
                drop(view);
                place.records().recover();
                assert_eq!(look(&place.io()), if is_journaled { new } else { old });
            }
        }
        place.assert_clean();
    }
}

#[test]
fn directory_in_a_replaced_directory_has_nothing_of_the_old_one() {
    for method in methods() {
        let place = Fixture::new();
        place.write("a/b/old", "old");
        let mut stage = place.run(method);
        fs::remove_dir_all(stage.path().join("a")).unwrap();
        fs::create_dir_all(stage.path().join("a/b")).unwrap();
        let compared = stage.compare().unwrap();
        let manifest = stage.manifest(&compared, usize::MAX);
        let found: Vec<_> = manifest.changes.iter().map(|it| (it.path.as_bytes(), it.op)).collect();
        assert_eq!(found, [(&b"a/b/old"[..], ChangeOp::Removed)], "{method:?}");
        assert_eq!(stage.commit(&compared, |_| {}).unwrap(), Commit::Done);
        drop(stage);
        assert_eq!(look(&place.io()).keys().collect::<Vec<_>>(), ["a", "a/b"], "{method:?}");
    }
}

#[test]
fn discarded_changes_leave_no_trace() {
    for method in methods() {
        let place = Fixture::new();
        place.write("a/b", "old");
        let times = |path: &Path| {
            let metadata = fs::metadata(path).unwrap();
            (metadata.mode(), metadata.mtime(), metadata.mtime_nsec(), metadata.ctime_nsec())
        };
        let paths = [place.io(), place.io().join("a"), place.io().join("a/b")];
        let before: Vec<_> = paths.iter().map(|path| times(path)).collect();
        let stage = place.run(method);
        fs::write(stage.path().join("a/b"), "new").unwrap();
        fs::remove_dir_all(stage.path().join("a")).unwrap();
        drop(stage);
        assert_eq!(paths.iter().map(|path| times(path)).collect::<Vec<_>>(), before);
        place.assert_clean();
    }
}

#[test]
fn paths_that_something_else_changed_commit_nothing() {
    /// What it is, what something else does, what the run does, and the paths in conflict.
    type Case = (&'static str, fn(&Path), fn(&Path), &'static [&'static str]);
    let changed: &[Case] = &[
        (
            "both write",
            |io| fs::write(io.join("f"), "io").unwrap(),
            |copy| fs::write(copy.join("f"), "copy").unwrap(),
            &["f"],
        ),
        (
            "both create",
            |io| fs::write(io.join("n"), "io").unwrap(),
            |copy| fs::write(copy.join("n"), "copy").unwrap(),
            &["n"],
        ),
        (
            "a removed directory has more",
            |io| fs::write(io.join("d/n"), "io").unwrap(),
            |copy| fs::remove_dir_all(copy.join("d")).unwrap(),
            &["d"],
        ),
        (
            "a renamed file is gone",
            |io| fs::remove_file(io.join("f")).unwrap(),
            |copy| {
                fs::rename(copy.join("f"), copy.join("f2")).unwrap();
                fs::write(copy.join("f"), "copy").unwrap();
            },
            &["f", "f2"],
        ),
        (
            "a file of a replaced directory changed",
            |io| fs::write(io.join("d/g"), "io").unwrap(),
            |copy| {
                fs::remove_dir_all(copy.join("d")).unwrap();
                fs::create_dir(copy.join("d")).unwrap();
            },
            &["d/g"],
        ),
        (
            "a changed file is gone",
            |io| fs::remove_file(io.join("f")).unwrap(),
            |copy| fs::write(copy.join("f"), "copy").unwrap(),
            &["f"],
        ),
    ];
    let cases = methods().into_iter().flat_map(|it| changed.iter().map(move |case| (it, case)));
    for (method, (what, outside, inside, conflicts)) in cases {
        let what = format!("{what}, {method:?}");
        let place = Fixture::new();
        place.write("f", "old");
        place.write("d/g", "old");
        let mut stage = place.run(method);
        inside(&stage.path());
        fs::write(stage.path().join("other"), "new").unwrap();
        outside(&place.io());
        let before = look(&place.io());
        let compared = stage.compare().unwrap();
        let committed = stage.commit(&compared, |_| {}).unwrap();
        let Commit::Conflicts(mut paths) = committed else { panic!("{what}: {committed:?}") };
        // The methods name the same conflict by other paths: what is in a removed directory, or where
        // a renamed file is now.
        paths.retain(|path| !paths_above(path).any(|above| conflicts.contains(&above)));
        let is_named = |path: &Vec<u8>| conflicts.iter().any(|it| it.as_bytes() == path);
        assert!(!paths.is_empty() && paths.iter().all(is_named), "{what}: {paths:?}");
        drop(stage);
        assert_eq!(look(&place.io()), before, "{what}");
        place.assert_clean();
    }
}

fn paths_above(path: &[u8]) -> impl Iterator<Item = &str> {
    let path = std::str::from_utf8(path).unwrap();
    path.match_indices('/').map(move |(at, _)| &path[..at])
}

#[test]
fn changes_of_other_paths_meanwhile_are_kept() {
    for method in methods() {
        let place = Fixture::new();
        place.write("f", "old");
        place.write("d/g", "old");
        let mut stage = place.run(method);
        fs::write(stage.path().join("f"), "new").unwrap();
        place.write("d/h", "from outside");
        let compared = stage.compare().unwrap();
        assert_eq!(stage.commit(&compared, |_| {}).unwrap(), Commit::Done);
        let seen = look(&place.io());
        assert_eq!(seen["f"].content, b"new");
        assert_eq!(seen["d/h"].content, b"from outside");
    }
}

#[test]
fn renamed_file_names_the_path_it_had() {
    for method in methods() {
        let place = Fixture::new();
        place.write("old/name", "content");
        let stage = place.run(method);
        fs::create_dir(stage.path().join("new")).unwrap();
        fs::rename(stage.path().join("old/name"), stage.path().join("new/name")).unwrap();
        fs::write(stage.path().join("copy"), "content").unwrap();
        let manifest = stage.manifest(&stage.compare().unwrap(), usize::MAX);
        let from =
            |path: &str| manifest.changes.iter().find(|it| it.path == path).unwrap().from.clone();
        assert_eq!(from("new/name").as_deref(), Some("old/name"));
        assert_eq!(from("copy"), None);
    }
}

#[test]
fn diff_has_every_content_and_names_what_has_none() {
    for method in methods() {
        let place = Fixture::new();
        place.write("text", "one\ntwo\nthree\n");
        place.write("binary", "\0old");
        let stage = place.run(method);
        fs::write(stage.path().join("text"), "one\n2\nthree\n").unwrap();
        fs::write(stage.path().join("binary"), "\0new").unwrap();
        fs::write(stage.path().join("empty"), "").unwrap();
        fs::write(stage.path().join("new"), "line\n").unwrap();
        fs::create_dir(stage.path().join("folder")).unwrap();
        File::create(stage.path().join("large")).unwrap().set_len((1 << 20) + 1).unwrap();
        let diff = stage.diff(&stage.compare().unwrap(), &<[u8]>::to_vec);
        assert_eq!(
            String::from_utf8(diff).unwrap(),
            "diff --git a/binary b/binary\n--- a/binary\n+++ b/binary\n@@ -1 +1 @@\n\
             -\0old\n\\ No newline at end of file\n+\0new\n\\ No newline at end of file\n\
             diff --git a/empty b/empty\nnew file mode 100644\nindex 0000000..e69de29\n\
             created: folder\ncreated: large (larger than 1 MiB)\n\
             diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n\
             @@ -0,0 +1 @@\n+line\n\
             diff --git a/text b/text\n--- a/text\n+++ b/text\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
        );
    }
}

#[test]
fn names_of_any_bytes_sparse_files_and_stages_of_others_are_copied_as_they_must_be() {
    let place = Fixture::new();
    let odd = OsStr::from_bytes(b"new\nline\\\xff");
    fs::write(place.io().join(odd), "odd").unwrap();
    let sparse = File::create(place.io().join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    fs::create_dir(place.io().join(".sandboxctl-stage-0123")).unwrap();
    let mut stage = place.stage();
    let copied = fs::metadata(stage.path().join("sparse")).unwrap();
    assert_eq!((copied.len(), copied.blocks()), (1 << 30, 0));
    assert!(!stage.path().join(".sandboxctl-stage-0123").exists());
    fs::write(stage.path().join(odd), "changed").unwrap();
    let compared = stage.compare().unwrap();
    let manifest = stage.manifest(&compared, 10);
    assert_eq!(manifest.changes.len(), 1);
    assert_eq!(manifest.changes[0].path.as_bytes(), odd.as_bytes());
    assert_eq!(stage.commit(&compared, |_| {}).unwrap(), Commit::Done);
    assert_eq!(fs::read(place.io().join(odd)).unwrap(), b"changed");
    assert!(place.io().join(".sandboxctl-stage-0123").exists());
}

#[test]
fn fifos_and_sockets_are_committed_with_their_modes_whatever_the_umask_is() {
    let modes = [("fifo", 0o666), ("d/socket", 0o777), ("narrow", 0o200)];
    for method in methods() {
        let place = Fixture::new();
        let mut stage = place.run(method);
        let files = stage.path();
        fs::create_dir(files.join("d")).unwrap();
        for (name, mode) in modes {
            let path = files.join(name);
            let kind = if name == "d/socket" { FileType::Socket } else { FileType::Fifo };
            mknodat(CWD, &path, kind, Mode::RUSR, 0).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        let compared = stage.compare().unwrap();
        assert_eq!(stage.commit(&compared, |_| {}).unwrap(), Commit::Done);
        for (name, mode) in modes {
            let found = fs::symlink_metadata(place.io().join(name)).unwrap();
            assert_eq!(found.mode() & 0o7777, mode, "{method:?}: {name}");
        }
    }
}

/// Neither is it read to its end, nor does it take space.
#[test]
fn file_of_a_huge_hole_is_committed_beside_others_without_a_digest() {
    const HOLE: u64 = 8 << 40;
    for method in methods() {
        let place = Fixture::new();
        let mut stage = place.run(method);
        let files = stage.path();
        File::create(files.join("hole")).unwrap().set_len(HOLE).unwrap();
        fs::write(files.join("other"), "x").unwrap();
        let compared = stage.compare().unwrap();
        let listed = stage.manifest(&compared, 10).changes;
        let listed: Vec<_> = listed.iter().map(|it| (it.bytes, it.sha256.is_some())).collect();
        assert_eq!(listed, [(Some(HOLE), false), (Some(1), true)], "{method:?}");
        assert_eq!(stage.commit(&compared, |_| {}).unwrap(), Commit::Done);
        let found = fs::metadata(place.io().join("hole")).unwrap();
        assert!((found.len(), found.blocks() < 100) == (HOLE, true), "{method:?}: {found:?}");
        assert_eq!(fs::read(place.io().join("other")).unwrap(), b"x");
    }
}

#[test]
fn kept_copy_has_the_names_of_a_file_and_no_more_content() {
    let place = Fixture::new();
    place.write("a/first", "content");
    fs::create_dir(place.io().join("b")).unwrap();
    for number in 0..50 {
        fs::hard_link(place.io().join("a/first"), place.io().join(format!("b/{number}"))).unwrap();
    }
    place.write("b/other", "content");
    let kept = place.root.path().join("kept");
    let to = NewDirectory::at(&kept).unwrap();
    copy_out(File::open(place.io()).unwrap().as_fd(), &to).unwrap();
    let found = |name: &str| fs::metadata(kept.join(name)).unwrap();
    let (first, last) = (found("a/first"), found("b/49"));
    assert_eq!((first.ino(), first.nlink(), first.len()), (last.ino(), 51, 7));
    assert_eq!(fs::read_to_string(kept.join("b/49")).unwrap(), "content");
    assert_ne!(first.ino(), found("b/other").ino());
}

#[test]
fn copy_with_a_file_for_each_name_is_bounded_and_leaves_nothing() {
    let place = Fixture::new();
    place.write("first", [1; 64 << 10]);
    File::open(place.io().join("first")).unwrap().sync_all().unwrap();
    for name in ["second", "third"] {
        fs::hard_link(place.io().join("first"), place.io().join(name)).unwrap();
    }
    let io_dir = File::open(place.io()).unwrap();
    let bounded = |repeated| CopyBounds { repeated, ..CopyBounds::default() };
    let error = place.create(&io_dir, How::Copy, bounded(100 << 10)).unwrap_err();
    assert!(matches!(&error, StageError::TooManyNames { path } if path == b"third"), "{error}");
    assert!(!error.is_disk_full());
    place.assert_clean();
    drop(place.create(&io_dir, How::Copy, bounded(256 << 10)).unwrap());
}

#[test]
fn copy_that_would_use_the_disk_reserve_is_not_made() {
    let place = Fixture::new();
    place.write("empty", "");
    place.write("file", [1; 64 << 10]);
    File::open(place.io().join("file")).unwrap().sync_all().unwrap();
    let io_dir = File::open(place.io()).unwrap();
    let space = rustix::fs::fstatvfs(&io_dir).unwrap();
    let reserve = space.f_blocks * space.f_frsize;
    let bounds = CopyBounds { reserve, ..CopyBounds::default() };
    match place.create(&io_dir, How::Copy, bounds) {
        Err(error) => {
            assert!(
                error.is_disk_full() && error.to_string().contains("limits.disk_reserve"),
                "{error}"
            );
        }
        // A clone uses no space.
        Ok(stage) => {
            let clone = File::create(path_of(stage.files()).unwrap().join("clone")).unwrap();
            let file = File::open(place.io().join("file")).unwrap();
            rustix::fs::ioctl_ficlone(&clone, &file).unwrap();
        }
    }
    place.assert_clean();
}

#[test]
fn content_of_a_file_with_many_names_is_read_once() {
    let place = Fixture::new();
    let run = place.stage();
    // Read by each of its names, it would be more than is read.
    let file = File::create(run.path().join("f")).unwrap();
    file.set_len(200 << 20).unwrap();
    for number in 0..30 {
        fs::hard_link(run.path().join("f"), run.path().join(format!("{number}"))).unwrap();
    }
    let compared = run.compare().unwrap();
    let manifest = run.manifest(&compared, 100);
    let digests: BTreeMap<_, _> =
        manifest.changes.iter().map(|it| (it.sha256.clone(), it.path.clone())).collect();
    assert_eq!((manifest.changes.len(), digests.len()), (31, 1));
}

#[test]
fn mounts_made_during_a_run_are_not_part_of_its_changes() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for method in methods() {
        let place = Fixture::new();
        place.write("d/m/own", "content");
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("foreign"), "content").unwrap();
        let stage = place.run(method);
        fs::remove_dir_all(stage.path().join("d")).unwrap();
        // A mount of the same device.
        let at = place.io().join("d/m");
        rustix::mount::mount_bind(data.path(), &at).unwrap();
        let compared = stage.compare();
        rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
        let refused = matches!(&compared, Err(StageError::MountPoint { path }) if path == b"d/m");
        // A copy is compared with what was recorded of the io dir, which nothing reads again.
        let foreign = |it: &Comparison| it.changed.keys().any(|path| path.ends_with(b"foreign"));
        assert!(refused || compared.is_ok_and(|it| !foreign(&it)), "{method:?}");
    }
}

#[test]
fn io_dir_that_is_a_mount_point_has_its_stage_in_it() {
    let place = Fixture::new();
    let io = place.io();
    let options = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("tmpfs", &io, "tmpfs", options, c"size=1m").is_err() {
        assert!(!rustix::process::geteuid().is_root(), "root can mount");
        return;
    }
    place.write("f", "old");
    let mut stage = place.stage();
    assert!(stage.path().starts_with(&io), "{}", stage.path().display());
    assert_eq!(fs::read_dir(stage.path()).unwrap().count(), 1, "not the stage itself");
    fs::write(stage.path().join("f"), "new").unwrap();
    let compared = stage.compare().unwrap();
    let committed = stage.commit(&compared, |_| {}).unwrap();
    drop(stage);
    let seen = look(&io);
    rustix::mount::unmount(&io, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(committed, Commit::Done);
    assert_eq!(seen.keys().collect::<Vec<_>>(), ["f"]);
    assert_eq!(seen["f"].content, b"new");
}

#[test]
fn failed_stage_leaves_nothing() {
    let place = Fixture::new();
    let mut deep = place.io();
    for _ in 0..130 {
        deep.push("d");
    }
    fs::create_dir_all(deep).unwrap();
    let io_dir = File::open(place.io()).unwrap();
    let error = place.create(&io_dir, How::Copy, CopyBounds::default()).unwrap_err();
    assert!(error.to_string().contains("nested deeper than 128"), "{error}");
    place.assert_clean();
}

#[test]
fn stage_that_is_not_the_recorded_one_commits_nothing() {
    let place = Fixture::new();
    place.write("f", "old");
    let mut stage = place.stage();
    fs::write(stage.path().join("f"), "new").unwrap();
    let compared = stage.compare().unwrap();
    let interrupted = catch_unwind(AssertUnwindSafe(|| {
        stage.commit(&compared, |point| {
            if point == "journaled" {
                resume_unwind(Box::new(point));
            }
        })
    }));
    assert!(interrupted.is_err());
    let ours = stage.path().parent().unwrap().to_owned();
    stage.stage.die();
    // A writer of the parent replaces the io dir with a copy.
    let forged = place.root.path().join("forged");
    fs::rename(&ours, &forged).unwrap();
    let mut copy = std::process::Command::new("cp");
    assert!(copy.arg("-a").args([&forged, &ours]).status().unwrap().success());
    fs::write(ours.join("files/f"), "forged").unwrap();
    place.records().recover();
    assert_eq!(fs::read_to_string(place.io().join("f")).unwrap(), "old");
    assert!(ours.exists(), "it is not ours to remove");
}

#[test]
fn links_in_a_stage_lead_nowhere() {
    let place = Fixture::new();
    place.write("f", "old");
    let outside = place.root.path().join("outside");
    fs::write(&outside, "kept").unwrap();
    let mut stage = place.stage();
    symlink(&outside, stage.path().parent().unwrap().join("journal.part")).unwrap();
    fs::write(stage.path().join("f"), "new").unwrap();
    let compared = stage.compare().unwrap();
    stage.commit(&compared, |_| {}).unwrap_err();
    assert_eq!(fs::read_to_string(&outside).unwrap(), "kept");
    assert_eq!(fs::read_to_string(place.io().join("f")).unwrap(), "old");
}

/// Commits until `point` was reached for the `nth` time, and ends there as by `kill -9`.
fn interrupt(mut run: Run, point: &str, nth: usize) {
    let compared = run.compare().unwrap();
    let mut left = nth;
    let interrupted = catch_unwind(AssertUnwindSafe(|| {
        run.commit(&compared, |reached| {
            if reached == point {
                left -= 1;
                if left == 0 {
                    resume_unwind(Box::new(()));
                }
            }
        })
    }));
    assert!(interrupted.is_err(), "{point}");
    run.stage.die();
}

#[test]
fn recovery_keeps_what_was_changed_after_the_interruption() {
    for method in methods() {
        let place = Fixture::new();
        for name in ["a", "b", "c", "r", "d/kept"] {
            place.write(name, "old");
        }
        let run = place.run(method);
        for name in ["a", "b", "c", "d/new", "n"] {
            fs::write(run.path().join(name), "run").unwrap();
        }
        fs::remove_file(run.path().join("r")).unwrap();
        // Removed first, then `a` is replaced; the others wait.
        interrupt(run, "moving", 3);
        let io = place.io();
        assert_eq!(fs::read_to_string(io.join("a")).unwrap(), "run");
        for (name, content) in [("a", "mine"), ("b", "mine too"), ("n", "mine"), ("r", "mine")] {
            fs::write(io.join("temporary"), content).unwrap();
            fs::rename(io.join("temporary"), io.join(name)).unwrap();
        }
        fs::remove_dir_all(io.join("d")).unwrap();
        let records = place.records();
        records.recover();
        let [conflict] = &records.conflicts().take()[..] else { panic!("{method:?}") };
        let mut paths = conflict.paths.first.clone();
        paths.sort();
        assert_eq!((conflict.io_dir.as_str(), conflict.paths.more), (io.to_str().unwrap(), 0));
        assert_eq!(paths, ["b", "d/new", "n", "r"], "{method:?}");
        assert!(records.conflicts().take().is_empty());
        let found = ["a", "b", "c", "n", "r"].map(|it| fs::read_to_string(io.join(it)).unwrap());
        assert_eq!(found, ["mine", "mine too", "run", "mine", "mine"], "{method:?}");
        assert!(!io.join("d").exists());
        place.assert_clean();
    }
}

/// Files that something else creates or changes deep in a directory that the run removed or replaced,
/// before the move or after `kill -9`.
#[test]
fn directory_that_something_else_changed_deep_inside_does_not_go() {
    let removals: [fn(&Path); 2] = [
        |d| fs::remove_dir_all(d).unwrap(),
        |d| {
            fs::remove_dir_all(d).unwrap();
            fs::write(d, "a file").unwrap();
        },
    ];
    let changes: [fn(&Path); 2] = [
        |d| fs::write(d.join("sub/precious"), "mine").unwrap(),
        |d| fs::write(d.join("old"), "changed by another").unwrap(),
    ];
    for (method, removal, change, is_recovery) in methods().into_iter().flat_map(|method| {
        let all = removals.into_iter().flat_map(|removal| changes.map(|it| (removal, it)));
        all.flat_map(move |(removal, it)| [true, false].map(|live| (method, removal, it, live)))
    }) {
        let place = Fixture::new();
        place.write("d/sub/f", "old");
        place.write("d/old", "old");
        let mut run = place.run(method);
        removal(&run.path().join("d"));
        fs::write(run.path().join("z"), "run").unwrap();
        let d = place.io().join("d");
        if is_recovery {
            interrupt(run, "moving", 1);
            change(&d);
            place.records().recover();
        } else {
            let compared = run.compare().unwrap();
            let committed = run.commit(&compared, |reached| {
                if reached == "journaled" {
                    change(&d);
                }
            });
            assert_eq!(committed.unwrap(), Commit::Partial(vec![b"d".to_vec()]), "{method:?}");
            drop(run);
        }
        let seen = look(&place.io());
        assert!(seen.contains_key("d/sub/f") && seen["z"].content == b"run", "{seen:?}");
        let is_kept = seen.get("d/sub/precious").is_some_and(|it| it.content == b"mine")
            || seen["d/old"].content == b"changed by another";
        assert!(is_kept, "{method:?}: {seen:?}");
        place.assert_clean();
    }
}

#[test]
fn commit_moves_no_mount_that_appears_below_a_removed_directory() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for (method, is_recovery) in
        methods().into_iter().flat_map(|method| [true, false].map(|it| (method, it)))
    {
        let place = Fixture::new();
        place.write("d/x", "old");
        fs::create_dir(place.io().join("d/m")).unwrap();
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("foreign"), "content").unwrap();
        fs::set_permissions(data.path(), Permissions::from_mode(0o555)).unwrap();
        let mut run = place.run(method);
        fs::remove_dir_all(run.path().join("d")).unwrap();
        let at = place.io().join("d/m");
        let mount = || rustix::mount::mount_bind(data.path(), &at).unwrap();
        if is_recovery {
            interrupt(run, "journaled", 1);
            mount();
            place.records().recover();
        } else {
            let compared = run.compare().unwrap();
            run.commit(&compared, |reached| {
                if reached == "journaled" {
                    mount();
                }
            })
            .unwrap();
            drop(run);
        }
        let is_in_place = at.join("foreign").exists();
        let unmounted = rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty());
        assert!(is_in_place && unmounted.is_ok(), "{method:?}");
        assert_eq!(fs::metadata(data.path()).unwrap().mode() & 0o777, 0o555);
        assert!(place.io().join("d/x").exists());
        if is_recovery {
            // It waited.
            place.records().recover();
            assert!(!place.io().join("d").exists(), "{method:?}");
        }
        place.assert_clean();
    }
}

/// What is mounted, a file or directory of the io dir itself or another one, and the path of the
/// commit that it is in the way of.
#[test]
fn interrupted_commit_waits_until_nothing_is_mounted_in_its_way() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let cases = [
        ("b", false, "b"),
        ("b", true, "b"),
        ("d", false, "d/f"),
        ("d", true, "d/f"),
        ("m", false, "m"),
        ("r", false, "r"),
        ("r/x", false, "r"),
        ("r/x", true, "r"),
        ("r/sub", true, "r"),
        ("", false, "."),
    ];
    for (method, (at, is_other, blocked)) in
        methods().into_iter().flat_map(|method| cases.map(|case| (method, case)))
    {
        let what = format!("{at} {is_other} {method:?}");
        let place = Fixture::new();
        for name in ["a", "b", "d/f", "m/f", "r/sub/y", "r/x"] {
            place.write(name, "old");
        }
        let run = place.run(method);
        for name in ["a", "b", "d/f"] {
            fs::write(run.path().join(name), "run").unwrap();
        }
        fs::set_permissions(run.path().join("m"), Permissions::from_mode(0o700)).unwrap();
        fs::remove_dir_all(run.path().join("r")).unwrap();
        interrupt(run, "journaled", 1);
        let at = place.io().join(at);
        let other = tempfile::tempdir().unwrap();
        let source = match (is_other, at.is_dir()) {
            (false, _) => at.clone(),
            (true, true) => other.path().to_owned(),
            (true, false) => {
                fs::write(other.path().join("file"), "other").unwrap();
                other.path().join("file")
            }
        };
        rustix::mount::mount_bind(&source, &at).unwrap();
        let records = place.records();
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.push(records.leftovers());
            records.recover();
        }
        seen.push(records.leftovers());
        let a = fs::read_to_string(place.io().join("a")).unwrap();
        rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
        for left in &seen {
            let [left] = &left[..] else { panic!("{what}: {left:?}") };
            assert!(left.is_interrupted && left.missing.is_empty(), "{what}: {left:?}");
            assert_eq!((&*left.blocked.first, left.blocked.more), (&[blocked.to_owned()][..], 0));
            let advice = left.advice().unwrap();
            let expected = format!("cannot change {blocked}: unmount what is mounted there");
            assert!(advice.contains(&expected), "{what}: {advice}");
        }
        assert_eq!(a, if blocked == "." { "old" } else { "run" }, "{what}: the others are moved");
        let [left] = &records.leftovers()[..] else { panic!("{what}") };
        assert!(left.is_interrupted && left.advice().is_none(), "{what}: {left:?}");
        records.recover();
        assert!(records.conflicts().take().is_empty(), "{what}");
        let now = look(&place.io());
        assert_eq!(now.keys().collect::<Vec<_>>(), ["a", "b", "d", "d/f", "m", "m/f"], "{what}");
        assert!(["a", "b", "d/f"].iter().all(|name| now[*name].content == b"run"), "{what}");
        assert_eq!(now["m"].mode, 0o700, "{what}");
        place.assert_clean();
    }
}

#[test]
fn commit_that_a_power_cut_interrupted_is_completed_though_devices_have_other_numbers() {
    for method in methods() {
        let place = Fixture::new();
        place.write("f", "old");
        let run = place.run(method);
        fs::write(run.path().join("f"), "run").unwrap();
        interrupt(run, "journaled", 1);
        let set_device = || {
            let record = place.record();
            let text = fs::read(&record).unwrap();
            let mut recorded: serde_json::Value = serde_json::from_slice(&text).unwrap();
            for name in ["stage", "io_dir"] {
                recorded[name]["device"] = 1.into();
            }
            fs::write(&record, serde_json::to_vec(&recorded).unwrap()).unwrap();
        };
        set_device();
        place.records_of("next boot").recover();
        assert_eq!(fs::read_to_string(place.io().join("f")).unwrap(), "run", "{method:?}");
        place.assert_clean();
        // In one boot, what has another device is not what was recorded.
        let run = place.run(method);
        fs::write(run.path().join("f"), "next").unwrap();
        let stage = run.path().parent().unwrap().to_owned();
        interrupt(run, "journaled", 1);
        set_device();
        place.records().recover();
        assert_eq!(fs::read_to_string(place.io().join("f")).unwrap(), "run", "{method:?}");
        assert!(stage.exists());
    }
}

#[test]
fn records_of_a_filesystem_that_is_not_mounted_yet_are_kept() {
    let place = Fixture::new();
    place.write("f", "old");
    let run = place.stage();
    fs::write(run.path().join("f"), "run").unwrap();
    interrupt(run, "journaled", 1);
    let parent = place.root.path().join("disk");
    let next = place.records_of("next boot");
    // As if all of it were on a disk of its own.
    let record = place.record();
    let text = fs::read_to_string(&record).unwrap();
    let moved = text.replace(&*place.root.path().to_string_lossy(), &parent.to_string_lossy());
    fs::write(&record, &moved).unwrap();
    next.recover();
    assert!(record.exists() && next.leftovers()[0].missing.len() == 2);
    fs::write(&record, &text).unwrap();
    next.recover();
    assert_eq!(fs::read_to_string(place.io().join("f")).unwrap(), "run");
    place.assert_clean();
}

#[test]
fn records_that_another_user_could_have_written_are_not_followed() {
    let place = Fixture::new();
    place.write("f", "old");
    let run = place.stage();
    fs::write(run.path().join("f"), "run").unwrap();
    interrupt(run, "journaled", 1);
    for directory in ["records", "records/stages"] {
        let directory = place.root.path().join(directory);
        let set = |mode| fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
        set(0o777);
        place.records().recover();
        assert!(place.records().leftovers().is_empty());
        set(0o700);
    }
    assert_eq!(fs::read_to_string(place.io().join("f")).unwrap(), "old");
    place.records().recover();
    assert_eq!(fs::read_to_string(place.io().join("f")).unwrap(), "run");
    place.assert_clean();
}

#[test]
fn commit_that_has_ended_does_not_need_its_stage() {
    let place = Fixture::new();
    place.write("f", "old");
    let mut run = place.stage();
    fs::write(run.path().join("f"), "new").unwrap();
    let compared = run.compare().unwrap();
    assert_eq!(run.commit(&compared, |_| {}).unwrap(), Commit::Done);
    let ours = run.path().parent().unwrap().to_owned();
    run.stage.die();
    // Killed between the removal of the stage and that of its record.
    fs::remove_dir_all(ours).unwrap();
    place.records().recover();
    assert!(place.records().leftovers().is_empty());
    place.assert_clean();
}

#[test]
fn stage_in_use_is_left_alone_and_one_of_another_machine_too() {
    let place = Fixture::new();
    place.write("f", "old");
    let mut run = place.stage();
    fs::write(run.path().join("f"), "run").unwrap();
    place.records().recover();
    assert!(place.records().leftovers().is_empty());
    let compared = run.compare().unwrap();
    assert_eq!(run.commit(&compared, |_| {}).unwrap(), Commit::Done);
    drop(run);
    place.assert_clean();
    let run = place.stage();
    let stage = run.path().parent().unwrap().to_owned();
    let record = place.record();
    run.stage.die();
    let text = fs::read_to_string(&record).unwrap();
    let elsewhere = text.replacen("\"host\":\"", "\"host\":\"other", 1);
    assert_ne!(text, elsewhere);
    fs::write(&record, elsewhere).unwrap();
    place.records().recover();
    assert!(stage.exists() && record.exists());
    fs::write(&record, text).unwrap();
    assert_eq!(place.records().leftovers().len(), 1);
    place.records().recover();
    place.assert_clean();
}

/// A writer of the parent can move both away.
#[test]
fn interrupted_commit_waits_for_its_stage_and_its_io_dir_whatever_is_in_their_places() {
    let places: [fn(&Path); 4] = [
        |_| {},
        |at| fs::create_dir(at).unwrap(),
        |at| symlink("elsewhere", at).unwrap(),
        |at| fs::write(at, "").unwrap(),
    ];
    for (method, put, is_stage, boot) in methods().into_iter().flat_map(|method| {
        let all = places.into_iter().flat_map(|put| [true, false].map(|it| (put, it)));
        let all = all.flat_map(|(put, it)| ["this boot", "next boot"].map(|boot| (put, it, boot)));
        all.map(move |(put, it, boot)| (method, put, it, boot))
    }) {
        let place = Fixture::new();
        place.write("a", "old");
        place.write("b", "old");
        let run = place.run(method);
        for name in ["a", "b"] {
            fs::write(run.path().join(name), "run").unwrap();
        }
        let stage = place.stage_path();
        interrupt(run, "moving", 2);
        let [hidden, away] = [
            if is_stage { stage.clone() } else { place.io() },
            place.root.path().join("elsewhere"),
        ];
        fs::rename(&hidden, &away).unwrap();
        put(&hidden);
        let records = place.records_of(boot);
        // As the commands of days.
        let record = File::open(place.record()).unwrap();
        record.set_modified(SystemTime::now() - Duration::from_secs(30 * 24 * 3600)).unwrap();
        for _ in 0..2 {
            records.recover();
            let [left] = &records.leftovers()[..] else { panic!("{:?}", records.leftovers()) };
            assert!(left.is_interrupted);
            assert_eq!(left.missing, [hidden.to_str().unwrap()]);
            let advice = left.advice().unwrap();
            assert!(advice.contains(&format!("needs {}", hidden.display())), "{advice}");
            assert!(Path::new(&left.record).exists());
        }
        _ = fs::remove_file(&hidden).or_else(|_| fs::remove_dir(&hidden));
        fs::rename(&away, &hidden).unwrap();
        let [left] = &records.leftovers()[..] else { panic!("{:?}", records.leftovers()) };
        assert!(left.is_interrupted && left.missing.is_empty() && left.advice().is_none());
        records.recover();
        let found = ["a", "b"].map(|name| fs::read_to_string(place.io().join(name)).unwrap());
        assert_eq!(found, ["run", "run"], "{method:?}");
        place.assert_clean();
    }
}

#[test]
fn stage_without_a_commit_that_is_elsewhere_is_forgotten() {
    let place = Fixture::new();
    place.write("f", "old");
    let run = place.stage();
    let stage = run.path().parent().unwrap().to_owned();
    run.stage.die();
    fs::rename(&stage, place.root.path().join("elsewhere")).unwrap();
    assert!(place.records().leftovers().is_empty());
    place.records().recover();
    fs::remove_dir_all(place.root.path().join("elsewhere")).unwrap();
    place.assert_clean();
}

/// The controller was killed before the new record had the name of the old one.
#[test]
fn record_that_was_not_named_says_nothing() {
    let place = Fixture::new();
    place.write("f", "old");
    let run = place.stage();
    fs::write(run.path().join("f"), "run").unwrap();
    let record = place.record();
    run.stage.die();
    let text = fs::read_to_string(&record).unwrap();
    let started = text.replace("\"is_committing\":false", "\"is_committing\":true");
    assert_ne!(started, text);
    fs::write(record.with_extension("part"), started).unwrap();
    assert_eq!(place.records().leftovers().len(), 1);
    place.records().recover();
    assert_eq!(fs::read_to_string(place.io().join("f")).unwrap(), "old");
    place.assert_clean();
}

#[test]
fn stage_whose_removal_was_interrupted_is_removed_by_the_next_command() {
    for method in methods() {
        let place = Fixture::new();
        place.write("f", "old");
        let run = place.run(method);
        fs::write(run.path().join("f"), "run").unwrap();
        let files = place.stage_path().join("files");
        interrupt(run, "applied", 1);
        fs::remove_dir_all(files).unwrap();
        assert!(!place.records().leftovers()[0].is_interrupted);
        place.records().recover();
        assert_eq!(fs::read_to_string(place.io().join("f")).unwrap(), "run");
        place.assert_clean();
    }
}

#[test]
fn stage_is_beside_the_io_dir_itself_wherever_its_path_leads() {
    let place = Fixture::new();
    let parent = place.root.path().join("parent");
    let (moved, other) = (place.root.path().join("moved"), place.root.path().join("other"));
    for directory in [&parent.join("io"), &other.join("io")] {
        fs::create_dir_all(directory).unwrap();
    }
    let io_dir = File::open(parent.join("io")).unwrap();
    fs::rename(&parent, &moved).unwrap();
    symlink(&other, &parent).unwrap();
    for method in methods() {
        let stage = place.create(&io_dir, method, CopyBounds::default()).unwrap();
        let at = place.stage_path();
        assert_eq!(at.parent(), Some(&*moved), "{method:?}");
        // With an image nothing is in it before a commit.
        let is_empty = fs::read_dir(&at).unwrap().next().is_none();
        assert_eq!(is_empty, matches!(method, How::Image), "{method:?}");
        assert_eq!(place.recorded()["io_path"], moved.join("io").to_str().unwrap());
        drop(stage);
    }
    assert_eq!(fs::read_dir(&moved).unwrap().count(), 1);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
}

/// A bounded race: the parent is exchanged with a link to another directory, again and again.
#[test]
fn no_stage_is_made_where_a_link_in_place_of_the_parent_leads() {
    let place = Fixture::new();
    let [parent, link, other] =
        ["parent", "link", "other"].map(|name| place.root.path().join(name));
    for directory in [&parent.join("io"), &other.join("io")] {
        fs::create_dir_all(directory).unwrap();
    }
    symlink(&other, &link).unwrap();
    let io_dir = File::open(parent.join("io")).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                renameat_with(CWD, &parent, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let made = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..200 {
                let stage = place.create(&io_dir, How::Copy, CopyBounds::default()).unwrap();
                let at = path_of(stage.files()).unwrap();
                assert!(!at.starts_with(&other), "{}", at.display());
            }
        }));
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        made.unwrap();
    });
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
}

#[test]
fn directory_that_replaces_a_new_stage_is_not_used() {
    let place = Fixture::new();
    place.write("f", "old");
    let [precious, theirs] = ["precious", "theirs"].map(|name| place.root.path().join(name));
    let create = |with: &Path| {
        let io_dir = File::open(place.io()).unwrap();
        let exchange = &mut |point| {
            if point == "created" {
                let stages = fs::read_dir(place.root.path()).unwrap().map(|it| it.unwrap().path());
                let is_stage = |path: &PathBuf| path.to_str().unwrap().contains("-stage-");
                for stage in stages.filter(is_stage) {
                    fs::remove_dir(&stage).unwrap();
                    fs::rename(with, stage).unwrap();
                }
            }
        };
        let bounds = CopyBounds::default();
        let io_dir = io_dir.as_fd();
        let stage = Stage::create(io_dir, &place.records(), Method::Overlay, bounds, exchange);
        stage.unwrap_err().to_string()
    };
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "").unwrap();
    let error = create(&precious);
    assert!(error.contains("not empty"), "{error}");
    let names = fs::read_dir(place.root.path()).unwrap().map(|it| it.unwrap().path());
    let kept: Vec<_> = names.filter(|path| path.join("file").exists()).collect();
    assert_eq!(kept.len(), 1);
    fs::remove_dir_all(&kept[0]).unwrap();
    if rustix::process::geteuid().is_root() {
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(1000), Some(1000)).unwrap();
        let error = create(&theirs);
        assert!(error.contains("not permitted"), "{error}");
    }
    place.assert_clean();
}

#[test]
fn manifest_of_a_partial_commit_has_what_the_io_dir_has_now() {
    for method in methods() {
        let place = Fixture::new();
        for name in ["d/sub/f", "d/old", "d-kept", "e/f", "m/f"] {
            place.write(name, "old");
        }
        let mut run = place.run(method);
        fs::remove_dir_all(run.path().join("d")).unwrap();
        for name in ["d-kept", "e/f", "z"] {
            fs::write(run.path().join(name), "run").unwrap();
        }
        fs::set_permissions(run.path().join("m"), Permissions::from_mode(0o700)).unwrap();
        let compared = run.compare().unwrap();
        let mut manifest = run.manifest(&compared, 100);
        let before = manifest.changes.len();
        let io = place.io();
        let committed = run.commit(&compared, |reached| {
            if reached == "journaled" {
                fs::write(io.join("d/new"), "mine").unwrap();
                fs::write(io.join("e/f"), "mine, and longer").unwrap();
                fs::rename(io.join("m"), io.join("m-moved")).unwrap();
                fs::create_dir(io.join("m")).unwrap();
                fs::set_permissions(io.join("m"), Permissions::from_mode(0o751)).unwrap();
            }
        });
        let Commit::Partial(mut kept) = committed.unwrap() else { panic!("{method:?}") };
        kept.sort();
        assert_eq!(kept, [&b"d"[..], b"e/f", b"m"], "{method:?}");
        manifest.leave_out(&kept);
        let paths: Vec<_> = manifest.changes.iter().map(|it| it.path.to_string()).collect();
        assert_eq!(paths, ["d-kept", "z"], "{method:?}: of {before}");
        assert_eq!(fs::metadata(io.join("m")).unwrap().mode() & 0o777, 0o751, "it is another one");
        assert_eq!(fs::metadata(io.join("m-moved")).unwrap().mode() & 0o777, 0o755);
    }
}

#[test]
fn io_dir_that_is_removed_meanwhile_is_a_conflict() {
    for method in methods() {
        let place = Fixture::new();
        let mut run = place.run(method);
        fs::write(run.path().join("n"), "run").unwrap();
        fs::remove_dir(place.io()).unwrap();
        let compared = run.compare().unwrap();
        let committed = run.commit(&compared, |_| {}).unwrap();
        assert_eq!(committed, Commit::Conflicts(vec![b".".to_vec()]));
        drop(run);
        fs::create_dir(place.io()).unwrap();
        place.assert_clean();
    }
}

#[test]
fn directory_that_replaces_another_conflicts_with_changes_inside() {
    for method in methods() {
        let place = Fixture::new();
        place.write("d/f", "old");
        place.write("other/f", "precious");
        place.write("other/g", "precious");
        let mut run = place.run(method);
        fs::write(run.path().join("d/f"), "run").unwrap();
        fs::create_dir(run.path().join("x")).unwrap();
        fs::write(run.path().join("x/g"), "run").unwrap();
        fs::remove_dir_all(place.io().join("d")).unwrap();
        fs::rename(place.io().join("other"), place.io().join("d")).unwrap();
        let before = look(&place.io());
        let compared = run.compare().unwrap();
        let committed = run.commit(&compared, |_| {}).unwrap();
        let Commit::Conflicts(paths) = committed else { panic!("{method:?}: {committed:?}") };
        assert!(paths.contains(&b"d/f".to_vec()), "{method:?}: {paths:?}");
        drop(run);
        assert_eq!(look(&place.io()), before);
    }
}

#[test]
fn runs_that_make_the_same_directory_share_it_and_never_a_file() {
    for (second, is_conflict) in [("build/out", true), ("build/else", false)] {
        for method in methods() {
            let place = Fixture::new();
            let runs = [place.run(method), place.run(method)];
            for (run, (name, content)) in runs.iter().zip([("build/out", "one"), (second, "two")]) {
                fs::create_dir(run.path().join("build")).unwrap();
                fs::write(run.path().join(name), content).unwrap();
            }
            let [mut one, mut two] = runs;
            let compared = one.compare().unwrap();
            assert_eq!(one.commit(&compared, |_| {}).unwrap(), Commit::Done);
            let compared = two.compare().unwrap();
            let committed = two.commit(&compared, |_| {}).unwrap();
            // A copy does not know that the directory is another one.
            let is_conflict = is_conflict || method == How::Copy;
            assert_eq!(committed != Commit::Done, is_conflict, "{method:?}: {committed:?}");
            assert_eq!(fs::read(place.io().join("build/out")).unwrap(), b"one");
            assert_eq!(place.io().join(second).exists(), !is_conflict || second == "build/out");
        }
    }
}

#[test]
fn marks_of_overlays_on_the_io_dir_mean_nothing() {
    let place = Fixture::new();
    place.write("f", "old");
    place.write("d/f", "old");
    for directory in [place.io(), place.io().join("d")] {
        for prefix in ["user", "trusted"] {
            let name = format!("{prefix}.overlay.opaque");
            _ = rustix::fs::setxattr(&directory, name, b"y", rustix::fs::XattrFlags::empty());
        }
    }
    for method in methods() {
        let run = place.run(method);
        assert_eq!(look(&run.path()), look(&place.io()));
        assert!(run.compare().unwrap().is_empty(), "{method:?}");
    }
}

#[test]
fn directory_in_the_place_of_a_stage_is_not_removed() {
    let place = Fixture::new();
    place.write("f", "old");
    let run = place.run(How::Copy);
    let ours = run.path().parent().unwrap().to_owned();
    fs::rename(&ours, place.root.path().join("elsewhere")).unwrap();
    fs::create_dir(&ours).unwrap();
    fs::write(ours.join("precious"), "").unwrap();
    drop(run);
    assert!(ours.join("precious").exists());
    assert_eq!(fs::read_dir(place.root.path().join("elsewhere")).unwrap().count(), 0);
}

#[test]
fn mode_of_the_io_dir_itself_is_a_change_and_only_if_the_run_changed_it() {
    for method in methods() {
        let place = Fixture::new();
        let mode = |mode| Permissions::from_mode(mode);
        fs::set_permissions(place.io(), mode(0o755)).unwrap();
        let mut run = place.run(method);
        fs::set_permissions(run.path(), mode(0o700)).unwrap();
        let compared = run.compare().unwrap();
        let manifest = run.manifest(&compared, 10);
        let [change] = &manifest.changes[..] else { panic!("{manifest:?}") };
        let before = change.before.as_ref().unwrap().mode.as_deref();
        assert_eq!((change.path.as_bytes(), change.op), (&b"."[..], ChangeOp::Mode));
        assert_eq!((change.mode.as_deref(), before), (Some("0700"), Some("0755")));
        assert_eq!(run.commit(&compared, |_| {}).unwrap(), Commit::Done);
        assert_eq!(fs::metadata(place.io()).unwrap().mode() & 0o777, 0o700);

        let mut run = place.run(method);
        fs::write(run.path().join("n"), "run").unwrap();
        fs::set_permissions(place.io(), mode(0o750)).unwrap();
        let compared = run.compare().unwrap();
        assert_eq!(run.commit(&compared, |_| {}).unwrap(), Commit::Done);
        assert_eq!(fs::metadata(place.io()).unwrap().mode() & 0o777, 0o750, "{method:?}");
    }
}

#[test]
fn attributes_that_a_run_changed_alone_are_committed() {
    use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
    for method in methods() {
        let place = Fixture::new();
        for name in ["set", "changed", "removed", "touched"] {
            place.write(name, name);
        }
        let set = |path: PathBuf, value: &[u8]| {
            setxattr(path, c"user.mark", value, XattrFlags::empty()).unwrap();
        };
        set(place.io().join("changed"), b"before");
        set(place.io().join("removed"), b"before");
        let mut run = place.run(method);
        set(run.path().join("set"), b"now");
        set(run.path().join("changed"), b"now");
        removexattr(run.path().join("removed"), c"user.mark").unwrap();
        set(run.path().join("touched"), b"now");
        removexattr(run.path().join("touched"), c"user.mark").unwrap();
        let compared = run.compare().unwrap();
        let manifest = run.manifest(&compared, 10);
        let changes = manifest.changes.iter().map(|it| (it.path.as_bytes(), it.op));
        let expected = [&b"changed"[..], b"removed", b"set"].map(|path| (path, ChangeOp::Mode));
        assert_eq!(changes.collect::<Vec<_>>(), expected, "{method:?}");
        assert_eq!(run.commit(&compared, |_| {}).unwrap(), Commit::Done);
        let mark = |name: &str| {
            let mut value = [0; 16];
            let length = getxattr(place.io().join(name), c"user.mark", &mut value).ok()?;
            Some(value[..length].to_vec())
        };
        let marks = ["set", "changed", "removed"].map(mark);
        assert_eq!(marks, [Some(b"now".to_vec()), Some(b"now".to_vec()), None], "{method:?}");
    }
}

#[test]
fn name_in_a_diff_is_one_line() {
    let place = Fixture::new();
    let run = place.run(How::Copy);
    fs::write(run.path().join("q\n+++ b\"evil"), "line\n").unwrap();
    fs::write(run.path().join("a name"), "line\n").unwrap();
    let diff = String::from_utf8(run.diff(&run.compare().unwrap(), &<[u8]>::to_vec)).unwrap();
    assert_eq!(diff.lines().count(), 12, "{diff}");
    assert!(diff.contains("\n+++ \"b/q\\n+++ b\\\"evil\"\n"), "{diff}");
    // As GNU diff ends it.
    assert!(diff.contains("\n+++ b/a name\t\n"), "{diff}");
}

/// Files, links and their content, by path.
type Tree = BTreeMap<Vec<u8>, (bool, Option<Vec<u8>>)>;

/// A tree below a directory: of each path whether it may be executed, and its content, or none of a
/// link.
fn tree_of(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            if found.is_symlink() {
                let target = fs::read_link(&path).unwrap().into_os_string().into_vec();
                tree.insert(name, (false, Some(target)));
            } else if found.is_dir() {
                folders.push(path);
            } else {
                let content = [&b"file "[..], &fs::read(&path).unwrap()].concat();
                tree.insert(name, (found.mode() & 0o100 != 0, Some(content)));
            }
        }
    }
    tree
}

/// Any path and content.
fn entry() -> impl Strategy<Value = (Vec<u8>, u8, Vec<u8>)> {
    let part = proptest::sample::select(vec![
        &b"a"[..],
        b"b",
        b" ",
        b"\"",
        b"\\",
        b"\n",
        b"\t",
        b"\r",
        b"\xff",
        "\u{e9}".as_bytes(),
        b"-",
        b"+",
        b"=",
        b"/",
    ]);
    let line = proptest::sample::select(vec![
        &b"x"[..],
        b"\n",
        b"y\n",
        b"\r\n",
        b"\r",
        b"\0",
        b"\xff",
        b" ",
        b"\t",
        b"@@ -1 +1 @@\n",
        b"--- a/x\n",
        b"diff --git a/x b/x\n",
        b"\\",
    ]);
    let path = proptest::collection::vec(part, 1..5).prop_map(|parts| parts.concat());
    let path = path.prop_filter("a path", |path| {
        path.split(|&byte| byte == b'/').all(|name| !name.is_empty())
    });
    let content = proptest::collection::vec(line, 0..30).prop_map(|lines| lines.concat());
    (path, 0..6_u8, content)
}

/// Replaces whatever exists with the file or link.
fn put(root: &Path, (path, kind, content): &(Vec<u8>, u8, Vec<u8>)) {
    let path = root.join(OsStr::from_bytes(path));
    // A file may be in the way of a directory, and the other way round.
    for above in path.ancestors().skip(1).take_while(|above| *above != root) {
        if above.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
            fs::remove_file(above).unwrap();
        }
    }
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(&path).unwrap(),
        Ok(_) => fs::remove_file(&path).unwrap(),
        Err(_) => fs::create_dir_all(path.parent().unwrap()).unwrap(),
    }
    match kind {
        0 => {}
        1 => {
            let target: Vec<_> = content.iter().copied().filter(|&byte| byte != 0).collect();
            let target = if target.is_empty() { b"x".to_vec() } else { target };
            symlink(OsStr::from_bytes(&target), &path).unwrap();
        }
        kind => {
            fs::write(&path, content).unwrap();
            let mode = if *kind == 2 { 0o755 } else { 0o644 };
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn diff_that_git_and_patch_apply_gives_the_new_tree(
        old in proptest::collection::vec(entry(), 0..5),
        new in proptest::collection::vec(entry(), 1..5),
        again in any::<[bool; 5]>(),
    ) {
        let place = Fixture::new();
        old.iter().for_each(|entry| put(&place.io(), entry));
        let trees = ["git", "patch"].map(|name| place.root.path().join(name));
        for tree in &trees {
            fs::create_dir(tree).unwrap();
            old.iter().for_each(|entry| put(tree, entry));
        }
        let run = place.run(How::Copy);
        // Some of what is there gets another content.
        for ((path, kind, content), _) in old.iter().zip(again).filter(|(_, again)| *again) {
            put(&run.path(), &(path.clone(), *kind, [&content[..], b"\nmore\r\n"].concat()));
        }
        new.iter().for_each(|entry| put(&run.path(), entry));
        let expected = tree_of(&run.path());
        let before = tree_of(&place.io());
        // `patch` removes files last, and has no place for a directory until then.
        let is_below = |one: &Vec<u8>, other: &Vec<u8>| {
            one.strip_prefix(&other[..]).is_some_and(|rest| rest.starts_with(b"/"))
        };
        let swaps = before.keys().any(|one| {
            expected.keys().any(|other| is_below(one, other) || is_below(other, one))
        });
        prop_assume!(before != expected);
        let diff = run.diff(&run.compare().unwrap(), &<[u8]>::to_vec);
        let diff = [&diff[..], b"note: discarded 1 change (--commit never)\n"].concat();
        let file = place.root.path().join("changes.diff");
        fs::write(&file, &diff).unwrap();
        let apply: [&[&str]; 2] =
            [&["apply", "--whitespace=nowarn", "../changes.diff"], &["-p1", "-s", "-i", "../changes.diff"]];
        for (tree, args) in trees.iter().zip(apply).take(if swaps { 1 } else { 2 }) {
            let program = tree.file_name().unwrap();
            let mut command = std::process::Command::new(program);
            command.args(args).current_dir(tree).env("GIT_CEILING_DIRECTORIES", place.root.path());
            let done = command.output().unwrap();
            prop_assert!(done.status.success(), "{program:?}: {done:?}\n{}", String::from_utf8_lossy(&diff));
            prop_assert_eq!(&tree_of(tree), &expected, "{:?}\n{}", program, String::from_utf8_lossy(&diff));
        }
    }
}
