//! S6: many sessions with many executions each, of which nothing runs: this process renews the sessions, as nodes do,
//! and one real node looks at them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use sandbox_api::service::ExecutionKind;
use sandbox_api::{EngineKind, Limits};
use sandbox_store::fixture::Postgres;
use sandbox_store::{
    Accepted, Cluster, DatabaseConfig, Lane, NewExecution, Placement, Start, Store, StoreError,
};
use serde_json::Map;

use super::{MANY, Place, blocking, database, new_session, subject};
use crate::bench::Bench;
use crate::error::Error;
use crate::process;
use crate::report::{Row, Target, Unit};
use crate::service::Service;

/// Processes, each with its connections and as many sessions.
const PROCESSES: usize = 20;
const SESSIONS_EACH: usize = 10;
/// Executions that each session holds.
const HELD: usize = 50;
/// The lease unless it is configured, and how often a session is renewed in it.
const LEASE: Duration = Duration::from_secs(15);
const BEATS: u32 = 5;
/// For how long the database is watched at a time, and how often.
const WATCH: Duration = Duration::from_secs(10);
const WATCHES: usize = 2;
/// What was written before is written out.
const SETTLE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(20);

/// Where an execution goes that is accepted.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// It waits.
    Queue,
    /// These sessions begin it, in turns.
    Sessions(&'a [i64]),
}

/// Accepts executions of these numbers.
pub fn accept(store: &Store, numbers: Range<usize>, origin: Origin<'_>) -> Result<(), StoreError> {
    let (sender, accepted) = mpsc::channel();
    for number in numbers.clone() {
        let session = match origin {
            Origin::Queue => None,
            Origin::Sessions(sessions) => Some(sessions[number % sessions.len()]),
        };
        let at = store.now();
        let start = session.map(|session| Start {
            at,
            engine: EngineKind::Embedded,
            limits: Limits::default(),
            used: None,
            session: Some(session),
        });
        let new = NewExecution {
            id: format!("{number:024x}"),
            subject: subject(number),
            kind: ExecutionKind::Script,
            request: r#"{"script":"return"}"#.to_owned(),
            has_secrets: false,
            key: None,
            created_at: at,
            start,
            metadata: Map::new(),
            image: None,
            sandbox: None,
            generation: None,
            events: Vec::new(),
            trace_parent: None,
            placement: Placement {
                node: String::new(),
                session: session.unwrap_or_default(),
                lane: Lane::Any,
                subject_limit: MANY as u64,
                max_queued: MANY as u64,
                max_queued_bytes: 1 << 40,
            },
        };
        let sender = sender.clone();
        store.accept_then(new, move |made| _ = sender.send(made));
    }
    drop(sender);
    for made in accepted.iter().take(numbers.len()) {
        assert_eq!(made?, Accepted::New, "it is accepted as it is meant to be");
    }
    Ok(())
}

/// Sessions that are renewed until this ends.
struct Fleet {
    clusters: Vec<(Cluster, Vec<i64>)>,
    has_ended: Arc<AtomicBool>,
    /// The first session is not renewed any more.
    is_silent: Arc<AtomicBool>,
    /// When it was renewed last.
    last_beat: Arc<Mutex<Instant>>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

impl Fleet {
    /// Begins the sessions and what they hold, and renews them.
    fn start(database: &DatabaseConfig) -> Result<Self, StoreError> {
        let mut fleet = Self {
            clusters: Vec::new(),
            has_ended: Arc::default(),
            is_silent: Arc::default(),
            last_beat: Arc::new(Mutex::new(Instant::now())),
        };
        for process in 0..PROCESSES {
            let store = Store::connect(database)?;
            let cluster = store.cluster().expect("it has one").clone();
            let mut sessions = Vec::new();
            for session in 0..SESSIONS_EACH {
                let name = format!("hollow-{process}-{session}");
                sessions.push(cluster.begin_session(&new_session(&name, HELD))?);
            }
            let first = process * SESSIONS_EACH * HELD;
            let numbers = first..first + SESSIONS_EACH * HELD;
            accept(&store, numbers, Origin::Sessions(&sessions))?;
            fleet.renew(cluster.clone(), sessions.clone());
            fleet.clusters.push((cluster, sessions));
        }
        Ok(fleet)
    }

