//! Histories of random faults under load. What holds in each of them:
//!
//! 1. every execution that was acknowledged is listed, and ends;
//! 2. a key has one execution, and an execution one document;
//! 3. an execution begins at most once,
//! 4. and so never runs at two places at one time;
//! 5. a subject never holds more than it may;
//! 6. the numbers of events rise, and one `end` is the last;
//! 7. nothing is left: no container, no session of a node that is gone, no row of the queue;
//! 8. the usage is the sum over the documents.
//!
//! A schedule of faults is a seed. A seed says what is tried and not what comes of it: that is the machine's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sandbox_store::fixture::{Postgres, Stop};
use serde_json::{Value, json};

use super::nodes::{Cluster, LEASE, NODES};
use super::proxy::Flow;
use super::witness::{Runs, check_changes, record_changes};
use crate::fixture::{Fixture, eventually};
use crate::shared::{cases, seed};

/// Leaves a file of its number, and takes some time.
const SCRIPT: &str = "local file = io.open(args.name, 'a') file:write('x') file:close() \
                      local since = os.clock() while os.clock() - since < args.seconds do end \
                      print('ran ' .. args.name) return args.name";
/// Clients that submit at one time.
const CLIENTS: u64 = 4;
/// Who submits.
const SUBJECTS: u64 = 3;
/// What of one subject runs at one time, at all nodes.
const LIMIT: usize = 3;
/// How many schedules a cluster lives through.
const SCHEDULES: u64 = 10;

/// Numbers that come again with their seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 29)) % end
    }

    fn between(&mut self, first: Duration, end: Duration) -> Duration {
        first + Duration::from_millis(self.below((end - first).as_millis() as u64))
    }
}

/// A fault, and what heals it.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill(usize),
    Stop(usize),
    Terminate(usize),
    /// Between a node and the database.
    Partition(usize),
    /// The database's answers to a node are lost.
    Mute(usize),
    /// The others do not reach a node.
    Unreachable(usize),
    Slow(usize),
    DatabaseStop,
    DatabaseKill,
}

impl Fault {
    fn of(chance: &mut Chance) -> Self {
        let node = chance.below(NODES as u64) as usize;
        match chance.below(12) {
            0..3 => Self::Kill(node),
            3 | 4 => Self::Stop(node),
            5 => Self::Terminate(node),
            6 | 7 => Self::Partition(node),
            8 => Self::Mute(node),
            9 => Self::Unreachable(node),
            10 => Self::Slow(node),
            _ if chance.below(2) == 0 => Self::DatabaseStop,
            _ => Self::DatabaseKill,
        }
    }

    fn begin(self, cluster: &mut Cluster<'_>) {
        match self {
            Self::Kill(node) => cluster.kill(node),
            Self::Stop(node) => cluster.signal(node, Signal::STOP),
            Self::Terminate(node) => cluster.signal(node, Signal::TERM),
            Self::Partition(node) => cluster.nodes[node].database.partition(),
            Self::Mute(node) => cluster.nodes[node].database.set(Flow::Passes, Flow::IsLost),
            Self::Unreachable(node) => cluster.nodes[node].peers.partition(),
            Self::Slow(node) => cluster.nodes[node].database.delay(Duration::from_millis(60)),
            Self::DatabaseStop => cluster.postgres.stop(Stop::Immediate),
            Self::DatabaseKill => cluster.postgres.kill(),
        }
    }

    /// What has to be over before another fault can be: a process needs the database to start.
    const fn rank(self) -> u8 {
        match self {
            Self::DatabaseStop | Self::DatabaseKill => 0,
            Self::Partition(_) | Self::Mute(_) | Self::Unreachable(_) | Self::Slow(_) => 1,
            Self::Kill(_) | Self::Stop(_) | Self::Terminate(_) => 2,
        }
    }

    fn heal(self, cluster: &mut Cluster<'_>) {
        match self {
            Self::Kill(node) => cluster.start(node),
            Self::Stop(node) => cluster.signal(node, Signal::CONT),
            Self::Terminate(node) => {
                // Without the database it cannot end as it should.
                _ = cluster.wait(node);
                cluster.start(node);
            }
            Self::Partition(node) | Self::Mute(node) | Self::Slow(node) => {
                cluster.nodes[node].database.heal();
            }
            Self::Unreachable(node) => cluster.nodes[node].peers.heal(),
            Self::DatabaseStop | Self::DatabaseKill => cluster.postgres.start_again(),
        }
    }
}

/// What clients asked and were answered.
#[derive(Debug, Default)]
struct Ledger {
    /// By the number of the request.
    requests: BTreeMap<u64, Request>,
    /// Lines that help to find the reason of a failure.
    log: String,
}

