//! `process`: commands of the image, in sandboxes that support them. The same code as the
//! controller's `exec`, with the output collected.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use sandbox_protocol::limits::{MAX_COMMAND_BYTES, size_text};
use sandbox_protocol::message::{Command, ExecEnd, ExecReply, ExecStop, Program};
use sandbox_protocol::{ErrorKind, WireError, WireString};

use super::ffi::{Call, Kind, Raise, Results, Slot};
use super::options::{option, options};
use crate::exec::{Bounds, Collected, LONGEST, Left, Outputs, Task};
use crate::stop::StopReason;

/// Sets `process`.
pub(super) fn install(call: &mut Call<'_>) {
    let process = call.push_table(0, 1);
    call.set_function(process, c"exec", exec);
    call.set_global(c"process");
}

/// Names and values.
type Variables = Vec<(Vec<u8>, Vec<u8>)>;

fn exec(call: &mut Call<'_>) -> Results {
    let (program, args) = (Slot::arg(1), Slot::arg(2));
    let Some(program) = call.string(program).map(WireString::new) else {
        return Err(Raise::expected(call, program, "exec", "string"));
    };
    let args = match call.kind(args) {
        Kind::None | Kind::Nil => Vec::new(),
        Kind::Table => words(call, args)?,
        _ => return Err(Raise::expected(call, args, "exec", "table")),
    };
    let table = options(call, Slot::arg(3), "exec", &["cwd", "env", "stdin", "timeout"])?;
    let text = |call: &Call<'_>, value| call.string(value).map(<[u8]>::to_vec);
    let cwd = option(call, table, "cwd", "string", text)?;
    let stdin = option(call, table, "stdin", "string", text)?;
    let timeout = option(call, table, "timeout", "positive number of seconds", |call, value| {
        let seconds = call.number(value).filter(|&seconds| seconds > 0.0)?;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST))
    })?;
    let env = environment(call, table)?;
    let host = call.host();
    let none = || Raise::Error("this sandbox does not support commands".to_owned());
    let programs = host.programs.as_ref().ok_or_else(none)?;
    let task = Task {
        command: &Command::Program(Program { program, args }),
        cwd: cwd.as_deref(),
        env: env.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect(),
        has_input: stdin.is_some(),
        outputs: Outputs::Apart,
        bounds: Bounds {
            stop: host.stop.clone(),
            deadline: Some(Instant::now() + timeout.unwrap_or(LONGEST).min(LONGEST)),
            // The script waits for it, and has a deadline of its own.
            grace: Duration::ZERO,
            stop_signal: Signal::TERM,
            output_bytes: host.limits.output_bytes,
            left: Left::Killed,
        },
    };
    let mut console = Collected::new(stdin.unwrap_or_default(), host.limits.collected_bytes);
    let result = programs.run_for_script(task, &mut console);
    if host.stop.reason() != StopReason::None {
        return Err(Raise::Stopped);
    }
    let ExecReply { end, stopped, .. } = result.map_err(raised)?;
    if stopped == Some(ExecStop::OutputLimit) {
        let message = format!("output limit exceeded ({})", size_text(host.limits.output_bytes));
        return Err(Raise::Rule(ErrorKind::OutputLimit, message));
    }
    let reply = call.push_table(0, 7);
    call.set_boolean(reply, c"ok", end == ExecEnd::Exited(0));
    match end {
        ExecEnd::Exited(code) => call.set_number(reply, c"code", code.into()),
        ExecEnd::Signaled(signal) => call.set_number(reply, c"signal", signal.into()),
    }
    let [stdout, stderr] = &console.kept;
    call.set_string(reply, c"stdout", stdout);
    call.set_string(reply, c"stderr", stderr);
    call.set_boolean(reply, c"truncated", console.truncated);
    call.set_boolean(reply, c"timed_out", stopped == Some(ExecStop::Timeout));
    Ok(call.results(1))
}

fn raised(error: WireError) -> Raise {
    match error.kind() {
        kind if kind.is_limit() => Raise::Rule(kind, error.message),
        _ => Raise::Error(error.message),
    }
}

/// The strings of an array.
fn words(call: &mut Call<'_>, array: Slot) -> Result<Vec<WireString>, Raise> {
    let top = call.len();
    let (mut words, mut bytes) = (Vec::new(), 0);
    loop {
        call.push_element(array, words.len() + 1);
        let element = call.top();
        if call.is_nil(element) {
            call.truncate(top);
            break;
        }
        let Some(word) = call.text(element) else {
            let (number, got) = (words.len() + 1, call.type_name(element));
            let message =
                format!("invalid argument {number} of a program (string expected, got {got})");
            return Err(Raise::Error(message));
        };
        bytes += word.len() + 8;
        words.push(WireString::new(word));
        call.truncate(top);
        bounded(bytes)?;
    }
    // Values after a nil or under another key would be lost.
    let (mut entries, mut position) = (0, 0);
    while let Some(next) = call.next(array, position) {
        position = next;
        let (key, value) = (Slot::arg(call.len() - 1), call.top());
        // `table.pack` counts what it packs.
        let is_count =
            call.string(key) == Some(b"n") && call.number(value) == Some(words.len() as f64);
        entries += usize::from(!is_count);
        call.truncate(top);
        if entries > words.len() {
            let problem = "array expected, got a table with holes or keys that are not indices";
            return Err(Raise::argument(array, "exec", problem));
        }
    }
    Ok(words)
}

/// The variables in the option `env`.
fn environment(call: &mut Call<'_>, table: Slot) -> Result<Variables, Raise> {
    let is_table = |call: &Call<'_>, value| (call.kind(value) == Kind::Table).then_some(());
    if option(call, table, "env", "table", is_table)?.is_none() {
        return Ok(Vec::new());
    }
    let top = call.len();
    call.push_field(table, b"env");
    let env = call.top();
    let (mut variables, mut bytes, mut position) = (Vec::new(), 0, 0);
    while let Some(next) = call.next(env, position) {
        position = next;
        let (name, value) = (Slot::arg(top + 2), Slot::arg(top + 3));
        let Some(name) = call.string(name).map(<[u8]>::to_vec) else {
            let got = call.type_name(name);
            let message = format!("invalid name in 'env' (string expected, got {got})");
            return Err(Raise::Error(message));
        };
        let Some(value) = call.text(value).map(<[u8]>::to_vec) else {
            let (name, got) = (String::from_utf8_lossy(&name), call.type_name(value));
            let message =
                format!("invalid value of '{name}' in 'env' (string expected, got {got})");
            return Err(Raise::Error(message));
        };
        bytes += name.len() + value.len() + 16;
        variables.push((name, value));
        call.truncate(top + 1);
        bounded(bytes)?;
    }
    call.truncate(top);
    Ok(variables)
}

fn bounded(bytes: usize) -> Result<(), Raise> {
    if bytes <= MAX_COMMAND_BYTES {
        return Ok(());
    }
    Err(Raise::Error("the arguments and the environment are too long".to_owned()))
}
