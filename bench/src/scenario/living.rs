//! Processes that stay: from a start to a process id, from an attach to the first event, from a key to its echo;
//! what 64 of them cost that print; freezing and thawing; commands beside a transfer; frozen sandboxes; and the
//! start of the local service, and of a sandbox whose process was prepared.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use sandbox_api::operation::Write;
use sandbox_api::{
    ByteSize, ExecutionEvent, Limits, OutputStream, ProcessCommand, Processes, Pty, ReadFrom,
    ReadMode, Recorded, RootFs, SandboxSpec,
};
use sandbox_controller::{Command, Controller, Process, ProcessEvents, Sandbox, Until};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use super::Scenario;
use super::programs::TRUE;
use super::streams::Content;
use crate::bench::{Bench, Counts, Here};
use crate::engines::On;
use crate::error::Error;
use crate::image::{BUSYBOX, Image};
use crate::process;
use crate::report::{Row, Target, Unit};
use crate::service::{Connection, Service};

pub const SCENARIO: Scenario = Scenario {
    id: "living",
    title: "Processes, terminals and sandboxes that stay",
    counts: Counts { warm_up: 5, samples: 100 },
    measure,
    work: None,
};

/// The processes that print, how often each does in a second, and for how long they are watched.
const PRINTERS: usize = 64;
const LINES: &str =
    "while :; do echo 'a line of a log that somebody may read'; read -t 0.01 x; done";
const WATCH: Duration = Duration::from_secs(10);
const WATCHES: usize = 5;
/// What is sent while commands run: so often a file of this size.
const PARTS: usize = 4;
const PART: u64 = 256 << 20;
/// Sandboxes that are frozen at one time.
const FROZEN: [(On, u32); 2] = [(On::Docker, 50), (On::Embedded, 500)];
/// How often what takes seconds is measured.
const FEW: usize = 20;
const PREPARED: usize = 4;
/// Makes a root of Debian's packages.
const DEBIAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/debian");
const PACKAGES: [&str; 4] = ["coreutils", "dash", "python3", "python3-numpy"];
/// What is prepared there. No script of a package has linked the libraries. It ends with its answer: what an
/// interpreter does at its end is not measured.
const PYTHON: &str = r#"export LD_LIBRARY_PATH=$(echo /usr/lib/*/blas):$(echo /usr/lib/*/lapack)
exec python3 -u -c 'import os, numpy; print("up"); print(input()); os._exit(0)'
"#;

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        if !Path::new(BUSYBOX).exists() {
            let why = format!("no {BUSYBOX}: apt install busybox-static");
            return Ok(vec![Row::missing("a process", why)]);
        }
        let root = bench.folder("living")?;
        let program = root.join("busybox");
        std::fs::copy(BUSYBOX, &program).map_err(Error::file("copy to", &program))?;
        let image = Image::import(bench, &root).await?;
        let rows = measure_with(bench, counts, &root, &image).await;
        if let Ok(image) = image {
            image.remove().await?;
        }
        let mut rows = rows?;
        rows.append(&mut of_python(bench).await?);
        Ok(rows)
    }
    .boxed_local()
}

async fn measure_with(
    bench: &Bench,
    counts: Counts,
    root: &Path,
    image: &Result<Image<'_>, String>,
) -> Result<Vec<Row>, Error> {
    let of_image = image.as_ref().ok().map(Image::root);
    let directory = Some(RootFs::Directory(root.to_owned()));
    let rows = bench
        .with_engines(async |docker, embedded| {
            let both = [(On::Docker, docker, of_image), (On::Embedded, embedded, directory)];
            let mut rows = Vec::new();
            for (on, controller, root) in both {
                rows.append(&mut of_engine(bench, counts, on, controller, root).await?);
            }
            Ok(rows)
        })
        .await;
    let mut rows = rows?;
    for on in [On::Docker, On::Embedded] {
        if !bench.can_use(on, &mut rows) {
            continue;
        }
        rows.push(local_start(bench, on).await?);
        let flags = match (on, image) {
            (On::Docker, Ok(image)) => ["--allowed-image".to_owned(), image.name.clone()],
            (On::Docker, Err(_)) => continue,
            (On::Embedded, _) => ["--rootfs".to_owned(), root.display().to_string()],
        };
        let command = format!("'{}', 'sh', '-c', 'echo up; read x; echo $x'", TRUE[0]);
        let times = claim(bench, on, &flags, "shell", &command).await?;
        let what = format!("{on}: a sandbox whose process was prepared, until that has answered");
        rows.push(Row::figure(what, Unit::Seconds, times));
    }
    Ok(rows)
}

