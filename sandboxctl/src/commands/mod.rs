//! The commands: each one loads what it needs, calls the controller, and prints the result.

mod artifacts;
mod check;
mod cluster;
mod collect;
pub mod completions;
mod config;
mod database;
mod doctor;
mod exec;
mod execution;
mod executions;
mod fs;
mod gc;
mod hints;
mod image;
mod launch;
mod learn;
mod local;
mod manual;
mod mcp;
mod progress;
mod ps;
mod receipt;
mod replay;
mod reports;
mod run;
mod sandbox;
mod serve;
mod server;
mod staging;
mod terminal;
mod text;
mod token;
mod tools;
mod transfer;
mod upstream;

use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_controller::{AuditReport, Config, Controller, Reaper, Sweep};

use crate::ci::{CiMode, Stdout};
use crate::cli::{Cli, Command, Global};
use crate::config::{Flags, Settings};
use crate::error::Error;
use crate::output::Output;
use crate::signals::Signals;
use crate::{render, target};
use sandbox_env::Environment;

/// How long the engine is given to remove what a service left.
const REMOVAL: Duration = Duration::from_secs(30);

/// The context of every command.
struct Context<'a> {
    global: &'a Global,
    environment: Environment,
    output: &'a Output,
}

/// Executes the command line, and returns the exit code.
///
/// # Errors
///
/// [`Error`] if our side failed.
pub fn run(cli: Cli, output: &Output) -> Result<u8, Error> {
    let Cli { global, command, json } = cli;
    let environment = Environment::capture()
        .map_err(|source| Error::System { what: "the working directory".into(), source })?;
    let context = Context { global: &global, environment, output };
    if let Some(title) = command.quoting_title() {
        let stdout = if json.is_some() { Stdout::Data } else { Stdout::Log };
        reports::begin_ci(&context, CiMode::Auto, title, stdout)?;
    }
    match command {
        Command::Run(args) => run::run(&context, *args.0),
        Command::Exec(args) => exec::exec(&context, *args.0),
        Command::Fs(args) => fs::fs(&context, &args),
        Command::Check(args) => check::check(&context, &args),
        Command::Types => output.text(sandbox_mcp::SCRIPT_API).map(|()| 0),
        Command::Artifacts(command) => artifacts::artifacts(&context, command),
        Command::Keys(command) => receipt::keys(&context, &command),
        Command::Receipt(command) => receipt::receipt(&context, &command),
        Command::Replay(args) => replay::replay(&context, &args),
        Command::Image(command) => image::image(&context, command),
        Command::Ps(args) => ps::ps(&context, &args),
        Command::Gc(args) => gc::gc(&context, &args),
        Command::Doctor(args) => doctor::doctor(&context, &args),
        Command::Tool(args) => tools::tool(&context, &args),
        Command::Tools(args) => tools::tools(&context, &args),
        Command::Serve(args) => serve::serve(&context, &args),
        Command::Executions(args) => executions::executions(&context, *args.0),
        Command::Sandbox(args) => sandbox::sandbox(&context, *args.0),
        Command::Local(command) => local::local(&context, command),
        Command::Token(command) => token::token(&context, command),
        Command::Server(command) => server::server(&context, &command),
        Command::Cluster(command) => cluster::cluster(&context, &command),
        Command::Database(command) => database::database(&context, &command),
        Command::Mcp(args) => mcp::mcp(&context, &args),
        Command::Config(command) => config::config(&context, &command),
        Command::Completions { shell } => completions::print(&context, shell),
        Command::Man { dir } => manual::man(&context, dir.as_deref()),
    }
}

/// In a job, the error of an invalid command line of `run` or `exec` is printed as others are: in a
/// group, with an annotation.
pub fn begin_job_of_usage(
    output: &Output,
    asked: Option<(&str, &clap::ArgMatches)>,
    wants_json: bool,
) {
    let Some((name @ ("run" | "exec"), given)) = asked else { return };
    let Ok(environment) = Environment::capture() else { return };
    let mode = given.try_get_one::<CiMode>("ci").ok().flatten().copied().unwrap_or_default();
    let stdout = if wants_json { Stdout::Data } else { Stdout::Log };
    let global = &Global::default();
    let context = Context { global, environment, output };
    // Without a group the error is printed all the same.
    _ = reports::begin_ci(&context, mode, &format!("sandboxctl {name}"), stdout);
}

