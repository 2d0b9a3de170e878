//! The store on real files, and in a real PostgreSQL: what both do is one suite.

mod postgres;
mod sqlite;

use std::collections::BTreeSet;
use std::ops::{Deref, RangeInclusive};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sandbox_api::service::{
    ExecutionKind, ExecutionState, IdleAction, KeptSpec, Subject, SubjectStatus, Time, UsageTotals,
};
use sandbox_api::{Cpus, EngineKind, Limits, Processes, Status, Usage};
use serde_json::{Map, Value};

use super::*;
use postgres::Clustered;

pub(crate) use sqlite::count_steps;

/// What has the store.
enum Engine {
    Sqlite,
    Postgres(fixture::Postgres),
}

/// A store of a test.
struct Opened<'a> {
    engine: &'a Engine,
    store: Store,
    of: Of,
}

enum Of {
    Sqlite(tempfile::TempDir),
    Postgres(Clustered),
}

impl Engine {
    /// A new store.
    fn open(&self) -> Opened<'_> {
        let (store, of) = match self {
            Self::Sqlite => {
                let (dir, store) = sqlite::data_dir();
                (store, Of::Sqlite(dir))
            }
            Self::Postgres(server) => {
                let clustered = Clustered::new(&server.database());
                (clustered.store.clone(), Of::Postgres(clustered))
            }
        };
        Opened { engine: self, store, of }
    }

    /// How many cases of a property are tried: each has a new store.
    fn runner(&self) -> TestRunner {
        let cases = match self {
            Self::Sqlite => 24,
            Self::Postgres(_) => 4,
        };
        TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() })
    }
}

impl Deref for Opened<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// The changes that name a session in a cluster.
impl Opened<'_> {
    fn accept(&self, new: NewExecution) -> Result<Accepted, StoreError> {
        match &self.of {
            Of::Sqlite(_) => self.store.accept(new),
            Of::Postgres(clustered) => clustered.accept(new),
        }
    }

    fn mark_running(&self, id: &str, start: Start) -> Result<(), StoreError> {
        match &self.of {
            Of::Sqlite(_) => self.store.mark_running(id, start),
            Of::Postgres(clustered) => clustered.mark_running(id, start),
        }
    }

    fn finish(&self, end: Finish) -> Result<(), StoreError> {
        match &self.of {
            Of::Sqlite(_) => self.store.finish(end),
            Of::Postgres(clustered) => clustered.finish(end),
        }
    }

    /// Opens it again, as after the end of its process.
    fn reopen(self) -> Self {
        let Self { engine, store, of } = self;
        drop(store);
        let (store, of) = match of {
            Of::Sqlite(dir) => {
                let store = Store::open(&dir.path().join("data"), Durability::Disk).unwrap();
                (store, Of::Sqlite(dir))
            }
            Of::Postgres(clustered) => {
                let clustered = clustered.reopen();
                (clustered.store.clone(), Of::Postgres(clustered))
            }
        };
        Self { engine, store, of }
    }

    /// How many wait, run, and have ended.
    fn counts(&self) -> [u64; 3] {
        let status = self.status(Time::from_unix_millis(0)).unwrap();
        [status.queued, status.running, status.ended]
    }
}

/// Runs each case on both engines.
macro_rules! suite {
    ($($case:ident)+) => {
        mod on_sqlite {
            $(#[test] fn $case() { super::$case(&super::Engine::Sqlite); })+
        }
        mod on_postgres {
            $(#[test] fn $case() {
                super::$case(&super::Engine::Postgres(crate::fixture::Postgres::shared()));
            })+
        }
    };
}

suite! {
    execution_goes_from_queued_to_ended_and_never_back
    execution_that_does_not_wait_is_stored_as_running
    a_key_belongs_to_one_request_of_one_subject
    events_are_read_from_where_a_reader_was
    cursor_is_the_same_whatever_others_run
    list_goes_on_after_an_execution_that_is_forgotten
    lists_are_paged_from_the_newest_and_filtered
    list_of_all_subjects_says_whose_each_is
    lists_are_filtered_by_image_and_time
    subjects_are_those_with_something_now_or_today
    ended_executions_are_hidden_before_they_are_forgotten
    name_of_a_kept_sandbox_is_taken_once_by_a_subject
    kept_sandbox_is_stored_with_all_that_it_is_and_what_changes_of_it
    token_is_revoked_once_and_its_use_is_recorded
    changes_of_many_callers_are_all_made
    key_of_an_execution_that_is_hidden_is_free
    unknown_processor_time_is_charged_as_that_of_all_its_processors
    no_figure_of_a_guest_stops_an_execution_from_ending
    text_that_no_row_can_have_is_found_nowhere
    client_that_walks_pages_misses_nothing_and_sees_nothing_twice
    states_only_go_forward
}

