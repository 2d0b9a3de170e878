use super::*;
use crate::kept::KeptImages;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{
    FallocateFlags, XattrFlags, fallocate, fsetxattr, fstat, fstatvfs, mkdirat, openat,
};

const BYTES: u64 = 8 << 20;
const ENTRIES: u64 = 100;

/// Mounting needs root.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn on_disk(&self) -> BoundedDir {
        let (scratch, templates) = (self.dir.path().join("scratch"), self.dir.path().join("t"));
        BoundedDir::on_disk(size(), Some((1000, 100)), &scratch, &templates).unwrap()
    }

    /// One of each kind.
    fn both(&self) -> [BoundedDir; 2] {
        [
            self.on_disk(),
            BoundedDir::in_memory(size(), DiskUsage::default(), Some((1000, 100))).unwrap(),
        ]
    }
}

fn size() -> DiskUsage {
    DiskUsage { bytes: BYTES, entries: ENTRIES }
}

fn create(dir: &BoundedDir, name: &str) -> rustix::io::Result<File> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    openat(dir.files(), name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

/// Writes until it fails, and returns how much was written.
fn fill(file: &mut File) -> u64 {
    let block = vec![1; 64 << 10];
    let mut written = 0;
    loop {
        match file.write(&block) {
            Ok(count) => written += count as u64,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
                return written;
            }
        }
    }
}

#[test]
fn files_that_the_disk_had_no_space_for_are_not_taken_out() {
    if !is_root() {
        return;
    }
    let place = Fixture::new();
    let little = DiskUsage { bytes: 2 << 20, entries: 10 };
    let disk = BoundedDir::in_memory(little, DiskUsage::default(), None).unwrap();
    let scratch = format!("/proc/self/fd/{}/scratch", disk.files().as_raw_fd());
    let templates = place.dir.path().join("t");
    let dir = BoundedDir::on_disk(size(), None, scratch.as_ref(), &templates).unwrap();
    create(&dir, "small").unwrap().write_all(b"x").unwrap();
    dir.settle().unwrap();
    fill(&mut create(&dir, "large").unwrap());
    for _ in 0..2 {
        assert_eq!(dir.settle().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}

#[test]
fn it_holds_what_it_is_made_for_and_little_more() {
    if !is_root() {
        return;
    }
    let place = Fixture::new();
    for dir in place.both() {
        let stat = fstat(dir.files()).unwrap();
        assert_eq!((stat.st_uid, stat.st_gid, stat.st_mode & 0o7777), (1000, 100, 0o755));
        assert_eq!(
            fs::read_dir(format!("/proc/self/fd/{}", dir.files().as_raw_fd())).unwrap().count(),
            0
        );
        let written = fill(&mut create(&dir, "f").unwrap());
        assert!((BYTES..BYTES + (1 << 20)).contains(&written), "{:?}: {written}", dir.backend());
        unlinkat(dir.files(), "f", AtFlags::empty()).unwrap();
        let mut made = 0;
        while mkdirat(dir.files(), made.to_string(), Mode::RWXU).is_ok() {
            made += 1;
        }
        assert!((ENTRIES..ENTRIES + 32).contains(&made), "{:?}: {made}", dir.backend());
    }
}

#[test]
fn files_without_a_name_and_space_that_is_only_allocated_count_too() {
    if !is_root() {
        return;
    }
    let place = Fixture::new();
    for dir in place.both() {
        let mut hidden = create(&dir, "f").unwrap();
        unlinkat(dir.files(), "f", AtFlags::empty()).unwrap();
        let allocated = create(&dir, "g").unwrap();
        fallocate(&allocated, FallocateFlags::KEEP_SIZE, 0, BYTES / 2).unwrap();
        let written = fill(&mut hidden);
        assert!(written < BYTES / 2 + (1 << 20), "{:?}: {written}", dir.backend());
        let more = fallocate(&allocated, FallocateFlags::KEEP_SIZE, 0, BYTES);
        assert_eq!(more, Err(Errno::NOSPC));
        // A sparse file has any size, and takes none.
        let sparse = create(&dir, "h").unwrap();
        sparse.set_len(1 << 40).unwrap_or_default();
        drop(hidden);
        sparse.write_all_at(b"x", 0).unwrap();
    }
}

#[test]
fn attributes_and_direct_io_work_in_an_image() {
    if !is_root() {
        return;
    }
    let dir = Fixture::new().on_disk();
    let file = create(&dir, "f").unwrap();
    fsetxattr(&file, c"user.key", b"value", XattrFlags::empty()).unwrap();
    let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    openat(dir.files(), "f", flags, Mode::empty()).unwrap();
}

#[test]
fn another_mount_of_its_device_shows_the_same_directory() {
    if !is_root() {
        return;
    }
    let dir = Fixture::new().on_disk();
    create(&dir, "f").unwrap();
    // As another process does, by the path that it is given.
    let device = format!("/proc/{}/fd/{}", std::process::id(), dir.device().unwrap().as_raw_fd());
    let other = mount("ext4", &[("source", &device)], &[]).unwrap();
    let [one, two] = [dir.files().as_fd(), other.as_fd()].map(|fd| fstat(fd).unwrap());
    assert_eq!((one.st_dev, one.st_ino), (two.st_dev, two.st_ino));
    openat(&other, "f", OFlags::RDONLY, Mode::empty()).unwrap();
}

#[test]
fn nothing_is_left_of_a_dropped_one_and_of_the_disk_it_takes_no_more_than_is_written() {
    if !is_root() {
        return;
    }
    let place = Fixture::new();
    let dir = place.on_disk();
    let number = fstat(&**dir.device().unwrap()).unwrap().st_rdev;
    let attached = format!(
        "/sys/dev/block/{}:{}/loop/backing_file",
        rustix::fs::major(number),
        rustix::fs::minor(number)
    );
    let scratch = place.dir.path().join("scratch");
    assert!(fs::read_to_string(&attached).unwrap().starts_with(scratch.to_str().unwrap()));
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0, "it has a name");
    assert!(fstatvfs(dir.disk().unwrap()).is_ok());
    drop(dir);
    // The kernel may do it a moment later, and another test have the device by then.
    let is_left = || {
        let file = fs::read_to_string(&attached).unwrap_or_default();
        file.starts_with(scratch.to_str().unwrap())
    };
    let since = std::time::Instant::now();
    while is_left() {
        assert!(since.elapsed().as_secs() < 10, "the device has the image");
        std::thread::yield_now();
    }
}

#[test]
fn many_at_once_have_a_device_each() {
    if !is_root() {
        return;
    }
    let place = Fixture::new();
    // So that they do not make the template too.
    drop(place.on_disk());
    let devices: std::collections::HashSet<u64> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..64).map(|_| scope.spawn(|| place.on_disk())).collect();
        let all: Vec<_> = all.into_iter().map(|it| it.join().unwrap()).collect();
        all.iter().map(|dir| fstat(dir.files()).unwrap().st_dev).collect()
    });
    assert_eq!(devices.len(), 64);
}

