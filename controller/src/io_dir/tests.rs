use std::os::unix::fs::{PermissionsExt as _, symlink};

use sandbox_staging::kept::KeptImages;

use super::*;
use crate::io_dir::private::Wanted;

fn reason(result: Result<IoDir, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_missing_io_dir_is_made_and_removed_again_if_it_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    let make = || IoDir::make(&path, Links::Follow, &dir.path().join("records"), None).unwrap();
    let io_dir = make();
    assert!(path.is_dir());
    fs::write(path.join("f"), "").unwrap();
    io_dir.release();
    assert!(path.is_dir());
    fs::remove_dir_all(dir.path().join("a")).unwrap();
    make().release();
    assert!(!dir.path().join("a").exists());
    assert_eq!(fs::read_dir(dir.path().join("records")).unwrap().count(), 0);
}

#[test]
fn a_process_that_is_just_being_started_keeps_no_io_dir_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let io_dir =
        IoDir::make(&dir.path().join("a"), Links::Follow, &dir.path().join("records"), None)
            .unwrap();
    // The descriptor that a child has between its fork and its exec.
    let child = io_dir.hold.lock().unwrap().as_ref().unwrap().try_clone().unwrap();
    io_dir.release();
    assert!(!dir.path().join("a").exists());
    drop(child);
}

#[test]
fn created_directories_are_removed_and_not_their_replacements() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("outside/b")).unwrap();

    // A link above leads to an empty directory of the same name.
    let io_dir = IoDir::make(&at("a/b"), Links::Follow, &at("records"), None).unwrap();
    fs::rename(at("a"), at("moved")).unwrap();
    symlink(at("outside"), at("a")).unwrap();
    io_dir.release();
    assert!(at("outside/b").is_dir() && at("a").is_symlink());
    assert!(!at("moved/b").exists() && at("moved").is_dir());

    // Another empty directory is there, or a link to one.
    fs::remove_file(at("a")).unwrap();
    for replace in [
        (|at| fs::create_dir(at).unwrap()) as fn(&Path),
        |at| symlink("outside", at).unwrap(),
        |at| fs::write(at, "").unwrap(),
    ] {
        let io_dir = IoDir::make(&at("made"), Links::Follow, &at("records"), None).unwrap();
        fs::rename(at("made"), at("elsewhere")).unwrap();
        replace(&at("made"));
        io_dir.release();
        assert!(at("made").symlink_metadata().is_ok() && at("elsewhere").is_dir());
        fs::rename(at("made"), at("gone")).unwrap();
        _ = fs::remove_file(at("gone"));
        _ = fs::remove_dir(at("gone"));
        fs::remove_dir(at("elsewhere")).unwrap();
    }
    assert!(at("outside/b").is_dir());
}

#[test]
fn a_nonce_that_was_swapped_is_removed_by_its_name_alone() {
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let io_dir = IoDir::open(dir.path(), Links::Follow).unwrap();
    let nonce = io_dir.write_nonce().unwrap();
    let path = dir.path().join(&nonce.name);
    fs::remove_file(&path).unwrap();
    symlink(outside.path().join("secret"), &path).unwrap();
    drop(nonce);
    assert!(!path.is_symlink());
    assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "secret");

    // A directory is not the file that was created there.
    let nonce = io_dir.write_nonce().unwrap();
    let path = dir.path().join(&nonce.name);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    drop(nonce);
    assert!(path.is_dir());
}

#[test]
fn an_io_dir_that_was_there_stays() {
    let dir = tempfile::tempdir().unwrap();
    IoDir::make(dir.path(), Links::Follow, &dir.path().join("records"), None).unwrap().release();
    assert!(dir.path().is_dir() && !dir.path().join("records").exists());
}

#[test]
fn runs_that_share_an_io_dir_never_lose_it_under_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (path, records) = (dir.path().join("a/b"), dir.path().join("records"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let io_dir = IoDir::make(&path, Links::Follow, &records, None).unwrap();
                    let stat = rustix::fs::stat(&path).unwrap();
                    assert_eq!(Identity::of(&stat), io_dir.identity);
                    io_dir.release();
                }
            });
        }
    });
    // A directory that was kept because another sandbox used it is removed by the next sweep.
    created::reap(&records);
    assert!(!path.exists() && !records.exists());
}

