//! The sandbox image as an archive for `docker load`: created here, byte by byte, from the
//! Dockerfile and the agent.
//!
//! The image is loaded, not built, so it exists with its labels or not at all. Its content is known
//! in advance, so an image that claims to be the sandbox image can be verified.

use std::sync::OnceLock;
use std::time::SystemTime;

use bollard::models::ImageInspect;
use bytes::Bytes;
use sandbox_api::time::rfc3339;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::user_image::ARCHITECTURE;
use crate::agent::Agent;

/// The sha256 of the Dockerfile and the agent.
pub(super) const LABEL_IMAGE: &str = "sandboxctl.image";
/// The sha256 of the agent alone.
pub(super) const LABEL_AGENT: &str = "sandboxctl.agent";
/// An engine's default environment. It has no effect on the agent.
const USUAL_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The expected content of the image.
pub(super) struct Recipe {
    agent: Agent,
    /// The path of the agent in the image, which is its entrypoint.
    path: &'static str,
    /// The value of [`LABEL_IMAGE`].
    pub digest: String,
    /// The digest of the only layer, once it was needed.
    layer: OnceLock<String>,
}

impl Recipe {
    /// The image of this Dockerfile, which must only copy the agent and set it as the entrypoint.
    pub fn new(dockerfile: &'static str, agent: Agent) -> Self {
        let path = agent_path(dockerfile).expect("a test reads the Dockerfile");
        let digest = sandbox_dirfd::hex(
            &Sha256::new_with_prefix(dockerfile)
                .chain_update([0])
                .chain_update(agent.sha256())
                .finalize(),
        );
        Self { agent, path, digest, layer: OnceLock::new() }
    }

    /// The archive of an image with this tag and creation time.
    pub fn archive(&self, tag: &str, created: SystemTime) -> Bytes {
        let layer = self.layer();
        let layer_digest = self.digest_of(|| layer.clone());
        let created = created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let config = json!({
            "architecture": ARCHITECTURE,
            "os": "linux",
            "created": rfc3339(created.as_secs().cast_signed(), created.subsec_nanos()),
            "config": {
                "Entrypoint": [self.path],
                "Labels": { LABEL_IMAGE: self.digest, LABEL_AGENT: self.agent.sha256() },
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_digest}")] },
        });
        let config = config.to_string().into_bytes();
        let config_name = format!("{}.json", sandbox_dirfd::hex(&Sha256::digest(&config)));
        let layer_name = format!("{layer_digest}/layer.tar");
        let manifest =
            json!([{ "Config": config_name, "RepoTags": [tag], "Layers": [layer_name] }]);
        tar(&[
            (&config_name, Entry::File(0o644, &config)),
            (&format!("{layer_digest}/"), Entry::Folder),
            (&layer_name, Entry::File(0o644, &layer)),
            ("manifest.json", Entry::File(0o644, manifest.to_string().as_bytes())),
        ])
    }

    /// Whether an image has exactly this content: checks the digests of its layers, by which
    /// engines identify them, and every setting that containers inherit from an image.
    pub fn is_that_of(&self, image: &ImageInspect) -> bool {
        let layers = image.root_fs.as_ref().and_then(|root| root.layers.as_deref());
        let (Some([layer]), Some(config)) = (layers, &image.config) else { return false };
        let path = [self.path.to_owned()];
        let labels = config.labels.as_ref();
        let is_unset = |list: &Option<Vec<String>>| list.as_ref().is_none_or(Vec::is_empty);
        let is_empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
        labels.and_then(|labels| labels.get(LABEL_IMAGE)) == Some(&self.digest)
            && layer.strip_prefix("sha256:") == Some(self.digest_of(|| self.layer()))
            && config.entrypoint.as_deref() == Some(&path)
            && config.env.iter().flatten().all(|variable| variable == USUAL_PATH)
            && is_unset(&config.cmd)
            && is_unset(&config.volumes)
            && is_unset(&config.on_build)
            && is_unset(&config.exposed_ports)
            && is_empty(&config.user)
            && is_empty(&config.stop_signal)
            && config.healthcheck.is_none()
            && matches!(config.working_dir.as_deref(), None | Some("" | "/"))
    }

    /// The layer's digest. The layer is only created if the digest is not known yet.
    fn digest_of(&self, layer: impl FnOnce() -> Bytes) -> &str {
        self.layer.get_or_init(|| sandbox_dirfd::hex(&Sha256::digest(layer())))
    }

