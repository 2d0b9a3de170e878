//! Tests of the whole service, with a real store and a launcher without containers.

mod attached;
mod cluster;
mod ports;
mod processes;
mod sandboxes;
mod simulator;
mod turns;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_api::service::{
    Execution, ExecutionKind, ExecutionRequest, ExecutionState, SandboxRef, SandboxRequest,
    Subject, Time,
};
use sandbox_api::{
    ByteSize, DiskReserve, ErrorKind, ExecutionDocument, Limits, ProblemKind, Recorded, RootFs,
    Status,
};
use sandbox_store::{Accepted, Durability, NewExecution, Placement, Store, StoredExecution};
use tokio::runtime::Runtime;

use crate::fake::{self, FakeLauncher};
use crate::{
    ArchiveFormat, ExecutionQuery, IdempotencyKey, IoPosture, Quotas, Service, ServiceConfig,
    ServiceError,
};

/// How long a test waits for what must happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A service on a directory of its own, which can be killed and started again.
struct World {
    dir: tempfile::TempDir,
    launcher: Arc<FakeLauncher>,
    change: fn(&mut ServiceConfig),
    /// All tasks of a service are in its runtime: they end with it, as in a killed process.
    running: Option<(Runtime, Service)>,
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: fn(&mut ServiceConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut world = Self { dir, launcher: Arc::default(), change, running: None };
        world.start();
        world
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let mut config = ServiceConfig::new(self.data_dir());
        config.io = IoPosture::PrivatePerExecution;
        (self.change)(&mut config);
        let launcher = self.launcher.clone();
        let service = runtime.block_on(async {
            // The thread that writes the store of a killed service ends a little later.
            let deadline = Instant::now() + TEST_TIMEOUT;
            let store = loop {
                match Store::open(&config.data_dir, Durability::Disk) {
                    Err(sandbox_store::StoreError::InUse { .. }) if Instant::now() < deadline => {
                        tokio::task::yield_now().await;
                    }
                    store => break store.unwrap(),
                }
            };
            fake::start(config, launcher, store).await.unwrap()
        });
        self.running = Some((runtime, service));
    }

    /// Ends it as `kill -9` does.
    fn kill(&mut self) {
        let (runtime, service) = self.running.take().unwrap();
        drop(service);
        runtime.shutdown_timeout(TEST_TIMEOUT);
    }

    fn restart(&mut self) {
        self.kill();
        self.start();
    }

    fn service(&self) -> &Service {
        &self.running.as_ref().unwrap().1
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let runtime = &self.running.as_ref().unwrap().0;
        runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, future).await.unwrap() })
    }

    fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.running.as_ref().unwrap().0.spawn(future)
    }

    fn submit_as(&self, subject: &Subject, source: &str) -> Result<String, ServiceError> {
        self.block_on(self.service().submit(subject, script(source), None, None)).map(|it| it.id)
    }

    fn submit(&self, source: &str) -> String {
        self.submit_as(me(), source).unwrap()
    }

    fn wait(&self, id: &str) -> Execution {
        let execution = self.block_on(self.service().wait(me(), id, TEST_TIMEOUT)).unwrap();
        assert!(execution.summary.status.ended().is_some(), "{execution:?}");
        read(execution)
    }

    fn status(&self, id: &str) -> ExecutionState {
        self.now(id).unwrap().summary.status
    }

    /// As it is now.
    fn now(&self, id: &str) -> Result<Execution, ServiceError> {
        self.block_on(self.service().wait(me(), id, Duration::ZERO)).map(read)
    }

    /// Waits until it has this status.
    fn until(&self, id: &str, status: ExecutionState) {
        self.until_true(|| self.status(id) == status);
    }

    /// Waits until so many have begun to run: each is called running a moment before.
    fn until_runs(&self, count: usize) {
        self.until_true(|| self.launcher.runs.load(Ordering::SeqCst) == count);
    }

    fn until_true(&self, is_true: impl Fn() -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !is_true() {
            assert!(Instant::now() < deadline, "it takes too long");
            self.block_on(tokio::task::yield_now());
        }
    }

    /// The names of all events after one, up to the end.
    fn events(&self, id: &str, after: u64) -> Vec<(u64, &'static str)> {
        self.block_on(async {
            let events = self.service().events(me(), id, after).await.unwrap();
            events.map(|event| event.unwrap()).map(|it| (it.seq, it.event.name())).collect().await
        })
    }
}

fn all() -> ExecutionQuery {
    ExecutionQuery { limit: 100, ..ExecutionQuery::default() }
}

fn read(stored: StoredExecution) -> Execution {
    let document = stored.document.map(|json| ExecutionDocument::from_json(&json).unwrap());
    Execution { summary: stored.summary, document }
}

