//! The store on real files.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, LazyLock, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sandbox_api::service::{ExecutionKind, ExecutionState, KeptSpec, Subject, Time};
use sandbox_api::{Cpus, EngineKind, Limits, Status, Usage};
use serde_json::Map;

use super::*;
use crate::usage as used;

fn subject(name: &str) -> Subject {
    Subject::new(name).unwrap()
}

fn new(id: &str, created: i64) -> NewExecution {
    NewExecution {
        id: id.to_owned(),
        subject: subject("alice"),
        kind: ExecutionKind::Script,
        request: r#"{"script":"return 1"}"#.to_owned(),
        has_secrets: false,
        key: None,
        created_at: Time::from_unix_millis(created),
        start: None,
        metadata: Map::new(),
        sandbox: None,
        generation: None,
        events: Vec::new(),
    }
}

fn start(at: i64) -> Start {
    let limits = Limits { timeout: Duration::from_secs(7), ..Limits::default() };
    Start { at: Time::from_unix_millis(at), engine: EngineKind::Embedded, limits, used: None }
}

fn finish(id: &str, ended: i64) -> Finish {
    Finish {
        id: id.to_owned(),
        status: Status::Ok,
        document: r#"{"status":"ok"}"#.to_owned(),
        stored_bytes: 100,
        usage: Some(Usage {
            wall_ms: 5,
            cpu_ms: Some(3),
            written_bytes: Some(7),
            ..Usage::default()
        }),
        ended_at: Time::from_unix_millis(ended),
        events: Vec::new(),
    }
}

