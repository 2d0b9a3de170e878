//! The operations of the controller and of scripts' `fs`: one test per row of their table.

use std::sync::Arc;
use std::time::Duration;

use sandbox_protocol::WireString;
use sandbox_protocol::media::image_type;
use sandbox_protocol::message::{
    Cut, CutBy, Edit, Entry, EntryKind, List, Mkdir, Remove, Rename, TextWindow, Timestamp, Touch,
    View, ViewLines, Write, WriteMode,
};

use super::super::{Absent, Viewed, Watch};
use super::*;
use crate::stop::{StopFlag, StopReason};

pub(super) fn watch() -> Watch {
    Watch::new(Arc::default(), Duration::from_secs(60))
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ways {
    pub mode: WriteMode,
    pub atomic: bool,
}

impl Ways {
    fn of(self, path: impl Into<WireString>) -> Write {
        Write { mode: self.mode, atomic: self.atomic, ..Write::new(path) }
    }
}

pub(super) const OVERWRITE: Ways = Ways { mode: WriteMode::Overwrite, atomic: true };
pub(super) const IN_PLACE: Ways = Ways { atomic: false, ..OVERWRITE };
pub(super) const APPEND: Ways = Ways { mode: WriteMode::Append, ..OVERWRITE };
pub(super) const CREATE_NEW: Ways = Ways { mode: WriteMode::CreateNew, ..OVERWRITE };
const WAYS: [Ways; 4] = [OVERWRITE, IN_PLACE, APPEND, CREATE_NEW];

/// Writes in two pieces; returns whether the file was created.
pub(super) fn put(files: &Files, path: &str, way: Ways, bytes: &[u8]) -> Result<bool, FileError> {
    let mut writing = files.write(way.of(path), Absent::Accept)?;
    let (first, second) = bytes.split_at(bytes.len() / 2);
    writing.put(first)?;
    writing.put(second)?;
    let written = writing.commit(&watch())?;
    assert_eq!(written.bytes, bytes.len() as u64);
    Ok(written.created)
}

pub(super) fn get(
    files: &Files,
    path: &str,
    offset: u64,
    limit: Option<u64>,
) -> Result<Vec<u8>, FileError> {
    let mut reading = files.read(path.as_bytes(), offset, limit)?;
    let mut content = Vec::new();
    while reading.left() > 0 {
        content.extend(reading.next(&watch())?);
    }
    Ok(content)
}

pub(super) fn list(
    files: &Files,
    path: &str,
    depth: Option<u64>,
    limit: Option<u64>,
) -> Result<(Vec<Entry>, bool), FileError> {
    let mut entries = Vec::new();
    let request = List { recursive: true, max_depth: depth, limit, ..List::new(path) };
    let end = files.list_entries(&request, &watch(), |entry| {
        entries.push(entry);
        Ok(())
    })?;
    assert_eq!(end.entries, entries.len() as u64);
    Ok((entries, end.cut.is_some()))
}

pub(super) fn paths(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| std::str::from_utf8(entry.name.as_bytes()).unwrap()).collect()
}

/// Removes what is at a path with all that is in it.
pub(super) fn tree(path: impl Into<WireString>) -> Remove {
    Remove { recursive: true, ..Remove::new(path) }
}

pub(super) fn remove(files: &Files, path: &str, recursive: bool) -> Result<u64, FileError> {
    let request = Remove { recursive, ..Remove::new(path) };
    files.remove_entry(&request, &watch()).map(|removed| removed.entries)
}

pub(super) fn view(files: &Files, path: &str) -> Result<TextWindow, FileError> {
    match files.view(&View::new(path), &watch())? {
        Viewed::Text(_, window) => Ok(window),
        Viewed::Image(mime_type, ..) => panic!("{mime_type}"),
    }
}

pub(super) fn edit(
    files: &Files,
    path: &str,
    old: &str,
    new: &str,
    count: u64,
) -> Result<(), FileError> {
    let count = count.try_into().unwrap();
    files.edit(&Edit { count, ..Edit::new(path, old, new) }, &watch()).map(drop)
}

#[test]
fn a_read_gives_the_range_that_is_there() {
    on_both(|io, setup| {
        let limits = Limits { file_bytes: 200_000, ..LIMITS };
        let (files, announced) = Setup { limits, ..setup() }.open();
        let content: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        fs::write(io.join("f"), &content).unwrap();
        assert_eq!(get(&files, "f", 0, None).unwrap(), content);
        assert_eq!(get(&files, "f", 70_000, Some(70_000)).unwrap(), content[70_000..140_000]);
        assert_eq!(get(&files, "f", 199_999, Some(5)).unwrap(), content[199_999..]);
        for offset in [200_000, u64::MAX] {
            assert!(get(&files, "f", offset, None).unwrap().is_empty());
        }
        assert_eq!(files.read(b"f", 7, Some(0)).unwrap().size, 200_000);
        fs::File::options().append(true).open(io.join("f")).unwrap().write_all(b"x").unwrap();
        let error = files.read(b"f", 0, None).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "f: 200001 bytes are too many (max 200000)");
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert_eq!(get(&files, "f", 1, None).unwrap().len(), 200_000);
        assert_eq!(kind(get(&files, "no", 0, None)), ErrorKind::NotFound);
        assert_eq!(kind(get(&files, ".", 0, None)), ErrorKind::IsDirectory);
        assert_eq!(announced.take(), []);
    });
}

#[test]
fn a_file_that_shrinks_while_it_is_read_gives_what_is_left() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        fs::write(io.join("f"), vec![1; 200_000]).unwrap();
        let mut reading = files.read(b"f", 0, None).unwrap();
        let first = reading.next(&watch()).unwrap().len();
        fs::File::options().write(true).open(io.join("f")).unwrap().set_len(100_000).unwrap();
        let second = reading.next(&watch()).unwrap().len();
        assert_eq!((first + second, reading.left()), (100_000, 0));
    });
}

#[test]
fn each_way_to_write_does_what_it_says() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        for (options, name) in WAYS.into_iter().zip(["o", "i", "a", "c"]) {
            assert!(put(&files, name, options, b"one").unwrap());
            assert_eq!(fs::read(io.join(name)).unwrap(), b"one", "{options:?}");
        }
        assert_eq!(announced.take().len(), 4);
        assert!(!put(&files, "o", OVERWRITE, b"three").unwrap());
        assert!(!put(&files, "i", IN_PLACE, b"2").unwrap());
        assert!(!put(&files, "a", APPEND, b"two").unwrap());
        assert_eq!(text(put(&files, "c", CREATE_NEW, b"two")), "c: File exists");
        let content = ["o", "i", "a", "c"].map(|name| fs::read_to_string(io.join(name)).unwrap());
        assert_eq!(content, ["three", "2", "onetwo", "one"]);
        assert!(!put(&files, "o", OVERWRITE, b"").unwrap());
        assert_eq!(fs::read(io.join("o")).unwrap(), b"");
        assert_eq!(names(io), ["a", "c", "i", "o"]);
    });
}

