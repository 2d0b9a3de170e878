//! The controller: an engine, the sandboxes on it, and what is kept between them.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinHandle;

use crate::agent::Agent;
use crate::cleanup::Cleanup;
use crate::config::{Config, EngineChoice, Sweep};
use crate::doctor::Check;
use crate::engine::docker::DockerEngine;
use crate::engine::{Engine, EngineFacts, EngineInfo, Images, UserMapping};
use crate::error::{Error, Step, step};
use crate::image::{ImageInfo, ImageSelector, Rebuild};
use crate::limits::Ceiling;
use crate::reap::{GcOptions, GcReport, Instance, SandboxSummary};
use crate::sandbox::Sandbox;
use crate::spec::SandboxSpec;

/// One piece of a stream of an image.
const PIECE_BYTES: usize = 64 << 10;

/// An engine, and the sandboxes on it.
pub struct Controller {
    shared: Arc<Shared>,
    sweep: Option<JoinHandle<()>>,
}

/// What a controller and its sandboxes have in common.
pub(crate) struct Shared {
    pub engine: Arc<dyn Engine>,
    pub instance: Instance,
    pub cleanup: Cleanup,
    pub ceiling: Ceiling,
    pub boot_id: String,
}

impl Shared {
    /// Removes what dead controllers left. What fails is tried again by the next sweep, and is no
    /// failure of this controller's.
    async fn sweep(self: Arc<Self>) {
        match self.instance.gc(&*self.engine, GcOptions::default()).await {
            Ok(report) if report.removed.is_empty() => {}
            Ok(report) => tracing::info!(count = report.removed.len(), "removed leftovers"),
            Err(error) => tracing::debug!(error = error.full_message(), "cannot sweep"),
        }
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Controller").field("engine", self.engine()).finish_non_exhaustive()
    }
}

