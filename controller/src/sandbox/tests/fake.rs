//! A scripted engine and a scripted agent.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use sandbox_api::{
    Ceiling, DiskReserve, EngineInfo, EngineKind, ExecutionEvent, ExecutionResult, LogEntry,
    OutputStream, ProgramImage, RootFs, SandboxSpec, Script,
};
use sandbox_engine::{
    AgentSource, Attached, Container, ContainerSpec, ContainerSummary, Engine, EngineError,
    EngineFacts, ExitEvidence, GroupsUsage, Images, Prepared, Progress, UserMapping,
};
use sandbox_protocol::argv::ConfinementPolicy;
use sandbox_protocol::message::{
    AgentUsage, CaseEnd, Change, Confinement, Done, HelloReply, Log, LogLevel, MountIdentity,
    OperationName, Refused, Request, Resolver, RunEnd, RunReply, TestCase, TestStatus, Touched,
    UnixSockets,
};
use sandbox_protocol::{ErrorKind, FromAgent, PROTOCOL_VERSION, User, WireString};
use sandbox_session::fake::{FakeAgent, pipe};
use sandbox_staging::kept::KeptImages;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::audit::Audit;
use crate::error::Error;
use crate::execution::Execution;
use crate::gc::pending::Cleanup;
use crate::gc::state_dir::{Instance, StateDir};
use crate::mounts::{MountWatch, ReservedDirs};
use crate::sandbox::Sandbox;
use crate::sandbox::context::{OwnMounts, Shared};
use crate::sandbox::owner::Owners;

pub const BOOT_ID: &str = "boot";

/// What tests read of an execution: the others of its events are skipped.
pub trait NextEvent {
    async fn next_log(&mut self) -> Option<LogEntry>;
    async fn next_output(&mut self) -> Option<(OutputStream, Bytes)>;
}

impl NextEvent for Execution {
    async fn next_log(&mut self) -> Option<LogEntry> {
        loop {
            if let ExecutionEvent::Log(entry) = self.next().await? {
                return Some(entry);
            }
        }
    }

    async fn next_output(&mut self) -> Option<(OutputStream, Bytes)> {
        loop {
            if let ExecutionEvent::Output { stream, data } = self.next().await? {
                return Some((stream, data));
            }
        }
    }
}

pub type Behaviour = Box<dyn FnOnce(FakeAgent, Arc<Fake>) -> BoxFuture<'static, ()> + Send>;

/// An engine that creates one container, whose agent is a function.
pub struct Fake {
    pub info: EngineInfo,
    pub calls: Mutex<Vec<&'static str>>,
    /// The call that never returns.
    pub hangs: Option<&'static str>,
    /// Whether calls fail, once something is started.
    pub is_dead: AtomicBool,
    /// Whether the image is missing until it is prepared again.
    pub lacks_its_image: AtomicBool,
    pub likely_mapping: Mutex<UserMapping>,
    /// Whether it removes containers without anyone who waits.
    pub begins_removals: AtomicBool,
    /// The user of the container.
    pub user: Mutex<Option<User>>,
    pub behaviour: Mutex<Option<Behaviour>>,
    pub agent: Mutex<Option<FakeAgent>>,
    pub task: Mutex<Option<AbortHandle>>,
    pub running: watch::Sender<bool>,
    pub exit: Mutex<ExitEvidence>,
    pub usage: Mutex<Option<GroupsUsage>>,
    /// The containers in its list.
    pub listed: Mutex<Vec<ContainerSummary>>,
    pub me: Weak<Fake>,
}

impl Fake {
    pub async fn call(&self, name: &'static str) -> Result<(), EngineError> {
        self.calls.lock().unwrap().push(name);
        if self.hangs == Some(name) {
            std::future::pending::<()>().await;
        }
        if self.is_dead.load(Ordering::Relaxed) {
            return Err(EngineError::Connection("the engine died".into()));
        }
        Ok(())
    }

    pub fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().unwrap().clone()
    }

    pub fn ends_with(&self, code: Option<i64>, oom_killed: bool) {
        let mut exit = self.exit.lock().unwrap();
        (exit.code, exit.oom_killed) = (code, Some(oom_killed));
    }

    pub fn stop(&self) {
        if let Some(task) = self.task.lock().unwrap().take() {
            task.abort();
        }
        self.agent.lock().unwrap().take();
        self.running.send_replace(false);
    }
}

