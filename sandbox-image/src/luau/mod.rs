//! Runs a script in a fresh Luau VM.
//!
//! [`ffi`] is a safe wrapper of the VM, [`globals`] the globals of a script, [`io`] its files,
//! [`process`] its commands, [`secrets`] its secrets, [`test`](self::test) its test cases, [`tools`] the
//! host that it calls, [`json`] its values as JSON, [`names`] what it uses and does not have. Our functions are
//! plain Rust functions over [`ffi::Call`]; they share the [`Host`](context::Host) during a run.

mod bytecode;
mod context;
mod ffi;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod globals;
mod io;
mod json;
mod names;
mod options;
mod process;
mod secrets;
mod test;
#[cfg(test)]
mod tests;
mod tools;

use sandbox_protocol::ErrorKind;
use sandbox_protocol::argv::CheckWarning;
use sandbox_protocol::limits::{MAX_MESSAGE_BYTES, cut_encoded};
use sandbox_protocol::message::{RunEnd, ScriptError};
use serde_json::{Map, Value, value::RawValue};

use crate::stop::StopReason;
pub use context::RunContext;
use context::{Host, split_position};
use ffi::{Ended, Thrown, Vm};

/// Runs `source`.
pub fn run(source: &str, args: &Map<String, Value>, context: RunContext) -> RunEnd {
    match try_run(source, args, context) {
        Ok(json) => RunEnd::Returned(json),
        Err(error) => RunEnd::Failed(ScriptError {
            message: cut(error.message),
            traceback: error.traceback.map(cut),
            ..error
        }),
    }
}

/// Returns why `source` does not compile, if it does not; otherwise the names in it that no script
/// has.
pub fn check(source: &str) -> Result<Vec<CheckWarning>, ScriptError> {
    match ffi::compile(source) {
        Ok(bytecode) => Ok(names::unknown(&bytecode)),
        Err(message) => Err(syntax_error(&message)),
    }
}

fn try_run(
    source: &str,
    args: &Map<String, Value>,
    context: RunContext,
) -> Result<Box<RawValue>, ScriptError> {
    let bytecode = ffi::compile(source).map_err(|message| syntax_error(&message))?;
    let memory = usize::try_from(context.limits.vm_memory_bytes).unwrap_or(usize::MAX);
    let mut vm = Vm::new(Host::new(context), memory).ok_or_else(out_of_memory)?;
    let started = vm.protect(|call| globals::install(call, args)).and_then(|()| vm.load(&bytecode));
    started.map_err(|thrown| own_failure(&vm, thrown))?;
    drop(bytecode);
    match vm.run() {
        Ended::Returned(count) => {
            let encoded = vm.protect(|call| {
                io::finish(call)?;
                Ok(json::encode_result(call, count))
            });
            encoded.unwrap_or_else(|thrown| Err(own_failure(&vm, thrown)))
        }
        failed => Err(failure(&mut vm, failed, source)),
    }
}

/// The error of a script that did not return.
fn failure(vm: &mut Vm, ended: Ended, source: &str) -> ScriptError {
    let traceback = Some(vm.traceback(MAX_MESSAGE_BYTES)).filter(|text| !text.is_empty());
    let mut value = None;
    let (rule, message) = match ended {
        Ended::Yielded => (None, "attempt to yield from outside a coroutine".to_owned()),
        Ended::OutOfMemory => (Some(ErrorKind::OutOfMemory), out_of_memory().message),
        Ended::Failed | Ended::Returned(_) => {
            value = vm.protect(|call| Ok(json::encode_raised(call))).ok().flatten();
            let described = vm.protect(|call| {
                call.push_outcome(0);
                let raised = call.top();
                Ok(call.describe_error(raised))
            });
            let error = described.unwrap_or_else(|_| b"(error object cannot be shown)".to_vec());
            (vm.rule_of(&error), String::from_utf8_lossy(&error).into_owned())
        }
    };
    let line = line_of(message.as_bytes())
        .or_else(|| line_of(traceback.as_ref()?.lines().next()?.as_bytes()));
    let host = vm.host();
    let stopped = host.stop.reason();
    if stopped != StopReason::None {
        let error = stopped.error();
        let message = if message.ends_with(&error.message) { message } else { error.message };
        return ScriptError { message, line, traceback, ..error };
    }
    let message = globals::with_hint(message, line, source, host);
    let value = value.and_then(|json| serde_json::from_str(&json).ok());
    ScriptError { kind: rule.unwrap_or(ErrorKind::Runtime), message, line, traceback, value }
}

/// Our own work in the VM failed, before or after the script ran.
fn own_failure(vm: &Vm, thrown: Thrown) -> ScriptError {
    match thrown {
        Thrown::OutOfMemory => out_of_memory(),
        Thrown::Error(message) => ScriptError::new(
            vm.rule_of(&message).unwrap_or(ErrorKind::Runtime),
            String::from_utf8_lossy(&message).into_owned(),
        ),
    }
}

fn out_of_memory() -> ScriptError {
    ScriptError::new(ErrorKind::OutOfMemory, "not enough memory".to_owned())
}

/// `message` is that of the compiler: `:3: …`.
fn syntax_error(message: &str) -> ScriptError {
    let message = cut(format!("script{message}"));
    let line = line_of(message.as_bytes());
    ScriptError { line, ..ScriptError::new(ErrorKind::Syntax, message) }
}

fn line_of(message: &[u8]) -> Option<u32> {
    split_position(message).map(|(line, _)| line)
}

fn cut(mut text: String) -> String {
    text.truncate(cut_encoded(&text, MAX_MESSAGE_BYTES).len());
    text
}
