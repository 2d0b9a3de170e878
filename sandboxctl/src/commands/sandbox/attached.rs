//! A process that is shown: its output comes, input and the size of the terminal go, over one connection
//! that is made again where it is lost.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{ExecutionEvent, Outcome, ProblemKind, Recorded, TerminalSize};
use tokio::time::{Instant, sleep, sleep_until};

use super::super::Context;
use super::super::execution::{Console, StdoutState, View};
use super::super::terminal::{Keyboard, Lent, next_size};
use crate::error::Error;
use crate::or_never;
use crate::remote::{
    AttachInput, AttachOutput, Client, Error as RemoteError, ProcessRef, Received,
};

/// How often a lost connection is made again, without anything that came over it in between.
const TRIES: u32 = 10;
/// The waits between grow from the one to the other.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(3)];
/// How long output is awaited after a program has exited, if others that it has started hold it open.
const LEFT: Duration = Duration::from_secs(1);

/// Which process, and how it is shown.
pub struct Attached<'a> {
    pub context: &'a Context<'a>,
    pub client: Arc<Client>,
    pub process: ProcessRef,
    /// Its sandbox, as the command line names it.
    pub sandbox: &'a str,
    /// The number of the last event that was shown.
    pub last: u64,
    /// What it is sent; without one its input is left alone.
    pub keyboard: Option<Keyboard>,
    /// What that is.
    pub input: InputKind,
    /// The size of its terminal, if it has this one; with a keyboard that is lent to it.
    pub lent: Option<TerminalSize>,
}

/// What a process is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// What is typed, or all of stdin from its start.
    Own,
    /// What is piped to a process that ran before: it may take none. Without any its stdin stays open: a
    /// script that only looks on has an empty stdin too.
    Piped,
}

/// How it came to an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The program has exited, with this exit code for ours.
    Exited(u8),
    /// It runs on: its user left.
    Left,
    /// It runs on: what it prints has no reader.
    Unread,
}

/// How one connection came to an end: with the process or its user, or why it was lost. Then it can be made again.
type Connection = Result<Ended, String>;

impl Attached<'_> {
    /// Shows it to its end. Dropped, it is left.
    ///
    /// # Errors
    ///
    /// If the service is lost, or refuses.
    pub async fn show(mut self) -> Result<Ended, Error> {
        let output = self.context.output;
        let lent = self.lent.filter(|_| self.keyboard.is_some());
        let view = View { terminal: self.lent, ..View::default() };
        let mut console = Console::new(output, &view)?;
        let mut lent = lent.map(|size| Lent::lend(output, size)).transpose()?;
        let mut tries = 0;
        let ended = loop {
            let attached = self.client.attach(&self.process, self.last).await;
            let lost = match attached {
                Ok((input, from)) => {
                    if tries > 0 {
                        output.notice("reconnected; some keystrokes may be lost");
                    }
                    let connected =
                        self.connected(input, from, &mut console, &mut lent, &mut tries);
                    match connected.await? {
                        Ok(ended) => break ended,
                        Err(why) => why,
                    }
                }
                // The sandbox may be gone, or the process: it makes no sense to try again.
                Err(error @ (RemoteError::Refused { .. } | RemoteError::Unexpected { .. })) => {
                    return Err(error.into());
                }
                Err(error) => Error::from(error).message(),
            };
            tries += 1;
            if tries > TRIES {
                drop(lent);
                return Err(self.gave_up(lost));
            }
            sleep(PAUSES[1].min(PAUSES[0] * tries)).await;
        };
        // A closed stdout is its reader's end.
        console.finish().await?;
        Ok(ended)
    }

    /// What one connection brings and takes. Anything that comes over it ends the `tries`.
    async fn connected(
        &mut self,
        input: AttachInput,
        from: AttachOutput,
        console: &mut Console,
        lent: &mut Option<Lent<'_>>,
        tries: &mut u32,
    ) -> Result<Connection, Error> {
        let Self { sandbox, last, keyboard, input: kind, context, .. } = self;
        let receiving = receive(context, sandbox, *kind, from, (last, tries), console);
        let sending = send(input, *kind, keyboard, lent);
        tokio::select! {
            ended = receiving => ended,
            left = sending => left.map(|()| Ok(Ended::Left)),
        }
    }

    fn gave_up(&self, why: String) -> Error {
        let server = self.client.server();
        let (sandbox, process) = (self.sandbox.to_owned(), self.process.id);
        RemoteError::LostProcess { server, sandbox, process, source: why.into() }.into()
    }
}

