//! Fresh io dirs on a real file system.

use super::*;

#[test]
fn fresh_dir_is_removed_with_its_content_when_its_use_ends() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("scratch");
    let [one, other] = [(); 2].map(|()| FreshDir::create(&scratch, None).unwrap());
    fs::create_dir(one.path().join("d")).unwrap();
    fs::write(one.path().join("d/f"), "x").unwrap();
    let (one_path, other_path) = (one.path(), other.path());
    drop(one);
    assert!(!one_path.exists() && other_path.exists());
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 1);
}

#[test]
fn fresh_dir_belongs_to_the_sandboxs_user() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().unwrap();
    let fresh = FreshDir::create(&dir.path().join("scratch"), Some((4321, 4322))).unwrap();
    let made = fs::metadata(fresh.path()).unwrap();
    assert_eq!((made.uid(), made.gid()), (4321, 4322));
}

#[test]
fn fresh_dir_that_is_kept_moves_with_its_content_and_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("scratch");
    let fresh = FreshDir::create(&scratch, None).unwrap();
    fs::write(fresh.path().join("f"), "x").unwrap();
    let taken = dir.path().join("taken");
    fs::create_dir(&taken).unwrap();
    assert_eq!(fresh.keep(&taken).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    let kept = dir.path().join("kept");
    fresh.keep(&kept).unwrap();
    drop(fresh);
    assert_eq!(fs::read(kept.join("f")).unwrap(), b"x");
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
}

#[test]
fn sweep_removes_what_is_not_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("scratch");
    reap(&scratch, Duration::ZERO);
    let used = FreshDir::create(&scratch, None).unwrap();
    fs::write(used.path().join("f"), "x").unwrap();
    // As a killed controller leaves it.
    fs::create_dir_all(scratch.join("0123/d")).unwrap();
    fs::write(scratch.join("0123/d/f"), "x").unwrap();
    std::os::unix::fs::symlink(dir.path(), scratch.join("link")).unwrap();
    reap(&scratch, Duration::ZERO);
    assert!(used.path().join("f").exists() && !scratch.join("0123").exists());
    assert!(dir.path().exists());
}

#[test]
fn scratch_directory_of_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), open).unwrap();
    FreshDir::create(dir.path(), None).unwrap_err();
}
