//! A service to measure: `sandboxctl serve` on loopback, and a client that keeps its connection.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use crate::bench::Bench;
use crate::engines::On;
use crate::error::Error;

/// What is submitted.
const SCRIPT: &str = r#"{"script":"return 1"}"#;
/// How long the pool may take to be full, and how often that is asked.
const FULL_WAIT: Duration = Duration::from_secs(60);
const FULL_POLL: Duration = Duration::from_millis(10);
/// The bytes of an answer that are read at one time where they are not kept.
const BLOCK: usize = 256 << 10;

/// `sandboxctl serve`, which ends with this.
pub struct Service {
    child: Child,
    /// Where it listens.
    pub address: String,
}

impl Service {
    /// Starts one that keeps `pool` sandboxes ready. Its sandboxes have files if it has an io dir.
    pub async fn start(
        bench: &Bench,
        on: On,
        data_dir: &Path,
        pool: usize,
        io_dir: Option<&Path>,
    ) -> Result<Self, Error> {
        let configure = |command: &mut Command| {
            let io_dir = io_dir.map(|dir| ["--io-dir".as_ref(), dir.as_os_str()]);
            command.args(io_dir.into_iter().flatten());
        };
        Self::with(bench, on, data_dir, pool, configure).await
    }

    /// Starts one with what `configure` adds to its command line.
    pub async fn with(
        bench: &Bench,
        on: On,
        data_dir: &Path,
        pool: usize,
        configure: impl FnOnce(&mut Command),
    ) -> Result<Self, Error> {
        let mut command = serve(bench, on, data_dir, pool);
        configure(&mut command);
        Self::listening(command).await
    }

    /// Starts one on the embedded engine with these settings, which are environment variables: a node, if a database
    /// is named.
    pub async fn with_settings(
        bench: &Bench,
        data_dir: &Path,
        pool: usize,
        database: Option<&str>,
        settings: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let mut command = serve(bench, On::Embedded, data_dir, pool);
        if let Some(database) = database {
            command.args(["--database", database, "--peer-listen", "127.0.0.1:0"]);
        }
        command.envs(settings.iter().copied());
        Self::listening(command).await
    }