/// Shows what comes, until the process has ended or the connection has.
async fn receive(
    context: &Context<'_>,
    sandbox: &str,
    kind: InputKind,
    mut from: AttachOutput,
    (last, tries): (&mut u64, &mut u32),
    console: &mut Console,
) -> Result<Connection, Error> {
    let mut exited: Option<(u8, Instant)> = None;
    let mut is_told = kind == InputKind::Own;
    loop {
        let is_over = or_never(exited.map(|(_, since)| sleep_until(since + LEFT)));
        let received = tokio::select! {
            received = from.next() => received,
            () = is_over => break,
        };
        let lost = match received {
            Ok(Some(received)) => {
                *tries = 0;
                match received {
                    Received::Output(stream, seq, data) => {
                        *last = seq;
                        if console.put(stream, data).await? == StdoutState::Closed {
                            return Ok(Ok(Ended::Unread));
                        }
                    }
                    Received::Event(record) => {
                        *last = record.seq;
                        match record.event {
                            Recorded::End { exit_code, .. } => {
                                return Ok(Ok(Ended::Exited(exit_code)));
                            }
                            Recorded::Event(ExecutionEvent::Exited(exit)) => {
                                let code = Outcome::Exit(exit).exit_code();
                                exited = Some((code, Instant::now()));
                            }
                            Recorded::Event(ExecutionEvent::Output { stream, data }) => {
                                console.put(stream, data.into()).await?;
                            }
                            Recorded::Event(ExecutionEvent::Omitted) => {
                                context.output.caution("parts of the output are missing here");
                            }
                            Recorded::Event(_) => {}
                        }
                    }
                    Received::Refused(problem) => match problem.kind {
                        ProblemKind::NoStdin if !is_told && exited.is_none() => {
                            is_told = true;
                            let dropped = "what was piped to it is dropped";
                            context.output.caution(&format!("{}: {dropped}", problem.detail));
                        }
                        // Input that comes too late is no mistake.
                        ProblemKind::NoStdin | ProblemKind::ProcessEnded => {}
                        _ => context.output.caution(&problem.detail),
                    },
                }
                continue;
            }
            Ok(None) => "it was closed before the last event".to_owned(),
            Err(error) => error.to_string(),
        };
        // What is left of it is not worth another connection.
        if exited.is_some() {
            break;
        }
        return Ok(Err(lost));
    }
    let (code, _) = exited.unwrap_or((0, Instant::now()));
    context.output.notice(&format!(
        "what it has started still runs: `sandboxctl sandbox ps {sandbox}` lists it"
    ));
    Ok(Ok(Ended::Exited(code)))
}

/// Sends what is typed and how large the terminal is, until its user leaves. A connection that is lost is
/// noticed by who receives.
async fn send(
    mut input: AttachInput,
    kind: InputKind,
    keyboard: &mut Option<Keyboard>,
    lent: &mut Option<Lent<'_>>,
) -> Result<(), Error> {
    let failed = |source| Error::Content { what: "stdin".to_owned(), source };
    if let Some(lent) = lent {
        // One that was shown elsewhere draws itself again when its size changes.
        let size = lent.last;
        let other = TerminalSize { rows: if size.rows > 1 { size.rows - 1 } else { 2 }, ..size };
        for size in [other, size] {
            if input.resize(size).await.is_err() {
                pending::<()>().await;
            }
        }
    }
    let mut is_open = keyboard.is_some();
    loop {
        let typing = or_never(keyboard.as_mut().map(Keyboard::next));
        let sent = tokio::select! {
            typed = typing, if is_open => match typed.map_err(failed)? {
                Some(piece) => input.write(piece).await,
                None if keyboard.as_ref().is_some_and(|it| it.leaves) => return Ok(()),
                None => {
                    is_open = false;
                    let has_given = keyboard.as_ref().is_some_and(|it| it.has_given);
                    match kind {
                        InputKind::Piped if !has_given => Ok(()),
                        InputKind::Piped | InputKind::Own => input.close().await,
                    }
                }
            },
            size = next_size(lent) => input.resize(size).await,
        };
        if sent.is_err() {
            pending::<()>().await;
        }
    }
}
