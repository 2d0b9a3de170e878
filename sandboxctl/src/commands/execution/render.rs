//! What is shown of an execution: its events as they come, and its document.

use std::io;
use std::path::{Path, PathBuf};

use sandbox_api::process::TerminalSize;
use sandbox_api::{
    CancelCause, CommandBody, DocumentBody, ErrorKind, ExecutionDocument, ExecutionEvent, Failure,
    LogEntry, LogLevel, Note, NoteKind, OutputStream, ReceiptReport, ScriptBody, ScriptError,
    Status, TestCase, TestStatus, TouchedFile,
};
use sandbox_render::ci::log_markers::MarkFilter;

use super::super::collect::Copied;
use super::super::staging::Staged;
use super::super::transfer::Sink;
use super::super::{Context, hints};
use super::remarks;
use super::tail::Tail;
use crate::cli::exec::CommandLine;
use crate::error::{Error, UNREAD};
use crate::input::ScriptSource;
use crate::output::Output;
use crate::render::{self, StyledText};
use crate::report::Reports;

/// How many failed test cases are printed.
const TESTS_SHOWN: usize = 50;

/// A script or a command of a command line.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// Its position on the command line.
    pub index: usize,
    /// What runs.
    pub program: Program<'a>,
}

/// What runs.
#[derive(Clone, Copy)]
pub enum Program<'a> {
    /// A script.
    Script(&'a ScriptSource),
    /// A command.
    Command(&'a CommandLine),
}

/// What of an execution is shown, and how.
#[derive(Clone, Copy, Default)]
pub struct View {
    /// A single document at the end.
    pub json: bool,
    /// Only the result on stdout.
    pub result_only: bool,
    /// Pass every control sequence on.
    pub raw: bool,
    /// It has a terminal, which begins with this size.
    pub terminal: Option<TerminalSize>,
    /// Print where the files are.
    pub keep: bool,
    /// `--network none` was given: no hint about a missing network.
    pub no_network: bool,
    /// Others run beside it: it is shown at its end.
    pub is_later: bool,
    /// There are several, whose outputs have their names above them.
    pub has_heads: bool,
}

/// Whether stdout has a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdoutState {
    Open,
    /// The reader closed it.
    Closed,
}

/// An execution that has ended.
pub struct Ended {
    pub document: ExecutionDocument<'static>,
    /// The exit code of sandboxctl, if nothing else runs.
    pub exit_code: u8,
    pub left: Left,
}

/// What it left.
pub enum Left {
    Local(Box<LocalFiles>),
    Remote(RemoteFiles),
}

/// What became of the files of an execution here.
pub struct LocalFiles {
    pub io_dir: Option<PathBuf>,
    pub copied: Copied,
    pub staged: Staged,
    /// The receipt, if one was asked for.
    pub issued: Option<ReceiptReport>,
}

/// What a service has of an execution.
pub struct RemoteFiles {
    /// The execution's id; `None` if its files stay in a sandbox.
    pub id: Option<String>,
    /// Log entries or output are missing.
    pub has_gaps: bool,
}

impl RemoteFiles {
    /// Says what the service has that was not printed.
    fn print(&self, output: &Output, touched: &[TouchedFile]) {
        if self.has_gaps {
            output.caution(
                "parts of the output are missing here: they came faster than they were kept",
            );
        }
        let Some(id) = &self.id else { return };
        let (count, bytes) = remarks::left(touched);
        if count > 0 {
            let (files, size) = (render::count(count, "file", "files"), render::size(bytes));
            output.notice(&format!(
                "the service keeps {files} ({size}): sandboxctl executions download {id} -o FILE"
            ));
        }
    }
}

/// Shows one execution.
pub struct Renderer<'a> {
    output: &'a Output,
    /// The working directory, the base of printed file names.
    here: &'a Path,
    view: &'a View,
    reports: &'a Reports,
    job: Job<'a>,
    /// Where the output of a command goes.
    console: Option<Console>,
    stdout: StdoutState,
    /// The end of a command's stderr.
    stderr: Tail,
    /// How many refused hosts were printed.
    refused: usize,
}

