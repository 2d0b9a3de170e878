//! File operations anywhere in a sandbox (`files: all`): links are followed inside its container,
//! what the kernel makes up stays out of reach, and nothing changes in sandboxes without the setting.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, RenameFlags, mknodat, renameat_with};
use sandbox_api::{FileScope, Input, SandboxSpec};
use sandbox_controller::Command;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::library::{Guest, Library, kind_of};
use crate::rootfs::{Provided, Rootfs};

const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nuser:x:4242:4242::/io:/bin/sh\n";

/// A file system with names of users, and a link into what the kernel makes up.
fn rootfs() -> Provided {
    Rootfs::busybox().file("etc/passwd", 0o644, PASSWD).link("etc/mtab", "/proc/mounts").provide()
}

fn anywhere(spec: SandboxSpec, provided: &Provided) -> SandboxSpec {
    let mut spec = spec.root(provided.root());
    spec.files = FileScope::All;
    spec
}

/// Links out of an io dir, a chain of them, and a FIFO.
fn plant(place: &Fixture) {
    let at = |name: &str| place.path("sandbox-files").join(name);
    place.write("sandbox-files/file", "inside");
    for (name, target) in [
        ("passwd", "/etc/passwd"),
        ("agent", "/proc/1/fd/1"),
        ("environ", "/proc/self/environ"),
        ("root", "/proc/self/root/etc/passwd"),
        ("zero", "/dev/zero"),
        ("stdin", "/dev/stdin"),
        ("mtab", "/etc/mtab"),
        ("away", "/tmp"),
        ("given", "/in/given"),
    ] {
        symlink(target, at(name)).unwrap();
    }
    symlink("file", at("1")).unwrap();
    for number in 1..41 {
        symlink(number.to_string(), at(&(number + 1).to_string())).unwrap();
    }
    mknodat(CWD, at("pipe"), FileType::Fifo, 0o666.into(), 0).unwrap();
}

fn read(path: &str) -> Value {
    json!({"operation": "read", "path": path})
}

fn write(path: &str) -> Value {
    json!({"operation": "write", "path": path, "content": "x"})
}

#[test]
fn links_are_followed_inside_the_container_and_never_to_the_kernels_files() {
    let place = Fixture::new();
    plant(&place);
    place.write("given/f", "input");
    let provided = rootfs();
    let input = Input::path(place.path("given"), "given");
    let guest = Guest::in_place(place, |spec| anywhere(spec.input(input), &provided));

    for path in ["passwd", "/io/passwd", "/etc/passwd"] {
        let data = guest.data(read(path));
        // The engine adds the sandbox's own user.
        assert!(data["content"].as_str().unwrap().contains(PASSWD), "{path}: {data}");
        // The path that was asked for.
        let named = if path == "passwd" { "/io/passwd" } else { path };
        assert_eq!(data["path"], named);
        assert_eq!(guest.kind(write(path)), "read_only", "{path}");
    }
    for path in [
        "agent", "environ", "root", "zero", "stdin", "mtab", "pipe", "/proc/1/fd/1",
        "/proc/self/mem", "/proc/self/fd/3", "/dev/null", "/dev/pts/ptmx", "/dev/fd/0",
    ] {
        assert_eq!(guest.kind(read(path)), "special_file", "{path}");
        assert_eq!(guest.kind(write(path)), "special_file", "{path}");
    }
    assert_eq!(guest.data(read("40"))["content"], "inside");
    assert_eq!(guest.kind(read("41")), "symlink");

    // An input stays read-only, and the controller's own path rules stay.
    assert_eq!(guest.data(read("given/f"))["content"], "input");
    for path in ["given/f", "given/new", "/in/given/f", "/in/new"] {
        assert_eq!(guest.kind(write(path)), "read_only", "{path}");
    }
    assert_eq!(guest.kind(read("/io/../etc/passwd")), "path_escape");

    // What is written in /tmp is what programs have there, and the reverse.
    guest.data(write("away/a/f"));
    guest.data(write("/dev/shm/f"));
    let command = Command::shell("cat /tmp/a/f /dev/shm/f; ln -s /io/file /tmp/back");
    let result = guest.wait(guest.sandbox.run(command)).unwrap();
    assert_eq!(String::from_utf8_lossy(&result.stdout().bytes), "xx");
    assert_eq!(guest.data(read("/tmp/back"))["content"], "inside");

    let names = |path: &str, details: bool| {
        let list = json!({"operation": "list", "path": path, "details": details});
        guest.data(list)["entries"].as_array().unwrap().clone()
    };
    assert!(names("/", false).iter().any(|entry| entry["name"] == "proc"));
    let listed = names("/tmp", true);
    let back = listed.iter().find(|entry| entry["name"] == "back").unwrap();
    assert_eq!(back["details"]["target"], "/io/file", "{back}");
    let stat = |path: &str, follow: bool| {
        guest.data(json!({"operation": "stat", "path": path, "follow": follow}))
    };
    assert_eq!(stat("passwd", false)["type"], "symlink");
    assert_eq!(stat("passwd", true)["type"], "file");
    assert_eq!(stat("passwd", false)["target"], "/etc/passwd");
    let number = stat("/bin", false)["uid"].to_string();
    // The sandbox's own user has its number too, where tests run as root.
    let owner = stat("/bin", false)["owner"].clone();
    assert!([json!("root"), json!("user"), json!(number)].contains(&owner), "{owner}");
}

