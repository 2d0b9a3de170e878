//! `fs`: file operations on an io dir, in a sandbox of the command's own.
//!
//! Errors of the host side are reported before an engine is contacted. Then the sandbox starts,
//! while stdin is read ahead; one operation or several are performed; and the result is printed as
//! text, or with `--json` as an envelope, also for errors of our side.

mod batch;
mod copy;
mod report;
mod stream;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use sandbox_api::files::WriteMode;
use sandbox_api::operation::{
    Edit, Envelope, Exists, Glob, Grep, List, Operation, Read as ReadFile, Stat, View, ViewLines,
    Write,
};
use sandbox_api::{Encoding, ErrorKind, Failure, RootFs, SandboxSpec};
use sandbox_controller::Sandbox;

use self::batch::Batch;
use self::copy::Copy;
use self::report::Report;
use self::stream::{failed, fill, piece, pour, poured, refused, stdout, still_read};
use super::progress::Progress;
use super::text::LineCut;
use super::transfer::Source;
use super::{Context, block_on, launch};
use crate::cli::fs::{
    BatchArgs, ChangeCommand, FsArgs, FsCommand, ReadArgs, Side, WriteArgs, path,
};
use crate::config::{Key, Settings};
use crate::error::Error;
use crate::signals::Signals;
use crate::{ci, input, render, signals, target};

/// Most bytes of a text to replace, or of its replacement: they are sent in one message.
const MAX_EDIT_BYTES: usize = 1 << 20;

pub fn fs(context: &Context<'_>, args: &FsArgs) -> Result<u8, Error> {
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    let (files, stdin_is_for) = (&args.sandbox.files, stdin(&args.command));
    let spec = launch::spec(context, files, &settings, RootFs::Builtin, stdin_is_for)?;
    let spec = SandboxSpec { workdir: args.sandbox.workdir.clone(), ..spec };
    let config = context.controller(&settings);
    if let FsCommand::Cp { from, to, .. } = &args.command
        && let Some(path) = copy::destination(from, to)
    {
        target::refuse_own("TO", &path, &config)?;
        // A link that a guest left there may lead anywhere.
        target::refuse_in_io_dir("TO", &path, spec.io_dir.as_deref())
            .map_err(|error| error.with_hint("a path that begins with a colon is the sandbox's"))?;
    }
    let work = PreparedOperation::prepare(args)?;
    context.output.reads_stdin(stdin(&args.command).is_some());
    if let Some(audit) = &config.audit {
        ci::check_file_outside_of_groups(&settings.named(Key::AuditFile), audit)?;
    }
    let session = Session { context, args, settings: &settings };
    block_on(async {
        // Otherwise a stdout that is not read would be waited for.
        let _insistence = signals::insist()?;
        let serve = async |sandbox: &Sandbox, signals: &mut Signals| {
            let started = Instant::now();
            // A signal drops it: an incomplete write, or an incomplete host file, is discarded.
            let done = signals.guard(session.perform(sandbox, work)).await.and_then(|done| done);
            session.report(started, done)
        };
        launch::in_sandbox(context, &settings, config, spec, serve).await
    })
}

/// Which argument uses stdin.
fn stdin(command: &FsCommand) -> Option<&'static str> {
    match command {
        FsCommand::Write(WriteArgs { content: None, .. }) => Some("fs write without --content"),
        FsCommand::Cp { from: Side::Stdio, .. } => Some("FROM -"),
        FsCommand::Batch(BatchArgs { file, .. }) if input::is_stdin(file) => Some("FILE -"),
        _ => None,
    }
}

