//! `tools`: the host's tools that the run was given, and `policy`: what the sandbox may reach.
//!
//! Nothing is listed here. Any `tools.NAME.TOOL` is a function that asks the host, which decides.

use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::MAX_TOOL_NAME_BYTES;
use sandbox_protocol::message::{CallEnd, CallFile, CallResult, CallTarget};
use serde_json::value::RawValue;

use super::ffi::{Call, Kind, LOCKED, Raise, Results, Slot};
use super::{io, json};

/// The directory of the files that belong to results.
const FILES: &str = "~/tool-files/";

/// Sets `policy`, and `tools` if the run was given some.
pub(super) fn install(call: &mut Call<'_>) {
    call.push_function(c"policy", policy, 0);
    call.set_global(c"policy");
    if call.host().has_tools {
        let tools = call.push_table(0, 2);
        call.set_function(tools, c"search", |call| ask_about(call, CallTarget::Search, "search"));
        let describe = |call: &mut Call<'_>| ask_about(call, CallTarget::Describe, "describe");
        call.set_function(tools, c"describe", describe);
        call.push_function(c"tools", group, 0);
        seal(call, tools);
        call.set_global(c"tools");
    }
}

/// Pops a function, and lets it give what is not in the table, which nothing changes any more.
fn seal(call: &mut Call<'_>, table: Slot) {
    let function = call.top();
    let metatable = call.push_table(0, 2);
    call.push(function);
    call.set_field(metatable, c"__index");
    call.set_string(metatable, c"__metatable", LOCKED);
    call.freeze(metatable);
    call.set_metatable(table);
    call.freeze(table);
    call.truncate(table.number());
}

/// `tools.NAME`.
fn group(call: &mut Call<'_>) -> Results {
    let name = name(call, Slot::arg(2), "a group of tools")?;
    let group = call.push_table(0, 0);
    call.push_string(name);
    call.push_function(c"tools", tool, 1);
    seal(call, group);
    Ok(call.results(1))
}

/// `tools.NAME.TOOL`: the name of the group is an upvalue.
fn tool(call: &mut Call<'_>) -> Results {
    let own = name(call, Slot::arg(2), "a tool")?;
    let group = call.string(Slot::upvalue(1)).unwrap_or_default();
    let full = [group, b".", own.as_bytes()].concat();
    call.push_string(full);
    call.push_function(c"tool", call_tool, 1);
    Ok(call.results(1))
}

/// `tools.NAME.TOOL{…}`: the full name is an upvalue.
fn call_tool(call: &mut Call<'_>) -> Results {
    let name = name(call, Slot::upvalue(1), "a tool")?;
    if call.len() > 1 {
        let why = "its arguments are one table, after a dot and not a colon";
        return Err(Raise::Error(format!("tools.{name}: {why}")));
    }
    let arguments = match call.kind(Slot::arg(1)) {
        Kind::None | Kind::Nil => RawValue::from_string("{}".to_owned()).ok(),
        Kind::Table => {
            call.push(Slot::arg(1));
            Some(json::encode_arguments(call)?).filter(|json| json.get().starts_with('{'))
        }
        _ => return Err(Raise::expected(call, Slot::arg(1), &name, "table")),
    };
    let Some(arguments) = arguments else {
        let why = "its arguments are a table of names and values, not an array";
        return Err(Raise::Error(format!("tools.{name}: {why}")));
    };
    ask(call, CallTarget::Tool, name, arguments)
}

fn policy(call: &mut Call<'_>) -> Results {
    ask(call, CallTarget::Policy, String::new(), Box::default())
}

fn ask_about(call: &mut Call<'_>, target: CallTarget, function: &str) -> Results {
    if call.kind(Slot::arg(1)) != Kind::String {
        return Err(Raise::expected(call, Slot::arg(1), function, "string"));
    }
    let name = name(call, Slot::arg(1), "a tool")?;
    ask(call, target, name, Box::default())
}

/// A name that a script wrote.
fn name(call: &Call<'_>, slot: Slot, what: &str) -> Result<String, Raise> {
    let Some(name) = call.string(slot) else {
        let got = call.type_name(slot);
        return Err(Raise::Error(format!("{what} has a name (string expected, got {got})")));
    };
    match std::str::from_utf8(name) {
        Ok(name) if name.len() <= MAX_TOOL_NAME_BYTES => Ok(name.to_owned()),
        _ => {
            let most = MAX_TOOL_NAME_BYTES;
            Err(Raise::Error(format!("{what} has a name of at most {most} bytes of UTF-8")))
        }
    }
}

/// Asks the host, and returns what it answers: a value, and the files that belong to it, if any.
fn ask(call: &mut Call<'_>, target: CallTarget, name: String, arguments: Box<RawValue>) -> Results {
    let host = call.host();
    let result = host.calls.call(&host.stop, target, name, arguments);
    let Some(CallResult { end, files, .. }) = result else { return Err(Raise::Stopped) };
    match end {
        CallEnd::Failed { kind: ErrorKind::Runtime, message } => Err(Raise::Error(message)),
        CallEnd::Failed { kind, message } => Err(Raise::Rule(kind, message)),
        CallEnd::Value(value) => {
            json::push_value(call, &value)?;
            if files.is_empty() {
                return Ok(call.results(1));
            }
            push_files(call, &files)?;
            Ok(call.results(2))
        }
    }
}

/// Writes files into the io dir, and pushes a list of them.
fn push_files(call: &mut Call<'_>, files: &[CallFile]) -> Result<(), Raise> {
    let list = call.push_table(files.len(), 0);
    for (index, CallFile { name, mime_type, data }) in files.iter().enumerate() {
        let (field, value) = match &call.host().files {
            Some(_) => (c"path", io::write_file(call, &format!("{FILES}{name}"), &data.0)?),
            None => (c"omitted", b"io is off in this run".to_vec()),
        };
        let entry = call.push_table(0, 3);
        call.set_string(entry, c"type", mime_type);
        #[expect(clippy::cast_precision_loss, reason = "a frame is shorter than 2^53")]
        call.set_number(entry, c"bytes", data.0.len() as f64);
        call.set_string(entry, field, value);
        call.set_element(list, index + 1)?;
    }
    Ok(())
}
