//! S1, S2, S3, S7 and S9: the program, with the embedded engine.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use sandbox_api::service::Time;
use serde_json::Value;

use super::{Place, SHORT_LEASE, database, rows};
use crate::bench::{Bench, Counts, Entry};
use crate::error::Error;
use crate::report::{Measurement, Row, Target, Unit, compare};
use crate::scenario::streams::Content;
use crate::service::{Connection, Service};

/// Clients at one time in S1, and the sandboxes that are ready for them.
const CLIENTS: usize = 16;
const WIDE: [(&str, &str); 2] =
    [("SANDBOXCTL_SERVER_CONCURRENCY", "16"), ("SANDBOXCTL_SERVER_SUBJECT_CONCURRENCY", "256")];
/// A node that runs one thing.
const NARROW: [(&str, &str); 2] =
    [("SANDBOXCTL_SERVER_CONCURRENCY", "1"), ("SANDBOXCTL_SERVER_SUBJECT_CONCURRENCY", "256")];
const DEAF: (&str, &str) = ("SANDBOXCTL_SERVER_DATABASE_LISTEN", "false");
/// Files, as large as what S9 reads.
const LARGE: [(&str, &str); 3] = [
    ("SANDBOXCTL_IO_ENABLED", "true"),
    ("SANDBOXCTL_IO_MAX_BYTES", "1GiB"),
    ("SANDBOXCTL_FILESYSTEM_MAX_FILE_SIZE", "1GiB"),
];
const FILE: u64 = 256 << 20;
/// Runs until it is ended, and takes little of a processor.
const LOOP: &str = r#"{"script":"while true do end","limits":{"cpus":0.05,"timeout_ms":600000}}"#;
const QUICK: &str = r#"{"script":"return 1"}"#;
/// At the node that has what is asked for, and at one that has not.
const WAYS: [&str; 2] = ["direct", "through another node"];
/// How often a node is killed, and what runs on it.
const KILLS: usize = 6;
const VICTIMS: usize = 3;
/// How long something that is waited for may take.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// S1: the same service with its own SQLite, and with the database: 16 requests at one time, each for a sandbox that is ready.
pub async fn one_node(place: Place<'_>) -> Result<Vec<Row>, Error> {
    let Place { bench, counts, postgres } = place;
    let database = database(postgres, SHORT_LEASE)?;
    let folder = bench.folder("s1")?;
    let alone = Service::with_settings(bench, &folder.join("alone"), CLIENTS, None, &WIDE).await?;
    let node =
        Service::with_settings(bench, &folder.join("node"), CLIENTS, Some(&database.url), &WIDE)
            .await?;
    let done = bursts(bench, counts, [&alone, &node]).await;
    alone.stop().await;
    node.stop().await;
    let [alone, node] = done?;
    let what = format!("S1: POST ?wait, {CLIENTS} at once");
    let mut rows = vec![
        Row::figure(format!("{what}, SQLite"), Unit::Seconds, alone),
        Row::figure(format!("{what}, `--database`"), Unit::Seconds, node),
    ];
    compare(&mut rows, 1, 0, Some(Target::ratio_at_most(1.35)));
    let slow = |row: &Row, what: &str| {
        Row::figure(
            format!("S1: p99 of that, {what}"),
            Unit::Seconds,
            p99(row).into_iter().collect(),
        )
    };
    rows.extend([slow(&rows[0], "SQLite"), slow(&rows[1], "`--database`")]);
    compare(&mut rows, 3, 2, Some(Target::ratio_at_most(2.0)));
    Ok(rows)
}

