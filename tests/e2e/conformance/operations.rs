//! File operations as a caller of the library meets them: each option, each datum and each kind of
//! error of each operation.

mod names;
mod reading;
mod search;
mod writing;

use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{CWD, FileType, mknodat};
use sandbox_api::files::WriteMode;
use sandbox_api::operation::{Mkdir, OperationRequest, Read, Remove, Write};
use sandbox_api::{Access, AllowedPath, ByteSize, Input, Limits, Script};
use serde_json::{Value, json};

use crate::engine::engine;
use crate::fixture::Fixture;
use crate::library::{Guest, give_up_all_after, kind_of};

/// Names that are neither files nor directories, in an io dir, and a link out of it.
fn plant_oddities(io_dir: &Path) {
    symlink("/etc/passwd", io_dir.join("link")).unwrap();
    symlink("nowhere", io_dir.join("dangling")).unwrap();
    symlink("/etc", io_dir.join("way-out")).unwrap();
    mknodat(CWD, io_dir.join("fifo"), FileType::Fifo, 0o666.into(), 0).unwrap();
    drop(UnixListener::bind(io_dir.join("socket")).unwrap());
    // Only root can make one.
    if rustix::process::geteuid().is_root() {
        let null = rustix::fs::makedev(1, 3);
        mknodat(CWD, io_dir.join("device"), FileType::CharacterDevice, 0o666.into(), null).unwrap();
    }
}

/// The special files of [`plant_oddities`].
fn special_files() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() {
        &["fifo", "socket", "device"]
    } else {
        &["fifo", "socket"]
    }
}

/// Each operation that takes a path, on this one.
fn each_on(path: &str) -> Vec<Value> {
    let mut operations = vec![
        json!({"operation": "read", "path": path}),
        json!({"operation": "view", "path": path}),
        json!({"operation": "list", "path": path}),
        json!({"operation": "exists", "path": path}),
        json!({"operation": "stat", "path": path}),
        json!({"operation": "glob", "pattern": "*", "path": path}),
        json!({"operation": "grep", "pattern": "x", "path": path}),
        json!({"operation": "copy", "from": path, "to": "elsewhere", "recursive": true}),
    ];
    operations.extend(each_change_of(path));
    operations
}

/// Each operation that changes something, of this path.
fn each_change_of(path: &str) -> Vec<Value> {
    vec![
        json!({"operation": "write", "path": path, "content": "x"}),
        json!({"operation": "write", "path": path, "content": "x", "mode": "append"}),
        json!({"operation": "write", "path": path, "content": "x", "mode": "create_new"}),
        json!({"operation": "write", "path": path, "content": "x", "atomic": false}),
        json!({"operation": "edit", "path": path, "old": "x", "new": "y"}),
        json!({"operation": "mkdir", "path": path}),
        json!({"operation": "touch", "path": path}),
        json!({"operation": "remove", "path": path}),
        json!({"operation": "remove", "path": path, "recursive": true, "force": true}),
        json!({"operation": "rename", "from": path, "to": "elsewhere"}),
        json!({"operation": "rename", "from": "file", "to": path}),
        json!({"operation": "rename", "from": "file", "to": path, "overwrite": true}),
        json!({"operation": "copy", "from": "file", "to": path}),
        json!({"operation": "copy", "from": "file", "to": path, "overwrite": true}),
    ]
}

#[test]
fn a_path_outside_the_mounts_is_refused_by_every_operation_before_anything_else() {
    let guest = Guest::new();
    guest.place.write("sandbox-files/file", "inside");
    let long_name = "n".repeat(256);
    let long_path = "d/".repeat(2048);
    for (path, kind) in [
        ("../x", "path_escape"),
        ("a/../../x", "path_escape"),
        ("file/..", "path_escape"),
        ("/etc/passwd", "path_escape"),
        ("/", "path_escape"),
        ("/io/../etc", "path_escape"),
        ("~/../x", "path_escape"),
        ("/iox", "path_escape"),
        ("", "invalid_path"),
        ("a\0b", "invalid_path"),
        (long_name.as_str(), "invalid_path"),
        (long_path.as_str(), "invalid_path"),
    ] {
        for operation in each_on(path) {
            assert_eq!(guest.kind(operation.clone()), kind, "{operation}");
        }
    }
    assert_eq!(guest.place.read("sandbox-files/file"), "inside");
    assert_eq!(fs::read_dir(guest.place.path("sandbox-files")).unwrap().count(), 1);
}

