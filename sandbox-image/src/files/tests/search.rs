//! `glob`, `grep` and `copy`.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Arc;

use sandbox_protocol::WireString;
use sandbox_protocol::message::{Copy, Cut, CutBy, Glob, Grep};
use sandbox_protocol::path::join_written;

use super::operations::watch;
use super::*;
use crate::files::Watch;
use crate::files::breadth::Visit;
use crate::stop::{StopFlag, StopReason};

fn fill(io: &Path, names: &[(&str, &[u8])]) {
    for (name, content) in names {
        let path = io.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

pub(super) fn glob(files: &Files, path: &str, pattern: &str) -> Result<Vec<String>, FileError> {
    let request = Glob { path: path.into(), ..Glob::new(pattern) };
    let found = files.glob(&request, &watch())?;
    assert_eq!(found.cut, None);
    Ok(written(&request, &found.names))
}

/// What a glob has found, as its pattern begins.
fn written(request: &Glob, found: &[WireString]) -> Vec<String> {
    let directory = request.split().1.as_bytes();
    let found = found.iter().map(|below| join_written(directory, below.as_bytes()));
    found.map(|path| String::from_utf8(path).unwrap()).collect()
}

/// Lines as `fs grep` prints them.
fn grep(files: &Files, path: &str, request: &Grep) -> Result<Vec<String>, FileError> {
    let found = files.grep(&Grep { path: path.into(), ..request.clone() }, &watch())?;
    let lines = found.lines.iter().map(|line| {
        let mark = if line.context { '-' } else { ':' };
        format!("{}{mark}{}{mark}{}", line.name.to_string_lossy(), line.line, line.text)
    });
    Ok(lines.collect())
}

#[test]
fn glob_returns_matching_paths_in_order() {
    on_both(|io, setup| {
        let names = ["b.txt", "a.txt", "a.csv", "s/c.txt", "s/t/d.txt", "s/.h/e.txt", ".x.txt"];
        fill(io, &names.map(|name| (name, &b""[..])));
        let (files, _) = setup().open();
        let of = |pattern: &str| glob(&files, ".", pattern).unwrap();
        assert_eq!(of("*.txt"), ["a.txt", "b.txt"]);
        assert_eq!(of("**/*.txt"), ["a.txt", "b.txt", "s/c.txt", "s/t/d.txt"]);
        assert_eq!(of("s/**"), ["s/c.txt", "s/t", "s/t/d.txt"]);
        assert_eq!(of("{a,b}.[ct]*"), ["a.csv", "a.txt", "b.txt"]);
        assert_eq!(of("?.txt"), ["a.txt", "b.txt"]);
        assert_eq!(of("*/"), ["s"]);
        assert_eq!(of("**/"), ["s", "s/t"]);
        assert_eq!(of("a.txt/"), [""; 0]);
        assert_eq!(of(".*"), [".x.txt"]);
        assert_eq!(of("\\*"), [""; 0]);
        assert_eq!(glob(&files, "/io/s", "*.txt").unwrap(), ["c.txt"]);
        assert_eq!(glob(&files, "none", "*").unwrap(), [""; 0]);
        assert_eq!(glob(&files, "a.txt", "*").unwrap(), [""; 0]);
        let hidden = Glob { hidden: true, ..Glob::new("**/*.txt") };
        let found = files.glob(&hidden, &watch()).unwrap().names;
        assert_eq!(found.len(), 6, "{found:?}");
        let first = Glob { limit: Some(1), ..Glob::new("**/*.txt") };
        let found = files.glob(&first, &watch()).unwrap();
        assert_eq!((found.names, found.cut.is_some()), (vec!["a.txt".into()], true));
        for pattern in ["", "/", "[", "{a", &"x".repeat(5000), &"{a,".repeat(1000)] {
            let error = glob(&files, ".", pattern).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidRequest, "{pattern}");
        }
        assert_eq!(glob(&files, "..", "*").unwrap_err().kind, ErrorKind::PathEscape);
    });
}

#[test]
fn globs_match_characters_leading_dots_and_empty_alternatives_as_shells_do() {
    on_both(|io, setup| {
        let names = [
            "é.txt", "日本.md", ".env", ".envrc", "foo", "foo.txt", "a}.txt", ".d/.x", ".d/y",
            "s/z",
        ];
        fill(io, &names.map(|name| (name, &b"needle"[..])));
        let bytes = std::ffi::OsStr::from_bytes(b"\xff.bin");
        fs::write(io.join(bytes), b"").unwrap();
        let (files, _) = setup().open();
        let of = |pattern: &str| glob(&files, ".", pattern).unwrap();
        assert_eq!(of("?.txt"), ["é.txt"]);
        assert_eq!(of("[é].txt"), ["é.txt"]);
        assert_eq!(of("[日]本.md"), ["日本.md"]);
        assert_eq!(of("{.env,.envrc}"), [".env", ".envrc"]);
        assert_eq!(of("[.]env"), [""; 0]);
        assert_eq!(of("{.d,s}/*"), [".d/y", "s/z"]);
        assert_eq!(of(".*"), [".d", ".env", ".envrc"]);
        assert_eq!(of("**/.x"), [""; 0]);
        assert_eq!(of("**/.d/*"), [".d/y"]);
        assert_eq!(of("foo{,.txt}"), ["foo", "foo.txt"]);
        assert_eq!(of("a}.tx?"), ["a}.txt"]);
        for pattern in ["*.bin", "?.bin"] {
            let options = Glob::new(pattern);
            let found = files.glob(&options, &watch()).unwrap().names;
            assert_eq!(found, [WireString::from(b"\xff.bin")], "{pattern}");
        }
        let needle = Grep { globs: vec!["[é日]*".to_owned()], ..Grep::new("needle") };
        let found = ["é.txt:1:needle", "日本.md:1:needle"];
        assert_eq!(grep(&files, ".", &needle).unwrap(), found);
        let hidden = Grep { globs: vec!["?env".to_owned()], hidden: true, ..needle.clone() };
        assert_eq!(grep(&files, ".", &hidden).unwrap(), [".env:1:needle"]);
    });
}

#[test]
fn nothing_is_where_no_input_is_or_below_one_that_is_a_file() {
    on_both(|io, setup| {
        let inputs = tempfile::tempdir().unwrap();
        fill(inputs.path(), &[("f", b""), ("d/a", b"")]);
        fill(io, &[("ff", b"")]);
        let (f, d) = (inputs.path().join("f"), inputs.path().join("d"));
        let mut with_inputs = setup();
        with_inputs.mounts.push(("/in/f", Access::Read, &f));
        with_inputs.mounts.push(("/in/d", Access::Read, &d));
        let (files, _) = with_inputs.open();
        for path in ["/in/none", "/in/none/x", "/in/f/x", "/in/f/x/", "/in/d/none", "ff/x"] {
            assert_eq!(files.exists(path.as_bytes()).unwrap().1, None, "{path}");
            assert_eq!(glob(&files, &format!("{path}/"), "*").unwrap(), [""; 0], "{path}");
            assert!(files.stat(path.as_bytes()).unwrap_err().errno.is_some(), "{path}");
        }
        for path in ["/in", "/etc", "/"] {
            assert_eq!(files.exists(path.as_bytes()).unwrap_err().kind, ErrorKind::PathEscape);
        }
        for path in ["/etc", "/"] {
            assert_eq!(glob(&files, path, "*").unwrap_err().kind, ErrorKind::PathEscape);
        }
        assert_eq!(glob(&files, "/in", "*").unwrap(), ["d", "f"]);
        for path in ["/in/f/", "ff/"] {
            assert_eq!(files.exists(path.as_bytes()).unwrap_err().kind, ErrorKind::NotADirectory);
            assert_eq!(glob(&files, path, "*").unwrap_err().kind, ErrorKind::NotADirectory);
        }
    });
}

#[test]
fn a_glob_that_is_a_path_finds_it_where_no_directory_above_may_be_read() {
    on_both(|io, setup| {
        let inputs = tempfile::tempdir().unwrap();
        fill(inputs.path(), &[("f", b""), ("d/a", b"")]);
        fill(io, &[(".a", b""), ("d/b", b"")]);
        symlink("d", io.join("link")).unwrap();
        let (f, d) = (inputs.path().join("f"), inputs.path().join("d"));
        let mut with_inputs = setup();
        with_inputs.mounts.push(("/in/f", Access::Read, &f));
        with_inputs.mounts.push(("/in/d", Access::Read, &d));
        let (files, _) = with_inputs.open();
        let whole = |pattern: &str| {
            let (directory, below) = sandbox_protocol::path::split_glob(pattern);
            let top = if directory.is_empty() { "." } else { directory };
            let found = glob(&files, top, below)?;
            Ok::<_, FileError>(
                found.iter().map(|it| format!("{directory}{it}")).collect::<Vec<_>>(),
            )
        };
        for (pattern, path) in [
            ("/io", "/io"),
            ("/io/", "/io"),
            ("/in/f", "/in/f"),
            ("/in/d", "/in/d"),
            ("/in/d/a", "/in/d/a"),
            ("~", "~"),
            ("~/", "~/"),
            ("~/.a", "~/.a"),
            ("d/b", "d/b"),
            ("d/", "d"),
            ("link", "link"),
        ] {
            assert_eq!(whole(pattern).unwrap(), [path], "{pattern}");
        }
        for pattern in ["/in/f/", "/in/none", "/in/f/x", ".a/", ".a/x", "none", "link/", "."] {
            assert_eq!(whole(pattern).unwrap(), [""; 0], "{pattern}");
        }
        for pattern in ["/in", "/etc", "/i*", "..", "d/.."] {
            assert_eq!(whole(pattern).unwrap_err().kind, ErrorKind::PathEscape, "{pattern}");
        }
        assert_eq!(whole("link/b").unwrap_err().kind, ErrorKind::Symlink);
    });
}

#[test]
fn glob_enters_only_directories_that_may_have_a_match() {
    on_both(|io, setup| {
        let deep = "1/2/3/4/5/6/7/8/9/10/11/12/x.txt";
        let names = ["a.txt", "s/b.txt", "s/t/c.txt", "u/t/c.txt", "[/d.txt", "s/{/e.txt", deep];
        fill(io, &names.map(|name| (name, &b""[..])));
        let (files, _) = setup().open();
        let of = |pattern: &str| {
            let options = Glob::new(pattern);
            let found = files.glob(&options, &watch()).unwrap();
            (written(&options, &found.names), found.cut.is_some())
        };
        let whole = |paths: &[&str]| (paths.iter().map(|&it| it.to_owned()).collect(), false);
        assert_eq!(of("*.txt"), whole(&["a.txt"]));
        assert_eq!(of("*/*.txt"), whole(&["[/d.txt", "s/b.txt"]));
        assert_eq!(of("s/*/c.txt"), whole(&["s/t/c.txt"]));
        assert_eq!(of("*/t/*"), whole(&["s/t/c.txt", "u/t/c.txt"]));
        assert_eq!(of("{s/t,u/t}/c.txt"), whole(&["s/t/c.txt", "u/t/c.txt"]));
        assert_eq!(of("{s,u/t}/*.txt"), whole(&["s/b.txt", "u/t/c.txt"]));
        assert_eq!(of("s/\\{/*"), whole(&["s/{/e.txt"]));
        assert_eq!(of("[[]/*"), whole(&["[/d.txt"]));
        assert_eq!(of("[!x]/t"), whole(&["s/t", "u/t"]));
        assert_eq!(of("s/**/c.txt"), whole(&["s/t/c.txt"]));
        // The pattern does not name the directory.
        assert_eq!(of("s[!x]b.txt"), whole(&[]));
        let every =
            ["1/2/3/4/5/6/7/8/9/10/11/12/x.txt", "[/d.txt", "a.txt", "s/b.txt", "s/t/c.txt"];
        let more = ["s/{/e.txt", "u/t/c.txt"];
        assert_eq!(of("**/*.txt"), whole(&[&every[..], &more].concat()));
    });
}

#[test]
fn search_follows_no_link_and_obeys_path_rules() {
    on_both(|io, setup| {
        let outside = tempfile::tempdir().unwrap();
        fill(outside.path(), &[("secret.txt", b"needle")]);
        fill(io, &[("a.txt", b"needle"), ("no/b.txt", b"needle")]);
        symlink(outside.path(), io.join("out")).unwrap();
        symlink(outside.path().join("secret.txt"), io.join("link.txt")).unwrap();
        let (files, _) = setup().open();
        assert_eq!(glob(&files, ".", "**/*.txt").unwrap(), ["a.txt", "link.txt", "no/b.txt"]);
        let needle = Grep::new("needle");
        assert_eq!(grep(&files, ".", &needle).unwrap(), ["a.txt:1:needle", "no/b.txt:1:needle"]);
        for path in ["out", "link.txt", "out/secret.txt"] {
            assert_eq!(grep(&files, path, &needle).unwrap_err().kind, ErrorKind::Symlink);
        }
        assert_eq!(glob(&files, "out", "*").unwrap_err().kind, ErrorKind::Symlink);
        let (files, _) = Setup { allowed: vec![("/io/no", Access::Read)], ..setup() }.open();
        assert_eq!(glob(&files, ".", "*").unwrap_err().kind, ErrorKind::NotAllowed);
        assert_eq!(grep(&files, ".", &needle).unwrap_err().kind, ErrorKind::NotAllowed);
        assert_eq!(grep(&files, "no", &needle).unwrap(), ["b.txt:1:needle"]);
        let copied = files.copy(&Copy::new("no/b.txt", "c"), &watch());
        assert_eq!(copied.unwrap_err().kind, ErrorKind::NotAllowed);
    });
}

#[test]
fn grep_returns_matching_lines_and_their_context() {
    on_both(|io, setup| {
        let text = b"one\nTwo\r\nthree\nfour\nfive\ntwo";
        let binary = [b"two\n".as_slice(), b"x\0two\n", b"two\n"].concat();
        let long = [vec![b'x'; 300 << 10], b"\ntwo\n".to_vec()].concat();
        fill(
            io,
            &[
                ("a.txt", text),
                ("b.bin", &binary),
                ("c.min", &long),
                ("d/e.txt", b"two \xff"),
                (".h/f.txt", b"two"),
            ],
        );
        let (files, _) = setup().open();
        let two = Grep::new("two");
        let all = ["a.txt:6:two", "b.bin:1:two", "d/e.txt:1:two \u{fffd}"];
        assert_eq!(grep(&files, ".", &two).unwrap(), all);
        let names = Grep { globs: vec!["*.txt".to_owned()], ignore_case: true, ..two.clone() };
        let found = ["a.txt:2:Two", "a.txt:6:two", "d/e.txt:1:two \u{fffd}"];
        assert_eq!(grep(&files, ".", &names).unwrap(), found);
        let paths = Grep { globs: vec!["d/*".to_owned()], hidden: true, ..two.clone() };
        assert_eq!(grep(&files, ".", &paths).unwrap(), ["d/e.txt:1:two \u{fffd}"]);
        let hidden = Grep { hidden: true, ..two.clone() };
        assert_eq!(grep(&files, ".", &hidden).unwrap()[0], ".h/f.txt:1:two");
        let context = Grep { context: 1, ..Grep::new("^(Two|four)$") };
        let found = [":2:Two", ":4:four"];
        let near = ["-1-one", ":2:Two", "-3-three", ":4:four", "-5-five"];
        assert_eq!(grep(&files, "a.txt", &context).unwrap(), near);
        let found_alone = Grep { context: 0, ..context.clone() };
        assert_eq!(grep(&files, "a.txt", &found_alone).unwrap(), found);
        let first = files.grep(&Grep { limit: Some(1), ..two.clone() }, &watch()).unwrap();
        assert_eq!((first.lines.len(), first.cut.is_some()), (1, true));
        let refused = [
            Grep::new("("),
            Grep::new(r"(a)\1"),
            Grep::new(r"\w{1000}{1000}"),
            Grep::new("(".repeat(4000)),
            Grep { globs: vec!["[".to_owned()], ..two.clone() },
            Grep { context: 101, ..two.clone() },
            Grep { limit: Some(0), ..two.clone() },
        ];
        for options in refused {
            let error = grep(&files, ".", &options).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidRequest, "{options:?}");
        }
    });
}

