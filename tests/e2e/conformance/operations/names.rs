//! `list`, `mkdir`, `remove`, `exists`, `stat`, `rename`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use sandbox_api::operation::Write;
use serde_json::{Value, json};

use super::{plant_oddities, special_files};
use crate::engines::{Feature, has};
use crate::library::Guest;

/// The names in a list, as paths below the io dir.
fn paths(data: &Value) -> Vec<&str> {
    let entries = data["entries"].as_array().unwrap().iter();
    entries.map(|entry| entry["path"].as_str().unwrap().strip_prefix("/io/").unwrap()).collect()
}

/// A time by RFC 3339, as seconds since 1970, by `date`.
fn seconds(time: &Value) -> i64 {
    let time = time.as_str().unwrap_or_else(|| panic!("no time: {time}"));
    assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
    let date = std::process::Command::new("date").args(["-d", time, "+%s"]).output().unwrap();
    String::from_utf8(date.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn a_list_has_what_is_in_a_directory_in_order() {
    let guest = Guest::new();
    for name in ["b/2", "b/1/x", "a", "b-c", "c"] {
        guest.place.write(&format!("sandbox-files/{name}"), name);
    }
    let list = |options: Value| {
        let mut list = json!({"operation": "list", "path": "."});
        list.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        list
    };
    let flat = guest.perform(&list(json!({})));
    assert_eq!(paths(&flat["data"]), ["a", "b", "b-c", "c"]);
    assert_eq!(flat["metadata"]["items"], 4);
    let entry = &flat["data"]["entries"][2];
    let metadata = fs::metadata(guest.place.path("sandbox-files/b-c")).unwrap();
    assert_eq!(seconds(&entry["modified"]), metadata.mtime());
    let expected = json!({"name": "b-c", "path": "/io/b-c", "type": "file", "size": 3,
        "modified": entry["modified"]});
    assert_eq!(entry, &expected);
    assert_eq!(flat["data"]["path"], "/io");
    let deep = guest.data(list(json!({"recursive": true})));
    // By component, a directory before what is in it.
    assert_eq!(paths(&deep), ["a", "b", "b/1", "b/1/x", "b/2", "b-c", "c"]);
    assert_eq!(deep["entries"][3]["name"], "x");
    assert_eq!(deep["truncated"], false);
    // What the caller's own depth leaves out is not missing.
    let two = guest.data(list(json!({"recursive": true, "max_depth": 2})));
    assert_eq!(paths(&two), ["a", "b", "b/1", "b/2", "b-c", "c"]);
    assert_eq!(two["truncated"], false);
    let some = guest.data(list(json!({"recursive": true, "limit": 3})));
    assert_eq!(paths(&some), ["a", "b", "b/1"]);
    assert_eq!(some["truncated"], true);
    let exact = guest.data(list(json!({"limit": 4})));
    assert_eq!(exact["truncated"], false);
    for options in [json!({"limit": 0}), json!({"recursive": true, "max_depth": 0})] {
        assert_eq!(guest.kind(list(options.clone())), "invalid_request", "{options}");
    }
    // Without a path: the working directory.
    assert_eq!(paths(&guest.data(json!({"operation": "list"}))), ["a", "b", "b-c", "c"]);
}

#[test]
fn a_list_ends_ten_deep_and_says_so() {
    let guest = Guest::new();
    let deep = (1..=12).map(|level| level.to_string()).collect::<Vec<_>>().join("/");
    fs::create_dir_all(guest.place.path("sandbox-files").join(&deep)).unwrap();
    let list = |path: &str| json!({"operation": "list", "path": path, "recursive": true});
    let ten = guest.data(list("."));
    assert_eq!((paths(&ten).len(), &ten["truncated"]), (10, &json!(true)));
    assert_eq!(guest.data(list("1"))["truncated"], true);
    assert_eq!(guest.data(list("1/2"))["truncated"], false);
}

#[test]
fn a_list_distinguishes_links_and_special_files_and_follows_none() {
    let guest = Guest::new();
    let io_dir = guest.place.path("sandbox-files");
    plant_oddities(&io_dir);
    guest.place.write("sandbox-files/sub/f", "x");
    symlink("sub", io_dir.join("within")).unwrap();
    let listed = guest.data(json!({"operation": "list", "path": ".", "recursive": true}));
    let kind = |path: &str| {
        let entries = listed["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["path"] == format!("/io/{path}"));
        entry.unwrap_or_else(|| panic!("no {path}: {listed:#}"))["type"].clone()
    };
    for path in ["link", "dangling", "way-out", "within"] {
        assert_eq!(kind(path), "symlink");
    }
    for path in special_files() {
        assert_eq!(kind(path), "other");
    }
    assert_eq!((kind("sub"), kind("sub/f")), (json!("directory"), json!("file")));
    assert_eq!(paths(&listed).len(), 6 + special_files().len(), "nothing of /etc, and sub/f once");
}

#[test]
fn names_of_any_bytes_go_both_ways() {
    let guest = Guest::new();
    guest.wait(async {
        for byte in (1..=255_u8).filter(|byte| ![b'/', b'.'].contains(byte)) {
            let name = [b'n', byte, b'\xff'];
            guest.sandbox.write(Write::new(&name), [byte]).await.unwrap();
            let path = guest.place.path("sandbox-files").join(OsStr::from_bytes(&name));
            assert_eq!(fs::read(path).unwrap(), [byte]);
        }
    });
    let listed = guest.data(json!({"operation": "list", "path": "."}));
    let entries = listed["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 253);
    for entry in entries {
        // A name as text is lossy; its bytes lead back to the file.
        let (path, path_b64) = (&entry["path"], &entry["path_b64"]);
        assert!(entry["name_b64"].is_string(), "{entry:#}");
        let exact = json!({"b64": path_b64});
        let data = guest.data(json!({"operation": "read", "path": exact, "encoding": "base64"}));
        assert_eq!((&data["path"], &data["path_b64"]), (path, path_b64));
    }
    // The lossy text alone is another name.
    let lossy = json!({"operation": "exists", "path": entries[0]["path"]});
    assert_eq!(guest.data(lossy)["exists"], false);
    let first_b64 = &entries[0]["path_b64"];
    for operation in ["stat", "exists", "view", "remove"] {
        let by_bytes = json!({"operation": operation, "path": {"b64": first_b64}});
        let envelope = guest.perform(&by_bytes);
        // One byte alone may be no text.
        if envelope["error"]["kind"] != "encoding" {
            assert_eq!(envelope["data"]["path_b64"], *first_b64, "{envelope:#}");
        }
    }
    let last_b64 = &entries[252]["path_b64"];
    let rename = json!({"operation": "rename", "from": {"b64": last_b64}, "to": "text"});
    let data = guest.data(rename);
    assert_eq!((&data["from_b64"], &data["to"]), (last_b64, &json!("/io/text")));
    assert_eq!(data.get("to_b64"), None);
}

#[test]
fn a_name_that_looks_like_something_else_is_a_name() {
    let guest = Guest::new();
    let names = ["-", "--help", "...", "a:b", "c\\d", "*", "~"];
    for name in names {
        let write = json!({"operation": "write", "path": format!("./{name}"), "content": name});
        // Only at its beginning does the tilde mean home.
        assert_eq!(guest.data(write)["path"], format!("/io/{name}"));
    }
    guest.place.write("sandbox-files/d/~/f", "x");
    let listed = guest.data(json!({"operation": "list", "path": ".", "recursive": true}));
    let expected = ["*", "-", "--help", "...", "a:b", "c\\d", "d", "d/~", "d/~/f", "~"];
    assert_eq!(paths(&listed), expected);
}

#[test]
fn a_list_leaves_out_what_no_path_is_long_enough_for() {
    let guest = Guest::new();
    // Sixteen names of 250 bytes: as the tree of a script that moves one into another.
    let name = "n".repeat(250);
    let io_dir = guest.place.path("sandbox-files");
    let mut directory = fs::File::open(&io_dir).unwrap();
    for _ in 0..17 {
        rustix::fs::mkdirat(&directory, &name, 0o755.into()).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY;
        directory = rustix::fs::openat(&directory, &name, flags, 0.into()).unwrap().into();
    }
    let top = vec![&*name; 15].join("/");
    let list = json!({"operation": "list", "path": top, "recursive": true});
    let listed = guest.data(list);
    assert_eq!((paths(&listed).len(), &listed["truncated"]), (1, &json!(true)), "{listed:#}");
    let remove = json!({"operation": "remove", "path": name, "recursive": true});
    assert_eq!(guest.data(remove)["entries"], 17);
}

#[test]
fn a_directory_is_made_once() {
    let guest = Guest::new();
    let mkdir =
        |path: &str, parents: bool| json!({"operation": "mkdir", "path": path, "parents": parents});
    assert_eq!(guest.kind(mkdir("a/b", false)), "not_found");
    let made = guest.data(json!({"operation": "mkdir", "path": "a/b"}));
    assert_eq!(made, json!({"path": "/io/a/b", "created": true}));
    for path in ["a/b", "a/b/", "a", ".", "~"] {
        assert_eq!(guest.data(mkdir(path, false))["created"], false, "{path}");
    }
    assert_eq!(guest.data(mkdir("a/c", false))["created"], true);
    guest.place.write("sandbox-files/file", "");
    symlink("a", guest.place.path("sandbox-files/link")).unwrap();
    assert_eq!(guest.kind(mkdir("file", true)), "already_exists");
    assert_eq!(guest.kind(mkdir("link/new", true)), "symlink");
    let kind = guest.kind(mkdir("link", true));
    assert!(["already_exists", "symlink"].contains(&kind.as_str()), "{kind}");
}

#[test]
fn remove_removes_the_named_entry() {
    let guest = Guest::new();
    let io_dir = guest.place.path("sandbox-files");
    guest.place.write("outside/kept", "kept");
    let remove = |path: &str, options: Value| {
        let mut remove = json!({"operation": "remove", "path": path});
        remove.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        remove
    };
    guest.place.write("sandbox-files/f", "");
    fs::create_dir(io_dir.join("empty")).unwrap();
    symlink(guest.place.path("outside"), io_dir.join("link")).unwrap();
    for path in ["f", "empty", "link"] {
        let envelope = guest.perform(&remove(path, json!({})));
        let data = json!({"path": format!("/io/{path}"), "removed": true, "entries": 1});
        assert_eq!(envelope["data"], data);
        assert_eq!(envelope["metadata"]["items"], 1);
        assert!(io_dir.join(path).symlink_metadata().is_err());
        assert_eq!(guest.kind(remove(path, json!({}))), "not_found");
        let forced = guest.data(remove(path, json!({"force": true})));
        assert_eq!((&forced["removed"], &forced["entries"]), (&json!(false), &json!(0)));
    }
    // A directory with content is removed completely, or not at all.
    for path in ["tree/a/b/c", "tree/a/d", "tree/e"] {
        guest.place.write(&format!("sandbox-files/{path}"), "x");
    }
    plant_oddities(&io_dir.join("tree/a"));
    symlink(guest.place.path("outside"), io_dir.join("tree/outside")).unwrap();
    for options in [json!({}), json!({"force": true})] {
        assert_eq!(guest.kind(remove("tree", options)), "not_empty");
    }
    assert_eq!(guest.kind(remove("tree/e/", json!({}))), "not_a_directory");
    let removed = guest.data(remove("tree", json!({"recursive": true})));
    let entries = 7 + 3 + special_files().len();
    assert_eq!((&removed["removed"], &removed["entries"]), (&json!(true), &json!(entries)));
    assert!(!io_dir.join("tree").exists());
    assert_eq!(guest.place.read("outside/kept"), "kept");
    let forced = guest.data(remove("tree", json!({"recursive": true, "force": true})));
    assert_eq!(forced["removed"], false);
}

#[test]
fn exists_is_true_for_every_kind_of_entry() {
    let guest = Guest::new();
    let io_dir = guest.place.path("sandbox-files");
    plant_oddities(&io_dir);
    guest.place.write("sandbox-files/sub/f", "");
    for (path, kind) in [
        ("sub/f", json!("file")),
        ("sub", json!("directory")),
        (".", json!("directory")),
        ("link", json!("symlink")),
        ("dangling", json!("symlink")),
        ("fifo", json!("other")),
        ("none", json!(null)),
        ("none/at/all", json!(null)),
        ("sub/f/below", json!(null)),
    ] {
        let data = guest.data(json!({"operation": "exists", "path": path}));
        let expected = json!({"path": data["path"], "exists": !kind.is_null(), "type": kind});
        assert_eq!(data, expected, "{path}");
    }
    // Unknown is an error, not `false`.
    for (path, kind) in [("way-out/passwd", "symlink"), ("../x", "path_escape")] {
        assert_eq!(guest.kind(json!({"operation": "exists", "path": path})), kind);
    }
}

#[test]
fn stat_returns_the_systems_metadata() {
    let guest = Guest::new();
    let file = guest.place.write("sandbox-files/f", "12345");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o4751)).unwrap();
    let before_1970 = std::time::SystemTime::UNIX_EPOCH - std::time::Duration::from_millis(1500);
    let opened = fs::File::options().write(true).open(&file).unwrap();
    opened.set_modified(before_1970).unwrap();
    let stat = |path: &str| guest.data(json!({"operation": "stat", "path": path}));
    let data = stat("f");
    let metadata = fs::metadata(&file).unwrap();
    let keys: Vec<&str> = data.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "path", "type", "size", "permissions", "mode", "uid", "gid", "owner", "group", "modified",
        "accessed", "created",
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(data["type"], "file");
    assert_eq!(
        (&data["size"], &data["permissions"], &data["mode"]),
        (&json!(5), &json!("rwsr-x--x"), &json!("4751"))
    );
    assert_eq!((&data["uid"], &data["gid"]), (&json!(metadata.uid()), &json!(metadata.gid())));
    // Another kernel has no half seconds before 1970.
    if has(Feature::SharedKernel) || !data["modified"].is_null() {
        assert_eq!(data["modified"], "1969-12-31T23:59:58.5Z");
    }
    // The engine may run in another world of users.
    if metadata.uid() == 0 {
        assert!(["root", "0"].contains(&data["owner"].as_str().unwrap()), "{data:#}");
    }
    for key in ["accessed", "created"] {
        assert!(data[key].is_null() || seconds(&data[key]) > 1_700_000_000, "{data:#}");
    }
    symlink("f", guest.place.path("sandbox-files/link")).unwrap();
    assert_eq!((&stat("link")["type"], &stat("link")["size"]), (&json!("symlink"), &json!(1)));
    assert_eq!(stat(".")["type"], "directory");
}

#[test]
fn a_rename_takes_another_name_only_if_it_may() {
    let guest = Guest::new();
    let io_dir = guest.place.path("sandbox-files");
    for (name, content) in [("a", "a"), ("b", "b"), ("d/f", "f"), ("full/g", "g")] {
        guest.place.write(&format!("sandbox-files/{name}"), content);
    }
    fs::create_dir(io_dir.join("empty")).unwrap();
    symlink("/etc/passwd", io_dir.join("link")).unwrap();
    let rename = |from: &str, to: &str, overwrite: bool| json!({"operation": "rename", "from": from, "to": to, "overwrite": overwrite});
    let default = json!({"operation": "rename", "from": "a", "to": "b"});
    assert_eq!(guest.kind(default), "already_exists");
    for (from, to, overwrite, kind) in [
        ("a", "b", false, "already_exists"),
        ("a", "link", false, "already_exists"),
        ("d", "empty", false, "already_exists"),
        ("none", "b", true, "not_found"),
        ("a", "none/b", true, "not_found"),
        ("a", "d", true, "is_directory"),
        ("d", "a", true, "not_a_directory"),
        ("d", "full", true, "not_empty"),
        ("d", "d/below", true, "invalid_path"),
    ] {
        assert_eq!(guest.kind(rename(from, to, overwrite)), kind, "{from} {to}");
    }
    assert_eq!(
        (guest.place.read("sandbox-files/a"), guest.place.read("sandbox-files/b")),
        ("a".into(), "b".into())
    );
    let done = guest.data(rename("a", "./b", true));
    assert_eq!(done, json!({"from": "/io/a", "to": "/io/b"}));
    assert_eq!(guest.place.read("sandbox-files/b"), "a");
    assert!(!io_dir.join("a").exists());
    guest.data(rename("d", "empty", true));
    assert_eq!(guest.place.read("sandbox-files/empty/f"), "f");
    guest.data(rename("full", "moved", false));
    assert_eq!(guest.place.read("sandbox-files/moved/g"), "g");
    // A link moves itself.
    guest.data(rename("link", "b", true));
    assert_eq!(fs::read_link(io_dir.join("b")).unwrap(), std::path::Path::new("/etc/passwd"));
}
