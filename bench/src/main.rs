//! Measures sandboxctl against `docker run` and other peers.
//!
//! `cargo run --release -p sandbox-bench` measures every scenario, prints one table and leaves
//! nothing behind. It is not a test: slowness is not a failure.

mod bench;
mod bwrap;
mod container;
mod engines;
mod error;
mod image;
mod interrupt;
mod machine;
mod namespace;
mod ordinary;
mod peers;
mod process;
mod render;
mod report;
mod scenario;
mod service;
mod stats;
mod upstream;

use std::io::{IsTerminal as _, Write as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use clap::builder::PossibleValuesParser;
use serde_json::Value;

use bench::{Bench, Counts, Work};
use error::Error;
use interrupt::Interrupt;
use machine::Machine;
use report::{Report, SCHEMA, Table};
use scenario::Scenario;
use stats::ENOUGH;

/// Where the figures of record are.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/performance.md");

/// Measures sandboxctl beside `docker run` and other peers, as far as this machine has them.
#[derive(Debug, Parser)]
#[command(name = "sandbox-bench")]
struct Cli {
    /// What to measure; everything where none is named.
    #[arg(value_name = "SCENARIO", value_parser = scenario_ids())]
    scenarios: Vec<String>,
    /// Lists the scenarios.
    #[arg(long)]
    list: bool,
    /// How often each figure is measured, in place of each scenario's own count.
    #[arg(long, value_name = "COUNT")]
    samples: Option<NonZeroUsize>,
    /// How often each is done before it counts, in place of each scenario's own count.
    #[arg(long, value_name = "COUNT")]
    warm_up: Option<usize>,
    /// Executions of the scenario that looks for leaks, p10-leaks, on each engine. A thousand take
    /// five minutes or more, most of them on Docker.
    #[arg(long, value_name = "COUNT", default_value = "1000")]
    executions: NonZeroUsize,
    /// Executions of the scenario that looks at what a service keeps, p10-soak, after a thousand and
    /// at the end.
    #[arg(long, value_name = "COUNT", default_value = "20000")]
    soak: NonZeroUsize,
    /// Writes the whole report, every measurement in it, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the figures into docs/src/performance.md.
    #[arg(long)]
    write_docs: bool,
    /// The command line to measure; the release build of this checkout where none is named.
    #[arg(long, value_name = "FILE")]
    sandboxctl: Option<PathBuf>,
    /// Does a scenario's job for the process that started this one.
    #[arg(long, hide = true, requires = "job")]
    worker: Option<String>,
    /// The job.
    #[arg(long, hide = true)]
    job: Option<String>,
    /// Is a server whose tool scripts call.
    #[arg(long, hide = true)]
    upstream: bool,
}

fn scenario_ids() -> PossibleValuesParser {
    PossibleValuesParser::new(scenario::ALL.iter().map(|scenario| scenario.id))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.list {
        for Scenario { id, title, .. } in scenario::ALL {
            println!("{id:<12} {title}");
        }
        return ExitCode::SUCCESS;
    }
    if cli.upstream {
        // Its client is gone if a write fails.
        _ = upstream::serve();
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let done = match (&cli.worker, &cli.job) {
        (Some(id), Some(job)) => runtime.block_on(work(id, job)),
        _ => runtime.block_on(measure(&cli)),
    };
    // A read of stdin is not waited for.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.full_message());
            ExitCode::from(if matches!(error, Error::Interrupted) { 130 } else { 1 })
        }
    }
}

async fn measure(cli: &Cli) -> Result<(), Error> {
    if cli.write_docs && cli.samples.is_some_and(|samples| samples.get() < ENOUGH) {
        return Err(Error::TooFew);
    }
    let interrupt = Interrupt::by_signals().map_err(Error::file("listen for", "signals"))?;
    let sandboxctl = match &cli.sandboxctl {
        Some(path) => path.canonicalize().map_err(Error::file("find", path))?,
        None => build()?,
    };
    let version = version(&sandboxctl)?;
    let bench = Bench::new(sandboxctl, interrupt, cli.executions.get(), cli.soak.get()).await?;
    let docker = bench.docker.as_ref().ok().map(|docker| docker.version.clone());
    let machine = Machine::here(docker, version);
    let mut report =
        Report { schema: SCHEMA, machine, peers: bench.peers.all(), tables: Vec::new() };
    let measured = tables(cli, &bench, &mut report.tables).await;
    bench.tidy().await?;
    print!("{}", render::text(&report));
    if let Some(path) = &cli.json {
        let json = serde_json::to_string_pretty(&report).expect("a report can be written");
        std::fs::write(path, json + "\n").map_err(Error::file("write", path))?;
    }
    // Not where the session was cut short: figures of record are whole.
    measured?;
    if cli.write_docs {
        write_docs(Path::new(PAGE), &report)?;
    }
    Ok(())
}

async fn tables(cli: &Cli, bench: &Bench, tables: &mut Vec<Table>) -> Result<(), Error> {
    for Scenario { id, title, counts, measure, .. } in scenario::ALL {
        if !cli.scenarios.is_empty() && !cli.scenarios.iter().any(|asked| asked == id) {
            continue;
        }
        bench.check()?;
        eprintln!("measuring {id}: {title}");
        let counts = Counts {
            warm_up: cli.warm_up.unwrap_or(counts.warm_up),
            samples: cli.samples.map_or(counts.samples, NonZeroUsize::get),
        };
        let rows = measure(bench, counts).await?;
        tables.push(Table { id, title, rows });
    }
    Ok(())
}

/// Does a job and prints its result, for the process that started this one.
async fn work(id: &str, job: &str) -> Result<(), Error> {
    let interrupt = Interrupt::by_stdin();
    let work: Work<Value> = serde_json::from_str(job).map_err(Error::Worker)?;
    let does = scenario::ALL.iter().find(|scenario| scenario.id == id).and_then(|it| it.work);
    let does = does.unwrap_or_else(|| panic!("scenario '{id}' has no work for others"));
    let result = does(work, interrupt).await?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{result}").map_err(Error::file("write to", "stdout"))
}

/// Builds the binary of this checkout as packages have it, next to this one.
fn build() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(Error::file("find", "this program"))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let start = |source| Error::Start { program: "cargo".to_owned(), source };
    let mut command = Command::new(cargo);
    command.args(["build", "--profile", "dist", "--package", "sandboxctl", "--target-dir"]);
    command.arg(folder.parent().unwrap_or(folder)).current_dir(env!("CARGO_MANIFEST_DIR"));
    if !std::io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let status = command.status().map_err(start)?;
    if !status.success() {
        return Err(Error::Command {
            command: "cargo build --profile dist --package sandboxctl".to_owned(),
            how: "failed".to_owned(),
            stderr: String::new(),
        });
    }
    Ok(folder.parent().unwrap_or(folder).join("dist/sandboxctl"))
}

fn version(sandboxctl: &Path) -> Result<String, Error> {
    let start = |source| Error::Start { program: sandboxctl.display().to_string(), source };
    let said = Command::new(sandboxctl).arg("--version").output().map_err(start)?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

fn write_docs(path: &Path, report: &Report) -> Result<(), Error> {
    let page = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    let page =
        render::splice(&page, report).map_err(|id| Error::NoPlace { path: path.to_owned(), id })?;
    std::fs::write(path, page).map_err(Error::file("write", path))
}
