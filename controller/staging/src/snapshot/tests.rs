use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sandbox_dirfd::open_child;

use super::*;

fn open_dir(dir: &Path) -> fs::File {
    fs::File::open(dir).unwrap()
}

fn take(dir: &Path) -> Snapshot {
    Snapshot::take(open_dir(dir), None, 1000)
}

fn changes(dir: &Path, change: impl FnOnce(&Path)) -> Vec<(String, FileOp, u64)> {
    let before = take(dir);
    // If the clock of the filesystem stood still, it would hide a change of the same size.
    let stamp = |dir: &Path| {
        fs::write(dir.join(".clock"), "").unwrap();
        let stat = rustix::fs::stat(dir.join(".clock")).unwrap();
        fs::remove_file(dir.join(".clock")).unwrap();
        (stat.st_mtime, stat.st_mtime_nsec)
    };
    let now = stamp(dir);
    while stamp(dir) == now {}
    change(dir);
    let FilesTouched { files, source, truncated } = before.changes(&take(dir));
    assert_eq!((source, truncated), (TouchedSource::Scan, false));
    files.into_iter().map(|file| (file.name.to_string(), file.op, file.bytes)).collect()
}

#[test]
fn a_scan_finds_what_was_made_changed_moved_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["same", "changed", "touched", "moved", "gone"] {
        fs::write(dir.path().join(name), "12").unwrap();
    }
    fs::create_dir_all(dir.path().join("old/sub")).unwrap();
    fs::write(dir.path().join("old/sub/f"), "1234").unwrap();
    let seen = changes(dir.path(), |dir| {
        fs::write(dir.join("changed"), "34").unwrap();
        // A file whose old modification time a program restores has changed all the same.
        let touched = fs::File::options().append(true).open(dir.join("touched")).unwrap();
        touched.set_modified(touched.metadata().unwrap().modified().unwrap()).unwrap();
        fs::rename(dir.join("moved"), dir.join("here")).unwrap();
        fs::remove_file(dir.join("gone")).unwrap();
        fs::rename(dir.join("old"), dir.join("new")).unwrap();
        fs::create_dir(dir.join("empty")).unwrap();
        symlink("same", dir.join("link")).unwrap();
        fs::write(dir.join("made-and-removed"), "1").unwrap();
        fs::remove_file(dir.join("made-and-removed")).unwrap();
    });
    let expected = [
        ("changed", FileOp::Write, 2),
        ("gone", FileOp::Remove, 0),
        ("here", FileOp::Write, 2),
        ("link", FileOp::Write, 0),
        ("moved", FileOp::Remove, 0),
        ("new/sub/f", FileOp::Write, 4),
        ("old/sub/f", FileOp::Remove, 0),
        ("touched", FileOp::Write, 2),
    ];
    assert_eq!(seen, expected.map(|(name, op, bytes)| (name.to_owned(), op, bytes)));
    assert_eq!(changes(dir.path(), |_| {}), []);
}

#[test]
fn a_scan_goes_through_no_link_and_names_survive_it() {
    let outside = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink("..", dir.path().join("up")).unwrap();
    let odd = OsStr::from_bytes(b"\xff");
    fs::create_dir(dir.path().join(odd)).unwrap();
    let before = take(dir.path());
    assert_eq!((before.usage.entries, before.coverage), (3, ScanCoverage::All));
    fs::write(outside.path().join("f"), "1").unwrap();
    fs::write(dir.path().join(odd).join(odd), "1").unwrap();
    let files = before.changes(&take(dir.path())).files;
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].name.as_bytes(), b"\xff/\xff");
}

#[test]
fn a_scan_that_was_cut_short_lists_only_what_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::write(dir.path().join(name), "1").unwrap();
    }
    let part = Snapshot::take(open_dir(dir.path()), None, 2);
    assert!(!part.is_whole && part.coverage == ScanCoverage::All && part.usage.entries == 3);
    for name in ["a", "b", "c", "d"] {
        fs::write(dir.path().join(name), "12").unwrap();
    }
    let found = part.changes(&take(dir.path()));
    // The third file may have existed before, and so may the new one.
    assert_eq!((found.files.len(), found.truncated), (2, true));
    // Nor is a file removed because the second scan did not find it.
    let found = take(dir.path()).changes(&Snapshot::take(open_dir(dir.path()), None, 1));
    assert_eq!((found.files.len(), found.truncated), (0, true));
}

