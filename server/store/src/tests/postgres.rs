//! What only a store that nodes share does.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use sandbox_api::service::Time;
use sandbox_api::{ErrorKind, Usage};

use super::{event, finish, new, start, subject};
use crate::fixture::{Postgres, Stop};
use crate::postgres::{Database, Parameters, bind};
use crate::*;

/// A node of a cluster: its store, and its session there.
pub(super) struct Clustered {
    pub store: Store,
    config: DatabaseConfig,
    node: String,
    session: i64,
}

impl Clustered {
    /// The first node of a new cluster.
    pub fn new(url: &str) -> Self {
        let config = DatabaseConfig::new(url);
        assert!(Store::initialize(&config, None).unwrap().is_new);
        Self::join(config, "n1")
    }

    fn join(config: DatabaseConfig, node: &str) -> Self {
        let store = Store::connect(&config).unwrap();
        let session = Self::begin_session(&store, node).unwrap();
        Self { store, config, node: node.to_owned(), session }
    }

    fn begin_session(store: &Store, node: &str) -> Result<i64, StoreError> {
        store.cluster().unwrap().begin_session(&NewSession {
            node: node.to_owned(),
            name: node.to_owned(),
            address: "127.0.0.1:1".to_owned(),
            certificate: [7; 32],
            version: "0".to_owned(),
            slots: 1,
            config_digest: String::new(),
        })
    }

    /// Another node of the same cluster.
    fn other(&self, node: &str) -> Self {
        Self::join(self.config.clone(), node)
    }

    /// The same session with another connection, as if its process had been away.
    pub fn reopen(self) -> Self {
        let Self { store, config, node, session } = self;
        drop(store);
        let store = Store::connect(&config).unwrap();
        database(&store).set_session(&node, session);
        Self { store, config, node, session }
    }

    pub fn accept(&self, mut new: NewExecution) -> Result<Accepted, StoreError> {
        new.placement = Placement {
            node: self.node.clone(),
            session: self.session,
            subject_limit: 1000,
            max_queued: 100_000,
            max_queued_bytes: 1 << 30,
            ..Placement::default()
        };
        new.start = new.start.map(|start| Start { session: Some(self.session), ..start });
        self.store.accept(new)
    }

    /// Claims the next execution, of any subject, and runs it.
    pub fn mark_running(&self, id: &str, start: Start) -> Result<(), StoreError> {
        let claim = "UPDATE executions SET session = $1, node = $2, claims = claims + 1
             WHERE id = $3 AND session IS NULL AND ended_at IS NULL
             RETURNING dequeue(seq, subject) IS NULL";
        self.sql(claim, &[bind(&self.session), bind(&self.node), bind(&id)]);
        self.store.mark_running(id, Start { session: Some(self.session), ..start })
    }

    /// Ends an execution, whether it waits or this session holds it.
    pub fn finish(&self, end: Finish) -> Result<(), StoreError> {
        let held = "SELECT session FROM executions WHERE id = $1 AND session IS NOT NULL";
        let is_held = !self.sql(held, &[bind(&end.id)]).is_empty();
        self.store.finish(Finish { session: is_held.then_some(self.session), ..end })
    }

    fn sql(&self, statement: &str, parameters: Parameters<'_>) -> Vec<tokio_postgres::Row> {
        database(&self.store).coordinate(Duration::from_secs(10), statement, parameters).unwrap()
    }

    fn count(&self, statement: &str) -> i64 {
        self.sql(statement, &[])[0].get(0)
    }

    /// Ends its session, as the others do when it is dead.
    fn end_session(&self) {
        self.sql("DELETE FROM sessions WHERE id = $1", &[bind(&self.session)]);
    }
}

fn database(store: &Store) -> &Arc<Database> {
    match &store.0 {
        Backend::Postgres(store) => &store.database,
        Backend::Sqlite(_) => unreachable!("it is a cluster's"),
    }
}