fn me() -> &'static Subject {
    static ME: LazyLock<Subject> = LazyLock::new(|| Subject::new("me").unwrap());
    &ME
}

fn other() -> &'static Subject {
    static OTHER: LazyLock<Subject> = LazyLock::new(|| Subject::new("other").unwrap());
    &OTHER
}

fn script(source: &str) -> ExecutionRequest {
    ExecutionRequest { script: Some(source.into()), ..ExecutionRequest::default() }
}

fn of_sandbox(id: &str, generation: Option<u64>) -> SandboxRef {
    SandboxRef { id: id.to_owned(), generation }
}

fn at(id: &str, generation: Option<u64>) -> Option<SandboxRef> {
    Some(of_sandbox(id, generation))
}

fn key(text: &str) -> Option<IdempotencyKey> {
    Some(IdempotencyKey::new(text).unwrap())
}

fn failure(execution: &Execution) -> (ErrorKind, String) {
    let failure = execution.document.as_ref().unwrap().common.error.as_ref().unwrap();
    (failure.kind, failure.message.clone())
}

#[test]
fn files_that_were_kept_and_are_gone_are_reported_as_missing() {
    let world = World::new();
    let id = world.submit("return 1");
    world.wait(&id);
    let files = || world.block_on(world.service().files(me(), &id));
    world.until_true(|| files().is_ok_and(|it| it.files.len() == 1));
    // As after the restore of a database that is older than the directory.
    std::fs::remove_dir_all(world.data_dir().join("files").join(&id)).unwrap();
    for missing in [
        files().unwrap_err(),
        world.block_on(world.service().open_file(me(), &id, b"out.txt")).unwrap_err(),
        world.block_on(world.service().archive(me(), &id, ArchiveFormat::TarGzip)).err().unwrap(),
        world.block_on(world.service().changes(me(), &id)).unwrap_err(),
    ] {
        assert_eq!(missing.problem(), ServiceError::files_lost(&id).problem());
    }
    let file = world.launcher.files.lock().unwrap().split_off(0);
    drop(file);
    let empty = world.submit("return 1");
    world.wait(&empty);
    let files = world.block_on(world.service().files(me(), &empty)).unwrap();
    assert!(files.files.is_empty(), "it left none");
}

#[test]
fn result_whose_files_are_lost_is_no_success() {
    let world = World::new();
    world.launcher.loses_files.store(true, Ordering::SeqCst);
    let execution = world.wait(&world.submit("return 1"));
    assert_eq!(execution.summary.status, ExecutionState::Ended(Status::Error));
    let message = "it ran to its end, but its files could not be kept".to_owned();
    assert_eq!(failure(&execution), (ErrorKind::Internal, message));
    let id = world.submit("wait");
    world.until_runs(2);
    world.block_on(world.service().cancel(me(), &id)).unwrap();
    let execution = world.wait(&id);
    assert_eq!(execution.summary.status, ExecutionState::Ended(Status::Cancelled));
    assert_eq!(failure(&execution).1, "cancelled by the caller; its files could not be kept");
}

#[test]
fn accepted_execution_runs_to_its_durable_end_and_is_kept_with_its_files() {
    let mut world = World::new();
    let id = world.submit("return 1");
    let execution = world.wait(&id);
    assert_eq!(execution.summary.status, ExecutionState::Ended(Status::Ok));
    assert!(execution.summary.started_at.is_some() && execution.summary.ended_at.is_some());
    let json = serde_json::to_value(&execution).unwrap();
    assert_eq!(
        (&json["id"], &json["schema"]),
        (&id.as_str().into(), &"sandboxctl.result/1".into())
    );
    world.restart();
    let stored = world.now(&id).unwrap();
    assert_eq!(serde_json::to_value(&stored).unwrap(), json);
    world.block_on(async {
        let service = world.service();
        let files = service.files(me(), &id).await.unwrap();
        assert_eq!(files.files[0].path, "out.txt");
        assert_eq!(service.open_file(me(), &id, b"out.txt").await.unwrap().bytes, 4);
        let changes = service.changes(me(), &id).await.unwrap();
        assert_eq!(changes.changes.len(), 1);
        let archive = service.archive(me(), &id, ArchiveFormat::TarGzip).await.unwrap();
        let pieces: Vec<_> = archive.map(Result::unwrap).collect().await;
        assert_eq!(pieces.concat()[..2], [0x1f, 0x8b]);
        // It was an archive that broke off before it began.
        let directory = world.data_dir().join("files").join(&id);
        for number in 0..crate::files::MAX_ENTRIES {
            std::fs::File::create(directory.join(number.to_string())).unwrap();
        }
        let refused = service.archive(me(), &id, ArchiveFormat::TarGzip).await;
        assert_eq!(refused.err().unwrap().kind(), ErrorKind::TooManyFiles);
        let usage = service.usage(me()).await.unwrap();
        assert_eq!((usage.executions, usage.cpu_ms, usage.written_bytes), (1, 7, 3));
        assert!(usage.stored_bytes > 0);
    });
}