#[test]
fn a_burst_of_cancels_leaves_room_for_the_next_script() {
    let guest = Guest::new();
    guest.place.write("sandbox-files/large", vec![b'x'; 9 << 20]);
    for round in 0..20 {
        let reads = (0..32).map(|_| guest.sandbox.read(Read::new("large"), None));
        // Earlier and later: some reads wait for a place then, some for content.
        guest.wait(give_up_all_after(1 + 40 * round, reads));
        let run = guest.wait(guest.sandbox.run(Script::new("return 1"))).unwrap();
        assert_eq!(run.outcome.status().as_str(), "ok", "{round}: {:?}", run.outcome);
    }
}

#[test]
fn a_slash_at_the_end_is_one_rule_for_every_front_end() {
    let place = Fixture::new();
    place.write("sandbox-files/dir/f", "x");
    place.write("sandbox-files/file", "x");
    symlink("dir", place.path("sandbox-files/link")).unwrap();
    mknodat(CWD, place.path("sandbox-files/fifo"), FileType::Fifo, 0o666.into(), 0).unwrap();
    let guest = Guest::in_place(place, |spec| spec);
    // For every operation, except those that create or find a directory.
    for (path, kind) in
        [("link/", "symlink"), ("file/", "not_a_directory"), ("fifo/", "not_a_directory")]
    {
        for operation in each_on(path) {
            assert_eq!(guest.kind(operation.clone()), kind, "{operation}");
        }
        // By the command line and by scripts the same.
        for args in [&["exists", path][..], &["read", path], &["rm", "-r", path], &["stat", path]] {
            let ended = guest.place.sandboxctl(["fs"].iter().chain(args).chain(&["--json"]));
            let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
            assert_eq!(envelope["error"]["kind"], kind, "{args:?}: {envelope:#}");
        }
        let words = if kind == "symlink" { "a symbolic link" } else { "Not a directory" };
        for call in [
            "fs.exists", "fs.read", "fs.stat", "fs.list", "fs.mkdir", "fs.touch", "fs.remove",
            "io.open", "io.lines", "io.list", "os.remove",
        ] {
            let source = format!("return {call}('{path}')");
            let run = guest.wait(guest.sandbox.run(Script::new(source))).unwrap();
            let message = run.outcome.failure().expect(call).message;
            assert_eq!(message, format!("script:1: {path}: {words}"), "{call}");
        }
        // What stands before a pattern is a path with a slash at its end.
        let source = format!("return fs.glob('{path}*')");
        let run = guest.wait(guest.sandbox.run(Script::new(source))).unwrap();
        let message = run.outcome.failure().unwrap().message;
        assert_eq!(message, format!("script:1: {path}: {words}"));
    }
    let exists = |path: &str| {
        let data = guest.data(json!({"operation": "exists", "path": path}));
        (data["path"].clone(), data["type"].clone())
    };
    assert_eq!(exists("dir/"), (json!("/io/dir"), json!("directory")));
    assert_eq!(exists("none/"), (json!("/io/none"), json!(null)));
    let found = guest.data(json!({"operation": "glob", "path": "none/", "pattern": "*"}));
    assert_eq!((&found["path"], &found["matches"]), (&json!("/io/none"), &json!([])));
    for (operation, kind) in [
        (json!({"operation": "read", "path": "none/"}), "not_found"),
        (json!({"operation": "edit", "path": "none/", "old": "x", "new": "y"}), "not_found"),
        (json!({"operation": "write", "path": "none/", "content": "x"}), "is_directory"),
        (json!({"operation": "write", "path": "dir/", "content": "x"}), "is_directory"),
        (json!({"operation": "edit", "path": "dir/", "old": "x", "new": "y"}), "is_directory"),
        (json!({"operation": "remove", "path": "none/"}), "not_found"),
        (json!({"operation": "rename", "from": "file", "to": "none/"}), "not_a_directory"),
    ] {
        assert_eq!(guest.kind(operation.clone()), kind, "{operation}");
    }
    let made = guest.data(json!({"operation": "mkdir", "path": "made/"}));
    assert_eq!((&made["path"], &made["created"]), (&json!("/io/made"), &json!(true)));
    guest.data(json!({"operation": "rename", "from": "dir/", "to": "moved/"}));
    guest.data(json!({"operation": "remove", "path": "moved/", "recursive": true}));
    assert_eq!(guest.place.read("sandbox-files/file"), "x");
}

