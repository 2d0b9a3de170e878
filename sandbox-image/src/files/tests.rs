//! Tests of this module's guarantees, with both resolvers, over real directories.

mod container;
mod operations;
mod races;
mod search;
pub(crate) mod setup;
mod slashes;
mod trees;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use sandbox_dirfd::Resolver;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{Access, Change, EntryKind, Limits};

use self::operations::watch;
use self::setup::{EVERY_MODE, LIMITS, RESOLVERS, Setup};
use super::open::OpenFile;
use super::{FileError, Files, OpenMode};

/// A fresh directory and its files, once with each resolver.
fn on_both(test: impl for<'a> Fn(&'a Path, &dyn Fn() -> Setup<'a>)) {
    for resolver in RESOLVERS {
        let directory = tempfile::tempdir().unwrap();
        let io = directory.path().join("io");
        fs::create_dir(&io).unwrap();
        let setup = || Setup { resolver, ..Setup::io(&io) };
        test(&io, &setup);
    }
}

fn kind<T>(result: Result<T, FileError>) -> ErrorKind {
    result.map(drop).unwrap_err().kind
}

fn text<T>(result: Result<T, FileError>) -> String {
    result.map(drop).unwrap_err().to_string()
}

fn write(file: OpenFile, bytes: &[u8]) {
    fs::File::from(file.fd).write_all(bytes).unwrap();
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn the_kernel_of_the_tests_has_both_resolvers() {
    let directory = tempfile::tempdir().unwrap();
    let (files, _) = Setup::io(directory.path()).open();
    assert_eq!(files.mounts.resolver, Resolver::Openat2);
    let root = fs::File::open(directory.path()).unwrap();
    use std::os::fd::AsFd as _;
    assert_eq!(sandbox_dirfd::probe(root.as_fd()), Resolver::Openat2);
}

#[test]
fn each_mode_opens_as_the_manual_says() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        fs::write(io.join("old"), b"12345").unwrap();
        for (mode, size, left) in [
            (OpenMode::Read, 5, "12345"),
            (OpenMode::ReadUpdate, 5, "12345"),
            (OpenMode::Append, 5, "12345"),
            (OpenMode::AppendUpdate, 5, "12345"),
            (OpenMode::WriteUpdate, 0, ""),
            (OpenMode::Write, 0, ""),
        ] {
            let file = files.open(b"old", mode).unwrap();
            assert_eq!((file.size, file.path.to_string().as_str()), (size, "/io/old"), "{mode:?}");
            assert_eq!(fs::read_to_string(io.join("old")).unwrap(), left, "{mode:?}");
        }
        for mode in [OpenMode::Read, OpenMode::ReadUpdate] {
            assert_eq!(text(files.open(b"new", mode)), "new: No such file or directory");
        }
        for (name, mode) in [
            ("w", OpenMode::Write),
            ("a", OpenMode::Append),
            ("w+", OpenMode::WriteUpdate),
            ("a+", OpenMode::AppendUpdate),
        ] {
            write(files.open(name.as_bytes(), mode).unwrap(), b"x");
            write(files.open(name.as_bytes(), OpenMode::Append).unwrap(), b"y");
            assert_eq!(fs::read_to_string(io.join(name)).unwrap(), "xy", "{mode:?}");
        }
    });
}

