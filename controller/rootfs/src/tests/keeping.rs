//! The cache: what is unpacked once, who may use it meanwhile, and when it goes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use sandbox_api::DiskReserve;

use super::make::{configuration, file, folder, saved, saved_with, tar};
use super::{Fixture, layers, listing};
use crate::budget::{Bounds, Budget, Stop};
use crate::{RootfsError, prepare_archive};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn image(content: &str) -> Vec<u8> {
    saved(&layers([vec![folder("d"), file("d/f", content)]]))
}

/// The other names of an image in the cache.
fn beside(root: &Path, suffix: &str) -> PathBuf {
    let key = root.file_name().unwrap().to_str().unwrap();
    root.with_file_name(format!("{key}.{suffix}"))
}

/// As if it had been used so long ago.
fn make_old(root: &Path, age: Duration) {
    let lock = File::open(beside(root, "lock")).unwrap();
    lock.set_modified(SystemTime::now() - age).unwrap();
}

#[test]
fn an_image_is_unpacked_once_however_it_is_configured() {
    let place = Fixture::new();
    let layers = layers([vec![file("f", "1")]]);
    let first = place.unpack(&saved(&layers)).unwrap();
    let marker = first.root.join("marker");
    fs::write(&marker, "").unwrap();
    let second = place.unpack(&saved(&layers)).unwrap();
    assert_eq!((&second.root, second.digest), (&first.root, first.digest));
    let mut other = configuration(&layers);
    other["config"]["Env"] = serde_json::json!(["X=y"]);
    let third = place.unpack(&tar(saved_with(&layers, &other))).unwrap();
    assert_eq!((&third.root, third.env), (&first.root, vec!["X=y".to_owned()]));
    assert_ne!(third.digest, first.digest);
    assert!(marker.exists(), "it is the same tree");
    assert_ne!(place.unpack(&image("1")).unwrap().root, first.root);
}

