//! A program in a sandbox that has the terminal of its user: keys go in, the size follows, our own
//! messages wait.

use std::io;
use std::time::Duration;

use rustix::termios::isatty;
use sandbox_api::process::{PtyRequest, TerminalSize, check_terminal};
use sandbox_protocol::message::Pty;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep_until};

use super::Context;
use super::transfer::Source;
use crate::error::Error;
use crate::or_never;
use crate::output::Output;
use crate::terminal::{self, DetachKeys, KeyMatcher, RawTerminal, Typed};

/// How long the size of a window must stay the same until it is passed on: a user who drags its corner
/// changes it many times.
const SETTLED: Duration = Duration::from_millis(30);

/// The terminal for a program.
///
/// # Errors
///
/// If stdin is no terminal, in Docker's words.
pub fn request(context: &Context<'_>) -> Result<PtyRequest, Error> {
    if !isatty(rustix::stdio::stdin()) {
        return Err(Error::usage("--tty", "the input device is not a TTY").with_hint(
            "without -t a command has no terminal; -i passes stdin on, whatever it is",
        ));
    }
    let TerminalSize { cols, rows } = terminal::size();
    let term = context.environment.variable("TERM").and_then(|term| term.to_str());
    let request = PtyRequest { cols, rows, term: term.map(str::to_owned) };
    match check_terminal(&Pty::from(request.clone())) {
        Ok(()) => Ok(request),
        Err(_) => Ok(PtyRequest { term: None, ..request }),
    }
}

/// While it exists a program has the terminal.
pub struct Lent<'a> {
    /// `None` while it is dropped.
    raw: Option<RawTerminal>,
    output: &'a Output,
    resized: unix::Signal,
    continued: unix::Signal,
    /// When the size is passed on, if it may have changed.
    due: Option<Instant>,
    /// The size that the program knows.
    pub last: TerminalSize,
}

impl<'a> Lent<'a> {
    /// Lends it. `last` is the size that the program knows.
    ///
    /// # Errors
    ///
    /// If it is gone.
    pub fn lend(output: &'a Output, last: TerminalSize) -> Result<Self, Error> {
        let failed = |source| Error::System { what: "the terminal".to_owned(), source };
        let listen = |kind| unix::signal(kind).map_err(failed);
        let resized = listen(SignalKind::window_change())?;
        let continued = listen(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?;
        let raw = RawTerminal::enter().map_err(failed)?;
        output.hold();
        // It may have changed since it was asked for.
        Ok(Self { raw: Some(raw), output, resized, continued, due: Some(Instant::now()), last })
    }

    /// The next size. It may be dropped and called again.
    pub async fn next_size(&mut self) -> TerminalSize {
        loop {
            tokio::select! {
                _ = self.resized.recv() => self.due = Some(Instant::now() + SETTLED),
                _ = self.continued.recv() => {
                    // A shell has had it meanwhile. If it is gone, the end of the input says so.
                    _ = self.raw.as_ref().map(RawTerminal::again);
                    self.due = Some(Instant::now() + SETTLED);
                }
                () = or_never(self.due.map(sleep_until)) => {
                    self.due = None;
                    let size = terminal::size();
                    if std::mem::replace(&mut self.last, size) != size {
                        return size;
                    }
                }
            }
        }
    }
}

/// The next size of the terminal, if it is lent. It may be dropped and called again.
pub async fn next_size(lent: &mut Option<Lent<'_>>) -> TerminalSize {
    or_never(lent.as_mut().map(Lent::next_size)).await
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.raw = None;
        self.output.release();
    }
}

/// What is typed, or else all of stdin, up to the keys that leave.
pub struct Keyboard {
    source: Source,
    matcher: Option<KeyMatcher>,
    /// Whether the keys that leave were typed, and all before them was given.
    pub leaves: bool,
    /// Whether there was any input.
    pub has_given: bool,
}

impl Keyboard {
    /// Reads stdin. `keys` are those that leave.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn open(keys: Option<DetachKeys>) -> Result<Self, Error> {
        let source = Source::stdin().map_err(|error| Error::system("stdin", error))?;
        let matcher = keys.map(KeyMatcher::new);
        Ok(Self { source, matcher, leaves: false, has_given: false })
    }

    /// The next input; `None` at its end, and after the keys that leave. It may be dropped and called again.
    ///
    /// # Errors
    ///
    /// If stdin cannot be read.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        while !self.leaves {
            let Some(input) = self.source.next().await? else { return Ok(None) };
            self.has_given = true;
            let Some(matcher) = &mut self.matcher else { return Ok(Some(input)) };
            let Typed { keys, leaves } = matcher.take(&input);
            self.leaves = leaves;
            if !keys.is_empty() {
                return Ok(Some(keys));
            }
        }
        Ok(None)
    }
}