#[async_trait]
impl Engine for Fake {
    fn info(&self) -> &EngineInfo {
        &self.info
    }
    async fn facts(&self) -> Result<EngineFacts, EngineError> {
        Ok(EngineFacts::default())
    }
    fn likely_user_mapping(&self) -> UserMapping {
        *self.likely_mapping.lock().unwrap()
    }
    async fn user_mapping(&self) -> Result<UserMapping, EngineError> {
        self.call("user_mapping").await.map(|()| UserMapping::Identity)
    }
    async fn clock(&self) -> Result<SystemTime, EngineError> {
        Ok(SystemTime::now())
    }
    async fn program_images(&self) -> Result<Vec<ProgramImage>, EngineError> {
        Ok(Vec::new())
    }

    async fn remove_program_image(&self, id: &str) -> Result<(), EngineError> {
        Err(EngineError::NotFound(id.to_owned()))
    }

    async fn prepare(
        &self,
        _root: &RootFs,
        _progress: Progress<'_>,
    ) -> Result<Option<Prepared>, EngineError> {
        self.call("prepare").await.map(|()| None)
    }
    fn images(&self) -> Option<&dyn Images> {
        None
    }
    async fn create(&self, spec: &ContainerSpec) -> Result<Box<dyn Container>, EngineError> {
        self.call("create").await?;
        *self.user.lock().unwrap() = Some(spec.user);
        match self.lacks_its_image.swap(false, Ordering::Relaxed) {
            true => Err(EngineError::ImageMissing),
            false => Ok(Box::new(FakeContainer(self.me.upgrade().unwrap()))),
        }
    }
    async fn remove(&self, container: &str) -> Result<(), EngineError> {
        self.call("remove").await?;
        self.listed.lock().unwrap().retain(|listed| listed.id != container);
        self.stop();
        Ok(())
    }
    async fn begin_removal(&self, _container: &str, _mounted: Option<&OwnedFd>) -> bool {
        let begins = self.begins_removals.load(Ordering::Relaxed);
        self.call("begin_removal").await.is_ok() && begins
    }
    async fn list(&self, _: &str) -> Result<Vec<ContainerSummary>, EngineError> {
        self.call("list").await?;
        Ok(self.listed.lock().unwrap().clone())
    }
}

/// Its container.
pub struct FakeContainer(Arc<Fake>);

#[async_trait]
impl Container for FakeContainer {
    fn id(&self) -> &str {
        "c1"
    }
    async fn attach(&self) -> Result<Attached, EngineError> {
        self.0.call("attach").await?;
        let (attached, agent) = pipe();
        *self.0.agent.lock().unwrap() = Some(agent);
        Ok(attached)
    }
    async fn start(&self) -> Result<(), EngineError> {
        self.0.call("start").await?;
        self.0.running.send_replace(true);
        let agent = self.0.agent.lock().unwrap().take().unwrap();
        let behaviour = self.0.behaviour.lock().unwrap().take().unwrap();
        let me = self.0.clone();
        let task = tokio::spawn(async move {
            behaviour(agent, me.clone()).await;
            me.running.send_replace(false);
        });
        *self.0.task.lock().unwrap() = Some(task.abort_handle());
        Ok(())
    }
    async fn wait(&self) -> Result<(), EngineError> {
        self.0.call("wait").await?;
        _ = self.0.running.subscribe().wait_for(|running| !running).await;
        Ok(())
    }
    async fn kill(&self) -> Result<(), EngineError> {
        self.0.call("kill").await?;
        self.0.ends_with(Some(137), false);
        self.0.stop();
        Ok(())
    }
    async fn pause(&self) -> Result<(), EngineError> {
        self.0.call("pause").await
    }
    async fn resume(&self) -> Result<(), EngineError> {
        self.0.call("resume").await
    }
    async fn evidence(&self) -> Result<Option<ExitEvidence>, EngineError> {
        self.0.call("evidence").await?;
        Ok(Some(*self.0.exit.lock().unwrap()))
    }
    async fn init_pid(&self) -> Option<u32> {
        None
    }
    async fn usage(&self) -> Option<GroupsUsage> {
        *self.0.usage.lock().unwrap()
    }
    async fn ran_out_of_memory(&self, _since: SystemTime) -> Option<bool> {
        self.0.call("ran_out_of_memory").await.ok()?;
        self.0.exit.lock().unwrap().oom_killed
    }
}

