//! `exec`: runs a command, from its flags to its result.
//!
//! Its output is copied as it arrives: if our reader is slow the command blocks, and if it is gone
//! the command is cancelled. Its stdin is copied the same way.

mod remote;
mod tail;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use sandbox_api::service::OutputStream;
use sandbox_api::{
    CancelCause, DEFAULT_COLLECTED_BYTES, DEFAULT_LIFETIME, ErrorKind, ExecDocument, ExecResult,
    Exit, Lifespan, Note, NoteKind, Outcome, RootFs, SandboxSpec, Secrets,
};
use sandbox_controller::{Command, Config, ExecStream, Execution, Patterns, Sandbox, Stdin};
use tokio::io::{AsyncWrite, AsyncWriteExt};

pub use self::tail::Tail;
use super::collect::{Artifacts, Copied};
use super::receipt::{Issued, Issuer, Subjected};
use super::staging::{Staged, Staging, refuse_diff_beside_output};
use super::transfer::{Sink, Source};
use super::{Context, block_on, hints, launch, network, reports, touched, truncation};
use crate::ci::log_markers::MarkFilter;
use crate::ci::{Ci, Stdout, Stream};
use crate::cli::exec::{CommandLine, ExecArgs, Target, Variable};
use crate::config::Settings;
use crate::error::{Error, UNREAD};
use crate::output::Output;
use crate::report::Reports;

pub fn exec(context: &Context<'_>, mut args: ExecArgs) -> Result<u8, Error> {
    let stdout = if args.json { Stdout::Data } else { Stdout::Log };
    reports::begin_ci(context, args.reports.ci, "sandboxctl exec", stdout)?;
    if let Some(client) = args.remote.client(&context.environment)? {
        return remote::exec(context, &args, client);
    }
    args.add_volumes()?;
    let args = &args;
    let mut settings = context.settings_with(|flags| args.add_flags(flags))?;
    if args.keep {
        settings.keep_io_dir();
    }
    reports::begin_files(context, &settings);
    reports::check_files(context, &args.reports, &args.receipt, &args.changes, &settings)?;
    let Target { root, image_is_a_word, command: line } = args.target(&settings)?;
    let (secrets, stdin) =
        args.secrets.read(&context.environment, args.stdin.then_some("--stdin"))?;
    let (key, stdin) = args.receipt.key(&context.environment, stdin)?;
    let variables = args.variables()?;
    let twice = |name: &str| variables.iter().any(|variable| variable.name == name);
    if let Some((name, _)) = secrets.iter().find(|(name, _)| twice(name)) {
        return Err(Error::usage(
            format!("--secret {name}"),
            format!("--env or --env-file sets {name} too"),
        )
        .with_hint("a variable is one of them: rename the other"));
    }
    let title = title(&line, &secrets);
    let command = request(context, &line, &variables, args.workdir.as_deref()).secrets(secrets);
    let command = command.stdin(if args.stdin { Stdin::Stream } else { Stdin::Null });
    let spec =
        launch::spec_of_files(context, &args.files, &settings, root.clone(), stdin.as_deref())?;
    let spec = spec.title(title);
    let lifetime = DEFAULT_LIFETIME.saturating_add(spec.limits.timeout);
    let spec = launch::with_hosts(spec, &settings)?.lifespan(Lifespan::OneRun).lifetime(lifetime);
    let mut files = reports::named_files(
        context,
        &context.controller(&settings),
        (&args.reports, &args.receipt, &args.changes, &args.artifacts, &args.secrets),
        &spec,
    )?;
    files.reads("--env-file", args.env_files());
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
    let source = match args.stdin {
        true => Some(
            Source::stdin().map_err(|source| Error::System { what: "stdin".to_owned(), source })?,
        ),
        false => None,
    };
    if args.stdin && io::stdin().is_terminal() {
        context.output.progress("reading from the terminal; Ctrl-D ends it");
    }
    let subject = vec![reports::command(&line, &command.secrets)];
    let line = hints::shown_line(&line, &command.secrets);
    let reports = Reports::of(&args.reports.reports, spec.io_dir.as_deref(), subject)?;
    let config = context.controller(&settings);
    reports::check_runner_files(context, spec.io_dir.as_deref(), &config)?;
    let session = Session {
        context,
        settings: &settings,
        args,
        line: &line,
        artifacts,
        staging,
        issuer,
        reports: &reports,
    };
    let ended = block_on(session.run(config, spec, command, source));
    if !args.stdin {
        hints::unread_stdin(context.output, hints::STDIN_OF_EXEC);
    }
    let ended = ended.map_err(|error| match (error, &root) {
        (Error::Controller(source), RootFs::Image { reference, .. })
            if image_is_a_word && source.kind() == ErrorKind::Image =>
        {
            hints::word_as_image(source, reference)
        }
        (error, _) => error,
    });
    reports::finish(context.output, reports, ended)
}

