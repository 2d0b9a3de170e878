//! The controller: an engine, the sandboxes on it, and the state they share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, io};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use sandbox_api::{EngineInfo, EngineKind, ImageInfo, ProgramImage, ToolCall};
use sandbox_engine::{
    EngineError, EngineFacts, ImageIdError, ImageSelector, Images, Rebuild, UserMapping,
};
use sandbox_staging::ConflictLog;
use sandbox_staging::kept::KeptImages;
use sandbox_warm_pool::{PoolConfig, PoolStats};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::PreparedSandbox;
use crate::audit::{AccessRecord, Audit, AuditReport, Connection, Event};
use crate::config::{Config, Sweep};
use crate::engine_call::step;
use crate::error::Error;
use crate::failpoint::{Point, failpoint};
use crate::gc::pending::Cleanup;
use crate::gc::state_dir::{Instance, StateDir};
use crate::gc::{reap, state_dir};
use crate::io_dir::write_monitor::watch_runtime;
use crate::mounts::MountWatch;
use crate::mounts::refusal::MountRefusal;
use crate::pool::{Claim, PoolHandle};
use crate::sandbox::Sandbox;
use crate::sandbox::context::{OwnMounts, Shared};
use crate::sandbox::owner::Owners;
use crate::step::Step;

/// The chunk size of an image stream.
const PIECE_BYTES: usize = 64 << 10;

/// How long closing a controller waits for its first sweep.
const FIRST_SWEEP_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to an engine, which launches and owns sandboxes.
pub struct Controller {
    pub(crate) shared: Arc<Shared>,
    sweeper: Option<Sweeper>,
    pool: OnceLock<PoolHandle>,
}

/// Removes leftovers of crashed controllers in the background, until it is dropped.
struct Sweeper {
    _task: AbortOnDropHandle<()>,
    /// Held until the first sweep is done.
    first: Arc<Mutex<()>>,
}

impl Sweeper {
    fn start(shared: &Shared) -> Self {
        let first = Arc::new(Mutex::new(()));
        let held = first.clone().try_lock_owned();
        let sweep = reap::sweep(shared.instance.state.clone(), shared.engine.clone(), held);
        Self { _task: AbortOnDropHandle::new(crate::spawn(sweep)), first }
    }

    /// Waits for the first sweep, so that even a short command removes leftovers. The wait is
    /// bounded: a slow engine completes the requests it has by itself.
    async fn first_sweep(&self) {
        _ = tokio::time::timeout(FIRST_SWEEP_TIMEOUT, self.first.lock()).await;
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Controller").field("engine", self.engine()).finish_non_exhaustive()
    }
}

