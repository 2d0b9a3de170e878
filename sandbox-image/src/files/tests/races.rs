//! File operations against an attacker who changes the same directories as fast as possible: links
//! for directories, links for files, anything for anything. Nothing outside is touched, and every
//! result is a success or a known error, within an operation's timeout.

mod operations;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, mknodat, renameat_with,
    utimensat,
};
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::Limits;

use super::super::{FileError, Files, OpenMode, Watch};
use super::setup::{EVERY_MODE, LIMITS, RESOLVERS, Recorded, Setup};

fn watch() -> Watch {
    Watch::new(Arc::default(), Duration::from_millis(LIMITS.operation_timeout_ms))
}

/// The minimum number of attempts of each operation against a swapper. `./scripts/test full` makes more,
/// and sets this variable.
fn rounds() -> usize {
    if std::env::var_os("SANDBOX_TEST_SEED").is_some() { 1500 } else { 400 }
}
/// How long a race lasts at most if one of its two outcomes does not occur: a busy machine lets one side wait.
const LONGEST_RACE: Duration = Duration::from_secs(60);

/// The errors that an operation may return when its files are swapped.
const NAMED: [ErrorKind; 10] = [
    ErrorKind::NotFound,
    ErrorKind::AlreadyExists,
    ErrorKind::IsDirectory,
    ErrorKind::NotADirectory,
    ErrorKind::NotEmpty,
    ErrorKind::Symlink,
    ErrorKind::SpecialFile,
    ErrorKind::TooLarge,
    ErrorKind::InvalidPath,
    ErrorKind::Busy,
];

const SECRET: &[u8] = b"a secret of the host, which is longer than anything inside";

/// An io dir, and a directory beside it that must not change.
struct Arena {
    _root: tempfile::TempDir,
    io: PathBuf,
    outside: PathBuf,
    before: Vec<Seen>,
    files: Arc<Files>,
    announced: Arc<Recorded>,
}

/// State that would differ if something had been read, written, created, removed or replaced.
#[derive(Debug, PartialEq)]
struct Seen {
    ino: u64,
    size: u64,
    links: u64,
    read: (i64, i64),
    changed: (i64, i64),
    named: (i64, i64),
}

/// Directories and files outside, with namesakes inside.
const OUTSIDE: [&str; 5] = ["", "file", "d", "d/file", "d/empty"];

impl Arena {
    fn new(setup: impl for<'a> Fn(Setup<'a>) -> Setup<'a>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (io, outside) = (root.path().join("io"), root.path().join("outside"));
        fs::create_dir(&io).unwrap();
        fs::create_dir_all(outside.join("d/empty")).unwrap();
        for file in ["file", "d/file"] {
            fs::write(outside.join(file), SECRET).unwrap();
        }
        for path in OUTSIDE {
            // Read before they were written: the next read would update it, with relatime too.
            let at = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
            let times = Timestamps { last_access: at(1), last_modification: at(2) };
            utimensat(CWD, outside.join(path), &times, AtFlags::empty()).unwrap();
        }
        let before = OUTSIDE.map(|path| seen(&outside.join(path))).into();
        let (files, announced) = setup(Setup::io(&io)).open();
        Self { _root: root, io, outside, before, files, announced }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.io.join(path)
    }

    #[track_caller]
    fn assert_nothing_outside_was_touched(&self) {
        let now: Vec<Seen> = OUTSIDE.map(|path| seen(&self.outside.join(path))).into();
        assert_eq!(now, self.before, "of {OUTSIDE:?}");
        for file in ["file", "d/file"] {
            assert_eq!(fs::read(self.outside.join(file)).unwrap(), SECRET);
        }
    }
}

fn seen(path: &Path) -> Seen {
    let stat = fs::symlink_metadata(path).unwrap();
    Seen {
        ino: stat.ino(),
        size: stat.size(),
        links: stat.nlink(),
        read: (stat.atime(), stat.atime_nsec()),
        changed: (stat.mtime(), stat.mtime_nsec()),
        named: (stat.ctime(), stat.ctime_nsec()),
    }
}