#[test]
fn events_are_numbered_from_one_and_resume_from_any_number() {
    let mut world = World::new();
    let id = world.submit("log a b c");
    world.wait(&id);
    let all = [(1, "queued"), (2, "start"), (3, "log"), (4, "log"), (5, "log"), (6, "end")];
    for after in 0..=6 {
        assert_eq!(world.events(&id, after), all[after as usize..], "{after}");
    }
    world.restart();
    for after in 0..=6 {
        assert_eq!(world.events(&id, after), all[after as usize..], "{after}");
    }
    // The end comes with the result, which is stored once.
    let end = world.block_on(async {
        let mut events = world.service().events(me(), &id, 5).await.unwrap();
        events.next().await.unwrap().unwrap()
    });
    let Recorded::End { document, .. } = &end.event else { panic!("{end:?}") };
    assert!(document.get().contains(&id), "{document}");
}

#[test]
fn reader_follows_a_run_to_its_end() {
    let world = World::new();
    let id = world.submit("wait");
    let events = world.block_on(async {
        let mut events = world.service().events(me(), &id, 0).await.unwrap();
        let mut names = Vec::new();
        while let Some(event) = events.next().await {
            let event = event.unwrap();
            names.push(event.event.name());
            if event.event.name() == "start" {
                world.launcher.go_on.add_permits(1);
            }
        }
        names
    });
    assert_eq!(events, ["queued", "start", "end"]);
}

#[test]
fn repeated_key_is_the_same_execution_and_another_request_is_refused() {
    let mut world = World::new();
    let submit = |world: &World, source: &str| {
        world.block_on(world.service().submit(me(), script(source), None, key("k")))
    };
    let first = submit(&world, "return 1").unwrap();
    assert!(first.is_new);
    world.wait(&first.id);
    for _ in 0..2 {
        let again = submit(&world, "return 1").unwrap();
        assert_eq!((&again.id, again.is_new), (&first.id, false));
        let error = submit(&world, "return 2").unwrap_err();
        assert_eq!(error.problem().kind, ProblemKind::KeyReused, "{error}");
        world.restart();
    }
    let theirs = world.service().submit(other(), script("return 2"), None, key("k"));
    assert!(world.block_on(theirs).unwrap().is_new);
    world.until_true(|| world.launcher.runs.load(Ordering::SeqCst) == 2);
}

#[test]
fn sandbox_is_started_while_its_execution_is_stored_and_runs_nothing_before() {
    let world = World::new();
    let store = world.service().core.records.store();
    let submit = |source: &'static str, key| {
        let service = world.service().clone();
        world.spawn(async move { service.submit(me(), script(source), None, key).await })
    };
    let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
    let ((holds, begun), (release, held)) = (mpsc::channel(), mpsc::channel::<()>());
    let start = world.service().core.start_of(Time::now(), Limits::default(), None, None);
    store.mark_running_then("nothing", start, move |_| {
        holds.send(()).unwrap();
        _ = held.recv();
    });
    // From here on the thread that writes is held, and what it is handed is not stored yet.
    begun.recv().unwrap();
    store.accept_then(
        NewExecution {
            id: "other".to_owned(),
            subject: me().clone(),
            kind: ExecutionKind::Script,
            request: "{}".to_owned(),
            has_secrets: false,
            key: Some(("k".to_owned(), "of another request".to_owned())),
            created_at: Time::now(),
            start: None,
            metadata: serde_json::Map::new(),
            image: None,
            sandbox: None,
            generation: None,
            events: Vec::new(),
            trace_parent: None,
            placement: Placement::default(),
        },
        |accepted| assert_eq!(accepted.unwrap(), Accepted::New),
    );
    let (accepted, refused) = (submit("return 1", None), submit("return 2", key("k")));
    world.until_true(|| count(&world.launcher.launches) == 2);
    assert!(!accepted.is_finished() && !refused.is_finished());
    assert_eq!(count(&world.launcher.runs), 0);
    drop(release);
    let id = world.block_on(accepted).unwrap().unwrap().id;
    let error = world.block_on(refused).unwrap().unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::KeyReused, "{error}");
    assert_eq!(world.wait(&id).summary.status, ExecutionState::Ended(Status::Ok));
    world.until_true(|| count(&world.launcher.dropped) == 2);
    assert_eq!(count(&world.launcher.runs), 1);
    world.until_true(|| world.service().counters().running == 0);
}

