//! `run`: a script, from its file to its result.

mod report;

use std::time::Duration;

use sandbox_controller::{
    Config, Controller, Error as ControllerError, Lifespan, Run, SandboxSpec, Script,
};

use super::{Context, block_on};
use crate::cli::RunArgs;
use crate::config::{Key, Settings};
use crate::error::Error;
use crate::input;
use crate::signals::{self, Signals};
use report::Report;

/// A launch that takes longer is worth a word.
const SLOW: Duration = Duration::from_millis(700);

pub fn run(context: &Context<'_>, args: &RunArgs) -> Result<u8, Error> {
    if args.files.output_dir.is_some() {
        return Err(Error::usage("--output-dir", "there is no such flag any more")
            .with_hint("the directory for a script's files is named by --io-dir"));
    }
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    let given = input::script(&args.script)?;
    let arguments = input::arguments(args.args_file.as_deref(), &args.args)?;
    let spec = spec(context, args, &settings)?;
    let config = context.controller(&settings)?;
    let script = Script::new(given.source.clone()).args(arguments);
    let report = Report {
        output: context.output,
        json: args.json,
        given: &given,
        here: &context.environment.working_directory,
    };
    block_on(Session { context, report }.run(config, spec, script))
}

/// What is asked of the controller. What is wrong is told before an engine is.
fn spec(context: &Context<'_>, args: &RunArgs, settings: &Settings) -> Result<SandboxSpec, Error> {
    let limits = settings.limits();
    limits.check(&settings.ceiling()).map_err(ControllerError::from)?;
    let mut spec = SandboxSpec::new()
        .lifespan(Lifespan::OneRun)
        .limits(limits)
        .io_errors(settings.io_errors())
        .user(args.files.user.map(|user| (user.0, user.1)));
    if settings.io_enabled() {
        let io_dir = settings.io_dir(&context.environment.working_directory)?;
        if io_dir.metadata().is_ok_and(|found| !found.is_dir()) {
            let place = &settings.setting(Key::IoDir).place;
            let why = format!("{} is not a directory", io_dir.display());
            return Err(Error::usage(place.to_string(), why));
        }
        spec = spec.io_dir(io_dir);
    }
    if let Some(path) = &args.files.mount_path {
        spec = spec.mount_path(path);
    }
    if let Some(path) = &args.files.workdir {
        spec = spec.workdir(path);
    }
    if let Some(paths) = settings.allowed_paths() {
        spec = spec.allowed_paths(paths);
    }
    let inputs = input::inputs(&args.files.inputs, &args.script)?;
    Ok(inputs.into_iter().fold(spec, SandboxSpec::input))
}

/// One run, from the engine to its end.
struct Session<'a> {
    context: &'a Context<'a>,
    report: Report<'a>,
}

impl Session<'_> {
    async fn run(&self, config: Config, spec: SandboxSpec, script: Script) -> Result<u8, Error> {
        let mut signals = Signals::listen()?;
        let controller = self.context.connect(config, &mut signals).await?;
        let ended = self.sandbox(&controller, &mut signals, spec, script).await;
        // The result is out; what is left to remove does not hold it up. A signal does not wait:
        // what is left then is removed by the next command.
        _ = signals.guard(controller.close()).await;
        ended
    }

    async fn sandbox(
        &self,
        controller: &Controller,
        signals: &mut Signals,
        spec: SandboxSpec,
        script: Script,
    ) -> Result<u8, Error> {
        let launch = async {
            let launch = controller.launch(spec);
            tokio::pin!(launch);
            match tokio::time::timeout(SLOW, &mut launch).await {
                Ok(launched) => launched,
                Err(_) => {
                    self.context
                        .output
                        .progress("waiting for the engine (a first run builds the image)");
                    launch.await
                }
            }
        };
        tokio::pin!(launch);
        let sandbox = match signals.guard(&mut launch).await {
            Ok(launched) => launched.map_err(with_flag)?,
            Err(signalled) => {
                // An engine makes what it was asked for, whoever still waits: so it is waited
                // for, and then removed. Another signal does not wait.
                self.context.output.progress("cleaning up");
                if let Ok(Ok(sandbox)) = signals.guard(launch).await {
                    _ = signals.guard(sandbox.close()).await;
                }
                return Err(signalled);
            }
        };
        let ended = match signals.guard(sandbox.start(script)).await {
            Ok(Ok(run)) => {
                let canceller = signals::cancel(run.cancel_handle())?;
                let ended = self.follow(run).await;
                drop(canceller);
                // The signal that ended the run is used up; the next one is for what follows.
                *signals = Signals::listen()?;
                ended
            }
            Ok(Err(error)) => Err(error.into()),
            Err(signalled) => Err(signalled),
        };
        // A run that was reported has ended; that its container could not be removed yet is worth
        // a word and changes nothing.
        if let Ok(Err(error)) = signals.guard(sandbox.close()).await {
            self.context.output.notice(&error.full_message());
        }
        ended
    }

    /// Shows a run while it lasts, and its end.
    async fn follow(&self, mut run: Run) -> Result<u8, Error> {
        while let Some(entry) = run.next_log().await {
            self.report.log(&entry)?;
        }
        let result = run.wait().await?;
        self.report.end(&result)?;
        Ok(result.exit_code())
    }
}

/// An error of the controller's that a flag of ours is the reason for, with its name.
fn with_flag(error: ControllerError) -> Error {
    let flag = match &error {
        ControllerError::WorkdirOutside { .. } => "--workdir",
        ControllerError::MountTaken { .. } => "--mount-path",
        ControllerError::IoDir { .. } => "--io-dir",
        _ => return error.into(),
    };
    Error::usage(flag, error.full_message())
}
