//! `exec`: what its command line says, for a command here or on a service.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use sandbox_api::process::{PtyRequest, TerminalSize};
use sandbox_api::service::{CommandRequest, Content};
use sandbox_api::{DEFAULT_LIFETIME, Lifespan, RootFs, Secrets};
use sandbox_controller::{Command, Patterns, Stdin};
use sandbox_protocol::message::Pty;

use super::collect::Artifacts;
use super::execution::remote;
use super::execution::{Job, Local, Program, Remote, View};
use super::learn::{Dialogue, Learn};
use super::receipt::Issuer;
use super::staging::{Staging, refuse_diff_beside_output};
use super::terminal::Keyboard;
use super::transfer::Source;
use super::{Context, block_on, hints, launch, reports, terminal};
use crate::ci::Stdout;
use crate::cli::exec::{CommandLine, ExecArgs, Place, Target, Variable};
use crate::error::Error;
use crate::remote::Client;
use crate::report::Reports;

/// The most bytes of stdin that are sent to a service.
const MAX_STDIN_BYTES: u64 = 16 << 20;

pub fn exec(context: &Context<'_>, mut args: ExecArgs) -> Result<u8, Error> {
    let stdout = if args.json { Stdout::Data } else { Stdout::Log };
    reports::begin_ci(context, args.reports.ci, "sandboxctl exec", stdout)?;
    if let Some(client) = args.remote.client(&context.environment)? {
        return exec_remote(context, &args, client);
    }
    args.volumes.add_to(&mut args.files)?;
    let args = &args;
    let mut settings = context.settings_with(|flags| args.add_flags(flags))?;
    args.rules.add_to(&mut settings)?;
    if args.keep {
        settings.keep_io_dir();
    }
    let pty = args.tty.then(|| terminal::request(context)).transpose()?;
    if pty.is_some() {
        settings.allow_long_commands();
    }
    reports::begin_files(context, &args.reports, &args.receipt, &args.changes, &settings)?;
    let Target { root, image_is_a_word, command: line } = args.target(&settings, Place::Here)?;
    let (secrets, stdin) =
        args.secrets.read(&context.environment, args.stdin.then_some("--stdin"))?;
    let (key, stdin) = args.receipt.key(&context.environment, stdin)?;
    let variables = args.variables.read()?;
    let twice = |name: &str| variables.iter().any(|variable| variable.name == name);
    if let Some((name, _)) = secrets.iter().find(|(name, _)| twice(name)) {
        return Err(Error::usage(
            format!("--secret {name}"),
            format!("--env or --env-file sets {name} too"),
        )
        .with_hint("a secret is a variable of the command: rename one of them"));
    }
    let title = title(&line, &secrets);
    let command = request(context, &line, &variables, args.workdir.as_deref()).secrets(secrets);
    let mut command = command.stdin(if args.stdin { Stdin::Stream } else { Stdin::Null });
    command.merge = args.merge;
    command.stop_signal = args.stop_signal;
    command.pty = pty.clone().map(Pty::from);
    let spec = launch::spec(context, &args.files, &settings, root.clone(), stdin.as_deref())?;
    let lifetime = DEFAULT_LIFETIME.saturating_add(spec.limits.timeout);
    let spec = launch::with_hosts(spec, &context.environment, &settings)?
        .lifespan(Lifespan::OneRun)
        .lifetime(lifetime);
    let config = context.controller(&settings);
    let mut files = reports::named_files(
        context,
        &config,
        (&args.reports, &args.receipt, &args.changes, &args.artifacts, &args.secrets),
        &spec,
    )?;
    files.reads("--env-file", args.variables.files());
    files.writes("--learn", args.rules.learn.as_deref());
    files.check()?;
    let artifacts = Artifacts::of(&args.artifacts, &spec)?;
    let is_listed = args.receipt.file.is_some() && artifacts.directory().is_none();
    if !args.json {
        refuse_diff_beside_output(&args.changes, context.output)?;
    }
    let (staging, spec) = Staging::of(&args.changes, args.json, 1, spec, is_listed)?;
    if args.receipt.file.is_some() && args.stdin {
        let why = "it says nothing of stdin, which could be a program";
        return Err(Error::usage("--receipt", why)
            .with_hint("give what is on stdin as an input: --in -:NAME"));
    }
    let issuer = Issuer::of(context, &args.receipt, &spec, &artifacts, key, 1)?;
    let issuer = match args.receipt_argv {
        true => issuer.map(|it| it.with_words_of(&command)).transpose()?,
        false => issuer,
    };
    let keys = args.tty.then(|| args.detach_keys.clone());
    let keyboard = args.stdin.then(|| Keyboard::open(keys)).transpose()?;
    context.output.reads_stdin(args.stdin && !args.tty);
    let subject = vec![reports::command(&line, &command.secrets)];
    let dialogue = match args.stdin || args.tty || args.raw {
        true => Dialogue::Never,
        false => Dialogue::Terminal,
    };
    let mut heading = format!("exec: {}", subject[0].name);
    let injected = spec.inject.iter().map(|injection| injection.value.as_bytes());
    Patterns::new(injected).text(&mut heading);
    let about = (&*heading, dialogue);
    let learn = Learn::begin(context, &args.rules, &settings, spec.io_dir.as_deref(), about)?;
    let line = hints::shown_line(&line, &command.secrets);
    let reports = Reports::of(&args.reports.reports, spec.io_dir.as_deref(), subject)?;
    context.output.ci().map_or(Ok(()), |ci| ci.check_files(spec.io_dir.as_deref(), &config))?;
    let image_word = match &root {
        RootFs::Image { reference, .. } if image_is_a_word => Some(&**reference),
        _ => None,
    };
    let local = Local {
        context,
        settings: &settings,
        spec,
        image_word,
        artifacts,
        staging,
        issuer,
        tools: None,
        permission: learn.permission(),
        reports: &reports,
        view: View {
            terminal: pty.map(|PtyRequest { cols, rows, .. }| TerminalSize { cols, rows }),
            ..view(args)
        },
        at_once: 1,
    };
    let job = Job { index: 0, program: Program::Command(&line) };
    let ended = block_on(local.run(config, vec![(job, title, command.into(), keyboard)]));
    let ended = learn.finish(context.output, ended);
    if !args.stdin {
        hints::unread_stdin(context.output, hints::STDIN_OF_EXEC);
    }
    reports::finish(context.output, reports, ended)
}

