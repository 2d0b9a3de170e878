//! Archives of every kind, honest and hostile, made in memory.

mod hostile;
mod keeping;
mod make;

use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink as link};
use std::path::{Path, PathBuf};

use serde_json::json;

use self::make::{
    EPOCH, Item, Layout, configuration, file, folder, gzip, hard_link, item, member, saved,
    saved_with, symlink, tar, zstd,
};
use super::budget::{Bounds, Budget, Stop};
use super::digest::Digest;
use super::image::Platform;
use super::layer::{MAX_DEPTH, MAX_PATH};
use super::stream::Plain;
use super::{RootCache, RootfsError, Unpacked};

/// A cache, with an archive next to it.
struct Fixture {
    dir: tempfile::TempDir,
    cache: RootCache,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cache = RootCache::open(dir.path().join("roots")).unwrap();
        Self { dir, cache }
    }

    fn archive(&self, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join("image.tar");
        fs::write(&path, bytes).unwrap();
        path
    }

    fn unpack(&self, archive: &[u8]) -> Result<Unpacked, RootfsError> {
        self.unpack_within(archive, Bounds::DEFAULT)
    }

    fn unpack_within(&self, archive: &[u8], bounds: Bounds) -> Result<Unpacked, RootfsError> {
        let (path, stop) = (self.archive(archive), Stop::default());
        let budget = Budget::new(bounds, stop.clone()).on(self.cache.handle().unwrap());
        super::unpack(&path, &self.cache, &budget, &stop, &mut drop)
    }

    /// The names in the cache.
    fn kept(&self) -> Vec<String> {
        names(&self.dir.path().join("roots"))
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// All that is in a tree, a line each: `path/`, `path=content`, `path->target`.
fn listing(root: &Path) -> Vec<String> {
    fn list(folder: &Path, root: &Path, lines: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                lines.push(format!("{name}/"));
                list(&path, root, lines);
            } else if kind.is_symlink() {
                lines.push(format!("{name}->{}", fs::read_link(&path).unwrap().display()));
            } else {
                assert!(kind.is_file(), "{name}");
                let content = fs::read(&path).unwrap();
                lines.push(format!("{name}={}", String::from_utf8_lossy(&content)));
            }
        }
    }
    let mut lines = Vec::new();
    list(root, root, &mut lines);
    lines.sort();
    lines
}

/// The error with all its causes.
fn message(error: &RootfsError) -> String {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    message
}

fn layers<const N: usize>(layers: [Vec<Item>; N]) -> Vec<Vec<u8>> {
    layers.into_iter().map(tar).collect()
}

#[test]
fn docker_save_archive_is_unpacked_faithfully() {
    let place = Fixture::new();
    let layers = layers([vec![
        // Before there was a type for folders.
        file("./bin/", "").mode(0o700),
        file("./bin/tool", "#!").mode(0o4755),
        hard_link("bin/other", "bin/tool"),
        symlink("sh", "/bin/tool"),
        file("/etc/no/folder/was/made", "1").mode(0o600),
        folder("tmp").mode(0o1777),
        hard_link("again", "sh"),
    ]]);
    let unpacked = place.unpack(&saved(&layers)).unwrap();
    assert_eq!(
        listing(&unpacked.root),
        [
            "again->/bin/tool", "bin/", "bin/other=#!", "bin/tool=#!", "etc/", "etc/no/",
            "etc/no/folder/", "etc/no/folder/was/", "etc/no/folder/was/made=1", "sh->/bin/tool",
            "tmp/",
        ]
    );
    let look = |path: &str| fs::symlink_metadata(unpacked.root.join(path)).unwrap();
    for (path, mode) in [
        // Without what would make its user another's.
        ("bin/tool", 0o755),
        ("bin", 0o700),
        ("etc/no/folder/was/made", 0o600),
        ("tmp", 0o1777),
        ("etc/no", 0o755),
        ("", 0o755),
    ] {
        assert_eq!(look(path).mode() & 0o7777, mode, "{path}");
    }
    for path in ["bin", "bin/tool", "sh"] {
        assert_eq!(look(path).mtime(), EPOCH.cast_signed(), "{path}");
    }
    assert_eq!(look("bin/tool").ino(), look("bin/other").ino());
    assert_eq!(look("sh").ino(), look("again").ino());
    assert_eq!(unpacked.env, ["PATH=/bin", "A=b=c"]);
    assert_eq!(unpacked.workdir.as_deref(), Some("/srv"));
    let configuration = configuration(&layers).to_string();
    assert_eq!(unpacked.digest, Digest::of(configuration.as_bytes()));
    assert_eq!(unpacked.digest.to_string().len(), "sha256:".len() + 64);
}

