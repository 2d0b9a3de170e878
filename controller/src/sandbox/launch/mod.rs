//! From a spec to a sandbox, in steps whose values own the resources to remove:
//!
//! ```text
//! Opened ──> Created ──> Started ──> Ready ──> Sandbox
//!  files      container   session     proven    configured
//! ```
//!
//! Dropping any of them removes its resources.

pub(crate) mod pooled;
mod started;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use sandbox_api::{
    EngineKind, PrivateIo, RootFs, SandboxSpec, SpecError, StartKind, generation_of,
};
use sandbox_dirfd::{DiskUsage, FreeSpace, Identity};
use sandbox_engine::{
    Container, EngineError, Prepared, ProgramRoot, Source, UserMapping, container_name,
};
use sandbox_protocol::argv::{DiskSpace, PROXY_PORT};
use sandbox_protocol::message::Access;
use sandbox_staging::bounded::BoundedDir;

use crate::audit::Event;
use crate::egress::{Egress, system_resolver};
use crate::engine_call::step;
use crate::error::Error;
use crate::failpoint::{Point, failpoint, hold};
use crate::gc::reap;
use crate::io_dir::inputs::open_inputs;
use crate::io_dir::path_map::PathMap;
use crate::io_dir::private::Wanted;
use crate::io_dir::{IoDir, Staging, links_of, only_directories, size_of};
use crate::mounts::{HostPlaces, MountGuard};
use crate::permission::Permission;
use crate::sandbox::context::Shared;
use crate::sandbox::plan::Plan;
use crate::sandbox::prepared::{PreparedSandbox, RootOwner};
use crate::sandbox::removal::{HeldResources, RemovalGuard};
use crate::sandbox::user::{container_user, host_user};
use crate::step::Step;
use crate::{Sandbox, audit};

const IO_DIR: &str = "the io dir";
/// A private io dir that may take at most this part of the sandbox's memory is in memory.
const PART_IN_MEMORY: u64 = 8;
/// The same of the changes of scripts to a staged one.
const STAGED_PART_IN_MEMORY: u64 = 4;
/// What there is beyond the limits of those changes. The agent counts what scripts write; an overlay takes
/// entries of its own, in memory one for each removed file too.
const STAGED_SPARE: DiskUsage = DiskUsage { bytes: 4 << 20, entries: 1 << 32 };

impl Sandbox {
    /// Launches a sandbox.
    pub(crate) async fn launch(
        shared: Arc<Shared>,
        sandbox: impl Into<PreparedSandbox>,
    ) -> Result<Self, Error> {
        let sandbox = sandbox.into();
        let launch = |mounts| Self::try_launch(&shared, sandbox.clone(), mounts);
        launch_with(&shared, &sandbox.spec, launch).await
    }

    async fn try_launch(
        shared: &Arc<Shared>,
        sandbox: PreparedSandbox,
        mounts: Mounts,
    ) -> Result<Self, Error> {
        let started = Instant::now();
        let id = match &sandbox.spec.id {
            Some(id) if generation_of(id).is_some() => id.clone(),
            Some(id) => return Err(SpecError::Id { id: id.clone() }.into()),
            None => sandbox_dirfd::random_hex::<8>(),
        };
        let launch = async {
            let began = Instant::now();
            let opened = Opened::new(shared.clone(), sandbox, mounts).await?;
            failpoint(Point::Opened).await;
            let ready = opened.create(id.clone()).await?.start().await?.greet().await?;
            let sandbox = ready.configure(StartKind::Cold, began).await?;
            failpoint(Point::Greeted).await;
            Ok::<_, Error>(sandbox)
        };
        let launched = launch.await;
        shared.audit.ended(&id, "launch", audit::outcome(&launched), started.elapsed());
        launched
    }
}

/// What may be mounted into a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mounts {
    /// File systems that this process has made too: overlays and images.
    Any,
    /// Directories and files of the host only.
    Directories,
}

