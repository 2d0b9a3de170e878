//! The sandbox image on Docker: loaded from an [archive](super::image_tar) that sandboxctl creates,
//! and found again by its label.
//!
//! Nothing is pulled, and neither tag nor label is trusted: an image is inspected before it is
//! used, and containers are created from its id. The id is cached in the state directory, which
//! saves a round trip per run; if the engine no longer has the image, it reports that when a
//! container is to be created.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::SystemTime;

use async_trait::async_trait;
use bollard::Docker;
use bollard::models::ImageSummary;
use bollard::query_parameters::{
    ImportImageOptionsBuilder, ListImagesOptionsBuilder, RemoveImageOptionsBuilder,
    TagImageOptionsBuilder,
};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use sandbox_api::{EngineKind, ImageInfo, ProgramImage, is_image_reference};

use super::image_tar::{LABEL_AGENT, LABEL_IMAGE, Recipe};
use super::response::engine_error;
use super::system::unix_time;
use crate::agent::{Agent, DOCKERFILE};
use crate::docker::cache::Cache;
use crate::error::EngineError;
use crate::{ImageTar, Images, Progress, lock};

/// Untagged images are dangling, and `docker image prune` would remove them.
const REPOSITORY: &str = "sandboxctl/agent";

/// The image that this controller uses.
pub(super) struct Image {
    docker: Docker,
    recipe: Recipe,
    /// An image to use instead of the built-in one.
    pub other: Option<String>,
    /// The id, if it is known.
    id: Mutex<Option<String>>,
    /// The cache of the id.
    cache: Cache,
}

impl Image {
    pub fn new(
        docker: Docker,
        agent: Agent,
        endpoint: &str,
        state_dir: &Path,
        other: Option<String>,
    ) -> Self {
        let recipe = Recipe::new(DOCKERFILE, agent);
        let cache = Cache::new(state_dir, &format!("{endpoint}\n{}", recipe.digest));
        Self { docker, recipe, other, id: Mutex::new(cache.read()), cache }
    }

    fn tag(&self) -> &str {
        &self.recipe.digest[..12]
    }

    /// The cached id. The image may have been removed since.
    pub fn remembered(&self) -> Option<String> {
        lock(&self.id).clone()
    }

    /// Removes the id of a missing image from the cache.
    pub fn forget(&self, id: &str) {
        let mut known = lock(&self.id);
        if known.as_deref() == Some(id) {
            *known = None;
            self.cache.remove();
        }
    }

    fn remember(&self, id: &str) {
        *lock(&self.id) = Some(id.to_owned());
        self.cache.write(id);
    }

    /// Returns the image's id: found by its label, or built.
    pub async fn ensure(&self) -> Result<String, EngineError> {
        match self.find().await? {
            Some(id) => {
                self.remember(&id);
                Ok(id)
            }
            None => self.build(&mut |_| {}).await,
        }
    }

    async fn find(&self) -> Result<Option<String>, EngineError> {
        let label = format!("{LABEL_IMAGE}={}", self.recipe.digest);
        // The builder of an image chooses its labels: this is only a claim.
        for image in list_by_label(&self.docker, &label).await? {
            match self.verify(&image.id, "it").await {
                Ok(id) => return Ok(Some(id)),
                Err(error) => tracing::debug!(id = image.id, %error, "not a sandbox image"),
            }
        }
        Ok(None)
    }

    /// The id of the image with this name, if it is this controller's image. `which` is its name in
    /// messages.
    pub async fn verify(&self, name: &str, which: &str) -> Result<String, EngineError> {
        let unusable = |reason| EngineError::UnusableImage { which: which.to_owned(), reason };
        if !is_image_reference(name) {
            return Err(unusable("is not the name of an image"));
        }
        let image =
            self.docker.inspect_image(name).await.map_err(|error| match engine_error(error) {
                EngineError::NotFound(_) => unusable("names no image that the engine has"),
                error => error,
            })?;
        if !self.recipe.is_that_of(&image) {
            return Err(unusable("is not the sandbox image of this version"));
        }
        image.id.ok_or_else(|| EngineError::UnexpectedResponse("an image without an id".to_owned()))
    }

