//! `tool` and `tools`: the tools for workflow steps.

use std::sync::Arc;

use sandbox_api::{DEFAULT_IDLE_LIMIT, SandboxSpec, exit_code};
use sandbox_controller::PoolConfig;
use sandbox_tools::{
    self as tools, INIT, Settings as ToolsSettings, Stop, StopCause, ToolError, ToolResponse,
    Tools, stdio,
};
use serde_json::value::RawValue;
use tokio::io::BufReader;

use super::launch::own_injections;
use super::{Context, block_on};
use crate::cli::root::RootArgs;
use crate::cli::{ToolArgs, ToolsArgs};
use crate::config::{Key, Scope, Settings};
use crate::error::{Error, Signal};
use crate::input::JsonArgument;
use crate::signals;
use crate::signals::Signals;

/// Size of one read of stdin.
const BUFFER_BYTES: usize = 64 << 10;

/// One call. Its answer is always printed.
pub fn tool(context: &Context<'_>, args: &ToolArgs) -> Result<u8, Error> {
    one(context, args).or_else(|error| {
        let mut refusal = ToolError::new(error.kind(), error.message());
        refusal.hint = error.hint();
        print_answer(context, &ToolResponse::refused(refusal))?;
        Ok(error.exit_code())
    })
}

fn one(context: &Context<'_>, args: &ToolArgs) -> Result<u8, Error> {
    if args.input == JsonArgument::Stdin && args.init == Some(JsonArgument::Stdin) {
        return Err(Error::usage("--init -", "stdin is taken by --input -"));
    }
    let read = |json: &JsonArgument, flag| json.read(flag, stdio::MAX_LINE_BYTES);
    let input = read(&args.input, "--input")?;
    let init = args.init.as_ref().map(|json| read(json, "--init")).transpose()?;
    // Errors are reported before a sandbox is created.
    if let Err(error) = check(&args.name, &input, init.as_deref()) {
        return print_answer(context, &ToolResponse::refused(error));
    }
    let settings = context.settings_with(|flags| args.sandbox.add_flags(flags))?;
    with_tools(context, &settings, &args.sandbox.root, None, async |tools, signals| {
        let (mut answer, mut signal) = match &init {
            Some(init) => call(tools, signals, INIT, init).await,
            None => call(tools, signals, &args.name, &input).await,
        };
        if init.is_some() && signal.is_none() && answer.is_ok() {
            (answer, signal) = call(tools, signals, &args.name, &input).await;
        }
        // The answer does not wait for the removal of the sandbox; a signal does not wait for the
        // reader of the answer.
        let insisting = signals::insist()?;
        let code = print_answer(context, &answer)?;
        drop(insisting);
        Ok(signal.map_or(code, Signal::exit_code))
    })
}

/// Prints an answer, and returns the exit code of its call.
fn print_answer(context: &Context<'_>, answer: &ToolResponse) -> Result<u8, Error> {
    context.output.document(&answer.document())?;
    Ok(answer.failure().map_or(0, exit_code))
}

/// Whether a call is valid: it can be parsed, and its sandbox exists.
fn check(name: &str, input: &RawValue, init: Option<&RawValue>) -> Result<(), ToolError> {
    let container_id = tools::check(name, input)?;
    let made = init.map(|init| tools::check(INIT, init)).transpose()?;
    match made {
        None if name == INIT => Ok(()),
        Some(made) if made == container_id => Ok(()),
        _ => Err(ToolError::not_registered(&container_id).with_hint(
            "--init gives what makes the sandbox of this call; `tools --stdio` keeps some",
        )),
    }
}

/// A call that a signal cancels; a second signal does not wait for its answer.
async fn call(
    tools: &Tools,
    signals: &mut Signals,
    name: &str,
    args: &RawValue,
) -> (ToolResponse, Option<Signal>) {
    let stop = Stop::default();
    let answer = tools.call(name, args, stop.clone());
    tokio::pin!(answer);
    let signal = tokio::select! {
        biased;
        signal = signals.next() => signal,
        answer = &mut answer => return (answer, None),
    };
    stop.stop(StopCause::Cancelled);
    let answer = match signals.guard(answer).await {
        Ok(answer) => answer,
        Err(_) => ToolResponse::refused(StopCause::Cancelled.into()),
    };
    (answer, Some(signal))
}