#[test]
fn write_modes_make_missing_parents_and_count_them() {
    on_both(|io, setup| {
        let limits = Limits { entries: 4, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        write(files.open(b"a/b/c.txt", OpenMode::Write).unwrap(), b"x");
        assert_eq!(fs::read(io.join("a/b/c.txt")).unwrap(), b"x");
        let error = files.open(b"a/d/e", OpenMode::Append).unwrap_err();
        assert_eq!(error.to_string(), "too many files created (max 4)");
        assert_eq!((error.kind, error.errno.is_some()), (ErrorKind::TooManyFiles, false));
        assert_eq!(names(&io.join("a")), ["b"], "nothing is made before the check");
        files.open(b"a/b/c.txt", OpenMode::Write).unwrap();
        files.open(b"last", OpenMode::Write).unwrap();
        assert_eq!(kind(files.open(b"more", OpenMode::Write)), ErrorKind::TooManyFiles);
        assert_eq!(kind(files.open(b"missing/x", OpenMode::Read)), ErrorKind::NotFound);
    });
}

#[test]
fn entries_that_could_not_be_made_are_not_counted() {
    on_both(|_, setup| {
        let limits = Limits { entries: 1, ..LIMITS };
        let (files, announced) = Setup { limits, ..setup() }.open();
        let bad = [b'x'; 256];
        assert_eq!(kind(files.open(&bad, OpenMode::Write)), ErrorKind::InvalidPath);
        files.open(b"one", OpenMode::Write).unwrap();
        assert_eq!(announced.take().len(), 1);
    });
}

#[test]
fn a_link_is_followed_nowhere() {
    on_both(|io, setup| {
        let outside = io.parent().unwrap().join("secret");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), b"secret").unwrap();
        fs::create_dir(io.join("sub")).unwrap();
        fs::write(io.join("sub/real"), b"real").unwrap();
        symlink(outside.join("file"), io.join("last")).unwrap();
        symlink("sub/real", io.join("inside")).unwrap();
        symlink("nowhere", io.join("dangling")).unwrap();
        symlink(&outside, io.join("middle")).unwrap();
        symlink("sub", io.join("alias")).unwrap();
        symlink("/proc/self/fd", io.join("magic")).unwrap();
        symlink("loop", io.join("loop")).unwrap();
        let (files, announced) = setup().open();
        for written in [
            "last", "inside", "dangling", "middle/file", "middle/new", "alias/real", "alias/x/y",
            "magic/0", "loop", "loop/x", "last/x",
        ] {
            for mode in EVERY_MODE {
                let error = files.open(written.as_bytes(), mode).unwrap_err();
                assert_eq!(error.kind, ErrorKind::Symlink, "{written} {mode:?}: {error}");
                assert!(error.errno.is_none());
            }
        }
        for written in ["middle", "alias", "alias/.", "last", "loop", "middle/x", "magic"] {
            assert_eq!(kind(files.list(written.as_bytes())), ErrorKind::Symlink, "{written}");
        }
        for written in ["middle/file", "alias/real"] {
            assert_eq!(kind(files.remove(written.as_bytes())), ErrorKind::Symlink, "{written}");
            assert_eq!(kind(files.rename(written.as_bytes(), b"x", &watch())), ErrorKind::Symlink);
            assert_eq!(
                kind(files.rename(b"sub/real", written.as_bytes(), &watch())),
                ErrorKind::Symlink
            );
        }
        assert_eq!(announced.take(), [], "nothing was changed");
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"secret");
        assert_eq!(names(&outside), ["file"]);
    });
}

#[test]
fn a_link_is_removed_and_moved_itself() {
    on_both(|io, setup| {
        fs::write(io.join("target"), b"kept").unwrap();
        fs::create_dir(io.join("directory")).unwrap();
        for name in ["one", "two"] {
            symlink("target", io.join(name)).unwrap();
        }
        symlink("directory", io.join("three")).unwrap();
        let (files, announced) = setup().open();
        files.remove(b"one").unwrap();
        files.rename(b"two", b"moved", &watch()).unwrap();
        files.remove(b"three").unwrap();
        assert_eq!(names(io), ["directory", "moved", "target"]);
        assert_eq!(fs::read_link(io.join("moved")).unwrap(), Path::new("target"));
        assert_eq!(announced.take()[1], ("/io/two".into(), true, Change::Remove));
    });
}

