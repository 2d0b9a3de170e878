//! Operations that may go anywhere in the container: links are followed inside it, and lead nowhere
//! else.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{RenameFlags, renameat_with};
use sandbox_protocol::message::{Chmod, List, SetMetadata, Symlink, Write};

use super::super::LastLink;
use super::super::open::Absent;
use super::*;

/// The root of a container with an io dir, an input and files, for each resolver.
fn in_container(test: impl Fn(&Path, &Files)) {
    for resolver in RESOLVERS {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for made in ["io", "in/x", "tmp", "etc", "dev/shm"] {
            fs::create_dir_all(root.join(made)).unwrap();
        }
        fs::write(root.join("in/x/f"), "input").unwrap();
        let own = rustix::process::geteuid().as_raw();
        fs::write(root.join("etc/passwd"), format!("odd\na:b\nme:x:{own}:1:::\n")).unwrap();
        fs::write(root.join("etc/group"), "many:x:4000000000:\n").unwrap();
        let (io, input) = (root.join("io"), root.join("in/x"));
        let mut setup = Setup { resolver, container: Some(root), ..Setup::io(&io) };
        setup.mounts.push(("/in/x", Access::Read, &input));
        let (files, _) = setup.open();
        test(root, &files);
    }
}

fn content(files: &Files, path: &str) -> Result<Vec<u8>, FileError> {
    files.read(path.as_bytes(), 0, None)?.next(&watch())
}

fn put(files: &Files, path: &str, bytes: &[u8]) -> Result<(), FileError> {
    files.repeated(|| files.write_all(Write::new(path), bytes, &watch())).map(drop)
}

#[test]
fn links_lead_anywhere_inside_and_nowhere_outside() {
    in_container(|root, files| {
        let io = root.join("io");
        for (link, target) in [
            ("absolute", "/etc/passwd"),
            ("relative", "../etc/./passwd"),
            ("above", "../../../../../../etc/passwd"),
            ("twice", "absolute"),
            ("directory", "/etc/../etc"),
            ("away", "/tmp/new/"),
            ("input", "/in/x"),
            ("nowhere", "/etc/none/../passwd"),
        ] {
            symlink(target, io.join(link)).unwrap();
        }
        let passwd = fs::read(root.join("etc/passwd")).unwrap();
        for path in ["absolute", "relative", "above", "twice", "directory/passwd", "/etc/passwd"] {
            assert_eq!(content(files, path).unwrap(), passwd, "{path}");
            assert_eq!(kind(put(files, path, b"x")), ErrorKind::ReadOnly, "{path}");
        }
        assert_eq!(kind(content(files, "nowhere")), ErrorKind::NotFound);
        put(files, "away/f", b"1").unwrap();
        assert_eq!(fs::read(root.join("tmp/new/f")).unwrap(), b"1");
        // The rules are those of the place that a link leads to.
        assert_eq!(content(files, "input/f").unwrap(), b"input");
        assert_eq!(kind(put(files, "input/f", b"x")), ErrorKind::ReadOnly);
        put(files, "/dev/shm/f", b"1").unwrap();
        // Links are removed, renamed and described themselves.
        let facts = files.stat(b"twice").unwrap();
        assert_eq!(facts.kind, EntryKind::Symlink);
        let target = facts.target.unwrap();
        assert_eq!(target.as_bytes(), b"absolute");
        assert_eq!(files.stat_at(b"twice", LastLink::Follow).unwrap().kind, EntryKind::File);
        files.rename(b"twice", b"moved", &watch()).unwrap();
        files.remove(b"moved").unwrap();
        assert!(root.join("etc/passwd").exists() && io.join("absolute").is_symlink());
        assert_eq!(kind(files.stat(b"absolute/")), ErrorKind::NotADirectory);
        assert_eq!(files.list(b"/in").unwrap(), [b"x"]);
        assert_eq!(kind(content(files, "/io/../etc/passwd")), ErrorKind::PathEscape);
    });
}