/// How the command is shown.
fn view(args: &ExecArgs) -> View {
    View {
        json: args.json,
        raw: args.raw,
        keep: args.keep,
        no_network: args.docker_flags.network.is_some(),
        ..View::default()
    }
}

/// The same on a service.
fn exec_remote(context: &Context<'_>, args: &ExecArgs, client: Client) -> Result<u8, Error> {
    if args.tty {
        return Err(Error::usage("--tty", "a command on a service has no terminal").with_hint(
            "`sandboxctl sandbox create IMAGE` makes a sandbox there, and `sandboxctl sandbox shell ID` \
             opens a terminal in it",
        ));
    }
    args.remote.refuse_local("exec")?;
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    let Target { root, command: line, .. } = args.target(&settings, Place::Service)?;
    let image = match root {
        RootFs::Image { reference, .. } => Some(reference),
        _ => None,
    };
    let (secrets, stdin) =
        args.secrets.read(&context.environment, args.stdin.then_some("--stdin"))?;
    let subject = reports::command(&line, &secrets);
    let shown = hints::shown_line(&line, &secrets);
    let image_word = image.clone().filter(|_| args.image_may_be_the_command());
    let mut request = remote::request(&settings, &args.files.inputs, stdin.as_deref(), image)?;
    request.secrets = remote::secrets(&secrets);
    request.metadata = remote::title(&line_title(&shown));
    request.stop_signal = args.stop_signal;
    let command =
        command_request(context, args.workdir.as_deref(), &line, &args.variables.read()?)?;
    let reports = Reports::of(&args.reports.reports, None, vec![subject])?;
    let client = remote::connect(context, client);
    let remote =
        Remote { context, client, sandbox: None, reports: &reports, view: view(args), at_once: 1 };
    let job = Job { index: 0, program: Program::Command(&shown) };
    let ended = block_on(async {
        request.command =
            Some(CommandRequest { stdin: read_stdin(context, args.stdin).await?, ..command });
        remote.run(vec![(job, request)]).await
    });
    let ended = ended.map_err(|error| hints::image_of_service(error, image_word.as_deref()));
    if !args.stdin {
        hints::unread_stdin(context.output, hints::STDIN_OF_EXEC);
    }
    reports::finish(context.output, reports, ended)
}