#[test]
fn special_files_are_refused_at_once() {
    on_both(|io, setup| {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, io.join("fifo"), FileType::Fifo, mode, 0).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(io.join("socket")).unwrap();
        let mut special = vec!["fifo", "socket"];
        let null = rustix::fs::makedev(1, 3);
        if is_root() && mknodat(CWD, io.join("null"), FileType::CharacterDevice, mode, null).is_ok()
        {
            special.push("null");
        }
        let (files, announced) = setup().open();
        for name in special {
            for mode in EVERY_MODE {
                let error = files.open(name.as_bytes(), mode).unwrap_err();
                assert_eq!(error.kind, ErrorKind::SpecialFile, "{name} {mode:?}: {error}");
                assert!(error.errno.is_none());
            }
            assert_eq!(kind(files.list(name.as_bytes())), ErrorKind::NotADirectory);
            fs::write(io.join("f"), b"").unwrap();
            for refused in [
                files.remove(name.as_bytes()),
                files.rename(name.as_bytes(), b"moved", &watch()),
                files.rename(b"f", name.as_bytes(), &watch()),
            ] {
                let error = refused.unwrap_err();
                assert_eq!(error.to_string(), format!("{name}: not a regular file"));
                assert_eq!((error.kind, error.errno.is_some()), (ErrorKind::SpecialFile, false));
            }
            assert!(fs::symlink_metadata(io.join(name)).is_ok());
            assert_eq!(announced.take(), []);
        }
    });
}

#[test]
fn directories_are_no_files() {
    on_both(|io, setup| {
        fs::create_dir(io.join("d")).unwrap();
        fs::write(io.join("f"), b"").unwrap();
        let (files, announced) = setup().open();
        for written in ["d", "d/", ".", "/io", "/io/", "~", "./d/."] {
            for mode in EVERY_MODE {
                let error = files.open(written.as_bytes(), mode).unwrap_err();
                assert_eq!(error.kind, ErrorKind::IsDirectory, "{written} {mode:?}: {error}");
                assert!(error.errno.is_some());
            }
            let error = files.remove(written.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), format!("cannot remove directory '{written}'"));
            assert_eq!((error.kind, error.errno), (ErrorKind::IsDirectory, Some(Errno::ISDIR)));
        }
        for mode in EVERY_MODE {
            assert_eq!(text(files.open(b"f/", mode)), "f/: Not a directory");
            assert_eq!(text(files.open(b"f/x", mode)), "f/x: Not a directory");
        }
        assert_eq!(text(files.remove(b"f/")), "f/: Not a directory");
        assert_eq!(text(files.list(b"f")), "f: Not a directory");
        assert_eq!(text(files.open(b"new/", OpenMode::Write)), "new/: Is a directory");
        assert_eq!(kind(files.open(b"new/", OpenMode::Read)), ErrorKind::NotFound);
        assert_eq!(announced.take(), []);
        assert_eq!(names(io), ["d", "f"]);
    });
}

#[test]
fn paths_that_the_rules_refuse_reach_no_file() {
    on_both(|io, setup| {
        fs::write(io.parent().unwrap().join("outside"), b"secret").unwrap();
        fs::create_dir(io.parent().unwrap().join("io2")).unwrap();
        let (files, announced) = setup().open();
        let long = "x/".repeat(2048);
        let long_name = "x".repeat(256);
        for (written, kind) in [
            ("../outside", ErrorKind::PathEscape),
            ("a/../../outside", ErrorKind::PathEscape),
            ("/etc/passwd", ErrorKind::PathEscape),
            ("/io2/x", ErrorKind::PathEscape),
            ("/", ErrorKind::PathEscape),
            ("/proc/self/environ", ErrorKind::PathEscape),
            ("~/../x", ErrorKind::PathEscape),
            ("", ErrorKind::InvalidPath),
            ("a\0b", ErrorKind::InvalidPath),
            (&long, ErrorKind::InvalidPath),
            (&long_name, ErrorKind::InvalidPath),
        ] {
            let written = written.as_bytes();
            let errors = [
                files.open(written, OpenMode::Read).map(drop).unwrap_err(),
                files.open(written, OpenMode::Write).map(drop).unwrap_err(),
                files.list(written).map(drop).unwrap_err(),
                files.remove(written).unwrap_err(),
                files.rename(written, b"x", &watch()).unwrap_err(),
                files.rename(b"x", written, &watch()).unwrap_err(),
            ];
            for error in errors {
                assert_eq!((error.kind, error.errno.is_some()), (kind, false), "{error}");
            }
        }
        assert_eq!(announced.take(), []);
        assert!(names(io).is_empty());
    });
}