/// A kept image at this name.
fn kept(place: &Fixture, images: &KeptImages, name: &str) -> io::Result<BoundedDir> {
    let (path, templates) = (place.dir.path().join(name), place.dir.path().join("t"));
    images.open(&path, with_journal(), Some((1000, 100)), &templates)
}

/// Large enough for a journal.
fn with_journal() -> DiskUsage {
    DiskUsage { bytes: 64 << 20, entries: ENTRIES }
}

fn content(dir: &BoundedDir, name: &str) -> String {
    fs::read_to_string(format!("/proc/self/fd/{}/{name}", dir.files().as_raw_fd())).unwrap()
}

#[test]
fn kept_image_has_its_name_once_it_is_used_and_its_files_later() {
    if !is_root() {
        return;
    }
    let (place, images) = (Fixture::new(), KeptImages::default());
    let path = place.dir.path().join("a");
    drop(kept(&place, &images, "a").unwrap());
    assert!(!path.exists(), "its sandbox did not start");
    let dir = kept(&place, &images, "a").unwrap();
    dir.keep_image().unwrap();
    create(&dir, "f").unwrap().write_all(b"x").unwrap();
    // Another sandbox at the same time has the same files by a mount of its own.
    let other = kept(&place, &images, "a").unwrap();
    let [one, two] = [&dir, &other].map(|dir| fstat(dir.files()).unwrap());
    assert_eq!((one.st_dev, one.st_ino), (two.st_dev, two.st_ino));
    create(&other, "g").unwrap();
    other.keep_image().unwrap();
    assert_eq!(dir.size().bytes, with_journal().bytes);
    drop(dir);
    // As in another process: it waits until the image is not mounted any more.
    let later = std::thread::scope(|scope| {
        let later = scope.spawn(|| kept(&place, &KeptImages::default(), "a").unwrap());
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!later.is_finished());
        drop(other);
        later.join().unwrap()
    });
    assert_eq!((&*content(&later, "f"), &*content(&later, "g")), ("x", ""));
    let stat = fstat(later.files()).unwrap();
    assert_eq!((stat.st_uid, stat.st_gid, stat.st_mode & 0o7777), (1000, 100, 0o755));
    // What is deleted takes no space of the disk.
    use std::os::unix::fs::MetadataExt as _;
    let taken = || fs::metadata(&path).unwrap().blocks() * 512;
    fill(&mut create(&later, "large").unwrap());
    later.settle().unwrap();
    assert!(taken() >= 60 << 20, "{}", taken());
    unlinkat(later.files(), "large", AtFlags::empty()).unwrap();
    later.settle().unwrap();
    let since = std::time::Instant::now();
    while taken() >= 16 << 20 {
        assert!(since.elapsed().as_secs() < 10, "{}", taken());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn kept_image_that_was_not_unmounted_is_repaired_or_refused() {
    if !is_root() {
        return;
    }
    let (place, images) = (Fixture::new(), KeptImages::default());
    let at = |name: &str| place.dir.path().join(name);
    let dir = kept(&place, &images, "a").unwrap();
    dir.keep_image().unwrap();
    create(&dir, "f").unwrap().write_all(b"x").unwrap();
    dir.settle().unwrap();
    create(&dir, "late").unwrap();
    // As a power cut leaves it.
    fs::copy(at("a"), at("b")).unwrap();
    let repaired = kept(&place, &images, "b").unwrap();
    assert_eq!(content(&repaired, "f"), "x");
    drop(repaired);
    let broken = File::options().write(true).open(at("b")).unwrap();
    broken.write_all_at(&[0; 1 << 16], 0).unwrap();
    let refused = kept(&place, &images, "b").unwrap_err().to_string();
    assert!(refused.contains("`e2fsck -p` cannot repair it"), "{refused}");
    assert!(at("b").exists());
}