impl Context<'_> {
    /// The settings, with the global flags.
    fn settings(&self) -> Result<Settings, Error> {
        self.settings_with(|_| {})
    }

    /// The settings, with the command's own flags.
    fn settings_with(&self, add: impl FnOnce(&mut Flags)) -> Result<Settings, Error> {
        let mut flags = self.global.flags();
        add(&mut flags);
        Ok(Settings::load(&self.environment, flags)?)
    }

    /// The configuration of the controller.
    fn controller(&self, settings: &Settings) -> Config {
        settings.controller(&self.environment)
    }

    /// Refuses to write into a directory of sandboxctl's own. `what` is the argument that names it.
    fn check_output(&self, what: &str, path: &Path) -> Result<(), Error> {
        target::refuse_own(what, path, &self.controller(&self.settings()?))
    }

    /// Connects, works, and waits until everything that is to be removed is removed. Leftovers of
    /// crashed controllers are only handled by commands for that purpose.
    fn with_controller<T, E>(
        &self,
        work: impl AsyncFnOnce(&Controller) -> Result<T, E>,
    ) -> Result<T, Error>
    where
        Error: From<E>,
    {
        let config = self.controller(&self.settings()?);
        // None of it is audited.
        let config = Config { sweep: Sweep::Never, audit: None, ..config };
        block_on(launch::with_engine(self, config, async |controller, signals| {
            Ok(signals.guard(work(controller)).await??)
        }))
    }

    /// Works on the leftovers of sandboxes, on every engine.
    fn with_reaper<T>(
        &self,
        work: impl AsyncFnOnce(&Reaper) -> Result<T, sandbox_controller::Error>,
    ) -> Result<T, Error> {
        let config = self.controller(&self.settings()?);
        guarded(async { Ok(work(&Reaper::connect(&config).await?).await?) })
    }

    /// Waits until everything that is to be removed is removed, and reports lost audit lines, and what
    /// interrupted commits were completed without. A signal ends the wait; then the next command
    /// removes the rest.
    async fn close(&self, controller: Controller, signals: &mut Signals) {
        let conflicts = controller.commit_conflicts();
        let closed = signals.guard(controller.close()).await;
        for conflict in conflicts.take() {
            self.output.warning(&conflict.to_string());
        }
        let Ok(Some(report)) = closed else { return };
        let AuditReport { file, lost, failure, .. } = report;
        if lost > 0 || failure.is_some() {
            let why = failure.map(|why| format!(" ({why})")).unwrap_or_default();
            let lines = render::count(lost, "line", "lines");
            self.output.warning(&format!("the audit {} lacks {lines}{why}", file.display()));
        }
    }

    /// Closes a controller, if nothing else has it a while later: tasks of its service that end now may.
    async fn close_shared(&self, mut controller: Arc<Controller>, signals: &mut Signals) {
        let since = Instant::now();
        let controller = loop {
            match Arc::try_unwrap(controller) {
                Ok(controller) => break controller,
                Err(_) if since.elapsed() > REMOVAL => return,
                Err(shared) => controller = shared,
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        _ = tokio::time::timeout(REMOVAL, self.close(controller, signals)).await;
    }

    async fn connect(&self, config: Config, signals: &mut Signals) -> Result<Controller, Error> {
        let controller = signals.guard(Controller::connect(config)).await??;
        if let Some(notice) = &controller.engine().notice {
            self.output.notice(notice);
        }
        Ok(controller)
    }
}

/// Runs a command's asynchronous part, which a signal ends.
fn guarded<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    block_on(async { Signals::listen()?.guard(work).await? })
}

/// Runs a command's asynchronous part.
fn block_on<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let mut done = None;
    run_to_end(pin!(async { done = Some(work.await) }))?;
    done.expect("it has run to its end")
}

/// Not generic: the runtime's code would be compiled for each command.
fn run_to_end(work: Pin<&mut dyn Future<Output = ()>>) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| Error::System { what: "the runtime".into(), source })?;
    runtime.block_on(work);
    // Blocked threads, such as a read of stdin, are not waited for.
    runtime.shutdown_background();
    Ok(())
}
