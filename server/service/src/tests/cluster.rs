//! Several services on one database, each with a launcher of its own.

use std::collections::HashSet;
use std::time::Duration;

use sandbox_api::service::{CommandRequest, IdleAction, KeptSpec, SandboxStatus};
use sandbox_api::{ProcessRequest, Processes};
use sandbox_store::fixture::{Postgres, Stop};
use sandbox_store::{
    Cluster, DatabaseConfig, Drain, Finish, NewSession, Start, StoreError, StoredEvent,
};

use super::*;
use crate::{Location, SandboxQuery, Target};

/// So long that no node is declared dead that is only slow.
const LEASE: Duration = Duration::from_secs(6);
/// As short as a lease may be, for a test that waits until it is over.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// Nodes of one cluster, which can be killed and started again.
struct Nodes {
    postgres: Postgres,
    database: DatabaseConfig,
    dir: tempfile::TempDir,
    change: fn(&mut ServiceConfig),
    nodes: Vec<TestNode>,
}

struct TestNode {
    launcher: Arc<FakeLauncher>,
    running: Option<(Runtime, Service)>,
}

impl Nodes {
    fn new(count: usize) -> Self {
        Self::with(count, Postgres::shared(), |_| {})
    }

    fn with(count: usize, postgres: Postgres, change: fn(&mut ServiceConfig)) -> Self {
        Self::leased(LEASE, count, postgres, change)
    }

    fn leased(
        lease: Duration,
        count: usize,
        postgres: Postgres,
        change: fn(&mut ServiceConfig),
    ) -> Self {
        let database = DatabaseConfig::new(postgres.database());
        Store::initialize(&database, Some(lease)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut nodes = Self { postgres, database, dir, change, nodes: Vec::new() };
        for _ in 0..count {
            nodes.add();
        }
        nodes
    }

    fn add(&mut self) {
        self.nodes.push(TestNode { launcher: Arc::default(), running: None });
        self.start(self.nodes.len() - 1);
    }

    fn start(&mut self, number: usize) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let mut config = ServiceConfig::new(self.dir.path().join(number.to_string()));
        config.io = IoPosture::PrivatePerExecution;
        config.node = Some(session(&node_id(number)));
        (self.change)(&mut config);
        let store = Store::connect(&self.database).unwrap();
        let launcher = self.nodes[number].launcher.clone();
        let service = runtime.block_on(fake::start(config, launcher, store)).unwrap();
        self.nodes[number].running = Some((runtime, service));
    }

    /// Ends a node as `kill -9` does.
    fn kill(&mut self, number: usize) {
        let (runtime, service) = self.nodes[number].running.take().unwrap();
        drop(service);
        runtime.shutdown_timeout(TEST_TIMEOUT);
    }

    fn service(&self, number: usize) -> &Service {
        &self.nodes[number].running.as_ref().unwrap().1
    }

    /// One declares another dead, as it does after a lease without a beat.
    fn declare_dead(&self, node: &str, by: usize) {
        let end = format!("SELECT end_session(id, NULL) FROM sessions WHERE node = '{node}'");
        assert_eq!(self.rows(&end).len(), 1);
        self.block_on(by, self.service(by).core.end_orphans()).unwrap();
    }