#[test]
fn an_atomic_overwrite_leaves_the_old_file_to_those_who_have_it() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        for (options, other) in [(OVERWRITE, "old"), (IN_PLACE, "new content")] {
            fs::write(io.join("f"), b"old").unwrap();
            fs::set_permissions(io.join("f"), fs::Permissions::from_mode(0o4750)).unwrap();
            fs::hard_link(io.join("f"), io.join("other")).unwrap();
            put(&files, "f", options, b"new content").unwrap();
            assert_eq!(fs::read_to_string(io.join("f")).unwrap(), "new content");
            assert_eq!(fs::read_to_string(io.join("other")).unwrap(), other, "{options:?}");
            let mode = fs::metadata(io.join("f")).unwrap().mode();
            assert_eq!(mode & 0o777, 0o750, "what it may is its file's");
            if options.atomic {
                assert_eq!(mode & 0o7000, 0, "what gives rights away is not passed on");
            }
            fs::remove_file(io.join("f")).unwrap();
            fs::remove_file(io.join("other")).unwrap();
        }
    });
}

#[test]
fn a_small_file_that_is_replaced_gives_its_space_back_after_the_answer_and_a_large_one_before() {
    on_both(|io, setup| {
        let limits = Limits { file_bytes: 1 << 20, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        for (size, options, is_kept) in [
            (64 << 10, OVERWRITE, true),
            ((64 << 10) + 1, OVERWRITE, false),
            (3, IN_PLACE, false),
            (3, APPEND, false),
        ] {
            fs::write(io.join("f"), vec![b'x'; size]).unwrap();
            let mut writing = files.write(options.of(b"f"), Absent::Accept).unwrap();
            writing.put(b"new").unwrap();
            let written = writing.commit(&watch()).unwrap();
            let replaced = written.replaced.map(|fd| fs::File::from(fd).metadata().unwrap());
            let links = replaced.map(|old| (old.nlink(), old.len()));
            assert_eq!(links, is_kept.then_some((0, size as u64)), "{size} {options:?}");
        }
    });
}

#[test]
fn nothing_changes_before_the_commit_and_nothing_is_left_without_one() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        fs::write(io.join("f"), b"old").unwrap();
        for options in [OVERWRITE, IN_PLACE, APPEND] {
            let mut writing = files.write(options.of(b"f"), Absent::Accept).unwrap();
            writing.put(&vec![7; 300_000]).unwrap();
            let mut fresh = files.write(options.of(b"a/b/new"), Absent::Accept).unwrap();
            fresh.put(b"x").unwrap();
            assert_eq!(names(io), ["f"]);
            assert_eq!(fs::read(io.join("f")).unwrap(), b"old");
        }
        assert_eq!((names(io), announced.take()), (vec!["f".to_owned()], vec![]));
        assert_eq!(files.written(), 900_003);
    });
}

#[test]
fn parents_are_made_where_they_may_be_and_counted() {
    on_both(|io, setup| {
        let limits = Limits { entries: 3, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        for options in WAYS {
            let request = Write { parents: false, ..options.of("no/f") };
            let written = files.write(request, Absent::Accept);
            assert_eq!(kind(written.map(drop)), ErrorKind::NotFound);
        }
        put(&files, "a/b/f", OVERWRITE, b"x").unwrap();
        put(&files, "a/b/f", OVERWRITE, b"y").unwrap();
        assert_eq!(kind(put(&files, "a/c", CREATE_NEW, b"x")), ErrorKind::TooManyFiles);
        assert_eq!(names(&io.join("a")), ["b"]);
        assert_eq!(kind(files.mkdir(&Mkdir::new(b"d"))), ErrorKind::TooManyFiles);
    });
}

#[test]
fn a_file_over_the_limit_is_refused_with_the_old_one_whole() {
    on_both(|io, setup| {
        let limits = Limits { file_bytes: 10, write_bytes: 42, ..LIMITS };
        let (files, announced) = Setup { limits, ..setup() }.open();
        fs::write(io.join("f"), b"12345").unwrap();
        for options in [OVERWRITE, IN_PLACE] {
            let error = put(&files, "f", options, b"12345678901").unwrap_err();
            assert_eq!(error.to_string(), "f: more than 10 bytes are too many");
        }
        assert_eq!(kind(put(&files, "f", APPEND, b"678901")), ErrorKind::TooLarge);
        assert_eq!(fs::read(io.join("f")).unwrap(), b"12345");
        assert!(!put(&files, "f", APPEND, b"67890").unwrap());
        fs::write(io.join("large"), vec![0; 11]).unwrap();
        assert_eq!(kind(put(&files, "large", APPEND, b"")), ErrorKind::TooLarge);
        assert_eq!(announced.take(), [("/io/f".into(), true, Change::Append)]);
        put(&files, "f", OVERWRITE, &[0; 10]).unwrap();
        put(&files, "f", OVERWRITE, &[0; 10]).unwrap();
        let error =
            put(&files, "f", OVERWRITE, &[1; 10]).and(put(&files, "f", OVERWRITE, &[1; 10]));
        assert_eq!(kind(error), ErrorKind::WriteLimit);
        assert_eq!(names(io), ["f", "large"]);
    });
}

#[test]
fn obstacle_of_a_write_is_named_and_stays() {
    on_both(|io, setup| {
        let outside = io.parent().unwrap().join("secret");
        fs::write(&outside, b"secret").unwrap();
        symlink(&outside, io.join("link")).unwrap();
        symlink("nowhere", io.join("dangling")).unwrap();
        symlink(io.parent().unwrap(), io.join("up")).unwrap();
        fs::create_dir(io.join("d")).unwrap();
        fs::write(io.join("f"), b"f").unwrap();
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, io.join("fifo"), FileType::Fifo, mode, 0).unwrap();
        let (files, announced) = setup().open();
        let before = names(io);
        for options in WAYS {
            let exists = options.mode == WriteMode::CreateNew;
            let expect = |kind| if exists { ErrorKind::AlreadyExists } else { kind };
            for (path, expected) in [
                ("link", expect(ErrorKind::Symlink)),
                ("dangling", expect(ErrorKind::Symlink)),
                ("d", expect(ErrorKind::IsDirectory)),
                ("fifo", expect(ErrorKind::SpecialFile)),
                ("up/secret", ErrorKind::Symlink),
                ("up/new", ErrorKind::Symlink),
                ("f/x", ErrorKind::NotADirectory),
                ("f/", ErrorKind::NotADirectory),
                ("d/", ErrorKind::IsDirectory),
                (".", ErrorKind::IsDirectory),
                ("../secret", ErrorKind::PathEscape),
                ("/etc/passwd", ErrorKind::PathEscape),
                ("", ErrorKind::InvalidPath),
            ] {
                let found = kind(put(&files, path, options, b"x"));
                assert_eq!(found, expected, "{path} {options:?}");
            }
        }
        assert_eq!((names(io), announced.take()), (before, vec![]));
        assert_eq!(fs::read(outside).unwrap(), b"secret");
    });
}

