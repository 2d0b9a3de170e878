//! `run`: runs a script, from its file to its result.

mod report;

use sandbox_api::{Lifespan, LimitKey, SandboxSpec, Script};
use sandbox_controller::{Config, Run};

use super::{Context, block_on, launch};
use crate::cli::RunArgs;
use crate::config::{Key, Settings};
use crate::error::Error;
use crate::input;
use report::Report;

pub fn run(context: &Context<'_>, args: &RunArgs) -> Result<u8, Error> {
    let mut settings = context.settings_with(|flags| args.add_flags(flags))?;
    if args.keep && args.root.root(&settings).supports_exec() {
        settings.keep_io_dir();
    }
    let source = input::script(&args.script)?;
    let arguments = input::arguments(args.args_file.as_deref(), &args.args)?;
    let spec = spec(context, args, &settings)?;
    let config = context.controller(&settings);
    let script = Script::new(source.source.clone()).args(arguments);
    let report = Report {
        output: context.output,
        json: args.json,
        keep: args.keep,
        script: &source,
        here: &context.environment.working_directory,
    };
    block_on(Session { context, settings: &settings, report }.run(config, spec, script))
}

/// The request to the controller. Errors are reported before an engine is contacted.
fn spec(context: &Context<'_>, args: &RunArgs, settings: &Settings) -> Result<SandboxSpec, Error> {
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
    let stdin = input::is_stdin(&args.script).then_some("SCRIPT -");
    let spec = launch::spec(context, &args.sandbox, settings, args.root.root(settings), stdin)?;
    let spec = launch::with_hosts(spec, settings)?;
    Ok(spec.lifespan(Lifespan::OneRun).io_errors(settings.io_errors()))
}

/// One run, from connecting to the engine to the result.
struct Session<'a> {
    context: &'a Context<'a>,
    settings: &'a Settings,
    report: Report<'a>,
}

impl Session<'_> {
    async fn run(&self, config: Config, spec: SandboxSpec, script: Script) -> Result<u8, Error> {
        launch::in_sandbox(self.context, self.settings, config, spec, async |sandbox, signals| {
            let run = sandbox.start(script);
            launch::follow_to_end(signals, run, Run::cancel_handle, async |run| {
                self.follow(run).await
            })
            .await
        })
        .await
    }

    /// Prints a run's output while it lasts, and its result.
    async fn follow(&self, mut run: Run) -> Result<u8, Error> {
        while let Some(entry) = run.next_log().await {
            self.report.log(&entry)?;
        }
        let result = run.wait().await?;
        self.report.end(&result)?;
        Ok(result.exit_code())
    }
}