#[test]
fn every_way_to_write_a_path_names_one_normalised_path() {
    let guest = Guest::with(|spec| spec.mount_path("/workspace").workdir("/workspace/deep"));
    guest.place.write("sandbox-files/deep/a.txt", "x");
    for path in ["a.txt", "./a.txt", ".//a.txt", "~/deep/a.txt", "/workspace/deep/./a.txt"] {
        let data = guest.data(json!({"operation": "stat", "path": path}));
        assert_eq!(data["path"], "/workspace/deep/a.txt", "{path}");
    }
    assert_eq!(guest.kind(json!({"operation": "stat", "path": "/io/deep/a.txt"})), "path_escape");
    // What names a directory names no file.
    for path in ["a.txt/", "a.txt/."] {
        let read = json!({"operation": "read", "path": path});
        assert_eq!(guest.kind(read), "not_a_directory", "{path}");
    }
    // The two worlds of paths are mapped by component.
    let host = guest.place.path("sandbox-files/deep/a.txt");
    assert_eq!(guest.sandbox.host_path("a.txt"), Some(host.clone()));
    let path = guest.sandbox.guest_path(&host).unwrap();
    assert_eq!(path.as_bytes(), b"/workspace/deep/a.txt");
    assert_eq!(guest.sandbox.guest_path(guest.place.path("sandbox-files-not")), None);
    assert_eq!(guest.sandbox.host_path("/etc/passwd"), None);
}

#[test]
fn links_are_never_followed_and_special_files_never_opened() {
    let guest = Guest::new();
    let io_dir = guest.place.path("sandbox-files");
    plant_oddities(&io_dir);
    guest.place.write("sandbox-files/file", "inside");
    // Through a link, for every operation.
    for operation in each_on("way-out/passwd") {
        assert_eq!(guest.kind(operation.clone()), "symlink", "{operation}");
    }
    // At a link: its name exists, its target does not matter.
    for path in ["link", "dangling", "way-out"] {
        for operation in [
            json!({"operation": "read", "path": path}),
            json!({"operation": "view", "path": path}),
            json!({"operation": "list", "path": path}),
            json!({"operation": "write", "path": path, "content": "x"}),
            json!({"operation": "write", "path": path, "content": "x", "mode": "append"}),
            json!({"operation": "write", "path": path, "content": "x", "atomic": false}),
            json!({"operation": "edit", "path": path, "old": "x", "new": "y"}),
        ] {
            assert_eq!(guest.kind(operation.clone()), "symlink", "{operation}");
        }
        for operation in [
            json!({"operation": "write", "path": path, "content": "x", "mode": "create_new"}),
            json!({"operation": "rename", "from": "file", "to": path}),
        ] {
            assert_eq!(guest.kind(operation.clone()), "already_exists", "{operation}");
        }
        let exists = guest.data(json!({"operation": "exists", "path": path}));
        assert_eq!((&exists["exists"], &exists["type"]), (&json!(true), &json!("symlink")));
        assert_eq!(guest.data(json!({"operation": "stat", "path": path}))["type"], "symlink");
    }
    for &path in special_files() {
        for operation in [
            json!({"operation": "read", "path": path}),
            json!({"operation": "read", "path": path, "offset": 1, "limit": 1}),
            json!({"operation": "view", "path": path}),
            json!({"operation": "write", "path": path, "content": "x"}),
            json!({"operation": "write", "path": path, "content": "x", "mode": "append"}),
            json!({"operation": "write", "path": path, "content": "x", "atomic": false}),
            json!({"operation": "edit", "path": path, "old": "x", "new": "y"}),
            json!({"operation": "grep", "pattern": "x", "path": path}),
            json!({"operation": "copy", "from": path, "to": "elsewhere"}),
            json!({"operation": "copy", "from": "file", "to": path, "overwrite": true}),
            json!({"operation": "touch", "path": path}),
            json!({"operation": "remove", "path": path}),
            json!({"operation": "rename", "from": path, "to": "elsewhere"}),
        ] {
            assert_eq!(guest.kind(operation.clone()), "special_file", "{operation}");
        }
        let list = json!({"operation": "list", "path": path});
        assert_eq!(guest.kind(list), "not_a_directory", "{path}");
        for operation in [
            json!({"operation": "write", "path": path, "content": "x", "mode": "create_new"}),
            json!({"operation": "mkdir", "path": path}),
        ] {
            assert_eq!(guest.kind(operation.clone()), "already_exists", "{operation}");
        }
        let exists = guest.data(json!({"operation": "exists", "path": path}));
        assert_eq!(exists["type"], "other", "{path}");
        assert_eq!(guest.data(json!({"operation": "stat", "path": path}))["type"], "other");
    }
    assert_eq!(guest.place.read("sandbox-files/file"), "inside");
    assert!(fs::symlink_metadata(io_dir.join("link")).unwrap().is_symlink());
}

