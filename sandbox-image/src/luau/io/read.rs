//! Reading: the formats, and the iterators over them.

use std::sync::{Arc, Mutex};

use super::super::ffi::{Call, Function, Kind, Raise, Results, Slot, Text};
use super::arguments::{invalid, path};
use super::handles::{close_handle, open_handle, push_open, shared_handle};
use crate::files::OpenMode;
use crate::files::handle::{BUFFER_BYTES, Handle};

/// Most arguments of one `lines` call, which become upvalues; the same as Lua's limit.
const MAX_LINES_UPVALUES: u8 = 251;

/// What to read.
enum Format {
    Numeral,
    Line(LineEnd),
    All,
    Bytes(u64),
}

/// Whether a line end is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Keep,
    Drop,
}

pub(super) fn read(call: &mut Call<'_>) -> Results {
    let handle = shared_handle(call, Slot::arg(1), "read")?;
    let formats = 2..=call.len();
    let (count, _) = read_formats(call, &mut handle.lock().unwrap(), formats)?;
    Ok(call.results(count))
}

/// Reads by each format in turn, up to the first that finds nothing, and pushes the results, nil
/// for nothing; reads a line if there is no format. Returns the number of values, and whether the
/// first one is not nil.
fn read_formats(
    call: &mut Call<'_>,
    handle: &mut Handle,
    formats: std::ops::RangeInclusive<i32>,
) -> Result<(i32, bool), Raise> {
    if formats.is_empty() {
        return Ok((1, push_format(call, handle, Format::Line(LineEnd::Drop))?));
    }
    call.reserve(formats.end() - formats.start() + 4)?;
    let mut first = None;
    let mut count = 0;
    for format in formats {
        // One format at a time; each is checked before the file is read for it.
        let format = parse_format(call, Slot::arg(format))?;
        let found = push_format(call, handle, format)?;
        count += 1;
        first = first.or(Some(found));
        if !found {
            break;
        }
    }
    Ok((count, first.unwrap_or_default()))
}

fn parse_format(call: &mut Call<'_>, format: Slot) -> Result<Format, Raise> {
    if let Some(number) = call.number(format) {
        if number >= 0.0 && number.fract() == 0.0 {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked"
            )]
            return Ok(Format::Bytes(number as u64));
        }
        let text = call.text(format).unwrap_or_default();
        return Err(invalid("format", text));
    }
    let Some(text) = call.string(format) else {
        return Err(Raise::expected(call, format, "read", "string"));
    };
    match text.strip_prefix(b"*").unwrap_or(text).first() {
        Some(b'n') => Ok(Format::Numeral),
        Some(b'l') => Ok(Format::Line(LineEnd::Drop)),
        Some(b'L') => Ok(Format::Line(LineEnd::Keep)),
        Some(b'a') => Ok(Format::All),
        _ => Err(invalid("format", text)),
    }
}

/// Reads by a format, and pushes the result, nil for nothing; returns whether it is not nil.
fn push_format(call: &mut Call<'_>, handle: &mut Handle, format: Format) -> Result<bool, Raise> {
    handle.start_reading()?;
    let found = match format {
        Format::Numeral => push_numeral(call, handle)?,
        Format::Line(end) => push_line(call, handle, end)?,
        Format::All => push_up_to(call, handle, u64::MAX).map(|_| true)?,
        Format::Bytes(0) => push_at_end(call, handle)?,
        Format::Bytes(count) => push_bytes(call, handle, count)?,
    };
    if !found {
        call.push_nil();
    }
    Ok(found)
}

/// Nothing at the end of the file, an empty string before it.
fn push_at_end(call: &mut Call<'_>, handle: &mut Handle) -> Result<bool, Raise> {
    if handle.buffered().is_empty() && handle.fill()? == 0 {
        return Ok(false);
    }
    call.push_string("");
    Ok(true)
}

fn push_numeral(call: &mut Call<'_>, handle: &mut Handle) -> Result<bool, Raise> {
    while handle.skip_spaces()? {
        call.check_stop()?;
    }
    let number = handle.read_number()?;
    Ok(number.map(|number| call.push_number(number)).is_some())
}

