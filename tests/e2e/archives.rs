//! Image archives on the embedded engine: what is unpacked once and used, what is refused, and what
//! is left of unfinished work.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::fixture::{Ended, Fixture, eventually, spawn, wait};
use crate::rootfs::Rootfs;

/// Bytes after the end of a layer's tar, as holes of the file: they are read, and nothing comes of
/// them, for as long as any test needs.
const TAIL: u64 = 16 << 30;

/// The names among the unpacked images.
fn roots(place: &Fixture) -> Vec<String> {
    let entries = std::fs::read_dir(place.data().join("roots")).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn exec(place: &Fixture, archive: &str, command: &[&str]) -> Ended {
    let flags = ["exec", "--image-archive", archive, "--"];
    place.sandboxctl(flags.iter().chain(command))
}

/// An archive whose unpacking takes long, and a command that is at it.
fn unpacking(place: &Fixture) -> Child {
    let content = Rootfs::empty().file("f", 0o644, "1").docker_archive("a:b");
    let mut members = tar::Archive::new(&content[..]);
    let path = place.path("long.tar");
    let mut file = File::create(&path).unwrap();
    let mut layer = Vec::new();
    for member in members.entries().unwrap() {
        let mut member = member.unwrap();
        let mut header = member.header().clone();
        let mut bytes = Vec::new();
        std::io::copy(&mut member, &mut bytes).unwrap();
        if member.path().unwrap().ends_with("layer.tar") {
            header.set_size(bytes.len() as u64 + TAIL);
            header.set_cksum();
            layer = [header.as_bytes().as_slice(), &bytes].concat();
        } else {
            bytes.resize(bytes.len().next_multiple_of(512), 0);
            file.write_all(header.as_bytes()).unwrap();
            file.write_all(&bytes).unwrap();
        }
    }
    file.write_all(&layer).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len((length + TAIL).next_multiple_of(512)).unwrap();
    let child = spawn(place.command(["exec", "--image-archive", "long.tar", "--", "/f"]));
    eventually("it unpacks", || {
        let part = roots(place).into_iter().find(|name| name.ends_with(".part"))?;
        place.data().join("roots").join(part).join("f").exists().then_some(())
    });
    child
}

#[test]
fn a_killed_unpacking_leaves_nothing_that_the_next_command_does_not_remove() {
    let place = Fixture::new();
    place.expect_a_dead_instance();
    let mut child = unpacking(&place);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(roots(&place).len(), 2, "{:?}", roots(&place));
    place.sandboxctl(["gc"]).assert_code(0);
    assert_eq!(roots(&place), [""; 0]);
}

#[test]
fn an_archive_that_cannot_be_used_is_125_with_what_to_do() {
    let place = Fixture::new();
    let good = Rootfs::empty().file("f", 0o644, "1").docker_archive("a:b");
    let foreign = Rootfs::empty().architecture("pdp11").docker_archive("a:b");
    let changed: Vec<u8> = {
        // The file's content, a block after its header.
        let at = good.windows(3).position(|three| three == b"f\0\0").unwrap() + 512;
        let mut changed = good.clone();
        assert_eq!(std::mem::replace(&mut changed[at], b'2'), b'1');
        changed
    };
    let missing: PathBuf = place.path("nothing");
    for (archive, message, hint) in [
        (good[..good.len() / 2].to_vec(), "it ends in the middle", "save it again"),
        (changed, "has the digest sha256:", "save it again"),
        (foreign, "its image is for linux/pdp11, and this machine is linux/", "platform"),
        (Rootfs::empty().file("f", 0o644, "1").layer(), "not an image archive", "docker save"),
    ] {
        place.write("image.tar", archive);
        let ended = exec(&place, "image.tar", &["/f"]);
        ended.assert_code(125);
        assert!(ended.stderr.contains(message), "{}", ended.stderr);
        assert!(ended.stderr.contains("cannot use the image archive "), "{}", ended.stderr);
        assert!(ended.stderr.contains("hint: ") && ended.stderr.contains(hint), "{}", ended.stderr);
        assert_eq!(ended.stdout, "");
        assert_eq!(roots(&place), [""; 0]);
    }
    let ended = exec(&place, missing.to_str().unwrap(), &["/f"]);
    ended.assert_code(125);
    assert!(ended.stderr.contains("No such file"), "{}", ended.stderr);
    let ended = place.sandboxctl(["exec", "--json", "--image-archive", "image.tar", "--", "/f"]);
    let document: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(document["status"], json!("error"));
    assert_eq!(document["error"]["kind"], json!("image"));
}

#[test]
fn archive_is_not_unpacked_below_the_disk_reserve() {
    let place = Fixture::new();
    place.write("image.tar", Rootfs::empty().file("f", 0o644, "1").docker_archive("a:b"));
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    let config = "[limits]\ndisk_reserve = \"1048576GiB\"\n";
    std::fs::write(user.join("config.toml"), config).unwrap();
    let ended = exec(&place, "image.tar", &["/f"]);
    ended.assert_code(125);
    assert!(ended.stderr.contains("left (limits.disk_reserve)"), "{}", ended.stderr);
    assert_eq!(roots(&place), [""; 0]);
}

#[test]
fn unpacked_archives_are_listed_and_removed() {
    let place = Fixture::new();
    let rootfs = Rootfs::busybox();
    place.write("image.tar", rootfs.docker_archive("a:b"));
    exec(&place, "image.tar", &["true"]).assert_code(0);
    let list = |place: &Fixture| -> serde_json::Value {
        let listed = place.sandboxctl(["image", "ls", "--programs", "--json"]);
        serde_json::from_str(&listed.assert_code(0).stdout).unwrap()
    };
    let listed = list(&place);
    let id = listed[0]["id"].as_str().unwrap();
    assert!(listed[0]["size"].as_u64().unwrap() > 0, "{listed}");
    let doctor = place.sandboxctl(["doctor"]);
    assert!(doctor.stdout.contains("1 unpacked archives"), "{doctor:#?}");
    let kept = place.sandboxctl(["gc"]);
    assert!(kept.assert_code(0).stdout.contains("kept 1 unpacked archive ("), "{kept:#?}");
    let lock = place.data().join("roots").join(format!("{id}.lock"));
    let long_ago = SystemTime::now() - Duration::from_secs(31 * 24 * 3600);
    File::open(lock).unwrap().set_modified(long_ago).unwrap();
    let would = place.sandboxctl(["gc", "--dry-run"]);
    assert!(
        would.assert_code(0).stdout.contains("would remove 1 unpacked archive ("),
        "{would:#?}"
    );
    let refused = place.sandboxctl(["image", "rm", "--programs", "../.."]);
    refused.assert_code(2).assert_stderr_has("no image has it");
    let removed = place.sandboxctl(["gc", "--json"]);
    let removed: serde_json::Value = serde_json::from_str(&removed.assert_code(0).stdout).unwrap();
    assert_eq!(removed["archives_removed"][0]["id"], listed[0]["id"], "{removed}");
    assert_eq!(removed["archives_kept"], json!([]));
    assert_eq!(list(&place), json!([]));
    exec(&place, "image.tar", &["true"]).assert_code(0);
    place.sandboxctl(["image", "rm", "--programs", id]).assert_code(0);
    assert_eq!(list(&place), json!([]));
}

/// Its path leads to something else while the run opens it, and back again before the receipt is made.
#[test]
fn receipt_is_only_of_the_root_that_the_run_has_opened() {
    for flag in ["--rootfs", "--image-archive"] {
        let place = Fixture::new();
        for (name, says) in [("data", "digested"), ("other", "used")] {
            let root = Rootfs::busybox().file("says", 0o644, says);
            let at = format!("{name}/root");
            if flag == "--rootfs" {
                std::fs::create_dir_all(place.path(&at)).unwrap();
                root.write_to(&place.path(&at));
            } else {
                place.write(&at, root.docker_archive("a:b"));
            }
        }
        let point = place.home().join("Registered");
        let line = "cat /says > seen; until [ -e go ]; do sleep 0.1; done";
        let flags = ["exec", flag, "data/root", "--io-dir", "sandbox-files", "--receipt", "r"];
        // With artifacts it works in the io dir itself, where the test sees it and can end it.
        let artifacts = ["--artifact", "seen", "--artifacts-dir", "out"];
        let command = ["--", "sh", "-c", line];
        let mut run = place.command(flags.iter().chain(&artifacts).chain(&command));
        run.env("SANDBOX_FAILPOINT", &point);
        let run = spawn(run);
        eventually("it is digested", || point.exists().then_some(()));
        let exchange = || {
            for (from, to) in [("data", "aside"), ("other", "data"), ("aside", "other")] {
                std::fs::rename(place.path(from), place.path(to)).unwrap();
            }
        };
        exchange();
        std::fs::write(point.with_extension("go"), "").unwrap();
        let seen = place.path("sandbox-files/seen");
        let is_used = || std::fs::read_to_string(&seen).ok().filter(|it| it == "used");
        eventually("it is used", is_used);
        exchange();
        place.write("sandbox-files/go", "");
        let ended = wait(run);
        assert_ne!(ended.code, 0, "{ended:#?}");
        ended.assert_stderr_has("data/root changed while the run used it: no receipt");
        assert!(!place.path("r").exists());
    }
}
