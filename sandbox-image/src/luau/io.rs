//! Files for scripts: `io`, the methods of handles, `os.remove` and `os.rename`.
//!
//! As Lua 5.4's, with two differences: failures raise unless the sandbox says otherwise, and a
//! line's `\r\n` is one line end.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::IoErrors;

use super::ffi::{self, Call, Kind, Pushed, Raise, Results, Slot, Text};
use super::globals::LOCKED;
use crate::files::handle::{BUFFER_BYTES, Handle, Spaces, Whence};
use crate::files::{FileError, Files, Flush, OpenMode};

const CLOSED: &str = "attempt to use a closed file";

/// Most arguments of one `lines`, which become upvalues; as many as Lua allows.
const MAX_LINES_UPVALUES: u8 = 251;

/// Sets `io`, the file functions of `os`, and the methods of handles.
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
}

// --- errors ----------------------------------------------------------------------------------

/// What ends a function early: an error to raise, or one of a file, for which the sandbox says
/// whether it is raised or returned.
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
    if error.is_system() || !error.kind.is_limit() {
        Raise::Error(message)
    } else {
        Raise::Limit(error.kind, message)
    }
}

/// Where failures are always raised: there is no way to return one.
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

fn path(call: &mut Call<'_>, slot: Slot, function: &str) -> Result<Vec<u8>, Raise> {
    match call.text(slot) {
        Some(path) => Ok(path.to_vec()),
        None => Err(Raise::expected(call, slot, function, "string")),
    }
}

/// A string that may be left out.
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

/// The same, for what pushes values while it holds the handle.
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
            return Err(Raise::Limit(ErrorKind::TooManyHandles, message).into());
        }
    }
    let files = files(call)?;
    let file = files.open(path, mode)?;
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
    let names = files(call)?.list(&directory).map_err(|error| raised(&error))?;
    let table = call.push_table(names.len(), 0);
    for (index, name) in names.iter().enumerate() {
        call.push_string(name);
        call.set_element(table, index + 1)?;
    }
    Ok(call.results(1))
}

fn os_remove(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "remove")?;
    let removed = files(call)?.remove(&path);
    done(call, removed)
}

fn os_rename(call: &mut Call<'_>) -> Results {
    let from = path(call, Slot::arg(1), "rename")?;
    let to = path(call, Slot::arg(2), "rename")?;
    let renamed = files(call)?.rename(&from, &to);
    done(call, renamed)
}

/// True, or what went wrong.
fn done(call: &mut Call<'_>, result: Result<(), FileError>) -> Results {
    let result = result.map_err(Failure::from).map(|()| {
        call.push_boolean(true);
        call.results(1)
    });
    settle(call, result)
}

// --- reading ---------------------------------------------------------------------------------

/// Whether a read found something, or was at the end of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Value,
    Nothing,
}

/// What becomes of a line's end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Keep,
    Drop,
}

fn read(call: &mut Call<'_>) -> Results {
    let handle = shared_handle(call, Slot::arg(1), "read")?;
    let mut handle = handle.lock().unwrap();
    let formats = 2..=call.len();
    let result = read_formats(call, &mut handle, formats);
    drop(handle);
    let result = result.map(|(count, _)| call.results(count));
    settle(call, result)
}

/// Reads by each of the formats in turn, up to the first that finds nothing, and pushes what they
/// find, nil for nothing; a line where there is no format. Says how many values, and whether the
/// first is one.
fn read_formats(
    call: &mut Call<'_>,
    handle: &mut Handle,
    formats: std::ops::RangeInclusive<i32>,
) -> Result<(i32, Found), Failure> {
    handle.start_reading()?;
    if formats.is_empty() {
        let found = push_line(call, handle, LineEnd::Drop)?;
        return Ok((1, found));
    }
    call.reserve(formats.end() - formats.start() + 4)?;
    let mut first = None;
    let mut count = 0;
    for format in formats {
        let found = push_format(call, handle, Slot::arg(format))?;
        count += 1;
        first = first.or(Some(found));
        if found == Found::Nothing {
            break;
        }
    }
    Ok((count, first.unwrap_or(Found::Nothing)))
}

