//! Files for scripts: `io`, the methods of handles, `os.remove` and `os.rename`, and beside them
//! [`fs`].
//!
//! As in Lua 5.4, with two differences: failures raise unless the sandbox is configured otherwise,
//! and `\r\n` counts as one line end.

mod fs;
mod read;

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{IoErrors, ScriptOperation};

use super::ffi::{Call, Kind, LOCKED, Pushed, Raise, Results, Slot};
use crate::files::handle::{Handle, Whence};
use crate::files::{FileError, Files, Flush, OpenMode};

use read::{io_lines, lines, read};

const CLOSED: &str = "attempt to use a closed file";

/// Sets `io`, `fs`, the file functions of `os`, and the methods of handles.
pub(super) fn install(call: &mut Call<'_>) {
    let methods = call.push_table(0, 6);
    call.push_function(c"read", read, 0);
    call.set_field(methods, c"read");
    call.push_function(c"write", write, 0);
    call.set_field(methods, c"write");
    call.push_function(c"lines", lines, 0);
    call.set_field(methods, c"lines");
    call.push_function(c"seek", seek, 0);
    call.set_field(methods, c"seek");
    call.push_function(c"flush", flush, 0);
    call.set_field(methods, c"flush");
    call.push_function(c"close", close, 0);
    call.set_field(methods, c"close");
    call.freeze(methods);

    let metatable = call.push_table(0, 4);
    call.push(methods);
    call.set_field(metatable, c"__index");
    call.push_function(c"tostring", tostring, 0);
    call.set_field(metatable, c"__tostring");
    call.push_string("file");
    call.set_field(metatable, c"__type");
    call.push_string(LOCKED);
    call.set_field(metatable, c"__metatable");
    call.freeze(metatable);
    call.set_handle_metatable();
    call.truncate(methods.number() - 1);

    let io = call.push_table(0, 4);
    call.push_function(c"open", io_open, 0);
    call.set_field(io, c"open");
    call.push_function(c"lines", io_lines, 0);
    call.set_field(io, c"lines");
    call.push_function(c"type", io_type, 0);
    call.set_field(io, c"type");
    call.push_function(c"list", io_list, 0);
    call.set_field(io, c"list");
    call.set_global(c"io");

    let os = call.push_global(c"os");
    call.push_function(c"remove", os_remove, 0);
    call.set_field(os, c"remove");
    call.push_function(c"rename", os_rename, 0);
    call.set_field(os, c"rename");
    call.truncate(os.number() - 1);

    fs::install(call);
}

// --- errors ----------------------------------------------------------------------------------

/// Why a function ends early: an error to raise, or a file error, which is raised or returned
/// depending on the sandbox.
enum Failure {
    Raise(Raise),
    File(FileError),
}

impl From<Raise> for Failure {
    fn from(raise: Raise) -> Self {
        Self::Raise(raise)
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

fn raised(error: &FileError) -> Raise {
    let message = error.to_string();
    if error.breaks_rule() { Raise::Rule(error.kind, message) } else { Raise::Error(message) }
}

/// For functions that always raise failures and cannot return one.
fn raise(failure: Failure) -> Raise {
    match failure {
        Failure::Raise(raise) => raise,
        Failure::File(error) => raised(&error),
    }
}

/// Raises a failure, or returns it as `nil, message, errno`.
fn settle(call: &mut Call<'_>, result: Result<Pushed, Failure>) -> Results {
    match result {
        Ok(pushed) => Ok(pushed),
        Err(Failure::File(error)) => match (call.host().io_errors, error.errno) {
            (IoErrors::Return, Some(errno)) => {
                call.reserve(3)?;
                call.push_nil();
                call.push_string(error.to_string());
                call.push_number(errno.into());
                Ok(call.results(3))
            }
            (IoErrors::Return | IoErrors::Raise, _) => Err(raised(&error)),
        },
        Err(Failure::Raise(raise)) => Err(raise),
    }
}

// --- arguments -------------------------------------------------------------------------------

fn files<'a>(call: &Call<'a>) -> Result<&'a Arc<Files>, Raise> {
    let none = || Raise::Error("io is off in this run".to_owned());
    call.host().files.as_ref().ok_or_else(none)
}

/// Performs a file operation, and reports a refusal by a rule to the controller.
fn audited<T>(
    call: &Call<'_>,
    operation: ScriptOperation,
    act: impl FnOnce(&Files) -> Result<T, FileError>,
) -> Result<Result<T, FileError>, Raise> {
    let files = files(call)?;
    Ok(files.report_refusal(operation, act(files)))
}