/// Stops the swappers, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The outcomes of an operation in all rounds.
#[derive(Default)]
struct Tally {
    outcomes: BTreeSet<Option<&'static str>>,
}

impl Tally {
    /// Records an outcome: it must be known, and within the operation's timeout.
    #[track_caller]
    fn note<T>(&mut self, operation: impl FnOnce() -> Result<T, FileError>) -> Option<T> {
        let since = Instant::now();
        let result = operation();
        let limit = Duration::from_millis(LIMITS.operation_timeout_ms);
        assert!(since.elapsed() < limit, "it took {:?}", since.elapsed());
        match result {
            Ok(value) => {
                self.outcomes.insert(None);
                Some(value)
            }
            Err(error) => {
                assert!(NAMED.contains(&error.kind), "{:?}: {error}", error.kind);
                self.outcomes.insert(Some(error.kind.as_str()));
                None
            }
        }
    }

    /// Whether both outcomes of the race occurred.
    fn both(&self) -> bool {
        self.outcomes.contains(&None) && self.outcomes.contains(&Some("symlink"))
    }
}

/// Calls `swap` in a thread of its own, and `act` until it reports that it has seen enough.
#[track_caller]
fn race(swap: impl Fn() + Sync, mut act: impl FnMut(usize) -> bool) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                swap();
            }
        });
        let _over = Over(&over);
        let (rounds, since) = (rounds(), Instant::now());
        for round in 0.. {
            let enough = act(round);
            if enough && round >= rounds {
                break;
            }
            assert!(enough || since.elapsed() < LONGEST_RACE, "one side of the race never won");
        }
    });
}

/// Once with each resolver.
fn on_both(test: impl Fn(&Arena)) {
    for resolver in RESOLVERS {
        let arena = Arena::new(|setup| Setup { resolver, ..setup });
        test(&arena);
        arena.assert_nothing_outside_was_touched();
    }
}

fn exchange(a: &Path, b: &Path) {
    // One of them may just be missing.
    _ = renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
}

/// An opened file has the content from inside; writes a few bytes if it may.
fn use_file(opened: Option<super::OpenFile>) {
    let Some(opened) = opened else { return };
    let mut file = fs::File::from(opened.fd);
    let mut content = Vec::new();
    if file.read_to_end(&mut content).is_ok() {
        assert!(!content.starts_with(b"a secret"), "the secret is out");
    }
    if opened.mode != OpenMode::Read {
        file.write_all(b"inside").unwrap();
    }
}

#[test]
fn a_directory_that_turns_into_a_link_lets_nothing_in_or_out() {
    on_both(|arena| {
        let files = &arena.files;
        fs::create_dir_all(arena.path("d/d")).unwrap();
        symlink(&arena.outside, arena.path("link")).unwrap();
        let mut tallies: [Tally; 12] = Default::default();
        let (a, b) = (arena.path("d"), arena.path("link"));
        race(
            || exchange(&a, &b),
            |round| {
                let [
                    read,
                    write,
                    append,
                    update,
                    list,
                    below,
                    remove,
                    deep,
                    make,
                    over,
                    away,
                    back,
                ] = &mut tallies;
                use_file(write.note(|| files.open(b"d/file", OpenMode::Write)));
                use_file(read.note(|| files.open(b"d/file", OpenMode::Read)));
                use_file(append.note(|| files.open(b"d/d/file", OpenMode::AppendUpdate)));
                use_file(update.note(|| files.open(b"d/d/file", OpenMode::ReadUpdate)));
                if let Some(names) = list.note(|| files.list(b"d")) {
                    assert!(!names.contains(&b"empty".to_vec()));
                }
                if let Some(names) = below.note(|| files.list(b"d/d/.")) {
                    assert!(!names.contains(&b"empty".to_vec()));
                }
                over.note(|| files.rename(b"d/file", b"d/d/file", &watch()));
                remove.note(|| files.remove(b"d/d/file"));
                make.note(|| files.open(b"d/n/n/n/file", OpenMode::WriteUpdate));
                deep.note(|| files.remove(b"d/n/n/n/file"));
                away.note(|| files.rename(b"d/d", b"d/moved", &watch()));
                back.note(|| files.rename(b"d/moved", b"d/d", &watch()));
                if round % 64 == 0 {
                    // So that parents must be created again, and no name is missing for good.
                    for at in [&a, &b] {
                        _ = fs::remove_dir_all(at.join("n"));
                    }
                }
                tallies.iter().all(Tally::both)
            },
        );
    });
}

