//! Archives that mean harm, or are broken: each is refused for its own reason, and nothing is left
//! of it, in the cache or anywhere else.

use std::fs;
use std::path::Path;

use sandbox_api::{ByteSize, DiskReserve};
use serde_json::{Value, json};

use super::make::{
    CONFIG, INDEX, Item, LAYER, Layout, MANIFEST, configuration, file, folder, gzip, hard_link,
    item, layout, member, saved, saved_with, symlink, tar, zstd,
};
use super::{Fixture, layers, listing, message};
use crate::RootfsError;
use crate::budget::Bounds;
use crate::digest::Digest;

/// Unpacks it next to a file that must not change, and returns the error.
#[track_caller]
fn refused_within(what: &str, archive: &[u8], bounds: Bounds) -> RootfsError {
    let place = Fixture::new();
    let outside = place.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "mine").unwrap();
    let error = match place.unpack_within(archive, bounds) {
        Ok(unpacked) => panic!("{what}: {:?}", listing(&unpacked.root)),
        Err(error) => error,
    };
    assert_eq!(place.kept(), [""; 0], "{what}");
    assert_eq!(listing(&outside), ["victim=mine"], "{what}");
    assert_eq!(super::names(place.dir.path()), ["image.tar", "outside", "roots"], "{what}");
    error
}

#[track_caller]
fn refused(what: &str, archive: &[u8], expected: &str) {
    let text = message(&refused_within(what, archive, Bounds::DEFAULT));
    assert!(text.contains(expected), "{what}: {text}");
}

#[test]
fn no_entry_leads_out_of_the_tree() {
    let beyond = "its path contains a symbolic link";
    let up = "'..' is not allowed in a path";
    let missing = "which is not a file of the image";
    // The tree is at roots/KEY.part, and nothing may appear next to it.
    let cases: Vec<(&str, Vec<Item>, &str)> = vec![
        ("a path upwards", vec![file("../outside/victim", "x")], up),
        ("a path upwards, later", vec![file("a/../../../outside/victim", "x")], up),
        ("a path upwards that would stay", vec![file("a/../b", "x")], up),
        ("a folder upwards", vec![folder("../outside/new")], up),
        (
            "a link upwards, then through it",
            vec![symlink("l", "../../outside"), file("l/victim", "x")],
            beyond,
        ),
        (
            "an absolute link, then through it",
            vec![symlink("l", "/"), file("l/etc/x", "x")],
            beyond,
        ),
        ("through a link within", vec![folder("d"), symlink("l", "d"), file("l/x", "x")], beyond),
        ("through a link to oneself", vec![symlink("l", "l"), file("l/x", "x")], beyond),
        (
            "through a link that was a folder",
            vec![
                folder("d"),
                file("d/a", ""),
                symlink("d", "../../outside"),
                file("d/victim", "x"),
            ],
            beyond,
        ),
        ("a folder beyond a link", vec![symlink("l", "../../outside"), folder("l/new")], beyond),
        (
            "a hidden file beyond a link",
            vec![symlink("l", "../../outside"), file("l/.wh.victim", "")],
            beyond,
        ),
        (
            "a link that is opaque",
            vec![symlink("l", "../../outside"), file("l/.wh..wh..opq", "")],
            beyond,
        ),
        ("a hard link upwards", vec![hard_link("h", "../../outside/victim")], up),
        ("a hard link to what is not there", vec![hard_link("h", "/etc/passwd")], missing),
        (
            "a hard link to what is in no folder",
            vec![file("f", ""), hard_link("h", "f/x")],
            missing,
        ),
        (
            "a hard link beyond a link",
            vec![symlink("l", "../../outside"), hard_link("h", "l/victim")],
            beyond,
        ),
        (
            "a hard link made beyond a link",
            vec![file("f", ""), symlink("l", "../../outside"), hard_link("l/h", "f")],
            beyond,
        ),
        ("a hard link to a folder", vec![folder("d"), hard_link("h", "d")], missing),
        ("a hard link to itself", vec![file("h", ""), hard_link("h", "h")], missing),
        ("a hard link to nothing", vec![hard_link("h", "")], missing),
        ("a hard link to what it replaces", vec![file("d/f", ""), hard_link("d", "d/f")], missing),
        ("a symbolic link to nothing", vec![symlink("l", "")], "a link needs a target"),
        ("a file in a file", vec![file("f", ""), file("f/x", "")], "its parent is not a directory"),
        (
            "a file as the root",
            vec![file("./", "x").mode(0o644), file("/", "x")],
            "only a directory",
        ),
        ("a link as the root", vec![symlink(".", "../outside")], "only a directory"),
        (
            "a whiteout of the directory above",
            vec![file("d/.wh...", "")],
            "a whiteout needs the name of an entry",
        ),
        (
            "a whiteout of the directory itself",
            vec![file("d/.wh..", "")],
            "a whiteout needs the name of an entry",
        ),
        (
            "a whiteout without a name",
            vec![file("d/.wh.", "")],
            "a whiteout needs the name of an entry",
        ),
        (
            "a whiteout as a directory",
            vec![file("d/.wh.x/y", "")],
            "a whiteout needs the name of an entry",
        ),
        (
            "a name with a NUL",
            vec![file("f", "").pax(&[("path", b"a\0b")])],
            "it contains a NUL byte",
        ),
        (
            "a target with a NUL",
            vec![symlink("l", "").pax(&[("linkpath", b"a\0b")])],
            "contains a NUL",
        ),
        (
            "a name that is too long",
            vec![file(&"n".repeat(100), "").long(b'L', &[b'n'; 256])],
            "File name too long",
        ),
        (
            "a path that is too long",
            vec![file("f", "").long(b'L', &b"dddd/".repeat(1000))],
            "too long or too deep",
        ),
        (
            "a path that is too deep",
            vec![file("f", "").long(b'L', &b"d/".repeat(257))],
            "too long or too deep",
        ),
    ];
    for (what, items, expected) in cases {
        refused(what, &saved(&[tar(items.clone())]), expected);
        // The same, each in a layer of its own.
        let layers: Vec<_> = items.into_iter().map(|item| tar([item])).collect();
        refused(what, &saved(&layers), expected);
        refused(what, &layout_of(&layers), expected);
    }
}

