//! stdout and stderr. stdout is for output and results; everything else goes to stderr.
//!
//! Guest output is written to a pipe unchanged. On a terminal colours and what moves within a line
//! pass, and other control characters are escaped.
//! On stderr, which has our own messages, guest text is always escaped.

use std::borrow::Cow;
use std::io;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use anstyle::{AnsiColor, Style};
use sandbox_api::{Failure, LogEntry, LogLevel, OutputStream};
use serde::Serialize;

use crate::ci::{self, Ci};
use crate::error::Error;
use crate::lock;
use crate::render::{self, StyledText, escaped_line, escaped_text, json_for_terminal};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default();
const HINT: Style = AnsiColor::Cyan.on_default().bold();
const DIM: Style = Style::new().dimmed();

/// How much is printed in addition to results and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    /// Notices, and progress on a terminal.
    Normal,
    /// Errors only.
    Quiet,
}

/// The output of a command.
#[derive(Debug)]
pub struct Output {
    verbosity: Verbosity,
    /// Whether stdout is a terminal, so that text must be escaped.
    pub stdout_is_terminal: bool,
    /// Whether stdout supports colour.
    pub stdout_has_colour: bool,
    /// Whether stderr is a terminal.
    pub stderr_is_terminal: bool,
    /// Whether stderr supports colour.
    pub stderr_has_colour: bool,
    /// stdout's reader is gone.
    closed: AtomicBool,
    /// The log of a CI job that this is.
    ci: OnceLock<Ci>,
    /// What is for stderr, while a program has the terminal.
    held: Mutex<Option<Vec<u8>>>,
}

impl Output {
    /// The process's own. Colour follows `anstream`'s global choice, the terminal, `NO_COLOR` and
    /// `CLICOLOR`.
    pub fn new(verbosity: Verbosity) -> Self {
        let colour = |choice| choice != anstream::ColorChoice::Never;
        Self {
            verbosity,
            stdout_is_terminal: io::stdout().is_terminal(),
            stdout_has_colour: colour(anstream::AutoStream::choice(&io::stdout())),
            stderr_is_terminal: io::stderr().is_terminal(),
            stderr_has_colour: colour(anstream::AutoStream::choice(&io::stderr())),
            closed: AtomicBool::new(false),
            ci: OnceLock::new(),
            held: Mutex::new(None),
        }
    }

    /// From here on messages are held back: a program has the terminal.
    pub fn hold(&self) {
        _ = lock(&self.held).get_or_insert_default();
    }

    /// Prints what was held back.
    pub fn release(&self) {
        let held = lock(&self.held).take();
        _ = io::stderr().lock().write_all(&held.unwrap_or_default());
    }

    /// The columns of the terminal that stdout is.
    pub fn width(&self) -> Option<usize> {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
        (self.stdout_is_terminal && size.ws_col > 0).then_some(size.ws_col.into())
    }

    /// Whether progress is displayed.
    pub fn shows_progress(&self) -> bool {
        self.verbosity == Verbosity::Normal && self.stderr_is_terminal
    }