    async fn listening(mut command: Command) -> Result<Self, Error> {
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

    /// Its process.
    pub fn pid(&self) -> Result<u32, Error> {
        self.child.id().ok_or_else(|| Error::Operation("a service".to_owned()))
    }

    /// Ends it as a power cut does.
    pub async fn kill(mut self) {
        _ = self.child.kill().await;
    }

    /// Ends it as an administrator does.
    pub async fn stop(mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        _ = self.child.wait().await;
    }
}

/// The command line, whose log is not read.
fn serve(bench: &Bench, on: On, data_dir: &Path, pool: usize) -> Command {
    let mut command = bench.sandboxctl(["serve", "--engine", &on.to_string(), "--data-dir"]);
    command.arg(data_dir).args(["--pool", &pool.to_string()]);
    command.args(["--listen", "127.0.0.1:0", "--insecure-no-auth", "--quiet"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// A connection that is kept, as that of any client that submits often.
pub struct Connection {
    host: String,
    stream: Mutex<BufReader<TcpStream>>,
}

/// An answer, and how long it took from the first byte of the request to the last of this.
pub struct Response {
    /// Of the status line.
    pub status: u16,
    /// All of it.
    pub body: Vec<u8>,
    /// In seconds.
    pub took: f64,
}

impl Connection {
    /// Connects.
    pub async fn open(service: &Service) -> Result<Self, Error> {
        let host = service.address.clone();
        let stream = TcpStream::connect(&host).await.map_err(|error| failed(&error))?;
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        Ok(Self { host, stream: Mutex::new(BufReader::new(stream)) })
    }

    /// Sends a request, and waits for its answer.
    pub async fn request(&self, method: &str, path: &str, body: &[u8]) -> Result<Response, Error> {
        let mut content = Vec::new();
        let (status, took, _) = self.exchange(method, path, body, Body::Kept(&mut content)).await?;
        Ok(Response { status, body: content, took })
    }

    /// Reads what is there, of so many bytes, and keeps nothing of it: the seconds that it took.
    pub async fn download(&self, path: &str, size: u64) -> Result<f64, Error> {
        match self.exchange("GET", path, b"", Body::Counted(0)).await? {
            (200, took, bytes) if bytes == size => Ok(took),
            (status, ..) => Err(Error::Operation(format!("GET {path}: {status}"))),
        }
    }

    /// The status, the seconds, and how many bytes the answer had.
    async fn exchange(
        &self,
        method: &str,
        path: &str,
        content: &[u8],
        mut into: Body<'_>,
    ) -> Result<(u16, f64, u64), Error> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            self.host,
            content.len()
        );
        let mut stream = self.stream.lock().await;
        let started = Instant::now();
        let exchanged = exchange(&mut stream, head.as_bytes(), content, &mut into).await;
        let status = exchanged.map_err(|error| failed(&error))?;
        Ok((status, started.elapsed().as_secs_f64(), into.bytes()))
    }

    /// Sends a request that is to be answered with success, and gives its answer.
    pub async fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<Response, Error> {
        let answer = self.request(method, path, body).await?;
        match answer.status {
            200..300 => Ok(answer),
            status => {
                let body = String::from_utf8_lossy(&answer.body);
                Err(Error::Operation(format!("{method} {path}: {status} {body}")))
            }
        }
    }

    /// Submits a script and waits for its result, which is on disk then: the seconds that it took.
    pub async fn execute(&self) -> Result<f64, Error> {
        let answer = self.ask("POST", "/v1/executions?wait=60", SCRIPT.as_bytes()).await?;
        let body = String::from_utf8_lossy(&answer.body);
        match answer.status == 200 && body.contains(r#""status":"ok""#) {
            true => Ok(answer.took),
            false => Err(Error::Outcome(body.into_owned())),
        }
    }

    /// Waits until the service says that its pool is full, of at least one kind of sandbox.
    pub async fn pool_is_full(&self) -> Result<(), Error> {
        let began = Instant::now();
        let mut metrics = String::new();
        while began.elapsed() < FULL_WAIT {
            let answer = self.ask("GET", "/metrics", b"").await?;
            metrics = String::from_utf8_lossy(&answer.body).into_owned();
            let figure = |name| gauge(&metrics, name).unwrap_or(f64::NAN);
            let target = figure("sandboxctl_pool_target");
            if target > 0.0 && figure("sandboxctl_pool_parked") >= target {
                return Ok(());
            }
            tokio::time::sleep(FULL_POLL).await;
        }
        Err(Error::Operation(format!("a pool that is full again: {metrics}")))
    }
}

/// What becomes of the body of an answer.
enum Body<'a> {
    Kept(&'a mut Vec<u8>),
    Counted(u64),
}

impl Body<'_> {
    fn bytes(&self) -> u64 {
        match self {
            Self::Kept(content) => content.len() as u64,
            Self::Counted(bytes) => *bytes,
        }
    }

    /// So many bytes more.
    async fn read(
        &mut self,
        stream: &mut BufReader<TcpStream>,
        mut more: usize,
    ) -> std::io::Result<()> {
        match self {
            Self::Kept(content) => {
                let start = content.len();
                content.resize(start + more, 0);
                stream.read_exact(&mut content[start..]).await?;
            }
            Self::Counted(bytes) => {
                *bytes += more as u64;
                let mut block = vec![0; more.min(BLOCK)];
                while more > 0 {
                    let length = more.min(BLOCK);
                    stream.read_exact(&mut block[..length]).await?;
                    more -= length;
                }
            }
        }
        Ok(())
    }
}

/// One request and its answer: the status.
async fn exchange(
    stream: &mut BufReader<TcpStream>,
    head: &[u8],
    content: &[u8],
    into: &mut Body<'_>,
) -> std::io::Result<u16> {
    stream.write_all(head).await?;
    if !content.is_empty() {
        stream.write_all(content).await?;
    }
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let (mut length, mut is_chunked) = (0, false);
    loop {
        line.clear();
        stream.read_line(&mut line).await?;
        line.make_ascii_lowercase();
        match line.trim_end().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap_or(0),
            Some(("transfer-encoding", value)) => is_chunked = value == "chunked",
            Some(_) => {}
            None => break,
        }
    }
    if !is_chunked {
        into.read(stream, length).await?;
        return Ok(status);
    }
    loop {
        line.clear();
        stream.read_line(&mut line).await?;
        let size = usize::from_str_radix(line.trim_end(), 16).map_err(std::io::Error::other)?;
        into.read(stream, size).await?;
        line.clear();
        stream.read_line(&mut line).await?;
        if size == 0 {
            return Ok(status);
        }
    }
}

/// A figure of `/metrics` without labels.
fn gauge(metrics: &str, name: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

fn failed(error: &std::io::Error) -> Error {
    Error::Operation(format!("a request to a service: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauge_is_found_by_its_whole_name() {
        let metrics = "# HELP pool_x Help.\npool_x_more 3\npool_x 4\n";
        assert_eq!(gauge(metrics, "pool_x"), Some(4.0));
        assert_eq!(gauge(metrics, "pool"), None);
    }
}