#[test]
fn a_full_disk_leaves_the_old_file_whole_and_nothing_else() {
    if !is_root() {
        // Only root can mount a file system here.
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::mount(directory.path(), "size=256k,nr_inodes=64");
    for resolver in RESOLVERS {
        let limits = Limits { write_bytes: 1 << 30, ..LIMITS };
        let (files, announced) = Setup { resolver, limits, ..Setup::io(directory.path()) }.open();
        fs::write(directory.path().join("f"), vec![1; 64 << 10]).unwrap();
        let used = || rustix::fs::statvfs(directory.path()).unwrap().f_bfree;
        let before = used();
        let full = vec![2; 200 << 10];
        for options in WAYS {
            let name = if options.mode == WriteMode::CreateNew { "new" } else { "f" };
            let error = put(&files, name, options, &full).unwrap_err();
            assert_eq!(error.kind, ErrorKind::DiskFull, "{options:?}: {error}");
            assert_eq!(names(directory.path()), ["f"]);
        }
        // There is space beside the file, but not enough to append as much to it.
        for options in [IN_PLACE, APPEND] {
            let error = put(&files, "f", options, &full[..130 << 10]).unwrap_err();
            assert_eq!(error.kind, ErrorKind::DiskFull, "{options:?}: {error}");
        }
        assert_eq!(kind(edit_over(&files)), ErrorKind::DiskFull);
        assert_eq!(fs::read(directory.path().join("f")).unwrap(), vec![1; 64 << 10]);
        assert_eq!((names(directory.path()), announced.take()), (vec!["f".to_owned()], vec![]));
        assert_eq!(used(), before, "nothing is held");
    }
    drop(disk);
}

/// An edit whose result does not fit beside the file.
fn edit_over(files: &Files) -> Result<(), FileError> {
    edit(files, "f", &"\u{1}".repeat(64 << 10), &"x".repeat(250 << 10), 1)
}

/// A file system for a test.
pub(super) struct Disk(std::path::PathBuf);

impl Disk {
    /// A small one in memory.
    pub(super) fn mount(at: impl AsRef<Path>, options: &str) -> Self {
        Self::of("tmpfs", at, options)
    }

    pub(super) fn of(kind: &str, at: impl AsRef<Path>, options: &str) -> Self {
        let at = at.as_ref();
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("ops-test", at, kind, flags, Some(options.as_c_str())).unwrap();
        Self(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_mount_that_is_a_single_file_is_written_in_place() {
    on_both(|io, setup| {
        let single = io.parent().unwrap().join("single");
        fs::write(&single, b"one").unwrap();
        let mounts = vec![("/io", Access::Write, io), ("/out.txt", Access::Write, &single)];
        let limits = Limits { file_bytes: 1 << 30, ..LIMITS };
        let (files, _) = Setup { mounts, limits, ..setup() }.open();
        let inode = fs::metadata(&single).unwrap().ino();
        assert!(!put(&files, "/out.txt", OVERWRITE, b"longer than before").unwrap());
        assert!(!put(&files, "/out.txt", IN_PLACE, b"two").unwrap());
        assert!(!put(&files, "/out.txt", APPEND, b"three").unwrap());
        edit(&files, "/out.txt", "two", "four", 1).unwrap();
        assert_eq!(kind(put(&files, "/out.txt", CREATE_NEW, b"")), ErrorKind::AlreadyExists);
        assert_eq!(kind(put(&files, "/out.txt/", OVERWRITE, b"")), ErrorKind::NotADirectory);
        let large = vec![0; 5 << 20];
        assert_eq!(kind(put(&files, "/out.txt", OVERWRITE, &large)), ErrorKind::TooLarge);
        assert_eq!(fs::read(&single).unwrap(), b"fourthree");
        assert_eq!(fs::metadata(&single).unwrap().ino(), inode);
        assert_eq!(files.stat(b"/out.txt").unwrap().size, 9);
        assert_eq!(files.exists(b"/out.txt").unwrap().1, Some(EntryKind::File));
        assert_eq!(kind(remove(&files, "/out.txt", true)), ErrorKind::PermissionDenied);
        assert_eq!(kind(files.mkdir(&Mkdir::new(b"/out.txt"))), ErrorKind::AlreadyExists);
        assert_eq!(kind(list(&files, "/out.txt", None, None)), ErrorKind::NotADirectory);
    });
}

#[test]
fn an_edit_replaces_what_is_there_exactly_so_often() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        let set = |content: &str| fs::write(io.join("f"), content).unwrap();
        let now = || fs::read_to_string(io.join("f")).unwrap();
        set("one two two");
        edit(&files, "f", "one", "1", 1).unwrap();
        assert_eq!(now(), "1 two two");
        edit(&files, "f", "two", "", 2).unwrap();
        assert_eq!(now(), "1  ");
        assert_eq!(announced.take(), [("/io/f".into(), true, Change::Write)]);
        for (old, count, message) in [
            ("no", 1, "the text to replace is not in the file"),
            ("a", 1, "the text to replace is in the file 3 times, not once"),
            ("a", 4, "the text to replace is in the file 3 times, not 4"),
            ("b", 2, "the text to replace is in the file once, not 2 times"),
            ("", 1, "the text to replace is empty"),
        ] {
            set("aa b a");
            let error = edit(&files, "f", old, "x", count).unwrap_err();
            assert_eq!(error.to_string(), format!("f: {message}"));
            assert_eq!((error.kind, now()), (ErrorKind::InvalidRequest, "aa b a".into()));
        }
        set("aaa");
        edit(&files, "f", "aa", "b", 1).unwrap();
        assert_eq!(now(), "ba", "found from the left, without overlap");
        fs::write(io.join("f"), b"text \xff text2").unwrap();
        assert_eq!(kind(edit(&files, "f", "text2", "x", 1)), ErrorKind::Encoding);
        fs::write(io.join("f"), "cut é".as_bytes().split_last().unwrap().1).unwrap();
        assert_eq!(kind(edit(&files, "f", "cut", "x", 1)), ErrorKind::Encoding);
        assert_eq!(kind(edit(&files, "no", "cut", "x", 1)), ErrorKind::NotFound);
        assert_eq!(names(io), ["f"]);
    });
}

#[test]
fn an_edit_keeps_the_line_ends_of_a_file() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        let set = |content: &str| fs::write(io.join("f"), content).unwrap();
        let now = || fs::read_to_string(io.join("f")).unwrap();
        for (file, old, new, expected) in [
            ("a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", "x\r\ny\r\nz\r\nc\r\n"),
            ("a\r\nb\r\n", "b", "x\ny", "a\r\nx\r\ny\r\n"),
            ("a\r\nb\r\n", "a\r\nb", "x\r\ny\nz", "x\r\ny\r\nz\r\n"),
            ("a\r\nb\r\n", "\nb", "\nx", "a\r\nx\r\n"),
            ("a\nb\n", "a\nb", "x\r\ny", "x\r\ny\n"),
            ("a\r\nb\nc\n", "b\nc", "x\ny", "a\r\nx\ny\n"),
            ("a", "a", "x\n", "x\n"),
        ] {
            set(file);
            edit(&files, "f", old, new, 1).unwrap();
            assert_eq!(now(), expected, "{file:?} {old:?}");
        }
        let no = "f: the text to replace is not in the file";
        for (file, old, message) in [
            ("a\r\nb\nc\n", "a\nb", format!("{no} (some of its lines end with CRLF)")),
            (
                "a\nb\n",
                "a\r\nb",
                format!("{no} (its lines end with LF, those of the text with CRLF)"),
            ),
            ("a\r\nb\r\n", "a\nc", no.to_owned()),
            ("a", "a\r\n", no.to_owned()),
        ] {
            set(file);
            assert_eq!(edit(&files, "f", old, "x", 1).unwrap_err().to_string(), message);
            assert_eq!(now(), file);
        }
    });
}

