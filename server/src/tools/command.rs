//! `sandbox_command`: a program's run, whose output and files are told however it ended.

use std::sync::Arc;
use std::time::Duration;

use sandbox_controller::{Command, Error, ErrorKind, ExecResult, Execution, Exit, Limits, Outcome};

use super::Done;
use super::answer::{CommandRemarks, Extent, Remarks};
use super::args::CommandArgs;
use super::data::{CommandData, Data};
use super::error::{CommandFailure, Partial, ToolError, over_ceiling};
use super::stop::{Stop, StopCause};
use crate::registry::{RegisteredSandbox, Registry, Ticket};

/// How long a command may run whose caller does not say, unless scripts may not run as long.
pub(super) const DEFAULT_TIMEOUT_MS: u64 = 30_000;

/// Runs a program when its turn has come. Stopped in the middle, it is cancelled, and what it had
/// written until then is told.
pub(super) async fn run(
    registry: Arc<Registry>,
    registered: Arc<RegisteredSandbox>,
    args: CommandArgs,
    limits: Limits,
    mut ticket: Ticket,
    mut stop: Stop,
) -> Done {
    let begun = async {
        let command = command(args, &limits)?;
        ticket.turn().await;
        let sandbox = registered.ready().await?;
        sandbox.start_exec(command).await.map_err(|error| match error {
            // It is a call's arguments that are wrong, not the command line's.
            Error::Command { .. } => ToolError::invalid(error.full_message()),
            Error::OverCeiling(over) => over_ceiling("timeout", &over),
            error => registry.failure(&registered, error).into(),
        })
    };
    let ended = stop
        .ended(begun, |execution: Execution| (execution.cancel_handle(), execution.wait()))
        .await;
    // Those that wait for it see all that it did.
    drop(ticket);
    match ended {
        Ok((result, cause)) => told(result, cause),
        Err(error) => Err(error).into(),
    }
}

/// What is to run, by the arguments.
pub(super) fn command(args: CommandArgs, limits: &Limits) -> Result<Command, ToolError> {
    let refuse = |what: String| Err(ToolError::invalid(format!("sandbox_command: {what}")));
    let CommandArgs { container_id: _, executable, args, working_directory, env_vars, timeout } =
        args;
    if executable.is_empty() {
        return refuse("`executable`: it is empty".to_owned());
    }
    if timeout == Some(0) {
        return refuse("`timeout`: it is 0".to_owned());
    }
    let default = Duration::from_millis(DEFAULT_TIMEOUT_MS).min(limits.timeout);
    let mut command = Command::new(executable)
        .args(args.unwrap_or_default())
        .cwd(working_directory)
        .timeout(timeout.map_or(default, Duration::from_millis));
    for (index, variable) in env_vars.into_iter().flatten().enumerate() {
        command = match variable.split_once('=') {
            Some(("HOME", _)) => {
                return refuse(format!(
                    "`envVars[{index}]`: HOME is the mounted directory, and nothing else"
                ));
            }
            Some((name, value)) if !name.is_empty() => command.env(name, value),
            _ => return refuse(format!("`envVars[{index}]`: expected KEY=VALUE")),
        };
    }
    Ok(command)
}

/// What is told of a run.
fn told(result: ExecResult, cause: Option<StopCause>) -> Done {
    let hint = hint(&result);
    let ExecResult { outcome, stdout, stderr, stdout_truncated, stderr_truncated, .. } = result;
    let (stdout, stdout_extent) = text(stdout, stdout_truncated);
    let (stderr, stderr_extent) = text(stderr, stderr_truncated);
    let signal = match outcome {
        Outcome::Exit(Exit::Signal(signal)) => Some(signal.into()),
        _ => None,
    };
    let remarks = CommandRemarks {
        stdout: stdout_extent,
        stderr: stderr_extent,
        signal,
        files_touched: result.files_touched.files,
        files_touched_truncated: result.files_touched.truncated,
    };
    let (exit_code, timed_out) = match &outcome {
        Outcome::Ok { .. } => (0, false),
        Outcome::Exit(_) => (outcome.exit_code().into(), false),
        // The interface's own word for it: there is no exit code.
        Outcome::Timeout(_) => (-1, true),
        outcome => {
            let error = match (outcome, cause, outcome.failure()) {
                (Outcome::Cancelled { .. }, Some(cause), _) => cause.into(),
                (_, _, Some(failure)) => {
                    ToolError { hint, ..ToolError::new(failure.kind, failure.message) }
                }
                (_, _, None) => {
                    let message = "the command ended as no command does: a fault of ours";
                    ToolError::new(ErrorKind::Internal, message)
                }
            };
            let partial = Partial::Command(CommandFailure { stdout, stderr, remarks });
            return Err(ToolError { partial: Some(partial.into()), ..error }).into();
        }
    };
    let remarks = Remarks { command: Some(remarks), ..Remarks::default() };
    let stdout = trimmed(&stdout, stdout_extent.truncated);
    let stderr = trimmed(&stderr, stderr_extent.truncated);
    let data = CommandData { stdout, stderr, exit_code, timed_out };
    Done { remarks, ..Ok(Data::Command(data)).into() }
}