fn push_format(call: &mut Call<'_>, handle: &mut Handle, format: Slot) -> Result<Found, Failure> {
    if let Some(number) = call.number(format) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        return match number {
            0.0 => push_at_end(call, handle),
            1.0.. if number.fract() == 0.0 => push_bytes(call, handle, number as u64),
            _ => {
                let text = call.text(format).unwrap_or_default();
                Err(invalid("format", text).into())
            }
        };
    }
    let Some(text) = call.string(format) else {
        return Err(Raise::expected(call, format, "read", "string").into());
    };
    match text.strip_prefix(b"*").unwrap_or(text).first() {
        Some(b'n') => push_numeral(call, handle),
        Some(b'l') => push_line(call, handle, LineEnd::Drop),
        Some(b'L') => push_line(call, handle, LineEnd::Keep),
        Some(b'a') => {
            push_up_to(call, handle, u64::MAX)?;
            Ok(Found::Value)
        }
        _ => Err(invalid("format", text).into()),
    }
}

/// Nothing at the end of the file, an empty string before it.
fn push_at_end(call: &mut Call<'_>, handle: &mut Handle) -> Result<Found, Failure> {
    if handle.buffered().is_empty() && handle.fill()? == 0 {
        return Ok(nothing(call));
    }
    call.push_string("");
    Ok(Found::Value)
}

fn nothing(call: &mut Call<'_>) -> Found {
    call.push_nil();
    Found::Nothing
}

fn push_numeral(call: &mut Call<'_>, handle: &mut Handle) -> Result<Found, Failure> {
    while handle.skip_spaces()? == Spaces::More {
        call.check_stop()?;
    }
    match handle.read_number()? {
        Some(number) => {
            call.push_number(number);
            Ok(Found::Value)
        }
        None => Ok(nothing(call)),
    }
}

fn push_bytes(call: &mut Call<'_>, handle: &mut Handle, count: u64) -> Result<Found, Failure> {
    if handle.buffered().is_empty() && count < BUFFER_BYTES as u64 {
        handle.fill()?;
    }
    if let Some(bytes) = usize::try_from(count).ok().and_then(|n| handle.buffered().get(..n)) {
        call.push_string(bytes);
        let count = bytes.len();
        handle.consume(count);
        return Ok(Found::Value);
    }
    match push_up_to(call, handle, count)? {
        0 => {
            call.truncate(call.len() - 1);
            Ok(nothing(call))
        }
        _ => Ok(Found::Value),
    }
}

/// Pushes up to `max` bytes as one string, and says how many there were. One allocation, of the
/// size that the file has at that moment, and no copy where the file does not change meanwhile.
fn push_up_to(call: &mut Call<'_>, handle: &mut Handle, max: u64) -> Result<usize, Failure> {
    let host = call.host();
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let mut len = 0;
    call.push_text::<Failure>(|text| {
        loop {
            let ahead = handle.buffered().len() as u64;
            let wanted = usize::try_from(handle.remaining()?.max(ahead)).unwrap_or(usize::MAX);
            let wanted = wanted.min(max - text.len());
            text.reserve(wanted)?;
            let ahead = wanted.min(handle.buffered().len());
            text.push(&handle.buffered()[..ahead])?;
            handle.consume(ahead);
            let mut missing = wanted - ahead;
            while missing > 0 {
                let count = text.fill::<Failure>(missing, |space| {
                    handle.read_directly(space).map_err(Failure::from)
                })?;
                missing -= count;
                if count == 0 {
                    break;
                }
                if host.is_stopped() {
                    return Err(Raise::Stopped.into());
                }
            }
            // The file may have grown: only a read that gives nothing is its end.
            if text.len() == max || (handle.buffered().is_empty() && handle.fill()? == 0) {
                len = text.len();
                return Ok(());
            }
        }
    })?;
    Ok(len)
}