#[test]
fn forty_links_are_followed_and_no_more() {
    in_container(|root, files| {
        let io = root.join("io");
        fs::write(io.join("0"), "end").unwrap();
        for number in 0..41 {
            symlink(number.to_string(), io.join((number + 1).to_string())).unwrap();
        }
        symlink("loop", io.join("loop")).unwrap();
        assert_eq!(content(files, "40").unwrap(), b"end");
        for path in ["41", "loop", "loop/x"] {
            let error = files.repeated(|| content(files, path)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Symlink, "{path}: {error}");
        }
    });
}

#[test]
fn nothing_of_the_kernels_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let setup = Setup { container: Some(Path::new("/")), ..Setup::io(directory.path()) };
    let (files, _) = setup.open();
    for path in
        ["/proc/1/fd/1", "/proc/self/environ", "/sys/kernel", "/dev/null", "/dev/fd/0", "/dev"]
    {
        assert_eq!(kind(content(&files, path)), ErrorKind::SpecialFile, "{path}");
        assert_eq!(kind(files.stat(path.as_bytes())), ErrorKind::SpecialFile, "{path}");
    }
    let pipe = directory.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (files, _) = Setup::io(directory.path()).open();
    assert_eq!(kind(content(&files, "pipe")), ErrorKind::SpecialFile);
}

#[test]
fn what_changes_meanwhile_is_what_is_used_or_an_error() {
    in_container(|root, files| {
        let io = root.join("io");
        fs::create_dir(io.join("d")).unwrap();
        fs::write(io.join("d/f"), "own").unwrap();
        symlink("/in/x", io.join("link")).unwrap();
        let over = AtomicBool::new(false);
        let since = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Also where the test has failed.
                while !over.load(Ordering::Relaxed) && since.elapsed() < Duration::from_secs(60) {
                    let (d, link) = (io.join("d"), io.join("link"));
                    _ = renameat_with(CWD, d, CWD, link, RenameFlags::EXCHANGE);
                }
            });
            let expected = [ErrorKind::Busy, ErrorKind::ReadOnly, ErrorKind::NotFound];
            for _ in 0..2000 {
                match files.repeated(|| content(files, "d/f")) {
                    Ok(read) => assert!([&b"own"[..], b"input"].contains(&&*read)),
                    Err(error) => assert!(expected.contains(&error.kind), "{error}"),
                }
                if let Err(error) = put(files, "d/f", b"own") {
                    assert!(expected.contains(&error.kind), "{error}");
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read(root.join("in/x/f")).unwrap(), b"input");
    });
}

#[test]
fn metadata_are_replaced_within_their_bounds() {
    in_container(|root, files| {
        fs::write(root.join("io/f"), "").unwrap();
        let set = |namespace: &str, pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
            let metadata: BTreeMap<_, _> = pairs.collect();
            let namespace = namespace.to_owned();
            files.set_metadata(&SetMetadata { namespace, ..SetMetadata::new("f", metadata) })
        };
        let of = |path: &str| files.stat(path.as_bytes()).unwrap().metadata;
        if let Err(error) = set("sbx", &[("a", "1"), ("b", "2")]) {
            // Where temporary files are on a file system without attributes, that is said.
            assert_eq!(error.kind, ErrorKind::InvalidRequest, "{error}");
            return;
        }
        set("e2b", &[("a", "3")]).unwrap();
        set("sbx", &[("c", "4")]).unwrap();
        let found: Vec<_> = of("f").into_iter().collect();
        assert_eq!(found, [("e2b.a".into(), "3".into()), ("sbx.c".into(), "4".into())]);
        let long = "x".repeat(4096);
        let keys: Vec<_> = (0..64).map(|number| format!("k{number}")).collect();
        let many: Vec<_> = keys.iter().map(|key| (&**key, "")).collect();
        for (namespace, pairs) in [
            ("sbx", &[("a", &*long)][..]),
            ("sbx", &many[..]),
            ("other", &[][..]),
            ("sbx", &[("a b", "")][..]),
        ] {
            assert_eq!(kind(set(namespace, pairs)), ErrorKind::InvalidRequest, "{namespace}");
        }
        set("sbx", &[]).unwrap();
        assert_eq!(of("f").len(), 1);
        let mut listed = Vec::new();
        let list = List { details: true, ..List::new(".") };
        files
            .list_entries(&list, &watch(), |entry| {
                listed.push(entry.details.unwrap());
                Ok(())
            })
            .unwrap();
        assert_eq!(listed[0].metadata, of("f"));
        assert_eq!((&*listed[0].owner.clone().unwrap(), &listed[0].group), ("me", &None));
    });
}