#[test]
fn copy_of_a_data_directory_ends_one_session_of_its_original_and_no_more() {
    let server = Postgres::shared();
    let original = Clustered::new(&server.database());
    let copy = original.other("n1");
    let refused = Clustered::begin_session(&original.store, "n1").unwrap_err();
    assert!(refused.to_string().contains("is the node n1 now"), "{refused}");
    assert_eq!(original.count("SELECT count(*) FROM sessions"), 1);
    copy.end_session();
    Clustered::begin_session(&original.store, "n1").unwrap();
}

#[test]
fn what_had_not_ended_in_a_restored_database_is_not_run_again() {
    let server = Postgres::shared();
    let node = Clustered::new(&server.database());
    for (number, id) in (1..).zip(["waits", "runs", "ended"]) {
        node.accept(new(id, number)).unwrap();
    }
    node.mark_running("runs", start(2)).unwrap();
    node.finish(finish("ended", 3)).unwrap();
    let Clustered { store, config, .. } = node;
    assert!(matches!(Store::restored(&config), Err(StoreError::NodesConnected)));
    drop(store);
    // The server notices a while later that its connections are closed.
    let since = Instant::now();
    let restored = loop {
        match Store::restored(&config) {
            Err(StoreError::NodesConnected) if since.elapsed() < Duration::from_secs(60) => {
                thread::yield_now();
            }
            restored => break restored,
        }
    };
    assert_eq!(restored.unwrap(), 2);
    let node = Clustered::join(config, "n2");
    assert_eq!(node.count("SELECT count(*) FROM queue"), 0);
    let orphans = "SELECT count(*) FROM executions WHERE ended_at IS NULL AND status = 'running'
         AND session NOT IN (SELECT id FROM sessions)";
    assert_eq!(node.count(orphans), 2);
}

#[test]
fn cluster_is_initialized_once_and_other_schemas_are_refused() {
    let server = Postgres::shared();
    let config = DatabaseConfig::new(server.database());
    assert!(matches!(Store::connect(&config), Err(StoreError::NotInitialized)));
    assert!(matches!(Store::migrate(&config), Err(StoreError::NotInitialized)));
    let lease = Some(Duration::from_secs(3));
    let made = Store::initialize(&config, lease).unwrap();
    assert!(made.is_new);
    for again in [None, lease] {
        let found = Store::initialize(&config, again).unwrap();
        assert_eq!(found, Initialized { is_new: false, ..made.clone() });
    }
    let other = Store::initialize(&config, Some(Duration::from_secs(4))).unwrap_err();
    assert!(other.to_string().ends_with("a lease of 3000 ms"), "{other}");
    let store = Store::connect(&config).unwrap();
    assert_eq!(store.cluster().unwrap().identity().id, made.id);
    let (from, to) = Store::migrate(&config).unwrap();
    assert_eq!(from, to);
    for (version, hint) in [(0, "database migrate"), (99, "newer sandboxctl")] {
        let set = format!("UPDATE cluster SET schema_version = {version}");
        database(&store).coordinate(Duration::from_secs(10), &set, &[]).unwrap();
        let error = Store::connect(&config).unwrap_err();
        assert!(error.hint().unwrap().contains(hint), "{error}");
    }
    assert!(matches!(Store::migrate(&config), Err(StoreError::SchemaVersion { found: 99, .. })));
}

/// It counts what waits once.
#[test]
fn transaction_that_accepts_many_accepts_no_more_than_may_wait() {
    let server = Postgres::shared();
    let node = Clustered::new(&server.database());
    let accept = |name: &str, most: i64, bytes: i64| {
        let many = format!(
            "SELECT (accept('{name}' || n, '{name}', 'script', '1234', false, '{{}}', NULL, NULL, NULL, 1,
                NULL, NULL, NULL, NULL, NULL, '{{}}', '{{}}', 0, '', 9, {most}, {bytes}, NULL)).verdict
             FROM generate_series(1, 5) AS n"
        );
        let rows = node.sql(&many, &[]);
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    assert_eq!(accept("a", 3, 1000), ["queued", "queued", "queued", "full", "full"]);
    // Those of the transaction before count too; a tenth more is for the first of a subject.
    assert_eq!(accept("b", 4, 1000), ["queued", "full", "full", "full", "full"]);
    assert_eq!(accept("c", 9, 26), ["queued", "queued", "full", "full", "full"]);
    assert_eq!(node.count("SELECT count(*) FROM queue"), 6);
}