async fn bursts(
    bench: &Bench,
    counts: Counts,
    services: [&Service; 2],
) -> Result<[Vec<f64>; 2], Error> {
    let mut connections = [Vec::new(), Vec::new()];
    for (connections, service) in connections.iter_mut().zip(services) {
        for _ in 0..CLIENTS {
            connections.push(Connection::open(service).await?);
        }
        connections[0].execute().await?;
    }
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..counts.warm_up + counts.samples {
        for turn in 0..2 {
            let index = (round + turn) % 2;
            bench.check()?;
            for connections in &connections {
                connections[0].pool_is_full().await?;
            }
            let took = try_join_all(connections[index].iter().map(Connection::execute)).await?;
            if round >= counts.warm_up {
                times[index].extend(took);
            }
        }
    }
    Ok(times)
}

/// What is measured at a node that has to ask another one.
#[derive(Clone, Copy)]
pub enum Use {
    /// S2.
    Get,
    /// S2.
    Exec,
    /// S9.
    Read,
}

/// Two nodes: the first has what is asked for, and has it too where the second is asked.
pub async fn through(place: Place<'_>, what: Use) -> Result<Vec<Row>, Error> {
    let Place { bench, counts, postgres } = place;
    let database = database(postgres, SHORT_LEASE)?;
    let folder = bench.folder(match what {
        Use::Get => "s2-get",
        Use::Exec => "s2-exec",
        Use::Read => "s9",
    })?;
    let settings = [&WIDE[..], &LARGE].concat();
    let owner =
        Service::with_settings(bench, &folder.join("owner"), 0, Some(&database.url), &settings)
            .await?;
    let done = async {
        let at_owner = Connection::open(&owner).await?;
        // While it is the only node.
        let its = match what {
            Use::Get => {
                let running = start(&at_owner, LOOP).await?;
                until(&at_owner, &running, "running").await?;
                format!("/v1/executions/{running}")
            }
            Use::Exec | Use::Read => {
                let made = at_owner.ask("POST", "/v1/sandboxes", b"{}").await?;
                format!("/v1/sandboxes/{}", text(&json(&made.body)?, "id"))
            }
        };
        let other =
            Service::with_settings(bench, &folder.join("other"), 0, Some(&database.url), &settings)
                .await?;
        let done = async {
            let connections = [&at_owner, &Connection::open(&other).await?];
            match what {
                Use::Get => {
                    let what = "GET of a running execution";
                    small(bench, counts, connections, what, ("GET", &its, "")).await
                }
                Use::Exec => {
                    let (what, path) =
                        ("POST ?wait in a kept sandbox", format!("{its}/executions?wait=60"));
                    small(bench, counts, connections, what, ("POST", &path, QUICK)).await
                }
                Use::Read => large(bench, [&owner, &other], &format!("{its}/files/large")).await,
            }
        }
        .await;
        other.stop().await;
        _ = at_owner.request("DELETE", &its, b"").await;
        done
    }
    .await;
    owner.stop().await;
    done
}

/// S2: a request by both ways.
async fn small(
    bench: &Bench,
    counts: Counts,
    connections: [&Connection; 2],
    what: &str,
    (method, path, body): (&str, &str, &str),
) -> Result<Vec<Row>, Error> {
    let counts = Counts { warm_up: 10, samples: counts.samples * 5 };
    let entries = WAYS.into_iter().zip(connections).map(|(way, connection)| {
        Entry::new(format!("S2: {what}, {way}"), move || async move {
            Ok(connection.ask(method, path, body.as_bytes()).await?.took)
        })
    });
    let mut rows = bench.by_turns(counts, Unit::Seconds, entries.collect()).await?;
    compare(&mut rows, 1, 0, None);
    let more = |name: &str, of: fn(&Row) -> Option<f64>| {
        let more = of(&rows[1]).zip(of(&rows[0])).map(|(through, direct)| through - direct);
        Row::figure(format!("S2: what that adds{name}"), Unit::Seconds, more.into_iter().collect())
    };
    let added = [
        more("", median).target(Target::median_at_most(0.0015)),
        more(" at p99", p99).target(Target::median_at_most(0.006)),
    ];
    rows.extend(added);
    Ok(rows)
}