/// The server on stdin and stdout, or the list of tools.
pub fn tools(context: &Context<'_>, args: &ToolsArgs) -> Result<u8, Error> {
    if args.list {
        return context.output.document(&tools::catalogue()).map(|()| 0);
    }
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    // The directories are named by calls: kinds can only be learnt from them.
    let pool = args.pool.is_some().then(|| PoolConfig { adaptive: true, ..settings.pool() });
    with_tools(context, &settings, &args.sandbox.root, pool, async |tools, signals| {
        let stdin = BufReader::with_capacity(BUFFER_BYTES, tokio::io::stdin());
        let call = |name: &str, args: &RawValue, stop| tools.call(name, args, stop);
        let interruption = async {
            tokio::select! {
                signal = signals.next() => Some(signal),
                () = signals::stdout_is_unread() => None,
            }
        };
        let served =
            stdio::serve(stdin, tokio::io::stdout(), tools.callbacks(), call, interruption).await;
        match served {
            Ok(None | Some(None)) => Ok(0),
            Ok(Some(Some(signal))) => Err(Error::Signalled(signal)),
            Err(source) => Err(Error::System { what: "stdin and stdout".to_owned(), source }),
        }
    })
}

/// Connects, works with the tools, and waits until all their sandboxes are removed. A signal ends
/// that wait; then the next command removes the rest.
fn with_tools<T>(
    context: &Context<'_>,
    settings: &Settings,
    root: &RootArgs,
    pool: Option<PoolConfig>,
    work: impl AsyncFnOnce(&Tools, &mut Signals) -> Result<T, Error>,
) -> Result<T, Error> {
    if !settings.io_enabled() {
        let why = "sandbox_init gives its sandbox files, and there are to be none";
        return Err(Error::usage(settings.named(Key::IoEnabled), why));
    }
    let here = &context.environment.working_directory;
    let root = root.root(settings);
    let programs = settings.bounds(Scope::Exec)?;
    // Where the usual root has programs, all sandboxes have some.
    let scripts = match root.supports_exec() {
        true => programs,
        false => settings.bounds(Scope::Limits)?,
    };
    let inject = own_injections(&context.environment, settings)?;
    let config = context.controller(settings);
    let tools_settings = ToolsSettings {
        working_directory: here.clone(),
        allowed_out_paths: settings.allowed_out_paths(here)?,
        protected: settings.protected(),
        sandbox: spec(settings).root(root).inject(inject),
        allowed_images: settings.names(Key::AllowedImages),
        pull: settings.tools_pull(),
        hosts: settings.allow()?,
        scripts,
        programs,
    };
    block_on(async {
        let mut signals = Signals::listen()?;
        let controller = Arc::new(context.connect(config, &mut signals).await?);
        if let Some(pool) = pool {
            controller.pool(pool);
        }
        let worked = match Tools::new(controller.clone(), tools_settings) {
            Ok(tools) => {
                if let Err(error) = tools.prewarm().await {
                    let message = error.full_message();
                    context.output.notice(&format!("no sandbox is prewarmed: {message}"));
                }
                let worked = work(&tools, &mut signals).await;
                if let Ok(left) = signals.guard(tools.close()).await {
                    left.iter().for_each(|left| context.output.notice(left));
                }
                worked
            }
            Err(source) => {
                let what = settings.named(Key::AllowedOutPaths);
                Err(Error::System { what, source })
            }
        };
        if let Some(controller) = Arc::into_inner(controller) {
            context.close(controller, &mut signals).await;
        }
        worked
    })
}

/// The template for the tools' sandboxes.
fn spec(settings: &Settings) -> SandboxSpec {
    SandboxSpec {
        io_errors: settings.io_errors(),
        idle_limit: Some(DEFAULT_IDLE_LIMIT),
        allowed_paths: settings.allowed_paths(),
        ..SandboxSpec::new()
    }
}
