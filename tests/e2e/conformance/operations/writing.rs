//! `write`, `edit` and `touch`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use sandbox_api::{FileOp, Outcome, Script};
use serde_json::json;

use crate::library::Guest;

#[test]
fn content_is_written_whole_and_as_it_is() {
    let guest = Guest::new();
    for (encoding, content, bytes) in [
        ("utf-8", "\u{feff}é\r\n \0", "\u{feff}é\r\n \0".as_bytes()),
        ("utf8", "", b""),
        ("base64", "AEH/2A==", b"\x00\x41\xff\xd8"),
        ("hex", "0041FFd8", b"\x00\x41\xff\xd8"),
        ("latin1", "é\u{ff}", b"\xe9\xff"),
        ("utf-16le", "A😀", b"A\0\x3d\xd8\0\xde"),
        ("utf-16be", "A😀", b"\0A\xd8\x3d\xde\0"),
        ("ascii", "a\x7f", b"a\x7f"),
    ] {
        let write =
            json!({"operation": "write", "path": "f", "content": content, "encoding": encoding});
        let envelope = guest.perform(&write);
        assert_eq!(envelope["data"]["bytes_written"], bytes.len(), "{encoding}");
        assert_eq!(envelope["metadata"]["bytes"], bytes.len(), "{encoding}");
        assert_eq!(fs::read(guest.place.path("sandbox-files/f")).unwrap(), bytes, "{encoding}");
    }
    for (encoding, content) in
        [("base64", "AE!"), ("hex", "f"), ("hex", "zz"), ("latin1", "€"), ("ascii", "é")]
    {
        let write =
            json!({"operation": "write", "path": "f", "content": content, "encoding": encoding});
        let error = &guest.perform(&write)["error"];
        assert_eq!(error["kind"], "encoding", "{encoding}");
        // In another encoding these digits would be other bytes.
        let is_digits = matches!(encoding, "base64" | "hex");
        let hint = error["hint"].as_str().unwrap_or_default();
        assert_eq!(hint.contains("base64"), !is_digits, "{error:#}");
    }
    assert_eq!(fs::read(guest.place.path("sandbox-files/f")).unwrap(), b"a\x7f", "unchanged");
}

#[test]
fn a_mode_says_what_becomes_of_the_file_that_is_there() {
    let guest = Guest::new();
    let write = |content: &str, mode: &str| json!({"operation": "write", "path": "f", "content": content, "mode": mode});
    let data = |bytes: u64, created: bool| json!({"path": "/io/f", "bytes_written": bytes, "created": created});
    assert_eq!(guest.data(write("one", "create_new")), data(3, true));
    assert_eq!(guest.kind(write("x", "create_new")), "already_exists");
    assert_eq!(guest.data(write(" two", "append")), data(4, false));
    assert_eq!(guest.place.read("sandbox-files/f"), "one two");
    assert_eq!(guest.data(write("3", "overwrite")), data(1, false));
    assert_eq!(guest.place.read("sandbox-files/f"), "3");
    fs::remove_file(guest.place.path("sandbox-files/f")).unwrap();
    assert_eq!(guest.data(write("new", "append")), data(3, true));
    fs::remove_file(guest.place.path("sandbox-files/f")).unwrap();
    assert_eq!(guest.data(write("new", "overwrite")), data(3, true));
    for mode in ["overwrite", "append"] {
        let write = json!({"operation": "write", "path": ".", "content": "", "mode": mode});
        assert_eq!(guest.kind(write), "is_directory", "{mode}");
    }
    assert_eq!(fs::read_dir(guest.place.path("sandbox-files")).unwrap().count(), 1);
}

#[test]
fn an_atomic_overwrite_is_another_file_with_the_permissions_of_the_old_one() {
    let guest = Guest::new();
    let file = guest.place.write("sandbox-files/f", "old");
    let other_name = guest.place.path("sandbox-files/same");
    fs::hard_link(&file, &other_name).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o4750)).unwrap();
    guest.data(json!({"operation": "write", "path": "f", "content": "new"}));
    let (new, old) = (fs::metadata(&file).unwrap(), fs::metadata(&other_name).unwrap());
    assert_ne!(new.ino(), old.ino());
    // What gives rights away is not passed on.
    assert_eq!(new.permissions().mode() & 0o7777, 0o750);
    assert_eq!((new.uid(), new.gid()), (old.uid(), old.gid()));
    assert_eq!(guest.place.read("sandbox-files/same"), "old");
    // Not atomic: the file itself, under all its names.
    let in_place = json!({"operation": "write", "path": "same", "content": "it", "atomic": false});
    guest.data(in_place);
    assert_eq!(fs::metadata(&other_name).unwrap().ino(), old.ino());
    assert_eq!(guest.place.read("sandbox-files/same"), "it");
}

