//! Reads the image of an archive: its layers, and the settings of its programs.
//!
//! `docker save` writes a `manifest.json`; an OCI layout has an `index.json`, which leads to a
//! manifest by digests. Newer versions of `docker save` write both; then `manifest.json` is read,
//! which lists only what was saved.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use sha2::{Digest as _, Sha256};

use crate::archive::{Archive, shown};
use crate::budget::Budget;
use crate::digest::Digest;
use crate::error::RootfsError;
use crate::section::Section;

/// The maximum nesting of indexes. Tools write one in one.
const MAX_DEPTH: usize = 4;

/// An image.
#[derive(Debug)]
pub(super) struct Image {
    /// Its configuration's digest, which is Docker's image id.
    pub digest: Digest,
    /// The lowest first; at least one.
    pub layers: Vec<Layer>,
    /// `NAME=VALUE` each.
    pub env: Vec<String>,
    /// The working directory of its programs.
    pub workdir: Option<String>,
}

/// A layer.
#[derive(Debug)]
pub(super) struct Layer {
    /// Its name in the archive, for messages.
    pub member: String,
    pub content: Section,
    /// The digest of the content, if the archive has it.
    pub blob: Option<Digest>,
    /// The digest of the decompressed content.
    pub diff: Digest,
}

impl Image {
    /// Identifies its filesystem: the digest of its layers' digests, as OCI defines it.
    pub fn chain(&self) -> Digest {
        let digests = self.layers.iter().map(|layer| layer.diff);
        let chained =
            |below: Digest, above: Digest| Digest::of(format!("{below} {above}").as_bytes());
        digests.reduce(chained).unwrap_or_else(|| Digest::finish(Sha256::new()))
    }
}

/// A platform, in Go's names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct Platform {
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub architecture: String,
}

impl Platform {
    /// This machine's.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned() }
    }

    fn is_specified(&self) -> bool {
        !self.os.is_empty() || !self.architecture.is_empty()
    }

    /// Whether it is not an image for a platform, such as a provenance attestation.
    fn is_none(&self) -> bool {
        self.os == "unknown"
    }

    fn show(&self) -> String {
        shown(format!("{}/{}", self.os, self.architecture).as_bytes())
    }
}

