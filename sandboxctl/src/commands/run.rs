//! `run`: a script, from its file to its result.

mod report;

use std::time::Duration;

use sandbox_controller::{
    Config, Controller, Error as ControllerError, Lifespan, LimitKey, Rebuild, Run, SandboxSpec,
    Script,
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
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    let given = input::script(&args.script)?;
    let arguments = input::arguments(args.args_file.as_deref(), &args.args)?;
    let spec = spec(context, args, &settings)?;
    let config = context.controller(&settings);
    let script = Script::new(given.source.clone()).args(arguments);
    let report = Report {
        output: context.output,
        json: args.json,
        given: &given,
        here: &context.environment.working_directory,
    };
    block_on(Session { context, settings: &settings, report }.run(config, spec, script))
}

/// What is asked of the controller. What is wrong is told before an engine is.
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
    let mut spec = SandboxSpec::new()
        .lifespan(Lifespan::OneRun)
        .limits(limits)
        .io_errors(settings.io_errors())
        .user(args.files.user.map(|user| (user.0, user.1)));
    if settings.io_enabled() {
        spec = spec.io_dir(settings.io_dir(&context.environment.working_directory)?);
    } else if !args.files.inputs.is_empty() {
        let why = format!("there are no files at all by {}", settings.named(Key::IoEnabled));
        return Err(Error::usage("--in", why));
    } else {
        spec = spec.no_io();
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
    settings: &'a Settings,
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
        let output = self.context.output;
        let launch = async {
            if !controller.knows_its_image() {
                let mut told = false;
                let tell = |_: &str| {
                    if !std::mem::replace(&mut told, true) {
                        output.progress("building the sandbox image, as the first run does");
                    }
                };
                controller.image_build(Rebuild::IfMissing, tell).await?;
            }
            let launch = controller.launch(spec);
            tokio::pin!(launch);
            match tokio::time::timeout(SLOW, &mut launch).await {
                Ok(launched) => launched,
                Err(_) => {
                    output.progress("waiting for the engine");
                    launch.await
                }
            }
        };
        tokio::pin!(launch);
        let sandbox = match signals.guard(&mut launch).await {
            Ok(launched) => launched.map_err(|error| named(error, self.settings))?,
            Err(signalled) => {
                // An engine makes what it was asked for, whoever still waits: so it is waited
                // for, and then removed. Another signal does not wait.
                output.progress("cleaning up");
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

/// An error of the controller's, with the flag or key of ours that is the reason for it.
fn named(error: ControllerError, settings: &Settings) -> Error {
    let what = match &error {
        ControllerError::WorkdirOutside { .. } => "--workdir".to_owned(),
        ControllerError::GuestPath { what: "the working directory", .. } => "--workdir".to_owned(),
        ControllerError::GuestPath { what: "the mount path", .. } => "--mount-path".to_owned(),
        ControllerError::MountTaken { .. } => "--mount-path".to_owned(),
        ControllerError::IoDir { .. } => settings.named(Key::IoDir),
        ControllerError::Input { .. } => "--in".to_owned(),
        ControllerError::Engine { source, .. } => {
            let message = source.to_string();
            match settings.text(Key::EngineRuntime) {
                Some(name) if message.contains("runtime") && message.contains(name) => {
                    let what = settings.named(Key::EngineRuntime);
                    return Error::usage(what, message)
                        .with_hint("`sandboxctl doctor` lists the runtimes that the engine has");
                }
                _ => return error.into(),
            }
        }
        _ => return error.into(),
    };
    Error::Usage { what, why: error.full_message(), hint: error.hint() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, Value};
    use crate::environment::Environment;

    #[test]
    fn what_the_controller_refuses_names_its_flag_or_key() {
        let folder = tempfile::tempdir().unwrap();
        let environment =
            Environment::made_up(folder.path(), &[("SANDBOXCTL_ENGINE_RUNTIME", "nope")]);
        let mut flags = Flags::default();
        flags.set(Key::IoDir, Some(Value::Path("/x".into())));
        let settings = Settings::load(&environment, flags).unwrap();
        let text = |error| named(error, &settings).to_text();

        let error = ControllerError::IoDir { path: "/x".into(), reason: "it is a link".into() };
        assert_eq!(text(error), "--io-dir: cannot use /x as the io dir: it is a link");
        let error = ControllerError::MountTaken { path: "/".into(), taken: "/proc".into() };
        let words = "--mount-path: the io dir cannot be at /: /proc is the sandbox's own";
        assert_eq!(text(error), words);
        let error = ControllerError::WorkdirOutside { workdir: "/tmp".into() };
        assert!(text(error).starts_with("--workdir: "));
        assert_eq!(
            settings.named(Key::EngineRuntime),
            "engine.runtime (SANDBOXCTL_ENGINE_RUNTIME)"
        );
    }
}