fn event(number: u64) -> StoredEvent {
    StoredEvent { number, json: format!(r#"{{"seq":{number}}}"#) }
}

/// The steps that SQLite's machine has made for each database: what a row more costs, it costs in steps.
static STEPS: LazyLock<Mutex<HashMap<PathBuf, Arc<AtomicU64>>>> = LazyLock::new(Mutex::default);

fn steps(database: &Path) -> Arc<AtomicU64> {
    STEPS.lock().unwrap().entry(database.to_owned()).or_default().clone()
}

pub(crate) fn count_steps(
    mut connection: Connection,
    database: &Path,
) -> Result<Connection, StoreError> {
    let steps = steps(database);
    let count = move || {
        steps.fetch_add(1, Ordering::Relaxed);
        false
    };
    connection.progress_handler(1, Some(count))?;
    Ok(connection)
}

/// A store in a file system in memory, where there is one: a write to a busy disk takes seconds.
fn data_dir() -> (tempfile::TempDir, Store) {
    let memory = Path::new("/dev/shm");
    let parent = match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let store = Store::open(&parent.path().join("data"), Durability::Disk).unwrap();
    (parent, store)
}

#[test]
fn store_of_a_process_is_gone_with_it() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("data");
    let store = Store::open(&path, Durability::Process).unwrap();
    store.accept(new("e1", 1)).unwrap();
    let shared = store.clone();
    drop(store);
    assert!(shared.execution(&subject("alice"), "e1").unwrap().is_some());
    drop(shared);
    assert!(!path.exists());
}

#[test]
fn execution_goes_from_queued_to_ended_and_never_back() {
    let (_dir, store) = data_dir();
    store.accept(new("a", 1)).unwrap();
    let at = Time::from_unix_millis(2);
    let used = Some(UsedGeneration { generation: 3, is_restart: true });
    store.mark_running("a", Start { used, ..start(2) }).unwrap();
    let again = store.mark_running("a", start(2)).unwrap_err();
    assert_eq!(again.to_string(), "the execution a is not queued");
    store.finish(finish("a", 3)).unwrap();
    assert!(matches!(store.finish(finish("a", 4)), Err(StoreError::State { .. })));
    store.append_events(vec![("a".to_owned(), vec![event(1)])]).unwrap();
    assert!(store.events("a", 0, 10).unwrap().is_empty());
    let stored = store.execution(&subject("alice"), "a").unwrap().unwrap();
    assert_eq!(stored.summary.status, ExecutionState::Ended(Status::Ok));
    assert_eq!(stored.summary.started_at, Some(at));
    assert_eq!((stored.summary.generation, stored.summary.restarted), (Some(3), Some(true)));
    assert_eq!(stored.document.as_deref(), Some(r#"{"status":"ok"}"#));
    assert_eq!(store.execution(&subject("bob"), "a").unwrap(), None);
    assert!(store.request("a").is_err());
    let usage = store.usage(&subject("alice")).unwrap();
    let expected =
        used::Usage { executions: 1, cpu_ms: 3, wall_ms: 5, written_bytes: 7, stored_bytes: 100 };
    assert_eq!(usage, expected);
    assert_eq!(store.usage(&subject("bob")).unwrap(), used::Usage::default());
}

#[test]
fn execution_that_does_not_wait_is_stored_as_running() {
    let (_dir, store) = data_dir();
    store.accept(NewExecution { start: Some(start(2)), ..new("a", 1) }).unwrap();
    assert!(matches!(store.mark_running("a", start(2)), Err(StoreError::State { .. })));
    assert!(store.request("a").is_err(), "nothing reads it again");
    let recovered = store.recover().unwrap();
    assert!(recovered.queued.is_empty());
    assert_eq!(recovered.running[0].summary.started_at, Some(start(2).at));
    assert_eq!(recovered.running[0].engine, Some(start(2).engine));
    assert_eq!(recovered.running[0].limits, Some(start(2).limits));
}

#[test]
fn log_is_copied_to_the_database_when_no_change_waits() {
    let (dir, store) = data_dir();
    let copied = || fs::metadata(dir.path().join("data/store.db")).unwrap().len();
    let before = copied();
    let request = "x".repeat(5 << 20);
    store.accept(NewExecution { request, ..new("a", 1) }).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while copied() < before + (5 << 20) {
        assert!(Instant::now() < deadline, "it takes too long");
        thread::yield_now();
    }
    // It is written over from its beginning then.
    let log = || fs::metadata(dir.path().join("data/store.db-wal")).unwrap().len();
    let size = log();
    store.accept(NewExecution { request: "x".repeat(1 << 20), ..new("b", 1) }).unwrap();
    assert_eq!(log(), size);
}

#[test]
fn a_key_belongs_to_one_request_of_one_subject() {
    let (_dir, store) = data_dir();
    let with_key = |id: &str, digest: &str| NewExecution {
        key: Some(("k".to_owned(), digest.to_owned())),
        ..new(id, 1)
    };
    assert_eq!(store.accept(with_key("a", "1")).unwrap(), Accepted::New);
    assert_eq!(store.accept(with_key("b", "1")).unwrap(), Accepted::Same("a".to_owned()));
    assert_eq!(store.accept(with_key("c", "2")).unwrap(), Accepted::Other);
    let bobs = NewExecution { subject: subject("bob"), ..with_key("d", "2") };
    assert_eq!(store.accept(bobs).unwrap(), Accepted::New);
    assert_eq!(store.known(&["a", "b", "c", "d"].map(str::to_owned)).unwrap(), ["a", "d"]);
}

#[test]
fn events_are_read_from_where_a_reader_was() {
    let (_dir, store) = data_dir();
    store.accept(new("a", 1)).unwrap();
    let append = |numbers: RangeInclusive<u64>| {
        store.append_events(vec![("a".to_owned(), numbers.map(event).collect())]).unwrap();
    };
    append(1..=5);
    // A batch that is written again adds nothing.
    append(4..=6);
    let end = Finish { events: vec![event(7)], ..finish("a", 2) };
    store.finish(end).unwrap();
    let numbers = |after, limit| {
        let events = store.events("a", after, limit).unwrap();
        events.into_iter().map(|event| event.number).collect::<Vec<_>>()
    };
    assert_eq!(numbers(0, 100), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(numbers(4, 2), [5, 6]);
}

/// The cursor used to be a row number, of all subjects: two cursors revealed how much others ran in
/// between.
#[test]
fn cursor_is_the_same_whatever_others_run() {
    let cursor = |others: i64| {
        let (_dir, store) = data_dir();
        for number in 0..others {
            let subject = subject("bob");
            store.accept(NewExecution { subject, ..new(&format!("b{number}"), 0) }).unwrap();
        }
        for id in ["a1", "a2"] {
            store.accept(new(id, 1)).unwrap();
        }
        let query = ExecutionQuery { limit: 1, ..ExecutionQuery::default() };
        store.list(&subject("alice"), &query).unwrap().next_cursor.unwrap().to_string()
    };
    assert_eq!(cursor(0), cursor(20));
}

#[test]
fn list_goes_on_after_an_execution_that_is_forgotten() {
    let (_dir, store) = data_dir();
    for number in 0..5 {
        store.accept(new(&format!("e{number}"), number)).unwrap();
    }
    let after = |cursor: &str| {
        let cursor = Some(cursor.parse().unwrap());
        let query = ExecutionQuery { limit: 9, cursor, ..ExecutionQuery::default() };
        let page = store.list(&subject("alice"), &query).unwrap();
        page.executions.into_iter().map(|it| it.id).collect::<Vec<_>>()
    };
    assert_eq!(after("2.e2"), ["e1", "e0"]);
    store.finish(finish("e2", 9)).unwrap();
    store.forget(store.expire(Time::from_unix_millis(10), u64::MAX).unwrap()).unwrap();
    assert_eq!(after("2.e2"), ["e1", "e0"]);
    // Those of one millisecond: the page ended with the third.
    for id in ["f1", "f2", "f3", "f4"] {
        store.accept(new(id, 7)).unwrap();
    }
    store.finish(finish("f3", 9)).unwrap();
    store.forget(store.expire(Time::from_unix_millis(10), u64::MAX).unwrap()).unwrap();
    assert_eq!(after("7.f3")[..], ["f2", "f1", "e4", "e3", "e1", "e0"]);
}

#[test]
fn lists_are_paged_from_the_newest_and_filtered() {
    let (_dir, store) = data_dir();
    for number in 0..7 {
        let kind = if number < 2 { ExecutionKind::Command } else { ExecutionKind::Script };
        let new = NewExecution { kind, ..new(&format!("e{number}"), number) };
        store.accept(new).unwrap();
    }
    store.finish(finish("e2", 9)).unwrap();
    let ids = |query: &ExecutionQuery| {
        let page = store.list(&subject("alice"), query).unwrap();
        let ids: Vec<_> = page.executions.into_iter().map(|it| it.id).collect();
        (ids, page.next_cursor)
    };
    let query = ExecutionQuery { limit: 3, ..ExecutionQuery::default() };
    let (first, cursor) = ids(&query);
    assert_eq!(first, ["e6", "e5", "e4"]);
    let (second, cursor) = ids(&ExecutionQuery { cursor, ..query.clone() });
    assert_eq!(second, ["e3", "e2", "e1"]);
    let (third, cursor) = ids(&ExecutionQuery { cursor, ..query.clone() });
    assert_eq!((third, cursor), (vec!["e0".to_owned()], None));

    let all = ExecutionQuery { limit: 100, ..ExecutionQuery::default() };
    let ended = ExecutionQuery { status: Some(ExecutionState::Ended(Status::Ok)), ..all.clone() };
    assert_eq!(ids(&ended).0, ["e2"]);
    let commands = ExecutionQuery { kind: Some(ExecutionKind::Command), limit: 1, ..all.clone() };
    let (first, cursor) = ids(&commands);
    assert_eq!(
        (first, ids(&ExecutionQuery { cursor, ..commands }).0),
        (vec!["e1".into()], vec!["e0".to_owned()])
    );
    for odd in ["", "3", "x' OR 1", "x.e3"] {
        assert!(matches!(odd.parse::<Cursor>(), Err(StoreError::Row { .. })), "{odd}");
    }
    assert!(store.list(&subject("bob"), &query).unwrap().executions.is_empty());
}

#[test]
fn ended_executions_are_hidden_before_they_are_forgotten() {
    let (_dir, store) = data_dir();
    for (number, id) in (1..).zip(["a", "b", "c", "d"]) {
        store.accept(new(id, number)).unwrap();
        store.append_events(vec![(id.to_owned(), vec![event(1)])]).unwrap();
    }
    for (number, id) in (11..).zip(["a", "b", "c"]) {
        store.finish(finish(id, number)).unwrap();
    }
    let time = Time::from_unix_millis;
    assert_eq!(store.oldest_end().unwrap(), Some(time(11)));
    // By age, and again while they are not forgotten.
    for _ in 0..2 {
        assert_eq!(store.expire(time(12), u64::MAX).unwrap(), ["a"]);
    }
    assert_eq!(store.execution(&subject("alice"), "a").unwrap(), None);
    assert_eq!(store.known(&["a".to_owned()]).unwrap(), ["a"]);
    store.forget(vec!["a".to_owned(), "d".to_owned()]).unwrap();
    assert!(store.known(&["a".to_owned()]).unwrap().is_empty());
    assert!(store.events("a", 0, 9).unwrap().is_empty());
    // By bytes: the newest is kept, and what has not ended.
    assert_eq!(store.expire(time(0), 100).unwrap(), ["b"]);
    assert_eq!(store.known(&["c", "d"].map(str::to_owned)).unwrap(), ["c", "d"]);
    let usage = store.usage(&subject("alice")).unwrap();
    assert_eq!((usage.executions, usage.stored_bytes), (3, 200));
}

/// The steps of everything that a service asks of a store again and again, on one with so many
/// executions that have ended.
fn steps_beside(ended: i64) -> Vec<(&'static str, u64)> {
    let (dir, store) = data_dir();
    let alice = subject("alice");
    for number in 0..ended {
        let id = format!("old{number}");
        let sandbox = (number % 2 == 0).then(|| "old".to_owned());
        store.accept(NewExecution { sandbox, ..new(&id, 1) }).unwrap();
        store.finish(finish(&id, number)).unwrap();
    }
    let steps = steps(&dir.path().join("data").join(DATABASE_FILE));
    let mut each = Vec::new();
    let mut count = |what, call: &dyn Fn()| {
        let before = steps.load(Ordering::Relaxed);
        call();
        each.push((what, steps.load(Ordering::Relaxed) - before));
    };
    let key = Some(("k".to_owned(), "d".to_owned()));
    let new = || NewExecution { key: key.clone(), sandbox: Some("s".to_owned()), ..new("a", 1) };
    count("accept", &|| _ = store.accept(new()).unwrap());
    count("key", &|| assert!(store.find_key(&alice, "k", "d").unwrap().is_some()));
    count("request", &|| _ = store.request("a").unwrap());
    count("list what waits", &|| {
        let status = Some(ExecutionState::Queued);
        let query = ExecutionQuery { status, limit: 9, ..ExecutionQuery::default() };
        assert_eq!(store.list(&alice, &query).unwrap().executions.len(), 1);
    });
    count("recover", &|| assert_eq!(store.recover().unwrap().queued.len(), 1));
    count("run", &|| store.mark_running("a", start(2)).unwrap());
    count("append events", &|| {
        store.append_events(vec![("a".to_owned(), vec![event(1)])]).unwrap();
    });
    count("finish", &|| store.finish(finish("a", ended + 1)).unwrap());
    count("get", &|| assert!(store.execution(&alice, "a").unwrap().is_some()));
    count("events", &|| assert_eq!(store.events("a", 0, 9).unwrap().len(), 1));
    count("list", &|| {
        let query = ExecutionQuery { limit: 3, ..ExecutionQuery::default() };
        assert_eq!(store.list(&alice, &query).unwrap().executions.len(), 3);
    });
    count("list a sandbox", &|| {
        let query =
            ExecutionQuery { sandbox: Some("s".to_owned()), limit: 9, ..Default::default() };
        assert_eq!(store.list(&alice, &query).unwrap().executions.len(), 1);
    });
    let stored = 100 * u64::try_from(ended + 1).unwrap();
    count("stored bytes", &|| assert_eq!(store.stored_bytes(&alice).unwrap(), stored));
    count("usage", &|| assert_eq!(store.usage(&alice).unwrap().stored_bytes, stored));
    count("usage of a day", &|| {
        _ = store.usage_since(&alice, Time::from_unix_millis(1)).unwrap();
    });
    let nothing = Time::from_unix_millis(0);
    count("expire nothing", &|| assert!(store.expire(nothing, stored).unwrap().is_empty()));
    count("expire one", &|| assert_eq!(store.expire(nothing, stored - 1).unwrap(), ["old0"]));
    count("oldest end", &|| assert!(store.oldest_end().unwrap().is_some()));
    count("forget", &|| store.forget(vec!["old0".to_owned()]).unwrap());
    assert_eq!(store.stored_bytes(&alice).unwrap(), stored - 100);
    each
}

#[test]
fn what_has_ended_costs_later_requests_nothing() {
    let (few, many) = (steps_beside(5), steps_beside(400));
    for ((what, few), (_, many)) in few.into_iter().zip(many) {
        // A look at each of the others would be some steps for each.
        assert!(few > 0 && many < few + 100, "{what}: {few} steps, then {many}");
    }
}

#[test]
fn name_of_a_kept_sandbox_is_taken_once_by_a_subject() {
    let (_dir, store) = data_dir();
    let record = |id: &str, name: Option<&str>| SandboxRecord {
        id: id.to_owned(),
        subject: subject("alice"),
        name: name.map(str::to_owned),
        generation: 1,
        spec: KeptSpec { image: Some("debian:13".to_owned()), ..KeptSpec::default() },
        metadata: Map::new(),
        created_at: Time::from_unix_millis(1),
        last_used_at: Time::from_unix_millis(1),
        expires_at: Time::from_unix_millis(50),
        max_expires_at: Time::from_unix_millis(100),
        idle: Some(Duration::from_millis(9)),
    };
    let first = record("a", Some("n"));
    assert!(store.create_sandbox(first.clone()).unwrap());
    assert!(!store.create_sandbox(record("b", Some("n"))).unwrap());
    assert!(store.create_sandbox(record("c", None)).unwrap());
    let stored = || store.sandboxes().unwrap().swap_remove(0);
    assert_eq!(stored(), first);
    // Never past its maximum.
    let (used, expires) = (Time::from_unix_millis(7), Time::from_unix_millis(1000));
    store.update_sandbox("a", 2, used, expires).unwrap();
    let after = stored();
    assert_eq!((after.generation, after.expires_at.unix_millis()), (2, 100));
    assert!(store.update_sandbox("z", 2, used, expires).is_err());
    // What was read before another change does not take that back.
    let early = Time::from_unix_millis(3);
    store.update_sandbox("a", 1, early, early).unwrap();
    assert_eq!(stored(), after);
    assert_eq!(store.sandboxes().unwrap().len(), 2);
    assert!(store.remove_sandbox("a").unwrap() && !store.remove_sandbox("a").unwrap());
}

#[test]
fn token_is_revoked_once_and_its_use_is_recorded() {
    let (_dir, store) = data_dir();
    let token = TokenRecord {
        id: "t".to_owned(),
        hash: [7; 32],
        subject: subject("ci"),
        scopes: vec!["executions:write".to_owned(), "executions:read".to_owned()],
        created_at: Time::from_unix_millis(1),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    };
    store.create_token(token.clone()).unwrap();
    assert!(store.create_token(token.clone()).is_err());
    assert_eq!(store.tokens().unwrap(), [token]);
    for (at, recorded) in [(1_000, 1_000), (2_000, 1_000), (61_000, 61_000)] {
        store.use_token("t", Time::from_unix_millis(at)).unwrap();
        let used = store.token("t").unwrap().unwrap().last_used_at;
        assert_eq!(used, Some(Time::from_unix_millis(recorded)));
    }
    let at = Time::from_unix_millis(9);
    assert!(store.revoke_token("t", at).unwrap() && !store.revoke_token("t", at).unwrap());
    assert_eq!(store.token("t").unwrap().unwrap().revoked_at, Some(at));

    // A new token replaces a valid one, at once or after a while.
    let time = Time::from_unix_millis;
    let record = |id: &str, expires_at: Option<i64>| TokenRecord {
        id: id.to_owned(),
        hash: [7; 32],
        subject: subject("bob"),
        scopes: Vec::new(),
        created_at: time(1),
        expires_at: expires_at.map(time),
        revoked_at: None,
        last_used_at: None,
    };
    for (id, expires) in [("u", None), ("v", Some(50)), ("w", Some(5000))] {
        store.create_token(record(id, expires)).unwrap();
    }
    let rotate = |id: &str, new: &str, until: Option<i64>| {
        store.rotate_token(id, record(new, None), time(100), until.map(time)).unwrap()
    };
    let of = |id: &str| store.token(id).unwrap().unwrap();
    assert_eq!(rotate("none", "x", None), Rotated::Missing);
    assert_eq!(
        (rotate("v", "x", None), rotate("t", "x", None)),
        (Rotated::NotValid, Rotated::NotValid)
    );
    assert_eq!(store.token("x").unwrap(), None);
    assert_eq!((rotate("u", "x", Some(200)), of("u").expires_at), (Rotated::Done, Some(time(200))));
    // It never becomes valid for longer.
    assert_eq!(
        (rotate("w", "y", Some(9000)), of("w").expires_at),
        (Rotated::Done, Some(time(5000)))
    );
    assert_eq!((rotate("x", "z", None), of("x").revoked_at), (Rotated::Done, Some(time(100))));
    assert_eq!(store.status(time(300)).unwrap().tokens, 3);
    assert_eq!(store.revoke_tokens_of(&subject("bob"), time(300)).unwrap(), 5);
    assert_eq!(store.revoke_tokens_of(&subject("bob"), time(301)).unwrap(), 0);
    assert_eq!((of("x").revoked_at, of("z").revoked_at), (Some(time(100)), Some(time(300))));
}

#[test]
fn second_server_on_a_data_directory_is_refused() {
    let (dir, store) = data_dir();
    let path = dir.path().join("data");
    let error = Store::open(&path, Durability::Disk).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    assert!(error.hint().unwrap().contains("--data-dir"));
    // Administration works next to the server, and sees its writes.
    let beside = Store::attach(&path).unwrap();
    store.accept(new("a", 1)).unwrap();
    assert!(beside.execution(&subject("alice"), "a").unwrap().is_some());
    beside.check_writable().unwrap();
    drop((store, beside));
    Store::open(&path, Durability::Disk).unwrap();
}

#[test]
fn directory_of_others_and_a_missing_store_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&open, mode).unwrap();
    let error = Store::open(&open, Durability::Disk).unwrap_err();
    assert!(matches!(error, StoreError::Directory { .. }), "{error}");
    let error = Store::attach(&dir.path().join("none")).unwrap_err();
    assert!(matches!(error, StoreError::Missing { .. }), "{error}");
    assert!(!dir.path().join("none").exists());
}

#[test]
fn damaged_store_is_refused_with_the_way_out() {
    let (dir, store) = data_dir();
    for number in 0..200 {
        store.accept(new(&format!("e{number}"), number)).unwrap();
    }
    drop(store);
    let path = dir.path().join("data");
    let database = path.join(DATABASE_FILE);
    let mut bytes = fs::read(&database).unwrap();
    let at = bytes.len() / 2;
    bytes[at..].fill(0xa5);
    fs::write(&database, &bytes).unwrap();
    for suffix in ["-wal", "-shm"] {
        _ = fs::remove_file(path.join(format!("{DATABASE_FILE}{suffix}")));
    }
    let error = Store::open(&path, Durability::Disk).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.hint().unwrap().contains("server backup"));
    fs::write(&database, "no database at all, but text that is long enough to be read").unwrap();
    let error = Store::open(&path, Durability::Disk).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn backup_has_what_was_accepted_and_replaces_no_file() {
    let (dir, store) = data_dir();
    store.accept(new("a", 1)).unwrap();
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&copy, mode).unwrap();
    let file = copy.join(DATABASE_FILE);
    store.backup(&file, &|| true).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(fs::read_dir(&copy).unwrap().count(), 1);
    assert!(matches!(store.backup(&file, &|| true), Err(StoreError::Backup { .. })));
    let restored = Store::open(&copy, Durability::Disk).unwrap();
    assert_eq!(restored.recover().unwrap().queued[0].summary.id, "a");
}

#[test]
fn restored_backup_runs_nothing_again_and_what_it_replaces_stays() {
    let (dir, store) = data_dir();
    let path = dir.path().join("data");
    for id in ["ended", "runs", "waits"] {
        store.accept(new(id, 1)).unwrap();
    }
    store.mark_running("ended", start(2)).unwrap();
    store.finish(finish("ended", 3)).unwrap();
    store.mark_running("runs", start(2)).unwrap();
    let backup = dir.path().join("backup.db");
    store.backup(&backup, &|| true).unwrap();
    store.accept(new("later", 4)).unwrap();
    let error = Store::restore(&path, &backup, &|| true).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(store);

    // One that is interrupted changes nothing, and what one that was killed left goes with the next.
    let names = || {
        let entries = fs::read_dir(&path).unwrap().map(|it| it.unwrap().file_name());
        entries.collect::<BTreeSet<_>>()
    };
    let before = names();
    let leave = || {
        for suffix in ["", "-journal"] {
            fs::write(path.join(format!("restored-0123abcd.part{suffix}")), "").unwrap();
        }
    };
    Store::restore(&path, &backup, &|| false).unwrap_err();
    leave();
    Store::restore(&path, &backup, &|| false).unwrap_err();
    assert_eq!(names(), before);
    let restored = Store::restore(&path, &backup, &|| true).unwrap();
    assert_eq!(restored.interrupted, 2);
    leave();
    let store = Store::open(&path, Durability::Disk).unwrap();
    assert!(names().iter().all(|name| !name.to_string_lossy().contains(".part")));
    let recovered = store.recover().unwrap();
    assert!(recovered.queued.is_empty(), "{:?}", recovered.queued);
    let ids = |all: &[RecoveredExecution]| all.iter().map(|it| it.summary.id.clone()).collect();
    let running: BTreeSet<String> = ids(&recovered.running);
    assert_eq!(running, BTreeSet::from(["runs".to_owned(), "waits".to_owned()]));
    assert!(store.execution(&subject("alice"), "ended").unwrap().unwrap().document.is_some());
    assert_eq!(store.execution(&subject("alice"), "later").unwrap(), None);
    drop(store);
    // What was there is a store of its own.
    let other = dir.path().join("other");
    Store::restore(&other, &restored.replaced.unwrap(), &|| true).unwrap();
    let store = Store::open(&other, Durability::Disk).unwrap();
    assert!(store.execution(&subject("alice"), "later").unwrap().is_some());

    // A file that is not a database changes nothing.
    let text = dir.path().join("text");
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    fs::write(&text, "no database, and longer than the head of one: ".repeat(100)).unwrap();
    let before = names();
    for (file, why) in [(&text, "damaged"), (&fifo, "cannot read"), (&path, "cannot read")] {
        let error = Store::restore(&path, file, &|| true).unwrap_err();
        assert!(error.to_string().contains(why) && error.hint().is_some(), "{error}");
    }
    assert_eq!(names(), before);
}

#[test]
fn damaged_store_is_replaced_by_a_backup() {
    let (dir, store) = data_dir();
    store.accept(new("a", 1)).unwrap();
    let backup = dir.path().join("backup.db");
    store.backup(&backup, &|| true).unwrap();
    drop(store);
    let path = dir.path().join("data");
    for (name, content) in [(DATABASE_FILE, "no database"), ("store.db-wal", "no log either")] {
        fs::write(path.join(name), content.repeat(1000)).unwrap();
    }
    let replaced = Store::restore(&path, &backup, &|| true).unwrap().replaced.unwrap();
    assert!(fs::read_to_string(&replaced).unwrap().starts_with("no database"));
    assert!(!path.join("store.db-wal").exists());
    let store = Store::open(&path, Durability::Disk).unwrap();
    assert_eq!(store.status(Time::now()).unwrap().running, 1);
}

#[test]
fn changes_of_many_callers_are_all_made() {
    let (_dir, store) = data_dir();
    thread::scope(|scope| {
        for caller in 0..16 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..20 {
                    store.accept(new(&format!("{caller}-{number}"), number)).unwrap();
                }
                // One that fails takes no other one of its transaction with it.
                assert!(store.accept(new("0-0", 0)).is_err() || caller == 0);
            });
        }
    });
    let recovered = store.recover().unwrap();
    assert_eq!(recovered.queued.len(), 320);
}