fn push_line(call: &mut Call<'_>, handle: &mut Handle, end: LineEnd) -> Result<Found, Failure> {
    let mut searched = 0;
    loop {
        let buffered = handle.buffered();
        if let Some(at) = memchr::memchr(b'\n', &buffered[searched..]) {
            let line = &buffered[..searched + at + 1];
            call.push_string(without_end(line, end));
            let len = line.len();
            handle.consume(len);
            return Ok(Found::Value);
        }
        searched = buffered.len();
        if searched == BUFFER_BYTES {
            push_long_line(call, handle, end)?;
            return Ok(Found::Value);
        }
        if handle.fill()? == 0 {
            if searched == 0 {
                return Ok(nothing(call));
            }
            call.push_string(handle.buffered());
            handle.consume(searched);
            return Ok(Found::Value);
        }
    }
}

fn without_end(line: &[u8], end: LineEnd) -> &[u8] {
    match (end, line) {
        (LineEnd::Drop, [line @ .., b'\r', b'\n'] | [line @ .., b'\n']) => line,
        _ => line,
    }
}

/// A line that is longer than the buffer, which is full of its beginning.
fn push_long_line(call: &mut Call<'_>, handle: &mut Handle, end: LineEnd) -> Result<(), Failure> {
    let host = call.host();
    call.push_text(|text: &mut Text<'_>| {
        loop {
            let buffered = handle.buffered();
            let line_end = memchr::memchr(b'\n', buffered);
            let count = line_end.map_or(buffered.len(), |at| at + 1);
            text.push(&buffered[..count])?;
            handle.consume(count);
            if line_end.is_some() {
                if end == LineEnd::Drop {
                    text.drop_last(b'\n');
                    text.drop_last(b'\r');
                }
                return Ok(());
            }
            if host.is_stopped() {
                return Err(Raise::Stopped.into());
            }
            if handle.fill()? == 0 {
                return Ok(());
            }
        }
    })
}

// --- lines -----------------------------------------------------------------------------------

/// `handle:lines(...)`, which leaves the file open. Its arguments, the handle and the formats, are
/// the iterator's upvalues.
fn lines(call: &mut Call<'_>) -> Results {
    drop(open_handle(call, Slot::arg(1), "lines")?);
    push_iterator(call, next_line)
}

/// `io.lines(path, ...)`, which closes the file.
fn io_lines(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "lines")?;
    call.reserve(2)?;
    push_open(call, &path, OpenMode::Read).map_err(raise)?;
    call.replace(Slot::arg(1));
    push_iterator(call, next_line_then_close)
}

fn push_iterator(call: &mut Call<'_>, function: impl ffi::Function) -> Results {
    match u8::try_from(call.len()) {
        Ok(upvalues @ 1..=MAX_LINES_UPVALUES) => {
            call.reserve(1)?;
            call.push_function(c"lines", function, upvalues);
            Ok(call.results(1))
        }
        _ => Err(Raise::Error("too many arguments".to_owned())),
    }
}

fn next_line(call: &mut Call<'_>) -> Results {
    let handle = shared_handle(call, Slot::upvalue(1), "lines")?;
    let (count, found) = next(call, &handle).map_err(raise)?;
    Ok(call.results(if found == Found::Value { count } else { 0 }))
}

fn next_line_then_close(call: &mut Call<'_>) -> Results {
    let handle = shared_handle(call, Slot::upvalue(1), "lines")?;
    let next = next(call, &handle);
    if let Ok((count, Found::Value)) = next {
        return Ok(call.results(count));
    }
    let closed = close_handle(call, &mut handle.lock().unwrap());
    next.map_err(raise)?;
    closed.map_err(|error| raised(&error))?;
    Ok(call.results(0))
}

fn next(call: &mut Call<'_>, handle: &Mutex<Handle>) -> Result<(i32, Found), Failure> {
    let first = call.len() + 1;
    for number in 2..=i32::from(MAX_LINES_UPVALUES) {
        let format = Slot::upvalue(number);
        if call.kind(format) == Kind::None {
            break;
        }
        call.reserve(1)?;
        call.push(format);
    }
    let formats = first..=call.len();
    read_formats(call, &mut handle.lock().unwrap(), formats)
}

// --- writing ---------------------------------------------------------------------------------

fn write(call: &mut Call<'_>) -> Results {
    // All of them are looked at before any is written. Numbers turn into strings on the way.
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
    let offset = match call.number(Slot::arg(3)) {
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