#[test]
fn odd_names_are_names_like_others() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        let longest = "n".repeat(255);
        let odd: [&[u8]; 8] = [
            longest.as_bytes(),
            b"...",
            b"-rf",
            b"a b\nc",
            b"\xff\xfe",
            b"~x",
            "naïve".as_bytes(),
            b"a:*?",
        ];
        for name in odd {
            write(files.open(name, OpenMode::Write).unwrap(), b"x");
            assert_eq!(files.open(name, OpenMode::Read).unwrap().size, 1);
        }
        let mut expected = odd.map(<[u8]>::to_vec);
        expected.sort();
        assert_eq!(files.list(b".").unwrap(), expected);
        files.open(b"./d/.//e/./f", OpenMode::Write).unwrap();
        files.open(b"/io/d/e/f", OpenMode::Read).unwrap();
        files.open(b"~/d/e/f", OpenMode::Read).unwrap();
        assert_eq!(names(&io.join("d/e")), ["f"]);
    });
}

#[test]
fn a_deep_tree_is_reached() {
    on_both(|_, setup| {
        let (files, _) = setup().open();
        let deep = format!("{}f", "d/".repeat(1000));
        write(files.open(deep.as_bytes(), OpenMode::Write).unwrap(), b"x");
        assert_eq!(files.open(deep.as_bytes(), OpenMode::Read).unwrap().size, 1);
        files.remove(deep.as_bytes()).unwrap();
        assert_eq!(kind(files.rename(b"d", b"e", &watch())), ErrorKind::TooLarge);
    });
}

#[test]
fn a_list_is_sorted_and_bounded() {
    on_both(|io, setup| {
        let limits = Limits { list_entries: 3, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        assert!(files.list(b".").unwrap().is_empty());
        for name in ["b", "a", "B"] {
            fs::write(io.join(name), b"").unwrap();
        }
        assert_eq!(files.list(b"/io/").unwrap(), [b"B", b"a", b"b"]);
        fs::create_dir(io.join("c")).unwrap();
        let error = files.list(b".").unwrap_err();
        assert_eq!(error.to_string(), ".: too many entries to list (max 3)");
        assert!(error.errno.is_none());
        assert_eq!(text(files.list(b"no")), "no: No such file or directory");
    });
}

#[test]
fn rename_does_what_posix_does() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        fs::write(io.join("a"), b"a").unwrap();
        fs::write(io.join("b"), b"b").unwrap();
        fs::create_dir(io.join("full")).unwrap();
        fs::write(io.join("full/x"), b"").unwrap();
        fs::create_dir(io.join("empty")).unwrap();
        assert_eq!(text(files.rename(b"no", b"x", &watch())), "no: No such file or directory");
        assert_eq!(text(files.rename(b"a", b"empty", &watch())), "empty: Is a directory");
        assert_eq!(text(files.rename(b"full", b"a", &watch())), "a: Not a directory");
        assert_eq!(
            text(files.rename(b"empty", b"full", &watch())),
            "full: Directory not empty; only an empty one is replaced"
        );
        assert_eq!(text(files.rename(b"full", b"full/in", &watch())), "full: Invalid argument");
        assert_eq!(text(files.rename(b"a", b"no/a", &watch())), "no/a: No such file or directory");
        assert_eq!(text(files.rename(b"a", b"c/", &watch())), "a: Not a directory");
        assert_eq!(kind(files.rename(b".", b"x", &watch())), ErrorKind::PermissionDenied);
        assert_eq!(names(io), ["a", "b", "empty", "full"]);
        announced.take();
        files.rename(b"a", b"b", &watch()).unwrap();
        assert_eq!(fs::read(io.join("b")).unwrap(), b"a");
        files.rename(b"full", b"empty", &watch()).unwrap();
        assert_eq!(names(io), ["b", "empty"]);
        files.rename(b"b", b"b", &watch()).unwrap();
        fs::hard_link(io.join("b"), io.join("twin")).unwrap();
        files.rename(b"b", b"twin", &watch()).unwrap();
        assert_eq!(
            announced.take(),
            [
                ("/io/a".into(), true, Change::Remove),
                ("/io/b".into(), true, Change::Write),
                ("/io/full/x".into(), true, Change::Remove),
                ("/io/empty/x".into(), false, Change::Write),
            ]
        );
    });
}