#[test]
fn io_dir_that_is_not_a_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "").unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    symlink("d", dir.path().join("link")).unwrap();
    symlink("nowhere", dir.path().join("dangling")).unwrap();
    let open = |path: &Path| IoDir::make(path, Links::Follow, &dir.path().join("records"), None);
    assert!(reason(open(&dir.path().join("f"))).contains("not a directory"));
    for link in ["link", "link/", "link/.", "dangling"] {
        let reason = reason(open(&dir.path().join(link)));
        assert!(reason.contains("symbolic link"), "{link}: {reason}");
    }
    assert!(reason(open(Path::new("/"))).contains("root"));
    assert!(reason(open(Path::new(""))).contains("empty"));
    assert!(open(&dir.path().join("f/x")).is_err());
}

#[test]
fn a_nonce_is_read_through_the_io_dir_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let io_dir = IoDir::open(dir.path(), Links::Follow).unwrap();
    let nonce = io_dir.write_nonce().unwrap();
    let path = dir.path().join(&nonce.name);
    assert_eq!(fs::read_to_string(&path).unwrap(), nonce.content);
    drop(nonce);
    assert!(!path.exists());
}

#[test]
fn stage_that_another_run_replaces_by_a_link_is_not_followed() {
    for method in [Staging::Copy, Staging::Overlay(Err("no image".to_owned()))] {
        let name = format!("{method:?}");
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("outside/files")).unwrap();
        fs::create_dir(at("io")).unwrap();
        let is_stage = |name: &str| name.starts_with(".sandboxctl-stage-");
        // The io dir's parent is another run's io dir.
        let mut replace = |point: &str| {
            if point == "filled" {
                let entries = fs::read_dir(dir.path()).unwrap();
                let mut names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
                let stage = at(&names.find(|name| is_stage(name)).unwrap());
                fs::rename(&stage, at("moved")).unwrap();
                symlink(at("outside"), &stage).unwrap();
            }
        };
        let stages = Records::new(&at("records"), at("lock"), "boot".to_owned());
        let how = (method, DiskReserve::default());
        let io_dir = IoDir::make(&at("io"), Links::Follow, &at("made"), None).unwrap();
        let staged = io_dir.staged(&stages, how, &mut replace).unwrap();
        assert_eq!(staged.path(), at("moved/files"), "{name}");
        staged.release();
        assert_eq!(fs::read_dir(at("outside/files")).unwrap().count(), 0);
    }
}

#[test]
fn what_a_spec_names_is_opened_through_no_link_if_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
    fs::create_dir_all(at("secret/b")).unwrap();
    fs::write(at("secret/b/key"), "x").unwrap();
    symlink("secret", at("a")).unwrap();
    for path in ["a/b", "a/new/c"] {
        for opened in [
            IoDir::open(&at(path), Links::Refuse),
            IoDir::make(&at(path), Links::Refuse, &at("records"), None),
        ] {
            let reason = reason(opened);
            assert!(reason.contains("link") || path == "a/new/c", "{path}: {reason}");
        }
    }
    assert!(!at("secret/new").exists());
    IoDir::open(&at("a/b"), Links::Follow).unwrap();
    IoDir::make(&at("secret/b"), Links::Refuse, &at("records"), None).unwrap();

    let open = |path: &str, links| {
        let input = sandbox_api::Input::path(at(path), "key");
        inputs::open_inputs(vec![input], links, &at("spool"))
    };
    let refused = open("a/b/key", Links::Refuse).unwrap_err().to_string();
    assert!(refused.contains("a symbolic link is in its path"), "{refused}");
    // An engine that opens it by its path is given one without links.
    let opened = open("a/b/key", Links::Follow).unwrap();
    assert_eq!(Path::new(&opened[0].source.path), at("secret/b/key"));
    open("secret/b/key", Links::Refuse).unwrap();
}