fn path(call: &mut Call<'_>, slot: Slot, function: &str) -> Result<Vec<u8>, Raise> {
    match call.text(slot) {
        Some(path) => Ok(path.to_vec()),
        None => Err(Raise::expected(call, slot, function, "string")),
    }
}

/// An optional string.
fn optional_text<'c>(
    call: &'c mut Call<'_>,
    slot: Slot,
    function: &str,
) -> Result<Option<&'c [u8]>, Raise> {
    match call.kind(slot) {
        Kind::None | Kind::Nil => Ok(None),
        Kind::String | Kind::Number => Ok(call.text(slot)),
        _ => Err(Raise::expected(call, slot, function, "string")),
    }
}

/// The open handle in `slot`.
fn open_handle<'c>(
    call: &'c Call<'_>,
    slot: Slot,
    function: &str,
) -> Result<MutexGuard<'c, Handle>, Raise> {
    let Some(handle) = call.handle(slot) else {
        return Err(Raise::expected(call, slot, function, "file"));
    };
    let handle = handle.lock().unwrap();
    if handle.is_open() { Ok(handle) } else { Err(Raise::Error(CLOSED.to_owned())) }
}

/// The same, for callers that push values while they hold the handle.
fn shared_handle(call: &Call<'_>, slot: Slot, function: &str) -> Result<Arc<Mutex<Handle>>, Raise> {
    drop(open_handle(call, slot, function)?);
    call.handle(slot).cloned().ok_or_else(|| Raise::Error(CLOSED.to_owned()))
}

// --- io --------------------------------------------------------------------------------------

/// Opens a file and pushes its handle.
fn push_open(call: &mut Call<'_>, path: &[u8], mode: OpenMode) -> Result<(), Failure> {
    let host = call.host();
    let max = host.limits.open_handles;
    if host.open_handles.get() >= max {
        call.collect_garbage();
        if host.open_handles.get() >= max {
            let message = format!("too many open files (max {max})");
            return Err(Raise::Rule(ErrorKind::TooManyHandles, message).into());
        }
    }
    let files = files(call)?;
    let operation = match mode {
        OpenMode::Read => ScriptOperation::Read,
        OpenMode::Write
        | OpenMode::Append
        | OpenMode::ReadUpdate
        | OpenMode::WriteUpdate
        | OpenMode::AppendUpdate => ScriptOperation::Write,
    };
    let file = files.report_refusal(operation, files.open(path, mode))?;
    let handle = Arc::new(Mutex::new(Handle::new(Arc::clone(files), file, path)));
    let flush: Weak<Mutex<dyn Flush>> =
        Arc::downgrade(&(Arc::clone(&handle) as Arc<Mutex<dyn Flush>>));
    files.register(flush);
    call.push_handle(handle);
    host.open_handles.set(host.open_handles.get() + 1);
    Ok(())
}

fn mode(text: &[u8]) -> Option<OpenMode> {
    let end = text.iter().rposition(|&byte| byte != b'b')? + 1;
    match &text[..end] {
        b"r" => Some(OpenMode::Read),
        b"w" => Some(OpenMode::Write),
        b"a" => Some(OpenMode::Append),
        b"r+" => Some(OpenMode::ReadUpdate),
        b"w+" => Some(OpenMode::WriteUpdate),
        b"a+" => Some(OpenMode::AppendUpdate),
        _ => None,
    }
}

fn io_open(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "open")?;
    let mode = match optional_text(call, Slot::arg(2), "open")? {
        Some(text) => mode(text).ok_or_else(|| invalid("mode", text))?,
        None => OpenMode::Read,
    };
    let opened = push_open(call, &path, mode);
    let opened = opened.map(|()| call.results(1));
    settle(call, opened)
}

fn invalid(what: &str, text: &[u8]) -> Raise {
    Raise::Error(format!("invalid {what}: '{}'", String::from_utf8_lossy(text)))
}

fn io_type(call: &mut Call<'_>) -> Results {
    let value = Slot::arg(1);
    if call.kind(value) == Kind::None {
        return Err(Raise::missing(1, "type", "value"));
    }
    match call.handle(value).map(|handle| handle.lock().unwrap().is_open()) {
        Some(true) => call.push_string("file"),
        Some(false) => call.push_string("closed file"),
        None => call.push_nil(),
    }
    Ok(call.results(1))
}