    /// Writes our own bytes to stdout.
    ///
    /// # Errors
    ///
    /// If stdout cannot be written. A closed reader is not an error: the rest is not written.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        if self.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let bytes =
            self.ci().map_or(Cow::Borrowed(bytes), |ci| ci.neutral(OutputStream::Stdout, bytes));
        let mut stdout = io::stdout().lock();
        match stdout.write_all(&bytes).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(Error::stdout(error)),
        }
    }

    /// Whether stdout has had a reader for all that was written.
    pub fn is_read(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    /// From here on this is the log of a CI job.
    pub fn begin_ci(&self, ci: Ci) {
        // Each process runs one command.
        _ = self.ci.set(ci);
    }

    /// The CI job whose log this is.
    pub fn ci(&self) -> Option<&Ci> {
        self.ci.get()
    }

    /// Ends the job's group or section, if there is one.
    pub fn end_ci(&self) {
        if let Some(ci) = self.ci() {
            ci.end();
        }
    }

    /// Reports a failure of our side to the runner, unless there were results to report.
    pub fn report_failure(&self, failure: Failure, exit_code: u8) {
        let unwritten = self.ci().map(|ci| ci.report_failure(failure, exit_code));
        unwritten.iter().flatten().for_each(|error| self.error(error));
    }

    /// A message that may quote guests: in a job, also before its group or without one.
    pub fn neutral_message<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        match self.ci() {
            Some(ci) => ci.neutral(OutputStream::Stderr, text),
            None => ci::outside_of_groups(text),
        }
    }

    /// Writes a result that is text to stdout, as it is; as JSON if the runner would find a command
    /// in it.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn result_text(&self, text: &str) -> Result<(), Error> {
        if self.ci().is_some_and(|ci| ci.finds_command(text)) {
            self.caution("the result has a command of the runner: it is printed as JSON");
            return self.document(&text);
        }
        self.text(text)
    }

    /// Writes our own text to stdout.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn text(&self, text: &str) -> Result<(), Error> {
        let text = if self.stdout_is_terminal { escaped_text(text) } else { Cow::Borrowed(text) };
        self.lines(text.as_bytes())
    }

    /// Writes lines that may have names of guests to stdout. In a job without a group, a runner finds
    /// no command in them.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn lines(&self, lines: &[u8]) -> Result<(), Error> {
        match self.ci() {
            Some(_) => self.write(lines),
            None => self.write(&ci::outside_of_groups(lines)),
        }
    }

    /// Writes an entry of a script's log to stdout: on a terminal its colours pass, and with `raw`
    /// everything.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn log(&self, entry: &LogEntry, raw: bool) -> Result<(), Error> {
        let line = entry.line();
        if self.stdout_has_colour && entry.level != LogLevel::Print && !raw {
            let text = escaped_text(&line);
            return self.write(format!("{WARNING}{text}{WARNING:#}\n").as_bytes());
        }
        if raw || !self.stdout_is_terminal {
            return self.write(format!("{line}\n").as_bytes());
        }
        let mut styled = StyledText::new(self.stdout_has_colour);
        let text = styled.take(line.as_bytes()) + &styled.end();
        self.write(format!("{text}\n").as_bytes())
    }

    /// Writes an entry of a script's log to stderr, unless quiet.
    pub fn log_to_stderr(&self, entry: &LogEntry) {
        if self.verbosity == Verbosity::Normal {
            self.dim(&entry.line());
        }
    }

    /// Writes a value to stdout as JSON over several lines.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn pretty_json(&self, value: &impl Serialize) -> Result<(), Error> {
        let mut json = serde_json::to_string_pretty(value).map_err(Error::stdout)?;
        json.push('\n');
        let json =
            if self.stdout_is_terminal { json_for_terminal(&json) } else { Cow::Borrowed(&*json) };
        self.write(json.as_bytes())
    }

    /// Writes a document to stdout: as JSON, or as text for this width.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn show(
        &self,
        as_json: bool,
        value: &impl Serialize,
        text: impl FnOnce(Option<usize>) -> String,
    ) -> Result<(), Error> {
        if as_json { self.document(value) } else { self.text(&text(self.width())) }
    }

    /// Writes a JSON document to stdout: on a terminal over several lines, else on one.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn document(&self, value: &impl Serialize) -> Result<(), Error> {
        if self.stdout_is_terminal { self.pretty_json(value) } else { self.json_line(value) }
    }

    /// Writes a JSON document to stdout on one line.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn json_line(&self, value: &impl Serialize) -> Result<(), Error> {
        let json = serde_json::to_string(value).map_err(Error::stdout)?;
        self.write(format!("{}\n", self.neutral_json(&json)).as_bytes())
    }

    /// JSON in which a runner finds no command; the value is the same.
    pub fn neutral_json<'a>(&self, json: &'a str) -> Cow<'a, str> {
        match self.ci() {
            Some(ci) => ci.json(json),
            None => ci::json_outside_of_groups(json),
        }
    }

    /// Prints an error of sandboxctl.
    pub fn error(&self, error: &Error) {
        self.failure(&error.message(), error.hint().as_deref());
    }

    /// Prints a failure and its hint. The texts may come from a guest.
    pub fn failure(&self, message: &str, hint: Option<&str>) {
        self.labelled(ERROR, "error", message);
        if let Some(hint) = hint {
            self.labelled(HINT, "hint", hint);
        }
    }

    /// Prints only a hint.
    pub fn hint(&self, hint: &str) {
        self.labelled(HINT, "hint", hint);
    }

    /// Prints a notice, unless quiet.
    pub fn notice(&self, text: &str) {
        if self.verbosity == Verbosity::Normal {
            self.labelled(WARNING, "note", text);
        }
    }

    /// Prints a warning that a guarantee does not hold, even if quiet.
    pub fn warning(&self, text: &str) {
        self.labelled(WARNING, "warning", text);
    }

    /// Prints a warning that something is left out, unless quiet.
    pub fn caution(&self, text: &str) {
        if self.verbosity != Verbosity::Quiet {
            self.warning(text);
        }
    }

    /// Prints the current step, on a terminal.
    pub fn progress(&self, text: &str) {
        if self.shows_progress() {
            self.dim(text);
        }
    }

    /// Says that stdin is read, where a person types it.
    pub fn reads_stdin(&self, is_read: bool) {
        if is_read && io::stdin().is_terminal() {
            self.progress("reading from the terminal; Ctrl-D ends it");
        }
    }

    /// Writes a diff to stderr: byte for byte, but for people on a terminal.
    pub fn diff(&self, diff: &[u8]) {
        match self.stderr_is_terminal {
            true => self.block(&render::diff(diff, self.stderr_has_colour)),
            false => self.to_stderr(&self.neutral_message(diff)),
        }
    }

    /// Writes lines that may come from a guest to stderr, indented, so that they cannot look like
    /// ours.
    pub fn indented(&self, text: &str) {
        for line in text.lines() {
            self.dim(&format!("  {line}"));
        }
    }

    fn labelled(&self, style: Style, label: &str, text: &str) {
        let style = if self.stderr_has_colour { style } else { Style::new() };
        self.block(&format!("{style}{label}{style:#}: {}", escaped_line(text)));
    }

    /// Writes our own text to stderr unchanged, with a newline at its end. A closed stderr is not a reason to
    /// fail, and cannot be reported.
    pub fn block(&self, text: &str) {
        let text = self.neutral_message(text.trim_end_matches('\n').as_bytes());
        self.to_stderr(&[&*text, b"\n"].concat());
    }

    fn to_stderr(&self, text: &[u8]) {
        match &mut *lock(&self.held) {
            Some(held) => held.extend_from_slice(text),
            None => _ = io::stderr().lock().write_all(text),
        }
    }

    fn dim(&self, text: &str) {
        let style = if self.stderr_has_colour { DIM } else { Style::new() };
        self.block(&format!("{style}{}{style:#}", escaped_line(text)));
    }
}