    /// The image's only layer.
    fn layer(&self) -> Bytes {
        let agent = self.agent.content().to_vec();
        let path = self.path.trim_start_matches('/');
        let folders: Vec<String> =
            path.match_indices('/').map(|(at, _)| path[..=at].to_owned()).collect();
        let mut entries: Vec<(&str, Entry<'_>)> =
            folders.iter().map(|folder| (folder.as_str(), Entry::Folder)).collect();
        entries.push((path, Entry::File(0o755, &agent)));
        tar(&entries)
    }
}

/// The path where the Dockerfile puts the agent; `None` if it does anything else.
fn agent_path(dockerfile: &'static str) -> Option<&'static str> {
    let mut lines = dockerfile.lines().map(str::trim);
    let mut next = || lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    let path = (next() == Some("FROM scratch"))
        .then(&mut next)
        .flatten()?
        .strip_prefix("COPY agent ")
        .filter(|path| path.starts_with('/'))?;
    let entrypoint = next()?.strip_prefix("ENTRYPOINT ")?;
    let entrypoint: [String; 1] = serde_json::from_str(entrypoint).ok()?;
    (entrypoint == [path] && next().is_none()).then_some(path)
}

/// An entry of a tar archive.
enum Entry<'a> {
    Folder,
    File(u32, &'a [u8]),
}

/// Without times and owners of this machine: the same entries give the same bytes.
fn tar(entries: &[(&str, Entry<'_>)]) -> Bytes {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, entry) in entries {
        let mut header = tar::Header::new_gnu();
        let (kind, mode, content) = match *entry {
            Entry::Folder => (tar::EntryType::Directory, 0o755, &[][..]),
            Entry::File(mode, content) => (tar::EntryType::Regular, mode, content),
        };
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.set_mtime(0);
        tar.append_data(&mut header, name, content).expect("memory takes every byte");
    }
    tar.into_inner().expect("memory takes every byte").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::time::Duration;

    use serde_json::Value;

    use crate::agent::DOCKERFILE;
    use crate::config::AgentSource;

    fn recipe() -> Recipe {
        Recipe::new(DOCKERFILE, Agent::open(&AgentSource::Embedded).unwrap())
    }

    fn read(tar: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(tar).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_str().unwrap().to_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(name, (entry.header().mode().unwrap(), content));
        }
        files
    }

    /// An engine's report about the image in an archive.
    fn inspected(archive: &[u8]) -> ImageInspect {
        let files = read(archive);
        let manifest: Value = serde_json::from_slice(&files["manifest.json"].1).unwrap();
        let config = &files[manifest[0]["Config"].as_str().unwrap()].1;
        let config: Value = serde_json::from_slice(config).unwrap();
        serde_json::from_value(json!({
            "Config": config["config"],
            "RootFS": { "Type": "layers", "Layers": config["rootfs"]["diff_ids"] },
        }))
        .unwrap()
    }

    #[test]
    fn the_archive_has_the_agent_its_digests_and_nothing_else() {
        let created = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
        let archive = recipe().archive("sandboxctl/agent:x", created);
        let files = read(&archive);
        let manifest: Value = serde_json::from_slice(&files["manifest.json"].1).unwrap();
        assert_eq!(manifest[0]["RepoTags"], json!(["sandboxctl/agent:x"]));
        let config_name = manifest[0]["Config"].as_str().unwrap();
        let layer_name = manifest[0]["Layers"][0].as_str().unwrap();
        let (config, layer) = (&files[config_name].1, &files[layer_name].1);
        let digest = |bytes: &[u8]| sandbox_dirfd::hex(&Sha256::digest(bytes));
        assert_eq!(config_name, format!("{}.json", digest(config)));
        let config: Value = serde_json::from_slice(config).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"], json!([format!("sha256:{}", digest(layer))]));
        assert_eq!(config["created"], "1970-01-01T00:00:01.5Z");
        let layer = read(layer);
        assert_eq!(layer.keys().collect::<Vec<_>>(), [".sandbox/", ".sandbox/agent"]);
        assert!(layer[".sandbox/agent"] == (0o755, crate::AGENT.to_vec()));
        let again = recipe().archive("sandboxctl/agent:x", created);
        assert!(archive == again, "the same bytes give the same image");
    }

    #[test]
    fn the_content_of_a_claimed_sandbox_image_is_verified() {
        let recipe = recipe();
        let image = inspected(&recipe.archive("x", SystemTime::now()));
        assert!(recipe.is_that_of(&image));
        let json = serde_json::to_value(&image).unwrap();
        let changed = |pointer: &[&str], value: Value| {
            let mut json = json.clone();
            let mut at = &mut json;
            for key in pointer {
                at = &mut at[*key];
            }
            *at = value;
            recipe.is_that_of(&serde_json::from_value(json).unwrap())
        };
        let layer = json["RootFS"]["Layers"][0].clone();
        assert!(!changed(&["RootFS", "Layers"], json!([])));
        assert!(!changed(&["RootFS", "Layers"], json!([layer, layer])));
        assert!(!changed(&["RootFS", "Layers",], json!(["sha256:0"])));
        assert!(!changed(&["Config", "Labels", LABEL_IMAGE], json!("0")));
        assert!(!changed(&["Config", "Entrypoint"], json!(["/.sandbox/agent", "x"])));
        assert!(!changed(&["Config", "Env"], json!(["LD_PRELOAD=/x"])));
        assert!(!changed(&["Config", "Cmd"], json!(["x"])));
        assert!(!changed(&["Config", "User"], json!("root")));
        assert!(!changed(&["Config", "WorkingDir"], json!("/x")));
        assert!(!changed(&["Config", "Healthcheck"], json!({"Test": ["CMD", "/x"]})));
        assert!(changed(&["Config", "Env"], json!([USUAL_PATH])));
        assert!(changed(&["Config", "WorkingDir"], json!("/")));
    }

    #[test]
    fn a_dockerfile_that_says_more_is_not_understood() {
        let plain = "# x\nFROM scratch\n\nCOPY agent /a\nENTRYPOINT [\"/a\"]\n";
        assert_eq!(agent_path(plain), Some("/a"));
        for other in [
            "FROM alpine\nCOPY agent /a\nENTRYPOINT [\"/a\"]",
            "FROM scratch\nCOPY agent /a",
            "FROM scratch\nCOPY agent /a\nENTRYPOINT [\"/b\"]",
            "FROM scratch\nCOPY agent /a\nENTRYPOINT /a",
            "FROM scratch\nCOPY agent /a\nENTRYPOINT [\"/a\"]\nUSER x",
            "FROM scratch\nCOPY agent a\nENTRYPOINT [\"a\"]",
        ] {
            assert_eq!(agent_path(other), None, "{other}");
        }
    }
}
