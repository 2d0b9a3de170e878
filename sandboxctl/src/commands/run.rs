//! `run`: runs scripts, from their files to their results.

mod remote;
mod report;

use std::cell::Cell;
use std::pin::pin;

use futures_util::StreamExt as _;
use sandbox_api::{Lifespan, LimitKey, Outcome, RunResult, SandboxSpec, Script};
use sandbox_controller::{Config, Controller, Run, Sandbox};

use super::collect::Artifacts;
use super::receipt::{Issuer, Subjected};
use super::staging::{Staging, refuse_diff_beside_output};
use super::{Context, block_on, hints, launch, network, reports};
use crate::ci::Stdout;
use crate::cli::RunArgs;
use crate::config::{Key, Settings};
use crate::error::Error;
use crate::input::{self, ScriptArgument, ScriptSource};
use crate::report::Reports;
use crate::signals::Signals;
use report::{Ended, Report};

pub fn run(context: &Context<'_>, mut args: RunArgs) -> Result<u8, Error> {
    let stdout = if args.json || args.result_only { Stdout::Data } else { Stdout::Log };
    let names = args.scripts().iter().map(ScriptArgument::name).collect::<Vec<_>>().join(" ");
    reports::begin_ci(context, args.reports.ci, &format!("sandboxctl run {names}"), stdout)?;
    if let Some(client) = args.remote.client(&context.environment)? {
        return remote::run(context, &args, client);
    }
    args.add_volumes()?;
    let args = &args;
    let mut settings = context.settings_with(|flags| args.add_flags(flags))?;
    if args.keep && args.root.root(&settings).supports_exec() {
        settings.keep_io_dir();
    }
    // Everything is read before the first one runs.
    reports::begin_files(context, &settings);
    reports::check_files(context, &args.reports, &args.receipt, &args.changes, &settings)?;
    let stdin = args.scripts().iter().any(|script| script.is_stdin()).then_some("SCRIPT -");
    let (secrets, stdin) = args.secrets.read(&context.environment, stdin)?;
    let (key, stdin) = args.receipt.key(&context.environment, stdin)?;
    let scripts = input::scripts(&args.scripts())?;
    hints::check_languages(&scripts)?;
    let arguments = input::arguments(args.args_file.as_deref(), &args.args)?;
    let spec = spec(context, args, &settings, stdin.as_deref())?;
    let mut files = reports::named_files(
        context,
        &context.controller(&settings),
        (&args.reports, &args.receipt, &args.changes, &args.artifacts, &args.secrets),
        &spec,
    )?;
    for script in args.scripts() {
        if let ScriptArgument::File(file) = script
            && !script.is_stdin()
        {
            files.reads("the script", [file]);
        }
    }
    files.reads("--args-file", args.args_file.as_deref());
    files.check()?;
    let artifacts = Artifacts::of(&args.artifacts, &spec)?.of_one_run(scripts.len())?;
    let is_listed = args.receipt.file.is_some() && artifacts.directory().is_none();
    if args.result_only {
        refuse_diff_beside_output(&args.changes, context.output)?;
    }
    let (staging, spec) = Staging::of(&args.changes, args.json, scripts.len(), spec, is_listed)?;
    let issuer = Issuer::of(context, &args.receipt, &spec, &artifacts, key, scripts.len())?;
    if let Some(issuer) = &issuer {
        issuer.print_needs(context.output);
    }
    let reports = Reports::of(
        &args.reports.reports,
        spec.io_dir.as_deref(),
        scripts.iter().map(reports::script).collect(),
    )?;
    let config = context.controller(&settings);
    reports::check_runner_files(context, spec.io_dir.as_deref(), &config)?;
    let session = Session {
        context,
        settings: &settings,
        args,
        spec,
        artifacts,
        staging,
        issuer,
        reports: &reports,
        is_streamed: scripts.len() == 1 || args.jobs == 1,
        has_heads: scripts.len() > 1,
    };
    let jobs = scripts.into_iter().enumerate().map(|(index, source)| {
        let script = Script::new(source.source.clone()).args(arguments.clone());
        let now = args.reproducible.now.map(|moment| moment.0);
        let script = script.seed(args.reproducible.seed).now(now).secrets(secrets.clone());
        (Job { index, source }, script)
    });
    let ended = block_on(session.run(config, jobs.collect()));
    hints::unread_stdin(context.output, hints::STDIN_OF_RUN);
    reports::finish(context.output, reports, ended)
}