#[test]
fn claim_asks_what_else_waits_only_with_a_slot_left() {
    let server = Postgres::shared();
    let node = Clustered::new(&server.database());
    let claim = |slots| {
        let claims = node.store.cluster().unwrap().claim(node.session, slots, 9).unwrap();
        (claims.claimed.len(), claims.has_more)
    };
    node.accept(new("a", 1)).unwrap();
    assert_eq!(claim(1), (1, true));
    assert_eq!(claim(1), (0, false));
    node.accept(new("b", 1)).unwrap();
    assert_eq!(claim(2), (1, false));
}

/// One in SQL that cannot be inlined is planned at each call: there is none, also where there was one.
#[test]
fn functions_are_planned_once_for_a_connection() {
    let server = Postgres::shared();
    let node = Clustered::new(&server.database());
    let in_sql = "SELECT count(*) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
         WHERE p.pronamespace = 'sandboxctl'::regnamespace AND l.lanname = 'sql'";
    assert_eq!(node.count(in_sql), 0);
    let older = "CREATE OR REPLACE FUNCTION held(_subject text) RETURNS bigint LANGUAGE sql STABLE
         AS 'SELECT 0::bigint'";
    node.sql(older, &[]);
    assert_eq!(node.count(in_sql), 1);
    Store::migrate(&node.config).unwrap();
    assert_eq!(node.count(in_sql), 0);
}

#[test]
fn url_with_a_password_or_without_a_verified_server_is_refused() {
    for (url, why) in [
        ("postgres://u:secret@127.0.0.1/d", "password"),
        ("postgres://u@db.internal/d?sslmode=require", "sslmode=require"),
        ("postgres://u@db.internal/d?unknown=1", "unknown"),
        ("nonsense", ""),
    ] {
        let error = Store::connect(&DatabaseConfig::new(url)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, StoreError::Refused { .. }) && text.contains(why), "{text}");
        assert!(!text.contains("secret"));
    }
    let missing = DatabaseConfig {
        ca: Some("/nonexistent.pem".into()),
        ..DatabaseConfig::new("postgres://u@db.internal/d")
    };
    assert!(Store::connect(&missing).unwrap_err().to_string().contains("/nonexistent.pem"));
}

#[test]
fn database_that_is_not_there_is_an_error_that_passes() {
    let mut server = Postgres::start();
    let node = Clustered::new(&server.database());
    node.accept(new("a", 1)).unwrap();
    server.stop(Stop::Immediate);
    for error in [
        node.accept(new("b", 1)).unwrap_err(),
        node.store.execution(&subject("alice"), "a").unwrap_err(),
        node.store.check_writable().unwrap_err(),
        Store::connect(&node.config).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Unavailable(_)) && error.is_transient(), "{error}");
    }
    server.start_again();
    node.accept(new("b", 1)).unwrap();
    assert!(node.store.execution(&subject("alice"), "a").unwrap().is_some());
    assert_eq!(node.store.status(Time::now()).unwrap().queued, 2);
}

#[test]
fn user_that_the_server_refuses_is_a_mistake_in_the_configuration() {
    let server = Postgres::shared();
    let url = server.database().replace("//postgres@", "//nobody@");
    let error = Store::connect(&DatabaseConfig::new(url)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("nobody"), "{error}");
    assert!(error.hint().unwrap().contains("SANDBOXCTL_DATABASE_PASSWORD"));
}

