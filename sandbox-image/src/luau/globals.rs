//! Globals that are added to Luau's own libraries, and those that are removed.

use sandbox_protocol::limits::MAX_LOG_ENTRY_BYTES;
use sandbox_protocol::message::LogLevel;
use serde_json::{Map, Value};

use super::context::Host;
use super::ffi::{self, Call, Raise, Results, Slot};
use super::{io, json, names, process, secrets, test, tools};

/// Globals of Luau's libraries that scripts must not have.
const REMOVED: [&std::ffi::CStr; 4] = [c"newproxy", c"getfenv", c"setfenv", c"gcinfo"];

/// Sets the globals.
pub(super) fn install(call: &mut Call<'_>, args: &Map<String, Value>) -> Result<(), Raise> {
    for name in REMOVED {
        call.push_nil();
        call.set_global(name);
    }
    call.push_function(c"print", |call| log(call, LogLevel::Print), 0);
    call.set_global(c"print");
    call.push_function(c"warn", |call| log(call, LogLevel::Warn), 0);
    call.set_global(c"warn");

    let os = call.push_global(c"os");
    call.push_field(os, b"date");
    call.push_function(c"date", date_in_utc, 1);
    call.set_field(os, c"date");
    if call.host().now.is_some() {
        call.push_field(os, b"time");
        call.push_function(c"time", fixed_time, 1);
        call.set_field(os, c"time");
        call.push_field(os, b"clock");
        call.push(call.top());
        call.call(0)?;
        call.push_function(c"clock", clock_from_zero, 2);
        call.set_field(os, c"clock");
    }
    call.truncate(os.number() - 1);
    if let Some(seed) = call.host().seed {
        let math = call.push_global(c"math");
        call.push_field(math, b"randomseed");
        // Luau's is an int.
        call.push_number(f64::from(seed.cast_signed()));
        call.call(1)?;
        call.truncate(math.number() - 1);
    }

    json::install(call)?;
    json::push_args(call, args)?;
    call.set_global(c"args");
    test::install(call);
    secrets::install(call);
    tools::install(call);
    if call.host().files.is_some() {
        io::install(call);
    }
    if call.host().programs.is_some() {
        process::install(call);
    }
    Ok(())
}

fn log(call: &mut Call<'_>, level: LogLevel) -> Results {
    // The log cuts entries itself. Copies only a little more than it accepts, which shows it that
    // there is more.
    const ENOUGH: usize = MAX_LOG_ENTRY_BYTES + 64;
    let count = call.len();
    let mut entry = Vec::new();
    for argument in 1..=count {
        if argument > 1 {
            entry.push(b'\t');
        }
        call.push_display(Slot::arg(argument));
        let text = call.string(call.top()).unwrap_or_default();
        entry.extend_from_slice(&text[..text.len().min(ENOUGH.saturating_sub(entry.len()))]);
        call.truncate(count);
    }
    call.host().log.log(level, &entry);
    Ok(call.results(0))
}

/// `os.date`, whose default is the local time of a time zone that scripts cannot know. As in Luau a
/// time before 1970 has no local date: without a `!` the date is nil.
fn date_in_utc(call: &mut Call<'_>) -> Results {
    let (format, time) = (Slot::arg(1), Slot::arg(2));
    let has_time = !call.is_nil(time);
    let is_utc = call.text(format).is_some_and(|text| text.starts_with(b"!"));
    if !is_utc && call.to_number(time).is_some_and(|time| time <= -1.0) {
        call.push_nil();
        return Ok(call.results(1));
    }
    let utc = match call.text(format) {
        Some(text) if is_utc => Some(text.to_vec()),
        Some(text) => Some([b"!", text].concat()),
        // Invalid format: the library reports it.
        None => call.is_nil(format).then(|| b"!%c".to_vec()),
    };
    call.push(Slot::upvalue(1));
    match utc {
        Some(utc) => call.push_string(utc),
        None => call.push(format),
    }
    match call.host().now {
        Some(now) if !has_time => call.push_number(now as f64),
        _ if has_time => call.push(time),
        _ => call.push_nil(),
    }
    call.call(2)?;
    Ok(call.results(1))
}

/// `os.time` of a script whose time stands still.
fn fixed_time(call: &mut Call<'_>) -> Results {
    let date = Slot::arg(1);
    match call.host().now {
        Some(now) if call.is_nil(date) => call.push_number(now as f64),
        _ => {
            call.push(Slot::upvalue(1));
            call.push(date);
            call.call(1)?;
        }
    }
    Ok(call.results(1))
}

/// `os.clock` of such a script. It goes on: a script may wait by it.
fn clock_from_zero(call: &mut Call<'_>) -> Results {
    call.push(Slot::upvalue(1));
    call.call(0)?;
    let (now, start) = (call.number(call.top()), call.number(Slot::upvalue(2)));
    call.push_number(now.unwrap_or_default() - start.unwrap_or_default());
    Ok(call.results(1))
}

/// Most names of a line that a message explains.
const MAX_NAMES_SHOWN: usize = 2;

/// Adds a hint to a message for scripts whose author expects another behaviour.
pub(super) fn with_hint(message: String, line: Option<u32>, source: &str, host: &Host) -> String {
    let has_files = host.files.is_some();
    let number = line;
    let line = line.and_then(|line| source.lines().nth(line.checked_sub(1)? as usize));
    let names = |what: &str| line.is_some_and(|line| line.contains(what));
    let indexes_nil = message.contains("attempt to index nil with '");
    let hint = if message.ends_with("attempt to index nil with 'save'") && names("file") {
        let instead = match has_files {
            true => r#"io.open(name, "w"):write(data):close()"#,
            false => "io is off in this run",
        };
        format!("there is no file.save: {instead}")
    } else if !has_files && indexes_nil && ["io.", "fs."].into_iter().any(names) {
        "io is off in this run".to_owned()
    } else if !host.has_tools && indexes_nil && names("tools.") {
        "this run was given no tools".to_owned()
    } else if message.ends_with("attempt to index nil with 'exec'") && names("process.") {
        "this sandbox does not support commands: `run --image IMAGE` creates one that does"
            .to_owned()
    } else if indexes_nil || message.ends_with("attempt to call a nil value") {
        let unknown = ffi::compile(source).map(|bytecode| names::unknown(&bytecode));
        let here = unknown.unwrap_or_default().into_iter().filter(|it| Some(it.line) == number);
        here.map(|it| it.message).take(MAX_NAMES_SHOWN).collect::<Vec<_>>().join("; ")
    } else {
        String::new()
    };
    if hint.is_empty() { message } else { format!("{message} ({hint})") }
}