#[test]
fn an_edit_finds_text_across_every_border_of_its_pieces() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        let old = "né\nedle";
        for at in (65_536 - 10)..(65_536 + 2) {
            let text = |inner: &str| format!("{}{inner}{}", "x".repeat(at), "y".repeat(70_000));
            fs::write(io.join("f"), text(old)).unwrap();
            edit(&files, "f", old, "N", 1).unwrap();
            assert!(fs::read_to_string(io.join("f")).unwrap() == text("N"), "{at}");
        }
        let long = "z".repeat(200_000);
        fs::write(io.join("f"), format!("{long}!{long}")).unwrap();
        edit(&files, "f", &format!("{long}!"), "", 1).unwrap();
        assert!(fs::read_to_string(io.join("f")).unwrap() == long);
    });
}

#[test]
fn a_view_shows_lines_or_says_that_it_is_an_image() {
    on_both(|io, setup| {
        let limits = Limits { file_bytes: 200_000, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        fs::write(io.join("f"), "line\n".repeat(20_000)).unwrap();
        let lines = |offset, limit| View { lines: ViewLines { offset, limit }, ..View::new("f") };
        let window = view(&files, "f").unwrap();
        assert_eq!((window.output_lines, window.total_lines), (2000, 20_000));
        let footer = "[Showing lines 1-2000 of 20000. Use lines={\"offset\":2001} to continue.]";
        assert_eq!(window.footer.as_deref(), Some(footer));
        let end = files.view(&lines(20_000, Some(5)), &watch()).unwrap();
        assert!(matches!(end, Viewed::Text(_, window) if window.text == "line\n"));
        let image = b"\x89PNG\r\n\x1a\n and more".repeat(9000);
        fs::write(io.join("i"), &image).unwrap();
        let viewed = files.view(&View::new("i"), &watch()).unwrap();
        assert_eq!(rest_of_image(viewed), ("image/png", image));
        fs::write(io.join("binary"), b"\0\xfe\xff").unwrap();
        let error = view(&files, "binary").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Encoding);
        assert!(error.to_string().ends_with("not UTF-8 text"), "{error}");
        fs::write(io.join("large"), vec![b'x'; 200_001]).unwrap();
        assert_eq!(kind(view(&files, "large")), ErrorKind::TooLarge);
        for (first, limit) in [(0, None), (1, Some(0)), (20_001, None)] {
            let refused = files.view(&lines(first, limit), &watch()).map(drop);
            assert_eq!(kind(refused), ErrorKind::InvalidRequest);
        }
    });
}

/// The MIME type and the content of an image.
fn rest_of_image(viewed: Viewed) -> (&'static str, Vec<u8>) {
    let Viewed::Image(mime_type, mut content, mut reading) = viewed else {
        panic!("it is an image")
    };
    while reading.left() > 0 {
        content.extend(reading.next(&watch()).unwrap());
    }
    (mime_type, content)
}

#[test]
fn an_image_that_is_rewritten_while_it_is_viewed_keeps_its_type_and_its_bound() {
    on_both(|io, setup| {
        let limits = Limits { file_bytes: 200_000, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        let image = b"\x89PNG\r\n\x1a\n and more".repeat(9000);
        for rewritten in [&b"a text"[..], &[b'x'; 300_000]] {
            fs::write(io.join("i"), &image).unwrap();
            let viewed = files.view(&View::new("i"), &watch()).unwrap();
            // The same file, as a program rewrites it.
            fs::write(io.join("i"), rewritten).unwrap();
            let (mime_type, content) = rest_of_image(viewed);
            assert_eq!((mime_type, image_type(&content)), ("image/png", Some("image/png")));
            assert!(content.len() <= image.len(), "{}", content.len());
        }
    });
}

#[test]
fn a_list_has_every_entry_in_order_and_follows_no_link() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        assert_eq!(list(&files, ".", None, None).unwrap(), (vec![], false));
        for directory in ["a", "a/x", "empty"] {
            fs::create_dir(io.join(directory)).unwrap();
        }
        for (name, content) in [("a/x/deep", "1"), ("a.txt", "12"), ("a-b", ""), ("z", "1234")] {
            fs::write(io.join(name), content).unwrap();
        }
        symlink("..", io.join("a/up")).unwrap();
        symlink(io.parent().unwrap(), io.join("out")).unwrap();
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, io.join("fifo"), FileType::Fifo, mode, 0).unwrap();
        let (entries, truncated) = list(&files, ".", None, None).unwrap();
        assert!(!truncated);
        let expected = [
            ("a", EntryKind::Directory),
            ("a/up", EntryKind::Symlink),
            ("a/x", EntryKind::Directory),
            ("a/x/deep", EntryKind::File),
            ("a-b", EntryKind::File),
            ("a.txt", EntryKind::File),
            ("empty", EntryKind::Directory),
            ("fifo", EntryKind::Other),
            ("out", EntryKind::Symlink),
            ("z", EntryKind::File),
        ];
        let found: Vec<_> =
            paths(&entries).into_iter().zip(entries.iter().map(|entry| entry.kind)).collect();
        assert_eq!(found, expected);
        assert_eq!(entries[5].size, 2);
        let modified = fs::metadata(io.join("z")).unwrap();
        let seen = entries[9].modified.unwrap();
        let seen = (seen.seconds, i64::from(seen.nanoseconds));
        assert_eq!(seen, (modified.mtime(), modified.mtime_nsec()));
        let (flat, truncated) = list(&files, "/io/a/", Some(1), None).unwrap();
        assert_eq!((paths(&flat), truncated), (vec!["up", "x"], false));
        for (path, expected) in [
            ("a/up", ErrorKind::Symlink),
            ("out/x", ErrorKind::Symlink),
            ("z", ErrorKind::NotADirectory),
            ("fifo", ErrorKind::NotADirectory),
            ("no", ErrorKind::NotFound),
            ("..", ErrorKind::PathEscape),
        ] {
            assert_eq!(kind(list(&files, path, None, None)), expected, "{path}");
        }
        assert_eq!(announced.take(), []);
    });
}