/// What to do, with everything that it needs from the host.
enum PreparedOperation<'a> {
    Read(&'a ReadArgs),
    Write(Write, Content),
    /// What has no result to print.
    Change(Operation),
    /// With types, sizes and times.
    List(List, bool),
    Glob(Glob),
    Grep(Grep),
    Exists(Exists),
    Stat(Stat),
    Copy(Copy<'a>),
    Batch(Batch),
}

/// The content to write to a file.
enum Content {
    /// This content.
    Bytes(Vec<u8>),
    /// The input, unchanged.
    Stream(Source),
    /// The input, decoded.
    Text(Source, Encoding),
}

impl<'a> PreparedOperation<'a> {
    /// Reads and opens what it needs from the host.
    fn prepare(args: &'a FsArgs) -> Result<Self, Error> {
        Ok(match &args.command {
            FsCommand::Read(args) => Self::Read(args),
            FsCommand::Write(args) => {
                let mode = match (args.append, args.create_new) {
                    (true, _) => WriteMode::Append,
                    (_, true) => WriteMode::CreateNew,
                    _ => WriteMode::Overwrite,
                };
                let (path, parents, atomic) = (path(&args.path), !args.no_parents, !args.in_place);
                let permissions = args.permissions;
                let write = Write { path, mode, parents, atomic, permissions };
                Self::Write(write, Content::of(args)?)
            }
            FsCommand::Edit(args) => {
                let edit = Edit {
                    path: path(&args.path),
                    old: edited(args.old.as_deref(), args.old_file.as_deref(), "--old-file")?,
                    new: edited(args.new.as_deref(), args.new_file.as_deref(), "--new-file")?,
                    count: args.count,
                };
                Self::Change(edit.into())
            }
            FsCommand::Ls(args) => {
                let (recursive, limit) = (args.recursive, args.limit.map(Into::into));
                let max_depth = args.max_depth.map(Into::into);
                let list = List { recursive, max_depth, limit, ..List::new(path(&args.path)) };
                Self::List(list, args.long)
            }
            FsCommand::Glob(args) => Self::Glob(Glob {
                globs: args.globs.clone(),
                hidden: args.hidden,
                limit: args.limit.map(Into::into),
                ..Glob::new(&*args.pattern)
            }),
            FsCommand::Grep(args) => Self::Grep(Grep {
                path: path(&args.path),
                globs: args.globs.clone(),
                context: args.context,
                ignore_case: args.ignore_case,
                hidden: args.hidden,
                limit: args.limit.map(Into::into),
                ..Grep::new(&*args.pattern)
            }),
            FsCommand::Change(change) => Self::Change(change.operation()),
            FsCommand::Exists { path: it } => Self::Exists(Exists { path: path(it) }),
            FsCommand::Stat { path: it } => Self::Stat(Stat::new(path(it))),
            FsCommand::Cp { to: Side::Stdio, .. } if args.json => {
                return Err(Error::usage("--json", "stdout is taken by the file"));
            }
            FsCommand::Cp { from, to, recursive } => {
                Self::Copy(Copy::prepare(from, to, *recursive)?)
            }
            FsCommand::Batch(args) => Self::Batch(Batch::prepare(args)?),
        })
    }
}

impl Content {
    fn of(args: &WriteArgs) -> Result<Self, Error> {
        let stdin = || Source::stdin().map_err(|error| Error::system("stdin", error));
        Ok(match (&args.content, args.encoding) {
            (Some(content), None) => Self::Bytes(content.as_bytes().to_vec()),
            (Some(content), Some(encoding)) => {
                let text = content.to_str();
                let text = text.ok_or_else(|| Error::usage("--content", "it is not UTF-8 text"))?;
                Self::Bytes(
                    encoding.encode(text).map_err(|error| {
                        refused(ErrorKind::Encoding, format!("--content: {error}"))
                    })?,
                )
            }
            (None, None) => Self::Stream(stdin()?),
            (None, Some(encoding)) => Self::Text(stdin()?, encoding),
        })
    }
}

/// A text of `edit`: given directly, or the content of a file.
fn edited(text: Option<&str>, file: Option<&Path>, flag: &str) -> Result<String, Error> {
    let Some(file) = file else { return Ok(text.unwrap_or_default().to_owned()) };
    let not_text = |_| io::Error::other("it is not UTF-8 text");
    input::read_file(file, MAX_EDIT_BYTES)
        .and_then(|text| String::from_utf8(text).map_err(not_text))
        .map_err(|error| Error::unusable(flag, file, &error))
}

/// One command, from connecting to the engine to the result.
struct Session<'a> {
    context: &'a Context<'a>,
    args: &'a FsArgs,
    settings: &'a Settings,
}