/// The same with an interpreter that has done its imports before it is asked for: Debian's Python with numpy.
async fn of_python(bench: &Bench) -> Result<Vec<Row>, Error> {
    let what = |on: On| {
        format!("{on}: a sandbox whose prepared Python has imported numpy, until that has answered")
    };
    let usable: Vec<_> = [On::Docker, On::Embedded]
        .into_iter()
        .filter(|on| bench.can_use(*on, &mut Vec::new()))
        .collect();
    let root = bench.folder("living-python")?;
    if let Err(error) = make_python(bench, &root).await {
        if matches!(error, Error::Interrupted) {
            return Err(error);
        }
        // What the package manager says has many lines.
        let why = error.to_string().lines().next().unwrap_or_default().to_owned();
        return Ok(usable.into_iter().map(|on| Row::missing(what(on), &why)).collect());
    }
    let image = Image::import(bench, &root).await?;
    let measured = async {
        let mut rows = Vec::new();
        for on in usable {
            let flags = match (on, &image) {
                (On::Docker, Ok(image)) => ["--allowed-image".to_owned(), image.name.clone()],
                (On::Docker, Err(why)) => {
                    rows.push(Row::missing(what(on), why));
                    continue;
                }
                (On::Embedded, _) => ["--rootfs".to_owned(), root.display().to_string()],
            };
            let times = claim(bench, on, &flags, "python", "'sh', '/prepared'").await?;
            let row = Row::figure(what(on), Unit::Seconds, times);
            rows.push(row.target(Target::median_at_most(10e-3)));
        }
        Ok::<_, Error>(rows)
    };
    let rows = measured.await;
    if let Ok(image) = image {
        image.remove().await?;
    }
    rows
}

/// Makes its root, and sees that it answers there.
async fn make_python(bench: &Bench, root: &Path) -> Result<(), Error> {
    let mut make = bench.command(Path::new(DEBIAN), [root]);
    make.args(PACKAGES);
    bench.time(make).await?;
    let program = root.join("prepared");
    std::fs::write(&program, PYTHON).map_err(Error::file("write", &program))?;
    let mut look = bench.command(Path::new("chroot"), [root]);
    look.args(["sh", "-c", "echo hello | sh /prepared"]);
    bench.time(look).await.map(drop)
}

async fn of_engine(
    bench: &Bench,
    counts: Counts,
    on: On,
    controller: Here<'_, Controller>,
    root: Option<RootFs>,
) -> Result<Vec<Row>, Error> {
    let (Ok(controller), Some(root)) = (controller, root) else {
        let why = controller.err().unwrap_or("there is no image on it");
        return Ok(vec![Row::missing(on.to_string(), why)]);
    };
    let folder = bench.folder(&format!("living-{on}"))?;
    let limits = Limits {
        pids: const { std::num::NonZeroU32::new(512).unwrap() },
        max_file_size: ByteSize::b(PART),
        max_write: ByteSize::b(2 * PART),
        operation_timeout: Duration::from_secs(300),
        ..Limits::for_programs()
    };
    let spec = SandboxSpec::new().root(root).processes(Processes::Kept).limits(limits);
    let sandbox = controller.launch(spec.clone().io_dir(&folder)).await?;
    let done = in_sandbox(bench, counts, on, &sandbox).await;
    sandbox.close().await?;
    let mut rows = done?;
    rows.push(frozen(bench, on, controller, &spec).await?);
    Ok(rows)
}