/// What a controller of this engine shares, and the directory of its state.
pub fn shared(engine: Arc<dyn Engine>) -> (Arc<Shared>, tempfile::TempDir) {
    let state = tempfile::tempdir().unwrap();
    let folder =
        StateDir::open(&state.path().join("s"), &state.path().join("scratch"), BOOT_ID).unwrap();
    let instance = Instance::register(folder, "fake").unwrap();
    let shared = Arc::new(Shared {
        engine,
        instance,
        cleanup: Cleanup::new(),
        ceiling: Ceiling::default(),
        program_ceiling: Ceiling::default(),
        own_mounts: OwnMounts::new(false),
        kept_images: KeptImages::default(),
        boot_id: BOOT_ID.into(),
        agent: AgentSource::Embedded,
        confinement: ConfinementPolicy::Required,
        audit: Audit::off(),
        owners: Owners::default(),
        disk_reserve: DiskReserve::default(),
        ca_file: None,
        // Tests stop the clock of their own.
        watch_runtime: Handle::current,
        folders: ReservedDirs {
            own: vec![
                ("state directory", state.path().join("s")),
                ("data directory", state.path().join("data")),
                ("scratch directory", state.path().join("scratch")),
            ],
            ..ReservedDirs::default()
        },
        mount_watch: MountWatch::default(),
    });
    (shared, state)
}

pub struct World {
    pub fake: Arc<Fake>,
    pub shared: Arc<Shared>,
    pub io: tempfile::TempDir,
    pub _state: tempfile::TempDir,
}

impl World {
    pub fn new<F, B>(behaviour: B) -> Self
    where
        B: FnOnce(FakeAgent, Arc<Fake>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self::with(None, behaviour)
    }

