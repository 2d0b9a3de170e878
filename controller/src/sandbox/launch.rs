//! From a spec to a sandbox that is ready: create, attach, start, hello.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Instant, SystemTime};

use sandbox_api::{EngineKind, RootFs, SandboxSpec};
use sandbox_dirfd::Identity;
use sandbox_engine::{Container, Prepared, ProgramRoot, Source, UserMapping};
use sandbox_protocol::message::{Access, Confinement, UnixSockets};
use tokio::sync::Semaphore;

use crate::audit::Event;
use crate::egress::{Egress, SystemResolver};
use crate::engine_call::step;
use crate::error::Error;
use crate::failpoint::{Point, failpoint};
use crate::gc::reap;
use crate::io_dir::IoDir;
use crate::io_dir::disk::FreeSpace;
use crate::io_dir::inputs::open_inputs;
use crate::io_dir::path_map::PathMap;
use crate::io_dir::write_monitor::WriteBaseline;
use crate::mounts::MountGuard;
use crate::sandbox::Inner;
use crate::sandbox::context::Shared;
use crate::sandbox::idle::Activity;
use crate::sandbox::plan::Plan;
use crate::sandbox::prepared::{PreparedSandbox, RootOwner};
use crate::sandbox::removal::{HeldResources, RemovalGuard};
use crate::sandbox::user::container_user;
use crate::session::{ConnectHandler, Session};
use crate::step::Step;
use crate::{Sandbox, audit};

const IO_DIR: &str = "the io dir";

impl Sandbox {
    /// Launches a sandbox.
    pub(crate) async fn launch(
        shared: Arc<Shared>,
        sandbox: impl Into<PreparedSandbox>,
    ) -> Result<Self, Error> {
        let started = Instant::now();
        let id = sandbox_dirfd::random_hex::<8>();
        let launched = Self::launch_as(id.clone(), shared.clone(), sandbox.into()).await;
        shared.audit.record(&Event {
            outcome: audit::outcome(&launched),
            duration: Some(started.elapsed()),
            ..Event::new(&id, "launch")
        });
        launched
    }