/// Set in the process that [`accepted_execution_survives_a_kill`] kills.
const CHILD: &str = "SANDBOX_STORE_TEST_DIR";

#[test]
fn accepted_execution_survives_a_kill() {
    if let Some(dir) = std::env::var_os(CHILD) {
        let store = Store::open(Path::new(&dir), Durability::Disk).unwrap();
        for number in 0_i64.. {
            let id = format!("e{number}");
            store.accept(new(&id, number)).unwrap();
            println!("accepted {number}");
            store.mark_running(&id, start(1)).unwrap();
            if number % 2 == 0 {
                store.finish(finish(&id, 2)).unwrap();
                println!("finished {number}");
            }
        }
    }
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    for kill_after in [1, 7, 40] {
        _ = fs::remove_dir_all(&dir);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::accepted_execution_survives_a_kill", "--nocapture"])
            .env(CHILD, &dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut accepted, mut finished) = (Vec::new(), Vec::new());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut read = |line: io::Result<String>| {
            let line = line.unwrap_or_default();
            let number =
                |prefix| line.strip_prefix(prefix).map(|it: &str| it.parse::<i64>().unwrap());
            accepted.extend(number("accepted "));
            finished.extend(number("finished "));
            accepted.len()
        };
        while read(lines.next().unwrap()) < kill_after {}
        child.kill().unwrap();
        child.wait().unwrap();
        lines.for_each(|line| _ = read(line));

        let store = Store::open(&dir, Durability::Disk).unwrap();
        for number in accepted {
            let stored = store.execution(&subject("alice"), &format!("e{number}")).unwrap();
            let status = stored.unwrap().summary.status;
            assert!(!finished.contains(&number) || status == ExecutionState::Ended(Status::Ok));
        }
    }
}

