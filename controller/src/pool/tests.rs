//! A pool on an engine of any number of containers, whose agents are honest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandbox_api::{
    EngineInfo, EngineKind, Input, Limits, Outcome, ProgramImage, RootFs, SandboxSpec, Script,
    StartKind,
};
use sandbox_engine::{
    Attached, Container, ContainerSpec, ContainerSummary, Engine, EngineError, EngineFacts,
    ExitEvidence, Images, Prepared, Progress, UserMapping,
};
use sandbox_protocol::message::{
    AgentUsage, Configure, Done, HelloReply, MountIdentity, Request, RunEnd, RunReply,
};
use sandbox_session::fake::{FakeAgent, pipe};
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::*;
use crate::sandbox::tests::fake::{hello_reply, shared};

/// An engine whose containers run until they are removed, or their agents leave.
struct Crowd {
    info: EngineInfo,
    containers: Mutex<HashMap<String, Arc<Life>>>,
    created: AtomicUsize,
    removed: AtomicUsize,
    is_broken: AtomicBool,
    me: Weak<Crowd>,
}

/// The life of a container.
struct Life {
    spec: ContainerSpec,
    agent: Mutex<Option<FakeAgent>>,
    task: Mutex<Option<AbortHandle>>,
    runs: watch::Sender<bool>,
    hellos: AtomicUsize,
    /// It answers nothing any more.
    is_silent: AtomicBool,
    configured: Mutex<Option<Configure>>,
}

impl Life {
    fn stop(&self) {
        if let Some(task) = self.task.lock().unwrap().take() {
            task.abort();
        }
        self.runs.send_replace(false);
    }

    async fn serve(&self, mut agent: FakeAgent) {
        while let Some((id, request)) = agent.request().await {
            match request {
                _ if self.is_silent.load(Ordering::Relaxed) => {}
                Request::Hello(_) => {
                    self.hellos.fetch_add(1, Ordering::Relaxed);
                    agent.answer(id, self.hello()).await;
                }
                Request::Configure(configure) => {
                    *self.configured.lock().unwrap() = Some(configure);
                    agent.answer(id, Done {}).await;
                }
                Request::Run(_) => {
                    let name = RawValue::from_string(format!("\"{}\"", self.spec.name)).unwrap();
                    let usage = AgentUsage { cpu_ms: 1, peak_memory_bytes: 2, written_bytes: 3 };
                    let end = RunEnd::Returned(name);
                    agent.answer(id, RunReply { end, logs_truncated: false, usage }).await;
                }
                Request::Shutdown(_) => return agent.answer(id, Done {}).await,
                other => panic!("{other:?}"),
            }
        }
    }

    fn hello(&self) -> HelloReply {
        let mounts = self.spec.mounts.iter().map(|mount| {
            let stat = rustix::fs::fstat(&*mount.source.file).unwrap();
            MountIdentity { path: mount.target.clone(), dev: stat.st_dev, ino: stat.st_ino }
        });
        HelloReply { mounts: mounts.collect(), ..hello_reply("/".as_ref()) }
    }
}

