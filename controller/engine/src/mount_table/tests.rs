use super::*;
use std::os::unix::ffi::OsStrExt as _;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::tests::without_descriptors;

fn table(text: &str) -> MountTable {
    MountTable::parse(text.as_bytes()).unwrap()
}

fn location(device: &str, path: &str) -> Location {
    let (major, minor) = device.split_once(':').unwrap();
    let device = Device(major.parse().unwrap(), minor.parse().unwrap());
    Location { device, path: path.into() }
}

fn this() -> MountTable {
    MountTable::parse(&fs::read(MOUNTINFO).unwrap()).unwrap()
}

fn point(table: &MountTable, device: &str, path: &str) -> Option<String> {
    let point = table.mount_point_below(&location(device, path))?;
    Some(point.to_str().unwrap().to_owned())
}

#[test]
fn mountinfo_line_is_parsed_with_any_number_of_tags_and_any_byte_in_its_paths() {
    let mounts = table(
        "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
         36 27 0:30 /a\\040b /mnt/\\011x\\012y\\134z\\043\\303\\244 rw shared:2 master:3 - \
         fuse.x-y none rw\n",
    );
    let mount = &mounts.mounts[&36];
    assert_eq!((mount.parent, mount.fs_type.as_deref()), (27, Some("fuse.x-y")));
    assert_eq!(mount.root, location("0:30", "/a b"));
    assert_eq!(mount.point.as_os_str().as_bytes(), "/mnt/\tx\ny\\z#ä".as_bytes());
    assert_eq!(mounts.mounts[&27].root, location("254:0", "/"));
    for (escaped, plain) in [("a\\", "a\\"), ("\\04", "\\04"), ("\\999x", "\\999x")] {
        assert_eq!(unescape(escaped.as_bytes()), Path::new(plain));
    }
    for unknown in ["27", "27 1 254:0 /", "x 1 254:0 / / rw - ext4 /dev/vda rw", "2 1 8 / /"] {
        assert!(MountTable::parse(unknown.as_bytes()).is_err(), "{unknown}");
    }
}