#[test]
fn changes_are_announced_before_they_happen_and_failures_taken_back() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        fs::write(io.join("old"), b"1").unwrap();
        let seen = || announced.take();
        let one = |path: &str, existed, change| vec![(path.to_owned(), existed, change)];

        files.open(b"old", OpenMode::Read).unwrap();
        files.open(b"old", OpenMode::Append).unwrap();
        let file = files.open(b"old", OpenMode::ReadUpdate).unwrap();
        assert_eq!(seen(), [], "nothing has changed yet");
        let announce = || files.announced.announce(&file.path, true, Change::Append).into_entry();
        let touch = announce();
        assert_eq!(seen(), one("/io/old", true, Change::Append));
        files.announced.take_back(&file.path, true, touch);
        assert_eq!(seen(), one("/io/old", true, Change::Failed));
        _ = announce();
        let touch = announce();
        files.announced.take_back(&file.path, true, touch);
        assert_eq!(seen(), one("/io/old", true, Change::Append), "the first change stands");

        files.open(b"new", OpenMode::Append).unwrap();
        assert_eq!(seen(), one("/io/new", false, Change::Append));
        files.open(b"new", OpenMode::Write).unwrap();
        assert_eq!(seen(), one("/io/new", true, Change::Write));
        files.open(b"new", OpenMode::WriteUpdate).unwrap();
        assert_eq!(seen(), []);
        files.remove(b"new").unwrap();
        assert_eq!(seen(), one("/io/new", true, Change::Remove));
        assert_eq!(kind(files.remove(b"new")), ErrorKind::NotFound);
        assert_eq!(seen(), []);
        assert_eq!(kind(files.rename(b"old", b"old/x", &watch())), ErrorKind::NotADirectory);
        assert_eq!(seen(), []);
    });
}

#[test]
fn a_failed_open_leaves_no_trace() {
    if is_root() {
        // Root can write everywhere; the mounts' own rules are tested elsewhere.
        return;
    }
    on_both(|io, setup| {
        fs::create_dir(io.join("locked")).unwrap();
        fs::set_permissions(io.join("locked"), fs::Permissions::from_mode(0o555)).unwrap();
        let (files, announced) = setup().open();
        let error = files.open(b"locked/x", OpenMode::Write).unwrap_err();
        assert_eq!(error.to_string(), "locked/x: Permission denied");
        let seen: Vec<_> = announced.take().into_iter().map(|(.., change)| change).collect();
        assert_eq!(seen, [Change::Write, Change::Failed]);
    });
}

#[test]
fn the_write_limit_is_all_or_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { write_bytes: 10, ..LIMITS };
    let (files, _) = Setup { limits, ..Setup::io(directory.path()) }.open();
    let file = fs::File::open(directory.path()).unwrap();
    files.quota.charge(&file, 8).unwrap();
    let error = files.quota.charge(&file, 3).unwrap_err();
    assert_eq!(error.to_string(), "write limit exceeded (10 bytes)");
    assert_eq!((error.kind, error.errno.is_some()), (ErrorKind::WriteLimit, false));
    files.quota.charge(&file, 2).unwrap();
    assert_eq!(files.written(), 10);
}

