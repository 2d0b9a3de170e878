//! Launching a sandbox for a command, from flags and settings.

use std::time::Duration;

use sandbox_api::hosts::Target;
use sandbox_api::injection::Place;
use sandbox_api::{InjectError, InjectRule, Injection, PrivateIo, RootFs, SandboxSpec, Workload};
use sandbox_controller::host_tools::ToolGrant;
use sandbox_controller::{
    CancelHandle, Config, Controller, Error as ControllerError, Execution, PreparedSandbox,
    Rebuild, Sandbox,
};
use sandbox_env::Environment;

use super::Context;
use super::progress::PrepareProgress;
use crate::cli::FileArgs;
use crate::cli::secret::Source;
use crate::config::{Key, Layer, Settings};
use crate::error::Error;
use crate::signals::Signals;
use crate::{input, signals};

/// What names the authorities by which hosts are verified, if `network.ca_file` does not.
const SSL_CERT_FILE: &str = "SSL_CERT_FILE";
/// A launch that takes longer gets a notice.
const SLOW: Duration = Duration::from_millis(700);

/// The request to the controller, from the arguments that every launching command has: all but the working
/// directory, for which `exec` has one of its own. Errors are reported before an engine is contacted. `stdin`
/// says which argument already uses it.
///
/// A sandbox that supports commands starts in its io dir and may load code from there. So it gets a
/// fresh one if none is named, and never sees what an earlier sandbox left.
pub fn spec(
    context: &Context<'_>,
    files: &FileArgs,
    settings: &Settings,
    root: RootFs,
    stdin: Option<&str>,
) -> Result<SandboxSpec, Error> {
    let limits = settings.allowed_limits()?;
    // Links that the caller's own words lead through are resolved below.
    let mut spec = SandboxSpec::new().root(root).limits(limits).user(files.user).no_symlinks();
    if settings.io_enabled() {
        spec = match settings.private_io().filter(|_| spec.supports_exec()) {
            Some(PrivateIo::Disk) => spec.fresh_io_dir(),
            Some(PrivateIo::Memory) => spec.private_io_dir(),
            None => spec.io_dir(settings.io_dir(&context.environment.working_directory)?),
        };
    } else if !files.inputs.is_empty() {
        let why = format!("files are disabled by {}", settings.named(Key::IoEnabled));
        return Err(Error::usage("--in", why));
    } else {
        spec = spec.no_io();
    }
    if let Some(path) = &files.mount_path {
        spec = spec.mount_path(path);
    }
    spec.allowed_paths = settings.allowed_paths();
    spec = spec.default_encoding(settings.default_encoding()).protected(settings.protected());
    let inputs = input::inputs(&files.inputs, stdin)?;
    Ok(inputs.into_iter().fold(spec, SandboxSpec::input))
}

/// What a list of sandboxes says of one: the name of a script's file, or of a program.
pub fn title(path: &str) -> String {
    const MOST: usize = 64;
    path.rsplit('/').next().unwrap_or(path).chars().take(MOST).collect()
}

/// Adds the hosts that commands may reach, when it is known whether the sandbox supports commands.
/// The configuration's hosts apply only then; those of the command line are always requested.
pub fn with_hosts(
    spec: SandboxSpec,
    environment: &Environment,
    settings: &Settings,
) -> Result<SandboxSpec, Error> {
    match (spec.supports_exec(), settings.asks_for_hosts()) {
        (true, _) => {
            let inject = own_injections(environment, settings)?;
            Ok(spec.allow(settings.allow()?).inject(inject))
        }
        (false, true) => Err(named(ControllerError::EgressUnsupported, settings, environment)),
        (false, false) => Ok(spec),
    }
}

/// Reads the secrets of the rules in `network.inject`.
///
/// # Errors
///
/// As of [`injections`].
pub fn own_injections(
    environment: &Environment,
    settings: &Settings,
) -> Result<Vec<Injection>, Error> {
    injections(environment, &settings.named(Key::Inject), &settings.names(Key::Inject))
}