/// Launches with any mounts, and if the engine refuses those, with directories only.
async fn launch_with<T, F: Future<Output = Result<T, Error>>>(
    shared: &Shared,
    spec: &SandboxSpec,
    launch: impl Fn(Mounts) -> F,
) -> Result<T, Error> {
    let wants_more = spec.staged || is_to_be_bounded(spec);
    if !wants_more || !shared.own_mounts.are_likely() {
        return launch(Mounts::Directories).await;
    }
    let error = match launch(Mounts::Any).await {
        Err(error) if may_be_for_a_mount(&error) => error,
        launched => return launched,
    };
    tracing::info!(%error, "the engine does not mount what is not a directory");
    if let Some(id) = &spec.id {
        // The name is in use until its container is removed.
        step(Step::Remove, shared.engine.remove(&container_name(id))).await?;
    }
    let launched = launch(Mounts::Directories).await;
    if launched.is_ok() {
        // It was for the mount.
        shared.own_mounts.refuse();
    }
    launched
}

/// Whether a launch may have failed because of what was to be mounted: the engine cannot mount it, or
/// does so on another machine.
fn may_be_for_a_mount(error: &Error) -> bool {
    match error {
        Error::Engine { step, source } => {
            matches!(step, Step::Create | Step::Start) && matches!(source, EngineError::Refused(_))
        }
        Error::IoDirElsewhere { .. } => true,
        _ => false,
    }
}

/// Whether the kernel is to bound the io dir: a private one that programs write to.
fn is_to_be_bounded(spec: &SandboxSpec) -> bool {
    spec.io_dir.is_none() && spec.private_io.is_some() && spec.root.supports_exec()
}

/// A sandbox to create, with its files opened and approved for mounting.
struct Opened {
    shared: Arc<Shared>,
    spec: SandboxSpec,
    /// The root filesystem, if it is already prepared.
    prepared: Option<Prepared>,
    root_owner: RootOwner,
    permission: Option<Arc<dyn Permission>>,
    plan: Plan,
    held: HeldResources,
    mounts: MountGuard,
}

impl Opened {
    async fn new(
        shared: Arc<Shared>,
        sandbox: PreparedSandbox,
        mounts: Mounts,
    ) -> Result<Self, Error> {
        let PreparedSandbox { mut spec, prepared, root_owner, permission } = sandbox;
        spec.limits.check(shared.ceiling(&spec.root))?;
        let owner = made_for(&shared, &spec).await?;
        let mut plan = Plan::new(&spec, shared.confinement)?;
        if permission.is_some() && spec.supports_exec() {
            // What is to be asked for arrives there.
            plan.args.proxy = Some(PROXY_PORT);
        }
        let (allowed, mut mounts) = (mounts, MountGuard::new(&shared.mount_watch, &shared.folders));
        let inputs = std::mem::take(&mut spec.inputs);
        let links = links_of(&spec);
        let inputs = open_inputs(inputs, links, &shared.instance.spool_dir())?;
        let (made, stages) = (shared.instance.made_dir(), &shared.instance.state.stages);
        let is_staged = spec.staged;
        if spec.io_dir.is_some() {
            // First, before the io dir is used.
            stages.recover();
        }
        let image = match (is_staged, allowed) {
            (true, Mounts::Any) => Some(bounded(&shared, &spec, None).await),
            _ => None,
        };
        let private = match (&spec.io_dir, spec.private_io) {
            (None, Some(private)) => {
                let io_dir = private_io_dir(&shared, &spec, private, owner, allowed).await?;
                if spec.user.is_some() && owner.map(|(uid, _)| uid) != Some(io_dir.owner.0) {
                    io_dir.admit_every_user()?;
                }
                Some(io_dir)
            }
            _ => None,
        };
        let make = |dir| {
            mounts.check_path(IO_DIR, dir)?;
            let io_dir = IoDir::make(dir, links, &made, owner)?;
            match is_staged {
                true => {
                    let method = image.map_or(Staging::Copy, Staging::Overlay);
                    let how = (method, shared.disk_reserve);
                    io_dir.staged(stages, how, &mut |point| {
                        hold(Point::Stage(point), || false);
                    })
                }
                false => Ok(io_dir),
            }
        };
        let io_dir = match private {
            Some(private) => Some(private),
            None => spec.io_dir.as_deref().map(make).transpose()?,
        };
        let io_dir = io_dir.map(Arc::new);
        if let Some(io_dir) = &io_dir {
            plan.configure.limits.disk_reserve_bytes = disk_reserve(&shared, io_dir);
        }
        if io_dir.as_ref().is_none_or(|io_dir| io_dir.bounds().is_some()) {
            plan.args.disk = DiskSpace::Bounded;
        }
        let held = HeldResources { io_dir, inputs };
        held.guard(&plan, &mut mounts)?;
        if let Some(io_dir) = &held.io_dir
            && let Some(file) = shared.audit.file()
            && HostPlaces::now().contains_file(&io_dir.host_dir(), file)
        {
            let reason = "it is in the io dir, where a script could change it".to_owned();
            return Err(Error::Audit { path: file.to_owned(), reason });
        }
        Ok(Self { shared, spec, prepared, root_owner, permission, plan, held, mounts })
    }

