//! The whole-file and tree operations in the same races.

use sandbox_protocol::message::{
    Edit, EntryKind, List, Mkdir, Remove, Rename, View, Write, WriteMode,
};

use super::*;
use crate::files::{Absent, Viewed};

fn put(files: &Files, path: &[u8], mode: WriteMode, atomic: bool) -> Result<(), FileError> {
    let request = Write { mode, atomic, ..Write::new(path) };
    let mut writing = files.write(request, Absent::Accept)?;
    writing.put(b"inside")?;
    writing.commit(&watch()).map(drop)
}

fn edit(files: &Files, path: &[u8], new: &str) -> Result<(), FileError> {
    match files.edit(&Edit::new(path, "inside", new), &watch()) {
        // It may occur any number of times; that is not tested here.
        Err(error) if error.kind == ErrorKind::InvalidRequest => Ok(()),
        other => other.map(drop),
    }
}

fn get(files: &Files, path: &[u8]) -> Result<(), FileError> {
    let mut reading = files.read(path, 0, None)?;
    while reading.left() > 0 {
        let piece = reading.next(&watch())?;
        assert!(!piece.starts_with(b"a secret"), "the secret is out");
    }
    Ok(())
}

fn view(files: &Files, path: &[u8]) -> Result<(), FileError> {
    if let Viewed::Text(_, window) = files.view(&View::new(path), &watch())? {
        assert!(!window.text.starts_with("a secret"), "the secret is out");
    }
    Ok(())
}

fn list(files: &Files, path: &[u8]) -> Result<(), FileError> {
    let all = List { recursive: true, ..List::new(path) };
    files.list_entries(&all, &watch(), |entry| {
        assert!(!entry.name.as_bytes().ends_with(b"empty"), "it lists what is outside");
        assert_ne!(entry.size, SECRET.len() as u64, "it tells what is outside");
        Ok(())
    })?;
    Ok(())
}

fn stat(files: &Files, path: &[u8]) -> Result<(), FileError> {
    let facts = files.stat(path)?;
    assert_ne!(facts.size, SECRET.len() as u64, "it tells what is outside");
    Ok(())
}

fn remove(files: &Files, path: &[u8]) -> Result<(), FileError> {
    let request = Remove { recursive: true, force: true, ..Remove::new(path) };
    files.remove_entry(&request, &watch()).map(drop)
}

/// How an operation is called; those that return content check it.
type Act<'a> = (&'a str, &'a dyn Fn() -> Result<(), FileError>);