#[test]
fn locked_database_is_an_error_and_the_next_change_works() {
    let (dir, store) = data_dir();
    let other = Connection::open(dir.path().join("data").join(DATABASE_FILE)).unwrap();
    store.write(|connection| Ok(connection.busy_timeout(Duration::from_millis(1))?)).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let error = store.accept(new("a", 1)).unwrap_err();
    assert!(matches!(error, StoreError::Locked) && error.is_transient(), "{error}");
    other.execute_batch("ROLLBACK").unwrap();
    store.accept(new("a", 1)).unwrap();
}

/// How often this process has files of a data directory open.
fn descriptors_of(data_dir: &Path) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter_map(|it| fs::read_link(it.path()).ok())
        .filter(|it| it.starts_with(data_dir))
        .count()
}

/// Two more were open for ever after two queries at one time.
#[test]
fn store_has_as_many_descriptors_after_a_busy_moment_as_before() {
    let (dir, store) = data_dir();
    let data_dir = dir.path().join("data").canonicalize().unwrap();
    store.accept(new("a", 1)).unwrap();
    let before = descriptors_of(&data_dir);
    let together = Barrier::new(8);
    let query = |_: &Connection| {
        together.wait();
        Ok(())
    };
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| store.read(query).unwrap());
        }
    });
    assert_eq!(store.execution(&subject("alice"), "a").unwrap().unwrap().summary.id, "a");
    assert_eq!(descriptors_of(&data_dir), before);
}

