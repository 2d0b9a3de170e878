//! `fs`: whole files, directories, and metadata. The same operations as the controller's, under the
//! same rules. Failures always raise, also with `io.errors = "return"`: standard Lua has no such
//! functions whose behaviour a script could expect.

use std::ffi::CStr;

use sandbox_dirfd::split;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::MAX_PATTERN_BYTES;
use sandbox_protocol::message::{
    Copy, Cut, CutBy, Entry, Glob, Grep, List, Mkdir, OperationName, Remove, Rename, Timestamp,
    Touch, Write, WriteMode, permissions_text,
};
use sandbox_protocol::path::join_written;
use sandbox_protocol::time::parse_rfc3339;

use super::arguments::{path, perform, watch};
use crate::files::FileError;
use crate::luau::ffi::{Call, Kind, Raise, Results, Slot};
use crate::luau::options::{count, flag, option, optional_text, options};

/// The functions of `fs`. A test holds that the VM has exactly these.
pub(in crate::luau) const NAMES: &str =
    "copy exists glob grep list mkdir read remove rename stat touch write";

/// Sets `fs`.
pub(super) fn install(call: &mut Call<'_>) {
    let fs = call.push_table(0, 12);
    call.set_function(fs, c"read", read);
    call.set_function(fs, c"write", write);
    call.set_function(fs, c"list", list);
    call.set_function(fs, c"mkdir", mkdir);
    call.set_function(fs, c"touch", touch);
    call.set_function(fs, c"remove", remove);
    call.set_function(fs, c"exists", exists);
    call.set_function(fs, c"stat", stat);
    call.set_function(fs, c"glob", glob);
    call.set_function(fs, c"grep", grep);
    call.set_function(fs, c"copy", copy);
    call.set_function(fs, c"rename", rename);
    call.set_global(c"fs");
}

// --- functions -------------------------------------------------------------------------------

fn read(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "read")?;
    let watch = watch(call);
    let mut reading = perform(call, OperationName::Read, |files, _| files.read(&path, 0, None))?;
    call.push_text(|text| {
        // Reserved at once: a string that is too large fails before it is read.
        text.reserve(usize::try_from(reading.left()).unwrap_or(usize::MAX))?;
        while reading.left() > 0 {
            text.push(&reading.next(&watch)?)?;
        }
        Ok(())
    })?;
    Ok(call.results(1))
}

fn write(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "write")?;
    let data = Slot::arg(2);
    if call.text(data).is_none() {
        return Err(Raise::expected(call, data, "write", "string"));
    }
    let table = options(call, Slot::arg(3), "write", &["append", "create_new"])?;
    let append = flag(call, table, "append", false)?;
    let create_new = flag(call, table, "create_new", false)?;
    let mode = match (append, create_new) {
        (false, false) => WriteMode::Overwrite,
        (true, false) => WriteMode::Append,
        (false, true) => WriteMode::CreateNew,
        (true, true) => {
            let message = "the options 'append' and 'create_new' exclude each other";
            return Err(Raise::Error(message.to_owned()));
        }
    };
    let request = Write { mode, ..Write::new(path) };
    perform(call, OperationName::Write, |files, watch| {
        let content = call.string(data).unwrap_or_default();
        files.write_all(request, content, watch).map(drop)
    })?;
    answer(call, true)
}

fn list(call: &mut Call<'_>) -> Results {
    let directory = optional_text(call, Slot::arg(1), "list")?.unwrap_or(b".").to_vec();
    let table = options(call, Slot::arg(2), "list", &["recursive", "max_depth"])?;
    let recursive = flag(call, table, "recursive", false)?;
    let max_depth = count(call, table, "max_depth", 1)?;
    if max_depth.is_some() && !recursive {
        let message = "the option 'max_depth' is for lists that are recursive";
        return Err(Raise::Error(message.to_owned()));
    }
    let request = List { recursive, max_depth, ..List::new(&*directory) };
    let mut entries = Vec::new();
    let end = perform(call, OperationName::List, |files, watch| {
        files.list_entries(&request, watch, |entry| {
            entries.push(entry);
            Ok(())
        })
    })?;
    if let Some(cut) = end.cut.filter(|cut| cut.by != CutBy::Name) {
        let reason = cut.text(None, &call.host().limits);
        return Err(FileError::rule(ErrorKind::TooLarge, reason, &directory).into());
    }
    let array = call.push_table(entries.len(), 0);
    for (index, Entry { name, kind, size, .. }) in entries.iter().enumerate() {
        let entry = call.push_table(0, 4);
        call.set_string(entry, c"name", split(name.as_bytes()).1);
        call.set_string(entry, c"path", join_written(end.path.as_bytes(), name.as_bytes()));
        call.set_string(entry, c"type", kind.as_str());
        set_integer(call, entry, c"size", *size);
        call.set_element(array, index + 1)?;
    }
    Ok(call.results(1))
}

fn mkdir(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "mkdir")?;
    let table = options(call, Slot::arg(2), "mkdir", &["parents"])?;
    let parents = flag(call, table, "parents", true)?;
    let request = Mkdir { parents, ..Mkdir::new(path) };
    let made = perform(call, OperationName::Mkdir, |files, _| files.mkdir(&request))?;
    answer(call, made.created)
}