fn io_list(call: &mut Call<'_>) -> Results {
    let directory = match call.is_nil(Slot::arg(1)) {
        true => b".".to_vec(),
        false => path(call, Slot::arg(1), "list")?,
    };
    let names = audited(call, ScriptOperation::List, |files| files.list(&directory))?;
    let names = names.map_err(|error| raised(&error))?;
    let table = call.push_table(names.len(), 0);
    for (index, name) in names.iter().enumerate() {
        call.push_string(name);
        call.set_element(table, index + 1)?;
    }
    Ok(call.results(1))
}

fn os_remove(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "remove")?;
    let removed = audited(call, ScriptOperation::Remove, |files| files.remove(&path))?;
    done(call, removed)
}

fn os_rename(call: &mut Call<'_>) -> Results {
    let from = path(call, Slot::arg(1), "rename")?;
    let to = path(call, Slot::arg(2), "rename")?;
    let renamed = audited(call, ScriptOperation::Rename, |files| files.rename(&from, &to))?;
    done(call, renamed)
}

/// True, or the error.
fn done(call: &mut Call<'_>, result: Result<(), FileError>) -> Results {
    let result = result.map_err(Failure::from).map(|()| {
        call.push_boolean(true);
        call.results(1)
    });
    settle(call, result)
}

// --- writing ---------------------------------------------------------------------------------

fn write(call: &mut Call<'_>) -> Results {
    // All of them are checked before any is written. Numbers are converted to strings meanwhile.
    let last = call.len();
    let mut total = 0_usize;
    let mut wrong = None;
    for argument in 2..=last {
        match call.text(Slot::arg(argument)) {
            Some(text) => total = total.saturating_add(text.len()),
            None => wrong = wrong.or(Some(Slot::arg(argument))),
        }
    }
    let written = {
        let mut handle = open_handle(call, Slot::arg(1), "write")?;
        if let Some(wrong) = wrong {
            return Err(Raise::expected(call, wrong, "write", "string"));
        }
        handle.start_writing(total).and_then(|()| {
            (2..=last).try_for_each(|argument| {
                handle.put(call.string(Slot::arg(argument)).unwrap_or_default())
            })
        })
    };
    let result = written.map_err(Failure::from).map(|()| {
        call.push(Slot::arg(1));
        call.results(1)
    });
    settle(call, result)
}

// --- the rest of a handle's methods ----------------------------------------------------------

fn seek(call: &mut Call<'_>) -> Results {
    drop(open_handle(call, Slot::arg(1), "seek")?);
    let whence = match optional_text(call, Slot::arg(2), "seek")? {
        None => Whence::Current,
        Some(b"set") => Whence::Set,
        Some(b"cur") => Whence::Current,
        Some(b"end") => Whence::End,
        Some(text) => return Err(invalid("whence", text)),
    };
    let offset = match call.to_number(Slot::arg(3)) {
        Some(offset) => offset,
        None if call.is_nil(Slot::arg(3)) => 0.0,
        None => return Err(Raise::expected(call, Slot::arg(3), "seek", "number")),
    };
    if offset.fract() != 0.0 || offset.abs() >= 2.0_f64.powi(63) {
        let problem = "number has no integer representation";
        return Err(Raise::argument(Slot::arg(3), "seek", problem));
    }
    #[expect(clippy::cast_possible_truncation, reason = "checked")]
    let sought = open_handle(call, Slot::arg(1), "seek")?.seek(whence, offset as i64);
    #[expect(clippy::cast_precision_loss, reason = "the VM's numbers are doubles")]
    let result = sought.map_err(Failure::from).map(|position| {
        call.push_number(position as f64);
        call.results(1)
    });
    settle(call, result)
}

fn flush(call: &mut Call<'_>) -> Results {
    let flushed = open_handle(call, Slot::arg(1), "flush")?.flush();
    done(call, flushed)
}

fn close(call: &mut Call<'_>) -> Results {
    let handle = shared_handle(call, Slot::arg(1), "close")?;
    let closed = close_handle(call, &mut handle.lock().unwrap());
    done(call, closed)
}

fn close_handle(call: &Call<'_>, handle: &mut Handle) -> Result<(), FileError> {
    let open = &call.host().open_handles;
    open.set(open.get() - 1);
    handle.close()
}

fn tostring(call: &mut Call<'_>) -> Results {
    let Some(handle) = call.handle(Slot::arg(1)) else {
        return Err(Raise::expected(call, Slot::arg(1), "tostring", "file"));
    };
    let handle = handle.lock().unwrap();
    let text = if handle.is_open() {
        [b"file (", handle.name(), b")"].concat()
    } else {
        b"file (closed)".to_vec()
    };
    drop(handle);
    call.push_string(text);
    Ok(call.results(1))
}