/// Whether a change was refused because of the state of its execution.
fn is_refused<T>(made: &Result<T, StoreError>) -> bool {
    matches!(made, Err(StoreError::State { .. } | StoreError::Fenced { .. }))
}

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
        image: None,
        sandbox: None,
        generation: None,
        events: Vec::new(),
        trace_parent: None,
        placement: Placement::default(),
    }
}

fn start(at: i64) -> Start {
    let limits = Limits { timeout: Duration::from_secs(7), ..Limits::default() };
    Start {
        at: Time::from_unix_millis(at),
        engine: EngineKind::Embedded,
        limits,
        used: None,
        session: None,
    }
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
        session: None,
    }
}

fn event(number: u64) -> StoredEvent {
    StoredEvent { number, json: format!(r#"{{"seq":{number}}}"#) }
}

fn execution_goes_from_queued_to_ended_and_never_back(on: &Engine) {
    let store = on.open();
    store.accept(new("a", 1)).unwrap();
    let at = Time::from_unix_millis(2);
    let used = Some(UsedGeneration { generation: 3, is_restart: true });
    store.mark_running("a", Start { used, ..start(2) }).unwrap();
    assert!(is_refused(&store.mark_running("a", start(2))));
    store.finish(finish("a", 3)).unwrap();
    assert!(is_refused(&store.finish(finish("a", 4))));
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
    let expected = UsageTotals {
        executions: 1,
        cpu_ms: 3,
        wall_ms: 5,
        written_bytes: 7,
        stored_bytes: 100,
        ..UsageTotals::default()
    };
    assert_eq!(usage, expected);
    assert_eq!(store.usage(&subject("bob")).unwrap(), UsageTotals::default());
}

fn execution_that_does_not_wait_is_stored_as_running(on: &Engine) {
    let store = on.open();
    store.accept(NewExecution { start: Some(start(2)), ..new("a", 1) }).unwrap();
    assert!(is_refused(&store.mark_running("a", start(2))));
    assert!(store.request("a").is_err(), "nothing reads it again");
    let recovered = store.recover().unwrap();
    assert!(recovered.queued.is_empty());
    assert_eq!(recovered.running[0].summary.started_at, Some(start(2).at));
    assert_eq!(recovered.running[0].engine, Some(start(2).engine));
    assert_eq!(recovered.running[0].limits, Some(start(2).limits));
}

fn a_key_belongs_to_one_request_of_one_subject(on: &Engine) {
    let store = on.open();
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

fn events_are_read_from_where_a_reader_was(on: &Engine) {
    let store = on.open();
    store.accept(new("a", 1)).unwrap();
    store.mark_running("a", start(1)).unwrap();
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
fn cursor_is_the_same_whatever_others_run(on: &Engine) {
    let cursor = |others: i64| {
        let store = on.open();
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

fn list_goes_on_after_an_execution_that_is_forgotten(on: &Engine) {
    let store = on.open();
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

fn lists_are_paged_from_the_newest_and_filtered(on: &Engine) {
    let store = on.open();
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

fn list_of_all_subjects_says_whose_each_is(on: &Engine) {
    let store = on.open();
    for (number, name) in (0..).zip(["alice", "bob", "alice"]) {
        let new = new(&format!("e{number}"), number);
        store.accept(NewExecution { subject: subject(name), ..new }).unwrap();
    }
    let listed = |of: Option<&str>, limit| {
        let query = ExecutionQuery { limit, ..ExecutionQuery::default() };
        let found = store.list_all(of.map(subject).as_ref(), &query).unwrap();
        found.iter().map(|(of, it)| format!("{} {}", of.as_str(), it.id)).collect::<Vec<_>>()
    };
    assert_eq!(listed(None, 10), ["alice e2", "bob e1", "alice e0"]);
    assert_eq!(listed(None, 1), ["alice e2"]);
    assert_eq!(listed(Some("bob"), 10), ["bob e1"]);
}

fn lists_are_filtered_by_image_and_time(on: &Engine) {
    let store = on.open();
    for (number, name) in (0..).zip(["alice", "bob", "alice", "alice"]) {
        let image = (number != 2).then(|| format!("debian:{}", 12 + number % 2));
        let new = NewExecution { image, ..new(&format!("e{number}"), number) };
        store.accept(NewExecution { subject: subject(name), ..new }).unwrap();
    }
    let page = |of: Option<&str>, query: ExecutionQuery| {
        let page = store.page(of.map(subject).as_ref(), &query).unwrap();
        let shown = page.executions.iter().map(|it| {
            let of = it.subject.as_ref().unwrap().as_str();
            format!("{of} {} {}", it.id, it.image.as_deref().unwrap_or("-"))
        });
        (shown.collect::<Vec<_>>(), page.next_cursor)
    };
    let all = ExecutionQuery { limit: 9, ..ExecutionQuery::default() };
    let time = |millis| Some(Time::from_unix_millis(millis));
    let of_image = ExecutionQuery { image: Some("debian:13".to_owned()), ..all.clone() };
    assert_eq!(page(None, of_image.clone()).0, ["alice e3 debian:13", "bob e1 debian:13"]);
    assert_eq!(page(Some("bob"), of_image.clone()).0, ["bob e1 debian:13"]);
    let between = ExecutionQuery { since: time(1), until: time(3), ..all.clone() };
    assert_eq!(page(None, between.clone()).0, ["alice e2 -", "bob e1 debian:13"]);
    let both = ExecutionQuery { image: of_image.image.clone(), ..between.clone() };
    assert_eq!(page(None, both).0, ["bob e1 debian:13"]);
    // A page of a filtered list goes on like any other.
    let (first, cursor) = page(None, ExecutionQuery { limit: 1, ..of_image.clone() });
    assert_eq!(first, ["alice e3 debian:13"]);
    let (second, cursor) = page(None, ExecutionQuery { limit: 1, cursor, ..of_image.clone() });
    assert_eq!((&*second, cursor), (&["bob e1 debian:13".to_owned()][..], None));
    // The list of a subject itself does not name it.
    let own = store.list(&subject("bob"), &all).unwrap().executions;
    assert_eq!((own.len(), &own[0].subject), (1, &None));
}

fn subjects_are_those_with_something_now_or_today(on: &Engine) {
    let store = on.open();
    const DAY: i64 = 24 * 3600 * 1000;
    for (number, name) in (0..).zip(["alice", "bob", "bob", "carol"]) {
        let new = new(&format!("e{number}"), number);
        store.accept(NewExecution { subject: subject(name), ..new }).unwrap();
    }
    store.mark_running("e1", start(2)).unwrap();
    // Of another day.
    store.finish(finish("e0", 9)).unwrap();
    store.finish(finish("e3", DAY + 9)).unwrap();
    let at = |limit| store.subjects(Time::from_unix_millis(DAY + 10), limit).unwrap();
    let found = at(9);
    let of = |name: &str| found.iter().find(|it| it.subject.as_str() == name).cloned();
    let nothing = SubjectStatus {
        subject: subject("bob"),
        queued: 0,
        running: 0,
        sandboxes: 0,
        executions_today: 0,
        cpu_ms_today: 0,
        stored_bytes: 0,
    };
    assert_eq!(of("bob"), Some(SubjectStatus { queued: 1, running: 1, ..nothing.clone() }));
    let carol = SubjectStatus {
        subject: subject("carol"),
        executions_today: 1,
        cpu_ms_today: 3,
        stored_bytes: 100,
        ..nothing
    };
    assert_eq!(of("carol"), Some(carol));
    assert_eq!((of("alice"), found.len()), (None, 2));
    // Those of which most is under way come first.
    assert_eq!(at(1)[0].subject, subject("bob"));
    assert_eq!(at(1).len(), 1);
}

fn ended_executions_are_hidden_before_they_are_forgotten(on: &Engine) {
    let store = on.open();
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

fn name_of_a_kept_sandbox_is_taken_once_by_a_subject(on: &Engine) {
    let store = on.open();
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
        idle_action: IdleAction::Stop,
    };
    let first = record("a", Some("n"));
    assert!(store.create_sandbox(first.clone()).unwrap());
    assert!(!store.create_sandbox(record("b", Some("n"))).unwrap());
    assert!(store.create_sandbox(record("c", None)).unwrap());
    let stored = || store.sandboxes().unwrap().swap_remove(0);
    assert_eq!(stored(), first);
    let (used, early) = (Time::from_unix_millis(7), Time::from_unix_millis(3));
    store.update_sandbox("a", 2, used).unwrap();
    let after = stored();
    assert_eq!((after.generation, after.last_used_at), (2, used));
    assert!(store.update_sandbox("z", 2, used).is_err());
    // What was read before another change does not take that back.
    store.update_sandbox("a", 1, early).unwrap();
    assert_eq!(stored(), after);
    assert_eq!(store.sandboxes().unwrap().len(), 2);
    assert!(store.remove_sandbox("a").unwrap() && !store.remove_sandbox("a").unwrap());
}

fn kept_sandbox_is_stored_with_all_that_it_is_and_what_changes_of_it(on: &Engine) {
    let store = on.open();
    let members = |text: &str| -> Map<String, Value> { serde_json::from_str(text).unwrap() };
    let at = Time::from_unix_millis;
    let record = SandboxRecord {
        id: "a".to_owned(),
        subject: subject("alice"),
        name: Some("n".to_owned()),
        generation: 1,
        spec: KeptSpec {
            image: Some("debian:13".to_owned()),
            processes: Processes::Kept,
            env: [("A".to_owned(), vec![0xff].into()), ("B".to_owned(), "b".into())].into(),
            ..KeptSpec::default()
        },
        metadata: members(r#"{"team":"blue"}"#),
        created_at: at(1),
        last_used_at: at(1),
        expires_at: at(50),
        max_expires_at: at(100),
        idle: Some(Duration::from_millis(9)),
        idle_action: IdleAction::Freeze,
    };
    assert!(store.create_sandbox(record.clone()).unwrap());
    let stored = || store.sandboxes().unwrap().swap_remove(0);
    assert_eq!(stored(), record);
    // Its end may come earlier, and is never past its maximum.
    for (asked, expected) in [(20, 20), (1000, 100), (60, 60)] {
        store.change_sandbox("a", Some(at(asked)), None).unwrap();
        assert_eq!(stored(), SandboxRecord { expires_at: at(expected), ..record.clone() });
    }
    let metadata = members(r#"{"step":3}"#);
    store.change_sandbox("a", None, Some(metadata.clone())).unwrap();
    assert_eq!(stored(), SandboxRecord { expires_at: at(60), metadata, ..record.clone() });
    store.update_sandbox("a", 2, at(2)).unwrap();
    assert_eq!(stored().expires_at, at(60));
    assert!(store.change_sandbox("z", Some(at(60)), None).is_err());
}

fn token_is_revoked_once_and_its_use_is_recorded(on: &Engine) {
    let store = on.open();
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

fn changes_of_many_callers_are_all_made(on: &Engine) {
    let store = on.open();
    store.accept(new("taken", 0)).unwrap();
    thread::scope(|scope| {
        for caller in 0..16 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..20 {
                    store.accept(new(&format!("{caller}-{number}"), number)).unwrap();
                }
                // One that fails takes no other one of its transaction with it.
                assert!(store.accept(new("taken", 0)).is_err());
            });
        }
    });
    assert_eq!(store.counts(), [321, 0, 0]);
}

fn key_of_an_execution_that_is_hidden_is_free(on: &Engine) {
    let store = on.open();
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

fn unknown_processor_time_is_charged_as_that_of_all_its_processors(on: &Engine) {
    let store = on.open();
    let charge = |id: &str, cpus: Option<f64>, usage| {
        store.accept(new(id, 1)).unwrap();
        if let Some(cpus) = cpus {
            let mut start = start(2);
            start.limits.cpus = Cpus::try_from(cpus).unwrap();
            store.mark_running(id, start).unwrap();
        }
        let before = store.usage(&subject("alice")).unwrap().cpu_ms;
        store.finish(Finish { usage, ..finish(id, 3) }).unwrap();
        store.usage(&subject("alice")).unwrap().cpu_ms - before
    };
    let used = |wall_ms, cpu_ms| Some(Usage { wall_ms, cpu_ms, ..Usage::default() });
    assert_eq!(charge("known", Some(1.5), used(1001, Some(3))), 3);
    assert_eq!(charge("unknown", Some(1.5), used(1001, None)), 1502);
    assert_eq!(charge("a share", Some(0.1), used(1001, None)), 101);
    assert_eq!(charge("none that is stored", None, used(1000, None)), 1000);
    assert_eq!(charge("did not run", Some(1.5), None), 0);
}

fn no_figure_of_a_guest_stops_an_execution_from_ending(on: &Engine) {
    let store = on.open();
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
    assert_eq!(usage.executions, 3);
    // The most of a day, which is that of each connection in a cluster.
    assert!(usage.cpu_ms >= 2 << 50, "{usage:?}");
}

fn text_that_no_row_can_have_is_found_nowhere(on: &Engine) {
    let store = on.open();
    store.accept(new("a", 1)).unwrap();
    let alice = subject("alice");
    for odd in ["a\0", "\0", ""] {
        assert_eq!(store.execution(&alice, odd).unwrap(), None);
        assert!(store.events(odd, 0, 9).unwrap().is_empty());
        assert_eq!(store.find_key(&alice, odd, "d").unwrap(), None);
        assert_eq!(store.token(odd).unwrap(), None);
        let query =
            ExecutionQuery { sandbox: Some(odd.to_owned()), limit: 9, ..Default::default() };
        assert!(store.list(&alice, &query).unwrap().executions.is_empty());
    }
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

/// One could be left out, or come twice, where the last one of a page was forgotten.
fn client_that_walks_pages_misses_nothing_and_sees_nothing_twice(on: &Engine) {
    let histories = (
        prop::collection::vec(0_i64..4, 1..20),
        1_usize..4,
        prop::collection::vec(
            prop::collection::vec(
                prop_oneof![
                    (0_i64..6).prop_map(Meanwhile::Accept),
                    (0_usize..20).prop_map(Meanwhile::Run),
                    (0_usize..20).prop_map(Meanwhile::Finish),
                    Just(Meanwhile::Forget),
                ],
                0..4,
            ),
            20,
        ),
    );
    let walk = |(times, limit, meanwhile): (Vec<i64>, usize, Vec<Vec<Meanwhile>>)| {
        let store = on.open();
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
        Ok(())
    };
    on.runner().run(&histories, walk).unwrap();
}

fn states_only_go_forward(on: &Engine) {
    let all = vec![Step::Accept, Step::Run, Step::Finish, Step::Forget, Step::Reopen];
    let histories = prop::collection::vec((0_usize..3, prop::sample::select(all)), 0..24);
    let walk = |steps: Vec<(usize, Step)>| {
        let mut store = on.open();
        // 0: none, 1: queued, 2: running, 3: ended.
        let mut states = [0; 3];
        // Each end is another one: in a cluster the same one again is no error.
        for (now, (which, step)) in (3..).zip(steps) {
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
                    let ended = store.finish(finish(&id, now)).is_ok();
                    prop_assert_eq!(ended, *state == 1 || *state == 2);
                    *state = if ended { 3 } else { *state };
                }
                Step::Forget => {
                    let ended = store.expire(Time::from_unix_millis(100), u64::MAX).unwrap();
                    prop_assert_eq!(ended.len(), states.iter().filter(|it| **it == 3).count());
                    store.forget(ended).unwrap();
                    states = states.map(|it| if it == 3 { 0 } else { it });
                }
                Step::Reopen => store = store.reopen(),
            }
            let ended = states.iter().filter(|it| **it == 3).count() as u64;
            prop_assert_eq!(store.stored_bytes(&subject("alice")).unwrap(), 100 * ended);
        }
        let count = |state| states.iter().filter(|it| **it == state).count() as u64;
        prop_assert_eq!(store.counts(), [count(1), count(2), count(3)]);
        Ok(())
    };
    on.runner().run(&histories, walk).unwrap();
}