fn hint(result: &ExecResult) -> Option<String> {
    match result.outcome.failure()?.kind {
        ErrorKind::Timeout => Some("timeout gives it more time".to_owned()),
        _ => result.hint(),
    }
}

/// An output as text. A character that was cut with the output's end is no fault of the command's.
fn text(mut output: Vec<u8>, truncated: bool) -> (String, Extent) {
    if truncated
        && let Err(error) = std::str::from_utf8(&output)
        && error.error_len().is_none()
    {
        output.truncate(error.valid_up_to());
    }
    let (text, lossy) = match String::from_utf8(output) {
        Ok(text) => (text, false),
        Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), true),
    };
    (text, Extent { truncated, lossy })
}

/// An output as Loopstack's `sandbox_command` gives it: without what JavaScript's `trim` takes away.
/// Of one that was cut, the end is not the output's.
fn trimmed(output: &str, truncated: bool) -> String {
    let is_space = |c: char| (c.is_whitespace() && c != '\u{85}') || c == '\u{feff}';
    let output = output.trim_start_matches(is_space);
    let output = if truncated { output } else { output.trim_end_matches(is_space) };
    output.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_trimmed_as_javascript_does_and_never_where_it_was_cut() {
        assert_eq!(trimmed(" \t\r\na b\n\n", false), "a b");
        assert_eq!(trimmed("\u{feff}\u{a0}\u{2028}a\u{3000}\u{b}", false), "a");
        // No white space of JavaScript's, though Unicode's.
        assert_eq!(trimmed("\u{85}a\u{200b}", false), "\u{85}a\u{200b}");
        assert_eq!(trimmed("\na\n", true), "a\n");
        assert_eq!(trimmed(" \n ", false), "");
    }

    #[test]
    fn output_that_is_no_text_says_so_and_a_cut_character_is_left_out() {
        let told = |bytes: &[u8], truncated| {
            let (text, Extent { truncated: is_truncated, lossy }) = text(bytes.to_vec(), truncated);
            assert_eq!(is_truncated, truncated);
            (text, lossy)
        };
        assert_eq!(told("é".as_bytes(), false), ("é".to_owned(), false));
        assert_eq!(told(b"a\xffb", false), ("a\u{fffd}b".to_owned(), true));
        assert_eq!(told(b"a\xc3", false), ("a\u{fffd}".to_owned(), true));
        assert_eq!(told(b"a\xc3", true), ("a".to_owned(), false));
        assert_eq!(told(b"\xffa\xc3", true), ("\u{fffd}a\u{fffd}".to_owned(), true));
    }

    #[test]
    fn what_no_command_can_be_given_is_refused_by_its_argument() {
        let args = |change: fn(&mut CommandArgs)| {
            let mut args = CommandArgs {
                container_id: "c".to_owned(),
                executable: "ls".to_owned(),
                args: None,
                working_directory: "/".to_owned(),
                env_vars: None,
                timeout: None,
            };
            change(&mut args);
            command(args, &Limits::default()).map(drop).map_err(|error| error.message)
        };
        assert_eq!(args(|_| {}), Ok(()));
        let named = |change, name: &str| {
            let message = args(change).unwrap_err();
            assert!(message.starts_with(&format!("sandbox_command: `{name}`: ")), "{message}");
        };
        named(|args| args.executable.clear(), "executable");
        named(|args| args.timeout = Some(0), "timeout");
        for (wrong, at) in [("A", 1), ("=1", 1), ("HOME=/root", 1)] {
            let message = {
                let mut given = CommandArgs {
                    container_id: "c".to_owned(),
                    executable: "ls".to_owned(),
                    args: None,
                    working_directory: "/".to_owned(),
                    env_vars: Some(vec!["OK=a=b".to_owned(), wrong.to_owned()]),
                    timeout: None,
                };
                given.args = Some(vec![String::new()]);
                command(given, &Limits::default()).map(drop).unwrap_err().message
            };
            assert!(message.contains(&format!("`envVars[{at}]`")), "{message}");
        }
    }
}
