//! A sandbox's life: create, attach, start, hello, requests, shutdown, exit evidence, remove.
//!
//! Every step has its own time limit ([`Step::time_limit`]). What was started is owned by
//! [`Remains`], whose end removes it; what even that cannot remove (the process was killed, the
//! engine is gone) carries labels by which the next command does ([`reap`](crate::reap)).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use sandbox_protocol::argv::EXIT_UNCONFINED;
use sandbox_protocol::message::{
    Access, Call, Confinement, Hello, HelloReply, MountIdentity, Refused, Shutdown, UnixSockets,
};
use sandbox_protocol::path::{GuestPath, written};
use sandbox_protocol::{ErrorKind, PROTOCOL_VERSION};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::activity::Activity;
use crate::audit::{self, Audit, By, Event};
use crate::confinement;
use crate::disk::{DiskReserve, FreeSpace};
use crate::egress::{Egress, SystemResolver};
use crate::engine::{
    Container, ContainerSpec, EngineError, EngineInfo, EngineKind, Moment, Prepared, ProgramRoot,
    Source, UserMapping,
};
use crate::error::{Error, Step, step};
use crate::failpoint::{Point, failpoint};
use crate::files::Encoding;
use crate::growth::{Ground, Lookout, Watched};
use crate::iodir::{Identity, IoDir, OpenInput, container_user, open_inputs};
use crate::limits::{ByteSize, Ceiling, Limits};
use crate::mounts::{MountGuard, MountLost};
use crate::outcome::{ContainerUsage, ExitEvidence};
use crate::places::Places;
use crate::plan::Plan;
use crate::reap;
use crate::report::{FilesTouched, RunResult};
use crate::run::Run;
use crate::session::{CallError, Gate, Place, Session, SessionEnd};
use crate::shared::Shared;
use crate::spec::{Lifespan, Root, SandboxSpec, Script};

const IO_DIR: &str = "the io dir";

/// How long the engine may take to say how a container ended whose agent left a request unanswered.
const LAST_WORD: Duration = Duration::from_secs(2);

/// A sandbox: one container, which serves it alone. Dropped without [`close`](Self::close): killed
/// and removed.
pub struct Sandbox {
    inner: Arc<Inner>,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sandbox").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Its id, which is also in its container's labels and name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// The engine's id of its container.
    #[must_use]
    pub fn container_id(&self) -> &str {
        self.inner.container.id()
    }

    /// Its io dir on the host, absolute; `None` of one that is private.
    #[must_use]
    pub fn io_dir(&self) -> Option<&Path> {
        self.inner.io_dir().and_then(IoDir::host_path)
    }

    /// What confines the agent beyond its container.
    #[must_use]
    pub fn confinement(&self) -> &Confinement {
        &self.inner.confinement
    }

    /// Where a file or directory of the host appears in the sandbox; `None` where it does not, or
    /// its path is relative or has `..` in it. The path is not looked at: what is there may be a
    /// link, or nothing.
    #[must_use]
    pub fn guest_path(&self, host: impl AsRef<Path>) -> Option<GuestPath> {
        self.inner.places.guest(host.as_ref())
    }

    /// Where a guest path, written as operations take it, is on the host; `None` where that is
    /// outside the mounts. What is there belongs to the guest: open it only if you would open what
    /// any script may have put there.
    #[must_use]
    pub fn host_path(&self, guest: impl AsRef<[u8]>) -> Option<PathBuf> {
        self.inner.places.host(&self.inner.resolve(guest.as_ref())?)
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Runs a script to its end: [`start`](Self::start) and [`Run::wait`].
    ///
    /// # Errors
    ///
    /// As of the two. How a run ended is data.
    pub async fn run(&self, script: Script) -> Result<RunResult, Error> {
        self.start(script).await?.wait().await
    }

    /// Starts a script. One runs at a time; another waits for it.
    ///
    /// # Errors
    ///
    /// [`Error`] where the script's arguments cannot be used, or the sandbox has ended.
    pub async fn start(&self, script: Script) -> Result<Run, Error> {
        Run::start(self.inner.clone(), script).await
    }

    /// Why nothing can be asked of it any more; `None` as long as it is not known to have ended.
    #[must_use]
    pub fn ended(&self) -> Option<Error> {
        self.inner.ended()
    }

    /// Ends it: the agent is told, the container is removed. A run that is under way is cancelled.
    /// Asked again, it tries again where the container could not be removed.
    ///
    /// # Errors
    ///
    /// [`Error`] where the container could not be removed. The next command will.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.close().await
    }