#[test]
fn an_input_is_read_and_never_changed() {
    let place = Fixture::new();
    place.write("given/a.txt", "given");
    let given = place.path("given");
    let guest = Guest::in_place(place, |spec| {
        spec.input(Input::path(&given, "tree")).input(Input::bytes("one", b"bytes".to_vec()))
    });
    guest.place.write("sandbox-files/file", "inside");
    for (path, content) in [("/in/tree/a.txt", "given"), ("/in/one", "bytes")] {
        let data = guest.data(json!({"operation": "read", "path": path}));
        assert_eq!(data["content"], content);
        for operation in each_change_of(path) {
            assert_eq!(guest.kind(operation.clone()), "read_only", "{operation}");
        }
    }
    let listed = guest.data(json!({"operation": "list", "path": "/in/tree"}));
    assert_eq!(listed["entries"][0]["path"], "/in/tree/a.txt");
    assert_eq!(guest.kind(json!({"operation": "list", "path": "/in/one"})), "not_a_directory");
    assert_eq!(guest.kind(json!({"operation": "read", "path": "/in/other"})), "not_found");
    for path in ["/in/tree/new", "/in/tree/a.txt/new"] {
        let write = json!({"operation": "write", "path": path, "content": "x"});
        assert_eq!(guest.kind(write), "read_only");
    }
    assert_eq!(guest.place.read("given/a.txt"), "given");
}

#[test]
fn a_policy_says_which_paths_may_be_used_and_which_names_changed() {
    let rule = |path: &str, access| AllowedPath { path: path.to_owned(), access };
    let guest = Guest::with(|spec| {
        spec.allowed_paths(vec![
            rule("/io/read", Access::Read),
            rule("/io/write", Access::Write),
            rule("/io/write/but", Access::Read),
        ])
        .protected(vec![".bashrc".to_owned(), ".git/hooks".to_owned()])
    });
    for name in ["read/f", "write/f", "write/but/f", "other/f", "write/.bashrc", "file"] {
        guest.place.write(&format!("sandbox-files/{name}"), "x");
    }
    guest.place.write("sandbox-files/write/.git/hooks/pre-commit", "x");
    guest.place.write("sandbox-files/write/.git/config", "x");
    let read = |path: &str| json!({"operation": "read", "path": path});
    for path in ["read/f", "write/f", "write/but/f", "write/.bashrc"] {
        assert_eq!(guest.data(read(path))["content"], "x", "{path}");
    }
    for path in ["other/f", "file", ".", "readable", "write-not"] {
        for operation in each_on(path) {
            assert_eq!(guest.kind(operation.clone()), "not_allowed", "{operation}");
        }
    }
    for path in ["read/f", "read/new", "write/but/f"] {
        for operation in each_change_of(path) {
            assert_eq!(guest.kind(operation.clone()), "not_allowed", "{operation}");
        }
    }
    for path in ["write/.bashrc", "write/deep/.BASHRC", "write/.git/hooks/pre-commit"] {
        for operation in each_change_of(path) {
            // The other path of a rename is outside what is allowed.
            if operation["from"] == "file" {
                continue;
            }
            assert_eq!(guest.kind(operation.clone()), "protected", "{operation}");
        }
    }
    // What a protected name begins with cannot be moved from around it, nor go with its tree.
    for operation in [
        json!({"operation": "rename", "from": "write/.git", "to": "write/git"}),
        json!({"operation": "rename", "from": "write/f", "to": "write/.bashrc"}),
        json!({"operation": "remove", "path": "write/.git", "recursive": true}),
    ] {
        assert_eq!(guest.kind(operation.clone()), "protected", "{operation}");
    }
    // A tree that has what may only be read does not go.
    let remove = json!({"operation": "remove", "path": "write", "recursive": true});
    assert_eq!(guest.kind(remove), "not_allowed");
    guest.data(json!({"operation": "write", "path": "write/.git/config", "content": "y"}));
    for name in ["read/f", "write/but/f", "other/f", "write/.bashrc", "write/.git/hooks/pre-commit"]
    {
        assert_eq!(guest.place.read(&format!("sandbox-files/{name}")), "x", "{name}");
    }
}