/// Lets the store have no more than so many pages: for SQLite that is a full disk.
#[test]
fn request_is_removed_when_it_runs_and_its_space_is_given_back() {
    let (dir, store) = data_dir();
    let size = || fs::metadata(dir.path().join("data/store.db")).unwrap().len();
    let until = |is_true: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_true() {
            assert!(Instant::now() < deadline, "it takes too long: {}", size());
            thread::sleep(Duration::from_millis(5));
        }
    };
    const REQUEST: u64 = 40 << 20;
    store.accept(NewExecution { request: "x".repeat(REQUEST as usize), ..new("a", 1) }).unwrap();
    assert_eq!(store.recover().unwrap().queued[0].request_bytes, REQUEST);
    until(&|| size() > REQUEST);
    store.mark_running("a", start(2)).unwrap();
    assert!(store.request("a").is_err());
    assert_eq!(store.recover().unwrap().running[0].request_bytes, 0);
    // Some is kept for what comes next.
    until(&|| size() < REQUEST / 2);
    store.check_writable().unwrap();
    store.finish(finish("a", 3)).unwrap();
}

fn limit_pages(store: &Store, pages: i64) {
    let limit = move |connection: &Connection| {
        let pragma = format!("PRAGMA max_page_count = {pages}");
        Ok(connection.query_row(&pragma, [], |row| row.get::<_, i64>(0))?)
    };
    store.write(limit).unwrap();
}