    /// Launches a sandbox.
    pub(crate) async fn launch(shared: Arc<Shared>, spec: SandboxSpec) -> Result<Self, Error> {
        let started = Instant::now();
        let id = crate::random_hex::<8>();
        let launched = Self::launch_as(id.clone(), shared.clone(), spec).await;
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
        mut spec: SandboxSpec,
    ) -> Result<Self, Error> {
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
            plan.hello.limits.disk_reserve_bytes = reserve_for(&shared, io_dir).of(size);
        }
        let kept = Kept { io_dir, inputs };
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
        let places = Places::new(
            plan.args
                .mounts
                .iter()
                .zip(&sources)
                .filter(|(_, source)| !source.is_private())
                .map(|(mount, source)| (mount.path.clone(), PathBuf::from(&source.path))),
        );

        let prepared = match spec.prepared.take() {
            Some(prepared) => Some(prepared),
            None => shared.prepare(&spec.root, &mut |_| {}).await?,
        };
        // An archive's is in a folder of ours, and nobody else's; so is the empty one.
        if !spec.root_is_ours
            && let (Root::Directory(_), Some(Prepared { root: ProgramRoot::Directory(root), .. })) =
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
        let remains = Remains::new(shared.clone(), id.clone(), name.clone(), kept, egress.clone());
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
        let gate = egress.map(|egress| egress as Arc<dyn Gate>);
        let session = Session::start(attached, gate).map_err(|error| Error::NotUp {
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
            turn: Arc::new(Semaphore::new(1)),
            end_cause: Arc::default(),
            activity: Activity::new(),
            is_closing: AtomicBool::new(false),
            runs: AtomicU64::new(0),
            cpu_told: AtomicU64::new(0),
            io_dir,
            io_mount: plan.io.clone(),
            has_programs: spec.root.has_programs(),
            ground: Ground::default(),
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

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.inner.is_closing.store(true, Ordering::Relaxed);
        self.inner.remains.remove(Attempt::First);
    }
}

/// A sandbox, shared with the run under way.
pub(crate) struct Inner {
    id: String,
    container: Arc<dyn Container>,
    pub limits: Limits,
    lifespan: Lifespan,
    pub confinement: Confinement,
    session: Session,
    /// Held by the run under way.
    turn: Arc<Semaphore>,
    /// Why we ended it, where nobody had asked for that.
    end_cause: Arc<OnceLock<EndCause>>,
    pub activity: Activity,
    /// What ends from now on ends by its owner's will.
    is_closing: AtomicBool,
    runs: AtomicU64,
    /// Processor time of the runs so far, as the agent told it last, in milliseconds.
    cpu_told: AtomicU64,
    io_dir: Option<Arc<IoDir>>,
    io_mount: Option<GuestPath>,
    /// Where programs begin whom nobody says where, as their image has it. `None` where there is
    /// the io dir, or there are no programs.
    image_workdir: Option<String>,
    has_programs: bool,
    ground: Ground,
    home: Option<GuestPath>,
    workdir: GuestPath,
    places: Places,
    pub default_encoding: Encoding,
    user_mapping: UserMapping,
    remains: Remains,
    shared: Arc<Shared>,
}

/// What stays free where an io dir is. The host's disk has nothing to do with one in memory.
fn reserve_for(shared: &Shared, io_dir: &IoDir) -> DiskReserve {
    match io_dir.host_path() {
        Some(_) => shared.disk_reserve,
        None => DiskReserve::Bytes(ByteSize::b(0)),
    }
}

impl Inner {
    pub fn engine(&self) -> &EngineInfo {
        self.shared.engine.info()
    }