#[test]
fn each_mount_is_a_root_of_its_own() {
    on_both(|io, setup| {
        let input = io.parent().unwrap().join("input");
        fs::create_dir(&input).unwrap();
        fs::write(input.join("f"), b"in").unwrap();
        let single = io.parent().unwrap().join("single");
        fs::write(&single, b"one file").unwrap();
        let mounts = vec![
            ("/io", Access::Write, io),
            ("/in/data", Access::Read, &input),
            ("/in/single", Access::Read, &single),
            ("/out.txt", Access::Write, &single),
        ];
        let (files, announced) = Setup { mounts, ..setup() }.open();
        assert_eq!(files.open(b"/in/data/f", OpenMode::Read).unwrap().size, 2);
        assert_eq!(files.list(b"/in/data").unwrap(), [b"f"]);
        assert_eq!(files.open(b"/in/single", OpenMode::Read).unwrap().size, 8);
        assert_eq!(
            text(files.open(b"/in/single/", OpenMode::Read)),
            "/in/single/: Not a directory"
        );
        assert_eq!(kind(files.open(b"/in/single/x", OpenMode::Read)), ErrorKind::NotADirectory);
        assert_eq!(kind(files.list(b"/in/single")), ErrorKind::NotADirectory);
        assert_eq!(kind(files.open(b"/in", OpenMode::Read)), ErrorKind::PathEscape);
        assert_eq!(files.list(b"/in/").unwrap(), [&b"data"[..], b"single"]);
        let list = |depth, limit| operations::list(&files, "/in", depth, limit).unwrap();
        let (entries, truncated) = list(None, None);
        assert_eq!(operations::paths(&entries), ["data", "data/f", "single"]);
        assert_eq!((entries[2].kind, entries[2].size, truncated), (EntryKind::File, 8, false));
        for (depth, limit, names, truncated) in [
            (Some(1), None, &["data", "single"][..], false),
            (None, Some(1), &["data"], true),
            (None, Some(2), &["data", "data/f"], true),
            (None, Some(3), &["data", "data/f", "single"], false),
        ] {
            let (entries, is_cut) = list(depth, limit);
            assert_eq!((operations::paths(&entries), is_cut), (names.to_vec(), truncated));
        }
        let glob = |pattern| search::glob(&files, "/in", pattern).unwrap();
        assert_eq!(glob("*"), ["data", "single"]);
        assert_eq!(glob("**"), ["data", "data/f", "single"]);
        assert_eq!(glob("*/f"), ["data/f"]);
        for written in ["/in/letter.txt", "/in/letter.txt/x", "//in/./letter.txt"] {
            let error = files.open(written.as_bytes(), OpenMode::Read).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{written}: no input is called 'letter.txt' (--in SRC:letter.txt)")
            );
            assert_eq!((error.kind, error.errno), (ErrorKind::NotFound, Some(Errno::NOENT)));
        }
        for mode in EVERY_MODE.into_iter().skip(1) {
            for written in ["/in/data/f", "/in/data/new", "/in/single", "/in/letter.txt"] {
                let error = files.open(written.as_bytes(), mode).unwrap_err();
                let reason = "Read-only file system (inputs are read-only)";
                assert_eq!(error.to_string(), format!("{written}: {reason}"));
                assert_eq!((error.kind, error.errno.is_some()), (ErrorKind::ReadOnly, true));
            }
        }
        assert_eq!(kind(files.remove(b"/in/data/f")), ErrorKind::ReadOnly);
        fs::write(io.join("a"), b"").unwrap();
        assert_eq!(kind(files.rename(b"a", b"/in/data/a", &watch())), ErrorKind::ReadOnly);
        assert_eq!(kind(files.remove(b"/out.txt")), ErrorKind::PermissionDenied);
        let error = files.rename(b"a", b"/out.txt", &watch()).unwrap_err();
        assert_eq!(error.to_string(), "a: Invalid cross-device link");
        assert_eq!(announced.take(), []);
        write(files.open(b"/out.txt", OpenMode::Write).unwrap(), b"new");
        assert_eq!(fs::read(&single).unwrap(), b"new");
        assert_eq!(announced.take(), [("/out.txt".into(), true, Change::Write)]);
        fs::remove_file(&single).unwrap();
        fs::write(&single, b"another").unwrap();
        assert_eq!(kind(files.open(b"/in/single", OpenMode::Read)), ErrorKind::PathEscape);
    });
}

