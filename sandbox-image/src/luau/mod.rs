//! Runs a script in a fresh Luau VM.
//!
//! [`ffi`] is the VM behind a safe view, [`globals`] what a script finds in it, [`io`] its files,
//! [`process`] its programs, [`json`] its values as JSON. Functions of ours are plain Rust functions over
//! [`ffi::Call`]; what they share in one run is the [`Host`].

mod ffi;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod globals;
mod io;
mod json;
mod options;
mod process;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex};

use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{MAX_MESSAGE_BYTES, cut_encoded};
use sandbox_protocol::message::{IoErrors, Limits, LogLevel, RunEnd, ScriptError};
use serde_json::{Map, Value, value::RawValue};

use crate::exec::Programs;
use crate::files::Files;
use crate::files::handle::Handle;
use crate::log::LogSink;
use crate::run::{RunContext, StopFlag, StopReason};
use ffi::{Ended, Thrown, Vm};

/// Errors of broken rules and limits that are remembered of one run. More than these at different
/// places of a script, all of them caught, and then one of the first thrown again, is no case to care
/// for.
const REMEMBERED_RULES: usize = 64;

/// What the functions in a VM share.
struct Host {
    /// `None` where io is off.
    files: Option<Arc<Files>>,
    io_errors: IoErrors,
    log: Arc<LogSink>,
    stop: Arc<StopFlag>,
    limits: Limits,
    /// `None` in a sandbox that runs scripts only.
    programs: Option<Arc<Programs>>,
    open_handles: Cell<u64>,
    /// The metatable that marks a table as an array of JSON, as an identity.
    array_mark: Cell<usize>,
    /// The very strings that were raised for broken rules and limits: so an uncaught error is known by
    /// what it is.
    raised_rules: RefCell<Vec<(ErrorKind, Box<[u8]>)>>,
}

