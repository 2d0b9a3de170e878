//! How long it takes until an execution is accepted, which is until it is on the disk:
//! `cargo run --release -p sandbox-store --example latency -- DIR [URL]`. The directory must not exist; it
//! is removed. With the URL of a database, which must be empty, the same is measured there too.

use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use sandbox_api::service::{ExecutionKind, Subject, Time};
use sandbox_store::{DatabaseConfig, Durability, NewExecution, Placement, Store};

/// Accepted executions of each measurement.
const TOTAL: usize = 2048;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: latency DIR")?;
    let dir = Path::new(&dir);
    std::fs::create_dir(dir)?;
    let measured = flushes(dir)
        .and_then(|()| accepts("SQLite", &Store::open(&dir.join("data"), Durability::Disk)?));
    std::fs::remove_dir_all(dir)?;
    measured?;
    if let Some(url) = std::env::args().nth(2) {
        let database = DatabaseConfig::new(url);
        Store::initialize(&database, None)?;
        accepts("PostgreSQL", &Store::connect(&database)?)?;
    }
    Ok(())
}

/// What the disk needs at least.
fn flushes(dir: &Path) -> Result<(), Box<dyn Error>> {
    let mut file = File::create(dir.join("flushes"))?;
    let mut times = Vec::new();
    for _ in 0..TOTAL / 8 {
        let since = Instant::now();
        file.write_all(&[0; 4096])?;
        file.sync_data()?;
        times.push(since.elapsed());
    }
    print("write of 4 KiB and flush", 1, &mut times, None);
    Ok(())
}

fn accepts(by: &str, store: &Store) -> Result<(), Box<dyn Error>> {
    for callers in [1, 4, 16, 64, 256] {
        let since = Instant::now();
        let each: Vec<_> = (0..callers)
            .map(|caller| {
                let store = store.clone();
                thread::spawn(move || -> Result<Vec<Duration>, String> {
                    (0..TOTAL / callers)
                        .map(|number| {
                            let new = execution(format!("{callers}-{caller}-{number}"))?;
                            let since = Instant::now();
                            store.accept(new).map_err(|error| error.to_string())?;
                            Ok(since.elapsed())
                        })
                        .collect()
                })
            })
            .collect();
        let mut times = Vec::new();
        for caller in each {
            times.extend(caller.join().map_err(|_| "a caller panicked")??);
        }
        print(&format!("accepted by {by}"), callers, &mut times, Some(since.elapsed()));
    }
    Ok(())
}

fn execution(id: String) -> Result<NewExecution, String> {
    Ok(NewExecution {
        id,
        subject: Subject::new("alice").map_err(|error| error.to_string())?,
        kind: ExecutionKind::Script,
        request: format!(r#"{{"script":"{}"}}"#, "x".repeat(500)),
        has_secrets: false,
        key: None,
        created_at: Time::now(),
        start: None,
        metadata: serde_json::Map::new(),
        image: None,
        sandbox: None,
        generation: None,
        events: Vec::new(),
        trace_parent: None,
        placement: Placement {
            max_queued: 1_000_000,
            max_queued_bytes: 1 << 40,
            ..Placement::default()
        },
    })
}

fn print(what: &str, callers: usize, times: &mut [Duration], all: Option<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    let each =
        all.map(|all| format!(", {:.0} each second", times.len() as f64 / all.as_secs_f64()));
    let each = each.unwrap_or_default();
    println!("{what}, {callers} at once: p50 {:.2?}, p99 {:.2?}{each}", at(50), at(99));
}