/// The title of the command's sandbox, which whoever lists sandboxes sees: without secrets.
fn title(line: &CommandLine, secrets: &Secrets) -> String {
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
    for Variable { name, value } in variables {
        match value.as_ref().map_or_else(|| own_variable(context, name), |it| Some(it.clone())) {
            Some(value) => command = command.env(name.as_bytes(), value.into_vec()),
            None => {
                let name = name.to_string_lossy();
                context.output.notice(&format!("{name} is not set here, and not passed on"));
            }
        }
    }
    match workdir {
        Some(workdir) => command.cwd(workdir.as_bytes()),
        None => command,
    }
}

/// An environment variable of our own. An unset one is not the same as an empty one.
fn own_variable(context: &Context<'_>, name: &OsString) -> Option<OsString> {
    let found = context.environment.variables().find(|(known, _)| known == name);
    found.map(|(_, value)| value.to_owned())
}

/// One command, from connecting to the engine to the result.
struct Session<'a> {
    context: &'a Context<'a>,
    settings: &'a Settings,
    args: &'a ExecArgs,
    /// What runs, as hints show it.
    line: &'a CommandLine,
    /// What is copied out of its io dir.
    artifacts: Artifacts,
    /// What becomes of its changes.
    staging: Staging,
    /// What is written of what it made of what.
    issuer: Option<Issuer>,
    /// Where the result is written to.
    reports: &'a Reports,
}

impl Session<'_> {
    async fn run(
        &self,
        config: Config,
        spec: SandboxSpec,
        command: Command,
        stdin: Option<Source>,
    ) -> Result<u8, Error> {
        launch::in_sandbox(self.context, self.settings, config, spec, async |sandbox, signals| {
            let execution = sandbox.start_exec(command.clone());
            let follow = async |execution| self.follow(sandbox, execution, stdin, &command).await;
            launch::follow_to_end(signals, execution, Execution::cancel_handle, follow).await
        })
        .await
    }

    /// Copies input and output while the command runs, and reports its result.
    async fn follow(
        &self,
        sandbox: &Sandbox,
        mut execution: Execution,
        source: Option<Source>,
        command: &Command,
    ) -> Result<u8, Error> {
        self.reports.started(THE_ONLY);
        let cancel = execution.cancel_handle();
        let stdin = execution.stdin();
        let notes = network::print_refused(self.context.output, execution.refused_hosts());
        let feeding = async {
            let fed = match (source, stdin) {
                (Some(source), Some(stdin)) => feed(source, stdin).await,
                _ => Ok(()),
            };
            if fed.is_err() {
                // Partial input must not look like all of it.
                cancel.cancel(CancelCause::Caller);
            }
            fed
        };
        let finish = async {
            let mut seen = Seen::new(self.reports);
            let written = match self.args.json {
                // Output that is not copied is collected.
                true => Ok(Written::All),
                false => {
                    let filtered = Filtered::new(self.context.output, self.args.raw)?;
                    let next = async || {
                        let next = execution.next_output().await;
                        next.map(|(stream, piece)| (stream, piece.into()))
                    };
                    pass_on(filtered, next, &mut seen).await
                }
            };
            if !matches!(written, Ok(Written::All)) {
                cancel.cancel(CancelCause::Caller);
            }
            let result = execution.wait().await?;
            written.map(|written| (result, written, seen))
        };
        // A note precedes what follows from it.
        let finish = async {
            match self.args.json {
                true => finish.await,
                false => tokio::join!(biased; notes, finish).1,
            }
        };
        tokio::pin!(feeding, finish);
        let (ended, fed) = tokio::select! {
            // The command's result counts, even if more of its input could have been read.
            biased;
            ended = &mut finish => (ended, Ok(())),
            fed = &mut feeding => (finish.await, fed),
        };
        let (mut result, written, seen) = ended?;
        // It was cancelled for that reason.
        fed?;
        let mut copied = self.artifacts.copy(sandbox, &result.outcome).await?;
        let staged =
            self.staging.finish(sandbox, &mut result.execution, self.context.output).await?;
        let ran = Subjected::Command(command);
        let issued = Issuer::issue(
            &self.issuer,
            sandbox,
            &ran,
            &result.execution,
            &mut copied,
            &self.staging,
        );
        let issued = issued.await;
        let code = match written.is_why(&result.outcome) {
            true => UNREAD,
            false => copied.exit_code(result.outcome.exit_code()),
        };
        let (whole, last_lines) = seen.put_into(&result);
        let whole = document(&whole, &copied, &issued);
        self.reports.executed(THE_ONLY, &whole, code, last_lines);
        self.end(&result, written, (&copied, &staged, &issued))?;
        issued.print(self.context.output);
        Ok(code)
    }

    /// Reports its result.
    fn end(
        &self,
        result: &ExecResult,
        written: Written,
        (copied, staged, issued): (&Copied, &Staged, &Issued),
    ) -> Result<(), Error> {
        let output = self.context.output;
        if self.args.json {
            output.document(&document(result, copied, issued))?;
            staged.print_diff(output);
            truncation::warn_of_command(output, result);
            return Ok(());
        }
        print_failure(output, self.args, self.line, result, written);
        let here = &self.context.environment.working_directory;
        let io_dir = result.io_dir.as_deref();
        if matches!(result.outcome, Outcome::Exit(Exit::Code(_)))
            && let Some(hint) = hints::file_left_outside(self.line, io_dir)
        {
            output.hint(&hint);
        }
        copied.print(output);
        // What was not selected was not to be kept.
        if (io_dir.is_some() || !copied.is_complete()) && staged.is_kept(result) {
            touched::print(output, here, io_dir, &result.files_touched);
        }
        staged.print(output, result);
        if self.args.keep {
            touched::print_kept(output, io_dir);
        }
        truncation::warn_of_command(output, result);
        Ok(())
    }
}