    /// Renews the sessions of one more process, each as often as its node would, evenly.
    fn renew(&self, cluster: Cluster, sessions: Vec<i64>) {
        let has_first = self.clusters.is_empty();
        let pause = LEASE / BEATS / u32::try_from(SESSIONS_EACH).unwrap_or(1);
        let [has_ended, is_silent] = [&self.has_ended, &self.is_silent].map(Arc::clone);
        let last_beat = self.last_beat.clone();
        thread::spawn(move || {
            let mut due = Instant::now();
            for (turn, session) in sessions.iter().enumerate().cycle() {
                if has_ended.load(Ordering::Relaxed) {
                    return;
                }
                let is_first = has_first && turn == 0;
                if !(is_first && is_silent.load(Ordering::Relaxed)) {
                    // A session that is not renewed is declared dead, and then they are counted.
                    _ = cluster.beat(*session, u32::try_from(HELD).unwrap_or(u32::MAX), 0);
                    if is_first {
                        *last_beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    }
                }
                due += pause;
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
    }
}

/// S6: what the beats cost the database, and how long it takes until a death is seen.
pub async fn fleet(place: Place<'_>) -> Result<Vec<Row>, Error> {
    let Place { bench, postgres, .. } = place;
    let database = database(postgres, LEASE)?;
    let data = bench.folder("s6")?.join("data");
    let node = Service::with_settings(bench, &data, 0, Some(&database.url), &[]).await?;
    let done = beside(bench, postgres, &database).await;
    node.stop().await;
    done
}

async fn beside(
    bench: &Bench,
    postgres: &Postgres,
    database: &DatabaseConfig,
) -> Result<Vec<Row>, Error> {
    tokio::time::sleep(SETTLE).await;
    let alone = watch(bench, postgres, 1).await?;
    let of = database.clone();
    let fleet = blocking("a fleet", move || Fleet::start(&of)).await?;
    tokio::time::sleep(SETTLE).await;
    let beats = watch(bench, postgres, WATCHES).await?;
    let alive = super::figure(postgres, database, "SELECT count(*) FROM sessions")?;
    let sessions = PROCESSES * SESSIONS_EACH;
    #[expect(clippy::cast_precision_loss, reason = "a fleet is small")]
    if alive < sessions as f64 {
        return Err(Error::Operation(format!(
            "the beat of {sessions} sessions ({alive} are alive)"
        )));
    }
    fleet.is_silent.store(true, Ordering::Relaxed);
    let (cluster, victims) = &fleet.clusters[0];
    let victim = victims[0];
    let seen = loop {
        bench.check()?;
        let cluster = cluster.clone();
        let held = blocking("a look", move || cluster.holdings(victim)).await?.held.len();
        if held == 0 {
            let last = *fleet.last_beat.lock().unwrap_or_else(PoisonError::into_inner);
            break last.elapsed().as_secs_f64();
        }
        tokio::time::sleep(POLL).await;
    };
    let bound = (LEASE + LEASE / BEATS * 2).as_secs_f64();
    let share = WATCH.as_secs_f64() * 0.05;
    Ok(vec![
        Row::figure(
            "S6: PostgreSQL's processor time in 10 s, one node alone",
            Unit::Seconds,
            alone,
        ),
        Row::figure(
            format!("S6: the same, {sessions} sessions more, {HELD} running each"),
            Unit::Seconds,
            beats,
        )
        .target(Target::median_at_most(share)),
        Row::figure(
            format!("S6: last beat of one to the end of its {HELD} executions, lease 15 s"),
            Unit::Seconds,
            vec![seen],
        )
        .target(Target::median_at_most(bound)),
    ])
}

/// The processor time of the database's processes, by windows.
async fn watch(bench: &Bench, postgres: &Postgres, windows: usize) -> Result<Vec<f64>, Error> {
    let mut times = Vec::new();
    for _ in 0..windows {
        bench.check()?;
        let processes = postgres.rows("postgres", "SELECT pid FROM pg_stat_activity");
        let processes = processes.iter().filter_map(|row| row.first()?.parse::<u32>().ok());
        let time = |pid| Some((pid, process::processor_time_of(pid).ok()?));
        let before: Vec<(u32, Duration)> = processes.filter_map(time).collect();
        tokio::time::sleep(WATCH).await;
        let spent = before
            .into_iter()
            .filter_map(|(pid, before)| process::processor_time_of(pid).ok()?.checked_sub(before));
        times.push(spent.sum::<Duration>().as_secs_f64());
    }
    Ok(times)
}
