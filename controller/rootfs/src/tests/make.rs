//! Archives as the tests want them, honest ones and others. They are written byte by byte, so that
//! they may say what no library would write.

use std::io::Write as _;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};

use crate::digest::Digest;
use crate::image::Platform;

pub const EPOCH: u64 = 1_700_000_000;

/// An entry of a tar.
#[derive(Debug, Clone)]
pub struct Item {
    pub header: ::tar::Header,
    pub before: Vec<u8>,
    pub content: Vec<u8>,
}

/// One of any type; where its path or target is too long for a header it is cut off.
pub fn item(kind: u8, path: &[u8], link: &[u8], content: &[u8]) -> Item {
    let mut header = ::tar::Header::new_gnu();
    let gnu = header.as_gnu_mut().unwrap();
    let cut = |field: &mut [u8; 100], text: &[u8]| {
        let length = text.len().min(100);
        field[..length].copy_from_slice(&text[..length]);
    };
    cut(&mut gnu.name, path);
    cut(&mut gnu.linkname, link);
    gnu.typeflag = [kind];
    header.set_mode(if kind == b'5' { 0o755 } else { 0o644 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(EPOCH);
    header.set_size(content.len() as u64);
    Item { header, before: Vec::new(), content: content.to_owned() }
}

pub fn file(path: &str, content: &str) -> Item {
    item(b'0', path.as_bytes(), b"", content.as_bytes())
}

pub fn folder(path: &str) -> Item {
    item(b'5', path.as_bytes(), b"", b"")
}

pub fn symlink(path: &str, target: &str) -> Item {
    item(b'2', path.as_bytes(), target.as_bytes(), b"")
}

pub fn hard_link(path: &str, target: &str) -> Item {
    item(b'1', path.as_bytes(), target.as_bytes(), b"")
}

impl Item {
    pub fn mode(mut self, mode: u32) -> Self {
        self.header.set_mode(mode);
        self
    }

    pub fn owner(mut self, uid: u64, gid: u64) -> Self {
        self.header.set_uid(uid);
        self.header.set_gid(gid);
        self
    }

    /// Sets the size in the header, independent of the content.
    pub fn says_size(mut self, size: u64) -> Self {
        self.header.set_size(size);
        self
    }

    /// A GNU long name or target before it.
    pub fn long(mut self, kind: u8, text: &[u8]) -> Self {
        self.before.extend(item(kind, b"././@LongLink", b"", &[text, b"\0"].concat()).bytes());
        self
    }

    /// Extended headers before it.
    pub fn pax(mut self, records: &[(&str, &[u8])]) -> Self {
        let mut text = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let length = (rest..).find(|length| rest + length.to_string().len() == *length);
            text.extend(format!("{} {key}=", length.unwrap()).bytes());
            text.extend(*value);
            text.push(b'\n');
        }
        self.before.extend(item(b'x', b"PaxHeaders/x", b"", &text).bytes());
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut header = self.header.clone();
        header.set_cksum();
        let mut bytes = [&self.before, header.as_bytes().as_slice(), &self.content].concat();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }
}

/// A tar.
pub fn tar(items: impl IntoIterator<Item = Item>) -> Vec<u8> {
    let mut tar: Vec<u8> = items.into_iter().flat_map(|item| item.bytes()).collect();
    tar.resize(tar.len() + 1024, 0);
    tar
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// An image's configuration, for this machine.
pub fn configuration(layers: &[Vec<u8>]) -> Value {
    let diffs: Vec<_> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
    let Platform { os, architecture } = Platform::here();
    json!({
        "os": os, "architecture": architecture,
        "config": {"Env": ["PATH=/bin", "A=b=c"], "WorkingDir": "/srv"},
        "rootfs": {"type": "layers", "diff_ids": diffs},
    })
}

pub fn member(path: &str, content: impl AsRef<[u8]>) -> Item {
    item(b'0', path.as_bytes(), b"", content.as_ref())
}

/// What `docker save` writes before version 25, with this configuration.
pub fn saved_with(layers: &[Vec<u8>], configuration: &Value) -> Vec<Item> {
    let configuration = configuration.to_string();
    let name = format!("{}.json", Digest::of(configuration.as_bytes()).hex());
    let names: Vec<_> = (0..layers.len()).map(|index| format!("{index:x}/layer.tar")).collect();
    let manifest = json!([{"Config": name, "RepoTags": ["a:b"], "Layers": names}]);
    let mut members = vec![member(&name, configuration)];
    for (name, layer) in names.iter().zip(layers) {
        members.push(folder(name.strip_suffix("layer.tar").unwrap()));
        members.push(member(name, layer));
    }
    members.push(member("manifest.json", manifest.to_string()));
    members
}

pub fn saved(layers: &[Vec<u8>]) -> Vec<u8> {
    tar(saved_with(layers, &configuration(layers)))
}

/// Blobs of an OCI layout.
#[derive(Debug, Default, Clone)]
pub struct Layout {
    pub members: Vec<Item>,
}

pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

impl Layout {
    /// A blob, and its descriptor.
    pub fn blob(&mut self, media_type: &str, content: impl AsRef<[u8]>) -> Value {
        let content = content.as_ref();
        let digest = Digest::of(content);
        self.members.push(member(&digest.member(), content));
        json!({"mediaType": media_type, "digest": digest.to_string(), "size": content.len()})
    }

    /// An image of layers, each with how it lies here; its manifest's descriptor.
    pub fn image(&mut self, layers: &[(Vec<u8>, Vec<u8>, &str)]) -> Value {
        let plain: Vec<_> = layers.iter().map(|(layer, ..)| layer.clone()).collect();
        let config = self.blob(CONFIG, configuration(&plain).to_string());
        let layers: Vec<_> = layers
            .iter()
            .map(|(_, packed, suffix)| self.blob(&format!("{LAYER}{suffix}"), packed))
            .collect();
        self.manifest(&config, &json!(layers))
    }

    pub fn manifest(&mut self, config: &Value, layers: &Value) -> Value {
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        self.blob(MANIFEST, manifest.to_string())
    }

    pub fn index(&mut self, manifests: &[Value]) -> Value {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        self.blob(INDEX, index.to_string())
    }

    pub fn finish(mut self, manifests: &[Value]) -> Vec<u8> {
        let index = json!({"schemaVersion": 2, "manifests": manifests}).to_string();
        self.members.push(member("index.json", index));
        self.members.push(member("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#));
        tar(self.members)
    }
}

/// An OCI layout of one image with one layer of this content.
pub fn layout(items: impl IntoIterator<Item = Item>) -> Vec<u8> {
    let mut layout = Layout::default();
    let layer = tar(items);
    let image = layout.image(&[(layer.clone(), layer, "")]);
    layout.finish(&[image])
}