    fn block_on<T>(&self, number: usize, future: impl Future<Output = T>) -> T {
        let runtime = &self.nodes[number].running.as_ref().unwrap().0;
        runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, future).await.unwrap() })
    }

    fn submit(&self, number: usize, request: ExecutionRequest) -> String {
        self.submit_as(me(), number, request)
    }

    fn submit_as(&self, subject: &Subject, number: usize, request: ExecutionRequest) -> String {
        let service = self.service(number);
        self.block_on(number, service.submit(subject, request, None, None)).unwrap().id
    }

    fn wait(&self, number: usize, id: &str) -> Execution {
        let execution = self.block_on(number, self.service(number).wait(me(), id, TEST_TIMEOUT));
        let execution = read(execution.unwrap());
        assert!(execution.summary.status.ended().is_some(), "{execution:?}");
        execution
    }

    fn status(&self, number: usize, id: &str) -> ExecutionState {
        let service = self.service(number);
        self.block_on(number, service.wait(me(), id, Duration::ZERO)).unwrap().summary.status
    }

    fn until_true(&self, is_true: impl Fn() -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !is_true() {
            assert!(Instant::now() < deadline, "it takes too long");
            std::thread::yield_now();
        }
    }

    /// Begins something at a node: in a kept sandbox, which no other one has.
    fn occupy(&self, number: usize) -> String {
        let service = self.service(number);
        let kept = service.create_sandbox(me(), SandboxRequest::default());
        let kept = self.block_on(number, kept).unwrap().sandbox;
        let before = self.runs(number);
        let waits = service.submit(me(), script("wait"), at(&kept.id, None), None);
        let id = self.block_on(number, waits).unwrap().id;
        self.until_true(|| self.runs(number) > before);
        id
    }

    fn runs(&self, number: usize) -> usize {
        self.nodes[number].launcher.runs.load(Ordering::SeqCst)
    }

    fn all_runs(&self) -> usize {
        (0..self.nodes.len()).map(|number| self.runs(number)).sum()
    }

    fn go_on(&self, count: usize) {
        for node in &self.nodes {
            node.launcher.go_on.add_permits(count);
        }
    }

    fn rows(&self, statement: &str) -> Vec<Vec<String>> {
        let (_, database) = self.database.url.rsplit_once('/').unwrap();
        self.postgres.rows(database, &format!("SET search_path = sandboxctl; {statement}"))
    }

    /// A store without a service, for a node that does nothing by itself.
    fn store(&self) -> Store {
        Store::connect(&self.database).unwrap()
    }
}

fn node_id(number: usize) -> String {
    format!("node-{number}")
}

fn session(node: &str) -> NewSession {
    NewSession {
        node: node.to_owned(),
        name: node.to_owned(),
        address: "127.0.0.1:1".to_owned(),
        certificate: [7; 32],
        version: "0".to_owned(),
        slots: 4,
        config_digest: String::new(),
    }
}

fn begin(store: &Store, node: &str) -> (Cluster, i64) {
    let cluster = store.cluster().unwrap().clone();
    let session = cluster.begin_session(&session(node)).unwrap();
    (cluster, session)
}

fn ended(execution: &Execution) -> Status {
    execution.summary.status.ended().unwrap()
}

fn one_slot(config: &mut ServiceConfig) {
    config.concurrency = 1;
}

fn nothing_runs_here(config: &mut ServiceConfig) {
    config.concurrency = 0;
}

#[test]
fn every_node_knows_all_executions_and_runs_what_waits() {
    let nodes = Nodes::with(3, Postgres::shared(), one_slot);
    let busy = nodes.occupy(0);
    let ids: Vec<_> = (0..6).map(|_| nodes.submit(0, script("log x"))).collect();
    for id in &ids {
        for number in 0..3 {
            assert_eq!(ended(&nodes.wait(number, id)), Status::Ok);
        }
        let events = nodes.block_on(2, async {
            let events = nodes.service(2).events(me(), id, 0).await.unwrap();
            events.map(|event| event.unwrap().event.name()).collect::<Vec<_>>().await
        });
        assert_eq!(events, ["queued", "start", "log", "end"]);
    }
    assert_eq!(nodes.runs(0), 1, "its slot was in use");
    assert_eq!(nodes.all_runs(), 7);
    nodes.go_on(1);
    assert_eq!(ended(&nodes.wait(1, &busy)), Status::Ok);
    let usage = nodes.block_on(2, nodes.service(2).usage(me())).unwrap();
    assert_eq!((usage.executions, usage.running, usage.queued), (7, 0, 0));
}