/// Tries each operation in turn in a race, until every one has both succeeded and met a link.
#[track_caller]
fn race_all(swap: impl Fn() + Sync, tidy: impl Fn(), acts: &[Act<'_>]) {
    let mut tallies: Vec<Tally> = acts.iter().map(|_| Tally::default()).collect();
    race(swap, |round| {
        for ((_, act), tally) in acts.iter().zip(&mut tallies) {
            tally.note(act);
        }
        if round % 16 == 0 {
            tidy();
        }
        tallies.iter().all(Tally::both)
    });
}

#[test]
fn operations_below_a_directory_that_turns_into_a_link_stay_inside() {
    on_both(|arena| {
        let files = &*arena.files;
        let make = || {
            // One of the two names is the directory at any time; links are not followed here.
            for at in ["d", "link"] {
                if fs::symlink_metadata(arena.path(at)).is_ok_and(|stat| stat.is_dir()) {
                    _ = fs::create_dir_all(arena.path(at).join("d"));
                }
            }
        };
        fs::create_dir_all(arena.path("d/d")).unwrap();
        symlink(&arena.outside, arena.path("link")).unwrap();
        let (a, b) = (arena.path("d"), arena.path("link"));
        let acts: [Act<'_>; 14] = [
            ("overwrite", &|| put(files, b"d/file", WriteMode::Overwrite, true)),
            ("in place", &|| put(files, b"d/file", WriteMode::Overwrite, false)),
            ("append", &|| put(files, b"d/file", WriteMode::Append, true)),
            ("parents", &|| put(files, b"d/n/n/file", WriteMode::Overwrite, true)),
            ("mkdir", &|| files.mkdir(&Mkdir::new(b"d/m/m")).map(drop)),
            ("read", &|| get(files, b"d/file")),
            ("view", &|| view(files, b"d/file")),
            ("edit", &|| edit(files, b"d/file", "i")),
            ("list", &|| list(files, b"d")),
            ("exists", &|| files.exists(b"d/file").map(drop)),
            ("stat", &|| stat(files, b"d/d")),
            ("rename", &|| files.rename(b"d/file", b"d/new", &watch())),
            ("remove", &|| remove(files, b"d/new")),
            ("remove tree", &|| remove(files, b"d/n")),
        ];
        race_all(|| exchange(&a, &b), make, &acts);
    });
}

#[test]
fn a_tree_whose_directories_turn_into_links_is_removed_and_nothing_else() {
    on_both(|arena| {
        let files = &*arena.files;
        let (a, b) = (arena.path("t/a/d"), arena.path("t/link"));
        let tree = arena.path("t");
        let make = || {
            // In a directory without swapper, so that nothing here goes through its links.
            if fs::symlink_metadata(&tree).is_err() {
                fs::create_dir_all(arena.path("new/a/d/d/d")).unwrap();
                symlink(&arena.outside, arena.path("new/link")).unwrap();
                fs::write(arena.path("new/a/d/file"), "inside").unwrap();
                fs::rename(arena.path("new"), &tree).unwrap();
            }
        };
        make();
        let mut outcomes = BTreeSet::new();
        race(
            || exchange(&a, &b),
            |_| {
                // The tree belongs to the swapper: the result may be any known error.
                let mut tally = Tally::default();
                tally.note(|| list(files, b"t"));
                tally.note(|| remove(files, b"t"));
                outcomes.insert(fs::symlink_metadata(&tree).is_ok());
                make();
                outcomes.contains(&false)
            },
        );
    });
}

#[test]
fn a_target_that_turns_into_a_link_is_replaced_or_refused_and_never_followed() {
    on_both(|arena| {
        let files = &*arena.files;
        fs::create_dir(arena.path("d")).unwrap();
        let (a, b) = (arena.path("d/file"), arena.path("d/link"));
        let make = || {
            // If one of them is missing no exchange is possible, so create one of each again.
            _ = fs::remove_file(&a);
            _ = fs::remove_file(&b);
            symlink(arena.outside.join("file"), &b).unwrap();
            fs::File::options().create_new(true).write(true).open(&a).unwrap();
        };
        make();
        let file = b"d/file";
        let edit = || match edit(files, file, "i") {
            // The swapper changes it.
            Err(error) if error.kind == ErrorKind::Busy => Ok(()),
            other => other,
        };
        let acts: [Act<'_>; 8] = [
            ("overwrite", &|| put(files, file, WriteMode::Overwrite, true)),
            ("in place", &|| put(files, file, WriteMode::Overwrite, false)),
            ("append", &|| put(files, file, WriteMode::Append, true)),
            ("edit", &edit),
            ("read", &|| get(files, file)),
            ("view", &|| view(files, file)),
            ("mkdir below", &|| match files.mkdir(&Mkdir::new(b"d/file/x")) {
                // If it is a file no operation can succeed.
                Err(error) if error.kind == ErrorKind::NotADirectory => Ok(()),
                other => other.map(drop),
            }),
            ("list", &|| match list(files, file) {
                Err(error) if error.kind == ErrorKind::NotADirectory => Ok(()),
                other => other,
            }),
        ];
        let make_each_round = || {
            exchange(&a, &b);
            make();
        };
        race_all(|| exchange(&a, &b), make_each_round, &acts);
        let left: Vec<_> = fs::read_dir(arena.path("d")).unwrap().collect();
        assert!(left.len() <= 2, "temporary files are left: {left:?}");
    });
}

#[test]
fn operations_on_a_link_itself_never_reach_its_target() {
    on_both(|arena| {
        let files = &*arena.files;
        fs::create_dir(arena.path("d")).unwrap();
        let (a, b) = (arena.path("d/file"), arena.path("d/link"));
        let mut tallies: [Tally; 6] = Default::default();
        race(
            || exchange(&a, &b),
            |_| {
                _ = fs::remove_file(&a);
                _ = fs::remove_file(&b);
                symlink(arena.outside.join("file"), &b).unwrap();
                fs::write(&a, "x").unwrap();
                let [stat_it, exists, new, away, back, remove] = &mut tallies;
                stat_it.note(|| stat(files, b"d/file"));
                let kind = exists.note(|| files.exists(b"d/file")).unwrap().1;
                assert!(matches!(kind, Some(EntryKind::File | EntryKind::Symlink)), "{kind:?}");
                // Any type is in the way.
                let made = new.note(|| put(files, b"d/file", WriteMode::CreateNew, true));
                assert_eq!(made, None);
                away.note(|| files.rename_entry(&Rename::new("d/file", "d/moved"), &watch()));
                back.note(|| files.rename(b"d/moved", b"d/link", &watch()));
                let link = Remove { recursive: true, ..Remove::new("d/link") };
                remove.note(|| files.remove_entry(&link, &watch()));
                true
            },
        );
        let outcomes = tallies.map(|tally| tally.outcomes);
        assert_eq!(outcomes[0], BTreeSet::from([None]));
        assert_eq!(outcomes[2], BTreeSet::from([Some("already_exists")]));
        assert!(outcomes[3..].iter().all(|outcomes| outcomes.contains(&None)), "{outcomes:?}");
    });
}

#[test]
fn a_name_that_is_everything_in_turn_is_answered_at_once_by_every_operation() {
    on_both(|arena| {
        let files = &*arena.files;
        let mut tally = Tally::default();
        race(
            || everything_in_turn(arena),
            |_| {
                for path in [&b"x"[..], b"x/file"] {
                    for (mode, atomic) in [
                        (WriteMode::Overwrite, true),
                        (WriteMode::Overwrite, false),
                        (WriteMode::Append, true),
                        (WriteMode::CreateNew, true),
                    ] {
                        tally.note(|| put(files, path, mode, atomic));
                    }
                    tally.note(|| get(files, path));
                    tally.note(|| view(files, path));
                    tally.note(|| edit(files, path, "inside"));
                    tally.note(|| list(files, path));
                    tally.note(|| stat(files, path));
                    tally.note(|| files.exists(path));
                    tally.note(|| files.mkdir(&Mkdir::new(path)));
                    tally.note(|| files.rename_entry(&Rename::new(path, "y"), &watch()));
                    tally.note(|| files.rename(b"y", path, &watch()));
                    tally.note(|| remove(files, path));
                    tally.note(|| remove(files, b"y"));
                }
                tally.both()
            },
        );
    });
}

#[test]
fn a_mount_of_one_file_is_that_file_or_refused_by_every_operation() {
    use sandbox_protocol::message::Access;
    let root = tempfile::tempdir().unwrap();
    let (io, single, link) = ["io", "single", "link"].map(|name| root.path().join(name)).into();
    fs::create_dir(&io).unwrap();
    fs::write(root.path().join("secret"), SECRET).unwrap();
    symlink("secret", &link).unwrap();
    for resolver in RESOLVERS {
        fs::write(&single, "inside").unwrap();
        let mounts = vec![("/io", Access::Write, &*io), ("/one", Access::Write, &*single)];
        let (files, _) = Setup { mounts, resolver, ..Setup::io(&io) }.open();
        let files = &*files;
        let one = b"/one";
        let acts: [Act<'_>; 7] = [
            ("overwrite", &|| put(files, one, WriteMode::Overwrite, true)),
            ("in place", &|| put(files, one, WriteMode::Overwrite, false)),
            ("append", &|| put(files, one, WriteMode::Append, true)),
            ("edit", &|| edit(files, one, "i")),
            ("read", &|| get(files, one)),
            ("view", &|| view(files, one)),
            ("stat", &|| stat(files, one)),
        ];
        race_all(|| exchange(&single, &link), || {}, &acts);
        // Moved back to where the next operation expects it.
        if single.symlink_metadata().unwrap().is_symlink() {
            exchange(&single, &link);
        }
        assert_eq!(fs::read(root.path().join("secret")).unwrap(), SECRET);
    }
}