impl Session<'_> {
    /// Prints the result, and returns the exit code.
    fn report(&self, started: Instant, done: Result<Report, Error>) -> Result<u8, Error> {
        let output = self.context.output;
        let report = match done {
            Ok(report) => report,
            Err(error) => {
                let document = error.document();
                let hint = hint(&self.args.command, &error);
                let document = Failure { hint: hint.or(document.hint), ..document };
                if self.args.wants_json() {
                    output.document(&Envelope::failed(started.elapsed(), document))?;
                } else {
                    output.failure(&document.message, document.hint.as_deref());
                }
                // If it cannot be determined, the exit code is not 1, which means that nothing
                // exists or matches.
                return Ok(match (&self.args.command, error.exit_code()) {
                    (FsCommand::Exists { .. } | FsCommand::Grep(_), 1) => 2,
                    (_, code) => code,
                });
            }
        };
        match report.data {
            Some(data) if self.args.json => output.document(&data.envelope(started.elapsed()))?,
            _ if report.is_content => output.write(&report.text)?,
            _ => output.lines(&report.text)?,
        }
        if let Some(cut_off) = &report.cut_off {
            output.caution(cut_off);
        }
        Ok(report.code)
    }

    async fn perform(
        &self,
        sandbox: &Sandbox,
        work: PreparedOperation<'_>,
    ) -> Result<Report, Error> {
        let output = self.context.output;
        match work {
            PreparedOperation::Read(args) => self.read(sandbox, args).await,
            PreparedOperation::Write(write, content) => self.write(sandbox, write, content).await,
            PreparedOperation::Change(operation) => {
                let data = Some(sandbox.output(operation).await?);
                Ok(Report { data, ..Report::default() })
            }
            PreparedOperation::List(list, long) => {
                report::list(&sandbox.list(list).await?, long, output)
            }
            PreparedOperation::Glob(glob) => report::glob(&sandbox.glob(glob).await?, output),
            PreparedOperation::Grep(grep) => report::grep(&sandbox.grep(grep).await?, output),
            PreparedOperation::Exists(exists) => {
                let found = sandbox.call(exists).await?;
                let code = if found.exists { 0 } else { 1 };
                Ok(Report { code, ..Report::silent(&found)? })
            }
            PreparedOperation::Stat(stat) => report::stat(&sandbox.stat(stat).await?, output),
            PreparedOperation::Copy(copy) => copy.perform(sandbox, output).await,
            PreparedOperation::Batch(batch) => batch.perform(sandbox, output).await,
        }
    }

    async fn read(&self, sandbox: &Sandbox, args: &ReadArgs) -> Result<Report, Error> {
        let output = self.context.output;
        let (path, offset, limit) = (path(&args.path), args.offset.unwrap_or(0), args.limit);
        match args.lines {
            Some(lines) if self.args.json => {
                let limit = lines.last.map(|last| last.get() - lines.first.get() + 1);
                let lines = ViewLines { offset: lines.first.get(), limit };
                return report::view(sandbox.view(View { path, lines }).await?);
            }
            _ if self.args.json || args.encoding.is_some() => {
                let read = ReadFile { path, offset, limit };
                return report::read(&sandbox.read(read, args.encoding).await?, output);
            }
            _ => {}
        }
        let mut reader = sandbox.reader(ReadFile { path, offset, limit }).await?;
        let mut sink = stdout()?;
        let Some(lines) = args.lines else {
            let mut progress = Progress::hidden();
            return pour(&mut reader, sink, &mut progress, "stdout").await.map(poured);
        };
        let mut cut = LineCut::new(lines);
        while !cut.is_done()
            && let Some(piece) = piece(&mut reader).await?
        {
            let taken = cut.take(&piece);
            if !taken.is_empty() && !still_read(sink.put(taken.to_vec()).await, "stdout")? {
                return Ok(poured(false));
            }
        }
        let is_whole = still_read(sink.finish().await, "stdout")?;
        match cut.lines_past_end() {
            None => Ok(poured(is_whole)),
            Some(count) => {
                let lines = render::count(count, "line", "lines");
                let reason = format!(
                    "{}: line {} is past the end of the file ({lines})",
                    args.path.display(),
                    args.lines.map_or(1, |lines| lines.first.get()),
                );
                Err(refused(ErrorKind::InvalidRequest, reason))
            }
        }
    }

    async fn write(
        &self,
        sandbox: &Sandbox,
        write: Write,
        content: Content,
    ) -> Result<Report, Error> {
        let written = match content {
            Content::Bytes(bytes) => sandbox.write(write, bytes).await?,
            Content::Text(source, encoding) => {
                let text = text_of(source, encoding, self.settings).await?;
                sandbox.write_text(write, &text, Some(encoding)).await?
            }
            Content::Stream(mut source) => {
                let mut progress = Progress::shown(self.context.output, source.size);
                let mut writer = sandbox.writer(write).await?;
                fill(&mut writer, &mut source, &mut progress, "stdin").await?;
                writer.finish().await?
            }
        };
        Report::silent(&written)
    }
}