fn busybox(words: &[&str]) -> Command {
    Command::new(TRUE[0]).args(words.iter().copied())
}

/// A process whose stdin stays open.
fn open(command: Command) -> ProcessCommand {
    ProcessCommand { open_stdin: true, ..ProcessCommand::from(command) }
}

async fn end(process: &Process) {
    process.stop().await;
    process.until(Until::Ended).await;
}

/// Waits for output.
async fn output(events: &mut ProcessEvents) -> Result<(), Error> {
    while let Some(event) = events.next().await {
        if let Recorded::Event(ExecutionEvent::Output { stream: OutputStream::Stdout, .. }) =
            &event.event
        {
            return Ok(());
        }
    }
    Err(Error::Operation("the output of a process".to_owned()))
}

/// The seconds that something takes, so often.
async fn times<F: Future<Output = Result<f64, Error>>>(
    bench: &Bench,
    counts: Counts,
    mut once: impl FnMut() -> F,
) -> Result<Vec<f64>, Error> {
    let mut times = Vec::new();
    for turn in 0..counts.warm_up + counts.samples {
        bench.check()?;
        let took = once().await?;
        if turn >= counts.warm_up {
            times.push(took);
        }
    }
    Ok(times)
}

async fn in_sandbox(
    bench: &Bench,
    counts: Counts,
    on: On,
    sandbox: &Sandbox,
) -> Result<Vec<Row>, Error> {
    let row = |what: &str, times| Row::figure(format!("{on}: {what}"), Unit::Seconds, times);
    let most = |docker: f64, embedded: f64| {
        Target::median_at_most(if on == On::Docker { docker } else { embedded })
    };
    let mut rows = Vec::new();
    let agent = process::agent_of(sandbox)?;

    let started = times(bench, counts, || async {
        let started = Instant::now();
        let process = sandbox.start_process(busybox(&["sleep", "1000"])).await?;
        let took = started.elapsed().as_secs_f64();
        end(&process).await;
        Ok(took)
    });
    rows.push(row("a start, until it has its process id", started.await?).target(most(4e-3, 2e-3)));

    let printed = sandbox.start_process(busybox(&["echo", "hello"])).await?;
    printed.until(Until::Ended).await;
    let attached = times(bench, counts, || async {
        let started = Instant::now();
        let mut events = printed.attach(ReadFrom::After(0), ReadMode::Lossy)?;
        output(&mut events).await?;
        Ok(started.elapsed().as_secs_f64())
    });
    let attached = row("attach, until the first output", attached.await?);
    rows.push(attached.target(most(2e-3, 2e-3)));

    let pty = Pty { cols: 80, rows: 24, term: "xterm".to_owned() };
    let shown = sandbox.start_process(open(busybox(&["cat"]).pty(pty))).await?;
    let keys = times(bench, counts, || async {
        let mut events = shown.attach(ReadFrom::Now, ReadMode::Wait)?;
        let started = Instant::now();
        let typed = shown.write_stdin("x".into()).await;
        typed.map_err(|error| Error::Operation(format!("a key: {error}")))?;
        output(&mut events).await?;
        Ok(started.elapsed().as_secs_f64())
    });
    let keys = row("a key, until its echo", keys.await?);
    let mut slow = keys.again(format!("{on}: the same, its p99"));
    slow.aim(Target::p99_at_most(15e-3));
    rows.extend([keys.target(most(1.5e-3, 1.5e-3)), slow]);
    end(&shown).await;

    rows.append(&mut printers(bench, on, sandbox, agent).await?);

    let few = Counts { warm_up: 2, samples: FEW };
    let mut thawed = Vec::new();
    let mut paused = Vec::new();
    for turn in 0..few.warm_up + few.samples {
        bench.check()?;
        let started = Instant::now();
        sandbox.pause().await?;
        let took = started.elapsed().as_secs_f64();
        let started = Instant::now();
        sandbox.resume().await?;
        run_true(sandbox).await?;
        if turn >= few.warm_up {
            paused.push(took);
            thawed.push(started.elapsed().as_secs_f64());
        }
    }
    rows.push(row("pause", paused).target(most(80e-3, 80e-3)));
    rows.push(row("resume, and the answer of a command", thawed).target(most(50e-3, 5e-3)));

    let beside =
        row("`exec true` during a transfer of 1 GiB", beside_transfer(bench, sandbox).await?);
    rows.push(beside.target(Target::p95_at_most(5e-3)));
    Ok(rows)
}