#[test]
fn execution_of_a_node_that_was_killed_ends_as_killed_with_its_log() {
    let mut nodes = Nodes::leased(SHORTEST_LEASE, 1, Postgres::shared(), |_| {});
    let id = nodes.submit(0, script("log-and-wait said"));
    let is_stored = || {
        let statement = "SELECT 1 FROM events WHERE json LIKE '%said%'";
        !nodes.rows(statement).is_empty()
    };
    nodes.until_true(is_stored);
    nodes.add();
    nodes.kill(0);
    let execution = nodes.wait(1, &id);
    assert_eq!(ended(&execution), Status::Killed);
    assert_eq!(failure(&execution).1, "the node that ran it is gone");
    let document = serde_json::to_value(&execution.document).unwrap();
    assert_eq!(document["logs"][0], "said");
    nodes.start(0);
    assert_eq!(ended(&nodes.wait(0, &id)), Status::Killed);
    assert_eq!(nodes.all_runs(), 1);
    assert_eq!(nodes.rows("SELECT count(*) FROM usage"), [["1"]]);
}

#[test]
fn node_that_starts_again_ends_what_it_ran_and_everybody_runs_what_waits() {
    let mut nodes = Nodes::with(2, Postgres::shared(), one_slot);
    let begun = [nodes.submit(0, script("wait")), nodes.submit(1, script("wait"))];
    nodes.until_true(|| nodes.all_runs() == 2);
    let waits: Vec<_> = (0..4).map(|_| nodes.submit(0, script("return 1"))).collect();
    nodes.kill(0);
    nodes.kill(1);
    nodes.start(1);
    nodes.start(0);
    for id in &begun {
        assert_eq!(ended(&nodes.wait(0, id)), Status::Killed);
    }
    for id in &waits {
        assert_eq!(ended(&nodes.wait(1, id)), Status::Ok);
    }
    assert_eq!(nodes.all_runs(), 6);
}

#[test]
fn what_was_claimed_and_not_begun_runs_once_elsewhere() {
    let nodes = Nodes::with(1, Postgres::shared(), nothing_runs_here);
    let id = nodes.submit(0, script("return 1"));
    let store = nodes.store();
    let (cluster, gone) = begin(&store, "gone");
    let claims = cluster.claim(gone, 1, 8).unwrap();
    assert_eq!(claims.claimed[0].execution.summary.id, id);
    assert_eq!(nodes.status(0, &id), ExecutionState::Queued);
    nodes.declare_dead("gone", 0);
    // Another node comes.
    let (dir, launcher) = (tempfile::tempdir().unwrap(), Arc::<FakeLauncher>::default());
    let mut config = ServiceConfig::new(dir.path().join("data"));
    config.node = Some(session("late"));
    let late = nodes.block_on(0, fake::start(config, launcher.clone(), nodes.store())).unwrap();
    assert_eq!(ended(&nodes.wait(0, &id)), Status::Ok);
    assert_eq!(launcher.runs.load(Ordering::SeqCst), 1);
    assert_eq!(nodes.rows("SELECT claims FROM executions"), [["2"]]);
    // Too late: it is another session's.
    let start = Start {
        at: Time::now(),
        engine: sandbox_api::EngineKind::Embedded,
        limits: Limits::default(),
        used: None,
        session: Some(gone),
    };
    let refused = store.mark_running(&id, start).unwrap_err();
    assert!(matches!(refused, StoreError::Fenced { .. }), "{refused}");
    let events = nodes.rows("SELECT number, json FROM events");
    let event = StoredEvent { number: 9, json: "{}".to_owned() };
    store.append_events(vec![(id.clone(), vec![event.clone()])]).unwrap();
    let end = Finish {
        id: id.clone(),
        session: Some(gone),
        status: Status::Error,
        document: "{}".to_owned(),
        stored_bytes: 2,
        usage: None,
        ended_at: Time::now(),
        events: vec![event],
    };
    let refused = store.finish(end).unwrap_err();
    assert!(matches!(refused, StoreError::Fenced { .. }), "{refused}");
    assert_eq!(nodes.rows("SELECT number, json FROM events"), events);
    drop(late);
}

