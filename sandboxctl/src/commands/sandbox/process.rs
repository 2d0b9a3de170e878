//! `sandbox run`, `shell`, `attach` and `logs`: processes that live on.

use std::ffi::OsString;
use std::io;
use std::io::IsTerminal as _;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{fstat, stat};
use sandbox_api::{
    ExecutionEvent, LimitKey, ProcessRequest, ProcessState, ProcessView, Recorded, TerminalSize,
    millis,
};

use super::super::execution::{Console, StdoutState, View};
use super::super::executions::while_read;
use super::super::terminal::Keyboard;
use super::super::{Context, exec as one_shot, terminal};
use super::attached::{Attached, Ended, InputKind};
use super::find;
use crate::cli::exec::CommandLine;
use crate::cli::sandboxes::{KeysArgs, LogsArgs, ProcessArgs, RunInArgs};
use crate::config::Layer;
use crate::error::{Error, Signal, UNREAD};
use crate::remote::{self, Client, EventSource, Events, ProcessRef};
use crate::signals::Signals;

/// The shell of an image.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi";

pub async fn run(
    context: &Context<'_>,
    client: Arc<Client>,
    args: &RunInArgs,
) -> Result<u8, Error> {
    let &RunInArgs { ref command, detach, tty, ref keys } = args;
    let settings = context.settings_with(|flags| command.add_flags(flags))?;
    let limits = settings.limits();
    let is_given = |limit| settings.setting(settings.limit_key(limit)).layer == Layer::Flag;
    let pty = tty.then(|| terminal::request(context)).transpose()?;
    let workdir = command.workdir.as_deref();
    let variables = command.variables.read()?;
    let request = ProcessRequest {
        command: one_shot::command_request(context, workdir, &command.line(), &variables)?,
        stdin: command.stdin,
        pty,
        merge: true,
        timeout_ms: is_given(LimitKey::Timeout).then(|| millis(limits.timeout)),
        stop_signal: command.stop_signal,
        stop_timeout_ms: is_given(LimitKey::StopTimeout).then(|| millis(limits.stop_timeout)),
        ..ProcessRequest::default()
    };
    let id = find(&client, &command.sandbox).await?.id;
    if detach {
        let process = client.start_process(&id, &request, &remote::new_key()).await?;
        return context.output.text(&format!("{}\n", process.id)).map(|()| 0);
    }
    start(context, client, (&*command.sandbox, id), &request, keys).await
}

pub async fn shell(
    context: &Context<'_>,
    client: Arc<Client>,
    sandbox: &str,
    words: &[OsString],
    keys: KeysArgs,
) -> Result<u8, Error> {
    let line = match words.split_first() {
        Some((program, args)) => CommandLine::Program(program.clone(), args.to_vec()),
        None => CommandLine::Shell(SHELL.into()),
    };
    let request = ProcessRequest {
        command: one_shot::command_request(context, None, &line, &[])?,
        stdin: true,
        pty: Some(terminal::request(context)?),
        ..ProcessRequest::default()
    };
    let id = find(&client, sandbox).await?.id;
    start(context, client, (sandbox, id), &request, &keys).await
}

/// Starts a process and shows it to its end, which the first signal brings about. One with a terminal goes
/// on when that is gone.
async fn start(
    context: &Context<'_>,
    client: Arc<Client>,
    (sandbox, id): (&str, String),
    request: &ProcessRequest,
    KeysArgs { detach_keys }: &KeysArgs,
) -> Result<u8, Error> {
    let mut signals = Signals::listen()?;
    let key = remote::new_key();
    let view = signals.guard(client.start_process(&id, request, &key)).await??;
    let process = ProcessRef::of(id, &view);
    let size = request.pty.as_ref().map(|it| TerminalSize { cols: it.cols, rows: it.rows });
    let keyboard =
        request.stdin.then(|| Keyboard::open(size.map(|_| detach_keys.clone()))).transpose()?;
    context.output.reads_stdin(size.is_none() && keyboard.is_some());
    let attached = Attached {
        context,
        client: client.clone(),
        process: process.clone(),
        sandbox,
        last: 0,
        keyboard,
        input: InputKind::Own,
        lent: size,
    };
    match signals.guard(attached.show()).await {
        Ok(Ok(Ended::Unread)) => {
            client.stop_process(&process).await?;
            Ok(UNREAD)
        }
        Ok(ended) => Ok(end(context, sandbox, process.id, ended?)),
        Err(Error::Signalled(signal)) if size.is_some() && signal != Signal::Interrupt => {
            end(context, sandbox, process.id, Ended::Left);
            Err(Error::Signalled(signal))
        }
        Err(error) => {
            // A second signal does not wait.
            _ = signals.guard(client.stop_process(&process)).await?;
            Err(error)
        }
    }
}

