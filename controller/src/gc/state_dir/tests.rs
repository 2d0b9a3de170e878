use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn state(folder: &Path) -> StateDir {
    StateDir::open(&folder.join("state"), &folder.join("scratch"), "boot").unwrap()
}

fn make_old(path: &Path, age: Duration) {
    let file = fs::File::open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

#[test]
fn a_lock_is_held_for_as_long_as_its_instance_lives() {
    let dir = tempfile::tempdir().unwrap();
    let state = state(dir.path());
    let me = Instance::register(state.clone(), "unix:///x").unwrap();
    let other = Instance::register(state.clone(), "unix:///x").unwrap();
    assert_eq!(state.lock_of(&other.id), Lock::Held);
    assert_eq!(state.lock_of(&me.id), Lock::Held);
    let id = other.id.clone();
    drop(other);
    assert_eq!(state.lock_of(&id), Lock::Free);
    for id in ["", "../../etc/passwd", "zz", "0123"] {
        assert_eq!(state.lock_of(id), Lock::Missing, "{id}");
    }
    me.unregister();
    assert_eq!(state.lock_of(&me.id), Lock::Missing);
    let retired = Instance::register(state.clone(), "unix:///x").unwrap();
    retired.retire();
    let id = retired.id.clone();
    drop(retired);
    state.tidy(|_, _| false);
    assert_eq!(state.lock_of(&id), Lock::Free, "it may have a container");
    state.tidy(|_, _| true);
    assert_eq!(state.lock_of(&id), Lock::Missing);
}

#[test]
fn a_dead_instance_leaves_no_input_and_its_lock_only_while_it_may_have_containers() {
    let dir = tempfile::tempdir().unwrap();
    let state = state(dir.path());
    let dead = |age| {
        let instance = Instance::register(state.clone(), "unix:///x").unwrap();
        fs::create_dir(instance.spool_dir()).unwrap();
        fs::write(instance.spool_dir().join("secret"), "x").unwrap();
        let (lock, spool) = (state.file(&instance.id, LOCK_SUFFIX), instance.spool_dir());
        make_old(&lock, age);
        (lock, spool)
    };
    let hour = Duration::from_secs(3600);
    for (age, is_done, is_kept) in [
        (Duration::ZERO, true, true),
        (hour, true, false),
        (hour, false, true),
        (8 * 24 * hour, false, false),
    ] {
        let (lock, spool) = dead(age);
        state.tidy(|_, endpoint| endpoint == "unix:///x" && is_done);
        assert_eq!(lock.exists(), is_kept, "{age:?} {is_done}");
        assert!(!spool.exists(), "{age:?} {is_done}");
        _ = fs::remove_file(lock);
    }
    let live = Instance::register(state.clone(), "unix:///x").unwrap();
    fs::create_dir(live.spool_dir()).unwrap();
    make_old(&state.file(&live.id, LOCK_SUFFIX), 8 * 24 * hour);
    state.tidy(|_, _| true);
    assert!(live.spool_dir().exists());
    assert_eq!(state.lock_of(&live.id), Lock::Held);
}

#[test]
fn names_of_processes_that_were_killed_go() {
    let dir = tempfile::tempdir().unwrap();
    let state = state(dir.path());
    let names = dir.path().join("state").join(NAMES_DIR);
    fs::create_dir(&names).unwrap();
    let paths = ["left", "held", "new"].map(|name| names.join(name).with_extension("lock"));
    let [_, held, _] = paths.each_ref().map(|path| fs::File::create(path).unwrap());
    held.lock().unwrap();
    paths[..2].iter().for_each(|path| make_old(path, GRACE * 2));
    state.tidy(|_, _| true);
    assert_eq!(paths.each_ref().map(|path| path.exists()), [false, true, true]);
    drop(held);
    state.tidy(|_, _| true);
    assert_eq!(paths.map(|path| path.exists()), [false, false, true]);
}

#[test]
fn unused_caches_and_half_written_files_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let state = state(dir.path());
    let kept = state.path.join("image-k");
    fs::write(&kept, "text").unwrap();
    let half = [state.path.join("image-k.17"), state.file("0123", PART_SUFFIX)];
    for path in &half {
        fs::write(path, "").unwrap();
    }
    let other = state.path.join("notes");
    fs::write(&other, "").unwrap();
    let hour = Duration::from_secs(3600);
    state.tidy(|_, _| true);
    assert!(kept.exists() && half.iter().all(|path| path.exists()), "all are young");
    for path in half.iter().chain([&kept, &other]) {
        make_old(path, hour);
    }
    state.tidy(|_, _| true);
    assert!(kept.exists() && !half.iter().any(|path| path.exists()));
    for path in [&kept, &other] {
        make_old(path, 8 * 24 * hour);
    }
    state.tidy(|_, _| true);
    assert!(!kept.exists() && other.exists());
}

#[test]
fn a_state_folder_that_others_could_have_made_or_enter_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("real");
    let scratch = dir.path();
    let open = |folder: &Path| StateDir::open(folder, scratch, "");
    let refused = |folder: &Path| open(folder).unwrap_err().full_message();
    open(&real).unwrap();
    assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o700);
    let link = dir.path().join("link");
    symlink(&real, &link).unwrap();
    assert!(refused(&link).ends_with("it is not a directory"));
    for mode in [0o755, 0o701, 0o720] {
        fs::set_permissions(&real, fs::Permissions::from_mode(mode)).unwrap();
        assert!(refused(&real).contains("its mode must be 0700"));
    }
    fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&real, Some(1), Some(1)).unwrap();
        assert!(refused(&real).ends_with("it belongs to another user"));
    }
    let file = dir.path().join("f");
    fs::write(&file, "").unwrap();
    open(&file).unwrap_err();
}