/// What lists of executions say of a command whose secrets are hidden: the beginning of its words.
fn line_title(shown: &CommandLine) -> String {
    const MOST: usize = 80;
    shown.text().chars().take(MOST).collect()
}

/// The title of the command's sandbox in listings: without secrets.
pub fn title(line: &CommandLine, secrets: &Secrets) -> String {
    let CommandLine::Program(program, _) = line else { return "sh".to_owned() };
    let mut program = program.to_string_lossy().into_owned();
    Patterns::of([secrets]).text(&mut program);
    launch::title(&program)
}

/// The request to the controller, from the command line and the flags.
pub fn request(
    context: &Context<'_>,
    line: &CommandLine,
    variables: &[Variable],
    workdir: Option<&OsStr>,
) -> Command {
    let mut command = match line {
        CommandLine::Shell(line) => Command::shell(line.as_bytes()),
        CommandLine::Program(program, args) => {
            Command::new(program.as_bytes()).args(args.iter().map(|arg| arg.as_bytes()))
        }
    };
    for (name, value) in known(context, variables) {
        command = command.env(name.as_bytes(), value.into_vec());
    }
    match workdir {
        Some(workdir) => command.cwd(workdir.as_bytes()),
        None => command,
    }
}

/// Those that have a value, here or of our own. An unset one is not the same as an empty one.
fn known<'a>(
    context: &'a Context<'_>,
    variables: &'a [Variable],
) -> impl Iterator<Item = (&'a OsStr, OsString)> {
    variables.iter().filter_map(|Variable { name, value }| {
        let own = || context.environment.variables().find(|(known, _)| known == name);
        let value = value.clone().or_else(|| own().map(|(_, value)| value.to_owned()));
        if value.is_none() {
            let name = name.to_string_lossy();
            context.output.notice(&format!("{name} is not set here, and not passed on"));
        }
        Some((&**name, value?))
    })
}

/// What runs, without its stdin.
pub fn command_request(
    context: &Context<'_>,
    workdir: Option<&OsStr>,
    line: &CommandLine,
    variables: &[Variable],
) -> Result<CommandRequest, Error> {
    let env = variables_of_request(context, variables)?;
    let mut command = CommandRequest { cwd: workdir.map(content), env, ..Default::default() };
    match line {
        CommandLine::Shell(line) => command.shell = Some(content(line)),
        CommandLine::Program(program, args) => {
            command.program = Some(content(program));
            command.args = args.iter().map(|arg| content(arg)).collect();
        }
    }
    Ok(command)
}

fn content(text: &OsStr) -> Content {
    Content(text.as_bytes().to_vec())
}

/// Variables as a request has them.
pub fn variables_of_request(
    context: &Context<'_>,
    variables: &[Variable],
) -> Result<BTreeMap<String, Content>, Error> {
    let text = |name: &OsStr| {
        let name = name.to_str().ok_or_else(|| Error::usage("--env", "a name is not UTF-8 text"));
        name.map(str::to_owned)
    };
    known(context, variables).map(|(name, value)| Ok((text(name)?, content(&value)))).collect()
}

/// All of our stdin, if it is to be passed on: a service takes it with the request.
pub async fn read_stdin(
    context: &Context<'_>,
    is_passed_on: bool,
) -> Result<Option<Content>, Error> {
    if !is_passed_on {
        return Ok(None);
    }
    context.output.reads_stdin(true);
    let failed = |source| Error::Content { what: "stdin".to_owned(), source };
    let bytes = Source::stdin().map_err(failed)?.all(MAX_STDIN_BYTES).await.map_err(failed)?;
    if bytes.len() as u64 > MAX_STDIN_BYTES {
        return Err(Error::usage(
            "--stdin",
            "it is longer than 16 MiB, and a service takes no more",
        )
        .with_hint("--in FILE sends a file"));
    }
    Ok(Some(Content(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_listed_by_its_words() {
        let words = ["-m", "http.server"].map(OsString::from).to_vec();
        assert_eq!(
            line_title(&CommandLine::Program("python3".into(), words)),
            "python3 -m http.server"
        );
        assert_eq!(line_title(&CommandLine::Program("true".into(), Vec::new())), "true");
        assert_eq!(line_title(&CommandLine::Shell("make; ls".into())), "make; ls");
        assert_eq!(line_title(&CommandLine::Shell("x".repeat(100).into())).len(), 80);
    }
}