#[test]
fn of_many_who_want_an_image_at_once_one_unpacks_it() {
    let place = Fixture::new();
    let path = place.archive(&image("1"));
    let unpacked = std::thread::scope(|scope| {
        let unpack = || {
            let stop = Stop::default();
            let budget = Budget::new(Bounds::DEFAULT, stop.clone());
            let mut lines = Vec::new();
            let unpacked = crate::unpack(&path, &place.cache, &budget, &stop, &mut |line| {
                lines.push(line);
            });
            (unpacked.unwrap(), lines)
        };
        let all: Vec<_> = (0..8).map(|_| scope.spawn(unpack)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    let said = unpacked.iter().flat_map(|(_, lines)| lines);
    assert_eq!(said.filter(|line| line.starts_with("unpacking layer 1 of 1")).count(), 1);
    for (one, _) in &unpacked {
        assert_eq!(listing(&one.root), ["d/", "d/f=1"]);
    }
    assert_eq!(place.kept().len(), 2, "{:?}", place.kept());
}

#[test]
fn half_unpacked_image_of_a_dead_process_is_removed() {
    let place = Fixture::new();
    let root = place.unpack(&image("1")).unwrap().root;
    // Killed right after its start, and in the middle of its work.
    let key = |name: &str| root.with_file_name(format!("1-{name}"));
    for name in ["started", "half"] {
        File::create(key(name).with_extension("lock")).unwrap();
    }
    let parts = [key("half").with_extension("part"), key("unlocked").with_extension("part")];
    for part in &parts {
        fs::create_dir_all(part.join("d")).unwrap();
        fs::write(part.join("d/f"), "").unwrap();
    }
    fs::write(root.with_file_name("spool-0123"), "").unwrap();
    // Somebody is at this one.
    let live = key("live").with_extension("lock");
    let lock = File::create(&live).unwrap();
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    fs::create_dir(live.with_extension("part")).unwrap();
    place.cache.tidy();
    let whole = root.file_name().unwrap().to_str().unwrap();
    let mut expected =
        [whole.to_owned(), format!("{whole}.lock"), "1-live.lock".into(), "1-live.part".into()];
    expected.sort();
    assert_eq!(place.kept(), expected);
    assert_eq!(listing(&root), ["d/", "d/f=1"]);
}

#[test]
fn listed_image_is_removed_unless_it_is_in_use() {
    let place = Fixture::new();
    let used = place.unpack(&image("1")).unwrap();
    let free = place.unpack(&image("2")).unwrap().root;
    make_old(&free, DAY);
    let key = |root: &Path| root.file_name().unwrap().to_str().unwrap().to_owned();
    let listed = place.cache.list().unwrap();
    let keys: Vec<_> = listed.iter().map(|tree| tree.key.clone()).collect();
    assert_eq!(keys, [key(&used.root), key(&free)], "the last used first");
    assert!(listed.iter().all(|tree| tree.size > 0));
    assert!(!place.cache.remove(&key(&used.root)).unwrap(), "it is in use");
    assert!(place.cache.remove(&key(&free)).unwrap());
    assert_eq!((used.root.exists(), free.exists()), (true, false));
    drop(used.tree);
    assert!(place.cache.remove(&keys[0]).unwrap());
    assert_eq!(place.cache.list().unwrap(), []);
    for path in ["..", "../x", "/etc", "."] {
        assert!(place.cache.remove(path).is_err(), "{path}");
    }
}

#[test]
fn a_part_of_the_same_image_is_begun_anew() {
    let place = Fixture::new();
    let root = place.unpack(&image("1")).unwrap().root;
    let part = beside(&root, "part");
    fs::rename(&root, &part).unwrap();
    fs::write(part.join("d/left"), "").unwrap();
    let again = place.unpack(&image("1")).unwrap().root;
    assert_eq!(again, root);
    assert_eq!(listing(&root), ["d/", "d/f=1"]);
    assert!(!part.exists());
}

#[test]
fn unused_images_expire_unless_in_use() {
    let place = Fixture::new();
    let used = place.unpack(&image("used")).unwrap();
    let [old, recent, again] =
        ["old", "recent", "again"].map(|content| place.unpack(&image(content)).unwrap().root);
    for root in [&used.root, &old, &again] {
        make_old(root, 31 * DAY);
    }
    make_old(&recent, 29 * DAY);
    drop(place.unpack(&image("again")).unwrap());
    let name = |root: &Path| root.file_name().unwrap().to_str().unwrap().to_owned();
    let mut expired = place.cache.expired().unwrap();
    expired.sort_by_key(|tree| tree.key != name(&old));
    let keys: Vec<_> = expired.into_iter().map(|tree| tree.key).collect();
    assert_eq!(keys, [name(&old), name(&used.root)]);
    place.cache.tidy();
    assert!(used.root.exists() && recent.exists() && again.exists());
    assert!(!old.exists() && !beside(&old, "lock").exists());
    let root = used.root.clone();
    // A copy of the descriptor will do: a container's, say.
    let copy = used.tree.try_clone().unwrap();
    drop(used);
    place.cache.tidy();
    assert!(root.exists());
    drop(copy);
    place.cache.tidy();
    assert!(!root.exists());
    // And it can be unpacked again.
    assert_eq!(listing(&place.unpack(&image("used")).unwrap().root), ["d/", "d/f=used"]);
}

#[tokio::test]
async fn waiting_process_gets_the_image_that_another_unpacked() {
    let place = Fixture::new();
    let path = place.archive(&image("1"));
    let root = place.unpack(&image("1")).unwrap().root;
    // As it is before the other process has finished.
    let part = beside(&root, "part");
    fs::rename(&root, &part).unwrap();
    let lock = File::open(beside(&root, "lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut said = Vec::new();
    let mut finish = |line: &str| {
        said.push(line.to_owned());
        fs::rename(&part, &root).unwrap();
    };
    let unpacked =
        prepare_archive(&path, &place.cache, DiskReserve::Auto, &mut finish).await.unwrap();
    assert_eq!(said, ["another process is unpacking the image"]);
    assert_eq!(listing(&unpacked.root), ["d/", "d/f=1"]);
    drop(lock);
}

#[tokio::test]
async fn a_cancelled_unpacking_leaves_nothing() {
    // It says what it unpacks, and goes on for long.
    let big = "x".repeat(10 << 20);
    let archive = saved(&layers([vec![file("a", &big)], vec![file("b", &big)]]));
    // On a busy machine it may be over before this thread goes on: then once more.
    for _ in 0..10 {
        let place = Fixture::new();
        let path = place.archive(&archive);
        let begun = tokio::sync::Notify::new();
        let mut progress = |_: &str| begun.notify_one();
        let preparing = prepare_archive(&path, &place.cache, DiskReserve::Auto, &mut progress);
        // Cancelled as soon as it has started, by a thread that waits for the notification: a spinning
        // thread could use up its time slice.
        tokio::select! {
            biased;
            () = begun.notified() => {}
            unpacked = preparing => drop(unpacked.unwrap()),
        }
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let kept = place.kept();
            if kept.is_empty() {
                return;
            }
            // What is whole has the bare name.
            if kept.iter().any(|name| kept.contains(&format!("{name}.lock"))) {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{kept:?}");
            tokio::task::yield_now().await;
        }
    }
    panic!("it was always over before it was cancelled");
}

#[test]
fn an_unpacking_that_is_stopped_stops_in_the_middle_of_a_file() {
    let place = Fixture::new();
    let path = place.archive(&image(&"x".repeat(10 << 20)));
    let stop = Stop::default();
    let budget = Budget::new(Bounds::DEFAULT, stop.clone());
    let mut stop_it = |_| stop.stop();
    let unpacked = crate::unpack(&path, &place.cache, &budget, &stop, &mut stop_it);
    assert!(matches!(unpacked, Err(RootfsError::Cancelled)));
    assert_eq!(place.kept(), [""; 0]);
}