#[test]
fn another_file_system_is_not_entered() {
    if !is_root() {
        return;
    }
    // The sandbox's own rules can be tested without mounts: /dev/shm and /proc are other file
    // systems below /.
    for resolver in RESOLVERS {
        let mounts = vec![("/io", Access::Write, Path::new("/"))];
        let setup = Setup { mounts, resolver, ..Setup::io(Path::new("/")) };
        let (files, _) = setup.open();
        if fs::metadata("/proc").unwrap().dev() == fs::metadata("/").unwrap().dev() {
            return;
        }
        for written in ["/io/proc/version", "/io/proc/self/status"] {
            assert_eq!(
                kind(files.open(written.as_bytes(), OpenMode::Read)),
                ErrorKind::PathEscape,
                "{resolver:?} {written}"
            );
        }
        assert_eq!(kind(files.list(b"/io/proc")), ErrorKind::PathEscape, "{resolver:?}");
    }
}

#[test]
fn the_owners_policy_binds_every_operation() {
    on_both(|io, setup| {
        fs::create_dir(io.join("keep")).unwrap();
        fs::write(io.join("keep/f"), b"kept").unwrap();
        fs::create_dir(io.join("hidden")).unwrap();
        fs::create_dir(io.join(".git")).unwrap();
        fs::write(io.join("x"), b"").unwrap();
        let allowed = vec![
            ("/io/keep", Access::Read),
            ("/io/out", Access::Write),
            ("/io/deep/er", Access::Write),
            ("/io/.git", Access::Write),
            ("/io/x", Access::Write),
            ("/io/y", Access::Write),
        ];
        let protected = vec![".bashrc", ".git/hooks"];
        let (files, announced) = Setup { allowed, protected, ..setup() }.open();
        files.open(b"keep/f", OpenMode::Read).unwrap();
        for result in [
            files.open(b"keep/f", OpenMode::Append).map(drop),
            files.open(b"hidden/f", OpenMode::Read).map(drop),
            files.list(b"hidden").map(drop),
            files.list(b".").map(drop),
            files.remove(b"keep/f"),
            files.rename(b"x", b"keep/x", &watch()),
            files.rename(b"x", b"hidden/x", &watch()),
            files.open(b"deep/er/f", OpenMode::Write).map(drop),
        ] {
            assert_eq!(kind(result), ErrorKind::NotAllowed);
        }
        for result in [
            files.open(b"out/.bashrc", OpenMode::Write).map(drop),
            files.open(b".git/hooks/pre-commit", OpenMode::Write).map(drop),
            files.rename(b"x", b"out/.bashrc", &watch()),
            files.rename(b".git", b"y", &watch()),
            files.rename(b"x", b".git", &watch()),
            files.remove(b".git/hooks"),
        ] {
            assert_eq!(kind(result), ErrorKind::Protected);
        }
        assert_eq!(announced.take(), []);
        files.open(b"out/f", OpenMode::Write).unwrap();
        fs::create_dir(io.join("deep")).unwrap();
        files.open(b"deep/er/f", OpenMode::Write).unwrap();
        files.open(b".git/config", OpenMode::Write).unwrap();
        assert_eq!(kind(files.open(b"out/.bashrc", OpenMode::Read)), ErrorKind::NotFound);
    });
}

