//! The sandbox image on Docker: built through the API, found again by its label.
//!
//! Nothing is pulled, and no tag is trusted: containers are made from an image's id. The id is
//! remembered in the state folder, which saves a round trip a run; an engine that does not know
//! it any more says so when a container is to be made.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bollard::Docker;
use bollard::models::ImageSummary;
use bollard::query_parameters::{
    BuildImageOptionsBuilder, ImportImageOptionsBuilder, ListImagesOptionsBuilder,
    RemoveImageOptionsBuilder, TagImageOptionsBuilder,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use sha2::{Digest, Sha256};

use super::{engine_error, unix_time};
use crate::agent::Agent;
use crate::engine::{EngineError, EngineKind, Progress};
use crate::image::{ImageInfo, Rebuild};
use crate::state::Cache;

/// The sha256 of the Dockerfile and the agent.
const LABEL_IMAGE: &str = "sandboxctl.image";
/// The sha256 of the agent alone.
const LABEL_AGENT: &str = "sandboxctl.agent";
/// An untagged image is dangling, and `docker image prune` takes it.
const REPOSITORY: &str = "sandboxctl/agent";
const ENTRYPOINT: &str = "/.sandbox/agent";

/// The image that this controller uses.
pub(super) struct Image {
    agent: Agent,
    dockerfile: &'static str,
    /// The value of [`LABEL_IMAGE`].
    digest: String,
    /// The id, as far as it is known.
    id: Mutex<Option<String>>,
    /// Where it is remembered.
    cache: Cache,
}

impl Image {
    pub fn new(agent: Agent, dockerfile: &'static str, endpoint: &str, state_dir: &Path) -> Self {
        let digest = crate::hex(
            &Sha256::new_with_prefix(dockerfile)
                .chain_update([0])
                .chain_update(agent.sha256())
                .finalize(),
        );
        let key = crate::hex(&Sha256::digest(format!("{endpoint}\n{digest}")));
        let cache = Cache::new(state_dir, &key[..16]);
        Self { agent, dockerfile, digest, id: Mutex::new(cache.read()), cache }
    }

    /// The id, as far as it is remembered. It may be gone since.
    pub fn remembered(&self) -> Option<String> {
        self.id().clone()
    }

    fn id(&self) -> MutexGuard<'_, Option<String>> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is no such image any more.
    pub fn forget(&self, id: &str) {
        let mut known = self.id();
        if known.as_deref() == Some(id) {
            *known = None;
            self.cache.remove();
        }
    }

    fn remember(&self, id: &str) {
        *self.id() = Some(id.to_owned());
        self.cache.write(id);
    }

    /// The image's id: found by its label, or built.
    pub async fn ensure(&self, docker: &Docker) -> Result<String, EngineError> {
        match self.find(docker).await? {
            Some(id) => {
                self.remember(&id);
                Ok(id)
            }
            None => self.build(docker, Rebuild::IfMissing, &mut |_| {}).await,
        }
    }

    async fn find(&self, docker: &Docker) -> Result<Option<String>, EngineError> {
        let label = format!("{LABEL_IMAGE}={}", self.digest);
        // The label is only a claim, of whoever made the image.
        for image in list_by_label(docker, &label).await? {
            match self.verify(docker, &image.id, "it").await {
                Ok(id) => return Ok(Some(id)),
                Err(error) => tracing::debug!(id = image.id, %error, "not a sandbox image"),
            }
        }
        Ok(None)
    }

    /// Builds it, also where there is one: from what the engine keeps of earlier builds, or with
    /// [`Rebuild::Always`] anew. Two processes that build at once both succeed.
    pub async fn build(
        &self,
        docker: &Docker,
        rebuild: Rebuild,
        progress: Progress<'_>,
    ) -> Result<String, EngineError> {
        let labels = HashMap::from([
            (LABEL_IMAGE, self.digest.as_str()),
            (LABEL_AGENT, self.agent.sha256()),
        ]);
        let tag = format!("{REPOSITORY}:{}", &self.digest[..12]);
        let options = BuildImageOptionsBuilder::new()
            .dockerfile("Dockerfile")
            .t(&tag)
            .labels(&labels)
            .nocache(rebuild == Rebuild::Always)
            .rm(true)
            .forcerm(true)
            .build();
        let context = self.context().map_err(|error| EngineError::Connection(error.to_string()))?;
        let mut lines = docker.build_image(options, None, Some(bollard::body_full(context)));
        let mut failure = None;
        while let Some(line) = lines.next().await {
            match line {
                Ok(line) => {
                    if let Some(message) = line.error_detail.and_then(|detail| detail.message) {
                        failure = Some(EngineError::Refused(message));
                    }
                    if let Some(text) = line.stream {
                        text.lines()
                            .filter(|line| !line.trim().is_empty())
                            .for_each(&mut *progress);
                    }
                }
                // The stream's decoder can fail on what is left at its end, after a build that
                // went well: whether there is an image decides.
                Err(error) => failure = Some(engine_error(error)),
            }
        }
        match self.verify(docker, &tag, "what was built").await {
            Ok(id) => {
                self.remember(&id);
                Ok(id)
            }
            Err(error) => Err(failure.unwrap_or(error)),
        }
    }

    /// The id of the image called so, where it is this controller's image. `which` is what
    /// messages call it.
    pub async fn verify(
        &self,
        docker: &Docker,
        name: &str,
        which: &str,
    ) -> Result<String, EngineError> {
        let unusable = |reason| EngineError::UnusableImage { which: which.to_owned(), reason };
        let image =
            docker.inspect_image(name).await.map_err(|error| match engine_error(error) {
                EngineError::NotFound(_) => unusable("names no image that the engine has"),
                error => error,
            })?;
        let config = image.config.as_ref();
        let label = config
            .and_then(|config| config.labels.as_ref())
            .and_then(|labels| labels.get(LABEL_IMAGE));
        let entrypoint = config.and_then(|config| config.entrypoint.as_deref());
        if label != Some(&self.digest) || entrypoint != Some(&[ENTRYPOINT.to_owned()]) {
            return Err(unusable("is not the sandbox image of this version"));
        }
        image.id.ok_or_else(|| EngineError::Nonsense("an image without an id".to_owned()))
    }

    /// The build context: a tar of the Dockerfile and the agent.
    fn context(&self) -> io::Result<Bytes> {
        let agent = self.agent.bytes();
        let mut tar = tar::Builder::new(Vec::with_capacity(agent.len() + 4096));
        let mut add = |name: &str, mode: u32, content: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(mode);
            // No time and no owner of this machine: the same bytes give the same image.
            header.set_mtime(0);
            tar.append_data(&mut header, name, content)
        };
        add("Dockerfile", 0o644, self.dockerfile.as_bytes())?;
        add("agent", 0o755, agent)?;
        Ok(tar.into_inner()?.into())
    }

    pub async fn list(&self, docker: &Docker) -> Result<Vec<ImageInfo>, EngineError> {
        let images = list_by_label(docker, LABEL_IMAGE).await?;
        let mut infos: Vec<ImageInfo> = Vec::with_capacity(images.len());
        for image in images {
            let label = |name| image.labels.get(name).cloned().unwrap_or_default();
            // Of two that are alike, the newer is the one that is used: the other is stale.
            let is_first = infos.iter().all(|info| !info.current);
            infos.push(ImageInfo {
                agent: label(LABEL_AGENT),
                current: is_first && label(LABEL_IMAGE) == self.digest,
                engine: EngineKind::Docker,
                created: unix_time(image.created),
                size: u64::try_from(image.size).unwrap_or(0),
                id: image.id,
            });
        }
        Ok(infos)
    }

    pub async fn remove(&self, docker: &Docker, id: &str) -> Result<(), EngineError> {
        let options = RemoveImageOptionsBuilder::new().force(true).build();
        match docker.remove_image(id, Some(options), None).await.map_err(engine_error) {
            Ok(_) => {}
            Err(EngineError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        self.forget(id);
        Ok(())
    }

    /// The image `id` as a tar.
    pub async fn save(
        &self,
        docker: &Docker,
        id: &str,
    ) -> Result<impl Stream<Item = Result<Bytes, EngineError>> + use<>, EngineError> {
        // It is asked for by its tag, or the tag would not be in the tar.
        let tag = &self.digest[..12];
        let options = TagImageOptionsBuilder::new().repo(REPOSITORY).tag(tag).build();
        docker.tag_image(id, Some(options)).await.map_err(engine_error)?;
        let docker = docker.clone();
        let name = format!("{REPOSITORY}:{tag}");
        Ok(docker.export_image(&name).map(|piece| piece.map_err(engine_error)))
    }

    /// Loads what [`save`](Self::save) wrote. That the image is there afterwards says nothing, it
    /// may have been before: the engine must say that it loaded it.
    pub async fn load(
        &self,
        docker: &Docker,
        tar: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<String, EngineError> {
        let options = ImportImageOptionsBuilder::new().quiet(true).build();
        let mut lines = Box::pin(docker.import_image_stream(options, tar, None));
        let mut loaded = Vec::new();
        while let Some(line) = lines.next().await {
            let text = line.map_err(engine_error)?.stream.unwrap_or_default();
            loaded.extend(text.lines().filter_map(loaded_name).map(str::to_owned));
        }
        let which = "what was loaded";
        let mut failure = EngineError::UnusableImage {
            which: which.to_owned(),
            reason: "is not the sandbox image of this version",
        };
        for name in loaded {
            match self.verify(docker, &name, which).await {
                Ok(id) => {
                    self.remember(&id);
                    return Ok(id);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// What the engine says it loaded: `Loaded image: NAME`, or `Loaded image ID: sha256:…`.
fn loaded_name(line: &str) -> Option<&str> {
    let (what, name) = line.trim().split_once(": ")?;
    what.starts_with("Loaded image").then_some(name)
}

/// Newest first.
async fn list_by_label(docker: &Docker, label: &str) -> Result<Vec<ImageSummary>, EngineError> {
    let filters = HashMap::from([("label", vec![label])]);
    let options = ListImagesOptionsBuilder::new().filters(&filters).build();
    let mut listed = docker.list_images(Some(options.clone())).await;
    // Podman looks at each by itself, and gives up where one was removed meanwhile.
    for _ in 0..3 {
        match &listed {
            Err(bollard::errors::Error::DockerResponseServerError {
                status_code: 500,
                message,
            }) if message.contains("image not known") => {
                listed = docker.list_images(Some(options.clone())).await;
            }
            _ => break,
        }
    }
    let mut images = listed.map_err(engine_error)?;
    images.sort_by(|a, b| (b.created, &a.id).cmp(&(a.created, &b.id)));
    Ok(images)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_loaded_is_read_from_the_engines_words() {
        for (line, name) in [
            ("Loaded image: sandboxctl/agent:1\n", Some("sandboxctl/agent:1")),
            ("Loaded image ID: sha256:12", Some("sha256:12")),
            ("Loaded image(s): localhost/x:1", Some("localhost/x:1")),
            ("open /x/repositories: no such file or directory", None),
            ("Loaded image", None),
            ("", None),
        ] {
            assert_eq!(loaded_name(line), name, "{line}");
        }
    }
}
