//! Staged io dirs, seen from outside: by walks that are independent of stages.

mod bad_input;
mod kills;
mod manifests;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use sha2::{Digest as _, Sha256};

use crate::fixture::{Fixture, finish};

/// Everything below a directory by its path, and the directory itself with an empty one.
type Tree = BTreeMap<Vec<u8>, Seen>;

/// What a walk finds at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    kind: &'static str,
    /// Zero for links, which have none.
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    /// Of a file, and of a link's target.
    bytes: Option<u64>,
    sha256: Option<String>,
    target: Option<Vec<u8>>,
}

impl Seen {
    fn at(path: &Path) -> Self {
        let metadata = fs::symlink_metadata(path).unwrap();
        let target = metadata.is_symlink().then(|| fs::read_link(path).unwrap().into_os_string());
        let target = target.map(OsStringExt::into_vec);
        let content = match metadata.is_file() {
            true => Some(fs::read(path).unwrap()),
            false => target.clone(),
        };
        let hex = |content: &Vec<u8>| -> String {
            Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
        };
        Self {
            kind: match metadata.file_type() {
                it if it.is_dir() => "directory",
                it if it.is_file() => "file",
                it if it.is_symlink() => "symlink",
                _ => "other",
            },
            mode: if target.is_some() { 0 } else { metadata.mode() & 0o7777 },
            owner: (metadata.uid(), metadata.gid()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            bytes: content.as_ref().map(|content| content.len() as u64),
            sha256: content.as_ref().map(hex),
            target,
        }
    }
}

fn tree(root: &Path) -> Tree {
    fn below(directory: &Path, root: &Path, tree: &mut Tree) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let seen = Seen::at(&path);
            let is_directory = seen.kind == "directory";
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            tree.insert(name, seen);
            if is_directory {
                below(&path, root, tree);
            }
        }
    }
    let mut tree = Tree::from([(Vec::new(), Seen::at(root))]);
    below(root, root, &mut tree);
    tree
}

/// The paths at which two trees differ, for a message.
fn difference(one: &Tree, other: &Tree) -> String {
    let paths = one.keys().chain(other.keys().filter(|path| !one.contains_key(*path)));
    let lines = paths.filter(|path| one.get(*path) != other.get(*path)).map(|path| {
        let path_text = String::from_utf8_lossy(path);
        format!("{path_text:?}:\n  {:?}\n  {:?}\n", one.get(path), other.get(path))
    });
    lines.collect()
}

#[track_caller]
fn assert_same(found: &Tree, expected: &Tree, what: &str) {
    assert!(found == expected, "{what}: found, expected\n{}", difference(found, expected));
}

/// The records in a scratch directory of an io dir's stages.
fn records(scratch: &Path, io_dir: &Path) -> Vec<PathBuf> {
    let records = fs::read_dir(scratch.join("stages")).into_iter().flatten();
    let records = records.map(|entry| entry.unwrap().path());
    let is_of = |record: &PathBuf| {
        let text = fs::read_to_string(record).unwrap_or_default();
        text.contains(&*io_dir.to_string_lossy())
    };
    records.filter(is_of).collect()
}

/// Asserts that an io dir is alone in its directory, and that no stage is in it, mounted, or recorded
/// in the scratch directory.
#[track_caller]
fn assert_no_stage_is_left(place: &Fixture, io_dir: &Path, what: &str) {
    let beside = fs::read_dir(io_dir.parent().unwrap()).unwrap();
    let beside = beside.map(|entry| entry.unwrap().file_name());
    let is_ours = |name: &OsStr| name.as_bytes().starts_with(b".sandboxctl");
    let inside = fs::read_dir(io_dir).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = beside.chain(inside).filter(|name| is_ours(name)).collect();
    assert_eq!(left, [""; 0], "{what}: stages are left");
    assert_eq!(
        records(&place.scratch(), io_dir),
        [""; 0].map(PathBuf::from),
        "{what}: records are left"
    );
    let mounts = String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned();
    let stage = format!("{}/.sandboxctl", io_dir.parent().unwrap().display());
    assert!(!mounts.contains(&stage), "{what}: mounts are left\n{mounts}");
}

/// A mount of the host, removed at its end even if the test fails.
struct HostMount(PathBuf);

impl HostMount {
    fn of(kind: &str, at: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&at).unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount(kind, &at, kind, MountFlags::empty(), options.as_c_str()).unwrap();
        Self(at)
    }

    /// An overlay at `merged` of the directory `lower`: an io dir in it has a copy as its stage.
    fn overlay(place: &Fixture) -> Self {
        for name in ["lower", "upper", "work"] {
            fs::create_dir_all(place.path(name)).unwrap();
        }
        let path = |name| place.path(name).display().to_string();
        let (lower, upper, work) = (path("lower"), path("upper"), path("work"));
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        Self::of("overlay", place.path("merged"), &options)
    }

    /// A disk, whose content is a file.
    fn disk(image: &Path, at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-o", "loop"]).arg(image).arg(&at);
        finish(mount).assert_code(0);
        Self(at)
    }

    /// A file or directory, mounted on itself.
    fn bind(at: PathBuf) -> Self {
        rustix::mount::mount_bind(&at, &at).unwrap();
        Self(at)
    }

    /// A directory that cannot be written to.
    fn read_only(at: PathBuf) -> Self {
        rustix::mount::mount_bind(&at, &at).unwrap();
        let flags = MountFlags::RDONLY | MountFlags::BIND;
        rustix::mount::mount_remount(&at, flags, c"").unwrap();
        Self(at)
    }
}

impl Drop for HostMount {
    fn drop(&mut self) {
        _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}