/// The next step after a failure, in the terms of this command line, if they differ from those of
/// the library.
fn hint(command: &FsCommand, error: &Error) -> Option<String> {
    // Errors of the host side do not concern the sandbox's rules.
    let Error::Controller(error) = error else { return None };
    let hint = match (error.kind(), command) {
        (ErrorKind::TooLarge | ErrorKind::Encoding, _) if error.hint().is_none() => return None,
        (
            ErrorKind::IsDirectory | ErrorKind::NotEmpty,
            FsCommand::Change(ChangeCommand::Rm { .. }),
        ) => "-r removes it with all that is in it",
        (ErrorKind::IsDirectory, FsCommand::Write(_)) => {
            "name the file: neither a directory can be written, nor what ends with a slash"
        }
        (
            ErrorKind::IsDirectory,
            FsCommand::Cp { from: Side::Sandbox(_), to: Side::Sandbox(_), .. },
        ) => "-r copies it with all that is in it",
        (ErrorKind::IsDirectory, FsCommand::Cp { .. }) => "cp copies one file: name it",
        (ErrorKind::IsDirectory, _) => "`sandboxctl fs ls` lists a directory",
        (ErrorKind::AlreadyExists, FsCommand::Change(ChangeCommand::Mv { .. })) => {
            "-f replaces what has the new name"
        }
        (ErrorKind::TooLarge, FsCommand::Read(_)) => {
            "--offset and --limit read a part of a file; --max-file-size raises what one may have"
        }
        (ErrorKind::TooLarge, _) => "--max-file-size raises what a file may have",
        (ErrorKind::WriteLimit, _) => "--max-write raises what may be written",
        (ErrorKind::Encoding, FsCommand::Edit(_)) => {
            "`sandboxctl fs cp` moves any bytes out and in"
        }
        (ErrorKind::Encoding, FsCommand::Read(ReadArgs { lines: Some(_), .. })) => {
            "--lines without --json prints any bytes"
        }
        (ErrorKind::Encoding, _) => "--encoding base64 takes and gives any bytes",
        (ErrorKind::Timeout, _) => "--timeout raises the time of an operation",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// The text on stdin, which encodes the content.
async fn text_of(source: Source, encoding: Encoding, settings: &Settings) -> Result<String, Error> {
    let largest = settings.limits().max_file_size;
    // No encoding has more than two bytes of text per byte of content, and there may be line ends.
    let most = largest.as_u64().saturating_mul(3).saturating_add(1024);
    let text = source.all(most).await.map_err(|source| failed("stdin", source))?;
    if text.len() as u64 > most {
        let reason = format!("stdin stands for more than a file may have ({largest})");
        return Err(refused(ErrorKind::TooLarge, reason));
    }
    let text = String::from_utf8(text).map_err(|_| {
        let reason = "stdin is not UTF-8 text, which stands for content in an encoding";
        refused(ErrorKind::Encoding, reason)
    })?;
    Ok(match encoding {
        // Programs that produce such text add a final newline, and wrap lines.
        Encoding::Base64 | Encoding::Hex => text.replace(['\n', '\r'], ""),
        _ => text,
    })
}