#[test]
fn permissions_are_set_without_other_bits() {
    in_container(|root, files| {
        let mode =
            |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777;
        let write = Write { permissions: Some(0o640), ..Write::new("d/f") };
        files.write(write.clone(), Absent::Accept).unwrap().commit(&watch()).unwrap();
        assert_eq!(mode("io/d/f"), 0o640);
        // An existing file keeps its own.
        let again = Write { permissions: Some(0o600), ..write.clone() };
        files.write_all(again, b"x", &watch()).unwrap();
        assert_eq!(mode("io/d/f"), 0o640);
        symlink("/in/x/f", root.join("io/d/link")).unwrap();
        let all = Chmod { recursive: true, ..Chmod::new("d", 0o700_u32) };
        assert_eq!(files.chmod(&all, &watch()).unwrap().entries, 2);
        assert_eq!((mode("io/d"), mode("io/d/f"), mode("in/x/f")), (0o700, 0o700, 0o644));
        for permissions in [0o4755_u32, 0o1777, 0o10_000] {
            let refused = files.chmod(&Chmod::new("d/f", permissions), &watch());
            assert_eq!(kind(refused), ErrorKind::InvalidRequest);
        }
        let of_the_root = files.chmod(&Chmod::new("~", 0o700_u32), &watch());
        assert_eq!(kind(of_the_root), ErrorKind::PermissionDenied);
        let set_id = Write { permissions: Some(0o4755), ..Write::new("g") };
        assert_eq!(kind(files.write(set_id, Absent::Accept)), ErrorKind::InvalidRequest);
    });
}

#[test]
fn links_are_created_and_read_where_they_are_followed() {
    in_container(|root, files| {
        files.symlink(&Symlink::new("link", "/etc/passwd")).unwrap();
        assert_eq!(files.read_link(b"link").unwrap().target.as_bytes(), b"/etc/passwd");
        assert_eq!(kind(files.symlink(&Symlink::new("link", "x"))), ErrorKind::AlreadyExists);
        assert_eq!(kind(files.symlink(&Symlink::new("/etc/x", "x"))), ErrorKind::ReadOnly);
        assert_eq!(kind(files.read_link(b"/etc")), ErrorKind::InvalidRequest);
        fs::write(root.join("io/f"), "").unwrap();
        files.make_parents_for(b"f", b"a/b/f").unwrap();
        files.rename(b"f", b"a/b/f", &watch()).unwrap();
        assert_eq!(kind(files.make_parents_for(b"none", b"c/f")), ErrorKind::NotFound);
        assert!(!root.join("io/c").exists());
    });
    on_both(|io, setup| {
        let (files, _) = setup().open();
        symlink("f", io.join("link")).unwrap();
        assert_eq!(kind(files.symlink(&Symlink::new("a", "x"))), ErrorKind::NotAllowed);
        assert_eq!(kind(files.read_link(b"link")), ErrorKind::NotAllowed);
        let metadata = SetMetadata::new("f", BTreeMap::new());
        assert_eq!(kind(files.set_metadata(&metadata)), ErrorKind::NotAllowed);
        assert_eq!(kind(content(&files, "link")), ErrorKind::Symlink);
        assert_eq!(kind(content(&files, "/etc/passwd")), ErrorKind::PathEscape);
        let facts = files.stat(b"link").unwrap();
        assert_eq!((facts.owner, facts.target), (None, None));
    });
}