impl Controller {
    /// Finds an engine, and with [`Sweep::AtConnect`] begins to remove what dead controllers left
    /// on it.
    ///
    /// # Errors
    ///
    /// [`Error`] where none answers, or the configuration is wrong.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        let engine = connect(&config).await?;
        let EngineInfo { endpoint, why, .. } = engine.info();
        tracing::info!(endpoint, why, "connected to the engine");
        let boot_id = boot_id()?;
        let instance = Instance::register(&config.state_dir, &boot_id, endpoint)?;
        let shared = Arc::new(Shared {
            engine,
            instance,
            cleanup: Cleanup::new(),
            ceiling: config.ceiling,
            boot_id,
        });
        let sweep = match config.sweep {
            Sweep::AtConnect => Some(tokio::spawn(shared.clone().sweep())),
            Sweep::Never => None,
        };
        Ok(Self { shared, sweep })
    }

    /// The engine, and why it was taken.
    #[must_use]
    pub fn engine(&self) -> &EngineInfo {
        self.shared.engine.info()
    }

    /// What the engine says of itself.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine fails.
    pub async fn engine_facts(&self) -> Result<EngineFacts, Error> {
        step(Step::Connect, self.shared.engine.facts()).await
    }

    /// Launches a sandbox.
    ///
    /// # Errors
    ///
    /// [`Error`]; nothing of the guest's has run then.
    pub async fn launch(&self, spec: SandboxSpec) -> Result<Sandbox, Error> {
        Sandbox::launch(self.shared.clone(), spec).await
    }

    /// The containers of sandboxes that the engine has.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine fails.
    pub async fn ps(&self) -> Result<Vec<SandboxSummary>, Error> {
        self.shared.instance.survey(&*self.shared.engine).await
    }

    /// Removes what dead controllers left.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine cannot list. What cannot be removed is in the report.
    pub async fn gc(&self, options: GcOptions) -> Result<GcReport, Error> {
        self.shared.instance.gc(&*self.shared.engine, options).await
    }

    /// Whether a sandbox can be launched at once, as far as is known: else the image is looked for
    /// first, and may have to be built.
    #[must_use]
    pub fn knows_its_image(&self) -> bool {
        self.shared.engine.images().is_none_or(Images::is_known)
    }

    fn images(&self) -> Result<&dyn Images, Error> {
        let engine = &self.shared.engine;
        engine.images().ok_or_else(|| Error::NoImages { engine: engine.info().kind })
    }

    /// Builds the sandbox image. `progress` gets the engine's lines.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine fails.
    pub async fn image_build(
        &self,
        rebuild: Rebuild,
        mut progress: impl FnMut(&str) + Send,
    ) -> Result<ImageInfo, Error> {
        let images = self.images()?;
        let current = self.image_list().await?.into_iter().find(|image| image.current);
        if let (Rebuild::IfMissing, Some(image)) = (rebuild, current) {
            return Ok(image);
        }
        let id = step(Step::Image, images.build(rebuild, &mut progress)).await?;
        self.image(&id).await
    }

    /// The sandbox images that the engine has, newest first; none on an engine that needs none.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine fails.
    pub async fn image_list(&self) -> Result<Vec<ImageInfo>, Error> {
        match self.shared.engine.images() {
            Some(images) => step(Step::List, images.list()).await,
            None => Ok(Vec::new()),
        }
    }

    async fn image(&self, id: &str) -> Result<ImageInfo, Error> {
        let images = self.image_list().await?;
        let image = images.into_iter().find(|image| image.id == id);
        image.ok_or_else(|| Error::ImageId { which: id.to_owned(), reason: "no image has it" })
    }

    /// Removes sandbox images, and gives those that went.
    ///
    /// # Errors
    ///
    /// [`Error`] where an id names no image or several, and nothing is removed then; or the
    /// engine fails.
    pub async fn image_remove(&self, which: ImageSelector) -> Result<Vec<ImageInfo>, Error> {
        let chosen = which.choose(self.image_list().await?)?;
        for image in &chosen {
            step(Step::RemoveImage, self.images()?.remove(&image.id)).await?;
        }
        Ok(chosen)
    }

    /// Writes the current sandbox image as a tar, building it first where it is missing.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine or the writer fails.
    pub async fn image_save(
        &self,
        mut writer: impl AsyncWrite + Send + Unpin,
    ) -> Result<ImageInfo, Error> {
        let (id, mut pieces) = step(Step::Image, self.images()?.save()).await?;
        let failed = |source| Error::ImageStream { action: "save", source };
        // Each piece has the time of a step: the whole may be slow.
        while let Some(piece) = step(Step::Image, async { pieces.next().await.transpose() }).await?
        {
            writer.write_all(&piece).await.map_err(failed)?;
        }
        writer.flush().await.map_err(failed)?;
        self.image(&id).await
    }

    /// Loads an image that [`image_save`](Self::image_save) wrote.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine or the reader fails, or the image is none of ours.
    pub async fn image_load(
        &self,
        reader: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<ImageInfo, Error> {
        let images = self.images()?;
        let pieces = futures_util::stream::unfold(Some(reader), |reader| async {
            let mut reader = reader?;
            let mut piece = bytes::BytesMut::with_capacity(PIECE_BYTES);
            match reader.read_buf(&mut piece).await {
                Ok(0) => None,
                Ok(_) => Some((Ok(piece.freeze()), Some(reader))),
                Err(error) => Some((Err::<bytes::Bytes, io::Error>(error), None)),
            }
        });
        let id = step(Step::Image, images.load(pieces.boxed())).await?;
        self.image(&id).await
    }

    /// Looks at all that a sandbox needs. Works without an engine too. It builds the sandbox
    /// image where it is missing, and runs a script in a sandbox.
    pub async fn doctor(config: Config, io_dir: Option<&Path>) -> Vec<Check> {
        crate::doctor::examine(config, io_dir).await
    }

    pub(crate) async fn user_mapping(&self) -> Result<UserMapping, Error> {
        step(Step::Connect, self.shared.engine.user_mapping()).await
    }

    /// Waits until everything that is to be removed is. Leftovers of others it does not wait for:
    /// the engine ends the removal that it was asked for, and the next sweep goes on.
    pub async fn close(self) {
        if let Some(sweep) = self.sweep {
            sweep.abort();
        }
        if self.shared.cleanup.finish().await {
            self.shared.instance.unregister();
        }
    }
}

/// The engine that the configuration asks for.
async fn connect(config: &Config) -> Result<Arc<dyn Engine>, Error> {
    match config.engine.kind {
        EngineChoice::Auto | EngineChoice::Docker => {
            let agent = Agent::open(&config.agent)?;
            let docker = DockerEngine::connect(&config.engine, agent, &config.state_dir).await?;
            Ok(Arc::new(docker))
        }
        EngineChoice::Embedded => Err(Error::NoEmbeddedEngine),
    }
}

/// This kernel's boot id.
pub(crate) fn boot_id() -> Result<String, Error> {
    let path = "/proc/sys/kernel/random/boot_id";
    std::fs::read_to_string(path)
        .map(|id| id.trim().to_owned())
        .map_err(|source| Error::State { path: path.into(), source })
}