#[derive(Debug, Clone, Default)]
struct Request {
    subject: String,
    body: String,
    key: Option<String>,
    ids: BTreeSet<String>,
    /// What was reported as its result.
    document: Option<Value>,
    /// A caller wants it to end.
    is_cancelled: bool,
}

struct Load<'a> {
    addresses: Vec<super::nodes::Call>,
    ledger: &'a Mutex<Ledger>,
    numbers: &'a AtomicU64,
    is_over: &'a AtomicBool,
    since: Instant,
}

impl Load<'_> {
    fn say(&self, line: &str) {
        let mut ledger = self.ledger.lock().unwrap();
        writeln!(ledger.log, "{:9.3} {line}", self.since.elapsed().as_secs_f64()).unwrap();
    }

    /// A call to some node, by a subject.
    fn call(&self, chance: &mut Chance, subject: u64) -> super::nodes::Call {
        let node = chance.below(NODES as u64);
        self.addresses[(subject * NODES as u64 + node) as usize]
            .clone()
            .within(Duration::from_secs(3))
    }

    fn submit_all(&self, client: u64) {
        let mut chance = Chance(seed().wrapping_mul(1000) + client);
        while !self.is_over.load(Ordering::Acquire) {
            let number = self.numbers.fetch_add(1, Ordering::AcqRel);
            let subject = number % SUBJECTS;
            let seconds = [0.02, 0.02, 0.02, 0.02, 0.05, 0.05, 0.1, 0.3][chance.below(8) as usize];
            let args = json!({ "name": number.to_string(), "seconds": seconds });
            let body =
                json!({ "script": SCRIPT, "args": args, "io": { "mode": "private" } }).to_string();
            let key = (!number.is_multiple_of(5)).then(|| format!("key-{number}"));
            let request =
                Request { subject: format!("s{subject}"), body, key, ..Request::default() };
            self.ledger.lock().unwrap().requests.insert(number, request.clone());
            while !self.submit(number, &request, &mut chance) && request.key.is_some() {
                if self.is_over.load(Ordering::Acquire) {
                    break;
                }
            }
            if chance.below(10) == 0 {
                self.cancel(number, &mut chance);
            }
        }
    }

    /// Submits once; whether it was acknowledged.
    fn submit(&self, number: u64, request: &Request, chance: &mut Chance) -> bool {
        let mut call = self.call(chance, number % SUBJECTS);
        if let Some(key) = &request.key {
            call = call.with("Idempotency-Key", key);
        }
        let path = if chance.below(3) == 0 { "/v1/executions?wait=2" } else { "/v1/executions" };
        let answer = call.json("POST", path, &request.body);
        let (status, answer) = match answer {
            Some((status @ (200 | 202), answer)) => (status, answer),
            other => {
                let status = other.as_ref().map(|(status, _)| *status);
                self.say(&format!("{number} at {} is answered {status:?}", call.address));
                // A client waits a little after a refusal.
                thread::sleep(Duration::from_millis(20));
                // 409: the request whose answer was not waited for is still being accepted.
                let refused = matches!(status, None | Some(409 | 429 | 500..=504));
                assert!(refused, "{number} is answered {other:?}");
                return false;
            }
        };
        let id = answer["id"].as_str().unwrap().to_owned();
        self.say(&format!("{number} at {} is answered {status} {id}", call.address));
        let mut ledger = self.ledger.lock().unwrap();
        let its = ledger.requests.get_mut(&number).unwrap();
        its.ids.insert(id);
        if status == 200 && has_ended(&answer) {
            its.document = Some(answer);
        }
        true
    }

    fn cancel(&self, number: u64, chance: &mut Chance) {
        let id = {
            let mut ledger = self.ledger.lock().unwrap();
            let its = ledger.requests.get_mut(&number).unwrap();
            its.is_cancelled = true;
            its.ids.first().cloned()
        };
        if let Some(id) = id {
            let call = self.call(chance, number % SUBJECTS);
            let answer = call.exchange("DELETE", &format!("/v1/executions/{id}"), "");
            self.say(&format!(
                "{number}: to cancel {id} is answered {:?}",
                answer.map(|answer| answer.0)
            ));
        }
    }

    /// Reads events of executions to their end, wherever they run, and through whatever happens.
    fn read_events(&self) {
        let mut chance = Chance(seed().wrapping_mul(77) + 1);
        while !self.is_over.load(Ordering::Acquire) {
            let some = {
                let ledger = self.ledger.lock().unwrap();
                let last =
                    ledger.requests.iter().rev().find(|(_, request)| !request.ids.is_empty());
                last.map(|(number, request)| (*number, request.ids.first().unwrap().clone()))
            };
            let Some((number, id)) = some else {
                thread::yield_now();
                continue;
            };
            let (mut last, mut has_ended) = (0, false);
            while !has_ended && !self.is_over.load(Ordering::Acquire) {
                let call = self.call(&mut chance, number % SUBJECTS);
                let call = call.with("Last-Event-ID", &last.to_string());
                let path = format!("/v1/executions/{id}/events");
                let Some((200, text)) = call.exchange("GET", &path, "") else { continue };
                for event in events(&text) {
                    assert!(!has_ended, "{id} has an event after its end: {event}");
                    let number = event["seq"].as_u64().unwrap();
                    assert!(number > last, "{id}: event {number} comes after {last}");
                    last = number;
                    has_ended = event["event"] == "end";
                }
            }
        }
    }
}