#[test]
fn mounts_that_anybody_could_make_leave_the_table_readable() {
    let mut text = b"20 1 8:1 / / rw - ext4 /dev/a rw\n".to_vec();
    text.extend(b"21 20 0:5 / /home/u/m rw - fuse.\xff\xfe- \xff rw,\xff\n");
    text.extend(b"22 20 0:6 /\xff /home/u/\xff\\040 rw \xff:1 - \xff\n");
    text.extend(b"23 20 0:7 / /srv/m rw shared:1\n");
    let table = MountTable::parse(&text).unwrap();
    assert_eq!(table.mounts[&21].fs_type.as_deref(), Some("fuse.\u{fffd}\u{fffd}-"));
    let odd = table.mount_point_below(&location("8:1", "/home/u")).unwrap();
    assert!(odd.starts_with("/home/u"), "{odd:?}");
    assert_eq!(table.mounts[&22].point.as_os_str().as_bytes(), b"/home/u/\xff ");
    // The location of a mount without a type is known; a file on it is refused.
    assert_eq!(point(&table, "8:1", "/srv").as_deref(), Some("/srv/m"));
    let dir = tempfile::tempdir().unwrap();
    let opened = fs::File::open(dir.path()).unwrap();
    let mount = Opened::new(opened.as_fd()).unwrap().mount;
    let table = MountTable::parse(format!("{mount} 1 8:1 / / rw").as_bytes()).unwrap();
    let refused = table.locate(Opened::new(opened.as_fd()).unwrap()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn mount_point_counts_by_where_it_is_in_the_file_system() {
    let mounts = table(
        "20 1 8:1 / / rw - ext4 /dev/a rw\n\
         21 20 0:5 / /srv/io/m rw - tmpfs t rw\n\
         22 20 8:1 /data /b rw - ext4 /dev/a rw\n\
         23 22 0:6 / /b/x/m rw - tmpfs t rw\n\
         24 20 8:2 / /home rw - ext4 /dev/c rw\n\
         25 24 8:1 /data/x/sub /home/s rw - ext4 /dev/a rw\n\
         26 25 8:1 /etc /home/s/same rw - ext4 /dev/a rw\n\
         27 20 8:1 /self /self rw - ext4 /dev/a rw\n",
    );
    assert_eq!(point(&mounts, "8:1", "/srv/io").as_deref(), Some("/srv/io/m"));
    // Mounted below another mount of the same directory.
    assert_eq!(point(&mounts, "8:1", "/data").as_deref(), Some("/b/x/m"));
    // Of the same device, below a bind mount of a directory in it.
    assert_eq!(point(&mounts, "8:1", "/data/x/sub").as_deref(), Some("/home/s/same"));
    // A mount on the directory itself or beside it is not below it; a mount of one of its
    // subdirectories elsewhere is not below it either.
    for (device, path) in [
        ("8:1", "/srv/io/m"),
        ("8:1", "/srv/i"),
        ("8:1", "/srv/io/mm"),
        ("8:1", "/self"),
        ("8:2", "/s"),
        ("8:1", "/etc"),
        ("8:3", "/"),
    ] {
        assert_eq!(point(&mounts, device, path), None, "{device} {path}");
    }
}

#[test]
fn mount_hidden_under_another_is_not_below_it() {
    let mounts = table(
        "20 1 8:1 / / rw - ext4 /dev/a rw\n\
         21 20 0:5 / /mnt/m rw - tmpfs t rw\n\
         22 20 8:2 / /mnt rw - ext4 /dev/b rw\n",
    );
    assert_eq!(point(&mounts, "8:2", "/"), None);
    assert_eq!(point(&mounts, "8:1", "/mnt").as_deref(), Some("/mnt/m"));
}

#[test]
fn a_path_is_located_through_links_and_where_it_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
    let table = this();
    let locate = |path: &Path| table.locate_path(path).unwrap().unwrap().location;
    let there = locate(dir.path());
    assert_eq!(there, locate(&dir.path().join("link")));
    let missing = locate(&dir.path().join("link/a/b"));
    assert_eq!(there.path_to(&missing), Some(Path::new("a/b")));
    assert_eq!(missing.path_to(&there), None);
    // A link to what does not exist leads there.
    for (name, target) in [("one", "link/new"), ("other", "one/a"), ("loop", "loop")] {
        std::os::unix::fs::symlink(target, dir.path().join(name)).unwrap();
    }
    let behind = locate(&dir.path().join("other/b"));
    assert_eq!(there.path_to(&behind), Some(Path::new("new/a/b")));
    for path in ["loop/a", "new/../a"] {
        table.locate_path(&dir.path().join(path)).unwrap_err();
    }
    let opened = fs::File::open(dir.path().join("link")).unwrap();
    let opened = Opened::new(opened.as_fd()).unwrap();
    assert_eq!(table.locate(opened).unwrap().unwrap().location, there);
    assert_eq!(table.locate_path(Path::new("/proc/1")).unwrap().unwrap().fs_type, "proc");
    // A pipe is on no mount of this process.
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert!(table.locate(Opened::new(pipe.as_fd()).unwrap()).unwrap().is_none());
}

/// The result of [`MountTable::mount_point_below`], computed without any ordering.
fn points_below(table: &MountTable, directory: &Location) -> Vec<PathBuf> {
    let is_below = |mount: &&Mount| {
        let sits_on = mount.sits_on(&table.mounts);
        sits_on.is_some_and(|place| {
            directory.path_to(&place).is_some_and(|path| !path.as_os_str().is_empty())
        })
    };
    table.mounts.values().filter(is_below).map(|mount| mount.point.clone()).collect()
}

proptest! {
    #[test]
    fn a_mount_point_below_is_found_in_order_as_by_looking_at_each(
        mounts in vec((0..8_u64, 0..3_u32, place(), place()), 0..12),
        directories in vec((0..3_u32, place()), 1..8),
    ) {
        let mut text = String::new();
        for (id, (parent, minor, root, point)) in mounts.into_iter().enumerate() {
            text += &format!("{id} {parent} 8:{minor} {root} {point} rw - ext4 none rw\n");
        }
        let table = table(&text);
        for (minor, path) in directories {
            let directory = Location { device: Device(8, minor), path: path.into() };
            let slowly = points_below(&table, &directory);
            match table.mount_point_below(&directory) {
                Some(point) => prop_assert!(slowly.contains(&point.to_owned()), "{point:?}"),
                None => prop_assert_eq!(&slowly, &Vec::<PathBuf>::new()),
            }
        }
    }
}

/// A path of few names, some of which sort before a slash and are prefixes of others.
fn place() -> impl Strategy<Value = String> {
    let name = prop_oneof![Just("a"), Just("a-"), Just("a!b"), Just("b")];
    vec(name, 0..4).prop_map(|names| format!("/{}", names.join("/")))
}

#[test]
fn path_is_not_called_unlisted_without_a_descriptor_to_look_with() {
    let table = this();
    let located = without_descriptors(|_held| {
        table.locate_path(Path::new("/")).map(|located| located.is_some())
    });
    assert_eq!(located.unwrap_err().raw_os_error(), Some(libc::EMFILE));
}