#[test]
fn a_file_that_turns_into_a_link_is_not_followed() {
    on_both(|arena| {
        let files = &arena.files;
        fs::create_dir(arena.path("d")).unwrap();
        let (a, b) = (arena.path("d/file"), arena.path("d/link"));
        let target = arena.outside.join("file");
        let mut tallies: [Tally; EVERY_MODE.len()] = Default::default();
        let (mut remove, mut rename) = (Tally::default(), Tally::default());
        race(
            || exchange(&a, &b),
            |_| {
                // One of each again: an exchange may have left two of the same kind.
                _ = fs::remove_file(&b);
                _ = symlink(&target, &b);
                _ = fs::File::options().create_new(true).write(true).open(&a);
                for (tally, mode) in tallies.iter_mut().zip(EVERY_MODE) {
                    use_file(tally.note(|| files.open(b"d/file", mode)));
                }
                // A link is moved and removed itself.
                rename.note(|| files.rename(b"d/file", b"d/other", &watch()));
                remove.note(|| files.remove(b"d/other"));
                tallies.iter().all(Tally::both)
            },
        );
        assert!(remove.outcomes.contains(&None) && rename.outcomes.contains(&None));
    });
}

/// `x` is a directory, a file, a link to outside, a FIFO and a socket.
fn everything_in_turn(arena: &Arena) {
    let name = arena.path("x");
    let rwx = Mode::from_raw_mode(0o777);
    let turns: [&dyn Fn(); 5] = [
        &|| _ = fs::create_dir(&name),
        &|| _ = fs::write(&name, "inside"),
        &|| _ = symlink(&arena.outside, &name),
        &|| _ = mknodat(CWD, &name, FileType::Fifo, rwx, 0),
        &|| _ = mknodat(CWD, &name, FileType::Socket, rwx, 0),
    ];
    for turn in turns {
        turn();
        // Never by the name: it may be a link by now.
        _ = rustix::fs::unlinkat(CWD, &name, AtFlags::empty());
        _ = rustix::fs::unlinkat(CWD, &name, AtFlags::REMOVEDIR);
    }
}

#[test]
fn a_name_that_is_everything_in_turn_is_answered_at_once() {
    on_both(|arena| {
        let files = &arena.files;
        let mut tally = Tally::default();
        race(
            || everything_in_turn(arena),
            |_| {
                for mode in EVERY_MODE {
                    use_file(tally.note(|| files.open(b"x", mode)));
                    use_file(tally.note(|| files.open(b"x/file", mode)));
                }
                tally.note(|| files.list(b"x"));
                tally.note(|| files.rename(b"x", b"y", &watch()));
                tally.note(|| files.rename(b"y", b"x", &watch()));
                tally.note(|| files.remove(b"x/file"));
                tally.note(|| files.remove(b"x"));
                tally.both()
            },
        );
    });
}

#[test]
fn a_tree_that_is_moved_is_announced_without_what_lies_behind_a_link() {
    on_both(|arena| {
        let files = &arena.files;
        fs::create_dir_all(arena.path("top/mid/d")).unwrap();
        fs::write(arena.path("top/mid/d/inner"), "").unwrap();
        symlink(&arena.outside, arena.path("top/mid/link")).unwrap();
        let mut tally = Tally::default();
        race(
            || {
                for top in ["top", "moved"] {
                    let mid = arena.path(top).join("mid");
                    exchange(&mid.join("d"), &mid.join("link"));
                }
            },
            |_| {
                tally.note(|| files.rename(b"top", b"moved", &watch()));
                tally.note(|| files.rename(b"moved", b"top", &watch()));
                for (path, ..) in arena.announced.take() {
                    assert!(!path.contains("file") && !path.contains("empty"), "{path}");
                }
                tally.both()
            },
        );
    });
}