#[test]
fn tables_that_are_not_in_the_search_path_are_not_missing() {
    let server = Postgres::shared();
    let url = server.database();
    // What the user has, if a pooler drops the settings of a connection.
    let pooled = DatabaseConfig::new(format!("{url}?options=-c%20search_path%3Dpublic"));
    assert!(matches!(Store::connect(&pooled), Err(StoreError::NotInitialized)));
    Store::initialize(&DatabaseConfig::new(url), None).unwrap();
    let error = Store::connect(&pooled).unwrap_err();
    assert!(error.hint().unwrap().contains("ALTER ROLE"), "{error}");
    assert!(error.to_string().contains("search path"), "{error}");
}

#[test]
fn host_that_does_not_answer_is_passed_over() {
    let server = Postgres::shared();
    let url = server.database();
    let (_, name) = url.rsplit_once('/').unwrap();
    // It takes connections, as a server does that stands still.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let [silent, port] = [silent.local_addr().unwrap().port(), server.port()];
    let url = format!("postgres://postgres@127.0.0.1:{silent},127.0.0.1:{port}/{name}");
    Store::initialize(&DatabaseConfig::new(url), None).unwrap();
}

#[test]
fn too_many_connections_are_an_error_that_passes_and_says_so() {
    let server = Postgres::shared();
    let url = server.database();
    let (_, name) = url.rsplit_once('/').unwrap();
    let role = format!("CREATE ROLE {name} LOGIN CONNECTION LIMIT 0");
    _ = server.rows("postgres", &role);
    let url = url.replace("//postgres@", &format!("//{name}@"));
    let error = Store::connect(&DatabaseConfig::new(url)).unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)) && error.is_transient(), "{error}");
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |&it| it.source());
    let text: Vec<_> = causes.map(ToString::to_string).collect();
    assert!(text.iter().any(|cause| cause.contains("too many connections")), "{text:?}");
}

/// A session that the others have ended changes nothing: its row is the fence.
#[test]
fn session_that_has_ended_changes_nothing() {
    let server = Postgres::shared();
    let node = Clustered::new(&server.database());
    let other = node.other("n2");
    for id in ["claimed", "runs"] {
        node.accept(new(id, 1)).unwrap();
    }
    node.mark_running("runs", start(2)).unwrap();
    let claim = "UPDATE executions SET session = $1 WHERE id = 'claimed'";
    node.sql(claim, &[bind(&node.session)]);
    // The others end what it held, and another session takes what had not begun.
    node.sql("UPDATE executions SET session = $1", &[bind(&other.session)]);
    let of_mine = |id: &str| Finish { session: Some(node.session), ..finish(id, 3) };
    let mine = Start { session: Some(node.session), ..start(2) };
    let is_fenced = |made: Result<(), _>| matches!(made, Err(StoreError::Fenced { .. }));
    assert!(is_fenced(node.store.mark_running("claimed", mine)));
    assert!(is_fenced(node.store.finish(of_mine("runs"))));
    node.store.append_events(vec![("runs".to_owned(), vec![event(5)])]).unwrap();
    assert!(node.store.events("runs", 0, 9).unwrap().is_empty());
    assert_eq!(node.store.usage(&subject("alice")).unwrap().executions, 0);
    let theirs = Finish { session: Some(other.session), ..finish("runs", 4) };
    other.store.finish(theirs.clone()).unwrap();
    // The same end again is that end; another one is refused.
    other.store.finish(theirs).unwrap();
    assert!(is_fenced(node.store.finish(of_mine("runs"))));
    assert_eq!(node.store.usage(&subject("alice")).unwrap().executions, 1);
    node.end_session();
    let begun = node.accept(NewExecution { start: Some(start(2)), ..new("late", 1) }).unwrap();
    assert_eq!(begun, Accepted::Queued);
}