fn push_bytes(call: &mut Call<'_>, handle: &mut Handle, count: u64) -> Result<bool, Raise> {
    if handle.buffered().is_empty() && count < BUFFER_BYTES as u64 {
        handle.fill()?;
    }
    if let Some(bytes) = usize::try_from(count).ok().and_then(|n| handle.buffered().get(..n)) {
        call.push_string(bytes);
        let count = bytes.len();
        handle.consume(count);
        return Ok(true);
    }
    match push_up_to(call, handle, count)? {
        0 => {
            call.truncate(call.len() - 1);
            Ok(false)
        }
        _ => Ok(true),
    }
}

/// Pushes up to `max` bytes as one string, and returns their number. One allocation, of the file's
/// current size, and no copy if the file does not change meanwhile.
fn push_up_to(call: &mut Call<'_>, handle: &mut Handle, max: u64) -> Result<usize, Raise> {
    let host = call.host();
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let mut len = 0;
    call.push_text(|text| {
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
                let count = text.fill(missing, |space| handle.read_directly(space))?;
                missing -= count;
                if count == 0 {
                    break;
                }
                if host.is_stopped() {
                    return Err(Raise::Stopped);
                }
            }
            // The file may have grown: it ends only when a read returns nothing.
            if text.len() == max || (handle.buffered().is_empty() && handle.fill()? == 0) {
                len = text.len();
                return Ok(());
            }
        }
    })?;
    Ok(len)
}

fn push_line(call: &mut Call<'_>, handle: &mut Handle, end: LineEnd) -> Result<bool, Raise> {
    let mut searched = 0;
    loop {
        let buffered = handle.buffered();
        if let Some(at) = memchr::memchr(b'\n', &buffered[searched..]) {
            let line = &buffered[..searched + at + 1];
            call.push_string(without_end(line, end));
            let len = line.len();
            handle.consume(len);
            return Ok(true);
        }
        searched = buffered.len();
        if searched == BUFFER_BYTES {
            push_long_line(call, handle, end)?;
            return Ok(true);
        }
        if handle.fill()? == 0 {
            if searched == 0 {
                return Ok(false);
            }
            call.push_string(handle.buffered());
            handle.consume(searched);
            return Ok(true);
        }
    }
}

fn without_end(line: &[u8], end: LineEnd) -> &[u8] {
    match (end, line) {
        (LineEnd::Drop, [line @ .., b'\r', b'\n'] | [line @ .., b'\n']) => line,
        _ => line,
    }
}

/// A line that is longer than the buffer, which is filled with its beginning.
fn push_long_line(call: &mut Call<'_>, handle: &mut Handle, end: LineEnd) -> Result<(), Raise> {
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
                return Err(Raise::Stopped);
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
pub(super) fn lines(call: &mut Call<'_>) -> Results {
    drop(open_handle(call, Slot::arg(1), "lines")?);
    push_iterator(call, next_line)
}

/// `io.lines(path, ...)`, which closes the file.
pub(super) fn io_lines(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "lines")?;
    call.reserve(2)?;
    push_open(call, &path, OpenMode::Read)?;
    call.replace(Slot::arg(1));
    push_iterator(call, next_line_then_close)
}

fn push_iterator(call: &mut Call<'_>, function: impl Function) -> Results {
    match u8::try_from(call.len()) {
        Ok(upvalues @ 1..=MAX_LINES_UPVALUES) => {
            call.reserve(1)?;
            call.push_function(c"lines", function, upvalues);
            Ok(call.results(1))
        }
        _ => Err(Raise::Error("too many arguments".to_owned())),
    }
}

/// The file of an iterator.
fn iterated(call: &Call<'_>) -> Result<Arc<Mutex<Handle>>, Raise> {
    match call.handle(Slot::upvalue(1)) {
        Some(handle) if handle.lock().unwrap().is_open() => Ok(Arc::clone(handle)),
        _ => Err(Raise::Error("file is already closed".to_owned())),
    }
}

fn next_line(call: &mut Call<'_>) -> Results {
    let handle = iterated(call)?;
    let (count, found) = next(call, &handle)?;
    Ok(call.results(if found { count } else { 0 }))
}

fn next_line_then_close(call: &mut Call<'_>) -> Results {
    let handle = iterated(call)?;
    let next = next(call, &handle);
    if let Ok((count, true)) = next {
        return Ok(call.results(count));
    }
    let closed = close_handle(call, &mut handle.lock().unwrap());
    next?;
    closed?;
    Ok(call.results(0))
}

fn next(call: &mut Call<'_>, handle: &Mutex<Handle>) -> Result<(i32, bool), Raise> {
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