#[test]
fn concurrent_requests_with_one_key_are_one_execution() {
    let world = World::new();
    let ids = world.block_on(async {
        let submits =
            (0..20).map(|_| world.service().submit(me(), script("return 1"), None, key("k")));
        futures_util::future::join_all(submits).await
    });
    let is_in_flight = |it: &Result<_, ServiceError>| {
        it.as_ref().is_err_and(|error| error.problem().kind == ProblemKind::InFlight)
    };
    let accepted: Vec<_> = ids.iter().filter_map(|it| it.as_ref().ok()).collect();
    assert!(ids.iter().all(|it| it.is_ok() || is_in_flight(it)));
    assert_eq!(accepted.iter().filter(|it| it.is_new).count(), 1);
    assert!(accepted.iter().all(|it| it.id == accepted[0].id));
}

#[test]
fn subject_over_its_concurrency_waits_and_others_do_not() {
    let world = World::with(|config| config.quotas.concurrency = 1);
    let [one, two] = [world.submit("wait"), world.submit("return 1")];
    world.until(&one, ExecutionState::Running);
    let theirs = world.submit_as(other(), "return 1").unwrap();
    let ended = world.service().wait(other(), &theirs, TEST_TIMEOUT);
    assert_eq!(world.block_on(ended).unwrap().summary.status, ExecutionState::Ended(Status::Ok));
    assert_eq!(world.status(&two), ExecutionState::Queued);
    let usage = world.block_on(world.service().usage(me())).unwrap();
    assert_eq!((usage.running, usage.queued), (1, 1));
    world.launcher.go_on.add_permits(1);
    world.wait(&one);
    world.wait(&two);
}

#[test]
fn full_queue_refuses_and_forgets_nothing() {
    let world = World::with(|config| {
        config.concurrency = 1;
        config.max_queued = 3;
    });
    let running = world.submit("wait");
    world.until(&running, ExecutionState::Running);
    let waiting: Vec<_> = (0..3).map(|_| world.submit("return 1")).collect();
    let error = world.submit_as(me(), "return 1").unwrap_err();
    assert_eq!(error.problem(), ServiceError::full(3).problem());
    world.launcher.go_on.add_permits(1);
    for id in waiting {
        assert_eq!(world.wait(&id).summary.status, ExecutionState::Ended(Status::Ok));
    }
    assert_eq!(world.service().counters().refused_full, 1);
}

/// A script that is so many bytes long.
fn long(verb: &str, bytes: usize) -> String {
    format!("{verb:<bytes$}")
}

#[test]
fn waiting_requests_have_a_bound_of_bytes_together() {
    let mut world = World::with(|config| {
        config.concurrency = 1;
        config.max_queued_bytes = ByteSize::b(10_000);
    });
    let stored = |world: &World| world.block_on(world.service().usage(me())).unwrap().stored_bytes;
    let ids = [4000; 3].map(|bytes| world.submit(&long("wait", bytes)));
    world.until(&ids[0], ExecutionState::Running);
    assert!((12_000..14_000).contains(&stored(&world)), "{}", stored(&world));
    let is_refused = |world: &World, bytes| {
        let error = world.submit_as(me(), &long("wait", bytes)).unwrap_err();
        assert_eq!(error.problem().kind, ProblemKind::Full, "{error}");
        assert_eq!(error.problem().status, 503);
        assert!(error.retry_after().is_some());
    };
    is_refused(&world, 4000);
    assert_eq!(world.service().counters().refused_full, 1);
    // Other subjects have an empty queue.
    world.submit_as(other(), &long("return 1", 1500)).unwrap();
    // After a restart it is what waits still.
    world.restart();
    world.until(&ids[1], ExecutionState::Running);
    is_refused(&world, 6500);
    world.launcher.go_on.add_permits(2);
    for id in &ids[1..] {
        assert_eq!(world.wait(id).summary.status, ExecutionState::Ended(Status::Ok));
    }
    world.until_true(|| world.service().core.pending.bytes_of(me()) == 0);
    world.submit(&long("return 1", 10_000));
}

#[test]
fn bytes_of_requests_count_as_stored_until_their_end() {
    let world = World::with(|config| {
        config.concurrency = 1;
        config.quotas.stored = Some(ByteSize::b(10_000));
    });
    let [running, waiting] = [(); 2].map(|()| world.submit(&long("wait", 4000)));
    world.until(&running, ExecutionState::Running);
    let error = world.submit_as(me(), &long("wait", 4000)).unwrap_err();
    let is_stored = error.problem() == ServiceError::quota_exceeded("stored bytes", None).problem();
    assert!(is_stored, "{error}");
    world.submit_as(other(), &long("return 1", 4000)).unwrap();
    world.block_on(world.service().cancel(me(), &waiting)).unwrap();
    world.until_true(|| world.submit_as(me(), &long("return 1", 4000)).is_ok());
    world.launcher.go_on.add_permits(1);
    world.wait(&running);
}

