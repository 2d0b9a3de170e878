//! P16: the MCP tools over stdio: `execute_script` of `return 1` with a warm slot and back to back,
//! and thirty files, read by a tool call each and by one script that reads all of them, in time and
//! in the bytes that pass the client; and thirty calls of another server's tool, by a client of that
//! server, by a script each, and by one script.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

use super::Scenario;
use crate::bench::{Bench, Counts, Entry};
use crate::engines::On;
use crate::error::Error;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p16",
    title: "An agent's tools over stdio, with a warm pool",
    counts: Counts { warm_up: 5, samples: 50 },
    measure,
    work: None,
};

/// The sandboxes that are ready, when nothing is called.
const POOL: usize = 8;
/// The calls of a burst: more than there are sandboxes ready.
const BURST: usize = 24;
/// How long the pool may take to be full again.
const WARM_WAIT: Duration = Duration::from_secs(60);
/// The time between two looks at it.
const WARM_POLL: Duration = Duration::from_millis(50);
/// How many files there are.
const FILES: usize = 30;
/// The lines of each.
const LINES: usize = 500;
/// What adds up a column of all of them.
const SUM: &str = "\
local sum = 0
for _, path in fs.glob('data/*.csv') do
  for line in io.lines(path) do sum += tonumber(line:match('([^,]+)$')) or 0 end
end
return { sum = sum }
";

/// The calls of another server's tool.
const CALLS: usize = 30;
/// What adds up a column of all that it gives, and of one.
const CALL_ALL: &str = "\
local sum = 0
for number = 1, 30 do
  for n in tools.rows.read { number = number }:gmatch(',(%d+)') do sum += tonumber(n) end
end
return { sum = sum }
";
const CALL_ONE: &str = "\
local sum = 0
for n in tools.rows.read { number = 1 }:gmatch(',(%d+)') do sum += tonumber(n) end
return { sum = sum }
";

/// `sandboxctl mcp`, and its client.
struct Agent<'a> {
    bench: &'a Bench,
    engine: String,
    io_dir: PathBuf,
    child: Child,
    stream: Mutex<Stream>,
    /// The other server, with a client of its own.
    direct: (Child, Mutex<Stream>),
}

/// What `ps` says of a sandbox.
#[derive(Debug, Deserialize)]
struct Running {
    id: String,
    state: String,
    title: Option<String>,
    io_dir: Option<PathBuf>,
}

/// The messages, with the bytes that passed.
struct Stream {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    line: String,
    requests: u64,
    passed: usize,
}

fn failed(error: &std::io::Error) -> Error {
    Error::Operation(format!("a call of a tool: {error}"))
}

impl Stream {
    /// Starts a server, and greets it.
    async fn start(mut command: Command, what: &str) -> Result<(Child, Self), Error> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let start = |source| Error::Start { program: what.to_owned(), source };
        let mut child = command.kill_on_drop(true).spawn().map_err(start)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Operation(format!("the start of {what}")));
        };
        let stdout = BufReader::new(stdout);
        let mut stream = Self { stdin, stdout, line: String::new(), requests: 0, passed: 0 };
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "bench", "version": "1" },
        });
        stream.ask("initialize", hello).await?;
        let initialized = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";
        let sent = stream.stdin.write_all(initialized.as_bytes()).await;
        sent.map_err(|error| failed(&error))?;
        Ok((child, stream))
    }

    async fn ask(&mut self, method: &str, params: Value) -> Result<Value, Error> {
        self.requests += 1;
        let id = self.requests;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let request = format!("{request}\n");
        self.stdin.write_all(request.as_bytes()).await.map_err(|error| failed(&error))?;
        self.passed += request.len();
        loop {
            self.line.clear();
            let read =
                self.stdout.read_line(&mut self.line).await.map_err(|error| failed(&error))?;
            self.passed += read;
            let message: Value = serde_json::from_str(&self.line).map_err(|_| {
                Error::Operation("a call of a tool: the server has ended".to_owned())
            })?;
            // A notification has none.
            if message.get("id").is_some() {
                return Ok(message);
            }
        }
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Result<(), Error> {
        let params = json!({ "name": tool, "arguments": arguments });
        let answer = self.ask("tools/call", params).await?;
        match answer["result"]["isError"] == false {
            true => Ok(()),
            false => Err(Error::Outcome(answer.to_string())),
        }
    }
}

