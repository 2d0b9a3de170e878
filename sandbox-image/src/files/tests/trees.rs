//! Removing and moving trees: deep ones, wide ones, and those that contain protected names.

use rustix::fs::{OFlags, mkdirat, openat};
use sandbox_protocol::WireString;
use sandbox_protocol::message::{Copy, Cut, CutBy, Glob, Grep, List, Rename};

use super::operations::{Disk, remove, tree, watch};
use super::*;
use crate::files::Watch;
use crate::files::calls::counted;
use crate::stop::{StopFlag, StopReason};

/// Creates nested directories as a command would; returns the deepest one.
fn chain(io: &Path, name: &str, depth: usize) -> fs::File {
    let mut here = fs::File::open(io).unwrap();
    for _ in 0..depth {
        mkdirat(&here, name, Mode::RWXU).unwrap();
        here = openat(&here, name, OFlags::RDONLY, Mode::empty()).unwrap().into();
    }
    here
}

/// The cost of removing a tree: calls, and directories that Landlock checks for them.
fn cost(files: &Files, path: &str, entries: u64) -> (u64, u64) {
    counted::CALLS.set(0);
    counted::STEPS.set(0);
    assert_eq!(remove(files, path, true).unwrap(), entries);
    (counted::CALLS.get(), counted::STEPS.get())
}

#[test]
fn the_cost_of_removing_a_tree_grows_with_its_entries_however_deep_they_are() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        let deep = |depth: usize| {
            chain(io, "d", depth);
            cost(&files, "d", depth as u64)
        };
        let (shallow, half, whole) = (deep(250), deep(500), deep(1_000));
        for (one, other, times) in [(shallow, half, 2), (half, whole, 2)] {
            // A tenth more, for depths that are not a multiple of the depth at which directories
            // are moved.
            let bound = |one: u64| one * times * 11 / 10;
            assert!(other.0 <= bound(one.0), "calls: {one:?} {other:?}");
            assert!(other.1 <= bound(one.1), "directories looked at: {one:?} {other:?}");
        }
        assert!(whole.0 <= 6 * 1_000, "{whole:?}");
        // Compared with a wide tree of as many directories.
        for number in 0..1_000 {
            fs::create_dir_all(io.join(format!("w/{}/{number}", number % 10))).unwrap();
        }
        let wide = cost(&files, "w", 1_011);
        assert!(whole.0 <= 2 * wide.0 && whole.1 <= 40 * wide.1, "{whole:?} {wide:?}");
        assert!(names(io).is_empty());
    });
}

#[test]
fn the_calls_of_removing_a_tree_grow_with_its_entries_where_names_are_protected_too() {
    on_both(|io, setup| {
        let (files, _) = Setup { protected: vec![".git"], ..setup() }.open();
        let calls = |depth: usize| {
            chain(io, "d", depth);
            cost(&files, "d", depth as u64).0
        };
        let (half, whole) = (calls(500), calls(1_000));
        assert!(whole <= 2 * half * 11 / 10, "{half} {whole}");
        assert!(names(io).is_empty());
    });
}

#[test]
fn rest_of_a_deep_tree_is_listed_and_can_be_removed() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        let deepest = chain(io, "d", 200);
        mkdirat(&deepest, "kept", Mode::RWXU).unwrap();
        let stopped = std::sync::Arc::new(StopFlag::default());
        stopped.stop(StopReason::Cancelled);
        let cancelled = Watch::new(stopped, std::time::Duration::from_secs(60));
        let removed = files.remove_entry(&tree("d"), &cancelled);
        assert_eq!(kind(removed), ErrorKind::Cancelled);
        // As an interrupted removal leaves it.
        fs::rename(io.join("d/d/d"), io.join("d/.sandboxctl-0123456789abcdef0123456789abcdef.rm"))
            .unwrap();
        let listed: Vec<_> = files.list(b"d").unwrap();
        assert_eq!(listed, [&b".sandboxctl-0123456789abcdef0123456789abcdef.rm"[..], b"d"]);
        assert_eq!(remove(&files, "d", true).unwrap(), 201);
        assert!(names(io).is_empty());
    });
}