#[test]
fn disk_reserve_is_for_what_was_accepted_before() {
    let mut world = World::with(|config| config.concurrency = 1);
    let ids = [(); 3].map(|()| world.submit("wait"));
    world.change = |config| {
        config.concurrency = 1;
        config.disk_reserve = DiskReserve::Bytes(ByteSize::b(1 << 60));
    };
    world.restart();
    let create = world.service().create_sandbox(me(), SandboxRequest::default());
    for error in [
        world.submit_as(me(), "return 1").unwrap_err(),
        world.block_on(create).unwrap_err(),
        world.run(me()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::DiskFull);
        assert!(error.to_string().ends_with("left (limits.disk_reserve)"), "{error}");
    }
    let health = world.block_on(world.service().health());
    let failing: Vec<_> = health.checks.iter().filter(|check| !check.ok).collect();
    assert!(!health.ready && failing.iter().any(|check| check.name == "disk"), "{failing:?}");
    // What was accepted is cancelled, and runs to its end.
    world.block_on(world.service().cancel(me(), &ids[2])).unwrap();
    world.launcher.go_on.add_permits(1);
    assert_eq!(world.wait(&ids[1]).summary.status, ExecutionState::Ended(Status::Ok));
    assert_eq!(world.wait(&ids[2]).summary.status, ExecutionState::Ended(Status::Cancelled));
}

#[test]
fn open_transfers_pass_no_quota_together() {
    const PIECE: u64 = 9_000_000;
    let world = World::with(|config| config.quotas.stored = Some(ByteSize::b(50_000_000)));
    let core = &world.service().core;
    let make_room = |bytes| world.block_on(core.make_room(me(), bytes));
    let many = (0..84).map(|_| core.make_room(me(), PIECE));
    let many = world.block_on(futures_util::future::join_all(many));
    let mut rooms: Vec<_> = many.into_iter().filter_map(Result::ok).collect();
    assert_eq!(rooms.len(), 5);
    let stored = world.block_on(world.service().usage(me())).unwrap().stored_bytes;
    assert_eq!(stored, 5 * PIECE);
    // One that announces nothing gets room as it comes.
    let mut room = make_room(0).unwrap();
    let mut add = |bytes| world.block_on(core.add_room(&mut room, bytes));
    add(4_000_000).unwrap();
    let error = add(2_000_000).unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::QuotaExceeded, "{error}");
    assert!(make_room(u64::MAX).is_err() && make_room(u64::MAX).is_err());
    drop((room, rooms.pop()));
    assert!(make_room(PIECE).is_ok());
    drop(rooms);
    assert_eq!(world.block_on(world.service().usage(me())).unwrap().stored_bytes, 0);
}

#[test]
fn rate_and_quotas_refuse_with_the_time_to_try_again() {
    let world = World::with(|config| config.quotas.rate_per_minute = Some(2));
    world.submit("return 1");
    let id = world.submit("return 1");
    let error = world.submit_as(me(), "return 1").unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::RateLimited);
    assert!(error.retry_after().is_some_and(|after| after <= Duration::from_secs(30)), "{error}");
    world.submit_as(other(), "return 1").unwrap();
    world.wait(&id);
    for quotas in [
        Quotas { cpu_per_day: Some(Duration::from_millis(7)), ..Quotas::default() },
        Quotas { stored: Some(ByteSize::b(1)), ..Quotas::default() },
    ] {
        world.service().set_quotas(quotas);
        let error = world.submit_as(me(), "return 1").unwrap_err();
        assert_eq!(error.problem().kind, ProblemKind::QuotaExceeded, "{error}");
    }
    world.service().set_quotas(Quotas::default());
    world.submit("return 1");
}

#[test]
fn cancelled_execution_ends_whether_it_waits_or_runs() {
    let world = World::with(|config| config.concurrency = 1);
    let [running, waiting] = [world.submit("wait"), world.submit("return 1")];
    world.until_runs(1);
    let cancel = |id: &str| read(world.block_on(world.service().cancel(me(), id)).unwrap());
    let cancelled = cancel(&waiting);
    assert_eq!(cancelled.summary.status, ExecutionState::Ended(Status::Cancelled));
    assert_eq!(failure(&cancelled).0, ErrorKind::Cancelled);
    assert_eq!(world.events(&waiting, 0), [(1, "queued"), (2, "end")]);
    cancel(&running);
    assert_eq!(world.wait(&running).summary.status, ExecutionState::Ended(Status::Cancelled));
    // It stays what it is.
    assert_eq!(cancel(&running).summary.status, ExecutionState::Ended(Status::Cancelled));
    assert_eq!(world.launcher.runs.load(Ordering::SeqCst), 1);
    assert_eq!(
        world.wait(&world.submit("return 1")).summary.status,
        ExecutionState::Ended(Status::Ok)
    );
}