#[test]
fn files_belong_to_the_users_that_the_image_says() {
    let place = Fixture::new();
    let layer = tar([
        folder("home").owner(1000, 100).mode(0o700),
        file("home/f", "").owner(1000, 100).mode(0o6755),
        symlink("home/l", "f").owner(1000, 100),
        file("big", "").pax(&[("uid", b"3000000"), ("gid", b"3000001")]),
    ]);
    let root = place.unpack(&saved(&[layer])).unwrap().root;
    let owner = |path: &str| {
        let metadata = fs::symlink_metadata(root.join(path)).unwrap();
        (metadata.uid(), metadata.gid())
    };
    // Only root can change owners.
    let is_root = rustix::process::geteuid().is_root();
    let expected = |said| if is_root { said } else { owner("") };
    for path in ["home", "home/f", "home/l"] {
        assert_eq!(owner(path), expected((1000, 100)), "{path}");
    }
    assert_eq!(owner("big"), expected((3_000_000, 3_000_001)));
    assert_eq!(fs::metadata(root.join("home/f")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn a_layer_changes_what_lies_below_it_and_nothing_else() {
    let base = || {
        vec![
            folder("d"),
            file("d/a", "1"),
            file("d/b", "1"),
            folder("d/e"),
            file("d/e/x", "1"),
            file("f", "1"),
            symlink("l", "d"),
        ]
    };
    type Case = (&'static str, Vec<Item>, &'static [&'static str]);
    let cases: Vec<Case> = vec![
        (
            "a file is replaced",
            vec![file("f", "2")],
            &["d/", "d/a=1", "d/b=1", "d/e/", "d/e/x=1", "f=2", "l->d"],
        ),
        (
            "a file and a folder are hidden",
            vec![file(".wh.f", ""), file("d/.wh.e", ""), file("d/.wh.nothing", "")],
            &["d/", "d/a=1", "d/b=1", "l->d"],
        ),
        (
            "a whiteout hides what lies below its layer alone, wherever it stands",
            vec![
                folder("d"),
                folder("d/e"),
                file("d/e/y", "2"),
                file("d/.wh.e", ""),
                file("f", "2"),
                file(".wh.f", ""),
                file("d/.wh.a", ""),
                file("d/a", "2"),
            ],
            &["d/", "d/a=2", "d/b=1", "d/e/", "d/e/y=2", "f=2", "l->d"],
        ),
        (
            "an opaque folder has only what its layer has, before the mark and after it",
            vec![folder("d/e"), file("d/n", "2"), file("d/.wh..wh..opq", ""), file("d/m", "2")],
            &["d/", "d/e/", "d/m=2", "d/n=2", "f=1", "l->d"],
        ),
        ("an opaque root", vec![file(".wh..wh..opq", ""), file("n", "2")], &["n=2"]),
        (
            "a folder that is not there is opaque already",
            vec![file("q/.wh..wh..opq", ""), file("q/.wh.x", "")],
            &["d/", "d/a=1", "d/b=1", "d/e/", "d/e/x=1", "f=1", "l->d"],
        ),
        (
            "a link in place of a folder, which goes with all that is in it",
            vec![symlink("d", "elsewhere")],
            &["d->elsewhere", "f=1", "l->d"],
        ),
        (
            "a folder in place of a link, and of a file",
            vec![folder("l"), file("l/x", "2"), folder("f")],
            &["d/", "d/a=1", "d/b=1", "d/e/", "d/e/x=1", "f/", "l/", "l/x=2"],
        ),
        (
            "a link that is hidden takes nothing with it",
            vec![file(".wh.l", "")],
            &["d/", "d/a=1", "d/b=1", "d/e/", "d/e/x=1", "f=1"],
        ),
        (
            "a file in place of a folder, and a hard link in place of a file",
            vec![file("d", "2"), hard_link("l", "f")],
            &["d=2", "f=1", "l=1"],
        ),
        (
            "a folder again, which keeps what is in it",
            vec![folder("d")],
            &["d/", "d/a=1", "d/b=1", "d/e/", "d/e/x=1", "f=1", "l->d"],
        ),
        (
            "devices and FIFOs are left out, and what was there is gone",
            vec![
                item(b'3', b"f", b"", b""),
                item(b'4', b"d/a", b"", b""),
                item(b'6', b"p", b"", b""),
            ],
            &["d/", "d/b=1", "d/e/", "d/e/x=1", "l->d"],
        ),
        (
            "the last of two counts",
            vec![file("f", "2"), file("f", "3"), symlink("d/a", "x"), file("d/a", "3")],
            &["d/", "d/a=3", "d/b=1", "d/e/", "d/e/x=1", "f=3", "l->d"],
        ),
        (
            "files of an old storage driver are not part of the image",
            vec![folder(".wh..wh.plnk"), file(".wh..wh.plnk/1.2", "x"), file("d/.wh..wh.aufs", "")],
            &["d/", "d/a=1", "d/b=1", "d/e/", "d/e/x=1", "f=1", "l->d"],
        ),
    ];
    for (what, upper, expected) in cases {
        let place = Fixture::new();
        let unpacked = place.unpack(&saved(&layers([base(), upper]))).unwrap();
        assert_eq!(listing(&unpacked.root), expected, "{what}");
    }
}

#[test]
fn a_file_that_is_replaced_leaves_those_that_were_linked_to_it() {
    let place = Fixture::new();
    let layers = layers([
        vec![file("a", "1"), hard_link("b", "a")],
        vec![file("a", "2")],
        vec![hard_link("c", "b")],
    ]);
    let root = place.unpack(&saved(&layers)).unwrap().root;
    assert_eq!(listing(&root), ["a=2", "b=1", "c=1"]);
}

#[test]
fn directory_metadata_is_that_of_the_last_layer() {
    let place = Fixture::new();
    let layers = layers([
        vec![
            folder("d").mode(0o500),
            file("d/f", "1"),
            folder("e").mode(0o711),
            folder("g").mode(0),
        ],
        vec![folder("d").mode(0o750), file(".wh.e", ""), symlink("g", "d"), folder("").mode(0o555)],
        // Created again as a parent directory: its metadata is lost.
        vec![file("e/f", "3")],
    ]);
    let root = place.unpack(&saved(&layers)).unwrap().root;
    let mode = |path: &str| fs::symlink_metadata(root.join(path)).unwrap().mode() & 0o7777;
    // Who is not root may always remove what is in it.
    let own = if rustix::process::geteuid().is_root() { 0 } else { 0o700 };
    assert_eq!((mode("d"), mode("e"), mode("")), (0o750, 0o755, 0o555 | own));
    assert_eq!(listing(&root), ["d/", "d/f=1", "e/", "e/f=3", "g->d"]);
}

#[test]
fn an_oci_layout_is_unpacked_however_its_layers_are_compressed() {
    let (one, two) = (tar([file("a", "1"), file("b", "1")]), tar([file("b", "2")]));
    let three = tar([file("c", "3")]);
    let (front, back) = two.split_at(700);
    let skipped = [b"\x50\x2a\x4d\x18\x04\0\0\0".as_slice(), b"skip"].concat();
    for (what, packed, suffix) in [
        ("plain", two.clone(), ""),
        ("gzip", gzip(&two), "+gzip"),
        ("gzip in two parts", [gzip(front), gzip(back)].concat(), "+gzip"),
        ("zstd", zstd(&two), "+zstd"),
        (
            "zstd in several frames",
            [skipped.clone(), zstd(front), skipped.clone(), zstd(back), skipped].concat(),
            "+zstd",
        ),
        ("zstd by another name", zstd(&two), "+gzip"),
    ] {
        let place = Fixture::new();
        let mut layout = Layout::default();
        let layers = [
            (one.clone(), gzip(&one), "+gzip"),
            (two.clone(), packed, suffix),
            (three.clone(), three.clone(), ""),
        ];
        let image = layout.image(&layers);
        let unpacked = place.unpack(&layout.finish(&[image])).unwrap();
        assert_eq!(listing(&unpacked.root), ["a=1", "b=2", "c=3"], "{what}");
        assert_eq!(unpacked.env, ["PATH=/bin", "A=b=c"]);
    }
}

#[test]
fn of_an_index_the_image_for_this_machine_is_taken_however_deep_it_lies() {
    let ours = Platform::here();
    let ours = json!({"os": ours.os, "architecture": ours.architecture, "variant": "v1"});
    let other = json!({"os": "linux", "architecture": "pdp11"});
    let unknown = json!({"os": "unknown", "architecture": "unknown"});
    let mut layout = Layout::default();
    let layer = tar([file("a", "ours")]);
    let mut image = layout.image(&[(layer.clone(), gzip(&layer), "+gzip")]);
    image["platform"] = ours;
    // Which lies elsewhere.
    let absent = Layout::default().blob(make::MANIFEST, "{}");
    let mut foreign = absent.clone();
    foreign["platform"] = other;
    let mut statement = absent;
    statement["platform"] = unknown;
    let nested = layout.index(&[foreign.clone(), statement.clone(), image.clone()]);
    let deep = layout.index(std::slice::from_ref(&nested));
    let artifact = layout.blob("application/vnd.example.report", "x");
    for manifests in
        [vec![image.clone()], vec![nested.clone()], vec![artifact, deep, nested, image]]
    {
        let place = Fixture::new();
        let unpacked = place.unpack(&layout.clone().finish(&manifests)).unwrap();
        assert_eq!(listing(&unpacked.root), ["a=ours"]);
    }
    let place = Fixture::new();
    let error = place.unpack(&layout.clone().finish(&[foreign])).unwrap_err();
    let text = message(&error);
    assert!(text.starts_with("its image is for linux/pdp11, and this machine is linux/"), "{text}");
    let error = place.unpack(&layout.finish(&[statement])).unwrap_err();
    assert!(matches!(error, RootfsError::NoImage), "{error}");
}

#[test]
fn an_archive_that_is_both_is_read_as_docker_wrote_it() {
    let place = Fixture::new();
    let mut layout = Layout::default();
    let (one, two) = (tar([file("a", "1")]), tar([file("a", "2")]));
    let image = layout.image(&[(one.clone(), gzip(&one), "+gzip"), (two.clone(), two.clone(), "")]);
    let config = Digest::of(configuration(&[one.clone(), two.clone()]).to_string().as_bytes());
    let names = [Digest::of(&gzip(&one)).member(), Digest::of(&two).member()];
    let saved = json!([{"Config": config.member(), "RepoTags": null, "Layers": names}]);
    layout.members.push(member("manifest.json", saved.to_string()));
    // What else is there is for others.
    let other = layout.image(&[(two.clone(), two.clone(), "")]);
    let unpacked = place.unpack(&layout.finish(&[image, other])).unwrap();
    assert_eq!(listing(&unpacked.root), ["a=2"]);
    assert_eq!(unpacked.digest, config);
}

#[test]
fn an_archive_that_is_compressed_as_a_whole_is_read_too() {
    let archive = saved(&layers([vec![file("a", "1")]]));
    for compressed in [gzip(&archive), zstd(&archive)] {
        let place = Fixture::new();
        let unpacked = place.unpack(&compressed).unwrap();
        assert_eq!(listing(&unpacked.root), ["a=1"]);
        // What it was decompressed into has no name.
        assert_eq!(place.kept().len(), 2, "{:?}", place.kept());
    }
}

#[test]
fn a_layer_that_is_a_link_to_another_is_that_one() {
    let place = Fixture::new();
    let layers = layers([vec![file("a", "1")], vec![file("b", "1")], vec![file("a", "1")]]);
    let mut members = saved_with(&layers, &configuration(&layers));
    // As older versions of `docker save` have it.
    for member in &mut members {
        if member.header.path_bytes().as_ref() == b"2/layer.tar" {
            *member = symlink("2/layer.tar", "../0/layer.tar");
        }
    }
    let unpacked = place.unpack(&tar(members)).unwrap();
    assert_eq!(listing(&unpacked.root), ["a=1", "b=1"]);
}

#[test]
fn names_are_any_bytes_of_any_length() {
    let place = Fixture::new();
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    let longer = format!("{}/{}", "e".repeat(200), "f".repeat(255));
    let mut ustar = file("f", "ustar");
    ustar.header = ::tar::Header::new_ustar();
    ustar.header.set_path(format!("{}/u", "p".repeat(120))).unwrap();
    ustar.header.set_entry_type(::tar::EntryType::Regular);
    ustar.header.set_size(5);
    ustar.header.set_mode(0o644);
    let layer = tar([
        item(b'0', b"latin-\xe9", b"", b"1"),
        item(b'2', b"to-latin", b"latin-\xe9", b""),
        file("cut", "gnu").long(b'L', long.as_bytes()),
        symlink("link", "cut").long(b'K', longer.as_bytes()),
        file("cut", "pax").pax(&[("path", longer.as_bytes()), ("mtime", b"12.5"), ("x", b"")]),
        file("cut", "line").pax(&[("path", b"two\nlines=1")]),
        // A global header, which the unpacker ignores.
        item(b'g', b"g", b"", b"19 path=everything\n"),
        ustar,
    ]);
    let root = place.unpack(&saved(&[layer])).unwrap().root;
    let read = |path: &[u8]| fs::read_to_string(root.join(std::ffi::OsStr::from_bytes(path)));
    assert_eq!(read(b"latin-\xe9").unwrap(), "1");
    assert_eq!(read(b"to-latin").unwrap(), "1");
    assert_eq!(read(long.as_bytes()).unwrap(), "gnu");
    assert_eq!(read(longer.as_bytes()).unwrap(), "pax");
    assert_eq!(read(b"link").unwrap(), "pax");
    assert_eq!(read(b"two\nlines=1").unwrap(), "line");
    assert_eq!(read(format!("{}/u", "p".repeat(120)).as_bytes()).unwrap(), "ustar");
    let metadata = fs::metadata(root.join(&longer)).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (12, 500_000_000));
}

#[test]
fn sparse_files_have_their_holes_in_every_notation() {
    let content = "abcdefghi";
    // abc at 0, def at 1000, ghi at 4000, and 5000 bytes in all.
    let mut expected = vec![0; 5000];
    for (offset, text) in [(0, "abc"), (1000, "def"), (4000, "ghi")] {
        expected[offset..offset + 3].copy_from_slice(text.as_bytes());
    }
    let mut gnu = item(b'S', b"sparse", b"", content.as_bytes());
    {
        let header = gnu.header.as_gnu_mut().unwrap();
        header.set_real_size(5000);
        for (extent, (offset, length)) in
            header.sparse.iter_mut().zip([(0, 3), (1000, 3), (4000, 3), (5000, 0)])
        {
            extent.set_offset(offset);
            extent.set_length(length);
        }
    }
    let mut extended = item(b'S', b"sparse", b"", content.as_bytes());
    {
        let header = extended.header.as_gnu_mut().unwrap();
        header.set_real_size(5000);
        header.set_is_extended(true);
        for (extent, offset) in header.sparse.iter_mut().zip(0..4) {
            extent.set_offset(offset.min(3));
            extent.set_length(u64::from(offset < 3));
        }
        let mut more = ::tar::GnuExtSparseHeader::new();
        for (extent, offset) in more.sparse_mut().iter_mut().zip([1000, 4000]) {
            extent.set_offset(offset);
            extent.set_length(3);
        }
        // It stands between the header and the content, and belongs to neither.
        extended.content = [more.as_bytes(), content.as_bytes()].concat();
        extended.header.set_size(content.len() as u64);
    }
    let file = |content: &[u8]| item(b'0', b"GNUSparseFile.1/sparse", b"", content);
    let old = file(content.as_bytes()).pax(&[
        ("GNU.sparse.size", b"5000"),
        ("GNU.sparse.numblocks", b"3"),
        ("GNU.sparse.offset", b"0"),
        ("GNU.sparse.numbytes", b"3"),
        ("GNU.sparse.offset", b"1000"),
        ("GNU.sparse.numbytes", b"3"),
        ("GNU.sparse.offset", b"4000"),
        ("GNU.sparse.numbytes", b"3"),
        ("path", b"sparse"),
    ]);
    let listed = file(content.as_bytes()).pax(&[
        ("GNU.sparse.major", b"0"),
        ("GNU.sparse.minor", b"1"),
        ("GNU.sparse.name", b"sparse"),
        ("GNU.sparse.size", b"5000"),
        ("GNU.sparse.map", b"0,3,1000,3,4000,3"),
    ]);
    let mut map = b"3\n0\n3\n1000\n3\n4000\n3\n".to_vec();
    map.resize(512, 0);
    let newest = file(&[&map, content.as_bytes()].concat()).pax(&[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"sparse"),
        ("GNU.sparse.realsize", b"5000"),
    ]);
    for (notation, sparse) in [gnu, extended, old, listed, newest].into_iter().enumerate() {
        let place = Fixture::new();
        let layer = tar([sparse, make::file("after", "1")]);
        let root = place.unpack(&saved(&[layer])).unwrap().root;
        assert_eq!(fs::read(root.join("sparse")).unwrap(), expected, "{notation}");
        assert_eq!(fs::read(root.join("after")).unwrap(), b"1", "{notation}");
    }
}

#[test]
fn every_format_of_gnu_tar_is_read() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/layers");
    let mut sparse = vec![0; 100_000];
    for offset in [0, 20_000, 50_000] {
        sparse[offset..offset + 600].fill(b'x');
    }
    let mut many = vec![0; 3_000_000];
    (1..=30).for_each(|index| many[index * 90_000] = b'y');
    for name in ["sparse-gnu", "sparse-0.0", "sparse-0.1", "sparse-1.0"] {
        let place = Fixture::new();
        let layer = fs::read(corpus.join(name)).unwrap();
        let root = place.unpack(&saved(&[layer])).unwrap().root;
        assert!(fs::read(root.join("sparse")).unwrap() == sparse, "{name}");
        assert!(fs::metadata(root.join("sparse")).unwrap().blocks() < 100, "{name}: it has holes");
    }
    for name in ["sparse-gnu-extended-gzip", "sparse-1.0-many-zstd"] {
        let place = Fixture::new();
        let packed = fs::read(corpus.join(name)).unwrap();
        let mut layer = Vec::new();
        Plain::new(packed.as_slice()).unwrap().read_to_end(&mut layer).unwrap();
        let mut layout = Layout::default();
        let image = layout.image(&[(layer, packed, "")]);
        let root = place.unpack(&layout.finish(&[image])).unwrap().root;
        assert!(fs::read(root.join("many")).unwrap() == many, "{name}");
    }
    for name in ["v7", "ustar", "oldgnu", "gnu", "pax"] {
        let place = Fixture::new();
        let layer = fs::read(corpus.join(name)).unwrap();
        let root = place.unpack(&saved(&[layer])).unwrap().root;
        let mut lines = listing(&root);
        // Too long for two of the formats.
        lines.retain(|line| !line.starts_with(&"d".repeat(120)));
        let expected =
            ["d/", "d/e/", "d/f=1\n", "d/hard=1\n", "d/link->/etc/passwd", "latin-\u{fffd}=abc"];
        assert_eq!(lines, expected, "{name}");
        let long = root.join("d".repeat(120)).join("x");
        assert_eq!(long.exists(), !matches!(name, "v7" | "ustar"), "{name}");
    }
}

#[test]
fn the_limits_are_those_that_the_documents_say() {
    let text = include_str!("../../../../docs/src/reference/image-archives.md");
    let Bounds { bytes, entries, paths, layers, document, .. } = Bounds::DEFAULT;
    for (what, limit) in [
        ("bytes, unpacked", bytes),
        ("files and directories", entries),
        ("bytes of their paths", paths),
        ("bytes of one path", MAX_PATH as u64),
        ("directories in one another", MAX_DEPTH as u64),
        ("layers", layers as u64),
        ("bytes of a manifest", document),
    ] {
        let line = text.lines().find(|line| line.starts_with(&format!("| {what}"))).unwrap();
        assert!(line.ends_with(&format!("| {limit} |")), "{line}: {limit}");
    }
}

#[test]
fn an_image_without_a_word_about_its_start_or_its_platform_is_one() {
    let place = Fixture::new();
    let layers = layers([vec![file("a", "1")]]);
    let diff = Digest::of(&layers[0]).to_string();
    for config in [json!(null), json!({}), json!({"Env": null, "WorkingDir": ""})] {
        let configuration = json!({"config": config, "rootfs": {"diff_ids": [diff]}});
        let unpacked = place.unpack(&tar(saved_with(&layers, &configuration))).unwrap();
        assert_eq!((unpacked.env.len(), unpacked.workdir), (0, None));
    }
}

#[test]
fn an_archive_is_a_file() {
    let place = Fixture::new();
    let dir = place.dir.path();
    let stop = Stop::default();
    let budget = Budget::new(Bounds::DEFAULT, stop.clone());
    let try_it = |path: &Path| {
        message(&super::unpack(path, &place.cache, &budget, &stop, &mut drop).unwrap_err())
    };
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("fifo"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    link("loop", dir.join("loop")).unwrap();
    for (name, expected) in [
        ("none", "No such file"),
        ("loop", "symbolic links"),
        ("", "is not a regular file"),
        ("fifo", "is not a regular file"),
    ] {
        let error = try_it(&dir.join(name));
        assert!(error.contains(expected), "{name}: {error}");
    }
}