    pub fn audit(&self) -> &Audit {
        &self.shared.audit
    }

    /// What no limit of a run may be above.
    pub fn ceiling(&self) -> &Ceiling {
        &self.shared.ceiling
    }

    pub const fn session(&self) -> &Session {
        &self.session
    }

    pub fn container(&self) -> &dyn Container {
        &*self.container
    }

    /// Whether programs run in it.
    pub const fn has_programs(&self) -> bool {
        self.has_programs
    }

    /// Looks at the io dir before something runs, where programs may write to it.
    pub async fn look_out(&self, limits: Limits) -> Option<Lookout> {
        let io_dir = self.io_dir.as_ref().filter(|_| self.has_programs)?;
        let watched = Watched {
            io_dir: io_dir.clone(),
            container: self.container.clone(),
            reserve: reserve_for(&self.shared, io_dir),
        };
        Some(Lookout::begin(&self.ground, watched, limits).await)
    }

    /// Where its image's programs begin, where that counts and it says so.
    pub fn image_workdir(&self) -> Option<&str> {
        self.image_workdir.as_deref().filter(|workdir| !workdir.is_empty())
    }

    pub fn io_dir(&self) -> Option<&IoDir> {
        self.io_dir.as_deref()
    }

    pub const fn io_mount(&self) -> Option<&GuestPath> {
        self.io_mount.as_ref()
    }

    /// The normalised form of a path as a caller wrote it.
    pub fn resolve(&self, written: &[u8]) -> Option<GuestPath> {
        GuestPath::resolve(written, &self.workdir, self.home.as_ref()).ok().map(|it| it.path)
    }

    /// The names of an owner and a group, as far as the sandbox's numbers are this machine's.
    pub async fn owner_names(&self, uid: u32, gid: u32) -> (String, String) {
        match self.user_mapping {
            UserMapping::Identity => self.shared.owners.names(uid, gid).await,
            _ => (uid.to_string(), gid.to_string()),
        }
    }

    pub fn lifetime_is_over(&self) -> bool {
        matches!(self.end_cause.get(), Some(EndCause::Outlived(_)))
    }