/// Reads the secrets of these rules; `what` says where they are written.
///
/// # Errors
///
/// If one is invalid or cannot be read, or two are for the same part of the same requests. No message has what
/// was written.
pub fn injections(
    environment: &Environment,
    what: &str,
    rules: &[String],
) -> Result<Vec<Injection>, Error> {
    let refuse = |error: InjectError| Error::usage(what, error.to_string()).with_hint(error.hint());
    let read = |text: &String| {
        let rule: InjectRule = text.parse().map_err(refuse)?;
        let source = Source::parse(rule.source.as_bytes());
        let value = source.ok_or(InjectError::Form).map_err(refuse)?.read(what, environment)?;
        rule.with(value).map_err(refuse)
    };
    let injections = rules.iter().map(read).collect::<Result<Vec<_>, Error>>()?;
    for (at, injection) in injections.iter().enumerate() {
        let is_same = |it: &Injection| part(&it.rule) == part(&injection.rule);
        if let Some(first) = injections[..at].iter().position(is_same) {
            let (first, second) = (first + 1, at + 1);
            let why = format!("the rules {first} and {second} add to the same part of requests");
            return Err(Error::usage(what, why).with_hint(
                "a header or a parameter of a host and port has one rule; basic is the header Authorization",
            ));
        }
    }
    Ok(injections)
}

/// What of which requests a rule sets. Some servers read `_` in the name of a header as `-`.
fn part(rule: &InjectRule) -> (&Target, &'static str, String) {
    let (kind, name) = match &rule.place {
        Place::Header { name, .. } => ("header", name.replace('_', "-")),
        Place::Basic { .. } => ("header", "authorization".to_owned()),
        Place::Query { name } => ("query", name.clone()),
    };
    (&rule.target, kind, name)
}

/// Runs `serve` with a sandbox that is launched for it alone, and removed afterwards.
pub async fn in_sandbox<T>(
    context: &Context<'_>,
    settings: &Settings,
    config: Config,
    spec: SandboxSpec,
    serve: impl AsyncFnOnce(&Sandbox, &mut Signals) -> Result<T, Error>,
) -> Result<T, Error> {
    with_engine(context, config, async |controller, signals| {
        in_sandbox_of(context, settings, controller, signals, spec, serve).await
    })
    .await
}

/// Runs `work` with an engine. What is left to be removed at its end is waited for.
pub async fn with_engine<T>(
    context: &Context<'_>,
    config: Config,
    work: impl AsyncFnOnce(&Controller, &mut Signals) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut signals = Signals::listen()?;
    let controller = context.connect(config, &mut signals).await?;
    let ended = work(&controller, &mut signals).await;
    // The result is printed; cleanup does not delay it.
    context.close(controller, &mut signals).await;
    ended
}

/// Runs `serve` with a sandbox of this controller that is launched for it alone. One that has answered does
/// not wait for its removal, which is the engine's work. One that was interrupted or has failed waits: nothing
/// of it is left when it ends.
pub async fn in_sandbox_of<T>(
    context: &Context<'_>,
    settings: &Settings,
    controller: &Controller,
    signals: &mut Signals,
    sandbox: impl Into<PreparedSandbox>,
    serve: impl AsyncFnOnce(&Sandbox, &mut Signals) -> Result<T, Error>,
) -> Result<T, Error> {
    let sandbox = launch(context, settings, controller, signals, sandbox).await?;
    let ended = serve(&sandbox, signals).await;
    let is_answered = ended.is_ok() && !signals.were_received();
    let removal = async {
        match is_answered {
            true => sandbox.release().await,
            false => sandbox.close().await,
        }
    };
    // The reported result is final; a container that could not be removed yet is reported and does
    // not change it.
    if let Ok(Err(error)) = signals.guard(removal).await {
        context.output.notice(&error.full_message());
    }
    ended
}

/// Starts something, with tools of the host, that a signal cancels from then on, and awaits its end.
pub async fn follow_to_end<R>(
    signals: &mut Signals,
    sandbox: &Sandbox,
    (workload, tools): (Workload, Option<ToolGrant>),
    follow: impl AsyncFnOnce(Execution) -> Result<R, Error>,
) -> Result<R, Error> {
    let cancel = CancelHandle::new();
    let started = sandbox.start_with_tools(workload, tools, cancel.clone());
    let execution = signals.guard(started).await??;
    // One that has come since, and was not looked at, is for the canceller.
    let pending = signals.renew()?;
    let canceller = signals::cancel(cancel, pending);
    let ended = follow(execution).await;
    drop(canceller);
    // The signal that ended it is consumed; the next one is for what follows.
    signals.renew()?;
    ended
}