/// An entry of `manifest.json`.
#[derive(Deserialize)]
struct Saved {
    #[serde(rename = "Config")]
    config: String,
    #[serde(rename = "Layers")]
    layers: Option<Vec<String>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Descriptor {
    #[serde(default, rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
    /// Only manifests have this: a document must not be both.
    layers: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
    /// Only indexes have this.
    manifests: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    config: Option<Start>,
    rootfs: Rootfs,
}

#[derive(Deserialize)]
struct Rootfs {
    diff_ids: Option<Vec<String>>,
}

/// The settings of an image's programs.
#[derive(Default, Deserialize)]
struct Start {
    #[serde(rename = "Env")]
    env: Option<Vec<String>>,
    #[serde(rename = "WorkingDir")]
    workdir: Option<String>,
}

/// The members of an image, before its configuration is parsed.
struct ImageMembers {
    config: (String, Vec<u8>),
    /// Names, and digests if the archive has them.
    layers: Vec<(String, Option<Digest>)>,
}

/// Reads an archive's image for a platform.
pub(super) fn read(
    archive: &Archive,
    ours: &Platform,
    budget: &Budget,
) -> Result<Image, RootfsError> {
    let found = if archive.has("manifest.json") {
        saved(archive, budget)?
    } else if archive.has("index.json") {
        layout(archive, ours, budget)?
    } else {
        return Err(RootfsError::NoImage);
    };
    image(archive, found, ours, budget)
}

/// The image of an archive that `docker save` wrote.
fn saved(archive: &Archive, budget: &Budget) -> Result<ImageMembers, RootfsError> {
    const MANIFEST: &str = "manifest.json";
    let images: Vec<Saved> = parse(MANIFEST, &archive.document(MANIFEST, budget)?)?;
    // An image with two names may be listed twice.
    let configs: BTreeSet<&str> = images.iter().map(|image| image.config.as_str()).collect();
    let (count, Some(image)) = (configs.len(), images.first()) else {
        return Err(RootfsError::NoImage);
    };
    if count > 1 {
        return Err(RootfsError::SeveralImages { count });
    }
    let name = &image.config;
    let text = archive.document(name, budget)?;
    let expected = blob_name(name)
        .or_else(|| Digest::from_hex(name.strip_suffix(".json").unwrap_or_default()));
    if let Some(expected) = expected {
        verify(name, expected, Digest::of(&text))?;
    }
    let layers = image.layers.iter().flatten();
    let layers = layers.map(|name| (name.clone(), blob_name(name))).collect();
    Ok(ImageMembers { config: (name.clone(), text), layers })
}

/// The digest in a member's name, if its name is one.
fn blob_name(name: &str) -> Option<Digest> {
    Digest::from_hex(name.strip_prefix("blobs/sha256/")?)
}

/// The image of an OCI layout.
fn layout(
    archive: &Archive,
    ours: &Platform,
    budget: &Budget,
) -> Result<ImageMembers, RootfsError> {
    const INDEX: &str = "index.json";
    let mut listed = Listed::default();
    let index = parse(INDEX, &archive.document(INDEX, budget)?)?;
    listed.add(archive, INDEX, index, budget, 0)?;
    let descriptor = listed.choose(ours)?;
    let (name, text) = blob(archive, &descriptor, budget)?;
    let manifest: Manifest = parse(&name, &text)?;
    if manifest.manifests.is_some() {
        return Err(unusable(&name, "it is a manifest and an index at once"));
    }
    let media_type = manifest.config.media_type.as_str();
    if !matches!(
        media_type,
        "application/vnd.oci.image.config.v1+json"
            | "application/vnd.docker.container.image.v1+json"
    ) {
        let media_type = shown(media_type.as_bytes());
        return Err(unusable(&name, format!("a '{media_type}' is not an image")));
    }
    let config = blob(archive, &manifest.config, budget)?;
    let layers = manifest.layers.iter().map(|layer| {
        if !is_layer(&layer.media_type) {
            let media_type = shown(layer.media_type.as_bytes());
            let reason = format!("a '{media_type}' is not a layer that can be unpacked");
            return Err(unusable(&name, reason));
        }
        let digest = digest(&name, &layer.digest)?;
        let member = digest.member();
        check_size(&member, layer.size, archive.section(&member)?.length())?;
        Ok((member, Some(digest)))
    });
    Ok(ImageMembers { config, layers: layers.collect::<Result<_, _>>()? })
}

fn is_layer(media_type: &str) -> bool {
    let is_of = |prefix: &str, suffixes: &[&str]| {
        media_type.strip_prefix(prefix).is_some_and(|rest| suffixes.contains(&rest))
    };
    is_of("application/vnd.oci.image.layer.v1.tar", &["", "+gzip", "+zstd"])
        || is_of("application/vnd.oci.image.layer.nondistributable.v1.tar", &["", "+gzip", "+zstd"])
        || is_of("application/vnd.docker.image.rootfs.diff.tar", &["", ".gzip", ".zstd"])
        || is_of("application/vnd.docker.image.rootfs.foreign.diff.tar", &["", ".gzip"])
}

/// The images of an index and its nested indexes.
#[derive(Default)]
struct Listed {
    /// By their manifests' digests: one may be listed under several names.
    images: BTreeMap<String, Descriptor>,
    /// Indexes that were read.
    seen: BTreeSet<String>,
}

impl Listed {
    fn add(
        &mut self,
        archive: &Archive,
        name: &str,
        index: Index,
        budget: &Budget,
        depth: usize,
    ) -> Result<(), RootfsError> {
        if index.layers.is_some() {
            return Err(unusable(name, "it is an index and a manifest at once"));
        }
        for descriptor in index.manifests {
            match descriptor.media_type.as_str() {
                "application/vnd.oci.image.index.v1+json"
                | "application/vnd.docker.distribution.manifest.list.v2+json" => {
                    if depth == MAX_DEPTH {
                        return Err(unusable(name, "it is an index in too many others"));
                    }
                    if self.seen.insert(descriptor.digest.clone()) {
                        let (name, text) = blob(archive, &descriptor, budget)?;
                        let index = parse(&name, &text)?;
                        self.add(archive, &name, index, budget, depth + 1)?;
                    }
                }
                "application/vnd.oci.image.manifest.v1+json"
                | "application/vnd.docker.distribution.manifest.v2+json"
                    if !descriptor.platform.as_ref().is_some_and(Platform::is_none) =>
                {
                    self.images.insert(descriptor.digest.clone(), descriptor);
                }
                // Not an image: a layout may contain other documents.
                _ => {}
            }
        }
        Ok(())
    }