impl Controller {
    /// Connects to an engine, and with [`Sweep::Regularly`] starts to remove leftovers of crashed
    /// controllers.
    ///
    /// # Errors
    ///
    /// [`Error`] if no engine responds, or if the configuration is invalid.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        let audit = config.audit.as_deref().map_or(Ok(Audit::off()), |file| {
            let refused =
                |it: MountRefusal| Error::Audit { path: file.into(), reason: it.to_string() };
            config.check_output(file).map_err(refused)?;
            Audit::open(file)
        })?;
        let boot_id = state_dir::boot_id()?;
        let state = StateDir::open(&config.state_dir, &config.scratch_dir, &boot_id)?;
        let since = std::time::Instant::now();
        let engine = sandbox_engine::connect(
            &config.engine, &config.agent, &config.state_dir, config.disk_reserve,
        )
        .await?;
        let EngineInfo { kind, endpoint, why, .. } = engine.info();
        tracing::info!(endpoint, took = ?since.elapsed(), "connecting to the {kind} engine ({why})");
        // Over a network it is on another machine.
        let is_local = *kind == EngineKind::Embedded || endpoint.starts_with("unix:");
        let own_mounts = OwnMounts::new(is_local && rustix::process::geteuid().is_root());
        let instance = Instance::register(state, endpoint)?;
        let folders = config.reserved_dirs();
        failpoint(Point::Registered).await;
        let shared = Shared {
            engine,
            instance,
            cleanup: Cleanup::new(),
            ceiling: config.ceiling,
            program_ceiling: config.program_ceiling,
            boot_id,
            agent: config.agent,
            confinement: config.confinement,
            audit,
            owners: Owners::default(),
            disk_reserve: config.disk_reserve,
            ca_file: config.ca_file.clone(),
            watch_runtime,
            folders,
            mount_watch: MountWatch::default(),
            own_mounts,
            kept_images: KeptImages::default(),
        };
        Ok(Self::new(Arc::new(shared), config.sweep))
    }

    pub(crate) fn new(shared: Arc<Shared>, sweep: Sweep) -> Self {
        let sweeper = match sweep {
            Sweep::Regularly => Some(Sweeper::start(&shared)),
            Sweep::Never => None,
        };
        Self { shared, sweeper, pool: OnceLock::new() }
    }

    /// The engine, and why it was chosen.
    pub fn engine(&self) -> &EngineInfo {
        self.shared.engine.info()
    }

    /// What the engine reports about itself.
    ///
    /// # Errors
    ///
    /// [`Error`] if the engine fails.
    pub async fn engine_facts(&self) -> Result<EngineFacts, Error> {
        step(Step::Connect, self.shared.engine.facts()).await
    }

    /// Compares the programs that the embedded engine executes with those that are embedded in this
    /// library, and says where they are, for people. `None` for another engine.
    ///
    /// # Errors
    ///
    /// [`Error`] if they are others.
    pub async fn examine_programs(&self) -> Result<Option<String>, Error> {
        if self.engine().kind != EngineKind::Embedded {
            return Ok(None);
        }
        let examine = async {
            let examined = tokio::task::spawn_blocking(sandbox_engine::examine_programs).await;
            let examined = examined.unwrap_or_else(|error| Err(io::Error::other(error)));
            examined.map(Some).map_err(|error| EngineError::Refused(error.to_string()))
        };
        step(Step::Connect, examine).await
    }

    /// Prepares the root filesystem of a sandbox: pulls or builds its image, or unpacks its
    /// archive, as [`launch`](Self::launch) would, and reports progress for people. Every launch of
    /// the returned value uses exactly this root filesystem.
    ///
    /// # Errors
    ///
    /// [`Error`] if the root filesystem cannot be prepared.
    pub async fn prepare(
        &self,
        sandbox: impl Into<PreparedSandbox>,
        mut progress: impl FnMut(&str) + Send,
    ) -> Result<PreparedSandbox, Error> {
        let sandbox = sandbox.into();
        let prepared = self.shared.prepare(&sandbox.spec.root, &mut progress).await?;
        Ok(PreparedSandbox { prepared, ..sandbox })
    }

    /// Launches a sandbox.
    ///
    /// # Errors
    ///
    /// [`Error`]; no guest code has run in this case.
    pub async fn launch(&self, sandbox: impl Into<PreparedSandbox>) -> Result<Sandbox, Error> {
        self.launch_prepared(sandbox.into()).await
    }

    /// Its future is boxed in a function that is not generic: each crate that launches sandboxes would otherwise
    /// have the code of a launch once more.
    fn launch_prepared(
        &self,
        mut sandbox: PreparedSandbox,
    ) -> BoxFuture<'_, Result<Sandbox, Error>> {
        let launched = async move {
            let asks = sandbox.permission.is_some() && sandbox.spec.supports_exec();
            let pool = self.pool.get().filter(|_| !asks);
            let claim = match pool {
                Some(pool) => pool.claim(&mut sandbox).await,
                None => Claim::Unpooled,
            };
            let _cold_start = match claim {
                Claim::Warm(sandbox) => return Ok(sandbox),
                Claim::Cold(start) => Some(start),
                Claim::Unpooled => None,
            };
            Sandbox::launch(self.shared.clone(), sandbox).await
        };
        Box::pin(launched)
    }

    /// Starts sandboxes ahead from now on, of the kinds that [`prewarm`](Self::prewarm) names, and if it
    /// is adaptive, of those that are often launched. [`launch`](Self::launch) takes one, if there is one
    /// of the same kind, and otherwise starts one at once, as without a pool. Each serves one launch. The
    /// first call alone has an effect, and none with a size of 0.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn pool(&self, config: PoolConfig) {
        if config.size > 0 {
            self.pool.get_or_init(|| PoolHandle::new(self.shared.clone(), config));
        }
    }

    /// Keeps sandboxes like this one in the [pool](Self::pool), if there is one: with the same
    /// root, io dir, mounts, user and container limits. They are started in the background:
    /// [`pool_settled`](Self::pool_settled) waits for them. Settings that are sent to the agent
    /// with the claim do not matter: time limits, rules, hosts.
    ///
    /// # Errors
    ///
    /// [`Error`] if a launch of it would fail, as far as that is known; [`Error::NotPooled`] if it has
    /// inputs, a staged io dir, a container name, or a lifetime of more than a week, or if there are as
    /// many kinds as there may be.
    pub async fn prewarm(&self, sandbox: impl Into<PreparedSandbox>) -> Result<(), Error> {
        match self.pool.get() {
            Some(pool) => pool.prewarm(sandbox.into()).await,
            None => Ok(()),
        }
    }

    /// Waits until the [pool](Self::pool) has all the sandboxes that it is to have, or cannot start them.
    pub async fn pool_settled(&self) {
        if let Some(pool) = self.pool.get() {
            pool.settled().await;
        }
    }

    /// What the [pool](Self::pool) has and has done; `None` without one.
    pub fn pool_stats(&self) -> Option<PoolStats> {
        self.pool.get().map(PoolHandle::stats)
    }

    /// Whether a sandbox can probably be launched at once. Otherwise the image is looked up first,
    /// and may have to be built.
    pub fn knows_its_image(&self) -> bool {
        self.shared.engine.images().is_none_or(Images::is_known)
    }

    fn images(&self) -> Result<&dyn Images, Error> {
        let engine = &self.shared.engine;
        engine.images().ok_or_else(|| Error::NoImages { engine: engine.info().kind })
    }

    /// Builds the sandbox image. `progress` receives the engine's output lines.
    ///
    /// # Errors
    ///
    /// [`Error`] if the engine fails.
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

    /// Lists the engine's sandbox images, newest first; empty on an engine that needs none.
    ///
    /// # Errors
    ///
    /// [`Error`] if the engine fails.
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

    /// Removes sandbox images, and returns the removed ones.
    ///
    /// # Errors
    ///
    /// [`Error`] if an id matches no image or several, in which case nothing is removed, or if the
    /// engine fails.
    pub async fn image_remove(&self, which: ImageSelector) -> Result<Vec<ImageInfo>, Error> {
        let chosen = which.choose(self.image_list().await?)?;
        for image in &chosen {
            step(Step::RemoveImage, self.images()?.remove(&image.id)).await?;
        }
        Ok(chosen)
    }

    /// Lists what programs can run in without a pull or an unpacking.
    ///
    /// # Errors
    ///
    /// [`Error`] if the engine fails.
    pub async fn program_images(&self) -> Result<Vec<ProgramImage>, Error> {
        step(Step::List, self.shared.engine.program_images()).await
    }

    /// Removes unpacked archives, and returns the removed ones.
    ///
    /// # Errors
    ///
    /// As [`image_remove`](Self::image_remove); also if one is in use, or is Docker's own.
    pub async fn program_images_remove(
        &self,
        which: ImageSelector,
    ) -> Result<Vec<ProgramImage>, Error> {
        let chosen = which.choose_programs(self.program_images().await?)?;
        for image in &chosen {
            let removal = self.shared.engine.remove_program_image(&image.id);
            step(Step::RemoveImage, removal).await?;
        }
        Ok(chosen)
    }

    /// Writes the current sandbox image as a tar archive, building it first if it is missing.
    ///
    /// # Errors
    ///
    /// [`Error`] if the engine or the writer fails.
    pub async fn image_save(
        &self,
        mut writer: impl AsyncWrite + Send + Unpin,
    ) -> Result<ImageInfo, Error> {
        let (id, mut pieces) = step(Step::Image, self.images()?.save()).await?;
        let failed = |source| Error::ImageStream { action: "save", source };
        // The time limit applies to each chunk: the whole transfer may be slow.
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
    /// [`Error`] if the engine or the reader fails, or if the image is not a sandbox image.
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

    pub(crate) fn highest_id(&self) -> u32 {
        self.shared.engine.highest_id()
    }

    /// Writes a service's decision about a request to the audit, if there is one.
    pub fn audit_access(&self, record: AccessRecord<'_>) {
        self.shared.audit.record(&Event::access(record));
    }

    /// Writes to the audit, if there is one, a call of a tool of the host that no script made.
    pub fn audit_tool_call(&self, id: &str, made: &ToolCall) {
        self.shared.audit.record(&Event::tool_call(id, made.tool.as_bytes(), made));
    }

    /// Writes to the audit, if there is one, what a service did that no sandbox was asked for: to itself, or to a
    /// port of a sandbox that it keeps.
    pub fn audit_service(&self, id: &str, operation: &str, port: Option<u16>) {
        let target = port.map(|port| format!("localhost:{port}"));
        let connection = target.as_deref();
        let connection =
            connection.map(|target| Connection { target, address: None, reason: None });
        self.shared.audit.record(&Event { connection, ..Event::new(id, operation) });
    }

    /// What interrupted commits were completed without, since they were taken last: also while this
    /// controller closes.
    pub fn commit_conflicts(&self) -> ConflictLog {
        self.shared.instance.state.stages.conflicts().clone()
    }

    /// Waits until all sandboxes are removed, and reports the state of the audit, if there is one.
    /// Waits at most 2 s for an audit file that accepts no data.
    pub async fn close(self) -> Option<AuditReport> {
        if let Some(pool) = &self.pool.get() {
            pool.close().await;
        }
        if let Some(sweeper) = self.sweeper {
            sweeper.first_sweep().await;
        }
        if self.shared.cleanup.finish().await {
            failpoint(Point::Closed).await;
            match self.shared.cleanup.is_handed_over() {
                true => self.shared.instance.retire(),
                false => self.shared.instance.unregister(),
            }
        }
        self.shared.audit.flush().await
    }
}