#[test]
fn a_mount_of_one_file_is_that_file_or_refused() {
    use sandbox_protocol::message::Access;
    let root = tempfile::tempdir().unwrap();
    let (io, single, link) = ["io", "single", "link"].map(|name| root.path().join(name)).into();
    fs::create_dir(&io).unwrap();
    fs::write(&single, "inside").unwrap();
    fs::write(root.path().join("secret"), SECRET).unwrap();
    symlink("secret", &link).unwrap();
    for resolver in RESOLVERS {
        let mounts = vec![("/io", Access::Write, &*io), ("/one", Access::Write, &*single)];
        let (files, _) = Setup { mounts, resolver, ..Setup::io(&io) }.open();
        let mut tallies: [Tally; EVERY_MODE.len()] = Default::default();
        race(
            || exchange(&single, &link),
            |_| {
                for (tally, mode) in tallies.iter_mut().zip(EVERY_MODE) {
                    use_file(tally.note(|| files.open(b"/one", mode)));
                }
                tallies.iter().all(Tally::both)
            },
        );
        // Moved back to where the next operation expects it.
        if single.symlink_metadata().unwrap().is_symlink() {
            exchange(&single, &link);
        }
        assert_eq!(fs::read(root.path().join("secret")).unwrap(), SECRET);
    }
}

#[test]
fn a_directory_that_grows_and_shrinks_is_listed_within_the_bound() {
    on_both(|arena| {
        let limits = Limits { list_entries: 200, ..LIMITS };
        let (files, _) = Setup { limits, ..Setup::io(&arena.io) }.open();
        fs::write(arena.path("a-always"), "").unwrap();
        fs::write(arena.path("z-always"), "").unwrap();
        let mut outcomes = Tally::default();
        race(
            || {
                for number in 0..400 {
                    fs::write(arena.path(&format!("n{number}")), "").unwrap();
                }
                for number in 0..400 {
                    fs::remove_file(arena.path(&format!("n{number}"))).unwrap();
                }
            },
            |_| {
                if let Some(names) = outcomes.note(|| files.list(b".")) {
                    assert!(names.len() <= 200 && names.is_sorted());
                    for always in [&b"a-always"[..], b"z-always"] {
                        assert!(names.iter().any(|name| name == always));
                    }
                }
                outcomes.outcomes.len() == 2
            },
        );
        assert_eq!(outcomes.outcomes, BTreeSet::from([None, Some("too_large")]));
    });
}

#[test]
fn every_byte_makes_a_name_like_others() {
    let mut names: Vec<Vec<u8>> =
        (1..=255).filter(|byte| !b"/.".contains(byte)).map(|byte| vec![byte]).collect();
    names.extend((1..=255_u8).filter(|&byte| byte != b'/').map(|byte| vec![byte; 255]));
    for odd in [
        "...", ".. ", " ..", "..\n", "..\u{200b}", "\u{2024}\u{2024}", "\u{ff0e}\u{ff0e}",
        "\u{2025}", "..\\", "\u{202e}txt.exe", "-rf", "--", "*", "a\nb", "\r", "\u{1b}[2J",
        "%2e%2e%2f", "nul", "CON", "a:b", "\u{feff}", "{\"path\":1}", "$(id)", "`id`",
        "\u{2215}etc\u{2215}passwd",
    ] {
        names.push(odd.as_bytes().to_vec());
    }
    names.sort_unstable();
    names.dedup();
    on_both(|arena| {
        let files = &arena.files;
        for name in &names {
            let written = [b"./", name.as_slice()].concat();
            let file = files.open(&written, OpenMode::Write).unwrap();
            assert_eq!(file.path.name(), name);
            assert_eq!(files.open(&written, OpenMode::Read).unwrap().size, 0);
            let moved = [b"./m", &name[..name.len().min(254)]].concat();
            files.rename(&written, &moved, &watch()).unwrap();
            files.rename(&moved, &written, &watch()).unwrap();
        }
        assert_eq!(files.list(b".").unwrap(), names);
        let host: BTreeSet<Vec<u8>> = fs::read_dir(&arena.io)
            .unwrap()
            .map(|entry| {
                use std::os::unix::ffi::OsStringExt as _;
                entry.unwrap().file_name().into_vec()
            })
            .collect();
        assert!(host.iter().eq(&names), "each name is that very name on the host");
        for name in &names {
            files.remove(&[b"./", name.as_slice()].concat()).unwrap();
        }
        assert!(files.list(b".").unwrap().is_empty());
    });
}