#[test]
fn files_of_a_deep_tree_are_announced_by_the_paths_that_they_had() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        let deep = "d/".repeat(100);
        chain(io, "d", 100);
        fs::write(io.join(&deep).join("f"), b"x").unwrap();
        fs::write(io.join("d/f"), b"x").unwrap();
        assert_eq!(remove(&files, "d", true).unwrap(), 102);
        let mut paths: Vec<_> = announced.take().into_iter().map(|(path, ..)| path).collect();
        paths.sort();
        let mut expected = vec!["/io/d/f".to_owned(), format!("/io/{deep}f")];
        expected.sort();
        assert_eq!(paths, expected);
    });
}

#[test]
fn a_protected_name_stops_the_removal_of_its_tree_before_anything_has_gone() {
    for (protected, inner) in [(".git", ".git"), (".git/hooks", ".git/hooks"), (".git", "GIT~1")] {
        on_both(|io, setup| {
            fs::create_dir_all(io.join("d/a/b").join(inner)).unwrap();
            for name in ["d/0", "d/a/0", "d/z"] {
                fs::write(io.join(name), b"x").unwrap();
            }
            let (files, announced) = Setup { protected: vec![protected], ..setup() }.open();
            let error = remove(&files, "d", true).unwrap_err();
            assert_eq!(error.to_string(), format!("d/a/b/{inner}: a protected name"));
            assert_eq!(error.kind, ErrorKind::Protected);
            assert_eq!(announced.take(), []);
            assert_eq!(
                (names(&io.join("d")), names(&io.join("d/a"))),
                (
                    vec!["0".to_owned(), "a".to_owned(), "z".to_owned()],
                    vec!["0".to_owned(), "b".to_owned()],
                )
            );
        });
    }
}

#[test]
fn a_protected_name_stays_also_where_a_tree_is_too_large_to_be_looked_through() {
    on_both(|io, setup| {
        // Deeper than the longest path, and at the depth where directories are moved up.
        for depth in [31, 32, 33, 64, 65, 3_000] {
            let deepest = chain(io, "d", depth);
            mkdirat(&deepest, ".git", Mode::RWXU).unwrap();
            mkdirat(&deepest, ".git/hooks", Mode::RWXU).unwrap();
            for protected in [".git/hooks", "d/.git/hooks", ".git"] {
                let (files, _) = Setup { protected: vec![protected], ..setup() }.open();
                let refused = kind(remove(&files, "d", true));
                assert_eq!(refused, ErrorKind::Protected, "{depth}");
                // At every level of its path, which is too long to be named at once.
                let mut here = fs::File::open(io).unwrap();
                for name in std::iter::repeat_n("d", depth).chain([".git", "hooks"]) {
                    let opened = openat(&here, name, OFlags::RDONLY, Mode::empty());
                    here = opened.unwrap_or_else(|errno| panic!("{depth}: {name}: {errno}")).into();
                }
                assert_eq!((names(io), names(&io.join("d"))), (vec!["d".into()], vec!["d".into()]));
            }
            let (files, _) = setup().open();
            remove(&files, "d", true).unwrap();
        }
        let limits = Limits { list_entries: 5, ..LIMITS };
        fs::create_dir_all(io.join("d/.git")).unwrap();
        for name in 0..10 {
            fs::write(io.join(format!("d/{name}")), b"x").unwrap();
        }
        let (files, _) = Setup { protected: vec![".git"], limits, ..setup() }.open();
        assert_eq!(kind(remove(&files, "d", true)), ErrorKind::Protected);
        assert!(io.join("d/.git").exists());
    });
}