#[test]
fn execution_that_no_node_begins_is_given_up() {
    let nodes = Nodes::with(1, Postgres::shared(), nothing_runs_here);
    let id = nodes.submit(0, script("return 1"));
    let store = nodes.store();
    for _ in 0..crate::cluster::decide::MAX_CLAIMS {
        let (cluster, gone) = begin(&store, "poisoned");
        nodes.until_true(|| cluster.claim(gone, 1, 8).unwrap().claimed.len() == 1);
        cluster.end_session(gone).unwrap();
        let core = &nodes.service(0).core;
        nodes.block_on(0, core.end_orphans()).unwrap();
    }
    let execution = nodes.wait(0, &id);
    assert_eq!(ended(&execution), Status::Error);
    assert_eq!(failure(&execution).1, "3 nodes took it, and were gone before it began");
}

#[test]
fn node_that_was_declared_dead_stores_no_end_and_goes_on_in_a_new_session() {
    let mut nodes = Nodes::new(1);
    let id = nodes.submit(0, script("wait"));
    nodes.until_true(|| nodes.runs(0) == 1);
    nodes.add();
    let before = nodes.service(0).session();
    nodes.declare_dead("node-0", 1);
    // Its end comes when the others have ended it.
    nodes.go_on(1);
    for number in [1, 0] {
        assert_eq!(ended(&nodes.wait(number, &id)), Status::Killed);
    }
    nodes.until_true(|| nodes.service(0).session() != before);
    nodes.until_true(|| nodes.service(0).core.running() == 0);
    assert_eq!(nodes.service(0).counters().fenced, 1);
    nodes.until_true(|| nodes.nodes[0].launcher.closed.load(Ordering::SeqCst) == 1);
    let again = nodes.submit(0, script("return 1"));
    assert_eq!(ended(&nodes.wait(0, &again)), Status::Ok);
    assert_eq!(nodes.all_runs(), 2);
}

/// The database of a node may have been restored from a backup.
#[test]
fn files_that_the_database_does_not_know_stay_until_they_would_have_expired() {
    let mut nodes = Nodes::new(1);
    let unknown = nodes.dir.path().join("0/files/0123");
    std::fs::create_dir(&unknown).unwrap();
    let retention = nodes.service(0).core.config.retention;
    nodes.kill(0);
    nodes.start(0);
    assert!(unknown.exists());
    nodes.kill(0);
    let long_ago = std::time::SystemTime::now() - 2 * retention;
    std::fs::File::open(&unknown).unwrap().set_modified(long_ago).unwrap();
    nodes.start(0);
    assert!(!unknown.exists());
}

#[test]
fn no_node_is_dead_because_the_database_is() {
    let mut nodes = Nodes::leased(2 * SHORTEST_LEASE, 1, Postgres::start(), |_| {});
    let id = nodes.submit(0, script("wait"));
    nodes.until_true(|| nodes.runs(0) == 1);
    nodes.add();
    let sessions = [0, 1].map(|number| nodes.service(number).session());
    nodes.postgres.stop(Stop::Immediate);
    // As long as a lease.
    let is_ready = |nodes: &Nodes, number: usize| {
        let health = nodes.block_on(number, nodes.service(number).health());
        // Nothing was started ahead.
        health.checks.iter().all(|check| check.ok || check.name == "pool")
    };
    nodes.until_true(|| !is_ready(&nodes, 0) && !is_ready(&nodes, 1));
    let core = &nodes.service(0).core;
    nodes.until_true(|| core.node.as_ref().unwrap().check().is_err());
    let refused = nodes.block_on(0, nodes.service(0).submit(me(), script(""), None, None));
    assert_eq!(refused.unwrap_err().problem().kind, ProblemKind::Unavailable);
    // What ends meanwhile is stored afterwards.
    nodes.go_on(1);
    nodes.postgres.start_again();
    for number in [0, 1] {
        assert_eq!(ended(&nodes.wait(number, &id)), Status::Ok);
    }
    nodes.until_true(|| [0, 1].iter().all(|number| is_ready(&nodes, *number)));
    assert_eq!([0, 1].map(|number| nodes.service(number).session()), sessions);
}

