//! `exec --server`: a command that a service runs.

use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;

use sandbox_api::service::{CommandRequest, Content, EventBody, OutputStream};
use sandbox_api::{ExecDocument, OutputEncoding, RootFs};
use sandbox_controller::ExecStream;

use super::super::remote::{self, Common, Following};
use super::super::transfer::Source;
use super::super::{Context, block_on, hints, network, reports, truncation};
use super::{Filtered, Seen, Written, own_variable, pass_on};
use crate::cli::exec::{CommandLine, ExecArgs, Target, Variable};
use crate::error::{Error, UNREAD};
use crate::remote::{Client, exec_result};
use crate::report::Reports;

/// The most bytes of stdin that are sent.
const MAX_STDIN_BYTES: u64 = 16 << 20;

pub fn exec(context: &Context<'_>, args: &ExecArgs, client: Client) -> Result<u8, Error> {
    args.remote.refuse_local("exec")?;
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    let Target { root, command: line, .. } = args.target(&settings)?;
    let image = match root {
        RootFs::Image { reference, .. } => Some(reference),
        _ => None,
    };
    let (secrets, stdin) =
        args.secrets.read(&context.environment, args.stdin.then_some("--stdin"))?;
    let title = super::title(&line, &secrets);
    let subject = reports::command(&line, &secrets);
    let shown = hints::shown_line(&line, &secrets);
    let common = Common {
        settings: &settings,
        inputs: &args.files.inputs,
        stdin: stdin.as_deref(),
        image,
        secrets,
        title,
    };
    let mut request = common.request()?;
    let command = command(context, args, &line, args.variables()?)?;
    let reports = Reports::of(&args.reports.reports, None, vec![subject])?;
    let client = remote::connect(context, client);
    let ended = block_on(async {
        request.command =
            Some(CommandRequest { stdin: read_stdin(context, args).await?, ..command });
        let following = Following::submit(&client, &request).await?;
        follow(context, args, &shown, &reports, following).await
    });
    if !args.stdin {
        hints::unread_stdin(context.output, hints::STDIN_OF_EXEC);
    }
    reports::finish(context.output, reports, ended)
}

/// What runs, without its stdin.
fn command(
    context: &Context<'_>,
    args: &ExecArgs,
    line: &CommandLine,
    variables: Vec<Variable>,
) -> Result<CommandRequest, Error> {
    let content = |text: &std::ffi::OsStr| Content(text.as_bytes().to_vec());
    let mut command =
        CommandRequest { cwd: args.workdir.as_deref().map(content), ..Default::default() };
    match line {
        CommandLine::Shell(line) => command.shell = Some(content(line)),
        CommandLine::Program(program, args) => {
            command.program = Some(content(program));
            command.args = args.iter().map(|arg| content(arg)).collect();
        }
    }
    for Variable { name, value } in variables {
        let shown = name.to_string_lossy().into_owned();
        match value.or_else(|| own_variable(context, &name)) {
            Some(value) => {
                let name = name.into_string();
                let name = name.map_err(|_| Error::usage("--env", "a name is not UTF-8 text"))?;
                command.env.insert(name, content(&value));
            }
            None => context.output.notice(&format!("{shown} is not set here, and not passed on")),
        }
    }
    Ok(command)
}

/// All of our stdin, if it is to be passed on: a service takes it with the request.
async fn read_stdin(context: &Context<'_>, args: &ExecArgs) -> Result<Option<Content>, Error> {
    if !args.stdin {
        return Ok(None);
    }
    if io::stdin().is_terminal() {
        context.output.progress("reading from the terminal; Ctrl-D ends it");
    }
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

/// Copies the output while the command runs, and reports its result.
async fn follow(
    context: &Context<'_>,
    args: &ExecArgs,
    line: &CommandLine,
    reports: &Reports,
    mut following: Following,
) -> Result<u8, Error> {
    let output = context.output;
    let mut seen = Seen::new(reports);
    let mut failure = None;
    let mut refused = 0;
    let written = {
        let next = async || {
            loop {
                match following.next().await {
                    Ok(Some(EventBody::Start)) => reports.started(super::THE_ONLY),
                    Ok(Some(EventBody::Output { stream, text, encoding })) => {
                        return Some(piece(stream, &text, encoding));
                    }
                    Ok(Some(EventBody::Refused { host })) if !args.json => {
                        network::print(output, refused, &host);
                        refused += 1;
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(error) => {
                        failure = Some(error);
                        return None;
                    }
                }
            }
        };
        match args.json {
            true => {
                let mut next = next;
                while let Some((stream, piece)) = next().await {
                    seen.push(stream, &piece);
                }
                Written::All
            }
            false => {
                let filtered = Filtered::new(output, args.raw)?;
                pass_on(filtered, next, &mut seen).await?
            }
        }
    };
    if let Some(error) = failure {
        return Err(error);
    }
    if written == Written::Unread {
        following.cancel().await?;
        while following.next().await?.is_some() {}
    }
    let (document, mut code) = following.exec_document()?;
    if exec_result(&document, code).is_ok_and(|result| written.is_why(&result.outcome)) {
        code = UNREAD;
    }
    reports.executed(super::THE_ONLY, &document, code, seen.stderr.last_lines());
    end(context, args, line, &document, code, written, &following)?;
    Ok(code)
}

/// A piece of output, as its bytes.
fn piece(stream: OutputStream, text: &str, encoding: OutputEncoding) -> (ExecStream, Vec<u8>) {
    let stream = match stream {
        OutputStream::Stdout => ExecStream::Stdout,
        OutputStream::Stderr => ExecStream::Stderr,
    };
    (stream, encoding.decode(text))
}

/// Reports its result.
fn end(
    context: &Context<'_>,
    args: &ExecArgs,
    line: &CommandLine,
    document: &ExecDocument<'static>,
    code: u8,
    written: Written,
    following: &Following,
) -> Result<(), Error> {
    let output = context.output;
    let result = exec_result(document, code);
    if args.json {
        output.document(document)?;
        if let Ok(result) = &result {
            truncation::warn_of_command(output, result);
        }
        return Ok(());
    }
    match result {
        Ok(result) => super::print_failure(output, args, line, &result, written),
        Err(failure) => output.failure(&failure.message, failure.hint.as_deref()),
    }
    following.print_kept(output, &document.execution.files_touched);
    // What the document lacks of the output was printed as it came.
    truncation::warn_of_files(output, document.execution.files_touched_truncated);
    Ok(())
}