#[test]
fn executions_whose_session_has_ended_are_orphans() {
    let server = Postgres::shared();
    let node = Clustered::new(&server.database());
    let other = node.other("n2");
    for id in ["waits", "claimed", "runs", "secret", "secret elsewhere"] {
        node.accept(new(id, 1)).unwrap();
    }
    let claim = "UPDATE executions SET session = $1 WHERE id = 'claimed'
         RETURNING dequeue(seq, subject) IS NULL";
    node.sql(claim, &[bind(&node.session)]);
    node.mark_running("runs", start(2)).unwrap();
    let lane = "UPDATE queue SET lane = '#' || $1
         WHERE execution = (SELECT seq FROM executions WHERE id = $2)";
    node.sql(lane, &[bind(&node.session), bind(&"secret")]);
    node.sql(lane, &[bind(&other.session), bind(&"secret elsewhere")]);
    let orphans = || -> Vec<_> {
        let found = other.store.cluster().unwrap().orphans().unwrap();
        found.into_iter().map(|it| (it.execution.summary.id, it.session)).collect()
    };
    assert!(orphans().is_empty());
    node.end_session();
    let held = Some(node.session);
    let expected = [("claimed", held), ("runs", held), ("secret", None)];
    assert_eq!(orphans(), expected.map(|(id, session)| (id.to_owned(), session)));
}

#[test]
fn beat_says_what_the_others_do_and_what_waits() {
    let server = Postgres::shared();
    let node = Clustered::new(&server.database());
    let beat = |of: &Clustered| of.store.cluster().unwrap().beat(of.session, 0, 0).unwrap();
    let nothing = Beat {
        drain: Drain::No,
        cancel_asked: Vec::new(),
        others: Vec::new(),
        waiting: 0,
        oldest: None,
    };
    assert_eq!(beat(&node), nothing);
    let others = [node.other("n2"), node.other("n3")];
    _ = beat(&others[1]);
    for (id, created) in [("runs", 1), ("runs too", 1), ("late", 9), ("early", 5)] {
        node.accept(new(id, created)).unwrap();
    }
    for id in ["runs", "runs too"] {
        node.mark_running(id, start(2)).unwrap();
    }
    assert!(node.store.cluster().unwrap().ask_cancel(&subject("alice"), "runs").unwrap());
    let mut said = beat(&node);
    said.others.sort_unstable();
    let expected = Beat {
        drain: Drain::No,
        cancel_asked: vec!["runs".to_owned()],
        others: vec![(others[0].session, 0), (others[1].session, 1)],
        waiting: 2,
        oldest: Some(Time::from_unix_millis(5)),
    };
    assert_eq!(said, expected);
    assert!(beat(&others[0]).cancel_asked.is_empty());
}

/// To compile a statement takes longer than to run it.
#[test]
fn database_compiles_no_statement() {
    let server = Postgres::shared();
    let node = Clustered::new(&server.database());
    let setting = |rows: Vec<tokio_postgres::Row>| rows[0].get::<_, String>(0);
    assert_eq!(setting(node.sql("SHOW jit", &[])), "off");
    assert_eq!(setting(database(&node.store).query("SHOW jit", &[]).unwrap()), "off");
}

/// Where a proxy between a store and its database loses the answer to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Loss {
    None,
    /// The commit does not arrive.
    Commit,
    /// It arrives, and its answer does not.
    Answer,
    /// It arrives after its connection was given up.
    Late,
}

/// A proxy that loses what comes next; what is late waits until something else waits for a lock. Returns its port.
fn proxy(to: u16, next: Arc<AtomicU8>, direct: Store) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) =
                (client.unwrap(), TcpStream::connect(("127.0.0.1", to)).unwrap());
            let (mut answers, mut asker) =
                (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || {
                _ = std::io::copy(&mut answers, &mut asker);
                _ = asker.shutdown(Shutdown::Both);
            });
            let (next, direct) = (next.clone(), direct.clone());
            thread::spawn(move || pass_on(client, server, &next, &direct));
        }
    });
    port
}