async fn run_true(sandbox: &Sandbox) -> Result<f64, Error> {
    let started = Instant::now();
    let result = sandbox.run(busybox(&TRUE[1..])).await?;
    match result.command_exit_code() {
        Some(0) => Ok(started.elapsed().as_secs_f64()),
        _ => Err(Error::Outcome(format!("{:?}", result.outcome))),
    }
}

/// The processor time of the controller and the agent while processes print without a reader, and the memory
/// that the agent has more.
async fn printers(bench: &Bench, on: On, sandbox: &Sandbox, agent: u32) -> Result<Vec<Row>, Error> {
    let before = process::resident_of(agent)?;
    let mut printers = Vec::new();
    for _ in 0..PRINTERS {
        printers.push(sandbox.start_process(open(busybox(&["sh", "-c", LINES]))).await?);
    }
    let time = || -> Result<[Duration; 2], Error> {
        Ok([process::processor_time(), process::processor_time_of(agent)?])
    };
    let mut used = [Vec::new(), Vec::new()];
    for _ in 0..WATCHES {
        bench.check()?;
        let before = time()?;
        tokio::time::sleep(WATCH).await;
        for ((used, after), before) in used.iter_mut().zip(time()?).zip(before) {
            used.extend(after.checked_sub(before).map(|time| time.as_secs_f64()));
        }
    }
    let grown = process::resident_of(agent)? - before;
    for printer in &printers {
        end(printer).await;
    }
    let [controller, agent] = used;
    let both = controller.iter().zip(&agent).map(|(a, b)| a + b).collect();
    let row = |what: &str, unit, samples| {
        Row::figure(
            format!("{on}: {PRINTERS} processes of 100 lines a second, {what}"),
            unit,
            samples,
        )
    };
    let most = Target::median_at_most(0.15 * WATCH.as_secs_f64());
    Ok(vec![
        row("processor time of controller and agent in ten seconds", Unit::Seconds, both)
            .target(most),
        row("of the controller alone", Unit::Seconds, controller),
        row("the agent grows by", Unit::Bytes, vec![grown])
            .target(Target::median_at_most(4.0 * 1_048_576.0)),
    ])
}

/// How long commands take while files are sent.
async fn beside_transfer(bench: &Bench, sandbox: &Sandbox) -> Result<Vec<f64>, Error> {
    let transfer = async {
        for _ in 0..PARTS {
            let mut writer = sandbox.writer(Write::new("file")).await?;
            let mut content = Content::of(PART);
            loop {
                bench.check()?;
                let block = content.next();
                // The writer reports its error at its end.
                if block.is_empty() || writer.write_all(block).await.is_err() {
                    break;
                }
            }
            writer.finish().await?;
        }
        Ok::<_, Error>(())
    };
    tokio::pin!(transfer);
    let mut times = Vec::new();
    loop {
        let ran = run_true(sandbox);
        tokio::pin!(ran);
        let took = tokio::select! {
            sent = &mut transfer => {
                sent?;
                // One that ran on after it does not count.
                ran.await?;
                return Ok(times);
            }
            took = &mut ran => took?,
        };
        times.push(took);
    }
}

