use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::Stat;
use sandbox_dirfd::Resolver;
use sandbox_protocol::WireString;

use super::*;

fn io() -> GuestPath {
    GuestPath::new("/io").unwrap()
}

fn touched(path: &str, existed: bool, change: Change) -> Touched {
    Touched { request: 1, path: path.into(), existed, change }
}

fn scan(dir: &Path, announced: &[(&str, bool, Change)]) -> Vec<(String, FileOp, u64)> {
    let mut seen = TouchedPaths::default();
    for &(name, existed, change) in announced {
        let path = format!("/io/{name}");
        seen.record(&touched(&path, existed, change), Some(&io())).unwrap();
    }
    let root = fs::File::open(dir).unwrap();
    let files = seen.scan(&root, &io()).files;
    files.into_iter().map(|file| (file.name.to_string(), file.op, file.bytes)).collect()
}

#[test]
fn the_final_state_decides_what_became_of_a_file() {
    use Change::{Append, Failed, Remove, Write};
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("there"), "12345").unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("sub/f"), "1").unwrap();
    let file = |op, bytes| vec![("there".to_owned(), op, bytes)];
    let gone = vec![("gone".to_owned(), FileOp::Remove, 0)];
    for (announced, expected) in [
        (vec![("there", false, Write)], file(FileOp::Write, 5)),
        (vec![("there", true, Write)], file(FileOp::Write, 5)),
        (vec![("there", true, Append)], file(FileOp::Append, 5)),
        // Opened for append, but created by the run.
        (vec![("there", false, Append)], file(FileOp::Write, 5)),
        (vec![("there", true, Append), ("there", true, Write)], file(FileOp::Write, 5)),
        (vec![("there", true, Remove), ("there", false, Append)], file(FileOp::Write, 5)),
        // The removal was announced but not done.
        (vec![("there", true, Remove)], vec![]),
        (vec![("there", true, Write), ("there", true, Remove)], file(FileOp::Write, 5)),
        (vec![("gone", true, Remove)], gone.clone()),
        // Created and removed in the run.
        (vec![("gone", false, Write), ("gone", true, Remove)], gone.clone()),
        // Killed before it was created.
        (vec![("gone", false, Write)], vec![]),
        (vec![("gone", false, Append)], vec![]),
        (vec![("gone", true, Write)], gone),
        // Withdrawn.
        (vec![("there", true, Write), ("there", true, Failed)], vec![]),
        (
            vec![("there", true, Write), ("there", true, Failed), ("there", true, Append)],
            file(FileOp::Append, 5),
        ),
        (
            vec![("there", true, Append), ("there", true, Remove), ("there", true, Failed)],
            file(FileOp::Append, 5),
        ),
        (vec![("gone", false, Write), ("gone", true, Remove), ("gone", true, Failed)], vec![]),
        // Directories are not listed, but files in them are.
        (
            vec![("sub", false, Write), ("sub/f", false, Write)],
            vec![("sub/f".to_owned(), FileOp::Write, 1)],
        ),
        // A path whose parent is a file.
        (vec![("there/x", false, Write)], vec![]),
    ] {
        assert_eq!(scan(dir.path(), &announced), expected, "{announced:?}");
    }
}

#[test]
fn nothing_is_looked_at_through_a_link_either_way() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "12345678").unwrap();
    let dir = tempfile::tempdir().unwrap();
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), dir.path().join("link")).unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    symlink("../sub", dir.path().join("sub/self")).unwrap();
    fs::write(dir.path().join("sub/f"), "1").unwrap();
    let root = fs::File::open(dir.path()).unwrap();
    let root = Root::new(root.as_fd()).unwrap();
    let by_steps = Root { resolver: Resolver::Walk, ..root };
    for (name, expected) in [
        ("out/secret", None),
        ("sub/self/f", None),
        ("link", Some(State::Other)),
        ("sub/f", Some(State::File(1))),
        ("sub", Some(State::Directory)),
        ("nothing", Some(State::Absent)),
    ] {
        assert_eq!(state(&root, name.as_bytes()), expected, "{name}");
        let by_steps = by_steps.stat(name.as_bytes());
        let kind = by_steps.map(|stat| FileType::from_raw_mode(stat.st_mode));
        let expected = match expected {
            None => Err(Errno::LOOP),
            Some(State::Absent) => Err(Errno::NOENT),
            Some(State::File(_)) => Ok(FileType::RegularFile),
            Some(State::Directory) => Ok(FileType::Directory),
            Some(State::Other) => Ok(FileType::Symlink),
        };
        assert_eq!(kind, expected, "{name}, step by step");
    }
}