#[test]
fn write_and_entry_limits_leave_the_old_file_whole() {
    let guest = Guest::with(|spec| {
        spec.limits(Limits {
            max_file_size: ByteSize::b(1000),
            max_write: ByteSize::b(500),
            entries: NonZeroU32::new(3).unwrap(),
            ..Limits::default()
        })
    });
    guest.place.write("sandbox-files/large", "l".repeat(1001));
    guest.place.write("sandbox-files/f", "o".repeat(900));
    let write = |mode: &str, length: usize, atomic: bool| {
        json!({"operation": "write", "path": "f", "content": "x".repeat(length), "mode": mode,
            "atomic": atomic})
    };
    for (operation, kind) in [
        (json!({"operation": "read", "path": "large"}), "too_large"),
        (json!({"operation": "view", "path": "large"}), "too_large"),
        (
            json!({"operation": "edit", "path": "large", "old": "l", "new": "", "count": 1001}),
            "too_large",
        ),
        (write("overwrite", 1001, true), "too_large"),
        (write("overwrite", 1001, false), "too_large"),
        (write("append", 101, true), "too_large"),
        (write("overwrite", 501, true), "write_limit"),
        (write("overwrite", 501, false), "write_limit"),
        (
            json!({"operation": "edit", "path": "f", "old": "o", "new": "o", "count": 900}),
            "write_limit",
        ),
        (json!({"operation": "mkdir", "path": "a/b/c/d"}), "too_many_files"),
        (json!({"operation": "touch", "path": "a/b/c/d"}), "too_many_files"),
        (json!({"operation": "write", "path": "a/b/c/d", "content": ""}), "too_many_files"),
    ] {
        let envelope = guest.perform(&operation);
        assert_eq!(envelope["error"]["kind"], kind, "{operation}: {envelope:#}");
        // It names the limit and what went over it.
        let error = &envelope["error"];
        let limit = match kind {
            "too_large" => "1000",
            "write_limit" => "500",
            _ => "max 3",
        };
        assert!(error["message"].as_str().unwrap().contains(limit), "{error:#}");
        assert!(error["hint"].is_string(), "{error:#}");
        assert_eq!(guest.place.read("sandbox-files/f"), "o".repeat(900));
    }
    assert_eq!(fs::read_dir(guest.place.path("sandbox-files")).unwrap().count(), 2);
    // A part of what is too large can be read.
    let part = json!({"operation": "read", "path": "large", "offset": 1, "limit": 1000});
    assert_eq!(guest.data(part)["bytes"], 1000);
    guest.data(write("append", 100, true));
    guest.data(json!({"operation": "mkdir", "path": "a/b/c"}));
}