    /// The existence of the image proves nothing, because it may have existed before: the engine
    /// must report that it loaded it. `which` is its name in messages.
    async fn load_from(
        &self,
        tar: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        which: &str,
        progress: Progress<'_>,
    ) -> Result<String, EngineError> {
        let options = ImportImageOptionsBuilder::new().quiet(true).build();
        let mut lines = Box::pin(self.docker.import_image_stream(options, tar, None));
        let mut failure = EngineError::UnusableImage {
            which: which.to_owned(),
            reason: "is not the sandbox image of this version",
        };
        let mut loaded = Vec::new();
        while let Some(line) = lines.next().await {
            match line {
                Ok(line) => {
                    let text = line.stream.unwrap_or_default();
                    text.lines().filter(|line| !line.trim().is_empty()).for_each(&mut *progress);
                    loaded.extend(text.lines().filter_map(loaded_name).map(str::to_owned));
                }
                // The decoder can fail on trailing data after everything succeeded: what the engine
                // reported as loaded decides.
                Err(error) => failure = engine_error(error),
            }
        }
        for name in loaded {
            match self.verify(&name, which).await {
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

#[async_trait]
impl Images for Image {
    fn is_known(&self) -> bool {
        self.other.is_some() || self.remembered().is_some()
    }

    // Two processes may do so concurrently.
    async fn build(&self, progress: Progress<'_>) -> Result<String, EngineError> {
        let tag = format!("{REPOSITORY}:{}", self.tag());
        let archive = self.recipe.archive(&tag, SystemTime::now());
        let pieces = futures_util::stream::once(async { Ok(archive) });
        self.load_from(pieces, "what was built", progress).await
    }

    async fn list(&self) -> Result<Vec<ImageInfo>, EngineError> {
        let images = list_by_label(&self.docker, LABEL_IMAGE).await?;
        // Among identical images, the one that a run would use is current, and the others are
        // stale.
        let current = match self.remembered() {
            Some(id) if images.iter().any(|image| image.id == id) => Some(id),
            _ => self.find().await?,
        };
        // Any image can have the label: verify before removing.
        let images = images.into_iter().filter(is_ours);
        let info = |image: ImageSummary| ImageInfo {
            agent: image.labels.get(LABEL_AGENT).cloned().unwrap_or_default(),
            current: current.as_ref() == Some(&image.id),
            engine: EngineKind::Docker,
            created: unix_time(image.created),
            size: u64::try_from(image.size).unwrap_or(0),
            id: image.id,
        };
        Ok(images.into_iter().map(info).collect())
    }

    async fn remove(&self, id: &str) -> Result<(), EngineError> {
        if !is_image_reference(id) {
            return Ok(());
        }
        let options = RemoveImageOptionsBuilder::new().force(true).build();
        match self.docker.remove_image(id, Some(options), None).await.map_err(engine_error) {
            Ok(_) => {}
            Err(EngineError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        self.forget(id);
        Ok(())
    }

    async fn save(&self) -> Result<(String, ImageTar), EngineError> {
        let id = self.ensure().await?;
        // Requested by its tag, because otherwise the archive would not contain the tag.
        let tag = self.tag();
        let options = TagImageOptionsBuilder::new().repo(REPOSITORY).tag(tag).build();
        self.docker.tag_image(&id, Some(options)).await.map_err(engine_error)?;
        let tar = self.docker.export_image(&format!("{REPOSITORY}:{tag}"));
        Ok((id, tar.map(|piece| piece.map_err(engine_error)).boxed()))
    }

    async fn load(
        &self,
        tar: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<String, EngineError> {
        self.load_from(tar, "what was loaded", &mut |_| {}).await
    }
}

/// The image that the engine reports as loaded: `Loaded image: NAME`, or `Loaded image ID:
/// sha256:…`.
fn loaded_name(line: &str) -> Option<&str> {
    let (what, name) = line.trim().split_once(": ")?;
    what.starts_with("Loaded image").then_some(name)
}

/// Whether an image is, or was, a sandbox image: any image can have the label, and a tagged one
/// belongs to its user.
fn is_ours(image: &ImageSummary) -> bool {
    let is_our_name = |name: &String| {
        let repository = name.rsplit_once(':').map_or(&**name, |(repository, _)| repository);
        // Podman prefixes a registry. An image that lost its name has this one.
        repository == "<none>"
            || repository
                .strip_suffix(REPOSITORY)
                .is_some_and(|registry| registry.is_empty() || registry.ends_with('/'))
    };
    image.labels.contains_key(LABEL_IMAGE) && image.repo_tags.iter().all(is_our_name)
}

/// The images that programs can run in: those with a name that are not sandbox images.
pub(super) async fn program_images(docker: &Docker) -> Result<Vec<ProgramImage>, EngineError> {
    let filters = HashMap::from([("dangling", vec!["false"])]);
    let listed = list_images(docker, filters).await?;
    let images = listed.into_iter().filter(|image| !is_ours(image));
    let image = |image: ImageSummary| ProgramImage {
        engine: EngineKind::Docker,
        names: image.repo_tags,
        since: unix_time(image.created),
        size: u64::try_from(image.size).unwrap_or(0),
        id: image.id,
    };
    Ok(images.map(image).filter(|image| !image.names.is_empty()).collect())
}

async fn list_by_label(docker: &Docker, label: &str) -> Result<Vec<ImageSummary>, EngineError> {
    list_images(docker, HashMap::from([("label", vec![label])])).await
}

/// Newest first.
async fn list_images(
    docker: &Docker,
    filters: HashMap<&str, Vec<&str>>,
) -> Result<Vec<ImageSummary>, EngineError> {
    let options = ListImagesOptionsBuilder::new().filters(&filters).build();
    let mut listed = docker.list_images(Some(options.clone())).await;
    // Podman inspects each image separately, and fails if one was removed meanwhile.
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
    fn loaded_image_is_read_from_the_engines_response() {
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