    /// The mount that it had to be ended for.
    pub fn lost_mount(&self) -> Option<&MountLost> {
        match self.end_cause.get()? {
            EndCause::MountLost(lost) => Some(lost),
            EndCause::Outlived(_) => None,
        }
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Whether all that the container used is the first run's.
    pub fn has_run_once(&self) -> bool {
        self.runs.load(Ordering::Relaxed) == 1
    }

    /// What is new of the processor time that the agent tells: it counts from its beginning on.
    pub fn cpu_of_this_run(&self, told: u64) -> u64 {
        told.saturating_sub(self.cpu_told.swap(told, Ordering::Relaxed))
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The first run has the sandbox's id, so that its container is found by its result.
    pub fn next_run_id(&self) -> String {
        match self.runs.fetch_add(1, Ordering::Relaxed) {
            0 => self.id.clone(),
            earlier => format!("{}-{}", self.id, earlier + 1),
        }
    }

    /// Takes note that a rule kept the script of the run `execution` from a path.
    pub fn refused(&self, execution: &str, refused: &Refused) {
        let Refused { operation, path, path_b64, kind, .. } = refused;
        self.audit().record(&Event {
            by: By::Script,
            path: Some(written(path, path_b64.as_ref())),
            outcome: kind.as_str(),
            ..Event::new(execution, operation.as_str())
        });
    }

    /// Tells the audit what a run or a command changed: the final state, as its result has it.
    pub fn record_changes(&self, execution: &str, changes: &FilesTouched) {
        let Some(mount) = self.io_mount() else { return };
        for file in &changes.files {
            let path = [mount.as_bytes(), b"/", file.path()].concat();
            self.audit().record(&Event {
                by: By::Script,
                path: Some(&path),
                bytes: Some(file.bytes),
                ..Event::new(execution, file.op.as_str())
            });
        }
        if changes.truncated {
            let event = Event::new(execution, "changes");
            self.audit().record(&Event { by: By::Script, outcome: "truncated", ..event });
        }
    }

    /// Waits for a place among what is under way at a time.
    pub async fn place<C: Call>(&self) -> Result<Place, Error> {
        let place = self.session.place::<C>().await;
        let place = place.map_err(|error| self.call_error(error))?;
        match self.ended() {
            Some(error) => Err(error),
            None => Ok(place),
        }
    }

    /// Waits for the run under way, and holds the place of the next one.
    pub async fn turn(&self) -> Result<OwnedSemaphorePermit, Error> {
        let turn = self
            .turn
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| Error::Ended { detail: "it served its one run".to_owned() })?;
        if let Some(error) = self.ended() {
            return Err(error);
        }
        if self.lifespan == Lifespan::OneRun {
            self.turn.close();
        }
        Ok(turn)
    }

    /// Why nothing can be asked of it any more, where that is so.
    pub fn ended(&self) -> Option<Error> {
        let detail = match (self.session.end()?, self.end_cause.get()) {
            (SessionEnd::Breach(detail), _) => format!("the agent broke the protocol: {detail}"),
            (SessionEnd::Eof, Some(EndCause::MountLost(lost))) => return Some(lost.clone().into()),
            (SessionEnd::Eof, Some(EndCause::Outlived(why))) => (*why).to_owned(),
            (SessionEnd::Eof, None) => "its agent is gone".to_owned(),
        };
        Some(Error::Ended { detail })
    }

    /// As [`ended`](Self::ended), for somebody who was not answered: with what the engine knows of
    /// the end.
    pub async fn why_ended(&self) -> Error {
        if self.is_closing() {
            return Error::Ended { detail: "it was closed meanwhile".to_owned() };
        }
        let by_itself =
            self.end_cause.get().is_none() && self.session.end() == Some(SessionEnd::Eof);
        if by_itself
            && let Ok(Ok(Some(exit))) = tokio::time::timeout(LAST_WORD, self.exited()).await
        {
            return Error::Ended { detail: how_it_ended(&exit) };
        }
        self.ended().unwrap_or_else(|| Error::Ended { detail: "its agent is gone".to_owned() })
    }

    pub async fn kill(&self) -> Result<(), Error> {
        step(Step::Kill, self.container.kill()).await
    }

    /// Waits for the container's end, and reads how it ended.
    pub async fn exited(&self) -> Result<Option<ExitEvidence>, Error> {
        step(Step::Exit, self.container.wait()).await?;
        step(Step::Evidence, self.container.evidence()).await
    }

    /// What the container used until its end, where the engine counts that and soon tells.
    pub async fn usage(&self, soon: Duration) -> Option<ContainerUsage> {
        tokio::time::timeout(soon, self.container.usage()).await.ok()?
    }

    /// This moment, for [`ran_out_of_memory`](Self::ran_out_of_memory).
    pub fn moment(&self) -> Moment {
        self.container.moment()
    }

    /// Whether memory has run out since then, as far as the engine tells soon.
    pub async fn ran_out_of_memory(&self, since: Moment) -> bool {
        let told = tokio::time::timeout(LAST_WORD, self.container.ran_out_of_memory(since)).await;
        matches!(told, Ok(Some(true)))
    }

    pub fn call_error(&self, error: CallError) -> Error {
        match error {
            CallError::Refused(source) => Error::Refused { source },
            CallError::Over => {
                Error::Ended { detail: "its agent is gone, without an answer".to_owned() }
            }
            CallError::TooLarge(error) => Error::Ended { detail: error.to_string() },
        }
    }

    async fn hello(&self, hello: Hello) -> Result<HelloReply, Error> {
        let after = Step::Hello.time_limit();
        let reply = match tokio::time::timeout(after, self.session.call(hello)).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(CallError::Refused(error))) if error.kind() == ErrorKind::Image => {
                return Err(Error::AgentMismatch { reason: error.message });
            }
            Ok(Err(CallError::Over)) => return Err(self.not_up().await),
            Ok(Err(error)) => return Err(self.call_error(error)),
            Err(_) => {
                let source = EngineError::TimedOut { after };
                return Err(Error::Engine { step: Step::Hello, source });
            }
        };
        if reply.protocol != PROTOCOL_VERSION {
            let reason = format!(
                "it speaks version {} of the protocol, not {PROTOCOL_VERSION}",
                reply.protocol
            );
            return Err(Error::AgentMismatch { reason });
        }
        Ok(reply)
    }