#[test]
fn os_errors_are_named() {
    let guest = Guest::new();
    let io_dir = guest.place.path("sandbox-files");
    guest.place.write("sandbox-files/file", "x");
    guest.place.write("sandbox-files/shut/inner", "x");
    guest.place.write("sandbox-files/secret", "x");
    guest.place.write("sandbox-files/fixed/f", "x");
    let set_mode = |name: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(io_dir.join(name), mode).unwrap();
    };
    set_mode("shut", 0o000);
    set_mode("secret", 0o000);
    set_mode("fixed", 0o555);
    for operation in [
        json!({"operation": "read", "path": "secret"}),
        json!({"operation": "read", "path": "shut/inner"}),
        json!({"operation": "list", "path": "shut"}),
        json!({"operation": "stat", "path": "shut/inner"}),
        json!({"operation": "exists", "path": "shut/inner"}),
        json!({"operation": "write", "path": "secret", "content": "", "mode": "append"}),
        json!({"operation": "write", "path": "fixed/new", "content": ""}),
        json!({"operation": "mkdir", "path": "fixed/new"}),
        json!({"operation": "touch", "path": "fixed/new"}),
        json!({"operation": "remove", "path": "fixed/f"}),
        json!({"operation": "rename", "from": "fixed/f", "to": "f"}),
        // A mount's root is not in the sandbox's gift.
        json!({"operation": "remove", "path": ".", "recursive": true}),
        json!({"operation": "rename", "from": ".", "to": "x"}),
    ] {
        assert_eq!(guest.kind(operation.clone()), "permission_denied", "{operation}");
    }
    for operation in [
        json!({"operation": "read", "path": "file/below"}),
        json!({"operation": "list", "path": "file"}),
        json!({"operation": "stat", "path": "file/below"}),
        json!({"operation": "write", "path": "file/below", "content": ""}),
        json!({"operation": "mkdir", "path": "file/below"}),
    ] {
        assert_eq!(guest.kind(operation.clone()), "not_a_directory", "{operation}");
    }
    for operation in each_on("none/at/all") {
        let operation_name = operation["operation"].as_str().unwrap();
        let succeeds = ["mkdir", "touch", "write", "exists", "glob"].contains(&operation_name)
            || operation["force"] == true
            || operation["from"] == "file";
        if !succeeds {
            assert_eq!(guest.kind(operation.clone()), "not_found", "{operation}");
        }
    }
    set_mode("shut", 0o755);
}

#[test]
fn a_typed_call_gives_the_data_and_the_error_that_its_json_has() {
    let guest = Guest::new();
    guest.wait(async {
        let sandbox = &guest.sandbox;
        let written = sandbox.write(Write::new("a/b.txt"), "hello").await.unwrap();
        let expected = json!({"path": "/io/a/b.txt", "bytes_written": 5, "created": true});
        assert_eq!(serde_json::to_value(written).unwrap(), expected);
        let part = Read { offset: 1, limit: Some(3), ..Read::new("a/b.txt") };
        assert_eq!(sandbox.read_bytes(part).await.unwrap(), b"ell");
        let error = sandbox.read(Read::new("a"), None).await.unwrap_err();
        assert_eq!(error.kind().as_str(), "is_directory");
        assert_eq!(error.to_string(), "a: Is a directory");
        assert_eq!(error.hint().as_deref(), Some("`list` shows what is in a directory"));
        assert_eq!(error.exit_code(), 1);
        let create_new = Write { mode: WriteMode::CreateNew, ..Write::new("a/b.txt") };
        assert_eq!(kind_of(sandbox.write(create_new, "").await), "already_exists");
        let mkdir = sandbox.call(Mkdir { parents: false, ..Mkdir::new("x/y") });
        assert_eq!(kind_of(mkdir.await), "not_found");
        assert_eq!(kind_of(sandbox.call(Remove::new("a")).await), "not_empty");
    });
}

#[test]
fn an_operation_as_data_refuses_what_it_does_not_know() {
    for (operation, named) in [
        (json!({"operation": "raed", "path": "a"}), "raed"),
        (json!({"operation": "read", "path": "a", "ofset": 1}), "ofset"),
        (json!({"operation": "read", "path": 1}), "path"),
        (json!({"operation": "read"}), "path"),
        (json!({"operation": "read", "path": "a", "encoding": "utf-7"}), "utf-7"),
        (json!({"operation": "view", "path": "a", "lines": {"ofset": 1}}), "ofset"),
        (json!({"operation": "write", "path": "a", "content": "", "mode": "x"}), "mode"),
        (json!({"operation": "edit", "path": "a", "old": "x", "new": "y", "count": 0}), "count"),
        (json!({"operation": "list", "path": "a", "limit": -1}), "limit"),
        (json!({"operation": "rename", "from": "a"}), "to"),
        (json!({"path": "a"}), "operation"),
        (json!([]), "object"),
    ] {
        let error = OperationRequest::from_json(&operation.to_string()).unwrap_err();
        assert_eq!(error.kind().as_str(), "invalid_request", "{operation}");
        assert!(error.to_string().contains(named), "{operation}: {error}");
    }
}

#[test]
fn an_ended_sandbox_says_so_to_every_operation() {
    let guest = Guest::new();
    guest.place.write("sandbox-files/f", "x");
    let containers = guest.place.containers();
    engine().kill(&containers[0]);
    for operation in each_on("f") {
        assert_eq!(guest.kind(operation.clone()), "agent_lost", "{operation}");
    }
    assert_eq!(guest.place.read("sandbox-files/f"), "x");
}