#[test]
fn key_is_one_execution_at_all_nodes() {
    let nodes = Nodes::new(3);
    for round in 0..30 {
        let name = format!("key {round}").replace(' ', "-");
        let submit = |number: usize, source: &str| {
            let service = nodes.service(number).clone();
            let (request, key) = (script(source), key(&name));
            async move { service.submit(me(), request, None, key).await }
        };
        let (one, two, three) = nodes
            .block_on(0, async { tokio::join!(submit(0, "a"), submit(1, "a"), submit(2, "a")) });
        let ids: HashSet<_> = [one, two, three].map(|it| it.unwrap().id).into_iter().collect();
        assert_eq!(ids.len(), 1);
        let other = nodes.block_on(1, submit(1, "b")).unwrap_err();
        assert_eq!(other.problem().kind, ProblemKind::KeyReused);
    }
    nodes.until_true(|| nodes.rows("SELECT 1 FROM executions WHERE ended_at IS NULL").is_empty());
    assert_eq!(nodes.all_runs(), 30);
}

#[test]
fn subject_runs_no_more_than_its_limit_at_all_nodes_together() {
    let nodes = Nodes::with(3, Postgres::shared(), |config| config.quotas.concurrency = 2);
    let ids: Vec<_> = (0..9).map(|number| nodes.submit(number % 3, script("wait"))).collect();
    nodes.until_true(|| nodes.all_runs() == 2);
    for number in 0..3 {
        let usage = nodes.block_on(number, nodes.service(number).usage(me())).unwrap();
        assert_eq!((usage.running, usage.queued), (2, 7));
    }
    let other_one = nodes.submit_as(other(), 0, script("return 1"));
    let found = nodes.block_on(1, nodes.service(1).wait(other(), &other_one, TEST_TIMEOUT));
    assert!(found.unwrap().document.is_some(), "others are not held up");
    let limit = "SELECT 1 FROM executions WHERE session IS NOT NULL AND ended_at IS NULL";
    for done in 1..=7 {
        // The node that runs one ends it.
        nodes.go_on(1);
        nodes.until_true(|| nodes.all_runs() > 2 + done);
        assert!(nodes.rows(limit).len() <= 2);
        if nodes.all_runs() == 10 {
            break;
        }
    }
    nodes.go_on(9);
    for id in &ids {
        assert_eq!(ended(&nodes.wait(0, id)), Status::Ok);
    }
}

#[test]
fn cancel_reaches_an_execution_wherever_it_is() {
    let nodes = Nodes::with(2, Postgres::shared(), one_slot);
    let runs = [nodes.occupy(0), nodes.occupy(1)];
    let waits = nodes.submit(0, script("return 1"));
    let cancelled = nodes.block_on(1, nodes.service(1).cancel(me(), &waits)).unwrap();
    assert_eq!(cancelled.summary.status, ExecutionState::Ended(Status::Cancelled));
    assert_eq!(nodes.rows("SELECT 1 FROM queue").len(), 0);
    // That of the other node hears of it with its next beat.
    nodes.block_on(1, nodes.service(1).cancel(me(), &runs[0])).unwrap();
    assert_eq!(ended(&nodes.wait(1, &runs[0])), Status::Cancelled);
    nodes.go_on(1);
    assert_eq!(ended(&nodes.wait(0, &runs[1])), Status::Ok);
}

#[test]
fn secrets_stay_in_the_session_that_accepted_them() {
    let mut nodes = Nodes::with(2, Postgres::shared(), one_slot);
    let busy = nodes.occupy(0);
    let mut request = script("return 1");
    let secret = sandbox_api::SecretValue::new("hunter2!");
    request.secrets.0.insert("TOKEN".to_owned(), secret);
    let waits = [(); 2].map(|()| nodes.submit(0, request.clone()));
    nodes.go_on(1);
    assert_eq!(ended(&nodes.wait(0, &busy)), Status::Ok);
    for id in &waits {
        assert_eq!(ended(&nodes.wait(1, id)), Status::Ok);
    }
    let busy = nodes.occupy(0);
    let lost = nodes.submit(0, request);
    assert_eq!(nodes.runs(1), 0, "the other node has a free slot, and no secrets");
    nodes.kill(0);
    nodes.declare_dead("node-0", 1);
    assert_eq!(ended(&nodes.wait(1, &busy)), Status::Killed);
    let execution = nodes.wait(1, &lost);
    assert_eq!(ended(&execution), Status::Error);
    assert!(failure(&execution).1.contains("secrets"), "{execution:?}");
}