/// The request to the controller. Errors are reported before an engine is contacted.
fn spec(
    context: &Context<'_>,
    args: &RunArgs,
    settings: &Settings,
    stdin: Option<&str>,
) -> Result<SandboxSpec, Error> {
    let limits = settings.allowed_limits()?;
    if limits.vm_memory >= limits.memory {
        context.output.notice(&format!(
            "{} is {}, and {} is {}: a script that fills it is killed with its container",
            settings.named(Key::Limit(LimitKey::VmMemory)),
            limits.vm_memory,
            settings.named(Key::Limit(LimitKey::Memory)),
            limits.memory,
        ));
    }
    let spec = launch::spec(context, &args.sandbox, settings, args.root.root(settings), stdin)?;
    let spec = launch::with_hosts(spec, settings)?;
    Ok(spec.lifespan(Lifespan::OneRun).io_errors(settings.io_errors()))
}

/// A script that ran.
struct Ran<T> {
    exit_code: u8,
    is_cancelled: bool,
    /// What is reported of it.
    of: T,
}

/// Runs scripts, as many at once as was asked for, and reports them in order. A signal is for all of them:
/// none begins after one, and those that ran are reported. The exit code is the first that is not 0.
async fn in_order<J, T>(
    jobs: Vec<J>,
    at_once: usize,
    run: impl AsyncFn(J) -> Result<Ran<T>, Error>,
    report: impl Fn(T) -> Result<(), Error>,
) -> Result<u8, Error> {
    let is_over = Cell::new(false);
    let runs = futures_util::stream::iter(jobs)
        .map(async |job| {
            if is_over.get() {
                return None;
            }
            let ran = run(job).await;
            let is_last = match &ran {
                Ok(ran) => ran.is_cancelled,
                Err(error) => matches!(error, Error::Signalled(_)),
            };
            is_over.set(is_over.get() || is_last);
            Some(ran)
        })
        .buffered(at_once);
    let mut runs = pin!(runs);
    let (mut code, mut signalled) = (0, None);
    while let Some(ran) = runs.next().await {
        match ran {
            None => {}
            Some(Err(error @ Error::Signalled(_))) => _ = signalled.get_or_insert(error),
            Some(ran) => {
                let Ran { exit_code, of, .. } = ran?;
                report(of)?;
                if code == 0 {
                    code = exit_code;
                }
            }
        }
    }
    signalled.map_or(Ok(code), Err)
}

/// A script of several.
struct Job {
    /// Its position on the command line.
    index: usize,
    source: ScriptSource,
}

/// The scripts of one call, from connecting to the engine to the last result.
struct Session<'a> {
    context: &'a Context<'a>,
    settings: &'a Settings,
    args: &'a RunArgs,
    /// The sandbox of each.
    spec: SandboxSpec,
    /// What is copied out of it.
    artifacts: Artifacts,
    /// What becomes of their changes.
    staging: Staging,
    /// What is written of what it made of what.
    issuer: Option<Issuer>,
    /// Where the results are written to.
    reports: &'a Reports,
    /// One runs at a time, and is printed as it comes.
    is_streamed: bool,
    /// There are several, whose outputs have their names above them.
    has_heads: bool,
}