#[async_trait]
impl Engine for Crowd {
    fn info(&self) -> &EngineInfo {
        &self.info
    }
    async fn facts(&self) -> Result<EngineFacts, EngineError> {
        Ok(EngineFacts::default())
    }
    fn likely_user_mapping(&self) -> UserMapping {
        UserMapping::Identity
    }
    async fn user_mapping(&self) -> Result<UserMapping, EngineError> {
        Ok(UserMapping::Identity)
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
        Ok(None)
    }
    fn images(&self) -> Option<&dyn Images> {
        None
    }
    async fn create(&self, spec: &ContainerSpec) -> Result<Box<dyn Container>, EngineError> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(EngineError::Connection("it is broken".into()));
        }
        self.created.fetch_add(1, Ordering::Relaxed);
        let life = Arc::new(Life {
            spec: spec.clone(),
            agent: Mutex::default(),
            task: Mutex::default(),
            runs: watch::Sender::new(true),
            hellos: AtomicUsize::new(0),
            is_silent: AtomicBool::new(false),
            configured: Mutex::default(),
        });
        self.containers.lock().unwrap().insert(spec.name.clone(), life.clone());
        Ok(Box::new(Member(life)))
    }
    async fn remove(&self, container: &str) -> Result<(), EngineError> {
        if let Some(life) = self.containers.lock().unwrap().remove(container) {
            life.stop();
            self.removed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
    async fn list(&self, _: &str) -> Result<Vec<ContainerSummary>, EngineError> {
        Ok(Vec::new())
    }
}

/// A container of a crowd.
struct Member(Arc<Life>);

#[async_trait]
impl Container for Member {
    fn id(&self) -> &str {
        &self.0.spec.name
    }
    async fn attach(&self) -> Result<Attached, EngineError> {
        let (attached, agent) = pipe();
        *self.0.agent.lock().unwrap() = Some(agent);
        Ok(attached)
    }
    async fn start(&self) -> Result<(), EngineError> {
        let agent = self.0.agent.lock().unwrap().take().unwrap();
        let life = self.0.clone();
        let task = tokio::spawn(async move {
            life.serve(agent).await;
            life.runs.send_replace(false);
        });
        *self.0.task.lock().unwrap() = Some(task.abort_handle());
        Ok(())
    }
    async fn wait(&self) -> Result<(), EngineError> {
        _ = self.0.runs.subscribe().wait_for(|runs| !runs).await;
        Ok(())
    }
    async fn kill(&self) -> Result<(), EngineError> {
        self.0.stop();
        Ok(())
    }
    async fn pause(&self) -> Result<(), EngineError> {
        Ok(())
    }
    async fn resume(&self) -> Result<(), EngineError> {
        Ok(())
    }
    async fn evidence(&self) -> Result<Option<ExitEvidence>, EngineError> {
        Ok(Some(ExitEvidence { code: Some(0), ..ExitEvidence::default() }))
    }
    async fn init_pid(&self) -> Option<u32> {
        None
    }
}

/// A crowd, and a controller of it with a pool.
struct World {
    crowd: Arc<Crowd>,
    pool: PoolHandle,
    shared: Arc<Shared>,
    state: tempfile::TempDir,
}

impl World {
    /// With a pool that has this many of `spec`.
    async fn new(size: usize, spec: SandboxSpec) -> Self {
        let world = Self::cold(PoolConfig { size, ..PoolConfig::default() });
        world.pool.prewarm(spec.into()).await.unwrap();
        world.pool.settled().await;
        world
    }

    fn cold(config: PoolConfig) -> Self {
        let crowd = Arc::new_cyclic(|me| Crowd {
            info: EngineInfo {
                kind: EngineKind::Docker,
                endpoint: "fake".into(),
                why: "a test".into(),
                notice: None,
            },
            containers: Mutex::default(),
            created: AtomicUsize::new(0),
            removed: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
            me: me.clone(),
        });
        let (shared, state) = shared(crowd.clone());
        let pool = PoolHandle::new(shared.clone(), config);
        Self { crowd, pool, shared, state }
    }

    /// As a controller launches.
    async fn launch(&self, spec: SandboxSpec) -> Sandbox {
        let mut sandbox = spec.into();
        let _cold_start = match self.pool.claim(&mut sandbox).await {
            Claim::Warm(sandbox) => return sandbox,
            Claim::Cold(start) => Some(start),
            Claim::Unpooled => None,
        };
        Sandbox::launch(self.shared.clone(), sandbox).await.unwrap()
    }

    fn life(&self, sandbox: &Sandbox) -> Arc<Life> {
        self.crowd.containers.lock().unwrap()[sandbox.container_id()].clone()
    }

    fn created(&self) -> usize {
        self.crowd.created.load(Ordering::Relaxed)
    }

    /// Ends everything; nothing is left.
    async fn close(self) {
        self.pool.close().await;
        assert!(self.shared.cleanup.finish().await);
        assert_eq!(self.crowd.removed.load(Ordering::Relaxed), self.created());
        let left = std::fs::read_dir(self.state.path().join("scratch"));
        assert_eq!(left.into_iter().flatten().count(), 0);
        assert!(self.crowd.me.upgrade().is_some());
    }
}

fn start(sandbox: &Sandbox) -> StartKind {
    sandbox.launch_info().start
}

#[tokio::test(start_paused = true)]
async fn each_pooled_sandbox_serves_one_launch_and_is_replaced() {
    let world = World::new(2, SandboxSpec::new().fresh_io_dir()).await;
    assert_eq!(world.pool.stats().parked, 2);
    let mut names = Vec::new();
    for _ in 0..5 {
        let sandbox = world.launch(SandboxSpec::new().fresh_io_dir()).await;
        assert_eq!(start(&sandbox), StartKind::Warm);
        let run = sandbox.run(Script::new("x")).await.unwrap();
        let Outcome::Ok { result } = &run.outcome else { panic!("{run:?}") };
        names.push(result.get().to_owned());
        let timing = run.timing.unwrap();
        assert_eq!((timing.start, timing.queued_ms), (Some(StartKind::Warm), None));
        let again = sandbox.run(Script::new("x")).await.unwrap();
        assert_eq!(again.timing.unwrap().start, None);
        sandbox.close().await.unwrap();
        world.pool.settled().await;
    }
    names.sort();
    names.dedup();
    assert_eq!((names.len(), world.created()), (5, 7));
    let stats = world.pool.stats();
    assert_eq!((stats.claims, stats.hits, stats.misses, stats.filled), (5, 5, 0, 7));
    assert_eq!((stats.keys, stats.target, stats.parked, stats.filling), (1, 2, 2, 0));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn burst_beyond_the_pool_is_started_cold_at_once() {
    let world = World::new(3, SandboxSpec::new()).await;
    // No refill comes in between: nothing else runs while these are claimed.
    let launches = (0..10).map(|_| world.launch(SandboxSpec::new()));
    let sandboxes = futures_util::future::join_all(launches).await;
    let warm = sandboxes.iter().filter(|sandbox| start(sandbox) == StartKind::Warm).count();
    assert!((3..10).contains(&warm), "{warm}");
    let mut ids: Vec<_> = sandboxes.iter().map(Sandbox::id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 10);
    let stats = world.pool.stats();
    assert_eq!((stats.hits + stats.misses, stats.hits), (10, warm as u64));
    drop(sandboxes);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_ahead_while_a_caller_waits_for_a_cold_start() {
    let world = World::new(1, SandboxSpec::new()).await;
    let warm = world.launch(SandboxSpec::new()).await;
    let mut next = SandboxSpec::new().into();
    let Claim::Cold(start) = world.pool.claim(&mut next).await else { panic!("one is ready") };
    tokio::time::sleep(COLD_START_DELAY / 2).await;
    assert_eq!(world.created(), 1);
    drop(start);
    world.pool.settled().await;
    assert_eq!((world.created(), world.pool.stats().parked), (2, 1));
    // Nor do they stop it for ever.
    drop(warm);
    let warm = world.launch(SandboxSpec::new()).await;
    let Claim::Cold(_start) = world.pool.claim(&mut next).await else { panic!("one is ready") };
    world.pool.settled().await;
    assert_eq!(world.pool.stats().parked, 1);
    drop(warm);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn sandbox_of_another_key_is_never_handed_out() {
    let world = World::new(1, SandboxSpec::new().fresh_io_dir()).await;
    let limits = Limits { pids: 32.try_into().unwrap(), ..Limits::default() };
    for other in [
        SandboxSpec::new(),
        SandboxSpec::new().fresh_io_dir().mount_path("/workspace"),
        SandboxSpec::new().fresh_io_dir().limits(limits),
        SandboxSpec::new().io_dir(world.state.path().join("io")),
        SandboxSpec::new().fresh_io_dir().input(Input::bytes("a", b"x".to_vec())),
        SandboxSpec::new().fresh_io_dir().container_name("a"),
        // The label of the pooled one says when it is over.
        SandboxSpec::new().fresh_io_dir().lifetime(DEFAULT_LIFETIME * 2),
    ] {
        let sandbox = world.launch(other.clone()).await;
        assert_eq!(start(&sandbox), StartKind::Cold, "{other:?}");
    }
    let stats = world.pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.unpooled, stats.parked), (0, 4, 3, 1));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn claimed_sandbox_has_its_callers_limits_and_its_own_io_dir() {
    let world = World::new(2, SandboxSpec::new().fresh_io_dir()).await;
    let vm_memory = sandbox_api::ByteSize::b(5 << 20);
    let limits = Limits { vm_memory, ..Limits::default() };
    let spec = SandboxSpec::new().fresh_io_dir().limits(limits).protected(vec![".git".into()]);
    let one = world.launch(spec).await;
    let life = world.life(&one);
    let configured = life.configured.lock().unwrap().clone().unwrap();
    assert_eq!(configured.limits.vm_memory_bytes, vm_memory.as_u64());
    assert_eq!(configured.policy.protected, [".git"]);
    let run = one.run(Script::new("x")).await.unwrap();
    assert_eq!(run.limits.vm_memory, vm_memory);
    let other = world.launch(SandboxSpec::new().fresh_io_dir()).await;
    let [one_dir, other_dir] = [&one, &other].map(|it| it.inner().io_dir().unwrap().identity);
    assert_ne!(one_dir, other_dir);
    // It is kept where its caller wants it.
    let kept = world.state.path().join("kept");
    let dir = one.inner().io_dir().unwrap().path().to_owned();
    std::fs::write(dir.join("f"), "x").unwrap();
    one.keep_io_dir(&kept).unwrap();
    assert!(matches!(one.keep_io_dir(&kept), Err(Error::NoFreshIoDir)));
    one.close().await.unwrap();
    assert_eq!(std::fs::read(kept.join("f")).unwrap(), b"x");
    assert!(matches!(
        world.launch(SandboxSpec::new()).await.keep_io_dir(&kept),
        Err(Error::NoFreshIoDir)
    ));
    drop(other);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn label_has_the_longest_life_of_a_sandbox_that_is_claimed_late() {
    let before = SystemTime::now();
    let world = World::new(1, SandboxSpec::new().lifetime(Duration::from_secs(5))).await;
    let sandbox = world.launch(SandboxSpec::new()).await;
    let life = world.life(&sandbox);
    let label = |name| {
        let found = life.spec.labels.iter().find(|(label, _)| label == name);
        found.map(|(_, value)| value.clone()).unwrap()
    };
    let expires = label("sandboxctl.expires").parse::<u64>().unwrap();
    let longest = before + PoolConfig::default().max_age + DEFAULT_LIFETIME;
    assert!(expires >= sandbox_engine::seconds(longest));
    assert_eq!(label("sandboxctl.title"), TITLE);
    drop(sandbox);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn sandbox_that_died_is_replaced_and_never_handed_out() {
    let world = World::new(2, SandboxSpec::new()).await;
    let names: Vec<String> = world.crowd.containers.lock().unwrap().keys().cloned().collect();
    world.crowd.containers.lock().unwrap()[&names[0]].stop();
    while world.pool.stats().dead == 0 || world.pool.stats().parked < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..2 {
        let sandbox = world.launch(SandboxSpec::new()).await;
        assert_eq!(start(&sandbox), StartKind::Warm);
        assert_ne!(sandbox.container_id(), names[0]);
    }
    let stats = world.pool.stats();
    assert_eq!((stats.dead, stats.hits), (1, 2));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn sandbox_that_waited_is_asked_whether_it_lives_and_ends_at_its_age() {
    let world = World::new(1, SandboxSpec::new()).await;
    tokio::time::sleep(Duration::from_secs(29)).await;
    let young = world.launch(SandboxSpec::new()).await;
    assert_eq!(world.life(&young).hellos.load(Ordering::Relaxed), 1);
    world.pool.settled().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let old = world.launch(SandboxSpec::new()).await;
    assert_eq!(start(&old), StartKind::Warm);
    assert_eq!(world.life(&old).hellos.load(Ordering::Relaxed), 2);
    world.pool.settled().await;
    let before = world.created();
    tokio::time::sleep(PoolConfig::default().max_age).await;
    world.pool.settled().await;
    let stats = world.pool.stats();
    assert_eq!((stats.expired, stats.parked, world.created()), (1, 1, before + 1));
    drop((young, old));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn sandboxes_that_do_not_answer_hold_no_launch_up_for_longer_than_a_start() {
    let world = World::new(3, SandboxSpec::new()).await;
    for age in [Duration::ZERO, Duration::from_secs(30)] {
        tokio::time::sleep(age).await;
        for life in world.crowd.containers.lock().unwrap().values() {
            life.is_silent.store(true, Ordering::Relaxed);
        }
        let (since, before) = (Instant::now(), world.pool.stats());
        let mut sandbox = SandboxSpec::new().into();
        let Claim::Cold(start) = world.pool.claim(&mut sandbox).await else { panic!("{age:?}") };
        let took = since.elapsed();
        assert!(took <= CLAIM_TIMEOUT + Duration::from_millis(1), "{took:?}");
        let stats = world.pool.stats();
        assert!(stats.dead > before.dead && stats.misses == before.misses + 1, "{stats:?}");
        drop(start);
        world.pool.settled().await;
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn engine_that_fails_is_asked_again_later_and_not_for_ever() {
    let world = World::cold(PoolConfig { size: 2, ..PoolConfig::default() });
    world.crowd.is_broken.store(true, Ordering::Relaxed);
    world.pool.prewarm(SandboxSpec::new().into()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let failed = world.pool.stats().failed;
    assert!((5..20).contains(&failed), "{failed}");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.pool.stats().failed, failed);
    world.crowd.is_broken.store(false, Ordering::Relaxed);
    // The one that finds nothing wakes it.
    assert_eq!(start(&world.launch(SandboxSpec::new()).await), StartKind::Cold);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(start(&world.launch(SandboxSpec::new()).await), StartKind::Warm);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.pool.stats().parked, 2);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn keys_are_learnt_from_launches() {
    let config = PoolConfig { size: 2, adaptive: true, ..PoolConfig::default() };
    let world = World::cold(config);
    for expected in [StartKind::Cold, StartKind::Cold, StartKind::Warm, StartKind::Warm] {
        let sandbox = world.launch(SandboxSpec::new()).await;
        // Where the machine has no memory for it, nothing is learnt.
        if memory_is_available() {
            assert_eq!(start(&sandbox), expected);
        }
        world.pool.settled().await;
    }
    world.close().await;
}

#[test]
fn memory_is_enough_if_an_eighth_is_available() {
    let text = |available: u64| {
        format!("MemTotal:        8000 kB\nMemFree:  1 kB\nMemAvailable:   {available} kB\n")
    };
    assert!(is_enough(&text(1000)) && !is_enough(&text(999)) && is_enough(""));
}