#[test]
fn node_that_drains_begins_nothing_and_uses_its_sandboxes() {
    let nodes = Nodes::new(2);
    let request = SandboxRequest::default();
    let kept = nodes.block_on(0, nodes.service(0).create_sandbox(me(), request)).unwrap().sandbox;
    let store = nodes.store();
    let cluster = store.cluster().unwrap();
    assert!(cluster.set_draining("node-0", Drain::Yes).unwrap());
    let elsewhere = nodes.submit(0, script("return 1"));
    assert_eq!(ended(&nodes.wait(0, &elsewhere)), Status::Ok);
    assert_eq!([nodes.runs(0), nodes.runs(1)], [0, 1]);
    let in_sandbox = nodes.service(0).submit(me(), script("return 1"), at(&kept.id, None), None);
    let in_sandbox = nodes.block_on(0, in_sandbox).unwrap().id;
    assert_eq!(ended(&nodes.wait(1, &in_sandbox)), Status::Ok);
    assert_eq!([nodes.runs(0), nodes.runs(1)], [1, 1]);
    assert!(cluster.set_draining("node-0", Drain::Evict).unwrap());
    nodes.until_true(|| nodes.service(0).counters().sandboxes == 0);
    assert!(!cluster.set_draining("nobody", Drain::Yes).unwrap());
}

#[test]
fn node_that_is_shut_down_leaves_nothing_to_wait_for() {
    let mut nodes = Nodes::with(2, Postgres::shared(), one_slot);
    let [runs, busy] = [nodes.occupy(0), nodes.occupy(1)];
    let waits = nodes.submit(0, script("return 1"));
    nodes.go_on(1);
    let report = nodes.block_on(0, nodes.service(0).shutdown(TEST_TIMEOUT));
    assert!(report.cancelled.is_empty() && report.queued.is_empty(), "{report:?}");
    nodes.kill(0);
    for id in [runs, busy, waits] {
        assert_eq!(ended(&nodes.wait(1, &id)), Status::Ok);
    }
    assert_eq!(nodes.rows("SELECT node FROM sessions"), [["node-1"]]);
}