#[test]
fn grep_is_bounded_in_bytes_and_ends_when_it_is_stopped() {
    on_both(|io, setup| {
        let line = [vec![b'x'; 3000], b"\n".to_vec()].concat();
        fill(io, &[("a", &line.repeat(1000))]);
        let (files, _) = setup().open();
        let options = Grep { path: "a".into(), ..Grep::new("x") };
        let found = files.grep(&options, &watch()).unwrap();
        assert!(found.cut.is_some() && found.lines.len() > 400, "{}", found.lines.len());
        assert!(found.lines.iter().all(|line| line.cut && line.text.len() == 2048));
        let stop = Arc::new(StopFlag::default());
        stop.stop(StopReason::Cancelled);
        let stopped = Watch::new(stop, std::time::Duration::from_secs(60));
        assert_eq!(files.grep(&options, &stopped).unwrap_err().kind, ErrorKind::Cancelled);
        let every = Glob::new("*");
        assert_eq!(files.glob(&every, &stopped).unwrap_err().kind, ErrorKind::Cancelled);
        let copied = files.copy(&Copy::new("a", "b"), &stopped);
        assert_eq!(copied.unwrap_err().kind, ErrorKind::Cancelled);
        assert!(!io.join("b").exists());
    });
}

#[test]
fn copy_gives_a_file_its_content_and_permissions() {
    on_both(|io, setup| {
        fill(io, &[("a", &[7; 600 << 10]), ("old", b"old"), ("empty", b"")]);
        fs::set_permissions(io.join("a"), fs::Permissions::from_mode(0o4750)).unwrap();
        let (files, recorded) = setup().open();
        let copy = |from: &str, to: &str, overwrite| {
            files.copy(&Copy { overwrite, ..Copy::new(from, to) }, &watch())
        };
        let copied = copy("a", "new/b", false).unwrap();
        assert_eq!((copied.entries, copied.bytes), (1, 600 << 10));
        assert_eq!(fs::read(io.join("new/b")).unwrap(), [7; 600 << 10]);
        assert_eq!(mode(&io.join("new/b")), 0o750);
        assert_eq!(recorded.take(), [("/io/new/b".to_owned(), false, Change::Write)]);
        assert_eq!(copy("empty", "empty2", false).unwrap().bytes, 0);
        let kind = |result: Result<_, FileError>| result.map(drop).unwrap_err().kind;
        assert_eq!(kind(copy("a", "old", false)), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(io.join("old")).unwrap(), b"old");
        copy("a", "old", true).unwrap();
        assert_eq!(fs::metadata(io.join("old")).unwrap().len(), 600 << 10);
        assert_eq!(mode(&io.join("old")), 0o750, "the source's in place of an old file, too");
        assert_eq!(kind(copy("a", "a", true)), ErrorKind::InvalidRequest);
        assert_eq!(kind(copy("none", "x", true)), ErrorKind::NotFound);
        assert_eq!(kind(copy("new", "x", true)), ErrorKind::IsDirectory);
        assert_eq!(kind(copy("a", "new", true)), ErrorKind::IsDirectory);
        assert_eq!(kind(copy("a", "x/", true)), ErrorKind::NotADirectory);
        assert_eq!(kind(copy("a", "/etc/x", true)), ErrorKind::PathEscape);
        symlink("a", io.join("link")).unwrap();
        assert_eq!(kind(copy("link", "x", true)), ErrorKind::Symlink);
        assert_eq!(kind(copy("a", "link", true)), ErrorKind::Symlink);
        assert!(!io.join("x").exists());
    });
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn copy_gives_directories_the_permissions_of_theirs() {
    on_both(|io, setup| {
        fill(io, &[("t/private/f", b"1"), ("t/fixed/in/f", b"2"), ("t/open/f", b"3")]);
        let modes = [
            ("private", 0o700, 0o700),
            ("fixed/in", 0o500, 0o500),
            ("fixed", 0o555, 0o555),
            ("open", 0o3777, 0o755),
            ("", 0o710, 0o710),
        ];
        for (name, of_source, _) in modes {
            let of_source = fs::Permissions::from_mode(of_source);
            fs::set_permissions(io.join("t").join(name), of_source).unwrap();
        }
        let (files, _) = setup().open();
        let copy = |to: &str| {
            let request = Copy { recursive: true, overwrite: true, ..Copy::new("t", to) };
            files.copy(&request, &watch())
        };
        assert_eq!(copy("new/u").unwrap().bytes, 3);
        for (name, _, of_copy) in modes {
            assert_eq!(mode(&io.join("new/u").join(name)), of_copy, "{name}");
        }
        // One that is there keeps its own.
        fs::create_dir_all(io.join("v/private")).unwrap();
        fs::set_permissions(io.join("v/private"), fs::Permissions::from_mode(0o750)).unwrap();
        copy("v").unwrap();
        assert_eq!((mode(&io.join("v/private")), mode(&io.join("v/fixed"))), (0o750, 0o555));
        for tree in ["t", "new/u", "v"] {
            for name in ["fixed", "fixed/in"] {
                let path = io.join(tree).join(name);
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
    });
}

#[test]
fn copy_of_a_tree_checks_it_before_it_begins() {
    on_both(|io, setup| {
        fill(io, &[("t/a", b"aa"), ("t/s/b", b"bbb"), ("t/s/c/d", b"d"), ("in/t/a", b"old")]);
        let protected = Setup { protected: vec!["keep"], ..setup() };
        let (files, _) = protected.open();
        let copy = |from: &str, to: &str, overwrite| {
            let request = Copy { recursive: true, overwrite, ..Copy::new(from, to) };
            files.copy(&request, &watch())
        };
        let copied = copy("t", "u", false).unwrap();
        assert_eq!((copied.entries, copied.bytes), (6, 6));
        assert_eq!(fs::read(io.join("u/s/c/d")).unwrap(), b"d");
        let kind = |result: Result<_, FileError>| result.map(drop).unwrap_err().kind;
        assert_eq!(kind(copy("t", "in/t", false)), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(io.join("in/t/a")).unwrap(), b"old");
        copy("t", "in/t", true).unwrap();
        assert_eq!(fs::read(io.join("in/t/a")).unwrap(), b"aa");
        for into in ["t", "t/x", "t/s/c/x", "./t//y"] {
            assert_eq!(kind(copy("t", into, true)), ErrorKind::InvalidRequest);
        }
        fill(io, &[("p/a", b""), ("p/keep/b", b"")]);
        assert_eq!(kind(copy("p", "q", false)), ErrorKind::Protected);
        symlink("a", io.join("t/z")).unwrap();
        assert_eq!(kind(copy("t", "q", false)), ErrorKind::Symlink);
        assert!(!io.join("q").exists());
    });
}

#[test]
fn copy_counts_towards_the_quotas() {
    on_both(|io, setup| {
        fill(io, &[("a", &[1; 1000]), ("t/a", b""), ("t/b", b"")]);
        let limits = Limits { write_bytes: 1500, entries: 3, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        let copy = |from: &str, to: &str| {
            let request = Copy { recursive: true, ..Copy::new(from, to) };
            files.copy(&request, &watch()).map(drop)
        };
        copy("a", "b").unwrap();
        assert_eq!(copy("a", "c").unwrap_err().kind, ErrorKind::WriteLimit);
        assert!(!io.join("c").exists());
        assert_eq!(copy("t", "u").unwrap_err().kind, ErrorKind::TooManyFiles);
        let limits = Limits { file_bytes: 999, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        let large = files.copy(&Copy::new("a", "d"), &watch());
        assert_eq!(large.unwrap_err().kind, ErrorKind::TooLarge);
        assert_eq!(names(io), ["a", "b", "t", "u"]);
    });
}

#[test]
fn directories_do_not_take_the_places_of_what_matches() {
    on_both(|io, setup| {
        let limits = Limits { list_entries: 4, ..LIMITS };
        for number in 0..15 {
            fs::create_dir_all(io.join(format!("t/d{number:02}"))).unwrap();
        }
        fill(io, &[("t/d07/a.txt", b"x"), ("t/zz.txt", b"x")]);
        let (files, _) = Setup { limits, ..setup() }.open();
        assert_eq!(glob(&files, ".", "**/*.txt").unwrap(), ["t/d07/a.txt", "t/zz.txt"]);
        let lines = grep(&files, ".", &Grep::new("x")).unwrap();
        assert_eq!(lines, ["t/d07/a.txt:1:x", "t/zz.txt:1:x"]);
        // The shallow ones of more matches than a search returns, in order.
        fill(io, &["t/d03/b.txt", "t/d09/c.txt", "t/d14/e.txt"].map(|name| (name, &b"x"[..])));
        let options = Glob::new("**/*.txt");
        let found = files.glob(&options, &watch()).unwrap();
        let first = ["t/d03/b.txt", "t/d07/a.txt", "t/d09/c.txt", "t/zz.txt"];
        assert_eq!(
            (found.names, found.cut.is_some()),
            (first.map(WireString::from).to_vec(), true)
        );
    });
}

#[test]
fn search_of_more_directories_than_may_wait_says_that_it_is_not_whole() {
    on_both(|io, setup| {
        let limits = Limits { list_entries: 4, ..LIMITS };
        for number in 0..21 {
            fs::create_dir_all(io.join(format!("t/d{number:02}"))).unwrap();
        }
        fill(io, &[("t/a.txt", b"x"), ("t/d19/b.txt", b"x"), ("t/d20/c.txt", b"x")]);
        let (files, _) = Setup { limits, ..setup() }.open();
        let options = Glob { path: "t".into(), ..Glob::new("**/*.txt") };
        let found = || {
            let found = files.glob(&options, &watch()).unwrap();
            (found.names.len(), found.cut.is_some())
        };
        assert_eq!(found(), (2, true));
        fs::remove_dir_all(io.join("t/d20")).unwrap();
        assert_eq!(found(), (2, false));
    });
}

#[test]
fn search_goes_as_deep_as_paths_and_is_cut_at_the_deep_end() {
    on_both(|io, setup| {
        let deep = format!("io/{}Order.java", "d/".repeat(60));
        fill(io, &[("Order.java", b"class Order{}"), (&deep, b"class Order{}")]);
        for number in 0..6 {
            fill(io, &[(&format!("node_modules/{number}/x.js"), b"Order")]);
        }
        let (files, _) = setup().open();
        assert_eq!(glob(&files, ".", "**/*.java").unwrap(), ["Order.java", &deep]);
        let order = Grep::new("Order");
        let found = grep(&files, "io", &order).unwrap();
        assert_eq!(found, [format!("{}:1:class Order{{}}", &deep[3..])]);
        // More files than a search looks at: those of shallow directories come first.
        let limits = Limits { list_entries: 4, ..LIMITS };
        let (files, _) = Setup { limits, ..setup() }.open();
        let found = files.grep(&order, &watch()).unwrap();
        assert_eq!((found.files, found.lines.len()), (4, 4));
        assert_eq!(found.lines[0].name.as_bytes(), b"Order.java");
        let at = "node_modules/3/x.js".into();
        assert_eq!(found.cut, Some(Cut { by: CutBy::Files, at }));
        let globs = vec!["!node_modules/**".to_owned()];
        let found = files.grep(&Grep { globs: globs.clone(), ..order.clone() }, &watch()).unwrap();
        assert_eq!((found.files, found.cut), (2, None));
        let two = Glob { limit: Some(2), ..Glob::new("**/*.j*") };
        let found = files.glob(&two, &watch()).unwrap();
        assert_eq!(found.names, ["Order.java", "node_modules/0/x.js"]);
        let at = "node_modules/1/x.js".into();
        assert_eq!(found.cut, Some(Cut { by: CutBy::Entries, at }));
        let options = Glob { globs: globs.clone(), ..two.clone() };
        let found = files.glob(&options, &watch()).unwrap();
        assert_eq!((found.names.len(), found.cut), (2, None));
        // A pattern's own directory stands before what it finds.
        let of = |glob: &str| {
            let globs = vec![glob.to_owned()];
            let options = Glob { globs, limit: Some(2), ..Glob::new("node_modules/**/*.js") };
            files.glob(&options, &watch()).unwrap().names.len()
        };
        assert_eq!([of("!node_modules/**"), of("!*.ts"), of("!**/x.js")], [0, 2, 0]);
    });
}

#[test]
fn search_whose_time_is_over_has_what_it_found_and_says_where_it_stopped() {
    on_both(|io, setup| {
        fill(io, &[("a", b"x"), ("b", b"x"), ("c/d", b"x"), ("c/e/f", b"x"), ("g", b"x")]);
        let (files, _) = setup().open();
        for (last, until_then, at) in [
            ("b", &["a", "b"][..], "c"),
            ("g", &["a", "b", "c", "g"], "c"),
            ("c/d", &["a", "b", "c", "g", "c/d"], "c/e"),
        ] {
            // On a busy machine its time may be over before it comes there: then it gets more.
            let (found, walked) = [50, 5_000, 50_000]
                .into_iter()
                .find_map(|time| {
                    let time = std::time::Duration::from_millis(time);
                    let watch = Watch::new(Arc::default(), time);
                    let mut found = Vec::new();
                    let walked = files.walk_breadth_first(
                        b".",
                        (100, CutBy::Files),
                        &watch,
                        &|_, _, _| Visit { returned: true, entered: true },
                        &mut |path, _| {
                            let is_last = path == last.as_bytes();
                            found.push(String::from_utf8(path).unwrap());
                            while is_last && watch.check().is_ok() {
                                std::thread::yield_now();
                            }
                            Ok(std::ops::ControlFlow::Continue(()))
                        },
                    );
                    found.iter().any(|path| path == last).then_some((found, walked))
                })
                .expect("it comes there in its time");
            assert_eq!(found, until_then);
            assert_eq!(walked.unwrap().cut, Some(Cut { by: CutBy::Time, at: at.into() }));
        }
        // With nothing found it is an error.
        let over = Watch::new(Arc::default(), std::time::Duration::ZERO);
        let error = files.glob(&Glob::new("*"), &over).unwrap_err();
        assert_eq!((error.kind, &*error.path), (ErrorKind::Timeout, &b"."[..]));
        let error = files.grep(&Grep { path: "a".into(), ..Grep::new("x") }, &over).unwrap_err();
        assert_eq!((error.kind, &*error.path), (ErrorKind::Timeout, &b"a"[..]));
    });
}

#[test]
fn grep_leaves_out_version_control_unless_it_begins_there() {
    on_both(|io, setup| {
        fill(io, &[(".git/a", b"x"), ("s/.svn/b", b"x"), ("CVS/c", b"x"), (".h/d", b"x")]);
        let (files, _) = setup().open();
        let all = Grep { hidden: true, ..Grep::new("x") };
        assert_eq!(grep(&files, ".", &all).unwrap(), [".h/d:1:x"]);
        assert_eq!(grep(&files, ".git", &all).unwrap(), ["a:1:x"]);
        let many: Vec<_> = (0..2000).map(|number| format!("!{number}")).collect();
        let error = grep(&files, ".", &Grep { globs: many, ..all.clone() }).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest);
    });
}