impl Session<'_> {
    /// Runs the scripts.
    async fn run(&self, config: Config, jobs: Vec<(Job, Script)>) -> Result<u8, Error> {
        launch::with_engine(self.context, config, async |controller, signals| {
            let ended = self.run_all(controller, jobs).await;
            // Each run had the signals that came meanwhile; the next one is for what follows.
            *signals = Signals::listen()?;
            ended
        })
        .await
    }

    /// As [`run`](Self::run), on an engine.
    async fn run_all(
        &self,
        controller: &Controller,
        jobs: Vec<(Job, Script)>,
    ) -> Result<u8, Error> {
        let run = async |(job, script): (Job, Script)| {
            let index = job.index;
            let ran = self.run_one(controller, job, script).await;
            let ran = ran.inspect_err(|error| self.reports.failed(index, error));
            ran.map(|(job, result, ended)| Ran {
                exit_code: ended.copied.exit_code(result.exit_code()),
                is_cancelled: matches!(result.outcome, Outcome::Cancelled { .. }),
                of: (job, result, ended),
            })
        };
        let report = |(Job { source, .. }, result, ended): (Job, RunResult, Ended)| {
            if self.is_streamed {
                return Ok(());
            }
            let report = self.report(&source);
            for entry in &result.logs {
                report.log(entry)?;
            }
            if !self.args.json {
                network::print_all_refused(self.context.output, result.network.as_ref());
            }
            report.end(&result, &ended)?;
            ended.issued.print(self.context.output);
            Ok(())
        };
        in_order(jobs, self.args.jobs.into(), run, report).await
    }

    /// Runs one script in a sandbox of its own.
    async fn run_one(
        &self,
        controller: &Controller,
        job: Job,
        script: Script,
    ) -> Result<(Job, RunResult, Ended), Error> {
        let mut signals = Signals::listen()?;
        let spec = self.spec.clone().title(launch::title(&job.source.name));
        let context = self.context;
        let ran = launch::in_sandbox_of(
            context,
            self.settings,
            controller,
            &mut signals,
            spec,
            async |sandbox, signals| {
                let run = sandbox.start(script.clone());
                let follow = async |run| self.follow(sandbox, run, &job, &script).await;
                launch::follow_to_end(signals, run, Run::cancel_handle, follow).await
            },
        )
        .await;
        ran.map(|(result, ended)| (job, result, ended))
    }

    /// Prints a run's output while it lasts, and its result, unless others run beside it.
    async fn follow(
        &self,
        sandbox: &Sandbox,
        mut run: Run,
        Job { index, source }: &Job,
        script: &Script,
    ) -> Result<(RunResult, Ended), Error> {
        self.reports.started(*index);
        if !self.is_streamed {
            while let Some(entry) = run.next_log().await {
                self.reports.log(*index, &entry);
            }
            let result = run.wait().await?;
            return self.end(sandbox, result, (*index, source), script).await;
        }
        let report = self.report(source);
        let refused = run.refused_hosts();
        let finish = async {
            while let Some(entry) = run.next_log().await {
                self.reports.log(*index, &entry);
                report.log(&entry)?;
            }
            Ok::<_, Error>(run.wait().await?)
        };
        let result = match self.args.json {
            true => finish.await?,
            false => {
                let notes = network::print_refused(self.context.output, refused);
                tokio::join!(biased; notes, finish).1?
            }
        };
        let (result, ended) = self.end(sandbox, result, (*index, source), script).await?;
        report.end(&result, &ended)?;
        ended.issued.print(self.context.output);
        Ok((result, ended))
    }

    /// Copies, commits and records what a run left that has ended, and reports it.
    async fn end(
        &self,
        sandbox: &Sandbox,
        mut result: RunResult,
        (index, source): (usize, &ScriptSource),
        script: &Script,
    ) -> Result<(RunResult, Ended), Error> {
        let mut copied = self.artifacts.copy(sandbox, &result.outcome).await?;
        let staged =
            self.staging.finish(sandbox, &mut result.execution, self.context.output).await?;
        let ran = Subjected::Script(script, &result.tests);
        let issued = Issuer::issue(
            &self.issuer,
            sandbox,
            &ran,
            &result.execution,
            &mut copied,
            &self.staging,
        );
        let issued = issued.await;
        let ended = Ended { copied, staged, issued };
        self.reports.ran(index, &report::document(source, &result, &ended));
        Ok((result, ended))
    }

    fn report<'b>(&'b self, script: &'b ScriptSource) -> Report<'b> {
        let Self { context, args, .. } = self;
        if self.has_heads && !args.json {
            context.output.notice(&format!("running {}", script.name));
        }
        Report {
            output: context.output,
            json: args.json,
            result_only: args.result_only,
            raw: args.raw,
            keep: args.keep,
            script,
            here: &context.environment.working_directory,
        }
    }
}