pub async fn attach(
    context: &Context<'_>,
    client: Arc<Client>,
    ProcessArgs { sandbox, process }: &ProcessArgs,
    after: Option<u64>,
    KeysArgs { detach_keys }: KeysArgs,
) -> Result<u8, Error> {
    let mut signals = Signals::listen()?;
    let id = signals.guard(find(&client, sandbox)).await??.id;
    let view = signals.guard(find_process(&client, &id, *process)).await??;
    if view.state != ProcessState::Running && after.is_none() {
        let error = Error::usage(format!("NUMBER {}", view.id), "the process has exited");
        let process = view.id;
        return Err(error.with_hint(format!(
            "`sandboxctl sandbox logs {sandbox} {process}` prints what it has printed"
        )));
    }
    let is_typed = io::stdin().is_terminal();
    let size = (view.pty && is_typed).then(crate::terminal::size);
    let (keyboard, input) = match is_typed {
        true => (Some(Keyboard::open(Some(detach_keys))?), InputKind::Own),
        false if is_null(rustix::stdio::stdin()) => (None, InputKind::Own),
        false => (Some(Keyboard::open(None)?), InputKind::Piped),
    };
    let attached = Attached {
        context,
        client,
        process: ProcessRef::of(id, &view),
        sandbox,
        last: after.unwrap_or(view.last_event),
        keyboard,
        input,
        lent: size,
    };
    // A client that only watches does not end it.
    let shown = signals.guard(attached.show()).await;
    if shown.is_err() {
        end(context, sandbox, view.id, Ended::Left);
    }
    Ok(end(context, sandbox, view.id, shown??))
}

/// The exit code, and a word on what goes on.
fn end(context: &Context<'_>, sandbox: &str, process: u32, ended: Ended) -> u8 {
    match ended {
        Ended::Exited(code) => code,
        Ended::Unread => UNREAD,
        Ended::Left => {
            context.output.notice(&format!(
                "process {process} runs on: `sandboxctl sandbox attach {sandbox} {process}` shows it"
            ));
            0
        }
    }
}

/// Whether this is /dev/null, which programs have as stdin that have nothing to say.
fn is_null(stdin: BorrowedFd<'_>) -> bool {
    let null = stat("/dev/null");
    fstat(stdin).is_ok_and(|found| null.is_ok_and(|null| found.st_rdev == null.st_rdev))
}

/// The process of this number, or else the one that was started last.
async fn find_process(
    client: &Client,
    sandbox: &str,
    number: Option<u32>,
) -> Result<ProcessView, Error> {
    let Some(number) = number else {
        let none = || {
            Error::usage("NUMBER", "no process was started in the sandbox")
                .with_hint("`sandboxctl sandbox run ID COMMAND` starts one")
        };
        return client.processes(sandbox).await?.into_iter().next().ok_or_else(none);
    };
    Ok(client.find_process(sandbox, number).await?)
}

pub async fn logs(
    context: &Context<'_>,
    client: Arc<Client>,
    args: &LogsArgs,
) -> Result<u8, Error> {
    let &LogsArgs { ref process, follow, after, raw, json } = args;
    let (after, ProcessArgs { sandbox, process }) = (after.unwrap_or(0), process);
    let sandbox = find(&client, sandbox).await?.id;
    let output = context.output;
    let view = find_process(&client, &sandbox, *process).await?;
    let until = view.last_event;
    if !follow && until <= after {
        return Ok(0);
    }
    let source = EventSource::Process(ProcessRef::of(sandbox, &view));
    let mut events = Events::new(client, source, after);
    let mut console = Console::new(output, &View { raw, ..View::default() })?;
    let print = async {
        while let Some(record) = events.next().await? {
            let seq = record.seq;
            match record.event {
                _ if json => output.json_line(&record)?,
                Recorded::Event(ExecutionEvent::Output { stream, data }) => {
                    let stdout = console.put(stream, data.into()).await?;
                    if stdout == StdoutState::Closed {
                        break;
                    }
                }
                Recorded::Event(ExecutionEvent::Omitted) => {
                    output.caution("parts of the output are missing: only the end of it is kept");
                }
                _ => {}
            }
            if !follow && seq >= until {
                break;
            }
        }
        console.finish().await
    };
    while_read(output, print).await
}
