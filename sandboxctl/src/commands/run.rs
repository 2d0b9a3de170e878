//! `run`: what its command line says, for scripts here or on a service.

use std::collections::BTreeMap;

use sandbox_api::service::{Content, ExecutionRequest};
use sandbox_api::{Lifespan, LimitKey, SandboxSpec, Script};

use super::collect::Artifacts;
use super::execution::remote;
use super::execution::{Job, Local, Program, Remote, View};
use super::learn::{Dialogue, Learn};
use super::receipt::Issuer;
use super::staging::{Staging, refuse_diff_beside_output};
use super::upstream::{asking, of_command};
use super::{Context, block_on, hints, launch, reports};
use crate::ci::Stdout;
use crate::cli::RunArgs;
use crate::config::{Key, Settings};
use crate::error::Error;
use crate::input::{self, ScriptArgument, ScriptSource};
use crate::remote::Client;
use crate::report::Reports;

pub fn run(context: &Context<'_>, mut args: RunArgs) -> Result<u8, Error> {
    let stdout = if args.json || args.result_only { Stdout::Data } else { Stdout::Log };
    let names = args.scripts().iter().map(ScriptArgument::name).collect::<Vec<_>>().join(" ");
    reports::begin_ci(context, args.reports.ci, &format!("sandboxctl run {names}"), stdout)?;
    if let Some(client) = args.remote.client(&context.environment)? {
        return run_remote(context, &args, client);
    }
    args.volumes.add_to(&mut args.sandbox.files)?;
    let args = &args;
    let mut settings = context.settings_with(|flags| args.add_flags(flags))?;
    args.rules.add_to(&mut settings)?;
    if args.keep && args.root.root(&settings).supports_exec() {
        settings.keep_io_dir();
    }
    // Everything is read before the first one runs.
    reports::begin_files(context, &args.reports, &args.receipt, &args.changes, &settings)?;
    let stdin = args.scripts().iter().any(|script| script.is_stdin()).then_some("SCRIPT -");
    let (secrets, stdin) = args.secrets.read(&context.environment, stdin)?;
    let (key, stdin) = args.receipt.key(&context.environment, stdin)?;
    let scripts = input::scripts(&args.scripts())?;
    hints::check_languages(&scripts)?;
    let arguments = input::arguments(args.args_file.as_deref(), &args.args)?;
    let spec = spec(context, args, &settings, stdin.as_deref())?;
    let config = context.controller(&settings);
    let mut files = reports::named_files(
        context,
        &config,
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
    files.writes("--learn", args.rules.learn.as_deref());
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
    let dialogue = if args.raw { Dialogue::Never } else { Dialogue::Terminal };
    let about = (&*format!("run: {names}"), dialogue);
    let learn = Learn::begin(context, &args.rules, &settings, spec.io_dir.as_deref(), about)?;
    context.output.ci().map_or(Ok(()), |ci| ci.check_files(spec.io_dir.as_deref(), &config))?;
    let jobs = scripts.iter().enumerate().map(|(index, source)| {
        let script = Script::new(source.source.clone()).args(arguments.clone());
        let script =
            script.seed(args.reproducible.seed).now(args.reproducible.now).secrets(secrets.clone());
        let job = Job { index, program: Program::Script(source) };
        (job, launch::title(&source.name), script.into(), None)
    });
    // Those of the configuration are for agents.
    let upstream = of_command(context, &args.upstream, &settings, BTreeMap::new())?;
    let (upstreams, tools) = upstream.unzip();
    let local = Local {
        context,
        settings: &settings,
        spec,
        image_word: None,
        artifacts,
        staging,
        issuer,
        tools: tools.map(|grant| asking(grant, learn.permission())),
        permission: learn.permission(),
        reports: &reports,
        view: view(args, scripts.len()),
        at_once: args.jobs.into(),
    };
    let ended = block_on(async {
        let Some(upstreams) = upstreams else { return local.run(config, jobs.collect()).await };
        // They start while the sandbox does.
        upstreams.start();
        let ended = local.run(config, jobs.collect()).await;
        upstreams.close().await;
        ended
    });
    let ended = learn.finish(context.output, ended);
    hints::unread_stdin(context.output, hints::STDIN_OF_RUN);
    reports::finish(context.output, reports, ended)
}

/// How the scripts are shown.
fn view(args: &RunArgs, scripts: usize) -> View {
    View {
        json: args.json,
        result_only: args.result_only,
        raw: args.raw,
        keep: args.keep,
        is_later: scripts > 1 && args.jobs > 1,
        has_heads: scripts > 1,
        ..View::default()
    }
}

/// The same on a service.
fn run_remote(context: &Context<'_>, args: &RunArgs, client: Client) -> Result<u8, Error> {
    args.remote.refuse_local("run")?;
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    // Everything is read before the first one is submitted.
    let stdin = args.scripts().iter().any(|script| script.is_stdin()).then_some("SCRIPT -");
    let (secrets, stdin) = args.secrets.read(&context.environment, stdin)?;
    let scripts = input::scripts(&args.scripts())?;
    hints::check_languages(&scripts)?;
    let (inputs, image) = (&args.sandbox.files.inputs, args.root.image.clone());
    let mut template = remote::request(&settings, inputs, stdin.as_deref(), image)?;
    template.secrets = remote::secrets(&secrets);
    template.args = input::arguments(args.args_file.as_deref(), &args.args)?;
    template.seed = args.reproducible.seed;
    template.now = args.reproducible.now;
    template.io.workdir = args.sandbox.workdir.clone();
    template.io.errors = settings.chosen_io_errors();
    let subjects = scripts.iter().map(reports::script).collect();
    let reports = Reports::of(&args.reports.reports, None, subjects)?;
    let remote = Remote {
        context,
        client: remote::connect(context, client),
        sandbox: None,
        reports: &reports,
        view: view(args, scripts.len()),
        at_once: args.jobs.into(),
    };
    let request = |script: &ScriptSource| ExecutionRequest {
        script: Some(Content(script.source.clone())),
        metadata: remote::title(&launch::title(&script.name)),
        ..template.clone()
    };
    let job = |(index, script)| (Job { index, program: Program::Script(script) }, request(script));
    let ended = block_on(remote.run(scripts.iter().enumerate().map(job).collect()));
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
    let (files, workdir) = (&args.sandbox.files, args.sandbox.workdir.clone());
    let spec = launch::spec(context, files, settings, args.root.root(settings), stdin)?;
    let spec = SandboxSpec { workdir, ..spec };
    let spec = launch::with_hosts(spec, &context.environment, settings)?;
    Ok(spec.lifespan(Lifespan::OneRun).io_errors(settings.io_errors()))
}
