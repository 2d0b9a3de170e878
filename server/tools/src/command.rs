//! `sandbox_command`: runs a command, and reports its output and files however it ended.

use std::borrow::Cow;
use std::time::Duration;

use sandbox_api::{Captured, ExecutionResult, Exit, FilesTouched, Limits, Note, Outcome};
use sandbox_controller::Command;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ToolError;
use super::metadata::Metadata;
use super::stop::Stop;
use super::tool::{Context, Output, Tool, Work, arguments};
use crate::registry::Scope;

/// The argument of a command's timeout.
const TIMEOUT: &str = "timeout";
/// The default timeout of a command, unless the limit for scripts is lower.
const DEFAULT_TIMEOUT_MS: u64 = 30_000;

pub(super) struct RunCommand;

fn root() -> String {
    "/".to_owned()
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CommandArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The program; no shell is implied
    pub executable: String,
    /// Its arguments
    #[serde(default)]
    pub args: Option<Vec<String>>,
    /// Where it starts: any directory of the sandbox; a relative one is below the mounted one
    #[serde(default = "root")]
    pub working_directory: String,
    /// Variables, each as KEY=VALUE
    #[serde(default)]
    pub env_vars: Option<Vec<String>>,
    /// Milliseconds that it may take
    #[serde(default)]
    #[schemars(with = "u64", range(min = 1), extend("default" = DEFAULT_TIMEOUT_MS))]
    pub timeout: Option<u64>,
}

arguments!(CommandArgs);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CommandData {
    /// What it wrote to stdout, without white space at its two ends; bytes that are no UTF-8 are
    /// U+FFFD here, and the metadata says so
    pub stdout: String,
    /// What it wrote to stderr, likewise
    pub stderr: String,
    /// Its exit code; 128 and the signal's number where one ended it, -1 at its timeout
    pub exit_code: i32,
    /// Its timeout expired, and it was killed
    pub timed_out: bool,
}

/// Details of a command other than its output and its exit code.
#[derive(Debug, Default)]
struct Details {
    stdout: OutputFlags,
    stderr: OutputFlags,
    /// The signal that ended it.
    signal: Option<i32>,
    files_touched: FilesTouched,
    /// What stood in its way in the sandbox.
    notes: Vec<Note>,
}

/// How an output was converted to text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct OutputFlags {
    /// It was truncated.
    truncated: bool,
    /// It was not UTF-8, and the text contains U+FFFD.
    lossy: bool,
}

impl Details {
    fn add_to(self, metadata: &mut Metadata) {
        metadata.push_some("signal", self.signal);
        metadata.push("stdoutTruncated", self.stdout.truncated);
        metadata.push("stderrTruncated", self.stderr.truncated);
        metadata.push("stdoutLossy", self.stdout.lossy);
        metadata.push("stderrLossy", self.stderr.lossy);
        metadata.push("files_touched", self.files_touched.files);
        metadata.push("filesTouchedTruncated", self.files_touched.truncated);
        metadata.push_some("notes", Some(self.notes).filter(|notes| !notes.is_empty()));
    }
}

impl Tool for RunCommand {
    const NAME: &'static str = "sandbox_command";
    const DESCRIPTION: &'static str = "Run a program in a sandbox that was made with an image, \
        and give its output and its exit code. On timeout the program and its \
        children are killed.";
    type Args = CommandArgs;
    type Data = CommandData;

    fn begin(
        args: CommandArgs,
        context: &Context,
        stop: Stop,
    ) -> Result<Work<CommandData>, ToolError> {
        let lease = context.registry.find(&args.container_id)?;
        if !lease.supports_exec() {
            let message = format!(
                "Container '{}' has no image, and so no programs: sandbox_command needs one",
                args.container_id
            );
            let hint = "imageName of sandbox_init names one; sandbox_execute_script runs scripts \
                        without";
            return Err(ToolError::invalid(message).with_hint(hint));
        }
        let lease = lease.enter(Scope::Script);
        let limits = lease.bounds().limits;
        Ok(Box::pin(async move {
            let command = command(args, &limits)?;
            let result = stop.run(lease, command.into(), None, TIMEOUT).await?;
            report(result, &stop)
        }))
    }