#[test]
fn nothing_outside_is_looked_at_while_names_change() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    /// Ends the swapper, even if the test fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f"), "outside").unwrap();
    fs::create_dir(outside.path().join("only")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/f"), "in").unwrap();
    symlink(outside.path(), dir.path().join("link")).unwrap();
    let root = fs::File::open(dir.path()).unwrap();
    let root = Root::new(root.as_fd()).unwrap();
    let by_steps = Root { resolver: Resolver::Walk, ..root };
    let inside = |stat: &Stat| stat.st_size == 2;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (a, b) = (dir.path().join("d"), dir.path().join("link"));
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let _over = Over(&over);
        let mut seen = BTreeSet::new();
        let since = Instant::now();
        for round in 0.. {
            match state(&root, b"d/f") {
                Some(State::File(2)) => seen.insert("inside"),
                None => seen.insert("refused"),
                other => panic!("{other:?}"),
            };
            match by_steps.stat(b"d/f") {
                Ok(stat) if inside(&stat) => seen.insert("inside by steps"),
                Err(Errno::LOOP) => seen.insert("refused by steps"),
                other => panic!("{other:?}"),
            };
            assert!(matches!(state(&root, b"d/only"), None | Some(State::Absent)));
            assert!(by_steps.stat(b"d/only").is_err());
            if round > 2000 && seen.len() == 4 {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(60), "{seen:?}");
        }
    });
}

#[test]
fn unreliable_paths_are_left_out_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    symlink("/", dir.path().join("out")).unwrap();
    let mut seen = TouchedPaths::default();
    seen.record(&touched("/io/out/f", true, Change::Write), Some(&io())).unwrap();
    let root = fs::File::open(dir.path()).unwrap();
    let scanned = seen.scan(&root, &io());
    assert!(scanned.files.is_empty() && scanned.truncated, "{scanned:?}");
}

#[test]
fn a_path_that_no_honest_agent_names_is_a_breach() {
    let mut seen = TouchedPaths::default();
    for path in ["/etc/passwd", "/iox", "io/x", "", "/io/../etc", "/io"] {
        let touched = touched(path, false, Change::Write);
        assert!(seen.record(&touched, Some(&io())).is_err(), "{path}");
        assert!(seen.record(&touched, None).is_err(), "{path}");
    }
}

#[test]
fn names_are_sorted_and_bytes_survive() {
    let dir = tempfile::tempdir().unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    fs::write(dir.path().join(odd), "1").unwrap();
    fs::write(dir.path().join("b"), "").unwrap();
    fs::write(dir.path().join("a"), "").unwrap();
    let mut seen = TouchedPaths::default();
    for path in [&b"/io/b"[..], b"/io/\xff", b"/io/a"] {
        let path = WireString::new(path);
        let touched = Touched { request: 1, path, existed: false, change: Change::Write };
        seen.record(&touched, Some(&io())).unwrap();
    }
    let root = fs::File::open(dir.path()).unwrap();
    let files = seen.scan(&root, &io()).files;
    let names: Vec<_> = files.iter().map(|file| file.name.as_bytes()).collect();
    assert_eq!(names, [&b"a"[..], b"b", b"\xff"]);
}

#[test]
fn an_endless_list_is_cut_and_says_so() {
    let mut seen = TouchedPaths::default();
    for number in 0..=MAX_FILES {
        let path = format!("/io/{number}");
        seen.record(&touched(&path, false, Change::Write), Some(&io())).unwrap();
    }
    assert_eq!(seen.paths.len(), MAX_FILES);
    assert!(seen.truncated);
}