/// Where a command's stdout and stderr go.
fn sinks(output: &Output, raw: bool) -> Result<[Sink; 2], Error> {
    let sinks = match raw {
        true => [Sink::new(io::stdout()), Sink::new(io::stderr())],
        false => [
            Sink::styled(io::stdout(), output.stdout_has_colour()),
            Sink::styled(io::stderr(), output.stderr_has_colour()),
        ],
    };
    let [stdout, stderr] = sinks.map(|it| it.map_err(|source| Error::Stdout { source }));
    Ok([stdout?, stderr?])
}

/// Prints why a command failed, beyond its own exit code.
fn print_failure(
    output: &Output,
    args: &ExecArgs,
    line: &CommandLine,
    result: &ExecResult,
    written: Written,
) {
    if let Some(failure) = result.outcome.failure()
        && !written.is_why(&result.outcome)
    {
        let own = hints::not_found(line, failure.kind);
        output.failure(&failure.message, own.or_else(|| result.hint()).as_deref());
    }
    if let Outcome::Exit(Exit::Signal(signal)) = result.outcome {
        output.notice(&format!("the command was ended by {}", signal_name(signal)));
    }
    // Who asked for no network knows it.
    let is_known = |note: &Note| note.kind == NoteKind::NoNetwork && args.docker_flags.no_network();
    for note in result.notes.iter().filter(|note| !is_known(note)) {
        output.notice(&note.to_string());
    }
}

/// The name of a signal, as `kill -l` has it.
fn signal_name(signal: u8) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match NAMES.get(usize::from(signal).wrapping_sub(1)) {
        Some(name) => format!("signal {signal} (SIG{name})"),
        None => format!("signal {signal}"),
    }
}

/// Whether the command's output was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// Until its end.
    All,
    /// The reader closed it before that.
    Unread,
}

impl Written {
    /// Whether the command was ended because of it.
    const fn is_why(self, outcome: &Outcome) -> bool {
        let by_us = matches!(outcome, Outcome::Cancelled { cause: CancelCause::Caller });
        by_us && matches!(self, Self::Unread)
    }
}

/// The document of a command.
fn document<'a>(
    result: &'a ExecResult,
    copied: &'a Copied,
    issued: &'a Issued,
) -> ExecDocument<'a> {
    let mut document = ExecDocument::from(result);
    document.execution.artifacts = copied.report.as_ref().map(Cow::Borrowed);
    document.execution.receipt = issued.report().map(Cow::Borrowed);
    document
}

/// The position of the command: it is the only one.
const THE_ONLY: usize = 0;