/// S9.
async fn large(bench: &Bench, services: [&Service; 2], path: &str) -> Result<Vec<Row>, Error> {
    let connection = Connection::open(services[0]).await?;
    connection.ask("PUT", path, &Content::of(FILE).all()).await?;
    let entries = WAYS.into_iter().zip(services).map(|(way, service)| {
        Entry::new(format!("S9: 1 GiB of a kept sandbox, {way}"), move || async move {
            // One that is not used while the other way is measured is closed after a minute.
            let connection = Connection::open(service).await?;
            // In parts: what a sandbox writes is bounded.
            let mut took = 0.0;
            for _ in 0..(1 << 30) / FILE {
                took += connection.download(path, FILE).await?;
            }
            Ok(took)
        })
    });
    let counts = Counts { warm_up: 1, samples: 5 };
    let mut rows = bench.by_turns(counts, Unit::Seconds, entries.collect()).await?;
    // 0.7 of the bytes a second.
    compare(&mut rows, 1, 0, Some(Target::ratio_at_most(1.0 / 0.7)));
    Ok(rows)
}

/// S3: what a node cannot begin is begun by another one that has nothing to do.
pub async fn queued(place: Place<'_>) -> Result<Vec<Row>, Error> {
    let Counts { warm_up, samples } = place.counts;
    let counts = Counts { warm_up, samples: samples * 5 / 2 };
    let heard = waited(place, "s3", counts, &NARROW).await?;
    let heard = Row::figure("S3: queued to begun on an idle other node", Unit::Seconds, heard);
    let mut slow = heard.again("S3: the same, its p99");
    slow.aim(Target::p99_at_most(0.050));
    Ok(vec![heard.target(Target::median_at_most(0.010)), slow])
}

/// S3 without wake-ups.
pub async fn queued_and_not_heard(place: Place<'_>) -> Result<Vec<Row>, Error> {
    let Counts { warm_up, samples } = place.counts;
    let counts = Counts { warm_up, samples: samples / 2 };
    let waits = waited(place, "s3-deaf", counts, &[&NARROW[..], &[DEAF]].concat()).await?;
    let what = "S3: the same, `database_listen = false`";
    let row = Row::figure(what, Unit::Seconds, waits);
    Ok(vec![row.target(Target::median_at_most(0.300))])
}

/// The seconds that executions wait.
async fn waited(
    place: Place<'_>,
    name: &str,
    counts: Counts,
    settings: &[(&str, &str)],
) -> Result<Vec<f64>, Error> {
    let Place { bench, postgres, .. } = place;
    let database = database(postgres, SHORT_LEASE)?;
    let folder = bench.folder(name)?;
    let full =
        Service::with_settings(bench, &folder.join("full"), 0, Some(&database.url), settings)
            .await?;
    let done = async {
        let at_full = Connection::open(&full).await?;
        // While it is the only node.
        let running = start(&at_full, LOOP).await?;
        until(&at_full, &running, "running").await?;
        let idle =
            Service::with_settings(bench, &folder.join("idle"), 4, Some(&database.url), settings)
                .await?;
        let done = async {
            let at_idle = Connection::open(&idle).await?;
            let mut times = Vec::new();
            for round in 0..counts.warm_up + counts.samples {
                bench.check()?;
                at_idle.pool_is_full().await?;
                let id = start(&at_full, QUICK).await?;
                let path = format!("/v1/executions/{id}?wait=60");
                let ended = json(&at_idle.ask("GET", &path, b"").await?.body)?;
                if round >= counts.warm_up {
                    times.push(
                        time(&ended, "started_at")?
                            .since(time(&ended, "created_at")?)
                            .as_secs_f64(),
                    );
                }
            }
            Ok::<_, Error>(times)
        }
        .await;
        idle.stop().await;
        _ = at_full.request("DELETE", &format!("/v1/executions/{running}"), b"").await;
        done
    }
    .await;
    full.stop().await;
    done
}