    async fn launch_as(
        id: String,
        shared: Arc<Shared>,
        sandbox: PreparedSandbox,
    ) -> Result<Self, Error> {
        let PreparedSandbox { mut spec, prepared, root_owner } = sandbox;
        spec.limits.check(&shared.ceiling)?;
        let mut plan = Plan::new(&spec, shared.confinement)?;
        let mut mounts = MountGuard::new(&shared.mount_watch, &shared.folders);
        let inputs = std::mem::take(&mut spec.inputs);
        let inputs = open_inputs(inputs, &shared.instance.spool_dir())?;
        let make = |dir| {
            mounts.check_path(IO_DIR, dir)?;
            IoDir::make(dir, &shared.instance.made_dir())
        };
        let io_dir = match (&spec.io_dir, spec.io_is_private) {
            (None, true) => Some(private_io_dir(&shared, &spec)?),
            (io_dir, _) => io_dir.as_deref().map(make).transpose()?,
        };
        let io_dir = io_dir.map(Arc::new);
        if let Some(io_dir) = &io_dir {
            let size = FreeSpace::of(io_dir.fd()).map_or(0, |space| space.size);
            plan.hello.limits.disk_reserve_bytes = shared.reserve_for(io_dir).of(size);
        }
        let kept = HeldResources { io_dir, inputs };
        kept.guard(&plan, &mut mounts)?;
        if let Some(io_dir) = &kept.io_dir
            && let Some(file) = shared.audit.lies_in(io_dir.identity())
        {
            let reason = "it lies in the io dir, where a script could change it".to_owned();
            return Err(Error::Audit { path: file.to_owned(), reason });
        }
        failpoint(Point::Opened).await;
        let engine = shared.engine.clone();
        let owner = kept.io_dir.as_ref().map(|io_dir| io_dir.owner());
        let user_by = |mapping| container_user(mapping, owner, spec.user);
        let mapping = || step(Step::Connect, engine.user_mapping());
        let likely_user = match user_by(engine.likely_user_mapping()) {
            Ok(user) => user,
            Err(_) => user_by(mapping().await?)?,
        };

        let name = reap::container_name(&id);
        let expires = SystemTime::now() + spec.lifetime;
        let mut labels = reap::labels(&shared.instance, &id, expires);
        labels.extend(spec.container_name.take().map(reap::label_of_name));
        let sources: Vec<Source> = kept
            .io_dir
            .iter()
            .map(|io_dir| io_dir.source())
            .chain(kept.inputs.iter().map(|input| &input.source))
            .cloned()
            .collect();
        let places = PathMap::new(
            plan.args
                .mounts
                .iter()
                .zip(&sources)
                .filter(|(_, source)| !source.is_private())
                .map(|(mount, source)| (mount.path.clone(), PathBuf::from(&source.path))),
        );

        let prepared = match prepared {
            Some(prepared) => Some(prepared),
            None => shared.prepare(&spec.root, &mut |_| {}).await?,
        };
        // An archive's is in a folder of ours, and nobody else's; so is the empty one.
        if root_owner == RootOwner::Caller
            && let (RootFs::Directory(_), Some(Prepared { root: ProgramRoot::Directory(root), .. })) =
                (&spec.root, &prepared)
        {
            mounts.add_root(root)?;
        }
        let image_workdir = prepared.as_ref().map(|prepared| prepared.workdir.clone());
        let mut container =
            plan.container(&spec, name.clone(), labels, likely_user, &sources, prepared);
        container.hidden = mounts.hidden();
        let io_dir = kept.io_dir.clone();
        let identities: Vec<Identity> = io_dir
            .iter()
            .map(|io_dir| io_dir.identity())
            .chain(kept.inputs.iter().map(|input| input.identity))
            .collect();
        // Without a list there is no gate at all, and to ask for a connection is a breach.
        let egress = (!spec.allow.rules().is_empty()).then(|| {
            let (list, resolver) = (std::mem::take(&mut spec.allow), SystemResolver::new());
            let shared = shared.clone();
            let record = move |event: &Event<'_>| shared.audit.record(event);
            Arc::new(Egress::new(list, (&spec.limits).into(), resolver, &*id, record))
        });
        // From here on there may be a container, known by its name, whatever becomes of us.
        let remains =
            RemovalGuard::new(shared.clone(), id.clone(), name.clone(), kept, egress.clone());
        // Made for the likely user while the engine is asked, which saves its answer's time.
        let (made, mapping) = tokio::join!(remains.create(container.clone()), mapping());
        let user_mapping = mapping?;
        let user = user_by(user_mapping)?;
        let container: Arc<dyn Container> = if user == likely_user {
            made?
        } else {
            // It was never started.
            step(Step::Remove, engine.remove(&name)).await?;
            container.user = user;
            remains.create(container).await?
        };
        tracing::info!(container = container.id(), %user, "a sandbox is made");
        let attached = step(Step::Attach, container.attach()).await?;
        step(Step::Start, container.start()).await?;
        let gate = egress.map(|egress| egress as Arc<dyn ConnectHandler>);
        let session = Session::start(attached, gate).map_err(|error| Error::StartFailed {
            detail: format!("cannot start the thread of its heartbeats: {error}"),
        })?;
        let mut inner = Inner {
            id,
            container,
            limits: spec.limits,
            lifespan: spec.lifespan,
            // Nobody knows before the agent says so.
            confinement: Confinement {
                no_new_privileges: false,
                undumpable: false,
                landlock_abi: None,
                seccomp: false,
                unix_sockets: UnixSockets::None,
                missing: Vec::new(),
            },
            session,
            run_lock: Arc::new(Semaphore::new(1)),
            end_cause: Arc::default(),
            activity: Activity::new(),
            is_closing: AtomicBool::new(false),
            runs: AtomicU64::new(0),
            cpu_told: AtomicU64::new(0),
            io_dir,
            io_mount: plan.io.clone(),
            supports_exec: spec.root.supports_exec(),
            ground: WriteBaseline::default(),
            image_workdir: image_workdir.filter(|_| plan.io.is_none()),
            home: plan.args.home.clone(),
            workdir: plan.args.base(),
            places,
            default_encoding: spec.default_encoding,
            user_mapping,
            remains,
            shared,
        };
        let reply = inner.hello(plan.hello.clone()).await?;
        inner.check_confinement(&reply)?;
        inner.prove_mounts(&plan, &identities, &reply).await?;
        inner.confinement = reply.confinement;
        inner.guard(spec.lifetime, spec.idle_limit, mounts);
        failpoint(Point::Greeted).await;
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// The io dir of a sandbox that is to have one of its own.
fn private_io_dir(shared: &Shared, spec: &SandboxSpec) -> Result<IoDir, Error> {
    match shared.engine.info().kind {
        EngineKind::Embedded => {
            IoDir::in_memory(&spec.limits, container_user(UserMapping::Identity, None, spec.user)?)
        }
        EngineKind::Docker => {
            let reason = "Docker's containers have none that the controller could see".to_owned();
            Err(Error::PrivateIoDir { reason })
        }
    }
}

impl HeldResources {
    /// Refuses what may not be mounted, and has the rest watched.
    fn guard(&self, plan: &Plan, mounts: &mut MountGuard) -> Result<(), Error> {
        // A private one is a mount of its own, at no path of the host.
        let io_dir = self.io_dir.as_ref().filter(|io_dir| !io_dir.source().is_private());
        if let (Some(io_dir), Some(target)) = (io_dir, &plan.io) {
            mounts.add(IO_DIR, io_dir.source(), &target.to_string(), Access::Write)?;
        }
        for (input, target) in self.inputs.iter().zip(&plan.inputs) {
            // What was spooled is in a folder of ours, and ours alone.
            if input.spool.is_none() {
                let what = format!("the input '{}'", String::from_utf8_lossy(target.name()));
                mounts.add(&what, &input.source, &target.to_string(), Access::Read)?;
            }
        }
        Ok(())
    }
}