#[test]
fn full_disk_is_an_error_and_the_next_change_works_when_there_is_room() {
    let (_dir, store) = data_dir();
    let huge = |id: &str| NewExecution { request: "x".repeat(1 << 20), ..new(id, 1) };
    limit_pages(&store, 100);
    for _ in 0..3 {
        let error = store.accept(huge("a")).unwrap_err();
        assert!(matches!(error, StoreError::Full) && error.is_transient(), "{error}");
        assert!(error.hint().is_some());
    }
    store.accept(new("b", 1)).unwrap();
    limit_pages(&store, 1_000_000);
    store.accept(huge("a")).unwrap();
    assert_eq!(store.known(&["a", "b"].map(str::to_owned)).unwrap(), ["a", "b"]);
}

#[test]
fn change_in_a_batch_that_fills_the_disk_is_made_if_it_is_acknowledged() {
    let (_dir, store) = data_dir();
    limit_pages(&store, 200);
    let mut undone = 0;
    for round in 0..20 {
        // The thread that writes is held until all of them wait, so that they share a transaction.
        let (held, (release, released)) = (Barrier::new(10), mpsc::channel::<()>());
        let ids: Vec<String> = (0..8).map(|it| format!("{round}-{it}")).collect();
        let made: Vec<String> = thread::scope(|scope| {
            let gate = move |_: &Connection| {
                _ = released.recv();
                Ok(())
            };
            // It may be undone with them.
            scope.spawn(|| _ = store.write(gate));
            let (held, store) = (&held, &store);
            let each: Vec<_> = ids
                .iter()
                .map(|id| {
                    scope.spawn(move || {
                        held.wait();
                        let accepted = store.accept(new(id, 1));
                        accepted.map(|_| id.clone()).map_err(|error| error.is_transient())
                    })
                })
                .collect();
            scope.spawn(move || {
                held.wait();
                let request = "x".repeat(4 << 20);
                assert!(store.accept(NewExecution { request, ..new("huge", 1) }).is_err());
            });
            held.wait();
            drop(release);
            let ended = each.into_iter().map(|thread| thread.join().unwrap());
            ended.filter_map(|it| it.inspect_err(|transient| assert!(transient)).ok()).collect()
        });
        undone += ids.len() - made.len();
        assert_eq!(store.known(&ids).unwrap(), made);
    }
    println!("{undone} changes were undone");
}