    /// The agent was gone before it answered `hello`.
    async fn not_up(&self) -> Error {
        if let Some(SessionEnd::Breach(detail)) = self.session.end() {
            return Error::NotUp { detail: format!("the agent broke the protocol: {detail}") };
        }
        let exit = match self.exited().await {
            Ok(exit) => exit,
            Err(error) => return error,
        };
        let how = match exit {
            Some(ExitEvidence { code: Some(code), oom_killed, .. })
                if code == i64::from(EXIT_UNCONFINED) && oom_killed != Some(true) =>
            {
                return Error::Unconfined { detail: self.session.stderr() };
            }
            Some(exit) => how_it_ended(&exit),
            None => "the agent ended".to_owned(),
        };
        let detail = match self.session.stderr() {
            stderr if stderr.is_empty() => how,
            stderr => format!("{how}: {stderr}"),
        };
        Error::NotUp { detail }
    }

    /// Refuses an agent that is confined by less than the policy wants.
    fn check_confinement(&self, reply: &HelloReply) -> Result<(), Error> {
        let is_our_kernel = reply.boot_id.trim() == self.shared.boot_id;
        let kernel = is_our_kernel.then(confinement::kernel_landlock).flatten();
        confinement::check(self.shared.confinement, &reply.confinement, kernel)
    }

    /// Proves, before anything of the guest's runs, that the agent sees what we opened.
    async fn prove_mounts(
        &self,
        plan: &Plan,
        identities: &[Identity],
        reply: &HelloReply,
    ) -> Result<(), Error> {
        let told: Vec<&str> = reply.mounts.iter().map(|mount| mount.path.as_str()).collect();
        let asked: Vec<String> =
            plan.args.mounts.iter().map(|mount| mount.path.to_string()).collect();
        if told != asked {
            return Err(Error::NotUp { detail: "the agent names other mounts".to_owned() });
        }
        let is_io = |mount: &MountIdentity| {
            self.io_mount.as_ref().is_some_and(|path| path.to_string() == mount.path)
        };
        if reply.boot_id.trim() == self.shared.boot_id {
            // Every mount must be what we opened: a path may lead elsewhere since then.
            let other = reply.mounts.iter().zip(identities).find(|(seen, opened)| {
                let seen = Identity { dev: seen.dev, ino: seen.ino };
                seen != **opened
            });
            return match (other, &self.io_dir) {
                (None, _) => Ok(()),
                (Some((seen, _)), Some(io_dir)) if is_io(seen) => {
                    Err(Error::IoDirElsewhere { path: io_dir.path().to_owned() })
                }
                (Some((seen, _)), _) => {
                    let detail = format!("the engine sees something else at {}", seen.path);
                    Err(Error::NotUp { detail })
                }
            };
        }
        // On another kernel numbers say nothing. It has files at the inputs' paths, or the
        // container could not have been made; the io dir can be proved.
        let Some(io_dir) = &self.io_dir else { return Ok(()) };
        let elsewhere = || Error::IoDirElsewhere { path: io_dir.path().to_owned() };
        let nonce = io_dir.write_nonce().map_err(|errno| Error::IoDir {
            path: io_dir.path().to_owned(),
            reason: format!(
                "cannot prove that the engine sees it: {}",
                std::io::Error::from(errno)
            ),
        })?;
        let hello = Hello { nonce: Some(nonce.name.clone()), ..plan.hello.clone() };
        match self.hello(hello).await {
            Ok(reply) if reply.nonce.as_ref() == Some(&nonce.content) => Ok(()),
            Ok(_) | Err(Error::Refused { .. }) => Err(elsewhere()),
            Err(error) => Err(error),
        }
    }