    /// The one that is for our platform, or the only one without a platform.
    fn choose(self, ours: &Platform) -> Result<Descriptor, RootfsError> {
        let (with_platform, without): (Vec<_>, Vec<_>) = self
            .images
            .into_values()
            .partition(|image| image.platform.as_ref().is_some_and(Platform::is_specified));
        let (fitting, others): (Vec<_>, Vec<_>) =
            with_platform.into_iter().partition(|image| image.platform.as_ref() == Some(ours));
        let mut candidates = if fitting.is_empty() { without } else { fitting };
        match (candidates.len(), candidates.pop()) {
            (1, Some(image)) => Ok(image),
            (0, _) if others.is_empty() => Err(RootfsError::NoImage),
            (0, _) => {
                let platforms: BTreeSet<String> = others
                    .iter()
                    .filter_map(|image| Some(image.platform.as_ref()?.show()))
                    .collect();
                let found = platforms.into_iter().collect::<Vec<_>>().join(", ");
                Err(RootfsError::Platform { found, ours: ours.show() })
            }
            (count, _) => Err(RootfsError::SeveralImages { count }),
        }
    }
}

/// A document of an OCI layout, verified against its descriptor; and its name.
fn blob(
    archive: &Archive,
    descriptor: &Descriptor,
    budget: &Budget,
) -> Result<(String, Vec<u8>), RootfsError> {
    let digest = digest("a descriptor", &descriptor.digest)?;
    let name = digest.member();
    let text = archive.document(&name, budget)?;
    check_size(&name, descriptor.size, text.len() as u64)?;
    verify(&name, digest, Digest::of(&text))?;
    Ok((name, text))
}

/// Assembles an image, and checks whether it can run here.
fn image(
    archive: &Archive,
    found: ImageMembers,
    ours: &Platform,
    budget: &Budget,
) -> Result<Image, RootfsError> {
    let (name, text) = found.config;
    let configuration: Configuration = parse(&name, &text)?;
    let Configuration { os, architecture, config, rootfs } = configuration;
    let theirs = Platform { os, architecture };
    if theirs.is_specified() && theirs != *ours {
        return Err(RootfsError::Platform { found: theirs.show(), ours: ours.show() });
    }
    let diffs = rootfs.diff_ids.unwrap_or_default();
    let limit = budget.bounds.layers;
    if found.layers.len() > limit {
        return Err(RootfsError::Limit { what: "layers", limit: limit as u64 });
    }
    if diffs.len() != found.layers.len() {
        let (named, has) = (diffs.len(), found.layers.len());
        return Err(unusable(&name, format!("it names {named} layers, and the image has {has}")));
    }
    if diffs.is_empty() {
        return Err(unusable(&name, "the image has no layers"));
    }
    let layers = found.layers.into_iter().zip(&diffs).map(|((member, blob), diff)| {
        let content = archive.section(&member)?;
        let member = shown(member.as_bytes());
        Ok(Layer { member, content, blob, diff: digest(&name, diff)? })
    });
    let layers = layers.collect::<Result<_, RootfsError>>()?;
    let Start { env, workdir } = config.unwrap_or_default();
    let mut env = env.unwrap_or_default();
    // Engines ignore those too.
    env.retain(|variable| variable.find('=').is_some_and(|equals| equals > 0));
    let workdir = workdir.filter(|workdir| !workdir.is_empty());
    if env.iter().chain(&workdir).any(|text| text.contains('\0')) {
        return Err(unusable(&name, "there is a NUL in its environment or working directory"));
    }
    Ok(Image { digest: Digest::of(&text), layers, env, workdir })
}

fn digest(member: &str, text: &str) -> Result<Digest, RootfsError> {
    Digest::parse(text).ok_or_else(|| {
        unusable(member, format!("'{}' is not a SHA-256 digest", shown(text.as_bytes())))
    })
}

/// Compares a digest with the expected one.
pub(super) fn verify(member: &str, expected: Digest, found: Digest) -> Result<(), RootfsError> {
    if expected == found {
        return Ok(());
    }
    Err(RootfsError::Mismatch { member: shown(member.as_bytes()), expected, found })
}

fn check_size(member: &str, expected: u64, found: u64) -> Result<(), RootfsError> {
    if expected == found {
        return Ok(());
    }
    Err(RootfsError::Size { member: member.to_owned(), expected, found })
}

fn parse<T: DeserializeOwned>(member: &str, text: &[u8]) -> Result<T, RootfsError> {
    serde_json::from_slice(text)
        .map_err(|error| unusable(member, shown(error.to_string().as_bytes())))
}

fn unusable(member: &str, reason: impl Into<String>) -> RootfsError {
    RootfsError::Document { member: shown(member.as_bytes()), reason: reason.into() }
}