    pub fn with<F, B>(hangs: Option<&'static str>, behaviour: B) -> Self
    where
        B: FnOnce(FakeAgent, Arc<Fake>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let behaviour: Behaviour = Box::new(move |agent, fake| Box::pin(behaviour(agent, fake)));
        let fake = Arc::new_cyclic(|me| Fake {
            info: EngineInfo {
                kind: EngineKind::Docker,
                endpoint: "fake".into(),
                why: "a test".into(),
                notice: None,
            },
            calls: Mutex::default(),
            hangs,
            is_dead: AtomicBool::new(false),
            lacks_its_image: AtomicBool::new(false),
            likely_mapping: Mutex::default(),
            begins_removals: AtomicBool::new(false),
            user: Mutex::default(),
            behaviour: Mutex::new(Some(behaviour)),
            agent: Mutex::new(None),
            task: Mutex::new(None),
            running: watch::Sender::new(false),
            exit: Mutex::new(ExitEvidence { code: Some(0), ..ExitEvidence::default() }),
            usage: Mutex::default(),
            listed: Mutex::default(),
            me: me.clone(),
        });
        let (shared, state) = shared(fake.clone());
        Self { fake, shared, io: tempfile::tempdir().unwrap(), _state: state }
    }

    /// With an audit in this file.
    pub fn audited(mut self, file: &Path) -> Self {
        Arc::get_mut(&mut self.shared).unwrap().audit = Audit::open(file).unwrap();
        self
    }

    /// With this disk reserve.
    pub fn reserving(mut self, reserve: DiskReserve) -> Self {
        Arc::get_mut(&mut self.shared).unwrap().disk_reserve = reserve;
        self
    }

    pub fn spec(&self) -> SandboxSpec {
        SandboxSpec::new().io_dir(self.io.path())
    }

    /// A world with an io dir, whose agent answers `hello` honestly and then follows the script.
    pub fn in_its_io<F>(
        act: impl FnOnce(PathBuf, Scripted, Arc<Fake>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let io: Arc<Mutex<PathBuf>> = Arc::default();
        let place = io.clone();
        let world = Self::new(async move |agent, fake| {
            let io = place.lock().unwrap().clone();
            let agent = Scripted::greet(agent, &io).await;
            act(io, agent, fake).await;
        });
        *io.lock().unwrap() = world.io.path().to_owned();
        world
    }

    pub async fn launch(&self) -> Result<Sandbox, Error> {
        Sandbox::launch(self.shared.clone(), self.spec()).await
    }

    pub async fn run(&self) -> ExecutionResult {
        let sandbox = self.launch().await.unwrap();
        let result = sandbox.run(Script::new("x")).await.unwrap();
        sandbox.close().await.unwrap();
        self.assert_removed().await;
        result
    }

    pub async fn assert_removed(&self) {
        self.shared.cleanup.finish().await;
        assert_eq!(self.fake.calls().iter().filter(|&&call| call == "remove").count(), 1);
    }
}

pub fn hello_reply(io: &Path) -> HelloReply {
    let metadata = std::fs::metadata(io).unwrap();
    HelloReply {
        protocol: PROTOCOL_VERSION,
        agent: "0".into(),
        confinement: Confinement {
            no_new_privileges: true,
            undumpable: true,
            landlock_abi: Some(2),
            seccomp: true,
            unix_sockets: UnixSockets::None,
            missing: Vec::new(),
        },
        resolver: Resolver::Openat2,
        boot_id: BOOT_ID.into(),
        mounts: vec![MountIdentity {
            path: "/io".into(),
            dev: metadata.dev(),
            ino: metadata.ino(),
        }],
        nonce: None,
    }
}

/// An agent on an io dir. It is honest except where a test says otherwise.
pub struct Scripted {
    pub agent: FakeAgent,
    /// The id of the run's request, once it has arrived.
    pub run: u64,
}

impl Scripted {
    /// Answers `hello` and `configure` as an agent that sees `io`.
    pub async fn greet(mut agent: FakeAgent, io: &Path) -> Self {
        let (id, request) = agent.request().await.unwrap();
        assert!(matches!(request, Request::Hello(_)));
        agent.answer(id, hello_reply(io)).await;
        Self::configured(agent).await
    }

    /// Answers `configure`.
    pub async fn configured(mut agent: FakeAgent) -> Self {
        let (id, request) = agent.request().await.unwrap();
        assert!(matches!(request, Request::Configure(_)), "{request:?}");
        agent.answer(id, Done {}).await;
        Self { agent, run: 0 }
    }

    pub async fn run_request(&mut self) -> u64 {
        let (id, request) = self.agent.request().await.unwrap();
        assert!(matches!(request, Request::Run(_)), "{request:?}");
        self.run = id;
        id
    }

    pub async fn notify(&mut self, message: FromAgent<'_>) {
        self.agent.send(message.encode().unwrap()).await;
    }

    pub async fn log(&mut self, text: &str) {
        let (request, level, text) = (self.run, LogLevel::Print, text.to_owned());
        self.notify(FromAgent::Log(Log { request, level, text, lossy: false, cut: false })).await;
    }

    pub async fn touched(&mut self, path: &str, change: Change) {
        let (request, path) = (self.run, path.to_owned());
        let existed = false;
        self.notify(FromAgent::Touched(Touched { request, path: path.into(), existed, change }))
            .await;
    }

    pub async fn case(&mut self, name: &str, status: TestStatus, message: Option<String>) {
        let case = TestCase { name: name.to_owned(), status, message, line: None, duration_ms: 1 };
        self.notify(FromAgent::Case(CaseEnd { request: self.run, case })).await;
    }

    pub async fn refused(&mut self, path: &str, bytes: Option<Vec<u8>>, kind: ErrorKind) {
        let request = self.run;
        let path = bytes.map_or_else(|| path.into(), WireString::from);
        let operation = OperationName::Read;
        let refused = Refused { request, operation, path, kind };
        self.notify(FromAgent::Refused(refused)).await;
    }

    pub async fn returned(&mut self, id: u64, json: &str) {
        let end = RunEnd::Returned(RawValue::from_string(json.into()).unwrap());
        let usage = AgentUsage { cpu_ms: 1, peak_memory_bytes: 2, written_bytes: 3 };
        self.agent.answer(id, RunReply { end, logs_truncated: false, usage }).await;
    }

    /// Answers requests until `shutdown`, or the end of stdin.
    pub async fn rest(&mut self) {
        while let Some((id, request)) = self.agent.request().await {
            match request {
                Request::Shutdown(_) => return self.agent.answer(id, Done {}).await,
                Request::Run(_) => self.returned(id, "null").await,
                Request::Cancel(_) | Request::Hello(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A world whose agent answers `hello` honestly and then follows the script.
pub fn greeted<F>(act: impl FnOnce(Scripted, Arc<Fake>) -> F + Send + 'static) -> World
where
    F: Future<Output = ()> + Send + 'static,
{
    World::in_its_io(|_, agent, fake| act(agent, fake))
}