#[test]
fn key_of_an_execution_that_is_hidden_is_free() {
    let (_dir, store) = data_dir();
    let with_key = |id: &str, digest: &str| NewExecution {
        key: Some(("k".to_owned(), digest.to_owned())),
        ..new(id, 1)
    };
    store.accept(with_key("a", "1")).unwrap();
    store.finish(finish("a", 2)).unwrap();
    assert_eq!(store.expire(Time::from_unix_millis(3), u64::MAX).unwrap(), ["a"]);
    assert_eq!(store.find_key(&subject("alice"), "k", "1").unwrap(), None);
    assert_eq!(store.accept(with_key("b", "2")).unwrap(), Accepted::New);
    store.forget(vec!["a".to_owned()]).unwrap();
    assert_eq!(store.accept(with_key("c", "2")).unwrap(), Accepted::Same("b".to_owned()));
}

#[test]
fn unknown_processor_time_is_charged_as_that_of_all_its_processors() {
    let (_dir, store) = data_dir();
    let charge = |id: &str, thousandths: Option<u32>, usage| {
        store.accept(new(id, 1)).unwrap();
        if let Some(thousandths) = thousandths {
            let mut start = start(2);
            start.limits.cpus = Cpus::from_thousandths(thousandths.try_into().unwrap());
            store.mark_running(id, start).unwrap();
        }
        let before = store.usage(&subject("alice")).unwrap().cpu_ms;
        store.finish(Finish { usage, ..finish(id, 3) }).unwrap();
        store.usage(&subject("alice")).unwrap().cpu_ms - before
    };
    let used = |wall_ms, cpu_ms| Some(Usage { wall_ms, cpu_ms, ..Usage::default() });
    assert_eq!(charge("known", Some(1500), used(1001, Some(3))), 3);
    assert_eq!(charge("unknown", Some(1500), used(1001, None)), 1502);
    assert_eq!(charge("a share", Some(100), used(1001, None)), 101);
    assert_eq!(charge("none that is stored", None, used(1000, None)), 1000);
    assert_eq!(charge("did not run", Some(1500), None), 0);
}

#[test]
fn no_figure_of_a_guest_stops_an_execution_from_ending() {
    let (_dir, store) = data_dir();
    let most = Usage {
        wall_ms: u64::MAX,
        cpu_ms: Some(u64::MAX),
        written_bytes: Some(u64::MAX),
        ..Usage::default()
    };
    for number in 0..3 {
        let id = format!("e{number}");
        store.accept(new(&id, 1)).unwrap();
        // On two days.
        let ended = i64::from(number % 2) * 24 * 3600 * 1000;
        store.finish(Finish { usage: Some(most), ..finish(&id, ended) }).unwrap();
    }
    let usage = store.usage(&subject("alice")).unwrap();
    assert_eq!((usage.executions, usage.cpu_ms), (3, 2 << 50));
}