/// What each of many frozen sandboxes takes of the machine's memory, with a process in it.
async fn frozen(
    bench: &Bench,
    on: On,
    controller: &Controller,
    spec: &SandboxSpec,
) -> Result<Row, Error> {
    let count = FROZEN.iter().find(|(engine, _)| *engine == on).map_or(0, |(_, count)| *count);
    let mut sandboxes: Vec<Sandbox> = Vec::new();
    let done = async {
        let before = available()?;
        for _ in 0..count {
            bench.check()?;
            let sandbox = controller.launch(spec.clone()).await?;
            sandbox.start_process(open(busybox(&["cat"]))).await?;
            sandbox.pause().await?;
            sandboxes.push(sandbox);
        }
        Ok::<_, Error>((before - available()?) / f64::from(count))
    };
    let done = done.await;
    for sandbox in &sandboxes {
        sandbox.close().await?;
    }
    let what = format!("{on}: memory of each of {count} frozen sandboxes");
    Ok(Row::figure(what, Unit::Bytes, vec![done?]))
}

/// Bytes of memory that programs of this machine can have.
fn available() -> Result<f64, Error> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kib.unwrap_or(f64::NAN) * 1024.0)
}

/// From nothing to the first answer of the user's own service.
async fn local_start(bench: &Bench, on: On) -> Result<Row, Error> {
    let local = |words: [&str; 2]| {
        let mut command = bench.sandboxctl(words);
        command.env("SANDBOXCTL_ENGINE_KIND", on.to_string());
        command
    };
    let mut starts = Vec::new();
    for turn in 0..2 + FEW {
        let took = bench.time(local(["sandbox", "ls"])).await?;
        bench.time(local(["local", "stop"])).await?;
        if turn >= 2 {
            starts.push(took);
        }
    }
    let what = format!("{on}: `sandboxctl sandbox ls`, which starts the local service");
    Ok(Row::figure(what, Unit::Seconds, starts).target(Target::median_at_most(60e-3)))
}

/// From a creation, for which a process of this command waits, to its answer.
async fn claim(
    bench: &Bench,
    on: On,
    flags: &[String; 2],
    name: &str,
    command: &str,
) -> Result<Vec<f64>, Error> {
    let image = match on {
        On::Docker => format!("image = '{}', ", flags[1]),
        On::Embedded => String::new(),
    };
    let prepared = format!(
        "[{{ name = '{name}', {image}command = [{command}], ready = {{ text = 'up' }}, \
         count = {PREPARED} }}]"
    );
    let data = bench.folder(&format!("living-{on}-{name}"))?.join("data");
    let configure = |command: &mut tokio::process::Command| {
        command.args(flags).env("SANDBOXCTL_POOL_PREPARED", &prepared);
    };
    let service = Service::with(bench, on, &data, 0, configure).await?;
    let done = async {
        let connection = Connection::open(&service).await?;
        let create = format!(r#"{{"spec":{{"prepared":"{name}"}}}}"#);
        let mut times = Vec::new();
        while times.len() < FEW {
            bench.check()?;
            let started = Instant::now();
            let created = connection.ask("POST", "/v1/sandboxes", create.as_bytes()).await?;
            let created: Value = serde_json::from_slice(&created.body).map_err(Error::Worker)?;
            let path = format!("/v1/sandboxes/{}", created["id"].as_str().unwrap_or_default());
            connection.ask("POST", &format!("{path}/processes/1/stdin"), b"hello\n").await?;
            let ended = connection.ask("GET", &format!("{path}/processes/1?wait=60"), b"").await?;
            let took = started.elapsed().as_secs_f64();
            let ended: Value = serde_json::from_slice(&ended.body).map_err(Error::Worker)?;
            if ended["exit_code"] != 0 {
                return Err(Error::Outcome(ended.to_string()));
            }
            // Not one that was started for it.
            if ended["started_at"].as_str() < created["created_at"].as_str() {
                times.push(took);
            }
            connection.ask("DELETE", &path, b"").await?;
            // The next one is ready, and nothing is being started.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok::<_, Error>(times)
    };
    let done = done.await;
    service.stop().await;
    done
}
