//! P11: a service on Docker with a warm pool: one execution over HTTP on loopback, and `sandboxctl run
//! --server` as a whole process, beside `docker run`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::sync::Mutex;

use super::{Scenario, cold_run};
use crate::bench::{Bench, Counts, Entry};
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p11",
    title: "A service with a warm pool",
    counts: Counts { warm_up: 5, samples: 50 },
    measure,
    work: None,
};

/// The sandboxes that are ready: more than are used while one more is started.
const POOL: &str = "8";
/// What is submitted.
const REQUEST: &str = r#"{"script":"return 1"}"#;

/// `sandboxctl serve`, which ends with this.
struct Service {
    child: Child,
    address: String,
}

impl Service {
    async fn start(bench: &Bench, data_dir: &Path) -> Result<Self, Error> {
        let mut command = bench.sandboxctl(["serve", "--engine", "docker", "--data-dir"]);
        command.arg(data_dir);
        command.args(["--listen", "127.0.0.1:0", "--insecure-no-auth", "--quiet", "--pool", POOL]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let start = |source| Error::Start { program: "sandboxctl serve".to_owned(), source };
        let mut child = command.kill_on_drop(true).spawn().map_err(start)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).await.map_err(start)?;
        }
        match line.trim_end().strip_prefix("listening on http://") {
            Some(address) => Ok(Self { child, address: address.to_owned() }),
            None => Err(Error::Operation("the start of a service".to_owned())),
        }
    }

    /// Ends it as an administrator does.
    async fn stop(mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        _ = self.child.wait().await;
    }
}

/// A connection that is kept, as that of any client that submits often.
struct Connection(Mutex<BufReader<TcpStream>>);

impl Connection {
    async fn open(address: &str) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await.map_err(|error| failed(&error))?;
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        Ok(Self(Mutex::new(BufReader::new(stream))))
    }

    /// Submits the script and waits for its result: the seconds that it took.
    async fn execute(&self, address: &str) -> Result<f64, Error> {
        let mut stream = self.0.lock().await;
        let length = REQUEST.len();
        let request = format!(
            "POST /v1/executions?wait=60 HTTP/1.1\r\nhost: {address}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{REQUEST}"
        );
        let started = Instant::now();
        stream.write_all(request.as_bytes()).await.map_err(|error| failed(&error))?;
        let (mut is_first, mut is_ok, mut length) = (true, false, 0);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.map_err(|error| failed(&error))?;
            if std::mem::take(&mut is_first) {
                is_ok = line.starts_with("HTTP/1.1 200 ");
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line.trim_end().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.map_err(|error| failed(&error))?;
        let took = started.elapsed();
        match is_ok && String::from_utf8_lossy(&body).contains(r#""status":"ok""#) {
            true => Ok(took.as_secs_f64()),
            false => Err(Error::Outcome(String::from_utf8_lossy(&body).into_owned())),
        }
    }
}

fn failed(error: &std::io::Error) -> Error {
    Error::Operation(format!("a request to a service: {error}"))
}

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let ours = ["POST /v1/executions", "`sandboxctl run --server`"];
        if let Err(why) = &bench.docker {
            let missing = ours.map(|what| Row::missing(what, why));
            return Ok(missing.into_iter().collect());
        }
        let script = cold_run::script(bench, "p11")?;
        let service = Service::start(bench, &bench.folder("p11-data")?.join("data")).await?;
        let done = measure_with(bench, counts, &service, &script, ours).await;
        service.stop().await;
        done
    }
    .boxed_local()
}

async fn measure_with(
    bench: &Bench,
    counts: Counts,
    service: &Service,
    script: &PathBuf,
    [post, run]: [&'static str; 2],
) -> Result<Vec<Row>, Error> {
    let connection = Connection::open(&service.address).await?;
    let entries = vec![
        cold_run::docker_run(bench),
        Entry::new(post, || connection.execute(&service.address)),
        Entry::new(run, || {
            let server = format!("http://{}", service.address);
            let mut command = bench.sandboxctl(["run", "--server", &server]);
            command.arg(script);
            bench.time(command)
        }),
    ];
    let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
    compare(&mut rows, 1, 0, None);
    compare(&mut rows, 2, 0, Some(Target::ratio_at_most(0.10)));
    Ok(rows)
}