fn touch(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "touch")?;
    let table = options(call, Slot::arg(2), "touch", &["mtime"])?;
    let mtime = option(call, table, "mtime", "seconds or RFC 3339", |call, value| {
        if let Some(seconds) = call.number(value) {
            return timestamp(seconds);
        }
        let (seconds, nanoseconds) = parse_rfc3339(std::str::from_utf8(call.string(value)?).ok()?)?;
        Some(Timestamp { seconds, nanoseconds })
    })?;
    let request = Touch { mtime, ..Touch::new(path) };
    let touched = perform(call, OperationName::Touch, |files, _| files.touch(&request))?;
    answer(call, touched.created)
}

fn remove(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "remove")?;
    let table = options(call, Slot::arg(2), "remove", &["recursive"])?;
    let recursive = flag(call, table, "recursive", false)?;
    let request = Remove { recursive, ..Remove::new(path) };
    perform(call, OperationName::Remove, |files, watch| files.remove_entry(&request, watch))?;
    answer(call, true)
}

fn exists(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "exists")?;
    let (_, kind) = perform(call, OperationName::Exists, |files, _| files.exists(&path))?;
    match kind {
        Some(kind) => call.push_string(kind.as_str()),
        None => call.push_boolean(false),
    }
    Ok(call.results(1))
}

fn stat(call: &mut Call<'_>) -> Results {
    let path = path(call, Slot::arg(1), "stat")?;
    let facts = perform(call, OperationName::Stat, |files, _| files.stat(&path))?;
    let table = call.push_table(0, 9);
    call.set_string(table, c"path", facts.path.as_bytes());
    call.set_string(table, c"type", facts.kind.as_str());
    set_integer(call, table, c"size", facts.size);
    call.set_string(table, c"permissions", permissions_text(facts.permissions));
    call.set_number(table, c"uid", facts.uid.into());
    call.set_number(table, c"gid", facts.gid.into());
    set_time(call, table, c"modified", facts.modified);
    set_time(call, table, c"accessed", facts.accessed);
    set_time(call, table, c"created", facts.created);
    Ok(call.results(1))
}

fn glob(call: &mut Call<'_>) -> Results {
    let pattern = text(call, Slot::arg(1), "glob")?;
    let table = options(call, Slot::arg(2), "glob", &["exclude", "hidden", "limit"])?;
    let request = Glob {
        exclude: exclude(call, table)?,
        hidden: flag(call, table, "hidden", false)?,
        limit: count(call, table, "limit", 1)?,
        ..Glob::new(pattern)
    };
    let found = perform(call, OperationName::Glob, |files, watch| files.glob(&request, watch))?;
    let (top, directory, _) = request.split();
    let note = part(call, found.cut, request.limit, &top)?;
    let array = call.push_table(found.names.len(), 0);
    for (index, name) in found.names.iter().enumerate() {
        call.push_string(join_written(directory.as_bytes(), name.as_bytes()));
        call.set_element(array, index + 1)?;
    }
    push_part(call, note);
    Ok(call.results(3))
}

fn grep(call: &mut Call<'_>) -> Results {
    let pattern = text(call, Slot::arg(1), "grep")?;
    let top = optional_text(call, Slot::arg(2), "grep")?.unwrap_or_default().to_vec();
    let known = ["glob", "exclude", "context", "ignore_case", "hidden", "limit"];
    let table = options(call, Slot::arg(3), "grep", &known)?;
    let glob = option(call, table, "glob", "string", |call, value| {
        String::from_utf8(call.string(value)?.to_vec()).ok()
    })?;
    let begin: &[u8] = if top.is_empty() { b"." } else { &top };
    let request = Grep {
        path: begin.into(),
        glob,
        exclude: exclude(call, table)?,
        context: count(call, table, "context", 0)?.unwrap_or(0),
        ignore_case: flag(call, table, "ignore_case", false)?,
        hidden: flag(call, table, "hidden", false)?,
        limit: count(call, table, "limit", 1)?,
        ..Grep::new(pattern)
    };
    let found = perform(call, OperationName::Grep, |files, watch| files.grep(&request, watch))?;
    let note = part(call, found.cut, request.limit, begin)?;
    let array = call.push_table(found.lines.len(), 0);
    for (index, line) in found.lines.iter().enumerate() {
        let entry = call.push_table(0, 3);
        call.set_string(entry, c"path", join_written(&top, line.name.as_bytes()));
        set_integer(call, entry, c"line", line.line);
        call.set_string(entry, c"text", &line.text);
        for (name, is_set) in [(c"context", line.context), (c"cut", line.cut)] {
            if is_set {
                call.set_boolean(entry, name, true);
            }
        }
        call.set_element(array, index + 1)?;
    }
    push_part(call, note);
    Ok(call.results(3))
}