fn layout_of(layers: &[Vec<u8>]) -> Vec<u8> {
    let mut layout = Layout::default();
    let packed: Vec<_> = layers.iter().map(|layer| (layer.clone(), gzip(layer), "+gzip")).collect();
    let image = layout.image(&packed);
    layout.finish(&[image])
}

#[test]
fn an_absolute_path_is_one_of_the_image() {
    let place = Fixture::new();
    let layer = tar([file("/etc/passwd", "theirs"), hard_link("//h", "/etc/passwd")]);
    let root = place.unpack(&saved(&[layer])).unwrap().root;
    assert_eq!(listing(&root), ["etc/", "etc/passwd=theirs", "h=theirs"]);
}

#[test]
fn the_hosts_files_are_not_opened_through_a_link_that_is_replaced() {
    let place = Fixture::new();
    let victim = place.dir.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    let target = victim.to_str().unwrap();
    let layers = layers([
        vec![symlink("l", target), symlink("m", target), symlink("d", "../..")],
        vec![file("l", "x"), hard_link("m", "l"), folder("d"), file("d/victim", "x")],
    ]);
    let root = place.unpack(&saved(&layers)).unwrap().root;
    assert_eq!(listing(&root), ["d/", "d/victim=x", "l=x", "m=x"]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
}

#[test]
fn disk_of_the_cache_is_never_filled() {
    let place = Fixture::new();
    let archive = saved(&[tar([file("a", "1")])]);
    let reserve = DiskReserve::Bytes(ByteSize::b(1 << 60));
    let bounds = Bounds { reserve, ..Bounds::DEFAULT };
    let error = message(&place.unpack_within(&archive, bounds).unwrap_err());
    assert!(error.contains("left (limits.disk_reserve)"), "{error}");
    assert!(place.kept().iter().all(|name| name.ends_with(".lock")), "{:?}", place.kept());
    place.unpack(&archive).unwrap();
}

#[test]
fn every_limit_is_named_in_its_error() {
    let small = Bounds {
        bytes: 100_000,
        entries: 20,
        paths: 500,
        layers: 3,
        document: 1000,
        ..Bounds::DEFAULT
    };
    let plain = |items: Vec<Item>| saved(&[tar(items)]);
    let mut hole = item(b'S', b"hole", b"", b"");
    hole.header.as_gnu_mut().unwrap().set_real_size(1 << 40);
    let zeros = vec![0; 10 << 20];
    let mut bomb = tar([]);
    bomb.extend(&zeros);
    let mut packed = Layout::default();
    let gzip_bomb = packed.image(&[(bomb.clone(), gzip(&bomb), "+gzip")]);
    let mut packed_too = Layout::default();
    let zstd_bomb = packed_too.image(&[(bomb.clone(), zstd(&bomb), "+zstd")]);
    let many: Vec<_> = (0..30).map(|index| file(&format!("{index}"), "")).collect();
    let long: Vec<_> = (0..6).map(|index| file(&format!("{index:0>99}"), "")).collect();
    // Each makes many directories on its way.
    let deep: Vec<_> =
        (0..2).map(|index| file(&format!("{index}/{}f", "d/".repeat(11)), "")).collect();
    let mut text = configuration(&[tar([])]);
    text["comment"] = "x".repeat(1000).into();
    for (what, archive, expected) in [
        ("a huge file", plain(vec![member("f", &zeros)]), "100000 bytes, unpacked"),
        ("a huge hole", plain(vec![hole]), "100000 bytes, unpacked"),
        ("what comes after the end", saved(&[bomb.clone()]), "100000 bytes, unpacked"),
        ("a gzip bomb", packed.finish(&[gzip_bomb]), "100000 bytes, unpacked"),
        ("a zstd bomb", packed_too.finish(&[zstd_bomb]), "100000 bytes, unpacked"),
        ("an archive that is one", gzip(&bomb), "100000 bytes, unpacked"),
        (
            "two layers together",
            saved(&[tar([member("a", &zeros[..60_000])]), tar([member("b", &zeros[..60_000])])]),
            "100000 bytes, unpacked",
        ),
        ("many files", plain(many.clone()), "20 files and directories"),
        ("many directories that nothing names", plain(deep), "20 files and directories"),
        ("many members", tar(many), "20 files and directories"),
        ("long paths", plain(long), "500 bytes of paths"),
        ("many layers", saved(&vec![tar([]); 4]), "3 layers"),
        ("a long configuration", tar(saved_with(&[tar([])], &text)), "1000 bytes in a manifest"),
    ] {
        let error = refused_within(what, &archive, small);
        let text = message(&error);
        assert!(text.contains(&format!("it has more than {expected}")), "{what}: {text}");
    }
    // A file that says more than there is is cut off, however much it says.
    refused(
        "more than there is",
        &saved(&[tar([file("f", "x").says_size(1 << 50)])]),
        "it ends in",
    );
    let endless = item(b'L', b"././@LongLink", b"", b"").says_size(1 << 40);
    refused("an endless name", &saved(&[tar([endless])]), "longer than 1 MiB");
    let endless = item(b'x', b"x", b"", b"").says_size(1 << 63);
    refused("endless headers", &saved(&[tar([endless])]), "longer than 1 MiB");
}

#[test]
fn an_invalid_tar_is_refused() {
    let layer = |bytes: Vec<u8>| saved(&[bytes]);
    let good = file("f", "content").bytes();
    let mut flipped = good.clone();
    flipped[5] ^= 1;
    let with = |item: Item| tar([item]);
    let sparse = |records: &[(&str, &[u8])]| with(file("f", "123").pax(records));
    let size = |field: &[u8]| {
        let mut item = file("f", "");
        item.header.as_gnu_mut().unwrap().size[..field.len()].copy_from_slice(field);
        with(item)
    };
    for (what, bytes, expected) in [
        ("a wrong checksum", flipped, "a wrong checksum"),
        ("half a header", good[..300].to_vec(), "in the middle"),
        ("half a file", good[..515].to_vec(), "in the middle"),
        ("an invalid end", [vec![0; 512], good.clone()].concat(), "a wrong checksum"),
        ("an unknown type", with(item(b'M', b"f", b"", b"")), "the unknown type 0x4d"),
        ("an invalid number", size(b"9"), "an invalid number"),
        ("a negative size", size(&[0xff; 12]), "an invalid number"),
        ("a size beyond all bounds", size(&[0x80, 0, 0, 0, 0xff, 0xff]), "an invalid number"),
        ("an invalid user", with(file("f", "").owner(u64::from(u32::MAX), 0)), "an owner"),
        ("an invalid group", with(file("f", "").pax(&[("gid", b"9999999999")])), "an owner"),
        ("invalid headers", with(item(b'x', b"x", b"", b"99 path=x\n")), "cannot be read"),
        ("headers without an end", with(item(b'x', b"x", b"", b"9 path=xx")), "cannot be read"),
        ("an invalid time", with(file("f", "").pax(&[("mtime", b"now")])), "cannot be read"),
        (
            "a map of text",
            sparse(&[("GNU.sparse.map", b"a,b"), ("GNU.sparse.size", b"9")]),
            "an invalid number",
        ),
        (
            "a map that is odd",
            sparse(&[("GNU.sparse.map", b"1"), ("GNU.sparse.size", b"9")]),
            "map",
        ),
        (
            "a map beyond the end",
            sparse(&[("GNU.sparse.map", b"9,3"), ("GNU.sparse.size", b"9")]),
            "map",
        ),
        (
            "a map backwards",
            sparse(&[("GNU.sparse.map", b"4,2,0,1"), ("GNU.sparse.size", b"9")]),
            "map",
        ),
        ("a map of less", sparse(&[("GNU.sparse.map", b"0,2"), ("GNU.sparse.size", b"9")]), "map"),
        (
            "a map without end",
            sparse(&[("GNU.sparse.map", b"0,18446744073709551615,1,1"), ("GNU.sparse.size", b"9")]),
            "map",
        ),
        (
            "a map of the future",
            sparse(&[("GNU.sparse.major", b"2"), ("GNU.sparse.minor", b"0")]),
            "map",
        ),
        (
            "a map that is not there",
            sparse(&[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0")]),
            "map",
        ),
        ("no size", sparse(&[("GNU.sparse.map", b"0,3")]), "map"),
    ] {
        refused(what, &layer(bytes), expected);
    }
    let tar_of_text = vec![b'x'; 4096];
    refused("text instead of a tar", &tar_of_text, "a wrong checksum");
    refused("nothing", b"", "not an image archive");
    refused("a container's files", &tar([file("bin/sh", "")]), "not an image archive");
}

#[test]
fn an_archive_that_ends_early_is_refused_wherever_that_is() {
    for archive in [
        saved(&layers([vec![folder("d"), file("d/f", &"x".repeat(700))], vec![file("g", "")]])),
        layout_of(&layers([vec![file("f", &"x".repeat(700))]])),
        gzip(&saved(&layers([vec![file("f", "1")]]))),
        zstd(&saved(&layers([vec![file("f", "1")]]))),
    ] {
        // What comes after the last member is the end of a tar, which may be missing.
        let is_tar = archive.ends_with(&[0; 1024]);
        let last = if is_tar { archive.len() - 1024 } else { archive.len() };
        for end in (0..last).step_by(173).chain([last - 1]) {
            let error = refused_within(&format!("{end}"), &archive[..end], Bounds::DEFAULT);
            assert!(
                matches!(
                    error,
                    RootfsError::Tar(_)
                        | RootfsError::NoImage
                        | RootfsError::Missing { .. }
                        | RootfsError::Read(_)
                ),
                "{end}: {error}"
            );
        }
    }
}

/// An archive of `docker save` in which something is changed.
fn tampered(change: impl Fn(&mut Vec<Item>)) -> Vec<u8> {
    let layers = layers([vec![file("a", "1")], vec![file("b", "2")]]);
    let mut members = saved_with(&layers, &configuration(&layers));
    change(&mut members);
    tar(members)
}

fn replace(members: &mut [Item], name: &str, content: &[u8]) {
    let found = members.iter_mut().find(|item| item.header.path_bytes().ends_with(name.as_bytes()));
    let item = found.unwrap();
    item.header.set_size(content.len() as u64);
    item.content = content.to_owned();
}

#[test]
fn archives_that_docker_save_never_writes_are_refused() {
    let configured = |change: &dyn Fn(&mut Value)| {
        let layers = layers([vec![file("a", "1")], vec![file("b", "2")]]);
        let mut configuration = configuration(&layers);
        change(&mut configuration);
        tar(saved_with(&layers, &configuration))
    };
    let manifest =
        |text: &str| tampered(|members| replace(members, "manifest.json", text.as_bytes()));
    let other = tar([file("a", "2")]);
    let digest = Digest::of(&tar([file("a", "1")])).to_string();
    for (what, archive, expected) in [
        (
            "another layer",
            tampered(|members| replace(members, "0/layer.tar", &other)),
            &*format!(
                "layer 1 of 2: the content of 0/layer.tar has the digest {} and should have {digest}",
                Digest::of(&other)
            ),
        ),
        (
            "bytes after the layer's end",
            tampered(|members| {
                let layer = [tar([file("b", "2")]), vec![0; 512]].concat();
                replace(members, "1/layer.tar", &layer);
            }),
            "layer 2 of 2: the content of 1/layer.tar has the digest",
        ),
        (
            "another configuration",
            tampered(|members| {
                let layers = layers([vec![file("a", "1")], vec![file("b", "2")]]);
                let name = members[0].header.path().unwrap().display().to_string();
                let mut text = configuration(&layers);
                text["config"]["Env"] = json!(["LD_PRELOAD=x"]);
                replace(members, &name, text.to_string().as_bytes());
            }),
            ".json has the digest sha256:",
        ),
        (
            "a layer that is missing",
            tampered(|members| drop(members.remove(2))),
            "it lacks 0/layer.tar",
        ),
        (
            "a layer that is a link in a circle",
            tampered(|members| members[2] = symlink("0/layer.tar", "../0/layer.tar")),
            "it lacks 0/layer.tar",
        ),
        (
            "a layer that is a link to the host",
            tampered(|members| members[2] = symlink("0/layer.tar", "/etc/passwd")),
            "it lacks 0/layer.tar",
        ),
        (
            "a layer that is a link upwards",
            tampered(|members| members[2] = symlink("0/layer.tar", "../../../outside/victim")),
            "it lacks 0/layer.tar",
        ),
        ("no images", manifest("[]"), "not an image archive"),
        (
            "several images",
            manifest(r#"[{"Config":"a","Layers":[]},{"Config":"b","Layers":[]}]"#),
            "it has 2 images",
        ),
        ("no JSON", manifest("[{"), "manifest.json cannot be used: EOF"),
        ("deep JSON", manifest(&"[".repeat(100_000)), "manifest.json cannot be used: "),
        (
            "a file of the host's",
            manifest(r#"[{"Config":"/etc/passwd","Layers":[]}]"#),
            "it lacks /etc/passwd",
        ),
        (
            "a file upwards",
            manifest(r#"[{"Config":"../outside/victim","Layers":[]}]"#),
            "it lacks ../outside/victim",
        ),
        (
            "what a terminal acts on",
            manifest(r#"[{"Config":"\u001b[2J","Layers":[]}]"#),
            "it lacks \\u{1b}[2J",
        ),
        (
            "fewer digests",
            configured(&|text| drop(text["rootfs"]["diff_ids"].as_array_mut().unwrap().pop())),
            "it names 1 layers, and the image has 2",
        ),
        (
            "no digest",
            configured(&|text| text["rootfs"]["diff_ids"][0] = json!("sha256:0")),
            "'sha256:0' is not a SHA-256 digest",
        ),
        (
            "a weak digest",
            configured(&|text| text["rootfs"]["diff_ids"][0] = json!("md5:00")),
            "'md5:00' is not a SHA-256 digest",
        ),
        (
            "another machine's",
            configured(&|text| text["architecture"] = json!("pdp11")),
            "its image is for linux/pdp11",
        ),
        (
            "another system's",
            configured(&|text| text["os"] = json!("windows")),
            "its image is for windows/",
        ),
        (
            "a NUL in the environment",
            configured(&|text| text["config"]["Env"] = json!(["A=\0"])),
            "there is a NUL",
        ),
        ("no layers", tar(saved_with(&[], &configuration(&[]))), "the image has no layers"),
    ] {
        refused(what, &archive, expected);
    }
}

#[test]
fn oci_layout_must_match_its_digests_and_sizes() {
    let layer = tar([file("a", "1")]);
    let packed = gzip(&layer);
    // An image in which each descriptor can be changed.
    let image = |change: &dyn Fn(&mut Layout, &mut Value, &mut Value)| {
        let mut layout = Layout::default();
        let mut config =
            layout.blob(CONFIG, configuration(std::slice::from_ref(&layer)).to_string());
        let mut content = layout.blob(&format!("{LAYER}+gzip"), &packed);
        change(&mut layout, &mut config, &mut content);
        let manifest = layout.manifest(&config, &json!([content]));
        layout.finish(&[manifest])
    };
    let index = |change: &dyn Fn(&mut Layout, &mut Value) -> Vec<Value>| {
        let mut layout = Layout::default();
        let mut manifest = layout.image(&[(layer.clone(), packed.clone(), "+gzip")]);
        let manifests = change(&mut layout, &mut manifest);
        layout.finish(&manifests)
    };
    let other = gzip(&tar([file("a", "2")]));
    let wrong = Digest::of(b"another").to_string();
    let mut nested = Layout::default();
    let mut deep = nested.image(&[(layer.clone(), packed.clone(), "+gzip")]);
    for _ in 0..6 {
        deep = nested.index(&[deep]);
    }
    for (what, archive, expected) in [
        (
            "a layer that is another",
            image(&|layout, _, content| {
                let name = Digest::of(&packed).member();
                replace(&mut layout.members, &name, &other);
                content["size"] = other.len().into();
            }),
            "has the digest sha256:",
        ),
        (
            "a layer that another layer's digest fits",
            image(&|layout, _, content| {
                *content = layout.blob(&format!("{LAYER}+gzip"), &other);
            }),
            "layer 1 of 1: the content of blobs/sha256/",
        ),
        (
            "a layer with something after it",
            image(&|layout, _, content| {
                *content = layout.blob(LAYER, [layer.as_slice(), b"more"].concat());
            }),
            "the content of blobs/sha256/",
        ),
        (
            "a layer that is broken",
            image(&|layout, _, content| {
                let broken = [&packed[..packed.len() - 8], b"12345678".as_slice()].concat();
                *content = layout.blob(&format!("{LAYER}+gzip"), broken);
            }),
            "cannot read the image archive",
        ),
        (
            "a layer that is cut off",
            image(&|layout, _, content| {
                *content = layout.blob(&format!("{LAYER}+gzip"), &packed[..packed.len() / 2]);
            }),
            "it ends in the middle",
        ),
        (
            "zstd that is broken",
            image(&|layout, _, content| {
                *content = layout
                    .blob(&format!("{LAYER}+zstd"), b"\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff\xff");
            }),
            "cannot read the image archive",
        ),
        (
            "zstd with a huge window",
            image(&|layout, _, content| {
                *content =
                    layout.blob(&format!("{LAYER}+zstd"), b"\x28\xb5\x2f\xfd\x00\xf8\x01\0\0");
            }),
            "window_size is too big",
        ),
        (
            "a layer that says another size",
            image(&|_, _, content| content["size"] = json!(5)),
            "bytes and should have 5",
        ),
        ("an invalid size", image(&|_, _, content| content["size"] = json!(-1)), "invalid value"),
        (
            "a configuration that says another size",
            image(&|_, config, _| config["size"] = json!(5)),
            "bytes and should have 5",
        ),
        (
            "a configuration that is not there",
            image(&|_, config, _| config["digest"] = json!(wrong)),
            "it lacks blobs/sha256/",
        ),
        (
            "a digest that is a path",
            image(&|_, config, _| config["digest"] = json!("sha256:../../outside/victim")),
            "is not a SHA-256 digest",
        ),
        (
            "a digest of an unknown algorithm",
            image(&|_, _, content| {
                content["digest"] = json!(format!("sha512:{}", "0".repeat(128)))
            }),
            "is not a SHA-256 digest",
        ),
        (
            "a digest in capitals",
            image(&|_, _, content| {
                let capitals = Digest::of(&packed).hex().to_uppercase();
                content["digest"] = json!(format!("sha256:{capitals}"));
            }),
            "is not a SHA-256 digest",
        ),
        (
            "a chart",
            image(&|_, config, _| {
                config["mediaType"] = json!("application/vnd.cncf.helm.config.v1+json")
            }),
            "is not an image",
        ),
        (
            "an encrypted layer",
            image(&|_, _, content| content["mediaType"] = json!(format!("{LAYER}+gzip+encrypted"))),
            "is not a layer that can be unpacked",
        ),
        (
            "a manifest that is another",
            index(&|layout, manifest| {
                let name =
                    layout.members.last().unwrap().header.path().unwrap().display().to_string();
                let length = usize::try_from(manifest["size"].as_u64().unwrap()).unwrap();
                replace(&mut layout.members, &name, &vec![b' '; length]);
                vec![manifest.clone()]
            }),
            "has the digest sha256:",
        ),
        (
            "a manifest that is an index too",
            index(&|layout, manifest| {
                let both =
                    json!({"config": manifest, "layers": [], "manifests": [manifest]}).to_string();
                vec![layout.blob(MANIFEST, both)]
            }),
            "it is a manifest and an index at once",
        ),
        (
            "an index that is a manifest too",
            index(&|layout, manifest| {
                let both =
                    json!({"config": manifest, "layers": [], "manifests": [manifest]}).to_string();
                vec![layout.blob(INDEX, both)]
            }),
            "it is an index and a manifest at once",
        ),
        (
            "an index that says that it is in itself",
            index(&|layout, _| {
                // Nothing can hold its own digest; this only says so.
                let mut around = layout.index(&[]);
                let text =
                    json!({"manifests": [{"mediaType": INDEX, "digest": wrong, "size": 300}]});
                let text = format!("{:<300}", text.to_string());
                layout
                    .members
                    .push(member(&format!("blobs/sha256/{}", &wrong["sha256:".len()..]), &text));
                around["digest"] = json!(wrong);
                around["size"] = json!(300);
                vec![around]
            }),
            "has the digest sha256:",
        ),
        (
            "an index too deep in others",
            nested.finish(&[deep]),
            "it is an index in too many others",
        ),
        (
            "two images",
            index(&|layout, manifest| {
                let other = tar([file("a", "2")]);
                vec![manifest.clone(), layout.image(&[(other.clone(), other, "")])]
            }),
            "it has 2 images",
        ),
        ("no image", index(&|_, _| Vec::new()), "not an image archive"),
        (
            "no media type",
            index(&|_, manifest| {
                manifest.as_object_mut().unwrap().remove("mediaType");
                vec![manifest.clone()]
            }),
            "not an image archive",
        ),
    ] {
        refused(what, &archive, expected);
    }
}

#[test]
fn a_hint_says_what_to_do() {
    let hint = |archive: &[u8]| refused_within("", archive, Bounds::DEFAULT).hint().unwrap();
    assert!(hint(&tar([])).starts_with("`docker save"));
    let damaged = saved(&[file("f", "x").bytes()[..600].to_vec()]);
    assert!(hint(&damaged).contains("save it again"));
    assert!(hint(&layout([])[..5000]).contains("save it again"));
    assert!(!Path::new("/outside").exists());
}