#[test]
fn a_list_is_cut_at_its_bounds_and_says_so() {
    on_both(|io, setup| {
        let limits = Limits { list_entries: 7, list_depth: 2, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        fs::create_dir_all(io.join("b/b/b")).unwrap();
        for name in ["a", "b/a", "b/c", "c", "d"] {
            fs::write(io.join(name), b"").unwrap();
        }
        let all = ["a", "b", "b/a", "b/b", "b/c", "c", "d"];
        let (entries, truncated) = list(&files, ".", None, None).unwrap();
        assert_eq!((paths(&entries), truncated), (all.to_vec(), true), "there is more below b/b");
        let (entries, truncated) = list(&files, ".", Some(2), Some(100)).unwrap();
        assert_eq!((paths(&entries), truncated), (all.to_vec(), false), "as deep as asked");
        let (_, truncated) = list(&files, ".", Some(3), None).unwrap();
        assert!(truncated, "asked for more than there may be");
        let cut_of =
            |request: &List| files.list_entries(request, &watch(), |_| Ok(())).unwrap().cut;
        let every = List { recursive: true, ..List::new(".") };
        assert_eq!(cut_of(&every), Some(Cut { by: CutBy::Depth, at: "b/b".into() }));
        let four = List { limit: Some(4), ..every.clone() };
        assert_eq!(cut_of(&four), Some(Cut { by: CutBy::Entries, at: "b/c".into() }));
        fs::remove_dir(io.join("b/b/b")).unwrap();
        assert_eq!(cut_of(&every), None, "nothing is deeper");
        for limit in 1..7 {
            let (entries, truncated) = list(&files, ".", Some(2), Some(limit as u64)).unwrap();
            assert_eq!((paths(&entries), truncated), (all[..limit].to_vec(), true));
        }
        fs::write(io.join("e"), b"").unwrap();
        let (entries, truncated) = list(&files, ".", Some(2), None).unwrap();
        assert_eq!((paths(&entries), truncated), (all.to_vec(), true));
        for (depth, limit) in [(Some(0), None), (None, Some(0))] {
            assert_eq!(kind(list(&files, ".", depth, limit)), ErrorKind::InvalidRequest);
        }
    });
}

#[test]
fn of_a_huge_directory_the_first_entries_are_given() {
    // With one resolver: the directory is opened once, and only its size matters.
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { list_entries: 1000, ..LIMITS };
    let (files, _) = Setup { limits, ..Setup::io(directory.path()) }.open();
    let huge = directory.path().join("d");
    fs::create_dir(&huge).unwrap();
    let here = fs::File::open(&huge).unwrap();
    for number in 0..20_000 {
        // Links are the cheapest entries to create.
        rustix::fs::symlinkat("x", &here, format!("{number:05}")).unwrap();
    }
    let (entries, truncated) = list(&files, "d", None, None).unwrap();
    let expected: Vec<_> = (0..1000).map(|number| format!("{number:05}")).collect();
    let expected = expected.iter().map(String::as_str).collect();
    assert_eq!((paths(&entries), truncated), (expected, true));
    assert_eq!(remove(&files, "d", true).unwrap(), 20_001);
    assert_eq!(kind(remove(&files, ".", true)), ErrorKind::PermissionDenied);
    assert!(names(directory.path()).is_empty());
}

#[test]
fn a_list_looks_into_no_other_file_system_and_says_so() {
    if !is_root() {
        // Only root can mount one.
        return;
    }
    on_both(|io, setup| {
        for directory in ["a", "other", "z"] {
            fs::create_dir(io.join(directory)).unwrap();
        }
        let disk = Disk::mount(io.join("other"), "size=64k");
        fs::write(io.join("other/inner"), b"").unwrap();
        let (files, _) = setup().open();
        let (entries, truncated) = list(&files, ".", None, None).unwrap();
        assert_eq!((paths(&entries), truncated), (vec!["a", "other", "z"], true));
        assert_eq!(list(&files, ".", Some(1), None).unwrap().0.len(), 3);
        assert_eq!(kind(list(&files, "other", None, None)), ErrorKind::PathEscape);
        assert_eq!(kind(remove(&files, "other", true)), ErrorKind::PathEscape);
        assert_eq!(names(&io.join("other")), ["inner"]);
        drop(disk);
    });
}

#[test]
fn files_that_are_still_being_made_are_in_no_list() {
    on_both(|io, setup| {
        let limits = Limits { list_entries: 2, ..LIMITS };
        let (files, announced) = Setup { limits, ..setup() }.open();
        fs::create_dir(io.join("d")).unwrap();
        let digits = "0123456789abcdef".repeat(2);
        for name in ["a".to_owned(), format!(".sandboxctl-{digits}.tmp")] {
            fs::write(io.join("d").join(name), b"").unwrap();
        }
        let (entries, truncated) = list(&files, ".", None, None).unwrap();
        assert_eq!((paths(&entries), truncated), (vec!["d", "d/a"], false));
        assert_eq!(files.list(b"d").unwrap(), [b"a"]);
        files.rename(b"d", b"e", &watch()).unwrap();
        // A leftover file is removed with its directory; neither is reported.
        assert_eq!(remove(&files, "e", true).unwrap(), 3);
        let paths: Vec<_> = announced.take().into_iter().map(|(path, ..)| path).collect();
        assert_eq!(paths, ["/io/d/a", "/io/e/a", "/io/e/a"]);
    });
}

#[test]
fn edits_of_one_file_at_one_time_lose_nothing() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        let text = |at: usize| format!("<{at:02}>");
        let all: String = (0..16).map(text).collect();
        fs::write(io.join("f"), &all).unwrap();
        fs::write(io.join("other"), "").unwrap();
        std::thread::scope(|scope| {
            let files = &files;
            for at in 0..16 {
                scope.spawn(move || {
                    for _ in 0..20 {
                        edit(files, "f", &text(at), &format!("[{at:02}]"), 1).unwrap();
                        edit(files, "f", &format!("[{at:02}]"), &text(at), 1).unwrap();
                        put(files, "other", APPEND, b"line\n").unwrap();
                        put(files, "f", APPEND, b".").unwrap();
                    }
                });
            }
        });
        let end = fs::read_to_string(io.join("f")).unwrap();
        assert_eq!(end, all + &".".repeat(16 * 20));
        assert_eq!(fs::read_to_string(io.join("other")).unwrap(), "line\n".repeat(16 * 20));
        assert_eq!(names(io), ["f", "other"]);
    });
}