#[test]
fn killed_server_finds_what_it_accepted_and_runs_nothing_twice() {
    let mut world = World::with(|config| config.concurrency = 1);
    let ended = world.submit("return 1");
    world.wait(&ended);
    let running = world.submit("wait");
    world.until_runs(2);
    let waiting: Vec<_> = (0..3).map(|_| world.submit("return 1")).collect();
    let mut with_secret = script("return 1");
    let secret = sandbox_api::SecretValue::new("hunter2!");
    with_secret.secrets.0.insert("TOKEN".to_owned(), secret);
    let with_secret =
        world.block_on(world.service().submit(me(), with_secret, None, None)).unwrap().id;
    let unknown = world.data_dir().join("files/0123");
    std::fs::create_dir(&unknown).unwrap();
    world.restart();
    let killed = world.wait(&running);
    assert_eq!(killed.summary.status, ExecutionState::Ended(Status::Killed));
    assert!(killed.summary.started_at.is_some());
    let reason = "the server was stopped while it ran".to_owned();
    assert_eq!(failure(&killed), (ErrorKind::Killed, reason));
    assert_eq!(world.events(&running, 0).last().unwrap().1, "end");
    // A reader who saw more of it than was stored sees the end too.
    for seen in 0..10 {
        assert_eq!(world.events(&running, seen).last().unwrap().1, "end", "{seen}");
    }
    for id in &waiting {
        assert_eq!(world.wait(id).summary.status, ExecutionState::Ended(Status::Ok));
    }
    let lost = world.wait(&with_secret);
    assert_eq!(lost.summary.status, ExecutionState::Ended(Status::Error));
    assert!(failure(&lost).1.contains("secrets"), "{lost:?}");
    // A reader who has seen at once that it is queued sees the end too.
    assert_eq!(world.events(&with_secret, 0), [(1, "queued"), (2, "end")]);
    assert_eq!(world.events(&with_secret, 1), [(2, "end")]);
    assert_eq!(world.launcher.runs.load(Ordering::SeqCst), 2 + waiting.len());
    assert!(!unknown.exists());
    let list = world.block_on(world.service().list(me(), all())).unwrap();
    assert_eq!(list.executions.len(), 6);
    let done =
        list.executions.iter().filter(|it| it.status == ExecutionState::Ended(Status::Ok)).count();
    // What the killed one used is unknown, and not nothing.
    let usage = world.block_on(world.service().usage(me())).unwrap();
    assert!(usage.cpu_ms > 7 * done as u64, "{usage:?}");
    // What it does in the background ends before its files are read; those of the database's log go with its last
    // connection.
    world.kill();
    for file in files_below(&world.data_dir()) {
        let content = match std::fs::read(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            content => content.unwrap(),
        };
        let found = content.windows(8).any(|part| part == b"hunter2!");
        assert!(!found, "a secret in {}", file.display());
    }
}

#[test]
fn request_is_in_the_document_if_it_is_small_and_had_no_secrets() {
    let world = World::with(|config| config.concurrency = 1);
    let submit = |request| world.block_on(world.service().submit(me(), request, None, None));
    let kept = |id: &str| {
        world.wait(id).document.unwrap().common.request.map(std::borrow::Cow::into_owned)
    };
    // One begins at once, and the others wait for their turn.
    let running = world.submit("wait");
    let ids = ["return 1", "return 2"].map(|source| (world.submit(source), source));
    let mut with_secret = script("return 3");
    with_secret.secrets.0.insert("TOKEN".to_owned(), sandbox_api::SecretValue::new("hunter2!"));
    let with_secret = submit(with_secret).unwrap().id;
    let large = submit(script(&long("return 4", 20_000))).unwrap().id;
    world.launcher.go_on.add_permits(1);
    for (id, source) in ids {
        assert_eq!(kept(&id).unwrap()["script"], source);
    }
    assert_eq!(kept(&running).unwrap()["script"], "wait");
    assert_eq!((kept(&with_secret), kept(&large)), (None, None));
}