#[test]
fn kept_sandbox_is_found_at_its_node_and_is_away_without_it() {
    let mut nodes = Nodes::new(2);
    let request = SandboxRequest { name: Some("mine".to_owned()), ..SandboxRequest::default() };
    let create = |nodes: &Nodes, number: usize| {
        nodes.block_on(number, nodes.service(number).create_sandbox(me(), request.clone()))
    };
    let kept = create(&nodes, 0).unwrap().sandbox;
    let place = |nodes: &Nodes, number: usize, target: Target| {
        nodes.block_on(number, nodes.service(number).place(me(), &target)).unwrap()
    };
    let by_id = || Target::Sandbox(kept.id.clone());
    let by_name = || Target::SandboxNamed("mine".to_owned());
    assert_eq!(place(&nodes, 0, by_id()), Location::Here);
    // For a name the answer names its node too: no other node is asked to make it once more.
    for (number, target) in [(1, by_id()), (0, by_name()), (1, by_name())] {
        let Location::At(found) = place(&nodes, number, target) else { panic!("it is there") };
        assert_eq!(found.node, "node-0");
    }
    let free = Target::SandboxNamed("free".to_owned());
    assert_eq!(place(&nodes, 0, free), Location::Here);
    assert_eq!(create(&nodes, 1).unwrap_err().retry_after(), Some(Duration::from_secs(1)));
    let seen = |nodes: &Nodes| nodes.block_on(1, nodes.service(1).sandbox(me(), &kept.id));
    nodes.until_true(|| seen(&nodes).unwrap().status == SandboxStatus::Ready);
    let list =
        nodes.block_on(1, nodes.service(1).sandboxes(me(), SandboxQuery::default())).unwrap();
    assert_eq!(list.sandboxes.len(), 1);
    nodes.kill(0);
    nodes.declare_dead("node-0", 1);
    nodes.until_true(|| seen(&nodes).unwrap().node_away);
    for target in [by_id(), by_name()] {
        let expected = Location::Away { node: "node-0".to_owned(), retry_after: LEASE };
        assert_eq!(place(&nodes, 1, target), expected);
    }
    let store = nodes.store();
    let cluster = store.cluster().unwrap();
    let views = cluster.nodes().unwrap();
    assert_eq!(views.len(), 2);
    // By its last beat, as long as it has a session.
    let begun = nodes.rows("SELECT last_seen FROM nodes WHERE id = 'node-1'");
    let begun: i64 = begun[0][0].parse().unwrap();
    nodes.until_true(|| {
        let views = cluster.nodes().unwrap();
        views.iter().any(|it| it.node == "node-1" && it.last_seen.unix_millis() > begun)
    });
    assert!(!cluster.forget("node-1").unwrap(), "it is there");
    assert!(cluster.forget("node-0").unwrap());
    assert_eq!(place(&nodes, 1, by_id()), Location::Here);
    let gone = nodes.block_on(1, nodes.service(1).sandbox(me(), &kept.id)).unwrap_err();
    assert_eq!(gone.problem().kind, ProblemKind::NotFound);
    assert!(create(&nodes, 1).unwrap().is_new, "its name is free");
}