fn has_ended(document: &Value) -> bool {
    document["status"].as_str().is_some_and(|status| !["queued", "running"].contains(&status))
}

/// The data of events.
fn events(text: &str) -> impl Iterator<Item = Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    data.filter_map(|data| serde_json::from_str::<Value>(data).ok())
}

/// A cluster's life through these schedules of faults.
fn history(schedules: std::ops::Range<u64>) {
    let place = Fixture::new();
    let mut cluster = Cluster::new(&place, Postgres::start(), LEASE);
    cluster.variables.extend([
        ("SANDBOXCTL_SERVER_CONCURRENCY", "3".to_owned()),
        ("SANDBOXCTL_SERVER_SUBJECT_CONCURRENCY", LIMIT.to_string()),
    ]);
    record_changes(&cluster);
    for node in 0..NODES {
        cluster.start(node);
    }
    let runs = Runs::watch(&cluster);
    let (ledger, numbers, is_over) =
        (Mutex::<Ledger>::default(), AtomicU64::new(0), AtomicBool::new(false));
    let calls = (0..SUBJECTS).flat_map(|subject| (0..NODES).map(move |node| (subject, node)));
    let load = Load {
        addresses: calls
            .map(|(subject, node)| cluster.call(node, &format!("s{subject}")))
            .collect(),
        ledger: &ledger,
        numbers: &numbers,
        is_over: &is_over,
        since: Instant::now(),
    };
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn({
                    let load = &load;
                    move || load.submit_all(client)
                });
            }
            scope.spawn(|| load.read_events());
            // Whatever happens here, the clients end.
            let faults = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for schedule in schedules.clone() {
                    disturb(&mut cluster, &load, schedule);
                }
            }));
            is_over.store(true, Ordering::Release);
            if let Err(panic) = faults {
                std::panic::resume_unwind(panic);
            }
        });
        check(&cluster, &load, runs);
    }));
    if let Err(panic) = failed {
        let kept = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let kept = kept.join(format!("history-{}-{}.log", schedules.start, std::process::id()));
        std::fs::write(&kept, &ledger.lock().unwrap_or_else(|it| it.into_inner()).log).unwrap();
        eprintln!(
            "schedules {schedules:?} failed; what clients and faults did is in {}",
            kept.display()
        );
        std::panic::resume_unwind(panic);
    }
    cluster.end();
}