#[test]
fn an_edit_overwrites_nothing_that_it_has_not_read() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        let changes: [&dyn Fn(); 4] = [
            &|| fs::write(io.join("f"), "new").unwrap(),
            &|| fs::rename(io.join("g"), io.join("f")).unwrap(),
            &|| fs::remove_file(io.join("f")).unwrap(),
            &|| {
                fs::remove_file(io.join("f")).unwrap();
                symlink("g", io.join("f")).unwrap();
            },
        ];
        for change in changes {
            _ = fs::remove_file(io.join("f"));
            fs::write(io.join("f"), "old!").unwrap();
            fs::write(io.join("g"), "another").unwrap();
            let mut writing = files.write(OVERWRITE.of(b"f"), Absent::Accept).unwrap();
            let lock = writing.lock(&watch()).unwrap();
            let version = files.read(b"f", 0, None).unwrap().version().unwrap();
            writing.put(b"edited").unwrap();
            change();
            let before = fs::symlink_metadata(io.join("f")).ok().map(|found| found.ino());
            let error =
                writing.commit_locked(Some(version), None, lock, &watch()).map(drop).unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Busy | ErrorKind::Symlink), "{error}");
            let after = fs::symlink_metadata(io.join("f")).ok().map(|found| found.ino());
            assert_eq!(after, before);
        }
        assert_eq!(announced.take(), []);
    });
}

#[test]
fn waiting_operation_can_be_cancelled() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        fs::write(io.join("f"), "old").unwrap();
        let first = files.write(OVERWRITE.of(b"f"), Absent::Accept).unwrap();
        let lock = first.lock(&watch()).unwrap();
        let brief = Watch::new(Arc::default(), Duration::from_millis(1));
        let second = files.write(OVERWRITE.of(b"./f"), Absent::Accept).unwrap();
        assert_eq!(kind(second.commit(&brief)), ErrorKind::Timeout);
        put(&files, "g", OVERWRITE, b"x").unwrap();
        drop(lock);
        put(&files, "f", OVERWRITE, b"new").unwrap();
    });
}

#[test]
fn names_that_are_not_utf8_are_names_like_others() {
    on_both(|_, setup| {
        let (files, _) = setup().open();
        let mut writing = files.write(OVERWRITE.of(b"d\xff/f\xfe"), Absent::Accept).unwrap();
        writing.put(b"x").unwrap();
        assert_eq!(writing.commit(&watch()).unwrap().path.as_bytes(), b"/io/d\xff/f\xfe");
        let mut found = Vec::new();
        let all = List { recursive: true, ..List::new(".") };
        let each = |entry: Entry| {
            found.push(entry.name.into_bytes());
            Ok(())
        };
        files.list_entries(&all, &watch(), each).unwrap();
        assert_eq!(found, [b"d\xff".to_vec(), b"d\xff/f\xfe".to_vec()]);
        assert_eq!(files.stat(b"d\xff/f\xfe").unwrap().size, 1);
        let removed = files.remove_entry(&tree(b"d\xff"), &watch());
        assert_eq!(removed.unwrap().entries, 2);
    });
}

#[test]
fn a_directory_is_made_once() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        let make = |path: &str, parents| {
            files.mkdir(&Mkdir { parents, ..Mkdir::new(path) }).map(|made| made.created)
        };
        assert_eq!(make("a/b/c", true), Ok(true));
        assert_eq!(make("a/b/c/", true), Ok(false));
        assert_eq!(make(".", true), Ok(false));
        assert_eq!(make("a/d", false), Ok(true));
        assert_eq!(text(make("e/f", false)), "e/f: No such file or directory");
        fs::write(io.join("file"), b"").unwrap();
        symlink("a", io.join("link")).unwrap();
        assert_eq!(kind(make("file", true)), ErrorKind::AlreadyExists);
        assert_eq!(kind(make("file/x", true)), ErrorKind::NotADirectory);
        assert_eq!(kind(make("link", true)), ErrorKind::Symlink);
        assert_eq!(kind(make("link/x", true)), ErrorKind::Symlink);
        assert_eq!(kind(make("../x", true)), ErrorKind::PathEscape);
        assert_eq!(names(io), ["a", "file", "link"]);
        assert_eq!(announced.take(), [], "directories are no files that a run leaves");
    });
}