#[test]
fn sandbox_of_another_node_is_listed_as_what_it_is_and_its_processes_end_with_its_node() {
    let mut nodes = Nodes::with(2, Postgres::shared(), |config| {
        config.allowed_images = vec!["debian:*".to_owned()];
    });
    let spec = KeptSpec {
        image: Some("debian:13".to_owned()),
        processes: Processes::Kept,
        env: [("A".to_owned(), "1".into())].into(),
        ..KeptSpec::default()
    };
    let request = SandboxRequest {
        name: Some("mine".to_owned()),
        spec,
        idle: IdleAction::Freeze,
        metadata: serde_json::from_str(r#"{"team":"blue"}"#).unwrap(),
        ..SandboxRequest::default()
    };
    let created = nodes.service(0).create_sandbox(me(), request.clone());
    let sandbox = of_sandbox(&nodes.block_on(0, created).unwrap().sandbox.id, Some(1));
    let command = CommandRequest { shell: Some("sleep 60".into()), ..CommandRequest::default() };
    let sleep = ProcessRequest { command, ..ProcessRequest::default() };
    let started = nodes.service(0).start_process(me(), &sandbox, sleep, None);
    assert_eq!(nodes.block_on(0, started).unwrap().value.id, 1);
    let query = SandboxQuery {
        metadata: [("team".to_owned(), "blue".to_owned())].into(),
        ..SandboxQuery::default()
    };
    let list = nodes.block_on(1, nodes.service(1).sandboxes(me(), query)).unwrap();
    let [seen] = &list.sandboxes[..] else { panic!("{list:?}") };
    assert_eq!((&seen.spec, &seen.metadata), (&request.spec, &request.metadata));
    assert_eq!((&seen.name, seen.idle), (&request.name, IdleAction::Freeze));
    assert_eq!(seen.processes, None, "its node knows them");
    let patch = serde_json::from_str(r#"{"metadata":{"team":"red"}}"#).unwrap();
    nodes.block_on(0, nodes.service(0).patch_sandbox(me(), &sandbox.id, patch)).unwrap();
    let seen = nodes.block_on(1, nodes.service(1).sandbox(me(), &sandbox.id)).unwrap();
    assert_eq!(seen.metadata["team"], "red");
    let is_listed_as = |status: SandboxStatus| {
        let query = SandboxQuery { status: Some(status), ..SandboxQuery::default() };
        let list = nodes.block_on(1, nodes.service(1).sandboxes(me(), query)).unwrap();
        list.sandboxes.len() == 1
    };
    nodes.block_on(0, nodes.service(0).pause_sandbox(me(), &sandbox)).unwrap();
    nodes.until_true(|| is_listed_as(SandboxStatus::Paused));
    nodes.block_on(0, nodes.service(0).resume_sandbox(me(), &sandbox)).unwrap();
    nodes.until_true(|| is_listed_as(SandboxStatus::Ready));
    nodes.kill(0);
    nodes.start(0);
    let process = nodes.service(0).process(me(), &sandbox, 1, Duration::ZERO);
    let gone = nodes.block_on(0, process).unwrap_err();
    assert_eq!(gone.problem().kind, ProblemKind::Gone);
}

#[test]
fn sandbox_of_a_node_that_is_away_can_be_deleted() {
    let mut nodes = Nodes::new(2);
    let request = SandboxRequest::default();
    let kept = nodes.block_on(0, nodes.service(0).create_sandbox(me(), request)).unwrap().sandbox;
    let delete = |nodes: &Nodes| nodes.block_on(1, nodes.service(1).delete_sandbox(me(), &kept.id));
    delete(&nodes).unwrap_err();
    nodes.kill(0);
    nodes.declare_dead("node-0", 1);
    nodes.until_true(|| {
        nodes.block_on(1, nodes.service(1).sandbox(me(), &kept.id)).unwrap().node_away
    });
    delete(&nodes).unwrap();
    nodes.start(0);
    nodes.block_on(0, nodes.service(0).sandbox(me(), &kept.id)).unwrap_err();
}

#[test]
fn what_waits_is_found_without_wake_ups() {
    let mut nodes = Nodes::with(1, Postgres::shared(), nothing_runs_here);
    nodes.database.listen = false;
    nodes.change = one_slot;
    nodes.add();
    let id = nodes.submit(0, script("return 1"));
    assert_eq!(ended(&nodes.wait(0, &id)), Status::Ok);
    assert_eq!(nodes.runs(1), 1);
    // Nor does it need the connection that listens.
    nodes.database.listen = true;
    nodes.kill(1);
    nodes.start(1);
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE (query LIKE 'LISTEN %' OR query LIKE 'SELECT pg_notify%') AND datname = current_database()";
    nodes.until_true(|| nodes.rows(cut).len() == 2);
    let id = nodes.submit(0, script("return 1"));
    assert_eq!(ended(&nodes.wait(0, &id)), Status::Ok);
}

#[test]
fn rate_of_a_subject_is_that_of_all_nodes() {
    let nodes = Nodes::with(2, Postgres::shared(), |config| {
        config.quotas.rate_per_minute = Some(4);
    });
    let submit = |number: usize| {
        nodes.block_on(number, nodes.service(number).submit(me(), script("a"), None, None))
    };
    for number in [0, 1, 0, 1] {
        submit(number).unwrap();
    }
    for number in [0, 1] {
        let refused = submit(number).unwrap_err();
        assert_eq!(refused.problem().kind, ProblemKind::RateLimited);
        assert!(refused.retry_after().unwrap() <= Duration::from_secs(15));
    }
}

#[test]
fn queue_of_a_cluster_is_bounded() {
    let nodes = Nodes::with(2, Postgres::shared(), |config| {
        config.concurrency = 0;
        config.max_queued = 10;
    });
    for number in 0..10 {
        nodes.submit(number % 2, script("return 1"));
    }
    let refused = nodes.block_on(0, nodes.service(0).submit(me(), script("a"), None, key("k")));
    assert_eq!(refused.unwrap_err().problem().kind, ProblemKind::Full);
    // A tenth more is for those of whom nothing waits; a key of what was refused is free.
    nodes.submit_as(other(), 1, script("return 1"));
    assert_eq!(nodes.rows("SELECT 1 FROM idempotency_keys").len(), 0);
}