    /// Creates the container.
    async fn create(self, id: String) -> Result<Created, Error> {
        let Self { shared, spec, prepared, root_owner, permission, plan, held, mut mounts } = self;
        let name = container_name(&id);
        let expires = SystemTime::now() + spec.lifetime;
        let path = held.io_dir.as_ref().and_then(|io_dir| io_dir.host_path());
        let labels = reap::labels(&shared.instance, &id, expires, &spec, path);
        let sources: Vec<Source> = held.sources().cloned().collect();
        let is_private = spec.private_io.is_some();
        let path_map = PathMap::new(
            plan.args
                .mounts
                .iter()
                .zip(&sources)
                .filter(|(mount, _)| !is_private || plan.io.as_ref() != Some(&mount.path))
                .map(|(mount, source)| {
                    let shown =
                        held.io_dir.as_ref().filter(|_| plan.io.as_ref() == Some(&mount.path));
                    let shown = shown.and_then(|io_dir| io_dir.host_path());
                    (
                        mount.path.clone(),
                        shown.map_or_else(|| PathBuf::from(&source.path), PathBuf::from),
                    )
                }),
        );
        let owner = held.io_dir.as_ref().map(|io_dir| io_dir.owner);
        let asked = spec.user;
        let highest = shared.engine.highest_id();
        let user_by = |mapping| container_user(mapping, owner, asked, highest);
        let engine = shared.engine.clone();
        let mapping = || step(Step::Connect, engine.user_mapping());
        let likely_user = match user_by(engine.likely_user_mapping()) {
            Ok(user) => user,
            Err(_) => user_by(mapping().await?)?,
        };
        let prepared = match prepared {
            Some(prepared) => Some(prepared),
            None => shared.prepare(&spec.root, &mut |_| {}).await?,
        };
        // The directory of an archive belongs to sandboxctl alone; so does the empty one.
        if root_owner == RootOwner::Caller
            && let (RootFs::Directory(_), Some(Prepared { root: ProgramRoot::Directory(root), .. })) =
                (&spec.root, &prepared)
        {
            mounts.add_root(root)?;
        }
        let named = prepared.as_ref().and_then(|prepared| prepared.named.as_ref());
        let inputs = held.inputs.iter().filter(|input| input.spool.is_none());
        let named = named.filter(|_| root_owner == RootOwner::Caller).into_iter();
        let named = named.chain(inputs.map(|input| &input.source)).map(|it| it.file.clone());
        let named = named.collect();
        let image_workdir = prepared.as_ref().map(|prepared| prepared.workdir.clone());
        let image_id = prepared.as_ref().and_then(|prepared| match &prepared.root {
            ProgramRoot::Image { id, .. } => Some(id.clone()),
            ProgramRoot::Directory(_) => None,
        });
        let mut container =
            plan.container(&spec, name.clone(), labels, likely_user, &sources, prepared);
        container.hidden = mounts.hidden();
        let (io_dir, identities) = (held.io_dir.clone(), held.identities());
        // Without a proxy there is no connect handler, and a connection request is a breach.
        let egress = plan.args.proxy.map(|_| {
            let shared = shared.clone();
            let record = move |event: &Event<'_>| shared.audit.record(event);
            Arc::new(Egress::new(system_resolver(), &*id, record).asking(permission))
        });
        // From here on there may be a container with this name, even if this process dies.
        let removal =
            RemovalGuard::new(shared.clone(), id.clone(), name.clone(), held, egress.clone());
        // Created for the likely user mapping while the engine is asked for the real one, which
        // saves the round trip.
        let (made, mapping) = tokio::join!(removal.create(container.clone()), mapping());
        let user_mapping = mapping?;
        let user = user_by(user_mapping)?;
        let container: Arc<dyn Container> = if user == likely_user {
            made?
        } else {
            // It was never started.
            step(Step::Remove, engine.remove(&name)).await?;
            container.user = user;
            removal.create(container).await?
        };
        tracing::info!(container = container.id(), %user, "created a container");
        Ok(Created {
            container,
            image_workdir: image_workdir.filter(|_| plan.io.is_none()),
            image_id,
            named,
            id,
            shared,
            spec,
            plan,
            io_dir,
            identities,
            mounts,
            path_map,
            egress,
            user_mapping,
            removal,
        })
    }
}