#[test]
fn devices_of_every_kind_are_special_files_to_every_operation() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    on_both(|arena| {
        let files = &arena.files;
        let mode = Mode::from_raw_mode(0o666);
        for (name, kind, (major, minor)) in [
            ("zero", FileType::CharacterDevice, (1, 5)),
            ("full", FileType::CharacterDevice, (1, 7)),
            ("tty", FileType::CharacterDevice, (5, 0)),
            ("nothing", FileType::CharacterDevice, (4095, 7)),
            ("loop", FileType::BlockDevice, (7, 0)),
            ("nowhere", FileType::BlockDevice, (4095, 7)),
        ] {
            let device = rustix::fs::makedev(major, minor);
            mknodat(CWD, arena.path(name), kind, mode, device).unwrap();
            let written = name.as_bytes();
            for mode in EVERY_MODE {
                let error = files.open(written, mode).map(drop).unwrap_err();
                assert_eq!(error.kind, ErrorKind::SpecialFile, "{name} {mode:?}: {error}");
            }
            assert_eq!(files.list(written).unwrap_err().kind, ErrorKind::NotADirectory);
            assert_eq!(files.remove(written).unwrap_err().kind, ErrorKind::SpecialFile);
            assert_eq!(
                files.rename(written, b"x", &watch()).unwrap_err().kind,
                ErrorKind::SpecialFile
            );
        }
        assert_eq!(arena.announced.take(), []);
    });
}

#[test]
fn a_tree_deeper_than_any_path_is_neither_walked_nor_moved_without_end() {
    use rustix::fs::{OFlags, mkdirat, openat};
    on_both(|arena| {
        // 40 times as deep as the longest path, created by descriptors.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let name = "d".repeat(100);
        let mut directory = openat(CWD, &arena.io, flags, Mode::empty()).unwrap();
        for _ in 0..1600 {
            mkdirat(&directory, &name, Mode::RWXU).unwrap();
            directory = openat(&directory, &name, flags, Mode::empty()).unwrap();
        }
        let mut tally = Tally::default();
        let top = name.as_bytes();
        assert_eq!(tally.note(|| arena.files.list(top)).unwrap(), [top]);
        let deepest = [name.as_str(); 40].join("/");
        let none: [&[u8]; 0] = [];
        assert_eq!(tally.note(|| arena.files.list(deepest.as_bytes())).unwrap(), none);
        let deeper = [name.as_str(); 41].join("/");
        let error = arena.files.list(deeper.as_bytes()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidPath);
        let error = arena.files.rename(top, b"moved", &watch()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert_eq!(arena.announced.take(), []);
        // From the top, one level at a time: a path that is too long cannot be removed by path.
        let next = arena.path("next");
        while arena.path(&name).exists() {
            fs::rename(arena.path(&name), &next).unwrap();
            _ = fs::rename(next.join(&name), arena.path(&name));
            fs::remove_dir(&next).unwrap();
        }
    });
}

#[test]
fn links_in_a_circle_and_links_without_end_are_links() {
    on_both(|arena| {
        symlink("b", arena.path("a")).unwrap();
        symlink("a", arena.path("b")).unwrap();
        symlink(".", arena.path("here")).unwrap();
        symlink("/proc/self/cwd", arena.path("cwd")).unwrap();
        symlink("x".repeat(4095), arena.path("long")).unwrap();
        for written in ["a", "b/x", "here", "here/here/here/f", "cwd/file", "long", "long/f"] {
            for mode in EVERY_MODE {
                let error = arena.files.open(written.as_bytes(), mode).map(drop).unwrap_err();
                assert_eq!(error.kind, ErrorKind::Symlink, "{written} {mode:?}");
            }
            assert_eq!(arena.files.list(written.as_bytes()).unwrap_err().kind, ErrorKind::Symlink);
        }
        assert_eq!(arena.announced.take(), []);
    });
}