impl<'a> Renderer<'a> {
    /// Of an execution that begins.
    ///
    /// # Errors
    ///
    /// If stdout cannot be used.
    pub fn new(
        context: &'a Context<'a>,
        view: &'a View,
        reports: &'a Reports,
        job: Job<'a>,
    ) -> Result<Self, Error> {
        let output = context.output;
        let console = match job.program {
            Program::Command(_) if !view.json => Some(Console::new(output, view)?),
            _ => None,
        };
        let renderer = Self {
            output,
            here: &context.environment.working_directory,
            view,
            reports,
            job,
            console,
            stdout: StdoutState::Open,
            stderr: Tail::default(),
            refused: 0,
        };
        if !view.is_later {
            renderer.head();
        }
        Ok(renderer)
    }

    fn head(&self) {
        if let Program::Script(script) = self.job.program
            && self.view.has_heads
            && !self.view.json
        {
            self.output.notice(&format!("running {}", script.name));
        }
    }

    /// Shows an event, and returns whether stdout still has a reader.
    ///
    /// # Errors
    ///
    /// If stdout cannot be written. A closed reader is no error.
    pub async fn event(&mut self, event: ExecutionEvent) -> Result<StdoutState, Error> {
        self.reports.event(self.job.index, &event);
        if let ExecutionEvent::Output { stream: OutputStream::Stderr, data } = &event {
            self.stderr.push(data);
        }
        if self.view.is_later {
            return Ok(StdoutState::Open);
        }
        match event {
            ExecutionEvent::Log(entry) => self.log(&entry)?,
            ExecutionEvent::Output { stream, data } => {
                if let (Some(console), StdoutState::Open) = (&mut self.console, self.stdout) {
                    self.stdout = console.put(stream, data.into()).await?;
                }
            }
            ExecutionEvent::HostRefused(host) if !self.view.json => {
                remarks::refused_host(self.output, self.refused, &host);
                self.refused += 1;
            }
            _ => {}
        }
        Ok(self.stdout)
    }

    /// All events were shown.
    ///
    /// # Errors
    ///
    /// As of [`event`](Self::event).
    pub async fn finish(&mut self) -> Result<(), Error> {
        match (self.console.take(), self.stdout) {
            (Some(console), StdoutState::Open) => console.finish().await,
            _ => Ok(()),
        }
    }

    /// Adds to a document what only this side knows: what a script looks like, and the exit code, which is returned.
    /// `exit_code` is that of a run whose output had a reader.
    pub fn conclude(&self, document: &mut ExecutionDocument<'_>, exit_code: u8) -> u8 {
        if let Program::Script(script) = self.job.program
            && let Some(error) = &mut document.common.error
            && document.status == Status::ScriptError
            && error.kind == ErrorKind::Syntax
            && let Some(hint) = hints::other_language(&script.name, &script.source)
        {
            error.hint = Some(hint);
        }
        let exit_code = if self.is_ended_by_reader(document) { UNREAD } else { exit_code };
        if let DocumentBody::Script(body) = &mut document.body {
            body.exit_code = exit_code;
        }
        exit_code
    }

    /// Whether it was cancelled because its stdout was closed.
    fn is_ended_by_reader(&self, document: &ExecutionDocument<'_>) -> bool {
        let by_us = |error: &Failure| error.message == CancelCause::Caller.message();
        self.stdout == StdoutState::Closed
            && document.status == Status::Cancelled
            && document.common.error.as_ref().is_some_and(by_us)
    }

    /// Shows how it ended, unless others run beside it.
    ///
    /// # Errors
    ///
    /// If stdout cannot be written.
    pub fn end(&mut self, ended: &Ended) -> Result<(), Error> {
        let (index, exit_code) = (self.job.index, ended.exit_code);
        self.reports.ended(index, ended.document.clone(), exit_code, self.stderr.last_lines());
        match self.view.is_later {
            true => Ok(()),
            false => self.show(ended),
        }
    }

    /// Shows what was not shown because others ran beside it.
    ///
    /// # Errors
    ///
    /// If stdout cannot be written.
    pub fn end_later(&mut self, ended: &Ended) -> Result<(), Error> {
        if !self.view.is_later {
            return Ok(());
        }
        self.head();
        if !self.view.json {
            for entry in ended.document.log_entries() {
                self.log(&entry)?;
            }
            let network = ended.document.common.network.iter();
            let refused = network.flat_map(|network| &network.refused).enumerate();
            refused.for_each(|(printed, host)| remarks::refused_host(self.output, printed, host));
        }
        self.show(ended)
    }