fn pass_on(mut client: TcpStream, mut server: TcpStream, next: &AtomicU8, direct: &Store) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = client.read(&mut buffer) {
        let sent = &buffer[..read];
        let is_commit = sent.windows(7).any(|it| it == b"COMMIT\0");
        let loss = if is_commit { next.swap(Loss::None as u8, Ordering::SeqCst) } else { 0 };
        if loss != 0 {
            // The client learns at once that its connection is gone.
            client.shutdown(Shutdown::Both).unwrap();
        }
        if loss == Loss::Late as u8 {
            until_a_transaction_waits(direct);
        }
        if loss != Loss::Commit as u8 && server.write_all(sent).is_err() || loss != 0 {
            break;
        }
    }
    // What was sent before is still done.
    _ = server.shutdown(Shutdown::Write);
}

fn until_a_transaction_waits(store: &Store) {
    let waits = "SELECT 1 FROM pg_stat_activity
         WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let deadline = Instant::now() + Duration::from_secs(60);
    while database(store).query(waits, &[]).unwrap().is_empty() {
        assert!(Instant::now() < deadline, "no transaction waits for the commit");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn change_whose_answer_is_lost_is_made_once() {
    let server = Postgres::shared();
    let url = server.database();
    let direct = Clustered::new(&url);
    let next = Arc::new(AtomicU8::new(0));
    let port = proxy(server.port(), next.clone(), direct.store.clone());
    let through = url.replace(&format!(":{}/", server.port()), &format!(":{port}/"));
    let node = Clustered::join(DatabaseConfig::new(through), "n2");
    let mut made = 0;
    for loss in [Loss::Commit, Loss::Answer, Loss::Late, Loss::Answer, Loss::Commit] {
        next.store(loss as u8, Ordering::SeqCst);
        // Each adds one: twice would show.
        let used = Usage { wall_ms: 1, ..Usage::default() };
        node.store.add_usage(&subject("alice"), Time::from_unix_millis(1), used).unwrap();
        made += 1;
        assert_eq!(next.load(Ordering::SeqCst), 0, "{loss:?} came to pass");
        let counted = direct.store.usage(&subject("alice")).unwrap();
        assert_eq!((counted.executions, counted.wall_ms), (made, made), "{loss:?}");
    }
    assert_eq!(node.store.cluster().unwrap().figures().commits, made);
}

/// Batches that took their locks in different orders deadlocked within seconds.
#[test]
fn batches_of_nodes_do_not_stop_each_other() {
    let server = Postgres::shared();
    let url = server.database();
    let (_, name) = url.rsplit_once('/').unwrap();
    let first = Clustered::new(&url);
    let nodes = [first.other("n2"), first.other("n3"), first];
    let together = Barrier::new(nodes.len() * 6);
    thread::scope(|scope| {
        for (node, caller) in nodes.iter().flat_map(|node| (0..6).map(move |it| (node, it))) {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                for number in 0..20 {
                    let id = format!("{}-{caller}-{number}", node.node);
                    let of = subject(&format!("s{}", (number * 7 + caller * 3) % 10));
                    let start = (number % 2 == 0).then(|| start(2));
                    let key = Some((format!("k{number}"), "d".to_owned()));
                    let new = NewExecution { subject: of, start, key, ..new(&id, 1) };
                    match node.accept(new).unwrap() {
                        Accepted::New | Accepted::Queued => node.finish(finish(&id, 3)).unwrap(),
                        Accepted::Same(_) => {}
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    let keys = nodes[0].count("SELECT count(*) FROM idempotency_keys");
    assert_eq!(nodes[0].count("SELECT count(*) FROM executions"), keys);
    assert_eq!(nodes[0].count("SELECT count(*) FROM queue"), 0);
    let used = nodes[0].count("SELECT sum(executions)::bigint FROM usage");
    assert_eq!(used, keys);
    // A connection adds what it counted when it ends.
    drop(nodes);
    let deadline = Instant::now() + Duration::from_secs(60);
    let of_database = |figure: &str| {
        let query = format!("SELECT {figure} FROM pg_stat_database WHERE datname = '{name}'");
        server.rows("postgres", &query)[0][0].clone()
    };
    while of_database("numbackends") != "0" {
        assert!(Instant::now() < deadline, "connections stay");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(of_database("deadlocks"), "0");
}

#[test]
fn key_that_three_nodes_get_at_once_is_of_one_execution() {
    let server = Postgres::shared();
    let first = Clustered::new(&server.database());
    let nodes = [first.other("n2"), first.other("n3"), first];
    for number in 0..30 {
        let accept = |node: &Clustered| {
            let key = Some((format!("k{number}"), "d".to_owned()));
            let id = format!("{number}-{}", node.node);
            (id.clone(), node.accept(NewExecution { key, ..new(&id, 1) }).unwrap())
        };
        let accepted: Vec<_> = thread::scope(|scope| {
            let each: Vec<_> = nodes.iter().map(|node| scope.spawn(|| accept(node))).collect();
            each.into_iter().map(|it| it.join().unwrap()).collect()
        });
        let ids = accepted.iter().map(|(id, accepted)| match accepted {
            Accepted::Same(same) => same,
            _ => id,
        });
        let ids: std::collections::BTreeSet<_> = ids.collect();
        assert_eq!(ids.len(), 1, "{accepted:?}");
    }
    assert_eq!(nodes[0].count("SELECT count(*) FROM executions"), 30);
}

#[test]
fn report_says_what_the_database_is_like() {
    let server = Postgres::shared();
    let config = DatabaseConfig::new(server.database());
    let before = Store::report(&config).unwrap();
    assert_eq!((before.cluster, before.commit), (None, None));
    let made = Store::initialize(&config, None).unwrap();
    let report = Store::report(&config).unwrap();
    assert_eq!(report.cluster, Some((made.id, report.known_schema)));
    assert_eq!(report.standbys, Standbys::None);
    assert!(report.unsafe_settings.is_empty(), "{report:?}");
    assert!(report.commit.is_some() && report.connections > 0 && report.max_connections > 0);
}

#[test]
fn server_is_trusted_by_its_certificate_alone() {
    let server = Postgres::start();
    let url = server.database();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let ran = Command::new(program).args(arguments).current_dir(dir.path()).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    };
    run(
        "openssl",
        &[
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
        ],
    );
    if rustix::process::geteuid().is_root() {
        run("chown", &["postgres", "key.pem"]);
    }
    for (setting, value) in [
        ("ssl_cert_file", dir.path().join("cert.pem").display().to_string()),
        ("ssl_key_file", dir.path().join("key.pem").display().to_string()),
        ("ssl", "on".to_owned()),
    ] {
        _ = server.rows("postgres", &format!("ALTER SYSTEM SET {setting} = '{value}'"));
    }
    _ = server.rows("postgres", "SELECT pg_reload_conf()");
    let deadline = Instant::now() + Duration::from_secs(60);
    let encrypted = "SELECT 1 FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl";
    while server.rows("postgres", encrypted).is_empty() {
        assert!(Instant::now() < deadline, "the server has no TLS");
        thread::sleep(Duration::from_millis(10));
    }
    let report = |host: &str, ca: Option<PathBuf>| {
        let url = format!("{}?sslmode=verify-full", url.replace("127.0.0.1", host));
        Store::report(&DatabaseConfig { ca, ..DatabaseConfig::new(url) })
    };
    let certificate = Some(dir.path().join("cert.pem"));
    report("localhost", certificate.clone()).unwrap();
    // Of another name, and of no authority that the system trusts.
    assert!(report("127.0.0.1", certificate).is_err());
    assert!(report("localhost", None).is_err());
}