#[test]
fn missing_directories_are_made_or_are_an_error() {
    let guest = Guest::new();
    for mode in ["overwrite", "append", "create_new"] {
        let path = format!("{mode}/deep/f");
        let write = |parents: bool| json!({"operation": "write", "path": path, "content": "x", "mode": mode, "parents": parents});
        assert_eq!(guest.kind(write(false)), "not_found", "{mode}");
        assert!(!guest.place.path("sandbox-files").join(mode).exists());
        assert_eq!(guest.data(write(true))["created"], true, "{mode}");
        assert_eq!(guest.place.read(&format!("sandbox-files/{path}")), "x");
    }
}

#[test]
fn a_touch_makes_an_empty_file_or_sets_times() {
    let guest = Guest::new();
    guest.place.write("sandbox-files/f", "kept");
    let touch =
        |path: &str, mtime: &str| json!({"operation": "touch", "path": path, "mtime": mtime});
    let modified =
        |path: &str| guest.data(json!({"operation": "stat", "path": path}))["modified"].clone();
    for (path, created) in [("f", false), ("deep/new", true), ("deep", false), (".", false)] {
        let data = guest.data(touch(path, "2026-11-22T06:11:28.5+01:00"));
        assert_eq!(data["created"], created, "{path}");
        assert_eq!(modified(path), "2026-11-22T05:11:28.5Z", "{path}");
        guest.data(json!({"operation": "touch", "path": path}));
        assert_ne!(modified(path), "2026-11-22T05:11:28.5Z", "{path}");
    }
    assert_eq!(guest.place.read("sandbox-files/f"), "kept");
    assert_eq!(guest.place.read("sandbox-files/deep/new"), "");
    let source = "fs.touch('f', {mtime = 1.5}) fs.touch('g') return fs.stat('f').modified";
    let run = guest.wait(guest.sandbox.run(Script::new(source))).unwrap();
    assert!(matches!(&run.outcome, Outcome::Ok { result } if result.get() == "1.5"), "{run:?}");
    let touched: Vec<_> =
        run.files_touched.files.iter().map(|it| (it.name.to_string(), it.op)).collect();
    assert_eq!(touched, [("f".to_owned(), FileOp::Append), ("g".to_owned(), FileOp::Write)]);
}

#[test]
fn an_edit_replaces_what_is_there_exactly_as_often_as_said() {
    let guest = Guest::new();
    let file = guest.place.write("sandbox-files/f", "one two two\r\n two");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    let edit = |old: &str, new: &str, count: Option<u64>| {
        let mut edit = json!({"operation": "edit", "path": "f", "old": old, "new": new});
        if let Some(count) = count {
            edit["count"] = json!(count);
        }
        edit
    };
    // By default once: neither absent nor ambiguous.
    for (old, count, words) in [
        ("four", None, "not in the file"),
        ("two", None, "3 times, not once"),
        ("two", Some(2), "3 times, not 2"),
        ("one", Some(2), "once, not 2 times"),
        ("", None, "empty"),
    ] {
        let error = &guest.perform(&edit(old, "x", count))["error"];
        assert_eq!(error["kind"], "invalid_request", "{old} {count:?}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error:#}");
        assert_eq!(guest.place.read("sandbox-files/f"), "one two two\r\n two");
    }
    let envelope = guest.perform(&edit("one", "", None));
    assert_eq!(envelope["data"], json!({"path": "/io/f", "replacements": 1}));
    assert_eq!(envelope["metadata"]["items"], 1);
    assert_eq!(guest.data(edit("two", "2é", Some(3)))["replacements"], 3);
    assert_eq!(guest.place.read("sandbox-files/f"), " 2é 2é\r\n 2é");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    guest.place.write("sandbox-files/binary", b"\xffa");
    let binary = json!({"operation": "edit", "path": "binary", "old": "a", "new": "b"});
    assert_eq!(guest.kind(binary), "encoding");
    assert_eq!(
        guest.kind(json!({"operation": "edit", "path": ".", "old": "a", "new": "b"})),
        "is_directory"
    );
}