    /// An entry of a script's log. That it is full is said at the end, and not in the data on stdout.
    fn log(&mut self, entry: &LogEntry) -> Result<(), Error> {
        if self.view.json || entry.level == LogLevel::Truncated {
            return Ok(());
        }
        if self.view.result_only {
            self.output.log_to_stderr(entry);
            return Ok(());
        }
        if self.stdout == StdoutState::Open {
            self.output.log(entry, self.view.raw)?;
            if !self.output.is_read() {
                self.stdout = StdoutState::Closed;
            }
        }
        Ok(())
    }

    fn show(&self, ended: &Ended) -> Result<(), Error> {
        let (output, document) = (self.output, &ended.document);
        if self.is_ended_by_reader(document) {
            return Ok(());
        }
        if self.view.json {
            output.document(document)?;
            if let Left::Local(left) = &ended.left {
                left.staged.print_diff(output);
            }
        } else {
            self.outcome(document)?;
            match &ended.left {
                Left::Local(left) => self.files(document, left),
                Left::Remote(left) => left.print(output, &document.common.files_touched),
            }
        }
        remarks::cut_off(output, document, self.view.json);
        // The outcome of the run stands.
        if let Left::Local(left) = &ended.left
            && let Some(error) = left.issued.as_ref().and_then(|it| it.error.as_ref())
        {
            output.failure(&error.message, error.hint.as_deref());
        }
        Ok(())
    }

    /// How it ended: the result of a script, or why it failed.
    fn outcome(&self, document: &ExecutionDocument<'_>) -> Result<(), Error> {
        let output = self.output;
        match (&document.common.error, &document.body, self.job.program) {
            (Some(error), _, Program::Script(script)) => match document.status {
                Status::ScriptError | Status::Limit | Status::Timeout => {
                    self.script_error(script, error);
                }
                _ => output.failure(&error.message, error.hint.as_deref()),
            },
            (Some(error), _, Program::Command(line)) => {
                let own = hints::not_found(line, error.kind);
                output.failure(&error.message, own.as_deref().or(error.hint.as_deref()));
            }
            (None, DocumentBody::Script(ScriptBody { result: Some(result), .. }), _)
                if result.get() != "null" =>
            {
                self.result(result.get())?;
            }
            _ => {}
        }
        if let DocumentBody::Command(CommandBody { signal: Some(signal), .. }) = &document.body
            && document.status == Status::Exit
        {
            output.notice(&format!("the command was ended by {}", signal_name(*signal)));
        }
        // A user who asked for no network knows it.
        let is_known = |note: &&Note| note.kind == NoteKind::NoNetwork && self.view.no_network;
        for note in document.common.notes.iter().filter(|note| !is_known(note)) {
            output.notice(&note.to_string());
        }
        if let DocumentBody::Script(body) = &document.body {
            self.tests(&body.tests);
        }
        Ok(())
    }

    fn result(&self, json: &str) -> Result<(), Error> {
        let value: serde_json::Value = serde_json::from_str(json).map_err(Error::stdout)?;
        match (self.view.result_only, &value) {
            // As it is, for the program that reads it.
            (true, serde_json::Value::String(text)) => self.output.result_text(text),
            (true, _) => self.output.document(&value),
            (false, _) => self.output.pretty_json(&value),
        }
    }

    fn script_error(&self, ScriptSource { source, name, .. }: &ScriptSource, error: &Failure) {
        let output = self.output;
        let Failure { kind, message, line, traceback, value, hint } = error.clone();
        let error = ScriptError { kind, message, line, traceback, value };
        output.block(&render::script_error(&error, name, source, output.stderr_has_colour));
        if let Some(stack) = render::call_stack(&error) {
            output.indented(stack);
        }
        if let Some(hint) = hint {
            output.hint(&hint);
        }
    }