fn small() -> DiskUsage {
    DiskUsage { bytes: 1 << 20, entries: 10 }
}

/// Mounting needs root.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn files_of_a_bounded_io_dir_are_kept_once_and_it_says_what_bounds_it() {
    if !is_root() {
        return;
    }
    let io_dir =
        IoDir::bounded(BoundedDir::in_memory(small(), DiskUsage::default(), None).unwrap())
            .unwrap();
    assert_eq!((io_dir.host_path(), io_dir.bounds()), (None, Some(small())));
    assert!(io_dir.disk().is_none(), "it takes no space of a disk");
    let disk = io_dir.describe_disk(&Limits::default());
    assert_eq!(
        (disk.bound, disk.backend, disk.bytes),
        (DiskBound::Kernel, DiskBackend::Tmpfs, 1 << 20)
    );
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(io_dir.fd(), "f", flags, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&file, b"x").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept");
    io_dir.keep(&kept).unwrap();
    assert_eq!(fs::read(kept.join("f")).unwrap(), b"x");
    assert!(matches!(io_dir.keep(&dir.path().join("again")), Err(Error::NoFreshIoDir)));
}

#[test]
fn what_is_kept_stays_what_it_was_made_as() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let (images, at) = (KeptImages::default(), |name: &str| dir.path().join(name));
    let open = |name: &str, wanted| {
        let image = || images.open(&at(name), small(), None, &at("templates"));
        let kept = IoDir::kept(&at(name), None, wanted, image).unwrap();
        kept.keep_image().unwrap();
        assert_eq!(kept.host_path(), None);
        kept.describe_disk(&Limits::default())
    };
    let why = || Wanted::Directory(Some("why".to_owned()));
    for (name, first, later, bound) in [
        ("image", Wanted::Image, why(), DiskBound::Kernel),
        ("directory", why(), Wanted::Image, DiskBound::Watched),
    ] {
        for wanted in [first, later] {
            let disk = open(name, wanted);
            assert_eq!((disk.bound, disk.reason.is_none()), (bound, name == "image"), "{disk:?}");
        }
    }
    let failed = || Err(io::Error::other("no loop device"));
    let kept = IoDir::kept(&at("failed"), None, Wanted::Image, failed).unwrap();
    let reason = kept.describe_disk(&Limits::default()).reason.unwrap();
    assert_eq!((&*reason, at("failed").is_dir()), ("no loop device", true));
    // What is there is not replaced.
    IoDir::kept(&at("image"), None, why(), failed).unwrap_err();
    assert!(at("image").is_file());
}

#[test]
fn stage_is_bounded_by_its_image_or_says_why_it_is_not() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let image = BoundedDir::on_disk(small(), None, &at("scratch"), &at("templates"));
    let why = "no loop device".to_owned();
    for (image, bound) in
        [(image.map_err(|it| it.to_string()), DiskBound::Kernel), (Err(why), DiskBound::Watched)]
    {
        fs::create_dir_all(at("io")).unwrap();
        let stages = Records::new(&at("records"), at("lock"), "boot".to_owned());
        let io_dir = IoDir::make(&at("io"), Links::Follow, &at("made"), None).unwrap();
        let how = (Staging::Overlay(image), DiskReserve::default());
        let staged = io_dir.staged(&stages, how, &mut |_| {}).unwrap();
        let disk = staged.describe_disk(&Limits::default());
        assert_eq!(disk.bound, bound, "{disk:?}");
        let is_bounded = bound == DiskBound::Kernel;
        assert_eq!(disk.reason.is_none(), is_bounded, "{disk:?}");
        // The image is at no path that could be refused.
        assert_eq!(staged.staged_sources().len(), if is_bounded { 1 } else { 2 });
        assert_eq!(
            (staged.lower().is_some(), staged.host_path()),
            (true, Some(&*at("io").canonicalize().unwrap()))
        );
        staged.release();
        drop(staged);
        assert_eq!(fs::read_dir(at("scratch")).unwrap().count(), 0);
        let mut beside = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name());
        assert!(beside.all(|name| !name.to_str().unwrap().starts_with(".sandboxctl")));
    }
}