#[test]
fn backup_of_a_store_that_is_written_to_all_the_time_ends() {
    let (dir, store) = data_dir();
    for number in 0..50 {
        let request = "x".repeat(100 << 10);
        store.accept(NewExecution { request, ..new(&format!("e{number}"), number) }).unwrap();
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_i64.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                store.accept(new(&format!("w{number}"), number)).unwrap();
            }
        });
        for number in 0..3 {
            store.backup(&dir.path().join(format!("copy-{number}")), &|| true).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn store_of_an_older_server_that_runs_is_not_migrated() {
    let (dir, store) = data_dir();
    let path = dir.path().join("data");
    store.write(|it| Ok(it.pragma_update(None, "user_version", 1)?)).unwrap();
    let error = Store::attach(&path).unwrap_err();
    assert!(matches!(error, StoreError::Older { found: 1, .. }), "{error}");
    assert!(error.hint().unwrap().contains("restart"));
}

/// What happens while a client goes from page to page.
#[derive(Debug, Clone)]
enum Meanwhile {
    /// One more is accepted, at this time of a clock that may be set.
    Accept(i64),
    Run(usize),
    Finish(usize),
    /// What has ended is forgotten, of the page's last execution on.
    Forget,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Accept,
    Run,
    Finish,
    Forget,
    Reopen,
}

/// The bytes of all rows, added up.
fn sum_of_rows(store: &Store) -> u64 {
    let sum = |connection: &Connection| {
        let sum = "SELECT ifnull(sum(stored_bytes), 0) FROM executions";
        Ok(connection.query_row(sum, [], |row| row.get::<_, i64>(0))?)
    };
    u64::try_from(store.read(sum).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// One could be left out, or come twice, where the last one of a page was forgotten.
    #[test]
    fn client_that_walks_pages_misses_nothing_and_sees_nothing_twice(
        times in prop::collection::vec(0_i64..4, 1..20),
        limit in 1_usize..4,
        meanwhile in prop::collection::vec(prop::collection::vec(prop_oneof![
            (0_i64..6).prop_map(Meanwhile::Accept),
            (0_usize..20).prop_map(Meanwhile::Run),
            (0_usize..20).prop_map(Meanwhile::Finish),
            Just(Meanwhile::Forget),
        ], 0..4), 20),
    ) {
        let (_dir, store) = data_dir();
        let alice = subject("alice");
        // Ids are in no order, as random ones.
        let id = |number: usize| format!("{:02}", number * 7 % 100);
        for (number, created) in times.iter().enumerate() {
            store.accept(new(&id(number), *created)).unwrap();
        }
        let mut there: BTreeSet<_> = (0..times.len()).map(id).collect();
        let (mut seen, mut cursor, mut accepted) = (Vec::new(), None, times.len());
        let mut meanwhile = meanwhile.into_iter();
        loop {
            let query = ExecutionQuery { cursor, limit, ..ExecutionQuery::default() };
            let page = store.list(&alice, &query).unwrap();
            seen.extend(page.executions.into_iter().map(|it| it.id));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
            for change in meanwhile.next().into_iter().flatten() {
                match change {
                    Meanwhile::Accept(created) => {
                        store.accept(new(&id(accepted), created)).unwrap();
                        accepted += 1;
                    }
                    Meanwhile::Run(number) => _ = store.mark_running(&id(number), start(5)),
                    Meanwhile::Finish(number) => _ = store.finish(finish(&id(number), 6)),
                    Meanwhile::Forget => {
                        let ended = store.expire(Time::from_unix_millis(7), u64::MAX).unwrap();
                        there.retain(|id| !ended.contains(id));
                        store.forget(ended).unwrap();
                    }
                }
            }
        }
        let found: BTreeSet<_> = seen.iter().cloned().collect();
        prop_assert_eq!(found.len(), seen.len(), "one came twice: {:?}", seen);
        prop_assert!(there.is_subset(&found), "of {:?} only {:?} were seen", there, seen);
    }

    #[test]
    fn states_only_go_forward(steps in prop::collection::vec(
        (0_usize..3, prop::sample::select(vec![
            Step::Accept, Step::Run, Step::Finish, Step::Forget, Step::Reopen,
        ])),
        0..24,
    )) {
        let (dir, mut store) = data_dir();
        let path = dir.path().join("data");
        // 0: none, 1: queued, 2: running, 3: ended.
        let mut states = [0; 3];
        for (which, step) in steps {
            let id = format!("e{which}");
            let state = &mut states[which];
            match step {
                Step::Accept => {
                    prop_assert_eq!(store.accept(new(&id, 1)).is_ok(), *state == 0);
                    *state = (*state).max(1);
                }
                Step::Run => {
                    let ran = store.mark_running(&id, start(2)).is_ok();
                    prop_assert_eq!(ran, *state == 1);
                    *state = if ran { 2 } else { *state };
                }
                Step::Finish => {
                    let ended = store.finish(finish(&id, 3)).is_ok();
                    prop_assert_eq!(ended, *state == 1 || *state == 2);
                    *state = if ended { 3 } else { *state };
                }
                Step::Forget => {
                    let ended = store.expire(Time::from_unix_millis(4), u64::MAX).unwrap();
                    prop_assert_eq!(ended.len(), states.iter().filter(|it| **it == 3).count());
                    store.forget(ended).unwrap();
                    states = states.map(|it| if it == 3 { 0 } else { it });
                }
                Step::Reopen => {
                    drop(store);
                    store = Store::open(&path, Durability::Disk).unwrap();
                }
            }
            prop_assert_eq!(store.stored_bytes(&subject("alice")).unwrap(), sum_of_rows(&store));
        }
        let recovered = store.recover().unwrap();
        let count = |state| states.iter().filter(|it| **it == state).count();
        prop_assert_eq!(recovered.queued.len(), count(1));
        prop_assert_eq!(recovered.running.len(), count(2));
    }
}