/// It had no output and no entries, and said that there was no more.
#[test]
fn document_of_what_was_killed_has_its_stored_events_and_says_what_may_be_missing() {
    let mut world = World::with(|config| {
        config.default_root = RootFs::Directory("/programs".into());
    });
    let mut request = script("log-and-wait a b");
    request.limits = serde_json::from_value(serde_json::json!({ "pids": 20 })).unwrap();
    let script = world.block_on(world.service().submit(me(), request, None, None)).unwrap().id;
    let line = serde_json::json!({ "command": { "shell": "log-and-wait a b" } });
    let line: ExecutionRequest = serde_json::from_value(line).unwrap();
    let command = world.block_on(world.service().submit(me(), line, None, None)).unwrap().id;
    let in_sandbox = {
        let request = SandboxRequest::default();
        let created = world.block_on(world.service().create_sandbox(me(), request)).unwrap();
        let wait = ExecutionRequest {
            limits: serde_json::from_value(serde_json::json!({ "timeout_ms": 4000 })).unwrap(),
            ..self::script("log-and-wait a b")
        };
        let sandbox = created.sandbox.id;
        let submitted = world.service().submit(me(), wait, at(&sandbox, None), None);
        world.block_on(submitted).unwrap().id
    };
    for id in [&script, &command, &in_sandbox] {
        let stored = || world.block_on(world.service().core.records.events(me(), id, 0, 10));
        // Queued, started, and its output.
        world.until_true(|| stored().unwrap().len() == 4);
    }
    // The one had ended, and its files were kept already.
    let files = world.data_dir().join("files").join(&script);
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("out.txt"), "made").unwrap();
    world.restart();
    let document = |id: &str| serde_json::to_value(world.wait(id)).unwrap();
    let expect = |id: &str, members: serde_json::Value| {
        let document = document(id);
        for (name, value) in members.as_object().unwrap() {
            assert_eq!(&document[name], value, "{name} of {document:#}");
        }
    };
    expect(
        &script,
        serde_json::json!({
            "status": "killed",
            "logs": ["a", "b", "[log cut off: the server was stopped]"],
            "logs_truncated": true,
            "files_touched": [{ "name": "out.txt", "op": "write", "bytes": 4 }],
            "files_touched_source": "scan",
            "files_touched_truncated": false,
        }),
    );
    expect(
        &command,
        serde_json::json!({
            "status": "killed",
            "stdout": "ab",
            "stdout_truncated": true,
            "stderr_truncated": true,
            "files_touched": [],
            "files_touched_truncated": true,
        }),
    );
    let files = world.block_on(world.service().files(me(), &script)).unwrap();
    assert_eq!(files.files[0].path, "out.txt");
    // The engine and the limits were known before; its usage was not measured.
    for (id, limit, value) in [
        (&script, "pids", 20),
        (&command, "timeout_ms", 600_000),
        (&in_sandbox, "timeout_ms", 4000),
    ] {
        let document = document(id);
        assert_eq!(document["engine"], "embedded", "{document:#}");
        assert_eq!(document["limits"][limit], value, "{document:#}");
        assert!(document["usage"].is_null(), "{document:#}");
    }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|it| if it.is_dir() { files_below(&it) } else { vec![it] }).collect()
}

#[test]
fn accepted_work_waits_for_an_engine_that_is_away_for_a_while() {
    let mut world = World::with(|config| config.engine_retry_time = TEST_TIMEOUT);
    let request = SandboxRequest::default();
    let created = world.block_on(world.service().create_sandbox(me(), request)).unwrap();
    // Its container is gone.
    world.restart();
    world.launcher.failing.store(2, Ordering::SeqCst);
    let submitted =
        world.service().submit(me(), script("return 1"), at(&created.sandbox.id, None), None);
    let in_sandbox = world.block_on(submitted).unwrap().id;
    assert_eq!(world.wait(&in_sandbox).summary.status, ExecutionState::Ended(Status::Ok));
    assert_eq!(world.service().counters().retried_starts, 2);

    world.launcher.failing.store(2, Ordering::SeqCst);
    let health = world.block_on(world.service().health());
    assert!(!health.ready && health.checks.iter().any(|it| it.name == "engine" && !it.ok));
    let id = world.submit("return 1");
    assert_eq!(world.wait(&id).summary.status, ExecutionState::Ended(Status::Ok));
    assert_eq!(world.service().counters().retried_starts, 4);
    // Its pool has begun too.
    assert!(world.block_on(world.service().health()).ready);
}

#[test]
fn accepted_work_ends_with_an_error_if_the_engine_stays_away() {
    let world = World::with(|config| config.engine_retry_time = Duration::from_millis(150));
    world.launcher.failing.store(usize::MAX, Ordering::SeqCst);
    let execution = world.wait(&world.submit("return 1"));
    assert_eq!(execution.summary.status, ExecutionState::Ended(Status::Error));
    assert_eq!(failure(&execution).0, ErrorKind::Engine);
    assert_eq!(world.launcher.runs.load(Ordering::SeqCst), 0);
}

#[test]
fn execution_that_panics_or_fails_ends_with_an_error_and_frees_its_place() {
    let world = World::with(|config| config.concurrency = 1);
    for (source, kind) in [("panic", ErrorKind::Internal), ("fail", ErrorKind::AgentLost)] {
        let execution = world.wait(&world.submit(source));
        assert_eq!(execution.summary.status, ExecutionState::Ended(Status::Error));
        assert_eq!(failure(&execution).0, kind);
    }
    assert_eq!(
        world.wait(&world.submit("return 1")).summary.status,
        ExecutionState::Ended(Status::Ok)
    );
}