fn copy(call: &mut Call<'_>) -> Results {
    let from = path(call, Slot::arg(1), "copy")?;
    let to = path(call, Slot::arg(2), "copy")?;
    let table = options(call, Slot::arg(3), "copy", &["recursive", "overwrite"])?;
    let recursive = flag(call, table, "recursive", false)?;
    let overwrite = flag(call, table, "overwrite", false)?;
    let request = Copy { recursive, overwrite, ..Copy::new(from, to) };
    perform(call, OperationName::Copy, |files, watch| files.copy(&request, watch))?;
    answer(call, true)
}

fn rename(call: &mut Call<'_>) -> Results {
    let from = path(call, Slot::arg(1), "rename")?;
    let to = path(call, Slot::arg(2), "rename")?;
    let table = options(call, Slot::arg(3), "rename", &["overwrite"])?;
    let overwrite = flag(call, table, "overwrite", false)?;
    let request = Rename { overwrite, ..Rename::new(from, to) };
    perform(call, OperationName::Rename, |files, watch| files.rename_entry(&request, watch))?;
    answer(call, true)
}

pub(super) fn answer(call: &mut Call<'_>, is_so: bool) -> Results {
    call.push_boolean(is_so);
    Ok(call.results(1))
}

/// A pattern.
fn text(call: &mut Call<'_>, slot: Slot, function: &str) -> Result<String, Raise> {
    match call.string(slot).map(<[u8]>::to_vec).map(String::from_utf8) {
        Some(Ok(text)) => Ok(text),
        Some(Err(_)) => Err(Raise::Error("the pattern is not UTF-8".to_owned())),
        None => Err(Raise::expected(call, slot, function, "string")),
    }
}

/// The option `exclude`: globs, or one.
fn exclude(call: &mut Call<'_>, table: Slot) -> Result<Vec<String>, Raise> {
    const NAME: &str = "exclude";
    let text = |call: &Call<'_>, value| String::from_utf8(call.string(value)?.to_vec()).ok();
    let one = option(call, table, NAME, "string or table of strings", |call, value| {
        match call.kind(value) {
            Kind::Table => Some(None),
            _ => text(call, value).map(Some),
        }
    })?;
    match one {
        None => return Ok(Vec::new()),
        Some(Some(glob)) => return Ok(vec![glob]),
        Some(None) => {}
    }
    let top = call.len();
    call.push_field(table, NAME.as_bytes());
    let list = call.top();
    let mut globs = Vec::new();
    loop {
        call.push_element(list, globs.len() + 1);
        let value = call.top();
        if call.is_nil(value) {
            break;
        }
        let Some(glob) = text(call, value) else {
            let got = call.type_name(value);
            let message =
                format!("invalid option '{NAME}' (table of strings expected, got {got} in it)");
            return Err(Raise::Error(message));
        };
        globs.push(glob);
        if globs.len() > MAX_PATTERN_BYTES {
            return Err(Raise::Error(format!("the option '{NAME}' has too many globs")));
        }
        call.truncate(top + 1);
    }
    call.truncate(top);
    Ok(globs)
}

/// A result is a part of what there is only if the script has set a limit. Returns what it leaves out.
fn part(
    call: &Call<'_>,
    cut: Option<Cut>,
    limit: Option<u64>,
    path: &[u8],
) -> Result<Option<String>, Raise> {
    let Some(cut) = cut else { return Ok(None) };
    let text = cut.text(limit, &call.host().limits);
    if limit.is_some() || cut.by == CutBy::Name {
        return Ok(Some(text));
    }
    let reason = match cut.by {
        CutBy::Mount => text,
        _ => format!("{text}; narrow the pattern, or set a limit to get a part"),
    };
    let kind = if cut.by == CutBy::Time { ErrorKind::Timeout } else { ErrorKind::TooLarge };
    Err(FileError::rule(kind, reason, path).into())
}

/// Whether a result is a part, and what it leaves out.
fn push_part(call: &mut Call<'_>, note: Option<String>) {
    call.push_boolean(note.is_some());
    match note {
        Some(note) => call.push_string(note),
        None => call.push_nil(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "the VM's numbers are doubles")]
fn set_integer(call: &mut Call<'_>, table: Slot, name: &CStr, value: u64) {
    call.set_number(table, name, value as f64);
}

/// A time that RFC 3339 can represent, from seconds as `os.time` counts them.
fn timestamp(seconds: f64) -> Option<Timestamp> {
    let whole = seconds.floor();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
    let (whole, nanoseconds) = (
        (-62_167_219_200.0..253_402_300_800.0).contains(&whole).then_some(whole as i64)?,
        ((seconds - whole) * 1e9).min(999_999_999.0) as u32,
    );
    Some(Timestamp { seconds: whole, nanoseconds })
}

/// Sets the field `name` to seconds, as `os.time` counts them, if the time is known.
#[expect(clippy::cast_precision_loss, reason = "the VM's numbers are doubles")]
fn set_time(call: &mut Call<'_>, table: Slot, name: &CStr, time: Option<Timestamp>) {
    if let Some(Timestamp { seconds, nanoseconds }) = time {
        call.set_number(table, name, seconds as f64 + f64::from(nanoseconds) / 1e9);
    }
}