impl Host {
    fn new(context: &RunContext) -> Self {
        Self {
            files: context.files.clone(),
            io_errors: context.io_errors,
            log: Arc::clone(&context.log),
            stop: Arc::clone(&context.stop),
            limits: context.limits.clone(),
            programs: context.programs.clone(),
            open_handles: Cell::new(0),
            array_mark: Cell::new(0),
            raised_rules: RefCell::default(),
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.reason() != StopReason::None
    }

    fn stop_message(&self) -> String {
        self.stop.reason().error().message
    }

    /// Remembers the string of such an error. Limits are forgotten last: they decide the status.
    fn remember_rule(&self, kind: ErrorKind, raised: &[u8]) {
        let mut all = self.raised_rules.borrow_mut();
        if all.iter().any(|(_, known)| **known == *raised) {
            return;
        }
        if all.len() == REMEMBERED_RULES {
            let oldest = all.iter().position(|(kind, _)| !kind.is_limit());
            all.remove(oldest.unwrap_or(0));
        }
        all.push((kind, raised.into()));
    }

    /// The kind of an uncaught error that was raised for a broken rule or a limit. Strings are values, so equal
    /// ones are the same. A position in front does not change what it is: `error` and
    /// `coroutine.wrap` put one there where they pass an error on.
    fn rule_of(&self, error: &[u8]) -> Option<ErrorKind> {
        let all = self.raised_rules.borrow();
        let mut rest = error;
        loop {
            if let Some((kind, _)) = all.iter().find(|(_, raised)| **raised == *rest) {
                return Some(*kind);
            }
            rest = split_position(rest)?.1;
        }
    }

    /// Closes a handle that no script can reach any more. What cannot be written is lost, and the
    /// log says so.
    fn forget(&self, handle: &Mutex<Handle>) {
        let mut handle = handle.lock().unwrap();
        if handle.is_open() {
            self.open_handles.set(self.open_handles.get() - 1);
            if let Err(error) = handle.close() {
                self.log.log(LogLevel::Warn, error.to_string().as_bytes());
            }
        }
    }
}

/// Runs `source` to its end.
pub fn run(source: &str, args: &Map<String, Value>, context: &RunContext) -> RunEnd {
    match try_run(source, args, context) {
        Ok(json) => RunEnd::Returned(json),
        Err(error) => RunEnd::Failed(ScriptError {
            message: cut(error.message),
            traceback: error.traceback.map(cut),
            ..error
        }),
    }
}

/// Says why `source` does not compile, where it does not.
pub fn check(source: &str) -> Option<ScriptError> {
    ffi::compile(source).err().map(|message| syntax_error(&message))
}

fn try_run(
    source: &str,
    args: &Map<String, Value>,
    context: &RunContext,
) -> Result<Box<RawValue>, ScriptError> {
    let bytecode = ffi::compile(source).map_err(|message| syntax_error(&message))?;
    let memory = usize::try_from(context.limits.vm_memory_bytes).unwrap_or(usize::MAX);
    let mut vm = Vm::new(Host::new(context), memory).ok_or_else(out_of_memory)?;
    let begun = vm.protect(|call| globals::install(call, args)).and_then(|()| vm.load(&bytecode));
    begun.map_err(|thrown| own_failure(&vm, thrown))?;
    drop(bytecode);
    match vm.run() {
        Ended::Returned(count) => match vm.protect(|call| Ok(json::encode_result(call, count))) {
            Ok(Ok(json)) => Ok(json),
            Ok(Err(error)) => Err(error),
            Err(thrown) => Err(own_failure(&vm, thrown)),
        },
        failed => Err(failure(&mut vm, failed, source)),
    }
}

/// What is to be said about a script that did not return.
fn failure(vm: &mut Vm, ended: Ended, source: &str) -> ScriptError {
    let traceback = Some(vm.traceback(MAX_MESSAGE_BYTES)).filter(|text| !text.is_empty());
    let (rule, message) = match ended {
        Ended::Yielded => (None, "attempt to yield from outside a coroutine".to_owned()),
        Ended::OutOfMemory => (Some(ErrorKind::OutOfMemory), out_of_memory().message),
        Ended::Failed | Ended::Returned(_) => {
            let described = vm.protect(|call| Ok(globals::describe_error(call)));
            let error = described.unwrap_or_else(|_| b"(error object cannot be shown)".to_vec());
            if vm.was_out_of_memory() {
                let message = out_of_memory().message;
                vm.host().remember_rule(ErrorKind::OutOfMemory, message.as_bytes());
            }
            (vm.host().rule_of(&error), String::from_utf8_lossy(&error).into_owned())
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
    let message = globals::with_hint(message, line, source, host.files.is_some());
    ScriptError { kind: rule.unwrap_or(ErrorKind::Runtime), message, line, traceback }
}

/// Our own work in the VM failed, before or after the script ran.
fn own_failure(vm: &Vm, thrown: Thrown) -> ScriptError {
    match thrown {
        Thrown::OutOfMemory => out_of_memory(),
        Thrown::Error(message) => ScriptError {
            kind: vm.host().rule_of(&message).unwrap_or(ErrorKind::Runtime),
            message: String::from_utf8_lossy(&message).into_owned(),
            line: None,
            traceback: None,
        },
    }
}

fn out_of_memory() -> ScriptError {
    ScriptError {
        kind: ErrorKind::OutOfMemory,
        message: "not enough memory".to_owned(),
        line: None,
        traceback: None,
    }
}

/// `message` is the compiler's: `:3: …`.
fn syntax_error(message: &str) -> ScriptError {
    let message = cut(format!("script{message}"));
    let line = line_of(message.as_bytes());
    ScriptError { kind: ErrorKind::Syntax, message, line, traceback: None }
}

fn line_of(message: &[u8]) -> Option<u32> {
    split_position(message).map(|(line, _)| line)
}

/// Takes `script:3: ` off the front of a message, or `script:3` off that of a traceback.
fn split_position(message: &[u8]) -> Option<(u32, &[u8])> {
    let rest = message.strip_prefix(b"script:")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let line = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let rest = &rest[digits..];
    Some((line, rest.strip_prefix(b": ").unwrap_or(rest)))
}

/// As much of an error's text as is ever shown, before it is copied: the script made it, as long as
/// its memory allows. A character that this cuts lies behind what [`cut`] leaves.
fn shown(text: &[u8]) -> &[u8] {
    &text[..text.len().min(MAX_MESSAGE_BYTES + 4)]
}

fn cut(text: String) -> String {
    let len = cut_encoded(&text, MAX_MESSAGE_BYTES).len();
    let mut text = text;
    text.truncate(len);
    text
}