/// A container that was created but not started, and the facts about its sandbox.
struct Created {
    container: Arc<dyn Container>,
    id: String,
    shared: Arc<Shared>,
    spec: SandboxSpec,
    plan: Plan,
    io_dir: Option<Arc<IoDir>>,
    /// The identity of the opened source of each mount, in order.
    identities: Vec<Identity>,
    mounts: MountGuard,
    path_map: PathMap,
    egress: Option<Arc<Egress>>,
    user_mapping: UserMapping,
    /// The image's default working directory, in a sandbox without an io dir.
    image_workdir: Option<String>,
    /// The id of the image that commands run in.
    image_id: Option<String>,
    /// The paths of what it is made of, as the caller named them.
    named: Vec<Arc<OwnedFd>>,
    removal: RemovalGuard,
}

/// The bytes that the agent must leave free on the file system of an io dir. In a bounded one it has
/// nothing to leave free.
fn disk_reserve(shared: &Shared, io_dir: &IoDir) -> u64 {
    if io_dir.bounds().is_some() {
        return 0;
    }
    let size = FreeSpace::of(io_dir.fd()).map_or(0, |space| space.size);
    shared.disk_reserve.of(size)
}

/// The owner of new directories: the host user of the requested user, if one is requested and the
/// engine maps it to a single host user.
async fn made_for(shared: &Shared, spec: &SandboxSpec) -> Result<Option<(u32, u32)>, Error> {
    let Some(user) = spec.user else { return Ok(None) };
    Ok(host_user(step(Step::Connect, shared.engine.user_mapping()).await?, user))
}

/// Creates the io dir of a sandbox with a private one.
async fn private_io_dir(
    shared: &Arc<Shared>,
    spec: &SandboxSpec,
    private: PrivateIo,
    owner: Option<(u32, u32)>,
    mounts: Mounts,
) -> Result<IoDir, Error> {
    let is_embedded = shared.engine.info().kind == EngineKind::Embedded;
    let (scratch, size) = (&shared.instance.state.scratch, size_of(&spec.limits));
    let refuse = |reason: String| Error::PrivateIoDir { reason };
    if let Some(path) = &spec.kept_at {
        let wanted = match (is_to_be_bounded(spec), mounts) {
            (true, Mounts::Any) => Wanted::Image,
            (true, Mounts::Directories) => Wanted::Directory(Some(only_directories())),
            (false, _) => Wanted::Directory(None),
        };
        let (shared, path) = (shared.clone(), path.clone());
        let open = move || {
            let templates = shared.instance.state.templates_dir();
            let image = || shared.kept_images.open(&path, size, owner, &templates);
            IoDir::kept(&path, owner, wanted, image)
        };
        let opened = tokio::task::spawn_blocking(open).await;
        return opened.map_err(|error| refuse(error.to_string()))?;
    }
    match private {
        PrivateIo::Memory if is_embedded && !rustix::process::geteuid().is_root() => {
            Err(refuse("only root can mount a file system in memory for it".to_owned()))
        }
        PrivateIo::Memory if is_embedded => {
            let highest = shared.engine.highest_id();
            let user = container_user(UserMapping::Identity, None, spec.user, highest)?;
            let owner = Some((user.uid(), user.gid()));
            let made = BoundedDir::in_memory(size, DiskUsage::default(), owner);
            IoDir::bounded(made.map_err(|error| refuse(error.to_string()))?)
        }
        PrivateIo::Memory => {
            let reason = "Docker's containers have none that the controller could see";
            Err(refuse(reason.to_owned()))
        }
        PrivateIo::Disk if !is_to_be_bounded(spec) => IoDir::fresh(scratch, owner, None),
        PrivateIo::Disk if mounts == Mounts::Directories => {
            IoDir::fresh(scratch, owner, Some(only_directories()))
        }
        PrivateIo::Disk => match bounded(shared, spec, owner).await {
            Ok(dir) => IoDir::bounded(dir),
            Err(reason) => {
                tracing::warn!(reason, "a private io dir is watched, not bounded");
                IoDir::fresh(scratch, owner, Some(reason))
            }
        },
    }
}

