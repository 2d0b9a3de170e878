//! Files for scripts: `io`, the methods of handles, `os.remove` and `os.rename`, and [`fs`].
//!
//! As in Lua 5.4, with two differences: failures raise unless the sandbox is configured otherwise,
//! and `\r\n` counts as one line end.

mod arguments;
mod fs;
mod handles;
mod read;

use sandbox_protocol::message::{IoErrors, OperationName, Write};

use super::ffi::{Call, Kind, LOCKED, Raise, Results, Slot};
use super::options::optional_text;
use crate::files::handle::Whence;
use crate::files::{FileError, OpenMode};

use arguments::{invalid, path, perform};
pub(super) use fs::NAMES as FS_NAMES;
use fs::answer;
use handles::{close_handle, open_handle, push_open, shared_handle};
use read::{io_lines, lines, read};

/// Sets `io`, `fs`, the file functions of `os`, and the methods of handles.
pub(super) fn install(call: &mut Call<'_>) {
    let methods = call.push_table(0, 6);
    call.set_function(methods, c"read", |call| settled(call, read));
    call.set_function(methods, c"write", |call| settled(call, write));
    call.set_function(methods, c"lines", lines);
    call.set_function(methods, c"seek", |call| settled(call, seek));
    call.set_function(methods, c"flush", |call| settled(call, flush));
    call.set_function(methods, c"close", |call| settled(call, close));
    call.freeze(methods);

    let metatable = call.push_table(0, 4);
    call.push(methods);
    call.set_field(metatable, c"__index");
    call.push_function(c"tostring", tostring, 0);
    call.set_field(metatable, c"__tostring");
    call.set_string(metatable, c"__type", "file");
    call.set_string(metatable, c"__metatable", LOCKED);
    call.freeze(metatable);
    call.set_handle_metatable();
    call.truncate(methods.number() - 1);

    let io = call.push_table(0, 4);
    call.set_function(io, c"open", |call| settled(call, io_open));
    call.set_function(io, c"lines", io_lines);
    call.set_function(io, c"type", io_type);
    call.set_function(io, c"list", io_list);
    call.set_global(c"io");

    let os = call.push_global(c"os");
    call.set_function(os, c"remove", |call| settled(call, os_remove));
    call.set_function(os, c"rename", |call| settled(call, os_rename));
    call.truncate(os.number() - 1);

    fs::install(call);
}

/// Writes what the handles of a script that has returned have buffered. Raises, also where `io`
/// returns OS errors, what the script has not seen: the first error of a write for a handle that it
/// has not closed.
pub(super) fn finish(call: &Call<'_>) -> Result<(), Raise> {
    let host = call.host();
    let flushed = host.files.as_ref().map_or(Ok(()), |files| files.flush_all_best_effort());
    let Some(error) = host.lost_write.take().or(flushed.err()) else { return Ok(()) };
    let reason = format!("{} (the script did not close the file)", error.reason);
    Err(FileError { reason, ..error }.into())
}

/// Calls a function whose file errors the sandbox may return, as `nil, message, errno`. An error that breaks a
/// rule raises all the same.
fn settled(call: &mut Call<'_>, function: fn(&mut Call<'_>) -> Results) -> Results {
    match function(call) {
        Err(Raise::File(error)) => match (call.host().io_errors, error.errno) {
            (IoErrors::Return, Some(errno)) if !error.breaks_rule() => {
                call.reserve(3)?;
                call.push_nil();
                call.push_string(error.to_string());
                call.push_number(errno.raw_os_error().into());
                Ok(call.results(3))
            }
            (IoErrors::Return | IoErrors::Raise, _) => Err(Raise::File(error)),
        },
        results => results,
    }
}

/// Writes a file that was not asked for by `fs.write`, and returns its guest path.
pub(super) fn write_file(call: &Call<'_>, path: &str, content: &[u8]) -> Result<Vec<u8>, Raise> {
    let written = perform(call, OperationName::Write, |files, watch| {
        files.write_all(Write::new(path), content, watch)
    })?;
    Ok(written.path.to_string().into_bytes())
}

// --- io --------------------------------------------------------------------------------------

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
    push_open(call, &path, mode)?;
    Ok(call.results(1))
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
    let directory = optional_text(call, Slot::arg(1), "list")?.unwrap_or(b".").to_vec();
    let names = perform(call, OperationName::List, |files, _| files.list(&directory))?;
    let table = call.push_table(names.len(), 0);
    for (index, name) in names.iter().enumerate() {
        call.push_string(name);
        call.set_element(table, index + 1)?;
    }
    Ok(call.results(1))
}

fn os_remove(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "remove")?;
    perform(call, OperationName::Remove, |files, _| files.remove(&path))?;
    answer(call, true)
}

fn os_rename(call: &mut Call<'_>) -> Results {
    let from = path(call, Slot::arg(1), "rename")?;
    let to = path(call, Slot::arg(2), "rename")?;
    perform(call, OperationName::Rename, |files, watch| files.rename(&from, &to, watch))?;
    answer(call, true)
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
    let mut handle = open_handle(call, Slot::arg(1), "write")?;
    if let Some(wrong) = wrong {
        return Err(Raise::expected(call, wrong, "write", "string"));
    }
    handle.start_writing(total)?;
    for argument in 2..=last {
        handle.put(call.string(Slot::arg(argument)).unwrap_or_default())?;
    }
    drop(handle);
    call.push(Slot::arg(1));
    Ok(call.results(1))
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
    let position = open_handle(call, Slot::arg(1), "seek")?.seek(whence, offset as i64)?;
    #[expect(clippy::cast_precision_loss, reason = "the VM's numbers are doubles")]
    call.push_number(position as f64);
    Ok(call.results(1))
}

fn flush(call: &mut Call<'_>) -> Results {
    open_handle(call, Slot::arg(1), "flush")?.flush()?;
    answer(call, true)
}

fn close(call: &mut Call<'_>) -> Results {
    let handle = shared_handle(call, Slot::arg(1), "close")?;
    close_handle(call, &mut handle.lock().unwrap())?;
    answer(call, true)
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