#[test]
fn a_directory_with_something_read_only_in_it_does_not_move() {
    on_both(|io, setup| {
        fs::create_dir_all(io.join("d/keep")).unwrap();
        let allowed = vec![("/io", Access::Write), ("/io/d/keep", Access::Read)];
        let (files, _) = Setup { allowed, ..setup() }.open();
        assert_eq!(kind(files.rename(b"d", b"e", &watch())), ErrorKind::NotAllowed);
        fs::create_dir(io.join("n")).unwrap();
        assert_eq!(kind(files.rename(b"n", b"d", &watch())), ErrorKind::NotAllowed);
    });
}

#[test]
fn abandoned_handles_are_flushed_unless_in_use() {
    struct Buffered(std::sync::mpsc::Sender<u8>, u8);
    impl super::Flush for Buffered {
        fn flush_best_effort(&mut self) -> Result<(), FileError> {
            self.0.send(self.1).unwrap();
            Err(FileError::system(Errno::NOSPC, &[b'0' + self.1]))
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let (files, _) = Setup::io(directory.path()).open();
    let (sender, flushed) = std::sync::mpsc::channel();
    let handles: Vec<_> = (0..3)
        .map(|number| std::sync::Arc::new(std::sync::Mutex::new(Buffered(sender.clone(), number))))
        .collect();
    for handle in &handles {
        let weak: std::sync::Weak<std::sync::Mutex<Buffered>> = std::sync::Arc::downgrade(handle);
        files.register(weak);
    }
    let in_use = handles[1].lock().unwrap();
    let error = files.flush_all_best_effort().unwrap_err();
    assert_eq!(error.to_string(), "0: No space left on device");
    drop(in_use);
    assert_eq!(flushed.try_iter().collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn the_list_of_handles_does_not_grow_with_those_that_are_closed() {
    struct Nothing;
    impl super::Flush for Nothing {
        fn flush_best_effort(&mut self) -> Result<(), FileError> {
            Ok(())
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let (files, _) = Setup::io(directory.path()).open();
    for _ in 0..10_000 {
        let handle = std::sync::Arc::new(std::sync::Mutex::new(Nothing));
        let weak: std::sync::Weak<std::sync::Mutex<Nothing>> = std::sync::Arc::downgrade(&handle);
        files.register(weak);
    }
    assert!(files.handles.lock().unwrap().capacity() <= 64);
}

#[test]
fn the_nonce_is_read_once() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        let mounts = &files.mounts;
        fs::write(io.join("nonce"), b"abc").unwrap();
        assert_eq!(mounts.take_nonce("nonce").as_deref(), Some("abc"));
        assert!(names(io).is_empty());
        assert_eq!(mounts.take_nonce("nonce"), None);
        fs::write(io.join("big"), vec![b'x'; 4097]).unwrap();
        assert_eq!(mounts.take_nonce("big"), None);
        fs::write(io.parent().unwrap().join("outside"), b"secret").unwrap();
        symlink("../outside", io.join("link")).unwrap();
        for name in ["link", "../outside", "", ".", "a/b"] {
            assert_eq!(mounts.take_nonce(name), None, "{name}");
        }
    });
}

#[test]
fn strerror_is_what_lua_prints() {
    for (errno, words) in [
        (Errno::NOENT, "No such file or directory"),
        (Errno::ROFS, "Read-only file system"),
        (Errno::NOSPC, "No space left on device"),
        (Errno::BADF, "Bad file descriptor"),
    ] {
        let error = FileError::system(errno, b"f");
        assert_eq!(error.to_string(), format!("f: {words}"));
        assert_eq!(error.errno, Some(errno));
    }
}

/// `Files` is shared between the script's thread and its supervisor.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Files>();
};