/// A directory that bounds the io dir of a sandbox, or why there is none.
async fn bounded(
    shared: &Arc<Shared>,
    spec: &SandboxSpec,
    owner: Option<(u32, u32)>,
) -> Result<BoundedDir, String> {
    let (shared, size) = (shared.clone(), size_of(&spec.limits));
    let in_memory = match (spec.staged, spec.root.supports_exec()) {
        (true, false) => Some((STAGED_PART_IN_MEMORY, STAGED_SPARE)),
        (true, true) => None,
        (false, _) => Some((PART_IN_MEMORY, DiskUsage::default())),
    };
    // Docker mounts no private directory without a device.
    let in_memory = in_memory
        .filter(|_| spec.staged || shared.engine.info().kind == EngineKind::Embedded)
        .filter(|(part, _)| size.bytes <= spec.limits.memory.as_u64() / part);
    if let Some((_, spare)) = in_memory {
        match BoundedDir::in_memory(size, spare, owner) {
            Ok(dir) => return Ok(dir),
            Err(error) => tracing::debug!(%error, "no file system in memory"),
        }
    }
    // It starts a program, and mounts.
    let make = tokio::task::spawn_blocking(move || {
        let state = &shared.instance.state;
        BoundedDir::on_disk(size, owner, &state.scratch, &state.templates_dir())
    });
    match make.await {
        Ok(made) => made.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

impl HeldResources {
    /// The sources of the mounts, in order.
    fn sources(&self) -> impl Iterator<Item = &Source> {
        let io_dir = self.io_dir.iter().map(|io_dir| &io_dir.source);
        io_dir.chain(self.inputs.iter().map(|input| &input.source))
    }

    /// The identities of the sources.
    fn identities(&self) -> Vec<Identity> {
        let io_dir = self.io_dir.iter().map(|io_dir| io_dir.identity);
        io_dir.chain(self.inputs.iter().map(|input| input.identity)).collect()
    }

    /// Refuses sources that may not be mounted, and watches the others.
    fn guard(&self, plan: &Plan, mounts: &mut MountGuard) -> Result<(), Error> {
        if let (Some(io_dir), Some(target)) = (&self.io_dir, &plan.io) {
            let (staged, target) = (io_dir.staged_sources(), target.to_string());
            for source in if staged.is_empty() { slice::from_ref(&io_dir.source) } else { &staged }
            {
                match io_dir.host_path() {
                    Some(_) => mounts.add(IO_DIR, source, &target, Access::Write)?,
                    None if io_dir.bounds().is_none() => mounts.add_own(IO_DIR, source)?,
                    // A separate mount, without a path.
                    None => {}
                }
            }
        }
        for (input, target) in self.inputs.iter().zip(&plan.inputs) {
            // Spooled inputs are in a directory that belongs to sandboxctl alone.
            if input.spool.is_none() {
                let what = format!("the input '{}'", String::from_utf8_lossy(target.name()));
                mounts.add(&what, &input.source, &target.to_string(), Access::Read)?;
            }
        }
        Ok(())
    }
}