/// S7: from `kill -9` until everything that ran there is final.
pub async fn killed(place: Place<'_>) -> Result<Vec<Row>, Error> {
    let Place { bench, postgres, .. } = place;
    let database = database(postgres, SHORT_LEASE)?;
    let url = Some(&*database.url);
    let folder = bench.folder("s7")?;
    let witness = Service::with_settings(bench, &folder.join("witness"), 0, url, &NARROW).await?;
    let done = async {
        let at_witness = Connection::open(&witness).await?;
        // It begins nothing else then.
        let own = start(&at_witness, LOOP).await?;
        until(&at_witness, &own, "running").await?;
        let mut times = Vec::new();
        for _ in 0..KILLS {
            bench.check()?;
            let victim =
                Service::with_settings(bench, &folder.join("victim"), 0, url, &WIDE).await?;
            let at_victim = Connection::open(&victim).await?;
            let mut ids = Vec::new();
            for _ in 0..VICTIMS {
                ids.push(start(&at_victim, LOOP).await?);
            }
            for id in &ids {
                until(&at_victim, id, "running").await?;
            }
            let elsewhere = rows(
                postgres,
                &database,
                &format!(
                    "SELECT 1 FROM executions WHERE ended_at IS NULL AND id <> '{own}' AND \
                     node = (SELECT node FROM executions WHERE id = '{own}')"
                ),
            );
            if !elsewhere.is_empty() {
                return Err(Error::Operation("a run on the node that is killed".to_owned()));
            }
            // It is known to the other node.
            tokio::time::sleep(SHORT_LEASE / 2).await;
            let began = Instant::now();
            victim.kill().await;
            for id in &ids {
                until(&at_witness, id, "killed").await?;
            }
            times.push(began.elapsed().as_secs_f64());
        }
        _ = at_witness.request("DELETE", &format!("/v1/executions/{own}"), b"").await;
        Ok::<_, Error>(times)
    }
    .await;
    witness.stop().await;
    let bound = SHORT_LEASE.as_secs_f64() * 1.2 + 1.0;
    let what = format!("S7: `kill -9` of a node to the end of its {VICTIMS} executions, lease 2 s");
    Ok(vec![Row::figure(what, Unit::Seconds, done?).target(Target::p99_at_most(bound))])
}

/// Submits something, and gives its id.
async fn start(connection: &Connection, request: &str) -> Result<String, Error> {
    let accepted = connection.ask("POST", "/v1/executions", request.as_bytes()).await?;
    Ok(text(&json(&accepted.body)?, "id"))
}

/// Waits until an execution has this status.
async fn until(connection: &Connection, id: &str, status: &str) -> Result<(), Error> {
    let began = Instant::now();
    let path = format!("/v1/executions/{id}");
    let mut last = String::new();
    while began.elapsed() < PATIENCE {
        let answer = connection.request("GET", &path, b"").await?;
        last = String::from_utf8_lossy(&answer.body).into_owned();
        if answer.status == 200 && text(&json(&answer.body)?, "status") == status {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
    Err(Error::Operation(format!("an execution that is to be {status}: {last}")))
}

fn json(body: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(body).map_err(Error::Worker)
}

fn text(value: &Value, member: &str) -> String {
    value[member].as_str().unwrap_or_default().to_owned()
}

fn time(value: &Value, member: &str) -> Result<Time, Error> {
    serde_json::from_value(value[member].clone()).map_err(Error::Worker)
}

fn median(row: &Row) -> Option<f64> {
    match &row.found {
        Measurement::Figure(figure) => Some(figure.summary.median),
        Measurement::Missing(_) => None,
    }
}

fn p99(row: &Row) -> Option<f64> {
    match &row.found {
        Measurement::Figure(figure) => Some(figure.summary.p99),
        Measurement::Missing(_) => None,
    }
}
