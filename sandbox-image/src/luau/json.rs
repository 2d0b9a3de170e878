//! Values as JSON and back: the result, `args` and the `json` library, under the same rules.
//!
//! Encoding is written by hand, because no generic view of a table can distinguish `{}` from `[]`,
//! a sparse array from an object, or report the path of a value that JSON cannot represent.

mod array;
mod decode;
mod encode;

use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{MAX_ERROR_VALUE_BYTES, MAX_RESULT_BYTES, MAX_TOOL_ARGUMENT_BYTES};
use sandbox_protocol::message::ScriptError;
use serde_json::value::RawValue;

use super::ffi::{Call, Kind, LOCKED, Raise, Results, Slot};
use array::{ARRAY_MARK, mark_array};
use encode::{Layout, Refusal, encode};

pub(super) use decode::{push_args, push_value};
pub(super) use encode::is_name;

/// Sets `json`.
pub(super) fn install(call: &mut Call<'_>) -> Result<(), Raise> {
    let mark = call.push_table(0, 0);
    call.freeze(mark);
    call.host().array_mark.set(call.identity(mark));
    call.keep(ARRAY_MARK);

    let null = call.push_table(0, 2);
    call.push_function(c"tostring", null_text, 0);
    call.set_field(null, c"__tostring");
    call.set_string(null, c"__metatable", LOCKED);
    call.freeze(null);
    call.set_null_metatable();

    let json = call.push_table(0, 4);
    call.set_function(json, c"encode", json_encode);
    call.set_function(json, c"decode", json_decode);
    call.set_function(json, c"array", json_array);
    call.push_null();
    call.set_field(json, c"null");
    call.set_global(c"json");
    Ok(())
}

/// The JSON of what the script returned: `count` values of its own thread.
pub(super) fn encode_result(call: &mut Call<'_>, count: i32) -> Result<Box<RawValue>, ScriptError> {
    let limit = usize::try_from(call.host().limits.result_bytes).unwrap_or(usize::MAX);
    let limit = limit.min(MAX_RESULT_BYTES);
    let json = match count {
        0 => Ok("null".to_owned()),
        1 => {
            call.push_outcome(1);
            encode(call, "result", limit, Layout::Compact)
        }
        _ => encode::encode_outcomes(call, "result", limit, count),
    };
    let (kind, message) = match json.map(RawValue::from_string) {
        Ok(Ok(json)) => return Ok(json),
        Ok(Err(error)) => (ErrorKind::Internal, error.to_string()),
        Err(Refusal::Value(message)) => (ErrorKind::ResultNotJson, message),
        Err(Refusal::TooLong) => {
            (ErrorKind::ResultTooLarge, format!("the result is longer than {limit} bytes of JSON"))
        }
        Err(Refusal::Stopped) => return Err(call.host().stop.reason().error()),
    };
    Err(ScriptError::new(kind, message))
}

/// The JSON of the table that the script raised; nothing if it raised something else, or a table
/// that JSON cannot represent or that is too long.
pub(super) fn encode_raised(call: &mut Call<'_>) -> Option<String> {
    call.push_outcome(0);
    if call.kind(call.top()) != Kind::Table {
        return None;
    }
    encode(call, "error", MAX_ERROR_VALUE_BYTES, Layout::Compact).ok()
}

/// Pops the arguments of a tool and encodes them.
pub(super) fn encode_arguments(call: &mut Call<'_>) -> Result<Box<RawValue>, Raise> {
    let limit = MAX_TOOL_ARGUMENT_BYTES.min(call.free_memory());
    let json =
        encode(call, "arguments", limit, Layout::Compact).map_err(|refusal| match refusal {
            Refusal::Value(message) => Raise::Error(message),
            Refusal::TooLong if limit < MAX_TOOL_ARGUMENT_BYTES => Raise::OutOfMemory,
            Refusal::TooLong => {
                Raise::Error(format!("the arguments are longer than {limit} bytes of JSON"))
            }
            Refusal::Stopped => Raise::Stopped,
        })?;
    RawValue::from_string(json).map_err(|error| Raise::Error(error.to_string()))
}

fn json_encode(call: &mut Call<'_>) -> Results {
    let (value, options) = (Slot::arg(1), Slot::arg(2));
    if call.kind(value) == Kind::None {
        return Err(Raise::missing(1, "encode", "value"));
    }
    let mut layout = Layout::Compact;
    if !call.is_nil(options) {
        if call.kind(options) != Kind::Table {
            return Err(Raise::expected(call, options, "encode", "table"));
        }
        call.push_field(options, b"pretty");
        if call.is_true(call.top()) {
            layout = Layout::Pretty;
        }
    }
    call.push(value);
    // The text is built outside of the VM, within the memory that the VM may still use.
    let limit = call.free_memory();
    match encode(call, "value", limit, layout) {
        Ok(json) => {
            call.push_text(|text| text.push(json.as_bytes()))?;
            Ok(call.results(1))
        }
        Err(Refusal::Value(message)) => Err(Raise::Error(message)),
        Err(Refusal::TooLong) => Err(Raise::OutOfMemory),
        Err(Refusal::Stopped) => Err(Raise::Stopped),
    }
}

fn json_decode(call: &mut Call<'_>) -> Results {
    let text = Slot::arg(1);
    if call.kind(text) != Kind::String {
        return Err(Raise::expected(call, text, "decode", "string"));
    }
    // Copied, because the results are pushed onto the stack that holds it.
    let text = call.string(text).unwrap_or_default();
    if text.len() > call.free_memory() {
        return Err(Raise::OutOfMemory);
    }
    let text = text.to_vec();
    decode::push_decoded(call, &text)?;
    Ok(call.results(1))
}

fn json_array(call: &mut Call<'_>) -> Results {
    let table = Slot::arg(1);
    if call.kind(table) != Kind::Table {
        return Err(Raise::expected(call, table, "array", "table"));
    }
    let metatable = call.metatable_identity(table);
    if metatable != call.host().array_mark.get() {
        if metatable != 0 || call.is_frozen(table) {
            let what = if metatable != 0 { "has a metatable" } else { "is read-only" };
            return Err(Raise::Error(format!("json.array: the table {what}")));
        }
        mark_array(call, table);
    }
    call.push(table);
    Ok(call.results(1))
}

fn null_text(call: &mut Call<'_>) -> Results {
    call.push_string("null");
    Ok(call.results(1))
}
