//! What only a store on real files does.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, LazyLock, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use sandbox_api::Status;
use sandbox_api::service::{DATABASE_FILE, ExecutionState, Time};

use super::{event, finish, new, start, subject};
use crate::sqlite::SqliteStore;
use crate::*;

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
pub(super) fn data_dir() -> (tempfile::TempDir, Store) {
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
    count("list of all", &|| {
        let query = ExecutionQuery { limit: 3, ..ExecutionQuery::default() };
        assert_eq!(store.page(None, &query).unwrap().executions.len(), 3);
    });
    count("list since", &|| {
        let since = Some(Time::from_unix_millis(2));
        let query = ExecutionQuery { since, limit: 3, ..ExecutionQuery::default() };
        assert!(store.list(&alice, &query).unwrap().executions.is_empty());
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
            .args(["--exact", "tests::sqlite::accepted_execution_survives_a_kill", "--nocapture"])
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
    sqlite(&store)
        .write(|connection| Ok(connection.busy_timeout(Duration::from_millis(1))?))
        .unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let error = store.accept(new("a", 1)).unwrap_err();
    assert!(matches!(error, StoreError::Locked) && error.is_transient(), "{error}");
    other.execute_batch("ROLLBACK").unwrap();
    store.accept(new("a", 1)).unwrap();
}

/// The store itself, to do with it what no caller does.
fn sqlite(store: &Store) -> &SqliteStore {
    match &store.0 {
        Backend::Sqlite(store) => store,
        Backend::Postgres(_) => unreachable!("it is on files"),
    }
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
            scope.spawn(|| sqlite(&store).read(query).unwrap());
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
    sqlite(store).write(limit).unwrap();
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
            scope.spawn(|| _ = sqlite(&store).write(gate));
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
    sqlite(&store).write(|it| Ok(it.pragma_update(None, "user_version", 1)?)).unwrap();
    let error = Store::attach(&path).unwrap_err();
    assert!(error.to_string().contains("has version 1,"), "{error}");
    assert!(error.hint().unwrap().contains("restart"));
}