#[test]
fn a_touch_makes_an_empty_file_or_sets_times_and_keeps_content() {
    on_both(|io, setup| {
        let limits = Limits { entries: 3, ..LIMITS };
        let (files, announced) = Setup { limits, ..setup() }.open();
        let time = |seconds| Some(Timestamp { seconds, nanoseconds: 250_000_000 });
        let touch = |path: &str, mtime| {
            files.touch(&Touch { mtime, ..Touch::new(path) }).map(|touched| touched.created)
        };
        let modified = |path: &str| files.stat(path.as_bytes()).unwrap().modified;
        fs::write(io.join("f"), b"kept").unwrap();
        fs::create_dir(io.join("d")).unwrap();
        symlink("f", io.join("link")).unwrap();
        mknodat(CWD, io.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        for (path, seconds) in [("f", 7), ("f", -1), ("d", 8), ("d/", 9), (".", 10)] {
            assert_eq!(touch(path, time(seconds)), Ok(false), "{path}");
            assert_eq!(modified(path), time(seconds), "{path}");
        }
        assert_eq!(announced.take(), [("/io/f".into(), true, Change::Append)]);
        assert_eq!(touch("a/b", time(11)), Ok(true));
        assert_eq!((modified("a/b"), files.stat(b"a/b").unwrap().size), (time(11), 0));
        assert_eq!(announced.take(), [("/io/a/b".into(), false, Change::Write)]);
        for path in ["f", "d", "c"] {
            assert_eq!(touch(path, None), Ok(path == "c"));
            assert!(modified(path) > time(1_700_000_000), "{path}");
        }
        assert_eq!(kind(touch("more", None)), ErrorKind::TooManyFiles);
        assert_eq!(kind(touch("link", None)), ErrorKind::Symlink);
        assert_eq!(kind(touch("fifo", None)), ErrorKind::SpecialFile);
        assert_eq!(fs::read(io.join("f")).unwrap(), b"kept");
        assert_eq!(names(io), ["a", "c", "d", "f", "fifo", "link"]);
    });
}

#[test]
fn a_remove_takes_what_it_is_asked_to_and_no_more() {
    on_both(|io, setup| {
        let outside = io.parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), b"kept").unwrap();
        fs::create_dir_all(io.join("d/inner/empty")).unwrap();
        fs::write(io.join("d/f"), b"").unwrap();
        fs::write(io.join("d/inner/f"), b"").unwrap();
        symlink(&outside, io.join("d/link")).unwrap();
        symlink(outside.join("kept"), io.join("d/inner/link")).unwrap();
        symlink(&outside, io.join("link")).unwrap();
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, io.join("d/fifo"), FileType::Fifo, mode, 0).unwrap();
        mknodat(CWD, io.join("fifo"), FileType::Fifo, mode, 0).unwrap();
        let (files, announced) = setup().open();
        assert_eq!(text(remove(&files, "d", false)), "d: Directory not empty");
        assert_eq!(kind(remove(&files, "link/kept", true)), ErrorKind::Symlink);
        assert_eq!(kind(remove(&files, "fifo", true)), ErrorKind::SpecialFile);
        assert_eq!(kind(remove(&files, "d/f/", true)), ErrorKind::NotADirectory);
        assert_eq!(kind(remove(&files, "d/f/x", true)), ErrorKind::NotADirectory);
        assert_eq!(kind(remove(&files, "no", true)), ErrorKind::NotFound);
        for path in ["no/no", "no/", "d/f/x"] {
            let absent = files.remove_entry(&Remove { force: true, ..tree(path) }, &watch());
            assert_eq!(absent.unwrap().entries, 0, "{path}");
        }
        for (path, expected) in
            [("d/f/", ErrorKind::NotADirectory), ("d/link/x", ErrorKind::Symlink)]
        {
            let there = files.remove_entry(&Remove { force: true, ..tree(path) }, &watch());
            assert_eq!(kind(there), expected, "{path}");
        }
        assert_eq!(announced.take(), []);
        assert_eq!(remove(&files, "d/inner/empty", false).unwrap(), 1);
        assert_eq!(remove(&files, "link", true).unwrap(), 1);
        assert_eq!(remove(&files, "d", true).unwrap(), 7);
        assert_eq!(names(io), ["fifo"]);
        assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
        let mut removed: Vec<_> = announced.take().into_iter().map(|(path, ..)| path).collect();
        removed.sort();
        let expected = ["/io/d/f", "/io/d/fifo", "/io/d/inner/f", "/io/d/inner/link", "/io/d/link"];
        assert_eq!(removed, [&expected[..], &["/io/link"]].concat());
    });
}

#[test]
fn a_tree_deeper_than_any_path_is_removed_with_few_descriptors() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        // Each level by descriptor, as a command would create it.
        let mut here = fs::File::open(io).unwrap();
        let name = "level-with-a-long-name-".repeat(4);
        for depth in 0..2000 {
            rustix::fs::mkdirat(&here, &name, Mode::from_raw_mode(0o755)).unwrap();
            let flags = rustix::fs::OFlags::RDONLY;
            let next = rustix::fs::openat(&here, &name, flags, Mode::empty()).unwrap();
            here = fs::File::from(next);
            if depth % 100 == 0 {
                let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
                rustix::fs::openat(&here, "f", flags, Mode::from_raw_mode(0o644)).unwrap();
            }
        }
        assert_eq!(remove(&files, &name, true).unwrap(), 2020);
        assert!(names(io).is_empty());
        assert_eq!(announced.take().len(), 1, "what has no path cannot be named");
    });
}

#[test]
fn a_name_is_known_for_what_it_is() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        fs::write(io.join("f"), b"123").unwrap();
        fs::set_permissions(io.join("f"), fs::Permissions::from_mode(0o2640)).unwrap();
        fs::create_dir(io.join("d")).unwrap();
        symlink("nowhere", io.join("dangling")).unwrap();
        mknodat(CWD, io.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        for (path, expected) in [
            ("f", Some(EntryKind::File)),
            ("d", Some(EntryKind::Directory)),
            ("d/", Some(EntryKind::Directory)),
            (".", Some(EntryKind::Directory)),
            ("/io", Some(EntryKind::Directory)),
            ("dangling", Some(EntryKind::Symlink)),
            ("fifo", Some(EntryKind::Other)),
            ("no", None),
            ("no/no", None),
            ("f/x", None),
        ] {
            assert_eq!(files.exists(path.as_bytes()).unwrap().1, expected, "{path}");
            let stat = files.stat(path.as_bytes()).map(|facts| facts.kind).ok();
            assert_eq!(stat, expected, "{path}");
        }
        assert_eq!(kind(files.exists(b"dangling/x")), ErrorKind::Symlink);
        assert_eq!(kind(files.exists(b"/etc/passwd")), ErrorKind::PathEscape);
        assert_eq!(kind(files.exists(b"../io")), ErrorKind::PathEscape);
        assert_eq!(text(files.stat(b"no")), "no: No such file or directory");
        let facts = files.stat(b"f").unwrap();
        let real = fs::metadata(io.join("f")).unwrap();
        assert_eq!((facts.size, facts.permissions), (3, 0o2640));
        assert_eq!((facts.uid, facts.gid), (real.uid(), real.gid()));
        assert_eq!(facts.path.to_string(), "/io/f");
        let seconds = |time: Option<Timestamp>| time.unwrap().seconds;
        assert_eq!(seconds(facts.modified), real.mtime());
        assert_eq!(seconds(facts.accessed), real.atime());
        if let Ok(made) = real.created() {
            let made = made.duration_since(std::time::UNIX_EPOCH).unwrap();
            let found = facts.created.unwrap();
            assert_eq!(found.seconds, i64::try_from(made.as_secs()).unwrap());
            assert_eq!(found.nanoseconds, made.subsec_nanos());
        }
    });
}

