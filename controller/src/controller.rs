//! The controller: an engine, the sandboxes on it, and what is kept between them.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures_util::StreamExt;
use sandbox_api::{EngineInfo, SandboxSpec};
use sandbox_engine::{
    EngineFacts, ImageIdError, ImageInfo, ImageSelector, Images, Rebuild, UserMapping,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::PreparedSandbox;
use crate::audit::{Audit, AuditReport};
use crate::config::{Config, Sweep};
use crate::engine_call::step;
use crate::error::Error;
use crate::failpoint::{Point, failpoint};
use crate::gc::pending::Cleanup;
use crate::gc::state_dir::{Instance, StateDir};
use crate::gc::{reap, state_dir};
use crate::mounts::{MountWatch, OwnFolders};
use crate::sandbox::Sandbox;
use crate::sandbox::context::Shared;
use crate::sandbox::owner::Owners;
use crate::step::Step;

/// One piece of a stream of an image.
const PIECE_BYTES: usize = 64 << 10;

/// How long the end of a controller waits for its first look at leftovers.
const SWEEP_PATIENCE: Duration = Duration::from_secs(5);

/// An engine, and the sandboxes on it.
pub struct Controller {
    shared: Arc<Shared>,
    sweeper: Option<Sweeper>,
}

/// Removes what dead controllers left, in the background, until it is dropped.
struct Sweeper {
    task: JoinHandle<()>,
    /// Held until it has looked once.
    first: Arc<Mutex<()>>,
}

impl Sweeper {
    fn start(shared: &Shared) -> Self {
        let first = Arc::new(Mutex::new(()));
        let held = first.clone().try_lock_owned();
        let sweep = reap::sweep(shared.instance.state().clone(), shared.engine.clone(), held);
        Self { task: tokio::spawn(sweep), first }
    }

    /// Waits until it has looked once: what was left is to be gone after one command, however
    /// short. Not for long: an engine that is slow ends what it was asked for by itself.
    async fn looked(&self) {
        _ = tokio::time::timeout(SWEEP_PATIENCE, self.first.lock()).await;
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Controller").field("engine", self.engine()).finish_non_exhaustive()
    }
}

impl Controller {
    /// Finds an engine, and with [`Sweep::Regularly`] begins to remove what dead controllers left
    /// on it.
    ///
    /// # Errors
    ///
    /// [`Error`] where none answers, or the configuration is wrong.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        let audit = config.audit.as_deref().map_or(Ok(Audit::off()), Audit::open)?;
        let boot_id = state_dir::boot_id()?;
        let state = StateDir::open(&config.state_dir, &boot_id)?;
        let engine =
            sandbox_engine::connect(&config.engine, &config.agent, &config.state_dir).await?;
        let EngineInfo { endpoint, why, .. } = engine.info();
        tracing::info!(endpoint, why, "connected to the engine");
        let instance = Instance::register(state, endpoint)?;
        failpoint(Point::Registered).await;
        let shared = Shared {
            engine,
            instance,
            cleanup: Cleanup::new(),
            ceiling: config.ceiling,
            boot_id,
            confinement: config.confinement,
            audit,
            owners: Owners::default(),
            disk_reserve: config.disk_reserve,
            folders: OwnFolders {
                state_dir: config.state_dir,
                data_dir: config.engine.embedded.data_dir,
            },
            mount_watch: MountWatch::default(),
        };
        Ok(Self::new(Arc::new(shared), config.sweep))
    }

    pub(crate) fn new(shared: Arc<Shared>, sweep: Sweep) -> Self {
        let sweeper = match sweep {
            Sweep::Regularly => Some(Sweeper::start(&shared)),
            Sweep::Never => None,
        };
        Self { shared, sweeper }
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

    /// Makes ready what a sandbox is made from: its image is fetched or built, its archive unpacked,
    /// as [`launch`](Self::launch) would do, with words for people while that lasts. Every launch of
    /// what comes back is from just that.
    ///
    /// # Errors
    ///
    /// [`Error`] where it cannot be had.
    pub async fn prepare(
        &self,
        spec: SandboxSpec,
        mut progress: impl FnMut(&str) + Send,
    ) -> Result<PreparedSandbox, Error> {
        let prepared = self.shared.prepare(&spec.root, &mut progress).await?;
        Ok(PreparedSandbox { prepared, ..spec.into() })
    }

    /// Launches a sandbox.
    ///
    /// # Errors
    ///
    /// [`Error`]; nothing of the guest's has run then.
    pub async fn launch(&self, sandbox: impl Into<PreparedSandbox>) -> Result<Sandbox, Error> {
        Sandbox::launch(self.shared.clone(), sandbox).await
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
        let id = step(Step::Image, images.build(&mut progress)).await?;
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
        let unknown = || ImageIdError { which: id.to_owned(), reason: "no image has it" };
        Ok(image.ok_or_else(unknown)?)
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

    pub(crate) async fn user_mapping(&self) -> Result<UserMapping, Error> {
        step(Step::Connect, self.shared.engine.user_mapping()).await
    }

    /// Waits until everything that is to be removed is, and tells what became of the audit, where
    /// there is one. A file that takes nothing is not waited for beyond 2 s.
    pub async fn close(self) -> Option<AuditReport> {
        if let Some(sweeper) = self.sweeper {
            sweeper.looked().await;
        }
        if self.shared.cleanup.finish().await {
            failpoint(Point::Closed).await;
            self.shared.instance.unregister();
        }
        self.shared.audit.flush().await
    }
}