#[test]
fn a_protected_name_is_not_moved_by_a_directory_above_it() {
    for (protected, inner, named) in [
        (".git", ".git", ".git"),
        (".git", "a/b/.git", "a/b/.git"),
        (".git", ".git./x", ".git."),
        (".git", "git~1", "git~1"),
        (".git/hooks", ".git/hooks/x", ".git/hooks"),
        // Not even if it looks like a file that is still being written.
        (".git", ".sandboxctl-0123456789abcdef0123456789abcdef.tmp/.git", ""),
    ] {
        on_both(|io, setup| {
            fs::create_dir_all(io.join("proj").join(inner)).unwrap();
            fs::write(io.join("proj/f"), b"x").unwrap();
            let (files, announced) = Setup { protected: vec![protected], ..setup() }.open();
            for (from, to) in [("proj", "old"), ("proj/", "proj2/"), ("./proj", "~/old")] {
                for overwrite in [true, false] {
                    let request = Rename { overwrite, ..Rename::new(from, to) };
                    let error = files.rename_entry(&request, &watch()).unwrap_err();
                    assert_eq!(error.kind, ErrorKind::Protected, "{inner}: {error}");
                    assert!(error.to_string().contains(named), "{inner}: {error}");
                }
            }
            assert_eq!(announced.take(), []);
            assert_eq!(names(io), ["proj"]);
            // The rest is moved.
            fs::remove_dir_all(io.join("proj").join(inner.split('/').next().unwrap())).unwrap();
            files.rename(b"proj", b"old", &watch()).unwrap();
            assert_eq!(fs::read(io.join("old/f")).unwrap(), b"x");
        });
    }
}

#[test]
fn a_directory_with_a_protected_name_below_is_covered_by_none() {
    on_both(|io, setup| {
        let (files, _) = Setup { protected: vec![".git"], ..setup() }.open();
        fs::create_dir_all(io.join("proj/a/.git")).unwrap();
        fs::create_dir(io.join("empty")).unwrap();
        fs::write(io.join("file"), b"x").unwrap();
        for (from, overwrite, expected) in [
            ("empty", true, ErrorKind::NotEmpty),
            ("file", true, ErrorKind::IsDirectory),
            ("empty", false, ErrorKind::AlreadyExists),
            ("file", false, ErrorKind::AlreadyExists),
        ] {
            let onto = |to: &str| {
                let request = Rename { overwrite, ..Rename::new(from, to) };
                files.rename_entry(&request, &watch())
            };
            assert_eq!(kind(onto("proj")), expected, "{from} {overwrite}");
            // Nor the name itself, whatever its type.
            assert_eq!(kind(onto("proj/a/.git")), ErrorKind::Protected, "{from} {overwrite}");
        }
        assert_eq!(names(io), ["empty", "file", "proj"]);
        assert_eq!(names(&io.join("proj/a")), [".git"]);
    });
}

#[test]
fn a_directory_is_looked_through_in_one_walk() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        let mut expected = Vec::new();
        let deep = "d/".repeat(50);
        for branch in ["a", "b", "c"] {
            for inner in ["", "1", "2"] {
                let path = format!("{deep}{branch}/{inner}");
                fs::create_dir_all(io.join("top").join(&path)).unwrap();
                fs::write(io.join("top").join(&path).join("f"), b"x").unwrap();
                expected.push(format!("/io/moved/{path}/f").replace("//", "/"));
            }
        }
        counted::CALLS.set(0);
        files.rename(b"top", b"moved", &watch()).unwrap();
        // Enters and leaves each of 59 directories once.
        assert!(counted::CALLS.get() <= 2 * 59, "{}", counted::CALLS.get());
        let written = announced.take().into_iter().filter(|(.., change)| *change == Change::Write);
        let mut paths: Vec<_> = written.map(|(path, ..)| path).collect();
        paths.sort();
        expected.sort();
        assert_eq!(paths, expected);
    });
}