    /// Kills the container when its agent breaks the protocol, its lifetime is over, also while
    /// something runs, nothing has been asked of it for too long, or something is mounted below what
    /// it has.
    fn guard(&self, lifetime: Duration, idle_limit: Option<Duration>, mounts: MountGuard) {
        let ended = self.session.subscribe_end();
        let container = self.container.clone();
        let end_cause = self.end_cause.clone();
        let idle = idle_limit.map(|limit| self.activity.idle(limit));
        let idle = async move {
            match idle {
                Some(idle) => idle.await,
                None => std::future::pending().await,
            }
        };
        tokio::spawn(async move {
            let why = tokio::select! {
                end = ended => match end {
                    SessionEnd::Eof => return,
                    SessionEnd::Breach(detail) => {
                        tracing::warn!(detail, "the agent broke the protocol");
                        None
                    }
                },
                lost = mounts.lost() => Some(EndCause::MountLost(lost)),
                () = tokio::time::sleep(lifetime) => {
                    Some(EndCause::Outlived("its lifetime is over"))
                }
                () = idle => {
                    let why = "idle timeout expired";
                    Some(EndCause::Outlived(why))
                }
            };
            if let Some(why) = why {
                _ = end_cause.set(why);
            }
            if let Err(error) = step(Step::Kill, container.kill()).await {
                tracing::debug!(%error, "cannot kill a container that is to be removed");
            }
        });
    }

    async fn close(&self) -> Result<(), Error> {
        self.is_closing.store(true, Ordering::Relaxed);
        // An agent that leaves by itself is quicker than a kill.
        let leave = async {
            self.session.call(Shutdown {}).await.is_ok() && {
                self.session.ended().await;
                true
            }
        };
        if !matches!(tokio::time::timeout(Step::Shutdown.time_limit(), leave).await, Ok(true)) {
            tracing::debug!("the agent did not leave by itself");
        }
        loop {
            if let Some(removed) = self.remains.remove(Attempt::Any) {
                return removed.await.unwrap_or_else(|_| {
                    Err(Error::Ended { detail: "the runtime ended before its removal".to_owned() })
                });
            }
            if self.remains.are_gone().await {
                return Ok(());
            }
        }
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

/// Why we end a sandbox that nobody asked to end.
#[derive(Debug)]
enum EndCause {
    /// It was its time.
    Outlived(&'static str),
    /// Something is mounted below what it has.
    MountLost(MountLost),
}

/// How the engine saw an end that nobody asked for.
fn how_it_ended(exit: &ExitEvidence) -> String {
    match exit {
        ExitEvidence { oom_killed: Some(true), .. } => "it ran out of memory".to_owned(),
        ExitEvidence { code: Some(code), .. } => format!("the agent ended with exit code {code}"),
        ExitEvidence { removed: true, .. } => "its container was removed from outside".to_owned(),
        ExitEvidence { code: None, .. } => "the agent ended".to_owned(),
    }
}

/// What there is to remove of a sandbox, and what is kept until then.
pub(crate) struct Remains {
    shared: Arc<Shared>,
    /// The sandbox's id.
    id: String,
    /// The container's name: its id is not known before it is made.
    name: String,
    /// Its programs' connections, where it may have any.
    egress: Option<Arc<Egress>>,
    /// Held while the container is being made.
    creating: Arc<tokio::sync::Mutex<()>>,
    removal: Arc<watch::Sender<Removal>>,
}

/// How far the removal is.
#[derive(Debug)]
enum Removal {
    NotBegun(Kept),
    UnderWay,
    /// It failed.
    Left,
    Gone,
}

/// Which attempt at a removal to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// The first alone: whoever cannot tell how it went does not try again.
    First,
    /// Another one too, where the last one failed.
    Any,
}

/// What the container uses of the host.
#[derive(Debug)]
struct Kept {
    io_dir: Option<Arc<IoDir>>,
    inputs: Vec<OpenInput>,
}

impl Kept {
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

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(io_dir) = &self.io_dir {
            io_dir.release();
        }
    }
}

impl Remains {
    fn new(
        shared: Arc<Shared>,
        id: String,
        name: String,
        kept: Kept,
        egress: Option<Arc<Egress>>,
    ) -> Self {
        let removal = Arc::new(watch::Sender::new(Removal::NotBegun(kept)));
        Self { shared, id, name, egress, creating: Arc::default(), removal }
    }