#[test]
fn directory_counts_what_its_names_take_beyond_one_block() {
    let dir = tempfile::tempdir().unwrap();
    let mut stat = rustix::fs::stat(dir.path()).unwrap();
    stat.st_blksize = 4096;
    for (blocks, bytes) in [(0, 0), (8, 0), (16, 4096), (3072, 1_568_768)] {
        stat.st_blocks = blocks;
        assert_eq!(bytes_of_names(&stat), bytes, "{blocks}");
    }
}

#[test]
fn allocated_blocks_count_once_and_holes_hardly() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = || measure(open_dir(dir.path()), MAX_ENTRIES).0.bytes;
    let empty = bytes();
    fs::File::create(dir.path().join("sparse")).unwrap().set_len(1 << 30).unwrap();
    assert!(bytes() - empty < 1 << 20);
    let sparse = bytes();
    fs::write(dir.path().join("full"), vec![1; (4 << 20) + 1]).unwrap();
    // The rest of its last block does not count.
    assert_eq!(bytes() - sparse, (4 << 20) + 1);
    fs::hard_link(dir.path().join("full"), dir.path().join("again")).unwrap();
    assert_eq!(bytes() - sparse, (4 << 20) + 1);
    // Space that is allocated beyond a file's size counts.
    let ahead = fs::File::create(dir.path().join("ahead")).unwrap();
    let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&ahead, flags, 0, 1 << 20).unwrap();
    assert!(bytes() - sparse > 5 << 20);
}

#[test]
fn a_measurement_ends_at_its_bound_and_below_the_deepest_directory() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..20 {
        fs::write(dir.path().join(number.to_string()), "").unwrap();
    }
    let (usage, coverage) = measure(open_dir(dir.path()), 10);
    assert_eq!((usage.entries, coverage), (11, ScanCoverage::Cut));
    let deep = |depth| {
        let dir = tempfile::tempdir().unwrap();
        let path: std::path::PathBuf = std::iter::repeat_n("d", depth).collect();
        fs::create_dir_all(dir.path().join(path)).unwrap();
        measure(open_dir(dir.path()), MAX_ENTRIES)
    };
    assert_eq!(deep(MAX_DEPTH).1, ScanCoverage::All);
    let (usage, coverage) = deep(MAX_DEPTH + 1);
    assert_eq!((usage.entries as usize, coverage), (MAX_DEPTH + 1, ScanCoverage::Deep));
}

#[test]
fn unreadable_directory_of_the_owner_differs_from_a_foreign_one() {
    use rustix::fs::chmod;
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    let dir = tempfile::tempdir().unwrap();
    let hidden = dir.path().join("hidden");
    fs::create_dir(&hidden).unwrap();
    fs::write(hidden.join("f"), "1").unwrap();
    let coverage = || measure(open_dir(dir.path()), MAX_ENTRIES).1;
    std::thread::scope(|scope| {
        // Only this thread: root can read everything.
        let seen = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective &= !(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
            set_capabilities(None, sets).unwrap();
            [0o300, 0o600, 0o700].map(|mode| {
                chmod(&hidden, Mode::from_raw_mode(mode)).unwrap();
                coverage()
            })
        });
        assert_eq!(
            seen.join().unwrap(),
            [ScanCoverage::Hidden, ScanCoverage::Hidden, ScanCoverage::All]
        );
    });
}

#[test]
fn a_mount_in_the_io_dir_is_not_entered() {
    // The kernel's filesystems are mounts that every machine has.
    let root = open_dir(Path::new("/"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let open = |name: &[u8]| open_child(&root, name, flags);
    assert!(open(b"etc").is_ok());
    assert_eq!(open(b"proc").unwrap_err(), Errno::XDEV);
}

#[test]
fn nothing_outside_is_met_while_directories_become_links() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::sync::atomic::{AtomicBool, Ordering};

    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "").unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/f"), "").unwrap();
    symlink(outside.path(), dir.path().join("link")).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (a, b) = (dir.path().join("d"), dir.path().join("link"));
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let mut met = HashSet::new();
        for _ in 0..5000 {
            walk(open_dir(dir.path()), MAX_ENTRIES, |_, name, _| {
                met.insert(name.to_vec());
            });
        }
        over.store(true, Ordering::Relaxed);
        assert!(met.contains(&b"f"[..]) && !met.contains(&b"secret"[..]), "{met:?}");
    });
}