impl<'a> Agent<'a> {
    async fn start(bench: &'a Bench, on: On, io_dir: &Path) -> Result<Self, Error> {
        let engine = on.to_string().to_ascii_lowercase();
        let own = std::env::current_exe().map_err(Error::file("find", "this program"))?;
        let mut command = bench.sandboxctl(["mcp", "--engine", &engine, "--pool"]);
        command.arg(POOL.to_string()).arg("--io-dir").arg(io_dir);
        command.arg("--upstream").arg(format!("rows='{}' --upstream", own.display()));
        let (child, stream) = Stream::start(command, "sandboxctl mcp").await?;
        let mut command = Command::new(own);
        command.arg("--upstream");
        let (server, direct) = Stream::start(command, "another server").await?;
        let (io_dir, stream) = (io_dir.to_owned(), Mutex::new(stream));
        Ok(Self { bench, engine, io_dir, child, stream, direct: (server, Mutex::new(direct)) })
    }

    /// The sandboxes of its pool that run.
    async fn pool(&self) -> Result<Vec<String>, Error> {
        let mut command = self.bench.sandboxctl(["ps", "--engine", &self.engine, "-o", "json"]);
        let start = |source| Error::Start { program: "sandboxctl ps".to_owned(), source };
        let output = command.stdin(Stdio::null()).output().await.map_err(start)?;
        let running: Vec<Running> = serde_json::from_slice(&output.stdout)
            .map_err(|error| Error::Operation(format!("a list of the sandboxes: {error}")))?;
        let of_pool = running.into_iter().filter(|it| {
            let is_of_pool = it.title.as_deref() == Some("warm pool") && it.state == "running";
            is_of_pool && it.io_dir.as_ref() == Some(&self.io_dir)
        });
        let mut ids: Vec<String> = of_pool.map(|it| it.id).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Waits until the pool is full, and stays as it is: what was used is removed, and nothing is
    /// started.
    async fn warm(&self) -> Result<(), Error> {
        let began = Instant::now();
        let mut before = Vec::new();
        while began.elapsed() < WARM_WAIT {
            let now = self.pool().await?;
            // One more is what file tools keep, which was of the pool.
            if now.len() >= POOL && now == before {
                return Ok(());
            }
            before = now;
            tokio::time::sleep(WARM_POLL).await;
        }
        Err(Error::Operation(format!("a pool that is full again: {before:?}")))
    }

    /// A script for which a sandbox is ready.
    async fn warm_script(&self, script: &str) -> Result<f64, Error> {
        self.warm().await?;
        self.script(script).await
    }

    /// The seconds that each call of a burst took.
    async fn burst(&self) -> Result<f64, Error> {
        self.warm().await?;
        let started = Instant::now();
        for _ in 0..BURST {
            self.script("return 1").await?;
        }
        Ok(started.elapsed().as_secs_f64() / BURST as f64)
    }

    /// A script: the seconds that it took.
    async fn script(&self, script: &str) -> Result<f64, Error> {
        let mut stream = self.stream.lock().await;
        let started = Instant::now();
        stream.call("execute_script", json!({ "script": script })).await?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// All files, by a call for each.
    async fn read_all(&self) -> Result<f64, Error> {
        let mut stream = self.stream.lock().await;
        let started = Instant::now();
        for number in 0..FILES {
            stream.call("read_file", json!({ "path": file(number) })).await?;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// All calls of the other server's tool, by a client of it.
    async fn call_directly(&self) -> Result<f64, Error> {
        let mut stream = self.direct.1.lock().await;
        let started = Instant::now();
        for number in 0..CALLS {
            stream.call("read", json!({ "number": number })).await?;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// The same by a script each.
    async fn call_by_scripts(&self) -> Result<f64, Error> {
        self.warm().await?;
        let started = Instant::now();
        for _ in 0..CALLS {
            self.script(CALL_ONE).await?;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// The bytes that pass a client in this.
    async fn passed<T>(
        stream: &Mutex<Stream>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<f64, Error> {
        let before = stream.lock().await.passed;
        work.await?;
        Ok((stream.lock().await.passed - before) as f64)
    }

    /// Ends as with its client.
    async fn stop(self) {
        let Self { mut child, stream, direct: (mut server, direct), .. } = self;
        drop((stream, direct));
        _ = child.wait().await;
        _ = server.wait().await;
    }
}

fn file(number: usize) -> String {
    format!("data/{number:02}.csv")
}

/// The files that are read.
fn files(bench: &Bench, name: &str) -> Result<PathBuf, Error> {
    let folder = bench.folder(name)?;
    let data = folder.join("data");
    std::fs::create_dir_all(&data).map_err(Error::file("make", &data))?;
    let text: String = (0..LINES).map(|line| format!("item {line:04},{line}\n")).collect();
    for number in 0..FILES {
        let path = folder.join(file(number));
        std::fs::write(&path, &text).map_err(Error::file("write", &path))?;
    }
    Ok(folder)
}

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let mut rows = Vec::new();
        for (on, usable) in [(On::Docker, &bench.docker), (On::Embedded, &bench.embedded)] {
            let names = Names::on(on);
            if let Err(why) = usable {
                rows.extend(names.all().map(|what| Row::missing(what, why)));
                continue;
            }
            let folder = files(bench, &format!("p16-{on}"))?;
            let agent = Agent::start(bench, on, &folder).await?;
            let measured = measure_with(bench, counts, &agent, &names).await;
            agent.stop().await;
            rows.append(&mut measured?);
        }
        Ok(rows)
    }
    .boxed_local()
}

/// What the rows of an engine are called.
struct Names {
    one: String,
    burst: String,
    calls: String,
    script: String,
    bytes_of_calls: String,
    bytes_of_script: String,
    tool_directly: String,
    tool_by_scripts: String,
    tool_by_one: String,
    tool_by_one_beside_client: String,
    bytes_directly: String,
    bytes_by_one: String,
}

impl Names {
    fn on(on: On) -> Self {
        Self {
            one: format!("`execute_script` of `return 1` with a warm slot, {on}"),
            burst: format!("each of {BURST} `execute_script` of `return 1` back to back, {on}"),
            calls: format!("{FILES} calls of `read_file`, {on}"),
            script: format!("one script that reads {FILES} files, {on}"),
            bytes_of_calls: format!("bytes of {FILES} calls, {on}"),
            bytes_of_script: format!("bytes of one script, {on}"),
            tool_directly: format!("{CALLS} calls of another server's tool by a client, {on}"),
            tool_by_scripts: format!("{CALLS} scripts with one call each, {on}"),
            tool_by_one: format!("one script with {CALLS} calls, {on}"),
            tool_by_one_beside_client: format!("the same, beside {CALLS} calls by a client, {on}"),
            bytes_directly: format!("bytes of {CALLS} calls by a client, {on}"),
            bytes_by_one: format!("bytes of one script with {CALLS} calls, {on}"),
        }
    }

    fn all(self) -> impl Iterator<Item = String> {
        let Self { one, burst, calls, script, bytes_of_calls, bytes_of_script, .. } = self;
        let Self { tool_directly, tool_by_scripts, tool_by_one, .. } = self;
        let Self { tool_by_one_beside_client, bytes_directly, bytes_by_one, .. } = self;
        [
            one, burst, calls, script, tool_directly, tool_by_scripts, tool_by_one,
            tool_by_one_beside_client, bytes_of_calls, bytes_of_script, bytes_directly,
            bytes_by_one,
        ]
        .into_iter()
    }
}

async fn measure_with(
    bench: &Bench,
    counts: Counts,
    agent: &Agent<'_>,
    names: &Names,
) -> Result<Vec<Row>, Error> {
    let entries = vec![
        Entry::new(&names.one, || agent.warm_script("return 1")),
        Entry::new(&names.burst, || agent.burst()),
        Entry::new(&names.calls, move || async move {
            agent.warm().await?;
            agent.read_all().await
        }),
        Entry::new(&names.script, || agent.warm_script(SUM)),
        Entry::new(&names.tool_directly, || agent.call_directly()),
        Entry::new(&names.tool_by_scripts, || agent.call_by_scripts()),
        Entry::new(&names.tool_by_one, || agent.warm_script(CALL_ALL)),
    ];
    let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
    compare(&mut rows, 0, 0, Some(Target::median_at_most(0.005)));
    compare(&mut rows, 3, 2, None);
    compare(&mut rows, 6, 5, Some(Target::ratio_at_most(0.2)));
    rows.push(rows[6].again(&names.tool_by_one_beside_client));
    compare(&mut rows, 7, 4, Some(Target::ratio_at_most(0.2)));
    let of_calls = Agent::passed(&agent.stream, agent.read_all()).await?;
    let of_script = Agent::passed(&agent.stream, agent.script(SUM)).await?;
    let directly = Agent::passed(&agent.direct.1, agent.call_directly()).await?;
    let by_one = Agent::passed(&agent.stream, agent.script(CALL_ALL)).await?;
    rows.push(Row::figure(&names.bytes_of_calls, Unit::Bytes, vec![of_calls]));
    rows.push(Row::figure(&names.bytes_of_script, Unit::Bytes, vec![of_script]));
    rows.push(Row::figure(&names.bytes_directly, Unit::Bytes, vec![directly]));
    rows.push(Row::figure(&names.bytes_by_one, Unit::Bytes, vec![by_one]));
    let last = rows.len() - 1;
    compare(&mut rows, last, last - 1, Some(Target::ratio_at_most(0.05)));
    Ok(rows)
}