    fn complete_error(mut error: ToolError) -> ToolError {
        if error.metadata.is_empty() {
            error.metadata = failure_metadata(String::new(), String::new(), Details::default());
        }
        error
    }
}

/// Converts the arguments to a command.
fn command(args: CommandArgs, limits: &Limits) -> Result<Command, ToolError> {
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
            Some((name, value)) if !name.is_empty() => command.env(name, value),
            _ => return refuse(format!("`envVars[{index}]`: expected KEY=VALUE")),
        };
    }
    Ok(command)
}

fn report(result: ExecutionResult, stop: &Stop) -> Result<Output<CommandData>, ToolError> {
    let error = stop.error(&result, TIMEOUT);
    let (stdout, stdout_flags) = text(result.stdout());
    let (stderr, stderr_flags) = text(result.stderr());
    let ExecutionResult { outcome, files_touched, notes, .. } = result;
    let signal = match outcome {
        Outcome::Exit(Exit::Signal(signal)) => Some(signal.into()),
        _ => None,
    };
    let details =
        Details { stdout: stdout_flags, stderr: stderr_flags, signal, files_touched, notes };
    let (exit_code, timed_out) = match &outcome {
        Outcome::Ok { .. } => (0, false),
        Outcome::Exit(_) => (outcome.exit_code().into(), false),
        // The interface's own value: there is no exit code.
        Outcome::Timeout(_) => (-1, true),
        _ => {
            let metadata = failure_metadata(stdout, stderr, details);
            return Err(ToolError { metadata, ..error });
        }
    };
    let stdout = trimmed(&stdout, stdout_flags.truncated);
    let stderr = trimmed(&stderr, stderr_flags.truncated);
    let mut output = Output::from(CommandData { stdout, stderr, exit_code, timed_out });
    details.add_to(&mut output.metadata);
    Ok(output)
}

/// The metadata of every failed command.
fn failure_metadata(stdout: String, stderr: String, details: Details) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.push("stdout", stdout);
    metadata.push("stderr", stderr);
    details.add_to(&mut metadata);
    metadata
}

/// An output as text. A character that was split by truncation is not the command's error.
fn text(Captured { bytes, truncated }: &Captured) -> (String, OutputFlags) {
    let (mut bytes, truncated) = (&**bytes, *truncated);
    if truncated
        && let Err(error) = std::str::from_utf8(bytes)
        && error.error_len().is_none()
    {
        bytes = &bytes[..error.valid_up_to()];
    }
    let text = String::from_utf8_lossy(bytes);
    let (lossy, text) = (matches!(text, Cow::Owned(_)), text.into_owned());
    (text, OutputFlags { truncated, lossy })
}

/// An output as Loopstack's `sandbox_command` returns it: without what JavaScript's `trim` removes.
/// The end of a truncated one is kept.
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
        // Whitespace for Unicode, but not for JavaScript.
        assert_eq!(trimmed("\u{85}a\u{200b}", false), "\u{85}a\u{200b}");
        assert_eq!(trimmed("\na\n", true), "a\n");
        assert_eq!(trimmed(" \n ", false), "");
    }

    #[test]
    fn output_that_is_no_text_says_so_and_a_cut_character_is_left_out() {
        let decoded = |bytes: &[u8], truncated| {
            let captured = Captured { bytes: bytes.to_vec(), truncated };
            let (text, OutputFlags { truncated: is_truncated, lossy }) = text(&captured);
            assert_eq!(is_truncated, truncated);
            (text, lossy)
        };
        assert_eq!(decoded("é".as_bytes(), false), ("é".to_owned(), false));
        assert_eq!(decoded(b"a\xffb", false), ("a\u{fffd}b".to_owned(), true));
        assert_eq!(decoded(b"a\xc3", false), ("a\u{fffd}".to_owned(), true));
        assert_eq!(decoded(b"a\xc3", true), ("a".to_owned(), false));
        assert_eq!(decoded(b"\xffa\xc3", true), ("\u{fffd}a\u{fffd}".to_owned(), true));
    }

    #[test]
    fn invalid_command_is_refused_by_its_argument() {
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
        for (wrong, at) in [("A", 1), ("=1", 1)] {
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