/// One or two faults, and until the cluster is whole again.
fn disturb(cluster: &mut Cluster<'_>, load: &Load<'_>, schedule: u64) {
    let mut chance = Chance(schedule.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let before = load.numbers.load(Ordering::Acquire);
    eventually("more to be submitted", || {
        (load.numbers.load(Ordering::Acquire) > before + 4).then_some(())
    });
    let first = Fault::of(&mut chance);
    let second = (chance.below(3) == 0).then(|| Fault::of(&mut chance));
    // Two faults of one kind would heal each other.
    let second =
        second.filter(|second| std::mem::discriminant(second) != std::mem::discriminant(&first));
    let second = second.filter(|second| second.rank() != first.rank() || first.rank() == 1);
    let mut faults: Vec<Fault> = [Some(first), second].into_iter().flatten().collect();
    for fault in &faults {
        load.say(&format!("schedule {schedule}: {fault:?}"));
        fault.begin(cluster);
        thread::sleep(chance.between(Duration::from_millis(20), Duration::from_millis(300)));
    }
    let length = match chance.below(2) {
        0 => chance.between(Duration::from_millis(200), LEASE / 2),
        _ => chance.between(LEASE, LEASE + LEASE / 2),
    };
    thread::sleep(length);
    faults.sort_by_key(|fault| fault.rank());
    for fault in faults {
        load.say(&format!("schedule {schedule}: {fault:?} is over"));
        fault.heal(cluster);
    }
}

/// Checks everything, when all faults are healed.
fn check(cluster: &Cluster<'_>, load: &Load<'_>, runs: Runs) {
    let mut chance = Chance(3);
    eventually("all nodes to have a session", || {
        let nodes: BTreeSet<String> =
            cluster.sessions().into_iter().map(|row| row[1].clone()).collect();
        (nodes.len() == NODES).then_some(())
    });
    // A client with a key repeats its request until it knows.
    let requests: Vec<u64> = load.ledger.lock().unwrap().requests.keys().copied().collect();
    for number in requests {
        let request = load.ledger.lock().unwrap().requests[&number].clone();
        if request.key.is_some() {
            eventually("an answer", || load.submit(number, &request, &mut chance).then_some(()));
        }
    }
    let ledger = load.ledger.lock().unwrap();
    let acked = || {
        ledger
            .requests
            .iter()
            .flat_map(|(number, request)| request.ids.iter().map(move |id| (*number, request, id)))
    };
    let mut documents: BTreeMap<&str, Value> = BTreeMap::new();
    for (_, request, id) in acked() {
        // 1
        documents
            .insert(id, cluster.ended(chance.below(NODES as u64) as usize, &request.subject, id));
    }
    for (number, request) in &ledger.requests {
        // 2
        assert!(request.ids.len() <= 1, "{number} has {:?}", request.ids);
        if let (Some(id), Some(document)) = (request.ids.first(), &request.document) {
            assert_eq!(&documents[&**id], document, "{id} has another document now");
        }
    }
    let listed: BTreeSet<String> =
        (0..SUBJECTS).flat_map(|subject| list(cluster, &format!("s{subject}"))).collect();
    for (number, _, id) in acked() {
        assert!(listed.contains(id), "{number} was acknowledged as {id} and is not listed");
    }
    eventually("everything to have ended", || {
        cluster.rows("SELECT id FROM executions WHERE ended_at IS NULL").is_empty().then_some(())
    });
    // 3, 4 and 5
    check_changes(cluster, LIMIT);
    let runs = runs.end();
    for (number, runs) in &runs {
        assert!(*runs <= 1, "{number} ran {runs} times");
    }
    let mut statuses: BTreeMap<String, u64> = BTreeMap::new();
    for (number, request, id) in acked() {
        let document = &documents[&**id];
        let status = document["status"].as_str().unwrap();
        *statuses.entry(status.to_owned()).or_default() += 1;
        match status {
            "ok" => assert_eq!(
                (runs.get(&number), &document["result"]),
                (Some(&1), &json!(number.to_string())),
                "{id}"
            ),
            "killed" => {}
            "cancelled" => assert!(request.is_cancelled, "{id} is cancelled without a request"),
            _ => panic!("{document:#}"),
        }
    }
    // 6
    for (_, request, id) in acked() {
        let call = cluster.call(chance.below(NODES as u64) as usize, &request.subject);
        let (_, text) = call.exchange("GET", &format!("/v1/executions/{id}/events"), "").unwrap();
        let events: Vec<Value> = events(&text).collect();
        let numbers: Vec<_> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
        assert!(numbers.is_sorted_by(|before, after| before < after), "{id}: {numbers:?}");
        let ends: Vec<_> = events.iter().filter(|event| event["event"] == "end").collect();
        assert_eq!(ends.len(), 1, "{id}: {events:?}");
        assert_eq!(events.last().unwrap()["event"], "end", "{id}: {events:?}");
    }
    // 7; what is on the engines is looked at when the nodes end
    assert_eq!(cluster.rows("SELECT * FROM queue"), Vec::<Vec<String>>::new());
    eventually("the sessions to be those of the nodes", || {
        (cluster.sessions().len() == NODES).then_some(())
    });
    // 8
    let usage = cluster
        .rows("SELECT subject, sum(executions) FROM usage GROUP BY subject ORDER BY subject");
    let ended =
        cluster.rows("SELECT subject, count(*) FROM executions GROUP BY subject ORDER BY subject");
    assert_eq!(usage, ended, "the usage is not that of what ended");
    println!(
        "{} requests, {} executions, {statuses:?}, {} files of runs",
        ledger.requests.len(),
        listed.len(),
        runs.len()
    );
    assert!(statuses.get("ok").is_some_and(|ok| *ok > 0), "{statuses:?}");
}

/// The ids of a subject's executions.
fn list(cluster: &Cluster<'_>, subject: &str) -> Vec<String> {
    let (mut listed, mut path) = (Vec::new(), "/v1/executions?limit=200".to_owned());
    loop {
        let page = cluster.call(0, subject).expect(200, "GET", &path, "");
        let ids = page["executions"].as_array().unwrap().iter();
        listed.extend(ids.map(|it| it["id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { return listed };
        path = format!("/v1/executions?limit=200&cursor={cursor}");
    }
}

#[test]
fn no_schedule_of_faults_breaks_what_holds() {
    let schedules: u64 = cases(SCHEDULES, 200);
    let first = seed();
    for begin in (first..first + schedules).step_by(SCHEDULES as usize) {
        let schedules = begin..begin + SCHEDULES;
        println!("schedules {schedules:?} of SANDBOX_TEST_SEED={first}");
        history(schedules);
    }
}