    /// Makes the container. In a task of its own: whoever gives up on the launch in the middle
    /// leaves a container to remove, not one that comes into being after its removal.
    async fn create(&self, spec: ContainerSpec) -> Result<Arc<dyn Container>, Error> {
        let creating = self.creating.clone().lock_owned().await;
        let shared = self.shared.clone();
        let task = tokio::spawn(async move {
            let create = || step(Step::Create, shared.engine.create(&spec));
            let result = match create().await {
                // Removed since it was last seen.
                Err(Error::Engine { source: EngineError::ImageMissing, .. }) => {
                    match shared.prepare(&Root::Own, &mut |_| {}).await {
                        Ok(_) => create().await,
                        Err(error) => Err(error),
                    }
                }
                result => result,
            };
            if let Err(Error::Engine { source: EngineError::TimedOut { .. }, .. }) = &result {
                // It may still come into being.
                shared.cleanup.leave_for_the_next_command();
            }
            drop(creating);
            result.map(Arc::from)
        });
        task.await.unwrap_or_else(|error| {
            Err(Error::NotUp { detail: format!("making the container was given up: {error}") })
        })
    }

    /// Removes the container in the background, which [`Controller::close`] waits for; what comes
    /// back tells how it went. `None` where that is under way or done already.
    ///
    /// [`Controller::close`]: crate::Controller::close
    fn remove(&self, attempt: Attempt) -> Option<oneshot::Receiver<Result<(), Error>>> {
        let mut kept = None;
        let begins = self.removal.send_if_modified(|removal| {
            match std::mem::replace(removal, Removal::UnderWay) {
                Removal::NotBegun(begun) => kept = Some(begun),
                Removal::Left if attempt == Attempt::Any => {}
                other => {
                    *removal = other;
                    return false;
                }
            }
            true
        });
        if !begins {
            return None;
        }
        let removal = self.removal.clone();
        let (shared, id, name) = (self.shared.clone(), self.id.clone(), self.name.clone());
        let (creating, egress) = (self.creating.clone(), self.egress.clone());
        let work = async move {
            let started = Instant::now();
            drop(creating.lock().await);
            let result = step(Step::Remove, shared.engine.remove(&name)).await;
            if let Some(egress) = egress {
                // Their lines come before the one of the sandbox's end.
                egress.settle(LAST_WORD).await;
            }
            shared.audit.record(&Event {
                outcome: audit::outcome(&result),
                duration: Some(started.elapsed()),
                ..Event::new(&id, "close")
            });
            // Only now: the container had it mounted.
            drop(kept);
            removal.send_replace(if result.is_ok() { Removal::Gone } else { Removal::Left });
            result
        };
        Some(self.shared.cleanup.spawn(work))
    }

    /// Waits for a removal that is under way, and says whether nothing is left.
    async fn are_gone(&self) -> bool {
        let mut removal = self.removal.subscribe();
        let settled = removal.wait_for(|removal| !matches!(removal, Removal::UnderWay)).await;
        settled.is_ok_and(|removal| matches!(*removal, Removal::Gone))
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        self.remove(Attempt::First);
    }
}

#[cfg(test)]
mod tests;