#[test]
fn links_permissions_and_metadata_are_made_and_read() {
    let provided = rootfs();
    let guest = Guest::with(|spec| anywhere(spec, &provided));
    guest.place.write("sandbox-files/file", "x");

    guest.data(json!({"operation": "symlink", "path": "link", "target": "/etc/passwd"}));
    let link = guest.data(json!({"operation": "read_link", "path": "link"}));
    assert_eq!((&link["path"], &link["target"]), (&json!("/io/link"), &json!("/etc/passwd")));
    let again = json!({"operation": "symlink", "path": "link", "target": "x"});
    assert_eq!(guest.kind(again), "already_exists");

    let moved = json!({"operation": "rename", "from": "link", "to": "a/b/c", "parents": true});
    assert_eq!(guest.data(moved)["to"], "/io/a/b/c");
    let passwd = guest.data(read("a/b/c"));
    assert!(passwd["content"].as_str().unwrap().contains(PASSWD), "{passwd}");

    let of = |path: &str| guest.data(json!({"operation": "stat", "path": path}));
    let new = json!({"operation": "write", "path": "n", "content": "", "permissions": 0o640});
    guest.data(new);
    assert_eq!(of("n")["mode"], "0640");
    // The sandbox's user has a name.
    assert!(
        ["root", "user", "sandbox"].contains(&of("n")["owner"].as_str().unwrap()),
        "{}",
        of("n")
    );
    guest.data(json!({"operation": "chmod", "path": "n", "permissions": 0o750}));
    assert_eq!(of("n")["permissions"], "rwxr-x---");
    let set_id = json!({"operation": "chmod", "path": "n", "permissions": 0o4755});
    assert_eq!(guest.kind(set_id), "invalid_request");

    let set = |metadata: Value, namespace: &str| {
        guest.perform(&json!({
            "operation": "set_metadata", "path": "n", "metadata": metadata, "namespace": namespace,
        }))
    };
    let done = set(json!({"author": "me"}), "e2b");
    if done["success"] == true {
        assert_eq!(of("n")["metadata"], json!({"e2b.author": "me"}));
        assert_eq!(set(json!({}), "e2b")["success"], true);
        assert!(of("n")["metadata"].is_null());
        let many = "x".repeat(4097);
        assert_eq!(set(json!({"a": many}), "sbx")["error"]["kind"], "invalid_request");
    } else {
        let message = done["error"]["message"].as_str().unwrap();
        assert!(message.contains("stores no metadata"), "{done:#}");
    }
    // Programs still set none.
    let command = Command::shell("setfattr -n user.sbx.a -v 1 n 2>&1; true");
    guest.wait(guest.sandbox.run(command)).unwrap();
    assert!(of("n")["metadata"].is_null());
}

#[test]
fn a_directory_that_becomes_a_link_is_never_left_by_what_was_asked_for_another() {
    let place = Fixture::new();
    place.write("sandbox-files/d/f", "own");
    place.write("given/f", "input");
    let provided = rootfs();
    let input = Input::path(place.path("given"), "given");
    let guest = Guest::in_place(place, |spec| anywhere(spec.input(input), &provided));
    let [d, link] = ["d", "link"].map(|name| guest.place.path("sandbox-files").join(name));
    symlink("/in/given", &link).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let since = Instant::now();
        let (over, d, link) = (&over, &d, &link);
        scope.spawn(move || {
            // Also where the test has failed.
            while !over.load(Ordering::Relaxed) && since.elapsed() < Duration::from_secs(60) {
                _ = renameat_with(CWD, d, CWD, link, RenameFlags::EXCHANGE);
            }
        });
        for _ in 0..150 {
            for operation in [write("d/f"), write("d/new"), read("d/f")] {
                let done = guest.perform(&operation);
                let kind = done["error"]["kind"].as_str().unwrap_or("none");
                let expected = ["none", "busy", "read_only", "not_found"];
                assert!(expected.contains(&kind), "{operation}: {done:#}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(guest.place.read("given/f"), "input");
    assert_eq!(fs::read_dir(guest.place.path("given")).unwrap().count(), 1);
}

#[test]
fn without_the_setting_nothing_is_followed_and_nothing_else_is_reached() {
    let place = Fixture::new();
    plant(&place);
    let provided = rootfs();
    let guest = Guest::in_place(place, |spec| spec.root(provided.root()));
    for path in ["passwd", "agent", "zero", "1", "41"] {
        assert_eq!(guest.kind(read(path)), "symlink", "{path}");
        assert_eq!(guest.kind(write(path)), "symlink", "{path}");
    }
    for path in ["/etc/passwd", "/tmp/f", "/proc/1/fd/1", "/"] {
        assert_eq!(guest.kind(read(path)), "path_escape", "{path}");
    }
    for operation in [
        json!({"operation": "symlink", "path": "new", "target": "/etc"}),
        json!({"operation": "read_link", "path": "passwd"}),
        json!({"operation": "set_metadata", "path": "file", "metadata": {"a": "1"}}),
    ] {
        assert_eq!(guest.kind(operation.clone()), "not_allowed", "{operation}");
    }
    let stat = guest.data(json!({"operation": "stat", "path": "passwd"}));
    assert_eq!(stat["type"], "symlink");
    assert!(stat["target"].is_null() && stat["metadata"].is_null(), "{stat}");

    // The setting is refused where it cannot hold.
    let place = Fixture::new();
    let library = Library::new(&place);
    let mut spec = SandboxSpec::new().io_dir(place.path("sandbox-files"));
    spec.files = FileScope::All;
    assert_eq!(kind_of(library.try_launch(spec.clone()).map(drop)), "usage");
    let mut spec = anywhere(spec, &provided);
    spec.allowed_paths = Some(Vec::new());
    assert_eq!(kind_of(library.try_launch(spec).map(drop)), "policy");
}