#[test]
fn a_directory_beyond_the_bounds_is_not_moved_and_the_error_says_which() {
    on_both(|io, setup| {
        let limits = Limits { list_entries: 20, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        fs::create_dir_all(io.join("deep").join("d/".repeat(64))).unwrap();
        let error = files.rename(b"deep", b"moved", &watch()).unwrap_err();
        assert_eq!(error.to_string(), "deep: too many entries to rename (max 20)");
        let (files, _) = setup().open();
        let error = files.rename(b"deep", b"moved", &watch()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge);
        let expected = "deep: directories are nested deeper than 64: too deep to rename";
        assert_eq!(error.to_string(), expected);
        // Many directories in one use no more descriptors than few.
        for number in 0..2_000 {
            fs::create_dir_all(io.join(format!("wide/{number}/d"))).unwrap();
        }
        files.rename(b"wide", b"moved", &watch()).unwrap();
        assert_eq!(names(&io.join("moved")).len(), 2_000);
        files.remove_entry(&tree("moved"), &watch()).unwrap();
        assert_eq!(names(io), ["deep"]);
    });
}

#[test]
fn entries_that_no_path_is_long_enough_for_are_left_out_and_not_copied() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        // The path of the 16th is the last one that an operation takes.
        let name = "n".repeat(250);
        let deepest = chain(io, &name, 17);
        mkdirat(&deepest, "d", Mode::RWXU).unwrap();
        let top = vec![&*name; 15].join("/");
        let every = List { recursive: true, ..List::new(&top) };
        let mut listed = Vec::new();
        let end = files.list_entries(&every, &watch(), |entry| {
            listed.push(entry.name);
            Ok(())
        });
        let end = end.unwrap();
        assert_eq!((listed.as_slice(), end.entries), (&[WireString::from(&name)][..], 1));
        let cut = Some(Cut { by: CutBy::Name, at: name.as_str().into() });
        assert_eq!(end.cut, cut);
        let glob = Glob { path: (&top).into(), ..Glob::new("**") };
        let found = files.glob(&glob, &watch()).unwrap();
        assert_eq!((found.names, found.cut), (listed, cut.clone()));
        let grep = Grep { path: (&top).into(), ..Grep::new("") };
        let found = files.grep(&grep, &watch()).unwrap();
        assert_eq!((found.files, found.cut), (0, cut));
        let request = Copy { recursive: true, ..Copy::new(&top, "c") };
        let copied = files.copy(&request, &watch());
        assert_eq!(kind(copied), ErrorKind::InvalidPath);
        assert!(!io.join("c").exists());
        // What has no path is removed with what has one.
        assert_eq!(remove(&files, &name, true).unwrap(), 18);
    });
}

#[test]
fn a_directory_is_not_moved_to_where_a_directory_in_it_has_no_path() {
    on_both(|io, setup| {
        drop(chain(io, "t", 1));
        drop(chain(&io.join("t"), &"d".repeat(255), 15));
        let (files, _) = setup().open();
        let refused = files.rename(b"t", "n".repeat(255).as_bytes(), &watch());
        assert_eq!(kind(refused), ErrorKind::InvalidPath);
        assert_eq!(names(io), ["t"]);
        files.rename(b"t", "n".repeat(200).as_bytes(), &watch()).unwrap();
    });
}

#[test]
fn a_directory_that_an_overlay_moves_in_part_stays_announced_and_the_error_says_so() {
    if !is_root() {
        // Only root can mount a file system here.
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    for name in ["lower/d/s", "disk", "io"] {
        fs::create_dir_all(place(name)).unwrap();
    }
    let _disk = Disk::mount(place("disk"), "size=512k,nr_inodes=64");
    for name in ["disk/upper", "disk/work"] {
        fs::create_dir(place(name)).unwrap();
    }
    // Each is copied before it is moved, and not all of them fit.
    let all = ["d/0", "d/1", "d/2", "d/3", "d/4", "d/s/0", "d/s/1", "d/s/2", "d/s/3", "d/s/4"];
    for file in all {
        fs::write(place("lower").join(file), [1; 64 << 10]).unwrap();
    }
    let [lower, upper, work] =
        ["lower", "disk/upper", "disk/work"].map(|name| place(name).display().to_string());
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off");
    let io = place("io");
    let _overlay = Disk::of("overlay", &io, &layers);
    fs::create_dir(io.join("new")).unwrap();
    let (files, announced) = Setup::io(&io).open();
    let error = files.rename(b"d", b"new", &watch()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DiskFull, "{error}");
    assert!(error.to_string().ends_with(" (the directory has been moved in part)"), "{error}");
    let moved = |file: &&&str| io.join(file.replacen('d', "new", 1)).exists();
    let count = all.iter().filter(moved).count();
    assert!((1..all.len()).contains(&count), "{count}");
    for file in &all {
        assert_ne!(io.join(file).exists(), moved(&file), "{file}");
    }
    let mut expected: Vec<_> = all
        .iter()
        .flat_map(|file| {
            let new = file.replacen('d', "new", 1);
            [
                (format!("/io/{file}"), true, Change::Remove),
                (format!("/io/{new}"), false, Change::Write),
            ]
        })
        .collect();
    let mut changes = announced.take();
    for changes in [&mut expected, &mut changes] {
        changes.sort_by(|a, b| a.0.cmp(&b.0));
    }
    assert_eq!(changes, expected);
}