    /// The failed test cases, and how many passed.
    fn tests(&self, tests: &[TestCase]) {
        let failed = tests.iter().filter(|test| test.status == TestStatus::Failed);
        for test in failed.take(TESTS_SHOWN) {
            let message = test.message.as_deref().unwrap_or("failed");
            self.output.indented(&format!("{}: {message}", test.name));
        }
        if !tests.is_empty() {
            let count = |status| tests.iter().filter(|it| it.status == status).count();
            let [passed, failed, skipped] = TestStatus::ALL.map(count);
            let notice = format!("test cases: {passed} passed, {failed} failed, {skipped} skipped");
            self.output.notice(&notice);
        }
    }

    /// What became of its files here.
    fn files(&self, document: &ExecutionDocument<'_>, left: &LocalFiles) {
        let output = self.output;
        let LocalFiles { io_dir, copied, staged, .. } = left;
        let io_dir = io_dir.as_deref();
        if let (Program::Command(line), DocumentBody::Command(body)) =
            (self.job.program, &document.body)
            && document.status == Status::Exit
            && body.exit_code.is_some()
            && let Some(hint) = hints::file_left_outside(line, io_dir)
        {
            output.hint(&hint);
        }
        copied.print(output);
        // What was not selected was not to be kept.
        if (io_dir.is_some() || !copied.is_complete()) && staged.is_kept() {
            let common = &document.common;
            let (files, truncated) = (&*common.files_touched, common.files_touched_truncated);
            remarks::touched(output, self.here, io_dir, files, truncated);
        }
        staged.print(output);
        if self.view.keep {
            remarks::kept(output, io_dir);
        }
    }
}

/// Where a command's stdout and stderr go, without what a runner would read in them.
pub struct Console {
    sinks: [Sink; 2],
    filters: [Option<MarkFilter>; 2],
    /// Both go to one log: what one stream begins, the other one could end.
    is_one: bool,
}

impl Console {
    /// The process's own.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    pub fn new(output: &Output, view: &View) -> Result<Self, Error> {
        let [stdout, stderr] = match (view.terminal, view.raw) {
            (Some(_), _) => [Sink::screen(io::stdout()), Sink::screen(io::stderr())],
            (None, true) => [Sink::new(io::stdout()), Sink::new(io::stderr())],
            (None, false) => [
                Sink::styled(io::stdout(), StyledText::new(output.stdout_has_colour)),
                Sink::styled(io::stderr(), StyledText::new(output.stderr_has_colour)),
            ],
        }
        .map(|sink| sink.map_err(Error::stdout));
        let filters = [OutputStream::Stdout, OutputStream::Stderr]
            .map(|stream| output.ci().and_then(|ci| ci.filter(stream)));
        let is_one = output.ci().is_some_and(|ci| ci.is_one_stream);
        Ok(Self { sinks: [stdout?, stderr?], filters, is_one })
    }

    /// Writes output, and returns whether it still has a reader.
    ///
    /// # Errors
    ///
    /// If it cannot be written. A closed reader is no error.
    pub async fn put(&mut self, stream: OutputStream, data: Vec<u8>) -> Result<StdoutState, Error> {
        let stream = if self.is_one { 0 } else { stream as usize };
        let data = match &mut self.filters[stream] {
            Some(filter) => filter.push(&data),
            None => data,
        };
        state(self.sinks[stream].put(data).await)
    }

    /// Writes what is held back. The last output may have had no reader: then the command has ended as
    /// well.
    ///
    /// # Errors
    ///
    /// As of [`put`](Self::put).
    pub async fn finish(self) -> Result<(), Error> {
        let Self { mut sinks, filters, .. } = self;
        for (sink, filter) in sinks.iter_mut().zip(filters) {
            let held = filter.map(|mut filter| filter.finish()).unwrap_or_default();
            if !held.is_empty() {
                state(sink.put(held).await)?;
            }
        }
        for sink in sinks {
            state(sink.finish().await)?;
        }
        Ok(())
    }
}

fn state(put: io::Result<()>) -> Result<StdoutState, Error> {
    match put {
        Ok(()) => Ok(StdoutState::Open),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(StdoutState::Closed),
        Err(error) => Err(Error::stdout(error)),
    }
}

/// The name of a signal, as `kill -l` has it.
fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let index = usize::try_from(signal).unwrap_or_default().wrapping_sub(1);
    match NAMES.get(index) {
        Some(name) => format!("signal {signal} (SIG{name})"),
        None => format!("signal {signal}"),
    }
}