/// The output that is passed on, for the reports.
struct Seen<'a> {
    reports: &'a Reports,
    /// The beginnings of stdout and stderr, and whether there was more.
    kept: [(Vec<u8>, bool); 2],
    /// The end of stderr.
    stderr: Tail,
}

impl<'a> Seen<'a> {
    fn new(reports: &'a Reports) -> Self {
        Self { reports, kept: Default::default(), stderr: Tail::default() }
    }

    fn push(&mut self, stream: ExecStream, piece: &[u8]) {
        let (stream, name) = match stream {
            ExecStream::Stdout => (0, OutputStream::Stdout),
            ExecStream::Stderr => (1, OutputStream::Stderr),
        };
        self.reports.output(THE_ONLY, name, piece);
        if stream == 1 {
            self.stderr.push(piece);
        }
        if self.reports.keep_output() {
            let (kept, is_cut) = &mut self.kept[stream];
            let left = DEFAULT_COLLECTED_BYTES - kept.len();
            kept.extend_from_slice(&piece[..piece.len().min(left)]);
            *is_cut |= piece.len() > left;
        }
    }

    /// The result with the output that it would have if none had been passed on, and the last lines of
    /// stderr.
    fn put_into(mut self, result: &ExecResult) -> (ExecResult, String) {
        if !result.stderr_truncated {
            self.stderr.push(&result.stderr);
        }
        let mut result = result.clone();
        let [stdout, stderr] = self.kept;
        if !stdout.0.is_empty() {
            (result.stdout, result.stdout_truncated) = stdout;
        }
        if !stderr.0.is_empty() {
            (result.stderr, result.stderr_truncated) = stderr;
        }
        (result, self.stderr.last_lines())
    }
}

/// Copies the command's output until it ends or the reader is gone.
async fn pass_on(
    mut sinks: Filtered,
    mut next: impl AsyncFnMut() -> Option<(ExecStream, Vec<u8>)>,
    seen: &mut Seen<'_>,
) -> Result<Written, Error> {
    while let Some((stream, piece)) = next().await {
        seen.push(stream, &piece);
        let stream = match stream {
            ExecStream::Stdout => 0,
            ExecStream::Stderr => 1,
        };
        if !is_read(sinks.put(stream, piece).await)? {
            return Ok(Written::Unread);
        }
    }
    // The last output may have had no reader: then the command has ended as well.
    for stream in [0, 1] {
        is_read(sinks.flush(stream).await)?;
    }
    for sink in sinks.sinks {
        is_read(sink.finish().await)?;
    }
    Ok(Written::All)
}

/// Where stdout and stderr go, without what a runner would read in them.
struct Filtered {
    sinks: [Sink; 2],
    filters: [Option<MarkFilter>; 2],
    /// Both go to one log: what one stream begins, the other one could end.
    is_one: bool,
}

impl Filtered {
    fn new(output: &Output, raw: bool) -> Result<Self, Error> {
        let filters = [Stream::Stdout, Stream::Stderr]
            .map(|stream| output.ci().and_then(|ci| ci.filter(stream)));
        let is_one = output.ci().is_some_and(Ci::is_one_stream);
        Ok(Self { sinks: sinks(output, raw)?, filters, is_one })
    }

    async fn put(&mut self, stream: usize, piece: Vec<u8>) -> io::Result<()> {
        let stream = if self.is_one { 0 } else { stream };
        let piece = match &mut self.filters[stream] {
            Some(filter) => filter.push(&piece),
            None => piece,
        };
        self.sinks[stream].put(piece).await
    }

    /// Writes what is held back.
    async fn flush(&mut self, stream: usize) -> io::Result<()> {
        match self.filters[stream].as_mut().map(MarkFilter::finish) {
            Some(held) if !held.is_empty() => self.sinks[stream].put(held).await,
            _ => Ok(()),
        }
    }
}

fn is_read(put: io::Result<()>) -> Result<bool, Error> {
    match put {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(source) => Err(Error::Stdout { source }),
    }
}

/// Copies our stdin until it ends, or the command closes its own.
async fn feed(mut source: Source, mut stdin: impl AsyncWrite + Unpin) -> Result<(), Error> {
    let failed = |source| Error::Content { what: "stdin".to_owned(), source };
    while let Some(piece) = source.next().await.map_err(failed)? {
        if stdin.write_all(&piece).await.is_err() {
            return Ok(());
        }
    }
    // The command may also ignore the end of its stdin.
    _ = stdin.shutdown().await;
    Ok(())
}