/// Launches it, and reports slow steps.
async fn launch(
    context: &Context<'_>,
    settings: &Settings,
    controller: &Controller,
    signals: &mut Signals,
    sandbox: impl Into<PreparedSandbox>,
) -> Result<Sandbox, Error> {
    let (output, sandbox) = (context.output, sandbox.into());
    let supports_exec = sandbox.spec().supports_exec();
    let prepared = match supports_exec {
        // Dropping it here leaves no container.
        true => signals
            .guard({
                let mut progress = PrepareProgress::new(output);
                controller.prepare(sandbox, move |text| progress.step(text))
            })
            .await?
            .map_err(|error| named(error, settings, &context.environment))?,
        false => sandbox,
    };
    let launch = async {
        if !supports_exec && !controller.knows_its_image() {
            let mut was_printed = false;
            let tell = |_: &str| {
                if !std::mem::replace(&mut was_printed, true) {
                    output.progress("building the sandbox image, as the first run does");
                }
            };
            controller.image_build(Rebuild::IfMissing, tell).await?;
        }
        let launch = controller.launch(prepared);
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
    match signals.guard(&mut launch).await {
        Ok(launched) => launched.map_err(|error| named(error, settings, &context.environment)),
        Err(signalled) => {
            // An engine completes its request even if nothing waits for it: so wait for it, and
            // then remove the result. Another signal does not wait.
            output.progress("cleaning up");
            if let Ok(Ok(sandbox)) = signals.guard(launch).await {
                _ = signals.guard(sandbox.close()).await;
            }
            Err(signalled)
        }
    }
}

/// An error of the controller, with the flag, the key or the variable that caused it.
fn named(error: ControllerError, settings: &Settings, environment: &Environment) -> Error {
    let has_ca_file = settings.setting(Key::CaFile).value.is_some();
    let what = match &error {
        ControllerError::WorkdirOutside { .. } => "--workdir".to_owned(),
        ControllerError::GuestPath { what: "the working directory", .. } => "--workdir".to_owned(),
        ControllerError::GuestPath { what: "the mount path", .. } => "--mount-path".to_owned(),
        ControllerError::MountTaken { .. } => "--mount-path".to_owned(),
        ControllerError::IoDir { .. } => settings.named(Key::IoDir),
        ControllerError::Input { name, .. } if name.starts_with('/') => "--volume".to_owned(),
        ControllerError::Input { .. } => "--in".to_owned(),
        ControllerError::Audit { .. } => settings.named(Key::AuditFile),
        ControllerError::EgressUnsupported => {
            let is_flag = |key: &Key| settings.setting(*key).layer == Layer::Flag;
            let key = [Key::Allow, Key::Inject].into_iter().find(is_flag);
            settings.named(key.unwrap_or(Key::Allow))
        }
        ControllerError::Intercept(_)
            if !has_ca_file && environment.variable(SSL_CERT_FILE).is_some() =>
        {
            SSL_CERT_FILE.to_owned()
        }
        ControllerError::Intercept(_) => settings.named(Key::CaFile),
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

    #[test]
    fn hosts_are_for_programs_and_who_asks_for_them_without_any_hears_it() {
        let folder = tempfile::tempdir().unwrap();
        let settings = |variables: &[(&str, &str)], asked: &[&str]| {
            let mut flags = Flags::default();
            let asked: Vec<_> = asked.iter().map(|rule| rule.parse().unwrap()).collect();
            flags.set(Key::Allow, (!asked.is_empty()).then_some(Value::Hosts(asked)));
            Settings::load(&Environment::new(folder.path(), 1000, variables), flags).unwrap()
        };
        let environment = Environment::new(folder.path(), 1000, &[("TOKEN", "hunter2!")]);
        let with_hosts = |spec, settings: &Settings| with_hosts(spec, &environment, settings);
        let refused = |spec, settings: &Settings| with_hosts(spec, settings).unwrap_err().to_text();
        let programs = || SandboxSpec::new().root(RootFs::Directory("/x".into()));
        let ambient = [
            ("SANDBOXCTL_NETWORK_ALLOW", "['@pypi']"),
            ("SANDBOXCTL_NETWORK_PRESETS", "{ pypi = ['packages.example.org'] }"),
        ];
        // A setting for every command must not fail one without commands in its sandbox.
        assert!(with_hosts(SandboxSpec::new(), &settings(&ambient, &[])).is_ok());
        assert!(with_hosts(programs(), &settings(&ambient, &[])).is_ok());
        assert!(with_hosts(programs(), &settings(&[], &["example.org"])).is_ok());
        insta::assert_snapshot!(
            refused(SandboxSpec::new(), &settings(&[], &["example.org"])), @r"
            --allow: hosts require an image: scripts have no network
            hint: --image (--rootfs or --image-archive on the embedded engine) selects an image with programs
            ");
        insta::assert_snapshot!(refused(programs(), &settings(&ambient, &["@pyp"])), @r"
            --allow: there is no preset @pyp
            hint: did you mean @pypi?
            ");
        insta::assert_snapshot!(refused(programs(), &settings(&[], &["@pypi"])), @r"
            --allow: there is no preset @pypi
            hint: [network.presets] in the user's configuration makes one: name = [HOST, …]
            ");
    }

    #[test]
    fn secrets_of_rules_are_read_and_no_message_has_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let environment =
            Environment::new(folder.path(), 1000, &[("TOKEN", "hunter2!"), ("E", "")]);
        let read = |rule: &str| injections(&environment, "--inject", &[rule.to_owned()]);
        let injections = read("api.example.org: Authorization: Bearer env:TOKEN").unwrap();
        assert_eq!(injections[0].value.as_bytes(), b"hunter2!");
        for rule in [
            "api.example.org: Authorization: Bearer hunter2!",
            "hunter2!",
            "api.example.org: Authorization: env:E",
            "api.example.org: Authorization: env:NONE",
            "api.example.org: Authorization: file:/no/such",
        ] {
            let text = read(rule).unwrap_err().to_text();
            assert!(text.starts_with("--inject: ") && !text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn one_part_of_requests_has_one_rule() {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::new(folder.path(), 1000, &[("TOKEN", "hunter2!")]);
        let read = |rules: &[&str]| {
            let rules: Vec<_> = rules.iter().map(|rule| (*rule).to_owned()).collect();
            injections(&environment, "--inject", &rules)
        };
        for second in [
            "a.example: authorization: env:TOKEN",
            "A.example:443: Authorization: Bearer env:TOKEN",
            "a.example: basic me:env:TOKEN",
        ] {
            let first = "a.example: Authorization: Bearer env:TOKEN";
            let text = read(&["a.example: X: env:TOKEN", first, second]).unwrap_err().to_text();
            assert!(text.starts_with("--inject: the rules 2 and 3 add to the same "), "{text}");
        }
        assert!(read(&["a.example: ?a=env:TOKEN", "a.example: ?a=env:TOKEN"]).is_err());
        assert!(read(&["a.example: X-A: env:TOKEN", "a.example: x_a: env:TOKEN"]).is_err());
        let others = [
            "a.example: a: env:TOKEN", "a.example: ?a=env:TOKEN", "a.example: ?A=env:TOKEN",
            "a.example:8443: a: env:TOKEN", "b.example: a: env:TOKEN",
        ];
        assert_eq!(read(&others).unwrap().len(), others.len());
    }

    #[test]
    fn refusal_of_the_controller_names_its_flag_or_key() {
        let folder = tempfile::tempdir().unwrap();
        let environment =
            Environment::new(folder.path(), 1000, &[("SANDBOXCTL_ENGINE_RUNTIME", "nope")]);
        let mut flags = Flags::default();
        flags.set(Key::IoDir, Some(Value::Path("/x".into())));
        let settings = Settings::load(&environment, flags).unwrap();
        let text = |error| named(error, &settings, &environment).to_text();

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