#[test]
fn every_sandbox_of_an_execution_is_removed() {
    let world = World::new();
    for source in ["return 1", "fail", "log a"] {
        world.wait(&world.submit(source));
    }
    world.until_true(|| world.launcher.closed.load(Ordering::SeqCst) == 3);
    assert_eq!(world.launcher.launches.load(Ordering::SeqCst), 3);
}

#[test]
fn subjects_see_nothing_of_each_other() {
    let world = World::new();
    let id = world.submit("return 1");
    world.wait(&id);
    let is_not_found = |error: ServiceError| {
        assert_eq!(error.problem().kind, ProblemKind::NotFound, "{error}");
    };
    world.block_on(async {
        let (service, other) = (world.service(), other());
        is_not_found(service.wait(other, &id, Duration::ZERO).await.unwrap_err());
        is_not_found(service.wait(other, &id, TEST_TIMEOUT).await.unwrap_err());
        is_not_found(service.cancel(other, &id).await.unwrap_err());
        is_not_found(service.events(other, &id, 0).await.err().unwrap());
        is_not_found(service.files(other, &id).await.unwrap_err());
        is_not_found(service.open_file(other, &id, b"out.txt").await.unwrap_err());
        is_not_found(service.changes(other, &id).await.unwrap_err());
        let archive = service.archive(other, &id, ArchiveFormat::TarGzip).await;
        is_not_found(archive.err().unwrap());
        let list = service.list(other, all()).await.unwrap();
        assert!(list.executions.is_empty());
        assert_eq!(service.usage(other).await.unwrap(), Default::default());
    });
}

#[test]
fn sandboxes_for_scripts_are_started_ahead() {
    let world = World::new();
    let prewarmed = world.launcher.prewarmed.lock().unwrap();
    assert_eq!(prewarmed.len(), 1);
    assert!(prewarmed[0].private_io.is_some(), "as the executions of this service are started");
}

#[test]
fn shutdown_finishes_cancels_and_leaves_the_queue_to_the_next_start() {
    let mut world = World::with(|config| config.concurrency = 2);
    for _ in 0..2 {
        world.submit("wait");
    }
    world.until_runs(2);
    let waiting = world.submit("return 1");
    // So long that the one which may end has ended before, also on a busy machine.
    let shutdown = world.service().shutdown(Duration::from_secs(5));
    // After the shutdown has begun.
    let go_on = async { world.launcher.go_on.add_permits(1) };
    let (report, ()) = world.block_on(futures_util::future::join(shutdown, go_on));
    assert_eq!((report.finished.len(), report.cancelled.len()), (1, 1));
    assert_eq!(report.queued, std::slice::from_ref(&waiting));
    let error = world.submit_as(me(), "return 1").unwrap_err();
    assert_eq!(error.problem(), ServiceError::shutting_down().problem());
    assert!(!world.block_on(world.service().health()).ready);
    let status = |id: &String| world.status(id);
    let mut ends = [status(&report.finished[0]), status(&report.cancelled[0])];
    ends.sort_by_key(|status| status.as_str());
    assert_eq!(ends, [ExecutionState::Ended(Status::Killed), ExecutionState::Ended(Status::Ok)]);
    let killed = world.now(&report.cancelled[0]).unwrap();
    let message = "the server was stopped while it ran".to_owned();
    assert_eq!(failure(&killed), (ErrorKind::Killed, message));
    world.restart();
    assert_eq!(world.wait(&waiting).summary.status, ExecutionState::Ended(Status::Ok));
}

#[test]
fn results_and_files_are_removed_together_when_their_time_is_over() {
    let mut world = World::new();
    let id = world.submit("return 1");
    world.wait(&id);
    let files = world.data_dir().join("files").join(&id);
    assert!(files.exists());
    world.change = |config| config.retention = Duration::ZERO;
    world.restart();
    world.until_true(|| !files.exists());
    let gone = || world.now(&id).is_err();
    world.until_true(gone);
    // A key of what is forgotten is forgotten too.
    let list = world.block_on(world.service().list(me(), all())).unwrap();
    assert!(list.executions.is_empty());
}

#[test]
fn list_is_in_pages_with_the_latest_first() {
    let world = World::new();
    let mut ids: Vec<_> = (0..5).map(|_| world.submit("return 1")).collect();
    let created = |id: &String| world.wait(id).summary.created_at;
    ids.sort_by_key(|id| std::cmp::Reverse((created(id), id.clone())));
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let query = ExecutionQuery { limit: 2, cursor, ..all() };
        let page = world.block_on(world.service().list(me(), query)).unwrap();
        found.extend(page.executions.into_iter().map(|it| it.id));
        cursor = page.next_cursor.map(|it| it.parse().unwrap());
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, ids);
}