#[test]
fn a_rename_that_may_not_replace_does_not() {
    on_both(|io, setup| {
        let (files, announced) = setup().open();
        fs::write(io.join("a"), b"a").unwrap();
        fs::write(io.join("b"), b"b").unwrap();
        fs::create_dir(io.join("d")).unwrap();
        fs::hard_link(io.join("a"), io.join("twin")).unwrap();
        symlink("nowhere", io.join("link")).unwrap();
        for to in ["b", "d", "link", "twin", "a"] {
            let refused = files.rename_entry(&Rename::new("a", to), &watch());
            assert_eq!(text(refused), format!("{to}: File exists"));
        }
        assert_eq!(announced.take(), []);
        let renamed = files.rename_entry(&Rename::new("a", "~/c"), &watch()).unwrap();
        assert_eq!((renamed.from, renamed.to), ("/io/a".into(), "/io/c".into()));
        files.rename_entry(&Rename::new("d", "e"), &watch()).unwrap();
        files.rename(b"c", b"b", &watch()).unwrap();
        fs::create_dir(io.join("full")).unwrap();
        fs::write(io.join("full/f"), b"").unwrap();
        for (from, to, message) in [
            ("b", "e", "e: Is a directory"),
            ("e", "b", "b: Not a directory"),
            ("e", "full", "full: Directory not empty; only an empty one is replaced"),
            ("full", "full/in", "full: Invalid argument"),
            ("no", "b", "no: No such file or directory"),
            ("b", "no/b", "no/b: No such file or directory"),
        ] {
            let failed = files.rename(from.as_bytes(), to.as_bytes(), &watch());
            assert_eq!(text(failed), message);
        }
        fs::remove_dir_all(io.join("full")).unwrap();
        assert_eq!(fs::read(io.join("b")).unwrap(), b"a");
        assert_eq!(names(io), ["b", "e", "link", "twin"]);
    });
}

#[test]
fn the_mounts_and_the_owner_bind_each_operation() {
    on_both(|io, setup| {
        let input = io.parent().unwrap().join("input");
        fs::create_dir_all(input.join("d")).unwrap();
        fs::write(input.join("f"), b"in").unwrap();
        for directory in ["keep", "hidden", "rw/keep", "rw/.git/hooks", "pin"] {
            fs::create_dir_all(io.join(directory)).unwrap();
        }
        fs::write(io.join("keep/f"), b"kept").unwrap();
        fs::write(io.join("pin/.bashrc"), b"kept").unwrap();
        let mounts = vec![("/io", Access::Write, io), ("/in", Access::Read, &input)];
        let allowed = vec![
            ("/in", Access::Write),
            ("/io", Access::Write),
            ("/io/keep", Access::Read),
            ("/io/rw/keep", Access::Read),
        ];
        let protected = vec![".bashrc", ".git/hooks"];
        let (files, announced) = Setup { mounts, allowed, protected, ..setup() }.open();
        let change = |path: &str| {
            [
                put(&files, path, OVERWRITE, b"x").map(drop),
                put(&files, path, CREATE_NEW, b"x").map(drop),
                put(&files, path, APPEND, b"x").map(drop),
                edit(&files, path, "kept", "x", 1),
                files.mkdir(&Mkdir::new(path)).map(drop),
                files.touch(&Touch::new(path)).map(drop),
                remove(&files, path, true).map(drop),
                files.rename_entry(&Rename::new(path, "/io/new"), &watch()).map(drop),
            ]
        };
        for (path, expected) in [
            ("/in/f", ErrorKind::ReadOnly),
            ("/in/d/new", ErrorKind::ReadOnly),
            ("keep/f", ErrorKind::NotAllowed),
            ("pin/.bashrc", ErrorKind::Protected),
            ("rw/.git/hooks", ErrorKind::Protected),
            ("rw/.git/hooks/x", ErrorKind::Protected),
            ("pin/.BASHRC/x", ErrorKind::Protected),
        ] {
            for result in change(path) {
                assert_eq!(kind(result), expected, "{path}");
            }
        }
        assert_eq!(kind(remove(&files, "rw/.git", true)), ErrorKind::Protected);
        assert_eq!(kind(remove(&files, "rw", true)), ErrorKind::NotAllowed);
        let error = remove(&files, "pin", true).unwrap_err();
        assert_eq!(error.to_string(), "pin/.bashrc: a protected name");
        assert_eq!(announced.take(), []);
        assert_eq!(get(&files, "/in/f", 0, None).unwrap(), b"in");
        assert_eq!(get(&files, "keep/f", 0, None).unwrap(), b"kept");
        assert_eq!(files.stat(b"pin/.bashrc").unwrap().size, 4);
        let narrow = vec![("/io/keep", Access::Read)];
        let (files, _) = Setup { allowed: narrow, ..setup() }.open();
        assert_eq!(kind(files.stat(b"hidden")), ErrorKind::NotAllowed);
        assert_eq!(kind(files.exists(b".")), ErrorKind::NotAllowed);
        assert_eq!(kind(list(&files, "hidden", None, None)), ErrorKind::NotAllowed);
        assert_eq!(kind(view(&files, "hidden")), ErrorKind::NotAllowed);
        assert_eq!(paths(&list(&files, "keep", None, None).unwrap().0), ["f"]);
    });
}

#[test]
fn long_operations_end_on_cancel_and_timeout() {
    on_both(|io, setup| {
        let (files, _) = setup().open();
        fs::create_dir(io.join("d")).unwrap();
        fs::write(io.join("d/f"), b"x").unwrap();
        let stopped = Arc::new(StopFlag::default());
        stopped.stop(StopReason::Cancelled);
        for (watch, expected) in [
            (Watch::new(stopped, Duration::from_secs(60)), ErrorKind::Cancelled),
            (Watch::new(Arc::default(), Duration::ZERO), ErrorKind::Timeout),
        ] {
            for result in [
                files.read(b"d/f", 0, None).and_then(|mut reading| reading.next(&watch)).map(drop),
                files.view(&View::new("d/f"), &watch).map(drop),
                files.edit(&Edit::new("d/f", "x", "y"), &watch).map(drop),
                files.list_entries(&List::new("."), &watch, |_| Ok(())).map(drop),
                files.remove_entry(&tree("d"), &watch).map(drop),
                files.rename_entry(&Rename::new("d", "new"), &watch).map(drop),
                files.rename(b"d/f", b"new", &watch),
                files
                    .write(OVERWRITE.of(b"new"), Absent::Accept)
                    .and_then(|new| new.commit(&watch))
                    .map(drop),
                files
                    .write(APPEND.of(b"d/f"), Absent::Accept)
                    .and_then(|new| new.commit(&watch))
                    .map(drop),
            ] {
                assert_eq!(kind(result), expected);
            }
        }
        assert_eq!(names(io), ["d"]);
        assert_eq!(fs::read(io.join("d/f")).unwrap(), b"x");
    });
}
